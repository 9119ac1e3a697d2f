"""A recorded drive as arrays and as a file, and verbs as functions that a test may call."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from monitor.cli import main
from tests.commands.recordings import csv_file, recorded


@pytest.fixture(scope="module")
def rows():
    return recorded()


@pytest.fixture(scope="module")
def drive(rows, tmp_path_factory):
    return csv_file(tmp_path_factory.mktemp("drive") / "drive.csv.gz", rows)


@pytest.fixture
def evaluate(capsys):
    """The object that evaluate prints."""

    def evaluated(*words):
        assert main(["evaluate", *map(str, words), "--json"]) == 0
        said = capsys.readouterr()
        assert said.err == ""
        return json.loads(said.out)

    return evaluated


@pytest.fixture
def refusal(capsys):
    """The one line that evaluate says when it cannot."""

    def refused(*words):
        assert main(["evaluate", *map(str, words)]) == 1
        said = capsys.readouterr()
        assert said.out == ""
        (line,) = said.err.splitlines()
        assert line.startswith("calibration-monitor evaluate: ")
        return line

    return refused


@pytest.fixture
def run(capsys):
    """A verb that does its work; what it prints."""

    def done(*words):
        assert main([str(word) for word in words]) == 0
        said = capsys.readouterr()
        assert said.err == ""
        return said.out

    return done


@pytest.fixture
def refused(capsys):
    """The one line of a verb that does not do its work."""

    def line_of(*words):
        assert main([str(word) for word in words]) == 1
        said = capsys.readouterr()
        assert said.out == ""
        (line,) = said.err.splitlines()
        assert line.startswith(f"calibration-monitor {words[0]}: ")
        return line

    return line_of


@pytest.fixture
def fitted(run, tmp_path):
    """The path of a model fitted on a file."""
    numbers = itertools.count()

    def fit(file, *words):
        path = tmp_path / f"model{next(numbers)}.json"
        run("fit", file, *words, "--output", path)
        return path

    return fit


@pytest.fixture
def applied(run, tmp_path):
    """The archive that apply writes, its arrays by name."""
    numbers = itertools.count()

    def apply(model, file, *words):
        path = tmp_path / f"recalibrated{next(numbers)}.npz"
        run("apply", model, file, *words, "--output", path)
        with np.load(path, allow_pickle=False) as archive:
            return path, dict(archive)

    return apply
