"""Settings of the tracker: who it is, and where."""

import pytest

from monitor.config import Config, Fallback, TrackerConfig, TrackerKind
from monitor.tracking.kalman import TrackerSettings


def test_nobody_tracks_unless_it_is_said_and_a_tracker_elsewhere_is_waited_for_a_frame_at_most():
    tracker = Config().tracker
    assert tracker.kind is TrackerKind.NONE
    assert not tracker.tracks_here
    assert tracker.timeout_seconds == 0.02
    assert tracker.fallback is Fallback.NONE
    assert tracker.settings() == TrackerSettings()


@pytest.mark.parametrize(
    ("kind", "fallback", "here"),
    [
        ("none", "embedded", False),
        ("embedded", "none", True),
        ("grpc", "none", False),
        ("grpc", "embedded", True),
    ],
)
def test_the_own_tracker_is_there_where_it_tracks_or_stands_by(kind, fallback, here):
    tracker = TrackerConfig.model_validate({"kind": kind, "fallback": fallback})
    assert tracker.tracks_here is here


@pytest.mark.parametrize(
    "address", ["127.0.0.1:50052", "tracker:1", "[::1]:50052", "dns:///tracker:80", "unix:/run/t"]
)
def test_what_can_be_reached_is_an_address(address):
    assert TrackerConfig(address=address).address == address


@pytest.mark.parametrize(
    "address", ["", "tracker", "tracker:", ":50052", "t:0", "t:65536", "unix:"]
)
def test_what_cannot_be_reached_is_refused_with_the_remedy(address):
    with pytest.raises(ValueError, match="must be host:port"):
        TrackerConfig(address=address)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("timeout_seconds", 0),
        ("timeout_seconds", 11),
        ("queue_frames", 0),
        ("backoff_seconds", 0.1),
        ("fallback", "other"),
        ("kind", "ros"),
    ],
)
def test_values_that_make_no_sense_are_refused(key, value):
    with pytest.raises(ValueError, match=key):
        TrackerConfig.model_validate({key: value})


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1:1", "[::1]:1", "localhost:1", "unix:/run/t", "unix:run/t:1"),
        *("dns:///localhost:1", "dns:localhost:1", "ipv4:127.0.0.1:1", "ipv6:[::1]:1"),
    ],
)
def test_a_tracker_on_this_machine_needs_no_tls(address):
    TrackerConfig(kind=TrackerKind.GRPC, address=address)


@pytest.mark.parametrize(
    "address",
    [
        *("10.0.0.5:50052", "tracker:1", "0.0.0.0:1", "dns:///tracker:80", "[::2]:1"),
        *("dns://10.0.0.1/localhost:1", "ipv4:127.0.0.1:1,10.0.0.5:1", "ipv4:10.0.0.5:1"),
    ],
)
def test_frames_go_over_a_network_in_plain_text_only_where_that_is_said(address):
    with pytest.raises(ValueError, match="allow_plain_text = true"):
        TrackerConfig(kind=TrackerKind.GRPC, address=address)
    TrackerConfig(kind=TrackerKind.GRPC, address=address, allow_plain_text=True)
    TrackerConfig(kind=TrackerKind.GRPC, address=address, certificate_authority="ca.pem")
    TrackerConfig(kind=TrackerKind.EMBEDDED, address=address)
