"""Integers of messages read in one pass, as protobuf reads them one by one, however they came."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from google.protobuf.internal.encoder import TagBytes
from google.protobuf.internal.wire_format import ZigZagEncode
from google.protobuf.message import Message
from hypothesis import example, given
from hypothesis import strategies as st

from monitor.store import varints
from monitor.store.state_definitions import InvalidState
from monitor.store.statistics_state import framed, parsed
from monitor.store.varints import read_integers
from monitor.v1 import statistics_state_pb2 as pb
from tests.states import bits, state_message

# As many bytes as a varint can have, and as few.
EDGES = sorted({2 ** (7 * i) + j for i in range(10) for j in (-1, 0)} | {2**64 - 1, 2**64 - 2})
naturals = st.sampled_from(EDGES) | st.integers(0, 2**64 - 1)
integers = st.sampled_from([-(2**63), 2**63 - 1]) | st.integers(-(2**63), 2**63 - 1)
# What newer code has added: bytes that may look like any varint, or go on beyond their end.
newer = st.sampled_from([b"", b"\xff" * 12, b"\x80", bytes(3)]) | st.binary(max_size=12)


def plainly(message: Message) -> dict[str, Any]:
    """As _read does, from the lists of protobuf."""
    found: dict[str, Any] = {}
    for part, value in message.ListFields():
        if isinstance(value, Message):
            found[part.name] = plainly(value)
        elif isinstance(value, int):
            found[part.name] = value
        elif part.message_type is not None:
            found[part.name] = [plainly(one) for one in value]
        else:
            signed = part.type == part.TYPE_SINT64
            found[part.name] = np.array(list(value), np.int64 if signed else np.uint64)
    return found


def add_newer(message: Message, added: bytes) -> None:
    if added:
        message.MergeFromString(framed(1000, added))


@st.composite
def panes(draw: st.DrawFn) -> pb.ClassPaneState:
    def listed(numbers: st.SearchStrategy[int]) -> list[int]:
        return draw(st.lists(numbers, max_size=6)) * draw(st.sampled_from([1, 1, 7]))

    def sums() -> pb.SparseSums:
        found = pb.SparseSums(key_steps=listed(naturals), width=draw(st.integers(0, 2**32 - 1)))
        found.values.extend(listed(integers))
        found.spill_keys.extend(listed(naturals))
        found.spill.extend(listed(integers))
        add_newer(found, draw(newer))
        return found

    def limbs() -> pb.ExactSums:
        found = pb.ExactSums(low=listed(integers), high=listed(integers))
        add_newer(found, draw(newer))
        return found

    tables = [sums() for _ in range(draw(st.integers(0, 3)))]
    pane = pb.ClassPaneState(number=draw(integers), n=draw(integers), tables=tables)
    if draw(st.booleans()):
        pane.companions.CopyFrom(limbs())
    if draw(st.booleans()):
        change = pb.ClassChange(tables=[sums()], moments=limbs())
        add_newer(change, draw(newer))
        pane.change.CopyFrom(change)
    add_newer(pane, draw(newer))
    return pane


@pytest.mark.parametrize("block", [1, 3, varints._BLOCK])
def test_integers_are_read_as_protobuf_reads_them_whatever_lies_between(block):
    @example(pb.ClassPaneState())
    @given(panes())
    def is_the_same(pane: pb.ClassPaneState) -> None:
        assert bits(read_integers(pane)) == bits(plainly(pane))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(varints, "_BLOCK", block)
        is_the_same()


@pytest.mark.parametrize("pane", [pb.PaneState, pb.ClassPaneState, pb.PredictedPaneState])
def test_panes_have_nothing_but_varints_and_messages_of_these(pane):
    waiting, known = [pane.DESCRIPTOR], set()
    while waiting:
        message = waiting.pop()
        known.add(message.full_name)
        for field in message.fields:
            if field.message_type is None:
                assert field.type in (field.TYPE_SINT64, field.TYPE_UINT64, field.TYPE_UINT32)
            elif field.message_type.full_name not in known:
                waiting.append(field.message_type)


def varint(value: int) -> bytes:
    rest = value >> 7
    return bytes([value & 127 | 128]) + varint(rest) if rest else bytes([value])


def one_by_one(number: int, values: Iterable[int]) -> bytes:
    return b"".join(TagBytes(number, 0) + varint(value) for value in values)


def in_bytes(cells: bytes) -> bytes:
    """A sound state of one pane, whose raw cells are these bytes."""
    state = state_message()
    entry = state.slices[0]
    raw = entry.panes[0].raw
    raw.ClearField("cells")
    stage = raw.SerializeToString() + framed(pb.StageState.CELLS_FIELD_NUMBER, cells)
    pane = framed(pb.PaneState.RAW_FIELD_NUMBER, stage)
    for field in ("slices", "class_slices", "predicted"):
        state.ClearField(field)
    entry.ClearField("panes")
    found = entry.SerializeToString() + framed(pb.SliceState.PANES_FIELD_NUMBER, pane)
    return state.SerializeToString() + framed(pb.StatisticsState.SLICES_FIELD_NUMBER, found)


def test_lists_that_another_encoder_wrote_in_pieces_or_one_by_one_are_the_same():
    cells = state_message().slices[0].panes[0].raw.cells
    wanted = bits(parsed(in_bytes(cells.SerializeToString())).state)
    many = len(cells.values) // 2
    first = pb.SparseSums(key_steps=cells.key_steps[:1], values=cells.values[:many])
    rest = pb.SparseSums(key_steps=cells.key_steps[1:], values=cells.values[many:])
    rest.width = cells.width
    assert not cells.spill_keys
    in_pieces = first.SerializeToString() + rest.SerializeToString()
    apart = (
        one_by_one(3, map(ZigZagEncode, cells.values))
        + one_by_one(2, [cells.width])
        + one_by_one(1, cells.key_steps)
    )
    for data in (in_pieces, apart):
        assert bits(parsed(in_bytes(data)).state) == wanted


CELLS = state_message().slices[0].panes[0].raw.cells
STEPS = framed(1, b"".join(map(varint, CELLS.key_steps))) + one_by_one(2, [CELLS.width])
*LESS, LAST = (varint(ZigZagEncode(value)) for value in CELLS.values)
BUT_ONE = b"".join(LESS)
VALUES = BUT_ONE + LAST
RAW = "slices[0].panes[0].raw"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (BUT_ONE + b"\x80", "no StatisticsState"),  # the last one is cut off
        (BUT_ONE + b"\x80" * 10 + b"\x01", "no StatisticsState"),  # eleven bytes
        (VALUES + b"\x00", f"{RAW}.cells.values: {len(CELLS.values) + 1} for "),
        (b"", f"{RAW}.cells.values: 0 for "),
        (BUT_ONE + b"\xff" * 9 + b"\x01", f"{RAW}.cells.values: not all in"),
        (bytes(2**20), f"{RAW}.cells.values: {2**20} for "),
    ],
)
def test_values_that_are_cut_off_or_too_long_or_not_as_many_as_the_cells_are_refused(values, said):
    assert parsed(in_bytes(STEPS + framed(3, VALUES))).state.slices[0].panes
    with pytest.raises(InvalidState) as refusal:
        parsed(in_bytes(STEPS + framed(3, values)))
    assert said in str(refusal.value)
