"""reference: what it learns of recorded drives, held against slow formulas."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

from monitor.commands.reference import reference_file
from monitor.drift.charts import Origin, Stage
from monitor.drift.reference import knot_levels
from monitor.store.documents import InvalidDocument, read_references, reference_text
from tests.commands.recordings import csv_file, nees, npz_file
from tests.commands.spoken import done, refused, spoken

CLASSES = ("car", "pedestrian")
CHOSEN = ("--class", ",".join(CLASSES))
# What these small drives have of both classes, and not of cyclists.
ENOUGH = {"reference_tracks": 13, "reference_detections": 280}


def configuration(path: Path, **keys) -> Path:
    """A file with these under [drift]."""
    path.write_text("\n".join(["[drift]", *(f"{key} = {value}" for key, value in keys.items())]))
    return path


def learned(path: Path, *files, **keys):
    enough = configuration(path.with_suffix(".toml"), **ENOUGH, **keys)
    done("reference", *files, "--config", enough, "--output", path)
    return read_references(path)


def same(found, expected) -> None:
    assert found.keys() == expected.keys()
    for name, stages in expected.items():
        for stage, reference in stages.items():
            got = found[name][stage]
            np.testing.assert_allclose(got.quantiles, reference.quantiles, rtol=1e-12)
            assert (got.k, got.detections) == (reference.k, reference.detections)
            assert got.nees_ratio == pytest.approx(reference.nees_ratio)
            np.testing.assert_allclose(got.spacings, reference.spacings)
            np.testing.assert_allclose(got.temperings, reference.temperings)
            assert got.frame_tempering == pytest.approx(reference.frame_tempering)
            for of_levels in ("mean", "between", "within", "spread", "length", "onsets"):
                np.testing.assert_allclose(
                    getattr(got.levels, of_levels), getattr(reference.levels, of_levels)
                )


@pytest.fixture(scope="module")
def usual(drive, tmp_path_factory):
    return learned(tmp_path_factory.mktemp("usual") / "usual.json", drive, *CHOSEN)


def test_it_is_what_the_formulas_say_of_each_class(usual, rows):
    assert tuple(usual) == CLASSES
    for name, stages in usual.items():
        values = nees(rows.of_class(name))
        assert tuple(stages) == tuple(Stage)
        for reference in stages.values():
            assert (reference.origin, reference.k) == (Origin.FILE, 3)
            assert reference.detections == values.size
            assert reference.nees_ratio == pytest.approx(values.mean() / 3)
            # The last second of a drive counts, too.
            there = rows.of_class(name).of(rows.of_class(name).labelled)
            seconds = {*zip(there.sequence, there.track, there.time_s // 1, strict=True)}
            assert reference.levels.blocks == len(seconds)
            assert reference.levels.tracks == len({one[:2] for one in seconds})
            inside = (knot_levels() > 0.05) & (knot_levels() < 0.95)
            of_rows = np.quantile(values, knot_levels()[inside], method="weibull")
            np.testing.assert_allclose(reference.quantiles[inside], of_rows, rtol=0.005)


def test_sequences_are_streams_in_any_order_and_file(usual, rows, tmp_path):
    backwards = [np.flatnonzero(rows.sequence == s) for s in ("south", "west", "north")]
    other = csv_file(tmp_path / "other.csv", rows.of(np.concatenate(backwards)))
    lines = [line.split(",") for line in other.read_text().splitlines()]
    column = lines[0].index("gt_id")
    for line in lines[1:]:
        line[column] = line[column] and f"object {line[column]}"
    other.write_text("\n".join(map(",".join, lines)))
    same(learned(tmp_path / "again.json", other, *CHOSEN), usual)
    parts = [
        csv_file(tmp_path / f"part{i}.csv", rows.of(np.isin(rows.sequence, names)))
        for i, names in enumerate((("north",), ("south", "west")))
    ]
    same(learned(tmp_path / "two.json", *parts, *CHOSEN), usual)


def test_both_stages_are_known_where_a_recalibrator_will_be_active(usual, drive, tmp_path):
    model = tmp_path / "model.json"
    fit = ("--fault", "variance=0.25", "--method", "covariance-scaling", "--output", model)
    done("fit", drive, *CHOSEN, *fit)
    found = learned(tmp_path / "with.json", drive, *CHOSEN, "--recalibrator", model)
    for name in CLASSES:
        raw, made = (found[name][stage] for stage in Stage)
        np.testing.assert_array_equal(raw.quantiles, usual[name][Stage.RAW].quantiles)
        # It was fitted where variances are a quarter: it makes them four times as large or so.
        assert made.nees_ratio == pytest.approx(raw.nees_ratio / 4, rel=0.2)
        scaled = made.quantiles * raw.nees_ratio / made.nees_ratio
        np.testing.assert_allclose(scaled, raw.quantiles, rtol=0.1)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--class", "cyclist"), "nothing is learned: cyclist: 6 tracks and 59 detections"),
        (("--where", "gt_id="), "have no truth. Give longer drives."),
        (("--recalibrator", "gone.json"), "gone.json"),
        (("--config", "WRONG"), "open_track"),
        (("--rows", "900:"), "rows 900:"),
        (("FLAT",), "Give --dimensions that all have"),
    ],
)
def test_what_says_too_little_is_refused(drive, rows, tmp_path, words, sentence):
    path, flat = tmp_path / "usual.json", tmp_path / "flat.npz"
    np.savez(flat, mean=rows.mean[:, :2], var=np.ones((rows.n, 2)), gt=rows.truth[:, :2])
    wrong = configuration(tmp_path / "sidecar.toml", open_track=1)
    files = {"FLAT": flat, "WRONG": wrong}
    given = [files.get(word, word) for word in words]
    assert sentence in refused("reference", drive, *given, "--output", path)
    assert not path.exists()


def test_a_reference_is_read_and_one_of_the_release_before_is_to_be_learned_again(usual, tmp_path):
    path = tmp_path / "usual.json"
    path.write_text(reference_text(usual))
    again = read_references(path)
    same(again, usual)
    assert reference_text(again) == reference_text(usual)
    # replay hands it to the sidecar that it starts.
    with reference_file(Namespace(reference=str(path)), None) as given:
        assert given == path
    path.write_text(path.read_text().replace('"version": 2', '"version": 1'))
    with pytest.raises(
        InvalidDocument, match=r"'reference\.version' is 1.*learn the reference again"
    ):
        read_references(path)


def test_without_tracks_it_has_no_levels_and_what_is_too_little_is_told(rows, tmp_path):
    file, enough = npz_file(tmp_path / "drive.npz", rows), tmp_path / "sidecar.toml"
    words = ("--config", configuration(enough, **ENOUGH), "--output", tmp_path / "usual.json")
    code, out, err = spoken("reference", file, *words)
    assert (code, out.splitlines()[1].split()[-4:]) == (0, ["0", "-", "-", "-"])
    assert "cyclist: 0 tracks and 59 detections are too few for a reference" in err
