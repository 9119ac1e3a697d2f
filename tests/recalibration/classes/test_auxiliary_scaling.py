"""Auxiliary scaling against its equation, temperature scaling and what the paper warns of."""

import numpy as np
import pytest

from monitor.recalibration.classes import class_scaling
from monitor.recalibration.classes.class_scaling import AuxiliaryScaling, fit_auxiliary_scaling
from monitor.recalibration.classes.probabilities import from_probabilities
from monitor.store.codec import InvalidDocument
from tests.recalibration.classes.class_sets import (
    distorted,
    evaluated,
    made,
    of_several_opinions,
    overconfident,
)
from tests.recalibration.rows import as_read


def test_the_network_is_that_of_loops():
    """softmax(w z + b + W₂ φ(W₁ u + b₁)), φ(a) = a above 0 and 0.01 a below; eq. 27."""
    model = made("auxiliary-scaling", 4)
    assert isinstance(model, AuxiliaryScaling)
    sent = of_several_opinions(1, 25).log_probabilities
    found = model.apply(sent)
    for i in range(25):
        for m in range(5):
            z = sent[i, m]
            u = [
                min(max((z[c] - model.centre[c]) / model.spread[c], model.lowest[c]), 2.0)
                for c in range(4)
            ]
            unit = [
                sum(w * one for w, one in zip(row, u, strict=True)) + b
                for row, b in zip(model.hidden, model.hidden_bias, strict=True)
            ]
            active = [a if a > 0 else 0.01 * a for a in unit]
            score = [
                model.weight[c] * z[c]
                + model.bias[c]
                + sum(w * a for w, a in zip(model.output[c], active, strict=True))
                for c in range(4)
            ]
            p = np.exp(score) / np.exp(score).sum()
            assert found[i, m] == pytest.approx(p, abs=1e-13)


def test_a_distortion_of_single_classes_is_undone_further_than_by_vector_scaling():
    fitted, fresh = distorted(5, 6000), distorted(6, 6000)
    models = (
        fit_auxiliary_scaling(fitted),
        class_scaling.fit_vector_scaling(fitted),
        class_scaling.fit_temperature(fitted),
    )
    found, vector, simple = (evaluated(model, fresh) for model in models)
    assert found.cece <= 0.5 * simple.cece
    assert found.nll <= vector.nll - 0.01


@pytest.mark.parametrize("seed", range(3))
def test_with_many_classes_and_few_rows_it_does_not_overfit(seed):
    """The paper's own doubles the error of 100 classes, with every row of the fit right."""
    fitted, fresh = overconfident([7, seed], 500, 40), overconfident([8, seed], 4000, 40)
    found, simple = (
        evaluated(model, fresh)
        for model in (fit_auxiliary_scaling(fitted), class_scaling.fit_temperature(fitted))
    )
    assert found.nll <= simple.nll + 0.01


@pytest.mark.campaign
def test_a_seed_fixes_the_fit_and_another_gives_much_the_same():
    fitted, fresh = distorted(9, 3000, 5), distorted(10, 4000, 5)
    assert fit_auxiliary_scaling(fitted, seed=3) == fit_auxiliary_scaling(fitted, seed=3)
    losses = [evaluated(fit_auxiliary_scaling(fitted, seed), fresh).nll for seed in range(3)]
    assert np.ptp(losses) < 0.02


def test_beyond_what_the_fit_has_seen_the_network_adds_a_constant():
    model = made("auxiliary-scaling", 4)
    assert isinstance(model, AuxiliaryScaling)
    far = from_probabilities(
        np.array([[[1e-9, 1e-10, 1e-11, 1e-11]], [[1e-11, 1e-10, 1e-9, 1e-10]]])
    )
    made_of_it = np.log(model.apply(far)[:, 0])
    linear = np.array(model.weight) * far[:, 0]
    added = made_of_it - linear
    added -= added[:, :1]
    assert added[0] == pytest.approx(added[1], abs=1e-9)


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("weight", [1.0, 1.0, 1.0, 0.0], "'parameters.weight[3]' is 0.0"),
        ("weight", [1.0, 1.0, 1.0], "'bias' has 4 entries: with 'weight' it must have 3"),
        ("bias", [1.0], "'bias' has 1 entries: with 'weight' it must have 4"),
        ("spread", [1.0, 1.0, 1.0, 0.0], "'parameters.spread[3]' is 0.0"),
        ("lowest", None, "'parameters.lowest' is None"),
        ("hidden_bias", [], "'parameters.hidden_bias' has 0 entries"),
        ("hidden_bias", 3, "'parameters.hidden_bias' is 3"),
        (
            "hidden_bias",
            [0.0],
            "'hidden' has 4 rows of 4 entries: with 'hidden_bias' it must have 1 ro",
        ),
        (
            "hidden",
            [[1.0] * 4] * 3,
            "'hidden' has 3 rows of 4 entries: with 'hidden_bias' it must have 4 ro",
        ),
        (
            "hidden",
            [[1.0] * 3] * 4,
            "'hidden' has 4 rows of 3 entries: with 'hidden_bias' it must have 4 ro",
        ),
        ("hidden", [[float("nan")] * 4] * 4, "'parameters.hidden[0][0]' is nan"),
        ("output", [1.0] * 4, "'parameters.output[0]' is 1.0"),
        ("output", [["1"] * 4] * 4, "'parameters.output[0][0]' is '1'"),
    ],
)
def test_a_wrong_document_is_refused_with_the_field_named(field, value, named):
    parameters = {**made("auxiliary-scaling", 4).parameters(), field: value}
    with pytest.raises(InvalidDocument) as refusal:
        as_read(AuxiliaryScaling, parameters)
    assert named in str(refusal.value)
