"""The assignment of a frame's detections to tracks: at most one to each, at the least cost.

A sweep along the first length finds pairs that lie near each other, a bound in each dimension
leaves few of them, an exact gate keeps those with νᵀ S⁻¹ ν below a χ² quantile, and an assignment
chooses among these. Sweep and bound are no approximation: Δᵢ² / Sᵢᵢ ≤ Δᵀ S⁻¹ Δ for each
dimension i, so that what lies in the gate lies in both. Only where a frame would hold too many
pairs are the farthest left out.

Matching of labels with detections never lives here: see monitor/matching/.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.special import chdtri

from monitor import native
from monitor.frames.cholesky import SINGULAR, add_up, factorise_lower, whiten_rows
from monitor.frames.detections import IdArray
from monitor.frames.space import (
    BoolArray,
    Columns,
    DimensionKind,
    FloatArray,
    IntArray,
    Space,
    laid_out,
    triangle,
)
from monitor.tracking.motion import TrackerSettings

# So few pairs are compared one by one in less time than detections are sorted.
_FEW_PAIRS = 1024

# So few pairs are assigned in one go.
_FEW_CONTESTED = 64

# More pairs than this in the windows of a sweep, and the windows are halved until they are fewer:
# whatever covariances a detector sends, a frame costs a bounded time.
_MOST_SWEPT = 1 << 19

# Tracks with too many neighbours in a window halved so often lie on one spot, and get a few.
_MOST_HALVINGS = 40

# The most pairs that are measured in a frame, and the most numbers in their matrices; of more
# pairs, the nearest are measured. A crowd of huge covariances costs milliseconds, not seconds.
MOST_PAIRS, _MOST_WORK = 1 << 17, 1 << 19

# This share more on its diagonal, and the sum of two covariances always has a factor.
_ROUNDING = 10.0 * SINGULAR

# This share more in a bound, and no rounding, of bound or gate, drops a pair that the gate keeps.
# The computed factor is that of a matrix whose diagonal is larger by _ROUNDING and by less than
# 10 (J + 1) units of rounding, whatever its condition; see Higham 2002, Theorems 8.5 and 10.3.
_ROOM = 1e-9

# A track without a detection is called rejected if a free one lies within so many gates.
_NEAR = 5.0


@dataclass(frozen=True, slots=True)
class Gaussians(Columns):
    """Predicted measurements of tracks, or detections.

    mean         (n, K); of a track its state (n, S), of which K are measured
    covariance   (n, K, K): R of a detection; P of a track, (n, S, S)
    class_index  (n,)
    """

    mean: FloatArray
    covariance: FloatArray
    class_index: IntArray


@dataclass(frozen=True, slots=True)
class GatedPairs(Columns):
    """M pairs of a track and a detection within the gate.

    track, detection  (M,)
    whitened          (M, J) L⁻¹ν of the joint dimensions, S = L Lᵀ
    nis               (M,) νᵀ S⁻¹ ν over the joint dimensions
    pivots            (M, J) diagonal of L
    """

    track: IntArray
    detection: IntArray
    whitened: FloatArray
    nis: FloatArray
    pivots: FloatArray

    @property
    def log_determinant(self) -> FloatArray:
        """Computes log det S, (M,)."""
        return 2.0 * add_up(np.log(self.pivots).T)

    def numbered(self, tracks: IntArray, detections: IntArray) -> GatedPairs:
        """Renumbers pairs of picked rows: row i of each side becomes tracks[i] or detections[i]."""
        return replace(self, track=tracks[self.track], detection=detections[self.detection])


def by_likelihood(
    predicted: Gaussians, measured: Gaussians, space: Space, settings: TrackerSettings
) -> GatedPairs:
    """Pairs by the gate, at most one for each: as many as can be, then the likeliest."""
    limit = gate_limit(settings.gate_level, len(space.joint))
    pairs = gated_pairs(predicted, measured, space, limit, settings.max_distance)

    def cost(some: IntArray) -> FloatArray:
        # −2 log of the likelihood: a track of which little is known takes no detection from one
        # that expects it there.
        contested = pairs.take(some)
        return contested.nis + contested.log_determinant

    kind = predicted.class_index[pairs.track]
    chosen = assign(pairs.track, pairs.detection, cost, kind)
    # By track, in whatever order the pairs were found.
    return pairs.take(chosen[np.argsort(pairs.track[chosen])])


def by_upstream_id(
    tracks: tuple[IdArray, BoolArray],
    detections: tuple[IdArray, BoolArray],
    predicted: Gaussians,
    measured: Gaussians,
    space: Space,
    settings: TrackerSettings,
) -> GatedPairs:
    """Pairs by the ids of the detector's own tracker; what has no id, by the gate.

    An id is believed whatever the distance and the class. Where an id comes twice in a frame,
    the first detection counts.

    tracks, detections  the id of each, and which have one
    """
    known, has_id = tracks
    ids, sent = detections
    labelled = np.flatnonzero(sent)
    first = labelled[np.unique(ids[labelled], return_index=True)[1]]
    named = np.flatnonzero(has_id)
    _, at_track, at_detection = np.intersect1d(
        known[named], ids[first], assume_unique=True, return_indices=True
    )
    told = measured_pairs(predicted, measured, space, named[at_track], first[at_detection])
    others, rest = np.flatnonzero(~has_id), np.flatnonzero(~sent)
    found = by_likelihood(predicted.take(others), measured.take(rest), space, settings)
    return GatedPairs.joined([told, found.numbered(others, rest)])


def rejected(
    confirmed: BoolArray,
    predicted: Gaussians,
    measured: Gaussians,
    space: Space,
    settings: TrackerSettings,
    pairs: GatedPairs,
) -> IntArray:
    """Finds confirmed tracks whose gate refused a free detection near; returns their classes (r,).

    Such a track got no detection, although one that went to no track lies outside its gate
    but within a few times the gate's size.

    confirmed  (T,) of the tracks that are predicted
    """
    lonely = confirmed.copy()
    lonely[pairs.track] = False
    track = lonely.nonzero()[0]
    if track.size == 0 or pairs.detection.size == measured.class_index.size:
        return np.zeros(0, np.int64)
    free = np.ones(measured.class_index.size, bool)
    free[pairs.detection] = False
    detection = free.nonzero()[0]
    limit = gate_limit(settings.gate_level, len(space.joint))
    near = gated_pairs(
        predicted.take(track),
        measured.take(detection),
        space,
        limit * _NEAR**2,
        settings.max_distance,
    )
    # A pair inside the gate is no refusal: an upstream id gave the detection away.
    near = near.take(np.flatnonzero(near.nis > limit))
    kind = predicted.class_index[track]
    chosen = assign(near.track, near.detection, near.nis.take, kind[near.track])
    return kind[near.track[chosen]]


@lru_cache(maxsize=64)
def gate_limit(level: float, k: int) -> float:
    """Computes the χ² quantile: νᵀ S⁻¹ ν stays below it with probability `level`."""
    return float(chdtri(k, 1.0 - level))


def gated_pairs(
    tracks: Gaussians,
    detections: Gaussians,
    space: Space,
    limit: float,
    max_distance: float = np.inf,
    kernels: native.Kernels | None = native.kernels,
) -> GatedPairs:
    """Finds the pairs of one class with νᵀ S⁻¹ ν ≤ limit, S = H P Hᵀ + R, over joint dimensions.

    max_distance  unit, in any of the first two lengths; what lies farther is no pair
    """
    plane = _plane(space)
    spots = _spots(tracks, plane, limit), _spots(detections, plane, limit)
    if kernels is not None:
        found = _by_kernel(tracks, detections, spots, space, limit, max_distance, kernels)
        if found is not None:
            return found
    track, detection = near_pairs(*spots, max_distance)
    return measured_pairs(tracks, detections, space, track, detection, limit, max_distance)


def _by_kernel(
    tracks: Gaussians,
    detections: Gaussians,
    spots: tuple[Spots, Spots],
    space: Space,
    limit: float,
    max_distance: float,
    kernels: native.Kernels,
) -> GatedPairs | None:
    """Finds what near_pairs and measured_pairs find; None where there are too many pairs."""
    j, plane, period = len(space.joint), _plane(space), dict(space.periods)
    bounds = [period.get(i, 0.0) for i in space.joint]
    bounds += [max_distance if i in plane else np.inf for i in space.joint]
    at, to = spots
    order = np.argsort(to.place)
    searched = (
        *(laid_out(tracks.mean), laid_out(tracks.covariance)),
        *(at.kind, at.place, at.reach),
        *(laid_out(detections.mean), laid_out(detections.covariance)),
        *(to.kind, to.place, to.reach, *_narrow_and_wide(to.reach, order)),
        *(np.array(space.joint), np.array(bounds).reshape(2, j)),
    )
    told = max_distance * (1.0 + _ROOM), limit, limit * (1.0 + _ROOM), _MOST_SWEPT
    room, most = 2 * (tracks.class_index.size + detections.class_index.size), _most_pairs(j)
    while True:
        pairs, measures = np.empty((2, room), np.int64), np.empty((room, 2 * j + 1))
        found = kernels.gate(*searched, pairs, measures, *told, 1.0 + _ROUNDING, SINGULAR)
        if found is None or -found > most:
            return None
        if found >= 0:
            measures = measures[:found]
            whitened, pivots, nis = measures[:, :j], measures[:, j:-1], measures[:, -1]
            return GatedPairs(pairs[0, :found], pairs[1, :found], whitened, nis, pivots)
        room = -found


def measured_pairs(
    tracks: Gaussians,
    detections: Gaussians,
    space: Space,
    track: IntArray,
    detection: IntArray,
    limit: float = np.inf,
    max_distance: float = np.inf,
) -> GatedPairs:
    """Keeps the given pairs whose νᵀ S⁻¹ ν is within the limit, and measures them."""
    joint, period = space.joint, dict(space.periods)
    ground = [joint.index(i) for i in _plane(space)]
    (mean, lower), (place, spread) = _by_dimension(tracks, joint), _by_dimension(detections, joint)
    rows, columns = triangle(len(joint))
    diagonal = (rows == columns).nonzero()[0]
    # In the plane first, which leaves few pairs for the other dimensions.
    for some in (ground, list(range(len(joint)))):
        innovation = place[some].take(detection, axis=1) - mean[some].take(track, axis=1)
        for i, at in enumerate(some):
            if joint[at] in period:
                half = period[joint[at]] / 2
                innovation[i] = (innovation[i] + half) % (2 * half) - half
        variance = spread[diagonal[some]].take(detection, axis=1)
        variance += lower[diagonal[some]].take(track, axis=1)
        square = innovation * innovation
        near = (square <= limit * (1.0 + _ROOM) * variance).all(axis=0)
        if some is ground:
            near &= (np.abs(innovation) <= max_distance).all(axis=0)
        inside = near.nonzero()[0]
        if inside.size < track.size:
            track, detection = track[inside], detection[inside]
    most = _most_pairs(len(joint))
    if inside.size > most:
        # Each one a bound on νᵀ S⁻¹ ν from below.
        least = (square / variance).take(inside, axis=1).max(axis=0)
        nearest = _nearest(track, least, most)
        inside, track, detection = inside[nearest], track[nearest], detection[nearest]
    whitened = innovation.take(inside, axis=1)
    factor = np.zeros((len(joint), len(joint), track.size))
    factor[rows, columns] = lower.take(track, axis=1) + spread.take(detection, axis=1)
    step = np.arange(len(joint))
    factor[step, step] *= 1.0 + _ROUNDING
    factorise_lower(factor)
    whiten_rows(factor, whitened)
    nis = add_up(whitened * whitened)
    # A distance that is NaN fails the comparison, and is no pair.
    kept = (nis <= limit).nonzero()[0]
    pivots = factor[step, step]
    return GatedPairs(track[kept], detection[kept], whitened.T[kept], nis[kept], pivots.T[kept])


def _most_pairs(j: int) -> int:
    return min(MOST_PAIRS, _MOST_WORK // j**2)


def _plane(space: Space) -> list[int]:
    """Lists the first two lengths of the joint dimensions, or as many as there are."""
    lengths = (i for i in space.joint if space.dimensions[i].kind is DimensionKind.LENGTH)
    return list(islice(lengths, 2))


def _by_dimension(side: Gaussians, joint: tuple[int, ...]) -> tuple[FloatArray, FloatArray]:
    """Lays out the joint dimensions: means (J, n), and lower triangles (J (J + 1) / 2, n)."""
    places = np.array(joint)
    rows, columns = triangle(places.size)
    lower = side.covariance.transpose(1, 2, 0)[places[rows], places[columns]]
    return np.ascontiguousarray(side.mean.T[places]), np.ascontiguousarray(lower)


def _nearest(track: IntArray, distance: FloatArray, most: int) -> IntArray:
    """Keeps at most so many of M pairs, as many for each track, its nearest; ascending."""
    order = np.lexsort((distance, track))
    ordered = track[order]
    rank = np.arange(ordered.size) - np.searchsorted(ordered, ordered)
    kept = order[rank < max(1, most // np.unique(track).size)]
    return np.sort(kept[:most])


@dataclass(frozen=True, slots=True)
class Spots:
    """Tracks or detections along the first length.

    place  (n,)
    reach  (n,) how far each widens the gate: √(a + b) ≤ √a + √b
    kind   (n,) class
    """

    place: FloatArray
    reach: FloatArray
    kind: IntArray


def _spots(side: Gaussians, plane: list[int], limit: float) -> Spots:
    if not plane:
        nowhere = np.zeros(side.class_index.size)
        return Spots(nowhere, nowhere, side.class_index)
    first = plane[0]
    reach = np.sqrt(limit * side.covariance[:, first, first]) * (1.0 + _ROOM)
    return Spots(side.mean[:, first].copy(), reach, side.class_index)


def near_pairs(
    tracks: Spots, detections: Spots, max_distance: float = np.inf
) -> tuple[IntArray, IntArray]:
    """Finds pairs of one class within reach of each other along one length; maybe a few more.

    A pair is near where |Δ| ≤ the sum of both reaches, and |Δ| ≤ max_distance.

    returns  (M,) tracks, (M,) detections
    """
    if tracks.kind.size * detections.kind.size <= _FEW_PAIRS:
        track, detection = (tracks.kind[:, None] == detections.kind).nonzero()
        return track, detection
    found = [
        _swept(tracks, detections, rows, max_distance)
        for rows in _narrow_and_wide(detections.reach, np.argsort(detections.place))
        if rows.size
    ]
    return np.concatenate([t for t, _ in found]), np.concatenate([n for _, n in found])


def _narrow_and_wide(reach: FloatArray, order: IntArray) -> tuple[IntArray, IntArray]:
    """Tells the rows of detections with an absurd reach from the others, both in this order.

    The window of a track must cover the widest detection. So that a single one with an absurd
    covariance does not open the windows for all, the wide ones are looked for by themselves.
    """
    middle = (reach.size - 1) // 2
    wide = reach > 4.0 * np.partition(reach, middle)[middle] if reach.size else reach > 0.0
    if not wide.any():
        return order, order[:0]
    wide = wide[order]
    return order[~wide], order[wide]


def _swept(
    tracks: Spots, detections: Spots, rows: IntArray, max_distance: float
) -> tuple[IntArray, IntArray]:
    """Finds near pairs with these rows of the detections, in the order of their places."""
    place, reach, kind = detections.place[rows], detections.reach[rows], detections.kind[rows]
    # Classes one behind the other, each along the length: the key is class, then rank.
    by_class = np.argsort(kind, kind="stable")
    ranks = rows.size + 1
    key = kind[by_class] * ranks + by_class
    # No two lie farther apart than the whole scene is wide.
    places = np.concatenate([tracks.place, place])
    widest = 2.0 * (np.fmax.reduce(places) - np.fmin.reduce(places))
    farthest = min(widest, max_distance * (1.0 + _ROOM))
    window = np.fmin(tracks.reach + np.fmax.reduce(reach, initial=0.0), farthest)
    for _ in range(_MOST_HALVINGS):
        low = np.searchsorted(place, tracks.place - window, side="left")
        high = np.searchsorted(place, tracks.place + window, side="right")
        begin = np.searchsorted(key, tracks.kind * ranks + low)
        count = np.searchsorted(key, tracks.kind * ranks + high) - begin
        if count.sum() <= _MOST_SWEPT:
            break
        window = 0.5 * window
    else:
        count = np.minimum(count, _MOST_SWEPT // count.size)
    # Each range as its places: a running number, less where the range began in it.
    ends = np.cumsum(count)
    places = np.arange(count.sum()) - np.repeat(ends - count - begin, count)
    owner = np.repeat(np.arange(count.size), count)
    return owner, rows[by_class[places]]


def assign(
    track: IntArray,
    detection: IntArray,
    cost: Callable[[IntArray], FloatArray],
    kind: IntArray,
) -> IntArray:
    """Chooses pairs among M, as many as there can be, then the cheapest; returns their positions.

    track, detection  (M,) of each pair, each pair once
    cost              returns those of pairs at some positions; only of pairs that compete
    kind              (M,) class of each pair; the classes share no track and no detection
    """
    if track.size == 0:
        return np.zeros(0, np.int64)
    # A pair whose track and detection are in no other pair is chosen without a solver.
    lone = (np.bincount(track)[track] == 1) & (np.bincount(detection)[detection] == 1)
    contested = (~lone).nonzero()[0]
    if contested.size == 0:
        return np.arange(track.size)
    chosen = [lone.nonzero()[0]]
    costs, kinds = cost(contested), kind[contested]
    # A few are solved at once, whatever their classes; the solver's time is cubic.
    together = contested.size <= _FEW_CONTESTED
    for one in [None] if together else np.unique(kinds).tolist():
        some = np.arange(contested.size) if one is None else (kinds == one).nonzero()[0]
        pairs = contested[some]
        chosen.append(pairs[_solve(track[pairs], detection[pairs], costs[some])])
    return np.concatenate(chosen)


def _solve(track: IntArray, detection: IntArray, cost: FloatArray) -> IntArray:
    (row, rows), (column, columns) = _renumbered(track), _renumbered(detection)
    # A forbidden pair costs more than all allowed ones together, so that none of these is left
    # out for a cheaper sum.
    cheapest, dearest = cost.min(), cost.max()
    forbidden = (dearest - cheapest + 1.0) * (min(rows, columns) + 1)
    matrix = np.full((rows, columns), forbidden)
    matrix[row, column] = cost - cheapest
    position = np.full((rows, columns), -1)
    position[row, column] = np.arange(track.size)
    found: IntArray = position[linear_sum_assignment(matrix)]
    return found[found >= 0]


def _renumbered(values: IntArray) -> tuple[IntArray, int]:
    """Numbers values from 0 on, in their order, without gaps; and counts the different ones."""
    there = np.bincount(values) > 0
    number = np.cumsum(there) - 1
    return number[values], int(number[-1]) + 1
