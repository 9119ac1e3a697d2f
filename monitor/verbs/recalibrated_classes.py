"""Recorded class probabilities and what a recalibrator makes of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from monitor.calibration.class_opinions import BEYOND, OFF_ONE
from monitor.calibration.space import BoolArray, FloatArray
from monitor.edges.recorded_classes import ClassRecording
from monitor.recalibration.classes.class_recalibrator import from_logits, from_probabilities
from monitor.recalibration.classes.class_selection import ClassSelection
from monitor.recalibration.recalibrator import InvalidRecalibrator
from monitor.recalibration.rejection import normalised_entropy


def opinions_of(recording: ClassRecording) -> tuple[FloatArray, BoolArray]:
    """(N, M, C) log-probabilities, of the logits where there are some; (N,) which can be used.

    By the rules for what is sent. A logit of −infinity is a probability of 0; NaN, +infinity and
    nothing but −infinity have no softmax. Probabilities lie in [0, 1] to BEYOND, and add up
    to 1 to OFF_ONE.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        if recording.logits is not None:
            logits = _each_opinion(recording.logits)
            # The highest of C logits is finite unless there is no softmax of them.
            usable = np.asarray(np.isfinite(logits.max(axis=2)).all(axis=1))
            return from_logits(logits), usable
        values = _each_opinion(_probabilities(recording))
        sound: BoolArray = (np.abs(values.sum(axis=2) - 1) <= OFF_ONE).all(axis=1)
        sound &= ((values >= -BEYOND) & (values <= 1 + BEYOND)).all(axis=(1, 2))
        return from_probabilities(values), sound


def _probabilities(recording: ClassRecording) -> FloatArray:
    return recording.probabilities if recording.opinions is None else recording.opinions


def _each_opinion(values: FloatArray) -> FloatArray:
    return values[:, None] if values.ndim == 2 else values


def rejected_rows(selection: ClassSelection, made: ClassRecording) -> BoolArray | None:
    """(N,) detections whose recalibrated entropy is too high; None where none are rejected."""
    if selection.rejection is None:
        return None
    with np.errstate(invalid="ignore"):
        return selection.rejection.rejects(normalised_entropy(made.probabilities))


def check_classes(selection: ClassSelection, recording: ClassRecording) -> None:
    """Raises InvalidRecalibrator unless it was fitted on the classes of the file."""
    classes = recording.probabilities.shape[1]
    fitted = len(selection.classes) or selection.recalibrator.classes
    if fitted is not None and fitted != classes:
        raise InvalidRecalibrator(
            f"the recalibrator was fitted on {fitted} classes and the file has {classes}. Give a "
            "file with the same classes, or fit again."
        )
    if recording.class_names and not selection.fits(recording.class_names):
        raise InvalidRecalibrator(
            f"the recalibrator was fitted on classes {', '.join(selection.classes)}, and the file "
            f"has {', '.join(recording.class_names)}. Give a file with the same classes in the "
            "same order, or fit again."
        )


def recalibrate_classes(selection: ClassSelection, recording: ClassRecording) -> ClassRecording:
    """The recording with recalibrated probabilities, of the shape of what they were made from.

    Rows that cannot be used stay as they are, for the measures to refuse; of logits they are NaN.

    raises  InvalidRecalibrator when it was fitted on other classes
    """
    check_classes(selection, recording)
    log_probabilities, usable = opinions_of(recording)
    if recording.logits is None:
        made = _probabilities(recording).copy()
    else:
        made = np.full_like(recording.logits, np.nan)
    _each_opinion(made)[usable] = selection.apply(log_probabilities[usable])
    several = made.ndim == 3
    return replace(
        recording,
        probabilities=made.mean(axis=1) if several else made,
        opinions=made if several else None,
        logits=None,
    )
