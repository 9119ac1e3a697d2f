"""A watch that dies, and the one that goes on from what it kept and the ledger: what drifts is
found by the same frame, with the same evidence, and told once.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.drift.alarms import AlarmChange
from monitor.drift.evidence import DriftSettings, Unit
from monitor.drift.state import family_state, restored_family
from monitor.frames.frame import MatchedRows
from monitor.pipeline.drift_watch import DriftWatch, Position
from monitor.statistics.observations import finished
from monitor.store.drift_documents import family_text, read_family
from tests.test_drift_watch import XY, rows_of, table

SECOND = 10**9
SHORT = DriftSettings(
    hours_between_false_pages=0.01,
    hours_between_false_tickets=0.01,
    reference_tracks=4,
    reference_detections=150,
    reference_seconds=2.0,
    shortest_reference=3,
    calm_hours=0.003,
)


@dataclass
class Life:
    """A watch, and what it told; the entries are a ledger, each a frame with its truth."""

    settings: DriftSettings
    entries: list[MatchedRows]
    done: int = 0
    told: list[AlarmChange] = field(default_factory=list)
    watch: DriftWatch = field(init=False)

    def __post_init__(self) -> None:
        self.watch = DriftWatch(self.settings, table(), self.told.append, disorder_ns=2 * SECOND)

    def until(self, entry: int, *, at_once: int = 1, first: int | None = None) -> Life:
        """All entries up to one, caught up with every so many."""
        for number in range((self.done if first is None else first) + 1, entry + 1):
            self.watch.add(self.entries[number - 1], "a", number)
            if number % at_once == 0:
                finished(self.watch.catch_up())
        finished(self.watch.catch_up())
        self.done = entry
        return self

    def kept(self) -> bytes:
        """As the keeping of a sidecar has it."""
        position = self.watch.position(self.done)
        state = replace(
            family_state(self.watch.family, "a"),
            entry=position.entry,
            beyond=tuple(sorted(position.beyond)),
            waits=position.waits,
            order=self.watch.order(),
        )
        return b"".join(finished(family_text(state)))

    def again(self, kept: bytes, *, at_once: int = 1) -> Life:
        """Another process, which has done again what was in the ledger."""
        life = Life(self.settings, self.entries, told=list(self.told))
        state, watch = read_family(kept), life.watch
        assert state.entry is not None
        watch.has(Position(state.entry, frozenset(state.beyond), state.waits), state.order)
        watch.family, changes = restored_family(state, self.settings, {}, "a")
        assert changes == []
        return life.until(self.done, at_once=at_once, first=state.entry)


def entries_of(seed: int, number: int = 160, spread: float = 1.5) -> list[MatchedRows]:
    """Frames of two sources at 10 Hz, whose labels come in another order; in the middle errors
    become too large.
    """
    random = np.random.default_rng(seed)
    frames: list[tuple[float, MatchedRows]] = []
    for at in range(number):
        for source in range(2):
            slices = tuple(sorted(random.integers(0, 2, 4).tolist()))
            scale = 3.0 if number // 2 <= at else 1.0
            rows = rows_of(at, slices=slices, space=XY, scale=scale, source=source, made=1.1)
            delay = spread * 10 * random.random() * (random.random() < 0.3)
            frames.append((at + delay, rows))
    return [rows for _, rows in sorted(frames, key=lambda one: one[0])]


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 999), st.integers(0, 320), st.sampled_from(list(Unit)))
def test_who_goes_on_from_any_entry_finds_the_same_to_the_last_bit(seed, cut, unit):
    wanted = replace(SHORT, unit=unit)
    entries = entries_of(seed)
    whole = Life(wanted, entries).until(len(entries))
    life = Life(wanted, entries).until(cut)
    again = life.again(life.kept()).until(len(entries))
    assert again.told == whole.told
    assert again.kept() == whole.kept()


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 999), st.integers(0, 300), st.integers(0, 20))
def test_what_came_after_the_checkpoint_is_done_again_and_not_twice(seed, cut, more):
    """It died some entries later; alarms of those are told by the one that goes on."""
    entries = entries_of(seed)
    whole = Life(SHORT, entries).until(len(entries))
    life = Life(SHORT, entries).until(cut)
    kept, told = life.kept(), list(life.told)
    life.until(cut + more)
    life.told = told
    again = life.again(kept).until(len(entries))
    assert again.told == whole.told
    assert again.kept() == whole.kept()


@settings(deadline=None, max_examples=10)
@given(
    st.integers(0, 999),
    st.sampled_from(list(Unit)),
    st.sets(st.integers(1, 320)),
    st.integers(0, 320),
)
def test_when_what_comes_is_taken_in_changes_no_bit_of_what_is_found(seed, unit, looks, cut):
    """One takes in each frame at once, one at any moments, half way through when it dies."""
    wanted, entries = replace(SHORT, unit=unit), entries_of(seed)
    whole = Life(wanted, entries).until(len(entries))
    life = Life(wanted, entries)
    for entry in sorted(look for look in looks if look <= cut):
        life.until(entry, at_once=len(entries) + 1)
    life = life.again(life.kept()).until(len(entries), at_once=len(entries) + 1)
    assert life.told == whole.told
    assert life.kept() == whole.kept()
    for one in (whole, life):
        finished(one.watch.catch_up(everything=True))
    assert life.told == whole.told
    assert life.kept() == whole.kept()


def test_what_waits_is_taken_in_again_in_the_order_that_it_had():
    """A frame that came too late is the last of those that wait, whatever its stamp."""
    frames = [rows_of(number, source=source) for number in range(12) for source in range(2)]
    late = [rows_of(7), rows_of(30, source=1), rows_of(12)]
    entries = [*frames, *late]
    whole = Life(SHORT, entries).until(len(entries))
    life = Life(SHORT, entries).until(len(frames) + 1)
    position = life.watch.position(life.done)
    assert position.waits[-1] == len(frames) + 1
    again = life.again(life.kept())
    assert again.watch.position(life.done) == position
    assert again.until(len(entries)).kept() == whole.kept()


def test_what_waited_and_is_in_no_ledger_any_more_is_not_waited_for():
    entries = entries_of(3)
    watch = DriftWatch(SHORT, table(), list[object]().append, disorder_ns=2 * SECOND)
    watch.has(Position(0, waits=(2, 1)))
    watch.add(entries[0], "a", 1)
    assert watch.position(1).waits == (2, 1)
    watch.add(entries[2], "a", 3)
    assert watch.position(3).waits[:1] == (1,)


def test_of_a_lesser_disorder_no_source_waits_for_longer():
    entries = entries_of(3)
    life = Life(SHORT, entries).until(200)
    assert max(dict(life.watch.order().seen).values()) > 10**8
    watch = DriftWatch(SHORT, table(), list[object]().append, disorder_ns=10**8)
    watch.has(Position(0), life.watch.order())
    assert max(dict(watch.order().seen).values()) == 10**8
