"""Frames in waiting: what is kept is what was sent and what was made of it, within the bytes
allowed, the oldest dropped first."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.frames.detections import Estimates, Limits, Reason, ReceivedDetections, examine
from monitor.frames.frame import Header, Opinions, ReceivedFrame, ReportedTracks, SliceKey, TrackIds
from monitor.frames.slices import ClassSliceTable, SliceTable, StreamSlices
from monitor.frames.space import plain_space
from monitor.matching.objects import INLINE, LabelRecord, Outcome
from monitor.pipeline import pending
from monitor.pipeline.pending import (
    FRAME_OVERHEAD,
    RECORD_OVERHEAD,
    DroppedFrame,
    FrameKey,
    LedgerFrames,
    PendingFrame,
    PendingStore,
    tracks_of,
)
from monitor.pipeline.recalibrators import Recalibrated
from monitor.pipeline.streams import Stream
from monitor.recalibration.selection import IDENTITY
from tests import laws
from tests.received import FORMS, FULL, TRIANGLE, VARIANCES, Sent, detections, in_form

ROOMY = 2**20
NONE = np.zeros(0, np.int64)


def header_of(k: int = 3, stream: str = "s") -> Header:
    return Header(stream, plain_space(tuple("abcd"[:k])), ("car", "bus"))


def received_of(forms, k: int = 3) -> ReceivedDetections:
    """One row for each form; ids in no order."""
    random = np.random.default_rng(0)
    rows = []
    for id, form in zip((random.permutation(len(forms)) + 10).tolist(), forms, strict=True):
        root = random.normal(size=(k, k)) + 2 * np.eye(k)
        rows.append(Sent(id, tuple(random.normal(size=k)), in_form(root @ root.T, form)))
    return detections(rows)


def pending_frame(
    received: ReceivedDetections,
    *,
    k: int = 3,
    number: int = 0,
    stream: str = "s",
    stamp_ns: int | None = 0,
    doubled: bool = False,
    kept: bool = False,
    partition: int = 0,
    tracks: TrackIds | None = None,
    opinions: Opinions | None = None,
) -> PendingFrame:
    """A frame as the pipeline makes it.

    doubled  some recalibrator has changed all of it
    """
    header, table = header_of(k, stream), SliceTable(frozenset(), 1)
    table.place(header.space, "all")
    examined = examine(received, header.space, 2, Limits())
    batch = examined.batch
    made = sent = batch.sent
    if doubled:
        made = Estimates(sent.mean + 1.0, 2.0 * sent.covariance, sent.diagonal)
    slices, sound = np.zeros(batch.id.size, np.int64), np.ones(batch.id.size, bool)
    by = StreamSlices(table, header.space, stream, header.classes)
    stored = LedgerFrames(table, ClassSliceTable(False, 1), False).stored(
        Stream(header, by, 9, np.ones(k)),
        ReceivedFrame(number, stamp_ns, received),
        examined,
        Recalibrated(IDENTITY, sent, slices, (), made, sound, True, Reason.NONE),
        tracks,
        opinions,
        3,
    )
    frame = PendingFrame(stored, slices, partition)
    frame.kept = kept
    return frame


def waiting(n: int, number: int = 0, form: str = FULL, **more: Any) -> PendingFrame:
    """A frame of n detections."""
    return pending_frame(received_of([form] * n), number=number, **more)


def record_of(
    which, *, revision: int = 0, replaces=False, outcome=Outcome.UNMATCHED, **more
) -> LabelRecord:
    """Labels that settle some rows; what they tell of them is counted elsewhere."""
    settled = np.array(which, np.int64)
    codes = np.full(settled.size, outcome, np.uint8)
    record = LabelRecord(
        revision=revision,
        replaces=replaces,
        settled=settled,
        outcome=codes,
        truth=np.zeros((0, 3)),
    )
    return replace(record, **more)


def store_of(*frames: PendingFrame, max_bytes: int = ROOMY) -> PendingStore:
    store = PendingStore(max_bytes)
    for frame in frames:
        store.add(frame)
    return store


# ---- one frame


@given(st.lists(st.sampled_from(FORMS), max_size=8), st.integers(1, 4), st.booleans(), st.randoms())
def test_what_was_sent_and_what_was_made_of_it_come_back_bit_for_bit(forms, k, doubled, random):
    received = received_of(forms, k)
    batch = examine(received, header_of(k).space, 2, Limits()).batch
    stored = pending_frame(received, k=k, doubled=doubled).stored
    rows = np.array(random.sample(range(len(forms)), random.randint(0, len(forms))), np.int64)
    factor, shift = (2.0, 1.0) if doubled else (1.0, 0.0)
    mean, covariance = batch.sent.mean, batch.sent.covariance
    expected = [(stored.sent, mean, covariance)]
    expected += [(stored.made or stored.sent, mean + shift, factor * covariance)]
    for estimates, mean, covariance in expected:
        found = estimates.estimates(rows)
        laws.assert_same(found.mean, mean[rows])
        laws.assert_same(found.covariance, covariance[rows])
        laws.assert_same(found.diagonal, batch.sent.diagonal[rows])
    assert (stored.made is None) == (not doubled)
    laws.assert_same(stored.id, batch.id)
    laws.assert_same(stored.class_index, batch.class_index)


def test_a_frame_is_kept_with_its_numbers_and_the_ids_of_what_cannot_be_compared():
    rows = [Sent(id, (0.0,) * 3, (1.0,) * 3 if id % 2 else ()) for id in (8, 3, 2, 7)]
    frame = pending_frame(detections(rows), number=7, stream="t", stamp_ns=None)
    stored = frame.stored
    assert (frame.key, frame.space) == (("t", 7), header_of().space)
    assert (stored.stamp_ns, stored.frame_id, stored.source, stored.epoch) == (None, 7, 9, 3)
    assert (stored.received, stored.n, stored.bare) == (4, 2, 0)
    assert stored.unusable.tolist() == [2, 8]
    assert frame.nbytes == FRAME_OVERHEAD + 2 * (OWN + DIAGONAL) + 2 * 8


# Bytes of a detection: id, class and slice by key; index and fate.
OWN = 8 + 8 + 2 + (8 + 1)
# Three means, three or six covariances, one flag.
DIAGONAL, GAUSSIAN = 8 * 3 + 8 * 3 + 1, 8 * 3 + 8 * 6 + 1
TRACKS = TrackIds(np.arange(10).astype(np.uint64), np.ones(10, bool))
# Of two rows, four of two classes each.
OPINIONS = Opinions(SliceKey("all"), np.array([1, 5]), np.full((2, 4, 2), 0.5))


@pytest.mark.parametrize(
    ("n", "more", "expected"),
    [
        (0, {}, 0),
        (10, {}, 10 * (OWN + GAUSSIAN)),
        (10, {"form": TRIANGLE}, 10 * (OWN + GAUSSIAN)),
        (10, {"form": VARIANCES}, 10 * (OWN + DIAGONAL)),
        (10, {"doubled": True}, 10 * (OWN + 2 * GAUSSIAN)),
        (10, {"tracks": TRACKS}, 10 * (OWN + GAUSSIAN + 8 + 1)),
        (10, {"opinions": OPINIONS}, 10 * (OWN + GAUSSIAN) + 2 * (8 + 4 * 2 * 8)),
    ],
)
def test_the_bytes_of_a_frame_are_those_of_its_arrays_and_an_overhead(n, more, expected):
    assert waiting(n, **more).nbytes == FRAME_OVERHEAD + expected


def test_a_record_takes_the_bytes_of_its_arrays_and_an_overhead():
    frame = waiting(5)
    store, before, rows = store_of(frame), frame.nbytes, np.array([1, 3])
    told = record_of(
        rows,
        rows=rows,
        truth=np.zeros((2, 3)),
        truth_covariance=np.zeros((2, 3, 3)),
        objects=TrackIds(np.zeros(2, np.uint64), np.ones(2, bool)),
        class_rows=rows,
        true_class=rows,
        gate=np.zeros(2, np.uint8),
    )
    store.told(frame, told)
    of_row = (8 + 1) + (8 + 3 * 8 + 9 * 8) + (8 + 1) + (8 + 8) + 1
    assert store.bytes == frame.nbytes == before + RECORD_OVERHEAD + 2 * of_row


def test_a_detection_has_the_track_of_its_detector_else_ours():
    rows = np.array([0, 2])
    theirs = [Sent(id, (0.0,) * 3, (1.0,) * 3, upstream_track=id or None) for id in range(3)]
    ours = ReportedTracks(
        id=np.array([5, 6, 7], np.uint64),
        class_index=NONE,
        status=np.zeros(0, np.uint8),
        detections=NONE,
        detection=np.array([2, -1, 0]),  # a track that coasts has none
        nis=np.zeros(0),
        state=np.zeros((0, 6)),
        covariance=np.zeros((0, 6, 6)),
    )
    found = tracks_of(detections(theirs), rows, ours)
    assert found is not None
    assert (found.id.tolist(), found.known.tolist()) == ([0, 2], [False, True])
    bare = received_of([FULL] * 3)
    found = tracks_of(bare, np.arange(3), ours)
    assert found is not None
    assert (found.id.tolist(), found.known.tolist()) == ([7, 0, 5], [True, False, True])
    assert tracks_of(bare, rows, None) is None


# ---- what labels tell


def test_what_is_told_is_there_until_a_record_takes_all_of_it_back():
    frame, stranger = waiting(5), waiting(3)
    store = store_of(frame)
    assert (frame.revision, frame.waiting, frame.resolved.tolist()) == (INLINE, 5, [False] * 5)
    first = [
        record_of([0], outcome=Outcome.MATCHED, revision=INLINE),
        record_of([1, 2], outcome=Outcome.IGNORED, objects_told=True),
    ]
    assert [store.told(frame, record).tolist() for record in first] == [[], []]
    assert (frame.records, frame.revision, frame.objects_told) == (first, 0, True)
    assert (frame.waiting, frame.resolved.tolist()) == (2, [True, True, True, False, False])
    last = record_of([2, 4], revision=3, replaces=True)
    back = store.told(frame, last)
    assert back.tolist() == [Outcome.MATCHED, Outcome.IGNORED, Outcome.IGNORED]
    assert (frame.records, frame.revision, frame.objects_told) == ([last], 3, False)
    assert frame.outcome.tolist() == [0, 0, Outcome.UNMATCHED, 0, Outcome.UNMATCHED]
    store.told(frame, record_of([], revision=1))
    assert frame.revision == 3
    assert (store.bytes, store.unkept) == (frame.nbytes, 3)
    # What is told of a frame that the store has not is entered in that frame alone.
    store.told(stranger, record_of([0, 1]))
    assert (stranger.waiting, store.bytes, store.unkept) == (1, frame.nbytes, 3)


# ---- the store


def test_the_oldest_frames_go_first_and_are_remembered_with_their_stamps():
    frames = [waiting(n, i, stamp_ns=i) for i, n in enumerate((2, 4, 6))]
    store = store_of(*frames[:2], max_bytes=frames[0].nbytes + frames[1].nbytes)
    assert len(store) == 2
    store.max_bytes = frames[1].nbytes + frames[2].nbytes
    assert store.add(frames[2]) == [frames[0]]
    assert store.get(("s", 1)) is frames[1]
    assert [("s", i) in store for i in range(3)] == [False, True, True]
    assert store.gone(("s", 0)) == DroppedFrame(0, 0, False)
    assert store.get(("t", 1)) is None
    assert store.gone(("s", 1)) is store.gone(("t", 0)) is None
    assert [store.knows(("s", i), i) for i in (0, 1, 7)] == [True, True, False]
    assert not store.knows(("s", 0), 6) and not store.knows(("s", 0), None)
    # One that comes anew is known at its own time alone.
    again = waiting(1, stamp_ns=6)
    assert store.add(again) == [frames[1]]
    assert store.gone(("s", 0)) is None
    assert [store.knows(("s", 0), stamp) for stamp in (0, 6)] == [False, True]
    # One that is larger than the store goes at once; the next one keeps a wanted frame.
    store.max_bytes = FRAME_OVERHEAD
    large = waiting(3, 8)
    assert store.add(large) == [frames[2], again, large]
    wanted = waiting(3, 9)
    assert store.add(wanted, wanted=True) == []
    assert store.add(waiting(0, 10)) == [wanted]
    assert (len(store), store.bytes, store.unkept) == (1, FRAME_OVERHEAD, 0)


def test_only_so_many_dropped_frames_are_remembered(monkeypatch):
    monkeypatch.setattr(pending, "REMEMBERED", 3)
    store = store_of(*[waiting(0, i) for i in range(6)], max_bytes=FRAME_OVERHEAD)

    def remembered() -> list[bool]:
        return [store.gone(("s", i)) is not None for i in range(6)]

    assert remembered() == [False, False, True, True, True, False]
    # One that is named again is remembered longer.
    store.remember(("s", 2), DroppedFrame(0, 4, True))
    store.remember(("t", 9), DroppedFrame(0, 4, True))
    assert remembered() == [False, False, True, False, True, False]
    assert store.gone(("s", 2)) == DroppedFrame(0, 4, True)


@pytest.mark.parametrize("more", [{}, {"doubled": True}, {"form": VARIANCES}])
def test_a_frame_of_which_nothing_waits_keeps_its_ids_alone_once_memory_is_short(more):
    tracks = TrackIds(np.arange(4).astype(np.uint64), np.ones(4, bool))
    opinions = Opinions(SliceKey("all"), np.array([0, 2]), np.full((2, 1, 2), 0.5))
    frame = waiting(4, tracks=tracks, opinions=opinions, **more)
    other, ids = waiting(2, 1), frame.stored.id.copy()
    store = store_of(other, frame)
    for which in ([0, 1, 3], [2]):
        store.told(frame, record_of(which))
    # As long as there is room, what was told can be taken back.
    assert frame.stored.sent.mean.shape == (4, 3)
    assert len(frame.records) == 2
    store.max_bytes = store.bytes + FRAME_OVERHEAD
    assert store.add(waiting(0, 2)) == []
    assert not frame.released
    store.max_bytes = store.bytes + FRAME_OVERHEAD - 1
    assert store.add(waiting(0, 3)) == []
    assert frame.released
    stored = frame.stored
    assert frame.nbytes == FRAME_OVERHEAD + 4 * OWN
    assert (stored.n, frame.waiting, frame.records) == (4, 0, [])
    assert stored.opinions is stored.tracks is stored.made is None
    assert stored.sent.estimates(NONE).covariance.shape == (0, 3, 3)
    laws.assert_same(stored.id, ids)
    assert store.get(("s", 0)) is frame
    # What waits is kept, though it is older.
    assert not other.released
    assert store.bytes == frame.nbytes + other.nbytes + 2 * FRAME_OVERHEAD


# ---- whatever happens


@dataclass
class Slow:
    """What should be there, counted anew every time."""

    frames: dict[FrameKey, PendingFrame] = field(default_factory=dict)
    forgotten: set[FrameKey] = field(default_factory=set)

    def assert_like(self, store: PendingStore) -> None:
        there = list(self.frames.values())
        assert [store.get(key) for key in self.frames] == there
        assert len(store) == len(there)
        assert store.bytes == sum(frame.nbytes for frame in there)
        assert store.unkept == sum(frame.waiting for frame in there if not frame.kept)
        assert all(store.gone(key) is not None for key in self.forgotten)
        assert all(key not in store for key in self.forgotten)
        assert set(store._settled) == {
            frame.key for frame in there if frame.waiting == 0 and not frame.released
        }


moves = st.lists(
    st.tuples(
        st.sampled_from(["frame", "frame", "kept", "labels", "labels", "revision", "discard"]),
        st.sampled_from("st"),
        st.integers(0, 12),
        st.integers(0, 6),
    ),
    max_size=40,
)


@given(moves, st.integers(0, 14_000))
def test_bytes_and_counts_are_those_of_the_frames_that_are_there(drawn, max_bytes):
    store, slow = PendingStore(max_bytes), Slow()
    arrived = lost = settled = 0
    for move, stream, number, n in drawn:
        key = stream, number
        frame = slow.frames.get(key)
        if move in ("frame", "kept") and frame is None:
            frame = waiting(n, number, stream=stream, kept=move == "kept")
            arrived += n
            slow.frames[key] = frame
            slow.forgotten.discard(key)
            out = store.add(frame)
            # The oldest ones, and only as many as had to go.
            assert [one.key for one in out] == list(slow.frames)[: len(out)]
            for one in out:
                del slow.frames[one.key]
                slow.forgotten.add(one.key)
                lost += one.waiting
            assert store.bytes <= max_bytes
            if out:
                assert store.bytes + out[-1].nbytes > max_bytes
                assert not store._settled
        elif move == "discard":
            assert store.discard(key) is frame
            if frame is not None:
                lost += slow.frames.pop(key).waiting
        elif frame is not None and not frame.released:
            rows = range(min(n, frame.stored.n))
            replaces = move == "revision"
            revision = frame.revision + 1 if replaces else max(frame.revision, 0)
            before, resolved = frame.waiting, int(frame.resolved.sum())
            back = store.told(frame, record_of(rows, revision=revision, replaces=replaces))
            assert back.size == (resolved if replaces else 0)
            settled += before - frame.waiting
        slow.assert_like(store)
    still = sum(frame.waiting for frame in slow.frames.values())
    assert arrived == settled + lost + still
