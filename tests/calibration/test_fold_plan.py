"""How rows of a fold are put together: every row once, in its slot, in chunks of bounded size."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.frames.frame import MatchedRows
from monitor.statistics.clusters import ALONE
from monitor.statistics.folding import Slots, chunks
from monitor.statistics.observations import CHUNK
from tests.calibration.matched_frames import WINDOWS, matched

quick = settings(max_examples=60)
drawn_frames = st.lists(
    st.tuples(
        st.integers(1, 12),
        st.one_of(st.none(), st.integers(-300, 900)),
        st.booleans(),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=12,
)
clocks = st.one_of(st.none(), st.integers(0, 900))


def frames_of(drawn) -> list[MatchedRows]:
    return [
        matched(i, n, stamp_ns=stamp, live=live, tracks=tracks, slices=(0, 3, 7))
        for i, (n, stamp, live, tracks) in enumerate(drawn)
    ]


@quick
@given(drawn_frames, clocks)
def test_every_row_has_the_slot_of_its_slice_pane_and_timeliness(drawn, clock):
    frames = frames_of(drawn)
    slots = Slots.plan(frames, WINDOWS, clock)
    used = set()
    for rows, slot in zip(frames, slots.of_frame, strict=True):
        assert slot.size == rows.n
        for index, place in zip(rows.slices.tolist(), slot.tolist(), strict=True):
            assert slots.places[place] == (index, WINDOWS.place(rows.stamp_ns, clock))
            assert slots.live[place] == rows.live
            used.add(place)
    # None is empty, and none is there twice.
    assert used == set(range(slots.count))
    named = [(*place, bool(live)) for place, live in zip(slots.places, slots.live, strict=True)]
    assert len(set(named)) == slots.count


@quick
@given(drawn_frames, clocks)
def test_slots_of_a_kind_are_together_and_in_the_order_of_slices(drawn, clock):
    slots = Slots.plan(frames_of(drawn), WINDOWS, clock)
    assert (np.diff(slots.kinds) >= 0).all()
    for kind in np.unique(slots.kinds):
        there = np.flatnonzero(slots.kinds == kind)
        indices = [slots.places[slot][0] for slot in there]
        assert indices == sorted(set(indices))
        assert len({slots.places[slot][1] for slot in there}) == 1
        assert len(set(slots.live[there].tolist())) == 1


@pytest.mark.parametrize(
    "sizes",
    [(1,), (CHUNK,), (CHUNK + 1,), (3 * CHUNK,), (CHUNK - 1, 2), (1500, 1500), (1, 5 * CHUNK, 1)],
)
def test_chunks_hold_all_rows_in_their_order_and_never_too_many(sizes):
    frames = [matched(i, n, stamp_ns=25 * i, tracks=5, changed=False) for i, n in enumerate(sizes)]
    slots = Slots.plan(frames, WINDOWS, None)
    found = list(chunks(frames, slots))
    assert all(0 < chunk.slot.size <= CHUNK for chunk in found)
    for chunk in found:
        n = sum(rows.n for rows in chunk.rows)
        assert chunk.slot.size == chunk.cluster.size == n
        assert all(rows.unchanged for rows in chunk.rows)
    error = np.concatenate([rows.error for chunk in found for rows in chunk.rows])
    assert np.array_equal(error, np.concatenate([rows.error for rows in frames]))
    slot = np.concatenate([chunk.slot for chunk in found])
    assert np.array_equal(slot, np.concatenate(slots.of_frame))


@quick
@given(drawn_frames, clocks)
def test_rows_share_a_cluster_if_and_only_if_they_are_of_one_track_in_slice_and_pane(drawn, clock):
    frames = frames_of(drawn)
    frames = [replace(rows, source=i % 2) for i, rows in enumerate(frames)]
    (chunk,) = chunks(frames, Slots.plan(frames, WINDOWS, clock))
    tracks: list[tuple[int, ...] | None] = []
    for rows in frames:
        epoch = -(10**9) if rows.stamp_ns is None else rows.stamp_ns // WINDOWS.pane_ns[0]
        for row in range(rows.n):
            if rows.tracks is None or not rows.tracks.known[row]:
                tracks.append(None)
            else:
                tracks.append((int(rows.tracks.id[row]), int(rows.slices[row]), rows.source, epoch))
    ids = chunk.cluster.tolist()
    assert [name is None for name in tracks] == [one == ALONE for one in ids]
    pairs = {(name, one) for name, one in zip(tracks, ids, strict=True) if name is not None}
    assert len(pairs) == len({name for name, _ in pairs}) == len({one for _, one in pairs})
