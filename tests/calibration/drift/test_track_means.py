"""Whole tracks as one observation each, against a slow account in dictionaries."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.drift.evidence import DriftSettings
from monitor.drift.track_means import LONGEST_NS, TrackMeans
from tests.calibration.drift.watched_rows import Frame, cut, some_frames, watched

quick = settings(deadline=None, max_examples=60)
seeds = st.integers(0, 2**32 - 1)
cuts = st.lists(st.integers(0, 120), max_size=12)
SECOND = 10**9
IDLE = 2 * SECOND


def ratios(rows, width=3):
    """L of a row, by its recalibrated NEES: anything positive that tells rows apart."""
    return np.stack([np.exp(rows.nees[1] - bet) for bet in range(width)], axis=1)


class Slow:
    """One row at a time; C = 3."""

    def __init__(self):
        self.time, self.tracks, self.out = {}, {}, []
        self.late = self.beyond = 0

    def frame(self, source, stamp, changed, rows):
        if source in self.time and stamp < self.time[source] - 10 * SECOND:
            self.end(list(self.of(source)))
            del self.time[source]
        now = self.time[source] = max(stamp, self.time.get(source, stamp))
        self.end([track for track in self.of(source) if now - track["last"] > IDLE])
        for track in self.of(source):
            if now - track["opened"] > LONGEST_NS:
                self.use(track)
        for key, of_slice, _, nees in rows:
            if key == 0:
                continue
            if now - stamp > IDLE:
                self.late += 1
                continue
            new = {"key": key, "source": source, "slice": of_slice, "opened": now, "sums": []}
            track = self.tracks.setdefault(key, new)
            track["last"] = now
            if track["sums"] is None:
                self.beyond += 1
            else:
                track["sums"].append([math.exp(nees - bet) for bet in range(3)])

    def of(self, source):
        return [track for track in self.tracks.values() if track["source"] == source]

    def use(self, track):
        if track["sums"] is not None:
            mean = np.log(np.mean(track["sums"], axis=0))
            self.out.append((track["source"], track["slice"], len(track["sums"]), *mean))
            track["sums"] = None

    def end(self, tracks):
        for track in tracks:
            self.use(track)
            del self.tracks[track["key"]]


def listed(finished):
    return list(
        zip(finished.source, finished.slices, finished.count, *finished.log_mean.T, strict=True)
    )


def taken(pieces, means=None):
    means = means or TrackMeans(DriftSettings(), 3)
    out = []
    for rows in pieces:
        out += listed(means.take(rows, ratios(rows)))
    return out, means


def same(ours, theirs):
    # Tracks that are over in the same frame have no order.
    assert len(ours) == len(theirs)
    np.testing.assert_allclose(
        np.array(sorted(ours)).reshape(-1, 6), np.array(sorted(theirs)).reshape(-1, 6), rtol=1e-9
    )


def every(track, seconds, *, period=0.5, source=0, of_slice=0):
    """Frames of one track from second a to b."""
    start, end = seconds
    return [
        (source, int(at * SECOND), False, [(track, of_slice, 1.0, 1.0)])
        for at in np.arange(start, end, period)
    ]


ENDS: list[Frame] = [(source, 10**15, False, []) for source in range(3)]


@quick
@given(seeds, cuts, st.booleans())
def test_tracks_that_are_over_are_those_of_the_slow_account(seed, cuts, wild):
    frames = [*some_frames(seed, wild=wild), *ENDS]
    ours, means = taken(cut(frames, cuts))
    slow = Slow()
    for frame in frames:
        slow.frame(*frame)
    same(ours, slow.out)
    assert (means.late, means.beyond, means.left_out) == (slow.late, slow.beyond, 0)
    assert means.tracks == 0


@quick
@given(seeds, cuts, st.booleans())
def test_how_rows_are_cut_into_calls_changes_nothing(seed, cuts, wild):
    frames = some_frames(seed, wild=wild)
    whole, one = taken([watched(frames)])
    pieces, many = taken(cut(frames, cuts))
    same(whole, pieces)
    assert (one.late, one.beyond, one.tracks) == (many.late, many.beyond, many.tracks)


@quick
@given(seeds, cuts, st.sampled_from([2, 5, 1000]))
def test_every_row_of_a_track_is_in_a_mean_or_counted_by_why_it_is_not(seed, cuts, most):
    frames = some_frames(seed, wild=True)
    means = TrackMeans(DriftSettings(most_open=most), 3)
    counted = 0
    for rows in cut([*frames, *ENDS], cuts):
        counted += sum(track[2] for track in taken([rows], means)[0])
        assert means.tracks <= most
    rows = sum(row[0] != 0 for *_, rows in frames for row in rows)
    assert counted + means.late + means.beyond + means.left_out == rows


def test_a_track_is_used_once_after_the_longest_time_and_what_follows_is_not_counted():
    means = TrackMeans(DriftSettings(), 3)
    ours, _ = taken(cut(every(1, (0, 200)), range(0, 400, 7)), means)
    assert [track[2] for track in ours] == [121]
    assert means.beyond == 400 - 121
    again, _ = taken([watched([*every(1, (203, 204)), (0, 300 * SECOND, False, [])])], means)
    assert [track[2] for track in again] == [2]


@pytest.mark.parametrize(("pause", "tracks"), [(1.5, [8]), (2.5, [4, 4])])
def test_a_track_id_that_comes_again_after_idle_is_a_new_track(pause, tracks):
    frames = [*every(1, (0, 2)), *every(1, (1.5 + pause, 3.5 + pause)), *ENDS]
    ours, _ = taken([watched(frames)])
    assert [track[2] for track in ours] == tracks


def test_means_are_of_likelihoods_not_of_their_logarithms():
    means = TrackMeans(DriftSettings(), 2)
    rows = watched([*every(1, (0, 2)), *ENDS])
    finished = means.take(rows, np.array([[1e6, 1e-320], [1, 0], [1, 0], [2, 0]]))
    assert finished.log_mean[0, 0] == pytest.approx(math.log((1e6 + 4) / 4))
    assert np.isfinite(finished.log_mean[0, 1])


def test_the_mean_over_a_track_of_a_length_given_in_advance_is_one_on_average():
    random = np.random.default_rng(7)
    tracks, length = 4000, 8
    # All detections of a track err alike: as dependent as can be.
    nees = np.repeat(random.chisquare(3, tracks), length)
    frames = [
        (0, at * SECOND // 10, False, [(at // length + 1, 0, e, e)])
        for at, e in enumerate(nees.tolist())
    ]
    rows = watched([*frames, *ENDS])
    scale = 1.2
    likelihood = np.exp(rows.nees[1] * (1 - 1 / scale**2) / 2)[:, None] / scale**3
    finished = TrackMeans(DriftSettings(), 1).take(rows, likelihood)
    assert finished.slices.size == tracks
    assert np.exp(finished.log_mean).mean() == pytest.approx(1.0, abs=0.05)


def test_forgotten_slices_begin_anew_and_the_others_go_on():
    means = TrackMeans(DriftSettings(), 3)
    frames = [*every(1, (0, 4), of_slice=1), *every(2, (0, 4), of_slice=2)]
    frames.sort(key=lambda frame: frame[1])
    taken([watched(frames[:8])], means)
    means.forget(np.array([2]))
    ours, _ = taken([watched([*frames[8:], *ENDS])], means)
    assert [(track[1], track[2]) for track in ours] == [(1, 8), (2, 4)]


def test_the_longest_unseen_track_makes_room():
    means = TrackMeans(DriftSettings(most_open=2), 3)
    for track in (1, 2, 3):
        taken([watched([(0, track, False, [(track, track, 1.0, 1.0)])])], means)
    ours, _ = taken([watched(ENDS)], means)
    assert ([track[1] for track in ours], means.left_out) == ([2, 3], 1)


def test_tracks_of_a_silent_source_are_over_once_the_others_have_moved_on():
    means = TrackMeans(DriftSettings(), 3)
    taken([watched(every(1, (0, 2)))], means)
    ours, _ = taken([watched([(1, second * SECOND, False, []) for second in range(2000)])], means)
    assert [track[2] for track in ours] == [4]


def test_no_rows_finish_nothing():
    ours, means = taken([watched([]), watched([(0, 5, False, [(0, 0, 1.0, 1.0)])])])
    assert (ours, means.tracks) == ([], 0)


def test_room_of_tracks_that_are_over_is_used_again():
    means = TrackMeans(DriftSettings(), 3)
    for track in range(200):
        taken([watched([(0, track * 3 * SECOND, False, [(track + 1, 0, 1.0, 1.0)])])], means)
    # Nothing else tells what is kept.
    assert means._sums.shape[0] <= 4
