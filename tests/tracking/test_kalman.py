"""The batched filter, against one filterpy.kalman.KalmanFilter a track and its own equations."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.tracking.kalman import TrackerSettings, motion_model, predict, regular, update
from tests.tracking.filterpy_walk import CASES, MOST_TRACKS
from tests.tracking.scenes import BOX, XYZ, covariances

ROOT = Path(__file__).parents[2]
VERSIONS = ("1.4.5", "2.0.0")
quick = settings(max_examples=50)
seeds = st.integers(0, 2**32 - 1)


@cache
def walked(version):
    """What filterpy_walk.py found with this version of filterpy, in a process of its own."""
    folder = ROOT / ".filterpy" / version
    if not (folder / "filterpy").is_dir():
        pytest.fail(f"{folder} is missing: run `make .filterpy/{version}`")
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("filterpy_walk.py"))],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["version"] == version
    assert Path(found["file"]).is_relative_to(folder)
    return found["walks"]


@pytest.mark.components
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("version", VERSIONS)
def test_tracks_that_are_born_and_die_equal_a_filterpy_object_each(version, case):
    walk = walked(version)[case]
    assert f"{walk['states']} states" in case
    assert walk["updates"] > 3000 and walk["skipped"] > 1000 and walk["deaths"] > 50
    assert walk["most"] == MOST_TRACKS
    assert walk["state_gap"] < 1e-9
    assert walk["covariance_gap"] < 1e-9


def random_tracks(seed, n, k, size):
    random = np.random.default_rng(seed)
    state, covariance = random.normal(size=(n, size)), covariances(random, n, size)
    return random, state, covariance, random.normal(size=(n, k)), covariances(random, n, k)


@quick
@given(seeds, st.integers(0, 5), st.integers(1, 4), st.integers(0, 4))
def test_an_update_is_the_sum_of_two_pieces_of_information(seed, n, k, hidden):
    # P⁺⁻¹ = P⁻¹ + Hᵀ R⁻¹ H and P⁺⁻¹ (x⁺ − x) = Hᵀ R⁻¹ ν: no gain in it.
    _, state, covariance, innovation, noise = random_tracks(seed, n, k, k + hidden)
    moved, spread = update(state, covariance, innovation, noise)
    h = np.eye(k, k + hidden)
    for i in range(n):
        told = h.T @ np.linalg.inv(noise[i])
        information = np.linalg.inv(covariance[i]) + told @ h
        np.testing.assert_allclose(spread[i] @ information, np.eye(k + hidden), atol=1e-7)
        away = np.linalg.solve(information, told @ innovation[i])
        np.testing.assert_allclose(moved[i], state[i] + away, atol=1e-9)


@quick
@given(seeds, st.integers(2, 6), st.integers(1, 4))
def test_a_track_does_not_feel_its_neighbours(seed, n, k):
    _, state, covariance, innovation, noise = random_tracks(seed, n, k, k + 2)
    whole = update(state, covariance, innovation, noise)
    for i in range(n):
        alone = update(state[i : i + 1], covariance[i : i + 1], innovation[[i]], noise[[i]])
        np.testing.assert_allclose(alone[0][0], whole[0][i], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(alone[1][0], whole[1][i], rtol=1e-12, atol=1e-12)


def test_arguments_are_left_alone():
    _, *arrays = random_tracks(0, 4, 3, 6)
    before = [array.copy() for array in arrays]
    update(*arrays)
    predict(arrays[0], arrays[1], *motion_model(XYZ, TrackerSettings()).step(0.1))
    for array, old in zip(arrays, before, strict=True):
        assert np.array_equal(array, old)


@quick
@given(seeds, st.floats(-12, 10), st.floats(-12, 10), st.floats(-9, 5))
def test_covariances_of_any_size_stay_positive_definite(seed, before, noise, pause):
    random, model = np.random.default_rng(seed), motion_model(BOX, TrackerSettings())
    spread = np.zeros((3, model.size, model.size))
    spread[:] = np.diag(10**before * np.ones(model.size))
    state = random.normal(size=(3, model.size))
    for _ in range(30):
        state, spread = predict(state, spread, *model.step(10**pause))
        r = 10**noise * covariances(random, 3, model.k, 0.5, 1.0)
        state, spread = update(state, spread, random.normal(size=(3, model.k)), r)
        is_definite(spread)
        assert np.isfinite(state).all()


def is_definite(covariance):
    """Symmetric to the bit, and positive definite whatever the units."""
    assert np.array_equal(covariance, covariance.transpose(0, 2, 1))
    size = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
    np.linalg.cholesky(covariance / (size[:, :, None] * size[:, None, :]))


@pytest.mark.parametrize("pause", [1e-9, 1e-3, 1.0, 1e5, 1e9])
@pytest.mark.parametrize("deviation", [1e-6, 1e5])
def test_a_velocity_that_one_detection_tells_all_about_keeps_a_variance(pause, deviation):
    # After so long x and ẋ are nearly one number: what is left of ẋ is far below its rounding.
    still = TrackerSettings(acceleration_density=1e-9, initial_speed=1e6, dimensions={})
    model = motion_model(XYZ, still)
    spread = np.diag([1.0] * 3 + [1e12] * 3)[None]
    for _ in range(5):
        state, spread = predict(np.zeros((1, 6)), spread, *model.step(pause))
        is_definite(spread)
        noise = deviation**2 * np.eye(3)[None]
        state, spread = update(state, spread, np.ones((1, 3)), noise)
        is_definite(spread)


@quick
@given(seeds, st.integers(1, 5), st.integers(1, 8))
def test_what_is_regular_stays_as_it_is_but_for_rounding(seed, n, size):
    covariance = covariances(np.random.default_rng(seed), n, size, 1e-6, 1e5)
    np.testing.assert_allclose(regular(covariance), covariance, rtol=1e-13, atol=0)
