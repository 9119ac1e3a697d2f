"""How tracks vary by their seconds: streaming sums against textbook loops over whole tracks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.drift.reference import LONGEST, LevelSums

quick = settings(max_examples=60)
seeds = st.integers(0, 2**32 - 1)


def some_tracks(seed, number, longest=12, between=0.5, within=0.7, mean=0.4):
    random = np.random.default_rng(seed)
    return [
        mean + between * random.standard_normal() + within * random.standard_normal(n)
        for n in random.integers(1, longest + 1, number)
    ]


def summed(tracks, order=None, chunk=7) -> LevelSums:
    """Second after second of all tracks, in pieces."""
    order = range(len(tracks)) if order is None else order
    rows = [
        (y[i], 10, i, y[:i].mean() if i else 0.0)
        for i in range(max(y.size for y in tracks))
        for y in (tracks[track] for track in order)
        if i < y.size
    ]
    sums = LevelSums()
    for at in range(0, len(rows), chunk):
        level, count, before, mean = map(np.array, zip(*rows[at : at + chunk], strict=True))
        sums.add(level, count, before, mean)
    return sums


def textbook(tracks):
    """m0, τ and ω, from the tracks themselves."""
    total, seconds = len(tracks), sum(y.size for y in tracks)
    omega2 = sum(((y - y.mean()) ** 2).sum() for y in tracks) / (seconds - total)
    grand = sum(y.sum() for y in tracks) / seconds
    between = sum(y.size * (y.mean() - grand) ** 2 for y in tracks) / (total - 1)
    size = (seconds - sum(y.size**2 for y in tracks) / seconds) / (total - 1)
    tau2 = max(0.0, (between - omega2) / size)
    weights = [1 / (tau2 + omega2 / y.size) for y in tracks]
    mean = sum(w * y.mean() for w, y in zip(weights, tracks, strict=True)) / sum(weights)
    # Three tenths at least, as levels() has it.
    return mean, max(math.sqrt(tau2), 0.3), math.sqrt(omega2)


@quick
@given(seeds, st.integers(15, 60), st.integers(1, 40))
def test_levels_are_those_of_a_one_way_analysis_of_variance(seed, number, chunk):
    tracks = some_tracks(seed, number)
    found = summed(tracks, chunk=chunk).levels(10)
    assert found is not None
    np.testing.assert_allclose(
        (found.mean, found.between, found.within), textbook(tracks), rtol=1e-9
    )
    assert (found.tracks, found.blocks) == (number, sum(y.size for y in tracks))
    assert found.length == 10


@quick
@given(seeds)
def test_the_order_of_tracks_does_not_matter_beyond_rounding(seed):
    tracks = some_tracks(seed, 30)
    order = np.random.default_rng(seed + 1).permutation(30).tolist()
    one, other = summed(tracks).levels(10), summed(tracks, order).levels(10)
    assert one is not None
    assert other is not None
    for name in ("mean", "between", "within"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-9)


def test_deviations_are_found_again():
    found = summed(some_tracks(1, 4000), chunk=500).levels(10)
    assert found is not None
    assert 0.49 < found.between < 0.53
    assert 0.69 < found.within < 0.72
    assert found.mean == pytest.approx(0.4, abs=0.05)


def test_seconds_beyond_the_longest_count_for_a_track_but_not_for_how_tracks_differ():
    tracks = some_tracks(3, 20, longest=LONGEST)
    longer = [np.append(y, np.full(LONGEST + 5 - y.size, y.mean())) for y in tracks]
    sums = summed(longer)
    assert sums.tracks[LONGEST] == 20
    assert sums.blocks == 20 * (LONGEST + 5)
    np.testing.assert_allclose(
        sums.means[LONGEST], sum(y[:LONGEST].mean() for y in longer), rtol=1e-12
    )


@pytest.mark.parametrize("tracks", [[], some_tracks(1, 9), [np.zeros(1)] * 50])
def test_too_few_tracks_or_no_second_seconds_teach_nothing(tracks):
    sums = summed(tracks) if tracks else LevelSums()
    assert sums.levels(10) is None


def test_tracks_that_are_all_alike_leave_room_for_others():
    found = summed([np.array([0.1, -0.1, 0.1, -0.1])] * 20).levels(10)
    assert found is not None
    assert found.between > 0
    assert found.within > 0


def test_a_track_that_was_not_seen_from_its_first_second_on_leaves_numbers_that_make_sense():
    sums = LevelSums()
    sums.add(np.array([3.0]), np.array([10]), np.array([4]), np.array([2.0]))
    assert (sums.tracks >= 0).all()
    for y in some_tracks(2, 30):
        for i, level in enumerate(y):
            mean = y[:i].mean() if i else 0.0
            sums.add(np.array([level]), np.array([10]), np.array([i]), np.array([mean]))
    found = sums.levels(10)
    assert found is not None
    assert 0.3 < found.between < 1.2
