"""Findings of a frame in words: field, offending value, remedy; at most one for each reason."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from monitor.frames.classes import BEYOND, MOST_VALUES, OFF_ONE
from monitor.frames.detections import Examined, Limits, Reason, ReceivedDetections
from monitor.frames.space import FloatArray, Space


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


_NONE = int(Reason.NONE)

# Not worth words: the normal outcome, and the mode that the operator chose.
_SILENT = frozenset({Reason.NONE, Reason.OBSERVE_MODE})

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


def describe(
    examined: Examined,
    received: ReceivedDetections,
    space: Space,
    classes: tuple[str, ...],
    limits: Limits,
) -> tuple[Notice, ...]:
    """Puts the findings of a frame into words, one notice for each reason."""
    found: list[Notice] = []
    if np.count_nonzero(examined.reason != _NONE):
        for value in np.unique(examined.reason).tolist():
            reason = Reason(value)
            if reason not in _SILENT:
                rows = np.flatnonzero(examined.reason == value)
                words = _words(reason, received, int(rows[0]), space, classes, limits)
                found.append(Notice(reason, *words, int(rows.size), int(rows[0])))
    if np.count_nonzero(examined.truth_invalid):
        rows = np.flatnonzero(examined.truth_invalid)
        sent = int(received.truth_length[rows[0]])
        found.append(
            Notice(
                Reason.GROUND_TRUTH_INVALID,
                "ground_truth",
                f"{sent} values, {numbers(received.truth[rows[0]], sent)}: send "
                f"{space.k} values ({', '.join(space.names)}), finite and within "
                f"±{limits.largest_mean:g} ([limits] largest_mean), or none.",
                int(rows.size),
                int(rows[0]),
            )
        )
    invalid = examined.probabilities_invalid | examined.true_class_invalid
    if np.count_nonzero(invalid):
        rows = np.flatnonzero(invalid)
        words = _class_words(examined, received, int(rows[0]), len(classes))
        reason = Reason.CLASS_PROBABILITIES_INVALID
        found.append(Notice(reason, *words, int(rows.size), int(rows[0])))
    return tuple(found)


def _words(
    reason: Reason,
    received: ReceivedDetections,
    row: int,
    space: Space,
    classes: tuple[str, ...],
    limits: Limits,
) -> tuple[str, str]:
    k = space.k
    forms = f"{k} (variances), {k * (k + 1) // 2} (lower triangle) or {k * k} (full) values"
    mean = numbers(received.mean[row], int(received.mean_length[row]))
    sent = int(received.covariance_length[row])
    covariance = numbers(received.covariance[row], sent)
    match reason:
        case Reason.MISSING_ID:
            return "id", "absent: number the detections of a frame."
        case Reason.DUPLICATE_ID:
            return "id", f"{int(received.id[row])} occurs before in this frame: make ids unique."
        case Reason.UNKNOWN_CLASS:
            index = int(received.class_index[row])
            value = "absent" if index < 0 else str(index)
            return "class_index", f"{value}: the header names {len(classes)} classes, from 0."
        case Reason.MEAN_LENGTH:
            return (
                "mean",
                f"{int(received.mean_length[row])} values: the header has {k} dimensions.",
            )
        case Reason.MEAN_VALUE:
            return "mean", (
                f"{mean}: every value must be finite and within ±{limits.largest_mean:g} "
                "([limits] largest_mean)."
            )
        case Reason.MISSING_COVARIANCE:
            return "covariance", f"absent or all zero: send {forms} to have it recalibrated."
        case Reason.COVARIANCE_LENGTH:
            return "covariance", f"{sent} values: send {forms}."
        case Reason.COVARIANCE_NOT_FINITE:
            return "covariance", f"{covariance}: every value must be finite."
        case Reason.COVARIANCE_ASYMMETRIC:
            return "covariance", f"{covariance}: row-major and symmetric, or send the triangle."
        case Reason.COVARIANCE_NOT_POSITIVE_DEFINITE:
            return "covariance", f"{covariance}: not positive definite; check units and order."
        case Reason.COVARIANCE_SCALE:
            return "covariance", (
                f"{covariance}: standard deviations must lie within "
                f"[{limits.smallest_deviation:g}, {limits.largest_deviation:g}] "
                "([limits] smallest_deviation, largest_deviation); check the unit."
            )
        case Reason.RECALIBRATOR_MISMATCH:
            return "dimensions", (
                f"{', '.join(space.names)}: the promoted recalibrator was fitted on others; "
                "promote one that was fitted on these."
            )
        case _:
            return "covariance", (
                "what the promoted recalibrator made of it is not a positive definite covariance "
                f"with standard deviations within [{limits.smallest_deviation:g}, "
                f"{limits.largest_deviation:g}] ([limits] smallest_deviation, largest_deviation): "
                "passed through; promote another."
            )


def _class_words(
    examined: Examined, received: ReceivedDetections, row: int, classes: int
) -> tuple[str, str]:
    if received.class_probabilities is not None and examined.probabilities_invalid[row]:
        values, length = received.class_probabilities
        return "class_probabilities", (
            f"{_opinion_fault(values[row], int(length[row]), classes)}: send {classes} values, "
            f"one for each class of the header, or M times as many, at most {MOST_VALUES}, with "
            f"one M in a frame; each within [0, 1], every {classes} adding up to 1."
        )
    assert received.ground_truth_class is not None
    index = int(received.ground_truth_class[0][row])
    return "ground_truth_class", f"{index}: the header names {classes} classes, from 0."


def _opinion_fault(values: FloatArray, sent: int, classes: int) -> str:
    """Says why the class probabilities of a detection, (≥0,), cannot be used."""
    if sent % classes or sent > min(MOST_VALUES, values.size):
        return f"{sent} values"
    values = values[:sent]
    outside = np.flatnonzero(~((values >= -BEYOND) & (values <= 1 + BEYOND)))
    if outside.size:
        return f"value {outside[0]} is {values[outside[0]]:.6g}"
    total = values.reshape(-1, classes).sum(axis=1)
    off = np.flatnonzero(~(np.abs(total - 1) <= OFF_ONE))
    if off.size:
        first = off[0] * classes
        return f"values {first} to {first + classes - 1} add up to {total[off[0]]:.6g}"
    return f"{sent} values, unlike most detections of the frame"


def numbers(values: np.ndarray, sent: int) -> str:
    """Formats the first few values, so that a notice stays short."""
    shown = [f"{value:.6g}" for value in values[: min(sent, 8)].tolist()]
    return "[" + ", ".join(shown) + (", …]" if sent > 8 else "]")
