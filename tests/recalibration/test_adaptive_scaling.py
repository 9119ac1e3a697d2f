"""Adaptive scaling: against slow loops over the formula and over the tracks of a fit, its laws of
time, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from math import exp

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.recalibration.adaptive_scaling import (
    PRIOR_TRACKS,
    AdaptiveScaling,
    fit_adaptive_scaling,
    followed,
)
from monitor.recalibration.fitting import FITTINGS, FitOptions, prior_strength
from monitor.recalibration.recalibrator import UnfitData
from monitor.recalibration.scaling import WIDE, Prior, VarianceScaling
from tests.recalibration.rows import as_read, rows_from

seeds = st.integers(0, 2**32 - 1)


def beginning(time_constant_s=60.0, k=2):
    """Nothing seen yet, and three tracks' worth of nothing being wrong."""
    ones = (1.0,) * k
    return AdaptiveScaling(ones, time_constant_s, 0.0, 0.0, 0.0, (0.0,) * k, ones, 3.0)


def tracks(seed, n, variance=1.0):
    """Mean z² of tracks worth four independent detections each, and when they ended."""
    random = np.random.default_rng(seed)
    return variance * random.chisquare(4, (n, 2)) / 4, np.cumsum(random.exponential(size=n))


# ---- the formula


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


@given(seeds, st.integers(0, 40), st.integers(0, 40))
def test_what_is_followed_in_two_parts_is_followed_at_once(seed, first, second):
    nees, ended_s = tracks(seed, first + second)
    in_parts = followed(beginning(), nees[:first], ended_s[:first], 1.0)
    in_parts = followed(in_parts, nees[first:], ended_s[first:], 1.0)
    whole = followed(beginning(), nees, ended_s, 1.0).parameters()
    for name, value in in_parts.parameters().items():
        assert value == pytest.approx(whole[name], rel=1e-9, abs=1e-12), name


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


@pytest.mark.parametrize("error", [1e3, 1e12, 1e200, float("inf")])
def test_a_gross_outlier_is_one_track(error):
    seen = followed(beginning(), *tracks(4, 300), 0.0)
    outlier = np.array([[1.0, error]])
    struck = followed(seen, outlier, np.array([seen.ended_s]), 0.0)
    assert struck.scale[0] == pytest.approx(seen.scale[0], rel=0.02)
    most = np.square(seen.scale[1]) * (1 + 64 / (seen.tracks + 1))
    assert np.square(struck.scale[1]) <= most * 1.2


@given(
    st.lists(st.floats(0, 1e300), min_size=1, max_size=20),
    st.floats(1e-3, 1e6),
    st.floats(-1e300, 1e300),
)
def test_whatever_is_followed_factors_stay_bounded_and_the_document_readable(errors, tau, at_s):
    nees = np.array(errors)[:, None]
    found = followed(beginning(tau, k=1), nees, np.linspace(0.0, at_s, len(errors)), 0.0)
    assert WIDE.lowest <= found.scale[0] <= WIDE.highest
    assert as_read(AdaptiveScaling, json.loads(json.dumps(found.parameters()))) == found


# ---- fits


def rows(seed, objects=200, delay_s=0.0):
    """Objects seen ten times in a second each, one after the other; σ too small by a factor."""
    random = np.random.default_rng(seed)
    n, track = 10 * objects, np.repeat(np.arange(objects), 10)
    variance = np.exp(random.normal(size=(n, 2)))
    shared = random.normal(size=(objects, 2))[track]
    error = 2.0 * np.sqrt(variance) * (0.8 * shared + 0.6 * random.normal(size=(n, 2)))
    made = rows_from(random.normal(size=(n, 2)), variance, error, track=track)
    return replace(made, delay_s=np.full(n, delay_s))


@pytest.mark.parametrize("seed", range(3))
def test_a_fit_is_what_the_loop_over_its_tracks_makes(seed):
    sample, time_constant_s = rows(seed, 40), 15.0
    last = float(sample.time_s.max())
    votes, total = PRIOR_TRACKS, np.full(2, PRIOR_TRACKS)
    for track in range(40):
        own = np.flatnonzero(sample.track == track)
        ended = float(sample.time_s[own].max())
        weight = np.exp((sample.time_s[own] - ended) / time_constant_s)
        z = sample.error[own] / np.sqrt(np.einsum("nii->ni", sample.estimates.covariance[own]))
        vote = exp(-(last - ended) / time_constant_s)
        votes += vote
        total = total + vote * (weight[:, None] * z**2).sum(axis=0) / weight.sum()
    found = fit_adaptive_scaling(sample, time_constant_s)
    assert found.scale == pytest.approx(np.sqrt(total / votes))
    assert found.ended_s == last


def test_the_delay_that_is_seen_is_that_of_nearly_all_labels():
    sample = rows(9)
    delay_s = np.where(np.arange(sample.n) % 100 < 3, 500.0, 4.0)
    assert fit_adaptive_scaling(replace(sample, delay_s=delay_s)).delay_s == 4.0
    with pytest.raises(UnfitData, match="labels come 30 s late, and the time constant is 20 s"):
        fit_adaptive_scaling(rows(9, delay_s=30.0), 20.0)
    assert fit_adaptive_scaling(rows(9, delay_s=-0.01)).delay_s == 0.0
    with pytest.raises(UnfitData, match="rows without a time: give every row its t or stamp_ns"):
        fit_adaptive_scaling(replace(sample, time_s=None))


def test_a_prior_of_effective_rows_counts_for_as_many_tracks():
    sample = rows(3, 40)
    towards = VarianceScaling((1.0, 1.0))
    wanted = Prior(towards, prior_strength(sample, 10.0))
    found = FITTINGS["adaptive-scaling"].fit(sample, FitOptions(), wanted)
    assert isinstance(found, AdaptiveScaling)
    assert found.prior_tracks == pytest.approx(10.0)
