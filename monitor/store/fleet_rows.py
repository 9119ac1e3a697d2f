"""Writes and reads what a state has beside sums: rows of vehicles, and samples of detections.

The rows of the vehicles of one slice lie side by side, to be small.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from monitor.statistics.bins import EXPONENT
from monitor.statistics.clusters import ALONE
from monitor.statistics.exact_sums import ExactSum
from monitor.statistics.sample import MOST_ROWS, SampledRows, SampledSlice, width
from monitor.statistics.vehicles import (
    CHANGE,
    RAW,
    RowKey,
    VehicleRow,
    VehicleRows,
    row_layout,
    rows_by_slice,
    stacked,
)
from monitor.store.state_definitions import (
    checked_slice_name,
    decode_limbs,
    decode_slice_key,
    encode_dimensions,
    encode_limbs,
    invalid,
    no_limbs,
    values_of,
)
from monitor.store.varints import read_integers
from monitor.v1 import statistics_state_pb2 as pb

# Of a sum, at most; it is 7 or so.
_SUM_BYTES = 16


def encode_vehicles(vehicles: VehicleRows, most_bytes: int) -> Iterator[bytes]:
    """The rows, slice by slice, as VehicleRow messages; equal rows are equal bytes."""
    for (name, overflow, _), space, held in rows_by_slice(vehicles):
        none = ExactSum.zero((row_layout(space.k)[1],), EXPONENT)
        size = max(1, most_bytes // (_SUM_BYTES * none.low.size))
        for start in range(0, len(held), size):
            part = held[start : start + size]
            raw, change = (
                stacked([of[stage].sums if stage in of else none for _, of in part])
                for stage in (RAW, CHANGE)
            )
            yield pb.VehicleRow(
                name=name,
                overflow=overflow,
                dimensions=encode_dimensions(space),
                angles_in_joint=space.angles_in_joint,
                assumed=space.assumed,
                vehicles=[vehicle for vehicle, _ in part],
                raw=encode_limbs(raw),
                change=encode_limbs(change) if change.low.any() or change.high.any() else None,
            ).SerializeToString(deterministic=True)


def decode_vehicles(message: pb.VehicleRow, field: str) -> Iterator[tuple[str, RowKey, VehicleRow]]:
    """The rows of a message. Raises InvalidState."""
    name, space = decode_slice_key(message, field)
    vehicles = [checked_slice_name(one, f"{field}.vehicles") for one in message.vehicles]
    for part, stage in (("raw", RAW), ("change", CHANGE)):
        limbs = read_integers(getattr(message, part))
        if not vehicles or no_limbs(limbs):
            continue  # a place for what newer code has added
        like = ExactSum.zero((len(vehicles), row_layout(space.k)[1]), EXPONENT)
        sums = decode_limbs(limbs, like, f"{field}.{part}")
        for vehicle, low, high in zip(vehicles, sums.low, sums.high, strict=True):
            key = name, message.overflow, space.number, stage
            yield vehicle, key, VehicleRow(space, ExactSum(low, high, EXPONENT))


# Numbers of the rows of one message: it is made in a few milliseconds.
_NUMBERS = 2**14


def encode_sampled(entry: SampledSlice) -> Iterator[bytes]:
    """A slice as messages of some rows each, none of them large. Equal samples are equal bytes."""
    head = pb.SampledSlice(
        **values_of(entry, ("name", "overflow")),
        dimensions=encode_dimensions(entry.space),
        angles_in_joint=entry.space.angles_in_joint,
        assumed=entry.space.assumed,
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
    name, space = decode_slice_key(message, field)
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
