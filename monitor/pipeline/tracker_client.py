"""Connects to an external tracker by gRPC and watches its health.

Queueing frames and awaiting answers never happen here, but in external_tracker.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from monitor.config import TrackerConfig
from monitor.pipeline.external_tracker import Link, LinkLost

UPDATE = "/monitor.v1.Tracker/Update"
WATCH = "/grpc.health.v1.Health/Watch"

# s for a connection, TLS included.
CONNECTING = 2.0
# s for the first report of health; without one the tracker is taken to be healthy.
FIRST_WORD = 1.0
# Bytes of an answer; a longer one ends the call.
LONGEST_ANSWER = 4 * 2**20
_ON_THE_WAY = (grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING)
# Errors of reads and writes when the call is over.
_OVER = (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError)


@dataclass(frozen=True, slots=True)
class TrackerClient:
    """Dials the external tracker."""

    config: TrackerConfig

    @contextlib.asynccontextmanager
    async def dial(self) -> AsyncIterator[Link]:
        """Opens a call on its own channel; both end with the block. Raises LinkLost."""
        async with await self._channel() as channel:
            try:
                async with asyncio.timeout(CONNECTING):
                    await _connect(channel, self.config.certificate_authority)
            except TimeoutError:
                raise LinkLost(f"no connection within {CONNECTING:g} s") from None
            call = channel.stream_stream(UPDATE)()
            try:
                yield _Call(channel, call)
            finally:
                call.cancel()

    async def _channel(self) -> grpc.aio.Channel:
        options = [
            ("grpc.max_receive_message_length", LONGEST_ANSWER),
            ("grpc.max_send_message_length", -1),
            # Each attempt is a new connection, and gRPC must not time the next one.
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_retries", 0),
            # The tracker is in the vehicle: a proxy for the web does not apply.
            ("grpc.enable_http_proxy", 0),
        ]
        path = self.config.certificate_authority
        if not path:
            return grpc.aio.insecure_channel(self.config.address, options=options)
        try:
            authority = await asyncio.to_thread(Path(path).read_bytes)
        except OSError as error:
            text = f"[tracker] certificate_authority = '{path}': {error.strerror}"
            raise LinkLost(text) from None
        credentials = grpc.ssl_channel_credentials(authority)
        return grpc.aio.secure_channel(self.config.address, credentials, options=options)


async def _connect(channel: grpc.aio.Channel, authority: str) -> None:
    """Returns once there is a connection. Raises LinkLost."""
    while (state := channel.get_state(try_to_connect=True)) in _ON_THE_WAY:
        await channel.wait_for_state_change(state)
    if state is not grpc.ChannelConnectivity.READY:
        # gRPC does not say which of the two it is.
        why = f", or its certificate is not of '{authority}'" if authority else ""
        raise LinkLost(f"nobody takes the connection{why}")


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of the tracker, as a Link."""

    channel: grpc.aio.Channel
    call: grpc.aio.StreamStreamCall

    async def write(self, data: bytes) -> None:
        try:
            await self.call.write(data)
        except _OVER as error:
            raise LinkLost(_why(error)) from None

    async def read(self) -> bytes:
        try:
            data = await self.call.read()
        except _OVER as error:
            raise LinkLost(_why(error)) from None
        if not isinstance(data, bytes):
            raise LinkLost("it ended the call")
        return data

    async def health(self) -> AsyncIterator[bool]:
        request = health_pb2.HealthCheckRequest().SerializeToString()
        watch = self.channel.unary_stream(WATCH)(request)
        first = asyncio.ensure_future(watch.read())
        try:
            await asyncio.wait((first,), timeout=FIRST_WORD)
            if not first.done():
                yield True
            data = await first
            while isinstance(data, bytes):
                response = health_pb2.HealthCheckResponse.FromString(data)
                yield response.status == health_pb2.HealthCheckResponse.SERVING
                data = await watch.read()
        except _OVER as error:
            code = error.code() if isinstance(error, grpc.aio.AioRpcError) else None
            # These codes end the call too; any other says only that health is not reported.
            if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, None):
                raise LinkLost(_why(error)) from None
        except DecodeError:
            return
        finally:
            watch.cancel()
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)


def _why(error: Exception) -> str:
    """Describes an error in one line."""
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {(error.details() or '')[:200]}"
    return str(error)[:200]
