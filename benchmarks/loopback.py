"""Six sensors × 20 Hz × 200 detections of K = 7 over loopback: the sidecar beside a raw echo.

Prints, for each case in turn and in the same run: server CPU at that pace, p50 and p99 of the
reply, and from a closed loop the detections a second that one server core carries. Absolute
numbers belong to the machine that is named; the ratios to the echo travel better.

    python benchmarks/loopback.py [--seconds 8] [--rounds 2]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np

from monitor.calibration.space import plain_space
from monitor.edges.records import read_varint, varint
from monitor.edges.requests import OutgoingFrame, encode_frame, encode_header
from monitor.frames import Header
from monitor.recalibration.selection import Selection
from monitor.recalibration.variance_scaling import VarianceScaling
from monitor.v1 import recalibrator_admin_pb2

SENSORS, RATE, DETECTIONS, K = 6, 20.0, 200, 7
NAMES = ("x", "y", "z", "l", "w", "h", "yaw")
METHOD = "/monitor.v1.PerceptionMonitor/Process"
WINDOW = 4  # frames on their way per stream in the closed loop


@dataclass
class Case:
    name: str
    command: list[str]
    truth: bool = False
    scaled: bool = False
    cpu: list[float] = field(default_factory=list)
    p50: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)
    per_core: list[float] = field(default_factory=list)


def payload(truth: bool) -> bytes:
    """The detections of a frame, encoded; the frame's own numbers come in front of them."""
    rng = np.random.default_rng(0)
    a = rng.normal(size=(DETECTIONS, K, K))
    covariance = (a @ a.transpose(0, 2, 1) + np.eye(K)) * 0.01
    mean = rng.uniform(-50, 50, size=(DETECTIONS, K))
    error = np.einsum("nij,nj->ni", np.linalg.cholesky(covariance), rng.normal(size=mean.shape))
    frame = OutgoingFrame(
        frame_id=1,
        stamp_ns=1,
        id=np.arange(DETECTIONS, dtype=np.uint64),
        class_index=rng.integers(0, 3, DETECTIONS),
        mean=mean,
        covariance=covariance,
        truth=mean + error if truth else None,
    )
    encoded = encode_frame(frame)
    _, frame_at = read_varint(encoded, 1)
    # Behind frame_id and stamp_ns, 9 bytes each.
    return encoded[frame_at + 18 :]


def message(number: int, body: bytes) -> bytes:
    head = b"\x09" + number.to_bytes(8, "little") + b"\x11" + (number * 10**7).to_bytes(8, "little")
    return b"\x12" + varint(len(head) + len(body)) + head + body


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def sensor(
    channel: grpc.aio.Channel, index: int, body: bytes, seconds: float, pace: bool
) -> tuple[int, list[float]]:
    """Frames answered, and how long each answer took."""
    call = channel.stream_stream(METHOD)()
    header = Header(f"sensor{index}", plain_space(NAMES, "m"), ("car", "pedestrian", "cyclist"))
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
            data = message(base + len(sent), body)
            sent.append(time.perf_counter())
            await call.write(data)
            await receive(1)
    else:
        while time.perf_counter() < end:
            data = message(base + len(sent), body)
            sent.append(time.perf_counter())
            await call.write(data)
            if len(sent) - len(took) >= WINDOW:
                await receive(1)
        await receive(len(sent) - len(took))
    await call.done_writing()
    return len(took), took


async def drive(
    address: str, body: bytes, seconds: float, pace: bool, document: str | None
) -> tuple[int, list[float]]:
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        if document is not None:
            request = recalibrator_admin_pb2.PromoteRequest(document=document, actor="benchmark")
            promote = channel.unary_unary("/monitor.v1.RecalibratorAdmin/Promote")
            await promote(request.SerializeToString())
        results = await asyncio.gather(
            *(sensor(channel, i, body, seconds, pace) for i in range(SENSORS))
        )
    return sum(count for count, _ in results), [t for _, took in results for t in took]


def measure(case: Case, seconds: float) -> None:
    body = payload(case.truth)
    scaling = Selection(NAMES, VarianceScaling((1.1,) * K))
    document = scaling.to_json() if case.scaled else None
    server = subprocess.Popen(
        case.command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert server.stdout is not None
        address = json.loads(server.stdout.readline().removeprefix("listening "))["grpc"]
        asyncio.run(drive(address, body, 1.0, True, document))
        before = cpu_seconds(server.pid)
        began = time.perf_counter()
        _, took = asyncio.run(drive(address, body, seconds, True, None))
        case.cpu.append(100 * (cpu_seconds(server.pid) - before) / (time.perf_counter() - began))
        ordered = sorted(took)
        case.p50.append(1e3 * ordered[len(ordered) // 2])
        case.p99.append(1e3 * ordered[int(len(ordered) * 0.99)])
        before = cpu_seconds(server.pid)
        frames, _ = asyncio.run(drive(address, body, seconds, False, None))
        case.per_core.append(frames * DETECTIONS / (cpu_seconds(server.pid) - before))
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(30)


def machine() -> str:
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return f"{model}, {os.cpu_count()} cores, Python {platform.python_version()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    here = Path(__file__).parent
    serve = [sys.executable, "-m", "monitor", "serve", "--log-level", "error"]
    serve += ["--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0"]
    echo = [sys.executable, str(here / "echo_server.py")]
    cases = [
        Case("raw echo", echo),
        Case("sidecar, identity", serve),
        Case("sidecar, scaling", serve, scaled=True),
        Case("raw echo, with truth", echo, truth=True),
        Case("sidecar, identity, truth in every detection", serve, truth=True),
        Case("sidecar, scaling, truth in every detection", serve, truth=True, scaled=True),
    ]
    print(f"{machine()}; load {os.getloadavg()[0]:.1f}")
    offered = SENSORS * RATE * DETECTIONS
    print(f"{SENSORS} sensors x {RATE:g} Hz x {DETECTIONS} detections, K = {K}: {offered:g}/s")
    print(f"{len(message(1, payload(False)))} bytes a frame, {options.rounds} rounds in turn")
    for _ in range(options.rounds):
        for case in cases:
            measure(case, options.seconds)
    print(f"{'':<46}{'CPU %':>7}{'p50 ms':>8}{'p99 ms':>8}{'det/s/core':>12}{'echo/this':>10}")
    floor = cases[0]
    for case in cases:
        floor = case if case.name.startswith("raw echo") else floor
        values = [statistics.median(v) for v in (case.cpu, case.p50, case.p99, case.per_core)]
        ratio = statistics.median(floor.per_core) / values[3]
        print(
            f"{case.name:<46}{values[0]:7.1f}{values[1]:8.2f}{values[2]:8.2f}"
            f"{values[3]:12.0f}{ratio:10.2f}"
        )


if __name__ == "__main__":
    main()
