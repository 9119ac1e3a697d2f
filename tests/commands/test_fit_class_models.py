"""Recalibration of class probabilities through fit, apply and evaluate; and what apply writes of
whole files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import log_softmax, softmax

from monitor.recalibration.classes.class_selection import CLASS_METHODS
from tests.recalibration.rows import read_class_selection

NAMES = ("bus", "car", "cyclist", "pedestrian")


def simulated(seed=0):
    """Logits twice as large as they should be, and labels."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=(N, C)) * 1.5
    label = (softmax(logits, axis=1).cumsum(axis=1) > random.random((N, 1))).argmax(axis=1)
    return 2 * logits, label


N, C, M = 900, 4, 3


def document(path: Path) -> Any:
    return json.loads(path.read_text())


@pytest.fixture
def save(tmp_path):
    def saved(name="classes.npz", **arrays):
        path = tmp_path / name
        np.savez(path, **arrays)
        return path

    return saved


@pytest.fixture
def classes(save):
    logits, label = simulated()
    return save(prob=softmax(logits, axis=1), label=label)


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
    model = fitted(classes, "--rows", "0:500", "--method", "temperature")
    parameters = document(model)["recalibrator"]["parameters"]
    assert parameters["temperature"] == pytest.approx(2, rel=0.2)
    rest = ("--rows", "500:")
    before = evaluate(classes, *rest)["classification"]
    after = evaluate(classes, *rest, "--model", model)["classification"]
    assert after["nll"] < before["nll"] - 0.05
    assert after["ece"] < before["ece"] / 2
    assert after["accuracy"] == before["accuracy"]


def test_logits_beside_probabilities_are_what_is_recalibrated(fitted, applied, save):
    logits, label = simulated()
    rounded = softmax(logits, axis=1).round(2)
    both = save("both.npz", prob=rounded, logits=logits, label=label)
    alone = save("alone.npz", logits=logits, label=label)
    models = [document(fitted(file, "--method", "vector-scaling")) for file in (both, alone)]
    assert models[0]["version"] == models[1]["version"]
    _, arrays = applied(fitted(both, "--method", "class-identity"), both)
    assert arrays["prob"] == pytest.approx(softmax(logits, axis=1))


def test_what_is_measured_without_a_model_is_what_a_model_recalibrates(fitted, evaluate, save):
    logits, label = simulated()
    rounded = softmax(logits, axis=1).round(2)
    both = save("both.npz", prob=rounded, logits=logits, label=label)
    found = evaluate(both, "--model", fitted(both, "--method", "class-identity"))
    found.pop("model")
    without = evaluate(both)
    assert without == evaluate(save("logits.npz", logits=logits, label=label))
    assert found["classification"]["nll"] == pytest.approx(without["classification"]["nll"])


def test_logits_that_are_not_those_of_the_probabilities_are_refused(refused, save, tmp_path):
    logits, label = simulated()
    wrong = save("wrong.npz", prob=softmax(logits / 2, axis=1), logits=logits, label=label)
    assert "prob[0] is not the softmax of logits[0]" in refused("evaluate", wrong)
    several = softmax(np.stack([logits] * 7, axis=1), axis=2)
    file = save("several.npz", prob=several, logits=logits, label=label)
    words = ("--method", "temperature", "--output", tmp_path / "model.json")
    for line in (refused("evaluate", file), refused("fit", file, *words)):
        assert "logits has shape (900, 4), but prob has (900, 7, 4). Save both for the same" in line


def test_each_opinion_is_scaled_before_their_mean(fitted, applied, evaluate, save):
    # Laves et al. 2019, eq. 25.
    random = np.random.default_rng(5)
    logits, label = simulated()
    opinions = logits[:, None] + random.normal(size=(N, M, C))
    file = save("samples.npz", logits=opinions, label=label)
    model = fitted(file, "--method", "temperature")
    temperature = document(model)["recalibrator"]["parameters"]["temperature"]
    path, arrays = applied(model, file)
    assert arrays["prob"].shape == (N, M, C)
    expected = softmax(log_softmax(opinions, axis=2) / temperature, axis=2)
    assert arrays["prob"] == pytest.approx(expected)
    nll = -np.log(expected.mean(axis=1)[np.arange(N), label]).mean()
    found = evaluate(file, "--model", model)["classification"]
    assert found["nll"] == pytest.approx(nll)
    assert found["n_opinions"] == N
    assert evaluate(path)["classification"] == found


def test_rows_that_are_no_probabilities_are_left_out_and_left_as_they_are(
    fitted, applied, evaluate, save
):
    logits, label = simulated()
    prob = softmax(logits, axis=1)
    spoiled = prob.copy()
    bad = np.array([3, 50, 700])
    spoiled[bad[0]] = [-0.5, 1.0, 0.25, 0.25]
    spoiled[bad[1], 0] = np.nan
    spoiled[bad[2]] = 0.5
    rest = np.delete(np.arange(N), bad)
    file = save("spoiled.npz", prob=spoiled, label=label)
    model = fitted(file, "--method", "temperature")
    sound = fitted(save("sound.npz", prob=prob[rest], label=label[rest]), "--method", "temperature")
    assert document(model)["version"] == document(sound)["version"]
    _, arrays = applied(model, file)
    assert np.array_equal(arrays["prob"][bad], spoiled[bad], equal_nan=True)
    assert evaluate(file, "--model", model)["rows_refused"] == 3


def test_rows_without_a_true_class_are_recalibrated_but_not_fitted_on(fitted, applied, save):
    logits, label = simulated()
    some = label.copy()
    some[::3] = -1
    kept = some >= 0
    file = save("some.npz", logits=logits, label=some)
    alone = save("alone.npz", logits=logits[kept], label=label[kept])
    model, other = (fitted(f, "--method", "temperature") for f in (file, alone))
    assert document(model)["version"] == document(other)["version"]
    assert document(model)["fitted_on"]["rows"] == np.count_nonzero(kept)
    _, arrays = applied(model, file)
    assert arrays["prob"].shape == (N, C)
    assert arrays["label"].tolist() == some.tolist()


def test_a_logit_of_minus_infinity_is_a_probability_of_none(fitted, applied, evaluate, save):
    logits, label = simulated()
    never = (label[:40] + 1) % C
    logits[np.arange(40), never] = -np.inf
    sound = save("sound.npz", logits=logits, label=label)
    model = fitted(sound, "--method", "temperature")
    assert document(model)["fitted_on"]["rows"] == N
    _, arrays = applied(model, sound)
    assert (arrays["prob"][np.arange(40), never] < 1e-5).all()
    logits[50], logits[51, 2], logits[52, 0] = -np.inf, np.nan, np.inf
    spoiled = save("spoiled.npz", logits=logits, label=label)
    assert evaluate(spoiled, "--model", model)["rows_refused"] == 3
    _, arrays = applied(model, spoiled)
    assert np.isnan(arrays["prob"]).any(axis=1).nonzero()[0].tolist() == [50, 51, 52]


# ---- what a fit rests on, and names


def test_a_model_says_on_how_many_rows_tracks_and_which_period_it_rests(run, save, tmp_path):
    logits, label = simulated()
    file = save(
        logits=logits,
        label=label,
        track=np.arange(N) // 4,
        seq=np.where(np.arange(N) < 4, "a", "b"),
        t=np.arange(N) / 10,
    )
    path = tmp_path / "model.json"
    said = run("fit", file, "--method", "temperature", "--rows", "0:400", "--output", path)
    fitted_on = document(path)["fitted_on"]
    basis = fitted_on["basis"]
    assert (fitted_on["file"], fitted_on["rows"]) == ("classes.npz", 400)
    assert (basis["rows"], basis["tracks"]) == (400, 100)
    assert (basis["first"], basis["last"], basis["clock"]) == (0.0, 39.9, "t")
    assert 0 < basis["effective_rows"] <= 400
    assert "fitted on 400 rows of 100 tracks, worth " in said


def test_a_model_of_named_classes_serves_these_alone(fitted, applied, refused, save, tmp_path):
    logits, label = simulated()
    named = save("named.npz", logits=logits, label=label, class_names=np.array(NAMES))
    model = fitted(named, "--method", "vector-scaling")
    assert document(model)["classes"] == list(NAMES)
    _, arrays = applied(model, named)
    assert arrays["class_names"].tolist() == list(NAMES)
    turned = save("turned.npz", logits=logits, label=label, class_names=np.array(NAMES[::-1]))
    line = refused("apply", model, turned, "--output", tmp_path / "out.npz")
    assert "fitted on classes bus, car, cyclist, pedestrian, and the file has pedestrian" in line
    # A file that does not name them is taken at its number of classes.
    unnamed = save("unnamed.npz", logits=logits, label=label)
    applied(model, unnamed)
    fewer = save("fewer.npz", logits=logits[:, :3], label=np.minimum(label, 2))
    line = refused("evaluate", fewer, "--model", model)
    assert "the recalibrator was fitted on 4 classes and the file has 3" in line


@pytest.mark.parametrize("method", CLASS_METHODS)
def test_where_classes_have_no_names_it_is_said_that_their_order_is_not_checked(
    run, save, tmp_path, method
):
    logits, label = simulated()
    words = ("--method", method, "--output", tmp_path / "model.json")
    unnamed = save("unnamed.npz", logits=logits, label=label)
    said = run("fit", unnamed, *words)
    by_position = method not in ("class-identity", "temperature")
    assert (f"{unnamed} has no class_names: {method} tells classes apart" in said) == by_position
    named = save("named.npz", logits=logits, label=label, class_names=np.array(NAMES))
    assert "no class_names" not in run("fit", named, *words)


def test_rejection_keeps_the_error_rate_of_the_rest_within_the_target(
    run, applied, classes, tmp_path
):
    path = tmp_path / "model.json"
    words = ("--method", "temperature", "--reject-above-error", "0.3", "--output", path)
    said = run("fit", classes, *words)
    rejection = read_class_selection(path.read_text()).rejection
    assert rejection is not None
    assert rejection.by == "entropy"
    assert 0 < rejection.rejected_share < 1
    assert rejection.error <= 0.3
    assert f"{rejection.rejected_share:.1%} of the rows are rejected, entropy above" in said
    with np.load(classes) as archive:
        prob, label = archive["prob"], archive["label"]
    temperature = document(path)["recalibrator"]["parameters"]["temperature"]
    made = softmax(np.log(prob) / temperature, axis=1)
    entropy = -(made * np.log(made)).sum(axis=1) / np.log(C)
    kept = entropy <= rejection.threshold * (1 + 1e-9)
    wrong = made.argmax(axis=1) != label
    assert wrong[kept].mean() == pytest.approx(rejection.error)
    _, arrays = applied(path, classes)
    assert arrays["prob"].shape == (N, C)
    assert arrays["rejected"].tolist() == (~kept).tolist()


# ---- models of the wrong kind


@pytest.fixture
def of_classes(fitted, classes):
    return fitted(classes, "--method", "temperature")


@pytest.fixture
def of_gaussians(fitted, drive):
    return fitted(drive, "--method", "variance-scaling")


def test_a_model_of_the_other_kind_is_refused(
    refused, of_classes, of_gaussians, classes, drive, tmp_path
):
    output = ("--output", tmp_path / "out.npz")
    for line in (
        refused("evaluate", drive, "--model", of_classes),
        refused("apply", of_classes, drive, *output),
    ):
        assert f"{of_classes} recalibrates class probabilities (temperature), and none of" in line
        assert "or a model of Gaussians" in line
    for line in (
        refused("evaluate", classes, "--model", of_gaussians),
        refused("apply", of_gaussians, classes, *output),
    ):
        assert f"{of_gaussians} recalibrates Gaussians (variance-scaling)" in line
        assert "Give a model of class probabilities" in line
    words = ("--method", "variance-scaling", "--previous", of_classes, *output)
    assert "class probabilities (temperature), not Gaussians" in refused("fit", drive, *words)
    line = refused("fit", drive, "--method", "temperature", *output)
    assert "has no class probabilities, which temperature is fitted to" in line


def test_of_a_file_with_both_the_model_says_which_is_recalibrated(
    evaluate, fitted, of_classes, classes, save
):
    with np.load(classes) as archive:
        arrays = dict(archive)
    random = np.random.default_rng(2)
    gaussians = {"mean": np.zeros((N, 1)), "var": np.ones((N, 1)), "gt": random.normal(size=(N, 1))}
    both = save("both.npz", **arrays, **gaussians)
    plain, by_classes = evaluate(both), evaluate(both, "--model", of_classes)
    scaling = fitted(both, "--method", "variance-scaling", "--fault", "variance=4")
    by_gaussians = evaluate(both, "--model", scaling)
    assert by_classes["dimensions"] == plain["dimensions"] != by_gaussians["dimensions"]
    assert by_gaussians["classification"] == plain["classification"]
    assert by_classes["classification"] != plain["classification"]
    assert by_classes["model"]["method"] == "temperature"
    assert by_gaussians["model"]["method"] == "variance-scaling"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--by", "class"), "--by"),
        (("--class", "car", "--where", "role=fit"), "--class, --where"),
        (("--dimensions", "x"), "--dimensions"),
        (("--fault", "variance=2"), "--fault"),
        (("--angles", "yaw"), "--angles: for Gaussians, and temperature is fitted to class"),
        (("--clamp", "1:2"), "--clamp: temperature has no use for it"),
        (("--objective", "mean"), "--objective: temperature has no use for it"),
    ],
)
def test_options_of_gaussians_are_refused_by_name(refused, classes, tmp_path, words, named):
    output = ("--output", tmp_path / "model.json")
    assert f"fit: {named}" in refused("fit", classes, "--method", "temperature", *words, *output)
    assert [entry.name for entry in tmp_path.iterdir()] == ["classes.npz"]


@pytest.mark.parametrize(
    "words",
    [("--tau", "0.5"), ("--quantiles",), ("--class", "car"), ("--angles", "yaw")],
)
def test_options_of_gaussians_are_refused_by_apply_too(
    refused, of_classes, classes, tmp_path, words
):
    line = refused("apply", of_classes, classes, *words, "--output", tmp_path / "out.npz")
    assert f"apply: {words[0]}: for Gaussians" in line


def test_nothing_to_fit_on_is_refused_with_the_reason(refused, save, tmp_path):
    logits, _ = simulated()
    file = save(logits=logits, label=np.full(N, -1))
    line = refused("fit", file, "--method", "temperature", "--output", tmp_path / "m.json")
    assert f"0 detections with a true class: of {N} rows, {N} have none" in line


# ---- what apply writes of a file


@pytest.fixture
def both():
    """Gaussians and class probabilities of the same detections, with all that may go with them."""
    random = np.random.default_rng(4)
    logits = random.normal(size=(N, C)) * 3
    label = (softmax(logits / 2, axis=1).cumsum(axis=1) > random.random((N, 1))).argmax(axis=1)
    return {
        "mean": np.zeros((N, 2)),
        "var": np.ones((N, 2)),
        "gt": random.normal(size=(N, 2)),
        "prob": softmax(logits, axis=1),
        "label": label,
        "track": np.arange(N) // 3,
        "seq": np.where(np.arange(N) < 90, "north", "south"),
        "frame": np.arange(N) // 5,
        "t": np.arange(N) / 10,
        "stamp_ns": np.arange(N) * 100_000_000 + 2**60,
    }


def test_class_probabilities_are_recalibrated_without_labels(fitted, applied, save, both):
    model = fitted(save("labelled.npz", both, "mean"), "--method", "temperature")
    _, expected = applied(model, save("labelled.npz", both, "mean"))
    _, found = applied(model, save("unlabelled.npz", both, "mean", "label"))
    assert np.array_equal(found["prob"], expected["prob"])
    assert "label" in expected and "label" not in found


def test_gaussians_beside_probabilities_without_labels_are_recalibrated(
    fitted, applied, save, both
):
    model = fitted(save("labelled.npz", both), "--method", "variance-scaling")
    _, found = applied(model, save("unlabelled.npz", both, "label", "gt"))
    assert found["var"].shape == (N, 2)
    assert np.isnan(found["gt"]).all()


def test_without_labels_nothing_is_fitted_or_evaluated(fitted, refused, save, both, tmp_path):
    model = fitted(save("labelled.npz", both, "mean"), "--method", "temperature")
    file = save("unlabelled.npz", both, "mean", "label")
    output = ("--output", tmp_path / "other.json")
    for words in (
        ("fit", file, "--method", "vector-scaling", *output),
        ("evaluate", file),
        ("evaluate", file, "--model", model),
    ):
        line = refused(*words)
        assert f"{file}: there are class probabilities, but no array 'label'. Save the" in line
    assert not (tmp_path / "other.json").exists()


def test_a_fit_on_what_was_written_rests_on_the_same_tracks_and_times(fitted, applied, save, both):
    file = save("both.npz", both)
    for method in ("variance-scaling", "temperature"):
        path, _ = applied(fitted(file, "--method", method), file)
        first, again = (fitted(f, "--method", method).read_text() for f in (file, path))
        basis = [
            [line for line in text.splitlines() if '"first"' in line or '"tracks"' in line]
            for text in (first, again)
        ]
        assert basis[0] == basis[1] and len(basis[0]) == 2


@pytest.mark.parametrize(
    ("method", "left_out"),
    [("variance-scaling", "prob, label, notes"), ("temperature", "mean, var, gt, notes")],
)
def test_what_of_the_file_is_not_written_is_said(
    run, fitted, save, both, tmp_path, method, left_out
):
    file = save("both.npz", both | {"notes": np.array(["none"])})
    output = ("--output", tmp_path / "out.npz")
    said = run("apply", fitted(file, "--method", method), file, *output)
    assert said.splitlines()[-1] == f"of the file not in it: {left_out}"


def test_where_all_is_written_nothing_is_said_of_it(run, fitted, save, both, tmp_path):
    output = ("--output", tmp_path / "out.npz")
    for method, other in (("variance-scaling", ("prob", "label")), ("temperature", ("mean",))):
        file = save("alone.npz", both, *other, *(("var", "gt") if other == ("mean",) else ()))
        model = fitted(file, "--method", method)
        assert "not in it" not in run("apply", model, file, *output)
        # Nor where ids of true objects were called otherwise.
        renamed = {("gt_id" if name == "track" else name): a for name, a in both.items()}
        file = save("gt.npz", renamed, *other, *(("var", "gt") if other == ("mean",) else ()))
        assert "not in it" not in run("apply", model, file, *output)


def test_what_is_known_of_each_row_goes_with_gaussians(fitted, applied, save, both):
    file = save("both.npz", both)
    _, found = applied(fitted(file, "--method", "variance-scaling"), file, "--rows", "60:")
    for name in ("track", "seq", "frame", "t", "stamp_ns"):
        assert found[name].tolist() == both[name][60:].tolist()
