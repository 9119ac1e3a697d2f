"""evaluate: what it prints is what the formulas say of the rows that were asked for, by both
engines; what it cannot do it says in one line, with the field, the value and the remedy."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from monitor.commands.apply import document_of
from monitor.commands.evaluate.sweep import agreement
from monitor.recalibration.class_scaling import Temperature
from monitor.recalibration.selection import ClassSelection
from monitor.recalibration.temperature_sweep import MEASURES, SCORES, Sweep
from monitor.statistics.verdicts import FEWEST_TO_JUDGE
from monitor.store.recordings import read_columns
from tests.commands.recordings import (
    DIMENSIONS,
    csv_file,
    error,
    nees,
    npz_file,
    with_bad_covariances,
)
from tests.commands.spoken import done, found, refused, spoken, wrong_usage
from tests.laws import assert_near

evaluate = partial(found, "evaluate")
refusal = partial(refused, "evaluate")
ENGINES = ("exact", "streaming")


def names(text: str) -> set[str]:
    return set(text.split())


KEYS = names(
    "rows dimensions joint rows_without_truth rows_refused rows_refused_by tau tracks labels "
    "verdicts groups"
)
DIMENSION_KEYS = names(
    "ence ence_noise_floor uce nll c_v nees_mean qce qce_by_tau pinball pinball_by_tau "
    "picp_by_tau std_scaling n n_eff ence_noise_floor_gaussian kurtosis rmse rmv sharpness bias "
    "bias_interval "
    "nees_interval nees_interval_n_eff nees_median_ratio qce_marginal qce_marginal_by_tau mpiw "
    "mpiw_by_tau coverage_one_sided_by_tau calibration_area bins uce_bins out_of_range "
    "ucs crps ause ause_relative rejection"
)
JOINT_KEYS = names(
    "k nll nees_mean nees_over_k nees_median_ratio qce qce_by_tau qce_marginal n n_eff "
    "nees_interval nees_interval_n_eff qce_marginal_by_tau coverage_by_tau calibration_area bins "
    "out_of_range sgv_std_min sgv_std_max sgv_std_mean ucs ause ause_relative rejection mean_iou "
    "ause_iou"
)
BIN_KEYS = {"lower", "upper", "n", "variance", "squared_error", "nees", "within"}


@pytest.fixture(autouse=True)
def warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("engine", ENGINES)
def test_the_object_has_the_keys_of_the_contract(drive, rows, engine):
    got = evaluate(drive, "--engine", engine)
    there = rows.of(rows.labelled)
    assert got.keys() == KEYS
    assert tuple(got["dimensions"]) == DIMENSIONS
    for dimension in got["dimensions"].values():
        assert dimension.keys() == DIMENSION_KEYS
        for by_tau in ("qce_by_tau", "pinball_by_tau", "picp_by_tau"):
            assert len(dimension[by_tau]) == 19
    assert got["joint"].keys() == JOINT_KEYS
    assert got["joint"]["k"] == 3  # without yaw
    assert got["joint"]["bins"][-1].keys() == BIN_KEYS
    assert got["tracks"] == len(set(zip(there.sequence, there.track, strict=True)))
    assert got["tau"] == pytest.approx(np.linspace(0.05, 0.95, 19))
    unlabelled = np.count_nonzero(~rows.labelled)
    assert (got["rows"], got["rows_without_truth"]) == (there.n, unlabelled)
    lines = done("evaluate", drive, "--engine", engine).splitlines()
    assert "663 rows with ground truth of 33 tracks, 97 without, 0 refused" in lines


@pytest.mark.parametrize("engine", ENGINES)
def test_the_measures_are_those_of_the_formulas(drive, rows, engine):
    got = evaluate(drive, "--engine", engine, "--bins", "1")
    there = rows.of(rows.labelled)
    joint = got["joint"]
    assert joint["nees_mean"] == pytest.approx(nees(rows).mean(), rel=1e-9)
    assert joint["nees_over_k"] == pytest.approx(nees(rows).mean() / 3, rel=1e-9)
    _, log_det = np.linalg.slogdet(there.covariance[:, :3, :3])
    nll = 0.5 * (3 * np.log(2 * np.pi) + log_det.mean() + nees(rows).mean())
    assert joint["nll"] == pytest.approx(nll, rel=1e-9)
    for i, name in enumerate(DIMENSIONS):
        r, variance = error(there)[:, i], there.covariance[:, i, i]
        mse, mv = np.mean(r**2), np.mean(variance)
        dimension = got["dimensions"][name]
        assert dimension["nees_mean"] == pytest.approx(np.mean(r**2 / variance), rel=1e-9)
        assert dimension["bias"] == pytest.approx(r.mean(), rel=1e-9)
        # In a single bin.
        ence = abs(np.sqrt(mv) - np.sqrt(mse)) / np.sqrt(mv)
        assert dimension["ence"] == pytest.approx(ence, rel=1e-8)
        assert dimension["uce"] == pytest.approx(abs(mse - mv), rel=1e-8)


@pytest.mark.parametrize("engine", ENGINES)
def test_frozen_bins_are_those_of_the_reference(drive, rows, tmp_path, engine):
    words = ("--binning", "frozen", "--bins", "5", "--engine", engine, "--edges-from", drive)

    def lower_edges(got):
        return [each["lower"] for each in got["dimensions"]["x"]["bins"]]

    edges = lower_edges(evaluate(drive, *words))
    # Rows without labels are part of the reference: their deviations are predicted all the same.
    assert edges[0] == 0.0
    assert edges == sorted(edges)
    assert edges[1:] == pytest.approx(lower_edges(evaluate(drive, "--bins", "5"))[1:], rel=0.2)
    # The fault is a drill for what is evaluated, not for what it is held against.
    faulty = evaluate(drive, *words, "--fault", "variance=100")
    assert lower_edges(faulty) == edges
    assert faulty["dimensions"]["x"]["bins"][-1]["n"] > 0.8 * faulty["rows"]
    assert faulty["dimensions"]["x"]["out_of_range"]["std"] == {"below": 0, "above": 0}
    plain = tmp_path / "plain.npz"
    np.savez(plain, mean=rows.mean[:, :3], var=np.ones((rows.n, 3)), gt=rows.truth[:, :3])
    assert "has dimensions 0, 1, 2 and not x, y, z, yaw" in refusal(drive, *words[:-1], plain)
    assert evaluate(drive, "--range", "data") == evaluate(drive)


@pytest.mark.parametrize(
    ("words", "keep"),
    [
        (("--rows", "100:300"), lambda r: np.arange(r.n)[100:300]),
        (("--class", "car,cyclist"), lambda r: r.class_name != "pedestrian"),
        (
            ("--rows", "100:", "--class", "car", "--where", "role=fit"),
            lambda r: (np.arange(r.n) >= 100) & (r.class_name == "car") & (r.role == "fit"),
        ),
    ],
)
def test_a_selection_reads_as_a_file_of_these_rows(drive, rows, tmp_path, words, keep):
    alone = csv_file(tmp_path / "alone.csv", rows.of(keep(rows)))
    got = evaluate(drive, *words)
    assert got == evaluate(alone)
    assert 0 < got["rows"] < rows.n


def test_dimensions_are_taken_in_the_order_asked_for_and_only_named_angles_wrap(drive, rows):
    got, every = evaluate(drive, "--dimensions", "z,x"), evaluate(drive)
    assert tuple(got["dimensions"]) == ("z", "x")
    assert got["joint"]["k"] == 2
    assert got["joint"]["nees_mean"] == pytest.approx(nees(rows, (2, 0)).mean())
    assert got["dimensions"]["x"] == every["dimensions"]["x"]
    _, out, err = spoken("evaluate", drive, "--angles", "heading", "--json")
    assert "errors lie near ±2π: an angle? Give --angles yaw\n" in err
    got = json.loads(out)
    assert got["joint"]["k"] == 4
    wrapped = every["dimensions"]["yaw"]["nees_mean"]
    assert got["dimensions"]["yaw"]["nees_mean"] > 10 * wrapped


def test_a_fault_divides_the_nees_from_its_second_of_each_sequence(drive, rows, tmp_path):
    sound, faulty = evaluate(drive), evaluate(drive, "--fault", "variance=0.2")
    assert faulty["joint"]["nees_mean"] == pytest.approx(5 * sound["joint"]["nees_mean"])
    assert faulty["rows"] == sound["rows"]
    factor = np.where(rows.time_s >= 1.5, 0.2, 1.0)
    expected = nees(replace(rows, covariance=rows.covariance * factor[:, None, None])).mean()
    got = evaluate(drive, "--fault", "variance=2e-1@t=1.5s")
    assert got["joint"]["nees_mean"] == pytest.approx(expected)
    lines = ["seq,frame,t,x,var_x,gt_x"]
    for sequence, start in (("a", 1000.0), ("b", 5000.0)):
        lines += [f"{sequence},{i},{start + i},0,1,1" for i in range(4)]
    path = tmp_path / "late.csv"
    path.write_text("\n".join(lines) + "\n")
    # Two of four rows of either sequence: NEES 1 before the fault and 4 from it on.
    got = evaluate(path, "--fault", "variance=0.25@t=2")
    assert got["joint"]["nees_mean"] == pytest.approx(2.5)
    timeless = npz_file(tmp_path / "drive.npz", rows)
    assert "@t=1: " in refusal(timeless, "--fault", "variance=2@t=1")
    got = evaluate(timeless, "--fault", "variance=0.2")
    assert got["joint"]["nees_mean"] == pytest.approx(5 * sound["joint"]["nees_mean"])


def test_bad_covariances_are_refused_and_their_neighbours_measured(rows, tmp_path):
    path = tmp_path / "drive.npz"
    bad_rows, bad = with_bad_covariances(rows)
    for engine in ENGINES:
        got = evaluate(npz_file(path, bad_rows), "--engine", engine)
        assert got.pop("rows_refused") == np.count_nonzero(bad) == 4
        told = got.pop("rows_refused_by")
        assert sum(reason["rows"] for reason in told.values()) == 4
        first = [row for reason in told.values() for row in reason["first"]]
        assert sorted(first) == np.flatnonzero(bad).tolist()
        without = evaluate(npz_file(path, rows.of(~bad)), "--engine", engine)
        assert (without.pop("rows_refused"), without.pop("rows_refused_by")) == (0, {})
        by_class = got.pop("groups"), without.pop("groups")
        refused = [sum(one.pop("rows_refused") for one in groups.values()) for groups in by_class]
        assert refused == [4, 0]
        assert by_class[0] == by_class[1]
        assert got == without


def test_class_probabilities_are_measured_alone_or_beside_the_gaussians(rows, tmp_path):
    random, path = np.random.default_rng(0), npz_file(tmp_path / "drive.npz", rows)
    arrays = {"prob": random.dirichlet(np.ones(3), rows.n), "label": random.integers(0, 3, rows.n)}
    alone, both = tmp_path / "classes.npz", tmp_path / "both.npz"
    np.savez(alone, **arrays)
    accuracy = np.mean(arrays["prob"][50:].argmax(axis=1) == arrays["label"][50:])
    for engine in ENGINES:
        got = evaluate(alone, "--engine", engine, "--rows", "50:")
        assert (got["rows"], got["dimensions"], got["joint"]) == (rows.n - 50, {}, None)
        assert got["classification"]["accuracy"] == pytest.approx(accuracy)
    words = ("--class-binning", "equal-count", "--class-bins", "8")
    counts = evaluate(alone, *words)["classification"]["counts_confidence"]
    assert counts == [rows.n // 8] * 8
    with np.load(path) as archive:
        np.savez(both, allow_pickle=False, **arrays, **archive)
    got, plain = evaluate(both), evaluate(path)
    assert got.pop("classification")["n"] == rows.n
    verdict = got.pop("class_verdict")
    assert verdict["accuracy"] == pytest.approx(
        np.mean(arrays["prob"].argmax(axis=1) == arrays["label"])
    )
    assert verdict["finding"] == "overconfident"
    assert got == plain
    # Columns choose detections, and nobody says which probabilities are theirs.
    assert "classification" not in evaluate(both, "--class", "car")
    told = done("evaluate", both)
    assert told.startswith("classes: overconfident, ")
    table = told.partition("\n\n")[2].partition("\n\n760 rows with a true class of 3, 0 without, 0")
    assert table[0].replace("both.npz", "drive.npz") == done("evaluate", path).rstrip("\n")
    heads, values = (line.split() for line in table[2].splitlines()[1:3])
    accuracy = np.mean(arrays["prob"].argmax(axis=1) == arrays["label"])
    assert float(values[heads.index("accuracy")]) == pytest.approx(accuracy, rel=1e-3)
    assert "error rate, highest entropy rejected: " in table[2]
    untrue, bare = tmp_path / "untrue.npz", tmp_path / "bare.npz"
    np.savez(untrue, prob=arrays["prob"], label=np.full(rows.n, -1))
    np.savez(bare, prob=arrays["prob"])
    for file, given, said in (
        (alone, ("--class-bins", "25"), "keeps class probabilities in sixtieths. Use one of 1, 2,"),
        (alone, ("--class-binning", "equal-count"), "--class-binning equal-count sorts the rows"),
        (untrue, (), "of 760 rows, 760 have no true class and 0"),
        (bare, (), "there are class probabilities, but no array 'label'"),
        (alone, ("--rows", "900:"), "rows 900:"),
    ):
        assert said in refusal(file, "--engine", "streaming", *given)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--dimensions", "x,q"), ("'q'", "x, y, z, yaw")),
        (("--where", "colour=red"), ("'colour'", "seq, role")),
        (("--where", "seq=east"), ("seq=east", "seq has north, south, west.")),
        (("--rows", "900:"), ("rows 900:", "760 rows", "Ask for less")),
        (("--range", "0:10"), ("--range", "--binning equal-width")),
        (("--binning", "frozen"), ("--binning frozen", "--edges-from FILE")),
        (("--binning", "frozen", "--edges-from", "gone.csv"), ("gone.csv",)),
        (("--edges-from", "e.csv"), ("--edges-from is for --binning frozen",)),
        (("--micro-bins", "8"), ("--micro-bins is for --engine streaming",)),
        (("--model", "gone.json"), ("cannot read the recalibrator gone.json",)),
        (("--where", "gt_id="), ("nothing to evaluate: of 97 rows, 97 have no truth",)),
        (("--class-bins", "20"), ("--class-bins: no class probabilities of", "prob and label")),
        (("--sweep", "temperature"), ("--sweep: no class probabilities of", "prob and label")),
    ],
)
def test_what_cannot_be_selected_is_named_with_what_there_is(drive, words, named):
    line = refusal(drive, *words)
    assert all(part in line for part in named), line


@pytest.mark.parametrize(
    ("option", "texts"),
    [
        ("--rows", ("5", "a:b", "1:2:3", "-3:")),
        ("--fault", ("0.2", "variance=0", "variance=x", "variance=1e400")),
        ("--where", ("role", "=deploy")),
        ("--range", ("5", "2:2", "0:inf", "nan:1")),
        ("--tau", ("0", "1", "0.5,", "nan")),
    ],
)
def test_an_option_that_makes_no_sense_is_wrong_usage(drive, option, texts):
    for text in texts:
        wrong_usage(option, text, "evaluate", drive)


def test_a_group_is_measured_as_a_file_of_its_rows(drive):
    groups = evaluate(drive, "--by", "role")["groups"]
    assert groups.keys() == {"fit", "deploy"}
    for name, group in groups.items():
        assert group.items() <= evaluate(drive, "--where", f"role={name}").items()
    both = evaluate(drive, "--by", "class", "--by", "seq,role")["groups"]
    assert both.keys() >= {"car, north, fit", "car, west, deploy"}
    only = evaluate(drive, "--class", "car", "--where", "seq=north")["groups"]["car"]
    assert both["car, north, fit"].items() <= only.items()
    # A pooled fit would pull healthy classes along.
    advice = done("evaluate", drive, "--by", "role").partition("\n\n")[0]
    assert "--by role mix classes (" in advice and "--by class,role tells them apart" in advice
    assert "Do: " not in advice or " --by class --proven-only" in advice
    assert "Did you mean 'role'" in refusal(drive, "--by", "class,rola")
    assert "c_v" in done("evaluate", drive, "--full")
    assert "c_v" not in done("evaluate", drive)


def test_a_condition_ends_with_code_3_if_it_holds_in_any_group(drive):
    got = evaluate(drive)
    judged = [one for one in got["groups"].values() if one["tracks"] >= FEWEST_TO_JUDGE]
    assert 0 < len(judged) < len(got["groups"])
    worst = max(one["joint"]["nees_over_k"] for one in judged)
    for conditions, code in (
        ([f"nees_over_k > {worst - 1e-3}"], 3),
        ([f"nees_over_k>{worst + 1e-3}"], 0),
        (["nees_over_k > 1e9", "ence >= 0"], 3),
    ):
        got_code, _, err = spoken("evaluate", drive, *(f"--fail-if={one}" for one in conditions))
        assert (got_code, "--fail-if" in err) == (code, code == 3), conditions
    # Jointly, the mean NEES is near K: it is a measure of each dimension.
    largest = max(one["nees_mean"] for group in judged for one in group["dimensions"].values())
    assert largest < max(one["joint"]["nees_mean"] for one in judged)
    assert spoken("evaluate", drive, f"--fail-if=nees_mean > {largest + 1e-3}")[0] == 0
    code, _, err = spoken("evaluate", drive, "--fail-if", "colour > 1")
    assert (code, "'colour'" in err) == (1, True)
    wrong_usage("--fail-if", "ence = 1", "evaluate", drive)


def test_a_finding_is_a_condition_and_too_little_data_fulfils_none(tmp_path):
    random, path = np.random.default_rng(0), tmp_path / "rows.csv"
    lines = [f"a,{i // 20},0,1,{random.normal(0, 2)}" for i in range(400)]
    few = [f"b,{i // 20},0,1,{random.normal(0, 2)}" for i in range(40)]
    path.write_text("\n".join(["class,gt_id,x,var_x,gt_x", *lines, *few]))
    for condition in ("overconfident", "sigma_factor > 1.41", "nees_over_k > 2"):
        code, out, err = spoken("evaluate", path, "--fail-if", condition, "--json")
        (line,) = json.loads(out)["failed"]
        assert (code, line in err, line.startswith("a")) == (3, True, True)
    for words, code in (("underconfident", 0), ("too little data", 3), ("rows < 100", 3)):
        assert spoken("evaluate", path, "--fail-if", words)[0] == code, words
    # Where nothing can be judged, nothing has passed.
    code, _, err = spoken("evaluate", path, "--class", "b", "--fail-if", "overconfident")
    assert (code, "too little data" in err) == (3, True)


FAULTS = {"not finite": "inf,1,0,0", "mean is beyond": "1e9,1,0,0", "truth": "1,1,0,2e8"}
FAULTS |= {"covariance is not finite (x)": "1,nan,0,0", "zero (x)": "1,0,0,0"}
FAULTS |= {"negative (x)": "1,-1,0,0"}
FAULTS |= {"not positive definite": "1,1,1.5,0"}


def test_a_refused_row_is_told_with_its_number_and_the_first_of_its_reasons(tmp_path):
    path = tmp_path / "rows.csv"
    lines = [f"{i % 3},1,0,{i % 2},0,1,0" for i in range(50)]
    lines[20:27] = [f"{fault},0,1,0" for fault in FAULTS.values()]
    path.write_text("x,var_x,cov_xy,gt_x,y,var_y,gt_y\n" + "\n".join([*lines, "0,-1,0,,0,0,"]))
    code, out, err = spoken("evaluate", path, "--rows", "1:", "--json")
    assert (code, "--most-refused 0.01: 1 because a mean is not finite (x): row 20" in err) == (
        3,
        1,
    )
    got = json.loads(out)
    assert (got["rows"], got["rows_refused"], got["rows_without_truth"]) == (42, 7, 1)
    for i, (reason, words) in enumerate(zip(FAULTS, got["rows_refused_by"], strict=True)):
        assert reason in words
        assert got["rows_refused_by"][words] == {"rows": 1, "first": [20 + i]}
    for most, code in (("0.13", 3), ("0.14", 0)):  # 7 of 50
        assert spoken("evaluate", path, "--most-refused", most)[0] == code


@pytest.mark.parametrize(("name", "turn"), [("facing", 2 * np.pi), ("facing", 360.0), ("psi", 0)])
def test_an_angle_that_is_not_named_as_one_is_told_and_changes_no_number(tmp_path, name, turn):
    rng = np.random.default_rng(0)
    period = turn or 2 * np.pi
    truth, error = rng.uniform(0, period, 400), rng.normal(0, period / 100, 400)
    arrays: dict[str, Any] = {"mean": np.stack([(truth + error) % period, error], axis=1)}
    arrays |= {"gt": np.stack([truth, 0 * truth], axis=1), "dimensions": np.array([name, "x"])}
    path = tmp_path / "angles.npz"
    np.savez(path, std=np.full((400, 2), period / 100), **arrays)
    code, out, err = spoken("evaluate", path, "--json")
    got = json.loads(out)
    assert (code, [f"{one}\n" for one in got["remarks"]]) == (0, err.splitlines(keepends=True))
    if not turn:
        assert "taken as an angle in radians by its name" in err
        assert got["joint"]["k"] == 1
        return
    assert f"errors lie near ±{'360' if turn == 360 else '2π'}: an angle? " in err
    assert err.endswith("ive --angles facing\n")
    assert got["dimensions"][name]["rmse"] > period / 20
    # Lengths of a wide range with large errors are none.
    wide = arrays | {"mean": arrays["gt"] + rng.standard_t(2, (400, 2)) * period / 4}
    np.savez(path, std=np.full((400, 2), period / 4), **wide)
    assert spoken("evaluate", path)[2] == ""


@pytest.mark.parametrize("engine", ENGINES)
def test_a_sweep_says_what_evaluate_would_with_the_recalibrator_of_each_temperature(
    engine, tmp_path
):
    random = np.random.default_rng(0)
    prob, label = random.dirichlet(np.ones(3), (200, 4)), random.integers(-1, 3, 200)
    path, model, report = (tmp_path / name for name in ("c.npz", "model.json", "report.html"))
    prob[3] = np.nan
    np.savez(path, prob=prob, label=label, class_names=["car", "bus", "<b>"])
    words = (path, "--engine", engine, "--class-bins", "10")
    whole = evaluate(*words, "--sweep", "temperature")["classification"]
    sweep = whole.pop("sweep")
    assert whole == evaluate(*words)["classification"]
    best, by_class = sweep.pop("best"), sweep.pop("best_by_class")
    assert best.keys() == sweep.keys() - {"temperature", "accuracy"}
    assert all(len(values) == 3 for values in by_class.values())
    assert 1.0 in sweep["temperature"]
    for i in (0, 20, 33):
        selection = ClassSelection((), Temperature(sweep["temperature"][i]))
        model.write_text(document_of(selection))
        got = evaluate(*words, "--model", model)["classification"]
        assert {name: values[i] for name, values in sweep.items()} == {
            name: got.get(name, sweep["temperature"][i]) for name in sweep
        }
    told = done("evaluate", *words, "--sweep", "temperature", "--report", report)
    assert "The measures disagree: NLL is best at T = " in told
    assert "best at T  there" in told
    assert {"car", "bus", "<b>"} <= {line.split(" ")[0] for line in told.splitlines()}
    assert "Sweep over the temperature" in report.read_text(encoding="utf-8")
    wrong_usage("--sweep", "bins", "evaluate", path)


TURN = math.atan2(0.6, 0.8)


@pytest.mark.parametrize(
    ("names", "sure", "true", "other"),
    [
        ("cx cy w h", (1, 0, 2, 2), (2, 0, 2, 2), (9, 9, 2, 2)),
        ("left top right bottom", (0, -1, 2, 1), (1, -1, 3, 1), (8, 8, 10, 10)),
        ("x y l w yaw", (0.8, 0.6, 2, 2, TURN), (1.6, 1.2, 2, 2, TURN), (9, 9, 2, 2, TURN)),
    ],
)
def test_boxes_have_the_overlap_and_ranking_of_two_by_hand(tmp_path, names, sure, true, other):
    # The sure box covers a third, the other all: S = (1/3, 2/3), O = (1/3, 0), so that the area is
    # (0 + 2/3)/2. A third has no truth.
    path, k = tmp_path / "boxes.npz", len(sure)
    variance, gt = np.outer([0.01, 1, 1], np.ones(k)), [true, other, (math.nan,) * k]
    np.savez(path, mean=[sure, other, other], var=variance, gt=gt, dimensions=names.split())
    for engine in ENGINES:
        joint = evaluate(path, "--engine", engine)["joint"]
        assert joint["mean_iou"] == pytest.approx(2 / 3, rel=1e-12)
        assert joint["ause_iou"] == pytest.approx(1 / 3, rel=1e-12)
    few = evaluate(path, "--dimensions", ",".join(names.split()[:3]))["joint"]
    assert (few["mean_iou"], few["ause_iou"]) == (None, None)
    assert ", IoU 0.667, AUSE of 1 − IoU 0.333" in done("evaluate", path)


def test_a_sentence_says_which_measures_are_best_at_another_temperature_than_nll():
    def said(**best: float) -> str:
        grid = np.array([0.1, 0.5, 1.0, 2.0])
        loss = {name: np.abs(np.log(grid / (best.get(name) or 1.0))) for name in MEASURES}
        losses = {name: -one if name in SCORES else one for name, one in loss.items()}
        flat = {name: np.zeros(4) for name in MEASURES if best.get(name) == 0.0}
        return agreement(Sweep(grid, grid, losses | flat, {}, np.zeros(2, np.int64)))

    assert said().startswith("The measures agree: each is best within a factor 1.26 of T = 1,")
    found = said(uce_entropy=0.1, cuce=0.1, ucqs=0.1, ause=0.0, cece=2.0)
    assert found.startswith("The measures disagree: NLL is best at T = 1 (and Brier, ECE, AUSE S, ")
    assert "but UCE, cUCE and UCQS at ≤ 0.1, cECE at ≥ 2. fit takes the T of NLL" in found
    assert "AUSE V" not in found
    assert said(nll=0.0).startswith("No temperature changes the NLL")


# ---- portions, and several cores


@pytest.fixture(scope="module")
def files(rows, tmp_path_factory):
    """The drive as columns of a Parquet file, and as an archive; each larger than a portion."""
    folder = tmp_path_factory.mktemp("portions")
    cells = read_columns(csv_file(folder / "drive.csv", rows), {})
    every, text = np.arange(cells.count), ("class", "seq", "role")
    table = {
        n: cells.values(n) if n in text else cells.floats(n, every, np.nan) for n in cells.names
    }
    parquet.write_table(pa.table(table), folder / "drive.parquet", row_group_size=100)
    return folder / "drive.parquet", npz_file(folder / "drive.npz", rows)


@pytest.mark.parametrize("words", [(), ("--by", "seq"), ("--class", "car", "--dimensions", "y,x")])
@pytest.mark.parametrize("i", [0, 1])
def test_a_file_read_in_portions_measures_as_the_whole_with_any_jobs(
    files, words, i, monkeypatch, tmp_path
):
    # A report needs all rows at once.
    whole = evaluate(files[i], *words, "--report", tmp_path / "report.html")
    assert evaluate(files[i], *words) == whole
    for module in ("statistics.row_columns", "statistics.exact_engine", "store.stored_arrays"):
        monkeypatch.setattr(f"monitor.{module}.PORTION", 64)
    monkeypatch.setattr("monitor.store.stored_arrays._SMALL", 0)
    parts = done("evaluate", files[i], *words, "--json")
    assert_near(evaluate(files[i], *words), whole)
    assert done("evaluate", files[i], *words, "--json", "--jobs", 3) == parts
