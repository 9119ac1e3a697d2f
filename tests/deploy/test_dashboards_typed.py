"""The dashboards compile against Grafana's own types, `@grafana/schema`; what is wrong does not.

It proves names and types of keys; not how Grafana draws them, which nothing here can run.
"""

import json
import shutil
import subprocess

import pytest

from deploy.grafana.__main__ import FOLDER
from tests.components import program

# package.json with its lock file, the compiler's settings, and types.ts.
TYPES = FOLDER.parent / "typed"
# s; the registry may be slow, and so may be a machine with much else to do.
PATIENCE = 110
BOARDS = {path.stem: json.loads(path.read_text("utf-8")) for path in FOLDER.glob("*.json")}
OVERVIEW = "calibration-overview"


def source(board) -> str:
    """Writes a dashboard as a literal, since types of imported JSON are wide: any string fits."""
    literal = json.dumps(board, indent=2, sort_keys=True, ensure_ascii=False)
    return (
        f"import type {{ Dashboard }} from './types';\n\nexport const it: Dashboard = {literal};\n"
    )


@pytest.mark.components
def test_the_dashboards_are_of_grafanas_types_and_a_mistake_is_found(tmp_path):
    installed = TYPES / "node_modules"
    if not installed.is_dir():
        pytest.fail(f"{installed} is not there: make dashboard-types")
    for name in ("package.json", "tsconfig.json", "types.ts"):
        shutil.copy(TYPES / name, tmp_path)
    (tmp_path / "node_modules").symlink_to(installed)
    wrong = {
        "title": source(BOARDS[OVERVIEW] | {"title": 3}),
        "key": source(BOARDS[OVERVIEW] | {"unheardOf": True}),
    }
    for name, text in (wrong | {uid: source(board) for uid, board in BOARDS.items()}).items():
        (tmp_path / f"{name}.ts").write_text(text, "utf-8")
    compiler = tmp_path / "node_modules" / "typescript" / "bin" / "tsc"
    done = subprocess.run(
        [program("node"), str(compiler), "--project", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    lines = [line.partition(".ts(") for line in done.stdout.splitlines()]
    found = {name: said for name, at, said in reversed(lines) if at}
    assert found.keys() == wrong.keys(), {uid: found.get(uid) for uid in BOARDS}
    assert "Type 'number' is not assignable to type 'string'" in found["title"]
    assert "'\"unheardOf\"' does not exist in type" in found["key"]
