"""What goes back with the estimates: what these stand for, and quantiles where asked for."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from scipy.stats import logistic, norm

from monitor.frames.detections import Estimates, Reason
from monitor.frames.frame import FrameAnswer, Header
from monitor.frames.space import FloatArray
from monitor.recalibration.recalibrator import Identity, Output
from monitor.recalibration.scaling import VarianceScaling
from monitor.recalibration.selection import Selection
from tests.piped import (
    BAD,
    BY_SLICE,
    DOUBLE,
    HEADER,
    MISSING,
    SELECTIONS,
    WHITEN,
    XYZ,
    opened,
    outgoing,
    pipeline_of,
    sent,
)
from tests.received import FORMS, frame

GAUSSIAN, MOMENTS, SURROGATE = 1, 2, 3
LEVELS = (0.05, 0.5, 0.975)
ASKING = replace(HEADER, quantile_levels=LEVELS)


@dataclass(frozen=True)
class LogisticMarginals:
    """Logistic distributions: location and scale (n, K)."""

    location: FloatArray
    scale: FloatArray

    def log_density(self, value: FloatArray) -> FloatArray:
        density: FloatArray = logistic.logpdf(value, self.location, self.scale)
        return density

    def cumulative(self, value: FloatArray) -> FloatArray:
        probability: FloatArray = logistic.cdf(value, self.location, self.scale)
        return probability

    def quantiles(self, tau: FloatArray) -> FloatArray:
        return self.location + self.scale * np.log(tau / (1 - tau))[:, None, None]


@dataclass(frozen=True)
class Heavy:
    """Says that errors are logistic with the σ sent as their scale; forwards their moments."""

    output: Output = Output.MOMENTS
    failure: str = ""
    method: ClassVar[str] = "heavy"
    keeps_definite: ClassVar[bool] = True
    k: ClassVar[int] = 3

    def apply(self, estimates: Estimates) -> Estimates:
        covariance = estimates.covariance * (np.pi**2 / 3)
        if self.failure == "at a row":
            covariance[0] = np.nan
        return Estimates(estimates.mean + 0.0, covariance, estimates.diagonal)

    def marginals(self, estimates: Estimates) -> LogisticMarginals:
        if self.failure == "of quantiles":
            raise ZeroDivisionError("broken")
        variance = np.diagonal(estimates.covariance, axis1=1, axis2=2)
        scale = np.sqrt(variance)
        if self.failure == "of a quantile":
            scale[1, 2] = np.nan
        return LogisticMarginals(estimates.mean, scale)

    def parameters(self) -> dict[str, Any]:
        return {}


HEAVY = Selection(XYZ.names, Heavy())
MIXED = Selection(
    XYZ.names,
    Identity(),
    {"truck": Heavy(), "bus": WHITEN, "tram": Heavy(Output.SURROGATE)},
)


def asked(selection: Selection, rows, header: Header = ASKING, **sections) -> FrameAnswer:
    """The answer to a frame; nothing of ours has failed."""
    pipeline = pipeline_of(selection, **sections)
    answer = pipeline.process(opened(pipeline, header), frame(rows))
    assert pipeline.counters.internal_errors == 0
    return answer


def extras(answer: FrameAnswer) -> Any:
    assert answer.extras is not None
    return answer.extras


def classes_of(rows, classes):
    return [replace(row, class_index=c) for row, c in zip(rows, classes, strict=True)]


# ---- what the estimates stand for


@pytest.mark.parametrize("name", SELECTIONS)
def test_what_gaussian_methods_make_is_stated_to_be_gaussian(name):
    rows = [sent(1), BAD, sent(2), MISSING, sent(3)]
    found = extras(asked(SELECTIONS[name], rows, HEADER))
    assert found.output.tolist() == [GAUSSIAN, 0, GAUSSIAN, 0, GAUSSIAN]
    assert found.quantiles is None


@pytest.mark.parametrize("output", list(Output))
def test_a_method_of_another_shape_says_what_it_forwards(output):
    answer = asked(Selection(XYZ.names, Heavy(output)), [sent(1), sent(2)], HEADER)
    number = {Output.GAUSSIAN: GAUSSIAN, Output.MOMENTS: MOMENTS, Output.SURROGATE: SURROGATE}
    assert extras(answer).output.tolist() == [number[output]] * 2


def test_each_detection_states_the_output_of_the_recalibrator_of_its_slice():
    rows = [BAD, *classes_of([sent(i) for i in range(6)], [1, 0, 3, 2, 1, 0])]
    found = extras(asked(MIXED, rows, HEADER))
    assert found.output.tolist() == [0, MOMENTS, GAUSSIAN, SURROGATE, GAUSSIAN, MOMENTS, GAUSSIAN]


def test_a_shadow_states_what_it_stands_for():
    rows = [sent(1), MISSING, sent(2)]
    answer = asked(HEAVY, rows, recalibration={"mode": "observe"})
    assert answer.shadow is not None
    assert extras(answer).output.tolist() == [MOMENTS, 0, MOMENTS]
    assert extras(answer).quantiles is None


def test_nothing_is_stated_where_nothing_was_recalibrated():
    other = Selection(("u", "v", "w"), VarianceScaling((2.0, 2.0, 2.0)))
    answer = asked(other, [sent(1), sent(2)])
    assert answer.reason.tolist() == [Reason.RECALIBRATOR_MISMATCH] * 2
    assert extras(answer).output.tolist() == [0, 0]
    assert extras(answer).quantiles is None


def test_the_row_that_failed_states_nothing_and_its_neighbours_do():
    selection = Selection(XYZ.names, Heavy(failure="at a row"))
    answer = asked(selection, [sent(1), sent(2)])
    assert answer.reason.tolist() == [Reason.RECALIBRATOR_FAILED, Reason.NONE]
    assert extras(answer).output.tolist() == [0, MOMENTS]
    assert np.isnan(extras(answer).quantiles).all(axis=1).tolist() == [True, False]


def test_an_empty_frame_and_one_of_refused_detections_have_nothing_to_state():
    for rows in ([], [BAD], [BAD, MISSING]):
        for selection in (DOUBLE, HEAVY, MIXED):
            assert extras(asked(selection, rows)).output.tolist() == [0] * len(rows)


def test_what_is_in_force_is_said_to_make_the_least_that_is_true_whatever_the_slice():
    heavy = {output: Heavy(output) for output in Output}
    for fallback, of_slices, expected in (
        (Output.GAUSSIAN, (Output.GAUSSIAN, Output.SURROGATE), "surrogate"),
        (Output.MOMENTS, (Output.GAUSSIAN, Output.GAUSSIAN), "moments"),
        (Output.SURROGATE, (Output.MOMENTS,), "surrogate"),
        (Output.GAUSSIAN, (), "gaussian"),
    ):
        by_slice = {f"slice {i}": heavy[output] for i, output in enumerate(of_slices)}
        pipeline = pipeline_of(Selection(XYZ.names, heavy[fallback], by_slice))
        (shown,) = pipeline.recalibrators.active()
        assert shown.output == expected


# ---- quantiles


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", SELECTIONS)
def test_quantiles_of_gaussian_methods_are_those_of_the_gaussian_that_goes_out(name, form):
    rows = [BAD, *(sent(i, form=form) for i in range(5)), MISSING]
    answer = asked(SELECTIONS[name], rows)
    found = extras(answer).quantiles.reshape(len(rows), 3, len(LEVELS))
    assert np.isnan(found[[0, -1]]).all()
    for row in range(1, 6):
        mean, covariance = outgoing(answer)[row]
        variances = covariance if len(covariance) == 3 else np.diag(_full(covariance))
        for k in range(3):
            expected = norm.ppf(LEVELS, mean[k], np.sqrt(variances[k]))
            assert found[row, k] == pytest.approx(expected, rel=1e-12, abs=1e-12)


def _full(values):
    if len(values) == 9:
        return np.array(values).reshape(3, 3)
    matrix = np.zeros((3, 3))
    matrix[np.tril_indices(3)] = values
    return matrix


def test_quantiles_of_a_method_of_another_shape_are_its_own():
    rows = [sent(i) for i in range(4)]
    found = extras(asked(HEAVY, rows)).quantiles.reshape(4, 3, len(LEVELS))
    for i, row in enumerate(rows):
        scale = np.sqrt(np.diag(_full(row.covariance)))
        for k in range(3):
            expected = logistic.ppf(LEVELS, row.mean[k], scale[k])
            assert found[i, k] == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_quantiles_of_every_slice_are_those_of_its_own_method():
    rows = classes_of([sent(i) for i in range(8)], [1, 0, 3, 2, 1, 0, 2, 3])
    found = extras(asked(MIXED, rows)).quantiles
    for i, row in enumerate(rows):
        name = HEADER.classes[row.class_index or 0]
        alone = Selection(XYZ.names, MIXED.by_slice.get(name, MIXED.fallback))
        assert np.array_equal(found[i], extras(asked(alone, [row])).quantiles[0])


def test_where_quantiles_fail_the_estimates_still_go_out():
    selection = Selection(XYZ.names, Heavy(failure="of quantiles"))
    pipeline, rows = pipeline_of(selection), [sent(1), sent(2)]
    answer = pipeline.process(opened(pipeline, ASKING), frame(rows))
    assert answer.reason.tolist() == [Reason.NONE] * 2
    assert outgoing(answer) == outgoing(asked(HEAVY, rows))
    assert extras(answer).output.tolist() == [MOMENTS] * 2
    assert extras(answer).quantiles is None
    (notice,) = answer.notices
    assert (notice.reason, notice.field) == (Reason.RECALIBRATOR_FAILED, "quantiles")
    assert (notice.count, notice.first_index) == (2, 0)
    assert pipeline.counters.internal_errors == 1


def test_where_all_of_the_extras_fail_the_estimates_still_go_out_recalibrated(monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("broken")

    rows = [sent(1), sent(2)]
    expected = outgoing(asked(DOUBLE, rows))
    monkeypatch.setattr("monitor.pipeline.frame_path.answer_extras", broken)
    pipeline = pipeline_of(DOUBLE)
    answer = pipeline.process(opened(pipeline, ASKING), frame(rows))
    assert answer.reason.tolist() == [Reason.NONE] * 2
    assert outgoing(answer) == expected
    assert answer.extras is None
    assert pipeline.counters.internal_errors == 1


def test_a_detection_without_finite_quantiles_gets_none_and_its_neighbours_theirs():
    rows = [sent(1), sent(2), sent(3)]
    answer = asked(Selection(XYZ.names, Heavy(failure="of a quantile")), rows)
    found = extras(answer).quantiles
    whole = extras(asked(HEAVY, rows)).quantiles
    assert np.isnan(found[1]).all()
    assert np.array_equal(found[[0, 2]], whole[[0, 2]])
    (notice,) = answer.notices
    assert (notice.reason, notice.field) == (Reason.RECALIBRATOR_FAILED, "quantiles")
    assert (notice.count, notice.first_index) == (1, 1)


def test_what_a_connection_asks_for_is_its_own_and_the_stream_stays_what_it_is():
    pipeline = pipeline_of(DOUBLE)
    plain, asking = opened(pipeline), opened(pipeline, ASKING)
    assert asking.time is plain.time
    assert asking.number == plain.number
    assert len(pipeline.streams) == 1
    assert extras(pipeline.process(plain, frame([sent(1)], 1))).quantiles is None
    assert extras(pipeline.process(asking, frame([sent(1)], 2))).quantiles is not None
    assert opened(pipeline, ASKING) is asking
    assert extras(pipeline.process(opened(pipeline), frame([sent(1)], 3))).quantiles is None


def test_quantiles_do_not_change_anything_else():
    rows = [sent(1), BAD, sent(2)]
    with_them, without = asked(BY_SLICE, rows), asked(BY_SLICE, rows, HEADER)
    assert outgoing(with_them) == outgoing(without)
    assert with_them.reason.tolist() == without.reason.tolist()
    assert with_them.notices == without.notices
