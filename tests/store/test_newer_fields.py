"""Fields that newer code has added to a state go out again, wherever they were."""

from __future__ import annotations

import pytest
from google.protobuf.internal.encoder import TagBytes

from monitor.store import statistics_state
from monitor.store.state_definitions import InvalidState
from monitor.store.statistics_state import StoredState, decode, parsed
from monitor.v1 import statistics_state_pb2 as pb
from tests.states import bits, counted, in_parts, joined, state_message


def field(number: int, value: bytes) -> bytes:
    """Writes a field of bytes, as newer code might."""
    return TagBytes(number, 2) + bytes([len(value)]) + value


ADDED = field(1000, b"newer")


def with_unknown_fields(data: bytes = ADDED) -> bytes:
    """Writes a state with one more field on every level."""
    state = state_message()
    levels = [*state.slices, *state.class_slices, state.slices[0].panes[0], state.bins]
    levels += [state.slices[1].panes[0].raw.cells, state.class_slices[0].panes[0], state.windows]
    for entry in levels:
        entry.MergeFromString(data)
    return state.SerializeToString() + data


def added(data: bytes, value: bytes = ADDED) -> int:
    return data.count(value)


def test_unknown_fields_survive_a_rewrite_at_every_level():
    newer = with_unknown_fields()
    stored = parsed(newer)
    assert bits(stored.state) == bits(parsed(state_message().SerializeToString()).state)
    rewritten = joined(stored)
    assert added(rewritten) == added(newer) == 11
    # As newer code reads it: a field that was added to a slice is found under its name.
    found = pb.StatisticsState.FromString(rewritten)
    for wanted in pb.StatisticsState.FromString(newer).slices:
        same = [
            s for s in found.slices if (s.name, s.dimensions) == (wanted.name, wanted.dimensions)
        ]
        there = sum(added(entry.SerializeToString()) for entry in same)
        assert there == added(wanted.SerializeToString())
    assert added(found.bins.SerializeToString()) == 1
    assert joined(parsed(rewritten)) == rewritten
    assert parsed(rewritten).unknown == stored.unknown
    assert added(decode(in_parts(stored)).unknown) == 11


def test_a_merge_keeps_what_both_have_added():
    other = field(1001, b"other")
    merged = parsed(with_unknown_fields()).merge(parsed(with_unknown_fields(other)))
    data = joined(merged)
    assert (added(data), added(data, other)) == (11, 11)
    plain = parsed(state_message().SerializeToString())
    assert bits(parsed(data).state) == bits(plain.state.merge(plain.state))


def test_what_is_added_is_bounded(monkeypatch):
    half = StoredState(counted([]), bytes(statistics_state.MOST_UNKNOWN_BYTES // 2 + 1))
    with pytest.raises(InvalidState, match=f"above {statistics_state.MOST_UNKNOWN_BYTES}"):
        half.merge(half)
    monkeypatch.setattr(statistics_state, "MOST_UNKNOWN_BYTES", 10 * len(ADDED))
    part = state_message()
    part.MergeFromString(ADDED)
    assert added(decode([part]).unknown) == 1
    parts = [pb.StatisticsState.FromString(ADDED) for _ in range(11)]
    with pytest.raises(InvalidState, match="unknown fields: 88 bytes of them, above 80"):
        decode([state_message(), *parts])
