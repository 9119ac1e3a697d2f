"""Traffic of detectors and labellers that is the same in every run, sent to sidecars that die in
between; a client that wants nothing lost, and what there is in the end. No tests.

The rule of that client: what was answered before an acknowledgement with `durable: true` is never
sent again; after a crash all behind the last one is, in order.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from monitor.pipeline.run_state import RUN_STATE
from monitor.recalibration.scaling import VarianceScaling
from monitor.recalibration.selection import Selection
from monitor.store.state import StateFile
from monitor.store.statistics_state import decode, parsed
from monitor.v1 import frame_pb2, recalibrator_admin_pb2, truth_pb2
from monitor.v1 import perception_monitor_pb2 as pb
from tests.promoted import active_version
from tests.served import PATIENCE, ROOT, Sidecar, serve_command
from tests.states import bits, canonical

SECOND = 10**9
BEGIN = 1_700_000_000 * SECOND
_PERIOD = SECOND // 10  # ns between two frames of a stream
_OBJECTS = 8  # seen at once
_IN_ONE_GO = 10  # frames of a stream
_LATE = 3  # rounds that labels come after their frames
SCALING = Selection(("x", "y", "z"), VarianceScaling((1.5, 2.0, 0.7)))
_PROMOTED_AFTER = 2  # rounds


def settings(folder: Path, every_seconds: float = 0.3, **pending: object) -> str:
    """A sidecar that keeps all it can in a folder.

    every_seconds  between two checkpoints
    """
    lines = "\n".join(f"{name} = {str(value).lower()}" for name, value in pending.items())
    return f"""
[server]
shed_lag_seconds = 0.0
shed_rows = 0
[metrics]
refresh_seconds = 0.2
[statistics]
slice_by = ["class", "stream"]
[pending]
partition_minutes = 0.1
{lines}
[state]
folder = '{folder}/state'
every_seconds = {every_seconds}
[drift]
hours_between_false_pages = 1e-4
reference_seconds = 2.0
[promotion]
mode = 'manual'
"""


@dataclass(frozen=True, slots=True)
class Frames:
    """Sent on one Process stream in one go."""

    header: frame_pb2.StreamHeader
    frames: tuple[frame_pb2.Frame, ...]

    def __len__(self) -> int:
        return len(self.frames)


@dataclass(frozen=True, slots=True)
class Labels:
    """Sent on one ReportGroundTruth stream in one go."""

    truths: tuple[truth_pb2.FrameTruth, ...]

    def __len__(self) -> int:
        return len(self.truths)


@dataclass(frozen=True, slots=True)
class Promotion:
    """Of the recalibrator that acts from then on; comes where all before it is durable."""

    document: str

    def __len__(self) -> int:
        return 1


Group = Frames | Labels | Promotion


@dataclass(frozen=True, slots=True)
class Traffic:
    """All operations, in order."""

    groups: tuple[Group, ...]

    @property
    def operations(self) -> int:
        """Messages, without headers."""
        return sum(map(len, self.groups))

    def through(self, groups: int) -> int:
        """Counts the operations of the first groups."""
        return sum(map(len, self.groups[:groups]))


# ---- what is sent


@dataclass(slots=True)
class _Detector:
    """Objects with errors of their own, as tracks; what was true of them, by frame."""

    header: frame_pb2.StreamHeader
    deviation: float
    chance: np.random.Generator
    frames: int = 0
    centre: np.ndarray = field(init=False)
    error: np.ndarray = field(init=False)
    truth: dict[int, np.ndarray] = field(default_factory=dict)
    classes: dict[int, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        k = len(self.header.dimensions)
        self.centre = np.arange(_OBJECTS)[:, None] * 20.0 + np.zeros(k)
        self.error = np.zeros((_OBJECTS, k))

    def frame(self, *, inline: bool) -> frame_pb2.Frame:
        """The next one; a detection in ten is of no use, another in ten is seen by none."""
        number, names = self.frames, len(self.header.class_names)
        self.frames += 1
        k = self.centre.shape[1]
        self.error = 0.6 * self.error + 0.8 * self.chance.normal(size=self.error.shape)
        truth = self.centre + 0.1 * number
        mean = truth + self.deviation * self.error
        self.truth[number] = truth
        self.classes[number] = self.chance.integers(names, size=_OBJECTS)
        frame = frame_pb2.Frame(frame_id=number, stamp_ns=BEGIN + number * _PERIOD)
        for i in range(_OBJECTS):
            bad = self.chance.random() < 0.05
            one = frame.detections.add(
                id=100 * number + i,
                class_index=i % names,
                mean=mean[i],
                covariance=np.full(k, -1.0 if bad else 0.04),
                upstream_track_id=_OBJECTS * (number // 25) + i,
            )
            if names > 1:
                one.class_probabilities.extend(self.chance.dirichlet(np.ones(names)))
            if inline and i % 2:
                one.ground_truth.extend(truth[i])
        return frame

    def by_id(self, number: int, *, complete: bool, revision: int = 0) -> truth_pb2.FrameTruth:
        """Labels of most detections of a frame."""
        told = truth_pb2.FrameTruth(
            stream=self.header.stream, frame_id=number, complete=complete, revision=revision
        )
        shift = 0.05 * revision
        for i in range(_OBJECTS - 2):
            told.detections.add(
                detection_id=100 * number + i,
                ground_truth=self.truth[number][i] + shift,
                ignore=i == 1,
                class_index=int(self.classes[number][i]),
                object_id=i,
            )
        return told

    def as_objects(self, number: int, *, complete: bool, revision: int = 0) -> truth_pb2.FrameTruth:
        """The labeller's own objects, and one that no detection is of."""
        told = truth_pb2.FrameTruth(
            stream=self.header.stream, frame_id=number, complete=complete, revision=revision
        )
        shift, names = 0.05 * revision, len(self.header.class_names)
        for i in range(_OBJECTS - 1):
            told.objects.add(
                object_id=1000 + i,
                class_index=i % names,
                ground_truth=self.truth[number][i] + shift,
                covariance=np.full(self.centre.shape[1], 1e-3) if i % 3 == 0 else (),
                ignore=i == 2,
            )
        told.objects.add(object_id=1999, class_index=0, ground_truth=self.truth[number][0] + 1000.0)
        return told


def traffic(seed: int = 1, rounds: int = 12) -> Traffic:
    """Three detectors, and labels of all sorts that come late."""
    chance = np.random.default_rng(seed)
    detectors = [
        _Detector(_header("lidar", "xyz", ("car", "truck")), 0.25, chance),
        _Detector(_header("camera", "xy", ("car", "person", "bus")), 0.15, chance),
        _Detector(_header("radar", "xy", ("car",)), 0.3, chance),
    ]
    groups: list[Group] = []
    told: list[truth_pb2.FrameTruth] = []
    for number in range(rounds):
        for detector in detectors:
            # Of the radar, some truth comes at once.
            inline = detector.header.stream == "radar" and number % 2 == 0
            frames = tuple(detector.frame(inline=inline) for _ in range(_IN_ONE_GO))
            groups.append(Frames(detector.header, frames))
        if number >= _LATE:
            labels = _labels_of(detectors, number - _LATE, chance, told)
            groups.append(Labels(tuple(labels)))
        if number == _PROMOTED_AFTER + _LATE:
            groups.append(Promotion(SCALING.to_json()))
    return Traffic(tuple(groups))


def _labels_of(
    detectors: Sequence[_Detector],
    number: int,
    chance: np.random.Generator,
    told: list[truth_pb2.FrameTruth],
) -> list[truth_pb2.FrameTruth]:
    """Of the frames of one round, shuffled; some twice, some revised, some of no frame."""
    labels = []
    for detector in detectors:
        for at in range(_IN_ONE_GO):
            frame_id = number * _IN_ONE_GO + at
            drawn = chance.random()
            if drawn < 0.1:
                continue
            made = detector.as_objects if drawn < 0.5 else detector.by_id
            labels.append(made(frame_id, complete=bool(chance.random() < 0.5)))
    chance.shuffle(labels)
    told += labels
    by_stream = {detector.header.stream: detector for detector in detectors}
    for _ in range(3):
        labels.append(told[int(chance.integers(len(told)))])
        earlier = told[int(chance.integers(len(told)))]
        detector = by_stream[earlier.stream]
        made = detector.as_objects if chance.random() < 0.5 else detector.by_id
        revised = made(earlier.frame_id, complete=True, revision=1 + number)
        labels.append(revised)
        told.append(revised)
    labels.append(truth_pb2.FrameTruth(stream="lidar", frame_id=10**6 + number))
    labels[-1].detections.add(detection_id=1, ground_truth=[0.0, 0.0, 0.0])
    return labels


def _header(stream: str, dimensions: str, classes: Sequence[str]) -> frame_pb2.StreamHeader:
    return frame_pb2.StreamHeader(
        stream=stream,
        dimensions=[frame_pb2.Dimension(name=name, unit="m") for name in dimensions],
        class_names=classes,
    )


# ---- the client


@dataclass(slots=True)
class Client:
    """Sends the traffic, from where it must.

    durable       operations that never need be sent again
    acknowledged  labels whose acknowledgement was durable, by their position
    fleeting      acknowledgements that were not
    """

    traffic: Traffic
    durable: int = 0
    acknowledged: dict[int, truth_pb2.FrameTruth] = field(default_factory=dict)
    fleeting: int = 0

    def send(self, sidecar: Sidecar, until: int | None = None) -> bool:
        """All that is left; False where the sidecar died of it.

        until  so many operations, at least
        """
        at = 0
        try:
            for group in self.traffic.groups:
                begins, at = at, at + len(group)
                if until is not None and begins >= until:
                    return True
                skip = max(0, self.durable - begins)
                if skip < len(group):
                    self._send(sidecar, group, begins, skip)
        except grpc.RpcError as error:
            assert isinstance(error, grpc.Call)
            gone = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
            assert error.code() in gone, error
            return False
        return True

    def _send(self, sidecar: Sidecar, group: Group, begins: int, skip: int) -> None:
        match group:
            case Frames():
                send_frames(sidecar, group, skip)
            case Labels():
                answers = send_labels(sidecar, group.truths[skip:])
                for at, answer in enumerate(answers, begins + skip):
                    if answer.durable:
                        self.durable = at + 1
                        self.acknowledged[at] = group.truths[at - begins]
                    else:
                        self.fleeting += 1
            case Promotion():
                assert self.durable == begins
                if active_version(sidecar) != SCALING.version:
                    request = recalibrator_admin_pb2.PromoteRequest(
                        actor="test", document=group.document
                    )
                    sidecar.admin.Promote(request, timeout=PATIENCE)
                self.durable = begins + 1


def send_frames(sidecar: Sidecar, group: Frames, skip: int = 0) -> None:
    """Every one is answered with all its detections."""
    requests = [pb.ProcessRequest(header=group.header)]
    requests += [pb.ProcessRequest(frame=frame) for frame in group.frames[skip:]]
    answers = sidecar.monitor.Process(iter(requests), timeout=6 * PATIENCE)
    header = next(answers).header
    assert header.accepted, header.notice
    count = 0
    for frame, answer in zip(group.frames[skip:], answers, strict=True):
        assert len(answer.frame.detections) == len(frame.detections)
        count += 1
    assert count == len(group) - skip


def send_labels(
    sidecar: Sidecar, truths: Sequence[truth_pb2.FrameTruth]
) -> Iterator[pb.ReportGroundTruthResponse]:
    """Answers in order."""
    requests = (pb.ReportGroundTruthRequest(truth=truth) for truth in truths)
    answers = sidecar.monitor.ReportGroundTruth(requests, timeout=6 * PATIENCE)
    for truth, answer in zip(truths, answers, strict=True):
        assert (answer.stream, answer.frame_id) == (truth.stream, truth.frame_id)
        yield answer


# ---- what there is in the end


@dataclass(frozen=True, slots=True)
class End:
    """What must be the same however often it was killed.

    statistics  every bit of them
    fates       detections by what became of them, and those that wait by partition
    labels      by what became of them, without those that changed nothing
    shares      detections of each slice: predicted, labelled, gated, near the gate
    streams     their watermarks and latest stamps
    """

    statistics: Any
    fates: Mapping[str, int]
    labels: Mapping[str, int]
    shares: Any
    streams: Any


# Labels that changed something. What came again, or is of no frame, may be told more than once.
_TOLD = ("matched", "ignored", "missed", "unassigned")


def ended(sidecar: Sidecar, folder: Path) -> End:
    """Ends it in order, and looks at what it leaves."""
    sidecar.stop()
    contents = StateFile(folder / "state").load(lambda contents: contents).value
    assert contents is not None
    run = RUN_STATE.read(contents.parts["run"])
    return End(
        bits(canonical(parsed(contents.parts["statistics"]).state)),
        {
            **{name: count for name, count in run.account.items() if count},
            **{f"waiting_in_{partition}": count for partition, count in run.on_disk},
        },
        {name: getattr(run.labels, name) for name in _TOLD},
        {
            (one.space.names, one.key): (one.predicted, one.labelled, one.gated, one.near_gate)
            for one in run.shares
        },
        {one.header.stream: (one.watermark_ns, one.latest_ns) for one in run.streams},
    )


def statistics(sidecar: Sidecar) -> Any:
    """Every bit, whatever the order of slices."""
    parts = sidecar.monitor.ExportStatistics(pb.ExportStatisticsRequest(), timeout=PATIENCE)
    return bits(canonical(decode([part.part for part in parts]).state))


def new_labels(sidecar: Sidecar, labels: Iterable[truth_pb2.FrameTruth]) -> int:
    """Counts the labels that it takes for new ones as they come once more: those were lost."""
    new = 0
    for answer in send_labels(sidecar, list(labels)):
        new += sum(getattr(answer.account, name) for name in _TOLD) + answer.retracted
    return new


def undisturbed_run(folder: Path, config: str, sent: Traffic) -> End:
    """What there is in the end where nothing dies."""
    sidecar = Sidecar(folder, config)
    try:
        client = Client(sent)
        assert client.send(sidecar), sidecar.log.read_text("utf-8")
        assert client.durable == sent.operations
        return ended(sidecar, folder)
    finally:
        sidecar.end()


# ---- the killing


@contextlib.contextmanager
def killed_after(sidecar: Sidecar, seconds: float) -> Iterator[None]:
    """kill -9 so many seconds from now, or as soon as the block ends if that is earlier."""
    timer = threading.Timer(seconds, sidecar.process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        sidecar.process.kill()
        sidecar.process.wait(PATIENCE)
        sidecar.end()
    no_fault(sidecar)


def killed_as_it_starts(folder: Path, config: str, seconds: float) -> None:
    """A sidecar that lives so long, ready or not."""
    settings = folder / "sidecar.toml"
    settings.write_text(config, encoding="utf-8")
    with (folder / "stderr.txt").open("wb") as log:
        process = subprocess.Popen(
            serve_command("--config", str(settings)),
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    process.kill()
    process.wait(PATIENCE)


def no_fault(sidecar: Sidecar) -> None:
    """Nothing went wrong, and all that was to be done again was."""
    text = sidecar.log.read_text("utf-8")
    assert "Traceback" not in text, text
    again = re.search(r"entries done again, (\d+) not", text)
    assert again is None or again[1] == "0", text
