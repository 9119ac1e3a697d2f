"""Alarms and standings of drift over the wire and back: nothing is lost; who asks for slices gets
these and no others; who ends alarms is told which.
"""

import asyncio
import math

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.drift.alarms import (
    Alarm,
    AlarmChange,
    AlarmReason,
    Counted,
    DriftReading,
    DriftState,
    SliceStanding,
    StageStanding,
)
from monitor.drift.bets import Detector, Direction, Severity, Stage
from monitor.drift.evidence import Scale
from monitor.drift.reference import Origin
from monitor.service.admin import MOST_ACTOR
from monitor.service.calls import guarded
from monitor.v1 import calibration_pb2 as calibration_pb
from monitor.v1 import drift_pb2 as drift_pb
from monitor.v1 import perception_monitor_pb2 as pb
from monitor.wire.fields import UnknownWord, message_of, value_of
from tests.administered import Caller, Refused
from tests.alarmed import STAGES, STANDINGS, UNKNOWN, FixedWatch, alarm, service_of
from tests.piped import opened, pipeline_of, sent
from tests.received import frame

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
COUNT = st.integers(0, 2**63)
TIME = st.integers(0, 2**63 - 1)
# NaN is no equal of itself; it has a test of its own.
NUMBER = st.floats(allow_nan=False)
SCALES = st.builds(Scale, NUMBER, NUMBER, NUMBER)
ALARMS = st.builds(
    Alarm,
    slice=TEXT,
    severity=st.sampled_from(Severity),
    stage=st.sampled_from(Stage),
    detector=st.sampled_from(Detector),
    direction=st.sampled_from(Direction),
    evidence=NUMBER,
    threshold=NUMBER,
    event_ns=TIME,
    since_ns=TIME,
    detections=COUNT,
    tracks=COUNT,
    labelled=COUNT,
    scale=SCALES,
    epoch=st.integers(0, 2**32 - 1),
    driven=NUMBER,
)
CHANGES = st.builds(
    AlarmChange, st.sampled_from(AlarmReason), ALARMS, st.lists(TEXT, max_size=3).map(tuple), TEXT
)
SLICES = st.builds(
    SliceStanding,
    TEXT,
    st.sampled_from(Severity),
    st.sampled_from(DriftState),
    NUMBER,
    NUMBER,
    NUMBER,
    st.none() | ALARMS,
)
STAGE_STANDINGS = st.builds(
    StageStanding,
    TEXT,
    st.sampled_from(Stage),
    SCALES,
    NUMBER,
    st.sampled_from(Origin),
    COUNT,
    COUNT,
    st.sampled_from(Counted),
)


def received(message):
    """As it arrives."""
    return type(message).FromString(message.SerializeToString())


@given(ALARMS)
def test_an_alarm_comes_back_as_it_was(one):
    assert value_of(Alarm, received(message_of(drift_pb.DriftAlarm, one))) == one


@given(CHANGES)
def test_a_change_of_an_alarm_comes_back_as_it_was(one):
    assert value_of(AlarmChange, received(message_of(drift_pb.DriftEvent, one))) == one


@given(SLICES)
def test_the_standing_of_a_slice_comes_back_as_it_was(one):
    assert value_of(SliceStanding, received(message_of(drift_pb.DriftStanding, one))) == one


@given(STAGE_STANDINGS)
def test_the_standing_of_a_stage_comes_back_as_it_was(one):
    assert value_of(StageStanding, received(message_of(drift_pb.DriftStageStanding, one))) == one


def test_a_scale_that_is_unknown_stays_unknown():
    back = value_of(Alarm, received(message_of(drift_pb.DriftAlarm, alarm(scale=UNKNOWN))))
    assert all(map(math.isnan, (back.scale.estimate, back.scale.lower, back.scale.upper)))


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        (Severity, drift_pb.DriftSeverity),
        (Stage, calibration_pb.Stage),
        (Detector, drift_pb.DriftDetector),
        (Direction, drift_pb.DriftDirection),
        (AlarmReason, drift_pb.DriftChange),
        (DriftState, drift_pb.DriftState),
        (Origin, drift_pb.DriftOrigin),
        (Counted, drift_pb.DriftUnit),
    ],
)
def test_every_word_has_a_number_on_the_wire_and_every_number_a_word(words, numbers):
    unspecified, *names = numbers.keys()
    assert numbers.Value(unspecified) == 0
    assert len(names) == len(words)
    assert all(name.endswith(f"_{word.name}") for name, word in zip(names, words, strict=True))


@pytest.mark.parametrize("field", ["severity", "stage", "detector", "direction"])
def test_a_word_from_a_later_version_is_refused_with_a_remedy(field):
    message = message_of(drift_pb.DriftAlarm, alarm())
    setattr(message, field, 77)
    with pytest.raises(UnknownWord, match=rf"'{field}' 77.*use the program of the sidecar's own"):
        value_of(Alarm, received(message))


# ---- the handlers


@pytest.fixture
def watch():
    return FixedWatch()


@pytest.fixture
def pipeline():
    return pipeline_of()


@pytest.fixture
def service(pipeline, watch):
    return service_of(pipeline, watch)


def answered(service, handler, message) -> bytes:
    """The bytes of an answer, as the server gives them."""
    return ended(service, handler, message.SerializeToString())


def ended(service, handler, data) -> bytes:
    async def call() -> bytes:
        reply: bytes = await guarded(service, handler)(data, Caller())
        return reply

    return asyncio.run(call())


def calibration(service, *slices) -> pb.GetCalibrationResponse:
    request = pb.GetCalibrationRequest(slices=slices)
    return pb.GetCalibrationResponse.FromString(answered(service, service.get_calibration, request))


def acknowledged(service, *slices, actor="anna") -> tuple[Alarm, ...]:
    request = pb.AcknowledgeDriftRequest(slices=slices, actor=actor)
    reply = answered(service, service.acknowledge_drift, request)
    found = pb.AcknowledgeDriftResponse.FromString(reply).acknowledged
    return tuple(value_of(Alarm, one) for one in found)


def test_calibration_tells_how_all_of_drift_stands(service):
    answer = calibration(service)
    assert tuple(value_of(SliceStanding, one) for one in answer.drift) == STANDINGS
    assert list(answer.drift_stages) == [
        message_of(drift_pb.DriftStageStanding, one) for one in STAGES
    ]


@pytest.mark.parametrize("slices", [("car",), ("total",), ("car", "total"), ("truck", "truck")])
def test_who_asks_for_slices_is_told_of_these_even_without_statistics(service, slices):
    answer = calibration(service, *slices)
    assert [one.slice for one in answer.drift] == [
        one.slice for one in STANDINGS if one.slice in slices
    ]
    assert [one.slice for one in answer.drift_stages] == [
        one.slice for one in STAGES if one.slice in slices
    ]


def test_a_slice_with_statistics_that_is_not_watched_is_no_error(pipeline, watch, service):
    watch.answer = DriftReading()
    pipeline.process(opened(pipeline), frame([sent(i, truth=True) for i in range(1, 9)]))
    answer = calibration(service, "total")
    assert [one.slice for one in answer.slices] == ["total"]
    assert not (answer.drift or answer.drift_stages)


def test_a_slice_that_neither_statistics_nor_drift_know_is_named_beside_those_there_are(service):
    with pytest.raises(Refused) as refused:
        calibration(service, "car", "tram")
    assert refused.value.status is grpc.StatusCode.NOT_FOUND
    assert refused.value.words == "slices: no statistics of tram; there are car, total, truck."


def test_acknowledging_ends_the_alarms_of_the_named_slices_once_each(service, watch):
    assert acknowledged(service, "car", "total", "car") == (alarm(),)
    assert acknowledged(service, "truck") == ()
    assert acknowledged(service) == (alarm(),)
    assert [slices for slices, _ in watch.asked] == [("car", "total"), ("truck",), ()]


def test_acknowledging_a_slice_that_is_not_watched_is_refused_in_the_words_of_the_watch(service):
    with pytest.raises(Refused) as refused:
        acknowledged(service, "car", "tram")
    assert refused.value.status is grpc.StatusCode.NOT_FOUND
    assert refused.value.words == "slices: nothing is watched of 'tram'; there is a bus."


@pytest.mark.parametrize(
    ("given_actor", "noted"),
    [
        ("anna@van", "anna@van"),
        ("", "unnamed"),
        ("an\x1bna\n", "anna"),
        ("x" * 300, "x" * MOST_ACTOR),
    ],
)
def test_who_acknowledges_is_noted_as_it_may_stand_in_a_log(service, watch, given_actor, noted):
    acknowledged(service, actor=given_actor)
    assert watch.asked == [((), noted)]


def test_bytes_that_are_no_request_are_refused(service):
    with pytest.raises(Refused) as refused:
        ended(service, service.acknowledge_drift, b"\xff")
    assert refused.value.status is grpc.StatusCode.INVALID_ARGUMENT
