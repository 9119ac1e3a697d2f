"""The image, built and run: on a stand-in for the published base, which proves the steps of the
Dockerfile and not that base. As root, with buildah and debootstrap: `make test-image`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

import monitor
from tests.image.built import ROOT, Image
from tests.image.pod import CONFIGURATION, STATE, Pod

# The first to need the image waits for it to be built.
pytestmark = [pytest.mark.components, pytest.mark.timeout(1500)]

USER = 10001
VENV = "opt/calibration-monitor"
PACKAGES = f"{VENV}/lib/python3.11/site-packages"
COMPILER = re.compile(
    r"(.*-)?(gcc|g\+\+|cc|c\+\+|clang|tcc|cpp|ld(\.(bfd|gold|lld))?|as|make)(-[\d.]+)?"
)
RUNS = ("bin", "sbin", "usr/bin", "usr/sbin", "usr/local/bin", "usr/local/sbin", f"{VENV}/bin")
# A machine that is busy with other things is no reason to leave frames out, nor to give a fit up.
PATIENT = """
[server]
shed_lag_seconds = 0.0
shed_rows = 0
[promotion]
fit_timeout_seconds = 300.0
"""


@pytest.fixture(scope="session")
def tell(pytestconfig):
    """Says what was measured, also where all is well."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def say(what: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\nimage: {what}", flush=True)

    return say


# ---- what it is made of


def test_both_lock_files_install_from_wheels_alone_on_both_architectures(tell):
    tell(subprocess.check_output([ROOT / "deploy/image/wheels"], text=True, timeout=300).strip())


def test_whoever_runs_the_image_is_told_what_it_is(image: Image):
    labels = image.config["Labels"]
    title = "org.opencontainers.image."
    assert labels[title + "title"] == "calibration-monitor"
    assert labels[title + "version"] == monitor.__version__
    assert labels[title + "licenses"] == "Apache-2.0"
    assert labels[title + "description"]
    assert labels[title + "revision"] == image.environment["CALIBRATION_MONITOR_REVISION"]


def test_it_serves_by_default_as_a_user_without_rights(image: Image):
    assert image.config["User"] == f"{USER}:{USER}"
    assert image.command == ["calibration-monitor", "serve", "--config", CONFIGURATION]
    assert image.config["WorkingDir"] == STATE
    assert set(image.config["Volumes"]) == {STATE}
    assert set(image.config["ExposedPorts"]) == {"50051/tcp", "9464/tcp"}
    assert image.config["StopSignal"] == "SIGTERM"


def test_only_its_state_belongs_to_the_user(image: Image):
    owned = [
        os.path.relpath(Path(folder, name), image.tree)
        for folder, folders, files in os.walk(image.tree)
        for name in (*folders, *files)
        if os.lstat(Path(folder, name)).st_uid == USER
    ]
    assert owned == [STATE.lstrip("/")]


def test_no_compiler_and_nothing_of_the_build_is_left(image: Image):
    programs = [path for folder in RUNS for path in (image.tree / folder).iterdir()]
    assert len(programs) > 100
    assert [str(path) for path in programs if COMPILER.fullmatch(path.name)] == []
    for left in ("build", "opt/build", "root/.cache", f"{VENV}/bin/pip", f"{PACKAGES}/pip"):
        assert not (image.tree / left).exists(), left
    assert sorted(path.name for path in (image.tree / "tmp").iterdir()) == []


def test_the_package_is_there_whole_and_compiled_and_nothing_beside_it(image: Image):
    def sources(folder: Path) -> set[str]:
        return {str(path.relative_to(folder)) for path in folder.rglob("*.py")}

    installed = image.tree / PACKAGES / "monitor"
    assert sources(installed) == sources(ROOT / "monitor")
    for source in installed.rglob("*.py"):
        assert (source.parent / "__pycache__" / f"{source.stem}.cpython-311.pyc").exists(), source
    for other in ("tests", "benchmarks", "matplotlib", "PIL", "pytest", "hatchling"):
        assert not (image.tree / PACKAGES / other).exists(), other


def test_its_size_is_told(image: Image, tell):
    def megabytes(path: Path) -> int:
        words = ["du", "-sm", "--apparent-size", str(path)]
        return int(subprocess.check_output(words, text=True).split()[0])

    packed = subprocess.check_output(
        f"tar -C '{image.tree}' -cf - '{VENV}' | gzip -6 | wc -c", shell=True, text=True
    )
    whole, ours = megabytes(image.tree), megabytes(image.tree / VENV)
    tell(
        f"{whole} MB unpacked on the stand-in, {ours} MB of them ours, "
        f"{int(packed) / 1e6:.0f} MB compressed; {image.built_s:.0f} s until it was there"
    )
    assert ours < 300


# ---- how it runs


def test_frames_are_answered_a_fit_is_made_and_all_is_kept_on_a_read_only_root(own_pod: Pod):
    first = own_pod.start(config=PATIENT)
    own_pod.wait_ready()
    told = json.loads(own_pod.converse("tests.image.conversation"))
    assert told["frames"] > 50
    assert told["labelled"] > 500
    # A quarter of the variance was sent: the fit, in a process of its own, says four times as much.
    assert told["factors"], told["reasons"]
    assert all(2 < factor < 8 for factor in told["factors"]), told
    assert {first.status(key) for key in ("Uid", "Gid")} == {"\t".join([str(USER)] * 4)}
    assert first.status("CapEff") == first.status("CapPrm") == "0" * 16
    assert first.stop() == 0
    log = first.log.read_text("utf-8")
    assert f"stopped: {told['frames']} frames" in log
    assert "Traceback" not in log and "Read-only" not in log and "denied" not in log, log

    second = own_pod.start()
    own_pod.wait_ready()
    # What it had counted and decided is still there, as its own verbs say.
    kept = second.execute("calibration-monitor", "export", "--output", "/tmp/kept", "--json")
    assert json.loads(kept.stdout)["detections"] == told["labelled"], kept.stderr
    history = second.execute("calibration-monitor", "recalibrators", "history", "--json")
    assert "test" in {record["actor"] for record in json.loads(history.stdout)["records"]}
    assert second.stop() == 0


def test_root_file_system_and_package_cannot_be_written_to(own_pod: Pod):
    container = own_pod.start()
    own_pod.wait_ready()
    for path in ("/trial", f"/{PACKAGES}/monitor/trial", "/etc/calibration-monitor/trial"):
        assert "Read-only file system" in container.execute("touch", path).stderr
    for path in ("/tmp/trial", f"{STATE}/trial"):
        assert container.execute("touch", path).returncode == 0
    assert container.stop() == 0


def test_its_health_is_that_of_the_service(own_pod: Pod):
    container = own_pod.start("serve", "--config", CONFIGURATION)
    own_pod.wait_ready()
    assert container.health_check() == 0
    assert container.stop() == 0
    # The same check where nothing serves on that port.
    other = own_pod.start(config='[server]\nhttp_address = "127.0.0.1:9999"\n')
    own_pod.wait_ready(9999)
    assert other.health_check() != 0
    assert other.stop() == 0


def test_a_configuration_that_is_mounted_is_in_force(own_pod: Pod):
    wrong = own_pod.start(config="[server]\nno_such_key = 1\n")
    assert wrong.starter.wait(30) != 0
    assert "no_such_key" in wrong.log.read_text("utf-8")


def test_no_dependency_is_missed_by_any_verb(own_pod: Pod):
    container = own_pod.start()
    own_pod.wait_ready()
    walk = (
        "import importlib, pkgutil, monitor\n"
        "for found in pkgutil.walk_packages(monitor.__path__, 'monitor.'):\n"
        "    if not found.name.endswith(('__main__', 'fleet.beam', 'fleet.spark')):\n"
        "        importlib.import_module(found.name)\n"
    )
    walked = container.execute("python", "-c", walk)
    assert walked.returncode == 0, walked.stderr
    version = container.execute("calibration-monitor", "--help")
    assert version.returncode == 0, version.stderr
    assert container.stop() == 0
