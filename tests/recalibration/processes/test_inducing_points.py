"""Centres of clusters: they lie among the points, and are as many as these differ."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.recalibration.processes.process_fit import LOOKED_AT, inducing_points


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(1, 300), st.integers(1, 3), st.integers(1, 15))
def test_they_lie_within_the_points_and_apart(seed, n, width, count):
    points = np.random.default_rng(seed).normal(size=(n, width))
    found = inducing_points(points, count)
    assert found.shape == (min(n, count), width)
    assert (found >= points.min(axis=0) - 1e-12).all()
    assert (found <= points.max(axis=0) + 1e-12).all()
    assert len(np.unique(found, axis=0)) == len(found)


def test_they_are_means_of_the_points_nearest_to_them():
    clusters = np.array([[0.0, 0.0], [5.0, 0.0], [0.0, 5.0]])
    points = np.repeat(clusters, 50, axis=0) + np.random.default_rng(1).normal(0, 0.1, (150, 2))
    found = inducing_points(points, 3)
    nearest = np.square(points[:, None] - found).sum(axis=2).argmin(axis=1)
    for i in range(3):
        assert found[i] == pytest.approx(points[nearest == i].mean(axis=0))
    assert sorted(found.round().tolist()) == sorted(clusters.tolist())


@pytest.mark.parametrize("distinct", [1, 2, 5])
def test_points_that_repeat_make_no_more_centres_than_there_are(distinct):
    points = np.arange(distinct, dtype=float)[np.arange(100) % distinct][:, None]
    assert sorted(inducing_points(points, 12)[:, 0].tolist()) == list(range(distinct))


def test_of_many_points_a_part_is_looked_at():
    points = np.random.default_rng(2).normal(size=(3 * LOOKED_AT, 1))
    assert np.array_equal(inducing_points(points, 5), inducing_points(points[::3], 5))
