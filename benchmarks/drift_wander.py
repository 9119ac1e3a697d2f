"""Does a common level that wanders within the band ever raise an alarm?

Weather, or the pose of the vehicle, moves the errors of all objects alike. Families of tracks at
the default settings and budget, which learn their reference over two healthy minutes; then all
variances follow a path that stays within the band: steps, ramps, waves, and Ornstein-Uhlenbeck
processes. Prints alarms and the highest evidence of each path. Exits with 1 where there is one.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.signal import lfilter

from benchmarks.drift_family import DETECTIONS, PERIOD_NS, drive
from benchmarks.drift_streams import World
from benchmarks.machine import machine
from monitor.drift.bets import SEVERITIES
from monitor.drift.evidence import DriftSettings
from monitor.frames.space import FloatArray

HOURS = 1.0
HEALTHY_SECONDS = 120
# Tracks of 20 s, as a car that is followed through a crossing.
WORLD = World(DETECTIONS, life=200)
HEADROOM = 0.999  # of the band: paths stay strictly inside
# Seconds since the reference is learned, (n,), to ln of the factor on all variances, (n,).
Path = Callable[[FloatArray, np.random.Generator], FloatArray]


def steps(first: float, second: float, seconds: float = 10.0) -> Path:
    """From one factor on the variance to another, by turns."""

    def path(time: FloatArray, _: np.random.Generator) -> FloatArray:
        even = time // seconds % 2 == 0
        found: FloatArray = np.where(even, math.log(first), math.log(second))
        return found

    return path


def ramps(first: float, second: float, seconds: float, hold: float = 10.0) -> Path:
    """Moves between two factors on the variance, each change spread over some seconds."""

    def path(time: FloatArray, _: np.random.Generator) -> FloatArray:
        low, high, whole = math.log(first), math.log(second), hold + seconds
        knots = [0.0, hold, whole, whole + hold, 2 * whole]
        return np.interp(time % (2 * whole), knots, [low, low, high, high, low])

    return path


def wave(most: float, period: float) -> Path:
    """A sinusoid between 1 / most and most."""
    return lambda time, _: math.log(most) * np.sin(2 * math.pi * time / period)


def wandering(deviation: float, seconds: float) -> Path:
    """An Ornstein-Uhlenbeck process of a correlation time, cut at the ends of the band."""

    def path(time: FloatArray, random: np.random.Generator) -> FloatArray:
        keeps = math.exp(-float(time[1] - time[0]) / seconds)
        drawn = deviation * random.standard_normal(time.size)
        drawn[1:] *= math.sqrt(1 - keeps * keeps)
        end = HEADROOM * 2 * math.log(DriftSettings().page_tolerance)
        found: FloatArray = np.clip(lfilter([1.0], [1.0, -keeps], drawn), -end, end)
        return found

    return path


PATHS: dict[str, Path] = {
    "× 0.6 ↔ 1.67 every 10 s": steps(0.6, 1.67),
    "× 0.6 ↔ 1.67 every 3 s": steps(0.6, 1.67, 3.0),
    "× 0.6 ↔ 1.67 every 60 s": steps(0.6, 1.67, 60.0),
    "× 0.7 ↔ 1.4 every 10 s": steps(0.7, 1.4),
    "× 1 ↔ 1.7 every 10 s": steps(1.0, 1.7),
    "× 0.6 ↔ 1.67, ramps of 2 s": ramps(0.6, 1.67, 2.0),
    "× 0.6 ↔ 1.67, ramps of 5 s": ramps(0.6, 1.67, 5.0),
    "sinusoid to 1.67, 20 s": wave(1.67, 20.0),
    "sinusoid to 1.67, 60 s": wave(1.67, 60.0),
    "sinusoid to 1.67, 120 s": wave(1.67, 120.0),
} | {
    f"OU of sd {deviation}, {seconds:.0f} s": wandering(deviation, seconds)
    for seconds in (60.0, 600.0)
    for deviation in (0.1, 0.2, 0.35)
}


@dataclass(frozen=True)
class Found:
    """Holds by severity what one path gave: alarms, seconds to the first, most evidence in h."""

    alarms: tuple[int, ...]
    first: tuple[float | None, ...]
    most: tuple[float, ...]


def follow(name: str, hours: float, seed: int = 1) -> Found:
    """One family along one path."""
    rate = round(1e9 / PERIOD_NS)
    one = drive(WORLD, DriftSettings(), seed)
    one.go(HEALTHY_SECONDS * rate)
    time = np.arange(round(hours * 3600 * rate)) / rate
    one.go(time.size, level=PATHS[name](time, np.random.default_rng(seed)))
    alarms = [one.alarms[severity] for severity in SEVERITIES]
    return Found(
        tuple(map(len, alarms)),
        tuple(frames[0] / rate - HEALTHY_SECONDS if frames else None for frames in alarms),
        tuple(one.most.tolist()),
    )


def wander_table(hours: float, processes: int = 1) -> bool:
    """Prints the table, and says whether no path raised an alarm."""
    print(f"\ncommon levels that wander within the band, {hours:g} h each, 8 tracks at a time")
    heads = ("", "pages", "first, s", "log10 h", "tickets", "first, s", "log10 h")
    print("".join(f"{head:>{30 if not i else 10}}" for i, head in enumerate(heads)))
    silent = True
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for name, found in zip(PATHS, pool.imap(partial(follow, hours=hours), PATHS), strict=True):
            cells = [f"{name:>30}"]
            for alarms, first, most in zip(found.alarms, found.first, found.most, strict=True):
                when = "" if first is None else f"{first:.0f}"
                cells += [f"{alarms:>10}", f"{when:>10}", f"{math.log10(max(most, 1e-99)):>10.1f}"]
            print("".join(cells), flush=True)
            silent &= not any(found.alarms)
    return silent


def main() -> int:
    """0 where there was no alarm."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=HOURS, help="of each path")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    print(machine())
    silent = wander_table(options.hours, options.processes)
    print("no alarm" if silent else "there were alarms")
    return 0 if silent else 1


if __name__ == "__main__":
    sys.exit(main())
