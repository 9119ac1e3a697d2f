"""An alarm in a sentence: what is wrong, by how much, since when, and how sure that is."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.drift.alarms import (
    AlarmChange,
    AlarmReason,
    alarm_sentence,
    change_sentence,
    hours,
    moment,
    power_of_ten,
    size_of_error,
)
from monitor.drift.bets import Detector, Direction, Severity, Stage
from monitor.drift.evidence import Scale
from tests.alarmed import UNKNOWN, alarm

SENTENCE = (
    "page: car, recalibrated overconfident: standard deviations 2.2 times too small (1.9 to 2.6) "
    "since 12.3 s, 7 tracks, 214 detections; evidence 1,030 h of 1,000 h, by track"
)


def test_an_alarm_is_one_sentence():
    assert alarm_sentence(alarm()) == SENTENCE


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
        "ticket: all slices together, raw underconfident: standard deviations 2 times too large "
        "(1.6 to 2.5) since 12.3 s, 7 tracks, 214 detections; evidence 10^9.4 h of 1,000 h, "
        "by absolute"
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tracks": 0}, "since 12.3 s, 214 detections;"),
        ({"tracks": 1, "detections": 1}, "since 12.3 s, 1 track, 1 detection;"),
        ({"tracks": 1200, "detections": 34567}, "1,200 tracks, 34,567 detections;"),
        ({"scale": UNKNOWN}, "standard deviations off by an unknown factor since"),
        ({"scale": Scale(2.2, math.nan, math.nan)}, "2.2 times too small since"),
        ({"scale": Scale(1.1, 0.9, 1.3)}, "1.1 times too small (0.9 to 1.3) since"),
        ({"scale": Scale(31.6, 9.4, 123.4)}, "32 times too small (9.4 to 123) since"),
        ({"since_ns": 1_750_000_000_000_000_000}, "since 2025-06-15 15:06:40.0, 7 tracks"),
    ],
)
def test_the_sentence_says_only_what_is_known(changes: dict[str, Any], words: str):
    assert words in alarm_sentence(alarm(**changes))


@pytest.mark.parametrize(
    ("why", "words"),
    [
        (AlarmReason.RAISED, f"raised: {SENTENCE}"),
        (AlarmReason.ACKNOWLEDGED, f"over, acknowledged by anna: {SENTENCE}"),
        (AlarmReason.NEW_EPOCH, f"over, another recalibrator serves the slice: {SENTENCE}"),
        (AlarmReason.CALM, f"over, nothing came of it: {SENTENCE}"),
    ],
)
def test_a_change_says_what_became_of_the_alarm(why, words):
    assert change_sentence(AlarmChange(why, alarm(), actor="anna")) == words


def test_a_raised_alarm_names_the_slices_that_may_be_meant_as_well():
    said = change_sentence(AlarmChange(AlarmReason.RAISED, alarm(), ("truck", "bus")))
    assert said == f"raised: {SENTENCE}; slices that may be meant as well: truck, bus"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.0, "0 h"),
        (1e-300, "10^-300.0 h"),
        (0.00123, "0.00123 h"),
        (0.25, "0.25 h"),
        (99.5, "99.5 h"),
        (1030.4, "1,030 h"),
        (999_999.0, "999,999 h"),
        (1e6, "10^6.0 h"),
        (math.inf, "10^inf h"),
    ],
)
def test_hours_are_told_in_few_digits(value, words):
    assert hours(value) == words


def test_nothing_has_no_power_of_ten():
    assert (power_of_ten(0.0), power_of_ten(1000.0)) == ("-∞", "3.0")


@pytest.mark.parametrize(
    ("time_ns", "words"),
    [
        (0, "0.0 s"),
        (12_349_000_000, "12.3 s"),
        (-1_500_000_000, "-1.5 s"),
        (3_600_000_000_000, "3,600.0 s"),
        (1_750_000_000_987_654_321, "2025-06-15 15:06:40.9"),
    ],
)
def test_a_clock_from_a_start_is_told_in_seconds_and_a_wall_clock_by_its_date(time_ns, words):
    assert moment(time_ns) == words


@given(st.lists(st.floats(1e-3, 1e3), min_size=3, max_size=3).map(sorted))
def test_a_scale_and_its_inverse_are_one_factor_in_two_directions(ordered):
    lower, estimate, upper = ordered
    error = size_of_error(Scale(estimate, lower, upper))
    mirrored = size_of_error(Scale(1 / estimate, 1 / upper, 1 / lower))
    assert error is not None and mirrored is not None
    assert number(error.factor) >= 1
    if estimate != 1:
        assert {error.way, mirrored.way} == {"too small", "too large"}
        both = (error.factor, *error.interval), (mirrored.factor, *mirrored.interval)
        for one, other in zip(*both, strict=True):
            # Two digits, of numbers that may round apart.
            assert number(one) == pytest.approx(number(other), rel=0.1)


def number(text: str) -> float:
    return float(text.replace(",", ""))


@pytest.mark.parametrize("estimate", [math.nan, 0.0, -1.0, math.inf])
def test_an_estimate_that_is_no_factor_is_unknown(estimate):
    assert size_of_error(Scale(estimate, 1.0, 2.0)) is None
