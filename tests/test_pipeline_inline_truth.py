"""Truth that comes along with its detection counts as the same truth that comes later."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.frames.detections import Reason
from monitor.frames.slices import OVERFLOW, TOTAL
from monitor.frames.space import Dimension, DimensionKind, Space
from monitor.recalibration.recalibrator import Recalibrator
from monitor.recalibration.selection import Selection
from tests.piped import (
    BAD,
    BY_SLICE,
    DOUBLE,
    GOOD_TRUTH,
    HEADER,
    SELECTIONS,
    XYZ,
    account_of,
    assert_same_statistics,
    counted,
    opened,
    pipeline_of,
    reported,
    sent,
    truth_of,
)
from tests.recalibrators import Shift
from tests.received import FORMS, Label, Sent, frame, labels


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.tuples(st.sampled_from(FORMS), st.booleans()), max_size=6), max_size=4),
    st.sampled_from(list(SELECTIONS.values())),
    st.randoms(use_true_random=False),
)
def test_inline_and_late_truth_give_the_same_bits(frames, selection, random):
    inline, late = pipeline_of(selection), pipeline_of(selection)
    streams = opened(inline), opened(late)
    messages = []
    for number, drawn in enumerate(frames):
        rows = [sent(i, 100 * number + i, form) for i, (form, _) in enumerate(drawn)]
        known = [
            replace(row, truth=truth_of(row) if labelled else ())
            for row, (_, labelled) in zip(rows, drawn, strict=True)
        ]
        inline.process(streams[0], frame(known, number))
        late.process(streams[1], frame(rows, number))
        messages += [(number, Label(row.id, row.truth)) for row in known if row.truth]
    random.shuffle(messages)
    for number, label in messages:
        reported(late, labels([label], number))
    assert account_of(inline.counters.truth) == account_of(late.counters.truth)
    assert_same_statistics(inline, late)


def test_a_label_scores_the_recalibrator_that_was_in_force_when_its_frame_was_processed():
    first, second = pipeline_of(DOUBLE), pipeline_of(DOUBLE)
    rows = [sent(i) for i in range(8)]
    answer = labels([Label(row.id, truth_of(row)) for row in rows])
    for pipeline in (first, second):
        pipeline.process(opened(pipeline), frame(rows))
    second.recalibrators.learn(BY_SLICE.to_json())
    second.activate(BY_SLICE.version)
    for pipeline in (first, second):
        reported(pipeline, answer)
    assert_same_statistics(first, second)
    # From then on frames are scored by the new one.
    for pipeline in (first, second):
        pipeline.process(opened(pipeline), frame(rows, 2))
        reported(pipeline, replace(answer, frame_id=2))
    with pytest.raises(AssertionError):
        assert_same_statistics(first, second)


def test_unusable_inline_truth_is_noted_and_its_detection_waits_for_better():
    pipeline = pipeline_of()
    rows = [replace(sent(1), truth=(1.0,)), sent(2)]
    answer = pipeline.process(opened(pipeline), frame(rows))
    assert [notice.reason for notice in answer.notices] == [Reason.GROUND_TRUTH_INVALID]
    assert pipeline.counters.notices[Reason.GROUND_TRUTH_INVALID] == 1
    found = reported(pipeline, labels([Label(1, GOOD_TRUTH)]))
    assert account_of(found.account) == {"matched": 1}


def test_an_angle_is_wrapped_on_either_way_of_its_truth():
    header = replace(HEADER, space=Space((Dimension("yaw", "rad", DimensionKind.ANGLE),)))
    row = Sent(1, (3.0,), (1.0,), 0)
    inline, late = pipeline_of(), pipeline_of()
    inline.process(opened(inline, header), frame([replace(row, truth=(-3.0,))]))
    late.process(opened(late, header), frame([row]))
    reported(late, labels([Label(1, (-3.0,))]))
    assert_same_statistics(inline, late)
    expected = (2 * np.pi - 6.0) ** 2
    assert counted(late)[TOTAL].raw.axis(0).nees.sum() == pytest.approx(expected, abs=1e-9)


def test_a_recalibrator_of_the_mean_alone_is_scored_alike_by_inline_and_late_truth():
    shift: Recalibrator = Shift()
    inline, late = (pipeline_of(Selection(XYZ.names, shift)) for _ in range(2))
    row = sent(1)
    inline.process(opened(inline), frame([replace(row, truth=truth_of(row))]))
    late.process(opened(late), frame([row]))
    reported(late, labels([Label(1, truth_of(row))]))
    assert_same_statistics(inline, late)


@pytest.mark.parametrize(
    ("row", "outcome"),
    [
        (replace(BAD, truth=GOOD_TRUTH), "unusable"),
        (replace(sent(1), truth=(1.0,)), "refused"),
    ],
)
def test_inline_labels_are_in_exactly_one_count_as_well(row, outcome):
    pipeline = pipeline_of()
    pipeline.process(opened(pipeline), frame([row]))
    assert account_of(pipeline.counters.truth) == {outcome: 1}


def test_detections_fall_in_the_slice_of_their_range_whenever_their_truth_comes():
    inline, late = (
        pipeline_of(statistics={"slice_by": ["class", "range"], "max_slices": 3}) for _ in range(2)
    )
    rows = [
        replace(sent(i), mean=(distance, 0.0, 1.0), class_index=i % 2)
        for i, distance in enumerate([5.0, 25.0, 45.0, 65.0, 6.0])
    ]
    inline.process(opened(inline), frame([replace(row, truth=truth_of(row)) for row in rows]))
    late.process(opened(late), frame(rows))
    reported(late, labels([Label(row.id, truth_of(row)) for row in reversed(rows)]))
    assert_same_statistics(inline, late)
    counts = {name: one.raw.n for name, one in counted(inline).items()}
    assert counts == {"car/<20": 2, "car/40-60": 1, "truck/20-40": 1, OVERFLOW: 1, TOTAL: 5}
    assert inline.counters.overflow_detections == 1
