"""Values and bytes as any client may write them; no tests."""

import struct

from hypothesis import strategies as st

names = st.text(max_size=5)
IDS = st.sampled_from([0, 1, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)
SPECIAL = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e300, 5e-324]


def doubles(count):
    """That many values of any bits at all: NaNs keep their payload, zeros their sign."""
    bits = st.binary(min_size=8 * count, max_size=8 * count)
    values = bits.map(lambda block: list(struct.unpack(f"<{count}d", block)))
    return values | st.sampled_from(SPECIAL).map(lambda value: [value] * count)


def packed(values):
    return struct.pack(f"<{len(values)}d", *values)


def varint(value, padding=0):
    """Base 128; `padding` bytes longer than need be."""
    groups: list[int] = []
    while value > 0x7F or not groups:
        groups.append(value & 0x7F)
        value >>= 7
    if value:
        groups.append(value)
    groups += [0] * padding
    return bytes(group | 0x80 for group in groups[:-1]) + bytes(groups[-1:])


def tagged(number, wire_type, content, padding=0):
    """One field; the content of wire type 2 gets its length."""
    length = varint(len(content), padding) if wire_type == 2 else b""
    return varint(number << 3 | wire_type, padding) + length + content


def in_request(frame):
    """A ProcessRequest with that frame."""
    return tagged(2, 2, frame)
