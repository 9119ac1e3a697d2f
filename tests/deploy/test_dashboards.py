"""What holds of every dashboard, read from its JSON. That each query is answered is shown beside a
real Prometheus in test_panels.py, and that Grafana's types are met in test_dashboards_typed.py. No
Grafana runs here: nobody has seen these dashboards drawn.
"""

import itertools
import re

import pytest

from deploy.grafana.__main__ import main
from deploy.grafana.panels import TITLES, WIDTH
from tests.deploy.alerting import names
from tests.deploy.scraping import FOLDER as RULES
from tests.deploy.scraping import ROOT
from tests.deploy.shown import FILES, FOLDER, boards, expressions, metrics, panels, variables

SHOWN = [
    pytest.param(board, panel, id=f"{board['uid']}: {panel['title']}")
    for board in boards()
    for panel in panels(board)
]
KEPT = pytest.mark.parametrize("board", boards(), ids=lambda board: board["uid"])
ASKS_NOTHING = {"alertlist"}
# Its names stand in the row itself, in the column's heading, or on the axis.
WITHOUT_LEGEND = {"alertlist", "bargauge", "heatmap", "stat", "state-timeline", "table"}


def test_the_files_are_what_the_generator_writes(tmp_path, monkeypatch):
    monkeypatch.setattr("deploy.grafana.__main__.FOLDER", tmp_path / "dashboards")
    main()
    assert {path.name: path.read_bytes() for path in (tmp_path / "dashboards").iterdir()} == {
        path.name: path.read_bytes() for path in FILES
    }, "run `python -m deploy.grafana`"


@KEPT
def test_a_dashboard_has_its_uid_and_title_and_links_to_all_others(board):
    assert board["title"] == TITLES[board["uid"]]
    assert (FOLDER / f"{board['uid']}.json").exists()
    assert {link["url"] for link in board["links"]} == {
        f"/d/{uid}" for uid in TITLES if uid != board["uid"]
    }
    assert all(link["keepTime"] and link["includeVars"] for link in board["links"])
    assert board["refresh"] == "10s"


@KEPT
def test_ids_and_titles_are_unique(board):
    rows = [panel for panel in board["panels"] if panel["type"] == "row"]
    every = [*panels(board), *rows]
    for key in ("id", "title"):
        found = [panel[key] for panel in panels(board)] + [row["id"] for row in rows]
        assert len(found) == len(set(found)) == len(every)


@KEPT
def test_panels_are_within_the_width_and_none_covers_another(board):
    """A folded row is drawn like an open one when it is opened; nothing stands below it then."""
    opened = list(board["panels"])
    folded = [row["panels"] for row in opened if row["type"] == "row" and row["collapsed"]]
    for together in (opened, *folded):
        places = [panel["gridPos"] for panel in together]
        assert all(at["x"] >= 0 and at["x"] + at["w"] <= WIDTH for at in places)
        for one, other in itertools.combinations(places, 2):
            beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
            above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
            assert beside or above, (one, other)


@KEPT
def test_no_line_of_panels_leaves_a_hole(board):
    """Between two headings every column of the grid is filled, from one to the other."""
    tops = [panel["gridPos"]["y"] for panel in board["panels"] if panel["type"] == "row"]
    shown = [panel["gridPos"] for panel in board["panels"] if panel["type"] != "row"]
    for top, end in itertools.pairwise([-1, *tops, max(at["y"] + at["h"] for at in shown)]):
        inside = [at for at in shown if top < at["y"] < end]
        assert sum(at["w"] * at["h"] for at in inside) == WIDTH * max(end - top - 1, 0)


@KEPT
def test_rows_that_need_an_option_and_only_these_are_folded_and_come_last(board):
    rows = [panel for panel in board["panels"] if panel["type"] == "row"]
    folded = [row["title"] for row in rows if row["collapsed"]]
    assert all(row["title"].startswith("With ") == row["collapsed"] for row in rows)
    assert [row["title"] for row in rows][len(rows) - len(folded) :] == folded
    assert all(row["panels"] for row in rows if row["collapsed"])


@pytest.mark.parametrize(("board", "panel"), SHOWN)
def test_a_panel_says_what_it_shows_and_what_is_healthy(board, panel):
    said = panel["description"]
    assert len(said) >= 30 and said.endswith((".", *_anchors(said)))
    assert "ealthy" in said or panel["title"] in NEITHER
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["fieldConfig"]["defaults"]["thresholds"]["steps"][0]["value"] is None


# Of counts that are neither good nor bad.
NEITHER = {"On trial", "Promoted", "Rolled back", "Streams", "In force"}


def _anchors(said: str) -> tuple[str, ...]:
    return tuple(re.findall(r"docs/\S+", said))


@pytest.mark.parametrize(("board", "panel"), SHOWN)
def test_what_a_panel_points_to_exists(board, panel):
    for pointed in _anchors(panel["description"]):
        name, _, anchor = pointed.strip("().;,:").partition("#")
        path = ROOT / name.rstrip(".")
        assert path.exists(), pointed
        headings = re.findall(r"^#+ (.+)$", path.read_text("utf-8"), flags=re.MULTILINE)
        assert not anchor or anchor in {heading.lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(("board", "panel"), SHOWN)
def test_a_panel_asks_the_chosen_data_source_and_names_its_series(board, panel):
    assert bool(panel.get("targets")) != (panel["type"] in ASKS_NOTHING)
    letters = [target["refId"] for target in panel.get("targets", ())]
    assert letters == sorted(set(letters))
    for target in panel.get("targets", ()):
        assert target["datasource"] == panel["datasource"]
        assert target["legendFormat"]
        assert target["instant"] != target["range"]
        assert target["instant"] == (panel["type"] in {"barchart", "table", "xychart"})
        assert target["instant"] == (target["format"] == "table")
    if panel["type"] not in WITHOUT_LEGEND:
        assert panel["options"]["legend"]["showLegend"]


@KEPT
def test_only_variables_that_the_dashboard_has_are_named_and_all_are_used(board):
    had = {variable["name"] for variable in board["templating"]["list"]}
    asked = {name for _, expression in expressions(board) for name in variables(expression)}
    said = {name for panel in board["panels"] for name in variables(panel.get("title", ""))}
    assert asked | said <= had
    assert had == asked | {"datasource"}


@KEPT
def test_every_query_is_of_the_chosen_sidecars(board):
    """Of the edges of bins, which all must agree on, too; only variables come before the choice."""
    for place, expression in expressions(board):
        if place in ("$job", "$instance"):
            continue
        for metric in metrics(expression):
            chosen = re.escape('{job=~"$job",instance=~"$instance"')
            assert not re.search(rf"\b{metric}\b(?!{chosen})", expression), (place, expression)


def test_windows_of_ten_minutes_are_those_that_rules_record():
    for board in boards():
        for place, expression in expressions(board):
            assert not re.search(r"\[(?:10m|24h)\]", expression), place


def test_every_alert_of_the_rules_is_the_way_to_some_panel():
    """Whoever comes from an alert finds the panel by its anchor, and the other way round."""
    said = " ".join(panel["description"] for board in boards() for panel in panels(board))
    alerts = [name for path in sorted(RULES.glob("*alert_rules.yml")) for name in names(path)]
    assert len(alerts) >= 13
    without = {name for name in alerts if f"docs/runbook.md#{name.lower()}" not in said}
    assert not without


def test_what_happened_is_marked_on_every_dashboard():
    for board in boards():
        marked = {entry["name"]: entry["target"]["expr"] for entry in board["annotations"]["list"]}
        assert "recalibrator_swaps_total" in marked["Recalibrators"]
        assert "drift_alarms_total" in marked["Drift alarms"]
        assert "ALERTS" in marked["Alerts"]
        assert "drift_epochs_total" in marked["Epochs"]
        assert "process_start_time_seconds" in marked["Restarts"]


def test_the_first_screen_of_the_overview_needs_no_hour():
    """Within a minute of the start: nothing that only rules of an hour, or a day, can answer."""
    board = next(board for board in boards() if board["uid"] == "calibration-overview")
    first = [panel for panel in board["panels"] if panel["gridPos"]["y"] < 22]
    assert len(first) >= 10
    for panel in first:
        for target in panel.get("targets", ()):
            assert not re.search(r"\[\d+h|\[\d+d|:1h|:24h", target["expr"])
