"""Messages gone wrong through decoder, validator and pipeline: nothing is raised, nothing spoils a
sum, and both ways of reading agree bit for bit. `make benchmark-fuzz` sends a million of them.
"""

import random

import numpy as np
import pytest

from monitor.frames.detections import Reason
from monitor.frames.frame import Header, ReceivedFrame, Refusal
from monitor.frames.space import plain_space
from monitor.wire.client_messages import OutgoingFrame, encode_frame, encode_header
from monitor.wire.requests import WireLimits, decode_process_request, detection_tail
from tests.fuzzed import LIMITS, Fuzz, World, worlds
from tests.mutations import PROCESS_REQUEST, TRUTH_REQUEST, Mutations, taken_apart, written
from tests.piped import XYZ, opened, pipeline_of

WORLDS = {world.header.stream: world for world in worlds()}


@pytest.fixture(params=WORLDS)
def world(request) -> World:
    return WORLDS[request.param]


def beset(world: World, frames: int, processed: int) -> None:
    """Sends so many frames, one of `processed` through the pipeline too, with labels."""
    fuzz = Fuzz(world, random.Random(world.header.stream))
    for i in range(frames):
        data = fuzz.frames.valid() if i % 30 == 0 else fuzz.frames.next()
        if i % processed:
            fuzz.frame(data)
            continue
        fuzz.processed(data)
        fuzz.unary(data)
        fuzz.label(fuzz.labels.next())
    fuzz.assert_sound()
    # They were of all kinds, and not all of one fate.
    assert len(fuzz.frames.told) > 12
    for outcome in ("answered", "read at once", "read apart", "refused malformed", "labels"):
        assert fuzz.outcomes[outcome] > 20, outcome
    assert fuzz.outcomes["labels some matched"] > 0


def test_messages_gone_wrong_are_answered_refused_or_counted_but_raise_nothing(world):
    beset(world, 600, 8)


@pytest.mark.campaign
def test_many_messages_gone_wrong_raise_nothing(world):
    beset(world, 5_000, 16)


def test_mutations_start_from_valid_messages_and_depend_on_the_seed_alone(world):
    for data in world.frames:
        assert written(taken_apart(data, PROCESS_REQUEST)) == data
    for data in world.labels:
        assert written(taken_apart(data, TRUTH_REQUEST)) == data
    one, other = (Mutations(world.frames, PROCESS_REQUEST, random.Random(3)) for _ in range(2))
    assert [one.next() for _ in range(50)] == [other.next() for _ in range(50)]


def test_values_of_the_worst_kind_leave_the_sums_finite(world):
    fuzz = Fuzz(world, random.Random(1))
    for i in range(200):
        fuzz.processed(fuzz.frames.valid() if i % 3 else fuzz.frames.of("values"))
        fuzz.label(fuzz.labels.of("values"))
    fuzz.assert_sound()
    assert fuzz.outcomes["answered"] > 190


def frame_of(n: int, k: int) -> bytes:
    ids, classes = np.arange(n, dtype=np.uint64), np.zeros(n, np.int64)
    return encode_frame(OutgoingFrame(1, 1, ids, classes, np.zeros((n, k)), np.ones((n, k))))


def reasons_of(data: bytes, limits=LIMITS):
    """Reason by detection of a frame sent to a stream of x, y, z; or that of its refusal."""
    pipeline = pipeline_of()
    decoded = decode_process_request(data, limits, detection_tail())
    if isinstance(decoded, Refusal):
        return decoded.reason
    assert isinstance(decoded, ReceivedFrame)
    answer = pipeline.process(opened(pipeline), decoded)
    assert pipeline.counters.internal_errors == 0
    return answer.reason


def test_a_hundred_thousand_detections_are_refused_or_answered_as_the_limit_says():
    data, bytes_ = frame_of(100_000, 3), 1 << 27
    assert reasons_of(data, WireLimits(bytes_, 4096)) is Reason.TOO_MANY_DETECTIONS
    assert (reasons_of(data, WireLimits(bytes_, 100_000)) == Reason.NONE).all()
    assert reasons_of(data) is Reason.TOO_LARGE
    assert reasons_of(frame_of(0, 3)).size == 0


@pytest.mark.parametrize("k", [0, 33, 64])
def test_no_stream_has_no_dimensions_or_more_than_there_may_be(k):
    header = Header("s", plain_space(tuple(f"d{i}" for i in range(k)), "m"), ("car",))
    decoded = decode_process_request(encode_header(header), LIMITS, detection_tail())
    assert isinstance(decoded, Header)
    refusal = pipeline_of().register(decoded)
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.INVALID_HEADER


@pytest.mark.parametrize("k", [0, 1, 2, 4, 64])
def test_detections_of_other_dimensions_than_the_stream_are_refused_one_by_one(k):
    assert k != XYZ.k
    assert (reasons_of(frame_of(3, k)) == Reason.MEAN_LENGTH).all()
