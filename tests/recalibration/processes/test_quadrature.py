"""Gauss–Hermite expectations: against exact moments, closed forms and finite differences."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.recalibration.processes.sparse_process import (
    expected_under_normal,
    gauss_hermite,
    latent_nodes,
)

quick = settings(max_examples=50)


@pytest.mark.parametrize("count", [1, 2, 20, 60])
def test_polynomials_below_twice_the_number_of_nodes_are_exact(count):
    node, weight = gauss_hermite(count)
    assert node.shape == weight.shape == (count,)
    assert (weight > 0).all()
    for degree in range(min(2 * count, 16)):
        # Moments of a standard Gaussian: (degree − 1)!! for even degrees, 0 for odd ones.
        exact = math.prod(range(degree - 1, 0, -2)) if degree % 2 == 0 else 0
        assert (weight * node**degree).sum() == pytest.approx(exact, rel=1e-11, abs=1e-9)


def test_the_rule_is_symmetric_to_the_last_bit_and_cannot_be_written_to():
    node, weight = gauss_hermite(20)
    assert np.array_equal(node, -node[::-1])
    assert np.array_equal(weight, weight[::-1])
    with pytest.raises(ValueError, match="read-only"):
        node[0] = 0.0


@quick
@given(st.floats(-5, 5), st.floats(0.0, 2.0), st.floats(-2, 2))
def test_the_mean_of_an_exponential_is_that_of_a_lognormal(mean, variance, rate):
    found = expected_under_normal(
        lambda f: (np.exp(rate * f), rate * np.exp(rate * f)),
        np.array([[mean]]),
        np.array([[variance]]),
    )
    exact = math.exp(rate * mean + 0.5 * rate * rate * variance)
    assert found.value.item() == pytest.approx(exact, rel=1e-9)
    assert found.by_mean.item() == pytest.approx(rate * exact, rel=1e-9, abs=1e-12)
    # A difference of values over √v, which digits are lost in as v falls.
    assert found.by_variance.item() == pytest.approx(
        0.5 * rate * rate * exact, rel=1e-6, abs=1e-4 * exact if variance < 1e-9 else 1e-9 * exact
    )


def test_the_derivatives_are_those_of_the_rule_itself():
    def kinked(f):
        return -np.abs(f), -np.sign(f)

    mean, variance = np.array([[0.3, -1.0, 0.05]]), np.array([[0.5, 2.0, 1.3]])

    def value(m, v):
        return expected_under_normal(kinked, m, v).value

    found = expected_under_normal(kinked, mean, variance)
    step = 1e-6
    by_mean = (value(mean + step, variance) - value(mean - step, variance)) / (2 * step)
    by_variance = (value(mean, variance + step) - value(mean, variance - step)) / (2 * step)
    assert found.by_mean[0] == pytest.approx(by_mean, abs=1e-8)
    assert found.by_variance[0] == pytest.approx(by_variance, abs=1e-8)


def test_without_a_variance_the_nodes_are_at_the_mean():
    nodes = latent_nodes(np.array([1.0, -2.0]), np.zeros(2), 20)
    assert nodes.shape == (20, 2)
    assert nodes == pytest.approx(np.tile([1.0, -2.0], (20, 1)), abs=1e-4)
    found = expected_under_normal(lambda f: (f**2, 2 * f), np.array([[3.0]]), np.array([[0.0]]))
    assert found.value.item() == pytest.approx(9.0)
    assert found.by_mean.item() == pytest.approx(6.0)
    assert found.by_variance.item() == pytest.approx(1.0, rel=1e-4)
