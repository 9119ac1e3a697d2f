"""The HTTP side of the sidecar, and addresses of either side."""

import socket
import urllib.error
import urllib.request

import pytest
from grpc_health.v1 import health_pb2

from tests.foreign_client import (
    in_frame,
    opened,
)
from tests.served import (
    BY_STREAM,
    PATIENCE,
    eventually,
)


def test_http_serves_metrics_health_and_a_page(shared):
    stream = opened(shared, "http")
    stream.ask(in_frame(1))
    assert eventually(lambda: 'slice="http"' in shared.get("/metrics"))
    assert shared.metric("frames_total") >= 1
    assert shared.get("/healthz") == "ok\n"
    assert shared.get("/readyz") == "ready\n"
    assert shared.get("/metrics?name[]=up").startswith("# HELP calibration_")
    page = shared.get("/")
    assert page.startswith("<!doctype html>")
    assert "<td>http<td>" in page
    stream.close()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/metrics", "text/plain; version=0.0.4; charset=utf-8"),
        ("/healthz", "text/plain; charset=utf-8"),
        ("/", "text/html; charset=utf-8"),
    ],
)
def test_http_names_its_content_type(shared, path, kind):
    with urllib.request.urlopen(shared.http + path, timeout=PATIENCE) as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == kind
    head = urllib.request.Request(shared.http + path, method="HEAD")
    with urllib.request.urlopen(head, timeout=PATIENCE) as response:
        assert response.read() == b""


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/../../etc/passwd", 404),
        ("GET", "/metrics/", 404),
        ("POST", "/metrics", 501),
        ("PUT", "/", 501),
        ("DELETE", "/healthz", 501),
    ],
)
def test_http_refuses_everything_else(shared, method, path, status):
    data = b"x=1" if method in ("POST", "PUT") else None
    request = urllib.request.Request(shared.http + path, data=data, method=method)
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=PATIENCE)
    assert caught.value.code == status
    text = caught.value.read().decode()
    assert "Traceback" not in text
    assert "Python" not in str(caught.value.headers)


def test_both_ports_may_be_on_the_loopback_of_ipv6(start):
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    sidecar = start(BY_STREAM, "--grpc-address", "[::1]:0", "--http-address", "[::1]:0")
    assert sidecar.grpc.startswith("[::1]:")
    assert sidecar.health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE).status == 1
    assert sidecar.get("/healthz") == "ok\n"
