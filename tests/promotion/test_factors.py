"""Factors on the variance, of all rows of a slice."""

import numpy as np
import pytest

from monitor.promotion.records import Factor
from monitor.promotion.trial import factors, ratios
from monitor.recalibration.recalibrator import Identity
from monitor.recalibration.scaling import VarianceScaling
from tests.promotion.odd_recalibrators import ByRow, Raising
from tests.recalibration.rows import wild_estimates

NAMES = ("x", "y", "z")


def scaled(*factors: float) -> VarianceScaling:
    return VarianceScaling(tuple(np.sqrt(factors).tolist()))


def test_the_factors_of_a_scaling_are_those_of_every_row():
    found = factors(scaled(2.0, 0.5, 1.0), wild_estimates(1, 50, 3), NAMES)
    assert [factor.dimension for factor in found] == ["x", "y", "z"]
    for factor, expected in zip(found, (2.0, 0.5, 1.0), strict=True):
        assert (factor.lowest, factor.typical, factor.highest) == pytest.approx((expected,) * 3)


def test_the_identity_changes_nothing():
    found = factors(Identity(), wild_estimates(2, 20, 3), NAMES)
    assert found == tuple(Factor(name, 1.0, 1.0, 1.0) for name in NAMES)


def test_factors_that_differ_by_row_are_told_by_quantiles_and_their_geometric_mean():
    factor = np.exp(np.random.default_rng(3).normal(size=(400, 3)))
    found = factors(ByRow(factor), wild_estimates(3, 400, 3), NAMES)
    for one, column in zip(found, factor.T, strict=True):
        ordered = np.sort(column)
        assert ordered[19] <= one.lowest <= ordered[20]
        assert one.typical == pytest.approx(np.prod(column ** (1 / 400)))
        assert ordered[379] <= one.highest <= ordered[380]


def test_ratios_are_against_what_the_champion_makes():
    sent = wild_estimates(4, 30, 3)
    found = ratios(scaled(3.0, 3.0, 3.0), scaled(2.0, 3.0, 6.0), sent)
    for column in (found.lowest, found.typical, found.highest):
        np.testing.assert_allclose(column, [1.5, 1.0, 0.5])


def test_exchanged_they_are_the_inverse():
    sent = wild_estimates(5, 30, 3)
    one = ratios(scaled(3.0, 0.2, 3.0), scaled(2.0, 3.0, 6.0), sent)
    other = ratios(scaled(2.0, 3.0, 6.0), scaled(3.0, 0.2, 3.0), sent)
    np.testing.assert_allclose(one.typical * other.typical, 1.0)
    np.testing.assert_allclose(one.lowest * other.highest, 1.0)


def test_one_that_fails_changes_nothing():
    found = ratios(Raising(1.0), Identity(), wild_estimates(6, 10, 3))
    assert found.typical.tolist() == [1.0] * 3
