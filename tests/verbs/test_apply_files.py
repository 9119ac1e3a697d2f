"""apply on whole files: truth is not needed, and what is not written is said."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import softmax

from tests.verbs.recordings import csv_file

N, C = 300, 3


@pytest.fixture
def arrays():
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


@pytest.fixture
def save(tmp_path):
    def saved(name, arrays, *left_out):
        path = tmp_path / name
        np.savez(path, **{key: array for key, array in arrays.items() if key not in left_out})
        return path

    return saved


# ---- without truth


def test_class_probabilities_are_recalibrated_without_labels(fitted, applied, save, arrays):
    model = fitted(save("labelled.npz", arrays, "mean"), "--method", "temperature")
    _, expected = applied(model, save("labelled.npz", arrays, "mean"))
    _, found = applied(model, save("unlabelled.npz", arrays, "mean", "label"))
    assert np.array_equal(found["prob"], expected["prob"])
    assert "label" in expected and "label" not in found


def test_gaussians_beside_probabilities_without_labels_are_recalibrated(
    fitted, applied, save, arrays
):
    model = fitted(save("labelled.npz", arrays), "--method", "variance-scaling")
    _, found = applied(model, save("unlabelled.npz", arrays, "label", "gt"))
    assert found["var"].shape == (N, 2)
    assert np.isnan(found["gt"]).all()


def test_without_labels_nothing_is_fitted_or_evaluated(fitted, refused, save, arrays, tmp_path):
    model = fitted(save("labelled.npz", arrays, "mean"), "--method", "temperature")
    file = save("unlabelled.npz", arrays, "mean", "label")
    output = ("--output", tmp_path / "other.json")
    for words in (
        ("fit", file, "--method", "vector-scaling", *output),
        ("evaluate", file),
        ("evaluate", file, "--model", model),
    ):
        line = refused(*words)
        assert f"{file}: there are class probabilities, but no array 'label'. Save the" in line
    assert not (tmp_path / "other.json").exists()


# ---- what is written, and what is not


def test_what_is_known_of_each_row_goes_with_gaussians(fitted, applied, save, arrays):
    file = save("both.npz", arrays)
    _, found = applied(fitted(file, "--method", "variance-scaling"), file, "--rows", "60:")
    for name in ("track", "seq", "frame", "t", "stamp_ns"):
        assert found[name].tolist() == arrays[name][60:].tolist()


def test_what_is_known_of_each_row_goes_with_class_probabilities(fitted, applied, save, arrays):
    file = save("both.npz", arrays)
    _, found = applied(fitted(file, "--method", "temperature"), file, "--rows", "60:")
    for name in ("label", "track", "seq", "frame", "t", "stamp_ns"):
        assert found[name].tolist() == arrays[name][60:].tolist()


def test_a_fit_on_what_was_written_rests_on_the_same_tracks_and_times(
    fitted, applied, save, arrays
):
    file = save("both.npz", arrays)
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
    run, fitted, save, arrays, tmp_path, method, left_out
):
    file = save("both.npz", arrays | {"notes": np.array(["none"])})
    output = ("--output", tmp_path / "out.npz")
    said = run("apply", fitted(file, "--method", method), file, *output)
    assert said.splitlines()[-1] == f"of the file not in it: {left_out}"


def test_where_all_is_written_nothing_is_said_of_it(run, fitted, save, arrays, tmp_path):
    output = ("--output", tmp_path / "out.npz")
    for method, other in (("variance-scaling", ("prob", "label")), ("temperature", ("mean",))):
        file = save("alone.npz", arrays, *other, *(("var", "gt") if other == ("mean",) else ()))
        model = fitted(file, "--method", method)
        assert "not in it" not in run("apply", model, file, *output)
        # Nor where ids of true objects were called otherwise.
        renamed = {("gt_id" if name == "track" else name): a for name, a in arrays.items()}
        file = save("gt.npz", renamed, *other, *(("var", "gt") if other == ("mean",) else ()))
        assert "not in it" not in run("apply", model, file, *output)


def test_a_column_of_a_table_that_is_not_written_is_said(run, fitted, rows, tmp_path):
    file = csv_file(tmp_path / "drive.csv", rows)
    model = fitted(file, "--dimensions", "x,y", "--method", "variance-scaling")
    words = ("--dimensions", "x,y", "--output", tmp_path / "out.npz")
    assert run("apply", model, file, *words).splitlines()[-1] == "of the file not in it: role"


def test_logits_are_said_not_to_be_written(run, fitted, save, arrays, tmp_path):
    logits = np.log(arrays["prob"])
    file = save("logits.npz", {"logits": logits, "label": arrays["label"]})
    model = fitted(file, "--method", "temperature")
    said = run("apply", model, file, "--output", tmp_path / "out.npz")
    assert said.splitlines()[-1] == "of the file not in it: logits"
