"""What a fit beside the stream costs the frames: six sensors × 10 Hz × 60 detections of K = 7 with
their truth, through gRPC and a real sidecar, in turns without and with a fit that runs.

The streams go on throughout; blocks of some seconds take turns in one run, so that whatever else
the machine does falls on all alike. The fits are the sidecar's own, of gp-normal on what it keeps
of these streams, asked for without a pause: far more often than a sidecar fits. Prints p50, p99 and
the longest latency of each, and exits with 1 where the p99 beside a fit is more than twice that
without, or no fit came to an end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.loads import SENSORS, Sensor, going, percentile, serving, taken
from benchmarks.machine import machine
from benchmarks.scene import CLASSES, SPACE, frames
from monitor.commands.sidecar_client import Client

RATE, OBJECTS, LIFE = 10.0, 60, 20  # Hz; detections a frame; frames, so that tracks end
METHOD = "gp-normal"
WARM_UP, MOST_RATIO = 8.0, 2.0  # s, until there are tracks; of p99
# By itself, it would fit whenever it likes.
CONFIG = '[promotion]\nmode = "manual"\n[state]\nfolder = ""\n'


async def fits_without_pause(admin: Client) -> int:
    """Fits until it is cancelled; returns how often."""
    fits = 0
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            await admin.fit(CLASSES[:1], METHOD, "benchmark")
            fits += 1
    return fits


async def measured(address: str, seconds: float, rounds: int) -> tuple[int, list[list[float]]]:
    """Runs blocks in turns, over streams that go on; counts fits, latencies without and with."""
    bodies, fits = frames(truth=True, objects=OBJECTS, life=LIFE), 0
    sensors = [Sensor(f"sensor{i}", bodies, RATE) for i in range(SENSORS)]
    took: list[list[float]] = [[], []]
    async with Client(address) as admin, going(address, sensors):
        await asyncio.sleep(WARM_UP)
        for _ in range(rounds):
            taken(sensors)
            await asyncio.sleep(seconds)
            took[0] += taken(sensors)
            fitting = asyncio.create_task(fits_without_pause(admin))
            await asyncio.sleep(seconds)
            took[1] += taken(sensors)
            fitting.cancel()
            fits += await fitting
            # What was begun comes to its end.
            await asyncio.sleep(1.0)
    return fits, took


def main() -> int:
    """Prints a table; returns 1 where the bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    print(f"{machine()}; load {os.getloadavg()[0]:.1f}")
    print(f"{SENSORS} sensors x {RATE:g} Hz x {OBJECTS} detections, K = {SPACE.k}, with truth")
    with tempfile.TemporaryDirectory() as name, serving(Path(name), CONFIG) as sidecar:
        fits, took = asyncio.run(measured(sidecar.grpc, options.seconds, options.rounds))
    print(f"{'beside the frames':<24}{'frames':>8}{'p50 ms':>9}{'p99 ms':>9}{'max ms':>9}")
    for beside, of in zip(("nothing", f"{fits} fits"), took, strict=True):
        values = "".join(f"{1e3 * percentile(of, level):9.2f}" for level in (0.5, 0.99, 1.0))
        print(f"{beside:<24}{len(of):8}{values}")
    ratio = percentile(took[1], 0.99) / percentile(took[0], 0.99)
    print(f"p99 beside fits over p99 beside nothing: {ratio:.2f}, at most {MOST_RATIO:g}")
    # Without a fit nothing was measured.
    return 0 if fits and ratio <= MOST_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
