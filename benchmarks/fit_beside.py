"""What a fit beside the stream costs the frames: six sensors × 10 Hz × 60 detections of K = 7 with
their truth, through gRPC and a real sidecar, in turns without and with a fit that runs.

The streams go on throughout; blocks of some seconds take turns in one run, so that whatever else
the machine does falls on all alike. The fits are the sidecar's own, of gp-normal on what it keeps
of these streams, asked for by RecalibratorAdmin.Fit without a pause: far more often than a
sidecar fits. For contrast the same method in a thread of the loop that sends and receives the
frames, on 8,000 rows.

Prints p50, p99 and the longest latency of each, and exits with 1 where the p99 beside a process is
more than twice that without.

    python benchmarks/fit_beside.py [--seconds 8] [--rounds 4]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace

import grpc
import numpy as np

from benchmarks.machine import machine
from benchmarks.scene import CLASSES, SPACE
from monitor.commands.sending import running_sidecar
from monitor.commands.sidecar_client import Client
from monitor.frames.detections import Estimates
from monitor.frames.frame import Header
from monitor.frames.space import plain_space
from monitor.promotion.fits import FitJob, fit_slices
from monitor.promotion.records import FitSettings
from monitor.recalibration.fit_rows import FitRows
from monitor.wire.client_messages import OutgoingFrame, encode_frame, encode_header

SENSORS, RATE, OBJECTS = 6, 10.0, 60  # Hz; detections a frame
LIFE = 20  # frames
PROCESS, METHOD = "/monitor.v1.PerceptionMonitor/Process", "gp-normal"
FITTED_ROWS, FITTED_K, TRACKS = 8000, 4, 250
WARM_UP = 8.0  # s, until there are tracks
MOST_RATIO = 2.0

OneFit = Callable[[], Awaitable[object]]


@dataclass
class Beside:
    """What runs beside the frames, and the latencies while it did, in seconds.

    one_fit  again and again; None: nothing runs
    """

    name: str
    one_fit: OneFit | None = None
    took: list[float] = field(default_factory=list)
    fits: int = 0

    def quantile(self, level: float) -> float:
        """Of the latencies, in ms."""
        return 1e3 * float(np.quantile(self.took, level))


@dataclass
class Stage:
    """Where latencies go at the moment."""

    now: Beside | None = None


def job() -> FitJob:
    """Rows whose errors grow as the root of σ, so that a process has something to find."""
    random = np.random.default_rng(0)
    deviation = np.exp(random.normal(size=(FITTED_ROWS, FITTED_K)))
    rows = FitRows(
        plain_space(tuple("xyzv"), "m"),
        Estimates(
            random.normal(size=(FITTED_ROWS, FITTED_K)),
            np.square(deviation)[:, :, None] * np.eye(FITTED_K),
            np.ones(FITTED_ROWS, bool),
        ),
        np.sqrt(deviation) * random.normal(size=(FITTED_ROWS, FITTED_K)),
        np.repeat(np.arange(TRACKS), FITTED_ROWS // TRACKS),
    )
    return FitJob(FitSettings(METHOD), {"car": rows})


def frames(sensor: int) -> list[OutgoingFrame]:
    """A second of them, to be sent again and again under other numbers."""
    random = np.random.default_rng(sensor)
    truth = random.uniform(-50, 50, (OBJECTS, SPACE.k))
    covariance = np.broadcast_to(0.04 * np.eye(SPACE.k), (OBJECTS, SPACE.k, SPACE.k))
    return [
        OutgoingFrame(
            frame_id=1,
            stamp_ns=1,
            id=np.arange(OBJECTS, dtype=np.uint64),
            class_index=np.arange(OBJECTS) % len(CLASSES),
            mean=truth + 0.2 * random.normal(size=truth.shape),
            covariance=covariance,
            truth=truth,
            upstream_track=np.arange(OBJECTS, dtype=np.uint64),
        )
        for _ in range(int(RATE))
    ]


async def sense(channel: grpc.aio.Channel, sensor: int, stage: Stage) -> None:
    """One stream, paced, until cancelled."""
    call = channel.stream_stream(PROCESS)()
    await call.write(encode_header(Header(f"sensor{sensor}", SPACE, CLASSES)))
    await call.read()
    scene = frames(sensor)
    start = time.perf_counter() + sensor / SENSORS / RATE
    number = 0
    while True:
        number += 1
        stamp_ns = round(number * 1e9 / RATE)
        frame = scene[number % len(scene)]
        # Objects live two seconds, so that there are tracks to fit on.
        track = frame.id + np.uint64(OBJECTS * (number // LIFE))
        frame = replace(frame, frame_id=number, stamp_ns=stamp_ns, upstream_track=track)
        data = encode_frame(frame)
        await asyncio.sleep(max(0.0, start + number / RATE - time.perf_counter()))
        where = stage.now
        sent = time.perf_counter()
        await call.write(data)
        await call.read()
        if where is not None:
            where.took.append(time.perf_counter() - sent)


@contextlib.asynccontextmanager
async def fitting(beside: Beside) -> AsyncIterator[None]:
    """One fit after the other, as long as the context lasts."""
    if beside.one_fit is None:
        yield
        return
    one_fit = beside.one_fit

    async def repeated() -> None:
        while True:
            await one_fit()
            beside.fits += 1

    task = asyncio.create_task(repeated())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def measure(address: str, seconds: float, rounds: int) -> list[Beside]:
    """Blocks in turns, over streams that go on."""
    stage, to_do, admin = Stage(), job(), Client(address)
    async with grpc.aio.insecure_channel(address) as channel, admin:
        all_beside = [
            Beside("nothing"),
            Beside("fits of the sidecar", lambda: admin.fit(CLASSES[:1], METHOD, "benchmark")),
            Beside("fits in a thread", lambda: asyncio.to_thread(fit_slices, to_do)),
        ]
        sensors = [asyncio.create_task(sense(channel, i, stage)) for i in range(SENSORS)]
        await asyncio.sleep(WARM_UP)
        for _ in range(rounds):
            for beside in all_beside:
                stage.now = beside
                async with fitting(beside):
                    await asyncio.sleep(seconds)
                # A fit in a thread cannot be ended; its end is nobody's.
                stage.now = None
                await asyncio.sleep(1.0)
        for sensor in sensors:
            sensor.cancel()
        ended = await asyncio.gather(*sensors, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                raise error
    return all_beside


def show(all_beside: list[Beside]) -> float:
    """A table; the ratio of p99 beside a process to that beside nothing."""
    print(
        f"{'beside the frames':<34}{'frames':>8}{'fits':>6}{'p50 ms':>9}{'p99 ms':>9}{'max ms':>9}"
    )
    for beside in all_beside:
        values = [beside.quantile(level) for level in (0.5, 0.99, 1.0)]
        shown = "".join(f"{value:9.2f}" for value in values)
        print(f"{beside.name:<34}{len(beside.took):8}{beside.fits:6}{shown}")
    nothing, process = all_beside[:2]
    ratio = process.quantile(0.99) / nothing.quantile(0.99)
    print(f"p99 beside a process over p99 beside nothing: {ratio:.2f}, at most {MOST_RATIO:g}")
    return ratio


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    print(f"{machine()}; load {os.getloadavg()[0]:.1f}")
    print(f"{SENSORS} sensors x {RATE:g} Hz x {OBJECTS} detections, K = {SPACE.k}, with truth")
    # As in the sidecar: threads hand over sooner.
    sys.setswitchinterval(0.0005)
    # Which fits by itself otherwise.
    with running_sidecar('[promotion]\nmode = "manual"\n') as addresses:
        all_beside = asyncio.run(measure(addresses.grpc, options.seconds, options.rounds))
    return 0 if show(all_beside) <= MOST_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
