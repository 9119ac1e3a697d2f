"""Settings of the tracker: who it is, and where."""

import pytest

from monitor.config import TrackerConfig, TrackerKind


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("timeout_seconds", 0),
        ("queue_frames", 0),
        ("fallback", "other"),
        *(("address", text) for text in ("", "tracker:", ":1", "t:0", "t:65536", "unix:")),
    ],
)
def test_values_that_make_no_sense_are_refused_by_key(key, value):
    with pytest.raises(ValueError, match=key):
        TrackerConfig.model_validate({key: value})


@pytest.mark.parametrize(
    ("address", "here"),
    [
        *((text, True) for text in ("127.0.0.1:1", "[::1]:1", "localhost:1", "unix:/run/t")),
        *((text, True) for text in ("dns:///localhost:1", "ipv4:127.0.0.1:1", "ipv6:[::1]:1")),
        *((text, False) for text in ("10.0.0.5:50052", "tracker:1", "0.0.0.0:1", "[::2]:1")),
        *((text, False) for text in ("dns://10.0.0.1/localhost:1", "ipv4:127.0.0.1:1,10.0.0.5:1")),
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
