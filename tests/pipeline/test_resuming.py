"""A process that dies, and the one that goes on from what it kept: as if it were the same one; and
one that goes on with less than there was, whose counts still add up.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monitor.drift.family import family_state
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.pending import Dropped
from monitor.pipeline.restart import (
    RUN_STATE,
    OpenTracks,
    Resumption,
    restore_drift,
    restore_run,
    run_state_of,
    with_tracks,
)
from monitor.statistics.observations import finished
from monitor.store.documents import family_text, read_family
from monitor.store.entries import Entry
from monitor.store.journal import Journal
from monitor.store.statistics_state import StoredState, parsed, serialised
from tests import ledger_oracle
from tests.journals import ListJournal, frame_in, name_of
from tests.ledger_oracle import HEADERS, Busy, Came, Message, Move, Named, messages, named_frames
from tests.piped import BY_SLICE, DOUBLE, XYZ, account_of, fateless, opened, pipeline_of
from tests.states import assert_same_state, bits

selections = st.sampled_from([DOUBLE, BY_SLICE])
memories = st.sampled_from([2**28, 2**28, 9000, 1])
cuts = st.tuples(*[st.integers(0, 25)] * 2)


def a_pipeline(selection, journal: ListJournal, **pending: Any) -> Pipeline:
    return pipeline_of(
        selection,
        journal=journal,
        pending={"partition_minutes": 0.1, **pending},
        tracker={"kind": "none"},
    )


@dataclass
class Checkpoint:
    """What is kept of a pipeline at a moment, as bytes."""

    statistics: bytes
    run: bytes
    drift: bytes


def checkpoint_of(pipeline: Pipeline) -> Checkpoint:
    with pipeline.live.held():
        run = run_state_of(pipeline)
        state = finished(pipeline.live.state_in_steps(holder=True))
        run = with_tracks(run, pipeline)
    finished(pipeline.drift.catch_up())
    family = family_state(pipeline.drift.family, pipeline.recalibrators.selection.version)
    drift = b"".join(finished(family_text(family)))
    return Checkpoint(b"".join(serialised(StoredState(state))), RUN_STATE.write(run), drift)


def know(fresh: Pipeline, journal: ListJournal) -> None:
    """Tells a pipeline at start what is on the disk."""
    for one in journal.entries:
        frame = frame_in(one)
        if frame is not None:
            fresh.ledger.known(*name_of(one), frame.frame.stamp_ns, one.partition)


def resumed(kept: Checkpoint, fresh: Pipeline, journal: ListJournal) -> Resumption:
    """Goes on as a sidecar does at start."""
    finished(fresh.live.import_in_steps(parsed(kept.statistics).state))
    run = RUN_STATE.read(kept.run)
    assert bits(RUN_STATE.read(RUN_STATE.write(run))) == bits(run)
    restore_run(fresh, run)
    restore_drift(fresh, read_family(kept.drift))
    know(fresh, journal)
    resumption = Resumption(fresh)
    resumption.run(cast(Journal, journal), run.sequence)
    return resumption


def done(pipeline: Pipeline, move: Move) -> None:
    journal = cast(ListJournal, pipeline.ledger.journal)
    if isinstance(move, Came):
        pipeline.process(opened(pipeline, HEADERS[move.stream]), move.received())
    elif isinstance(move, Message):
        ledger_oracle.tell(pipeline, journal, move)
    elif isinstance(move, Busy):
        journal.busy = move.is_so


def labels_of(pipeline: Pipeline) -> dict[str, int]:
    truth = pipeline.counters.truth
    return {name: getattr(truth, name) for name in truth.__dataclass_fields__}


def state_of(pipeline: Pipeline) -> Any:
    return finished(pipeline.live.state_in_steps())


def counts_of(pipeline: Pipeline) -> Any:
    """All but the statistics that the next frame depends on, or that is told."""
    clock, ledger, shares = pipeline.live.clock, pipeline.ledger, pipeline.ledger.fates.shares
    return (
        ledger_oracle.detections_of(pipeline),
        ledger.fates.account,
        {
            entry.name: [shares.of(name, index) for name in shares.counts]
            for index, entry in enumerate(pipeline.slices.slices)
        },
        labels_of(pipeline),
        (clock.now_ns, clock.votes, clock.other_ns, clock.jumps, pipeline.live.generation),
        {name: (one.time, one.number, one.header) for name, one in pipeline.streams.items()},
        (pipeline.numbered, ledger.sequence),
    )


def assert_alike(one: Pipeline, other: Pipeline) -> None:
    # What is predicted of detections without labels is known as of the checkpoint alone.
    assert_same_state(*(replace(state_of(each), predicted=()) for each in (one, other)))
    assert counts_of(one) == counts_of(other)


def without_what_comes_again(moves: list[Any]) -> list[Move]:
    """Leaves out frames that are repeated: a repeated frame is in nobody's ledger."""
    last: dict[Any, int] = {}
    found: list[Move] = []
    for move in moves:
        if not isinstance(move, Came) or last.get(move.key) != move.stamp_s:
            found.append(move)
        if isinstance(move, Came):
            last[move.key] = move.stamp_s
    return found


@dataclass
class Life:
    """A pipeline and what is kept of it: a checkpoint and the ledger.

    told  labels since the checkpoint that are in the ledger
    """

    pipeline: Pipeline
    journal: ListJournal
    kept: Checkpoint
    counted: dict[str, int]
    told: Counter[str]

    @classmethod
    def of(cls, selection, moves, written: int, death: int, **pending) -> Life:
        journal = ListJournal()
        alive = a_pipeline(selection, journal, **pending)
        life = cls(alive, journal, checkpoint_of(alive), labels_of(alive), Counter())
        for number, move in enumerate(moves[:death]):
            if number == written:
                life.kept, life.counted = checkpoint_of(alive), labels_of(alive)
                life.told.clear()
            life.see(move)
        # Labels that changed nothing are in no ledger: whoever died has not counted them.
        for name, count in life.counted.items():
            setattr(alive.counters.truth, name, count + life.told[name])
        return life

    def see(self, move: Move) -> None:
        before, entries = labels_of(self.pipeline), len(self.journal.entries)
        done(self.pipeline, move)
        if len(self.journal.entries) > entries:
            now = labels_of(self.pipeline)
            self.told.update({name: count - before[name] for name, count in now.items()})

    def again(self, selection, **pending) -> Pipeline:
        """The one that goes on."""
        fresh = a_pipeline(selection, self.journal.copy(), **pending)
        resumption = resumed(self.kept, fresh, self.journal)
        assert resumption.failed == 0
        return fresh


moves = st.lists(st.one_of(named_frames, messages, messages), max_size=25)


@given(selections, moves.map(without_what_comes_again), cuts, memories)
def test_who_goes_on_from_a_checkpoint_and_the_ledger_is_the_one_that_never_died(
    selection, moves, cuts, max_bytes
):
    written, death = sorted(min(cut, len(moves)) for cut in cuts)
    life = Life.of(selection, moves, written, death, max_bytes=max_bytes)
    again = life.again(selection, max_bytes=max_bytes)
    assert_alike(life.pipeline, again)
    for move in moves[death:]:
        done(life.pipeline, move)
        done(again, move)
    assert_alike(life.pipeline, again)


troubled = st.lists(
    st.one_of(named_frames, messages, messages, st.builds(Busy, st.booleans())), max_size=25
)


@given(selections, troubled.map(without_what_comes_again), cuts, st.sampled_from([1, 2]))
def test_labels_that_are_on_the_disk_count_once_where_their_frames_were_in_memory_alone(
    selection, moves, cuts, keep_one_frame_in
):
    """What came with frames that the disk did not take is lost; of labels nothing is."""
    moves = [replace(move, inline=0) if isinstance(move, Came) else move for move in moves]
    written, death = sorted(min(cut, len(moves)) for cut in cuts)
    life = Life.of(selection, moves, written, death, keep_one_frame_in=keep_one_frame_in)
    again = life.again(selection, keep_one_frame_in=keep_one_frame_in)
    for pipeline in (life.pipeline, again):
        done(pipeline, Busy(False))
        done(pipeline, Came("lidar", 77, 40))
        fates = pipeline.ledger.fates
        assert fateless(fates) == fates.pending
        assert all(count >= 0 for count in fates.account.values())
    alive, dead = (one.ledger.fates.account for one in (life.pipeline, again))
    assert [alive[one] for one in FATES] == [dead[one] for one in FATES]
    assert_same_state(told_state(life.pipeline), told_state(again))


FATES = "matched", "ignored", "unmatched"


def told_state(pipeline: Pipeline) -> Any:
    """Leaves out what nobody told of: it may be lost with its frames, since the checkpoint."""
    state = state_of(pipeline)
    return replace(
        state,
        slices=tuple(one for one in state.slices if one.panes),
        class_slices=tuple(one for one in state.class_slices if one.panes),
        predicted=(),
    )


# ---- with less than there was


@dataclass(frozen=True)
class Anew:
    """A partition goes for the budget, and its last entries are written anew."""

    partition: int
    left: int


def moved(pipeline: Pipeline, journal: ListJournal, move: Came | Message | Anew) -> None:
    if not isinstance(move, Anew):
        done(pipeline, move)
        return
    ours = [one for one in journal.entries if one.partition == move.partition]
    stays: list[Entry] = []
    for one in ours[len(ours) - move.left :]:
        if frame_in(one) is not None or name_of(one) in map(name_of, stays):
            stays.append(one)
    gone = {one.sequence for one in ours} - {one.sequence for one in stays}
    journal.entries = [one for one in journal.entries if one.sequence not in gone]
    pipeline.ledger.dropped(move.partition, "budget")


def begun_anew(journal: ListJournal, **pending: int) -> Pipeline:
    """A pipeline whose account begins now: its checkpoint has no position in the ledger."""
    fresh = a_pipeline(DOUBLE, journal, **pending)
    know(fresh, journal)
    fresh.ledger.sequence = max((one.sequence for one in journal.entries), default=0)
    fresh.ledger.begins = fresh.ledger.sequence + 1
    for header in HEADERS.values():
        opened(fresh, header)
    return fresh


def gone_on(pipeline: Pipeline, journal: ListJournal, **pending: int) -> Pipeline:
    """One that goes on from a checkpoint of now."""
    fresh = a_pipeline(DOUBLE, journal, **pending)
    resumed(checkpoint_of(pipeline), fresh, journal)
    return fresh


def assert_adds_up(pipeline: Pipeline, **expected: int) -> None:
    """No count is below zero, and they are those of the slices; some of them are as expected."""
    fates = pipeline.ledger.fates
    account, shares = fates.account, fates.shares
    assert all(count >= 0 for count in (*fates.waiting.values(), *account.values()))
    assert fateless(fates) == fates.pending >= 0
    assert all((counts >= 0).all() for counts in shares.counts.values())
    without_slice = account[f"dropped_{Dropped.REFUSED}"] + account[f"dropped_{Dropped.BARE}"]
    assert shares.counts["predicted"].sum() == account["predicted"] - without_slice
    assert shares.counts["labelled"].sum() == sum(account[fate] for fate in FATES)
    found = {**account, "pending": fates.pending}
    assert {name: found[name] for name in expected} == expected


ALL = Message("lidar", 1, tuple(Named(i) for i in range(3)))


def test_an_entry_that_cannot_be_done_again_costs_itself_alone():
    journal = ListJournal()
    pipeline = a_pipeline(DOUBLE, journal)
    for move in (Came("lidar", 1, 0), Came("lidar", 2, 0), ALL, replace(ALL, number=2)):
        moved(pipeline, journal, move)
    del journal.entries[0]
    again = a_pipeline(DOUBLE, journal)
    resumption = Resumption(again)
    resumption.run(cast(Journal, journal), 0)
    assert (resumption.entries, resumption.failed) == (3, 1)
    assert_adds_up(again, predicted=3, matched=3)
    assert again.ledger.sequence == 4


@pytest.mark.parametrize(("max_bytes", "why"), [(2**28, Dropped.RESTART), (1, Dropped.BUDGET)])
def test_a_frame_that_was_written_anew_is_not_lost_when_labels_tell_of_it(max_bytes, why):
    pipeline = a_pipeline(DOUBLE, journal := ListJournal(), max_bytes=max_bytes)
    for move in (Came("lidar", 1, 0), Anew(0, 1)):
        moved(pipeline, journal, move)
    again = gone_on(pipeline, journal, max_bytes=max_bytes)
    assert_adds_up(again, **{f"dropped_{why}": 3, "pending": 0})
    ledger_oracle.tell(again, journal, ALL)
    assert_adds_up(again, **{f"dropped_{why}": 0, "matched": 3, "predicted": 3})


def test_without_a_checkpoint_labels_still_find_a_frame_whose_partition_went():
    moved(a_pipeline(DOUBLE, journal := ListJournal()), journal, Came("lidar", 1, 0))
    again = begun_anew(journal)
    for move in (Message("lidar", 1, (Named(0, "wrong"),)), Anew(0, 0)):
        moved(again, journal, move)
    assert account_of(ledger_oracle.tell(again, journal, ALL).account) == {"matched": 3}
    assert_adds_up(again, predicted=0, matched=0, pending=0)


lossy = st.one_of(
    named_frames, messages, messages, st.builds(Anew, st.integers(0, 5), st.integers(0, 3))
)
LOST = [Came("lidar", 0, 0, n=0), Came("lidar", 1, 0, n=1), Message("lidar", 1, (Named(0),))]
REVISED = [Came("lidar", 0, 0, n=0), Came("lidar", 0, 0, n=0), Message("lidar", 1, revision=1)]


@example(LOST, REVISED, False, [], 2**28)
@given(
    st.lists(lossy, max_size=15),
    st.lists(lossy, max_size=15),
    st.booleans(),
    st.lists(lossy, max_size=8),
    memories,
)
def test_whatever_was_lost_no_count_falls_below_zero_and_all_of_them_add_up(
    before, after, checkpoint, later, max_bytes
):
    journal = ListJournal()
    pipeline = a_pipeline(DOUBLE, journal, max_bytes=max_bytes)
    for move in before:
        moved(pipeline, journal, move)
        assert_adds_up(pipeline)
    next_one = gone_on(pipeline, journal) if checkpoint else begun_anew(journal)
    next_one.ledger.fates.store.max_bytes = max_bytes
    for move in after:
        moved(next_one, journal, move)
        assert_adds_up(next_one)
    last = gone_on(next_one, journal, max_bytes=max_bytes)  # a checkpoint can be written
    for move in later:
        moved(last, journal, move)
        assert_adds_up(last)
    checkpoint_of(last)


def test_open_tracks_ascend_and_were_seen_among_the_rows_that_were_counted():
    def tracks(counted: int, *ids: int) -> OpenTracks:
        rows = np.array([4, 9]), np.array([1.0, 2.0]), np.arange(16.0)
        return OpenTracks(XYZ, counted, np.array(ids, np.uint64), *rows)

    assert tracks(10, 3, 5).ids.tolist() == [3, 5]
    for counted, ids, said in (
        (10, (5, 5), "ascend"),
        (10, (0, 3), "ascend"),
        (9, (3, 5), "the 9"),
        (10, (3,), "are not of 1 tracks"),
    ):
        with pytest.raises(ValueError, match=said):
            tracks(counted, *ids)
