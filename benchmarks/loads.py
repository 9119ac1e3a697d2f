"""A sidecar as a process of its own, and sensors that keep a pace, for the benchmarks that load it.

What a sidecar says of itself is read from /proc and from its metrics.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import numpy as np

from benchmarks.scene import CLASSES, RATE, SPACE
from monitor.frames.frame import Header
from monitor.wire.client_messages import encode_header
from monitor.wire.records import varint

SENSORS = 6
PROCESS = "/monitor.v1.PerceptionMonitor/Process"
TRUTH = "/monitor.v1.PerceptionMonitor/ReportGroundTruth"
OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
PATIENCE = 10.0  # s for an answer to come at all
MEGABYTE = 1e6


@dataclass(slots=True)
class Running:
    """A sidecar that serves.

    stopping  s that it took from SIGTERM to its end; NaN before
    """

    process: subprocess.Popen[str]
    grpc: str
    http: str
    log: Path
    stopping: float = math.nan

    def rss(self) -> float:
        """Resident MB."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / MEGABYTE

    def peak(self) -> float:
        """The most resident MB since the start."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024 / MEGABYTE

    def descriptors(self) -> int:
        return sum(1 for _ in Path(f"/proc/{self.process.pid}/fd").iterdir())

    def cpu(self) -> float:
        """Seconds of processor so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def metrics(self) -> dict[str, float]:
        """All series, by name and labels, without the prefix; empty where none came in time."""
        if not self.http:
            return {}
        try:
            with urllib.request.urlopen(f"http://{self.http}/metrics", timeout=PATIENCE) as answer:
                text = answer.read().decode()
        except (urllib.error.URLError, TimeoutError):
            return {}
        lines = (line.rpartition(" ") for line in text.splitlines() if line[:1] not in ("#", ""))
        return {name.removeprefix("calibration_"): float(value) for name, _, value in lines}

    def faults(self) -> int:
        """Lines of the log that tell of faults of its own."""
        return self.log.read_text("utf-8").count("Traceback")


@contextlib.contextmanager
def serving(folder: Path, config: str, *, echo: bool = False) -> Iterator[Running]:
    """A sidecar whose state is in the folder; it is told to stop at the end of the block.

    echo  a server instead that sends back what it gets: what gRPC and the machine cost alone
    """
    settings, log = folder / "sidecar.toml", folder / "stderr.txt"
    settings.write_text(f'{config}\n[state]\nfolder = "state"\n', encoding="utf-8")
    command = [sys.executable, "-m", "monitor", "serve", "--config", str(settings)]
    command += ["--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0"]
    if echo:
        command = [sys.executable, str(Path(__file__).with_name("echo_server.py"))]
    path = str(Path(__file__).parents[1])
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("listening "), log.read_text("utf-8")
        addresses = json.loads(line.removeprefix("listening "))
        running = Running(process, addresses["grpc"], addresses.get("http", ""), log)
        yield running
        began = time.perf_counter()
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
        running.stopping = time.perf_counter() - began
    finally:
        process.kill()
        process.wait(30)


def framed(number: int, stamp_ns: int, bodies: list[bytes]) -> bytes:
    """ProcessRequest with the frame of that number."""
    body = bodies[number % len(bodies)]
    head = b"\x09" + number.to_bytes(8, "little")
    head += b"\x11" + stamp_ns.to_bytes(8, "little", signed=True)
    return b"\x12" + varint(len(head) + len(body)) + head + body


@dataclass(slots=True)
class Sensor:
    """A stream that sends a frame each 1/rate s, and has one at a time on its way.

    answered  told of each frame that was: its number
    took      s from when a frame was due to its answer
    skipped   frames that were not sent, since the one before was not answered in time
    wrong     answers that are not of the frame that was sent
    """

    name: str
    bodies: list[bytes]
    rate: float = RATE
    answered: Callable[[int], None] = lambda _number: None
    took: list[float] = field(default_factory=list)
    frames: int = 0
    skipped: int = 0
    wrong: int = 0

    def taken(self) -> list[float]:
        """What was measured since this was asked last."""
        took, self.took = self.took, []
        return took

    async def run(self, channel: grpc.aio.Channel, ending: asyncio.Event, offset: float) -> None:
        """Until the event; the first frame is due `offset` s from now."""
        call = channel.stream_stream(PROCESS)()
        await call.write(encode_header(Header(self.name, SPACE, CLASSES)))
        await asyncio.wait_for(call.read(), PATIENCE)
        due, base = time.perf_counter() + offset, time.time_ns()
        began = due
        while not ending.is_set():
            now = time.perf_counter()
            if now > due + 1 / self.rate:
                # As a detector does that is a frame behind: it leaves some out.
                self.skipped += int((now - due) * self.rate)
                due = now
            await asyncio.sleep(max(0.0, due - now))
            number = self.frames + 1
            data = framed(number, base + round(1e9 * (due - began)), self.bodies)
            await call.write(data)
            reply = await asyncio.wait_for(call.read(), 3 * PATIENCE)
            self.took.append(time.perf_counter() - due)
            # The frame's number is the first field of the answer, behind two tags and a length.
            self.wrong += number.to_bytes(8, "little") not in bytes(reply[:32])
            self.frames = number
            due += 1 / self.rate
            self.answered(number)
        await call.done_writing()


def percentile(values: list[float], share: float) -> float:
    """NaN of nothing."""
    return float(np.quantile(values, share)) if values else float("nan")
