"""Matched frames at random, an accumulator that is fed with them, and what should be counted by
slice and pane; no tests here.

The panes are filled row by row, from the meaning of slices, stages and tracks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from monitor.frames.frame import MatchedRows, TrackIds
from monitor.frames.space import Dimension, DimensionKind, Space, plain_space
from monitor.statistics.bins import Binning, ExportEdges, LogBins
from monitor.statistics.folding import SliceAccumulator
from monitor.statistics.stage import SliceStatistics, observe
from monitor.statistics.windows import PaneAccumulator, PaneChanges, PaneKey, Windows, put
from tests.states import bits

BINNING = Binning(LogBins(2.0**-6, 8, 12), LogBins(2.0**-6, 4, 12), (0.5, 0.9))
# Panes of 20, 60 and 120 ns.
WINDOWS = Windows((60, 180, 360), 3)
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
    """A frame of n rows, one in ten of them a gross outlier.

    tracks  how many there are, each seen at most once; some rows are on none. 0: nobody tracks
    """
    random = np.random.default_rng(seed)
    k = space.k
    root = random.normal(size=(n, k, k)) + 2 * np.eye(k)
    covariance = root @ root.transpose(0, 2, 1)
    covariance[random.random(n) < 0.3] = 2.0 * np.eye(k)
    error = random.normal(size=(n, k)) * 2.0
    error[random.random(n) < 0.1] *= 1e5
    of_rows = None
    if tracks:
        track = np.zeros(n, np.uint64)
        chosen = random.permutation(n)[: min(n, tracks)]
        track[chosen] = random.permutation(tracks)[: chosen.size]
        tracked = np.zeros(n, bool)
        tracked[chosen] = random.random(chosen.size) < 0.9
        of_rows = TrackIds(track, tracked)
    return MatchedRows(
        space,
        random.choice(np.array(slices, np.int64), n),
        error,
        covariance,
        error + 0.5 if changed else error,
        3.0 * covariance if changed else covariance,
        stamp_ns,
        live,
        of_rows,
        source,
    )


def drive(
    seed: int,
    frames: int,
    *,
    tracks: int = 0,
    changed: bool | None = None,
    late: float = 0.2,
    longest: int = 12,
) -> list[MatchedRows]:
    """Frames of all spaces, 2 ns apart; some come with old stamps, or with none."""
    random = np.random.default_rng(seed)
    found = []
    for number in range(frames):
        space = list(SLICES)[int(random.integers(len(SLICES)))]
        stamp: int | None = 2 * number
        live = True
        if random.random() < late:
            stamp = None if random.random() < 0.2 else 2 * number - int(random.integers(600))
            live = False
        found.append(
            matched(
                [seed, number],
                int(random.integers(longest + 1)),
                changed=bool(random.random() < 0.6) if changed is None else changed,
                slices=SLICES[space],
                space=space,
                stamp_ns=stamp,
                live=live,
                tracks=tracks,
                source=int(random.integers(2)) if tracks else 0,
            )
        )
    return found


def shuffled(rows: MatchedRows, random: np.random.Generator) -> MatchedRows:
    """The same rows in another order."""
    order = random.permutation(rows.n)
    error, covariance = rows.error[order], rows.covariance[order]
    return replace(
        rows,
        slices=rows.slices[order],
        error=error,
        covariance=covariance,
        recalibrated_error=error if rows.unchanged else rows.recalibrated_error[order],
        recalibrated_covariance=(
            covariance if rows.unchanged else rows.recalibrated_covariance[order]
        ),
    )


def expected_panes(frames: Sequence[MatchedRows], clock_ns: int | None, sign: int = 1) -> Panes:
    """What a sidecar has counted whose event time has come to clock_ns.

    sign  −1: what it takes to have the frames not counted
    """
    where: dict[tuple[int, PaneKey], list[tuple[MatchedRows, int]]] = defaultdict(list)
    for rows in frames:
        for row, index in enumerate(rows.slices.tolist()):
            where[index, WINDOWS.place(rows.stamp_ns, clock_ns)].append((rows, row))
    names: dict[tuple[int, ...], int] = {}
    panes: Panes = defaultdict(dict)
    for (index, key), held in where.items():
        see = partial(
            observe,
            held[0][0].space,
            BINNING,
            cluster=np.array([_cluster(names, rows, row) for rows, row in held], np.uint64),
        )
        raw = made = see(
            error=np.array([rows.error[row] for rows, row in held]),
            covariance=np.array([rows.covariance[row] for rows, row in held]),
        )
        if not all(rows.unchanged for rows, _ in held):
            made = see(
                error=np.array([rows.recalibrated_error[row] for rows, row in held]),
                covariance=np.array([rows.recalibrated_covariance[row] for rows, row in held]),
            )
        more = SliceStatistics(raw, made)
        if sign < 0:
            more = more.merge(more.negated()).merge(more.negated())
        put(panes[index], key, more)
    return {index: found for index, found in panes.items() if found}


def _cluster(names: dict[tuple[int, ...], int], rows: MatchedRows, row: int) -> int:
    """A number for the track of a row in its source, slice and finest pane; 0: in none."""
    if rows.tracks is None or not rows.tracks.known[row]:
        return 0
    epoch = -(10**9) if rows.stamp_ns is None else rows.stamp_ns // WINDOWS.pane_ns[0]
    name = int(rows.tracks.id[row]), int(rows.slices[row]), rows.source, epoch
    return names.setdefault(name, len(names) + 1)


# ---- an accumulator, fed

EDGES = ExportEdges((0.5, 1.0, 2.0, 4.0), BINNING)
OLDER = (WINDOWS.older, 0)


def empty(fold_rows=100) -> SliceAccumulator:
    return SliceAccumulator(BINNING, WINDOWS, EDGES, fold_rows)


def finished(accumulator: SliceAccumulator, clock_ns: int | None = None) -> SliceAccumulator:
    fold(accumulator)
    for _ in accumulator.move_on(clock_ns):
        pass
    return accumulator


def add_panes(
    accumulator: SliceAccumulator, index: int, panes: Mapping[PaneKey, SliceStatistics]
) -> None:
    """Adds what was counted elsewhere to a slice, as an import does."""
    changes = PaneChanges(accumulator)
    for _ in changes.put_all(index, panes, timely=True):
        pass
    accumulator.take(changes)


def unfinished(accumulator: PaneAccumulator[Any, Any]) -> bool:
    """Tells that something is not yet in the panes."""
    return accumulator.busy or accumulator.waiting > 0


def fold(accumulator: PaneAccumulator[Any, Any]) -> None:
    """Brings all waiting rows into the statistics."""
    while unfinished(accumulator):
        accumulator.step()


def fold_some(accumulator: PaneAccumulator[Any, Any]) -> None:
    """Goes one short step if a fold is due or begun, as the sidecar does between frames."""
    if accumulator.busy:
        accumulator.step()


def accumulated(frames: Sequence[MatchedRows], fold_rows=100, clock_ns=None) -> SliceAccumulator:
    """Fed frame by frame, a step after each, as the sidecar does."""
    accumulator = empty(fold_rows)
    for rows in frames:
        accumulator.add(rows)
        fold_some(accumulator)
    return finished(accumulator, clock_ns)


def assert_same_panes(one: Panes, other: Panes) -> None:
    held = [{i: panes for i, panes in every.items() if panes} for every in (one, other)]
    assert held[0].keys() == held[1].keys()
    for i, panes in held[0].items():
        assert bits(panes) == bits(held[1][i])


def counted(accumulator: SliceAccumulator) -> int:
    return sum(one.raw.n for panes in accumulator.panes.values() for one in panes.values())


def clock_of(frames: Sequence[MatchedRows]) -> int:
    return max(rows.stamp_ns for rows in frames if rows.stamp_ns is not None)
