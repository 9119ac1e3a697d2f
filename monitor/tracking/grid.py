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
MOST_PAIRS = 1 << 17
# So few are looked at one by one in less time than they are sorted into cells.
_FEW_PAIRS = 1024
# What has too many neighbours in a window halved so often lies on one spot, and gets a few of them.
_MOST_HALVINGS = 40


def near_pairs(
    tracks: FloatArray,
    track_reach: FloatArray,
    track_class: IntArray,
    detections: FloatArray,
    detection_reach: FloatArray,
    detection_class: IntArray,
    max_distance: float = np.inf,
) -> tuple[IntArray, IntArray]:
    """Pairs of one class within reach of each other in both coordinates; maybe a few more.

    tracks        (T, 2) positions, and how far each reaches, (T, 2)
    detections    (N, 2), (N, 2); a pair is near where |Δ| ≤ the sum of both reaches
    max_distance  and |Δ| ≤ this
    returns       (M,) tracks, (M,) detections; at most MOST_PAIRS
    """
    if tracks.shape[0] == 0 or detections.shape[0] == 0:
        none = np.zeros(0, np.int64)
        return none, none
    if tracks.shape[0] * detections.shape[0] <= _FEW_PAIRS:
        track, detection = np.nonzero(track_class[:, None] == detection_class)
        return track, detection
    # The window of a track must cover the widest detection. So that a single one with an absurd
    # covariance does not open the windows for all, the wide ones are looked for by themselves.
    usual = _middle(detection_reach)
    wide = (detection_reach > 4.0 * usual).any(axis=1)
    found = [
        _pairs(
            tracks, track_reach, track_class,
            detections[rows], detection_reach[rows].max(axis=0), detection_class[rows], rows,
            max_distance,
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
    max_distance: float,
) -> tuple[IntArray, IntArray]:
    # No two lie farther apart than the whole scene is wide.
    wide = 2.0 * np.ptp(np.concatenate([tracks, detections]), axis=0)
    window = np.minimum(track_reach + reach, np.minimum(wide, max_distance))
    for _ in range(_MOST_HALVINGS):
        owner, order, begin, count = _ranges(
            tracks, window, track_class, detections, detection_class
        )
        if count.sum() <= MOST_PAIRS // 2:
            break
        window = 0.5 * window
    else:
        count = np.minimum(count, MOST_PAIRS // 2 // owner.size)
    total = int(count.sum())
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
    cell = np.maximum(_middle(window), np.finfo(float).tiny)
    # Amid them: what lies too far from here for a cell of its own must be the exception.
    origin = _middle(detections)
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


def _middle(values: FloatArray) -> FloatArray:
    """The lower median of each column."""
    middle: FloatArray = np.sort(values, axis=0)[(values.shape[0] - 1) // 2]
    return middle


def _cells(positions: FloatArray, cell: FloatArray) -> IntArray:
    """The cell of each position, clipped: the order is kept, so that windows stay windows."""
    clipped: IntArray = np.clip(np.floor(positions / cell), -_HALF, _HALF - 1).astype(np.int64)
    return clipped


def _key(kind: IntArray, row: IntArray | int, column: IntArray | int) -> IntArray:
    """Class, row and column in one number, in that order."""
    return ((kind << _BITS) + row + _HALF << _BITS) + column + _HALF
