"""Six sensors × 20 Hz × 200 detections of K = 7 over loopback: the sidecar beside a raw echo.

Prints, for each case in turn and in the same run: server CPU at that pace, p50 and p99 of the
reply, the same p99 where all six frames are due at the same moment, and from a closed loop, with
four frames of each stream on their way, the detections a second that one server core carries, as
the processor's time is accounted by the system; with a tracker, also the confirmed tracks of a
stream. All cases get the same moving scene, and a ledger where the sidecar keeps one. Absolute
numbers belong to the machine that is named; the ratios to the echo travel better. `--base` runs
another version of the sidecar beside, case by case.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.loads import (
    COUNT_ALL,
    ROOT,
    SENSORS,
    Running,
    Sensor,
    going,
    percentile,
    serving,
    taken,
)
from benchmarks.machine import machine
from benchmarks.scene import OBJECTS, RATE, SPACE, frames
from monitor.commands.sidecar_client import Client
from monitor.frames.detections import Estimates
from monitor.frames.slices import NO_COVARIANCE
from monitor.recalibration.fit_rows import FitRows
from monitor.recalibration.fitting import FITTINGS, FitOptions
from monitor.recalibration.recalibrator import Identity
from monitor.recalibration.scaling import VarianceScaling
from monitor.recalibration.selection import ESTIMATING, Selection


@dataclass(frozen=True)
class Case:
    """Names a server, and what is sent to it and asked of it.

    labelled  share of the frames that come with ground truth
    method    that recalibrates, or estimates covariances; empty: the identity
    bare      detections come without a covariance
    base      whether it is another version of the sidecar
    """

    name: str
    echo: bool = False
    labelled: float = 0.0
    method: str = "variance-scaling"
    tracker: str = "none"
    return_tracks: bool = False
    bare: bool = False
    base: bool = False


# Each after the echo that it is compared with.
CASES = (
    Case("echo", echo=True),
    Case("identity", method=""),
    Case("scaling"),
    Case("scaling, 10 % labelled", labelled=0.1),
    Case("scaling, all labelled", labelled=1.0),
    Case("gp-normal", method="gp-normal"),
    Case("gp-normal, 10 % labelled", labelled=0.1, method="gp-normal"),
    Case("tracker", tracker="embedded"),
    Case("tracker, 10 % labelled", labelled=0.1, tracker="embedded"),
    Case("tracker, tracks returned", tracker="embedded", return_tracks=True),
    Case("echo, no covariances", echo=True, bare=True),
    Case("no covariances", bare=True, method=""),
    Case("residual-covariance", bare=True, method="residual-covariance"),
    Case("covariance-regression", bare=True, method="covariance-regression"),
)


@cache
def document(method: str) -> str:
    """Fits a method to errors of 300 simulated tracks, and returns its document."""
    if method == VarianceScaling.method:
        return Selection(SPACE.names, VarianceScaling((1.1,) * SPACE.k)).to_json()
    random = np.random.default_rng(0)
    n, k, bare = 6000, SPACE.k, method in ESTIMATING
    mean = random.uniform((-60, -60, 0, 1, 1, 1, -3), (60, 60, 2, 5, 2, 2, 3), (n, k))
    error = 0.1 * random.normal(size=(n, k)) * (1 + np.linalg.norm(mean[:, :2], axis=1)[:, None])
    covariance = np.broadcast_to(np.eye(k), (n, k, k))
    sent = Estimates(mean, covariance, np.full(n, bare), random.uniform(size=n))
    rows = FitRows(SPACE.with_assumed if bare else SPACE, sent, error, np.arange(n) // 20)
    fitted = FITTINGS[method].fit(rows, FitOptions(), None)
    if bare:
        return Selection(SPACE.names, Identity(), {NO_COVARIANCE: fitted}).to_json()
    return Selection(SPACE.names, fitted).to_json()


async def measured(case: Case, server: Running, seconds: float) -> list[float]:
    """Returns CPU %, p50, p99 and p99 in step in ms, detections/s of a core, confirmed tracks."""
    bodies = frames(truth=False, bare=case.bare)
    labelled = frames(truth=True, bare=case.bare) if case.labelled else None
    sensors = [
        Sensor(
            f"sensor{i}",
            bodies,
            return_tracks=case.return_tracks,
            labelled=labelled,
            share=case.labelled,
        )
        for i in range(SENSORS)
    ]
    if case.method and not case.echo:
        async with Client(server.grpc) as admin:
            await admin.promote("benchmark", document=document(case.method))
    found: list[float] = []
    for in_step in (False, True):
        async with going(server.grpc, sensors, in_step=in_step):
            await asyncio.sleep(1.0)
            taken(sensors)
            cpu, began = server.cpu(), time.perf_counter()
            await asyncio.sleep(seconds)
            share = (server.cpu() - cpu) / (time.perf_counter() - began)
            took = taken(sensors)
        p50, p99 = (1e3 * percentile(took, level) for level in (0.5, 0.99))
        found += [p99] if in_step else [100 * share, p50, p99]
    async with going(server.grpc, sensors, pace=False):
        await asyncio.sleep(1.0)
        cpu, before = server.cpu(), sum(sensor.frames for sensor in sensors)
        await asyncio.sleep(seconds)
        detections = OBJECTS * (sum(sensor.frames for sensor in sensors) - before)
        rate = detections / (server.cpu() - cpu)
    series = server.metrics()
    tracks = (series[name] for name in series if name.startswith("tracks{") and "confirm" in name)
    return [*found, rate, sum(tracks) / SENSORS]


def main() -> None:
    """Prints the medians over the rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", default="", help="cases whose name has this, and their echo")
    parser.add_argument("--base", type=Path, help="a folder with another version of the project")
    options = parser.parse_args()
    print(f"{machine()}; load {os.getloadavg()[0]:.1f}")
    print(
        f"{SENSORS} sensors x {RATE:g} Hz x {OBJECTS} detections, {options.rounds} rounds in turn"
    )
    chosen = [case for case in CASES if case.echo or options.only in case.name]
    if options.base:
        pairs = ((replace(case, base=not case.echo), case) for case in chosen)
        chosen = [case for pair in pairs for case in dict.fromkeys(pair)]
    found: dict[Case, list[list[float]]] = {case: [] for case in chosen}
    for _ in range(options.rounds):
        for case, values in found.items():
            config, tree = COUNT_ALL.format(case.tracker), options.base if case.base else ROOT
            folder = tempfile.TemporaryDirectory()
            with (
                folder as name,
                serving(Path(name), config, echo=case.echo, tree=tree) as server,
            ):
                values.append(asyncio.run(measured(case, server, options.seconds)))
    heads = f"{'CPU %':>7}{'p50 ms':>8}{'p99 ms':>8}{'in step':>9}{'/echo':>6}"
    print(f"{'':<34}{heads}{'det/s/core':>12}{'/echo':>7}{'tracks':>8}")
    floor_p99 = floor = 1.0
    for case, values in found.items():
        cpu, p50, p99, in_step, per_core, tracks = np.median(values, axis=0).tolist()
        if case.echo:
            floor_p99, floor = in_step, per_core
        cells = f"{cpu:7.1f}{p50:8.2f}{p99:8.2f}{in_step:9.2f}{in_step / floor_p99:6.1f}"
        cells += f"{per_core:12.0f}{per_core / floor:7.3f}"
        name = f"{case.name}{', base' if case.base else ''}"
        print(f"{name:<34}{cells}" + (f"{tracks:8.0f}" if tracks else ""))


if __name__ == "__main__":
    main()
