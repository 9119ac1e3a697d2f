"""Which detection of a frame each track gets, and which tracks should have got one."""

from __future__ import annotations

import numpy as np

from monitor.calibration.detections import IdArray
from monitor.calibration.space import BoolArray, IntArray, Space
from monitor.tracking.assignment import assign
from monitor.tracking.gating import GatedPairs, Gaussians, gate_limit, gated_pairs, measured_pairs
from monitor.tracking.settings import TrackerSettings
from monitor.tracking.tracks import Tracks

# A track that got nothing, with a detection within so many gates of it, is called rejected.
_NEAR = 5.0


def by_likelihood(
    predicted: Gaussians, measured: Gaussians, space: Space, settings: TrackerSettings
) -> GatedPairs:
    """Pairs within the gate, at most one for each: as many as can be, then the likeliest."""
    limit = gate_limit(settings.gate_level, len(space.joint))
    pairs = gated_pairs(predicted, measured, space, limit, settings.max_distance)
    # −2 log of the likelihood: a track of which little is known takes no detection from one
    # that expects it there.
    cost = pairs.nis + pairs.log_determinant
    return pairs.of(assign(pairs.track, pairs.detection, cost, predicted.class_index[pairs.track]))


def by_upstream_id(
    tracks: Tracks,
    predicted: Gaussians,
    measured: Gaussians,
    space: Space,
    settings: TrackerSettings,
    upstream: tuple[IdArray, BoolArray],
) -> GatedPairs:
    """By the ids of the detector's own tracker; what has none, among what has none.

    An id is believed whatever the distance and the class. Where one comes twice in a frame,
    the first detection stands.
    """
    ids, sent = upstream
    labelled = np.flatnonzero(sent)
    first = labelled[np.unique(ids[labelled], return_index=True)[1]]
    named = np.flatnonzero(tracks.has_upstream)
    _, at_track, at_detection = np.intersect1d(
        tracks.upstream[named], ids[first], assume_unique=True, return_indices=True
    )
    told = measured_pairs(predicted, measured, space, named[at_track], first[at_detection])
    others, rest = np.flatnonzero(~tracks.has_upstream), np.flatnonzero(~sent)
    found = by_likelihood(predicted.of(others), measured.of(rest), space, settings)
    return told.and_also(found.numbered(others, rest))


def rejected(
    tracks: Tracks,
    predicted: Gaussians,
    measured: Gaussians,
    space: Space,
    settings: TrackerSettings,
    pairs: GatedPairs,
) -> IntArray:
    """Class of each confirmed track that got nothing although a detection that went to no
    track lies outside its gate, but within a few times its size, (r,)."""
    lonely = tracks.confirmed.copy()
    lonely[pairs.track] = False
    free = np.ones(measured.class_index.size, bool)
    free[pairs.detection] = False
    track, detection = np.flatnonzero(lonely), np.flatnonzero(free)
    if track.size == 0 or detection.size == 0:
        return np.zeros(0, np.int64)
    limit = gate_limit(settings.gate_level, len(space.joint))
    near = gated_pairs(
        predicted.of(track), measured.of(detection), space, limit * _NEAR**2, settings.max_distance
    )
    # Inside the gate is what went to another by its id.
    near = near.of(np.flatnonzero(near.nis > limit))
    kind = predicted.class_index[track]
    chosen = assign(near.track, near.detection, near.nis, kind[near.track])
    refused: IntArray = kind[near.track[chosen]]
    return refused
