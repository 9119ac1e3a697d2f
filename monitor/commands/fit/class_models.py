"""Fits class probabilities of a recorded file: a single recalibrator of all rows."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TypeAlias

import numpy as np

from monitor.commands.apply import opinions_of
from monitor.commands.held_out import HeldOut
from monitor.commands.output import working
from monitor.commands.recordings import numbered_tracks, refuse_options_of_gaussians
from monitor.frames.space import FloatArray, IntArray
from monitor.recalibration.class_probabilities import ClassRows
from monitor.recalibration.fitting import CLASS_FITS
from monitor.recalibration.recalibrator import Basis, Clock, Period, UnfitData
from monitor.recalibration.rejection import RejectedBy, fit_rejection, normalised_entropy
from monitor.recalibration.selection import AnySelection, ClassSelection
from monitor.store.class_recordings import ClassRecording, read_class_recording, require_labels
from monitor.store.recordings import Recording

# Options of the verb that divide Gaussians or draw their fit, by destination.
_OF_GAUSSIANS = ("by", "range_edges", "fewest_tracks", "previous", "prior_strength")

# A model, what it rests on, remarks to print, and what it does to tracks that it has not seen.
Fitted: TypeAlias = tuple[AnySelection, Basis | None, list[str], tuple[HeldOut, ...]]


def fit_class_probabilities(options: argparse.Namespace) -> Fitted:
    """Fits class probabilities.

    Raises RecordingError, UnfitData, ValueError.
    """
    refuse_options_of_gaussians(
        options, _OF_GAUSSIANS, f"{options.method} is fitted to class probabilities"
    )
    if options.proven_only:
        raise ValueError("--proven-only: it is for Gaussians. Leave it out.")
    recording = read_class_recording(options.file, options.rows, options.map)
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
    with working("fitting"):
        fitted = CLASS_FITS[options.method](rows)
    basis = Basis(rows.n, rows.tracks, rows.n * rows.weight, *period_of(recording, kept))
    rejection = None
    if options.reject_above_error is not None:
        made = fitted.apply(rows.log_probabilities).mean(axis=1)
        wrong = (made.argmax(axis=1) != rows.label).astype(np.float64)
        entropy, target = normalised_entropy(made), options.reject_above_error
        rejection = fit_rejection(entropy, wrong, target, RejectedBy.ENTROPY, rows.track)
    fitted_on = {"file": Path(options.file).name, "rows": rows.n, "basis": basis.parameters()}
    selection = ClassSelection(recording.class_names, fitted, rejection, fitted_on)
    if selection.classes or fitted.classes is None:
        return selection, basis, [], ()
    unchecked = (
        f"{options.file} has no class_names: {selection.method} tells classes apart by their "
        "position, and whether\na detector has them in the same order is not checked when it is "
        "served"
    )
    return selection, basis, [unchecked], ()


def _rows(recording: ClassRecording) -> tuple[ClassRows, IntArray]:
    """Finds the rows that can be fitted on, and their numbers in the recording."""
    log_probabilities, usable = opinions_of(recording)
    classes = log_probabilities.shape[2]
    kept = np.flatnonzero(usable & (recording.label >= 0) & (recording.label < classes))
    track = numbered_tracks(recording, kept)
    return ClassRows(log_probabilities[kept], recording.label[kept], track), kept


def period_of(recording: Recording | ClassRecording, rows: IntArray) -> Period:
    """Period from the first to the last of some rows; of None where they have no times."""
    clock = Clock.SECONDS
    times: FloatArray | IntArray | None = recording.time_s
    if recording.stamp_ns is not None:  # preferred: stamps of all files share one zero
        clock, times = Clock.STAMP, recording.stamp_ns
    if times is None or not rows.size or not np.isfinite(times[rows]).all():
        return None, None, None
    return times[rows].min().item(), times[rows].max().item(), clock
