"""GP-Beta: predicted cumulative probabilities under a beta map that depends on the estimate.

The three parameters of the map are moved by one Gaussian process of the estimate in each dimension
(Song et al. 2019; Küppers et al. 2022, section 3). Forwarded are mean and variance of the
calibrated distribution, about the predicted mean.

In a fit the line that the parameters lie on and the latent values along it take turns, each at the
other's optimum, until the bound stands still.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import ClassVar

import numpy as np
from scipy.linalg import eigh
from scipy.special import ndtri

from monitor.frames.detections import Estimates
from monitor.frames.space import FloatArray
from monitor.recalibration.fit_rows import FitRows, prepared
from monitor.recalibration.processes.beta_map import (
    BOUNDS,
    BetaErrors,
    BetaLikelihood,
    BetaLine,
    BetaMarginals,
    CubicTable,
    Ranges,
    beta_likelihood,
    moment_table,
    quantile_table,
)
from monitor.recalibration.processes.process_fit import (
    BINS,
    INDUCING,
    choose_inputs,
    equal_count_bins,
    evidence_share,
    fit_process,
)
from monitor.recalibration.processes.sparse_process import (
    Inputs,
    LatentStack,
    SparseProcess,
    candidate_inputs,
    latent_nodes,
)
from monitor.recalibration.recalibrator import Factors, InvalidRecalibrator, Output, Recalibrator

# Tables of quantiles, one for each set of levels that is asked for.
KEPT = 8

# The central interval whose width the factor on σ matches at first.
LEVEL = 0.95

# How far the log of the factor may move from there.
FURTHEST_FACTOR = 5.0

# Deviations of a Gaussian prior on (log a, log b, c) and on the loading: a few rows must not
# make a map that says their errors are certain.
PRIOR = np.array([2.0, 2.0, 5.0])

# Nats: a step that gains less is the last one.
LEAST_LINE_GAIN = 1e-3

# Turns of the line and the latent values, at most.
TURNS = 6

# Nats: a turn that gains less is the last one.
LEAST_GAIN = 0.1

# Factor, line and process of one dimension; the latent values that are served lie between the last
# two.
FittedDimension = tuple[float, BetaLine, SparseProcess, float, float]


@dataclass(frozen=True)
class GpBeta(Recalibrator):
    """G = sigmoid(a log F − b log(1 − F) + c) with F = Φ((y − mean)/(factor σ)).

    The factor is one number a dimension: a beta map of a Gaussian far too narrow has a dip in
    the middle, so that the overall size is set first. (log a, log b, c) lie on a line at the
    posterior mean of the latent value. With the mean, and no average over the posterior, all
    that is said of a detection is of one distribution in closed form; the posterior is narrow
    (variance 0.004 on 2000 rows, where the average changes the likelihood by 1e-4 nats).

    factor  (K,) on σ
    lines   (K,) of the three parameters
    latent  of each dimension
    """

    factor: Factors
    lines: tuple[BetaLine, ...]
    latent: LatentStack
    method: ClassVar[str] = "gp-beta"
    output = Output.MOMENTS

    def __post_init__(self) -> None:
        self.check_entries(("lines",), self.k, "factor")
        self.latent.check_dimensions(self.k, [1] * self.k)
        for i, line in enumerate(self.lines):
            low, high = self.latent.low[i], self.latent.high[i]
            if not line.bounded(low, high):
                raise InvalidRecalibrator(
                    f"'lines[{i}]' leaves the bounds of log a, log b or c for latent values from "
                    f"{low} to {high}: narrow 'low' and 'high'"
                )
        # Made now: the first frame must not wait for the table.
        _ = self._moments

    @property
    def k(self) -> int:
        """Number of dimensions."""
        return len(self.factor)

    def apply(self, estimates: Estimates) -> Estimates:
        """The mean moved, and S Σ S: correlations stay."""
        shift, log_spread = self._moments.at(self.latent.means(estimates))
        factor = np.array(self.factor)
        made = estimates.rescaled(np.exp(log_spread).T * factor)
        mean = estimates.mean + estimates.deviation * (shift.T * factor)
        return Estimates(mean, made.covariance, made.diagonal)

    def marginals(self, estimates: Estimates) -> BetaMarginals:
        """The calibrated distribution of each dimension; its moments are those of apply."""
        latent = self.latent.means(estimates)
        along = [line.at(row) for line, row in zip(self.lines, latent, strict=True)]
        a, b, c = (np.stack(parameter, axis=1) for parameter in zip(*along, strict=True))
        unit = estimates.deviation * np.array(self.factor)

        def quantiles(tau: FloatArray) -> FloatArray:
            return self._quantiles(tuple(tau.tolist())).at(latent).transpose(0, 2, 1)

        return BetaMarginals(estimates.mean, unit, a, b, c, quantiles)

    @cached_property
    def _moments(self) -> CubicTable:
        return moment_table(self.lines, self._ranges)

    @cached_property
    def _quantiles(self) -> Callable[[tuple[float, ...]], CubicTable]:
        return lru_cache(KEPT)(partial(quantile_table, self.lines, self._ranges))

    @property
    def _ranges(self) -> Ranges:
        return tuple(zip(self.latent.low, self.latent.high, strict=True))


def factor_on_deviation(normalised: FloatArray) -> float:
    """The factor on σ with which a Gaussian has the central interval of normalised errors, not
    all of them 0."""
    width = float(np.quantile(np.abs(normalised), LEVEL))
    if width > 0:
        return width / float(ndtri((1 + LEVEL) / 2))
    # Hardly a row has an error: then by those that have one.
    return float(np.sqrt(np.mean(normalised * normalised)))


def refined(
    errors: BetaErrors,
    factor: float,
    line: BetaLine,
    weight: float,
    latent: tuple[FloatArray, FloatArray] | None = None,
    *,
    factor_moves: bool = True,
) -> tuple[float, BetaLine]:
    """Finds the factor and the line of the largest bound, from given ones.

    The loading has length 1, since the size of the latent values is the process's; it is 0
    without latent values.

    weight        in (0, 1], what a row is worth
    latent        mean and variance (1, n) of Gaussian latent values; None: there are none
    factor_moves  whether the factor is fitted too
    """
    # Half a second to import, and only a fit needs it.
    from scipy.optimize import minimize

    nodes = np.zeros((1, errors.normalised.size))
    if latent:
        nodes = latent_nodes(latent[0][0], latent[1][0])
    # Entries: log factor, base, loading.
    moving = 7 if latent else 4
    scale = np.array([np.inf, *PRIOR, *PRIOR])[:moving]

    def loss(packed: FloatArray) -> tuple[float, FloatArray]:

        moved = beta_likelihood(errors, float(np.exp(packed[0])), _line(packed))
        value, by_map = moved.expected_by_map(nodes)
        prior = packed / scale
        slope = weight * by_map[:moving] - prior / scale
        return 0.5 * float(prior @ prior) - weight * value, -slope

    first = float(np.log(factor))
    start = np.array([first, *line.base, *line.loading])[:moving]
    room = FURTHEST_FACTOR if factor_moves else 0.0
    bounds = [(first - room, first + room)]
    bounds += [(-limit, limit) for limit in (*BOUNDS, *BOUNDS)]
    found = minimize(
        loss,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=bounds[:moving],
        options={"maxiter": 100, "ftol": LEAST_LINE_GAIN / max(1.0, abs(loss(start)[0]))},
    ).x
    length = float(np.linalg.norm(found[4:]))
    found[4:] /= length if length > 0 else 1.0
    return float(np.exp(found[0])), _line(found)


def direction(likelihood: BetaLikelihood, candidates: FloatArray) -> tuple[float, ...]:
    """Finds the loading, of length 1, along which the constant map misses most.

    Slopes of the log-likelihood by (log a, log b, c) are averaged in bins of each candidate
    input, (n, D). Of the products B of those averages and W of all slopes, the largest
    eigenvalue of B u = λ W u over the candidates tells the input that explains most, and u the
    step that a Newton iteration would make there.
    """
    _, slopes = likelihood.by_parameters(np.zeros((1, candidates.shape[0])))
    slope = np.concatenate(slopes)
    slope -= slope.mean(axis=1, keepdims=True)
    # The prior keeps W regular.
    within = slope @ slope.T + np.diag(1 / PRIOR**2)
    best, found = 0.0, np.array([1.0, 1.0, 0.0])
    for column in candidates.T:
        place = equal_count_bins(column)
        count = np.maximum(np.bincount(place, minlength=BINS), 1)
        total = np.stack([np.bincount(place, one, BINS) for one in slope])
        value, vector = eigh((total / count) @ total.T, within)
        if value[-1] > best:
            best, found = float(value[-1]), vector[:, -1]
    found = found * np.sign(found[np.abs(found).argmax()]) / np.linalg.norm(found)
    return tuple(found.tolist())


def _line(packed: FloatArray) -> BetaLine:
    """Unpacks the line of (log factor, base, loading), or of one without a loading."""
    return BetaLine(*(tuple(part.tolist()) for part in (packed[1:4], packed[4:]) if part.size))


def fit_gp_beta(rows: FitRows, inducing: int = INDUCING) -> GpBeta:
    """Maximises the bound on the likelihood of errors by dimension (Küppers et al. 2022, eq. 4).

    Raises UnfitData without rows, or where a dimension has no error at all.
    """
    rows = prepared(rows)
    fitted = [fit_dimension(rows, i, inducing) for i in range(rows.space.k)]
    factor, line, processes, low, high = zip(*fitted, strict=True)
    return GpBeta(factor, line, LatentStack(processes, low, high))


def fit_dimension(rows: FitRows, dimension: int, inducing: int) -> FittedDimension:
    """Fits one dimension; rows in their one order."""
    deviation, worth = rows.deviation[:, dimension], float(rows.location_weight[dimension])
    errors = BetaErrors(rows.error[:, dimension] / deviation, np.log(deviation))
    start = factor_on_deviation(errors.normalised)
    # What varies over the rows looks like a heavy tail before it is found: the factor waits.
    factor, constant = refined(errors, start, BetaLine(), worth, factor_moves=False)
    likelihood = beta_likelihood(errors, factor, constant)
    loading = direction(likelihood, candidate_inputs(rows).of(rows.estimates))
    line = BetaLine(constant.base, loading)
    likelihood = replace(likelihood, line=line)
    process = choose_inputs(likelihood, rows, worth, inducing)
    if not process.inducing:
        factor, constant = refined(errors, start, BetaLine(), worth)
        return factor, constant, SparseProcess((0.0,)), 0.0, 0.0
    points = Inputs(process.inputs).of(rows.estimates)
    # Heavier tails than any map's are not taken for what depends on the inputs.
    share = evidence_share(likelihood.expected(*process.at(points)))
    weight, bound = share * worth, float("-inf")
    for _ in range(TURNS):
        # Factor and line at the latent values, then the latent values at factor and line.
        moved = refined(errors, factor, line, weight, process.at(points))
        found, reached = fit_process(beta_likelihood(errors, *moved), points, weight, inducing)
        if not reached > bound:
            break
        gain, bound = reached - bound, reached
        (factor, line), process = moved, replace(found, inputs=process.inputs)
        if gain < LEAST_GAIN:
            break
    latent, _ = process.at(points)
    low, high = line.within(float(latent.min()), float(latent.max()))
    return factor, line, process, low, high
