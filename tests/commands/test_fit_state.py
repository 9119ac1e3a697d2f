"""fit on a state of statistics: as on the rows that were counted, without them."""

from __future__ import annotations

import numpy as np
import pytest

from monitor.commands.merge import write_state
from monitor.frames.space import plain_space
from monitor.statistics.bins import Binning
from monitor.statistics.clusters import cluster_id
from monitor.statistics.holdings import Holdings
from monitor.statistics.state import SliceState, Slicing, Stages, StatisticsState, observe
from monitor.statistics.windows import Windows
from monitor.store.statistics_state import StoredState
from tests.commands.documents import document
from tests.commands.recordings import csv_file, error, recorded

XYZ = ("--dimensions", "x,y,z")
SPACE = plain_space(("x", "y", "z"), "m")
WINDOWS = Windows((60_000_000_000,), 6)
EDGES = (8.0, 16.0)
LABELS = ("<8", "8-16", ">=16")


def state_of(rows, vehicle: str) -> StatisticsState:
    """As a sidecar with slices by class and range that saw these rows has it."""
    rows = rows.of(rows.labelled)
    bucket = np.searchsorted(EDGES, np.linalg.norm(rows.mean[:, :3], axis=1), side="right")
    slices = []
    for name in np.unique(rows.class_name):
        for i, label in enumerate(LABELS):
            part = rows.of((rows.class_name == name) & (bucket == i))
            sums = observe(
                SPACE,
                Binning(),
                error(part)[:, :3],
                np.ascontiguousarray(part.covariance[:, :3, :3]),
                cluster_id((part.track,)),
            )
            panes = {(1, 0): Stages(sums, sums)}
            slices.append(SliceState(f"{name}/{label}", SPACE, False, panes))
    slicing = Slicing(("class", "range"), EDGES, ("x", "y", "z"))
    holds = Holdings.of(vehicle, "a", 1)
    return StatisticsState(Binning(), WINDOWS, None, tuple(slices), slicing=slicing, holds=holds)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """A state of three vehicles, and all their rows in one file."""
    folder = tmp_path_factory.mktemp("fleet")
    rows = recorded(3)
    vehicle = np.unique(rows.sequence, return_inverse=True)[1]
    states = [state_of(rows.of(vehicle == i), f"car {i}") for i in range(3)]
    state = states[2].merge(states[0]).merge(states[1])
    path = folder / "fleet.state"
    write_state(path, StoredState(state))
    return path, csv_file(folder / "all.csv.gz", rows)


@pytest.mark.parametrize("by", [(), ("--by", "class"), ("--by", "class,range")])
@pytest.mark.parametrize(
    "method",
    [
        ("variance-scaling",),
        ("variance-scaling", "--objective", "winsorised-mean"),
        ("variance-scaling", "--objective", "quantile"),
        ("covariance-scaling", "--full-input", "whiten"),
    ],
)
def test_a_scaling_of_the_sums_is_that_of_all_rows(fitted, fleet, method, by):
    state, drive = fleet
    alone = ("--fewest-tracks", "0.5") if by else ()
    edges = ("--range-edges", "8,16") if "class,range" in by else ()
    words = ("--method", *method, *by, *alone)
    of_sums = document(fitted(state, *words))
    of_rows = document(fitted(drive, *XYZ, *words, *edges))
    assert set(of_sums["slices"]) == set(of_rows["slices"]) and bool(by) == bool(of_sums["slices"])
    assert of_sums.get("ranges") == of_rows.get("ranges")
    for name, one in {"": of_rows["fallback"], **of_rows["slices"]}.items():
        same = of_sums["slices"].get(name, of_sums["fallback"])
        assert same["basis"]["rows"] == one["basis"]["rows"]
        for key, value in one["parameters"].items():
            if not isinstance(value, str):
                assert same["parameters"][key] == pytest.approx(
                    np.array(value), rel=1e-9, abs=1e-12
                )


def test_thin_slices_lean_on_wider_ones_as_those_of_rows_do(fitted, fleet):
    """By the pairs of rows in one track, where rows name the track itself."""
    words = ("--method", "variance-scaling", "--by", "class,range")
    of_sums = document(fitted(fleet[0], *words))["slices"]
    of_rows = document(fitted(fleet[1], *XYZ, "--range-edges", "8,16", *words))["slices"]
    drawn = 0
    for name, one in of_rows.items():
        drawn += "borrows_from" in one["basis"]
        assert of_sums[name]["basis"].get("borrows_from") == one["basis"].get("borrows_from")
        assert of_sums[name]["parameters"]["scale"] == pytest.approx(
            one["parameters"]["scale"], rel=0.05
        )
    assert drawn > 3


def test_it_says_what_it_was_fitted_on_and_refuses_what_needs_rows(run, refused, fleet, tmp_path):
    state, _ = fleet
    model = tmp_path / "model.json"
    said = run("fit", state, "--by", "class", "-o", model)
    n = int(recorded(3).labelled.sum())
    assert f"{state.name}: 3 vehicles, 3 uploads, {n} labelled detections" in said
    fitted_on = document(model)["fitted_on"]
    assert (fitted_on["vehicles"], fitted_on["uploads"], fitted_on["detections"]) == (3, 3, n)
    assert fitted_on["classes"] == ["car", "cyclist", "pedestrian"]
    earlier = model.read_bytes()
    for words, told in (
        (("--method", "isotonic-quantiles"), "set [fleet] sample in the sidecars"),
        (("--method", "adaptive-scaling"), "fit the raw logs"),
        (("--method", "temperature"), "has sums alone"),
        (("--by", "stream"), "slices by class, range with range edges 8, 16"),
        (("--rows", "0:9"), "--rows: "),
        (("--proven-only",), "--proven-only: "),
        (("--dimensions", "x,y"), "the state has x,y,z"),
    ):
        assert told in refused("fit", state, *words, "-o", model)
    assert model.read_bytes() == earlier
