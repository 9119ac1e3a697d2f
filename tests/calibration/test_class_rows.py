"""Which rows of class probabilities are judged, and what is asked of each."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.statistics.class_statistics import judge_rows
from tests.calibration import class_oracle as oracle

THIRD = [0.2, 0.3, 0.5]
quick = settings(max_examples=60)


def judged(probabilities, label, opinions=None):
    return judge_rows(
        np.array(probabilities, float),
        np.array(label),
        None if opinions is None else np.array(opinions, float),
    )


@pytest.mark.parametrize(
    "vector",
    [
        [math.nan, 0.5, 0.5],
        [math.inf, 0.0, 0.0],
        [math.inf, -math.inf, 1.0],
        [-0.1, 0.6, 0.5],
        [1.1, -0.1, 0.0],
        [0.5, 0.3, 0.1],
        [0.5, 0.3, 0.203],
        [0.0, 0.0, 0.0],
    ],
)
def test_a_row_that_is_no_probability_vector_is_refused_and_its_neighbours_pass(vector):
    rows = judged([THIRD, vector, THIRD], [2, 0, 1])
    assert (rows.n, rows.refused, rows.without_truth) == (2, 1, 0)
    assert np.isfinite(rows.entropy).all() and rows.label.tolist() == [2, 1]


def test_a_softmax_in_single_precision_passes():
    logits = np.random.default_rng(0).normal(size=(500, 30)).astype(np.float32) * 5
    shares = np.exp(logits)
    shares /= shares.sum(axis=1, keepdims=True)
    assert shares.dtype == np.float32
    rows = judge_rows(shares.astype(np.float64), np.zeros(500, np.int64))
    assert rows.refused == 0


def test_labels_without_truth_are_counted_apart_from_unknown_ones():
    rows = judged([THIRD] * 5, [-1, 3, -2, 0, -1])
    assert (rows.n, rows.refused, rows.without_truth) == (1, 2, 2)


def test_the_first_of_equal_classes_is_predicted():
    rows = judged([[0.4, 0.4, 0.2], [0.2, 0.4, 0.4]], [1, 1])
    assert rows.predicted.tolist() == [0, 1]
    assert rows.right.tolist() == [False, True]


def test_a_true_class_of_no_probability_costs_what_the_smallest_float32_does():
    rows = judged([[1.0, 0.0], [1.0 - 1e-300, 1e-300]], [1, 1])
    np.testing.assert_allclose(rows.cross_entropy, 149 * math.log(2))


def test_a_certain_and_a_uniform_row_have_the_ends_of_entropy():
    rows = judged([[1, 0, 0, 0], [0.25] * 4, [0.2502] * 4], [0, 0, 0])
    assert rows.entropy.tolist() == [0.0, 1.0, 1.0]
    assert rows.brier[0] == 0.0


@quick
@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.sampled_from([2, 3, 10]))
def test_entropy_is_its_aleatoric_and_its_epistemic_part(seed, opinions, classes):
    random = np.random.default_rng(seed)
    each = random.dirichlet(np.full(classes, 0.3), size=(4, opinions))
    rows = judge_rows(each.mean(axis=1), random.integers(0, classes, 4), each)
    assert rows.aleatoric is not None and rows.epistemic is not None
    np.testing.assert_allclose(rows.aleatoric + rows.epistemic, rows.entropy, rtol=1e-12)
    for row in range(4):
        aleatoric, epistemic = oracle.entropy_parts(each[row].tolist())
        assert rows.aleatoric[row] == pytest.approx(aleatoric, rel=1e-9, abs=1e-12)
        assert rows.epistemic[row] == pytest.approx(epistemic, rel=1e-9, abs=1e-12)


def test_a_row_with_one_bad_opinion_is_refused():
    rows = judged([THIRD, THIRD], [0, 0], [[THIRD, THIRD], [THIRD, [0.9, 0.9, 0.9]]])
    assert (rows.n, rows.refused) == (1, 1)
