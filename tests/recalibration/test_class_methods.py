"""Recalibration of class probabilities: the laws of every method, each method against its equation,
simulated distortions, and where rows are few."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.optimize import minimize_scalar

from monitor.recalibration.class_probabilities import (
    FEWEST,
    MOST_KNOTS,
    UNCHANGED,
    ClassRows,
    as_columns,
    averaged_loss,
    fit_classwise_isotonic,
    from_logits,
    from_probabilities,
)
from monitor.recalibration.class_scaling import (
    AuxiliaryScaling,
    NetworkFamily,
    VectorFamily,
    VectorScaling,
    fit_auxiliary_scaling,
    fit_temperature,
    fit_vector_scaling,
)
from monitor.recalibration.fitting import CLASS_FITS
from monitor.recalibration.recalibrator import UnfitData
from monitor.recalibration.selection import CLASS_METHODS
from monitor.statistics.class_evaluation import evaluate_class_rows
from tests.laws import assert_same
from tests.recalibration.rows import drawn, made
from tests.reference.datasets import all_sets


def overconfident(seed, n, classes=10, temperature=2.0):
    """Logits that are too large by one factor."""
    random = np.random.default_rng(seed)
    z = random.normal(0.0, 1.6, (n, classes))
    return ClassRows(from_logits(z * temperature)[:, None], drawn(z, random))


def distorted(seed, n, classes=10):
    """Logits whose weight grows from class to class, with a bias of changing sign."""
    random = np.random.default_rng(seed)
    z = random.normal(0.0, 1.6, (n, classes))
    weight = np.exp(np.linspace(np.log(0.6), np.log(2.5), classes))
    bias = np.where(np.arange(classes) % 2, 1.0, -1.0)
    return ClassRows(from_logits(z * weight + bias)[:, None], drawn(z, random))


def of_several_opinions(seed, n, opinions=5, classes=4):
    """Opinions that are too sure, each of its own noise about what labels are drawn from."""
    random = np.random.default_rng(seed)
    z = random.normal(0.0, 1.5, (n, classes))
    noise = random.normal(0.0, 0.8, (n, opinions, classes))
    return ClassRows(from_logits(2.0 * (z[:, None] + noise)), drawn(z, random))


@cache
def reference():
    """Rows 0:10000 and 10000:20000 of a reference set."""
    data = all_sets()["cls_overconfident"]
    rows = ClassRows(from_probabilities(data["prob"])[:, None], data["label"])
    return rows.take(np.arange(10_000)), rows.take(np.arange(10_000, 20_000))


def evaluated(recalibrator, rows):
    """Measures of the averaged recalibrated opinions."""
    return evaluate_class_rows(recalibrator.apply(rows.log_probabilities).mean(axis=1), rows.label)


def opinions(seed, n, m, classes):
    random = np.random.default_rng(seed)
    return from_logits(random.normal(0.0, 4.0, (n, m, classes)))


# ---- what comes out


@given(
    st.sampled_from([*CLASS_METHODS]),
    st.integers(0, 5),
    arrays.arrays(
        np.float64,
        st.tuples(st.integers(1, 4), st.integers(1, 3), st.just(4)),
        elements=st.floats(0.0, 1.0),
    ),
)
def test_whatever_is_sent_probabilities_come_back(method, seed, sent):
    found = made(method, 4, seed).apply(from_probabilities(sent))
    assert found.shape == sent.shape
    assert found.min() >= 0
    assert found.max() <= 1
    assert np.abs(found.sum(axis=2) - 1).max() <= 1e-12


@pytest.mark.parametrize("method", CLASS_METHODS)
@pytest.mark.parametrize(("classes", "m"), [(2, 1), (10, 3), (80, 1)])
def test_each_opinion_is_recalibrated_by_itself_to_the_last_bit(method, classes, m):
    model = made(method, classes)
    sent = opinions(3, 67, m, classes)
    before, whole = sent.copy(), model.apply(sent)
    assert_same(sent, before)
    for row in range(67):
        assert_same(model.apply(sent[row : row + 1]), whole[row : row + 1])
    assert model.apply(sent[:0]).shape == (0, m, classes)
    # An opinion of NaN stays one, and leaves its neighbours alone.
    sent[3, 0, 1] = np.nan
    after = model.apply(sent)
    assert np.isnan(after[3, 0]).all()
    after[3, 0] = whole[3, 0]
    assert_same(after, whole)


# ---- fits


@pytest.mark.parametrize("method", CLASS_FITS)
def test_the_order_of_rows_changes_nothing_to_the_last_bit(method):
    random = np.random.default_rng(10)
    rows = distorted(11, 300, 3)
    twice = np.append(np.arange(300), random.integers(0, 300, 50))
    track = random.integers(-1, 60, 350)
    rows = ClassRows(rows.log_probabilities[twice], rows.label[twice], track)
    turned = rows.take(random.permutation(350))
    assert CLASS_FITS[method](turned) == CLASS_FITS[method](rows)


@pytest.mark.parametrize("method", CLASS_FITS)
def test_a_fit_to_several_opinions_is_that_to_one_if_they_agree(method):
    rows = distorted(12, 400, 3)
    alike = ClassRows(np.repeat(rows.log_probabilities, 4, axis=1), rows.label)
    sent = opinions(13, 50, 1, 3)
    found, expected = (CLASS_FITS[method](r).apply(sent) for r in (alike, rows))
    assert np.abs(found - expected).max() < 1e-9


@pytest.mark.parametrize(
    ("method", "n", "refused"),
    [
        ("temperature", 1, "1 rows are the likelier the lower the temperature"),
        ("temperature", 2, None),
        ("vector-scaling", 1, "all 1 rows are of class 2"),
        ("vector-scaling", 2, "2 rows are too few to leave out one of 5 parts"),
        ("vector-scaling", 7, None),
        ("auxiliary-scaling", 2, "2 rows are too few to leave out one of 5 parts"),
        ("auxiliary-scaling", 7, None),
        ("classwise-isotonic", 7, "10 independent rows of it and 10 of others among 7"),
    ],
)
def test_of_a_few_rows_a_fit_is_finite_or_refused(method, n, refused):
    few = of_several_opinions(15, n)
    if refused is None:
        sent = of_several_opinions(1, 800).log_probabilities
        assert np.isfinite(CLASS_FITS[method](few).apply(sent)).all()
    else:
        with pytest.raises(UnfitData, match=refused):
            CLASS_FITS[method](few)


# ---- rows and their loss

ROWS = of_several_opinions(1, 200, opinions=3)


def test_rows_of_a_track_are_in_one_part_and_parts_are_about_equal():
    track = np.repeat(np.arange(50), 4)
    track[:20] = -1
    fold = ClassRows(ROWS.log_probabilities, ROWS.label, track).fold(5)
    for one in range(5, 50):
        assert np.unique(fold[track == one]).size == 1
    assert np.bincount(fold, minlength=5).min() >= 20
    assert np.bincount(ROWS.fold(5)).tolist() == [40] * 5


def test_alike_rows_of_one_object_are_worth_less():
    single = of_several_opinions(6, 300, opinions=1)
    five = np.repeat(np.arange(300), 5)
    tracked = ClassRows(single.log_probabilities[five], single.label[five], five)
    assert tracked.weight == pytest.approx(0.2, rel=0.02)
    assert single.weight == 1.0


# ---- temperature


def slow_loss(rows: ClassRows, temperature: float) -> float:
    """Mean of −log 1/N Σ_i softmax(z_i / T)_y, Laves et al. 2019, eq. 25; row by row."""
    total = 0.0
    for opinions, y in zip(rows.log_probabilities, rows.label, strict=True):
        p = 0.0
        for z in opinions:
            weights = [np.exp(one / temperature) for one in z]
            p += weights[y] / sum(weights) / len(opinions)
        total -= np.log(p)
    return total / rows.n


@pytest.mark.parametrize(
    "rows",
    [overconfident(1, 300, 4), overconfident(2, 200, 2, 0.5), of_several_opinions(3, 150)],
    ids=["too sure", "two classes, too unsure", "five opinions"],
)
def test_it_is_at_the_optimum_of_the_loss(rows):
    found = fit_temperature(rows).temperature
    best = minimize_scalar(lambda at: slow_loss(rows, np.exp(at)), bounds=(-3, 3))
    assert found == pytest.approx(np.exp(best.x), abs=1e-3)
    assert slow_loss(rows, found) <= best.fun + 1e-12


def test_the_reference_set_is_calibrated_no_worse_than_by_the_reference():
    fitted, fresh = reference()
    model = fit_temperature(fitted)
    # fits.json of the reference: T = 1.995320043599942, ECE 0.016946978413340873
    assert model.temperature == pytest.approx(1.995320044, abs=1e-6)
    found = evaluated(model, fresh)
    assert found.ece <= 0.016946978413340873
    assert found.nll == pytest.approx(1.5431878396, abs=1e-9)


SOME = overconfident(8, 400).log_probabilities


@pytest.mark.parametrize(
    ("sent", "label", "refused"),
    [
        (SOME, SOME[:, 0].argmax(axis=1), r"lower the temperature, below 0\.01.*Add rows in"),
        (from_probabilities(np.eye(3))[:, None], [0, 1, 2], "lower the temperature"),
        (SOME, SOME[:, 0].argmin(axis=1), "higher the temperature, beyond 100.*order of the"),
        (from_probabilities(np.ones((3, 1, 3)) / 3), [0, 1, 2], "higher the temperature"),
    ],
)
def test_rows_that_are_always_right_or_say_nothing_do_not_determine_it(sent, label, refused):
    with pytest.raises(UnfitData, match=refused):
        fit_temperature(ClassRows(sent, np.array(label)))


# ---- vector and auxiliary scaling


def test_weights_and_biases_act_as_in_the_equation():
    """softmax(T z + b), T = diag(t), Laves et al. 2019, eq. 26; Guo et al. 2017 with a bias."""
    weight, bias = (0.5, 1.5, 2.0), (0.3, -0.2, 0.0)
    sent = of_several_opinions(1, 20, classes=3).log_probabilities
    found = VectorScaling(weight, bias).apply(sent)
    for i in range(20):
        for m in range(5):
            each = [np.exp(weight[c] * sent[i, m, c] + bias[c]) for c in range(3)]
            assert found[i, m] == pytest.approx(np.array(each) / sum(each), abs=1e-14)


def test_where_one_temperature_is_right_no_class_gets_its_own():
    rows = overconfident(6, 4000)
    expected = [1 / fit_temperature(rows).temperature] * 10
    assert fit_vector_scaling(rows).weight == pytest.approx(expected)


def test_the_network_is_that_of_loops():
    """softmax(w z + b + W₂ φ(W₁ u + b₁)), φ(a) = a above 0 and 0.01 a below; eq. 27."""
    model = made("auxiliary-scaling", 4)
    assert isinstance(model, AuxiliaryScaling)
    sent = of_several_opinions(1, 25).log_probabilities
    found = model.apply(sent)
    for i in range(25):
        for m in range(5):
            z = sent[i, m]
            u = [(z[c] - model.centre[c]) / model.spread[c] for c in range(4)]
            u = [min(max(u[c], model.lowest[c]), 2.0) for c in range(4)]
            unit = np.array(model.hidden) @ u + model.hidden_bias
            active = [a if a > 0 else 0.01 * a for a in unit]
            score = [
                model.weight[c] * z[c] + model.bias[c] + np.dot(model.output[c], active)
                for c in range(4)
            ]
            p = np.exp(score) / np.exp(score).sum()
            assert found[i, m] == pytest.approx(p, abs=1e-13)


@pytest.mark.campaign
def test_with_many_classes_and_few_rows_it_does_not_overfit():
    """The paper's own doubles the error of 100 classes, with every row of the fit right."""
    fitted, fresh = overconfident([7, 0], 500, 40), overconfident([8, 0], 4000, 40)
    fits = (fit_auxiliary_scaling, fit_temperature)
    found, simple = (evaluated(fit(fitted), fresh) for fit in fits)
    assert found.nll <= simple.nll + 0.01


def of_vector(classes):
    return VectorFamily(0.7, classes)


def of_network(classes):
    random = np.random.default_rng(4)
    w, b, m, s = (random.uniform(0.5, 2.0, (classes, 1)) for _ in range(4))
    return NetworkFamily(w, b, -m, s, random.normal(0.0, 0.5, (2, classes)))


@pytest.mark.parametrize("family_of", [of_vector, of_network])
@pytest.mark.parametrize("rows", [distorted(3, 40, 3), of_several_opinions(4, 30)])
def test_the_slope_is_that_of_small_steps(rows, family_of):
    family, columns = family_of(rows.classes), as_columns(rows.log_probabilities)
    at = np.random.default_rng(5).normal(0.0, 0.3, len(family.bounds))

    def loss(parameters):
        return averaged_loss(family.scores(parameters, columns), rows.label)[0].sum()

    by_score = averaged_loss(family.scores(at, columns), rows.label)[1]
    found = family.slope(at, columns, by_score)
    for i, step in enumerate(1e-6 * np.eye(at.size)):
        assert found[i] == pytest.approx((loss(at + step) - loss(at - step)) / 2e-6, abs=1e-5)


# ---- classwise isotonic regression


def pooled(sent, true):
    """Blocks [Σ log p, rows, hits] of pool adjacent violators, one row after the other."""
    blocks: list[list[float]] = []
    for at in np.unique(sent):
        here = sent == at
        blocks.append([at * here.sum(), here.sum(), true[here].sum()])
        while len(blocks) > 1 and blocks[-2][2] / blocks[-2][1] >= blocks[-1][2] / blocks[-1][1]:
            last = blocks.pop()
            blocks[-1] = [one + other for one, other in zip(blocks[-1], last, strict=True)]
    return np.array(blocks)


@pytest.mark.parametrize("classes", [2, 4])
def test_knots_stand_at_the_pooled_blocks(classes):
    rows = distorted(1, 400, classes)
    for c, one in enumerate(fit_classwise_isotonic(rows).knots):
        sent, made = one.sent, one.made
        true = rows.label == c
        sums, n, hits = pooled(rows.log_probabilities[:, 0, c], true).T
        assert sent == pytest.approx(sums / n, abs=1e-12)
        share = (true.sum() + 1) / (400 + classes)
        expected = (hits + share) / (n + 1)
        rising = np.diff(expected, prepend=-1, append=2) > 0
        kept = rising[:-1] & rising[1:]
        assert np.exp(made)[kept] == pytest.approx(expected[kept], abs=1e-12)


def test_a_class_with_few_rows_is_left_as_it_is():
    rows = distorted(6, 1000, 4)
    rare = np.flatnonzero(rows.label == 2)[FEWEST - 1 :]
    kept = np.setdiff1d(np.arange(1000), rare)
    knots = fit_classwise_isotonic(rows.take(kept)).knots
    assert knots[2] == UNCHANGED
    assert UNCHANGED not in (knots[0], knots[1], knots[3])
    one_more = fit_classwise_isotonic(rows.take(np.append(kept, rare[0])))
    assert one_more.knots[2] != UNCHANGED


def test_knots_are_bounded_however_many_rows_there_are():
    rows = overconfident(8, 400_000, 2, temperature=1.0)
    sizes = [len(one.sent) for one in fit_classwise_isotonic(rows).knots]
    assert max(sizes) == MOST_KNOTS


def test_no_probability_becomes_0_or_1_and_no_row_is_left_without_a_sum():
    rows = of_several_opinions(9, 2000, opinions=1)
    certain = from_probabilities(np.eye(4)[rows.label])[:, None]
    model = fit_classwise_isotonic(ClassRows(certain, rows.label))
    nothing = from_probabilities(np.zeros((1, 1, 4)))
    made = model.apply(np.concatenate([certain, nothing]))
    assert made.min() > 0
    assert made.max() < 1
    assert made[-1, 0].sum() == pytest.approx(1.0, abs=1e-12)
