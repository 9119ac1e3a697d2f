"""Labels that come later: matched by id, each in exactly one count, the rest named."""

from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.frames.detections import Reason
from monitor.frames.frame import TruthAnswer
from monitor.frames.slices import TOTAL
from monitor.pipeline.truth import Search
from monitor.statistics.stage import observe
from tests import laws
from tests.journals import ListJournal
from tests.ledger_oracle import HEADERS, Came, Message, Named
from tests.piped import (
    BAD,
    BY_SLICE,
    DOUBLE,
    GOOD_TRUTH,
    XYZ,
    account_of,
    assert_same_statistics,
    counted,
    fateless,
    opened,
    pipeline_of,
    reported,
    sent,
    truth_of,
)
from tests.received import Label, frame, labels


def test_labels_of_a_frame_are_matched_by_id():
    pipeline = pipeline_of(DOUBLE)
    rows = [sent(5), sent(3), sent(9)]
    pipeline.process(opened(pipeline), frame(rows))
    found = reported(pipeline, labels([Label(9, (1.0, 2.0, 3.0)), Label(5, (0.0, 0.0, 0.0))]))
    assert account_of(found.account) == {"matched": 2}
    assert found.notices == ()
    total = counted(pipeline)[TOTAL]
    error = np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]) - [rows[2].mean, rows[0].mean]
    covariance = np.array([rows[2].covariance, rows[0].covariance]).reshape(2, 3, 3)
    binning = pipeline.live.accumulator.binning
    laws.assert_same(total.raw, observe(XYZ, binning, error, covariance))
    laws.assert_same(total.recalibrated, observe(XYZ, binning, error, 4 * covariance))


def test_labels_between_an_answer_and_its_memory_find_their_frame():
    pipeline = pipeline_of(DOUBLE)
    rows = [sent(5), sent(3, truth=True)]
    pipeline.answer(opened(pipeline), frame(rows))
    assert len(pipeline.ledger.fates.store) == 0
    found = reported(pipeline, labels([Label(5, GOOD_TRUTH)]))
    assert account_of(found.account) == {"matched": 1}
    assert pipeline.counters.truth.matched == 2  # the other one came with the frame
    assert pipeline.ledger.sequence == 2


@pytest.mark.parametrize("repeated", [False, True], ids=["another frame", "the same frame"])
def test_a_frame_finds_the_one_before_it_remembered(repeated):
    pipeline = pipeline_of(DOUBLE)
    stream = opened(pipeline)
    pipeline.answer(stream, frame([sent(5)]))
    again = pipeline.answer(stream, frame([sent(5)], frame_id=1 if repeated else 2))
    reasons = [notice.reason for notice in again.notices]
    assert reasons == ([Reason.DUPLICATE_FRAME] if repeated else [])
    pipeline.remember_answered()
    assert pipeline.ledger.fates.account["predicted"] == (1 if repeated else 2)


def test_a_swap_of_recalibrators_comes_after_the_frames_that_were_answered(monkeypatch):
    pipeline = pipeline_of(DOUBLE)
    version = pipeline.recalibrators.learn(BY_SLICE.to_json()).version
    order: list[str] = []
    monkeypatch.setattr(type(pipeline.drift), "changed", lambda *_, **__: order.append("swapped"))
    monkeypatch.setattr(type(pipeline.ledger), "enter", lambda *_: order.append("remembered"))
    pipeline.answer(opened(pipeline), frame([sent(5)]))
    pipeline.activate(version)
    assert order == ["remembered", "swapped"]


wrong_truths = [(), (1.0,), (1.0, 2.0, 3.0, 4.0), (1.0, float("nan"), 3.0), (1.0, 1e9, 3.0)]
a_label = st.builds(
    Label,
    id=st.one_of(st.integers(0, 12), st.none()),
    truth=st.one_of(st.just(GOOD_TRUTH), st.just(GOOD_TRUTH), st.sampled_from(wrong_truths)),
    ignore=st.booleans(),
)
a_message = st.tuples(st.lists(a_label, max_size=15), st.booleans(), st.integers(0, 2))


@dataclass
class Bookkeeping:
    """What should become of labels, one at a time; written from the meaning of the counts."""

    usable: set[int]
    unusable: set[int]
    known: set[int] = field(default_factory=set)

    @staticmethod
    def readable(label: Label) -> bool:
        valid = len(label.truth) == 3 and all(abs(value) <= 1e8 for value in label.truth)
        return label.id is not None and (valid or label.ignore)

    def outcome(self, label: Label) -> str:
        if not self.readable(label):
            return "refused"
        if label.id not in self.usable:
            return "unusable" if label.id in self.unusable else "orphan"
        if label.id in self.known:
            return "duplicate"
        self.known.add(label.id)
        return "ignored" if label.ignore else "matched"


@settings(max_examples=150)
@given(
    st.permutations(range(10)),
    st.integers(0, 8),
    st.integers(0, 3),
    st.integers(0, 3),
    st.lists(a_message, max_size=5),
)
def test_every_label_is_in_exactly_one_count(ids, n, refused, inline, messages):
    pipeline = pipeline_of(DOUBLE)
    rows = [sent(id, truth=i < inline) for i, id in enumerate(ids[:n])]
    bad = [replace(BAD, id=id) for id in ids[n : n + refused]]
    pipeline.process(opened(pipeline), frame([*bad, *rows], 1))
    notes = 0
    books = Bookkeeping(set(ids[:n]), {row.id or 0 for row in bad}, set(ids[: min(inline, n)]))
    expected: Counter[str] = Counter(matched=min(inline, n))
    unmatched = 0
    for drawn, complete, number in messages:
        answer = reported(pipeline, labels(drawn, number, complete=complete))
        if number == 1:
            now = Counter(books.outcome(label) for label in drawn)
        else:
            now = Counter(orphan=len(drawn))
        assert account_of(answer.account) == {name: c for name, c in now.items() if c}
        assert sum(account_of(answer.account).values()) == len(drawn)
        expected += now
        notes += now["refused"]
        if number == 1 and complete:
            # One that is named by a refused label may still get a better one.
            named = {label.id for label in drawn if not books.readable(label)}
            rest = books.usable - books.known - named
            unmatched += len(rest)
            books.known |= rest
    assert account_of(pipeline.counters.truth) == dict(+expected)
    assert pipeline.counters.unmatched == unmatched
    assert pipeline.counters.notices.get(Reason.GROUND_TRUTH_INVALID, 0) == notes
    assert pipeline.ledger.fates.pending == len(books.usable - books.known)
    total = counted(pipeline).get(TOTAL)
    assert (total.raw.n if total else 0) == expected["matched"]


def test_an_ignored_label_needs_no_values_and_settles_its_detection():
    pipeline = pipeline_of()
    pipeline.process(opened(pipeline), frame([sent(1), sent(2)]))
    found = reported(pipeline, labels([Label(1, (), ignore=True)]))
    assert account_of(found.account) == {"ignored": 1}
    found = reported(pipeline, labels([Label(1, GOOD_TRUTH)]))
    assert account_of(found.account) == {"duplicate": 1}
    assert counted(pipeline) == {}


def test_the_first_of_two_labels_in_one_message_stands():
    one, two = pipeline_of(), pipeline_of()
    for pipeline in (one, two):
        pipeline.process(opened(pipeline), frame([sent(1)]))
    reported(one, labels([Label(1, (1.0, 1.0, 1.0)), Label(1, (2.0, 2.0, 2.0))]))
    reported(two, labels([Label(1, (1.0, 1.0, 1.0))]))
    assert_same_statistics(one, two)


def test_a_complete_frame_leaves_no_detection_waiting():
    pipeline = pipeline_of()
    pipeline.process(opened(pipeline), frame([sent(i) for i in range(5)]))
    reported(pipeline, labels([Label(1, GOOD_TRUTH)], complete=True))
    assert pipeline.counters.unmatched == 4
    assert pipeline.ledger.fates.pending == 0
    found = reported(pipeline, labels([Label(2, GOOD_TRUTH)], complete=True))
    assert account_of(found.account) == {"duplicate": 1}
    assert pipeline.counters.unmatched == 4


def test_a_detection_whose_label_was_refused_in_a_complete_report_may_get_a_better_one():
    pipeline = pipeline_of()
    pipeline.process(opened(pipeline), frame([sent(i) for i in range(4)]))
    drawn = [Label(1, GOOD_TRUTH), Label(2, (1.0,)), Label(3, (1.0,)), Label(3, GOOD_TRUTH)]
    found = reported(pipeline, labels(drawn, complete=True))
    assert account_of(found.account) == {"matched": 2, "refused": 2}
    assert pipeline.counters.unmatched == 1
    assert pipeline.ledger.fates.pending == 1
    found = reported(pipeline, labels([Label(2, GOOD_TRUTH)], complete=True))
    assert account_of(found.account) == {"matched": 1}
    assert pipeline.counters.unmatched == 1
    assert pipeline.ledger.fates.pending == 0
    assert counted(pipeline)[TOTAL].raw.n == 3


def test_a_frame_of_which_nothing_waits_any_more_takes_less_room_and_knows_its_labels_again():
    pipeline = pipeline_of(DOUBLE)
    stream, store = opened(pipeline), pipeline.ledger.fates.store
    rows = [sent(i) for i in range(20)]
    pipeline.process(stream, frame([*rows, BAD], 1))
    waiting = store.bytes
    answer = [Label(row.id, truth_of(row)) for row in rows]
    reported(pipeline, labels(answer))
    # As long as there is room, a revision can still take back what was told.
    assert store.bytes > waiting
    store.max_bytes = store.bytes
    known = [replace(row, truth=truth_of(row)) for row in rows]
    pipeline.process(stream, frame(known, 2))
    assert len(store) == 2
    released = store.get(("lidar", 1))
    assert released is not None
    assert released.nbytes < waiting - 20 * 8 * (3 + 6 + 6)
    assert store.bytes <= store.max_bytes
    before = counted(pipeline)[TOTAL]
    for number in (1, 2):
        found = reported(pipeline, labels(answer, number, complete=True))
        assert account_of(found.account) == {"duplicate": 20}
    found = reported(pipeline, labels([Label(90, GOOD_TRUTH), Label(77, GOOD_TRUTH)]))
    assert account_of(found.account) == {"unusable": 1, "orphan": 1}
    assert counted(pipeline)[TOTAL] is before
    assert pipeline.counters.unmatched == pipeline.counters.dropped == 0


def test_a_higher_revision_takes_back_what_lower_ones_told_and_a_lower_one_changes_nothing():
    revised, fresh = pipeline_of(DOUBLE), pipeline_of(DOUBLE)
    rows = [sent(i, truth=i == 3) for i in range(4)]
    for pipeline in (revised, fresh):
        pipeline.process(opened(pipeline), frame([replace(row, truth=()) for row in rows]))
    first = labels([Label(0, (9.0, 9.0, 9.0)), Label(1, GOOD_TRUTH)], complete=True)
    last = labels([Label(0, GOOD_TRUTH), Label(2, (), ignore=True)])
    reported(revised, first)
    found = reported(revised, replace(last, revision=3))
    assert account_of(found.account) == {"matched": 1, "ignored": 1}
    assert found.retracted == 4
    reported(fresh, last)
    assert_same_statistics(revised, fresh)
    account = revised.ledger.fates.account
    names = "matched", "ignored", "unmatched", "retracted"
    assert [account[name] for name in names] == [1, 1, 0, 4]
    # What no label tells of any more waits again.
    assert revised.ledger.fates.pending == fateless(revised.ledger.fates) == 2
    for revision in (0, 2):
        found = reported(revised, replace(first, revision=revision))
        assert account_of(found.account) == {"duplicate": 2}
    found = reported(revised, replace(first, revision=3))
    assert account_of(found.account) == {"duplicate": 1, "matched": 1}
    assert revised.ledger.fates.pending == 0


def test_a_revision_takes_back_what_came_with_the_frame_but_the_first_labels_do_not():
    revised, fresh = pipeline_of(DOUBLE), pipeline_of(DOUBLE)
    rows = [sent(1, truth=True), sent(2)]
    revised.process(opened(revised), frame(rows))
    fresh.process(opened(fresh), frame([replace(row, truth=()) for row in rows]))
    found = reported(revised, labels([Label(1, GOOD_TRUTH)]))
    assert account_of(found.account) == {"duplicate": 1}
    found = reported(revised, replace(labels([Label(1, GOOD_TRUTH)]), revision=1))
    assert (account_of(found.account), found.retracted) == ({"matched": 1}, 1)
    reported(fresh, labels([Label(1, GOOD_TRUTH)]))
    assert_same_statistics(revised, fresh)


def test_a_revision_of_a_frame_that_let_go_of_its_estimates_comes_too_late():
    pipeline = pipeline_of(DOUBLE)
    stream, store = opened(pipeline), pipeline.ledger.fates.store
    rows = [sent(i, truth=True) for i in range(8)]
    pipeline.process(stream, frame(rows, 1))
    store.max_bytes = store.bytes + 1
    pipeline.process(stream, frame([sent(1)], 2))
    before = counted(pipeline)[TOTAL]
    revision = replace(labels([Label(1, GOOD_TRUTH), Label(2, GOOD_TRUTH)], 1), revision=1)
    assert account_of(reported(pipeline, revision).account) == {"too_late": 2}
    assert counted(pipeline)[TOTAL] is before


@pytest.mark.parametrize(
    ("stream", "frame_id", "reason", "field_name", "said"),
    [
        (
            "radar",
            1,
            Reason.GROUND_TRUTH_INVALID,
            "stream",
            "no stream 'radar': process its frames first.",
        ),
        (
            "lidar",
            7,
            Reason.GROUND_TRUTH_INVALID,
            "frame_id",
            "7: no such frame of stream 'lidar' is known. "
            "Send the labels of frames that were answered, with their frame_id.",
        ),
        (
            "lidar",
            None,
            Reason.MISSING_FRAME_KEY,
            "frame_id",
            "absent: name the frame that the labels belong to.",
        ),
    ],
)
def test_labels_of_a_frame_that_never_was_are_orphans_and_say_so(
    stream, frame_id, reason, field_name, said
):
    pipeline = pipeline_of()
    pipeline.process(opened(pipeline), frame([sent(1)]))
    found = reported(pipeline, labels([Label(1, GOOD_TRUTH)] * 3, frame_id, stream=stream))
    assert account_of(found.account) == {"orphan": 3}
    (notice,) = found.notices
    assert (notice.reason, notice.field, notice.count) == (reason, field_name, 3)
    assert notice.message == said


def test_labels_of_a_frame_that_had_to_go_are_too_late():
    pipeline = pipeline_of(pending={"max_bytes": 4000})
    stream = opened(pipeline)
    for number in range(10):
        pipeline.process(stream, frame([sent(1), sent(2)], number))
    assert 0 < len(pipeline.ledger.fates.store) < 10
    dropped = 10 - len(pipeline.ledger.fates.store)
    assert pipeline.counters.dropped == 2 * dropped
    found = reported(pipeline, labels([Label(1, GOOD_TRUTH)], 0))
    assert account_of(found.account) == {"too_late": 1}
    found = reported(pipeline, labels([Label(1, GOOD_TRUTH)], 9))
    assert account_of(found.account) == {"matched": 1}


@pytest.mark.parametrize(
    ("label", "field_name", "value"),
    [
        (Label(None, GOOD_TRUTH), "detection_id", "absent"),
        (Label(1, (1.0,)), "ground_truth", "[1]"),
        (Label(1, ()), "ground_truth", "[]"),
        (Label(1, (1.0, float("inf"), 0.0)), "ground_truth", "[1, inf, 0]"),
        (Label(1, (1.0, -3e8, 0.0)), "ground_truth", "[1, -3e+08, 0]"),
    ],
)
def test_a_refused_label_is_named_and_its_neighbours_count(label, field_name, value):
    pipeline = pipeline_of()
    pipeline.process(opened(pipeline), frame([sent(1), sent(2)]))
    found = reported(pipeline, labels([Label(2, GOOD_TRUTH), label]))
    assert account_of(found.account) == {"matched": 1, "refused": 1}
    (notice,) = found.notices
    assert (notice.reason, notice.field) == (Reason.GROUND_TRUTH_INVALID, field_name)
    assert (notice.count, notice.first_index) == (1, 1)
    remedy = {
        "detection_id": "name the detection that the label belongs to.",
        "ground_truth": (
            f"send 3 values (x, y, z), finite and within ±{pipeline.limits.largest_mean:g} "
            "([limits] largest_mean)."
        ),
    }
    assert notice.message == f"{value}: {remedy[field_name]}"
    assert pipeline.counters.notices[Reason.GROUND_TRUTH_INVALID] == 1
    reported(pipeline, labels([label, label]))
    assert pipeline.counters.notices[Reason.GROUND_TRUTH_INVALID] == 3


def test_a_label_for_id_zero_is_an_orphan_if_no_detection_had_that_id():
    pipeline = pipeline_of()
    pipeline.process(opened(pipeline), frame([sent(1), replace(sent(2), id=None)]))
    found = reported(pipeline, labels([Label(0, GOOD_TRUTH)]))
    assert account_of(found.account) == {"orphan": 1}


def test_labels_count_for_no_frame_that_another_one_of_its_number_replaced():
    """The earlier frame is on the disk, and was found before the later one came and went."""
    journal = ListJournal()
    pipeline = pipeline_of(journal=journal, pending={"max_bytes": 1}, tracker={"kind": "none"})
    stream = opened(pipeline, HEADERS["lidar"])
    pipeline.process(stream, Came("lidar", 1, 0).received())
    found = journal.look_up("lidar", 1, None)
    journal.busy = True
    pipeline.process(stream, Came("lidar", 1, 1).received())
    answer = pipeline.ledger.report(Message("lidar", 1, (Named(0),)).received(), found)
    assert isinstance(answer, TruthAnswer)
    assert account_of(answer.account) == {"too_late": 1}


def test_no_disk_is_searched_for_a_frame_whose_partition_it_has_lost():
    pipeline = pipeline_of(
        journal=ListJournal(), pending={"max_bytes": 1}, tracker={"kind": "none"}
    )
    stream = opened(pipeline, HEADERS["lidar"])
    pipeline.process(stream, Came("lidar", 1, 0).received())
    told = Message("lidar", 1, (Named(0),)).received()
    assert isinstance(pipeline.report(told), Search)
    pipeline.ledger.dropped(0, "budget")
    answer = pipeline.report(told)
    assert isinstance(answer, TruthAnswer)
    assert account_of(answer.account) == {"too_late": 1}
    # Later frames are on the disk once more.
    pipeline.process(stream, Came("lidar", 2, 0).received())
    assert isinstance(pipeline.report(Message("lidar", 2, (Named(0),)).received()), Search)
