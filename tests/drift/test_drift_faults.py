"""Faults of simulated errors, at any rate of labels with one reference: found, and named for what
they are; healthy drives are left alone. And what keeps it so: bets on seconds of one detection have
a mean of at most 1, and how rows are cut into calls changes nothing.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from numpy.testing import assert_allclose

from monitor.drift.alarms import Alarm
from monitor.drift.charts import CHARTS_OF, Direction, Quantity, Severity, Stage
from monitor.drift.evidence import PLACES, DriftSettings
from monitor.drift.family import Family
from monitor.drift.reference import Levels, Reference
from monitor.drift.track_seconds import TrackSeconds
from monitor.drift.usual import WatchedRows
from monitor.frames.space import FloatArray
from monitor.statistics.observations import finished
from tests.drift.drives import (
    DIMENSIONS,
    SECOND,
    Frame,
    K,
    cut,
    cuts,
    errors_of,
    exact_reference,
    family_of,
    seeds,
    some_frames,
    watched,
)
from tests.drift.error_drives import (
    BEGINS,
    Fault,
    biased,
    error_drive,
    flipped,
    healthy,
    learned_reference,
    rows_from_the_fault_on,
    scaled,
    until_alarm,
    with_outliers,
)
from tests.laws import costly

WANTED = DriftSettings(calm_hours=0.0)
EVERY = (1, 2, 5, 10, 30)


def found(fault: Fault, every: int, seconds: float, seed: int = 5) -> tuple[Alarm, float]:
    """The first alarm, and the seconds that it took."""
    family = family_of(WANTED, reference=learned_reference())
    changes = until_alarm(family, error_drive(seconds, seed, fault, every=every))
    assert len(changes) == 1
    alarm = changes[0].alarm
    return alarm, alarm.event_ns / SECOND - BEGINS


def about(size: float, rel: float = 0.2):
    """Detections of shortly before a fault may count, too."""
    return pytest.approx(size, rel=rel)


@pytest.mark.parametrize("every", EVERY)
def test_a_healthy_drive_raises_nothing_at_any_rate_of_labels(every):
    family = family_of(WANTED, reference=learned_reference())
    assert until_alarm(family, error_drive(240.0, 3, every=every), 16) == []
    assert family.peak.max() < 1.0


@pytest.mark.parametrize(("every", "longest"), [(1, 2), (2, 3), (5, 4), (10, 6), (30, 16)])
@pytest.mark.parametrize("factor", [5.0, 0.2])
def test_a_factor_on_all_variances_is_found_at_any_rate_with_a_reference_of_the_full_one(
    factor, every, longest
):
    alarm, seconds = found(scaled(*[factor] * K), every, 60.0)
    over = factor > 1
    assert alarm.severity is (Severity.PAGE if over else Severity.TICKET)
    assert alarm.direction is (Direction.OVER if over else Direction.UNDER)
    assert 0 < seconds <= longest
    assert (alarm.quantity, alarm.dimension, alarm.unit) == (Quantity.SCALE, "", "")
    assert alarm.size == pytest.approx(factor**0.5, rel=0.2)
    assert abs(alarm.since_ns / SECOND - BEGINS) <= max(2, every / 5)


@pytest.mark.parametrize(
    ("fault", "longest", "named", "size", "unit"),
    [
        # √(mean u²/mean z²) of y = −0.6 x + … in place of 0.6 x: √((1 + 3 · 0.36) / 0.64) = 1.8.
        (flipped, (5, 50), (Quantity.CORRELATION, "y"), about(1.8, 0.35), ""),
        (biased(0.6, 0.0, 0.0), (3, 6), (Quantity.BIAS, "x"), about(0.6), "m"),
        (biased(0.0, 0.0, -0.5), (2, 6), (Quantity.BIAS, "z"), about(-0.5), "m"),
        (scaled(1.0, 10.0, 1.0), (2, 8), (Quantity.SCALE, "y"), about(10**0.5), ""),
        (scaled(10.0, 1.0, 10.0), (2, 8), (Quantity.SCALE, "x, z"), about(10**0.5), ""),
        # A share of 10 % is drawn from wide tails, and some half of these are far outside.
        (with_outliers, (10, 90), (Quantity.TAIL, ""), about(0.055, 0.6), ""),
    ],
)
@pytest.mark.parametrize("every", [1, 10])
def test_subtler_faults_are_pages_that_name_what_is_wrong_of_which_dimension_and_by_how_much(
    fault, longest, named, size, unit, every
):
    alarm, seconds = found(fault, every, 150.0)
    assert (alarm.severity, alarm.direction) == (Severity.PAGE, Direction.OVER)
    assert (alarm.quantity, alarm.dimension) == named
    assert alarm.size == size
    assert alarm.unit == unit
    assert 0 < seconds <= longest[every == 10]


@pytest.mark.parametrize(("factor", "every"), [(5.0, 1), (3.0, 1), (0.2, 1), (5.0, 10), (0.2, 10)])
@pytest.mark.parametrize("seed", [11, 12])
def test_a_thin_reference_of_what_is_wrong_from_the_first_frame_hides_it_no_longer_than_none(
    factor, every, seed
):
    """Of nine seconds of the same fault; three seconds later at most, since shares are smaller."""
    thin = learned_reference(9.0, factor)
    assert thin.levels is not None
    assert thin.levels.tracks < 30
    fault = scaled(*[factor] * K)
    rows = rows_from_the_fault_on(error_drive(90.0, seed, fault, every=every))
    # Nothing is learned meanwhile: what is shipped stays.
    never = replace(WANTED, reference_seconds=1e9)
    beside, alone = (
        until_alarm(family_of(never, reference=reference), rows)[0].alarm
        for reference in (thin, None)
    )
    assert beside.event_ns <= alone.event_ns + 3 * SECOND
    assert (beside.severity, beside.direction) == (alone.severity, alone.direction)


# ---- a mean of at most 1

NEVER = replace(
    WANTED,
    fewest_tracks=1,
    hours_between_false_pages=1e300,
    hours_between_false_tickets=1e300,
)
SLICES = 400


def likelihoods(k: int, reference: Reference, seconds: int, between: float) -> FloatArray:
    """L of every bet of what is forwarded, (seconds, SLICES, 2, bets).

    Each slice has one track with a label a second, whose errors are Gaussian and as usual.
    """
    random, names = np.random.default_rng(7), [str(number) for number in range(SLICES)]
    family = Family(NEVER, {name: dict.fromkeys(Stage, reference) for name in names})
    for name in names:
        family.grow(name, DIMENSIONS[:k])
    charts, own = CHARTS_OF[Stage.RECALIBRATED], np.exp(random.normal(0.0, between, SLICES))
    out = []
    for second in range(seconds):
        nees = np.stack([random.chisquare(k, SLICES) * own] * 2)
        z, u = errors_of(nees, k)
        rows = WatchedRows(
            slices=np.arange(SLICES),
            nees=nees,
            z=z,
            u=u,
            error=z,
            track=np.arange(1, SLICES + 1).astype(np.uint64),
            frame=np.zeros(SLICES, np.int64),
            stamp_ns=np.array([second * SECOND]),
            source=np.zeros(1, np.int64),
            changed=np.zeros(1, bool),
        )
        before, driven = family.evidence.sums[:, charts].copy(), family.clock.driven
        finished(family.take(k, rows)[1])
        hours = (family.clock.driven - driven) / 3600 / SLICES
        if second > 1:  # the second before is over
            out.append(family.evidence.sums[:, charts] / (before + hours))
    return np.array(out)


def noisy(levels: Levels, between: float) -> Levels:
    return replace(levels, between=np.full(levels.between.size, between))


@pytest.mark.parametrize("k", [1, 3, 6])
def test_bets_on_seconds_of_one_detection_have_a_mean_of_at_most_one_while_all_is_as_usual(k):
    """Of a reference of seconds of ten detections, by simulation: within 0.02 and four errors."""
    reference, between = exact_reference(k), 0.3
    assert reference.levels is not None
    reference = replace(reference, levels=noisy(reference.levels, between))
    found = likelihoods(k, reference, 42, between)
    mean, error = found.mean(axis=(0, 1)), found.mean(axis=0).std(axis=0) / SLICES**0.5
    for detector, places in PLACES.items():
        for place in places:
            over = mean[:, place] - 1.02 - 4 * error[:, place]
            assert over.max() <= 0, (detector, mean[:, place], error[:, place])


# ---- however rows are cut into calls


@given(seeds, cuts)
def test_seconds_and_the_times_between_labels_do_not_hang_on_how_rows_are_cut(seed, edges):
    frames = some_frames(seed, wild=True)
    whole, pieces = TrackSeconds(WANTED), TrackSeconds(WANTED)
    seconds, apart = whole.take(K, watched(frames))
    parts = [pieces.take(K, part) for part in cut(frames, edges)]
    assert np.array_equal(np.concatenate([one for _, one in parts]), apart, equal_nan=True)
    order = ["source", "turn", "key"]
    others = np.sort(np.concatenate([one for one, _ in parts]), order=order)
    seconds = np.sort(seconds, order=order)
    for name in seconds.dtype.names or ():
        # Numbers of frames are those of their calls; common levels are of the family.
        if name not in ("frame", "common", "common_total"):
            assert np.array_equal(seconds[name], others[name]), name


@costly
@given(seeds, cuts)
def test_evidence_does_not_hang_on_how_rows_are_cut(seed, edges):
    frames: list[Frame] = [one for one in some_frames(seed, wild=True) if one[3]]
    evidence, whole = [], list[int]()
    for at in (whole, edges):
        family = family_of(NEVER, ("car", "van", "bus"), learned_reference())
        for rows in cut(frames, at):
            if rows.stamp_ns.size:
                finished(family.take(K, rows)[1])
        evidence.append(family.evidence)
    one, other = evidence
    assert_allclose(one.sums, other.sums, rtol=1e-9)
    assert_allclose(one.chain, other.chain, rtol=1e-9)
    assert_allclose(one.run, other.run, rtol=1e-9, atol=1e-9)
    assert (one.clean == other.clean).all()


def test_one_rate_after_another_goes_on_with_the_same_tracks():
    """Labels on every frame, then on one in five: tracks and evidence go on, and none is raised."""
    family = family_of(WANTED, reference=learned_reference())
    rows = error_drive(60.0, 8, healthy)
    assert until_alarm(family, rows, 10) == []
    sparse = error_drive(120.0, 9, healthy, every=5)
    later = replace(sparse, stamp_ns=sparse.stamp_ns + 60 * SECOND)
    assert until_alarm(family, later, 2) == []
    assert family.usual.apart[0] == pytest.approx(0.5)
    assert family.peak.max() < 1.0
