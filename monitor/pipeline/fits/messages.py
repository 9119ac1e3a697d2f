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

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from monitor.frames.detections import Estimates, Limits
from monitor.frames.space import (
    MOST_DIMENSIONS,
    Dimension,
    DimensionKind,
    FloatArray,
    IntArray,
    Space,
)
from monitor.promotion.fits import FitJob, FitOutcome
from monitor.promotion.records import FitSettings
from monitor.recalibration.documents import (
    Document,
    InvalidRecalibrator,
    member,
    names,
    number,
    part,
    parts,
    shown,
    whole,
)
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.fitting import FITTINGS
from monitor.recalibration.recalibrator import Recalibrator
from monitor.recalibration.scaling import Objective
from monitor.recalibration.selection import METHODS, check_format, content_of, read_method

JOB_FORMAT = "calibration-monitor/fit-job/1"
OUTCOME_FORMAT = "calibration-monitor/fit-outcome/1"
_HEAD_LENGTH = 8  # bytes
_MOST_HEAD = 16 * 2**20  # bytes
_MOST_ROWS = 2**31

# Bytes of an outcome, recalibrators of all slices: those of Gaussian processes have some ten kB.
MOST_BYTES = 16 * 2**20

# Characters of the reason why a slice is refused.
MOST_REASON = 1000
_LEAST = float(np.finfo(float).tiny)


def job_pieces(job: FitJob) -> list[memoryview]:
    """Returns the bytes of a job, in pieces to be sent one by one; the arrays are not copied."""
    head: Document = {
        "format": JOB_FORMAT,
        "settings": asdict(job.settings),
        "limits": asdict(job.limits),
        "slices": [_announced(name, rows) for name, rows in job.slices.items()],
    }
    text = json.dumps(head).encode("ascii")
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
        head = content_of(bytes(data[_HEAD_LENGTH:begin]))
        check_format(head, JOB_FORMAT)
        settings = _settings(part(head, "settings"))
        bounds = part(head, "limits")
        limits = Limits(*(number(bounds, field.name, 0.0) for field in fields(Limits)))
        announced = parts(head, "slices", fewest=0)
        arrays = _Arrays(memoryview(data)[begin:])
        slices = dict(_named_rows(content, arrays) for content in announced)
    except InvalidRecalibrator as error:
        raise ValueError(f"the head of the job cannot be used: {error}") from None
    if len(slices) < len(announced):
        raise ValueError("the job has two slices of one name: slices are known by their names.")
    if arrays.rest.nbytes:
        raise ValueError(f"{arrays.rest.nbytes} bytes stand behind all arrays: none may.")
    return FitJob(settings, slices, limits)


def _announced(name: str, rows: FitRows) -> Document:
    return {
        "name": name,
        "dimensions": list(rows.space.names),
        "units": [dimension.unit for dimension in rows.space.dimensions],
        "kinds": [int(dimension.kind) for dimension in rows.space.dimensions],
        "angles_in_joint": rows.space.angles_in_joint,
        "n": rows.n,
        "timed": rows.time_s is not None,
        "delayed": rows.delay_s is not None,
    }


def _arrays(rows: FitRows) -> Iterator[npt.NDArray[Any]]:
    """Yields arrays in the order in which they go out, contiguous and of eight bytes a number."""
    optional = [array for array in (rows.time_s, rows.delay_s) if array is not None]
    estimates = rows.estimates
    for floats in (estimates.mean, estimates.covariance, rows.error, *optional):
        yield np.ascontiguousarray(floats, np.float64)
    for integers in (estimates.diagonal, rows.track):
        yield np.ascontiguousarray(integers, np.int64)


def _settings(content: Document) -> FitSettings:
    method, objective, constant = map(content.get, ("method", "objective", "time_constant_s"))
    if not isinstance(method, str) or method not in FITTINGS:
        raise InvalidRecalibrator(
            f"'method' is {shown(method)}: it must be one of {', '.join(FITTINGS)}."
        )
    return FitSettings(
        method,
        None if objective is None else member(content, "objective", Objective),
        None if constant is None else number(content, "time_constant_s", _LEAST),
        number(content, "prior_tracks", _LEAST),
        whole(content, "tracks"),
    )


def _named_rows(content: Document, arrays: _Arrays) -> tuple[str, FitRows]:
    """Reads a slice: its announcement in the head, then its arrays.

    Raises InvalidRecalibrator for the announcement, ValueError for the arrays.
    """
    name = content.get("name")
    flags = [content.get(flag) for flag in ("angles_in_joint", "timed", "delayed")]
    if not isinstance(name, str) or not all(isinstance(flag, bool) for flag in flags):
        raise InvalidRecalibrator(
            f"the slice {shown(name)} has the flags {shown(flags)}: a name and truth values "
            "are needed."
        )
    space = _space(content, name, bool(flags[0]))
    n, k = whole(content, "n", 0, _MOST_ROWS), space.k
    mean = arrays.floats(f"{name}.mean", n, k)
    covariance = arrays.floats(f"{name}.covariance", n, k, k)
    if not (np.diagonal(covariance, axis1=1, axis2=2) > 0).all():
        raise ValueError(f"'{name}.covariance' holds a variance that is not positive.")
    error = arrays.floats(f"{name}.error", n, k)
    time_s = arrays.floats(f"{name}.time_s", n) if flags[1] else None
    delay_s = arrays.floats(f"{name}.delay_s", n) if flags[2] else None
    diagonal = arrays.integers(f"{name}.diagonal", 0, 1, n).astype(np.bool_)
    track = arrays.integers(f"{name}.track", -1, np.iinfo(np.int64).max, n)
    return name, FitRows(
        space, Estimates(mean, covariance, diagonal), error, track, time_s, delay_s
    )


def _space(content: Document, name: str, angles_in_joint: bool) -> Space:
    called = names(content, "dimensions")
    units, kinds = content.get("units"), content.get("kinds")
    if (
        not 1 <= len(called) <= MOST_DIMENSIONS
        or not isinstance(units, list)
        or not isinstance(kinds, list)
        or not len(units) == len(kinds) == len(called)
        or not all(isinstance(unit, str) for unit in units)
        or not all(kind in list(DimensionKind) for kind in kinds)
    ):
        raise InvalidRecalibrator(
            f"the slice '{name}' has {len(called)} dimensions of the units {shown(units)} and "
            f"kinds {shown(kinds)}: there must be 1 to {MOST_DIMENSIONS}, with both for each."
        )
    dimensions = tuple(
        Dimension(dimension, unit, DimensionKind(kind))
        for dimension, unit, kind in zip(called, units, kinds, strict=True)
    )
    return Space(dimensions, angles_in_joint)


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
    """Writes an outcome. Raises ValueError if a recalibrator holds a number that is not finite."""
    lines: list[Document] = [{"format": OUTCOME_FORMAT}]
    for name, fitted in outcome.fitted.items():
        lines.append({"slice": name, "method": fitted.method, "parameters": fitted.parameters()})
    for name, reason in outcome.refused.items():
        # One printable line, whatever the error said.
        words = " ".join("".join(c if c.isprintable() else " " for c in reason).split())
        lines.append({"slice": name, "refused": words[:MOST_REASON]})
    return b"".join(json.dumps(line, allow_nan=False).encode("ascii") + b"\n" for line in lines)


def read_outcome(data: bytes, job: FitJob) -> FitOutcome:
    """Inverts outcome_bytes, as the outcome of that job.

    Raises ValueError if the data are anything else: too long, of slices that were not asked for
    or without one that was, of another method, of other dimensions, or not finite.
    """
    if len(data) > MOST_BYTES:
        raise ValueError(f"the outcome has {len(data)} bytes: at most {MOST_BYTES}.")
    try:
        return _read(data, job)
    except InvalidRecalibrator as error:
        raise ValueError(f"the outcome cannot be used: {error}") from None


def _read(data: bytes, job: FitJob) -> FitOutcome:
    # Never more lines than slices, however many line ends come: the rest of the last one is no
    # JSON.
    head, *lines = data.removesuffix(b"\n").split(b"\n", len(job.slices))
    check_format(content_of(head), OUTCOME_FORMAT)
    fitted: dict[str, Recalibrator] = {}
    refused: dict[str, str] = {}
    for line in lines:
        content = content_of(line)
        name = content.get("slice")
        if not isinstance(name, str) or name not in job.slices or name in {*fitted, *refused}:
            raise InvalidRecalibrator(
                f"'slice' is {shown(name)}: every slice of the job must be there once, and no "
                "other."
            )
        if "refused" in content:
            refused[name] = _reason(content["refused"])
        else:
            fitted[name] = _recalibrator(content, name, job)
    missing = [name for name in job.slices if name not in {*fitted, *refused}]
    if missing:
        raise InvalidRecalibrator(
            f"it lacks {len(missing)} of {len(job.slices)} slices, '{missing[0]}' for one."
        )
    return FitOutcome(fitted, refused)


def _reason(reason: object) -> str:
    if not isinstance(reason, str) or not reason.isprintable() or len(reason) > MOST_REASON:
        raise InvalidRecalibrator(
            f"'refused' is {shown(reason)}: it must be a text of at most {MOST_REASON} printable "
            "characters."
        )
    return reason


def _recalibrator(content: Document, name: str, job: FitJob) -> Recalibrator:
    fitted = read_method(content, name, METHODS)
    if fitted.method != job.settings.method:
        raise InvalidRecalibrator(
            f"'{name}.method' is '{fitted.method}', and '{job.settings.method}' was asked for."
        )
    k = job.slices[name].space.k
    if fitted.k not in (None, k):
        raise InvalidRecalibrator(f"'{name}' has {fitted.k} dimensions and its rows have {k}.")
    return fitted
