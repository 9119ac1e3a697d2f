"""The fit of adaptive scaling to rows: against a slow loop over its tracks, and its priors."""

from __future__ import annotations

from dataclasses import replace
from math import exp

import numpy as np
import pytest

from monitor.frames.detections import Estimates
from monitor.frames.space import plain_space
from monitor.recalibration.adaptive_scaling import (
    PRIOR_TRACKS,
    AdaptiveScaling,
    fit_adaptive_scaling,
    followed,
    track_means,
)
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.fitting import FITTINGS, FitOptions, prior_strength
from monitor.recalibration.recalibrator import UnfitData
from monitor.recalibration.scaling import Prior, VarianceScaling

XY = plain_space(("x", "y"), "m")


def rows(
    seed: int,
    objects: int = 200,
    each: int = 10,
    factor: float = 2.0,
    delay_s: float = 0.0,
) -> FitRows:
    """Objects seen for a second each, one after the other; σ too small by a factor."""
    random = np.random.default_rng(seed)
    n = objects * each
    covariance = np.exp(random.normal(size=(n, 2)))[:, :, None] * np.eye(2)
    deviation = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
    shared = np.repeat(random.normal(size=(objects, 2)), each, axis=0)
    error = factor * deviation * (0.8 * shared + 0.6 * random.normal(size=(n, 2)))
    sent = Estimates(random.normal(size=(n, 2)), covariance, np.ones(n, bool))
    track = np.repeat(np.arange(objects), each)
    return FitRows(XY, sent, error, track, np.arange(n) / each, np.full(n, delay_s))


@pytest.mark.parametrize("seed", range(3))
def test_a_fit_is_what_the_loop_over_its_tracks_makes(seed):
    sample, time_constant_s = rows(seed, 40), 15.0
    assert sample.time_s is not None
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


def test_a_fit_follows_the_newest_tracks():
    sample = rows(5, 400)
    error = sample.error.copy()
    error[:2000] /= 8.0
    changed = replace(sample, error=error)
    assert fit_adaptive_scaling(changed, 20.0).scale == pytest.approx((2.0, 2.0), rel=0.3)
    assert max(fit_adaptive_scaling(changed, 5000.0).scale) < 1.6


def test_an_object_that_is_seen_a_hundred_times_is_one_vote():
    sample = rows(6, 50)
    parked = np.repeat(np.flatnonzero(sample.track == 7), 100)
    often = sample.take(np.append(np.flatnonzero(sample.track != 7), parked))
    found, once = (
        fit_adaptive_scaling(often).parameters(),
        fit_adaptive_scaling(sample).parameters(),
    )
    for name, value in once.items():
        assert found[name] == pytest.approx(value), name


def test_rows_without_a_track_are_each_one():
    sample = rows(7, 50)
    alone = replace(sample, track=np.full(sample.n, -1))
    assert fit_adaptive_scaling(alone, 1e6).tracks == pytest.approx(500, rel=1e-3)
    assert fit_adaptive_scaling(sample, 1e6).tracks == pytest.approx(50, rel=1e-3)


def test_a_fit_goes_on_where_it_ended():
    sample = rows(8, 100)
    nees, ended_s = track_means(sample, 60.0)
    first = sample.take(np.flatnonzero(sample.track < 60))
    whole = followed(fit_adaptive_scaling(first), nees[60:], ended_s[60:], 0.0)
    assert whole.scale == pytest.approx(fit_adaptive_scaling(sample).scale)
    assert whole.tracks == pytest.approx(fit_adaptive_scaling(sample).tracks)


def test_the_delay_that_is_seen_is_that_of_nearly_all_labels():
    sample = rows(9)
    delay_s = np.where(np.arange(sample.n) % 100 < 3, 500.0, 4.0)
    assert fit_adaptive_scaling(replace(sample, delay_s=delay_s)).delay_s == 4.0
    with pytest.raises(UnfitData, match="labels come 30 s late, and the time constant is 20 s"):
        fit_adaptive_scaling(rows(9, delay_s=30.0), 20.0)
    assert fit_adaptive_scaling(rows(9, delay_s=-0.01)).delay_s == 0.0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"time_s": None}, "rows without a time: give every row its t or stamp_ns"),
        ({"time_s": np.full(2000, np.nan)}, "rows without a time"),
        ({"error": np.zeros((2000, 2))}, "dimension 'x' has no error in 2000 rows"),
    ],
)
def test_rows_that_do_not_say_what_is_needed_are_refused(change, said):
    with pytest.raises(UnfitData, match=said):
        fit_adaptive_scaling(replace(rows(1), **change))


# ---- priors


def test_few_tracks_are_drawn_towards_the_prior_and_many_are_not():
    towards = VarianceScaling((5.0, 5.0))
    few, many = rows(2, 5), rows(2, 2000)
    for sample, least, most in ((few, 4.0, 5.0), (many, 1.8, 2.4)):
        found = fit_adaptive_scaling(sample, 1000.0, Prior(towards, 30.0))
        assert all(least < s < most for s in found.scale)
    weight = fit_adaptive_scaling(few, 1e9, Prior(towards, 5.0))
    own = fit_adaptive_scaling(few, 1e9, Prior(towards, 1e-9))
    halfway = (np.square(own.scale) + 25) / 2
    assert np.square(weight.scale) == pytest.approx(halfway, rel=1e-6)


def test_a_prior_of_effective_rows_counts_for_as_many_tracks():
    sample = rows(3, 40)
    towards = VarianceScaling((1.0, 1.0))
    wanted = Prior(towards, prior_strength(sample, 10.0))
    found = FITTINGS["adaptive-scaling"].fit(sample, FitOptions(), wanted)
    assert isinstance(found, AdaptiveScaling)
    assert found.prior_tracks == pytest.approx(10.0)
