"""A sidecar that sees the demo's drive, another with all that is optional, and a Prometheus beside
each, one of them with every rule; no tests.
"""

import asyncio
import contextlib
import itertools
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from monitor.commands.demo.run import Player, config_text
from monitor.commands.demo.story import Plan
from monitor.frames.frame import Header
from monitor.frames.space import plain_space
from monitor.recalibration.class_scaling import Temperature
from monitor.recalibration.rejection import RejectedBy, Rejection
from monitor.recalibration.selection import ClassSelection
from monitor.v1 import perception_monitor_pb2 as pb
from monitor.v1 import truth_pb2
from monitor.wire.client_messages import OutgoingFrame, encode_frame, encode_header
from tests.deploy.scraping import ALERT_FILES, RECORDING, Prometheus, free_port
from tests.served import Conversation, Sidecar, process_bytes
from tests.trackers import tracking

SPACE, CLASSES = plain_space(("x", "y", "z"), "m"), ("car", "truck", "bus")
ROWS = 20  # of a frame
# s; how often metrics are made, in place of seconds: all else is shortened, too.
_REFRESH = 0.25
# s after the drive, for the last scrape and the rules of it.
_SETTLED = 2.0
# s of the sidecar with all that is optional.
_SHORT = 8.0


@contextlib.contextmanager
def both(folder: Path, plan: Plan) -> Iterator[tuple["Watched", "Watched"]]:
    """Watches the demo, and beside it a sidecar with all that is optional."""
    for name in ("demo", "options"):
        (folder / name).mkdir()
    with contextlib.ExitStack() as running, ThreadPoolExecutor(1) as beside:
        options = beside.submit(running.enter_context, with_options(folder / "options"))
        demo = running.enter_context(demonstrated(folder / "demo", plan))
        yield demo, options.result()


@dataclass(frozen=True, slots=True)
class Watched:
    """Holds a Prometheus, and when what it has seen happened, in seconds since 1970.

    exposition  what its sidecar answered at last
    lines       of the demo, with the moment of each
    """

    prometheus: Prometheus
    exposition: str
    began: float
    ended: float
    lines: tuple[tuple[float, str], ...] = ()

    def moment(self, word: str) -> float:
        """Finds the moment of the first line with this word."""
        return next(at for at, line in self.lines if word in line)


@contextlib.contextmanager
def demonstrated(folder: Path, plan: Plan) -> Iterator[Watched]:
    """Watches all that the demo brings: fault, promotion, the way home."""
    port = free_port()
    config = keeping(config_text(plan.speed), folder)
    rules = (sooner(folder), *ALERT_FILES)
    with _sidecar(folder, config, port) as sidecar, _prometheus(folder, port, *rules) as prometheus:
        began, lines = time.time(), []
        player = Player(plan, sidecar.grpc, lambda line: lines.append((time.time(), line)))
        asyncio.run(player.run())
        time.sleep(_SETTLED)
        yield Watched(prometheus, sidecar.get("/metrics"), began, time.time(), tuple(lines))


@contextlib.contextmanager
def with_options(folder: Path) -> Iterator[Watched]:
    """Watches a tracker elsewhere, class probabilities with a recalibrator, a gate, and uploads."""
    port = free_port()
    of_classes = folder / "classes.json"
    flagging = Rejection(RejectedBy.ENTROPY, 0.7, 0.05, 0.04, 0.1, 1000)
    of_classes.write_text(ClassSelection(CLASSES, Temperature(2.0), flagging).to_json(), "utf-8")
    with tracking() as tracker:
        config = keeping(
            f'[tracker]\nkind = "grpc"\naddress = "{tracker.address}"\nbackoff_seconds = 0.2\n'
            f'[recalibration]\nclass_recalibrator = "{of_classes}"\n[promotion]\n'
            f'[fleet]\nupload = "file://{folder}/up/{{vehicle}}/{{epoch}}/{{sequence}}.state"\n'
            'vehicle = "car"\nevery_minutes = 0.02\n',
            folder,
        )
        with _sidecar(folder, config, port) as sidecar, _prometheus(folder, port) as prometheus:
            began = time.time()
            _send_options(sidecar, _SHORT)
            time.sleep(_SETTLED)
            yield Watched(prometheus, sidecar.get("/metrics"), began, time.time())


def _send_options(sidecar: Sidecar, seconds: float) -> None:
    """Sends ten frames a second of a stream with class probabilities and all its truth, and of one
    whose truth are objects in the labeller's own ids, which a gate matches.
    """
    random = np.random.default_rng(5)
    lidar, radar = (_opened(sidecar, name) for name in ("lidar", "radar"))
    labels = Conversation(sidecar.monitor.ReportGroundTruth)
    # An hour of capture time before, against which the window of now is held.
    now_ns = time.time_ns()
    for before in range(360, 0, -1):
        past = _frame(10**6 - before, now_ns - before * 10**10, random)
        lidar.ask(encode_frame(_of_classes(past, random)))
    end = time.monotonic() + seconds
    for number in itertools.takewhile(lambda _: time.monotonic() < end, itertools.count()):
        frame = _frame(number, time.time_ns(), random)
        lidar.ask(encode_frame(_of_classes(frame, random)))
        radar.ask(encode_frame(frame))
        told = truth_pb2.FrameTruth(stream="radar", frame_id=number, complete=True)
        for row, place in enumerate(frame.mean + 0.3):
            told.objects.add(object_id=row, class_index=0, ground_truth=place)
        labels.ask(pb.ReportGroundTruthRequest(truth=told))
        time.sleep(0.1)
    for stream in (lidar, radar, labels):
        stream.close()


def _of_classes(frame: OutgoingFrame, random: np.random.Generator) -> OutgoingFrame:
    """Adds class probabilities and all truth to a frame."""
    opinions = random.dirichlet(np.full(len(CLASSES), 0.7), size=(ROWS, 2))
    probabilities = opinions.mean(axis=1)
    return replace(
        frame,
        class_index=probabilities.argmax(axis=1),
        truth=frame.mean + random.normal(scale=0.5, size=frame.mean.shape),
        class_probabilities=opinions,
        true_class=np.array([random.choice(len(CLASSES), p=row) for row in probabilities]),
    )


def _opened(sidecar: Sidecar, name: str) -> Conversation:
    stream = Conversation(process_bytes(sidecar.channel))
    stream.ask(encode_header(Header(name, SPACE, CLASSES)))
    return stream


def _frame(number: int, stamp_ns: int, random: np.random.Generator) -> OutgoingFrame:
    """Makes a frame of objects that stand far from each other."""
    places = 10.0 * np.arange(ROWS * SPACE.k).reshape(ROWS, SPACE.k)
    return OutgoingFrame(
        frame_id=number,
        stamp_ns=stamp_ns,
        id=np.arange(ROWS, dtype=np.uint64) + np.uint64(number * ROWS),
        class_index=np.zeros(ROWS, np.int64),
        mean=places + random.normal(scale=0.5, size=places.shape),
        covariance=np.full((ROWS, SPACE.k), 0.25),
    )


@contextlib.contextmanager
def _sidecar(folder: Path, config: str, port: int) -> Iterator[Sidecar]:
    sidecar = Sidecar(folder, config, "--http-address", f"127.0.0.1:{port}")
    try:
        yield sidecar
    finally:
        sidecar.end()


@contextlib.contextmanager
def _prometheus(folder: Path, port: int, *rules: Path) -> Iterator[Prometheus]:
    prometheus = Prometheus(folder, {"demo": port}, rules)
    try:
        yield prometheus
    finally:
        prometheus.stop()


def sooner(folder: Path) -> Path:
    """Writes recording rules whose hour is made of the last six times five seconds, whose day of
    twenty-four, not of what was recorded at full ten minutes and hours: a short drive sees none.
    """
    text = RECORDING.read_text("utf-8")
    # Quoted, or the Prometheus here makes it twice a second, too often for so many series.
    text = re.sub(r"interval: \d+m", 'interval: "2s"', text)
    text = text.replace("[59m59s999ms:10m]", "[30s:5s]").replace("[23h59m59s999ms:1h]", "[2m:5s]")
    rules = folder / "shortened"
    rules.mkdir()
    (rules / RECORDING.name).write_text(text, "utf-8")
    return rules / RECORDING.name


def keeping(config: str, folder: Path) -> str:
    """Makes a configuration count everything, keep it on disk in this folder, and tell it often."""
    settings: dict[str, dict[str, object]] = {
        "server": {"shed_lag_seconds": 0.0, "shed_rows": 0},  # a busy computer is no reason
        "state": {"folder": folder / "kept", "every_seconds": 1.0},
        "metrics": {"refresh_seconds": _REFRESH},
    }
    sections = dict(re.findall(r"^\[([\w.]+)\]\n((?:(?!\[).*\n)*)", config, flags=re.MULTILINE))
    for section, values in settings.items():
        lines = sections.get(section, "").splitlines()
        told = [line for line in lines if line.split(" = ")[0] not in values]
        told += [
            f'{key} = "{value}"' if isinstance(value, Path) else f"{key} = {value}"
            for key, value in values.items()
        ]
        sections[section] = "".join(f"{line}\n" for line in told)
    return "\n".join(f"[{name}]\n{lines}" for name, lines in sections.items())
