"""Fits in a process: whatever becomes of it, an outcome or a FitFailed, and nothing is left; it is
last in everything, bounded, and never there without its parent."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from monitor.pipeline import fit_process
from monitor.pipeline.fit_process import MOST_BYTES, WORKER, FitProcess, outcome_bytes
from monitor.pipeline.fit_worker import HEAD
from monitor.promotion.fits import FitFailed, FitJob, FitOutcome, fit_slices
from tests.pipeline.fit_processes import (
    PATIENCE,
    SOON,
    children,
    eventually,
    fits,
    framed,
    is_there,
    long_job,
    open_pipes,
    quick_job,
)
from tests.promotion.fit_jobs import job_of, rows_of

ROOT = Path(__file__).parents[2]

GOOD = outcome_bytes(fit_slices(quick_job()))


@pytest.fixture(autouse=True)
def nothing_is_left():
    """After every test: no process of ours, alive or to be reaped, and no pipe."""
    pipes, processes = open_pipes(), set(children(os.getpid()))
    yield
    assert set(children(os.getpid())) <= processes
    assert open_pipes() <= pipes


def mad(program: str) -> tuple[str, ...]:
    """A worker of our own making; `job` is what it was sent, `say` its standard output."""
    whole = f"""
        import os, signal, sys, time
        def read():
            length = int.from_bytes(sys.stdin.buffer.read({HEAD.size})[:8], "little")
            return sys.stdin.buffer.read(length)
        say = sys.stdout.buffer.write
    """
    return sys.executable, "-c", textwrap.dedent(whole) + textwrap.dedent(program)


async def fit(job: FitJob, timeout_s: float, command: Sequence[str] = WORKER) -> FitOutcome:
    return await FitProcess(command).fit(job, timeout_s)


def failed(program: str, job: FitJob | None = None, timeout_s: float = PATIENCE) -> str:
    """What the failure of such a worker is called."""
    with pytest.raises(FitFailed) as caught:
        asyncio.run(fit(job or quick_job(), timeout_s, mad(program)))
    return str(caught.value)


@pytest.mark.parametrize("method", ["covariance-scaling", "gp-normal"])
def test_fits_at_once_and_again_are_equal_bit_for_bit_and_as_if_fitted_here(method):
    job = job_of(method, {"car": rows_of(1), "van": rows_of(2), "bad": rows_of(3, tracks=0)})
    other = job_of("variance-scaling", {"s": rows_of(4)})

    async def together():
        return await asyncio.gather(*(fit(one, PATIENCE) for one in (job, other, job)))

    for one, outcome in zip((job, other, job), asyncio.run(together()), strict=True):
        assert outcome_bytes(outcome) == outcome_bytes(fit_slices(one))
    assert set(outcome.fitted) == {"car", "van"}
    assert set(outcome.refused) == {"bad"}


def test_a_corrected_mean_is_the_method_that_was_asked_for_behind_an_offset():
    rows = rows_of(1)
    job = job_of(
        "variance-scaling", {"car": replace(rows, error=rows.error + 1.0)}, correct_mean=True
    )
    outcome = asyncio.run(fit(job, PATIENCE))
    assert outcome == fit_slices(job)
    assert outcome.fitted["car"].method == "mean-correction"


IGNORES = f"signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep({PATIENCE})"
UNUSABLE = "the fit returned what cannot be used: .*"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (
            "print('on my way', file=sys.stderr, flush=True); os.kill(os.getpid(), signal.SIGKILL)",
            "the fit ended with signal SIGKILL: on my way$",
        ),
        (
            "read(); print('warning\\nno\\x1b room\\n\\n', file=sys.stderr); sys.exit(3)",
            "the fit ended with exit code 3: no  room$",
        ),
        ("sys.stderr.write('a' * 10**7 + 'end'); sys.exit(1)", "the fit .{,550}aaend$"),
        (f"read(); {IGNORES}", "the fit took longer than 3 s and was ended: allow it more"),
        ("while True: say(b'x' * 2**20)", f"returned more than {MOST_BYTES} bytes and was ended.$"),
        ("read()", UNUSABLE + "has 0 slices"),
        (f"read(); say({GOOD!r}[:-40])", UNUSABLE + "is no JSON"),
    ],
)
def test_whatever_a_worker_does_is_told_and_it_is_gone(tmp_path, program, words):
    told = tmp_path / "pid"
    noted = f'open({str(told)!r}, "w").write(str(os.getpid()))\n{program}'
    # A job that does not fit into a pipe, for those that do not read it.
    job, timeout_s = (long_job(), 3) if IGNORES in program else (None, PATIENCE)
    assert re.search(words, failed(noted, job, timeout_s))
    assert not is_there(int(told.read_text("ascii")))


@pytest.mark.parametrize("command", [("/no/such/program",), ("/etc/passwd",)])
def test_what_cannot_be_started_is_a_failure_that_says_why(command):
    with pytest.raises(FitFailed, match=r"could not be started: .*(No such file|Permission)"):
        asyncio.run(fit(quick_job(), PATIENCE, command))


def test_more_rows_than_can_be_sent_are_a_failure_that_says_so(monkeypatch):
    monkeypatch.setattr(fit_process, "MOST_JOB_BYTES", 1000)
    with pytest.raises(FitFailed, match="bytes, at most 1000: keep fewer tracks"):
        asyncio.run(fit(quick_job(), PATIENCE))


def test_who_is_cancelled_leaves_no_process():
    async def cancelled() -> None:
        fitting = asyncio.create_task(fit(long_job(), PATIENCE))
        found: list[int] = []
        while not (found := [pid for pid in children(os.getpid()) if fits(pid)]):
            await asyncio.sleep(0.01)
        fitting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fitting
        (pid,) = found
        assert not is_there(pid)

    asyncio.run(cancelled())


def test_it_has_one_thread_and_a_session_of_its_own_and_is_told_who_its_parent_is(tmp_path):
    told = tmp_path / "told"
    program = f"""
        names = ("OMP", "OPENBLAS", "MKL", "NUMEXPR", "BLIS")
        threads = [os.environ[name + "_NUM_THREADS"] for name in names]
        alone = os.getsid(0) == os.getpid()
        open({str(told)!r}, "w").write(str([threads, alone, sys.argv[1]]))
    """
    failed(program)
    assert told.read_text("utf-8") == str([["1"] * 5, True, str(os.getpid())])


@pytest.mark.parametrize("fitting", [False, True], ids=["as it starts", "as it fits"])
def test_a_parent_that_is_killed_leaves_no_fit_behind(fitting):
    program = """
        import asyncio
        from monitor.pipeline.fit_process import FitProcess
        from tests.pipeline.fit_processes import long_job
        asyncio.run(FitProcess().fit(long_job(), 100))
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], cwd=ROOT)
    try:
        assert eventually(lambda: bool(children(parent.pid)))
        (pid,) = children(parent.pid)
        assert not fitting or eventually(lambda: fits(pid))
    finally:
        parent.kill()
        parent.wait()
    assert eventually(lambda: not is_there(pid), SOON)


# ---- the worker


def python(program: str) -> str:
    """What a program prints that has the worker at hand as `worker`."""
    whole = "import os, sys\nfrom monitor.pipeline import fit_worker as worker\n"
    whole += textwrap.dedent(program)
    done = subprocess.run(
        [sys.executable, "-c", whole], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def worker():
    """A worker of ours that has not been told anything."""
    with subprocess.Popen(
        [*WORKER, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        # Threads of BLAS are none of those that a test looks for.
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    ) as process:
        yield process
        process.kill()


def tell(worker, data: bytes) -> None:
    worker.stdin.write(data)
    worker.stdin.flush()


@pytest.mark.parametrize("urgent", [False, True])
def test_it_waits_for_its_job_at_a_low_priority_and_keeps_it_if_the_job_is_urgent(worker, urgent):
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert eventually(lambda: "scipy" in mapped(worker.pid))
    assert os.sched_getscheduler(worker.pid) == os.SCHED_BATCH
    assert adjusted(worker.pid) == "1000"
    assert os.getpriority(os.PRIO_PROCESS, worker.pid) == max(10, own)
    tell(worker, framed(long_job(), urgent=urgent))
    lowest = 19 if not urgent else max(10, own)
    assert eventually(lambda: os.getpriority(os.PRIO_PROCESS, worker.pid) == lowest)
    # A kernel that does not share the processor out among sessions has no such file.
    session = of_session(worker.pid)
    assert not session or session.endswith((f"nice {lowest}", "nice 10", "nice 19"))


def test_a_process_that_was_started_ahead_takes_the_next_job_and_ends_with_its_owner():
    async def ahead() -> None:
        # Another test may have left a child, multiprocessing's tracker for one.
        others = set(children(os.getpid()))
        process = FitProcess()
        await process.prepare()
        (pid,) = set(children(os.getpid())) - others
        await process.prepare()
        assert set(children(os.getpid())) - others == {pid}
        os.kill(pid, signal.SIGKILL)
        assert await asyncio.to_thread(eventually, lambda: not is_there(pid))
        await asyncio.sleep(0.2)  # the loop hears of it from another thread, a moment later
        outcome = await process.fit(quick_job(), PATIENCE)
        assert set(outcome.fitted) == {"car", "van"}
        await process.prepare()
        await process.end()
        await process.end()

    asyncio.run(ahead())


def adjusted(pid: int) -> str:
    return Path(f"/proc/{pid}/oom_score_adj").read_text("ascii").strip()


def mapped(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text("utf-8")


def of_session(pid: int) -> str:
    file = Path(f"/proc/{pid}/autogroup")
    return file.read_text("ascii").strip() if file.exists() else ""


def test_a_fit_that_takes_more_memory_than_it_may_fails_alone_and_is_never_allowed_more():
    printed = python(
        """
        import resource
        worker.limit_memory(2**30)
        try:
            bytearray(2**30)
        except MemoryError:
            print("refused", resource.getrlimit(resource.RLIMIT_CORE))
        worker.limit_memory(2**31)
        print(resource.getrlimit(resource.RLIMIT_AS))
        """
    )
    assert printed.splitlines() == ["refused (0, 0)", str((2**30, 2**30))]
