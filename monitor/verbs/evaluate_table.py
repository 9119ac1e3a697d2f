"""An evaluation as people read it: one block a question, at most 100 columns wide."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from monitor.calibration.evaluation import DimensionMeasures, Evaluation, JointMeasures

# Ten columns a name and nine cells of ten: 100.
_NAME, _CELL = 10, 10
# Levels whose coverage is shown: those of the grid nearest to them.
_SHOWN = (0.5, 0.9, 0.95)


def table(evaluation: Evaluation, recalibrated: str = "") -> str:
    """All measures but those of every single τ and bin; what is not defined is a dash.

    recalibrated  what was done to the Gaussians before, to stand beneath the number of rows
    """
    rows = "\n".join(filter(None, (_rows(evaluation), recalibrated)))
    blocks = [rows, _variances(evaluation), _likelihood(evaluation)]
    blocks += [_nees(evaluation), _quantiles(evaluation)]
    return "\n\n".join(blocks)


def _rows(evaluation: Evaluation) -> str:
    tracks = "" if evaluation.tracks is None else f" of {evaluation.tracks} tracks"
    return (
        f"{evaluation.rows} rows with ground truth{tracks}, {evaluation.without_truth} without, "
        f"{evaluation.refused} refused"
    )


def _variances(evaluation: Evaluation) -> str:
    heads = ("ENCE", "floor", "Gaussian", "κ", "n_eff", "UCE", "RMSE", "RMV", "bins")
    lines = [_line("variance", heads)]
    for name, found in evaluation.dimensions.items():
        against = (found.ence, found.ence_noise_floor, found.ence_noise_floor_gaussian)
        cells = [_short(value) for value in (*against, found.kurtosis)]
        cells += [_count(found.n_eff), _short(found.uce), _short(found.rmse), _short(found.rmv)]
        lines.append(_line(name, [*cells, str(np.count_nonzero(found.bins.n))]))
    beyond = [_beyond(name, found) for name, found in evaluation.dimensions.items()]
    return "\n".join(lines + [text for text in beyond if text])


def _beyond(name: str, found: DimensionMeasures) -> str:
    if found.bins.below + found.bins.above == 0:
        return ""
    return f"{name}: {found.bins.below} rows below the range, {found.bins.above} above"


def _likelihood(evaluation: Evaluation) -> str:
    heads = ("NLL", "pinball", "bias", "c_v", "sharpness", "σ factor", "MPIW")
    lines = [_line("errors", heads)]
    for name, found in evaluation.dimensions.items():
        values = [found.nll, found.pinball, found.bias, found.c_v, found.sharpness]
        values += [found.std_scaling, found.mpiw]
        lines.append(_line(name, map(_short, values)))
    joint = evaluation.joint
    lines.append(_line("joint", [_short(joint.nll)]))
    lowest, highest, mean = map(_short, joint.deviation)
    return "\n".join([*lines, f"σ_G: {lowest} to {highest}, mean {mean}"])


def _nees(evaluation: Evaluation) -> str:
    heads = ("mean", "median/χ²", "95 %: low", "high", "n_eff low", "high", "n", "n_eff")
    lines = [_line("NEES", heads)]
    for name, found in _with_joint(evaluation):
        values = [found.nees_mean, found.nees_median_ratio, *found.nees_interval]
        values += found.nees_interval_n_eff
        cells = [*map(_short, values), _count(found.n), _count(found.n_eff)]
        lines.append(_line(name, cells))
    joint = evaluation.joint
    lines.append(f"joint, {joint.k} dimensions: NEES/K {joint.nees_over_k:.5f}")
    return "\n".join(lines)


def _quantiles(evaluation: Evaluation) -> str:
    levels = [int(np.argmin(np.abs(evaluation.tau - level))) for level in _SHOWN]
    levels = list(dict.fromkeys(levels))
    covered = tuple(f"at {evaluation.tau[i]:.3g}" for i in levels)
    heads = ("QCE", "marginal", "area", *covered)
    lines = [_line("coverage", heads)]
    for name, found in _with_joint(evaluation):
        by_tau = found.coverage_by_tau if isinstance(found, JointMeasures) else found.picp_by_tau
        values = (found.qce, found.qce_marginal, found.calibration_area)
        lines.append(_line(name, [*map(_short, values), *(_share(by_tau[i]) for i in levels)]))
    return "\n".join(lines)


def _with_joint(evaluation: Evaluation) -> list[tuple[str, DimensionMeasures | JointMeasures]]:
    return [*evaluation.dimensions.items(), ("joint", evaluation.joint)]


def _short(value: float) -> str:
    if math.isnan(value):
        return "–"
    text = f"{value:.4g}"
    return text if len(text) < _CELL else f"{value:.2e}"


def _share(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"


def _count(value: float) -> str:
    return f"{value:.0f}"


def _line(name: str, cells: Iterable[str]) -> str:
    return f"{name[:_NAME]:<{_NAME}}" + "".join(f"{cell:>{_CELL}}" for cell in cells)
