"""Drives whose errors are simulated in each dimension, healthy or with a fault; no tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise

import numpy as np

from monitor.drift.alarms import AlarmChange
from monitor.drift.charts import Origin, Stage
from monitor.drift.evidence import DriftSettings
from monitor.drift.family import Family
from monitor.drift.reference import Reference
from monitor.drift.track_seconds import TrackSeconds
from monitor.drift.usual import ReferenceLearner, WatchedRows
from monitor.frames.space import FloatArray
from monitor.statistics.observations import finished
from tests.drift.drives import PERIOD_NS, SECOND, K

# Deviations in m, and correlations, as they are stated.
SIGMA = np.array([0.3, 0.5, 0.2])
STATED = np.array([[1.0, 0.6, 0.2], [0.6, 1.0, 0.3], [0.2, 0.3, 1.0]])
_LOWER = np.linalg.cholesky(STATED)

TRACKS = 8
BEGINS = 10.0  # s; faults begin there
_ALIKE = 0.6  # correlation of the errors of a track from one frame to the next

# Errors (F, TRACKS, K) in m to what they are with a fault.
Fault = Callable[[FloatArray, np.random.Generator], FloatArray]


def healthy(errors: FloatArray, _: np.random.Generator) -> FloatArray:
    return errors


def scaled(*factors: float) -> Fault:
    """Variances that are stated too small by a factor, in each dimension."""
    wider = np.sqrt(np.array(factors))
    return lambda errors, _: errors * wider


def flipped(errors: FloatArray, _: np.random.Generator) -> FloatArray:
    """The errors of y have the other sign than correlations say."""
    found: FloatArray = errors * np.array([1.0, -1.0, 1.0])
    return found


def biased(*metres: float) -> Fault:
    offset = np.array(metres)
    return lambda errors, _: errors + offset


def with_outliers(errors: FloatArray, random: np.random.Generator) -> FloatArray:
    """One in ten is drawn from Student's t with 2 degrees of freedom, three times as wide."""
    odd = random.random(errors.shape[:-1]) < 0.1
    wide = 3 * np.sqrt(2 / random.chisquare(2, errors.shape[:-1]))[..., None]
    drawn = random.standard_normal(errors.shape) @ _LOWER.T * SIGMA * wide
    found: FloatArray = np.where(odd[..., None], drawn, errors)
    return found


def error_drive(
    seconds: float, seed: int, fault: Fault = healthy, *, every: int = 1
) -> WatchedRows:
    """Frames at 10 Hz with TRACKS tracks, of four seconds each; every so many frames have labels.

    fault  from the tenth second on
    """
    random = np.random.default_rng(seed)
    frames = round(seconds * SECOND / PERIOD_NS)
    normal = random.standard_normal((frames, TRACKS, K))
    for before, now in pairwise(normal):
        now[:] = _ALIKE * before + np.sqrt(1 - _ALIKE**2) * now
    errors = normal @ _LOWER.T * SIGMA
    stamp = np.arange(frames) * PERIOD_NS
    late = stamp >= BEGINS * SECOND
    errors[late] = fault(errors[late], random)
    return rows_of(errors[::every], stamp[::every])


def rows_of(errors: FloatArray, stamp_ns: np.ndarray) -> WatchedRows:
    """Detections of these errors (F, TRACKS, K) in m."""
    frames, tracks, _ = errors.shape
    error = errors.reshape(-1, K).T
    z = error / SIGMA[:, None]
    u = np.linalg.solve(_LOWER, z)
    key = (1 + stamp_ns // (4 * SECOND))[:, None] * 100 + np.arange(tracks)
    nees, z, u, error = (np.stack([one] * 2) for one in (np.square(u).sum(axis=0), z, u, error))
    return WatchedRows(
        slices=np.zeros(frames * tracks, np.int64),
        nees=nees,
        z=z,
        u=u,
        error=error,
        track=key.ravel().astype(np.uint64),
        frame=np.repeat(np.arange(frames), tracks),
        stamp_ns=stamp_ns,
        source=np.zeros(frames, np.int64),
        changed=np.zeros(frames, bool),
    )


def pieces(rows: WatchedRows, size: int) -> Iterator[WatchedRows]:
    """The same frames, so many at a time."""
    for begin in range(0, rows.stamp_ns.size, size):
        yield rows_between(rows, begin, begin + size)


def rows_between(rows: WatchedRows, begin: int, end: int) -> WatchedRows:
    """Those of some frames."""
    part, here = slice(begin, end), (rows.frame >= begin) & (rows.frame < end)
    return WatchedRows(
        slices=rows.slices[here],
        nees=rows.nees[:, here],
        z=rows.z[..., here],
        u=rows.u[..., here],
        error=rows.error[..., here],
        track=rows.track[here],
        frame=rows.frame[here] - begin,
        stamp_ns=rows.stamp_ns[part],
        source=rows.source[part],
        changed=rows.changed[part],
    )


def rows_from_the_fault_on(rows: WatchedRows) -> WatchedRows:
    """The same drive, of which the first frame is that with which a fault begins."""
    first = int(np.searchsorted(rows.stamp_ns, BEGINS * SECOND))
    return rows_between(rows, first, rows.stamp_ns.size)


@cache
def learned_reference(seconds: float = 200.0, factor: float = 1.0) -> Reference:
    """What is usual of a drive of which every frame is labelled.

    factor  by which its variances are too small, from its first frame on
    """
    learner = ReferenceLearner(K)
    rows = rows_from_the_fault_on(error_drive(BEGINS + seconds, 1, scaled(*[factor] * K)))
    learner.add(rows.nees[0], rows.track, rows.frame, rows.stamp_ns[rows.frame])
    learner.add_seconds(Stage.RAW, TrackSeconds(DriftSettings()).take(K, rows)[0])
    return learner.learned(Origin.FILE, 10)


def until_alarm(family: Family, rows: WatchedRows, size: int = 2) -> list[AlarmChange]:
    """Have a family take in frames, up to the first alarms; they are returned."""
    for piece in pieces(rows, size):
        changes, learning = family.take(K, piece)
        finished(learning)
        if changes:
            return changes
    return []
