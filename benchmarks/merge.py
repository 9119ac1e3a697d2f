"""Merges uploads of 12 slices of 7 dimensions: states a second by one process and by two.

Also what a state costs in pieces: reading its beginning, checking and parsing it, adding it up.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path

import numpy as np

from benchmarks.machine import machine, shortest
from monitor.fleet.merging import merged
from monitor.frames.space import Dimension, DimensionKind, Space, plain_space
from monitor.statistics.bins import Binning
from monitor.statistics.holdings import Holdings
from monitor.statistics.state import SliceState, Stages, StatisticsState, observe
from monitor.statistics.windows import Windows
from monitor.store.files import beginning_of, body_of, write_body
from monitor.store.state_files import beginning_in
from monitor.store.statistics_state import StoredState, parsed, serialised

BOX = Space(
    (
        *plain_space(("x", "y", "z", "l", "w", "h"), "m").dimensions,
        Dimension("yaw", "rad", DimensionKind.ANGLE),
    )
)
SLICES = 12
# Of 5 min, 1 h and 24 h, in six panes each.
WINDOWS = Windows(tuple(seconds * 10**9 for seconds in (300, 3600, 86400)), 6)
# Panes that an hour of driving touches: the last five minutes, the hour, and one of the day.
PANES = ((0, 1008), (1, 84), (2, 4))
TOUCHED = tuple((level, first - i) for (level, first), n in zip(PANES, (6, 5, 1), strict=True)
                for i in range(n))  # fmt: skip
CLOCK_NS = 1008 * 50 * 10**9


def upload(rows: int) -> StatisticsState:
    """What a vehicle has gained in an hour: so many rows in each pane of each slice."""
    random, slices = np.random.default_rng(1), []
    for number in range(SLICES):
        panes = {}
        for key in TOUCHED:
            sigma = np.exp(random.normal(-1, 0.7, (rows, BOX.k)))
            error = sigma * random.standard_normal((rows, BOX.k))
            statistics = observe(
                BOX, Binning(), error, np.square(sigma)[:, :, None] * np.eye(BOX.k)
            )
            panes[key] = Stages(statistics, statistics)
        slices.append(SliceState(f"class {number}", BOX, overflow=False, panes=panes))
    return StatisticsState(Binning(), WINDOWS, CLOCK_NS, tuple(slices))


def written(folder: Path, state: StatisticsState, states: int) -> list[Path]:
    """Writes the upload as if so many had come, of a hundred vehicles."""
    paths = []
    for i in range(states):
        held = replace(state, holds=Holdings.of(f"vehicle {i % 100}", "1", i // 100 + 1))
        paths.append(folder / f"{i}.state")
        with paths[-1].open("wb") as file:
            write_body(file, serialised(StoredState(held)))
    return paths


@contextlib.contextmanager
def silent(what: str, total: int) -> Iterator[Callable[[float], None]]:
    """Shows no progress."""
    yield lambda steps: None


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints what it measured, and on what."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--states", type=int, default=100)
    parser.add_argument("--rows", type=int, default=25, help="in each pane of each slice")
    options = parser.parse_args(arguments)
    state = upload(options.rows)
    with tempfile.TemporaryDirectory() as name:
        paths = written(Path(name), state, options.states)
        data = paths[0].read_bytes()
        print(f"{machine()}; {options.states} states of {len(data) / 1e3:.0f} kB")
        print(f"{SLICES} slices, K = {BOX.k}, {len(TOUCHED)} panes of {options.rows} rows each")
        body, some = (
            body_of(data, ""),
            [parsed(path.read_bytes()[24:]).state for path in paths[:10]],
        )
        calls: dict[str, Callable[[], object]] = {
            "beginning": lambda: beginning_in(beginning_of(data[:8192], "")[0], whole=False),
            "checksum": lambda: body_of(data, ""),
            "parse": lambda: parsed(body),
            "merge": lambda: reduce(StatisticsState.merge, some),
        }
        took = dict(zip(calls, shortest(5, *calls.values()), strict=True))
        took["merge"] /= len(some) - 1
        whole = sum(took.values())
        for piece, seconds in took.items():
            print(f"{piece:<10} {1e3 * seconds:7.2f} ms a state, {seconds / whole:4.0%}")
        for jobs in (1, 2):
            began = time.perf_counter()
            merged([name], jobs, silent)
            seconds = time.perf_counter() - began
            print(
                f"--jobs {jobs}   {options.states / seconds:7.1f} states/s, {seconds:.1f} s in all"
            )


if __name__ == "__main__":
    main()
