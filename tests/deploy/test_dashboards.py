"""What holds of every dashboard, read from its JSON. That each query is answered is shown beside a
real Prometheus in test_panels.py, and that Grafana's types are met in test_dashboards_typed.py. No
Grafana runs here: nobody has seen these dashboards drawn.
"""

import json
import re
from typing import Any

import pytest

from deploy.grafana.__main__ import FOLDER, main
from tests.deploy.panel_names import metrics, substituted
from tests.deploy.scraping import ALERT_FILES, ROOT

Json = dict[str, Any]
FILES = sorted(FOLDER.glob("*.json"))
BOARDS: dict[str, Json] = {path.stem: json.loads(path.read_text("utf-8")) for path in FILES}
EACH = pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
# Counts that are neither good nor bad.
NEITHER = {"On trial", "Promoted", "Rolled back", "Streams", "Active"}
CHOSEN = re.escape('{job=~"$job",instance=~"$instance"')


def rows(board: Json) -> list[Json]:
    return [panel for panel in board["panels"] if panel["type"] == "row"]


def panels(board: Json) -> list[Json]:
    """Lists what can be seen, in folded rows too; rows themselves are none."""
    inside = [panel for row in rows(board) for panel in row["panels"]]
    return [*(panel for panel in board["panels"] if panel["type"] != "row"), *inside]


def expressions(board: Json) -> list[str]:
    asked = [target["expr"] for panel in panels(board) for target in panel.get("targets", ())]
    return [*asked, *(mark["target"]["expr"] for mark in board["annotations"]["list"])]


def variables(text: str) -> set[str]:
    """Finds the dashboard's own variables; Grafana's begin with underscores."""
    return set(re.findall(r"\$([a-z]\w+)", text))


def test_the_files_are_what_the_generator_writes(tmp_path, monkeypatch):
    monkeypatch.setattr("deploy.grafana.__main__.FOLDER", tmp_path / "dashboards")
    main()
    assert {path.name: path.read_bytes() for path in (tmp_path / "dashboards").iterdir()} == {
        path.name: path.read_bytes() for path in FILES
    }, "run `python -m deploy.grafana`"


@EACH
def test_a_panel_says_what_it_shows_and_what_is_healthy_and_points_to_what_exists(board):
    for panel in panels(board):
        said = panel["description"]
        pointers = re.findall(r"docs/\S+", said)
        assert len(said) >= 30 and said.endswith((".", *pointers)), panel["title"]
        assert "ealthy" in said or panel["title"] in NEITHER, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["fieldConfig"]["defaults"]["thresholds"]["steps"][0]["value"] is None
        for pointer in pointers:
            name, _, anchor = pointer.strip("().;,:").partition("#")
            text = (ROOT / name.rstrip(".")).read_text("utf-8")
            headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
            assert not anchor or anchor in {h.lower().replace(" ", "-") for h in headings}, pointer


@EACH
def test_only_variables_that_the_dashboard_has_are_named_and_all_are_used(board):
    had = [variable["name"] for variable in board["templating"]["list"]]
    queries = [
        variable["query"]["query"]
        for variable in board["templating"]["list"]
        if variable["type"] == "query"
    ]
    asked = set().union(*map(variables, (*expressions(board), *queries)))
    said = set().union(*(variables(panel["title"]) for panel in board["panels"]))
    assert asked | said <= set(had)
    assert set(had) == asked | {"datasource"}
    assert had[:3] == ["datasource", "job", "instance"]
    # All but the first two, which come before the choice, are of the chosen sidecars.
    assert all(re.search(CHOSEN, query) for query in queries[2:])


@EACH
def test_every_query_is_of_the_chosen_sidecars_and_of_windows_that_rules_record(board):
    for expression in expressions(board):
        for metric in metrics(substituted(expression)):
            assert not re.search(rf"\b{metric}\b(?!{CHOSEN})", expression), expression
        assert not re.search(r"\[(?:10m|24h)\]", expression), expression


def test_every_alert_of_the_rules_is_the_way_to_some_panel():
    """Leads whoever comes from an alert to the panel by its anchor, and the other way round."""
    said = " ".join(panel["description"] for board in BOARDS.values() for panel in panels(board))
    rules = "".join(path.read_text("utf-8") for path in ALERT_FILES)
    alerts = re.findall(r"- alert: (\w+)", rules)
    assert len(alerts) >= 13
    assert [name for name in alerts if f"docs/runbook.md#{name.lower()}" not in said] == []
