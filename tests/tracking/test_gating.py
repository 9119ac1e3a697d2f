"""The gate, against a solve of every pair of a class."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from monitor.frames.space import DimensionKind
from monitor.tracking.association import (
    MOST_PAIRS,
    Gaussians,
    gate_limit,
    gated_pairs,
    measured_pairs,
)
from tests.tracking.scenes import ANGLES, BOX, SPACES, XY, XYZ, covariances, named

LIMIT = 16.0
# Whoever lies so close to the edge of the gate may be seen inside or outside.
EDGE = 1e-6
seeds = st.integers(0, 2**32 - 1)


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


def scene(seed, space, tracks, detections, reach, *, outliers=True):
    """Some detections lie by a track, some anywhere; some things are absurdly far or uncertain."""
    random, k = np.random.default_rng(seed), space.k
    sizes = tracks, detections
    mean = [random.uniform(-reach, reach, (n, k)) for n in sizes]
    spread = [covariances(random, n, k, 0.05, 2.0) for n in sizes]
    kind = [random.integers(0, 3, n) for n in sizes]
    if tracks and detections:
        near = np.flatnonzero(random.random(detections) < 0.6)
        owner = random.integers(0, tracks, near.size)
        mean[1][near] = mean[0][owner] + random.normal(0, 1.5, (near.size, k))
        kind[1][near] = np.where(random.random(near.size) < 0.8, kind[0][owner], kind[1][near])
    for side in range(2):
        if outliers and sizes[side]:
            far, wild, tight = random.integers(0, sizes[side], 3)
            mean[side][far] = 1e8 * random.choice([-1, 1], k)
            spread[side][wild] *= 1e9
            spread[side][tight] *= 1e-9
    for i, dimension in enumerate(space.dimensions):
        if dimension.kind is not DimensionKind.LENGTH:
            half = np.pi if dimension.kind is DimensionKind.ANGLE else np.pi / 2
            for side in range(2):
                mean[side][:, i] = np.remainder(mean[side][:, i] + half, 2 * half) - half
    return [Gaussians(*parts) for parts in zip(mean, spread, kind, strict=True)]


def pairs_of(found):
    return list(zip(found.track.tolist(), found.detection.tolist(), strict=True))


def assert_gated(found, nis, log_determinant, close):
    """Exactly the pairs within the limit that are close, each with its own figures."""
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


@pytest.mark.parametrize("space", SPACES, ids=named)
@settings(max_examples=25)
@given(seeds, st.integers(0, 60), st.integers(0, 60), st.sampled_from([1.0, 10.0, 60.0, 1e8]))
def test_the_gate_lets_in_what_a_solve_of_every_pair_lets_in(space, seed, t, n, reach):
    tracks, detections = scene(seed, space, t, n, reach)
    found = gated_pairs(tracks, detections, space, LIMIT)
    nis, log_determinant = every_pair(tracks, detections, space)
    assert_gated(found, nis, log_determinant, np.ones(nis.shape, bool))


@pytest.mark.parametrize("space", [XY, XYZ, BOX], ids=named)
@settings(max_examples=25)
@given(seeds, st.integers(1, 40), st.integers(1, 40), st.sampled_from([0.3, 2.0, 30.0]))
def test_nothing_farther_than_the_largest_distance_is_a_pair_and_all_nearer_are(
    space, seed, t, n, most
):
    tracks, detections = scene(seed, space, t, n, 10.0)
    found = gated_pairs(tracks, detections, space, LIMIT, most)
    away = np.abs(detections.mean[None, :, :2] - tracks.mean[:, None, :2]).max(axis=-1)
    nis, log_determinant = every_pair(tracks, detections, space)
    assert_gated(found, nis, log_determinant, away <= most)


def test_a_track_of_which_nothing_is_known_reaches_as_far_as_the_largest_distance():
    # The detection is precise: nearly all of the way must be the track's.
    tracks = Gaussians(np.zeros((1, 2)), 1e6 * np.eye(2)[None], np.zeros(1, int))
    mean = np.array([[8.0, 0.0], [12.0, 0.0]])
    detections = Gaussians(mean, np.tile(1e-4 * np.eye(2), (2, 1, 1)), np.zeros(2, int))
    assert pairs_of(gated_pairs(tracks, detections, XY, LIMIT, 10.0)) == [(0, 0)]


@settings(max_examples=25)
@given(seeds, st.sampled_from(SPACES), st.integers(1, 30))
def test_given_pairs_are_measured_as_they_are_without_a_limit(seed, space, n):
    tracks, detections = scene(seed, space, n, n, 10.0)
    track = np.random.default_rng(seed).permutation(n)
    found = measured_pairs(tracks, detections, space, track, np.arange(n))
    nis, log_determinant = every_pair(tracks, detections, space)
    same = tracks.class_index[track] == detections.class_index
    assert found.track.tolist() == track.tolist()
    np.testing.assert_allclose(found.nis[same], nis[track, np.arange(n)][same], rtol=1e-6)
    np.testing.assert_allclose(
        found.log_determinant, log_determinant[track, np.arange(n)], rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("away", [0.0, 1.0, 1e8])
@pytest.mark.parametrize("blind", [1.0, 1e10])
def test_a_pair_of_which_all_is_known_one_way_and_little_the_other_is_measured_too(away, blind):
    # Turned by 45°, so that doubles hold the small variance no longer.
    spread = blind * np.array([[[1.0, 1.0 - 1e-14], [1.0 - 1e-14, 1.0]]])
    tracks = Gaussians(np.zeros((1, 2)), spread, np.zeros(1, int))
    sharp = Gaussians(np.array([[away, away]]), 1e-12 * np.eye(2)[None], np.zeros(1, int))
    pair = np.zeros(1, int)
    found = measured_pairs(tracks, sharp, XY, pair, pair)
    # S is blind · 2 along (1, 1), where all of the innovation lies.
    assert found.nis == pytest.approx([away**2 / blind], rel=1e-6)
    assert np.isfinite(found.log_determinant).all()


@pytest.mark.parametrize("k", [1, 2, 3, 7])
@pytest.mark.parametrize("level", [0.5, 0.99, 0.999, 1 - 1e-9])
def test_the_limit_is_the_quantile_of_chi_squared(level, k):
    assert gate_limit(level, k) == pytest.approx(chi2.ppf(level, k), rel=1e-6)


def crowd(n, k, deviation, spread):
    """n tracks and n detections of one class."""
    random = np.random.default_rng(n)
    covariance = np.tile(deviation**2 * np.eye(k), (n, 1, 1))
    return [
        Gaussians(random.normal(0, spread, (n, k)), covariance, np.zeros(n, int)) for _ in range(2)
    ]


@pytest.mark.parametrize("deviation", [1e1, 1e5, 1e9, 1e150])
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


@pytest.mark.parametrize("n", [600, 2000])
@pytest.mark.parametrize("space", [XYZ, BOX, ANGLES], ids=named)
def test_a_crowd_on_one_spot_is_answered(space, n):
    tracks, detections = crowd(n, space.k, 1.0, 0.0)
    found = gated_pairs(tracks, detections, space, LIMIT)
    assert MOST_PAIRS / 16 < found.nis.size <= MOST_PAIRS
    assert set(found.track.tolist()) == set(range(n))


def test_an_absurd_detection_in_the_first_place_does_not_hide_a_crowd():
    tracks, detections = crowd(600, 2, 0.01, 50.0)
    detections.mean[1:] = tracks.mean[1:] + 0.005
    detections.mean[0] = 1e8
    found = gated_pairs(tracks, detections, XY, LIMIT)
    assert {(i, i) for i in range(1, 600)} <= set(pairs_of(found))
