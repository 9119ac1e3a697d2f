"""Which detections may belong to which track: a coarse window, then the exact gate.

The window is no approximation: Δᵢ² / Sᵢᵢ ≤ Δᵀ S⁻¹ Δ for each dimension i, so that what
lies in the gate lies in the window. Only where a frame would hold too many pairs are the
farthest left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.special import chdtri

from monitor.calibration.cholesky import SINGULAR, factorise, log_determinant, whiten
from monitor.calibration.space import DimensionKind, FloatArray, IntArray, Space
from monitor.tracking.grid import near_pairs

# Numbers in the matrices of the pairs that are measured in a frame, at most: of more pairs, the
# nearest are. A crowd of huge covariances costs milliseconds, not seconds.
_MOST_WORK = 1 << 19
# So much more on its diagonal, and the sum of two covariances always has a factor.
_ROUNDING = 10.0 * SINGULAR


@dataclass(frozen=True, slots=True)
class Gaussians:
    """Predicted measurements of tracks, or detections.

    mean         (n, K)
    covariance   (n, K, K): H P Hᵀ of a track, R of a detection
    class_index  (n,)
    """

    mean: FloatArray
    covariance: FloatArray
    class_index: IntArray

    def of(self, rows: IntArray) -> Gaussians:
        """Some of them."""
        return Gaussians(self.mean[rows], self.covariance[rows], self.class_index[rows])


@dataclass(frozen=True, slots=True)
class GatedPairs:
    """M pairs of a track and a detection within the gate.

    track, detection  (M,)
    whitened          (J, M) L⁻¹ν of the joint dimensions, S = L Lᵀ
    nis               (M,) νᵀ S⁻¹ ν over the joint dimensions
    log_determinant   (M,) log det S
    """

    track: IntArray
    detection: IntArray
    whitened: FloatArray
    nis: FloatArray
    log_determinant: FloatArray

    def of(self, pairs: IntArray) -> GatedPairs:
        """Some of them."""
        return GatedPairs(
            self.track[pairs],
            self.detection[pairs],
            self.whitened[:, pairs],
            self.nis[pairs],
            self.log_determinant[pairs],
        )

    def and_also(self, others: GatedPairs) -> GatedPairs:
        """These, then the others."""
        return GatedPairs(
            np.concatenate([self.track, others.track]),
            np.concatenate([self.detection, others.detection]),
            np.concatenate([self.whitened, others.whitened], axis=1),
            np.concatenate([self.nis, others.nis]),
            np.concatenate([self.log_determinant, others.log_determinant]),
        )

    def numbered(self, tracks: IntArray, detections: IntArray) -> GatedPairs:
        """The same pairs, numbered as in the whole these were picked from."""
        return replace(self, track=tracks[self.track], detection=detections[self.detection])


@lru_cache(maxsize=64)
def gate_limit(level: float, k: int) -> float:
    """The χ² quantile: νᵀ S⁻¹ ν stays below it with probability `level`."""
    return float(chdtri(k, 1.0 - level))


def gated_pairs(
    tracks: Gaussians,
    detections: Gaussians,
    space: Space,
    limit: float,
    max_distance: float = np.inf,
) -> GatedPairs:
    """The pairs of one class with νᵀ S⁻¹ ν ≤ limit, S = H P Hᵀ + R, over the joint dimensions.

    max_distance  in any of the first two lengths; what lies farther is no pair
    """
    track, detection = _windowed(tracks, detections, space, limit, max_distance)
    return measured_pairs(tracks, detections, space, track, detection, limit)


def measured_pairs(
    tracks: Gaussians,
    detections: Gaussians,
    space: Space,
    track: IntArray,
    detection: IntArray,
    limit: float = np.inf,
) -> GatedPairs:
    """Those of the given pairs that lie within the limit."""
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
        whitened[:, kept],
        nis[kept],
        log_determinant(factor[:, :, kept], joint.size),
    )


def _nearest(track: IntArray, distance: FloatArray, most: int) -> IntArray:
    """Positions of at most so many of M pairs, ascending: of each track as many, its nearest."""
    order = np.lexsort((distance, track))
    ordered = track[order]
    rank = np.arange(ordered.size) - np.searchsorted(ordered, ordered)
    kept = order[rank < max(1, most // np.unique(track).size)]
    return np.sort(kept[:most])


def _windowed(
    tracks: Gaussians, detections: Gaussians, space: Space, limit: float, max_distance: float
) -> tuple[IntArray, IntArray]:
    """Pairs within the window in the first two lengths; of all pairs of a class without any."""
    plane = [
        i for i in space.joint if space.dimensions[i].kind is DimensionKind.LENGTH
    ][:2]  # fmt: skip
    place = _in_plane(tracks.mean[:, plane]), _in_plane(detections.mean[:, plane])
    track, detection = near_pairs(
        place[0],
        _reach(tracks, plane, limit),
        tracks.class_index,
        place[1],
        _reach(detections, plane, limit),
        detections.class_index,
        max_distance,
    )
    if np.isfinite(max_distance):
        close = (np.abs(place[1][detection] - place[0][track]) <= max_distance).all(axis=1)
        track, detection = track[close], detection[close]
    return track, detection


def _reach(gaussians: Gaussians, plane: list[int], limit: float) -> FloatArray:
    """(n, 2) how far the gate can reach on the part of each: √(a + b) ≤ √a + √b."""
    return _in_plane(np.sqrt(limit * gaussians.covariance[:, plane, plane]))


def _in_plane(values: FloatArray) -> FloatArray:
    """(n, 2), zeros where a space has fewer lengths."""
    if values.shape[1] == 2:
        return values
    padded = np.zeros((values.shape[0], 2))
    padded[:, : values.shape[1]] = values
    return padded
