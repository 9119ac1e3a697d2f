"""Class probabilities by the exact engine: against slow formulas from the papers, and at edges."""

import json
import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.statistics.class_evaluation import AUSE, class_as_json, evaluate_class_rows
from monitor.statistics.evaluation import EvaluationError
from tests.calibration import class_oracle as oracle

# What `evaluate --json` prints is a contract.
CONTRACT = {
    *("ece", "ece2", "mce", "ace", "cece", "uce_entropy", "cuce", "nll", "brier", "sharpness"),
    *("overconfidence", "underconfidence", "ause", "ause_entropy", "ccqs", "ucqs"),
}
BESIDES = {
    *("n", "classes", "accuracy", "rows_without_truth", "rows_refused", "n_opinions", "entropy"),
    *("ause_cross_entropy", "ause_brier", "ause_brier_entropy", "ause_brier_cross_entropy"),
    *("ause_bound", "n_by_class", "ece_by_class", "uce_by_class"),
    *(f"{name}_by_class" for name in AUSE),
    *("aleatoric", "epistemic", "rejection", "counts_confidence", "counts_entropy"),
}
SORTS = (oracle.confidence, oracle.entropy, oracle.cross_entropy)
MERITS = (oracle.wrong, oracle.brier)
quick = settings(max_examples=40)


def simulated(seed, n=150, classes=5, sharp=1.0):
    """Probabilities, some of them with ties, and labels drawn from softer ones."""
    random = np.random.default_rng(seed)
    logits = 2 * random.normal(size=(n, classes))
    logits[random.random(n) < 0.2] = logits[0]
    true = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    claimed = true**sharp / (true**sharp).sum(axis=1, keepdims=True)
    label = (true.cumsum(axis=1) > random.random((n, 1))).argmax(axis=1)
    return claimed, label


def as_rows(probabilities, label) -> oracle.Rows:
    return list(zip(probabilities.tolist(), label.tolist(), strict=True))


def uncertainty(row, sort):
    return -sort(row) if sort is oracle.confidence else sort(row)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("bins", [10, 15, 20, 7])
def test_measures_are_those_of_the_papers(seed, bins):
    probabilities, label = simulated(seed, sharp=1 + seed / 2)
    rows = as_rows(probabilities, label)
    edges = np.linspace(0, 1, bins + 1).tolist()
    found = evaluate_class_rows(probabilities, label, bins=bins)
    over_confidence = oracle.gaps(rows, oracle.confidence, oracle.right, edges)
    over_entropy = oracle.gaps(rows, oracle.entropy, oracle.wrong, edges)
    of_class = range(5)
    expected = {
        "accuracy": sum(map(oracle.right, rows)) / len(rows),
        "ece": oracle.expected(over_confidence),
        "ece2": oracle.expected(over_confidence, 2),
        "mce": max(gap for _, gap in over_confidence),
        "ace": sum(gap for _, gap in over_confidence) / len(over_confidence),
        "cece": sum(oracle.classwise_ece(rows, c, edges) for c in of_class) / 5,
        "uce_entropy": oracle.expected(over_entropy),
        "cuce": np.nanmean([oracle.classwise_uce(rows, c, edges) for c in of_class]),
        "nll": sum(map(oracle.cross_entropy, rows)) / len(rows),
        "brier": sum(map(oracle.brier, rows)) / len(rows),
        "entropy": sum(map(oracle.entropy, rows)) / len(rows),
        "sharpness": oracle.sharpness(rows),
        "overconfidence": oracle.mean_where(rows, oracle.confidence, oracle.wrong),
        "underconfidence": oracle.mean_where(rows, lambda r: 1 - max(r[0]), oracle.right),
        "ccqs": oracle.area_score(rows, oracle.confidence, oracle.right, edges),
        "ucqs": oracle.area_score(rows, oracle.entropy, oracle.wrong, edges),
    }
    for name, value in expected.items():
        assert getattr(found, name) == pytest.approx(value, rel=1e-9), name
    counts = [len(cell) for cell in oracle.binned(rows, oracle.confidence, edges)]
    assert found.counts_confidence.tolist() == counts
    counts = [len(cell) for cell in oracle.binned(rows, oracle.entropy, edges)]
    assert found.counts_entropy.tolist() == counts


def rounded_uncertainty(row, *, sort):
    return round(uncertainty(row, sort), 12)


def rounded_merit(row, *, merit):
    return round(merit(row), 12)


@pytest.mark.parametrize("seed", range(3))
def test_sparsification_is_that_of_the_papers_holistic_and_by_class(seed):
    probabilities, label = simulated(seed, n=60, classes=3)
    # Ties must be ties for the oracle's sums too.
    rows = as_rows(probabilities.round(6), label)
    found = evaluate_class_rows(np.array([p for p, _ in rows]), label)
    for m, merit in enumerate(MERITS):
        for s, sort in enumerate(SORTS):
            key = partial(rounded_uncertainty, sort=sort)
            rounded = partial(rounded_merit, merit=merit)
            name = AUSE[3 * m + s]
            whole = oracle.ause(rows, key, rounded)
            assert getattr(found, name) == pytest.approx(whole, rel=1e-6, abs=1e-9), name
            for c in range(3):
                own = [row for row in rows if oracle.predicted(row) == c]
                assert found.n_by_class[c] == len(own)
                assert found.ause_by_class[3 * m + s, c] == pytest.approx(
                    oracle.ause(own, key, rounded), rel=1e-6, abs=1e-9
                )
    curve = oracle.remaining(rows, lambda row: round(oracle.entropy(row), 12), oracle.wrong)
    for fraction, error in zip(found.rejection_fraction, found.rejection_error_rate, strict=True):
        assert error == pytest.approx(curve[int(fraction * 60 + 1e-9)], rel=1e-9)


@pytest.mark.parametrize("bins", [10, 15])
def test_bins_of_equal_count_are_cut_at_the_quantiles_of_the_rows(bins):
    probabilities, label = simulated(3)
    rows = as_rows(probabilities, label)
    found = evaluate_class_rows(probabilities, label, bins=bins, binning="equal-count")
    edges = np.quantile(probabilities.max(axis=1), np.linspace(0, 1, bins + 1)).tolist()
    gaps = oracle.gaps(rows, oracle.confidence, oracle.right, edges)
    assert found.ece == pytest.approx(oracle.expected(gaps), rel=1e-9)
    assert found.ace == pytest.approx(sum(gap for _, gap in gaps) / len(gaps), rel=1e-9)
    width = evaluate_class_rows(probabilities, label, bins=bins)
    assert (found.ccqs, found.ucqs) == (width.ccqs, width.ucqs)


@quick
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 80),
    st.sampled_from([2, 3, 10]),
    st.floats(0.2, 5),
    st.sampled_from([1, 10, 20]),
)
def test_over_and_underconfidence_differ_by_ece_at_most(seed, n, classes, sharp, bins):
    found = evaluate_class_rows(*simulated(seed, n, classes, sharp), bins=bins)
    # |o P(wrong) − u P(right)| ≤ ECE ≤ ECE_2 ≤ MCE; a mean over no rows has no weight.
    over = 0.0 if math.isnan(found.overconfidence) else found.overconfidence
    under = 0.0 if math.isnan(found.underconfidence) else found.underconfidence
    difference = abs(over * (1 - found.accuracy) - under * found.accuracy)
    assert difference <= found.ece + 1e-12
    assert found.ece <= found.ece2 + 1e-12 <= found.mce + 2e-12


@quick
@given(st.integers(0, 2**32 - 1), st.randoms(use_true_random=False))
def test_the_order_of_the_rows_changes_nothing(seed, random):
    probabilities, label = simulated(seed, n=40)
    order = random.sample(range(40), 40)
    one = class_as_json(evaluate_class_rows(probabilities, label))
    two = class_as_json(evaluate_class_rows(probabilities[order], label[order]))
    for name in AUSE:
        assert one[name] == pytest.approx(two[name], rel=1e-12, abs=1e-15)
    assert one["counts_confidence"] == two["counts_confidence"]


def test_two_of_ten_classes_are_no_binary_problem():
    probabilities, label = simulated(5, n=300, classes=10)
    two = np.isin(label, (3, 8))
    found = evaluate_class_rows(probabilities[two], label[two])
    rows = as_rows(probabilities[two], label[two])
    edges = np.linspace(0, 1, 21).tolist()
    assert found.classes == 10 and found.ece_by_class.shape == (10,)
    # A class that was never seen still has its claims, all of them wrong.
    assert found.ece_by_class[0] == pytest.approx(np.mean(probabilities[two, 0]), rel=1e-9)
    assert found.entropy == pytest.approx(np.mean([oracle.entropy(row) for row in rows]))
    assert found.ece == pytest.approx(
        oracle.expected(oracle.gaps(rows, oracle.confidence, oracle.right, edges))
    )


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
    assert set(found) == CONTRACT | BESIDES
    assert found["aleatoric"] is None
    assert isinstance(found["rejection"], dict)
    assert found["rejection"]["fraction"][:3] == [0.0, 0.05, 0.1]
    assert all(isinstance(found[name], float) for name in CONTRACT)
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_the_score_of_a_detector_in_one_bin_sees_its_gap():
    found = evaluate_class_rows(np.array([[0.98, 0.02]] * 4), np.array([0, 1, 1, 1]))
    assert found.ccqs == pytest.approx(1 - 0.73 / 20 / 0.25)


@pytest.mark.parametrize("classes", [2, 10])
def test_all_right_and_certain_is_without_fault(classes):
    label = np.arange(classes)
    found = evaluate_class_rows(np.eye(classes), label)
    for name in ("ece", "mce", "uce_entropy", "nll", "brier", "cece", *AUSE):
        assert getattr(found, name) == 0.0, name
    assert (found.ccqs, found.ucqs, found.underconfidence) == (1.0, 1.0, 0.0)
    assert math.isnan(found.overconfidence)


def test_nothing_to_evaluate_says_what_was_left_out():
    with pytest.raises(EvaluationError, match="of 3 rows, 2 have no true class and 1 are no"):
        evaluate_class_rows(np.full((3, 2), [0.5, 0.5]), np.array([-1, 2, -1]))
