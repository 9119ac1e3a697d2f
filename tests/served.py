"""A sidecar as a real process, and streams to it, for the tests over the wire; no tests here."""

import contextlib
import json
import os
import queue
import re
import select
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2_grpc

from monitor.v1 import (
    perception_monitor_pb2,
    perception_monitor_pb2_grpc,
    recalibrator_admin_pb2_grpc,
)

ROOT = Path(__file__).parents[1]
MONITOR, ADMIN = "monitor.v1.PerceptionMonitor", "monitor.v1.RecalibratorAdmin"
PATIENCE = 10  # s; far above what anything here takes
_STARTING = 60  # s; likewise, with much to be done again

# A slice for each stream: tests that share a sidecar do not meet.
BY_STREAM = """
[metrics]
refresh_seconds = 0.2
[statistics]
slice_by = ["stream"]
max_slices = 64
"""


class Sidecar:
    """A running `serve`, and the addresses it told."""

    def __init__(
        self, folder: Path, config: str, *options: str, environment: Mapping[str, str] | None = None
    ) -> None:
        settings = folder / "sidecar.toml"
        if "[state]" not in config:
            config += '\n[state]\nfolder = ""\n'
        # A computer that runs other tests beside is no reason to leave out what is counted.
        patient = () if "shed_" in config else ("--never-shed",)
        settings.write_text(config, encoding="utf-8")
        self.log = folder / "stderr.txt"
        self.process = subprocess.Popen(
            serve_command("--config", str(settings), *patient, *options),
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=self.log.open("wb"),
        )
        output = self.process.stdout
        assert output is not None
        readable, _, _ = select.select([output], [], [], _STARTING)
        line = output.readline().decode() if readable else ""
        if not line.startswith("listening "):
            self.process.kill()
        assert line.startswith("listening "), self.log.read_text("utf-8")
        addresses = json.loads(line.removeprefix("listening "))
        self.grpc, self.http = addresses["grpc"], f"http://{addresses['http']}"
        self.channel = grpc.insecure_channel(
            self.grpc, options=[("grpc.max_receive_message_length", -1)]
        )
        self.monitor = perception_monitor_pb2_grpc.PerceptionMonitorStub(self.channel)
        self.admin = recalibrator_admin_pb2_grpc.RecalibratorAdminStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)

    def stop(self, patience: float = PATIENCE) -> float:
        """SIGTERM; the seconds until it ended, which must be in order."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(patience) == 0, self.log.read_text("utf-8")
        return time.monotonic() - began

    def end(self) -> None:
        """Make sure that nothing is left, whatever happened."""
        self.channel.close()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def stopped(self) -> tuple[int, int, int]:
        text = self.log.read_text("utf-8")
        found = re.search(r"stopped: (\d+) frames, (\d+) detections, (\d+) with", text)
        assert found, text
        frames, detections, labelled = map(int, found.groups())
        return frames, detections, labelled

    def metric(self, name: str) -> float:
        """A series without labels, as of the last refresh."""
        found = re.search(rf"^calibration_{name} (\S+)$", self.get("/metrics"), re.MULTILINE)
        assert found, name
        return float(found[1])

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.http + path, timeout=PATIENCE) as response:
            text: str = response.read().decode()
            return text

    def calibration(self, *slices: str, bins: int = 0, include_bins: bool = False):
        return self.monitor.GetCalibration(
            perception_monitor_pb2.GetCalibrationRequest(
                slices=slices, bins=bins, include_bins=include_bins
            ),
            timeout=PATIENCE,
        )

    def labelled(self, name: str):
        """Detections with truth in a slice; 0 where there is no such slice."""
        return sum(s.stages[0].n for s in self.calibration().slices if s.slice == name)

    def memory(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text("utf-8")
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found
        return 1024 * int(found[1])


def serve_command(*options: str) -> list[str]:
    ports = ["--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0"]
    # Later options win: a test may name an address of its own.
    return [sys.executable, "-m", "monitor", "serve", *ports, *options]


class Conversation:
    """A stream on which each message waits for its answer."""

    def __init__(self, method) -> None:
        self._requests: queue.Queue[object] = queue.Queue()
        self.call = method(iter(self._requests.get, None), timeout=3 * PATIENCE)

    def send(self, message) -> None:
        self._requests.put(message)

    def receive(self):
        return next(self.call)

    def ask(self, message):
        self.send(message)
        return self.receive()

    def close(self) -> None:
        """Nothing more will come; the sidecar must end the stream in order."""
        self._requests.put(None)
        assert list(self.call) == []
        assert self.call.code() is grpc.StatusCode.OK


def process_bytes(channel, name="Process"):
    """The method without a generated client: bytes out, bytes in."""
    return channel.stream_stream(f"/{MONITOR}/{name}")


def eventually(check, seconds=PATIENCE):
    end = time.monotonic() + seconds
    while not (found := check()) and time.monotonic() < end:
        time.sleep(0.05)
    return found


@contextlib.contextmanager
def running(folder: Path, config: str) -> Iterator[Sidecar]:
    """One sidecar, which stops in order with the block and has had no fault of its own."""
    sidecar = Sidecar(folder, config)
    try:
        yield sidecar
        sidecar.stop()
    finally:
        sidecar.end()
    assert "Traceback" not in sidecar.log.read_text("utf-8")


@contextlib.contextmanager
def starting(folder: Path, usual: str) -> Iterator[Callable[..., Sidecar]]:
    """Starts sidecars that end with the block; `usual` is their configuration."""
    sidecars: list[Sidecar] = []

    def begin(config: str = usual, *options: str) -> Sidecar:
        own = folder / str(len(sidecars))
        own.mkdir()
        sidecars.append(Sidecar(own, config, *options))
        return sidecars[-1]

    yield begin
    for sidecar in sidecars:
        sidecar.end()
    for sidecar in sidecars:
        assert "Traceback" not in sidecar.log.read_text("utf-8")
