"""Recorded detections with truth, as recalibrators are fitted on them; and what they amount to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from monitor.calibration.detections import Limits
from monitor.calibration.space import BoolArray, FloatArray, IntArray
from monitor.edges.files import NO_TRACK, Recording
from monitor.recalibration.basis import Basis, Clock, Period
from monitor.recalibration.fit_rows import FitRows
from monitor.verbs.recalibrated import estimates_of, sound_rows

_LARGEST = Limits().largest_mean
_REFUSED = (
    "a covariance that is not positive definite, or a mean or truth that is not finite or beyond "
    f"{_LARGEST:g}"
)


def usable_truth(recording: Recording) -> tuple[BoolArray, BoolArray]:
    """(N,) rows that have truth, and those among them that can be fitted to and measured."""
    labelled = np.asarray(np.isfinite(recording.truth).all(axis=1))
    usable = labelled & sound_rows(recording)
    for values in (recording.mean, recording.truth):
        usable &= (np.abs(values) <= _LARGEST).all(axis=1)
    return labelled, usable


def left_out(labelled: BoolArray, usable: BoolArray) -> str:
    """How many rows cannot be fitted to or measured, and why; from usable_truth."""
    refused = np.count_nonzero(labelled & ~usable)
    text = f"of {labelled.size} rows, {np.count_nonzero(~labelled)} have no truth"
    return f"{text} and {refused} are refused ({_REFUSED})" if refused else text


def fit_rows(recording: Recording, rows: IntArray) -> FitRows:
    """Some rows, all of them usable."""
    tracks = numbered_tracks(recording.sequence_index, recording.track)
    return FitRows(
        recording.space,
        estimates_of(recording).take(rows),
        recording.space.error(recording.truth[rows], recording.mean[rows]),
        np.full(rows.size, -1) if tracks is None else tracks[rows],
    )


def numbered_tracks(sequence_index: IntArray, track: IntArray | None) -> IntArray | None:
    """(N,) one number for each track of each sequence, −1 without; None if none is recorded."""
    if track is None:
        return None
    pairs = np.stack([sequence_index, track], axis=1)
    _, number = np.unique(pairs, axis=0, return_inverse=True)
    found: IntArray = number.reshape(-1).astype(np.int64)
    found[track == NO_TRACK] = -1
    return found


@dataclass(frozen=True, slots=True)
class Times:
    """(N,) event times of recorded rows.

    stamp_ns  preferred, since it is of one zero whatever the file
    """

    stamp_ns: IntArray | None
    time_s: FloatArray | None

    def period(self, rows: IntArray) -> Period | None:
        """From the first to the last of some rows; None where they have no times."""
        if rows.size == 0:
            return None
        if self.stamp_ns is not None:
            stamps = self.stamp_ns[rows]
            return Period(int(stamps.min()), int(stamps.max()), Clock.STAMP)
        if self.time_s is None or not np.isfinite(self.time_s[rows]).all():
            return None
        seconds = self.time_s[rows]
        return Period(float(seconds.min()), float(seconds.max()), Clock.SECONDS)


def basis_of(rows: FitRows, period: Period | None, borrows_from: str | None) -> Basis | None:
    """What a fit on these rows rests on; None without rows."""
    if rows.n == 0:
        return None
    return Basis(rows.n, rows.tracks, rows.n * rows.weight, period, borrows_from)
