"""Certificates of the server, as files that change, and what clients show of themselves."""

import logging
import os
from pathlib import Path

import pytest

from monitor.client import Access, InvalidAccess
from monitor.config import InvalidConfiguration, SecurityConfig
from monitor.service.security import LARGEST, ServerCertificates, read_pem, read_private
from tests.certificates import Authority, Pair

TOKEN = "a-token-of-enough-characters"


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="module")
def signed(authority) -> dict[str, Pair]:
    return {name: authority.signed(name) for name in ("one", "other")}


@pytest.fixture
def settings(authority, signed, tmp_path) -> SecurityConfig:
    place = Pair(tmp_path / "server.pem", tmp_path / "server.key")
    signed["one"].written_to(place)
    return SecurityConfig(
        certificate=str(place.certificate),
        key=str(place.key),
        client_authority=str(authority.certificate),
    )


def place_of(settings: SecurityConfig) -> Pair:
    return Pair(Path(settings.certificate), Path(settings.key))


@pytest.mark.components
def test_a_certificate_is_taken_over_by_the_first_connection_after_it_has_changed(
    settings, signed, caplog
):
    caplog.set_level(logging.INFO)
    certificates = ServerCertificates(settings)
    assert certificates._fetch() is None
    certificates.look_again()
    assert certificates._fetch() is None
    signed["other"].written_to(place_of(settings))
    assert certificates._fetch() is None
    certificates.look_again()
    assert f"sha256:{read_pem(settings).fingerprint}" in caplog.text
    assert certificates._fetch() is not None
    assert certificates._fetch() is None


@pytest.mark.components
def test_of_several_changes_the_next_connection_sees_the_last_and_none_sees_it_twice(
    settings, signed
):
    certificates = ServerCertificates(settings)
    certificates.credentials()
    for name in ("other", "one", "other"):
        signed[name].written_to(place_of(settings))
        certificates.look_again()
    newest = certificates._changed[0]
    assert certificates._fetch() is newest
    assert certificates._fetch() is None


def test_a_pipe_that_nobody_writes_to_is_refused_and_not_awaited(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidConfiguration, match="no regular file"):
        read_private(str(tmp_path / "pipe"), "key")


def test_reading_a_folder_in_place_of_a_file_leaves_nothing_open(tmp_path):
    before = set(Path("/proc/self/fd").iterdir())
    for _ in range(5):
        with pytest.raises(InvalidConfiguration, match="no regular file"):
            read_private(str(tmp_path), "key")
    # What other tests left behind may be closed meanwhile.
    assert set(Path("/proc/self/fd").iterdir()) <= before


@pytest.mark.components
def test_a_certificate_without_its_key_is_complained_of_once_and_then_taken_when_the_key_comes(
    settings, signed, caplog
):
    certificates = ServerCertificates(settings)
    Path(settings.certificate).write_bytes(signed["other"].certificate.read_bytes())
    for _ in range(3):
        certificates.look_again()
    assert certificates._fetch() is None
    assert caplog.text.count("cannot be used together (key values mismatch)") == 1
    assert "Until then the certificate read before stays active." in caplog.text
    Path(settings.key).write_bytes(signed["other"].key.read_bytes())
    certificates.look_again()
    assert certificates._fetch() is not None


@pytest.mark.components
@pytest.mark.parametrize("key", ["certificate", "key", "client_authority"])
@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda path: path.unlink(), "cannot be read (No such file or directory). Check the path"),
        (lambda path: path.write_bytes(b"nonsense"), "in PEM"),
        (lambda path: path.write_bytes(b""), "in PEM"),
        (lambda path: path.write_bytes(bytes(LARGEST + 1)), "it is something else"),
        (lambda path: (path.unlink(), path.mkdir()), "s a directory"),
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
    assert said in str(found.value) or "no regular file" in str(found.value)


@pytest.mark.components
def test_a_key_with_a_password_is_refused_and_nobody_is_asked_for_it(settings):
    key = Path(settings.key)
    key.write_bytes(
        b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIGbMFcGCSqG\n-----END ENCRYPTED PRIVATE KEY-----"
    )
    with pytest.raises(InvalidConfiguration, match="without a password"):
        read_pem(settings)


@pytest.mark.components
@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o400, False), (0o640, True)])
def test_a_key_that_others_can_read_is_warned_of(settings, caplog, mode, warned):
    Path(settings.key).chmod(mode)
    ServerCertificates(settings)
    assert ("others than its owner can read it" in caplog.text) == warned


@pytest.mark.components
def test_a_key_is_in_no_text_of_what_holds_it(settings):
    certificates = ServerCertificates(settings)
    assert "PRIVATE" not in repr(certificates)
    assert "PRIVATE" not in repr(certificates._pem)


# ---- clients


def token_file(folder: Path, text: str = TOKEN) -> str:
    path = folder / "token"
    path.write_text(text, "utf-8")
    return str(path)


def test_a_client_that_names_nothing_talks_in_plain_text_and_shows_nothing():
    assert Access().credentials() is None
    assert Access().metadata("vehicle:50051") == ()


def test_a_client_shows_the_first_token_of_its_file(tmp_path):
    access = Access(token_file=token_file(tmp_path, f"\n {TOKEN} \nanother-one-for-the-server\n"))
    assert access.metadata("127.0.0.1:1") == (("authorization", f"Bearer {TOKEN}"),)
    assert access.metadata("[::1]:1") == access.metadata("localhost:1")


@pytest.mark.components
@pytest.mark.parametrize("address", ["vehicle:50051", "10.0.0.7:50051", "[fe80::1]:50051"])
def test_a_client_sends_its_token_over_a_network_only_where_that_is_encrypted(
    authority, tmp_path, address
):
    plain = Access(token_file=token_file(tmp_path))
    with pytest.raises(InvalidAccess, match="plain text"):
        plain.metadata(address)
    encrypted = Access(str(authority.certificate), token_file=token_file(tmp_path))
    assert encrypted.metadata(address)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"certificate": "c", "certificate_authority": "a"}, "belong together"),
        ({"key": "k"}, "belong together"),
        ({"certificate": "c", "key": "k"}, "--certificate-authority"),
    ],
)
def test_options_of_a_client_that_make_no_sense_are_refused(options, said):
    with pytest.raises(InvalidAccess, match=said):
        Access(**options)


@pytest.mark.parametrize(
    ("text", "said"), [("", "holds no token"), ("short", "5 characters"), ("ä" * 20, "characters")]
)
def test_a_token_file_that_cannot_be_used_is_named_and_its_token_is_not(tmp_path, text, said):
    access = Access(token_file=token_file(tmp_path, text))
    with pytest.raises(InvalidAccess, match=said) as found:
        access.metadata("127.0.0.1:1")
    assert access.token_file in str(found.value)
    assert not text or text not in str(found.value)


def test_a_file_of_a_client_that_is_not_there_is_named_with_its_option(tmp_path):
    with pytest.raises(InvalidAccess, match=r"--certificate-authority .*none: cannot be read"):
        Access(str(tmp_path / "none")).credentials()
    with pytest.raises(InvalidAccess, match=r"--token-file .*none: cannot be read"):
        Access(token_file=str(tmp_path / "none")).metadata("127.0.0.1:1")
