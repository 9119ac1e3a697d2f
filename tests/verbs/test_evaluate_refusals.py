"""evaluate: what it cannot do, it says in one line, with the field, the value and the remedy."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from monitor.cli import main
from tests.verbs.recordings import csv_file, npz_file

XYZ = ("--dimensions", "x,y,z")


def changed_document(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return path


@pytest.fixture
def model(drive, tmp_path, capsys):
    path = tmp_path / "model.json"
    words = ["fit", str(drive), *XYZ, "--method", "variance-scaling", "--output", str(path)]
    assert main(words) == 0
    capsys.readouterr()
    return path


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--dimensions", "x,q"), ("'q'", "x, y, z, yaw")),
        (("--dimensions", "x,x"), ("twice", "x, x")),
        (("--class", "tram"), ("'tram'", "car, cyclist, pedestrian")),
        (("--where", "colour=red"), ("'colour'", "seq, role")),
        (("--where", "role=test"), ("role=test", "Ask for less")),
        (("--rows", "900:"), ("rows 900:", "760 rows", "Ask for less")),
        (("--rows", "5:5"), ("rows 5:5", "Ask for less")),
        (("--range", "0:10"), ("--range", "--binning equal-width")),
        (("--model", "nowhere.json"), ("nowhere.json",)),
        (("--binning", "frozen"), ("--binning frozen", "--edges-from FILE")),
        (("--edges-from", "a.csv"), ("--edges-from", "--binning frozen")),
        (("--binning", "frozen", "--edges-from", "gone.csv"), ("gone.csv",)),
        (("--micro-bins", "64"), ("--micro-bins", "--engine streaming")),
    ],
)
def test_what_cannot_be_selected_is_named_with_what_there_is(refusal, drive, words, named):
    line = refusal(drive, *words)
    assert all(part in line for part in named), line


def test_a_file_that_is_not_there_is_named(refusal, tmp_path):
    line = refusal(tmp_path / "gone.csv")
    assert "gone.csv" in line
    assert "Give a readable file" in line


@pytest.mark.parametrize(
    ("name", "data", "named"),
    [
        ("drive.csv", b"x,y\n1,2\n", "var_<dimension>"),
        ("drive.csv", b"x,var_x\n1,one\n", "line 2: var_x is 'one'"),
        ("drive.csv", b"var_x\n1\n", "no column 'x'"),
        ("drive.csv", b"", "var_<dimension>"),
        ("drive.csv.gz", b"x,var_x\n1,1\n", "cannot be read"),
        ("drive.npz", b"PK", "cannot be read"),
        ("drive.txt", b"", "must end in .csv, .csv.gz or .npz"),
    ],
)
def test_a_file_of_something_else_is_named(refusal, tmp_path, name, data, named):
    path = tmp_path / name
    path.write_bytes(data)
    line = refusal(path)
    assert str(path) in line
    assert named in line


@pytest.mark.parametrize("engine", ["exact", "streaming"])
def test_rows_without_truth_leave_nothing_to_evaluate(refusal, rows, tmp_path, engine):
    path = csv_file(tmp_path / "drive.csv", rows.of(~rows.labelled))
    line = refusal(path, "--engine", engine)
    assert "nothing to evaluate: of 97 rows, 97 have no truth" in line
    assert "Select rows with ground truth" in line


def test_a_reference_of_other_dimensions_is_refused(refusal, rows, drive, tmp_path):
    path = tmp_path / "plain.npz"
    np.savez(path, mean=rows.mean, var=np.ones((rows.n, 4)), gt=rows.truth)
    line = refusal(drive, "--binning", "frozen", "--edges-from", path)
    assert "has dimensions 0, 1, 2, 3 and not x, y, z, yaw" in line
    assert "Give --dimensions" in line


def test_a_fault_in_time_needs_times(refusal, rows, tmp_path):
    line = refusal(npz_file(tmp_path / "drive.npz", rows), "--fault", "variance=2@t=1")
    assert "@t=1" in line
    assert "no column t" in line


def test_a_model_of_other_dimensions_is_refused(refusal, drive, model):
    line = refusal(drive, "--model", model)
    assert "x,y,z but the file is read with x,y,z,yaw" in line
    assert "--dimensions x,y,z" in line


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"version": "variance-scaling-000000000000"}, "'version'"),
        ({"dimensions": ["x", "y", "h"]}, "'version'"),
        ({"dimensions": ["x", "y"]}, "'fallback' has 3 dimensions but 'dimensions' names 2"),
        ({"fallback": {"method": "magic"}}, "'magic'"),
        ({"format": "other"}, "'format'"),
    ],
)
def test_a_model_that_was_changed_is_refused(refusal, drive, model, changes, named):
    line = refusal(drive, *XYZ, "--model", changed_document(model, **changes))
    assert str(model) in line
    assert named in line


def test_a_model_that_is_no_json_is_refused(refusal, drive, model):
    model.write_bytes(gzip.compress(b"{}"))
    assert str(model) in refusal(drive, "--model", model)
    model.write_text("scale: 2")
    assert "is no JSON" in refusal(drive, "--model", model)


@pytest.mark.parametrize(
    ("option", "text"),
    [
        *[("--rows", text) for text in ("5", "a:b", "1:2:3", "-3:", "1.5:2")],
        *[("--where", text) for text in ("role", "=deploy")],
        *[
            ("--fault", text)
            for text in ("0.2", "variance=0", "variance=-1", "variance=x", "variance=1e400")
        ],
        *[("--fault", text) for text in ("mean=2", "variance=2@t=", "variance=2@t=-1")],
        *[("--range", text) for text in ("5", "5:1", "2:2", "a:b", "0:inf", "0:1e155", "nan:1")],
        *[("--bins", text) for text in ("0", "-2", "ten", "2.5", "²")],
        *[("--class-bins", text) for text in ("0", "ten")],
        *[("--min-bin-rows", text) for text in ("0", "-2", "ten")],
        *[("--micro-bins", text) for text in ("0", "5000", "ten")],
        *[("--tau", text) for text in ("0", "1", "0.5,1.5", "a", "0.5,", "nan")],
        ("--engine", "fast"),
        ("--binning", "log"),
        ("--class-binning", "frozen"),
    ],
)
def test_an_option_that_makes_no_sense_is_wrong_usage(capsys, drive, option, text):
    with pytest.raises(SystemExit) as end:
        main(["evaluate", str(drive), f"{option}={text}"])
    assert end.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert f"argument {option}: " in said.err
    assert f"'{text}'" in said.err


@pytest.fixture
def classes(tmp_path):
    path = tmp_path / "classes.npz"
    np.savez(path, prob=np.full((9, 3), 1 / 3), label=np.zeros(9, int))
    return path


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--binning", "frozen", "--edges-from", "/nowhere"), "--binning, --edges-from"),
        (("--binning", "equal-count"), "--binning"),
        (("--binning", "equal-width", "--range", "0:1"), "--binning, --range"),
        (("--bins", "20"), "--bins"),
        (("--min-bin-rows", "1"), "--min-bin-rows"),
        (("--tau", "0.5"), "--tau"),
        (("--fault", "variance=2"), "--fault"),
        (("--micro-bins", "32", "--engine", "streaming"), "--micro-bins"),
        (("--dimensions", "x", "--angles", "yaw,heading"), "--dimensions, --angles"),
        (("--class", "car", "--where", "role=fit"), "--class, --where"),
    ],
)
def test_options_of_gaussians_are_refused_where_there_are_none(refusal, classes, words, named):
    line = refusal(classes, *words)
    assert f"evaluate: {named}: for Gaussians, and {classes} has class probabilities only" in line
    assert "choose rows by --rows" in line


@pytest.mark.parametrize("beside", [(), ("--class", "car")])
def test_options_of_class_probabilities_are_refused_where_none_are_evaluated(
    refusal, drive, beside
):
    line = refusal(drive, *beside, "--class-bins", "20", "--class-binning", "equal-width")
    assert f"--class-binning, --class-bins: no class probabilities of {drive}" in line
    assert "prob and label, without --class and --where" in line


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--class-bins", "25"), "--class-bins 25: --engine streaming keeps class probabilities"),
        (("--class-binning", "equal-count"), "--class-binning equal-count sorts the rows"),
    ],
)
def test_bins_of_classes_that_streaming_cannot_make_are_refused(refusal, classes, words, named):
    line = refusal(classes, "--engine", "streaming", *words)
    assert named in line
    assert "--engine exact" in line
