"""Temperature scaling against its equation, the reference's figures and known temperatures."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from monitor.recalibration.classes.class_scaling import Temperature, fit_temperature
from monitor.recalibration.classes.probabilities import (
    ClassRows,
    from_logits,
    from_probabilities,
)
from monitor.recalibration.recalibrator import UnfitData
from monitor.store.codec import InvalidDocument
from tests.recalibration.classes.class_sets import (
    evaluated,
    of_several_opinions,
    overconfident,
    reference,
)
from tests.recalibration.rows import as_read


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
    best = minimize_scalar(
        lambda at: slow_loss(rows, np.exp(at)),
        bounds=(-3, 3),
        method="bounded",
        options={"xatol": 1e-7},
    )
    assert found == pytest.approx(np.exp(best.x), abs=1e-4)
    assert slow_loss(rows, found) <= best.fun + 1e-12


def test_each_opinion_is_scaled_before_they_are_averaged():
    rows = of_several_opinions(4, 30)
    found = Temperature(1.7).apply(rows.log_probabilities).mean(axis=1)
    for i, opinions in enumerate(rows.log_probabilities):
        scaled = [np.exp(z / 1.7) / sum(np.exp(z / 1.7)) for z in opinions]
        assert found[i] == pytest.approx(sum(scaled) / len(scaled), abs=1e-14)


def test_the_reference_set_is_calibrated_no_worse_than_by_the_reference():
    fitted, fresh = reference()
    model = fit_temperature(fitted)
    # fits.json of the reference: T = 1.995320043599942, ECE 0.016946978413340873
    assert model.temperature == pytest.approx(1.995320044, abs=1e-6)
    found = evaluated(model, fresh)
    assert found.ece <= 0.016946978413340873
    assert found.nll == pytest.approx(1.5431878396, abs=1e-9)


def test_a_calibrated_detector_is_left_nearly_alone():
    fitted, _ = reference("cls_calibrated")
    assert fit_temperature(fitted).temperature == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("temperature", [0.25, 1.0, 4.0])
@pytest.mark.parametrize("classes", [2, 10, 80])
def test_a_known_temperature_is_found_again(temperature, classes):
    assert fit_temperature(
        overconfident(5, 6000, classes, temperature)
    ).temperature == pytest.approx(temperature, rel=0.06)


def test_logits_and_their_probabilities_give_one_temperature():
    random = np.random.default_rng(6)
    logits = random.normal(0.0, 2.0, (500, 1, 5)) + 7.0
    label = overconfident(6, 500, 5).label
    p = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    sure = np.where(random.uniform(size=500) < 0.6, logits[:, 0].argmax(axis=1), label)
    one, other = (ClassRows(x, sure) for x in (from_logits(logits), from_probabilities(p)))
    assert fit_temperature(one).temperature == pytest.approx(
        fit_temperature(other).temperature, rel=1e-9
    )


def test_the_most_likely_class_stays():
    rows = overconfident(7, 500)
    made = Temperature(3.0).apply(rows.log_probabilities)
    assert np.array_equal(made.argmax(axis=2), rows.log_probabilities.argmax(axis=2))


def test_a_detector_that_is_always_right_does_not_determine_it():
    rows = overconfident(8, 200)
    right = ClassRows(rows.log_probabilities, rows.log_probabilities[:, 0].argmax(axis=1))
    with pytest.raises(UnfitData, match=r"the lower the temperature, below 0\.01.*Add rows in"):
        fit_temperature(right)
    certain = from_probabilities(np.eye(3)[[0, 1, 2, 0]])[:, None]
    with pytest.raises(UnfitData, match="the lower the temperature"):
        fit_temperature(ClassRows(certain, np.array([0, 1, 2, 0])))


def test_probabilities_that_say_nothing_of_the_labels_do_not_determine_it():
    rows = overconfident(9, 400)
    least = ClassRows(rows.log_probabilities, rows.log_probabilities[:, 0].argmin(axis=1))
    with pytest.raises(UnfitData, match=r"the higher the temperature, beyond 100.*order of the"):
        fit_temperature(least)
    uniform = from_probabilities(np.full((4, 1, 3), 1 / 3))
    with pytest.raises(UnfitData, match="the higher the temperature"):
        fit_temperature(ClassRows(uniform, np.array([0, 1, 2, 0])))


@pytest.mark.parametrize("value", [None, 0.0, -1.0, float("nan"), float("inf"), "2", True, 10**400])
def test_a_temperature_that_is_none_is_refused(value):
    with pytest.raises(InvalidDocument, match=r"'parameters.temperature' is "):
        as_read(Temperature, {"temperature": value})
