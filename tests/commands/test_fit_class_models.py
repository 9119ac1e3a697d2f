"""Recalibration of class probabilities through fit, apply and evaluate; and what apply writes of
files that hold Gaussians too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from monitor.recalibration.classes.class_selection import CLASS_METHODS
from tests.recalibration.rows import read_class_selection

N, C, M = 900, 4, 3
NAMES = np.array(["bus", "car", "cyclist", "pedestrian"])
RANDOM = np.random.default_rng(0)
# Logits twice as large as they should be, and labels.
LOGITS = 3 * RANDOM.normal(size=(N, C))
LABEL = (softmax(LOGITS / 2, axis=1).cumsum(axis=1) > RANDOM.random((N, 1))).argmax(axis=1)
PROB = softmax(LOGITS, axis=1)
# All that may stand in a file beside them.
BESIDE = {
    "track": np.arange(N) // 4,
    "seq": np.where(np.arange(N) < 4, "a", "b"),
    "frame": np.arange(N) // 5,
    "t": np.arange(N) / 10,
    "stamp_ns": np.arange(N) * 100_000_000 + 2**60,
}
GAUSSIANS = {"mean": np.zeros((N, 2)), "var": np.ones((N, 2)), "gt": RANDOM.normal(size=(N, 2))}
TEMPERATURE = ("--method", "temperature")
SCALING = ("--method", "variance-scaling")


def document(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.fixture
def save(tmp_path):
    def saved(name, **arrays):
        path = tmp_path / f"{name}.npz"
        np.savez(path, **arrays)
        return path

    return saved


@pytest.fixture
def classes(save):
    return save("classes", prob=PROB, label=LABEL)


@pytest.fixture
def model(fitted, classes):
    return fitted(classes, *TEMPERATURE)


# ---- there and back


@pytest.mark.parametrize("method", CLASS_METHODS)
def test_a_model_applied_is_a_model_evaluated(fitted, applied, evaluate, classes, method):
    model = fitted(classes, "--rows", "0:500", "--method", method)
    assert document(model)["version"].startswith(f"{method}-")
    path, arrays = applied(model, classes, "--rows", "500:")
    assert arrays["prob"].shape == (N - 500, C)
    assert arrays["prob"].sum(axis=1) == pytest.approx(1)
    found = evaluate(classes, "--rows", "500:", "--model", model)
    assert found.pop("model") == {"version": document(model)["version"], "method": method}
    assert found == evaluate(path)


def test_temperature_undoes_a_factor_on_the_logits(fitted, evaluate, classes):
    model = fitted(classes, "--rows", "0:500", *TEMPERATURE)
    parameters = document(model)["recalibrator"]["parameters"]
    assert parameters["temperature"] == pytest.approx(2, rel=0.2)
    rest = ("--rows", "500:")
    before = evaluate(classes, *rest)["classification"]
    after = evaluate(classes, *rest, "--model", model)["classification"]
    assert after["nll"] < before["nll"] - 0.05
    assert after["ece"] < before["ece"] / 2
    assert after["accuracy"] == before["accuracy"]


def test_logits_beside_probabilities_are_what_is_recalibrated(fitted, applied, evaluate, save):
    both = save("both", prob=PROB.round(2), logits=LOGITS, label=LABEL)
    alone = save("alone", logits=LOGITS, label=LABEL)
    models = [document(fitted(file, "--method", "vector-scaling")) for file in (both, alone)]
    assert models[0]["version"] == models[1]["version"]
    identity = fitted(both, "--method", "class-identity")
    _, arrays = applied(identity, both)
    assert arrays["prob"] == pytest.approx(PROB)
    without, found = evaluate(both), evaluate(both, "--model", identity)
    assert without == evaluate(alone)
    assert found["classification"]["nll"] == pytest.approx(without["classification"]["nll"])


def test_each_opinion_is_scaled_before_their_mean(fitted, applied, evaluate, save):
    # Laves et al. 2019, eq. 25.
    opinions = LOGITS[:, None] + np.random.default_rng(5).normal(size=(N, M, C))
    file = save("samples", logits=opinions, label=LABEL)
    model = fitted(file, *TEMPERATURE)
    temperature = document(model)["recalibrator"]["parameters"]["temperature"]
    path, arrays = applied(model, file)
    expected = softmax(log_softmax(opinions, axis=2) / temperature, axis=2)
    assert arrays["prob"] == pytest.approx(expected)
    nll = -np.log(expected.mean(axis=1)[np.arange(N), LABEL]).mean()
    found = evaluate(file, "--model", model)["classification"]
    assert found["nll"] == pytest.approx(nll)
    assert found["n_opinions"] == N
    assert evaluate(path)["classification"] == found


def test_rows_that_are_no_probabilities_are_left_out_and_left_as_they_are(
    fitted, applied, evaluate, save
):
    spoiled, bad = PROB.copy(), [3, 50, 700]
    spoiled[3], spoiled[50, 0], spoiled[700] = [-0.5, 1.0, 0.25, 0.25], np.nan, 0.5
    rest = np.delete(np.arange(N), bad)
    file = save("spoiled", prob=spoiled, label=LABEL)
    model = fitted(file, *TEMPERATURE)
    sound = fitted(save("sound", prob=PROB[rest], label=LABEL[rest]), *TEMPERATURE)
    assert document(model)["version"] == document(sound)["version"]
    _, arrays = applied(model, file)
    assert np.array_equal(arrays["prob"][bad], spoiled[bad], equal_nan=True)
    assert evaluate(file, "--model", model)["rows_refused"] == 3


# ---- what a model says


@pytest.mark.parametrize("method", CLASS_METHODS)
def test_a_model_of_named_classes_serves_these_alone_and_unnamed_ones_are_told_of(
    run, applied, refused, save, tmp_path, method
):
    path, out = tmp_path / "model.json", ("--output", tmp_path / "out.npz")
    words = ("--method", method, "--output", path)
    unnamed = save("unnamed", logits=LOGITS, label=LABEL)
    by_position = method not in ("class-identity", "temperature")
    told = f"{unnamed} has no class_names: {method} tells classes apart"
    assert (told in run("fit", unnamed, *words)) == by_position
    named = save("named", logits=LOGITS, label=LABEL, class_names=NAMES)
    assert "no class_names" not in run("fit", named, *words)
    assert document(path)["classes"] == NAMES.tolist()
    _, arrays = applied(path, named)
    assert arrays["class_names"].tolist() == NAMES.tolist()
    turned = save("turned", logits=LOGITS, label=LABEL, class_names=NAMES[::-1])
    line = refused("apply", path, turned, *out)
    assert "fitted on classes bus, car, cyclist, pedestrian, and the file has pedestrian" in line
    # A file that does not name them is taken at its number of classes.
    applied(path, unnamed)
    fewer = save("fewer", logits=LOGITS[:, :3], label=np.minimum(LABEL, 2))
    line = refused("evaluate", fewer, "--model", path)
    assert "the recalibrator was fitted on 4 classes and the file has 3" in line


def test_rejection_keeps_the_error_rate_of_the_rest_within_the_target(
    run, applied, classes, tmp_path
):
    path = tmp_path / "model.json"
    words = (*TEMPERATURE, "--reject-above-error", "0.3", "--output", path)
    said = run("fit", classes, *words)
    rejection = read_class_selection(path.read_text()).rejection
    assert rejection is not None
    assert rejection.by == "entropy"
    assert 0 < rejection.rejected_share < 1
    assert rejection.error <= 0.3
    assert f"{rejection.rejected_share:.1%} of the rows are rejected, entropy above" in said
    temperature = document(path)["recalibrator"]["parameters"]["temperature"]
    made = softmax(np.log(PROB) / temperature, axis=1)
    entropy = -(made * np.log(made)).sum(axis=1) / np.log(C)
    kept = entropy <= rejection.threshold * (1 + 1e-9)
    wrong = made.argmax(axis=1) != LABEL
    assert wrong[kept].mean() == pytest.approx(rejection.error)
    _, arrays = applied(path, classes)
    assert arrays["prob"].shape == (N, C)
    assert arrays["rejected"].tolist() == (~kept).tolist()


# ---- files with Gaussians, and what is written


def test_of_a_file_with_both_the_model_says_which_is_recalibrated(evaluate, fitted, model, save):
    both = save("both", prob=PROB, label=LABEL, **GAUSSIANS)
    plain, by_classes = evaluate(both), evaluate(both, "--model", model)
    scaling = fitted(both, *SCALING, "--fault", "variance=4")
    by_gaussians = evaluate(both, "--model", scaling)
    assert by_classes["dimensions"] == plain["dimensions"] != by_gaussians["dimensions"]
    assert by_gaussians["classification"] == plain["classification"]
    assert by_classes["classification"] != plain["classification"]
    assert by_classes["model"]["method"] == "temperature"
    assert by_gaussians["model"]["method"] == "variance-scaling"


@pytest.mark.parametrize(
    ("words", "left_out"), [(SCALING, "prob, label, notes"), (TEMPERATURE, "mean, var, gt, notes")]
)
def test_what_is_known_of_each_row_is_written_and_what_is_not_written_is_said(
    run, fitted, save, tmp_path, words, left_out
):
    notes = {"notes": np.array(["none"])}
    file = save("both", prob=PROB, label=LABEL, **GAUSSIANS, **BESIDE, **notes)
    path = tmp_path / "out.npz"
    said = run("apply", fitted(file, *words), file, "--rows", "60:", "--output", path)
    assert said.splitlines()[-1] == f"of the file not in it: {left_out}"
    with np.load(path) as arrays:
        for name, values in BESIDE.items():
            assert arrays[name].tolist() == values[60:].tolist()
    # What was written is fitted on again with the same tracks and times.
    again = fitted(path, *words)
    assert '"tracks": 210' in again.read_text()


def test_without_labels_probabilities_are_recalibrated_and_nothing_is_fitted_or_evaluated(
    applied, refused, classes, model, save, tmp_path
):
    file, output = save("unlabelled", prob=PROB), ("--output", tmp_path / "other.json")
    (_, expected), (_, found) = applied(model, classes), applied(model, file)
    assert np.array_equal(found["prob"], expected["prob"])
    assert "label" in expected and "label" not in found
    for words in (
        ("fit", file, "--method", "vector-scaling", *output),
        ("evaluate", file),
        ("evaluate", file, "--model", model),
    ):
        line = refused(*words)
        assert f"{file}: there are class probabilities, but no array 'label'. Save the" in line
    assert not (tmp_path / "other.json").exists()


# ---- what is refused


def test_a_model_of_the_other_kind_is_refused(refused, fitted, model, classes, drive, tmp_path):
    output, gaussians = ("--output", tmp_path / "out.npz"), fitted(drive, *SCALING)
    for words in (("evaluate", drive, "--model", model), ("apply", model, drive, *output)):
        line = refused(*words)
        assert f"{model} recalibrates class probabilities (temperature), and none of" in line
        assert "or a model of Gaussians" in line
    for words in (
        ("evaluate", classes, "--model", gaussians),
        ("apply", gaussians, classes, *output),
    ):
        line = refused(*words)
        assert f"{gaussians} recalibrates Gaussians (variance-scaling)" in line
        assert "Give a model of class probabilities" in line
    line = refused("fit", drive, *SCALING, "--previous", model, *output)
    assert "class probabilities (temperature), not Gaussians" in line
    line = refused("fit", drive, *TEMPERATURE, *output)
    assert "has no class probabilities, which temperature is fitted to" in line


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"prob": softmax(LOGITS / 2, axis=1)}, "prob[0] is not the softmax of logits[0]"),
        ({"label": np.full(N, -1)}, f"0 detections with a true class: of {N} rows, {N} have none"),
    ],
)
def test_a_file_that_cannot_be_fitted_on_is_refused_with_the_reason(
    refused, save, tmp_path, arrays, said
):
    file = save("file", **{"logits": LOGITS, "label": LABEL, **arrays})
    assert said in refused("fit", file, *TEMPERATURE, "--output", tmp_path / "model.json")
    assert not (tmp_path / "model.json").exists()


@pytest.mark.parametrize(
    ("verb", "words", "named"),
    [
        ("fit", ("--by", "class"), "--by"),
        ("fit", ("--class", "car", "--where", "role=fit"), "--class, --where"),
        ("fit", ("--clamp", "1:2"), "--clamp: temperature has no use for it"),
        ("apply", ("--tau", "0.5"), "--tau: for Gaussians"),
        ("apply", ("--class", "car"), "--class: for Gaussians"),
    ],
)
def test_options_of_gaussians_are_refused_by_name(
    refused, model, classes, tmp_path, verb, words, named
):
    given = (classes, *TEMPERATURE) if verb == "fit" else (model, classes)
    assert f"{verb}: {named}" in refused(verb, *given, *words, "--output", tmp_path / "out.npz")
    assert not (tmp_path / "out.npz").exists()
