"""A process that goes on with less than there was: with a partition that was dropped and written
anew, or with no position in the ledger. The account never has frames from before it began.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.pending import Dropped
from monitor.pipeline.restart import Resumption
from monitor.store.journal import Journal
from tests.journals import ListJournal, Written
from tests.ledger_oracle import HEADERS, Came, Message, Named, tell
from tests.piped import DOUBLE, account_of, fateless, opened
from tests.states import assert_same_state
from tests.test_resuming import (
    a_pipeline,
    checkpoint_of,
    done,
    named_frames,
    resumed,
    state_of,
)
from tests.test_truth_ledger import messages


@dataclass(frozen=True)
class Anew:
    """A partition goes for the budget, and its last entries are written anew."""

    partition: int
    left: int


def write_anew(pipeline: Pipeline, journal: ListJournal, move: Anew) -> None:
    ours = [one for one in journal.entries if one.partition == move.partition]
    stays: list[Written] = []
    for one in ours[len(ours) - move.left :]:
        names = {(other.stream, other.frame_id) for other in stays}
        if one.frame is not None or (one.stream, one.frame_id) in names:
            stays.append(one)
    gone = {one.sequence for one in ours} - {one.sequence for one in stays}
    journal.entries = [one for one in journal.entries if one.sequence not in gone]
    pipeline.ledger.dropped(move.partition, "budget")


def moved(pipeline: Pipeline, journal: ListJournal, move: Came | Message | Anew) -> None:
    if isinstance(move, Anew):
        write_anew(pipeline, journal, move)
    else:
        done(pipeline, move)


def begun_anew(journal: ListJournal, **pending: int) -> Pipeline:
    """A pipeline whose account begins now: its checkpoint has no position in the ledger."""
    fresh = a_pipeline(DOUBLE, journal, **pending)
    for one in journal.entries:
        frame = one.frame_entry()
        if frame is not None:
            fresh.ledger.known(one.stream, one.frame_id, frame.frame.stamp_ns, one.partition)
    fresh.ledger.sequence = max((one.sequence for one in journal.entries), default=0)
    fresh.ledger.begins = fresh.ledger.sequence + 1
    for header in HEADERS.values():
        opened(fresh, header)
    return fresh


def gone_on(pipeline: Pipeline, journal: ListJournal, **pending: int) -> Pipeline:
    """One that goes on from a checkpoint of now."""
    kept = checkpoint_of(pipeline)
    fresh = a_pipeline(DOUBLE, journal, **pending)
    resumed(kept, fresh, journal)
    return fresh


def assert_adds_up(pipeline: Pipeline) -> None:
    ledger = pipeline.ledger
    assert all(count >= 0 for count in ledger.fates.waiting.values())
    assert all(count >= 0 for count in ledger.fates.account.values())
    account, shares = ledger.fates.account, ledger.fates.shares
    assert fateless(ledger.fates) == ledger.fates.pending >= 0
    for counts in shares.counts.values():
        assert (counts >= 0).all()
    without_slice = account[f"dropped_{Dropped.REFUSED}"] + account[f"dropped_{Dropped.BARE}"]
    assert shares.counts["predicted"].sum() == account["predicted"] - without_slice
    told = account["matched"] + account["ignored"] + account["unmatched"]
    assert shares.counts["labelled"].sum() == told


ALL = Message("lidar", 1, tuple(Named(i) for i in range(3)))


@pytest.mark.parametrize(
    ("max_bytes", "why"), [(2**28, Dropped.RESTART), (1, Dropped.BUDGET)], ids=["memory", "disk"]
)
def test_a_frame_that_was_written_anew_is_not_lost_any_more_when_labels_tell_of_it(max_bytes, why):
    journal = ListJournal()
    pipeline = a_pipeline(DOUBLE, journal, max_bytes=max_bytes)
    moved(pipeline, journal, Came("lidar", 1, 0))
    moved(pipeline, journal, Anew(0, 1))
    again = gone_on(pipeline, journal, max_bytes=max_bytes)
    assert (again.ledger.fates.account[f"dropped_{why}"], again.ledger.fates.pending) == (3, 0)
    answer = tell(again, journal, ALL)
    assert account_of(answer.account) == {"matched": 3}
    assert_adds_up(again)
    assert again.ledger.fates.account["matched"] == again.ledger.fates.account["predicted"] == 3
    assert again.ledger.fates.account[f"dropped_{why}"] == 0


def test_without_a_checkpoint_no_detection_that_came_before_is_ever_in_the_account():
    journal = ListJournal()
    pipeline = a_pipeline(DOUBLE, journal)
    for number in (1, 2):
        moved(pipeline, journal, Came("lidar", number, 0, refused=1))
    tell(pipeline, journal, replace(ALL, number=2))
    again = begun_anew(journal)
    moved(again, journal, Came("lidar", 3, 0, refused=1))
    for told in (replace(ALL, number=3), ALL, Message("lidar", 2, (Named(0),), revision=1)):
        answer = tell(again, journal, told)
        assert account_of(answer.account) == {"matched": len(told.named)}
        assert_adds_up(again)
    assert answer.retracted == 3
    moved(again, journal, Anew(0, 0))
    assert_adds_up(again)
    account = again.ledger.fates.account
    assert (account["predicted"], account["matched"], again.ledger.fates.pending) == (4, 3, 0)
    assert (account[f"dropped_{Dropped.REFUSED}"], account["retracted"]) == (1, 0)
    assert fateless(again.ledger.fates) == 0


@pytest.mark.parametrize("max_bytes", [2**28, 1])
def test_without_a_checkpoint_the_statistics_have_what_labels_tell_of_frames_before(max_bytes):
    told = ALL, Message("lidar", 1, (Named(0),), revision=1)
    journal = ListJournal()
    alive = a_pipeline(DOUBLE, journal, max_bytes=max_bytes)
    moved(alive, journal, Came("lidar", 1, 0))
    again = begun_anew(journal.copy(), max_bytes=max_bytes)
    for move in (Came("lidar", 2, 0), *told):
        for pipeline in (alive, again):
            moved(pipeline, journal, move)
    assert_same_state(state_of(alive), state_of(again))


def test_without_a_checkpoint_what_is_done_again_from_the_first_entry_on_comes_no_second_time():
    journal = ListJournal()
    pipeline = a_pipeline(DOUBLE, journal)
    moved(pipeline, journal, Came("lidar", 1, 0))
    moved(pipeline, journal, Came("lidar", 2, 0))
    tell(pipeline, journal, ALL)
    again = a_pipeline(DOUBLE, journal, max_bytes=1)
    again.ledger.sequence = 3
    Resumption(again).run(cast(Journal, journal), 0)
    tell(again, journal, Message("lidar", 1, (Named(0),), revision=1))
    assert_adds_up(again)
    account = again.ledger.fates.account
    assert (account["predicted"], account["matched"], again.ledger.fates.pending) == (6, 1, 5)


def test_without_a_checkpoint_labels_still_find_a_frame_whose_partition_went():
    journal = ListJournal()
    moved(a_pipeline(DOUBLE, journal), journal, Came("lidar", 1, 0))
    again = begun_anew(journal)
    tell(again, journal, Message("lidar", 1, (Named(0, "wrong"),)))
    moved(again, journal, Anew(0, 0))
    assert_adds_up(again)
    answer = tell(again, journal, ALL)
    assert account_of(answer.account) == {"matched": 3}
    assert_adds_up(again)
    last = gone_on(again, journal)
    tell(last, journal, Message("lidar", 1, (Named(0),), revision=1))
    for pipeline in (again, last):
        fates = pipeline.ledger.fates
        assert (fates.account["predicted"], fates.account["matched"], fates.pending) == (0, 0, 0)


anew = st.builds(Anew, st.integers(0, 5), st.integers(0, 3))
moves = st.lists(st.one_of(named_frames, messages(), messages(), anew), max_size=15)
short_moves = st.lists(st.one_of(named_frames, messages(), messages(), anew), max_size=8)


LOST = [Came("lidar", 0, 0, n=0), Came("lidar", 1, 0, n=1), Message("lidar", 1, (Named(0),))]
REVISED = [Came("lidar", 0, 0, n=0), Came("lidar", 0, 0, n=0), Message("lidar", 1, revision=1)]


@settings(max_examples=40)
@example(LOST, REVISED, False, [], 2**28)
@given(moves, moves, st.booleans(), short_moves, st.sampled_from([2**28, 9000, 1]))
def test_whatever_was_lost_no_count_falls_below_zero_and_all_of_them_add_up(
    before, after, checkpoint, later, max_bytes
):
    journal = ListJournal()
    pipeline = a_pipeline(DOUBLE, journal, max_bytes=max_bytes)
    for move in before:
        moved(pipeline, journal, move)
        assert_adds_up(pipeline)
    if checkpoint:
        again = gone_on(pipeline, journal, max_bytes=max_bytes)
    else:
        again = begun_anew(journal, max_bytes=max_bytes)
    for move in after:
        moved(again, journal, move)
        assert_adds_up(again)
    last = gone_on(again, journal, max_bytes=max_bytes)  # a checkpoint can be written
    for move in later:
        moved(last, journal, move)
        assert_adds_up(last)
    checkpoint_of(last)


def test_who_goes_on_from_an_account_that_began_anew_knows_what_is_not_in_it():
    journal = ListJournal()
    pipeline = a_pipeline(DOUBLE, journal)
    for number in (1, 2):
        moved(pipeline, journal, Came("lidar", number, 0))
        tell(pipeline, journal, replace(ALL, number=number))
    again = begun_anew(journal)
    moved(again, journal, Came("lidar", 3, 0))
    tell(again, journal, replace(ALL, number=3))
    tell(again, journal, Message("lidar", 1, (Named(0),), revision=1))
    last = gone_on(again, journal)
    tell(last, journal, Message("lidar", 1, (Named(1),), revision=2))
    tell(last, journal, Message("lidar", 2, (Named(0),), revision=1))
    assert_adds_up(last)
    account = last.ledger.fates.account
    assert (account["predicted"], account["matched"], last.ledger.fates.pending) == (3, 3, 0)
