"""The image, built and run: on a stand-in for the published base, which proves the steps of the
Dockerfile and not that base. As root, with buildah and debootstrap: `make test-image`.
"""

from __future__ import annotations

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


# ---- what it is made of


def test_both_lock_files_install_from_wheels_alone_on_both_architectures():
    subprocess.check_output([ROOT / "deploy/image/wheels"], text=True, timeout=300)


def test_it_says_its_version_and_serves_by_default_as_a_user_without_rights(image: Image):
    labels, title = image.config["Labels"], "org.opencontainers.image."
    assert labels[title + "version"] == monitor.__version__
    assert labels[title + "revision"] == image.environment["CALIBRATION_MONITOR_REVISION"]
    assert image.config["User"] == f"{USER}:{USER}"
    assert [*image.config["Entrypoint"], *image.config["Cmd"]] == [
        *("calibration-monitor", "serve", "--config", CONFIGURATION)
    ]
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


# ---- how it runs


def test_it_is_healthy_cannot_be_written_to_and_misses_no_dependency(own_pod: Pod):
    container = own_pod.start("serve", "--config", CONFIGURATION)
    own_pod.wait_ready()
    assert container.health_check() == 0
    for path in ("/trial", f"/{PACKAGES}/monitor/trial", "/etc/calibration-monitor/trial"):
        assert "Read-only file system" in container.execute("touch", path).stderr
    for path in ("/tmp/trial", f"{STATE}/trial"):
        assert container.execute("touch", path).returncode == 0
    walk = (
        "import importlib, pkgutil, monitor\n"
        "for found in pkgutil.walk_packages(monitor.__path__, 'monitor.'):\n"
        "    if not found.name.endswith('__main__'):\n"
        "        importlib.import_module(found.name)\n"
    )
    walked = container.execute("python", "-c", walk)
    assert walked.returncode == 0, walked.stderr
    assert {container.status(key) for key in ("Uid", "Gid")} == {"\t".join([str(USER)] * 4)}
    assert container.status("CapEff") == container.status("CapPrm") == "0" * 16
    assert container.stop() == 0
    log = container.log.read_text("utf-8")
    assert "Traceback" not in log and "Read-only" not in log and "denied" not in log, log
    assert (own_pod.state / "50051" / "state.db").is_file()
    # The same check where nothing serves on that port.
    other = own_pod.start(config='[server]\nhttp_address = "127.0.0.1:9999"\n')
    own_pod.wait_ready(9999)
    assert other.health_check() != 0
    assert other.stop() == 0


def test_a_configuration_that_is_mounted_is_in_force(own_pod: Pod):
    wrong = own_pod.start(config="[server]\nno_such_key = 1\n")
    assert wrong.starter.wait(30) != 0
    assert "no_such_key" in wrong.log.read_text("utf-8")
