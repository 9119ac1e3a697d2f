"""Fits beside the loop: whatever becomes of the process, an outcome or a FitFailed, and no rest."""

import asyncio
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from monitor.pipeline.fits import process
from monitor.pipeline.fits.messages import MOST_BYTES, outcome_bytes
from monitor.pipeline.fits.process import fit
from monitor.promotion.fits import FitFailed, FitJob, fit_slices
from tests.edges.fit_processes import (
    PATIENCE,
    SOON,
    children,
    eventually,
    fits,
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
    whole = """
        import os, signal, sys, time
        def read():
            length = int.from_bytes(sys.stdin.buffer.read(8), "little")
            return sys.stdin.buffer.read(length)
        say = sys.stdout.buffer.write
    """
    return sys.executable, "-c", textwrap.dedent(whole) + textwrap.dedent(program)


def failed(program: str, job: FitJob | None = None, timeout_s: float = PATIENCE) -> str:
    """What the failure of such a worker is called."""
    with pytest.raises(FitFailed) as caught:
        asyncio.run(fit(job or quick_job(), timeout_s, mad(program)))
    return str(caught.value)


@pytest.mark.parametrize("method", ["variance-scaling", "covariance-scaling", "gp-normal"])
def test_two_fits_after_each_other_are_equal_bit_for_bit_and_as_if_fitted_here(method):
    job = job_of(method, {"car": rows_of(1), "van": rows_of(2), "bad": rows_of(3, tracks=0)})

    async def both():
        return [await fit(job, PATIENCE) for _ in range(2)]

    first, second = asyncio.run(both())
    assert set(first.fitted) == {"car", "van"}
    assert set(first.refused) == {"bad"}
    assert outcome_bytes(first) == outcome_bytes(second) == outcome_bytes(fit_slices(job))


def test_fits_of_different_jobs_at_once_do_not_meet():
    jobs = [job_of("variance-scaling", {f"s{i}": rows_of(i)}) for i in range(3)]

    async def together():
        return await asyncio.gather(*(fit(job, PATIENCE) for job in jobs))

    for job, outcome in zip(jobs, asyncio.run(together()), strict=True):
        assert outcome.fitted == fit_slices(job).fitted


def test_a_crash_is_told_by_its_signal():
    assert failed("os.abort()") == "the fit ended with signal SIGABRT: it did not say why"


def test_a_process_that_is_killed_is_told_by_its_signal():
    program = (
        "print('on my way', file=sys.stderr, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    assert failed(program) == "the fit ended with signal SIGKILL: on my way"


def test_an_exit_code_comes_with_the_last_line_of_what_was_said():
    program = """
        read()
        print('warning', file=sys.stderr)
        print('ValueError: no\\x1b room\\n\\n', file=sys.stderr)
        sys.exit(3)
    """
    assert failed(program) == "the fit ended with exit code 3: ValueError: no  room"


def test_however_much_is_said_of_a_failure_only_the_end_is_kept():
    words = failed("sys.stderr.write('a' * 10**7 + 'end')\nsys.exit(1)")
    assert words.endswith("aaend")
    assert len(words) < 600


@pytest.mark.parametrize("reads", ["", "read()"])
def test_a_process_that_hangs_is_ended_and_gone(tmp_path, reads):
    told = tmp_path / "pid"
    program = f"""
        {reads}
        open({str(told)!r}, "w").write(str(os.getpid()))
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep({PATIENCE})
    """
    words = failed(program, long_job(), timeout_s=3)
    assert words.startswith("the fit took longer than 3 s and was ended: allow it more")
    assert not is_there(int(told.read_text("ascii")))


def test_a_process_that_closes_its_output_and_stays_is_ended():
    program = f"read(); os.close(1); os.close(2); time.sleep({PATIENCE})"
    assert "took longer than 1 s" in failed(program, timeout_s=1)


def test_a_process_that_leaves_another_behind_with_its_pipes_is_ended_with_it(tmp_path):
    told = tmp_path / "pid"
    program = f"""
        read()
        child = os.fork()
        if child:
            open({str(told)!r}, "w").write(str(child))
            os._exit(0)
        time.sleep({PATIENCE})
    """
    assert "took longer than 3 s" in failed(program, timeout_s=3)
    child = int(told.read_text("ascii"))
    assert eventually(lambda: not is_there(child), SOON)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("read()", "has 0 slices"),
        ("", "has 0 slices"),
        ("read(); say(b'Segmentation fault (core dumped)')", "is no JSON"),
        ("say(os.urandom(100_000))", "is no JSON"),
        (f"read(); say({GOOD!r}[:-40])", "is no JSON"),
        (
            f"read(); say({GOOD!r}.replace(b'\"van\"', b'\"bus\"'))",
            "and no other",
        ),
        (
            f"read(); say(b''.join({GOOD!r}.splitlines(True)[:-1]))",
            "has 1 slices",
        ),
        (f"import re; say(re.sub(rb'1[.]\\d+', b'NaN', {GOOD!r}))", "scale[0]' is nan"),
    ],
)
def test_what_is_no_outcome_is_a_failure_that_says_why(program, words):
    said = failed(program)
    assert said.startswith("the fit returned what cannot be used: ")
    assert words in said


def test_output_without_an_end_is_cut_off_and_the_process_gone(tmp_path):
    told = tmp_path / "pid"
    program = f"""
        open({str(told)!r}, "w").write(str(os.getpid()))
        while True:
            say(b"x" * 2**20)
    """
    assert failed(program) == f"the fit returned more than {MOST_BYTES} bytes and was ended."
    assert not is_there(int(told.read_text("ascii")))


def test_a_job_that_nobody_reads_to_its_end_is_no_trouble_where_the_outcome_is_there():
    job = job_of("variance-scaling", {name: rows_of(i, k=7) for i, name in enumerate(["car", "v"])})
    good = outcome_bytes(fit_slices(job))
    outcome = asyncio.run(fit(job, PATIENCE, mad(f"say({good!r})")))
    assert outcome_bytes(outcome) == good


@pytest.mark.parametrize("command", [("/no/such/program",), ("/etc/passwd",)])
def test_what_cannot_be_started_is_a_failure_that_says_why(command):
    with pytest.raises(FitFailed, match=r"could not be started: .*(No such file|Permission)"):
        asyncio.run(fit(quick_job(), PATIENCE, command))


def test_more_rows_than_can_be_sent_are_a_failure_that_says_so(monkeypatch):
    monkeypatch.setattr(process, "MOST_JOB_BYTES", 1000)
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


@pytest.mark.parametrize("turns", [1, 2, 3, 5, 8, 20])
def test_who_is_cancelled_while_it_starts_leaves_no_process(turns):
    async def cancelled() -> None:
        fitting = asyncio.create_task(fit(quick_job(), PATIENCE))
        for _ in range(turns):
            await asyncio.sleep(0.001)
        fitting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fitting

    asyncio.run(cancelled())


def test_frames_pass_while_a_large_job_is_handed_over():
    job = job_of("variance-scaling", {"car": rows_of(1, tracks=500, k=7)})
    turns = 0

    async def counted() -> None:
        nonlocal turns
        fitting = asyncio.create_task(fit(job, PATIENCE, mad("read()")))
        while not fitting.done():
            turns += 1
            await asyncio.sleep(0)
        with pytest.raises(FitFailed):
            await fitting

    asyncio.run(counted())
    # A turn for every 64 kB, which is what a pipe holds.
    assert turns > job.slices["car"].estimates.covariance.nbytes / 2**16


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
        from monitor.pipeline.fits.process import fit
        from tests.edges.fit_processes import long_job
        asyncio.run(fit(long_job(), 100))
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
