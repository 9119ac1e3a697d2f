"""A fleet of simulated vehicles, and what they upload; no tests here."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from monitor.statistics.holdings import Holdings
from monitor.statistics.observations import finished
from monitor.statistics.state import StatisticsState
from monitor.store.files import write_body
from monitor.store.statistics_state import StoredState, serialised
from tests.states import Row, clock_of, counted, joined, random_rows

VEHICLES, UPLOADS = 3, 4
Upload = tuple[str, StatisticsState]


def file_of(state: StatisticsState, unknown: bytes = b"") -> bytes:
    """The bytes of a checked file."""
    with tempfile.TemporaryFile() as file:
        write_body(file, serialised(StoredState(state, unknown)))
        file.seek(0)
        return file.read()


def driven(seed: int) -> tuple[list[Upload], StatisticsState]:
    """Uploads by name, and the state of a vehicle that has counted all that the others have."""
    random = np.random.default_rng(seed)
    uploads, everything, all_held = list[Upload](), list[Row](), list[Holdings]()
    for vehicle in range(VEHICLES):
        rows = random_rows(int(random.integers(2**31)), 40)
        everything += rows
        for upload, gained in _uploads(f"car{vehicle}", rows, random):
            uploads.append((upload, gained))
            all_held.append(gained.holds)
    whole = counted(everything, clock_of(everything)).in_order()
    return uploads, replace(whole, holds=Holdings.united(all_held))


def _uploads(vehicle: str, rows: Sequence[Row], random: Any) -> Iterator[Upload]:
    cuts = [*sorted(random.integers(0, len(rows), UPLOADS - 1).tolist()), len(rows)]
    before = counted([])
    for number, cut in enumerate(cuts, start=1):
        now = counted(rows[:cut])
        gained = finished(now.since(before))
        yield (
            f"{vehicle}/1/{number}.state",
            replace(gained, holds=Holdings.of(vehicle, "1", number)),
        )
        before = now


def sharded(uploads: Sequence[Upload], folder: Path, seed: int) -> list[Path]:
    """Puts uploads at random into folders; one of ten is delivered twice."""
    random = np.random.default_rng(seed)
    twice = random.choice(len(uploads), max(1, len(uploads) // 10), replace=False).tolist()
    folders = set[Path]()
    for turn, at in [*((0, at) for at in range(len(uploads))), *((1, at) for at in twice)]:
        name, state = uploads[at]
        shard = folder / f"shard{random.integers(4)}"
        path = shard / str(turn) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file_of(state))
        folders.add(shard)
    return [sorted(folders)[i] for i in random.permutation(len(folders))]


def loop(uploads: Sequence[Upload], seed: int) -> bytes:
    """Adds all up, one after the other, in any order."""
    order = np.random.default_rng(seed).permutation(len(uploads)).tolist()
    total = uploads[order[0]][1]
    for at in order[1:]:
        total = total.merge(uploads[at][1])
    return joined(StoredState(total.in_order()))
