"""The unit of systemd: systemd's own tools are content with it, and the sidecar does under its
filters of system calls what it does without. No systemd is in charge here: what
mounts, users and control groups do is checked as settings, not as deeds.
"""

import contextlib
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

from monitor.config import Config
from monitor.store.state import state_folder
from monitor.v1 import perception_monitor_pb2_grpc
from tests.components import program
from tests.deploy.confined import allowed, settings
from tests.deploy.scraping import ROOT, free_port, printed
from tests.foreign_client import in_frame, in_header

FOLDER = ROOT / "deploy" / "systemd"
UNIT, NETWORK = FOLDER / "calibration-monitor.service", FOLDER / "network.conf"
CONFINED = ROOT / "tests" / "deploy" / "confined.py"
PROGRAM = "/opt/calibration-monitor/bin/calibration-monitor"
PATIENCE = 60  # s; far above what anything here takes
# Of ten, by systemd's own count: 1.2 with systemd 252. A service without a setting has 9.6.
MOST_EXPOSURE = 1.5


def only(name: str) -> str:
    (value,) = settings(UNIT)[name]
    return value


# ---- what systemd's tools say


@pytest.mark.components
@pytest.mark.parametrize("wrong", ["", "ProtectSystm=strict\n"])
def test_systemd_finds_nothing_wrong_with_unit_and_drop_in_but_what_is_put_there(tmp_path, wrong):
    unit = tmp_path / UNIT.name
    # It looks first whether the program is there.
    text = UNIT.read_text("utf-8").replace(PROGRAM, str(Path(sys.executable).resolve()))
    unit.write_text(text, "utf-8")
    (tmp_path / f"{UNIT.name}.d").mkdir()
    drop_in = NETWORK.read_text("utf-8") + wrong
    (tmp_path / f"{UNIT.name}.d" / "network.conf").write_text(drop_in, "utf-8")
    command = [program("systemd-analyze"), "verify", "--man=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    said = done.stdout + done.stderr
    assert "'ProtectSystm'" in said if wrong else (done.returncode, said) == (0, "")


@pytest.mark.components
def test_the_unit_exposes_little():
    options = ("security", "--offline=true", "--no-pager", str(UNIT))
    text = printed(program("systemd-analyze"), *options)
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", text)
    assert found, text
    assert float(found[1]) <= MOST_EXPOSURE


@pytest.mark.components
def test_the_filter_keeps_out_what_it_should_and_leaves_what_fits_need():
    names = allowed(settings(UNIT)["SystemCallFilter"])
    assert {"setpriority", "sched_setscheduler", "prlimit64", "prctl", "fdatasync"} <= names
    out = {"mount", "ptrace", "chown", "bpf", "reboot", "init_module", "clock_settime"}
    assert out.isdisjoint(names)


# ---- what the settings must be, for the sidecar that there is


def test_the_unit_starts_the_program_where_it_may_write_with_the_time_and_files_it_needs():
    start = f"{PROGRAM} serve --config /etc/calibration-monitor/sidecar.toml"
    assert only("ExecStart") == start
    assert settings(UNIT)["ExecReload"] == [f"{start} --check", "/bin/kill -HUP $MAINPID"]
    config, may_be_written = Config(), f"/var/lib/{only('StateDirectory')}"
    given = {"STATE_DIRECTORY": may_be_written}
    folder = state_folder(config.state.folder, config.state_name, given)
    assert folder == Path(may_be_written, "50051")
    # What the version before kept is found, too.
    assert only("WorkingDirectory") == may_be_written
    assert only("ProtectSystem") == "strict"
    waited = re.fullmatch(r"(\d+)s", only("TimeoutStopSec"))
    assert waited is not None
    assert int(waited[1]) >= 2 * Config().server.grace_seconds + 10
    assert int(only("LimitNOFILE")) >= 2 * Config().server.max_connections
    # A fit that is out of memory does not take the sidecar with it.
    assert (only("OOMPolicy"), only("KillMode")) == ("continue", "mixed")


def test_credentials_are_where_the_drop_in_says_they_are():
    text = NETWORK.read_text("utf-8")
    loaded = {value.partition(":")[0] for value in settings(NETWORK)["LoadCredential"]}
    named = set(re.findall(rf'= "/run/credentials/{re.escape(UNIT.name)}/([^"]+)"', text))
    assert named == loaded


# ---- a real sidecar


class Notified:
    """Runs a sidecar that tells its state to a socket of ours."""

    def __init__(self, bound: socket.socket, folder: Path, name: str, *before: str) -> None:
        self.bound, self.grpc, self.http = bound, free_port(), free_port()
        self.config, self.log = folder / "sidecar.toml", folder / "log.txt"
        self.write()
        serve = ("-m", "monitor", "serve", "--config", str(self.config))
        self.process = subprocess.Popen(
            [sys.executable, *before, *serve],
            cwd=folder,
            env={
                **os.environ,
                "NOTIFY_SOCKET": name,
                "STATE_DIRECTORY": str(folder / "state"),
                "WATCHDOG_USEC": "400000",
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
        """Returns the datagrams up to the first that is wanted, that included."""
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
        """Returns the assignments of all changes of state up to one that begins so."""
        found = self.hears(lambda message: message.startswith(last))
        return [text for text in found if text.startswith(("READY", "RELOADING", "STOPPING"))]

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert len(self.states("STOPPING=1")) == 1
        assert self.process.wait(PATIENCE) == 0


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
            assert re.fullmatch(r"(?s)RELOADING=1\nMONOTONIC_USEC=\d+(\n.*)?", reloading)
            # Whether the configuration could be used or not, the sidecar serves.
            assert again.startswith("READY=1\nSTATUS=")
        sidecar.end()


def confined() -> tuple[str, ...]:
    """Gives arguments that make the interpreter another one, under the filters of the unit."""
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
        sidecar.end()
    log = sidecar.log.read_text("utf-8")
    assert os.strerror(1) not in log, log
    kept = {path.name for path in (tmp_path / "state" / str(sidecar.grpc)).iterdir()}
    assert {"state.db", "ledger.db"} <= kept


REFUSED = """
import mmap, os, socket

def refused(call):
    try:
        call()
    except OSError:
        return True

assert refused(lambda: mmap.mmap(-1, 4096, prot=7)), "memory that is written and run"
assert refused(lambda: os.chown(".", 0, 0)), "another owner"
assert refused(lambda: socket.socket(socket.AF_NETLINK)), "another family"
"""


@pytest.mark.components
def test_the_filters_of_the_unit_refuse_what_they_should():
    printed(sys.executable, *confined(), "-c", REFUSED)
