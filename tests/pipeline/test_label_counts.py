"""Labels, inline or later: each is in one count, and scores what went out with its frame."""

from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monitor.frames.detections import Reason
from monitor.frames.slices import TOTAL
from monitor.pipeline.frame_path import Pipeline
from monitor.recalibration.selection import IDENTITY, Selection
from monitor.statistics.observations import finished
from monitor.statistics.stage import observe
from tests import laws, piped_classes
from tests.piped import (
    BY_SLICE,
    DOUBLE,
    GOOD_TRUTH,
    SECOND,
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
from tests.piped_classes import GOOD_TRUTH as GOOD_XY
from tests.piped_classes import gaussians, observed, total_of
from tests.received import FORMS, Label, Sent, frame, labels
from tests.states import bits


def told(pipeline: Pipeline, drawn, number=1, *, revision=0, **choices) -> dict[str, int]:
    """What became of labels."""
    message = replace(labels(drawn, number, **choices), revision=revision)
    return account_of(reported(pipeline, message).account)


def with_frame(rows, selection: Selection = IDENTITY, **sections) -> Pipeline:
    """A pipeline that has processed one frame of x, y, z."""
    pipeline = pipeline_of(selection, **sections)
    pipeline.process(opened(pipeline), frame(rows))
    return pipeline


def with_classes(*rows: Sent) -> Pipeline:
    """A pipeline that has processed one frame of x, y and three classes."""
    pipeline = pipeline_of()
    answer = pipeline.process(opened(pipeline, piped_classes.HEADER), frame(rows))
    assert answer.reason.size == len(rows)
    return pipeline


classed = piped_classes.sent


# ---- every label is in exactly one count

wrong_or_right = st.sampled_from(
    [(), (), GOOD_XY, GOOD_XY, (1.0,), (1.0, 2.0, 3.0), (1.0, float("nan")), (1.0, 1e9)]
)
a_class = st.sampled_from([None, 0, 1, 2, 3, 2**32 - 1])
a_label = st.builds(Label, st.integers(0, 9) | st.none(), wrong_or_right, st.booleans(), a_class)
a_kind = st.sampled_from(["fine", "fine", "no probabilities", "broken", "refused"])
a_message = st.tuples(st.lists(a_label, max_size=10), st.booleans(), st.sampled_from([1, 1, 1, 2]))


@dataclass
class Bookkeeping:
    """What should become of labels, one at a time; written from the meaning of the counts."""

    kinds: dict[int, str]
    known: set[int] = field(default_factory=set)
    named: set[int] = field(default_factory=set)
    classified: int = 0
    measured: int = 0

    def outcome(self, label: Label) -> str:
        kind = self.kinds.get(-1 if label.id is None else label.id)
        good = label.truth == GOOD_XY
        has_class = label.class_index is not None and label.class_index < 3
        if label.id is None or not (label.ignore or good or (not label.truth and has_class)):
            if label.id is not None:
                self.named.add(label.id)
            return "refused"
        if kind is None:
            return "orphan"
        if kind == "refused":
            return "unusable"
        if label.id in self.known:
            return "duplicate"
        judged = has_class and kind == "fine"
        if not (label.ignore or good or judged):
            self.named.add(label.id)
            return "unusable"
        self.known.add(label.id)
        if label.ignore:
            return "ignored"
        self.classified += judged
        self.measured += good
        return "matched"

    @staticmethod
    def notes(label: Label) -> Counter[Reason]:
        usable = label.truth in ((), GOOD_XY)
        beyond = label.class_index is not None and label.class_index >= 3
        if beyond and usable and label.id is not None and not label.ignore:
            return Counter({Reason.CLASS_PROBABILITIES_INVALID: 1})
        fine = label.truth == GOOD_XY or (not label.truth and label.class_index is not None)
        if label.id is None or not (label.ignore or fine):
            return Counter({Reason.GROUND_TRUTH_INVALID: 1})
        return Counter()


@given(
    st.lists(st.tuples(a_kind, wrong_or_right, a_class), max_size=7),
    st.lists(a_message, max_size=4),
)
@example(
    [("fine", (), None), ("no probabilities", (), None), ("refused", (), 1), ("fine", GOOD_XY, 2)],
    [
        ([Label(0, class_index=1), Label(1, class_index=1), Label(2, GOOD_XY)], True, 1),
        ([Label(0, GOOD_XY), Label(1, GOOD_XY), Label(7, GOOD_XY), Label(3, (1.0,))], True, 1),
        ([Label(0, GOOD_XY)], False, 2),
    ],
)
def test_every_label_is_in_exactly_one_count(drawn, messages):
    rows, books = [], Bookkeeping({})
    expected: Counter[str] = Counter()
    for id, (kind, truth, true_class) in enumerate(drawn):
        row = replace(classed(id, true_class), truth=truth)
        changed = {
            "no probabilities": replace(row, class_probabilities=()),
            "broken": replace(row, class_probabilities=(1.0, 1.0, 1.0)),
            "refused": replace(row, covariance=piped_classes.BAD.covariance),
        }
        rows.append(changed.get(kind, row))
        books.kinds[id] = kind
        if truth or true_class is not None:
            # An inline label is one that came first; the class of a refused one is not judged.
            refused = kind == "refused" and truth in ((), GOOD_XY)
            label = Label(id, truth, class_index=true_class)
            expected["unusable" if refused else books.outcome(label)] += 1
    pipeline = with_classes(*rows)
    assert account_of(pipeline.counters.truth) == dict(+expected)
    notes, unmatched = Counter(pipeline.counters.notices), 0
    for message, complete, number in messages:
        books.named.clear()
        now = Counter(orphan=len(message))
        if number == 1:
            now = Counter(books.outcome(label) for label in message)
            for label in message:
                notes += books.notes(label)
        assert told(pipeline, message, number, complete=complete) == dict(+now)
        expected += now
        if complete and number == 1:
            # A detection named by a refused label may still get a better one.
            waiting = {id for id, kind in books.kinds.items() if kind != "refused"}
            rest = waiting - books.known - books.named
            unmatched += len(rest)
            books.known |= rest
    assert account_of(pipeline.counters.truth) == dict(+expected)
    assert +Counter(pipeline.counters.notices) == +notes
    assert pipeline.counters.unmatched == unmatched
    usable = {id for id, kind in books.kinds.items() if kind != "refused"}
    assert pipeline.ledger.fates.pending == len(usable - books.known)
    assert gaussians(pipeline) == books.measured
    assert sum(held.n for held in piped_classes.counted(pipeline).values()) == books.classified
    assert pipeline.counters.internal_errors == 0


# ---- inline and late labels


@given(
    st.lists(st.lists(st.tuples(st.sampled_from(FORMS), st.booleans()), max_size=6), max_size=4),
    st.sampled_from(list(SELECTIONS.values())),
    st.randoms(use_true_random=False),
)
def test_inline_and_late_labels_give_the_same_bits(frames, selection, random):
    inline, late = pipeline_of(selection), pipeline_of(selection)
    messages = []
    for number, drawn in enumerate(frames):
        rows = [sent(i, 100 * number + i, form) for i, (form, _) in enumerate(drawn)]
        known = [
            replace(row, truth=truth_of(row) if labelled else ())
            for row, (_, labelled) in zip(rows, drawn, strict=True)
        ]
        inline.process(opened(inline), frame(known, number))
        late.process(opened(late), frame(rows, number))
        messages += [(number, Label(row.id, row.truth)) for row in known if row.truth]
    random.shuffle(messages)
    for number, label in messages:
        told(late, [label], number)
    assert account_of(inline.counters.truth) == account_of(late.counters.truth)
    assert_same_statistics(inline, late)


a_detection = st.tuples(st.sampled_from([0, 1, 1, 4]), st.sampled_from([None, 0, 1, 2]))


@given(
    st.lists(st.lists(a_detection, max_size=8), max_size=4),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_inline_and_late_classes_give_the_same_bits(frames, with_truth, random):
    inline, late = pipeline_of(), pipeline_of()
    streams = [opened(one, piped_classes.HEADER) for one in (inline, late)]
    truth, messages = GOOD_XY if with_truth else (), []
    for number, drawn in enumerate(frames):
        bare = [classed(100 * number + i, opinions=n) for i, (n, _) in enumerate(drawn)]
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
        told(late, [label], number)
    assert account_of(inline.counters.truth) == account_of(late.counters.truth)
    for level in (None, 0):
        ours, theirs = (piped_classes.counted(one, level) for one in (inline, late))
        assert bits(ours) == bits(theirs)
    assert inline.ledger.fates.pending == late.ledger.fates.pending
    assert gaussians(inline) == gaussians(late)


def test_labels_of_a_frame_are_matched_by_id():
    rows = [sent(5), sent(3), sent(9)]
    pipeline = with_frame(rows, DOUBLE)
    drawn = [Label(9, (1.0, 2.0, 3.0)), Label(5, (0.0, 0.0, 0.0)), Label(9, GOOD_TRUTH)]
    # The first of two labels in one message stands.
    assert told(pipeline, drawn) == {"matched": 2, "duplicate": 1}
    total = counted(pipeline)[TOTAL]
    error = np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]) - [rows[2].mean, rows[0].mean]
    covariance = np.array([rows[2].covariance, rows[0].covariance]).reshape(2, 3, 3)
    binning = pipeline.live.accumulator.binning
    laws.assert_same(total.raw, observe(XYZ, binning, error, covariance))
    laws.assert_same(total.recalibrated, observe(XYZ, binning, error, 4 * covariance))
    # No detection has the id 0 because one has none.
    pipeline = with_frame([sent(1), replace(sent(2), id=None)])
    assert told(pipeline, [Label(0, GOOD_TRUTH)]) == {"orphan": 1}


def test_a_label_scores_the_recalibrator_that_was_active_when_its_frame_was_processed():
    rows = [sent(i) for i in range(8)]
    first, second = with_frame(rows, DOUBLE), with_frame(rows, DOUBLE)
    second.recalibrators.learn(BY_SLICE.to_json())
    second.activate(BY_SLICE.version)
    drawn = [Label(row.id, truth_of(row)) for row in rows]
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


# ---- labels that are named with the remedy


@pytest.mark.parametrize(
    ("label", "where", "field_name", "said"),
    [
        (Label(None, GOOD_XY), {}, "detection_id", "absent: name the detection that the label"),
        (
            Label(1, (1.0,)),
            {},
            "ground_truth",
            "[1]: send 2 values (x, y), finite and within ±1e+08",
        ),
        (Label(1), {}, "ground_truth", "[]: send 2 values (x, y)"),
        (Label(1, (1.0, float("inf"))), {}, "ground_truth", "[1, inf]: send 2 values"),
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
    found = reported(pipeline, replace(labels([Label(2, GOOD_XY), label]), **where))
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


def test_labels_of_another_stamp_are_not_of_this_frame():
    pipeline = with_frame([sent(1)])
    found = reported(pipeline, replace(labels([Label(1, GOOD_TRUTH)]), stamp_ns=5))
    assert account_of(found.account) == {"orphan": 1}
    assert [notice.field for notice in found.notices] == ["stamp_ns"]
    found = reported(pipeline, replace(labels([Label(1, GOOD_TRUTH)]), stamp_ns=0))
    assert account_of(found.account) == {"matched": 1}
