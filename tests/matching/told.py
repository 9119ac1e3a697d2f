"""Objects as a labeller tells of them; no tests."""

from dataclasses import dataclass

import numpy as np

from monitor.frames.frame import ReceivedObjects


@dataclass(frozen=True)
class Told:
    id: int | None
    class_index: int | None
    truth: tuple[float, ...]
    ignore: bool = False
    stamp: int | None = None
    covariance: tuple[float, ...] = ()


def padded(rows):
    values = np.full((len(rows), max(map(len, rows), default=0)), np.nan)
    for i, row in enumerate(rows):
        values[i, : len(row)] = row
    return values, np.array([len(row) for row in rows], np.int64)


def objects(*rows: Told) -> ReceivedObjects:
    truth, truth_length = padded([row.truth for row in rows])
    covariance, covariance_length = padded([row.covariance for row in rows])
    kinds = [-1 if row.class_index is None else row.class_index for row in rows]
    return ReceivedObjects(
        id=np.array([row.id or 0 for row in rows], np.uint64),
        has_id=np.array([row.id is not None for row in rows], bool),
        class_index=np.array(kinds, np.int64),
        truth=truth,
        truth_length=truth_length,
        covariance=covariance,
        covariance_length=covariance_length,
        ignore=np.array([row.ignore for row in rows], bool),
        stamp_ns=np.array([row.stamp or 0 for row in rows], np.int64),
        has_stamp=np.array([row.stamp is not None for row in rows], bool),
    )
