"""Six sensors × 20 Hz × 200 detections of K = 7 over loopback: the sidecar beside a raw echo.

Prints, for each case in turn and in the same run: server CPU at that pace, p50 and p99 of the
reply, and from a closed loop the detections a second that one server core carries; with a
tracker, also the confirmed tracks of a stream. All cases get the same moving scene. Absolute
numbers belong to the machine that is named; the ratios to the echo travel better.

    python benchmarks/loopback.py [--seconds 8] [--rounds 2]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from benchmarks.machine import machine
from benchmarks.scene import CLASSES, OBJECTS, RATE, SPACE, frames, message
from monitor.frames.frame import Header
from monitor.recalibration.scaling import VarianceScaling
from monitor.recalibration.selection import Selection
from monitor.v1 import recalibrator_admin_pb2
from monitor.wire.client_messages import encode_header

SENSORS = 6
METHOD = "/monitor.v1.PerceptionMonitor/Process"
WINDOW = 4  # frames on their way per stream in the closed loop


@dataclass
class Case:
    """A server, what is sent to it and asked of it, and what was measured, once a round."""

    name: str
    command: list[str]
    truth: bool = False
    scaled: bool = False
    return_tracks: bool = False
    cpu: list[float] = field(default_factory=list)
    p50: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)
    per_core: list[float] = field(default_factory=list)
    tracks: list[float] = field(default_factory=list)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def confirmed_tracks(address: str) -> float:
    """Of one stream, on average, as of the last refresh of the metrics."""
    with urllib.request.urlopen(f"http://{address}/metrics") as response:
        lines = response.read().decode().splitlines()
    counts = [line for line in lines if line.startswith("calibration_tracks{")]
    return sum(float(c.rpartition(" ")[2]) for c in counts if 'status="confirmed"' in c) / SENSORS


async def sensor(
    channel: grpc.aio.Channel,
    index: int,
    bodies: list[bytes],
    seconds: float,
    pace: bool,
    return_tracks: bool,
) -> tuple[int, list[float]]:
    """Frames answered, and how long each answer took."""
    call = channel.stream_stream(METHOD)()
    header = Header(f"sensor{index}", SPACE, CLASSES, return_tracks=return_tracks)
    await call.write(encode_header(header))
    await call.read()
    took: list[float] = []
    sent: list[float] = []
    end = time.perf_counter() + seconds
    base = (index + 1) * 10**9 + int(time.time() * 1000) % 10**8 * 10

    async def receive(count: int) -> None:
        for _ in range(count):
            await call.read()
            took.append(time.perf_counter() - sent[len(took)])

    if pace:
        start = time.perf_counter() + index / SENSORS / RATE
        while (due := start + len(sent) / RATE) < end:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            data = message(base + len(sent), bodies)
            sent.append(time.perf_counter())
            await call.write(data)
            await receive(1)
    else:
        while time.perf_counter() < end:
            data = message(base + len(sent), bodies)
            sent.append(time.perf_counter())
            await call.write(data)
            if len(sent) - len(took) >= WINDOW:
                await receive(1)
        await receive(len(sent) - len(took))
    await call.done_writing()
    return len(took), took


async def drive(
    address: str, case: Case, bodies: list[bytes], seconds: float, pace: bool
) -> tuple[int, list[float]]:
    """Frames answered to all sensors, and how long each answer took."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        if case.scaled:
            document = Selection(SPACE.names, VarianceScaling((1.1,) * SPACE.k)).to_json()
            request = recalibrator_admin_pb2.PromoteRequest(document=document, actor="benchmark")
            promote = channel.unary_unary("/monitor.v1.RecalibratorAdmin/Promote")
            await promote(request.SerializeToString())
        results = await asyncio.gather(
            *(sensor(channel, i, bodies, seconds, pace, case.return_tracks) for i in range(SENSORS))
        )
    return sum(count for count, _ in results), [t for _, took in results for t in took]


def measure(case: Case, seconds: float) -> None:
    bodies = frames(truth=case.truth)
    server = subprocess.Popen(
        case.command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert server.stdout is not None
        addresses = json.loads(server.stdout.readline().removeprefix("listening "))
        address = addresses["grpc"]
        asyncio.run(drive(address, case, bodies, 1.0, True))
        before = cpu_seconds(server.pid)
        began = time.perf_counter()
        _, took = asyncio.run(drive(address, case, bodies, seconds, True))
        case.cpu.append(100 * (cpu_seconds(server.pid) - before) / (time.perf_counter() - began))
        ordered = sorted(took)
        case.p50.append(1e3 * ordered[len(ordered) // 2])
        case.p99.append(1e3 * ordered[int(len(ordered) * 0.99)])
        before = cpu_seconds(server.pid)
        answered, _ = asyncio.run(drive(address, case, bodies, seconds, False))
        case.per_core.append(answered * OBJECTS / (cpu_seconds(server.pid) - before))
        if "http" in addresses:
            case.tracks.append(confirmed_tracks(addresses["http"]))
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)


def cases_of(plain: str, tracking: str) -> list[Case]:
    """Each after the echo that it is compared with; both are configuration files."""
    serve = [sys.executable, "-m", "monitor", "serve", "--log-level", "error"]
    serve += ["--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0"]
    track = [*serve, "--config", tracking]
    serve += ["--config", plain]
    echo = [sys.executable, str(Path(__file__).with_name("echo_server.py"))]
    return [
        Case("raw echo", echo),
        Case("sidecar, identity", serve),
        Case("sidecar, scaling", serve, scaled=True),
        Case("sidecar, scaling, tracker", track, scaled=True),
        Case("sidecar, scaling, tracker, tracks returned", track, scaled=True, return_tracks=True),
        Case("raw echo, with truth", echo, truth=True),
        Case("sidecar, identity, truth in every detection", serve, truth=True),
        Case("sidecar, scaling, truth in every detection", serve, truth=True, scaled=True),
    ]


def show(cases: list[Case]) -> None:
    """A table of the medians over the rounds."""
    print(
        f"{'':<46}{'CPU %':>7}{'p50 ms':>8}{'p99 ms':>8}{'det/s/core':>12}{'echo/this':>10}"
        f"{'tracks':>8}"
    )
    floor = cases[0]
    for case in cases:
        floor = case if case.name.startswith("raw echo") else floor
        values = [statistics.median(v) for v in (case.cpu, case.p50, case.p99, case.per_core)]
        ratio = statistics.median(floor.per_core) / values[3]
        tracks = f"{statistics.median(case.tracks):8.0f}" if any(case.tracks) else ""
        print(
            f"{case.name:<46}{values[0]:7.1f}{values[1]:8.2f}{values[2]:8.2f}"
            f"{values[3]:12.0f}{ratio:10.2f}{tracks}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    print(f"{machine()}; load {os.getloadavg()[0]:.1f}")
    offered = SENSORS * RATE * OBJECTS
    print(f"{SENSORS} sensors x {RATE:g} Hz x {OBJECTS} detections, K = {SPACE.k}: {offered:g}/s")
    size = len(message(1, frames(truth=False)))
    print(f"{size} bytes a frame, {options.rounds} rounds in turn")
    with tempfile.TemporaryDirectory() as folder:
        plain, tracking = Path(folder) / "plain.toml", Path(folder) / "tracking.toml"
        # The statistics of a benchmark are nobody's.
        plain.write_text('[state]\nfolder = ""\n', encoding="utf-8")
        tracking.write_text(plain.read_text() + '[tracker]\nkind = "embedded"\n', "utf-8")
        cases = cases_of(str(plain), str(tracking))
        for _ in range(options.rounds):
            for case in cases:
                measure(case, options.seconds)
    show(cases)


if __name__ == "__main__":
    main()
