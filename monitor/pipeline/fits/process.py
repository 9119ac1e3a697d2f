"""Runs fits in processes of their own, from the sidecar's side of the pipes.

The event loop answers frames meanwhile: it sends the job in small pieces, and a thread makes and
checks arrays and documents. Nothing is fitted here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import monitor
from monitor.pipeline.fits.messages import MOST_BYTES, job_pieces, read_outcome
from monitor.pipeline.fits.worker import HEAD, MOST_JOB_BYTES
from monitor.promotion.fits import FitFailed, FitJob, FitOutcome

WORKER = (sys.executable, "-m", "monitor.pipeline.fits.worker")
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

_STDIN, _STDOUT, _STDERR = 0, 1, 2
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
        self._too_much = False
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
        elif len(self.said) + len(data) <= MOST_BYTES:
            self.said += data
        elif not self._too_much:
            self._too_much = True
            self._kill()

    def connection_lost(self, exc: Exception | None) -> None:
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
        if self._too_much:
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
