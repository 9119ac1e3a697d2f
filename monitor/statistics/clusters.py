"""Correlation along tracks: how many independent detections the correlated ones are worth.

Errors of one object over successive frames are alike. Detections of one track are a cluster,
and clusters are taken as independent. The design effect D is by how much the mean of x over all
detections varies more than if each were on its own; n_eff = n / D. It is made of sums over the
pairs of rows in a cluster. Every row brings its pairs with it, so that they add up like all
other sums.

x · Σx over the earlier rows of a cluster is a multiple of 2^-32, the grid of all sums: exact
for the first 512 rows of a cluster or so (below 2^53 units), rounded once a row beyond.

Pairs are those that one memory has seen. If the rows of a track are split over replicas, or
counted before and after a restart or a jump of time, the pairs across are in no sum, and
n_eff is then too high as a rule. All other sums are the same whoever counts a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from monitor.frames.space import FloatArray, IntArray

# x is the normalised squared error per dimension, cut here: a gross outlier is one error,
# and says nothing about how errors hang together.
LARGEST = 64.0

# x is kept in units of 2^-16, so that products of two of them lie on the grid of all sums.
UNIT = 2.0**-16
ClusterArray = npt.NDArray[np.uint64]

# The cluster of a row that belongs to no track.
ALONE = np.uint64(0)


def clustered(nees: FloatArray, degrees: FloatArray) -> FloatArray:
    """x of each row and axis, (A, n): NEES over its degrees of freedom (A,), cut and rounded."""
    x: FloatArray = np.minimum(nees / degrees[:, None], LARGEST)
    return np.rint(x / UNIT) * UNIT


@dataclass(frozen=True, eq=False, slots=True)
class EarlierRows:
    """Count and sums of the earlier rows in the cluster of each of n rows.

    rows  (n,) how many
    sums  (A, n) Σ x over them, by axis
    """

    rows: FloatArray
    sums: FloatArray


@dataclass(frozen=True, eq=False, slots=True)
class ClusterState:
    """Contents of a ClusterMemory as a value; its arrays are never changed.

    axes     A
    counted  rows that were in any cluster, so far
    ids      (C,) clusters that may go on, ascending
    last     (C,) number of the last row of each, of those counted
    rows     (C,) how many rows of each have come
    sums     (A, C) Σ x over them, by axis
    """

    axes: int
    counted: int
    ids: ClusterArray
    last: IntArray
    rows: FloatArray
    sums: FloatArray


def no_clusters(axes: int) -> ClusterState:
    """The state before any row."""
    none, sums = np.zeros(0, np.int64), np.zeros((axes, 0))
    return ClusterState(axes, 0, none.astype(np.uint64), none, sums[0], sums)


@dataclass(slots=True)
class ClusterMemory:
    """Remembers clusters that may go on, and tells what came before in each.

    A cluster is forgotten by rows, not by time: labels that come hours late are as much in
    clusters as live ones.

    state  all that it holds; another one with every row
    limit  rows of others after which a cluster is forgotten; so many clusters are there at most
    """

    state: ClusterState
    limit: int = 65536

    def before(
        self, cluster: ClusterArray, x: FloatArray, *, back: bool = False
    ) -> EarlierRows | None:
        """Sums up what came before each row; the rows then come before later ones.

        cluster  (n,) ALONE for none; in the order in which the rows are counted
        x        (A, n) from clustered()
        back     these rows came before, and are retracted: the answer is what would have come
                 before each if they had come last. The sum over all pairs does not depend on
                 the order, so that to subtract these pairs leaves those of the others. Where the
                 cluster was forgotten meanwhile, pairs with the others stay
        returns  None where no row is in a cluster
        """
        tracked = np.flatnonzero(cluster != ALONE)
        if tracked.size == 0:
            return None
        by_id = np.argsort(cluster[tracked], kind="stable")
        order = tracked[by_id]
        ids, values = cluster[order], x[:, order]
        first = np.append(True, ids[1:] != ids[:-1])
        start = np.flatnonzero(first)
        group = np.cumsum(first) - 1
        count = np.diff(np.append(start, ids.size)).astype(np.float64)
        # Exact: multiples of 2^-16 below 2^30.
        running = np.cumsum(values, axis=1)
        earlier = running - values
        inside = earlier - earlier[:, start][:, group]
        total = np.add.reduceat(values, start, axis=1)

        known = self.state
        first_row = known.counted + by_id[start]
        last = known.counted + by_id[np.append(start[1:], ids.size) - 1]

        found = ids[start]
        place = np.searchsorted(known.ids, found)
        there = place < known.ids.size
        there[there] = known.ids[place[there]] == found[there]
        # Whatever the rows are cut into, so many of others end a cluster.
        there[there] = (first_row[there] - known.last[place[there]]) <= self.limit
        old_rows = np.zeros(found.size)
        old_sums = np.zeros((known.axes, found.size))
        old_rows[there] = known.rows[place[there]]
        old_sums[:, there] = known.sums[:, place[there]]
        if back:
            old_sums = np.where(old_rows >= count, old_sums - total, 0.0)
            old_rows = np.maximum(old_rows - count, 0.0)
            count, total = np.zeros_like(count), np.zeros_like(total)

        rows = np.zeros(cluster.size)
        sums = np.zeros((known.axes, cluster.size))
        rows[order] = np.arange(ids.size) - start[group] + old_rows[group]
        sums[:, order] = inside + old_sums[:, group]
        counted = known.counted + ids.size
        seen = ClusterState(known.axes, counted, found, last, old_rows + count, old_sums + total)
        self._remember(seen, place[there])
        return EarlierRows(rows, sums)

    def _remember(self, seen: ClusterState, replaced: IntArray) -> None:
        known = self.state
        stays = np.ones(known.ids.size, bool)
        stays[replaced] = False
        ids = np.append(known.ids[stays], seen.ids)
        last = np.append(known.last[stays], seen.last)
        rows = np.append(known.rows[stays], seen.rows)
        sums = np.append(known.sums[:, stays], seen.sums, axis=1)
        recent = np.flatnonzero(seen.counted - last <= self.limit)
        order = recent[np.argsort(ids[recent], kind="stable")]
        self.state = ClusterState(
            seen.axes, seen.counted, ids[order], last[order], rows[order], sums[:, order]
        )


def design_effect(
    n: float, mean: float, square: float, pairs: float, cross: float, beside: float
) -> float:
    """D = Σ_clusters (Σ (x − m))² / Σ (x − m)², at least 1.

    n, mean  rows, and m = Σx / n
    square   Σ x²
    pairs    how many pairs of rows are in one cluster
    cross    Σ over them of x_i x_j
    beside   Σ over them of x_i + x_j
    returns  NaN without rows
    """
    if n <= 0:
        return float("nan")
    alone = square - n * mean * mean
    together = 2.0 * (cross - mean * beside + mean * mean * pairs)
    if not alone > 0:
        return 1.0
    return max(1.0, 1.0 + together / alone)


def numbered(values: IntArray) -> IntArray:
    """Numbers whole numbers (n,) from 0 on, without a gap, in their order."""
    if values.size == 0:
        return values
    least, most = int(values.min()), int(values.max())
    if most - least > 4 * values.size:
        found: IntArray = np.unique(values, return_inverse=True)[1].reshape(-1)
        return found
    # A table of all numbers in between is faster than to sort them.
    there = np.zeros(most - least + 1, bool)
    there[values - least] = True
    if least == 0 and there.all():
        return values
    return (np.cumsum(there) - 1)[values - least]


@dataclass(frozen=True, eq=False, slots=True)
class Clusters:
    """Tells which of n rows belong together: those of a track; any other row stands alone.

    number  (n,) of the cluster, from 0 on, without a gap; None: every row stands alone
    rows    (C,) how many each has
    """

    number: IntArray | None
    rows: FloatArray

    @classmethod
    def of(cls, n: int, track: IntArray | None) -> Clusters:
        """Makes them of numbers of tracks (n,), below 0 where a row has none."""
        if track is None or not (track >= 0).any():
            return cls(None, np.ones(n))
        if (track < 0).any():
            track = np.where(track < 0, track.max() + 1 + np.arange(n), track)
        number = numbered(track)
        return cls(number, np.bincount(number).astype(np.float64))

    def sums(self, values: FloatArray) -> FloatArray:
        """Adds up values (n,) by cluster, (C,)."""
        if self.number is None:
            return values
        return np.bincount(self.number, values, self.rows.size).astype(np.float64, copy=False)


def effect_by_clusters(x: FloatArray, clusters: Clusters) -> float:
    """Gives the design effect of rows of one axis, at least 1; see design_effect_of_rows.

    x  (n,) NEES over its degrees of freedom
    """
    if clusters.number is None:
        return 1.0
    centred = np.minimum(x, LARGEST)
    centred -= centred.mean()
    alone = float(centred @ centred)
    if not alone > 0:
        return 1.0
    # Rows of a cluster of their own change nothing.
    return max(1.0, float(np.square(clusters.sums(centred)).sum()) / alone)


def design_effect_of_rows(nees: FloatArray, degrees: FloatArray, track: IntArray) -> FloatArray:
    """How many correlated rows are worth one independent row, at least 1; of each axis, (A,).

    D = max(1, Σ_c (Σ_{i∈c} (x_i − m))² / Σ_i (x_i − m)²): how much more the mean of
    x = min(NEES/k, 64) varies where the rows of a cluster c are alike; n_eff = n / D.
    A single cluster cannot tell: Σ (x_i − m) = 0, and D = 1.

    nees, degrees  (N, A) and (A,)
    track          (N,) number of the cluster; every row below 0 is one of its own
    source         Kish 1965, section 8.2
    """
    clusters = Clusters.of(track.size, track)
    each = zip(nees.T, degrees.tolist(), strict=True)
    return np.array([effect_by_clusters(column / k, clusters) for column, k in each])


def cluster_id(parts: tuple[IntArray | ClusterArray | int, ...]) -> ClusterArray:
    """Mixes a combination of numbers into one number a row, (n,); never ALONE.

    Mixed as in splitmix64: two combinations get the same one with a chance of 2^-64.
    """
    mixed: ClusterArray = np.zeros(1, np.uint64)
    with np.errstate(over="ignore"):
        for part in parts:
            value: ClusterArray = np.asarray(part).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ value) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            mixed = mixed ^ (mixed >> np.uint64(31))
    mixed[mixed == ALONE] = np.uint64(1)
    return mixed
