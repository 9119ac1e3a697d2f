"""Why something matters and what to do: each rule has its paragraph, each paragraph its rule, and
what a paragraph names exists.
"""

import re
import tomllib
from pathlib import Path

import pytest

from monitor.cli import build_parser
from monitor.commands.doctor.diagnosis import RULES, advice
from monitor.commands.doctor.rules import AREAS
from tests.deploy.panel_names import families
from tests.golden.test_golden import exposition

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "doctor.md").read_text("utf-8")
ANCHORS = {rule.anchor for rules in RULES.values() for rule in rules}


def headings(file: str) -> set[str]:
    """Anchors of a document."""
    found = re.findall(r"^#+ (.*)$", (DOCS / file).read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in found}


def test_both_documents_are_installed_beside_the_code_that_reads_them():
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text("utf-8"))
    target = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert target["force-include"] == {
        f"docs/{name}": f"monitor/commands/doctor/{name}" for name in ("runbook.md", "doctor.md")
    }


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
