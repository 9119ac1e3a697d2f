"""TLS: the certificates of the server, which may change while it runs, and how clients connect."""

from __future__ import annotations

import hashlib
import logging
import ssl
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from monitor.config import InvalidConfiguration
from monitor.config_security import SecurityConfig, is_loopback
from monitor.edges.private_files import read_private, warn_of_readers
from monitor.edges.tokens import read_tokens

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pem:
    """What was read of the three files; they fit together."""

    certificate: bytes
    key: bytes = field(repr=False)
    client_authority: bytes

    def configuration(self) -> grpc.ServerCertificateConfiguration:
        """As gRPC takes it."""
        pair = [(self.key, self.certificate)]
        return grpc.ssl_server_certificate_configuration(pair, self.client_authority or None)

    @property
    def fingerprint(self) -> str:
        """The first hexadecimal digits of the certificate's SHA-256, as openssl prints it."""
        begin, end = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"
        first = self.certificate[self.certificate.index(begin) :].split(end)[0] + end
        der = ssl.PEM_cert_to_DER_cert(first.decode("ascii"))
        return hashlib.sha256(der).hexdigest()[:16]


def read_pem(settings: SecurityConfig) -> Pem:
    """The files as they are now. Raises InvalidConfiguration where they do not fit together."""
    found = _read(settings)
    _check(settings)
    if _read(settings) != found:
        raise InvalidConfiguration(
            f"[security] certificate = '{settings.certificate}' was replaced while it was read. "
            "Try again when all its files are there."
        )
    return found


def _read(settings: SecurityConfig) -> Pem:
    authority = settings.client_authority
    return Pem(
        read_private(settings.certificate, "certificate"),
        read_private(settings.key, "key"),
        read_private(authority, "client_authority") if authority else b"",
    )


def _check(settings: SecurityConfig) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(settings.certificate, settings.key, password=_no_password)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise InvalidConfiguration(
            f"[security] certificate = '{settings.certificate}' and key = '{settings.key}' cannot "
            f"be used together ({_short(error)}). Name a certificate in PEM, and its own key "
            "without a password."
        ) from None
    if not settings.client_authority:
        return
    try:
        context.load_verify_locations(settings.client_authority)
    except (ssl.SSLError, OSError) as error:
        raise InvalidConfiguration(
            f"[security] client_authority = '{settings.client_authority}' cannot be used "
            f"({_short(error)}). Name the certificates of the authorities in PEM."
        ) from None


def _no_password() -> str:
    """Without it, OpenSSL would ask at the terminal."""
    raise ValueError("the key has a password")


def _short(error: Exception) -> str:
    reason = error.reason if isinstance(error, ssl.SSLError) else None
    return reason.replace("_", " ").lower() if reason else str(error)


@dataclass(slots=True)
class ServerCertificates:
    """The certificates in force: those of the files, as of the last look at which they were whole.

    Connections that are open keep the certificate that they began with.
    """

    settings: SecurityConfig
    _pem: Pem = field(init=False)
    # In force, and what gRPC has been given. Each is written in one thread alone, that of
    # look_again or gRPC's: with one that both wrote, a change could be lost.
    _current: grpc.ServerCertificateConfiguration = field(init=False)
    _given: grpc.ServerCertificateConfiguration = field(init=False)
    _complaint: str = ""

    def __post_init__(self) -> None:
        """Raises InvalidConfiguration."""
        self._pem = read_pem(self.settings)
        self._current = self._given = self._pem.configuration()
        warn_of_readers(self.settings.key, "key")

    def credentials(self) -> grpc.ServerCredentials:
        """For the port to listen on."""
        self._given = self._current
        return grpc.dynamic_ssl_server_credentials(
            self._given, self._fetch, bool(self.settings.client_authority)
        )

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC for every new connection, in a thread of its own; None: as before."""
        current = self._current
        if current is self._given:
            return None
        self._given = current
        return current

    def look_again(self) -> None:
        """Take over what the files hold now. What cannot be used is said once, and left alone."""
        try:
            found = read_pem(self.settings)
        except InvalidConfiguration as error:
            if str(error) != self._complaint:
                log.warning("%s Until then the certificate of before is used.", error)
            self._complaint = str(error)
            return
        self._complaint = ""
        if found != self._pem:
            self._pem = found
            self._current = found.configuration()
            log.info("security: new connections see certificate sha256:%s", found.fingerprint)


class InvalidAccess(ValueError):
    """What a client is to show of itself cannot be used."""


@dataclass(frozen=True, slots=True)
class Access:
    """What a client trusts, and what it shows of itself; each a path of a file, or ''.

    certificate_authority  PEM; the sidecar must have a certificate of one of these. '': plain text
    certificate, key       PEM; of the client, where the sidecar asks for it
    token_file             its first line is the bearer token
    """

    certificate_authority: str = ""
    certificate: str = ""
    key: str = ""
    token_file: str = ""

    def __post_init__(self) -> None:
        """Raises InvalidAccess."""
        if bool(self.certificate) != bool(self.key):
            raise InvalidAccess(
                "--certificate and --key belong together: name both, or neither of them."
            )
        if self.certificate and not self.certificate_authority:
            raise InvalidAccess(
                f"--certificate {self.certificate} is of no use in plain text: name the authority "
                "of the sidecar with --certificate-authority."
            )

    def credentials(self) -> grpc.ChannelCredentials | None:
        """Of the channel; None: plain text. Raises InvalidAccess."""
        if not self.certificate_authority:
            return None
        return grpc.ssl_channel_credentials(
            _bytes(self.certificate_authority, "--certificate-authority"),
            _bytes(self.key, "--key") if self.key else None,
            _bytes(self.certificate, "--certificate") if self.certificate else None,
        )

    def metadata(self, address: str) -> tuple[tuple[str, str], ...]:
        """What goes with every call to an address. Raises InvalidAccess."""
        if not self.token_file:
            return ()
        host = address.rpartition(":")[0].strip("[]")
        if not self.certificate_authority and not is_loopback(host):
            raise InvalidAccess(
                f"--token-file {self.token_file}: the token would go to {address} in plain text. "
                "Name the authority of the sidecar with --certificate-authority."
            )
        data = _bytes(self.token_file, "--token-file")
        try:
            token = read_tokens(data, self.token_file)[0]
        except ValueError as error:
            raise InvalidAccess(f"--token-file {error}") from None
        return (("authorization", f"Bearer {token.decode('ascii')}"),)

    def channel(self, address: str, options: Sequence[tuple[str, int | str]]) -> grpc.aio.Channel:
        """To a sidecar. Raises InvalidAccess."""
        if is_loopback(address.rpartition(":")[0].strip("[]")):
            # Where a proxy is set for the web, it is not meant for the sidecar beside us.
            options = [*options, ("grpc.enable_http_proxy", 0)]
        credentials = self.credentials()
        if credentials is None:
            return grpc.aio.insecure_channel(address, options=options)
        return grpc.aio.secure_channel(address, credentials, options=options)


PLAIN = Access()


def _bytes(path: str, option: str) -> bytes:
    try:
        # A pipe that nobody writes to would keep us for ever; one that is read once is empty for
        # the next connection.
        if not stat.S_ISREG(Path(path).stat().st_mode):
            raise InvalidAccess(f"{option} {path}: is no regular file. Name one.")
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidAccess(
            f"{option} {path}: cannot be read ({error.strerror}). Check the path."
        ) from None
