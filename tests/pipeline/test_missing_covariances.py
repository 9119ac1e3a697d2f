"""Detections that come without a covariance: what goes out, and where they are counted."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from monitor.frames.detections import Estimates, Reason
from monitor.frames.frame import MatchedRows
from monitor.pipeline.truth import claimed
from monitor.recalibration.recalibrator import Identity, Output, Recalibrator
from monitor.recalibration.selection import IDENTITY, Selection
from monitor.statistics.exact_engine import BinCut
from monitor.statistics.reading import read
from tests import laws
from tests.piped import (
    BAD,
    DOUBLE,
    XYZ,
    counted,
    fateless,
    opened,
    outgoing,
    pipeline_of,
    raw,
    reported,
    sent,
    truth_of,
)
from tests.received import FULL, VARIANCES, Label, Sent, frame, in_form, labels

SECOND = 10**9
ESTIMATE = np.array([[0.25, 0.1, 0.0], [0.1, 0.5, 0.0], [0.0, 0.0, 2.0]])


@dataclass(frozen=True)
class Estimated(Recalibrator):
    """Gives every detection one covariance, times 4 where its score is below a half."""

    method: ClassVar[str] = "estimated"
    output: ClassVar[Output] = Output.ESTIMATED

    def apply(self, estimates: Estimates) -> Estimates:
        n = estimates.mean.shape[0]
        unsure = np.zeros(n, bool) if estimates.score is None else estimates.score < 0.5
        factor = np.where(unsure, 4.0, 1.0)
        covariance = factor[:, None, None] * ESTIMATE
        return Estimates(estimates.mean, covariance, np.zeros(n, bool))


FILLS = Selection(XYZ.names, Identity(), {"no covariance": Estimated()})
FILLS_CARS = replace(DOUBLE, by_slice={"car, no covariance": Estimated()})


def bare(id: int, class_index: int = 0, score: float | None = None) -> Sent:
    mean = np.random.default_rng(id).normal(size=3)
    return Sent(id, tuple(mean.tolist()), (), class_index, score=score)


def answered(selection, rows, **sections):
    pipeline = pipeline_of(selection, **sections)
    return pipeline, pipeline.process(opened(pipeline), frame(rows, 1, SECOND))


def test_it_goes_out_with_the_covariance_that_is_estimated_for_it():
    rows = [sent(1), bare(2), BAD, bare(3, score=0.1), bare(4, score=0.9)]
    pipeline, answer = answered(FILLS, rows)
    reasons = [Reason(value) for value in answer.reason.tolist()]
    estimated = Reason.COVARIANCE_ESTIMATED
    refused = Reason.COVARIANCE_NOT_POSITIVE_DEFINITE
    assert reasons == [Reason.NONE, estimated, refused, estimated, estimated]
    assert answer.extras is not None
    assert answer.extras.output.tolist() == [1, 4, 0, 4, 4]
    found = outgoing(answer)
    assert [found[i] for i in (0, 2)] == raw([rows[0], BAD])
    for row, factor in ((1, 1.0), (3, 4.0), (4, 1.0)):
        assert found[row] == (list(rows[row].mean), list(in_form(factor * ESTIMATE, FULL)))
    assert [notice.reason for notice in answer.notices] == [refused]
    counters = pipeline.counters
    assert (counters.recalibrated, counters.estimated) == (1, 3)
    assert (counters.passed_through, counters.refused) == (0, 1)


@pytest.mark.parametrize("selection", [IDENTITY, DOUBLE], ids=["identity", "of what was sent"])
def test_without_an_estimate_it_goes_back_as_it_came_and_the_tracker_gets_the_assumed_one(
    selection,
):
    section = {"kind": "embedded", "missing_deviation": 0.5}
    pipeline, answer = answered(selection, [bare(1), bare(2)], tracker=section)
    assert set(answer.reason.tolist()) == {Reason.MISSING_COVARIANCE}
    assert outgoing(answer) == raw([bare(1), bare(2)])
    (notice,) = answer.notices
    assert (notice.reason, notice.count) == (Reason.MISSING_COVARIANCE, 2)
    assert "from which one is learned" in notice.message
    assert pipeline.counters.passed_through == 2
    tracker = opened(pipeline).tracker
    assert tracker is not None and tracker.tracker.last is not None
    covariance = tracker.tracker.last.reported().covariance[:, :3, :3]
    assert np.array_equal(covariance, np.tile(0.25 * np.eye(3), (2, 1, 1)))


def test_the_slice_of_its_class_decides_and_the_tracker_gets_what_goes_out():
    rows = [bare(1), bare(2, 1), sent(3)]
    pipeline, answer = answered(FILLS_CARS, rows, tracker={"kind": "embedded"})
    assert answer.reason.tolist() == [
        Reason.COVARIANCE_ESTIMATED,
        Reason.MISSING_COVARIANCE,
        Reason.NONE,
    ]
    tracker = opened(pipeline).tracker
    assert tracker is not None and tracker.tracker.last is not None
    tracks = tracker.tracker.last.reported()
    place = {row: i for i, row in enumerate(tracks.detection.tolist())}
    assert np.allclose(tracks.covariance[place[0], :3, :3], ESTIMATE)
    assert np.allclose(tracks.covariance[place[1], :3, :3], np.eye(3))


def test_while_it_observes_the_estimate_is_shown_beside():
    _, answer = answered(FILLS, [bare(1)], recalibration={"mode": "observe"})
    assert answer.reason.tolist() == [Reason.OBSERVE_MODE]
    assert outgoing(answer) == raw([bare(1)])
    assert answer.shadow is not None
    assert np.array_equal(answer.shadow.covariance[0], ESTIMATE)


def test_a_recalibrator_of_other_dimensions_estimates_none():
    other = Selection(("u", "v"), Identity(), {"no covariance": Estimated()})
    _, answer = answered(other, [bare(1), sent(2)])
    assert answer.reason.tolist() == [Reason.MISSING_COVARIANCE, Reason.RECALIBRATOR_MISMATCH]


def errors_of(pipeline, name):
    """What is known of the errors of a slice: detections, and bias and RMSE by dimension."""
    found = read(counted(pipeline)[name].raw, BinCut(1))
    dimensions = found.dimensions.values()
    return found.joint.n, [one.bias for one in dimensions], [one.rmse for one in dimensions]


def test_its_errors_are_counted_beside_those_of_other_detections():
    rows = [replace(sent(1), class_index=0), bare(2), replace(sent(3), class_index=0), bare(4)]
    told = [Label(row.id, truth_of(row)) for row in rows]
    both, alone = pipeline_of(FILLS), pipeline_of(FILLS)
    for pipeline, sent_rows in ((both, rows), (alone, rows[::2])):
        pipeline.process(opened(pipeline), frame(sent_rows, 1, SECOND))
        reported(pipeline, labels(told, 1))
    # What was sent never meets what is assumed.
    laws.assert_same(counted(both)["car"], counted(alone)["car"])
    laws.assert_same(counted(both)["total"], counted(alone)["total"])
    error = np.array([np.subtract(truth_of(row), row.mean) for row in rows[1::2]])
    n, bias, rmse = errors_of(both, "car, no covariance")
    assert n == 2
    np.testing.assert_allclose(bias, error.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(rmse, np.sqrt(np.square(error).mean(axis=0)), rtol=1e-9)
    made = counted(both)["car, no covariance"].recalibrated
    white = np.linalg.solve(np.linalg.cholesky(ESTIMATE), error.T)
    np.testing.assert_allclose(made.whitened, white @ white.T, atol=1e-9)
    laws.assert_same(counted(both)["total, no covariance"], counted(both)["car, no covariance"])
    assert fateless(both.ledger.fates) == both.ledger.fates.pending == 0


def test_a_frame_without_any_covariance_is_read_as_one_piece():
    rows = [bare(i) for i in range(1, 20)]
    pipeline, other = pipeline_of(FILLS), pipeline_of(FILLS)
    whole = frame(rows, 1, SECOND)
    single = replace(whole, detections=replace(whole.detections, uniform=False))
    one = pipeline.process(opened(pipeline), whole)
    two = other.process(opened(other), single)
    assert one.forwarded is not None and two.forwarded is not None
    laws.assert_same(one.forwarded, two.forwarded)
    assert not one.notices and np.array_equal(one.reason, two.reason)


def test_what_is_only_assumed_cannot_drift_and_what_is_estimated_can():
    assumed = np.tile(np.eye(3), (2, 1, 1))
    made = np.stack([ESTIMATE, np.eye(3)])
    error = np.ones((2, 3))
    space = XYZ.with_assumed
    rows = MatchedRows(space, np.array([0, 1]), error, assumed, 2 * error, made)
    found = claimed(rows)
    assert found.unchanged and found.slices.tolist() == [0]
    assert np.array_equal(found.covariance, ESTIMATE[None])
    assert np.array_equal(found.error, 2 * error[:1])
    assert claimed(replace(rows, recalibrated_covariance=assumed)).n == 0
    of_sent = replace(rows, space=XYZ)
    assert claimed(of_sent) is of_sent


@pytest.mark.parametrize("form", [FULL, VARIANCES])
def test_a_limit_that_the_assumed_covariance_is_beyond_refuses_nothing(form):
    limits = {"smallest_deviation": 2.0}
    row = Sent(1, (0.0, 0.0, 0.0), in_form(9.0 * np.eye(3), form))
    _, answer = answered(IDENTITY, [row, bare(2)], limits=limits)
    assert answer.reason.tolist() == [Reason.NONE, Reason.MISSING_COVARIANCE]
