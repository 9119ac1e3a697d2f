"""A recording and what a recalibrator makes of it: the Gaussians that are forwarded, and the
distributions that the method itself gives.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from monitor.calibration.cholesky import factorise
from monitor.calibration.marginals import Marginals
from monitor.calibration.row_bins import generalised_deviation
from monitor.calibration.shaped import Shaped
from monitor.calibration.slices import RangeBuckets, SliceBy
from monitor.calibration.space import BoolArray, FloatArray, IntArray
from monitor.edges.files import Quantiles, Recording
from monitor.recalibration.hierarchy import Parts
from monitor.recalibration.recalibrator import Estimates, Output, weakest
from monitor.recalibration.routing import Shares
from monitor.recalibration.selection import Chain, Selection
from monitor.verbs.models import check_dimensions

# Rows whose quantiles are asked for together.
_CHUNK = 4096


@dataclass(frozen=True, slots=True)
class RecalibratedRecording:
    """N detections after a recalibrator.

    recording  with the Gaussians that are forwarded; unusable rows as they are
    diagonal   (N,) of which only variances are forwarded
    sent       (N,) estimates as they were recorded
    usable     (N,) rows that were recalibrated
    slices     (N,) index into chains
    """

    selection: Selection
    recording: Recording
    diagonal: BoolArray
    sent: Estimates
    usable: BoolArray
    slices: IntArray
    chains: tuple[Chain, ...]

    @property
    def serving(self) -> Shares | None:
        """Which recalibrator served which usable rows; None without any."""
        rows = np.flatnonzero(self.usable)
        return self.selection.shares(self.slices[rows], self.chains) if rows.size else None

    @property
    def output(self) -> Output:
        """What was said of the detections: the least that is true of all of them."""
        shares = self.serving
        return weakest({share.recalibrator.output for share in shares.shares} if shares else ())

    @property
    def shaped(self) -> Shaped | None:
        """The methods' own distributions, for the measures; None where all are Gaussians."""
        if self.output is Output.GAUSSIAN:
            return None
        recording, mean = self.recording, self.sent.mean
        with np.errstate(invalid="ignore"):  # of rows that are refused
            value = mean + recording.space.error(recording.truth, mean)
        return Shaped(value, self.marginals, self.output is Output.MOMENTS)

    @property
    def deviation(self) -> FloatArray:
        """(N,) σ_G = det(Σ)^(1/2K) of the joint block that is forwarded; NaN where not usable."""
        rows = np.flatnonzero(self.usable)
        found = np.full(self.usable.size, np.nan)
        found[rows] = generalised_deviation(
            self.recording.space, self.recording.covariance[rows], self.diagonal[rows]
        )
        return found

    @property
    def rejected(self) -> BoolArray | None:
        """(N,) detections that are too uncertain; None where the selection rejects none."""
        rejection = self.selection.rejection
        return None if rejection is None else rejection.rejects(self.deviation)

    def marginals(self, rows: IntArray) -> Marginals:
        """The methods' own distributions of usable rows, at least one."""
        return self.selection.marginals(self.sent.take(rows), self.slices[rows], self.chains)

    def quantiles(self, tau: FloatArray) -> Quantiles:
        """Of every detection at T levels; NaN where it is not usable."""
        n, k = self.sent.mean.shape
        values = np.full((n, k, tau.size), np.nan)
        usable = np.flatnonzero(self.usable)
        for start in range(0, usable.size, _CHUNK):
            rows = usable[start : start + _CHUNK]
            values[rows] = self.marginals(rows).quantiles(tau).transpose(1, 2, 0)
        return Quantiles(values, tau)


def recalibrate_gaussians(selection: Selection, recording: Recording) -> RecalibratedRecording:
    """Each usable row by the recalibrator of its slice.

    Raises InvalidRecalibrator when it was fitted on other dimensions.
    """
    check_dimensions(selection, recording.space)
    slices, chains = parts_of(recording, selection.ranges).chains()
    sent = estimates_of(recording)
    usable = sound_rows(recording)
    rows = np.flatnonzero(usable)
    made = selection.apply(sent.take(rows), slices[rows], chains)
    mean, covariance = recording.mean.copy(), recording.covariance.copy()
    mean[rows], covariance[rows] = made.mean, made.covariance
    diagonal = sent.diagonal.copy()
    diagonal[rows] = made.diagonal
    forwarded = replace(recording, mean=mean, covariance=covariance, diagonal=bool(diagonal.all()))
    return RecalibratedRecording(selection, forwarded, diagonal, sent, usable, slices, chains)


def estimates_of(recording: Recording) -> Estimates:
    """The Gaussians of a recording."""
    diagonal = np.full(recording.mean.shape[0], recording.diagonal)
    return Estimates(recording.mean, recording.covariance, diagonal)


def sound_rows(recording: Recording) -> BoolArray:
    """(N,) rows with a finite mean and a positive definite covariance."""
    factor = factorise(recording.covariance)
    sound: BoolArray = np.isfinite(factor[-1, -1]) & np.isfinite(recording.mean).all(axis=1)
    return sound


def parts_of(recording: Recording, ranges: RangeBuckets | None) -> Parts:
    """What tells the rows of a recording apart; the stream of a row is its sequence.

    ranges  None: rows have no range
    """
    n = recording.mean.shape[0]
    buckets: tuple[str, ...] = ("",)
    bucket = np.zeros(n, np.int64)
    if ranges is not None:
        buckets = ranges.labels(recording.space)
        bucket = ranges.of(recording.space, recording.mean)
    return Parts(
        {
            SliceBy.STREAM: recording.sequences,
            SliceBy.CLASS: recording.classes,
            SliceBy.RANGE: buckets,
        },
        {
            SliceBy.STREAM: recording.sequence_index,
            SliceBy.CLASS: recording.class_index,
            SliceBy.RANGE: bucket,
        },
    )
