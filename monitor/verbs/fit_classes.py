"""The part of `fit` for class probabilities."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from monitor.calibration.space import FloatArray, IntArray
from monitor.edges.recorded_classes import ClassRecording, read_class_recording, require_labels
from monitor.recalibration.basis import Basis
from monitor.recalibration.classes.class_fitting import fit_classes
from monitor.recalibration.classes.class_rows import ClassRows
from monitor.recalibration.classes.class_selection import ClassSelection
from monitor.recalibration.recalibrator import UnfitData
from monitor.recalibration.rejection import (
    RejectedBy,
    Rejection,
    fit_rejection,
    normalised_entropy,
)
from monitor.verbs.recalibrated_classes import opinions_of
from monitor.verbs.recorded import refuse_options_of_gaussians
from monitor.verbs.truth import Times, numbered_tracks

# Options of the verb that divide Gaussians or draw their fit, by destination.
_OF_GAUSSIANS = {
    "by": "--by",
    "range_edges": "--range-edges",
    "fewest_tracks": "--fewest-tracks",
    "previous": "--previous",
    "prior_strength": "--prior-strength",
}


def fit_class_probabilities(
    options: argparse.Namespace,
) -> tuple[ClassSelection, Basis, list[str]]:
    """What the options ask for, what it rests on, and lines on what is not checked at serving.

    Raises RecordingError, UnfitData, ValueError.
    """
    refuse_options_of_gaussians(
        options, _OF_GAUSSIANS, f"{options.method} is fitted to class probabilities"
    )
    recording = read_class_recording(options.file, options.rows)
    if recording is None:
        raise UnfitData(
            f"{options.file} has no class probabilities, which {options.method} is fitted to. "
            "Give an .npz file with prob or logits, and label."
        )
    require_labels(options.file, recording)
    rows, kept = _rows(recording)
    if rows.n == 0:
        raise UnfitData(
            f"cannot fit on 0 detections with a true class: of {recording.label.size} rows, "
            f"{np.count_nonzero(recording.label < 0)} have none, and the others no usable "
            "probabilities. Widen the selection of rows."
        )
    fitted = fit_classes(options.method, rows)
    times = Times(recording.stamp_ns, recording.time_s)
    basis = Basis(rows.n, rows.tracks, rows.n * rows.weight, times.period(kept))
    rejection = None
    if options.reject_above_error is not None:
        opinions = fitted.apply(rows.log_probabilities)
        rejection = _rejection(opinions.mean(axis=1), rows, options.reject_above_error)
    fitted_on = {"file": Path(options.file).name, "rows": rows.n, "basis": basis.parameters()}
    selection = ClassSelection(recording.class_names, fitted, rejection, fitted_on)
    return selection, basis, _unchecked(selection, options.file)


def _unchecked(selection: ClassSelection, file: str) -> list[str]:
    if selection.classes or selection.recalibrator.classes is None:
        return []
    return [
        f"{file} has no class_names: {selection.method} tells classes apart by their position, and "
        "whether\na detector has them in the same order is not checked when it is served"
    ]


def _rows(recording: ClassRecording) -> tuple[ClassRows, IntArray]:
    """The rows that can be fitted on, and their numbers in the recording."""
    log_probabilities, usable = opinions_of(recording)
    classes = log_probabilities.shape[2]
    kept = np.flatnonzero(usable & (recording.label >= 0) & (recording.label < classes))
    sequence = recording.sequence_index
    tracks = None
    if sequence is not None:
        tracks = numbered_tracks(sequence, recording.track)
    track = None if tracks is None else tracks[kept]
    return ClassRows(log_probabilities[kept], recording.label[kept], track), kept


def _rejection(probabilities: FloatArray, rows: ClassRows, target: float) -> Rejection:
    wrong = (probabilities.argmax(axis=1) != rows.label).astype(np.float64)
    entropy = normalised_entropy(probabilities)
    return fit_rejection(entropy, wrong, target, RejectedBy.ENTROPY, rows.track)
