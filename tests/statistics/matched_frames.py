"""Matched frames at random, an accumulator that is fed with them, and what should be counted by
slice and pane; no tests here.

The panes are filled row by row, from the meaning of slices, stages and tracks.
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from monitor.frames.frame import MatchedRows, TrackIds
from monitor.frames.space import Dimension, DimensionKind, Space, plain_space
from monitor.statistics.bins import Binning, ExportEdges, LogBins
from monitor.statistics.folding import SliceAccumulator
from monitor.statistics.state import SliceStatistics, Stages, observe
from monitor.statistics.windows import PaneAccumulator, PaneKey, Windows, put
from tests.states import bits

BINNING = Binning(LogBins(2.0**-6, 8, 12), LogBins(2.0**-6, 4, 12), (0.5, 0.9))
EDGES = ExportEdges((0.5, 1.0, 2.0, 4.0), BINNING)
# Panes of 20, 60 and 120 ns.
WINDOWS = Windows((60, 180, 360), 3)
OLDER = (WINDOWS.older, 0)
XY = plain_space(("x", "y"), "m")
UV = plain_space(("u", "v"), "px")
# An angle in front: the order of whitening is then not the order of the dimensions.
BOX = Space((Dimension("yaw", "rad", DimensionKind.ANGLE), *plain_space(("x", "y")).dimensions))
# Every slice is of one space.
SLICES = {XY: (0, 1, 4), UV: (2,), BOX: (3, 5)}
Panes = dict[int, dict[PaneKey, SliceStatistics]]


def matched(
    seed: int | list[int],
    n: int,
    *,
    changed: bool = True,
    slices: Sequence[int] = (0, 1),
    space: Space = XY,
    stamp_ns: int | None = None,
    live: bool = True,
    tracks: int = 0,
    source: int = 0,
) -> MatchedRows:
    """A frame of n rows, one in ten of them a gross outlier, of tracks if there are any."""
    random = np.random.default_rng(seed)
    k = space.k
    root = random.normal(size=(n, k, k)) + 2 * np.eye(k)
    covariance = root @ root.transpose(0, 2, 1)
    covariance[random.random(n) < 0.3] = 2.0 * np.eye(k)
    error = random.normal(size=(n, k)) * 2.0
    error[random.random(n) < 0.1] *= 1e5
    of_rows = TrackIds(np.zeros(n, np.uint64), np.zeros(n, bool)) if tracks else None
    if of_rows is not None:
        chosen = random.permutation(n)[:tracks]
        of_rows.id[chosen] = random.permutation(tracks)[: chosen.size]
        of_rows.known[chosen] = random.random(chosen.size) < 0.9
    of_slices = random.choice(np.array(slices, np.int64), n)
    made = (error + 0.5, 3.0 * covariance) if changed else (error, covariance)
    return MatchedRows(space, of_slices, error, covariance, *made, stamp_ns, live, of_rows, source)


def drive(
    seed: int, frames: int, *, tracks: int = 0, changed: bool | None = None, late: float = 0.2
) -> list[MatchedRows]:
    """Frames of all spaces, 2 ns apart; some come with old stamps, or with none."""
    random = np.random.default_rng(seed)
    found = []
    for number in range(frames):
        space = list(SLICES)[int(random.integers(len(SLICES)))]
        stamp: int | None = 2 * number
        live = random.random() >= late
        if not live:
            stamp = None if random.random() < 0.2 else 2 * number - int(random.integers(600))
        n = int(random.integers(13))
        rows = matched(
            *([seed, number], n),
            changed=bool(random.random() < 0.6) if changed is None else changed,
            slices=SLICES[space],
            space=space,
            stamp_ns=stamp,
            live=live,
            tracks=tracks,
            source=int(random.integers(2)) if tracks else 0,
        )
        found.append(rows)
    return found


def clock_of(frames: Sequence[MatchedRows]) -> int:
    return max(rows.stamp_ns for rows in frames if rows.stamp_ns is not None)


def expected_panes(frames: Sequence[MatchedRows], clock_ns: int | None) -> Panes:
    where: dict[tuple[int, PaneKey], list[tuple[MatchedRows, int]]] = defaultdict(list)
    for rows in frames:
        for row, index in enumerate(rows.slices.tolist()):
            where[index, WINDOWS.place(rows.stamp_ns, clock_ns)].append((rows, row))
    names: dict[tuple[int, ...], int] = {}
    panes: Panes = defaultdict(dict)
    for (index, key), held in where.items():
        cluster = np.array([_cluster(names, rows, row) for rows, row in held], np.uint64)
        see = partial(observe, held[0][0].space, BINNING, cluster=cluster)

        def of(name: str, held: Sequence[tuple[MatchedRows, int]] = held) -> Any:
            return np.array([getattr(rows, name)[row] for rows, row in held])

        raw = made = see(error=of("error"), covariance=of("covariance"))
        if not all(rows.unchanged for rows, _ in held):
            made = see(error=of("recalibrated_error"), covariance=of("recalibrated_covariance"))
        put(panes[index], key, Stages(raw, made))
    return {index: found for index, found in panes.items() if found}


def _cluster(names: dict[tuple[int, ...], int], rows: MatchedRows, row: int) -> int:
    """A number for the track of a row in its source, slice and finest pane; 0: in none."""
    if rows.tracks is None or not rows.tracks.known[row]:
        return 0
    epoch = -(10**9) if rows.stamp_ns is None else rows.stamp_ns // WINDOWS.pane_ns[0]
    name = int(rows.tracks.id[row]), int(rows.slices[row]), rows.source, epoch
    return names.setdefault(name, len(names) + 1)


def empty(fold_rows=100) -> SliceAccumulator:
    return SliceAccumulator(BINNING, WINDOWS, EDGES, fold_rows)


def unfinished(accumulator: PaneAccumulator[Any, Any]) -> bool:
    return accumulator.busy or accumulator.waiting > 0


def fold(accumulator: PaneAccumulator[Any, Any]) -> None:
    while unfinished(accumulator):
        accumulator.step()


def fold_some(accumulator: PaneAccumulator[Any, Any]) -> None:
    """Goes one short step if a fold is due or begun, as the sidecar does between frames."""
    if accumulator.busy:
        accumulator.step()


def finished(accumulator: SliceAccumulator, clock_ns: int | None = None) -> SliceAccumulator:
    fold(accumulator)
    list(accumulator.move_on(clock_ns))
    return accumulator


def accumulated(frames: Sequence[MatchedRows], fold_rows=100, clock_ns=None) -> SliceAccumulator:
    """Fed frame by frame, a step after each, as the sidecar does."""
    accumulator = empty(fold_rows)
    for rows in frames:
        accumulator.add(rows)
        fold_some(accumulator)
    return finished(accumulator, clock_ns)


def assert_same_panes(one: Panes, other: Panes) -> None:
    left, right = ({i: panes for i, panes in every.items() if panes} for every in (one, other))
    assert bits(left) == bits(right)


def counted(accumulator: SliceAccumulator) -> int:
    return sum(one.raw.n for panes in accumulator.panes.values() for one in panes.values())
