"""fit --by: slices with fits of their own, thin ones that borrow, and what a fit rests on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.commands.documents import document
from tests.commands.recordings import csv_file, error
from tests.commands.spoken import wrong_usage
from tests.recalibration.rows import read_selection

XYZ = ("--dimensions", "x,y,z")
SCALING = (*XYZ, "--method", "variance-scaling")
EACH = ("--fewest-tracks", "1")


EDGES = (8.0, 16.0)

BY_RANGE = ("--by", "class,range", "--range-edges", "8,16")


def scale_of(rows):
    """Of x, y and z, in closed form."""
    there = rows.of(rows.labelled)
    variance = np.einsum("nii->ni", there.covariance)
    return np.sqrt(np.mean(error(there) ** 2 / variance, axis=0))[:3]


def buckets(rows):
    distance = np.linalg.norm(rows.mean[:, :3], axis=1)
    return np.array(["<8", "8-16", ">=16"])[np.searchsorted(EDGES, distance, side="right")]


def test_each_bucket_has_a_fit_and_every_row_the_finest(evaluate, fitted, applied, drive, rows):
    path = fitted(drive, *SCALING, *BY_RANGE, *EACH)
    model = document(path)
    there = rows.of(rows.labelled)
    names = {f"{c}/{b}" for c, b in zip(there.class_name, buckets(there), strict=True)}
    assert set(model["slices"]) == names | {"car", "cyclist", "pedestrian"}
    assert model["ranges"] == {"edges": list(EDGES), "dimensions": ["x", "y", "z"]}
    for name in names:
        class_name, bucket = name.split("/")
        part = rows.of((rows.class_name == class_name) & (buckets(rows) == bucket))
        scale = model["slices"][name]["parameters"]["scale"]
        assert scale == pytest.approx(scale_of(part), rel=1e-8)
    written, arrays = applied(path, drive, *XYZ)
    sent = np.einsum("nii->ni", rows.covariance)[:, :3]
    factor = np.sqrt(np.einsum("nii->ni", arrays["cov"]) / sent)
    for row, (name, bucket) in enumerate(zip(rows.class_name, buckets(rows), strict=True)):
        serving = model["slices"].get(f"{name}/{bucket}", model["slices"][name])
        assert factor[row] == pytest.approx(serving["parameters"]["scale"])
    direct = evaluate(drive, *XYZ, "--model", path)
    assert direct.pop("model")["method"] == "variance-scaling"
    assert evaluate(written) == direct


def test_a_fit_is_drawn_towards_the_earlier_one_slice_by_slice(fitted, drive):
    words = (*SCALING, "--by", "class", *EACH)
    earlier = fitted(drive, *words, "--fault", "variance=0.25")
    own = document(fitted(drive, *words))
    drawn = document(fitted(drive, *words, "--previous", earlier, "--prior-strength", "100"))
    before = document(earlier)
    for name in own["slices"]:
        parts = [model["slices"][name] for model in (own, drawn, before)]
        scales = [part["parameters"]["scale"] for part in parts]
        assert (np.diff(scales, axis=0) > 0).all()
        assert parts[1]["basis"]["borrows_from"] == before["version"]


def test_a_slice_without_truth_stays_and_one_that_is_gone_is_told(
    run, fitted, drive, rows, tmp_path
):
    words = (*SCALING, "--by", "class", *EACH)
    earlier = fitted(drive, *words)
    cyclist, car = rows.class_name == "cyclist", rows.class_name == "car"
    truth, track = rows.truth.copy(), rows.track.copy()
    truth[cyclist], track[cyclist] = np.nan, -1
    parts = replace(rows, truth=truth, track=track).of(~car)
    file = csv_file(tmp_path / "week.csv", parts)
    path = tmp_path / "model.json"
    said = run("fit", file, *words, "--previous", earlier, "--output", path)
    before, after = document(earlier), document(path)
    assert set(after["slices"]) == {"cyclist", "pedestrian"}
    # With all that it rests on.
    assert after["slices"]["cyclist"] == before["slices"]["cyclist"]
    assert f"slice cyclist stays as in {before['version']}: cannot fit on 0 detections" in said
    assert "slice car of --previous has no rows here, and is in the new model no more" in said


def test_a_factor_stops_at_the_end_of_the_clamp_and_that_is_said(run, drive, tmp_path):
    words = (*SCALING, "--fault", "variance=0.01", "--clamp", "0.5:4")
    said = run("fit", drive, *words, "--output", tmp_path / "model.json")
    assert document(tmp_path / "model.json")["fallback"]["parameters"]["scale"] == [4.0] * 3
    assert "all rows: the factor on σ of x, y, z is at an end of --clamp" in said


def test_a_model_says_on_how_many_rows_tracks_and_which_period_it_rests(run, drive, rows, tmp_path):
    path = tmp_path / "model.json"
    said = run("fit", drive, *SCALING, "--by", "class", *EACH, "--output", path)
    model = document(path)
    assert f"slice car: {read_selection(path.read_text()).bases['car']}\n" in said
    entries = {name: part["basis"] for name, part in model["slices"].items()}
    for name, basis in [("", model["fallback"]["basis"]), *entries.items()]:
        there = rows.of(rows.labelled & ((rows.class_name == name) | (name == "")))
        tracks = set(zip(there.sequence, there.track, strict=True))
        assert (basis["rows"], basis["tracks"]) == (there.n, len(tracks))
        assert 0 < basis["effective_rows"] <= there.n
        assert (basis["first"], basis["last"]) == (there.time_s.min(), there.time_s.max())
        assert basis["clock"] == "t"
        whose = f"slice {name}: " if name else "fitted on "
        assert f"{whose}{there.n} rows of {len(tracks)} tracks, worth " in said
    # Stamps of nanoseconds stay what they are.
    stamped, stamps = tmp_path / "stamped.npz", 1_318_000_000_000_000_001 + np.arange(rows.n)
    np.savez(stamped, mean=rows.mean, cov=rows.covariance, gt=rows.truth, stamp_ns=stamps)
    run("fit", stamped, "--angles", "3", "--method", "variance-scaling", "--output", path)
    basis, of_rows = document(path)["fallback"]["basis"], stamps[rows.labelled]
    period = (of_rows.min(), of_rows.max(), "stamp_ns")
    assert (basis["first"], basis["last"], basis["clock"]) == period


def test_what_does_not_fit_the_file_is_refused(fitted, refused, drive, tmp_path):
    other = fitted(drive, *XYZ, "--method", "covariance-scaling")
    wide = fitted(drive, "--method", "variance-scaling")
    output = ("--output", tmp_path / "model.json")
    line = refused("fit", drive, *SCALING, "--range-edges", "20,40", *output)
    assert "--range-edges: it is for --by range" in line
    line = refused("fit", drive, *SCALING, "--previous", other, *output)
    assert f"--previous {other}: it was fitted by covariance-scaling" in line
    line = refused("fit", drive, *SCALING, "--previous", wide, *output)
    assert "fitted on dimensions x,y,z,yaw but the file is read with x,y,z" in line
    line = refused("fit", drive, *XYZ, "--method", "isotonic-std", "--previous", other, *output)
    assert "--previous: isotonic-std is not drawn towards an earlier fit; variance-scaling" in line
    np.savez(tmp_path / "plain.npz", mean=np.ones((9, 2)), var=np.ones((9, 2)), gt=np.zeros((9, 2)))
    line = refused("fit", tmp_path / "plain.npz", *SCALING[2:], "--by", "range", *output)
    assert "--by range: the range is the norm of x, y, z, and the file is read with 0, 1" in line


@pytest.mark.parametrize(
    ("option", "texts"),
    [
        ("--by", ("", "colour", "class,class")),
        ("--range-edges", ("", "40,20", "0,20", "20,20", "inf")),
        ("--clamp", ("1", "2:1", "0:1", "nan:2")),
        ("--fewest-tracks", ("0", "few", "inf")),
        ("--surrogate-level", ("0.0005", "0.99995")),
        ("--inducing", ("0", "300")),
        ("--time-constant", ("0", "inf", "soon")),
    ],
)
def test_an_option_that_makes_no_sense_is_wrong_usage(drive, tmp_path, option, texts):
    words = ("--method", "variance-scaling", "--output", tmp_path / "model.json")
    for text in texts:
        wrong_usage(option, text, "fit", drive, *words)
