"""Findings of a frame in words: field, offending value, remedy; at most one for each reason."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from monitor.frames.classes import BEYOND, MOST_VALUES, OFF_ONE, Sent, softmax
from monitor.frames.detections import (
    ACTED_ON,
    Examined,
    Limits,
    Reason,
    ReceivedDetections,
)
from monitor.frames.space import FloatArray, IntArray, Space


@dataclass(frozen=True, slots=True)
class Notice:
    """A finding in words.

    count        detections that have it; 0: the frame itself has it
    first_index  the first of these detections
    """

    reason: Reason
    field: str
    message: str
    count: int = 0
    first_index: int = 0


# Not worth words: the normal outcomes, and the mode that the operator chose.
_SILENT = ACTED_ON | {Reason.OBSERVE_MODE}

NO_FRAME_ID = Notice(
    Reason.MISSING_FRAME_KEY,
    "frame_id",
    "absent: number the frames, or later truth cannot refer to this one.",
)


def duplicate_frame(frame_id: int) -> Notice:
    """Says that a frame came before."""
    return Notice(
        Reason.DUPLICATE_FRAME,
        "frame_id",
        f"{frame_id} came before with the same stamp: answered again, counted once. "
        "Number the frames of a stream uniquely.",
    )


def notice_of(rows: IntArray, reason: Reason, field: str, message: str) -> Notice:
    """Makes the notice of a finding that some detections have, (n ≥ 1,)."""
    return Notice(reason, field, message, int(rows.size), int(rows[0]))


def describe(
    examined: Examined,
    received: ReceivedDetections,
    space: Space,
    classes: tuple[str, ...],
    limits: Limits,
    logits: Sent | None = None,
) -> tuple[Notice, ...]:
    """Puts the findings of a frame into words, one notice for each reason.

    received, logits  as they came, before any softmax
    """
    found: list[Notice] = []
    for value in np.unique(examined.reason).tolist():
        reason = Reason(value)
        if reason not in _SILENT:
            rows = np.flatnonzero(examined.reason == value)
            words = _words(reason, received, int(rows[0]), space, classes, limits)
            found.append(notice_of(rows, reason, *words))
    rows = np.flatnonzero(examined.truth_invalid)
    if rows.size:
        sent = int(received.truth_length[rows[0]])
        message = (
            f"{sent} values, {numbers(received.truth[rows[0]], sent)}: send {space.k} values "
            f"({', '.join(space.names)}), finite and within ±{limits.largest_mean:g} "
            "([limits] largest_mean), or none."
        )
        found.append(notice_of(rows, Reason.GROUND_TRUTH_INVALID, "ground_truth", message))
    rows = np.flatnonzero(examined.probabilities_invalid | examined.true_class_invalid)
    if rows.size:
        words = _class_words(examined, received, logits, int(rows[0]), len(classes))
        found.append(notice_of(rows, Reason.CLASS_PROBABILITIES_INVALID, *words))
    return tuple(found)


def _words(
    reason: Reason,
    received: ReceivedDetections,
    row: int,
    space: Space,
    classes: tuple[str, ...],
    limits: Limits,
) -> tuple[str, str]:
    """Returns the field that a detection was refused for, and what is wrong with it."""
    k = space.k
    forms = f"{k} (variances), {k * (k + 1) // 2} (lower triangle) or {k * k} (full) values"
    mean_sent, sent = int(received.mean_length[row]), int(received.covariance_length[row])
    mean = numbers(received.mean[row], mean_sent)
    covariance = numbers(received.covariance[row], sent)
    index = int(received.class_index[row])
    within = (
        f"within [{limits.smallest_deviation:g}, {limits.largest_deviation:g}] "
        "([limits] smallest_deviation, largest_deviation)"
    )
    faults = {
        Reason.MISSING_ID: ("id", "absent: number the detections of a frame."),
        Reason.DUPLICATE_ID: (
            "id",
            f"{int(received.id[row])} occurs before in this frame: make ids unique.",
        ),
        Reason.UNKNOWN_CLASS: (
            "class_index",
            f"{'absent' if index < 0 else index}: the header names {len(classes)} classes, from 0.",
        ),
        Reason.MEAN_LENGTH: ("mean", f"{mean_sent} values: the header has {k} dimensions."),
        Reason.MEAN_VALUE: (
            "mean",
            f"{mean}: every value must be finite and within ±{limits.largest_mean:g} "
            "([limits] largest_mean).",
        ),
        Reason.RECALIBRATOR_MISMATCH: (
            "dimensions",
            f"{', '.join(space.names)}: the promoted recalibrator was fitted on others; "
            "promote one that was fitted on these.",
        ),
    }
    of_covariance = {
        Reason.MISSING_COVARIANCE: (
            f"absent or all zero: send {forms}, or ground truth, from which one is learned "
            "(docs/promotion.md#life-of-a-detector-without-covariances)."
        ),
        Reason.COVARIANCE_LENGTH: f"{sent} values: send {forms}.",
        Reason.COVARIANCE_NOT_FINITE: f"{covariance}: every value must be finite.",
        Reason.COVARIANCE_ASYMMETRIC: (
            f"{covariance}: row-major and symmetric, or send the triangle."
        ),
        Reason.COVARIANCE_NOT_POSITIVE_DEFINITE: (
            f"{covariance}: not positive definite; check units and order."
        ),
        Reason.COVARIANCE_SCALE: (
            f"{covariance}: standard deviations must lie {within}; check the unit."
        ),
    }
    unsound = (
        "what the promoted recalibrator made of it is not a positive definite covariance with "
        f"standard deviations {within}: passed through; promote another."
    )
    return faults.get(reason) or ("covariance", of_covariance.get(reason, unsound))


def _class_words(
    examined: Examined, received: ReceivedDetections, logits: Sent | None, row: int, classes: int
) -> tuple[str, str]:
    field, sent, fault = "class_probabilities", received.class_probabilities, _opinion_fault
    form = f"each within [0, 1], every {classes} adding up to 1"
    if logits is not None and (sent is None or not sent[1][row]):
        field, sent, fault = "class_logits", logits, _logit_fault
        form = "none of them NaN or infinity, but −infinity for a probability of 0"
    if sent is not None and examined.probabilities_invalid[row]:
        values, length = sent[0][row], int(sent[1][row])
        wrong = f"{length} values"
        if length % classes == 0 and length <= min(MOST_VALUES, values.size):
            unlike = f"{wrong}, unlike most detections of the frame"
            wrong = fault(values[:length], classes) or unlike
        return field, (
            f"{wrong}: send {classes} values, one for each class of the header, or M times as "
            f"many, at most {MOST_VALUES}, with one M in a frame; {form}."
        )
    assert received.ground_truth_class is not None
    index = int(received.ground_truth_class[0][row])
    return "ground_truth_class", f"{index}: the header names {classes} classes, from 0."


def _opinion_fault(values: FloatArray, classes: int) -> str:
    """Says why the class probabilities of a detection, (M C,), cannot be used; '' if they can."""
    outside = np.flatnonzero(~((values >= -BEYOND) & (values <= 1 + BEYOND)))
    if outside.size:
        return f"value {outside[0]} is {values[outside[0]]:.6g}"
    total = values.reshape(-1, classes).sum(axis=1)
    off = np.flatnonzero(~(np.abs(total - 1) <= OFF_ONE))
    if off.size:
        first = off[0] * classes
        return f"values {first} to {first + classes - 1} add up to {total[off[0]]:.6g}"
    return ""


def _logit_fault(values: FloatArray, classes: int) -> str:
    """Says why the logits of a detection, (M C,), cannot be used; '' if they can."""
    groups = values.reshape(-1, classes)
    bad = np.flatnonzero(np.isnan(softmax(groups)).any(axis=1))
    if bad.size == 0:
        return ""
    first = int(bad[0]) * classes
    culprit = np.flatnonzero(~(groups[bad[0]] < np.inf))
    if culprit.size:
        return f"value {first + culprit[0]} is {groups[bad[0]][culprit[0]]:.6g}"
    return f"values {first} to {first + classes - 1} are all −infinity"


def numbers(values: np.ndarray, sent: int) -> str:
    """Formats the first few values, so that a notice stays short."""
    shown = [f"{value:.6g}" for value in values[: min(sent, 8)].tolist()]
    return "[" + ", ".join(shown) + (", …]" if sent > 8 else "]")


_DEGREES = frozenset({"deg", "degree", "degrees", "°"})


def unit_notice(space: Space) -> Notice | None:
    """Says that a dimension is given in degrees, since units are shown and never converted."""
    named = [one for one in space.dimensions if one.unit.strip().lower() in _DEGREES]
    if not named:
        return None
    names = ", ".join(one.name for one in named)
    message = (
        f"'{named[0].unit}' of {names}: units are shown and never converted, and angles are in "
        "radians. Send values times π/180, variances times its square, and the unit 'rad'."
    )
    return Notice(Reason.INVALID_HEADER, "dimensions.unit", message)
