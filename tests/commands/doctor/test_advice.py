"""Rules of doctor beside what they refer to: paragraphs of the docs, alerts and their thresholds,
metrics that exist.
"""

import ast
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from monitor.cli import build_parser
from monitor.commands.doctor import RULES, advice, calibration_rules, sidecar_rules
from monitor.commands.doctor.rules import AREAS
from monitor.service.exposition import process
from tests.deploy.panel_names import families
from tests.golden.test_golden import exposition

DOCS = Path(__file__).parents[3] / "docs"
TEXT = (DOCS / "doctor.md").read_text("utf-8")
ANCHORS = {rule.anchor for rules in RULES.values() for rule in rules}


def headings(file: str) -> set[str]:
    """Anchors of a document."""
    found = re.findall(r"^#+ (.*)$", (DOCS / file).read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in found}


def test_both_documents_are_installed_beside_the_code_that_reads_them():
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text("utf-8"))
    target = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    included = target["force-include"]
    for name in ("runbook.md", "doctor.md"):
        assert included[f"docs/{name}"] == f"monitor/commands/doctor/{name}"
    assert included["deploy/sidecar.toml"] == "monitor/commands/sidecar.toml"


def test_every_area_has_rules():
    assert set(RULES) == set(AREAS)


@pytest.mark.parametrize("anchor", sorted(ANCHORS))
def test_every_rule_has_a_paragraph_that_says_why_and_what_to_do(anchor):
    why, remedy = advice()[anchor]
    assert why.endswith((".", "?"))
    assert remedy.endswith(f" docs/runbook.md#{anchor}") == anchor.startswith("calibration")
    assert not re.search(r"\*\*|\]\(|\n", why + remedy)


def test_every_paragraph_has_its_rule():
    assert headings("doctor.md") - {"what-doctor-says-beside-the-alerts"} == {
        anchor for anchor in ANCHORS if not anchor.startswith("calibration")
    }


def test_every_document_that_a_paragraph_names_exists():
    named = set(re.findall(r"docs/([a-z_]+\.md)(?:#([a-z-]+)(?![a-z{-]))?", TEXT))
    assert len(named) > 10
    for file, anchor in named:
        assert not anchor or anchor in headings(file), (file, anchor)


def test_every_setting_metric_and_command_that_a_paragraph_names_exists():
    defaults = (DOCS.parent / "deploy" / "sidecar.toml").read_text("utf-8")
    for section, key in re.findall(r"`\[(\w+)\] (\w+)", TEXT):
        body = re.split(rf"^\[{section}\]", defaults, flags=re.MULTILINE)[1].split("\n[")[0]
        assert re.search(rf"^(# )?{key} = ", body, re.MULTILINE), f"[{section}] {key}"
    names = set().union(*families(exposition()).values())
    for word in re.findall(r"`([a-z]+(?:_[a-z]+)+)`", TEXT):
        labels = ("invalid_header", "no_header", "too_late")
        assert f"calibration_{word}" in names or word in labels, word
    for command in re.findall(r"`calibration-monitor ([^`]+)`", TEXT):
        assert build_parser(command.split()[0]).parse_args(command.split())


# ---- thresholds

ALERTS = DOCS.parent / "deploy" / "prometheus"


def expression(alert: str) -> str:
    """Of a rule, on one line."""
    for file in ALERTS.glob("*alert_rules.yml"):
        for group in yaml.safe_load(file.read_text("utf-8"))["groups"]:
            for rule in group["rules"]:
                if rule.get("alert") == alert:
                    return " ".join(rule["expr"].split())
    raise AssertionError(alert)


@pytest.mark.parametrize(
    ("alert", "comparison", "value"),
    [
        ("CalibrationMatchRatioLow", "<", calibration_rules.MATCH_RATIO),
        ("CalibrationLabelledShareLow", "<", calibration_rules.LABELLED_SHARE),
        ("CalibrationPassThroughHigh", ">", sidecar_rules.PASSED_THROUGH),
        ("CalibrationRejectedHigh", ">", sidecar_rules.REJECTED),
        ("CalibrationCheckpointStale", ">", sidecar_rules.CHECKPOINT_SECONDS),
        ("CalibrationOverload", ">", sidecar_rules.LOOP_LAG_SECONDS),
        ("CalibrationOverload", ">", sidecar_rules.FRAME_SECONDS),
        ("CalibrationFaultCompensated", "<", calibration_rules.LEAST_FACTOR),
        ("CalibrationFaultCompensated", ">", calibration_rules.MOST_FACTOR),
        ("CalibrationFitsFail", ">=", calibration_rules.FAILED_FITS),
    ],
)
def test_a_threshold_is_that_of_the_alert(alert, comparison, value):
    assert re.search(rf"{comparison} {re.escape(f'{value:g}')}(?![\d.])", expression(alert))


def test_labels_are_counted_as_the_alert_counts_them():
    found = re.search(r'outcome=~"([^"]+)"', expression("CalibrationMatchRatioLow"))
    assert found
    assert set(found[1].split("|")) == set(calibration_rules.COUNTED)


def test_half_an_hour_without_labels_is_that_of_the_alert():
    text = (ALERTS / "service_alert_rules.yml").read_text("utf-8")
    rule = text[text.index("CalibrationNoLabels") :]
    found = re.search(r"for: (\w+)", rule)
    assert found
    assert found[1] == "30m"


# ---- metrics: a renamed one would leave doctor blind, and nobody would notice

DIAGNOSIS = DOCS.parent / "monitor" / "commands" / "doctor"
ASKING = {"value", "by", "rows", "increase", "increases", "words"}
# Which arguments of a shape of rules are names.
SHAPES = {"counted": (1,), "lately": (1,), "part_of": (1, 3)}
# Of a tracker elsewhere, whose families are there with it alone: tests/pipeline has them.
TRACKER = {"calibration_tracker_up", "calibration_tracker_forwarded_total"}


def asked(source: str) -> set[str]:
    """Names that are the first argument of such a call, or arguments of a shape of rules."""
    named = []
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call):
            continue
        if isinstance(call.func, ast.Attribute) and call.func.attr in ASKING:
            named += call.args[:1]
        elif isinstance(call.func, ast.Name) and call.func.id in SHAPES:
            named += [call.args[number] for number in SHAPES[call.func.id]]
    constants = [each.value for each in named if isinstance(each, ast.Constant)]
    return {name for name in constants if isinstance(name, str)}


def test_every_metric_that_is_asked_for_exists():
    named = set().union(*(asked(path.read_text("utf-8")) for path in DIAGNOSIS.glob("*.py")))
    full = {name if name.startswith("process_") else f"calibration_{name}" for name in named}
    exported = set().union(*families(exposition() + process().decode()).values())
    assert len(full) > 25
    assert full - exported - TRACKER == set()
