"""What people and tracks do to recalibrators: which is active then, what is recorded, under which
version a candidate is known, and the way back.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from monitor.pipeline.recalibrators import NothingToRollBack, UnknownVersion
from monitor.promotion.fits import FitOutcome
from monitor.promotion.records import SWAPS, Happened, Record, TrialState
from monitor.recalibration.recalibrator import Identity, Recalibrator
from monitor.recalibration.selection import IDENTITY, Selection
from monitor.statistics.observations import finished
from tests import learnt
from tests.learnt import active_version, begin, document, known, promoted, promotions_of, teach
from tests.promotion.owned_registers import adaptive, scaled
from tests.promotion.simulated_tracks import tracks

HOME = IDENTITY.version
CHAINS = {"car": ("car",), "bus": ("bus",)}


# ---- people


def test_promoting_puts_a_known_version_in_force_and_says_who_did_it():
    promotions = promotions_of("car")
    with pytest.raises(UnknownVersion, match="no recalibrator 'nonesuch'"):
        promotions.promote("nonesuch", "anna")
    assert (promotions.records(10), active_version(promotions)) == ((), HOME)
    (version,) = known(promotions, document(2.0))
    record = promotions.promote(version, "anna")
    assert active_version(promotions) == version
    assert record == Record(
        1, 1, Happened.PROMOTED, "", version, HOME, version, "anna", "asked for"
    )
    again = promotions.promote(version, "otto")
    assert (again.what, again.before, again.after) == (Happened.HELD, version, version)
    assert promotions.records(10) == (record, again)


def test_pinning_is_recorded_and_people_may_still_act():
    promotions = promotions_of("car", mode="manual")
    assert promotions.pin(pinned=True, actor="anna").what is Happened.PINNED
    assert promotions.pinned
    promoted(promotions, 4.0)
    assert promotions.recalibrators.selection.by_slice == {"car": scaled(4.0)}
    promotions.rollback(Selection, "", "anna")
    record = promotions.pin(pinned=False, actor="anna")
    assert (record.what, record.version) == (Happened.UNPINNED, HOME)


# ---- tracks


def test_a_candidate_lives_from_its_trial_to_its_rollback_in_the_records():
    promotions = promotions_of("car", mode="automatic")
    begin(promotions, scaled(4.0))
    teach(promotions, tracks(0, 60, scale=4.0))
    teach(promotions, tracks(1, 100, begin_ns=10**12))
    began, proven, back = promotions.records(10)
    version = began.version
    assert [record.what for record in (began, proven, back)] == [
        Happened.BEGAN,
        Happened.PROMOTED,
        Happened.ROLLED_BACK,
    ]
    assert [record.sequence for record in promotions.records(10)] == [1, 2, 3]
    assert (began.actor, began.before, began.after) == ("anna", HOME, HOME)
    assert (proven.actor, proven.before, proven.after) == ("trial", HOME, version)
    assert (back.actor, back.before, back.after) == ("trial", version, HOME)
    assert began.event_ns is None
    assert proven.event_ns == 60 * 40 * 10**8
    assert proven.evidence is not None
    assert proven.evidence.log10_better >= proven.evidence.log10_threshold
    assert proven.factors[0].typical == pytest.approx(4.0)
    assert {record.slice for record in promotions.records(10)} == {"car"}
    assert promotions.records_of(version) == (began, proven, back)
    # Nobody needs to roll back any further.
    with pytest.raises(NothingToRollBack):
        promotions.rollback(Selection, "", "anna")
    # And no fit is made of the fault.
    kept = promotions.learning.reservoir.tracks(0)
    assert len(kept) == pytest.approx(100, abs=10)
    assert all(track.ended_ns > 59 * 40 * 10**8 for track in kept)


def test_steps_of_an_adaptive_champion_are_swaps_but_no_stations_on_the_way_back():
    promotions = promotions_of("car")
    first = promotions.promote(begin(promotions, adaptive(4.0)).version, "anna").after
    records = teach(promotions, tracks(0, 4, scale=40.0))
    records += teach(promotions, tracks(1, 4, scale=400.0, begin_ns=10**12))
    assert [record.what for record in records] == [Happened.ADAPTED] * 2
    assert records[0].before == first
    assert records[1].before == records[0].after
    assert promotions.counters.swaps["adapted"] == 2
    # Steps that nobody can go back to are not kept in mind.
    assert records[0].after not in promotions.recalibrators.known
    register = promotions.learning.register
    assert (list(register.guards), list(register.followers)) == (["car"], ["car"])
    assert promotions.rollback(Selection, "", "anna").after == HOME


def test_what_came_of_a_fit_is_told_slice_by_slice():
    promotions = promotions_of("car", "bus", "tram")
    some = [learnt.to_fit(promotions, index) for index in range(3)]
    outcome = FitOutcome({"car": scaled(4.0), "bus": scaled(1.1)}, {"tram": "too few"})
    car, bus, tram = finished(promotions.begin(some, outcome, "anna"))
    assert (car.reason, car.tracks, car.detections) == ("", 10, 400)
    assert car.version == promotions.trials()[0].version
    assert car.factors[0].typical == pytest.approx(4.0)
    assert (bus.version, tram.version, tram.reason) == ("", "", "too few")
    assert "nothing to correct" in bus.reason
    assert bus.factors[0].typical == pytest.approx(1.1)
    few = replace(some[1], tracks=some[1].tracks[:2])
    (told,) = finished(promotions.begin([few], outcome, "anna"))
    assert told.reason.startswith("cannot fit for want of tracks: 2 of the 10 of [promotion]")
    fits = promotions.counters.fits
    assert (fits["candidate"], fits["nothing"], fits["refused"], fits["failed"]) == (1, 2, 1, 0)
    assert learnt.happened(promotions) == [Happened.BEGAN]
    promotions.promote(known(promotions, document(2.0))[0], "anna")
    (late,) = finished(promotions.begin(some[:1], outcome, "anna"))
    assert (late.version, "became active" in late.reason) == ("", True)
    assert (promotions.counters.trials["superseded"], fits["superseded"]) == (1, 1)


# ---- candidates


def known_of(promotions) -> set[str]:
    """Versions of estimates, but for the identity."""
    selections = promotions.recalibrators.known.values()
    versions = {one.version for one in selections if isinstance(one, Selection)}
    return versions - {IDENTITY.version}


def test_a_candidate_that_is_discarded_or_superseded_is_forgotten_unless_somebody_has_sent_it():
    promotions = promotions_of("car", mode="automatic")
    older = begin(promotions, scaled(4.0)).version
    newer = begin(promotions, scaled(5.0)).version
    assert known_of(promotions) == {newer}
    teach(promotions, tracks(0, 400))
    record = promotions.records(1)[0]
    assert (record.what, record.version) == (Happened.DISCARDED, newer)
    assert known_of(promotions) == set()
    for version in (older, newer):
        with pytest.raises(UnknownVersion, match=version):
            promotions.promote(version, "anna")
    (version,) = known(promotions, Selection(("x", "y", "z"), Identity(), {"car": scaled(4.0)}))
    assert begin(promotions, scaled(4.0)).version == version
    teach(promotions, tracks(1, 400, begin_ns=10**13))
    assert promotions.trials() == ()
    assert known_of(promotions) == {version}


def test_versions_move_with_the_champion_and_old_names_still_lead_to_the_candidate():
    promotions = promotions_of("car", "bus")
    first = begin(promotions, scaled(4.0)).version
    promoted(promotions, 9.0, slice=1)
    (standing,) = [one for one in promotions.trials() if one.state is TrialState.RUNNING]
    assert standing.slice == "car"
    assert standing.version != first
    assert standing.version in known_of(promotions)
    assert first not in known_of(promotions)
    record = promotions.promote(first, "anna")
    assert record.after == standing.version
    assert promotions.recalibrators.selection.by_slice == {"car": scaled(4.0), "bus": scaled(9.0)}
    # It is a candidate no more: what it was once called leads nowhere.
    with pytest.raises(UnknownVersion):
        promotions.promote(first, "anna")


# ---- the way back


class Ways(RuleBasedStateMachine):
    """Of two slices, by people."""

    @initialize()
    def begin(self):
        self.promotions = promotions_of("car", "bus")
        # By slice: what it was rolled back from since it was last promoted.
        self.bad: dict[str, list[Recalibrator]] = {"car": [], "bus": []}

    def of(self, slice: str) -> Recalibrator:
        return self.promotions.recalibrators.selection.of(CHAINS[slice])

    @rule(slice=st.sampled_from([0, 1]), factor=st.sampled_from([4.0, 9.0]))
    def a_candidate_is_promoted(self, slice, factor):
        found = begin(self.promotions, scaled(factor), slice)
        if found.version:
            self.promotions.promote(found.version, "anna")
            self.bad[found.slice] = []

    @rule(factor=st.sampled_from([4.0, 9.0]))
    def a_document_is_promoted(self, factor):
        (version,) = known(self.promotions, document(factor))
        self.promotions.promote(version, "anna")
        self.bad = {"car": [], "bus": []}

    @rule()
    def all_go_back(self):
        stack = list(self.promotions.recalibrators.before[Selection])
        if not stack:
            with pytest.raises(NothingToRollBack):
                self.promotions.rollback(Selection, "", "anna")
            return
        record = self.promotions.rollback(Selection, "", "anna")
        assert record.after == stack[-1]
        assert len(self.promotions.recalibrators.before[Selection]) < len(stack)
        for slice, bad in self.bad.items():
            assert self.of(slice) not in bad

    @rule(slice=st.sampled_from(["car", "bus"]))
    def a_slice_goes_back(self, slice):
        (other,) = {"car", "bus"} - {slice}
        now, others = self.of(slice), self.of(other)
        try:
            record = self.promotions.rollback(Selection, slice, "anna")
        except NothingToRollBack:
            assert self.of(slice) == now
            return
        assert record.slice == slice
        assert self.of(slice) != now
        assert self.of(other) == others
        self.bad[slice].append(now)
        assert self.of(slice) not in self.bad[slice]

    @invariant()
    def the_way_back_is_known(self):
        if not hasattr(self, "promotions"):
            return
        before, recalibrators = (
            self.promotions.recalibrators.before[Selection],
            self.promotions.recalibrators,
        )
        assert set(before) <= recalibrators.known.keys()
        assert active_version(self.promotions) not in before[-1:]

    @invariant()
    def every_record_begins_where_the_last_one_ended(self):
        if not hasattr(self, "promotions"):
            return
        now = HOME
        for record in self.promotions.records(1000):
            assert record.before == now
            assert record.what in SWAPS or record.after == now
            now = record.after
        assert now == active_version(self.promotions)


Ways.TestCase.settings = settings(max_examples=settings().max_examples // 2, stateful_step_count=20)
TestWays = Ways.TestCase
