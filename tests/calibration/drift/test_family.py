"""A family of slices against a slow account in dictionaries, and the laws of its budget."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from monitor.drift.alarms import AlarmReason
from monitor.drift.bets import BETS, CHARTS_OF, SEVERITIES, Stage
from monitor.drift.evidence import OF_TRACKS, DriftSettings, by_severity
from monitor.drift.family import Family
from monitor.drift.reference import Levels, Origin, Reference, knot_levels, shipped
from monitor.frames.slices import TOTAL
from tests.calibration.drift.family_oracle import SlowFamily
from tests.calibration.drift.watched_rows import Frame, cut, some_frames, watched

K = 3
NAMES = ("car", "van", "bus")
quick = settings(max_examples=8)
seeds = st.integers(0, 2**32 - 1)
cuts = st.lists(st.integers(0, 120), max_size=12)
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
    if random.random() < 0.3:
        return replace(shipped(K), levels=shipped(K).levels if random.random() < 0.7 else None)
    quantiles = np.quantile(random.chisquare(K, 400) * random.uniform(0.5, 2.0), knot_levels())
    levels = Levels(random.normal(0.5, 0.4), random.uniform(0.1, 0.8), 0.6, 12.0, 40, 200)
    return Reference(
        k=K,
        origin=Origin.FILE,
        quantiles=np.maximum.accumulate(quantiles + 1e-9 * np.arange(quantiles.size)),
        detections=400,
        nees_ratio=1.0,
        tempering=random.uniform(0.05, 1.0),
        frame_tempering=random.uniform(0.05, 1.0),
        levels=levels if random.random() < 0.7 else None,
    )


def some_references(seed: int):
    random = np.random.default_rng(seed)
    return [{stage: some_reference(random) for stage in Stage} for _ in NAMES]


def family_of(wanted: DriftSettings, references=None) -> Family:
    family = Family(wanted, dict(zip(NAMES, references, strict=True)) if references else {})
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
    factors = np.broadcast_to(factors, (2, len(NAMES)))
    return [
        (
            source,
            stamp,
            changed,
            [(t, g, a * factors[0, g], b * factors[1, g]) for t, g, a, b in of],
        )
        for source, stamp, changed, of in some_frames(seed, frames, wild=wild)
        if of
    ]


def evidence_of(family: Family) -> np.ndarray:
    return by_severity(family.evidence.by_chart(family.evidence.weights))


@pytest.mark.parametrize("wild", [False, True])
@pytest.mark.parametrize("tolerance", [1.0, 1.1])
@quick
@given(seeds)
def test_evidence_and_alarms_are_those_of_the_slow_account(wild, tolerance, seed):
    wanted = replace(SHORT, page_tolerance=tolerance, ticket_tolerance=1.2)
    references = some_references(seed)
    family, slow = family_of(wanted, references), oracle_of(wanted, references)
    for frame in faulty_frames(seed, 60, wild=wild):
        changes = family.take(K, watched([frame])).changes
        # So that the next is told: who acknowledges says more than that.
        family.alarms.latched.clear()
        expected = slow.frame(frame)
        assert [(one.alarm.slice, one.alarm.severity) for one in changes] == [
            one[:2] for one in expected
        ]
        for change, (_, _, evidence, concerned, most) in zip(changes, expected, strict=True):
            assert change.why is AlarmReason.RAISED
            assert change.alarm.evidence == pytest.approx(evidence, rel=1e-9)
            assert set(change.concerned) == set(concerned)
            if most:
                alarm = change.alarm
                assert (alarm.stage, alarm.direction, alarm.detector) == most
        assert_allclose(
            evidence_of(family),
            [[slow.evidence(g, severity) for severity in SEVERITIES] for g in range(len(NAMES))],
            rtol=1e-9,
            atol=1e-300,
        )


@quick
@given(seeds, cuts)
def test_an_alarm_says_how_many_detections_and_tracks_there_were_since_it_began(seed, edges):
    """Counted by hand, of one source; however frames are cut."""
    family = family_of(SHORT, some_references(seed))
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


def alike(frames: int) -> list[Frame]:
    """Every slice errs as much as the others, by the same numbers."""
    return [
        (0, at * 10**8, True, [(t * 10 + g + 1, g, 9.0, 9.0) for t in range(2) for g in range(3)])
        for at in range(frames)
    ]


def test_slices_that_err_alike_alarm_together_as_in_the_slow_account():
    references = [{stage: replace(shipped(K), levels=None) for stage in Stage} for _ in NAMES]
    family, slow = family_of(SHORT, references), oracle_of(SHORT, references)
    found = set()
    for frame in alike(80):
        changes = family.take(K, watched([frame])).changes
        # So that the next is told: who acknowledges says more than that.
        family.alarms.latched.clear()
        expected = slow.frame(frame)
        assert [(one.alarm.slice, one.alarm.severity) for one in changes] == [
            one[:2] for one in expected
        ]
        for change, one in zip(changes, expected, strict=True):
            assert change.alarm.evidence == pytest.approx(one[2], rel=1e-9)
            assert set(change.concerned) == set(one[3]) == set(NAMES)
        found |= {one[:2] for one in expected}
    assert found == {("total", severity) for severity in SEVERITIES}
    # All of them begin anew.
    assert evidence_of(family).sum(axis=0).max() < 0.02


@quick
@given(seeds, cuts, st.sampled_from([SHORT, LONG]))
def test_how_frames_are_cut_into_chunks_changes_no_evidence(seed, cuts, wanted):
    frames = faulty_frames(seed)
    references = some_references(seed)
    one_by_one, in_pieces = family_of(wanted, references), family_of(wanted, references)
    for frame in frames:
        one_by_one.take(K, watched([frame]))
    for piece in cut(frames, cuts):
        if piece.n:
            in_pieces.take(K, piece)
    for name in ("sums", "clean", "shares"):
        ours, theirs = getattr(in_pieces.evidence, name), getattr(one_by_one.evidence, name)
        assert_allclose(ours, theirs, rtol=1e-9, err_msg=name)
    assert in_pieces.alarms.latched.keys() == one_by_one.alarms.latched.keys()
    for key, latched in in_pieces.alarms.latched.items():
        assert latched.alarm.event_ns == one_by_one.alarms.latched[key].alarm.event_ns
    assert_allclose(in_pieces.peak, one_by_one.peak, rtol=1e-9)
    assert_allclose(in_pieces.evidence.peak, one_by_one.evidence.peak, rtol=1e-9)
    assert in_pieces.labelled.tolist() == one_by_one.labelled.tolist()
    assert in_pieces.fed == pytest.approx(one_by_one.fed)
    assert in_pieces.clock.driven == pytest.approx(one_by_one.clock.driven)


# ---- laws


def silent_reference(tracks: bool = True) -> Reference:
    """Every bet is 1: a detection is worth nothing, and seconds vary beyond all measure."""
    levels = Levels(0.0, 0.0, 1e9, 10.0, 100, 1000) if tracks else None
    return replace(
        shipped(K), origin=Origin.FILE, tempering=0.0, frame_tempering=0.0, levels=levels
    )


@quick
@given(seeds)
def test_every_hour_is_given_out_once_and_no_more(seed):
    family = family_of(LONG, [dict.fromkeys(Stage, silent_reference())] * len(NAMES))
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


def test_a_frame_that_no_recalibrator_changed_gives_the_raw_charts_nothing():
    family = family_of(LONG, [dict.fromkeys(Stage, silent_reference())] * len(NAMES))
    for source, stamp, _, rows in faulty_frames(0):
        family.take(K, watched([(source, stamp, False, rows)]))
    raw = CHARTS_OF[Stage.RAW]
    assert family.evidence.sums[:, raw].max() == 0
    assert family.evidence.sums[:, CHARTS_OF[Stage.RECALIBRATED]].max() > 0


def test_slices_that_never_came_have_no_time():
    family = family_of(LONG, [dict.fromkeys(Stage, silent_reference())] * len(NAMES))
    for at in range(100):
        family.take(K, watched([(0, at * 10**8, True, [(1, 1, 3.0, 3.0)])]))
    assert evidence_of(family)[[0, 2]].max() == 0
    assert family.fed[[0, 2]].max() == 0
    assert family.driven_with("van") == family.driven_with("total") == pytest.approx(9.9)
    assert family.driven_with("nobody") == 0
