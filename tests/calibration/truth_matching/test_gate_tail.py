"""What a gate hides of Gaussian errors, as the page on ground truth says it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from monitor.frames.space import plain_space
from monitor.matching.distances import CentreDistance, Placed
from monitor.matching.gate import Gate, matches

PAGE = Path(__file__).parents[3] / "docs" / "ground_truth.md"
NUMBER = r"([\d.]+)"
ROWS = [
    tuple(float(value) for value in row)
    for row in re.findall(
        rf"^\| {NUMBER} σ \| {NUMBER} % \| {NUMBER} % \| {NUMBER} % \|$",
        PAGE.read_text("utf-8"),
        re.MULTILINE,
    )
]


def test_the_page_has_its_table():
    assert [row[0] for row in ROWS] == [2, 2.5, 3, 4]


@pytest.mark.parametrize(("width", "lost", "variance", "near"), ROWS)
def test_matching_hides_what_the_page_says(width, lost, variance, near):
    random = np.random.default_rng(1)
    gate = Gate(CentreDistance(plain_space(("x", "y")), (0, 1)), np.array([width]), 0.8)
    apart = np.stack([1000.0 * np.arange(100), np.zeros(100)], axis=1)
    of = np.zeros(100, np.int64)
    distances = []
    for _ in range(200):
        objects = Placed(apart + random.normal(size=(100, 2)))
        distances.append(matches(objects, of, Placed(apart), of, gate).distance)
    found = np.concatenate(distances)
    # 20,000 objects: within five deviations of a share, and of a variance.
    assert 1 - found.size / 20_000 == pytest.approx(lost / 100, abs=0.012)
    assert (found**2).mean() / 2 == pytest.approx(variance / 100, abs=0.035)
    assert gate.nears(found, of[:1].repeat(found.size)).mean() == pytest.approx(
        near / 100, abs=0.013
    )


@pytest.mark.parametrize(("width", "lost", "variance", "near"), ROWS)
def test_the_table_is_that_of_the_rayleigh_distribution(width, lost, variance, near):
    def beyond(r):
        return np.exp(-(r**2) / 2)

    within = 1 - beyond(width)
    assert 100 * beyond(width) == pytest.approx(lost, abs=0.06)
    left = 1 - width**2 / 2 * beyond(width) / within
    assert 100 * left == pytest.approx(variance, abs=0.5)
    assert 100 * (beyond(0.8 * width) - beyond(width)) / within == pytest.approx(near, abs=0.06)
