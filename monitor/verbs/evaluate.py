"""calibration-monitor evaluate: measures of calibration of a recorded file."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator

from monitor.calibration.class_evaluation import ClassEvaluation
from monitor.calibration.evaluation_json import as_json, class_as_json
from monitor.edges.recorded_classes import ClassRecording, read_class_recording, require_labels
from monitor.recalibration.any_selection import AnySelection
from monitor.recalibration.classes.class_selection import ClassSelection
from monitor.recalibration.selection import Selection
from monitor.verbs.evaluate_classes import class_table, evaluate_classes
from monitor.verbs.evaluate_engines import MICRO_BINS, Measured, measured
from monitor.verbs.evaluate_table import table
from monitor.verbs.model_description import class_model_as_json, measured_under, model_as_json
from monitor.verbs.models import check_kind, read_any_model
from monitor.verbs.option_values import confidence_levels, number_of
from monitor.verbs.recalibrated_classes import recalibrate_classes
from monitor.verbs.recorded import add_selection, given, refuse_options_of_gaussians

EXAMPLE = """examples:
  calibration-monitor evaluate drive.csv.gz --dimensions x,y,z --class Car
  calibration-monitor evaluate drive.npz --binning equal-width --range 0:10 --json
  calibration-monitor evaluate drive.npz --rows 5000: --model scaling.json
  calibration-monitor evaluate classes.npz --rows 10000: --model temperature.json
  calibration-monitor evaluate today.npz --binning frozen --edges-from reference.npz
  calibration-monitor evaluate classes.npz --class-binning equal-count --class-bins 15"""

# Options that mean something to Gaussians only, and to class probabilities only; by destination.
_OF_GAUSSIANS = {
    "binning": "--binning",
    "bins": "--bins",
    "range": "--range",
    "edges_from": "--edges-from",
    "min_bin_rows": "--min-bin-rows",
    "tau": "--tau",
    "micro_bins": "--micro-bins",
}
_OF_CLASSES = {"class_binning": "--class-binning", "class_bins": "--class-bins"}


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
    parser.add_argument(
        "--binning",
        choices=("equal-count", "equal-width", "frozen"),
        default="equal-count",
        help="equal-count as Levi et al., equal-width as netcal, frozen: --edges-from",
    )
    parser.add_argument(
        "--bins",
        metavar="N",
        type=number_of("bins", 100_000),
        default=20,
        help="reliability bins of Gaussians (default 20)",
    )
    parser.add_argument(
        "--range",
        metavar="data|LO:HI",
        type=_range,
        help="of equal-width bins, in standard deviations (default data)",
    )
    parser.add_argument(
        "--edges-from",
        metavar="FILE",
        help="reference detections, selected alike, whose equal-count bins are kept; open-ended",
    )
    parser.add_argument(
        "--min-bin-rows",
        metavar="N",
        type=number_of("rows", 1_000_000),
        default=1,
        help="bins with fewer rows count nowhere but in the N of UCE (default 1)",
    )
    parser.add_argument(
        "--tau",
        metavar="T,T",
        type=confidence_levels,
        help="confidence levels (default 0.05,0.1,…,0.95)",
    )
    parser.add_argument(
        "--micro-bins",
        metavar="N",
        type=number_of("micro-bins", 4096),
        help=f"per octave, of --engine streaming (default {MICRO_BINS}; the sidecar keeps 32)",
    )
    parser.add_argument(
        "--class-binning",
        choices=("equal-width", "equal-count"),
        default="equal-width",
        help="of class probabilities; equal-count with --engine exact only (default equal-width)",
    )
    parser.add_argument(
        "--class-bins",
        metavar="N",
        type=number_of("bins", 100_000),
        default=20,
        help="of class probabilities; with --engine streaming a divisor of 60 (default 20)",
    )
    parser.add_argument("--model", metavar="M", help="recalibrator to apply first, from fit")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    # None until the file has been seen: only so can it be said that an option was given in vain.
    defaults = {name: parser.get_default(name) for name in _OF_GAUSSIANS | _OF_CLASSES}
    parser.set_defaults(**dict.fromkeys(defaults), defaults=defaults)


def run(options: argparse.Namespace) -> int:
    """0 when the measures were printed.

    Raises RecordingError, EvaluationError, InvalidRecalibrator.
    """
    _check(options)
    model = None if options.model is None else read_any_model(options.model)
    recording = read_class_recording(options.file, options.rows)
    only_classes = recording is not None and not recording.gaussians
    if not only_classes and (options.classes or options.where):
        # Columns choose detections, and nobody says which probabilities are theirs.
        recording = None
    _check_meaning(options, recording)
    if model is not None:
        check_kind(model, options.model, options.file, recording)
    if recording is not None:
        require_labels(options.file, recording)
    for name, value in options.defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    classes = gaussians = None
    if recording is not None:
        if isinstance(model, ClassSelection):
            recording = recalibrate_classes(model, recording)
        classes = _of_classes(recording, options)
    if not only_classes:
        gaussians = measured(options, model if isinstance(model, Selection) else None)
    if options.json:
        print(json.dumps(_document(gaussians, classes, model)))
    else:
        print("\n\n".join(_tables(gaussians, classes, model)))
    return 0


def _of_classes(recording: ClassRecording, options: argparse.Namespace) -> ClassEvaluation:
    return evaluate_classes(
        recording,
        engine=options.engine,
        bins=options.class_bins,
        binning=options.class_binning,
    )


def _document(
    gaussians: Measured | None,
    classes: ClassEvaluation | None,
    model: AnySelection | None,
) -> dict[str, object]:
    """One object; a file without Gaussians has neither dimensions nor a joint block."""
    found: dict[str, object] = {}
    if gaussians:
        found = as_json(gaussians.evaluation)
    elif classes:
        found = {
            "rows": classes.n,
            "rows_without_truth": classes.without_truth,
            "rows_refused": classes.refused,
            "dimensions": {},
            "joint": None,
        }
    if isinstance(model, ClassSelection):
        found["model"] = class_model_as_json(model)
    elif gaussians and gaussians.recalibrated:
        found["model"] = model_as_json(gaussians.recalibrated)
    return found | ({"classification": class_as_json(classes)} if classes else {})


def _tables(
    gaussians: Measured | None,
    classes: ClassEvaluation | None,
    model: AnySelection | None,
) -> Iterator[str]:
    if gaussians:
        made = gaussians.recalibrated
        yield table(gaussians.evaluation, "" if made is None else measured_under(made))
    if classes:
        said = f"recalibrated by {model.version}\n" if isinstance(model, ClassSelection) else ""
        yield said + class_table(classes)


def _check(options: argparse.Namespace) -> None:
    if options.range is not None and options.binning != "equal-width":
        raise ValueError("--range is for --binning equal-width; leave it out.")
    if options.edges_from is not None and options.binning != "frozen":
        raise ValueError("--edges-from is for --binning frozen; leave it out.")
    if options.edges_from is None and options.binning == "frozen":
        raise ValueError("--binning frozen needs a reference: give --edges-from FILE.")
    if options.micro_bins is not None and options.engine != "streaming":
        raise ValueError("--micro-bins is for --engine streaming; leave it out.")


def _check_meaning(options: argparse.Namespace, recording: ClassRecording | None) -> None:
    """Refuses what was given and would change nothing, since the file has no such thing."""
    if recording is None:
        in_vain = given(options, _OF_CLASSES)
        if in_vain:
            raise ValueError(
                f"{', '.join(in_vain)}: no class probabilities of {options.file} are evaluated. "
                "Leave it out, or give a file with prob and label, without --class and --where."
            )
    elif not recording.gaussians:
        refuse_options_of_gaussians(
            options, _OF_GAUSSIANS, f"{options.file} has class probabilities only"
        )


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
