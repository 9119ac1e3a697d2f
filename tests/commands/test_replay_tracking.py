"""replay --ground-truth: the tracks of a real sidecar, held against labels."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monitor.commands import replay
from monitor.commands.replay_tracking import tracking_table
from monitor.commands.sending import running_sidecar
from monitor.store.labels import HOW_TO_INSTALL
from tests.commands.recordings import FRAMES, SEQUENCES, Recorded, labels_file, npz_file
from tests.commands.spoken import done, found, refused, spoken, wrong_usage

CLASSES = ("car", "pedestrian")
NAMES = ("x", "y", "z")
MEASURES = {
    *("frames", "labels", "matches", "mota", "idf1", "id_switches", "false_positives", "misses"),
    *("position_rmse", "velocity_rmse", "nis_over_k", "state_nees_over_k"),
    *("position_rmse_by_dimension", "velocity_rmse_by_dimension"),
}
FAULT = ("--fault", "variance=0.04")


def tracking(*words: object) -> Any:
    return found("replay", *words)["tracking"]


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
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tracking")


@pytest.fixture(scope="module")
def truth(rows: Recorded, folder: Path) -> Path:
    return labels_file(folder / "labels.csv.gz", rows)


@pytest.fixture(scope="module")
def chosen(drive: Path) -> tuple[object, ...]:
    return drive, "--class", ",".join(CLASSES), "--dimensions", ",".join(NAMES)


@pytest.fixture(scope="module")
def words(chosen: tuple[object, ...], truth: Path) -> tuple[object, ...]:
    """Of most runs here."""
    return *chosen, "--ground-truth", truth


@pytest.fixture(scope="module")
def model(chosen: tuple[object, ...], folder: Path) -> Path:
    """A recalibrator that undoes the fault."""
    path = folder / "model.json"
    done("fit", *chosen, *FAULT, "--method", "covariance-scaling", "--output", path)
    return path


@pytest.fixture(scope="module")
def plain(words: tuple[object, ...]) -> Any:
    return tracking(*words)


def test_the_object_has_the_keys_of_the_contract_and_the_parts_add_up(plain, rows):
    assert plain.keys() == {"raw", "recalibrated", "reason"}
    assert plain["reason"] is None
    # Without a recalibrator one run serves both stages.
    assert plain["raw"] == plain["recalibrated"]
    whole = plain["raw"]
    parts = whole["classes"]
    assert whole.keys() == {*MEASURES, "classes"}
    assert tuple(parts) == CLASSES
    for one in (whole, *parts.values()):
        assert one.keys() - {"classes"} == MEASURES
        assert one["frames"] == FRAMES * len(SEQUENCES)
        assert one["labels"] == one["matches"] + one["misses"]
        wrong = one["misses"] + one["false_positives"] + one["id_switches"]
        assert one["mota"] == pytest.approx(1 - wrong / one["labels"])
        for name in ("position_rmse", "velocity_rmse"):
            by_dimension = one[f"{name}_by_dimension"]
            assert tuple(by_dimension) == NAMES
            assert math.hypot(*by_dimension.values()) == pytest.approx(one[name])
    for name in CLASSES:
        assert parts[name]["labels"] == np.count_nonzero(rows.of_class(name).labelled)
    for key in ("labels", "matches", "misses", "false_positives", "id_switches"):
        assert whole[key] == sum(part[key] for part in parts.values())
    squares = sum(part["matches"] * part["position_rmse"] ** 2 for part in parts.values())
    assert whole["position_rmse"] == pytest.approx(math.sqrt(squares / whole["matches"]))


def test_a_drive_is_played_with_a_recalibrator_and_without(words, model, plain, started):
    got = tracking(*words, *FAULT, "--recalibrator", model)
    assert len(started) == 2
    # Overconfident covariances cost identities, and the recalibrator gives them back.
    good, bad = plain["raw"], got["raw"]
    assert bad["id_switches"] > good["id_switches"] + 20
    assert bad["idf1"] < good["idf1"] - 0.3
    assert bad["mota"] < good["mota"] - 0.3
    assert bad["state_nees_over_k"] > 5 * good["state_nees_over_k"]
    assert got["recalibrated"]["id_switches"] == good["id_switches"]
    assert got["recalibrated"]["idf1"] == pytest.approx(good["idf1"], abs=0.02)


def test_what_needs_motmetrics_is_null_without(words, model, plain, started, monkeypatch):
    monkeypatch.setitem(sys.modules, "motmetrics", None)
    code, out, err = spoken(
        "replay", *words, "--recalibrator", model, "--mode", "observe", "--json"
    )
    got = json.loads(out)["tracking"]
    assert (code, len(started)) == (0, 1)
    # Said before anything is played, too.
    assert err.startswith(f"calibration-monitor replay: {HOW_TO_INSTALL}")
    assert got["reason"] == HOW_TO_INSTALL
    known = {"frames", "labels", "nis_over_k"}
    for key in MEASURES:
        whole = plain["raw"]
        assert got["raw"][key] == got["recalibrated"][key] == (whole[key] if key in known else None)
        for name in CLASSES:
            expected = whole["classes"][name][key] if key in known else None
            assert got["raw"]["classes"][name][key] == expected
    assert tracking_table(got).splitlines()[-1] == HOW_TO_INSTALL


def test_the_command_line_overrules_the_configured_tracker(words, folder, plain, started):
    config = folder / "sidecar.toml"
    config.write_text(
        '[recalibration]\nmode = "observe"\nrecalibrator = "nowhere.json"\n'
        '[tracker]\nkind = "none"\nmeasurement_noise = "unit"\nbirth_score = 1000.0\n'
        "[tracker.dimensions.z]\ndensity = 0.2\ninitial_speed = 1.0\n"
    )
    more = ("--measurement-noise", "detection", "--birth-score", "-1")
    assert tracking(*words, "--config", config, *more, "--match-distance", "car=2") == plain
    nothing = tracking(*words, "--config", config)["raw"]
    assert nothing["misses"] == nothing["labels"] == plain["raw"]["labels"]
    assert (nothing["matches"], nothing["mota"], nothing["idf1"]) == (0, 0.0, 0.0)
    assert nothing["position_rmse"] is None
    assert nothing["position_rmse_by_dimension"] == dict.fromkeys(NAMES)
    assert nothing["nis_over_k"] is nothing["state_nees_over_k"] is None
    # The noise of a detection, or the identity, which does not look at it.
    unit = tracking(*words, *FAULT, "--measurement-noise", "unit")
    assert unit["raw"]["nis_over_k"] < plain["raw"]["nis_over_k"] / 2


def test_a_running_sidecar_gives_what_it_forwards_and_without_a_tracker_says_so(words, plain):
    with running_sidecar('[tracker]\nkind = "embedded"\n') as addresses:
        got = tracking(*words, "--address", addresses.grpc)
    assert got["recalibrated"] == plain["recalibrated"]
    assert got["raw"] is None
    assert addresses.grpc in got["reason"]
    with running_sidecar("") as addresses:
        got = tracking(*words, "--address", addresses.grpc)
    assert got["raw"] is got["recalibrated"] is None
    assert f"[tracker] kind = none on the sidecar at {addresses.grpc}: start it" in got["reason"]
    assert tracking_table(got) == got["reason"]


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (("--birth-score", "2", "--match-distance", "2"), "--birth-score, --match-distance:"),
        (("--address", "127.0.0.1:1", "--birth-score", "2"), "would be a setting of the tracker"),
        (("LABELS", "--match-distance", "tram=2"), "no class 'tram'. Classes there are: car, "),
        (("LABELS", "--dimensions", "yaw"), "without a length among the dimensions no track has"),
    ],
)
def test_what_cannot_be_held_against_labels_is_refused(monkeypatch, chosen, truth, more, named):
    monkeypatch.setattr(replay, "running_sidecar", None)
    labels = {"LABELS": ("--ground-truth", truth)}
    words = (word for one in more for word in labels.get(one, (one,)))
    assert named in refused("replay", *chosen, *words)


def test_people_get_a_line_for_each_slice_stage_and_class(words, drive, plain):
    lines = done("replay", drive, "--class", "car", *words[3:], "--match-distance", "0.05")
    heads = [line.split()[:2] for line in lines.splitlines()]
    there = [["car", "raw"], ["car", "recalibrated"], ["total", "raw"], ["total", "recalibrated"]]
    assert heads[1:6] == [["slice", "stage"], *there]
    assert heads[6:8] == [["drift", "severity"], ["car", "page"]]
    assert heads[-3:] == [["tracks", "class"], ["raw", "car"], ["recalibrated", "car"]]
    wide = tracking(*words, "--match-distance", "car=2,pedestrian=2")["raw"]["classes"]
    assert wide["car"] == plain["raw"]["classes"]["car"]


def test_files_that_no_labels_can_be_held_against_are_refused(rows, drive, truth, folder):
    flat = folder / "flat.csv"
    flat.write_text("frame,t,class,x,var_x\n0,0,car,1,1\n")
    frameless, to = npz_file(folder / "frameless.npz", rows), ("--ground-truth", truth)
    assert "the files have dimensions x and x,y,z,yaw." in refused("replay", drive, flat, *to)
    assert "no column frame" in refused("replay", frameless, *to)
    assert "gone.csv" in refused("replay", drive, *to[:1], "gone.csv")
    for text in ("0", "near", "car=0"):
        wrong_usage("--match-distance", text, "replay", drive)
