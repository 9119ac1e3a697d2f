"""What holds of all alert rules: they are valid, name what is exported, and say what to do."""

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from monitor.cli import build_parser
from tests.components import program
from tests.deploy.scraping import ALERT_FILES, EXPOSITION, FOLDER, ROOT, printed, promtool

ALERTMANAGER = FOLDER / "alertmanager.yml"

RUNBOOK = (ROOT / "docs" / "runbook.md").read_text("utf-8")
RULES = "".join(path.read_text("utf-8") for path in ALERT_FILES)
ALERTS = re.findall(r"- alert: (\w+)", RULES)
_HEADINGS = re.split(r"^## (.+)$", RUNBOOK, flags=re.MULTILINE)[1:]
PARAGRAPHS = dict(zip(_HEADINGS[::2], _HEADINGS[1::2], strict=True))


@pytest.fixture(scope="module")
def samples():
    """Reads names and labels of all that a sidecar exports."""
    families = text_string_to_metric_families(EXPOSITION.read_text("utf-8"))
    return [(sample.name, sample.labels) for family in families for sample in family.samples]


@pytest.mark.components
@pytest.mark.parametrize("path", ALERT_FILES, ids=lambda path: path.stem)
def test_the_rules_are_valid_and_each_says_what_to_do(path):
    text = path.read_text("utf-8")
    found = text.count("- alert: ")
    assert f"{found} rules found" in promtool("check", "rules", str(path))
    assert found == text.count("summary: ") == text.count("runbook: >-")
    assert found == text.count("severity: ") - text.count("severity: {") > 0


@pytest.mark.components
def test_the_example_of_an_alertmanager_is_valid_and_every_severity_has_its_receiver():
    amtool = program("amtool")
    assert "SUCCESS" in printed(amtool, "check-config", str(ALERTMANAGER))
    severities = set(re.findall(r"^ +severity: (\w+)$", RULES, flags=re.MULTILINE))
    assert severities == {"page", "ticket", "warning", "info"}
    for severity in severities:
        routed = ("config", "routes", "test", f"--config.file={ALERTMANAGER}")
        assert printed(amtool, *routed, f"severity={severity}").split()[0] == severity


def test_every_alert_has_its_paragraph_in_the_runbook_and_every_paragraph_its_alert():
    assert len(set(ALERTS)) == len(ALERTS)
    assert PARAGRAPHS.keys() == set(ALERTS)
    said = ["What it means.", "What to look at.", "What to do.", "When it ends."]
    for name, text in PARAGRAPHS.items():
        assert re.findall(r"^\*\*(.+?)\*\*", text, flags=re.MULTILINE) == said, name


def test_every_alert_links_to_its_paragraph_wherever_the_runbook_is():
    base = r"\{\{ with \$externalLabels\.runbook_base \}\}\{\{ \. \}\}#(\w+)\{\{ end \}\}"
    anchors = re.findall(rf'^ +runbook_url: "{base}"$', RULES, flags=re.MULTILINE)
    assert anchors == [name.lower() for name in ALERTS]
    assert re.findall(r"docs/runbook\.md#(\w+)\n", RULES) == anchors
    assert set(anchors) == {heading.lower() for heading in PARAGRAPHS}


def test_every_metric_of_the_rules_is_exported_with_these_labels(samples):
    exported_names = {name for name, _ in samples}
    named = set(re.findall(r"\b(calibration_[a-z0-9_]+)\b", RULES))
    groups = set(re.findall(r"- name: (\w+)", RULES))
    assert named - groups - {"calibration_monitor"} <= exported_names
    selectors = re.findall(r"(calibration_\w+)\{([^}\n]*)\}", RULES)
    assert len(selectors) > 10
    for name, inner in selectors:
        for label, _, wanted in re.findall(r'(\w+)(=~|!=|=)"([^"\\]*)"', inner):
            for value in wanted.split("|"):
                assert any(
                    name == other and labels.get(label) == value for other, labels in samples
                ), f"{name} has no {label}={value}"


def test_every_metric_and_setting_of_the_runbook_exists(samples):
    families = {name.removeprefix("calibration_") for name, _ in samples}
    families |= {name.removesuffix("_bucket") for name in families}
    defaults = (ROOT / "deploy" / "sidecar.toml").read_text("utf-8")
    settings = set(re.findall(r"^(\w+) = ", defaults, flags=re.MULTILINE))
    labels = {value for _, found in samples for value in found.values()}
    for word in re.findall(r"`([a-z0-9]+(?:_[a-z0-9]+)+)[`{]", RUNBOOK):
        assert word in families | settings | labels | {"keep_firing_for"}, word
    for section, key in re.findall(r"`\[(\w+)\] (\w+)", RUNBOOK):
        body = re.split(rf"^\[{section}\]", defaults, flags=re.MULTILINE)[1].split("\n[")[0]
        assert re.search(rf"^(# )?{key} = ", body, re.MULTILINE), f"[{section}] {key}"


def test_every_command_parses():
    commands = re.findall(r"`calibration-monitor ([^`]+)`", RULES + RUNBOOK)
    assert len(commands) > 12
    for command in commands:
        words = command.split()
        assert build_parser(words[0]).parse_args(words).verb == words[0]
