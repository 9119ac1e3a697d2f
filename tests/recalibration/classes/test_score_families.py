"""What vector and auxiliary scaling, which descend the same loss by slopes of their own, share."""

import numpy as np
import pytest

from monitor.recalibration.classes import class_scaling
from monitor.recalibration.classes.class_scaling import NetworkFamily, VectorFamily
from monitor.recalibration.classes.probabilities import as_columns, averaged_loss
from tests.recalibration.classes.class_sets import (
    distorted,
    evaluated,
    of_several_opinions,
    reference,
)


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


@pytest.mark.parametrize(
    "fit", [class_scaling.fit_vector_scaling, class_scaling.fit_auxiliary_scaling]
)
def test_on_the_reference_set_it_is_no_worse_than_temperature_scaling(fit):
    fitted, fresh = reference()
    found, simple = (
        evaluated(model, fresh) for model in (fit(fitted), class_scaling.fit_temperature(fitted))
    )
    assert found.nll <= simple.nll + 1e-6
    assert found.ece <= simple.ece + 1e-6
    assert found.cece <= simple.cece + 1e-6
