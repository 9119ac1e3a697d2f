"""Messages gone wrong through decoder, validator and pipeline: nothing is raised, nothing spoils a
sum, and both ways of reading agree bit for bit. `make benchmark-fuzz` sends a million of them.
"""

import random

import numpy as np
import pytest

from monitor.frames.detections import Reason
from monitor.frames.frame import Header, ReceivedFrame, Refusal
from monitor.frames.space import plain_space
from monitor.v1 import perception_monitor_pb2
from monitor.wire.answers import encode_process_response
from monitor.wire.client_messages import OutgoingFrame, encode_frame, encode_header
from monitor.wire.requests import WireLimits, decode_process_request, detection_tail
from tests.fuzzed import LIMITS, Fuzz, World, worlds
from tests.mutations import PROCESS_REQUEST, TRUTH_REQUEST, Mutations, taken_apart, written
from tests.piped import CLASSES, XYZ, opened, pipeline_of

FRAMES = 5_000  # of each world
PROCESSED = 16
WORLDS = {world.header.stream: world for world in worlds()}
EVERYTHING = WireLimits(max_message_bytes=1 << 27, max_detections=4096)


@pytest.fixture(params=WORLDS)
def world(request) -> World:
    return WORLDS[request.param]


def test_messages_gone_wrong_are_answered_refused_or_counted_but_raise_nothing(world):
    fuzz = Fuzz(world, random.Random(world.header.stream))
    for i in range(FRAMES):
        data = fuzz.frames.valid() if i % 30 == 0 else fuzz.frames.next()
        if i % PROCESSED:
            fuzz.frame(data)
            continue
        fuzz.processed(data)
        fuzz.unary(data)
        fuzz.label(fuzz.labels.next())
    fuzz.assert_sound()
    # That they were of all kinds, and not all of one fate.
    assert len(fuzz.frames.told) > 12
    for outcome in ("answered", "read at once", "read apart", "refused malformed", "labels"):
        assert fuzz.outcomes[outcome] > 20, outcome
    assert fuzz.outcomes["labels some matched"] > 0


def test_what_is_taken_apart_and_not_changed_is_written_as_it_was(world):
    for data in world.frames:
        assert written(taken_apart(data, PROCESS_REQUEST)) == data
    for data in world.labels:
        assert written(taken_apart(data, TRUTH_REQUEST)) == data


def test_the_same_seed_gives_the_same_messages(world):
    one, other = (Mutations(world.frames, PROCESS_REQUEST, random.Random(3)) for _ in range(2))
    assert [one.next() for _ in range(200)] == [other.next() for _ in range(200)]


def test_nothing_but_values_of_the_worst_kind_leaves_the_sums_finite(world):
    fuzz = Fuzz(world, random.Random(1))
    for i in range(200):
        fuzz.processed(fuzz.frames.valid() if i % 3 else fuzz.frames.of("values"))
        fuzz.label(fuzz.labels.of("values"))
    fuzz.assert_sound()
    assert fuzz.outcomes["answered"] > 190


def answer_of(data: bytes, space, limits=LIMITS, classes=CLASSES):
    """Reason by detection of a frame sent to a stream of that space."""
    pipeline = pipeline_of()
    stream = opened(pipeline, Header("lidar", space, classes))
    decoded = decode_process_request(data, limits, detection_tail())
    if isinstance(decoded, Refusal):
        return decoded.reason
    assert isinstance(decoded, ReceivedFrame)
    answer = pipeline.process(stream, decoded)
    assert pipeline.counters.internal_errors == 0
    reply = perception_monitor_pb2.ProcessResponse.FromString(encode_process_response(answer, 1))
    assert len(reply.frame.detections) == decoded.detections.n
    return answer.reason


def frame_of(n: int, k: int, **others) -> bytes:
    plain = {
        "frame_id": 1,
        "stamp_ns": 1,
        "id": np.arange(n, dtype=np.uint64),
        "class_index": np.zeros(n, np.int64),
        "mean": np.zeros((n, k)),
        "covariance": np.ones((n, k)),
    }
    return encode_frame(OutgoingFrame(**{**plain, **others}))


def test_a_frame_without_detections_is_answered():
    assert answer_of(frame_of(0, 3), XYZ).size == 0


def test_a_hundred_thousand_detections_are_refused_or_answered_as_the_limit_says():
    data = frame_of(100_000, 3)
    assert answer_of(data, XYZ, EVERYTHING) is Reason.TOO_MANY_DETECTIONS
    wide = WireLimits(max_message_bytes=1 << 27, max_detections=100_000)
    assert (answer_of(data, XYZ, wide) == Reason.NONE).all()
    assert answer_of(data, XYZ, LIMITS) is Reason.TOO_LARGE


@pytest.mark.parametrize("k", [0, 33, 64])
def test_no_stream_has_no_dimensions_or_more_than_there_may_be(k):
    pipeline = pipeline_of()
    space = plain_space(tuple(f"d{i}" for i in range(k)), "m")
    header = decode_process_request(
        encode_header(Header("s", space, ("car",))), LIMITS, detection_tail()
    )
    assert isinstance(header, Header)
    refusal = pipeline.register(header)
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.INVALID_HEADER


@pytest.mark.parametrize("k", [0, 1, 2, 4, 64])
def test_detections_of_other_dimensions_than_the_stream_are_refused_one_by_one(k):
    reason = answer_of(frame_of(3, k), XYZ)
    assert (reason == Reason.MEAN_LENGTH).all()


@pytest.mark.parametrize(
    ("covariance", "reason"),
    [
        ([np.nan, 1, 1], Reason.COVARIANCE_NOT_FINITE),
        ([np.inf, 1, 1], Reason.COVARIANCE_NOT_FINITE),
        ([-1, 1, 1], Reason.COVARIANCE_NOT_POSITIVE_DEFINITE),
        ([1, 2, 0, 2, 1, 0, 0, 0, 1], Reason.COVARIANCE_NOT_POSITIVE_DEFINITE),
        ([1, 0.5, 0, 0, 1, 0, 0, 0, 1], Reason.COVARIANCE_ASYMMETRIC),
        ([1e300, 1, 1], Reason.COVARIANCE_SCALE),
        ([5e-324, 1, 1], Reason.COVARIANCE_SCALE),
        ([0, 0, 0], Reason.MISSING_COVARIANCE),
        ([1, 1], Reason.COVARIANCE_LENGTH),
        ([1] * 64, Reason.COVARIANCE_LENGTH),
    ],
)
def test_a_covariance_that_is_none_is_told_by_its_fault(covariance, reason):
    data = perception_monitor_pb2.ProcessRequest()
    data.frame.frame_id = 1
    data.frame.detections.add(id=1, class_index=0, mean=[0, 0, 0], covariance=[1, 1, 1])
    data.frame.detections.add(id=2, class_index=0, mean=[0, 0, 0], covariance=covariance)
    found = answer_of(data.SerializeToString(), XYZ)
    assert found.tolist() == [Reason.NONE, reason]
