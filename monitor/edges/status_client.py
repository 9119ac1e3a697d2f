"""A gRPC client that asks a sidecar how it is, and can tell why it got no answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import TypeVar

import grpc
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health, health_pb2

from monitor.edges import status_messages
from monitor.edges.credentials import PLAIN, Access
from monitor.edges.service import MONITOR
from monitor.status import Status
from monitor.v1 import status_pb2


class Why(StrEnum):
    """Why a call was not answered."""

    UNREACHABLE = "unreachable"
    SILENT = "silent"  # no answer in time
    NO_TOKEN = "no_token"  # none that is known there
    NO_RIGHT = "no_right"  # a token of another right
    UNKNOWN = "unknown"  # the server does not know the call
    FAILED = "failed"  # anything else


_WHY = {
    grpc.StatusCode.UNAVAILABLE: Why.UNREACHABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: Why.SILENT,
    grpc.StatusCode.UNAUTHENTICATED: Why.NO_TOKEN,
    grpc.StatusCode.PERMISSION_DENIED: Why.NO_RIGHT,
    grpc.StatusCode.UNIMPLEMENTED: Why.UNKNOWN,
}


class NotAnswered(ConnectionError):
    """A call ended without an answer; the message is that of the server, or of gRPC."""

    def __init__(self, why: Why, words: str) -> None:
        super().__init__(words)
        self.why = why


@dataclass(frozen=True, slots=True)
class _Direct(Access):
    """Past any proxy that is set for the web, wherever the sidecar is."""

    def channel(self, address: str, options: Sequence[tuple[str, int | str]]) -> grpc.aio.Channel:
        # No super(): a class with slots is made twice, and it would be that of the first.
        return Access.channel(self, address, [*options, ("grpc.enable_http_proxy", 0)])


def direct(access: Access) -> Access:
    """The same without a proxy: who looks for a fault asks the sidecar itself, as HTTP does."""
    return _Direct(access.certificate_authority, access.certificate, access.key, access.token_file)


@dataclass(slots=True)
class StatusClient:
    """A connection; use as an asynchronous context. It is opened with the first call.

    patience  seconds for each call, the opening included

    Entering raises InvalidAccess; every method raises NotAnswered.
    """

    address: str
    access: Access = PLAIN
    patience: float = 5.0
    _metadata: tuple[tuple[str, str], ...] = field(init=False, default=())
    _channel: grpc.aio.Channel = field(init=False)

    async def __aenter__(self) -> StatusClient:
        self._metadata = self.access.metadata(self.address)
        options = [("grpc.max_receive_message_length", -1)]
        self._channel = self.access.channel(self.address, options)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._channel.close()

    async def status(self) -> Status:
        """What it is, and what it has seen since it started."""
        request = status_pb2.GetStatusRequest().SerializeToString()
        answer = await self._asked(f"/{MONITOR}/GetStatus", request)
        return status_messages.status_of(_read(status_pb2.GetStatusResponse(), answer))

    async def serving(self) -> bool:
        """What grpc.health.v1 says of it; no right is needed."""
        request = health_pb2.HealthCheckRequest().SerializeToString()
        data = await self._asked(f"/{health.SERVICE_NAME}/Check", request)
        answer = _read(health_pb2.HealthCheckResponse(), data)
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    async def _asked(self, method: str, request: bytes) -> bytes:
        try:
            call = self._channel.unary_unary(method)
            answer: bytes = await call(request, metadata=self._metadata, timeout=self.patience)
        except grpc.aio.AioRpcError as error:
            why = _WHY.get(error.code(), Why.FAILED)
            raise NotAnswered(why, error.details() or error.code().name.lower()) from None
        return answer


MessageT = TypeVar("MessageT", bound=Message)


def _read(message: MessageT, data: bytes) -> MessageT:
    """The message that these bytes are. Raises NotAnswered."""
    try:
        message.ParseFromString(data)
    except DecodeError:
        name = message.DESCRIPTOR.name
        raise NotAnswered(Why.FAILED, f"{len(data)} bytes that are not a {name}") from None
    return message
