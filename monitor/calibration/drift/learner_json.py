"""A reference that is being learned as plain values of a JSON document, and back, bit for bit."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from monitor.calibration.clusters import ClusterArray
from monitor.calibration.drift.learner import AT_ONCE, ReferenceLearner
from monitor.calibration.drift.reference_correlation import (
    LONGEST_BATCH,
    OPEN,
    PARTS,
    SIZES,
    FrameSums,
    OpenTracks,
    TrackSums,
)
from monitor.calibration.drift.reference_fields import (
    LARGEST_COUNT,
    OF_REFERENCE,
    Fields,
    Refusal,
)
from monitor.calibration.drift.reference_histogram import BINS, NeesHistogram
from monitor.calibration.drift.reference_levels import LONGEST, LevelSums
from monitor.calibration.limits import MOST_DIMENSIONS
from monitor.calibration.space import FloatArray, IntArray

_LEARNER = ("k", "detections", "total", "bins", "counts", "tracks", "frames", "seconds", "waiting")
_TRACKS = ("tracks", "rows", "totals", "products", "ids", "seen", "last", "parts")
_FRAMES = ("waiting", "last", "batches", "pairs")
_WAITING = ("nees", "track", "frame")
_SECONDS = ("tracks", "means", "squares", "within", "again", "blocks", "rows")


def learner_to_json(learner: ReferenceLearner) -> dict[str, object]:
    """All of it; what waits to be taken in goes on waiting, so that sums round alike."""
    bins = np.flatnonzero(learner.histogram.counts)
    tracks, frames, seconds = learner.along_tracks, learner.along_frames, learner.seconds
    known = tracks.going_on
    return {
        "k": learner.k,
        "detections": learner.detections,
        "total": learner.total,
        "bins": bins.tolist(),
        "counts": learner.histogram.counts[bins].tolist(),
        "tracks": {
            "tracks": tracks.tracks,
            "rows": tracks.rows,
            "totals": tracks.totals.tolist(),
            "products": tracks.products.ravel().tolist(),
            "ids": known.ids.tolist(),
            "seen": known.seen.tolist(),
            "last": known.last.tolist(),
            "parts": known.parts.ravel().tolist(),
        },
        "frames": {
            "waiting": frames.waiting.tolist(),
            "last": frames.last,
            "batches": frames.batches.ravel().tolist(),
            "pairs": frames.pairs.tolist(),
        },
        "seconds": {
            "tracks": seconds.tracks.tolist(),
            "means": seconds.means.tolist(),
            "squares": seconds.squares.tolist(),
            "within": seconds.within,
            "again": seconds.again,
            "blocks": seconds.blocks,
            "rows": seconds.rows,
        },
        "waiting": dict(zip(_WAITING, (part.tolist() for part in learner.waiting()), strict=True)),
    }


def learner_from_json(
    value: object, where: str = "learner", refusal: Refusal = OF_REFERENCE
) -> ReferenceLearner:
    """The inverse of learner_to_json. Raises as `refusal` says for anything else."""
    if isinstance(value, dict):
        value = {"waiting": {name: [] for name in _WAITING}, **value}  # nothing was kept waiting
    fields = Fields.of(value, where, _LEARNER, refusal)
    detections = fields.whole("detections")
    content: dict[str, Any] = fields.content
    waiting = _waiting(fields.inner(content["waiting"], "waiting", _WAITING))
    found = ReferenceLearner(
        k=fields.whole("k", 1, MOST_DIMENSIONS),
        detections=detections,
        total=fields.number("total", 0.0),
        histogram=_histogram(fields, detections, waiting[0].size),
        along_tracks=_tracks(fields.inner(content["tracks"], "tracks", _TRACKS)),
        along_frames=_frames(fields.inner(content["frames"], "frames", _FRAMES)),
        seconds=_seconds(fields.inner(content["seconds"], "seconds", _SECONDS)),
    )
    if waiting[0].size:
        found.wait(*waiting)
    return found


def _waiting(fields: Fields) -> tuple[FloatArray, ClusterArray, IntArray]:
    frame = np.array(fields.wholes("frame", 0, AT_ONCE - 1, 0, LARGEST_COUNT), np.int64)
    if (np.diff(frame) < 0).any():
        raise fields.wrong("frame", frame.tolist(), "numbers that never fall")
    size = frame.size
    track = np.array(fields.wholes("track", size, size, 0, 2**64 - 1), np.uint64)
    return fields.numbers("nees", (size,), 0.0), track, frame


def _histogram(fields: Fields, detections: int, waiting: int) -> NeesHistogram:
    bins = fields.wholes("bins", 0, BINS, 0, BINS - 1)
    _ascending(fields, "bins", bins)
    counts = fields.wholes("counts", len(bins), len(bins), 1, LARGEST_COUNT)
    if sum(counts) + waiting != detections:
        expected = f"{sum(counts)}, the sum of counts, and {waiting} that wait"
        raise fields.wrong("detections", detections, expected)
    found = NeesHistogram()
    found.counts[bins] = counts
    return found


def _tracks(fields: Fields) -> TrackSums:
    rows = fields.whole("rows")
    ids = fields.wholes("ids", 0, OPEN, 1, 2**64 - 1)
    _ascending(fields, "ids", ids)
    size = len(ids)
    totals = fields.numbers("totals", (PARTS,), 0.0)
    # n rows of a track have n − 1 pairs at most.
    if totals[0] != rows or totals[3] > rows:
        raise fields.wrong("totals", totals.tolist(), f"{rows} rows, and no more pairs")
    return TrackSums(
        tracks=fields.whole("tracks", size, rows),
        rows=rows,
        totals=totals,
        products=fields.numbers("products", (PARTS, PARTS)),
        going_on=OpenTracks(
            ids=np.array(ids, np.uint64),
            seen=np.array(fields.wholes("seen", size, size, 0, rows), np.int64),
            last=fields.numbers("last", (size,), 0.0),
            parts=fields.numbers("parts", (size, PARTS), 0.0),
        ),
    )


def _frames(fields: Fields) -> FrameSums:
    waiting = fields.listed("waiting", 0, LONGEST_BATCH - 1)
    last = None if fields.content["last"] is None else fields.number("last", 0.0)
    batches = fields.numbers("batches", (SIZES, 3), 0.0)
    whole = batches[0, 0]
    if not np.array_equal(batches[:, 0], whole / 2.0 ** np.arange(SIZES)) or whole % LONGEST_BATCH:
        raise fields.wrong("batches", batches[:, 0].tolist(), "half as many of each next size")
    pairs = fields.numbers("pairs", (5,), 0.0)
    frames = whole + len(waiting)
    if pairs[0] != max(frames - 1, 0) or (last is None) != (frames == 0):
        raise fields.wrong("pairs[0]", float(pairs[0]), f"those of {frames:.0f} frames")
    return FrameSums(fields.numbers("waiting", (len(waiting),), 0.0), last, batches, pairs)


def _seconds(fields: Fields) -> LevelSums:
    tracks = fields.numbers("tracks", (LONGEST + 1,), 0.0)
    blocks = fields.whole("blocks")
    again = fields.whole("again", 0, blocks)
    if tracks[0] or (tracks % 1).any() or tracks.sum() > blocks:
        raise fields.wrong("tracks", tracks.tolist(), f"numbers of tracks, of {blocks} seconds")
    return LevelSums(
        tracks=tracks,
        means=fields.numbers("means", (LONGEST + 1,)),
        squares=fields.numbers("squares", (LONGEST + 1,)),
        within=fields.number("within", 0.0),
        again=again,
        blocks=blocks,
        rows=fields.whole("rows", blocks),
    )


def _ascending(fields: Fields, name: str, values: list[int]) -> None:
    if any(a >= b for a, b in pairwise(values)):
        raise fields.wrong(name, values, "numbers that ascend")
