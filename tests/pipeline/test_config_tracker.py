"""Settings of the tracker: who it is, and where."""

import pytest

from monitor.config import Fallback, TrackerConfig, TrackerKind


@pytest.mark.parametrize("kind", TrackerKind)
@pytest.mark.parametrize("fallback", Fallback)
def test_the_own_tracker_is_there_where_it_tracks_or_stands_by(kind, fallback):
    tracker = TrackerConfig.model_validate({"kind": kind, "fallback": fallback})
    stands_by = kind is TrackerKind.GRPC and fallback is Fallback.EMBEDDED
    assert tracker.tracks_here is (kind is TrackerKind.EMBEDDED or stands_by)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("timeout_seconds", 0),
        ("timeout_seconds", 11),
        ("queue_frames", 0),
        ("backoff_seconds", 0.1),
        ("fallback", "other"),
        ("kind", "ros"),
        *(("address", text) for text in ("", "tracker", "tracker:", ":1", "t:0", "t:65536")),
        ("address", "unix:"),
    ],
)
def test_values_that_make_no_sense_are_refused_by_key(key, value):
    with pytest.raises(ValueError, match=key):
        TrackerConfig.model_validate({key: value})


@pytest.mark.parametrize(
    ("address", "here"),
    [
        *((text, True) for text in ("127.0.0.1:1", "[::1]:1", "localhost:1", "unix:/run/t")),
        *((text, True) for text in ("unix:run/t:1", "dns:///localhost:1", "dns:localhost:1")),
        *((text, True) for text in ("ipv4:127.0.0.1:1", "ipv6:[::1]:1")),
        *((text, False) for text in ("10.0.0.5:50052", "tracker:1", "0.0.0.0:1", "[::2]:1")),
        *((text, False) for text in ("dns:///tracker:80", "dns://10.0.0.1/localhost:1")),
        *((text, False) for text in ("ipv4:127.0.0.1:1,10.0.0.5:1", "ipv4:10.0.0.5:1")),
    ],
)
def test_frames_go_over_a_network_in_plain_text_only_where_that_is_said(address, here):
    if here:
        assert TrackerConfig(kind=TrackerKind.GRPC, address=address).address == address
    else:
        with pytest.raises(ValueError, match="allow_plain_text = true"):
            TrackerConfig(kind=TrackerKind.GRPC, address=address)
    TrackerConfig(kind=TrackerKind.GRPC, address=address, allow_plain_text=True)
    TrackerConfig(kind=TrackerKind.GRPC, address=address, certificate_authority="ca.pem")
    TrackerConfig(kind=TrackerKind.EMBEDDED, address=address)
