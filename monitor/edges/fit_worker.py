"""A fit in a process of its own: a job on standard input, its outcome on standard output.

Below every other process in priority, within bounds of memory, and gone as soon as its parent
is. What fails is one line on standard error and exit code 1. Started by fit_process.py.

    python -m monitor.edges.fit_worker PARENT
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path

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
    from monitor.edges.fit_job_bytes import read_job
    from monitor.edges.fit_outcome_bytes import outcome_bytes
    from monitor.promotion.fit_slices import fit_slices

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
