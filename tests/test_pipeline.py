"""The stages in order, without edges: frames in, answers out, everything counted."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.frames.cholesky import factorise
from monitor.frames.detections import Reason
from monitor.frames.slices import TOTAL, RangeBuckets
from monitor.pipeline.recalibrators import UnknownVersion
from monitor.recalibration.classes.class_selection import CLASS_IDENTITY
from monitor.recalibration.recalibrator import InvalidRecalibrator
from monitor.recalibration.scaling import VarianceScaling
from monitor.recalibration.selection import IDENTITY, Selection
from tests import laws
from tests.piped import (
    BAD,
    BY_SLICE,
    DOUBLE,
    MISSING,
    SELECTIONS,
    WHITEN,
    XYZ,
    assert_same_statistics,
    counted,
    opened,
    outgoing,
    pipeline_of,
    raw,
    sent,
)
from tests.received import FORMS, TRIANGLE, Sent, frame, in_form

# ---- frames


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", range(3))
def test_the_identity_passes_every_bit(form, seed):
    pipeline = pipeline_of()
    rows = [sent(i, 10 * seed + i, form) for i in range(6)]
    rows[2] = replace(rows[2], class_index=99)
    answer = pipeline.process(opened(pipeline), frame(rows))
    assert outgoing(answer) == raw(rows)
    assert answer.reason.tolist() == [1, 1, Reason.UNKNOWN_CLASS, 1, 1, 1]
    assert answer.versions == (IDENTITY.version,)
    assert pipeline.counters.recalibrated == 5


@pytest.mark.parametrize("form", FORMS)
def test_usable_rows_go_out_recalibrated_and_all_others_as_they_came(form):
    pipeline = pipeline_of(DOUBLE)
    rows = [sent(1, form=form), BAD, sent(2, form=form), MISSING]
    answer = pipeline.process(opened(pipeline), frame(rows))
    assert answer.reason.tolist() == [
        Reason.NONE,
        Reason.COVARIANCE_NOT_POSITIVE_DEFINITE,
        Reason.NONE,
        Reason.MISSING_COVARIANCE,
    ]
    assert answer.rows.tolist() == [0, 2]
    found = outgoing(answer)
    assert [found[1], found[3]] == raw([BAD, MISSING])
    for i in (0, 2):
        mean, covariance = found[i]
        assert mean == list(rows[i].mean)
        if form == TRIANGLE:
            covariance = list(in_form(np.reshape(covariance, (3, 3)), TRIANGLE))
        assert covariance == [4.0 * value for value in rows[i].covariance]
    assert {notice.reason for notice in answer.notices} == {
        Reason.COVARIANCE_NOT_POSITIVE_DEFINITE,
        Reason.MISSING_COVARIANCE,
    }


def test_a_frame_without_detections_is_answered():
    pipeline = pipeline_of(BY_SLICE)
    answer = pipeline.process(opened(pipeline), frame([]))
    assert answer.reason.size == 0
    assert answer.notices == ()
    assert pipeline.counters.frames == 1
    assert counted(pipeline) == {}


@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS)
def test_observing_forwards_what_came_with_what_would_have_been_made_of_it(selection):
    observing = pipeline_of(selection, recalibration={"mode": "observe"})
    applying = pipeline_of(selection)
    rows = [sent(i, form=FORMS[i % 3], truth=True) for i in range(6)] + [BAD]
    watched = observing.process(opened(observing), frame(rows))
    applied = applying.process(opened(applying), frame(rows))
    assert outgoing(watched) == raw(rows)
    assert watched.forwarded is None
    assert watched.reason.tolist() == [Reason.OBSERVE_MODE] * 6 + [
        Reason.COVARIANCE_NOT_POSITIVE_DEFINITE
    ]
    assert watched.shadow_rows.tolist() == list(range(6))
    assert watched.shadow is not None
    if applied.forwarded is not None:
        laws.assert_same(watched.shadow, applied.forwarded)
    # What is measured is the same in either mode.
    assert_same_statistics(observing, applying)
    assert observing.counters.passed_through == 6
    assert observing.counters.refused == 1


def test_a_recalibrator_of_other_dimensions_is_not_applied():
    pipeline = pipeline_of(Selection(("u", "v"), VarianceScaling((2.0, 2.0))))
    rows = [sent(1, truth=True), sent(2, truth=True)]
    answer = pipeline.process(opened(pipeline), frame(rows))
    assert answer.reason.tolist() == [Reason.RECALIBRATOR_MISMATCH] * 2
    assert outgoing(answer) == raw(rows)
    assert pipeline.counters.passed_through == 2
    assert pipeline.counters.internal_errors == 0
    total = counted(pipeline)[TOTAL]
    assert total.raw.n == 2
    laws.assert_same(total.recalibrated, total.raw)


# ---- counters

any_row = st.tuples(
    st.sampled_from(["fine", "fine", "bad", "missing", "unknown class", "no id", "short mean"]),
    st.sampled_from(FORMS),
)


@settings(max_examples=50)
@given(
    st.lists(st.lists(any_row, max_size=5), max_size=5),
    st.sampled_from(["apply", "observe"]),
    st.sampled_from([DOUBLE, IDENTITY, Selection(("u",), VarianceScaling((2.0,)))]),
)
def test_every_detection_is_recalibrated_passed_through_or_refused(frames, mode, selection):
    pipeline = pipeline_of(selection, recalibration={"mode": mode})
    stream = opened(pipeline)
    expected: Counter[str] = Counter()
    valid = "passed" if mode == "observe" or selection.dimensions == ("u",) else "recalibrated"
    for number, kinds in enumerate(frames):
        rows = []
        for i, (kind, form) in enumerate(kinds):
            row = sent(i, form=form)
            changes = {
                "fine": row,
                "bad": replace(BAD, id=i),
                "missing": replace(MISSING, id=i),
                "unknown class": replace(row, class_index=None),
                "no id": replace(row, id=None),
                "short mean": replace(row, mean=(1.0,)),
            }
            rows.append(changes[kind])
            expected[{"fine": valid, "missing": "passed"}.get(kind, "refused")] += 1
        answer = pipeline.process(stream, frame(rows, number))
        assert answer.reason.size == len(rows)
    counters = pipeline.counters
    assert counters.recalibrated == expected["recalibrated"]
    assert counters.passed_through == expected["passed"]
    assert counters.refused == expected["refused"]
    assert counters.detections == sum(map(len, frames))
    assert counters.detections == (
        counters.recalibrated + counters.passed_through + counters.refused
    )
    assert counters.frames == counters.fast_frames + counters.slow_frames == len(frames)


def test_fast_and_slow_frames_are_counted_apart():
    pipeline = pipeline_of()
    stream = opened(pipeline)
    pipeline.process(stream, frame([sent(1)], 1))
    pipeline.process(stream, replace(frame([sent(1)], 2), fast=False))
    assert (pipeline.counters.fast_frames, pipeline.counters.slow_frames) == (1, 1)


# ---- recalibrators


def test_a_recalibrator_is_learned_from_its_document_and_put_in_force_by_version():
    pipeline = pipeline_of()
    learned = pipeline.recalibrators.learn(DOUBLE.to_json())
    assert learned == DOUBLE
    assert pipeline.recalibrators.learn(DOUBLE.to_json()) is learned
    assert [
        (known.selection.version, known.promoted) for known in pipeline.recalibrators.listed()
    ] == [
        (IDENTITY.version, True),
        (CLASS_IDENTITY.version, True),
        (DOUBLE.version, False),
    ]
    assert pipeline.activate(DOUBLE.version) == IDENTITY.version
    answer = pipeline.process(opened(pipeline), frame([sent(1)]))
    assert answer.versions == (DOUBLE.version,)
    assert answer.forwarded is not None


def test_a_recalibrator_by_other_ranges_is_promoted_and_the_log_says_what_becomes_of_it(caplog):
    alike = RangeBuckets((20.0, 40.0), ("x", "y"))
    statistics = {
        "slice_by": ["class", "range"],
        "range_edges": alike.edges,
        "range_dimensions": alike.dimensions,
    }
    for ranges, warned in ((None, False), (alike, False), (replace(alike, edges=(30.0,)), True)):
        pipeline = pipeline_of(statistics=statistics)
        selection = replace(DOUBLE, ranges=ranges)
        pipeline.recalibrators.learn(selection.to_json())
        pipeline.activate(selection.version)
        assert pipeline.recalibrators.selection == selection
        assert ("fitted by range, on [30.0] of ['x', 'y']" in caplog.text) == warned


def test_a_covariance_beyond_the_limits_is_not_forwarded():
    selection = Selection(XYZ.names, VarianceScaling((1.0, 1.0, 1e4)))
    pipeline = pipeline_of(selection)
    rows = [Sent(i, (0.0, 0.0, 0.0), (1.0, 1.0, v)) for i, v in enumerate((1, 400))]
    answer = pipeline.process(opened(pipeline), frame(rows, 1))
    assert answer.reason.tolist() == [Reason.NONE, Reason.RECALIBRATOR_FAILED]
    assert outgoing(answer)[1] == raw(rows)[1]
    (notice,) = answer.notices
    assert (
        "within [1e-06, 100000] ([limits] smallest_deviation, largest_deviation)" in notice.message
    )


def test_only_what_may_lose_its_definiteness_is_factorised_again(monkeypatch):
    looked_at = []

    def counting(covariance):
        looked_at.append(len(covariance))
        return factorise(covariance)

    monkeypatch.setattr("monitor.recalibration.recalibrator.factorise", counting)
    rows = [sent(1), sent(2)]
    for selection, expected in ((DOUBLE, []), (Selection(XYZ.names, WHITEN), [2])):
        looked_at.clear()
        pipeline = pipeline_of(selection)
        pipeline.process(opened(pipeline), frame(rows, 1))
        assert looked_at == expected


def test_an_unknown_version_is_refused_with_the_known_ones_named():
    pipeline = pipeline_of()
    with pytest.raises(UnknownVersion) as refusal:
        pipeline.activate("magic-1")
    assert "no recalibrator 'magic-1'" in str(refusal.value)
    assert IDENTITY.version in str(refusal.value)
    assert pipeline.recalibrators.selection is IDENTITY


def test_a_document_that_describes_nothing_is_not_learned():
    pipeline = pipeline_of()
    with pytest.raises(InvalidRecalibrator):
        pipeline.recalibrators.learn("{}")
    assert len(pipeline.recalibrators.listed()) == 2


def test_the_number_of_known_recalibrators_is_bounded():
    pipeline = pipeline_of()
    for i in range(998):
        pipeline.recalibrators.known[str(i)] = DOUBLE
    pipeline.recalibrators.learn(DOUBLE.to_json())
    assert len(pipeline.recalibrators.known) == 1000
    # The oldest that is not in force made room.
    assert "0" not in pipeline.recalibrators.known
    assert pipeline.recalibrators.learn(IDENTITY.to_json()) is IDENTITY
