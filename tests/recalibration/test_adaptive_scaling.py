"""Adaptive scaling: against a slow loop over the formula, its laws of time, and what it refuses."""

from __future__ import annotations

import json
from math import exp

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.frames.space import FloatArray
from monitor.recalibration.adaptive_scaling import AdaptiveScaling, followed
from monitor.recalibration.recalibrator import UnfitData
from monitor.recalibration.scaling import WIDE
from monitor.store.codec import InvalidDocument
from tests.recalibration.rows import as_read

quick = settings(max_examples=40)
seeds = st.integers(0, 2**32 - 1)


def beginning(time_constant_s: float = 60.0, k: int = 2, at_s: float = 0.0) -> AdaptiveScaling:
    """Nothing seen yet, and three tracks' worth of nothing being wrong."""
    ones = (1.0,) * k
    return AdaptiveScaling(ones, time_constant_s, 0.0, at_s, 0.0, (0.0,) * k, ones, 3.0)


def tracks(
    seed: int, n: int, variance: float = 1.0, k: int = 2, rate: float = 1.0
) -> tuple[FloatArray, FloatArray]:
    """Mean z² of tracks worth four independent detections each, and when they ended."""
    random = np.random.default_rng(seed)
    return variance * random.chisquare(4, (n, k)) / 4, np.cumsum(random.exponential(1 / rate, n))


def assert_alike(one: AdaptiveScaling, other: AdaptiveScaling) -> None:
    for name, value in one.parameters().items():
        assert value == pytest.approx(other.parameters()[name], rel=1e-9, abs=1e-12), name


# ---- the formula


@quick
@given(seeds, st.integers(1, 40), st.floats(2.0, 300.0))
def test_every_track_is_a_vote_that_fades_with_its_age(seed, n, time_constant_s):
    nees, ended_s = tracks(seed, n)
    found = followed(beginning(time_constant_s), nees, ended_s, 1.0)
    last = max(ended_s.tolist())
    for dimension in range(2):
        votes, total = 3.0, 3.0
        for x, at in zip(nees[:, dimension].tolist(), ended_s.tolist(), strict=True):
            votes += exp(-(last - at) / time_constant_s)
            total += exp(-(last - at) / time_constant_s) * x
        assert found.scale[dimension] == pytest.approx((total / votes) ** 0.5)
        assert found.nees[dimension] == pytest.approx(total - 3.0, abs=1e-9)
        assert found.tracks == pytest.approx(votes - 3.0)
    assert (found.ended_s, found.delay_s) == (last, 1.0)


@quick
@given(seeds, st.integers(0, 40), st.integers(0, 40))
def test_what_is_followed_in_two_parts_is_followed_at_once(seed, first, second):
    nees, ended_s = tracks(seed, first + second)
    in_parts = followed(beginning(), nees[:first], ended_s[:first], 1.0)
    in_parts = followed(in_parts, nees[first:], ended_s[first:], 1.0)
    assert_alike(in_parts, followed(beginning(), nees, ended_s, 1.0))


def test_no_new_tracks_change_nothing():
    seen = followed(beginning(), *tracks(1, 20), 1.0)
    assert followed(seen, np.zeros((0, 2)), np.zeros(0), 50.0) is seen


@quick
@given(seeds)
def test_the_order_in_which_tracks_are_given_does_not_matter(seed):
    nees, ended_s = tracks(seed, 30)
    turn = np.random.default_rng(seed).permutation(30)
    found = followed(beginning(), nees[turn], ended_s[turn], 0.0)
    assert found == followed(beginning(), nees, ended_s, 0.0)


@quick
@given(seeds, st.floats(0.0, 100.0))
def test_a_late_track_counts_for_its_age_and_time_does_not_run_backwards(seed, late_s):
    nees, ended_s = tracks(seed, 30)
    seen = followed(beginning(), nees, ended_s, 0.0)
    late = followed(seen, nees[:1], np.array([seen.ended_s - late_s]), 1.0)
    assert late.ended_s == seen.ended_s
    assert late.tracks == pytest.approx(seen.tracks + exp(-late_s / 60))
    assert late.nees == pytest.approx(np.array(seen.nees) + exp(-late_s / 60) * nees[0])


def test_a_clock_that_is_set_back_does_not_stop_it():
    seen = followed(beginning(), *tracks(1, 50), 0.0)
    ahead = followed(seen, np.ones((1, 2)), np.array([1e9]), 0.0)
    nees, ended_s = tracks(2, 400, variance=9.0)
    assert followed(ahead, nees, ended_s, 0.0).scale == pytest.approx((3.0, 3.0), rel=0.15)


# ---- what it finds


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("variance", [0.04, 0.25, 1.0, 5.0, 100.0, 1e4])
def test_the_scale_of_a_detector_that_stays_as_it_is_becomes_the_true_one(seed, variance):
    nees, ended_s = tracks(seed, 4000, variance)
    found = followed(beginning(400.0), nees, ended_s, 0.0)
    # Of some 400 tracks three are the prior's.
    expected = np.sqrt((3 + 400 * variance) / 403)
    assert np.array(found.scale) == pytest.approx(np.full(2, expected), rel=0.1)


@pytest.mark.parametrize("time_constant_s", [20.0, 60.0])
@pytest.mark.parametrize(("before", "after"), [(1.0, 9.0), (9.0, 1.0)])
def test_after_a_step_it_forgets_within_its_time_constant(time_constant_s, before, after):
    ended_s = np.arange(2000) / 2
    seen = followed(beginning(time_constant_s), np.full((2000, 2), before), ended_s, 0.0)
    rate = 1 / (1 - exp(-0.5 / time_constant_s))  # tracks remembered in the long run
    for elapsed_s in (0.5, 10.0, 40.0, 200.0):
        new = int(2 * elapsed_s)
        now = followed(seen, np.full((new, 2), after), 999.5 + (1 + np.arange(new)) / 2, 0.0)
        old = exp(-elapsed_s / time_constant_s)
        mixed = old * before + (1 - old) * after
        expected = np.sqrt((3 + rate * mixed) / (3 + rate))
        assert now.scale == pytest.approx((expected, expected), rel=1e-6)


def test_after_a_long_silence_it_is_nearly_what_it_began_with():
    seen = followed(beginning(), *tracks(3, 200, variance=25.0), 0.0)
    assert min(seen.scale) > 4
    silent = followed(seen, np.ones((1, 2)), np.array([seen.ended_s + 3600.0]), 0.0)
    assert silent.scale == pytest.approx((1.0, 1.0))


@pytest.mark.parametrize("error", [1e3, 1e12, 1e200, float("inf")])
def test_a_gross_outlier_is_one_track(error):
    seen = followed(beginning(), *tracks(4, 300), 0.0)
    outlier = np.array([[1.0, error]])
    struck = followed(seen, outlier, np.array([seen.ended_s]), 0.0)
    assert struck.scale[0] == pytest.approx(seen.scale[0], rel=0.02)
    most = np.square(seen.scale[1]) * (1 + 64 / (seen.tracks + 1))
    assert np.square(struck.scale[1]) <= most * 1.2


@quick
@given(
    st.lists(st.floats(0, 1e300), min_size=1, max_size=20),
    st.floats(1e-3, 1e6),
    st.floats(-1e300, 1e300),
)
def test_whatever_is_followed_factors_stay_bounded_and_the_document_readable(errors, tau, at_s):
    nees = np.array(errors)[:, None]
    found = followed(beginning(tau, k=1), nees, np.linspace(0.0, at_s, len(errors)), 0.0)
    assert WIDE.lowest <= found.scale[0] <= WIDE.highest
    again = as_read(AdaptiveScaling, json.loads(json.dumps(found.parameters())))
    assert again == found


# ---- what it refuses


@pytest.mark.parametrize("delay_s", [60.0, 61.0, 1000.0])
def test_labels_that_come_after_the_time_constant_are_too_late(delay_s):
    said = rf"labels come {delay_s:g} s late, and the time constant is 60 s: .*Choose a time const"
    with pytest.raises(UnfitData, match=said):
        followed(beginning(), *tracks(1, 3), delay_s)
    assert followed(beginning(), *tracks(1, 3), 59.9).delay_s == 59.9


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"delay_s": 60.0},
            "labels come 60 s late, and the time constant is 60 s: what they say wo",
        ),
        ({"time_constant_s": 0.0}, "'parameters.time_constant_s' is 0.0"),
        ({"nees": [1.0]}, "'nees' has 1 entries: with 'scale' it must have 2"),
        ({"nees": [1.0, -1.0]}, r"'parameters.nees\[1\]' is -1.0"),
        ({"prior_scale": [1.0, 0.0]}, r"'parameters.prior_scale\[1\]' is 0.0"),
        ({"prior_tracks": 0.0}, "'parameters.prior_tracks' is 0.0"),
        ({"tracks": float("inf")}, "'parameters.tracks' is inf"),
        ({"ended_s": None}, "'parameters.ended_s' is None"),
    ],
)
def test_a_document_that_makes_no_sense_is_refused(change, said):
    parameters = followed(beginning(), *tracks(1, 9), 3.0).parameters()
    with pytest.raises(InvalidDocument, match=said):
        as_read(AdaptiveScaling, {**parameters, **change})
