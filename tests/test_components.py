"""No test runs a program unnoticed, and what is missing is named with the packages that have it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.components import PACKAGES, NotInstalled, NotMarked, main, program

README = (Path(__file__).parents[1] / "README.md").read_text("utf-8")


@pytest.fixture
def nothing_installed(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))


def test_a_test_without_the_marker_may_not_run_a_program_that_is_installed():
    with pytest.raises(NotMarked, match=r"runs sh: mark it with @pytest\.mark\.components"):
        program("sh")


@pytest.mark.components
def test_a_test_with_the_marker_fails_where_the_program_is_missing(nothing_installed):
    with pytest.raises(NotInstalled, match="apt-get install gcc libc6-dev"):
        program("gcc")


def test_what_is_missing_is_one_line_to_install_it(nothing_installed, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["components.py"])
    assert main() == 1
    assert capsys.readouterr().out == (
        "Programs are missing; on Debian: apt-get install openssl gcc libc6-dev prometheus "
        "prometheus-alertmanager nodejs npm systemd\n"
    )


def test_the_readme_names_every_package_beside_make_test_all():
    (row,) = [line for line in README.splitlines() if line.startswith("| `make test-all`")]
    named = set(row.rpartition("also ")[2].strip(" |").replace("`", "").split(", "))
    assert named == {package for packages in PACKAGES.values() for package in packages}
