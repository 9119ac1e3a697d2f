"""All that is said of a sidecar: nothing where all is well, in order, whatever was not seen."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.commands.doctor.diagnosis import diagnose, rank, verdict
from monitor.commands.doctor.observation import Answer, Asked, Look, Observation
from monitor.commands.doctor.rules import AREAS, Area, Finding, Severity
from monitor.frames.status import Status, StreamStatus, TrackerStatus
from tests.diagnosis.observed import WELL, samples, seen, without

REFUSED = Asked(Answer.NO_TOKEN, "authorization: a bearer token is needed.")


def test_where_all_is_well_each_area_says_so_in_one_line():
    found = diagnose(seen())
    assert [each.area for each in found] == list(AREAS)
    assert {each.severity for each in found} == {Severity.WELL}
    assert not any(each.why or each.remedy for each in found)
    assert verdict(found) == "nothing is wrong"


@pytest.mark.parametrize(
    ("wrong", "remarks", "said"),
    [
        (0, 1, "nothing is wrong, 1 remark"),
        (1, 0, "1 thing is wrong"),
        (1, 2, "1 thing is wrong, 2 remarks"),
        (3, 1, "3 things are wrong, 1 remark"),
    ],
)
def test_the_verdict_counts_what_is_wrong_and_what_is_remarked(wrong, remarks, said):
    bad = [Finding(Severity.WRONG, Area.LOAD, "a", "b", "c")] * wrong
    odd = [Finding(Severity.REMARK, Area.LOAD, "a", "b", "c")] * remarks
    assert verdict([*bad, *odd, Finding(Severity.WELL, Area.DISK, "d")]) == said


def test_what_could_not_be_looked_at_is_told_once_and_never_called_well():
    blind = without(seen(), metrics=REFUSED, told=REFUSED)
    found = diagnose(blind)
    assert not [each for each in found if each.severity is Severity.WELL]
    assert {each.area for each in found} == {Area.REACH}


quick = settings(max_examples=60)
NUMBER = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True), st.just(0.0), st.floats(0, 10), st.just(1e6)
)
METRICS = st.dictionaries(st.sampled_from(sorted(WELL)), NUMBER)
TIME = st.integers(-(2**63), 2**63 - 1)
STREAMS = st.builds(
    StreamStatus,
    stream=st.text("ab_-", max_size=5),
    frames=st.integers(0, 2**40),
    detections=st.integers(0, 2**40),
    stamp_ns=st.none() | TIME,
    stamped_received_ns=st.none() | TIME,
    received_ns=st.none() | TIME,
    matched=st.integers(0, 2**40),
    matched_received_ns=st.none() | TIME,
)
STATUS = st.builds(
    Status,
    version=st.text(max_size=5),
    started_ns=TIME,
    now_ns=TIME,
    streams=st.lists(STREAMS, max_size=4).map(tuple),
    tracker=st.none()
    | st.builds(TrackerStatus, address=st.text(max_size=5), up=st.booleans(), trouble=st.text()),
    waiting_keys=st.lists(st.text(max_size=3), max_size=3).map(tuple),
    configuration_refused=st.text(max_size=3),
)
LOOK = st.builds(
    Look,
    at_s=st.floats(0, 1e6),
    samples=st.none() | METRICS.map(samples),
    status=st.none() | STATUS,
    clock_ns=TIME,
    round_trip_s=st.floats(0, 10),
    text=st.integers(0, 2),
)
ASKED = st.builds(Asked, st.sampled_from(Answer), st.text(max_size=8))
OBSERVATION = st.builds(
    Observation,
    address=st.just("127.0.0.1:50051"),
    http_address=st.just("127.0.0.1:9464"),
    version=st.just("0.1.0"),
    http=ASKED,
    metrics=ASKED,
    ready=st.none() | st.booleans(),
    grpc=ASKED,
    serving=st.booleans(),
    status=ASKED,
    drift=ASKED,
    recalibrators=ASKED,
    first=LOOK,
    last=LOOK,
    pinned=st.none() | st.booleans(),
)


@quick
@given(OBSERVATION)
def test_whatever_was_seen_something_is_said_in_order_and_every_trouble_has_a_remedy(observation):
    found = diagnose(observation)
    assert found
    assert list(found) == sorted(found, key=rank)
    assert [each.severity for each in found] == sorted(each.severity for each in found)
    for each in found:
        assert each.what
        assert each.severity is Severity.WELL or not each.what.endswith(".")
        assert bool(each.why) == bool(each.remedy) == (each.severity is not Severity.WELL)
        assert not re.search(r"\{\w*\}", each.why + each.remedy)


@quick
@given(OBSERVATION)
def test_the_same_observation_gives_the_same_words(observation):
    assert diagnose(observation) == diagnose(replace(observation))
