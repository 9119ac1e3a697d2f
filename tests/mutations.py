"""Messages that went wrong on their way, or were written by who means ill; no tests here.

Valid messages are taken apart as protobuf writes them, down to the fields of each detection, and
put together with something changed; or their bytes are changed without a thought. All of it hangs
on a seed.
"""

from __future__ import annotations

import random as random_
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.written import varint

# Values that a detector should not send, and some at the edge of what it may.
VALUES = (
    *(float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1.0, -1.0),
    *(5e-324, -5e-324, 2.2e-308, 1e-200, 1e-6, 1e5, 1e8, 1e154, 1e300, 1.7976931348623157e308),
    struct.unpack("<d", b"\x01\x00\x00\x00\x00\x00\xf4\x7f")[0],  # a signalling NaN
)
WIRE_TYPES = (0, 1, 2, 3, 4, 5, 6, 7)
# Bytes of a message that grows; above it nothing more is repeated.
LARGEST = 1 << 14

# Which fields hold messages, and what these hold.
Shape = Mapping[int, "Shape"]
_LEAF: Shape = {}
_HEADER: Shape = {2: _LEAF}
_FRAME: Shape = {3: _LEAF, 4: _LEAF, 15: _LEAF}
PROCESS_REQUEST: Shape = {1: _HEADER, 2: _FRAME}
PROCESS_FRAME_REQUEST: Shape = {2: _HEADER, 15: _FRAME}
TRUTH_REQUEST: Shape = {1: {7: _LEAF, 8: _LEAF, 15: _LEAF}}


@dataclass(slots=True)
class Field:
    """One field as it is written.

    content  bytes behind tag and length; or the fields of a message
    padding  bytes that tag and length are longer than need be
    stretch  what the length lies by
    """

    number: int
    wire_type: int
    content: bytes | list[Field]
    padding: int = 0
    stretch: int = 0

    def copy(self) -> Field:
        content = self.content
        if not isinstance(content, bytes):
            content = [inner.copy() for inner in content]
        return Field(self.number, self.wire_type, content, self.padding, self.stretch)

    def written(self) -> bytes:
        content = self.content if isinstance(self.content, bytes) else written(self.content)
        tag: bytes = varint(self.number << 3 | self.wire_type, self.padding)
        if self.wire_type != 2:
            return tag + content
        length: bytes = varint(max(0, len(content) + self.stretch), self.padding)
        return tag + length + content


def written(fields: Sequence[Field]) -> bytes:
    return b"".join(one.written() for one in fields)


def taken_apart(data: bytes, shape: Shape) -> list[Field]:
    """The fields of a valid message."""
    fields, at = [], 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == 0:
            _, end = _varint(data, at)
        elif wire_type == 2:
            length, at = _varint(data, at)
            end = at + length
        else:
            end = at + (8 if wire_type == 1 else 4)
        content: bytes | list[Field] = data[at:end]
        if wire_type == 2 and number in shape:
            content = taken_apart(data[at:end], shape[number])
        fields.append(Field(number, wire_type, content))
        at = end
    return fields


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


# ---- fields


def _one(random: random_.Random, fields: list[Field], deep: float = 0.9) -> list[Field] | None:
    """The fields of some message that has any, those of single detections rather than others."""
    inner = [one.content for one in fields if not isinstance(one.content, bytes)]
    if inner and random.random() < deep:
        found = _one(random, random.choice(inner), deep)
        if found is not None:
            return found
    return fields or None


Change = Callable[[random_.Random, list[Field]], None]


def _doubles(random: random_.Random, fields: list[Field]) -> None:
    """Some values are others; the layout stays."""
    packed = [f for f in fields if f.wire_type in (1, 2) and isinstance(f.content, bytes)]
    packed = [f for f in packed if len(f.content) >= 8]
    if not packed:
        return
    for chosen in random.choices(packed, k=random.randint(1, 2)):
        assert isinstance(chosen.content, bytes)
        place = 8 * random.randrange(len(chosen.content) // 8)
        value = struct.pack("<d", random.choice(VALUES))
        times = 1 if random.random() < 0.8 else (len(chosen.content) - place) // 8
        end = place + 8 * times
        chosen.content = chosen.content[:place] + value * times + chosen.content[end:]


def _resized(random: random_.Random, fields: list[Field]) -> None:
    """More values, fewer, or none."""
    packed = [f for f in fields if f.wire_type == 2 and isinstance(f.content, bytes)]
    if packed:
        chosen = random.choice(packed)
        assert isinstance(chosen.content, bytes)
        size = random.choice((0, 1, 7, 8, 16, 24, 8 * 32, 8 * 33, 8 * 64, len(chosen.content) + 8))
        chosen.content = (chosen.content + bytes(size))[:size]


def _unpacked(random: random_.Random, fields: list[Field]) -> None:
    """A packed field in pieces, some of them unpacked."""
    packed = [i for i, f in enumerate(fields) if f.wire_type == 2 and isinstance(f.content, bytes)]
    if packed:
        at = random.choice(packed)
        chosen = fields[at]
        assert isinstance(chosen.content, bytes)
        values = [chosen.content[i : i + 8] for i in range(0, len(chosen.content), 8)]
        fields[at : at + 1] = [
            Field(chosen.number, 1 if random.random() < 0.5 else 2, value) for value in values
        ]


def _repeated(random: random_.Random, fields: list[Field]) -> None:
    chosen = random.choice(fields)
    times = random.choice((1, 1, 1, 2, 70))
    if times * len(chosen.written()) < LARGEST:
        at = random.randint(0, len(fields))
        fields[at:at] = [chosen.copy() for _ in range(times)]


def _left_out(random: random_.Random, fields: list[Field]) -> None:
    del fields[random.randrange(len(fields))]


def _out_of_order(random: random_.Random, fields: list[Field]) -> None:
    random.shuffle(fields)


def _tags_swapped(random: random_.Random, fields: list[Field]) -> None:
    one, other = random.choice(fields), random.choice(fields)
    one.number, other.number = other.number, one.number


def _renumbered(random: random_.Random, fields: list[Field]) -> None:
    random.choice(fields).number = random.choice((0, 1, 2, 3, 5, 9, 15, 16, 99, 2**29 - 1))


def _of_another_wire_type(random: random_.Random, fields: list[Field]) -> None:
    random.choice(fields).wire_type = random.choice(WIRE_TYPES)


def _unknown(random: random_.Random, fields: list[Field]) -> None:
    number = random.choice((11, 12, 16, 99, 2**28))
    content = random.choice(
        ((0, b"\x01"), (1, bytes(8)), (2, b"text"), (2, b""), (3, varint(number << 3 | 4)))
    )
    fields.insert(random.randint(0, len(fields)), Field(number, *content))


def _over_long(random: random_.Random, fields: list[Field]) -> None:
    random.choice(fields).padding = random.choice((1, 1, 2, 4, 8, 10))


def _wrong_length(random: random_.Random, fields: list[Field]) -> None:
    random.choice(fields).stretch = random.choice((-8, -1, 1, 2, 8, 127, 2**31, 2**63 - 1))


CHANGES: dict[str, Change] = {
    "values": _doubles,
    "lengths of values": _resized,
    "pieces": _unpacked,
    "repeated": _repeated,
    "left out": _left_out,
    "order": _out_of_order,
    "tags swapped": _tags_swapped,
    "other numbers": _renumbered,
    "other wire types": _of_another_wire_type,
    "unknown fields": _unknown,
    "over-long varints": _over_long,
    "wrong lengths": _wrong_length,
}


# ---- bytes


def flipped(random: random_.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 4, 16))):
        if changed:
            changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def cut(random: random_.Random, data: bytes) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def cut_behind(random: random_.Random, data: bytes) -> bytes:
    return data[random.randrange(len(data) + 1) :]


def doubled(random: random_.Random, data: bytes) -> bytes:
    first = random.randrange(len(data) + 1)
    last = random.randint(first, len(data))
    return data[:last] + data[first:]


def inserted(random: random_.Random, data: bytes) -> bytes:
    at = random.randrange(len(data) + 1)
    return data[:at] + random.randbytes(random.choice((1, 2, 8, 40))) + data[at:]


BYTES: dict[str, Callable[[random_.Random, bytes], bytes]] = {
    "bits": flipped,
    "cut": cut,
    "doubled": doubled,
    "inserted": inserted,
}


@dataclass(slots=True)
class Mutations:
    """Without end, from valid messages.

    renew  what every one of them has of its own, such as its number; told how many there were
    told   how many there were, by what was changed first
    """

    seeds: Sequence[bytes]
    shape: Shape
    random: random_.Random
    renew: Callable[[list[Field], int], None] = lambda _fields, _number: None
    told: dict[str, int] = field(default_factory=dict)
    made: int = 0
    _apart: list[list[Field]] = field(init=False)

    def __post_init__(self) -> None:
        self._apart = [taken_apart(seed, self.shape) for seed in self.seeds]

    def valid(self) -> bytes:
        """A message in which nothing is wrong."""
        return written(self._renewed())

    def of(self, name: str) -> bytes:
        """One with a single change, of the kind that is named."""
        fields = self._renewed()
        self._change(name, fields)
        return self._tell(name, written(fields))

    def next(self) -> bytes:
        """One of them."""
        random = self.random
        chance = random.random()
        fields = self._renewed()
        if chance < 0.25:
            name = random.choice(tuple(BYTES))
            return self._tell(name, BYTES[name](random, written(fields)))
        if chance < 0.3:
            other = random.choice(self.seeds)
            return self._tell("spliced", cut(random, written(fields)) + cut_behind(random, other))
        # Values are what most go wrong in, and the only thing that keeps the layout.
        name = "values" if chance < 0.55 else random.choice(tuple(CHANGES))
        self._change(name, fields)
        while random.random() < 0.25:
            self._change(random.choice(tuple(CHANGES)), fields)
        return self._tell(name, written(fields))

    def _renewed(self) -> list[Field]:
        self.made += 1
        fields = [one.copy() for one in self.random.choice(self._apart)]
        self.renew(fields, self.made)
        return fields

    def _change(self, name: str, fields: list[Field]) -> None:
        chosen = _one(self.random, fields)
        if chosen:
            CHANGES[name](self.random, chosen)

    def _tell(self, name: str, data: bytes) -> bytes:
        self.told[name] = self.told.get(name, 0) + 1
        return data
