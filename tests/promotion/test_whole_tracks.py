"""From labelled frames to whole tracks: which frames are learned from, when a track is whole, which
tracks are kept and of one regime, and that to break a track changes nothing of what it says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.frames.detections import Estimates, Limits
from monitor.frames.frame import TrackIds
from monitor.frames.space import Dimension, DimensionKind, FloatArray, Space, plain_space
from monitor.promotion import reservoir
from monitor.promotion import tracks as tracks_module
from monitor.promotion.betting import Clip
from monitor.promotion.records import TrackSettings
from monitor.promotion.register import Follower
from monitor.promotion.reservoir import FrameSample, Reservoir, latest_alike
from monitor.promotion.tracks import LabelledRows, OpenTracks, WholeTrack, rows_of
from monitor.promotion.trial import Trial
from monitor.recalibration.adaptive_scaling import AdaptiveScaling
from monitor.recalibration.recalibrator import Identity
from monitor.recalibration.scaling import VarianceScaling
from monitor.statistics.observations import finished
from tests.promotion.simulated_tracks import broken
from tests.promotion.simulated_tracks import tracks as simulated

SECOND = 10**9
LIMITS, IDENTITY = Limits(), Identity()
seeds = st.integers(0, 2**32 - 1)
# Whatever the stamps are, a track that is seen at 0.1 s intervals is whole after 10 s.
SETTINGS = TrackSettings(idle_ns=SECOND, longest_ns=10 * SECOND, rows_per_track=1024)


def frame(
    stamp_ns: int,
    tracks: Sequence[int | None],
    *,
    slices: Sequence[int] | None = None,
    source: int = 0,
    delay_ns: int = 0,
    names: str = "xy",
    number: float = 0.0,
) -> LabelledRows:
    """Rows of a frame by the track of each, None for none; truth is the number of the row, from
    `number` on, the mean its negative, the variance 1 more.
    """
    n, k = len(tracks), len(names)
    value = (number + np.arange(n))[:, None] * np.ones(k)
    known = np.array([track is not None for track in tracks])
    return LabelledRows(
        space=plain_space(tuple(names)),
        slices=np.array([0] * n if slices is None else slices, np.int64),
        sent=Estimates(-value, (1 + value)[:, :, None] * np.eye(k), known),
        truth=value,
        stamp_ns=stamp_ns,
        delay_ns=delay_ns,
        tracks=TrackIds(np.array([track or 0 for track in tracks], np.uint64), known),
        source=source,
    )


def fed(opened: OpenTracks, frames: Iterable[LabelledRows]) -> list[WholeTrack]:
    for rows in frames:
        opened.add(rows)
    return finished(opened.closed())


def seen(track: int, start_s: float, stop_s: float, *, source: int = 0) -> list[LabelledRows]:
    """A track, every 0.1 s."""
    first, last = round(start_s * 10), round(stop_s * 10)
    return [frame(i * SECOND // 10, [track], source=source) for i in range(first, last)]


def spans(tracks: Iterable[WholeTrack]) -> list[tuple[float, float]]:
    return [(track.stamp_ns[0] / SECOND, track.ended_ns / SECOND) for track in tracks]


# ---- which frames


def sampled(sample: FrameSample, stamps: Sequence[int], source: int = 0) -> list[int]:
    """Of the stamps of frames, those it takes."""
    return [stamp for stamp in stamps if sample.takes(source, stamp)]


def test_of_each_interval_and_source_the_first_frame_is_taken_with_all_labels_of_it():
    sample = FrameSample(100)
    assert sampled(sample, range(-250, 250, 10)) == [-250, -200, -100, 0, 100, 200]
    assert sampled(sample, [310, 310, 320, 310, 410, 310, 420]) == [310, 310, 310, 410, 310]
    # A part of a frame that was left out is left out after later frames too.
    assert sampled(sample, [320, 420, 0, 10]) == [0]
    assert sampled(sample, [30, 40, 110], source=1) == [30, 110]
    # What comes after a clock is set back is taken by its own intervals.
    assert sampled(sample, [1000, 1050, 700, 750, 800, 1080]) == [1000, 700, 800]


def test_intervals_are_forgotten_when_too_many_came_after_them(monkeypatch):
    monkeypatch.setattr(reservoir, "_MOST", 3)
    sample = FrameSample(100)
    assert sampled(sample, [0, 100, 200, 20, 120, 220]) == [0, 100, 200]
    assert sampled(sample, [0], source=1) == [0]
    # The oldest is forgotten, whosever the new one is.
    assert sampled(sample, [120, 220]) == []
    assert sampled(sample, [20, 220]) == [20]


@pytest.mark.parametrize("rate", [3, 10, 25, 60])
def test_a_track_has_no_more_rows_than_are_kept_and_is_held_together(rate):
    settings = TrackSettings()
    stamps = [i * SECOND // rate for i in range(-20 * rate, 20 * rate)]
    some = sampled(FrameSample(settings.sample_ns), stamps)
    for first in some:
        whole = [stamp for stamp in some if first <= stamp < first + settings.longest_ns]
        assert len(whole) <= settings.rows_per_track
    short = TrackSettings(idle_ns=SECOND, rows_per_track=2)
    near = sampled(FrameSample(short.sample_ns), range(0, 30 * SECOND, SECOND // 10))
    assert np.diff(near).max() <= SECOND // 2


# ---- whole


def test_a_track_is_whole_once_it_was_not_seen_for_longer_than_idle():
    opened = OpenTracks(SETTINGS)
    assert fed(opened, seen(1, 0, 3)) == []
    assert fed(opened, seen(2, 3, 3.95)) == []
    assert spans(fed(opened, seen(2, 4, 4.1))) == [(0.0, 2.9)]


def test_a_track_of_two_slices_is_one_in_each():
    opened = OpenTracks(SETTINGS)
    frames = [frame(i * SECOND // 10, [7], slices=[i // 5 % 2]) for i in range(106)]
    first, second = fed(opened, frames)
    assert (first.slice, second.slice, first.n, second.n) == (0, 1, 50, 50)


def test_rows_of_no_known_track_are_a_unit_a_block():
    opened = OpenTracks(SETTINGS)
    frames = [frame(i * 2 * SECOND, [None, None, 4]) for i in range(-7, 8)]
    found = fed(opened, frames)
    blocks = [track for track in found if not track.sent.diagonal[0]]
    assert spans(blocks) == [(-14.0, -12.0), (-10.0, -2.0), (0.0, 8.0)]
    assert [track.n for track in blocks] == [4, 10, 10]
    # Where nobody tracks, it is the same.
    untracked = OpenTracks(SETTINGS)
    for rows in frames:
        n = slice(0, 2)
        untracked.add(
            LabelledRows(
                rows.space,
                rows.slices[n],
                rows.sent.take(n),
                rows.truth[n],
                rows.stamp_ns,
                0,
                None,
                0,
            )
        )
    assert spans(finished(untracked.closed())) == spans(blocks)


def test_a_track_has_its_rows_as_they_came_by_stamp_and_the_longest_delay():
    stamps = [0.3, 0.1, 0.2, 0.9, 0.5]
    opened = OpenTracks(SETTINGS)
    frames = [
        frame(round(s * SECOND), [None, 5], number=10 * i, delay_ns=100 - i)
        for i, s in enumerate(stamps)
    ]
    track, _ = fed(opened, [*frames, frame(15 * SECOND, [6])])
    order = np.argsort(stamps)
    number = 10.0 * order + 1
    assert track.stamp_ns.tolist() == [round(stamps[i] * SECOND) for i in order]
    assert np.array_equal(track.truth, number[:, None] * [1, 1])
    assert np.array_equal(track.sent.mean, -track.truth)
    assert np.array_equal(track.sent.covariance, (1 + number)[:, None, None] * np.eye(2))
    assert track.sent.diagonal.all()
    assert track.delay_ns == 100


@given(
    gaps=st.lists(
        st.tuples(st.integers(0, 25), st.lists(st.integers(1, 4), min_size=1, max_size=4)),
        min_size=1,
        max_size=60,
    ),
    cut=st.integers(1, 60),
)
def test_what_is_in_a_track_is_the_same_however_the_frames_are_taken_in(gaps, cut):
    """In the order of time, a loop over single rows: whole is what was last seen too long ago, or
    began too long ago, and what comes later is left out.
    """
    number = count()
    settings = TrackSettings(idle_ns=10, longest_ns=60, rows_per_track=1024)
    opened = OpenTracks(settings)
    expected: list[list[float]] = []
    # By track: when its unit began and its rows, when something last came of it, what is over.
    units: dict[int, tuple[int, list[float]]] = {}
    last: dict[int, int] = {}
    over: set[int] = set()
    found: list[WholeTrack] = []
    now = 0
    for place, (gap, tracks) in enumerate(gaps):
        now += gap
        start = next(number) * 10.0
        opened.add(frame(now, tracks, number=start))
        for row, track in enumerate(tracks):
            if track in units:
                began = units[track][0]
                if now - last[track] > 10 or now - began >= 60:
                    over.add(track)
                if track in over and (now - last[track] >= 60 or now - began >= 600):
                    del units[track]
            if track not in units:
                over.discard(track)
                units[track] = now, []
                expected.append(units[track][1])
            if track not in over:
                units[track][1].append(start + row)
            last[track] = now
        if place % cut == 0:
            found += finished(opened.closed())
    found += fed(opened, [frame(now + 1000, [99])])
    assert sorted(track.truth[:, 0].tolist() for track in found) == sorted(expected)


def test_an_object_that_stays_counts_again_after_ten_times_its_longest():
    opened = OpenTracks(TrackSettings(idle_ns=SECOND, longest_ns=10 * SECOND))
    frames = [frame(second * SECOND // 2, [1]) for second in range(2 * 350)]
    found = fed(opened, [*frames, frame(1000 * SECOND, [2])])
    assert [int(track.stamp_ns[0]) // SECOND for track in found] == [0, 100, 200, 300]


def test_long_tracks_are_thinned_evenly():
    settings = TrackSettings(longest_ns=10 * SECOND, rows_per_track=32)
    for rows in (33, 64, 65, 100, 1000, 4097):
        stamps = np.linspace(0, 9 * SECOND, rows).astype(int)
        opened = OpenTracks(settings)
        frames = [frame(int(stamp), [1]) for stamp in stamps]
        (track,) = fed(opened, [*frames, frame(11 * SECOND, [2])])
        gaps = np.diff(track.stamp_ns) / (stamps[-1] / 31)
        assert 20 <= track.n <= 32
        assert track.stamp_ns[0] == 0
        assert gaps.max() < 2.1, rows
        assert track.ended_ns > 0.93 * stamps[-1]


def test_a_block_of_many_rows_in_one_frame_is_thinned_too():
    opened = OpenTracks(TrackSettings(rows_per_track=8))
    (track,) = fed(opened, [frame(0, [None] * 3000), frame(10 * SECOND, [1])])
    assert track.n == 8
    assert np.all(np.diff(track.truth[:, 0]) > 0)
    assert track.truth[-1, 0] > 2000


def test_a_source_that_is_labelled_hours_late_has_its_own_time():
    opened = OpenTracks(SETTINGS)
    found = []
    for second in range(20):
        late = seen(1, second, second + 1, source=1)
        live = seen(2, 7200 + second, 7201 + second, source=2)
        found += fed(opened, [row for pair in zip(late, live, strict=True) for row in pair])
    assert spans(found) == [(0.0, 9.9), (7200.0, 7209.9)]


def test_tracks_of_a_source_that_fell_silent_are_whole_when_others_have_gone_on():
    opened = OpenTracks(SETTINGS)
    assert fed(opened, seen(1, 0, 2, source=1)) == []
    assert (0.0, 1.9) not in spans(fed(opened, seen(2, 2, 12.9, source=2)))
    assert (0.0, 1.9) in spans(fed(opened, seen(3, 12.9, 13.1, source=2)))


def test_tracks_of_a_silent_source_are_whole_when_the_clock_went_back():
    opened = OpenTracks(SETTINGS)
    assert fed(opened, seen(1, 7200, 7202, source=1)) == []
    found = fed(opened, (frame(i * 1000, [2], source=2) for i in range(4097)))
    assert spans(found) == [(7200.0, 7201.9)]


def test_a_clock_that_is_set_back_ends_what_is_open_and_begins_anew():
    opened = OpenTracks(SETTINGS)
    assert fed(opened, seen(1, 7200, 7202)) == []
    found = fed(opened, seen(2, 0, 20))
    assert spans(found)[-1] == (7200.0, 7201.9)
    start, stop = spans(found)[0]
    assert start < 2
    assert stop - start == pytest.approx(9.9)


def test_stragglers_neither_end_nor_join_nor_begin_anything():
    opened = OpenTracks(SETTINGS)
    stragglers = [*seen(1, 20, 20.5), *seen(8, 50, 50.5), *seen(9, 102, 102.3)]
    assert fed(opened, [*seen(1, 100, 105), *stragglers]) == []
    assert spans(fed(opened, [*seen(1, 105, 106), *seen(2, 108, 109)])) == [(100.0, 105.9)]


def test_a_wild_stamp_does_not_stop_the_time_of_its_source_for_good():
    opened = OpenTracks(SETTINGS)
    fed(opened, [*seen(1, 0, 1), frame(2**62, [5]), frame(-(2**62), [6])])
    assert (4.0, 13.9) in spans(fed(opened, [*seen(7, 1, 4), *seen(8, 4, 20)]))


# ---- bounds


def test_further_tracks_are_left_out_for_good_and_counted():
    opened = OpenTracks(TrackSettings(most_open=3))
    assert fed(opened, [frame(i * SECOND // 10, [1, 2, 3, 4, 5]) for i in range(5)]) == []
    assert opened.left_out == 2
    assert len(fed(opened, [frame(2 * SECOND, [4, 6])])) == 3
    (only,) = fed(opened, [frame(40 * SECOND, [7])])
    assert only.n == 1
    assert opened.left_out == 2


def test_tracks_that_are_over_make_room_for_labels_that_come_all_at_once():
    opened = OpenTracks(TrackSettings(most_open=8))
    found = fed(opened, [row for i in range(40) for row in seen(i, 5 * i, 5 * i + 2)])
    assert opened.left_out == 0
    assert len(found) == 39


def test_frames_that_come_too_fast_do_not_wait_and_are_counted(monkeypatch):
    monkeypatch.setattr(tracks_module, "_WAITING", 5)
    opened = OpenTracks(SETTINGS)
    assert fed(opened, [frame(i, [1, 2]) for i in range(10)]) == []
    assert opened.left_out == 8
    assert [track.n for track in fed(opened, [frame(9 * SECOND, [3])])] == [2, 2]


def test_tracks_are_forgotten_when_too_many_came_after_them(monkeypatch):
    monkeypatch.setattr(tracks_module, "_REMEMBERED", 4)
    opened = OpenTracks(SETTINGS)
    # Track 1 keeps coming; 2 and 3 are forgotten for 5 and 6, and 4 for 7.
    coming = {0: [1, 2, 3, 4], 4: [1], 8: [1], 12: [5, 6], 16: [1, 7], 20: [2], 24: [1, 4], 28: []}
    found = []
    for second, tracks in coming.items():
        found += fed(opened, [frame(second * SECOND, tracks or [99])])
    assert [start for start, _ in spans(found)] == [0, 0, 0, 0, 12, 12, 16, 20, 24]


def test_spaces_do_not_mix():
    opened = OpenTracks(SETTINGS)
    frames = [
        frame(i * SECOND // 10, [1], source=s, names=names)
        for i in range(101)
        for s, names in enumerate(("xy", "xyz", "uv"))
    ]
    found = fed(opened, frames)
    assert sorted(track.space.names for track in found) == [
        ("u", "v"),
        ("x", "y"),
        ("x", "y", "z"),
    ]
    assert all(track.truth.shape == (100, track.space.k) for track in found)


def test_it_yields_at_least_every_few_hundred_rows_and_frames_may_come_meanwhile():
    opened = OpenTracks(SETTINGS)
    for i in range(20):
        opened.add(frame(i * SECOND // 10, range(1, 301)))
    opened.add(frame(10 * SECOND, [None] * 2000))
    steps = opened.closed()
    for _ in range(8000 // 256 + 300 // 16):
        next(steps)
        opened.add(frame(11 * SECOND, [1]))
    assert len(finished(steps)) == 300


# ---- what is later, and rows


@given(
    st.lists(st.integers(-(2**62), 2**62) | st.integers(-9, 9), min_size=1, max_size=20), st.data()
)
def test_what_is_later_are_the_rows_after_a_time_and_all_else_stays(stamps, data):
    stamps.sort()
    at = data.draw(st.sampled_from(stamps) | st.integers(-10, 10))
    whole = replace(
        simulated(0, 1, length=len(stamps))[0],
        stamp_ns=np.array(stamps),
        slice=3,
        delay_ns=5,
        source=2**40,
    )
    expected = [row for row, stamp in enumerate(stamps) if stamp > at]
    later = whole.since(at)
    if later is None:
        assert expected == []
        return
    assert later.stamp_ns.tolist() == [stamps[row] for row in expected]
    assert (later.truth == whole.truth[expected]).all()
    for name in ("mean", "covariance", "diagonal"):
        assert (getattr(later.sent, name) == getattr(whole.sent, name)[expected]).all()
    assert (later.space, later.slice, later.delay_ns, later.source) == (whole.space, 3, 5, 2**40)
    assert (later.n, later.ended_ns) == (len(expected), stamps[-1])


@given(seeds, st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_rows_stand_track_after_track_and_means_are_of_each(seed, counts):
    some = [simulated(seed + i, 1, length=count)[0] for i, count in enumerate(counts)]
    rows = rows_of(some)
    assert rows.counts.tolist() == counts
    first = 0
    for track, start in zip(some, rows.start.tolist(), strict=True):
        assert start == first
        own = slice(first, first + track.n)
        assert (rows.truth[own] == track.truth).all()
        for name in ("mean", "covariance", "diagonal"):
            assert (getattr(rows.sent, name)[own] == getattr(track.sent, name)).all()
        first += track.n
    assert rows.truth.shape[0] == first
    values = np.random.default_rng(seed).normal(size=first)
    ends = np.cumsum(counts)
    slow = [sum(values[end - n : end]) / n for n, end in zip(counts, ends, strict=True)]
    assert rows.means(values) == pytest.approx(slow)
    assert rows.means(rows.truth) == pytest.approx(np.array([t.truth.mean(axis=0) for t in some]))


# ---- in pieces


def said(some: Sequence[WholeTrack], candidate: VarianceScaling, clip: Clip) -> float:
    """What they say in a trial, together."""
    return Trial("car", candidate, 1, clip).taken(some, IDENTITY, LIMITS).bets.total


@given(seeds, st.integers(1, 32), st.sampled_from([0.7, 1.1, 1.5, 3.0]))
def test_to_break_a_track_changes_nothing_of_what_it_says(seed, length, factor):
    (track,) = simulated(seed, 1, length=length)
    candidate = VarianceScaling((factor**0.5,) * 3)
    # More than any row of these says: nothing is clipped.
    clip = Clip(1e3, 1e3, 1e3, rows=32.0)
    pieces = broken(np.random.default_rng(seed), track, 32)
    assert said(pieces, candidate, clip) == pytest.approx(said([track], candidate, clip), abs=1e-9)


@given(seeds, st.integers(2, 32))
def test_to_break_a_track_changes_nothing_of_what_an_adaptive_scaling_remembers_of_it(seed, length):
    (track,) = simulated(seed, 1, length=length, scale=4.0)
    # So slow that pieces, which end sooner, are as old as the whole.
    ones = (1.0,) * 3
    slow = AdaptiveScaling(ones, 1e9, 0.0, 0.0, 20.0, (20.0,) * 3, prior_scale=ones, prior_tracks=3)
    follower = Follower.of(slow, 32.0)
    pieces = broken(np.random.default_rng(seed), track, 32)
    whole, in_parts = follower.taken([track]), follower.taken(pieces)
    assert in_parts.scaling.scale == pytest.approx(whole.scaling.scale, rel=1e-6)
    assert in_parts.scaling.tracks == pytest.approx(20 + length / 32, rel=1e-6)


# ---- which are kept


def ended(slice: int, ended_ns: int, n: int = 1) -> WholeTrack:
    sent = Estimates(np.zeros((n, 2)), np.ones((n, 1, 1)) * np.eye(2), np.zeros(n, bool))
    stamps = np.arange(ended_ns - n + 1, ended_ns + 1)
    return WholeTrack(plain_space(("x", "y")), slice, sent, np.zeros((n, 2)), stamps, 0)


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
            some = [ended(index, stamp + i, n) for i in range(n)]
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


# ---- of one regime


def changed(seed: int, factor: float, *spans: tuple[int, int], length: int = 20) -> int:
    """Of 400 tracks with t5 errors, where those between so many ago have another variance."""
    scale: FloatArray = np.ones((400, 1))
    for before, until in spans:
        scale[400 - before : 400 - until] = factor
    found = simulated(seed, 400, 3, length, scale=np.repeat(scale, 3, axis=1), degrees=5)
    return latest_alike(found, 10)


def of_levels(nees: list[float]) -> list[WholeTrack]:
    """Tracks of one row each, of that NEES/K."""
    space, n = plain_space(("x",)), 1
    sent = Estimates(np.zeros((n, 1)), np.ones((n, 1, 1)), np.ones(n, bool))
    return [
        WholeTrack(space, 0, sent, np.full((n, 1), np.sqrt(level)), np.array([i]), 0)
        for i, level in enumerate(nees)
    ]


@pytest.mark.parametrize("length", [1, 20])
def test_tracks_of_one_regime_are_all_kept(length):
    kept = np.array([changed(seed, 1.0, length=length) for seed in range(60)])
    assert np.mean(kept == 400) >= 0.93


@pytest.mark.parametrize(
    ("factor", "spans", "least", "most", "median"),
    [
        (5.0, [(20, 0)], 10, 30, 20),
        (0.2, [(20, 0)], 10, 30, 20),
        (2.25, [(40, 0)], 10, 80, 40),
        (1 / 2.25, [(40, 0)], 10, 80, 40),
        # A fault that came and went, and one within the fewest.
        (5.0, [(90, 30)], 10, 40, 30),
        (5.0, [(9, 0)], 10, 12, 10),
    ],
)
def test_what_was_before_a_change_is_not_kept(factor, spans, least, most, median):
    kept = np.array([changed(seed, factor, *spans) for seed in range(20)])
    assert kept.min() >= least
    assert np.mean(kept <= most) >= 0.95
    assert np.median(kept) == pytest.approx(median, abs=2)


@given(
    st.lists(st.floats(0, 1e6), min_size=0, max_size=60),
    st.integers(1, 20),
)
def test_at_least_the_fewest_are_kept_or_all_that_there_are(nees, fewest):
    kept = latest_alike(of_levels(nees), fewest)
    assert min(fewest, len(nees)) <= kept <= len(nees)


@given(st.floats(0, 1e6), st.integers(1, 60), st.integers(1, 20))
def test_equal_tracks_are_all_kept(level, count, fewest):
    assert latest_alike(of_levels([level] * count), fewest) == count


def test_without_any_spread_the_cut_is_where_the_change_is():
    for ago in range(10, 50):
        found = of_levels([1.0] * (100 - ago) + [3.0] * ago)
        assert latest_alike(found, 10) == ago


def test_angles_have_no_say_and_a_covariance_without_a_factor_is_left_out():
    space = Space((Dimension("x"), Dimension("yaw", kind=DimensionKind.ANGLE), Dimension("y")))
    random = np.random.default_rng(0)
    found = []
    for i in range(40):
        covariance = np.ones((3, 1, 1)) * np.eye(3)
        covariance[0, 0, 2] = covariance[0, 2, 0] = 1.0
        truth = random.normal(size=(3, 3))
        truth[:, 1] *= 0.01 if i < 20 else 1.0
        truth[0] *= 1.0 if i < 20 else 1e6
        sent = Estimates(np.zeros((3, 3)), covariance, np.zeros(3, bool))
        found.append(WholeTrack(space, 0, sent, truth, np.arange(3) + i, 0))
    assert latest_alike(found, 10) == 40
