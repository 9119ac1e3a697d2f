"""A family that goes on where another one ended, through JSON: what it would have found, it does
find.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from monitor.drift.alarms import AlarmReason, key_of
from monitor.drift.bets import CHARTS, SEVERITIES, Severity, Stage
from monitor.drift.evidence import DriftSettings, Evidence, Unit
from monitor.drift.family import Family
from monitor.drift.reference import Origin, Reference
from monitor.drift.state import MOST_KEPT, family_state, restored_family
from monitor.drift.usual import ReferenceLearner
from monitor.frames.slices import TOTAL
from monitor.frames.space import FloatArray
from tests.calibration.drift.kept_families import (
    LEARNER,
    LONG,
    NAMES,
    SHORT,
    K,
    counts_of,
    empty,
    family_of,
    fed,
    feed,
    frames_of,
    text_of,
    through_text,
)
from tests.calibration.drift.watched_rows import watched
from tests.laws import assert_same

FORWARDED = np.array([chart.stage is Stage.RECALIBRATED for chart in CHARTS])
quick = settings(deadline=None, max_examples=15)
seeds = st.integers(0, 2**32 - 1)


def gone_on(family: Family, wanted: DriftSettings | None = None, names=NAMES, **other):
    """A family that goes on, all of whose slices have come; and the changes of its alarms."""
    arguments = {"given": {}, "selection": "identity", **other}
    state = through_text(family)
    restored, changes = restored_family(state, wanted or family.settings, **arguments)
    for name in names:
        restored.grow(name, K)
    return restored, changes


def assert_same_family(left: Family, right: Family) -> None:
    """All that is kept; bets without weight may have gathered anything."""
    assert left.names == right.names
    assert left.epochs == right.epochs
    for name in ("labelled", "fed", "peak"):
        assert_same(getattr(left, name), getattr(right, name), name)
    for name in left.evidence.__dataclass_fields__:
        ours, theirs = getattr(left.evidence, name), getattr(right.evidence, name)
        if name == "sums":
            ours, theirs = (
                np.where(one.evidence.weights > 0, one.evidence.sums, 0) for one in (left, right)
            )
        elif name == "clean":
            # Of seconds of tracks that nobody heeds.
            ours, theirs = (
                np.where(one.evidence.shares[..., -1] > 0, getattr(one.evidence, name), 0)
                for one in (left, right)
            )
        assert_same(ours, theirs, name)
    assert_same(left.alarms.latched, right.alarms.latched)
    assert left.alarms.counts == right.alarms.counts
    assert left.clock.driven == right.clock.driven
    for ours, theirs in zip(left.usual.references, right.usual.references, strict=True):
        assert_same(tuple(ours), tuple(theirs))
    assert learners_of(left) == learners_of(right)


def learners_of(family: Family):
    return [
        [None if one is None else LEARNER.write(one) for one in both]
        for both in family.usual.learners
    ]


# ---- going on


@quick
@given(seeds, st.sampled_from([0, 10, 100, 300]), st.sampled_from([0.1, 1.0, 6.0]))
def test_every_bit_of_what_is_kept_comes_back(seed, frames, factor):
    family = family_of(seed, frames=frames, factor=factor)
    restored, changes = gone_on(family)
    assert changes == []
    assert_same_family(restored, family)
    assert text_of(restored) == text_of(family)


@settings(deadline=None, max_examples=6)
@given(seeds, st.sampled_from([1.0, 4.0]), st.sampled_from(list(Unit)))
def test_it_goes_on_as_if_it_had_not_stopped_to_the_last_bit(seed, factor, unit):
    """Nor had it been written."""
    wanted = replace(SHORT, unit=unit)
    frames = frames_of(seed, 200, factor)
    cut = seed % 160
    whole, begun = empty(wanted), empty(wanted)
    told = fed(whole, frames)
    told_before = fed(begun, frames[:cut])
    restored, changes = gone_on(begun)
    assert changes == []
    assert told_before + fed(restored, frames[cut:]) == told
    assert_same_family(restored, whole)
    assert text_of(restored) == text_of(whole)
    assert restored.seconds.tracks == whole.seconds.tracks > 0
    assert counts_of(restored) == counts_of(whole)


@settings(deadline=None, max_examples=6)
@given(seeds, st.sampled_from([1.0, 4.0]), st.lists(st.integers(1, 40), min_size=1, max_size=20))
def test_however_frames_are_portioned_before_and_after_evidence_is_the_same(seed, factor, sizes):
    """Of references that are known: one that is learned is known after a portion."""
    known = {name: dict.fromkeys(Stage, file_reference(seed)) for name in NAMES}
    wanted = replace(LONG, unit=(Unit.TRACK_SECOND, Unit.DETECTION)[seed % 2])
    frames = frames_of(seed, 200, factor)
    cut = seed % 160
    whole, begun = empty(wanted, known), empty(wanted, known)
    fed(whole, frames)
    fed(begun, frames[:cut], sizes)
    restored, _ = gone_on(begun, given=known)
    fed(restored, frames[cut:], sizes)
    assert_allclose(weighted(restored.evidence), weighted(whole.evidence), rtol=1e-9)
    for name in ("clean", "since", "begun", "fresh", "peak"):
        ours, theirs = getattr(restored.evidence, name), getattr(whole.evidence, name)
        assert_allclose(ours, theirs, rtol=1e-9, err_msg=name)
    assert restored.fed == pytest.approx(whole.fed, rel=1e-9)
    assert restored.clock.driven == pytest.approx(whole.clock.driven, rel=1e-9)
    assert restored.alarms.latched.keys() == whole.alarms.latched.keys()


def weighted(evidence: Evidence) -> FloatArray:
    """Bets without weight may have gathered anything."""
    return np.where(evidence.weights > 0, evidence.sums, 0.0)


@pytest.mark.parametrize("unit", list(Unit))
def test_tracks_of_a_slice_that_has_another_index_now_begin_anew(unit):
    family = family_of(3, replace(LONG, unit=unit), factor=2.0)
    assert family.seconds.tracks > 0
    restored, _ = gone_on(family, names=("bus", "car", "van"))
    assert restored.seconds.tracks == 0
    assert restored.whole is None or restored.whole.tracks == 0
    assert restored.labelled.tolist() == [family.labelled[i] for i in (2, 0, 1)]
    same, _ = gone_on(family)
    assert same.seconds.tracks == family.seconds.tracks


def test_tracks_of_a_slice_that_comes_after_others_went_on_begin_anew():
    family = family_of(3, LONG, factor=2.0)
    restored, _ = gone_on(family, names=("car",))
    assert restored.seconds.tracks > 0
    kept = family_state(restored, "identity").slices
    assert all(one.open is not None and one.open.goes_on for one in kept)
    restored.take(K, watched([(0, 10**9, False, [(1, 0, 3.0, 3.0)])]))
    left = list(restored.left.values())
    assert len(left) == 2
    assert not any(one.open is None or one.open.goes_on for one in left)
    restored.grow("van", K)
    restored.grow("bus", K)
    assert restored.evidence.sums[1].any()


def test_another_epoch_forgets_tracks_of_slices_that_have_not_come_back_as_of_those_that_have():
    family = family_of(7, LONG, frames=200, factor=3.0)
    restored, _ = gone_on(family, names=())
    restored.new_epoch([], left=True)
    family.new_epoch(range(3))
    for name in NAMES:
        restored.grow(name, K)
    assert text_of(restored) == text_of(family)
    assert restored.seconds.tracks == 0


def test_under_another_tolerance_what_whole_tracks_said_is_forgotten():
    wanted = replace(LONG, unit=Unit.TRACK)
    family = family_of(3, wanted)
    assert family.whole is not None and family.whole.tracks > 0
    restored, _ = gone_on(family, replace(wanted, page_tolerance=2.0))
    assert restored.whole is not None and restored.whole.tracks == 0
    assert restored.seconds.tracks == family.seconds.tracks


def test_keys_that_are_there_already_are_not_taken_twice():
    family = family_of(3, replace(LONG, unit=Unit.TRACK))
    before = family.seconds.tracks
    for blocks, histories in family.seconds.of_slices(3):
        family.seconds.go_on(blocks, histories)
    assert family.whole is not None
    followed = family.whole.tracks
    for tracks, sums in family.whole.of_slices(3):
        family.whole.go_on(tracks, sums)
    assert family.seconds.tracks == before
    assert family.whole.tracks == followed


def test_a_latched_alarm_is_not_raised_again_and_ends_when_it_is_acknowledged():
    family = family_of(1, factor=8.0)
    assert family.alarms.latched
    restored, _ = gone_on(family)
    known, before = set(restored.alarms.latched), dict(restored.alarms.counts)
    feed(restored, 2, 100, 8.0)
    there = set(family.alarms.latched)
    assert there <= set(restored.alarms.latched)
    for key, latched in family.alarms.latched.items():
        assert restored.alarms.latched[key].alarm == latched.alarm
    # Only those that were not there are counted.
    new = len(set(restored.alarms.latched) - known)
    assert sum(restored.alarms.counts.values()) == sum(before.values()) + new
    ended = restored.acknowledge((), "me")
    assert {key_of(one.alarm) for one in ended} >= there
    again, _ = gone_on(restored)
    assert again.alarms.latched == {}
    assert again.alarms.counts == restored.alarms.counts


def test_other_hours_between_false_alarms_change_nothing_that_is_kept():
    family = family_of(3, LONG, factor=3.0)
    restored, _ = gone_on(family, replace(LONG, hours_between_false_pages=7.0))
    assert_same_family(restored, family)
    assert restored.thresholds[0] == 7.0


@pytest.mark.parametrize(
    "change", [{"page_tolerance": 2.0}, {"ticket_tolerance": 1.1}, {"unit": Unit.DETECTION}]
)
def test_under_other_tolerances_or_units_evidence_begins_anew_and_the_rest_stays(change):
    family = family_of(3, factor=8.0, frames=300)
    restored, changes = gone_on(family, replace(SHORT, **change))
    assert changes == []
    assert not restored.evidence.sums.any()
    assert not restored.evidence.run.any()
    assert not restored.evidence.peak.any()
    assert not restored.peak.any()
    if restored.settings.unit is Unit.DETECTION:
        assert not restored.evidence.shares[..., -1].any()
    assert_same(restored.alarms.latched, family.alarms.latched)
    assert learners_of(restored) == learners_of(family)
    assert restored.epochs == family.epochs
    assert restored.labelled.tolist() == family.labelled.tolist()
    for slice in range(3):
        assert_same(tuple(restored.usual.references[slice]), tuple(family.usual.references[slice]))


def test_under_another_recalibrator_each_slice_has_the_epoch_that_a_swap_would_begin():
    family = family_of(4, factor=8.0, frames=250)
    forwarded = [
        key
        for key, one in family.alarms.latched.items()
        if one.alarm.stage is Stage.RECALIBRATED and key[0] != TOTAL
    ]
    assert forwarded
    restored, changes = gone_on(family, selection="variance-scaling-1")
    expected = family.new_epoch(range(3))
    assert [one.why for one in changes] == [AlarmReason.NEW_EPOCH] * len(forwarded)
    assert sorted(map(str, changes)) == sorted(map(str, expected))
    assert_same_family(restored, family)


def test_what_was_being_learned_of_another_recalibrator_is_forgotten():
    restored, _ = gone_on(family_of(4, LONG, frames=30), selection="variance-scaling-1")
    raw, forwarded = restored.usual.learners[0]
    assert raw is not None and raw.detections > 0
    assert forwarded is not None and forwarded.detections == 0


# ---- slices that come later, or never


def test_slices_come_in_any_order_and_those_that_never_come_survive_two_restarts():
    family = family_of(5, LONG, frames=200, factor=2.0)
    restored, _ = gone_on(family, names=("bus",))
    assert_same(
        family_state(restored, "identity").slices[0].evidence,
        family_state(family, "identity").slices[2].evidence,
    )
    again, _ = gone_on(restored, names=("van", "car", "bus"))
    for slice, name in enumerate(again.names):
        was = NAMES.index(name)
        assert again.labelled[slice] == family.labelled[was] > 0
        assert_same(again.evidence.peak[slice], family.evidence.peak[was])


def test_a_slice_of_the_same_name_and_another_k_begins_anew():
    family = family_of(5, LONG, factor=2.0)
    restored, _ = gone_on(family, names=())
    restored.grow("car", K + 1)
    assert restored.labelled.tolist() == [0]
    assert set(restored.left) == {(name, K) for name in NAMES}
    restored.grow("car", K)
    assert restored.labelled[1] == family.labelled[0]


def test_no_more_slices_are_kept_than_can_be_read():
    family = Family(LONG)
    (one, *_) = family_state(family_of(5, LONG, frames=0), "identity").slices
    many = [replace(one, name=f"n{i}") for i in range(MOST_KEPT + 7)]
    family.left = {(one.name, one.k): one for one in many}
    family.grow("car", K)
    state = family_state(family, "identity")
    assert len(state.slices) == MOST_KEPT
    assert state.slices[0].name == "car"


def test_who_acknowledges_what_has_not_come_back_finds_its_peak_gone_when_it_does():
    family = family_of(6, factor=8.0)
    ((name, severity, _), _) = next(
        one for one in family.alarms.latched.items() if one[0][0] != TOTAL
    )
    restored, _ = gone_on(family, names=())
    restored.acknowledge([name], "me")
    restored.grow(name, K)
    number = SEVERITIES.index(severity)
    assert family.evidence.peak[NAMES.index(name), number] > 0
    assert restored.evidence.peak[0, number] == 0


def test_slices_that_come_after_another_recalibrator_begin_another_epoch():
    family = family_of(7, LONG, frames=200, factor=3.0)
    restored, _ = gone_on(family, names=("car",))
    restored.new_epoch([], left=True)
    restored.new_epoch([])
    restored.grow("van", K)
    assert restored.epochs == [0, 1]
    assert restored.evidence.sums[0].any()
    assert not restored.evidence.sums[1, FORWARDED].any()
    assert restored.evidence.sums[1, ~FORWARDED].any()
    assert restored.labelled[0] > 0
    assert restored.labelled[1] == 0


def test_an_epoch_of_slices_that_have_not_come_back_ends_their_forwarded_alarms_and_no_others():
    family = family_of(4, factor=8.0, frames=250)
    forwarded = {
        key[0]
        for key, one in family.alarms.latched.items()
        if one.alarm.stage is Stage.RECALIBRATED and key[0] != TOTAL
    }
    assert len(forwarded) > 1
    here = min(forwarded)
    restored, _ = gone_on(family, names=(here,))
    changes = restored.new_epoch([], left=True)
    assert {one.alarm.slice for one in changes} == forwarded - {here}
    assert {one.why for one in changes} == {AlarmReason.NEW_EPOCH}
    assert here in restored.alarms.slices()
    assert not restored.peak.any()


# ---- references from recorded drives


def file_reference(seed: int) -> Reference:
    learner = ReferenceLearner(K)
    nees = np.random.default_rng(seed).chisquare(K, 500)
    learner.add(nees, np.zeros(500, np.uint64), np.arange(500))
    return learner.learned(Origin.FILE, 10)


def test_a_reference_from_a_file_wins_and_evidence_against_another_one_begins_anew():
    family = family_of(8, LONG, frames=200, factor=3.0)
    one, other = ({"car": {Stage.RECALIBRATED: file_reference(i)}} for i in range(2))
    first, _ = gone_on(family, given=one)
    assert_same(first.usual.references[0][Stage.RECALIBRATED], one["car"][Stage.RECALIBRATED])
    assert not first.evidence.sums[0, FORWARDED].any()
    assert first.evidence.sums[0, ~FORWARDED].any()
    feed(first, 9, 100, 3.0)
    assert first.evidence.sums[0, FORWARDED].any()
    same, _ = gone_on(first, given=one)
    assert_same(same.evidence.take(np.arange(1)).peak, first.evidence.take(np.arange(1)).peak)
    assert same.evidence.sums[0, FORWARDED].any()
    for known in (other, {}):
        changed, _ = gone_on(first, given=known)
        assert not changed.evidence.sums[0, FORWARDED].any()
        learning = changed.usual.learners[0][Stage.RECALIBRATED] is not None
        assert learning == (known == {})


def test_bets_without_weight_never_stand_in_the_way():
    family = family_of(2, LONG, frames=30)
    weightless = family.evidence.weights == 0
    assert weightless.any()
    family.evidence.sums[weightless] = np.inf
    family.evidence.sums[~weightless] = 1e300
    restored, _ = gone_on(family)
    assert np.isfinite(restored.evidence.sums).all()
    assert restored.evidence.by_chart(restored.evidence.weights).max() > LONG.hours(Severity.PAGE)
