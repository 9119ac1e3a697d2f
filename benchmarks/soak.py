"""A sidecar with its defaults at full load for as long as it likes: does anything grow?

Six sensors send moving scenes, the ledger is on disk, statistics and drift are kept, and of one
frame in twenty labels come 10 s late, in turn by detection id and as objects of the labeller's
own. A line a minute, and at the end each bound with what it bounds; exits with 1 where one is
broken.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import grpc
import numpy as np

from benchmarks.loads import MEGABYTE, SENSORS, Running, Sensor, going, percentile, serving, taken
from benchmarks.machine import machine
from benchmarks.scene import CLASSES, OBJECTS, frames
from monitor.v1 import frame_pb2, perception_monitor_pb2, truth_pb2

LABELLED, LATE = 20, 10.0  # one frame in so many; s from the frame to its labels
SAMPLE = 5.0  # s between two looks at the process
WARM_UP = 600.0  # s, or a third of the run: windows, the store in memory and the heap fill
SETTLED = 5.0  # s after the load, in which the metrics are refreshed
# What may be, at most.
MOST_MEMORY = 1200.0  # MB resident, ever
MOST_SLOPE, SLOPE_MINUTES = 10.0, 10.0  # MB/h of it, told of no less behind the warm-up
MOST_DESCRIPTORS = 16  # more than at the warm-up
MOST_STOPPING = 2.0  # s from SIGTERM to the end
MOST_LAG = 0.5  # s, p99 of the worst of each refresh of the metrics; on a machine of its own
HEAD = "   min   RSS MB  fds  lag99 ms   p50 ms   p99 ms   disk MB    pending  ckpt s  shed  load"


@dataclass(frozen=True, slots=True)
class Sample:
    """Holds a look at the sidecar, `at` s after the start of the load."""

    at: float
    rss: float
    descriptors: int
    disk: float
    series: dict[str, float]

    def of(self, metric: str) -> dict[str, float]:
        """Picks the series of a metric with one label, by its value."""
        found = ((name.split('"'), value) for name, value in self.series.items())
        return {name[1]: value for name, value in found if name[0].startswith(f"{metric}{{")}


def look(sidecar: Running, folder: Path, began: float) -> Sample:
    """Takes a sample."""
    disk = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / MEGABYTE
    now = time.perf_counter() - began
    return Sample(now, sidecar.rss(), sidecar.descriptors(), disk, sidecar.metrics())


def lag(samples: list[Sample]) -> float:
    """Returns p99 of the worst loop lag of each refresh of the metrics, in s."""
    return percentile([one.series.get("loop_lag_seconds", math.nan) for one in samples], 0.99)


@dataclass(slots=True)
class Labeller:
    """Sends the labels of some frames late, and counts their answers.

    kinds  labels of each frame of the scene that has any, by id and as objects
    """

    kinds: list[tuple[truth_pb2.FrameTruth, truth_pb2.FrameTruth]] = field(default_factory=list)
    due: deque[tuple[float, str, int]] = field(default_factory=deque)
    sent: int = 0
    told: int = 0
    durable: int = 0

    def __post_init__(self) -> None:
        # Frames are numbered from 1, and so are their labels.
        for body in frames(truth=True)[::LABELLED]:
            named = truth_pb2.FrameTruth(complete=True)
            foreign = truth_pb2.FrameTruth(complete=True, class_names=CLASSES)
            for one in frame_pb2.Frame.FromString(body).detections:
                truth = one.ground_truth
                named.detections.add(detection_id=one.id, ground_truth=truth)
                kind = one.class_index
                foreign.objects.add(object_id=one.id, class_index=kind, ground_truth=truth)
            self.kinds.append((named, foreign))

    def note(self, stream: str, number: int) -> None:
        """Remembers a frame that was answered."""
        if number % LABELLED == 0:
            self.due.append((time.perf_counter() + LATE, stream, number))

    async def run(self, channel: grpc.aio.Channel, ending: asyncio.Event) -> None:
        """Sends what is due until the event."""
        call = channel.stream_stream("/monitor.v1.PerceptionMonitor/ReportGroundTruth")()
        reading = asyncio.create_task(self._read(call))
        while not ending.is_set():
            while self.due and self.due[0][0] <= time.perf_counter():
                _, stream, number = self.due.popleft()
                turn, index = divmod(number // LABELLED, len(self.kinds))
                truth = self.kinds[index][turn % 2]
                truth.stream, truth.frame_id = stream, number
                request = perception_monitor_pb2.ReportGroundTruthRequest(truth=truth)
                await call.write(request.SerializeToString())
                self.sent += 1
            await asyncio.sleep(0.02)
        await call.done_writing()
        await reading

    async def _read(self, call: grpc.aio.StreamStreamCall) -> None:
        while (data := await call.read()) is not grpc.aio.EOF:
            answer = perception_monitor_pb2.ReportGroundTruthResponse.FromString(data)
            self.told += 1
            self.durable += answer.durable


def show(samples: list[Sample], took: list[float]) -> None:
    """Prints the last minute."""
    last, series = samples[-1], samples[-1].series
    print(
        f"{last.at / 60:6.1f} {last.rss:8.1f} {last.descriptors:4d} {1e3 * lag(samples):9.1f} "
        f"{1e3 * percentile(took, 0.5):8.2f} {1e3 * percentile(took, 0.99):8.2f} {last.disk:9.1f} "
        f"{series.get('pending_detections', 0):10.0f} "
        f"{series.get('checkpoint_age_seconds', math.nan):7.1f} "
        f"{series.get('overloads_total', 0):5.0f} {os.getloadavg()[0]:5.1f}",
        flush=True,
    )


async def soak(
    sidecar: Running, folder: Path, sensors: list[Sensor], labeller: Labeller, last: float, s: float
) -> list[Sample]:
    """Loads it until the last second, with a line every s seconds."""
    samples: list[Sample] = []
    began, told = time.perf_counter(), 0
    print(HEAD, flush=True)
    async with going(sidecar.grpc, sensors, labeller.run) as tasks:
        while (at := time.perf_counter() - began) < last and not any(t.done() for t in tasks):
            await asyncio.sleep(min(SAMPLE, last / 10, last - at))
            samples.append(await asyncio.to_thread(look, sidecar, folder, began))
            if samples[-1].at - (samples[told - 1].at if told else 0.0) >= s:
                show(samples[told:], taken(sensors))
                told = len(samples)
    # Counts agree when nothing is on its way and the metrics are of that moment.
    await asyncio.sleep(SETTLED)
    return [*samples, await asyncio.to_thread(look, sidecar, folder, began)]


def main() -> int:
    """Returns 1 where a bound is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--detections-per-second", type=float, default=24_000.0)
    parser.add_argument("--tracker", choices=("none", "embedded"), default="none")
    parser.add_argument("--every", type=float, default=60.0, help="s between two lines")
    parser.add_argument("--most-lag", type=float, default=MOST_LAG, help="s of loop lag, p99")
    options = parser.parse_args()
    seconds, rate = 60 * options.minutes, options.detections_per_second
    print(f"{machine()}; {SENSORS} sensors, {rate:g} detections/s, tracker {options.tracker}")
    bodies, labeller = frames(truth=False), Labeller()
    names = [f"sensor{i}" for i in range(SENSORS)]
    hertz = rate / (SENSORS * OBJECTS)
    sensors = [Sensor(name, bodies, hertz, answered=partial(labeller.note, name)) for name in names]
    config = f'[tracker]\nkind = "{options.tracker}"\n[state]\nfolder = "state"\n'
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with serving(folder, config) as sidecar:
            cpu, began = sidecar.cpu(), time.perf_counter()
            samples = asyncio.run(soak(sidecar, folder, sensors, labeller, seconds, options.every))
            share = (sidecar.cpu() - cpu) / (time.perf_counter() - began)
            peak, faults = sidecar.peak(), sidecar.faults()
    warm = [sample for sample in samples if sample.at >= min(WARM_UP, seconds / 3)]
    first, last = warm[0], warm[-1]
    slope = float(np.polyfit([one.at / 3600 for one in warm], [one.rss for one in warm], 1)[0])
    account, came = last.of("detection_fates"), last.of("detections_total")
    fates = ", ".join(f"{fate} {count:.0f}" for fate, count in account.items() if count)
    print(
        f"frames {sum(s.frames for s in sensors)}, skipped {sum(s.skipped for s in sensors)}; "
        f"one core used to {100 * share:.0f} %\n"
        f"label messages {labeller.sent}, answered {labeller.told}, durable {labeller.durable}\n"
        f"fates: {fates}\n"
        f"RSS MB: {first.rss:.1f} warm, {last.rss:.1f} at the end; {slope:+.1f} MB/h"
    )
    bounds = [
        ("MB resident", peak, MOST_MEMORY),
        ("more descriptors", last.descriptors - first.descriptors, MOST_DESCRIPTORS),
        ("s of loop lag, p99", lag(warm), options.most_lag),
        ("detections unaccounted for", abs(sum(came.values()) - sum(account.values())), 0),
        ("faults in the log", faults, 0),
        ("wrong answers", sum(sensor.wrong for sensor in sensors), 0),
        ("labels not durable", labeller.sent - labeller.durable, 0),
        ("s from SIGTERM to the end", sidecar.stopping, MOST_STOPPING),
    ]
    if last.at - first.at >= 60 * SLOPE_MINUTES:
        bounds.append(("MB/h of resident memory", slope, MOST_SLOPE))
    for what, value, most in bounds:
        print(f"{what:<28}{value:10.2f}   at most {most:g}")
    # NaN is within no bound.
    broken = [what for what, value, most in bounds if not value <= most]
    print("bounds hold" if not broken else f"beyond bounds: {', '.join(broken)}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
