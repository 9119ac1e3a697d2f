"""No panel is empty: every query of every dashboard and rule, on a real Prometheus beside a real
sidecar that sees the demo's drive, with its fault, its promotion and its way home.

Rows that say what they need ("With …") are asked of a second sidecar, which has it.
"""

import pytest

from monitor.commands.demo.scene import DriveSettings
from monitor.commands.demo.story import Plan
from tests.deploy.panel_names import mentioned, metrics
from tests.deploy.panel_session import Session, documents, fieldless, nameless, session, told
from tests.deploy.panel_traffic import both

# s; the shortest that the demo may be. Three of its six sensors do, and cost half as much.
PLAN = Plan(duration_s=20.0, settings=DriveSettings(sensors=DriveSettings().sensors[:3]))
# The job of Prometheus, and a word of another library.
NO_METRICS = {"calibration_monitor", "calibration_area"}
# s; the drive is part of the first of them.
pytestmark = [pytest.mark.components, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    with both(tmp_path_factory.mktemp("panels"), PLAN) as (demo, options):
        yield session(demo, options, PLAN.faulty)


def test_no_panel_is_empty_and_every_rule_is_evaluated(asked: Session):
    assert len(asked.boards) == 4
    assert len(asked.panels) > 50
    assert told((*asked.panels, *asked.recorded)) == []
    answers = (*asked.annotations, *asked.alerts)
    assert [answer.error for answer in answers if answer.error] == []
    assert asked.health == {rule.name: "ok" for rule in asked.rules}


def test_the_labels_of_legends_and_the_fields_of_tables_are_there(asked: Session):
    assert nameless(asked.panels) == []
    assert fieldless(asked.boards, asked.panels) == []
    # The rules here do not wait for full hours; those that people load do.
    named = set().union(*(metrics(answer.expression) for answer in asked.panels))
    assert [name for name in named if name.endswith((":1h", ":24h"))] == []


def test_the_drive_brings_the_alerts_and_annotations_of_its_story(asked: Session):
    brought = {answer.question.place for answer in asked.alerts if not answer.is_empty}
    assert "CalibrationFaultCompensated" in brought
    assert brought & {"CalibrationDriftPage", "CalibrationDriftTicket"}
    # Grafana draws what is above 0.
    for name in ("Recalibrators", "Drift alarms"):
        drawn = [answer for answer in asked.annotations if answer.question.place == name]
        assert drawn
        assert [answer.expression for answer in drawn if not answer.greatest > 0] == []


def test_every_metric_asked_for_or_written_about_exists(asked: Session):
    assert asked.mistakes() == []
    there = asked.known | asked.exposed().keys()
    assert set().union(*map(mentioned, documents().values())) - there - NO_METRICS == set()
