"""The fit of a sparse process: which features it looks at, with which kernels and which posterior.

At given kernels the variational posterior is found by natural gradients: a step on the precisions
and a Newton step on the means (Khan and Rue 2023, section 3), which for likelihoods that are
log-concave in each output ends after a few. Rows lie in blocks. One large product would be spread
over threads, which cost more than they gain at this size, and would round by how many there are.

Kernels and amplitudes are found by L-BFGS-B, with the best posterior at each. The bound is maximal
in the posterior, so that its derivatives by the hyperparameters are those at a fixed posterior.

Features are found one after the other, and each has to pay for itself. All candidates are screened
by a score test, the best few are tried, and the bound of the process decides: it falls with every
input that says nothing. Serving does not need this file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from monitor.frames.space import FloatArray, IntArray
from monitor.recalibration.fit_rows import FitRows, descend
from monitor.recalibration.methods import INDUCING
from monitor.recalibration.processes.sparse_process import (
    Expected,
    Feature,
    Inputs,
    LatentLikelihood,
    SparseProcess,
    candidate_inputs,
    in_blocks,
    inducing_root,
    kernel,
    kernel_slope,
)
from monitor.recalibration.recalibrator import UnfitData, as_matrix

ROWS = 256

# Nats: a step that gains less is the last one.
LEAST_STEP_GAIN = 1e-5
STEPS = 60
HALVINGS = 12

# How far a constant may go from where it began: few rows that all but repeat lead a search away.
FURTHEST = 20.0


@dataclass(frozen=True, slots=True)
class Points:
    """The n points of a fit with the likelihood of their errors, and the inducing points.

    weight    in (0, 1], what each is worth
    blocks    (B, ROWS, D), zeros behind the last
    inducing  (M, D)
    """

    likelihood: LatentLikelihood
    weight: float
    n: int
    blocks: FloatArray
    inducing: FloatArray

    def in_blocks(self, values: FloatArray) -> FloatArray:
        """Values (J, n) as (J, B, ROWS), zeros behind the last."""
        padded = np.zeros((len(values), self.blocks.shape[0] * ROWS))
        padded[:, : self.n] = values
        return padded.reshape(len(values), -1, ROWS)

    def in_line(self, blocks: FloatArray) -> FloatArray:
        """The inverse of in_blocks."""
        return blocks.reshape(len(blocks), -1)[:, : self.n]


@dataclass(frozen=True, slots=True)
class Design:
    """Matrices that kernels make of the points, and the amplitudes of the J latents.

    root       (J, M, M) L_j with L_j L_jᵀ = k_j(Z, Z); inverse (J, M, M) of it
    cross      (J, B, ROWS, M) k_j(x, Z)
    basis      (J, B, M, ROWS) b = L_j⁻¹ k_j(Z, x)
    residual   (J, B, ROWS) 1 − bᵀ b, the variance that no inducing point explains
    amplitude  (J, 1, 1) a
    """

    points: Points
    root: FloatArray
    inverse: FloatArray
    cross: FloatArray
    basis: FloatArray
    residual: FloatArray
    amplitude: FloatArray


@dataclass(frozen=True, slots=True)
class Posterior:
    """c and q(v_j) = N(m_j, P_j⁻¹).

    constant   (J,)
    location   (J, M) m
    precision  (J, M, M) P
    """

    constant: FloatArray
    location: FloatArray
    precision: FloatArray

    def moved(self, share: float, towards: Posterior) -> Posterior:
        """Goes a share of the way to another."""
        return Posterior(
            self.constant + share * (towards.constant - self.constant),
            self.location + share * (towards.location - self.location),
            self.precision + share * (towards.precision - self.precision),
        )


@dataclass(frozen=True, slots=True)
class Bound:
    """The evidence lower bound at a posterior, and what its derivatives are made of.

    value            weight Σ E_q[log p] − Σ_j KL(q(v_j) ‖ N(0, I)), in nats
    by_mean          (J, B, ROWS) weight ∂E/∂mean of each output, zeros behind the last row
    by_variance      (J, B, ROWS)
    latent_mean      (J, B, ROWS)
    latent_variance  (J, B, ROWS)
    covariance       (J, M, M) P⁻¹
    """

    value: float
    by_mean: FloatArray
    by_variance: FloatArray
    latent_mean: FloatArray
    latent_variance: FloatArray
    covariance: FloatArray


def design_of(scales: FloatArray, amplitude: FloatArray, points: Points) -> Design:
    """Builds the matrices from the scales (J, D) and the amplitudes (J,) of the latents."""
    z = points.inducing
    root = np.array([inducing_root(scale, z) for scale in scales])
    inverse = np.linalg.solve(root, np.eye(len(z)))
    cross = np.array([kernel(scale, points.blocks, z) for scale in scales])
    basis = inverse[:, None] @ cross.swapaxes(2, 3)
    residual = np.maximum(1.0 - np.square(basis).sum(axis=2), 0.0)
    return Design(points, root, inverse, cross, basis, residual, amplitude[:, None, None])


def bound(design: Design, posterior: Posterior) -> Bound | None:
    """Evaluates the bound; None without a positive definite precision and a finite likelihood."""
    try:
        root = np.linalg.cholesky(posterior.precision)
    except LinAlgError:
        return None
    size = root.shape[1]
    inverse = np.linalg.solve(root, np.eye(size))
    location = posterior.location
    latent_mean = (location[:, None, None, :] @ design.basis)[:, :, 0]
    latent_variance = design.residual + np.square(inverse[:, None] @ design.basis).sum(axis=2)
    divergence = 0.5 * float(np.square(inverse).sum() + np.square(location).sum() - location.size)
    divergence += float(np.log(np.diagonal(root, axis1=1, axis2=2)).sum())
    points = design.points
    mean = design.amplitude * latent_mean + posterior.constant[:, None, None]
    variance = np.square(design.amplitude) * latent_variance
    with np.errstate(over="ignore", invalid="ignore"):
        expected = points.likelihood.expected(points.in_line(mean), points.in_line(variance))
        value = points.weight * float(expected.value.sum()) - divergence
    if not np.isfinite(value):
        return None
    return Bound(
        value,
        points.in_blocks(points.weight * expected.by_mean),
        points.in_blocks(points.weight * expected.by_variance),
        latent_mean,
        latent_variance,
        inverse.swapaxes(1, 2) @ inverse,
    )


def optimise(
    design: Design, start: Posterior, centre: FloatArray
) -> tuple[Posterior, Bound] | None:
    """Finds the posterior of the largest bound, from a start; None where even that has none.

    centre  (J,) that the constants stay within FURTHEST of
    """
    posterior = start
    best = bound(design, posterior)
    if best is None:
        return None
    for _ in range(STEPS):
        target = _target(design, posterior, best, centre)
        for halvings in range(HALVINGS):
            moved = posterior.moved(0.5**halvings, target)
            found = bound(design, moved)
            if found is not None and found.value > best.value:
                break
        else:
            break
        gain = found.value - best.value
        posterior, best = moved, found
        if gain < LEAST_STEP_GAIN:
            break
    return posterior, best


def _target(design: Design, posterior: Posterior, at: Bound, centre: FloatArray) -> Posterior:
    """Computes where a whole step leads, with the constants at most FURTHEST from a centre (J,).

    By Bonnet and Price ∂E/∂v = ½ E[∂² log p/∂f²], so that −2 ∂E/∂v is the curvature both of
    the Newton step on (c, m) and of the new precision I + Σ_i −2 ∂E/∂v_i a_i a_iᵀ.
    """
    by_mean, curvature = at.by_mean, -2.0 * at.by_variance
    amplitude, basis = design.amplitude, design.basis
    outputs, size = posterior.location.shape
    own = np.square(amplitude) * curvature
    precision = _products(basis * own[:, :, None], basis) + np.eye(size)

    slopes = amplitude * by_mean
    by_location = (basis @ slopes[..., None])[..., 0].sum(axis=1) - posterior.location
    gradient = np.concatenate([by_mean.sum(axis=(1, 2)), by_location.ravel()])
    # Where a likelihood is convex, a Newton step would lead down.
    move = _solved(_curvature(design, np.maximum(curvature, 0.0)), gradient)
    return Posterior(
        np.clip(posterior.constant + move[:outputs], centre - FURTHEST, centre + FURTHEST),
        posterior.location + move[outputs:].reshape(outputs, size),
        0.5 * (precision + precision.swapaxes(1, 2)),
    )


def _curvature(design: Design, convexity: FloatArray) -> FloatArray:
    """Minus the second derivatives of the bound by (c, m_1 … m_J), (J + J M, J + J M).

    With κ_ij the convexity of output j at row i, f_j = c_j + a_j b_jiᵀ m_j:

        by c_j, c_j    Σ_i κ_ij
        by m_j, c_j    a_j Σ_i κ_ij b_ji               (M,)
        by m_j, m_j    a_j² Σ_i κ_ij b_ji b_jiᵀ + I    (M, M), I of the prior of m_j

    convexity  (J, B, ROWS) κ ≥ 0, zeros behind the last row
    """
    outputs, size = len(convexity), design.basis.shape[2]
    hessian = np.eye(outputs + outputs * size)
    for j, (basis, amplitude) in enumerate(zip(design.basis, design.amplitude, strict=True)):
        place = slice(outputs + j * size, outputs + (j + 1) * size)
        # A direction in which the likelihood is flat is left where it is.
        hessian[j, j] = max(convexity[j].sum(), 1e-10)
        # One product for all outputs, most of it zeros: BLAS rounds by shape.
        mixed = np.zeros_like(convexity)
        mixed[j] = convexity[j] * amplitude
        hessian[place, :outputs] = _products(basis, mixed.swapaxes(0, 1))
        hessian[:outputs, place] = hessian[place, :outputs].T
        shared = convexity[j] * (amplitude * amplitude)
        hessian[place, place] += _products(basis * shared[:, None], basis)
    return hessian


def _products(left: FloatArray, right: FloatArray) -> FloatArray:
    """Σ over blocks of left rightᵀ: (…, B, p, ROWS) and (…, B, q, ROWS) give (…, p, q)."""
    found: FloatArray = (left @ right.swapaxes(-1, -2)).sum(axis=-3)
    return found


def _solved(hessian: FloatArray, gradient: FloatArray) -> FloatArray:
    """H⁻¹ g, with as much of a ridge as rounding asks for."""
    step = np.arange(gradient.size)
    for ridge in (0.0, 1e-12, 1e-9, 1e-6, 1e-3):
        raised = 0.5 * (hessian + hessian.T)
        raised[step, step] += ridge * raised[step, step].max()
        try:
            solved: FloatArray = cho_solve(cho_factor(raised, lower=True), gradient)
        except LinAlgError:
            continue
        return solved
    return np.zeros_like(gradient)


# Of those, points looked at: more of them move the centres by less than matters.
LOOKED_AT = 2000
_LLOYD_ROUNDS = 15

# Bounds: between features that say nothing and what so few inducing points can follow.
SCALE = (0.3, 20.0)
AMPLITUDE = (0.01, 5.0)

# Features act over about their spread, the latents by half a unit.
START_SCALE = 1.5
START_AMPLITUDE = 0.5

# Rounds of the hyperparameters, at most.
ROUNDS = 40

# Nats: a round of the hyperparameters that gains less is the last one.
LEAST_ROUND_GAIN = 1e-2

# Nats that an input has to add to the bound: odds of twenty to one that it is no chance, and
# the logarithm of how many candidates there are to be the luckiest of.
PAYS = 3.0

# Inputs at most; a dozen inducing points do not fill more dimensions.
MOST = 3

# Bins of an input that hold about as many rows each, in which scores are looked at.
BINS = 8

# Candidates tried at each step, the best by the screen.
TRIED = 2


def fit_process(
    likelihood: LatentLikelihood, points: FloatArray, weight: float, inducing: int = INDUCING
) -> tuple[SparseProcess, float]:
    """Fits the process of the largest bound weight Σ E_q[log p] − KL, in nats; returns both.

    Deterministic. The bits depend on the order of the rows: see `prepared`.

    likelihood  of n rows
    points      (n, D) standardised features; without features, or where all points are equal,
                the process is constant
    weight      in (0, 1], what a row is worth
    inducing    points, at most
    Raises UnfitData where not even a constant has a finite likelihood.
    """
    constant = np.asarray(likelihood.start, dtype=np.float64)
    n = points.shape[0]
    mean = np.repeat(constant[:, None], n, axis=1)
    value = weight * float(likelihood.expected(mean, np.zeros_like(mean)).value.sum())
    if not np.isfinite(value):
        raise UnfitData(
            f"the likelihood of {n} rows at the latent values {constant.tolist()} is {value}: "
            "look for errors and deviations that are not finite or differ by many powers of ten."
        )
    if points.size and np.ptp(points, axis=0).any():
        search = Search(likelihood, constant, points, weight, inducing)
        search.run()
        if np.isfinite(search.place.value):
            return search.process(), search.place.value
    return SparseProcess(tuple(constant.tolist())), value


def inducing_points(points: FloatArray, count: int) -> FloatArray:
    """Finds at most `count` centres (M, D) by k-means, M ≥ 1; fewer where fewer points differ.

    Deterministic: it begins with points that are far from each other, the first nearest to
    the centre of all, and every centre then moves to the mean of those nearest to it (Lloyd).

    points  (n, D), n ≥ 1
    """
    looked_at = points[:: max(1, points.shape[0] // LOOKED_AT)]
    gap = np.square(looked_at - looked_at.mean(axis=0)).sum(axis=1)
    chosen = [int(gap.argmin())]
    gap = _squared_distance(looked_at, looked_at[chosen])[:, 0]
    while len(chosen) < count and gap.max() > 1e-9:
        chosen.append(int(gap.argmax()))
        gap = np.minimum(gap, _squared_distance(looked_at, looked_at[chosen[-1:]])[:, 0])
    centres = looked_at[chosen]
    for _ in range(_LLOYD_ROUNDS):
        nearest = _squared_distance(looked_at, centres).argmin(axis=1)
        size = np.bincount(nearest, minlength=len(centres))
        total = [np.bincount(nearest, column, len(centres)) for column in looked_at.T]
        mean = np.stack(total, axis=1) / np.maximum(size, 1)[:, None]
        moved: FloatArray = np.where(size[:, None] > 0, mean, centres)
        if np.array_equal(moved, centres):
            break
        centres = moved
    return centres


def _squared_distance(points: FloatArray, centres: FloatArray) -> FloatArray:
    found: FloatArray = np.square(points[:, None, :] - centres).sum(axis=2)
    return found


@dataclass(frozen=True, slots=True)
class _Place:
    """Hyperparameters, with the best posterior there.

    packed  the vector that is optimised: log scales of each latent, then log amplitudes
    value   the bound, in nats
    """

    packed: FloatArray
    posterior: Posterior
    value: float


class Search:
    """Holds all that does not change in one fit, and the place that it has come to."""

    def __init__(
        self,
        likelihood: LatentLikelihood,
        constant: FloatArray,
        points: FloatArray,
        weight: float,
        inducing: int,
    ) -> None:
        centres = inducing_points(points, inducing)
        self.constant, blocks = constant, in_blocks(points, ROWS)
        self.points = Points(likelihood, weight, points.shape[0], blocks, centres)
        outputs, (size, width) = self.constant.size, centres.shape
        start = np.log(np.repeat([START_SCALE, START_AMPLITUDE], [outputs * width, outputs]))
        before = Posterior(
            self.constant, np.zeros((outputs, size)), np.repeat(np.eye(size)[None], outputs, axis=0)
        )
        self.place = _Place(start, before, -np.inf)

    def unpacked(self, packed: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Takes the scales (J, D) and the amplitudes (J,) of the latents out of the vector."""
        scales, amplitude = np.split(np.exp(packed), [-self.constant.size])
        return scales.reshape(amplitude.size, -1), amplitude

    def run(self) -> None:
        """Climbs; the value stays −∞ where not even the start has a bound."""
        found = self.evaluated(self.place.packed)
        if found is None:
            return
        self.place, slope = found
        trial = self.place
        # The first step goes along the slope, by its size: half a unit is far enough.
        share = 0.5 / max(1.0, float(np.linalg.norm(slope)))

        def loss(packed: FloatArray) -> tuple[float, FloatArray]:
            nonlocal trial
            found = self.evaluated(packed)
            if found is None:
                # Uphill from where the search stands, so that it turns back.
                away = packed - self.place.packed
                return share * (1.0 + float(away @ away) - self.place.value), 2 * share * away
            trial, slope = found
            return -share * trial.value, -share * slope

        def accept(packed: FloatArray) -> None:
            if np.array_equal(packed, trial.packed):
                self.place = trial

        outputs = self.constant.size
        bounds = np.repeat([SCALE, AMPLITUDE], [slope.size - outputs, outputs], axis=0)
        ftol = share * LEAST_ROUND_GAIN / max(1.0, share * abs(self.place.value))
        options = {"maxiter": ROUNDS, "ftol": ftol, "gtol": share * 1e-2}
        descend(loss, self.place.packed, np.log(bounds), options, accept)

    def evaluated(self, packed: FloatArray) -> tuple[_Place, FloatArray] | None:
        """Finds the best posterior, and the slope of its bound by the vector; None without one.

        Posteriors are sought from that of the place the search stands at, never from those of
        steps it only tried: between two accepted steps it is a function of its argument.
        """
        scales, amplitude = self.unpacked(packed)
        design = design_of(scales, amplitude, self.points)
        start = self.carried(scales, amplitude)
        outcome = optimise(design, start, self.constant)
        if outcome is None:
            return None
        posterior, bound = outcome
        slope = hyper_slope(scales, design, posterior, bound)
        return _Place(packed.copy(), posterior, bound.value), slope

    def carried(self, scales: FloatArray, amplitude: FloatArray) -> Posterior:
        """Carries the posterior to other hyperparameters, outputs at inducing points unchanged.

        It is where the search goes on from.
        """
        old, inducing = self.place.posterior, self.points.inducing
        location, precision = np.empty_like(old.location), np.empty_like(old.precision)
        before, sizes = self.unpacked(self.place.packed)
        sizes = sizes / amplitude
        for latent, (left, scale, size) in enumerate(zip(before, scales, sizes, strict=True)):
            roots = inducing_root(scale, inducing), inducing_root(left, inducing)
            turn = size * np.linalg.solve(*roots)
            back = np.linalg.inv(turn)
            location[latent] = turn @ old.location[latent]
            precision[latent] = back.T @ old.precision[latent] @ back
        precision = 0.5 * (precision + precision.swapaxes(1, 2))
        return Posterior(old.constant, location, precision)

    def process(self) -> SparseProcess:
        """Returns the process of the place where it stands."""
        posterior = self.place.posterior
        scales, amplitude = self.unpacked(self.place.packed)
        # S = R⁻ᵀ R⁻¹ = Uᵀ U with R⁻¹ = Q U: without a difference that could cancel.
        root = np.linalg.inv(np.linalg.cholesky(posterior.precision))
        upper = np.linalg.qr(root, mode="r")
        spread = (upper * np.sign(np.diagonal(upper, axis1=1, axis2=2))[..., None]).swapaxes(1, 2)
        return SparseProcess(
            tuple(posterior.constant.tolist()),
            as_matrix(self.points.inducing),
            as_matrix(scales),
            as_matrix(np.diag(amplitude)),
            as_matrix(posterior.location),
            tuple(as_matrix(one) for one in spread),
        )


def hyper_slope(
    scales: FloatArray, design: Design, posterior: Posterior, bound: Bound
) -> FloatArray:
    """Derives the bound by the log scales of each latent and the log amplitudes, q(v) fixed."""
    z, blocks = design.points.inducing, design.points.blocks
    slopes = design.amplitude * bound.by_mean
    curves = np.square(design.amplitude) * bound.by_variance
    by_scale, by_amplitude = [], []
    for latent, scale in enumerate(scales):
        a, curve, amplitude = design.basis[latent], curves[latent], design.amplitude[latent, 0, 0]
        by_variance = np.einsum("bn,bn->", bound.by_variance[latent], bound.latent_variance[latent])
        by_mean = np.einsum("bn,bn->", bound.by_mean[latent], bound.latent_mean[latent])
        by_amplitude.append((by_mean + 2.0 * amplitude * by_variance) * amplitude)
        shrunk = bound.covariance[latent] - np.eye(len(z))
        by_basis = posterior.location[latent][:, None] * slopes[latent][:, None]
        by_basis = by_basis + 2.0 * (shrunk @ a) * curve[:, None]
        by_cross = design.inverse[latent].T @ by_basis
        by_root = -np.tril((by_cross @ a.swapaxes(1, 2)).sum(axis=0))
        by_matrix = _through_cholesky(design.root[latent], design.inverse[latent], by_root)
        np.fill_diagonal(by_matrix, 0.0)
        by_scale.append(
            kernel_slope(scale, blocks, z, design.cross[latent], by_cross.swapaxes(1, 2))
            + kernel_slope(scale, z, z, kernel(scale, z, z), by_matrix)
        )
    return np.concatenate([*by_scale, by_amplitude])


def _through_cholesky(root: FloatArray, inverse: FloatArray, by_root: FloatArray) -> FloatArray:
    """Turns a derivative by the lower Cholesky factor of a matrix into that by the matrix.

    source  Murray 2016, eq. 8 and 10
    """
    inner = np.tril(root.T @ by_root)
    step = np.arange(len(root))
    inner[step, step] *= 0.5
    found = inverse.T @ inner @ inverse
    return 0.5 * (found + found.T)


def choose_inputs(
    likelihood: LatentLikelihood, rows: FitRows, weight: float, inducing: int = INDUCING
) -> SparseProcess:
    """Chooses inputs, and fits the process on them.

    Greedy, from no input at all: what is constant stays so.

    likelihood  of the same rows in the same order: for equal bits whatever the order of the
                rows, bring them into one order first (`prepared`)
    weight      in (0, 1], what a row is worth for what the likelihood is of
    Raises UnfitData as fit_process does.
    """

    def fitted(features: tuple[Feature, ...], share: float) -> _Fitted:
        points = Inputs(features).of(rows.estimates)
        process, bound = fit_process(likelihood, points, share * weight, inducing)
        return _Fitted(replace(process, inputs=features), bound, share)

    def expected(one: _Fitted) -> Expected:
        return likelihood.expected(*one.process.of(rows.estimates))

    def reweighted(one: _Fitted) -> _Fitted:
        """Fits again, at the share that is left now that more is explained."""
        return fitted(one.process.inputs, evidence_share(expected(one)))

    best = reweighted(fitted((), 1.0))
    candidates = candidate_inputs(rows)
    columns = candidates.of(rows.estimates).T
    pays = PAYS + np.log(max(1, len(columns)))
    for _ in range(MOST):
        gain = _screened(columns, expected(best).by_mean)
        gain[[feature in best.process.inputs for feature in candidates.features]] = 0.0
        tried = [
            fitted((*best.process.inputs, candidates.features[i]), best.share)
            for i in np.argsort(-gain, kind="stable")[:TRIED].tolist()
            if gain[i] > PAYS
        ]
        winner = max(tried, key=lambda one: one.bound, default=best)
        if not winner.bound > best.bound + pays:
            break
        best = reweighted(winner)
    return best.process


def equal_count_bins(column: FloatArray) -> IntArray:
    """Finds the bin of each value, (n,) 0 … BINS − 1; equal values are in one bin."""
    edges = np.quantile(column, np.arange(1, BINS) / BINS)
    return np.searchsorted(edges, column, side="right")


def evidence_share(expected: Expected) -> float:
    """Estimates which share of a row's evidence is real, of what the likelihood takes; in (0, 1].

    Were the likelihood right, scores s = ∂E/∂f had the variance −∂²E/∂f² (White 1982). Errors
    with heavier tails vary more, and a process would follow them where there is nothing. The
    smallest share Σ −∂²E/∂f² / Σ s² of an output tempers it: of Gaussians 2 / (kurtosis − 1).
    """
    square = np.square(expected.by_mean).sum(axis=1)
    curvature = -2.0 * expected.by_variance.sum(axis=1)
    share = np.divide(curvature, square, out=np.ones_like(square), where=square > 0)
    return float(np.clip(share, 1e-6, 1.0).min())


@dataclass(frozen=True, slots=True)
class _Fitted:
    """Process on some inputs, with its bound at the share of the evidence it was fitted at."""

    process: SparseProcess
    bound: float
    share: float


def _screened(columns: FloatArray, scores: FloatArray) -> FloatArray:
    """Estimates how many nats each candidate (C, n) would gain, (C,).

    ½ Σ_b [(Σ s)² / Σ s² − 1] over bins b of equal count: what chance gives is taken off.

    scores  (J, n) s of the rows that are left by the process so far
    """
    gain = np.zeros(len(columns))
    for i, column in enumerate(columns):
        place = equal_count_bins(column)
        for s in scores:
            total, square = np.bincount(place, s, BINS), np.bincount(place, s * s, BINS)
            occupied = square > 0
            gain[i] += 0.5 * (total[occupied] ** 2 / square[occupied] - 1.0).sum()
    return gain
