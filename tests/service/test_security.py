"""Rights by token, certificates as files that change, and what a client shows; without a wire."""

import asyncio
import os
from pathlib import Path

import grpc
import pytest

from monitor.client import Access, InvalidAccess
from monitor.config import InvalidConfiguration, SecurityConfig
from monitor.frames.status import Counters
from monitor.service.security import (
    RIGHTS,
    Authorisation,
    NotPermitted,
    Right,
    Tokens,
    read_pem,
    right_of,
)
from monitor.v1 import perception_monitor_pb2, recalibrator_admin_pb2
from monitor.wire.access import LARGEST_FILE, LONGEST, MOST_TOKENS, read_tokens
from tests.administered import Caller, Refused
from tests.certificates import Authority, Pair
from tests.served import ADMIN, MONITOR
from tests.service.handled import handled

ONE, TWO = "one-" * 5, "two-" * 5


def written(folder: Path, **contents: str) -> SecurityConfig:
    files = {}
    for right, text in contents.items():
        path = folder / right
        path.touch(0o600)
        path.write_text(text, "utf-8")
        files[f"{right}_token_file"] = str(path)
    return SecurityConfig.model_validate(files)


def opens(tokens: Tokens, right: Right, *headers: str | bytes) -> bool:
    try:
        tokens.check(right, headers)
    except NotPermitted as error:
        assert not any(str(header)[7:] and str(header)[7:] in str(error) for header in headers)
        return False
    return True


def shows(tokens: Tokens, right: Right, token: str) -> bool:
    return opens(tokens, right, f"Bearer {token}")


def test_files_that_change_are_in_force_after_the_next_look(tmp_path, caplog):
    caplog.set_level("INFO")
    tokens = Tokens(written(tmp_path, data=ONE, admin="x" * 20))
    written(tmp_path, data=TWO)
    assert shows(tokens, Right.DATA, ONE)
    tokens.look_again()
    assert shows(tokens, Right.DATA, TWO) and not shows(tokens, Right.DATA, ONE)
    (tmp_path / "data").unlink()
    (tmp_path / "data").mkdir()
    for _ in range(2):
        tokens.look_again()
    assert shows(tokens, Right.DATA, TWO) and "data_token_file has changed" in caplog.text
    assert caplog.text.count("no regular file") == 1 and TWO not in caplog.text


def test_a_right_without_a_file_is_open_and_the_others_are_not(tmp_path, caplog):
    tokens = Tokens(written(tmp_path, truth=ONE))
    assert opens(tokens, Right.DATA)
    assert opens(tokens, Right.ADMIN)
    assert not opens(tokens, Right.TRUTH)
    assert "admin_token_file is empty" in caplog.text


def test_a_token_opens_what_it_is_for_and_that_of_administration_all(tmp_path):
    tokens = Tokens(written(tmp_path, data=ONE, truth=f"{TWO}\n{ONE}", admin="x" * 20))
    assert [shows(tokens, right, ONE) for right in Right] == [True, True, False]
    assert [shows(tokens, right, TWO) for right in Right] == [False, True, False]
    assert all(shows(tokens, right, "x" * 20) for right in Right)
    for held in (ONE, TWO, "x" * 20):
        assert held not in repr(tokens)  # digests alone are kept
    with pytest.raises(NotPermitted, match=r"needs the right 'data', .* token is for 'truth'"):
        tokens.check(Right.DATA, [f"Bearer {TWO}"])


@pytest.mark.parametrize(
    ("headers", "enough"),
    [
        *(((f"{scheme} {ONE}",), True) for scheme in ("Bearer", "bearer", "BEARER")),
        ((f"Bearer {ONE}".encode(),), True),
        ((), False),
        ((ONE,), False),
        ((f"Basic {ONE}",), False),
        (("Bearer ",), False),
        ((f"Bearer {ONE}", f"Bearer {ONE}"), False),
        *(((f"Bearer {wrong}",), False) for wrong in (ONE[:-1], ONE.upper(), f"{ONE}x")),
    ],
)
def test_a_token_that_is_not_shown_as_it_should_be_is_none(tmp_path, headers, enough):
    assert opens(Tokens(written(tmp_path, admin=ONE)), Right.ADMIN, *headers) == enough


UNUSABLE = [
    ("", "holds no token"),
    (" \n\n", "holds no token"),
    ("y" * 15, "token 1 has 15 characters, not 16 to"),
    (f"{ONE}\n" + "y" * (LONGEST + 1), f"token 2 has {LONGEST + 1} characters"),
    ("a secret of two words", "characters other than letters"),
    ("geheimnis-für-alle-leute", "characters other than letters"),
    ("\n".join(["z" * 20] * (MOST_TOKENS + 1)), f"at most {MOST_TOKENS}"),
]


@pytest.mark.parametrize(("text", "said"), UNUSABLE)
def test_a_file_that_holds_no_tokens_is_refused_and_its_text_is_not_shown(tmp_path, text, said):
    with pytest.raises(InvalidConfiguration, match=said) as found:
        Tokens(written(tmp_path, admin=text))
    assert "[security] admin_token_file = '" in str(found.value)
    with pytest.raises(InvalidAccess, match=said) as at_client:
        Access(token_file=str(tmp_path / "admin")).metadata("127.0.0.1:1")
    assert str(tmp_path / "admin") in str(at_client.value)
    for word in text.split():
        for error in (found, at_client):
            assert len(word) < 5 or word not in str(error.value)
    longest = "y" * 16 + "\n" + "y" * LONGEST + "\n" + "z" * 20
    (tmp_path / "admin").write_text(longest, "utf-8")
    assert len(read_tokens(str(tmp_path / "admin"), "it")) == 3


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o400, False), (0o640, True)])
def test_a_secret_that_others_can_read_is_warned_of(tmp_path, caplog, mode, warned):
    settings = written(tmp_path, admin=ONE)
    (tmp_path / "admin").chmod(mode)
    Tokens(settings)
    assert ("others than its owner can read it" in caplog.text) == warned


def test_every_method_of_the_contract_needs_a_right_and_unknown_ones_that_of_administration():
    services = [
        *perception_monitor_pb2.DESCRIPTOR.services_by_name.values(),
        *recalibrator_admin_pb2.DESCRIPTOR.services_by_name.values(),
    ]
    assert RIGHTS.keys() == {
        f"/{service.full_name}/{method.name}" for service in services for method in service.methods
    }
    needed = {right: {m.split("/")[-1] for m, r in RIGHTS.items() if r is right} for right in Right}
    assert needed[Right.DATA] == {
        *("Process", "ProcessFrame", "GetCalibration", "GetStatus", "WatchEvents")
    }
    assert needed[Right.TRUTH] == {"ReportGroundTruth"}
    for method in (
        *(f"/{ADMIN}/SomethingNew", f"/{MONITOR}/process", "/grpc.health.v1.HealthX/Check", ""),
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    ):
        assert right_of(method) is Right.ADMIN
    assert right_of("/grpc.health.v1.Health/Check") is None
    assert right_of("/grpc.health.v1.Health/Watch") is None


def test_refusals_are_counted_and_in_the_log_ever_more_rarely_and_without_the_token(
    tmp_path, caplog
):
    counters = Counters()
    authorisation = Authorisation(Tokens(written(tmp_path, admin=ONE, data=TWO)), counters)
    caplog.clear()
    for _ in range(100):
        shown = (("authorization", "Bearer nobody-knows-this-token"),)
        handler = asyncio.run(handled(authorisation, None, metadata=shown))
        with pytest.raises(Refused) as found:
            asyncio.run(handler.stream_stream(None, Caller()))
        assert found.value.status is grpc.StatusCode.UNAUTHENTICATED
    assert counters.calls_refused == {"unauthenticated": 100, "permission_denied": 0}
    assert len(caplog.records) == 7
    assert "nobody-knows" not in caplog.text
    shown = (("authorization", f"Bearer {TWO}"),)
    asyncio.run(handled(authorisation, None, f"/{ADMIN}/Promote", shown))
    assert counters.calls_refused == {"unauthenticated": 100, "permission_denied": 1}


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture
def settings(authority, tmp_path) -> SecurityConfig:
    place = Pair(tmp_path / "server.pem", tmp_path / "server.key")
    authority.signed("one").written_to(place)
    return SecurityConfig(
        certificate=str(place.certificate),
        key=str(place.key),
        client_authority=str(authority.certificate),
    )


ENCRYPTED = b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIGb\n-----END ENCRYPTED PRIVATE KEY-----"


@pytest.mark.components
@pytest.mark.parametrize("key", ["certificate", "key", "client_authority"])
@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda path: path.unlink(), "cannot be read (No such file or directory). Check the path"),
        (lambda path: path.write_bytes(b"nonsense"), "in PEM"),
        (lambda path: path.write_bytes(b""), "in PEM"),
        (lambda path: path.write_bytes(ENCRYPTED), "in PEM"),  # nobody is asked for a password
        (lambda path: path.write_bytes(bytes(LARGEST_FILE + 1)), "it is something else"),
        (lambda path: (path.unlink(), path.mkdir()), "is no regular file"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_its_key(settings, tmp_path, key, made, said):
    path = tmp_path / "authority.pem"
    path.write_bytes(Path(settings.client_authority).read_bytes())
    settings = settings.model_copy(update={"client_authority": str(path)})
    made(Path(getattr(settings, key)))
    with pytest.raises(InvalidConfiguration) as found:
        read_pem(settings)
    assert f"{key} = '{getattr(settings, key)}'" in str(found.value)
    assert "[security]" in str(found.value)
    assert said in str(found.value)


@pytest.mark.components
def test_a_client_shows_the_first_token_of_its_file_where_nobody_can_listen(authority, tmp_path):
    token = tmp_path / "token"
    token.write_text(f"\n {ONE} \nanother-one-for-the-server\n", "utf-8")
    plain = Access(token_file=str(token))
    for address in ("127.0.0.1:1", "[::1]:1", "localhost:1"):
        assert plain.metadata(address) == (("authorization", f"Bearer {ONE}"),)
    for address in ("vehicle:50051", "10.0.0.7:50051", "[fe80::1]:50051"):
        with pytest.raises(InvalidAccess, match="plain text"):
            plain.metadata(address)
        assert Access(str(authority.certificate), token_file=str(token)).metadata(address)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key": "k"}, "belong together"),
        ({"certificate": "c", "key": "k"}, "--certificate-authority"),
    ],
)
def test_options_of_a_client_that_make_no_sense_are_refused(options, said):
    with pytest.raises(InvalidAccess, match=said):
        Access(**options)


def test_a_file_of_a_client_that_is_not_there_is_named_with_its_option(tmp_path):
    with pytest.raises(InvalidAccess, match=r"--certificate-authority .*none' cannot be read"):
        Access(str(tmp_path / "none")).credentials()
    with pytest.raises(InvalidAccess, match=r"--token-file .*none' cannot be read"):
        Access(token_file=str(tmp_path / "none")).metadata("127.0.0.1:1")
    os.mkfifo(tmp_path / "pipe")  # it would block for ever
    with pytest.raises(InvalidAccess, match=r"--token-file .*pipe' is no regular file"):
        Access(token_file=str(tmp_path / "pipe")).metadata("127.0.0.1:1")
