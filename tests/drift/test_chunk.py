"""Tracks that are remembered for an alarm are those of a slow account."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.drift import chunk
from monitor.drift.charts import CHARTS, CHARTS_OF, Stage
from monitor.drift.chunk import RecentTracks, Supporters
from monitor.statistics.clusters import ALONE
from tests.drift.drives import seeds


@pytest.mark.parametrize("many", [1, 40, 10**6])
@given(seed=seeds)
def test_recent_tracks_are_the_latest_of_each_slice_however_many_wait(many, seed):
    random, most, seen = np.random.default_rng(seed), 5, list[tuple[int, int, int]]()
    tracks = RecentTracks(most)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk, "_MANY_ADDED", many)
        for number in range(12):
            slices, ids = random.integers(0, 3, 8), random.integers(0, 9, 8).astype(np.uint64)
            tracks.add(slices, ids, np.full(8, number))
            seen += zip(slices.tolist(), ids.tolist(), [number] * 8, strict=True)
    for slice in range(4):
        latest = dict[int, int]()
        for of, track, number in seen:
            if of == slice and track != ALONE:
                latest.pop(track, None)
                latest[track] = number
        numbers = list(latest.values())[-most:]
        for since in range(13):
            assert tracks.count(slice, since) == sum(number >= since for number in numbers)


@given(seeds, st.integers(1, 4))
def test_enough_tracks_speak_where_so_many_have_spoken_since(seed, fewest):
    random = np.random.default_rng(seed)
    supporters, spoke = Supporters(fewest), list[tuple[int, int, int, int, int]]()
    bets = np.array([0, 0, 1]), np.array([2, 5, 2])
    for second in range(10):
        places = np.sort(random.integers(0, 4, 6))
        stages, slices = np.divmod(places, 2)
        tracks = random.permutation(9)[:6].astype(np.uint64) + np.uint64(1)
        speaks = random.uniform(size=(6, 3)) < 0.2
        start = np.unique(places, return_index=True)[1]
        supporters.add(slices, stages, tracks, second, start, bets, speaks)
        for row, bet in np.argwhere(speaks).tolist():
            chart = CHARTS_OF[Stage(stages[row])].start + int(bets[0][bet])
            spoke.append((slices[row], chart, bets[1][bet], second, int(tracks[row])))
    for slice in range(3):
        for chart in range(len(CHARTS)):
            for column in (2, 5, 7):
                for since in range(11):
                    ours = {
                        track
                        for *where, second, track in spoke
                        if where == [slice, chart, column] and second >= since
                    }
                    enough = len(ours) >= fewest
                    assert supporters.enough(slice, chart, column, since) == enough
