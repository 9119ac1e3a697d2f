"""Measures the tracker, with and without its kernels, beside others on the same moving scene.

Prints CPU µs a frame for 32, 200 and 500 detections of as many objects, all in turn and in the same
run: the whole tracker; a filterpy KalmanFilter for each object, which predicts and updates and
associates nothing; SciPy's assignment alone, over the distances of all pairs; and, where they are
installed, Stone Soup with its gate and assignment, and netcal's ENCE and joint QCE of the
detections of the frame. The ratios travel better than absolute numbers.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from filterpy.kalman import KalmanFilter
from scipy.optimize import linear_sum_assignment

from benchmarks.machine import machine
from benchmarks.scene import CLASSES, SPACE, driven
from monitor import native
from monitor.frames.space import FloatArray
from monitor.tracking.motion import TrackerSettings
from monitor.tracking.tracker import Sightings, Tracker, follow, tracker_model

OBJECTS, SECONDS, WARM_UP = (32, 200, 500), 0.05, 20  # seconds and frames
SETTINGS = TrackerSettings()

# Returns what works in a frame.
Work = Callable[[Sightings], object]


def scene(objects: int, frames: int) -> list[Sightings]:
    """Makes what the tracker is given: objects drive circles, each detection has full noise."""
    random, k = np.random.default_rng(0), SPACE.k
    root = random.normal(size=(objects, k, k))
    covariance = (root @ root.transpose(0, 2, 1) + np.eye(k)) * 0.01
    factor, kind = np.linalg.cholesky(covariance), random.integers(0, len(CLASSES), objects)
    row, made = np.arange(objects), []
    for number, true in enumerate(driven(random, objects)[:frames]):
        made.append(
            Sightings(
                stamp_ns=round(number * SECONDS * 1e9),
                mean=true + (factor @ random.normal(size=(objects, k, 1)))[:, :, 0],
                covariance=covariance.copy(),
                class_index=kind,
                row=row,
                number=(row + objects * number + 1).astype(np.uint64),
            )
        )
    return made


def our_tracker() -> Work:
    """Returns the whole tracker."""
    tracker = Tracker(tracker_model(SPACE, len(CLASSES), SETTINGS))

    def work(seen: Sightings) -> None:
        nonlocal tracker
        tracker, _, _ = follow(tracker, seen)

    return work


def one_filter_each() -> Work:
    """Returns a filterpy object for each detection of the first frame, which is told its own."""
    model = tracker_model(SPACE, len(CLASSES), SETTINGS).motion
    objects: list[Any] = []

    def work(seen: Sightings) -> None:
        for place in seen.row[len(objects) :].tolist():
            one = KalmanFilter(dim_x=model.size, dim_z=model.k)
            one.x[: model.k, 0], one.H = seen.mean[place], np.eye(model.k, model.size)
            one.F, one.Q = model.step(SECONDS)
            objects.append(one)
        for one, z, r in zip(objects, seen.mean, seen.covariance, strict=True):
            one.predict()
            one.update(z, R=r)

    return work


def assignment_alone() -> Work:
    """Returns SciPy's assignment of all detections to those of the frame before."""
    before: FloatArray | None = None

    def work(seen: Sightings) -> None:
        nonlocal before
        if before is not None:
            apart = seen.mean[:, None, :3] - before[None, :, :3]
            linear_sum_assignment((apart * apart).sum(axis=2))
        before = seen.mean

    return work


def stone_soup() -> Work:
    """Returns Stone Soup's Kalman filter, gate and assignment; tracks are told, none begins."""
    from stonesoup.dataassociator.neighbour import GNNWith2DAssignment
    from stonesoup.hypothesiser.distance import DistanceHypothesiser
    from stonesoup.measures import Mahalanobis
    from stonesoup.models.measurement.linear import LinearGaussian
    from stonesoup.models.transition.linear import (
        CombinedLinearGaussianTransitionModel,
        ConstantVelocity,
        RandomWalk,
    )
    from stonesoup.predictor.kalman import KalmanPredictor
    from stonesoup.types.detection import Detection
    from stonesoup.types.state import GaussianState
    from stonesoup.types.track import Track
    from stonesoup.updater.kalman import KalmanUpdater

    begin = datetime(2026, 1, 1)
    moves = [ConstantVelocity(1.0)] * 3 + [RandomWalk(0.01)] * 4
    # x, ẋ, y, ẏ, z, ż, l, w, h, yaw
    places = (0, 2, 4, 6, 7, 8, 9)
    predictor = KalmanPredictor(CombinedLinearGaussianTransitionModel(moves))
    updater = KalmanUpdater(None)
    gate = DistanceHypothesiser(predictor, updater, Mahalanobis(), missed_distance=5)
    associator = GNNWith2DAssignment(gate)
    tracks: set[Any] = set()

    def work(seen: Sightings) -> None:
        now = begin + timedelta(seconds=seen.stamp_ns * 1e-9)
        if not tracks:
            for mean in seen.mean:
                state, spread = np.zeros((10, 1)), np.diag([1.0, 64.0] * 3 + [1.0] * 4)
                state[list(places), 0] = mean
                tracks.add(Track([GaussianState(state, spread, timestamp=now)]))
            return
        detections = {
            Detection(z[:, None], now, measurement_model=LinearGaussian(10, places, r))
            for z, r in zip(seen.mean, seen.covariance, strict=True)
        }
        for track, found in associator.associate(tracks, detections, now).items():
            track.append(updater.update(found) if found else found.prediction)

    return work


def netcal() -> Work | None:
    """Measures the calibration of a frame; None where netcal is not installed."""
    try:
        metrics: Any = importlib.import_module("netcal.metrics.regression")
    except ImportError:
        return None
    ence, qce = metrics.ENCE(bins=20), metrics.QCE(bins=20, marginal=False)
    tau, random = np.arange(1, 20) / 20, np.random.default_rng(0)

    def work(seen: Sightings) -> None:
        deviation: FloatArray = np.sqrt(np.einsum("nkk->nk", seen.covariance))
        truth = seen.mean + deviation * random.normal(size=seen.mean.shape)
        ence.measure((seen.mean, deviation), truth)
        qce.measure((seen.mean, seen.covariance), truth, q=tau)

    return work


def microseconds(
    begin: Callable[[], Work], frames: list[Sightings], rounds: int = 1, warm_up: int = 1
) -> float:
    """Measures the CPU time of a frame, µs: the mean over frames of the shortest of the rounds."""
    shortest = np.full(len(frames), np.inf)
    for _ in range(rounds):
        work = begin()
        for place, frame in enumerate(frames):
            before = time.thread_time()
            work(frame)
            shortest[place] = min(shortest[place], time.thread_time() - before)
    return 1e6 * float(shortest[warm_up:].mean())


def ours(rounds: int, frames: int) -> list[float]:
    """Measures the tracker of this process, for each number of objects."""
    return [microseconds(our_tracker, scene(n, frames), rounds, WARM_UP) for n in OBJECTS]


def elsewhere(rounds: int, frames: int, kernels: str) -> list[float]:
    """Measures the tracker in a process with or without kernels, which are picked at import."""
    flags = "--ours", "--rounds", str(rounds), "--frames", str(frames)
    told = subprocess.run(
        [sys.executable, "-m", "benchmarks.trackers", *flags],
        env=os.environ | {native.SWITCH: kernels},
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[float] = json.loads(told.stdout)
    return found


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--frames", type=int, default=120)
    parser.add_argument("--ours", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ours:
        print(json.dumps(ours(options.rounds, options.frames)))
        return
    print(f"{machine()}; load {os.getloadavg()[0]:.1f}; CPU, µs a frame of K = {SPACE.k}")
    print(f"{'detections':<40}" + "".join(f"{n:>10}" for n in OBJECTS))

    def show(name: str, values: Iterable[float]) -> None:
        print(f"{name:<40}" + "".join(f"{value:10.0f}" for value in values), flush=True)

    if native.kernels is not None:
        show("tracker, C", elsewhere(options.rounds, options.frames, ""))
    show("tracker, NumPy", elsewhere(options.rounds, options.frames, "off"))
    # The slow ones get few frames.
    show("SciPy, assignment alone", (microseconds(assignment_alone, scene(n, 20)) for n in OBJECTS))
    show("filterpy, filters alone", (microseconds(one_filter_each, scene(n, 6)) for n in OBJECTS))
    if importlib.util.find_spec("stonesoup") is not None:
        few = OBJECTS[:2]  # minutes a frame beyond: every pair is a hypothesis
        show("Stone Soup, no births", (microseconds(stone_soup, scene(n, 3)) for n in few))
    if (measures := netcal()) is not None:
        told = (microseconds(lambda: measures, scene(n, 6)) for n in OBJECTS)
        show("netcal, ENCE and joint QCE", told)


if __name__ == "__main__":
    main()
