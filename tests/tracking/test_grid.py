"""The coarse search: it misses no pair within reach, and looks at few others."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.tracking.association import MOST_PAIRS, near_pairs

seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(0, 60)


def within_reach(tracks, track_reach, track_class, detections, detection_reach, detection_class):
    """(T, N) by looking at all pairs; a hair less than the reach, which may be rounded."""
    away = np.abs(tracks[:, None] - detections[None])
    reach = track_reach[:, None] + detection_reach[None]
    room = 1e-9 * reach + 4 * np.spacing(np.abs(tracks[:, None]) + np.abs(detections[None]))
    return (away <= reach - room).all(axis=-1) & (track_class[:, None] == detection_class)


def random_scene(seed, t, n, position, reach, classes=3):
    random = np.random.default_rng(seed)
    places = [random.uniform(-1, 1, (size, 2)) * 10**position for size in (t, n)]
    reaches = [10 ** random.uniform(reach - 1, reach + 1, (size, 2)) for size in (t, n)]
    kinds = [random.integers(0, classes, size) for size in (t, n)]
    return [part for side in zip(places, reaches, kinds, strict=True) for part in side]


def as_matrix(found, t, n):
    track, detection = found
    matrix = np.zeros((t, n), int)
    np.add.at(matrix, (track, detection), 1)
    return matrix


@settings(max_examples=200)
@given(seeds, sizes, sizes, st.floats(-3, 8), st.floats(-6, 9))
def test_no_pair_within_reach_is_missed_and_none_comes_twice_or_across_classes(
    seed, t, n, position, reach
):
    scene = random_scene(seed, t, n, position, reach)
    found = as_matrix(near_pairs(*scene), t, n)
    assert found.max(initial=0) <= 1
    assert not (within_reach(*scene) & (found == 0)).any()
    assert not found[scene[2][:, None] != scene[5]].any()


@settings(max_examples=50)
@given(seeds, sizes, sizes, st.floats(-2, 2))
def test_nothing_within_the_largest_distance_is_missed(seed, t, n, most):
    scene = random_scene(seed, t, n, 1.0, 1.0)
    tracks, reach, kind, detections, other_reach, other_kind = scene
    pairs = near_pairs(tracks, reach, kind, detections, other_reach, other_kind, 10**most)
    close = (np.abs(tracks[:, None] - detections[None]) <= 10**most).all(axis=-1)
    found = as_matrix(pairs, t, n)
    assert not (within_reach(*scene) & close & (found == 0)).any()


def street(n=500, seed=0):
    random = np.random.default_rng(seed)
    place = random.uniform(-60, 60, (n, 2))
    reach = np.full((n, 2), 1.0)
    kind = np.zeros(n, int)
    return [place, reach, kind, place + random.normal(0, 0.3, (n, 2)), reach.copy(), kind]


def test_a_street_is_searched_without_looking_at_all_pairs():
    scene = street()
    looked_at = near_pairs(*scene)[0].size
    assert within_reach(*scene).sum() <= looked_at < 0.01 * 500**2


@pytest.mark.parametrize("side", [1, 4], ids=["track", "detection"])
@pytest.mark.parametrize("reach", [1e3, 1e12, 1e150])
def test_one_absurd_reach_costs_its_own_pairs_and_no_others(side, reach):
    usual, scene = street(), street()
    scene[side][7] = reach
    more = near_pairs(*scene)[0].size - near_pairs(*usual)[0].size
    assert more <= 2 * 500


@pytest.mark.parametrize("side", [0, 3], ids=["track", "detection"])
@pytest.mark.parametrize("row", [0, 250, 499])
def test_one_absurd_position_costs_next_to_nothing(side, row):
    usual, scene = street(), street()
    scene[side][row] = -1e8
    assert near_pairs(*scene)[0].size <= near_pairs(*usual)[0].size + 500


@pytest.mark.parametrize("spread", [0.0, 1e-9, 1.0, 1e8])
@pytest.mark.parametrize("reach", [1e-6, 1.0, 1e9, 1e150])
def test_there_are_never_more_pairs_than_may_be(spread, reach):
    random, n = np.random.default_rng(0), 2000
    places = [random.uniform(-spread, spread, (n, 2)) for _ in range(2)]
    wide, kind = np.full((n, 2), reach), np.zeros(n, int)
    wide[::3] *= 10.0
    track, detection = near_pairs(places[0], wide, kind, places[1], wide, kind)
    assert track.size == detection.size <= MOST_PAIRS
    assert np.unique(track * n + detection).size == track.size
