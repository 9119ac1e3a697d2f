"""What is kept of the matched detections of one slice at one stage.

Immutable values. observe() makes one from a batch; merge() adds two, exactly,
in any order; retract() takes back what was added. No row is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.special import ndtri

from monitor.calibration.binning import EXPONENT, Binning, IncompatibleStatistics
from monitor.calibration.cholesky import add_up, factorise, is_diagonal, log_determinant, whiten
from monitor.calibration.exact_sums import ExactSum, carry, on_grid, sum_by_cell, to_float
from monitor.calibration.space import FloatArray, IntArray, Space, triangle

_SCALE = 2.0**-EXPONENT
# Rows summed in one go, so that a float64 holds every partial sum of limbs exactly.
CHUNK = 4096

# Columns of Cells.sums; the coverage counts of the τ follow.
_N = 0
_VARIANCE, _SQUARED_ERROR, _ERROR, _NEES = (slice(1, 3), slice(3, 5), slice(5, 7), slice(7, 9))
_WITHIN = slice(9, None)
_LOW, _HIGH = slice(1, 9, 2), slice(2, 9, 2)


@dataclass(frozen=True, slots=True)
class Cells:
    """Occupied micro-bins of all axes: about 120 of 514 ever are, so they are kept sparse.

    keys  (M,) ascending: axis · bins + bin; axes 0 … K−1 the dimensions, K the joint one
    sums  (M, 9 + T) integers: n; two limbs each of σ², error², error, NEES; coverage counts
    """

    keys: IntArray
    sums: IntArray

    def combine(self, other: Cells, sign: int) -> Cells:
        """Sum (sign 1) or difference (sign −1); cells that fall to nothing vanish."""
        place = np.searchsorted(self.keys, other.keys)
        if self.keys.size and np.array_equal(
            self.keys[np.minimum(place, self.keys.size - 1)], other.keys
        ):
            # No cell is new: the rule once a slice has been seen for a while.
            keys, sums = self.keys, self.sums.copy()
        else:
            keys = np.union1d(self.keys, other.keys)
            sums = np.zeros((keys.size, self.sums.shape[1]), np.int64)
            sums[np.searchsorted(keys, self.keys)] = self.sums
            place = np.searchsorted(keys, other.keys)
        touched = sums[place] + sign * other.sums
        low, high = touched[:, _LOW], touched[:, _HIGH]
        touched[:, _LOW], touched[:, _HIGH] = carry(low, high)
        sums[place] = touched
        kept = sums.any(axis=1)
        return Cells(keys[kept], sums[kept])


@dataclass(frozen=True, slots=True)
class AxisCells:
    """The occupied micro-bins of one axis, as floats, ascending; see ReliabilityBins."""

    lower: FloatArray
    upper: FloatArray
    n: IntArray
    variance: FloatArray
    squared_error: FloatArray
    error: FloatArray
    nees: FloatArray
    within: IntArray


@dataclass(frozen=True)
class StageStatistics:
    """Everything that is known of n matched detections.

    companions      (M,) sums that need no bins; the properties name and read them
    nees_histogram  (K + 1, H) counts of NEES by Binning.nees; the last row is joint
    """

    space: Space
    binning: Binning
    n: int
    cells: Cells
    companions: ExactSum
    nees_histogram: IntArray

    @cached_property
    def _companion(self) -> dict[str, FloatArray]:
        layout, total = _companion_layout(self.space.k, len(self.binning.tau))
        value = self.companions.value
        assert value.shape == (total,)
        return {name: value[part] for name, part in layout.items()}

    @property
    def sigma(self) -> FloatArray:
        """(K,) Σ σ."""
        return self._companion["sigma"]

    @property
    def log_sigma(self) -> FloatArray:
        """(K,) Σ log σ."""
        return self._companion["log_sigma"]

    @property
    def log_determinant(self) -> float:
        """Σ log det Σ of the joint block."""
        return float(self._companion["log_determinant"][0])

    @property
    def shortfall(self) -> FloatArray:
        """(K, T) Σ min(r − σ Φ⁻¹(τ), 0): with Σ r and Σ σ it gives the pinball loss."""
        return self._companion["shortfall"].reshape(self.space.k, -1)

    @property
    def normalised(self) -> FloatArray:
        """(K, K) Σ z zᵀ, z = r/σ."""
        return _symmetric(self._companion["normalised"], self.space.k)

    @property
    def whitened(self) -> FloatArray:
        """(K, K) Σ u uᵀ, u = L⁻¹ r, in the order of Space.order."""
        return _symmetric(self._companion["whitened"], self.space.k)

    def merge(self, other: StageStatistics) -> StageStatistics:
        """Statistics of both sets of detections.

        Raises IncompatibleStatistics when spaces or binning differ.
        """
        return self._combine(other, 1)

    def retract(self, other: StageStatistics) -> StageStatistics:
        """Statistics without detections that were added before; exact."""
        return self._combine(other, -1)

    @property
    def _is_zero(self) -> bool:
        """Whether nothing is held; a difference of as many detections has n = 0 and is not zero."""
        return self.n == 0 and not (
            self.cells.keys.size
            or self.companions.low.any()
            or self.companions.high.any()
            or self.nees_histogram.any()
        )

    def _combine(self, other: StageStatistics, sign: int) -> StageStatistics:
        if self.space != other.space:
            raise IncompatibleStatistics(
                f"cannot merge statistics over {self.space.names} with {other.space.names}: "
                "the dimensions differ. Merge only slices of streams with equal headers."
            )
        if self.binning != other.binning:
            raise IncompatibleStatistics(
                f"cannot merge statistics on {self.binning.describe()} with "
                f"{other.binning.describe()}: the bins differ. "
                "Start every replica with the same [statistics] section."
            )
        if other._is_zero:
            return self
        if self._is_zero and sign > 0:
            return other

        added, was = other.companions, self.companions
        return replace(
            self,
            n=self.n + sign * other.n,
            cells=self.cells.combine(other.cells, sign),
            companions=was + added if sign > 0 else was - added,
            nees_histogram=self.nees_histogram + sign * other.nees_histogram,
        )

    def axis(self, index: int) -> AxisCells:
        """Micro-bins of dimension `index`, or of the joint axis for index = K."""
        bins = self.binning.deviation.count
        first, last = np.searchsorted(self.cells.keys, (index * bins, (index + 1) * bins))
        position = self.cells.keys[first:last] - index * bins
        sums = self.cells.sums[first:last]
        lower, upper = self.binning.deviation.bounds
        unit = self.binning.variance_exponent[position]

        def as_float(limbs: slice, exponent: int | IntArray) -> FloatArray:
            low, high = sums[:, limbs].T
            return to_float(low, high, exponent)

        return AxisCells(
            lower=lower[position],
            upper=upper[position],
            n=sums[:, _N],
            variance=as_float(_VARIANCE, unit + EXPONENT),
            squared_error=as_float(_SQUARED_ERROR, unit + EXPONENT),
            error=as_float(_ERROR, unit // 2 + EXPONENT),
            nees=as_float(_NEES, EXPONENT),
            within=sums[:, _WITHIN],
        )

    @property
    def joint_axis(self) -> int:
        """The index of the joint axis."""
        return self.space.k


def _companion_layout(k: int, levels: int) -> tuple[dict[str, slice], int]:
    """Which of the M companion sums is which."""
    pairs = k * (k + 1) // 2
    sizes = {
        "sigma": k,
        "log_sigma": k,
        "log_determinant": 1,
        "shortfall": k * levels,
        "normalised": pairs,
        "whitened": pairs,
    }
    layout, start = {}, 0
    for name, size in sizes.items():
        layout[name] = slice(start, start + size)
        start += size
    return layout, start


def _symmetric(lower: FloatArray, k: int) -> FloatArray:
    """(K, K) from its lower triangle, row by row."""
    full = np.empty((k, k))
    rows, columns = triangle(k)
    full[rows, columns] = lower
    full[columns, rows] = lower
    return full


def nothing(space: Space, binning: Binning) -> StageStatistics:
    """The statistics of no detections: the zero of merge."""
    levels = len(binning.tau)
    return StageStatistics(
        space=space,
        binning=binning,
        n=0,
        cells=Cells(np.zeros(0, np.int64), np.zeros((0, _WITHIN.start + levels), np.int64)),
        companions=ExactSum.zero((_companion_layout(space.k, levels)[1],), EXPONENT),
        nees_histogram=np.zeros((space.k + 1, binning.nees.count), np.int64),
    )


def observe(
    space: Space, binning: Binning, error: FloatArray, covariance: FloatArray
) -> StageStatistics:
    """Statistics of a batch of matched detections.

    error       (N, K) truth − mean, angles wrapped: Space.error
    covariance  (N, K, K) positive definite; a row that is not, by a rounding, is left out
    """
    result = nothing(space, binning)
    for start in range(0, error.shape[0], CHUNK):
        part = slice(start, start + CHUNK)
        result = result.merge(_observe_chunk(space, binning, error[part], covariance[part]))
    return result


def _observe_chunk(
    space: Space, binning: Binning, error: FloatArray, covariance: FloatArray
) -> StageStatistics:
    n, k = error.shape
    k_joint = len(space.joint)
    variance = covariance[:, np.arange(k), np.arange(k)]
    sigma = np.sqrt(variance)
    z = error / sigma
    u, log_det = _whitened(space, error, covariance, sigma, z)
    regular = np.isfinite(log_det) & np.isfinite(u).all(axis=0)
    if not regular.all():
        # One NaN would spoil a sum for good.
        if not regular.any():
            return nothing(space, binning)
        return _observe_chunk(space, binning, error[regular], covariance[regular])
    deviation = np.empty((n, k + 1))
    deviation[:, :k] = sigma
    # σ_G = det(Σ)^(1/2K), Küppers et al. 2022, above eq. 11
    deviation[:, k] = np.exp(log_det / (2 * k_joint))
    nees = np.empty((n, k + 1))
    nees[:, :k] = z * z
    nees[:, k] = add_up(np.square(u[:k_joint]))
    return StageStatistics(
        space=space,
        binning=binning,
        n=n,
        cells=_cells(binning, k_joint, deviation, error, nees),
        companions=ExactSum.over_columns(
            _companions(binning, error, sigma, z, u, log_det), EXPONENT
        ),
        nees_histogram=_histogram(binning, nees),
    )


def _companions(
    binning: Binning,
    error: FloatArray,
    sigma: FloatArray,
    z: FloatArray,
    u: FloatArray,
    log_det: FloatArray,
) -> FloatArray:
    """All that is summed without bins, (M, N): one row a sum, so that each is contiguous."""
    n, k = error.shape
    levels = ndtri(binning.tau_array)
    layout, total = _companion_layout(k, levels.size)
    rows = np.empty((total, n))
    rows[layout["sigma"]] = sigma.T
    np.log(rows[layout["sigma"]], out=rows[layout["log_sigma"]])
    rows[layout["log_determinant"]] = log_det
    below = rows[layout["shortfall"]].reshape(k, -1, n)
    np.multiply(rows[layout["sigma"]][:, None], -levels[:, None], out=below)
    below += error.T[:, None]
    np.minimum(below, 0.0, out=below)
    _products(z.T, rows[layout["normalised"]])
    _products(u, rows[layout["whitened"]])
    return rows


def _products(v: FloatArray, out: FloatArray) -> None:
    """Lower triangle of v vᵀ for each column of v (K, N), row by row, into out."""
    start = 0
    for i in range(v.shape[0]):
        np.multiply(v[: i + 1], v[i], out=out[start : start + i + 1])
        start += i + 1


def _whitened(
    space: Space, error: FloatArray, covariance: FloatArray, sigma: FloatArray, z: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """u = L⁻¹ r (K, N) in Space.order, and log det of the joint block (N,)."""
    order = np.array(space.order)
    k_joint = len(space.joint)
    if is_diagonal(covariance):
        return z.T[order], 2.0 * add_up(np.log(sigma.T[order[:k_joint]]))
    factor = factorise(covariance[:, order[:, None], order])
    return whiten(factor, error[:, order]), log_determinant(factor, k_joint)


def _histogram(binning: Binning, nees: FloatArray) -> IntArray:
    axes, bins = nees.shape[1], binning.nees.count
    cell = binning.nees.index(nees) + np.arange(axes) * bins
    return np.bincount(cell.ravel(), minlength=axes * bins).reshape(axes, bins)


def _cells(
    binning: Binning, k_joint: int, deviation: FloatArray, error: FloatArray, nees: FloatArray
) -> Cells:
    n, axes = deviation.shape
    bins = binning.deviation.count
    position = binning.deviation.index(deviation)
    key = (position + np.arange(axes) * bins).ravel()
    # A mark per possible cell replaces a sort: the occupied ones, and where each row goes.
    mark = np.zeros(axes * bins, bool)
    mark[key] = True
    keys = np.flatnonzero(mark)
    cell = (np.cumsum(mark) - 1)[key]
    variance_scale, deviation_scale = (table[position] for table in binning.scales)
    square = deviation * deviation
    signed = np.zeros((n, axes))
    signed[:, :-1] = error
    quantities = (
        on_grid(square, variance_scale),
        on_grid(signed * signed, variance_scale),
        on_grid(signed, deviation_scale),
        on_grid(nees, _SCALE),
    )
    levels = len(binning.tau)
    sums = np.empty((keys.size, _WITHIN.start + levels), np.int64)
    for column, quantity in enumerate(quantities):
        sums[:, 1 + 2 * column], sums[:, 2 + 2 * column] = sum_by_cell(
            quantity.ravel(), cell, keys.size
        )
    # Which of the T thresholds each NEES stays within: counts by (cell, rank), then cumulated.
    rank = np.empty((n, axes), np.int64)
    rank[:, :-1] = np.searchsorted(binning.chi_square(1), nees[:, :-1])
    rank[:, -1] = np.searchsorted(binning.chi_square(k_joint), nees[:, -1])
    counts = np.bincount(
        cell * (levels + 1) + rank.ravel(), minlength=keys.size * (levels + 1)
    ).reshape(keys.size, levels + 1)
    sums[:, _N] = counts.sum(axis=1)
    sums[:, _WITHIN] = np.cumsum(counts, axis=1)[:, :levels]
    return Cells(keys, sums)
