"""The bytes on the wire and the exposition text, as files: what changes shows in the diff.

`UPDATE_GOLDEN=1 pytest tests/golden` writes the files anew.
"""

import os
import random
import re
import textwrap
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from monitor.config import Reloads
from monitor.fleet.uploads import Uploader
from monitor.frames.frame import (
    EgoMotion,
    FrameAnswer,
    Header,
    Pose,
    ReceivedFrame,
    ReceivedTruth,
    Refusal,
    ReportedTracks,
    TrackStatus,
    TruthAnswer,
    Twist,
)
from monitor.frames.space import Dimension, DimensionKind, Space
from monitor.frames.status import TruthAccount
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.promotions import RecalibrationCounters
from monitor.pipeline.streams import Stream
from monitor.recalibration.scaling import VarianceScaling
from monitor.recalibration.selection import Selection
from monitor.service.log import LogCounts
from monitor.service.metrics import render
from monitor.statistics.bins import ExportEdges
from monitor.statistics.class_evaluation import ClassEvaluation
from monitor.statistics.exact_engine import BinCut
from monitor.statistics.observations import finished
from monitor.statistics.reading import ClassReading, ReadingCache, WindowReading
from monitor.v1 import perception_monitor_pb2, truth_pb2
from monitor.wire.answers import (
    encode_header_answer,
    encode_process_response,
    encode_truth_response,
)
from monitor.wire.client_messages import OutgoingFrame, encode_frame, encode_header, encode_truth
from monitor.wire.requests import (
    WireLimits,
    decode_process_request,
    decode_truth_request,
    detection_tail,
)
from tests.administered import FACTORS, TRIALS
from tests.exported import LaidDown, alarmed, certain, snapshot
from tests.piped import pipeline_of, statistics_of

FOLDER = Path(__file__).parent
LIMITS = WireLimits(2**20, 100)
TAIL = detection_tail()
SPACE = Space(
    (Dimension("x", "m"), Dimension("y", "m"), Dimension("yaw", "rad", DimensionKind.ANGLE))
)
HEADER = Header("lidar", SPACE, ("car", "person"), "base_link")
STAMP_NS = 1_750_000_000_000_000_000


def small_frame(seed: int) -> tuple[OutgoingFrame, np.ndarray]:
    """Five detections and their truth, in eighths; one without covariance, one of no class."""
    eighths = random.Random(seed)

    def numbers(*shape: int) -> np.ndarray:
        count = int(np.prod(shape))
        return np.array([eighths.randint(-80, 80) / 8 for _ in range(count)]).reshape(shape)

    root = np.tril(numbers(5, 3, 3))
    step = np.arange(3)
    root[:, step, step] = np.abs(root[:, step, step]) + 1
    covariance = root @ root.transpose(0, 2, 1)
    covariance[3] = 0
    mean, error = numbers(5, 3), numbers(5, 3)
    frame = OutgoingFrame(
        frame_id=100 + seed,
        stamp_ns=STAMP_NS + seed,
        id=np.array([2**64 - 1, 0, 1, 2, 3], np.uint64),
        class_index=np.array([0, 1, 0, 0, 9]),
        mean=mean,
        covariance=covariance,
        score=np.array([eighths.randint(0, 8) / 8 for _ in range(5)]),
    )
    return frame, mean + error


def fixed_pipeline() -> tuple[Pipeline, Stream]:
    pipeline = pipeline_of(metrics={"export_edges": (4.0, 8.0)})
    document = Selection(SPACE.names, VarianceScaling((2.0, 0.5, 1.5))).to_json()
    pipeline.activate(pipeline.recalibrators.learn(document).version)
    stream = pipeline.register(HEADER)
    assert isinstance(stream, Stream)
    return pipeline, stream


def processed(pipeline: Pipeline, stream: Stream, data: bytes, index: int) -> bytes:
    frame = decode_process_request(data, LIMITS, TAIL)
    assert isinstance(frame, ReceivedFrame)
    return encode_process_response(pipeline.process(stream, frame), index)


def labelled(pipeline: Pipeline, data: bytes) -> bytes:
    labels = decode_truth_request(data, LIMITS)
    assert isinstance(labels, ReceivedTruth)
    answer = pipeline.ledger.report(labels)
    assert isinstance(answer, TruthAnswer)
    return encode_truth_response(labels.stream, labels.frame_id, answer)


def tracked_frame() -> OutgoingFrame:
    """A small frame with all that a tracker can use."""
    pose = Pose(np.array([100.0, -20.5, 1.75]), np.array([0.5, 0.5, -0.5, 0.5]))
    twist = Twist(np.array([12.5, 0.0, 0.0]), np.array([0.0, 0.0, 0.125]))
    frame, _ = small_frame(2)
    upstream = np.array([7, 2**64 - 1, 9, 10, 11], np.uint64)
    return replace(frame, upstream_track=upstream, ego=EgoMotion(pose, twist))


def classified_frame() -> OutgoingFrame:
    """A small frame with two opinions on the classes of each, the third of them no good."""
    frame, _ = small_frame(3)
    car = np.array([[8, 7], [1, 0], [5, 4], [2, 2], [6, 8]]) / 8
    opinions = np.stack([car, 1 - car], axis=2)
    opinions[2, 1, 0] = 0.75
    return replace(frame, class_probabilities=opinions, true_class=np.array([0, 1, 0, 2, 1]))


def object_labels() -> bytes:
    """Labels in ids of the labeller's own, with all that can be said of them."""
    truth = truth_pb2.FrameTruth(
        stream="lidar",
        frame_id=2**63 + 1,
        complete=True,
        revision=3,
        coordinate_frame="base_link",
        class_names=("vehicle", "tree"),
    )
    truth.objects.add(
        object_id=2**64 - 1,
        class_index=0,
        ground_truth=(1.5, -2.0, 0.25),
        covariance=(0.25, 0.5, 0.125),
        stamp_ns=-(2**62),
    )
    truth.objects.add(class_index=1, ground_truth=(4.0, 8.0, 0.0), ignore=True)
    truth.ignore_regions.add(
        class_index=0, dimensions=("x", "y"), lower=(-8.0, -float("inf")), upper=(8.0, 0.5)
    )
    return perception_monitor_pb2.ReportGroundTruthRequest(truth=truth).SerializeToString()


def object_labels_answer() -> bytes:
    account = TruthAccount(*range(1, 10))
    answer = TruthAnswer(account, retracted=10, durable=True)
    return encode_truth_response("lidar", 2**63 + 1, answer)


def logits_frame() -> OutgoingFrame:
    frame, _ = small_frame(4)
    logits = np.array([[3, -3], [0, 0], [1, 2], [-700, 0], [5, 5]])
    return replace(frame, class_logits=logits.astype(np.float64))


def answer_to(data: bytes) -> FrameAnswer:
    pipeline, stream = fixed_pipeline()
    frame = decode_process_request(data, LIMITS, TAIL)
    assert isinstance(frame, ReceivedFrame)
    return pipeline.process(stream, frame)


def answer_with_all_extras(data: bytes) -> bytes:
    """Of a pipeline that recalibrates no classes, with all that may go out put in."""
    answer = answer_to(data)
    assert answer.extras is not None
    quantiles = np.arange(5 * 3 * 2).reshape(5, 6) / 8
    quantiles[3:] = np.nan
    probabilities = np.array([[8, 0], [4, 4], [np.nan] * 2, [1, 7], [np.nan] * 2]) / 8
    extras = replace(
        answer.extras,
        output=np.array([1, 2, 3, 0, 0], np.uint8),
        quantiles=quantiles,
        class_probabilities=probabilities,
        class_version="temperature-0123456789ab",
        rejected_by=np.array([0, 1, 2, 3, 0], np.uint8),
    )
    return encode_process_response(replace(answer, extras=extras), 1)


def tracks() -> ReportedTracks:
    """Of the rows 2, none and 0 of a small frame."""
    eighths = np.arange(3 * 5 * 5).reshape(3, 5, 5) / 8
    return ReportedTracks(
        id=np.array([1, 2, 2**64 - 1], np.uint64),
        class_index=np.array([0, 1, 0]),
        status=np.array(
            [TrackStatus.TENTATIVE, TrackStatus.COASTING, TrackStatus.CONFIRMED], np.uint8
        ),
        detections=np.array([1, 5, 300]),
        detection=np.array([2, -1, 0]),
        nis=np.array([np.nan, np.nan, 1.25]),
        state=-eighths[:, 0],
        covariance=eighths + eighths.transpose(0, 2, 1),
    )


def messages() -> dict[str, bytes]:
    pipeline, stream = fixed_pipeline()
    frame, truth = small_frame(1)
    malformed = decode_process_request(b"\xff", LIMITS, TAIL)
    assert isinstance(malformed, Refusal)
    sent = encode_frame(frame)
    found = {
        "header_request": encode_header(HEADER),
        "header_answer": encode_header_answer(HEADER.stream, None),
        "frame_request": sent,
        "frame_answer": processed(pipeline, stream, sent, 1),
        "malformed_answer": encode_process_response(malformed, 2),
        "truth_request": encode_truth("lidar", frame.frame_id, frame.id, truth, complete=True),
    }
    found["truth_answer"] = labelled(pipeline, found["truth_request"])
    tracked = encode_frame(tracked_frame())
    classes = classified_frame()
    classified = encode_frame(classes)
    velocities = (Dimension("vx", "m/s"), Dimension("vy", "m/s"))
    return found | {
        "tracked_header_request": encode_header(replace(HEADER, return_tracks=True)),
        "tracked_header_answer": encode_header_answer(
            HEADER.stream, None, (*SPACE.dimensions, *velocities)
        ),
        "tracked_frame_request": tracked,
        "tracked_frame_answer": encode_process_response(
            replace(answer_to(tracked), tracks=tracks()), 1
        ),
        "classified_frame_request": classified,
        "classified_frame_answer": processed(pipeline, stream, classified, 2),
        "asking_header_request": encode_header(replace(HEADER, quantile_levels=(0.05, 0.95))),
        "logits_frame_request": encode_frame(logits_frame()),
        "all_extras_answer": answer_with_all_extras(encode_frame(logits_frame())),
        "object_truth_request": object_labels(),
        "object_truth_answer": object_labels_answer(),
        "class_truth_request": encode_truth(
            "lidar", classes.frame_id, classes.id, None, class_index=classes.true_class
        ),
    }


def exposition() -> str:
    """The text after four frames with their truth; every frame took 0.3 ms."""
    pipeline, stream = fixed_pipeline()
    for seed in range(4):
        frame, truth = small_frame(seed)
        processed(pipeline, stream, encode_frame(frame), seed)
        pipeline.counters.frame_seconds.observe(0.0003)
        if seed < 3:
            labelled(pipeline, encode_truth("lidar", frame.frame_id, frame.id, truth))
    readings = finished(ReadingCache(BinCut(5)).read(statistics_of(pipeline)))
    found = snapshot(
        tuple(pipeline.live.export_bins()),
        ExportEdges(pipeline.config.metrics.export_edges, pipeline.live.binning),
        pipeline,
        readings=readings,
        reloads=Reloads(outcomes={}),
        logs=LogCounts(lines={}),
        windows=(WindowReading("5m", readings[0]),),
        classes=(ClassReading("car", class_evaluation(0.25), class_evaluation(0.5)),),
        predicted=(certain("car"),),
        promotions=LaidDown(
            pipeline,
            counters=RecalibrationCounters({"promoted": 1, "rolled_back": 0, "adapted": 0}),
            standing=TRIALS,
        ),
        factors={"car": FACTORS},
        drift=alarmed("car"),
        uploads=cast(
            Uploader,
            SimpleNamespace(
                counts={"sent": 12, "failed": 3, "conflict": 1},
                **{"pending_bytes": 620000, "age_seconds": 1800.0, "every_seconds": 3600.0},
                refused=0,
            ),
        ),
    )
    return finished(render(found)).decode()


def class_evaluation(measure: float) -> ClassEvaluation:
    """Makes one of 40 detections whose measures are all the same."""
    values: dict[str, Any] = {field.name: measure for field in fields(ClassEvaluation)}
    return ClassEvaluation(**(values | {"n": 40}))


def rounded(text: str) -> str:
    """Values to nine digits: the last ones depend on the processor and on the SciPy release."""

    def value(line: re.Match[str]) -> str:
        return f"{line[1]}{float(line[2]):.9g}"

    return re.sub(r"^([^#\n].* )(\S+)$", value, text, flags=re.MULTILINE)


def compare(name: str, text: str) -> None:
    path = FOLDER / name
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), (
        f"{name} differs: if that is meant, run `UPDATE_GOLDEN=1 pytest tests/golden`, look at "
        "the diff, and tell users in CHANGELOG.md"
    )


def as_hex(data: bytes) -> str:
    return "\n".join(textwrap.wrap(data.hex(), 64)) + "\n"


MESSAGES = messages()


@pytest.mark.parametrize("name", MESSAGES)
def test_the_bytes_on_the_wire_are_those_of_the_file(name):
    compare(f"{name}.hex", as_hex(MESSAGES[name]))


def test_every_file_of_bytes_belongs_to_a_message():
    assert {path.stem for path in FOLDER.glob("*.hex")} == MESSAGES.keys()


def test_the_exposition_text_is_that_of_the_file():
    compare("metrics.txt", rounded(exposition()))
