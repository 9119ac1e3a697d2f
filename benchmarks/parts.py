"""Measures parts of the tracker and of the statistics, each beside a plainer way.

Prints, each case and what it is compared with in turn and in the same run, the shortest of all
rounds: the batched filter beside filterpy objects, association beside all pairs, and reading the
sums of a window beside evaluating its rows anew (19 ms in netcal 1.4.0). The ratios travel better
than absolute numbers.
"""

from __future__ import annotations

import argparse
import os

import filterpy
import numpy as np
from filterpy.kalman import KalmanFilter
from scipy.optimize import linear_sum_assignment

from benchmarks.machine import machine, shortest
from monitor.frames.space import Space, plain_space
from monitor.statistics.bins import Binning
from monitor.statistics.exact_engine import evaluate_rows
from monitor.statistics.reading import read
from monitor.statistics.state import observe
from monitor.tracking.association import Gaussians, assign, gate_limit, gated_pairs
from monitor.tracking.motion import TrackerSettings, motion_model, predict, update
from tests.tracking.scenes import XYZ, covariances

TRACKS, CLASSES, SECONDS, WARM_UP = 200, 3, 0.1, 20  # frames
XYZW = plain_space(("x", "y", "z", "w"), "m")
LIMIT, ROWS = gate_limit(0.999, 3), 5000


def show(name: str, ours: float, theirs: float) -> None:
    """Prints a line, times in s."""
    print(f"{name:<46}{1e3 * ours:9.3f}{1e3 * theirs:12.2f}{theirs / ours:8.1f}", flush=True)


def filters(rounds: int, space: Space) -> None:
    """Times one frame that predicts and updates every track."""
    model = motion_model(space, TrackerSettings(velocity_dimensions=space.names))
    random, k, size = np.random.default_rng(0), model.k, model.size
    state, covariance = random.normal(size=(TRACKS, size)), covariances(random, TRACKS, size)
    seen, noise = random.normal(size=(TRACKS, k)), covariances(random, TRACKS, k, 0.05, 0.2)
    objects, every = [], np.arange(TRACKS)
    for mean, spread in zip(state, covariance, strict=True):
        one = KalmanFilter(dim_x=size, dim_z=k)
        one.x, one.P, one.H = mean[:, None].copy(), spread.copy(), np.eye(k, size)
        one.F, one.Q = model.step(SECONDS)
        objects.append(one)

    def batched() -> None:
        moved, spread = predict(state, covariance, model, SECONDS)
        update(moved, spread, (every, every), seen - moved[:, :k], noise)

    def one_by_one() -> None:
        for one, z, r in zip(objects, seen, noise, strict=True):
            one.predict()
            one.update(z, R=r)

    show(f"filter, {size} states, {TRACKS} tracks", *shortest(rounds, batched, one_by_one))


def association(rounds: int, n: int, reach: float) -> None:
    """Times n tracks and as many detections of them, in a square of ±reach metres."""
    random, kind = np.random.default_rng(n), np.zeros(n, np.int64)
    place = random.uniform((-reach, -reach, -1), (reach, reach, 1), size=(n, 3))
    tracks = Gaussians(place, covariances(random, n, 3, 0.1, 0.4), kind)
    around = place + 0.3 * random.normal(size=(n, 3))
    detections = Gaussians(around, covariances(random, n, 3, 0.1, 0.3), kind)

    def ours() -> set[tuple[int, int]]:
        pairs = gated_pairs(tracks, detections, XYZ, LIMIT)
        cost = pairs.nis + pairs.log_determinant
        chosen = pairs.take(assign(pairs.track, pairs.detection, cost.take, kind[pairs.track]))
        return set(zip(chosen.track.tolist(), chosen.detection.tolist(), strict=True))

    def every_pair() -> set[tuple[int, int]]:
        # A solve for each pair, stacked in one call, then one assignment over the whole matrix.
        forbidden = 1e6
        innovation = detections.mean[None] - tracks.mean[:, None]
        spread = tracks.covariance[:, None] + detections.covariance[None]
        solved = np.linalg.solve(spread, innovation[..., None])[..., 0]
        nis = (innovation * solved).sum(axis=-1)
        cost = np.where(nis <= LIMIT, nis + np.linalg.slogdet(spread)[1], forbidden)
        rows, columns = linear_sum_assignment(cost)
        found = cost[rows, columns] < forbidden
        return set(zip(rows[found].tolist(), columns[found].tolist(), strict=True))

    assert ours() == every_pair()
    # The slow one gets few rounds; the fastest of ours is between those too.
    alone, (beside, theirs) = shortest(rounds, ours), shortest(3, ours, every_pair)
    show(f"association, {n} objects in ±{reach:g} m", min(*alone, beside), theirs)


def reading(rounds: int) -> None:
    """Times reading 5,000 rows of a window in four dimensions, and evaluating them anew."""
    random, mean = np.random.default_rng(0), np.zeros((ROWS, 4))
    covariance = covariances(random, ROWS, 4)
    error = (np.linalg.cholesky(covariance) @ random.normal(size=(ROWS, 4, 1)))[..., 0]
    statistics = observe(XYZW, Binning(), error, covariance)
    times = shortest(
        rounds,
        lambda: read(statistics),
        lambda: evaluate_rows(XYZW, mean, covariance, error),
    )
    show(f"read a window of {ROWS} rows; evaluated anew", *times)


def main() -> None:
    """Prints everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    versions = f"NumPy {np.__version__}, filterpy {filterpy.__version__}"
    print(f"{machine()}, {versions}; load {os.getloadavg()[0]:.1f}")
    print(f"{'ms, shortest of all rounds':<46}{'ours':>9}{'plainer':>12}{'ratio':>8}")
    for space in (XYZ, XYZW):
        filters(rounds, space)
    for reach in (60.0, 15.0):
        for n in (50, 200, 500):
            association(rounds, n, reach)
    reading(rounds)


if __name__ == "__main__":
    main()
