"""The batched filter against filterpy, the motion model against its matrices, and the sums of
innovations against plain loops and sequences of known correlation."""

import json
import math
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filterpy.common import Q_continuous_white_noise, kinematic_state_transition
from hypothesis import example, given
from hypothesis import strategies as st

from monitor.frames.space import DimensionKind, Space, plain_space
from monitor.tracking.motion import (
    SUMS,
    DimensionNoise,
    TrackerSettings,
    innovation_sums,
    missing_variances,
    motion_model,
    no_innovations,
    update,
)
from tests.laws import assert_same
from tests.tracking.filterpy_walk import CASES, MOST_TRACKS
from tests.tracking.scenes import BOX, IMAGE, XY, YAW, covariances, model_of, run, seen

ROOT = Path(__file__).parents[2]
VERSIONS = ("1.4.5", "2.0.0")
seeds = st.integers(0, 2**32 - 1)


# ---- the filter


@cache
def walked(version):
    """What filterpy_walk.py finds with this version of filterpy, in a process of its own."""
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


@given(seeds, st.integers(0, 5), st.integers(1, 4), st.integers(0, 4))
@example(1, 5, 3, 3)
def test_an_update_is_the_sum_of_two_pieces_of_information_for_each_track_alone(seed, n, k, hidden):
    # P⁺⁻¹ = P⁻¹ + Hᵀ R⁻¹ H and P⁺⁻¹ (x⁺ − x) = Hᵀ R⁻¹ ν: no gain in it.
    random, size = np.random.default_rng(seed), k + hidden
    state, covariance = random.normal(size=(n, size)), covariances(random, n, size)
    innovation, noise = random.normal(size=(n, k)), covariances(random, n, k)
    moved, spread = state.copy(), covariance.copy()
    update(moved, spread, (np.arange(n), np.arange(n)), innovation, noise)
    h = np.eye(k, size)
    for i in range(n):
        told = h.T @ np.linalg.inv(noise[i])
        information = np.linalg.inv(covariance[i]) + told @ h
        np.testing.assert_allclose(spread[i] @ information, np.eye(size), atol=1e-7)
        away = np.linalg.solve(information, told @ innovation[i])
        np.testing.assert_allclose(moved[i], state[i] + away, atol=1e-9)
        alone = state[[i]], covariance[[i]]
        update(*alone, (np.zeros(1, int), np.array([i])), innovation[[i]], noise)
        assert_same(alone, (moved[[i]], spread[[i]]))


# ---- the motion model


@pytest.mark.parametrize("dt", [0.0, 1e-6, 0.004, 0.1, 1.0, 2.5, 60.0, 1e4])
def test_some_dimensions_have_the_matrices_of_filterpy_and_the_others_walk(dt):
    noise = TrackerSettings(
        acceleration_density=3.0, walk_density=0.02, turn_density=0.3, dimensions={}
    )
    model = motion_model(BOX, noise)
    f, q = np.eye(10), np.zeros((10, 10))
    for i in range(3):
        block = np.ix_([i, i + 7], [i, i + 7])
        f[block] = kinematic_state_transition(1, dt)
        q[block] = Q_continuous_white_noise(2, dt, 3.0)
    for i in range(3, 7):
        q[i, i] = dt * (0.3 if BOX.names[i] == "yaw" else 0.02)
    assert model.size == 10 and model.moving.tolist() == [0, 1, 2]
    np.testing.assert_allclose(model.step(dt)[0], f, rtol=1e-12)
    np.testing.assert_allclose(model.step(dt)[1], q, rtol=1e-12)


def test_the_velocities_follow_in_the_order_of_the_space_whatever_the_settings_say():
    space = Space((YAW, *plain_space(("z", "l", "x"), "m").dimensions))
    model = motion_model(space, TrackerSettings(velocity_dimensions=("x", "y", "z")))
    assert model.moving.tolist() == [1, 3]
    assert [d.name for d in model.dimensions] == ["yaw", "z", "l", "x", "z_velocity", "x_velocity"]
    assert [d.unit for d in model.dimensions] == ["rad", "m", "m", "m", "m/s", "m/s"]
    assert {d.kind for d in model.dimensions[1:]} == {DimensionKind.LENGTH}
    f, _ = model.step(0.5)
    state = np.array([0.1, 1.0, 2.0, 3.0, 10.0, 20.0])
    assert f @ state == pytest.approx(np.array([0.1, 6.0, 2.0, 13.0, 10.0, 20.0]))
    # None of the named is there: all lengths move; an angle walks even where it is named.
    assert motion_model(IMAGE, TrackerSettings()).moving.tolist() == [0, 1, 2, 3]
    named = TrackerSettings(velocity_dimensions=("x", "yaw"))
    assert motion_model(BOX, named).moving.tolist() == [0]


def test_single_dimensions_may_differ():
    own = {
        "y": DimensionNoise(density=7.0, initial_speed=2.0),
        "yaw": DimensionNoise(density=0.25, missing_deviation=0.5),
        "nowhere": DimensionNoise(density=1.0),
    }
    general: dict[str, Any] = {
        "acceleration_density": 3.0,
        "initial_speed": 5.0,
        "missing_deviation": 2.0,
    }
    settings = TrackerSettings(**general, walk_density=0.02, dimensions=own)
    model = motion_model(BOX, settings)
    _, q = model.step(0.1)
    expected = Q_continuous_white_noise(2, 0.1, 7.0)
    np.testing.assert_allclose(q[np.ix_([1, 8], [1, 8])], expected, rtol=1e-12)
    assert np.diagonal(q)[[7, 3, 4, 5, 6]] == pytest.approx([0.3, 0.002, 0.002, 0.002, 0.025])
    assert model.initial_speed.tolist() == [5.0, 2.0, 5.0]
    assert missing_variances(BOX, settings).tolist() == [4.0] * 6 + [0.25]


# ---- sums of the innovations

CLASSES = 4


def a_frame(seed, m=12, j=3):
    random = np.random.default_rng(seed)
    before = random.normal(size=(m, j))
    before[random.random(m) < 0.4] = np.nan
    kind, whitened = random.integers(0, CLASSES - 1, m), random.normal(size=(m, j))
    return kind, whitened, before, random.integers(0, CLASSES, random.integers(0, 5))


def sums(seed):
    return innovation_sums(CLASSES, *a_frame(seed))


def slow_sums(classes, kinds, whitened, before, rejected):
    """One value after the other, in plain numbers."""
    total = {name: [0.0] * classes for name in SUMS}
    for kind, now, earlier in zip(kinds, whitened.tolist(), before.tolist(), strict=True):
        total["updates"][kind] += 1
        total["values"][kind] += len(now)
        total["nis"][kind] += sum(u * u for u in now)
        if not math.isnan(earlier[0]):
            total["pairs"][kind] += len(now)
            total["product"][kind] += sum(u * v for u, v in zip(now, earlier, strict=True))
            total["square"][kind] += sum(u * u for u in now)
            total["square_before"][kind] += sum(v * v for v in earlier)
    for kind in rejected:
        total["rejected"][kind] += 1
    return total


@given(seeds, st.integers(0, 20), st.integers(1, 4))
@example(1, 20, 3)
def test_the_sums_are_those_of_plain_loops(seed, m, j):
    frame = a_frame(seed, m, j)
    found, expected = innovation_sums(CLASSES, *frame), slow_sums(CLASSES, *frame)
    for name in SUMS:
        assert found.of(name) == pytest.approx(np.array(expected[name]), rel=1e-12), name


@given(seeds, seeds, st.floats(1e-6, 1), st.lists(st.integers(-1, 2), min_size=4, max_size=4))
def test_sums_add_up_fade_without_changing_a_ratio_and_are_grouped_by_class(
    left, right, factor, group
):
    one, both = sums(left), [
        np.concatenate(parts) for parts in zip(a_frame(left), a_frame(right), strict=True)
    ]  # fmt: skip
    added, whole, faded = one + sums(right), innovation_sums(CLASSES, *both), one.fade(factor)
    grouped = one.by_group(np.array(group), 3)
    for name in SUMS:
        assert added.of(name) == pytest.approx(whole.of(name), rel=1e-9), name
        np.testing.assert_allclose(faded.of(name), factor * one.of(name))
        for g in range(3):
            members = [one.of(name)[c] for c in range(CLASSES) if group[c] == g]
            assert grouped.of(name)[g] == pytest.approx(sum(members)), name
    for ratio in ("nis_ratio", "correlation", "reject_ratio"):
        np.testing.assert_allclose(getattr(faded, ratio), getattr(one, ratio))
    assert_same(one + no_innovations(CLASSES), one)


def autoregressive(rho, frames=400, tracks=100, j=2, seed=0):
    """uₜ = ρ uₜ₋₁ + √(1 − ρ²) eₜ: unit variance, lag-1 correlation ρ."""
    random = np.random.default_rng(seed)
    u = random.normal(size=(tracks, j))
    total, before = no_innovations(1), np.full((tracks, j), np.nan)
    none = np.zeros(0, int)
    for _ in range(frames):
        total += innovation_sums(1, np.zeros(tracks, int), u, before, none)
        before, u = u, rho * u + math.sqrt(1 - rho**2) * random.normal(size=u.shape)
    return total


@pytest.mark.parametrize("rho", [-0.8, 0.0, 0.3, 0.6, 0.85, 0.97])
def test_the_correlation_of_an_autoregressive_sequence_is_found(rho):
    found = autoregressive(rho)
    assert found.nis_ratio[0] == pytest.approx(1.0, abs=0.1)
    assert found.correlation[0] == pytest.approx(rho, abs=0.02)
    # ρ is drawn to 0 by 200 pairs without correlation, and bounded at 0.9.
    pairs = found.of("pairs")[0]
    bounded = min(max(found.correlation[0] * pairs / (pairs + 200), 0.0), 0.9)
    assert found.inflation[0] == pytest.approx((1 + bounded) / (1 - bounded), rel=1e-12)


def test_only_confirmed_tracks_are_counted():
    steps = run(model_of(XY, confirm_detections=3), [seen(i, [[0.0, 0.0]]) for i in range(6)])
    # The third detection confirms; from the fourth on each update counts, each with one before.
    decay = 0.5 ** (0.1 / 60)
    counts = [step.state.innovations.of("updates")[0] for step in steps]
    assert counts == pytest.approx([0, 0, 0, 1, 1 + decay, 1 + decay + decay**2])
    assert steps[-1].state.innovations.of("pairs")[0] == pytest.approx(2 * counts[-1])
