"""Covariance regression: log variances, and the correlation of x and y, as linear functions of what
a detection tells of its errors.

Errors e in the axes of the layout have e_d ~ N(0, exp(xᵀ β_d)), x the terms of the covariates
(Harvey 1976: multiplicative heteroscedasticity). The log-likelihood −½ Σ (xᵀβ + e² exp(−xᵀβ)) is
concave in β; Fisher scoring finds its maximum, with the information ½ X Xᵀ whatever β is. A ridge
draws slopes to none, or to those of a wider slice.

Slopes are the same whatever the tails: they are fitted with winsorised squares, and gross outliers
do not turn them. The level then satisfies the objective: with the mean, mean z² is 1.

Errors over their deviations, z, correlate by a matrix that is the same for all, but for the pair of
x and y: atanh ρ = uᵀ γ, by Fisher scoring as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations_with_replacement
from typing import Annotated, ClassVar, Self

import numpy as np
from annotated_types import Interval, Len

from monitor.frames.detections import Estimates
from monitor.frames.marks import Count
from monitor.frames.space import FloatArray
from monitor.frames.words import Axes, Objective
from monitor.recalibration.estimated.covariates import (
    LARGEST_LOG,
    ODD,
    Correlations,
    Covariate,
    CovariateKind,
    EstimatedCovariance,
    Layout,
    LogVariance,
    check_correlation,
    columns,
    covariates_of,
    drawn_to_none,
)
from monitor.recalibration.estimated.sizes import (
    LEVEL_SHARE,
    UNCORRELATED,
    correlation_of,
    counted,
    drawn,
    independent_rows,
    log_size,
    strength_of,
    uncut,
)
from monitor.recalibration.fit_rows import FitRows, prepared
from monitor.recalibration.recalibrator import (
    InvalidRecalibrator,
    as_matrix,
)
from monitor.recalibration.scaling import Prior

_Coefficient = Annotated[float, Interval(ge=-1e3, le=1e3)]
Coefficients = tuple[tuple[_Coefficient, ...], ...]

# Covariates whose product a term is; none: the constant.
_Term = Annotated[tuple[Count, ...], Len(0, 2)]
Terms = Annotated[tuple[_Term, ...], Len(1, 64)]
PairTerms = Annotated[tuple[_Term, ...], Len(0, 64)]

# Rows that "no slope" counts for, of terms that are covariates and of products of two.
LINEAR_RIDGE, PRODUCT_RIDGE = 5.0, 50.0

# |atanh ρ| at most: ρ = 0.964.
_MOST_CORRELATED = 2.0

_STEPS = 100
_CLOSE = 1e-9

# A step changes no log variance by more, and no atanh ρ.
_LONGEST_STEP, _LONGEST_TURN = 2.0, 0.5

# What slopes are fitted with.
_ROBUST = Objective.WINSORISED_MEAN


@dataclass(frozen=True)
class CovarianceRegression(EstimatedCovariance):
    """Σ̂ = Q S R S Qᵀ with log S² = B x, whatever covariance was sent.

    dimensions    K
    layout        where position, sizes and heading stand, and the axes
    covariates    (C,) functions of mean and score
    terms         (P,) products of covariates, the constant first
    coefficients  (K, P) B
    low, high     (K,) log variances of the fit; those served lie between
    correlation   (K, K) R
    pair          (P',) coefficients of atanh ρ of x and y; none without a position
    pair_terms    (P',) products of covariates, as `terms`
    objective     what the level of the variances satisfies
    """

    covariates: tuple[Covariate, ...]
    terms: Terms
    coefficients: Coefficients
    low: tuple[LogVariance, ...]
    high: tuple[LogVariance, ...]
    correlation: Correlations
    pair: tuple[_Coefficient, ...] = ()
    pair_terms: PairTerms = ()
    objective: Objective = Objective.MEAN
    method: ClassVar[str] = "covariance-regression"

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

    def apply(self, estimates: Estimates) -> Estimates:
        """Gives each detection a full covariance by its mean and score alone."""
        mean, k = estimates.mean, self.k
        values = columns(self.covariates, self.layout, estimates)
        made = self.layout.covariances(
            mean, self._log_variances(values, len(mean)), self._correlations(values, len(mean))
        )
        return Estimates(mean, made, np.full(len(mean), False) if k > 1 else estimates.diagonal)

    def widened(self, factor: float) -> Self:
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
    """Returns the values of the terms, (P, n)."""
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


def pair_terms_of(covariates: Sequence[Covariate]) -> PairTerms:
    """Lists the terms of the correlation of x and y: a constant, and what is odd as it is."""
    return ((), *((i,) for i, one in enumerate(covariates) if one.kind in ODD))


def ridge_of(terms: Sequence[tuple[int, ...]]) -> FloatArray:
    """Returns for how many rows no slope counts, (P,); none for the constant."""
    return np.array([(0.0, LINEAR_RIDGE, PRODUCT_RIDGE)[len(term)] for term in terms])


def fit_covariance_regression(
    rows: FitRows,
    objective: Objective = Objective.MEAN,
    axes: Axes | None = None,
    prior: Prior[CovarianceRegression] | None = None,
) -> CovarianceRegression:
    """Fits by Fisher scoring, twice: the first fit tells what the rows of tracks are worth.

    axes    None: those of the sensor where there is a position, else plain
    prior   the fit of a wider slice, whose coefficients are drawn towards with its strength in
            independent rows; its covariates, terms and axes are taken over
    raises  UnfitData without rows, where a dimension has no error, and where the axes need what
            is not there
    """
    rows = prepared(rows)
    before = None if prior is None else prior.previous
    layout = Layout.of(rows.space, axes) if before is None else before.layout
    error = layout.turned(rows.estimates.mean, rows.error)
    covariates = covariates_of(layout, rows) if before is None else before.covariates
    terms = terms_of(covariates) if before is None else before.terms
    values = columns(covariates, layout, rows.estimates)
    x, square = design(terms, values, rows.n), np.square(error)
    towards = np.zeros((rows.space.k, len(terms)))
    if before is not None:
        towards = np.array(before.coefficients)
    worth, found = np.full(rows.space.k, float(rows.n)), towards
    for _ in range(2):
        strength = 0.0 if prior is None else strength_of(prior.strength, worth, rows.tracks)
        ridge = np.where(ridge_of(terms) > 0, np.maximum(ridge_of(terms), strength), 0.0)
        found = fit_slopes(square, x, ridge, towards, worth / rows.n)
        worth = independent_rows(square * np.exp(-(found @ x)), rows.track)
    slopes = found @ x
    level = log_size(square * np.exp(-slopes), objective)
    if before is not None:
        share = worth / (worth + LEVEL_SHARE * strength)
        level = share * level + (1.0 - share) * (towards @ x - slopes).mean(axis=1)
    found[:, 0] += level
    log_variance = slopes + level[:, None]
    z = uncut(error * np.exp(-0.5 * log_variance), objective)
    fewest = float(worth.min())
    known = np.eye(rows.space.k) if before is None else np.array(before.correlation)
    correlation = drawn(correlation_of(z), known, fewest, strength)
    pair: tuple[float, ...] = ()
    pair_terms: PairTerms = ()
    if layout.position:
        pair_terms = pair_terms_of(covariates) if before is None else before.pair_terms
        start = np.zeros(len(pair_terms)) if before is None else np.array(before.pair)
        u, against = design(pair_terms, values, rows.n), max(strength, UNCORRELATED)
        two = uncut(z[list(layout.position)], _ROBUST)
        two = two / np.sqrt(np.square(two).mean(axis=1))[:, None]
        pair = tuple(fit_correlation(two, u, against, start, fewest / rows.n).tolist())
    ends = np.array([log_variance.min(axis=1), log_variance.max(axis=1)])
    if before is not None:
        # The wider slice has seen more: as far as it goes, beyond the level of these rows.
        beyond = level + (slopes - towards @ x).mean(axis=1)
        wider = np.array([before.low, before.high]) + beyond
        ends = np.array([np.minimum(ends[0], wider[0]), np.maximum(ends[1], wider[1])])
    low, high = np.clip(ends, -LARGEST_LOG, LARGEST_LOG).tolist()
    return CovarianceRegression(
        rows.space.k,
        layout,
        covariates,
        terms,
        as_matrix(found),
        tuple(low),
        tuple(high),
        as_matrix(correlation),
        pair,
        pair_terms,
        objective,
    )


def fit_slopes(
    square: FloatArray, x: FloatArray, ridge: FloatArray, towards: FloatArray, weight: FloatArray
) -> FloatArray:
    """Finds β of every dimension, (K, P): the zero of the gradient of the penalised likelihood.

    ½ w Σ_i x_i (c(e²/v) − 1) − ½ Λ (β − β₀) = 0 with v = exp(xᵀβ), and c what z² counts for when it
    is winsorised. Steps of Fisher scoring: (w X Xᵀ + Λ)⁻¹ times twice the gradient.

    square   (K, n) e²
    x        (P, n), the first of them 1
    ridge    (P,) Λ, in rows
    towards  (K, P) β₀
    weight   (K,) w, what a row is worth
    source   Harvey 1976, for squares as they are
    """
    gram = x @ x.T
    found = towards.copy()
    found[:, 0] = log_size(square * np.exp(-(found @ x)), _ROBUST) + found[:, 0]
    for d, w in enumerate(weight.tolist()):
        # Terms that are one and the same over these rows share what there is.
        information = np.linalg.pinv(w * gram + np.diag(ridge), hermitian=True)
        for _ in range(_STEPS):
            excess = counted(square[d] * np.exp(-(found[d] @ x)), _ROBUST) - 1.0
            step = information @ (w * (x @ excess) - ridge * (found[d] - towards[d]))
            longest = float(np.abs(step @ x).max())
            found[d] += step * min(1.0, _LONGEST_STEP / max(longest, _CLOSE))
            if longest < _CLOSE:
                break
    return found


def fit_correlation(
    z: FloatArray, u: FloatArray, ridge: float, towards: FloatArray, weight: float
) -> FloatArray:
    """Finds γ of atanh ρ = uᵀ γ, (P',), by Fisher scoring with a ridge.

    With η = atanh ρ the score of two Gaussians of variance 1 is
    ρ + [(1 + ρ²) z₁z₂ − ρ (z₁² + z₂²)] / (1 − ρ²), and the information 1 + ρ².

    z        (2, n) of x and of y, their mean square 1
    u        (P', n)
    ridge    rows that γ₀ counts for
    towards  (P',) γ₀
    weight   what a row is worth
    """
    found = towards.copy()
    product, squares = z[0] * z[1], z[0] * z[0] + z[1] * z[1]
    for _ in range(_STEPS):
        rho = np.tanh(np.clip(found @ u, -_MOST_CORRELATED, _MOST_CORRELATED))
        information = 1.0 + rho * rho
        score = rho + (information * product - rho * squares) / (1.0 - rho * rho)
        gradient = weight * (u @ score) - ridge * (found - towards)
        curvature = weight * (u * information) @ u.T + ridge * np.eye(len(u))
        step = np.linalg.solve(curvature, gradient)
        longest = float(np.abs(step @ u).max())
        found += step * min(1.0, _LONGEST_TURN / max(longest, _CLOSE))
        if longest < _CLOSE:
            break
    return found
