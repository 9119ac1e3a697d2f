"""Rows of class probabilities: which are judged, what each tells, and where it is counted."""

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.statistics.class_statistics import (
    CLASS_BINNING,
    CONFIDENCE,
    DIVISORS,
    equal_width_bins,
    judge_rows,
    observe_classes,
)
from tests import laws
from tests.statistics import class_oracle as oracle

THIRD = [0.2, 0.3, 0.5]


def judged(probabilities, label, opinions=None):
    return judge_rows(
        np.array(probabilities, float),
        np.array(label),
        None if opinions is None else np.array(opinions, float),
    )


@pytest.mark.parametrize(
    "vector",
    [
        *([math.nan, 0.5, 0.5], [math.inf, -math.inf, 1.0], [-0.1, 0.6, 0.5], [1.1, -0.1, 0.0]),
        *([0.5, 0.3, 0.1], [0.5, 0.3, 0.203]),
    ],
)
def test_a_row_that_is_no_probability_vector_is_refused_and_its_neighbours_pass(vector):
    rows = judged([THIRD, vector, THIRD], [2, 0, 1])
    assert (rows.n, rows.refused, rows.without_truth) == (2, 1, 0)
    assert np.isfinite(rows.entropy).all() and rows.label.tolist() == [2, 1]
    # One bad opinion of several is enough.
    rows = judged([THIRD, THIRD], [0, 0], [[THIRD, THIRD], [THIRD, vector]])
    assert (rows.n, rows.refused) == (1, 1)


def test_labels_without_truth_are_counted_apart_from_unknown_ones_and_neither_is_in_the_sums():
    label = np.array([-1, 3, -2, 0, -1, 2])
    rows = judged([THIRD] * 6, label)
    assert (rows.n, rows.refused, rows.without_truth) == (2, 2, 2)
    probabilities = np.random.default_rng(1).dirichlet(np.ones(3), size=6)
    found = observe_classes(probabilities, label)
    laws.assert_same(found, observe_classes(probabilities[[3, 5]], label[[3, 5]]))
    assert np.isfinite(found.companions.value).all()


def test_the_first_of_equal_classes_is_predicted_and_ends_are_not_exceeded():
    rows = judged([[0.4, 0.4, 0.2], [0.2, 0.4, 0.4]], [1, 1])
    assert rows.predicted.tolist() == [0, 1]
    assert rows.right.tolist() == [False, True]
    rows = judged([[1, 0, 0, 0], [0.25] * 4, [0.2502] * 4], [0, 0, 0])
    assert rows.entropy.tolist() == [0.0, 1.0, 1.0]
    assert rows.brier[0] == 0.0
    # A true class of no probability costs what the smallest float32 does.
    rows = judged([[1.0, 0.0], [1.0 - 1e-300, 1e-300]], [1, 1])
    np.testing.assert_allclose(rows.cross_entropy, 149 * math.log(2))


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.sampled_from([2, 3, 10]))
def test_what_is_asked_of_a_row_is_as_the_papers_say(seed, opinions, classes):
    random = np.random.default_rng(seed)
    each = random.dirichlet(np.full(classes, 0.3), size=(4, opinions))
    rows = judge_rows(each.mean(axis=1), random.integers(0, classes, 4), each)
    assert rows.aleatoric is not None and rows.epistemic is not None
    np.testing.assert_allclose(rows.aleatoric + rows.epistemic, rows.entropy, rtol=1e-12)
    for row in range(4):
        one = each[row].mean(axis=0).tolist(), int(rows.label[row])
        near = partial(pytest.approx, rel=1e-9, abs=1e-12)
        assert (rows.aleatoric[row], rows.epistemic[row]) == near(
            oracle.entropy_parts(each[row].tolist())
        )
        assert rows.entropy[row] == near(oracle.entropy(one))
        assert rows.brier[row] == near(oracle.brier(one))
        assert rows.confidence[row] == near(oracle.confidence(one))
        assert rows.right[row] == oracle.right(one)


# ---- micro-bins


BINNING = CLASS_BINNING
unit = st.one_of(
    st.floats(0, 1),
    st.integers(0, 60).map(lambda k: k / 60),
    st.sampled_from(DIVISORS).flatmap(lambda d: st.sampled_from(np.linspace(0, 1, d + 1).tolist())),
)


@given(unit, st.sampled_from([10, 15, 20, 60, 4]))
def test_micro_bins_make_up_the_bins_of_linspace_exactly(value, bins):
    edges = np.linspace(0, 1, bins + 1).tolist()
    for axis in (*BINNING.axes[:2], *BINNING.coarse_axes[:2], BINNING.sixtieths):
        index = axis.index(np.array([value]))
        assert equal_width_bins(axis, bins)[index].tolist() == [oracle.bin_of(value, edges)]


def test_confident_detectors_are_told_apart_and_rounding_beyond_an_end_stays_in_the_last_bin():
    axes = BINNING.axes
    confidence = np.array([0.99, 0.999, 0.9999, 0.99995, 0.99999, 1.0])
    assert (np.diff(axes[CONFIDENCE].index(confidence)) < 0).all()
    assert [axis.index(np.array([-0.0]))[0] for axis in axes[1:]] == [0, 0, 0]
    assert axes[3].index(np.array([1.001]))[0] == axes[3].count - 1
    assert axes[2].upper[axes[2].index(np.array([149 * np.log(2)]))] < 128
