"""Processes that die as they write, and a disk that has no room: what was promised is there."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.journalled import replayed, writer

pytestmark = pytest.mark.campaign

ROOT = Path(__file__).parents[1]
PATIENCE = 60.0  # s

# Acknowledges every label by its sequence; frames come beside them.
WRITER = """
import asyncio, sys
from pathlib import Path
from tests.journalled import frame, labels, settings
from monitor.store.files import Claim
from monitor.store.journal import Journal

async def work(folder, most):
    journal = Journal(Claim(Path(folder)), settings(), lambda _: None)
    sequence = journal.open(lambda *_: None).sequence
    print("begun", sequence, flush=True)
    for n in range(most):
        journal.note(frame(sequence + 1, n // 20, size=300))
        journal.note(frame(sequence + 2, n // 20 + 1, size=300))
        journal.note(labels(sequence + 3, sequence + 1, n // 20))
        sequence += 3
        kept = await journal.durable(sequence)
        print("kept" if kept else "not kept", sequence, flush=True)
        await asyncio.sleep(0)
    await journal.close()
"""


def writing(path: Path, then: str) -> subprocess.Popen[str]:
    """A process that writes until it is killed, or its work is done."""
    return subprocess.Popen(
        [sys.executable, "-c", WRITER + then, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def sequences(path: Path) -> list[int]:
    one = writer(path)
    found = [entry.sequence for entry in replayed(path)]
    assert one.refused == 0
    one.disconnect()
    return found


def test_whoever_is_killed_at_any_moment_has_lost_nothing_that_was_promised(tmp_path):
    path, chance = tmp_path / "pending", random.Random(7)
    promised: list[int] = []
    for _ in range(4):
        with writing(path, "asyncio.run(work(sys.argv[1], 100_000))") as process:
            assert process.stdout is not None
            begun = int(process.stdout.readline().split()[1])
            assert begun >= max(promised, default=0)
            for _ in range(chance.randrange(1, 60)):
                what, sequence = process.stdout.readline().split()
                assert what == "kept"
                promised.append(int(sequence))
            process.kill()
            # It came further than we have read.
            promised += [int(line.split()[1]) for line in process.stdout if line.endswith("\n")]
        found = sequences(path)
        assert set(range(1, max(promised) + 1)) <= set(found)
        assert found == sorted(set(found))


@pytest.mark.parametrize("kilobytes", [256])
def test_a_disk_without_room_fails_clearly_and_loses_nothing_that_was_promised(tmp_path, kilobytes):
    path = tmp_path / "pending"
    limited = (
        "import resource\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({kilobytes * 1024}, -1))\n"
        "asyncio.run(work(sys.argv[1], 60))"
    )
    with writing(path, limited) as process:
        told, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
    answers = [line.rsplit(" ", 1) for line in told.splitlines()[1:]]
    assert len(answers) == 60
    kept = [int(sequence) for what, sequence in answers if what == "kept"]
    assert 0 < len(kept) < 60
    assert set(kept) <= set(sequences(path))
