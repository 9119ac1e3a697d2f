"""Conversion of class logits into class probabilities, before anything is checked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from monitor.frames.classes import MOST_VALUES, opinions_sent, places_sent, whole_opinions
from monitor.frames.detections import Examined, Reason
from monitor.frames.frame import ReceivedFrame
from monitor.frames.reasons import Notice
from monitor.frames.space import BoolArray, FloatArray, IntArray


def with_softmax(frame: ReceivedFrame, classes: int) -> ReceivedFrame:
    """Gives a frame the softmax of its logits where a detection has no class probabilities.

    Logits without a softmax become as many NaN: probabilities that cannot be used.
    """
    if frame.class_logits is None:
        return frame
    logits, length = frame.class_logits
    own = _own(frame)
    rows = np.flatnonzero(whole_opinions(length, logits.shape[1], classes) & ~own)
    sent = frame.detections.class_probabilities
    values = _beside_softmax(sent, logits, length, rows, classes)
    if sent is not None:
        length = np.where(own, sent[1], length)
    detections = replace(frame.detections, class_probabilities=(values, length))
    return replace(frame, detections=detections)


def _beside_softmax(
    sent: tuple[FloatArray, IntArray] | None,
    logits: FloatArray,
    length: IntArray,
    rows: IntArray,
    classes: int,
) -> FloatArray:
    """Returns the probabilities that were sent, (N, ≥0), with the softmax put into rows."""
    n, made = logits.shape[0], length[rows]
    width = int(made.max(initial=0 if sent is None else sent[0].shape[1]))
    if rows.size:
        power = softmax(opinions_sent(logits, length, rows, classes))
        if power.size == n * width:
            return power.reshape(n, width)
    values = np.full((n, width), np.nan)
    if sent is not None:
        values[:, : sent[0].shape[1]] = sent[0]
    if rows.size:
        values.put(places_sent(width, made, rows), power)
    return values


def softmax(logits: FloatArray) -> FloatArray:
    """Computes the softmax of each row of (n, C).

    −infinity is a probability of 0. A row with NaN or +infinity, or of −infinity alone, has no
    softmax and becomes NaN.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        power: FloatArray = np.exp(logits - logits.max(axis=1, keepdims=True))
        power /= power.sum(axis=1, keepdims=True)
    return power


def in_words_of_logits(
    notices: tuple[Notice, ...], examined: Examined, frame: ReceivedFrame, classes: int
) -> tuple[Notice, ...]:
    """Rewrites notices on class probabilities so that they speak of the logits that came.

    frame  as it came, before with_softmax
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
    """Tells which detections came with class probabilities, (N,)."""
    sent = frame.detections.class_probabilities
    return np.zeros(frame.detections.n, bool) if sent is None else sent[1] > 0


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
    bad = np.flatnonzero(np.isnan(softmax(values.reshape(-1, classes)).ravel()))
    if bad.size == 0:
        return f"{sent} values, unlike most detections of the frame"
    first = int(bad[0]) // classes * classes
    group = values[first : first + classes]
    culprit = np.flatnonzero(~(group < np.inf))
    if culprit.size == 0:
        return f"values {first} to {first + classes - 1} are all −infinity"
    return f"value {first + culprit[0]} is {group[culprit[0]]:.6g}"
