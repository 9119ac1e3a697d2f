"""A real sidecar that asks who is there, over TLS: certificates, tokens, and their change."""

import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from monitor.client import Access, MonitorClient
from monitor.service.security import RIGHTS
from monitor.v1 import perception_monitor_pb2_grpc
from monitor.wire.client_messages import Why
from tests.certificates import Authority, Pair
from tests.foreign_client import failure, in_frame, in_header
from tests.scripted_monitor import HEADER, answered_again, assert_raw, frame
from tests.served import MONITOR, PATIENCE, Conversation, Sidecar, eventually, running

pytestmark = pytest.mark.components

DATA, TRUTH, EVERYTHING, OLD = "data-" * 5, "truth-" * 5, "admin-" * 5, "old-data-" * 3
TOKENS = {"data": DATA, "truth": TRUTH, "admin": EVERYTHING}
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
DENIED = grpc.StatusCode.PERMISSION_DENIED
INVALID = grpc.StatusCode.INVALID_ARGUMENT
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
CHANNEL = (("grpc.max_reconnect_backoff_ms", 200),)
STREAMS = {f"/{MONITOR}/{name}" for name in ("Process", "ReportGroundTruth", "ExportStatistics")}


def secret(path: Path, *lines: str) -> Path:
    """Puts a file in place whole that its owner alone can read."""
    new = path.with_name(f"{path.name}.new")
    new.touch(0o600)
    new.write_text("\n".join(lines) + "\n", encoding="ascii")
    return new.replace(path)


@dataclass(frozen=True, slots=True)
class Guarded:
    """A sidecar with mTLS and a token for every right, and who may and may not talk to it."""

    sidecar: Sidecar
    folder: Path
    ours: Authority
    server: Pair
    client: Pair

    def channel(self, client: Pair | None, authority: Authority | None = None) -> grpc.Channel:
        credentials = grpc.ssl_channel_credentials(
            (authority or self.ours).certificate.read_bytes(),
            client and client.key.read_bytes(),
            client and client.certificate.read_bytes(),
        )
        return grpc.secure_channel(self.sidecar.grpc, credentials, options=CHANNEL)

    def fingerprint(self) -> bytes:
        context = ssl.create_default_context(cafile=str(self.ours.certificate))
        context.load_cert_chain(self.client.certificate, self.client.key)
        context.set_alpn_protocols(["h2"])
        host, _, port = self.sidecar.grpc.rpartition(":")
        with (
            socket.create_connection((host, int(port)), PATIENCE) as plain,
            context.wrap_socket(plain, server_hostname=host) as tls,
        ):
            shown = tls.getpeercert(binary_form=True)
        assert shown
        return shown

    def access(self, shown: Pair, token: Path) -> Access:
        authority, certificate = self.ours.certificate, shown.certificate
        return Access(str(authority), str(certificate), str(shown.key), str(token))


CONFIG = """
[server]
reflection = true
[metrics]
refresh_seconds = 0.2
[security]
certificate = "{folder}/server.pem"
key = "{folder}/server.key"
client_authority = "{folder}/ours.pem"
data_token_file = "{folder}/data"
truth_token_file = "{folder}/truth"
admin_token_file = "{folder}/admin"
reload_seconds = 0.1
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    ours = Authority(folder, "ours")
    server, client = ours.signed("server"), ours.signed("client")
    for right, token in TOKENS.items():
        secret(folder / right, token)
    with running(folder, CONFIG.format(folder=folder)) as sidecar:
        yield Guarded(sidecar, folder, ours, server, client)
    log = sidecar.log.read_text("utf-8")
    for token in (*TOKENS.values(), OLD):
        assert token not in log
    assert "PRIVATE KEY" not in log


@pytest.fixture(scope="module")
def channel(guarded) -> Iterator[grpc.Channel]:
    with guarded.channel(guarded.client) as made:
        yield made


def bearer(token: str | None) -> tuple[tuple[str, str], ...]:
    return () if token is None else (("authorization", f"Bearer {token}"),)


def call(channel: grpc.Channel, method: str, token: str | None = None) -> bytes:
    """Sends one message that is none, as bytes, to any method, streams included."""
    answers = channel.stream_stream(method)
    return b"".join(answers(iter([b"\xff"]), metadata=bearer(token), timeout=PATIENCE))


def health(channel: grpc.Channel) -> int:
    stub = health_pb2_grpc.HealthStub(channel)
    return int(stub.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE).status)


def test_a_client_is_served_with_a_certificate_of_our_authority_alone(guarded, channel, tmp_path):
    theirs = Authority(tmp_path, "theirs")
    assert health(channel) == 1
    for other in (
        guarded.channel(None),
        guarded.channel(theirs.signed("stranger")),
        guarded.channel(guarded.ours.signed("late", days=-1)),  # expired
        guarded.channel(guarded.client, theirs),  # it trusts another authority
        grpc.insecure_channel(guarded.sidecar.grpc),
    ):
        with other:
            assert failure(lambda other=other: health(other))[0] is UNAVAILABLE


def test_every_method_needs_its_token_and_what_does_not_exist_that_of_administration(channel):
    for method, right in RIGHTS.items():
        for wrong in (None, "wrong" * 5):
            code, text = failure(lambda m=method, w=wrong: call(channel, m, w))
            assert code is UNAUTHENTICATED
            assert wrong is None or wrong not in text
        for held, token in TOKENS.items():
            if held not in (right, "admin"):
                code, text = failure(lambda m=method, t=token: call(channel, m, t))
                assert code is DENIED
                assert f"needs the right '{right}', and the bearer token is for '{held}'" in text
                assert token not in text
            elif method in STREAMS:
                assert call(channel, method, token)
            else:
                # It is told that the message is nonsense.
                assert failure(lambda m=method, t=token: call(channel, m, t))[0] is INVALID
    assert failure(lambda: call(channel, "/x.Y/Z"))[0] is UNAUTHENTICATED
    code, _ = failure(lambda: call(channel, "/x.Y/Z", EVERYTHING))
    assert code is grpc.StatusCode.UNIMPLEMENTED


def test_renewed_files_are_in_force_soon_bad_ones_are_not_and_no_stream_ends(guarded, channel):
    folder, before = guarded.folder, guarded.fingerprint()
    stub = perception_monitor_pb2_grpc.PerceptionMonitorStub(channel)

    def code(token: str) -> grpc.StatusCode:
        return failure(lambda: call(channel, f"/{MONITOR}/GetCalibration", token))[0]

    def logged(words: str) -> bool:
        return words in guarded.sidecar.log.read_text("utf-8")

    secret(folder / "data", OLD, DATA)
    assert eventually(lambda: code(OLD) is INVALID)
    assert code(DATA) is INVALID
    stream = Conversation(lambda *a, **k: stub.Process(*a, metadata=bearer(OLD), **k))
    assert stream.ask(in_header("renewed")).header.accepted
    secret(folder / "data", DATA)
    assert eventually(lambda: code(OLD) is UNAUTHENTICATED)
    secret(folder / "truth", "")
    assert eventually(lambda: logged("holds no token"))
    assert call(channel, f"/{MONITOR}/ReportGroundTruth", TRUTH)
    secret(folder / "truth", TRUTH)
    # A key that does not fit leaves the certificate before; a pair that fits is shown.
    guarded.server.key.write_bytes(guarded.ours.signed("other").key.read_bytes())
    assert eventually(lambda: logged("cannot be used together"))
    assert guarded.fingerprint() == before
    guarded.ours.signed("renewed").written_to(guarded.server)
    assert eventually(lambda: guarded.fingerprint() != before)
    with guarded.channel(guarded.client) as fresh:
        assert health(fresh) == 1
    assert stream.ask(in_frame(1)).frame.frame_id == 1
    stream.close()


def test_a_detector_with_a_wrong_token_or_certificate_reads_it_again_and_is_then_served(
    guarded, tmp_path
):
    def detector(access: Access) -> MonitorClient:
        return MonitorClient(guarded.sidecar.grpc, HEADER, timeout_seconds=PATIENCE, access=access)

    given, wrong = frame(), "none-" * 5
    token = secret(tmp_path / "token", wrong)
    with detector(guarded.access(guarded.client, token)) as client:
        assert eventually(lambda: client.process(given).why is Why.REFUSED)
        result = client.process(given)
        assert_raw(result, given)
        assert wrong not in result.text
        secret(token, DATA)
        assert answered_again(client)
    shown = Pair(tmp_path / "shown.pem", tmp_path / "shown.key")
    Authority(tmp_path, "stranger").signed("client").written_to(shown)
    with detector(guarded.access(shown, token)) as client:
        assert not client.wait_connected(0.3)
        guarded.client.written_to(shown)
        assert answered_again(client)
    for access in (Access(), Access(str(guarded.ours.certificate))):
        with detector(access) as client:
            assert not client.wait_connected(0.3)
            result = client.process(given)
            assert_raw(result, given)
            assert result.why is Why.DOWN
