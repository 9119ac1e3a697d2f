"""Fits one job in this process: the job on standard input, its outcome on standard output.

    python -m monitor.pipeline.fit_worker PARENT

The process has a low priority and bounded memory, and ends as soon as its parent does. A failure is
one line on standard error and exit code 1. `fit_process` starts it before there is a job.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import struct
import sys
import threading
import time
from pathlib import Path

# Nothing else may be imported here: numpy is to start at low priority.

# Before the job come its length and whether it is urgent. After the job the pipe stays open: its
# end says that the parent is gone.
HEAD = struct.Struct("<Q?")
MOST_JOB_BYTES = 2**30
_STDIN, _STDOUT, _STDERR = 0, 1, 2
_PR_SET_PDEATHSIG = 1  # from linux/prctl.h
# Beside one process of ordinary priority on the same core: a tenth of it, and a hundredth. What was
# lowered cannot be raised again, so that imports have the better one, as urgent fits do.
_LOW_PRIORITY, _LOWEST_PRIORITY = 10, 19
_FIRST_TO_GO = "1000"
_TRIES, _PAUSE_S = 10, 0.05

# Address space beyond what the interpreter and its libraries take (0.25 GB): a fit takes up to
# three times the bytes of its rows, and Gaussian processes 0.1 GB of their own.
_SPACE = 2**30
_SPACE_PER_JOB_BYTE = 8


class ParentGone(RuntimeError):
    """The process that waits for the outcome has ended."""


def step_back(priority: int) -> None:
    """Gives all other processes the processor first, and the kernel this process to kill first.

    A system may lack or refuse either; the fit runs without.
    """
    # Who is lower already stays so: to be raised takes a right.
    priority = max(priority, os.getpriority(os.PRIO_PROCESS, 0))
    os.setpriority(os.PRIO_PROCESS, 0, priority)
    # Not SCHED_IDLE: frames wait no less beside it, and if all cores are busy a fit gets 0.3 % of
    # one in place of 1.5 %, and is never done in time.
    with contextlib.suppress(AttributeError, OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    with contextlib.suppress(OSError):
        _lower_session(priority)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_GO, encoding="ascii")


def _lower_session(priority: int) -> None:
    """Lowers the priority of the session, of which this is the only process.

    If Linux shares the processor out among sessions (autogroup), the priority of a process holds
    within its session alone, and this session would take half of a busy core.
    """
    if os.getsid(0) != os.getpid():
        return  # other processes of the session must not be lowered too
    for _ in range(_TRIES):
        try:
            Path("/proc/self/autogroup").write_text(str(priority), encoding="ascii")
            return
        except BlockingIOError:  # another session was changed within the last tenth of a second
            time.sleep(_PAUSE_S)


def die_with(parent: int) -> None:
    """Asks the system for SIGKILL when the parent dies. Raises ParentGone if it is dead already.

    The signal comes when the parent's thread that started us ends, and on Linux alone: the end of
    standard input is watched as well.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise ParentGone(f"the parent is {os.getppid()}, and {parent} is gone")


def read_exactly(length: int) -> bytearray:
    """Reads `length` bytes of standard input. Raises ParentGone if it ends before."""
    data = bytearray(length)
    rest = memoryview(data)
    while rest:
        count = os.readv(_STDIN, [rest])
        if count == 0:
            raise ParentGone(f"the job ended {len(rest)} bytes before its end")
        rest = rest[count:]
    return data


def read_framed() -> bytearray:
    """Waits for the job and reads it. Raises ParentGone, ValueError for over MOST_JOB_BYTES."""
    length, urgent = HEAD.unpack(read_exactly(HEAD.size))
    if not urgent:
        step_back(_LOWEST_PRIORITY)
    if length > MOST_JOB_BYTES:
        raise ValueError(f"a job of {length} bytes: at most {MOST_JOB_BYTES}. Keep fewer tracks.")
    limit_memory(_SPACE + _SPACE_PER_JOB_BYTE * length)
    return read_exactly(length)


def limit_memory(space: int) -> None:
    """Limits the address space, so that a runaway fit fails alone, and forbids core dumps."""
    for what, most in ((resource.RLIMIT_AS, space), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(what)
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (bound, bound))


def _end_with_input() -> None:
    """Ends the process at once when standard input ends."""
    # os.read takes no lock that the interpreter would want at its end.
    while os.read(_STDIN, 1):
        pass
    os._exit(1)


def main() -> int:
    """Does one job and returns the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # SIGHUP asks the sidecar for a reload.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    step_back(_LOW_PRIORITY)
    try:
        die_with(int(sys.argv[1]))
        # Prints go to standard error from now on.
        output = os.dup(_STDOUT)
        os.dup2(_STDERR, _STDOUT)
        from monitor.pipeline.fit_process import outcome_bytes, read_job
        from monitor.promotion.fits import fit_slices

        data = read_framed()
        threading.Thread(target=_end_with_input, daemon=True).start()
        rest = memoryview(outcome_bytes(fit_slices(read_job(data))))
        while rest:
            rest = rest[os.write(output, rest) :]
    except Exception as error:
        words = " ".join(str(error).split())
        print(f"{type(error).__name__}: {words}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
