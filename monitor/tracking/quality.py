"""How well tracks follow labelled objects: what is to be matched, and how far the matches are off.

Matching from frame to frame, and what counts matches, is not here: see monitor/store/labels.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from monitor.frames.cholesky import factorise, whiten
from monitor.frames.detections import IdArray
from monitor.frames.space import BoolArray, FloatArray, IntArray
from monitor.tracking.association import Labels, assign, label_velocity

_VELOCITY = "_velocity"


# Objects are matched on the ground plane, the first dimensions that move.
_PLANE = 2


@dataclass(frozen=True, slots=True)
class FrameTracks:
    """The m tracks that stand for objects in a frame: confirmed, and updated by it.

    id           (m,) unique in the stream
    class_index  (m,)
    ignore       (m,) whether the detection of this frame is neither true nor false
    nis          (m,) of that update; NaN for none
    state        (m, S)
    covariance   (m, S, S)
    """

    id: IdArray
    class_index: IntArray
    ignore: BoolArray
    nis: FloatArray
    state: FloatArray
    covariance: FloatArray

    @property
    def m(self) -> int:
        """Number of tracks."""
        return int(self.id.size)

    def of(self, rows: IntArray | BoolArray) -> FrameTracks:
        """Some of them."""
        return FrameTracks(*(getattr(self, f.name)[rows] for f in fields(self)))


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
    """What is to be matched in a frame: g objects, m tracks.

    distance  (g, m) on the ground plane; NaN where it is too large for a match
    """

    objects: IntArray
    tracks: IdArray
    distance: FloatArray


@dataclass(frozen=True, slots=True)
class Pairs:
    """Matches of a sequence: n tracks, each with its object, in the frames numbered so."""

    frame: IntArray
    object: IntArray
    track: IdArray


@dataclass(frozen=True, slots=True)
class TrackErrors:
    """Errors of n matches in V moving dimensions.

    position  (n, V) track − label, in the unit of the stream
    velocity  (n, V) in unit/s; NaN where the label has no velocity
    nees      (n,) Δᵀ P⁻¹ Δ of both together, Δ of length 2V; NaN where there is no velocity
    """

    position: FloatArray
    velocity: FloatArray
    nees: FloatArray


def moving(track_dimensions: tuple[str, ...]) -> Moving:
    """The dimensions with a velocity, from the names of those of the state."""
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
    """What is to be matched in each frame, from frame 0 on; all of one class.

    A track whose detection is to be ignored counts as false for nobody: it is left out
    unless it gets an object when those of the frame are shared out.

    match_distance  in the unit of the stream; a track farther away is never a match
    """
    labels = labels.in_order()
    bounds = np.searchsorted(labels.frame, np.arange(len(tracks) + 1))
    plane = axes.position[:_PLANE]
    found = []
    for there, begin, end in zip(tracks, bounds[:-1], bounds[1:], strict=True):
        at = labels.position[begin:end, plane]
        distance = np.linalg.norm(at[:, None] - there.state[:, plane], axis=2)
        distance[~(distance <= match_distance)] = np.nan
        kept = ~there.ignore
        kept[_shared_out(distance)] = True
        found.append(Scene(labels.id[begin:end], there.id[kept], distance[:, kept]))
    return found


def _shared_out(distance: FloatArray) -> IntArray:
    """The tracks that get an object: as many as can be, and then the nearest."""
    objects, tracks = np.nonzero(np.isfinite(distance))
    one_kind = np.zeros(tracks.size, np.int64)
    chosen: IntArray = tracks[assign(tracks, objects, distance[objects, tracks], one_kind)]
    return chosen


def track_errors(
    labels: Labels, tracks: Sequence[FrameTracks], axes: Moving, pairs: Pairs
) -> TrackErrors:
    """Errors of the matches of a sequence; tracks of each frame, from frame 0 on."""
    frame = np.repeat(np.arange(len(tracks)), [there.m for there in tracks])
    there = FrameTracks(
        *(np.concatenate([getattr(t, f.name) for t in tracks]) for f in fields(FrameTracks))
    )
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


def _places(
    frame: IntArray, id: IntArray | IdArray, frames: IntArray, ids: IntArray | IdArray
) -> IntArray:
    """Which of the rows (frame, id), all different, are those of frames and ids."""
    place = {key: row for row, key in enumerate(zip(frame.tolist(), id.tolist(), strict=True))}
    keys = zip(frames.tolist(), ids.tolist(), strict=True)
    return np.array([place[key] for key in keys], np.int64)


def pooled(parts: Sequence[TrackErrors]) -> TrackErrors:
    """Errors of several sequences or classes together; at least one."""
    return TrackErrors(
        *(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(TrackErrors))
    )


def rmse(error: FloatArray) -> float:
    """Root of the mean squared length of errors (n, V), rows with NaN left out; NaN of none."""
    return math.sqrt(mean(np.sum(error**2, axis=1)))


def rmse_by_dimension(error: FloatArray) -> list[float]:
    """Root mean square of each column of errors (n, V), NaN left out."""
    return [math.sqrt(mean(column**2)) for column in error.T]


def state_nees_over_k(errors: TrackErrors) -> float:
    """Mean NEES of position and velocity over their number 2V: 1 where P is right."""
    v = int(errors.position.shape[1])
    return mean(errors.nees) / (2 * v)


def mean(values: FloatArray) -> float:
    """Of those that are finite; NaN of none."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else math.nan
