"""Fits a sparse process: kernels and mixing by L-BFGS-B, at each the best posterior.

The bound is maximal in the posterior, so that its derivatives by the hyperparameters are those
at a fixed posterior. Serving does not need this file.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from monitor.calibration.space import FloatArray
from monitor.recalibration.document import as_matrix
from monitor.recalibration.processes.hyperparameters import (
    AMPLITUDE,
    Hyperparameters,
    Packing,
    ProcessSettings,
)
from monitor.recalibration.processes.inducing_points import inducing_points
from monitor.recalibration.processes.kernels import Kernel
from monitor.recalibration.processes.latent_likelihood import LatentLikelihood
from monitor.recalibration.processes.sparse_process import (
    JITTER,
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
    prior,
)
from monitor.recalibration.recalibrator import UnfitData

ROUNDS = 40
# Nats: a round of the hyperparameters that gains less is the last one.
ENOUGH = 1e-2


def fit_process(
    likelihood: LatentLikelihood, points: FloatArray, weight: float, settings: ProcessSettings
) -> tuple[SparseProcess, float]:
    """The process of the largest bound, and that bound: weight Σ E_q[log p] − KL, in nats.

    Deterministic. The bits depend on the order of the rows: see row_order.

    likelihood  of n rows
    points      (n, D) standardised features; without features, or where all points are equal,
                the process is constant
    weight      in (0, 1], what a row is worth
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
        search = _Search(likelihood, points, weight, settings, constant)
        search.run()
        if np.isfinite(search.place.value):
            return search.process(), search.place.value
    return SparseProcess(settings.kernel, tuple(constant.tolist())), value


@dataclass(frozen=True, slots=True)
class _Place:
    """Hyperparameters, with the best posterior there.

    packed  the vector that is optimised
    value   the bound, in nats
    """

    packed: FloatArray
    hyper: Hyperparameters
    posterior: Posterior
    value: float


class _Search:
    """One fit: what does not change in it, and how far it has come."""

    def __init__(
        self,
        likelihood: LatentLikelihood,
        points: FloatArray,
        weight: float,
        settings: ProcessSettings,
        constant: FloatArray,
    ) -> None:
        inducing = inducing_points(points, settings.inducing)
        self.likelihood, self.weight, self.settings = likelihood, weight, settings
        self.constant = constant
        self.points = Points(points.shape[0], in_blocks(points, ROWS), inducing)
        self.packing = Packing(settings.kernel, settings.coupling, constant.size, points.shape[1])
        start = self.packing.start()
        before = prior(constant, constant.size, len(inducing))
        self.place = _Place(start, self.packing.unpack(start), before, -np.inf)

    def run(self) -> None:
        """Climb; the value stays −∞ where not even the start has a bound."""
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

        minimize(
            loss,
            self.place.packed,
            jac=True,
            method="L-BFGS-B",
            bounds=self.packing.bounds(),
            callback=accept,
            options={
                "maxiter": ROUNDS,
                "ftol": share * ENOUGH / max(1.0, share * abs(self.place.value)),
                "gtol": share * 1e-2,
            },
        )

    def evaluated(self, packed: FloatArray) -> tuple[_Place, FloatArray] | None:
        """The best posterior, and the derivatives of its bound by the vector; None without one.

        Posteriors are sought from that of the place the search stands at, never from those of
        steps it only tried: between two accepted steps it is a function of its argument.
        """
        hyper = self.packing.unpack(packed)
        kernels = self.packing.kernels(hyper)
        design = design_of(kernels, hyper.mixing, self.points)
        place = self.place
        start = carried(place.posterior, self.packing, self.points.inducing, place.hyper, hyper)
        outcome = optimise(self.likelihood, self.weight, design, start, self.constant)
        if outcome is None:
            return None
        posterior, bound = outcome
        slope = self.packing.chain(hyper, *hyper_slope(kernels, design, posterior, bound))
        return _Place(packed.copy(), hyper, posterior, bound.value), slope

    def process(self) -> SparseProcess:
        """Where it stands, as a value."""
        hyper, posterior = self.place.hyper, self.place.posterior
        # S = R⁻ᵀ R⁻¹ = Uᵀ U with R⁻¹ = Q U: without a difference that could cancel.
        root = np.linalg.inv(np.linalg.cholesky(posterior.precision))
        upper = np.linalg.qr(root, mode="r")
        spread = (upper * np.sign(np.diagonal(upper, axis1=1, axis2=2))[..., None]).swapaxes(1, 2)
        return SparseProcess(
            self.settings.kernel,
            tuple(posterior.constant.tolist()),
            as_matrix(self.points.inducing),
            as_matrix(hyper.scale),
            as_matrix(hyper.mixing),
            as_matrix(posterior.location),
            tuple(as_matrix(one) for one in spread),
        )


def carried(
    posterior: Posterior,
    packing: Packing,
    inducing: FloatArray,
    before: Hyperparameters,
    after: Hyperparameters,
) -> Posterior:
    """A posterior under other hyperparameters, with the outputs at the inducing points as they
    were: where a search goes on from. Of mixed latents only the size is kept, and of one that
    hardly goes into any output that of the smallest amplitude."""
    location, precision = np.empty_like(posterior.location), np.empty_like(posterior.precision)
    kernels = zip(packing.kernels(before), packing.kernels(after), strict=True)
    for latent, (old, new) in enumerate(kernels):
        sizes = (np.linalg.norm(hyper.mixing[:, latent]) for hyper in (before, after))
        old_size, new_size = (max(AMPLITUDE[0], float(size)) for size in sizes)
        size = old_size / new_size
        turn = size * np.linalg.solve(inducing_root(new, inducing), inducing_root(old, inducing))
        back = np.linalg.inv(turn)
        location[latent] = turn @ posterior.location[latent]
        precision[latent] = back.T @ posterior.precision[latent] @ back
    precision = 0.5 * (precision + precision.swapaxes(1, 2))
    return Posterior(posterior.constant, location, precision)


def hyper_slope(
    kernels: list[Kernel], design: Design, posterior: Posterior, bound: Bound
) -> tuple[FloatArray, FloatArray]:
    """Derivatives of the bound by the log scales (L, P) and by the mixing (J, L), q(v) fixed."""
    points, mixing = design.points, design.mixing
    by_mixing = np.einsum("jbn,lbn->jl", bound.by_mean, bound.latent_mean)
    by_mixing += 2.0 * mixing * np.einsum("jbn,lbn->jl", bound.by_variance, bound.latent_variance)
    slopes = np.einsum("jl,jbn->lbn", mixing, bound.by_mean)
    curves = np.einsum("jl,jbn->lbn", np.square(mixing), bound.by_variance)
    by_scale = []
    for latent, kernel in enumerate(kernels):
        a, curve = design.basis[latent], curves[latent]
        shrunk = bound.covariance[latent] - np.eye(len(points.inducing))
        by_basis = posterior.location[latent][:, None] * slopes[latent][:, None]
        by_basis = by_basis + 2.0 * (shrunk @ a) * curve[:, None]
        by_cross = design.inverse[latent].T @ by_basis
        by_root = -np.tril((by_cross @ a.swapaxes(1, 2)).sum(axis=0))
        by_matrix = _through_cholesky(design.root[latent], design.inverse[latent], by_root)
        step = np.arange(len(by_matrix))
        by_diagonal = by_matrix[step, step] + JITTER / step.size * np.trace(by_matrix)
        by_matrix[step, step] = 0.0
        z = points.inducing
        by_scale.append(
            kernel.slope(points.blocks, z, design.cross[latent], by_cross.swapaxes(1, 2))
            + kernel.slope(z, z, kernel.matrix(z, z), by_matrix)
            + kernel.diagonal_slope(z, by_diagonal)
            + kernel.diagonal_slope(points.blocks, curve)
        )
    return np.array(by_scale), by_mixing


def _through_cholesky(root: FloatArray, inverse: FloatArray, by_root: FloatArray) -> FloatArray:
    """Derivative by a symmetric matrix, of that by its lower Cholesky factor.

    source  Murray 2016, eq. 8 and 10
    """
    inner = np.tril(root.T @ by_root)
    step = np.arange(len(root))
    inner[step, step] *= 0.5
    found = inverse.T @ inner @ inverse
    return 0.5 * (found + found.T)
