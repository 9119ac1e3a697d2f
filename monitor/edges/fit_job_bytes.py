"""What a fit is asked for, as bytes for another process of this machine; nothing in them is ever
run, and the reader believes nothing that it has not checked.

They are the length of a head (8 bytes), the head as JSON, and then the arrays that it announces,
slice after slice, in eight bytes a number and in the byte order of the machine: these go out from
where they lie and are used where they arrive, since a copy of 50 MB would hold up frames.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from monitor.calibration.detections import Limits
from monitor.calibration.limits import MOST_DIMENSIONS
from monitor.calibration.space import Dimension, DimensionKind, FloatArray, IntArray, Space
from monitor.promotion.fit_job import FitJob
from monitor.promotion.settings import FitSettings
from monitor.recalibration.document import names, number, part, parts, shown, whole
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.fitting import FITTINGS
from monitor.recalibration.recalibrator import Document, Estimates, InvalidRecalibrator
from monitor.recalibration.scale import Objective
from monitor.recalibration.versioned_document import check_format, content_of

JOB_FORMAT = "calibration-monitor/fit-job/1"
_HEAD_LENGTH = 8  # bytes
_MOST_HEAD = 16 * 2**20  # bytes
_MOST_ROWS = 2**31


def job_pieces(job: FitJob) -> list[memoryview]:
    """The bytes of a job, in pieces to be sent one after the other; the arrays are not copied."""
    head: Document = {
        "format": JOB_FORMAT,
        "settings": {
            "method": job.settings.method,
            "objective": job.settings.objective,
            "time_constant_s": job.settings.time_constant_s,
            "prior_tracks": job.settings.prior_tracks,
            "tracks": job.settings.tracks,
        },
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
    """The inverse of job_pieces, joined; its arrays lie in the data.

    Raises ValueError where the data are anything else, or hold what no detection has.
    """
    length = int.from_bytes(data[:_HEAD_LENGTH], "little")
    begin = _HEAD_LENGTH + length
    if len(data) < begin or length > _MOST_HEAD or length % 8:
        raise ValueError(f"the job of {len(data)} bytes has a head of {length}: it was cut off.")
    try:
        head = content_of(bytes(data[_HEAD_LENGTH:begin]))
        check_format(head, JOB_FORMAT)
        settings = _settings(part(head, "settings"))
        limits = _limits(part(head, "limits"))
        announced = [_read_announced(one) for one in parts(head, "slices", fewest=0)]
    except InvalidRecalibrator as error:
        raise ValueError(f"the head of the job cannot be used: {error}") from None
    numbers = _Numbers(memoryview(data)[begin:])
    slices = {one.name: _rows(one, numbers) for one in announced}
    if len(slices) < len(announced):
        raise ValueError("the job has two slices of one name: slices are known by their names.")
    numbers.check_all_taken()
    return FitJob(settings, slices, limits)


@dataclass(frozen=True, slots=True)
class _Announced:
    """What the head says of a slice: n rows in a space, and which of the optional arrays come."""

    name: str
    space: Space
    n: int
    timed: bool
    delayed: bool


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
    """In the order in which they go out, each contiguous and of eight bytes a number."""
    optional = [array for array in (rows.time_s, rows.delay_s) if array is not None]
    estimates = rows.estimates
    for floats in (estimates.mean, estimates.covariance, rows.error, *optional):
        yield np.ascontiguousarray(floats, np.float64)
    for integers in (estimates.diagonal, rows.track):
        yield np.ascontiguousarray(integers, np.int64)


def _settings(content: Document) -> FitSettings:
    method, objective = content.get("method"), content.get("objective")
    if not isinstance(method, str) or method not in FITTINGS:
        raise InvalidRecalibrator(
            f"'method' is {shown(method)}: it must be one of {', '.join(FITTINGS)}."
        )
    if objective is not None and objective not in list(Objective):
        raise InvalidRecalibrator(
            f"'objective' is {shown(objective)}: it must be one of {', '.join(Objective)}."
        )
    constant = content.get("time_constant_s")
    return FitSettings(
        method,
        None if objective is None else Objective(objective),
        None if constant is None else number(content, "time_constant_s", np.finfo(float).tiny),
        number(content, "prior_tracks", np.finfo(float).tiny),
        whole(content, "tracks"),
    )


def _limits(content: Document) -> Limits:
    return Limits(*(number(content, field.name, 0.0) for field in fields(Limits)))


def _read_announced(content: Document) -> _Announced:
    name = content.get("name")
    flags = [content.get(flag) for flag in ("angles_in_joint", "timed", "delayed")]
    if not isinstance(name, str) or not all(isinstance(flag, bool) for flag in flags):
        raise InvalidRecalibrator(
            f"the slice {shown(name)} has the flags {shown(flags)}: a name and truth values "
            "are needed."
        )
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
    space = Space(dimensions, bool(flags[0]))
    rows = whole(content, "n", 0, _MOST_ROWS)
    return _Announced(name, space, rows, bool(flags[1]), bool(flags[2]))


@dataclass(slots=True)
class _Numbers:
    """The arrays behind a head, taken one by one."""

    rest: memoryview

    def floats(self, name: str, *shape: int) -> FloatArray:
        """Raises ValueError where there are not so many, or one is not finite."""
        array = np.frombuffer(self._bytes(name, shape), np.float64).reshape(shape)
        if not np.isfinite(array).all():
            raise ValueError(f"'{name}' holds what is no finite number: send usable detections.")
        return array

    def integers(self, name: str, lowest: int, highest: int, *shape: int) -> IntArray:
        """Raises ValueError where there are not so many, or one is out of range."""
        array = np.frombuffer(self._bytes(name, shape), np.int64).reshape(shape)
        if array.size and not lowest <= array.min() <= array.max() <= highest:
            raise ValueError(
                f"'{name}' holds {array.min()} to {array.max()}: {lowest} to {highest} is possible."
            )
        return array

    def check_all_taken(self) -> None:
        """Raises ValueError where more came than was announced."""
        if self.rest.nbytes:
            raise ValueError(f"{self.rest.nbytes} bytes stand behind all arrays: none may.")

    def _bytes(self, name: str, shape: tuple[int, ...]) -> memoryview:
        length = 8
        for size in shape:
            length *= size
        if self.rest.nbytes < length:
            raise ValueError(
                f"'{name}' has {self.rest.nbytes} of {length} bytes: the job was cut off."
            )
        taken, self.rest = self.rest[:length], self.rest[length:]
        return taken


def _rows(announced: _Announced, numbers: _Numbers) -> FitRows:
    n, k, name = announced.n, announced.space.k, announced.name
    mean = numbers.floats(f"{name}.mean", n, k)
    covariance = numbers.floats(f"{name}.covariance", n, k, k)
    if not (np.diagonal(covariance, axis1=1, axis2=2) > 0).all():
        raise ValueError(f"'{name}.covariance' holds a variance that is not positive.")
    error = numbers.floats(f"{name}.error", n, k)
    time_s = numbers.floats(f"{name}.time_s", n) if announced.timed else None
    delay_s = numbers.floats(f"{name}.delay_s", n) if announced.delayed else None
    diagonal = numbers.integers(f"{name}.diagonal", 0, 1, n).astype(np.bool_)
    track = numbers.integers(f"{name}.track", -1, np.iinfo(np.int64).max, n)
    estimates = Estimates(mean, covariance, diagonal)
    return FitRows(announced.space, estimates, error, track, time_s, delay_s)
