"""Whole tracks as the rows that methods are fitted on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from monitor.promotion.whole_track import WholeTrack, rows_of
from monitor.recalibration.fit_rows import FitRows


def fit_rows(tracks: Sequence[WholeTrack]) -> FitRows:
    """The rows of T ≥ 1 tracks of one space, track after track, numbered from 0.

    time_s is event time, on the clock of all streams; delay_s is that of the track.
    """
    rows = rows_of(tracks)
    stamps = np.concatenate([track.stamp_ns for track in tracks])
    delays = np.array([track.delay_ns for track in tracks], np.int64)
    return FitRows(
        rows.space,
        rows.sent,
        rows.space.error(rows.truth, rows.sent.mean),
        np.repeat(np.arange(len(tracks)), rows.counts),
        time_s=stamps / 1e9,
        delay_s=np.repeat(delays, rows.counts) / 1e9,
    )
