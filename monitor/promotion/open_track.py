"""One object that may still be seen: what is kept of its rows until it is a whole track."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from monitor.calibration.space import Space
from monitor.promotion.labelled import LabelledRows
from monitor.promotion.whole_track import WholeTrack
from monitor.recalibration.recalibrator import Estimates


@cache
def row_layout(k: int) -> np.dtype[Any]:
    """A row of K dimensions as it is kept."""
    return np.dtype(
        [
            ("stamp_ns", np.int64),
            ("mean", np.float64, (k,)),
            ("covariance", np.float64, (k, k)),
            ("truth", np.float64, (k,)),
            ("diagonal", np.bool_),
        ]
    )


def packed(frames: Sequence[LabelledRows]) -> list[bytes]:
    """Each row of some frames of one space, in their order; nothing of the frames is held."""
    layout = row_layout(frames[0].space.k)
    counts = [frame.n for frame in frames]
    rows = np.zeros(sum(counts), layout)
    rows["stamp_ns"] = np.repeat(np.array([frame.stamp_ns for frame in frames], np.int64), counts)
    rows["mean"] = np.concatenate([frame.sent.mean for frame in frames])
    rows["covariance"] = np.concatenate([frame.sent.covariance for frame in frames])
    rows["truth"] = np.concatenate([frame.truth for frame in frames])
    rows["diagonal"] = np.concatenate([frame.sent.diagonal for frame in frames])
    whole, size = rows.tobytes(), layout.itemsize
    return [whole[start : start + size] for start in range(0, len(whole), size)]


@dataclass(slots=True)
class OpenTrack:
    """What is known of one object in one slice so far.

    first_ns   event time from which it counts: of its earliest row; of a block, its beginning
    latest_ns  of its latest row
    idle_ns    it is over when nothing came of it for longer
    rows       kept, packed: every stride-th of those that were seen
    """

    space: Space
    slice: int
    source: int
    first_ns: int
    latest_ns: int
    idle_ns: int
    delay_ns: int = 0
    seen: int = 0
    stride: int = 1
    rows: list[bytes] = field(default_factory=list)

    def over(self, now_ns: int, longest_ns: int) -> bool:
        """Whether it is whole at a time of its source, or that time was set back before it."""
        return (
            now_ns - self.latest_ns > self.idle_ns
            or now_ns - self.first_ns >= longest_ns
            or self.first_ns - now_ns > longest_ns + self.idle_ns
        )

    def take(self, stamp_ns: int, delay_ns: int, row: bytes, most: int) -> None:
        """Take in a row, of any order; at most 2 × most of them are kept, evenly spread."""
        if stamp_ns > self.latest_ns:
            self.latest_ns = stamp_ns
        elif stamp_ns < self.first_ns:
            self.first_ns = stamp_ns
        if delay_ns > self.delay_ns:
            self.delay_ns = delay_ns
        if self.seen % self.stride == 0:
            if len(self.rows) == 2 * most:
                # Rows 0, 2s, 4s, … stay; this one has number 2 · most · s, and is the next of them.
                del self.rows[1::2]
                self.stride *= 2
            self.rows.append(row)
        self.seen += 1

    def whole(self, most: int) -> WholeTrack:
        """As it is now: its rows by stamp, at most so many, evenly spread."""
        rows = np.frombuffer(b"".join(self.rows), row_layout(self.space.k))
        order = np.argsort(rows["stamp_ns"], kind="stable")
        if order.size > most:
            order = order[np.linspace(0, order.size - 1, most).round().astype(np.int64)]
        rows = rows[order]
        sent = Estimates(rows["mean"].copy(), rows["covariance"].copy(), rows["diagonal"].copy())
        return WholeTrack(
            self.space,
            self.slice,
            sent,
            rows["truth"].copy(),
            rows["stamp_ns"].copy(),
            self.delay_ns,
            self.source,
        )
