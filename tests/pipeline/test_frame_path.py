"""Frames in, answers out: what is recalibrated, passed through, refused, and what a fault costs."""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.frames.detections import Estimates, Reason
from monitor.frames.slices import TOTAL
from monitor.pipeline import frame_path
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.pending import LedgerFrames
from monitor.pipeline.recalibrators import UnknownVersion
from monitor.pipeline.truth import TruthLedger
from monitor.recalibration.recalibrator import Recalibrator
from monitor.recalibration.scaling import VarianceScaling
from monitor.recalibration.selection import CLASS_IDENTITY, IDENTITY, Selection
from monitor.statistics.state import observe
from tests import laws, piped
from tests.piped import BAD, DOUBLE, assert_same_statistics, outgoing, pipeline_of, raw, sent
from tests.received import FORMS, TRIANGLE, Label, Sent, frame, in_form, labels

INDEFINITE = Reason.COVARIANCE_NOT_POSITIVE_DEFINITE
OTHER_DIMENSIONS = Selection(("u", "v"), VarianceScaling((2.0, 2.0)))
OBSERVING: dict[str, Any] = {"recalibration": {"mode": "observe"}}


def processed(pipeline: Pipeline, rows, number=1):
    return pipeline.process(piped.opened(pipeline), frame(rows, number))


# ---- what goes out


@pytest.mark.parametrize("form", FORMS)
def test_the_identity_passes_every_bit(form):
    pipeline = pipeline_of()
    rows = [sent(i, form=form) for i in range(6)]
    rows[2] = replace(rows[2], class_index=99)
    answer = processed(pipeline, rows)
    assert outgoing(answer) == raw(rows)
    assert answer.reason.tolist() == [1, 1, Reason.UNKNOWN_CLASS, 1, 1, 1]
    assert answer.versions == (IDENTITY.version,)
    assert pipeline.counters.recalibrated == 5


@pytest.mark.parametrize("form", FORMS)
def test_usable_rows_go_out_recalibrated_and_all_others_as_they_came(form):
    rows = [sent(1, form=form), BAD, sent(2, form=form), piped.MISSING]
    answer = processed(pipeline_of(DOUBLE), rows)
    reasons = [Reason.NONE, INDEFINITE, Reason.NONE, Reason.MISSING_COVARIANCE]
    assert answer.reason.tolist() == reasons
    assert answer.rows.tolist() == [0, 2]
    assert answer.versions == (DOUBLE.version,)
    found = outgoing(answer)
    assert [found[1], found[3]] == raw([BAD, piped.MISSING])
    for i in (0, 2):
        mean, covariance = found[i]
        assert mean == list(rows[i].mean)
        if form == TRIANGLE:
            covariance = list(in_form(np.reshape(covariance, (3, 3)), TRIANGLE))
        assert covariance == [4.0 * value for value in rows[i].covariance]
    assert {notice.reason for notice in answer.notices} == set(reasons) - {Reason.NONE}


@pytest.mark.parametrize("selection", piped.SELECTIONS.values(), ids=piped.SELECTIONS)
def test_observing_forwards_what_came_and_shows_what_would_have_been_made_of_it(selection):
    observing, applying = pipeline_of(selection, **OBSERVING), pipeline_of(selection)
    rows = [sent(i, form=FORMS[i % 3], truth=True) for i in range(6)] + [BAD]
    watched, applied = processed(observing, rows), processed(applying, rows)
    assert outgoing(watched) == raw(rows)
    assert watched.forwarded is None
    assert watched.reason.tolist() == [Reason.OBSERVE_MODE] * 6 + [INDEFINITE]
    assert watched.shadow_rows.tolist() == list(range(6))
    assert watched.shadow is not None
    if applied.forwarded is not None:
        laws.assert_same(watched.shadow, applied.forwarded)
    assert_same_statistics(observing, applying)
    assert (observing.counters.passed_through, observing.counters.refused) == (6, 1)


any_row = st.tuples(
    st.sampled_from(["fine", "fine", "bad", "missing", "unknown class", "no id", "short mean"]),
    st.sampled_from(FORMS),
)


@given(
    st.lists(st.lists(any_row, max_size=5), max_size=5),
    st.sampled_from(["apply", "observe"]),
    st.sampled_from([DOUBLE, IDENTITY, OTHER_DIMENSIONS]),
)
def test_every_detection_is_recalibrated_passed_through_or_refused(frames, mode, selection):
    pipeline = pipeline_of(selection, recalibration={"mode": mode})
    stream = piped.opened(pipeline)
    expected: Counter[str] = Counter()
    passes = mode == "observe" or selection is OTHER_DIMENSIONS
    for number, kinds in enumerate(frames):
        rows = []
        for i, (kind, form) in enumerate(kinds):
            row = sent(i, form=form)
            changes = {
                "fine": row,
                "bad": replace(BAD, id=i),
                "missing": replace(piped.MISSING, id=i),
                "unknown class": replace(row, class_index=None),
                "no id": replace(row, id=None),
                "short mean": replace(row, mean=(1.0,)),
            }
            rows.append(changes[kind])
            fine = "passed" if passes else "recalibrated"
            expected[{"fine": fine, "missing": "passed"}.get(kind, "refused")] += 1
        sent_so = replace(frame(rows, number), fast=number % 2 == 0)
        assert pipeline.process(stream, sent_so).reason.size == len(rows)
    counters = pipeline.counters
    assert counters.recalibrated == expected["recalibrated"]
    assert counters.passed_through == expected["passed"]
    assert counters.refused == expected["refused"]
    assert counters.detections == sum(map(len, frames)) == sum(expected.values())
    n = len(frames)
    assert (counters.fast_frames, counters.slow_frames, counters.frames) == (n - n // 2, n // 2, n)


# ---- recalibrators


def test_a_recalibrator_is_learned_from_its_document_and_activated_by_version():
    pipeline = pipeline_of()
    known = pipeline.recalibrators
    learned = known.learn(DOUBLE.to_json())
    assert learned == DOUBLE
    assert known.learn(DOUBLE.to_json()) is learned
    assert known.learn(IDENTITY.to_json()) is IDENTITY
    assert [(one.selection.version, one.promoted) for one in known.listed()] == [
        (IDENTITY.version, True),
        (CLASS_IDENTITY.version, True),
        (DOUBLE.version, False),
    ]
    with pytest.raises(UnknownVersion, match=f"no recalibrator 'magic-1'.*{IDENTITY.version}"):
        pipeline.activate("magic-1")
    assert known.selection is IDENTITY
    assert pipeline.activate(DOUBLE.version) == IDENTITY.version
    answer = processed(pipeline, [sent(1)])
    assert answer.versions == (DOUBLE.version,)
    assert answer.forwarded is not None


def test_the_oldest_recalibrator_that_is_not_active_makes_room():
    known = pipeline_of().recalibrators
    for i in range(998):
        known.known[str(i)] = DOUBLE
    assert len(known.known) == 1000
    known.learn(DOUBLE.to_json())
    assert len(known.known) == 1000
    assert "0" not in known.known and "1" in known.known


# ---- recalibrators that fail


@dataclass(frozen=True)
class Broken(Recalibrator):
    """Doubles σ, and fails in one of several ways: whole, or at detections whose z is above 0."""

    failure: str
    keeps_definite: bool = True
    method: ClassVar[str] = "broken"

    def apply(self, estimates: Estimates) -> Estimates:
        covariance = 4.0 * estimates.covariance
        mean = estimates.mean.copy()
        bad = estimates.mean[:, 2] > 0
        match self.failure:
            case "raises at a bad one":
                if bad.any():
                    raise ZeroDivisionError("broken")
            case "gives back fewer":
                return Estimates(mean[:1], covariance[:1], estimates.diagonal[:1])
            case "NaN covariance":
                covariance[bad, 0, 1] = np.nan
            case "infinite mean":
                mean[bad] = [np.inf, -np.inf, 0.0]
            case "indefinite":
                covariance[bad] = [[1.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
        return Estimates(mean, covariance, estimates.diagonal)


ROW_FAILURES = [("NaN covariance", True), ("infinite mean", True), ("indefinite", False)]
WHOLE_FAILURES = ["raises at a bad one", "gives back fewer"]
HEIGHTS = [-1.0, 2.0, -3.0, 4.0, -5.0]  # z of five detections, two of them bad


def at_heights(heights) -> list[Sent]:
    rows = [sent(i) for i in range(len(heights))]
    return [replace(row, mean=(*row.mean[:2], z)) for row, z in zip(rows, heights, strict=True)]


def breaking(failure: str, *, definite=True) -> Recalibrator:
    return Broken(failure, definite)


@pytest.mark.parametrize(("failure", "definite"), ROW_FAILURES)
@pytest.mark.parametrize("mode", ["apply", "observe"])
def test_only_the_rows_that_a_recalibrator_fails_at_are_passed_through(failure, definite, mode):
    selection = Selection(piped.XYZ.names, breaking(failure, definite=definite))
    pipeline = pipeline_of(selection, recalibration={"mode": mode})
    rows = [BAD, *at_heights(HEIGHTS)]
    answer = processed(pipeline, rows)
    failed, other = Reason.RECALIBRATOR_FAILED, Reason.NONE
    made, made_rows = answer.forwarded, answer.rows
    if mode == "observe":
        other = Reason.OBSERVE_MODE
        assert (answer.forwarded, outgoing(answer)) == (None, raw(rows))
        made, made_rows = answer.shadow, answer.shadow_rows
    assert answer.reason.tolist() == [INDEFINITE, *(failed if z > 0 else other for z in HEIGHTS)]
    assert made is not None
    assert made_rows.tolist() == [1, 3, 5]
    for position, row in enumerate(made_rows.tolist()):
        assert tuple(made.mean[position]) == rows[row].mean
        expected = 4.0 * np.reshape(rows[row].covariance, (3, 3))
        assert np.array_equal(made.covariance[position], expected)
    found = outgoing(answer)
    assert [found[i] for i in (0, 2, 4)] == raw([rows[i] for i in (0, 2, 4)])
    assert pipeline.counters.by_reason[failed] == 2
    assert pipeline.counters.internal_errors == 0
    (notice,) = [notice for notice in answer.notices if notice.reason is failed]
    assert (notice.count, notice.first_index) == (2, 2)


@pytest.mark.parametrize(
    ("failure", "definite"), [*ROW_FAILURES, *((failure, True) for failure in WHOLE_FAILURES)]
)
def test_what_went_out_is_what_is_scored_by_inline_and_late_labels(failure, definite):
    selection = Selection(piped.XYZ.names, breaking(failure, definite=definite))
    inline, late = pipeline_of(selection), pipeline_of(selection)
    rows = at_heights(HEIGHTS)
    answer = processed(inline, [replace(row, truth=piped.truth_of(row)) for row in rows])
    processed(late, rows)
    # One at a time: a row must fare as it did among its neighbours.
    for row in rows:
        piped.reported(late, labels([Label(row.id, piped.truth_of(row))]))
    assert_same_statistics(inline, late)
    assert late.counters.internal_errors == inline.counters.internal_errors
    out = outgoing(answer)
    error = np.array([piped.truth_of(row) for row in rows]) - [mean for mean, _ in out]
    covariance = np.array([covariance for _, covariance in out]).reshape(-1, 3, 3)
    expected = observe(piped.XYZ, inline.live.accumulator.binning, error, covariance)
    laws.assert_same(piped.counted(inline)[TOTAL].recalibrated, expected)


# ---- faults of ours


def fail(*_: object, **__: object) -> None:
    raise RuntimeError("broken")


FAULTS: dict[str, tuple[Any, str]] = {
    "examine": (frame_path, "examine"),
    "describe": (frame_path, "describe"),
    "store": (LedgerFrames, "stored"),
    "count": (TruthLedger, "count"),
    "enter": (TruthLedger, "enter"),
    "watermark": (Pipeline, "_advance_watermark"),
}


@pytest.mark.parametrize("stage", FAULTS)
def test_a_fault_passes_the_frame_through_and_a_fault_of_counting_costs_the_answer_nothing(
    stage, monkeypatch
):
    pipeline, whole = pipeline_of(DOUBLE), pipeline_of(DOUBLE)
    rows = [sent(1, truth=True), BAD, sent(2)]
    with monkeypatch.context() as patched:
        patched.setattr(*FAULTS[stage], fail)
        answer = processed(pipeline, rows)
    expected, counters = processed(whole, rows), pipeline.counters
    if stage in ("examine", "describe"):
        assert answer.reason.tolist() == [Reason.INTERNAL] * 3
        assert outgoing(answer) == raw(rows)
        assert counters.by_reason[Reason.INTERNAL] == 3
    else:
        assert answer.reason.tolist() == expected.reason.tolist()
        assert outgoing(answer) == outgoing(expected) != raw(rows)
        assert answer.notices == expected.notices
        assert counters.recalibrated == 2
    assert (counters.internal_errors, counters.frames) == (1, 1)
    # All three are in the account, and the next frame is a frame like any other.
    assert pipeline.ledger.fates.account["predicted"] == 3
    assert processed(pipeline, rows, 2).reason[0] == Reason.NONE
    pipeline.remember_answered()
    assert ("lidar", 2) in pipeline.ledger.fates.store
    assert counters.internal_errors == 1


# ---- an answer goes out before its frame is remembered


def test_labels_between_an_answer_and_its_memory_find_their_frame():
    pipeline = pipeline_of(DOUBLE)
    pipeline.answer_all([(piped.opened(pipeline), frame([sent(5), sent(3, truth=True)]))])
    assert len(pipeline.ledger.fates.store) == 0
    found = piped.reported(pipeline, labels([Label(5, piped.GOOD_TRUTH)]))
    assert piped.account_of(found.account) == {"matched": 1}
    assert pipeline.counters.truth.matched == 2  # the other one came with the frame
    assert pipeline.ledger.sequence == 2


def test_a_swap_of_recalibrators_comes_after_the_frames_that_were_answered(monkeypatch):
    pipeline = pipeline_of(DOUBLE)
    version = pipeline.recalibrators.learn(piped.BY_SLICE.to_json()).version
    order: list[str] = []
    monkeypatch.setattr(type(pipeline.drift), "changed", lambda *_, **__: order.append("swapped"))
    monkeypatch.setattr(type(pipeline.ledger), "enter", lambda *_: order.append("remembered"))
    pipeline.answer_all([(piped.opened(pipeline), frame([sent(5)]))])
    pipeline.activate(version)
    assert order == ["remembered", "swapped"]
