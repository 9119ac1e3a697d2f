"""Channels see of errors what they are named for, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import digamma

from monitor.drift.channels import (
    BIASES,
    CHANNELS,
    CORRELATIONS,
    GAUSSIAN_SCALE,
    JOINT,
    MOST_NAMED,
    SCALES,
    SHIPPED,
    channels,
    degrees_of,
    observed,
)
from monitor.frames.space import FloatArray
from tests.drift.drives import seeds

dimensions = st.integers(1, 12)
STATED = np.array([[1.0, 0.6, 0.0], [0.6, 1.0, 0.3], [0.0, 0.3, 1.0]])


def by_channel(nees: FloatArray, z: FloatArray, u: FloatArray) -> FloatArray:
    """What each of all channels sees, (CHANNELS, n); NaN in those that there are not."""
    found = np.full((CHANNELS, nees.size), np.nan)
    found[channels(len(z))] = observed(nees, z, u)
    return found


def seen(errors: FloatArray, stated: FloatArray = STATED) -> FloatArray:
    """Of errors (n, K) and the covariance that is stated of them."""
    z = errors.T / np.sqrt(np.diag(stated))[:, None]
    u = np.linalg.solve(np.linalg.cholesky(stated), errors.T)
    return by_channel(np.square(u).sum(axis=0), z, u)


def drawn(covariance: FloatArray, n: int = 20_000) -> FloatArray:
    found: FloatArray = np.random.default_rng(0).multivariate_normal(
        np.zeros(len(covariance)), covariance, n
    )
    return found


@given(dimensions)
def test_a_block_has_channels_of_its_first_dimensions_in_order(k):
    named, there = min(k, MOST_NAMED), channels(k)
    assert (np.diff(there) > 0).all()
    assert there[[0, 1]].tolist() == [JOINT, SHIPPED]
    # In one dimension the NEES is its scale, and there is nothing that it could hang together with.
    kinds = {SCALES: named if k > 1 else 0, BIASES: named, CORRELATIONS: named - 1}
    for begin, count in kinds.items():
        places = there[(there >= begin) & (there < begin + MOST_NAMED)] - begin
        assert places.tolist() == list(range(named))[named - count :]
    degrees = degrees_of(k)
    assert degrees.size == CHANNELS + MOST_NAMED
    assert (degrees[[JOINT, SHIPPED]] == k).all()
    assert not degrees[SCALES:].any()


@given(seeds, dimensions)
def test_scales_are_logarithms_of_squares_and_biases_are_errors_that_are_cut(seed, k):
    random = np.random.default_rng(seed)
    u = random.standard_normal((k, 20)) * 3
    z, nees = u * random.uniform(0.5, 2, (k, 1)), np.square(u).sum(axis=0)
    named = min(k, MOST_NAMED)
    found = observed(nees, z[:named], u[:named])
    assert found.shape == (channels(k).size, 20)
    np.testing.assert_allclose(found[:2], np.log(np.maximum([nees, nees], 1e-6)))
    at = {channel: row for row, channel in enumerate(channels(k).tolist())}
    for i in range(named):
        if k > 1:
            np.testing.assert_allclose(found[at[SCALES + i]], np.log(z[i] ** 2 + 0.05))
        np.testing.assert_array_equal(found[at[BIASES + i]], np.clip(z[i], -4, 4))


@given(seeds, st.floats(0.1, 10))
def test_a_factor_on_all_errors_is_its_logarithm_at_most_and_turns_no_correlation(seed, f):
    errors = np.random.default_rng(seed).standard_normal((30, 3))
    before, after = seen(errors), seen(f * errors)
    for channel in (JOINT, SHIPPED):
        np.testing.assert_allclose(after[channel], before[channel] + 2 * np.log(f), atol=1e-9)
    of_scale = slice(SCALES, SCALES + 3)
    moved = np.abs(after[of_scale] - before[of_scale])
    assert (np.sign(f - 1) * (after - before)[of_scale] >= 0).all()
    assert (moved <= 2 * abs(np.log(f)) + 1e-9).all()
    # Small errors say less of a correlation.
    of_correlation = [CORRELATIONS + 1, CORRELATIONS + 2]
    small, large = (before, after) if f >= 1 else (after, before)
    assert (np.sign(small[of_correlation]) == np.sign(large[of_correlation])).all()
    assert (np.abs(small[of_correlation]) <= np.abs(large[of_correlation]) + 1e-9).all()


def test_exact_detections_and_gross_outliers_are_bounded_in_every_channel():
    for errors in (np.zeros((1, 3)), np.full((1, 3), 1e9), np.array([[0.0, 1e9, -1e9]])):
        found = seen(errors)[channels(3)]
        assert np.isfinite(found).all()
        assert (found[0] >= np.log(1e-6)).all()
        assert (np.abs(found[5:8]) <= 4).all()
        assert (np.abs(found[8:]) <= 10).all()


def test_levels_of_calibrated_errors_are_those_that_references_are_held_against():
    mean = seen(drawn(STATED)).mean(axis=1)
    assert mean[JOINT] == pytest.approx(digamma(1.5) + np.log(2), abs=0.03)
    np.testing.assert_allclose(mean[SCALES : SCALES + 3], GAUSSIAN_SCALE, atol=0.04)
    nodes, weights = np.polynomial.hermite_e.hermegauss(200)
    of_normal = weights @ np.log(nodes**2 + 0.05) / weights.sum()
    assert of_normal == pytest.approx(GAUSSIAN_SCALE, abs=1e-3)
    np.testing.assert_allclose(mean[BIASES : BIASES + 3], 0, atol=0.03)
    for factor in (0.3, 1.0, 3.0):
        mean = seen(factor * drawn(STATED)).mean(axis=1)
        np.testing.assert_allclose(mean[[CORRELATIONS + 1, CORRELATIONS + 2]], 0, atol=0.05)


def test_a_correlation_that_is_not_there_or_has_the_other_sign_is_above_and_a_stronger_one_below():
    none, other, stronger = STATED.copy(), STATED.copy(), STATED.copy()
    for made, value in ((none, 0.0), (other, -0.6), (stronger, 0.9)):
        made[0, 1] = made[1, 0] = value
    level = {
        name: seen(drawn(made)).mean(axis=1)[CORRELATIONS + 1]
        for name, made in (("none", none), ("other", other), ("stronger", stronger))
    }
    assert level["stronger"] < -0.3 < 0 < 0.3 < level["none"] < level["other"]


def test_one_dimension_that_is_wrong_is_seen_in_its_own_channels_alone():
    usual, errors = seen(drawn(np.eye(3)), np.eye(3)), drawn(np.eye(3))
    wide = seen(errors * np.array([1.0, 3.0, 1.0]), np.eye(3)).mean(axis=1) - usual.mean(axis=1)
    assert 0.8 * 2 * np.log(3) < wide[SCALES + 1] < 2 * np.log(3)
    others = [SCALES, SCALES + 2, *range(BIASES, BIASES + 3), CORRELATIONS + 1, CORRELATIONS + 2]
    assert np.abs(wide[others]).max() < 0.03
    off = seen(errors - np.array([0.0, 0.0, 0.7]), np.eye(3)).mean(axis=1) - usual.mean(axis=1)
    assert off[BIASES + 2] == pytest.approx(-0.7, abs=0.01)
    assert np.abs(off[[BIASES, BIASES + 1, SCALES, SCALES + 1]]).max() < 0.01


def test_levels_are_even_in_what_has_no_sign():
    errors = drawn(STATED, 50)
    found, turned = seen(errors), seen(-errors)
    np.testing.assert_allclose(turned[BIASES : BIASES + 3], -found[BIASES : BIASES + 3])
    even = np.delete(np.arange(CHANNELS), np.arange(BIASES, BIASES + MOST_NAMED))
    np.testing.assert_allclose(turned[even], found[even])


def test_the_stated_whitening_keeps_the_joint_nees_a_chi_square():
    errors = drawn(STATED)
    nees = np.exp(seen(errors)[JOINT])
    assert stats.kstest(nees, stats.chi2(3).cdf).pvalue > 1e-3
