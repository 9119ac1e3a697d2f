"""The tracks of a stream as arrays, one row for each.

How tracks change from frame to frame never lives here: see tracker.py.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from monitor.frames.detections import IdArray
from monitor.frames.space import BoolArray, FloatArray, IntArray
from monitor.tracking.kalman import MotionModel


@dataclass(frozen=True, slots=True)
class Tracks:
    """T tracks at one moment.

    id             (T,) unique in the stream
    upstream       (T,) id of the detector's own tracker, where has_upstream (T,)
    class_index    (T,)
    state          (T, S) means, covariance (T, S, S)
    detections     (T,) number of detections so far
    latest         (T,) the last detection's Sightings.number
    missed         (T,) frames since the last detection
    updated_ns     (T,) stamp of the last detection
    confirmed      (T,)
    heading_votes  (T,) see ego.fold
    whitened       (T, J) L⁻¹ν of the last frame, NaN where there was no update
    """

    id: IdArray
    upstream: IdArray
    has_upstream: BoolArray
    class_index: IntArray
    state: FloatArray
    covariance: FloatArray
    detections: IntArray
    latest: IdArray
    missed: IntArray
    updated_ns: IntArray
    confirmed: BoolArray
    heading_votes: FloatArray
    whitened: FloatArray

    @property
    def n(self) -> int:
        """Number of tracks."""
        return int(self.id.size)

    def of(self, rows: IntArray | BoolArray) -> Tracks:
        """Picks rows."""
        return Tracks(*(getattr(self, f.name)[rows] for f in fields(self)))

    def and_also(self, others: Tracks) -> Tracks:
        """Appends the others to these tracks."""
        if others.n == 0:
            return self
        return Tracks(
            *(
                np.concatenate([getattr(self, f.name), getattr(others, f.name)])
                for f in fields(self)
            )
        )

    def at(self, state: FloatArray, covariance: FloatArray) -> Tracks:
        """Replaces the means and covariances."""
        return replace(self, state=state, covariance=covariance)


def no_tracks(model: MotionModel) -> Tracks:
    """Makes an empty set of tracks."""
    nothing = np.zeros(0, np.int64)
    return born(
        model,
        stamp_ns=0,
        id=nothing.astype(np.uint64),
        upstream=nothing.astype(np.uint64),
        has_upstream=nothing.astype(bool),
        class_index=nothing,
        mean=np.zeros((0, model.k)),
        noise=np.zeros((0, model.k, model.k)),
        confirmed=False,
    )


def born(
    model: MotionModel,
    *,
    stamp_ns: int,
    id: IdArray,
    upstream: IdArray,
    has_upstream: BoolArray,
    class_index: IntArray,
    mean: FloatArray,
    noise: FloatArray,
    confirmed: bool,
) -> Tracks:
    """Begins a track at each of n detections, with a speed of 0 ± initial_speed.

    mean   (n, K)
    noise  (n, K, K) R
    """
    n, k, size = id.size, model.k, model.size
    state = np.zeros((n, size))
    state[:, :k] = mean
    covariance = np.zeros((n, size, size))
    covariance[:, :k, :k] = noise
    step = np.arange(k, size)
    covariance[:, step, step] = model.initial_speed**2
    model.space.wrap(state)
    return Tracks(
        id=id,
        upstream=upstream,
        has_upstream=has_upstream,
        class_index=class_index,
        state=state,
        covariance=covariance,
        detections=np.ones(n, np.int64),
        latest=id,
        missed=np.zeros(n, np.int64),
        updated_ns=np.full(n, stamp_ns, np.int64),
        confirmed=np.full(n, confirmed),
        heading_votes=np.ones(n),
        whitened=np.full((n, len(model.space.joint)), np.nan),
    )
