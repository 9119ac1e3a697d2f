"""A gRPC client of the sidecar, for replay, demo and benchmarks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from types import TracebackType

import grpc

from monitor.edges.answered import refused, track_dimensions
from monitor.edges.credentials import PLAIN, Access
from monitor.edges.recalibrator_messages import read_record
from monitor.edges.requests import encode_header
from monitor.edges.service import ADMIN, MONITOR
from monitor.frames import Header
from monitor.promotion.records import Record
from monitor.v1 import event_pb2, perception_monitor_pb2, recalibrator_admin_pb2

# Seconds for a sidecar to answer at all.
PATIENCE = 10.0


class SidecarUnavailable(ConnectionError):
    """The sidecar cannot be reached, or ended the call."""


class SidecarRefused(ValueError):
    """The sidecar says no; the message is its own."""


@dataclass(slots=True)
class Client:
    """A connection; use as an asynchronous context."""

    address: str
    access: Access = PLAIN
    _metadata: tuple[tuple[str, str], ...] = field(init=False, default=())
    _channel: grpc.aio.Channel = field(init=False)

    async def __aenter__(self) -> Client:
        self._metadata = self.access.metadata(self.address)
        self._channel = self.access.channel(
            self.address,
            [
                ("grpc.max_receive_message_length", -1),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_reconnect_backoff_ms", 200),
            ],
        )
        try:
            await asyncio.wait_for(self._channel.channel_ready(), PATIENCE)
        except TimeoutError:
            await self._channel.close()
            raise SidecarUnavailable(
                f"no sidecar answers at {self.address}: start one with "
                f"`calibration-monitor serve`, or check the address{_of_tls(self.access)}."
            ) from None
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._channel.close()

    async def open(self, header: Header) -> Conversation:
        """A Process stream whose header was accepted. Raises SidecarRefused."""
        call = self._channel.stream_stream(f"/{MONITOR}/Process")(metadata=self._metadata)
        conversation = Conversation(call)
        await conversation.send(encode_header(header))
        answer = await conversation.receive()
        complaint = refused(answer)
        if complaint is not None:
            raise SidecarRefused(complaint)
        conversation.track_dimensions = track_dimensions(answer)
        return conversation

    def truth(self) -> Conversation:
        """A ReportGroundTruth stream."""
        method = self._channel.stream_stream(f"/{MONITOR}/ReportGroundTruth")
        return Conversation(method(metadata=self._metadata))

    async def calibration(
        self, *, include_bins: bool = False, bins: int = 0
    ) -> perception_monitor_pb2.GetCalibrationResponse:
        """GetCalibration, all slices."""
        request = perception_monitor_pb2.GetCalibrationRequest(include_bins=include_bins, bins=bins)
        data = await self._unary(MONITOR, "GetCalibration", request.SerializeToString())
        return perception_monitor_pb2.GetCalibrationResponse.FromString(data)

    async def promote(self, document: str, actor: str) -> tuple[str, str]:
        """Promote a recalibrator given as its document; the versions before and after."""
        request = recalibrator_admin_pb2.PromoteRequest(document=document, actor=actor)
        data = await self._unary(ADMIN, "Promote", request.SerializeToString())
        response = recalibrator_admin_pb2.PromoteResponse.FromString(data)
        return response.before, response.after

    async def happenings(self) -> AsyncIterator[Record]:
        """What happens to recalibrators from now on, as long as the sidecar serves.

        Raises SidecarUnavailable, UnknownWord.
        """
        async with contextlib.aclosing(self.events()) as events:
            async for event in events:
                match event.WhichOneof("event"):
                    case "version":
                        yield read_record(event.version.record)
                    case "recalibration":
                        yield read_record(event.recalibration)

    async def events(self) -> AsyncGenerator[event_pb2.Event, None]:
        """All of them from now on, as long as the sidecar serves. Raises SidecarUnavailable."""
        request = perception_monitor_pb2.WatchEventsRequest().SerializeToString()
        method = self._channel.unary_stream(f"/{MONITOR}/WatchEvents")
        call = method(request, metadata=self._metadata)
        try:
            async for data in call:
                yield perception_monitor_pb2.WatchEventsResponse.FromString(data).event
        except grpc.aio.AioRpcError as error:
            raise SidecarUnavailable(f"the stream of events ended: {error.details()}") from None
        finally:
            call.cancel()

    async def _unary(self, service: str, method: str, request: bytes) -> bytes:
        try:
            call = self._channel.unary_unary(f"/{service}/{method}")
            reply: bytes = await call(request, metadata=self._metadata)
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.UNAVAILABLE:
                raise SidecarUnavailable(f"{self.address}: {error.details()}") from None
            raise SidecarRefused(error.details()) from None
        return reply


def _of_tls(access: Access) -> str:
    """What else may be wrong where certificates are shown."""
    if not access.certificate_authority:
        return ""
    return ", and that its certificate and ours are of the authorities that are named"


@dataclass(slots=True)
class Conversation:
    """A stream of requests, each answered.

    track_dimensions  of the tracks that come with the answers; none come where it is empty
    """

    _call: grpc.aio.StreamStreamCall
    track_dimensions: tuple[str, ...] = ()

    async def send(self, data: bytes) -> None:
        """Raises SidecarUnavailable when the stream is over."""
        try:
            await self._call.write(data)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise SidecarUnavailable(f"the stream ended: {error}") from None

    async def receive(self) -> bytes:
        """The next answer. Raises SidecarUnavailable when the stream is over."""
        try:
            reply = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise SidecarUnavailable(f"the stream ended: {error.details()}") from None
        if reply is grpc.aio.EOF:
            raise SidecarUnavailable("the sidecar ended the stream")
        assert isinstance(reply, bytes)
        return reply

    async def close(self) -> None:
        """Say that nothing more will come."""
        await self._call.done_writing()

    async def answers(self) -> AsyncIterator[bytes]:
        """All further answers, to the end of the stream."""
        while (reply := await self._call.read()) is not grpc.aio.EOF:
            yield reply
