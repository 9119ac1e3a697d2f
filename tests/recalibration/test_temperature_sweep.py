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
    best_temperature,
    temperature_sweep,
)
from monitor.statistics.class_evaluation import evaluate_class_rows
from tests.laws import assert_same

COARSE = np.array([0.1, 0.5, 1.0, 2.0, 10.0])


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
def test_each_temperature_makes_what_the_papers_say_and_keeps_what_is_measured_of_it(opinions):
    claimed, label = simulated(opinions, opinions=opinions, sharp=1.5)
    given, got = [], []

    def measured(probabilities):
        given.append(probabilities.copy())
        got.append(evaluate_class_rows(probabilities, label))
        return got[-1]

    found = temperature_sweep(from_probabilities(claimed), measured, COARSE)
    for i, temperature in enumerate(COARSE.tolist()):
        made = [tempered(row, temperature) for row in claimed.tolist()]
        assert given[i] == pytest.approx(np.array(made), rel=1e-9, abs=1e-12)
        assert found.accuracy[i] == got[i].accuracy
        for name in MEASURES:
            assert found.measures[name][i] == getattr(got[i], name)
        for name in ("ece_by_class", "uce_by_class"):
            assert_same(found.by_class[name][i], getattr(got[i], name))
        for name, place in (("ause_by_class", 0), ("ause_entropy_by_class", 1)):
            assert_same(found.by_class[name][i], got[i].ause_by_class[place])
    assert_same(found.n_by_class, got[2].n_by_class)
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


def test_no_temperature_changes_the_order_of_two_classes():
    claimed, label = simulated(3, n=1_000, classes=2)
    found = swept(claimed, label, np.array([0.5, 1.0, 2.0]))
    assert math.isnan(found.best["ause"])
    assert found.as_json()["best"]["ause"] is None


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
