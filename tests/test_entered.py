"""The recorder of benchmarks.trips, on a program of four files."""

import os
import subprocess
import sys

from benchmarks.entered import Records
from tests.served import PATIENCE

PROGRAM = {
    "monitor/__init__.py": "",
    "monitor/v1/__init__.py": "def generated(): pass",
    "monitor/early.py": "def at_import(): pass\nat_import()\nclass Body: pass",
    "monitor/work.py": """
import asyncio, threading
from monitor.v1 import generated

def job(): generated()
async def turn(): inner()
def inner(): pass
async def both():
    await asyncio.get_running_loop().run_in_executor(None, job)
    await asyncio.create_task(turn())
""",
    "monitor/__main__.py": """
import asyncio
from monitor import early, work

def main():
    asyncio.run(work.both())
    print("listening at last")
    early.at_import()

main()
""",
}


def test_functions_are_recorded_with_their_unit_of_work_until_the_program_is_ready(tmp_path):
    tree = tmp_path / "tree"
    for name, text in PROGRAM.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text, encoding="utf-8")
    records = Records(tmp_path / "records")
    records.open(3)
    subprocess.run(
        [sys.executable, "-m", "monitor"],
        cwd=tree,
        env={**os.environ, **records.environment(tree)},
        timeout=PATIENCE,
        check=True,
    )
    found = [(entry.unit, entry.function, entry.on_loop) for entry in records.entries(3)]
    assert found == [
        ("monitor/__main__.py:main", "main", True),
        ("monitor/work.py:both", "both", True),
        ("monitor/work.py:job", "job", False),
        ("monitor/work.py:turn", "turn", True),
        ("monitor/work.py:turn", "inner", True),
    ]
    assert records.entries(1) == []
