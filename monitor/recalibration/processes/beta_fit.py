"""The fit of GP-Beta: the line that its parameters lie on, and the latent values along it.

The two take turns, each at the other's optimum, until the bound stands still. The overall size is
set first. The likelihood of errors under a map is here too; the map itself is in beta.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import eigh
from scipy.special import log_ndtr, ndtri

from monitor.frames.space import FloatArray
from monitor.recalibration.fit_rows import FitRows, descend, prepared
from monitor.recalibration.methods import INDUCING
from monitor.recalibration.processes.beta import BOUNDS, BetaLine, GpBeta, hazard
from monitor.recalibration.processes.process_fit import (
    BINS,
    choose_inputs,
    equal_count_bins,
    evidence_share,
    fit_process,
)
from monitor.recalibration.processes.sparse_process import (
    Inputs,
    LatentStack,
    ScalarLikelihood,
    SparseProcess,
    candidate_inputs,
    gauss_hermite,
    latent_nodes,
    node_groups,
)

# Errors further out count as this many σ: one of them must not outweigh all the others.
FURTHEST = 1000.0

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


@dataclass(frozen=True, slots=True)
class BetaErrors:
    """n errors of one dimension, as the map is to see them whatever its factor on σ.

    normalised     (n,) error/σ
    log_deviation  (n,) log σ
    """

    normalised: FloatArray
    log_deviation: FloatArray


@dataclass(frozen=True, slots=True)
class BetaLikelihood(ScalarLikelihood):
    """Likelihood of n errors, at a factor on σ and a line.

    t                           (n,) error/(factor · σ), at most FURTHEST
    lower, upper                (n,) log Φ(t) and log Φ(−t)
    lower_hazard, upper_hazard  (n,) φ/Φ(t) and φ/Φ(−t)
    log_unit                    (n,) log of factor · σ
    """

    t: FloatArray
    lower: FloatArray
    upper: FloatArray
    lower_hazard: FloatArray
    upper_hazard: FloatArray
    log_unit: FloatArray
    line: BetaLine

    @property
    def start(self) -> FloatArray:
        """(1,) 0: the base of the line."""
        return np.zeros(1)

    def log_likelihood(self, latent: FloatArray) -> tuple[FloatArray, FloatArray]:
        """log density of the errors and its slope by the latent value, as latent is, (Q, n)."""
        value, slopes = self.by_parameters(latent)
        loading = self.line.loading
        return value, loading[0] * slopes[0] + loading[1] * slopes[1] + loading[2] * slopes[2]

    def by_parameters(
        self, latent: FloatArray
    ) -> tuple[FloatArray, tuple[FloatArray, FloatArray, FloatArray]]:
        """log density of the errors, and its slopes by log a, log b and c; each (Q, n).

        log G + log(1 − G) + log(a φ/Φ + b φ/(1 − Φ)) − log(factor · σ), U as above.
        """
        a, b, c = self.line.at(latent)
        below, above = a * self.lower, b * self.upper
        left, right = a * self.lower_hazard, b * self.upper_hazard
        slope = left + right
        c += below
        c -= above
        even, by_c = _logistic(c)
        value = np.log(slope * even) - np.abs(c)
        value -= self.log_unit
        below *= by_c
        above *= by_c
        by_a = np.divide(left, slope, out=left)
        by_a += below
        by_b = np.divide(right, slope, out=right)
        by_b -= above
        return value, (by_a, by_b, by_c)

    def by_log_factor(self, latent: FloatArray) -> FloatArray:
        """The slope of log density by the log of the factor on σ: −1 − t d log density/dt.

        With r = φ/Φ and h = φ/(1 − Φ): dr/dt = −r (t + r) and dh/dt = h (h − t).
        """
        a, b, c = self.line.at(latent)
        left, right = a * self.lower_hazard, b * self.upper_hazard
        slope = left + right
        bent = right * (self.upper_hazard - self.t) - left * (self.t + self.lower_hazard)
        _, by_c = _logistic(a * self.lower - b * self.upper + c)
        moved = np.where(np.abs(self.t) < FURTHEST, self.t, 0)
        return -1 - moved * (by_c * slope + bent / slope)

    def expected_by_map(self, latent: FloatArray) -> tuple[float, FloatArray]:
        """Sum over the rows of the expectation on latent_nodes (Q, n); its slopes by the log
        factor, by the base and by the loading, (7,)."""
        _, weight = gauss_hermite(len(latent))
        total, slope = 0.0, np.zeros(7)
        for part in node_groups(*latent.shape):
            node, w = latent[part], weight[part]
            value, slopes = self.by_parameters(node)
            by_map = [self.by_log_factor(node), *slopes, *(one * node for one in slopes)]
            total += float((w @ value).sum())
            slope += [(w @ one).sum() for one in by_map]
        return total, slope


def beta_likelihood(errors: BetaErrors, factor: float, line: BetaLine) -> BetaLikelihood:
    """Prepares the likelihood of errors at a factor on σ and a line."""
    t = np.clip(errors.normalised / factor, -FURTHEST, FURTHEST)
    log_unit = errors.log_deviation + np.log(factor)
    return BetaLikelihood(t, log_ndtr(t), log_ndtr(-t), hazard(-t), hazard(t), log_unit, line)


def _logistic(u: FloatArray) -> tuple[FloatArray, FloatArray]:
    """e^|u| G (1 − G), and 1 − 2 G, for G = sigmoid(u)."""
    small = np.exp(-np.abs(u))
    above = 1 + small
    return 1 / np.square(above), np.copysign((1 - small) / above, -u)


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
    nodes = np.zeros((1, errors.normalised.size))
    if latent:
        nodes = latent_nodes(*(moment[0] for moment in latent))
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
    bounds = [(first - room, first + room), *((-limit, limit) for limit in (*BOUNDS, *BOUNDS))]
    options = {"maxiter": 100, "ftol": LEAST_LINE_GAIN / max(1.0, abs(loss(start)[0]))}
    found = descend(loss, start, np.array(bounds[:moving]), options)
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
