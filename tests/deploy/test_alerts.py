"""The alerts on recalibrators, by promtool: each fires when it should, for whom, and not before."""

import pytest

from tests.deploy.alerting import RECALIBRATORS, Case, fires, series

pytestmark = pytest.mark.components


def test_a_candidate_that_is_proven_waits_until_it_is_promoted(tmp_path):
    evidence = [
        series("trial_log10_evidence", values, slice="car", state=state, direction=direction)
        for state, direction, values in (
            ("running", "better", "1+0.1x5 stale"),
            ("running", "worse", "-1x5 stale"),
            ("guard", "better", "3x20"),
            ("proven", "better", "_x5 2x4 stale"),
            ("proven", "worse", "_x5 -3x4 stale"),
        )
    ]
    waiting = "CalibrationCandidateWaits info slice=car state=proven direction=better"
    at: dict[str, list[str]] = {"4m": [], "8m": [waiting], "20m": []}
    assert fires(tmp_path, RECALIBRATORS, Case(evidence, at))


def test_three_tries_that_fail_within_an_hour_are_told_and_one_for_many_slices_is_not(tmp_path):
    failed = series("recalibrator_fits_total", "0x9 8x9 9x9 10x200", outcome="failed")
    other = series("recalibrator_fits_total", "0+1x200", outcome="candidate")
    told = "CalibrationFitsFail warning outcome=failed"
    at: dict[str, list[str]] = {"25m": [], "40m": [told], "2h": []}
    assert fires(tmp_path, RECALIBRATORS, Case([failed, other], at))


def test_two_tries_that_fail_before_a_restart_are_not_three(tmp_path):
    failed = series("recalibrator_fits_total", "0x9 1x9 2x9 _x2 0x50", outcome="failed")
    assert fires(tmp_path, RECALIBRATORS, Case([failed], {"35m": [], "50m": []}))


def test_tries_that_fail_on_both_sides_of_a_restart_are_added(tmp_path):
    failed = series("recalibrator_fits_total", "0x4 1x4 2x4 0x4 1x4 2x50", outcome="failed")
    told = "CalibrationFitsFail warning outcome=failed"
    assert fires(tmp_path, RECALIBRATORS, Case([failed], {"18m": [], "30m": [told]}))


def test_a_fault_that_is_compensated_for_ten_minutes_is_told(tmp_path):
    def samples(factor: str) -> list[dict[str, str]]:
        return [
            series("recalibration_factor", f"1x9 {factor}x30 1x20", slice="car", dimension="x"),
            series("recalibration_factor", "0.5x60", slice="car", dimension="y"),
            series("recalibration_factor", "2x60", slice="bus", dimension="x"),
            series("recalibration_factor", "1x20 9x8 1x40", slice="bus", dimension="y"),
        ]

    told = "CalibrationFaultCompensated warning slice=car dimension=x"
    at: dict[str, list[str]] = {"15m": [], "25m": [told], "50m": []}
    cases = [Case(samples(factor), at, factor) for factor in ("0.4", "2.5")]
    assert fires(tmp_path, RECALIBRATORS, *cases)


def test_a_sidecar_that_is_not_there_needs_no_recalibrator(tmp_path):
    assert fires(tmp_path, RECALIBRATORS, Case([], {"1h": []}))
