"""The messages between the sidecar and the process of a fit: a job goes out, an outcome comes back.
Nothing in them is ever run. The worker believes its parent, whose estimates were examined when they
came; the sidecar believes an outcome only where it is one of its job, since a broken process may
return anything.

A job is the length of a head (8 bytes), the head as JSON, and then the arrays that the head
announces, slice after slice, in eight bytes a number and in the byte order of the machine: they
go out from where they lie and are used where they arrive, since a copy of 50 MB would hold up
frames. Before all of it stands its length.

An outcome is a line of JSON for each slice: none takes long to read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from annotated_types import Len

from monitor.frames.detections import Estimates, Limits
from monitor.frames.marks import Printable
from monitor.frames.space import Space
from monitor.promotion.fits import FitJob, FitOutcome
from monitor.promotion.records import FitSettings
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.recalibrator import Recalibrator
from monitor.recalibration.selection import AnyRecalibrator
from monitor.store.codec import Codec, InvalidDocument

JOB_FORMAT = "calibration-monitor/fit-job/1"
_HEAD_LENGTH = 8  # bytes
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
    n: int
    timed: bool
    delayed: bool


@dataclass(frozen=True, slots=True)
class _Head:
    """The head of a job."""

    settings: FitSettings
    limits: Limits
    slices: tuple[_Announced, ...]


@dataclass(frozen=True, slots=True)
class _SliceLine:
    """The outcome of a slice: a recalibrator, or the reason why there is none."""

    slice: str
    fitted: AnyRecalibrator | None = None
    refused: Annotated[Printable, Len(0, MOST_REASON)] | None = None

    def __post_init__(self) -> None:
        if (self.fitted is None) == (self.refused is None):
            raise ValueError("there must be one of 'fitted' and 'refused'")


_HEAD = Codec(_Head, "head", _REMEDY, JOB_FORMAT)
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

    Raises ValueError if the data have no head of this version, or fewer numbers than it announces.
    """
    begin = _HEAD_LENGTH + int.from_bytes(data[:_HEAD_LENGTH], "little")
    head = _HEAD.read(bytes(data[_HEAD_LENGTH:begin]))
    arrays = _Arrays(memoryview(data)[begin:])
    slices = {one.name: _rows(one, arrays) for one in head.slices}
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
    n, space, k = announced.n, announced.space, announced.space.k
    mean = arrays.take(np.float64, n, k)
    covariance = arrays.take(np.float64, n, k, k)
    error = arrays.take(np.float64, n, k)
    time_s = arrays.take(np.float64, n) if announced.timed else None
    delay_s = arrays.take(np.float64, n) if announced.delayed else None
    diagonal = arrays.take(np.int64, n).astype(np.bool_)
    track = arrays.take(np.int64, n)
    return FitRows(space, Estimates(mean, covariance, diagonal), error, track, time_s, delay_s)


@dataclass(slots=True)
class _Arrays:
    """The arrays behind a head, taken one by one."""

    rest: memoryview

    def take(self, kind: type[np.generic], *shape: int) -> npt.NDArray[Any]:
        """Takes the next array. Raises ValueError where too few bytes are left."""
        length = 8 * math.prod(shape)
        taken, self.rest = self.rest[:length], self.rest[length:]
        return np.frombuffer(taken, kind).reshape(shape)


def outcome_bytes(outcome: FitOutcome) -> bytes:
    """Writes an outcome."""
    lines = [_fitted_line(name, fitted) for name, fitted in outcome.fitted.items()]
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
    # However many line ends come: what stands behind the line of the last slice stays one.
    lines = data.split(b"\n", len(job.slices))
    outcomes = [_LINE.read(line) for line in lines if line]
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
