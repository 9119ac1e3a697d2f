"""The Python API: on a path, a table or arrays it gives the numbers of the verbs."""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from monitor import apply, evaluate, fit, load_recalibrator
from monitor.commands.python_api import _as_arguments
from monitor.options.rows import add_labels
from monitor.store.recordings import read_columns
from monitor.store.tables import RecordingError
from tests.commands.spoken import done, found


@dataclass
class Frame:
    """As much of a DataFrame as is asked of one: names of columns, and columns by name."""

    cells: dict[str, Any]
    columns = property(lambda self: np.array(list(self.cells)))

    def __getitem__(self, name):
        return self.cells[name]


@pytest.fixture(scope="module")
def columns(drive):
    read = read_columns(drive, {})
    found = {name: read.values(name) for name in read.names}
    for name in found.keys() - {"seq", "role", "class"}:
        found[name] = np.array([float(cell or "nan") for cell in found[name]])
    return found


def as_printed(got):
    return json.loads(json.dumps(got.to_dict()))


@pytest.mark.parametrize("made", [dict, Frame, None])
def test_evaluate_gives_what_the_verb_prints(drive, columns, made):
    data = made(columns) if made else drive
    got = evaluate(data, by="role", dimensions=("x", "y"), classes=("car",), bins=7)
    words = ("--by", "role", "--dimensions", "x,y", "--class", "car", "--bins", "7")
    assert found("evaluate", drive, *words).items() <= as_printed(got).items()
    assert set(got.groups) == {"fit", "deploy"}
    with pytest.raises(RecordingError, match="int has no columns"):
        evaluate(3)


def test_a_fit_is_saved_read_and_applied_as_by_the_verbs(drive, columns, tmp_path):
    model, output, words = tmp_path / "model.json", tmp_path / "made.npz", ("--by", "class")
    made = fit(columns, by=("class",))
    made.save(model)
    read = load_recalibrator(model)
    assert (read.version, read.held_out, len(made.held_out)) == (made.version, (), 4)
    done("fit", drive, *words, "--output", tmp_path / "verb.json")
    done("apply", tmp_path / "verb.json", drive, "--output", output)
    with np.load(output) as archive:
        for recalibrator, data in ((made, columns), (read, Frame(columns)), (read, str(drive))):
            got = apply(recalibrator, data)
            np.testing.assert_array_equal(got.mean, archive["mean"])
            np.testing.assert_allclose(got.covariance, archive["cov"], rtol=1e-12)
    after = as_printed(evaluate(columns, model=made))
    assert found("evaluate", drive, "--model", model).items() <= after.items()


def test_importing_the_package_loads_no_numpy_until_the_api_is_asked_for():
    code = (
        "import sys, monitor\n"
        "assert 'numpy' not in sys.modules\n"
        "from monitor import evaluate\n"
        "assert not {'grpc', 'monitor.service'} & set(sys.modules)\n"
        "assert not hasattr(monitor, 'evalute')"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_table_with_names_of_its_own_is_understood_from_the_message(recwarn):
    rng, n = np.random.default_rng(0), 600
    truth, label = rng.normal(size=n), np.array(["car", "truck"])[np.arange(n) % 2]
    sigma = np.where(label == "truck", 2.0, 1.0)
    table: dict[str, Any] = {
        "px": truth + sigma * rng.normal(size=n),
        "P_px_px": np.ones(n),
        "true_px": truth,
    }
    table |= {"label": label, "run": np.array(["a"] * n), "frame_no": np.arange(n)}
    table |= {"object_id": np.arange(n) % 60, "colour": np.array(["red"] * n)}
    with pytest.raises(RecordingError, match=r"Give names=\{'var_px': 'P_px_px'") as caught:
        evaluate(table)
    (pasted,) = re.findall(r"names=({.*?})", str(caught.value))
    names = ast.literal_eval(pasted)
    assert names["frame"] == "frame_no"
    got = evaluate(table, names=names)
    assert got.notes == ("detections: not used: colour",)
    assert not recwarn.list  # there is nothing to do
    assert [one.group for one in got.verdicts] == ["truck", "car"]
    assert got._repr_html_().index("truck") < got._repr_html_().index("car")
    text = ",".join(f"{ours}={theirs}" for ours, theirs in names.items())
    assert as_printed(evaluate(table, names=text)) == as_printed(got)
    for by, slices in (("label", ["car", "truck"]), ("run", ["a"])):
        made = fit(table, names=text, by=by, held_out=False)
        assert list(made.selection.by_slice) == slices
        assert made.to_dict()["document"]
    with pytest.raises(ValueError, match="by 'colour': use some of class, stream, range"):
        fit(table, names=text, by="colour")
    applied = apply(made, table, names=text)
    np.testing.assert_array_equal(applied.columns()["var_px"], applied.covariance[:, 0, 0])
    with pytest.raises(ValueError, match="'px': expected OURS=THEIRS"):
        evaluate(table, names="px")


PLACES = {"x": np.arange(20.0), "y": np.zeros(20), "t": np.arange(20) / 10, "gt_id": np.ones(20)}
SPREADS = {"std_x": np.ones(20), "std_y": np.ones(20)}
DETECTIONS = {name: cells for name, cells in PLACES.items() if name != "gt_id"} | SPREADS


def test_each_option_on_labels_is_an_argument_and_named_as_one():
    parser = argparse.ArgumentParser()
    add_labels(parser)
    names = {*vars(parser.parse_args([])), "label_names"} - {"label_map", "label_format"}
    for function in (evaluate, fit):
        assert names <= inspect.signature(function).parameters.keys()
    words = "--labels FILE, --label-gap 1 or --fewest-tracks 15; such as --gate 20"
    assert _as_arguments(words) == "labels, label_gap=1 or fewest_tracks=15; such as gate=20"


def test_labels_are_matched_as_the_arguments_say(recwarn):
    some = {name: cells[::2] for name, cells in PLACES.items()}
    for arguments, rows in ((dict[str, Any](), 19), ({"label_gap": 0}, 10), ({"gate": "1"}, 19)):
        assert evaluate(DETECTIONS, labels=some, **arguments).to_dict()["rows"] == rows
    assert not recwarn.list  # there is nothing to do
    off = PLACES | {"x": PLACES["x"] + 0.4}
    with pytest.raises(RecordingError, match=r"no label matches .* or widen gate"):
        evaluate(DETECTIONS, labels=off, distance="mahalanobis", gate=0.3)
    for arguments in (
        {"gate": -1},
        {"gate": {"object": 0}},
        {"distance": "iou"},
        {"label_gap": -1},
    ):
        (name,) = arguments
        with pytest.raises(ValueError, match=f"^{name} .*: (expected|use|give)"):
            evaluate(DETECTIONS, labels=off, **arguments)


def test_refused_rows_and_a_file_of_classes_are_said_and_a_lazy_table_is_read(tmp_path):
    table = PLACES | SPREADS | {"gt_x": PLACES["x"], "gt_y": PLACES["y"]}
    wrong = table | {"std_x": np.append(SPREADS["std_x"][1:], np.nan)}
    with pytest.warns(UserWarning, match="1 are refused: 1 because .*: row 19"):
        assert len(evaluate(wrong).notes) == 1
    np.savez(tmp_path / "classes.npz", prob=np.ones((2, 1)), label=np.zeros(2, int))
    with pytest.raises(RecordingError, match=r"classes.npz: class prob.* by the command line"):
        evaluate(tmp_path / "classes.npz")

    class Lazy:
        columns = tuple(table)

        def collect(self):
            return Frame(table)

    assert evaluate(Lazy()).to_dict() == evaluate(table).to_dict()
