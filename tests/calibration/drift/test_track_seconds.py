"""Seconds of tracks, against a slow account of every frame and track in dictionaries."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.drift.evidence import DriftSettings
from monitor.drift.track_seconds import FEWEST, TrackSeconds
from tests.calibration.drift.watched_rows import Frame, cut, some_frames, watched

quick = settings(max_examples=60)
seeds = st.integers(0, 2**32 - 1)
cuts = st.lists(st.integers(0, 120), max_size=12)
SECOND = 10**9
NONE = np.zeros(0, np.int64)


class Slow:
    """One row at a time."""

    def __init__(self, idle=2.0):
        self.idle = idle * SECOND
        self.time: dict[int, int] = {}
        self.open: dict[int, dict[int, dict[str, Any]]] = defaultdict(dict)
        self.tracks: dict[int, dict[str, Any]] = {}
        self.out: list[tuple[Any, ...]] = []
        self.late = self.short = 0

    def frame(self, source, stamp, changed, rows):
        if source in self.time and stamp < self.time[source] - 10 * SECOND:
            self.close(source)
            for key in [key for key, track in self.tracks.items() if track["source"] == source]:
                del self.tracks[key]
            del self.time[source]
        now = max(stamp, self.time.get(source, stamp))
        if source in self.time and now // SECOND > self.time[source] // SECOND:
            self.close(source)
        self.time[source] = now
        for key, of_slice, *nees in rows:
            if key == 0:
                continue
            if stamp // SECOND < now // SECOND:
                self.late += 1
                continue
            block = self.open[source].setdefault(
                key, {"slice": of_slice, "opened": now, "changed": False, "logs": []}
            )
            block["last"] = now
            block["changed"] |= changed
            block["logs"].append([math.log(max(e, 1e-6)) for e in nees])

    def close(self, source):
        for key, block in sorted(self.open.pop(source, {}).items()):
            track = self.tracks.get(key)
            if track is None or block["opened"] - track["last"] > self.idle:
                track = self.tracks[key] = {"source": source, "seconds": [], "levels": []}
            track["last"] = block["last"]
            if len(block["logs"]) < FEWEST:
                self.short += len(block["logs"])
                continue
            level = np.mean(block["logs"], axis=0)
            second = block["opened"] // SECOND
            before = len(track["levels"])
            mean = np.mean(track["levels"], axis=0) if before else np.zeros(2)
            first = track["seconds"][0] if before else second
            self.out.append(
                (
                    *(source, second, block["slice"], *level, len(block["logs"])),
                    *(block["changed"], before, *mean, first),
                )
            )
            track["seconds"].append(second)
            track["levels"].append(level)


def listed(blocks):
    return list(
        zip(
            *(blocks.source, blocks.second, blocks.slices, *blocks.level, blocks.count),
            *(blocks.changed, blocks.before, *blocks.mean, blocks.first),
            strict=True,
        )
    )


def of_source(blocks, source):
    return [block for block in blocks if block[0] == source]


def taken(pieces, seconds=None):
    seconds = seconds or TrackSeconds(DriftSettings())
    return [block for piece in pieces for block in listed(seconds.take(piece))], seconds


def second_of(track, second, *, level=0.0, rows=6, source=0, of_slice=0, changed=False):
    """Frames of one track in one second, with ln NEES of `level`."""
    e = math.exp(level)
    step = SECOND // rows
    return [
        (source, second * SECOND + at * step, changed, [(track, of_slice, e, e)])
        for at in range(rows)
    ]


@quick
@given(seeds, cuts, st.booleans())
def test_blocks_are_those_of_the_slow_account(seed, cuts, wild):
    frames = some_frames(seed, wild=wild)
    blocks, seconds = taken(cut(frames, cuts))
    slow = Slow()
    for frame in frames:
        slow.frame(*frame)
    for source in range(3):
        fast, expected = of_source(blocks, source), of_source(slow.out, source)
        assert len(fast) == len(expected)
        np.testing.assert_allclose(
            np.array(fast, float).reshape(-1, 11),
            np.array(expected, float).reshape(-1, 11),
            rtol=1e-9,
            atol=1e-6,
        )
    assert (seconds.late, seconds.short, seconds.left_out) == (slow.late, slow.short, 0)


@quick
@given(seeds, cuts, st.booleans())
def test_how_rows_are_cut_into_calls_changes_not_a_bit(seed, cuts, wild):
    frames = some_frames(seed, wild=wild)
    whole, one = taken([watched(frames)])
    pieces, many = taken(cut(frames, cuts))
    for source in range(3):
        assert of_source(whole, source) == of_source(pieces, source)
    assert (one.late, one.short, one.tracks) == (many.late, many.short, many.tracks)


@quick
@given(seeds, cuts)
def test_every_row_of_a_track_is_in_a_block_or_counted_by_why_it_is_not(seed, cuts):
    frames = some_frames(seed, wild=True)
    # A later second of every source ends what is open.
    ends: list[Frame] = [(source, 10**15, False, []) for source in range(3)]
    blocks, seconds = taken(cut([*frames, *ends], cuts))
    rows = sum(row[0] != 0 for *_, rows in frames for row in rows)
    assert sum(block[5] for block in blocks) + seconds.late + seconds.short == rows


def test_blocks_of_one_call_come_by_source_then_second_then_track():
    frames = [
        frame
        for second in (7, 8)
        for source, track in ((2, 9), (1, 5), (1, 3))
        for frame in second_of(track, second, source=source, of_slice=track)
    ]
    frames += [(source, 9 * SECOND, False, []) for source in (1, 2)]
    blocks, _ = taken([watched(sorted(frames, key=lambda frame: frame[1]))])
    assert [block[:3] for block in blocks] == [
        (1, 7, 3),
        (1, 7, 5),
        (1, 8, 3),
        (1, 8, 5),
        (2, 7, 9),
        (2, 8, 9),
    ]


def test_a_later_block_counts_the_earlier_ones_that_close_in_the_same_call():
    frames = [
        frame
        for second, level in ((3, 0.5), (4, 1.5), (5, -2.0))
        for frame in second_of(1, second, level=level)
    ]
    blocks, _ = taken([watched([*frames, (0, 6 * SECOND, False, [])])])
    assert [(block[7], block[10]) for block in blocks] == [(0, 3), (1, 3), (2, 3)]
    np.testing.assert_allclose([block[8] for block in blocks], [0.0, 0.5, 1.0], atol=1e-6)


def test_a_block_of_few_detections_is_dropped_and_its_track_goes_on():
    frames = [
        *second_of(1, 3),
        *second_of(1, 4, rows=FEWEST - 1),
        *second_of(1, 5, rows=FEWEST - 1),
        *second_of(1, 6),
    ]
    blocks, seconds = taken([watched([*frames, (0, 7 * SECOND, False, [])])])
    assert [(block[1], block[7]) for block in blocks] == [(3, 0), (6, 1)]
    assert seconds.short == 2 * (FEWEST - 1)


@pytest.mark.parametrize(("pause", "before"), [(0, 1), (1, 1), (2, 0), (9, 0)])
def test_a_track_id_that_comes_again_after_idle_is_a_new_track(pause, before):
    frames = [*second_of(1, 3), *second_of(1, 4 + pause), (0, 99 * SECOND, False, [])]
    blocks, _ = taken([watched(frames)])
    assert [block[7] for block in blocks] == [0, before]


def test_an_error_of_nothing_does_not_outweigh_its_second():
    frames = [*second_of(1, 3, level=0.0, rows=10), (0, 3 * SECOND + 1, False, [(1, 0, 0.0, 0.0)])]
    blocks, _ = taken([watched([*frames, (0, 4 * SECOND, False, [])])])
    np.testing.assert_allclose(blocks[0][3], math.log(1e-6) / 11, rtol=1e-6)


def test_one_wild_stamp_does_not_end_a_source_for_good():
    frames = [*second_of(1, 3), (0, 10**18, False, []), *second_of(1, 4), *second_of(1, 5)]
    blocks, seconds = taken([watched([*frames, (0, 6 * SECOND, False, [])])])
    assert [(block[1], block[7]) for block in blocks] == [(3, 0), (4, 0), (5, 1)]
    assert seconds.late == 0


def test_a_wild_stamp_of_one_source_leaves_the_others_as_they_are():
    frames = [*second_of(1, 3), (1, 0, False, []), (1, 10**18, False, []), *second_of(1, 4)]
    blocks, _ = taken([watched([*frames, (0, 5 * SECOND, False, [])])])
    assert [(block[1], block[7]) for block in blocks] == [(3, 0), (4, 1)]


def test_what_a_silent_source_left_open_is_told_once_the_others_have_moved_on():
    seconds = TrackSeconds(DriftSettings())
    taken([watched(second_of(1, 3))], seconds)
    others: list[Frame] = [(1, second * SECOND, False, []) for second in range(2000)]
    blocks, _ = taken([watched(others)], seconds)
    assert [block[:2] for block in blocks] == [(0, 3)]
    assert seconds.tracks == 0


def test_forgotten_slices_begin_anew_and_the_others_go_on():
    seconds = TrackSeconds(DriftSettings())
    both = [
        [frame for track in (1, 2) for frame in second_of(track, second, of_slice=track)]
        for second in (3, 4, 5)
    ]
    taken([watched(sorted(frames, key=lambda frame: frame[1])) for frames in both[:2]], seconds)
    seconds.forget(np.array([2]))
    rest = sorted(both[2], key=lambda frame: frame[1])
    blocks, _ = taken([watched([*rest, (0, 6 * SECOND, False, [])])], seconds)
    assert [(block[2], block[1], block[7]) for block in blocks] == [(1, 4, 1), (1, 5, 2), (2, 5, 0)]
    seconds.forget(NONE)
    assert seconds.tracks == 2


@quick
@given(seeds, st.integers(1, 8))
def test_no_more_tracks_are_followed_than_may_be_and_the_longest_unseen_leave_first(seed, most):
    seconds = TrackSeconds(DriftSettings(most_open=most))
    frames = some_frames(seed, 60)
    counted = 0
    for frame in [*frames, *((source, 10**15, False, []) for source in range(3))]:
        counted += sum(block[5] for block in taken([watched([frame])], seconds)[0])
        assert seconds.tracks <= most
    rows = sum(row[0] != 0 for *_, rows in frames for row in rows)
    assert counted + seconds.late + seconds.short + seconds.left_out == rows


def test_the_longest_unseen_track_makes_room():
    seconds = TrackSeconds(DriftSettings(most_open=2))
    frames = [*second_of(1, 3), *second_of(2, 3), *second_of(3, 3)]
    # One after the other within the second.
    frames = [(0, 3 * SECOND + at, False, frame[3]) for at, frame in enumerate(frames)]
    blocks, _ = taken([watched([frame]) for frame in frames], seconds)
    assert (blocks, seconds.tracks, seconds.left_out) == ([], 2, 6)


def test_no_rows_make_no_blocks():
    blocks, seconds = taken([watched([]), watched([(0, 5, False, [(0, 0, 1.0, 1.0)])])])
    assert (blocks, seconds.tracks) == ([], 0)
