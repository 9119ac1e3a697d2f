"""Alarms of a family: what they say, in fields and in a sentence, how long they stay, and what is
learned meanwhile.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from monitor.drift.alarms import (
    AlarmChange,
    AlarmReason,
    alarm_sentence,
    change_sentence,
    error_of,
    hours,
    moment,
)
from monitor.drift.charts import (
    DETECTORS,
    Detector,
    Direction,
    Origin,
    Quantity,
    Scale,
    Severity,
    Stage,
)
from monitor.drift.evidence import NO_REFERENCE, OF_FEW_TRACKS, WITH_TRACKS, DriftSettings, Shares
from monitor.drift.family import Family
from tests.alarmed import alarm
from tests.drift.drives import (
    SECOND,
    Frame,
    K,
    drive,
    exact_reference,
    family_of,
    fed,
    from_ten,
)

STAYS = DriftSettings(calm_hours=0.0)
NAMES = ("car", "van")
FAULT, SMALL = from_ten(5.0), from_ten(0.2)


def known() -> Family:
    return family_of(STAYS, reference=exact_reference())


def raised(changes, severity=None):
    found = [one.alarm for one in changes if one.why is AlarmReason.RAISED]
    return [one for one in found if severity in (None, one.severity)]


def whys(changes):
    return [one.why for one in changes]


@pytest.mark.parametrize("tracked", [True, False])
def test_covariances_that_shrink_to_a_fifth_are_a_page_that_says_since_when(tracked):
    family = family_of(STAYS, reference=exact_reference(tracks=tracked))
    (alarm,) = raised(fed(family, drive(30, made=FAULT, tracked=tracked)))
    assert (alarm.slice, alarm.severity, alarm.stage) == ("car", Severity.PAGE, Stage.RECALIBRATED)
    assert alarm.direction is Direction.OVER
    assert alarm.detector in (Detector.RELATIVE, Detector.TRACK)
    assert alarm.evidence >= alarm.threshold == 1000.0
    assert 10 * SECOND <= alarm.event_ns <= 14 * SECOND
    assert abs(alarm.since_ns - 10 * SECOND) <= 2 * SECOND
    assert alarm.detections >= 8
    assert (alarm.tracks > 0) == tracked
    # What came in a chunk after it may be in the hours driven, and in no detections.
    assert alarm.labelled == 8 * (alarm.event_ns // (SECOND // 10) + 1)
    assert alarm.driven == pytest.approx(alarm.event_ns / SECOND / 3600, abs=1 / 3600)


def test_covariances_that_grow_to_five_times_are_a_ticket_and_a_healthy_drive_raises_nothing():
    (alarm,) = raised(fed(known(), drive(40, 1, made=SMALL)))
    assert (alarm.severity, alarm.direction) == (Severity.TICKET, Direction.UNDER)
    assert alarm.stage is Stage.RECALIBRATED
    assert abs(alarm.since_ns - 10 * SECOND) <= 2 * SECOND
    # Of 95 in a hundred; here nearly.
    assert alarm.scale.lower / 1.1 <= math.sqrt(0.2) <= alarm.scale.upper * 1.1
    family = known()
    assert fed(family, drive(120, 1), 32) == []
    assert family.peak.max() < 1.0


@pytest.mark.parametrize("changed", [True, False])
def test_a_fault_that_a_recalibrator_compensates_is_a_raw_ticket_and_unwatched_without_one(changed):
    found = raised(fed(known(), drive(40, raw=FAULT, changed=changed)))
    what = [(one.severity, one.stage, one.direction) for one in found]
    assert what == [(Severity.TICKET, Stage.RAW, Direction.OVER)] * changed
    for one in found:
        assert one.scale.lower <= math.sqrt(5) <= one.scale.upper


def test_an_alarm_that_stays_is_told_once_and_raised_again_after_it_was_acknowledged():
    family = known()
    assert whys(fed(family, drive(60, made=FAULT))) == [AlarmReason.RAISED]
    assert list(family.alarms.counts.values()) == [1]
    assert family.alarms.latched["car", Severity.PAGE, Stage.RECALIBRATED].since_s > 50
    (over,) = family.acknowledge((), "anna")
    assert (over.why, over.actor, over.alarm.slice) == (AlarmReason.ACKNOWLEDGED, "anna", "car")
    assert family.acknowledge((), "anna") == []
    assert family.evidence.peak[0, 0] == 0
    again = fed(family, drive(20, 1, made=FAULT, begin=60.0))
    assert whys(again) == [AlarmReason.RAISED]


def test_calm_ends_an_alarm_after_the_stated_time_of_driving_and_not_before():
    wanted = replace(STAYS, calm_hours=30 / 3600)
    family = family_of(wanted, reference=exact_reference())
    (page,) = raised(fed(family, drive(16, made=FAULT)))
    last = family.alarms.latched["car", Severity.PAGE, Stage.RECALIBRATED].since_s
    assert fed(family, drive(last + 29 - 16, 1, begin=16.0)) == []
    (over,) = fed(family, drive(4, 2, begin=last + 29))
    assert (over.why, over.alarm) == (AlarmReason.CALM, page)
    assert family.evidence.peak[0, 0] == pytest.approx(0, abs=1)


def test_a_new_epoch_ends_what_is_known_of_forwarded_estimates_and_keeps_that_of_raw_ones():
    family = family_of(STAYS, NAMES, exact_reference())
    changes = fed(family, drive(40, slices=(0, 1), made=FAULT, raw=SMALL, changed=True))
    assert {one.stage for one in raised(changes)} == set(Stage)
    before = family.evidence.sums.copy()
    over = family.new_epoch([1])
    assert set(whys(over)) == {AlarmReason.NEW_EPOCH}
    assert {(one.alarm.slice, one.alarm.stage) for one in over} == {("van", Stage.RECALIBRATED)}
    left = {(one.alarm.slice, one.alarm.stage) for one in family.alarms.latched.values()}
    assert left == {("car", Stage.RECALIBRATED), ("car", Stage.RAW), ("van", Stage.RAW)}
    assert [(one.epoch, one.labelled) for one in family.slices] == [(0, 3200), (1, 0)]
    assert family.evidence.sums[1, :2].max() == 0 < before[1, 2:].max()
    assert family.evidence.sums[0].tolist() == before[0].tolist()
    assert family.evidence.sums[1, 2:].tolist() == before[1, 2:].tolist()


LEARNS = replace(STAYS, reference_tracks=12, reference_detections=600, reference_seconds=0.0)


def shares_by_chart(family: Family) -> list[Shares]:
    """Shares of the first slice that are not 0."""
    known = [dict(zip(DETECTORS, row.tolist(), strict=True)) for row in family.evidence.shares[0]]
    return [{one: share for one, share in row.items() if share} for row in known]


@pytest.mark.parametrize(("tracks", "known"), [(12, OF_FEW_TRACKS), (30, WITH_TRACKS)])
def test_shares_go_to_what_is_known_once_a_reference_is_learned(tracks, known):
    family = family_of(replace(LEARNS, reference_tracks=tracks))
    assert shares_by_chart(family)[::2] == [pytest.approx(NO_REFERENCE)] * 2
    fed(family, drive(20))
    assert [family.slices[0].reference(stage).origin for stage in Stage] == [Origin.LEARNED] * 2
    # Of fewer than thirty tracks: what is shipped is watched beside them.
    assert shares_by_chart(family)[::2] == [pytest.approx(known)] * 2
    # No tail and no bias makes errors too small.
    for shares in shares_by_chart(family)[1::2]:
        assert {*known} - {*shares} == {Detector.TAIL, Detector.BIAS}
        assert sum(shares.values()) == pytest.approx(sum(known.values()))
    family.new_epoch([0])
    assert shares_by_chart(family)[::2] == [pytest.approx(NO_REFERENCE), pytest.approx(known)]


def test_nothing_is_learned_of_a_slice_with_an_alarm():
    family = family_of(replace(LEARNS, reference_detections=1200))
    # Learning from 0 s on; the alarm comes before there is enough of it.
    changes = fed(family, drive(40, made=lambda _: 8.0))
    assert raised(changes, Severity.PAGE)[0].event_ns < 15 * SECOND
    learner = family.slices[0].learners[Stage.RECALIBRATED]
    assert learner is not None
    assert learner.detections == 0
    assert family.slices[0].reference(Stage.RECALIBRATED).origin is Origin.SHIPPED
    family.acknowledge((), "anna")
    fed(family, drive(40, 1, begin=40.0))
    assert family.slices[0].reference(Stage.RECALIBRATED).nees_ratio == pytest.approx(1, abs=0.2)


def parked(odd: int, seconds: int = 40) -> list[Frame]:
    """Twelve objects that stay; of so many errors are thirty times too large."""
    random = np.random.default_rng(3)
    factor = np.where(np.arange(12) < odd, 30.0, 1.0)
    return [
        (0, at * SECOND // 10, False, [(1 + i, 0, e, e) for i, e in enumerate(errors.tolist())])
        for at, errors in enumerate(random.chisquare(K, (10 * seconds, 12)) * factor)
    ]


def test_one_odd_object_raises_no_alarm_and_two_do():
    alone = replace(STAYS, fewest_tracks=1)
    assert raised(fed(family_of(alone, reference=exact_reference()), parked(1)), Severity.PAGE)
    assert fed(known(), parked(1)) == []
    assert raised(fed(known(), parked(2)), Severity.PAGE)


def test_what_a_recalibrator_compensates_is_a_ticket_until_somebody_knows():
    family = family_of(STAYS)
    (ticket,) = raised(fed(family, drive(60, raw=lambda _: 3.0, changed=True)))
    assert (ticket.stage, ticket.direction) == (Stage.RAW, Direction.OVER)
    family.acknowledge((), "anna")
    known = drive(120, 1, raw=lambda _: 3.0, changed=True, begin=60.0)
    assert fed(family, known, 32) == []
    # Of raw estimates is learned what they are now; a change of that is news.
    assert family.slices[0].reference(Stage.RAW).origin is Origin.LEARNED
    worse = drive(40, 2, raw=lambda _: 15.0, changed=True, begin=180.0)
    more = raised(fed(family, worse, 32))
    assert [(one.stage, one.direction) for one in more] == [(Stage.RAW, Direction.OVER)]


SENTENCE = (
    "page: car, overconfident as forwarded: standard deviations 2.2 times too small (1.9 to 2.6) "
    "since 12.3 s, 7 tracks, 214 detections; raised on evidence that healthy driving gives once in "
    "1,030 h at most (threshold 1,000 h, drift detector track)"
)
MEANT = "slices that may be meant as well"


def test_a_ticket_for_covariances_that_are_too_large_says_by_which_factor():
    ticket = alarm(
        "total",
        severity=Severity.TICKET,
        stage=Stage.RAW,
        direction=Direction.UNDER,
        detector=Detector.ABSOLUTE,
        scale=Scale(0.5, 0.4, 0.625),
        evidence=2.5e9,
    )
    assert alarm_sentence(ticket) == (
        "ticket: all slices together, underconfident as sent: standard deviations 2 times too "
        "large (1.6 to 2.5) since 12.3 s, 7 tracks, 214 detections; raised on evidence that "
        "healthy driving gives once in 10^9.4 h at most (threshold 1,000 h, drift detector "
        "absolute)"
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tracks": 0}, "since 12.3 s, 214 detections;"),
        ({"tracks": 1, "detections": 1}, "since 12.3 s, 1 track, 1 detection;"),
        ({"tracks": 1200, "detections": 34567}, "1,200 tracks, 34,567 detections;"),
        *(
            ({"scale": Scale(one, 1.0, 2.0)}, "standard deviations off by an unknown factor since")
            for one in (math.nan, 0.0, -1.0, math.inf)
        ),
        ({"scale": Scale(2.2, math.nan, math.nan)}, "2.2 times too small since"),
        ({"scale": Scale(1.1, 0.9, 1.3)}, "1.1 times too small (0.9 to 1.3) since"),
        ({"scale": Scale(31.6, 9.4, 123.4)}, "32 times too small (9.4 to 123) since"),
    ],
)
def test_the_sentence_says_only_what_is_known(changes: dict[str, Any], words: str):
    assert words in alarm_sentence(alarm(**changes))


X = {"dimension": "x", "unit": "m"}


@pytest.mark.parametrize(
    ("quantity", "size", "fields", "words"),
    [
        (Quantity.SCALE, 2.2, {}, "standard deviations 2.2 times too small (1.9 to 2.6)"),
        (Quantity.SCALE, 3.1, X, "x: standard deviations 3.1 times too small"),
        (Quantity.SCALE, 0.5, X, "x: standard deviations 2 times too large"),
        (Quantity.BIAS, 0.312, X, "x off by +0.31 m (true − reported)"),
        (Quantity.BIAS, -12.6, {"dimension": "w"}, "w off by −13 (true − reported)"),
        (
            *(Quantity.CORRELATION, 1.8, {"dimension": "y"}),
            "y given the dimensions before it: σ 1.8 times too small, the stated correlation is "
            "not there",
        ),
        (
            *(Quantity.CORRELATION, 0.5, {"dimension": "y", "direction": Direction.UNDER}),
            "y given the dimensions before it: σ 2 times too large, the stated correlation is less "
            "than the true one",
        ),
        (Quantity.TAIL, 0.08, {}, "8 % of detections outside what the covariance allows"),
        (Quantity.TAIL, 0.004, X, "0.4 % of detections outside what the covariance of x allows"),
        (Quantity.CONFIDENCE, -0.22, {}, "accuracy 22 points below the stated confidence"),
        (Quantity.CONFIDENCE, 0.041, {}, "accuracy 4.1 points above the stated confidence"),
        (Quantity.SCALE, math.nan, X, "x: standard deviations off by an unknown factor"),
        (Quantity.BIAS, math.nan, X, "x off by an unknown amount"),
        (
            *(Quantity.CORRELATION, math.nan, X),
            "x given the dimensions before it: σ is wrong, the stated correlation is not there",
        ),
        (
            *(Quantity.TAIL, math.nan, {}),
            "an unknown share of detections outside what the covariance allows",
        ),
        (
            *(Quantity.CONFIDENCE, math.nan, {}),
            "accuracy an unknown number of points below the stated confidence",
        ),
    ],
)
def test_each_quantity_has_a_clause_that_says_what_is_wrong_and_by_how_much(
    quantity: Quantity, size: float, fields: dict[str, Any], words: str
):
    found = alarm(quantity=quantity, size=size, **fields)
    assert error_of(found) == words
    under = fields.get("direction") is Direction.UNDER
    how = "biased" if quantity is Quantity.BIAS else f"{'under' if under else 'over'}confident"
    said = f"page: car, {how} as forwarded: {words} since 12.3 s, 7 tracks, 214 detections; raised"
    assert alarm_sentence(found).startswith(said)


def test_the_scale_of_all_dimensions_is_told_in_other_words_or_without_its_interval():
    text = "σ {way} by {factor}"
    assert error_of(alarm(), text, "–") == "σ too small by 2.2 (1.9–2.6)"
    assert error_of(alarm(), text, interval=False) == "σ too small by 2.2"
    assert error_of(alarm(size=3.1, **X), text, "–") == "x: σ too small by 3.1"
    unknown = Scale(math.nan, math.nan, math.nan)
    assert error_of(alarm(scale=unknown), unknown="-") == "-"


@pytest.mark.parametrize(
    ("why", "concerned", "words"),
    [
        (AlarmReason.RAISED, (), f"raised: {SENTENCE}"),
        (AlarmReason.RAISED, ("van", "bus"), f"raised: {SENTENCE}; {MEANT}: van, bus"),
        (AlarmReason.ACKNOWLEDGED, (), f"over, acknowledged by anna: {SENTENCE}"),
        (AlarmReason.NEW_EPOCH, (), f"over, another recalibrator serves the slice: {SENTENCE}"),
        (AlarmReason.CALM, (), f"over, nothing came of it: {SENTENCE}"),
    ],
)
def test_a_change_says_what_became_of_the_alarm(why, concerned, words):
    assert change_sentence(AlarmChange(why, alarm(), concerned, actor="anna")) == words


def test_hours_and_moments_are_told_in_few_digits():
    values = (0.0, 1e-300, 0.00123, 99.5, 1030.4, 999_999.0, 1e6, math.inf)
    words = ["0 h", "10^-300.0 h", "0.00123 h", "99.5 h", "1,030 h", "999,999 h"]
    assert [hours(one) for one in values] == [*words, "10^6.0 h", "10^inf h"]
    # A clock from a start is told in seconds, a wall clock by its date.
    times = (0, 12_349_000_000, -1_500_000_000, 3_600 * SECOND, 1_750_000_000_987_654_321)
    told = ["0.0 s", "12.3 s", "-1.5 s", "3,600.0 s", "2025-06-15 15:06:40.9"]
    assert [moment(one) for one in times] == told
