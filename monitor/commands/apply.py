"""calibration-monitor apply: recalibrates a recorded file.

The recalibrator comes from a file; nothing is fitted here.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection
from pathlib import Path

import numpy as np

from monitor.commands.models import check_kind, read_any_model
from monitor.commands.options import add_value, confidence_levels, output_file
from monitor.commands.recalibrated import (
    recalibrate_classes,
    recalibrate_gaussians,
    rejected_rows,
    stands_for,
)
from monitor.commands.recordings import add_selection, read_selected, refuse_options_of_gaussians
from monitor.frames.space import BoolArray
from monitor.recalibration.classes.class_selection import ClassSelection
from monitor.recalibration.recalibrator import Output
from monitor.recalibration.selection import Selection
from monitor.statistics.evaluation import TAU
from monitor.store.class_recordings import ClassRecording, read_class_recording, write_classes
from monitor.store.recordings import write_estimates

EXAMPLE = """examples:
  calibration-monitor apply scaling.json drive.npz --rows 5000: --output recalibrated.npz
  calibration-monitor apply beta.json drive.npz --tau 0.05,0.5,0.95 --output quantiles.npz"""

# Options of the verb that mean something to Gaussians only, by destination.
_OF_GAUSSIANS = ("quantiles", "tau")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the verb."""
    parser.add_argument("model", metavar="MODEL", help="recalibrator, from fit")
    parser.add_argument("file", metavar="FILE", help=".npz, .csv or .csv.gz; truth is not needed")
    add_selection(parser)
    parser.add_argument(
        "--output",
        metavar="F.npz",
        required=True,
        help="arrays mean, var or cov, and gt, or of class probabilities prob and label; with "
        "either class, seq, frame, t, stamp_ns, score, track and ignore where the file has them",
    )
    parser.add_argument(
        "--quantiles",
        action="store_true",
        default=None,
        help="write quantiles [N,K,T] at levels tau [T] also where they are those of Gaussians",
    )
    text = "write quantiles at these levels (default 0.05,0.1,…,0.95)"
    add_value(parser, "--tau", "T,T", text, confidence_levels)


def run(options: argparse.Namespace) -> int:
    """0 when the file was written.

    Raises RecordingError, InvalidRecalibrator, CannotWrite.
    """
    if not options.output.endswith(".npz"):
        raise ValueError(f"--output {options.output}: the name must end in .npz.")
    model = read_any_model(options.model)
    recording = read_class_recording(options.file, options.rows)
    check_kind(model, options.model, options.file, recording)
    if isinstance(model, Selection):
        said = _apply_to_gaussians(model, options)
    else:
        assert recording is not None
        said = _apply_to_classes(model, recording, options)
    print("\n".join(said))
    return 0


def _apply_to_gaussians(selection: Selection, options: argparse.Namespace) -> list[str]:
    """Writes the recalibrated Gaussians; returns the lines to print."""
    made = recalibrate_gaussians(selection, read_selected(options.file, options))
    tau = TAU if options.tau is None else options.tau
    asked = options.quantiles or options.tau is not None or made.output is not Output.GAUSSIAN
    quantiles = made.quantiles(tau) if asked else None
    rejected = made.rejected
    with output_file(Path(options.output)) as path:
        written = write_estimates(path, made.recording, quantiles, rejected)
    said = [
        f"{made.recording.mean.shape[0]} rows by {selection.version}, written to {options.output}",
        stands_for(made),
    ]
    if asked:
        said.append(f"quantiles at {tau.size} levels: of the method's own distribution")
    return [*said, *_rejected(rejected), *_left_out(made.recording.others, written)]


def _apply_to_classes(
    selection: ClassSelection, recording: ClassRecording, options: argparse.Namespace
) -> list[str]:
    refuse_options_of_gaussians(
        options, _OF_GAUSSIANS, f"{options.model} recalibrates class probabilities"
    )
    made = recalibrate_classes(selection, recording)
    rejected = rejected_rows(selection, made)
    with output_file(Path(options.output)) as path:
        written = write_classes(path, made, rejected)
    return [
        f"{made.label.size} rows by {selection.version}, written to {options.output}",
        "prob: recalibrated probabilities, each opinion by itself",
        *_rejected(rejected),
        *_left_out(made.names, written),
    ]


def _rejected(rows: BoolArray | None) -> list[str]:
    if rows is None:
        return []
    return [f"rejected: {np.count_nonzero(rows)} rows are too uncertain, and written like the rest"]


def _left_out(there: Collection[str], written: Collection[str]) -> list[str]:
    """Names the arrays that were not written; an array gt_id is written as track."""
    missing = [name for name in there if name not in written]
    if "track" in written:
        missing = [name for name in missing if name != "gt_id"]
    return [f"of the file not in it: {', '.join(missing)}"] if missing else []
