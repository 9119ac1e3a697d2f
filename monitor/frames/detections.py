"""Validation of the detections of a frame, from the received arrays to a batch of usable ones.

Validation looks at the whole frame at once and marks rows. It never raises for what a detector
sent, and never touches the neighbours of a bad row. The words of a refusal live in reasons.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from monitor.frames.cholesky import pivots
from monitor.frames.classes import Sent, no_class, usable_opinions
from monitor.frames.covariances import (
    absent,
    failing,
    full_matrices,
    pivots_of_variances,
    symmetric,
    usable_pivots,
)
from monitor.frames.marks import NotNegative
from monitor.frames.space import (
    BoolArray,
    Columns,
    FloatArray,
    IntArray,
    Space,
    diagonal_in_triangle,
    no_truth,
    packed_covariances,
    read_only,
    triangle,
    unpacked_covariances,
)

IdArray = npt.NDArray[np.uint64]


class Estimates(Columns):
    """n Gaussians, whose covariances are packed or in full: one form is given, the other is made
    when it is first asked for.

    mean        (n, K)
    diagonal    (n,) whether only variances are known, and are sent back
    score       (n,) confidence of the detector, NaN where it sent none; None if there are none.
                Recalibrators read it; what they make has none
    """

    __slots__ = ("_given", "_other", "diagonal", "mean", "score")

    def __init__(
        self,
        mean: FloatArray,
        covariance: FloatArray,
        diagonal: BoolArray,
        score: FloatArray | None = None,
    ) -> None:
        """Takes arrays as they are, which nobody writes into from then on.

        covariance  (n, K, K) positive definite; or (n, K (K + 1) / 2) lower triangles; or (n, K)
                    variances, where all are diagonal
        """
        self.mean, self.diagonal, self.score = mean, diagonal, score
        self._given, self._other = covariance, None

    _other: FloatArray | None

    @property
    def k(self) -> int:
        """Counts the dimensions."""
        return int(self.mean.shape[1])

    @property
    def covariance(self) -> FloatArray:
        """Returns the covariances in full, (n, K, K)."""
        if self._given.ndim == 3:
            return self._given
        if self._other is None:
            self._other = unpacked_covariances(self._given, self.k)
        return self._other

    @property
    def packed(self) -> FloatArray:
        """Returns variances (n, K) if all are diagonal, else triangles (n, K (K + 1) / 2)."""
        return self.in_form(self.k if self.diagonal.all() else self.k * (self.k + 1) // 2)

    def in_form(self, width: int) -> FloatArray:
        """Returns (n, width): variances, lower triangles or all, whichever has that width."""
        given = self._given
        if given.ndim == 2 and given.shape[1] == width:
            return given
        if width == self.k:
            return self.variance
        return packed_covariances(self.covariance, width)

    @property
    def variance(self) -> FloatArray:
        """Returns the variance of each dimension, (n, K)."""
        given = self._given
        if given.ndim == 3:
            return np.diagonal(given, axis1=1, axis2=2)
        return given if given.shape[1] == self.k else given[:, diagonal_in_triangle(self.k)]

    @property
    def deviation(self) -> FloatArray:
        """Returns σ of each dimension, (n, K)."""
        return np.sqrt(self.variance)

    def plausible(self, variances: tuple[float, float]) -> bool:
        """Tells whether all values are finite, and all variances within bounds."""
        variance, (least, most) = self.variance, variances
        within = variance.min(initial=np.inf) >= least and variance.max(initial=0.0) <= most
        return bool(within and np.isfinite(self._given).all() and np.isfinite(self.mean).all())

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of all arrays but the score; an outcome has those of what it was made from."""
        k, given = self.k, self._given.shape
        if len(given) == 2 and given[1] in (k, k * (k + 1) // 2):
            given = given[0], k, k
        return self.mean.shape, given, self.diagonal.shape

    def rescaled(self, factor: FloatArray) -> Estimates:
        """Returns S Σ S with S = diag(factor), not s²Σ: correlations stay.

        factor  on σ: (K,) for all Gaussians, or (n, K)
        """
        # The product first: it is symmetric to the last bit, and stays so.
        if self._given.ndim == 3:
            product = factor[..., :, None] * factor[..., None, :]
        elif self._given.shape[1] == self.k:
            product = factor * factor
        else:
            rows, columns = triangle(self.k)
            product = factor[..., rows] * factor[..., columns]
        return Estimates(self.mean, self._given * product, self.diagonal)

    def moved(self, mean: FloatArray) -> Estimates:
        """Returns the same with other means, (n, K)."""
        return Estimates(mean, self._given, self.diagonal, self.score)

    def take(self, rows: IntArray | BoolArray | slice) -> Self:
        """Picks rows; a slice gives views."""
        score = None if self.score is None else self.score[rows]
        return type(self)(self.mean[rows], self._given[rows], self.diagonal[rows], score)

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Joins the rows of at least one part, in order."""
        shapes = {one._given.shape[1:] for one in parts}
        covariances = [one._given if len(shapes) == 1 else one.covariance for one in parts]
        scores = [one.score for one in parts if one.score is not None]
        return cls(
            np.concatenate([one.mean for one in parts]),
            np.concatenate(covariances),
            np.concatenate([one.diagonal for one in parts]),
            np.concatenate(scores) if len(scores) == len(parts) else None,
        )


class Reason(IntEnum):
    """Why a detection was not recalibrated, or a message not used; values as on the wire."""

    NONE = 1
    MISSING_COVARIANCE = 2
    OBSERVE_MODE = 3
    RECALIBRATOR_MISMATCH = 4
    RECALIBRATOR_FAILED = 5
    INTERNAL = 6
    UNKNOWN_CLASS = 7
    MEAN_LENGTH = 8
    MEAN_VALUE = 9
    COVARIANCE_LENGTH = 10
    COVARIANCE_NOT_FINITE = 11
    COVARIANCE_ASYMMETRIC = 12
    COVARIANCE_NOT_POSITIVE_DEFINITE = 13
    COVARIANCE_SCALE = 14
    MISSING_ID = 15
    DUPLICATE_ID = 16
    GROUND_TRUTH_INVALID = 17
    MALFORMED = 18
    TOO_LARGE = 19
    TOO_MANY_DETECTIONS = 20
    NO_HEADER = 21
    INVALID_HEADER = 22
    MISSING_FRAME_KEY = 23
    DUPLICATE_FRAME = 24
    EGO_MOTION_INVALID = 25
    MISSING_STAMP = 26
    NOT_TRACKED = 27
    CLASS_PROBABILITIES_INVALID = 28
    STALE = 29
    OVERLOAD = 30
    COORDINATE_FRAME = 31
    TRUTH_STAMP = 32
    COVARIANCE_ESTIMATED = 33

    @property
    def label(self) -> str:
        """Returns the name as metrics and messages have it."""
        return self.name.lower()


# Attribute look-ups of an enum are slow on the frame path.
_NONE = int(Reason.NONE)

# Reasons of detections that go out changed: recalibrated, or given an estimated covariance.
ACTED_ON = frozenset({Reason.NONE, Reason.COVARIANCE_ESTIMATED})

# Valid estimates that go out as they came; every other reason but those of ACTED_ON refuses.
PASSED_THROUGH = frozenset(
    {
        Reason.MISSING_COVARIANCE,
        Reason.OBSERVE_MODE,
        Reason.RECALIBRATOR_MISMATCH,
        Reason.RECALIBRATOR_FAILED,
        Reason.INTERNAL,
        Reason.STALE,
    }
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a plausible estimate, in the units of the stream."""

    largest_mean: NotNegative = 1e8
    smallest_deviation: NotNegative = 1e-6
    largest_deviation: NotNegative = 1e5

    @property
    def variances(self) -> tuple[float, float]:
        """Returns the bounds of variances."""
        return self.smallest_deviation**2, self.largest_deviation**2


@dataclass(frozen=True, slots=True)
class ReceivedDetections:
    """N detections of a frame as they came, in their order; nothing is checked yet.

    A length says how many values of a row were sent, which may be more than the array is wide.
    Values beyond it are NaN.

    id, has_id           (N,)
    class_index          (N,) −1 where absent
    mean                 (N, ≥K) and mean_length (N,)
    covariance           (N, ≥0) and covariance_length (N,)
    truth                (N, ≥0) and truth_length (N,); length 0 where absent
    uniform              all detections carry the same fields at the same lengths
    score                (N,) NaN where absent; None if none came
    upstream_track       (N,) and whether one was sent, (N,); None if none came
    class_probabilities  (N, ≥0) one opinion on the C classes after the other, and (N,) how many
                         values were sent, 0 where absent; None if none came
    ground_truth_class   (N,) and whether one was sent, (N,); None if none came
    """

    id: IdArray
    has_id: BoolArray
    class_index: IntArray
    mean: FloatArray
    mean_length: IntArray
    covariance: FloatArray
    covariance_length: IntArray
    truth: FloatArray
    truth_length: IntArray
    uniform: bool = False
    score: FloatArray | None = None
    upstream_track: tuple[IdArray, BoolArray] | None = None
    class_probabilities: Sent | None = None
    ground_truth_class: tuple[IntArray, BoolArray] | None = None

    @property
    def n(self) -> int:
        """Counts the detections."""
        return int(self.id.shape[0])

    @property
    def form(self) -> tuple[int | bool, ...] | None:
        """Names what detections have in common that can be examined together; None: they cannot.

        Class probabilities and true classes are looked at frame by frame.
        """
        if not self.uniform or self.class_probabilities is not None:
            return None
        if self.ground_truth_class is not None or not self.covariance.shape[1]:
            return None
        scored, named = self.score is not None, bool(self.has_id[0])
        widths = (one.shape[1] for one in (self.mean, self.covariance, self.truth))
        return (scored, named, *widths)

    def ids_beside(self, rows: IntArray) -> IdArray:
        """Returns the ids that came with any detection but those in these rows."""
        if rows.size == self.n:
            return self.id[:0]
        rest = self.has_id.copy()
        rest[rows] = False
        return self.id[rest]


@dataclass(frozen=True, slots=True)
class FrameBatch:
    """n usable detections of a frame: valid Gaussians of known classes.

    rows           (n,) positions in the frame
    sent           n estimates; `diagonal` where the detector sent variances only
    truth          (n, K) NaN where none came with the detection
    true_class     (n,) −1 where none came with the detection
    probabilities  (n, M, C) M opinions on the C classes, a row of NaN where no usable ones
                   came with the detection; None if no usable ones came at all
    pivot          (n, K) diagonal of the Cholesky factor in Space.order, as validation found it
    assumed        (n,) whether no covariance came, so that it is assumed; None if all came
    """

    space: Space
    rows: IntArray
    id: IdArray
    class_index: IntArray
    sent: Estimates
    truth: FloatArray
    true_class: IntArray
    pivot: FloatArray
    probabilities: FloatArray | None = None
    assumed: BoolArray | None = None

    def part(self, received: ReceivedDetections, rows: slice) -> FrameBatch:
        """Returns the rows of one frame, as received, of a batch of several examined together."""
        truth = received.truth if received.truth.shape[1] else no_truth(received.n, self.space.k)
        return FrameBatch(
            space=self.space,
            rows=np.arange(received.n),
            id=received.id,
            class_index=received.class_index,
            sent=_sent(received, self.sent.diagonal[0]),
            truth=truth,
            true_class=no_class(received.n),
            pivot=self.pivot[rows],
        )

    @property
    def roots(self) -> FloatArray:
        """Returns (n, J) whose product is the root of the determinant of the joint block."""
        return self.pivot[:, : len(self.space.joint)]


@dataclass(frozen=True, slots=True)
class Examined:
    """Outcome of the validation of the N detections of a frame.

    reason                 (N,) Reason of each detection
    truth_invalid          (N,) whose inline truth is unusable; the detection may be usable
    batch                  the detections with reason NONE
    probabilities_invalid  (N,) whose class probabilities are unusable
    true_class_invalid     (N,) whose inline true class is unusable
    clean                  nothing at all was found

    Class probabilities and true class are judged for detections of the batch alone.
    """

    reason: npt.NDArray[np.uint8]
    truth_invalid: BoolArray
    batch: FrameBatch
    probabilities_invalid: BoolArray
    true_class_invalid: BoolArray
    clean: bool = False

    @classmethod
    def of_clean(cls, batch: FrameBatch) -> Examined:
        """Returns the outcome of a frame in which all is usable."""
        nothing = _every(batch.rows.size, False)
        reason = _reasons(batch.rows.size, _NONE)
        return cls(reason, nothing, batch, nothing, nothing, clean=True)


def examine(
    received: ReceivedDetections,
    space: Space,
    classes: int,
    limits: Limits,
    assumed: FloatArray | None = None,
) -> Examined:
    """Sorts the detections of a frame into usable ones and ones with a reason.

    Where several reasons apply, the first in the order of the checks is given. Class
    probabilities and a true class that cannot be used are set aside: they are no reason
    against the Gaussian.

    assumed  (K,) variances of detections that come without a covariance; None: they are not usable
    """
    examined = _gaussians(received, space, classes, limits, assumed)
    if received.class_probabilities is None and received.ground_truth_class is None:
        return examined
    return _with_classes(examined, received, classes)


def examine_together(
    frames: Sequence[ReceivedDetections], space: Space, classes: int, limits: Limits
) -> FrameBatch | None:
    """Examines frames that are of one `form` as one; None unless each is usable as a whole."""

    def joined(name: str) -> npt.NDArray[Any]:
        return np.concatenate([getattr(one, name) for one in frames])

    first, n = frames[0], sum(one.n for one in frames)
    received = ReceivedDetections(
        id=joined("id"),
        has_id=_every(n, bool(first.has_id[0])),
        class_index=joined("class_index"),
        mean=joined("mean"),
        mean_length=np.broadcast_to(first.mean_length[:1], n),
        covariance=joined("covariance"),
        covariance_length=np.broadcast_to(first.covariance_length[:1], n),
        truth=joined("truth"),
        truth_length=np.broadcast_to(first.truth_length[:1], n),
        uniform=True,
        score=None if first.score is None else joined("score"),
    )
    begins = np.cumsum([one.n for one in frames])[:-1]
    return _all_usable(received, space, classes, limits, None, begins)


def _gaussians(
    received: ReceivedDetections,
    space: Space,
    classes: int,
    limits: Limits,
    assumed: FloatArray | None,
) -> Examined:
    """Validates everything but class probabilities and true classes."""
    if received.uniform:
        batch = _all_usable(received, space, classes, limits, assumed)
        if batch is not None:
            return Examined.of_clean(batch)
    n, k = received.n, space.k
    reason = np.full(n, _NONE, np.uint8)

    def mark(bad: BoolArray | None, why: Reason) -> None:
        if bad is not None and np.count_nonzero(bad):
            reason[bad & (reason == _NONE)] = why

    mark(~received.has_id, Reason.MISSING_ID)
    mark(_repeated(received.id, received.has_id), Reason.DUPLICATE_ID)
    known = (received.class_index >= 0) & (received.class_index < classes)
    mark(~known, Reason.UNKNOWN_CLASS)
    mark(received.mean_length != k, Reason.MEAN_LENGTH)
    mean = _columns(received.mean, k)
    # NaN fails the comparison too.
    mark(failing(np.abs(mean) <= limits.largest_mean), Reason.MEAN_VALUE)

    forms = (k, k * (k + 1) // 2, k * k)
    length = received.covariance_length
    values = received.covariance[:, : k * k]
    fits = (length == forms[0]) | (length == forms[1]) | (length == forms[2])
    mark(~fits & (length > 0), Reason.COVARIANCE_LENGTH)
    bare = absent(values, length, fits)
    covariance = full_matrices(values, length, forms)
    if assumed is None:
        mark(bare, Reason.MISSING_COVARIANCE)
        bare = None
    elif bare is not None:
        covariance = np.where(bare[:, None, None], np.diag(assumed), covariance)
    # A sum is finite only if every term is, and one number is quicker to test.
    with np.errstate(invalid="ignore", over="ignore"):
        total = covariance.sum()
    if not np.isfinite(total):
        mark(failing(np.isfinite(covariance)), Reason.COVARIANCE_NOT_FINITE)
    covariance, asymmetric = symmetric(covariance, length == forms[2])
    mark(asymmetric, Reason.COVARIANCE_ASYMMETRIC)
    diagonal = (length == forms[0]) & (k > 1)
    variance = covariance[:, np.arange(k), np.arange(k)]
    if bare is not None:
        diagonal |= bare & (k > 1)
    if diagonal.all():
        marked, pivot = failing(variance > 0), pivots_of_variances(variance, space)
    else:
        pivot = pivots(packed_covariances(covariance, forms[1]), k, space.order)
        marked = failing(~np.isnan(pivot[:, -1]))
    mark(marked, Reason.COVARIANCE_NOT_POSITIVE_DEFINITE)
    least, most = limits.variances
    plausible = (variance >= least) & (variance <= most)
    mark(failing(plausible if bare is None else plausible | bare[:, None]), Reason.COVARIANCE_SCALE)

    truth, truth_invalid = _truth(received, k, limits)
    rows = np.flatnonzero(reason == _NONE)
    pick: IntArray | slice = slice(None) if rows.size == n else rows
    batch = FrameBatch(
        space=space,
        rows=rows,
        id=received.id[pick],
        class_index=received.class_index[pick],
        sent=Estimates(
            mean[pick],
            covariance[pick],
            diagonal[pick],
            None if received.score is None else received.score[pick],
        ),
        truth=truth[pick],
        true_class=no_class(rows.size),
        pivot=pivot[pick],
        assumed=None if bare is None or not bare[pick].any() else bare[pick],
    )
    nothing = np.zeros(n, bool)
    return Examined(reason, truth_invalid, batch, nothing, nothing)


def _with_classes(examined: Examined, received: ReceivedDetections, classes: int) -> Examined:
    """Adds the usable class probabilities and true classes to the batch."""
    batch, rows = examined.batch, examined.batch.rows
    probabilities, true_class = batch.probabilities, batch.true_class
    probabilities_invalid = np.zeros(received.n, bool)
    true_class_invalid = np.zeros(received.n, bool)
    if received.class_probabilities is not None:
        values, length = received.class_probabilities
        probabilities, invalid = usable_opinions(values, length, rows, classes)
        probabilities_invalid[rows] = invalid
    if received.ground_truth_class is not None:
        index, sent = received.ground_truth_class
        known = sent & (index < classes)
        true_class = np.where(known, index, -1)[rows]
        true_class_invalid[rows] = (sent & ~known)[rows]
    return replace(
        examined,
        batch=replace(batch, probabilities=probabilities, true_class=true_class),
        probabilities_invalid=probabilities_invalid,
        true_class_invalid=true_class_invalid,
        clean=examined.clean and not (probabilities_invalid.any() or true_class_invalid.any()),
    )


def _all_usable(
    received: ReceivedDetections,
    space: Space,
    classes: int,
    limits: Limits,
    assumed: FloatArray | None,
    begins: IntArray | None = None,
) -> FrameBatch | None:
    """Returns the whole frame if a few tests of all its detections together pass, as is the rule.

    None says only that each detection must be tested by itself. Comparisons are written so
    that NaN fails them.

    begins  rows in which another frame begins; None: it is one frame
    """
    k, n = space.k, received.n
    forms = (k, k * (k + 1) // 2, k * k)
    form, truth_length = int(received.covariance_length[0]), int(received.truth_length[0])
    ids, mean, truth = received.id, received.mean, received.truth
    bare = form == 0 and assumed is not None
    ascending = ids[1:] > ids[:-1]
    if begins is not None:
        ascending[begins - 1] = True
    if (
        not received.has_id[0]
        or np.count_nonzero(ascending) != n - 1
        or received.mean_length[0] != k
        or not (form in forms or bare)
        or truth_length not in (0, k)
        or (truth_length and not np.abs(truth).max() <= limits.largest_mean)
    ):
        return None
    variances = limits.variances
    diagonal = (form == k or bare) and k > 1
    if bare:
        assumed_all, variances = np.broadcast_to(np.asarray(assumed), (n, k)), (0.0, np.inf)
        sent = Estimates(mean, assumed_all, _every(n, diagonal), received.score)
    else:
        sent = _sent(received, diagonal)
    full = form == forms[2] > 1
    if full and not np.array_equal(sent.covariance, sent.covariance.transpose(0, 2, 1)):
        return None
    packed = sent.in_form(forms[0] if diagonal else forms[1])
    pivot = usable_pivots(
        received.class_index, mean, packed, space, classes, limits.largest_mean, variances
    )
    if pivot is None:
        return None
    return FrameBatch(
        space=space,
        rows=np.arange(n),
        id=received.id,
        class_index=received.class_index,
        sent=sent,
        truth=truth if truth_length else no_truth(n, k),
        true_class=no_class(n),
        pivot=pivot,
        assumed=_every(n, True) if bare else None,
    )


def _sent(received: ReceivedDetections, diagonal: bool) -> Estimates:
    """Returns the estimates of a frame of one form as they came."""
    covariance, k = received.covariance, received.mean.shape[1]
    if covariance.shape[1] == k * k > 1:
        covariance = covariance.reshape(-1, k, k)
    return Estimates(received.mean, covariance, _every(received.n, diagonal), received.score)


@lru_cache(maxsize=256)
def _every(n: int, value: bool) -> BoolArray:
    """Returns (n,) of one value; read-only, since frames share it."""
    return read_only(np.full(n, value))


@lru_cache(maxsize=256)
def _reasons(n: int, reason: int) -> npt.NDArray[np.uint8]:
    """Returns (n,) of one reason; read-only, since frames share it."""
    return read_only(np.full(n, reason, np.uint8))


def _truth(received: ReceivedDetections, k: int, limits: Limits) -> tuple[FloatArray, BoolArray]:
    """Returns inline truth (N, K), NaN where absent or unusable, and marks the unusable (N,)."""
    sent = received.truth_length > 0
    if not sent.any():
        return no_truth(received.n, k), sent
    truth = _columns(received.truth, k)
    implausible = failing(np.abs(truth) <= limits.largest_mean)
    bad = received.truth_length != k
    if implausible is not None:
        bad = bad | implausible
    if not bad.any():
        return truth, bad
    return np.where(bad[:, None], np.nan, truth), sent & bad


def _repeated(ids: IdArray, sent: BoolArray) -> BoolArray:
    """Marks every occurrence of an id but its first."""
    repeated = np.zeros(ids.size, bool)
    if np.count_nonzero(ids[1:] > ids[:-1]) == ids.size - 1:
        return repeated
    # An id that was not sent reads 0, and must not make a real 0 a repetition.
    order = np.argsort(ids, kind="stable") if sent.all() else np.lexsort((~sent, ids))
    ordered = ids[order]
    repeated[order[1:]] = ordered[1:] == ordered[:-1]
    return repeated


def _columns(values: FloatArray, k: int) -> FloatArray:
    """Returns the first k columns, NaN where there are fewer."""
    if values.shape[1] >= k:
        return values[:, :k]
    padded = np.full((values.shape[0], k), np.nan)
    padded[:, : values.shape[1]] = values
    return padded
