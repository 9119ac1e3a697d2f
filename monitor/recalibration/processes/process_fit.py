"""The fit of a sparse process: which features it looks at, and with which kernels.

Kernels and mixing are found by L-BFGS-B, with the best posterior at each. The bound is maximal in
the posterior, so that its derivatives by the hyperparameters are those at a fixed posterior.

Features are found one after the other, and each has to pay for itself. All candidates are screened
by a score test, the best few are tried, and the bound of the process decides: it falls with every
input that says nothing. Serving does not need this file.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from monitor.frames.detections import Estimates
from monitor.frames.space import FloatArray, IntArray
from monitor.recalibration.documents import as_matrix
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.processes.inputs import Inputs, candidate_inputs, paper_inputs
from monitor.recalibration.processes.kernels import (
    Kernel,
    KernelForm,
    inducing_points,
    kernel_of,
    scale_count,
)
from monitor.recalibration.processes.sparse_process import (
    JITTER,
    Coupling,
    Expected,
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
    prior,
)
from monitor.recalibration.recalibrator import UnfitData

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


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """Settings of the fit of a process.

    inducing  points, at most
    coupling  of its outputs, where a method has several
    """

    inducing: int = 12
    kernel: KernelForm = KernelForm.NORMALISED
    coupling: Coupling = Coupling.INDEPENDENT

    def require_independent(self, method: str) -> None:
        """Raises ValueError where outputs are coupled that the method fits one by one."""
        if self.coupling is not Coupling.INDEPENDENT:
            raise ValueError(
                f"coupling '{self.coupling}': {method} fits its outputs one by one. "
                "Use gp-normal for coupled variances."
            )


USUAL = ProcessSettings()


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """Parameters that are not in the posterior.

    scale   (J, P) of each latent's kernel; equal rows where a kernel is common to all
    mixing  (J, J) A, of as many latents as outputs
    """

    scale: FloatArray
    mixing: FloatArray


@dataclass(frozen=True, slots=True)
class Packing:
    """Order of the hyperparameters in the vector that an optimiser moves.

    Independent: the log scales of every latent, then the log amplitudes. Coupled: the log
    scales of the common kernel, then the lower triangle of A, since only B = A Aᵀ counts.

    outputs  J
    width    of the points
    """

    form: KernelForm
    coupling: Coupling
    outputs: int
    width: int

    def start(self) -> FloatArray:
        """Returns the vector that a search begins with."""
        if self.coupling is Coupling.COREGIONALISED:
            # What all outputs share is found first, in the first latent.
            mixing = 0.5 * START_AMPLITUDE * np.eye(self.outputs)
            mixing[:, 0] = START_AMPLITUDE
            entries = mixing[np.tril_indices(self.outputs)]
        else:
            entries = np.full(self.outputs, np.log(START_AMPLITUDE))
        return np.concatenate([np.full(self._logs, np.log(START_SCALE)), entries])

    def bounds(self) -> list[tuple[float, float]]:
        """Lists the least and the largest value of each entry."""
        entries = self.start().size - self._logs
        amplitude = (-AMPLITUDE[1], AMPLITUDE[1])
        if self.coupling is Coupling.INDEPENDENT:
            amplitude = (float(np.log(AMPLITUDE[0])), float(np.log(AMPLITUDE[1])))
        scale = (float(np.log(SCALE[0])), float(np.log(SCALE[1])))
        return [scale] * self._logs + [amplitude] * entries

    def unpack(self, packed: FloatArray) -> Hyperparameters:
        """Takes scales and mixing out of the vector."""
        scale = np.exp(packed[: self._logs]).reshape(-1, scale_count(self.form, self.width))
        entries = packed[self._logs :]
        if self.coupling is Coupling.INDEPENDENT:
            return Hyperparameters(scale, np.diag(np.exp(entries)))
        mixing = np.zeros((self.outputs, self.outputs))
        mixing[np.tril_indices(self.outputs)] = entries
        return Hyperparameters(np.repeat(scale, self.outputs, axis=0), mixing)

    def chain(
        self, hyper: Hyperparameters, by_log_scale: FloatArray, by_mixing: FloatArray
    ) -> FloatArray:
        """Turns derivatives by log scales (J, P) and mixing (J, J) into those by the vector."""
        if self.coupling is Coupling.INDEPENDENT:
            entries = np.diagonal(by_mixing * hyper.mixing)
            return np.concatenate([by_log_scale.ravel(), entries])
        entries = by_mixing[np.tril_indices(self.outputs)]
        return np.concatenate([by_log_scale.sum(axis=0), entries])

    def kernels(self, hyper: Hyperparameters) -> list[Kernel]:
        """Builds the kernel of each latent."""
        return [kernel_of(self.form, scale) for scale in hyper.scale]

    @property
    def _logs(self) -> int:
        kernels = self.outputs if self.coupling is Coupling.INDEPENDENT else 1
        return kernels * scale_count(self.form, self.width)


def fit_process(
    likelihood: LatentLikelihood, points: FloatArray, weight: float, settings: ProcessSettings
) -> tuple[SparseProcess, float]:
    """Fits the process of the largest bound weight Σ E_q[log p] − KL, in nats; returns both.

    Deterministic. The bits depend on the order of the rows: see in_one_order.

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
    """One fit: all that does not change in it, and the place that it has come to."""

    def __init__(
        self,
        likelihood: LatentLikelihood,
        points: FloatArray,
        weight: float,
        settings: ProcessSettings,
        constant: FloatArray,
    ) -> None:
        inducing = inducing_points(points, settings.inducing)
        self.likelihood, self.weight, self.constant = likelihood, weight, constant
        self.points = Points(points.shape[0], in_blocks(points, ROWS), inducing)
        self.packing = Packing(settings.kernel, settings.coupling, constant.size, points.shape[1])
        start = self.packing.start()
        before = prior(constant, constant.size, len(inducing))
        self.place = _Place(start, self.packing.unpack(start), before, -np.inf)

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
        """Finds the best posterior, and the slope of its bound by the vector; None without one.

        Posteriors are sought from that of the place the search stands at, never from those of
        steps it only tried: between two accepted steps it is a function of its argument.
        """
        hyper = self.packing.unpack(packed)
        kernels = self.packing.kernels(hyper)
        design = design_of(kernels, hyper.mixing, self.points)
        start = self.carried(hyper, kernels)
        outcome = optimise(self.likelihood, self.weight, design, start, self.constant)
        if outcome is None:
            return None
        posterior, bound = outcome
        slope = self.packing.chain(hyper, *hyper_slope(kernels, design, posterior, bound))
        return _Place(packed.copy(), hyper, posterior, bound.value), slope

    def carried(self, hyper: Hyperparameters, kernels: list[Kernel]) -> Posterior:
        """Carries the posterior to other hyperparameters, outputs at inducing points unchanged.

        It is where the search goes on from. Of mixed latents only the size is kept, and of one
        that hardly goes into any output that of the smallest amplitude.
        """
        place, inducing = self.place, self.points.inducing
        old = place.posterior
        location, precision = np.empty_like(old.location), np.empty_like(old.precision)
        before = self.packing.kernels(place.hyper)
        for latent, (left, kernel) in enumerate(zip(before, kernels, strict=True)):
            sizes = (np.linalg.norm(one.mixing[:, latent]) for one in (place.hyper, hyper))
            old_size, new_size = (max(AMPLITUDE[0], float(size)) for size in sizes)
            size = old_size / new_size
            roots = inducing_root(kernel, inducing), inducing_root(left, inducing)
            turn = size * np.linalg.solve(*roots)
            back = np.linalg.inv(turn)
            location[latent] = turn @ old.location[latent]
            precision[latent] = back.T @ old.precision[latent] @ back
        precision = 0.5 * (precision + precision.swapaxes(1, 2))
        return Posterior(old.constant, location, precision)

    def process(self) -> SparseProcess:
        """Returns the process of the place where it stands."""
        hyper, posterior = self.place.hyper, self.place.posterior
        # S = R⁻ᵀ R⁻¹ = Uᵀ U with R⁻¹ = Q U: without a difference that could cancel.
        root = np.linalg.inv(np.linalg.cholesky(posterior.precision))
        upper = np.linalg.qr(root, mode="r")
        spread = (upper * np.sign(np.diagonal(upper, axis1=1, axis2=2))[..., None]).swapaxes(1, 2)
        return SparseProcess(
            self.packing.form,
            tuple(posterior.constant.tolist()),
            as_matrix(self.points.inducing),
            as_matrix(hyper.scale),
            as_matrix(hyper.mixing),
            as_matrix(posterior.location),
            tuple(as_matrix(one) for one in spread),
        )


def hyper_slope(
    kernels: list[Kernel], design: Design, posterior: Posterior, bound: Bound
) -> tuple[FloatArray, FloatArray]:
    """Derives the bound by the log scales (L, P) and by the mixing (J, L), q(v) fixed."""
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
    """Turns a derivative by the lower Cholesky factor of a matrix into that by the matrix.

    source  Murray 2016, eq. 8 and 10
    """
    inner = np.tril(root.T @ by_root)
    step = np.arange(len(root))
    inner[step, step] *= 0.5
    found = inverse.T @ inner @ inverse
    return 0.5 * (found + found.T)


def choose_inputs(
    likelihood: LatentLikelihood, rows: FitRows, weight: float, settings: ProcessSettings
) -> tuple[Inputs, SparseProcess]:
    """Chooses inputs, and fits the process on them.

    Greedy, from no input at all: what is constant stays so. The kernel of the paper takes all
    means and variances or, where that is better, nothing.

    likelihood  of the same rows in the same order: for equal bits whatever the order of the
                rows, bring them into one order first (in_one_order)
    weight      in (0, 1], what a row is worth for what the likelihood is of
    Raises UnfitData as fit_process does.
    """
    choice = _Choice(likelihood, rows.estimates, weight, settings)
    nothing = Inputs(())
    best = choice.reweighted(choice.fitted(nothing, 1.0))
    if settings.kernel is KernelForm.PAPER:
        every = choice.fitted(paper_inputs(rows), best.share)
        if every.bound > best.bound + PAYS:
            best = choice.reweighted(every)
        return best.inputs, best.process
    candidates = candidate_inputs(rows)
    columns = candidates.of(rows.estimates).T
    pays = PAYS + np.log(max(1, len(columns)))
    for _ in range(MOST):
        gain = choice.screened(columns, best)
        gain[[feature in best.inputs.features for feature in candidates.features]] = 0.0
        tried = [
            choice.fitted(best.inputs.also(candidates.features[i]), best.share)
            for i in np.argsort(-gain, kind="stable")[:TRIED].tolist()
            if gain[i] > PAYS
        ]
        winner = max(tried, key=lambda one: one.bound, default=best)
        if not winner.bound > best.bound + pays:
            break
        best = choice.reweighted(winner)
    return best.inputs, best.process


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

    inputs: Inputs
    process: SparseProcess
    bound: float
    share: float


@dataclass(frozen=True, slots=True)
class _Choice:
    """Data that all trials of inputs have in common."""

    likelihood: LatentLikelihood
    estimates: Estimates
    weight: float
    settings: ProcessSettings

    def fitted(self, inputs: Inputs, share: float) -> _Fitted:
        points = inputs.of(self.estimates)
        process, bound = fit_process(self.likelihood, points, share * self.weight, self.settings)
        return _Fitted(inputs, process, bound, share)

    def expected(self, fitted: _Fitted) -> Expected:
        """Computes the expectation of each row at the process."""
        return self.likelihood.expected(*fitted.process.at(fitted.inputs.of(self.estimates)))

    def reweighted(self, fitted: _Fitted) -> _Fitted:
        """Fitted again, at the share that is left now that more is explained."""
        return self.fitted(fitted.inputs, evidence_share(self.expected(fitted)))

    def screened(self, columns: FloatArray, best: _Fitted) -> FloatArray:
        """Estimates how many nats each candidate (C, n) would gain, (C,).

        ½ Σ_b [(Σ s)² / Σ s² − 1] over bins b of equal count, s the scores of the rows that are
        left by the process so far: what chance gives is taken off.
        """
        scores = self.expected(best).by_mean
        gain = np.zeros(len(columns))
        for i, column in enumerate(columns):
            place = equal_count_bins(column)
            for s in scores:
                total, square = np.bincount(place, s, BINS), np.bincount(place, s * s, BINS)
                occupied = square > 0
                gain[i] += 0.5 * (total[occupied] ** 2 / square[occupied] - 1.0).sum()
        return gain
