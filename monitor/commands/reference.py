"""calibration-monitor reference: learns from recorded drives what errors are while healthy."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

from monitor.commands.apply import read_model
from monitor.commands.options import add_value, table, write_output
from monitor.commands.recordings import add_selection, read_selected
from monitor.commands.replay_drift import learn_references, learning_settings
from monitor.drift.bets import Stage
from monitor.drift.reference import Reference
from monitor.recalibration.selection import Selection
from monitor.store.documents import reference_text

EXAMPLE = """examples:
  calibration-monitor reference drive.csv.gz --where role=fit --class Car --output usual.json
  calibration-monitor reference drive.csv.gz --recalibrator car.json --output usual.json

Learns from the rows that have truth, by class, each sequence a stream of its own. The file is for
replay --reference, and for [drift] reference of a sidecar whose slices are by class.
With --recalibrator it also says what is usual once that one is in force: give rows that it was not
fitted on, since those look better than what will come."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the verb."""
    parser.add_argument("files", metavar="FILE", nargs="+", help=".npz, .csv or .csv.gz")
    add_selection(parser)
    parser.add_argument("--recalibrator", metavar="FILE", help="that will be in force")
    text = (
        "TOML file of a sidecar, whose [drift] says how much is enough (reference_tracks, "
        "reference_detections) and when tracks end (track_idle_seconds)"
    )
    add_value(parser, "--config", "F", text)
    parser.add_argument("--output", metavar="F", required=True, help="file to write")


def run(options: argparse.Namespace) -> int:
    """0 when the file was written.

    Raises RecordingError, InvalidRecalibrator, InvalidConfiguration, TooLittleToLearn, CannotWrite.
    """
    selection: Selection | None = None
    if options.recalibrator is not None:
        selection = read_model(options.recalibrator)
    settings = learning_settings(options)
    recordings = [read_selected(path, options) for path in options.files]
    found = learn_references(recordings, selection, settings)
    write_output(options.output, reference_text(found.references))
    for remark in found.remarks:
        print(f"calibration-monitor reference: {remark}", file=sys.stderr)
    print(reference_table(found.references))
    return 0


def reference_table(references: Mapping[str, Mapping[Stage, Reference]]) -> str:
    """Writes a line for each class and stage."""
    heads = ("slice", "stage", "detections", "NEES/K", "worth", "tracks", "level", "τ", "ω")
    rows = []
    for name, stages in references.items():
        for stage, known in sorted(stages.items()):
            levels = known.levels
            of_tracks: tuple[str, ...] = ("0", "-", "-", "-")
            if levels is not None:
                deviations = (levels.mean, levels.between, levels.within)
                of_tracks = (str(levels.tracks), *(f"{value:.2f}" for value in deviations))
            counts = (str(known.detections), f"{known.nees_ratio:.3f}", f"{known.tempering:.2f}")
            rows.append((name, stage.label, *counts, *of_tracks))
    return table(heads, rows)
