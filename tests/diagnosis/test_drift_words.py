"""What is said of alarms of drift, and of drift that nobody watches."""

from dataclasses import replace

import pytest

from monitor.commands.doctor.observation import Answer, Asked
from monitor.commands.doctor.rules import Area, Severity
from monitor.drift.alarms import DriftState, SliceStanding
from monitor.drift.bets import Direction, Stage
from monitor.drift.bets import Severity as Urgency
from monitor.drift.evidence import Scale
from tests.alarmed import alarm
from tests.diagnosis.observed import of, seen

drift = of(Area.DRIFT)
UNDER = alarm(
    "truck",
    severity=Urgency.TICKET,
    direction=Direction.UNDER,
    scale=Scale(0.5, 0.4, 0.6),
    tracks=0,
    since_ns=1_790_000_000 * 10**9,
)
RAW = alarm("total", severity=Urgency.TICKET, stage=Stage.RAW)


def standing(alarm=None, slice="car", state=DriftState.OK, severity=Urgency.PAGE):
    state = state if alarm is None else DriftState.ALARM
    severity = severity if alarm is None else alarm.severity
    return SliceStanding(slice, severity, state, 0.0, 0.0, 1000.0, alarm)


@pytest.mark.parametrize(
    ("alarm", "words", "why"),
    [
        (
            alarm(),
            "drift alarm, page: car, recalibrated overconfident: standard deviations 2.2 times "
            "too small (1.9 to 2.6) since 12.3 s, 7 tracks, 214 detections; evidence 1,030 h",
            "True detections fall out",
        ),
        (
            UNDER,
            "drift alarm, ticket: truck, recalibrated underconfident: standard deviations 2 times "
            "too large (1.7 to 2.5) since 2026-09-21 14:13:20.0, 214 detections; evidence",
            "gates are wide and take in clutter",
        ),
        (
            RAW,
            "drift alarm, ticket: all slices together, raw overconfident",
            "a recalibrator hides it",
        ),
    ],
)
def test_an_alarm_is_told_with_slice_size_and_beginning(alarm, words, why):
    (found,) = drift(seen(standings=(standing(alarm, alarm.slice),)))
    assert found.severity is Severity.WRONG
    assert words in found.what
    assert why in found.why
    assert "alarms acknowledge" in found.remedy


def test_pages_come_before_tickets():
    found = drift(seen(standings=(standing(UNDER, "truck"), standing(alarm()))))
    assert ["page:" in each.what for each in found] == [True, False]


def test_where_alarms_may_not_be_asked_for_the_metrics_tell_them():
    alarmed = {"calibration_drift_state{slice=car,severity=ticket}": 2.0}
    refused = seen(alarmed, drift=Asked(Answer.NO_TOKEN, "no token"))
    (found,) = drift(refused)
    assert found.severity is Severity.WRONG
    assert "drift alarm, ticket: car" in found.what
    assert "#calibrationdriftticket" in found.remedy


def test_truth_without_a_watch_is_a_remark():
    whole = seen()
    assert whole.last.samples is not None
    families = {
        name: rows for name, rows in whole.last.samples.families.items() if "_drift_" not in name
    }
    last = replace(whole.last, samples=replace(whole.last.samples, families=families))
    (found,) = drift(replace(whole, last=last))
    assert found.severity is Severity.REMARK
    assert "nothing watches for drift" in found.what


@pytest.mark.parametrize(
    ("value", "told"), [(2.5, True), (0.4, True), (1.9, False), (float("nan"), False)]
)
def test_measures_that_are_far_off_without_an_alarm_are_a_remark(value, told):
    name = "calibration_nees_ratio{slice=car,stage=recalibrated,dimension=joint}"
    (found,) = drift(seen({name: value}))
    assert (found.severity is Severity.REMARK) == told
    if told:
        assert f"far from 1 since the start: car {value:g}" in found.what


def test_detections_in_the_overflow_slice_are_a_remark():
    (found,) = drift(seen({"calibration_overflow_detections_total": 12.0}))
    assert found.severity is Severity.REMARK
    assert "12 detections with truth are in the overflow slice" in found.what


@pytest.mark.parametrize(
    ("standings", "words"),
    [
        ((standing(), standing(slice="total")), "no alarm, 1 slice watched"),
        ((standing(state=DriftState.TOO_FEW),), "no alarm: too little truth so far to tell"),
        ((standing(state=DriftState.WARNING),), "1 slice watched; 1 at a tenth of one"),
    ],
)
def test_without_an_alarm_it_says_how_much_is_watched(standings, words):
    (found,) = drift(seen(standings=standings))
    assert found.severity is Severity.WELL
    assert words in found.what
