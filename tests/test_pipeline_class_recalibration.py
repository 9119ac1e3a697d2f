"""Class probabilities recalibrated in the answer, and detections flagged as too uncertain."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax

from monitor.calibration.detections import Reason
from monitor.calibration.space import Dimension, DimensionKind, FloatArray, Space
from monitor.config import Config
from monitor.frames import FrameAnswer, Header
from monitor.pipeline import Pipeline
from monitor.recalibration.classes.class_identity import ClassIdentity
from monitor.recalibration.classes.class_recalibrator import LEAST
from monitor.recalibration.classes.class_selection import CLASS_IDENTITY, ClassSelection
from monitor.recalibration.classes.temperature import Temperature
from monitor.recalibration.identity import Identity
from monitor.recalibration.rejection import RejectedBy, Rejection
from monitor.recalibration.selection import IDENTITY, Selection
from monitor.recalibration.variance_scaling import VarianceScaling
from tests import laws
from tests.piped_classes import (
    BAD,
    CLASSES,
    HEADER,
    counted,
    opened,
    quick,
    sent,
    total_of,
)
from tests.received import Label, Sent, frame, labels

WARM = ClassSelection(CLASSES, Temperature(2.0))
NEITHER, ENTROPY, DEVIATION, BOTH = range(4)


@dataclass(frozen=True)
class BrokenClasses:
    """Fails in one of several ways."""

    failure: str
    method: ClassVar[str] = "broken"
    classes: ClassVar[None] = None

    def apply(self, log_probabilities: FloatArray) -> FloatArray:
        made = np.exp(log_probabilities)
        match self.failure:
            case "raises":
                raise ZeroDivisionError("broken")
            case "gives back fewer":
                return made[:1]
            case "gives back other classes":
                return made[:, :, :-1]
            case "NaN in a row":
                made[1, 0, 0] = np.nan
        return made

    def parameters(self) -> dict[str, Any]:
        return {"failure": self.failure}


def rejection(by: RejectedBy, threshold: float) -> Rejection:
    return Rejection(by, threshold, 0.05, 0.04, 0.1, 1000)


def pipeline_of(classes=WARM, selection=IDENTITY, **sections) -> Pipeline:
    config = Config.model_validate(sections)
    return Pipeline(config, selection=selection, class_selection=classes)


def answered(pipeline: Pipeline, rows, header: Header = HEADER) -> FrameAnswer:
    answer = pipeline.process(opened(pipeline, header), frame(rows))
    assert answer.beside is not None
    return answer


def beside(pipeline: Pipeline, rows, header: Header = HEADER) -> Any:
    """What goes back beside the estimates; nothing of ours has failed."""
    found = answered(pipeline, rows, header).beside
    assert pipeline.counters.internal_errors == 0
    return found


def warmed(values, temperature=2.0, classes=3) -> FloatArray:
    """Laves et al. 2019, eq. 25, one opinion after the other."""
    opinions = np.array(values).reshape(-1, classes)
    total = np.zeros(classes)
    for opinion in opinions:
        power = np.maximum(opinion, LEAST) ** (1 / temperature)
        total += power / power.sum()
    return total / len(opinions)


# ---- class probabilities


@pytest.mark.parametrize("opinions", [1, 2, 5])
def test_every_opinion_is_recalibrated_and_then_their_mean_goes_out(opinions):
    rows = [sent(i, opinions=opinions) for i in range(6)]
    pipeline = pipeline_of()
    found = beside(pipeline, rows)
    assert found.class_version == WARM.version
    for row, made in zip(rows, found.class_probabilities, strict=True):
        assert made == pytest.approx(warmed(row.class_probabilities), abs=1e-12)
        assert made.sum() == pytest.approx(1, abs=1e-12)
    assert found.rejected_by is None


def test_only_usable_opinions_of_usable_detections_are_recalibrated():
    unusual = replace(sent(3), class_probabilities=(0.5, 0.4, 0.3))
    rows = [BAD, sent(1), sent(2, opinions=0), unusual, sent(4), replace(sent(5), id=None)]
    found = beside(pipeline_of(), rows).class_probabilities
    assert np.isnan(found).all(axis=1).tolist() == [True, False, True, True, False, True]
    for i in (1, 4):
        assert found[i] == pytest.approx(warmed(rows[i].class_probabilities), abs=1e-12)


@quick
@given(st.lists(st.sampled_from([0, 1, 2]), min_size=1, max_size=8))
def test_a_detection_gets_the_same_alone_and_among_others(opinions):
    usual = max(opinions)
    rows = [sent(i, opinions=min(m, 1) * usual) for i, m in enumerate(opinions)]
    together = beside(pipeline_of(), rows).class_probabilities
    for i, row in enumerate(rows):
        alone = beside(pipeline_of(), [row]).class_probabilities
        if row.class_probabilities:
            assert np.array_equal(together[i], alone[0])
        else:
            assert alone is None
            assert together is None or np.isnan(together[i]).all()


@pytest.mark.parametrize("classes", [CLASS_IDENTITY, ClassSelection(CLASSES, ClassIdentity())])
def test_the_identity_adds_nothing_to_the_answer(classes):
    found = beside(pipeline_of(classes), [sent(1), sent(2)])
    assert found.class_probabilities is None
    assert found.class_version == ""


def test_while_observing_nothing_is_forwarded_of_classes():
    pipeline = pipeline_of(
        replace(WARM, rejection=rejection(RejectedBy.ENTROPY, 0.0)),
        recalibration={"mode": "observe"},
    )
    found = beside(pipeline, [sent(1), sent(2)])
    assert found.class_probabilities is None
    assert not found.rejected_by.any()
    assert not pipeline.counters.uncertain[1:].any()


def test_a_recalibrator_of_other_classes_is_left_alone_and_a_notice_says_so():
    pipeline = pipeline_of(ClassSelection(("a", "b", "c"), Temperature(2.0)))
    answer = answered(pipeline, [sent(1), sent(2)])
    assert answer.reason.tolist() == [Reason.NONE] * 2
    assert answer.beside is not None
    assert answer.beside.class_probabilities is None
    assert answer.beside.class_version == ""
    (notice,) = answer.notices
    assert (notice.reason, notice.field) == (Reason.RECALIBRATOR_MISMATCH, "class_names")
    assert notice.message.startswith("car, truck, bus: the promoted recalibrator")
    # Frames that bring none need not be told.
    assert not answered(pipeline_of(pipeline.class_selection), [sent(1, opinions=0)]).notices


def test_estimates_and_classes_are_recalibrated_whatever_the_other_does():
    rows = [sent(1), sent(2)]
    other = Selection(("u", "v"), VarianceScaling((2.0, 2.0)))
    answer = answered(pipeline_of(selection=other), rows)
    assert answer.reason.tolist() == [Reason.RECALIBRATOR_MISMATCH] * 2
    assert answer.beside is not None
    laws.assert_same(
        answer.beside.class_probabilities, beside(pipeline_of(), rows).class_probabilities
    )


@pytest.mark.parametrize("failure", ["raises", "gives back fewer", "gives back other classes"])
def test_where_class_recalibration_fails_everything_else_goes_on(failure):
    rows = [sent(1, 0, truth=(0.0, 0.0)), sent(2, 1), sent(3)]
    classes = ClassSelection(CLASSES, BrokenClasses(failure))
    double = Selection(HEADER.space.names, VarianceScaling((2.0, 2.0)))
    broken, sound = pipeline_of(classes, double), pipeline_of(CLASS_IDENTITY, double)
    found, expected = answered(broken, rows), answered(sound, rows)
    laws.assert_same(found, expected)
    laws.assert_same(total_of(broken), total_of(sound))
    assert broken.counters.internal_errors == 1


def test_a_row_that_is_not_finite_goes_out_without():
    classes = ClassSelection(CLASSES, BrokenClasses("NaN in a row"))
    found = beside(pipeline_of(classes), [sent(1), sent(2), sent(3)]).class_probabilities
    assert np.isnan(found).all(axis=1).tolist() == [False, True, False]


def test_the_statistics_are_of_what_came():
    rows = [sent(i, i % 3) for i in range(9)]
    warm, plain = pipeline_of(), pipeline_of(CLASS_IDENTITY)
    for pipeline in (warm, plain):
        answered(pipeline, rows[:5])
        late = [replace(row, true_class=None) for row in rows[5:]]
        pipeline.process(opened(pipeline), frame(late, 2))
        pipeline.report_truth(labels([Label(i, class_index=i % 3) for i in range(5, 9)], 2))
    for name, found in counted(plain).items():
        laws.assert_same(counted(warm)[name], found)


def test_of_a_single_class_there_is_nothing_to_recalibrate():
    header = replace(HEADER, classes=("car",))
    rows = [replace(sent(1), class_probabilities=(1.0,))]
    classes = ClassSelection((), Temperature(2.0), rejection(RejectedBy.ENTROPY, 0.0))
    found = beside(pipeline_of(classes), rows, header)
    assert found.class_probabilities is None
    assert found.rejected_by.tolist() == [NEITHER]


# ---- logits


def in_logits(row: Sent, shift=0.0) -> Sent:
    logits = tuple((np.log(np.array(row.class_probabilities)) + shift).tolist())
    return replace(row, class_probabilities=(), class_logits=logits)


@pytest.mark.parametrize("opinions", [1, 3])
@pytest.mark.parametrize("shift", [0.0, -700.0, 1e6])
def test_logits_are_counted_and_recalibrated_as_their_softmax(opinions, shift):
    rows = [sent(i, i % 3, opinions=opinions) for i in range(8)]
    told, meant = pipeline_of(), pipeline_of()
    found = beside(told, [in_logits(row, shift) for row in rows])
    expected = beside(meant, rows)
    assert found.class_version == expected.class_version
    assert found.class_probabilities == pytest.approx(expected.class_probabilities, abs=1e-8)
    assert total_of(told).n == total_of(meant).n == 8


def test_large_logits_and_minus_infinity_have_a_softmax():
    logits = (1e308, -1e308, 1e308)
    rows = [
        replace(sent(1, opinions=0), class_logits=logits),
        replace(sent(2, opinions=0), class_logits=(0.0, -np.inf, 0.0)),
    ]
    found = beside(pipeline_of(ClassSelection((), Temperature(1.0))), rows)
    assert found.class_probabilities == pytest.approx(np.array([[0.5, 0, 0.5]] * 2), abs=1e-11)


@pytest.mark.parametrize(
    ("logits", "words"),
    [
        ((0.0, np.nan, 1.0), "value 1 is nan"),
        ((0.0, 1.0, np.inf), "value 2 is inf"),
        ((-np.inf,) * 3, "values 0 to 2 are all −infinity"),
        ((0.0, 1.0), "2 values"),
        ((0.0, 1.0, 2.0) * 700, "2100 values"),
        ((0.0, 1.0, 2.0) * 2, "6 values, unlike most detections of the frame"),
        ((0.0, 1.0, 2.0, 0.0, np.nan, 0.0), "value 4 is nan"),
    ],
)
def test_logits_that_cannot_be_used_are_set_aside_and_a_notice_says_why(logits, words):
    good = [in_logits(sent(i, 0)) for i in range(3)]
    bad = replace(sent(7, 0, opinions=0), class_logits=logits)
    pipeline = pipeline_of()
    answer = answered(pipeline, [good[0], bad, *good[1:]])
    assert answer.reason.tolist() == [Reason.NONE] * 4
    (notice,) = answer.notices
    assert notice.reason is Reason.CLASS_PROBABILITIES_INVALID
    assert (notice.field, notice.count, notice.first_index) == ("class_logits", 1, 1)
    assert notice.message.startswith(f"{words}: send 3 values")
    assert answer.beside is not None
    assert answer.beside.class_probabilities is not None
    assert np.isnan(answer.beside.class_probabilities[1]).all()
    assert total_of(pipeline).n == 3


def test_probabilities_are_taken_where_both_came():
    both = replace(sent(1), class_logits=(9.0, 0.0, 0.0))
    rows = [both, in_logits(sent(2)), sent(3), sent(4, opinions=0)]
    found = beside(pipeline_of(), rows).class_probabilities
    for i in (0, 1, 2):
        values = sent(rows[i].id).class_probabilities
        assert found[i] == pytest.approx(warmed(values), abs=1e-12)
    assert np.isnan(found[3]).all()


def test_bad_probabilities_beside_good_logits_are_told_of_as_probabilities():
    row = replace(sent(1), class_probabilities=(2.0, 0.0, 0.0), class_logits=(1.0, 0.0, 0.0))
    (notice,) = answered(pipeline_of(), [row, in_logits(sent(2))]).notices
    assert notice.field == "class_probabilities"
    assert notice.message.startswith("value 0 is 2")


def test_a_true_class_beyond_the_header_is_told_of_as_ever_where_logits_came():
    (notice,) = answered(pipeline_of(), [in_logits(sent(1, 7))]).notices
    assert notice.field == "ground_truth_class"


@quick
@given(
    st.lists(
        st.lists(st.floats(-50, 50), min_size=3, max_size=3) | st.just([]), min_size=1, max_size=6
    )
)
def test_the_softmax_of_logits_is_what_is_counted(logits):
    rows = [
        replace(sent(i, 0, opinions=0), class_logits=tuple(row)) for i, row in enumerate(logits)
    ]
    told, meant = pipeline_of(CLASS_IDENTITY), pipeline_of(CLASS_IDENTITY)
    answered(told, rows)
    expected = [
        replace(row, class_logits=(), class_probabilities=tuple(softmax(values).tolist()))
        if values
        else row
        for row, values in zip(rows, logits, strict=True)
    ]
    answered(meant, expected)
    found = {name: held.n for name, held in counted(told).items()}
    assert found == {name: held.n for name, held in counted(meant).items()}


# ---- too uncertain


def doubtful(*entropies: float) -> list[Sent]:
    """Detections of two classes' worth of doubt: probability of the first of three."""
    return [replace(sent(i), class_probabilities=(p, 1 - p, 0.0)) for i, p in enumerate(entropies)]


def test_a_detection_of_too_much_entropy_is_flagged_and_nothing_else_changes():
    rows = [*doubtful(0.99, 0.5, 0.9), sent(8, opinions=0), BAD]
    plain = ClassSelection(CLASSES, Temperature(1.0))
    flagging = replace(plain, rejection=rejection(RejectedBy.ENTROPY, 0.5))
    pipeline = pipeline_of(flagging)
    found, expected = answered(pipeline, rows), answered(pipeline_of(plain), rows)
    assert found.beside is not None
    assert expected.beside is not None
    assert found.beside.rejected_by is not None
    # (½ log 2 + ½ log 2) / log 3 = 0.63; the others are below a third.
    assert found.beside.rejected_by.tolist() == [NEITHER, ENTROPY, NEITHER, NEITHER, NEITHER]
    assert pipeline.counters.uncertain.tolist()[1:] == [1, 0, 0]
    without = replace(found.beside, rejected_by=None, class_version=plain.version)
    laws.assert_same(replace(found, beside=without), expected)


def test_it_is_the_recalibrated_entropy_that_counts():
    rows = doubtful(0.9)
    for temperature, flag in ((1.0, NEITHER), (10.0, ENTROPY)):
        classes = ClassSelection(
            CLASSES, Temperature(temperature), rejection(RejectedBy.ENTROPY, 0.5)
        )
        assert beside(pipeline_of(classes), rows).rejected_by.tolist() == [flag]


def test_the_identity_may_reject_and_then_is_said_to_be_in_force():
    classes = ClassSelection(CLASSES, ClassIdentity(), rejection(RejectedBy.ENTROPY, 0.5))
    pipeline = pipeline_of(classes)
    found = beside(pipeline, doubtful(0.5, 0.99))
    assert found.rejected_by.tolist() == [ENTROPY, NEITHER]
    assert found.class_version == classes.version
    assert [entry.version for entry in pipeline.in_force()] == [IDENTITY.version, classes.version]


def wide(id: int, *variances: float) -> Sent:
    return replace(sent(id, opinions=0), covariance=variances)


def test_a_detection_whose_recalibrated_deviation_is_too_large_is_flagged():
    selection = Selection(
        ("x", "y"), VarianceScaling((2.0, 0.5)), rejection=rejection(RejectedBy.DEVIATION, 2.0)
    )
    # σ_G = det(Σ)^(1/4): of the recalibrated variances 4 σx² and σy² / 4 it is (σx² σy²)^(1/4).
    rows = [wide(1, 1.0, 1.0), wide(2, 16.0, 1.0), wide(3, 17.0, 1.0), wide(4, 2.0, 50.0), BAD]
    pipeline = pipeline_of(CLASS_IDENTITY, selection)
    answer = answered(pipeline, rows)
    assert answer.beside is not None
    assert answer.beside.rejected_by is not None
    assert answer.beside.rejected_by.tolist() == [NEITHER, NEITHER, DEVIATION, DEVIATION, NEITHER]
    assert answer.reason.tolist()[:4] == [Reason.NONE] * 4
    assert answer.rows.tolist() == [0, 1, 2, 3]
    assert pipeline.counters.uncertain.tolist()[1:] == [0, 2, 0]


def test_angles_have_no_say_in_the_deviation_unless_they_are_part_of_the_joint_block():
    space = Space((Dimension("x", "m"), Dimension("yaw", "rad", DimensionKind.ANGLE)))
    header = Header("lidar", space, CLASSES)
    selection = Selection((), Identity(), rejection=rejection(RejectedBy.DEVIATION, 2.0))
    rows = [wide(1, 4.1, 0.01), wide(2, 3.9, 9.0)]
    for angles, flags in ((False, [DEVIATION, NEITHER]), (True, [NEITHER, DEVIATION])):
        pipeline = pipeline_of(CLASS_IDENTITY, selection, statistics={"angles_in_joint": angles})
        assert beside(pipeline, rows, header).rejected_by.tolist() == flags


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
    pipeline = pipeline_of(classes, selection)
    found = beside(pipeline, rows)
    assert found.rejected_by.tolist() == [NEITHER, ENTROPY, DEVIATION, BOTH, BOTH]
    assert pipeline.counters.uncertain.tolist()[1:] == [1, 1, 2]


def test_only_what_is_forwarded_recalibrated_is_judged_by_its_deviation():
    rejecting = rejection(RejectedBy.DEVIATION, 0.0)
    rows = [wide(1, 1.0, 1.0)]
    other = Selection(("u", "v"), VarianceScaling((1.0, 1.0)), rejection=rejecting)
    assert beside(pipeline_of(CLASS_IDENTITY, other), rows).rejected_by.tolist() == [NEITHER]
    observing = pipeline_of(
        CLASS_IDENTITY, replace(other, dimensions=("x", "y")), recalibration={"mode": "observe"}
    )
    assert beside(observing, rows).rejected_by.tolist() == [NEITHER]


def test_where_a_rejection_fails_the_frame_goes_out_without_flags(monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("broken")

    monkeypatch.setattr("monitor.beside.normalised_entropy", broken)
    classes = replace(WARM, rejection=rejection(RejectedBy.ENTROPY, 0.5))
    pipeline, rows = pipeline_of(classes), [sent(1), sent(2)]
    answer = answered(pipeline, rows)
    assert answer.beside is not None
    assert answer.beside.rejected_by is None
    laws.assert_same(
        answer.beside.class_probabilities, beside(pipeline_of(), rows).class_probabilities
    )
    assert pipeline.counters.internal_errors == 1


# ---- what is in force


def test_promoting_one_kind_leaves_the_other_alone():
    pipeline = pipeline_of(CLASS_IDENTITY)
    double = Selection(("x", "y"), VarianceScaling((2.0, 2.0)))
    versions = [pipeline.learn(one.to_json()).version for one in (double, WARM)]
    change = pipeline.promote(versions[1], "me")
    assert (change.before, change.after) == (CLASS_IDENTITY.version, WARM.version)
    assert (pipeline.selection, pipeline.class_selection) == (IDENTITY, WARM)
    change = pipeline.promote(versions[0], "me")
    assert (change.before, change.after) == (IDENTITY.version, double.version)
    assert (pipeline.selection, pipeline.class_selection) == (double, WARM)
    assert {known.selection.version for known in pipeline.recalibrators() if known.promoted} == {
        double.version,
        WARM.version,
    }
    assert [(entry.method, entry.output) for entry in pipeline.in_force()] == [
        ("variance-scaling", "gaussian"),
        ("temperature", "class_probabilities"),
    ]
    pipeline.promote(CLASS_IDENTITY.version, "me")
    assert [entry.method for entry in pipeline.in_force()] == ["variance-scaling"]
    assert pipeline.counters.swaps == 3


def test_each_frame_is_recalibrated_by_what_is_in_force_when_it_comes():
    pipeline = pipeline_of(CLASS_IDENTITY)
    stream, row = opened(pipeline), sent(1)
    found = []
    for number, version in enumerate([None, WARM.version, CLASS_IDENTITY.version]):
        if version is not None:
            pipeline.learn(WARM.to_json())
            pipeline.promote(version, "me")
        answer = pipeline.process(stream, frame([row], number))
        assert answer.beside is not None
        found.append(answer.beside.class_version)
    assert found == ["", WARM.version, ""]
