"""Vector scaling against its equation, temperature scaling and simulated distortions."""

import numpy as np
import pytest

from monitor.recalibration.classes import class_scaling
from monitor.recalibration.classes.class_scaling import VectorScaling, fit_vector_scaling
from monitor.recalibration.classes.probabilities import ClassRows, from_probabilities
from monitor.recalibration.recalibrator import UnfitData
from monitor.store.codec import InvalidDocument
from tests.recalibration.classes.class_sets import (
    distorted,
    evaluated,
    of_several_opinions,
    overconfident,
)
from tests.recalibration.rows import as_read


def test_weights_and_biases_act_as_in_the_equation():
    """softmax(T z + b), T = diag(t), Laves et al. 2019, eq. 26; Guo et al. 2017 with a bias."""
    weight, bias = (0.5, 1.5, 2.0), (0.3, -0.2, 0.0)
    sent = of_several_opinions(1, 20, classes=3).log_probabilities
    found = VectorScaling(weight, bias).apply(sent)
    for i in range(20):
        for m in range(5):
            each = [np.exp(weight[c] * sent[i, m, c] + bias[c]) for c in range(3)]
            assert found[i, m] == pytest.approx(np.array(each) / sum(each), abs=1e-14)


def test_equal_weights_without_bias_are_temperature_scaling():
    sent = overconfident(2, 50).log_probabilities
    found = VectorScaling((0.4,) * 10, (0.0,) * 10).apply(sent)
    assert found == pytest.approx(class_scaling.Temperature(2.5).apply(sent), abs=1e-14)


@pytest.mark.parametrize("seed", range(3))
def test_where_one_temperature_is_right_no_class_gets_its_own(seed):
    rows = overconfident([6, seed], 4000)
    assert fit_vector_scaling(rows).weight == pytest.approx(
        [1 / class_scaling.fit_temperature(rows).temperature] * 10
    )


@pytest.mark.parametrize("seed", range(3))
def test_a_distortion_of_single_classes_is_undone(seed):
    fitted, fresh = distorted([7, seed], 6000), distorted([8, seed], 6000)
    found, simple = (
        evaluated(model, fresh)
        for model in (fit_vector_scaling(fitted), class_scaling.fit_temperature(fitted))
    )
    assert found.cece <= 0.5 * simple.cece
    assert found.nll <= simple.nll - 0.1


def test_of_several_opinions_the_averaged_ones_are_fitted():
    random = np.random.default_rng(9)
    rows = of_several_opinions(9, 6000)
    tilted = rows.log_probabilities + np.array([0.0, 2.0, -2.0, 0.0])
    tilted -= np.log(np.exp(tilted).sum(axis=2, keepdims=True))
    rows = ClassRows(np.maximum(tilted, np.log(1e-12)), rows.label)
    half = random.permutation(6000)
    fitted, fresh = rows.take(half[:3000]), rows.take(half[3000:])
    found, simple = (
        evaluated(model, fresh)
        for model in (fit_vector_scaling(fitted), class_scaling.fit_temperature(fitted))
    )
    assert found.nll < simple.nll - 0.05
    assert found.ece < 0.05


def test_a_class_that_no_row_has_keeps_finite_parameters():
    some = distorted(10, 3000, 5)
    rows = some.take(np.flatnonzero(some.label != 3))
    model = fit_vector_scaling(rows)
    made = model.apply(rows.log_probabilities)[:, 0, 3]
    assert made.min() > 0
    assert made.mean() < 0.02


def test_rows_of_few_objects_are_not_taken_for_many():
    """A distortion that ten objects show over and over is no reason for classes of their own."""
    some = overconfident(11, 40, 4)
    again = np.repeat(np.arange(40), 50)
    rows = ClassRows(some.log_probabilities[again], some.label[again], again)
    assert fit_vector_scaling(rows).weight == pytest.approx(
        [1 / class_scaling.fit_temperature(rows).temperature] * 4
    )
    assert max(map(abs, fit_vector_scaling(rows).bias)) == 0.0


def test_rows_of_a_single_class_are_refused():
    some = distorted(12, 500, 4)
    with pytest.raises(UnfitData, match=r"all \d+ rows are of class 1: .* Use temperature"):
        fit_vector_scaling(some.take(np.flatnonzero(some.label == 1)))


def test_too_few_to_leave_some_out_are_refused():
    # One in three is wrong: the temperature is determined.
    said = from_probabilities(np.array([[[0.8, 0.1, 0.1]], [[0.1, 0.8, 0.1]], [[0.1, 0.8, 0.1]]]))
    with pytest.raises(UnfitData, match="3 rows are too few to leave out one of 5 parts"):
        fit_vector_scaling(ClassRows(said, np.array([0, 1, 2])))
    many = of_several_opinions(14, 100)
    one_object = ClassRows(many.log_probabilities, many.label, np.zeros(100, np.int64))
    with pytest.raises(UnfitData, match="100 rows are too few to leave out one of 5 parts"):
        fit_vector_scaling(one_object)


@pytest.mark.parametrize(
    ("weight", "bias", "named"),
    [
        (None, [0.0, 0.0], "'parameters.weight' is None"),
        ([1.0], [0.0], "'parameters.weight' has 1 entries"),
        ([1.0, 0.0], [0.0, 0.0], "'parameters.weight[1]' is 0.0"),
        ([1.0, float("nan")], [0.0, 0.0], "'parameters.weight[1]' is nan"),
        ([1.0, True], [0.0, 0.0], "'parameters.weight[1]' is True"),
        ([1.0, 2.0], [0.0], "'bias' has 1 entries: with 'weight' it must have 2"),
        ([1.0, 2.0], [0.0, float("inf")], "'parameters.bias[1]' is inf"),
        (
            [1.0, 2.0],
            [0.0, 10**400],
            "'parameters.bias[1]' is 1000000000000000000000000000000000000000000000",
        ),
    ],
)
def test_a_wrong_document_is_refused_with_the_field_named(weight, bias, named):
    with pytest.raises(InvalidDocument) as refusal:
        as_read(VectorScaling, {"weight": weight, "bias": bias})
    assert named in str(refusal.value)
