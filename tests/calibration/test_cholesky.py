"""Factors of many small covariances at once, against one at a time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.frames.cholesky import factorise, is_diagonal, log_determinant, whiten
from tests.calibration import oracle, statistics_oracle

quick = settings(max_examples=50)
seeds = st.integers(0, 2**32 - 1)
INDEFINITE = [[1.0, 2.0], [2.0, 1.0]]
SINGULAR = [[1.0, 1.0], [1.0, 1.0]]


def covariances(seed, n, k):
    """Far from singular, so that the slow formulas are exact enough to compare with."""
    random = np.random.default_rng(seed)
    root = np.tril(random.uniform(-0.5, 0.5, (n, k, k)), -1)
    root[:, np.arange(k), np.arange(k)] = random.uniform(0.5, 2, (n, k))
    return 10.0 ** random.uniform(-6, 6, n)[:, None, None] * (root @ root.transpose(0, 2, 1))


def lower(factor):
    """(N, K, K) factors, zero above the diagonal."""
    return np.tril(np.moveaxis(factor, -1, 0))


@quick
@given(seeds, st.integers(1, 6), st.integers(1, 8))
def test_a_factor_times_its_transpose_is_the_covariance(seed, k, n):
    covariance = covariances(seed, n, k)
    factor = lower(factorise(covariance))
    size = np.abs(covariance).max(axis=(1, 2), keepdims=True)
    assert factor @ factor.transpose(0, 2, 1) / size == pytest.approx(covariance / size, abs=1e-13)
    assert (np.diagonal(factor, axis1=1, axis2=2) > 0).all()


@quick
@given(seeds, st.integers(1, 4))
def test_factor_determinant_and_whitening_are_those_of_plain_loops(seed, k):
    covariance = covariances(seed, 5, k)
    error = np.random.default_rng(seed).normal(size=(5, k))
    factor = factorise(covariance)
    for row, matrix in enumerate(covariance.tolist()):
        slow = statistics_oracle.cholesky(matrix)
        assert lower(factor)[row] == pytest.approx(np.array(slow), rel=1e-9, abs=1e-12)
        white = statistics_oracle.whiten(matrix, error[row].tolist())
        assert whiten(factor, error)[:, row] == pytest.approx(white, rel=1e-9)
        for size in range(1, k + 1):
            block = [line[:size] for line in matrix[:size]]
            expected = np.log(oracle.determinant(block))
            assert log_determinant(factor, size)[row] == pytest.approx(expected, abs=1e-8)


@quick
@given(seeds, st.integers(1, 4))
def test_whitened_errors_have_the_length_of_the_mahalanobis_distance(seed, k):
    covariance = covariances(seed, 4, k)
    error = np.random.default_rng(seed).normal(size=(4, k))
    found = np.square(whiten(factorise(covariance), error)).sum(axis=0)
    expected = [
        oracle.mahalanobis(c, e) for c, e in zip(covariance.tolist(), error.tolist(), strict=True)
    ]
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    "bad",
    [
        INDEFINITE,
        SINGULAR,
        [[0.0, 0.0], [0.0, 1.0]],
        [[1.0, 0.0], [0.0, -1.0]],
        [[-1.0, 0.0], [0.0, -1.0]],
        [[np.nan, 0.0], [0.0, 1.0]],
        [[1.0, np.nan], [np.nan, 1.0]],
        [[np.inf, 0.0], [0.0, 1.0]],
        [[1.0, 1.0 - 1e-14], [1.0 - 1e-14, 1.0]],
    ],
)
def test_what_is_not_positive_definite_has_no_last_pivot_and_its_neighbours_do(bad):
    good = covariances(1, 4, 2)
    mixed = np.concatenate([good[:2], [bad], good[2:]])
    with np.errstate(all="raise"):
        factor = factorise(mixed)
    assert np.isnan(factor[-1, -1]).tolist() == [False, False, True, False, False]
    kept = [0, 1, 3, 4]
    assert np.array_equal(factor[:, :, kept], factorise(good))


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e10])
def test_being_singular_does_not_depend_on_the_unit(scale):
    regular = scale * np.array([[[1.0, 0.999999], [0.999999, 1.0]]])
    assert np.isfinite(factorise(regular)[-1, -1]).all()
    assert np.isnan(factorise(scale * np.array([SINGULAR]))[-1, -1]).all()


def test_a_factorisation_leaves_its_argument_alone():
    covariance = covariances(3, 4, 3)
    before = covariance.copy()
    factorise(covariance)
    assert np.array_equal(covariance, before)


def test_no_covariances_have_no_factors():
    assert factorise(np.zeros((0, 3, 3))).shape == (3, 3, 0)
    assert log_determinant(factorise(np.zeros((0, 3, 3))), 3).shape == (0,)
    assert whiten(factorise(np.zeros((0, 3, 3))), np.zeros((0, 3))).shape == (3, 0)


def test_a_batch_is_diagonal_only_if_all_of_it_is():
    plain = np.eye(3)[None] * np.array([1.0, 2.0])[:, None, None]
    assert is_diagonal(plain)
    assert not is_diagonal(np.concatenate([plain, covariances(1, 1, 3)]))
    assert is_diagonal(np.ones((5, 1, 1)))
