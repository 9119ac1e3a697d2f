"""A pipeline behind its decoder, fed with messages that went wrong, and all that must hold; no
tests here. `python -m tests.fuzzed` feeds it with a million of them.

Decoded frames are compared with protobuf's own reading, every answer with what was sent; at the
end every detection has a fate, and all statistics are finite.
"""

from __future__ import annotations

import argparse
import dataclasses
import random as random_
import struct
from collections import Counter, deque
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from monitor.frames.detections import Reason, examine
from monitor.frames.frame import Header, ReceivedFrame, Refusal, TrackIds, TruthAnswer
from monitor.frames.space import Dimension, DimensionKind, Space
from monitor.matching.labels import labels_told
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.streams import Stream
from monitor.recalibration.scaling import VarianceScaling
from monitor.recalibration.selection import IDENTITY, Selection
from monitor.statistics.observations import finished
from monitor.v1 import frame_pb2, perception_monitor_pb2, truth_pb2
from monitor.wire.answers import encode_process_response, encode_truth_response
from monitor.wire.client_messages import OutgoingFrame, encode_frame, encode_truth
from monitor.wire.records import TailReader
from monitor.wire.requests import (
    WireLimits,
    decode_process_frame_request,
    decode_process_request,
    decode_truth_request,
    detection_tail,
)
from tests import laws, mutations
from tests.as_protobuf import assert_same_frame
from tests.mutations import Field, Mutations
from tests.piped import BY_SLICE, CLASSES, XYZ, fateless, opened, pipeline_of
from tests.written import varint

LIMITS = WireLimits(max_message_bytes=1 << 16, max_detections=64)
BOX = Space(
    (
        *(Dimension(name, "m") for name in ("x", "y", "z", "l", "w", "h")),
        Dimension("yaw", "rad", DimensionKind.ANGLE),
    )
)
ONE = Space((Dimension("x", "m"),))
WIDE = Space(tuple(Dimension(f"d{i}", "m") for i in range(16)))
STEP = 10**8  # ns between two frames
# Frames back that labels may be of.
BACK = 60
# Messages of one pipeline, which begins anew behind them.
ROUND = 5_000
# One message in so many is compared with protobuf field by field; all others with another reader.
FIELD_BY_FIELD = 8


@dataclass(frozen=True, slots=True)
class World:
    """A kind of stream: its header, what acts on it, and valid messages of it."""

    header: Header
    selection: Selection
    sections: dict[str, Any]
    frames: tuple[bytes, ...]
    labels: tuple[bytes, ...]


def _frames(header: Header, random: np.random.Generator) -> tuple[bytes, ...]:
    """Of few detections, in the forms that a detector may send them in."""
    k, classes = header.space.k, len(header.classes)
    made = []
    for n, full in ((1, True), (2, False), (3, True)):
        place = 10.0 * np.arange(n)[:, None] + np.zeros(k)
        root = random.normal(size=(n, k, k)) * 0.1
        covariance = root @ root.transpose(0, 2, 1) + np.eye(k)
        variances = np.diagonal(covariance, axis1=1, axis2=2)
        plain = OutgoingFrame(
            frame_id=1,
            stamp_ns=1,
            id=np.arange(n, dtype=np.uint64),
            class_index=np.arange(n) % classes,
            mean=place + random.normal(size=(n, k)),
            covariance=covariance if full else variances.copy(),
        )
        opinion = random.dirichlet(np.ones(classes), n)
        made += [
            plain,
            replace(plain, truth=place, score=np.ones(n)),
            replace(
                plain,
                upstream_track=np.arange(n, dtype=np.uint64),
                class_probabilities=opinion,
                true_class=np.arange(n) % classes,
            ),
            replace(plain, truth=place, class_logits=np.log(opinion)),
        ]
    nothing = perception_monitor_pb2.ProcessRequest(
        frame=frame_pb2.Frame(frame_id=1, stamp_ns=1, ego_twist=frame_pb2.Twist(linear=[1, 0, 0]))
    )
    return (*(encode_frame(frame) for frame in made), nothing.SerializeToString())


def _labels(header: Header) -> tuple[bytes, ...]:
    """By id, and as objects with regions that are ignored."""
    k, name = header.space.k, header.stream
    ids = np.arange(3, dtype=np.uint64)
    place = 10.0 * np.arange(3)[:, None] + np.zeros(k)
    known = TrackIds(ids + np.uint64(7), np.array([True, True, False]))
    by_id = [
        encode_truth(name, 1, ids, place),
        encode_truth(name, 1, ids, place, complete=True, objects=known),
        encode_truth(name, 1, ids[:1], None, class_index=np.zeros(1, np.int64)),
    ]
    truth = truth_pb2.FrameTruth(stream=name, frame_id=1, complete=True, revision=1)
    truth.class_names.extend(header.classes)
    for i in range(3):
        truth.objects.add(object_id=i, class_index=0, ground_truth=place[i], covariance=[0.01] * k)
    truth.ignore_regions.add(dimensions=[header.space.names[0]], lower=[90.0], upper=[95.0])
    samples = truth_pb2.FrameTruth(stream=name, frame_id=1)
    for stamp in (STEP // 2, STEP, 2 * STEP):
        samples.objects.add(object_id=1, class_index=0, ground_truth=place[0], stamp_ns=stamp)
    requests = [perception_monitor_pb2.ReportGroundTruthRequest(truth=t) for t in (truth, samples)]
    return (*by_id, *(request.SerializeToString() for request in requests))


def _world(header: Header, selection: Selection, **sections: dict[str, Any]) -> World:
    frames = _frames(header, np.random.default_rng(header.space.k))
    # Little is remembered, so that frames are forgotten too; nothing is on any disk.
    sections.setdefault("pending", {"max_bytes": 150_000})
    return World(header, selection, sections, frames, _labels(header))


def worlds() -> list[World]:
    tracked = {"kind": "embedded"}
    boxes = {"distance": "bev-iou", "gate": 0.9}
    twice = Selection(BOX.names, VarianceScaling((2.0,) * BOX.k))
    return [
        _world(
            Header("lidar", XYZ, CLASSES, return_tracks=True, quantile_levels=(0.1, 0.9)),
            BY_SLICE,
            tracker=tracked,
        ),
        _world(Header("radar", ONE, ("car",)), IDENTITY, matching={"dimensions": ("x",)}),
        _world(
            Header("boxes", BOX, CLASSES, return_tracks=True),
            twice,
            tracker=tracked,
            matching=boxes,
        ),
        _world(
            Header("wide", WIDE, CLASSES[:2]),
            IDENTITY,
            recalibration={"mode": "observe"},
            matching={"distance": "mahalanobis", "gate": 4.0, "dimensions": ("d0", "d1")},
        ),
    ]


def _numbered(inner: list[Field], key: int, number: int) -> None:
    for one in inner:
        if one.number == key and one.wire_type == 1:
            one.content = struct.pack("<Q", number % 2**64)


def frame_renewed(fields: list[Field], made: int) -> None:
    frame = fields[-1].content
    assert not isinstance(frame, bytes)
    _numbered(frame, 1, made)
    _numbered(frame, 2, STEP * made)


@dataclass(slots=True)
class Fuzz:
    """One world, and what is sent to it.

    outcomes  messages, by what became of them
    """

    world: World
    random: random_.Random
    outcomes: Counter[str] = field(default_factory=Counter)
    pipeline: Pipeline = field(init=False)
    stream: Stream = field(init=False)
    tail: TailReader = field(init=False)
    frames: Mutations = field(init=False)
    labels: Mutations = field(init=False)
    detections: int = 0
    counted: int = 0
    known: deque[int] = field(default_factory=lambda: deque(maxlen=BACK))

    def __post_init__(self) -> None:
        world = self.world
        self.pipeline = pipeline_of(world.selection, **world.sections)
        self.stream = opened(self.pipeline, world.header)
        self.tail = detection_tail()
        self.frames = Mutations(world.frames, mutations.PROCESS_REQUEST, self.random, frame_renewed)
        self.labels = Mutations(
            world.labels, mutations.TRUTH_REQUEST, self.random, self._label_renewed
        )

    def _label_renewed(self, fields: list[Field], _: int) -> None:
        truth = fields[-1].content
        assert not isinstance(truth, bytes)
        number = self.random.choice(self.known) if self.known else 1
        _numbered(truth, 2, number)
        for one in truth:
            if one.number == 7 and not isinstance(one.content, bytes):
                _numbered(one.content, 6, STEP * number)

    def frame(self, data: bytes) -> None:
        """A message of Process, through the decoder alone."""
        decoded = decode_process_request(data, LIMITS, self.tail)
        self._assert_decoded(data, decoded)
        if isinstance(decoded, ReceivedFrame):
            batch = examine(
                decoded.detections,
                self.stream.header.space,
                len(self.stream.header.classes),
                self.pipeline.limits,
            ).batch
            assert np.isfinite(batch.sent.mean).all()
            assert np.isfinite(batch.sent.covariance).all()
            self.outcomes["read at once" if decoded.fast else "read apart"] += 1
        else:
            self._tell(decoded)

    def processed(self, data: bytes) -> None:
        """A message of Process, through the decoder, the pipeline and back."""
        decoded = decode_process_request(data, LIMITS, self.tail)
        if not isinstance(decoded, ReceivedFrame):
            if isinstance(decoded, Refusal):
                sent = encode_process_response(decoded, 1)
                reply = perception_monitor_pb2.ProcessResponse.FromString(sent)
                assert reply.frame.status == frame_pb2.STATUS_REFUSED
            self._tell(decoded)
            return
        answer = self.pipeline.process(self.stream, decoded)
        assert self.pipeline.counters.internal_errors == 0
        self.detections += decoded.detections.n
        # A frame that came before is answered again, and counted once.
        if all(notice.reason is not Reason.DUPLICATE_FRAME for notice in answer.notices):
            self.counted += decoded.detections.n
        reply = perception_monitor_pb2.ProcessResponse.FromString(
            encode_process_response(answer, 1)
        )
        request = perception_monitor_pb2.ProcessRequest.FromString(data)
        _assert_answered(reply.frame, request.frame, self.world.header.space.k)
        self.known.append(decoded.frame_id or 0)
        self.outcomes["answered"] += 1
        for reason in {Reason(value).label for value in answer.reason.tolist()}:
            self.outcomes[f"some {reason}"] += 1

    def _assert_decoded(self, data: bytes, decoded: Header | ReceivedFrame | Refusal) -> None:
        """Compares with protobuf field by field, or with a reader that has seen nothing."""
        if isinstance(decoded, ReceivedFrame) and not self.random.randrange(FIELD_BY_FIELD):
            request = perception_monitor_pb2.ProcessRequest.FromString(data)
            assert_same_frame(decoded, request.frame)
            return
        again = decode_process_request(data, LIMITS, detection_tail())
        if isinstance(again, ReceivedFrame) and isinstance(decoded, ReceivedFrame):
            uniform = replace(again.detections, uniform=decoded.detections.uniform)
            again = replace(again, detections=uniform, fast=decoded.fast, overlong=decoded.overlong)
        laws.assert_same(again, decoded)

    def unary(self, data: bytes) -> None:
        """The same bytes as the frame of a message of ProcessFrame, and alone."""
        name = self.world.header.stream.encode()
        whole = b"\x0a" + bytes([len(name)]) + name + b"\x7a" + varint(len(data)) + data
        for sent in (whole, data):
            decoded = decode_process_frame_request(sent, LIMITS)
            self.outcomes["unary refused" if isinstance(decoded, Refusal) else "unary read"] += 1

    def label(self, data: bytes) -> None:
        """A message of ReportGroundTruth, through the decoder, the ledger and back."""
        decoded = decode_truth_request(data, LIMITS)
        if isinstance(decoded, Refusal):
            self._tell(decoded)
            return
        answer = self.pipeline.ledger.report(decoded)
        assert isinstance(answer, TruthAnswer)
        assert self.pipeline.counters.internal_errors == 0
        sent = encode_truth_response(decoded.stream, decoded.frame_id, answer)
        reply = perception_monitor_pb2.ReportGroundTruthResponse.FromString(sent)
        told = sum(getattr(answer.account, name) for name in answer.account.__dataclass_fields__)
        assert told == labels_told(decoded)
        assert reply.account.matched == answer.account.matched
        self.outcomes["labels"] += 1
        for name in answer.account.__dataclass_fields__:
            if getattr(answer.account, name):
                self.outcomes[f"labels some {name}"] += 1

    def _tell(self, decoded: object) -> None:
        told = f"refused {decoded.reason.label}" if isinstance(decoded, Refusal) else "header"
        self.outcomes[told] += 1

    def assert_sound(self) -> None:
        """Every detection has one fate, and all that was counted is finite."""
        ledger, counters = self.pipeline.ledger, self.pipeline.counters
        assert counters.internal_errors == 0
        assert counters.detections == self.detections
        assert ledger.fates.account["predicted"] == self.counted
        assert fateless(ledger.fates) == ledger.fates.pending
        assert all(count >= 0 for count in ledger.fates.account.values())
        for _, statistics in finished(self.pipeline.live.in_steps()):
            assert_finite(statistics)
        for name, kept in self.pipeline.latest.items():
            assert kept is not None, name
        assert_finite(finished(self.pipeline.live.state_in_steps()))


def assert_finite(value: Any, where: str = "") -> None:
    """No NaN and no infinity among the sums."""
    if isinstance(value, np.ndarray):
        assert value.dtype.kind != "f" or np.isfinite(value).all(), where
    elif isinstance(value, float):
        assert np.isfinite(value), where
    elif dataclasses.is_dataclass(value):
        for entry in dataclasses.fields(value):
            assert_finite(getattr(value, entry.name), f"{where}.{entry.name}")
    elif isinstance(value, tuple | list):
        for i, inner in enumerate(value):
            assert_finite(inner, f"{where}[{i}]")
    elif isinstance(value, dict):
        for key, inner in value.items():
            assert_finite(inner, f"{where}[{key}]")


def _assert_answered(reply: Any, frame: Any, k: int) -> None:
    """A result for each detection; what was recalibrated is finite, all else as it came."""
    assert len(reply.detections) == len(frame.detections)
    for result, sent in zip(reply.detections, frame.detections, strict=True):
        assert result.id == sent.id
        assert result.HasField("id") == sent.HasField("id")
        if result.status == frame_pb2.STATUS_RECALIBRATED:
            assert len(result.mean) == k
            assert np.isfinite(result.mean).all()
            assert np.isfinite(result.covariance).all()
            assert min(result.covariance) > -np.inf
        else:
            size = f"<{len(sent.mean)}d", f"<{len(sent.covariance)}d"
            assert struct.pack(size[0], *result.mean) == struct.pack(size[0], *sent.mean)
            assert struct.pack(size[1], *result.covariance) == struct.pack(
                size[1], *sent.covariance
            )


def fuzzed(world: World, seed: int | str, frames: int, processed: int) -> Fuzz:
    """Sends so many frames, one of `processed` through the pipeline too, with labels."""
    fuzz = Fuzz(world, random_.Random(seed))
    for i in range(frames):
        data = fuzz.frames.valid() if i % 30 == 0 else fuzz.frames.next()
        try:
            if i % processed:
                fuzz.frame(data)
                continue
            fuzz.processed(data)
            fuzz.unary(data)
            data = fuzz.labels.next()
            fuzz.label(data)
        except Exception as error:
            raise AssertionError(f"{seed}, message {i}: {error!r}: {data.hex()}") from error
    fuzz.assert_sound()
    return fuzz


def _round(seed: int) -> Counter[str]:
    return fuzzed(worlds()[seed % len(worlds())], seed, ROUND, FIELD_BY_FIELD).outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    rounds = -(-parser.parse_args().frames // ROUND)
    with ProcessPoolExecutor() as pool:
        outcomes = sum(pool.map(_round, range(rounds)), Counter[str]())
    for name, count in outcomes.most_common():
        print(f"{count:9d}  {name}")


if __name__ == "__main__":
    main()
