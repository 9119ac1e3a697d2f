"""Conditions of `--fail-if`: a bound on a measure, or a finding, and where it holds."""

from __future__ import annotations

import argparse
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from monitor.commands.options import checked
from monitor.statistics.class_evaluation import ClassEvaluation, class_as_json
from monitor.statistics.measures import Evaluation, as_json
from monitor.statistics.verdicts import ClassVerdict, Finding, Verdict

_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


# Measures that say how much there is to judge, and those of all dimensions together that are no
# measure of one dimension by the same name: these grow with the number of dimensions.
_AMOUNTS = ("rows", "rows_without_truth", "rows_refused", "tracks", "n", "n_eff")
_OF_ONE_DIMENSION = ("nees_mean", "nll")


@dataclass(frozen=True, slots=True)
class Condition:
    """A bound on a measure, as `--fail-if` takes it; without a comparison a finding."""

    measure: str
    comparison: str = ""
    bound: float = math.nan

    def __str__(self) -> str:
        return (
            f"{self.measure} {self.comparison} {self.bound:g}" if self.comparison else self.measure
        )


def read_condition(text: str) -> Condition:
    """Reads a condition of the command line. Raises ArgumentTypeError."""
    if text.strip().lower() in tuple(Finding):
        return Condition(text.strip().lower())
    match = re.fullmatch(r"\s*(\w+)\s*(>=|<=|>|<)\s*(\S+)\s*", text)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"'{text}': expected MEASURE > NUMBER, or >=, <, <=; or {', '.join(Finding)}"
        )
    number = checked(match[3], float, "a number, such as 2", math.isfinite)
    return Condition(match[1].lower(), match[2], number)


def holding(
    conditions: Sequence[Condition],
    groups: Mapping[str, Evaluation],
    verdicts: Sequence[Verdict],
    classes: ClassEvaluation | None,
    of_classes: ClassVerdict | None,
) -> Iterator[str]:
    """Yields which conditions hold.

    What too little data is known of is not judged; where nothing else is there, that is a failure.
    Raises ValueError for a measure that there is not.
    """
    for condition in conditions:
        values = list(_values(condition, groups, verdicts, classes, of_classes))
        if not values:
            raise ValueError(
                f"--fail-if '{condition}': there is no measure {condition.measure!r}. Give one of "
                "those that --json prints for joint, a dimension, a verdict or classification, "
                "such as sigma_factor, nees_over_k, ence, qce or ece."
            )
        judged = [(where, value) for where, value, known in values if known]
        if not judged:
            yield f"{values[0][0]}: too little data, so --fail-if '{condition}' judges nothing"
        for where, value in judged:
            if not condition.comparison:
                if value == condition.measure:
                    yield f"{where}: {value}, and --fail-if says {condition}"
            elif value is None:
                yield f"{where}: {condition.measure} is not defined, and --fail-if asks for it"
            elif isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"--fail-if '{condition}': {condition.measure} is no number.")
            elif _COMPARISONS[condition.comparison](value, condition.bound):
                yield f"{where}: {condition.measure} is {value:.4g}, and --fail-if says {condition}"


def _values(
    condition: Condition,
    groups: Mapping[str, Evaluation],
    verdicts: Sequence[Verdict],
    classes: ClassEvaluation | None,
    of_classes: ClassVerdict | None,
) -> Iterator[tuple[str, Any, bool]]:
    """Finds a measure, or the findings, wherever they are: by group jointly and by dimension, and
    of classes. Yields also whether there are data enough to judge it.
    """
    measure, of_finding = condition.measure, not condition.comparison
    sure = measure in (*_AMOUNTS, Finding.UNKNOWN)
    for verdict in verdicts:
        told = verdict.as_json()
        if of_finding or (measure in told and measure not in _AMOUNTS):
            where = ", ".join(filter(None, (verdict.group, verdict.dimension)))
            known = sure or verdict.finding is not Finding.UNKNOWN
            yield where, told["finding" if of_finding else measure], known
    if of_finding:
        if of_classes is not None:
            known = sure or of_classes.finding is not Finding.UNKNOWN
            yield "classes", str(of_classes.finding), known
        return
    enough = {verdict.group: verdict.enough for verdict in verdicts}
    for group, evaluation in groups.items():
        found: dict[str, Any] = as_json(evaluation)
        blocks = {"": found, "joint": found["joint"], **found["dimensions"]}
        if measure in _OF_ONE_DIMENSION:
            del blocks["joint"]
        for name, block in blocks.items():
            if measure in block:
                yield (
                    ", ".join(filter(None, (group, name))) or "all",
                    block[measure],
                    sure or enough[group],
                )
    if classes is not None and measure in (told := class_as_json(classes)):
        yield "classification", told[measure], True
