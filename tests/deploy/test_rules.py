"""The recording rules on a simulated day and an hour, by promtool: a restart, a gap, an empty
bin, two vehicles, a slice with too few detections. Expected values come from NumPy.
"""

import json
import re

import numpy as np
import pytest

from monitor.statistics.bins import Binning, ExportEdges
from tests.deploy.scraping import FOLDER, RECORDING, promtool
from tests.exported import (
    STAGES,
    added,
    drawn,
    measures,
    nothing,
    slice_bins,
    snapshot,
    text_of,
)

EDGES = ExportEdges((0.25, 4.0), Binning(tau=(0.5, 0.9)))
K, EMPTY = 2, 1
# Of a bin or a level: name, labels, value.
SAMPLE = r"^(calibration_(?:bin_|tau)\w*){(.+)} (\S+)$"
STEP = 5  # minutes between samples
STEPS = 25 * 60 // STEP
WINDOWS = {"10m": 10 // STEP, "1h": 60 // STEP, "24h": 24 * 60 // STEP}
# Vehicle, with the steps at which it starts again, and those at which it is not seen.
VEHICLES = {"van": ({STEPS, 100}, set()), "bus": ({145, 290}, {145})}


def increments(random):
    """Of each step after the first: about 30 cars a bin; the rare slice has one a bin, at times."""
    steps = []
    for _ in range(STEPS):
        step = {}
        for stage in STAGES:
            step["car", stage] = drawn(random, 30, K, EDGES, EMPTY)
            step["rare", stage] = drawn(random, 1, K, EDGES, EMPTY)
        steps.append(step)
    return steps


def series_of(vehicle, steps, restarts, unseen):
    """Samples of every series, of the text that the exporter writes at every step."""
    keys = list(steps[0])
    counts = {key: nothing(K, EDGES) for key in keys}
    columns: dict[str, list[str]] = {}
    for number in range(STEPS + 1):
        if number in restarts:
            counts = {key: nothing(K, EDGES) for key in keys}
        if number:
            counts = {key: added(counts[key], steps[number - 1][key]) for key in keys}
        text = text_of(snapshot(slice_bins(counts, K), EDGES))
        # Read by hand: the parser takes longer than all the rest.
        for name, labels, value in re.findall(SAMPLE, text, re.MULTILINE):
            column = f'{name}{{{labels},instance="{vehicle}",job="test"}}'
            columns.setdefault(column, []).append("_" if number in unseen else value)
    return [{"series": name, "values": " ".join(values)} for name, values in columns.items()]


def agrees(name, value, **labels):
    """A test that a recorded series is there, once, and equals the value to 1e-9."""
    pairs = ",".join(f'{label}="{text}"' for label, text in labels.items())
    return {
        "expr": f"abs({name}{{{pairs}}} / {value!r} - 1) < bool 1e-9",
        "eval_time": "25h",
        "exp_samples": [{"labels": f"{{{pairs}}}", "value": 1}],
    }


def equals(expression, value):
    return {
        "expr": expression,
        "eval_time": "25h",
        "exp_samples": [{"labels": "{}", "value": value}],
    }


def checks(fleet):
    """Of every measure, window, slice and stage; and how many series of each there are."""
    found = []
    for window, steps in WINDOWS.items():
        sums = {
            (vehicle, key): added(*(step[key] for step in all_steps[-steps:]))
            for vehicle, all_steps in fleet.items()
            for key in all_steps[0]
        }
        for (name, stage), _ in fleet["van"][0].items():
            parts = {vehicle: sums[vehicle, (name, stage)] for vehicle in fleet}
            at = {"slice": name, "stage": stage}
            together = added(*parts.values())
            if together.n[0].sum() < 100:
                series = f'fleet:calibration_ence:{window}{{slice="{name}",stage="{stage}"}}'
                found.append(equals(f"count({series}) or vector(0)", 0))
                continue
            for measure, values in measures(together, EDGES.binning.tau).items():
                for dimension, value in values.items():
                    series = f"fleet:calibration_{measure}:{window}"
                    found.append(agrees(series, value, **at, dimension=dimension))
            for vehicle, counts in parts.items():
                for measure, values in measures(counts, EDGES.binning.tau).items():
                    for dimension, value in values.items():
                        where = {**at, "dimension": dimension}
                        where |= {"instance": vehicle, "job": "test"}
                        series = f"instance:calibration_{measure}:{window}"
                        found.append(agrees(series, value, **where))
        slices = 2 if window == "24h" else 1
        found.append(equals(f"count(fleet:calibration_ence:{window})", slices * 2 * K))
        found.append(equals(f"count(instance:calibration_qce:{window})", slices * 2 * 2))
    return found


@pytest.mark.components
def test_rules_agree_with_numpy_over_restarts_gaps_empty_bins_and_vehicles(tmp_path):
    random = np.random.default_rng(5)
    fleet, series = {}, []
    for vehicle, (restarts, unseen) in VEHICLES.items():
        steps = increments(random)
        for number in unseen:
            # What was counted before the end, but never seen, is in no window.
            steps[number - 1] = {key: nothing(K, EDGES) for key in steps[0]}
        fleet[vehicle] = steps
        series += series_of(vehicle, steps, restarts, unseen)
    assert len(checks(fleet)) > 3 * 3 * 2 * 8
    # JSON is YAML.
    file = tmp_path / "rules_test.yml"
    file.write_text(
        json.dumps(
            {
                "rule_files": [str(RECORDING)],
                # What an hour is made of; more often takes longer and changes nothing.
                "evaluation_interval": "10m",
                # As a server orders them; promtool alone takes any order.
                "group_eval_order": [f"calibration_{window}" for window in ("10m", "1h", "24h")],
                "tests": [
                    {
                        "interval": f"{STEP}m",
                        "input_series": series,
                        "promql_expr_test": checks(fleet),
                    }
                ],
            }
        )
    )
    assert "SUCCESS" in promtool("test", "rules", str(file))


@pytest.mark.components
def test_rules_and_the_example_configuration_are_valid():
    assert "51 rules found" in promtool("check", "rules", str(RECORDING))
    assert "SUCCESS: 4 rule files found" in promtool(
        "check", "config", str(FOLDER / "prometheus.yml")
    )


def test_the_windows_have_the_same_rules():
    groups = RECORDING.read_text("utf-8").split("  - name: calibration_")[1:]
    assert [group.split("\n")[0] for group in groups] == list(WINDOWS)
    bodies = []
    for group, window in zip(groups, WINDOWS, strict=True):
        first, *rest = group.split("\n\n")
        bodies.append(re.sub(rf"(:increase|:|\[){window}", r"\1W", "\n\n".join(rest)).strip())
        assert first.count("- record: instance:calibration_bin_") == 5
    assert bodies[0] == bodies[1] == bodies[2]


def test_a_recorded_series_is_young_enough_to_be_found():
    intervals = re.findall(r"^    interval: (\d+)m$", RECORDING.read_text("utf-8"), re.MULTILINE)
    assert len(intervals) == len(WINDOWS)
    # A query looks back five minutes.
    assert all(int(minutes) < 5 for minutes in intervals)
