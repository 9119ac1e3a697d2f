"""Logits in place of class probabilities: made into these before anything looks at them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from monitor.calibration.class_opinions import MOST_VALUES
from monitor.calibration.detections import Examined, Reason
from monitor.calibration.notices import Notice
from monitor.calibration.space import BoolArray, FloatArray, IntArray
from monitor.frames import ReceivedFrame


def with_softmax(frame: ReceivedFrame, classes: int) -> ReceivedFrame:
    """The frame with the softmax of its logits as class probabilities, where it has none itself.

    What has no softmax becomes NaN, as many as were sent: probabilities that cannot be used.
    """
    if frame.class_logits is None:
        return frame
    logits, length = frame.class_logits
    detections = frame.detections
    made = softmax(logits, classes)
    if detections.class_probabilities is not None:
        made, length = _beside(detections.class_probabilities, made, length)
    return replace(frame, detections=replace(detections, class_probabilities=(made, length)))


def softmax(logits: FloatArray, classes: int) -> FloatArray:
    """Of each C values of a row (n, ≥0), in the same places; (n, ≥0), NaN where there is none.

    A NaN, +infinity, or nothing but −infinity has none; −infinity alone is a probability of 0.
    """
    n, width = logits.shape
    opinions = -(-width // classes)
    filled = np.full((n, opinions * classes), np.nan)
    filled[:, :width] = logits
    shaped = filled.reshape(n, opinions, classes)
    with np.errstate(invalid="ignore", over="ignore"):
        power = np.exp(shaped - shaped.max(axis=2, keepdims=True))
        power /= power.sum(axis=2, keepdims=True)
    probabilities: FloatArray = power.reshape(n, -1)[:, :width]
    return probabilities


def _beside(
    sent: tuple[FloatArray, IntArray], made: FloatArray, length: IntArray
) -> tuple[FloatArray, IntArray]:
    """What was sent where anything was, what was made elsewhere."""
    values, sent_length = sent
    own = sent_length > 0
    both = np.full((own.size, max(values.shape[1], made.shape[1])), np.nan)
    both[own, : values.shape[1]] = values[own]
    both[~own, : made.shape[1]] = made[~own]
    return both, np.where(own, sent_length, length)


def in_words_of_logits(
    notices: tuple[Notice, ...], examined: Examined, frame: ReceivedFrame, classes: int
) -> tuple[Notice, ...]:
    """Notices on class probabilities, of logits where these are what came.

    frame  as it came
    """
    if frame.class_logits is None:
        return notices
    logits, length = frame.class_logits
    of_logits = examined.probabilities_invalid & ~_own(frame)
    return tuple(
        replace(
            notice,
            field="class_logits",
            message=_words(logits[notice.first_index], int(length[notice.first_index]), classes),
        )
        if notice.reason is Reason.CLASS_PROBABILITIES_INVALID and of_logits[notice.first_index]
        else notice
        for notice in notices
    )


def _own(frame: ReceivedFrame) -> BoolArray:
    """(N,) whether class probabilities came."""
    sent = frame.detections.class_probabilities
    own: BoolArray = np.zeros(frame.detections.n, bool) if sent is None else sent[1] > 0
    return own


def _words(values: FloatArray, sent: int, classes: int) -> str:
    return (
        f"{_fault(values, sent, classes)}: send {classes} values, one for each class of the "
        f"header, or M times as many, at most {MOST_VALUES}, with one M in a frame; none of them "
        "NaN or infinity, but −infinity for a probability of 0."
    )


def _fault(values: FloatArray, sent: int, classes: int) -> str:
    if sent % classes or sent > min(MOST_VALUES, values.size):
        return f"{sent} values"
    values = values[:sent]
    bad = np.flatnonzero(np.isnan(softmax(values[None], classes)[0]))
    if bad.size == 0:
        return f"{sent} values, unlike most detections of the frame"
    first = int(bad[0]) // classes * classes
    group = values[first : first + classes]
    culprit = np.flatnonzero(~(group < np.inf))
    if culprit.size == 0:
        return f"values {first} to {first + classes - 1} are all −infinity"
    return f"value {first + culprit[0]} is {group[culprit[0]]:.6g}"
