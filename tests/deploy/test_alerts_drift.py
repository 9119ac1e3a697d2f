"""The alerts on drift, by promtool: an alarm of the sidecar is told at once and stays until it is
over; nothing else is told.
"""

import pytest

from monitor.drift.alarms import DriftState
from tests.deploy.alerting import DRIFT, Case, fires, says, series

pytestmark = pytest.mark.components

PAGE = "CalibrationDriftPage page slice=car"
TICKET = "CalibrationDriftTicket ticket slice=car"
OK, WARNING, ALARM, TOO_FEW = (int(state) for state in DriftState)


def state(values: str, severity="page", **labels: str) -> dict[str, str]:
    return series("drift_state", values, **{"slice": "car", "severity": severity, **labels})


def test_an_alarm_is_told_at_once_and_for_a_quarter_of_an_hour_after_it_is_over(tmp_path):
    cases = [
        Case(
            [state(f"{OK}x9 {ALARM}x9 {OK}x60", severity)],
            {"9m": [], "10m": [told], "19m": [told], "33m": [told], "36m": [], "1h": []},
            severity,
        )
        for severity, told in (("page", PAGE), ("ticket", TICKET))
    ]
    assert fires(tmp_path, DRIFT, *cases)


def scale(values: str, stage="recalibrated", **labels: str) -> dict[str, str]:
    return series("drift_scale_estimate", values, **{"slice": "car", "stage": stage, **labels})


def test_the_first_word_of_a_page_says_by_how_much_and_nothing_where_that_is_unknown(tmp_path):
    samples = [
        state(f"{ALARM}x9"),
        state(f"{ALARM}x9", slice="bus"),
        state(f"{ALARM}x9", "ticket"),
        scale("2.2x9"),
        scale("NaN 0.5x8", "raw"),
        scale(" ".join(["NaN"] * 10), slice="bus"),
    ]
    page = "standard deviations are 2.20 times too small"
    forwarded = "recalibrated: errors are 2.20 times what was predicted."
    raw = "raw: errors are 0.50 times what was predicted."
    first = {TICKET: f"{forwarded} "}
    later = {TICKET: f"{raw} {forwarded} "}
    assert says(tmp_path, DRIFT, "scale", samples, {"0m": first, "5m": later})
    alone = [samples[0], samples[3], samples[4]]
    assert says(tmp_path, DRIFT, "scale", alone, {"0m": {PAGE: page}, "5m": {PAGE: page}})
    unknown = [samples[1], samples[5]]
    bus = "CalibrationDriftPage page slice=bus"
    assert says(tmp_path, DRIFT, "scale", unknown, {"0m": {bus: ""}})


def test_an_alarm_of_a_moment_that_one_scrape_has_seen_is_told(tmp_path):
    samples = [state(f"{OK}x9 {ALARM} {OK}x60")]
    at: dict[str, list[str]] = {"9m": [], "10m": [PAGE], "20m": [PAGE], "40m": []}
    assert fires(tmp_path, DRIFT, Case(samples, at))


def test_no_other_state_is_told_however_long_and_whatever_the_evidence_was(tmp_path):
    def samples(harmless: int, severity: str) -> list[dict[str, str]]:
        return [
            state(f"{harmless}x120", severity),
            series("drift_log10_evidence", "5x120", slice="car", severity=severity),
            series("drift_log10_threshold", "3x120", severity=severity),
        ]

    cases = [
        Case(samples(harmless, severity), {"1m": [], "2h": []}, f"{severity} {harmless}")
        for harmless in (OK, WARNING, TOO_FEW)
        for severity in ("page", "ticket")
    ]
    assert fires(tmp_path, DRIFT, *cases)


def test_each_slice_and_vehicle_has_an_alert_of_its_own_and_so_have_all_slices_together(tmp_path):
    samples = [
        state(f"{ALARM}x20"),
        state(f"{ALARM}x20", slice="total"),
        state(f"{ALARM}x20", "ticket", slice="bus"),
        state(f"{OK}x20", slice="bus"),
        state(f"{ALARM}x20", instance="truck"),
    ]
    told = [
        PAGE,
        "CalibrationDriftPage page slice=total",
        "CalibrationDriftTicket ticket slice=bus",
        "CalibrationDriftPage page slice=car instance=truck",
    ]
    assert fires(tmp_path, DRIFT, Case(samples, {"10m": told}))


def test_an_alarm_outlives_scrapes_that_are_missed_and_a_restart(tmp_path):
    # The sidecar is gone for ten minutes and kept its alarm.
    samples = [state(f"{OK}x4 {ALARM}x5 stale _x9 {ALARM}x30")]
    at: dict[str, list[str]] = {"6m": [PAGE], "15m": [PAGE], "25m": [PAGE], "45m": [PAGE]}
    assert fires(tmp_path, DRIFT, Case(samples, at))


def test_an_alarm_of_a_vehicle_that_is_gone_ends(tmp_path):
    samples = [state(f"{OK}x4 {ALARM}x5 stale")]
    assert fires(tmp_path, DRIFT, Case(samples, {"20m": [PAGE], "30m": []}))


def test_counters_that_begin_anew_are_told_to_nobody(tmp_path):
    """Alarms are counted too; the rules do not look at the counter, which a restart sets back."""
    labels = {"stage": "raw", "detector": "track", "direction": "over"}
    samples = [state(f"{OK}x60"), series("drift_alarms_total", "0x9 1x9 0x30 4x9", **labels)]
    assert fires(tmp_path, DRIFT, Case(samples, {"15m": [], "30m": [], "55m": []}))


def test_where_drift_is_not_watched_nothing_is_told(tmp_path):
    samples = [series("frames_total", "0+600x60")]
    assert fires(tmp_path, DRIFT, Case(samples, {"1h": []}))
