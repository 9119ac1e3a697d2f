"""What is read off class statistics is what the exact engine finds in the rows."""

import json
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.statistics.class_evaluation import (
    AUSE,
    ClassEvaluation,
    class_as_json,
    evaluate_class_rows,
    read_classes,
)
from monitor.statistics.class_statistics import no_class_statistics, observe_classes

# Of the sum over a bin, per row: half the unit of the grid.
GRID = 2.0**-41
# What sorting decides; the rest is a matter of sums.
SORTED = {*AUSE, "ause_by_class", "ause_bound", "ause_bound_by_class", "rejection_error_rate"}


def simulated(seed, n, classes, sharp):
    """Opinions and labels drawn from them; the sharper, the more confident."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=(n, 2, classes)) * sharp
    logits[:, :, 0] += random.choice([0.0, 2.0 * sharp])
    logits -= logits.max(axis=2, keepdims=True)
    opinions = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
    probabilities = opinions.mean(axis=1)
    drawn = (probabilities.cumsum(axis=1) > random.random((n, 1))).argmax(axis=1)
    label = np.where(random.random(n) < 0.2, random.integers(0, classes, n), drawn)
    return probabilities, label, opinions


def both(rows, bins) -> tuple[ClassEvaluation, ClassEvaluation]:
    probabilities, label, opinions = rows
    return (
        read_classes(observe_classes(*rows), bins),
        evaluate_class_rows(probabilities, label, opinions=opinions, bins=bins),
    )


@settings(max_examples=60)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 300),
    st.sampled_from([2, 3, 10]),
    st.floats(0.1, 12),
    st.sampled_from([10, 15, 20]),
)
def test_streaming_equals_exact(seed, n, classes, sharp, bins):
    streamed, exact = both(simulated(seed, n, classes, sharp), bins)
    for field in fields(ClassEvaluation):
        found, expected = getattr(streamed, field.name), getattr(exact, field.name)
        if field.name in SORTED:
            continue
        if field.type in ("int", "IntArray"):
            assert np.array_equal(found, expected), field.name
        else:
            # An area over 0.25 makes four of a gap's rounding.
            np.testing.assert_allclose(
                found, expected, rtol=1e-9, atol=4 * GRID, err_msg=field.name
            )


@settings(max_examples=60)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 300),
    st.sampled_from([2, 10]),
    st.floats(0.1, 12),
)
def test_sparsification_by_micro_bins_stays_within_its_bound(seed, n, classes, sharp):
    streamed, exact = both(simulated(seed, n, classes, sharp), 20)
    for i, name in enumerate(AUSE):
        difference = abs(getattr(streamed, name) - getattr(exact, name))
        assert difference <= streamed.ause_bound[i] + 1e-9, name
    difference_by_class = np.abs(streamed.ause_by_class - exact.ause_by_class)
    bound = streamed.ause_bound_by_class + 1e-9
    assert np.array_equal(np.isnan(difference_by_class), np.isnan(bound))
    assert (np.isnan(bound) | (difference_by_class <= bound)).all()
    assert not exact.ause_bound.any()


@pytest.mark.parametrize("sharp", [1.0, 3.0, 10.0])
def test_sparsification_of_many_rows_is_close_to_exact_sorting(sharp):
    # One opinion: the mean of two certain ones is a half, in the last digits of which exact
    # sorting finds an order.
    _, label, opinions = simulated(1, 20_000, 10, sharp)
    streamed, exact = both((opinions[:, 0], label, opinions[:, :1]), 20)
    for name in AUSE:
        assert getattr(streamed, name) == pytest.approx(getattr(exact, name), abs=1e-3), name
    np.testing.assert_allclose(streamed.rejection_error_rate, exact.rejection_error_rate, atol=2e-3)


def test_values_on_the_edges_of_bins_are_counted_alike():
    confidence = np.unique(np.concatenate([np.linspace(0, 1, k + 1) for k in (10, 15, 20)]))
    confidence = confidence[confidence >= 0.5]
    probabilities = np.stack([confidence, 1 - confidence], axis=1)
    for bins in (10, 15, 20):
        label = np.zeros(confidence.size, np.int64)
        exact = evaluate_class_rows(probabilities, label, bins=bins)
        streamed = read_classes(observe_classes(probabilities, label), bins)
        assert streamed.counts_confidence.tolist() == exact.counts_confidence.tolist()
        np.testing.assert_allclose(streamed.ece_by_class, exact.ece_by_class, atol=GRID)


def test_of_replicas_only_those_with_opinions_tell_of_them():
    probabilities, label, opinions = simulated(2, 50, 4, 2.0)
    with_opinions = observe_classes(probabilities, label, opinions)
    alone = read_classes(with_opinions)
    found = read_classes(with_opinions.merge(observe_classes(probabilities, label)))
    assert (found.n, found.opinions) == (100, 50)
    assert (found.aleatoric, found.epistemic) == (alone.aleatoric, alone.epistemic)
    assert found.aleatoric + found.epistemic == pytest.approx(alone.entropy, rel=1e-9)


def test_a_slice_without_rows_has_no_measures():
    zero = no_class_statistics(10)
    early = zero.merge(observe_classes(*simulated(1, 20, 10, 1.0)).negated())
    for statistics in (zero, early):
        found = read_classes(statistics)
        assert (found.n, found.classes) == (0, 10)
        for field in fields(ClassEvaluation):
            if field.type == "float":
                assert np.isnan(getattr(found, field.name)), field.name
        json.dumps(class_as_json(found), allow_nan=False)


def test_two_of_ten_classes_are_no_binary_problem():
    probabilities, label, _ = simulated(5, 400, 10, 1.0)
    two = np.isin(label, (3, 8))
    streamed = read_classes(observe_classes(probabilities[two], label[two]))
    assert streamed.classes == 10 and np.isfinite(streamed.ece_by_class).all()
    assert streamed.cece == pytest.approx(
        evaluate_class_rows(probabilities[two], label[two]).cece, rel=1e-9
    )
