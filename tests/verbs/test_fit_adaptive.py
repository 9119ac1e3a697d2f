"""Adaptive scaling of a recorded file: which rows it follows, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from monitor.cli import main
from monitor.recalibration.adaptive_scaling import AdaptiveScaling
from tests.recalibration.rows import read_selection
from tests.verbs.documents import document
from tests.verbs.recordings import csv_file, npz_file

XY = ("--dimensions", "x,y")
METHOD = ("--method", "adaptive-scaling")
# A recording lasts three seconds.
SHORT = ("--time-constant", "2s")


def model_of(path):
    model = read_selection(path.read_text()).fallback
    assert isinstance(model, AdaptiveScaling)
    return model


def test_a_model_is_fitted_applied_and_evaluated_like_any_other(
    fitted, applied, evaluate, drive, rows
):
    model = fitted(drive, *XY, *METHOD, *SHORT, "--label-delay", "0.5")
    found = model_of(model)
    assert (found.time_constant_s, found.delay_s) == (2.0, 0.5)
    path, arrays = applied(model, drive, *XY)
    before = np.einsum("nii->ni", rows.covariance)[:, :2]
    after = np.einsum("nii->ni", arrays["cov"])
    assert after / before == pytest.approx(np.broadcast_to(np.square(found.scale), before.shape))
    measured = evaluate(drive, *XY, "--model", model)
    assert measured.pop("model")["method"] == "adaptive-scaling"
    assert measured == evaluate(path)


def test_labels_that_would_not_have_come_yet_are_not_fitted_on(run, rows, drive, tmp_path):
    path = tmp_path / "model.json"
    said = run("fit", drive, *XY, *METHOD, *SHORT, "--label-delay", "1s", "--output", path)
    late = rows.labelled & (rows.time_s > rows.time_s.max() - 1.0)
    assert late.any()
    assert f"not fitted on: {np.count_nonzero(late)} rows of the last 1 s, whose labels" in said
    assert document(path)["fitted_on"]["rows"] == np.count_nonzero(rows.labelled & ~late)
    # Whatever their truth will be.
    truth = np.where(late[:, None], rows.mean + 50.0, rows.truth)
    other = csv_file(tmp_path / "drive.csv.gz", replace(rows, truth=truth))
    again = tmp_path / "again.json"
    run("fit", other, *XY, *METHOD, *SHORT, "--label-delay", "1s", "--output", again)
    assert model_of(again) == model_of(path)


def test_without_a_delay_every_labelled_row_is_fitted_on(run, rows, drive, tmp_path):
    path = tmp_path / "model.json"
    assert "last" not in run("fit", drive, *XY, *METHOD, "--output", path)
    assert document(path)["fitted_on"]["rows"] == np.count_nonzero(rows.labelled)
    assert (model_of(path).delay_s, model_of(path).time_constant_s) == (0.0, 60.0)


def test_what_came_last_weighs_most(fitted, rows, tmp_path):
    changed = rows.covariance / np.where(rows.time_s > 1.5, 25.0, 1.0)[:, None, None]
    file = csv_file(tmp_path / "drive.csv", replace(rows, covariance=changed))
    quick, slow = (
        np.mean(model_of(fitted(file, *XY, *METHOD, "--time-constant", tau)).scale)
        for tau in ("0.5", "500")
    )
    assert quick > 1.2 * slow


def test_classes_have_a_memory_of_their_own(fitted, drive):
    model = fitted(drive, *XY, *METHOD, *SHORT, "--by", "class", "--fewest-tracks", "1")
    slices = document(model)["slices"]
    assert set(slices) == {"car", "cyclist", "pedestrian"}
    assert {part["method"] for part in slices.values()} == {"adaptive-scaling"}
    tracks = [part["parameters"]["tracks"] for part in slices.values()]
    assert sum(tracks) > model_of(model).tracks * 0.5


def test_thin_slices_lean_on_the_wider_one(run, drive, tmp_path):
    path = tmp_path / "model.json"
    said = run("fit", drive, *XY, *METHOD, "--by", "class", "--output", path)
    assert "borrows from" in said
    whole = model_of(path).scale
    for part in document(path)["slices"].values():
        assert part["parameters"]["prior_scale"] == list(whole)


def test_an_archive_with_stamps_is_followed_on_their_clock(fitted, rows, tmp_path):
    stamp_ns = 1_700_000_000_000_000_000 + (rows.time_s * 1e9).astype(np.int64)
    path = npz_file(tmp_path / "drive.npz", rows)
    with np.load(path) as archive:
        np.savez(path, **{**archive, "stamp_ns": stamp_ns, "track": rows.track})
    found = model_of(fitted(path, *XY, *METHOD, *SHORT))
    assert found.ended_s == pytest.approx(stamp_ns[rows.labelled].max() / 1e9)
    assert found.tracks > 1


# ---- what is refused


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--time-constant", "1", "--label-delay", "1.5"),
            "labels come 1.5 s late, and the time constant is 1 s: what they say would be",
        ),
        (("--label-delay", "30"), "--label-delay 30: the file has truth for its last 2.9 s alone"),
    ],
)
def test_labels_that_come_too_late_are_refused(refused, drive, tmp_path, words, said):
    assert said in refused("fit", drive, *XY, *METHOD, *words, "--output", tmp_path / "m.json")
    assert list(tmp_path.iterdir()) == []


def test_a_file_without_times_is_refused(refused, rows, tmp_path):
    file = npz_file(tmp_path / "drive.npz", rows)
    line = refused("fit", file, *XY, *METHOD, "--output", tmp_path / "m.json")
    assert "rows without a time: give every row its t or stamp_ns, or use variance-scaling" in line


@pytest.mark.parametrize("option", ["--time-constant", "--label-delay"])
@pytest.mark.parametrize("method", ["variance-scaling", "temperature"])
def test_other_methods_have_no_use_for_time(refused, drive, tmp_path, option, method):
    words = ("fit", drive, "--method", method, option, "3s", "--output", tmp_path / "m.json")
    line = refused(*words)
    assert f"{option}: {method} has no use for it; it is for adaptive-scaling" in line


@pytest.mark.parametrize(
    ("option", "text"),
    [
        *(("--time-constant", text) for text in ("0", "-1", "inf", "nan", "soon")),
        *(("--label-delay", text) for text in ("-1", "inf", "nan", "late")),
    ],
)
def test_a_time_that_is_none_is_wrong_usage(capsys, drive, tmp_path, option, text):
    with pytest.raises(SystemExit) as end:
        main(["fit", str(drive), *METHOD, "--output", str(tmp_path / "m.json"), f"{option}={text}"])
    assert end.value.code == 2
    assert f"argument {option}: '{text}': expected seconds" in capsys.readouterr().err
