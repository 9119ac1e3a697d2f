"""A recorded drive as arrays and as a file, and verbs as functions that a test may call."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest

from tests.commands import spoken
from tests.commands.recordings import csv_file, recorded


@pytest.fixture(scope="module")
def rows():
    return recorded()


@pytest.fixture(scope="module")
def drive(rows, tmp_path_factory):
    return csv_file(tmp_path_factory.mktemp("drive") / "drive.csv.gz", rows)


@pytest.fixture
def evaluate():
    """The object that evaluate prints."""
    return partial(spoken.found, "evaluate")


@pytest.fixture
def refusal():
    """The one line that evaluate says when it cannot."""
    return partial(spoken.refused, "evaluate")


@pytest.fixture
def run():
    """A verb that does its work; what it prints."""
    return spoken.done


@pytest.fixture
def refused():
    """The one line of a verb that does not do its work."""
    return spoken.refused


@pytest.fixture
def fitted(run, tmp_path):
    """The path of a model fitted on a file."""
    numbers = itertools.count()

    def fit(file, *words):
        path = tmp_path / f"model{next(numbers)}.json"
        run("fit", file, *words, "--no-held-out", "--output", path)
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
