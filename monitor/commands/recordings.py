"""Chooses the rows of a recorded file that a verb works on: by options, by soundness, by truth.

Reading and writing of the file formats lives in `store`.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from monitor.commands.options import add_value, allow, checked
from monitor.frames.cholesky import factorise
from monitor.frames.detections import Estimates, Limits
from monitor.frames.slices import RangeBuckets, SliceBy
from monitor.frames.space import BoolArray, FloatArray, IntArray
from monitor.recalibration.fitting import Parts
from monitor.store.recordings import NO_TRACK, Recording, read_recording

# Dimensions that wrap, unless others are named.
ANGLES = ("yaw", "heading")

# Options that choose among Gaussians, by destination: they mean nothing to class probabilities.
_OF_GAUSSIANS = ("dimensions", "angles", "classes", "where", "fault")

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
    why = f"for Gaussians, and {instead}. Leave it out; choose rows by --rows."
    allow(options, False, why, *_OF_GAUSSIANS, *more)


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


def numbered_tracks(sequence_index: IntArray | None, track: IntArray | None) -> IntArray | None:
    """(N,) one number for each track of each sequence, −1 without; None if none is recorded."""
    if track is None or sequence_index is None:
        return None
    pairs = np.stack([sequence_index, track], axis=1)
    _, number = np.unique(pairs, axis=0, return_inverse=True)
    found: IntArray = number.reshape(-1).astype(np.int64)
    found[track == NO_TRACK] = -1
    return found
