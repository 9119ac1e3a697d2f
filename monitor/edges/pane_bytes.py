"""Panes as bytes. A pane never changes, it is replaced: what was encoded once is used again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from google.protobuf.message import Message

from monitor.calibration.windows import PaneKey
from monitor.v1 import statistics_state_pb2 as pb

# After which a message ends: it is made in a few milliseconds.
PART_BYTES = 2**17
_LENGTH_DELIMITED = 2

Held = TypeVar("Held")


@dataclass(slots=True)
class PaneBytes:
    """What was encoded in this round and in the one before; for one user at a time.

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
