"""The unit of systemd: systemd's own tools are content with it, and it fits the sidecar. No systemd
is in charge here: what mounts, users and control groups do is checked as settings, not as deeds.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from monitor.config import Config
from monitor.store.state import state_folder
from tests.components import program
from tests.deploy.confined import allowed, settings
from tests.deploy.scraping import printed
from tests.served import ROOT

FOLDER = ROOT / "deploy" / "systemd"
UNIT, NETWORK = FOLDER / "calibration-monitor.service", FOLDER / "network.conf"
PROGRAM = "/opt/calibration-monitor/bin/calibration-monitor"
PATIENCE = 30  # s; far above what anything here takes
# Of ten, by systemd's own count: 1.2 with systemd 252. A service without a setting has 9.6.
MOST_EXPOSURE = 1.5


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program("systemd-analyze"), *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def runnable(folder: Path, text: str) -> Path:
    """The unit as a file whose program is there, which is what systemd looks at first."""
    unit = folder / UNIT.name
    unit.write_text(text.replace(PROGRAM, str(Path(sys.executable).resolve())), "utf-8")
    return unit


def seconds(name: str) -> float:
    (value,) = settings(UNIT)[name]
    found = re.fullmatch(r"(\d+)(s|min)", value)
    assert found, value
    number, scale = found.groups()
    return float(number) * (60 if scale == "min" else 1)


def only(name: str) -> str:
    (value,) = settings(UNIT)[name]
    return value


# ---- what systemd's tools say


@pytest.mark.components
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path):
    done = analyze("verify", "--man=no", str(runnable(tmp_path, UNIT.read_text("utf-8"))))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.components
def test_systemd_finds_nothing_wrong_with_the_unit_and_its_drop_in(tmp_path):
    unit = runnable(tmp_path, UNIT.read_text("utf-8"))
    folder = tmp_path / f"{UNIT.name}.d"
    folder.mkdir()
    (folder / NETWORK.name).write_text(NETWORK.read_text("utf-8"), "utf-8")
    done = analyze("verify", "--man=no", str(unit))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.components
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("ProtectSystm=strict", "'ProtectSystm'"),
        ("WatchdogSec=soon", "Failed to parse sec value, ignoring: soon"),
        ("OOMPolicy=perhaps", "Failed to parse OOM policy, ignoring: perhaps"),
    ],
)
@pytest.mark.parametrize("place", ["unit", "drop-in"])
def test_systemd_finds_what_is_wrong(tmp_path, wrong, said, place):
    text = UNIT.read_text("utf-8")
    if place == "unit":
        text = text.replace("[Service]\n", f"[Service]\n{wrong}\n")
    else:
        folder = tmp_path / f"{UNIT.name}.d"
        folder.mkdir()
        (folder / "wrong.conf").write_text(f"[Service]\n{wrong}\n", "utf-8")
    done = analyze("verify", "--man=no", str(runnable(tmp_path, text)))
    assert said in done.stderr


@pytest.mark.components
def test_the_unit_exposes_little():
    text = printed(
        program("systemd-analyze"),
        *("security", "--offline=true", "--no-pager", str(UNIT)),
    )
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", text)
    assert found, text
    assert float(found[1]) <= MOST_EXPOSURE


# ---- what the settings must be, for the sidecar that there is


def test_the_unit_starts_the_program_and_the_configuration_of_the_image():
    start = f"{PROGRAM} serve --config /etc/calibration-monitor/sidecar.toml"
    assert only("ExecStart") == start
    assert settings(UNIT)["ExecReload"] == [f"{start} --check", "/bin/kill -HUP $MAINPID"]


def test_what_is_kept_is_in_the_folder_that_may_be_written():
    config, folder = Config(), f"/var/lib/{only('StateDirectory')}"
    found = state_folder(config.state.folder, config.state_name, {"STATE_DIRECTORY": folder})
    assert found is not None and found.parent == Path(folder)
    # Files of the version before, which are taken over, were relative to it.
    assert only("WorkingDirectory") == folder
    assert only("ProtectSystem") == "strict"


def test_the_end_is_waited_for_longer_than_frames_in_work_are():
    assert seconds("TimeoutStopSec") >= 2 * Config().server.grace_seconds + 10


def test_there_are_descriptors_for_all_connections_and_the_ledger():
    assert int(only("LimitNOFILE")) >= 2 * Config().server.max_connections


def test_a_fit_that_is_out_of_memory_does_not_take_the_sidecar_with_it():
    assert only("OOMPolicy") == "continue"
    assert only("KillMode") == "mixed"


def test_credentials_are_where_the_drop_in_says_they_are():
    text = NETWORK.read_text("utf-8")
    loaded = {value.partition(":")[0] for value in settings(NETWORK)["LoadCredential"]}
    named = set(re.findall(rf'= "/run/credentials/{re.escape(UNIT.name)}/([^"]+)"', text))
    assert named == loaded


@pytest.mark.components
def test_the_filter_keeps_out_what_it_should_and_leaves_what_fits_need():
    names = allowed(settings(UNIT)["SystemCallFilter"])
    assert {"mount", "ptrace", "chown", "bpf", "reboot", "init_module", "clock_settime"}.isdisjoint(
        names
    )
    assert {"setpriority", "sched_setscheduler", "prlimit64", "prctl", "fdatasync"} <= names
