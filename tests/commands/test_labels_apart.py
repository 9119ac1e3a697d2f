"""--labels: labels of another file are the ground truth of the detections they match, as if it had
come along; each label is counted once, and what finds nothing is said."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.commands.recordings import read_selected
from monitor.options.rows import add_selection
from monitor.store.recordings import Recording
from tests.commands.recordings import csv_file, labels_file
from tests.commands.spoken import found, spoken

OUTCOMES = ("matched", "missed", "ignored", "refused", "duplicate", "untimely")


@pytest.fixture
def apart(rows, tmp_path):
    """The drive without its ground truth, and its labels."""
    untold = replace(rows, truth=np.full_like(rows.truth, np.nan), track=np.full(rows.n, -1))
    labels = labels_file(tmp_path / "labels.csv", rows)
    return csv_file(tmp_path / "bare.csv", untold), labels


def read(detections: dict[str, Any], labels: dict[str, Any], *words: str) -> Recording:
    """Reads columns by name with labels by name."""
    parser = argparse.ArgumentParser()
    add_selection(parser)
    options = parser.parse_args(words)
    options.labels = {name: np.asarray(cells) for name, cells in labels.items()}
    columns = {name: np.asarray(cells) for name, cells in detections.items()}
    return read_selected(columns, options, tell=lambda _: None)


def test_labels_split_from_a_drive_give_the_measures_of_the_drive(drive, rows, apart):
    bare, labels = apart
    got = json.loads(spoken("evaluate", bare, "--labels", labels, "--json")[1])
    whole = found("evaluate", drive)
    count = got["labels"]
    assert {name: got[name] for name in whole} == whole | {"labels": count}
    n = int(np.count_nonzero(rows.labelled))
    assert [count[name] for name in ("labels", *OUTCOMES)] == [n, n, 0, 0, 0, 0, 0]
    assert count["detections_without_label"] == rows.n - n
    labels.write_text(labels.read_text().replace(",frame,", ",number,", 1))
    got = json.loads(spoken("evaluate", bare, "--labels", labels, "--json")[1])
    assert (got["rows"], got["labels"]["refused"]) == (whole["rows"], 0)
    assert got["joint"]["nees_mean"] == pytest.approx(whole["joint"]["nees_mean"], rel=1e-9)


def test_labels_at_another_rate_are_interpolated():
    seconds, at = np.arange(11) / 10, np.array([0, 0.25, 0.5, 0.75, 1])
    detections = {"t": seconds, "x": 8 * seconds + 0.3, "y": 0 * seconds}
    detections |= {"std_x": np.ones(11), "std_y": np.ones(11), "frame": np.arange(11.0)}
    path = {"t": at, "x": 8 * at, "y": 0 * at, "gt_id": np.full(5, 7.0)}
    got = read(detections, path)
    assert got.truth == pytest.approx(np.stack([8 * seconds, 0 * seconds], axis=1), abs=1e-6)
    assert got.track is not None and set(got.track.tolist()) == {7}
    # Between samples further apart than a second nothing is known.
    apart = {name: cells[[0, 4]] for name, cells in path.items()} | {"t": at[[0, 4]] * 1.2}
    assert np.isfinite(read(detections, apart).truth[:, 0]).nonzero()[0].tolist() == [0]


def curving() -> tuple[dict[str, Any], dict[str, Any]]:
    """Ten objects on circles, seen at 10 Hz with a true σ of 1, labelled at 1 Hz."""
    step, object = np.tile(np.arange(101), 10), np.repeat(np.arange(10), 101)
    angle = step / 10 + object
    place = {"x": 30 * np.cos(angle) + 100 * object, "y": 30 * np.sin(angle)}
    random = np.random.default_rng(0)
    ours = {name: at + random.standard_normal(at.size) for name, at in place.items()}
    ours |= {"t": step / 10, "std_x": np.ones(step.size), "std_y": np.ones(step.size)}
    kept = step % 10 == 0
    return ours, {
        name: at[kept] for name, at in (place | {"t": step / 10, "gt_id": object}).items()
    }


def test_interpolated_truths_that_would_change_the_verdict_are_left_out_unless_asked_for():
    ours, theirs = curving()
    for words, rows in (((), 110), (("--label-gap", "1"), 1010), (("--label-gap", "0"), 110)):
        got = read(ours, theirs, "--gate", "8", *words)
        assert got.matched is not None and got.between is not None
        known = np.isfinite(got.truth[:, 0])
        assert known.sum() == rows
        assert np.unique(got.between[known, 0]).size == 110
        counted = [got.matched[name] for name in ("rows", "interpolated", "interpolated_left_out")]
        assert counted == [110, 0 if words == ("--label-gap", "0") else 900, 0 if words else 900]


def test_each_class_needs_a_gate_in_its_unit_and_a_narrow_one_is_told_with_its_class(tmp_path):
    random, ours, theirs = np.random.default_rng(0), tmp_path / "ours.csv", tmp_path / "theirs.csv"
    rows = [f"{i},{name},100,{50 + random.normal()}" for i in range(60) for name in ("car", "van")]
    theirs.write_text("\n".join(["frame,class,cx,cy", *rows]))
    rows = [f"{i},{name},100,50,1,1" for i in range(60) for name in ("car", "van")]
    ours.write_text("\n".join(["frame,class,cx,cy,std_cx,std_cy", *rows]))
    words = ("evaluate", ours, "--labels", theirs, "--gate")
    code, _, err = spoken(*words, "car=20")
    assert (code, "--gate car=20: detections of van have none" in err) == (1, True)
    code, _, err = spoken(*words, "car=20,van=1.5")
    assert (code, "The gate of 1.5 of van may cut off" in err) == (0, True)
    for path, name in ((ours, "sensor"), (theirs, "camera")):
        path.write_text(path.read_text().replace("class", name))
    err = spoken(*words, "20")[2]
    assert "match across all values of sensor" in err
    assert "--map seq=sensor and --label-map seq=camera" in err


@pytest.mark.parametrize(
    ("unit", "named", "start"),
    [(1e3, "t", 1.7e9), (1e6, "t", 1.7e9), (1e9, "t", 1.7e9), (1e6, "time_us", 0)],
)
def test_times_in_other_units_find_the_same_labels(unit, named, start):
    ours, theirs = curving()
    for meant in ("t",) if named == "t" else ("t", "stamp_ns"):
        told = [{**one, named: np.rint((one["t"] + start) * unit)} for one in (ours, theirs)]
        if named != "t":
            for one in told:
                one.pop("t")
        words = (
            () if named == "t" else tuple(f"--{of}={meant}={named}" for of in ("map", "label-map"))
        )
        got = read(told[0], told[1], "--gate", "8", *words)
        assert np.isfinite(got.truth[:, 0]).sum() == 110
        assert "it is converted to" in got.converted


PLACES = st.sampled_from([0.0, 0.5, 1.5, 1.9, 4.0, 9.0])
ROW = st.tuples(st.integers(0, 3), PLACES, st.sampled_from(["Car", "Person", "Tram"]))
LABEL = st.tuples(ROW, st.integers(0, 5), st.booleans(), st.booleans())


@given(st.lists(ROW, max_size=8), st.lists(LABEL, max_size=8))
@settings(deadline=None, max_examples=80)
def test_each_label_has_one_outcome_and_each_match_is_of_its_frame_class_and_gate(ours, theirs):
    # One pair is far away, so that something matches.
    frame, x, name = zip((9, 100.0, "Car"), *ours, strict=True)
    at, id, ignore, broken = zip(((9, 100.0, "Car"), 0, False, False), *theirs, strict=True)
    detections: dict[str, Any] = {"frame": frame, "x": x, "y": np.zeros(len(x)), "class": name}
    detections |= {"var_x": np.ones(len(x)), "var_y": np.ones(len(x))}
    told: dict[str, Any] = dict(zip(("frame", "x", "class"), zip(*at, strict=True), strict=True))
    told |= {"x": np.where(broken, np.nan, told["x"]), "y": np.zeros(len(at)), "gt_id": id}
    got = read(detections, told | {"ignore": ignore})
    account = got.matched
    assert account is not None
    assert account["labels"] == sum(account[name] for name in OUTCOMES) == len(at)
    matched = np.isfinite(got.truth[:, 0])
    assert matched.sum() == account["matched"]
    assert (~matched).sum() == account["detections_without_label"]
    # Each label is used once.
    free = [one for one, *bad in zip(at, ignore, broken, strict=True) if not any(bad)]
    for i in np.flatnonzero(matched):
        place = float(got.truth[i, 0])
        assert abs(place - x[i]) <= 2
        free.remove((frame[i], place, name[i]))
