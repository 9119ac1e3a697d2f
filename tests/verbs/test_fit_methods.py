"""Every method of Gaussians through fit, apply and evaluate; and what it says under its own
distribution where that is no Gaussian.
"""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from monitor.cli import main
from monitor.frames.detections import Estimates
from monitor.recalibration.processes.cauchy import GpCauchy
from monitor.recalibration.selection import METHODS
from tests.recalibration.rows import read_selection
from tests.verbs.documents import document
from tests.verbs.recordings import csv_file, with_bad_covariances

XY = ("--dimensions", "x,y")
SHAPED = {"isotonic-quantiles": "moments", "gp-beta": "moments", "gp-cauchy": "surrogate"}
GAUSSIAN = [method for method in METHODS if method not in SHAPED]
UNDEFINED = ("ence", "ence_noise_floor", "ence_noise_floor_gaussian", "uce")
TAU = np.arange(1, 20) / 20


@pytest.fixture(scope="module")
def models(drive, tmp_path_factory):
    """A model of each method, fitted on one file."""
    folder = tmp_path_factory.mktemp("models")
    found = {}
    for method in METHODS:
        found[method] = folder / f"{method}.json"
        words = ["fit", str(drive), *XY, "--method", method, "--output", str(found[method])]
        assert main(words) == 0
    return found


@pytest.mark.parametrize("method", METHODS)
def test_a_model_is_of_its_method_and_makes_covariances_of_a_file(
    models, applied, evaluate, drive, rows, method
):
    model = document(models[method])
    assert model["fallback"]["method"] == method
    assert model["version"].startswith(f"{method}-")
    path, arrays = applied(models[method], drive, *XY)
    assert arrays["cov"].shape == (rows.n, 2, 2)
    assert (np.linalg.eigvalsh(arrays["cov"])[:, 0] > 0).all()
    assert ("quantiles" in arrays) == (method in SHAPED)
    found = evaluate(drive, *XY, "--model", models[method])
    assert found["model"]["version"] == model["version"]
    assert found["model"]["method"] == method
    assert found["model"]["output"] == SHAPED.get(method, "gaussian")
    # What a tracker sees is what was written.
    seen = evaluate(path)
    assert found["joint"]["nees_mean"] == pytest.approx(seen["joint"]["nees_mean"])
    assert found["joint"]["nees_over_k"] == pytest.approx(1, abs=0.35) or method in (
        *("identity", "gp-cauchy"),
    )


@pytest.mark.parametrize("method", GAUSSIAN)
def test_a_gaussian_method_measures_as_the_file_that_it_writes(
    models, applied, evaluate, drive, method
):
    found = evaluate(drive, *XY, "--model", models[method])
    path, _ = applied(models[method], drive, *XY)
    found.pop("model")
    assert found == evaluate(path)


@pytest.mark.parametrize("method", SHAPED)
def test_another_shape_is_measured_under_its_own_distribution(
    models, applied, evaluate, drive, rows, method
):
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
        assert dimension["mpiw_by_tau"][17] == pytest.approx(
            (quantiles[:, -1] - quantiles[:, 0]).mean()
        )
        assert dimension["nll"] != forwarded["dimensions"][name]["nll"]
        for measure in ("nees_mean", "rmv", "bias", "std_scaling", "n_eff"):
            theirs = forwarded["dimensions"][name][measure]
            assert dimension[measure] == pytest.approx(theirs), measure
        for measure in UNDEFINED:
            if SHAPED[method] == "surrogate":
                assert dimension[measure] is None
            else:
                theirs = forwarded["dimensions"][name][measure]
                assert dimension[measure] == pytest.approx(theirs), measure
    joint = found["joint"]
    parts = [found["dimensions"][name]["nll"] for name in ("x", "y")]
    assert joint["nll"] == pytest.approx(sum(parts))
    assert joint["qce"] is None
    assert set(joint["qce_by_tau"]) == {None}


def test_the_likelihood_of_a_cauchy_model_is_that_of_cauchy_distributions(
    models, evaluate, drive, rows
):
    selection = read_selection(models["gp-cauchy"].read_text())
    model = selection.fallback
    assert isinstance(model, GpCauchy)
    there = rows.of(rows.labelled)
    sent = Estimates(there.mean[:, :2], there.covariance[:, :2, :2], np.zeros(there.n, bool))
    made = model.apply(sent)
    deviation = np.sqrt(np.einsum("nii->ni", made.covariance))
    level = model.surrogate_level
    half = scipy.stats.norm.ppf((1 + level) / 2)
    gamma = deviation * half / np.tan(np.pi * level / 2)
    nll = -scipy.stats.cauchy.logpdf(there.truth[:, :2], there.mean[:, :2], gamma).mean(axis=0)
    found = evaluate(drive, *XY, "--model", models["gp-cauchy"])
    for i, name in enumerate(("x", "y")):
        assert found["dimensions"][name]["nll"] == pytest.approx(nll[i], rel=1e-6)
    assert found["model"]["surrogate_level"] == level


def test_the_level_of_the_surrogate_can_be_chosen(fitted, evaluate, drive):
    model = fitted(drive, *XY, "--method", "gp-cauchy", "--surrogate-level", "0.9")
    assert evaluate(drive, *XY, "--model", model)["model"]["surrogate_level"] == 0.9


@pytest.mark.parametrize("method", SHAPED)
def test_micro_bins_know_no_other_shape_and_say_so(models, drive, refused, method):
    line = refused("evaluate", drive, *XY, "--engine", "streaming", "--model", models[method])
    assert f"(output: {SHAPED[method]})" in line
    assert line.endswith("Use --engine exact.")


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("gp-normal", "the Gaussian that the method gives (output: gaussian)"),
        ("gp-beta", "moments of a distribution of another shape (output: moments)"),
        ("gp-cauchy", "central interval of 0.6827 (output: surrogate)"),
    ],
)
def test_people_are_told_what_the_gaussians_stand_for(models, run, drive, tmp_path, method, said):
    words = (models[method], drive, *XY)
    assert said in run("apply", *words, "--output", tmp_path / "out.npz")
    table = run("evaluate", drive, *XY, "--model", models[method])
    assert said in table
    assert document(models[method])["version"] in table
    assert ("of the method's own distribution" in table) == (method in SHAPED)
    assert max(map(len, table.splitlines())) <= 100
    (joint,) = [line for line in table.split("coverage")[-1].splitlines() if "joint" in line]
    assert ("–" in joint) == (method in SHAPED)


def test_what_is_not_defined_is_a_dash_in_the_table(models, run, drive):
    table = run("evaluate", drive, *XY, "--model", models["gp-cauchy"])
    (line,) = [line for line in table.split("variance")[-1].splitlines() if line[:2] == "x "][:1]
    assert line.split()[1:4] == ["–"] * 3
    assert line.split()[6] == "–"
    assert "nan" not in table


# ---- quantiles


@pytest.mark.parametrize(
    ("words", "tau"),
    [(("--quantiles",), TAU), (("--tau", "0.9,0.1"), [0.1, 0.9])],
)
def test_quantiles_of_gaussians_are_written_on_request(models, applied, drive, words, tau):
    _, arrays = applied(models["variance-scaling"], drive, *XY, *words)
    assert arrays["tau"] == pytest.approx(tau)
    deviation = np.sqrt(np.einsum("nii->ni", arrays["cov"]))
    expected = arrays["mean"][:, :, None] + deviation[:, :, None] * scipy.stats.norm.ppf(tau)
    assert arrays["quantiles"] == pytest.approx(expected)


def test_quantiles_of_what_is_no_gaussian_are_nan(models, applied, rows, tmp_path):
    spoiled, bad = with_bad_covariances(rows)
    # Of a bad row the first two dimensions may be sound.
    file = csv_file(tmp_path / "drive.csv", spoiled)
    _, arrays = applied(models["isotonic-quantiles"], file, *XY)
    unusable = np.isnan(arrays["quantiles"]).all(axis=(1, 2))
    assert unusable.any() and not unusable[~bad].any()
    assert np.isfinite(arrays["quantiles"][~bad]).all()


def test_an_archive_with_quantiles_is_read_as_one_without(models, applied, evaluate, drive):
    path, _ = applied(models["gp-beta"], drive, *XY)
    assert evaluate(path)["rows"] > 0


# ---- slices of another shape


def test_slices_of_other_shapes_are_measured_each_under_its_own(fitted, evaluate, drive, tmp_path):
    words = (*XY, "--method", "isotonic-quantiles", "--by", "class", "--fewest-tracks", "1")
    model = fitted(drive, *words)
    whole = evaluate(drive, *XY, "--model", model)
    assert set(document(model)["slices"]) == {"car", "cyclist", "pedestrian"}
    parts = [
        evaluate(drive, *XY, "--class", name, "--model", model)
        for name in ("car", "cyclist", "pedestrian")
    ]
    for name in ("x", "y"):
        total = sum(part["rows"] * part["dimensions"][name]["nll"] for part in parts)
        assert whole["dimensions"][name]["nll"] == pytest.approx(total / whole["rows"])


# ---- rejection


def test_rejection_keeps_the_error_of_the_rest_within_the_target(
    run, applied, drive, rows, tmp_path
):
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


def test_an_angle_has_no_part_in_the_error_that_is_bounded(fitted, drive):
    words = ("--method", "variance-scaling", "--reject-above-error", "0.4")
    found = [
        document(fitted(drive, "--dimensions", dimensions, *words))["rejection"]
        for dimensions in ("x,y", "x,y,yaw")
    ]
    assert found[0] == found[1]


def test_a_target_that_cannot_be_met_is_refused_with_what_can_be(refused, drive, tmp_path):
    words = (*XY, "--method", "variance-scaling", "--reject-above-error", "1e-6")
    line = refused("fit", drive, *words, "--output", tmp_path / "model.json")
    assert "no threshold on deviation keeps the error within 1e-06" in line
    assert list(tmp_path.iterdir()) == []
