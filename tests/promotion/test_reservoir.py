"""The newest tracks of each slice, against a plain list."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from monitor.frames.detections import Estimates
from monitor.frames.space import plain_space
from monitor.promotion.records import TrackSettings
from monitor.promotion.reservoir import Reservoir
from monitor.promotion.tracks import WholeTrack


def track(slice: int, ended_ns: int, n: int = 1) -> WholeTrack:
    sent = Estimates(np.zeros((n, 2)), np.ones((n, 1, 1)) * np.eye(2), np.zeros(n, bool))
    stamps = np.arange(ended_ns - n + 1, ended_ns + 1)
    return WholeTrack(plain_space(("x", "y")), slice, sent, np.zeros((n, 2)), stamps, 0)


def test_it_begins_with_nothing():
    kept = Reservoir(TrackSettings())
    kept.keep_newest(3, 10)
    kept.taken(3)
    assert kept.slices() == ()
    assert kept.tracks(3) == ()
    assert kept.new(3) == 0


steps = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 2), st.integers(0, 20), st.integers(1, 3)),
    st.tuples(st.just("taken"), st.integers(0, 2), st.just(0), st.just(0)),
    st.tuples(st.just("drop"), st.integers(0, 2), st.integers(0, 5), st.just(0)),
)


@given(st.lists(steps, max_size=40))
def test_each_slice_keeps_the_newest_that_came_and_knows_the_new_ones(steps):
    kept = Reservoir(TrackSettings(most_tracks=4))
    expected: dict[int, list[WholeTrack]] = {0: [], 1: [], 2: []}
    new: list[WholeTrack] = []
    for what, index, stamp, n in steps:
        if what == "add":
            some = [track(index, stamp + i, n) for i in range(n)]
            kept.add(some)
            expected[index] = [*expected[index], *some][-4:]
            new += some
        elif what == "taken":
            kept.taken(index)
            new = [other for other in new if other.slice != index]
        else:
            kept.keep_newest(index, stamp)
            expected[index] = expected[index][max(0, len(expected[index]) - stamp) :]
        for i, tracks in expected.items():
            assert list(kept.tracks(i)) == tracks
            assert kept.new(i) == sum(other in tracks for other in new)
        assert kept.slices() == tuple(i for i, tracks in expected.items() if tracks)
