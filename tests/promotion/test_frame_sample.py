"""Frames that are learned from: one an interval and source, whole, and blind to what is in them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.calibration.matched import TrackIds
from monitor.calibration.space import FloatArray, IntArray, plain_space
from monitor.calibration.steps import finished
from monitor.promotion import frame_sample
from monitor.promotion.frame_sample import FrameSample
from monitor.promotion.labelled import LabelledRows
from monitor.promotion.open_tracks import OpenTracks
from monitor.promotion.settings import TrackSettings
from monitor.recalibration.recalibrator import Estimates

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


def test_a_clock_that_is_set_back_begins_anew():
    sample = FrameSample(100)
    assert taken(sample, [1000, 1050, 100, 150, 200]) == [1000, 100, 200]


def test_of_a_source_that_is_forgotten_for_others_a_frame_more_is_taken(monkeypatch):
    monkeypatch.setattr(frame_sample, "_MOST_SOURCES", 3)
    sample = FrameSample(100)
    for source in range(3):
        assert sample.takes(source, 0)
    # The oldest source has gone on, so the next is forgotten for the fourth.
    assert sample.takes(0, 100)
    assert sample.takes(3, 0)
    assert not sample.takes(0, 120)
    assert not sample.takes(2, 20)
    assert not sample.takes(3, 20)
    assert sample.takes(1, 20)


def test_sources_without_end_take_no_memory_without_end(monkeypatch):
    monkeypatch.setattr(frame_sample, "_MOST_SOURCES", 50)
    sample = FrameSample(100)
    assert all(sample.takes(source, source * 7) for source in range(2000))
    again = [sample.takes(source, source * 7 + 1) for source in range(2000)]
    # They are asked oldest first, and each that was forgotten makes it forget another.
    assert sum(again) > 1900


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
    assert 0.28 < share < 0.34
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
def test_a_track_of_steady_frames_has_no_more_rows_than_are_kept(rate, phase):
    stamps = [i * 10**9 // rate for i in range(phase - 20 * rate, 20 * rate)]
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
