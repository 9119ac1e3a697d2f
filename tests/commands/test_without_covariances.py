"""A detector that reports no covariance, offline: its errors are measured, estimates fill in what
is missing and leave alone what was sent, and nothing without one is judged."""

from __future__ import annotations

import csv
import json
import re

import numpy as np
import pytest
import yaml

from monitor import apply, evaluate, fit
from monitor.commands.merge import write_state
from monitor.commands.sending import sequences
from monitor.frames.slices import NO_COVARIANCE, marked
from monitor.frames.space import plain_space
from monitor.recalibration.recalibrator import Identity
from monitor.statistics.bins import Binning
from monitor.statistics.clusters import cluster_id
from monitor.statistics.state import SliceState, Stages, StatisticsState, observe
from monitor.statistics.windows import Windows
from monitor.store.recordings import read_recording
from monitor.store.statistics_state import StoredState
from tests.commands.documents import document
from tests.commands.recordings import DIMENSIONS, error, table_file
from tests.commands.spoken import refused, spoken

# The first is chosen where no row has a covariance.
ESTIMATORS = ("covariance-regression", "residual-covariance")
ASSUMED = "σ is assumed to be 1 in x, y, z, yaw, and not judged"


def said(*words):
    """What a verb prints and says, that does its work."""
    code, out, err = spoken(*words)
    assert code == 0, err
    return out, err


def without(path, target, *, every=1):
    """The same file without the variances of every so many rows; of all, without the columns."""
    found = read_columns(path)
    blank = np.arange(len(next(iter(found.values())))) % every == 0
    kept = {
        name: np.where(blank & name.startswith(("var_", "cov_")), "", cells)
        for name, cells in found.items()
        if every > 1 or not name.startswith(("var_", "cov_"))
    }
    return table_file(target, kept, (cells.tolist() for cells in kept.values()))


def read_columns(path):
    import gzip

    with (gzip.open if path.suffix == ".gz" else open)(path, "rt") as text:
        head, *rows = csv.reader(text)
    return dict(zip(head, map(np.array, zip(*rows, strict=True)), strict=True))


@pytest.fixture(scope="module")
def bare(drive, tmp_path_factory):
    return without(drive, tmp_path_factory.mktemp("bare") / "bare.csv")


@pytest.fixture(scope="module")
def mixed(drive, tmp_path_factory):
    return without(drive, tmp_path_factory.mktemp("mixed") / "mixed.csv", every=3)


@pytest.fixture(scope="module")
def model(bare, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "fills.json"
    said("fit", bare, "--by", "class", "--output", path)
    return path


# ---- evaluate


def test_errors_are_measured_by_class_and_range_and_no_verdict_is_given(bare, rows):
    out, err = said("evaluate", bare, "--json")
    found = json.loads(out)
    assert ASSUMED in err
    assert any(ASSUMED in remark for remark in found["remarks"])
    assert (found["rows"], found["verdicts"], found["dimensions"]) == (0, [], {})
    told = {one["group"]: one for one in found["without_covariance"]["groups"]}
    cars = rows.of_class("car").of(rows.of_class("car").labelled)
    square = np.square(error(cars)).mean(axis=0)
    by_dimension = told["car"]["dimensions"]
    assert [by_dimension[name]["rmse"] for name in DIMENSIONS] == pytest.approx(np.sqrt(square))
    assert by_dimension["x"]["bias"] == pytest.approx(error(cars)[:, 0].mean())
    assert by_dimension["yaw"]["unit"] == "rad"
    assert np.diagonal(told["car"]["covariance"]) == pytest.approx(square)
    assert {"car, <20", "car, 20-40"} <= told.keys()
    assert found["without_covariance"]["rows"] == np.count_nonzero(rows.labelled)


def test_the_text_says_what_is_missing_what_is_measured_and_what_to_do(bare):
    out, _ = said("evaluate", bare)
    head, *lines = out.splitlines()
    assert head == "The file has no covariances: their errors are measured."
    assert re.match(r"car, x: 0\.\d+ RMSE \(0\.\d+ to 0\.\d+\), off by [+-]", lines[0])
    assert "A tracker that assumes 1 may be about right." in lines[0]
    assert re.search(r"car, z: .* A tracker that assumes 1 is \d+(\.\d+)? times too wide\.", out)
    (fits,) = (line for line in lines if line.startswith("Do: "))
    assert fits.endswith(
        f"fit {bare} --method covariance-regression --by class,range --output model.json"
    )
    assert any(line.startswith("Correlations of errors (95 %, by tracks)") for line in lines)
    assert all(len(line) <= 130 for line in lines if line.startswith("car, <20"))
    full, _ = said("evaluate", bare, "--full")
    assert "car, correlations" in full


def test_the_fit_that_is_advised_does_its_work(bare, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out, _ = said("evaluate", bare)
    (words,) = re.findall(r"^Do: calibration-monitor (.*)$", out, re.MULTILINE)
    said(*words.split())
    assert (tmp_path / "model.json").exists()


def test_rows_without_one_are_measured_apart_from_the_others(mixed, drive, rows):
    found = json.loads(said("evaluate", mixed, "--json")[0])
    labelled = np.flatnonzero(rows.labelled)
    assert found["without_covariance"]["rows"] == np.count_nonzero(labelled % 3 == 0)
    assert found["rows"] == np.count_nonzero(labelled % 3)
    assert {one["group"] for one in found["verdicts"]} <= set(rows.class_name.tolist())
    out, err = said("evaluate", mixed)
    assert "rows have no covariance: their errors are measured." in out
    assert "σ times" in out
    assert f"{-(-rows.n // 3):,} of {rows.n:,} rows have no covariance" in err


def test_a_deviation_that_is_stated_is_judged(bare):
    words = "x=0.3,y=0.3,z=0.3,yaw=0.1"
    found = json.loads(said("evaluate", bare, "--assume-std", words, "--json")[0])
    assert found["verdicts"]
    assert "without_covariance" not in found
    out, err = said("evaluate", bare, "--assume-std", words)
    assert "no covariance" not in out
    assert "σ is taken to be 0.3 in x, y, z and 0.1 in yaw (--assume-std)" in err


def test_conditions_hold_errors_and_judge_no_covariance_that_is_not_there(bare):
    line = refused_line("evaluate", bare, "--fail-if", "sigma_factor > 1")
    assert "no row has a covariance that could be judged" in line
    code, _, err = spoken("evaluate", bare, "--fail-if", "rmse > 0.001")
    assert code == 3
    assert "car, x without a covariance: rmse is" in err


def test_the_report_has_a_section_for_them(bare, tmp_path):
    said("evaluate", bare, "--report", tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert "Errors without a covariance" in text
    assert "The file has no covariances" in text


def refused_line(*words):
    code, out, err = spoken(*words)
    assert (code, out) == (1, "")
    return err.splitlines()[-1]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("x,y\n1,2\n", "or the dimensions by --dimensions x,y"),
        ("x,gt_x\n1,\n", "nothing to evaluate: of 1 rows, 1 have no truth. Add columns gt_"),
    ],
)
def test_without_ground_truth_there_is_nothing_to_measure(tmp_path, text, sentence):
    path = tmp_path / "nothing.csv"
    path.write_text(text)
    assert sentence in refused_line("evaluate", path)


def test_of_a_state_only_covariances_that_were_sent_or_estimated_are_judged(rows, tmp_path):
    cars = rows.of(rows.labelled & (rows.class_name == "car"))
    space, found = plain_space(("x", "y"), "m"), error(cars)[:, :2]
    tracks = cluster_id((cars.track,))

    def sums(space, variance):
        return observe(
            space, Binning(), found, np.tile(variance * np.eye(2), (cars.n, 1, 1)), tracks
        )

    def written(*kinds):
        path, slices = tmp_path / f"{len(kinds)}{kinds[0]}.state", []
        for kind in kinds:
            one = space if kind == "sent" else space.with_assumed
            raw = sums(one, 0.04 if kind == "sent" else 1.0)
            made = sums(one, 0.04) if kind == "estimated" else raw
            for name in ("car", "van") if kind != "estimated" else ("bus",):
                name = marked(name) if one.assumed else name
                slices.append(SliceState(name, one, False, {(1, 0): Stages(raw, made)}))
        windows = Windows((60_000_000_000,), 6)
        write_state(path, StoredState(StatisticsState(Binning(), windows, None, tuple(slices))))
        return path

    both, bare = written("sent", "assumed", "estimated"), written("assumed")
    told = json.loads(said("evaluate", both, "--json")[0])
    assert {one["group"] for one in told["verdicts"]} == {
        *("car", "van"),
        "bus, no covariance, as forwarded",
    }
    sent = json.loads(said("evaluate", written("sent"), "--json")[0])
    assert (told["rows"], told["joint"]) == (sent["rows"], sent["joint"])
    assert "without_covariance" not in sent
    errors = {one["group"]: one for one in told["without_covariance"]["groups"]}
    assert errors.keys() == {f"{name}, {NO_COVARIANCE}" for name in ("bus", "car", "van")}
    x = errors["car, no covariance"]["dimensions"]["x"]
    assert x["rmse"] == pytest.approx(np.sqrt(np.square(found[:, 0]).mean()))
    assert x["rmse_interval"][0] < x["rmse"] < x["rmse_interval"][1]
    assert x["bias"] == pytest.approx(found[:, 0].mean())
    assert x["beyond_2_rmse"] is None
    text = said("evaluate", bare)[0]
    assert "confident" not in text
    assert "Car" not in text and re.search(r"car, no covariance, x: 0\.\d+ m RMSE \(", text)
    assert refused_line("evaluate", bare, "--fail-if", "sigma_factor > 1")


# ---- fit


@pytest.mark.parametrize("method", ESTIMATORS)
def test_a_fit_fills_what_is_missing_and_replaces_only_if_asked(drive, tmp_path, method):
    path = tmp_path / "model.json"
    words = ("fit", drive, "--method", method, "--by", "class", "--no-held-out", "--output", path)
    out, _ = said(*words)
    assert "output: estimated. It gives covariances to detections without one, and leaves" in out
    found = document(path)
    assert found["fallback"]["method"] == Identity.method
    assert found["slices"].keys() == {
        NO_COVARIANCE,
        *(f"{name}, {NO_COVARIANCE}" for name in ("car", "cyclist", "pedestrian")),
    }
    assert found["slices"][NO_COVARIANCE]["basis"]["rows"]
    out, _ = said(*words, "--replace")
    assert "and replaces those that were sent" in out
    again = document(path)
    assert again["fallback"]["method"] == method
    assert (
        again["slices"]["car"]["parameters"] == found["slices"]["car, no covariance"]["parameters"]
    )
    assert found["slices"].items() <= again["slices"].items()


def test_what_was_sent_has_no_part_in_an_estimate(drive, bare, tmp_path):
    made = []
    for i, file in enumerate((drive, bare)):
        said("fit", file, "--method", ESTIMATORS[0], "--no-held-out", "--output", tmp_path / f"{i}")
        made.append(document(tmp_path / f"{i}")["version"])
    assert made[0] == made[1]


def test_the_method_is_chosen_by_what_the_file_has(bare, mixed, tmp_path):
    for file, method in ((bare, "covariance-regression"), (mixed, "covariance-scaling")):
        out, _ = said("fit", file, "--json", "--no-held-out", "--output", tmp_path / "model.json")
        assert json.loads(out)["method"] == method
    assert "rows without a covariance; --method covariance-regression estimates" in out
    line = refused_line("fit", bare, "--method", "variance-scaling", "--output", tmp_path / "no")
    assert "no row with ground truth has a covariance, which variance-scaling corrects." in line


def test_held_out_tracks_compare_with_what_is_used_otherwise(bare, drive, tmp_path):
    path = tmp_path / "model.json"
    words = ("--method", ESTIMATORS[0], "--output", path, "--json")
    fills = json.loads(said("fit", bare, *words)[0])
    (whole,) = fills["held_out"]
    assert whole["verdict"].startswith("worth it")
    assert whole["before"]["nees_over_k"] < 0.2
    assert fills["replaces"] is False
    # With variances in the file: the same judgement, and beside it how good these are.
    beside = json.loads(said("fit", drive, *words)[0])
    assert beside["held_out"] == fills["held_out"]
    assert "those that the file has are kept: NEES/K" in beside["remarks"][0]
    replaced = json.loads(said("fit", drive, *words, "--replace")[0])
    assert replaced["held_out"][0]["before"]["nees_over_k"] > 0.8
    assert replaced["held_out"][0]["after"] == pytest.approx(whole["after"])
    assert replaced["replaces"] is True


def test_a_fit_leans_on_an_earlier_one_of_its_kind(bare, model, tmp_path):
    path = tmp_path / "next.json"
    words = ("--by", "class", "--no-held-out", "--previous", model, "--output", path)
    said("fit", bare, *words)
    assert document(path)["slices"][NO_COVARIANCE]["basis"]["borrows_from"]


def test_proven_slices_alone_are_filled(bare, tmp_path):
    path = tmp_path / "model.json"
    out, _ = said("fit", bare, "--by", "class", "--proven-only", "--output", path)
    assert document(path)["slices"]["car, no covariance"]["method"] == ESTIMATORS[0]
    assert "car: worth it" in out


def test_options_of_estimates_are_refused_elsewhere(drive, tmp_path):
    output = ("--output", tmp_path / "model.json")
    for option in (("--replace",), ("--export-r", "yaml")):
        line = refused("fit", drive, *option, *output)
        assert f"{option[0]}: covariance-scaling estimates no covariances; residual-" in line
    line = refused("fit", drive, "--axes", "object", *output)
    assert "--axes: covariance-scaling has no use for it" in line
    words = ("--method", ESTIMATORS[0], "--export-r", "yaml", "--json")
    assert "--export-r: the table goes to" in refused("fit", drive, *words, *output)


@pytest.mark.parametrize("axes", ["plain", "sensor", "object"])
def test_a_table_of_r_is_yaml_by_class_and_range(bare, rows, tmp_path, axes):
    path = tmp_path / "model.json"
    words = ("--by", "class", "--axes", axes, "--no-held-out", "--output", path)
    out, err = said("fit", bare, *words, "--export-r", "yaml")
    found = yaml.safe_load(out)
    assert "output: estimated" in err
    assert found["recalibrator"] == document(path)["version"]
    assert found["dimensions"] == list(DIMENSIONS)
    assert found["units"][3] == "rad"
    assert found["classes"].keys() == {"car", "cyclist", "pedestrian"}
    cars = rows.of_class("car").of(rows.of_class("car").labelled)
    whole = found["classes"]["car"]["any"]
    objects = set(zip(cars.sequence.tolist(), cars.track.tolist(), strict=True))
    assert (whole["rows"], whole["tracks"]) == (cars.n, len(objects))
    assert sum(cell["rows"] for cell in found["classes"]["car"].values()) == 2 * cars.n
    square = np.square(error(cars)).mean(axis=0)
    matrix = np.array(whole["covariance"])
    assert np.diagonal(matrix) == pytest.approx(square, rel=0.25)
    assert np.sqrt(np.diagonal(matrix)) == pytest.approx(
        [whole["deviation"][name] for name in DIMENSIONS], rel=1e-3
    )
    # In the axes of the object the sum of both stays.
    along, across = (whole["deviation"][name] for name in ("along", "across"))
    assert along**2 + across**2 == pytest.approx(matrix[0, 0] + matrix[1, 1], rel=1e-3)


# ---- apply


def test_apply_writes_estimates_as_columns(bare, model, tmp_path):
    output = tmp_path / "filled.csv"
    out, _ = said("apply", model, bare, "--output", output)
    assert "rows had no covariance and have an estimated one" in out
    assert "(output: estimated)" in out
    found = read_recording(output)
    assert not found.assumed.any()
    assert {"var_x", "var_yaw", "cov_x_y"} <= set(found.names)
    judged = json.loads(said("evaluate", output, "--json")[0])
    assert judged["joint"]["nees_over_k"] == pytest.approx(1, abs=0.15)
    # Applied while it is evaluated, it is the same.
    other = json.loads(said("evaluate", bare, "--model", model, "--json")[0])
    assert other["joint"]["nees_over_k"] == pytest.approx(judged["joint"]["nees_over_k"])
    assert other["model"]["output"] == "estimated"
    assert "without_covariance" not in other


def test_apply_keeps_what_was_sent_and_leaves_empty_what_it_cannot_fill(mixed, drive, tmp_path):
    cars = tmp_path / "cars.json"
    said("fit", drive, "--method", ESTIMATORS[0], "--by", "class", "--output", cars)
    alone = document(cars)
    alone["slices"] = {"car, no covariance": alone["slices"]["car, no covariance"]}
    cars.write_text(json.dumps({k: v for k, v in alone.items() if k != "version"}))
    output = tmp_path / "out.csv"
    out, err = said("apply", cars, mixed, "--output", output)
    assert "have a covariance and keep it" in err
    before, after = read_recording(mixed), read_recording(output)
    sent = ~before.assumed
    np.testing.assert_array_equal(after.covariance[sent], before.covariance[sent])
    car = np.array(before.classes)[before.class_index] == "car"
    np.testing.assert_array_equal(after.assumed, before.assumed & ~car)
    left, filled = np.count_nonzero(after.assumed), np.count_nonzero(before.assumed & car)
    assert f"{filled} rows had no covariance and have an estimated one, {left} stay without" in out
    # As arrays, too: NaN is none.
    said("apply", cars, mixed, "--output", tmp_path / "out.npz")
    np.testing.assert_array_equal(read_recording(tmp_path / "out.npz").assumed, after.assumed)


def test_what_was_fitted_on_covariances_serves_no_row_without(bare, mixed, drive, fitted, tmp_path):
    scaling, output = fitted(drive), tmp_path / "out.csv"
    line = refused_line("apply", scaling, bare, "--output", output)
    assert "no row has a covariance, and covariance-scaling-" in line
    assert not output.exists()
    _, err = said("apply", scaling, mixed, "--output", output)
    assert "rows have no covariance and get none: the recalibrator estimates none" in err
    np.testing.assert_array_equal(read_recording(output).assumed, read_recording(mixed).assumed)
    # One that is stated counts as sent.
    stated = ("--assume-std", "x=0.3,y=0.3,z=0.3,yaw=0.1")
    said("apply", scaling, bare, *stated, "--output", output)
    assert not read_recording(output).assumed.any()


def test_filled_rows_and_sent_ones_are_never_measured_together(mixed, model):
    found = json.loads(said("evaluate", mixed, "--model", model, "--json")[0])
    assert found["groups"].keys() == {
        f"{name}{mark}"
        for name in ("car", "cyclist", "pedestrian")
        for mark in ("", f", {NO_COVARIANCE}")
    }


# ---- replay


def test_frames_of_a_replay_carry_no_covariance_that_the_file_lacks(bare, mixed):
    for file, none in ((bare, True), (mixed, False)):
        recording = read_recording(file)
        for sequence in sequences(recording, ""):
            assert not sequence.header.space.assumed
            for number in range(sequence.frames):
                rows = sequence.rows[sequence.frame_of_row == number]
                sent = sequence.sent(rows, np.arange(rows.size).astype(np.uint64)).covariance
                lacks = recording.assumed[rows]
                if none or lacks.all():
                    assert sent is None
                    continue
                assert sent is not None
                assert not sent[lacks].any()
                np.testing.assert_array_equal(sent[~lacks], recording.covariance[rows[~lacks]])


def test_a_replay_has_slices_of_their_own_and_fills_them(bare, model):
    found = json.loads(said("replay", bare, "--recalibrator", model, "--json")[0])
    classes = ("car", "cyclist", "pedestrian")
    assert found["total"]["raw"]["n"] == sum(one["raw"]["n"] for one in found["slices"].values())
    assert found["slices"].keys() == {f"{name}, {NO_COVARIANCE}" for name in classes}
    offline = json.loads(said("evaluate", bare, "--model", model, "--json")[0])
    car = found["slices"]["car, no covariance"]
    expected = offline["groups"]["car"]["joint"]["nees_over_k"]
    assert car["recalibrated"]["nees_over_k"] == pytest.approx(expected)
    assert car["raw"]["nees_over_k"] < expected / 2


# ---- odd files


def test_one_dimension_without_tracks_is_enough(tmp_path):
    random = np.random.default_rng(0)
    truth = np.arange(120.0)
    path = table_file(
        tmp_path / "one.csv",
        ("x", "gt_x"),
        (map(str, (truth + random.normal(0, 0.3, 120)).tolist()), map(str, truth.tolist())),
    )
    out, _ = said("evaluate", path)
    assert re.search(r"^x: 0\.\d+ RMSE \(", out, re.MULTILINE)
    said("fit", path, "--output", tmp_path / "model.json")
    said("apply", tmp_path / "model.json", path, "--output", tmp_path / "out.csv")
    filled = read_recording(tmp_path / "out.csv")
    assert np.sqrt(filled.covariance[:, 0, 0]) == pytest.approx(np.full(120, 0.3), rel=0.3)


def test_labels_apart_give_the_dimensions_of_boxes_in_an_image(tmp_path):
    random = np.random.default_rng(1)
    seen, labels = [], []
    for frame in range(1, 31):
        for i in range(12):
            left, top = 100 * i + 10, 20
            labels.append(f"{frame},{i},{left},{top},30,40,1,1,1")
            x, y, w, h = (value + random.normal(0, 2) for value in (left, top, 30, 40))
            seen.append(f"{frame},-1,{x},{y},{w},{h},{random.uniform():.3f},-1,-1,-1")
    detections, truth = tmp_path / "det.txt", tmp_path / "gt.txt"
    detections.write_text("\n".join(seen))
    truth.write_text("\n".join(labels))
    words = (detections, "--labels", truth, "--gate", "20")
    out, err = said("evaluate", *words)
    assert "σ is assumed to be 1 in cx, cy, w, h" in err
    assert "A tracker that assumes 1 is 2" in out
    assert "times too narrow" in out
    said("fit", *words, "--output", tmp_path / "model.json")
    # Where it is applied there are no labels: the format says what the dimensions are.
    said("apply", tmp_path / "model.json", detections, "--output", tmp_path / "out.csv")
    filled = read_recording(tmp_path / "out.csv")
    assert filled.space.names == ("cx", "cy", "w", "h")


def test_a_file_of_kitti_is_warned_of_its_axes(tmp_path):
    random = np.random.default_rng(2)
    line = "{f} {i} Car 0 0 -1.5 10 20 30 50 {h} {w} {l} {x} {y} {z} {yaw}"
    seen, labels = [], []
    for f in range(20):
        for i in range(12):
            box = {"h": 1.5, "w": 1.6, "l": 4.0, "x": 0.0, "y": 1.7, "z": 8.0 * i, "yaw": -1.57}
            labels.append(line.format(f=f, i=i, **box))
            off = {name: value + random.normal(0, 0.1) for name, value in box.items()}
            seen.append(line.format(f=f, i=-1, **off) + " 0.9")
    detections, truth = tmp_path / "det.txt", tmp_path / "gt.txt"
    detections.write_text("\n".join(seen))
    truth.write_text("\n".join(labels))
    model = ("--no-held-out", "--output", tmp_path / "model.json")
    out, _ = said("fit", detections, "--labels", truth, *model)
    assert "the ground of the file is z and x" in out
    axes = ("--map", "x=z,y=x,z=y", "--label-map", "x=z,y=x,z=y")
    out, _ = said("fit", detections, "--labels", truth, *axes, *model)
    assert "the ground of the file" not in out


def test_a_file_of_nuscenes_is_warned_of_its_origin(tmp_path):
    random = np.random.default_rng(3)
    files = []
    for sigma in (0.1, 0.0):
        boxes: dict[str, list[object]] = {}
        for i in range(240):
            place = [900.0 + i, 500.0, 1.0]
            token, seen = f"{i // 12:02}", [value + random.normal(0, sigma) for value in place]
            box: dict[str, object] = {
                "sample_token": token,
                "translation": seen,
                "size": [1.8, 4.5, 1.5],
            }
            box |= {"rotation": [1, 0, 0, 0], "detection_name": "car", "detection_score": 0.9}
            boxes.setdefault(token, []).append(box)
        files.append(tmp_path / f"{sigma}.json")
        files[-1].write_text(json.dumps({"results": boxes}))
    model = ("--no-held-out", "--output", tmp_path / "model.json", "--dimensions", "x,y,z")
    out, _ = said("fit", files[0], "--labels", files[1], *model)
    assert "places of nuScenes are those of a map" in out


# ---- Python


def test_arrays_of_means_are_measured_fitted_and_filled(rows):
    kept = rows.of(rows.labelled)
    arrays = {"mean": kept.mean, "gt": kept.truth, "class": kept.class_name, "track": kept.track}
    arrays |= {"dimensions": np.array(DIMENSIONS), "score": kept.score, "seq": kept.sequence}
    with pytest.warns(UserWarning, match="no row has a covariance"):
        found = evaluate(arrays)
    assert (found.whole, found.verdicts, dict(found.groups)) == (None, (), {})
    assert {one.group for one in found.errors} >= {"car", "car, <20"}
    assert found.to_dict()["without_covariance"]
    assert {row["group"] for row in found.table()} >= {"car"}
    assert "RMSE" in str(found)
    assert "RMSE" in found._repr_html_()
    with pytest.warns(UserWarning, match="assume_std"):
        made = fit(arrays, by="class", axes="object")
    assert made.version.startswith("covariance-regression-")
    with pytest.warns(UserWarning, match="no row has a covariance"):
        filled = apply(made, arrays)
    assert np.isfinite(filled.covariance).all()
    assert {"var_x", "cov_x_y"} <= filled.columns().keys()
    with pytest.warns(UserWarning, match="no row has a covariance"):
        judged = evaluate(arrays, model=made)
    assert judged.errors == ()
    assert judged.whole is not None
    assert judged.whole.joint.nees_over_k == pytest.approx(1, abs=0.15)
    with pytest.raises(ValueError, match="axes 'up': use one of plain, sensor, object"):
        fit(arrays, axes="up")


def test_rows_left_without_a_covariance_are_nan_in_python(mixed, drive, tmp_path):
    with pytest.warns(UserWarning, match="have no covariance") as caught:
        made = apply(fit(str(drive), held_out=False), str(mixed))
    assert any("and get none" in str(one.message) for one in caught)
    lacks = read_recording(mixed).assumed
    assert np.isnan(made.covariance[lacks]).all()
    assert np.isfinite(made.covariance[~lacks]).all()


def test_a_row_of_zeros_has_no_covariance(drive, bare, tmp_path):
    found = {
        name: np.full_like(cells, "0") if name.startswith(("var_", "cov_")) else cells
        for name, cells in read_columns(drive).items()
    }
    rows = (cells.tolist() for cells in found.values())
    zeros = table_file(tmp_path / "zeros.csv", found, rows)
    of_zeros, of_none = (
        json.loads(said("evaluate", path, "--json")[0])["without_covariance"]
        for path in (zeros, bare)
    )
    assert of_zeros == of_none
