"""fit, apply and evaluate with every method of Gaussians: what is fitted on a file mends that file,
what is written and said of it, and nothing is left half done."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from monitor.cli import main
from monitor.frames.detections import Estimates
from monitor.frames.slices import NO_COVARIANCE
from monitor.recalibration.fitting import FITTINGS
from monitor.recalibration.scaling import AdaptiveScaling
from monitor.recalibration.selection import METHODS
from tests.commands.documents import document
from tests.commands.recordings import csv_file, with_bad_covariances
from tests.recalibration.rows import read_selection

XY, XYZ = ("--dimensions", "x,y"), ("--dimensions", "x,y,z")
SHAPED = {"isotonic-quantiles": "moments", "gp-beta": "moments", "gp-cauchy": "surrogate"}

UNDEFINED = ("ence", "ence_noise_floor", "ence_noise_floor_gaussian", "uce")

TAU = np.arange(1, 20) / 20

OF_EACH_ROW = ("class", "seq", "frame", "t", "score", "track", "ignore", "recalibrator")


WAYS = [("variance-scaling",), ("covariance-scaling", "--full-input", "whiten")]
SCALING = ("--method", "variance-scaling")
ADAPTIVE = (*XY, "--method", "adaptive-scaling")


ESTIMATORS = [method for method, fitting in FITTINGS.items() if fitting.estimates]


@pytest.fixture(scope="module")
def models(drive, tmp_path_factory):
    """A model of each method, fitted on one file."""
    folder = tmp_path_factory.mktemp("models")
    found = {}
    for method in METHODS:
        found[method] = folder / f"{method}.json"
        words = ["fit", str(drive), *XY, "--method", method, "--output", str(found[method])]
        # What estimates only fills in what is missing, and this drive has it all.
        assert main([*words, *(["--replace"] if method in ESTIMATORS else [])]) == 0
    return found


@pytest.mark.parametrize("method", METHODS)
def test_a_tracker_sees_what_was_measured(models, applied, evaluate, drive, rows, method):
    model = document(models[method])
    assert model["fallback"]["method"] == method
    assert list(model["slices"]) == ([NO_COVARIANCE] if method in ESTIMATORS else [])
    assert model["version"].startswith(f"{method}-")
    assert model["dimensions"] == ["x", "y"]
    assert model["fitted_on"] == {
        "file": drive.name,
        "rows": int(np.count_nonzero(rows.labelled)),
        "classes": ["car", "cyclist", "pedestrian"],
    }
    path, arrays = applied(models[method], drive, *XY)
    assert arrays["cov"].shape == (rows.n, 2, 2)
    assert (np.linalg.eigvalsh(arrays["cov"])[:, 0] > 0).all()
    assert ("quantiles" in arrays) == (method in SHAPED)
    found, seen = evaluate(drive, *XY, "--model", models[method]), evaluate(path)
    named = found.pop("model")
    assert (named["version"], named["method"]) == (model["version"], method)
    other = "estimated" if method in ESTIMATORS else "gaussian"
    assert named["output"] == SHAPED.get(method, other)
    if method not in SHAPED:
        assert found == seen
    assert found["joint"]["nees_mean"] == pytest.approx(seen["joint"]["nees_mean"])
    if method not in ("identity", "gp-cauchy"):
        assert found["joint"]["nees_over_k"] == pytest.approx(1, abs=0.35)


@pytest.mark.parametrize("way", WAYS, ids=" ".join)
@pytest.mark.parametrize("fault", ["0.04", "25"])
def test_a_fit_brings_the_nees_of_its_file_to_one(evaluate, fitted, applied, drive, way, fault):
    words = (drive, *XYZ, "--fault", f"variance={fault}")
    path, _ = applied(fitted(*words, "--method", *way), *words)
    found = evaluate(path)
    if "whiten" in way:
        assert found["joint"]["nees_over_k"] == pytest.approx(1.0, rel=1e-8)
    else:
        for dimension in found["dimensions"].values():
            assert dimension["nees_mean"] == pytest.approx(1.0, rel=1e-8)
            assert dimension["std_scaling"] == pytest.approx(1.0, rel=1e-8)


def test_the_identity_changes_no_bit_and_variances_stay_so(fitted, applied, drive, rows, tmp_path):
    _, arrays = applied(fitted(drive, "--method", "identity"), drive)
    assert np.array_equal(arrays["mean"], rows.mean)
    expected = np.zeros_like(rows.covariance)
    expected[:, range(4), range(4)] = np.einsum("nii->ni", rows.covariance)
    expected[:, [0, 1], [1, 0]] = rows.covariance[:, [0, 1], [1, 0]]
    assert np.array_equal(arrays["cov"], expected)
    assert np.array_equal(arrays["gt"], rows.truth, equal_nan=True)
    plain = csv_file(tmp_path / "plain.csv", rows, full=False)
    for method, name in (("identity", "var"), ("covariance-scaling", "cov")):
        _, arrays = applied(fitted(plain, "--method", method), plain)
        assert arrays.keys() == {"mean", name, "gt", "dimensions", *OF_EACH_ROW}
    assert (arrays["cov"][:, 0, 1] != 0).all()


@pytest.mark.parametrize("method", ["variance-scaling", "identity"])
def test_a_mean_that_is_off_is_told_corrected_and_judged(evaluate, run, rows, tmp_path, method):
    off = csv_file(tmp_path / "off.csv", replace(rows, mean=rows.mean - np.array([1.5, 0, 0, 0])))
    said = [one["sentence"] for one in evaluate(off, *XYZ)["verdicts"] if one["dimension"] == "x"]
    assert any("; x is off by +1." in one and "truth less x)" in one for one in said)
    path = tmp_path / "model.json"
    said = run("fit", off, *XYZ, "--method", method, "--correct-mean", "--output", path)
    assert "all rows: adds +1." in said and "mean-correction-" in said
    assert "tracks" in said.split("all rows: adds")[1]
    model = json.loads(path.read_text())["fallback"]
    assert model["parameters"]["recalibrator"]["method"] == method
    offset = model["parameters"]["offset"]
    before, after = evaluate(off, *XYZ), evaluate(off, *XYZ, "--model", path)
    x, made = (one["dimensions"]["x"] for one in (before, after))
    assert made["bias"] == pytest.approx(x["bias"] - offset[0], rel=1e-9)
    assert abs(made["bias"]) < 0.2 * x["bias"]
    # A later fit is drawn towards the offset of the earlier one.
    if method == "variance-scaling":
        again = tmp_path / "again.json"
        words = ("--method", method, "--correct-mean", "--previous", path, "--output", again)
        run("fit", off, *XYZ, *words)
        assert json.loads(again.read_text())["fallback"]["method"] == "mean-correction"


def test_bad_covariances_stay_and_are_not_fitted(fitted, applied, rows, tmp_path):
    file, method = tmp_path / "drive.csv", "covariance-scaling"
    spoiled, bad = with_bad_covariances(rows)
    model = fitted(csv_file(file, spoiled), "--method", method)
    sound_model = fitted(csv_file(file, rows.of(~bad)), "--method", method)
    assert document(model) == document(sound_model)

    _, alone = applied(model, file)
    _, arrays = applied(model, csv_file(file, spoiled))
    assert np.array_equal(arrays["cov"][~bad], alone["cov"])
    found, sent = arrays["cov"][bad], spoiled.covariance[bad]
    assert np.array_equal(found[:, range(4), range(4)], sent[:, range(4), range(4)], equal_nan=True)
    assert np.array_equal(found[:, 0, 1], sent[:, 0, 1])
    assert np.array_equal(arrays["mean"], spoiled.mean)


@pytest.mark.parametrize("method", SHAPED)
def test_another_shape_is_measured_as_what_it_is(models, applied, evaluate, drive, rows, method):
    found = evaluate(drive, *XY, "--model", models[method])
    path, arrays = applied(models[method], drive, *XY)
    forwarded = evaluate(path)
    there = np.flatnonzero(rows.labelled)
    truth = rows.truth[there, :2]
    assert arrays["tau"] == pytest.approx(TAU)
    for i, name in enumerate(("x", "y")):
        dimension = found["dimensions"][name]
        quantiles = arrays["quantiles"][there, i]
        assert (np.diff(quantiles, axis=1) >= 0).all()
        below = (truth[:, i, None] <= quantiles).mean(axis=0)
        assert dimension["coverage_one_sided_by_tau"] == pytest.approx(below, abs=1e-12)
        d = truth[:, i, None] - quantiles
        pinball = np.maximum(TAU * d, (TAU - 1) * d).mean(axis=0)
        assert dimension["pinball_by_tau"] == pytest.approx(pinball)
        # The central interval of 0.9 ends at the quantiles of 0.05 and 0.95.
        inside = (truth[:, i] >= quantiles[:, 0]) & (truth[:, i] <= quantiles[:, -1])
        assert dimension["picp_by_tau"][17] == pytest.approx(inside.mean(), abs=1e-12)
        width = (quantiles[:, -1] - quantiles[:, 0]).mean()
        assert dimension["mpiw_by_tau"][17] == pytest.approx(width)
        assert dimension["nll"] != forwarded["dimensions"][name]["nll"]
        for measure in (*("nees_mean", "rmv", "bias", "std_scaling", "n_eff"), *UNDEFINED):
            theirs = forwarded["dimensions"][name][measure]
            undefined = SHAPED[method] == "surrogate" and measure in UNDEFINED
            assert dimension[measure] == (None if undefined else pytest.approx(theirs)), measure
    joint = found["joint"]
    parts = [found["dimensions"][name]["nll"] for name in ("x", "y")]
    assert joint["nll"] == pytest.approx(sum(parts))
    assert joint["qce"] is None
    assert set(joint["qce_by_tau"]) == {None}


def test_rejection_keeps_the_error_of_the_rest_low(run, applied, drive, rows, tmp_path):
    path = tmp_path / "model.json"
    words = (*XY, "--method", "covariance-scaling", "--reject-above-error", "0.4")
    said = run("fit", drive, *words, "--output", path)
    rejection = document(path)["rejection"]
    assert rejection["by"] == "deviation"
    assert 0 < rejection["rejected_share"] < 1
    assert f"{rejection['rejected_share']:.1%} of the rows are rejected, σ_G above" in said
    selection = read_selection(path.read_text())
    there = rows.of(rows.labelled)
    sent = Estimates(there.mean[:, :2], there.covariance[:, :2, :2], np.zeros(there.n, bool))
    made = selection.fallback.apply(sent)
    score = np.linalg.det(made.covariance) ** 0.25
    kept = score <= rejection["threshold"] * (1 + 1e-12)
    error = np.square(there.truth[:, :2] - there.mean[:, :2]).sum(axis=1)
    assert np.sqrt(error[kept].mean()) == pytest.approx(rejection["error"])
    assert rejection["error"] <= 0.4
    assert 1 - kept.mean() == pytest.approx(rejection["rejected_share"])
    # Rows are flagged, and none is dropped.
    _, arrays = applied(path, drive, *XY)
    assert arrays["mean"].shape == (rows.n, 2)
    assert arrays["rejected"][rows.labelled].tolist() == (~kept).tolist()


# A recording lasts three seconds.
SHORT = ("--time-constant", "2s")


def model_of(path):
    model = read_selection(path.read_text()).fallback
    assert isinstance(model, AdaptiveScaling)
    return model


def test_labels_that_would_not_have_come_yet_are_not_fitted_on(run, rows, drive, tmp_path):
    path = tmp_path / "model.json"
    said = run("fit", drive, *ADAPTIVE, *SHORT, "--label-delay", "1s", "--output", path)
    late = rows.labelled & (rows.time_s > rows.time_s.max() - 1.0)
    assert late.any()
    assert f"not fitted on: {np.count_nonzero(late)} rows of the last 1 s, whose labels" in said
    assert document(path)["fitted_on"]["rows"] == np.count_nonzero(rows.labelled & ~late)
    # Whatever their truth will be.
    truth = np.where(late[:, None], rows.mean + 50.0, rows.truth)
    other = csv_file(tmp_path / "drive.csv.gz", replace(rows, truth=truth))
    again = tmp_path / "again.json"
    run("fit", other, *ADAPTIVE, *SHORT, "--label-delay", "1s", "--output", again)
    assert model_of(again) == model_of(path)


FIT, OUT = (*SCALING, "--output", "m.json"), ("--output", "o.npz")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("fit", "DRIVE", *FIT, "--where", "gt_id="), "on 0 detections with ground truth: of 97"),
        (("fit", "DRIVE", *FIT[:-1], "no/m.json"), "no/m.json: cannot be written"),
        (("fit", "DRIVE", *XY, "--reject-above-error", "1e-6", *FIT), "no threshold on deviation"),
        (("fit", "DRIVE", *FIT, "--dimensions", "q"), "'q'"),
        (("fit", "DRIVE", *FIT[:-1], "/dev/null"), "/dev/null: cannot be written (not a regular"),
        (("fit", "DRIVE", *FIT, "--time-constant", "1"), "has no use for it; it is for adaptive-"),
        (("fit", "DRIVE", *FIT, "--label-delay", "1"), "has no use for it; it is for adaptive-"),
        (("fit", "DRIVE", *ADAPTIVE, *OUT, "--correct-mean"), "does not know an offset. Use var"),
        (("fit", "DRIVE", "--method", "gp-beta", *OUT, "--correct-mean"), "moves the mean itself"),
        (("fit", "DRIVE", "--method", "temperature", *OUT, "--correct-mean"), "has no mean. Leave"),
        (("fit", "DRIVE", *FIT, "--prior-strength", "5"), "with --previous or --by. Leave it out"),
        (("fit", "DRIVE", *ADAPTIVE, *OUT, "--label-delay", "30"), "for its last 2.9 s alone"),
        (("apply", "model.json", "DRIVE", "--output", "o.txt"), "o.txt: the name must end in .npz"),
        (("evaluate", "DRIVE", *XY, "--model", "model.json"), "give --dimensions x,y,z"),
        (("replay", "DRIVE", *XY, "--recalibrator", "model.json"), "give --dimensions x,y,z"),
        (("apply", "DRIVE", "DRIVE", *OUT), "holds detections, and no recalibrator"),
        (("apply", "model.json", "DRIVE", *XYZ, "--output", "no/o.npz"), "no/o.npz: cannot be"),
        (("apply", "model.json", "DRIVE", *OUT), "give --dimensions x,y,z"),
    ],
)
def test_what_cannot_be_leaves_nothing(refused, run, drive, tmp_path, monkeypatch, words, named):
    monkeypatch.chdir(tmp_path)
    run("fit", drive, *XYZ, *SCALING, "--output", "model.json")
    line = refused(*[drive if word == "DRIVE" else word for word in words])
    assert named in line
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.json"]


def test_what_has_another_shape_is_told_and_goes_into_no_micro_bins(models, run, refused, drive):
    words = ("evaluate", drive, *XY, "--model", models["gp-cauchy"])
    table = run(*words, "--full")
    assert f"recalibrated by {document(models['gp-cauchy'])['version']}\n" in table
    assert "coverage and QCE: of the method's own distribution" in table
    measures = table.partition("\nvariance ")[2]
    line = next(line for line in measures.splitlines() if line[:2] == "x ")
    assert line.split()[1:4] == ["–"] * 3
    assert "method's own distribution" not in run(*words[:-1], models["gp-normal"])
    line = refused(*words, "--engine", "streaming")
    assert "is no Gaussian (output: surrogate), and micro-bins keep Gaussians only" in line


def test_names_that_could_not_be_read_again_are_in_no_model(refused, rows, drive, tmp_path):
    named = np.where(rows.class_name == "car", "bus\n", rows.class_name)
    file = tmp_path / "names.npz"
    np.savez(file, **{"mean": rows.mean, "cov": rows.covariance, "gt": rows.truth, "class": named})
    words = (*SCALING, "--by-class", "--angles", "3", "--output", tmp_path / "model.json")
    line = refused("fit", file, *words)
    assert "what was fitted makes no model that can be read again: '" in line
    (changed := tmp_path / "changed.json").write_text('{"format": "other"}')
    assert f"{changed}: " in refused("evaluate", drive, "--model", changed)
    assert sorted(tmp_path.iterdir()) == [changed, file]
