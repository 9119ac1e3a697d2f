"""Labels, inline or later, score what went out with their frame, or are named with the remedy."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.frames.detections import Reason
from monitor.frames.slices import TOTAL
from monitor.pipeline.frame_path import Pipeline
from monitor.recalibration.selection import IDENTITY, Selection
from monitor.statistics.observations import finished
from monitor.statistics.state import observe
from tests import laws, piped, piped_classes
from tests.piped import GOOD_TRUTH, account_of, assert_same_statistics, opened, pipeline_of, sent
from tests.piped_classes import GOOD_TRUTH as GOOD_XY
from tests.piped_classes import gaussians, observed, total_of
from tests.received import FORMS, Label, Sent, frame, labels
from tests.states import bits


def told(pipeline: Pipeline, drawn, number=1) -> dict[str, int]:
    """What became of labels."""
    return account_of(piped.reported(pipeline, labels(drawn, number)).account)


def with_frame(rows, selection: Selection = IDENTITY) -> Pipeline:
    """A pipeline that has processed one frame of x, y, z."""
    pipeline = pipeline_of(selection)
    pipeline.process(opened(pipeline), frame(rows))
    return pipeline


def with_classes(*rows: Sent) -> Pipeline:
    """A pipeline that has processed one frame of x, y and three classes."""
    pipeline = pipeline_of()
    answer = pipeline.process(opened(pipeline, piped_classes.HEADER), frame(rows))
    assert answer.reason.size == len(rows)
    return pipeline


classed = piped_classes.sent


# ---- inline and late labels


a_detection = st.tuples(
    st.sampled_from(FORMS), st.booleans(), st.sampled_from([0, 1, 4]), st.sampled_from([None, 0, 3])
)


@given(
    st.lists(st.lists(a_detection, max_size=6), max_size=4),
    st.sampled_from(list(piped.SELECTIONS.values())),
    st.randoms(use_true_random=False),
)
def test_inline_and_late_labels_give_the_same_bits(frames, selection, random):
    inline, late = pipeline_of(selection), pipeline_of(selection)
    messages = []
    for number, drawn in enumerate(frames):
        rows, known = [], []
        for i, (form, labelled, opinions, true) in enumerate(drawn):
            classes = piped_classes.probabilities(i, opinions, 4) if opinions else ()
            row = replace(sent(i, 100 * number + i, form), class_probabilities=classes)
            label = Label(i, piped.truth_of(row) if labelled else (), class_index=true)
            rows.append(row)
            known.append(replace(row, truth=label.truth, true_class=true))
            if labelled or true is not None:
                messages.append((number, label))
        inline.process(opened(inline), frame(known, number, number * piped.SECOND))
        late.process(opened(late), frame(rows, number, number * piped.SECOND))
    random.shuffle(messages)
    for number, label in messages:
        told(late, [label], number)
    assert account_of(inline.counters.truth) == account_of(late.counters.truth)
    assert_same_statistics(inline, late)
    for level in (None, 0):
        ours, theirs = (piped_classes.counted(one, level) for one in (inline, late))
        assert bits(ours) == bits(theirs)
    assert inline.ledger.fates.pending == late.ledger.fates.pending


def test_labels_of_a_frame_are_matched_by_id():
    rows = [sent(5), sent(3), sent(9)]
    pipeline = with_frame(rows, piped.DOUBLE)
    drawn = [Label(9, (1.0, 2.0, 3.0)), Label(5, (0.0, 0.0, 0.0)), Label(9, GOOD_TRUTH)]
    # The first of two labels in one message stands.
    assert told(pipeline, drawn) == {"matched": 2, "duplicate": 1}
    total = piped.counted(pipeline)[TOTAL]
    error = np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]) - [rows[2].mean, rows[0].mean]
    covariance = np.array([rows[2].covariance, rows[0].covariance]).reshape(2, 3, 3)
    binning = pipeline.live.accumulator.binning
    laws.assert_same(total.raw, observe(piped.XYZ, binning, error, covariance))
    laws.assert_same(total.recalibrated, observe(piped.XYZ, binning, error, 4 * covariance))
    # No detection has the id 0 because one has none.
    pipeline = with_frame([sent(1), replace(sent(2), id=None)])
    assert told(pipeline, [Label(0, GOOD_TRUTH)]) == {"orphan": 1}


def test_a_label_scores_the_recalibrator_that_was_active_when_its_frame_was_processed():
    rows = [sent(i) for i in range(8)]
    first, second = with_frame(rows, piped.DOUBLE), with_frame(rows, piped.DOUBLE)
    second.recalibrators.learn(piped.BY_SLICE.to_json())
    second.activate(piped.BY_SLICE.version)
    drawn = [Label(row.id, piped.truth_of(row)) for row in rows]
    for pipeline in (first, second):
        told(pipeline, drawn)
    assert_same_statistics(first, second)
    # From then on frames are scored by the new one.
    for pipeline in (first, second):
        pipeline.process(opened(pipeline), frame(rows, 2))
        told(pipeline, drawn, 2)
    with pytest.raises(AssertionError):
        assert_same_statistics(first, second)


# ---- classes


@pytest.mark.parametrize("opinions", [1, 5])
def test_the_class_of_a_detection_is_counted_alone_or_beside_its_gaussian(opinions):
    rows = [classed(i, i % 3, opinions=opinions) for i in range(6)]
    pipeline = with_classes(*rows)
    names = finished(pipeline.live.classes_in_steps())[0][:2]
    assert names == (TOTAL, piped_classes.CLASSES)
    laws.assert_same(total_of(pipeline), observed(rows, [i % 3 for i in range(6)]))
    assert (pipeline.ledger.fates.pending, gaussians(pipeline)) == (0, 0)
    bare = [classed(i, opinions=opinions) for i in range(3)]
    pipeline = with_classes(*bare)
    assert told(pipeline, [Label(2, class_index=1), Label(0, class_index=0)]) == {"matched": 2}
    laws.assert_same(total_of(pipeline), observed([bare[2], bare[0]], [1, 0]))
    # A class alone is the label of its detection: there will be no other.
    both = [Label(2, GOOD_XY), Label(1, GOOD_XY, class_index=2)]
    assert told(pipeline, both) == {"duplicate": 1, "matched": 1}
    assert (gaussians(pipeline), total_of(pipeline).n) == (1, 3)
    # The class of what came without probabilities cannot be counted; another label may come.
    pipeline = with_classes(classed(1, opinions=0))
    assert told(pipeline, [Label(1, class_index=1)]) == {"unusable": 1}
    assert told(pipeline, [Label(1, GOOD_XY)]) == {"matched": 1}


# ---- labels that are named with the remedy


@pytest.mark.parametrize(
    ("label", "where", "field_name", "said"),
    [
        (Label(None, GOOD_XY), {}, "detection_id", "absent: name the detection that the label"),
        (Label(1, (1.0,)), {}, "ground_truth", "[1]: send 2 values (x, y), finite and within ±1e+"),
        (Label(1, (-3e8, 0.0)), {}, "ground_truth", "[-3e+08, 0]: send 2 values"),
        (Label(1, class_index=3), {}, "class_index", "3: the header names 3 classes, from 0."),
        (Label(1, GOOD_XY), {"stream": "radar"}, "stream", "no stream 'radar': process its frames"),
        (Label(1, GOOD_XY), {"frame_id": 7}, "frame_id", "7: no such frame of stream 'lidar' is"),
        (Label(1, GOOD_XY), {"frame_id": None}, "frame_id", "absent: name the frame that the"),
    ],
)
def test_a_label_that_cannot_be_used_is_named_and_its_neighbours_count(
    label, where, field_name, said
):
    pipeline = with_classes(classed(1), classed(2))
    found = piped.reported(pipeline, replace(labels([Label(2, GOOD_XY), label]), **where))
    assert account_of(found.account) == ({"orphan": 2} if where else {"matched": 1, "refused": 1})
    (notice,) = found.notices
    reason = Reason.GROUND_TRUTH_INVALID
    if label.class_index is not None:
        reason = Reason.CLASS_PROBABILITIES_INVALID
    elif where == {"frame_id": None}:
        reason = Reason.MISSING_FRAME_KEY
    assert (notice.reason, notice.field) == (reason, field_name)
    assert (notice.count, notice.first_index) == ((2, 0) if where else (1, 1))
    assert notice.message.startswith(said)
    if not where:
        # A better label may come.
        assert told(pipeline, [Label(1, GOOD_XY, class_index=2)]) == {"matched": 1}


def test_a_label_of_a_detection_that_is_not_there_is_named_and_no_refusal():
    pipeline = with_frame([sent(1)])
    found = piped.reported(pipeline, labels([Label(1, GOOD_TRUTH), Label(7, GOOD_TRUTH)]))
    assert account_of(found.account) == {"matched": 1, "orphan": 1}
    (notice,) = found.notices
    assert (notice.field, notice.count, notice.first_index) == ("detection_id", 0, 1)
    assert notice.message.startswith("7: frame ")
    assert not pipeline.counters.notices[Reason.GROUND_TRUTH_INVALID]


def test_labels_of_another_stamp_are_not_of_this_frame():
    pipeline = with_frame([sent(1)])
    found = piped.reported(pipeline, replace(labels([Label(1, GOOD_TRUTH)]), stamp_ns=5))
    assert account_of(found.account) == {"orphan": 1}
    assert [notice.field for notice in found.notices] == ["stamp_ns"]
    found = piped.reported(pipeline, replace(labels([Label(1, GOOD_TRUTH)]), stamp_ns=0))
    assert account_of(found.account) == {"matched": 1}
