"""No panel is empty: every query of every dashboard and rule, on a real Prometheus beside a real
sidecar that sees the demo's drive, with its fault, its promotion and its way home.

Rows that say what they need ("With …") are asked of a second sidecar, which has it.
"""

import pytest

from monitor.commands.demo.scene import DriveSettings
from monitor.commands.demo.story import Plan
from tests.deploy.panel_answers import Refused, ask, call, opened
from tests.deploy.panel_names import documented, mentioned, metrics, mistakes
from tests.deploy.panel_queries import OPTIONAL, Question, dashboard
from tests.deploy.panel_session import Session, fieldless, nameless, session, texts, told
from tests.deploy.panel_traffic import both
from tests.deploy.scraping import ROOT

# s; the shortest that the demo may be. Three of its six sensors do, and cost half as much.
PLAN = Plan(duration_s=20.0, settings=DriveSettings(sensors=DriveSettings().sensors[:3]))
# The job of Prometheus, and a word of another library.
NO_METRICS = {"calibration_monitor", "calibration_area"}
# s; the drive is part of the first of them.
pytestmark = [pytest.mark.components, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    with both(tmp_path_factory.mktemp("panels"), PLAN) as (demo, options):
        found = session(demo, options, PLAN.faulty)
        for name, count in found.counts().items():
            print(f"{count:5d} {name}")
        yield found


def test_every_expression_of_every_panel_annotation_and_rule_is_answered(asked: Session):
    answers = (*asked.panels, *asked.sliced, *asked.annotations, *asked.alerts)
    assert [line for line in told(answers) if "is empty" not in line] == []
    assert asked.health == {rule.name: "ok" for rule in asked.rules}


def test_no_panel_is_empty(asked: Session):
    assert len(asked.boards) == 4
    assert len(asked.panels) > 50
    assert told(asked.panels) == []


def test_no_panel_is_empty_when_the_slice_with_the_fault_is_chosen(asked: Session):
    assert told(asked.sliced) == []


def test_every_variable_has_a_value(asked: Session):
    for board in asked.boards:
        chosen, _ = opened(asked.demo, board)
        assert all(one.text or any(one.values) for one in chosen.values()), (board.uid, chosen)


def test_a_row_that_says_what_it_needs_is_empty_without_it(asked: Session):
    rows = {(answer.question.dashboard, answer.question.place) for answer in asked.plain}
    filled = {
        (answer.question.dashboard, answer.question.place)
        for answer in asked.plain
        if not answer.is_empty
    }
    assert rows
    assert filled == set()
    assert {board.uid for board in asked.boards if any(q.optional for q in board.questions)}, (
        f"no row is called '{OPTIONAL}…'"
    )


def test_the_labels_that_legends_name_are_there(asked: Session):
    assert nameless(asked.panels) == []


def test_the_fields_that_tables_are_made_of_are_there(asked: Session):
    assert fieldless(asked.boards, asked.panels) == []


def test_all_that_is_recorded_has_data(asked: Session):
    assert told(asked.recorded) == []


def test_the_drive_brings_the_alerts_and_annotations_of_its_story(asked: Session):
    brought = {answer.question.place for answer in asked.alerts if not answer.is_empty}
    assert "CalibrationFaultCompensated" in brought
    assert brought & {"CalibrationDriftPage", "CalibrationDriftTicket"}
    # Grafana draws what is above 0.
    for name in ("Recalibrators", "Drift alarms"):
        drawn = [answer for answer in asked.annotations if answer.question.place == name]
        assert drawn
        assert [answer.expression for answer in drawn if not answer.greatest > 0] == []


def test_every_metric_label_and_value_that_is_named_anywhere_exists(asked: Session):
    assert asked.mistakes() == []


def test_no_panel_waits_for_what_is_recorded_at_full_hours(asked: Session):
    # The rules here do not wait so long; those that people load do.
    slow = [
        expression
        for expression in (answer.expression for answer in asked.panels)
        if any(name.endswith((":1h", ":24h")) for name in metrics(expression))
    ]
    assert slow == []


def test_every_metric_that_people_read_of_exists(asked: Session):
    there = asked.known.labels.keys() | asked.exposed().keys()
    assert set().union(*map(mentioned, texts())) - there - NO_METRICS == set()


def test_every_metric_is_in_the_readme(asked: Session):
    names, rows = documented((ROOT / "README.md").read_text("utf-8"))
    # What clients of Prometheus have of their process is documented there.
    unnamed = asked.exposed().keys() - names
    assert {name for name in unnamed if not name.startswith("process_")} == set()
    assert rows.keys() - asked.exposed().keys() == set()


def test_every_metric_is_in_a_panel(asked: Session):
    assert asked.in_no_panel() == set()


@pytest.mark.parametrize(
    ("expression", "mistake"),
    [
        ("calibration_nees_ration", "there is no metric calibration_nees_ration"),
        ('calibration_ence{slcie="total"}', "calibration_ence has no label slcie"),
        ('calibration_ence{stage="rwa"}', "stage of calibration_ence is never rwa"),
        ("sum by (slcie) (calibration_ence)", "none of calibration_ence has the label slcie"),
        ("sum by ((slice) calibration_ence", "is no PromQL"),
    ],
)
def test_a_panel_that_asks_for_what_is_not_there_is_found(asked: Session, expression, mistake):
    (found,) = mistakes(expression, asked.known)
    assert found.startswith(mistake)
    content = {"uid": "own", "panels": [{"type": "stat", "targets": [{"expr": expression}]}]}
    own = dashboard(content)
    answer = ask(asked.demo, own.questions[0], opened(asked.demo, own)[0])
    assert bool(answer.error) == (mistake == "is no PromQL")
    # A group by a label that is not there is not empty, and one too few series.
    assert answer.is_empty == ("sum by (slcie)" not in expression)


def test_a_legend_with_a_label_that_is_not_there_is_found(asked: Session):
    question = Question(
        "own", "NEES", "sum by (slice) (calibration_nees_ratio)", legend="{{stage}}"
    )
    assert nameless([ask(asked.demo, question, {})]) == ["own: NEES: no series has the label stage"]


def test_prometheus_is_heard_when_it_refuses(asked: Session):
    with pytest.raises(Refused, match="parse error"):
        call(asked.demo.prometheus, "query", query="sum(")
