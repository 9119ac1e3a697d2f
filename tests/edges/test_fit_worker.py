"""The process that fits: last in everything, bounded, and never there without its parent."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from monitor.pipeline.fits.messages import outcome_bytes, read_outcome
from monitor.pipeline.fits.process import WORKER
from monitor.pipeline.fits.worker import MOST_JOB_BYTES
from monitor.promotion.fits import fit_slices
from tests.edges.fit_processes import (
    PATIENCE,
    SOON,
    eventually,
    fits,
    framed,
    is_there,
    long_job,
    quick_job,
)


def python(program: str) -> str:
    """What a program prints that has the worker at hand as `worker`."""
    whole = "import os, sys\nfrom monitor.pipeline.fits import worker\n"
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
    ) as process:
        yield process
        process.kill()


def tell(worker, data: bytes) -> None:
    worker.stdin.write(data)
    worker.stdin.flush()


def test_a_job_comes_out_as_fitted_here(worker):
    job = quick_job()
    tell(worker, framed(job))
    said = worker.stdout.read()
    assert worker.wait(PATIENCE) == 0
    assert worker.stderr.read() == b""
    assert said == outcome_bytes(fit_slices(job))
    assert set(read_outcome(said, job).fitted) == {"car", "van"}


def test_its_standard_input_ends_and_so_does_it_in_the_middle_of_a_fit(worker):
    tell(worker, framed(long_job()))
    assert eventually(lambda: fits(worker.pid))
    worker.stdin.close()
    assert worker.wait(SOON) == 1


@pytest.mark.parametrize("length", [0, 3, 8, 1000])
def test_a_job_that_ends_before_its_end_is_one_line_and_exit_code_1(worker, length):
    tell(worker, framed(quick_job())[:length])
    worker.stdin.close()
    assert worker.wait(PATIENCE) == 1
    assert worker.stderr.read().startswith(b"ParentGone: the job ended ")


def test_what_is_no_job_is_one_line_and_exit_code_1(worker):
    tell(worker, (100).to_bytes(8, "little") + b"x" * 100)
    assert worker.wait(PATIENCE) == 1
    complaint = worker.stderr.read()
    assert complaint.startswith(b"InvalidDocument: 'head' is no JSON")
    assert complaint.count(b"\n") == 1


def test_a_job_larger_than_any_is_refused_before_it_is_read(worker):
    tell(worker, (MOST_JOB_BYTES + 1).to_bytes(8, "little"))
    assert worker.wait(PATIENCE) == 1
    assert b"at most 1073741824. Keep fewer tracks." in worker.stderr.read()


def test_a_worker_of_another_parent_ends_at_once():
    done = subprocess.run(
        [*WORKER, "1"], input=framed(quick_job()), capture_output=True, timeout=PATIENCE
    )
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr == f"ParentGone: the parent is {os.getpid()}, and 1 is gone\n".encode()


def test_its_parent_is_killed_and_so_is_it_though_its_input_stays_open():
    # Whoever starts it gives it our pipe, which outlives him.
    program = f"""
        import os, subprocess, time
        worker = subprocess.Popen({list(WORKER)} + [str(os.getpid())])
        print(worker.pid, flush=True)
        time.sleep({PATIENCE})
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as parent:
        assert parent.stdin is not None and parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.stdin.write(framed(long_job()))
        parent.stdin.flush()
        assert eventually(lambda: fits(pid))
        parent.kill()
        parent.wait()
        assert eventually(lambda: not is_there(pid), SOON)


def test_it_is_last_in_everything_before_it_imports_anything_large(worker):
    # It waits for its job now, and has imported what it needs for that alone.
    assert eventually(lambda: os.sched_getscheduler(worker.pid) == os.SCHED_BATCH)
    assert eventually(lambda: adjusted(worker.pid) == "1000")
    assert os.getpriority(os.PRIO_PROCESS, worker.pid) == 19
    # A kernel that does not share the processor out among sessions has no such file.
    assert of_session(worker.pid).endswith("nice 19") or not of_session(os.getpid())
    assert "numpy" not in mapped(worker.pid)
    tell(worker, framed(long_job()))
    assert eventually(lambda: "numpy" in mapped(worker.pid))


def test_a_session_that_is_not_its_own_keeps_its_priority():
    before = of_session(os.getpid())
    subprocess.run([*WORKER, "1"], capture_output=True, timeout=PATIENCE)
    assert of_session(os.getpid()) == before


def adjusted(pid: int) -> str:
    return Path(f"/proc/{pid}/oom_score_adj").read_text("ascii").strip()


def of_session(pid: int) -> str:
    file = Path(f"/proc/{pid}/autogroup")
    return file.read_text("ascii").strip() if file.exists() else ""


def mapped(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text("utf-8")


def test_interrupted_it_says_nothing(worker):
    tell(worker, framed(long_job()))
    assert eventually(lambda: fits(worker.pid))
    worker.send_signal(signal.SIGINT)
    assert worker.wait(SOON) == -signal.SIGINT
    assert worker.stderr.read() == b""


def test_a_fit_that_takes_more_memory_than_it_may_fails_alone_and_leaves_no_core():
    printed = python(
        """
        import resource
        worker.limit_memory(2**30)
        try:
            bytearray(2**30)
        except MemoryError:
            print("refused", resource.getrlimit(resource.RLIMIT_CORE))
        """
    )
    assert printed == "refused (0, 0)"


def test_memory_is_never_allowed_more_than_it_was():
    printed = python(
        """
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
        worker.limit_memory(2**31)
        print(resource.getrlimit(resource.RLIMIT_AS))
        """
    )
    assert printed == str((2**30, 2**30))


def test_what_anything_prints_does_not_spoil_the_outcome():
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import os\nfrom monitor.pipeline.fits import worker\n"
            "output = worker.own_output()\n"
            "print('by the way', flush=True)\nos.system('echo and more')\n"
            "os.write(output, b'outcome')",
        ],
        capture_output=True,
        timeout=PATIENCE,
        check=True,
    )
    assert done.stdout == b"outcome"
    assert done.stderr.split() == b"by the way and more".split()
