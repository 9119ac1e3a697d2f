"""Bets on class probabilities: not won in the mean within the band, whatever a track is like; who
is off is found at any rate of labels, and who is not is left alone.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from monitor.drift.alarms import Alarm, AlarmReason, Counted, alarm_sentence
from monitor.drift.bets import ABSOLUTE
from monitor.drift.charts import CHARTS, CHARTS_OF, Detector, Direction, Quantity, Severity, Stage
from monitor.drift.class_bets import WRONG_LABELS, ClassLabels, judged, log_likelihoods
from monitor.drift.family import Family, family_reading, restored_family
from monitor.drift.usual import WatchedRows
from monitor.frames.slices import CLASS_PROBABILITIES, class_member, is_of_classes
from monitor.frames.space import Dimension
from monitor.statistics.observations import finished
from monitor.store.documents import read_family
from tests.drift.class_drives import (
    CONFIDENCE,
    FRAME_NS,
    WANTED,
    classified,
    family_of,
    fed,
    joined,
    slices_of,
    votes_of,
)
from tests.drift.drives import text_of
from tests.laws import assert_same

SHARE = st.floats(0.0, 1.0)
TOLERANCE = st.floats(1.0, 50.0)
OVER, UNDER = Direction.OVER, Direction.UNDER


def bets(confidence: float, direction: Direction, tolerance: float) -> tuple[np.ndarray, ...]:
    """L of each bet where the likeliest class is right, and where it is wrong."""
    said = log_likelihoods(
        np.array([confidence] * 2), np.array([True, False]), direction, tolerance
    )
    return tuple(np.exp(said))


def edge(confidence: float, direction: Direction, tolerance: float) -> float:
    """The accuracy at the end of the band that a direction is beyond; written from the odds."""
    p = min(max(confidence, 1e-6), 1 - 1e-6)
    odds = p / (1 - p) if direction is OVER else (1 - p) / p
    found = min(odds / tolerance / (1 + odds / tolerance), 1 - WRONG_LABELS)
    return found if direction is OVER else 1 - found


# ---- the bets


@given(SHARE, SHARE, st.sampled_from(Direction), TOLERANCE)
def test_no_bet_is_won_in_the_mean_at_any_accuracy_up_to_the_end_of_the_band(
    confidence, share, direction, tolerance
):
    right, wrong = bets(confidence, direction, tolerance)
    last = edge(confidence, direction, tolerance)
    far = 1.0 if direction is OVER else 0.0
    for accuracy in (last, last + share * (far - last)):
        assert (accuracy * right + (1 - accuracy) * wrong <= 1 + 1e-9).all()
    assert_allclose(last * right + (1 - last) * wrong, 1, rtol=1e-9)
    assert right.shape == (ABSOLUTE,) and np.isfinite([right, wrong]).all()
    # One is won by what the direction is about, and never much: no single vote is an alarm.
    lost, won = (right, wrong) if direction is OVER else (wrong, right)
    assert (lost <= 1).all() and (won >= 1).all() and won.max() < 1 / WRONG_LABELS


@pytest.mark.parametrize(
    ("direction", "accuracy"), [(OVER, 0.6), (OVER, 0.8), (UNDER, 0.99), (UNDER, 0.999)]
)
def test_some_bet_is_won_beyond_the_band(direction, accuracy):
    right, wrong = bets(0.93, direction, 2.0)
    assert (accuracy * np.log(right) + (1 - accuracy) * np.log(wrong)).max() > 0.01


def test_who_is_sure_is_not_held_to_it_by_wrong_labels():
    right, wrong = bets(1.0, OVER, 1.0)
    accuracy = 1 - WRONG_LABELS
    assert (accuracy * np.log(right) + WRONG_LABELS * np.log(wrong) <= 0).all()


def test_the_likeliest_class_is_that_of_the_mean_and_of_each_stage():
    opinions = np.array([[[0.6, 0.4], [0.1, 0.9]], [[0.7, 0.3], [0.7, 0.3]]])
    made = np.array([[0.8, 0.2], [np.nan, np.nan]])
    confidence, right = judged(opinions, made, np.array([0, 0]))
    assert_allclose(confidence, [[0.65, 0.7], [0.8, np.nan]])
    assert_array_equal(right, [[False, True], [True, True]])
    same = judged(opinions, None, np.array([1, 0]))
    assert_array_equal(same[0][0], same[0][1])
    assert_array_equal(same[1], [[True, True], [True, True]])


# ---- votes


def labels_of(
    *rows: tuple[float, int, float, bool], source: int = 0, changed: bool = False
) -> ClassLabels:
    """Labels of second, track, confidence and whether it is right; both stages are alike."""
    second, track, confidence, right = map(np.array, zip(*rows, strict=True))
    n = track.size
    return ClassLabels(
        np.zeros(n, np.int64),
        np.stack([confidence, confidence]),
        np.stack([right, right]),
        track.astype(np.uint64),
        np.full(n, source),
        (second * 1e9).astype(np.int64),
        np.full(n, changed),
    )


def test_a_track_votes_once_by_the_mean_of_its_labels_when_it_is_over_or_after_ten_seconds():
    votes = votes_of()
    assert votes.take(labels_of((0.0, 7, 0.9, True), (0.0, 8, 0.6, False))) is None
    assert votes.take(labels_of((1.0, 7, 0.8, False), changed=True)) is None
    rows = votes.take(labels_of((2.5, 7, 0.7, True)))
    assert rows is not None and rows.votes is not None
    # Track 8 was not seen for more than two seconds.
    assert (rows.track.tolist(), rows.frame.tolist()) == ([8], [0])
    assert (rows.stamp_ns.tolist(), rows.changed.tolist()) == ([2_500_000_000], [False])
    assert_allclose(rows.nees, [[1.6], [1.6]])
    for second in np.arange(4.0, 10.0, 1.5):
        assert votes.take(labels_of((second, 7, 0.9, True))) is None
    rows = votes.take(labels_of((10.0, 7, 0.9, False)))
    assert rows is not None and rows.votes is not None
    assert (rows.track.tolist(), rows.changed.tolist()) == ([7], [True])
    p = np.array([0.9, 0.8, 0.7, 0.9, 0.9, 0.9, 0.9, 0.9])
    right = np.array([True, False, True, True, True, True, True, False])
    assert_allclose(rows.nees, np.full((2, 1), 1 + (p - right).mean()))
    for chart in CHARTS:
        place = CHARTS.index(chart) - CHARTS_OF[chart.stage].start
        said = log_likelihoods(p, right, chart.direction, 2.0)
        assert_allclose(rows.votes[chart.stage, 0, place], said.mean(axis=0))
        assert (np.exp(rows.votes[chart.stage, 0, place]) <= np.exp(said).mean(axis=0)).all()
    for second in np.arange(11.5, 40.0, 1.5):
        assert votes.take(labels_of((second, 7, 0.9, False))) is None
    # A new track after a pause; what time was set back behind is over, without a vote.
    assert votes.take(labels_of((50.0, 7, 0.9, True))) is None
    assert votes.take(labels_of((1.0, 9, 0.9, True))) is None
    rows = votes.take(labels_of((12.0, 10, 0.9, True)))
    assert rows is not None and rows.track.tolist() == [9]


def test_without_tracks_ten_seconds_of_a_slice_and_source_are_one_vote():
    family, votes = family_of(), votes_of()
    for labels in classified(1, 60.0, tracked=False):
        rows = votes.take(labels)
        if rows is not None:
            finished(family.take(1, rows)[1])
    assert family.slices[0].labelled == 5
    (raw, made) = family_reading(family, (), {}).stages
    assert raw.unit is made.unit is Counted.FRAME


def test_tracks_of_which_too_many_are_open_leave_without_a_vote():
    votes = votes_of(replace(WANTED, most_open=2))
    votes.take(labels_of(*((0.0, track, 0.9, True) for track in (5, 6, 7))))
    rows = votes.take(labels_of((3.0, 8, 0.9, True)))
    assert rows is not None and rows.track.tolist() == [6, 7]
    votes.forget()
    assert votes.take(labels_of((9.0, 9, 0.9, True))) is None


# ---- a family


def alarm_of(seed: int, seconds: float = 1800.0, **other) -> tuple[Alarm, int]:
    """The first alarm, and how many tracks had voted by then."""
    family = family_of()
    change = fed(family, classified(seed, seconds, **other))[0]
    return change.alarm, family.slices[0].labelled


@pytest.mark.parametrize(("seed", "every"), [(0, 1), (0, 10), (1, 30)])
def test_an_overconfident_classifier_is_a_page_at_any_rate_of_labels(seed, every):
    alarm, tracks = alarm_of(seed, sharper=2.0, every=every)
    assert (alarm.slice, alarm.severity) == (CLASS_PROBABILITIES, Severity.PAGE)
    assert (alarm.stage, alarm.direction) == (Stage.RECALIBRATED, OVER)
    assert (alarm.detector, alarm.quantity) == (Detector.CONFIDENCE, Quantity.CONFIDENCE)
    assert -0.12 < alarm.size < -0.04 and math.isnan(alarm.scale.estimate)
    assert tracks < 1200
    assert alarm.detections <= tracks and alarm.tracks == min(alarm.detections, 1024)
    assert "points below the stated confidence since" in alarm_sentence(alarm)


def test_an_underconfident_classifier_is_a_ticket():
    alarm, tracks = alarm_of(0, sharper=0.5)
    assert (alarm.severity, alarm.direction) == (Severity.TICKET, UNDER)
    assert 0.1 < alarm.size < 0.2 and tracks < 1000


@pytest.mark.parametrize(
    "drive",
    [
        {"held": 0.0, "rho": 0.0},
        {"held": 1.0},
        {"held": 1.0, "life": 200, "every": 10},
        {"sharper": 1.2, "held": 0.9},
        {"strength": 4.0, "wrong_labels": 0.008},
        {"tracked": False, "held": 0.9},
    ],
)
def test_a_calibrated_classifier_is_left_alone_whatever_its_tracks_are_like(drive):
    family = family_of()
    assert fed(family, classified(3, 1200.0, **drive)) == []
    assert (family.peak < family.thresholds / 1000).all()
    (_, made) = family_reading(family, (), {}).stages
    assert made.unit is (Counted.TRACK if drive.get("tracked", True) else Counted.FRAME)
    assert math.isnan(made.scale.estimate)


def at_the_edge(seed: int, seconds: int, direction: Direction) -> list[ClassLabels]:
    """Tracks that are right or wrong throughout, as often as the end of the band says."""
    random = np.random.default_rng(seed)
    parts = []
    for second in range(0, seconds, 4):
        confidence = random.uniform(0.4, 0.999, 8)
        accuracy = np.array([edge(one, direction, WANTED.class_tolerance) for one in confidence])
        right = random.random(8) < accuracy
        rows = zip(range(8 * second + 1, 8 * second + 9), confidence, right, strict=True)
        of_tracks = [(track, p, bool(is_right)) for track, p, is_right in rows]
        parts += [labels_of(*((second + at, *one) for one in of_tracks)) for at in (0.0, 0.5, 1.5)]
    return parts


@pytest.mark.parametrize("direction", Direction)
def test_at_the_end_of_the_band_false_alarms_are_as_rare_as_the_budget_says(direction):
    hours = 0.05
    wanted = replace(WANTED, hours_between_false_pages=hours, hours_between_false_tickets=hours)
    family = family_of(wanted)
    severity = Severity.PAGE if direction is OVER else Severity.TICKET
    votes, alarms = votes_of(), 0
    for labels in at_the_edge(1, 2 * 3600, direction):
        rows = votes.take(labels)
        if rows is not None:
            changes, learning = family.take(1, rows)
            finished(learning)
            alarms += sum(one.alarm.severity is severity for one in changes)
            family.alarms.latched.clear()
    assert 1 <= alarms <= 2 / hours


def test_what_a_recalibrator_has_compensated_is_a_ticket_about_what_was_sent():
    family, votes, calm = family_of(), votes_of(), classified(2, 400.0)
    alarms = []
    for sharp, well in zip(classified(2, 400.0, sharper=3.0), calm, strict=True):
        labels = replace(
            sharp,
            confidence=np.stack([sharp.confidence[0], well.confidence[1]]),
            right=np.stack([sharp.right[0], well.right[1]]),
            changed=np.ones(sharp.slices.size, bool),
        )
        rows = votes.take(labels)
        if rows is not None:
            found, learning = family.take(1, rows)
            finished(learning)
            alarms += [change.alarm for change in found]
    assert {(one.severity, one.stage, one.direction) for one in alarms} == {
        (Severity.TICKET, Stage.RAW, OVER)
    }
    # It is known now, and there is nothing that it could be a change of.
    family.acknowledge([CLASS_PROBABILITIES], "test")
    assert not family.evidence.shares[0, CHARTS_OF[Stage.RAW]].any()


def a_second(number: int) -> WatchedRows:
    """Ten frames of eight tracks of one dimension."""
    random = np.random.default_rng(number)
    z = np.tile(random.standard_normal(80), (2, 1, 1))
    return WatchedRows(
        slices=np.zeros(80, np.int64),
        nees=z[:, 0] ** 2,
        z=z,
        u=z,
        error=z,
        track=np.tile(np.arange(1, 9, dtype=np.uint64), 10) + np.uint64(number // 4 * 8),
        frame=np.repeat(np.arange(10), 8),
        stamp_ns=number * 10**9 + np.arange(10) * FRAME_NS,
        source=np.zeros(10, np.int64),
        changed=np.zeros(10, bool),
    )


def test_slices_of_classes_and_of_covariances_keep_to_themselves():
    """The same evidence as alone, but for the parts of time, which two sources share."""
    alone, both = family_of(), Family(WANTED)
    both.grow("car", [Dimension("x")])
    both.grow(CLASS_PROBABILITIES, [CONFIDENCE])
    votes, again = votes_of(), votes_of()
    for second, labels in enumerate(classified(5, 60.0, sharper=3.0)):
        finished(both.take(1, a_second(second))[1])
        rows, other = votes.take(labels), again.take(slices_of(labels, 1))
        if rows is not None and other is not None:
            finished(alone.take(1, rows)[1])
            finished(both.take(1, replace(other, source=~other.source))[1])
    assert both.slices[0].labelled == 4800 and both.slices[1].labelled == alone.slices[0].labelled
    assert both.slices[1].learners == [None, None]
    ours, theirs = (one.evidence.sums[row, :, :ABSOLUTE] for one, row in ((both, 1), (alone, 0)))
    ratio = ours[0] / theirs[0]
    assert ((ratio > 0.02) & (ratio < 1)).all()
    assert both.slices[0].fed == pytest.approx(54, abs=3)
    assert both.clock.driven == pytest.approx(60, abs=3)


def test_evidence_goes_on_over_a_restart_and_begins_anew_under_another_tolerance():
    family = family_of(replace(WANTED, hours_between_false_pages=1e9))
    fed(family, classified(4, 120.0, sharper=2.0))
    state = read_family(text_of(family))
    restored, changes = restored_family(state, family.settings, {}, "identity")
    restored.grow(CLASS_PROBABILITIES, [CONFIDENCE])
    assert changes == []
    assert_same(restored.evidence, family.evidence)
    assert [one.is_same(other) for one, other in zip(*references(restored, family), strict=True)]
    assert text_of(restored) == text_of(family)
    later = joined(list(classified(9, 60.0, sharper=2.0)))
    later = replace(later, stamp_ns=later.stamp_ns + 1200 * FRAME_NS)
    assert fed(restored, iter([later])) == fed(family, iter([later])) == []

    other = replace(family.settings, class_tolerance=3.0)
    restored, _ = restored_family(state, other, {}, "identity")
    restored.grow(CLASS_PROBABILITIES, [CONFIDENCE])
    assert not restored.evidence.sums.any()


def test_an_alarm_is_over_when_nothing_came_of_it_for_the_stated_hours_of_driving():
    family = family_of(replace(WANTED, calm_hours=0.05, hours_between_false_pages=0.1))
    fed(family, classified(1, 120.0, sharper=4.0))
    assert family.alarms.slices() == {CLASS_PROBABILITIES}
    later = (
        replace(labels, stamp_ns=labels.stamp_ns + 1200 * FRAME_NS)
        for labels in classified(2, 240.0)
    )
    assert [change.why for change in fed(family, later)] == [AlarmReason.CALM]


def references(*families: Family):
    return [[one.slices[0].reference(stage) for stage in Stage] for one in families]


def test_names_of_slices_tell_what_they_are_of():
    labels = {
        "total": "class probabilities",
        "total (2)": "class probabilities (2)",
        "front": "front, class probabilities",
        "overflow": "overflow, class probabilities",
    }
    assert {label: class_member(label) for label in labels} == labels
    assert all(map(is_of_classes, labels.values()))
    assert not any(map(is_of_classes, ("total", "car", "class", "Car, no covariance", "front")))
