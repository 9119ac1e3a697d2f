"""Rows of vehicles as protobuf messages: those of one slice side by side, to be small."""

from __future__ import annotations

from collections.abc import Iterator

from monitor.frames.slices import OVERFLOW
from monitor.statistics.bins import EXPONENT
from monitor.statistics.exact_sums import ExactSum
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
    decode_space,
    encode_dimensions,
    encode_limbs,
    no_limbs,
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
                vehicles=[vehicle for vehicle, _ in part],
                raw=encode_limbs(raw),
                change=encode_limbs(change) if change.low.any() or change.high.any() else None,
            ).SerializeToString(deterministic=True)


def decode_vehicles(message: pb.VehicleRow, field: str) -> Iterator[tuple[str, RowKey, VehicleRow]]:
    """The rows of a message. Raises InvalidState."""
    space = decode_space(message.dimensions, message.angles_in_joint, field)
    name = OVERFLOW if message.overflow else checked_slice_name(message.name, field)
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
