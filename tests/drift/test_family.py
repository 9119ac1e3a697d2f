"""A family of slices against a slow account in dictionaries, the laws of its budget, and how its
slices stand.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from monitor.drift.alarms import AlarmChange, AlarmReason, DriftState
from monitor.drift.bets import BETS, SEVERITIES, Severity, Stage
from monitor.drift.evidence import OF_TRACKS, DriftSettings, by_severity, scale_of
from monitor.drift.family import Family, family_reading
from monitor.drift.reference import Levels, Origin, Reference, knot_levels, shipped
from monitor.frames.slices import TOTAL
from tests.drift.drives import (
    Frame,
    K,
    correlated,
    cut,
    cuts,
    drive,
    exact_reference,
    family_of,
    fed,
    seeds,
    some_frames,
    watched,
)
from tests.drift.family_oracle import SlowFamily
from tests.laws import costly

NAMES = ("car", "van", "bus")
SHORT = DriftSettings(
    # The slow account asks for no second track, and for no time of learning.
    fewest_tracks=1,
    reference_seconds=0.0,
    hours_between_false_pages=0.02,
    hours_between_false_tickets=0.02,
    calm_hours=0.0,
)
LONG = replace(SHORT, hours_between_false_pages=1e300, hours_between_false_tickets=1e300)


def some_reference(random: np.random.Generator) -> Reference:
    """Of any kind: shipped, with tracks and without."""
    levels = Levels(random.normal(0.5, 0.4), random.uniform(0.1, 0.8), 0.6, 12.0, 40, 200)
    known = random.random() < 0.7
    if random.random() < 0.3:
        return replace(shipped(K), levels=shipped(K).levels if known else None)
    quantiles = np.quantile(random.chisquare(K, 400) * random.uniform(0.5, 2.0), knot_levels())
    quantiles = np.maximum.accumulate(quantiles + 1e-9 * np.arange(quantiles.size))
    worth = random.uniform(0.05, 1.0, 2)
    return Reference(K, Origin.FILE, quantiles, 400, 1.0, *worth, levels if known else None)


def some_references(seed: int):
    random = np.random.default_rng(seed)
    return [{stage: some_reference(random) for stage in Stage} for _ in NAMES]


def family_with(wanted: DriftSettings, references) -> Family:
    """Of three slices that have a reference each."""
    family = Family(wanted, dict(zip(NAMES, references, strict=True)))
    for name in NAMES:
        family.grow(name, K)
    return family


def oracle_of(wanted: DriftSettings, references) -> SlowFamily:
    return SlowFamily(
        NAMES,
        references,
        {severity.value: wanted.hours(severity) for severity in SEVERITIES},
        {severity.value: wanted.tolerance(severity) for severity in SEVERITIES},
    )


def faulty_frames(seed: int, frames: int = 120, *, wild: bool = False) -> list[Frame]:
    """Frames with detections; every slice errs by a factor of its own, or all by much the same."""
    random = np.random.default_rng(seed)
    factors = 10 ** random.uniform(-0.6, 0.6, (2, 1 if seed % 2 else len(NAMES)))
    raw, made = np.broadcast_to(factors, (2, len(NAMES)))
    return [
        (*frame, [(t, g, a * raw[g], b * made[g]) for t, g, a, b in of])
        for *frame, of in some_frames(seed, frames, wild=wild)
        if of
    ]


def evidence_of(family: Family) -> np.ndarray:
    return by_severity(family.evidence.by_chart(family.evidence.weights))


def assert_takes_as(family: Family, slow: SlowFamily, frame: Frame) -> list[AlarmChange]:
    """The alarms of a frame are those of the slow account, which has ended those before."""
    changes = family.take(K, watched([frame])).changes
    family.alarms.latched.clear()
    for change, (*who, evidence, concerned, most) in zip(changes, slow.frame(frame), strict=True):
        alarm = change.alarm
        assert (change.why, [alarm.slice, alarm.severity]) == (AlarmReason.RAISED, who)
        assert alarm.evidence == pytest.approx(evidence, rel=1e-9)
        assert set(change.concerned) == set(concerned)
        assert not most or (alarm.stage, alarm.direction, alarm.detector) == most
    return changes


@pytest.mark.parametrize("wild", [False, True])
@pytest.mark.parametrize("tolerance", [1.0, 1.1])
@costly
@given(seeds)
def test_evidence_and_alarms_are_those_of_the_slow_account(wild, tolerance, seed):
    wanted = replace(SHORT, page_tolerance=tolerance, ticket_tolerance=1.2)
    references = some_references(seed)
    family, slow = family_with(wanted, references), oracle_of(wanted, references)
    for frame in faulty_frames(seed, 60, wild=wild):
        assert_takes_as(family, slow, frame)
        assert_allclose(
            evidence_of(family),
            [[slow.evidence(g, severity) for severity in SEVERITIES] for g in range(len(NAMES))],
            rtol=1e-9,
            atol=1e-300,
        )


def test_slices_that_err_alike_alarm_together_as_in_the_slow_account():
    references = [{stage: replace(shipped(K), levels=None) for stage in Stage} for _ in NAMES]
    family, slow = family_with(SHORT, references), oracle_of(SHORT, references)
    rows = [(t * 10 + g + 1, g, 9.0, 9.0) for t in range(2) for g in range(3)]
    changes = []
    for at in range(80):
        changes += assert_takes_as(family, slow, (0, at * 10**8, True, rows))
    assert {one.alarm.slice for one in changes} == {"total"}
    assert {one.alarm.severity for one in changes} == set(SEVERITIES)
    assert {one.concerned for one in changes} == {NAMES}
    # All of them begin anew.
    assert evidence_of(family).sum(axis=0).max() < 0.02


@costly
@given(seeds, cuts)
def test_an_alarm_says_how_many_detections_and_tracks_there_were_since_it_began(seed, edges):
    """Counted by hand, of one source; however frames are cut."""
    family = family_with(SHORT, some_references(seed))
    frames = [frame for frame in faulty_frames(seed) if frame[0] == 0]
    for rows in cut(frames, edges):
        changes = family.take(K, rows).changes if rows.n else []
        family.alarms.latched.clear()
        for alarm in (one.alarm for one in changes if one.alarm.slice != TOTAL):
            rows_since = [
                row
                for _, stamp, changed, of in frames
                for row in of
                if alarm.since_ns < stamp <= alarm.event_ns
                and NAMES[row[1]] == alarm.slice
                and (changed or alarm.stage is Stage.RECALIBRATED)
            ]
            tracks = {row[0] for row in rows_since} - {0}
            assert alarm.detections == len(rows_since)
            # A track is one of its slice, whichever of its frames a recalibrator has changed.
            if alarm.stage is Stage.RECALIBRATED:
                assert alarm.tracks == len(tracks)
            assert alarm.tracks >= len(tracks)


@costly
@given(seeds, cuts, st.sampled_from([SHORT, LONG]))
def test_how_frames_are_cut_into_chunks_changes_no_evidence(seed, cuts, wanted):
    frames = faulty_frames(seed)
    references = some_references(seed)
    one_by_one, in_pieces = family_with(wanted, references), family_with(wanted, references)
    for frame in frames:
        one_by_one.take(K, watched([frame]))
    for piece in cut(frames, cuts):
        if piece.n:
            in_pieces.take(K, piece)
    for name in ("sums", "clean", "shares"):
        ours, theirs = getattr(in_pieces.evidence, name), getattr(one_by_one.evidence, name)
        assert_allclose(ours, theirs, rtol=1e-9, err_msg=name)
    raised = [
        {key: one.alarm.event_ns for key, one in family.alarms.latched.items()}
        for family in (in_pieces, one_by_one)
    ]
    assert raised[0] == raised[1]
    assert_allclose(in_pieces.peak, one_by_one.peak, rtol=1e-9)
    assert_allclose(in_pieces.evidence.peak, one_by_one.evidence.peak, rtol=1e-9)
    assert in_pieces.labelled.tolist() == one_by_one.labelled.tolist()
    assert in_pieces.fed == pytest.approx(one_by_one.fed)
    assert in_pieces.clock.driven == pytest.approx(one_by_one.clock.driven)


@costly
@given(seeds)
def test_every_hour_is_given_out_once_and_no_more(seed):
    # Every bet is 1: a detection is worth nothing, and seconds vary beyond all measure.
    levels, nothing = Levels(0.0, 0.0, 1e9, 10.0, 100, 1000), {"tempering": 0, "frame_tempering": 0}
    silent = replace(shipped(K), origin=Origin.FILE, levels=levels, **nothing)
    family = family_with(LONG, [dict.fromkeys(Stage, silent)] * len(NAMES))
    frames = [(source, stamp, True, rows) for source, stamp, _, rows in faulty_frames(seed)]
    for piece in cut(frames, [30, 60, 90]):
        if piece.n:
            family.take(K, piece)
    hours = family.clock.driven / 3600
    given = family.evidence.sums.sum(axis=0)
    assert_allclose(given[:, :BETS][given[:, :BETS] > 0], hours, rtol=1e-9)
    # Tails are bets on overconfidence alone.
    assert (given[:, : BETS - 2] > 0).all()
    # What was driven since the last second of a source that was over waits.
    waiting = sum(one.waiting for one in family.clock._sources.values()) / 3600
    assert_allclose(given[:, OF_TRACKS], hours - waiting, rtol=1e-6, atol=1e-12)


RATE, HEALTHY, SECONDS = 10, 120, 120
TIME = np.arange(SECONDS * RATE) / RATE
SPREAD = math.log(1.67)


def wandering(deviation: float, seconds: float) -> np.ndarray:
    """An Ornstein-Uhlenbeck process, cut at the ends of the band."""
    random, keeps = np.random.default_rng(7), math.exp(-1 / RATE / seconds)
    found = np.empty(TIME.size)
    found[0] = deviation * random.standard_normal()
    for i in range(1, TIME.size):
        drawn = math.sqrt(1 - keeps**2) * deviation * random.standard_normal()
        found[i] = keeps * found[i - 1] + drawn
    return np.clip(found, -0.69, 0.69)


PATHS = {
    "steps": np.where(TIME // 10 % 2 == 0, -SPREAD, SPREAD),
    "ramps": SPREAD * np.interp(TIME % 24, [0, 10, 12, 22, 24], [-1, -1, 1, 1, -1]),
    "OU": wandering(0.35, 60.0),
}


def alarms_along(path: np.ndarray, *, tracks: int, correlation: float) -> list[tuple[str, float]]:
    """Severities, and seconds since the reference was learned, at the default settings."""
    nees, track = correlated(3, 4, correlation, HEALTHY * RATE + path.size, tracks, life=200)
    nees[HEALTHY * RATE :] *= np.exp(path)[:, None]
    frames: list[Frame] = [
        (0, at * 10**9 // RATE, False, [(t, 0, e, e) for t, e in zip(ids, of, strict=True)])
        for at, (ids, of) in enumerate(zip(track.tolist(), nees.tolist(), strict=True))
    ]
    family = Family(DriftSettings())
    family.grow("car", 4)
    alarms = [one.alarm for one in fed(family, frames, RATE) if one.why is AlarmReason.RAISED]
    return [(alarm.severity.value, alarm.event_ns / 1e9 - HEALTHY) for alarm in alarms]


@pytest.mark.parametrize("path", PATHS)
def test_a_common_level_that_wanders_within_the_band_raises_no_alarm(path):
    # Few tracks whose errors are alike, or many: by turns.
    many = path == "ramps"
    found = alarms_along(PATHS[path], tracks=8 if many else 3, correlation=0.0 if many else 0.6)
    assert found == []


def test_a_common_level_that_leaves_the_band_is_found_in_seconds():
    level = PATHS["OU"] + np.where(TIME < 60, 0.0, 2.0)
    severity, seconds = alarms_along(level, tracks=8, correlation=0.6)[0]
    assert severity == Severity.PAGE
    assert 60 < seconds <= 63


STAYS = DriftSettings(calm_hours=0.0)


def read(family):
    return family_reading(family, (("late", 3),))


def standing(family, slice="car", severity=Severity.PAGE):
    return next(
        one for one in read(family).standings if (one.slice, one.severity) == (slice, severity)
    )


def test_every_slice_and_all_together_stand_under_both_severities():
    family = family_of(STAYS, ("car", "van"), exact_reference())
    fed(family, drive(5, slices=(0, 1)))
    reading = read(family)
    assert [(one.slice, one.severity) for one in reading.standings] == [
        (slice, severity) for slice in ("car", "van", "total") for severity in SEVERITIES
    ]
    for severity in SEVERITIES:
        of = {one.slice: one for one in reading.standings if one.severity is severity}
        assert of["total"].evidence == pytest.approx(of["car"].evidence + of["van"].evidence)
        assert all(one.peak >= one.evidence * (1 - 1e-12) for one in of.values())
        assert {one.threshold for one in of.values()} == {1000.0}
    assert reading.driven == pytest.approx(4.9 / 3600)
    assert reading.left_out == (("late", 3),)
    assert reading.epochs == (("car", 0), ("van", 0))
    assert [(one.slice, one.stage) for one in reading.stages] == [
        (slice, stage) for slice in ("car", "van") for stage in Stage
    ]


def test_a_slice_has_too_few_detections_and_then_is_ok_until_an_alarm_and_after_it():
    family = family_of(STAYS, reference=exact_reference())
    fed(family, drive(1))
    assert standing(family).state is DriftState.TOO_FEW
    fed(family, drive(1, 1, begin=1.0))
    assert standing(family).state is DriftState.OK
    assert standing(family, "total").state is DriftState.OK
    fed(family, drive(15, 2, made=lambda _: 5.0, begin=2.0))
    found = standing(family)
    assert found.state is DriftState.ALARM
    assert found.alarm is not None
    assert found.peak >= found.alarm.evidence >= 1000
    family.acknowledge((), "anna")
    assert (standing(family).alarm, standing(family).peak) == (None, 0)
    assert sum(one.alarms for one in read(family).counts) == 1


def test_a_tenth_of_what_an_alarm_needs_is_a_warning():
    family = family_of(STAYS, reference=exact_reference())
    fed(family, drive(3))
    for factor, state in ((9.99, DriftState.WARNING), (10.01, DriftState.OK)):
        hours = factor * standing(family).evidence
        family.settings = replace(STAYS, hours_between_false_pages=hours)
        assert standing(family).state is state


def test_a_stage_says_what_it_rests_on_and_where_no_track_is_known_lately_a_frame_is_one():
    def told(family):
        one = read(family).stages[1]
        return one.reference, one.unit, one.effective_ratio

    assert told(family_of(STAYS))[:2] == ("shipped", "track-second")
    untracked = family_of(STAYS, reference=exact_reference(tracks=False, tempering=0.25))
    assert told(untracked) == ("file", "detection", 0.25)
    assert read(untracked).stages[1].reference_detections == 10**9
    reference = replace(exact_reference(tempering=0.25), frame_tempering=0.5)
    family = family_of(STAYS, reference=reference)
    fed(family, drive(5))
    assert told(family) == ("file", "track-second", 0.25)
    fed(family, drive(5, 1, begin=5.0, tracked=False))
    assert told(family) == ("file", "frame", 0.5)
    # Eight detections in a frame count as one.
    assert family.usual.worth(0, Stage.RECALIBRATED) == pytest.approx(0.5 / 8)
    number = int(np.argmax(family.evidence.by_chart(family.evidence.weights)[0, :2]))
    assert read(family).stages[1].scale == scale_of(family.evidence.run[0, number], 0.5 / 8)
