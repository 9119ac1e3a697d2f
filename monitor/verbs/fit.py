"""calibration-monitor fit: fits a recalibrator to a recorded file."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from monitor.calibration.binning import Binning
from monitor.calibration.detections import Limits
from monitor.calibration.statistics import StageStatistics
from monitor.edges.files import Recording
from monitor.recalibration import covariance_scaling, variance_scaling
from monitor.recalibration.covariance_scaling import FullInput
from monitor.recalibration.identity import Identity
from monitor.recalibration.recalibrator import Recalibrator, UnfitData
from monitor.recalibration.scale import Objective
from monitor.recalibration.selection import METHODS, Selection
from monitor.verbs.models import output_file, sound_statistics
from monitor.verbs.recorded import add_selection, read_selected

EXAMPLE = """examples:
  calibration-monitor fit drive.csv.gz --method variance-scaling --class Car --output car.json
  calibration-monitor fit drive.csv.gz --method covariance-scaling --by-class --output all.json
  calibration-monitor fit drive.npz --method covariance-scaling --rows 0:5000 --output first.json"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    parser.add_argument("file", metavar="FILE", help=".npz, .csv or .csv.gz with ground truth")
    add_selection(parser)
    parser.add_argument("--method", choices=tuple(METHODS), required=True)
    parser.add_argument("--output", metavar="F", required=True, help="JSON file to write")
    parser.add_argument(
        "--by-class",
        action="store_true",
        help="one recalibrator for each class, and one of all rows as the fallback",
    )
    parser.add_argument(
        "--objective",
        choices=tuple(Objective),
        type=Objective,
        default=Objective.MEAN,
        help="what the scale satisfies on heavy tails (default mean)",
    )
    parser.add_argument(
        "--full-input",
        choices=tuple(FullInput),
        type=FullInput,
        default=FullInput.SCALE,
        help="covariance-scaling of full covariances: scale keeps the detector's correlations, "
        "whiten corrects them (default scale)",
    )


def run(options: argparse.Namespace) -> int:
    """0 when the model was written. Raises RecordingError, UnfitData, CannotWrite."""
    recording = read_selected(options.file, options)
    statistics = _statistics(recording)
    by_slice: dict[str, Recalibrator] = {}
    if options.by_class:
        for i, name in enumerate(recording.classes):
            rows = np.flatnonzero(recording.class_index == i)
            try:
                by_slice[name] = _fit(_statistics(_rows(recording, rows)), options)
            except UnfitData as error:
                print(f"class {name} is left to the fallback: {error}")
    selection = Selection(
        recording.space.names,
        _fit(statistics, options),
        by_slice,
        {"file": Path(options.file).name, "rows": statistics.n, "classes": list(recording.classes)},
    )
    with output_file(Path(options.output)) as path:
        path.write_text(selection.to_json(), encoding="utf-8")
    print(f"{selection.version} fitted on {statistics.n} rows, written to {options.output}")
    return 0


def _statistics(recording: Recording) -> StageStatistics:
    return sound_statistics(recording, Binning(), Limits())[0]


def _rows(recording: Recording, rows: np.ndarray) -> Recording:
    return replace(
        recording,
        mean=recording.mean[rows],
        covariance=recording.covariance[rows],
        truth=recording.truth[rows],
    )


def _fit(statistics: StageStatistics, options: argparse.Namespace) -> Recalibrator:
    match options.method:
        case variance_scaling.VarianceScaling.method:
            return variance_scaling.fit(statistics, options.objective)
        case covariance_scaling.CovarianceScaling.method:
            return covariance_scaling.fit(statistics, options.objective, options.full_input)
        case Identity.method:
            return Identity()
        case _:
            raise ValueError(f"--method {options.method}: it cannot be fitted yet.")
