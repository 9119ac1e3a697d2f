"""What seconds of tracks say, against the model that it comes from."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from monitor.calibration.drift.track_evidence import FACTORS, BlockLevels, log_likelihoods

TAU, OMEGA, USUAL = 0.5, 0.6, 0.7


def blocks(level, mean, before, since_change=0, count=10, length=10.0) -> BlockLevels:
    level, mean, before, since, counts = (
        np.array(one) for one in np.broadcast_arrays(level, mean, before, since_change, count)
    )
    fixed = [np.full(level.size, one) for one in (USUAL, TAU**2, OMEGA**2, length)]
    return BlockLevels(level, counts, mean, before, since, *fixed)


@settings(deadline=None, max_examples=50)
@given(
    level=st.floats(-2, 2),
    mean=st.floats(-2, 2),
    before=st.integers(0, 20),
    share=st.floats(0, 1),
    sign=st.sampled_from([1, -1]),
    tolerance=st.floats(1.0, 2.0),
)
def test_a_bet_is_a_ratio_of_normal_densities(level, mean, before, share, sign, tolerance):
    # By the joint law of all seconds of a track, given the earlier ones.
    since = int(share * before)
    size = before + 1
    spread = OMEGA**2 * np.eye(size) + TAU**2
    cross, known = spread[-1, :-1], spread[:-1, :-1]
    solved = np.linalg.solve(known, cross) if before else np.zeros(0)
    v = spread[-1, -1] - cross @ solved
    expected = USUAL + solved.sum() * (mean - USUAL)
    changed = np.r_[np.zeros(before - since), np.ones(since)]
    # Off by the band all along, and half of what a change by the band would be off by beyond that.
    all_along, by_change = 1 - solved.sum(), 1 - solved @ changed
    band = 2 * math.log(tolerance) * (all_along + by_change) / 2
    r = sign * (level - expected) - band
    found = log_likelihoods(blocks([level], mean, before, since), sign, tolerance)
    for factor, said in zip(FACTORS, found[0], strict=True):
        d = math.log(factor) * (1 - solved @ changed)
        law = stats.norm(0, math.sqrt(v))
        at = min(max(r, -4), 4)
        ratio = min(law.logpdf(at - d) - law.logpdf(at), 4.0)
        assert said == pytest.approx(ratio, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("before", [0, 3])
def test_the_mean_of_a_bet_at_the_edge_of_the_band_is_one(sign, before):
    random = np.random.default_rng(1)
    runs, tolerance = 200_000, 1.2
    shift = sign * 2 * math.log(tolerance)
    level = random.normal(0, TAU, (runs, 1)) + random.normal(0, OMEGA, (runs, before + 1))
    level += USUAL + shift
    mean = level[:, :-1].mean(axis=1) if before else np.zeros(runs)
    said = log_likelihoods(blocks(level[:, -1], mean, before, before), sign, tolerance)
    ratio = np.exp(said)
    error = ratio.std(axis=0) / math.sqrt(runs)
    # No bet wins more than e⁴, which the largest ones would now and then.
    assert (ratio.mean(axis=0) < 1 + 4 * error).all()
    assert (ratio.mean(axis=0)[:3] > 1 - 4 * error[:3] - 0.02).all()


@pytest.mark.parametrize("sign", [1, -1])
def test_a_level_that_wanders_within_the_band_wins_less_than_one_that_leaves_it(sign):
    lower, upper = USUAL - sign * 0.6, USUAL + sign * 0.6
    within = log_likelihoods(blocks([upper], lower, 8), sign, math.sqrt(2))
    outside = log_likelihoods(blocks([upper + sign * 0.6], USUAL, 8), sign, math.sqrt(2))
    assert (within < outside).all()


def test_a_second_of_few_detections_says_less():
    full, half, twice = (
        log_likelihoods(blocks([2.5], 0, 0, count=count), 1, 1.0)[0] for count in (10, 5, 20)
    )
    assert (np.abs(half) < np.abs(full)).all()
    assert twice.tolist() == full.tolist()


def test_one_second_is_cut_where_it_says_too_much():
    far, further = (log_likelihoods(blocks([y], 0, 0), 1, 1.0) for y in (10.0, 1000.0))
    assert far.tolist() == further.tolist()


def test_a_track_that_lived_through_the_change_says_more_than_one_that_was_never_usual():
    knows, never = (
        log_likelihoods(blocks([USUAL + 1.6], USUAL + 0.4, 4, since), 1, 1.0)[0] for since in (1, 4)
    )
    assert knows[-1] > never[-1]
