"""A gRPC client of a sidecar, for verbs that talk to one.

A detector uses `monitor.client`, which never blocks it, instead.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from typing import TypeVar, cast

import grpc
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health, health_pb2

from monitor.client import PLAIN, Access
from monitor.drift.alarms import Alarm, AlarmChange, SliceStanding, StageStanding
from monitor.frames.frame import Header
from monitor.frames.status import Status
from monitor.promotion.records import Record, SliceFitted
from monitor.v1 import event_pb2, statistics_state_pb2, status_pb2
from monitor.v1 import perception_monitor_pb2 as monitor_pb
from monitor.v1 import recalibrator_admin_pb2 as admin_pb
from monitor.wire.client_messages import Unusable, encode_header, read_header_answer
from monitor.wire.values import ADMIN, MONITOR, Listing, Summary, value_of

# Seconds for a sidecar to answer at all.
PATIENCE = 10.0
_UNLIMITED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
MessageT = TypeVar("MessageT", bound=Message)
T = TypeVar("T")


class SidecarUnavailable(ConnectionError):
    """The sidecar cannot be reached, or ended the call."""

    code = grpc.StatusCode.UNAVAILABLE


class SidecarFailed(ConnectionError):
    """The sidecar that was started here did not start, did not stop, or ended by itself."""


class SidecarRefused(ValueError):
    """The call came to nothing; the message is that of the sidecar, or of gRPC."""

    def __init__(self, words: str, code: grpc.StatusCode = grpc.StatusCode.UNKNOWN) -> None:
        super().__init__(words)
        self.code = code


def access_of(options: argparse.Namespace) -> Access:
    """Reads the options of add_access(). Raises InvalidAccess."""
    return Access(
        options.certificate_authority, options.certificate, options.key, options.token_file
    )


@dataclass(frozen=True, slots=True)
class DriftStandings:
    """Evidence of drift, as GetCalibration tells it.

    standings  of slices under each severity, and of all of them together as 'total'
    stages     of slices at each stage
    left_out   labelled detections that no bet, or not every bet, has used, by reason
    """

    standings: tuple[SliceStanding, ...] = ()
    stages: tuple[StageStanding, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, answer: monitor_pb.GetCalibrationResponse) -> DriftStandings:
        """Reads them from an answer."""
        return cls(
            tuple(value_of(SliceStanding, one) for one in answer.drift),
            tuple(value_of(StageStanding, one) for one in answer.drift_stages),
            {one.reason: one.detections for one in answer.drift_left_out},
        )


@dataclass(frozen=True, slots=True)
class TimedAlarmChange:
    """An alarm that was raised, or is over; time_ns is the wall clock of the sidecar."""

    time_ns: int
    change: AlarmChange


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
        """Reads the next answer. Raises SidecarUnavailable when the stream is over."""
        try:
            reply = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise SidecarUnavailable(f"the stream ended: {error.details()}") from None
        if reply is grpc.aio.EOF:
            raise SidecarUnavailable("the sidecar ended the stream")
        return cast("bytes", reply)

    async def close(self) -> None:
        """Says that nothing more will come."""
        await self._call.done_writing()


@dataclass(slots=True)
class Client:
    """A connection; use as an asynchronous context.

    Every method raises SidecarUnavailable, and SidecarRefused with the words of the sidecar; those
    that read words, such as the state of a trial, raise UnknownWord, too.

    patience  s for each call; the first one opens the connection. None: the context waits for the
              connection, and raises SidecarUnavailable if there is none
    """

    address: str
    access: Access = PLAIN
    patience: float | None = None
    _metadata: tuple[tuple[str, str], ...] = field(init=False, default=())
    _channel: grpc.aio.Channel = field(init=False)

    async def __aenter__(self) -> Client:
        self._metadata = self.access.metadata(self.address)
        self._channel = self.access.channel(
            self.address,
            [*_UNLIMITED, ("grpc.max_reconnect_backoff_ms", 200)],
        )
        if self.patience is not None:
            return self
        try:
            await asyncio.wait_for(self._channel.channel_ready(), PATIENCE)
        except TimeoutError:
            await self._channel.close()
            tls = ", and that its certificate and ours are of the authorities that are named"
            raise SidecarUnavailable(
                f"no sidecar answers at {self.address}: start one with "
                "`calibration-monitor serve`, or check the address, which is its gRPC address, "
                "not that of HTTP"
                f"{tls if self.access.certificate_authority else ''}."
            ) from None
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._channel.close()

    async def open(self, header: Header) -> Conversation:
        """Opens a Process stream whose header was accepted. Raises SidecarRefused."""
        call = self._channel.stream_stream(f"/{MONITOR}/Process")(metadata=self._metadata)
        conversation = Conversation(call)
        await conversation.send(encode_header(header))
        try:
            conversation.track_dimensions = read_header_answer(await conversation.receive())
        except Unusable as error:
            raise SidecarRefused(str(error)) from None
        return conversation

    def truth(self) -> Conversation:
        """Opens a ReportGroundTruth stream."""
        method = self._channel.stream_stream(f"/{MONITOR}/ReportGroundTruth")
        return Conversation(method(metadata=self._metadata))

    async def calibration(
        self, slices: Collection[str] = (), *, include_bins: bool = False, bins: int = 0
    ) -> monitor_pb.GetCalibrationResponse:
        """Asks for the calibration of these slices, or of all of them."""
        request = monitor_pb.GetCalibrationRequest(
            slices=slices, include_bins=include_bins, bins=bins
        )
        return await self._ask(MONITOR, request, monitor_pb.GetCalibrationResponse)

    async def promote(self, actor: str, **candidate: str) -> tuple[str, str]:
        """Promotes a recalibrator; returns the versions before and after.

        candidate  its `document`, or the `version` of one that the sidecar knows
        """
        request = admin_pb.PromoteRequest(actor=actor, **candidate)
        answer = await self._ask(ADMIN, request, admin_pb.PromoteResponse)
        return answer.before, answer.after

    async def events(self) -> AsyncGenerator[event_pb2.Event, None]:
        """Yields all events from now on, as long as the sidecar serves.

        Raises SidecarUnavailable.
        """
        call = self._stream("WatchEvents")
        try:
            async for data in call:
                yield monitor_pb.WatchEventsResponse.FromString(data).event
        except grpc.aio.AioRpcError as error:
            raise SidecarUnavailable(f"the stream of events ended: {error.details()}") from None
        finally:
            call.cancel()

    async def listing(self, records: int = 0) -> Listing:
        """Lists all recalibrators and trials, with so many of the latest records.

        Raises UnknownWord.
        """
        request = admin_pb.ListRequest(records=records)
        answer = await self._ask(ADMIN, request, admin_pb.ListResponse)
        return value_of(Listing, answer)

    async def shown(self, version: str) -> tuple[Summary, str, tuple[Record, ...]]:
        """Shows one recalibrator: in a few words, its document, its records. Raises UnknownWord."""
        request = admin_pb.GetRequest(version=version)
        answer = await self._ask(ADMIN, request, admin_pb.GetResponse)
        records = tuple(value_of(Record, one) for one in answer.records)
        return value_of(Summary, answer.summary), answer.document, records

    async def fit(self, slices: Sequence[str], method: str, actor: str) -> tuple[SliceFitted, ...]:
        """Fits candidates now; returns what came of each slice. Takes seconds to minutes."""
        request = admin_pb.FitRequest(slices=slices, method=method, actor=actor)
        answer = await self._ask(ADMIN, request, admin_pb.FitResponse)
        return tuple(value_of(SliceFitted, fit) for fit in answer.fits)

    async def rollback(self, slice: str, actor: str, *, classes: bool) -> tuple[str, str]:
        """Goes back by one change; returns the versions before and after.

        slice    the only one that goes back, of estimates; '' for all
        classes  the recalibrator of class probabilities goes back, not that of estimates
        """
        kind = admin_pb.RECALIBRATOR_KIND_ESTIMATES
        if classes:
            kind = admin_pb.RECALIBRATOR_KIND_CLASS_PROBABILITIES
        request = admin_pb.RollbackRequest(kind=kind, slice=slice, actor=actor)
        answer = await self._ask(ADMIN, request, admin_pb.RollbackResponse)
        return answer.before, answer.after

    async def pin(self, actor: str, *, pinned: bool) -> bool:
        """Sets whether anything may happen by itself; returns how it was set before."""
        request = admin_pb.PinRequest(pinned=pinned, actor=actor)
        return (await self._ask(ADMIN, request, admin_pb.PinResponse)).was_pinned

    async def standings(self, slices: Collection[str] = ()) -> DriftStandings:
        """Asks how these slices stand, or all of them."""
        return DriftStandings.of(await self.calibration(slices))

    async def acknowledge(self, slices: Collection[str], actor: str) -> tuple[Alarm, ...]:
        """Acknowledges the alarms of these slices, or of all; returns those that there were."""
        request = monitor_pb.AcknowledgeDriftRequest(slices=slices, actor=actor)
        answer = await self._ask(MONITOR, request, monitor_pb.AcknowledgeDriftResponse)
        return tuple(value_of(Alarm, one) for one in answer.acknowledged)

    async def alarm_changes(self) -> AsyncGenerator[TimedAlarmChange, None]:
        """Yields changes of alarms from now on, as long as the sidecar serves."""
        async with contextlib.aclosing(self.events()) as events:
            async for event in events:
                if event.HasField("drift"):
                    change = value_of(AlarmChange, event.drift)
                    yield TimedAlarmChange(event.time.ToNanoseconds(), change)

    async def export_statistics(self) -> list[statistics_state_pb2.StatisticsState]:
        """Takes all that the sidecar has counted, in parts that `store` decodes."""
        read = monitor_pb.ExportStatisticsResponse.FromString
        with self._told():
            return [read(data).part async for data in self._stream("ExportStatistics")]

    async def status(self) -> Status:
        """Asks the sidecar what it is, and what it has seen since it started."""
        request = status_pb2.GetStatusRequest()
        return value_of(Status, await self._ask(MONITOR, request, status_pb2.GetStatusResponse))

    async def serving(self) -> bool:
        """Asks grpc.health.v1 if the sidecar serves; no right is needed."""
        request, answer = health_pb2.HealthCheckRequest(), health_pb2.HealthCheckResponse
        found = await self._ask(health.SERVICE_NAME, request, answer, "Check")
        return bool(found.status == answer.SERVING)

    def _stream(self, method: str) -> grpc.aio.UnaryStreamCall:
        """Calls a method that answers with a stream; the request says nothing."""
        call = self._channel.unary_stream(f"/{MONITOR}/{method}")
        return call(b"", metadata=self._metadata)

    async def _ask(
        self, service: str, request: Message, answer: type[MessageT], method: str = ""
    ) -> MessageT:
        """Calls a method, by default the one that the request is named after."""
        method = method or request.DESCRIPTOR.name.removesuffix("Request")
        call = self._channel.unary_unary(f"/{service}/{method}")
        message = request.SerializeToString()
        with self._told():
            data = await call(message, metadata=self._metadata, timeout=self.patience)
        try:
            return answer.FromString(data)
        except DecodeError:
            words = f"{len(data)} bytes that are not a {answer.DESCRIPTOR.name}"
            raise SidecarRefused(words) from None

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Raises SidecarUnavailable or SidecarRefused in place of gRPC's error."""
        try:
            yield
        except grpc.aio.AioRpcError as error:
            words = error.details() or error.code().name.lower()
            if error.code() == grpc.StatusCode.UNAVAILABLE:
                raise SidecarUnavailable(f"{self.address}: {words}") from None
            raise SidecarRefused(words, error.code()) from None


def happening(event: event_pb2.Event) -> Record | None:
    """Reads what happened to a recalibrator; None for another event. Raises UnknownWord."""
    match event.WhichOneof("event"):
        case "version":
            return value_of(Record, event.version.record)
        case "recalibration":
            return value_of(Record, event.recalibration)
    return None


def ask(client: Client, question: Callable[[Client], Awaitable[T]]) -> T:
    """Opens a connection for one question. Raises what the question raises, too."""

    async def answered() -> T:
        async with client:
            return await question(client)

    return asyncio.run(answered())
