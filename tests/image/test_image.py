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

# The first to need the image waits for it to be built.
pytestmark = [pytest.mark.components, pytest.mark.timeout(1500)]

USER = 10001
STATE = "/var/lib/calibration-monitor"
CONFIGURATION = "/etc/calibration-monitor/sidecar.toml"
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


# ---- how it runs


def ran(image: Image, *command: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in the tree of the image, as its user and with its environment."""
    return subprocess.run(
        ["chroot", f"--userspec={image.config['User']}", str(image.tree), *command],
        env=image.environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_no_module_misses_a_dependency_and_its_configuration_is_taken(image: Image):
    walk = (
        "import importlib, pkgutil, monitor\n"
        "for found in pkgutil.walk_packages(monitor.__path__, 'monitor.'):\n"
        "    if not found.name.endswith('__main__'):\n"
        "        importlib.import_module(found.name)\n"
    )
    for command in (("python", "-c", walk), (*image.command, "--check")):
        done = ran(image, f"/{VENV}/bin/{command[0]}", *command[1:])
        assert done.returncode == 0, done.stderr


def test_its_user_can_write_to_the_state_alone(image: Image):
    for path in ("/trial", f"/{PACKAGES}/monitor/trial", "/etc/calibration-monitor/trial"):
        assert "Permission denied" in ran(image, "/usr/bin/touch", path).stderr
    assert ran(image, "/usr/bin/touch", f"{STATE}/trial").returncode == 0
