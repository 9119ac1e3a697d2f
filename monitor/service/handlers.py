"""Handlers of the calls of detectors, labellers and readers; nothing here blocks the loop."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn, TypeAlias

import grpc

from monitor.config import Reloads
from monitor.frames.detections import Reason
from monitor.frames.frame import (
    FrameAnswer,
    Header,
    ReceivedFrame,
    ReceivedTruth,
    Refusal,
    TruthAnswer,
)
from monitor.frames.reasons import unit_notice
from monitor.frames.status import TruthAccount
from monitor.pipeline.drift_watch import NoSuchSlice
from monitor.pipeline.external_tracker import ExternalTracker
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.housekeeping import contained, in_steps
from monitor.pipeline.pending import last_of
from monitor.pipeline.streams import Stream
from monitor.pipeline.truth import Ahead, Search
from monitor.service.admin import actor_of, status
from monitor.service.calls import (
    INTERNAL_ERROR,
    Context,
    Pace,
    Settle,
    Share,
    Turns,
    Waiting,
    parsed,
    refuse_call,
    send,
)
from monitor.statistics.exact_engine import BinCut
from monitor.statistics.reading import ClassReadingCache, ReadingCache
from monitor.store.entries import Kept
from monitor.v1 import drift_pb2, perception_monitor_pb2, status_pb2
from monitor.wire import messages
from monitor.wire.answers import (
    encode_header_answer,
    encode_process_frame_response,
    encode_process_response,
    encode_truth_response,
)
from monitor.wire.records import TailReader
from monitor.wire.requests import (
    WireLimits,
    decode_process_frame_request,
    decode_process_request,
    decode_truth_request,
    detection_tail,
)
from monitor.wire.values import message_of

log = logging.getLogger(__name__)

# Messages of a stream that may wait for the disk; the client's own flow control does the rest.
IN_FLIGHT = 256


@dataclass(eq=False, slots=True)
class Session:
    """One open stream: whether it waits for its client to send or to read."""

    context: Context
    task: asyncio.Task[object]
    draining: bool
    reading: bool = False
    writing_since: float | None = None
    stuck: bool = False
    pace: Pace = field(default_factory=Pace)
    share: Share = field(default_factory=Share)

    async def write(self, message: bytes) -> None:
        """Writes an answer; a client that does not read is noticed by `writing_since`."""
        self.writing_since = time.monotonic()
        await send(self.context, message)
        self.writing_since = None


@dataclass(slots=True)
class Source:
    """One call of Process: its stream, once a header has come, and how many messages were answered.

    tail  reads its detections
    """

    stream: Stream | None = None
    index: int = 0
    tail: TailReader = field(default_factory=detection_tail)


@dataclass(slots=True)
class Message:
    """A message of Process; came: by the performance counter, in s."""

    source: Source
    data: bytes
    came: float = field(default_factory=time.perf_counter)


# Stream, number of the frame, and an answer that may have to wait for its sequence.
_Answered: TypeAlias = tuple[str, int | None, TruthAnswer]


@dataclass(slots=True)
class TruthStream:
    """One call of ReportGroundTruth: answers in order, each when it outlives a crash.

    Reading goes on meanwhile, so that the labels of many frames share one write to the disk.
    """

    service: Service
    session: Session

    async def run(self) -> None:
        """Answers labels until the client or the server has enough."""
        answers: asyncio.Queue[_Answered | None] = asyncio.Queue(IN_FLIGHT)
        writing = asyncio.create_task(self._write(answers))
        try:
            await self._read(answers, writing)
        except asyncio.CancelledError:
            if self.session.stuck or not self.session.draining:
                writing.cancel()
                raise
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
        try:
            # What has been read is answered, also where the server ends.
            await _put(answers, None, writing)
            await writing
        finally:
            writing.cancel()

    async def _read(
        self, answers: asyncio.Queue[_Answered | None], writing: asyncio.Task[None]
    ) -> None:
        pipeline = self.service.pipeline
        while not writing.done():
            # Without this wait the watch over drift would leave labels out, by load.
            if pipeline.drift.behind:
                await in_steps(pipeline.drift.catch_up())
            if (data := await self.service.next_message(self.session)) is None:
                return
            stream, frame_id, answer = await self._answer_or_apology(data)
            # A label that is known already may not be on the disk yet.
            sequence = answer.sequence or pipeline.ledger.sequence
            await _put(answers, (stream, frame_id, replace(answer, sequence=sequence)), writing)
            self.service.fold_some()

    async def _write(self, answers: asyncio.Queue[_Answered | None]) -> None:
        while (answered := await answers.get()) is not None:
            stream, frame_id, answer = answered
            durable = await self.service.pipeline.journal.durable(answer.sequence)
            reply = encode_truth_response(stream, frame_id, replace(answer, durable=durable))
            await self.session.write(reply)

    async def _answer_or_apology(self, data: bytes) -> _Answered:
        """Answers a message; if that fails, the answer says so, and the stream lives."""
        with contained(self.service.pipeline.counters, log, "labels were not answered"):
            return await self._answer(data)
        return "", None, TruthAnswer(TruthAccount(), (APOLOGY,))

    async def _answer(self, data: bytes) -> _Answered:
        pipeline = self.service.pipeline
        labels = decode_truth_request(data, self.service.limits)
        if isinstance(labels, Refusal):
            pipeline.counters.frames_refused[labels.reason] += 1
            return "", None, TruthAnswer(TruthAccount(), (labels,))
        answer = await self._reported(labels)
        stream = pipeline.streams.get(labels.stream)
        if stream is not None:
            stream.seen.labels(answer.account.matched, time.monotonic_ns())
        return labels.stream, labels.frame_id, answer

    async def _reported(self, labels: ReceivedTruth) -> TruthAnswer:
        pipeline, found = self.service.pipeline, None
        while True:
            answer = pipeline.report(labels, found, await self._ahead(labels, found))
            if not isinstance(answer, Search):
                return answer
            # Labels of the frame may come while it is looked for: then the disk has more the next
            # time. If it has not, they were never written.
            seen = -1 if found is None else last_of(found)
            where = answer.stream, answer.frame_id, answer.partition
            found = await pipeline.journal.find(*where)
            if found is None or last_of(found) <= seen:
                pipeline.remember_answered()
                return pipeline.ledger.in_vain(labels)

    async def _ahead(self, labels: ReceivedTruth, found: Kept | None) -> Ahead | None:
        """Does heavy matching off the loop; if that fails, the report does it."""
        self.service.pipeline.remember_answered()
        heavy = self.service.pipeline.ledger.heavy(labels, found)
        if heavy is None:
            return None
        last, matching = heavy
        try:
            return last, await asyncio.to_thread(matching)
        except Exception:
            log.exception("labels were not matched ahead: the report matches them")
            return None


async def _put(
    answers: asyncio.Queue[_Answered | None],
    answered: _Answered | None,
    writing: asyncio.Task[None],
) -> None:
    """Adds an answer, unless the writing has ended: then raises what ended the writing."""
    putting = asyncio.create_task(answers.put(answered))
    try:
        await asyncio.wait({putting, writing}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not putting.done():
            putting.cancel()
    if writing.done() and answered is not None:
        writing.result()


# As many as there are micro-bins.
MOST_BINS = 512

# What a refusal is called over gRPC where no stream is to be kept alive.
STATUS_OF_REASON = {
    Reason.MALFORMED: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.INVALID_HEADER: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.TOO_MANY_DETECTIONS: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.NO_HEADER: grpc.StatusCode.FAILED_PRECONDITION,
}

# What is answered where making an answer fails.
APOLOGY = Refusal(Reason.INTERNAL, "message", INTERNAL_ERROR)


@dataclass(slots=True)
class Service:
    """The handlers. Live state is the pipeline's; here are only the open streams.

    settle   returns when what was done to drift is on the disk; None: nothing is kept
    tracker  elsewhere, which is forwarded what goes back; None: there is none
    reloads  of the configuration, for the status
    read_only  calls that would change anything are refused
    """

    pipeline: Pipeline
    limits: WireLimits
    settle: Settle | None = None
    tracker: ExternalTracker | None = None
    reloads: Reloads = field(default_factory=Reloads)
    read_only: bool = False
    turns: Turns = field(init=False)
    _sessions: set[Session] = field(default_factory=set)
    calls_in_work: int = 0
    _started_ns: int = field(default_factory=time.time_ns)
    _draining: bool = False

    def __post_init__(self) -> None:
        self.turns = Turns(self.answer_together)

    # ---- the frame path

    async def process(self, _: object, context: Context) -> None:
        """PerceptionMonitor.Process."""
        source = Source()
        async with self._session(context) as session:
            while (data := await self._read(session)) is not None:
                message = Message(source, data)
                reply = await self.turns.answered(session.share, message)
                if isinstance(reply, FrameAnswer):
                    reply = await self._tracked(message, reply, context)
                source.index += 1
                await session.write(reply)

    def answer_together(self, waiting: Sequence[Waiting]) -> None:
        """Answers messages of different streams; whatever fails, each gets an answer.

        What the frames leave behind is remembered once the answers are on their way. A frame that
        an external tracker gets is answered with a FrameAnswer, every other message in bytes.
        """
        framed: list[tuple[Waiting, Message, Stream, ReceivedFrame]] = []
        for one in waiting:
            assert isinstance(one.message, Message)
            message, reply = one.message, b""
            with self._contained(message):
                decoded = decode_process_request(message.data, self.limits, message.source.tail)
                stream = message.source.stream
                if isinstance(decoded, ReceivedFrame) and stream is not None:
                    framed.append((one, message, stream, decoded))
                    continue
                reply = self._replied(message.source, decoded)
            one.turn.set_result(reply or self._apology(message))
        frames = [(stream, frame) for *_, stream, frame in framed]
        answers = self.pipeline.answer_all(frames, time.monotonic_ns())
        for (one, message, *_), answer in zip(framed, answers, strict=True):
            # A tracker, too, has gone on since a stale frame was captured.
            if self.tracker is not None and not answer.stale:
                one.turn.set_result(answer)
            else:
                one.turn.set_result(self._encoded(message, answer))
        # call_soon runs behind the streams that were just woken, which write.
        asyncio.get_running_loop().call_soon(self._remember, len(framed))

    def _replied(self, source: Source, message: Header | ReceivedFrame | Refusal) -> bytes:
        """Answers what is no frame of a stream that is known."""
        if isinstance(message, Header):
            registered = self.pipeline.register(message)
            if isinstance(registered, Refusal):
                self.pipeline.counters.frames_refused[registered.reason] += 1
                return encode_header_answer(message.stream, registered)
            source.stream = registered
            tracker = registered.tracker if registered.header.return_tracks else None
            dimensions = () if tracker is None else tracker.dimensions
            return encode_header_answer(message.stream, unit_notice(message.space), dimensions)
        if isinstance(message, ReceivedFrame):
            message = _no_header("this stream")
        elif message.reason is Reason.INVALID_HEADER:
            self.pipeline.counters.frames_refused[message.reason] += 1
            return encode_header_answer("", message)
        self.pipeline.counters.frames_refused[message.reason] += 1
        return encode_process_response(message, source.index)

    def _encoded(self, message: Message, answer: FrameAnswer) -> bytes:
        """Encodes the answer to a frame; if that fails, an apology."""
        reply = b""
        with self._contained(message):
            reply = encode_process_response(answer, message.source.index)
            self.pipeline.counters.frame_seconds.observe(time.perf_counter() - message.came)
        return reply or self._apology(message)

    async def _tracked(self, message: Message, answer: FrameAnswer, context: Context) -> bytes:
        """Encodes the answer to a frame, with the tracks of an external tracker."""
        stream, reply = message.source.stream, b""
        assert stream is not None
        with self._contained(message):
            reply = self._encoded(message, await self._forwarded(stream, answer, context))
        return reply or self._apology(message)

    def _contained(self, message: Message) -> contained:
        text = "message %d of a stream was not answered"
        return contained(self.pipeline.counters, log, text, message.source.index)

    def _apology(self, message: Message) -> bytes:
        return encode_process_response(APOLOGY, message.source.index)

    async def process_frame(self, data: bytes, context: Context) -> bytes:
        """PerceptionMonitor.ProcessFrame."""
        began = time.perf_counter()
        message = decode_process_frame_request(data, self.limits)
        if isinstance(message, Refusal):
            await self._abort(context, message)
        name, header, frame = message
        stream = self._stream_of(name, header)
        if isinstance(stream, Refusal):
            await self._abort(context, stream)
        # The reply is handed over in this pass of the loop; the frame is remembered in the next.
        asyncio.get_running_loop().call_soon(self._remember, 1)
        (answer,) = self.pipeline.answer_all([(stream, frame)], time.monotonic_ns())
        result = encode_process_frame_response(await self._forwarded(stream, answer, context))
        self.pipeline.counters.frame_seconds.observe(time.perf_counter() - began)
        return result

    async def _forwarded(
        self, stream: Stream, answer: FrameAnswer, context: Context
    ) -> FrameAnswer:
        """Returns the answer, with tracks where an external tracker is waited for.

        A fault of that tracker costs the tracks, never the answer. Where there is nothing to wait
        for, no other task runs before this returns.
        """
        if self.tracker is None or answer.stale:
            return answer
        forwarded: FrameAnswer | Awaitable[FrameAnswer] = answer
        counters, name = self.pipeline.counters, stream.header.stream
        with contained(counters, log, "a frame of stream %s was not forwarded", name):
            forwarded = self.tracker.forward(stream, answer, context.time_remaining())
        return forwarded if isinstance(forwarded, FrameAnswer) else await forwarded

    def _stream_of(self, name: str, header: Header | None) -> Stream | Refusal:
        if header is not None:
            if name not in ("", header.stream):
                return Refusal(
                    Reason.INVALID_HEADER,
                    "stream",
                    f"'{name[:64]}', but the header is of '{header.stream[:64]}': send the same "
                    "name twice, or one of them.",
                )
            return self.pipeline.register(header)
        return self.pipeline.streams.get(name) or _no_header(f"stream '{name[:64]}'")

    async def _abort(self, context: Context, refusal: Refusal) -> NoReturn:
        self.pipeline.counters.frames_refused[refusal.reason] += 1
        text = f"{refusal.field}: {refusal.message}"
        await refuse_call(context, STATUS_OF_REASON[refusal.reason], text)

    async def report_ground_truth(self, _: object, context: Context) -> None:
        """PerceptionMonitor.ReportGroundTruth."""
        async with self._session(context) as session:
            await TruthStream(self, session).run()

    async def next_message(self, session: Session) -> bytes | None:
        """Reads a message at the pace of its stream, and waits for its turn; None at the end."""
        data = await self._read(session)
        if data is not None:
            await self.turns.take(session.share)
        return data

    async def _read(self, session: Session) -> bytes | None:
        """Reads a message at the pace of its stream; None: the client or the server ended it."""
        if session.draining:
            return None
        session.reading = True
        # A reload may change how often a stream may be read.
        per_second = self.pipeline.config.server.max_messages_per_second
        if delay := session.pace.delay(time.monotonic(), per_second):
            await asyncio.sleep(delay)
        data = await session.context.read()
        session.reading = False
        return None if data is grpc.aio.EOF else data

    @contextlib.asynccontextmanager
    async def _session(self, context: Context) -> AsyncIterator[Session]:
        """Serves a stream that can be drained, and dropped where its client does not read."""
        task = asyncio.current_task()
        assert task is not None
        session = Session(context, task, self._draining)
        self._sessions.add(session)
        try:
            yield session
        except asyncio.CancelledError:
            if not (session.draining or session.stuck):
                raise
            task.uncancel()
        finally:
            self._sessions.discard(session)
        if session.stuck:
            # Without a status the call would stay open after its handler has gone.
            text = "the answers were not read: read them, or open anew."
            await refuse_call(context, grpc.StatusCode.ABORTED, text)

    def _remember(self, frames: int) -> None:
        """Does what the answers to so many frames need not wait for."""
        self.pipeline.remember_answered()
        for _ in range(frames):
            self.fold_some()

    def fold_some(self) -> None:
        """Takes a step of the statistics between two frames; a fault of it ends no stream."""
        with contained(self.pipeline.counters, log, "matched detections were not counted"):
            self.pipeline.live.fold_some()

    # ---- reading

    async def get_calibration(self, data: bytes, context: Context) -> bytes:
        """PerceptionMonitor.GetCalibration."""
        request = await parsed(perception_monitor_pb2.GetCalibrationRequest(), data, context)
        if request.bins > MOST_BINS:
            text = f"bins: {request.bins}, at most {MOST_BINS}."
            await refuse_call(context, grpc.StatusCode.INVALID_ARGUMENT, text)
        windows = self.pipeline.config.statistics.windows
        if request.window and request.window not in windows:
            await refuse_call(
                context,
                grpc.StatusCode.INVALID_ARGUMENT,
                f"window: '{request.window[:20]}' is none of {', '.join(windows)}; leave it empty "
                "for all since epoch.",
            )
        level = windows.index(request.window) if request.window else None
        self.pipeline.remember_answered()
        statistics = await in_steps(self.pipeline.live.in_steps(level))
        predicted = await in_steps(self.pipeline.live.predicted_readings(level))
        self.pipeline.remember_answered()
        counters = copy.deepcopy(self.pipeline.counters)
        drift = await in_steps(self.pipeline.drift.reading(everything=True))
        if request.slices:
            wanted = set(request.slices)
            known = {name for name, _ in statistics} | {one.slice for one in predicted}
            # Who asks for a window asks for statistics.
            if not request.window:
                known |= {entry.slice for entry in drift.standings}
                known |= {entry.slice for entry in drift.stages}
            if missing := wanted - known:
                text = (
                    f"slices: no statistics of {', '.join(sorted(missing))[:200]}; "
                    f"there are {', '.join(sorted(known)) or 'none yet'}."
                )
                await refuse_call(context, grpc.StatusCode.NOT_FOUND, text)
            statistics = tuple(entry for entry in statistics if entry[0] in wanted)
            predicted = tuple(one for one in predicted if one.slice in wanted)
            drift = dataclasses.replace(
                drift,
                standings=tuple(entry for entry in drift.standings if entry.slice in wanted),
                stages=tuple(entry for entry in drift.stages if entry.slice in wanted),
            )
        cut = BinCut(request.bins or self.pipeline.config.statistics.bins)
        readings = await in_steps(ReadingCache(cut).read(statistics))
        classes = await in_steps(self.pipeline.live.classes_in_steps(level))
        answer = messages.calibration(
            readings,
            counters,
            self.pipeline.ledger.fates.pending,
            self.pipeline.recalibrators.selection.version,
            self.pipeline.config.statistics.tau,
            await in_steps(ClassReadingCache().read(classes)),
            predicted=predicted,
            drift=drift,
            include_bins=request.include_bins,
        )
        response = await in_steps(answer)
        return response.SerializeToString()

    async def get_status(self, data: bytes, context: Context) -> bytes:
        """PerceptionMonitor.GetStatus."""
        await parsed(status_pb2.GetStatusRequest(), data, context)
        self.pipeline.remember_answered()
        clocks = time.time_ns(), time.monotonic_ns()
        streams = self.pipeline.streams.values()
        found = status(streams, self.tracker, self.reloads, self._started_ns, *clocks)
        return found.SerializeToString()

    async def acknowledge_drift(self, data: bytes, context: Context) -> bytes:
        """PerceptionMonitor.AcknowledgeDrift."""
        request = await parsed(perception_monitor_pb2.AcknowledgeDriftRequest(), data, context)
        wanted = tuple(dict.fromkeys(request.slices))
        self.pipeline.remember_answered()
        try:
            ended = self.pipeline.drift.acknowledge(wanted, actor_of(request.actor))
        except NoSuchSlice as error:
            await refuse_call(context, grpc.StatusCode.NOT_FOUND, str(error))
        if self.settle is not None:
            await self.settle()
        return perception_monitor_pb2.AcknowledgeDriftResponse(
            acknowledged=[message_of(drift_pb2.DriftAlarm, one) for one in ended]
        ).SerializeToString()

    async def watch_events(self, data: bytes, context: Context) -> AsyncIterator[bytes]:
        """PerceptionMonitor.WatchEvents."""
        await parsed(perception_monitor_pb2.WatchEventsRequest(), data, context)
        async for event in self.pipeline.events.watch(time.time_ns()):
            yield messages.event(event).SerializeToString()

    # ---- the end of streams

    def drain(self) -> None:
        """Ends every stream after the frame it is at; idle ones at once."""
        self._draining = True
        for session in self._sessions:
            session.draining = True
            if session.reading:
                session.task.cancel()

    async def drained(self, grace: float) -> None:
        """Waits until all streams and calls are answered, no longer than the grace."""
        end = time.monotonic() + grace
        while (self._sessions or self.calls_in_work) and time.monotonic() < end:
            await asyncio.sleep(0.01)

    def drop_stuck(self, timeout: float) -> None:
        """Ends streams whose client has read nothing for so long."""
        now = time.monotonic()
        for session in list(self._sessions):
            if session.writing_since is not None and now - session.writing_since > timeout:
                self.pipeline.counters.streams_dropped += 1
                session.writing_since = None
                session.stuck = True
                session.task.cancel()


def _no_header(what: str) -> Refusal:
    return Refusal(Reason.NO_HEADER, "header", f"{what} has none: send the header first.")
