"""By how much standard deviations are too small, with an interval."""

from __future__ import annotations

import math

import numpy as np
import pytest

from monitor.drift.evidence import scale_of


def run_of(x: np.ndarray) -> np.ndarray:
    return np.array([x.size, x.sum(), (x * x).sum()])


def test_the_interval_holds_the_truth_nineteen_times_of_twenty():
    random = np.random.default_rng(0)
    held = 0
    for _ in range(1000):
        found = scale_of(run_of(4.0 * random.chisquare(3, 200) / 3), 1.0)
        held += found.lower <= 2.0 <= found.upper
    assert 0.92 <= held / 1000 <= 0.975


def test_detections_that_are_worth_less_widen_the_interval():
    run = run_of(np.random.default_rng(0).chisquare(3, 200) / 3)
    whole, quarter = scale_of(run, 1.0), scale_of(run, 0.25)
    assert quarter.estimate == whole.estimate
    width = whole.upper**2 - whole.estimate**2
    assert quarter.upper**2 - quarter.estimate**2 == pytest.approx(2 * width)


@pytest.mark.parametrize("n", [0, 1])
def test_nothing_is_known_of_fewer_than_two(n):
    found = scale_of(run_of(np.ones(n)), 0.5)
    assert all(math.isnan(one) for one in (found.estimate, found.lower, found.upper))


def test_what_is_all_alike_has_no_interval():
    found = scale_of(run_of(np.full(10, 4.0)), 0.5)
    assert (found.estimate, found.lower, found.upper) == pytest.approx((2, 2, 2))
