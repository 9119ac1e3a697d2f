"""What doctor calls wrong is what the alerts call so."""

import re
from pathlib import Path

import pytest
import yaml

from monitor.commands.doctor import rules

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus"


def expression(alert: str) -> str:
    """Of a rule, on one line."""
    for file in RULES.glob("*alert_rules.yml"):
        for group in yaml.safe_load(file.read_text("utf-8"))["groups"]:
            for rule in group["rules"]:
                if rule.get("alert") == alert:
                    return " ".join(rule["expr"].split())
    raise AssertionError(alert)


@pytest.mark.parametrize(
    ("alert", "comparison", "value"),
    [
        ("CalibrationMatchRatioLow", "<", rules.MATCH_RATIO),
        ("CalibrationLabelledShareLow", "<", rules.LABELLED_SHARE),
        ("CalibrationPassThroughHigh", ">", rules.PASSED_THROUGH),
        ("CalibrationRejectedHigh", ">", rules.REJECTED),
        ("CalibrationCheckpointStale", ">", rules.CHECKPOINT_SECONDS),
        ("CalibrationOverload", ">", rules.LOOP_LAG_SECONDS),
        ("CalibrationOverload", ">", rules.FRAME_SECONDS),
        ("CalibrationFaultCompensated", "<", rules.LEAST_FACTOR),
        ("CalibrationFaultCompensated", ">", rules.MOST_FACTOR),
        ("CalibrationFitsFail", ">=", rules.FAILED_FITS),
    ],
)
def test_a_threshold_is_that_of_the_alert(alert, comparison, value):
    assert re.search(rf"{comparison} {re.escape(f'{value:g}')}(?![\d.])", expression(alert))


def test_labels_are_counted_as_the_alert_counts_them():
    found = re.search(r'outcome=~"([^"]+)"', expression("CalibrationMatchRatioLow"))
    assert found
    assert set(found[1].split("|")) == set(rules.COUNTED)


def test_half_an_hour_without_labels_is_that_of_the_alert():
    text = (RULES / "service_alert_rules.yml").read_text("utf-8")
    rule = text[text.index("CalibrationNoLabels") :]
    found = re.search(r"for: (\w+)", rule)
    assert found
    assert found[1] == "30m"
