"""A family of slices against a slow account in dictionaries, the laws of its budget, and how its
slices stand.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from numpy.testing import assert_allclose

from monitor.drift.alarms import AlarmChange, AlarmReason, DriftState
from monitor.drift.channels import BIASES, channels
from monitor.drift.charts import SEVERITIES, Origin, Severity, Stage
from monitor.drift.evidence import DriftSettings, by_severity, scale_of
from monitor.drift.family import Family, family_reading
from monitor.drift.reference import Levels, Reference, knot_levels, shipped
from monitor.frames.slices import TOTAL
from tests.drift.drives import (
    DIMENSIONS,
    Frame,
    K,
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


def some_reference(random: np.random.Generator, k: int) -> Reference:
    """Of any kind: shipped, with tracks, with few of them and without."""
    there = channels(k)
    levels = Levels(
        mean=np.where(there < BIASES, 0.5, 0.0) + random.normal(0.0, 0.4, there.size),
        between=random.uniform(0.1, 0.8, there.size),
        within=random.uniform(0.3, 0.8, there.size),
        spread=random.uniform(0.3, 2.0, there.size),
        length=random.uniform(1.0, 15.0),
        outside=10 ** random.uniform(-4, -1),
        onsets=10 ** random.uniform(-3, -0.5),
        tracks=int(random.choice([12, 40])),
        blocks=200,
    )
    known = random.random() < 0.8
    if random.random() < 0.3:
        return replace(shipped(k), levels=shipped(k).levels if known else None)
    quantiles = np.quantile(random.chisquare(k, 400) * random.uniform(0.5, 2.0), knot_levels())
    quantiles = np.maximum.accumulate(quantiles + 1e-9 * np.arange(quantiles.size))
    return Reference(
        k=k,
        origin=Origin.FILE,
        quantiles=quantiles,
        detections=400,
        nees_ratio=random.uniform(0.4, 2.5),
        spacings=np.sort(10 ** random.uniform(-2, 1, 6)),
        temperings=np.sort(random.uniform(0.05, 1.0, 6)),
        frame_tempering=random.uniform(0.05, 1.0),
        tracks=40 if known else int(random.choice([0, 5])),
        levels=levels if known else None,
    )


def some_references(seed: int, k: int = K):
    random = np.random.default_rng(seed)
    return [{stage: some_reference(random, k) for stage in Stage} for _ in NAMES]


def family_with(wanted: DriftSettings, references, k: int = K) -> Family:
    """Of three slices that have a reference each."""
    family = Family(wanted, dict(zip(NAMES, references, strict=True)))
    for name in NAMES:
        family.grow(name, DIMENSIONS[:k])
    return family


def oracle_of(wanted: DriftSettings, references, k: int = K) -> SlowFamily:
    return SlowFamily(
        NAMES,
        references,
        {severity.value: wanted.hours(severity) for severity in SEVERITIES},
        {severity.value: wanted.tolerance(severity) for severity in SEVERITIES},
        k,
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
    k = slow.k
    changes = family.take(k, watched([frame], k))[0]
    family.alarms.latched.clear()
    for change, (*who, evidence, concerned, most) in zip(changes, slow.frame(frame), strict=True):
        alarm = change.alarm
        assert (change.why, [alarm.slice, alarm.severity]) == (AlarmReason.RAISED, who)
        assert alarm.evidence == pytest.approx(evidence, rel=1e-9)
        assert set(change.concerned) == set(concerned)
        assert not most or (alarm.stage, alarm.direction, alarm.detector) == most
    return changes


@pytest.mark.parametrize(
    ("wild", "tolerance", "k"),
    [(False, 1.0, 3), (False, 1.1, 1), (True, 1.1, 3), (True, 1.0, 2)],
)
@costly
@given(seeds)
def test_evidence_and_alarms_are_those_of_the_slow_account(wild, tolerance, k, seed):
    wanted = replace(SHORT, page_tolerance=tolerance, ticket_tolerance=1.2)
    references = some_references(seed, k)
    family, slow = family_with(wanted, references, k), oracle_of(wanted, references, k)
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
        changes = family.take(K, rows)[0] if rows.n else []
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


STAYS = DriftSettings(calm_hours=0.0)


def read(family, **missed):
    by_slice = {family.names.index(name): n for name, n in missed.items()}
    return family_reading(family, (("late", 3),), by_slice)


def standing(family, slice="car", severity=Severity.PAGE, **missed):
    return next(
        one
        for one in read(family, **missed).standings
        if (one.slice, one.severity) == (slice, severity)
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
    assert standing(family).state is standing(family, "total").state is DriftState.TOO_FEW
    fed(family, drive(1, 1, begin=1.0))
    assert standing(family).state is standing(family, "total").state is DriftState.OK
    fed(family, drive(15, 2, made=lambda _: 5.0, begin=2.0))
    found = standing(family)
    assert found.state is DriftState.ALARM
    assert found.alarm is not None
    assert found.peak >= found.alarm.evidence >= 1000
    family.acknowledge((), "anna")
    assert (standing(family).alarm, standing(family).peak) == (None, 0)
    assert sum(one.alarms for one in read(family).counts) == 1


def test_a_slice_of_which_more_was_left_out_than_watched_is_not_ok_nor_are_all_together():
    family = family_of(STAYS, ("car", "van"), exact_reference())
    fed(family, drive(5, slices=(0, 1)))
    watched = family.slices[0].labelled
    assert watched >= 100
    states = {
        (missed, slice): standing(family, slice, car=missed).state
        for missed in (watched, watched + 1, 2 * watched + 1)
        for slice in ("car", "van", "total")
    }
    assert [at for at, state in states.items() if state is not DriftState.OK] == [
        *((watched + 1, "car"), (2 * watched + 1, "car"), (2 * watched + 1, "total"))
    ]
    assert set(states.values()) == {DriftState.OK, DriftState.TOO_FEW}


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
    assert told(untracked) == ("file", "detection", pytest.approx(0.25))
    assert read(untracked).stages[1].reference_detections == 10**9
    reference = replace(exact_reference(tempering=0.25), frame_tempering=0.5)
    family = family_of(STAYS, reference=reference)
    fed(family, drive(5))
    assert told(family) == ("file", "track-second", pytest.approx(0.25))
    fed(family, drive(5, 1, begin=5.0, tracked=False))
    assert told(family) == ("file", "frame", 0.5)
    # Eight detections in a frame count as one.
    assert family.usual.worth(0, Stage.RECALIBRATED) == pytest.approx(0.5 / 8)
    number = int(np.argmax(family.evidence.by_chart(family.evidence.weights)[0, :2]))
    assert read(family).stages[1].scale == scale_of(family.evidence.run[0, number], 0.5 / 8)
