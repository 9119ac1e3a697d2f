"""A watch that dies, and the one that goes on from what it kept and the ledger: what drifts is
found by the same frame, with the same evidence, and told once.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.calibration.drift.alarm import AlarmChange
from monitor.calibration.drift.family_json import family_from_json, family_text, family_to_json
from monitor.calibration.drift.family_state import family_state, restored_family
from monitor.calibration.drift.settings import DriftSettings, Unit
from monitor.calibration.matched import MatchedRows
from monitor.calibration.steps import finished
from monitor.drift_watch import DriftWatch, Position
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
        self.watch = DriftWatch(self.settings, table(), disorder_ns=2 * SECOND)
        self.watch.announce = self.told.append

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
            order=self.watch.order(),
        )
        return b"".join(family_text(finished(family_to_json(state))))

    def again(self, kept: bytes, *, at_once: int = 1) -> Life:
        """Another process, which has done again what was in the ledger."""
        life = Life(self.settings, self.entries, told=list(self.told))
        state, watch = family_from_json(kept), life.watch
        assert state.entry is not None
        watch.has(Position(state.entry, frozenset(state.beyond)), state.order)
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


def test_evidence_is_the_same_where_more_is_taken_in_at_once_while_nothing_is_learned():
    wanted = replace(SHORT, reference_detections=10**6, unit=Unit.TRACK_SECOND)
    entries = entries_of(5)
    whole = Life(wanted, entries).until(len(entries))
    life = Life(wanted, entries).until(171, at_once=7)
    again = life.again(life.kept(), at_once=64).until(len(entries), at_once=13)
    ours, theirs = again.watch.family, whole.watch.family
    for name in ("sums", "since", "clean", "run", "tracks", "fresh", "peak"):
        left, right = getattr(ours.evidence, name), getattr(theirs.evidence, name)
        # What a scale is estimated from is held in single precision.
        rtol = 1e-6 if name == "run" else 1e-9
        np.testing.assert_allclose(left, right, rtol=rtol, err_msg=name)
    assert ours.clock.driven == pytest.approx(theirs.clock.driven, rel=1e-9)
    assert [one.alarm.event_ns for one in again.told] == [one.alarm.event_ns for one in whole.told]
    assert whole.told


def test_of_a_source_with_frames_that_wait_only_what_surely_holds_is_kept():
    entries = entries_of(3)
    life = Life(SHORT, entries).until(40)
    settled = life.watch.order()
    life.watch.add(entries[40], "a", 41)
    life.watch.add(rows_of(900, source=1), "a", 42)
    order = life.watch.order()
    assert dict(order.newest).keys() == {0}
    assert dict(order.given).keys() <= {0}
    assert dict(order.seen).keys() == dict(settled.seen).keys()
    assert order.held == order.out == ()


def test_of_a_lesser_disorder_no_source_waits_for_longer():
    entries = entries_of(3)
    life = Life(SHORT, entries).until(200)
    assert max(dict(life.watch.order().seen).values()) > 10**8
    watch = DriftWatch(SHORT, table(), disorder_ns=10**8)
    watch.has(Position(0), life.watch.order())
    assert max(dict(watch.order().seen).values()) == 10**8
