"""Samples of labelled detections as protobuf messages: the part of a state that has rows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from monitor.frames.slices import OVERFLOW
from monitor.statistics.clusters import ALONE
from monitor.statistics.sample import MOST_ROWS, SampledRows, SampledSlice, width
from monitor.store.state_definitions import (
    checked_slice_name,
    decode_space,
    encode_dimensions,
    invalid,
    values_of,
)
from monitor.v1 import statistics_state_pb2 as pb

# Numbers of the rows of one message: it is made in a few milliseconds.
_NUMBERS = 2**14


def encode_sampled(entry: SampledSlice) -> Iterator[bytes]:
    """A slice as messages of some rows each, none of them large. Equal samples are equal bytes."""
    head = pb.SampledSlice(
        **values_of(entry, ("name", "overflow")),
        dimensions=encode_dimensions(entry.space),
        angles_in_joint=entry.space.angles_in_joint,
        most=entry.rows.most,
    ).SerializeToString()
    step = max(1, _NUMBERS // width(entry.space.k))
    for start in range(0, entry.rows.key.size, step):
        yield head + _encode_rows(entry.rows.take(slice(start, start + step)))


def _encode_rows(rows: SampledRows) -> bytes:
    there = rows.labelled
    return pb.SampledSlice(
        key=rows.key.tolist(),
        revision=rows.revision.tolist(),
        value=rows.values[there].ravel().tolist(),
        track=rows.track[there].tolist(),
    ).SerializeToString()


def decode_sampled(message: pb.SampledSlice, field: str) -> SampledSlice:
    """The slice of a message. Raises InvalidState."""
    space = decode_space(message.dimensions, message.angles_in_joint, field)
    name = OVERFLOW if message.overflow else checked_slice_name(message.name, field)
    if not 1 <= message.most <= MOST_ROWS:
        raise invalid(f"{field}.most", f"{message.most}, where 1 to {MOST_ROWS} are possible")
    key = np.array(message.key, np.uint64)
    revision = np.array(message.revision, np.int64)
    if key.size > message.most or revision.size != key.size:
        text = f"{key.size} keys and {revision.size} revisions of {message.most} rows at most"
        raise invalid(f"{field}.key", text)
    if not (key[1:] > key[:-1]).all() or revision.min(initial=1) < 1:
        raise invalid(f"{field}.key", "keys that do not ascend, or revisions below 1")
    numbers, there = width(space.k), revision % 2 == 1
    n = int(np.count_nonzero(there))
    values = np.array(message.value, np.float64)
    track = np.array(message.track, np.uint64)
    if values.size != n * numbers or track.size != n:
        text = f"{values.size} numbers and {track.size} tracks of {n} rows of {numbers}"
        raise invalid(f"{field}.value", text)
    values = values.reshape(n, numbers)
    # The diagonal of a lower triangle, row by row.
    variances = values[:, space.k - 1 + np.cumsum(np.arange(1, space.k + 1))]
    if not (np.isfinite(values).all() and variances.min(initial=1.0) > 0):
        raise invalid(f"{field}.value", "numbers that are not finite, or variances not above 0")
    of_all, tracks = np.zeros((key.size, numbers)), np.full(key.size, ALONE)
    # A negative zero is no other value.
    of_all[there], tracks[there] = values + 0.0, track
    rows = SampledRows(message.most, key, revision, of_all, tracks)
    return SampledSlice(name, space, message.overflow, rows)
