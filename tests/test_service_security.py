"""A sidecar that asks who is there: certificates and tokens, and their change, over real TLS."""

import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from monitor.v1 import (
    perception_monitor_pb2,
    perception_monitor_pb2_grpc,
    recalibrator_admin_pb2,
)
from tests.certificates import Authority, Pair
from tests.foreign_client import failure, in_frame, in_header, serve_to_the_end
from tests.served import ADMIN, MONITOR, PATIENCE, ROOT, Conversation, Sidecar, eventually, running

pytestmark = pytest.mark.components

DATA, TRUTH, EVERYTHING, OLD = "data-" * 5, "truth-" * 5, "admin-" * 5, "old-data-" * 3
TOKENS = {"data": DATA, "truth": TRUTH, "admin": EVERYTHING}
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
DENIED = grpc.StatusCode.PERMISSION_DENIED
INVALID = grpc.StatusCode.INVALID_ARGUMENT
CHANNEL = (("grpc.max_reconnect_backoff_ms", 200),)


def secret(path: Path, *lines: str) -> Path:
    """A file that its owner alone can read, put in place whole."""
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
        """Of the certificate that a new connection sees."""
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

    @property
    def options(self) -> list[str]:
        """Of the verbs."""
        return [
            *("--address", self.sidecar.grpc),
            *("--certificate-authority", str(self.ours.certificate)),
            *("--certificate", str(self.client.certificate), "--key", str(self.client.key)),
        ]


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
    """Of a client whose certificate is right."""
    with guarded.channel(guarded.client) as made:
        yield made


def bearer(token: str | None) -> tuple[tuple[str, str], ...]:
    return () if token is None else (("authorization", f"Bearer {token}"),)


def call(channel: grpc.Channel, method: str, metadata: tuple[tuple[str, str], ...] = ()) -> bytes:
    """One message that is none, as bytes, to any method, streams included."""
    answers = channel.stream_stream(method)(iter([b"\xff"]), metadata=metadata, timeout=PATIENCE)
    return b"".join(answers)


def health(channel: grpc.Channel) -> int:
    stub = health_pb2_grpc.HealthStub(channel)
    answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
    return int(answer.status)


# ---- certificates


def test_a_client_with_the_right_certificate_is_served(channel):
    assert health(channel) == 1


def test_a_client_without_a_certificate_is_not_served(guarded):
    with guarded.channel(None) as channel:
        assert failure(lambda: health(channel))[0] is grpc.StatusCode.UNAVAILABLE


def test_a_client_whose_certificate_is_of_another_authority_is_not_served(guarded, tmp_path):
    stranger = Authority(tmp_path, "theirs").signed("stranger")
    with guarded.channel(stranger) as channel:
        assert failure(lambda: health(channel))[0] is grpc.StatusCode.UNAVAILABLE


def test_a_client_whose_certificate_has_expired_is_not_served(guarded):
    with guarded.channel(guarded.ours.signed("late", days=-1)) as channel:
        assert failure(lambda: health(channel))[0] is grpc.StatusCode.UNAVAILABLE


def test_a_client_that_trusts_another_authority_does_not_talk_to_the_sidecar(guarded, tmp_path):
    with guarded.channel(guarded.client, Authority(tmp_path, "theirs")) as channel:
        assert failure(lambda: health(channel))[0] is grpc.StatusCode.UNAVAILABLE


def test_a_client_without_tls_is_not_served(guarded):
    with grpc.insecure_channel(guarded.sidecar.grpc) as channel:
        assert failure(lambda: health(channel))[0] is grpc.StatusCode.UNAVAILABLE


def test_a_renewed_certificate_is_shown_to_new_connections_and_ends_no_stream(guarded, channel):
    before = guarded.fingerprint()
    method = perception_monitor_pb2_grpc.PerceptionMonitorStub(channel).Process
    stream = Conversation(lambda *a, **k: method(*a, metadata=bearer(DATA), **k))
    assert stream.ask(in_header("renewed")).header.accepted
    guarded.ours.signed("renewed").written_to(guarded.server)
    assert eventually(lambda: guarded.fingerprint() != before)
    assert stream.ask(in_frame(1)).frame.frame_id == 1
    with guarded.channel(guarded.client) as fresh:
        assert health(fresh) == 1
    stream.close()


def test_a_certificate_that_is_renewed_badly_leaves_the_one_before(guarded):
    before = guarded.fingerprint()
    good = guarded.server.key.read_bytes()
    guarded.server.key.write_bytes(guarded.ours.signed("other").key.read_bytes())
    assert eventually(lambda: "cannot be used together" in guarded.sidecar.log.read_text("utf-8"))
    assert guarded.fingerprint() == before
    guarded.server.key.write_bytes(good)
    assert guarded.fingerprint() == before


# ---- tokens

# What a right-minded call with nonsense in it is told: that it is nonsense.
UNARY = {
    f"/{MONITOR}/ProcessFrame": "data",
    f"/{MONITOR}/GetCalibration": "data",
    f"/{MONITOR}/GetStatus": "data",
    f"/{MONITOR}/WatchEvents": "data",
    f"/{MONITOR}/ImportStatistics": "admin",
    f"/{MONITOR}/AcknowledgeDrift": "admin",
    **{f"/{ADMIN}/{m}": "admin" for m in ("List", "Get", "Promote", "Fit", "Rollback", "Pin")},
}
STREAMS = {
    f"/{MONITOR}/Process": "data",
    f"/{MONITOR}/ReportGroundTruth": "truth",
    f"/{MONITOR}/ExportStatistics": "admin",
}


def test_every_method_of_the_contract_is_among_those_that_are_tried():
    names = {
        f"/{service.full_name}/{method.name}"
        for file in (perception_monitor_pb2.DESCRIPTOR, recalibrator_admin_pb2.DESCRIPTOR)
        for service in file.services_by_name.values()
        for method in service.methods
    }
    assert names == UNARY.keys() | STREAMS.keys()


@pytest.mark.parametrize(("method", "right"), (UNARY | STREAMS).items())
@pytest.mark.parametrize("held", TOKENS)
def test_a_token_opens_what_it_is_for_and_that_of_administration_all(channel, method, right, held):
    metadata = bearer(TOKENS[held])
    if held not in (right, "admin"):
        code, text = failure(lambda: call(channel, method, metadata))
        assert code is DENIED
        assert f"needs the right '{right}', and the bearer token is for '{held}'" in text
        assert TOKENS[held] not in text
    elif method in UNARY:
        assert failure(lambda: call(channel, method, metadata))[0] is INVALID
    else:
        assert call(channel, method, metadata)


@pytest.mark.parametrize("method", UNARY | STREAMS)
def test_without_a_token_or_with_a_wrong_one_nothing_opens(channel, method):
    for wrong in (None, "wrong" * 5, DATA[:-1], DATA.upper(), f"{DATA}x"):
        code, text = failure(lambda wrong=wrong: call(channel, method, bearer(wrong)))
        assert code is UNAUTHENTICATED
        assert wrong is None or wrong not in text


@pytest.mark.parametrize(
    "metadata",
    [
        (("authorization", DATA),),
        (("authorization", f"Basic {DATA}"),),
        (("authorization", "Bearer "),),
        (("authorization", f"Bearer {DATA}"), ("authorization", f"Bearer {DATA}")),
        (("token", DATA),),
    ],
)
def test_a_token_that_is_not_shown_as_it_should_be_is_none(channel, metadata):
    method = f"/{MONITOR}/GetCalibration"
    assert failure(lambda: call(channel, method, metadata))[0] is UNAUTHENTICATED


def test_health_needs_no_token_and_reflection_that_of_administration(channel):
    assert health(channel) == 1
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    asked = reflection_pb2.ServerReflectionRequest(list_services="")

    def services(token: str | None) -> list[reflection_pb2.ServerReflectionResponse]:
        return list(
            stub.ServerReflectionInfo(iter([asked]), metadata=bearer(token), timeout=PATIENCE)
        )

    assert services(EVERYTHING)
    assert failure(lambda: services(DATA))[0] is DENIED
    assert failure(lambda: services(None))[0] is UNAUTHENTICATED


def test_what_does_not_exist_is_not_told_to_who_has_no_right(channel):
    assert failure(lambda: call(channel, "/x.Y/Z"))[0] is UNAUTHENTICATED
    code, _ = failure(lambda: call(channel, "/x.Y/Z", bearer(EVERYTHING)))
    assert code is grpc.StatusCode.UNIMPLEMENTED


def test_tokens_are_renewed_while_a_stream_that_used_the_old_one_goes_on(guarded, channel):
    path, method = guarded.folder / "data", f"/{MONITOR}/GetCalibration"

    def code(token: str) -> grpc.StatusCode:
        return failure(lambda: call(channel, method, bearer(token)))[0]

    secret(path, OLD, DATA)
    assert eventually(lambda: code(OLD) is INVALID)
    assert code(DATA) is INVALID
    stub = perception_monitor_pb2_grpc.PerceptionMonitorStub(channel)
    stream = Conversation(lambda *a, **k: stub.Process(*a, metadata=bearer(OLD), **k))
    assert stream.ask(in_header("tokens")).header.accepted
    secret(path, DATA)
    assert eventually(lambda: code(OLD) is UNAUTHENTICATED)
    assert stream.ask(in_frame(1)).frame.frame_id == 1
    stream.close()


def test_a_token_file_that_is_emptied_leaves_the_tokens_of_before(guarded, channel):
    secret(guarded.folder / "truth", "")
    assert eventually(lambda: "holds no token" in guarded.sidecar.log.read_text("utf-8"))
    assert call(channel, f"/{MONITOR}/ReportGroundTruth", bearer(TRUTH))
    secret(guarded.folder / "truth", TRUTH)


# ---- the verbs


def verb(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "monitor", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE,
    )


def test_a_verb_shows_its_certificate_and_its_token(guarded):
    token = ("--token-file", str(guarded.folder / "admin"))
    done = verb("recalibrators", "list", "--json", *guarded.options, *token)
    assert done.returncode == 0, done.stderr
    assert '"recalibrators"' in done.stdout


def test_a_verb_with_a_token_of_another_right_says_which_one_it_needs(guarded):
    token = ("--token-file", str(guarded.folder / "data"))
    output = ("--output", str(guarded.folder / "exported.state"))
    done = verb("export", *output, *guarded.options, *token)
    assert done.returncode == 1
    assert "needs the right 'admin', and the bearer token is for 'data'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


# ---- what does not start


def test_a_sidecar_whose_files_cannot_be_used_does_not_start(tmp_path):
    config = tmp_path / "sidecar.toml"
    text = f"[security]\ndata_token_file = '{tmp_path}/none'\n[state]\nfolder = ''\n"
    config.write_text(text, "utf-8")
    for options in ((), ("--check",)):
        ended = serve_to_the_end("--config", str(config), *options)
        assert ended.returncode == 1
        assert f"[security] data_token_file = '{tmp_path}/none' cannot be read" in ended.stderr
        assert len(ended.stderr.splitlines()) == 1


def test_replay_shows_nothing_to_a_sidecar_that_it_starts_itself(tmp_path):
    done = verb("replay", "drive.csv", "--token-file", str(tmp_path / "token"))
    assert done.returncode == 1
    assert "--token-file are for a sidecar that runs: name its --address" in done.stderr
