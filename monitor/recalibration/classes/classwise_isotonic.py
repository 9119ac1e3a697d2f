"""Classwise isotonic regression: how often a class is true at each probability of it.

One class against the others, then made to add up to 1 (Zadrozny & Elkan 2002).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Interval, Len

from monitor.frames.space import BoolArray, FloatArray
from monitor.recalibration.classes.probabilities import (
    LEAST,
    ClassRows,
    as_columns,
    opinions_of,
)
from monitor.recalibration.recalibrator import (
    Documented,
    InvalidRecalibrator,
    UnfitData,
    check_entries,
)

# Knots of a class at most.
MOST_KNOTS = 64

# A class with fewer rows of it, or of others, in independent rows, is left as it is.
FEWEST = 10
_LOWEST = float(np.log(LEAST))

_Logs = Annotated[tuple[Annotated[float, Interval(ge=_LOWEST, le=0.0)], ...], Len(2)]


@dataclass(frozen=True, slots=True)
class Knots(Documented):
    """Log-probabilities of a class that were sent, and what is made of them; neither ever falls."""

    sent: _Logs
    made: _Logs

    def __post_init__(self) -> None:
        check_entries(self, ("made",), len(self.sent), "sent")
        for name, values in (("sent", self.sent), ("made", self.made)):
            if any(one > other for one, other in pairwise(values)):
                raise InvalidRecalibrator(f"'{name}' must never fall")


UNCHANGED = Knots((_LOWEST, 0.0), (_LOWEST, 0.0))


@dataclass(frozen=True)
class ClasswiseIsotonic(Documented):
    """p̂_c ∝ exp(g_c(log p_c)), each g_c rising, linear between its knots and level beyond them.

    As no g_c goes below log LEAST, no probability is 0 or 1, and there always is a sum to
    divide by. The most likely class may change.

    knots   (C,) of each class
    source  Zadrozny & Elkan 2002, sections 3.2 and 4; theirs are steps, which give many classes
            one probability
    """

    knots: Annotated[tuple[Knots, ...], Len(2)]
    method: ClassVar[str] = "classwise-isotonic"

    @property
    def classes(self) -> int:
        """C."""
        return len(self.knots)

    def apply(self, log_probabilities: FloatArray) -> FloatArray:
        """Recalibrated probabilities of each opinion, (n, M, C)."""
        scores = as_columns(log_probabilities)
        for column, (sent, made) in zip(scores, self._arrays, strict=True):
            column[:] = np.interp(column, sent, made)
        return opinions_of(scores, log_probabilities.shape)

    @cached_property
    def _arrays(self) -> tuple[tuple[FloatArray, FloatArray], ...]:
        return tuple((np.array(one.sent), np.array(one.made)) for one in self.knots)


def fit_classwise_isotonic(rows: ClassRows) -> ClasswiseIsotonic:
    """Fits to each class the rising curve nearest to whether it is true; every opinion counts.

    Several opinions of a row count for one row together. Each is brought to how often its class
    is true, and their mean then is a little less sure than it might be.

    Raises UnfitData where no class has FEWEST independent rows of it and as many of others.
    """
    ordered = rows.ordered()
    label = np.repeat(ordered.label, rows.opinions)
    share = (np.bincount(ordered.label, minlength=rows.classes) + 1.0) / (rows.n + rows.classes)
    worth = ordered.weight / rows.opinions
    found = tuple(
        _curve(column, label == c, worth, float(share[c]))
        for c, column in enumerate(ordered.columns)
    )
    if all(knots == UNCHANGED for knots in found):
        raise UnfitData(
            f"no class has {FEWEST} independent rows of it and {FEWEST} of others among "
            f"{rows.n}: use temperature, or more data."
        )
    return ClasswiseIsotonic(found)


def _curve(sent: FloatArray, true: BoolArray, worth: float, share: float) -> Knots:
    """Knots of a class.

    Pool adjacent violators makes blocks of rows of one share of truth; a knot stands at a
    block's mean log-probability. Each block is given one more row, of the class's share in all
    rows, lest a few at the ends say 0 or 1.

    sent   (N,) log-probabilities of the class
    true   (N,) whether it is the true one
    worth  of each of them, in independent rows
    share  of the class in all rows
    """
    known = worth * np.count_nonzero(true)
    if min(known, worth * true.size - known) < FEWEST:
        return UNCHANGED
    # Half a second to import, and only a fit needs it.
    from scipy.optimize import isotonic_regression

    distinct, place, count = np.unique(sent, return_inverse=True, return_counts=True)
    hit = np.bincount(place, true)
    start = isotonic_regression(hit / count, weights=count).blocks[:-1]
    if start.size > MOST_KNOTS:
        start = start[np.arange(MOST_KNOTS) * start.size // MOST_KNOTS]
    rows = np.add.reduceat(count, start)
    at = np.add.reduceat(count * distinct, start) / rows
    n, hits = worth * rows, worth * np.add.reduceat(hit, start)
    # The added row may make neighbours fall that rose by little.
    made = isotonic_regression((hits + share) / (n + 1.0), weights=n + 1.0).x
    if at.size == 1:
        at, made = np.repeat(at, 2), np.repeat(made, 2)
    # Rounding of the means must not let knots fall, nor leave their range.
    at = np.clip(np.maximum.accumulate(at), _LOWEST, 0.0)
    return Knots(tuple(at.tolist()), tuple(np.maximum(np.log(made), _LOWEST).tolist()))
