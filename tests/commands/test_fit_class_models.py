"""Recalibration of class probabilities through fit, apply and evaluate; and what apply writes of
files that hold Gaussians too."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from monitor.recalibration.selection import CLASS_METHODS
from tests.commands.documents import document

N, C, M = 900, 4, 3
NAMES = np.array(["bus", "car", "cyclist", "pedestrian"])
RANDOM = np.random.default_rng(0)
# Logits twice as large as they should be, and labels.
LOGITS = 3 * RANDOM.normal(size=(N, C))
LABEL = (softmax(LOGITS / 2, axis=1).cumsum(axis=1) > RANDOM.random((N, 1))).argmax(axis=1)
PROB = softmax(LOGITS, axis=1)
TEMPERATURE = ("--method", "temperature")
SCALING = ("--method", "variance-scaling")


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


def test_rows_that_are_no_probabilities_stay(fitted, applied, evaluate, save):
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


def test_a_second_time_is_refused(run, refused, model, classes, tmp_path):
    once, twice = tmp_path / "once.npz", tmp_path / "twice.npz"
    run("apply", model, classes, "--output", once)
    assert "recalibrated before" in refused("apply", model, once, "--output", twice)
    run("apply", model, once, "--again", "--output", twice)


@pytest.mark.parametrize("method", CLASS_METHODS)
def test_a_model_of_named_classes_serves_these(run, applied, refused, save, tmp_path, method):
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


def test_rejection_keeps_the_error_rate_of_the_rest_low(run, applied, classes, tmp_path):
    path = tmp_path / "model.json"
    said = run("fit", classes, *TEMPERATURE, "--reject-above-error", "0.3", "--output", path)
    rejection = document(path)["rejection"]
    assert f"{rejection['rejected_share']:.1%} of the rows are rejected, entropy above" in said
    _, arrays = applied(path, classes)
    wrong = arrays["prob"].argmax(axis=1) != LABEL
    assert wrong.mean() > 0.3 >= rejection["error"]
    assert wrong[~arrays["rejected"]].mean() == pytest.approx(rejection["error"])
    table = run("evaluate", classes, "--model", path)
    assert table.startswith("classes: ")
    assert f"\nrecalibrated by {document(path)['version']}\n900 rows with a true" in table


def test_what_cannot_be_fitted_or_applied_is_named(refused, model, classes, save, tmp_path):
    output = ("--output", tmp_path / "other.npz")
    untrue, bare = save("untrue", prob=PROB, label=np.full(N, -1)), save("bare", prob=PROB)
    for words, said in (
        (("fit", untrue), f"0 detections with a true class: of {N} rows, {N} have none"),
        (("fit", bare), f"{bare}: there are class probabilities, but no array 'label'"),
        (("fit", classes, "--class", "car"), "temperature is fitted to class probabilities"),
        (("fit", classes, "--rows", "900:"), "rows 900:"),
        (("apply", model, classes, "--where", "role=fit"), f"{model} recalibrates class prob"),
    ):
        assert said in refused(*words, *(TEMPERATURE if words[0] == "fit" else ()), *output)
