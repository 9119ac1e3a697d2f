"""Processes that fit, and how to see whether one is there; no tests here."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from monitor.pipeline.fit_process import job_pieces
from monitor.pipeline.fit_worker import HEAD
from monitor.promotion.fits import FitJob
from tests.promotion.fit_jobs import job_of, rows_of

PATIENCE = 60.0  # s; far above what anything here takes, on a machine that has much else to do
SOON = 2.0  # s within which nothing may be left


def quick_job() -> FitJob:
    """Fitted at once."""
    return job_of("variance-scaling", {"car": rows_of(1), "van": rows_of(2)})


def long_job() -> FitJob:
    """Takes many seconds to fit."""
    return job_of(
        "gp-normal-multivariate", {f"s{i}": rows_of(i, tracks=500, k=7) for i in range(20)}
    )


def framed(job: FitJob, *, urgent: bool = False) -> bytes:
    """As the worker reads it."""
    data = b"".join(job_pieces(job))
    return HEAD.pack(len(data), urgent) + data


def is_there(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped by whoever adopted it does not."""
    return status(pid).get("State", "Z")[0] not in "ZX"


def status(pid: int) -> dict[str, str]:
    """What the system says of a process; nothing where there is none."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    fields = (line.partition(":") for line in lines)
    return {name: value.strip() for name, _, value in fields}


def children(pid: int) -> list[int]:
    """Of all threads of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        # A thread may end while we look.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found += map(int, (task / "children").read_text("ascii").split())
    return found


def fits(pid: int) -> bool:
    """Whether a worker has its job: it watches its parent then, by a thread."""
    return int(status(pid).get("Threads", "0")) > 1


def eventually(happened: Callable[[], bool], within: float = PATIENCE) -> bool:
    """Whether it did in time."""
    end = time.monotonic() + within
    while not happened():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def open_pipes() -> set[str]:
    """Of this process."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        # The one we look with is gone by now.
        with contextlib.suppress(FileNotFoundError):
            found.add(str(entry.readlink()))
    return {target for target in found if target.startswith("pipe:")}
