"""evaluate: what it prints is what the formulas say of the rows that were asked for."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import numpy as np
import pytest

from monitor.cli import main
from tests.verbs.recordings import (
    DIMENSIONS,
    csv_file,
    error,
    nees,
    npz_file,
    recorded,
    with_bad_covariances,
)

# What the contract names, and behind | what is printed besides.
KEYS = {"rows", "dimensions", "joint"} | {"rows_without_truth", "rows_refused", "tau"}
DIMENSION_KEYS = {
    *("ence", "ence_noise_floor", "uce", "nll", "c_v", "nees_mean", "qce", "qce_by_tau"),
    *("pinball", "pinball_by_tau", "picp_by_tau", "std_scaling"),
} | {"bias"}
JOINT_KEYS = {
    *("k", "nll", "nees_mean", "nees_over_k", "nees_median_ratio"),
    *("qce", "qce_by_tau", "qce_marginal"),
}
XYZ = ("--dimensions", "x,y,z")
SUMS = ("nll", "c_v", "nees_mean", "pinball", "std_scaling", "bias")


@pytest.fixture(scope="module")
def rows():
    return recorded()


@pytest.fixture(scope="module")
def drive(rows, tmp_path_factory):
    return csv_file(tmp_path_factory.mktemp("evaluate") / "drive.csv.gz", rows)


@pytest.fixture
def evaluate(capsys):
    """The object that evaluate prints."""

    def evaluated(*words):
        assert main(["evaluate", *map(str, words), "--json"]) == 0
        said = capsys.readouterr()
        assert said.err == ""
        return json.loads(said.out)

    return evaluated


@pytest.fixture
def refusal(capsys):
    """The one line that evaluate says when it cannot."""

    def refused(*words):
        assert main(["evaluate", *map(str, words)]) == 1
        said = capsys.readouterr()
        assert said.out == ""
        (line,) = said.err.splitlines()
        assert line.startswith("calibration-monitor evaluate: ")
        return line

    return refused


# ---- what is printed


@pytest.mark.parametrize("engine", ["exact", "streaming"])
def test_the_object_has_the_keys_of_the_contract(evaluate, drive, rows, engine):
    found = evaluate(drive, "--engine", engine)
    assert found.keys() == KEYS
    assert tuple(found["dimensions"]) == DIMENSIONS
    for dimension in found["dimensions"].values():
        assert dimension.keys() == DIMENSION_KEYS
        for by_tau in ("qce_by_tau", "pinball_by_tau", "picp_by_tau"):
            assert len(dimension[by_tau]) == 19
    assert found["joint"].keys() == JOINT_KEYS
    assert found["joint"]["k"] == 3  # without yaw
    assert found["tau"] == pytest.approx(np.linspace(0.05, 0.95, 19))
    assert found["rows"] == np.count_nonzero(rows.labelled)
    assert found["rows_without_truth"] == np.count_nonzero(~rows.labelled) > 0
    assert found["rows_refused"] == 0


@pytest.mark.parametrize("engine", ["exact", "streaming"])
def test_the_measures_are_those_of_the_formulas(evaluate, drive, rows, engine):
    found = evaluate(drive, "--engine", engine, "--bins", "1")
    there = rows.of(rows.labelled)
    joint = found["joint"]
    assert joint["nees_mean"] == pytest.approx(nees(rows).mean(), rel=1e-9)
    assert joint["nees_over_k"] == pytest.approx(nees(rows).mean() / 3, rel=1e-9)
    _, log_det = np.linalg.slogdet(there.covariance[:, :3, :3])
    nll = 0.5 * (3 * np.log(2 * np.pi) + log_det.mean() + nees(rows).mean())
    assert joint["nll"] == pytest.approx(nll, rel=1e-9)
    for i, name in enumerate(DIMENSIONS):
        r, variance = error(there)[:, i], there.covariance[:, i, i]
        mse, mv = np.mean(r**2), np.mean(variance)
        dimension = found["dimensions"][name]
        assert dimension["nees_mean"] == pytest.approx(np.mean(r**2 / variance), rel=1e-9)
        assert dimension["bias"] == pytest.approx(r.mean(), rel=1e-9)
        # In a single bin.
        ence = abs(np.sqrt(mv) - np.sqrt(mse)) / np.sqrt(mv)
        assert dimension["ence"] == pytest.approx(ence, rel=1e-8)
        assert dimension["uce"] == pytest.approx(abs(mse - mv), rel=1e-8)


@pytest.mark.parametrize("options", [(), ("--binning", "equal-width")])
def test_both_engines_agree(evaluate, drive, options):
    exact = evaluate(drive, *options, "--engine", "exact")
    streamed = evaluate(drive, *options, "--engine", "streaming")
    for name in DIMENSIONS:
        theirs, ours = exact["dimensions"][name], streamed["dimensions"][name]
        for measure in SUMS:
            assert ours[measure] == pytest.approx(theirs[measure], rel=1e-8), (name, measure)
        assert ours["picp_by_tau"] == pytest.approx(theirs["picp_by_tau"], abs=1e-12)
        # Their bins differ by up to a micro-bin at each cut.
        assert ours["ence"] == pytest.approx(theirs["ence"], abs=0.05)
        assert ours["qce"] == pytest.approx(theirs["qce"], abs=0.03)
    assert streamed["joint"]["nees_over_k"] == pytest.approx(exact["joint"]["nees_over_k"])
    assert streamed["joint"]["nll"] == pytest.approx(exact["joint"]["nll"])
    assert streamed["joint"]["qce_marginal"] == pytest.approx(exact["joint"]["qce_marginal"])
    assert streamed["joint"]["nees_median_ratio"] == pytest.approx(
        exact["joint"]["nees_median_ratio"], rel=0.05
    )


def test_people_get_a_table_with_a_line_for_each_dimension(capsys, drive):
    assert main(["evaluate", str(drive)]) == 0
    out = capsys.readouterr().out
    assert "663 rows with ground truth, 97 without, 0 refused" in out
    for name in DIMENSIONS:
        assert sum(line.split()[:1] == [name] for line in out.splitlines()) == 1
    assert "NEES/K" in out
    assert "at 0.95" in out


def test_an_archive_reads_as_the_table_does(evaluate, drive, rows, tmp_path):
    archive = npz_file(tmp_path / "drive.npz", rows)
    assert evaluate(archive) == evaluate(drive)


def test_variances_alone_leave_the_dimensions_as_they_are(evaluate, drive, rows, tmp_path):
    alone = evaluate(npz_file(tmp_path / "drive.npz", rows, full=False))
    full = evaluate(drive)
    assert alone["dimensions"] == full["dimensions"]
    assert alone["joint"]["nees_mean"] != full["joint"]["nees_mean"]


# ---- bins


def ence_of_equal_widths(deviation, r, lower, upper, bins):
    """Levi's ENCE, from the rows within [lower, upper]."""
    cell = np.digitize(deviation, np.linspace(lower, upper, bins + 1)[1:-1])
    inside = (deviation >= lower) & (deviation <= upper)
    parts = []
    for b in range(bins):
        here = inside & (cell == b)
        if here.any():
            rmv, rmse = np.sqrt(np.mean(deviation[here] ** 2)), np.sqrt(np.mean(r[here] ** 2))
            parts.append(abs(rmv - rmse) / rmv)
    return np.mean(parts)


@pytest.mark.parametrize("ends", [None, (0.0, 10.0), (0.2, 0.5)])
def test_bins_of_equal_width_lie_on_the_range(evaluate, drive, rows, ends):
    words = () if ends is None else ("--range", f"{ends[0]}:{ends[1]}")
    found = evaluate(drive, "--binning", "equal-width", "--bins", "7", *words)
    there = rows.of(rows.labelled)
    deviation = np.sqrt(there.covariance[:, 0, 0])
    lower, upper = ends or (deviation.min(), deviation.max())
    expected = ence_of_equal_widths(deviation, error(there)[:, 0], lower, upper, 7)
    assert found["dimensions"]["x"]["ence"] == pytest.approx(expected, rel=1e-9)
    assert found["rows"] == there.n


def test_the_range_of_the_data_is_the_default(evaluate, drive):
    words = (drive, "--binning", "equal-width")
    assert evaluate(*words, "--range", "data") == evaluate(*words)


def test_more_bins_have_a_higher_noise_floor(evaluate, drive):
    few, many = (evaluate(drive, "--bins", n)["dimensions"]["x"] for n in (5, 20))
    assert many["ence_noise_floor"] == pytest.approx(2 * few["ence_noise_floor"])


# ---- rows and dimensions


@pytest.mark.parametrize(
    ("words", "keep"),
    [
        (("--rows", "100:300"), lambda r: np.arange(r.n)[100:300]),
        (("--rows", ":50"), lambda r: np.arange(r.n)[:50]),
        (("--rows", "700:"), lambda r: np.arange(r.n)[700:]),
        (("--class", "pedestrian"), lambda r: r.class_name == "pedestrian"),
        (("--class", "car,cyclist"), lambda r: r.class_name != "pedestrian"),
        (("--where", "role=deploy"), lambda r: r.role == "deploy"),
        (
            ("--where", "role=fit", "--where", "seq=south"),
            lambda r: r.sequence == "south",
        ),
        (
            ("--rows", "100:600", "--class", "car", "--where", "role=fit"),
            lambda r: np.flatnonzero(
                (np.arange(r.n) >= 100)
                & (np.arange(r.n) < 600)
                & (r.class_name == "car")
                & (r.role == "fit")
            ),
        ),
    ],
)
def test_a_selection_reads_as_a_file_of_these_rows(evaluate, drive, rows, tmp_path, words, keep):
    alone = csv_file(tmp_path / "alone.csv", rows.of(keep(rows)))
    found = evaluate(drive, *words)
    assert found == evaluate(alone)
    assert 0 < found["rows"] < rows.n


def test_dimensions_are_taken_in_the_order_asked_for(evaluate, drive, rows):
    found = evaluate(drive, "--dimensions", "z,x")
    assert tuple(found["dimensions"]) == ("z", "x")
    assert found["joint"]["k"] == 2
    assert found["joint"]["nees_mean"] == pytest.approx(nees(rows, (2, 0)).mean())
    assert found["dimensions"]["x"] == evaluate(drive)["dimensions"]["x"]


def test_a_dimension_that_is_no_angle_does_not_wrap_and_joins(evaluate, drive):
    found = evaluate(drive, "--angles", "heading")
    assert found["joint"]["k"] == 4
    wrapped = evaluate(drive)["dimensions"]["yaw"]
    assert found["dimensions"]["yaw"]["nees_mean"] > 10 * wrapped["nees_mean"]


# ---- faults


def test_a_fault_divides_the_nees_by_its_factor(evaluate, drive):
    sound, faulty = evaluate(drive), evaluate(drive, "--fault", "variance=0.2")
    assert faulty["joint"]["nees_mean"] == pytest.approx(5 * sound["joint"]["nees_mean"])
    assert faulty["dimensions"]["yaw"]["std_scaling"] == pytest.approx(
        np.sqrt(5) * sound["dimensions"]["yaw"]["std_scaling"]
    )
    assert faulty["rows"] == sound["rows"]


@pytest.mark.parametrize("text", ["variance=0.2@t=1.5", "variance=2e-1@t=1.5s"])
def test_a_fault_begins_at_its_second_of_each_sequence(evaluate, drive, rows, text):
    factor = np.where(rows.time_s >= 1.5, 0.2, 1.0)
    assert np.unique(factor).size == 2
    expected = nees(replace(rows, covariance=rows.covariance * factor[:, None, None])).mean()
    found = evaluate(drive, "--fault", text)
    assert found["joint"]["nees_mean"] == pytest.approx(expected)


# ---- rows that are no Gaussians


@pytest.mark.parametrize("engine", ["exact", "streaming"])
@pytest.mark.parametrize("write", [csv_file, npz_file])
def test_bad_covariances_are_refused_and_their_neighbours_measured(
    evaluate, rows, tmp_path, engine, write
):
    name = {csv_file: "drive.csv", npz_file: "drive.npz"}[write]
    spoiled, bad = with_bad_covariances(rows)
    found = evaluate(write(tmp_path / name, spoiled), "--engine", engine)
    assert found.pop("rows_refused") == np.count_nonzero(bad) == 4
    without = evaluate(write(tmp_path / name, rows.of(~bad)), "--engine", engine)
    assert without.pop("rows_refused") == 0
    assert found == without


# ---- what it does not do


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
    assert "not a JSON document" in refusal(drive, "--model", model)


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
        *[("--range", text) for text in ("5", "5:1", "2:2", "a:b", "0:inf", "nan:1", "-1:1")],
        *[("--bins", text) for text in ("0", "-2", "ten", "2.5", "²")],
        ("--engine", "fast"),
        ("--binning", "log"),
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


def test_a_fault_counts_its_seconds_from_the_start_of_each_sequence(tmp_path, capsys):
    lines = ["seq,frame,t,x,var_x,gt_x"]
    for sequence, start in (("a", 1000.0), ("b", 5000.0)):
        lines += [f"{sequence},{i},{start + i},0,1,1" for i in range(4)]
    path = tmp_path / "late.csv"
    path.write_text("\n".join(lines) + "\n")
    assert main(["evaluate", str(path), "--fault", "variance=0.25@t=2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    # Two of four rows of either sequence: NEES 1 before the fault and 4 from it on.
    assert found["joint"]["nees_mean"] == pytest.approx(2.5)
