"""Errors of tracks against labelled objects.

Matching over frames never lives here: see monitor/store/labels.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from monitor.frames.cholesky import factorise, whiten
from monitor.frames.detections import IdArray
from monitor.frames.space import BoolArray, Columns, FloatArray, IntArray
from monitor.tracking.association import assign

_VELOCITY = "_velocity"
# Objects are matched on the ground plane, the first dimensions that move.
_PLANE = 2


@dataclass(frozen=True, slots=True)
class Labels(Columns):
    """M labels of the objects of one class in one sequence, in any order.

    frame     (M,) number of the frame
    id        (M,) the same object throughout the sequence; once in a frame
    time_s    (M,) s, of the frame
    position  (M, K) in the dimensions of the detections, in the sensor's axes at that time
    ignore    (M,) a track of the object is neither true nor false
    """

    frame: IntArray
    id: IntArray
    time_s: FloatArray
    position: FloatArray
    ignore: BoolArray


@dataclass(frozen=True, slots=True)
class FrameTracks(Columns):
    """The m tracks that stand for objects in a frame: confirmed, and updated by it.

    id           (m,) unique in the stream
    class_index  (m,)
    ignore       (m,) the detection of this frame is neither true nor false
    nis          (m,) of the update by this frame; NaN for none
    state        (m, S)
    covariance   (m, S, S)
    """

    id: IdArray
    class_index: IntArray
    ignore: BoolArray
    nis: FloatArray
    state: FloatArray
    covariance: FloatArray


@dataclass(frozen=True, slots=True)
class Moving:
    """The V dimensions of a stream that have a velocity.

    position  (V,) where they are, in the space and in the state
    velocity  (V,) where their velocities are in the state
    """

    names: tuple[str, ...]
    position: IntArray
    velocity: IntArray


@dataclass(frozen=True, slots=True)
class Scene:
    """Objects (g,) and tracks (m,) of a frame, to be matched.

    distance  (g, m) on the ground plane; NaN where it is too large for a match
    """

    objects: IntArray
    tracks: IdArray
    distance: FloatArray


@dataclass(frozen=True, slots=True)
class Pairs:
    """Matches of a sequence, (n,) each: number of the frame, object, track."""

    frame: IntArray
    object: IntArray
    track: IdArray


@dataclass(frozen=True, slots=True)
class TrackErrors(Columns):
    """Errors of n matches in V moving dimensions.

    position  (n, V) track − label, in the unit of the stream
    velocity  (n, V) in unit/s; NaN where the label has no velocity
    nees      (n,) Δᵀ P⁻¹ Δ of both together, Δ of length 2V; NaN where there is no velocity
    """

    position: FloatArray
    velocity: FloatArray
    nees: FloatArray


def moving(track_dimensions: tuple[str, ...]) -> Moving:
    """Finds the dimensions with a velocity among the names of the state's dimensions."""
    place = {name: i for i, name in enumerate(track_dimensions)}
    names = tuple(name for name in track_dimensions if f"{name}{_VELOCITY}" in place)
    return Moving(
        names,
        np.array([place[name] for name in names], np.int64),
        np.array([place[f"{name}{_VELOCITY}"] for name in names], np.int64),
    )


def scenes(
    labels: Labels, tracks: Sequence[FrameTracks], axes: Moving, match_distance: float
) -> list[Scene]:
    """Measures distances to be matched by, in each frame from frame 0 on; all of one class.

    A track whose detection is to be ignored, or that an ignored object may be matched with, is
    never a false one: it is left out, unless the assignment within its frame gives it an object.

    match_distance  in the unit of the stream; a track farther away is never a match
    """
    labels = labels.take(np.lexsort((labels.id, labels.frame)))
    bounds = np.searchsorted(labels.frame, np.arange(len(tracks) + 1))
    plane = axes.position[:_PLANE]
    found = []
    for there, begin, end in zip(tracks, bounds[:-1], bounds[1:], strict=True):
        at = labels.position[begin:end, plane]
        distance = np.linalg.norm(at[:, None] - there.state[:, plane], axis=2)
        distance[~(distance <= match_distance)] = np.nan
        counts = ~labels.ignore[begin:end]
        kept = ~(there.ignore | np.isfinite(distance[~counts]).any(axis=0))
        distance = distance[counts]
        kept[_shared_out(distance)] = True
        found.append(Scene(labels.id[begin:end][counts], there.id[kept], distance[:, kept]))
    return found


def _shared_out(distance: FloatArray) -> IntArray:
    """Finds the tracks that get an object: as many as can be, then the nearest."""
    objects, tracks = np.nonzero(np.isfinite(distance))
    one_kind = np.zeros(tracks.size, np.int64)
    return tracks[assign(tracks, objects, distance[objects, tracks].take, one_kind)]


def track_errors(
    labels: Labels, tracks: Sequence[FrameTracks], axes: Moving, pairs: Pairs
) -> TrackErrors:
    """Computes the errors of the matches of a sequence; tracks of each frame, from frame 0 on."""
    frame = np.repeat(np.arange(len(tracks)), [there.id.size for there in tracks])
    there = FrameTracks.joined(tracks)
    label = _places(labels.frame, labels.id, pairs.frame, pairs.object)
    track = _places(frame, there.id, pairs.frame, pairs.track)
    truth = np.concatenate([labels.position, label_velocity(labels)], axis=1)[label]
    k, v = labels.position.shape[1], axes.position.size
    state = np.concatenate([axes.position, axes.velocity])
    error = there.state[track][:, state] - truth[:, [*axes.position, *(k + axes.position)]]
    # |L⁻¹Δ|² = Δᵀ P⁻¹ Δ
    factor = factorise(there.covariance[np.ix_(track, state, state)])
    nees: FloatArray = np.sum(whiten(factor, error) ** 2, axis=0)
    return TrackErrors(error[:, :v], error[:, v:], nees)


def label_velocity(labels: Labels) -> FloatArray:
    """Estimates how fast each object moves in the sensor's axes, unit/s.

    The central difference (p[f+1] − p[f−1]) / (t[f+1] − t[f−1]) in frames f.

    returns  (M, K); NaN where the object is not labelled in both neighbouring frames
    """
    velocity = np.full(labels.position.shape, np.nan)
    order = np.lexsort((labels.frame, labels.id))
    before, here, after = order[:-2], order[1:-1], order[2:]
    both = np.ones(here.size, bool)
    for neighbour, offset in ((before, -1), (after, 1)):
        both &= labels.id[neighbour] == labels.id[here]
        both &= labels.frame[neighbour] == labels.frame[here] + offset
    seconds = labels.time_s[after] - labels.time_s[before]
    both &= seconds > 0
    before, here, after, seconds = before[both], here[both], after[both], seconds[both]
    velocity[here] = (labels.position[after] - labels.position[before]) / seconds[:, None]
    return velocity


def _places(
    frame: IntArray, id: IntArray | IdArray, frames: IntArray, ids: IntArray | IdArray
) -> IntArray:
    """Finds the rows (frame, id), all different, that frames and ids name."""
    place = {key: row for row, key in enumerate(zip(frame.tolist(), id.tolist(), strict=True))}
    keys = zip(frames.tolist(), ids.tolist(), strict=True)
    return np.array([place[key] for key in keys], np.int64)


def rmse(error: FloatArray) -> float:
    """Computes the root mean squared length of errors (n, V), NaN left out; NaN if none is left."""
    return math.sqrt(finite_mean(np.sum(error**2, axis=1)))


def rmse_by_dimension(error: FloatArray) -> list[float]:
    """Computes the root mean square of each column of errors (n, V), NaN left out."""
    return [math.sqrt(finite_mean(column**2)) for column in error.T]


def state_nees_over_k(errors: TrackErrors) -> float:
    """Divides the mean NEES of position and velocity by their number 2V: 1 where P is right."""
    v = int(errors.position.shape[1])
    return finite_mean(errors.nees) / (2 * v)


def finite_mean(values: FloatArray) -> float:
    """Averages the finite values; NaN if there is none."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else math.nan
