"""What people and tracks do to recalibrators: what is in force after it, and what is recorded."""

import pytest

import monitor.pipeline.recalibrators
from monitor.pipeline.recalibrators import NothingToRollBack, UnknownVersion
from monitor.promotion.fits import FitOutcome
from monitor.promotion.records import SWAPS, Happened, Record, TrialState
from monitor.recalibration.recalibrator import Identity
from monitor.recalibration.scaling import VarianceScaling
from monitor.recalibration.selection import IDENTITY, Selection
from monitor.statistics.observations import finished
from tests.learnt import (
    active_version,
    begin,
    document,
    happened,
    known,
    of_slices,
    promoted,
    promotions_of,
    teach,
    to_fit,
)
from tests.promotion.owned_registers import adaptive, scaled
from tests.promotion.simulated_tracks import tracks

HOME = IDENTITY.version


# ---- people


def test_promoting_puts_a_known_version_in_force_and_says_who_did_it():
    promotions = promotions_of("car")
    (version,) = known(promotions, document(2.0))
    record = promotions.promote(version, "anna")
    assert active_version(promotions) == version
    assert record == Record(
        1, 1, Happened.PROMOTED, "", version, HOME, version, "anna", "asked for"
    )
    assert promotions.records(10) == (record,)


def test_an_unknown_version_is_refused_and_nothing_happens():
    promotions = promotions_of("car")
    with pytest.raises(UnknownVersion, match="no recalibrator 'nonesuch'"):
        promotions.promote("nonesuch", "anna")
    assert promotions.records(10) == ()
    assert active_version(promotions) == HOME


def test_pinning_is_recorded_and_people_may_still_act():
    promotions = promotions_of("car")
    assert promotions.pin(pinned=True, actor="anna").what is Happened.PINNED
    assert promotions.pinned
    promoted(promotions, 4.0)
    assert of_slices(promotions) == {"car": scaled(4.0)}
    promotions.rollback(Selection, "", "anna")
    record = promotions.pin(pinned=False, actor="anna")
    assert (record.what, record.version) == (Happened.UNPINNED, HOME)
    assert not promotions.pinned


def test_what_is_held_is_said_again_after_a_pin():
    promotions = promotions_of("car", mode="manual")
    promoted(promotions, 4.0)
    assert [one.what for one in teach(promotions, tracks(0, 100))] == [Happened.HELD]
    assert teach(promotions, tracks(1, 5, begin_ns=10**13)) == []
    promotions.pin(pinned=True, actor="anna")
    (held,) = teach(promotions, tracks(2, 5, begin_ns=2 * 10**13))
    assert (held.what, "pinned" in held.reason) == (Happened.HELD, True)
    assert of_slices(promotions) == {"car": scaled(4.0)}


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


def test_after_a_rollback_no_fit_is_made_of_the_fault():
    promotions = promotions_of("car", mode="automatic")
    begin(promotions, scaled(4.0))
    teach(promotions, tracks(0, 60, scale=4.0))
    healthy = tracks(1, 100, begin_ns=10**12)
    teach(promotions, healthy)
    kept = promotions.learning.reservoir.tracks(0)
    assert len(kept) == pytest.approx(100, abs=10)
    assert all(track.ended_ns > 59 * 40 * 10**8 for track in kept)


def test_a_proven_candidate_waits_until_somebody_approves():
    promotions = promotions_of("car")
    version = begin(promotions, scaled(4.0)).version
    (proven,) = teach(promotions, tracks(0, 60, scale=4.0))
    assert (proven.what, proven.before, proven.after) == (Happened.PROVEN, HOME, HOME)
    record = promotions.promote(version, "anna")
    assert (record.reason, record.slice, record.actor) == ("approved", "car", "anna")
    assert record.evidence is not None
    assert record.evidence.tracks == 60


def test_a_candidate_may_be_promoted_before_it_is_proven_and_the_record_says_so():
    record = promoted(promotions_of("car"), 4.0)
    assert record.reason == "approved before it was proven"
    assert record.evidence is not None
    assert record.evidence.tracks == 0


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


# ---- fits


def test_what_came_of_a_fit_is_told_slice_by_slice():
    promotions = promotions_of("car", "bus", "tram")
    some = [to_fit(promotions, index) for index in range(3)]
    outcome = FitOutcome({"car": scaled(4.0), "bus": scaled(1.1)}, {"tram": "too few"})
    car, bus, tram = finished(promotions.begin(some, outcome, "anna"))
    assert (car.reason, car.tracks, car.detections) == ("", 10, 400)
    assert car.version == promotions.trials()[0].version
    assert car.factors[0].typical == pytest.approx(4.0)
    assert (bus.version, tram.version, tram.reason) == ("", "", "too few")
    assert "nothing to correct" in bus.reason
    assert bus.factors[0].typical == pytest.approx(1.1)
    fits = promotions.counters.fits
    assert (fits["candidate"], fits["nothing"], fits["refused"], fits["failed"]) == (1, 1, 1, 0)
    assert happened(promotions) == [Happened.BEGAN]


@pytest.mark.parametrize(("count", "slice"), [(1, "car"), (2, "")])
def test_a_fit_that_failed_is_recorded_and_changes_nothing(count, slice):
    promotions = promotions_of("car", "bus")
    some = [to_fit(promotions, index) for index in range(count)]
    record = promotions.fit_failed("it hung", some, "schedule")
    assert (record.what, record.slice, record.reason) == (Happened.FIT_FAILED, slice, "it hung")
    assert (record.version, record.before, record.after) == ("", HOME, HOME)
    assert promotions.counters.fits["failed"] == count


def test_a_fit_that_ends_under_a_recalibrator_of_other_dimensions_has_no_trial():
    promotions = promotions_of("car")
    entry = to_fit(promotions, 0)
    (other,) = known(promotions, Selection(("u", "v"), VarianceScaling((2.0, 2.0))))
    promotions.promote(other, "anna")
    (found,) = finished(promotions.begin([entry], FitOutcome({"car": scaled(4.0)}, {}), "schedule"))
    assert found.version == ""
    assert found.reason
    assert promotions.trials() == ()
    assert happened(promotions) == [Happened.PROMOTED]


def test_coming_back_from_other_dimensions_nothing_of_them_stands_guard():
    promotions = promotions_of("car")
    other = Selection(("u", "v"), VarianceScaling((2.0, 2.0)))
    for version in known(promotions, other, document(car=9.0)):
        promotions.promote(version, "anna")
    teach(promotions, tracks(0, 1, scale=9.0))
    (guard,) = promotions.learning.register.guards.values()
    assert guard.recalibrator == Identity()


# ---- counts and records


def test_candidates_are_counted_by_what_became_of_them():
    promotions = promotions_of("car", mode="automatic")
    counts = promotions.counters.trials
    begin(promotions, scaled(4.0))
    begin(promotions, scaled(5.0))
    assert (counts["began"], counts["superseded"]) == (2, 1)
    teach(promotions, tracks(0, 100, scale=0.5))
    assert counts["discarded_worse"] == 1
    begin(promotions, scaled(4.0))
    teach(promotions, tracks(1, 60, scale=4.0, begin_ns=10**12))
    assert (counts["proven"], counts["promoted"], promotions.counters.swaps["promoted"]) == (
        1,
        1,
        1,
    )
    begin(promotions, scaled(9.0))
    (version,) = known(promotions, document(2.0))
    promotions.promote(version, "anna")
    assert (counts["began"], counts["superseded"]) == (4, 2)
    promotions.rollback(Selection, "", "anna")
    swaps = promotions.counters.swaps
    assert (swaps["promoted"], swaps["rolled_back"], swaps["adapted"]) == (2, 1, 0)


def test_what_was_proven_and_waited_is_counted_as_proven_once():
    promotions = promotions_of("car", mode="advise")
    version = begin(promotions, scaled(4.0)).version
    teach(promotions, tracks(0, 60, scale=4.0))
    promotions.promote(version, "anna")
    assert of_slices(promotions) == {"car": scaled(4.0)}
    counts = promotions.counters.trials
    assert (counts["proven"], counts["promoted"]) == (1, 1)


def test_what_was_proven_while_pinned_is_proven_once_more_before_it_acts():
    promotions = promotions_of("car", mode="automatic")
    promotions.pin(pinned=True, actor="anna")
    begin(promotions, scaled(4.0))
    teach(promotions, tracks(0, 60, scale=4.0))
    promotions.pin(pinned=False, actor="anna")
    teach(promotions, tracks(1, 60, scale=4.0, begin_ns=10**12))
    assert of_slices(promotions) == {"car": scaled(4.0)}
    counts = promotions.counters.trials
    assert (counts["proven"], counts["promoted"]) == (2, 1)


def test_every_swap_in_the_records_is_counted_and_follows_from_the_one_before():
    promotions = promotions_of("car", "bus", mode="automatic")
    begin(promotions, scaled(4.0))
    begin(promotions, scaled(9.0), slice=1)
    for number, scale in enumerate([4.0, 1.0, 9.0]):
        begin_ns = number * 10**12
        both = [tracks(number, 80, scale=scale, begin_ns=begin_ns, slice=i) for i in (0, 1)]
        teach(promotions, both[0] + both[1])
    swaps = [record for record in promotions.records(1000) if record.what in SWAPS]
    counts = promotions.counters.swaps
    assert len(swaps) == counts["promoted"] + counts["rolled_back"] + counts["adapted"] >= 3
    now = HOME
    for record in promotions.records(1000):
        assert record.before == now
        assert record.what in SWAPS or record.after == now
        now = record.after
    assert now == active_version(promotions)


def test_records_are_announced_as_they_are_remembered_and_the_next_run_counts_on():
    promotions = promotions_of("car")
    told: list[Record] = []
    promotions.pipeline.events.listen(Record, told.append)
    promoted(promotions, 4.0)
    promotions.pin(pinned=True, actor="anna")
    assert tuple(told) == promotions.records(1000)
    assert promotions.records(1) == (told[-1],)
    assert promotions.records(0) == ()
    later = promotions_of("car")
    later.remember(told, 17)
    assert later.pin(pinned=True, actor="anna").sequence == 18
    assert later.records(1000)[:-1] == tuple(told)


# ---- what must stay known


def test_what_can_be_rolled_back_to_and_what_is_on_trial_is_never_forgotten(monkeypatch):
    monkeypatch.setattr(monitor.pipeline.recalibrators, "MOST_KNOWN", 8)
    promotions = promotions_of("car", "bus")
    first, second = known(promotions, document(2.0), document(3.0))
    promotions.promote(first, "anna")
    promotions.promote(second, "anna")
    candidate = begin(promotions, scaled(9.0), slice=1).version
    for number in range(20):
        known(promotions, document(10.0 + number))
    assert {first, second, candidate, HOME} <= promotions.recalibrators.known.keys()
    assert len(promotions.recalibrators.known) <= 9
    begin(promotions, scaled(5.0))
    guards = [one for one in promotions.trials() if one.state is TrialState.GUARD]
    assert guards == []
    assert promotions.rollback(Selection, "", "anna").after == first
    assert promotions.rollback(Selection, "", "anna").after == HOME
