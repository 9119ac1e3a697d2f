"""Slices of the statistics as protobuf messages, and back: of Gaussians, then of classes.

A pane never changes, it is replaced: its bytes are encoded once and used again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from google.protobuf.message import Message

from monitor.frames.slices import OVERFLOW
from monitor.frames.space import IntArray
from monitor.statistics.bins import Binning, IncompatibleStatistics
from monitor.statistics.class_statistics import (
    ClassBinning,
    ClassStatistics,
    no_class_statistics,
    table_shapes,
)
from monitor.statistics.stage import SliceStatistics, StageStatistics, nothing
from monitor.statistics.state import ClassSliceState, SliceState
from monitor.statistics.windows import PaneKey, Windows, put
from monitor.store.state_definitions import (
    checked_class_names,
    checked_slice_name,
    decode_limbs,
    decode_space,
    decode_sums,
    encode_dimensions,
    encode_limbs,
    encode_sums,
    invalid,
    no_limbs,
)
from monitor.v1 import statistics_state_pb2 as pb

# After which a message ends: it is made in a few milliseconds.
PART_BYTES = 2**17


_LENGTH_DELIMITED = 2


Held = TypeVar("Held")


@dataclass(slots=True)
class PaneBytes:
    """Bytes of panes from this round of encoding and the one before; for one user at a time.

    Beside the bytes is the pane they are of, so that its id stays its own.
    """

    _before: dict[int, tuple[object, bytes]] = field(default_factory=dict)
    _now: dict[int, tuple[object, bytes]] = field(default_factory=dict)

    def begin(self) -> None:
        """A new round: what the last one did not use is forgotten."""
        self._before, self._now = self._now, {}

    def of(self, held: Held, encode: Callable[[Held], Message]) -> bytes:
        """The bytes of a pane."""
        known = self._before.get(id(held)) or self._now.get(id(held))
        if known is None:
            known = held, encode(held).SerializeToString()
        self._now[id(held)] = known
        return known[1]


def pane_bytes(held: Held, encode: Callable[[Held], Message], known: PaneBytes | None) -> bytes:
    """The bytes of a pane; those of the round before, where its writer has kept them."""
    return encode(held).SerializeToString() if known is None else known.of(held, encode)


def framed(number: int, data: bytes) -> bytes:
    """A message or a string as field `number` of another message."""
    return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    """Writes a number, 0 or more, as protobuf does; a store imports no room beside it."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes((*encoded, value))


def framed_panes(
    panes: Mapping[PaneKey, Held], number: int, content: Callable[[Held], bytes]
) -> Iterator[bytes]:
    """Panes as fields `number` of their slice, in order, some at a time; once b"" if none.

    content  the bytes of a pane without level and number
    """
    part: list[bytes] = []
    size = 0
    for (level, pane), held in sorted(panes.items(), key=lambda item: item[0]):
        # Level and number are the same fields in both kinds of panes.
        place = pb.PaneState(level=level, number=pane).SerializeToString()
        data = framed(number, place + content(held))
        if part and size + len(data) > PART_BYTES:
            yield b"".join(part)
            part, size = [], 0
        part.append(data)
        size += len(data)
    yield b"".join(part)


_MOST_DETECTIONS = 2**53


def encode_slice(entry: SliceState, known: PaneBytes | None) -> Iterator[bytes]:
    """A slice as at least one SliceState, none of them large."""
    head = pb.SliceState(
        name=entry.name,
        overflow=entry.overflow,
        dimensions=encode_dimensions(entry.space),
        angles_in_joint=entry.space.angles_in_joint,
    ).SerializeToString()
    panes = framed_panes(
        entry.panes,
        pb.SliceState.PANES_FIELD_NUMBER,
        lambda held: pane_bytes(held, _encode_slice_pane, known),
    )
    for part in panes:
        yield head + part


def _encode_slice_pane(held: SliceStatistics) -> pb.PaneState:
    """Without level and number."""
    same = _alike(held.raw, held.recalibrated)
    return pb.PaneState(
        raw=_encode_stage(held.raw),
        recalibrated=None if same else _encode_stage(held.recalibrated),
    )


def _encode_stage(stage: StageStatistics) -> pb.StageState:
    return pb.StageState(
        n=stage.n,
        cells=encode_sums(stage.cells),
        nees=encode_sums(stage.nees),
        companions=encode_limbs(stage.companions),
    )


def _alike(one: StageStatistics, two: StageStatistics) -> bool:
    """Tells whether both hold equal values, so that equal states are equal bytes."""
    if one is two:
        return True
    if one.n != two.n:
        return False
    return all(np.array_equal(a, b) for a, b in zip(_arrays(one), _arrays(two), strict=True))


def _arrays(stage: StageStatistics) -> Iterator[IntArray]:
    for sums in (stage.cells, stage.nees):
        yield from (sums.keys, sums.values, sums.spill_keys, sums.spill)
    yield from (stage.companions.low, stage.companions.high)


def decode_slice(
    message: pb.SliceState, binning: Binning, windows: Windows, field: str
) -> SliceState:
    """The slice of a message. Raises InvalidState."""
    space = decode_space(message.dimensions, message.angles_in_joint, field)
    name = OVERFLOW if message.overflow else checked_slice_name(message.name, field)
    zero = nothing(space, binning)
    panes: dict[PaneKey, SliceStatistics] = {}
    for i, pane in enumerate(message.panes):
        where = f"{field}.panes[{i}]"
        raw = _decode_stage(pane.raw, zero, f"{where}.raw")
        recalibrated = raw
        if pane.HasField("recalibrated"):
            recalibrated = _decode_stage(pane.recalibrated, zero, f"{where}.recalibrated")
        put(panes, decode_pane_key(pane, windows, where), SliceStatistics(raw, recalibrated))
        check_panes(panes, windows, where)
    return SliceState(name, space, message.overflow, panes)


def decode_pane_key(
    pane: pb.PaneState | pb.ClassPaneState, windows: Windows, field: str
) -> PaneKey:
    """Level and number of a pane. Raises InvalidState."""
    if pane.level > windows.older or (pane.level == windows.older and pane.number != 0):
        raise invalid(
            f"{field}.level",
            f"pane {pane.number} of level {pane.level}, where the last is 0 of {windows.older}",
        )
    return pane.level, pane.number


def check_panes(panes: Mapping[PaneKey, object], windows: Windows, field: str) -> None:
    """Refuse more panes than a window can have: all of them are held before they are added.

    A window has its whole panes and the one that is not yet full. In the shortest one, rows may
    lie ahead of the clock by as much as EventClock believes, its own length.

    Raises InvalidState.
    """
    for level, count in Counter(level for level, _ in panes).items():
        most = windows.panes + 1 if level else 2 * windows.panes + 1
        if level < windows.older and count > most:
            raise invalid(field, f"{count} panes of level {level}, where up to {most} can be")


def _decode_stage(message: pb.StageState, zero: StageStatistics, field: str) -> StageStatistics:
    axes, binning = zero.space.k + 1, zero.binning
    n = checked_count(message.n, field)
    cells = decode_sums(
        message.cells, zero.cells.width, axes * binning.deviation.count, f"{field}.cells"
    )
    nees = decode_sums(message.nees, zero.nees.width, axes * binning.nees.count, f"{field}.nees")
    if no_limbs(message.companions):
        # They are most of a pane in memory: what has sums must bring all of them.
        if n or cells.keys.size or nees.keys.size:
            raise invalid(f"{field}.companions", "absent, where other sums are there")
        return zero
    companions = decode_limbs(message.companions, zero.companions, f"{field}.companions")
    return replace(zero, n=n, cells=cells, nees=nees, companions=companions)


def checked_count(n: int, field: str) -> int:
    """A number of detections; negative where a retraction came alone. Raises InvalidState."""
    if abs(n) >= _MOST_DETECTIONS:
        raise invalid(f"{field}.n", f"{n}, above 2^53")
    return n


# There is one, so its hash is all that is sent.
_BINNING = ClassBinning()


def encode_class_slice(entry: ClassSliceState, known: PaneBytes | None) -> Iterator[bytes]:
    """A slice as at least one ClassSliceState, none of them large."""
    head = pb.ClassSliceState(
        name=entry.name,
        class_names=entry.class_names,
        bin_hash=_BINNING.hash,
        overflow=entry.overflow,
    ).SerializeToString()
    panes = framed_panes(
        entry.panes,
        pb.ClassSliceState.PANES_FIELD_NUMBER,
        lambda held: pane_bytes(held, _encode_class_pane, known),
    )
    for part in panes:
        yield head + part


def _encode_class_pane(held: ClassStatistics) -> pb.ClassPaneState:
    """Without level and number."""
    return pb.ClassPaneState(
        n=held.n,
        tables=[encode_sums(table) for table in held.tables],
        companions=encode_limbs(held.companions),
    )


def decode_class_slice(
    message: pb.ClassSliceState, windows: Windows, field: str
) -> ClassSliceState:
    """The slice of a message. Raises InvalidState, IncompatibleStatistics."""
    if message.bin_hash != _BINNING.hash:
        raise IncompatibleStatistics(
            f"{field}.bin_hash: the state's class probabilities are kept on bins of hash "
            f"{message.bin_hash[:64]}, here on those of {_BINNING.hash}: they cannot be added. "
            "Use the same version of the monitor for both."
        )
    names = checked_class_names(message.class_names, field)
    name = OVERFLOW if message.overflow else checked_slice_name(message.name, field)
    zero = no_class_statistics(_BINNING, len(names))
    panes: dict[PaneKey, ClassStatistics] = {}
    for i, pane in enumerate(message.panes):
        where = f"{field}.panes[{i}]"
        put(panes, decode_pane_key(pane, windows, where), _decode_pane(pane, zero, where))
        check_panes(panes, windows, where)
    return ClassSliceState(name, names, panes, message.overflow)


def _decode_pane(pane: pb.ClassPaneState, zero: ClassStatistics, field: str) -> ClassStatistics:
    if not pane.tables:
        if pane.n or not no_limbs(pane.companions):
            raise invalid(f"{field}.tables", "absent, where other sums are there")
        # A place for what newer code has added, with nothing that we know.
        return zero
    if len(pane.tables) != len(zero.tables):
        raise invalid(f"{field}.tables", f"{len(pane.tables)}, not {len(zero.tables)}")
    shapes = table_shapes(zero.binning, zero.classes)
    return replace(
        zero,
        n=checked_count(pane.n, field),
        tables=tuple(
            decode_sums(table, width, end, f"{field}.tables[{i}]")
            for i, (table, (width, end)) in enumerate(zip(pane.tables, shapes, strict=True))
        ),
        companions=decode_limbs(pane.companions, zero.companions, f"{field}.companions"),
    )
