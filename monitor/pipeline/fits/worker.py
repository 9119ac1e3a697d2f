"""A fit in a process of its own: a job on standard input, its outcome on standard output.

Below every other process in priority, within bounds of memory, and gone as soon as its parent
is. What fails is one line on standard error and exit code 1. Started by fit_process.py.

    python -m monitor.pipeline.fits.worker PARENT

What a fit is asked for, as bytes for another process of this machine; nothing in them is ever
run, and the reader believes nothing that it has not checked.

They are the length of a head (8 bytes), the head as JSON, and then the arrays that it announces,
slice after slice, in eight bytes a number and in the byte order of the machine: these go out from
where they lie and are used where they arrive, since a copy of 50 MB would hold up frames.

What comes of a fit, as bytes from another process, which may have gone mad: the reader believes
nothing that it has not checked.

They are a line of JSON that says what follows, and a line for each slice: none takes long to read.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
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

# Nothing else may be imported up here: what numpy needs to start is then taken at low priority
# already, and with the watch on the parent set.

# The job comes with its length in front, in so many bytes, little-endian. Behind it the pipe
# stays open, and tells by its end that the parent is gone.
LENGTH_BYTES = 8


MOST_JOB_BYTES = 2**30


_STDIN, _STDOUT, _STDERR = 0, 1, 2


# Of linux/prctl.h.
_PR_SET_PDEATHSIG = 1


_LOWEST_PRIORITY = 19


_FIRST_TO_GO = "1000"


_TRIES, _PAUSE_S = 10, 0.05


# Address space beyond what the interpreter and its libraries take (0.25 GB): a fit takes up to
# three times the bytes of its rows, and Gaussian processes 0.1 GB of their own.
_SPACE = 2**30


_SPACE_PER_JOB_BYTE = 8


class ParentGone(RuntimeError):
    """Nobody waits for the outcome."""


def step_back() -> None:
    """Everything else first: processor, and memory where there is none left.

    Each is what a system may not have or grant; a fit without it is still a fit.
    """
    os.setpriority(os.PRIO_PROCESS, 0, _LOWEST_PRIORITY)
    # Not SCHED_IDLE: frames wait no less beside it, and where all cores are busy a fit gets a
    # third of a percent of one in place of one and a half, and is never done in time.
    with contextlib.suppress(AttributeError, OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    with contextlib.suppress(OSError):
        _lower_session()
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_GO, encoding="ascii")


def _lower_session() -> None:
    """Where Linux shares the processor out among sessions (autogroup), priorities hold within one
    alone, and ours, of which this is the only process, would take half of a busy core. It has a
    priority too: so that neither our parent nor anybody else's session waits for us.
    """
    if os.getsid(0) != os.getpid():
        return  # whoever else is of this session is not to be lowered with us
    for _ in range(_TRIES):
        try:
            Path("/proc/self/autogroup").write_text(str(_LOWEST_PRIORITY), encoding="ascii")
            return
        except BlockingIOError:  # somebody else's was changed within the last tenth of a second
            time.sleep(_PAUSE_S)


def die_with(parent: int) -> None:
    """Ask the system for SIGKILL when the parent dies.

    That is when its thread that started us ends, and on Linux alone: the end of standard input
    is watched as well. Raises ParentGone where it is dead already.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise ParentGone(f"the parent is {os.getppid()}, and {parent} is gone")


def read_exactly(length: int) -> bytearray:
    """So many bytes of standard input. Raises ParentGone where it ends before."""
    data = bytearray(length)
    rest = memoryview(data)
    while rest:
        count = os.readv(_STDIN, [rest])
        if count == 0:
            raise ParentGone(f"the job ended {len(rest)} bytes before its end")
        rest = rest[count:]
    return data


def read_framed() -> bytearray:
    """The job as it came. Raises ParentGone, and ValueError where it is larger than any is."""
    length = int.from_bytes(read_exactly(LENGTH_BYTES), "little")
    if length > MOST_JOB_BYTES:
        raise ValueError(f"a job of {length} bytes: at most {MOST_JOB_BYTES}. Keep fewer tracks.")
    limit_memory(_SPACE + _SPACE_PER_JOB_BYTE * length)
    return read_exactly(length)


def limit_memory(space: int) -> None:
    """So many bytes of addresses at most, so that a fit gone wild fails alone; no core dumps."""
    for what, most in ((resource.RLIMIT_AS, space), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(what)
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (bound, bound))


def watch_parent() -> None:
    """End at once when standard input does."""
    threading.Thread(target=_end_with_input, daemon=True).start()


def _end_with_input() -> None:
    # os.read takes no lock that the interpreter would want at its end.
    while os.read(_STDIN, 1):
        pass
    os._exit(1)


def own_output() -> int:
    """A descriptor of standard output; what others print goes to standard error from now on."""
    output = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    return output


def fitted(data: bytearray) -> bytes:
    """The outcome of a job. Raises ValueError where the data are none."""
    from monitor.pipeline.fits.worker import outcome_bytes, read_job
    from monitor.promotion.fits import fit_slices

    return outcome_bytes(fit_slices(read_job(data)))


def main() -> int:
    """One job; the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # A reload of the whole service is none of ours.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    step_back()
    try:
        die_with(int(sys.argv[1]))
        output = own_output()
        data = read_framed()
        watch_parent()
        rest = memoryview(fitted(data))
        while rest:
            rest = rest[os.write(output, rest) :]
    except Exception as error:
        words = " ".join(str(error).split())
        print(f"{type(error).__name__}: {words}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())


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


FORMAT = "calibration-monitor/fit-outcome/1"


# Recalibrators of all slices: those of Gaussian processes have some ten kB each.
MOST_BYTES = 16 * 2**20


# Characters of the reason why a slice is refused.
MOST_REASON = 1000


def outcome_bytes(outcome: FitOutcome) -> bytes:
    """Its lines. Raises ValueError where a recalibrator holds what is no finite number."""
    lines: list[Document] = [{"format": FORMAT}]
    for name, fitted in outcome.fitted.items():
        lines.append({"slice": name, "method": fitted.method, "parameters": fitted.parameters()})
    for name, reason in outcome.refused.items():
        # One line of what may be read, whatever it was that an error said.
        words = " ".join("".join(c if c.isprintable() else " " for c in reason).split())
        lines.append({"slice": name, "refused": words[:MOST_REASON]})
    return b"".join(json.dumps(line, allow_nan=False).encode("ascii") + b"\n" for line in lines)


def read_outcome(data: bytes, job: FitJob) -> FitOutcome:
    """The inverse of outcome_bytes, as the outcome of that job.

    Raises ValueError where the data are anything else: too long, of slices that were not asked
    for or without one that was, of another method, of other dimensions, or not finite.
    """
    if len(data) > MOST_BYTES:
        raise ValueError(f"the outcome has {len(data)} bytes: at most {MOST_BYTES}.")
    try:
        return _read(data, job)
    except InvalidRecalibrator as error:
        raise ValueError(f"the outcome cannot be used: {error}") from None


def _read(data: bytes, job: FitJob) -> FitOutcome:
    # Never more pieces than there should be, however many ends of lines there are: what is left
    # in the last one is no JSON.
    head, *lines = data.removesuffix(b"\n").split(b"\n", len(job.slices))
    check_format(content_of(head), FORMAT)
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
