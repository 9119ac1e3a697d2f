"""Measures of class probabilities by the exact engine, against slow formulas from the papers; read
off sums, against the exact engine; and what is asked of each row."""

import json
import math
from dataclasses import fields
from functools import partial
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.statistics.class_evaluation import (
    AUSE,
    ClassEvaluation,
    class_as_json,
    evaluate_class_rows,
    read_classes,
)
from monitor.statistics.class_statistics import (
    AXES,
    COARSE_AXES,
    CONFIDENCE,
    DIVISORS,
    SIXTIETHS,
    equal_width_bins,
    judge_rows,
    no_class_statistics,
    observe_classes,
)
from monitor.statistics.measures import EvaluationError
from tests import laws
from tests.statistics import class_oracle as oracle

NUMBERS = """
    ece ece2 mce ace cece uce_entropy cuce nll brier sharpness overconfidence underconfidence ause
    ause_entropy ccqs ucqs"""
BESIDES = """
    n classes accuracy rows_without_truth rows_refused n_opinions entropy ause_cross_entropy
    ause_brier ause_brier_entropy ause_brier_cross_entropy ause_bound n_by_class ece_by_class
    confidence_skewness entropy_skewness
    uce_by_class aleatoric epistemic rejection counts_confidence counts_entropy"""
SORTS = (oracle.confidence, oracle.entropy, oracle.cross_entropy)
MERITS = (oracle.wrong, oracle.brier)


def simulated(seed, n=150, classes=5, sharp=1.0):
    random = np.random.default_rng(seed)
    logits = 2 * random.normal(size=(n, classes))
    logits[random.random(n) < 0.2] = logits[0]
    true = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    claimed = true**sharp / (true**sharp).sum(axis=1, keepdims=True)
    label = (true.cumsum(axis=1) > random.random((n, 1))).argmax(axis=1)
    return claimed, label


def as_rows(probabilities, label) -> oracle.Rows:
    return list(zip(probabilities.tolist(), label.tolist(), strict=True))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("bins", [10, 15, 20, 7])
def test_measures_are_those_of_the_papers(seed, bins):
    probabilities, label = simulated(seed, sharp=1 + seed / 2)
    rows = as_rows(probabilities, label)
    edges = np.linspace(0, 1, bins + 1).tolist()
    found = evaluate_class_rows(probabilities, label, bins=bins)
    over_confidence = oracle.gaps(rows, oracle.confidence, oracle.right, edges)
    over_entropy = oracle.gaps(rows, oracle.entropy, oracle.wrong, edges)
    ece = [oracle.classwise_ece(rows, c, edges) for c in range(5)]
    uce = [oracle.classwise_uce(rows, c, edges) for c in range(5)]
    expected = {
        "accuracy": fmean(map(oracle.right, rows)),
        "ece": oracle.expected(over_confidence),
        "ece2": oracle.expected(over_confidence, 2),
        "mce": max(gap for _, gap in over_confidence),
        "ace": fmean(gap for _, gap in over_confidence),
        "ece_by_class": ece,
        "cece": sum(ece) / 5,
        "uce_entropy": oracle.expected(over_entropy),
        "uce_by_class": uce,
        "cuce": np.nanmean(uce),
        "nll": fmean(map(oracle.cross_entropy, rows)),
        "brier": fmean(map(oracle.brier, rows)),
        "entropy": fmean(map(oracle.entropy, rows)),
        "confidence_skewness": oracle.skewness([*map(oracle.confidence, rows)]),
        "entropy_skewness": oracle.skewness([*map(oracle.entropy, rows)]),
        "ccqs": oracle.area_score(rows, oracle.confidence, oracle.right, edges),
        "ucqs": oracle.area_score(rows, oracle.entropy, oracle.wrong, edges),
        "counts_confidence": list(map(len, oracle.binned(rows, oracle.confidence, edges))),
        "counts_entropy": list(map(len, oracle.binned(rows, oracle.entropy, edges))),
    }
    for name, value in expected.items():
        assert getattr(found, name) == pytest.approx(value, rel=1e-9, nan_ok=True), name
    # |o P(wrong) − u P(right)| ≤ ECE ≤ ECE_2 ≤ MCE
    wrong = found.overconfidence * (1 - found.accuracy)
    assert abs(wrong - found.underconfidence * found.accuracy) <= found.ece + 1e-12
    assert found.ece <= found.ece2 + 1e-12 <= found.mce + 2e-12
    quantiles = np.quantile(probabilities.max(axis=1), np.linspace(0, 1, bins + 1)).tolist()
    gaps = oracle.gaps(rows, oracle.confidence, oracle.right, quantiles)
    count = evaluate_class_rows(probabilities, label, bins=bins, binning="equal-count")
    assert count.ece == pytest.approx(oracle.expected(gaps), rel=1e-9)
    assert count.ace == pytest.approx(fmean(gap for _, gap in gaps), rel=1e-9)
    assert (count.ccqs, count.ucqs) == (found.ccqs, found.ucqs)


def ause(rows: oracle.Rows, sort: oracle.OfRow, merit: oracle.OfRow) -> float:
    """Rounded, so that ties in the rows are ties in the oracle's sums too."""
    sign = -1 if sort is oracle.confidence else 1
    return oracle.ause(
        rows, lambda row: round(sign * sort(row), 12), lambda row: round(merit(row), 12)
    )


@pytest.mark.parametrize("seed", range(2))
def test_sparsification_is_that_of_the_papers_holistic_and_by_class(seed):
    probabilities, label = simulated(seed, n=60, classes=3)
    rows = as_rows(probabilities.round(6), label)
    found = evaluate_class_rows(np.array([p for p, _ in rows]), label)
    for m, merit in enumerate(MERITS):
        for s, sort in enumerate(SORTS):
            near = partial(pytest.approx, rel=1e-6, abs=1e-9)
            assert getattr(found, AUSE[3 * m + s]) == near(ause(rows, sort, merit))
            for c in range(3):
                own = [row for row in rows if oracle.predicted(row) == c]
                assert found.n_by_class[c] == len(own)
                assert found.ause_by_class[3 * m + s, c] == near(ause(own, sort, merit))
    curve = oracle.remaining(rows, lambda row: round(oracle.entropy(row), 12), oracle.wrong)
    for fraction, error in zip(found.rejection_fraction, found.rejection_error_rate, strict=True):
        assert error == pytest.approx(curve[int(fraction * 60 + 1e-9)], rel=1e-9)


def test_a_class_that_is_never_predicted_has_no_uncertainty_measures():
    probabilities = np.array([[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.3, 0.6, 0.1]])
    found = evaluate_class_rows(probabilities, np.array([0, 1, 1]))
    assert found.n_by_class.tolist() == [2, 1, 0]
    assert np.isnan(found.uce_by_class).tolist() == [False, False, True]
    assert np.isnan(found.ause_by_class).tolist() == [[False, False, True]] * 6
    assert found.cuce == pytest.approx(found.uce_by_class[:2].mean())
    json.dumps(class_as_json(found), allow_nan=False)


def test_the_json_object_keeps_the_keys_of_the_contract():
    probabilities, label = simulated(1)
    found = class_as_json(evaluate_class_rows(probabilities, label))
    assert set(found) == {
        *NUMBERS.split(),
        *BESIDES.split(),
        *(f"{name}_by_class" for name in AUSE),
    }
    assert found["aleatoric"] is None
    assert isinstance(found["rejection"], dict)
    assert found["rejection"]["fraction"][:3] == [0.0, 0.05, 0.1]
    assert all(isinstance(found[name], float) for name in NUMBERS.split())
    assert json.loads(json.dumps(found, allow_nan=False)) == found


@pytest.mark.parametrize("classes", [2, 10])
def test_all_right_and_certain_is_without_fault_and_one_bin_shows_its_gap(classes):
    label = np.arange(classes)
    found = evaluate_class_rows(np.eye(classes), label)
    for name in ("ece", "mce", "uce_entropy", "nll", "brier", "cece", *AUSE):
        assert getattr(found, name) == 0.0, name
    assert (found.ccqs, found.ucqs, found.underconfidence) == (1.0, 1.0, 0.0)
    assert math.isnan(found.overconfidence)
    found = evaluate_class_rows(np.array([[0.98, 0.02]] * 4), np.array([0, 1, 1, 1]))
    assert found.ccqs == pytest.approx(1 - 0.73 / 20 / 0.25)


def test_nothing_to_evaluate_says_what_was_left_out():
    with pytest.raises(EvaluationError, match="of 3 rows, 2 have no true class and 1 are no"):
        evaluate_class_rows(np.full((3, 2), [0.5, 0.5]), np.array([-1, 2, -1]))


# ---- read off sums


# Of the sum over a bin, per row: half the unit of the grid.
GRID = 2.0**-41
# What sorting decides; the rest is a matter of sums.
SORTED = {*AUSE, "ause_by_class", "ause_bound", "ause_bound_by_class", "rejection_error_rate"}


def opinionated(seed, n, classes, sharp):
    random = np.random.default_rng(seed)
    logits = random.normal(size=(n, 2, classes)) * sharp
    logits[:, :, 0] += random.choice([0.0, 2.0 * sharp])
    logits -= logits.max(axis=2, keepdims=True)
    opinions = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
    probabilities = opinions.mean(axis=1)
    drawn = (probabilities.cumsum(axis=1) > random.random((n, 1))).argmax(axis=1)
    label = np.where(random.random(n) < 0.2, random.integers(0, classes, n), drawn)
    return probabilities, label, opinions


seeds, counts = st.integers(0, 2**32 - 1), st.sampled_from([10, 15, 20])


@given(seeds, st.integers(1, 300), st.sampled_from([2, 3, 10]), st.floats(0.1, 12), counts)
def test_streaming_equals_exact_and_sparsification_stays_within_its_bound(
    seed, n, classes, sharp, bins
):
    rows = opinionated(seed, n, classes, sharp)
    streamed = read_classes(observe_classes(*rows), bins)
    exact = evaluate_class_rows(*rows[:2], opinions=rows[2], bins=bins)
    for field in fields(ClassEvaluation):
        found, expected = getattr(streamed, field.name), getattr(exact, field.name)
        if field.name in SORTED:
            continue
        if field.type in ("int", "IntArray"):
            assert np.array_equal(found, expected), field.name
        else:
            # An area over 0.25 makes four of a gap's rounding; a skewness is over the deviation³.
            off = 4 * GRID
            if field.name.endswith("_skewness"):
                values = getattr(judge_rows(*rows), field.name.removesuffix("_skewness"))
                off = max(off, 1e-17 / max(values.std(), 1e-9) ** 3)
            close = partial(np.testing.assert_allclose, rtol=1e-9, atol=off)
            close(found, expected, err_msg=field.name)
    for i, name in enumerate(AUSE):
        difference = abs(getattr(streamed, name) - getattr(exact, name))
        assert difference <= streamed.ause_bound[i] + 1e-9, name
    by_class = np.abs(streamed.ause_by_class - exact.ause_by_class)
    bound = streamed.ause_bound_by_class + 1e-9
    assert np.array_equal(np.isnan(by_class), np.isnan(bound))
    assert (np.isnan(bound) | (by_class <= bound)).all()
    assert not exact.ause_bound.any()


def test_of_replicas_only_those_with_opinions_tell_of_them():
    probabilities, label, opinions = opinionated(2, 50, 4, 2.0)
    with_opinions = observe_classes(probabilities, label, opinions)
    alone = read_classes(with_opinions)
    found = read_classes(with_opinions.merge(observe_classes(probabilities, label)))
    assert (found.n, found.opinions) == (100, 50)
    assert (found.aleatoric, found.epistemic) == (alone.aleatoric, alone.epistemic)
    assert found.aleatoric + found.epistemic == pytest.approx(alone.entropy, rel=1e-9)


def test_values_that_are_all_alike_have_no_skewness():
    rows = np.tile([[0.7, 0.2, 0.1], [0.7, 0.1, 0.2]], (30, 1)), np.tile([0, 1], 30)
    for found in (evaluate_class_rows(*rows), read_classes(observe_classes(*rows))):
        assert np.isnan((found.confidence_skewness, found.entropy_skewness)).all()


def test_a_slice_without_rows_has_no_measures():
    zero = no_class_statistics(10)
    early = zero.merge(observe_classes(*opinionated(1, 20, 10, 1.0)).negated())
    for statistics in (zero, early):
        found = read_classes(statistics)
        assert (found.n, found.classes) == (0, 10)
        for field in fields(ClassEvaluation):
            if field.type == "float":
                assert np.isnan(getattr(found, field.name)), field.name
        json.dumps(class_as_json(found), allow_nan=False)


# ---- rows: which are judged, what each tells, and where it is counted

THIRD = [0.2, 0.3, 0.5]


def judged(probabilities, label, opinions=None):
    several = None if opinions is None else np.array(opinions, float)
    return judge_rows(np.array(probabilities, float), np.array(label), several)


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


unit = st.one_of(
    st.floats(0, 1),
    st.integers(0, 60).map(lambda k: k / 60),
    st.sampled_from(DIVISORS).flatmap(lambda d: st.sampled_from(np.linspace(0, 1, d + 1).tolist())),
)


@given(unit, st.sampled_from([10, 15, 20, 60, 4]))
def test_micro_bins_make_up_the_bins_of_linspace_exactly(value, bins):
    edges = np.linspace(0, 1, bins + 1).tolist()
    for axis in (*AXES[:2], *COARSE_AXES[:2], SIXTIETHS):
        index = axis.index(np.array([value]))
        assert equal_width_bins(axis, bins)[index].tolist() == [oracle.bin_of(value, edges)]


def test_confident_detectors_are_told_apart_and_rounding_beyond_an_end_stays_in_the_last_bin():
    confidence = np.array([0.99, 0.999, 0.9999, 0.99995, 0.99999, 1.0])
    assert (np.diff(AXES[CONFIDENCE].index(confidence)) < 0).all()
    assert [axis.index(np.array([-0.0]))[0] for axis in AXES[1:]] == [0, 0, 0]
    assert AXES[3].index(np.array([1.001]))[0] == AXES[3].count - 1
    assert AXES[2].upper[AXES[2].index(np.array([149 * np.log(2)]))] < 128


@pytest.mark.parametrize("seed", range(5))
def test_opinions_that_differ_in_the_order_of_classes_alone_are_ties(seed):
    """Their entropies are sums in another order, which differ by rounding."""
    random = np.random.default_rng(seed)
    opinion = random.dirichlet(np.ones(5))
    found = evaluate_class_rows(
        np.array([random.permutation(opinion) for _ in range(400)]), random.integers(0, 5, 400)
    )
    assert found.ause_entropy == pytest.approx(found.ause, rel=1e-9)
