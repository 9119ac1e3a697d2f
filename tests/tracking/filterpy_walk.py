"""A thousand random steps of many tracks: our filter beside one filterpy.kalman.KalmanFilter each.

Run by test_kalman.py with a version of filterpy first on the path; prints what it found as JSON.
The F and Q of the reference come from filterpy or stand here, never from our motion model.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import filterpy
import numpy as np
from filterpy.common import Q_continuous_white_noise, kinematic_state_transition
from filterpy.kalman import KalmanFilter

from monitor.frames.space import DimensionKind, FloatArray, Space, plain_space
from monitor.tracking.motion import TrackerSettings, motion_model, predict, update
from monitor.tracking.tracker import Tracks, born, no_tracks
from tests.tracking.scenes import YAW, covariances, seen

STEPS, MOST_TRACKS = 1000, 6
ACCELERATION, WALK, TURN, SPEED = 2.0, 0.03, 0.2, 5.0
# The space, and which of its dimensions move.
CASES = {
    "xyz, 6 states": (plain_space(("x", "y", "z")), (0, 1, 2)),
    "xyzw, 8 states": (plain_space(("x", "y", "z", "w")), (0, 1, 2, 3)),
    "xyz and sizes that walk, 8 states": (plain_space(("x", "l", "y", "z", "w")), (0, 2, 3)),
    "box with yaw, 10 states": (
        Space((YAW, *plain_space(("x", "y", "z", "l", "w", "h")).dimensions)),
        (1, 2, 3),
    ),
}


def walk(space: Space, moving: tuple[int, ...], seed: int) -> dict[str, float]:
    """Leads both filters through the same random life.

    Returns counts, and the largest gaps: of a state as a share of the larger of it and its σ, of a
    covariance as a share of σi σj.
    """
    random, k = np.random.default_rng(seed), space.k
    names = tuple(space.names[i] for i in moving)
    densities: dict[str, Any] = {"acceleration_density": ACCELERATION, "walk_density": WALK}
    densities |= {"turn_density": TURN, "initial_speed": SPEED, "dimensions": {}}
    settings = TrackerSettings(velocity_dimensions=names, **densities)
    model = motion_model(space, settings)
    tracks, references = no_tracks(model), list[KalmanFilter]()
    counted = ("updates", "skipped", "deaths", "most", "state_gap", "covariance_gap")
    found = {"states": model.size, **dict.fromkeys(counted, 0.0)}
    for number in range(STEPS):
        seconds = float(10 ** random.uniform(-3, 0.3))
        state, covariance = predict(tracks.state, tracks.covariance, model, seconds)
        tracks = replace(tracks, state=state, covariance=covariance)
        model.space.wrap(tracks.state)
        f, q = transition(k, moving, seconds), diffusion(space, moving, seconds)
        for one in references:
            one.predict(F=f, Q=q)
            wrap(one, space)

        rows = np.flatnonzero(random.random(tracks.n) < 0.7)
        noise = covariances(random, rows.size, k, 0.01, 1.0)
        drawn = random.normal(size=(rows.size, k))
        innovation = np.einsum("nij,nj->ni", np.linalg.cholesky(noise), drawn)
        state, covariance = tracks.state.copy(), tracks.covariance.copy()
        update(state, covariance, (rows, np.arange(rows.size)), innovation, noise)
        tracks = replace(tracks, state=state, covariance=covariance)
        model.space.wrap(tracks.state)
        for row, nu, r in zip(rows.tolist(), innovation, noise, strict=True):
            references[row].update(references[row].x[:k] + nu[:, None], R=r)
            wrap(references[row], space)
        found["updates"] += rows.size
        found["skipped"] += tracks.n - rows.size

        kept = np.flatnonzero(random.random(tracks.n) > 0.02)
        found["deaths"] += tracks.n - kept.size
        tracks, references = tracks.take(kept), [references[row] for row in kept.tolist()]
        fresh = min(int(random.integers(0, 3)), MOST_TRACKS - tracks.n)
        mean, noise = random.uniform(-3, 3, (fresh, k)), covariances(random, fresh, k, 0.01, 1.0)
        of_frame = seen(number, mean, covariance=noise, k=k)
        born_now = born(model, of_frame, noise, np.arange(fresh), confirmed=False)
        tracks = Tracks.joined([tracks, born_now])
        references += [reference(z, r, len(moving)) for z, r in zip(mean, noise, strict=True)]
        found["most"] = max(found["most"], tracks.n)
        for x, p, one in zip(tracks.state, tracks.covariance, references, strict=True):
            for name, gap in gaps(space, x, p, one).items():
                found[name] = max(found[name], gap)
    return found


def reference(mean: FloatArray, noise: FloatArray, moving: int) -> KalmanFilter:
    """A filter that has seen one detection."""
    k = mean.size
    one = KalmanFilter(dim_x=k + moving, dim_z=k)
    one.x[:k, 0] = mean
    one.P = np.diag([0.0] * k + [SPEED**2] * moving)
    one.P[:k, :k] = noise
    one.H = np.eye(k, k + moving)
    return one


def transition(k: int, moving: tuple[int, ...], seconds: float) -> FloatArray:
    f = np.eye(k + len(moving))
    for j, i in enumerate(moving):
        f[np.ix_([i, k + j], [i, k + j])] = kinematic_state_transition(1, seconds)
    return f


def diffusion(space: Space, moving: tuple[int, ...], seconds: float) -> FloatArray:
    q = np.zeros((space.k + len(moving),) * 2)
    for i, dimension in enumerate(space.dimensions):
        if i in moving:
            block = [i, space.k + moving.index(i)]
            q[np.ix_(block, block)] = Q_continuous_white_noise(2, seconds, ACCELERATION)
        else:
            q[i, i] = seconds * (WALK if dimension.kind is DimensionKind.LENGTH else TURN)
    return q


def wrap(one: KalmanFilter, space: Space) -> None:
    """filterpy knows no angles."""
    for i, dimension in enumerate(space.dimensions):
        if dimension.kind is DimensionKind.ANGLE:
            one.x[i, 0] = np.arctan2(np.sin(one.x[i, 0]), np.cos(one.x[i, 0]))


def gaps(space: Space, x: FloatArray, p: FloatArray, one: KalmanFilter) -> dict[str, float]:
    sigma, gap = np.sqrt(np.diagonal(one.P)), np.abs(x - one.x[:, 0])
    for i, dimension in enumerate(space.dimensions):
        if dimension.kind is DimensionKind.ANGLE:
            # −π and π are one.
            gap[i] = min(gap[i], 2 * np.pi - gap[i])
    return {
        "state_gap": float((gap / np.maximum(np.abs(one.x[:, 0]), sigma)).max()),
        "covariance_gap": float((np.abs(p - one.P) / np.outer(sigma, sigma)).max()),
    }


def main() -> None:
    walks = {
        name: walk(space, moving, seed)
        for seed, (name, (space, moving)) in enumerate(CASES.items())
    }
    print(json.dumps({"version": filterpy.__version__, "file": filterpy.__file__, "walks": walks}))


if __name__ == "__main__":
    main()
