"""What labels told, as it is kept: read as it was written, and only to a frame that it fits."""

from __future__ import annotations

import struct
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.frames.counters import TruthAccount
from monitor.matching.record import INLINE, Outcome
from monitor.store.entries import CorruptEntry, decode_labels, encode_labels, of_frame
from monitor.v1 import ledger_pb2 as pb
from tests.edges.kept_entries import a_frame, a_record
from tests.states import bits

quick = settings(deadline=None, max_examples=60)
seeds = st.integers(0, 2**32 - 1)


def message(seed=1, n=5, k=2) -> pb.KeptLabels:
    """A sound one with everything in it, to be spoilt."""
    return pb.KeptLabels.FromString(encode_labels(a_record(seed, n, k, whole=True)))


@quick
@given(seeds, st.integers(0, 30), st.integers(1, 6))
def test_labels_that_are_written_and_read_are_the_same_to_the_last_bit(seed, n, k):
    record = a_record(seed, n, k)
    found = of_frame(decode_labels(encode_labels(record)), a_frame(seed, n, k))
    assert bits(found) == bits(record)


@quick
@given(seeds, st.integers(0, 30))
def test_writing_again_what_was_read_gives_the_same_bytes(seed, n):
    data = encode_labels(a_record(seed, n, 3))
    assert encode_labels(decode_labels(data)) == data


@pytest.mark.parametrize("absent", ["truth_covariance", "objects", "stamp_ns", "clock_ns", "gate"])
def test_what_is_not_there_is_not_there_when_it_is_read(absent):
    record = a_record(1, 5, 2, whole=True)
    assert getattr(decode_labels(encode_labels(record)), absent) is not None
    nothing: dict[str, Any] = {absent: None}
    without = replace(record, **nothing)
    found = decode_labels(encode_labels(without))
    assert getattr(found, absent) is None
    assert bits(found) == bits(without)


@pytest.mark.parametrize("name", ["stamp_ns", "clock_ns"])
def test_a_time_of_zero_is_not_taken_for_absent(name):
    zero: dict[str, Any] = {name: 0}
    record = replace(a_record(1, 5, 2), **zero)
    assert getattr(decode_labels(encode_labels(record)), name) == 0


def test_labels_without_rows_are_as_wide_as_the_frame_they_are_of():
    record = a_record(1, 0, 3)
    found = decode_labels(encode_labels(record))
    assert found.truth.shape == (0, 0)
    assert of_frame(found, a_frame(1, 4, 3)).truth.shape == (0, 3)


def test_the_covariance_of_truth_is_kept_as_a_triangle_and_read_symmetric():
    record = a_record(1, 5, 3, whole=True)
    data = encode_labels(record)
    assert len(pb.KeptLabels.FromString(data).truth_covariance) == 5 * 6 * 8
    found = decode_labels(data).truth_covariance
    assert found is not None and record.truth_covariance is not None
    assert np.array_equal(found, found.transpose(0, 2, 1))
    assert np.array_equal(found, record.truth_covariance)


def test_arrays_are_little_endian_in_the_order_of_the_rows():
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
    found = message()
    del found.account[7:]
    account = decode_labels(found.SerializeToString()).account
    assert account.refused == found.account[6]
    assert (account.missed, account.unassigned) == (0, 0)


def test_what_came_with_a_frame_is_not_written_without_it():
    with pytest.raises(ValueError, match=r"revision: INLINE .* use encode_frame"):
        encode_labels(replace(a_record(1, 3, 2), revision=INLINE))


@pytest.mark.parametrize("revision", [0, 1, 2**32 - 1])
def test_every_revision_that_a_labeller_can_send_is_kept(revision):
    record = replace(a_record(1, 3, 2), revision=revision)
    assert decode_labels(encode_labels(record)).revision == revision


# ---- what is refused


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("settled", b"123", "settled: 3 bytes, where each number has 4"),
        ("settled", bytes(4), "outcome: 5 numbers, where 1 are expected"),
        ("outcome", b"\x04" * 5, "outcome: 4, where the bound is 4"),
        ("rows", bytes(12), "truth: 10 numbers, where 3 rows of 1 to 32 are expected"),
        ("rows", b"", "truth: 10 numbers, where 0 rows"),
        ("truth", b"", "truth: 0 numbers, where 5 rows"),
        ("truth", bytes(9), "truth: 9 bytes, where each number has 8"),
        ("truth", bytes(5 * 33 * 8), "truth: 165 numbers, where 5 rows of 1 to 32"),
        ("truth_covariance", bytes(8), "truth_covariance: 1 numbers, where 5 x 3 are expected"),
        ("gate", bytes(4), "gate: 4 numbers, where 5 are expected"),
        ("gate", b"\x03" * 5, "gate: 3, where the bound is 3"),
        ("class_rows", bytes(4), "true_class: 5 numbers, where 1 are expected"),
    ],
)
def test_labels_that_cannot_be_any_are_refused_and_the_field_is_named(field, value, said):
    found = message()
    assert decode_labels(found.SerializeToString())
    setattr(found, field, value)
    with pytest.raises(CorruptEntry, match=said):
        decode_labels(found.SerializeToString())


def test_more_counts_than_are_known_are_refused():
    found = message()
    found.account.append(1)
    with pytest.raises(CorruptEntry, match="account: 10 counts, where up to 9 are known"):
        decode_labels(found.SerializeToString())


def test_bytes_that_are_no_message_are_refused():
    with pytest.raises(CorruptEntry, match="labels: 3 bytes, where a KeptLabels is expected"):
        decode_labels(b"\xff\xff\xff")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"settled": np.full(5, 5)}, "settled: 5, where the bound is 5"),
        ({"rows": np.full(5, 9)}, "rows: 9, where the bound is 5"),
        ({"class_rows": np.full(5, 5)}, "class_rows: 5, where the bound is 5"),
        ({"true_class": np.full(5, 3)}, "true_class: 3, where the bound is 3"),
        ({"truth": np.zeros((5, 3))}, "truth: 3 dimensions, where the frame has 2"),
    ],
)
def test_labels_that_cannot_be_of_their_frame_are_refused(changed, said):
    frame, record = a_frame(1, 5, 2), a_record(1, 5, 2, whole=True)
    assert of_frame(record, frame) is record
    with pytest.raises(CorruptEntry, match=said):
        of_frame(replace(record, **changed), frame)


@quick
@given(seeds, st.lists(st.tuples(st.integers(0), st.integers(1, 255)), min_size=1, max_size=4))
def test_damaged_bytes_are_refused_or_read_as_labels_that_could_be(seed, flips):
    data = bytearray(encode_labels(a_record(seed, 4, 2, whole=True)))
    for place, change in flips:
        data[place % len(data)] ^= change
    try:
        found = decode_labels(bytes(data))
    except CorruptEntry:
        return
    assert found.rows.size == found.truth.shape[0]
    assert encode_labels(found)
