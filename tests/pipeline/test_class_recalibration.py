"""Class probabilities recalibrated in the answer."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from monitor.frames.detections import Reason
from monitor.frames.slices import RangeBuckets
from monitor.frames.space import FloatArray
from monitor.frames.status import ClassAccount
from monitor.recalibration.class_probabilities import LEAST, ClassRecalibrator
from monitor.recalibration.class_scaling import Temperature, VectorScaling
from monitor.recalibration.rejection import RejectedBy
from monitor.recalibration.scaling import VarianceScaling
from monitor.recalibration.selection import CLASS_IDENTITY, ClassSelection, Selection
from tests import laws, piped_classes
from tests.piped_classes import BAD, HEADER, answered, extras, recalibrating, sent, total_of
from tests.received import Sent


@dataclass(frozen=True)
class BrokenClasses(ClassRecalibrator):
    """Fails in one of several ways."""

    failure: str
    method: ClassVar[str] = "broken"

    def apply(self, log_probabilities: FloatArray) -> FloatArray:
        made = np.exp(log_probabilities)
        match self.failure:
            case "gives back other classes":
                return made[:, :, :-1]
            case "NaN in a row":
                made[1, 0, 0] = np.nan
            case "1.2 in all in a row":
                made[1] *= 1.2
            case "a negative value in a row":
                made[1, 0] = -0.1, 0.5, 0.6
        return made


def warmed(values, temperature=2.0, classes=3) -> FloatArray:
    """Laves et al. 2019, eq. 25, one opinion after the other."""
    opinions = np.array(values).reshape(-1, classes)
    total = np.zeros(classes)
    for opinion in opinions:
        power = np.maximum(opinion, LEAST) ** (1 / temperature)
        total += power / power.sum()
    return total / len(opinions)


# ---- class probabilities


@pytest.mark.parametrize("opinions", [1, 5])
def test_every_opinion_is_recalibrated_and_then_their_mean_goes_out(opinions):
    rows = [sent(i, opinions=opinions) for i in range(6)]
    pipeline = recalibrating()
    found = extras(pipeline, rows)
    assert found.class_version == piped_classes.WARM.version
    for row, made in zip(rows, found.class_probabilities, strict=True):
        assert made == pytest.approx(warmed(row.class_probabilities), abs=1e-12)
        assert made.sum() == pytest.approx(1, abs=1e-12)
    assert found.rejected_by is None


def test_both_kinds_are_active_and_the_log_says_what_of_them_is_not_as_here(caplog):
    pipeline, ranges = recalibrating(CLASS_IDENTITY), RangeBuckets((30.0,), ("x", "y"))
    double = Selection(("x", "y"), VarianceScaling((2.0, 2.0)), ranges=ranges)
    unnamed = ClassSelection((), VectorScaling((1.0, 2.0, 1.0), (0.0, 0.0, 0.0)))
    for one in (double, unnamed):
        pipeline.activate(pipeline.recalibrators.learn(one.to_json()).version)
    assert "fitted by range, on [30.0] of ['x', 'y']" in caplog.text
    assert "fitted on 3 classes without names" in caplog.text
    active = [one.output for one in pipeline.recalibrators.active()]
    assert active == ["gaussian", "class_probabilities"]


def test_only_usable_opinions_of_usable_detections_are_recalibrated():
    unusual = replace(sent(3), class_probabilities=(0.5, 0.4, 0.3))
    rows = [BAD, sent(1), sent(2, opinions=0), unusual, sent(4), replace(sent(5), id=None)]
    found = extras(recalibrating(), rows).class_probabilities
    assert np.isnan(found).all(axis=1).tolist() == [True, False, True, True, False, True]
    for i in (1, 4):
        assert found[i] == pytest.approx(warmed(rows[i].class_probabilities), abs=1e-12)


def test_a_recalibrator_of_other_classes_is_left_alone_and_a_notice_says_so():
    others = ClassSelection(("a", "b", "c"), Temperature(2.0))
    pipeline = recalibrating(others)
    answer = answered(pipeline, [BAD, sent(3, opinions=0), sent(1), sent(2)])
    assert answer.reason.tolist()[1:] == [Reason.NONE] * 3
    assert answer.extras is not None
    assert answer.extras.class_probabilities is None
    assert answer.extras.class_version == ""
    _, notice = answer.notices
    assert (notice.reason, notice.field) == (Reason.RECALIBRATOR_MISMATCH, "class_names")
    assert (notice.count, notice.first_index) == (2, 2)
    assert pipeline.counters.class_recalibrations == ClassAccount(mismatch=2)
    assert notice.message.startswith("car, truck, bus: the promoted recalibrator")
    # Frames that bring none need not be told.
    assert not answered(recalibrating(others), [sent(1, opinions=0)]).notices


def test_where_class_recalibration_fails_everything_else_goes_on():
    rows = [sent(1, 0, truth=(0.0, 0.0)), sent(2, 1), sent(3)]
    classes = ClassSelection(piped_classes.CLASSES, BrokenClasses("gives back other classes"))
    double = Selection(HEADER.space.names, VarianceScaling((2.0, 2.0)))
    broken, sound = recalibrating(classes, double), recalibrating(CLASS_IDENTITY, double)
    found, expected = answered(broken, rows), answered(sound, rows)
    (notice,) = found.notices
    assert (notice.reason, notice.field) == (Reason.RECALIBRATOR_FAILED, "class_probabilities")
    assert (notice.count, notice.first_index) == (3, 0)
    laws.assert_same(replace(found, notices=()), expected)
    laws.assert_same(total_of(broken), total_of(sound))
    assert broken.counters.internal_errors == 1
    assert broken.counters.class_recalibrations == ClassAccount(failed=3)


@pytest.mark.parametrize(
    "failure", ["NaN in a row", "1.2 in all in a row", "a negative value in a row"]
)
def test_a_row_that_is_no_opinion_goes_out_without_and_is_counted_as_failed(failure):
    classes = ClassSelection(piped_classes.CLASSES, BrokenClasses(failure))
    pipeline = recalibrating(classes)
    answer = answered(pipeline, [BAD, sent(1), sent(2), sent(3)])
    assert answer.extras is not None
    assert answer.extras.class_probabilities is not None
    without = np.isnan(answer.extras.class_probabilities).all(axis=1)
    assert without.tolist() == [True, False, True, False]
    _, notice = answer.notices
    assert (notice.reason, notice.field) == (Reason.RECALIBRATOR_FAILED, "class_probabilities")
    assert (notice.count, notice.first_index) == (1, 2)
    assert pipeline.counters.class_recalibrations == ClassAccount(recalibrated=2, failed=1)
    assert pipeline.counters.internal_errors == 0


def test_what_became_of_each_detection_is_counted_frame_by_frame():
    pipeline = recalibrating()
    answered(pipeline, [sent(1), sent(2, opinions=0), sent(3), BAD])
    answered(pipeline, [sent(4, classes=2)], replace(HEADER, stream="radar", classes=("a", "b")))
    answered(pipeline, [sent(5)])
    assert pipeline.counters.class_recalibrations == ClassAccount(recalibrated=3, mismatch=1)


def test_of_a_single_class_there_is_nothing_to_recalibrate():
    header = replace(HEADER, classes=("car",))
    rows = [replace(sent(1), class_probabilities=(1.0,))]
    classes = ClassSelection((), Temperature(2.0), piped_classes.rejection(RejectedBy.ENTROPY, 0.0))
    found = extras(recalibrating(classes), rows, header)
    assert found.class_probabilities is None
    assert found.rejected_by.tolist() == [0]


# ---- logits


def in_logits(row: Sent, shift=0.0) -> Sent:
    logits = tuple((np.log(np.array(row.class_probabilities)) + shift).tolist())
    return replace(row, class_probabilities=(), class_logits=logits)


@pytest.mark.parametrize("opinions", [1, 3])
@pytest.mark.parametrize("shift", [0.0, -700.0, 1e6])
def test_logits_are_counted_and_recalibrated_as_their_softmax(opinions, shift):
    rows = [sent(i, i % 3, opinions=opinions) for i in range(8)]
    told, meant = recalibrating(), recalibrating()
    found = extras(told, [in_logits(row, shift) for row in rows])
    expected = extras(meant, rows)
    assert found.class_version == expected.class_version
    assert found.class_probabilities == pytest.approx(expected.class_probabilities, abs=1e-8)
    assert total_of(told).n == 8
    # Of 1e6 + x, x is known to 1e-10.
    piped_classes.assert_same_measures(told, meant, 1e-8)


@pytest.mark.parametrize(
    ("logits", "words"),
    [
        ((0.0, 1.0, np.inf), "value 2 is inf"),
        ((-np.inf,) * 3, "values 0 to 2 are all −infinity"),
        ((0.0, 1.0), "2 values"),
        ((0.0, 1.0, 2.0) * 2, "6 values, unlike most detections of the frame"),
    ],
)
def test_logits_that_cannot_be_used_are_set_aside_and_a_notice_says_why(logits, words):
    good = [in_logits(sent(i, 0)) for i in range(3)]
    bad = replace(sent(7, 0, opinions=0), class_logits=logits)
    pipeline = recalibrating()
    answer = answered(pipeline, [good[0], bad, *good[1:]])
    assert answer.reason.tolist() == [Reason.NONE] * 4
    (notice,) = answer.notices
    assert notice.reason is Reason.CLASS_PROBABILITIES_INVALID
    assert (notice.field, notice.count, notice.first_index) == ("class_logits", 1, 1)
    assert notice.message.startswith(f"{words}: send 3 values")
    assert answer.extras is not None
    assert answer.extras.class_probabilities is not None
    assert np.isnan(answer.extras.class_probabilities[1]).all()
    assert total_of(pipeline).n == 3


def test_probabilities_are_taken_where_both_came():
    both = replace(sent(1), class_logits=(9.0, 0.0, 0.0))
    rows = [both, in_logits(sent(2)), sent(3), sent(4, opinions=0)]
    found = extras(recalibrating(), rows).class_probabilities
    for i in (0, 1, 2):
        values = sent(rows[i].id).class_probabilities
        assert found[i] == pytest.approx(warmed(values), abs=1e-12)
    assert np.isnan(found[3]).all()
