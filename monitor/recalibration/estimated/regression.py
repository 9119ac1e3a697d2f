"""Covariance regression: log variances, and the correlation of x and y, as linear functions of what
a detection tells of its errors.

Errors e in the axes of the layout have e_d ~ N(0, exp(xᵀ β_d)), x the terms of the covariates (Harvey
1976: multiplicative heteroscedasticity). The log-likelihood −½ Σ (xᵀβ + e² exp(−xᵀβ)) is concave in
β; Fisher scoring finds its maximum, with the information ½ X Xᵀ whatever β is. A ridge draws slopes
to none, or all of β to those of a wider slice.

Errors over their deviations, z, correlate by a matrix that is the same for all, but for the pair of
x and y: atanh ρ = uᵀ γ, by Fisher scoring as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations_with_replacement
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Interval, Len

from monitor.frames.detections import Estimates
from monitor.frames.marks import Count, CountFrom1
from monitor.frames.space import FloatArray
from monitor.recalibration.estimated.covariates import (
    ODD,
    Axes,
    Correlations,
    Covariate,
    CovariateKind,
    Layout,
    LogVariance,
    check_correlation,
    columns,
    covariates_of,
    drawn_to_none,
)
from monitor.recalibration.estimated.sizes import counted, independent_rows, log_size
from monitor.recalibration.fit_rows import FitRows, prepared
from monitor.recalibration.recalibrator import (
    InvalidRecalibrator,
    Output,
    Recalibrator,
    as_matrix,
)
from monitor.recalibration.scaling import Objective, Prior

_Coefficient = Annotated[float, Interval(ge=-1e3, le=1e3)]
Coefficients = tuple[tuple[_Coefficient, ...], ...]

# Covariates whose product a term is; none: the constant.
Terms = Annotated[tuple[Annotated[tuple[Count, ...], Len(0, 2)], ...], Len(1, 64)]

# Rows that "no slope" counts for, of terms that are covariates and of products of two.
LINEAR_RIDGE, PRODUCT_RIDGE = 5.0, 20.0

# Rows that "no correlation" counts for, beside the number of dimensions.
UNCORRELATED = 10.0

# |atanh ρ| at most: ρ = 0.964.
_MOST_CORRELATED = 2.0

_STEPS = 100
_CLOSE = 1e-9

# A step changes no log variance by more.
_LONGEST_STEP = 2.0


@dataclass(frozen=True)
class CovarianceRegression(Recalibrator):
    """Σ̂ = Q S R S Qᵀ with log S² = B x, whatever covariance was sent.

    dimensions    K
    layout        where position, sizes and heading stand, and the axes
    covariates    (C,) functions of mean and score
    terms         (P,) products of covariates, the constant first
    coefficients  (K, P) B
    low, high     (K,) log variances of the fit; those served lie between
    correlation   (K, K) R
    pair          (P',) of atanh ρ of x and y over the first terms; none without a position
    objective     what the sizes satisfy
    """

    dimensions: CountFrom1
    layout: Layout
    covariates: tuple[Covariate, ...]
    terms: Terms
    coefficients: Coefficients
    low: tuple[LogVariance, ...]
    high: tuple[LogVariance, ...]
    correlation: Correlations
    pair: tuple[_Coefficient, ...] = ()
    pair_terms: tuple[Annotated[tuple[Count, ...], Len(0, 2)], ...] = ()
    objective: Objective = Objective.MEAN
    method: ClassVar[str] = "covariance-regression"
    output = Output.ESTIMATED

    def __post_init__(self) -> None:
        k = self.dimensions
        self.layout.check_within(k)
        self.check_lengths("coefficients", self.coefficients, [len(self.terms)] * k, "dimensions")
        self.check_entries(("low", "high"), k, "dimensions")
        self.check_entries(("pair_terms",), len(self.pair), "pair")
        for low, high in zip(self.low, self.high, strict=True):
            if low > high:
                raise InvalidRecalibrator(f"'low' {low} and 'high' {high}: they must be in order")
        farthest = max((i for term in (*self.terms, *self.pair_terms) for i in term), default=-1)
        if farthest >= len(self.covariates):
            raise InvalidRecalibrator(
                f"a term has the covariate {farthest}: there are {len(self.covariates)}"
            )
        if self.pair and not self.layout.position:
            raise InvalidRecalibrator("'pair' needs 'position'")
        check_correlation("correlation", self.correlation, k)

    @property
    def k(self) -> int:
        """Number of dimensions."""
        return self.dimensions

    def apply(self, estimates: Estimates) -> Estimates:
        """Gives each detection a full covariance by its mean and score alone."""
        mean, k = estimates.mean, self.k
        values = columns(self.covariates, self.layout, estimates)
        made = self.layout.covariances(
            mean, self._log_variances(values, len(mean)), self._correlations(values, len(mean))
        )
        return Estimates(mean, made, np.full(len(mean), False) if k > 1 else estimates.diagonal)

    def widened(self, factor: float) -> CovarianceRegression:
        """Returns the one whose variances are larger by a factor."""
        by = float(np.log(factor))
        return replace(
            self,
            coefficients=tuple((one[0] + by, *one[1:]) for one in self.coefficients),
            low=tuple(one + by for one in self.low),
            high=tuple(one + by for one in self.high),
        )

    def _log_variances(self, values: Sequence[FloatArray], n: int) -> FloatArray:
        found = _linear(self._columns, self.terms, values, n)
        low, high = self._range
        return np.clip(found, low, high, out=found)

    def _correlations(self, values: Sequence[FloatArray], n: int) -> FloatArray:
        """(K, K) for all, or (n, K, K) where that of x and y depends on the detection.

        With the triangular root of R, x and y first, only the row of y changes: it stays a row of
        length 1, and R positive definite.
        """
        if not self.pair:
            return self._served
        i, j = self.layout.position
        atanh = _linear(self._pair, self.pair_terms, values, n)[0]
        np.clip(atanh, -_MOST_CORRELATED, _MOST_CORRELATED, out=atanh)
        rho = np.tanh(atanh)
        beside = np.sqrt(1.0 - rho * rho)
        of_first, of_second = self._rows_of_root
        row = rho[:, None] * of_first + beside[:, None] * of_second
        row[:, i], row[:, j] = rho, 1.0
        made = np.repeat(self._served[None], n, axis=0)
        made[:, j] = made[:, :, j] = row
        return made

    @cached_property
    def _columns(self) -> FloatArray:
        """(P, K, 1)"""
        return np.array(self.coefficients).T[:, :, None]

    @cached_property
    def _pair(self) -> FloatArray:
        return np.array(self.pair)[:, None, None]

    @cached_property
    def _range(self) -> FloatArray:
        return np.array([self.low, self.high])[:, :, None]

    @cached_property
    def _served(self) -> FloatArray:
        return drawn_to_none(np.array(self.correlation))

    @cached_property
    def _rows_of_root(self) -> FloatArray:
        """(2, K) what correlations with x and, beyond it, with y are made of."""
        i, j = self.layout.position
        r = self._served
        first = r[i]
        second = (r[j] - first * r[i, j]) / np.sqrt(1.0 - r[i, j] ** 2)
        return np.array([first, second])


def _linear(
    coefficients: FloatArray,
    terms: Sequence[tuple[int, ...]],
    values: Sequence[FloatArray],
    n: int,
) -> FloatArray:
    """Adds up coefficients (P, K, 1) times terms; (K, n). One after the other: see add_up."""
    found = np.zeros((coefficients.shape[1], n))
    for coefficient, term in zip(coefficients, terms, strict=True):
        if term:
            found += coefficient * _product(term, values)
        else:
            found += coefficient
    return found


def _product(term: tuple[int, ...], values: Sequence[FloatArray]) -> FloatArray:
    first, *rest = (values[i] for i in term)
    return first * rest[0] if rest else first


def design(terms: Sequence[tuple[int, ...]], values: Sequence[FloatArray], n: int) -> FloatArray:
    """(P, n) values of the terms."""
    return np.array([_product(term, values) if term else np.ones(n) for term in terms])


def terms_of(covariates: Sequence[Covariate]) -> Terms:
    """Lists the terms of log variances: constant, covariates, and products of two that bend them.

    What changes its sign where left and right change places is in none.
    """
    plain = {CovariateKind.SINE_OF_BEARING, CovariateKind.SINE_OF_HEADING}
    even = [i for i, one in enumerate(covariates) if one.kind not in ODD or one.kind in plain]
    bends = (CovariateKind.LOG_RANGE, CovariateKind.SCORE)
    bent = [i for i in even if covariates[i].kind in bends]
    return ((), *((i,) for i in even), *combinations_with_replacement(bent, 2))


def pair_terms_of(covariates: Sequence[Covariate]) -> tuple[tuple[int, ...], ...]:
    """Lists the terms of the correlation of x and y: a constant, and what is odd as it is."""
    return ((), *((i,) for i, one in enumerate(covariates) if one.kind in ODD))


def ridge_of(terms: Sequence[tuple[int, ...]]) -> FloatArray:
    """(P,) rows that no slope counts for; none for the constant."""
    return np.array([(0.0, LINEAR_RIDGE, PRODUCT_RIDGE)[len(term)] for term in terms])


def fit_covariance_regression(
    rows: FitRows,
    objective: Objective = Objective.MEAN,
    axes: Axes | None = None,
    prior: Prior[CovarianceRegression] | None = None,
) -> CovarianceRegression:
    """Fits by Fisher scoring, twice: the first fit tells what the rows of tracks are worth.

    prior   the fit of a wider slice, whose coefficients are drawn towards with its strength in rows;
            its covariates, terms and axes are taken over
    raises  UnfitData without rows, where a dimension has no error, and where the axes need what
            is not there
    """
    rows = prepared(rows)
    before = None if prior is None else prior.previous
    strength = 0.0 if prior is None else prior.strength
    layout = Layout.of(rows.space, axes) if before is None else before.layout
    error = layout.turned(rows.estimates.mean, rows.error)
    covariates = covariates_of(layout, rows, None if before is None else before.covariates)
    terms = terms_of(covariates) if before is None else before.terms
    values = columns(covariates, layout, rows.estimates)
    x = design(terms, values, rows.n)
    square = np.square(error)
    # Fisher information of a row is ½ x xᵀ: rows of the ridge count as rows do.
    ridge = np.maximum(ridge_of(terms), strength)
    constant = log_size(square, objective)
    towards = np.zeros((rows.space.k, len(terms)))
    if before is None:
        towards[:, 0] = constant
    else:
        towards = np.array(before.coefficients)
    worth = np.full(rows.space.k, float(rows.n))
    found = towards
    for _ in range(2):
        found = fit_log_variances(square, x, ridge, towards, worth / rows.n, objective)
        worth = independent_rows(square * np.exp(-_log_variances(found, x)), rows.track)
    log_variance = _log_variances(found, x)
    if objective is Objective.QUANTILE:
        shift = log_size(square * np.exp(-log_variance), objective)
        found[:, 0] += shift
        log_variance += shift[:, None]
    z = error * np.exp(-0.5 * log_variance)
    limit = np.inf if objective is Objective.MEAN else np.sqrt(9.0)
    z = np.clip(z, -limit, limit)
    fewest = float(worth.min())
    correlation = _correlation_of(z, fewest, before, strength)
    pair_terms, pair = (), ()
    if layout.position:
        pair_terms = pair_terms_of(covariates) if before is None else before.pair_terms
        i, j = layout.position
        start = np.zeros(len(pair_terms)) if before is None else np.array(before.pair)
        pair = tuple(
            fit_correlation(
                z[i] / np.sqrt(np.mean(z[i] ** 2)),
                z[j] / np.sqrt(np.mean(z[j] ** 2)),
                design(pair_terms, values, rows.n),
                max(strength, UNCORRELATED),
                start,
                fewest / rows.n,
            ).tolist()
        )
    return CovarianceRegression(
        rows.space.k,
        layout,
        covariates,
        terms,
        as_matrix(found),
        tuple(log_variance.min(axis=1).tolist()),
        tuple(log_variance.max(axis=1).tolist()),
        as_matrix(correlation),
        pair,
        pair_terms,
        objective,
    )


def _log_variances(coefficients: FloatArray, x: FloatArray) -> FloatArray:
    return coefficients @ x


def fit_log_variances(
    square: FloatArray,
    x: FloatArray,
    ridge: FloatArray,
    towards: FloatArray,
    weight: FloatArray,
    objective: Objective = Objective.MEAN,
) -> FloatArray:
    """Finds β of every dimension, (K, P): the zero of the gradient of the penalised likelihood.

    ½ w Σ_i x_i (c(e²/v) − 1) − ½ Λ (β − β₀) = 0 with v = exp(xᵀβ), and c what z² counts for
    (see `counted`; z² itself for the mean). Steps of Fisher scoring, (w X Xᵀ + Λ)⁻¹ times twice the
    gradient.

    square   (K, n) e²
    x        (P, n)
    ridge    (P,) Λ, in rows
    towards  (K, P) β₀, from which the search starts
    weight   (K,) w, what a row is worth
    source   Harvey 1976, eq. 9
    """
    gram = x @ x.T
    found = towards.copy()
    for d, w in enumerate(weight.tolist()):
        information = np.linalg.inv(w * gram + np.diag(ridge) + 1e-9 * np.eye(len(gram)))
        for _ in range(_STEPS):
            excess = counted(square[d] * np.exp(-(found[d] @ x)), objective) - 1.0
            # The logarithm, not the excess, where v is far too small.
            step = information @ (
                w * (x @ np.minimum(excess, 1e3)) - ridge * (found[d] - towards[d])
            )
            longest = float(np.abs(step @ x).max())
            found[d] += step * min(1.0, _LONGEST_STEP / max(longest, 1e-300))
            if longest < _CLOSE:
                break
    return found


def _correlation_of(
    z: FloatArray, worth: float, before: CovarianceRegression | None, strength: float
) -> FloatArray:
    """(K, K) of z (K, n), drawn to none, and to that of the wider slice."""
    k = len(z)
    moment = z @ z.T / z.shape[1]
    size = np.sqrt(np.diagonal(moment))
    own = moment / (size[:, None] * size)
    if before is None:
        target, against = np.eye(k), UNCORRELATED + k
    else:
        target, against = np.array(before.correlation), max(strength, UNCORRELATED + k)
    share = worth / (worth + against)
    found = share * own + (1.0 - share) * target
    found = 0.5 * (found + found.T)
    np.fill_diagonal(found, 1.0)
    return np.clip(found, -1.0, 1.0)


def fit_correlation(
    first: FloatArray,
    second: FloatArray,
    u: FloatArray,
    ridge: float,
    towards: FloatArray,
    weight: float,
) -> FloatArray:
    """Finds γ of atanh ρ = uᵀ γ, (P',), by Fisher scoring with a ridge.

    With η = atanh ρ the score of two Gaussians of variance 1 is ρ + [(1 + ρ²) z₁z₂ − ρ (z₁² + z₂²)]
    / (1 − ρ²), and the information 1 + ρ².

    first, second  (n,) z of x and of y
    u              (P', n)
    """
    found = towards.copy()
    product, squares = first * second, first * first + second * second
    for _ in range(_STEPS):
        rho = np.tanh(np.clip(found @ u, -_MOST_CORRELATED, _MOST_CORRELATED))
        score = rho + ((1 + rho * rho) * product - rho * squares) / (1 - rho * rho)
        information = weight * (u * (1 + rho * rho)) @ u.T + ridge * np.eye(len(u))
        gradient = weight * (u @ score) - ridge * (found - towards)
        step = np.linalg.solve(information, gradient)
        found += step * min(1.0, 0.5 / max(float(np.abs(step @ u).max()), 1e-300))
        if np.abs(step).max() < _CLOSE:
            break
    return found
