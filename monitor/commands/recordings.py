"""Recorded detections for the verbs: selected by options, recalibrated by a model, ready to fit.

Reading and writing of the file formats lives in `store`.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from monitor.commands.models import check_dimensions
from monitor.commands.options import add_value, checked, given
from monitor.frames.cholesky import factorise
from monitor.frames.classes import BEYOND, OFF_ONE
from monitor.frames.detections import Estimates, Limits
from monitor.frames.slices import RangeBuckets, SliceBy
from monitor.frames.space import BoolArray, FloatArray, IntArray
from monitor.recalibration.classes.class_selection import ClassSelection
from monitor.recalibration.classes.probabilities import from_logits, from_probabilities
from monitor.recalibration.documents import InvalidRecalibrator
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.fitting import Parts
from monitor.recalibration.recalibrator import Basis, Clock, Output, Period, Shares, weakest
from monitor.recalibration.rejection import normalised_entropy
from monitor.recalibration.selection import Chain, Selection
from monitor.statistics.exact_engine import OwnDistributions, generalised_deviation
from monitor.statistics.measures import Marginals
from monitor.store.class_recordings import ClassRecording
from monitor.store.recordings import NO_TRACK, Quantiles, Recording, read_recording

# Dimensions that wrap, unless others are named.
ANGLES = ("yaw", "heading")

# Options that choose among Gaussians, by destination: they mean nothing to class probabilities.
_OF_GAUSSIANS = ("dimensions", "angles", "classes", "where", "fault")

# Rows whose quantiles are asked for together.
_CHUNK = 4096
_LARGEST = Limits().largest_mean

_REFUSED = (
    "a covariance that is not positive definite, or a mean or truth that is not finite or beyond "
    f"{_LARGEST:g}"
)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fire drill: reported covariances times `variance`, from `since` seconds on."""

    variance: float
    since: float = 0.0


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
        """Shares of usable rows that each recalibrator served; None without any."""
        rows = np.flatnonzero(self.usable)
        return self.selection.shares(self.slices[rows], self.chains) if rows.size else None

    @property
    def output(self) -> Output:
        """Output of the recalibrators that served: the least that is true of all detections."""
        shares = self.serving
        return weakest({one.output for one, _ in shares.shares} if shares else ())

    @property
    def shaped(self) -> OwnDistributions | None:
        """The methods' own distributions, for the measures; None where all are Gaussians."""
        if self.output is Output.GAUSSIAN:
            return None
        recording, mean = self.recording, self.sent.mean
        with np.errstate(invalid="ignore"):  # of rows that are refused
            value = mean + recording.space.error(recording.truth, mean)
        return OwnDistributions(value, self.marginals, self.output is Output.MOMENTS)

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
        """Quantiles of every detection at T levels; NaN where it is not usable."""
        n, k = self.sent.mean.shape
        values = np.full((n, k, tau.size), np.nan)
        usable = np.flatnonzero(self.usable)
        for start in range(0, usable.size, _CHUNK):
            rows = usable[start : start + _CHUNK]
            values[rows] = self.marginals(rows).quantiles(tau).transpose(1, 2, 0)
        return Quantiles(values, tau)


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Adds the options of verbs that read a file; None where they are not given."""
    add_value(parser, "--dimensions", "D,D", "dimensions to use; default: all", _names)
    text = (
        f"dimensions in radians that wrap; left out of joint measures (default {','.join(ANGLES)})"
    )
    add_value(parser, "--angles", "D,D", text, _names)
    parser.add_argument(
        "--class", dest="classes", metavar="C,C", type=_names, help="classes to keep"
    )
    add_condition(parser, "--where", "keep rows whose column has this value; may be repeated")
    add_value(parser, "--rows", "A:B", "row numbers of the file, before other filters", _rows)
    text = "multiply the reported variances by F from second T of each sequence on"
    add_value(parser, "--fault", "variance=F[@t=T]", text, _fault)


def add_condition(parser: argparse._ActionsContainer, option: str, help: str) -> None:
    """Adds an option that chooses rows by the value of a column; None where it is not given."""
    parser.add_argument(option, metavar="COLUMN=VALUE", type=_condition, action="append", help=help)


def read_selected(path: str, options: argparse.Namespace) -> Recording:
    """Reads the chosen rows of a file and applies the fault. Raises RecordingError."""
    recording = read_recording(
        Path(path),
        dimensions=options.dimensions,
        classes=options.classes or (),
        where=tuple(options.where or ()),
        rows=options.rows,
        angles=ANGLES if options.angles is None else options.angles,
    )
    fault: Fault | None = options.fault
    if fault is None:
        return recording
    factor: float | FloatArray = fault.variance
    if recording.time_s is not None:
        start = np.full(len(recording.sequences), np.inf)
        np.minimum.at(start, recording.sequence_index, recording.time_s)
        since = recording.time_s - start[recording.sequence_index]
        factor = np.where(since >= fault.since, fault.variance, 1.0)[:, None, None]
    elif fault.since > 0:
        raise ValueError(
            f"--fault …@t={fault.since:g}: {path} has no column t. Leave @t out, or add the column."
        )
    return replace(recording, covariance=recording.covariance * factor)


def refuse_options_of_gaussians(
    options: argparse.Namespace, more: tuple[str, ...], instead: str
) -> None:
    """Raises ValueError where an option was given that means something to Gaussians only.

    more     such options of the verb, by destination, beside those that choose rows
    instead  what there is in place of Gaussians
    """
    in_vain = given(options, (*_OF_GAUSSIANS, *more))
    if in_vain:
        raise ValueError(
            f"{', '.join(in_vain)}: for Gaussians, and {instead}. Leave it out; choose rows by "
            "--rows."
        )


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _condition(text: str) -> tuple[str, str]:
    column, sign, value = text.partition("=")
    if not sign or not column:
        raise argparse.ArgumentTypeError(f"'{text}': expected COLUMN=VALUE, such as role=deploy")
    return column, value


def _rows(text: str) -> slice:
    match = re.fullmatch(r"(\d*):(\d*)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"'{text}': expected A:B, such as 0:2000")
    start, stop = (int(part) if part else None for part in match.groups())
    return slice(start, stop)


def _fault(text: str) -> Fault:
    def read(text: str) -> Fault:
        match = re.fullmatch(r"variance=([0-9.eE+-]+)(?:@t=([0-9.eE+-]+)s?)?", text)
        return Fault(*(float(part or 0) for part in match.groups())) if match else Fault(0.0)

    return checked(
        text,
        read,
        "variance=F or variance=F@t=T, such as variance=0.2@t=10s",
        lambda fault: 0 < fault.variance < np.inf and 0 <= fault.since < np.inf,
    )


def recalibrate_gaussians(selection: Selection, recording: Recording) -> RecalibratedRecording:
    """Recalibrates each usable row by the recalibrator of its slice.

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
    """Divides the rows of a recording; the stream of a row is its sequence.

    ranges  None: rows have no range
    """
    n = recording.mean.shape[0]
    buckets: tuple[str, ...] = ("",)
    bucket = np.zeros(n, np.int64)
    if ranges is not None:
        buckets = ranges.labels(recording.space)
        bucket = ranges.of(recording.space, recording.mean)
    parts = (SliceBy.STREAM, SliceBy.CLASS, SliceBy.RANGE)
    names = (recording.sequences, recording.classes, buckets)
    number = (recording.sequence_index, recording.class_index, bucket)
    return Parts(dict(zip(parts, names, strict=True)), dict(zip(parts, number, strict=True)))


def opinions_of(recording: ClassRecording) -> tuple[FloatArray, BoolArray]:
    """(N, M, C) log-probabilities, of the logits where there are some; (N,) which can be used.

    The rules are those for received frames. A logit of −infinity is a probability of 0; NaN,
    +infinity and nothing but −infinity have no softmax. Probabilities lie in [0, 1] to BEYOND, and
    add up to 1 to OFF_ONE.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        if recording.logits is not None:
            logits = _each_opinion(recording.logits)
            # The highest of C logits is finite unless there is no softmax of them.
            usable = np.asarray(np.isfinite(logits.max(axis=2)).all(axis=1))
            return from_logits(logits), usable
        values = _each_opinion(_probabilities(recording))
        sound: BoolArray = (np.abs(values.sum(axis=2) - 1) <= OFF_ONE).all(axis=1)
        sound &= ((values >= -BEYOND) & (values <= 1 + BEYOND)).all(axis=(1, 2))
        return from_probabilities(values), sound


def _probabilities(recording: ClassRecording) -> FloatArray:
    return recording.probabilities if recording.opinions is None else recording.opinions


def _each_opinion(values: FloatArray) -> FloatArray:
    return values[:, None] if values.ndim == 2 else values


def rejected_rows(selection: ClassSelection, made: ClassRecording) -> BoolArray | None:
    """(N,) detections whose recalibrated entropy is too high; None where none are rejected."""
    if selection.rejection is None:
        return None
    with np.errstate(invalid="ignore"):
        return selection.rejection.rejects(normalised_entropy(made.probabilities))


def check_classes(selection: ClassSelection, recording: ClassRecording) -> None:
    """Raises InvalidRecalibrator unless it was fitted on the classes of the file."""
    classes = recording.probabilities.shape[1]
    fitted = len(selection.classes) or selection.recalibrator.classes
    if fitted is not None and fitted != classes:
        raise InvalidRecalibrator(
            f"the recalibrator was fitted on {fitted} classes and the file has {classes}. Give a "
            "file with the same classes, or fit again."
        )
    if recording.class_names and not selection.fits(recording.class_names):
        raise InvalidRecalibrator(
            f"the recalibrator was fitted on classes {', '.join(selection.classes)}, and the file "
            f"has {', '.join(recording.class_names)}. Give a file with the same classes in the "
            "same order, or fit again."
        )


def recalibrate_classes(selection: ClassSelection, recording: ClassRecording) -> ClassRecording:
    """Recalibrates probabilities, which keep the shape of what they were made from.

    Rows that cannot be used stay as they are, for the measures to refuse; of logits they are NaN.

    raises  InvalidRecalibrator when it was fitted on other classes
    """
    check_classes(selection, recording)
    log_probabilities, usable = opinions_of(recording)
    if recording.logits is None:
        made = _probabilities(recording).copy()
    else:
        made = np.full_like(recording.logits, np.nan)
    _each_opinion(made)[usable] = selection.apply(log_probabilities[usable])
    several = made.ndim == 3
    return replace(
        recording,
        probabilities=made.mean(axis=1) if several else made,
        opinions=made if several else None,
        logits=None,
    )


def usable_truth(recording: Recording) -> tuple[BoolArray, BoolArray]:
    """(N,) rows that have truth, and those among them that can be fitted to and measured."""
    labelled = np.asarray(np.isfinite(recording.truth).all(axis=1))
    usable = labelled & sound_rows(recording)
    for values in (recording.mean, recording.truth):
        usable &= (np.abs(values) <= _LARGEST).all(axis=1)
    return labelled, usable


def left_out(labelled: BoolArray, usable: BoolArray) -> str:
    """Says how many rows cannot be fitted to or measured, and why; from usable_truth."""
    refused = np.count_nonzero(labelled & ~usable)
    text = f"of {labelled.size} rows, {np.count_nonzero(~labelled)} have no truth"
    return f"{text} and {refused} are refused ({_REFUSED})" if refused else text


def fit_rows(recording: Recording, rows: IntArray) -> FitRows:
    """Takes some rows, all of them usable, to fit on."""
    tracks = numbered_tracks(recording.sequence_index, recording.track)
    return FitRows(
        recording.space,
        estimates_of(recording).take(rows),
        recording.space.error(recording.truth[rows], recording.mean[rows]),
        np.full(rows.size, -1) if tracks is None else tracks[rows],
    )


def numbered_tracks(sequence_index: IntArray | None, track: IntArray | None) -> IntArray | None:
    """(N,) one number for each track of each sequence, −1 without; None if none is recorded."""
    if track is None or sequence_index is None:
        return None
    pairs = np.stack([sequence_index, track], axis=1)
    _, number = np.unique(pairs, axis=0, return_inverse=True)
    found: IntArray = number.reshape(-1).astype(np.int64)
    found[track == NO_TRACK] = -1
    return found


def period_of(recording: Recording | ClassRecording, rows: IntArray) -> Period | None:
    """Period from the first to the last of some rows; None where they have no times."""
    if rows.size == 0:
        return None
    if recording.stamp_ns is not None:  # preferred: stamps of all files share one zero
        stamps = recording.stamp_ns[rows]
        return Period(int(stamps.min()), int(stamps.max()), Clock.STAMP)
    if recording.time_s is None or not np.isfinite(recording.time_s[rows]).all():
        return None
    seconds = recording.time_s[rows]
    return Period(float(seconds.min()), float(seconds.max()), Clock.SECONDS)


def basis_of(rows: FitRows, period: Period | None, borrows_from: str | None) -> Basis | None:
    """Basis of a fit on these rows; None without rows."""
    if rows.n == 0:
        return None
    return Basis(rows.n, rows.tracks, rows.n * rows.weight, period, borrows_from)
