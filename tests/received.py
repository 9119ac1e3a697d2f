"""Frames and labels as the wire hands them over, made from rows; functions, not tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from monitor.frames.detections import ReceivedDetections
from monitor.frames.frame import ReceivedFrame, ReceivedTruth
from monitor.frames.space import FloatArray, IntArray

VARIANCES, TRIANGLE, FULL = "variances", "triangle", "full"
FORMS = (VARIANCES, TRIANGLE, FULL)


@dataclass(frozen=True)
class Sent:
    """One detection; None is absent. covariance holds the values of any of the three forms."""

    id: int | None
    mean: tuple[float, ...]
    covariance: tuple[float, ...]
    class_index: int | None = 0
    truth: tuple[float, ...] = ()
    score: float | None = None
    upstream_track: int | None = None
    class_probabilities: tuple[float, ...] = ()
    true_class: int | None = None
    class_logits: tuple[float, ...] = ()


@dataclass(frozen=True)
class Label:
    id: int | None
    truth: tuple[float, ...] = ()
    ignore: bool = False
    class_index: int | None = None


def in_form(covariance: Any, form: str) -> tuple[float, ...]:
    matrix = np.asarray(covariance, dtype=np.float64)
    if form == VARIANCES:
        return tuple(np.diagonal(matrix).tolist())
    if form == TRIANGLE:
        return tuple(matrix[np.tril_indices(len(matrix))].tolist())
    return tuple(matrix.ravel().tolist())


def detections(rows: Sequence[Sent]) -> ReceivedDetections:
    return ReceivedDetections(
        id=np.array([row.id or 0 for row in rows], np.uint64),
        has_id=np.array([row.id is not None for row in rows], bool),
        class_index=_indices([row.class_index for row in rows]),
        mean=_padded([row.mean for row in rows]),
        mean_length=_lengths([row.mean for row in rows]),
        covariance=_padded([row.covariance for row in rows]),
        covariance_length=_lengths([row.covariance for row in rows]),
        truth=_padded([row.truth for row in rows]),
        truth_length=_lengths([row.truth for row in rows]),
        uniform=len({_layout(row) for row in rows}) == 1,
        score=None if all(row.score is None for row in rows) else _scores(rows),
        upstream_track=_known([row.upstream_track for row in rows], 0, np.uint64),
        class_probabilities=_if_any([row.class_probabilities for row in rows]),
        ground_truth_class=_known([row.true_class for row in rows], -1, np.int64),
    )


def _scores(rows: Sequence[Sent]) -> FloatArray:
    return np.array([np.nan if row.score is None else row.score for row in rows])


def _known(values: Sequence[int | None], absent: int, kind: Any) -> Any:
    """Values with whether they are there; None where none is."""
    has = np.array([value is not None for value in values], bool)
    filled = np.array([absent if value is None else value for value in values], kind)
    return (filled, has) if has.any() else None


def _if_any(values: Sequence[Sequence[float]]) -> tuple[FloatArray, IntArray] | None:
    return (_padded(values), _lengths(values)) if any(values) else None


def _indices(values: Sequence[int | None]) -> IntArray:
    return np.array([-1 if value is None else value for value in values], np.int64)


def _layout(row: Sent) -> tuple[object, ...]:
    return (
        row.id is None,
        row.class_index is None,
        len(row.mean),
        len(row.covariance),
        len(row.truth),
        row.score is None,
        row.upstream_track is None,
        len(row.class_probabilities),
        row.true_class is None,
        len(row.class_logits),
    )


def frame(
    rows: Sequence[Sent], frame_id: int | None = 1, stamp_ns: int | None = 0
) -> ReceivedFrame:
    return ReceivedFrame(
        frame_id,
        stamp_ns,
        detections(rows),
        class_logits=_if_any([row.class_logits for row in rows]),
    )


def labels(
    rows: Sequence[Label],
    frame_id: int | None = 1,
    *,
    stream: str = "lidar",
    complete: bool = False,
) -> ReceivedTruth:
    return ReceivedTruth(
        stream=stream,
        frame_id=frame_id,
        complete=complete,
        id=np.array([row.id or 0 for row in rows], np.uint64),
        has_id=np.array([row.id is not None for row in rows], bool),
        truth=_padded([row.truth for row in rows]),
        truth_length=_lengths([row.truth for row in rows]),
        ignore=np.array([row.ignore for row in rows], bool),
        class_index=_indices([row.class_index for row in rows]),
    )


def _lengths(rows: Sequence[Sequence[float]]) -> IntArray:
    return np.array([len(row) for row in rows], np.int64)


def _padded(rows: Sequence[Sequence[float]]) -> FloatArray:
    padded = np.full((len(rows), max(map(len, rows), default=0)), np.nan)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = row
    return padded
