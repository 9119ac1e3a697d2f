"""The tracker's kernels give the bits of NumPy, and the bounds before the gate drop nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monitor import native
from monitor.frames.cholesky import SINGULAR, factorise, whiten
from monitor.frames.space import Space, plain_space
from monitor.tracking.association import Gaussians, gated_pairs
from monitor.tracking.motion import TrackerSettings, motion_model, predict, update
from tests.tracking.scenes import SPACES, XYZ, covariances, named

ROOT = Path(__file__).parents[2]
BUILT = [] if native.kernels is None else [native.kernels]
compared = pytest.mark.parametrize("kernels", BUILT)
seeds = st.integers(0, 2**32 - 1)
odds = st.sampled_from([0.0, 0.0, 0.02, 0.3])
ODD = (0.0, -0.0, 5e-324, 1e-160, -1.0, 1e12, 1e160, 1e308, np.inf, -np.inf, np.nan)


def spoiled(random, values, share):
    """Puts odd numbers in some places, in place."""
    at = random.random(values.shape) < share
    values[at] = random.choice(ODD, np.count_nonzero(at))
    return values


def stretched(random, n, k):
    """Covariances of all sizes, some next to singular."""
    made = covariances(random, n, k, *10.0 ** np.sort(random.uniform(-6, 5, 2)))
    made[random.random(n) < 0.1] *= 1e-9
    flat = random.random(n) < 0.1
    made[flat] = made[flat, :, :1] * made[flat, :1]
    return made


def same_bits(ours, theirs):
    """Compares bits; one NaN is like another."""
    nothing = np.isnan(ours) & np.isnan(theirs)
    return ours.shape == theirs.shape and bool(
        (nothing | (ours.view(np.int64) == theirs.view(np.int64))).all()
    )


# ---- the filter


@compared
@given(seeds, st.integers(0, 40), st.integers(1, 32), st.data(), odds)
def test_a_prediction_has_the_bits_of_numpy(kernels, seed, n, k, data, odd):
    names = tuple(f"d{i}" for i in range(k))
    moving = data.draw(st.sets(st.sampled_from(names), min_size=1))
    settings = TrackerSettings(velocity_dimensions=tuple(moving), dimensions={})
    model = motion_model(plain_space(names), settings)
    random = np.random.default_rng(seed)
    state = spoiled(random, random.normal(0, 100, (n, model.size)), odd)
    covariance = spoiled(random, stretched(random, n, model.size), odd)
    seconds = float(10.0 ** random.uniform(-6, 3))
    with np.errstate(all="ignore"):
        ours, theirs = (predict(state, covariance, model, seconds, one) for one in (kernels, None))
    assert same_bits(ours[0], theirs[0]) and same_bits(ours[1], theirs[1])


@compared
@given(seeds, st.integers(0, 40), st.integers(0, 60), st.integers(1, 12), st.integers(0, 12), odds)
@example(1, 20, 20, 32, 32, 0.0)
def test_an_update_has_the_bits_of_numpy(kernels, seed, t, n, k, hidden, odd):
    random, size = np.random.default_rng(seed), k + hidden
    state = spoiled(random, random.normal(0, 100, (t, size)), odd)
    covariance = spoiled(random, stretched(random, t, size), odd)
    innovation = spoiled(random, random.normal(size=(n, k)), odd)[: min(t, n)]
    noise = spoiled(random, stretched(random, n, k), odd)
    pairs = [random.permutation(size)[: min(t, n)] for size in (t, n)]
    found = []
    for one in (kernels, None):
        made = state.copy(), covariance.copy()
        with np.errstate(all="ignore"):
            update(*made, (pairs[0], pairs[1]), innovation, noise, one)
        found.append(made)
    assert same_bits(found[0][0], found[1][0]) and same_bits(found[0][1], found[1][1])


# ---- the gate


def scene(seed: int, space: Space, t: int, n: int, odd: float):
    random = np.random.default_rng(seed)
    reach = float(10.0 ** random.uniform(0, 3))
    tracks, detections = (
        Gaussians(
            random.uniform(-reach, reach, (count, space.k)),
            stretched(random, count, space.k),
            random.integers(0, 3, count),
        )
        for count in (t, n)
    )
    near = np.flatnonzero(random.random(n) < 0.6 * (t > 0))
    owner = random.integers(0, max(t, 1), near.size)
    deviation = np.sqrt(np.einsum("nii->ni", tracks.covariance[owner]))
    detections.mean[near] = (
        tracks.mean[owner] + random.normal(size=(near.size, space.k)) * deviation
    )
    detections.class_index[near] = tracks.class_index[owner]
    for side in (tracks, detections):
        spoiled(random, side.mean, odd)
        spoiled(random, side.covariance, odd)
        # A window is as wide as the root of a variance, which nothing here makes negative.
        variance = np.einsum("nii->ni", side.covariance)
        np.abs(variance, out=variance)
    # Tracks have velocities, too.
    wider = np.pad(tracks.covariance, ((0, 0), (0, 2), (0, 2)), constant_values=7.0)
    return replace(tracks, mean=np.pad(tracks.mean, ((0, 0), (0, 2))), covariance=wider), detections


def in_order(found):
    return found.take(np.lexsort((found.detection, found.track)))


@compared
@pytest.mark.parametrize("space", SPACES, ids=named)
@given(
    seeds, st.integers(0, 90), st.integers(0, 90), st.sampled_from([16.0, 22.5, 400.0, 1e-3]),
    st.sampled_from([np.inf, np.inf, 5.0]), odds,
)  # fmt: skip
def test_the_gate_lets_in_the_pairs_of_numpy_with_its_bits(
    kernels, space, seed, t, n, limit, farthest, odd
):
    sides = scene(seed, space, t, n, odd)
    with np.errstate(all="ignore"):
        ours, theirs = (
            in_order(gated_pairs(*sides, space, limit, farthest, one)) for one in (kernels, None)
        )
    assert ours.track.tolist() == theirs.track.tolist()
    assert ours.detection.tolist() == theirs.detection.tolist()
    for name in ("whitened", "nis", "pivots", "log_determinant"):
        one, other = (np.ascontiguousarray(getattr(side, name)) for side in (ours, theirs))
        assert same_bits(one, other), name


@compared
@pytest.mark.parametrize("spread", [1e-3, 1.0, 1e6])
def test_a_crowd_is_thinned_out_as_in_numpy(kernels, spread):
    random = np.random.default_rng(0)
    sides = [
        Gaussians(
            random.normal(0, spread, (900, 2)), np.tile(np.eye(2), (900, 1, 1)), np.zeros(900, int)
        )
        for _ in range(2)
    ]
    ours, theirs = (
        in_order(gated_pairs(*sides, plain_space(("x", "y")), 16.0, np.inf, one))
        for one in (kernels, None)
    )
    assert ours.track.tolist() == theirs.track.tolist()
    assert ours.detection.tolist() == theirs.detection.tolist()
    assert same_bits(ours.nis, theirs.nis)


@pytest.mark.parametrize("kernels", [None, *BUILT])
@given(seeds, st.floats(-1, 1), st.integers(-13, -9))
@example(0, 1.0, -11)
def test_no_bound_drops_a_pair_that_the_gate_keeps(kernels, seed, side, digits):
    """Detections lie where one dimension alone tells the whole distance, on the gate's very edge."""
    random, n, limit = np.random.default_rng(seed), 40, 16.0
    tracks, noise = (covariances(random, n, 3, 1e-3, 1e3) for _ in range(2))
    spread = tracks + noise
    which, rows = random.integers(0, 3, n), np.arange(n)
    # ν = c S eᵢ: νᵀ S⁻¹ ν = νᵢ² / Sᵢᵢ.
    along = spread[rows, :, which] * np.sqrt(limit / spread[rows, which, which])[:, None]
    innovation = along * (1.0 + side * 10.0**digits)
    place, kind = random.uniform(-1, 1, (n, 3)) * 10.0 ** random.uniform(-3, 3), rows
    found = gated_pairs(
        Gaussians(place, tracks, kind), Gaussians(place + innovation, noise, kind), XYZ, limit,
        kernels=kernels,
    )  # fmt: skip
    spread[:, range(3), range(3)] *= 1.0 + 10.0 * SINGULAR
    distance = (whiten(factorise(spread), (place + innovation) - place) ** 2).sum(axis=0)
    kept = np.flatnonzero(distance <= limit)
    assert sorted(found.track.tolist()) == kept.tolist()


# ---- what does not fit


def filters(**other):
    """Fitting arguments of update, by name, but for others."""
    told = {
        "state": np.zeros((4, 3)), "covariance": np.zeros((4, 3, 3)),
        "track": np.arange(2), "detection": np.arange(2), "innovation": np.zeros((2, 2)),
        "noise": np.ones((5, 2, 2)), "grown": 1.0,
    }  # fmt: skip
    return (told | other).values()


def gates(**other):
    """Fitting arguments of gate, by name, but for others."""

    def side(n, size):
        return np.zeros((n, size)), np.zeros((n, size, size)), np.zeros(n, int), *np.zeros((2, n))

    names = ("mean", "covariance", "kind", "place", "reach")
    told = dict(zip((f"track_{name}" for name in names), side(4, 5), strict=True))
    told |= dict(zip(names, side(6, 3), strict=True))
    told |= {
        "narrow": np.arange(5), "wide": np.arange(5, 6), "joint": np.arange(2),
        "bounds": np.ones((2, 2)), "pairs": np.zeros((2, 9), int), "measures": np.zeros((9, 5)),
        "farthest": 1.0, "limit": 1.0, "bound": 1.0, "most": 99.0, "grown": 1.0, "singular": 1e-12,
    }  # fmt: skip
    return (told | other).values()


@compared
def test_what_fits_is_taken(kernels):
    kernels.update(*filters())
    unit = {"covariance": np.tile(np.eye(3), (6, 1, 1))}
    room = {"pairs": np.zeros((2, 24), int), "measures": np.zeros((24, 5))}
    assert kernels.gate(*gates(**unit, **room)) == 24
    assert kernels.gate(*gates(**room)) == 0  # singular
    assert kernels.gate(*gates(**unit)) == -24
    assert kernels.gate(*gates(**unit, **room, most=3.0)) is None
    assert kernels.gate(*gates(**unit, **room, most=float("nan"))) is None


@compared
@pytest.mark.parametrize(
    "other",
    [
        {"state": np.zeros((4, 1))}, {"state": np.zeros((3, 3))}, {"state": np.zeros((4, 3), "f4")},
        {"covariance": np.zeros((4, 3, 2))}, {"covariance": np.zeros((4, 9))},
        {"track": np.array([0, 4])}, {"track": np.array([0, -1])}, {"track": np.arange(3)},
        {"track": np.zeros(2)}, {"detection": np.array([5, 0])}, {"noise": np.zeros((5, 3, 3))},
        {"innovation": np.zeros((2, 0))}, {"innovation": np.zeros((2, 4))},
        {"state": np.zeros((4, 65)), "covariance": np.zeros((4, 65, 65))},
        {"state": np.zeros((3, 4)).T},
    ],
)  # fmt: skip
def test_an_update_that_does_not_fit_is_refused(kernels, other):
    with pytest.raises(ValueError, match=r"\w"):
        kernels.update(*filters(**other))


@compared
@pytest.mark.parametrize(
    "other",
    [
        {"track_mean": np.zeros((4, 1))}, {"mean": np.zeros((5, 3))}, {"kind": np.zeros(6)},
        {"reach": np.zeros(5)}, {"track_place": np.zeros(5)}, {"narrow": np.array([6])},
        {"wide": np.array([-1])}, {"joint": np.array([0, 3])}, {"joint": np.array([-1, 0])},
        {"joint": np.zeros(0, int), "bounds": np.ones((2, 0)), "measures": np.zeros((9, 1))},
        {"bounds": np.ones((2, 3))}, {"pairs": np.zeros((3, 9), int)},
        {"measures": np.zeros((8, 5))}, {"measures": np.zeros((9, 4))},
        {"joint": np.zeros(33, int), "bounds": np.ones((2, 33)), "measures": np.zeros((9, 67))},
    ],
)  # fmt: skip
def test_a_gate_that_does_not_fit_is_refused(kernels, other):
    with pytest.raises(ValueError, match=r"\w"):
        kernels.gate(*gates(**other))


@compared
@pytest.mark.parametrize(
    "arguments",
    [
        (np.zeros((4, 3)), np.zeros((4, 3, 3)), np.array([2]), np.zeros((3, 3)), 0.1, 1.0),
        (np.zeros((4, 3)), np.zeros((4, 3, 3)), np.array([-1]), np.zeros((3, 3)), 0.1, 1.0),
        (np.zeros((4, 3)), np.zeros((4, 3, 3)), np.arange(3), np.zeros((3, 3)), 0.1, 1.0),
        (np.zeros((4, 3)), np.zeros((4, 3, 3)), np.arange(1), np.zeros((2, 2)), 0.1, 1.0),
        (np.zeros((4, 3)), np.zeros((3, 3, 3)), np.arange(1), np.zeros((3, 3)), 0.1, 1.0),
    ],
)
def test_a_prediction_that_does_not_fit_is_refused(kernels, arguments):
    with pytest.raises(ValueError, match=r"\w"):
        kernels.predict(*arguments)


# ---- everything together

DRIVE = """
import hashlib
from tests.tracking.scenes import BOX, model_of, run
from tests.tracking.test_tracker import absurd_drive
digest = hashlib.sha256()
for seed in range(6):
    made = absurd_drive(seed, BOX, 20, 1 + seed % 3, (0.05, 0.5), 0.0, frames=30)
    for step in run(model_of(BOX, coast_frames=9, coast_seconds=1e9), made):
        tracks = step.state.tracks
        for values in (tracks.id, tracks.state, tracks.covariance, tracks.whitened, step.row):
            digest.update(values.tobytes())
        digest.update(step.state.innovations.table.tobytes())
print(digest.hexdigest())
"""


@compared
def test_tracks_are_the_same_with_and_without_kernels(kernels):
    told = [
        subprocess.run(
            [sys.executable, "-c", DRIVE],
            env=os.environ | {native.SWITCH: switch, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for switch in ("", "off")
    ]
    assert told[0] == told[1]
