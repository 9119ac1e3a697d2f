"""Files that are cut short, damaged, empty, of a later version or of something else: each is
refused with the reason, the generation before is used where there is one, and the sidecar serves.
"""

from __future__ import annotations

import random
import re
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.killed import (
    Client,
    End,
    Frames,
    Labels,
    ended,
    new_labels,
    send_frames,
    settings,
    statistics,
    traffic,
)
from tests.served import Sidecar

pytestmark = pytest.mark.campaign

TRAFFIC = traffic(rounds=6)
Damage = Callable[[Path], None]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def flipped(path: Path) -> None:
    """One bit of what it holds."""
    data = bytearray(path.read_bytes())
    data[len(data) * 2 // 3] ^= 16
    path.write_bytes(data)


def of_something_else(path: Path) -> None:
    path.write_bytes(random.Random(0).randbytes(path.stat().st_size))


def of_a_later_version(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()


@pytest.fixture(scope="module")
def left(tmp_path_factory) -> tuple[Path, End]:
    """What a sidecar left that ended in order, two generations of it and all of the ledger."""
    folder = tmp_path_factory.mktemp("left")
    config, client = settings(folder, 60.0), Client(TRAFFIC)
    half = TRAFFIC.operations // 2
    sidecar = Sidecar(folder, config)
    assert client.send(sidecar, until=half)
    sidecar.stop()
    sidecar.end()
    sidecar = Sidecar(folder, config)
    assert client.send(sidecar)
    end = ended(sidecar, folder)
    sidecar.end()
    return folder, end


@pytest.fixture
def begin(left, tmp_path):
    """Starts a sidecar on a copy of it."""
    folder = tmp_path / "left"
    shutil.copytree(left[0], folder)
    started = []

    def start() -> Sidecar:
        started.append(Sidecar(folder, settings(folder, 60.0)))
        return started[-1]

    yield folder, start
    for sidecar in started:
        sidecar.end()


def refused(sidecar: Sidecar) -> dict[str, float]:
    """Files, by what they hold."""
    name = r'^calibration_files_refused_total\{of="(\w+)"\} (\S+)$'
    found = re.findall(name, sidecar.get("/metrics"), re.MULTILINE)
    return {of: float(count) for of, count in found}


def warned(sidecar: Sidecar, topic: str) -> str:
    lines = sidecar.log.read_text("utf-8").splitlines()
    return "\n".join(line for line in lines if "WARNING" in line and f"{topic}: " in line)


def serves(sidecar: Sidecar) -> None:
    """Frames that are new are answered, and no fault of ours is in the log."""
    frames = next(group for group in TRAFFIC.groups if isinstance(group, Frames))
    changed = [type(frame)() for frame in frames.frames]
    for number, (copy, frame) in enumerate(zip(changed, frames.frames, strict=True)):
        copy.CopyFrom(frame)
        copy.frame_id = 10**9 + number
    send_frames(sidecar, Frames(frames.header, tuple(changed)))
    assert "Traceback" not in sidecar.log.read_text("utf-8")


@pytest.mark.parametrize(
    ("damage", "suffix", "reason"),
    [
        (cut, "corrupt", "malformed"),
        (emptied, "corrupt", "no state of a sidecar"),
        (flipped, "corrupt", "not as it was written"),
        (of_something_else, "corrupt", "not a database"),
        (of_a_later_version, "incompatible", "format 99.*Use the monitor that wrote it"),
    ],
)
def test_a_damaged_checkpoint_is_refused_and_the_one_before_goes_on_with_the_ledger(
    left, begin, damage, suffix, reason
):
    folder, start = begin
    damage(folder / "state" / "state.db")
    sidecar = start()
    assert re.search(reason, warned(sidecar, "state"))
    assert "generation before is used" in warned(sidecar, "state")
    assert (folder / "state" / f"state.db.{suffix}").exists()
    assert refused(sidecar) == {"state": 1, "ledger": 0}
    assert statistics(sidecar) == left[1].statistics
    assert new_labels(sidecar, told()) == 0
    serves(sidecar)


def test_without_any_checkpoint_the_statistics_are_those_of_the_whole_ledger(left, begin):
    folder, start = begin
    cut(folder / "state" / "state.db")
    of_something_else(folder / "state" / "state.db.1")
    sidecar = start()
    assert "begins anew" in warned(sidecar, "state")
    assert refused(sidecar)["state"] == 2
    assert statistics(sidecar) == left[1].statistics
    assert new_labels(sidecar, told()) == 0
    serves(sidecar)


def root_of_a_tree(path: Path) -> None:
    """The first byte of some pages: what kinds of pages they are."""
    data = bytearray(path.read_bytes())
    for page in range(2, 12):
        data[8192 * page] ^= 0xFF
    path.write_bytes(data)


def changed(statement: str) -> Damage:
    def change(path: Path) -> None:
        with sqlite3.connect(path) as connection:
            connection.execute(statement)
        connection.close()

    return change


@pytest.mark.parametrize(
    ("damage", "suffix"),
    [
        (cut, "corrupt"),
        (of_something_else, "corrupt"),
        (root_of_a_tree, "corrupt"),
        (changed("PRAGMA user_version = 99"), "incompatible"),
        (emptied, None),
        (Path.unlink, None),
    ],
)
def test_of_a_ledger_that_cannot_be_used_what_waited_is_lost_and_the_rest_goes_on(
    left, begin, damage, suffix
):
    folder, start = begin
    damage(folder / "state" / "ledger.db")
    sidecar = start()
    waited = {
        name: count for name, count in left[1].fates.items() if name.startswith("waiting_in_")
    }
    assert warned(sidecar, "pending").count("is not there") == len(waited) > 1
    if suffix is not None:
        assert f"It is kept as ledger.db.{suffix}" in warned(sidecar, "pending")
        assert (folder / "state" / f"ledger.db.{suffix}").exists()
    files = 1 if suffix else len(waited)
    assert refused(sidecar) == {"state": 0, "ledger": files}
    assert statistics(sidecar) == left[1].statistics
    serves(sidecar)
    assert new_labels(sidecar, told()) == 0
    lost = sum(waited.values()) + left[1].fates.get("dropped_corrupt", 0)
    assert ended(sidecar, folder).fates["dropped_corrupt"] == lost


def test_a_damaged_entry_is_noticed_when_it_is_done_again_and_costs_itself_alone(left, begin):
    folder, start = begin
    for generation in ("state.db", "state.db.1"):
        (folder / "state" / generation).unlink()
    latest = "(SELECT max(sequence) FROM entries WHERE kind = 1)"
    changed(f"UPDATE entries SET crc = crc + 1 WHERE sequence = {latest}")(
        folder / "state" / "ledger.db"
    )
    sidecar = start()
    assert "it is not as it was written" in warned(sidecar, "pending")
    assert refused(sidecar)["ledger"] == 1
    assert sidecar.calibration().counts.matched > 0
    serves(sidecar)


def told():
    return [one for group in TRAFFIC.groups if isinstance(group, Labels) for one in group.truths]
