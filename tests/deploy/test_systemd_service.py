"""The sidecar as systemd would have it: it tells its state, and does under the unit's filters of
system calls, its fits included, what it does without.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from monitor.v1 import perception_monitor_pb2_grpc
from tests.components import program
from tests.deploy.scraping import free_port, printed
from tests.foreign_client import in_frame, in_header
from tests.served import ROOT

UNIT = ROOT / "deploy" / "systemd" / "calibration-monitor.service"
CONFINED = ROOT / "tests" / "deploy" / "confined.py"
PATIENCE = 60  # s; far above what anything here takes
# s; a fit has the lowest priority, and gets next to nothing of a machine that is busy.
FIT_PATIENCE = 240


class Notified:
    """A sidecar that tells its state to a socket of ours."""

    def __init__(self, bound: socket.socket, folder: Path, name: str, *before: str) -> None:
        self.bound, self.grpc, self.http = bound, free_port(), free_port()
        self.config, self.log = folder / "sidecar.toml", folder / "log.txt"
        self.write()
        self.process = subprocess.Popen(
            [
                *(sys.executable, *before, "-m", "monitor", "serve"),
                *("--config", str(self.config)),
            ],
            cwd=folder,
            env={
                **os.environ,
                "NOTIFY_SOCKET": name,
                "WATCHDOG_USEC": "400000",
                "STATE_DIRECTORY": str(folder / "kept"),
                "PYTHONPATH": str(ROOT),
            },
            stdout=subprocess.DEVNULL,
            stderr=self.log.open("wb"),
        )

    def write(self, more: str = "") -> None:
        self.config.write_text(
            textwrap.dedent(f"""
            [server]
            grpc_address = "127.0.0.1:{self.grpc}"
            http_address = "127.0.0.1:{self.http}"
            {more}
            """),
            "utf-8",
        )

    def hears(self, wanted: Callable[[str], bool]) -> list[str]:
        """Datagrams up to the first that is wanted, that included."""
        found: list[str] = []
        silent = 0
        while not (found and wanted(found[-1])):
            try:
                found.append(self.bound.recv(4096).decode())
            except TimeoutError:
                silent += 1
                ended = self.process.poll() is not None
                assert not ended and silent < PATIENCE, f"{found}\n{self.log.read_text('utf-8')}"
            assert len(found) < 1000
        return found

    def states(self, last: str) -> list[str]:
        """The assignments of all changes of state up to one that begins so."""
        found = self.hears(lambda message: message.startswith(last))
        return [text for text in found if text.startswith(("READY", "RELOADING", "STOPPING"))]


@contextlib.contextmanager
def notified(folder: Path, *before: str) -> Iterator[Notified]:
    name = f"@calibration-monitor-{os.getpid()}-{folder.name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind("\0" + name[1:])
        bound.settimeout(1)
        sidecar = Notified(bound, folder, name, *before)
        try:
            yield sidecar
        finally:
            if sidecar.process.poll() is None:
                sidecar.process.kill()
            sidecar.process.wait(PATIENCE)
    assert "Traceback" not in sidecar.log.read_text("utf-8")


def test_systemd_is_told_of_start_life_reloads_and_end(tmp_path):
    with notified(tmp_path) as sidecar:
        (ready,) = sidecar.states("READY=1\nSTATUS=")
        # READY is what others wait for: both ports are open.
        with urllib.request.urlopen(f"http://127.0.0.1:{sidecar.http}/readyz", timeout=PATIENCE):
            pass
        with grpc.insecure_channel(f"127.0.0.1:{sidecar.grpc}") as channel:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=PATIENCE
            )
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        assert ready.count("\n") == 1

        for _ in range(3):
            sidecar.hears(lambda message: message == "WATCHDOG=1")

        for change in ("grace_seconds = 3.0", "grace_seconds = -3.0"):
            sidecar.write(change)
            sidecar.process.send_signal(signal.SIGHUP)
            reloading, again = sidecar.states("READY=1")
            assert re.fullmatch(
                r"RELOADING=1\nMONOTONIC_USEC=\d+(\n.*)?", reloading, flags=re.DOTALL
            )
            # Whether the configuration could be used or not, the sidecar serves.
            assert again.startswith("READY=1\nSTATUS=")

        sidecar.process.send_signal(signal.SIGTERM)
        (stopping,) = sidecar.states("STOPPING=1")
        assert stopping.startswith("STOPPING=1")
        assert sidecar.process.wait(PATIENCE) == 0


def confined() -> tuple[str, ...]:
    """Arguments of the interpreter that make it another one, under the filters of the unit."""
    program("systemd-analyze")
    return str(CONFINED), str(UNIT), sys.executable


@pytest.mark.components
def test_the_sidecar_lives_under_the_filters_of_the_unit(tmp_path):
    with notified(tmp_path, *confined()) as sidecar:
        sidecar.hears(lambda message: message.startswith("READY=1"))
        with grpc.insecure_channel(f"127.0.0.1:{sidecar.grpc}") as channel:
            process = perception_monitor_pb2_grpc.PerceptionMonitorStub(channel).Process
            sent = [in_header("lidar"), in_frame(0), in_frame(1)]
            assert len(list(process(iter(sent), timeout=PATIENCE))) == len(sent)
        with urllib.request.urlopen(f"http://127.0.0.1:{sidecar.http}/metrics", timeout=PATIENCE):
            pass
        sidecar.process.send_signal(signal.SIGTERM)
        assert sidecar.process.wait(PATIENCE) == 0
    log = sidecar.log.read_text("utf-8")
    assert os.strerror(1) not in log, log
    # It could write what it keeps, SQLite's files among it.
    assert list(tmp_path.glob("**/state.db")), log


FIT = """
import asyncio, ctypes, json, mmap, os, socket, sys
from monitor.pipeline.fits.process import fit
from tests.edges.fit_processes import quick_job

def refused(call):
    try:
        call()
    except OSError:
        return True
    return False

print(json.dumps({
    "refused": {
        "memory that is written and run": refused(lambda: mmap.mmap(-1, 4096, prot=7)),
        "another owner": refused(lambda: os.chown(".", 0, 0)),
        "another family": refused(lambda: socket.socket(socket.AF_NETLINK)),
    },
    # What ctypes may need to be imported at all.
    "callback": ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 3)(),
    "fit": type(asyncio.run(fit(quick_job(), float(sys.argv[1])))).__name__,
}))
"""


@pytest.mark.components
@pytest.mark.timeout(FIT_PATIENCE + 30)
def test_a_fit_is_done_under_the_filters_of_the_unit_and_these_refuse_what_they_should():
    text = printed(
        *(sys.executable, *confined()),
        *("-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{FIT}", str(FIT_PATIENCE)),
        within_s=FIT_PATIENCE + 15,
    )
    found = json.loads(text.splitlines()[-1])
    assert set(found["refused"].values()) == {True}
    assert (found["callback"], found["fit"]) == (3, "FitOutcome")
