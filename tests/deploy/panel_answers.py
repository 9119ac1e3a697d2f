"""What a real Prometheus answers to the questions of dashboards and rules; no tests."""

import json
import math
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.panel_names import Known, documented, families
from tests.deploy.panel_queries import Dashboard, Question
from tests.deploy.panel_traffic import Watched
from tests.deploy.panel_variables import Chosen, choose, intervals, substituted
from tests.deploy.scraping import PATIENCE, ROOT, Prometheus

# Moments that a range is asked for, one a second if there are no more.
_MOMENTS = 30
# s that stand for Grafana's $__rate_interval: four scrapes of the example under compose.
RATE = 20


class Refused(ValueError):
    """Prometheus answers with an error."""


Sample = tuple[float, float]
Series = tuple[dict[str, str], list[Sample]]


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one question.

    expression  as it was asked, with all variables put in
    series      labels, and moments with values, without those that are NaN
    moments     that were asked for
    error       what Prometheus says instead, or empty
    """

    question: Question
    expression: str
    series: tuple[Series, ...] = ()
    moments: int = 1
    error: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not any(samples for _, samples in self.series)

    @property
    def greatest(self) -> float:
        """Of all its values; NaN where there is none."""
        return max((value for _, samples in self.series for _, value in samples), default=math.nan)

    @property
    def share(self) -> float:
        """Of the moments that have anything to draw."""
        return len({at for _, samples in self.series for at, _ in samples}) / self.moments

    def labels(self) -> set[str]:
        """Of any of the series."""
        return {label for labels, _ in self.series for label in labels}


def ask(
    watched: Watched, question: Question, chosen: Mapping[str, Chosen], at: float | None = None
) -> Answer:
    """Over all that happened, or at one moment; what is of the last moment alone, at that."""
    expression = substituted(question.expression, chosen)
    if at is None and question.instant:
        at = watched.ended
    answer = Answer(question, expression)
    try:
        if at is not None:
            result = call(watched.prometheus, "query", query=expression, time=f"{at:.3f}")["result"]
            return replace(answer, series=_series(result, "value"))
        step = step_of(watched)
        moments = math.floor((watched.ended - watched.began) / step) + 1
        result = call(
            watched.prometheus,
            "query_range",
            query=expression,
            start=f"{watched.began:.3f}",
            end=f"{watched.ended:.3f}",
            step=str(step),
        )["result"]
        return replace(answer, series=_series(result, "values"), moments=moments)
    except Refused as error:
        return replace(answer, error=str(error))


def step_of(watched: Watched) -> int:
    """s between two moments of a range."""
    return max(1, math.ceil((watched.ended - watched.began) / _MOMENTS))


def _series(result: Any, key: str) -> tuple[Series, ...]:
    # A scalar is a moment and a value.
    entries = result if not result or isinstance(result[0], dict) else [{"value": result}]
    found = []
    for entry in entries:
        pairs = entry[key] if key in entry and key == "values" else [entry["value"]]
        samples = [(float(at), float(value)) for at, value in pairs]
        found.append((entry.get("metric", {}), [s for s in samples if not math.isnan(s[1])]))
    return tuple(found)


def call(prometheus: Prometheus, path: str, **asked: str | list[str]) -> Any:
    """Data of one call of the API of Prometheus. Raises Refused."""
    url = f"http://{prometheus.address}/api/v1/{path}"
    if path.startswith("query"):  # some are longer than a URL may be
        body = urllib.parse.urlencode(asked, doseq=True).encode()
    else:
        body, url = None, f"{url}?{urllib.parse.urlencode(asked, doseq=True)}"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=PATIENCE) as told:
            return json.load(told)["data"]
    except urllib.error.HTTPError as error:
        raise Refused(json.load(error)["error"]) from None


def label_values(watched: Watched, selector: str, label: str) -> list[str]:
    """All that a label has had over the series of a selector."""
    asked: dict[str, str] = {"match[]": selector} if selector else {}
    values: list[str] = call(watched.prometheus, f"label/{label}/values", **asked)
    return values


def opened(
    watched: Watched, of: Dashboard, wanted: Mapping[str, str] | None = None
) -> tuple[dict[str, Chosen], dict[str, str]]:
    """The choice that a dashboard opens with, and the selectors whose labels were looked up."""
    whole = math.ceil(watched.ended - watched.began)
    return choose(
        of.variables,
        intervals(step_of(watched), RATE, whole),
        lambda selector, label: label_values(watched, selector, label),
        wanted,
    )


def known(*all_watched: Watched) -> Known:
    """Every metric that any of them has, or whose type its sidecar tells; labels and values."""
    labels: dict[str, dict[str, set[str]]] = {}
    for watched in all_watched:
        for name in declared(watched.exposition):
            labels.setdefault(name, {})
        for series in call(watched.prometheus, "series", **{"match[]": '{__name__=~".+"}'}):
            of = labels.setdefault(series.pop("__name__"), {})
            for label, value in series.items():
                of.setdefault(label, set()).add(value)
    readme = (ROOT / "README.md").read_text("utf-8")
    return Known(
        {
            name: {label: frozenset(values) for label, values in of.items()}
            for name, of in labels.items()
        },
        documented(readme)[1],
    )


def declared(exposition: str) -> set[str]:
    """Names of all series that a sidecar may have, without those of a histogram's family."""
    return set().union(*families(exposition).values())


@dataclass(frozen=True, slots=True)
class Rule:
    """One of a rule file.

    name  that it is recorded under, or of the alert
    """

    name: str
    expression: str
    alert: bool


def rules(files: Sequence[Path]) -> list[Rule]:
    """All of them, in order."""
    return [
        Rule(entry.get("record") or entry["alert"], entry["expr"], "alert" in entry)
        for path in files
        for group in yaml.safe_load(path.read_text("utf-8"))["groups"]
        for entry in group["rules"]
    ]


def health_of_rules(watched: Watched) -> dict[str, str]:
    """What Prometheus says of each rule by its name: ok, or what went wrong."""
    return {
        rule["name"]: rule.get("lastError") or rule["health"]
        for group in call(watched.prometheus, "rules")["groups"]
        for rule in group["rules"]
    }
