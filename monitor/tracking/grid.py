"""Which pairs of a track and a detection lie near each other, without looking at all pairs."""

from __future__ import annotations

import numpy as np

from monitor.calibration.space import FloatArray, IntArray

# Cells are counted from −HALF to HALF − 1; what lies farther out shares the outermost.
_BITS = 21
_HALF = 1 << (_BITS - 1)
# A window over more rows of cells than this is compared with all detections instead.
_MOST_ROWS = 32
# More pairs than this in a frame, and the windows are halved until they are fewer: whatever
# covariances a detector sends, a frame costs a bounded time.
MOST_PAIRS = 1 << 18


def near_pairs(
    tracks: FloatArray,
    track_reach: FloatArray,
    track_class: IntArray,
    detections: FloatArray,
    detection_reach: FloatArray,
    detection_class: IntArray,
) -> tuple[IntArray, IntArray]:
    """Pairs of one class within reach of each other in both coordinates; maybe a few more.

    tracks      (T, 2) positions, and how far each reaches, (T, 2)
    detections  (N, 2), (N, 2); a pair is near where |Δ| ≤ the sum of both reaches
    returns     (M,) tracks, (M,) detections; at most MOST_PAIRS
    """
    if tracks.shape[0] == 0 or detections.shape[0] == 0:
        none = np.zeros(0, np.int64)
        return none, none
    # The window of a track must cover the widest detection. So that a single one with an absurd
    # covariance does not open the windows for all, the wide ones are looked for by themselves.
    usual = np.median(detection_reach, axis=0)
    wide = (detection_reach > 4.0 * usual).any(axis=1)
    found = [
        _pairs(
            tracks, track_reach, track_class,
            detections[rows], detection_reach[rows].max(axis=0), detection_class[rows], rows,
        )
        for rows in (np.flatnonzero(~wide), np.flatnonzero(wide))
        if rows.size
    ]  # fmt: skip
    if len(found) == 1:
        return found[0]
    return np.concatenate([t for t, _ in found]), np.concatenate([n for _, n in found])


def _pairs(
    tracks: FloatArray,
    track_reach: FloatArray,
    track_class: IntArray,
    detections: FloatArray,
    reach: FloatArray,
    detection_class: IntArray,
    rows: IntArray,
) -> tuple[IntArray, IntArray]:
    window = track_reach + reach
    while True:
        owner, order, begin, count = _ranges(
            tracks, window, track_class, detections, detection_class
        )
        total = int(count.sum())
        if total <= MOST_PAIRS // 2:
            break
        window = 0.5 * window
    # Each range as its places: a running number, less where the range began in it.
    ends = np.cumsum(count)
    places = np.arange(total) - np.repeat(ends - count - begin, count)
    return np.repeat(owner, count), rows[order[places]]


def _ranges(
    tracks: FloatArray,
    window: FloatArray,
    track_class: IntArray,
    detections: FloatArray,
    detection_class: IntArray,
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Detections sorted by cell, and ranges in that order that lie in the window of a track.

    returns  the track of each range; the order; where each range begins and how long it is
    """
    # Windows of the usual size cover two or three rows of cells.
    cell = np.maximum(np.median(window, axis=0), np.finfo(float).tiny)
    origin = detections[0]
    key = _key(detection_class, *_cells(detections - origin, cell).T)
    order = np.argsort(key, kind="stable")
    key = key[order]
    low = _cells(tracks - window - origin, cell)
    high = _cells(tracks + window - origin, cell)
    spanned = high[:, 0] - low[:, 0] + 1
    narrow = np.flatnonzero(spanned <= _MOST_ROWS)
    spanned = spanned[narrow]
    owner = np.repeat(narrow, spanned)
    ends = np.cumsum(spanned)
    row = low[owner, 0] + np.arange(owner.size) - np.repeat(ends - spanned, spanned)
    begin = np.searchsorted(key, _key(track_class[owner], row, low[owner, 1]), side="left")
    end = np.searchsorted(key, _key(track_class[owner], row, high[owner, 1]), side="right")
    broad = np.flatnonzero(high[:, 0] - low[:, 0] + 1 > _MOST_ROWS)
    if broad.size:
        first, last = (
            _key(track_class[broad], -_HALF, -_HALF),
            _key(track_class[broad] + 1, -_HALF, -_HALF),
        )
        owner = np.concatenate([owner, broad])
        begin = np.concatenate([begin, np.searchsorted(key, first)])
        end = np.concatenate([end, np.searchsorted(key, last)])
    return owner, order, begin, end - begin


def _cells(positions: FloatArray, cell: FloatArray) -> IntArray:
    """The cell of each position, clipped: the order is kept, so that windows stay windows."""
    clipped: IntArray = np.clip(np.floor(positions / cell), -_HALF, _HALF - 1).astype(np.int64)
    return clipped


def _key(kind: IntArray, row: IntArray | int, column: IntArray | int) -> IntArray:
    """Class, row and column in one number, in that order."""
    return ((kind << _BITS) + row + _HALF << _BITS) + column + _HALF
