"""A process that dies, and the one that goes on from what it kept: as if it were the same one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.drift.state import family_state, restored_family
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.restart import Resumption
from monitor.pipeline.run_state import RUN_STATE, restore_run, run_state_of, with_tracks
from monitor.statistics.observations import finished
from monitor.store.drift_documents import family_text, read_family
from monitor.store.journal import Journal
from monitor.store.statistics_state import StoredState, parsed, serialised
from tests.journals import ListJournal
from tests.ledger_oracle import HEADERS, Came, Message, detections_of, tell
from tests.piped import BY_SLICE, DOUBLE, fateless, opened, pipeline_of
from tests.states import assert_same_state
from tests.test_truth_ledger import Busy, Move, came, messages

named_frames = came.filter(lambda one: one.number is not None)
moves = st.lists(st.one_of(named_frames, messages(), messages()), max_size=25)
selections = st.sampled_from([DOUBLE, BY_SLICE])


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


def family_of(pipeline: Pipeline) -> bytes:
    """The evidence, without what waits."""
    drift = pipeline.drift
    finished(drift.catch_up())
    state = family_state(drift.family, pipeline.recalibrators.selection.version)
    return b"".join(finished(family_text(state)))


def checkpoint_of(pipeline: Pipeline) -> Checkpoint:
    with pipeline.live.held():
        run = run_state_of(pipeline)
        state = finished(pipeline.live.state_in_steps(holder=True))
        run = with_tracks(run, pipeline)
    body = b"".join(serialised(StoredState(state)))
    return Checkpoint(body, RUN_STATE.write(run), family_of(pipeline))


def resumed(kept: Checkpoint, fresh: Pipeline, journal: ListJournal) -> Resumption:
    """As a sidecar does at start."""
    finished(fresh.live.import_in_steps(parsed(kept.statistics).state))
    run = RUN_STATE.read(kept.run)
    restore_run(fresh, run)
    family = read_family(kept.drift)
    version = fresh.recalibrators.selection.version
    watch = fresh.drift
    watch.family, _ = restored_family(family, watch.settings, watch.family.usual.given, version)
    for one in journal.entries:
        frame = one.frame_entry()
        if frame is not None:
            fresh.ledger.known(one.stream, one.frame_id, frame.frame.stamp_ns, one.partition)
    resumption = Resumption(fresh)
    resumption.run(cast(Journal, journal), run.sequence)
    return resumption


def done(pipeline: Pipeline, move: Move) -> None:
    journal = cast(ListJournal, pipeline.ledger.journal)
    if isinstance(move, Came):
        pipeline.process(opened(pipeline, HEADERS[move.stream]), move.received())
    elif isinstance(move, Message):
        tell(pipeline, journal, move)
    elif isinstance(move, Busy):
        journal.busy = move.is_so


def shares_of(pipeline: Pipeline) -> dict[str, list[int]]:
    shares = pipeline.ledger.fates.shares
    return {
        entry.name: [
            shares.of(name, index) for name in ("predicted", "labelled", "gated", "near_gate")
        ]
        for index, entry in enumerate(pipeline.slices.slices)
    }


def labels_of(pipeline: Pipeline) -> dict[str, int]:
    truth = pipeline.counters.truth
    return {name: getattr(truth, name) for name in truth.__dataclass_fields__}


def times_of(pipeline: Pipeline) -> Any:
    clock, streams = pipeline.live.clock, pipeline.streams
    return (
        (clock.now_ns, clock.votes, clock.other_ns, clock.jumps, pipeline.live.generation),
        {name: (one.time, one.number, one.header) for name, one in streams.items()},
        pipeline.numbered,
    )


def state_of(pipeline: Pipeline) -> Any:
    return finished(pipeline.live.state_in_steps())


def assert_alike(one: Pipeline, other: Pipeline) -> None:
    assert_same_state(state_of(one), state_of(other))
    assert detections_of(one) == detections_of(other)
    assert one.ledger.fates.account == other.ledger.fates.account
    assert shares_of(one) == shares_of(other)
    assert labels_of(one) == labels_of(other)
    assert times_of(one) == times_of(other)
    assert one.ledger.sequence == other.ledger.sequence


def without_what_comes_again(moves: list[Move]) -> list[Move]:
    """Without frames that are repeated: a repeated frame is in nobody's ledger."""
    last: dict[Any, int] = {}
    found: list[Move] = []
    for move in moves:
        if isinstance(move, Came):
            if last.get(move.key) == move.stamp_s:
                continue
            last[move.key] = move.stamp_s
        found.append(move)
    return found


def forget_what_changed_nothing(
    pipeline: Pipeline, before: dict[str, int], told: Counter[str]
) -> None:
    """Labels that changed nothing are in no ledger: whoever died has not counted them."""
    for name, count in before.items():
        setattr(pipeline.counters.truth, name, count + told[name])


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
                life.kept, life.counted, life.told = (
                    checkpoint_of(alive),
                    labels_of(alive),
                    Counter(),
                )
            life.see(move)
        forget_what_changed_nothing(alive, life.counted, life.told)
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


cuts = st.tuples(*[st.integers(0, 25)] * 2)
memories = st.sampled_from([2**28, 2**28, 9000, 1])


@settings(max_examples=60)
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


@st.composite
def moves_in_order(draw):
    """Frames one after the other, each with its labels before the next one comes."""
    found: list[Move] = []
    for number in range(draw(st.integers(0, 10))):
        frame = replace(draw(named_frames), stream="lidar", number=number, stamp_s=2 * number)
        found.append(frame)
        for message in draw(st.lists(messages(), max_size=2)):
            found.append(replace(message, stream="lidar", number=number))
    return found


@settings(max_examples=20)
@given(selections, moves_in_order())
def test_evidence_of_drift_is_gathered_again_from_the_ledger(selection, moves):
    """Up to rounding: rows are summed in other portions. Nothing was kept."""
    life = Life.of(selection, moves, 0, len(moves))
    again = life.again(selection)
    assert_close(read_family(family_of(life.pipeline)), read_family(family_of(again)))


def assert_close(left: Any, right: Any) -> None:
    assert type(left) is type(right)
    if is_dataclass(left):
        for entry in fields(left):
            assert_close(getattr(left, entry.name), getattr(right, entry.name))
    elif isinstance(left, np.ndarray) and left.dtype.names:
        for name in left.dtype.names:
            assert_close(left[name], right[name])
    elif isinstance(left, np.ndarray):
        np.testing.assert_allclose(left, right, rtol=1e-9, atol=1e-12)
    elif isinstance(left, tuple):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_close(one, other)
    elif isinstance(left, float):
        assert left == pytest.approx(right, rel=1e-9, abs=1e-12)
    else:
        assert left == right


troubled = st.lists(
    st.one_of(named_frames, messages(), messages(), st.builds(Busy, st.booleans())), max_size=25
)


@settings(max_examples=60)
@given(selections, troubled.map(without_what_comes_again), cuts, st.sampled_from([1, 2]))
def test_labels_that_are_on_the_disk_count_once_where_their_frames_were_in_memory_alone(
    selection, moves, cuts, keep_one_frame_in
):
    """What came with frames that the disk did not take is lost; of labels nothing is."""
    moves = [replace(move, inline=0) if isinstance(move, Came) else move for move in moves]
    written, death = sorted(min(cut, len(moves)) for cut in cuts)
    life = Life.of(selection, moves, written, death, keep_one_frame_in=keep_one_frame_in)
    again = life.again(selection, keep_one_frame_in=keep_one_frame_in)
    last = Came("lidar", 77, 40)
    for pipeline in (life.pipeline, again):
        done(pipeline, Busy(False))
        done(pipeline, last)
        ledger = pipeline.ledger
        assert fateless(ledger.fates) == ledger.fates.pending
        assert all(count >= 0 for count in ledger.fates.account.values())
    alive, dead = (one.ledger.fates.account for one in (life.pipeline, again))
    fates = "matched", "ignored", "unmatched"
    assert [alive[one] for one in fates] == [dead[one] for one in fates]
    assert_same_slices(state_of(life.pipeline), state_of(again))


def assert_same_slices(alive: Any, dead: Any) -> None:
    """Of all that labels told of; a slice that nobody told of may be lost with its frames."""

    def told(state: Any) -> Any:
        return replace(
            state,
            slices=tuple(one for one in state.slices if one.panes),
            class_slices=tuple(one for one in state.class_slices if one.panes),
        )

    assert_same_state(told(alive), told(dead))
