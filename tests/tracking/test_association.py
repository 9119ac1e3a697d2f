"""The coarse search misses no pair, the gate agrees with a solve of every pair, and the assignment
with scipy on whole matrices."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from monitor.frames.space import DimensionKind
from monitor.tracking.association import (
    MOST_PAIRS,
    Gaussians,
    Spots,
    assign,
    gated_pairs,
    near_pairs,
)
from tests.tracking.scenes import SPACES, XY, covariances, named

LIMIT = 16.0
EDGE = 1e-6  # a pair so close to the edge of the gate may be seen inside or outside
INFINITE = float("inf")
seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(0, 60)


def pairs_of(found):
    return list(zip(found.track.tolist(), found.detection.tolist(), strict=True))


# ---- the coarse search


def within_reach(tracks, track_reach, track_class, detections, detection_reach, detection_class):
    """(T, N) by looking at all pairs; a hair less than the reach, which may be rounded."""
    away = np.abs(tracks[:, None] - detections[None])
    reach = track_reach[:, None] + detection_reach[None]
    room = 1e-9 * reach + 4 * np.spacing(np.abs(tracks[:, None]) + np.abs(detections[None]))
    return (away <= reach - room) & (track_class[:, None] == detection_class)


@given(seeds, sizes, sizes, st.floats(-3, 8), st.floats(-6, 9))
@example(1, 60, 60, 1.0, 1.0)
@example(2, 60, 60, 8.0, -6.0)
@example(3, 60, 0, 1.0, 1.0)
def test_no_pair_within_reach_is_missed_and_none_comes_twice_or_across_classes(
    seed, t, n, position, reach
):
    random = np.random.default_rng(seed)
    places = [random.uniform(-1, 1, size) * 10**position for size in (t, n)]
    reaches = [10 ** random.uniform(reach - 1, reach + 1, size) for size in (t, n)]
    kinds = [random.integers(0, 3, size) for size in (t, n)]
    scene: Any = list(zip(places, reaches, kinds, strict=True))
    found = np.zeros((t, n), int)
    tracks, detections = (Spots(*side) for side in scene)
    np.add.at(found, near_pairs(tracks, detections), 1)
    assert found.max(initial=0) <= 1
    assert not (within_reach(*scene[0], *scene[1]) & (found == 0)).any()
    assert not found[kinds[0][:, None] != kinds[1]].any()


# ---- the gate


def every_pair(tracks, detections, space):
    """νᵀ S⁻¹ ν and log det S of all pairs, (T, N) each; infinite across classes."""
    nu = detections.mean[None, :, :] - tracks.mean[:, None, :]
    for i, dimension in enumerate(space.dimensions):
        if dimension.kind is DimensionKind.ANGLE:
            nu[..., i] = np.arctan2(np.sin(nu[..., i]), np.cos(nu[..., i]))
        elif dimension.kind is DimensionKind.ANGLE_MODULO_PI:
            nu[..., i] = np.arctan2(np.sin(2 * nu[..., i]), np.cos(2 * nu[..., i])) / 2
    s = tracks.covariance[:, None] + detections.covariance[None]
    joint = list(space.joint)
    nu, s = nu[..., joint], s[..., joint, :][..., joint]
    nis = (nu * np.linalg.solve(s, nu[..., None])[..., 0]).sum(axis=-1)
    nis[tracks.class_index[:, None] != detections.class_index] = np.inf
    return nis, np.linalg.slogdet(s)[1]


def scene_of(seed, space, tracks, detections, reach):
    """Some detections lie by a track, some anywhere; some are absurdly far or uncertain."""
    random, k = np.random.default_rng(seed), space.k
    counts = tracks, detections
    mean = [random.uniform(-reach, reach, (n, k)) for n in counts]
    spread = [covariances(random, n, k, 0.05, 2.0) for n in counts]
    kind = [random.integers(0, 3, n) for n in counts]
    if tracks and detections:
        near = np.flatnonzero(random.random(detections) < 0.6)
        owner = random.integers(0, tracks, near.size)
        mean[1][near] = mean[0][owner] + random.normal(0, 1.5, (near.size, k))
        kind[1][near] = np.where(random.random(near.size) < 0.8, kind[0][owner], kind[1][near])
    for side in range(2):
        if counts[side]:
            far, wild, tight = random.integers(0, counts[side], 3)
            mean[side][far] = 1e8 * random.choice([-1, 1], k)
            spread[side][wild] *= 1e9
            spread[side][tight] *= 1e-9
        for i, dimension in enumerate(space.dimensions):
            if dimension.kind is not DimensionKind.LENGTH:
                half = np.pi if dimension.kind is DimensionKind.ANGLE else np.pi / 2
                mean[side][:, i] = np.remainder(mean[side][:, i] + half, 2 * half) - half
    return [Gaussians(*parts) for parts in zip(mean, spread, kind, strict=True)]


@pytest.mark.parametrize("space", SPACES, ids=named)
@given(
    seeds, sizes, sizes, st.sampled_from([1.0, 10.0, 60.0, 1e8]),
    st.sampled_from([INFINITE, INFINITE, 0.3, 2.0, 30.0]),
)  # fmt: skip
@example(0, 60, 60, 10.0, INFINITE)
@example(1, 60, 60, 10.0, 2.0)
def test_the_gate_lets_in_what_a_solve_of_every_pair_lets_in_that_is_not_too_far(
    space, seed, t, n, reach, farthest
):
    tracks, detections = scene_of(seed, space, t, n, reach)
    found = gated_pairs(tracks, detections, space, LIMIT, farthest)
    nis, log_determinant = every_pair(tracks, detections, space)
    plane = [i for i in space.joint if space.dimensions[i].kind is DimensionKind.LENGTH][:2]
    away = np.abs(detections.mean[None, :, plane] - tracks.mean[:, None, plane])
    close = (away <= farthest).all(axis=-1)
    pairs = pairs_of(found)
    assert len(set(pairs)) == len(pairs)
    inside = np.zeros(nis.shape, bool)
    inside[found.track, found.detection] = True
    assert not (inside & ~((nis <= LIMIT * (1 + EDGE)) & close)).any()
    assert not (~inside & (nis <= LIMIT * (1 - EDGE)) & close).any()
    at = found.track, found.detection
    np.testing.assert_allclose(found.nis, nis[at], rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(found.log_determinant, log_determinant[at], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose((found.whitened**2).sum(axis=1), found.nis, rtol=1e-12)


def crowd(n, k, deviation, spread):
    """n tracks and n detections of one class."""
    random = np.random.default_rng(n)
    covariance = np.tile(deviation**2 * np.eye(k), (n, 1, 1))
    return [
        Gaussians(random.normal(0, spread, (n, k)), covariance, np.zeros(n, int)) for _ in range(2)
    ]


@pytest.mark.parametrize("deviation", [1e1, 1e9, 1e150])
def test_a_crowd_of_huge_covariances_is_answered_with_the_nearest_pairs(deviation):
    tracks, detections = crowd(2000, 2, deviation, 50.0)
    found = gated_pairs(tracks, detections, XY, LIMIT)
    assert MOST_PAIRS / 16 < found.nis.size <= MOST_PAIRS
    pairs = set(pairs_of(found))
    assert len(pairs) == found.nis.size
    away = np.abs(detections.mean[None] - tracks.mean[:, None]).max(axis=-1)
    nearest = set(enumerate(away.argmin(axis=1).tolist()))
    # Only out on the rim may a track have nothing in a window that is right for the middle.
    assert len(nearest & pairs) > 0.95 * 2000


# ---- the assignment


def possible(seed, t, n, share, classes=1, ties=False):
    """Pairs of a random graph in random order; the classes share nothing."""
    random = np.random.default_rng(seed)
    kind = [random.integers(0, classes, size) for size in (t, n)]
    allowed = (random.random((t, n)) < share) & (kind[0][:, None] == kind[1])
    track, detection = np.nonzero(allowed)
    order = random.permutation(track.size)
    track, detection = track[order], detection[order]
    # −2 log of a likelihood is often negative.
    cost = random.normal(0, 30, track.size)
    return track, detection, cost.round(-1) if ties else cost, kind[0][track]


def assigned(track, detection, cost, kind):
    """The positions that are chosen; no track and no detection is chosen twice."""
    chosen = assign(track, detection, cost.take, kind)
    for side in (np.arange(track.size), track, detection):
        assert np.unique(side[chosen]).size == chosen.size
    return chosen


@given(
    seeds, st.integers(1, 80), st.integers(1, 80), st.sampled_from([0.01, 0.05, 0.3, 1.0]),
    st.integers(1, 4),
)  # fmt: skip
@example(3, 60, 60, 0.05, 3)
@example(3, 60, 50, 1.0, 1)
def test_many_are_assigned_as_by_scipy_and_none_is_left_out_for_a_cheaper_sum(
    seed, t, n, share, classes
):
    track, detection, cost, kind = possible(seed, t, n, share, classes)
    chosen = assigned(track, detection, cost, kind)
    for one in range(classes):
        of_class = np.flatnonzero(kind == one)
        matrix = np.full((t, n), 1e7)
        matrix[track[of_class], detection[of_class]] = cost[of_class]
        dense = matrix[linear_sum_assignment(matrix)]
        mine = chosen[kind[chosen] == one]
        assert mine.size == np.count_nonzero(dense < 1e6)
        np.testing.assert_allclose(cost[mine].sum(), dense[dense < 1e6].sum(), atol=1e-7)
    graph = csr_array((np.ones(track.size), (track, detection)), shape=(t, n))
    most = np.count_nonzero(maximum_bipartite_matching(graph, perm_type="column") >= 0)
    assert assign(track, detection, (1e6 * cost).take, kind).size == most
