"""Detections flagged as too uncertain: by the entropy of their class probabilities, by their
deviation, by both."""

from dataclasses import replace

from monitor.frames.detections import Reason
from monitor.frames.frame import Header
from monitor.frames.space import Dimension, DimensionKind, Space
from monitor.recalibration.classes.class_scaling import Temperature
from monitor.recalibration.classes.class_selection import CLASS_IDENTITY, ClassSelection
from monitor.recalibration.classes.probabilities import ClassIdentity
from monitor.recalibration.recalibrator import Identity
from monitor.recalibration.rejection import RejectedBy
from monitor.recalibration.scaling import VarianceScaling
from monitor.recalibration.selection import IDENTITY, Selection
from tests import laws
from tests.piped_classes import (
    BAD,
    CLASSES,
    WARM,
    answered,
    extras,
    recalibrating,
    rejection,
    sent,
)
from tests.received import Sent

NEITHER, ENTROPY, DEVIATION, BOTH = range(4)


def doubtful(*entropies: float) -> list[Sent]:
    """Detections of two classes' worth of doubt: probability of the first of three."""
    return [replace(sent(i), class_probabilities=(p, 1 - p, 0.0)) for i, p in enumerate(entropies)]


def test_a_detection_of_too_much_entropy_is_flagged_and_nothing_else_changes():
    rows = [*doubtful(0.99, 0.5, 0.9), sent(8, opinions=0), BAD]
    plain = ClassSelection(CLASSES, Temperature(1.0))
    flagging = replace(plain, rejection=rejection(RejectedBy.ENTROPY, 0.5))
    pipeline = recalibrating(flagging)
    found, expected = answered(pipeline, rows), answered(recalibrating(plain), rows)
    assert found.extras is not None
    assert expected.extras is not None
    assert found.extras.rejected_by is not None
    # (½ log 2 + ½ log 2) / log 3 = 0.63; the others are below a third.
    assert found.extras.rejected_by.tolist() == [NEITHER, ENTROPY, NEITHER, NEITHER, NEITHER]
    assert pipeline.counters.uncertain.tolist() == [1, 0, 0]
    without = replace(found.extras, rejected_by=None, class_version=plain.version)
    laws.assert_same(replace(found, extras=without), expected)


def test_it_is_the_recalibrated_entropy_that_counts():
    rows = doubtful(0.9)
    for temperature, flag in ((1.0, NEITHER), (10.0, ENTROPY)):
        classes = ClassSelection(
            CLASSES, Temperature(temperature), rejection(RejectedBy.ENTROPY, 0.5)
        )
        assert extras(recalibrating(classes), rows).rejected_by.tolist() == [flag]


def test_the_identity_may_reject_and_then_is_said_to_be_in_force():
    classes = ClassSelection(CLASSES, ClassIdentity(), rejection(RejectedBy.ENTROPY, 0.5))
    pipeline = recalibrating(classes)
    found = extras(pipeline, doubtful(0.5, 0.99))
    assert found.rejected_by.tolist() == [ENTROPY, NEITHER]
    assert found.class_version == classes.version
    assert [entry.version for entry in pipeline.recalibrators.active()] == [
        IDENTITY.version,
        classes.version,
    ]


def wide(id: int, *variances: float) -> Sent:
    return replace(sent(id, opinions=0), covariance=variances)


def test_a_detection_whose_recalibrated_deviation_is_too_large_is_flagged():
    selection = Selection(
        ("x", "y"), VarianceScaling((2.0, 0.5)), rejection=rejection(RejectedBy.DEVIATION, 2.0)
    )
    # σ_G = det(Σ)^(1/4): of the recalibrated variances 4 σx² and σy² / 4 it is (σx² σy²)^(1/4).
    rows = [wide(1, 1.0, 1.0), wide(2, 16.0, 1.0), wide(3, 17.0, 1.0), wide(4, 2.0, 50.0), BAD]
    pipeline = recalibrating(CLASS_IDENTITY, selection)
    answer = answered(pipeline, rows)
    assert answer.extras is not None
    assert answer.extras.rejected_by is not None
    assert answer.extras.rejected_by.tolist() == [NEITHER, NEITHER, DEVIATION, DEVIATION, NEITHER]
    assert answer.reason.tolist()[:4] == [Reason.NONE] * 4
    assert answer.rows.tolist() == [0, 1, 2, 3]
    assert pipeline.counters.uncertain.tolist() == [0, 2, 0]


def test_angles_have_no_say_in_the_deviation_unless_they_are_part_of_the_joint_block():
    space = Space((Dimension("x", "m"), Dimension("yaw", "rad", DimensionKind.ANGLE)))
    header = Header("lidar", space, CLASSES)
    selection = Selection((), Identity(), rejection=rejection(RejectedBy.DEVIATION, 2.0))
    rows = [wide(1, 4.1, 0.01), wide(2, 3.9, 9.0)]
    for angles, flags in ((False, [DEVIATION, NEITHER]), (True, [NEITHER, DEVIATION])):
        pipeline = recalibrating(CLASS_IDENTITY, selection, statistics={"angles_in_joint": angles})
        assert extras(pipeline, rows, header).rejected_by.tolist() == flags


def test_both_may_reject_one_detection_and_it_is_counted_once():
    classes = ClassSelection(CLASSES, Temperature(1.0), rejection(RejectedBy.ENTROPY, 0.5))
    selection = Selection((), Identity(), rejection=rejection(RejectedBy.DEVIATION, 1.5))
    certain, doubt = doubtful(0.99, 0.5)
    rows = [
        replace(row, id=i, covariance=(v, v))
        for i, (row, v) in enumerate(
            [(certain, 1.0), (doubt, 1.0), (certain, 4.0), (doubt, 4.0), (doubt, 9.0)]
        )
    ]
    pipeline = recalibrating(classes, selection)
    found = extras(pipeline, rows)
    assert found.rejected_by.tolist() == [NEITHER, ENTROPY, DEVIATION, BOTH, BOTH]
    assert pipeline.counters.uncertain.tolist() == [1, 1, 2]


def test_only_what_is_forwarded_recalibrated_is_judged_by_its_deviation():
    rejecting = rejection(RejectedBy.DEVIATION, 0.0)
    rows = [wide(1, 1.0, 1.0)]
    other = Selection(("u", "v"), VarianceScaling((1.0, 1.0)), rejection=rejecting)
    assert extras(recalibrating(CLASS_IDENTITY, other), rows).rejected_by.tolist() == [NEITHER]
    observing = recalibrating(
        CLASS_IDENTITY, replace(other, dimensions=("x", "y")), recalibration={"mode": "observe"}
    )
    assert extras(observing, rows).rejected_by is None


def test_where_a_rejection_fails_the_frame_goes_out_without_flags(monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("broken")

    monkeypatch.setattr("monitor.pipeline.forwarding.normalised_entropy", broken)
    classes = replace(WARM, rejection=rejection(RejectedBy.ENTROPY, 0.5))
    pipeline, rows = recalibrating(classes), [sent(1), sent(2)]
    answer = answered(pipeline, rows)
    assert answer.extras is not None
    assert answer.extras.rejected_by is None
    laws.assert_same(
        answer.extras.class_probabilities, extras(recalibrating(), rows).class_probabilities
    )
    assert pipeline.counters.internal_errors == 1
