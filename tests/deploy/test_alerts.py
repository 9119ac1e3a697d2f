"""The alerts on recalibrators, by promtool: each fires when it should, for whom, and not before."""

import json
import re
from pathlib import Path

import pytest

from monitor.cli import build_parser
from tests.deploy.scraping import promtool
from tests.golden.test_golden import exposition

ALERTS = Path(__file__).parents[2] / "deploy" / "prometheus" / "alert_rules.yml"
NAMES = ("CalibrationCandidateWaits", "CalibrationFitsFail", "CalibrationFaultCompensated")


def series(name: str, values: str, **labels: str) -> dict[str, str]:
    pairs = ",".join(f'{key}="{value}"' for key, value in {"instance": "van", **labels}.items())
    return {"series": f"calibration_{name}{{{pairs}}}", "values": values}


def firing(folder: Path, samples: list[dict[str, str]], at: dict[str, list[str]]) -> str:
    """What promtool says: at each time these and no other alerts fire, as `name slice`."""
    tests = [
        {
            "eval_time": time,
            "alertname": name,
            "exp_alerts": [
                {"exp_labels": labels}
                for labels in (expected(alert) for alert in alerts)
                if labels.pop("alertname") == name
            ],
        }
        for time, alerts in at.items()
        for name in NAMES
    ]
    # Words of an alert are compared too: the rules under test are the same without.
    rules = folder / "alerts.yml"
    text = ALERTS.read_text("utf-8")
    rules.write_text(re.sub(r"        annotations:\n(          .*\n|            .*\n)+", "", text))
    file = folder / "alerts_test.yml"
    content = {
        "rule_files": [str(rules)],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": samples, "alert_rule_test": tests}],
    }
    file.write_text(json.dumps(content))
    return promtool("test", "rules", str(file))


def expected(alert: str) -> dict[str, str]:
    """The labels of an alert that is given as its name, severity, and further ones."""
    name, severity, *others = alert.split()
    further = dict(pair.split("=") for pair in others)
    return {"alertname": name, "severity": severity, "instance": "van", **further}


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
    assert "SUCCESS" in firing(tmp_path, evidence, {"4m": [], "8m": [waiting], "20m": []})


def test_three_tries_that_fail_within_an_hour_are_told_and_one_for_many_slices_is_not(tmp_path):
    failed = series("recalibrator_fits_total", "0x9 8x9 9x9 10x200", outcome="failed")
    other = series("recalibrator_fits_total", "0+1x200", outcome="candidate")
    told = "CalibrationFitsFail warning outcome=failed"
    at: dict[str, list[str]] = {"25m": [], "40m": [told], "2h": []}
    assert "SUCCESS" in firing(tmp_path, [failed, other], at)


@pytest.mark.parametrize("factor", ["0.4", "2.5"])
def test_a_fault_that_is_compensated_for_ten_minutes_is_told(tmp_path, factor):
    samples = [
        series("recalibration_factor", f"1x9 {factor}x30 1x20", slice="car", dimension="x"),
        series("recalibration_factor", "0.5x60", slice="car", dimension="y"),
        series("recalibration_factor", "2x60", slice="bus", dimension="x"),
        series("recalibration_factor", "1x20 9x8 1x40", slice="bus", dimension="y"),
    ]
    told = "CalibrationFaultCompensated warning slice=car dimension=x"
    at: dict[str, list[str]] = {"15m": [], "25m": [told], "50m": []}
    assert "SUCCESS" in firing(tmp_path, samples, at)


def test_the_rules_are_valid_and_each_says_what_to_do():
    assert "3 rules found" in promtool("check", "rules", str(ALERTS))
    text = ALERTS.read_text("utf-8")
    assert tuple(re.findall(r"- alert: (\w+)", text)) == NAMES
    assert text.count("summary: ") == text.count("runbook: >-") == len(NAMES)


def test_every_metric_of_the_rules_is_exported():
    text = ALERTS.read_text("utf-8")
    exported = exposition()
    for name in set(re.findall(r"\b(calibration_[a-z0-9_]+)\b", text)) - {
        "calibration_recalibrators"
    }:
        assert f"\n{name}{{" in exported, name


def test_every_command_of_the_runbooks_parses():
    commands = re.findall(r"`calibration-monitor ([^`]+)`", ALERTS.read_text("utf-8"))
    assert len(commands) == 4
    for command in commands:
        words = command.split()
        assert build_parser(words[0]).parse_args(words).verb == "recalibrators"
