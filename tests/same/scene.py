"""Simulates what both trees are given: recorded files, and the messages of a live drive.

Everything comes from one seed and fixed stamps. Nothing here imports the code that is compared,
but for the generated messages.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from monitor.v1 import frame_pb2, truth_pb2
from monitor.v1 import perception_monitor_pb2 as pb

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

SECOND = 10**9
BEGIN = 1_700_000_000 * SECOND
PERIOD = SECOND // 10  # ns between two frames of a stream
CLASSES = ("car", "pedestrian", "cyclist")
DIMENSIONS = ("x", "y", "z", "yaw")
DEVIATION = np.array([0.3, 0.25, 0.1, 0.05])  # m, m, m, rad
FAULT_FRAME = 70  # from here on the reported variances are a quarter of the true ones

_OBJECTS = 9  # seen at once
_LIFE = 25  # frames after which an object is replaced
_CORRELATION = 0.6  # of the errors of successive frames
_LATE = 12  # frames that labels come after their frame


@dataclass(frozen=True, slots=True)
class Seen:
    """The n detections of one frame in DIMENSIONS, with what is true of them.

    objects        (n,) ids of the true objects, -1 for false detections
    classes        (n,) true classes
    probabilities  (n, C) as a detector that is too sure of itself reports them
    """

    number: int
    objects: IntArray
    classes: IntArray
    score: FloatArray
    mean: FloatArray
    covariance: FloatArray
    truth: FloatArray
    probabilities: FloatArray


def simulate(seed: int, frames: int) -> list[Seen]:
    """Draws the frames of one sensor: objects on straight lines, errors correlated in time."""
    chance = np.random.default_rng(seed)
    return list(_frames(chance, frames))


def _frames(chance: np.random.Generator, frames: int) -> Iterator[Seen]:
    start = np.empty((_OBJECTS, 4))
    speed = np.zeros((_OBJECTS, 4))
    error = np.empty((_OBJECTS, 4))
    for number in range(frames):
        ages = (number + 3 * np.arange(_OBJECTS)) % _LIFE
        for i in np.flatnonzero((ages == 0) | (number == 0)).tolist():
            start[i] = [*chance.uniform(-40, 40, 2), chance.uniform(-1, 1), chance.uniform(-3, 3)]
            start[i, 0] += 60 * i
            speed[i, :2] = chance.uniform(-0.8, 0.8, 2)
            error[i] = chance.normal(size=4)
        fresh = chance.normal(size=error.shape)
        error[:] = _CORRELATION * error + np.sqrt(1 - _CORRELATION**2) * fresh
        objects = np.arange(_OBJECTS) + 100 * ((number + 3 * np.arange(_OBJECTS)) // _LIFE)
        classes = np.arange(_OBJECTS) % len(CLASSES)
        truth = start + speed * ages[:, None]
        yield _seen(chance, number, objects, classes, truth, error)


def _seen(
    chance: np.random.Generator,
    number: int,
    objects: IntArray,
    classes: IntArray,
    truth: FloatArray,
    error: FloatArray,
) -> Seen:
    kept = chance.random(objects.size) < 0.9
    n = int(np.count_nonzero(kept)) + 1  # the last one is false
    objects = np.append(objects[kept], -1)
    classes = np.append(classes[kept], number % len(CLASSES))
    truth = np.vstack([truth[kept], chance.uniform(-40, 40, 4) * [1, 1, 0.02, 0.05]])
    deviation = DEVIATION * chance.uniform(0.5, 2, (n, 1))
    correlation = np.eye(4)
    correlation[0, 1] = correlation[1, 0] = 0.4
    root = np.linalg.cholesky(correlation)
    mean = truth + deviation * (np.vstack([error[kept], np.zeros(4)]) @ root.T)
    covariance = deviation[:, :, None] * correlation * deviation[:, None, :]
    if number >= FAULT_FRAME:
        covariance = covariance / 4
    logits = 3.0 * np.eye(len(CLASSES))[classes] + 2.0 * chance.normal(size=(n, len(CLASSES)))
    weight = np.exp(logits)
    return Seen(
        number=number,
        objects=objects,
        classes=classes,
        score=chance.uniform(0.2, 1, n).round(3),
        mean=mean,
        covariance=covariance,
        truth=truth,
        probabilities=weight / weight.sum(axis=1, keepdims=True),
    )


# ---- recorded files


def write_files(folder: Path) -> None:
    """Writes the recordings and configurations that commands are given."""
    recorded = {name: simulate(seed, 40) for seed, name in enumerate(("north", "south", "west"), 7)}
    _write_table(folder / "drive.csv.gz", _rows(recorded))
    _write_table(folder / "labels.csv.gz", _label_rows(recorded))
    bad = list(_rows(recorded))
    bad[5]["var_y"] = "wide"
    _write_table(folder / "bad-cell.csv", bad)
    every = [seen for frames in recorded.values() for seen in frames]
    truth = np.concatenate([seen.truth for seen in every])
    objects = np.concatenate([seen.objects for seen in every])
    truth[objects < 0] = np.nan
    classes = np.concatenate([seen.classes for seen in every])
    sequence = np.concatenate(
        [np.full(s.objects.size, name) for name, frames in recorded.items() for s in frames]
    )
    besides: dict[str, Any] = {
        "seq": sequence,
        "track": objects,
        "stamp_ns": np.concatenate(
            [np.full(s.objects.size, BEGIN + s.number * PERIOD) for s in every]
        ),
    }
    np.savez(
        folder / "drive.npz",
        mean=np.concatenate([seen.mean for seen in every])[:, :3],
        var=np.concatenate([np.einsum("nii->ni", seen.covariance) for seen in every])[:, :3],
        gt=truth[:, :3],
        dimensions=np.array(DIMENSIONS[:3]),
        **{"class": np.array(CLASSES)[classes], **besides},
    )
    probabilities = np.concatenate([seen.probabilities for seen in every])
    label = np.where(objects < 0, -1, classes)
    names = np.array(CLASSES)
    np.savez(folder / "classes.npz", prob=probabilities, label=label, class_names=names, **besides)
    opinions = np.stack([probabilities, np.sqrt(probabilities)], axis=1)
    opinions /= opinions.sum(axis=2, keepdims=True)
    np.savez(folder / "opinions.npz", logits=np.log(opinions), label=label, **besides)
    (folder / "bad-key.toml").write_text("[server]\ngrpc_adress = '127.0.0.1:0'\n", "utf-8")
    (folder / "bad-value.toml").write_text("[statistics]\nbins = 0\n", "utf-8")
    (folder / "bad-model.json").write_text('{"format": 1, "method": "none"}\n', "utf-8")


def _rows(recorded: Mapping[str, Sequence[Seen]]) -> Iterator[dict[str, object]]:
    for sequence, frames in recorded.items():
        for seen in frames:
            for i, name in enumerate(seen.objects.tolist()):
                covariance, known = seen.covariance[i], name >= 0
                yield {
                    "seq": sequence,
                    "role": "deploy" if sequence == "west" else "fit",
                    "frame": seen.number,
                    "t": seen.number / 10,
                    "class": CLASSES[seen.classes[i]],
                    "score": seen.score[i],
                    **dict(zip(DIMENSIONS, seen.mean[i].tolist(), strict=True)),
                    **{f"var_{d}": float(covariance[k, k]) for k, d in enumerate(DIMENSIONS)},
                    "cov_xy": float(covariance[0, 1]),
                    "gt_id": name if known else "",
                    "ignore": int(not known and seen.number % 2 == 0),
                    **{
                        f"gt_{d}": float(seen.truth[i, k]) if known else ""
                        for k, d in enumerate(DIMENSIONS)
                    },
                }


def _label_rows(recorded: Mapping[str, Sequence[Seen]]) -> Iterator[dict[str, object]]:
    for sequence, frames in recorded.items():
        for seen in frames:
            for i in np.flatnonzero(seen.objects >= 0).tolist():
                yield {
                    "seq": sequence,
                    "frame": seen.number,
                    "t": seen.number / 10,
                    "class": CLASSES[seen.classes[i]],
                    "gt_id": int(seen.objects[i]),
                    **dict(zip(DIMENSIONS, seen.truth[i].tolist(), strict=True)),
                }


def _write_table(path: Path, rows: Iterator[dict[str, object]] | list[dict[str, object]]) -> None:
    listed = list(rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(listed[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(listed)
    data = text.getvalue().encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


# ---- the live drive


@dataclass(frozen=True, slots=True)
class Step:
    """One message, whose answer is awaited before the next one goes.

    to    a stream of `Process`, "unary" for `ProcessFrame`, or "truth" for `ReportGroundTruth`
    data  bytes of the request, which need not be a valid one
    """

    to: str
    data: bytes


STREAMS = ("lidar", "camera")
UNARY, TRUTH = "unary", "truth"
FRAMES = 130  # of each stream


def headers() -> dict[str, frame_pb2.StreamHeader]:
    """Returns the headers: lidar is tracked, camera has class logits, radar uses unary calls."""
    angle = frame_pb2.DIMENSION_KIND_ANGLE_MODULO_PI
    lengths = [frame_pb2.Dimension(name=name, unit="m") for name in DIMENSIONS[:3]]
    yaw = frame_pb2.Dimension(name="yaw", unit="rad", kind=angle)
    return {
        "lidar": frame_pb2.StreamHeader(
            stream="lidar",
            dimensions=[*lengths, yaw],
            class_names=CLASSES,
            coordinate_frame="lidar_top",
            return_tracks=True,
            quantile_levels=[0.05, 0.5, 0.95],
        ),
        "camera": frame_pb2.StreamHeader(
            stream="camera", dimensions=lengths[:2], class_names=CLASSES
        ),
        "radar": frame_pb2.StreamHeader(
            stream="radar", dimensions=lengths[:2], class_names=CLASSES[:1]
        ),
    }


def live_steps() -> list[list[Step]]:
    """Returns the messages of each frame period: frames, then the labels that are due."""
    drives = {name: simulate(seed, FRAMES) for seed, name in enumerate(headers(), 21)}
    steps: list[list[Step]] = []
    for number in range(FRAMES):
        of_period = [
            Step("lidar", _request(_lidar_frame(drives["lidar"][number]))),
            Step("camera", _request(_camera_frame(drives["camera"][number]))),
            Step(UNARY, _unary(_radar_frame(drives["radar"][number]))),
        ]
        of_period += _odd_frames(number, drives["lidar"][number])
        if number >= _LATE:
            labels = _labels(number - _LATE, drives)
            of_period += [
                Step(TRUTH, pb.ReportGroundTruthRequest(truth=label).SerializeToString())
                for label in labels
            ]
        steps.append(of_period)
    return steps


def _request(frame: frame_pb2.Frame) -> bytes:
    return pb.ProcessRequest(frame=frame).SerializeToString()


def _unary(frame: frame_pb2.Frame) -> bytes:
    header = headers()["radar"] if frame.frame_id % 10 == 0 else None
    return pb.ProcessFrameRequest(stream="radar", header=header, frame=frame).SerializeToString()


def _frame(number: int) -> frame_pb2.Frame:
    return frame_pb2.Frame(frame_id=number, stamp_ns=BEGIN + number * PERIOD)


def _lidar_frame(seen: Seen) -> frame_pb2.Frame:
    """Lower triangles, class probabilities and a pose; one detection of some frames is unusable."""
    frame = _frame(seen.number)
    angle = 0.002 * seen.number
    frame.ego_pose.position.extend([0.5 * seen.number, 0.01 * seen.number, 0.0])
    frame.ego_pose.orientation.extend([np.cos(angle), 0.0, 0.0, np.sin(angle)])
    lower = np.tril_indices(4)
    for i in range(seen.objects.size):
        one = frame.detections.add(
            id=i,
            class_index=int(seen.classes[i]),
            score=seen.score[i],
            mean=seen.mean[i],
            covariance=seen.covariance[i][lower],
            upstream_track_id=int(seen.objects[i]) + 1,
            class_probabilities=seen.probabilities[i],
        )
        if i == 2 and seen.number % 7 == 3:
            _spoil(one, seen.number)
    return frame


def _spoil(one: frame_pb2.Detection, number: int) -> None:
    match number // 7 % 8:
        case 0:
            one.mean[0] = float("nan")
        case 1:
            one.covariance[0] = -1.0
        case 2:
            del one.covariance[:]
        case 3:
            one.ClearField("id")
        case 4:
            one.id = 0
        case 5:
            one.class_index = 17
        case 6:
            one.class_probabilities[0] = 2.0
        case _:
            del one.mean[1:]


def _camera_frame(seen: Seen) -> frame_pb2.Frame:
    """Whole matrices, logits of two opinions, and truth at once in a frame of three."""
    frame = _frame(seen.number)
    frame.ego_twist.linear.extend([5.0, 0.1, 0.0])
    frame.ego_twist.angular.extend([0.0, 0.0, 0.02])
    for i in range(seen.objects.size):
        logits = np.log(seen.probabilities[i])
        one = frame.detections.add(
            id=i,
            class_index=int(seen.classes[i]),
            mean=seen.mean[i, :2],
            covariance=seen.covariance[i, :2, :2].ravel(),
            upstream_track_id=int(seen.objects[i]) + 1,
            class_logits=np.concatenate([logits, 0.5 * logits]),
        )
        if seen.number % 3 == 0 and seen.objects[i] >= 0:
            one.ground_truth.extend(seen.truth[i, :2])
            one.ground_truth_class = int(seen.classes[i])
    return frame


def _radar_frame(seen: Seen) -> frame_pb2.Frame:
    """Variances alone, and none at all in a frame of nine."""
    frame = _frame(seen.number)
    for i in range(seen.objects.size):
        frame.detections.add(id=i, class_index=0, mean=seen.mean[i, :2])
        if seen.number % 9 != 4:
            frame.detections[i].covariance.extend(np.diag(seen.covariance[i])[:2])
    return frame


def _odd_frames(number: int, seen: Seen) -> Iterator[Step]:
    """Yields what goes wrong now and then: repeated, unstamped, out of order, unreadable."""
    match number:
        case 20:
            yield Step("lidar", _request(_lidar_frame(seen)))
        case 25:
            frame = _frame(1000)
            frame.ClearField("stamp_ns")
            frame.detections.add(id=1, class_index=0, mean=seen.mean[0])
            yield Step("lidar", _request(frame))
        case 30:
            frame = _frame(1001)
            frame.stamp_ns -= (1001 - number) * PERIOD + 3 * PERIOD // 2
            yield Step("lidar", _request(frame))
        case 35:
            yield Step("lidar", b"\x12\x03\x79\x01")
            yield Step("lidar", b"")
        case 40:
            yield Step("camera", _request(frame_pb2.Frame(stamp_ns=BEGIN)))


# ---- labels


def _labels(number: int, drives: Mapping[str, Sequence[Seen]]) -> Iterator[truth_pb2.FrameTruth]:
    """Yields the labels of one frame of each stream, and now and then earlier ones revised."""
    lidar, camera, radar = (drives[name][number] for name in ("lidar", "camera", "radar"))
    if number % 11 != 5:  # some frames are never labelled
        yield _by_id("lidar", lidar, 4)
    if number % 3:
        yield _as_objects("camera", camera, complete=number % 2 == 0)
    yield _as_objects("radar", radar, complete=number % 4 == 0)
    if number % 8 == 7:
        yield _by_id("lidar", drives["lidar"][number - 4], 4, revision=1)
    if number % 10 == 9:
        yield _as_objects("radar", drives["radar"][number - 6], complete=True, revision=2)
    match number:
        case 15:
            yield _by_id("lidar", lidar, 4)
        case 16:
            yield truth_pb2.FrameTruth(stream="sonar", frame_id=1, detections=_one_label())
        case 17:
            yield truth_pb2.FrameTruth(stream="lidar", frame_id=10**6, detections=_one_label())
        case 18:
            elsewhere = _as_objects("radar", radar, complete=False, revision=5)
            elsewhere.coordinate_frame = "map"
            yield elsewhere
        case 19:
            yield _between(lidar)


def _one_label() -> list[truth_pb2.DetectionTruth]:
    return [truth_pb2.DetectionTruth(detection_id=0, ground_truth=[0.0, 0.0, 0.0, 0.0])]


def _by_id(stream: str, seen: Seen, k: int, revision: int = 0) -> truth_pb2.FrameTruth:
    told = truth_pb2.FrameTruth(
        stream=stream,
        frame_id=seen.number,
        complete=seen.number % 2 == 0,
        revision=revision,
        stamp_ns=BEGIN + seen.number * PERIOD,
    )
    for i in np.flatnonzero(seen.objects >= 0).tolist():
        told.detections.add(
            detection_id=i,
            ground_truth=seen.truth[i, :k] + 0.03 * revision,
            ignore=i == 4 and seen.number % 5 == 0,
            class_index=int(seen.classes[i]),
            object_id=int(seen.objects[i]),
        )
    return told


def _as_objects(
    stream: str, seen: Seen, *, complete: bool, revision: int = 0
) -> truth_pb2.FrameTruth:
    told = truth_pb2.FrameTruth(
        stream=stream,
        frame_id=seen.number,
        complete=complete,
        revision=revision,
        class_names=("vehicle.car", "human", "bicycle", "tram"),
    )
    for i in np.flatnonzero(seen.objects >= 0).tolist():
        told.objects.add(
            object_id=5000 + int(seen.objects[i]),
            class_index=0 if stream == "radar" else int(seen.classes[i]),
            ground_truth=seen.truth[i, :2] + 0.02 * revision,
            covariance=[1e-3, 2e-3] if i % 3 == 0 else (),
            ignore=i == 5,
        )
    told.objects.add(object_id=9000, class_index=3, ground_truth=[300.0, 0.0])
    told.objects.add(object_id=9001, class_index=0, ground_truth=[500.0, 500.0])
    told.ignore_regions.add(dimensions=["x", "y"], lower=[-50, -50], upper=[-20, -20])
    return told


def _between(seen: Seen) -> truth_pb2.FrameTruth:
    """Labels an object half a period before and behind its frame: the truth is interpolated."""
    told = truth_pb2.FrameTruth(stream="lidar", frame_id=seen.number, complete=True, revision=3)
    for side in (-1, 1):
        told.objects.add(
            object_id=77,
            class_index=int(seen.classes[0]),
            ground_truth=seen.truth[0] + 0.1 * side,
            stamp_ns=BEGIN + seen.number * PERIOD + side * PERIOD // 2,
        )
    return told
