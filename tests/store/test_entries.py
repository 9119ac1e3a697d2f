"""Entries as bytes: what is read is what was written, to the last bit, or is refused."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.frames.detections import Estimates
from monitor.frames.frame import (
    Header,
    Opinions,
    SliceKey,
    StoredEstimates,
    StoredFrame,
    TrackIds,
    stored_estimates,
)
from monitor.frames.space import Dimension, DimensionKind, FloatArray, Space
from monitor.frames.status import TruthAccount
from monitor.matching.objects import INLINE, LabelRecord, Outcome
from monitor.store.entries import (
    FRAME,
    LABELS,
    Entry,
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
from monitor.v1 import ledger_pb2 as pb
from tests.states import bits

seeds = st.integers(0, 2**32 - 1)
CLASSES = ("car", "bus", "person")
KINDS = (DimensionKind.LENGTH, DimensionKind.ANGLE, DimensionKind.ANGLE_MODULO_PI)


class Draw:
    """Draws parts of entries; whole: nothing is absent."""

    def __init__(self, seed: int, *, whole: bool = False) -> None:
        self.random, self.whole = np.random.default_rng(seed), whole

    def there(self) -> bool:
        return bool(self.random.random() < 0.5) or self.whole

    def ids(self, n: int) -> np.ndarray:
        return self.random.integers(0, 2**64, n, np.uint64)

    def time(self) -> int | None:
        return int(self.random.integers(-(2**62), 2**62)) if self.there() else None

    def tracks(self, n: int) -> TrackIds | None:
        found = TrackIds(self.ids(n), self.random.random(n) < 0.5)
        return found if self.there() else None

    def covariances(self, n: int, k: int) -> FloatArray:
        root = self.random.normal(size=(n, k, k))
        made: FloatArray = root @ root.transpose(0, 2, 1)
        return (made + made.transpose(0, 2, 1)) / 2  # symmetric to the last bit

    def estimates(self, n: int, k: int) -> StoredEstimates:
        covariance = self.covariances(n, k)
        diagonal = self.random.random(n) < self.random.choice([0.0, 0.5, 1.0])
        covariance[diagonal] *= np.eye(k)
        return stored_estimates(Estimates(self.random.normal(size=(n, k)), covariance, diagonal))

    def opinions(self, n: int) -> Opinions:
        rows = np.flatnonzero(self.random.random(n) < 0.7)
        size = rows.size, int(self.random.integers(1, 4))
        place = SliceKey("lidar") if self.there() else None
        return Opinions(place, rows, self.random.dirichlet(np.ones(len(CLASSES)), size))


def a_frame(seed: int, n: int = 4, k: int = 2, *, whole: bool = False) -> StoredFrame:
    draw = Draw(seed, whole=whole)
    small = draw.random.integers(1, 5, 5).tolist()
    dimensions = tuple(Dimension(f"d{i}", "" if i % 3 else "m", KINDS[i % 3]) for i in range(k))
    return StoredFrame(
        header=Header("lidar", Space(dimensions), CLASSES, "lidar_top"),
        frame_id=int(draw.ids(1)[0]),
        stamp_ns=draw.time(),
        received=n + small[0],
        id=draw.ids(n),
        class_index=draw.random.integers(0, len(CLASSES), n),
        slices=(SliceKey("lidar/car"), SliceKey("overflow", overflow=True)),
        slice=draw.random.integers(0, 2, n).astype(np.uint16),
        sent=draw.estimates(n, k),
        made=draw.estimates(n, k) if draw.there() else None,
        version="v7" if draw.there() else None,
        unusable=np.sort(draw.ids(small[1])),
        tracks=draw.tracks(n),
        source=int(draw.random.integers(2**62)),
        opinions=draw.opinions(n) if draw.there() else None,
        epoch=small[2],
        bare=small[3],
    )


def a_record(seed: int, n: int = 4, k: int = 2, *, whole: bool = False) -> LabelRecord:
    """Labels of a frame of n detections."""
    draw = Draw(seed, whole=whole)
    settled = np.flatnonzero((draw.random.random(n) < 0.8) | whole)
    rows = settled[(draw.random.random(settled.size) < 0.7) | whole]
    class_rows = settled[(draw.random.random(settled.size) < 0.3) | whole]
    m = rows.size
    return LabelRecord(
        revision=int(draw.random.integers(2**32)),
        replaces=draw.there(),
        settled=settled,
        outcome=draw.random.integers(0, len(Outcome), settled.size).astype(np.uint8),
        rows=rows,
        truth=draw.random.normal(size=(m, k)),
        truth_covariance=draw.covariances(m, k) if m and draw.there() else None,
        objects=draw.tracks(m),
        class_rows=class_rows,
        true_class=draw.random.integers(0, len(CLASSES), class_rows.size),
        stamp_ns=draw.time(),
        clock_ns=draw.time(),
        generation=int(draw.random.integers(5)),
        delay_ns=int(draw.random.integers(-(2**40), 2**40)),
        live=draw.there(),
        account=TruthAccount(*draw.random.integers(0, 2**40, 9).tolist()),
        objects_told=draw.there(),
        gate=draw.random.integers(3, size=m).astype(np.uint8) if m and draw.there() else None,
    )


def frame_entry(seed: int, n: int = 4, k: int = 2, *, whole: bool = False) -> FrameEntry:
    """A frame, half of them with labels that came with it; whole: all of them."""
    inline = replace(a_record(seed, n, k, whole=whole), revision=INLINE)
    frame = a_frame(seed, n, k, whole=whole)
    return FrameEntry(1 + seed, seed % 7 - 3, frame, inline if whole or seed % 2 else None)


def label_entry(seed: int, n: int = 4, k: int = 2, *, whole: bool = False) -> LabelEntry:
    """Labels that bring their frame."""
    frame = frame_entry(seed, n, k)
    name = frame.frame.header.stream, frame.frame.frame_id
    record = a_record(seed, n, k, whole=whole)
    return LabelEntry(frame.sequence + 1, frame.partition, *name, record, frame)


def written(entry: FrameEntry) -> bytes:
    return b"".join(encode_frame(entry))


def read(entry: FrameEntry) -> FrameEntry:
    return decode_frame(written(entry), sequence=entry.sequence, partition=entry.partition)


@given(seeds, st.integers(0, 20), st.integers(1, 6), st.booleans())
def test_an_entry_that_is_written_and_read_is_the_same(seed, n, k, told):
    entry: Entry = label_entry(seed, n, k) if told else frame_entry(seed, n, k)
    parts = bodies_of(entry)
    found = [unkeyed(body.key, body.data) for body in parts]
    wanted: list[Entry] = [entry]
    if isinstance(entry, LabelEntry):
        brought = entry.frame
        assert brought is not None
        if not entry.record.rows.size:  # without rows, the width of truth is not known
            entry = replace(entry, record=replace(entry.record, truth=np.zeros((0, 0))))
        wanted = [brought, replace(entry, frame=None)]
    assert bits(tuple(found)) == bits(tuple(wanted))
    assert all(-(2**63) <= body.key.frame_id < 2**63 for body in parts)
    assert all(body.size == len(body.data) for body in parts)
    # What was read is written as the same bytes.
    again = [one for other in found for one in bodies_of(other)]
    assert [(body.key, body.crc, body.data) for body in again] == [
        (body.key, body.crc, body.data) for body in parts
    ]


def test_numbers_of_every_kind_come_back_as_they_were():
    special = np.array([[0.0, -0.0], [5e-324, -1.7e308], [np.inf, -np.inf], [np.nan, 1 / 3]])
    identity = np.broadcast_to(np.eye(2), (4, 2, 2))
    frame = replace(
        a_frame(1),
        sent=stored_estimates(Estimates(special, identity, np.ones(4, bool))),
        frame_id=2**64 - 1,
        source=2**63,
        id=np.array([0, 1, 2**63, 2**64 - 1], np.uint64),
        stamp_ns=-(2**63),
        received=2**32 - 1,
        epoch=2**32 - 1,
    )
    assert bits(read(FrameEntry(7, -3, frame))) == bits(FrameEntry(7, -3, frame))
    # A time of zero is not taken for absent.
    record = decode_labels(encode_labels(replace(a_record(1), stamp_ns=0, clock_ns=0)))
    assert (record.stamp_ns, record.clock_ns) == (0, 0)


def test_counts_and_outcomes_keep_their_places():
    # A new one comes behind these, or old files say something else.
    names = [field.name for field in fields(TruthAccount)]
    assert names[:9] == [
        *("matched", "unusable", "orphan", "duplicate", "too_late", "ignored", "refused"),
        *("missed", "unassigned"),
    ]
    assert [outcome.name for outcome in Outcome] == ["WAITING", "MATCHED", "IGNORED", "UNMATCHED"]
    assert [outcome.value for outcome in Outcome] == [0, 1, 2, 3]


def labels_message() -> pb.KeptLabels:
    """A sound one with everything in it, to be spoilt."""
    return pb.KeptLabels.FromString(encode_labels(a_record(1, 5, whole=True)))


def test_a_field_of_newer_code_is_passed_over_and_counts_of_older_code_are_zero():
    data = written(frame_entry(1, whole=True))
    newer = decode_frame(data + b"\xfa\x3e\x01x", sequence=1, partition=1)
    assert bits(newer) == bits(decode_frame(data, sequence=1, partition=1))
    found = labels_message()
    del found.account[7:]
    account = decode_labels(found.SerializeToString()).account
    assert account.refused == found.account[6]
    assert (account.missed, account.unassigned) == (0, 0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("settled", b"123"),
        ("rows", bytes(12)),
        ("truth", bytes(9)),
        ("truth_covariance", bytes(8)),
        ("gate", bytes(4)),
        ("outcome", bytes(2)),
        ("true_class", b""),
        ("account", range(10)),
    ],
)
def test_labels_whose_arrays_are_not_of_one_length_are_refused(field, value):
    found = labels_message()
    key = Key(1, 1, LABELS, "s", 1, None)
    assert unkeyed(key, found.SerializeToString())
    if field == "account":
        found.account[:] = value
    else:
        setattr(found, field, value)
    with pytest.raises(NoEntry, match=r"size|positional arguments"):
        unkeyed(key, found.SerializeToString())


def test_a_frame_that_was_cut_off_is_nearly_always_refused():
    data, refused = written(frame_entry(1, 3, whole=True)), 0
    for length in range(len(data)):
        try:
            unkeyed(Key(1, 1, FRAME, "s", 1, None), data[:length])
        except NoEntry:
            refused += 1
    assert refused > 0.9 * len(data)  # whole fields at the end may be missing


@given(seeds, st.booleans(), st.lists(st.tuples(st.integers(0), st.integers(1, 255)), max_size=4))
def test_damaged_bytes_are_refused_or_read_with_arrays_of_equal_length(seed, told, flips):
    body = written(frame_entry(seed, whole=True))
    if told:
        body = encode_labels(a_record(seed, whole=True))
    data = bytearray(body)
    for place, change in flips:
        data[place % len(data)] ^= change
    try:
        found = unkeyed(Key(1, 1, LABELS if told else FRAME, "s", 1, None), bytes(data))
    except NoEntry:
        return
    assert isinstance(found, LabelEntry if told else FrameEntry)
    if isinstance(found, FrameEntry):
        assert found.frame.class_index.size == found.frame.sent.mean.shape[0] == found.frame.n
    else:
        assert found.record.rows.size == found.record.truth.shape[0]
    assert bodies_of(found)


@given(seeds, st.integers(0), st.integers(1, 255), st.sampled_from(Key._fields))
def test_every_change_of_a_body_or_its_key_changes_the_checksum(seed, place, change, name):
    ((key, crc, _, pieces),) = bodies_of(frame_entry(seed, 3))
    body = b"".join(pieces)
    data = bytearray(body)
    data[place % len(data)] ^= change
    value = getattr(key, name)
    other: dict[str, Any] = {name: f"{value}x" if name == "stream" else (value or 0) ^ 1}
    if name == "number" and value is None:
        other = {name: 0}
    assert key.crc(body) == crc
    assert key.crc(bytes(data)) != crc
    assert key._replace(**other).crc(body) != crc
