"""Laws of every recalibrator of class probabilities, fitted or read from a document."""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from monitor.recalibration.classes.class_selection import CLASS_FITS, CLASS_METHODS
from monitor.recalibration.classes.probabilities import (
    ClassRows,
    from_logits,
    from_probabilities,
)
from monitor.recalibration.recalibrator import UnfitData
from monitor.store.codec import InvalidDocument
from tests.laws import assert_same
from tests.recalibration.classes.class_sets import METHODS, distorted, made, of_several_opinions
from tests.recalibration.rows import as_read, json_values

SEVERAL = of_several_opinions(1, 800)


def opinions(seed, n, m, classes):
    random = np.random.default_rng(seed)
    return from_logits(random.normal(0.0, 4.0, (n, m, classes)))


# ---- what comes out


@settings(max_examples=40)
@given(
    st.sampled_from(METHODS),
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


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("classes", [2, 10, 80])
def test_probabilities_of_many_and_of_two_classes_add_up_to_1(method, classes):
    sent = opinions(2, 300, 2, classes)
    sent[0] = from_probabilities(np.eye(classes)[:2])
    sent[1] = from_probabilities(np.zeros(classes))
    found = made(method, classes).apply(sent)
    assert np.abs(found.sum(axis=2) - 1).max() <= 1e-12
    assert found.min() >= 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("classes", [2, 10, 80])
@pytest.mark.parametrize("m", [1, 3])
def test_each_detection_is_recalibrated_by_itself_to_the_last_bit(method, classes, m):
    model = made(method, classes)
    sent = opinions(3, 67, m, classes)
    whole = model.apply(sent)
    for row in range(67):
        assert_same(model.apply(sent[row : row + 1]), whole[row : row + 1])
    assert_same(model.apply(sent[5:40]), whole[5:40])


@pytest.mark.parametrize("method", METHODS)
def test_each_opinion_is_recalibrated_by_itself(method):
    model = made(method, 10)
    sent = opinions(4, 20, 3, 10)
    whole = model.apply(sent)
    for m in range(3):
        assert_same(model.apply(sent[:, m : m + 1]), np.ascontiguousarray(whole[:, m : m + 1]))


@pytest.mark.parametrize("method", METHODS)
def test_a_row_of_nan_stays_one_and_leaves_its_neighbours_alone(method):
    model = made(method, 10)
    sent = opinions(5, 12, 2, 10)
    before = model.apply(sent)
    broken = sent.copy()
    broken[3], broken[7, 1, 4] = np.nan, np.nan
    after = model.apply(broken)
    assert np.isnan(after[3]).all()
    assert np.isnan(after[7, 1]).all()
    kept = np.ones((12, 2), bool)
    kept[3], kept[7, 1] = False, False
    assert np.array_equal(after[kept], before[kept])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n", [0, 1, 9])
def test_recalibration_leaves_its_argument_alone(method, n):
    sent = opinions(6, n, 1, 10)
    before = sent.copy()
    found = made(method, 10).apply(sent)
    assert_same(sent, before)
    assert found.shape == (n, 1, 10)
    assert not np.shares_memory(found, sent)


def test_the_identity_changes_a_sum_off_1_and_nothing_else():
    sent = np.array([[[0.2, 0.3, 0.5]], [[0.2, 0.3, 0.4995]]])
    found = made("class-identity", 3).apply(from_probabilities(sent))
    assert found[0] == pytest.approx(sent[0], abs=1e-15)
    assert found[1] == pytest.approx(sent[1] / 0.9995, abs=1e-15)


# ---- documents


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("classes", [2, 10])
def test_a_document_read_back_is_the_same_to_the_last_bit(method, classes):
    model = made(method, classes)
    again = as_read(CLASS_METHODS[method], json.loads(json.dumps(model.parameters())))
    assert again == model
    assert hash(again) == hash(model)
    sent = opinions(8, 10, 1, classes)
    assert_same(again.apply(sent), model.apply(sent))


@settings(max_examples=300)
@given(st.sampled_from([m for m in METHODS if m != "class-identity"]), st.data())
def test_whatever_a_document_holds_it_is_refused_or_serves(method, data):
    parameters = made(method, 4).parameters()
    parameters[data.draw(st.sampled_from(sorted(parameters)))] = data.draw(json_values)
    try:
        model = as_read(CLASS_METHODS[method], parameters)
    except InvalidDocument:
        return
    found = model.apply(opinions(9, 5, 1, model.classes or 4))
    assert np.abs(found.sum(axis=2) - 1).max() <= 1e-12


# ---- fits


@pytest.mark.parametrize("method", CLASS_FITS)
def test_the_order_of_rows_changes_nothing_to_the_last_bit(method):
    random = np.random.default_rng(10)
    rows = distorted(11, 600, 4)
    twice = np.append(np.arange(600), random.integers(0, 600, 100))
    track = random.integers(-1, 120, 700)
    rows = ClassRows(rows.log_probabilities[twice], rows.label[twice], track)
    found = CLASS_FITS[method](rows)
    for _ in range(2):
        again = CLASS_FITS[method](rows.take(random.permutation(700)))
        assert again == found


@pytest.mark.parametrize("method", CLASS_FITS)
def test_a_fit_to_several_opinions_is_that_to_one_if_they_agree(method):
    rows = distorted(12, 1500, 3)
    alike = ClassRows(np.repeat(rows.log_probabilities, 4, axis=1), rows.label)
    sent = opinions(13, 50, 1, 3)
    found, expected = (CLASS_FITS[method](r).apply(sent) for r in (alike, rows))
    assert np.abs(found - expected).max() < 1e-9


@pytest.mark.parametrize("method", CLASS_FITS)
def test_a_fit_leaves_its_rows_alone(method):
    before = SEVERAL.log_probabilities.copy()
    CLASS_FITS[method](SEVERAL)
    assert_same(SEVERAL.log_probabilities, before)


@pytest.mark.parametrize("method", CLASS_FITS)
@pytest.mark.parametrize("classes", [2, 30])
def test_two_classes_and_many_can_be_fitted(method, classes):
    rows = distorted(14, 900, classes)
    model = CLASS_FITS[method](rows)
    assert model.classes in (None, classes)
    found = model.apply(rows.log_probabilities)
    assert np.isfinite(np.log(found)).all()


ONE_CLASS, NO_PARTS = "all 1 rows are of class 2", "2 rows are too few to leave out one of 5 parts"


@pytest.mark.parametrize(
    ("method", "n", "refused"),
    [
        ("temperature", 1, "1 rows are the likelier the lower the temperature"),
        ("temperature", 2, None),
        ("temperature", 7, None),
        ("vector-scaling", 1, ONE_CLASS),
        ("vector-scaling", 2, NO_PARTS),
        ("vector-scaling", 7, None),
        ("auxiliary-scaling", 1, ONE_CLASS),
        ("auxiliary-scaling", 2, NO_PARTS),
        ("auxiliary-scaling", 7, None),
        *(
            ("classwise-isotonic", n, f"10 independent rows of it and 10 of others among {n}")
            for n in (1, 2, 7)
        ),
    ],
)
def test_of_a_few_rows_a_fit_is_finite_or_refused(method, n, refused):
    few = of_several_opinions(15, n)
    if refused is None:
        assert np.isfinite(CLASS_FITS[method](few).apply(SEVERAL.log_probabilities)).all()
    else:
        with pytest.raises(UnfitData, match=refused):
            CLASS_FITS[method](few)


@pytest.mark.parametrize("method", [m for m in CLASS_FITS if m != "class-identity"])
def test_labels_of_a_single_class_are_fitted_or_refused(method):
    some = distorted(16, 600, 4)
    rows = some.take(np.flatnonzero(some.label == 2))
    try:
        model = CLASS_FITS[method](rows)
    except UnfitData as refusal:
        assert "class" in str(refusal)
    else:
        assert method == "temperature"
        assert np.isfinite(np.log(model.apply(rows.log_probabilities))).all()


@pytest.mark.parametrize("method", CLASS_FITS)
def test_zero_probabilities_can_be_fitted(method):
    rows = distorted(17, 800, 4)
    hard = np.exp(rows.log_probabilities)
    hard[hard < 0.05] = 0.0
    model = CLASS_FITS[method](ClassRows(from_probabilities(hard), rows.label))
    assert np.isfinite(model.apply(from_probabilities(hard))).all()


def test_every_method_that_can_be_fitted_can_be_read_and_the_other_way():
    assert list(CLASS_FITS) == list(CLASS_METHODS)


def test_serving_does_not_load_what_only_a_fit_needs():
    found = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, monitor.recalibration.classes.class_selection as s; "
            "print(sorted(m for m in sys.modules if m in ('scipy.optimize', 'scipy.stats')))",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "[]"
