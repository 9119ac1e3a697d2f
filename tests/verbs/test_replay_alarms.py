"""replay through a real sidecar that watches for drift, on simulated drives with a reference."""

from __future__ import annotations

import json

import numpy as np
import pytest

DIMENSIONS = ("x", "y", "z")
RATE = 10  # Hz
CARS, SECONDS = 15, 20
FAULT_S = 10.0


def drive(path, seed=0):
    """Three sequences of cars that are seen all the time, errors alike within each car."""
    rng = np.random.default_rng(seed)
    names = ["seq", "role", "frame", "t", "class", *DIMENSIONS]
    names += [f"{part}{name}" for part in ("var_", "gt_") for name in DIMENSIONS] + ["gt_id"]
    lines = [",".join(names)]
    for sequence, role in (("north", "fit"), ("south", "fit"), ("west", "deploy")):
        size = np.exp(rng.normal(0, 0.15, CARS))
        error = rng.normal(size=(CARS, 3))
        for frame in range(SECONDS * RATE):
            error = 0.5 * error + np.sqrt(0.75) * rng.normal(size=(CARS, 3))
            truth = 20.0 * np.arange(CARS)[:, None] + [0.0, 1.0, 0.5]
            mean = truth - 0.3 * size[:, None] * error
            for car in range(CARS):
                head = (sequence, role, frame, frame / RATE, "car")
                values = (*mean[car], *[0.09] * 3, *truth[car])
                lines.append(",".join(map(str, (*head, *values, f"{sequence}-{car}"))))
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return drive(tmp_path_factory.mktemp("alarms") / "drive.csv")


PLAYED = ("--where", "role=deploy", "--reference-where", "role=fit")


def test_a_healthy_drive_raises_nothing_by_the_budget_of_the_configuration(run, path, tmp_path):
    config = tmp_path / "sidecar.toml"
    config.write_text("[drift]\nhours_between_false_pages = 2000\n")
    found = json.loads(run("replay", path, *PLAYED, "--config", config, "--json"))
    assert found["matched"] == CARS * SECONDS * RATE
    assert found["alarms"] == []
    entries = {(entry["slice"], entry["severity"]): entry for entry in found["drift"]}
    assert entries.keys() >= {(s, kind) for s in ("car", "total") for kind in ("page", "ticket")}
    assert {entry["state"] for entry in found["drift"]} == {"ok"}
    assert all(entry["log10_peak"] < entry["log10_threshold"] - 1 for entry in found["drift"])
    pages = [entry for entry in found["drift"] if entry["severity"] == "page"]
    assert [entry["log10_threshold"] for entry in pages] == [pytest.approx(np.log10(2000))] * 2


def test_a_fault_is_told_with_when_it_was_and_how_large(run, path):
    words = (*PLAYED, "--fault", f"variance=0.1@t={FAULT_S}s", "--json")
    found = json.loads(run("replay", path, *words))
    first = found["alarms"][0]
    assert (first["severity"], first["direction"]) == ("page", "over")
    assert first["stage"] == "recalibrated"
    assert first["stream"] == "west"
    assert FAULT_S < first["t"] < FAULT_S + 8
    assert first["frame"] == round(first["t"] * RATE)
    assert first["evidence_hours"] >= first["threshold_hours"] == 1000
    estimate, lower, upper = first["scale"]
    assert lower < estimate < upper
    assert estimate > 1
    entries = {(entry["slice"], entry["severity"]): entry for entry in found["drift"]}
    assert entries[first["slice"], "page"]["state"] == "alarm"


def test_what_is_found_is_the_same_to_the_byte_however_a_drive_is_played(run, path):
    """All sequences side by side; nothing in it tells the time of day."""
    fault = ("--reference-where", "role=fit", "--fault", f"variance=0.1@t={FAULT_S}s", "--json")
    found = run("replay", path, *fault)
    assert json.loads(found)["alarms"]
    assert run("replay", path, *fault, "--speed", "20", "--ground-truth-delay", "0.7s") == found


def test_people_are_told_in_a_table(run, path):
    said = run("replay", path, *PLAYED, "--fault", f"variance=10@t={FAULT_S}s")
    assert "ticket: car, recalibrated underconfident" in said
    assert "page: car" not in said
    assert "severity" in said
