"""Class probabilities as every class recalibrator takes, makes and is fitted to them.

A class recalibrator works on log-probabilities, to which logits are brought first (log-softmax).
What a softmax leaves out says nothing of the probabilities, so that a method serves both alike.
Methods have files of their own, but for the identity.

Scores are laid out in columns, (C, N): the loops run over the classes, the arithmetic over all N
opinions. No sum depends on how many there are, so that a detection has the same bits alone or not.

One class against the others, then made to add up to 1 (Zadrozny & Elkan 2002).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt
from annotated_types import Interval, Len
from scipy.special import logsumexp

from monitor.frames.cholesky import add_up
from monitor.frames.space import BoolArray, Columns, FloatArray, IntArray
from monitor.recalibration.fit_rows import numbered_objects
from monitor.recalibration.recalibrator import Documented, InvalidRecalibrator, UnfitData
from monitor.statistics.clusters import design_effect_of_rows

# The least probability that is told from none; log-probabilities are bounded by its log.
LEAST = 1e-12

# Beyond this no parameter makes sense, and products of a few of them still are finite.
LARGEST = 1e6


def as_columns(log_probabilities: FloatArray) -> FloatArray:
    """(C, n · M), a copy of (n, M, C)."""
    n, opinions, classes = log_probabilities.shape
    rows = log_probabilities.reshape(n * opinions, classes)
    return np.array(rows.T, np.float64, order="C", copy=True)


def opinions_of(scores: FloatArray, shape: tuple[int, ...]) -> FloatArray:
    """Turns scores (C, n · M) into probabilities of the shape (n, M, C); overwrites the scores.

    p_c = exp(s_c) / Σ exp(s_c'). A NaN spreads over all C.
    """
    scores -= scores.max(axis=0)
    np.exp(scores, out=scores)
    scores /= add_up(scores)
    return np.ascontiguousarray(scores.T).reshape(shape)


def averaged_loss(scores: FloatArray, label: IntArray) -> tuple[FloatArray, FloatArray]:
    """Computes −log p(true class), (n,) in nats, of p = 1/M Σ_m softmax(s_m), and its derivatives
    by each score, (C, n · M).

    −log p_y = log M − log Σ_m exp(log softmax(s_m)_y), and by s_mc: r_m (softmax(s_m)_c − [c = y])
    with r_m the share of opinion m in p_y. With M = 1 that is the usual cross-entropy.

    scores  (C, n · M), the opinions of a row side by side
    label   (n,) y
    source  Laves et al. 2019, eq. 25 and section 3.5
    """
    opinions = scores.shape[1] // label.size
    true, column = np.repeat(label, opinions), np.arange(scores.shape[1])
    shifted = scores - scores.max(axis=0)
    probability = np.exp(shifted)
    total = probability.sum(axis=0)
    probability /= total
    log_true = (shifted[true, column] - np.log(total)).reshape(label.size, opinions)
    largest = log_true.max(axis=1, keepdims=True)
    share = np.exp(log_true - largest)
    added = share.sum(axis=1, keepdims=True)
    share /= added
    value = np.log(opinions) - largest[:, 0] - np.log(added[:, 0])
    probability[true, column] -= 1.0
    if opinions > 1:
        probability *= share.ravel()
    return value, probability


class ClassRecalibrator(Documented):
    """One fitted method. Immutable, so that it may be swapped between two frames.

    method  the name on the command line
    """

    __slots__ = ()
    method: ClassVar[str]

    @property
    def classes(self) -> int | None:
        """C it was fitted on; None if any will do."""
        return None

    def apply(self, log_probabilities: FloatArray) -> FloatArray:
        """Recalibrated probabilities, (n, M, C), of as many opinions; each opinion by itself.

        Several opinions of a detection are averaged only afterwards (Laves et al. 2019,
        eq. 25). A row of NaN stays one. Never writes into its argument.

        log_probabilities  (n, M, C) from from_logits or from_probabilities
        """
        scores = self.scores(as_columns(log_probabilities))
        return opinions_of(scores, log_probabilities.shape)

    def scores(self, columns: FloatArray) -> FloatArray:
        """Turns log-probabilities (C, n · M) into scores; may overwrite its argument."""
        return columns


def from_logits(logits: FloatArray) -> FloatArray:
    """Log-softmax over the last axis, at least log LEAST."""
    normalised = logits - logsumexp(logits, axis=-1, keepdims=True)
    bounded: FloatArray = np.maximum(normalised, np.log(LEAST))
    return bounded


def from_probabilities(probabilities: FloatArray) -> FloatArray:
    """Takes logarithms, at least log LEAST."""
    return np.log(np.maximum(probabilities, LEAST))


@dataclass(frozen=True)
class ClassRows(Columns):
    """n usable detections with their true classes.

    log_probabilities  (n, M, C) of M ≥ 1 opinions, C ≥ 2, from from_logits or from_probabilities
    label              (n,) true class, in 0 … C − 1
    track              (n,) number of the object each is of, −1 where it is of none; None where
                       no row is of any. Rows of one object are alike, so that they are worth
                       less than as many objects, and are never on both sides of a validation
    """

    log_probabilities: FloatArray
    label: IntArray
    track: IntArray | None = None

    def arrays(self) -> tuple[npt.NDArray[Any] | None, ...]:
        """Returns all arrays, None where there is none."""
        return self.log_probabilities, self.label, self.track

    @property
    def n(self) -> int:
        """Number of rows."""
        return int(self.log_probabilities.shape[0])

    @property
    def opinions(self) -> int:
        """M."""
        return int(self.log_probabilities.shape[1])

    @property
    def classes(self) -> int:
        """C."""
        return int(self.log_probabilities.shape[2])

    @cached_property
    def columns(self) -> FloatArray:
        """(C, n · M) log-probabilities, the opinions of a row side by side."""
        return as_columns(self.log_probabilities)

    @cached_property
    def tracks(self) -> int:
        """Number of objects; a row without a track is one of its own."""
        return self.n if self.track is None else numbered_objects(self.track)[1]

    @cached_property
    def weight(self) -> float:
        """Weight of a row, in (0, 1]: 1 over the design effect of its cross-entropy."""
        if self.n == 0 or self.track is None or np.all(self.track < 0):
            return 1.0
        loss, _ = averaged_loss(self.columns, self.label)
        effect = design_effect_of_rows(loss[:, None], np.ones(1), self.track)
        return float(1 / effect[0])

    def ordered(self) -> ClassRows:
        """Sorts the rows by their values alone, whatever order they came in.

        By the bytes of all their values: rows that are equal in these are equal, and sums over
        them then round alike.
        """
        parts = [self.label[:, None].astype(np.float64)]
        if self.track is not None:
            parts.append(self.track[:, None].astype(np.float64))
        values = np.hstack([*parts, self.log_probabilities.reshape(self.n, -1)])
        as_bytes = np.ascontiguousarray(values).view(np.dtype((np.void, values[0].nbytes)))
        return self.take(np.argsort(as_bytes.ravel(), kind="stable"))

    def fold(self, folds: int) -> IntArray:
        """Puts each row into a part of an inner validation, (n,) 0 … folds − 1.

        Drawn, with a fixed seed, for a track or a row without one. Not dealt out evenly over the
        classes: parts that share their class frequencies share what these owe to chance, and a
        bias of a class would be confirmed by it.
        """
        alone = np.full(self.n, -1)
        unit, units = numbered_objects(alone if self.track is None else self.track)
        return np.random.default_rng(0).permutation(units)[unit] % folds


@dataclass(frozen=True, slots=True)
class ClassIdentity(ClassRecalibrator):
    """Changes nothing but a sum a little off 1."""

    method: ClassVar[str] = "class-identity"


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
        self.check_entries(("made",), len(self.sent), "sent")
        for name, values in (("sent", self.sent), ("made", self.made)):
            if any(one > other for one, other in pairwise(values)):
                raise InvalidRecalibrator(f"'{name}' must never fall")


UNCHANGED = Knots((_LOWEST, 0.0), (_LOWEST, 0.0))


@dataclass(frozen=True)
class ClasswiseIsotonic(ClassRecalibrator):
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

    def scores(self, columns: FloatArray) -> FloatArray:
        """Follows the curve of each class."""
        for column, (sent, made) in zip(columns, self._arrays, strict=True):
            column[:] = np.interp(column, sent, made)
        return columns

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
