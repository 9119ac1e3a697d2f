"""Every recalibrator on the reference sets: held-out likelihood, time to fit, time to serve.

Beside each figure stand the bound it must not exceed, what the papers' own code (netcal 1.4.0)
reached on the same rows and how long that fitted, and the mean and spread over seeded resplits
of the same sizes: one split may be luck. Rows differ between splits by more than methods do, so
that what a figure lies above the likelihood of the distribution the rows were drawn from is the
one to look at, where that is known.

    python benchmarks/recalibrators.py [--resplits 10] [--rounds 10]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from benchmarks.machine import machine, shortest
from monitor.frames.cholesky import factorise, log_determinant, whiten
from monitor.frames.detections import Estimates
from monitor.frames.space import FloatArray, IntArray, plain_space
from monitor.recalibration.classes.class_selection import CLASS_FITS
from monitor.recalibration.classes.probabilities import ClassRows, from_probabilities
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.fitting import FITTINGS, FitOptions
from monitor.recalibration.processes.cauchy import CauchyMarginals
from monitor.recalibration.recalibrator import Output, Recalibrator, marginals_of
from monitor.statistics.class_evaluation import evaluate_class_rows
from monitor.statistics.evaluation import TAU
from monitor.statistics.exact_engine import evaluate_rows
from monitor.statistics.measures import Marginals, NormalMarginals
from tests.recalibration.processes.test_normal import correlated_pairs
from tests.recalibration.rows import distorted, evaluated
from tests.reference.datasets import Arrays, DataSets, all_sets

Score = Callable[[Recalibrator, FitRows], float]

WIDTHS = (10, 13, 18, 17, 20, 20, 10)
CLASS_METHODS = ("temperature", "vector-scaling", "auxiliary-scaling", "classwise-isotonic")


@dataclass(frozen=True)
class Line:
    """One figure: a method fitted on some rows of a set, judged on others.

    bound   lowest and highest that will do; None where the figure is for comparison
    theirs  of netcal and how long that fitted, where it was measured on these rows
    """

    data: str
    method: str
    fit: slice
    judged: slice
    score: Score
    bound: tuple[float, float] | None = None
    theirs: str = "–"

    def met(self, figure: float) -> bool:
        """Whether a figure will do."""
        return self.bound is None or self.bound[0] <= figure <= self.bound[1]


def rows_of(arrays: Arrays, which: IntArray | slice) -> FitRows:
    """Rows of a reference set; each an object of its own."""
    mean, truth = arrays["mean"][which], arrays["gt"][which]
    n, k = mean.shape
    full = "cov" in arrays
    covariance = arrays["cov"][which] if full else arrays["var"][which][:, :, None] * np.eye(k)
    space = plain_space(tuple(str(i) for i in range(k)))
    sent = Estimates(mean, covariance, np.full(n, not full and k > 1))
    alone, at_once = np.full(n, -1), np.zeros(n)
    return FitRows(space, sent, space.error(truth, mean), alone, np.arange(n) / 10, at_once)


def fitted(method: str, rows: FitRows) -> tuple[Recalibrator, float]:
    """With its options left alone; and the CPU seconds it took."""
    began = time.process_time()
    recalibrator = FITTINGS[method].fit(rows, FitOptions(), None)
    return recalibrator, time.process_time() - began


# ---- likelihoods


def marginal_nll(recalibrator: Recalibrator, rows: FitRows) -> float:
    """Of each dimension under the method's own distribution, mean over dimensions."""
    truth = rows.estimates.mean + rows.error
    return float(-marginals_of(recalibrator, rows.estimates).log_density(truth).mean())


def joint_nll(recalibrator: Recalibrator, rows: FitRows) -> float:
    """Of all dimensions together, under the Gaussian that is forwarded."""
    made = recalibrator.apply(rows.estimates)
    factor, k = factorise(made.covariance), rows.space.k
    z = whiten(factor, rows.estimates.mean + rows.error - made.mean)
    nees = np.square(z).sum(axis=0)
    return float(0.5 * np.mean(k * np.log(2 * np.pi) + log_determinant(factor, k) + nees))


def nll_above_truth(recalibrator: Recalibrator, rows: FitRows) -> float:
    """On levi_overconfident, whose true deviation is 1.5 σ."""
    true = NormalMarginals(rows.estimates.mean, 1.5 * rows.deviation)
    truth = rows.estimates.mean + rows.error
    return marginal_nll(recalibrator, rows) + float(true.log_density(truth).mean())


def own_qce(recalibrator: Recalibrator, rows: FitRows) -> float:
    """Of the method's own distribution: |share within the central τ interval − τ|, mean over τ."""
    truth = rows.estimates.mean + rows.error
    inside = np.abs(2 * marginals_of(recalibrator, rows.estimates).cumulative(truth) - 1)
    covered = (inside[:, :, None] <= TAU).mean(axis=0)
    return float(np.abs(covered - TAU).mean())


def deviation_ratio(recalibrator: Recalibrator, rows: FitRows) -> float:
    """σ after to before, of the dimension where it is furthest from 1."""
    made = np.diagonal(recalibrator.apply(rows.estimates).covariance, axis1=1, axis2=2)
    ratio = np.sqrt(np.median(made / np.square(rows.deviation), axis=0))
    return float(ratio[np.argmax(np.abs(np.log(ratio)))])


def ence_and_spread(recalibrator: Recalibrator, rows: FitRows) -> tuple[float, float]:
    """ENCE of the forwarded Gaussian, 20 bins of equal count, and how much its σ vary (c_v)."""
    made = recalibrator.apply(rows.estimates)
    truth = rows.estimates.mean + rows.error
    found = evaluate_rows(rows.space, made.mean, made.covariance, truth)
    first = next(iter(found.dimensions.values()))
    return first.ence, first.c_v


# ---- the distribution that rows were drawn from, by its deviation (or the scale of a Cauchy)


def _sigma(arrays: Arrays) -> FloatArray:
    deviation: FloatArray = np.sqrt(arrays["var"])
    return deviation


def _size_dependent(arrays: Arrays) -> FloatArray:
    factor = np.exp(1.2 * np.tanh((np.log(arrays["mean"][:, 2:3]) - 4.4) / 0.7))
    return _sigma(arrays) * factor


TRUTH: dict[str, Callable[[Arrays], FloatArray]] = {
    "cosine_mean": lambda arrays: 0.125 + 1.5 * expit(1.5 * arrays["mean"]),
    "cosine_variance": lambda arrays: 0.25 + 0.5 * expit(2.0 * (_sigma(arrays) - 0.175)),
    "box4_size_dependent": _size_dependent,
    "cauchy_1d": lambda arrays: (0.6 + 0.3 * np.tanh(arrays["mean"])) * _sigma(arrays),
    "levi_overconfident": lambda arrays: 1.5 * _sigma(arrays),
}


def drawn_from(name: str, arrays: Arrays, which: IntArray | slice) -> Marginals:
    """Of a set in TRUTH."""
    mean, scale = arrays["mean"][which], TRUTH[name](arrays)[which]
    return (CauchyMarginals if name == "cauchy_1d" else NormalMarginals)(mean, scale)


FIRST, SECOND = slice(0, 2000), slice(2000, 4000)
THIRD, NEXT = slice(4000, 6000), slice(2000, 2200)
BOXES, TENTH = slice(10000, 12000), slice(0, 10000)
HALF, OTHER_HALF = slice(0, 25000), slice(25000, 50000)
LINES = (
    Line("cosine_mean", "variance-scaling", FIRST, SECOND, marginal_nll, None, "1.2629"),
    Line("cosine_mean", "gp-normal", FIRST, SECOND, marginal_nll, (0, 1.085), "1.1163 (37 s)"),
    Line("cosine_variance", "variance-scaling", FIRST, SECOND, marginal_nll, None, "0.8013"),
    Line("cosine_variance", "gp-normal", FIRST, SECOND, marginal_nll, (0, 0.745), "0.8039 (36 s)"),
    Line("box4_size_dependent", "variance-scaling", FIRST, THIRD, marginal_nll),
    Line(
        "box4_size_dependent", "gp-normal", FIRST, THIRD, marginal_nll, (0, 3.115), "3.5732 (88 s)"
    ),
    Line("box4_overconfident_diag", "variance-scaling", FIRST, BOXES, joint_nll),
    Line("box4_overconfident_diag", "covariance-scaling", FIRST, BOXES, joint_nll),
    Line(
        "box4_overconfident_diag",
        "gp-normal-multivariate",
        FIRST,
        BOXES,
        joint_nll,
        (0, 12.065),
        "12.3901 (105 s)",
    ),
    Line("cauchy_1d", "gp-cauchy", FIRST, SECOND, marginal_nll, (0, 1.8990), "1.8998 (31 s)"),
    Line("cosine_mean", "gp-beta", FIRST, NEXT, marginal_nll, (0, 1.1568149), "1.1568 (54 s)"),
    Line("cosine_mean", "gp-beta", FIRST, NEXT, own_qce, (0, 0.0505263), "0.0505"),
    Line(
        "box4_calibrated",
        "isotonic-quantiles",
        TENTH,
        slice(10000, 20000),
        deviation_ratio,
        (0.98, 1.02),
    ),
    Line("levi_overconfident", "variance-scaling", HALF, OTHER_HALF, marginal_nll, None, "0.6761"),
    Line("levi_overconfident", "variance-scaling", HALF, OTHER_HALF, nll_above_truth),
    *(
        Line("levi_overconfident", method, HALF, OTHER_HALF, nll_above_truth, (-0.002, 0.002))
        for method in ("histogram-binning", "isotonic-std")
    ),
)


def figure(
    line: Line, arrays: Arrays, fit: IntArray | slice, judged: IntArray | slice
) -> tuple[float, float]:
    """The score of a method on some rows, fitted on others; and above the truth's, or NaN."""
    recalibrator, _ = fitted(line.method, rows_of(arrays, fit))
    score = line.score(recalibrator, rows_of(arrays, judged))
    if line.data not in TRUTH or line.score is not marginal_nll:
        return score, float("nan")
    truth = drawn_from(line.data, arrays, judged).log_density(arrays["gt"][judged])
    return score, score + float(truth.mean())


def resplits(line: Line, arrays: Arrays, number: int) -> FloatArray:
    """The same on seeded permutations of all rows, with as many to fit and to judge; (2, n)."""
    n = arrays["mean"].shape[0]
    size, judged = line.fit.stop - line.fit.start, line.judged.stop - line.judged.start
    orders = (np.random.default_rng(seed).permutation(n) for seed in range(number))
    return np.array(
        [figure(line, arrays, order[:size], order[size : size + judged]) for order in orders]
    ).T


def likelihoods(sets: DataSets, number: int, missed: list[Line]) -> Iterator[str]:
    """The lines of the table; those whose figure will not do join the missed ones."""
    heads = ("", "above truth", "bound", "netcal", "resplits", "above truth", "met")
    yield f"{'':48}" + "".join(f"{head:>{w}}" for head, w in zip(heads, WIDTHS, strict=True))
    for line in LINES:
        arrays = sets[line.data]
        own, above = figure(line, arrays, line.fit, line.judged)
        if not line.met(own):
            missed.append(line)
        again, again_above = resplits(line, arrays, number)
        bound = "" if line.bound is None else f"{line.bound[0]:.4g} to {line.bound[1]:.5g}"
        met = sum(line.met(value) for value in again.tolist())
        score = line.score.__name__.replace("_", " ")
        cells = (
            f"{own:.4f}",
            f"{above:.4f}",
            bound,
            line.theirs,
            f"{again.mean():.4f} +- {again.std(ddof=1):.4f}",
            f"{again_above.mean():.4f} +- {again_above.std(ddof=1):.4f}",
            "" if line.bound is None else f"{met} of {number}",
        )
        yield f"{line.data}, {line.method}: {score}"
        yield f"{'':48}" + "".join(f"{cell:>{w}}" for cell, w in zip(cells, WIDTHS, strict=True))


def uninformative(sets: DataSets) -> Iterator[str]:
    """ENCE where σ says nothing of the error; of a calibrated detector sqrt(B/(πn)) = 0.016.

    A method that looks at σ comes near that by making all σ alike (c_v), and one that looks at
    the mean because the mean of this set is the true deviation. No factor can do either.
    """
    columns = ("ENCE", "c_v of σ", "ENCE, mean hidden", "c_v")
    yield f"{'levi_random':24}" + "".join(f"{name:>20}" for name in columns)
    arrays = sets["levi_random"]
    hidden = np.random.default_rng(0).permutation(arrays["mean"])
    # The error stays with its row; only what could tell its size is taken away.
    blind = {**arrays, "mean": hidden, "gt": hidden + arrays["gt"] - arrays["mean"]}
    for method in FITTINGS:
        values: list[float] = []
        for of in (arrays, blind):
            recalibrator, _ = fitted(method, rows_of(of, slice(0, 10000)))
            if recalibrator.output is Output.SURROGATE:
                break
            values += ence_and_spread(recalibrator, rows_of(of, OTHER_HALF))
        if values:
            yield f"{method:24}" + "".join(f"{value:20.3f}" for value in values)


def correlations(number: int) -> Iterator[str]:
    """Joint NLL of two dimensions whose correlation depends on the input, or does not."""
    methods = ("covariance-scaling", "gp-normal-multivariate")
    yield f"{'pairs, joint NLL':24}{methods[0]:>22}{methods[1]:>26}{'less':>20}"
    for depends in (True, False):
        values = []
        for seed in range(number):
            fit, judged = (
                correlated_pairs([seed, part], n=2000, depends=depends) for part in (0, 1)
            )
            values.append([joint_nll(fitted(method, fit)[0], judged) for method in methods])
        scaled, ours = np.array(values).T
        less = scaled - ours
        name = f"correlation {'depends' if depends else 'constant'}"
        spread = f"{less.mean():.4f} +- {less.std(ddof=1):.4f}"
        yield f"{name:24}{scaled.mean():22.4f}{ours.mean():26.4f}{spread:>20}"


def distortions(number: int) -> Iterator[str]:
    """cECE where each class is distorted in its own way, over that of temperature scaling."""
    yield f"{'distorted, cECE':24}{'':>10}{'over temperature':>20}"
    found = []
    for seed in range(number):
        fit, judged = distorted([seed, 0], 10000), distorted([seed, 1], 10000)
        found.append([evaluated(CLASS_FITS[method](fit), judged).cece for method in CLASS_METHODS])
    values = np.array(found)
    for method, own, ratio in zip(CLASS_METHODS, values.T, (values / values[:, :1]).T, strict=True):
        yield f"{method:24}{own.mean():10.4f}{f'{ratio.mean():.3f} +- {ratio.std():.3f}':>20}"


def classes(sets: DataSets, number: int) -> Iterator[str]:
    """Of class probabilities: 20 bins of equal width."""
    yield f"{'cls_overconfident':24}{'ECE':>10}{'resplits':>20}{'cECE':>10}{'NLL':>10}{'fit':>10}"
    arrays = sets["cls_overconfident"]
    n = arrays["label"].size
    for method in CLASS_METHODS:
        values = []
        for seed in range(-1, number):
            order = np.arange(n)
            if seed >= 0:
                order = np.random.default_rng(seed).permutation(n)
            fit, judged = order[:10000], order[10000:]
            opinions = from_probabilities(arrays["prob"][:, None])
            began = time.process_time()
            recalibrator = CLASS_FITS[method](ClassRows(opinions[fit], arrays["label"][fit]))
            took = time.process_time() - began
            made = recalibrator.apply(opinions[judged])[:, 0]
            found = evaluate_class_rows(made, arrays["label"][judged], bins=20)
            values.append((found.ece, found.cece, found.nll, took))
        ece = np.array(values)[1:, 0]
        spread = f"{ece.mean():.4f} +- {ece.std(ddof=1):.4f}"
        own = values[0]
        yield f"{method:24}{own[0]:10.5f}{spread:>20}{own[1]:10.4f}{own[2]:10.4f}{own[3]:8.2f} s"


def times(sets: DataSets, rounds: int) -> Iterator[str]:
    """CPU seconds of a fit; µs a detection of apply alone, the shortest of many calls."""
    yield f"{'K = 4':24}{'fit 2,000':>12}{'fit 10,000':>12}{'serve 256':>12}{'serve 1':>12}"
    arrays = sets["box4_size_dependent"]
    # The set has 8,000 rows: here they are drawn again, moved a little, with errors of new signs.
    random = np.random.default_rng(0)
    more = random.integers(0, arrays["mean"].shape[0], 10000)
    sign = random.choice([-1.0, 1.0], size=(10000, 4))
    mean = arrays["mean"][more] * (1 + 1e-3 * random.standard_normal((10000, 4)))
    error = (arrays["gt"][more] - arrays["mean"][more]) * sign
    many = {"mean": mean, "gt": mean + error, "var": arrays["var"][more]}
    few = rows_of(arrays, FIRST)
    for method in FITTINGS:
        recalibrator, short = fitted(method, few)
        _, long = fitted(method, rows_of(many, slice(0, 10000)))
        one, other = (
            1e6 * serving(recalibrator, rows_of(arrays, slice(0, n)).estimates, rounds) / n
            for n in (256, 1)
        )
        yield f"{method:24}{short:10.2f} s{long:10.2f} s{one:9.2f} µs{other:9.1f} µs"


def serving(recalibrator: Recalibrator, sent: Estimates, rounds: int) -> float:
    """Seconds of a call of apply."""
    return shortest(rounds * 20, lambda: recalibrator.apply(sent))[0]


def main() -> int:
    """Prints everything; 1 where a figure of the table is out of its bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--resplits", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    sets = all_sets()
    print(machine())
    missed: list[Line] = []
    for part in (
        likelihoods(sets, options.resplits, missed),
        correlations(options.resplits),
        uninformative(sets),
        classes(sets, options.resplits),
        distortions(options.resplits),
        times(sets, options.rounds),
    ):
        print()
        for text in part:
            print(text, flush=True)
    for line in missed:
        print(f"\nout of its bound: {line.method} on {line.data}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
