"""Class probabilities through the pipeline: their class inline or later, and what is no label."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.frames.detections import Reason
from monitor.frames.frame import Opinions
from monitor.frames.slices import TOTAL
from monitor.pipeline.live_statistics import LiveStatistics
from monitor.pipeline.pending import FRAME_OVERHEAD, RECORD_OVERHEAD
from monitor.statistics.observations import finished
from tests import laws
from tests.piped import SECOND, account_of, pipeline_of, reported
from tests.piped_classes import (
    BAD,
    CLASSES,
    GOOD_TRUTH,
    HEADER,
    counted,
    gaussians,
    observed,
    opened,
    quick,
    sent,
    total_of,
)
from tests.received import Label, frame, labels
from tests.states import bits

# ---- what is counted


@pytest.mark.parametrize("opinions", [1, 5])
def test_a_class_that_comes_with_its_detection_is_counted(opinions):
    pipeline = pipeline_of()
    rows = [sent(i, i % 3, opinions=opinions) for i in range(6)]
    answer = pipeline.process(opened(pipeline), frame(rows))
    assert answer.notices == ()
    assert finished(pipeline.live.classes_in_steps())[0][:2] == (TOTAL, CLASSES)
    laws.assert_same(total_of(pipeline), observed(rows, [i % 3 for i in range(6)]))
    assert account_of(pipeline.counters.truth) == {"matched": 6}
    assert pipeline.ledger.fates.pending == 0
    assert gaussians(pipeline) == 0


@pytest.mark.parametrize("opinions", [1, 5])
def test_a_label_may_tell_the_class_alone(opinions):
    pipeline = pipeline_of()
    rows = [sent(i, opinions=opinions) for i in range(3)]
    pipeline.process(opened(pipeline), frame(rows))
    found = reported(pipeline, labels([Label(2, class_index=1), Label(0, class_index=0)]))
    assert account_of(found.account) == {"matched": 2}
    assert found.notices == ()
    laws.assert_same(total_of(pipeline), observed([rows[2], rows[0]], [1, 0]))
    # It is the label of its detection: there will be no other.
    assert pipeline.ledger.fates.pending == 1
    found = reported(pipeline, labels([Label(2, GOOD_TRUTH), Label(1, GOOD_TRUTH)]))
    assert account_of(found.account) == {"duplicate": 1, "matched": 1}
    assert gaussians(pipeline) == 1


def test_a_label_that_tells_both_counts_for_both():
    pipeline = pipeline_of()
    pipeline.process(opened(pipeline), frame([sent(1), sent(2, opinions=0)]))
    both = [Label(id, GOOD_TRUTH, class_index=2) for id in (1, 2)]
    assert account_of(reported(pipeline, labels(both)).account) == {"matched": 2}
    laws.assert_same(total_of(pipeline), observed([sent(1)], [2]))
    assert gaussians(pipeline) == 2


any_detection = st.tuples(st.sampled_from([0, 1, 1, 4]), st.sampled_from([None, 0, 1, 2]))


@quick
@given(
    st.lists(st.lists(any_detection, max_size=8), max_size=4),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_inline_and_late_classes_give_the_same_bits(frames, with_truth, random):
    inline, late = pipeline_of(), pipeline_of()
    streams = opened(inline), opened(late)
    truth = GOOD_TRUTH if with_truth else ()
    messages = []
    for number, drawn in enumerate(frames):
        bare = [sent(100 * number + i, opinions=opinions) for i, (opinions, _) in enumerate(drawn)]
        known = [
            row if true is None else replace(row, true_class=true, truth=truth)
            for row, (_, true) in zip(bare, drawn, strict=True)
        ]
        inline.process(streams[0], frame(known, number, number * SECOND))
        late.process(streams[1], frame(bare, number, number * SECOND))
        messages += [
            (number, Label(row.id, truth, class_index=row.true_class))
            for row in known
            if row.true_class is not None
        ]
    random.shuffle(messages)
    for number, label in messages:
        reported(late, labels([label], number))
    assert account_of(inline.counters.truth) == account_of(late.counters.truth)
    for level in (None, 0):
        assert bits(counted(inline, level)) == bits(counted(late, level))
    assert inline.ledger.fates.pending == late.ledger.fates.pending
    assert gaussians(inline) == gaussians(late)


def test_opinions_of_different_numbers_add_up():
    pipeline = pipeline_of()
    stream = opened(pipeline)
    frames = [[sent(10 * m + i, i % 3, opinions=m) for i in range(4)] for m in (1, 3, 8)]
    for number, rows in enumerate(frames):
        pipeline.process(stream, frame(rows, number))
    one, three, eight = (observed(rows, [0, 1, 2, 0]) for rows in frames)
    laws.assert_same(total_of(pipeline), one.merge(three).merge(eight))


def test_a_stream_without_probabilities_has_no_class_slice():
    pipeline = pipeline_of()
    pipeline.process(opened(pipeline), frame([sent(1, 2, opinions=0, truth=GOOD_TRUTH)]))
    assert counted(pipeline) == {}
    assert finished(pipeline.live.state_in_steps()).class_slices == ()
    assert account_of(pipeline.counters.truth) == {"matched": 1}


def test_of_a_single_class_nothing_is_counted():
    pipeline = pipeline_of()
    row = replace(sent(1, 0), class_probabilities=(1.0,))
    pipeline.process(opened(pipeline, replace(HEADER, classes=("car",))), frame([row]))
    assert counted(pipeline) == {}
    assert account_of(pipeline.counters.truth) == {"unusable": 1}
    assert pipeline.counters.internal_errors == 0


# ---- labels that cannot be used


def test_one_broken_vector_is_refused_and_counted_and_its_neighbours_pass():
    pipeline = pipeline_of()
    rows = [sent(i, 1, truth=GOOD_TRUTH) for i in range(4)]
    rows[1] = replace(rows[1], class_probabilities=(0.5, 0.6, 0.2))
    rows[3] = replace(rows[3], true_class=7)
    answer = pipeline.process(opened(pipeline), frame(rows))
    assert [notice.reason for notice in answer.notices] == [Reason.CLASS_PROBABILITIES_INVALID]
    assert answer.notices[0].count == 2
    assert pipeline.counters.notices[Reason.CLASS_PROBABILITIES_INVALID] == 2
    assert pipeline.counters.recalibrated == 4
    laws.assert_same(total_of(pipeline), observed([rows[0], rows[2]], [1, 1]))
    # Their ground truth counts all the same.
    assert gaussians(pipeline) == 4
    assert account_of(pipeline.counters.truth) == {"matched": 4}


@pytest.mark.parametrize("truth", [(), GOOD_TRUTH])
def test_a_class_beyond_the_names_is_set_aside_and_named(truth):
    pipeline = pipeline_of()
    pipeline.process(opened(pipeline), frame([sent(1), sent(2)]))
    answer = reported(pipeline, labels([Label(2, class_index=0), Label(1, truth, class_index=3)]))
    outcome = {"matched": 2} if truth else {"matched": 1, "refused": 1}
    assert account_of(answer.account) == outcome
    (notice,) = answer.notices
    assert (notice.reason, notice.field) == (Reason.CLASS_PROBABILITIES_INVALID, "class_index")
    assert notice.message == "3: the header names 3 classes, from 0."
    assert (notice.count, notice.first_index) == (1, 1)
    assert pipeline.counters.notices[Reason.CLASS_PROBABILITIES_INVALID] == 1
    assert Reason.GROUND_TRUTH_INVALID not in pipeline.counters.notices
    assert (total_of(pipeline).n, gaussians(pipeline)) == (1, len(truth) // 2)
    # Where nothing was told, a better label may come.
    again = reported(pipeline, labels([Label(1, class_index=2)]))
    assert account_of(again.account) == {"duplicate" if truth else "matched": 1}


def test_ground_truth_that_cannot_be_used_refuses_the_class_beside_it_until_a_better_label_comes():
    inline, late = pipeline_of(), pipeline_of()
    inline.process(opened(inline), frame([sent(1, 2, truth=(1.0,))]))
    late.process(opened(late), frame([sent(1)]))
    reported(late, labels([Label(1, (1.0,), class_index=2)]))
    for pipeline in (inline, late):
        assert account_of(pipeline.counters.truth) == {"refused": 1}
        assert pipeline.counters.notices[Reason.GROUND_TRUTH_INVALID] == 1
        assert counted(pipeline) == {}
        reported(pipeline, labels([Label(1, GOOD_TRUTH, class_index=2)]))
        assert account_of(pipeline.counters.truth) == {"refused": 1, "matched": 1}
        assert total_of(pipeline).n == gaussians(pipeline) == 1


def test_an_ignored_label_is_not_counted_and_settles_its_detection():
    pipeline = pipeline_of()
    pipeline.process(opened(pipeline), frame([sent(1)]))
    for label in (Label(1, ignore=True, class_index=1), Label(1, class_index=1)):
        reported(pipeline, labels([label]))
    assert account_of(pipeline.counters.truth) == {"ignored": 1, "duplicate": 1}
    assert counted(pipeline) == {}


def test_a_class_alone_says_nothing_of_a_detection_without_probabilities():
    pipeline = pipeline_of()
    pipeline.process(opened(pipeline), frame([sent(1, opinions=0), sent(2), BAD]))
    told = [Label(id, class_index=1) for id in (1, 90)]
    found = reported(pipeline, labels(told, complete=True))
    assert account_of(found.account) == {"unusable": 2}
    # It was named, so that it is not unmatched; and it goes on waiting.
    assert (pipeline.counters.unmatched, pipeline.ledger.fates.pending) == (1, 1)
    found = reported(pipeline, labels([Label(1, GOOD_TRUTH)]))
    assert account_of(found.account) == {"matched": 1}


@pytest.mark.parametrize("in_one", [True, False])
def test_the_first_label_of_a_detection_stands_for_both(in_one):
    pipeline = pipeline_of()
    pipeline.process(opened(pipeline), frame([sent(1), sent(2), sent(3, 0)]))
    drawn = [
        Label(1, class_index=2),
        Label(2, GOOD_TRUTH),
        Label(1, GOOD_TRUTH, class_index=0),
        Label(2, class_index=1),
        Label(3, GOOD_TRUTH),
    ]
    for message in [drawn] if in_one else [[label] for label in drawn]:
        reported(pipeline, labels(message))
    assert account_of(pipeline.counters.truth) == {"matched": 3, "duplicate": 3}
    laws.assert_same(total_of(pipeline), observed([sent(1), sent(3)], [2, 0]))
    assert gaussians(pipeline) == 1


def test_a_repeated_frame_is_counted_once_with_all_its_labels():
    pipeline = pipeline_of()
    stream = opened(pipeline)
    rows = [sent(1, 0), sent(2, truth=GOOD_TRUTH), sent(3, 1, truth=GOOD_TRUTH), sent(4)]
    for _ in range(2):
        pipeline.process(stream, frame(rows))
    assert account_of(pipeline.counters.truth) == {"matched": 3, "duplicate": 3}
    assert (total_of(pipeline).n, gaussians(pipeline)) == (2, 2)
    assert pipeline.ledger.fates.pending == 1


# ---- what waits


def test_only_probabilities_that_came_take_room_until_memory_is_short():
    pipeline = pipeline_of()
    stream, store = opened(pipeline), pipeline.ledger.fates.store
    rows = [sent(i, opinions=0) for i in range(20)]
    pipeline.process(stream, frame(rows, 1))
    bare = store.bytes
    assert bare > FRAME_OVERHEAD
    rows[3], rows[7] = sent(3, opinions=5), sent(7, opinions=5)
    rows[9] = sent(9, 1, opinions=5)
    pipeline.process(stream, frame(rows, 2))
    # What came with the frame may be taken back by a revision: its probabilities stay.
    told = RECORD_OVERHEAD + (8 + 1) + (8 + 8)
    assert store.bytes == 2 * bare + 3 * (8 + 5 * 3 * 8) + told
    reported(pipeline, labels([Label(3, class_index=1)], 2, complete=True))
    reported(pipeline, labels([], 1, complete=True))
    store.max_bytes = store.bytes + bare // 2
    pipeline.process(stream, frame(rows, 3))
    frames = [store.get(("lidar", number)) for number in (1, 2)]
    assert frames[0] is not None and frames[1] is not None
    assert frames[1].opinions is None and frames[1].stored.opinions is None
    assert frames[0].nbytes == frames[1].nbytes < bare


# ---- failures of ours


@pytest.mark.parametrize("stage", ["matched", "see"])
def test_a_fault_in_counting_classes_costs_nothing_but_their_rows(stage, monkeypatch):
    def fail(*_: object) -> None:
        raise RuntimeError("broken")

    pipeline, whole = pipeline_of(), pipeline_of()
    rows = [sent(1, 1, truth=GOOD_TRUTH), sent(2), sent(3)]
    stream = opened(pipeline)
    with monkeypatch.context() as patched:
        patched.setattr(LiveStatistics if stage == "see" else Opinions, stage, fail)
        answer = pipeline.process(stream, frame(rows))
        if stage == "matched":
            late = reported(pipeline, labels([Label(2, GOOD_TRUTH, class_index=1)]))
            assert account_of(late.account) == {"matched": 1}
    expected = whole.process(opened(whole), frame(rows))
    assert answer.reason.tolist() == expected.reason.tolist()
    assert answer.notices == expected.notices
    assert counted(pipeline) == {}
    if stage == "matched":
        assert pipeline.counters.internal_errors == 2
        assert gaussians(pipeline) == 2
        assert pipeline.ledger.fates.pending == 1
    # The next one is counted like any other.
    pipeline.process(stream, frame(rows, 2))
    assert total_of(pipeline).n == 1
