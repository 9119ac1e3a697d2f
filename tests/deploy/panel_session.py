"""Asks everything of one drive: every question of every dashboard and rule; no tests."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import yaml

from monitor.commands.demo.story import Plan
from tests.deploy.panel_answers import (
    DASHBOARDS,
    Answer,
    Json,
    Question,
    Rule,
    annotations,
    ask,
    boards,
    call,
    health_of_rules,
    opened,
    panels,
    questions,
    rules,
)
from tests.deploy.panel_names import families, metrics
from tests.deploy.panel_traffic import Watched
from tests.deploy.scraping import ALERT_FILES, RECORDING, ROOT

# Prometheus makes it of alerts that are on, so that there may be none.
_OF_ALERTS = {"ALERTS"}


@dataclass(frozen=True, slots=True, repr=False)
class Session:
    """Holds what was seen, and what was asked of it.

    known     every metric that a Prometheus has, or whose type a sidecar tells
    panels    answers to the panels' questions; those of optional rows from the sidecar with options
    health    of each rule by its name: ok, or what is wrong
    recorded  how many series a rule has recorded
    """

    boards: tuple[Json, ...]
    demo: Watched
    options: Watched
    known: frozenset[str]
    panels: tuple[Answer, ...]
    annotations: tuple[Answer, ...]
    rules: tuple[Rule, ...]
    health: Mapping[str, str]
    alerts: tuple[Answer, ...]
    recorded: tuple[Answer, ...]

    def expressions(self) -> Iterator[tuple[str, str]]:
        """Yields where each stands, and what it is, with variables put in."""
        for answer in (*self.panels, *self.annotations):
            yield f"{answer.question.dashboard}: {answer.question.place}", answer.expression
        for rule in self.rules:
            yield rule.name, rule.expression
        for name, text in documents().items():
            for block in re.findall(r"```promql\n(.*?)```", text, flags=re.DOTALL):
                for expression in re.split(r"\n\n+", block.strip()):
                    yield name, expression

    def mistakes(self) -> list[str]:
        """Lists metrics that there are not, and what is no PromQL, and where they are named."""
        found = []
        for place, expression in self.expressions():
            try:
                missing = metrics(expression) - self.known - _OF_ALERTS
            except ValueError as error:
                found.append(f"{place}: is no PromQL: {error}")
            else:
                found += [f"{place}: there is no metric {name}" for name in sorted(missing)]
        return found

    def exposed(self) -> dict[str, set[str]]:
        """Lists series by family, of both sidecars."""
        return families(self.demo.exposition) | families(self.options.exposition)


def session(demo: Watched, options: Watched, faulty: str = Plan().faulty) -> Session:
    """Asks everything; of dashboards that show one slice at a time, of the faulty sensor's.

    Raises LookupError where a variable of a dashboard has no value.
    """
    asked, marks = list[Answer](), list[Answer]()
    for board in boards():
        chosen, with_options = opened(demo, board), opened(options, board)
        if "slice" in chosen:
            chosen["slice"] = faulty
        for question in questions(board):
            where = (options, with_options) if question.optional else (demo, chosen)
            asked.append(ask(where[0], question, where[1]))
        marks += [ask(demo, each, chosen) for each in annotations(board)]
    every = rules((RECORDING, *ALERT_FILES))
    alerts = [_of_rule(demo, rule.name, rule.expression) for rule in every if rule.alert]
    recorded = [
        # NaN is not greater than anything.
        _of_rule(demo, rule.name, f"count({rule.name} >= -Inf)")
        for rule in every
        if not rule.alert
    ]
    known = set().union(
        *(call(each.prometheus, "label/__name__/values") for each in (demo, options)),
        *(names for each in (demo, options) for names in families(each.exposition).values()),
    )
    return Session(
        boards=boards(),
        demo=demo,
        options=options,
        known=frozenset(known),
        rules=tuple(every),
        health=health_of_rules(demo),
        alerts=tuple(alerts),
        recorded=tuple(recorded),
        panels=tuple(asked),
        annotations=tuple(marks),
    )


def _of_rule(watched: Watched, name: str, expression: str) -> Answer:
    return ask(watched, Question("rules", name, expression), {})


def documents() -> dict[str, str]:
    """Reads what people read beside the queries: the documents, the dashboards, alerts' words."""
    files = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *DASHBOARDS.glob("*.json")]
    found = {path.name: path.read_text("utf-8") for path in files}
    for path in ALERT_FILES:
        groups = yaml.safe_load(path.read_text("utf-8"))["groups"]
        words = [rule["annotations"].values() for group in groups for rule in group["rules"]]
        found[path.name] = "\n".join(text for texts in words for text in texts)
    return found


def nameless(answers: Sequence[Answer]) -> list[str]:
    """Lists legends that name a label which none of the series has."""
    return [
        f"{answer.question.dashboard}: {answer.question.place}: no series has the label {label}"
        for answer in answers
        if not answer.is_empty
        for label in re.findall(r"\{\{\s*(\w+)\s*\}\}", answer.question.legend)
        if label not in answer.labels()
    ]


def fieldless(boards: Sequence[Json], answers: Sequence[Answer]) -> list[str]:
    """Lists transformations that name a field which none of the panel's answers has."""
    found = []
    for board in boards:
        for panel, _ in panels(board):
            place = (board["uid"], panel["title"])
            own = [a for a in answers if (a.question.dashboard, a.question.place) == place]
            there = {"Time", "Value"}.union(*(answer.labels() for answer in own))
            there |= {f"Value #{answer.question.ref}" for answer in own}
            for one in panel["transformations"]:
                how = one["options"]
                named = {*how.get("indexByName", ()), *how.get("excludeByName", ())}
                named |= {each["field"] for each in how.get("sort", ())}
                missing = sorted(named - there)
                found += [f"{': '.join(place)}: there is no field {name}" for name in missing]
    return found


def told(answers: Sequence[Answer]) -> list[str]:
    """Lists each that is empty or an error, in words."""
    return [
        f"{answer.question.dashboard}: {answer.question.place}: "
        f"{answer.error or 'is empty'}: {answer.expression}"
        for answer in answers
        if answer.error or answer.is_empty
    ]
