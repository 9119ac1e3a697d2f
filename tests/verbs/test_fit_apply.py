"""fit and apply: what is fitted on a file mends that file, and nothing is left half done."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import numpy as np
import pytest

from monitor.cli import main
from tests.verbs.recordings import (
    DIMENSIONS,
    csv_file,
    error,
    npz_file,
    recorded,
    with_bad_covariances,
)

METHODS = ("identity", "variance-scaling", "covariance-scaling")
XYZ = ("--dimensions", "x,y,z")
OF_EACH_ROW = ("class", "seq", "frame", "t", "score", "track", "ignore")
FAULTS = {"x1": (), "÷25": ("--fault", "variance=0.04"), "x25": ("--fault", "variance=25")}
WAYS = [
    ("variance-scaling",),
    ("covariance-scaling",),
    ("covariance-scaling", "--full-input", "whiten"),
]


def measured(run, file, *words):
    return json.loads(run("evaluate", file, *words, "--json"))


# ---- there and back


@pytest.mark.parametrize("way", WAYS, ids=" ".join)
def test_a_model_applied_is_a_model_evaluated(run, fitted, applied, drive, way):
    model = fitted(drive, "--method", *way)
    path, _ = applied(model, drive)
    version = json.loads(model.read_text())["version"]
    what = {"version": version, "method": way[0], "output": "gaussian"}
    assert measured(run, path) | {"model": what} == measured(run, drive, "--model", model)


@pytest.mark.parametrize("way", WAYS, ids=" ".join)
@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_fitted_on_a_file_brings_its_nees_to_one(run, fitted, applied, drive, way, fault):
    model = fitted(drive, *XYZ, *FAULTS[fault], "--method", *way)
    path, _ = applied(model, drive, *XYZ, *FAULTS[fault])
    found = measured(run, path)
    if "whiten" in way:
        assert found["joint"]["nees_over_k"] == pytest.approx(1.0, rel=1e-8)
    else:
        for dimension in found["dimensions"].values():
            assert dimension["nees_mean"] == pytest.approx(1.0, rel=1e-8)
            assert dimension["std_scaling"] == pytest.approx(1.0, rel=1e-8)


@pytest.mark.parametrize("way", WAYS, ids=" ".join)
def test_a_constant_factor_on_the_reported_variances_is_undone(run, fitted, applied, drive, way):
    covariances = []
    for words in FAULTS.values():
        model = fitted(drive, *XYZ, *words, "--method", *way)
        covariances.append(applied(model, drive, *XYZ, *words)[1]["cov"])
        if words:
            # A model of the faulty detector on a sound one: as wrong as the fault was.
            path, _ = applied(model, drive, *XYZ)
            ratio = measured(run, path)["joint"]["nees_over_k"]
            assert max(ratio, 1 / ratio) > 10
    size = np.abs(covariances[0]).max(axis=(1, 2), keepdims=True)
    for other in covariances[1:]:
        assert (np.abs(other - covariances[0]) <= 1e-9 * size).all()


def test_the_identity_changes_no_bit(fitted, applied, drive, rows):
    _, arrays = applied(fitted(drive, "--method", "identity"), drive)
    assert np.array_equal(arrays["mean"], rows.mean)
    expected = np.zeros_like(rows.covariance)
    expected[:, range(4), range(4)] = np.einsum("nii->ni", rows.covariance)
    expected[:, [0, 1], [1, 0]] = rows.covariance[:, [0, 1], [1, 0]]
    assert np.array_equal(arrays["cov"], expected)
    assert np.array_equal(arrays["gt"], rows.truth, equal_nan=True)


def test_selected_rows_are_fitted_and_others_written(run, fitted, applied, drive, rows):
    model = fitted(drive, "--method", "variance-scaling", "--where", "role=fit")
    labelled = rows.labelled & (rows.role == "fit")
    assert json.loads(model.read_text())["fitted_on"]["rows"] == np.count_nonzero(labelled)
    _, arrays = applied(model, drive, "--rows", "600:", "--class", "car")
    chosen = rows.of(slice(600, None)).of_class("car")
    assert np.array_equal(arrays["mean"], chosen.mean)
    there = rows.of(labelled)
    scale = np.mean(error(there) ** 2 / np.einsum("nii->ni", there.covariance), axis=0)
    variance = np.einsum("nii->ni", chosen.covariance) * scale
    assert np.einsum("nii->ni", arrays["cov"]) == pytest.approx(variance, rel=1e-8)


# ---- what is written


def test_an_archive_of_covariances_has_mean_and_cov(fitted, applied, drive, rows):
    _, arrays = applied(fitted(drive, "--method", "variance-scaling"), drive)
    assert arrays.keys() == {"mean", "cov", "gt", "dimensions", *OF_EACH_ROW}
    assert arrays["cov"].shape == (rows.n, 4, 4)
    assert tuple(arrays["dimensions"]) == DIMENSIONS
    assert arrays["class"].tolist() == rows.class_name.tolist()


@pytest.mark.parametrize(
    ("method", "name"),
    [("identity", "var"), ("variance-scaling", "var"), ("covariance-scaling", "cov")],
)
def test_variances_stay_so_unless_correlations_are_learned(
    fitted, applied, rows, tmp_path, method, name
):
    drive = csv_file(tmp_path / "drive.csv", rows, full=False)
    _, arrays = applied(fitted(drive, "--method", method), drive)
    assert arrays.keys() == {"mean", name, "gt", "dimensions", *OF_EACH_ROW}
    if name == "cov":
        assert (arrays["cov"][:, 0, 1] != 0).all()
        assert (np.linalg.eigvalsh(arrays["cov"])[:, 0] > 0).all()


@pytest.mark.parametrize("method", METHODS)
def test_a_model_is_a_json_document_that_names_itself(run, drive, rows, tmp_path, method):
    path = tmp_path / "model.json"
    said = run("fit", drive, *XYZ, "--method", method, "--output", path)
    document = json.loads(path.read_text())
    assert document["version"].startswith(f"{method}-")
    assert document["version"] in said
    assert str(path) in said
    assert document["dimensions"] == ["x", "y", "z"]
    assert document["fallback"]["method"] == method
    assert document["slices"] == {}
    assert document["fitted_on"] == {
        "file": drive.name,
        "rows": int(np.count_nonzero(rows.labelled)),
        "classes": ["car", "cyclist", "pedestrian"],
    }
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.json"]


def test_a_fit_repeated_writes_the_same_bytes(fitted, drive):
    words = ("--method", "covariance-scaling", "--by-class")
    assert fitted(drive, *words).read_bytes() == fitted(drive, *words).read_bytes()


def test_a_model_takes_the_place_of_an_older_one(fitted, run, drive, tmp_path):
    path = fitted(drive, "--method", "identity")
    run("fit", drive, "--method", "variance-scaling", "--output", path)
    assert json.loads(path.read_text())["fallback"]["method"] == "variance-scaling"


# ---- options of fit


def test_by_class_every_class_has_its_own_scale(run, fitted, drive):
    words = ("--method", "variance-scaling", "--by-class", "--fewest-tracks", "1")
    model = fitted(drive, *XYZ, *words)
    document = json.loads(model.read_text())
    assert list(document["slices"]) == ["car", "cyclist", "pedestrian"]
    scales = {
        name: part["parameters"]["scale"]
        for name, part in [*document["slices"].items(), ("fallback", document["fallback"])]
    }
    assert len({tuple(scale) for scale in scales.values()}) == 4
    for name in document["slices"]:
        found = measured(run, drive, *XYZ, "--class", name, "--model", model)
        for dimension in found["dimensions"].values():
            assert dimension["nees_mean"] == pytest.approx(1.0, rel=1e-8)


def test_a_class_with_too_little_truth_is_left_to_the_fallback(run, rows, tmp_path):
    cyclist = rows.class_name == "cyclist"
    track, truth = rows.track.copy(), rows.truth.copy()
    track[cyclist], truth[cyclist] = -1, np.nan
    drive = csv_file(tmp_path / "drive.csv", replace(rows, track=track, truth=truth))
    model = tmp_path / "model.json"
    said = run(
        *("fit", drive, *XYZ, "--method", "covariance-scaling", "--by-class"), "--output", model
    )
    assert "slice cyclist is left to the fallback: cannot fit on 0 detections" in said
    assert list(json.loads(model.read_text())["slices"]) == ["car", "pedestrian"]
    # It is served all the same.
    run("apply", model, drive, *XYZ, "--class", "cyclist", "--output", tmp_path / "out.npz")


@pytest.mark.parametrize("method", ["variance-scaling", "covariance-scaling"])
def test_objectives_agree_on_gaussian_errors(fitted, drive, method):
    scales = {}
    for objective in ("mean", "winsorised-mean", "quantile"):
        words = (*XYZ, "--fault", "variance=0.04", "--method", method, "--objective", objective)
        parameters = json.loads(fitted(drive, *words).read_text())["fallback"]["parameters"]
        assert parameters["objective"] == objective
        scales[objective] = parameters["scale"]
        assert scales[objective] == pytest.approx([5.0] * 3, rel=0.15)
    assert len({tuple(scale) for scale in scales.values()}) == 3


def test_the_quantile_objective_satisfies_coverage_on_heavy_tails(run, fitted, tmp_path):
    drive = csv_file(tmp_path / "drive.csv", recorded(3, degrees_of_freedom=2.5))
    coverage = {}
    for objective in ("mean", "quantile"):
        model = fitted(drive, *XYZ, "--method", "variance-scaling", "--objective", objective)
        found = measured(run, drive, *XYZ, "--model", model)
        (level,) = np.flatnonzero(np.isclose(found["tau"], 0.7))
        coverage[objective] = [d["picp_by_tau"][level] for d in found["dimensions"].values()]
    assert coverage["quantile"] == pytest.approx([0.7] * 3, abs=0.04)
    assert min(coverage["mean"]) > 0.76


def test_full_input_scale_keeps_correlations_and_whiten_corrects_them(
    fitted, applied, rows, tmp_path
):
    # The detector has the sign of every correlation wrong.
    covariance = rows.covariance.copy()
    covariance[:, [0, 1], [1, 0]] *= -1
    drive = csv_file(tmp_path / "drive.csv", replace(rows, covariance=covariance))
    correlation = {}
    for full_input in ("scale", "whiten"):
        words = (*XYZ, "--method", "covariance-scaling", "--full-input", full_input)
        cov = applied(fitted(drive, *words), drive, *XYZ)[1]["cov"]
        correlation[full_input] = cov[:, 0, 1] / np.sqrt(cov[:, 0, 0] * cov[:, 1, 1])
    sent = covariance[:, 0, 1] / np.sqrt(covariance[:, 0, 0] * covariance[:, 1, 1])
    assert correlation["scale"] == pytest.approx(sent)
    assert np.abs(correlation["whiten"] - sent).max() > 0.01


# ---- rows that are no Gaussians


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("write", [csv_file, npz_file])
def test_bad_covariances_are_left_out_of_the_fit_and_left_as_they_are(
    fitted, applied, rows, tmp_path, method, write
):
    name = {csv_file: "drive.csv", npz_file: "drive.npz"}[write]
    spoiled, bad = with_bad_covariances(rows)
    model = fitted(write(tmp_path / name, spoiled), "--method", method)
    sound_model = fitted(write(tmp_path / name, rows.of(~bad)), "--method", method)
    document, without = (json.loads(path.read_text()) for path in (model, sound_model))
    assert document == without

    _, alone = applied(model, tmp_path / name)
    _, arrays = applied(model, write(tmp_path / name, spoiled))
    assert np.array_equal(arrays["cov"][~bad], alone["cov"])
    found, sent = arrays["cov"][bad], spoiled.covariance[bad]
    assert np.array_equal(found[:, range(4), range(4)], sent[:, range(4), range(4)], equal_nan=True)
    assert np.array_equal(found[:, 0, 1], sent[:, 0, 1])
    assert np.array_equal(arrays["mean"], spoiled.mean)


def test_a_file_of_bad_covariances_alone_comes_back_as_it_was(
    fitted, applied, drive, rows, tmp_path
):
    spoiled, bad = with_bad_covariances(rows)
    alone = npz_file(tmp_path / "bad.npz", spoiled.of(bad))
    _, arrays = applied(fitted(drive, "--method", "variance-scaling"), alone)
    assert np.array_equal(arrays["cov"], spoiled.covariance[bad], equal_nan=True)


# ---- what they do not do

FIT = ("--method", "variance-scaling", "--output", "model.json")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("gone.csv", *FIT), "gone.csv"),
        (("drive.csv.gz", *FIT, "--where", "role=none"), "role=none. Ask for less"),
        (("drive.csv.gz", *FIT, "--class", "tram"), "'tram'. Classes there are: car"),
        (("drive.csv.gz", *FIT, "--dimensions", "q"), "'q' with a variance. Dimensions there are"),
        (
            ("drive.csv.gz", *FIT, "--where", "gt_id="),
            "on 0 detections with ground truth: of 97",
        ),
        (
            ("drive.csv.gz", *FIT[:-1], "nowhere/m.json"),
            "--output nowhere/m.json: cannot be written",
        ),
        (("drive.csv.gz", *FIT[:-1], "folder"), "--output folder: cannot be written"),
        (("drive.csv.gz", *FIT[:-1], "drive.csv.gz/m.json"), "--output drive.csv.gz/m.json"),
        (
            ("drive.csv.gz", "--method", "covariance-scaling", "--rows", "0:2", *FIT[2:]),
            "Use variance-scaling or more data",
        ),
    ],
)
def test_a_fit_that_cannot_be_says_why_and_leaves_nothing(
    refused, drive, tmp_path, monkeypatch, words, named
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "drive.csv.gz").write_bytes(drive.read_bytes())
    assert named in refused("fit", *words)
    assert {entry.name for entry in tmp_path.iterdir()} == {"folder", "drive.csv.gz"}


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("gone.json", "drive.csv.gz", "--output", "o.npz"), "gone.json"),
        (("model.json", "gone.csv", "--output", "o.npz"), "gone.csv"),
        (("drive.csv.gz", "drive.csv.gz", "--output", "o.npz"), "cannot read the recalibrator"),
        (("model.json", "drive.csv.gz", "--output", "o.csv"), "--output o.csv: the name must end"),
        (("model.json", "drive.csv.gz", *XYZ, "--output", "no/o.npz"), "--output no/o.npz: cannot"),
        (("model.json", "drive.csv.gz", *XYZ, "--output", "folder.npz"), "folder.npz: cannot be"),
        (("model.json", "drive.csv.gz", "--output", "o.npz"), "give --dimensions x,y,z"),
        (("changed.json", "drive.csv.gz", *XYZ, "--output", "o.npz"), "'version'"),
        (("model.json", "drive.csv.gz", "--rows", "9:9", "--output", "o.npz"), "rows 9:9. Ask"),
    ],
)
def test_an_apply_that_cannot_be_says_why_and_leaves_nothing(
    refused, run, drive, tmp_path, monkeypatch, words, named
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.npz").mkdir()
    (tmp_path / "drive.csv.gz").write_bytes(drive.read_bytes())
    run("fit", drive, *XYZ, *FIT)
    document = json.loads((tmp_path / "model.json").read_text())
    document["fallback"]["parameters"]["scale"][0] *= 2
    (tmp_path / "changed.json").write_text(json.dumps(document))
    before = {entry.name for entry in tmp_path.iterdir()}
    assert named in refused("apply", *words)
    assert {entry.name for entry in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("--method", "magic"),
        ("--objective", "median"),
        ("--full-input", "rotate"),
        ("--rows", "5"),
        ("--fault", "0.2"),
        ("--where", "role"),
    ],
)
def test_an_option_that_makes_no_sense_is_wrong_usage(capsys, drive, tmp_path, option, text):
    words = ["--method", "identity", "--output", str(tmp_path / "model.json")]
    with pytest.raises(SystemExit) as end:
        main(["fit", str(drive), *words, option, text])
    assert end.value.code == 2
    assert f"argument {option}: " in (said := capsys.readouterr().err)
    assert f"'{text}'" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [("--output", "m.json"), ("--method", "identity")])
def test_method_and_output_must_be_given(capsys, drive, words):
    with pytest.raises(SystemExit) as end:
        main(["fit", str(drive), *words])
    assert end.value.code == 2
    assert "required" in capsys.readouterr().err


def test_an_output_that_is_a_link_is_written_through_and_a_device_is_refused(tmp_path, capsys):
    path = tmp_path / "drive.csv"
    path.write_text("x,var_x,gt_x\n0,1,1\n0,1,-2\n")
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("old")
    link.symlink_to(real)
    words = ["fit", str(path), "--method", "variance-scaling", "--output"]
    assert main([*words, str(link)]) == 0
    assert link.is_symlink()
    assert real.read_text().startswith("{")
    os.mkfifo(tmp_path / "pipe")
    assert main([*words, str(tmp_path / "pipe")]) == 1
    assert "not a regular file" in capsys.readouterr().err
