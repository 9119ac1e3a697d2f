"""What Prometheus sees of drift: closed labels, no series twice, counters that begin at zero."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from monitor.drift.alarms import AlarmCount, Counted, DriftReading, DriftState, SliceStanding
from monitor.drift.bets import CHARTS, DETECTORS, Detector, Direction, Severity, Stage
from monitor.drift.evidence import Scale
from monitor.drift.reference import Origin
from monitor.service.slice_metrics import LEAST_EVIDENCE, drift
from tests import exported
from tests.alarmed import alarm
from tests.deploy.scraping import promtool
from tests.served import Sidecar

SLICES = ("car", 'a "quoted" \\ one')
FULL = exported.watched(*SLICES)
STANDING = SliceStanding("car", Severity.PAGE, DriftState.OK, 5.0, 100.0, 1000.0, None)
RAW, FORWARDED = FULL.stages[:2]
COUNT = AlarmCount(Stage.RECALIBRATED, Detector.TRACK, Direction.OVER, 3)
# All that there are, by their labels.
COUNTED = {
    (detector, chart.direction, chart.stage.label) for chart in CHARTS for detector in DETECTORS
}

Key = tuple[str, tuple[str, ...]]


def samples(reading: DriftReading) -> dict[Key, float]:
    """By name, without the prefix, and the values of the labels, in the order of their names."""
    found: dict[Key, float] = {}
    for family in text_string_to_metric_families("".join(drift(reading))):
        for sample in family.samples:
            labels = tuple(sample.labels[name] for name in sorted(sample.labels))
            key = sample.name.removeprefix("calibration_"), labels
            assert key not in found, f"{key} is written twice"
            found[key] = sample.value
    return found


def test_before_any_slice_is_known_the_counters_of_the_whole_are_there_at_zero():
    names = ("drift_driving_seconds_total", "drift_epochs_total")
    whole = {(name, ()) for name in names}
    alarms = {("drift_alarms_total", labels) for labels in COUNTED}
    assert samples(DriftReading()) == dict.fromkeys(whole | alarms, 0.0)


def test_evidence_is_shown_at_its_peak_and_beside_it_what_an_alarm_needs():
    ticket = replace(STANDING, severity=Severity.TICKET, peak=0.01, threshold=10.0)
    total = replace(STANDING, slice="total", peak=1e4)
    found = samples(DriftReading(standings=(STANDING, ticket, total)))
    assert found["drift_log10_evidence", ("page", "car")] == 2.0
    assert found["drift_log10_evidence", ("ticket", "car")] == -2.0
    assert found["drift_log10_evidence", ("page", "total")] == 4.0
    assert found["drift_log10_threshold", ("page",)] == pytest.approx(3.0)
    assert found["drift_log10_threshold", ("ticket",)] == 1.0


@pytest.mark.parametrize(
    ("peak", "shown"),
    [(0.0, -9.0), (LEAST_EVIDENCE / 10, -9.0), (math.inf, math.inf), (math.nan, math.nan)],
)
def test_no_evidence_is_a_floor_and_what_is_unknown_is_not_made_up(peak, shown):
    found = samples(DriftReading(standings=(replace(STANDING, peak=peak),)))
    assert found["drift_log10_evidence", ("page", "car")] == pytest.approx(shown, nan_ok=True)


@given(st.floats(LEAST_EVIDENCE, 1e300), st.floats(LEAST_EVIDENCE, 1e300))
def test_more_evidence_never_reads_less(one, other):
    standings = (replace(STANDING, peak=one), replace(STANDING, slice="bus", peak=other))
    found = samples(DriftReading(standings=standings))
    car, bus = (found["drift_log10_evidence", ("page", name)] for name in ("car", "bus"))
    assert (car >= bus) if one >= other else (car <= bus)


@pytest.mark.parametrize(
    ("state", "number"),
    [
        (DriftState.OK, 0),
        (DriftState.WARNING, 1),
        (DriftState.ALARM, 2),
        (DriftState.TOO_FEW, 3),
    ],
)
def test_the_state_is_the_number_that_the_alert_rules_compare(state, number):
    found = samples(DriftReading(standings=(replace(STANDING, state=state),)))
    assert found["drift_state", ("page", "car")] == number


def alarms(*counts: AlarmCount) -> dict[tuple[str, ...], float]:
    """Those that are not 0; the others are there."""
    found = samples(DriftReading(counts=counts))
    shown = {labels: n for (name, labels), n in found.items() if name == "drift_alarms_total"}
    assert shown.keys() == COUNTED
    return {labels: n for labels, n in shown.items() if n}


def test_alarms_are_counted_by_what_was_found_and_what_they_rest_on():
    under = replace(COUNT, stage=Stage.RAW, detector=Detector.ABSOLUTE, direction=Direction.UNDER)
    assert alarms(COUNT) == {("track", "over", "recalibrated"): 3.0}
    assert alarms(COUNT, under) == {
        ("track", "over", "recalibrated"): 3.0,
        ("absolute", "under", "raw"): 3.0,
    }


def test_the_scale_is_shown_of_both_stages_and_what_it_rests_on_as_forwarded():
    found = samples(DriftReading(stages=(RAW, FORWARDED)))
    assert found == samples(DriftReading()) | {
        ("drift_scale_estimate", ("car", "raw")): 0.25,
        ("drift_scale_estimate", ("car", "recalibrated")): 0.5,
        ("drift_effective_sample_ratio", ("car",)): 0.5,
        ("drift_reference_tracks", ("learned", "car", "track-second")): 30.0,
    }


def test_of_a_slice_of_which_nothing_is_known_yet_the_scale_is_unknown_and_the_reference_shipped():
    fresh = replace(
        FORWARDED,
        scale=Scale(math.nan, math.nan, math.nan),
        reference=Origin.SHIPPED,
        reference_tracks=0,
        unit=Counted.DETECTION,
    )
    found = samples(DriftReading(stages=(fresh,)))
    assert math.isnan(found["drift_scale_estimate", ("car", "recalibrated")])
    assert found["drift_reference_tracks", ("shipped", "car", "detection")] == 0.0


def latched(severity: Severity, estimate: float, slice="car", stage=FORWARDED.stage):
    """A standing with an alarm of this scale."""
    scale = Scale(estimate, estimate / 2, 2 * estimate)
    stays = alarm(slice, severity=severity, stage=stage, scale=scale)
    return replace(STANDING, slice=slice, severity=severity, state=DriftState.ALARM, alarm=stays)


def scales(reading: DriftReading) -> dict[tuple[str, ...], float]:
    found = samples(reading)
    return {labels: n for (name, labels), n in found.items() if name == "drift_scale_estimate"}


def test_as_long_as_an_alarm_stays_its_scale_is_shown_whatever_has_come_since():
    unknown = replace(FORWARDED, scale=Scale(math.nan, math.nan, math.nan))
    standings = (latched(Severity.PAGE, 2.2),)
    for stage in (FORWARDED, unknown):
        found = scales(DriftReading(standings=standings, stages=(RAW, stage)))
        assert found == {("car", "raw"): 0.25, ("car", "recalibrated"): 2.2}


def test_the_scale_of_a_page_is_shown_before_that_of_a_ticket():
    standings = (latched(Severity.PAGE, 2.2), latched(Severity.TICKET, 0.4))
    for order in (standings, standings[::-1]):
        assert scales(DriftReading(standings=order)) == {("car", "recalibrated"): 2.2}


def test_an_alarm_of_a_slice_of_which_nothing_has_come_yet_and_of_all_slices_has_its_scale():
    standings = (
        latched(Severity.PAGE, 2.2, "total"),
        latched(Severity.TICKET, 0.4, "bus", Stage.RAW),
    )
    found = scales(DriftReading(standings=standings, stages=(FORWARDED,)))
    assert found == {
        ("car", "recalibrated"): 0.5,
        ("total", "recalibrated"): 2.2,
        ("bus", "raw"): 0.4,
    }


def test_driving_is_in_seconds_and_what_was_left_out_goes_by_why():
    found = samples(FULL)
    assert found["drift_driving_seconds_total", ()] == 5400.0
    assert found["drift_left_out_total", ("overload",)] == 7.0
    assert found["drift_left_out_total", ("late",)] == 0.0
    assert found["drift_epochs_total", ()] == sum(epoch for _, epoch in FULL.epochs)


@pytest.mark.parametrize(("name", "series"), [("car", 8), (SLICES[1], 8), ("total", 4)])
def test_a_slice_has_eight_series_and_all_of_them_together_have_four(name, series):
    assert sum(name in labels for _, labels in samples(FULL)) == series


@pytest.mark.components
def test_promtool_finds_nothing_to_complain_about():
    text = exported.text_of(exported.snapshot(drift=FULL))
    assert "calibration_drift_" in text
    assert promtool("check", "metrics", given=text) == ""


def test_where_nobody_watches_there_are_no_families_of_drift():
    assert "calibration_drift_" not in exported.text_of(exported.snapshot())


@pytest.mark.parametrize("watch", ["true", "false"])
def test_a_sidecar_exports_drift_where_it_watches(tmp_path, watch):
    sidecar = Sidecar(tmp_path, f'[drift]\nwatch = {watch}\npath = ""\n')
    try:
        text = sidecar.get("/metrics")
    finally:
        sidecar.end()
    assert ("calibration_drift_" in text) == (watch == "true")


def test_a_watch_that_has_seen_nothing_has_its_families_nevertheless():
    text = exported.text_of(exported.snapshot(drift=DriftReading()))
    assert "\ncalibration_drift_driving_seconds_total 0.0" in text
