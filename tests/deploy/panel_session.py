"""All that is asked of one drive: every question of every dashboard and rule, and its answer; no
tests.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from monitor.commands.demo.story import Plan
from tests.deploy.alerting import FILES
from tests.deploy.panel_answers import Answer, Rule, ask, health_of_rules, known, opened, rules
from tests.deploy.panel_names import Known, behind, families, metrics, mistakes, promql_blocks
from tests.deploy.panel_queries import DASHBOARDS, Dashboard, Question, dashboards
from tests.deploy.panel_traffic import Watched
from tests.deploy.panel_variables import intervals
from tests.deploy.scraping import RECORDING, ROOT

# Found in no legend's series: Grafana puts them in, not Prometheus.
_OWN = intervals(1, 20, 60)


@dataclass(frozen=True, slots=True, repr=False)
class Session:
    """What was seen, and what was asked of it.

    panels       answers to the panels' questions, each dashboard as it opens; those of optional
                 rows from the sidecar with all options
    sliced       the same with the demo's faulty sensor chosen, of dashboards that choose a slice
    plain        answers to the questions of optional rows from the demo
    annotations  answers from the demo
    variables    selectors whose labels were looked up for them, and where
    rules        of all files
    health       of each rule by its name: ok, or what is wrong
    alerts       answers from the demo to the expressions of alerts
    recorded     answers from the demo: how many series a rule has recorded
    """

    boards: tuple[Dashboard, ...]
    demo: Watched
    options: Watched
    known: Known
    panels: tuple[Answer, ...]
    sliced: tuple[Answer, ...]
    plain: tuple[Answer, ...]
    annotations: tuple[Answer, ...]
    variables: tuple[tuple[str, str], ...]
    rules: tuple[Rule, ...]
    health: Mapping[str, str]
    alerts: tuple[Answer, ...]
    recorded: tuple[Answer, ...]

    def expressions(self) -> Iterator[tuple[str, str]]:
        """Where each stands, and what it is, with variables put in."""
        for answer in (*self.panels, *self.annotations):
            yield f"{answer.question.dashboard}: {answer.question.place}", answer.expression
        for place, selector in self.variables:
            if selector:
                yield place, selector
        for rule in self.rules:
            yield rule.name, rule.expression
        for expression in documents():
            yield "documents", expression

    def mistakes(self) -> list[str]:
        """Metrics, labels and values that there are not, and where they are named."""
        return [
            f"{place}: {mistake}"
            for place, expression in self.expressions()
            for mistake in mistakes(expression, self.known)
        ]

    def exposed(self) -> dict[str, set[str]]:
        """Series by family, of both sidecars."""
        return families(self.demo.exposition) | families(self.options.exposition)

    def in_no_panel(self) -> set[str]:
        """Families that no panel shows, neither as they are nor as recorded."""
        recorded = {rule.name: rule.expression for rule in self.rules if not rule.alert}
        shown = behind(
            set().union(*(metrics(answer.expression) for answer in self.panels)), recorded
        )
        return {family for family, series in self.exposed().items() if not series & shown}

    def counts(self) -> dict[str, int]:
        """The account of it all."""
        answers = (*self.panels, *self.annotations, *self.alerts)
        return {
            "dashboards": len(self.boards),
            "panels": sum(len(board.panels) for board in self.boards),
            "expressions of panels": len(self.panels),
            "expressions of annotations": len(self.annotations),
            "queries of variables": len(self.variables),
            "recording rules": len(self.recorded),
            "alert rules": len(self.alerts),
            "answered with an error": sum(bool(answer.error) for answer in answers)
            + sum(health != "ok" for health in self.health.values()),
            "panel expressions without data": sum(answer.is_empty for answer in self.panels),
            "named that do not exist": len(self.mistakes()),
            "metrics": len(self.exposed()),
            "metrics in no panel": len(self.in_no_panel()),
        }


def session(
    demo: Watched, options: Watched, faulty: str = Plan().faulty, folder: Path = DASHBOARDS
) -> Session:
    """Ask everything."""
    boards = dashboards(folder)
    panels: list[Answer] = []
    sliced: list[Answer] = []
    plain: list[Answer] = []
    annotations: list[Answer] = []
    variables: list[tuple[str, str]] = []
    for board in boards:
        chosen, asked = opened(demo, board)
        with_options, _ = opened(options, board)
        variables += [(f"{board.uid}: ${name}", asked[name]) for name in asked]
        for question in board.questions:
            if question.optional:
                panels.append(ask(options, question, with_options))
                plain.append(ask(demo, question, chosen))
            else:
                panels.append(ask(demo, question, chosen))
        annotations += [ask(demo, question, chosen) for question in board.annotations]
        if any(variable.name == "slice" for variable in board.variables):
            of_slice, _ = opened(demo, board, {"slice": faulty})
            asking = [question for question in board.questions if not question.optional]
            sliced += [ask(demo, question, of_slice) for question in asking]
    every = rules((RECORDING, *FILES))
    return Session(
        boards=tuple(boards),
        demo=demo,
        options=options,
        known=known(demo, options),
        panels=tuple(panels),
        sliced=tuple(sliced),
        plain=tuple(plain),
        annotations=tuple(annotations),
        variables=tuple(variables),
        rules=tuple(every),
        health=health_of_rules(demo),
        alerts=tuple(_of_rule(demo, rule.name, rule.expression) for rule in every if rule.alert),
        # NaN is not greater than anything.
        recorded=tuple(
            _of_rule(demo, rule.name, f"count({rule.name} >= -Inf)")
            for rule in every
            if not rule.alert
        ),
    )


def _of_rule(watched: Watched, name: str, expression: str) -> Answer:
    return ask(watched, Question("rules", name, expression), _OWN)


def documents() -> list[str]:
    """Expressions in the README and the documents beside it, of any instance."""
    files = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    texts = [path.read_text("utf-8").replace('=~"van|bus"', '=~".*"') for path in files]
    return promql_blocks(texts)


def texts() -> list[str]:
    """What people read beside the queries: words of alerts and panels, and the documents."""
    words = [
        text
        for path in FILES
        for group in yaml.safe_load(path.read_text("utf-8"))["groups"]
        for rule in group["rules"]
        for text in rule.get("annotations", {}).values()
    ]
    files = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *DASHBOARDS.glob("*.json")]
    return [*words, *(path.read_text("utf-8") for path in files)]


def nameless(answers: Sequence[Answer]) -> list[str]:
    """Legends that name a label which none of the series has."""
    return [
        f"{answer.question.dashboard}: {answer.question.place}: no series has the label {label}"
        for answer in answers
        if not answer.is_empty
        for label in re.findall(r"\{\{\s*(\w+)\s*\}\}", answer.question.legend)
        if label not in answer.labels()
    ]


def fieldless(boards: Sequence[Dashboard], answers: Sequence[Answer]) -> list[str]:
    """Transformations that name a field which none of the panel's answers has."""
    found = []
    for board in boards:
        for place, fields in board.fields.items():
            own = [
                answer
                for answer in answers
                if (answer.question.dashboard, answer.question.place) == (board.uid, place)
            ]
            there = {"Time", "Value"}.union(*(answer.labels() for answer in own))
            there |= {f"Value #{answer.question.ref}" for answer in own}
            found += [
                f"{board.uid}: {place}: there is no field {field}"
                for field in sorted(fields - there)
            ]
    return found


def told(answers: Sequence[Answer]) -> list[str]:
    """Each that is empty or an error, in words."""
    return [
        f"{answer.question.dashboard}: {answer.question.place}: "
        f"{answer.error or 'is empty'}: {answer.expression}"
        for answer in answers
        if answer.error or answer.is_empty
    ]


def at_moment(found: Session, moment: float, slice_name: str) -> list[Answer]:
    """The panels of the demo at one moment; of one slice where one is shown at a time."""
    answers = []
    for board in found.boards:
        single = {each.name for each in board.variables if not each.all}
        wanted = {"slice": slice_name} if "slice" in single else {}
        chosen, _ = opened(found.demo, board, wanted)
        for question in board.questions:
            if not question.optional:
                answers.append(ask(found.demo, question, chosen, moment))
    return answers
