"""calibration-monitor apply: recalibrates a recorded file."""

from __future__ import annotations

import argparse
from pathlib import Path

from monitor.edges.files import write_estimates
from monitor.verbs.models import apply_model, output_file, read_model
from monitor.verbs.recorded import add_selection, read_selected

EXAMPLE = """examples:
  calibration-monitor apply scaling.json drive.npz --rows 5000: --output recalibrated.npz"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    parser.add_argument("model", metavar="MODEL", help="recalibrator, from fit")
    parser.add_argument("file", metavar="FILE", help=".npz, .csv or .csv.gz")
    add_selection(parser)
    parser.add_argument(
        "--output", metavar="F.npz", required=True, help="arrays mean, and var or cov; gt if known"
    )


def run(options: argparse.Namespace) -> int:
    """0 when the file was written. Raises RecordingError, InvalidRecalibrator, CannotWrite."""
    if not options.output.endswith(".npz"):
        raise ValueError(f"--output {options.output}: the name must end in .npz.")
    selection = read_model(options.model)
    recording = apply_model(selection, read_selected(options.file, options))
    with output_file(Path(options.output)) as path:
        write_estimates(path, recording)
    print(f"{recording.mean.shape[0]} rows by {selection.version}, written to {options.output}")
    return 0
