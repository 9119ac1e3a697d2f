"""Manners of the command line: completion, signs of life, JSON, and what is said of files."""

from __future__ import annotations

import io
import json
import shlex
import subprocess
import sys
import time
import warnings

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

import monitor
from monitor.cli import VERBS, _tree, build_parser, main
from monitor.commands import output
from monitor.commands.sample import table
from monitor.options.recorded import Kind
from tests.commands.spoken import done, found, refused, spoken

TREE = dict(_tree(build_parser(*VERBS), ""))


@pytest.fixture
def samples(tmp_path, monkeypatch):
    """A folder with a sample of each kind."""
    monkeypatch.chdir(tmp_path)
    for kind in Kind:
        done(
            "sample", "--kind", kind, "--output", f"{kind}.{'npz' if kind == 'classes' else 'csv'}"
        )
    return tmp_path


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("ev", "evaluate"),
        ("evaluate --fa", "--fault --fail-if"),
        ("evaluate drive.csv --engine ", "exact streaming"),
        ("evaluate --labels ", ""),  # and so files
        ("alarms a", "acknowledge"),
        ("alarms list --js", "--json"),
        ("completion z", "zsh"),
        ("fit evaluate --proven", "--proven-only"),
    ],
)
def test_bash_completes(typed, offered):
    words = ["calibration-monitor", *typed.split(" ")]
    script = done("completion", "bash") + (
        f"COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}\n"
        '_calibration_monitor; echo "${COMPREPLY[*]}"'
    )
    said = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert (said.stdout.strip(), said.stderr) == (offered, "")


def test_scripts_of_other_shells_know_every_option():
    fish, zsh = done("completion", "fish"), done("completion", "zsh")
    assert zsh.splitlines()[1:] == done("completion", "bash").splitlines()
    for parser in TREE.values():
        for action in parser._actions:
            for option in action.option_strings:
                assert option in zsh
                assert f" {'-l' if option.startswith('--') else '-s'} {option.lstrip('-')}" in fish


def test_each_verb_that_prints_a_result_has_json():
    silent = {"", " serve", " sample", " completion", " alarms", " recalibrators"}
    for place in TREE.keys() - silent:
        assert "--json" in TREE[place]._option_string_actions, place


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("patience_s", "shown"), [(0.01, True), (60, False)])
def test_a_long_work_shows_on_a_terminal_how_far_it_is(monkeypatch, patience_s, shown):
    said = Terminal()
    monkeypatch.setattr(sys, "stderr", said)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(output, "_PATIENCE_S", patience_s)
    with output.working("measuring", 1000, "rows") as advance:
        for _ in range(5):
            time.sleep(0.1)
            advance(100)
    assert all((word in said.getvalue()) is shown for word in ("measuring", " %", "rows/s", "left"))


def test_a_pipe_sees_no_progress(samples, monkeypatch):
    monkeypatch.setattr(output, "_PATIENCE_S", 0.0)
    for words in (("evaluate",), ("evaluate", "--engine", "streaming"), ("fit", "--output", "m")):
        assert spoken(words[0], "boxes-3d.csv", *words[1:])[2] == ""


def test_what_reference_and_apply_print_is_json_too(samples):
    done("fit", "boxes-3d.csv", "--output", "m.json")
    applied = json.loads(done("apply", "m.json", "boxes-3d.csv", "--output", "o.csv", "--json"))
    assert (applied["rows"], applied["output"], applied["remarks"]) == (2100, "o.csv", [])
    code, out, _ = spoken("reference", "boxes-3d.csv", "--class", "Car", "--output", "r", "--json")
    usual = json.loads(out)["references"]["Car"]["raw"]
    assert code == 0
    assert (usual["detections"], usual["tracks"] > 10) == (1200, True)


@pytest.mark.parametrize("kind", Kind)
def test_a_sample_has_no_unused_column(kind, samples):
    words = {
        Kind.CLASSES: ("classes.npz",),
        Kind.LABELS: ("detections.csv", "--labels", "labels.csv"),
        Kind.DETECTIONS: ("detections.csv", "--labels", "labels.csv", "--dimensions", "x"),
    }.get(kind, (f"{kind}.csv",))
    errors = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", errors)
        assert main(["evaluate", *words, "--json"]) == 0
    assert "not used" not in errors.getvalue()


def test_parquet_is_read_as_the_csv_and_becomes_one(samples):
    columns = table(Kind.BOXES_3D)
    texts = {"seq", "class"}
    arrays = {
        name: cells if name in texts else [*map(float, cells)] for name, cells in columns.items()
    }
    parquet.write_table(pyarrow.table(arrays), "drive.parquet")
    assert found("evaluate", "drive.parquet") == found("evaluate", "boxes-3d.csv")
    done("fit", "drive.parquet", "--output", "m.json")
    for source in ("drive.parquet", "boxes-3d.csv"):
        done("apply", "m.json", source, "--output", f"{source}.csv")
    made = [found("evaluate", f"{name}.csv")["joint"] for name in ("drive.parquet", "boxes-3d.csv")]
    assert made[0] == made[1]


def test_a_missing_package_is_said_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    line = refused("evaluate", tmp_path / "not there.csv", "--labels", "labels.parquet")
    assert "labels.parquet: pyarrow is not installed" in line
    assert "pip install 'calibration-monitor[parquet]'" in line


def test_what_cannot_be_read_or_written_is_named_with_a_remedy(samples):
    for words, said in (
        (("evaluate", "none.parquet"), "none.parquet: cannot be read (No such file or directory)"),
        (("evaluate", "-", "--labels", "-"), "--labels -: standard input has the detections"),
    ):
        assert said in refused(*words)


def test_the_fit_that_is_offered_keeps_that_there_is_no_angle(samples):
    words = ("evaluate", "boxes-3d.csv", "--class", "Pedestrian", "--angles", "")
    assert "boxes-3d.csv --angles '' --class Pedestrian" in done(*words)


def test_angles_in_degrees_are_said(tmp_path):
    path = tmp_path / "drive.csv"
    path.write_text("yaw,var_yaw,gt_yaw\n90,1,91\n-120,1,-119\n1,1,1\n")
    _, _, err = spoken("evaluate", path)
    assert "beyond ±2π, so hardly radians: yaw (4 values). Are they degrees?" in err


def test_labels_are_matched_by_stamp_where_there_is_neither_frame_nor_id(tmp_path):
    ours, theirs = tmp_path / "ours.csv", tmp_path / "theirs.csv"
    start = 1_700_000_000_000_000_000
    stamps = [start + i * 100_000_000 for i in range(20)]
    ours.write_text(
        "stamp_ns,x,y,var_x,var_y\n" + "".join(f"{s},{i},0.1,1,1\n" for i, s in enumerate(stamps))
    )
    theirs.write_text("stamp_ns,x,y\n" + "".join(f"{s},{i},0\n" for i, s in enumerate(stamps)))
    got = json.loads(spoken("evaluate", ours, "--labels", theirs, "--json")[1])
    assert (got["rows"], got["dimensions"]["y"]["rmse"]) == (20, pytest.approx(0.1))


def test_messages_on_labels_speak_of_labels(samples):
    words = ("evaluate", "detections.csv", "--labels", "labels.csv")
    line = refused(*words, "--label-map", "t=when")
    assert "labels.csv: --label-map t=when: there is no column 'when'" in line
    _, _, err = spoken(*words, "--dimensions", "x,q")
    assert "labels.csv: there is no dimension 'q' with a variance and a label" in err
    detections = {name: np.ones(2) for name in ("frame", "x", "y", "var_x", "var_y")}
    with pytest.raises(ValueError, match=r"^labels: label_names=\{'t': 'when'\}: there is no col"):
        monitor.evaluate(detections, labels={"x": np.ones(2)}, label_names={"t": "when"})


def test_the_python_api_offers_arguments_that_can_be_pasted():
    columns = {"x": [1.0, 2], "var_x": [1.0, 1], "gt_x": [1.0, 2], "timestamp": [1.0, 2]}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        monitor.evaluate({name: np.array(values) for name, values in columns.items()})
    assert "Perhaps names={'t': 'timestamp'}." in str(caught[0].message)


def test_rows_to_be_ignored_are_not_measured(tmp_path):
    path = tmp_path / "drive.csv"
    path.write_text("x,var_x,gt_x,ignore\n1,1,1,0\n2,1,9,1\n3,1,3,0\n")
    got = found("evaluate", path)
    assert (got["rows"], got["rows_without_truth"], got["dimensions"]["x"]["rmse"]) == (2, 1, 0)
    labels = tmp_path / "labels.csv"
    labels.write_text("frame,x,y,ignore\n0,1,1,0\n1,2,2,1\n")
    path.write_text("frame,x,y,var_x,var_y\n0,1,1,1,1\n1,2,2,1,1\n")
    got = json.loads(spoken("evaluate", path, "--labels", labels, "--json")[1])
    assert (got["rows"], got["labels"]["ignored"]) == (1, 1)


def test_class_measures_have_a_legend(samples):
    said = done("evaluate", "classes.npz")
    for name in ("ECE", "CCQS", "cUCE", "UCQS", "AUSE"):
        assert name in said.split("highest entropy rejected")[1]
    assert max(map(len, said.splitlines())) <= 120


def test_a_fit_to_standard_output_says_the_rest_beside_it(samples):
    code, out, err = spoken("fit", "boxes-3d.csv", "--no-held-out", "--output", "-")
    assert (code, json.loads(out)["dimensions"]) == (0, list("xyzlwh"))
    assert "written to -" in err
