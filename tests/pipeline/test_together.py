"""Frames that wait together are answered and counted as each would be alone, to the last bit."""

from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.frames.frame import Header
from monitor.pipeline import frame_path, together
from monitor.recalibration.scaling import VarianceScaling
from monitor.recalibration.selection import Selection
from tests import laws
from tests.piped import (
    BAD,
    CLASSES,
    DOUBLE,
    HEADER,
    MISSING,
    SECOND,
    SELECTIONS,
    XYZ,
    assert_same_statistics,
    opened,
    pipeline_of,
    sent,
)
from tests.received import FULL, TRIANGLE, VARIANCES, frame

HEADERS = [Header(f"camera{i}", XYZ, CLASSES) for i in range(3)] + [HEADER]
FORMS = st.sampled_from([FULL, TRIANGLE, VARIANCES])


@st.composite
def waiting(draw):
    """Some frames of different streams, most of them of one form and without a fault."""
    form, found = draw(FORMS), []
    for place in range(draw(st.integers(2, 4))):
        truth, n = draw(st.booleans()), draw(st.integers(0, 5))
        own = form if draw(st.integers(0, 3)) else draw(FORMS)
        rows = [sent(i, 10 * place + i, own, truth=truth) for i in range(n)]
        odd = draw(st.sampled_from([None, None, None, BAD, MISSING, "twice"]))
        if odd is not None:
            rows.append(replace(rows[0], id=0) if odd == "twice" and rows else MISSING)
        found.append((place, rows))
    return found


@pytest.mark.parametrize("name", SELECTIONS)
@given(st.lists(waiting(), min_size=1, max_size=3))
def test_frames_together_are_answered_and_counted_as_each_alone(name, batches):
    joined, alone = pipeline_of(SELECTIONS[name]), pipeline_of(SELECTIONS[name])
    for number, batch in enumerate(batches, start=1):
        frames = [frame(rows, number, number * SECOND) for _, rows in batch]
        headers = [HEADERS[place] for place, _ in batch]
        streams = [opened(joined, header) for header in headers]
        found = joined.answer_all(list(zip(streams, frames, strict=True)))
        joined.remember_answered()
        for header, one, answer in zip(headers, frames, found, strict=True):
            laws.assert_same(answer, alone.process(opened(alone, header), one))
    assert_same_statistics(joined, alone)
    assert joined.ledger.fates.account == alone.ledger.fates.account
    laws.assert_same(joined.counters, alone.counters)


def test_sound_frames_of_one_form_are_examined_once():
    pipeline = pipeline_of(DOUBLE)
    streams = [opened(pipeline, header) for header in HEADERS]
    frames = [frame([sent(1), sent(2)], 1) for _ in streams]
    with patch.object(frame_path, "examine", side_effect=AssertionError):
        answers = pipeline.answer_all(list(zip(streams, frames, strict=True)))
    assert [answer.reason.tolist() for answer in answers] == [[1, 1]] * 4
    assert pipeline.counters.internal_errors == 0


def test_a_fault_before_frames_are_told_apart_costs_none_of_them(monkeypatch):
    pipeline = pipeline_of(DOUBLE)
    streams = [opened(pipeline, header) for header in HEADERS]
    frames = [frame([sent(1), sent(2)], 1) for _ in streams]

    def broken(*_):
        raise MemoryError

    monkeypatch.setattr(together, "examine_together", broken)
    answers = pipeline.answer_all(list(zip(streams, frames, strict=True)))
    assert [answer.reason.tolist() for answer in answers] == [[1, 1]] * 4


def test_a_frame_that_comes_twice_is_recognised_among_those_that_wait_together():
    pipeline = pipeline_of(DOUBLE)
    stream, one = opened(pipeline), frame([sent(1, truth=True)], 7, SECOND)
    first, second = pipeline.answer_all([(stream, one), (stream, one)])
    assert (len(first.notices), len(second.notices)) == (0, 1)
    pipeline.remember_answered()
    assert pipeline.ledger.fates.account["predicted"] == 1


def test_a_recalibrator_that_fails_costs_the_frames_that_it_fails_on(caplog):
    class Fails(VarianceScaling):
        by_rows = True

        def apply(self, estimates):
            if estimates.mean.shape[0] != 2:
                raise ZeroDivisionError
            return super().apply(estimates)

    pipeline = pipeline_of(Selection(XYZ.names, Fails((2.0, 2.0, 2.0))))
    streams = [opened(pipeline, header) for header in HEADERS[:2]]
    frames = [frame([sent(1)], 1), frame([sent(1), sent(2)], 1)]
    failed, made = pipeline.answer_all(list(zip(streams, frames, strict=True)))
    assert (failed.forwarded is None, made.forwarded is None) == (True, False)
    assert pipeline.counters.internal_errors == 1
