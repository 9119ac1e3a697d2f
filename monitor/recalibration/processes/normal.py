"""GP-Normal: sizes of a Gaussian, and correlations, that depend on the estimate.

The log of the factor is a Gaussian process of the estimate (Küppers et al. 2022, section 3).
Errors are Gaussian, and their likelihood is in closed form: variance off by w = e^f, one latent
value f a dimension.

(Küppers et al. 2022, section 3, covariance estimation and recalibration.) The covariance is
Σ̂ = W G Gᵀ Wᵀ: W a factor of what the detector sent, G lower triangular with the rows
(φ_i0 … φ_i,i−1, √exp f_i). With Σ = W Wᵀ = L D Lᵀ it is the LDLᵀ of Küppers et al. 2022, eq. 8:
with Δ = diag(W), exp f_i multiplies D, and the unit triangular Δ G diag(G)⁻¹ Δ⁻¹ multiplies L.
All arithmetic is by element, so that a detection gives the same bits alone and among others.

Whitened errors are u_i = Σ_j<i φ_ij ε_j + exp(f_i/2) η_i with η_i ~ N(0, 1) and the innovations
ε_j of the earlier rows as they were fitted: their covariance is G Gᵀ (a moving average Cholesky
factor, Zhang and Leng 2012). The joint density is a product over i, and each factor a regression
on innovations that are already known, so that a process for each row of G is fitted by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Interval
from scipy.linalg import solve_triangular

from monitor.frames.cholesky import add_up, factorise, positive_definite, whiten
from monitor.frames.detections import Estimates
from monitor.frames.marks import CountFrom1
from monitor.frames.space import FloatArray
from monitor.recalibration.fit_rows import FitRows, prepared
from monitor.recalibration.methods import INDUCING
from monitor.recalibration.processes.process_fit import choose_inputs
from monitor.recalibration.processes.sparse_process import Expected, LatentStack, SparseProcess
from monitor.recalibration.recalibrator import (
    Documented,
    Factors,
    InvalidRecalibrator,
    Moments,
    PerDimension,
    Recalibrator,
    UnfitData,
    as_matrix,
)
from monitor.recalibration.scaling import by_form, permuted


@dataclass(frozen=True, slots=True)
class NormalLikelihood:
    """p(r | f) = Π_j N(r_j; 0, e^{f_j} σ_j²).

    square         (J, n) z² = r²/σ²
    log_deviation  (J, n) log σ
    """

    square: FloatArray
    log_deviation: FloatArray

    @property
    def start(self) -> FloatArray:
        """log mean z²: variance scaling."""
        start: FloatArray = np.log(self.square.mean(axis=1))
        return start

    def expected(self, mean: FloatArray, variance: FloatArray) -> Expected:
        """E_q[log N] = −½ [log 2πσ² + m + z² exp(−m + v/2)] (Küppers et al. 2022, eq. 5)."""
        e = self.square * np.exp(0.5 * variance - mean)
        value = -0.5 * (np.log(2.0 * np.pi) + mean + e) - self.log_deviation
        return Expected(add_up(value), 0.5 * (e - 1.0), -0.25 * e)


@dataclass(frozen=True)
class GpNormal(Recalibrator, LatentStack):
    """Σ' = S Σ S with S = diag(√w), log w_d ~ GP (eq. 5); correlations stay.

    Served is w = E_q[e^f] = exp(m + v/2): an error whose factor is uncertain varies by the
    mean of the variances it may have, so that NEES stays right where little was seen. exp(m)
    and exp(m − v/2) fare a little worse: on boxes of the reference sets 3.1115 and 3.1134
    nats against 3.1099.

    dimensions  K: how many outputs the processes of log w have
    """

    dimensions: CountFrom1
    method: ClassVar[str] = "gp-normal"

    def __post_init__(self) -> None:
        LatentStack.__post_init__(self)
        if self.outputs != self.dimensions:
            raise InvalidRecalibrator(
                f"'processes' have {self.outputs} outputs, 'dimensions' is {self.dimensions}: "
                "there must be one for each"
            )
        self.check_dimensions(self.k)

    @property
    def k(self) -> int:
        """Number of dimensions."""
        return self.dimensions

    def apply(self, estimates: Estimates) -> Estimates:
        """Scales each estimate by its own factors, which lie within a range for any estimate."""
        logs = self.log_expectations(estimates)
        logs *= 0.5
        return estimates.rescaled(np.exp(logs, out=logs).T)


def fit_gp_normal(rows: FitRows, inducing: int = INDUCING) -> GpNormal:
    """Fits the factors that rows with ground truth ask for, in whatever order they come.

    Every dimension finds inputs of its own. Raises UnfitData without rows, or where a dimension
    has no error.
    """
    rows = prepared(rows)
    deviation = rows.deviation.T
    square, logs = np.square(rows.error.T / deviation), np.log(deviation)
    chosen = []
    for i, weight in enumerate(rows.size_weight.tolist()):
        likelihood = NormalLikelihood(square[i : i + 1], logs[i : i + 1])
        chosen.append(choose_inputs(likelihood, rows, weight, inducing))
    found = LatentStack.of(chosen, rows.estimates, expectations=True)
    return GpNormal(found.processes, found.low, found.high, rows.space.k)


# Above this determinant no rounding can make a covariance indefinite: the smallest eigenvalue of
# correlations R is at least det R · ((K − 1)/K)^(K − 1) > det R / e.
_SAFE_DETERMINANT = 1e-9

# By how much correlations are drawn to zero below it: R (1 − δ) + δ I has eigenvalues above δ, a
# million times what rounding takes away.
_DRAWN = 1e-9

# Exponents beyond it overflow; a search for the best step may look there.
_LARGEST_EXPONENT = 500.0

# Share of the mean square of all errors that is never explained. Weights that depend on a detection
# could explain a few rows that are repeated often to the last place, and be ever surer of it.
UNEXPLAINED = 1e-4

# Directions of the innovations that hardly vary are left out of a regression on them.
_ALIKE = 1e-2

# Variances of weights in documents: between errors of unit size weights are of the order of one.
LARGEST_VARIANCE = 50.0

# As covariance scaling: a share of the mean eigenvalue below which errors repeat each other.
SINGULAR = 1e-9

# Rows that differ by less, as a share of the binary mantissa, count as one: about five digits.
_DIGITS = 2.0**16


def row_of_weights(i: int) -> slice:
    """Finds f_i, φ_i0 … φ_i,i−1 among the K (K + 1) / 2 weights, which go row by row."""
    first = i * (i + 1) // 2
    return slice(first, first + i + 1)


def row_of_factor(mean: FloatArray, variance: FloatArray) -> FloatArray:
    """Row i of G for uncertain weights, (1 + i, n): φ_i0 … φ_i,i−1, and the diagonal.

    Of errors u_i = Σ_j<i φ_ij ε_j + exp(f_i/2) η_i with η_i ~ N(0, 1) independent of all else, and
    regressors ε_j = (u_j − Σ_l<j φ̄_jl ε_l) / g_jj, g_jj the diagonal below: what u_j tells beyond
    the earlier ones, by the means of the weights. These, and not the η_j, are uncorrelated with
    variance 1 whatever the weights turn out to be: with independent f ~ N(m, v) and
    φ_j ~ N(φ̄_j, v_j), E[u_i ε_j] = φ̄_j and g_ii² = E[u_i²] − Σ_j φ̄_j² = exp(m + v/2) + Σ_j v_j.
    What φ leaves open goes to the diagonal, and E[exp f] is the mean of a log-normal.

    mean, variance  (1 + i, n) of f_i, φ_i0 … φ_i,i−1
    """
    own = np.exp(mean[0] + 0.5 * variance[0])
    for uncertain in variance[1:]:
        own += uncertain
    row = np.empty_like(mean)
    row[:-1] = mean[1:]
    np.sqrt(own, out=row[-1])
    return row


def factor_of_weights(mean: FloatArray, variance: FloatArray) -> FloatArray:
    """G lower triangular, (K, K, n), so that G Gᵀ = E[u uᵀ] of the u of row_of_factor.

    mean, variance  (K (K + 1) / 2, n), as row_of_weights puts them
    """
    k = int((2 * mean.shape[0]) ** 0.5)
    g = np.zeros((k, k, mean.shape[1]))
    for i in range(k):
        row = row_of_weights(i)
        g[i, : i + 1] = row_of_factor(mean[row], variance[row])
    return g


def lower_factor(covariance: FloatArray) -> FloatArray:
    """L with L Lᵀ = Σ for covariances (n, K, K) that were found positive definite; (K, K, n).

    One that rounding makes indefinite after all has the factor of its neighbour that is not.
    """
    lower = factorise(covariance)
    bad = ~positive_definite(lower)
    if bad.any():
        lower[:, :, bad] = factorise(_drawn_to_zero(covariance[bad]))
    return lower


def lower_product(left: FloatArray, right: FloatArray) -> FloatArray:
    """The products of lower triangular matrices, both (K, K, n)."""
    product = np.zeros_like(right)
    for j in range(left.shape[0]):
        product[j:, : j + 1] += left[j:, j, None] * right[j, : j + 1]
    return product


def squared(g: FloatArray) -> FloatArray:
    """G Gᵀ of lower triangular (K, K, n), as (n, K, K), symmetric to the last bit."""
    total = np.zeros_like(g)
    for j in range(g.shape[0]):
        column = g[j:, j]
        total[j:, j:] += column[:, None] * column
    return np.ascontiguousarray(total.transpose(2, 0, 1))


def keep_definite(made: FloatArray, factor: FloatArray) -> None:
    """Draw correlations to zero, by far less than matters, where rounding might have made Σ̂
    indefinite; in place.

    made    (n, K, K) Σ̂ = G Gᵀ
    factor  (K, K, n) G
    """
    determinant = np.ones(made.shape[0])
    for i in range(made.shape[1]):
        determinant *= factor[i, i] * factor[i, i] / made[:, i, i]
    suspects = determinant < _SAFE_DETERMINANT
    if suspects.any():
        made[suspects] = _drawn_to_zero(made[suspects])


def _drawn_to_zero(covariance: FloatArray) -> FloatArray:
    step = np.arange(covariance.shape[1])
    drawn: FloatArray = covariance * (1.0 - _DRAWN)
    drawn[:, step, step] = covariance[:, step, step]
    return drawn


@dataclass(frozen=True, slots=True)
class TriangularRow:
    """log N(u_i; Σ_j φ_ij ε_j, exp f_i); its 1 + i latent outputs are f_i, φ_i0 … φ_i,i−1.

    Their Fisher information is diagonal where the innovations are uncorrelated, which is what
    makes its fit a quick one.

    value     (n,) u_i, of mean square 1
    earlier   (i, n) ε_0 … ε_i−1
    log_unit  (n,) log of what an error of u_i = 1 is in the unit of the dimension
    """

    value: FloatArray
    earlier: FloatArray
    log_unit: FloatArray

    @property
    def start(self) -> FloatArray:
        """Least squares: φ_i regresses u_i on the innovations, exp f_i is the variance left."""
        n = self.value.size
        phi = np.linalg.lstsq(
            self.earlier @ self.earlier.T, self.earlier @ self.value, rcond=_ALIKE
        )[0]
        rest = self.value - phi @ self.earlier
        variance = UNEXPLAINED + (1 - UNEXPLAINED) * float(rest @ rest) / max(n, 1)
        return np.concatenate(([np.log(variance)], phi))

    def expected(self, mean: FloatArray, variance: FloatArray) -> Expected:
        """E_q[log N(u_i; Σ_j φ_ij ε_j, exp f_i)] − log_unit, in closed form.

        With f ~ N(m, v) and φ_j ~ N(φ̄_j, v_j) independent, and a share s that is never explained,
        −½ [log 2π + m + exp(−m + v/2) · (s + (1 − s) ((u_i − Σ_j φ̄_j ε_j)² + Σ_j v_j ε_j²))]:
        the mean of exp(−f) is that of a log-normal, and the mean of the square is
        the square of the mean and the variances of its terms.
        """
        earlier = self.earlier
        rest = self.value.copy()
        for phi, innovation in zip(mean[1:], earlier, strict=True):
            rest -= phi * innovation
        square = rest * rest
        squares = earlier * earlier
        for uncertain, each in zip(variance[1:], squares, strict=True):
            square += uncertain * each
        precision = np.exp(np.minimum(0.5 * variance[0] - mean[0], _LARGEST_EXPONENT))
        nees = precision * (UNEXPLAINED + (1 - UNEXPLAINED) * square)
        precision *= 1 - UNEXPLAINED
        by_mean = np.empty_like(mean)
        by_variance = np.empty_like(variance)
        by_mean[0] = 0.5 * (nees - 1.0)
        by_mean[1:] = precision * rest * earlier
        by_variance[0] = -0.25 * nees
        by_variance[1:] = -0.5 * precision * squares
        value = -0.5 * (np.log(2 * np.pi) + mean[0] + nees) - self.log_unit
        return Expected(value, by_mean, by_variance)


@dataclass(frozen=True)
class TriangularProcess(Documented):
    """E[u uᵀ] of errors u = W⁻¹ r that a factor W of what the detector sent has whitened.

    With A = M Mᵀ it is M G Gᵀ Mᵀ: where nothing depends on the detection G is the identity, and
    what is left is covariance scaling.

    moment          (K, K) A, the mean of u uᵀ over the rows of the fit
    weights         a process for each row of G, with inputs of its own: f_i, φ_i0 … φ_i,i−1
    most_uncertain  (K (K + 1) / 2,) largest variances of the weights over the rows of the fit:
                    served is none beyond, as none of their means
    """

    moment: Moments
    weights: LatentStack
    most_uncertain: tuple[Annotated[float, Interval(ge=0.0, le=LARGEST_VARIANCE)], ...]

    def __post_init__(self) -> None:
        k = len(self.moment)
        self.check_positive_definite("moment", k, "moment")
        self.weights.check_dimensions(k, range(1, k + 1))
        self.check_entries(("most_uncertain",), self.weights.outputs, "weights")

    def factor(self, estimates: Estimates) -> FloatArray:
        """M G, (K, K, n) lower triangular."""
        mean, variance = self.weights.at(estimates)
        low, high, most = self._limits
        np.clip(mean, low, high, out=mean)
        np.minimum(variance, most, out=variance)
        return lower_product(self._root[:, :, None], factor_of_weights(mean, variance))

    @cached_property
    def _limits(self) -> FloatArray:
        weights = self.weights
        return np.array([weights.low, weights.high, self.most_uncertain])[:, :, None]

    @cached_property
    def _root(self) -> FloatArray:
        return np.asarray(np.linalg.cholesky(np.array(self.moment)), dtype=np.float64)


@dataclass(frozen=True)
class GpNormalMultivariate(PerDimension):
    """Σ̂ = W M G Gᵀ Mᵀ Wᵀ: W = diag(σ) of variances, W = L of covariances Σ = L Lᵀ.

    M and G are those of a TriangularProcess. Weights are served by the moments of their
    posterior: Σ̂ is the second moment of an error under it (row_of_factor), without any sampling.

    scale        (K,) root mean square of r/σ over all rows of the fit: a form of covariance
                 that was not in them is only scaled, S Σ S, and its correlations stay
    variances    for detections that come with variances: covariance estimation
    covariances  for detections that come with covariances, and for any of one dimension
    order        the dimensions in the order of the triangles; ascending where none is given
    """

    scale: Factors
    variances: TriangularProcess | None = None
    covariances: TriangularProcess | None = None
    order: tuple[int, ...] = ()
    method: ClassVar[str] = "gp-normal-multivariate"

    def __post_init__(self) -> None:
        self.complete_order(self.order, self.k)
        for name in ("variances", "covariances"):
            process = getattr(self, name)
            if process is not None:
                self.check_lengths(name, process.moment, [self.k] * self.k, "scale")
        if self.covariances is None and (self.variances is None or self.k == 1):
            raise InvalidRecalibrator(
                "'covariances' is missing"
                + (": one dimension needs it" if self.k == 1 else ", and so is 'variances'")
            )

    def apply(self, estimates: Estimates) -> Estimates:
        """Variances become full covariances where they were fitted; covariances stay so."""
        # One variance is a whole covariance.
        alone = estimates.diagonal & (self.k > 1)
        covariance = by_form(estimates, alone, self._estimated, self._recalibrated)
        diagonal = alone if self.variances is None else np.zeros_like(alone)
        return Estimates(estimates.mean, covariance, diagonal)

    def _estimated(self, estimates: Estimates) -> FloatArray:
        if self.variances is None:
            return estimates.rescaled(np.array(self.scale)).covariance
        deviation = estimates.deviation.T[np.array(self.order)]
        return self._assembled(deviation[:, None] * self.variances.factor(estimates))

    def _recalibrated(self, estimates: Estimates) -> FloatArray:
        if self.covariances is None:
            return estimates.rescaled(np.array(self.scale)).covariance
        own = lower_factor(permuted(estimates.covariance, self.order))
        return self._assembled(lower_product(own, self.covariances.factor(estimates)))

    def _assembled(self, factor: FloatArray) -> FloatArray:
        made = squared(factor)
        keep_definite(made, factor)
        return permuted(made, np.argsort(self.order).tolist())


def fit_gp_normal_multivariate(rows: FitRows, inducing: int = INDUCING) -> GpNormalMultivariate:
    """Fits each form of covariance by itself, to the detections that came with it.

    The likelihood is a product over the dimensions, so that K small processes are fitted, each
    with the inputs that pay for themselves. The same rows in any order give the same bits.

    Raises UnfitData without rows, where a dimension has no error, and where the errors of a form
    do not span all dimensions.
    """
    rows = prepared(rows)
    k = rows.space.k
    alone = rows.estimates.diagonal & (k > 1)
    scale = np.sqrt(np.mean(np.square(rows.error / rows.deviation), axis=0))
    variances, covariances = (
        _fitted(rows.take(np.flatnonzero(some)), form, inducing) if some.any() else None
        for form, some in (("variances", alone), ("covariances", ~alone))
    )
    return GpNormalMultivariate(tuple(scale.tolist()), variances, covariances, rows.space.order)


def _fitted(rows: FitRows, form: str, inducing: int) -> TriangularProcess:
    k, order = rows.space.k, np.array(rows.space.order)
    # W⁻¹ r and log diag W, both (K, n).
    if form == "variances":
        deviation = rows.deviation[:, order]
        u = np.ascontiguousarray((rows.error[:, order] / deviation).T)
        log_unit = np.log(deviation).T
    else:
        factor = lower_factor(permuted(rows.estimates.covariance, rows.space.order))
        u = whiten(factor, rows.error[:, order])
        log_unit = np.log(factor[np.arange(k), np.arange(k)])
    moment = u @ u.T / rows.n
    size = np.sqrt(np.diagonal(moment))
    if not size.all() or np.linalg.eigvalsh(moment / np.outer(size, size))[0] <= SINGULAR:
        raise UnfitData(
            f"the errors of {rows.n} rows with {form} over {rows.space.names} are singular: "
            f"{k} dimensions need more rows with independent errors. Use gp-normal or "
            f"more data, or leave out the rows with {form}."
        )
    moment = 0.5 * (moment + moment.T)
    root = np.linalg.cholesky(moment)
    u = solve_triangular(root, u, lower=True)
    log_unit = log_unit + np.log(np.diagonal(root))[:, None]
    # A row of the factor is of the errors of its dimension and of those before; only the first
    # has nothing but a size.
    worth = np.minimum.accumulate(rows.location_weight[order])
    worth[0] = rows.size_weight[order[0]]
    worth = np.minimum(worth, _different(rows) / rows.n)
    fitted: list[SparseProcess] = []
    innovation = np.empty_like(u)
    for i in range(k):
        likelihood = TriangularRow(u[i], innovation[:i], log_unit[i])
        fitted.append(choose_inputs(likelihood, rows, float(worth[i]), inducing))
        *phi, own = row_of_factor(*fitted[-1].of(rows.estimates))
        innovation[i] = u[i]
        for weight, earlier in zip(phi, innovation, strict=False):
            innovation[i] -= weight * earlier
        innovation[i] /= own
    weights = LatentStack.of(fitted, rows.estimates, margin=0.0)
    _, variance = weights.at(rows.estimates)
    return TriangularProcess(as_matrix(moment), weights, tuple(variance.max(axis=1).tolist()))


def _different(rows: FitRows) -> int:
    """Counts rows that differ in the first five digits of anything.

    Weights that depend on the detection could take in a few that are repeated often, to the last
    place and never sure enough of it.
    """
    sent = rows.estimates
    values = np.hstack([rows.error, sent.mean, sent.covariance.reshape(rows.n, -1)])
    mantissa, exponent = np.frexp(values)
    rounded = np.ldexp(np.round(mantissa * _DIGITS), exponent)
    return len(np.unique(rounded, axis=0))
