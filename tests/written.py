"""Requests as any client may write them: values, bytes and messages for hypothesis; no tests.

Fields in any order, repeated values unpacked, varints longer than need be, unknown fields.
"""

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


paddings = st.sampled_from([0, 0, 0, 1, 3, 8])


@st.composite
def unknown_fields(draw, highest_known):
    """A field that the message does not have, or one of its own with another wire type."""
    newer = st.integers(highest_known + 1, 2**29 - 1) | st.just(highest_known + 1)
    number = draw(newer | st.integers(1, highest_known))
    content = draw(
        st.sampled_from(
            [
                (0, b"\x01"),
                (1, bytes(8)),
                (2, b"text"),
                (2, b""),
                (5, bytes(4)),
                (3, varint(number << 3 | 4)),  # an empty group
            ]
        )
    )
    return tagged(number, *content)


@st.composite
def repeated_doubles(draw, number, values):
    """The values in one or more pieces, packed or not, in their order."""
    pieces = []
    rest = list(values)
    while rest:
        size = draw(st.integers(1, len(rest)))
        part, rest = rest[:size], rest[size:]
        if draw(st.booleans()):
            pieces += [tagged(number, 1, packed([value])) for value in part]
        else:
            pieces.append(tagged(number, 2, packed(part), draw(paddings)))
    return pieces


@st.composite
def written_detections(draw, k):
    """Bytes of a Detection in no particular order."""
    scalar = {1: (1, 8), 2: (5, 4), 3: (1, 8), 7: (1, 8), 9: (5, 4)}
    pieces = []
    for number, (wire_type, size) in scalar.items():
        for _ in range(draw(st.sampled_from([0, 1, 1, 1, 2]))):
            content = draw(st.binary(min_size=size, max_size=size))
            pieces.append(tagged(number, wire_type, content, draw(paddings)))
    counts = {
        4: [k, k, 0, k + 1],
        5: [k, k * (k + 1) // 2, k * k, 0, 1],
        6: [0, k, k - 1],
        8: [0, 0, k, 3 * k],
        10: [0, 0, k, 2 * k],
    }
    for number, choices in counts.items():
        count = draw(st.sampled_from(choices))
        pieces += draw(repeated_doubles(number, draw(doubles(count))))
    if draw(st.integers(0, 4)) == 0:
        pieces.append(draw(unknown_fields(10)))
    return b"".join(draw(st.permutations(pieces)))


@st.composite
def written_motions(draw):
    """Bytes of a Pose or a Twist, mostly of as many values as it should have."""
    pieces = []
    for number, count in ((1, 3), (2, draw(st.sampled_from([3, 4])))):
        pieces += draw(
            repeated_doubles(number, draw(doubles(draw(st.sampled_from([count] * 3 + [0, 1, 20])))))
        )
    if draw(st.integers(0, 9)) == 0:
        pieces.append(draw(unknown_fields(2)))
    return b"".join(draw(st.permutations(pieces)))


@st.composite
def written_frames(draw):
    """Bytes of a Frame in no particular order."""
    k = draw(st.integers(1, 8))
    pieces = [
        tagged(15, 2, body, draw(paddings))
        for body in draw(st.lists(written_detections(k), max_size=5))
    ]
    for number in (1, 2):
        for _ in range(draw(st.sampled_from([0, 1, 1, 2]))):
            pieces.append(tagged(number, 1, draw(st.binary(min_size=8, max_size=8))))
    for number in (3, 4):
        for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
            pieces.append(tagged(number, 2, draw(written_motions()), draw(paddings)))
    if draw(st.integers(0, 4)) == 0:
        pieces.append(draw(unknown_fields(15)))
    return b"".join(draw(st.permutations(pieces)))


@st.composite
def written_truths(draw):
    """Bytes of a FrameTruth in no particular order."""
    k = draw(st.integers(1, 8))
    pieces = [tagged(1, 2, draw(st.sampled_from([b"lidar", b"\xff", b""])))]
    if draw(st.booleans()):
        pieces.append(tagged(2, 1, draw(st.binary(min_size=8, max_size=8))))
    pieces.append(tagged(3, 0, varint(draw(st.integers(0, 1)), draw(paddings))))
    for _ in range(draw(st.integers(0, 5))):
        label = [tagged(1, 1, draw(st.binary(min_size=8, max_size=8)))] * draw(st.integers(0, 1))
        label += draw(repeated_doubles(2, draw(doubles(draw(st.sampled_from([k, k, 0, k + 1]))))))
        if draw(st.booleans()):
            # Any varint but 0 is true, however it is written.
            label.append(tagged(3, 0, varint(draw(st.integers(0, 300)), draw(paddings))))
        if draw(st.booleans()):
            label.append(tagged(4, 5, draw(st.binary(min_size=4, max_size=4)), draw(paddings)))
        if draw(st.integers(0, 4)) == 0:
            label.append(draw(unknown_fields(4)))
        pieces.append(tagged(15, 2, b"".join(draw(st.permutations(label)))))
    return b"".join(draw(st.permutations(pieces)))


@st.composite
def damaged(draw, messages):
    """A message cut short, with a flipped bit, or with bytes put in."""
    data = bytearray(draw(messages))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["cut", "flip", "insert"])):
            case "cut":
                del data[at:]
            case "flip" if at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
            case _:
                data[at:at] = draw(st.binary(max_size=4))
    return bytes(data)


def in_request(frame):
    """A ProcessRequest with that frame."""
    return tagged(2, 2, frame)
