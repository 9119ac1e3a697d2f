"""Six sensors × 20 Hz × 200 detections of K = 7 over loopback: the sidecar beside a raw echo.

Prints, for each case in turn and in the same run: server CPU at that pace, p50 and p99 of the
reply, and from a closed loop the detections a second that one server core carries; with a
tracker, also the confirmed tracks of a stream. All cases get the same moving scene. Absolute
numbers belong to the machine that is named; the ratios to the echo travel better.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.loads import SENSORS, Running, Sensor, going, percentile, serving, taken
from benchmarks.machine import machine
from benchmarks.scene import OBJECTS, RATE, SPACE, frames
from monitor.commands.sidecar_client import Client
from monitor.frames.detections import Estimates
from monitor.frames.slices import NO_COVARIANCE
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.fitting import FITTINGS, FitOptions
from monitor.recalibration.recalibrator import Identity
from monitor.recalibration.scaling import VarianceScaling
from monitor.recalibration.selection import Selection

CONFIG = '[state]\nfolder = ""\n[tracker]\nkind = "{}"\n'
DOCUMENT = Selection(SPACE.names, VarianceScaling((1.1,) * SPACE.k)).to_json()


@dataclass(frozen=True)
class Case:
    """Names a server, and what is sent to it and asked of it.

    bare       detections come without a covariance
    estimates  by this method
    """

    name: str
    echo: bool = False
    truth: bool = False
    scaled: bool = False
    tracker: str = "none"
    return_tracks: bool = False
    bare: bool = False
    estimates: str = ""


# Each after the echo that it is compared with.
CASES = (
    Case("raw echo", echo=True),
    Case("sidecar, identity"),
    Case("sidecar, scaling", scaled=True),
    Case("sidecar, scaling, tracker", scaled=True, tracker="embedded"),
    Case("the same, tracks returned", scaled=True, tracker="embedded", return_tracks=True),
    Case("raw echo, no covariances", echo=True, bare=True),
    Case("sidecar, no covariances", bare=True),
    Case("sidecar, residual-covariance", bare=True, estimates="residual-covariance"),
    Case("sidecar, covariance-regression", bare=True, estimates="covariance-regression"),
    Case("raw echo, with truth", echo=True, truth=True),
    Case("sidecar, identity, truth in every detection", truth=True),
    Case("sidecar, scaling, truth in every detection", truth=True, scaled=True),
)


def estimating(method: str) -> str:
    """Fits a method to errors of 300 simulated tracks, and returns its document."""
    random = np.random.default_rng(0)
    n, k = 6000, SPACE.k
    mean = random.uniform((-60, -60, 0, 1, 1, 1, -3), (60, 60, 2, 5, 2, 2, 3), (n, k))
    error = 0.1 * random.normal(size=(n, k)) * (1 + np.linalg.norm(mean[:, :2], axis=1)[:, None])
    assumed = np.broadcast_to(np.eye(k), (n, k, k))
    sent = Estimates(mean, assumed, np.ones(n, bool), random.uniform(size=n))
    rows = FitRows(SPACE.with_assumed, sent, error, np.arange(n) // 20)
    fitted = FITTINGS[method].fit(rows, FitOptions(), None)
    return Selection(SPACE.names, Identity(), {NO_COVARIANCE: fitted}).to_json()


async def measured(case: Case, server: Running, seconds: float) -> list[float]:
    """Returns CPU %, p50 and p99 in ms, detections/s of a core, and confirmed tracks."""
    bodies = frames(truth=case.truth, bare=case.bare)
    sensors = [
        Sensor(f"sensor{i}", bodies, return_tracks=case.return_tracks) for i in range(SENSORS)
    ]
    if case.scaled:
        async with Client(server.grpc) as admin:
            await admin.promote("benchmark", document=DOCUMENT)
    if case.estimates:
        async with Client(server.grpc) as admin:
            await admin.promote("benchmark", document=estimating(case.estimates))
    async with going(server.grpc, sensors):
        await asyncio.sleep(1.0)
        taken(sensors)
        cpu, began = server.cpu(), time.perf_counter()
        await asyncio.sleep(seconds)
        share = (server.cpu() - cpu) / (time.perf_counter() - began)
        took = taken(sensors)
    cpu, before = server.cpu(), sum(sensor.frames for sensor in sensors)
    async with going(server.grpc, sensors, pace=False):
        await asyncio.sleep(seconds)
    detections = OBJECTS * (sum(sensor.frames for sensor in sensors) - before)
    series = server.metrics()
    tracks = (series[name] for name in series if name.startswith("tracks{") and "confirm" in name)
    p50, p99 = (1e3 * percentile(took, level) for level in (0.5, 0.99))
    return [100 * share, p50, p99, detections / (server.cpu() - cpu), sum(tracks) / SENSORS]


def main() -> None:
    """Prints the medians over the rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    print(f"{machine()}; load {os.getloadavg()[0]:.1f}")
    print(
        f"{SENSORS} sensors x {RATE:g} Hz x {OBJECTS} detections, {options.rounds} rounds in turn"
    )
    found: dict[Case, list[list[float]]] = {case: [] for case in CASES}
    for _ in range(options.rounds):
        for case, values in found.items():
            config = CONFIG.format(case.tracker)
            folder = tempfile.TemporaryDirectory()
            with folder as name, serving(Path(name), config, echo=case.echo) as server:
                values.append(asyncio.run(measured(case, server, options.seconds)))
    heads = f"{'CPU %':>7}{'p50 ms':>8}{'p99 ms':>8}{'det/s/core':>12}{'echo/this':>10}"
    print(f"{'':<46}{heads}{'tracks':>8}")
    floor = 0.0
    for case, values in found.items():
        cpu, p50, p99, per_core, tracks = np.median(values, axis=0).tolist()
        floor = per_core if case.echo else floor
        cells = f"{cpu:7.1f}{p50:8.2f}{p99:8.2f}{per_core:12.0f}{floor / per_core:10.2f}"
        print(f"{case.name:<46}{cells}" + (f"{tracks:8.0f}" if tracks else ""))


if __name__ == "__main__":
    main()
