"""What is missing to run all tests is named with the packages that have it."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.components import PACKAGES, main

README = (Path(__file__).parents[1] / "README.md").read_text("utf-8")


def test_what_is_missing_is_one_line_to_install_it(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
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
