"""Statistics of the class probabilities of one slice: exact sums by micro-bin of uncertainty.

Immutable values, added and retracted in any order. No row is kept, and nothing is measured here.
Both engines judge rows here, so that they refuse the same ones and mean the same by every number.

Micro-bins are fixed, the same in every replica. All edges are fractions or powers of two times
small fractions, so that every machine has the same ones; reliability bins of a divisor of 60
are made of whole micro-bins.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import entr

from monitor.frames.cholesky import add_up
from monitor.frames.classes import are_probabilities
from monitor.frames.space import BoolArray, FloatArray, IntArray
from monitor.statistics.bins import IncompatibleStatistics, digest
from monitor.statistics.exact_sums import LIMB_BITS, ExactStatistics, ExactSum, SparseSums

# The true class of a row without truth.
NO_TRUTH = -1

# The smallest positive float32: −log p stays finite, at most 103.3 nats.
_SMALLEST = 2.0**-149

# The unit of the sums in a micro-bin (9e-13), and of those without bins (9e-19).
EXPONENT = -40
COMPANION_EXPONENT = -60

# Numbers of reliability bins that can be read, each with the very edges of np.linspace: those of
# 10 and of 20 bins are not always the same floats, so all are kept.
DIVISORS = (1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, 60)

# Steps on [0, 1] where uncertainty is ordinary, four to a sixtieth.
_STEPS = 240

# Steps an octave where it is small.
_PER_OCTAVE = 8

# Position of an axis in AXES.
CONFIDENCE, ENTROPY, CROSS_ENTROPY, BRIER = range(4)

# The tables. ALL_ROWS is keyed axis · STRIDE + micro-bin, BY_CLASS, of the predicted class,
# (axis · C + class) · COARSE_STRIDE + coarse bin. In ONE_VS_REST every row is counted once for
# each class, keyed class · SIXTIETHS.count + bin of that class's probability.
ALL_ROWS, BY_CLASS, ONE_VS_REST = range(3)

# Their columns: rows, right ones, Σ confidence or entropy (0 on other axes), Σ Brier score. In
# ONE_VS_REST: rows, those of the class, Σ its probability.
N, RIGHT, VALUE, SQUARES = range(4)

# The sums without bins; doubt is 1 − confidence, which loses nothing near 1.
COMPANIONS = (
    *("doubt", "doubt_squared", "doubt_where_right"),
    *("entropy", "cross_entropy", "brier", "opinions", "aleatoric", "epistemic"),
    # The last is a count of the rows that the three others are sums over: older states have none.
    *("doubt_cubed", "entropy_squared", "entropy_cubed", "moments"),
)

# Rows summed in one go: with addends of at most 2^41 units, a float64 holds their sum exactly.
_CHUNK = 2048
_SCALE = 2.0**-EXPONENT


@dataclass(frozen=True, slots=True)
class ClassRows:
    """N rows with truth and a usable opinion over C classes.

    probabilities  (C, N), in [0, 1]
    label          (N,) the true class
    predicted      (N,) the most likely class; the first of several
    right          (N,) whether they agree
    confidence     (N,) probability of the predicted class
    entropy        (N,) Shannon entropy over log C, in [0, 1]; Wolf et al. 2024, eq. 4
    cross_entropy  (N,) −log of the true class's probability, in nats
    brier          (N,) squared distance to the true one-hot vector, in [0, 2]
    aleatoric      (N,) mean entropy of the opinions over log C; None without opinions
    epistemic      (N,) entropy of their mean over log C, less aleatoric; None without
    without_truth  rows left out because their label is −1
    refused        rows left out because of their probabilities or another label
    """

    probabilities: FloatArray
    label: IntArray
    predicted: IntArray
    right: BoolArray
    confidence: FloatArray
    entropy: FloatArray
    cross_entropy: FloatArray
    brier: FloatArray
    aleatoric: FloatArray | None
    epistemic: FloatArray | None
    without_truth: int
    refused: int

    @property
    def n(self) -> int:
        """Number of rows."""
        return int(self.label.size)

    @property
    def classes(self) -> int:
        """Number of classes, C."""
        return int(self.probabilities.shape[0])


def judge_rows(
    probabilities: FloatArray, label: IntArray, opinions: FloatArray | None = None
) -> ClassRows:
    """Selects the rows that have truth and are sound, and judges each by itself.

    Soundness is that of are_probabilities; a row needs all its opinions sound.

    probabilities  (N, C), C at least 2
    label          (N,) in 0 … C − 1, NO_TRUTH where there is none
    opinions       (N, M, C) whose mean the probabilities are, M at least 1
    """
    n, classes = probabilities.shape
    columns = np.ascontiguousarray(probabilities.T, np.float64)
    labelled = label != NO_TRUTH
    usable = labelled & (label >= 0) & (label < classes) & are_probabilities(columns)
    each = None
    if opinions is not None:
        each = np.ascontiguousarray(opinions.transpose(1, 2, 0), np.float64)
        for opinion in each:
            usable &= are_probabilities(opinion)
    if not usable.all():
        columns, label = columns[:, usable], label[usable]
        each = None if each is None else each[:, :, usable]
    columns = columns.clip(0.0, 1.0)
    rows = np.arange(label.size)
    predicted = columns.argmax(axis=0)
    true = columns[label, rows]
    distance = columns.copy()
    distance[label, rows] -= 1.0
    aleatoric, epistemic = (None, None) if each is None else entropy_parts(each.clip(0.0, 1.0))
    return ClassRows(
        probabilities=columns,
        label=label,
        predicted=predicted,
        right=predicted == label,
        confidence=columns[predicted, rows],
        entropy=entropy_of_columns(columns),
        cross_entropy=-np.log(np.maximum(true, _SMALLEST)),
        brier=add_up(np.square(distance)),
        aleatoric=aleatoric,
        epistemic=epistemic,
        without_truth=n - int(np.count_nonzero(labelled)),
        refused=int(np.count_nonzero(labelled)) - label.size,
    )


def entropy_of_columns(columns: FloatArray) -> FloatArray:
    """(N,) entropy of (C, N) over log C, in [0, 1]; NaN stays.

    source   Laves et al. 2019, eq. 3
    """
    entropy: FloatArray = add_up(entr(columns)) / np.log(columns.shape[0])
    # A sum a little off 1 must not lead out of [0, 1].
    return np.minimum(entropy, 1.0)


def entropy_parts(each: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Splits the entropy of (M, C, N) opinions into aleatoric and epistemic part.

    H[mean of p_m] = mean of H[p_m] + mean of KL[p_m ‖ mean of p_m]

    source   Wolf et al. 2024, eq. 10, over log C as eq. 4
    """
    aleatoric = add_up(np.stack([entropy_of_columns(opinion) for opinion in each])) / each.shape[0]
    whole = entropy_of_columns(add_up(each) / each.shape[0])
    return aleatoric, np.maximum(whole - aleatoric, 0.0)


@dataclass(frozen=True)
class UncertaintyAxis:
    """Bins along one measure of uncertainty, numbered from certain to uncertain.

    edges    all edges, ascending in the value; closed on the left, the last on both sides
    falling  whether a high value is a certain one
    """

    edges: FloatArray
    falling: bool = False

    @cached_property
    def count(self) -> int:
        """Number of bins."""
        return self.edges.size - 1

    @cached_property
    def lower(self) -> FloatArray:
        """(count,) lower edge of each bin."""
        return self.edges[:-1][::-1] if self.falling else self.edges[:-1]

    @cached_property
    def upper(self) -> FloatArray:
        """(count,) upper edge of each bin."""
        return self.edges[1:][::-1] if self.falling else self.edges[1:]

    def index(self, value: FloatArray) -> IntArray:
        """Bin of each value; what lies beyond the edges goes to the outermost."""
        index = np.searchsorted(self.edges, value, side="right") - 1
        np.clip(index, 0, self.count - 1, out=index)
        return self.count - 1 - index if self.falling else index


def _axes(doubt: FloatArray, cross_entropy: FloatArray) -> tuple[UncertaintyAxis, ...]:
    low = UncertaintyAxis(_with_sixtieths(doubt))
    return (
        UncertaintyAxis(_with_sixtieths(1.0 - doubt), falling=True),
        low,
        UncertaintyAxis(np.concatenate([[0.0], cross_entropy, [128.0]])),
        low,
    )


def _octaves(lowest: int, end: int, steps: int) -> FloatArray:
    """Equal steps in each octave from 2^lowest up to, and without, 2^end."""
    return np.ldexp(
        np.tile(1 + np.arange(steps) / steps, end - lowest),
        np.repeat(np.arange(lowest, end), steps).astype(np.int32),
    )


def _with_sixtieths(edges: FloatArray) -> FloatArray:
    return np.unique(
        np.concatenate([edges, *(np.linspace(0.0, 1.0, bins + 1) for bins in DIVISORS)])
    )


# No float32 lies between 1 − 2^-24 and 1: a finer confidence is not reported.
_ORDINARY = np.arange(_STEPS // 16, _STEPS)
_DOUBT = np.append(_octaves(-24, -4, _PER_OCTAVE), _ORDINARY[_ORDINARY % 4 > 0] / _STEPS)

# Confidence, entropy over log C, cross-entropy in nats, half the Brier score.
AXES = _axes(_DOUBT, _octaves(-24, 7, 4 * _PER_OCTAVE))

# Fewer bins along each axis, for the sums of every class; their edges are edges too.
COARSE_AXES = _axes(_octaves(-16, -6, _PER_OCTAVE // 4), _octaves(-16, 7, _PER_OCTAVE // 2))

# For each axis, (count,) coarse bin of each bin.
_COARSE_OF = tuple(c.index(fine.lower) for c, fine in zip(COARSE_AXES, AXES, strict=True))

# Bins of the axis that has most.
STRIDE, COARSE_STRIDE = (max(axis.count for axis in axes) for axes in (AXES, COARSE_AXES))

# Bins of the probability of a class, predicted or not.
SIXTIETHS = UncertaintyAxis(_with_sixtieths(np.zeros(0)))

# Hexadecimal digest of every edge and unit.
BIN_HASH = digest(
    (axis.edges for axis in (*AXES, *COARSE_AXES, SIXTIETHS)), f"{EXPONENT} {COMPANION_EXPONENT}"
)


def equal_width_bins(axis: UncertaintyAxis, bins: int) -> IntArray:
    """(count,) number of the bin of equal width on [0, 1] that each bin of an axis lies in.

    bins  a divisor of 60, so that no bin of the axis is cut
    """
    return UncertaintyAxis(np.linspace(0.0, 1.0, bins + 1)).index(axis.lower)


@dataclass(frozen=True, eq=False)
class ClassStatistics(ExactStatistics):
    """Everything that is known of n rows of probabilities over C classes.

    tables      ALL_ROWS, BY_CLASS and ONE_VS_REST, in units of 2^EXPONENT where not counts
    companions  (13,) sums of COMPANIONS, in units of 2^COMPANION_EXPONENT
    """

    classes: int

    def check_same(self, other: ClassStatistics) -> None:
        """Raises IncompatibleStatistics unless there are as many classes."""
        if self.classes != other.classes:
            raise IncompatibleStatistics(
                f"cannot merge statistics of {self.classes} classes with those of "
                f"{other.classes}. Merge only slices of streams with equal class names."
            )

    @property
    def sums(self) -> dict[str, float]:
        """The sums of COMPANIONS, by name."""
        return dict(zip(COMPANIONS, self.companions.value.tolist(), strict=True))

    @property
    def units(self) -> dict[str, int]:
        """The sums of COMPANIONS in units of 2^COMPANION_EXPONENT, exact, by name."""
        limbs = zip(self.companions.low.tolist(), self.companions.high.tolist(), strict=True)
        exact = (low + (high << LIMB_BITS) for low, high in limbs)
        return dict(zip(COMPANIONS, exact, strict=True))


def table_shapes(classes: int) -> tuple[tuple[int, int], ...]:
    """Columns, and the first key beyond the bins, of each table."""
    return (
        (SQUARES + 1, len(AXES) * STRIDE),
        (SQUARES + 1, len(AXES) * classes * COARSE_STRIDE),
        (VALUE + 1, classes * SIXTIETHS.count),
    )


def no_class_statistics(classes: int) -> ClassStatistics:
    """The statistics of no rows: the zero of merge."""
    tables = tuple(SparseSums.zero(width) for width, _ in table_shapes(classes))
    companions = ExactSum.zero((len(COMPANIONS),), COMPANION_EXPONENT)
    return ClassStatistics(0, tables, companions, classes)


def observe_classes(
    probabilities: FloatArray, label: IntArray, opinions: FloatArray | None = None
) -> ClassStatistics:
    """Adds up a batch of rows, but for those that judge_rows leaves out.

    probabilities  (N, C)
    label          (N,) true class, −1 where there is none
    opinions       (N, M, C) whose mean the probabilities are
    """
    found = no_class_statistics(probabilities.shape[-1])
    for start in range(0, max(label.shape[0], 1), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        rows = judge_rows(
            probabilities[chunk], label[chunk], None if opinions is None else opinions[chunk]
        )
        if rows.n:
            found = found.merge(_observed(rows))
    return found


def _observed(rows: ClassRows) -> ClassStatistics:
    value = np.stack([rows.confidence, rows.entropy, rows.cross_entropy, rows.brier / 2])
    index = np.stack([axis.index(v) for axis, v in zip(AXES, value, strict=True)])
    value[2:] = 0.0
    columns = (np.broadcast_to(rows.right, value.shape), value, np.tile(rows.brier, (4, 1)))

    axis = np.arange(len(AXES))[:, None]
    all_rows = _table(index + axis * STRIDE, columns)

    # Of many classes few are predicted in one batch: only those get dense cells.
    predicted, place = np.unique(rows.predicted, return_inverse=True)
    coarse = np.stack([of[i] for of, i in zip(_COARSE_OF, index, strict=True)])
    packed = _table((axis * predicted.size + place) * COARSE_STRIDE + coarse, columns)
    segment, within = np.divmod(packed.keys, COARSE_STRIDE)
    segment = segment // predicted.size * rows.classes + predicted[segment % predicted.size]
    keys = segment * COARSE_STRIDE + within
    by_class = SparseSums(keys, packed.values, packed.spill_keys, packed.spill)

    cell = SIXTIETHS.index(rows.probabilities)
    cell += np.arange(rows.classes)[:, None] * SIXTIETHS.count
    of_class = np.zeros(cell.shape, bool)
    of_class[rows.label, np.arange(rows.n)] = True
    tables = all_rows, by_class, _table(cell, (of_class, rows.probabilities))
    return ClassStatistics(rows.n, tables, _companions(rows), rows.classes)


def _table(key: IntArray, columns: tuple[np.ndarray, ...]) -> SparseSums:
    """Counts rows by key and adds up columns; booleans are counted, floats put on the grid.

    key, columns  of equal shape
    """
    cell = key.ravel()
    count = np.bincount(cell)
    keys = np.flatnonzero(count)
    values = np.empty((keys.size, 1 + len(columns)), np.int64)
    values[:, 0] = count[keys]
    for number, column in enumerate(columns, start=1):
        flat = column.ravel()
        if flat.dtype == np.bool_:
            sums = np.bincount(cell[flat], minlength=count.size)
        else:
            sums = np.bincount(cell, np.rint(flat * _SCALE), count.size)
        values[:, number] = sums[keys]
    return SparseSums(keys, values, keys[:0], keys[:0])


def _companions(rows: ClassRows) -> ExactSum:
    doubt, none = 1.0 - rows.confidence, np.zeros(rows.n)
    of_opinions = [none, none, none]
    if rows.aleatoric is not None and rows.epistemic is not None:
        of_opinions = [none + 1.0, rows.aleatoric, rows.epistemic]
    doubt_squared, entropy_squared = doubt * doubt, rows.entropy * rows.entropy
    values = (
        *(doubt, doubt_squared, doubt * rows.right),
        *(rows.entropy, rows.cross_entropy, rows.brier, *of_opinions),
        *(doubt_squared * doubt, entropy_squared, entropy_squared * rows.entropy, none + 1.0),
    )
    return ExactSum.over_columns(np.stack(values), COMPANION_EXPONENT)
