"""What a sidecar tells of itself, over the wire and back: nothing is lost."""

from types import SimpleNamespace
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from monitor import __version__
from monitor.frames.status import Status, StreamStatus, TrackerStatus
from monitor.pipeline.external_tracker import ExternalTracker
from monitor.service.admin import status
from monitor.service.reload import Reloads
from monitor.v1 import status_pb2
from monitor.wire.fields import message_of, value_of
from tests.piped import opened, pipeline_of

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
COUNT = st.integers(0, 2**64 - 1)
TIME = st.integers(-(2**63), 2**63 - 1)
STREAMS = st.builds(
    StreamStatus,
    stream=TEXT,
    frames=COUNT,
    detections=COUNT,
    stamp_ns=st.none() | TIME,
    stamped_received_ns=st.none() | TIME,
    received_ns=st.none() | TIME,
    matched=COUNT,
    matched_received_ns=st.none() | TIME,
)
STATUS = st.builds(
    Status,
    version=TEXT,
    started_ns=TIME,
    now_ns=TIME,
    streams=st.lists(STREAMS, max_size=3).map(tuple),
    tracker=st.none() | st.builds(TrackerStatus, address=TEXT, up=st.booleans(), trouble=TEXT),
    configuration=TEXT,
    waiting_keys=st.lists(TEXT, max_size=3).map(tuple),
    configuration_refused=TEXT,
)


@given(STATUS)
def test_a_status_comes_back_as_it_was(sent):
    data = message_of(status_pb2.GetStatusResponse, sent).SerializeToString()
    assert value_of(Status, status_pb2.GetStatusResponse.FromString(data)) == sent


def test_a_stamp_of_nought_is_one_and_no_stamp_is_none():
    bare = Status("1", 0, 0, (StreamStatus("a"), StreamStatus("b", stamp_ns=0)))
    sent = message_of(status_pb2.GetStatusResponse, bare)
    assert [each.stamp_ns for each in value_of(Status, sent).streams] == [None, 0]


def test_a_path_that_is_no_utf8_is_told_all_the_same():
    told = status((), None, Reloads("/etc/\udcff.toml"), 0, 0, 0)
    assert told.configuration == "/etc/?.toml"


def test_all_that_a_sidecar_knows_of_itself_is_told():
    stream = opened(pipeline_of())
    stream.seen.frame(5, 40, 1_000)
    stream.seen.labels(2, 2_000)
    away = SimpleNamespace(config=SimpleNamespace(address="[::1]:9"), up=False, trouble="gone")
    reloads = Reloads("/etc/monitor.toml", waiting=("log.format",), refused="no TOML")
    told = status([stream], cast(ExternalTracker, away), reloads, 7, 10_500, 500)
    assert value_of(Status, told) == Status(
        version=__version__,
        started_ns=7,
        now_ns=10_500,
        streams=(StreamStatus("lidar", 1, 5, 40, 11_000, 11_000, 2, 12_000),),
        tracker=TrackerStatus("[::1]:9", up=False, trouble="gone"),
        configuration="/etc/monitor.toml",
        waiting_keys=("log.format",),
        configuration_refused="no TOML",
    )
