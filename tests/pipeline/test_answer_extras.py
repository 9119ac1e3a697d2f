"""What goes back beside the estimates: kinds of output, quantiles, flags of too uncertain rows."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from scipy.stats import norm

from monitor.frames.detections import Estimates, Reason
from monitor.frames.frame import FrameAnswer, Header
from monitor.recalibration.class_scaling import Temperature
from monitor.recalibration.recalibrator import Identity, Output, Recalibrator
from monitor.recalibration.rejection import RejectedBy
from monitor.recalibration.scaling import VarianceScaling
from monitor.recalibration.selection import CLASS_IDENTITY, ClassSelection, Selection
from monitor.statistics.measures import NormalMarginals
from tests import laws, piped, piped_classes
from tests.piped import BAD, HEADER, MISSING, SELECTIONS, XYZ, opened, outgoing, pipeline_of, sent
from tests.piped_classes import CLASSES, recalibrating, rejection
from tests.received import Sent, frame

GAUSSIAN, MOMENTS, SURROGATE, ESTIMATED = 1, 2, 3, 4
NUMBER = {
    Output.GAUSSIAN: GAUSSIAN,
    Output.MOMENTS: MOMENTS,
    Output.SURROGATE: SURROGATE,
    Output.ESTIMATED: ESTIMATED,
}
LEVELS = (0.05, 0.5, 0.975)
ASKING = replace(HEADER, quantile_levels=LEVELS)


@dataclass(frozen=True)
class Heavy(Recalibrator):
    """Doubles σ and says that errors are of another shape than Gaussian, or fails at that."""

    output: Output = Output.MOMENTS
    failure: str = ""
    method: ClassVar[str] = "heavy"
    k: ClassVar[int] = 3

    def apply(self, estimates: Estimates) -> Estimates:
        covariance = 4.0 * estimates.covariance
        if self.failure == "at a row":
            covariance[0] = np.nan
        return Estimates(estimates.mean + 0.0, covariance, estimates.diagonal)

    def marginals(self, estimates: Estimates) -> NormalMarginals:
        if self.failure == "of quantiles":
            raise ZeroDivisionError("broken")
        scale = np.sqrt(np.diagonal(estimates.covariance, axis1=1, axis2=2))
        if self.failure == "of a quantile":
            scale[1, 2] = np.nan
        return NormalMarginals(estimates.mean, scale)


HEAVY = Selection(XYZ.names, Heavy())
MIXED = Selection(
    XYZ.names,
    Identity(),
    {"truck": Heavy(), "bus": piped.WHITEN, "tram": Heavy(Output.SURROGATE)},
)


def asked(
    selection: Selection, rows, header: Header = ASKING, *, faults=0, **sections
) -> FrameAnswer:
    """The answer to a frame, with so many faults of ours."""
    pipeline = pipeline_of(selection, **sections)
    answer = pipeline.process(opened(pipeline, header), frame(rows))
    assert pipeline.counters.internal_errors == faults
    return answer


def extras(answer: FrameAnswer) -> Any:
    assert answer.extras is not None
    return answer.extras


def notice_of(answer: FrameAnswer) -> tuple[object, ...]:
    (notice,) = answer.notices
    return notice.reason, notice.field, notice.count, notice.first_index


def of_classes(rows, classes):
    return [replace(row, class_index=c) for row, c in zip(rows, classes, strict=True)]


# ---- what the estimates stand for


THREE = [sent(1), BAD, sent(2), MISSING, sent(3)]
OTHER = Selection(("u", "v", "w"), VarianceScaling((2.0, 2.0, 2.0)))
FAILS_AT_A_ROW = Selection(XYZ.names, Heavy(failure="at a row"))
OBSERVE: dict[str, Any] = {"recalibration": {"mode": "observe"}}


@pytest.mark.parametrize(
    ("selection", "sections", "rows", "output"),
    [
        *((one, {}, THREE, [GAUSSIAN, 0, GAUSSIAN, 0, GAUSSIAN]) for one in SELECTIONS.values()),
        *((Selection(XYZ.names, Heavy(one)), {}, [sent(1)], [NUMBER[one]]) for one in Output),
        (
            MIXED,
            {},
            [BAD, *of_classes([sent(i) for i in range(6)], [1, 0, 3, 2, 1, 0])],
            [0, MOMENTS, GAUSSIAN, SURROGATE, GAUSSIAN, MOMENTS, GAUSSIAN],
        ),
        (HEAVY, OBSERVE, [sent(1), MISSING, sent(2)], [MOMENTS, 0, MOMENTS]),
        (OTHER, {}, [sent(1), sent(2)], [0, 0]),
        (FAILS_AT_A_ROW, {}, [sent(1), sent(2)], [0, MOMENTS]),
        (MIXED, {}, [], []),
        (MIXED, {}, [BAD, MISSING], [0, 0]),
    ],
)
def test_each_row_states_the_output_of_the_recalibrator_of_its_slice(
    selection, sections, rows, output
):
    answer = asked(selection, rows, HEADER, **sections)
    assert extras(answer).output.tolist() == output
    assert extras(answer).quantiles is None


# ---- quantiles


@pytest.mark.parametrize("name", SELECTIONS)
def test_quantiles_of_gaussian_methods_are_those_of_the_gaussian_that_goes_out(name):
    rows = [BAD, *(sent(i) for i in range(5)), MISSING]
    answer = asked(SELECTIONS[name], rows)
    found = extras(answer).quantiles.reshape(len(rows), 3, len(LEVELS))
    assert np.isnan(found[[0, -1]]).all()
    for row in range(1, 6):
        mean, covariance = outgoing(answer)[row]
        for k, variance in enumerate(np.diag(np.reshape(covariance, (3, 3)))):
            expected = norm.ppf(LEVELS, mean[k], np.sqrt(variance))
            assert found[row, k] == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_where_quantiles_fail_the_estimates_still_go_out_and_other_rows_have_theirs():
    rows = [sent(1), sent(2), sent(3)]
    whole = asked(HEAVY, rows)
    none = asked(Selection(XYZ.names, Heavy(failure="of quantiles")), rows, faults=1)
    assert none.reason.tolist() == [Reason.NONE] * 3
    assert outgoing(none) == outgoing(whole)
    assert extras(none).output.tolist() == [MOMENTS] * 3
    assert extras(none).quantiles is None
    assert notice_of(none) == (Reason.RECALIBRATOR_FAILED, "quantiles", 3, 0)
    some = asked(Selection(XYZ.names, Heavy(failure="of a quantile")), rows)
    found = extras(some).quantiles
    assert np.isnan(found[1]).all()
    assert np.array_equal(found[[0, 2]], extras(whole).quantiles[[0, 2]])
    assert notice_of(some) == (Reason.RECALIBRATOR_FAILED, "quantiles", 1, 1)
    failed = extras(asked(FAILS_AT_A_ROW, rows))
    assert np.isnan(failed.quantiles).all(axis=1).tolist() == [True, False, False]


def test_quantiles_go_to_the_connection_that_asks_and_change_nothing_else():
    pipeline = pipeline_of(piped.DOUBLE)
    plain, asking = opened(pipeline), opened(pipeline, ASKING)
    assert extras(pipeline.process(plain, frame([sent(1)], 1))).quantiles is None
    assert extras(pipeline.process(asking, frame([sent(1)], 2))).quantiles is not None
    assert opened(pipeline, ASKING) is asking
    assert extras(pipeline.process(opened(pipeline), frame([sent(1)], 3))).quantiles is None
    with_them, without = asked(piped.BY_SLICE, THREE), asked(piped.BY_SLICE, THREE, HEADER)
    other = replace(extras(with_them), quantiles=None)
    laws.assert_same(replace(with_them, extras=other), without)


# ---- detections that are flagged as too uncertain

NEITHER, ENTROPY, DEVIATION, BOTH = range(4)
UNSURE = rejection(RejectedBy.ENTROPY, 0.5)


def doubtful(*probabilities: float) -> list[Sent]:
    """Detections with these probabilities of the first of three classes, none of the third."""
    return [
        replace(piped_classes.sent(i), class_probabilities=(p, 1 - p, 0.0))
        for i, p in enumerate(probabilities)
    ]


def wide(id: int, *variances: float) -> Sent:
    return replace(piped_classes.sent(id, opinions=0), covariance=variances)


def flags(pipeline, rows, header: Header = piped_classes.HEADER) -> list[int] | None:
    found = extras(piped_classes.answered(pipeline, rows, header)).rejected_by
    assert pipeline.counters.internal_errors == 0
    return None if found is None else found.tolist()


def test_a_detection_whose_recalibrated_deviation_is_too_large_is_flagged():
    scaling = VarianceScaling((2.0, 0.5))
    selection = Selection(("x", "y"), scaling, rejection=rejection(RejectedBy.DEVIATION, 2.0))
    # σ_G = det(Σ)^(1/4): of the recalibrated variances 4 σx² and σy² / 4 it is (σx² σy²)^(1/4).
    rows = [wide(1, 1.0, 1.0), wide(2, 16.0, 1.0), wide(3, 17.0, 1.0), wide(4, 2.0, 50.0)]
    pipeline = recalibrating(CLASS_IDENTITY, selection)
    found = flags(pipeline, [*rows, piped_classes.BAD])
    assert found == [NEITHER, NEITHER, DEVIATION, DEVIATION, NEITHER]
    assert pipeline.counters.uncertain.tolist() == [0, 2, 0]


def test_both_may_reject_one_detection_and_it_is_counted_once():
    classes = ClassSelection(CLASSES, Temperature(1.0), UNSURE)
    selection = Selection((), Identity(), rejection=rejection(RejectedBy.DEVIATION, 1.5))
    certain, doubt = doubtful(0.99, 0.5)
    drawn = [(certain, 1.0), (doubt, 1.0), (certain, 4.0), (doubt, 4.0), (doubt, 9.0)]
    rows = [replace(row, id=i, covariance=(v, v)) for i, (row, v) in enumerate(drawn)]
    pipeline = recalibrating(classes, selection)
    assert flags(pipeline, rows) == [NEITHER, ENTROPY, DEVIATION, BOTH, BOTH]
    assert pipeline.counters.uncertain.tolist() == [1, 1, 2]


def test_only_a_forwarded_recalibrated_estimate_is_judged_by_its_deviation():
    rejecting = rejection(RejectedBy.DEVIATION, 0.0)
    other = Selection(("u", "v"), VarianceScaling((1.0, 1.0)), rejection=rejecting)
    assert flags(recalibrating(CLASS_IDENTITY, other), [wide(1, 1.0, 1.0)]) == [NEITHER]
    fitting = replace(other, dimensions=("x", "y"))
    assert flags(recalibrating(CLASS_IDENTITY, fitting, **OBSERVE), [wide(1, 1.0, 1.0)]) is None
