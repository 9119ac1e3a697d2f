"""reference: what it learns of recorded drives, held against slow formulas."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from monitor.cli import main
from monitor.commands.replay_drift import learn_references
from monitor.drift.bets import Stage
from monitor.drift.evidence import DriftSettings
from monitor.drift.reference import Origin, knot_levels
from monitor.store.codec import InvalidDocument
from monitor.store.drift_documents import read_references, reference_text
from monitor.store.recordings import read_recording
from tests.verbs.recordings import Recorded, csv_file, nees, npz_file, recorded

CLASSES = ("car", "pedestrian")
CHOSEN = ("--class", ",".join(CLASSES))
# Detections of a track in a second that say something of how tracks differ.
FEWEST = 5
# What these small drives have of both classes, and not of cyclists.
ENOUGH = {"reference_tracks": 13, "reference_detections": 280}


def configuration(path, **keys):
    """A file with these under [drift]."""
    path.write_text("\n".join(["[drift]", *(f"{key} = {value}" for key, value in keys.items())]))
    return path


def learned(run, path, *files):
    enough = configuration(path.with_suffix(".toml"), **ENOUGH)
    run("reference", *files, "--config", enough, "--output", path)
    return read_references(path)


def seconds_of_tracks(rows: Recorded) -> list[float]:
    """Mean ln NEES of each, by loops; the last second of a sequence is never over."""
    there = rows.of(rows.labelled)
    last = {name: int(rows.time_s[rows.sequence == name].max()) for name in set(rows.sequence)}
    blocks = defaultdict(list)
    for i, value in enumerate(nees(rows)):
        second, name = int(there.time_s[i]), str(there.sequence[i])
        if second < last[name]:
            blocks[name, int(there.track[i]), second].append(np.log(value))
    return [float(np.mean(values)) for values in blocks.values() if len(values) >= FEWEST]


def same(found, expected):
    assert found.keys() == expected.keys()
    for name, stages in expected.items():
        for stage, reference in stages.items():
            got = found[name][stage]
            np.testing.assert_allclose(got.quantiles, reference.quantiles, rtol=1e-12)
            assert (got.k, got.detections) == (reference.k, reference.detections)
            assert got.nees_ratio == pytest.approx(reference.nees_ratio)
            assert got.tempering == pytest.approx(reference.tempering)
            assert got.frame_tempering == pytest.approx(reference.frame_tempering)
            assert got.levels.between == pytest.approx(reference.levels.between)
            assert got.levels.within == pytest.approx(reference.levels.within)


def test_it_is_what_the_formulas_say_of_each_class(run, drive, rows, tmp_path):
    found = learned(run, tmp_path / "usual.json", drive, *CHOSEN)
    assert tuple(found) == CLASSES
    for name, stages in found.items():
        of_class = rows.of_class(name)
        values = nees(of_class)
        assert tuple(stages) == tuple(Stage)
        for reference in stages.values():
            assert (reference.origin, reference.k) == (Origin.FILE, 3)
            assert reference.detections == values.size
            assert reference.nees_ratio == pytest.approx(values.mean() / 3)
            inside = (knot_levels() > 0.05) & (knot_levels() < 0.95)
            of_rows = np.quantile(values, knot_levels()[inside], method="weibull")
            np.testing.assert_allclose(reference.quantiles[inside], of_rows, rtol=0.005)


def test_seconds_of_tracks_are_those_of_the_loop(run, drive, rows, tmp_path):
    found = learned(run, tmp_path / "usual.json", drive, *CHOSEN)
    for name in CLASSES:
        levels = found[name][Stage.RAW].levels
        seconds = seconds_of_tracks(rows.of_class(name))
        assert levels is not None and levels.blocks == len(seconds) > 10
        assert min(seconds) < levels.mean < max(seconds)
        assert levels.mean == pytest.approx(np.mean(seconds), abs=0.1)


def test_each_sequence_is_a_stream_of_its_own(run, rows, tmp_path):
    whole = csv_file(tmp_path / "whole.csv", rows)
    found = learned(run, tmp_path / "whole.json", whole, *CHOSEN)
    backwards = np.concatenate([np.flatnonzero(rows.sequence == s) for s in ("west", "north")])
    rest = np.flatnonzero(rows.sequence == "south")
    other = csv_file(tmp_path / "other.csv", rows.of(np.concatenate([rest, backwards])))
    again = learned(run, tmp_path / "again.json", other, *CHOSEN)
    same(again, found)


def test_the_names_of_objects_may_be_anything(run, drive, rows, tmp_path):
    found = learned(run, tmp_path / "numbers.json", drive, *CHOSEN)
    path = csv_file(tmp_path / "named.csv", rows)
    lines = [line.split(",") for line in path.read_text().splitlines()]
    column = lines[0].index("gt_id")
    for line in lines[1:]:
        line[column] = line[column] and f"object {line[column]}"
    path.write_text("\n".join(map(",".join, lines)))
    same(learned(run, tmp_path / "names.json", path, *CHOSEN), found)


def test_two_files_say_as_much_as_one_with_all_sequences(run, drive, rows, tmp_path):
    found = learned(run, tmp_path / "one.json", drive, *CHOSEN)
    parts = [
        csv_file(tmp_path / f"part{i}.csv", rows.of(np.isin(rows.sequence, names)))
        for i, names in enumerate((("north",), ("south", "west")))
    ]
    same(learned(run, tmp_path / "two.json", *parts, *CHOSEN), found)


def test_rows_and_dimensions_are_chosen_as_for_other_verbs(run, drive, rows, tmp_path):
    path = tmp_path / "chosen.json"
    found = learned(run, path, drive, "--class", "car", "--dimensions", "x,y")
    reference = found["car"][Stage.RAW]
    assert reference.k == 2
    expected = nees(rows.of_class("car"), (0, 1)).mean() / 2
    assert reference.nees_ratio == pytest.approx(expected)
    faulty = learned(run, path, drive, "--class", "car", "--fault", "variance=4")
    whole = nees(rows.of_class("car")).mean() / 3
    assert faulty["car"][Stage.RAW].nees_ratio == pytest.approx(whole / 4)


def test_both_stages_are_known_where_a_recalibrator_will_be_in_force(run, drive, fitted, tmp_path):
    model = fitted(drive, *CHOSEN, "--fault", "variance=0.25", "--method", "covariance-scaling")
    without = learned(run, tmp_path / "without.json", drive, *CHOSEN)
    found = learned(run, tmp_path / "with.json", drive, *CHOSEN, "--recalibrator", model)
    for name in CLASSES:
        raw, made = (found[name][stage] for stage in Stage)
        np.testing.assert_array_equal(raw.quantiles, without[name][Stage.RAW].quantiles)
        # It was fitted where variances are a quarter: it makes them four times as large or so.
        assert made.nees_ratio == pytest.approx(raw.nees_ratio / 4, rel=0.2)
        np.testing.assert_allclose(
            made.quantiles * raw.nees_ratio / made.nees_ratio, raw.quantiles, rtol=0.1
        )


def test_a_class_of_too_few_tracks_is_left_out_and_named(drive, capsys, tmp_path):
    path = tmp_path / "usual.json"
    enough = str(configuration(tmp_path / "sidecar.toml", **ENOUGH))
    assert main(["reference", str(drive), "--config", enough, "--output", str(path)]) == 0
    said = capsys.readouterr()
    assert tuple(read_references(path)) == CLASSES
    (line,) = said.err.splitlines()
    assert line.startswith("calibration-monitor reference: cyclist: 6 tracks and ")
    heads, *lines = said.out.splitlines()
    assert heads.split()[:3] == ["slice", "stage", "detections"]
    assert [line.split()[:2] for line in lines] == [
        [name, stage.label] for name in CLASSES for stage in Stage
    ]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--class", "cyclist"), "nothing is learned: cyclist: 6 tracks and 59 detections"),
        (("--where", "gt_id="), "have no truth. Give longer drives."),
        (("--recalibrator", "gone.json"), "gone.json"),
        (("--class", "tram"), "'tram'"),
    ],
)
def test_what_says_too_little_or_is_not_there_is_refused(refused, drive, tmp_path, words, sentence):
    path = tmp_path / "usual.json"
    assert sentence in refused("reference", drive, *words, "--output", path)
    assert not path.exists()


def test_files_of_different_dimensions_are_refused(refused, drive, rows, tmp_path):
    flat = tmp_path / "flat.npz"
    np.savez(flat, mean=rows.mean[:, :2], var=np.ones((rows.n, 2)), gt=rows.truth[:, :2])
    line = refused("reference", drive, flat, "--output", tmp_path / "usual.json")
    assert "Give --dimensions that all have" in line


def test_a_drive_without_tracks_needs_many_detections(refused, run, rows, tmp_path):
    few = npz_file(tmp_path / "few.npz", rows)
    assert "0 tracks and" in refused("reference", few, "--output", tmp_path / "usual.json")
    times = -(-DriftSettings().reference_detections // int(np.count_nonzero(rows.labelled)))
    often = rows.of(np.tile(np.arange(rows.n), times + 3))
    many = npz_file(tmp_path / "many.npz", often.of_class("car"))
    run("reference", many, "--output", tmp_path / "usual.json")
    reference = read_references(tmp_path / "usual.json")["car"][Stage.RAW]
    assert reference.levels is None
    assert reference.detections >= DriftSettings().reference_detections


def test_how_much_is_enough_is_said_by_the_configuration_of_a_sidecar(
    refused, run, drive, rows, tmp_path
):
    files = (drive, "--class", "car", "--output", tmp_path / "usual.json")
    cars = rows.of_class("car")
    labelled, tracks = int(np.count_nonzero(cars.labelled)), len(set(cars.track) - {-1})
    config = tmp_path / "sidecar.toml"
    enough = {"reference_tracks": tracks, "reference_detections": labelled}
    run("reference", *files, "--config", configuration(config, **enough))
    assert read_references(tmp_path / "usual.json")["car"][Stage.RAW].detections == labelled
    for key, value in enough.items():
        more = configuration(config, **(enough | {key: value + 1}))
        assert f"{key} = {value + 1}" in refused("reference", *files, "--config", more)


def test_tracks_end_when_the_configuration_says(run, drive, tmp_path):
    output, path = tmp_path / "usual.json", tmp_path / "sidecar.toml"
    usual = learned(run, output, drive, *CHOSEN)
    # Less than there is between two frames: no track lasts for several seconds.
    short = configuration(path, **ENOUGH, track_idle_seconds=0.05)
    run("reference", drive, *CHOSEN, "--config", short, "--output", output)
    other = read_references(output)
    for name in CLASSES:
        found, known = (one[name][Stage.RAW] for one in (other, usual))
        assert found.detections == known.detections
        assert found.levels is None and known.levels is not None


def test_a_configuration_that_is_none_is_refused(refused, drive, tmp_path):
    config = configuration(tmp_path / "sidecar.toml", open_track=1)
    words = ("--config", config, "--output", tmp_path / "usual.json")
    assert "[drift.open_track]" in refused("reference", drive, *words)


# ---- the file


def test_a_reference_comes_out_of_its_file_as_it_went_in(tmp_path):
    recording = read_recording(csv_file(tmp_path / "drive.csv", recorded()))
    settings = DriftSettings(reference_tracks=13, reference_detections=280)
    found = learn_references([recording], None, settings).references
    path = tmp_path / "usual.json"
    path.write_text(reference_text(found))
    again = read_references(path)
    same(again, found)
    assert reference_text(again) == reference_text(found)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("{}", "'reference' has no 'kind'"),
        (json.dumps({"kind": "table"}), "'reference.kind' is 'table'"),
    ],
)
def test_another_file_is_no_reference(tmp_path, text, sentence):
    path = tmp_path / "usual.json"
    path.write_text(text)
    with pytest.raises(InvalidDocument) as caught:
        read_references(path)
    assert str(path) in str(caught.value)
    assert sentence in str(caught.value)
    assert "Give a file that `calibration-monitor reference --output` wrote" in str(caught.value)


def test_a_file_of_the_release_before_is_read_and_written_as_it_was():
    path = Path(__file__).with_name("reference_1.json")
    text = reference_text(read_references(path))
    assert json.loads(text) == json.loads(path.read_text())


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InvalidDocument, match="cannot read the reference"):
        read_references(tmp_path / "gone.json")
