"""What the detections of frames say, against single bets one after another."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.drift.bets import (
    BETS,
    Aim,
    DetectionCells,
    Direction,
    log_likelihoods,
    row_log_likelihoods,
)
from monitor.drift.reference import shipped
from tests.calibration.drift.family_oracle import detection_ratios

# What is usual is half of what is calibrated; and what is usual counts.
ANCHORS = (2.0, 1.0)
AIMS = (Aim(Direction.OVER, 1.3), Aim(Direction.UNDER, 1.0))


def cells_of(nees, cell, tracked, count, k=3, gamma=0.4, of_frames=0.7) -> DetectionCells:
    each = np.full(count, gamma), np.full(count, of_frames)
    e, anchors = np.array(nees, np.float64), [np.full(count, one) for one in ANCHORS]
    tracks = np.array(tracked, bool)
    return DetectionCells(k, e, e, np.array(cell, np.int64), tracks, count, *each, anchors)


@settings(max_examples=40)
@given(st.floats(0, 200), st.integers(1, 6), st.sampled_from([1.0, 1.2, math.sqrt(2)]))
def test_bets_of_one_detection_are_those_of_the_slow_account(e, k, tolerance):
    for direction in Direction:
        one, aims = np.array([e]), [Aim(direction, tolerance)]
        said = row_log_likelihoods(k, one, one, aims, [np.ones(1)])
        slow = list(detection_ratios(shipped(k), str(direction), tolerance, e).values())
        assert said[0, 0, : len(slow)] == pytest.approx(slow, rel=1e-8, abs=1e-8)
        # Nobody bets on tails of errors that are too small.
        assert not said[0, 0, len(slow) :].any()


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(1, 30))
def test_a_cell_is_what_its_detections_say_tempered(seed, n):
    random = np.random.default_rng(seed)
    e, cell = random.chisquare(3, n) * 2, random.integers(0, 4, n)
    tracked = random.random(n) < 0.5
    found = log_likelihoods(cells_of(e, cell, tracked, 4), AIMS)
    single = row_log_likelihoods(3, e, e, AIMS, [np.full(n, one) for one in ANCHORS])
    for number in range(4):
        ours = single[(cell == number) & tracked]
        alone = single[(cell == number) & ~tracked]
        expected = 0.4 * ours.sum(axis=0)
        if alone.size:
            expected = expected + 0.7 * np.log(np.exp(alone).mean(axis=0))
        np.testing.assert_allclose(found[number], expected, rtol=1e-9, atol=1e-12)


def test_an_empty_cell_says_nothing():
    found = log_likelihoods(cells_of([3.0], [1], [True], 3), AIMS)
    assert not found[[0, 2]].any()
    assert found[1].any()


def test_nothing_at_all_says_nothing():
    assert log_likelihoods(cells_of([], [], [], 2), AIMS).shape == (2, 2, BETS)


def test_untracked_detections_that_are_far_off_overflow_nothing():
    found = log_likelihoods(cells_of([1e6, 3.0], [0, 0], [False] * 2, 1), AIMS)
    assert np.isfinite(found).all()


def test_a_hundred_detections_without_a_track_count_as_one_frame():
    one = log_likelihoods(cells_of([9.0], [0], [False], 1), AIMS)
    many = log_likelihoods(cells_of([9.0] * 100, [0] * 100, [False] * 100, 1), AIMS)
    np.testing.assert_allclose(many, one, rtol=1e-12)
