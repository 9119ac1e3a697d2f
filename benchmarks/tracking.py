"""The tracker by itself: the batched filter beside filterpy objects, association, whole frames.

Prints, each case and what it is compared with in turn and in the same run, the shortest of
all rounds. Absolute numbers belong to the machine that is named; the ratios travel better.

    python benchmarks/tracking.py [--rounds 40]
"""

from __future__ import annotations

import argparse
import os

import filterpy
import numpy as np
from filterpy.kalman import KalmanFilter
from scipy.optimize import linear_sum_assignment

from benchmarks.machine import machine, shortest
from monitor.frames.space import Dimension, DimensionKind, FloatArray, Space, plain_space
from monitor.tracking.association import Gaussians, assign, gate_limit, gated_pairs
from monitor.tracking.kalman import MotionModel, TrackerSettings, motion_model, predict, update
from monitor.tracking.tracker import (
    Sightings,
    TrackerModel,
    TrackerState,
    advance,
    new_tracker,
    tracker_model,
)

TRACKS, CLASSES, SECONDS = 200, 3, 0.1
XYZ = plain_space(("x", "y", "z"), "m")
XYZW = plain_space(("x", "y", "z", "w"), "m")
LENGTHS = plain_space(("x", "y", "z", "l", "w", "h"), "m")
BOX = Space((*LENGTHS.dimensions, Dimension("yaw", "rad", DimensionKind.ANGLE)))
LIMIT = gate_limit(0.999, 3)


def covariances(random: np.random.Generator, n: int, k: int, deviation: float) -> FloatArray:
    root = random.normal(size=(n, k, k))
    made: FloatArray = deviation**2 * (root @ root.transpose(0, 2, 1) / k + 0.2 * np.eye(k))
    return made


def filter_case(rounds: int, space: Space) -> str:
    """One frame that predicts and updates every track."""
    settings = TrackerSettings(velocity_dimensions=space.names)
    model, random = motion_model(space, settings), np.random.default_rng(0)
    k, size = model.k, model.size
    state, covariance = random.normal(size=(TRACKS, size)), covariances(random, TRACKS, size, 1.0)
    seen, noise = random.normal(size=(TRACKS, k)), covariances(random, TRACKS, k, 0.2)
    objects = filterpy_objects(model, state, covariance)

    def batched() -> None:
        moved, spread = predict(state, covariance, *model.step(SECONDS))
        update(moved, spread, seen - moved[:, :k], noise)

    def one_by_one() -> None:
        for one, z, r in zip(objects, seen, noise, strict=True):
            one.predict()
            one.update(z, R=r)

    ours, theirs = shortest(rounds, batched, one_by_one)
    return (
        f"{f'filter, {size} states, {TRACKS} tracks':<38}{1e3 * ours:9.2f}{1e3 * theirs:12.2f}"
        f"{theirs / ours:8.1f}"
    )


def filterpy_objects(
    model: MotionModel, state: FloatArray, covariance: FloatArray
) -> list[KalmanFilter]:
    objects = []
    for mean, spread in zip(state, covariance, strict=True):
        one = KalmanFilter(dim_x=model.size, dim_z=model.k)
        one.x, one.P, one.H = mean[:, None].copy(), spread.copy(), np.eye(model.k, model.size)
        one.F, one.Q = model.step(SECONDS)
        objects.append(one)
    return objects


def association_case(rounds: int, n: int, reach: float) -> str:
    """n tracks and as many detections of them, in a square of ±reach metres."""
    random = np.random.default_rng(n)
    place = random.uniform((-reach, -reach, -1), (reach, reach, 1), size=(n, 3))
    kind = np.zeros(n, np.int64)
    tracks = Gaussians(place, covariances(random, n, 3, 0.4), kind)
    detections = Gaussians(
        place + 0.3 * random.normal(size=(n, 3)), covariances(random, n, 3, 0.3), kind
    )

    def ours() -> set[tuple[int, int]]:
        pairs = gated_pairs(tracks, detections, XYZ, LIMIT)
        cost = pairs.nis + pairs.log_determinant
        chosen = pairs.take(assign(pairs.track, pairs.detection, cost, kind[pairs.track]))
        return set(zip(chosen.track.tolist(), chosen.detection.tolist(), strict=True))

    def naive() -> set[tuple[int, int]]:
        return every_pair(tracks, detections)

    # The same pairs, and the fastest of both between each other: both see the same machine.
    assert ours() == naive()
    fast = shortest(rounds, ours)[0]
    fast_again, slow = shortest(3, ours, naive)
    fast = min(fast, fast_again)
    return (
        f"{f'association, {n} objects in ±{reach:g} m':<38}{1e3 * fast:9.2f}{1e3 * slow:12.2f}"
        f"{slow / fast:8.1f}"
    )


def every_pair(tracks: Gaussians, detections: Gaussians) -> set[tuple[int, int]]:
    """A solve for each pair, stacked in one call, then one assignment over the whole matrix."""
    forbidden = 1e6
    innovation = detections.mean[None] - tracks.mean[:, None]
    spread = tracks.covariance[:, None] + detections.covariance[None]
    solved = np.linalg.solve(spread, innovation[..., None])[..., 0]
    nis = (innovation * solved).sum(axis=-1)
    cost = np.where(nis <= LIMIT, nis + np.linalg.slogdet(spread)[1], forbidden)
    rows, columns = linear_sum_assignment(cost)
    found = cost[rows, columns] < forbidden
    return set(zip(rows[found].tolist(), columns[found].tolist(), strict=True))


def frame_case(rounds: int, space: Space) -> str:
    """A frame of a stream that has run for a while: its 200 objects are seen again."""
    model = tracker_model(space, CLASSES, TrackerSettings())
    state, last = warmed_up(model, np.random.default_rng(1))
    took = shortest(rounds, lambda: advance(model, state, last))[0]
    name = f"frame, K = {space.k}, {model.motion.size} states, {state.tracks.n} tracks"
    return f"{name:<38}{1e3 * took:9.2f}"


def warmed_up(model: TrackerModel, random: np.random.Generator) -> tuple[TrackerState, Sightings]:
    """The tracker after twenty frames, and the twenty-first."""
    k = model.motion.k
    start, speed = random.uniform(-60, 60, size=(TRACKS, k)), random.normal(size=(TRACKS, k))
    if k == 7:
        start[:, 3:6], start[:, 6], speed[:, 3:] = (4, 2, 1.5), random.uniform(-3, 3, TRACKS), 0.0
    kind, noise = random.integers(0, CLASSES, TRACKS), covariances(random, TRACKS, k, 0.1)
    factor = np.linalg.cholesky(noise)
    state = new_tracker(model)
    for frame in range(21):
        error = (factor @ random.normal(size=(TRACKS, k, 1)))[:, :, 0]
        seen = Sightings(
            stamp_ns=round(frame * SECONDS * 1e9),
            mean=start + frame * SECONDS * speed + error,
            covariance=noise,
            missing=np.zeros(TRACKS, bool),
            class_index=kind,
            row=np.arange(TRACKS),
            number=np.arange(TRACKS, dtype=np.uint64) + np.uint64(frame * TRACKS + 1),
        )
        if frame < 20:
            state = advance(model, state, seen).state
    return state, seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    versions = f"NumPy {np.__version__}, filterpy {filterpy.__version__}"
    print(f"{machine()}, {versions}; load {os.getloadavg()[0]:.1f}")
    print(f"{'ms, shortest of all rounds':<38}{'ours':>9}{'one by one':>12}{'ratio':>8}")
    for space in (XYZ, XYZW):
        print(filter_case(rounds, space))
    for reach in (60.0, 15.0):
        for n in (50, 200, 500):
            print(association_case(rounds, n, reach))
    for space in (XYZ, BOX):
        print(frame_case(rounds, space))


if __name__ == "__main__":
    main()
