"""Frames that are learned from: one an interval and source, whole, and blind to what is in them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.frames.detections import Estimates
from monitor.frames.frame import TrackIds
from monitor.frames.space import FloatArray, IntArray, plain_space
from monitor.promotion import reservoir
from monitor.promotion.records import TrackSettings
from monitor.promotion.reservoir import FrameSample
from monitor.promotion.tracks import LabelledRows, OpenTracks
from monitor.statistics.observations import finished

MS = 10**6
# A frame every 0.1 s: three in ten of them, and a few more, are learned from.
SETTINGS = TrackSettings()
STAMPS = st.integers(-(2**62), 2**62) | st.integers(-500, 500)


def taken(sample: FrameSample, stamps: Sequence[int], source: int = 0) -> list[int]:
    """Of the stamps of frames, those it takes."""
    return [stamp for stamp in stamps if sample.takes(source, stamp)]


# ---- which


def test_of_each_interval_the_first_frame_is_taken():
    stamps = [0, 40, 99, 100, 140, 350, 360, 399, 400]
    assert taken(FrameSample(100), stamps) == [0, 100, 350, 400]


def test_before_time_0_intervals_are_no_longer_and_no_shorter():
    sample = FrameSample(100)
    assert taken(sample, range(-250, 250, 10)) == [-250, -200, -100, 0, 100, 200]


def test_labels_of_one_frame_that_come_in_parts_stay_together():
    sample = FrameSample(100)
    assert taken(sample, [10, 10, 20, 10, 20, 10, 110, 110, 120]) == [10, 10, 10, 10, 110, 110]


def test_an_interval_that_ended_with_one_source_goes_on_with_another():
    sample = FrameSample(100)
    assert taken(sample, [0, 30], source=1) == [0]
    assert taken(sample, [10, 30, 110], source=2) == [10, 110]
    assert taken(sample, [50, 130], source=1) == [130]


@given(
    st.integers(1, 10**10),
    st.lists(st.tuples(st.integers(0, 3), STAMPS), max_size=60),
    st.randoms(use_true_random=False),
)
def test_it_takes_the_earliest_stamp_of_each_interval_however_sources_take_turns(
    interval_ns, frames, random
):
    sources = {source for source, _ in frames}
    waiting = {one: sorted(stamp for other, stamp in frames if other == one) for one in sources}
    earliest: dict[tuple[int, int], int] = {}
    sample = FrameSample(interval_ns)
    while waiting:
        source = random.choice(sorted(waiting))
        stamp = waiting[source].pop(0)
        if not waiting[source]:
            del waiting[source]
        # In exact numbers, which do not round towards 0 where they are negative.
        interval = (stamp - stamp % interval_ns) // interval_ns
        first = earliest.setdefault((source, interval), stamp)
        assert sample.takes(source, stamp) == (stamp == first)


def test_labels_that_come_object_by_object_are_of_the_same_frames():
    stamps = range(0, 1000, 40)
    sample = FrameSample(100)
    some = taken(sample, stamps)
    # Of later objects as of the first, wherever they begin and however far they are interleaved.
    assert taken(sample, stamps[7:]) == [stamp for stamp in some if stamp >= stamps[7]]
    turns = np.random.default_rng(0).permutation(np.repeat(np.array(stamps), 3)).tolist()
    assert sorted(taken(sample, turns)) == sorted(some * 3)


def test_a_part_of_a_frame_that_was_left_out_is_left_out_after_later_frames_too():
    assert taken(FrameSample(100), [0, 30, 140, 30, 0, 160, 140]) == [0, 140, 0, 140]


def test_what_comes_after_a_clock_is_set_back_is_taken_by_its_own_intervals():
    sample = FrameSample(100)
    assert taken(sample, [1000, 1050, 100, 150, 200, 1080, 1100]) == [1000, 100, 200, 1100]


def test_of_an_interval_that_is_forgotten_for_others_a_frame_more_is_taken(monkeypatch):
    monkeypatch.setattr(reservoir, "_MOST", 3)
    sample = FrameSample(100)
    assert taken(sample, [0, 100, 200, 20, 120, 220]) == [0, 100, 200]
    assert taken(sample, [0], source=1) == [0]
    # The oldest is forgotten, whosever the new one is.
    assert taken(sample, [120, 220]) == []
    assert taken(sample, [20, 220]) == [20]


def test_time_without_end_takes_no_memory_without_end(monkeypatch):
    monkeypatch.setattr(reservoir, "_MOST", 50)
    sample = FrameSample(100)
    intervals = [(source, 100 * i) for i in range(500) for source in range(4)]
    assert all(sample.takes(source, stamp) for source, stamp in intervals)
    again = [sample.takes(source, stamp + 1) for source, stamp in reversed(intervals)]
    assert again == [False] * 50 + [True] * 1950


# ---- what becomes of detections


class Seen:
    """Objects that a camera sees at 10 frames a second, not quite: many briefly, some for long."""

    def __init__(self, seed: int, objects: int = 1500) -> None:
        random = np.random.default_rng(seed)
        self.stamps: IntArray = np.cumsum(random.integers(70 * MS, 130 * MS, 6000)) - 300_000 * MS
        # A tracker breaks what is wrong into tracks of one row; others are whole.
        self.lengths: IntArray = random.choice([1, 3, 10, 40, 75], objects)
        self.first = random.integers(0, self.stamps.size - 80, objects)

    def frames(self) -> list[LabelledRows]:
        in_frame: list[list[int]] = [[] for _ in range(self.stamps.size)]
        for track, (first, length) in enumerate(zip(self.first, self.lengths, strict=True)):
            for place in range(first, first + length):
                in_frame[place].append(track)
        return [
            rows_at(int(stamp), objects)
            for stamp, objects in zip(self.stamps, in_frame, strict=True)
            if objects
        ]

    def share(self, frames: Sequence[LabelledRows]) -> dict[int, float]:
        """Of the detections in tracks of each length, those that are in whole tracks."""
        opened, kept = OpenTracks(SETTINGS), np.zeros(self.lengths.size)
        found = []
        for i, frame in enumerate(frames):
            opened.add(frame)
            if i % 50 == 49:
                found += finished(opened.closed())
        # Far later, so that all that is open is whole.
        opened.add(rows_at(int(self.stamps[-1]) + 10**12, [self.lengths.size]))
        found += finished(opened.closed())
        for track in found:
            kept[int(track.truth[0, 0])] += track.n
        counts = {int(one): self.lengths == one for one in np.unique(self.lengths)}
        return {
            length: float(kept[which].sum() / self.lengths[which].sum())
            for length, which in counts.items()
        }


def rows_at(stamp_ns: int, objects: Sequence[int]) -> LabelledRows:
    """Of one dimension, whose truth is the number of the object."""
    number: FloatArray = np.array(objects, np.float64)[:, None]
    n = len(objects)
    return LabelledRows(
        plain_space(("x",)),
        np.zeros(n, np.int64),
        Estimates(number, np.ones((n, 1, 1)), np.ones(n, bool)),
        number,
        stamp_ns,
        0,
        TrackIds(np.array(objects, np.uint64), np.ones(n, bool)),
        0,
    )


@pytest.mark.parametrize("seed", range(3))
def test_every_detection_has_the_same_chance_whatever_track_it_is_in(seed):
    seen = Seen(seed)
    frames, sample = seen.frames(), FrameSample(SETTINGS.sample_ns)
    sampled = [frame for frame in frames if sample.takes(frame.source, frame.stamp_ns)]
    share = len(sampled) / len(frames)
    assert 0.27 < share < 0.34
    for length, kept in seen.share(sampled).items():
        # Of 300 tracks, of which those of few rows vary by more.
        deviation = np.sqrt(share * (1 - share) / 300 / length)
        assert abs(kept - share) < 4 * deviation, length


def test_without_it_the_longest_tracks_would_have_less_of_a_say_than_what_is_broken_off():
    seen = Seen(0)
    share = seen.share(seen.frames())
    assert share[1] == share[3] == share[10] == 1.0
    assert share[75] < 0.5


@pytest.mark.parametrize("rate", [3, 10, 12, 15, 25, 60])
@pytest.mark.parametrize("phase", range(5))
def test_a_track_has_no_more_rows_than_are_kept(rate, phase):
    jitter = np.random.default_rng(phase).integers(0, 10**9 // rate, 40 * rate)
    jitter *= phase % 2
    stamps = [i * 10**9 // rate for i in range(phase - 20 * rate, 20 * rate)]
    stamps = [stamp + int(late) for stamp, late in zip(stamps, jitter, strict=False)]
    some = taken(FrameSample(SETTINGS.sample_ns), stamps)
    for first in some:
        whole = [stamp for stamp in some if first <= stamp < first + SETTINGS.longest_ns]
        assert len(whole) <= SETTINGS.rows_per_track


@pytest.mark.parametrize("idle_ns", [300 * MS, 10**9, 10**10])
def test_frames_that_are_learned_from_are_near_enough_to_hold_a_track_together(idle_ns):
    settings = TrackSettings(idle_ns=idle_ns, rows_per_track=2)
    stamps = range(0, 30 * 10**9, idle_ns // 10)
    some = taken(FrameSample(settings.sample_ns), stamps)
    assert np.diff(some).max() <= idle_ns // 2
