"""The sweep over temperature: each T as its equation says, and where each measure is best."""

from __future__ import annotations

import math
from statistics import fmean

import numpy as np
import pytest

from monitor.recalibration.class_probabilities import from_probabilities
from monitor.recalibration.temperature_sweep import (
    MEASURES,
    SCORES,
    TEMPERATURES,
    agreement,
    best_temperature,
    temperature_sweep,
)
from monitor.statistics.class_evaluation import evaluate_class_rows
from tests.statistics import class_oracle as oracle

COARSE = np.array([0.1, 0.5, 1.0, 2.0, 10.0])
EDGES = np.linspace(0, 1, 21).tolist()


def simulated(seed, n=120, opinions=1, classes=4, sharp=1.0):
    """Probabilities (n, M, C) and true classes."""
    random = np.random.default_rng(seed)
    logits = 2 * random.normal(size=(n, 1, classes)) + 0.5 * random.normal(
        size=(n, opinions, classes)
    )
    true, claimed = (np.exp(z - z.max(axis=2, keepdims=True)) for z in (logits, sharp * logits))
    true, claimed = (p / p.sum(axis=2, keepdims=True) for p in (true, claimed))
    label = (true.mean(axis=1).cumsum(axis=1) > random.random((n, 1))).argmax(axis=1)
    return claimed, label


def swept(claimed, label, temperatures=TEMPERATURES):
    return temperature_sweep(
        from_probabilities(claimed), lambda p: evaluate_class_rows(p, label), temperatures
    )


def tempered(opinions, temperature):
    """softmax(log p / T) of each opinion, then their mean; Laves et al. 2019, eq. 25."""
    scaled = []
    for p in opinions:
        powers = [x ** (1 / temperature) for x in p]
        scaled.append([x / math.fsum(powers) for x in powers])
    return [fmean(column) for column in zip(*scaled, strict=True)]


@pytest.mark.parametrize("opinions", [1, 3])
def test_each_temperature_is_measured_as_the_papers_say(opinions):
    claimed, label = simulated(opinions, opinions=opinions, sharp=1.5)
    found = swept(claimed, label, COARSE)
    for i, temperature in enumerate(COARSE.tolist()):
        made = (tempered(row, temperature) for row in claimed.tolist())
        rows = list(zip(made, label.tolist(), strict=True))
        over_confidence = oracle.gaps(rows, oracle.confidence, oracle.right, EDGES)
        uce = [oracle.classwise_uce(rows, c, EDGES) for c in range(4)]
        expected = {
            "nll": fmean(map(oracle.cross_entropy, rows)),
            "brier": fmean(map(oracle.brier, rows)),
            "ece": oracle.expected(over_confidence),
            "cece": fmean(oracle.classwise_ece(rows, c, EDGES) for c in range(4)),
            "uce_entropy": oracle.expected(oracle.gaps(rows, oracle.entropy, oracle.wrong, EDGES)),
            "cuce": np.nanmean(uce),
            "ccqs": oracle.area_score(rows, oracle.confidence, oracle.right, EDGES),
            "ucqs": oracle.area_score(rows, oracle.entropy, oracle.wrong, EDGES),
        }
        if temperature >= 0.5:  # below, confidences and entropies differ by rounding alone
            expected["ause_entropy"] = oracle.ause(rows, oracle.entropy, oracle.wrong)
            expected["ause"] = oracle.ause(rows, lambda row: -oracle.confidence(row), oracle.wrong)
            expected["ause_cross_entropy"] = oracle.ause(rows, oracle.cross_entropy, oracle.wrong)
        got = {name: found.measures[name][i] for name in expected}
        assert got == pytest.approx(expected, rel=1e-9, abs=1e-9)
        assert found.by_class["uce_by_class"][i] == pytest.approx(uce, rel=1e-9, nan_ok=True)
        assert found.accuracy[i] == fmean(map(oracle.right, rows))
    assert (np.ptp(found.accuracy) == 0) == (opinions == 1)


def test_the_best_temperature_is_the_one_a_loop_finds_and_of_equal_ones_the_nearest_to_1():
    claimed, label = simulated(7, n=2_000, sharp=2.0)
    found = swept(claimed, label)
    for name, best in found.best.items():
        values = found.measures[name].tolist()
        chosen = max(values) if name in SCORES else min(values)
        assert found.measures[name][found.at(best)] == pytest.approx(chosen, rel=1e-9, abs=1e-12)
    assert found.best["nll"] == pytest.approx(2.0, rel=0.13)
    assert set(found.best) == set(MEASURES)
    loss = np.array([3.0, 1.0, 2.0, 1.0 + 1e-15, 4.0])
    assert best_temperature(COARSE, loss) in (0.5, 2.0)
    assert best_temperature(COARSE, np.array([1.0, 1, 2, 2, 1])) == 0.5
    assert math.isnan(best_temperature(COARSE, np.full(5, 0.3)))
    assert math.isnan(best_temperature(COARSE, np.full(5, math.nan)))


def test_no_temperature_changes_the_order_of_two_classes_and_a_sentence_says_who_disagrees():
    claimed, label = simulated(3, n=1_000, classes=2)
    found = swept(claimed, label, np.array([0.5, 1.0, 2.0]))
    assert math.isnan(found.best["ause"])
    assert found.as_json()["best"]["ause"] is None
    said = agreement(found)
    assert said.startswith("The measures disagree: NLL is best at T = 1 (and ")
    assert "but UCE, cUCE and UCQS at ≤ 0.5. fit takes" in said
    assert "AUSE" not in said
    only = temperature_sweep(
        from_probabilities(claimed), lambda p: evaluate_class_rows(p, label), np.array([1.0])
    )
    assert agreement(only).startswith("No temperature changes the NLL")


def test_large_files_are_tempered_in_portions_and_each_row_has_the_same_bits(monkeypatch):
    claimed, label = simulated(5, n=100, opinions=3)
    whole = swept(claimed, label, COARSE)
    told: list[float] = []
    monkeypatch.setattr("monitor.recalibration.temperature_sweep._PORTION", 7)
    parts = temperature_sweep(
        from_probabilities(claimed), lambda p: evaluate_class_rows(p, label), COARSE, told.append
    )
    assert all((parts.measures[name] == whole.measures[name]).all() for name in MEASURES)
    assert told == [100] * 5
