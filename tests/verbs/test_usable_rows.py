"""Which rows can be used: fit and both engines of evaluate agree, say so, and never warn."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

from monitor.recalibration.selection import METHODS
from tests.verbs.documents import document
from tests.verbs.recordings import csv_file, npz_file, with_bad_covariances

WHY = (
    "refused (a covariance that is not positive definite, or a mean or truth that is not finite "
    "or beyond 1e+08)"
)


@pytest.fixture(autouse=True)
def warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture
def spoiled(rows):
    """Rows that no one can use, all with truth, and how many they are."""
    spoiled, bad = with_bad_covariances(rows)
    mean, truth = spoiled.mean.copy(), spoiled.truth.copy()
    first, second, third, fourth = np.flatnonzero(rows.labelled & ~bad)[3:7]
    mean[first, 0], mean[second, 1], truth[third, 0], mean[fourth, 3] = 1e9, np.inf, 1e200, np.nan
    return replace(spoiled, mean=mean, truth=truth), np.count_nonzero(bad) + 4


def test_fit_and_both_engines_use_the_same_rows(evaluate, fitted, spoiled, tmp_path):
    rows, unusable = spoiled
    file = npz_file(tmp_path / "drive.npz", rows)
    usable = np.count_nonzero(rows.labelled) - unusable
    model = fitted(file, "--method", "variance-scaling")
    assert document(model)["fitted_on"]["rows"] == usable
    for engine in ("exact", "streaming"):
        for words in ((), ("--model", model)):
            found = evaluate(file, "--engine", engine, *words)
            assert (found["rows"], found["rows_refused"]) == (usable, unusable)
            assert found["rows_without_truth"] == rows.n - usable - unusable


def test_rows_that_are_not_fitted_on_are_counted_with_the_reason(run, rows, spoiled, tmp_path):
    changed, unusable = spoiled
    words = ("--method", "variance-scaling", "--output", tmp_path / "model.json")
    said = run("fit", npz_file(tmp_path / "drive.npz", changed), *words)
    without = rows.n - np.count_nonzero(rows.labelled)
    assert f"not fitted on: of {rows.n} rows, {without} have no truth and {unusable} are" in said
    assert WHY in said
    assert "not fitted on" not in run("fit", npz_file(tmp_path / "sound.npz", rows), *words)


def test_where_all_rows_are_refused_that_is_said(refused, rows, tmp_path):
    far = replace(rows, mean=rows.mean + 1e9).of(rows.labelled)
    file = npz_file(tmp_path / "far.npz", far)
    words = ("--method", "variance-scaling", "--output", tmp_path / "model.json")
    counts = f"of {far.n} rows, 0 have no truth and {far.n} are {WHY}. "
    line = refused("fit", file, *words)
    assert f"cannot fit on 0 detections with ground truth: {counts}Widen the selection" in line
    for engine in ("exact", "streaming"):
        line = refused("evaluate", file, "--engine", engine)
        assert f"nothing to evaluate: {counts}Select rows with ground truth." in line


@pytest.mark.parametrize("method", METHODS)
def test_rows_that_cannot_be_used_disturb_no_method(
    evaluate, applied, fitted, rows, spoiled, tmp_path, method
):
    changed, unusable = spoiled
    changed.truth[np.flatnonzero(rows.labelled)[:2], 0] = np.inf, -np.inf
    dimensions = ("--dimensions", "x,y")
    model = fitted(csv_file(tmp_path / "sound.csv", rows), *dimensions, "--method", method)
    file = npz_file(tmp_path / "drive.npz", changed)
    found = evaluate(file, *dimensions, "--model", model)
    assert 0 < found["rows_refused"] <= unusable
    assert np.isfinite(found["joint"]["nll"])
    applied(model, file, *dimensions)
