"""Classwise isotonic regression against slow pooling, and where rows are few."""

import numpy as np
import pytest

from monitor.recalibration.classes.classwise_isotonic import (
    FEWEST,
    MOST_KNOTS,
    UNCHANGED,
    ClasswiseIsotonic,
    fit_classwise_isotonic,
)
from monitor.recalibration.classes.probabilities import ClassIdentity, ClassRows, from_probabilities
from monitor.recalibration.recalibrator import UnfitData
from monitor.store.codec import InvalidDocument
from tests.recalibration.classes.class_sets import (
    distorted,
    evaluated,
    of_several_opinions,
    overconfident,
    reference,
)
from tests.recalibration.rows import as_read


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


def test_opinions_count_for_one_row_together():
    rows = distorted(2, 500, 3)
    alike = ClassRows(np.repeat(rows.log_probabilities, 4, axis=1), rows.label)
    found, expected = fit_classwise_isotonic(alike), fit_classwise_isotonic(rows)
    for one, other in zip(found.knots, expected.knots, strict=True):
        assert one.sent == pytest.approx(other.sent, abs=1e-12)
        assert one.made == pytest.approx(other.made, abs=1e-12)


def test_a_higher_probability_never_becomes_a_lower_score():
    for one in fit_classwise_isotonic(distorted(3, 3000)).knots:
        sent, made = one.sent, one.made
        assert (np.diff(sent) >= 0).all()
        assert (np.diff(made) >= 0).all()
        assert max(made) < 0


def test_overconfidence_and_distortion_are_much_reduced():
    fitted, fresh = reference()
    assert evaluated(fit_classwise_isotonic(fitted), fresh).ece < 0.03
    fitted, fresh = distorted(4, 6000), distorted(5, 6000)
    before, after = (
        evaluated(ClassIdentity(), fresh),
        evaluated(fit_classwise_isotonic(fitted), fresh),
    )
    assert after.cece < 0.5 * before.cece
    assert after.nll < before.nll - 0.3


def test_a_calibrated_detector_is_left_nearly_alone():
    fitted, fresh = reference("cls_calibrated")
    before, after = (
        evaluated(ClassIdentity(), fresh),
        evaluated(fit_classwise_isotonic(fitted), fresh),
    )
    assert after.nll < before.nll + 0.01


def test_a_class_with_few_rows_is_left_as_it_is():
    rows = distorted(6, 1000, 4)
    rare = np.flatnonzero(rows.label == 2)[FEWEST - 1 :]
    kept = np.setdiff1d(np.arange(1000), rare)
    knots = fit_classwise_isotonic(rows.take(kept)).knots
    assert knots[2] == UNCHANGED
    assert UNCHANGED not in (knots[0], knots[1], knots[3])
    one_more = fit_classwise_isotonic(rows.take(np.append(kept, rare[0])))
    assert one_more.knots[2] != UNCHANGED


def test_rows_of_few_objects_are_few():
    some = overconfident(7, 12, 2)
    again = np.repeat(np.arange(12), 30)
    rows = ClassRows(some.log_probabilities[again], some.label[again], again)
    with pytest.raises(UnfitData, match=f"no class has {FEWEST} independent rows of it"):
        fit_classwise_isotonic(rows)


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


def test_a_class_whose_probability_never_varies_gets_its_frequency():
    label = np.random.default_rng(10).integers(0, 2, 1000)
    constant = from_probabilities(np.full((1000, 1, 2), 0.5))
    found = fit_classwise_isotonic(ClassRows(constant, label)).apply(constant[:1])[0, 0, 1]
    assert found == pytest.approx(label.mean(), abs=1e-3)


GOOD = {"sent": [-3.0, -1.0], "made": [-2.0, -0.5]}


@pytest.mark.parametrize(
    ("knots", "named"),
    [
        (None, "'parameters.knots' "),
        ([GOOD], "'parameters.knots' "),
        ([GOOD, 3], "'parameters.knots[1]' is 3"),
        ([GOOD, {}], "'parameters.knots[1]' has no 'sent'"),
        ([{"sent": [-1.0], "made": [-1.0]}, GOOD], "'parameters.knots[0].sent' has 1 entries"),
        ([{**GOOD, "made": [-1.0]}, GOOD], "'parameters.knots[0].made' has 1 entries"),
        ([{**GOOD, "sent": [-1.0, -3.0]}, GOOD], "'sent' must never fall"),
        ([{**GOOD, "made": [-1.0, -3.0]}, GOOD], "'made' must never fall"),
        ([{**GOOD, "made": [-1.0, 0.5]}, GOOD], "'parameters.knots[0].made[1]' is 0.5"),
        ([{**GOOD, "made": [-28.0, -1.0]}, GOOD], "'parameters.knots[0].made[0]' is -28.0"),
        ([{**GOOD, "sent": [float("nan"), -1.0]}, GOOD], "'parameters.knots[0].sent[0]' is nan"),
    ],
)
def test_a_wrong_document_is_refused_with_the_field_named(knots, named):
    with pytest.raises(InvalidDocument) as refusal:
        as_read(ClasswiseIsotonic, {"knots": knots})
    assert named in str(refusal.value)
