"""Finds one bad vehicle in a simulated fleet, and counts what is found where nothing is wrong.

`python -m benchmarks.vehicles [--seeds 20] [--vehicles 500]` prints the table of "Vehicles that
differ" in docs/fleet.md. Every fleet is compared three times: as it is, with one vehicle whose
variances are 2.5 times too small, and with one whose mount is moved by a third of a σ.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import numpy as np

from benchmarks.machine import machine
from monitor.frames.space import FloatArray, IntArray, plain_space
from monitor.statistics.bins import Binning
from monitor.statistics.clusters import cluster_id
from monitor.statistics.state import SliceState, Stages, StatisticsState, observe
from monitor.statistics.vehicles import NO_VEHICLES, VehicleRows, compare, of_state
from monitor.statistics.windows import Windows

SPACE, BINNING, WINDOWS = plain_space(("x", "y", "z"), "m"), Binning(), Windows((6, 18, 36), 3)
SLICES = ("Car", "Cyclist", "Pedestrian")
BAD, VARIANCE, MOVED = 17, 1 / 2.5, 1 / 3
Random = np.random.Generator


def tracks(random: Random, many: int) -> tuple[FloatArray, FloatArray, IntArray]:
    """Draws errors (N, 3) in σ, σ and tracks: 10 to 40 frames each, t5, correlated by 0.65."""
    frames = random.integers(10, 41, many)
    track = np.repeat(np.arange(many), frames)
    first = np.cumsum(frames) - frames
    z = random.normal(size=(many, frames.max(), 3))
    for i in range(1, z.shape[1]):
        z[:, i] = 0.65 * z[:, i - 1] + np.sqrt(1 - 0.65**2) * z[:, i]
    z = z[track, np.arange(track.size) - first[track]]
    # t5 of variance 1: a mixture over scales.
    z *= np.sqrt(3 / random.chisquare(5, (track.size, 1)))
    sigma = 0.2 * np.exp(0.4 * random.normal(size=(many, 3)))[track]
    return z, sigma, track


def vehicle(random: Random, spread: float, variance: float, moved: float) -> StatisticsState:
    """Counts one vehicle; spread: of ln of the factor on its errors, and twice that of its bias."""
    own, bias = spread * random.normal(size=3), 0.5 * spread * random.normal(size=3)
    size = float(np.exp(0.5 * random.normal()))
    slices = []
    for name, usual in zip(SLICES, (160, 30, 60), strict=True):
        z, sigma, track = tracks(random, max(1, int(usual * size)))
        # A third of what tells vehicles apart is of this slice alone.
        factor = np.exp(0.8 * own + 0.6 * spread * random.normal(size=3))
        error = (z * factor + bias + moved * np.array([0, 1, 0])) * sigma
        covariance = (variance * sigma**2)[:, :, None] * np.eye(3)
        raw = observe(SPACE, BINNING, error, covariance, cluster_id((track,)))
        slices.append(SliceState(name, SPACE, False, {WINDOWS.oldest: Stages(raw, raw)}))
    return StatisticsState(BINNING, WINDOWS, slices=tuple(slices))


def fleets(seed: int, vehicles: int, spread: float) -> Iterator[tuple[str, VehicleRows]]:
    """Yields a healthy fleet, and the two in which one vehicle is not."""
    rows = NO_VEHICLES
    kinds = {"healthy": (1.0, 0.0), "variance ÷ 2.5": (VARIANCE, 0.0), "moved": (1.0, MOVED)}
    for i in range(vehicles):
        if i != BAD:
            state = vehicle(np.random.default_rng((seed, i)), spread, 1.0, 0.0)
            rows = rows.merge(of_state(f"car {i}", state))
    for kind, (variance, moved) in kinds.items():
        state = vehicle(np.random.default_rng((seed, BAD)), spread, variance, moved)
        yield kind, rows.merge(of_state(f"car {BAD}", state))


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--vehicles", type=int, default=500)
    parser.add_argument("--spreads", type=float, nargs="+", default=[0.05, 0.1])
    options = parser.parse_args()
    print(machine())
    print(f"{options.vehicles} vehicles, {options.seeds} seeds, slices {', '.join(SLICES)}")
    print("spread | fleet | bad one found | false finds, mean | fleets with any | compare, ms")
    for spread in options.spreads:
        found: dict[str, list[tuple[bool, int, float]]] = {}
        for seed in range(options.seeds):
            for kind, rows in fleets(seed, options.vehicles, spread):
                began = time.perf_counter()
                compared = compare(rows)
                took = time.perf_counter() - began
                named = compared.by_vehicle
                bad = f"car {BAD}" in named
                others = len(named) - bad
                found.setdefault(kind, []).append((bad, others, took))
        for kind, runs in found.items():
            caught, false, times = (np.array(column) for column in zip(*runs, strict=True))
            said = f"{caught.sum()} of {caught.size}"
            if kind == "healthy":
                false, said = false + caught, "–"
            print(
                f"{spread:g} | {kind} | {said} | {false.mean():.2f}"
                f" | {np.count_nonzero(false)} of {false.size} | {1e3 * np.median(times):.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
