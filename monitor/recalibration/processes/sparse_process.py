"""A fitted sparse variational Gaussian process: latent means and variances of points.

Its inputs are features of an estimate, standardised, and never outside of the range that was seen
in the fit. Several processes, each with inputs of its own, are served together: one pass over a
batch. Fitting lives in process_fit.py; nothing here needs an optimiser.

What a fit needs of a likelihood, its expectation with derivatives, is stated here too: a
Gauss–Hermite rule is a weighted sum over fixed nodes, with the derivatives of the rule itself, so
that an optimiser sees one function.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, cached_property
from typing import Annotated, Any, Literal, Protocol

import numpy as np
from annotated_types import Interval, Len

from monitor.frames.detections import Estimates
from monitor.frames.marks import Count, Schema, between
from monitor.frames.space import Dimension, DimensionKind, FloatArray, IntArray, read_only
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.methods import MOST_INDUCING
from monitor.recalibration.recalibrator import Document, Documented, InvalidRecalibrator, Matrix

# A feature whose spread is this small against its size does not vary.
CONSTANT = 1e-9

# Standardised values beyond this are not told apart.
FARTHEST = 1e6


class FeatureKind(StrEnum):
    """Functions of one dimension of an estimate."""

    MEAN = "mean"
    LOG_MEAN = "log-mean"  # of sizes and the like: positive throughout the fit
    LOG_DEVIATION = "log-deviation"
    COSINE = "cosine"  # an angle by these two has no jump
    SINE = "sine"
    COSINE_OF_TWICE = "cosine-of-twice"  # a direction without a sign
    SINE_OF_TWICE = "sine-of-twice"


@dataclass(frozen=True, slots=True)
class Feature(Documented):
    """(g(v) − centre) / scale of a value v that is clipped to [low, high] first.

    dimension   position of it
    low, high   range in the fit, in the unit of the dimension
    centre      of g over the rows of the fit
    scale       standard deviation of g over them, positive
    """

    kind: FeatureKind
    dimension: Count
    low: float
    high: float
    centre: float
    scale: float

    def __post_init__(self) -> None:
        if not self.low <= self.high or not self.scale > 0:
            raise InvalidRecalibrator(
                f"'low' {self.low}, 'high' {self.high} and 'scale' {self.scale}: low may "
                "not be above high, and scale must be positive"
            )
        if self.kind in _LOGS and not self.low > 0:
            raise InvalidRecalibrator(
                f"'low' is {self.low}: it must be positive for kind '{self.kind}'"
            )
        ends = _curved(self.kind, np.array([self.low, self.high]))
        if not (np.abs(ends - self.centre) <= 2 * FARTHEST * self.scale).all():
            raise InvalidRecalibrator(
                f"'scale' is {self.scale}: too small for the range {self.low} to "
                f"{self.high} about {self.centre}"
            )


@dataclass(frozen=True)
class Inputs:
    """Features of estimates; without features a process is constant."""

    features: tuple[Feature, ...]

    def of(self, estimates: Estimates) -> FloatArray:
        """(n, D) standardised, within the range of the fit: finite, whatever the estimates."""
        values = np.empty((len(self.features), estimates.mean.shape[0]))
        for row, feature in zip(values, self.features, strict=True):
            row[:] = _raw(feature.kind, feature.dimension, estimates)
        low, high, centre, scale = self._columns
        np.clip(values, low, high, out=values)
        if self._logs.size:
            values[self._logs] = np.log(values[self._logs])
        values -= centre
        values /= scale
        return values.T

    @cached_property
    def _columns(self) -> FloatArray:
        """(4, D, 1)"""
        return np.array([[f.low, f.high, f.centre, f.scale] for f in self.features]).T.reshape(
            4, len(self.features), 1
        )

    @cached_property
    def _logs(self) -> IntArray:
        return np.flatnonzero([feature.kind in _LOGS for feature in self.features])


def candidate_inputs(rows: FitRows) -> Inputs:
    """Lists every mean (its log where all means of the dimension are positive, its cosine and sine
    where it is an angle) and every log σ; none that does not vary over the rows."""
    kinds = [
        (kind, i)
        for i, dimension in enumerate(rows.space.dimensions)
        for kind in _of_mean(dimension, rows.estimates.mean[:, i])
    ]
    kinds += [(FeatureKind.LOG_DEVIATION, i) for i in range(rows.space.k)]
    found = (_feature(kind, i, rows.estimates) for kind, i in kinds)
    return Inputs(tuple(feature for feature in found if feature is not None))


_LOGS = (FeatureKind.LOG_MEAN, FeatureKind.LOG_DEVIATION)


def _of_mean(dimension: Dimension, mean: FloatArray) -> tuple[FeatureKind, ...]:
    if dimension.kind is DimensionKind.ANGLE:
        return FeatureKind.COSINE, FeatureKind.SINE
    if dimension.kind is DimensionKind.ANGLE_MODULO_PI:
        return FeatureKind.COSINE_OF_TWICE, FeatureKind.SINE_OF_TWICE
    return (FeatureKind.LOG_MEAN if (mean > 0).all() else FeatureKind.MEAN,)


def _feature(kind: FeatureKind, dimension: int, estimates: Estimates) -> Feature | None:
    """Standardised over the estimates; None where it does not vary."""
    raw = _raw(kind, dimension, estimates)
    value = _curved(kind, raw)
    centre, scale = float(value.mean()), float(value.std())
    # All but the means have no unit, so that 1 is a size to them.
    size = max(float(np.abs(value).max()), 0.0 if kind is FeatureKind.MEAN else 1.0)
    if not scale > CONSTANT * size:
        return None
    return Feature(kind, dimension, float(raw.min()), float(raw.max()), centre, scale)


def _raw(kind: FeatureKind, dimension: int, estimates: Estimates) -> FloatArray:
    if kind is FeatureKind.LOG_DEVIATION:
        return np.sqrt(estimates.covariance[:, dimension, dimension])
    mean = estimates.mean[:, dimension]
    if kind in (FeatureKind.COSINE_OF_TWICE, FeatureKind.SINE_OF_TWICE):
        mean = 2.0 * mean
    if kind in (FeatureKind.COSINE, FeatureKind.COSINE_OF_TWICE):
        return np.cos(mean)
    return np.sin(mean) if kind in (FeatureKind.SINE, FeatureKind.SINE_OF_TWICE) else mean


def _curved(kind: FeatureKind, raw: FloatArray) -> FloatArray:
    return np.log(raw) if kind in _LOGS else raw


# Log-likelihoods of one latent value are off by less than 1e-4 where its variance is at most 1.
NODES = 20

# Below it the derivative by the variance would be a difference of equal numbers.
LEAST_VARIANCE = 1e-12

# Latent values looked at together: their arrays stay in the cache, which is three times as fast.
_TOGETHER = 5000

# Added to the diagonal of the inducing points' kernel matrix.
JITTER = 1e-6

# Rows a matrix product is made of: products round by their shape, and must not by the batch.
BLOCK = 32

# Latent values of documents: e^±100 is beyond every unit.
LARGEST = 100.0
_Latent = Annotated[float, Interval(ge=-LARGEST, le=LARGEST)]

# Other numbers of documents; lengths are in standard deviations of the feature.
_Within1e3 = Annotated[float, Interval(ge=-1e3, le=1e3)]
_Within1e6 = Annotated[float, Interval(ge=-1e6, le=1e6)]
_Within1e7 = Annotated[float, Interval(ge=-1e7, le=1e7)]
_Length = Annotated[float, Interval(ge=1e-3, le=1e3)]

# Beyond what a fit says of its own rows, the log of a factor goes by a factor of two at most.
MARGIN = float(np.log(2.0))


@dataclass(frozen=True, slots=True)
class Expected:
    """E_q[log p(error | f)] under f_j ~ N(mean_j, variance_j), independent over the J outputs.

    value        (n,) in nats
    by_mean      (J, n) its derivative by the mean of each output
    by_variance  (J, n) and by the variance
    """

    value: FloatArray
    by_mean: FloatArray
    by_variance: FloatArray


class LatentLikelihood(Protocol):
    """Likelihood of the errors of n detections, given J latent values at each."""

    @property
    def start(self) -> FloatArray:
        """(J,) constant latent values to begin with: best where nothing depends on the input."""

    def expected(self, mean: FloatArray, variance: FloatArray) -> Expected:
        """The expectation under Gaussians; both (J, n)."""


@cache
def gauss_hermite(count: int) -> tuple[FloatArray, FloatArray]:
    """Nodes x and weights w, both (count,), with Σ w f(x) = E f(ξ) for ξ ~ N(0, 1).

    Exact for polynomials of a degree below 2·count; read-only.
    """
    node, weight = np.polynomial.hermite_e.hermegauss(count)
    # Symmetric to the last bit, so that odd moments are zero.
    node = 0.5 * (node - node[::-1])
    weight = weight + weight[::-1]
    weight /= weight.sum()
    return read_only(node), read_only(weight)


def latent_nodes(mean: FloatArray, variance: FloatArray) -> FloatArray:
    """(NODES, n) latent values m + √v x at which the rule looks, under N(m, v); both (n,)."""
    node, _ = gauss_hermite(NODES)
    return mean + np.sqrt(np.maximum(variance, LEAST_VARIANCE)) * node[:, None]


class ScalarLikelihood:
    """Likelihood of the errors of n detections, given one latent value at each."""

    __slots__ = ()

    def log_likelihood(self, latent: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Returns the log-likelihood of each error and its slope at latent values; all (Q, n)."""
        raise NotImplementedError

    def expected(self, mean: FloatArray, variance: FloatArray) -> Expected:
        """Computes the expectation under Gaussians by the fixed rule; both (1, n).

        With f = m + √v x: value Σ w ℓ(f), by the mean Σ w ℓ'(f), by the variance
        Σ w x ℓ'(f) / (2√v).
        """
        node, weight = gauss_hermite(NODES)
        deviation = np.sqrt(np.maximum(variance[0], LEAST_VARIANCE))
        value, by_mean, by_deviation = np.zeros((3, deviation.size))
        for part in node_groups(NODES, deviation.size):
            found, slope = self.log_likelihood(mean + deviation * node[part, None])
            value += weight[part] @ found
            by_mean += weight[part] @ slope
            by_deviation += (weight[part] * node[part]) @ slope
        return Expected(value, by_mean[None], (by_deviation / (2 * deviation))[None])


def node_groups(count: int, n: int) -> Iterator[slice]:
    """Nodes to be looked at together where there are n rows."""
    size = max(1, _TOGETHER // max(1, n))
    for first in range(0, count, size):
        yield slice(first, first + size)


def kernel(scale: FloatArray, left: FloatArray, right: FloatArray) -> FloatArray:
    """Evaluates k(x, x') = exp(−½ Σ_d (x_d − x'_d)²/ℓ_d²); (…, n, m).

    k(x, x) = 1: as uncertain a priori wherever nothing was seen.

    scale        (D,) ℓ, in standard deviations of the feature; one each, since some inputs bend
                 the factor and others tilt it
    left, right  points (…, n, D) and (m, D)
    """
    return expanded_kernel(left, *kernel_expansion(scale, right))


def kernel_expansion(
    scale: FloatArray, right: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """W (D, m), V (D, m), b (m,) with log k(x, right) = x W + x² V + b."""
    precision = 1.0 / np.square(scale)[:, None]
    weight = right.T * precision
    square = np.repeat(-0.5 * precision, right.shape[0], axis=1)
    return weight, square, -0.5 * (right.T * weight).sum(axis=0)


def expanded_kernel(
    points: FloatArray, weight: FloatArray, square: FloatArray, offset: FloatArray
) -> FloatArray:
    """exp(x W + x² V + b) of points (…, n, D): two products in place of n m D differences."""
    exponent: FloatArray = points @ weight
    exponent += (points * points) @ square
    exponent += offset
    return np.exp(np.minimum(exponent, 0.0, out=exponent), out=exponent)


def kernel_slope(
    scale: FloatArray,
    left: FloatArray,
    right: FloatArray,
    matrix: FloatArray,
    weight: FloatArray,
) -> FloatArray:
    """Sums weight ∘ ∂k/∂log ℓ_d, (D,); the matrix of the two, and weights, both (…, n, m).

    ∂k/∂log ℓ_d = k (x_d − x'_d)²/ℓ_d², the square expanded.
    """
    g = weight * matrix
    own = left * (left * g.sum(axis=-1)[..., None] - 2.0 * (g @ right))
    columns = g.reshape(-1, len(right)).sum(axis=0)
    other = (np.square(right) * columns[:, None]).sum(axis=0)
    found: FloatArray = own.reshape(-1, own.shape[-1]).sum(axis=0) + other
    return found / np.square(scale)


@dataclass(frozen=True, slots=True)
class LowerTriangles:
    """Marks lower triangular matrices with a positive diagonal: no document has their zeros."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Schema:
        return between(_padded, _trimmed, handler(source))


def _trimmed(triangles: tuple[Matrix, ...]) -> list[list[list[float]]]:
    return [[list(row[: i + 1]) for i, row in enumerate(one)] for one in triangles]


def _padded(triangles: tuple[Matrix, ...]) -> tuple[Matrix, ...]:
    for one in triangles:
        Documented.check_lengths("spread", one, range(1, len(one) + 1), "inducing")
        if not all(row[-1] > 0 for row in one):
            raise InvalidRecalibrator("its rows must end in a positive number")
    return tuple(tuple((*row, *(0.0,) * (len(one) - len(row))) for row in one) for one in triangles)


@dataclass(frozen=True)
class SparseProcess(Documented):
    """f_j(x) = c_j + a_j g_j(x): J outputs, each of a latent of its own, over D features.

    g_j has a kernel of unit size, M inducing points Z with u_j = g_j(Z) = L_j v_j,
    L_j L_jᵀ = k_j(Z, Z), and v_j ~ N(m_j, S_j) (Hensman et al. 2015). With b(x) = L_j⁻¹ k_j(Z, x):

        f_j ~ N(c_j + a_j bᵀ m_j, a_j² (1 − bᵀ b + bᵀ S_j b))

    Without latents it is the constant c, whatever the points.

    constant  (J,) c
    inducing  (M, D) Z, the same for all latents
    scale     (J, D) of each latent's kernel
    mixing    (J, J) diagonal, a
    location  (J, M) m
    spread    (J, M, M) lower Cholesky factors of S, zero above the diagonal
    inputs    the D features of a point; none in a fit, which knows the points
    form      of the kernels
    source    Küppers et al. 2022, eq. 5
    """

    constant: Annotated[tuple[_Within1e3, ...], Len(1)]
    inducing: Annotated[tuple[tuple[_Within1e7, ...], ...], Len(0, MOST_INDUCING)] = ()
    scale: tuple[tuple[_Length, ...], ...] = ()
    mixing: tuple[tuple[_Within1e3, ...], ...] = ()
    location: tuple[tuple[_Within1e6, ...], ...] = ()
    spread: Annotated[tuple[tuple[tuple[_Within1e6, ...], ...], ...], LowerTriangles()] = ()
    inputs: tuple[Feature, ...] = ()
    form: Literal["normalised"] = "normalised"

    def __post_init__(self) -> None:
        m, outputs = len(self.inducing), self.outputs
        latents = outputs if m else 0
        self.check_lengths("inducing", self.inducing, [self.width] * m, "inducing")
        self.check_lengths("location", self.location, [m] * latents, "constant' and 'inducing")
        self.check_lengths("scale", self.scale, [self.width] * latents, "location")
        self.check_lengths("mixing", self.mixing, [latents] * latents, "constant")
        self.check_lengths("spread", self.spread, [m] * latents, "location")
        if len(set(self.inputs)) < len(self.inputs):
            raise InvalidRecalibrator("'inputs' hold a feature twice: give each of them once")
        if any(entry for i, row in enumerate(self.mixing) for entry in row[:i] + row[i + 1 :]):
            raise InvalidRecalibrator(
                "'mixing' is not diagonal: outputs that share latents are no longer served"
            )

    @property
    def outputs(self) -> int:
        """J."""
        return len(self.constant)

    @property
    def width(self) -> int:
        """D: features of a point; 0 where it is constant."""
        return len(self.inducing[0]) if self.inducing else 0

    @cached_property
    def weights(self) -> tuple[FloatArray, FloatArray]:
        """α (J, M) and Q (J, M, M): with k = k_j(Z, x), the mean of g_j is kᵀ α and its variance
        1 + kᵀ Q k."""
        z = np.array(self.inducing)
        alpha, quadratic = [], []
        for scale, location, spread in zip(self.scale, self.location, self.spread, strict=True):
            root = inducing_root(np.array(scale), z)
            inverse = np.linalg.solve(root, np.eye(len(root)))
            half = np.array(spread).T @ inverse
            alpha.append(inverse.T @ np.array(location))
            q = half.T @ half - inverse.T @ inverse
            quadratic.append(0.5 * (q + q.T))
        return np.array(alpha), np.array(quadratic)

    def at(self, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Computes mean (J, n) and variance (J, n) of the outputs at points (n, D).

        Every point by itself: the same bits alone as among others.
        """
        n = points.shape[0]
        mean = np.repeat(np.array(self.constant)[:, None], n, axis=1)
        variance = np.zeros_like(mean)
        blocks, z = in_blocks(points), np.array(self.inducing)
        for j, (scale, alpha, quadratic) in enumerate(zip(self.scale, *self.weights, strict=True)):
            k, amplitude = kernel(np.array(scale), blocks, z), self.mixing[j][j]
            mean[j] += amplitude * (k @ alpha[:, None]).reshape(-1)[:n]
            reduced = ((k @ quadratic) * k) @ np.ones((len(z), 1))
            spread = np.maximum(1.0 + reduced.reshape(-1)[:n], 0.0)
            variance[j] = np.square(amplitude) * spread
        return mean, variance

    def of(self, estimates: Estimates) -> tuple[FloatArray, FloatArray]:
        """Computes mean (J, n) and variance (J, n) of the outputs at estimates."""
        return self.at(Inputs(self.inputs).of(estimates))

    def parameters(self) -> Document:
        """Returns all fields, as JSON values; without the zeros of the spread."""
        return {**Documented.parameters(self), "spread": _trimmed(self.spread)}


def inducing_root(scale: FloatArray, inducing: FloatArray) -> FloatArray:
    """Lower Cholesky factor of k(Z, Z), with jitter; (M, M). NaN where it is singular."""
    product = kernel(scale, inducing, inducing)
    # The two halves round apart.
    matrix: FloatArray = 0.5 * (product + product.T)
    np.fill_diagonal(matrix, 1.0 + JITTER)
    try:
        return np.asarray(np.linalg.cholesky(matrix), np.float64)
    except np.linalg.LinAlgError:
        return np.full_like(matrix, np.nan)


def in_blocks(points: FloatArray, size: int = BLOCK) -> FloatArray:
    """Points (n, D) as (⌈n / size⌉, size, D), zeros behind the last."""
    n, width = points.shape
    count = -(-n // size)
    blocks = np.zeros((count * size, width))
    blocks[:n] = points
    return blocks.reshape(count, size, width)


@dataclass(frozen=True)
class LatentStack(Documented):
    """J latent values of each estimate, the outputs of all processes one after the other.

    low, high  (J,) what is served lies between, whatever the processes say
    """

    processes: Annotated[tuple[SparseProcess, ...], Len(1)]
    low: tuple[_Latent, ...]
    high: tuple[_Latent, ...]

    def __post_init__(self) -> None:
        for i, process in enumerate(self.processes):
            count = len(process.inputs)
            if process.inducing and count != process.width:
                raise InvalidRecalibrator(
                    f"'processes[{i}]' has {count} features in 'inputs' and points of "
                    f"{process.width} in 'inducing': there must be as many"
                )
            if not all(np.isfinite(part).all() for part in process.weights):
                raise InvalidRecalibrator(
                    f"'inducing' and 'scale' of 'processes[{i}]' make a singular kernel matrix"
                )
        outputs = sum(process.outputs for process in self.processes)
        self.check_entries(("low", "high"), outputs, "processes")
        for a, b in zip(self.low, self.high, strict=True):
            if a > b:
                raise InvalidRecalibrator(f"'low' {a} and 'high' {b}: they must be in order")

    @classmethod
    def of(
        cls,
        processes: Sequence[SparseProcess],
        estimates: Estimates,
        margin: float = MARGIN,
        *,
        expectations: bool = False,
    ) -> LatentStack:
        """Limits fitted processes to what they say of the estimates they were fitted on.

        margin        by how much more, in units of the latents
        expectations  whether log_expectations are served, and no means
        """
        ends = []
        for process in processes:
            served, variance = process.of(estimates)
            if expectations:
                served += 0.5 * variance
            ends.append([served.min(axis=1) - margin, served.max(axis=1) + margin])
        low, high = np.clip(np.concatenate(ends, axis=1), -LARGEST, LARGEST).tolist()
        return LatentStack(tuple(processes), tuple(low), tuple(high))

    def check_dimensions(self, k: int, outputs: Sequence[int] | None = None) -> None:
        """Raises InvalidRecalibrator unless it is of estimates of k dimensions.

        outputs  how many each process must have; None: that is free
        """
        found = [process.outputs for process in self.processes]
        if outputs is not None and found != list(outputs):
            raise InvalidRecalibrator(
                f"'processes' have {found} outputs: {k} dimensions need {list(outputs)}"
            )
        farthest = max((f.dimension for one in self.processes for f in one.inputs), default=0)
        if farthest >= k:
            raise InvalidRecalibrator(
                f"'dimension' is {farthest} in 'inputs': it must be less than {k}"
            )

    @property
    def outputs(self) -> int:
        """J."""
        return len(self.low)

    def means(self, estimates: Estimates) -> FloatArray:
        """(J, n) E[f], between low and high."""
        return self._limited(self._together.means(estimates))

    def log_expectations(self, estimates: Estimates) -> FloatArray:
        """(J, n) log E[e^f] = mean + variance/2, between low and high."""
        mean, variance = self.at(estimates)
        variance *= 0.5
        mean += variance
        return self._limited(mean)

    def at(self, estimates: Estimates) -> tuple[FloatArray, FloatArray]:
        """Computes mean and variance (J, n) without limits; each estimate by itself."""
        return self._together.at(estimates)

    def _limited(self, values: FloatArray) -> FloatArray:
        low, high = self._range
        return np.clip(values, low, high, out=values)

    @cached_property
    def _range(self) -> tuple[FloatArray, FloatArray]:
        return np.array(self.low)[:, None], np.array(self.high)[:, None]

    @cached_property
    def _together(self) -> _Together:
        return _Together(self.processes)


class _Together:
    """All latents as few products: with x the union of the features, log k = x W + x² V + b."""

    def __init__(self, processes: Sequence[SparseProcess]) -> None:
        """Puts the processes side by side; points that one lacks have no weight.

        inputs     the union of features, F
        linear     (F, L M) W, zero where a process does not look; M points a latent
        square     (F, L M) V
        offset     (L M,) b
        alpha      (L M, L) mean = k α, block by block
        quadratic  (L, M, M) variance = 1 + kᵀ Q k
        constant   (J, 1)
        outputs    (L,) that the latents are of, and their amplitudes there (L, 1)
        """
        of_outputs = [(process, j) for process in processes for j in range(process.outputs)]
        of_latents = [(process, j) for process, j in of_outputs if process.inducing]
        features = tuple(dict.fromkeys(f for process, _ in of_latents for f in process.inputs))
        most = max((len(process.inducing) for process, _ in of_latents), default=0)
        latents, width = len(of_latents), len(features)
        linear, square = np.zeros((2, width, latents, most))
        offset, alpha = np.zeros((latents, most)), np.zeros((latents, most, latents))
        self.quadratic = np.zeros((latents, most, most))
        for latent, (process, j) in enumerate(of_latents):
            m, places = len(process.inducing), [features.index(f) for f in process.inputs]
            w, v, b = kernel_expansion(np.array(process.scale[j]), np.array(process.inducing))
            linear[places, latent, :m], square[places, latent, :m], offset[latent, :m] = w, v, b
            alpha[latent, :m, latent] = process.weights[0][j]
            self.quadratic[latent, :m, :m] = process.weights[1][j]
        self.inputs = Inputs(features)
        self.linear = linear.reshape(width, latents * most)
        self.square = square.reshape(width, latents * most)
        self.offset, self.alpha = offset.ravel(), alpha.reshape(latents * most, latents)
        self.constant = np.concatenate([process.constant for process in processes])[:, None]
        self.outputs = np.flatnonzero([bool(process.inducing) for process, _ in of_outputs])
        self.amplitude = np.array([process.mixing[j][j] for process, j in of_latents])[:, None]

    def means(self, estimates: Estimates) -> FloatArray:
        """(J, n)"""
        return self._means(self._kernels(estimates), estimates.mean.shape[0])

    def at(self, estimates: Estimates) -> tuple[FloatArray, FloatArray]:
        """Means and variances, both (J, n)."""
        n, (latents, most, _) = estimates.mean.shape[0], self.quadratic.shape
        k = self._kernels(estimates)
        mean = self._means(k, n)
        variance = np.zeros_like(mean)
        if not mean.size or not latents:
            return mean, variance
        by_latent = k.reshape(len(k), -1, latents, most).transpose(0, 2, 1, 3)
        reduced = by_latent @ self.quadratic
        reduced *= by_latent
        spread = 1.0 + reduced.sum(axis=3).transpose(1, 0, 2).reshape(latents, -1)[:, :n]
        np.maximum(spread, 0.0, out=spread)
        variance[self.outputs] = np.square(self.amplitude) * spread
        return mean, variance

    def _kernels(self, estimates: Estimates) -> FloatArray:
        """(B, BLOCK, L M) k(x, Z) of all latents."""
        points = in_blocks(self.inputs.of(estimates))
        return expanded_kernel(points, self.linear, self.square, self.offset)

    def _means(self, k: FloatArray, n: int) -> FloatArray:
        mean = np.repeat(self.constant, n, axis=1)
        if mean.size and self.outputs.size:
            latent_mean = (k @ self.alpha).reshape(-1, self.outputs.size).T
            mean[self.outputs] += self.amplitude * latent_mean[:, :n]
        return mean
