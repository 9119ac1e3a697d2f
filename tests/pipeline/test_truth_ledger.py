"""Whatever comes, in whatever order: each detection has one fate and each label one count, and the
statistics hold what stands.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.frames.frame import TruthAnswer
from monitor.frames.slices import TOTAL
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.truth import Search
from monitor.statistics.observations import finished
from monitor.statistics.state import observe
from tests import laws, ledger_oracle, piped
from tests.journals import ListJournal
from tests.ledger_oracle import HEADERS, Came, Drop, Message, Named, any_frames, messages, tell
from tests.piped import BY_SLICE, DOUBLE, account_of, fateless, opened, pipeline_of
from tests.states import assert_same_state

PARTITION_S = 6


troubles = st.one_of(
    st.builds(ledger_oracle.Busy, st.booleans()),
    st.builds(Drop, st.integers(0, 5), st.sampled_from(["budget", "expired", "corrupt"])),
)


@dataclass
class World:
    """A pipeline, its disk, and the oracle beside them."""

    pipeline: Pipeline
    journal: ListJournal | None
    sampled: bool = False
    oracle: ledger_oracle.Oracle = field(default_factory=ledger_oracle.Oracle)

    @classmethod
    def of(cls, selection, *, disk: bool, max_bytes=2**28, keep_one_frame_in=1) -> World:
        journal = ListJournal() if disk else None
        pipeline = pipeline_of(
            selection,
            journal=journal,
            pending={
                "max_bytes": max_bytes,
                "keep_one_frame_in": keep_one_frame_in,
                "partition_minutes": 0.1,
            },
            tracker={"kind": "none"},
        )
        for header in HEADERS.values():
            opened(pipeline, header)
        return cls(pipeline, journal, keep_one_frame_in > 1)

    def move(self, move: ledger_oracle.Move) -> None:
        match move:
            case Came():
                known = self.oracle.now.get((move.stream, move.number or 0))
                if known is not None and (known.came.key, known.came.stamp_s) == (
                    move.key,
                    move.stamp_s,
                ):
                    move = known.came  # what comes again is the same
                self.oracle.came(move, move.stamp_s // PARTITION_S, self._why_not(move))
                stream = opened(self.pipeline, HEADERS[move.stream])
                self.pipeline.process(stream, move.received())
            case Message():
                self._tell(move)
            case ledger_oracle.Busy():
                if self.journal is not None:
                    self.journal.busy = move.is_so
            case Drop():
                self._drop(move)
        self._see_what_memory_lost()

    def _why_not(self, came: Came) -> str:
        """What becomes of a frame that memory has no room for; "": it is on the disk."""
        if self.journal is None:
            return "memory"
        number = came.number or 0
        if self.sampled and not came.inline and not self.pipeline.ledger.sampled(number):
            return "sampled"
        return "disk_busy" if self.journal.busy else ""

    def _tell(self, message: Message) -> None:
        findable = self._findable(message)
        expected, changed = self.oracle.tell(message, findable=findable)
        answer = tell(self.pipeline, self.journal, message)
        assert account_of(answer.account) == expected
        assert sum(expected.values()) == message.told
        if changed and self.journal is not None:
            self.oracle.now[message.stream, message.number].why_not = ""

    def _findable(self, message: Message) -> bool:
        key = message.stream, message.number
        book, frame = self.oracle.now.get(key), self.pipeline.ledger.fates.store.get(key)
        if book is None:
            return False
        news = message.revision > max(book.revision, 0)
        news |= message.things is not None and not book.things
        if frame is not None and not (frame.released and news):
            return True
        return self.journal is not None and self.journal.look_up(*key, None) is not None

    def _drop(self, move: Drop) -> None:
        if self.journal is None:
            return
        store = self.pipeline.ledger.fates.store
        there = {key for key in self.oracle.now if key in store}
        self.journal.drop(move.partition)
        self.pipeline.ledger.dropped(move.partition, move.why)
        self.oracle.partition_dropped(move.partition, move.why, there)

    def _see_what_memory_lost(self) -> None:
        for key in self.oracle.now:
            if key not in self.pipeline.ledger.fates.store:
                self.oracle.left_memory(key)

    def check(self) -> None:
        ledger, oracle = self.pipeline.ledger, self.oracle
        assert ledger_oracle.detections_of(self.pipeline) == oracle.detections()
        assert fateless(ledger.fates) == ledger.fates.pending
        assert all(count >= 0 for count in ledger.fates.waiting.values())
        assert account_of(self.pipeline.counters.truth) == {
            name: count for name, count in oracle.labels.items() if count
        }
        assert sum(oracle.labels.values()) == oracle.told

    def check_shares(self) -> None:
        expected: Counter[str] = Counter()
        for came in self.oracle.unnamed:
            for i in range(came.n):
                expected[f"predicted {came.slice(i)}"] += 1
                expected[f"labelled {came.slice(i)}"] += i < came.inline
        for book in self.oracle.books:
            for i in range(book.came.n):
                expected[f"predicted {book.came.slice(i)}"] += 1
                fate = (book.settled or book.fate).get(i, "waiting")
                expected[f"labelled {book.came.slice(i)}"] += fate != "waiting"
            expected.update(book.near)
        shares, found = self.pipeline.ledger.fates.shares, Counter[str]()
        for index, entry in enumerate(self.pipeline.slices.slices):
            for name in ("predicted", "labelled", "gated", "near_gate"):
                found[f"{name} {entry.key}"] += shares.of(name, index)
        assert +found == +expected

    def check_statistics(self) -> None:
        """They are those of a pipeline that was told what stands, and nothing else."""
        fresh = told_only_what_stands(self)
        assert_same_state(state_of(self.pipeline), state_of(fresh))


def told_only_what_stands(world: World) -> Pipeline:
    selection = world.pipeline.recalibrators.selection
    fresh = World.of(selection, disk=False).pipeline
    for came in world.oracle.unnamed:
        fresh.process(opened(fresh, HEADERS[came.stream]), came.received())
    for came, inline, told in world.oracle.what_stands():
        fresh.process(opened(fresh, HEADERS[came.stream]), came.received(inline=inline))
        for message in told:
            tell(fresh, None, message)
    return fresh


def state_of(pipeline: Pipeline) -> Any:
    return finished(pipeline.live.state_in_steps())


memories = st.sampled_from([2**28, 2**28, 9000, 3000, 1])
selections = st.sampled_from([DOUBLE, BY_SLICE])


@given(
    selections,
    st.booleans(),
    memories,
    st.sampled_from([1, 1, 2]),
    st.lists(st.one_of(any_frames, messages, messages, troubles), max_size=25),
)
def test_every_detection_has_one_fate_and_every_label_one_count(
    selection, disk, max_bytes, keep_one_frame_in, moves
):
    world = World.of(selection, disk=disk, max_bytes=max_bytes, keep_one_frame_in=keep_one_frame_in)
    for move in moves:
        world.move(move)
        world.check()
    world.check_shares()
    world.check_statistics()


@st.composite
def deliveries(draw):
    """Messages of a few frames, with at most one for each frame and revision."""
    found = draw(st.lists(messages, max_size=8))
    return list({(one.stream, one.number, one.revision): one for one in found}.values())


@given(selections, st.lists(any_frames, max_size=8), deliveries(), st.data())
def test_the_order_of_deliveries_changes_nothing(selection, frames, told, data):
    """Shuffled, repeated and late: what counts is which revisions of a frame came."""
    seen = {one.key: one for one in frames}
    one, other = World.of(selection, disk=True), World.of(selection, disk=True, max_bytes=1)
    for world in (one, other):
        for came in seen.values():
            world.move(came)
    for message in told:
        one.move(message)
    repeated = told + data.draw(st.lists(st.sampled_from(told), max_size=4)) if told else []
    for message in data.draw(st.permutations(repeated)):
        other.move(message)
    one.check_statistics()
    other.check_statistics()
    assert_same_state(state_of(one.pipeline), state_of(other.pipeline))
    ours, theirs = (world.pipeline.ledger.fates.account for world in (one, other))
    assert {**ours, "retracted": 0} == {**theirs, "retracted": 0}


def test_a_partition_that_goes_while_a_frame_of_it_is_looked_for_is_not_counted_as_if_it_stayed():
    world = World.of(DOUBLE, disk=True, max_bytes=1)
    world.move(Came("lidar", 1, 0))
    assert world.journal is not None
    labels = Message("lidar", 1, (Named(0),)).received()
    search = world.pipeline.ledger.report(labels)
    assert isinstance(search, Search)
    found = world.journal.look_up("lidar", 1, search.partition)
    world.pipeline.ledger.dropped(0, "budget")
    answer = world.pipeline.ledger.report(labels, found)
    assert isinstance(answer, TruthAnswer)
    assert account_of(answer.account) == {"too_late": 1}
    assert fateless(world.pipeline.ledger.fates) == world.pipeline.ledger.fates.pending == 0


def test_what_was_found_before_other_labels_came_is_looked_for_again():
    world = World.of(DOUBLE, disk=True, max_bytes=1)
    world.move(Came("lidar", 1, 0))
    assert world.journal is not None
    labels = Message("lidar", 1, (Named(0),)).received()
    found = world.journal.look_up("lidar", 1, None)
    assert isinstance(world.pipeline.ledger.report(labels, found), TruthAnswer)
    world.move(Came("lidar", 2, 0))  # memory loses sight of the first again
    assert ("lidar", 1) not in world.pipeline.ledger.fates.store
    assert isinstance(world.pipeline.ledger.report(labels, found), Search)
    answer = tell(world.pipeline, world.journal, Message("lidar", 1, (Named(0),)))
    assert account_of(answer.account) == {"duplicate": 1}


@pytest.mark.parametrize("selection", [DOUBLE, BY_SLICE])
def test_an_error_is_held_against_what_the_truth_itself_is_unsure_of(selection):
    """At both stages; and a later revision takes back exactly that."""
    world = World.of(selection, disk=False)
    frame = Came("lidar", 1, 0)
    world.move(frame)
    before = state_of(world.pipeline)
    world.move(Message("lidar", 1, things=(ledger_oracle.Thing(7, 1, unsure=True),)))
    pipeline, row = world.pipeline, ledger_oracle.detection(frame, 1, truth=False)
    total = piped.counted(pipeline)[TOTAL]
    truth = np.array([[2 * ledger_oracle.APART, ledger_oracle.BESIDE, 0.0]])
    sent = np.array(row.covariance).reshape(1, 3, 3)
    made = pipeline.latest["lidar"].made.covariance[[1]]
    unsure = np.diag([0.5, 0.25, 0.0])
    binning = pipeline.live.accumulator.binning
    error = truth - np.array([row.mean])
    for stage, covariance in ((total.raw, sent), (total.recalibrated, made)):
        alone = observe(piped.XYZ, binning, error, covariance + unsure)
        laws.assert_same(stage, alone)
    world.move(Message("lidar", 1, things=(), revision=1))
    world.check_statistics()
    assert_same_state(state_of(world.pipeline), before)
