"""A frame as it came, and what remains of it when everything unusable is set aside.

Validation looks at the whole frame at once and marks rows; it never raises for
what a detector sent, and never touches the neighbours of a bad row.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from monitor.calibration.cholesky import SINGULAR, factorise, positive_definite
from monitor.calibration.space import (
    BoolArray,
    FloatArray,
    IntArray,
    Space,
    no_truth,
    square_from_triangle,
)

IdArray = npt.NDArray[np.uint64]


class Reason(IntEnum):
    """Why something was not recalibrated; the values are those of the wire."""

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

    @property
    def label(self) -> str:
        """As it appears in metrics and messages."""
        return self.name.lower()


# Attribute look-ups of an enum are slow on the frame path.
_NONE = int(Reason.NONE)

# Largest |Σij − Σji| that passes as rounding, against σi σj: single precision allows for it.
ASYMMETRY = 1e-6

# Valid estimates that go out as they came; every other reason but NONE refuses.
PASSED_THROUGH = frozenset(
    {
        Reason.MISSING_COVARIANCE,
        Reason.OBSERVE_MODE,
        Reason.RECALIBRATOR_MISMATCH,
        Reason.RECALIBRATOR_FAILED,
        Reason.INTERNAL,
    }
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a plausible estimate looks like, in the units of the stream."""

    largest_mean: float = 1e8
    smallest_deviation: float = 1e-6
    largest_deviation: float = 1e5


@dataclass(frozen=True, slots=True)
class ReceivedDetections:
    """The N detections of a frame as they came, in their order; nothing is checked yet.

    Values beyond a row's own length are NaN; its length says how many were sent
    (which may be more than the array is wide).

    id, has_id        (N,)
    class_index       (N,) −1 where absent
    mean              (N, ≥K) and mean_length (N,)
    covariance        (N, ≥0) and covariance_length (N,)
    truth             (N, ≥0) and truth_length (N,); length 0 where absent
    uniform           all detections carry the same fields at the same lengths
    score             (N,) NaN where absent; None if none came
    upstream_track    (N,) and whether one was sent, (N,); None if none came
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

    @property
    def n(self) -> int:
        """Number of detections."""
        return int(self.id.shape[0])

    def ids_beside(self, rows: IntArray) -> IdArray:
        """Ids that came with any detection but those in these rows."""
        if rows.size == self.n:
            return self.id[:0]
        rest = self.has_id.copy()
        rest[rows] = False
        return self.id[rest]


@dataclass(frozen=True, slots=True)
class FrameBatch:
    """The usable detections of a frame: valid Gaussians of known classes, as arrays.

    rows        (n,) their positions in the frame
    mean        (n, K)
    covariance  (n, K, K) symmetric positive definite
    diagonal    (n,) whether the detector sent variances only
    truth       (n, K), NaN where none came with the detection
    """

    space: Space
    rows: IntArray
    id: IdArray
    class_index: IntArray
    mean: FloatArray
    covariance: FloatArray
    diagonal: BoolArray
    truth: FloatArray


@dataclass(frozen=True, slots=True)
class Examined:
    """The outcome of validation.

    reason         (N,) of Reason for every detection of the frame
    truth_invalid  (N,) detections whose inline truth is unusable; they themselves may be fine
    batch          the detections with reason NONE
    clean          nothing at all was found
    """

    reason: npt.NDArray[np.uint8]
    truth_invalid: BoolArray
    batch: FrameBatch
    clean: bool = False


def examine(received: ReceivedDetections, space: Space, classes: int, limits: Limits) -> Examined:
    """Sort the detections of a frame into usable ones and ones with a reason.

    Where several reasons apply, the first in the order of the checks is given.
    """
    if received.uniform:
        batch = _all_usable(received, space, classes, limits)
        if batch is not None:
            reason = np.full(received.n, _NONE, np.uint8)
            return Examined(reason, np.zeros(received.n, bool), batch, clean=True)
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
    mark(_failing(np.abs(mean) <= limits.largest_mean), Reason.MEAN_VALUE)

    forms = (k, k * (k + 1) // 2, k * k)
    length = received.covariance_length
    values = received.covariance[:, : k * k]
    fits = (length == forms[0]) | (length == forms[1]) | (length == forms[2])
    mark(~fits & (length > 0), Reason.COVARIANCE_LENGTH)
    mark(_absent(values, length, fits), Reason.MISSING_COVARIANCE)
    covariance = _full_matrices(values, length, forms)
    # A sum is finite only if all of it is, and quicker to look at.
    with np.errstate(invalid="ignore", over="ignore"):
        total = covariance.sum()
    if not np.isfinite(total):
        mark(_failing(np.isfinite(covariance)), Reason.COVARIANCE_NOT_FINITE)
    covariance, asymmetric = _symmetric(covariance, length == forms[2])
    mark(asymmetric, Reason.COVARIANCE_ASYMMETRIC)
    diagonal = (length == forms[0]) & (k > 1)
    variance = covariance[:, np.arange(k), np.arange(k)]
    if diagonal.all():
        mark(_failing(variance > 0), Reason.COVARIANCE_NOT_POSITIVE_DEFINITE)
    else:
        mark(_indefinite(covariance, variance, space), Reason.COVARIANCE_NOT_POSITIVE_DEFINITE)
    plausible = (variance >= limits.smallest_deviation**2) & (
        variance <= limits.largest_deviation**2
    )
    mark(_failing(plausible), Reason.COVARIANCE_SCALE)

    truth, truth_invalid = _truth(received, k, limits)
    rows = np.flatnonzero(reason == _NONE)
    pick: IntArray | slice = slice(None) if rows.size == n else rows
    batch = FrameBatch(
        space=space,
        rows=rows,
        id=received.id[pick],
        class_index=received.class_index[pick],
        mean=mean[pick],
        covariance=covariance[pick],
        diagonal=diagonal[pick],
        truth=truth[pick],
    )
    return Examined(reason, truth_invalid, batch)


def _all_usable(
    received: ReceivedDetections, space: Space, classes: int, limits: Limits
) -> FrameBatch | None:
    """The whole frame, where a few looks at all of it together find nothing wrong: the rule.

    None says only that the detections must be looked at one by one. Comparisons
    are written so that NaN fails them.
    """
    k, n = space.k, received.n
    forms = (k, k * (k + 1) // 2, k * k)
    form, truth_length = int(received.covariance_length[0]), int(received.truth_length[0])
    ids, mean, truth = received.id, received.mean, received.truth
    if (
        not received.has_id[0]
        or np.count_nonzero(ids[1:] > ids[:-1]) != n - 1
        or not (received.class_index.min() >= 0 and received.class_index.max() < classes)
        or received.mean_length[0] != k
        or form not in forms
        or truth_length not in (0, k)
        or not np.abs(mean).max() <= limits.largest_mean
        or (truth_length and not np.abs(truth).max() <= limits.largest_mean)
    ):
        return None
    covariance = _full_matrices(received.covariance, received.covariance_length, forms)
    variance = np.diagonal(covariance, axis1=1, axis2=2)
    plausible = (
        variance.min() >= limits.smallest_deviation**2
        and variance.max() <= limits.largest_deviation**2
    )
    diagonal = form == k and k > 1
    if not plausible or (
        not diagonal
        and (
            (form == forms[2] and not np.array_equal(covariance, covariance.transpose(0, 2, 1)))
            or _indefinite(covariance, variance, space) is not None
        )
    ):
        return None
    return FrameBatch(
        space=space,
        rows=np.arange(n),
        id=ids,
        class_index=received.class_index,
        mean=mean,
        covariance=covariance,
        diagonal=np.ones(n, bool) if diagonal else np.zeros(n, bool),
        truth=truth if truth_length else no_truth(n, k),
    )


def _indefinite(covariance: FloatArray, variance: FloatArray, space: Space) -> BoolArray | None:
    """(n,) covariances that are not positive definite; None if all are.

    Factorised in the order the statistics use, so that what passes here passes there.
    """
    if space.order != tuple(range(space.k)):
        order = np.array(space.order)
        covariance, variance = covariance[:, order[:, None], order], variance[:, order]
    try:
        # LAPACK is the quickest while all are well; it raises for the whole frame if one is not.
        pivot = np.diagonal(np.linalg.cholesky(covariance), axis1=1, axis2=2)
    except np.linalg.LinAlgError:
        return ~positive_definite(factorise(covariance))
    return _failing(pivot * pivot > SINGULAR * variance)


def _failing(flags: BoolArray) -> BoolArray | None:
    """(n,) rows with a flag that is not set; None, and quickly so, if all are set."""
    if np.count_nonzero(flags) == flags.size:
        return None
    return np.asarray(~flags.reshape(flags.shape[0], -1).all(axis=1))


def _truth(received: ReceivedDetections, k: int, limits: Limits) -> tuple[FloatArray, BoolArray]:
    """Inline truth, NaN where none or unusable, (N, K); and where it is unusable, (N,)."""
    sent = received.truth_length > 0
    if not sent.any():
        return no_truth(received.n, k), sent
    truth = _columns(received.truth, k)
    failing = _failing(np.abs(truth) <= limits.largest_mean)
    bad = received.truth_length != k
    if failing is not None:
        bad = bad | failing
    if not bad.any():
        return truth, bad
    return np.where(bad[:, None], np.nan, truth), sent & bad


def _absent(values: FloatArray, length: IntArray, fits: BoolArray) -> BoolArray | None:
    """(n,) rows without a covariance, or with one of zeros."""
    if values.shape[1] and (values[:, 0] != 0).all() and (length > 0).all():
        return None
    # NaN is not zero: a covariance of NaN is wrong, not missing.
    sent = np.arange(values.shape[1]) < length[:, None]
    absent: BoolArray = (length == 0) | (fits & ~((values != 0) & sent).any(axis=1))
    return absent


def _repeated(ids: IdArray, sent: BoolArray) -> BoolArray:
    """Every occurrence of an id but its first."""
    repeated = np.zeros(ids.size, bool)
    if np.count_nonzero(ids[1:] > ids[:-1]) == ids.size - 1:
        return repeated
    # An id that was not sent reads 0, and must not make a real 0 a repetition.
    order = np.argsort(ids, kind="stable") if sent.all() else np.lexsort((~sent, ids))
    ordered = ids[order]
    repeated[order[1:]] = ordered[1:] == ordered[:-1]
    return repeated


def _columns(values: FloatArray, k: int) -> FloatArray:
    """The first k columns, NaN where there are fewer."""
    if values.shape[1] >= k:
        return values[:, :k]
    padded = np.full((values.shape[0], k), np.nan)
    padded[:, : values.shape[1]] = values
    return padded


def _full_matrices(values: FloatArray, length: IntArray, forms: tuple[int, int, int]) -> FloatArray:
    """(N, K, K) from the three forms on the wire; identity where there is none.

    The full form is made symmetric by averaging; asymmetry is judged elsewhere.
    """
    n, k = values.shape[0], forms[0]
    # Frames of one form, the rule, are read in one piece.
    if n and (length == length[0]).all() and values.shape[1] >= length[0]:
        if length[0] == k * k:
            return values[:, : k * k].reshape(n, k, k)
        if length[0] == forms[1]:
            return values[:, square_from_triangle(k)].reshape(n, k, k)
    matrices = np.zeros((n, k, k))
    step = np.arange(k)
    matrices[:, step, step] = 1.0
    for form in dict.fromkeys(forms):
        here = np.flatnonzero(length == form)
        part = values[here, :form]
        if here.size == 0:
            continue
        if form == k:
            matrices[here[:, None], step, step] = part
        elif form == k * k:
            matrices[here] = part.reshape(-1, k, k)
        else:
            matrices[here] = part[:, square_from_triangle(k)].reshape(-1, k, k)
    return matrices


def _symmetric(covariance: FloatArray, full: BoolArray) -> tuple[FloatArray, BoolArray | None]:
    """The covariances without rounding between their triangles, and which differ by more."""
    transposed = covariance.transpose(0, 2, 1)
    if not full.any() or np.array_equal(covariance, transposed):
        return covariance, None
    with np.errstate(invalid="ignore", over="ignore"):
        deviation = np.sqrt(np.abs(np.diagonal(covariance, axis1=1, axis2=2)))
        allowed = ASYMMETRY * deviation[:, :, None] * deviation[:, None, :]
        close = np.abs(covariance - transposed) <= allowed
        # Where a value is not finite, that is what the detector is told.
        return 0.5 * (covariance + transposed), _failing(close | ~np.isfinite(covariance))
