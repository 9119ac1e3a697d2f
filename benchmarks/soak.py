"""A sidecar with its defaults at full load for as long as it likes: does anything grow?

Six sensors send moving scenes, the ledger is on disk, statistics and drift are kept, and of one
frame in twenty labels come 10 s late, in turn by detection id and as objects of the labeller's
own. A line a minute, and at the end what grew since the warm-up. The exit code is 1 where a bound
is broken; the bounds are printed with what they bound.

    python -m benchmarks.soak [--minutes 30] [--detections-per-second 24000] [--tracker embedded]
"""

from __future__ import annotations

import argparse
import asyncio
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

from benchmarks.loads import (
    MEGABYTE,
    OPTIONS,
    SENSORS,
    TRUTH,
    Running,
    Sensor,
    percentile,
    serving,
)
from benchmarks.machine import machine
from benchmarks.scene import CLASSES, OBJECTS, frames
from monitor.v1 import frame_pb2, perception_monitor_pb2, truth_pb2

LABELLED = 20  # one frame in so many
LATE = 10.0  # s from the frame to its labels
SAMPLE = 5.0  # s between two looks at the process
WARM_UP = 600.0  # s, or a third of the run: windows, the store in memory and the heap fill
SETTLED = 5.0  # s after the load, in which the metrics are refreshed
# What may be, at most.
MOST_MEMORY = 1200.0  # MB resident, ever
MOST_SLOPE = 10.0  # MB/h of it, told of no less than SLOPE_MINUTES behind the warm-up
SLOPE_MINUTES = 10.0
MOST_DESCRIPTORS = 16  # more than at the warm-up
MOST_STOPPING = 2.0  # s from SIGTERM to the end
MOST_LAG = 0.5  # s, p99 of the worst of each refresh of the metrics; on a machine of its own


@dataclass(frozen=True, slots=True)
class Sample:
    """A look at the sidecar, `at` s after the start of the load."""

    at: float
    rss: float
    descriptors: int
    lag: float
    disk: float
    series: dict[str, float]


@dataclass(slots=True)
class Labeller:
    """Sends the labels of some frames late, and counts their answers."""

    templates: list[truth_pb2.FrameTruth]
    due: deque[tuple[float, str, int]] = field(default_factory=deque)
    sent: int = 0
    matched: int = 0
    told: int = 0
    durable: int = 0

    def note(self, stream: str, number: int) -> None:
        """A frame was answered."""
        if number % LABELLED == 0:
            self.due.append((time.perf_counter() + LATE, stream, number))

    async def run(self, channel: grpc.aio.Channel, ending: asyncio.Event) -> None:
        call = channel.stream_stream(TRUTH)()
        reading = asyncio.create_task(self._read(call))
        while not ending.is_set():
            while self.due and self.due[0][0] <= time.perf_counter():
                _, stream, number = self.due.popleft()
                await call.write(self._labels(stream, number))
                self.sent += 1
            await asyncio.sleep(0.02)
        await call.done_writing()
        await reading

    async def _read(self, call: grpc.aio.StreamStreamCall) -> None:
        while (data := await call.read()) is not grpc.aio.EOF:
            answer = perception_monitor_pb2.ReportGroundTruthResponse.FromString(data)
            self.told += 1
            self.matched += answer.account.matched
            self.durable += answer.durable

    def _labels(self, stream: str, number: int) -> bytes:
        # By id, then as objects, in turn.
        kinds = len(self.templates) // 2
        index = number // LABELLED
        truth = self.templates[index % kinds + kinds * (index // kinds % 2)]
        truth.stream, truth.frame_id = stream, number
        return perception_monitor_pb2.ReportGroundTruthRequest(truth=truth).SerializeToString()


def templates(bodies: list[bytes]) -> list[truth_pb2.FrameTruth]:
    """Labels of each frame that has any: all by id, then all as objects."""
    by_id, as_objects = [], []
    for i in range(len(bodies) // LABELLED):
        # Frames are numbered from 1, and so are their labels.
        frame = frame_pb2.Frame.FromString(bodies[(i * LABELLED) % len(bodies)])
        named, foreign = truth_pb2.FrameTruth(complete=True), truth_pb2.FrameTruth(complete=True)
        foreign.class_names.extend(CLASSES)
        for detection in frame.detections:
            truth = detection.ground_truth
            named.detections.add(detection_id=detection.id, ground_truth=truth)
            foreign.objects.add(
                object_id=detection.id, class_index=detection.class_index, ground_truth=truth
            )
        by_id.append(named)
        as_objects.append(foreign)
    return by_id + as_objects


def without_truth(bodies: list[bytes]) -> list[bytes]:
    """The same frames, as a detector sends them."""
    bare = []
    for body in bodies:
        frame = frame_pb2.Frame.FromString(body)
        for detection in frame.detections:
            detection.ClearField("ground_truth")
        bare.append(frame.SerializeToString())
    return bare


def look(sidecar: Running, folder: Path, at: float) -> Sample:
    series = sidecar.metrics()
    held = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return Sample(
        at,
        sidecar.rss(),
        sidecar.descriptors(),
        series.get("loop_lag_seconds", float("nan")),
        sum(held) / MEGABYTE,
        series,
    )


def slope(samples: list[Sample]) -> float:
    """MB/h, least squares."""
    if len(samples) < 3:
        return 0.0
    at = np.array([sample.at for sample in samples]) / 3600
    return float(np.polyfit(at, [sample.rss for sample in samples], 1)[0])


def fates_of(series: dict[str, float]) -> str:
    """What became of the detections, by reason where they were dropped."""
    fates = {
        name.partition('fate="')[2].rstrip('"}'): value
        for name, value in series.items()
        if name.startswith("detection_fates{")
    }
    left = [f"{fate} {count:.0f}" for fate, count in fates.items() if count]
    return ", ".join(left) or "nothing yet"


def line(samples: list[Sample], took: list[float], since: float) -> str:
    last = samples[-1]
    lags = [sample.lag for sample in samples if sample.at > since]
    series = last.series
    return (
        f"{last.at / 60:6.1f} {last.rss:8.1f} {last.descriptors:4d} "
        f"{1e3 * percentile(lags, 0.99):9.1f} {1e3 * percentile(took, 0.5):8.2f} "
        f"{1e3 * percentile(took, 0.99):8.2f} {last.disk:9.1f} "
        f"{series.get('pending_detections', 0):10.0f} "
        f"{series.get('checkpoint_age_seconds', float('nan')):7.1f} "
        f"{series.get('overloads_total', 0):5.0f} {os.getloadavg()[0]:5.1f}"
    )


HEAD = "   min   RSS MB  fds  lag99 ms   p50 ms   p99 ms   disk MB    pending  ckpt s  shed  load\n"


async def soak(
    sidecar: Running, folder: Path, seconds: float, rate: float, every: float
) -> tuple[list[Sample], list[float], list[Sensor], Labeller]:
    """Load it for so long, with a line every so often."""
    labelled = frames(truth=True)
    labeller = Labeller(templates(labelled))
    bodies = without_truth(labelled)
    hertz = rate / (SENSORS * OBJECTS)
    sensors = [
        Sensor(f"sensor{i}", bodies, hertz, partial(labeller.note, f"sensor{i}"))
        for i in range(SENSORS)
    ]
    samples: list[Sample] = []
    took: list[float] = []
    ending = asyncio.Event()
    began = time.perf_counter()
    print(HEAD, end="", flush=True)
    async with grpc.aio.insecure_channel(sidecar.grpc, options=OPTIONS) as channel:
        tasks = [
            asyncio.create_task(sensor.run(channel, ending, i / SENSORS / hertz))
            for i, sensor in enumerate(sensors)
        ]
        tasks.append(asyncio.create_task(labeller.run(channel, ending)))
        told = 0.0
        while (at := time.perf_counter() - began) < seconds and not any(t.done() for t in tasks):
            await asyncio.sleep(min(SAMPLE, seconds / 10, seconds - at))
            at = time.perf_counter() - began
            samples.append(await asyncio.to_thread(look, sidecar, folder, at))
            if at - told >= every or at >= seconds:
                minute = [t for sensor in sensors for t in sensor.taken()]
                # A long run is told by a part of its answers.
                took += minute[:: max(1, int(seconds // 60))]
                print(line(samples, minute, told), flush=True)
                told = at
        ending.set()
        await asyncio.gather(*tasks)
    # Counts agree when nothing is on its way and the metrics are of that moment.
    await asyncio.sleep(SETTLED)
    samples.append(await asyncio.to_thread(look, sidecar, folder, time.perf_counter() - began))
    return samples, took, sensors, labeller


def unaccounted(series: dict[str, float]) -> float:
    """Detections that have no fate, or two."""
    fates = sum(value for name, value in series.items() if name.startswith("detection_fates{"))
    came = [value for name, value in series.items() if name.startswith("detections_total{")]
    return abs(sum(came) - fates) if came else float("nan")


def judged(
    warm: list[Sample],
    peak: float,
    faults: int,
    wrong: int,
    most_lag: float,
    fleeting: int,
    stopping: float,
) -> list[str]:
    """What is beyond its bound."""
    found = [
        ("MB resident", peak, MOST_MEMORY),
        ("more descriptors", warm[-1].descriptors - warm[0].descriptors, MOST_DESCRIPTORS),
        ("s of loop lag, p99", percentile([sample.lag for sample in warm], 0.99), most_lag),
        ("detections unaccounted for", unaccounted(warm[-1].series), 0),
        ("faults in the log", faults, 0),
        ("wrong answers", wrong, 0),
        ("labels not durable", fleeting, 0),
        ("s from SIGTERM to the end", stopping, MOST_STOPPING),
    ]
    if warm[-1].at - warm[0].at >= 60 * SLOPE_MINUTES:
        found.append(("MB/h of resident memory", slope(warm), MOST_SLOPE))
    for what, value, most in found:
        print(f"{what:<28}{value:10.2f}   at most {most:g}")
    return [what for what, value, most in found if not value <= most]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--detections-per-second", type=float, default=24_000.0)
    parser.add_argument("--tracker", choices=("none", "embedded"), default="none")
    parser.add_argument("--every", type=float, default=60.0, help="s between two lines")
    parser.add_argument("--most-lag", type=float, default=MOST_LAG, help="s of loop lag, p99")
    options = parser.parse_args(arguments)
    seconds = 60 * options.minutes
    print(f"{machine()}; load {os.getloadavg()[0]:.1f} before")
    print(
        f"{SENSORS} sensors, {options.detections_per_second:g} detections/s, tracker "
        f"{options.tracker}, labels of one frame in {LABELLED} after {LATE:g} s, "
        f"{options.minutes:g} min"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = f'[tracker]\nkind = "{options.tracker}"\n'
        with serving(folder, config) as sidecar:
            cpu, began = sidecar.cpu(), time.perf_counter()
            samples, took, sensors, labeller = asyncio.run(
                soak(sidecar, folder, seconds, options.detections_per_second, options.every)
            )
            share = (sidecar.cpu() - cpu) / (time.perf_counter() - began)
            peak, faults = sidecar.peak(), sidecar.faults()
        stopping = sidecar.stopping
    warm = [sample for sample in samples if sample.at >= min(WARM_UP, seconds / 3)]
    print(
        f"frames {sum(s.frames for s in sensors)}, skipped {sum(s.skipped for s in sensors)}; "
        f"p50 {1e3 * percentile(took, 0.5):.2f} ms, p99 {1e3 * percentile(took, 0.99):.2f} ms; "
        f"one core used to {100 * share:.0f} %"
    )
    print(
        f"label messages {labeller.sent}, answered {labeller.told}, durable {labeller.durable}, "
        f"detections matched {labeller.matched}"
    )
    print(f"fates: {fates_of(samples[-1].series)}")
    print(
        f"RSS MB: {warm[0].rss:.1f} warm, {warm[-1].rss:.1f} at the end, {peak:.1f} at most; "
        f"{slope(warm):+.1f} MB/h since {warm[0].at / 60:.1f} min"
    )
    wrong = sum(sensor.wrong for sensor in sensors)
    fleeting = labeller.sent - labeller.durable
    broken = judged(warm, peak, faults, wrong, options.most_lag, fleeting, stopping)
    print("bounds hold" if not broken else f"beyond bounds: {', '.join(broken)}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
