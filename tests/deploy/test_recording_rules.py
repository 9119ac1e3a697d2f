"""Recording rules and the queries of docs/metrics.md agree with NumPy on a simulated day.

It has a restart, a gap, an empty bin, two vehicles and a slice with too few detections.
"""

import itertools
import json
import re

import numpy as np
import pytest

from monitor.statistics.bins import Binning, ExportEdges
from tests.deploy.scraping import FOLDER, RECORDING, documented_queries, promtool
from tests.exported import STAGES, added, drawn, measures, nothing, slice_bins, snapshot, text_of

EDGES = ExportEdges((0.25, 4.0), Binning(tau=(0.5, 0.9)))
K, EMPTY = 2, 1
# Of a bin or a level: name, labels, value.
SAMPLE = r"^(calibration_(?:bin_|tau)\w*){(.+)} (\S+)$"
STEP = 5  # minutes between samples
STEPS = 25 * 60 // STEP
WINDOWS = {"10m": 10 // STEP, "1h": 60 // STEP, "24h": 24 * 60 // STEP}
# Vehicle, with the steps at which it starts again, and those at which it is not seen.
VEHICLES = {"van": ({STEPS, 100}, set()), "bus": ({145, 290}, {145})}
KEYS = [(name, stage) for stage in STAGES for name in ("car", "rare")]


def increments(random):
    """Draws each step after the first: about 30 cars a bin; the rare slice has one now and then."""
    per_bin = {"car": 30, "rare": 1}
    return [
        {key: drawn(random, per_bin[key[0]], K, EDGES, EMPTY) for key in KEYS} for _ in range(STEPS)
    ]


def series_of(vehicle, steps, restarts, unseen):
    """Reads samples of every series from the text that the exporter writes at every step."""
    counts = {}
    columns: dict[str, list[str]] = {}
    for number in range(STEPS + 1):
        if number == 0 or number in restarts:
            counts = {key: nothing(K, EDGES) for key in KEYS}
        if number:
            counts = {key: added(counts[key], steps[number - 1][key]) for key in KEYS}
        text = text_of(snapshot(slice_bins(counts, K), EDGES))
        # Read by hand: the parser takes longer than all the rest.
        for name, labels, value in re.findall(SAMPLE, text, re.MULTILINE):
            column = f'{name}{{{labels},instance="{vehicle}",job="test"}}'
            columns.setdefault(column, []).append("_" if number in unseen else value)
    return [{"series": name, "values": " ".join(values)} for name, values in columns.items()]


def evaluates(expression, value, labels="{}"):
    return {
        "expr": expression,
        "eval_time": "25h",
        "exp_samples": [{"labels": labels, "value": value}],
    }


def agrees(expression, value, **labels):
    """Finds an expression's only series to have these labels, and the value to 1e-9."""
    return evaluates(f"abs(({expression}) / {value!r} - 1) < bool 1e-9", 1, selector(labels))


def selector(labels) -> str:
    return "{" + ",".join(f'{label}="{text}"' for label, text in labels.items()) + "}"


def checks(fleet):
    """Lists every measure of every window, slice and stage, and how many series there are."""
    tau = EDGES.binning.tau
    found = []
    for window, steps in WINDOWS.items():
        for name, stage in KEYS:
            parts = {
                vehicle: added(*(step[name, stage] for step in all_steps[-steps:]))
                for vehicle, all_steps in fleet.items()
            }
            at = {"slice": name, "stage": stage}
            together = added(*parts.values())
            if together.n[0].sum() < 100:
                series = f'fleet:calibration_ence:{window}{{slice="{name}",stage="{stage}"}}'
                found.append(evaluates(f"count({series}) or vector(0)", 0))
                continue
            for vehicle, counts in {"": together, **parts}.items():
                group = "instance" if vehicle else "fleet"
                more = {"instance": vehicle, "job": "test"} if vehicle else {}
                for measure, values in measures(counts, tau).items():
                    for dimension, value in values.items():
                        labels = {**at, "dimension": dimension, **more}
                        series = f"{group}:calibration_{measure}:{window}{selector(labels)}"
                        found.append(agrees(series, value, **labels))
        slices = 2 if window == "24h" else 1
        found.append(evaluates(f"count(fleet:calibration_ence:{window})", slices * 2 * K))
        found.append(evaluates(f"count(instance:calibration_qce:{window})", slices * 2 * 2))
    return [*found, *of_the_readme(fleet)]


def of_the_readme(fleet):
    """Lists the same of the documented queries, whose window holds a restart of the van."""
    for measure, query in documented_queries().items():
        for vehicles, stage in itertools.product((("van",), ("bus",), ("van", "bus")), STAGES):
            parts = [step["car", stage] for v in vehicles for step in fleet[v][-WINDOWS["1h"] :]]
            for dimension, value in measures(added(*parts), EDGES.binning.tau)[measure].items():
                labels = {"slice": "car", "stage": stage, "dimension": dimension}
                chosen = f'{{instance=~"{"|".join(vehicles)}",{selector(labels)[1:]}'
                asked = query.replace('{instance=~"van|bus"}', chosen).replace("30m", "1h")
                yield agrees(asked, value, **labels)


@pytest.mark.components
@pytest.mark.timeout(300)
def test_rules_and_queries_agree_with_numpy_over_restarts_gaps_empty_bins_and_vehicles(tmp_path):
    random = np.random.default_rng(5)
    fleet, series = {}, []
    for vehicle, (restarts, unseen) in VEHICLES.items():
        steps = increments(random)
        for number in unseen:
            # What was counted before the end, but never seen, is in no window.
            steps[number - 1] = {key: nothing(K, EDGES) for key in KEYS}
        fleet[vehicle] = steps
        series += series_of(vehicle, steps, restarts, unseen)
    wanted = checks(fleet)
    assert len(wanted) > 3 * 3 * 2 * 8
    test = {"interval": f"{STEP}m", "input_series": series, "promql_expr_test": wanted}
    # JSON is YAML.
    file = tmp_path / "rules_test.yml"
    file.write_text(
        json.dumps(
            {
                "rule_files": [str(RECORDING)],
                # What an hour is made of; more often takes longer and changes nothing.
                "evaluation_interval": "10m",
                # As a server orders them; promtool alone takes any order.
                "group_eval_order": [f"calibration_{window}" for window in WINDOWS],
                "tests": [test],
            }
        )
    )
    assert "SUCCESS" in promtool("test", "rules", str(file), within_s=200)


@pytest.mark.components
def test_rules_and_the_example_configuration_are_valid():
    # A query looks back five minutes.
    intervals = re.findall(r"^    interval: (\d+)m$", RECORDING.read_text("utf-8"), re.MULTILINE)
    assert len(intervals) == len(WINDOWS) and all(int(minutes) < 5 for minutes in intervals)
    assert "51 rules found" in promtool("check", "rules", str(RECORDING))
    assert "SUCCESS: 4 rule files found" in promtool(
        "check", "config", str(FOLDER / "prometheus.yml")
    )
