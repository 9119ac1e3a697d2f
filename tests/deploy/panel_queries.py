"""What the dashboards ask: every expression of every panel and annotation, and the variables in
them; no tests.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.deploy.panel_variables import Variable
from tests.deploy.scraping import ROOT

DASHBOARDS = ROOT / "deploy" / "grafana" / "dashboards"
# Rows whose panels have data only where the sidecar is configured for it, or fed with it.
OPTIONAL = "With "


@dataclass(frozen=True, slots=True)
class Question:
    """One expression, as it stands in its dashboard.

    place     of which panel, variable or annotation
    optional  whether its row is one of those that may be empty
    instant   answered for one moment, the last; else over the range of the dashboard
    legend    of its series, with labels in double braces
    ref       letter of the expression within its panel
    """

    dashboard: str
    place: str
    expression: str
    optional: bool = False
    instant: bool = False
    legend: str = ""
    ref: str = ""


@dataclass(frozen=True, slots=True)
class Dashboard:
    """What one of them asks, in the order in which it asks.

    panels  all that can be seen, with those in rows and those that ask nothing
    fields  names that the transformations of a panel's answers go by, by its title
    """

    uid: str
    panels: tuple[str, ...]
    variables: tuple[Variable, ...]
    questions: tuple[Question, ...]
    annotations: tuple[Question, ...]
    fields: Mapping[str, frozenset[str]]


def dashboards(folder: Path = DASHBOARDS) -> list[Dashboard]:
    """All of a folder, by the name of their file."""
    texts = [path.read_text("utf-8") for path in sorted(folder.glob("*.json"))]
    return [dashboard(json.loads(text)) for text in texts]


def dashboard(content: Mapping[str, Any]) -> Dashboard:
    """One of them; what is switched off is asked all the same."""
    uid = content["uid"]
    shown = [
        (panel, row.startswith(OPTIONAL)) for panel, row in _in_rows(content.get("panels", ()))
    ]
    asked = content.get("annotations", {}).get("list", ())
    return Dashboard(
        uid=uid,
        panels=tuple(panel.get("title", "") for panel, _ in shown),
        variables=tuple(_variables(content.get("templating", {}).get("list", ()))),
        questions=tuple(
            Question(
                uid,
                panel.get("title", ""),
                target["expr"],
                optional,
                bool(target.get("instant")) and not target.get("range"),
                target.get("legendFormat") or "",
                target.get("refId", ""),
            )
            for panel, optional in shown
            for target in panel.get("targets", ())
        ),
        annotations=tuple(
            Question(uid, each["name"], each.get("expr") or each["target"]["expr"])
            for each in asked
            if not each.get("builtIn")
        ),
        fields={
            panel.get("title", ""): frozenset(_fields(panel.get("transformations", ())))
            for panel, _ in shown
        },
    )


def _fields(transformations: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Names that are written there, as far as they are of fields that come, not of new ones."""
    renamed: set[str] = set()
    for one in transformations:
        options = one.get("options", {})
        named: list[str] = []
        match one["id"]:
            case "organize":
                for how in ("indexByName", "excludeByName", "renameByName"):
                    named += options.get(how, {})
            case "sortBy":
                named += [each["field"] for each in options["sort"]]
            case "groupingToMatrix":
                named += options.values()
            case "joinByField":
                named.append(options["byField"])
        yield from (name for name in named if name not in renamed)
        renamed |= set(options.get("renameByName", {}).values())


def _in_rows(panels: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Each panel with the title of its row: a closed row holds its panels, an open one precedes
    them.
    """
    row = ""
    for panel in panels:
        if panel["type"] != "row":
            yield panel, row
            continue
        row = panel.get("title", "")
        for inside in panel.get("panels", ()):
            yield inside, row


def _variables(entries: Sequence[Mapping[str, Any]]) -> Iterator[Variable]:
    for entry in entries:
        if entry["type"] == "datasource":  # is no part of any expression
            continue
        query = entry.get("query", "")
        text = query["query"] if isinstance(query, dict) else query
        current = entry.get("current", {}).get("value", "")
        yield Variable(
            name=entry["name"],
            query=text if entry["type"] == "query" else "",
            options=() if entry["type"] == "query" else _options(entry, text),
            keep=entry.get("regex") or "",
            several=bool(entry.get("multi")),
            all=bool(entry.get("includeAll")),
            all_as=entry.get("allValue") or "",
            current=current[0] if isinstance(current, list) and current else str(current or ""),
        )


def _options(entry: Mapping[str, Any], text: str) -> tuple[str, ...]:
    """Of a variable with values of its own: custom, interval, constant, text."""
    written = tuple(str(option["value"]) for option in entry.get("options", ()))
    return written or tuple(part.strip() for part in text.split(","))
