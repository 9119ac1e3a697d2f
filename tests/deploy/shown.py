"""The dashboards as they are kept, and what is in them; no tests."""

import json
import re
from collections.abc import Iterator
from typing import Any

import promql_parser as promql

from tests.deploy.scraping import ROOT

FOLDER = ROOT / "deploy" / "grafana" / "dashboards"
FILES = sorted(FOLDER.glob("*.json"))
Json = dict[str, Any]


def boards() -> list[Json]:
    return [json.loads(path.read_text("utf-8")) for path in FILES]


def panels(board: Json) -> Iterator[Json]:
    """Those that can be seen, in rows too; rows themselves are none."""
    for panel in board["panels"]:
        if panel["type"] == "row":
            yield from panel["panels"]
        else:
            yield panel


def expressions(board: Json) -> Iterator[tuple[str, str]]:
    """Where each stands, and what it is."""
    for panel in panels(board):
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for annotation in board["annotations"]["list"]:
        yield annotation["name"], annotation["target"]["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert found, variable
            yield f"${variable['name']}", found[1]


def metrics(expression: str) -> set[str]:
    """Names in an expression; Grafana's variables are put in as any duration or word."""
    text = re.sub(r"\[\$__\w+\]", "[1m]", expression)
    text = re.sub(r"\$\w+", "any", text)
    found: set[str] = set()

    def visit(node: promql.Expr) -> bool:
        if isinstance(node, promql.VectorSelector):
            assert node.name, expression
            found.add(node.name)
        return True

    promql.walk(promql.parse(text), visit)
    return found


def variables(expression: str) -> set[str]:
    """Of the dashboard, not Grafana's own."""
    return set(re.findall(r"\$([a-z]\w+)", expression))
