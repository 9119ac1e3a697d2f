"""The messages between the sidecar and the process of a fit: a job goes out, an outcome comes back.
Nothing in them is ever run, and a reader believes nothing that it has not checked.

A job is the length of a head (8 bytes), the head as JSON, and then the arrays that the head
announces, slice after slice, in eight bytes a number and in the byte order of the machine: they
go out from where they lie and are used where they arrive, since a copy of 50 MB would hold up
frames. Before all of it stands its length.

An outcome is a line of JSON that says what follows, and a line for each slice: none takes long to
read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from annotated_types import Interval, Len

from monitor.frames.detections import Estimates, Limits
from monitor.frames.marks import Printable
from monitor.frames.space import FloatArray, IntArray, Space
from monitor.promotion.fits import FitJob, FitOutcome
from monitor.promotion.records import FitSettings
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.fitting import FITTINGS
from monitor.recalibration.recalibrator import Recalibrator
from monitor.recalibration.selection import AnyRecalibrator
from monitor.store.codec import Codec, InvalidDocument

JOB_FORMAT = "calibration-monitor/fit-job/1"
OUTCOME_FORMAT = "calibration-monitor/fit-outcome/1"
_HEAD_LENGTH = 8  # bytes
_MOST_HEAD = 16 * 2**20  # bytes
_MOST_ROWS = 2**31
_REMEDY = "Fit again; both processes must be of one version of the monitor."

# Bytes of an outcome, recalibrators of all slices: those of Gaussian processes have some ten kB.
MOST_BYTES = 16 * 2**20

# Characters of the reason why a slice is refused.
MOST_REASON = 1000


@dataclass(frozen=True, slots=True)
class _Announced:
    """A slice whose arrays follow: how many rows, and which of the arrays that may lack."""

    name: str
    space: Space
    n: Annotated[int, Interval(ge=0, le=_MOST_ROWS)]
    timed: bool
    delayed: bool

    def __post_init__(self) -> None:
        if len(set(self.space.names)) < self.space.k:
            raise ValueError(f"'space' has {self.space.names}: every name must be there once")


@dataclass(frozen=True, slots=True)
class _Head:
    """The head of a job."""

    settings: FitSettings
    limits: Limits
    slices: tuple[_Announced, ...]

    def __post_init__(self) -> None:
        if self.settings.method not in FITTINGS:
            raise ValueError(
                f"'settings.method' is {self.settings.method[:100]!r}: "
                f"it must be one of {', '.join(FITTINGS)}"
            )
        if len({one.name for one in self.slices}) < len(self.slices):
            raise ValueError("two slices have one name: slices are known by their names")


@dataclass(frozen=True, slots=True)
class _SliceLine:
    """The outcome of a slice: a recalibrator, or the reason why there is none."""

    slice: str
    fitted: AnyRecalibrator | None = None
    refused: Annotated[Printable, Len(0, MOST_REASON)] | None = None

    def __post_init__(self) -> None:
        if (self.fitted is None) == (self.refused is None):
            raise ValueError("there must be one of 'fitted' and 'refused'")


@dataclass(frozen=True, slots=True)
class _FirstLine:
    """Says that an outcome follows."""


_HEAD = Codec(_Head, "head", _REMEDY, JOB_FORMAT)
_FIRST = Codec(_FirstLine, "outcome", _REMEDY, OUTCOME_FORMAT)
_LINE = Codec(_SliceLine, "outcome", _REMEDY)


def job_pieces(job: FitJob) -> list[memoryview]:
    """Returns the bytes of a job, in pieces to be sent one by one; the arrays are not copied."""
    announced = tuple(
        _Announced(name, rows.space, rows.n, rows.time_s is not None, rows.delay_s is not None)
        for name, rows in job.slices.items()
    )
    text = _HEAD.write(_Head(job.settings, job.limits, announced))
    # Spaces behind it, so that every array begins where its numbers may be read in place.
    text = text.ljust(-(-len(text) // 8) * 8)
    pieces = [memoryview(len(text).to_bytes(_HEAD_LENGTH, "little")), memoryview(text)]
    for rows in job.slices.values():
        pieces += [array.data.cast("B") for array in _arrays(rows) if array.size]
    return pieces


def read_job(data: bytes | bytearray) -> FitJob:
    """Inverts job_pieces, joined; the arrays of the job lie in the data.

    Raises ValueError if the data are anything else, or hold what no detection has.
    """
    length = int.from_bytes(data[:_HEAD_LENGTH], "little")
    begin = _HEAD_LENGTH + length
    if len(data) < begin or length > _MOST_HEAD or length % 8:
        raise ValueError(f"the job of {len(data)} bytes has a head of {length}: it was cut off.")
    try:
        head = _HEAD.read(bytes(data[_HEAD_LENGTH:begin]))
    except InvalidDocument as error:
        raise ValueError(f"the head of the job cannot be used: {error}") from None
    arrays = _Arrays(memoryview(data)[begin:])
    slices = {one.name: _rows(one, arrays) for one in head.slices}
    if arrays.rest.nbytes:
        raise ValueError(f"{arrays.rest.nbytes} bytes stand behind all arrays: none may.")
    return FitJob(head.settings, slices, head.limits)


def _arrays(rows: FitRows) -> Iterator[npt.NDArray[Any]]:
    """Yields arrays in the order in which they go out, contiguous and of eight bytes a number."""
    optional = [array for array in (rows.time_s, rows.delay_s) if array is not None]
    estimates = rows.estimates
    for floats in (estimates.mean, estimates.covariance, rows.error, *optional):
        yield np.ascontiguousarray(floats, np.float64)
    for integers in (estimates.diagonal, rows.track):
        yield np.ascontiguousarray(integers, np.int64)


def _rows(announced: _Announced, arrays: _Arrays) -> FitRows:
    """Takes the arrays of a slice. Raises ValueError."""
    name, n, space = announced.name, announced.n, announced.space
    k = space.k
    mean = arrays.floats(f"{name}.mean", n, k)
    covariance = arrays.floats(f"{name}.covariance", n, k, k)
    if not (np.diagonal(covariance, axis1=1, axis2=2) > 0).all():
        raise ValueError(f"'{name}.covariance' holds a variance that is not positive.")
    error = arrays.floats(f"{name}.error", n, k)
    time_s = arrays.floats(f"{name}.time_s", n) if announced.timed else None
    delay_s = arrays.floats(f"{name}.delay_s", n) if announced.delayed else None
    diagonal = arrays.integers(f"{name}.diagonal", 0, 1, n).astype(np.bool_)
    track = arrays.integers(f"{name}.track", -1, np.iinfo(np.int64).max, n)
    return FitRows(space, Estimates(mean, covariance, diagonal), error, track, time_s, delay_s)


@dataclass(slots=True)
class _Arrays:
    """The arrays behind a head, taken one by one. Raises ValueError for a number out of range."""

    rest: memoryview

    def floats(self, name: str, *shape: int) -> FloatArray:
        array = np.frombuffer(self._bytes(name, shape), np.float64).reshape(shape)
        if not np.isfinite(array).all():
            raise ValueError(f"'{name}' holds what is no finite number: send usable detections.")
        return array

    def integers(self, name: str, lowest: int, highest: int, *shape: int) -> IntArray:
        array = np.frombuffer(self._bytes(name, shape), np.int64).reshape(shape)
        if array.size and not lowest <= array.min() <= array.max() <= highest:
            raise ValueError(
                f"'{name}' holds {array.min()} to {array.max()}: {lowest} to {highest} is possible."
            )
        return array

    def _bytes(self, name: str, shape: tuple[int, ...]) -> memoryview:
        length = 8 * math.prod(shape)
        if self.rest.nbytes < length:
            raise ValueError(
                f"'{name}' has {self.rest.nbytes} of {length} bytes: the job was cut off."
            )
        taken, self.rest = self.rest[:length], self.rest[length:]
        return taken


def outcome_bytes(outcome: FitOutcome) -> bytes:
    """Writes an outcome."""
    lines = [_FIRST.write(_FirstLine())]
    lines += [_fitted_line(name, fitted) for name, fitted in outcome.fitted.items()]
    lines += [_refused_line(name, reason) for name, reason in outcome.refused.items()]
    return b"".join(line + b"\n" for line in lines)


def _fitted_line(name: str, fitted: Recalibrator) -> bytes:
    line = _LINE.write(_SliceLine(name, fitted))
    try:
        # One that cannot be read again could be neither sent nor stored: it is refused here, then.
        _LINE.read(line)
    except InvalidDocument as error:
        return _refused_line(name, f"{fitted.method} made what cannot be used: {error}")
    return line


def _refused_line(name: str, reason: str) -> bytes:
    # One printable line, whatever the error said.
    words = " ".join("".join(c if c.isprintable() else " " for c in reason).split())
    return _LINE.write(_SliceLine(name, refused=words[:MOST_REASON]))


def read_outcome(data: bytes, job: FitJob) -> FitOutcome:
    """Inverts outcome_bytes, as the outcome of that job.

    Raises ValueError if the data are anything else: too long, of slices that were not asked for
    or without one that was, of another method, of other dimensions, or not finite.
    """
    if len(data) > MOST_BYTES:
        raise ValueError(f"the outcome has {len(data)} bytes: at most {MOST_BYTES}.")
    # Never more lines than slices, however many line ends come: the rest of the last one is no
    # JSON.
    first, *lines = data.removesuffix(b"\n").split(b"\n", len(job.slices))
    try:
        _FIRST.read(first)
        outcomes = [_LINE.read(line) for line in lines]
    except InvalidDocument as error:
        raise ValueError(f"the outcome cannot be used: {error}") from None
    names = [one.slice for one in outcomes]
    if sorted(names) != sorted(job.slices):
        raise ValueError(
            f"the outcome has {len(names)} slices, and {len(job.slices)} were asked for: every "
            "slice of the job must be there once, and no other."
        )
    fitted = {one.slice: one.fitted for one in outcomes if one.fitted is not None}
    for name, one in fitted.items():
        asked, k = job.settings.method, job.slices[name].space.k
        if one.method != asked or one.k not in (None, k):
            raise ValueError(
                f"the outcome of '{name}' is a {one.method} of {one.k} dimensions: a {asked} of "
                f"{k} was asked for."
            )
    return FitOutcome(
        fitted, {one.slice: one.refused for one in outcomes if one.refused is not None}
    )
