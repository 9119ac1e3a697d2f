"""replay --ground-truth: the tracks of a real sidecar, held against labels."""

from __future__ import annotations

import contextlib
import io
import json
import math
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import motmetrics
import numpy as np
import pytest

from monitor.cli import main
from monitor.commands import replay
from monitor.commands.replay_tracking import tracking_table
from monitor.commands.sending import running_sidecar
from monitor.config import TrackerConfig
from monitor.frames.frame import TrackStatus
from monitor.frames.space import FloatArray, plain_space
from monitor.store.labels import HOW_TO_INSTALL
from monitor.tracking.rewind import Tracker, follow
from monitor.tracking.tracker import Sightings, tracker_model
from tests.verbs.recordings import (
    EMPTY,
    FRAMES,
    SEQUENCES,
    Recorded,
    csv_file,
    labels_file,
    npz_file,
    recorded,
)

CLASSES = ("car", "pedestrian")
NAMES = ("x", "y", "z")
MEASURES = {
    *("frames", "labels", "matches", "mota", "idf1", "id_switches", "false_positives", "misses"),
    *("position_rmse", "velocity_rmse", "nis_over_k", "state_nees_over_k"),
    *("position_rmse_by_dimension", "velocity_rmse_by_dimension"),
}
WITHOUT_MATCHES = {"frames", "labels", "nis_over_k"}


def replayed(*words: object) -> str:
    """What replay prints, once it has done its work without a complaint."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["replay", *map(str, words)])
    assert (code, err.getvalue()) == (0, "")
    return out.getvalue()


def tracking(*words: object) -> Any:
    return json.loads(replayed(*words))["tracking"]


@pytest.fixture
def refusal(capsys, monkeypatch):
    """What replay says when it cannot, before a sidecar is started."""
    monkeypatch.setattr(replay, "running_sidecar", None)

    def refused(*words):
        assert main(["replay", *map(str, words)]) == 1
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith("calibration-monitor replay: ")
        assert said.err.count("\n") == 1
        return said.err

    return refused


@pytest.fixture
def started(monkeypatch):
    """Configurations of the sidecars that replay starts."""
    configs = []

    def noted(config):
        configs.append(config)
        return running_sidecar(config)

    monkeypatch.setattr(replay, "running_sidecar", noted)
    return configs


@pytest.fixture(scope="module")
def rows() -> Recorded:
    return recorded()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tracking")


@pytest.fixture(scope="module")
def drive(rows: Recorded, folder: Path) -> Path:
    return csv_file(folder / "drive.csv.gz", rows)


@pytest.fixture(scope="module")
def truth(rows: Recorded, folder: Path) -> Path:
    return labels_file(folder / "labels.csv.gz", rows)


@pytest.fixture(scope="module")
def words(drive: Path, truth: Path) -> tuple[object, ...]:
    """Of most runs here."""
    chosen = ("--class", ",".join(CLASSES), "--dimensions", ",".join(NAMES))
    return drive, *chosen, "--ground-truth", truth, "--json"


FAULT = ("--fault", "variance=0.04")
FIELDS = fields(Recorded)


@pytest.fixture(scope="module")
def model(words: tuple[object, ...], folder: Path) -> Path:
    """A recalibrator that undoes the fault."""
    path = folder / "model.json"
    fit = ("fit", *words[:5], *FAULT, "--method", "covariance-scaling", "--output", path)
    with contextlib.redirect_stdout(io.StringIO()):
        assert main([str(word) for word in fit]) == 0
    return path


@pytest.fixture(scope="module")
def plain(words: tuple[object, ...]) -> Any:
    return tracking(*words)


@pytest.fixture(scope="module")
def faulty(words: tuple[object, ...]) -> Any:
    return tracking(*words, *FAULT)


# ---- a plain run


def test_the_object_has_the_keys_of_the_contract(plain):
    assert plain.keys() == {"raw", "recalibrated", "reason"}
    assert plain["reason"] is None
    for stage in (plain["raw"], plain["recalibrated"]):
        assert stage.keys() == {*MEASURES, "classes"}
        assert tuple(stage["classes"]) == CLASSES
        for found in (stage, *stage["classes"].values()):
            assert found.keys() - {"classes"} == MEASURES
            for name in ("position_rmse", "velocity_rmse"):
                by_dimension = found[f"{name}_by_dimension"]
                assert tuple(by_dimension) == NAMES
                assert math.hypot(*by_dimension.values()) == pytest.approx(found[name])


def test_without_a_recalibrator_one_run_serves_both_stages(plain):
    assert plain["raw"] == plain["recalibrated"]


def test_every_label_of_every_frame_counts(plain, rows):
    assert plain["raw"]["frames"] == FRAMES * len(SEQUENCES)
    for name in CLASSES:
        found = plain["raw"]["classes"][name]
        there = rows.of_class(name)
        assert found["frames"] == FRAMES * len(SEQUENCES)
        assert found["labels"] == np.count_nonzero(there.labelled)
        assert found["labels"] == found["matches"] + found["misses"]
        wrong = found["misses"] + found["false_positives"] + found["id_switches"]
        assert found["mota"] == pytest.approx(1 - wrong / found["labels"])


def test_all_classes_together_are_the_sums_of_each(plain):
    whole, parts = plain["raw"], plain["raw"]["classes"].values()
    for key in ("labels", "matches", "misses", "false_positives", "id_switches"):
        assert whole[key] == sum(part[key] for part in parts)
    squares = sum(part["matches"] * part["position_rmse"] ** 2 for part in parts)
    assert whole["position_rmse"] == pytest.approx(math.sqrt(squares / whole["matches"]))


def test_the_numbers_are_those_of_the_tracker_itself(plain, rows):
    """One class, without wire, sidecar and the code that is tested here."""
    settings = TrackerConfig().settings()
    part = np.array([0, 1, 2])
    accumulators, squares, ratios = [], [], []
    for sequence in SEQUENCES:
        own = rows.of_class("car").of(rows.of_class("car").sequence == sequence)
        tracker = Tracker(tracker_model(plain_space(NAMES), 1, settings))
        accumulator, numbered = motmetrics.MOTAccumulator(auto_id=False), 0
        states: dict[tuple[int, int], FloatArray] = {}
        for frame in range(FRAMES):
            here = own.of(own.frame == frame)
            seen = Sightings(
                stamp_ns=frame * 10**8,
                mean=here.mean[:, part],
                covariance=here.covariance[:, part[:, None], part],
                missing=np.zeros(here.n, bool),
                class_index=np.zeros(here.n, np.int64),
                row=np.arange(here.n),
                number=(np.arange(here.n) + numbered + 1).astype(np.uint64),
                score=here.score,
            )
            numbered += here.n
            tracker, step, _ = follow(tracker, seen)
            assert step is not None
            told = step.reported()
            good = np.flatnonzero(told.status == TrackStatus.CONFIRMED)
            ratios.append(told.nis[good][np.isfinite(told.nis[good])])
            labels = here.of(here.labelled)
            distance = np.linalg.norm(
                labels.truth[:, None, :2] - told.state[None, good, :2], axis=2
            )
            distance[distance > 2] = np.nan
            free = ~np.isfinite(distance).any(axis=0) & here.ignore[told.detection[good]]
            ids = told.id[good].astype(np.int64)
            accumulator.update(labels.track, ids[~free], distance[:, ~free], frameid=frame)
            states |= {(frame, int(told.id[i])): told.state[i, :3] for i in good}
        events = accumulator.mot_events
        events = events[events["Type"].isin(["MATCH", "SWITCH"])].reset_index()
        keys = zip(own.frame.tolist(), own.track.tolist(), strict=True)
        at = dict(zip(keys, own.truth[:, :3], strict=True))
        for frame, label, track in zip(
            events["FrameId"], events["OId"], events["HId"], strict=True
        ):
            error = states[int(frame), int(track)] - at[int(frame), int(label)]
            squares.append(float(error @ error))
        accumulators.append(accumulator)
    expected = motmetrics.metrics.create().compute_many(
        accumulators, metrics=["mota", "idf1", "num_misses"], generate_overall=True
    )
    found = plain["raw"]["classes"]["car"]
    assert found["mota"] == pytest.approx(expected.loc["OVERALL", "mota"])
    assert found["idf1"] == pytest.approx(expected.loc["OVERALL", "idf1"])
    assert found["misses"] == expected.loc["OVERALL", "num_misses"]
    assert found["matches"] == len(squares)
    assert found["position_rmse"] == pytest.approx(math.sqrt(np.mean(squares)))
    assert found["nis_over_k"] == pytest.approx(np.concatenate(ratios).mean() / 3)
    # Good tracks, or there would be little to compare.
    assert found["mota"] > 0.8


def test_labels_of_frames_without_detections_are_missed(words, plain, rows, folder):
    there = rows.of_class("car")
    one = there.of(there.labelled & (there.frame == EMPTY - 1) & (there.sequence == "north"))
    more = replace(one.of(slice(0, 1)), frame=np.array([EMPTY]))
    assert not np.any(rows.frame == EMPTY)
    both = Recorded(
        **{f.name: np.concatenate([getattr(part, f.name) for part in (rows, more)]) for f in FIELDS}
    )
    path = labels_file(folder / "more.csv", both)
    found = tracking(*(path if word == words[6] else word for word in words))
    for key in ("labels", "misses"):
        assert found["raw"][key] == plain["raw"][key] + 1
    assert found["raw"]["matches"] == plain["raw"]["matches"]


# ---- faults and recalibrators


def test_overconfident_covariances_cost_identities(plain, faulty):
    assert faulty["raw"]["id_switches"] > plain["raw"]["id_switches"] + 20
    assert faulty["raw"]["idf1"] < plain["raw"]["idf1"] - 0.3
    assert faulty["raw"]["mota"] < plain["raw"]["mota"] - 0.3
    assert faulty["raw"]["state_nees_over_k"] > 5 * plain["raw"]["state_nees_over_k"]


def without_floor(found):
    """The object without what depends on tracks."""
    if isinstance(found, dict):
        of_tracks = ("ence_noise_floor", "alarms", "drift")
        return {k: without_floor(v) for k, v in found.items() if k not in of_tracks}
    return found


def test_with_a_recalibrator_the_drive_is_played_once_with_and_once_without(
    words, model, plain, faulty, started
):
    whole = json.loads(replayed(*words, *FAULT, "--recalibrator", model))
    assert len(started) == 2
    found = whole.pop("tracking")
    assert found["raw"] == faulty["raw"]
    assert found["recalibrated"]["id_switches"] == plain["raw"]["id_switches"]
    assert found["recalibrated"]["idf1"] == pytest.approx(plain["raw"]["idf1"], abs=0.02)
    # The statistics are those of the run with the recalibrator.
    # Without labels nobody tracks, so that the noise floor knows of no correlation.
    alone = (*words[:5], "--json", *FAULT, "--recalibrator", model)
    assert without_floor(whole) == without_floor(json.loads(replayed(*alone)))


@pytest.mark.parametrize("none", ["none", "identity", "observe"])
def test_where_the_raw_estimate_is_forwarded_the_drive_is_played_once(
    words, model, faulty, folder, started, none
):
    identity = folder / "identity.json"
    if none == "identity":
        fit = ("fit", *words[:5], "--method", "identity", "--output", identity)
        with contextlib.redirect_stdout(io.StringIO()):
            assert main([str(word) for word in fit]) == 0
    more = {
        "none": ("--recalibrator", "none"),
        "identity": ("--recalibrator", identity),
        "observe": ("--recalibrator", model, "--mode", "observe"),
    }
    assert tracking(*words, *FAULT, *more[none]) == faulty
    assert len(started) == 1


# ---- settings of the tracker


def test_the_identity_as_measurement_noise_is_another_tracker(words, plain, faulty):
    unit = tracking(*words, "--measurement-noise", "unit")
    assert unit["raw"]["nis_over_k"] < plain["raw"]["nis_over_k"] / 2
    # What the detector says is not looked at.
    assert tracking(*words, *FAULT, "--measurement-noise", "unit") == unit
    assert unit != faulty


def test_a_configuration_gives_its_tracker_and_nothing_else(words, folder):
    config = folder / "sidecar.toml"
    config.write_text(
        '[recalibration]\nmode = "observe"\nrecalibrator = "nowhere.json"\n'
        '[tracker]\nkind = "none"\nmeasurement_noise = "unit"\nbirth_score = 0.5\n'
        "[tracker.dimensions.x]\ndensity = 2.5\n"
    )
    found = tracking(*words, "--config", config)
    unit = tracking(*words, "--measurement-noise", "unit", "--birth-score", "0.5")
    assert found["raw"]["matches"] == pytest.approx(unit["raw"]["matches"], abs=5)
    assert found["raw"] != unit["raw"]


def test_the_command_line_overrules_the_configuration(words, folder, plain):
    config = folder / "overruled.toml"
    config.write_text('[tracker]\nmeasurement_noise = "unit"\nbirth_score = 0.9\n')
    more = ("--measurement-noise", "detection", "--birth-score", "-1")
    assert tracking(*words, "--config", config, *more) == plain


def test_a_detection_below_the_birth_score_begins_no_track(words, plain, rows):
    high = np.quantile(rows.of_class(*CLASSES).score, 0.9)
    found = tracking(*words, "--birth-score", high)
    assert found["raw"]["misses"] > plain["raw"]["misses"]
    nothing = tracking(*words, "--birth-score", 1000)["raw"]
    assert nothing["misses"] == nothing["labels"] == plain["raw"]["labels"]
    assert (nothing["matches"], nothing["mota"], nothing["idf1"]) == (0, 0.0, 0.0)
    assert nothing["position_rmse"] is None
    assert nothing["position_rmse_by_dimension"] == dict.fromkeys(NAMES)
    assert nothing["nis_over_k"] is nothing["state_nees_over_k"] is None


def test_the_match_distance_is_that_of_the_class(words, plain):
    assert tracking(*words, "--match-distance", "car=2,pedestrian=1") == plain
    wide = tracking(*words, "--match-distance", "pedestrian=2")["raw"]["classes"]
    assert wide["car"] == plain["raw"]["classes"]["car"]
    narrow = tracking(*words, "--match-distance", "0.05")["raw"]
    assert narrow["matches"] < plain["raw"]["matches"] / 4
    assert narrow["position_rmse"] < plain["raw"]["position_rmse"]


# ---- files


def test_several_files_are_held_against_the_same_labels(words, plain, drive):
    found = tracking(drive, *words)["raw"]
    for key in ("frames", "labels", "matches", "misses", "id_switches"):
        assert found[key] == 2 * plain["raw"][key]
    assert found["mota"] == pytest.approx(plain["raw"]["mota"])


def test_a_selection_needs_only_its_own_labels(words, rows, folder):
    own = rows.of(rows.sequence == "west")
    path = labels_file(folder / "west.csv", own)
    more = (path if word == words[6] else word for word in words)
    found = tracking(*more, "--where", "role=deploy")["raw"]
    assert found["frames"] == FRAMES
    assert found["labels"] == np.count_nonzero(own.of_class(*CLASSES).labelled)


# ---- where something is missing


def test_where_motmetrics_is_missing_what_needs_matches_is_null(words, plain, monkeypatch):
    monkeypatch.setitem(sys.modules, "motmetrics", None)
    found = tracking(*words)
    assert found["reason"] == HOW_TO_INSTALL
    for key in MEASURES:
        expected = plain["raw"][key] if key in WITHOUT_MATCHES else None
        assert found["raw"][key] == found["recalibrated"][key] == expected
        for name in CLASSES:
            expected = plain["raw"]["classes"][name][key] if key in WITHOUT_MATCHES else None
            assert found["raw"]["classes"][name][key] == expected
    assert replayed(*words[:-1]).splitlines()[-1] == HOW_TO_INSTALL


def test_a_running_sidecar_gives_what_it_forwards(words, plain):
    with running_sidecar('[tracker]\nkind = "embedded"\n') as addresses:
        found = tracking(*words, "--address", addresses.grpc)
    assert found["recalibrated"] == plain["recalibrated"]
    assert found["raw"] is None
    assert addresses.grpc in found["reason"]


def test_a_running_sidecar_without_a_tracker_is_told(words):
    with running_sidecar("") as addresses:
        found = tracking(*words, "--address", addresses.grpc)
    reason = (
        f"[tracker] kind = none on the sidecar at {addresses.grpc}: "
        'start it with [tracker] kind = "embedded".'
    )
    assert found == {"raw": None, "recalibrated": None, "reason": reason}
    assert tracking_table(found) == reason


# ---- for people


def test_people_get_a_line_for_each_stage_and_class(words, plain):
    lines = [line.split() for line in replayed(*words[:-1]).splitlines()]
    begin = next(i for i, line in enumerate(lines) if line[0] == "tracks")
    assert [line[:2] for line in lines[begin + 1 :]] == [
        [stage, name] for stage in ("raw", "recalibrated") for name in (*CLASSES, "all")
    ]
    whole = plain["raw"]
    assert lines[begin + 3][2:] == [
        *(f"{100 * whole['mota']:.1f}", "%", f"{100 * whole['idf1']:.1f}", "%"),
        *(str(whole[key]) for key in ("id_switches", "false_positives", "misses")),
        *(f"{whole[key]:.3f}" for key in ("position_rmse", "velocity_rmse")),
        *(f"{whole[key]:.3f}" for key in ("nis_over_k", "state_nees_over_k")),
    ]


def test_one_class_has_no_line_for_all(words):
    out = replayed(*words[:-1], "--class", "car", "--where", "seq=west")
    assert [line.split()[:2] for line in out.splitlines()[-2:]] == [
        ["raw", "car"],
        ["recalibrated", "car"],
    ]


# ---- what it does not do


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (("--measurement-noise", "unit"), "--measurement-noise: there is nothing to hold"),
        (("--birth-score", "2", "--match-distance", "2"), "--birth-score, --match-distance:"),
        (("--address", "127.0.0.1:1", "--birth-score", "2"), "would be a setting of the tracker"),
    ],
)
def test_options_without_labels_to_act_on_are_refused(refusal, drive, more, named):
    assert named in refusal(drive, *more)


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (("--ground-truth", "gone.csv"), "gone.csv: cannot be read"),
        (("--match-distance", "tram=2"), "no class 'tram'. Classes there are: car, pedestrian."),
        (("--config", "gone.toml"), "gone.toml"),
        (("--dimensions", "yaw"), "without a length among the dimensions no track has a place"),
    ],
)
def test_what_cannot_be_held_against_labels_is_refused(refusal, words, more, named):
    assert named in refusal(*words, *more)


def test_a_configuration_with_an_unknown_key_is_refused(refusal, words, folder):
    config = folder / "wrong.toml"
    config.write_text("[tracker]\nbirthscore = 2\n")
    assert "tracker.birthscore" in refusal(*words, "--config", config)


def test_a_sequence_or_class_without_labels_is_named(refusal, words, rows, folder):
    north = labels_file(folder / "north.csv", rows.of(rows.sequence == "north"))
    line = refusal(*words, "--ground-truth", north)
    assert "no label of sequence 'south'. Sequences there are: north." in line
    cars = labels_file(folder / "cars.csv", rows.of_class("car"))
    line = refusal(*words, "--ground-truth", cars)
    assert "no label of class 'pedestrian'. Classes there are: car." in line


def test_a_recording_without_frames_has_no_labels(refusal, rows, folder, truth):
    archive = npz_file(folder / "frameless.npz", rows)
    assert "no column frame" in refusal(archive, "--ground-truth", truth)


def test_files_of_different_dimensions_are_not_tracked_together(refusal, drive, rows, truth):
    flat = drive.with_name("flat.csv")
    flat.write_text("frame,t,class,x,var_x\n0,0,car,1,1\n")
    line = refusal(drive, flat, "--ground-truth", truth)
    assert "the files have dimensions x and x,y,z,yaw." in line


@pytest.mark.parametrize(
    ("option", "text"),
    [
        *[("--match-distance", text) for text in ("0", "-1", "near", "inf", "car=", "car=2,x")],
        *[("--birth-score", text) for text in ("high", "nan", "inf")],
        ("--measurement-noise", "none"),
    ],
)
def test_an_option_that_makes_no_sense_is_wrong_usage(capsys, drive, option, text):
    with pytest.raises(SystemExit) as end:
        main(["replay", str(drive), f"{option}={text}"])
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert f"argument {option}: " in said
    assert f"'{text}'" in said
