"""A detector's client and a sidecar that asks who is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from monitor.client import Access, MonitorClient
from monitor.wire.client_messages import Why
from tests.certificates import Authority, Pair
from tests.scripted_monitor import HEADER, answered_again, assert_raw, frame
from tests.served import BY_STREAM, PATIENCE, Sidecar, eventually, running

pytestmark = pytest.mark.components

TOKEN, WRONG = "data-" * 5, "none-" * 5


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"), "ours")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory, authority):
    """With mTLS, and a token for frames."""
    folder = tmp_path_factory.mktemp("guarded")
    server = authority.signed("server")
    tokens = written(folder / "tokens", TOKEN)
    config = f"""
[security]
certificate = "{server.certificate}"
key = "{server.key}"
client_authority = "{authority.certificate}"
data_token_file = "{tokens}"
"""
    with running(folder, BY_STREAM + config) as sidecar:
        yield sidecar


def written(path: Path, token: str) -> Path:
    path.touch(0o600)
    path.write_text(token + "\n", encoding="ascii")
    return path


def client(sidecar: Sidecar, access: Access) -> MonitorClient:
    return MonitorClient(sidecar.grpc, HEADER, timeout_seconds=PATIENCE, access=access)


def test_a_token_that_was_wrong_is_read_again_and_then_taken(guarded, authority, tmp_path):
    pair = authority.signed("client")
    token = written(tmp_path / "token", WRONG)
    access = Access(str(authority.certificate), str(pair.certificate), str(pair.key), str(token))
    with client(guarded, access) as detector:
        given = frame()
        assert eventually(lambda: detector.process(given).why is Why.REFUSED)
        result = detector.process(given)
        assert_raw(result, given)
        assert WRONG not in result.text
        written(token, TOKEN)
        assert answered_again(detector)


def test_a_certificate_that_was_wrong_is_read_again_and_then_taken(guarded, authority, tmp_path):
    stranger, pair = Authority(tmp_path, "stranger").signed("client"), authority.signed("client")
    shown = Pair(tmp_path / "shown.pem", tmp_path / "shown.key")
    stranger.written_to(shown)
    token = written(tmp_path / "token", TOKEN)
    access = Access(str(authority.certificate), str(shown.certificate), str(shown.key), str(token))
    with client(guarded, access) as detector:
        assert not detector.wait_connected(0.3)
        pair.written_to(shown)
        assert answered_again(detector)


def test_without_a_certificate_of_its_own_or_of_the_sidecar_a_client_stays_raw(
    guarded, authority, tmp_path
):
    other = Authority(tmp_path, "other")
    for access in (Access(), Access(str(authority.certificate)), Access(str(other.certificate))):
        with client(guarded, access) as detector:
            assert not detector.wait_connected(0.3)
            given = frame()
            result = detector.process(given)
            assert_raw(result, given)
            assert result.why is Why.DOWN


def test_files_that_are_not_there_are_a_mistake_that_is_told_at_once(tmp_path):
    for access in (Access(str(tmp_path / "no.pem")), Access(token_file=str(tmp_path / "none"))):
        with pytest.raises(ValueError, match=str(tmp_path)):
            MonitorClient("127.0.0.1:1", HEADER, access=access)
