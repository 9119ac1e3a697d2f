"""Frames in waiting: what is kept is what was sent and what was made of it, within the bytes
allowed, the oldest dropped first."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.frames.detections import (
    Estimates,
    FrameBatch,
    Limits,
    Reason,
    ReceivedDetections,
    examine,
)
from monitor.frames.frame import Header, Opinions, ReceivedFrame, ReportedTracks, TrackIds
from monitor.frames.slices import ClassSliceTable, SliceTable, StreamSlices
from monitor.frames.space import plain_space
from monitor.frames.stored import SliceKey, StoredFrame
from monitor.matching.record import INLINE, LabelRecord, Outcome
from monitor.pipeline import pending
from monitor.pipeline.forwarding import Recalibrated
from monitor.pipeline.pending import (
    FRAME_OVERHEAD,
    RECORD_OVERHEAD,
    DroppedFrame,
    FrameKey,
    LedgerFrames,
    PendingFrame,
    PendingStore,
    slice_keys,
    tracks_of,
)
from monitor.pipeline.streams import Stream
from monitor.recalibration.selection import IDENTITY
from tests import laws
from tests.received import FORMS, FULL, TRIANGLE, VARIANCES, Sent, detections, in_form

ROOMY = 2**20
NONE = np.zeros(0, np.int64)


def header_of(k=3, stream="s") -> Header:
    return Header(stream, plain_space(tuple("abcd"[:k])), ("car", "bus"))


def received_of(forms, k=3, seed=0) -> ReceivedDetections:
    """One row for each form; ids in no order."""
    random = np.random.default_rng(seed)
    ids = random.permutation(len(forms)) + 10
    rows = []
    for id, form in zip(ids.tolist(), forms, strict=True):
        root = random.normal(size=(k, k)) + 2 * np.eye(k)
        covariance = root @ root.T
        rows.append(Sent(id, tuple(random.normal(size=k)), in_form(covariance, form)))
    return detections(rows)


def examined(received: ReceivedDetections, k=3) -> FrameBatch:
    return examine(received, plain_space(tuple("abcd"[:k])), 2, Limits()).batch


def table_of(k, *keys: str) -> SliceTable:
    table = SliceTable(frozenset(), len(keys))
    for key in keys:
        table.place(plain_space(tuple("abcd"[:k])), key)
    return table


def doubled(batch: FrameBatch) -> Estimates:
    """What some recalibrator makes of a batch: nothing of it is as it was sent."""
    return Estimates(batch.mean + 1.0, 2.0 * batch.covariance, batch.diagonal)


def class_table() -> ClassSliceTable:
    table = ClassSliceTable(False, 1)
    table.place(header_of().classes, "all")
    return table


def stored_of(
    received,
    batch,
    *,
    k=3,
    number=0,
    stream="s",
    stamp_ns=0,
    made=None,
    tracks=None,
    source=0,
    opinions=None,
    epoch=0,
) -> StoredFrame:
    header, table = header_of(k, stream), table_of(k, "all")
    sent = Estimates(batch.mean, batch.covariance, batch.diagonal)
    slices, sound = np.zeros(batch.id.size, np.int64), np.ones(batch.id.size, bool)
    by = StreamSlices(table, header.space, stream, header.classes)
    return LedgerFrames(table, class_table(), False).stored(
        Stream(header, by, source),
        ReceivedFrame(number, stamp_ns, received),
        replace(examine(received, header.space, 2, Limits()), batch=batch),
        Recalibrated(IDENTITY, sent, slices, (), made or sent, sound, True, Reason.NONE),
        tracks,
        opinions,
        epoch,
    )


def waiting(
    n, form=FULL, *, made=False, kept=False, partition=0, opinions=(), k=3, **more
) -> PendingFrame:
    received = received_of([form] * n, k)
    batch = examined(received, k)
    here = None
    if len(opinions):
        rows = np.array(opinions, np.int64)
        here = Opinions(0, rows, np.full((rows.size, 4, 2), 0.5))
    changed = doubled(batch) if made else None
    stored = stored_of(received, batch, k=k, made=changed, opinions=here, **more)
    frame = PendingFrame(stored, np.zeros(n, np.int64), here, partition)
    frame.kept = kept
    return frame


def record_of(
    which, *, revision=0, replaces=False, outcome=Outcome.UNMATCHED, **more
) -> LabelRecord:
    """Labels that settle some rows; what they tell of them is counted elsewhere."""
    settled = np.array(which, np.int64)
    record = LabelRecord(
        revision=revision,
        replaces=replaces,
        settled=settled,
        outcome=np.full(settled.size, outcome, np.uint8),
        rows=NONE,
        truth=np.zeros((0, 3)),
        truth_covariance=None,
        objects=None,
        class_rows=NONE,
        true_class=NONE,
        stamp_ns=0,
        clock_ns=0,
        generation=0,
        delay_ns=0,
        live=True,
    )
    return replace(record, **more)


# ---- one frame


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from(FORMS), max_size=8),
    st.sampled_from([1, 2, 3, 4]),
    st.booleans(),
    st.data(),
)
def test_what_was_sent_and_what_was_made_of_it_come_back_bit_for_bit(forms, k, changed, data):
    received = received_of(forms, k)
    batch = examined(received, k)
    n = len(forms)
    made = doubled(batch) if changed else None
    stored = stored_of(received, batch, k=k, made=made)
    frame = PendingFrame(stored, np.arange(n))
    rows = np.array(data.draw(st.permutations(range(n))), dtype=np.int64)
    rows = rows[: data.draw(st.integers(0, n))]
    sent = Estimates(batch.mean, batch.covariance, batch.diagonal)
    for found, expected in (
        (frame.stored.sent.estimates(rows), sent),
        ((stored.made or stored.sent).estimates(rows), made or sent),
    ):
        laws.assert_same(found.mean, expected.mean[rows])
        laws.assert_same(found.covariance, expected.covariance[rows])
        laws.assert_same(found.diagonal, expected.diagonal[rows])
    assert (frame.stored.made is None) == (not changed)
    laws.assert_same(stored.id, batch.id)
    laws.assert_same(stored.class_index, batch.class_index)


def test_nothing_of_the_received_buffers_is_kept_alive():
    received = received_of([FULL] * 4)
    batch = examined(received)
    made = doubled(batch)
    stored = stored_of(received, batch, made=made)
    assert stored.made is not None
    frame = PendingFrame(stored, np.zeros(4, np.int64))
    every = np.arange(4)
    before = [frame.stored.sent.estimates(every), stored.made.estimates(every), stored.id.copy()]
    theirs = (batch.mean, batch.covariance, batch.diagonal, batch.id, batch.class_index)
    for array in (*theirs, received.id, made.mean, made.covariance):
        array.setflags(write=True)
        array[:] = 1
    after = [frame.stored.sent.estimates(every), stored.made.estimates(every), stored.id]
    for one, other in zip(before, after, strict=True):
        laws.assert_same(one, other)
    assert frame.waiting == 4
    for estimates in (stored.sent, stored.made):
        for array in (estimates.mean, estimates.packed, estimates.diagonal):
            assert array.base is None or array.base.nbytes <= array.nbytes


def test_variances_alone_take_fewer_bytes_than_triangles():
    assert waiting(10, VARIANCES).stored.sent.packed.shape == (10, 3)
    for form in (TRIANGLE, FULL):
        assert waiting(10, form).stored.sent.packed.shape == (10, 6)


# Of a detection: id, class and slice by key; index and fate.
OWN = 8 + 8 + 2 + (8 + 1)
# Three means, six covariances, one flag.
GAUSSIAN = 8 * 3 + 8 * 6 + 1


def test_the_bytes_of_a_frame_are_those_of_its_arrays_and_an_overhead():
    assert waiting(0).nbytes == FRAME_OVERHEAD
    assert waiting(10).nbytes == FRAME_OVERHEAD + 10 * (OWN + GAUSSIAN)
    assert waiting(10, made=True).nbytes == FRAME_OVERHEAD + 10 * (OWN + 2 * GAUSSIAN)
    diagonal = 8 * 3 + 8 * 3 + 1
    assert waiting(10, VARIANCES).nbytes == FRAME_OVERHEAD + 10 * (OWN + diagonal)
    # Rows of opinions, four of two classes each.
    assert waiting(10, opinions=(1, 5)).nbytes == waiting(10).nbytes + 2 * (8 + 4 * 2 * 8)


def test_a_record_takes_the_bytes_of_its_arrays_and_an_overhead():
    frame = waiting(5)
    store = store_of(frame)
    before = frame.nbytes
    rows = np.array([1, 3])
    store.told(
        frame,
        record_of(
            [1, 3],
            rows=rows,
            truth=np.zeros((2, 3)),
            truth_covariance=np.zeros((2, 3, 3)),
            objects=TrackIds(np.zeros(2, np.uint64), np.ones(2, bool)),
            class_rows=rows,
            true_class=rows,
            gate=np.zeros(2, np.uint8),
        ),
    )
    of_row = (8 + 1) + (8 + 3 * 8 + 9 * 8) + (8 + 1) + (8 + 8) + 1
    assert frame.nbytes == before + RECORD_OVERHEAD + 2 * of_row
    assert store.bytes == frame.nbytes


def test_ids_beside_are_those_of_detections_with_nothing_to_compare():
    rows = [Sent(id, (0.0,) * 3, (1.0,) * 3 if id % 2 else ()) for id in (8, 3, 2, 7)]
    received = detections(rows)
    batch = examined(received)
    stored = stored_of(received, batch)
    assert stored.unusable.tolist() == [2, 8]
    assert (stored.received, stored.n, stored.bare) == (4, 2, 2)
    frame = PendingFrame(stored, np.zeros(2, np.int64))
    assert frame.nbytes == FRAME_OVERHEAD + 2 * (OWN + 8 * 3 + 8 * 3 + 1) + 2 * 8


def test_slices_are_kept_by_what_makes_them_up():
    table = SliceTable(frozenset(), 2)
    space = plain_space(("a", "b", "c"))
    index = {key: table.place(space, key) for key in ("car", "bus", "tram")}
    assert table.slices[index["tram"]].overflow
    slices = np.array([index[key] for key in ("tram", "car", "tram")], np.int64)
    keys, place = slice_keys(slices, table)
    kept = [keys[i] for i in place.tolist()]
    tram = SliceKey(table.slices[index["tram"]].key, overflow=True)
    assert kept == [tram, SliceKey("car"), tram]
    assert len(keys) == 2
    assert slice_keys(NONE, table)[0] == ()


def test_the_numbers_of_a_frame_are_those_it_came_with():
    stored = waiting(2, stamp_ns=None, number=7, stream="t", source=9, epoch=3).stored
    assert (stored.stamp_ns, stored.frame_id, stored.source, stored.epoch) == (None, 7, 9, 3)
    frame = waiting(2, number=7, stream="t")
    assert (frame.key, frame.space) == (("t", 7), header_of().space)


@pytest.mark.parametrize("flag", [True, False])
def test_flags_of_each_detection_are_kept_beside_its_values(flag):
    received = received_of([VARIANCES, FULL])
    batch = replace(examined(received), diagonal=np.array([flag, not flag]))
    stored = stored_of(received, batch)
    assert stored.sent.estimates(np.array([1, 0])).diagonal.tolist() == [not flag, flag]


# ---- tracks


def test_the_tracks_of_a_frame_wait_with_it_and_take_their_bytes():
    tracks = TrackIds(np.arange(4).astype(np.uint64) + 2**63, np.arange(4) > 0)
    frame = waiting(4, tracks=tracks, source=7)
    assert frame.nbytes == waiting(4).nbytes + 4 * (8 + 1)
    assert frame.stored.source == 7
    assert frame.stored.tracks is not None
    found = frame.stored.tracks.take(np.array([2, 0]))
    assert found.id.tolist() == [2**63 + 2, 2**63]
    assert found.known.tolist() == [True, False]


def test_the_detectors_own_tracks_go_before_ours_and_without_either_there_is_none():
    rows = [Sent(i, (0.0,) * 3, (1.0,) * 3, upstream_track=i * 10 or None) for i in range(3)]
    upstream = tracks_of(detections(rows), np.array([2, 0]), None)
    assert upstream is not None
    assert (upstream.id.tolist(), upstream.known.tolist()) == ([20, 0], [True, False])
    bare = detections([replace(row, upstream_track=None) for row in rows])
    assert tracks_of(bare, np.arange(3), None) is None
    ours = ReportedTracks(
        id=np.array([5, 6, 7], np.uint64),
        class_index=NONE,
        status=np.zeros(0, np.uint8),
        detections=NONE,
        # A track that coasts has no detection.
        detection=np.array([2, -1, 0]),
        nis=np.zeros(0),
        state=np.zeros((0, 6)),
        covariance=np.zeros((0, 6, 6)),
    )
    found = tracks_of(bare, np.array([0, 1, 2]), ours)
    assert found is not None
    assert (found.id.tolist(), found.known.tolist()) == ([7, 0, 5], [True, False, True])


# ---- what labels tell


def test_a_frame_knows_how_many_of_its_detections_still_wait():
    frame = waiting(5)
    assert (frame.waiting, frame.resolved.tolist()) == (5, [False] * 5)
    store_of(frame).told(frame, record_of([1, 4]))
    assert frame.waiting == 3
    assert frame.resolved.tolist() == [False, True, False, False, True]


def test_what_is_told_first_is_there_until_a_record_takes_all_of_it_back():
    frame = waiting(5, kept=True)
    store = store_of(frame)
    assert frame.revision == INLINE
    first = [
        record_of([0], outcome=Outcome.MATCHED, revision=INLINE),
        record_of([1, 2], outcome=Outcome.IGNORED, objects_told=True),
    ]
    assert [store.told(frame, record).tolist() for record in first] == [[], []]
    assert frame.records == first
    assert (frame.revision, frame.objects_told) == (0, True)
    last = record_of([2, 4], outcome=Outcome.UNMATCHED, revision=3, replaces=True)
    back = store.told(frame, last)
    assert back.tolist() == [Outcome.MATCHED, Outcome.IGNORED, Outcome.IGNORED]
    assert frame.records == [last]
    assert (frame.revision, frame.objects_told) == (3, False)
    assert frame.outcome.tolist() == [0, 0, Outcome.UNMATCHED, 0, Outcome.UNMATCHED]
    assert store.bytes == frame.nbytes


def test_of_a_frame_that_the_store_has_not_what_is_told_is_entered_in_it_alone():
    frame, stranger = waiting(3), waiting(3)
    store = store_of(frame)
    before = store.bytes
    store.told(stranger, record_of([0, 1]))
    assert stranger.waiting == 1
    assert (store.bytes, store.unkept, frame.waiting) == (before, 3, 3)


# ---- the store


def store_of(*frames: PendingFrame, max_bytes=ROOMY) -> PendingStore:
    store = PendingStore(max_bytes)
    for frame in frames:
        store.add(frame)
    return store


def gone(frame: PendingFrame) -> DroppedFrame:
    return DroppedFrame(frame.stored.stamp_ns, frame.partition, frame.kept)


def test_a_frame_is_found_by_stream_and_number_and_by_nothing_else():
    frame = waiting(2)
    store = store_of(frame)
    assert store.get(("s", 0)) is frame
    assert ("s", 0) in store
    for key in (("t", 0), ("s", 1)):
        assert store.get(key) is None
        assert key not in store
        assert store.gone(key) is None
        assert not store.knows(key, 0)
    assert (len(store), store.unkept, store.bytes) == (1, 2, frame.nbytes)


def test_the_oldest_frames_go_first_and_are_remembered():
    frames = [waiting(n, number=i, stamp_ns=i) for i, n in enumerate((2, 4, 6))]
    store = store_of(*frames[:2])
    store.max_bytes = frames[1].nbytes + frames[2].nbytes
    assert store.add(frames[2]) == [frames[0]]
    assert ("s", 0) not in store
    assert store.gone(("s", 0)) == DroppedFrame(0, 0, False)
    assert store.gone(("s", 1)) is None
    assert len(store) == 2
    store.told(frames[1], record_of([0, 1]))
    # Only what still waited is lost.
    last = waiting(5, number=9)
    store.max_bytes = last.nbytes
    lost = store.add(last)
    assert lost == frames[1:]
    assert sum(frame.waiting for frame in lost) == 2 + 6
    assert [("s", i) in store for i in (0, 1, 2, 9)] == [False, False, False, True]
    assert (store.bytes, store.unkept) == (last.nbytes, 5)


def test_a_frame_larger_than_the_store_is_dropped_at_once():
    store, frame = PendingStore(FRAME_OVERHEAD), waiting(3)
    assert store.add(frame) == [frame]
    assert (len(store), store.bytes, store.unkept) == (0, 0, 0)
    assert store.gone(("s", 0)) == gone(frame)


def test_a_dropped_frame_that_is_sent_again_is_known_at_its_own_time_alone():
    first, second = waiting(3, stamp_ns=5), waiting(3, number=1)
    store = store_of(first, second, max_bytes=first.nbytes)
    assert store.knows(("s", 0), 5)
    assert not store.knows(("s", 0), 6)
    assert not store.knows(("s", 0), None)
    again = waiting(3, stamp_ns=6)
    store.add(again)
    assert store.get(("s", 0)) is again
    assert store.gone(("s", 0)) is None
    # The later one of its number is the one that is known.
    assert [store.knows(("s", 0), stamp) for stamp in (5, 6)] == [False, True]
    assert store.gone(("s", 1)) == gone(second)


def test_a_frame_takes_the_place_of_one_of_its_number_and_nothing_of_that_is_left():
    first, second = waiting(3, stamp_ns=5), waiting(7, stamp_ns=6)
    store = store_of(first)
    store.told(first, record_of(range(3)))
    assert store.add(second) == []
    assert store.get(("s", 0)) is second
    assert (len(store), store.bytes, store.unkept) == (1, second.nbytes, 7)


def test_only_so_many_dropped_frames_are_remembered(monkeypatch):
    monkeypatch.setattr(pending, "REMEMBERED", 3)
    store = store_of(*[waiting(0, number=i) for i in range(6)], max_bytes=FRAME_OVERHEAD)
    remembered = [store.gone(("s", i)) is not None for i in range(6)]
    assert remembered == [False, False, True, True, True, False]
    assert [store.knows(("s", i), 0) for i in range(6)] == [*remembered[:5], True]
    # One that is named again is remembered longer.
    store.remember(("s", 2), DroppedFrame(0, 4, True))
    store.remember(("t", 9), DroppedFrame(0, 4, True))
    assert [store.gone(("s", i)) is not None for i in range(5)] == [
        False,
        False,
        True,
        False,
        True,
    ]
    assert store.gone(("s", 2)) == DroppedFrame(0, 4, True)


def test_each_detection_that_only_memory_has_is_counted_once():
    frame, on_disk = waiting(5), waiting(4, number=1, kept=True)
    store = store_of(frame, on_disk)
    assert store.unkept == 5
    store.told(on_disk, record_of([0]))
    store.told(frame, record_of([0, 1, 2]))
    assert store.unkept == frame.waiting == 2
    store.told(frame, record_of([1, 2, 4]))
    assert store.unkept == frame.waiting == 1
    store.told(frame, record_of([]))
    assert store.unkept == 1
    store.told(frame, record_of([3], revision=1, replaces=True))
    assert store.unkept == frame.waiting == 4


# ---- when memory is short


def assert_only_ids_are_left(frame: PendingFrame, n: int) -> None:
    assert frame.released
    assert frame.nbytes == FRAME_OVERHEAD + n * OWN
    assert frame.stored.n == n
    assert frame.waiting == 0
    stored = frame.stored
    assert frame.opinions is None and stored.opinions is None
    assert stored.tracks is None and stored.made is None
    assert frame.records == []
    assert stored.sent.estimates(NONE).covariance.shape == (0, 3, 3)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("made", [False, True])
def test_a_frame_of_which_nothing_waits_keeps_its_ids_alone_once_memory_is_short(form, made):
    tracks = TrackIds(np.arange(4).astype(np.uint64), np.ones(4, bool))
    frame = waiting(4, form, made=made, opinions=(0, 2), tracks=tracks)
    other = waiting(2, number=1)
    ids = frame.stored.id.copy()
    store = store_of(other, frame)
    store.told(frame, record_of([0, 1, 3]))
    store.told(frame, record_of([2]))
    # As long as there is room, what was told can be taken back.
    assert frame.stored.sent.mean.shape == (4, 3)
    assert len(frame.records) == 2
    assert store.bytes == frame.nbytes + other.nbytes
    store.max_bytes = store.bytes + FRAME_OVERHEAD - 1
    assert store.add(waiting(0, number=2)) == []
    assert_only_ids_are_left(frame, 4)
    laws.assert_same(frame.stored.id, ids)
    assert store.get(("s", 0)) is frame
    # What waits is kept, though it is older.
    assert not other.released
    assert store.bytes == frame.nbytes + other.nbytes + FRAME_OVERHEAD


def test_a_frame_that_comes_with_all_its_truth_is_the_first_to_let_go_of_it():
    frame = waiting(4)
    frame.outcome[:] = Outcome.MATCHED
    store = store_of(frame, max_bytes=FRAME_OVERHEAD + 4 * OWN)
    assert_only_ids_are_left(frame, 4)
    assert (store.bytes, store.unkept) == (frame.nbytes, 0)


def test_frames_let_go_in_the_order_in_which_they_were_settled_and_no_more_than_has_to():
    frames = [waiting(4, number=i) for i in range(3)]
    store = store_of(*frames)
    for i in (2, 0, 1):
        store.told(frames[i], record_of(range(4)))
    released = []
    for number in range(10, 13):
        store.max_bytes = store.bytes + FRAME_OVERHEAD - 1
        assert store.add(waiting(0, number=number)) == []
        released.append([frame.released for frame in frames])
    assert released == [[False, False, True], [True, False, True], [True, True, True]]


def test_a_frame_whose_fates_are_taken_back_waits_again_and_keeps_its_estimates():
    frame = waiting(4)
    store = store_of(frame)
    store.told(frame, record_of(range(4)))
    store.told(frame, record_of([0], revision=1, replaces=True))
    store.max_bytes = store.bytes
    last = waiting(0, number=1)
    # There is nothing that could let go: it has to go itself.
    assert store.add(last) == [frame]
    assert not frame.released
    assert store.get(("s", 1)) is last


def test_numbers_that_come_again_and_again_leave_nothing_behind():
    store = PendingStore(ROOMY)
    for stamp in range(50):
        frame = waiting(2, stamp_ns=stamp)
        store.discard(frame.key)
        store.add(frame)
        for revision in range(3):
            store.told(frame, record_of(range(2), revision=revision, replaces=revision > 0))
    assert (len(store), store.bytes, store.unkept) == (1, frame.nbytes, 0)
    assert len(store._settled) == 1


def test_a_discarded_frame_is_forgotten_and_given_back():
    first, kept = waiting(5), waiting(2, number=1)
    store = store_of(first, kept)
    store.told(first, record_of([0, 3]))
    assert store.discard(("s", 0)) is first
    assert first.waiting == 3
    assert store.discard(("s", 0)) is store.discard(("t", 1)) is None
    assert ("s", 0) not in store
    # It had not to go for want of room: a label of it is not late.
    assert store.gone(("s", 0)) is None
    assert not store.knows(("s", 0), 0)
    assert (len(store), store.bytes, store.unkept) == (1, kept.nbytes, 2)


# ---- when the disk has a partition no more


def partitioned() -> tuple[PendingStore, list[PendingFrame]]:
    """Frames of partition 1, kept but for the last; and one of another."""
    frames = [
        waiting(2 + i, number=i, kept=kept, partition=partition)
        for i, (kept, partition) in enumerate([(True, 1), (True, 1), (True, 2), (False, 1)])
    ]
    store = store_of(*frames)
    store.told(frames[1], record_of([0]))
    for i, (partition, kept) in enumerate([(1, True), (2, True), (1, False)]):
        store.remember(("s", 10 + i), DroppedFrame(0, partition, kept))
    assert store.unkept == 5
    return store, frames


def test_what_memory_has_of_a_partition_that_is_gone_is_all_there_is():
    store, frames = partitioned()
    size = store.bytes
    assert store.unkept_from(1) == frames[:2]
    assert [frame.kept for frame in frames] == [False, False, True, False]
    assert (len(store), store.bytes) == (4, size)
    assert store.unkept == 5 + 2 + 2
    # There is no second time.
    assert store.unkept_from(1) == []
    assert store.unkept == 9


def test_an_expired_partition_goes_from_memory_too_and_its_frames_are_remembered():
    store, frames = partitioned()
    for frame in store.unkept_from(1):
        store.take_out(frame.key)
    assert [frame.key in store for frame in frames] == [False, False, True, True]
    assert [store.gone(("s", i)) for i in (0, 1)] == [DroppedFrame(0, 1, False)] * 2
    assert store.bytes == frames[2].nbytes + frames[3].nbytes
    assert store.unkept == 5


# ---- whatever happens


@dataclass
class Slow:
    """What should be there, counted anew every time."""

    max_bytes: int
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


@settings(max_examples=100)
@given(moves, st.integers(0, 14_000))
def test_bytes_and_counts_are_those_of_the_frames_that_are_there(drawn, max_bytes):
    store, slow = PendingStore(max_bytes), Slow(max_bytes)
    arrived = lost = settled = 0
    for move, stream, number, n in drawn:
        key = stream, number
        frame = slow.frames.get(key)
        if move in ("frame", "kept") and frame is None:
            frame = waiting(n, stream=stream, number=number, kept=move == "kept")
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
