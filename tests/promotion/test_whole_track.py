"""Whole tracks: what is later of them, their rows, and that to break one changes nothing of what
it says in a trial, and of what an adaptive scaling remembers of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.frames.detections import Limits
from monitor.promotion.betting import Clip
from monitor.promotion.register import Follower
from monitor.promotion.tracks import WholeTrack, rows_of
from monitor.promotion.trial import Trial
from monitor.recalibration.adaptive_scaling import AdaptiveScaling, followed
from monitor.recalibration.recalibrator import Identity
from monitor.recalibration.scaling import VarianceScaling
from tests.promotion.broken_tracks import broken, outliers_broken_off
from tests.promotion.simulated_tracks import FRAME_NS, tracks

LIMITS, IDENTITY = Limits(), Identity()
quick = settings(max_examples=50)
seeds = st.integers(0, 2**32 - 1)


# ---- what is later


@quick
@given(
    st.lists(st.integers(-(2**62), 2**62) | st.integers(-9, 9), min_size=1, max_size=20), st.data()
)
def test_what_is_later_are_the_rows_after_a_time_and_all_else_stays(stamps, data):
    stamps.sort()
    at = data.draw(st.sampled_from(stamps) | st.integers(-10, 10))
    whole = replace(
        tracks(0, 1, length=len(stamps))[0],
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


def test_all_of_it_is_later_where_no_time_is_given():
    (track,) = tracks(0, 1, begin_ns=-(10**15))
    assert track.since(None) is track
    assert track.since(-(10**15)) is track
    assert track.since(-(10**15) + FRAME_NS) is not track


# ---- rows


@quick
@given(seeds, st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_rows_stand_track_after_track_and_means_are_of_each(seed, counts):
    some = [tracks(seed + i, 1, length=count)[0] for i, count in enumerate(counts)]
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


@quick
@given(seeds, st.integers(1, 32), st.sampled_from([0.7, 1.1, 1.5, 3.0]))
def test_to_break_a_track_changes_nothing_of_what_it_says(seed, length, factor):
    (track,) = tracks(seed, 1, length=length)
    candidate = VarianceScaling((factor**0.5,) * 3)
    # More than any row of these says: nothing is clipped.
    clip = Clip(1e3, 1e3, 1e3, rows=32.0)
    pieces = broken(np.random.default_rng(seed), track, 32)
    assert said(pieces, candidate, clip) == pytest.approx(said([track], candidate, clip), abs=1e-9)


@quick
@given(seeds, st.integers(33, 100))
def test_however_a_long_track_is_broken_pieces_that_are_not_long_say_the_same(seed, length):
    (track,) = tracks(seed, 1, length=length, degrees=5.0)
    random, candidate, clip = (
        np.random.default_rng(seed),
        VarianceScaling((1.2,) * 3),
        Clip(1e3, 1e3, 1e3, rows=32.0),
    )
    one, other = (said(broken(random, track, longest), candidate, clip) for longest in (32, 5))
    assert one == pytest.approx(other, abs=1e-9)
    assert one == pytest.approx(said([track], candidate, clip) * length / 32, abs=1e-9)


@quick
@given(seeds, st.integers(2, 32), st.sampled_from([0.2, 0.5, 2.0, 5.0]))
def test_pieces_of_a_track_say_no_more_for_any_step_than_the_track_says_unclipped(
    seed, length, factor
):
    (track,) = tracks(seed, 1, length=length, degrees=3.0, scale=2.0)
    candidate = VarianceScaling((factor**0.5,) * 3)
    clip = Clip(1.0, 1.0, 1.0, rows=32.0)
    whole = said([track], candidate, replace(clip, most=1e9))
    pieces = broken(np.random.default_rng(seed), track, 32)
    # But for what a piece would lose beyond B.
    alone = [said([one], candidate, replace(clip, most=1e9)) for one in pieces]
    beyond = sum(min(0.0, one + 1) for one in alone)
    assert said(pieces, candidate, clip) <= whole - beyond + 1e-9


# ---- what an adaptive scaling remembers


def scaling_of(*, tracks: float = 20.0, time_constant_s: float = 60.0) -> AdaptiveScaling:
    ones = (1.0,) * 3
    return AdaptiveScaling(
        ones, time_constant_s, 0.0, 0.0, tracks, (tracks,) * 3, prior_scale=ones, prior_tracks=3.0
    )


def assert_alike(one: AdaptiveScaling, other: AdaptiveScaling) -> None:
    for name, value in one.parameters().items():
        assert value == pytest.approx(other.parameters()[name], rel=1e-9), name


@quick
@given(
    st.lists(st.tuples(*[st.floats(0.0, 60.0)] * 3), min_size=1, max_size=5),
    st.integers(1, 40),
    st.floats(-100.0, 100.0),
)
def test_so_many_votes_of_as_small_a_part_are_one_vote(nees, parts, at_s):
    x, ended_s = np.array(nees), at_s + np.arange(float(len(nees)))
    whole = followed(scaling_of(), x, ended_s, 1.0)
    of_each, ended = np.repeat(x, parts, axis=0), np.repeat(ended_s, parts)
    votes = np.full(ended.size, 1 / parts)
    assert_alike(followed(scaling_of(), of_each, ended, 1.0, votes), whole)
    one_by_one = scaling_of()
    for one, at, vote in zip(of_each, ended, votes, strict=True):
        one_by_one = followed(one_by_one, one[None], np.array([at]), 1.0, np.array([vote]))
    assert_alike(one_by_one, whole)


def test_a_vote_of_nothing_teaches_nothing_and_whole_votes_need_not_be_said():
    x, ended_s = np.full((4, 3), 9.0), np.arange(4.0)
    silent = followed(scaling_of(), x, ended_s, 0.0, np.zeros(4))
    assert silent.scale == pytest.approx((1.0, 1.0, 1.0))
    assert silent.ended_s == 3.0
    said_so = followed(scaling_of(), x, ended_s, 0.0, np.ones(4))
    assert said_so == followed(scaling_of(), x, ended_s, 0.0)


@quick
@given(seeds, st.integers(2, 32))
def test_to_break_a_track_changes_nothing_of_what_is_remembered_of_it(seed, length):
    (track,) = tracks(seed, 1, length=length, scale=4.0)
    # So slow that pieces, which end sooner, are as old as the whole.
    follower = Follower.of(scaling_of(time_constant_s=1e9), 32.0)
    pieces = broken(np.random.default_rng(seed), track, 32)
    whole, in_parts = follower.taken([track]), follower.taken(pieces)
    assert in_parts.scaling.scale == pytest.approx(whole.scaling.scale, rel=1e-6)
    assert in_parts.scaling.tracks == pytest.approx(20 + length / 32, rel=1e-6)


def remembered(some: Sequence[WholeTrack], full: float) -> float:
    """The largest factor on the variance after tracks that come one by one."""
    follower = Follower.of(scaling_of(), full)
    for track in some:
        follower = follower.taken([track])
    return max(follower.scaling.scale) ** 2


def test_outliers_that_are_broken_off_first_do_not_drive_what_follows_a_healthy_detector():
    at_once = np.arange(1, 33) * 312_500_000
    by_length, by_head = [], []
    for seed in range(5):
        some = tracks(seed, 40, length=32, degrees=5.0)
        pieces = outliers_broken_off([replace(track, stamp_ns=at_once) for track in some])
        by_length.append(remembered(pieces, 32.0))
        by_head.append(remembered(pieces, 1.0))
    assert max(by_length) < 1.6
    # Where a single row has a full vote.
    assert min(by_head) > 2
