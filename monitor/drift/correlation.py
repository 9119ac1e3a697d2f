"""Correlation of successive errors: how many independent detections a correlated one is worth.

Sums of bounded size are kept, along tracks or, where tracks are unknown, along frames. x is the
normalised squared error per dimension, cut as in clusters.py.

Records are moved as plain bytes, by take, compress and the functions here: indexing a structured
array moves them field by field, ten times slower.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import numpy.typing as npt
from annotated_types import Interval

from monitor.frames.marks import LARGEST_COUNT, ArrayForm, Count
from monitor.frames.space import BoolArray, FloatArray, IntArray
from monitor.statistics.clusters import ALONE, ClusterArray

# Structured, (n,), with a field `key`.
Records = npt.NDArray[np.void]


def found(table: Records, key: ClusterArray) -> tuple[IntArray, BoolArray]:
    """Finds where keys (n,) are in a table whose keys are unique, and whether they are there."""
    place = np.searchsorted(table["key"], key)
    there = place < table.size
    there[there] = table["key"][place[there]] == key[there]
    return place, there


def joined(tables: tuple[Records, ...]) -> Records:
    """Joins all records by key; those of one key stay in the order of the tables."""
    kind = tables[0].dtype
    together = np.concatenate([_plain(table) for table in tables]).view(kind)
    return together.take(np.argsort(together["key"], kind="stable"))


def replaced(table: Records, place: IntArray, records: Records) -> Records:
    """Joins records (m,) to a table without those at some places, which they replace."""
    stays = np.ones(table.size, bool)
    stays[place] = False
    return joined((table.compress(stays), records))


def put(table: Records, place: IntArray, records: Records) -> None:
    """Lays records (n,) into a table at places (n,)."""
    _plain(table)[place] = _plain(records)


def summed(values: FloatArray, place: IntArray, size: int) -> FloatArray:
    """Adds values up by place; what np.add.at does, many times faster.

    values   (n, …)
    place    (n,) 0 … size − 1
    returns  (size, …); 0 where there is none
    """
    found = np.zeros((size, *values.shape[1:]))
    if place.size:
        order = np.argsort(place, kind="stable")
        at = place[order]
        start = np.flatnonzero(np.append(True, at[1:] != at[:-1]))
        found[at[start]] = np.add.reduceat(values[order], start)
    return found


def _plain(table: Records) -> Records:
    return table.view(f"V{table.dtype.itemsize}")


def longest_unseen(arrived: IntArray, many: int) -> BoolArray:
    """Chooses the `many` that were not seen for longest, (n,); of equals, those that come first.

    arrived  (n,) number of the last frame with each
    many     0 or less: none
    """
    chosen = np.zeros(arrived.size, bool)
    chosen[np.argsort(arrived, kind="stable")[: max(many, 0)]] = True
    return chosen


# No correlation makes a detection worth less.
LEAST = 0.02

# No sum of a slice comes near; products of two stay finite.
LARGEST_NUMBER = 1e24
Sum = Annotated[float, Interval(ge=0.0, le=LARGEST_NUMBER)]

# s; far above any clock.
Seconds = Annotated[float, Interval(ge=0.0, le=1e12)]

# Tracks that may go on, at most: the longest unseen are forgotten first.
OPEN = 1024

# Sums of a track: rows, Σ x and Σ x² over them; pairs of successive rows x, x', Σ x, Σ x', Σ x² and
# Σ x x' over these.
PARTS = 7
_N, _X, _XX, _PAIRS, _FIRST, _SECOND, _CROSS = range(PARTS)

# A track that may go on.
OPEN_TRACK = np.dtype(
    [
        ("key", np.uint64),
        ("arrived", np.int64),  # number of its last row, of all rows that were of any track
        ("stamp", np.int64),  # event time of that row, in ns
        ("last", np.float64),  # x of it
        ("parts", np.float64, (PARTS,)),  # its sums
    ]
)


# How these are written in documents.
_TOTALS = ArrayForm(np.float64, (PARTS,), 0.0, LARGEST_NUMBER)
_PRODUCTS = ArrayForm(np.float64, (PARTS, PARTS), -LARGEST_NUMBER, LARGEST_NUMBER)
_GOING_ON = ArrayForm(
    OPEN_TRACK,
    (None,),
    fields=(
        ("arrived", 0, LARGEST_COUNT),
        ("stamp", -(2**63), 2**63 - 1),
        ("last", 0.0, LARGEST_NUMBER),
        ("parts", 0.0, LARGEST_NUMBER),
    ),
)

# Fewer tell nothing of correlation.
_FEWEST_TRACKS = 2
_FEWEST_FRAMES = 16
_FEWEST_BATCHES = 8

# Batches of 1, 2, 4 … frames.
SIZES = 9
LONGEST_BATCH = 2 ** (SIZES - 1)
_MEANS = ArrayForm(np.float64, (None,), 0.0, LARGEST_NUMBER)
_BATCHES = ArrayForm(np.float64, (SIZES, 3), 0.0, LARGEST_NUMBER)
_PAIRED = ArrayForm(np.float64, (5,), 0.0, LARGEST_NUMBER)


def worth(correlation: float, design_effect: float) -> float:
    """Returns γ = min((1 − r)/(1 + r), 1/D), from LEAST to 1."""
    r = min(max(correlation, 0.0), 1.0)
    return float(min(1.0, max(LEAST, min((1 - r) / (1 + r), 1 / max(design_effect, 1.0)))))


# s; labels of a track that far apart are looked at for themselves: all of them, and the first of
# each fifth of a second, of each half … So one reference tells what labels at any rate are worth.
SPACINGS = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0)


@dataclass(slots=True)
class TrackSums:
    """Sums that tell how alike the errors of a track are, of labels at one spacing.

    All is read off the sums of tracks and the products of these, so that tracks need not be kept.

    tracks    that were seen
    rows      that were of any
    apart     Σ of the seconds between successive rows
    totals    (PARTS,) Σ over tracks of their sums v
    products  (PARTS, PARTS) Σ v vᵀ
    going_on  tracks that may go on, over a restart too: one that counted as two would make the
              errors of a track seem less alike than they are
    """

    tracks: Count = 0
    rows: Count = 0
    apart: Sum = 0.0
    totals: Annotated[FloatArray, _TOTALS] = field(default_factory=_TOTALS.none)
    products: Annotated[FloatArray, _PRODUCTS] = field(default_factory=_PRODUCTS.none)
    going_on: Annotated[Records, _GOING_ON] = field(default_factory=_GOING_ON.none)

    def __post_init__(self) -> None:
        if (self.going_on["key"][1:] <= self.going_on["key"][:-1]).any():
            raise ValueError("the keys of 'going_on' must ascend")
        # n rows of a track have n − 1 pairs at most.
        if self.totals[_N] != self.rows or self.totals[_PAIRS] > self.rows:
            raise ValueError(f"'totals' must be of {self.rows} rows, and no more pairs")
        if not self.going_on.size <= self.tracks <= self.rows:
            raise ValueError("'tracks' must be at least those that go on, and at most 'rows'")

    def add(
        self, x: FloatArray, track: ClusterArray, stamp_ns: IntArray, spacing: float = 0.0
    ) -> None:
        """Adds n rows in the order of time; those of no track (ALONE) say nothing.

        stamp_ns  (n,) event time
        spacing   s; of the rows of a track within one such span of time, the first alone counts
        """
        tracked = np.flatnonzero(track != ALONE)
        if tracked.size == 0:
            return
        by_id = np.argsort(track[tracked], kind="stable")
        if spacing:
            span = stamp_ns[tracked[by_id]] // round(spacing * 1e9)
            by_id = by_id[self._first_of_span(track[tracked[by_id]], span, spacing)]
            if by_id.size == 0:
                return
        order = tracked[by_id]
        ids, now, time = track[order], x[order], stamp_ns[order]
        first = np.append(True, ids[1:] != ids[:-1])
        start = np.flatnonzero(first)
        end = np.append(start[1:], ids.size) - 1

        seen = np.zeros(start.size, OPEN_TRACK)
        seen["key"], seen["last"], seen["stamp"] = ids[start], now[end], time[end]
        seen["arrived"] = self.rows + by_id[end]
        place, there = found(self.going_on, seen["key"])
        old = np.zeros((start.size, PARTS))
        old[there] = self.going_on["parts"][place[there]]

        before, earlier = np.append(0.0, now[:-1]), np.append(0, time[:-1])
        before[start[there]] = self.going_on["last"][place[there]]
        earlier[start[there]] = self.going_on["stamp"][place[there]]
        paired = ~first
        paired[start[there]] = True
        before[~paired] = 0.0
        self.apart += float(np.maximum(time - earlier, 0)[paired].sum() * 1e-9)
        rows = np.empty((ids.size, PARTS))
        rows[:, _N], rows[:, _X], rows[:, _XX] = 1.0, now, now * now
        rows[:, _PAIRS], rows[:, _FIRST], rows[:, _SECOND] = paired, before, now * paired
        rows[:, _CROSS] = before * now
        new = old + np.add.reduceat(rows, start)
        seen["parts"] = new

        self.tracks += int(np.count_nonzero(~there))
        self.totals += rows.sum(axis=0)
        self.products += new.T @ new - old.T @ old
        self.rows += ids.size
        known = replaced(self.going_on, place[there], seen)
        self.going_on = known.compress(~longest_unseen(known["arrived"], known.size - OPEN))

    def _first_of_span(self, ids: ClusterArray, span: IntArray, spacing: float) -> BoolArray:
        """Tells of rows by track and time, (n,), which are the first of their track in a span."""
        new = np.append(True, (ids[1:] != ids[:-1]) | (span[1:] != span[:-1]))
        start = np.flatnonzero(np.append(True, ids[1:] != ids[:-1]))
        place, there = found(self.going_on, ids[start])
        latest = self.going_on["stamp"][place[there]] // round(spacing * 1e9)
        new[start[there]] = latest != span[start[there]]
        return new

    @property
    def spacing(self) -> float:
        """Returns the mean time between successive rows of a track, in s; NaN without any."""
        pairs = float(self.totals[_PAIRS])
        return self.apart / pairs if pairs else math.nan

    def tempering(self) -> float | None:
        """Estimates γ of a detection of a track; None where too few tracks or no pairs are known.

        r = Σ (x − m)(x' − m) / Σ (x − m)² over successive rows of a track, and one standard
        error by tracks: √Σ_c u_c² / Σ (x − m)², u_c what track c has beyond r.
        D = Σ_c (Σ (x − m))² / Σ (x − m)². With a margin on D as well, or a wider one on r, γ comes
        out a fifth too low, and that is what drift is found later by; run lengths hold up to
        half as much again as the true γ.

        r is by how much detections near in time are alike: for AR(1) (1 − r)/(1 + r) is exactly
        what the mean over a long track is worth. A constant bias of each object is alike at any
        distance, which D sees and r only in part; but D knows only tracks as long as these were.
        Nothing here is proved to keep E[L^γ] ≤ 1 given the past of a track. Simulated, with
        references of 2000 detections and scale bets of tolerance 1: run lengths of 3.9 T or more
        for AR(1) up to ρ = 0.9, with and without a constant bias of half a deviation.
        """
        total, both = self.totals, self.products
        if self.tracks < _FEWEST_TRACKS or total[_PAIRS] < _FEWEST_TRACKS:
            return None
        n = total[_N]
        m = total[_X] / n
        # Linear in the sums of a track: products then give the squares of its sums.
        cross = np.zeros(PARTS)
        cross[[_CROSS, _FIRST, _SECOND, _PAIRS]] = 1.0, -m, -m, m * m
        alone = np.zeros(PARTS)
        alone[[_XX, _X, _N]] = 1.0, -2 * m, m * m
        # As many pairs as rows but one of each track: taken as if all rows had been first ones.
        alone *= total[_PAIRS] / n
        spread = float(alone @ total)
        if not spread > 0:
            return 1.0
        r = float(cross @ total) / spread
        beyond = cross - r * alone
        # Sums read from a file may be of any size: an error beyond all numbers is a large one.
        with np.errstate(over="ignore", invalid="ignore"):
            error = math.sqrt(max(0.0, float(beyond @ both @ beyond))) / spread

        centred = np.zeros(PARTS)
        centred[[_X, _N]] = 1.0, -m
        effect = float(centred @ both @ centred) / spread * total[_PAIRS] / n
        return worth(r + error, effect)


def tempering_by_spacing(sums: Sequence[TrackSums]) -> tuple[FloatArray, FloatArray] | None:
    """Estimates γ of a detection by the time since the one before it of its track.

    sums     at SPACINGS
    returns  seconds, ascending, and γ of each, which never falls: errors farther apart are no more
             alike; both (len(SPACINGS),), the last that is known repeated. None where none is
    """
    spacing: list[float] = []
    gamma: list[float] = []
    for one in sums:
        found = one.tempering()
        longer = one.spacing > (spacing[-1] if spacing else 0.0)
        if found is not None and longer:
            spacing.append(one.spacing)
            gamma.append(max(found, gamma[-1] if gamma else LEAST))
        elif not spacing:
            return None
        else:
            spacing.append(spacing[-1])
            gamma.append(gamma[-1])
    return np.array(spacing), np.array(gamma)


@dataclass(slots=True)
class FrameSums:
    """Sums that tell how alike successive frames are, by the mean of x over the rows of each.

    waiting  means that fill no batch of LONGEST_BATCH yet, in order
    last     the mean before these; None at first
    batches  (SIZES,) of 1, 2, 4 … frames; Σ of their means, and of the squares
    pairs    (5,) of successive means y, y': 1, y, y', y², y y'
    """

    waiting: Annotated[FloatArray, _MEANS] = field(default_factory=_MEANS.none)
    last: Sum | None = None
    batches: Annotated[FloatArray, _BATCHES] = field(default_factory=_BATCHES.none)
    pairs: Annotated[FloatArray, _PAIRED] = field(default_factory=_PAIRED.none)

    def __post_init__(self) -> None:
        number = self.batches[:, 0]
        if (number != number[0] / 2.0 ** np.arange(SIZES)).any() or number[0] % LONGEST_BATCH:
            raise ValueError("'batches' must be half as many of each next size")
        frames = number[0] + self.waiting.size
        if self.pairs[0] != max(frames - 1, 0) or (self.last is None) != (frames == 0):
            raise ValueError(f"'pairs' and 'last' must be those of {frames:.0f} frames")
        if self.waiting.size >= LONGEST_BATCH:
            raise ValueError(f"'waiting' has {self.waiting.size}: a batch has {LONGEST_BATCH}")

    def add(self, x: FloatArray, frame: IntArray) -> None:
        """Adds n rows of whole frames, frame (n,) ascending."""
        if x.size == 0:
            return
        start = np.flatnonzero(np.append(True, frame[1:] != frame[:-1]))
        count = np.diff(np.append(start, frame.size))
        means = np.add.reduceat(x, start) / count
        series = means if self.last is None else np.append(self.last, means)
        y, later = series[:-1], series[1:]
        self.pairs += [y.size, y.sum(), later.sum(), (y * y).sum(), (y * later).sum()]
        self.last = float(means[-1])
        waiting = np.append(self.waiting, means)
        whole = waiting.size // LONGEST_BATCH * LONGEST_BATCH
        if whole:
            self.batches += _batches(waiting[:whole])
        self.waiting = waiting[whole:]

    def tempering(self) -> float | None:
        """Estimates γ of a frame; None where too few are known.

        r is the correlation of successive frames, with two standard errors √((1 − r²)/n). D is
        b · Var(mean of b frames) / Var(mean of one), the largest of b = 1, 2, 4 …, each with one
        standard error √(2/(batches − 1)): it sees what goes on for longer than r tells, and what
        two sources hide from r whose frames take turns. Nothing is proved. Simulated as for
        tracks: run lengths of 1.6 T or more for AR(1), but 0.9 T where independent errors have a
        constant bias of half a deviation that 250 frames are too few to see whole.
        """
        count, total, square = (self.batches + _batches(self.waiting)).T
        if count[0] < _FEWEST_FRAMES:
            return None
        n, y, later, yy, cross = self.pairs
        m = total[0] / count[0]
        spread = float(yy - 2 * m * y + n * m * m)
        if not spread > 0:
            return 1.0
        r = min(1.0, float(cross - m * (y + later) + n * m * m) / spread)
        error = math.sqrt(max(0.0, 1 - r * r) / n)

        enough = count >= _FEWEST_BATCHES
        count, total, square = count[enough], total[enough], square[enough]
        variance = np.maximum(0.0, square - total * total / count) / (count - 1)
        if not variance[0] > 0:
            return 1.0
        effect = 2.0 ** np.arange(count.size) * variance / variance[0]
        effect[1:] *= 1 + np.sqrt(2 / (count[1:] - 1))
        return worth(r + 2 * error, float(effect.max()))


def _batches(means: FloatArray) -> FloatArray:
    """Sums 1, y and y² over the whole batches of each size, (SIZES, 3)."""
    found = np.zeros((SIZES, 3))
    for sums, size in zip(found, 2 ** np.arange(SIZES), strict=True):
        whole = means.size // size
        batch = means[: whole * size].reshape(whole, size).mean(axis=1)
        sums[:] = whole, batch.sum(), (batch * batch).sum()
    return found
