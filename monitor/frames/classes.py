"""Validation of the class probabilities that came with the detections of a frame.

A detection has M opinions, each of C probabilities, or of C logits that are turned into these
before anything is checked. Statistics of the probabilities never live here.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from monitor.frames.space import BoolArray, FloatArray, IntArray, read_only

# Values of one detection, at most; 16 KiB: 25 opinions on 80 classes, 204 on 10.
MOST_VALUES = 2048

# How far a probability may lie outside [0, 1], and the sum of an opinion from 1: a softmax in
# single precision passes, and so does one that was stored in half precision.
BEYOND = 1e-6
OFF_ONE = 1e-3


# Opinions of N detections, or their logits: (N, ≥0) one after the other, anything beyond the
# length; and (N,) how many values were sent, 0 for none.
Sent = tuple[FloatArray, IntArray]


@lru_cache(maxsize=256)
def no_class(n: int) -> IntArray:
    """Returns (n,) of −1, read-only and shared: most frames come without a true class."""
    return read_only(np.full(n, -1, np.int64))


def usable_opinions(
    values: FloatArray, length: IntArray, rows: IntArray, classes: int
) -> tuple[FloatArray | None, BoolArray]:
    """Returns the opinions of n detections, all of one M, and marks those that cannot be used.

    All opinions of a detection must be sound: C values within [0, 1] that add up to 1. M is
    the number that most detections with sound opinions have, the smaller of two that are as
    frequent. Opinions with another M are set aside like unsound ones, so that the result does
    not depend on the order of the detections.

    values   (N, ≥0) one opinion after the other, anything beyond the length
    length   (N,) values sent, 0 for none; may be more than the array is wide
    rows     (n,) detections to look at; the others have no influence on M
    classes  C
    returns  (n, M, C) clipped into [0, 1] but not made to add up to 1, a row of NaN for a
             detection without usable opinions, None if no detection has any; and (n,) whether
             opinions came that are not among these
    """
    invalid = length[rows] > 0
    whole = np.flatnonzero(whole_opinions(length[rows], values.shape[1], classes))
    if whole.size == 0:
        return None, invalid
    count = length[rows[whole]] // classes
    opinions = opinions_sent(values, length, rows[whole], classes)
    first = np.cumsum(count) - count
    kept = np.logical_and.reduceat(are_probabilities(opinions.T), first)
    if not kept.any():
        return None, invalid
    most = int(np.bincount(count[kept]).argmax())
    kept &= count == most
    if not kept.all():
        opinions = opinions[np.repeat(kept, count)]
    opinions = opinions.reshape(-1, most, classes).clip(0, 1)
    invalid[whole[kept]] = False
    if opinions.shape[0] == rows.size:
        return opinions, invalid
    every = np.full((rows.size, most, classes), np.nan)
    every[whole[kept]] = opinions
    return every, invalid


def whole_opinions(length: IntArray, width: int, classes: int) -> BoolArray:
    """Tells of which detections whole opinions came, and not too many, (n,).

    length  (n,) values sent
    width   of the array that holds them
    """
    most = min(MOST_VALUES, width)
    whole: BoolArray = (length > 0) & (length <= most) & (length % classes == 0)
    return whole


def opinions_sent(values: FloatArray, length: IntArray, rows: IntArray, classes: int) -> FloatArray:
    """Returns all opinions of rows (n ≥ 1,), one detection after the other, (Σ M, C).

    One detection of many values makes the array wide: only values that were sent are touched.

    rows  with whole_opinions
    """
    sent = length[rows]
    if (sent == sent[0]).all():
        every: slice | IntArray = slice(None) if rows.size == values.shape[0] else rows
        return values[every, : sent[0]].reshape(-1, classes)
    return values.take(places_sent(values.shape[1], sent, rows)).reshape(-1, classes)


def places_sent(width: int, sent: IntArray, rows: IntArray) -> IntArray:
    """Finds the values of rows in a flat array, row after row of this width, (Σ sent,)."""
    end = np.cumsum(sent)
    return np.repeat(rows * width - end + sent, sent) + np.arange(end[-1])


def are_probabilities(columns: FloatArray) -> BoolArray:
    """Tells which opinions (C, …) are sound, (…): within [0, 1], and of a sum of 1.

    What a detector sends, a file holds and a recalibrator makes are all tested by this.
    """
    # NaN fails the comparison.
    with np.errstate(invalid="ignore", over="ignore"):
        sound: BoolArray = np.abs(columns.sum(axis=0) - 1) <= OFF_ONE
    # One test of all opinions is quicker. It fails on NaN too; then each opinion is tested.
    if columns.size and not (columns.min() >= -BEYOND and columns.max() <= 1 + BEYOND):
        sound &= ((columns >= -BEYOND) & (columns <= 1 + BEYOND)).all(axis=0)
    return sound


def softmax(logits: FloatArray) -> FloatArray:
    """Computes the softmax of each row of (n, C).

    −infinity is a probability of 0. A row with NaN or +infinity, or of −infinity alone, has no
    softmax and becomes NaN.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        power: FloatArray = np.exp(logits - logits.max(axis=1, keepdims=True))
        power /= power.sum(axis=1, keepdims=True)
    return power


def with_softmax(sent: Sent | None, logits: Sent, classes: int) -> Sent:
    """Returns the class probabilities of detections, from logits where a detection has none.

    Logits without a softmax become as many NaN: probabilities that cannot be used.
    """
    values, length = logits
    own = np.zeros(length.size, bool) if sent is None else sent[1] > 0
    rows = np.flatnonzero(whole_opinions(length, values.shape[1], classes) & ~own)
    shape = length.size, int(length[rows].max(initial=0 if sent is None else sent[0].shape[1]))
    lengths = length if sent is None else np.where(own, sent[1], length)
    power = values[:0]
    if rows.size:
        power = softmax(opinions_sent(values, length, rows, classes))
        if power.size == shape[0] * shape[1]:
            return power.reshape(shape), lengths
    every = np.full(shape, np.nan)
    if sent is not None:
        every[:, : sent[0].shape[1]] = sent[0]
    if rows.size:
        every.put(places_sent(shape[1], length[rows], rows), power)
    return every, lengths
