"""Which features a process looks at: found one after the other, each has to pay for itself.

All candidates are screened by a score test, the best few are tried, and the bound of the
process decides: it falls with every input that says nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from monitor.calibration.space import FloatArray
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.processes.equal_count_bins import BINS, equal_count_bins
from monitor.recalibration.processes.gp_inputs import Inputs, candidate_inputs, paper_inputs
from monitor.recalibration.processes.hyperparameters import ProcessSettings
from monitor.recalibration.processes.kernels import KernelForm
from monitor.recalibration.processes.latent_likelihood import Expected, LatentLikelihood
from monitor.recalibration.processes.process_fit import fit_process
from monitor.recalibration.processes.sparse_process import SparseProcess
from monitor.recalibration.recalibrator import Estimates

# Nats that an input has to add to the bound: odds of twenty to one that it is no chance, and
# the logarithm of how many candidates there are to be the luckiest of.
PAYS = 3.0
# Inputs at most; a dozen inducing points do not fill more dimensions.
MOST = 3
# Candidates tried at each step, the best by the screen.
TRIED = 2


def choose_inputs(
    likelihood: LatentLikelihood, rows: FitRows, weight: float, settings: ProcessSettings
) -> tuple[Inputs, SparseProcess]:
    """The inputs, and the process fitted on them.

    Greedy, from no input at all: what is constant stays so. The kernel of the paper takes all
    means and variances or, where that is better, nothing.

    likelihood  of the same rows in the same order: for equal bits whatever the order of the
                rows, bring them into one order first (row_order)
    weight      in (0, 1], what a row is worth for what the likelihood is of
    Raises UnfitData as fit_process does.
    """
    choice = _Choice(likelihood, rows.estimates, weight, settings)
    nothing = Inputs((), rows.space.k)
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


def evidence_share(expected: Expected) -> float:
    """What a row says in truth, of what the likelihood takes it to say; in (0, 1].

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
    """A process on some inputs, with its bound at the share of the evidence it was fitted at."""

    inputs: Inputs
    process: SparseProcess
    bound: float
    share: float


@dataclass(frozen=True, slots=True)
class _Choice:
    """What all trials have in common."""

    likelihood: LatentLikelihood
    estimates: Estimates
    weight: float
    settings: ProcessSettings

    def fitted(self, inputs: Inputs, share: float) -> _Fitted:
        points = inputs.of(self.estimates)
        process, bound = fit_process(self.likelihood, points, share * self.weight, self.settings)
        return _Fitted(inputs, process, bound, share)

    def expected(self, fitted: _Fitted) -> Expected:
        """Of each row at the process."""
        return self.likelihood.expected(*fitted.process.at(fitted.inputs.of(self.estimates)))

    def reweighted(self, fitted: _Fitted) -> _Fitted:
        """Fitted again, at the share that is left now that more is explained."""
        return self.fitted(fitted.inputs, evidence_share(self.expected(fitted)))

    def screened(self, columns: FloatArray, best: _Fitted) -> FloatArray:
        """About how many nats each candidate (C, n) would gain, (C,).

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
