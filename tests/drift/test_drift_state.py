"""A family that goes on where another one ended, through its document: every bit of what is known
comes back, what was open is lost without being taken for news, and nothing unsound is believed.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.drift.alarms import AlarmReason
from monitor.drift.bets import CHARTS, Stage
from monitor.drift.evidence import OF_TRACKS, DriftSettings, Unit
from monitor.drift.family import Family
from monitor.drift.reference import Origin, Reference, calibrated_level
from monitor.drift.state import MOST_KEPT, family_state, restored_family
from monitor.drift.usual import ReferenceLearner
from monitor.frames.slices import TOTAL
from monitor.frames.space import FloatArray
from monitor.store.codec import Codec
from monitor.store.drift_documents import read_family
from tests.drift import drives
from tests.drift.drives import Frame, K, fed, feed, text_of, watched
from tests.laws import assert_same, costly

LEARNER = Codec(ReferenceLearner, "learner", "Learn anew.")
NAMES = ("car", "van", "bus")
SHORT = DriftSettings(
    fewest_tracks=1,
    reference_seconds=0.0,
    hours_between_false_pages=1e-3,
    hours_between_false_tickets=1e-3,
    reference_tracks=4,
    reference_detections=150,
    shortest_reference=3,
    calm_hours=0.0,
)
LONG = replace(SHORT, hours_between_false_pages=1e9, hours_between_false_tickets=1e9)


FORWARDED = np.array([chart.stage is Stage.RECALIBRATED for chart in CHARTS])


def family_of(seed: int, wanted: DriftSettings = SHORT, frames: int = 100, factor: float = 1.0):
    """Of three slices that have seen some frames; NEES are too large by a factor."""
    return feed(drives.family_of(wanted, NAMES), seed, frames, factor)


def gone_on(family: Family, wanted: DriftSettings | None = None, names=NAMES, **other):
    """A family that goes on, all of whose slices have come; and the changes of its alarms."""
    arguments = {"given": {}, "selection": "identity", **other}
    state = read_family(text_of(family))
    restored, changes = restored_family(state, wanted or family.settings, **arguments)
    for name in names:
        restored.grow(name, K)
    return restored, changes


def kept_of(family: Family):
    """All that is kept; bets and seconds of tracks without weight may have gathered anything."""
    evidence = family.evidence
    clean = np.where(evidence.shares[..., -1] > 0, evidence.clean, 0)
    evidence = replace(evidence, sums=np.where(evidence.weights > 0, evidence.sums, 0), clean=clean)
    return (
        *(family.names, family.epochs, family.labelled, family.fed, family.peak, evidence),
        *(family.alarms.latched, family.alarms.counts, family.clock.driven),
        *(tuple(one) for one in family.usual.references),
        learners_of(family),
    )


def learners_of(family: Family):
    return [
        [None if one is None else LEARNER.write(one) for one in both]
        for both in family.usual.learners
    ]


@costly
@given(
    st.integers(0, 2**32 - 1), st.sampled_from([0, 10, 100, 300]), st.sampled_from([0.1, 1.0, 6.0])
)
def test_every_bit_of_what_is_kept_comes_back(seed, frames, factor):
    family = family_of(seed, frames=frames, factor=factor)
    restored, changes = gone_on(family)
    assert changes == []
    assert_same(kept_of(restored), kept_of(family))
    assert text_of(restored) == text_of(family)


# ---- tracks that go on


# Neither does anything become usual, nor evidence an alarm.
PATIENT = replace(LONG, reference_detections=10**6, hours_between_false_pages=1e150)


def constant(level: float, tracks: range, seconds: range, *, source: int = 0) -> list[Frame]:
    """Tracks whose errors are always as large, ten frames a second; 0 is the level of calibrated
    ones.
    """
    e = float(np.exp(calibrated_level(K) + level))
    return [
        (source, second * 10**9 + at * 10**8, False, [(1 + track, 0, e, e) for track in tracks])
        for second in seconds
        for at in range(10)
    ]


def of_seconds(family: Family) -> FloatArray:
    """Evidence of seconds of tracks of the first slice, in hours, by bet."""
    return family.evidence.sums[0, :, OF_TRACKS].copy()


def test_a_level_that_was_bet_on_is_no_news_after_a_restart():
    frames = constant(2.5, range(5), range(16))
    family = drives.family_of(PATIENT, NAMES)
    fed(family, frames[:100], 1)
    before = of_seconds(family)
    restored, _ = gone_on(family)
    fed(restored, frames[100:], 1)
    assert (of_seconds(restored) < 2 * before)[0].all()
    # The same tracks teach nothing twice. Where nothing of the last run is known it is news.
    for was, now in zip(family.usual.learners[0], restored.usual.learners[0], strict=True):
        assert was is not None and now is not None
        assert now.seconds.tracks.sum() == was.seconds.tracks.sum() == 5
        assert now.detections > was.detections
    nothing = replace(read_family(text_of(family)), latest_ns={})
    unaware, _ = restored_family(nothing, PATIENT, {}, "identity")
    for name in NAMES:
        unaware.grow(name, K)
    fed(unaware, frames[100:], 1)
    assert (of_seconds(unaware) > 100 * before)[0].all()


def test_only_tracks_that_the_last_run_may_have_seen_are_older():
    """Who came later is not, nor who comes again after more than the idle time, nor who comes of a
    source that begins anew, or is new.
    """
    family = drives.family_of(LONG, NAMES)
    fed(family, constant(0.0, range(3), range(100, 104)))
    restored, _ = gone_on(family)

    def older(frames: list[Frame]) -> list[bool]:
        blocks = restored.seconds.take(watched(frames))
        return [bool(one) for one in blocks.older]

    assert older(constant(0.0, range(3), range(104, 107))) == [True] * 6
    assert older(constant(0.0, range(7, 8), range(107, 109))) == [True] * 3 + [False]
    assert older(constant(0.0, range(3), range(112, 114))) == [False] * 4
    assert older(constant(0.0, range(10, 12), range(104, 106), source=1)) == [False] * 2
    assert older(constant(0.0, range(3), range(50, 52))) == [False] * 6


# ---- alarms and terms


@pytest.mark.parametrize(
    "change", [{"page_tolerance": 2.0}, {"ticket_tolerance": 1.1}, {"unit": Unit.DETECTION}]
)
def test_under_other_tolerances_or_units_evidence_begins_anew_and_the_rest_stays(change):
    family = family_of(3, factor=8.0, frames=300)
    restored, changes = gone_on(family, replace(SHORT, **change))
    assert changes == []
    evidence = restored.evidence
    for gone in (evidence.sums, evidence.run, evidence.peak, restored.peak):
        assert not gone.any()
    if restored.settings.unit is Unit.DETECTION:
        assert not restored.evidence.shares[..., -1].any()
    ours, theirs = kept_of(restored), kept_of(family)
    assert_same(ours[:4], theirs[:4])
    assert_same(ours[6:], theirs[6:])


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
    assert_same(kept_of(restored), kept_of(family))
    # What was being learned of the other one is forgotten.
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


def test_no_more_slices_are_kept_than_can_be_read():
    family = Family(LONG)
    (one, *_) = family_state(family_of(5, LONG, frames=0), "identity").slices
    many = [replace(one, name=f"n{i}") for i in range(MOST_KEPT + 7)]
    family.left = {(one.name, one.k): one for one in many}
    family.grow("car", K)
    state = family_state(family, "identity")
    assert len(state.slices) == MOST_KEPT
    assert state.slices[0].name == "car"


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
