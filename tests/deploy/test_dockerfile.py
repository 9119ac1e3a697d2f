"""The Dockerfile and what it is built from, as text: what a build would find out minutes later."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import monitor

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
LOCKS = {
    "requirements.lock": PROJECT["project"]["dependencies"],
    "deploy/image/build.lock": PROJECT["build-system"]["requires"],
}
PINNED = re.compile(
    r"(?P<name>[\w.-]+)==(?P<version>\S+)(?P<hashes>(?: --hash=sha256:[0-9a-f]{64})+)"
)


def instructions() -> list[tuple[str, str]]:
    """Lists each instruction and what follows it, on one line."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines) if word]


def of_last_stage(wanted: str) -> list[str]:
    words = instructions()
    start = max(i for i, (word, _) in enumerate(words) if word == "FROM")
    return [rest for word, rest in words[start:] if word == wanted]


def pins(lock: str) -> dict[str, re.Match[str]]:
    """Finds what a lock file pins, by name; nothing else may be in it."""
    text = (ROOT / lock).read_text("utf-8")
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    found = [PINNED.fullmatch(line) for line in re.sub(r" \\\n\s*", " ", text).splitlines()]
    assert found and all(found), f"{lock} has lines without a pin or without hashes"
    return {canonicalize_name(pin["name"]): pin for pin in found if pin}


def left_out() -> set[str]:
    lines = (ROOT / "deploy/image/left-out.txt").read_text("utf-8").splitlines()
    return {canonicalize_name(line) for line in lines if line and not line.startswith("#")}


# ---- the Dockerfile


def test_hadolint_has_nothing_to_say():
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, ROOT / "Dockerfile"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_stage_starts_from_a_pinned_base_whose_name_the_stand_in_has():
    (base,) = [rest for word, rest in instructions() if (word, rest[:5]) == ("ARG", "BASE=")]
    assert re.fullmatch(r"BASE=docker\.io/library/python:3\.11\.\d+-slim-[a-z]+", base)
    stages = [rest.split(" ")[0] for word, rest in instructions() if word == "FROM"]
    assert stages == ["${BASE}"] * 2
    script = (ROOT / "deploy/image/build").read_text("utf-8")
    (pattern,) = re.findall(r"sed -n '(.*?)' Dockerfile", script)
    found = subprocess.check_output(["sed", "-n", pattern, ROOT / "Dockerfile"], text=True)
    assert found.strip() == base.removeprefix("BASE=")


def test_the_user_is_not_root_no_shell_stands_before_the_program_and_state_is_in_the_volume():
    for instruction in ("ENTRYPOINT", "CMD", "VOLUME"):
        (form,) = of_last_stage(instruction)
        assert isinstance(json.loads(form), list), instruction
    (check,) = of_last_stage("HEALTHCHECK")
    command = json.loads(check.partition("CMD ")[2])
    assert command[0] == "/opt/calibration-monitor/bin/python"
    assert "http://127.0.0.1:9464/readyz" in command[-1]
    assert of_last_stage("USER") == ["10001:10001"]
    (environment,) = of_last_stage("ENV")
    (volume,) = json.loads(of_last_stage("VOLUME")[0])
    assert f"STATE_DIRECTORY={volume}" in environment.split()
    # That of the version before is found there.
    assert of_last_stage("WORKDIR") == [volume]
    assert f"VERSION={monitor.__version__}" in of_last_stage("ARG")


def test_nothing_but_the_package_reaches_the_builder():
    kept = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert kept[1] == "*", "everything is left out, but for what follows"
    copied = {
        source
        for word, rest in instructions()
        if word == "COPY" and "--from" not in rest
        for source in rest.split()[:-1]
        if not source.startswith("--")
    }
    assert {line[1:] for line in kept if line.startswith("!")} == copied
    for source in copied:
        assert (ROOT / source).exists(), source


# ---- the lock files


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_file_pins_what_the_project_asks_for_and_names_no_place_to_download_from(lock):
    text = (ROOT / lock).read_text("utf-8")
    assert "://" not in text and "--index" not in text and "--find-links" not in text
    pinned = pins(lock)
    for wanted in map(Requirement, LOCKS[lock]):
        pin = pinned.get(canonicalize_name(wanted.name))
        fits = pin and wanted.specifier.contains(Version(pin["version"]))
        assert fits, f"{lock} does not pin {wanted}: run `make lock`"
    assert left_out() and not left_out() & pinned.keys()


def test_pins_bring_only_what_they_need_among_themselves():
    # The image installs without looking for more.
    script = (
        "import importlib.metadata as m, json, sys\n"
        "print(json.dumps({n: m.requires(n) or [] for n in sys.argv[1:]}))"
    )
    pinned = pins("requirements.lock")
    said = subprocess.check_output([sys.executable, "-c", script, *pinned], text=True)
    for name, needs in json.loads(said).items():
        for need in map(Requirement, needs):
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                known = canonicalize_name(need.name)
                assert known in pinned.keys() | left_out(), f"{name} needs {known}: run `make lock`"
