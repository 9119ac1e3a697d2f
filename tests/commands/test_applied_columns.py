"""apply to columns: the file that comes out reads as the Gaussians of the archive, and all else in
it is as it was."""

from __future__ import annotations

import csv
import gzip

import numpy as np
import pytest

from monitor import apply, load_recalibrator
from monitor.store.recordings import read_recording
from tests.commands.recordings import table_file
from tests.commands.spoken import done, spoken


def cells(path):
    """The columns of a file, as text."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt") as text:
        head, *rows = csv.reader(text)
    return dict(zip(head, zip(*rows, strict=True), strict=True))


def test_columns_read_back_as_the_arrays_and_others_stay(drive, rows, fitted, applied, tmp_path):
    model, output = fitted(drive, "--by", "class"), tmp_path / "out.csv.gz"
    chosen = ("--rows", "100:", "--where", "role=fit")
    done("apply", model, drive, *chosen, "--output", output)
    read, expected = (read_recording(one) for one in (output, applied(model, drive, *chosen)[0]))
    for part in ("mean", "covariance", "truth", "class_index", "frame", "track", "ignore", "score"):
        np.testing.assert_array_equal(getattr(read, part), getattr(expected, part), part)
    kept = np.flatnonzero(rows.role == "fit")[100:]
    before, after = cells(drive), cells(output)
    assert list(after) == [*before, "recalibrator"]
    changed = {one for one in before if after[one] != tuple(np.array(before[one])[kept].tolist())}
    assert changed == {"var_x", "var_y", "var_z", "var_yaw", "cov_xy"}


def test_names_of_the_file_stay(drive, fitted, tmp_path):
    model, output = fitted(drive), tmp_path / "out.csv"
    theirs = {"var_x": "spread", "x": "px", "cov_xy": "both", "class": "label"}
    before = {theirs.get(name, name): column for name, column in cells(drive).items()}
    file = table_file(tmp_path / "theirs.csv", before, before.values())
    names = ",".join(f"{ours}={name}" for ours, name in theirs.items())
    done("apply", model, file, "--map", names, "--output", output)
    assert list(cells(output)) == [*before, "recalibrator"]
    done("apply", model, drive, "--output", tmp_path / "plain.csv")
    assert [*cells(output).values()] == [*cells(tmp_path / "plain.csv").values()]


def test_deviations_stay_deviations_and_refused_rows_as_they_are(tmp_path, fitted):
    lines = [f"{i},{-0.5 if i == 3 else 0.5},{i + (-1) ** i}\n" for i in range(90)]
    file, output = tmp_path / "file.csv", tmp_path / "out.csv"
    file.write_text("x,std_x,gt_x\n" + "".join(lines))
    done("apply", fitted(file), file, "--output", output)
    after = [float(cell) for cell in cells(output)["std_x"]]
    assert after == pytest.approx([1.0] * 3 + [-0.5] + [1.0] * 86)


def test_a_format_that_was_named_is_read_by_its_name(drive, fitted, tmp_path):
    file, output = tmp_path / "results.data", tmp_path / "out.csv"
    file.write_text("0 1 car 0 0 0 0 0 9 9 1 1 1 5 2 3 0 0.5 4\n")
    words = ("--format", "kitti", "--map", "var_x=extra_1", "--output", output)
    done("apply", fitted(drive, "--dimensions", "x"), file, *words)
    assert float(cells(output)["extra_1"][0]) != 4


def test_a_second_time_is_refused_unless_it_is_meant(drive, fitted, refused, tmp_path):
    model, once, twice = fitted(drive), tmp_path / "once.csv", tmp_path / "twice.csv"
    done("apply", model, drive, "--output", once)
    line = refused("apply", model, once, "--output", twice)
    assert "recalibrated before" in line
    assert "or --again if twice is meant" in line
    assert not twice.exists()
    with pytest.raises(ValueError, match="or again=True if twice is meant"):
        apply(load_recalibrator(model), once)
    code, _, said = spoken("apply", model, once, "--again", "--output", twice)
    assert (code, said.count("corrected twice")) == (0, 1)
    before, after, last = (float(cells(one)["var_x"][0]) for one in (drive, once, twice))
    assert last / after == pytest.approx(after / before)
    with pytest.warns(UserWarning, match="corrected twice"):
        made = apply(load_recalibrator(model), once, again=True)
    assert made.covariance[0, 0, 0] == pytest.approx(last)
    with pytest.raises(ValueError, match="recalibrated before"):
        apply(load_recalibrator(model), {**made.columns()})
    _, _, said = spoken("fit", once, "--output", tmp_path / "second.json")
    assert "recalibrated before" in said
