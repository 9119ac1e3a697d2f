"""Entries as bytes: what is read is what was written, to the last bit, or is refused."""

from __future__ import annotations

import struct
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.frames.counters import TruthAccount
from monitor.frames.detections import Estimates
from monitor.frames.frame import Header, TrackIds
from monitor.frames.space import Dimension, DimensionKind, Space, plain_space
from monitor.frames.stored import SliceKey, StoredFrame, stored_estimates
from monitor.matching.record import Outcome
from monitor.store.entries import (
    FRAME,
    LABELS,
    FrameEntry,
    Key,
    LabelEntry,
    NoEntry,
    bodies_of,
    decode_frame,
    decode_labels,
    encode_frame,
    encode_labels,
    unkeyed,
)
from monitor.v1 import frame_pb2
from monitor.v1 import ledger_pb2 as pb
from tests.edges.kept_entries import a_frame, a_record, an_entry
from tests.states import bits

quick = settings(max_examples=60)
FRAME_KEY = Key(1, 1, FRAME, "s", 1, None)
seeds = st.integers(0, 2**32 - 1)


def read(data: bytes) -> FrameEntry:
    return decode_frame(data, sequence=7, partition=-3)


def message(seed=1, n=6, k=3) -> pb.KeptFrame:
    """A sound one with everything in it, to be spoilt."""
    return pb.KeptFrame.FromString(encode_frame(an_entry(seed, n, k, whole=True)))


@quick
@given(seeds, st.integers(0, 30), st.integers(1, 6))
def test_a_frame_that_is_written_and_read_is_the_same_to_the_last_bit(seed, n, k):
    entry = an_entry(seed, n, k)
    found = decode_frame(encode_frame(entry), sequence=entry.sequence, partition=entry.partition)
    assert bits(found) == bits(entry)


@quick
@given(seeds, st.integers(0, 30))
def test_writing_again_what_was_read_gives_the_same_bytes(seed, n):
    data = encode_frame(an_entry(seed, n, 3))
    assert encode_frame(read(data)) == data


def test_numbers_of_every_kind_come_back_as_they_were():
    special = np.array([[0.0, -0.0], [5e-324, -1.7e308], [np.inf, -np.inf], [np.nan, 1 / 3]])
    identity = np.broadcast_to(np.eye(2), (4, 2, 2))
    sent = stored_estimates(Estimates(special, identity, np.ones(4, bool)))
    frame = replace(
        a_frame(1, 4, 2),
        sent=sent,
        frame_id=2**64 - 1,
        source=2**63,
        id=np.array([0, 1, 2**63, 2**64 - 1], np.uint64),
        stamp_ns=-(2**63),
        received=2**32 - 1,
        epoch=2**32 - 1,
    )
    assert bits(read(encode_frame(FrameEntry(7, -3, frame)))) == bits(FrameEntry(7, -3, frame))


def test_what_a_connection_asks_for_is_not_kept():
    frame = a_frame(6, 2, 2)
    header = replace(frame.header, return_tracks=True, quantile_levels=(0.5,))
    found = read(encode_frame(FrameEntry(1, 1, replace(frame, header=header)))).frame.header
    assert found == header
    assert (found.return_tracks, found.quantile_levels) == (False, ())


def test_angles_in_joint_is_not_stored():
    space = Space((Dimension("yaw", "rad", DimensionKind.ANGLE),), angles_in_joint=True)
    frame = replace(a_frame(6, 2, 1), header=Header("lidar", space, ("car", "bus", "person")))
    found = read(encode_frame(FrameEntry(1, 1, frame))).frame
    assert found.header.space == replace(space, angles_in_joint=False)


def test_frames_of_one_stream_share_their_header():
    one, two = (read(encode_frame(an_entry(seed, 3, 3))) for seed in (1, 2))
    assert one.frame.header.space is two.frame.header.space


def test_arrays_are_little_endian_in_the_order_of_the_detections():
    frame = StoredFrame(
        header=Header("lidar", plain_space(("x", "y"), "m"), ("car", "bus")),
        frame_id=9,
        stamp_ns=None,
        received=3,
        id=np.array([5, 2**40], np.uint64),
        class_index=np.array([1, 0]),
        slices=(SliceKey("car"), SliceKey("overflow", True)),
        slice=np.array([1, 0], np.uint16),
        sent=stored_estimates(
            Estimates(
                np.array([[1.0, 2.0], [3.0, 4.0]]),
                np.array([[[2.0, 0.5], [0.5, 3.0]], [[4.0, 0.0], [0.0, 5.0]]]),
                np.array([False, True]),
            )
        ),
        made=None,
        version=None,
        unusable=np.array([7], np.uint64),
        tracks=TrackIds(np.array([1, 0], np.uint64), np.array([True, False])),
    )
    found = pb.KeptFrame.FromString(encode_frame(FrameEntry(1, 1, frame)))
    assert found.id == struct.pack("<2Q", 5, 2**40)
    assert found.class_index == struct.pack("<2I", 1, 0)
    assert found.slice == struct.pack("<2H", 1, 0)
    assert found.sent.mean == struct.pack("<4d", 1, 2, 3, 4)
    assert found.sent.packed == struct.pack("<6d", 2, 0.5, 3, 4, 0, 5)
    assert found.sent.diagonal == b"\x00\x01"
    assert found.tracks.id == struct.pack("<2Q", 1, 0)
    assert found.tracks.known == b"\x01\x00"
    assert found.unusable == struct.pack("<Q", 7)
    assert [(one.name, one.overflow) for one in found.slices] == [
        ("car", False),
        ("overflow", True),
    ]


# ---- what is no frame


@quick
@given(seeds, st.lists(st.tuples(st.integers(0), st.integers(1, 255)), min_size=1, max_size=4))
def test_damaged_bytes_are_refused_or_read_with_arrays_of_equal_length(seed, flips):
    data = bytearray(encode_frame(an_entry(seed, 4, 2, whole=True)))
    for place, change in flips:
        data[place % len(data)] ^= change
    try:
        found = unkeyed(FRAME_KEY, bytes(data))
    except NoEntry:
        return
    assert isinstance(found, FrameEntry)
    frame = found.frame
    assert frame.class_index.size == frame.n and frame.sent.mean.shape[0] == frame.n
    assert encode_frame(found)


def test_every_frame_that_was_cut_off_is_refused_or_could_be_one():
    data = encode_frame(an_entry(1, 3, 2, whole=True))
    refused = 0
    for length in range(len(data)):
        try:
            unkeyed(FRAME_KEY, data[:length])
        except NoEntry:
            refused += 1
    # Protobuf cannot tell where a message ends: whole fields at the end may be missing.
    assert refused > 0.9 * len(data)


def test_a_field_of_newer_code_is_passed_over():
    found = message()
    newer = frame_pb2.StreamHeader(stream="x").SerializeToString()
    data = found.SerializeToString() + b"\xfa\x3e" + bytes([len(newer)]) + newer
    assert bits(read(data)) == bits(read(found.SerializeToString()))


# ---- labels


def labels_message(seed=1, n=5, k=2) -> pb.KeptLabels:
    """A sound one with everything in it, to be spoilt."""
    return pb.KeptLabels.FromString(encode_labels(a_record(seed, n, k, whole=True)))


@quick
@given(seeds, st.integers(0, 30), st.integers(1, 6))
def test_labels_that_are_written_and_read_are_the_same_to_the_last_bit(seed, n, k):
    record = a_record(seed, n, k)
    found = decode_labels(encode_labels(record))
    if not record.rows.size:
        found = replace(found, truth=found.truth.reshape(0, k))
    assert bits(found) == bits(record)


@pytest.mark.parametrize("name", ["stamp_ns", "clock_ns"])
def test_labels_a_time_of_zero_is_not_taken_for_absent(name):
    zero: dict[str, Any] = {name: 0}
    record = replace(a_record(1, 5, 2), **zero)
    assert getattr(decode_labels(encode_labels(record)), name) == 0


def test_labels_without_rows_have_truth_of_width_0():
    assert decode_labels(encode_labels(a_record(1, 0, 3))).truth.shape == (0, 0)


def test_arrays_of_labels_are_little_endian_in_the_order_of_the_rows():
    record = replace(
        a_record(1, 2, 2, whole=True),
        settled=np.array([1, 2**31]),
        outcome=np.array([Outcome.MATCHED, Outcome.UNMATCHED], np.uint8),
        truth=np.array([[1.0, 2.0], [3.0, 4.0]]),
        truth_covariance=np.array([[[2.0, 0.5], [0.5, 3.0]], [[4.0, -1.0], [-1.0, 5.0]]]),
        gate=np.array([2, 1], np.uint8),
        account=TruthAccount(*range(9)),
    )
    found = pb.KeptLabels.FromString(encode_labels(record))
    assert found.settled == struct.pack("<2I", 1, 2**31)
    assert found.outcome == b"\x01\x03"
    assert found.truth == struct.pack("<4d", 1, 2, 3, 4)
    assert found.truth_covariance == struct.pack("<6d", 2, 0.5, 3, 4, -1, 5)
    assert found.gate == b"\x02\x01"
    assert list(found.account) == list(range(9))


def test_counts_of_labels_keep_their_places():
    # They are kept by place: a new one comes behind these, or old files say something else.
    names = [field.name for field in fields(TruthAccount)]
    assert names[:9] == [
        "matched",
        "unusable",
        "orphan",
        "duplicate",
        "too_late",
        "ignored",
        "refused",
        "missed",
        "unassigned",
    ]


def test_outcomes_keep_their_numbers():
    assert {outcome.name: outcome.value for outcome in Outcome} == {
        "WAITING": 0,
        "MATCHED": 1,
        "IGNORED": 2,
        "UNMATCHED": 3,
    }


def test_counts_that_were_not_yet_kept_are_zero():
    found = labels_message()
    del found.account[7:]
    account = decode_labels(found.SerializeToString()).account
    assert account.refused == found.account[6]
    assert (account.missed, account.unassigned) == (0, 0)


# ---- what is none


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("settled", b"123"),
        ("settled", bytes(4)),
        ("rows", bytes(12)),
        ("truth", bytes(9)),
        ("truth_covariance", bytes(8)),
        ("gate", bytes(4)),
        ("class_rows", bytes(4)),
    ],
)
def test_labels_whose_arrays_are_not_of_one_length_are_refused(field, value):
    found = labels_message()
    assert decode_labels(found.SerializeToString())
    setattr(found, field, value)
    with pytest.raises(ValueError, match="size"):
        decode_labels(found.SerializeToString())


def test_more_counts_than_are_known_are_refused():
    found = labels_message()
    found.account.append(1)
    with pytest.raises(TypeError, match="positional arguments"):
        decode_labels(found.SerializeToString())


@quick
@given(seeds, st.lists(st.tuples(st.integers(0), st.integers(1, 255)), min_size=1, max_size=4))
def test_damaged_bytes_are_refused_or_read_as_labels_with_arrays_of_equal_length(seed, flips):
    data = bytearray(encode_labels(a_record(seed, 4, 2, whole=True)))
    for place, change in flips:
        data[place % len(data)] ^= change
    try:
        found = unkeyed(FRAME_KEY._replace(kind=LABELS), bytes(data))
    except NoEntry:
        return
    assert isinstance(found, LabelEntry)
    assert found.record.rows.size == found.record.truth.shape[0]
    assert encode_labels(found.record)


# ---- with what a ledger knows of an entry beside its bytes


@quick
@given(seeds, st.integers(0, 9), st.booleans())
def test_an_entry_that_is_taken_apart_and_put_together_is_the_same(seed, n, told):
    frame = an_entry(seed, n, 2)
    name = frame.frame.header.stream, frame.frame.frame_id
    record = a_record(seed, n, 2, whole=n > 0)
    labels = LabelEntry(frame.sequence + 1, frame.partition, *name, record, frame)
    parts = bodies_of(labels if told else frame)
    found = [unkeyed(key, body) for key, _, body in parts]
    wanted = [frame, replace(labels, frame=None)] if told else [frame]
    if n:
        assert bits(tuple(found)) == bits(tuple(wanted))
    assert all(-(2**63) <= key.frame_id < 2**63 for key, *_ in parts)


@quick
@given(seeds, st.integers(0), st.integers(1, 255), st.sampled_from(Key._fields))
def test_every_change_of_a_body_or_its_key_changes_the_checksum(seed, place, change, name):
    ((key, crc, body),) = bodies_of(an_entry(seed, 3, 2))
    data = bytearray(body)
    data[place % len(data)] ^= change
    value = getattr(key, name)
    other: dict[str, Any] = {name: f"{value}x" if name == "stream" else (value or 0) ^ 1}
    if name == "number" and value is None:
        other = {name: 0}
    assert key.crc(body) == crc
    assert key.crc(bytes(data)) != crc
    assert key._replace(**other).crc(body) != crc


def test_entries_of_a_kind_that_is_not_known_are_refused():
    ((key, _, body),) = bodies_of(an_entry(1, 3, 2))
    with pytest.raises(ValueError, match="kind: 9, where 1 to 3 are known"):
        unkeyed(key._replace(kind=9), body)
