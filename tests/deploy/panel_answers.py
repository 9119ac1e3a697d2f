"""Asks a real Prometheus what dashboards and rules ask; no tests."""

import json
import math
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.deploy.panel_names import substituted
from tests.deploy.panel_traffic import Watched
from tests.deploy.scraping import PATIENCE, ROOT, Prometheus

DASHBOARDS = ROOT / "deploy" / "grafana" / "dashboards"
# Moments that a range is asked for, one a second if there are no more.
_MOMENTS = 30

Json = dict[str, Any]
Sample = tuple[float, float]
Series = tuple[dict[str, str], list[Sample]]


class Refused(ValueError):
    """Prometheus answers with an error."""


@dataclass(frozen=True, slots=True)
class Question:
    """One expression, as it stands in its dashboard.

    place     the panel or annotation that asks it
    optional  whether its row is one of those that may be empty
    instant   answered for one moment, the last; else over the range of the dashboard
    """

    dashboard: str
    place: str
    expression: str
    optional: bool = False
    instant: bool = False
    legend: str = ""
    ref: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one question, as it was asked with all variables put in; NaN are left out."""

    question: Question
    expression: str
    series: tuple[Series, ...] = ()
    error: str = ""

    @property
    def is_empty(self) -> bool:
        return not any(samples for _, samples in self.series)

    @property
    def greatest(self) -> float:
        """The greatest of all its values; NaN where there is none."""
        return max((value for _, samples in self.series for _, value in samples), default=math.nan)

    def labels(self) -> set[str]:
        return {label for labels, _ in self.series for label in labels}


def boards() -> tuple[Json, ...]:
    """Reads all dashboards, by the name of their file."""
    return tuple(json.loads(path.read_text("utf-8")) for path in sorted(DASHBOARDS.glob("*.json")))


def panels(board: Json) -> list[tuple[Json, bool]]:
    """Lists what can be seen, and whether it is in a folded row, which may be empty."""
    open_ones = [(panel, False) for panel in board["panels"] if panel["type"] != "row"]
    rows = [panel for panel in board["panels"] if panel["type"] == "row"]
    return [*open_ones, *((panel, True) for row in rows for panel in row["panels"])]


def questions(board: Json) -> list[Question]:
    return [
        Question(
            dashboard=board["uid"],
            place=panel["title"],
            expression=target["expr"],
            optional=optional,
            instant=target["instant"],
            legend=target["legendFormat"],
            ref=target["refId"],
        )
        for panel, optional in panels(board)
        for target in panel.get("targets", ())
    ]


def annotations(board: Json) -> list[Question]:
    listed = board["annotations"]["list"]
    return [Question(board["uid"], each["name"], each["target"]["expr"]) for each in listed]


def opened(watched: Watched, board: Json, **wanted: str) -> dict[str, str]:
    """Makes the choice that a dashboard opens with: all values, or the first; or what is wanted.

    Raises LookupError where a variable has no value.
    """
    chosen = {"__range": f"{math.ceil(watched.ended - watched.began)}s"}
    for variable in board["templating"]["list"]:
        if variable["type"] != "query":
            continue
        asked = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
        assert asked, variable
        selector, label = substituted(asked[1], chosen), asked[2]
        found = call(watched.prometheus, f"label/{label}/values", **{"match[]": selector})
        if not found:
            raise LookupError(f"{board['uid']}: ${variable['name']}: {selector} has no {label}")
        name = variable["name"]
        chosen[name] = wanted.get(name, ".*" if variable["includeAll"] else sorted(found)[0])
    return chosen


def ask(
    watched: Watched, question: Question, chosen: Mapping[str, str], at: float | None = None
) -> Answer:
    """Asks over all that happened, or at one moment; instant questions at the last."""
    expression = substituted(question.expression, chosen)
    answer = Answer(question, expression)
    if at is None and question.instant:
        at = watched.ended
    when = {"time": f"{at:.3f}"} if at is not None else _range(watched)
    path = "query" if at is not None else "query_range"
    try:
        result = call(watched.prometheus, path, query=expression, **when)["result"]
    except Refused as error:
        return replace(answer, error=str(error))
    return replace(answer, series=tuple(_series(entry) for entry in result))


def _range(watched: Watched) -> dict[str, str]:
    step = max(1, math.ceil((watched.ended - watched.began) / _MOMENTS))
    return {"start": f"{watched.began:.3f}", "end": f"{watched.ended:.3f}", "step": str(step)}


def _series(entry: Json) -> Series:
    samples = [(float(at), float(value)) for at, value in entry.get("values", [entry.get("value")])]
    return entry["metric"], [sample for sample in samples if not math.isnan(sample[1])]


def call(prometheus: Prometheus, path: str, **asked: str) -> Any:
    """Returns the data of one call of the API of Prometheus. Raises Refused."""
    url, body = f"http://{prometheus.address}/api/v1/{path}", urllib.parse.urlencode(asked)
    try:
        # Some queries are longer than a URL may be.
        posted = path.startswith("query")
        request = urllib.request.Request(url if posted else f"{url}?{body}")
        data = body.encode() if posted else None
        with urllib.request.urlopen(request, data, timeout=PATIENCE) as told:
            return json.load(told)["data"]
    except urllib.error.HTTPError as error:
        raise Refused(json.load(error)["error"]) from None


class Rule(NamedTuple):
    """Holds one rule by the name that it is recorded under, or of the alert."""

    name: str
    expression: str
    alert: bool


def rules(files: Sequence[Path]) -> list[Rule]:
    return [
        Rule(entry.get("record") or entry["alert"], entry["expr"], "alert" in entry)
        for path in files
        for group in yaml.safe_load(path.read_text("utf-8"))["groups"]
        for entry in group["rules"]
    ]


def health_of_rules(watched: Watched) -> dict[str, str]:
    """Returns what Prometheus says of each rule by its name: ok, or what went wrong."""
    return {
        rule["name"]: rule.get("lastError") or rule["health"]
        for group in call(watched.prometheus, "rules")["groups"]
        for rule in group["rules"]
    }
