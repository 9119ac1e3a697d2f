"""Messages whose fields are all integers, such as a pane of sums, read into arrays in one pass.

Protobuf makes a Python object of every number of a list, which costs more than all else that is
done with a state. What it has read, it writes again in a few microseconds; and it writes nothing
but varints, whatever was sent: lists are packed and whole, fields are in the order of their
numbers, and those that we do not know are behind the others of their message. So the bytes are
checked by protobuf, and only the numbers are read here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray

from monitor.frames.space import IntArray

NaturalArray = NDArray[np.uint64]

# The fields of a message that are there, by name: lists of sint64 as int64 and those of uint64 as
# uint64, numbers as they are, and messages likewise.
Read = Mapping[str, Any]

# Varints that are read in one go: what that takes is of a size that does not depend on the message.
_BLOCK = 2**15
_ONE = np.uint64(1)
_SEVEN = np.uint64(127)
# Of the first eight bytes of a varint by its length: seven bits of each that belongs to it.
_BITS = np.array([(1 << 8 * min(length, 8)) // 255 * 127 for length in range(11)], np.uint64)
# How two groups of bits become one, three times: those that stay, those that move, and how far.
_TOGETHER = [
    (np.uint64(0x007F007F007F007F), np.uint64(0x7F007F007F007F00), np.uint64(1)),
    (np.uint64(0x00003FFF00003FFF), np.uint64(0x3FFF00003FFF0000), np.uint64(2)),
    (np.uint64(0x000000000FFFFFFF), np.uint64(0x0FFFFFFF00000000), np.uint64(4)),
]


def read_integers(message: Message) -> Read:
    """Reads a message that has integers alone, lists of them, and messages of this kind."""
    return _read(message, *_varints(message.SerializeToString()), 0)


def _read(
    message: Message, values: NaturalArray, signed: IntArray, ends: IntArray, at: int
) -> Read:
    """Reads from the varint `at` on; values, signed, ends as of _varints()."""
    found: dict[str, Any] = {}
    for part, value in message.ListFields():
        if isinstance(value, int):  # the tag and it
            found[part.name] = value
            at += 2
        elif part.message_type is None:  # the tag, the length and the numbers
            numbers = signed if part.type == part.TYPE_SINT64 else values
            # Copied, as it would hold on to all the others.
            found[part.name] = numbers[at + 2 : at + 2 + len(value)].copy()
            at += 2 + len(value)
        else:
            several = not isinstance(value, Message)
            read = []
            for one in value if several else (value,):
                read.append(_read(one, values, signed, ends, at + 2))
                # Fields that we do not know may lie before its end. Where they seem to go on
                # beyond it, that is the next tag.
                last = int(ends[at + 1]) + int(values[at + 1])
                at = int(ends.searchsorted(last, "right"))
            found[part.name] = read if several else read[0]
    return found


def _varints(data: bytes) -> tuple[NaturalArray, IntArray, IntArray]:
    """Reads bytes as varints, whose bits from the 64th on are left out; so is one that is cut off.

    returns  the numbers, the same as sint64, and the place of the last byte of each
    """
    octets = np.frombuffer(data + bytes(8), np.uint8)
    ends = (octets[: len(data)] < 128).nonzero()[0]
    # Most are of one byte.
    values = octets[ends].astype(np.uint64)
    signed = np.empty_like(ends)
    # Eight bytes from each byte on, as one number.
    eight = np.ndarray((len(data),), "<u8", octets, strides=(1,))
    begin = 0
    for start in range(0, ends.size, _BLOCK):
        block = values[start : start + _BLOCK]
        last = ends[start : start + _BLOCK]
        first = np.empty_like(last)
        first[0], first[1:] = begin, last[:-1] + 1
        begin = int(last[-1]) + 1
        long = (last > first).nonzero()[0]
        if long.size:
            first = first[long]
            length = last[long] - first + 1
            found = eight[first]
            found &= _BITS.take(length, mode="clip")
            for stay, move, bits in _TOGETHER:
                moved = found & move
                moved >>= bits
                found &= stay
                found |= moved
            for byte in range(8, min(int(length.max()), 10)):
                longer = (length > byte).nonzero()[0]
                found[longer] |= (octets[first[longer] + byte] & _SEVEN) << np.uint64(7 * byte)
            block[long] = found
        # Zigzag: 0, 1, 2, 3, ... stand for 0, -1, 1, -2, ...
        half = signed[start : start + _BLOCK]
        np.right_shift(block, _ONE, out=half.view(np.uint64))
        half ^= -(block & _ONE).view(np.int64)
    return values, signed, ends
