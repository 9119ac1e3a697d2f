"""Measures every recalibrator on the reference sets: held-out likelihood, time to fit and to serve.

Beside each figure stand the bound it must not exceed, what the papers' own code (netcal 1.4.0)
reached on the same rows and how long that fitted, and the range over seeded resplits of the same
sizes: one split may be luck. Exits with 1 where a figure is out of its bound.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.machine import machine, shortest
from monitor.frames.cholesky import factorise, log_determinant, whiten
from monitor.frames.detections import Estimates
from monitor.frames.space import IntArray, plain_space
from monitor.recalibration.class_probabilities import ClassRows, from_probabilities
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.fitting import CLASS_FITS, FITTINGS, FitOptions
from monitor.recalibration.recalibrator import Output, Recalibrator
from monitor.statistics.class_evaluation import evaluate_class_rows
from monitor.statistics.exact_engine import evaluate_rows
from monitor.statistics.measures import TAU, NormalMarginals
from tests.reference.datasets import Arrays, DataSets, all_sets

Which = slice | IntArray
Rows = tuple[int, int]
Score = Callable[[Recalibrator, FitRows], float]


def rows_of(arrays: Arrays, which: Which) -> FitRows:
    """Takes rows of a reference set; each is an object of its own."""
    mean, truth = arrays["mean"][which], arrays["gt"][which]
    n, k = mean.shape
    full = "cov" in arrays
    covariance = arrays["cov"][which] if full else arrays["var"][which][:, :, None] * np.eye(k)
    space = plain_space(tuple(str(i) for i in range(k)))
    sent = Estimates(mean, covariance, np.full(n, not full and k > 1))
    alone, at_once = np.full(n, -1), np.zeros(n)
    return FitRows(space, sent, space.error(truth, mean), alone, np.arange(n) / 10, at_once)


def fitted(method: str, rows: FitRows) -> tuple[Recalibrator, float]:
    """Fits with the default options; returns the CPU seconds it took too."""
    began = time.process_time()
    recalibrator = FITTINGS[method].fit(rows, FitOptions(), None)
    return recalibrator, time.process_time() - began


# ---- likelihoods


def marginal_nll(recalibrator: Recalibrator, rows: FitRows) -> float:
    """Scores each dimension under the method's own distribution, mean over dimensions."""
    truth = rows.estimates.mean + rows.error
    return float(-recalibrator.marginals(rows.estimates).log_density(truth).mean())


def joint_nll(recalibrator: Recalibrator, rows: FitRows) -> float:
    """Scores all dimensions together, under the Gaussian that is forwarded."""
    made = recalibrator.apply(rows.estimates)
    factor, k = factorise(made.covariance), rows.space.k
    z = whiten(factor, rows.estimates.mean + rows.error - made.mean)
    nees = np.square(z).sum(axis=0)
    return float(0.5 * np.mean(k * np.log(2 * np.pi) + log_determinant(factor, k) + nees))


def nll_above_truth(recalibrator: Recalibrator, rows: FitRows) -> float:
    """Scores levi_overconfident against the true deviation, 1.5 σ."""
    true = NormalMarginals(rows.estimates.mean, 1.5 * rows.deviation)
    truth = rows.estimates.mean + rows.error
    return marginal_nll(recalibrator, rows) + float(true.log_density(truth).mean())


def own_qce(recalibrator: Recalibrator, rows: FitRows) -> float:
    """Scores the method's own central τ intervals: |share within − τ|, mean over τ."""
    truth = rows.estimates.mean + rows.error
    inside = np.abs(2 * recalibrator.marginals(rows.estimates).cumulative(truth) - 1)
    covered = (inside[:, :, None] <= TAU).mean(axis=0)
    return float(np.abs(covered - TAU).mean())


def deviation_ratio(recalibrator: Recalibrator, rows: FitRows) -> float:
    """Compares σ after with σ before, of the dimension where it is furthest from 1."""
    made = np.diagonal(recalibrator.apply(rows.estimates).covariance, axis1=1, axis2=2)
    ratio = np.sqrt(np.median(made / np.square(rows.deviation), axis=0))
    return float(ratio[np.argmax(np.abs(np.log(ratio)))])


@dataclass(frozen=True)
class Line:
    """Describes one figure: a method fitted on some rows of a set, judged on others.

    most    that will do; None: for comparison
    theirs  of netcal and how long that fitted, where it was measured on these rows
    least   that will do
    """

    data: str
    method: str
    score: Score
    most: float | None = None
    theirs: str = ""
    fit: Rows = (0, 2000)
    judged: Rows = (2000, 4000)
    least: float = 0.0

    def met(self, figure: float) -> bool:
        """Tells whether a figure will do."""
        return self.most is None or self.least <= figure <= self.most

    def figure(self, arrays: Arrays, fit: Which, judged: Which) -> float:
        """Fits and judges on the given rows."""
        recalibrator, _ = fitted(self.method, rows_of(arrays, fit))
        return self.score(recalibrator, rows_of(arrays, judged))


THIRD, BOXES = (4000, 6000), (10_000, 12_000)
NEXT, HALVES = (2000, 2200), ((0, 25_000), (25_000, 50_000))
SIZES, DIAGONAL, LEVI = "box4_size_dependent", "box4_overconfident_diag", "levi_overconfident"
CALIBRATED, TENTHS = "box4_calibrated", ((0, 10_000), (10_000, 20_000))
LINES = (
    Line("cosine_mean", "variance-scaling", marginal_nll, None, "1.2629"),
    Line("cosine_mean", "gp-normal", marginal_nll, 1.085, "1.1163 (37 s)"),
    Line("cosine_variance", "variance-scaling", marginal_nll, None, "0.8013"),
    Line("cosine_variance", "gp-normal", marginal_nll, 0.745, "0.8039 (36 s)"),
    Line(SIZES, "variance-scaling", marginal_nll, judged=THIRD),
    Line(SIZES, "gp-normal", marginal_nll, 3.115, "3.5732 (88 s)", judged=THIRD),
    Line(DIAGONAL, "variance-scaling", joint_nll, judged=BOXES),
    Line(DIAGONAL, "covariance-scaling", joint_nll, judged=BOXES),
    Line(DIAGONAL, "gp-normal-multivariate", joint_nll, 12.065, "12.3901 (105 s)", judged=BOXES),
    Line("cauchy_1d", "gp-cauchy", marginal_nll, 1.8990, "1.8998 (31 s)"),
    Line("cosine_mean", "gp-beta", marginal_nll, 1.1568149, "1.1568 (54 s)", judged=NEXT),
    Line("cosine_mean", "gp-beta", own_qce, 0.0505263, "0.0505", judged=NEXT),
    Line(CALIBRATED, "isotonic-quantiles", deviation_ratio, judged=TENTHS[1]),
    Line(CALIBRATED, "isotonic-quantiles", deviation_ratio, 1.02, "", *TENTHS, least=0.98),
    Line(LEVI, "variance-scaling", marginal_nll, None, "0.6761", *HALVES),
    Line(LEVI, "variance-scaling", nll_above_truth, None, "", *HALVES),
    Line(LEVI, "histogram-binning", nll_above_truth, 0.002, "", *HALVES, least=-0.002),
    Line(LEVI, "isotonic-std", nll_above_truth, 0.002, "", *HALVES, least=-0.002),
)


def likelihoods(sets: DataSets, resplits: int) -> list[str]:
    """Prints the lines of the table; names those whose figure will not do."""
    row, missed = "{:<72}{:<10}{:<10}{:<18}{:<24}{}", []
    print(row.format("", "", "at most", "netcal", f"{resplits} resplits", "met"))
    for line in LINES:
        arrays, size = sets[line.data], line.fit[1] - line.fit[0]
        own = line.figure(arrays, slice(*line.fit), slice(*line.judged))
        end = size + line.judged[1] - line.judged[0]
        n, again = arrays["mean"].shape[0], []
        for seed in range(resplits):
            order = np.random.default_rng(seed).permutation(n)
            again.append(line.figure(arrays, order[:size], order[size:end]))
        name = f"{line.data}, {line.method}: {line.score.__name__.replace('_', ' ')}"
        most = "" if line.most is None else f"{line.most:.5g}"
        span = f"{min(again):.4f} … {max(again):.4f}" if again else ""
        cells = name, f"{own:.4f}", most, line.theirs, span, sum(map(line.met, again))
        print(row.format(*cells), flush=True)
        if not line.met(own):
            missed.append(f"{line.method} on {line.data}")
    return missed


def uninformative(sets: DataSets) -> None:
    """Prints ENCE where σ says nothing of the error; of a calibrated detector sqrt(B/(πn)) = 0.016.

    A method that looks at σ comes near that by making all σ alike (c_v); no factor can.
    """
    print(f"\n{'levi_random':24}{'ENCE':>8}{'c_v of σ':>10}")
    arrays, (fit, judged) = sets["levi_random"], (slice(*TENTHS[0]), slice(*HALVES[1]))
    # The mean of this set is the true deviation: it is hidden, and the error stays with its row.
    hidden = np.random.default_rng(0).permutation(arrays["mean"])
    blind = {**arrays, "mean": hidden, "gt": hidden + arrays["gt"] - arrays["mean"]}
    rows, to_fit = rows_of(blind, judged), rows_of(blind, fit)
    for method in FITTINGS:
        recalibrator, _ = fitted(method, to_fit)
        if recalibrator.output is not Output.SURROGATE:
            made, truth = recalibrator.apply(rows.estimates), rows.estimates.mean + rows.error
            found = evaluate_rows(rows.space, made.mean, made.covariance, truth)
            first = next(iter(found.dimensions.values()))
            print(f"{method:24}{first.ence:8.3f}{first.c_v:10.3f}", flush=True)


def classes(sets: DataSets) -> None:
    """Prints errors of class probabilities, 20 bins of equal width, and what methods cost."""
    heads = f"{'ECE':>10}{'cECE':>10}{'NLL':>10}{'fit':>10}{'serve':>12}"
    print(f"\n{'cls_overconfident':24}{heads}")
    arrays = sets["cls_overconfident"]
    opinions, label = from_probabilities(arrays["prob"][:, None]), arrays["label"]
    for method in ("temperature", "vector-scaling", "auxiliary-scaling", "classwise-isotonic"):
        began = time.process_time()
        recalibrator = CLASS_FITS[method](ClassRows(opinions[:10_000], label[:10_000]))
        fit_s, sent = time.process_time() - began, opinions[10_000:]
        (serve_s,) = shortest(3, partial(recalibrator.apply, sent))
        found = evaluate_class_rows(recalibrator.apply(sent)[:, 0], label[10_000:], bins=20)
        cost = f"{fit_s:8.2f} s{1e6 * serve_s / len(sent):9.2f} µs"
        print(f"{method:24}{found.ece:10.5f}{found.cece:10.4f}{found.nll:10.4f}{cost}", flush=True)


def times(sets: DataSets) -> None:
    """Prints CPU seconds of a fit; µs a detection of apply alone, the shortest of many calls."""
    print(f"\n{'K = 4':24}{'fit 2,000':>12}{'fit 10,000':>12}{'serve 256':>12}{'serve 1':>12}")
    arrays = sets[SIZES]
    # The set has 8,000 rows: here they are drawn again, moved a little, with errors of new signs.
    random = np.random.default_rng(0)
    more = random.integers(0, arrays["mean"].shape[0], 10_000)
    sign = random.choice([-1.0, 1.0], size=(10_000, 4))
    mean = arrays["mean"][more] * (1 + 1e-3 * random.standard_normal((10_000, 4)))
    error = (arrays["gt"][more] - arrays["mean"][more]) * sign
    many = rows_of({"mean": mean, "gt": mean + error, "var": arrays["var"][more]}, slice(None))
    for method in FITTINGS:
        recalibrator, short = fitted(method, rows_of(arrays, slice(0, 2000)))
        _, long = fitted(method, many)
        batch, single = (rows_of(arrays, slice(0, n)).estimates for n in (256, 1))
        # Rounds of each by itself, so that caches are warm.
        (at_once,) = shortest(200, partial(recalibrator.apply, batch))
        (alone,) = shortest(200, partial(recalibrator.apply, single))
        serve = f"{1e6 * at_once / 256:9.2f} µs{1e6 * alone:9.1f} µs"
        print(f"{method:24}{short:10.2f} s{long:10.2f} s{serve}", flush=True)


def main() -> int:
    """Prints everything; returns 1 where a figure of the table is out of its bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--resplits", type=int, default=10)
    resplits = parser.parse_args().resplits
    sets = all_sets()
    print(machine())
    missed = likelihoods(sets, resplits)
    uninformative(sets)
    classes(sets)
    times(sets)
    print(f"\nout of bounds: {', '.join(missed)}" if missed else "\nall bounds hold")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
