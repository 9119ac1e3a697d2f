"""Candidates are known by a version as long as they are on trial, whatever becomes of the champion
beside them.
"""

import pytest

from monitor.pipeline.recalibrators import UnknownVersion
from monitor.promotion.records import Happened, TrialState
from monitor.recalibration.recalibrator import Identity
from monitor.recalibration.selection import IDENTITY, Selection
from tests.learnt import (
    begin,
    document,
    known,
    promoted,
    promotions_of,
    teach,
)
from tests.promotion.owned_registers import scaled
from tests.promotion.simulated_tracks import tracks


def known_of(promotions) -> set[str]:
    """Versions of estimates, but for the identity."""
    selections = promotions.recalibrators.known.values()
    versions = {one.version for one in selections if isinstance(one, Selection)}
    return versions - {IDENTITY.version}


def test_a_candidate_is_known_as_the_champion_with_its_slice_replaced():
    promotions = promotions_of("car", "bus")
    (champion,) = known(promotions, document(1.5, bus=3.0))
    promotions.promote(champion, "anna")
    version = begin(promotions, scaled(4.0)).version
    candidate = promotions.recalibrators.known.find(version)
    assert isinstance(candidate, Selection)
    assert candidate.by_slice == {"car": scaled(4.0), "bus": scaled(3.0)}
    assert candidate.fallback == scaled(1.5)
    assert promotions.recalibrators.selection.version == champion


@pytest.mark.parametrize("scale", [1.0, 0.2])
def test_a_candidate_that_is_discarded_is_forgotten(scale):
    promotions = promotions_of("car", mode="automatic")
    version = begin(promotions, scaled(4.0)).version
    assert known_of(promotions) == {version}
    teach(promotions, tracks(0, 400, scale=scale))
    assert promotions.records(1)[0].what is Happened.DISCARDED
    assert promotions.records(1)[0].version == version
    assert known_of(promotions) == set()
    with pytest.raises(UnknownVersion, match=version):
        promotions.promote(version, "anna")


def test_a_candidate_that_a_newer_one_supersedes_is_forgotten():
    promotions = promotions_of("car")
    older = begin(promotions, scaled(4.0)).version
    newer = begin(promotions, scaled(5.0)).version
    assert known_of(promotions) == {newer}
    with pytest.raises(UnknownVersion):
        promotions.promote(older, "anna")


def test_a_candidate_that_is_promoted_stays_known_and_what_it_replaced_too():
    promotions = promotions_of("car", mode="automatic")
    version = begin(promotions, scaled(4.0)).version
    (record,) = teach(promotions, tracks(0, 60, scale=4.0))
    assert (record.what, record.after) == (Happened.PROMOTED, version)
    begin(promotions, scaled(16.0))
    teach(promotions, tracks(1, 60, scale=16.0, begin_ns=10**12))
    assert version in known_of(promotions)
    assert promotions.recalibrators.selection.by_slice == {"car": scaled(16.0)}


def test_what_somebody_has_sent_is_not_forgotten_when_it_was_a_candidate_too():
    promotions = promotions_of("car", mode="automatic")
    sent = Selection(("x", "y", "z"), Identity(), {"car": scaled(4.0)})
    (version,) = known(promotions, sent)
    assert begin(promotions, scaled(4.0)).version == version
    teach(promotions, tracks(0, 400))
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


def test_two_slices_have_a_candidate_each_and_one_promotion_leaves_the_other():
    promotions = promotions_of("car", "bus")
    car = begin(promotions, scaled(4.0)).version
    bus = begin(promotions, scaled(9.0), slice=1).version
    assert known_of(promotions) == {car, bus}
    promotions.promote(car, "anna")
    trials = {one.slice: one for one in promotions.trials() if one.state is TrialState.RUNNING}
    assert list(trials) == ["bus"]
    both = promotions.promote(bus, "anna")
    assert promotions.recalibrators.selection.by_slice == {"car": scaled(4.0), "bus": scaled(9.0)}
    assert both.before == car
    assert both.after == trials["bus"].version


def test_tracks_of_one_slice_decide_of_its_candidate_alone():
    promotions = promotions_of("car", "bus", mode="automatic")
    begin(promotions, scaled(4.0))
    begin(promotions, scaled(4.0), slice=1)
    (record,) = teach(promotions, tracks(0, 60, scale=4.0, slice=1))
    assert (record.what, record.slice) == (Happened.PROMOTED, "bus")
    standings = {(one.slice, one.state): one.evidence.tracks for one in promotions.trials()}
    assert standings == {("car", TrialState.RUNNING): 0}


def test_candidates_of_two_slices_are_both_promoted_by_tracks_that_come_together():
    promotions = promotions_of("car", "bus", mode="automatic")
    begin(promotions, scaled(4.0))
    begin(promotions, scaled(4.0), slice=1)
    together = [*tracks(0, 60, scale=4.0), *tracks(1, 60, scale=4.0, slice=1)]
    records = teach(promotions, together)
    assert [record.what for record in records] == [Happened.PROMOTED] * 2
    assert {record.slice for record in records} == {"car", "bus"}
    assert records[1].before == records[0].after
    assert promotions.recalibrators.selection.by_slice == {"car": scaled(4.0), "bus": scaled(4.0)}


def test_standings_say_where_every_trial_stands():
    promotions = promotions_of("car", "bus", "tram")
    promoted(promotions, 4.0, slice=2)
    running = begin(promotions, scaled(9.0), slice=1).version
    begin(promotions, scaled(4.0))
    teach(promotions, [*tracks(0, 40, scale=4.0), *tracks(1, 8, scale=4.0, slice=2)])
    found = {one.slice: one for one in promotions.trials()}
    states = {name: one.state for name, one in found.items()}
    assert states == {
        "car": TrialState.PROVEN,
        "bus": TrialState.RUNNING,
        "tram": TrialState.GUARD,
    }
    assert found["bus"].version == running
    assert found["bus"].factors[0].typical == pytest.approx(9.0)
    assert found["car"].evidence.tracks == 40
    assert found["car"].evidence.gain > 0
    # What the guard's rollback would put in force: the tram without one of its own.
    assert found["tram"].version == IDENTITY.version


def test_what_a_guard_would_put_in_force_has_a_version_from_the_first_track_on():
    promotions = promotions_of("car", "bus")
    promoted(promotions, 9.0, slice=1)
    before = promotions.recalibrators.selection.version
    promoted(promotions, 4.0)
    teach(promotions, tracks(0, 1, scale=4.0))
    (guard,) = [one for one in promotions.trials() if one.slice == "car"]
    assert (guard.state, guard.version) == (TrialState.GUARD, before)


def test_a_guard_follows_the_champion_too():
    promotions = promotions_of("car", "bus")
    promoted(promotions, 4.0)
    teach(promotions, tracks(0, 1, scale=4.0))
    promoted(promotions, 9.0, slice=1)
    (guard,) = promotions.trials()
    expected = Selection(("x", "y", "z"), Identity(), {"bus": scaled(9.0)})
    assert guard.version == expected.version
