"""What processes are made of: inputs, kernels, Gauss-Hermite rules, served processes against
textbook formulas, and stacks of them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.frames.space import Dimension, DimensionKind, Space
from monitor.recalibration.processes.inputs import Inputs, candidate_inputs
from monitor.recalibration.processes.sparse_process import (
    Kernel,
    SparseProcess,
    expected_under_normal,
    stack_of,
)
from tests.recalibration.processes.processes import random_points, random_process, textbook_at
from tests.recalibration.rows import as_read, rows_from, sizes, wild_estimates

CANDIDATES = candidate_inputs(sizes(1, n=300, k=3)).features

# ---- inputs

POSE = Space(
    (
        Dimension("x", "m"),
        Dimension("length", "m"),
        Dimension("yaw", "rad", DimensionKind.ANGLE),
        Dimension("axis", "rad", DimensionKind.ANGLE_MODULO_PI),
    )
)


def poses(seed, n=200):
    random = np.random.default_rng(seed)
    place, length = random.normal(0, 30, n), np.exp(random.normal(1, 0.3, n))
    yaw, axis = random.uniform(-np.pi, np.pi, n), random.uniform(-np.pi / 2, np.pi / 2, n)
    mean = np.stack([place, length, yaw, axis], axis=1)
    variance = np.exp(random.normal(size=(n, 4)))
    return rows_from(mean, variance, random.normal(size=(n, 4)), space=POSE)


def kinds(inputs):
    return [(str(feature.kind), feature.dimension) for feature in inputs.features]


def test_candidates_are_means_by_their_kind_and_all_deviations_standardised_over_the_rows():
    rows = poses(2)
    inputs = candidate_inputs(rows)
    assert kinds(inputs) == [
        *(("mean", 0), ("log-mean", 1), ("cosine", 2), ("sine", 2)),
        *(("cosine-of-twice", 3), ("sine-of-twice", 3)),
        *(("log-deviation", i) for i in range(4)),
    ]
    mean, sigma = rows.estimates.mean, rows.deviation
    raw = [mean[:, 0], np.log(mean[:, 1]), np.cos(mean[:, 2]), np.sin(mean[:, 2])]
    raw += [np.cos(2 * mean[:, 3]), np.sin(2 * mean[:, 3]), *np.log(sigma).T]
    for column, values in zip(inputs.of(rows.estimates).T, raw, strict=True):
        assert column == pytest.approx((values - values.mean()) / values.std(), abs=1e-12)


def test_a_dimension_that_is_not_positive_throughout_enters_as_it_is():
    rows = sizes(4, k=2)
    rows.estimates.mean[17, 1] = -1.0
    assert kinds(candidate_inputs(rows))[:2] == [("log-mean", 0), ("mean", 1)]


@given(st.integers(0, 2**32 - 1))
def test_whatever_the_estimate_its_point_is_within_the_range_of_the_fit(seed):
    rows = poses(5)
    inputs = candidate_inputs(rows)
    seen = inputs.of(rows.estimates)
    points = inputs.of(wild_estimates(seed, 50, 4))
    assert (points >= seen.min(axis=0)).all()
    assert (points <= seen.max(axis=0)).all()


@pytest.mark.parametrize("n", [1, 300])
def test_what_does_not_vary_is_no_candidate(n):
    mean = np.column_stack([np.full(n, 1234.5), np.full(n, 0.1) + 0.2])
    rows = rows_from(mean, np.full((n, 2), 0.1) * 0.3, np.ones((n, 2)))
    assert not candidate_inputs(rows).features
    assert Inputs(()).of(rows.estimates).shape == (n, 0)


# ---- the kernel


@pytest.mark.parametrize("k", [1, 2, 4])
def test_every_entry_of_the_matrix_is_the_kernel_of_two_points(k):
    left, right = random_points(1, 7, k), random_points(2, 5, k)
    scale = np.array([0.7, 1.3, 2.0, 0.4])[:k]
    inverse = np.diag(1 / scale**2)
    expected = [[np.exp(-0.5 * (x - y) @ inverse @ (x - y)) for y in right] for x in left]
    assert Kernel(scale).matrix(left, right) == pytest.approx(np.array(expected), rel=1e-12)


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


# ---- processes


@pytest.mark.parametrize("seed", range(3))
def test_means_and_variances_are_those_of_the_textbook(seed):
    process = random_process(10 * seed, outputs=3)
    points = random_points(seed, 40)
    for found, expected in zip(process.at(points), textbook_at(process, points), strict=True):
        assert found == pytest.approx(expected, rel=1e-7, abs=1e-8)


def test_a_process_without_latents_is_constant_whatever_the_points():
    process = SparseProcess((0.5, -1.0))
    mean, variance = process.at(np.zeros((4, 0)))
    assert np.array_equal(mean, [[0.5] * 4, [-1.0] * 4])
    assert not variance.any()
    assert as_read(SparseProcess, process.parameters()) == process


# ---- stacks

ROWS = sizes(1, n=300, k=3)


def looking(process, *places):
    return replace(process, inputs=tuple(CANDIDATES[i] for i in places))


CONSTANT = SparseProcess((0.3, -0.2))

MIXED = (
    looking(random_process(1, outputs=1), 0, 3),
    CONSTANT,
    looking(random_process(2, outputs=3, size=7, width=1), 3),
    looking(random_process(3, outputs=2, size=3), 5, 0),
)


@pytest.mark.parametrize("processes", [MIXED, (CONSTANT,), MIXED[:1]])
def test_together_they_say_what_each_says_alone(processes):
    found = stack_of(processes, ROWS.estimates, 0.5).at(ROWS.estimates)
    parts = zip(*(process.of(ROWS.estimates) for process in processes), strict=True)
    for one, expected in zip(found, parts, strict=True):
        assert one == pytest.approx(np.concatenate(expected), abs=1e-9)


def test_what_is_served_is_the_mean_or_the_log_of_the_expectation_within_the_range():
    served, estimates = stack_of(MIXED, ROWS.estimates, 0.5), wild_estimates(3, 50, 3)
    low, high = np.array(served.low)[:, None], np.array(served.high)[:, None]
    mean, variance = served.at(estimates)
    assert np.array_equal(served.means(estimates), np.clip(mean, low, high))
    expected = np.clip(mean + 0.5 * variance, low, high)
    assert served.log_expectations(estimates) == pytest.approx(expected, abs=1e-12)
    # The range is that of the fit and a margin.
    mean, variance = served.at(ROWS.estimates)
    for expectations, seen in ((False, mean), (True, mean + 0.5 * variance)):
        found = stack_of(MIXED, ROWS.estimates, 0.5, expectations=expectations)
        assert found.low == pytest.approx(seen.min(axis=1) - 0.5)
        assert found.high == pytest.approx(seen.max(axis=1) + 0.5)
