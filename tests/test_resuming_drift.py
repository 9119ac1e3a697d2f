"""A watch that dies, and the one that goes on from what was kept: what is known stays, what was
open is lost, and nothing counts twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.drift.alarms import AlarmChange, AlarmReason, key_of
from monitor.drift.evidence import DriftSettings, Unit
from monitor.drift.state import family_state, restored_family
from monitor.frames.frame import MatchedRows
from monitor.pipeline.drift_watch import DriftWatch
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

    def until(self, entry: int, *, at_once: int = 1) -> Life:
        """All entries up to one, caught up with every so many."""
        for number in range(self.done + 1, entry + 1):
            self.watch.add(self.entries[number - 1], "a")
            if number % at_once == 0:
                finished(self.watch.catch_up())
        finished(self.watch.catch_up())
        self.done = entry
        return self

    def ended(self) -> Life:
        """As a sidecar that is told to stop does."""
        self.watch.begin_anew()
        finished(self.watch.catch_up(everything=True))
        return self

    def kept(self) -> bytes:
        """As a checkpoint has it."""
        return b"".join(finished(family_text(family_state(self.watch.family, "a"))))

    def again(self) -> Life:
        """Another process, which goes on with the next entry."""
        life = Life(self.settings, self.entries, self.done)
        life.watch.family, changes = restored_family(
            read_family(self.kept()), self.settings, {}, "a"
        )
        assert changes == []
        return life

    @property
    def labelled(self) -> int:
        finished(self.watch.catch_up())
        return int(self.watch.family.labelled.sum())

    @property
    def open(self) -> int:
        """Detections that are in no evidence yet."""
        return self.watch._waiting_rows + self.watch._order.rows


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


@settings(max_examples=15)
@given(st.integers(0, 999), st.integers(0, 320), st.sampled_from(list(Unit)))
def test_who_goes_on_from_any_entry_lacks_what_was_open_and_nothing_else(seed, cut, unit):
    wanted, entries = replace(SHORT, unit=unit), entries_of(seed)
    life = Life(wanted, entries).until(cut)
    again = life.again().until(len(entries)).ended()
    assert again.labelled == sum(one.n for one in entries) - life.open
    assert again.watch.family.frames <= len(entries)
    assert again.watch.left_out["superseded"] == 0


@settings(max_examples=10)
@given(st.integers(0, 999), st.integers(0, 320))
def test_an_alarm_that_stays_is_not_told_again(seed, cut):
    entries = entries_of(seed)
    life = Life(SHORT, entries).until(cut)
    again = life.again()
    stays = set(life.watch.family.alarms.latched)
    for change in again.until(len(entries)).told:
        key = key_of(change.alarm)
        if change.why is AlarmReason.RAISED:
            assert key not in stays
            stays.add(key)
        else:
            stays.remove(key)


def test_a_fault_is_found_after_a_restart_in_the_middle_of_it():
    entries = entries_of(3, number=320)
    life = Life(SHORT, entries).until(330)
    assert not life.told
    assert life.again().until(len(entries)).told


def test_who_is_told_to_stop_has_nothing_open():
    entries = entries_of(5)
    life = Life(SHORT, entries).until(200)
    assert life.open > 0
    life.ended()
    assert (life.open, life.labelled) == (0, sum(one.n for one in entries[:200]))


@settings(max_examples=10)
@given(st.integers(0, 999), st.sampled_from(list(Unit)), st.sets(st.integers(1, 320)))
def test_when_what_comes_is_taken_in_changes_no_bit_of_what_is_found(seed, unit, looks):
    """One takes in each frame at once, one at any moments."""
    wanted, entries = replace(SHORT, unit=unit), entries_of(seed)
    whole = Life(wanted, entries).until(len(entries))
    life = Life(wanted, entries)
    for entry in sorted({*looks, len(entries)}):
        life.until(entry, at_once=len(entries) + 1)
    assert life.told == whole.told
    assert life.kept() == whole.kept()
    for one in (whole, life):
        finished(one.watch.catch_up(everything=True))
    assert life.told == whole.told
    assert life.kept() == whole.kept()
