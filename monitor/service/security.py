"""Admission of gRPC calls, by certificate, bearer token, right and number of open calls.

A call is checked once, when it begins, never for a message. Contents of keys and tokens never get
into an error or the log: of tokens only SHA-256 digests are kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import inspect
import logging
import ssl
import stat
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

import grpc

from monitor.config import SecurityConfig
from monitor.frames.status import Counters
from monitor.service.calls import Context, refuse_call
from monitor.wire.access import InvalidConfiguration, read_file, read_tokens
from monitor.wire.values import ADMIN, MONITOR

log = logging.getLogger(__name__)

_SCHEME = "bearer "

# Health calls at a time, besides max_calls, so that a full sidecar still says that it lives.
MOST_PROBES = 64
PROBES_END = "end some that watch the health."
_HEALTH = "/grpc.health.v1.Health/"


def warn_of_readers(path: str, key: str) -> None:
    """Logs a warning if others than its owner may read or change a secret."""
    mode = stat.S_IMODE(Path(path).stat().st_mode)
    if mode & 0o077:
        log.warning(
            "[security] %s = '%s' has mode %04o: others than its owner can read it. chmod 600 it.",
            *(key, path, mode),
        )


class Right(StrEnum):
    """The right that a call needs. The right of administration includes the others."""

    DATA = "data"
    TRUTH = "truth"
    ADMIN = "admin"


class NotPermitted(PermissionError):
    """A call shows no token that is known, or one that is for something else: a code and a text."""


T = TypeVar("T")


class Watched(Generic[T]):
    """Holds what was read from files the last time that they could be used.

    read  raises InvalidConfiguration
    kept  subject and verb of the log's sentence, of what is kept while they cannot be used
    """

    def __init__(self, read: Callable[[], T], kept: str) -> None:
        self.value, self._read, self._kept, self._complaint = read(), read, kept, ""

    def look_again(self) -> bool:
        """Reads the files again and tells if they hold something else; logs a fault once."""
        try:
            found = self._read()
        except InvalidConfiguration as error:
            if str(error) != self._complaint:
                log.warning("%s Until then %s active.", error, self._kept)
            self._complaint = str(error)
            return False
        before, self.value, self._complaint = self.value, found, ""
        return found != before


class Tokens:
    """The accepted tokens, from the last contents of the files that could be used."""

    def __init__(self, settings: SecurityConfig) -> None:
        """Raises InvalidConfiguration."""
        self._digests: dict[Right, Watched[tuple[bytes, ...]]] = {}
        for key, path in settings.token_files.items():
            right, read = Right(key.removesuffix("_token_file")), partial(_read_digests, path, key)
            self._digests[right] = Watched(read, "the tokens read before stay")
            warn_of_readers(path, key)
        if self._digests and Right.ADMIN not in self._digests:
            log.warning(
                "[security] admin_token_file is empty: whoever can connect may promote "
                "recalibrators, though other rights need a token. Name one."
            )

    def check(self, right: Right, authorization: Iterable[str | bytes]) -> None:
        """Raises NotPermitted if the token lacks the right.

        authorization  the values of the headers of this name
        """
        if right not in self._digests:
            return
        digest = _digest_of(tuple(authorization))
        # All are compared, even after a match: the time taken must not tell which one fits.
        held = [
            known
            for known, digests in self._digests.items()
            if sum(hmac.compare_digest(digest, one) for one in digests.value)
        ]
        if not held:
            text = "authorization: the bearer token is not known here."
            raise NotPermitted(grpc.StatusCode.UNAUTHENTICATED, text)
        if right not in held and Right.ADMIN not in held:
            raise NotPermitted(
                grpc.StatusCode.PERMISSION_DENIED,
                f"authorization: this call needs the right '{right}', and the bearer token is for "
                f"'{', '.join(held)}'.",
            )

    def look_again(self) -> None:
        """Reads the tokens of the files again."""
        for right, digests in self._digests.items():
            if digests.look_again():
                log.info("security: %s_token_file has changed, its tokens are active", right)


def _read_digests(path: str, key: str) -> tuple[bytes, ...]:
    tokens = read_tokens(path, f"[security] {key} = '{path}'")
    return tuple(hashlib.sha256(token).digest() for token in tokens)


def _digest_of(headers: tuple[str | bytes, ...]) -> bytes:
    """Hashes the token of a call. Raises NotPermitted without one."""
    value = headers[0] if len(headers) == 1 else ""
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    if text[: len(_SCHEME)].lower() != _SCHEME:
        shown = "something else" if headers else "none"
        text = f"authorization: this call needs a bearer token, and shows {shown}."
        raise NotPermitted(grpc.StatusCode.UNAUTHENTICATED, text)
    return hashlib.sha256(text[len(_SCHEME) :].strip().encode()).digest()


@dataclass(frozen=True, slots=True)
class Pem:
    """The contents of certificate, key and client authority, which fit together."""

    certificate: bytes
    key: bytes = field(repr=False)
    client_authority: bytes

    def configuration(self) -> grpc.ServerCertificateConfiguration:
        """Returns certificate, key and client authority as gRPC takes them."""
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
    """Reads the files. Raises InvalidConfiguration if they do not fit together."""
    found = _read(settings)
    _check(settings)
    if _read(settings) != found:
        raise InvalidConfiguration(
            f"[security] certificate = '{settings.certificate}' was replaced while it was read. "
            "Try again when all its files are there."
        )
    return found


def _read(settings: SecurityConfig) -> Pem:
    certificate, key, authority = (
        read_file(path, f"[security] {of} = '{path}'") if (path := getattr(settings, of)) else b""
        for of in ("certificate", "key", "client_authority")
    )
    return Pem(certificate, key, authority)


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
    """Refuses a key with a password, for which OpenSSL would ask at the terminal."""
    raise ValueError("the key has a password")


def _short(error: Exception) -> str:
    if not isinstance(error, ssl.SSLError):
        return str(error)
    # OpenSSL gives no reason where it finds nothing in PEM.
    return error.reason.replace("_", " ").lower() if error.reason else "no PEM, or damaged"


class ServerCertificates:
    """The active certificates, from the last contents of the files that could be used.

    An open connection keeps the certificate that it began with.
    """

    def __init__(self, settings: SecurityConfig) -> None:
        """Raises InvalidConfiguration."""
        self._asks_clients = bool(settings.client_authority)
        read = partial(read_pem, settings)
        self._pem = Watched(read, "the certificate read before stays")
        # The last change, until a thread of gRPC takes it; look_again adds it in another thread.
        self._changed: deque[grpc.ServerCertificateConfiguration] = deque(maxlen=1)
        warn_of_readers(settings.key, "key")

    def credentials(self) -> grpc.ServerCredentials:
        """Returns the credentials of the port to listen on."""
        return grpc.dynamic_ssl_server_credentials(
            self._pem.value.configuration(), self._fetch, self._asks_clients
        )

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Answers gRPC for every new connection, in a thread of gRPC's; None: as before."""
        with contextlib.suppress(IndexError):
            return self._changed.pop()
        return None

    def look_again(self) -> None:
        """Reads the files again."""
        if self._pem.look_again():
            self._changed.append(self._pem.value.configuration())
            fingerprint = self._pem.value.fingerprint
            log.info("security: new connections see certificate sha256:%s", fingerprint)


# By method; any other needs the right of administration, reflection too.
RIGHTS = {
    f"/{service}/{method}": right
    for service, right, methods in (
        (MONITOR, Right.DATA, "Process ProcessFrame GetCalibration GetStatus WatchEvents"),
        (MONITOR, Right.TRUTH, "ReportGroundTruth"),
        (MONITOR, Right.ADMIN, "ExportStatistics ImportStatistics AcknowledgeDrift"),
        (ADMIN, Right.ADMIN, "List Get Promote Fit Rollback Pin"),
    )
    for method in methods.split()
}
Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]]


def right_of(method: str) -> Right | None:
    """Returns the right that a call of /package.Service/Method needs; None: none."""
    return None if method.startswith(_HEALTH) else RIGHTS.get(method, Right.ADMIN)


@dataclass(slots=True, eq=False)
class Authorisation(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc ships no types
    """Refuses calls without the right that their method needs, before a message is read.

    counters  count the refused calls
    """

    tokens: Tokens
    counters: Counters

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler | None:
        """Returns the handler of the method, or one that refuses."""
        right = right_of(handler_call_details.method)
        if right is None:
            return await continuation(handler_call_details)
        metadata = handler_call_details.invocation_metadata or ()
        shown = (value for key, value in metadata if key == "authorization")
        try:
            self.tokens.check(right, shown)
        except NotPermitted as error:
            return self._refusing(right, *error.args)
        return await continuation(handler_call_details)

    def _refusing(self, right: Right, code: grpc.StatusCode, text: str) -> grpc.RpcMethodHandler:
        refused = self.counters.refuse_call(code.name.lower())
        if refused & (refused - 1) == 0:  # the 1st, 2nd, 4th, 8th …
            log.warning(
                "security: a call that needs the right '%s' was refused as %s; %d so far",
                *(right, code.name.lower(), refused),
            )

        async def refuse(_: object, context: Context) -> NoReturn:
            await refuse_call(context, code, text)

        # A handler of streams fits every method, since nothing is read before the refusal.
        return grpc.stream_stream_rpc_method_handler(refuse)


@dataclass(slots=True, eq=False)
class Room:
    """Limits the calls at a time.

    remedy  advice for a client that finds no place
    """

    most: int
    remedy: str = "end some, or raise [server] max_calls."
    taken: int = 0

    @contextlib.asynccontextmanager
    async def place(self, context: Context) -> AsyncIterator[None]:
        """Takes a place as long as the block lasts; ends the call if all are taken."""
        if self.taken >= self.most:
            text = f"{self.most} calls are open, and no more are taken: {self.remedy}"
            await refuse_call(context, grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1


@dataclass(slots=True, eq=False)
class OpenCalls(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc ships no types
    """Counts open calls, and refuses those beyond the limit.

    calls   places for all but health calls
    probes  places for health calls
    """

    calls: Room
    probes: Room = field(default_factory=lambda: Room(MOST_PROBES, PROBES_END))

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler | None:
        """Returns the handler, which takes a place while it works."""
        handler = await continuation(handler_call_details)
        probes = handler_call_details.method.startswith(_HEALTH)
        room = self.probes if probes else self.calls
        return handler and _counted(handler, room)


@lru_cache(maxsize=64)  # more than there are methods
def _counted(handler: grpc.RpcMethodHandler, room: Room) -> grpc.RpcMethodHandler:
    """Wraps a handler so that only so many calls run at a time."""
    name = (
        f"{'stream' if handler.request_streaming else 'unary'}_"
        f"{'stream' if handler.response_streaming else 'unary'}"
    )
    behaviour = getattr(handler, name)
    make = getattr(grpc, f"{name}_rpc_method_handler")
    limited = _yielding if inspect.isasyncgenfunction(behaviour) else _returning
    return make(limited(behaviour, room), handler.request_deserializer, handler.response_serializer)


def _returning(behaviour: Callable[..., Awaitable[Any]], room: Room) -> Callable[..., Any]:
    async def call(request: object, context: Context) -> Any:
        async with room.place(context):
            return await behaviour(request, context)

    return call


def _yielding(behaviour: Callable[..., Any], room: Room) -> Callable[..., Any]:
    async def call(request: object, context: Context) -> AsyncIterator[Any]:
        async with (
            room.place(context),
            contextlib.aclosing(behaviour(request, context)) as answers,
        ):
            async for answer in answers:
                yield answer

    return call
