"""Reads the conditions of `--fail-if`, each a bound on a measure or a finding, and where they hold.

They are held against what `evaluate --json` prints, so that a condition can name whatever is there.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from monitor.frames.words import Finding
from monitor.options.recorded import Condition
from monitor.statistics.verdicts import FEWEST_TO_JUDGE

_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


# Counts of what there is to judge; and measures of one dimension, whose namesakes of all dimensions
# together grow with their number and are no match for the same bound.
_AMOUNTS = ("rows", "rows_without_truth", "rows_refused", "tracks", "n", "n_eff")
_OF_ONE_DIMENSION = ("nees_mean", "nll")


def holding(conditions: Sequence[Condition], document: Mapping[str, Any]) -> Iterator[str]:
    """Yields which conditions hold of what `evaluate --json` prints.

    What too little data is known of is not judged; where nothing else is there, that is a failure.
    Raises ValueError for a measure that is not there.
    """
    for condition in conditions:
        values = list(_values(condition, document))
        if not values and document.get("without_covariance") and not document["verdicts"]:
            raise ValueError(
                f"--fail-if '{condition}': no row has a covariance that could be judged. Give a "
                "measure of errors, such as rmse, or judge a fit on other drives by --model."
            )
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


def _values(condition: Condition, document: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool]]:
    """Yields where a measure or a finding is, its value, and whether there are data to judge it."""
    measure, of_finding = condition.measure, not condition.comparison
    sure = measure in (*_AMOUNTS, Finding.UNKNOWN)
    enough = {}
    for told in document.get("verdicts", ()):
        rows = told["rows"] if told["tracks"] is None else told["tracks"]
        enough[told["group"]] = rows >= FEWEST_TO_JUDGE
        if of_finding or (measure in told and measure not in _AMOUNTS):
            known = sure or told["finding"] != Finding.UNKNOWN
            place = ", ".join(filter(None, (told["group"], told["dimension"])))
            yield place, told["finding" if of_finding else measure], known
    if of_finding:
        if told := document.get("class_verdict"):
            yield "classes", told["finding"], sure or told["finding"] != Finding.UNKNOWN
        return
    for group, found in (document.get("groups") or {"": document}).items():
        amounts = {name: found[name] for name in _AMOUNTS if name in found}
        blocks = {"": amounts, "joint": found["joint"] or {}, **found["dimensions"]}
        if measure in _OF_ONE_DIMENSION:
            del blocks["joint"]
        for name, block in blocks.items():
            if group in enough and measure in block:
                place = ", ".join(filter(None, (group, name))) or "all"
                yield place, block[measure], sure or enough[group]
    for found in document.get("without_covariance", {}).get("groups", ()):
        for name, block in found["dimensions"].items():
            if measure in block:
                place = ", ".join(filter(None, (found["group"], name)))
                yield f"{place} without a covariance", block[measure], block["known"]
    if measure in (told := document.get("classification", {})):
        yield "classification", told[measure], True
