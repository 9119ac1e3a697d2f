"""Messages that went wrong on their way, or were written by an enemy; no tests here.

Valid messages are taken apart as protobuf writes them, down to the fields of each detection, and
put together with something changed; or their bytes are changed blindly. All of it depends on a
seed.
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
# Bytes of a message that grows; above it nothing more is repeated.
LARGEST = 1 << 14

# Which fields hold messages, and what these hold.
Shape = Mapping[int, "Shape"]
_LEAF: Shape = {}
PROCESS_REQUEST: Shape = {1: {2: _LEAF}, 2: {3: _LEAF, 4: _LEAF, 15: _LEAF}}
TRUTH_REQUEST: Shape = {1: {7: _LEAF, 8: _LEAF, 15: _LEAF}}


@dataclass(slots=True)
class Field:
    """One field as it is written.

    content  bytes behind tag and length; or the fields of a message
    padding  bytes that tag and length are longer than need be
    stretch  bytes by which the length is wrong
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
    """Returns the fields of a valid message."""
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


Random = random_.Random
Change = Callable[[Random, list[Field]], None]


def _packed(fields: list[Field], least: int = 0) -> list[Field]:
    found = [one for one in fields if one.wire_type in (1, 2) and isinstance(one.content, bytes)]
    return [one for one in found if len(one.content) >= least]


def _values(random: Random, fields: list[Field]) -> None:
    """Puts other values in; the layout stays."""
    packed = _packed(fields, 8)
    for chosen in random.choices(packed, k=random.randint(1, 2)) if packed else ():
        assert isinstance(chosen.content, bytes)
        place = 8 * random.randrange(len(chosen.content) // 8)
        times = 1 if random.random() < 0.8 else (len(chosen.content) - place) // 8
        value = struct.pack("<d", random.choice(VALUES)) * times
        chosen.content = chosen.content[:place] + value + chosen.content[place + 8 * times :]


def _resized(random: Random, fields: list[Field]) -> None:
    """Leaves more values, fewer, or none."""
    packed = _packed(fields)
    if packed:
        chosen = random.choice(packed)
        assert isinstance(chosen.content, bytes)
        size = random.choice((0, 1, 7, 8, 16, 24, 8 * 32, 8 * 33, 8 * 64, len(chosen.content) + 8))
        chosen.content = (chosen.content + bytes(size))[:size]


def _unpacked(random: Random, fields: list[Field]) -> None:
    """Writes a packed field in pieces, some of them unpacked."""
    packed = _packed(fields)
    if packed:
        chosen = random.choice(packed)
        assert isinstance(chosen.content, bytes)
        values = [chosen.content[i : i + 8] for i in range(0, len(chosen.content), 8)]
        at = next(i for i, one in enumerate(fields) if one is chosen)
        fields[at : at + 1] = [Field(chosen.number, random.choice((1, 2)), one) for one in values]


def _repeated(random: Random, fields: list[Field]) -> None:
    chosen, times = random.choice(fields), random.choice((1, 1, 1, 2, 70))
    if times * len(chosen.written()) < LARGEST:
        at = random.randint(0, len(fields))
        fields[at:at] = [chosen.copy() for _ in range(times)]


def _left_out(random: Random, fields: list[Field]) -> None:
    del fields[random.randrange(len(fields))]


def _tags_swapped(random: Random, fields: list[Field]) -> None:
    one, other = random.choice(fields), random.choice(fields)
    one.number, other.number = other.number, one.number


def _unknown(random: Random, fields: list[Field]) -> None:
    number = random.choice((11, 12, 16, 99, 2**28))
    group = varint(number << 3 | 4)
    content = random.choice(((0, b"\x01"), (1, bytes(8)), (2, b"text"), (2, b""), (3, group)))
    fields.insert(random.randint(0, len(fields)), Field(number, *content))


def _setting(name: str, *values: int) -> Change:
    def change(random: Random, fields: list[Field]) -> None:
        setattr(random.choice(fields), name, random.choice(values))

    return change


CHANGES: dict[str, Change] = {
    "values": _values,
    "lengths of values": _resized,
    "pieces": _unpacked,
    "repeated": _repeated,
    "left out": _left_out,
    "order": lambda random, fields: random.shuffle(fields),
    "tags swapped": _tags_swapped,
    "other numbers": _setting("number", 0, 1, 2, 3, 5, 9, 15, 16, 99, 2**29 - 1),
    "other wire types": _setting("wire_type", *range(8)),
    "unknown fields": _unknown,
    "over-long varints": _setting("padding", 1, 1, 2, 4, 8, 10),
    "wrong lengths": _setting("stretch", -8, -1, 1, 2, 8, 127, 2**31, 2**63 - 1),
}


def _one(random: Random, fields: list[Field]) -> list[Field] | None:
    """Returns the fields of some message that has any, those of detections rather than others."""
    inner = [one.content for one in fields if not isinstance(one.content, bytes)]
    if inner and random.random() < 0.9:
        found = _one(random, random.choice(inner))
        if found is not None:
            return found
    return fields or None


def _flipped(random: Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 4, 16)) if data else 0):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def _cut(random: Random, data: bytes) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def _doubled(random: Random, data: bytes) -> bytes:
    first = random.randrange(len(data) + 1)
    return data[: random.randint(first, len(data))] + data[first:]


def _inserted(random: Random, data: bytes) -> bytes:
    at = random.randrange(len(data) + 1)
    return data[:at] + random.randbytes(random.choice((1, 2, 8, 40))) + data[at:]


BYTES = {"bits": _flipped, "cut": _cut, "doubled": _doubled, "inserted": _inserted}


@dataclass(slots=True)
class Mutations:
    """Makes messages without end, from valid ones.

    renew  gives each message what must be its own, such as its number; told how many there were
    told   how many there were, by what was changed first
    """

    seeds: Sequence[bytes]
    shape: Shape
    random: Random
    renew: Callable[[list[Field], int], None] = lambda _fields, _number: None
    told: dict[str, int] = field(default_factory=dict)
    made: int = 0
    _apart: list[list[Field]] = field(init=False)

    def __post_init__(self) -> None:
        self._apart = [taken_apart(seed, self.shape) for seed in self.seeds]

    def valid(self) -> bytes:
        """Makes a message in which nothing is wrong."""
        return written(self._renewed())

    def next(self) -> bytes:
        """Makes a message with any change."""
        random, fields = self.random, self._renewed()
        chance = random.random()
        if chance < 0.25:
            name = random.choice(tuple(BYTES))
            return self._tell(name, BYTES[name](random, written(fields)))
        if chance < 0.3:
            other = random.choice(self.seeds)
            rest = other[random.randrange(len(other) + 1) :]
            return self._tell("spliced", _cut(random, written(fields)) + rest)
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
