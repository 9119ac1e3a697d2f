"""Whatever of ours fails, frames are answered and what can be counted is counted."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from monitor.frames.detections import Estimates, Reason
from monitor.frames.slices import TOTAL
from monitor.pipeline import frame_path
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.labelled_rows import MatchedCounting
from monitor.pipeline.pending import LedgerFrames
from monitor.pipeline.truth import TruthLedger
from monitor.recalibration.recalibrator import Output, Recalibrator
from monitor.recalibration.selection import Selection
from monitor.statistics.stage import observe
from tests import laws
from tests.piped import (
    BAD,
    DOUBLE,
    WHITEN,
    XYZ,
    assert_same_statistics,
    counted,
    opened,
    outgoing,
    pipeline_of,
    raw,
    reported,
    sent,
    truth_of,
)
from tests.received import Label, Sent, frame, labels


@dataclass(frozen=True)
class Broken:
    """Doubles σ, and fails in one of several ways: whole, or at detections whose z is above 0."""

    failure: str
    keeps_definite: bool = True
    output: Output = Output.GAUSSIAN
    method: ClassVar[str] = "broken"
    k: ClassVar[None] = None

    def apply(self, estimates: Estimates) -> Estimates:
        covariance = 4.0 * estimates.covariance
        mean = estimates.mean.copy()
        bad = estimates.mean[:, 2] > 0
        match self.failure:
            case "raises":
                raise ZeroDivisionError("broken")
            case "raises at a bad one":
                if bad.any():
                    raise ZeroDivisionError("broken")
            case "gives back fewer":
                return Estimates(mean[:1], covariance[:1], estimates.diagonal[:1])
            case "NaN covariance":
                covariance[bad, 0, 1] = np.nan
            case "infinite covariance":
                covariance[bad, 0, 1], covariance[bad, 1, 0] = np.inf, -np.inf
            case "NaN mean":
                mean[bad, 0] = np.nan
            case "infinite mean":
                mean[bad] = [np.inf, -np.inf, 0.0]
            case "negative variance":
                covariance[bad, 1, 1] = -1.0
            case "zero variance":
                covariance[bad, 1, 1] = 0.0
            case "indefinite":
                covariance[bad] = [[1.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
        return Estimates(mean, covariance, estimates.diagonal)

    def parameters(self) -> dict[str, Any]:
        return {"failure": self.failure}


ROW_FAILURES = [
    ("NaN covariance", True),
    ("NaN covariance", False),
    ("infinite covariance", True),
    ("NaN mean", True),
    ("infinite mean", True),
    ("negative variance", True),
    ("zero variance", True),
    ("indefinite", False),
]
MIXED = [-1.0, 2.0, -3.0, 4.0, -5.0]  # z of five detections, two of them bad


def at_heights(heights) -> list[Sent]:
    rows = [sent(i) for i in range(len(heights))]
    return [replace(row, mean=(*row.mean[:2], z)) for row, z in zip(rows, heights, strict=True)]


@pytest.mark.parametrize(("failure", "definite"), ROW_FAILURES)
@pytest.mark.parametrize("mode", ["apply", "observe"])
def test_only_the_rows_a_recalibrator_fails_at_are_passed_by(failure, definite, mode):
    selection = Selection(XYZ.names, Broken(failure, definite))
    pipeline = pipeline_of(selection, recalibration={"mode": mode})
    rows = [BAD, *at_heights(MIXED)]
    answer = pipeline.process(opened(pipeline), frame(rows))
    failed, other = Reason.RECALIBRATOR_FAILED, Reason.NONE
    if mode == "observe":
        other = Reason.OBSERVE_MODE
    assert answer.reason.tolist() == [
        Reason.COVARIANCE_NOT_POSITIVE_DEFINITE,
        *(failed if z > 0 else other for z in MIXED),
    ]
    made, made_rows = answer.forwarded, answer.rows
    if mode == "observe":
        assert (answer.forwarded, outgoing(answer)) == (None, raw(rows))
        made, made_rows = answer.shadow, answer.shadow_rows
    assert made is not None
    assert made_rows.tolist() == [1, 3, 5]
    for position, row in enumerate(made_rows.tolist()):
        assert tuple(made.mean[position]) == rows[row].mean
        expected = 4.0 * np.reshape(rows[row].covariance, (3, 3))
        assert np.array_equal(made.covariance[position], expected)
    found = outgoing(answer)
    assert [found[i] for i in (0, 2, 4)] == raw([rows[i] for i in (0, 2, 4)])
    counters = pipeline.counters
    assert counters.by_reason[failed] == 2
    assert counters.internal_errors == 0
    (notice,) = [notice for notice in answer.notices if notice.reason is failed]
    assert (notice.count, notice.first_index) == (2, 2)


@pytest.mark.parametrize("failure", ["raises", "raises at a bad one", "gives back fewer"])
@pytest.mark.parametrize("by_slice", [False, True])
@pytest.mark.parametrize("mode", ["apply", "observe"])
def test_a_recalibrator_that_fails_whole_is_passed_by_and_counted(failure, by_slice, mode):
    broken: Recalibrator = Broken(failure)
    selection = Selection(XYZ.names, broken, {"no such slice": WHITEN} if by_slice else {})
    pipeline = pipeline_of(selection, recalibration={"mode": mode})
    rows = [*at_heights(MIXED), BAD]
    answer = pipeline.process(opened(pipeline), frame(rows))
    assert answer.reason.tolist() == [Reason.RECALIBRATOR_FAILED] * 5 + [
        Reason.COVARIANCE_NOT_POSITIVE_DEFINITE
    ]
    assert outgoing(answer) == raw(rows)
    assert answer.shadow_rows.size == 0
    counters = pipeline.counters
    assert counters.by_reason[Reason.RECALIBRATOR_FAILED] == counters.passed_through == 5
    assert counters.internal_errors == int(failure != "gives back fewer" or by_slice)
    assert Reason.RECALIBRATOR_FAILED in {notice.reason for notice in answer.notices}


@pytest.mark.parametrize("heights", [MIXED, [1.0] * 5, [-1.0] * 5])
@pytest.mark.parametrize(
    ("failure", "definite"),
    [*ROW_FAILURES, ("raises", True), ("raises at a bad one", True), ("gives back fewer", True)],
)
def test_what_went_out_is_what_is_scored_by_inline_and_late_truth(failure, definite, heights):
    broken: Recalibrator = Broken(failure, definite)
    inline, late = (pipeline_of(Selection(XYZ.names, broken)) for _ in range(2))
    rows = at_heights(heights)
    answer = inline.process(
        opened(inline), frame([replace(row, truth=truth_of(row)) for row in rows])
    )
    late.process(opened(late), frame(rows))
    # One at a time: a row must fare as it did among its neighbours.
    for row in rows:
        reported(late, labels([Label(row.id, truth_of(row))]))
    assert_same_statistics(inline, late)
    assert late.counters.internal_errors == inline.counters.internal_errors
    out = outgoing(answer)
    truths = np.array([truth_of(row) for row in rows])
    error = truths - [mean for mean, _ in out]
    covariance = np.array([covariance for _, covariance in out]).reshape(-1, 3, 3)
    total = counted(inline)[TOTAL]
    laws.assert_same(
        total.recalibrated, observe(XYZ, inline.live.accumulator.binning, error, covariance)
    )


@pytest.mark.parametrize("stage", ["examine", "describe"], ids=lambda name: f"{name} raises")
def test_whatever_of_ours_fails_the_raw_estimates_go_out(stage, monkeypatch):
    def fail(*_: object) -> None:
        raise RuntimeError("broken")

    pipeline = pipeline_of(DOUBLE)
    stream = opened(pipeline)
    rows = [sent(1), BAD, sent(2)]
    with monkeypatch.context() as patched:
        patched.setattr(frame_path, stage, fail)
        answer = pipeline.process(stream, frame(rows))
    assert answer.reason.tolist() == [Reason.INTERNAL] * 3
    assert outgoing(answer) == raw(rows)
    assert pipeline.counters.internal_errors == 1
    assert pipeline.counters.by_reason[Reason.INTERNAL] == 3
    assert pipeline.counters.frames == 1
    # The next frame is a frame like any other.
    answer = pipeline.process(stream, frame(rows, 2))
    assert answer.reason[0] == Reason.NONE


@pytest.mark.parametrize("stage", ["storing", "counting", "entering", "watermark"])
def test_a_failure_of_counting_costs_the_tracker_nothing(stage, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("broken")

    pipeline, whole = pipeline_of(DOUBLE), pipeline_of(DOUBLE)
    stream = opened(pipeline)
    rows = [sent(1, truth=True), BAD, sent(2)]
    with monkeypatch.context() as patched:
        owner, method = {
            "storing": (LedgerFrames, "stored"),
            "counting": (MatchedCounting, "count_rows"),
            "entering": (TruthLedger, "enter"),
            "watermark": (Pipeline, "_advance_watermark"),
        }[stage]
        patched.setattr(owner, method, fail)
        answer = pipeline.process(stream, frame(rows))
    expected = whole.process(opened(whole), frame(rows))
    assert answer.reason.tolist() == expected.reason.tolist()
    assert outgoing(answer) == outgoing(expected) != raw(rows)
    assert answer.notices == expected.notices
    assert pipeline.counters.internal_errors == 1
    assert pipeline.counters.recalibrated == 2
    assert pipeline.counters.frames == 1
    # The next frame is a frame like any other.
    pipeline.process(stream, frame(rows, 2))
    assert ("lidar", 2) in pipeline.ledger.fates.store
    assert pipeline.counters.internal_errors == 1
