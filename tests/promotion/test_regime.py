"""How many of the newest tracks are of one regime, on tracks whose variance changes or does not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.frames.detections import Estimates
from monitor.frames.space import Dimension, DimensionKind, FloatArray, Space, plain_space
from monitor.promotion.reservoir import latest_alike
from monitor.promotion.tracks import WholeTrack
from tests.promotion.simulated_tracks import tracks

SEEDS = range(100)


def changed(seed: int, factor: float, *spans: tuple[int, int], length: int = 20) -> int:
    """Of 400 tracks with t5 errors, where those between so many ago have another variance."""
    scale: FloatArray = np.ones((400, 1))
    for before, until in spans:
        scale[400 - before : 400 - until] = factor
    found = tracks(seed, 400, 3, length, scale=np.repeat(scale, 3, axis=1), degrees=5)
    return latest_alike(found, 10)


def of_levels(nees: list[float]) -> list[WholeTrack]:
    """Tracks of one row each, of that NEES/K."""
    space, n = plain_space(("x",)), 1
    sent = Estimates(np.zeros((n, 1)), np.ones((n, 1, 1)), np.ones(n, bool))
    return [
        WholeTrack(space, 0, sent, np.full((n, 1), np.sqrt(level)), np.array([i]), 0)
        for i, level in enumerate(nees)
    ]


@pytest.mark.parametrize("length", [1, 3, 20])
def test_tracks_of_one_regime_are_all_kept(length):
    kept = np.array([changed(seed, 1.0, length=length) for seed in range(200)])
    assert np.mean(kept == 400) >= 0.95


@pytest.mark.parametrize("factor", [5.0, 0.2])
def test_what_was_before_a_large_change_is_not_kept(factor):
    kept = np.array([changed(seed, factor, (20, 0)) for seed in SEEDS])
    assert kept.min() >= 10
    assert kept.max() <= 30
    assert np.median(kept) == 20


@pytest.mark.parametrize("factor", [2.25, 1 / 2.25])
def test_what_was_before_a_moderate_change_is_not_kept(factor):
    kept = np.array([changed(seed, factor, (40, 0)) for seed in SEEDS])
    assert np.mean(kept <= 80) >= 0.98
    assert 38 <= np.median(kept) <= 42


def test_a_fault_that_came_and_went_is_not_kept():
    kept = np.array([changed(seed, 5.0, (90, 30)) for seed in SEEDS])
    assert kept.max() <= 40


def test_a_large_change_within_the_fewest_leaves_about_these():
    kept = np.array([changed(seed, 5.0, (9, 0)) for seed in SEEDS])
    assert np.mean(kept <= 12) >= 0.95


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


@given(st.floats(1e-3, 1e3), st.integers(0, 1000))
def test_the_unit_does_not_matter(factor, seed):
    found = tracks(seed, 60, 2, 5, scale=np.linspace(1, 9, 60)[:, None] * np.ones(2))
    scaled = [
        WholeTrack(
            track.space,
            track.slice,
            Estimates(
                factor * track.sent.mean, factor**2 * track.sent.covariance, track.sent.diagonal
            ),
            factor * track.truth,
            track.stamp_ns,
            0,
        )
        for track in found
    ]
    assert latest_alike(scaled, 10) == latest_alike(found, 10)


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
