"""Judges and measures a file of statistics, such as a fleet state, as far as sums tell."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from monitor.commands.conditions import holding
from monitor.commands.evaluate.class_rows import class_table
from monitor.commands.evaluation_tables import all_measures, shortened, summary, verdict_lines
from monitor.commands.output import tell, to_standard_error
from monitor.commands.report.live import classes_of, slices_of
from monitor.frames.slices import is_total
from monitor.frames.space import Space
from monitor.options.values import allow
from monitor.statistics.class_evaluation import class_as_json
from monitor.statistics.exact_engine import BinCut
from monitor.statistics.measures import Evaluation, EvaluationError, as_json
from monitor.statistics.reading import RAW
from monitor.statistics.residuals import errors_of_sums
from monitor.statistics.verdicts import Verdict, gravest_first, verdicts_of_sums
from monitor.store.state_files import read_state

# Words for the stages where they differ.
_STAGES = {"raw": "as sent", "recalibrated": "as forwarded"}

NOT_KNOWN = (
    "whether σ ranks the errors, and which rows it would leave out",
    "how many tracks there are: a group is judged by what its rows are worth",
    "other groups than the slices of the state, and other classes, rows or labels",
)


def evaluate_state(options: argparse.Namespace, of_rows: tuple[str, ...]) -> list[str]:
    """Prints verdicts and measures of the slices of a state; returns what --fail-if finds.

    of_rows  options, by destination, that only rows can answer
    raises   ValueError where one of them is given; EvaluationError; as read_state
    """
    why = f"{options.file} holds sums, and no rows. Leave it out; `report` writes a page."
    allow(options, False, why, *of_rows)
    state = read_state(Path(options.file)).state
    cut = BinCut(options.bins or BinCut().count)
    groups, wholes, judged = dict[str, Evaluation](), dict[str, Evaluation](), list[Verdict]()
    without, first = list[dict[str, Any]](), dict[str, Evaluation]()
    for one in slices_of(state, cut):
        sent = next(iter(one.stages.values()))
        if not sent.rows:
            continue
        if is_total(one.name):
            if not one.space.assumed:
                wholes[one.name] = sent
            continue
        stages = dict(one.stages)
        if one.space.assumed:
            # What was assumed is not judged; what was estimated in its place is.
            without.append(_errors(one.name, one.space, stages.pop(RAW)))
        elif not first:
            first = {one.name: sent}
        for stage, found in stages.items():
            name = one.name if len(one.stages) == 1 else f"{one.name}, {_STAGES[stage]}"
            groups[name] = found
            judged += verdicts_of_sums(one.space, found, name)
    classes = {name: next(iter(stages.values())) for name, stages in classes_of(state)}
    if not groups and not classes and not without:
        raise EvaluationError(f"nothing to evaluate: no ground truth has come to {options.file}.")
    wholes = wholes or first
    verdicts = gravest_first(judged)
    rows = sum(one.rows for one in wholes.values())
    content: dict[str, object] = {"rows": rows, "dimensions": {}, "joint": None}
    if len(wholes) == 1:
        content = as_json(*wholes.values())
    content |= {
        "uploads": len(state.holds),
        "vehicles": len(state.holds.vehicles),
        "verdicts": [one.as_json() for one in verdicts],
        "groups": {name: as_json(one) for name, one in groups.items()},
        "not_known": NOT_KNOWN,
    }
    bare = sum(one["rows"] for one in without)
    if without:
        content["without_covariance"] = {"rows": bare, "groups": without}
    if classes:
        content["classes"] = {name: class_as_json(one) for name, one in classes.items()}
        if len(classes) == 1:
            content["classification"] = class_as_json(*classes.values())
    failures = list(holding(options.fail_if or (), content))
    if options.fail_if:
        content["failed"] = failures
    held = f"; {state.holds.counted}" if state.holds else ""
    tables = [f"{rows:,} rows with ground truth in {len(state.slices):,} slices{held}"]
    if without:
        told = shortened([line for one in without for line in one["sentences"]], full=options.full)
        lines = (f"{bare:,} rows have no covariance: their errors are measured.", *told)
        tables.insert(0, "\n".join(lines))
    if groups:
        tables.insert(0, verdict_lines(verdicts, full=options.full))
        tables += [all_measures(one) for one in wholes.values()] if options.full else []
        tables.append(summary(groups, verdicts))
    tables += [f"{name}, class probabilities\n{class_table(one)}" for name, one in classes.items()]
    tables.append("Not known from sums: " + ";\n    ".join(NOT_KNOWN) + ".")
    tell(options, content, "\n\n".join(tables))
    for line in failures:
        to_standard_error(f"calibration-monitor evaluate: {line}")
    return failures


def _errors(name: str, space: Space, found: Evaluation) -> dict[str, Any]:
    """Builds what is known of the errors of a slice whose covariances are assumed, for JSON."""
    errors = errors_of_sums(space, found)
    return {
        "group": name,
        "rows": found.rows,
        "n_eff": min(one.n_eff for one in found.dimensions.values()),
        "dimensions": {one.dimension: one.as_json() for one in errors},
        "sentences": [f"{name}, {one.sentence}" for one in errors],
    }
