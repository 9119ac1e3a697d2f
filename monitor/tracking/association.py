"""The assignment of a frame's detections to tracks: at most one to each, at the least cost.

A coarse window finds pairs that lie near each other, an exact gate keeps those with
νᵀ S⁻¹ ν below a χ² quantile, and an assignment chooses among these. The window is no
approximation: Δᵢ² / Sᵢᵢ ≤ Δᵀ S⁻¹ Δ for each dimension i, so that what lies in the gate
lies in the window. Only where a frame would hold too many pairs are the farthest left out.

Matching of labels with detections never lives here: see monitor/matching/.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.special import chdtri

from monitor.frames.cholesky import SINGULAR, factorise, log_determinant, whiten
from monitor.frames.detections import IdArray
from monitor.frames.space import BoolArray, Columns, DimensionKind, FloatArray, IntArray, Space
from monitor.tracking.motion import TrackerSettings

# Cells are counted from −HALF to HALF − 1; what lies farther out shares the outermost.
_BITS = 21
_HALF = 1 << (_BITS - 1)

# A window over more rows of cells than this is compared with all detections instead.
_MOST_ROWS = 32

# More pairs than this in a frame, and the windows are halved until they are fewer: whatever
# covariances a detector sends, a frame costs a bounded time.
MOST_PAIRS = 1 << 17

# So few pairs are compared one by one in less time than they are sorted into cells.
_FEW_PAIRS = 1024

# Tracks with too many neighbours in a window halved so often lie on one spot, and get a few.
_MOST_HALVINGS = 40

# The most numbers in the matrices of the pairs that are measured in a frame; of more pairs, the
# nearest are measured. A crowd of huge covariances costs milliseconds, not seconds.
_MOST_WORK = 1 << 19

# This share more on its diagonal, and the sum of two covariances always has a factor.
_ROUNDING = 10.0 * SINGULAR

# A track without a detection is called rejected if a free one lies within so many gates.
_NEAR = 5.0


@dataclass(frozen=True, slots=True)
class Gaussians(Columns):
    """Predicted measurements of tracks, or detections.

    mean         (n, K)
    covariance   (n, K, K): H P Hᵀ of a track, R of a detection
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
    log_determinant   (M,) log det S
    """

    track: IntArray
    detection: IntArray
    whitened: FloatArray
    nis: FloatArray
    log_determinant: FloatArray

    def numbered(self, tracks: IntArray, detections: IntArray) -> GatedPairs:
        """Renumbers pairs of picked rows: row i of each side becomes tracks[i] or detections[i]."""
        return replace(self, track=tracks[self.track], detection=detections[self.detection])


def by_likelihood(
    predicted: Gaussians, measured: Gaussians, space: Space, settings: TrackerSettings
) -> GatedPairs:
    """Pairs by the gate, at most one for each: as many as can be, then the likeliest."""
    limit = gate_limit(settings.gate_level, len(space.joint))
    pairs = gated_pairs(predicted, measured, space, limit, settings.max_distance)
    # −2 log of the likelihood: a track of which little is known takes no detection from one
    # that expects it there.
    cost = pairs.nis + pairs.log_determinant
    kind = predicted.class_index[pairs.track]
    return pairs.take(assign(pairs.track, pairs.detection, cost, kind))


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
    free = np.ones(measured.class_index.size, bool)
    free[pairs.detection] = False
    track, detection = np.flatnonzero(lonely), np.flatnonzero(free)
    if track.size == 0 or detection.size == 0:
        return np.zeros(0, np.int64)
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
    chosen = assign(near.track, near.detection, near.nis, kind[near.track])
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
) -> GatedPairs:
    """Finds the pairs of one class with νᵀ S⁻¹ ν ≤ limit, S = H P Hᵀ + R, over joint dimensions.

    max_distance  unit, in any of the first two lengths; what lies farther is no pair
    """
    plane = [
        i for i in space.joint if space.dimensions[i].kind is DimensionKind.LENGTH
    ][:2]  # fmt: skip
    sides = _spots(tracks, plane, limit), _spots(detections, plane, limit)
    track, detection = near_pairs(*sides, max_distance)
    if np.isfinite(max_distance):
        apart = np.abs(sides[1].place[detection] - sides[0].place[track])
        close = (apart <= max_distance).all(axis=1)
        track, detection = track[close], detection[close]
    return measured_pairs(tracks, detections, space, track, detection, limit)


def measured_pairs(
    tracks: Gaussians,
    detections: Gaussians,
    space: Space,
    track: IntArray,
    detection: IntArray,
    limit: float = np.inf,
) -> GatedPairs:
    """Keeps the given pairs whose νᵀ S⁻¹ ν is within the limit, and measures them."""
    joint = np.array(space.joint)
    innovation = space.error(detections.mean[detection], tracks.mean[track])[:, joint]
    block = (slice(None), joint[:, None], joint)
    spread = tracks.covariance[block], detections.covariance[block]
    step = np.arange(joint.size)
    variance = spread[0][track[:, None], step, step] + spread[1][detection[:, None], step, step]
    # Each one a bound on νᵀ S⁻¹ ν from below.
    least = (innovation**2 / variance).max(axis=1)
    inside = np.flatnonzero(least <= limit)
    most = _MOST_WORK // joint.size**2
    if inside.size > most:
        inside = inside[_nearest(track[inside], least[inside], most)]
    if inside.size < track.size:
        track, detection, innovation = track[inside], detection[inside], innovation[inside]
    joined = spread[0][track] + spread[1][detection]
    joined[:, step, step] *= 1.0 + _ROUNDING
    factor = factorise(joined)
    whitened = whiten(factor, innovation)
    nis = (whitened**2).sum(axis=0)
    # A distance that is NaN fails the comparison, and is no pair.
    kept = np.flatnonzero(nis <= limit)
    return GatedPairs(
        track[kept],
        detection[kept],
        whitened.T[kept],
        nis[kept],
        log_determinant(factor[:, :, kept], joint.size),
    )


def _nearest(track: IntArray, distance: FloatArray, most: int) -> IntArray:
    """Keeps at most so many of M pairs, as many for each track, its nearest; ascending."""
    order = np.lexsort((distance, track))
    ordered = track[order]
    rank = np.arange(ordered.size) - np.searchsorted(ordered, ordered)
    kept = order[rank < max(1, most // np.unique(track).size)]
    return np.sort(kept[:most])


@dataclass(frozen=True, slots=True)
class Spots(Columns):
    """Tracks or detections in the plane of the first two lengths.

    place, reach  (n, 2) positions, and how far each widens the gate: √(a + b) ≤ √a + √b
    kind          (n,) class
    """

    place: FloatArray
    reach: FloatArray
    kind: IntArray


def _spots(gaussians: Gaussians, plane: list[int], limit: float) -> Spots:
    reach = np.sqrt(limit * gaussians.covariance[:, plane, plane])
    return Spots(_in_plane(gaussians.mean[:, plane]), _in_plane(reach), gaussians.class_index)


def _in_plane(values: FloatArray) -> FloatArray:
    """Pads values to (n, 2) with zeros where a space has fewer lengths."""
    if values.shape[1] == 2:
        return values
    padded = np.zeros((values.shape[0], 2))
    padded[:, : values.shape[1]] = values
    return padded


def near_pairs(
    tracks: Spots, detections: Spots, max_distance: float = np.inf
) -> tuple[IntArray, IntArray]:
    """Finds pairs of one class within reach of each other in both coordinates; maybe a few more.

    A pair is near where |Δ| ≤ the sum of both reaches, and |Δ| ≤ max_distance.

    returns  (M,) tracks, (M,) detections; at most MOST_PAIRS
    """
    if tracks.kind.size * detections.kind.size <= _FEW_PAIRS:
        track, detection = np.nonzero(tracks.kind[:, None] == detections.kind)
        return track, detection
    # The window of a track must cover the widest detection. So that a single one with an absurd
    # covariance does not open the windows for all, the wide ones are looked for by themselves.
    wide = (detections.reach > 4.0 * _middle(detections.reach)).any(axis=1)
    found = [
        _pairs(tracks, detections, rows, max_distance)
        for rows in (np.flatnonzero(~wide), np.flatnonzero(wide))
        if rows.size
    ]
    return np.concatenate([t for t, _ in found]), np.concatenate([n for _, n in found])


def _pairs(
    tracks: Spots, detections: Spots, rows: IntArray, max_distance: float
) -> tuple[IntArray, IntArray]:
    """Finds near pairs with these rows of the detections."""
    some = detections.take(rows)
    # No two lie farther apart than the whole scene is wide.
    wide = 2.0 * np.ptp(np.concatenate([tracks.place, some.place]), axis=0)
    window = np.minimum(tracks.reach + some.reach.max(axis=0), np.minimum(wide, max_distance))
    for _ in range(_MOST_HALVINGS):
        owner, order, begin, count = _ranges(tracks, window, some)
        if count.sum() <= MOST_PAIRS // 2:
            break
        window = 0.5 * window
    else:
        count = np.minimum(count, MOST_PAIRS // 2 // owner.size)
    total = int(count.sum())
    # Each range as its places: a running number, less where the range began in it.
    ends = np.cumsum(count)
    places = np.arange(total) - np.repeat(ends - count - begin, count)
    return np.repeat(owner, count), rows[order[places]]


def _ranges(
    tracks: Spots, window: FloatArray, detections: Spots
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Sorts detections by cell, and finds the ranges of them in the window of each track.

    returns  the track of each range; the order of detections; where each range begins in that
             order, and how long it is
    """
    # Windows of the usual size cover two or three rows of cells.
    cell = np.maximum(_middle(window), np.finfo(float).tiny)
    # The origin lies amid the detections, so that few are too far out for a cell of their own.
    origin = _middle(detections.place)
    key = _key(detections.kind, *_cells(detections.place - origin, cell).T)
    order = np.argsort(key, kind="stable")
    key = key[order]
    low = _cells(tracks.place - window - origin, cell)
    high = _cells(tracks.place + window - origin, cell)
    rows = high[:, 0] - low[:, 0] + 1
    narrow, broad = np.flatnonzero(rows <= _MOST_ROWS), np.flatnonzero(rows > _MOST_ROWS)
    spanned = rows[narrow]
    owner = np.repeat(narrow, spanned)
    ends = np.cumsum(spanned)
    row = low[owner, 0] + np.arange(owner.size) - np.repeat(ends - spanned, spanned)
    # Of a broad window, all cells of a class: from its first one to the first of the next class.
    first = _key(tracks.kind[broad], -_HALF, -_HALF)
    last = _key(tracks.kind[broad] + 1, -_HALF, -_HALF)
    firsts = np.append(_key(tracks.kind[owner], row, low[owner, 1]), first)
    begin = np.searchsorted(key, firsts, side="left")
    end = np.append(
        np.searchsorted(key, _key(tracks.kind[owner], row, high[owner, 1]), side="right"),
        np.searchsorted(key, last),
    )
    return np.append(owner, broad), order, begin, end - begin


def _middle(values: FloatArray) -> FloatArray:
    """Finds the lower median of each column."""
    middle: FloatArray = np.sort(values, axis=0)[(values.shape[0] - 1) // 2]
    return middle


def _cells(positions: FloatArray, cell: FloatArray) -> IntArray:
    """Numbers the cell of each position, clipped in a way that keeps their order."""
    return np.clip(np.floor(positions / cell), -_HALF, _HALF - 1).astype(np.int64)


def _key(kind: IntArray, row: IntArray | int, column: IntArray | int) -> IntArray:
    """Packs class, row and column into one number, in that order."""
    return ((kind << _BITS) + row + _HALF << _BITS) + column + _HALF


def assign(track: IntArray, detection: IntArray, cost: FloatArray, kind: IntArray) -> IntArray:
    """Chooses pairs among M, as many as there can be, then the cheapest; returns their positions.

    track, detection  (M,) of each pair, each pair once
    cost              (M,)
    kind              (M,) class of each pair; the classes share no track and no detection
    """
    if track.size == 0:
        return np.zeros(0, np.int64)
    # A pair whose track and detection are in no other pair is chosen without a solver.
    lone = (np.bincount(track)[track] == 1) & (np.bincount(detection)[detection] == 1)
    contested = np.flatnonzero(~lone)
    chosen = [np.flatnonzero(lone)]
    for one in np.unique(kind[contested]).tolist():
        pairs = contested[kind[contested] == one]
        chosen.append(pairs[_solve(track[pairs], detection[pairs], cost[pairs])])
    return np.concatenate(chosen)


def _solve(track: IntArray, detection: IntArray, cost: FloatArray) -> IntArray:
    rows, row = np.unique(track, return_inverse=True)
    columns, column = np.unique(detection, return_inverse=True)
    shape = (rows.size, columns.size)
    # A forbidden pair costs more than all allowed ones together, so that none of these is left
    # out for a cheaper sum.
    cheapest, dearest = cost.min(), cost.max()
    forbidden = (dearest - cheapest + 1.0) * (min(shape) + 1)
    matrix = np.full(shape, forbidden)
    matrix[row, column] = cost - cheapest
    position = np.full(shape, -1)
    position[row, column] = np.arange(track.size)
    found: IntArray = position[linear_sum_assignment(matrix)]
    return found[found >= 0]
