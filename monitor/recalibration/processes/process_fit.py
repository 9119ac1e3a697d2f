"""The fit of a sparse process: which features it looks at, and with which kernels.

Kernels and amplitudes are found by L-BFGS-B, with the best posterior at each. The bound is maximal
in the posterior, so that its derivatives by the hyperparameters are those at a fixed posterior.

Features are found one after the other, and each has to pay for itself. All candidates are screened
by a score test, the best few are tried, and the bound of the process decides: it falls with every
input that says nothing. Serving does not need this file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from monitor.frames.space import FloatArray, IntArray
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.processes.inputs import Feature, Inputs, candidate_inputs
from monitor.recalibration.processes.sparse_process import (
    Expected,
    Kernel,
    LatentLikelihood,
    SparseProcess,
    in_blocks,
    inducing_root,
)
from monitor.recalibration.processes.variational import (
    ROWS,
    Bound,
    Design,
    Points,
    Posterior,
    design_of,
    optimise,
)
from monitor.recalibration.recalibrator import UnfitData, as_matrix

# Inducing points, at most, unless another number is asked for.
INDUCING = 12

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
ENOUGH = 1e-2

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

    Deterministic. The bits depend on the order of the rows: see in_one_order.

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
        self.likelihood, self.constant, self.weight = likelihood, constant, weight
        self.points = Points(points.shape[0], in_blocks(points, ROWS), centres)
        outputs, (size, width) = self.constant.size, centres.shape
        start = np.log(np.repeat([START_SCALE, START_AMPLITUDE], [outputs * width, outputs]))
        before = Posterior(
            self.constant, np.zeros((outputs, size)), np.repeat(np.eye(size)[None], outputs, axis=0)
        )
        self.place = _Place(start, before, -np.inf)

    def unpacked(self, packed: FloatArray) -> tuple[list[Kernel], FloatArray]:
        """Takes the kernels and the amplitudes (J,) of the latents out of the vector."""
        scales, amplitude = np.split(np.exp(packed), [-self.constant.size])
        return [Kernel(scale) for scale in scales.reshape(amplitude.size, -1)], amplitude

    def run(self) -> None:
        """Climbs; the value stays −∞ where not even the start has a bound."""
        # Half a second to import, and only a fit needs it.
        from scipy.optimize import minimize

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
        minimize(
            loss,
            self.place.packed,
            jac=True,
            method="L-BFGS-B",
            bounds=np.log(bounds),
            callback=accept,
            options={
                "maxiter": ROUNDS,
                "ftol": share * ENOUGH / max(1.0, share * abs(self.place.value)),
                "gtol": share * 1e-2,
            },
        )

    def evaluated(self, packed: FloatArray) -> tuple[_Place, FloatArray] | None:
        """Finds the best posterior, and the slope of its bound by the vector; None without one.

        Posteriors are sought from that of the place the search stands at, never from those of
        steps it only tried: between two accepted steps it is a function of its argument.
        """
        kernels, amplitude = self.unpacked(packed)
        design = design_of(kernels, amplitude, self.points)
        start = self.carried(kernels, amplitude)
        outcome = optimise(self.likelihood, self.weight, design, start, self.constant)
        if outcome is None:
            return None
        posterior, bound = outcome
        slope = hyper_slope(kernels, design, posterior, bound)
        return _Place(packed.copy(), posterior, bound.value), slope

    def carried(self, kernels: list[Kernel], amplitude: FloatArray) -> Posterior:
        """Carries the posterior to other hyperparameters, outputs at inducing points unchanged.

        It is where the search goes on from.
        """
        old, inducing = self.place.posterior, self.points.inducing
        location, precision = np.empty_like(old.location), np.empty_like(old.precision)
        before, sizes = self.unpacked(self.place.packed)
        sizes = sizes / amplitude
        for latent, (left, kernel, size) in enumerate(zip(before, kernels, sizes, strict=True)):
            roots = inducing_root(kernel, inducing), inducing_root(left, inducing)
            turn = size * np.linalg.solve(*roots)
            back = np.linalg.inv(turn)
            location[latent] = turn @ old.location[latent]
            precision[latent] = back.T @ old.precision[latent] @ back
        precision = 0.5 * (precision + precision.swapaxes(1, 2))
        return Posterior(old.constant, location, precision)

    def process(self) -> SparseProcess:
        """Returns the process of the place where it stands."""
        posterior = self.place.posterior
        kernels, amplitude = self.unpacked(self.place.packed)
        # S = R⁻ᵀ R⁻¹ = Uᵀ U with R⁻¹ = Q U: without a difference that could cancel.
        root = np.linalg.inv(np.linalg.cholesky(posterior.precision))
        upper = np.linalg.qr(root, mode="r")
        spread = (upper * np.sign(np.diagonal(upper, axis1=1, axis2=2))[..., None]).swapaxes(1, 2)
        return SparseProcess(
            tuple(posterior.constant.tolist()),
            as_matrix(self.points.inducing),
            tuple(tuple(kernel.scale.tolist()) for kernel in kernels),
            as_matrix(np.diag(amplitude)),
            as_matrix(posterior.location),
            tuple(as_matrix(one) for one in spread),
        )


def hyper_slope(
    kernels: list[Kernel], design: Design, posterior: Posterior, bound: Bound
) -> FloatArray:
    """Derives the bound by the log scales of each latent and the log amplitudes, q(v) fixed."""
    z, blocks = design.points.inducing, design.points.blocks
    slopes = design.amplitude * bound.by_mean
    curves = np.square(design.amplitude) * bound.by_variance
    by_scale, by_amplitude = [], []
    for latent, kernel in enumerate(kernels):
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
            kernel.slope(blocks, z, design.cross[latent], by_cross.swapaxes(1, 2))
            + kernel.slope(z, z, kernel.matrix(z, z), by_matrix)
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
                rows, bring them into one order first (in_one_order)
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
