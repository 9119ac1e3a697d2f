"""Fits in processes of their own: the messages to and fro, and the side of the sidecar.

The event loop answers frames meanwhile: it sends the job in small pieces, and a thread makes and
checks arrays and documents. Nothing is fitted here, and nothing in a message is ever run. The
worker believes its parent, whose estimates were examined when they came; the sidecar believes an
outcome only where it is one of its job, since a broken process may return anything.

A job is the length of a head (8 bytes), the head as JSON, and then the arrays that the head
announces, slice after slice, in eight bytes a number and in the byte order of the machine: they
go out from where they lie and are used where they arrive, since a copy of 50 MB would hold up
frames. Before all of it stands its length. An outcome is a line of JSON for each slice.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import numpy as np
import numpy.typing as npt
from annotated_types import Len

import monitor
from monitor.frames.detections import Limits
from monitor.frames.marks import Printable
from monitor.frames.space import Space
from monitor.pipeline.fit_worker import HEAD, MOST_JOB_BYTES
from monitor.promotion.fits import AnyFitRows, FitFailed, FitJob, FitOutcome, method_of
from monitor.promotion.records import FitSettings
from monitor.recalibration.class_probabilities import ClassRows
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.mean_correction import method_after_offset
from monitor.recalibration.recalibrator import Recalibrator
from monitor.recalibration.selection import AnyMethod, FittedMethod
from monitor.store.documents import Codec, InvalidDocument

JOB_FORMAT = "calibration-monitor/fit-job/1"
_HEAD_LENGTH = 8  # bytes
_REMEDY = "Fit again; both processes must be of one version of the monitor."

# Bytes of an outcome, recalibrators of all slices: those of Gaussian processes have some ten kB.
MOST_BYTES = 16 * 2**20

# Characters of the reason why a slice is refused.
MOST_REASON = 1000


@dataclass(frozen=True, slots=True)
class _Announced:
    """A slice whose arrays follow.

    space   None: class probabilities
    arrays  floats or integers, of this shape; None for one that is not there
    """

    name: str
    space: Space | None
    arrays: tuple[tuple[Literal["f", "i"], tuple[int, ...]] | None, ...]


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
    fitted: FittedMethod | None = None
    refused: Annotated[Printable, Len(0, MOST_REASON)] | None = None

    def __post_init__(self) -> None:
        if (self.fitted is None) == (self.refused is None):
            raise ValueError("there must be one of 'fitted' and 'refused'")


_HEAD = Codec(_Head, "head", _REMEDY, JOB_FORMAT)
_LINE = Codec(_SliceLine, "outcome", _REMEDY)


def job_pieces(job: FitJob) -> list[memoryview]:
    """Returns the bytes of a job, in pieces to be sent one by one; the arrays are not copied."""
    arrays = {name: [_as_sent(one) for one in rows.arrays()] for name, rows in job.slices.items()}
    announced = tuple(
        _Announced(
            name,
            rows.space if isinstance(rows := job.slices[name], FitRows) else None,
            tuple(
                None if one is None else ("f" if one.dtype.kind == "f" else "i", one.shape)
                for one in found
            ),
        )
        for name, found in arrays.items()
    )
    text = _HEAD.write(_Head(job.settings, job.limits, announced))
    # Spaces behind it, so that every array begins where its numbers may be read in place.
    text = text.ljust(-(-len(text) // 8) * 8)
    pieces = [memoryview(len(text).to_bytes(_HEAD_LENGTH, "little")), memoryview(text)]
    sent = (one for of_slice in arrays.values() for one in of_slice)
    return pieces + [one.data.cast("B") for one in sent if one is not None and one.size]


def read_job(data: bytes | bytearray) -> FitJob:
    """Inverts job_pieces, joined; the arrays of the job lie in the data.

    Raises ValueError if the data have no head of this version, or fewer numbers than it announces.
    """
    begin = _HEAD_LENGTH + int.from_bytes(data[:_HEAD_LENGTH], "little")
    head = _HEAD.read(bytes(data[_HEAD_LENGTH:begin]))
    rest = memoryview(data)[begin:]
    slices: dict[str, AnyFitRows] = {}
    for one in head.slices:
        arrays: list[Any] = []
        for announced in one.arrays:
            kind, shape = announced or ("f", (0,))
            length = 8 * math.prod(shape)
            taken, rest = rest[:length], rest[length:]
            array = np.frombuffer(taken, f"{kind}8").reshape(shape)
            arrays.append(None if announced is None else array)
        space = one.space
        slices[one.name] = ClassRows(*arrays) if space is None else FitRows.of(space, *arrays)
    return FitJob(head.settings, slices, head.limits)


def _as_sent(array: npt.NDArray[Any] | None) -> npt.NDArray[Any] | None:
    """Makes an array contiguous, and of eight bytes a number."""
    if array is None:
        return None
    return np.ascontiguousarray(array, np.float64 if array.dtype.kind == "f" else np.int64)


def outcome_bytes(outcome: FitOutcome) -> bytes:
    """Writes an outcome."""
    lines = [_fitted_line(name, fitted) for name, fitted in outcome.fitted.items()]
    lines += [_refused_line(name, reason) for name, reason in outcome.refused.items()]
    return b"".join(line + b"\n" for line in lines)


def _fitted_line(name: str, fitted: AnyMethod) -> bytes:
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
        rows = job.slices[name]
        asked = method_of(job.settings, rows)
        if isinstance(rows, ClassRows):
            sizes, size = "classes", rows.classes
        else:
            sizes, size = "dimensions", rows.space.k
        method = method_after_offset(one) if isinstance(one, Recalibrator) else one.method
        found = one.k if isinstance(one, Recalibrator) else one.classes
        if method != asked or found not in (None, size):
            raise ValueError(
                f"the outcome of '{name}' is a {method} of {found} {sizes}: a {asked} of "
                f"{size} was asked for."
            )
    return FitOutcome(
        fitted, {one.slice: one.refused for one in outcomes if one.refused is not None}
    )


_STDIN, _STDOUT, _STDERR = 0, 1, 2
WORKER = (sys.executable, "-m", "monitor.pipeline.fit_worker")
# The folder where `-m` finds this very package: the working directory may hold anything.
_FOLDER = Path(monitor.__file__).parents[1]
# A second thread of BLAS would take a core that frames need, and round differently.
_ONE_THREAD = dict.fromkeys(
    (
        "BLIS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "NUMEXPR_NUM_THREADS",
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
    ),
    "1",
)

# Bytes sent at a time: what a pipe holds.
_CHUNK = 2**16
# Bytes kept of the end of standard error, and characters shown of its last line.
_KEPT_OF_STDERR, _MOST_WORDS = 4096, 500


@dataclass(slots=True)
class FitProcess:
    """Fits each job in a process of its own, which is started ahead of the job.

    On a busy machine a process of low priority imports its libraries for a minute or more: it does
    so while tracks are still being collected. Must be used on the main thread's loop: the process
    dies with the thread that started it.

    command  program and arguments; our process id is appended
    """

    command: Sequence[str] = WORKER
    _ahead: _Talk | None = None

    async def prepare(self) -> None:
        """Starts the process of the next job, unless it is there. Raises FitFailed."""
        if self._ahead is None or self._ahead.over.done():
            self._ahead = await _started(self.command)

    async def end(self) -> None:
        """Ends the process that waits for a job."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            await ahead.end()

    async def fit(self, job: FitJob, timeout_s: float, *, urgent: bool = False) -> FitOutcome:
        """Runs fit_slices in a process of one thread and low priority.

        timeout_s  from the job to its outcome
        urgent     somebody waits for it: it is not at the lowest priority
        raises     FitFailed, with the reason; the process is gone then, also if the caller is
                   cancelled
        """
        try:
            pieces = await asyncio.to_thread(_framed, job, urgent)
        except ValueError as error:
            raise FitFailed(f"the fit could not be asked for: {error}") from None
        talk, self._ahead = self._ahead, None
        if talk is None or talk.over.done():
            talk = await _started(self.command)
        try:
            async with asyncio.timeout(timeout_s):
                await talk.send(pieces)
                await asyncio.shield(talk.over)
        except TimeoutError:
            raise FitFailed(
                f"the fit took longer than {timeout_s:g} s and was ended: allow it more, or keep "
                "fewer tracks."
            ) from None
        finally:
            await talk.end()
        talk.check()
        try:
            return await asyncio.to_thread(read_outcome, bytes(talk.said), job)
        # A broken process may return anything: whatever its outcome raises is a failure of the fit.
        except Exception as error:
            raise FitFailed(f"the fit returned what cannot be used: {error}") from None


def _framed(job: FitJob, urgent: bool) -> list[memoryview]:
    """Returns the pieces of a job behind their head. Raises ValueError for too many bytes."""
    pieces = job_pieces(job)
    length = sum(piece.nbytes for piece in pieces)
    if length > MOST_JOB_BYTES:
        raise ValueError(
            f"its rows have {length} bytes, at most {MOST_JOB_BYTES}: keep fewer tracks."
        )
    return [memoryview(HEAD.pack(length, urgent)), *pieces]


async def _started(command: Sequence[str]) -> _Talk:
    """Starts the process. Raises FitFailed if the system cannot."""
    try:
        _, talk = await asyncio.get_running_loop().subprocess_exec(
            _Talk,
            *command,
            str(os.getpid()),
            env={**os.environ, **_ONE_THREAD},
            cwd=_FOLDER,
            # Ctrl-C in the terminal is for the sidecar alone, and the process can lower the
            # priority of its session as a whole.
            start_new_session=True,
        )
    except OSError as error:
        raise FitFailed(f"the fit could not be started: {error}.") from None
    return talk


class _Talk(asyncio.SubprocessProtocol):
    """Exchanges bytes with one process until it has ended and its pipes are closed."""

    def __init__(self) -> None:
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.said = bytearray()
        self._complained = bytearray()
        self._may_send = asyncio.Event()
        self._listens = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)
        self._may_send.set()

    def pause_writing(self) -> None:
        self._may_send.clear()

    def resume_writing(self) -> None:
        self._may_send.set()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == _STDIN:
            self._listens = False
            self._may_send.set()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == _STDERR:
            self._complained = (self._complained + data)[-_KEPT_OF_STDERR:]
        elif len(self.said) <= MOST_BYTES:
            self.said += data
            if len(self.said) > MOST_BYTES:
                self._kill()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport.close()  # closed already, but only so does it know
        self.over.set_result(None)

    async def send(self, pieces: Sequence[memoryview]) -> None:
        """Sends a job, or as much of it as the process reads.

        The pipe stays open: its end tells the process that the sidecar has ended.
        """
        pipe = cast(asyncio.WriteTransport, self._transport.get_pipe_transport(_STDIN))
        for piece in pieces:
            for begin in range(0, piece.nbytes, _CHUNK):
                await self._may_send.wait()
                if not self._listens:
                    return
                pipe.write(piece[begin : begin + _CHUNK])
                # A fast reader never pauses us: without this, frames would wait for the whole job.
                await asyncio.sleep(0)

    async def end(self) -> None:
        """Ends the process and closes its pipes."""
        if not self.over.done():
            self._kill()
            # A process that inherited the other end of a pipe must not keep ours open.
            for descriptor in (_STDIN, _STDOUT, _STDERR):
                pipe = self._transport.get_pipe_transport(descriptor)
                if pipe is not None:
                    pipe.close()
            await asyncio.shield(self.over)

    def check(self) -> None:
        """Raises FitFailed, with the last line of standard error, if the process failed."""
        if len(self.said) > MOST_BYTES:
            raise FitFailed(f"the fit returned more than {MOST_BYTES} bytes and was ended.")
        code = self._transport.get_returncode()
        if code == 0:
            return
        how = f"exit code {code}"
        if code is not None and code < 0:
            names = {one.value: one.name for one in signal.Signals}
            how = f"signal {names.get(-code, -code)}"
        lines = self._complained.decode("utf-8", "replace").split("\n")
        words = next((line for line in reversed(lines) if line.strip()), "it did not say why")
        shown = "".join(c if c.isprintable() else " " for c in words).strip()[-_MOST_WORDS:]
        raise FitFailed(f"the fit ended with {how}: {shown}")

    def _kill(self) -> None:
        # The whole group; transport.kill could take the exit code from the loop.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._transport.get_pid(), signal.SIGKILL)
