"""What served before comes back when a fault ends, soon, and not while the fault lasts."""

import math
from dataclasses import replace

import numpy as np
import pytest

from monitor.frames.detections import Limits
from monitor.promotion.betting import Clip, Watch
from monitor.promotion.records import TrialSettings
from monitor.promotion.tracks import rows_of
from monitor.promotion.trial import Guard, clip_of, mean_differences
from monitor.recalibration.recalibrator import Identity
from monitor.recalibration.scaling import VarianceScaling
from tests.promotion.broken_tracks import outliers_broken_off
from tests.promotion.odd_recalibrators import Spoiling
from tests.promotion.simulated_tracks import tracks

LIMITS, SETTINGS, IDENTITY = Limits(), TrialSettings(), Identity()


def scaled(factor: float) -> VarianceScaling:
    return VarianceScaling((math.sqrt(factor),) * 3)


def fault_then_none(seed, factor, degrees=np.inf):
    """300 tracks of a fault and 300 of none."""
    scale = np.repeat([factor, 1.0], 300)[:, None] * np.ones(3)
    return tracks(seed, 600, scale=scale, degrees=degrees)


def begun(factor, track) -> Guard:
    clip = clip_of(IDENTITY, scaled(factor), rows_of([track]), SETTINGS.clip)
    return Guard("car", IDENTITY, clip)


@pytest.mark.parametrize("degrees", [np.inf, 5.0])
@pytest.mark.parametrize(("factor", "within"), [(5.0, 80), (2.25, 220), (0.3, 80)])
def test_it_wins_after_a_fault_ends_and_not_before(factor, within, degrees):
    for seed in range(5):
        some, champion = fault_then_none(seed, factor, degrees), scaled(factor)
        guard = begun(factor, some[0]).taken(some[:300], champion, LIMITS)
        assert not guard.won(SETTINGS)
        guard = guard.taken(some[300 : 300 + within], champion, LIMITS)
        assert guard.won(SETTINGS)
        # Those since the end of the fault, or since a track that the leading bettor lost much on.
        assert within / 2 < guard.watch.leading.tracks < within + 40


def test_a_track_at_a_time_is_the_same_as_all_at_once():
    some, champion = fault_then_none(1, 2.25)[280:340], scaled(2.25)
    one = begun(2.25, some[0])
    whole = one.taken(some, champion, LIMITS)
    for track in some:
        one = one.taken([track], champion, LIMITS)
    for run, expected in zip(one.watch.runs, whole.watch.runs, strict=True):
        assert run.statistic == pytest.approx(expected.statistic, rel=1e-9)
        assert run.tracks == expected.tracks


def test_a_short_track_has_its_share_of_a_say():
    some, champion = tracks(5, 2), scaled(5.0)
    guard, short = begun(5.0, some[0]), some[1].since(int(some[1].stamp_ns[29]))
    assert guard.clip.rows == 40
    assert short is not None
    (difference,) = mean_differences(rows_of([short]), IDENTITY, champion, LIMITS).value
    # The statistic of one track is what it multiplies by, and a fourth of D is said.
    said, share = np.array([difference / 4]), np.array([0.25])
    expected = guard.clip.multiples(said, share, guard.clip.loss)[0]
    found = guard.taken([short], champion, LIMITS).watch.runs
    assert [run.statistic for run in found] == pytest.approx(expected)


@pytest.mark.parametrize("factor", [1.5, 2.0])
def test_outliers_broken_off_into_tracks_of_their_own_bring_nothing_back(factor):
    for seed in range(3):
        some = outliers_broken_off(tracks(seed, 410, degrees=5.0))
        clip = clip_of(scaled(factor), IDENTITY, rows_of(some[:20]), SETTINGS.clip)
        guard = Guard("car", scaled(factor), clip)
        assert not guard.taken(some[20:], IDENTITY, LIMITS).won(SETTINGS)
        # Where a single row has a full say, it would have come back.
        alone = replace(guard, clip=replace(clip, rows=1.0))
        assert alone.taken(some[20:], IDENTITY, LIMITS).won(SETTINGS)


def test_what_would_shrink_does_not_come_back_for_losses_that_were_broken_off():
    older = scaled(1 / 1.5)
    for seed in range(3):
        some = outliers_broken_off(tracks(seed, 1000, degrees=3.0))
        clip = clip_of(older, IDENTITY, rows_of(some[:20]), SETTINGS.clip)
        begun = guard = Guard("car", older, clip)
        for first in range(0, len(some), 50):
            guard = guard.taken(some[first : first + 50], IDENTITY, LIMITS)
            assert not guard.won(SETTINGS)
        # Where what a piece can lose is clipped as if no more could be lost, it would have.
        rows = rows_of(some)
        differences = mean_differences(rows, older, IDENTITY, LIMITS).value
        cut, known = np.maximum(differences, -1.0), replace(clip, most=2.0)
        watch = begun.watch.taken(cut, rows.counts, known)
        assert replace(begun, watch=watch).won(SETTINGS)


def test_its_evidence_is_of_the_tracks_since_it_is_better():
    some = fault_then_none(2, 5.0)[:340]
    guard = begun(5.0, some[0]).taken(some, scaled(5.0), LIMITS)
    evidence = guard.evidence(SETTINGS)
    assert 35 <= evidence.tracks <= 45
    assert evidence.gain == pytest.approx((math.log(5) - 0.8) / 2, abs=0.1)
    assert evidence.log10_better > evidence.log10_threshold == 5
    assert evidence.log10_worse == 0


def test_without_tracks_nothing_changes():
    guard = begun(5.0, tracks(3, 1)[0])
    assert guard.taken([], scaled(5.0), LIMITS) is guard
    assert guard.evidence(SETTINGS).tracks == 0


def test_who_fails_begins_anew_and_does_not_come_back_for_what_it_was():
    some = tracks(4, 60)
    broken = Guard("car", Spoiling(float("nan"), first=2000), Clip())
    proven = broken.taken(some[:50], scaled(50.0), LIMITS)
    assert proven.won(SETTINGS)
    failed = proven.taken(some, scaled(50.0), LIMITS)
    assert not failed.won(SETTINGS)
    assert failed.watch == Watch()
