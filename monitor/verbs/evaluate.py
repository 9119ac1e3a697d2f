"""calibration-monitor evaluate: measures of calibration of a recorded file."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace

import numpy as np

from monitor.calibration.binning import Binning
from monitor.calibration.detections import Limits
from monitor.calibration.evaluation import TAU, Evaluation, EvaluationError, as_json
from monitor.calibration.exact import evaluate_rows
from monitor.calibration.reading import WidthRange, read
from monitor.edges.files import Recording
from monitor.verbs.models import apply_model, read_model, sound_statistics
from monitor.verbs.recorded import add_selection, read_selected

EXAMPLE = """examples:
  calibration-monitor evaluate drive.csv.gz --dimensions x,y,z --class Car
  calibration-monitor evaluate drive.npz --binning equal-width --range 0:10 --json
  calibration-monitor evaluate drive.npz --rows 5000: --model scaling.json"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    parser.add_argument("file", metavar="FILE", help=".npz, .csv or .csv.gz")
    add_selection(parser)
    parser.add_argument(
        "--engine",
        choices=("exact", "streaming"),
        default="exact",
        help="exact: from the rows; streaming: as the sidecar, from micro-bins (default exact)",
    )
    parser.add_argument("--binning", choices=("equal-count", "equal-width"), default="equal-count")
    parser.add_argument(
        "--range",
        metavar="data|LO:HI",
        type=_range,
        help="of equal-width bins, in standard deviations (default data)",
    )
    parser.add_argument("--bins", metavar="N", type=_count, default=20)
    parser.add_argument("--model", metavar="M", help="recalibrator to apply first, from fit")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """0 when the measures were printed.

    Raises RecordingError, EvaluationError, InvalidRecalibrator.
    """
    if options.range is not None and options.binning != "equal-width":
        raise ValueError("--range is for --binning equal-width; leave it out.")
    recording = read_selected(options.file, options)
    if options.model:
        recording = apply_model(read_model(options.model), recording)
    evaluation = (_streamed if options.engine == "streaming" else _exact)(recording, options)
    if options.json:
        print(json.dumps(as_json(evaluation)))
    else:
        print(_table(evaluation))
    return 0


def _exact(recording: Recording, options: argparse.Namespace) -> Evaluation:
    return evaluate_rows(
        recording.space,
        recording.mean,
        recording.covariance,
        recording.truth,
        bins=options.bins,
        binning=options.binning,
        value_range=options.range,
    )


def _streamed(recording: Recording, options: argparse.Namespace) -> Evaluation:
    binning = Binning(tau=tuple(TAU.tolist()))
    statistics, refused, without = sound_statistics(recording, binning, Limits())
    if statistics.n == 0:
        raise EvaluationError(
            f"nothing to evaluate: of {recording.mean.shape[0]} rows, {without} have no truth and "
            f"{refused} are no usable Gaussians. Select rows with ground truth."
        )
    width = WidthRange(options.range) if options.binning == "equal-width" else None
    evaluation = read(statistics, options.bins, width)
    return replace(evaluation, refused=refused, without_truth=without)


def _range(text: str) -> tuple[float, float] | None:
    if text == "data":
        return None
    lower, sign, upper = text.partition(":")
    try:
        ends = float(lower), float(upper)
    except ValueError:
        sign = ""
        ends = 0.0, 0.0
    if not sign or not 0 <= ends[0] < ends[1] < math.inf:
        raise argparse.ArgumentTypeError(
            f"'{text}': expected data or LO:HI with 0 <= LO < HI, such as 0:10"
        )
    return ends


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 100_000:
        raise argparse.ArgumentTypeError(f"'{text}': expected a number of bins, from 1")
    return int(text)


def _table(evaluation: Evaluation) -> str:
    columns = ("ence", "ence_noise_floor", "uce", "qce", "nees_mean", "nll", "bias", "std_scaling")
    heads = ("dimension", "ENCE", "floor", "UCE", "QCE", "NEES", "NLL", "bias", "σ factor")
    lines = [
        f"{evaluation.rows} rows with ground truth, {evaluation.without_truth} without, "
        f"{evaluation.refused} refused",
        "".join(f"{head:>12}" for head in heads),
    ]
    for name, found in evaluation.dimensions.items():
        values = (f"{getattr(found, column):12.4g}" for column in columns)
        lines.append(f"{name:>12}" + "".join(values))
    joint = evaluation.joint
    lines.append(
        f"joint, {joint.k} dimensions: NEES/K {joint.nees_over_k:.5f}, "
        f"median ratio {joint.nees_median_ratio:.4f}, QCE {joint.qce:.4f}, NLL {joint.nll:.4f}"
    )
    levels = [int(np.argmin(np.abs(evaluation.tau - level))) for level in (0.5, 0.9, 0.95)]
    lines.append(
        "coverage: "
        + ", ".join(f"{joint.coverage_by_tau[i]:.3f} at {evaluation.tau[i]:.2f}" for i in levels)
    )
    return "\n".join(lines)
