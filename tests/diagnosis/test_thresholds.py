"""What doctor calls wrong is what the alerts call so; paragraphs that it names exist."""

import re
from pathlib import Path

import pytest
import yaml

from monitor.commands.doctor import labels, load, machine, recalibration
from monitor.commands.doctor import load as load_module

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
        ("CalibrationMatchRatioLow", "<", labels.MATCH_RATIO),
        ("CalibrationLabelledShareLow", "<", labels.LABELLED_SHARE),
        ("CalibrationPassThroughHigh", ">", load_module.PASSED_THROUGH),
        ("CalibrationRejectedHigh", ">", load_module.REJECTED),
        ("CalibrationCheckpointStale", ">", machine.CHECKPOINT_SECONDS),
        ("CalibrationOverload", ">", load.LOOP_LAG_SECONDS),
        ("CalibrationOverload", ">", load.FRAME_SECONDS),
        ("CalibrationFaultCompensated", "<", recalibration.LEAST_FACTOR),
        ("CalibrationFaultCompensated", ">", recalibration.MOST_FACTOR),
        ("CalibrationFitsFail", ">=", recalibration.FAILED_FITS),
    ],
)
def test_a_threshold_is_that_of_the_alert(alert, comparison, value):
    assert re.search(rf"{comparison} {re.escape(f'{value:g}')}(?![\d.])", expression(alert))


def test_labels_are_counted_as_the_alert_counts_them():
    found = re.search(r'outcome=~"([^"]+)"', expression("CalibrationMatchRatioLow"))
    assert found
    assert set(found[1].split("|")) == set(labels.COUNTED)


def test_half_an_hour_without_labels_is_that_of_the_alert():
    text = (RULES / "service_alert_rules.yml").read_text("utf-8")
    rule = text[text.index("CalibrationNoLabels") :]
    found = re.search(r"for: (\w+)", rule)
    assert found
    assert found[1] == "30m"


def test_every_paragraph_that_is_named_exists():
    sources = "".join(
        re.sub(r'"\s*\n\s*f?"', "", file.read_text("utf-8"))
        for file in (ROOT / "monitor" / "commands" / "doctor").glob("*.py")
    )
    named = set(re.findall(r"docs/([a-z_]+\.md)(?:#([a-z-]+)(?![a-z{-]))?", sources))
    assert len(named) > 15
    for file, anchor in named:
        headings = re.findall(r"^#+ (.*)$", (ROOT / "docs" / file).read_text("utf-8"), re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in headings}
        assert not anchor or anchor in anchors, (file, anchor)
