"""Writes evaluations of Gaussians for people: verdicts, a table with its legend, all measures.

Tables are at most 100 columns wide. What is said of a verdict is in `statistics.verdicts`; nothing
is measured here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from monitor.commands.output import table
from monitor.commands.soundness import Usable
from monitor.statistics.measures import DimensionMeasures, Evaluation, JointMeasures
from monitor.statistics.verdicts import Verdict

# Ten columns a name and nine cells of ten: 100.
_NAME, _CELL = 10, 10

# Levels whose coverage is shown: those of the grid nearest to them.
_SHOWN = (0.5, 0.9, 0.95)

# Verdicts that are said unless all are asked for.
MOST_VERDICTS = 24

_LEGEND = """\
calibrated: σ times lies within 0.71 to 1.41, a factor 2 in variance, and may be within 10 % of 1
rows     with ground truth; worth: independent rows that these are worth, as errors go with tracks
σ times  by which factor errors are larger than σ says (root of NEES): 1 is calibrated, above 1 is
         overconfident; 95 %: its interval, by tracks
RMSE     root of the mean squared error, mean σ beside it, in the unit of the dimension
ENCE     mean of |σ − RMSE| / σ over bins of alike σ; floor: what calibrated errors would read
QCE      mean of |share of errors within the central τ interval − τ| over τ and bins: 0 is best
in 95 %  share of errors within the 95 % interval of their σ"""


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts rows: those measured, the tracks these are of (None: unknown), and all others."""

    rows: int
    tracks: int | None
    without_truth: int
    refused: int


def verdict_lines(verdicts: Sequence[Verdict], *, full: bool) -> str:
    """Writes a sentence for each verdict; unless `full`, only so many."""
    return "\n".join(shortened([verdict.sentence for verdict in verdicts], full=full))


def shortened(sentences: Sequence[str], *, full: bool) -> list[str]:
    """Keeps so many sentences; all if `full`."""
    shown = list(sentences if full else sentences[:MOST_VERDICTS])
    if len(shown) < len(sentences):
        shown.append(f"… and {len(sentences) - len(shown)} more: --full says them all.")
    return shown


def mixture(by: Sequence[str], classes: Sequence[str]) -> str:
    """Says that the groups of --by mix classes."""
    asked = ",".join(by)
    return (
        f"Groups of --by {asked} mix classes ({', '.join(classes)}), which may differ: "
        f"--by class,{asked} tells them apart."
    )


def advice(fit: str, matched: Mapping[str, int] | None) -> str:
    """Says which command mends what verdicts found, or what to look at before.

    fit      words of the fit that does
    matched  as in Recording
    """
    if matched is not None and matched["missed"] > matched["matched"]:
        return "First see why most labels match no detection: the verdicts rest on the others."
    return (
        f"Do: calibration-monitor fit {fit}\n"
        "    It says whether the recalibrator is worth it, on tracks that it was not fitted on."
    )


def rows_line(counts: Counts, usable: Usable) -> str:
    """Says how many rows were measured, and why others were not."""
    tracks = "" if counts.tracks is None else f" of {counts.tracks:,} tracks"
    line = (
        f"{counts.rows:,} rows with ground truth{tracks}, {counts.without_truth:,} without, "
        f"{counts.refused:,} refused"
    )
    return f"{line}\n{usable.told()}" if usable.refused else line


def summary(groups: Mapping[str, Evaluation], verdicts: Sequence[Verdict]) -> str:
    """Writes a line for each group and dimension, with a legend."""
    heads = ("", "rows", "worth", "σ times", "95 %", "RMSE", "mean σ", "ENCE", "floor", "QCE")
    rows = []
    places = [(name, one) for name, group in groups.items() for one in group.dimensions]
    for verdict in sorted(verdicts, key=lambda one: places.index((one.group, one.dimension))):
        found = groups[verdict.group].dimensions[verdict.dimension]
        lower, upper = verdict.interval
        rows.append(
            (
                f"{verdict.group} {verdict.dimension}".strip(),
                f"{verdict.rows:,}",
                f"{verdict.worth:,.0f}",
                short(verdict.factor),
                f"{lower:.2f} to {upper:.2f}" if verdict.enough else "–",
                short(verdict.rmse),
                short(found.mean_sigma),
                short(found.ence),
                short(found.ence_noise_floor),
                short(found.qce),
                # A state may have no level as high as that.
                _share(float(np.interp(0.95, found.tau, found.picp_by_tau, right=math.nan))),
            )
        )
    lines = [table((*heads, "in 95 %"), rows), ""]
    for name, one in groups.items():
        joint = one.joint
        if joint.k == 1:
            continue
        words = f"{name}, all" if name else "all"
        lines.append(
            f"{words} {joint.k} dimensions together: NEES/K {joint.nees_over_k:.3f}, QCE "
            f"{joint.qce:.3f}, NLL {joint.nll:.3f}"
        )
        if not math.isnan(joint.mean_iou):
            lines[-1] += f", IoU {joint.mean_iou:.3f}, AUSE of 1 − IoU {joint.ause_iou:.3f}"
    return "\n".join([*lines, "", _LEGEND])


def all_measures(evaluation: Evaluation) -> str:
    """Writes all measures but those of every single τ and bin; what is not defined is a dash."""
    blocks = [_variances(evaluation), _likelihood(evaluation), _nees(evaluation)]
    return "\n\n".join([*blocks, _quantiles(evaluation), _order(evaluation)])


def _variances(evaluation: Evaluation) -> str:
    lines = [
        _line("variance", ["ENCE", "floor", "Gaussian", "κ", "n_eff", "UCE", "RMSE", "RMV", "bins"])
    ]
    outside = []
    for name, found in evaluation.dimensions.items():
        bins, floors = found.bins, (found.ence_noise_floor, found.ence_noise_floor_gaussian)
        cells = [*map(short, (found.ence, *floors, found.kurtosis)), f"{found.n_eff:.0f}"]
        cells += map(short, (found.uce, found.rmse, found.rmv))
        lines.append(_line(name, [*cells, str(np.count_nonzero(bins.n))]))
        if bins.below + bins.above:
            outside.append(f"{name}: {bins.below} rows below the range, {bins.above} above")
    return "\n".join(lines + outside)


def _likelihood(evaluation: Evaluation) -> str:
    heads = ("NLL", "pinball", "bias", "95 %: low", "high", "c_v", "sharpness", "σ factor", "MPIW")
    lines = [_line("errors", heads)]
    for name, found in evaluation.dimensions.items():
        values = [found.nll, found.pinball, found.bias, *found.bias_interval]
        values += [found.c_v, found.sharpness, found.std_scaling, found.mpiw]
        lines.append(_line(name, map(short, values)))
    lines.append(_line("joint", [short(evaluation.joint.nll)]))
    lowest, highest, mean = map(short, evaluation.joint.deviation)
    return "\n".join([*lines, f"σ_G: {lowest} to {highest}, mean {mean}"])


def _nees(evaluation: Evaluation) -> str:
    heads = ("mean", "median/χ²", "95 %: low", "high", "n_eff low", "high", "n", "n_eff")
    lines = [_line("NEES", heads)]
    for name, found in _with_joint(evaluation):
        intervals = (*found.nees_interval, *found.nees_interval_n_eff)
        cells = map(short, (found.nees_mean, found.nees_median_ratio, *intervals))
        lines.append(_line(name, [*cells, f"{found.n:.0f}", f"{found.n_eff:.0f}"]))
    joint = evaluation.joint
    return "\n".join([*lines, f"joint, {joint.k} dimensions: NEES/K {joint.nees_over_k:.5f}"])


def _quantiles(evaluation: Evaluation) -> str:
    nearest = (int(np.argmin(np.abs(evaluation.tau - level))) for level in _SHOWN)
    levels = list(dict.fromkeys(nearest))
    covered = (f"at {evaluation.tau[i]:.3g}" for i in levels)
    lines = [_line("coverage", ("QCE", "marginal", "area", *covered))]
    for name, found in _with_joint(evaluation):
        by_tau = found.coverage_by_tau if isinstance(found, JointMeasures) else found.picp_by_tau
        values = (found.qce, found.qce_marginal, found.calibration_area)
        lines.append(_line(name, [*map(short, values), *(_share(by_tau[i]) for i in levels)]))
    return "\n".join(lines)


def _order(evaluation: Evaluation) -> str:
    at = (4, 10, 16)
    heads = ("UCS", "CRPS", "AUSE", "relative", *(f"{5 * i} % out" for i in at))
    lines = [_line("order by σ", heads)]
    for name, found in _with_joint(evaluation):
        crps = math.nan if isinstance(found, JointMeasures) else found.crps
        values = (found.ucs, crps, found.ause, found.ause_relative)
        left = np.sqrt(found.rejection.mean_squared_error[list(at)])
        lines.append(_line(name, map(short, (*values, *left.tolist()))))
    return "\n".join([*lines, "x % out: RMSE of the rows left when those of the highest σ are out"])


def _with_joint(evaluation: Evaluation) -> list[tuple[str, DimensionMeasures | JointMeasures]]:
    return [*evaluation.dimensions.items(), ("joint", evaluation.joint)]


def short(value: float) -> str:
    if math.isnan(value):
        return "–"
    text = f"{value:.4g}"
    return text if len(text) < _CELL else f"{value:.2e}"


def _share(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"


def _line(name: str, cells: Iterable[str]) -> str:
    return f"{name[:_NAME]:<{_NAME}}" + "".join(f"{cell:>{_CELL}}" for cell in cells)
