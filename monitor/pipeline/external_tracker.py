"""A tracker elsewhere: frames that are forwarded to it, and its answers.

Everything is on the event loop, and nothing waits but answers that are to have tracks, these no
longer than they were told to. The call is made again and again, with a task that writes and one
that reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import NoReturn

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from monitor.config import TrackerConfig
from monitor.frames.detections import Reason
from monitor.frames.frame import FrameAnswer, ReportedTracks
from monitor.frames.reasons import Notice
from monitor.frames.status import Counters, Histogram
from monitor.pipeline.housekeeping import contained
from monitor.pipeline.streams import Stream
from monitor.wire.answers import encode_frame_update, encode_header_update
from monitor.wire.requests import UnusableAnswer, decode_update, reported_tracks

log = logging.getLogger(__name__)

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

# Seconds before the second attempt, at most; each further one may wait twice as long.
FIRST_BACKOFF = 0.05

# What the log calls a tracker that serves.
THERE = "there"

# A tracker that takes frames and says nothing for so many seconds hangs: it is called anew.
SILENCE = 5.0

# Seconds between two lines of the log on one matter: a tracker may come and go many times a second.
SAY_EVERY = 1.0

# Of what is left of a detector's call, that its answer may wait; the rest is for its own way.
SHARE = 0.8


class Outcome(StrEnum):
    """How it ended with a frame; every frame ends once."""

    ANSWERED = "answered"  # in time
    LATE = "late"  # its turn had come, and it was not answered in time
    DROPPED = "dropped"  # newer ones took its place in the queue
    EXPIRED = "expired"  # too old before it could be sent
    FAILED = "failed"  # the tracker was away or went away, or its answer could not be used


@dataclass(eq=False, slots=True)
class ForwardedFrame:
    """A frame as it went back to the detector.

    began      when it was forwarded, seconds
    call_ends  when the detector's call does; None: never
    settle     told once how it ended, with the tracks where it was answered
    """

    stream: Stream
    answer: FrameAnswer
    began: float
    call_ends: float | None = None
    settle: Callable[[Outcome, ReportedTracks | None], None] | None = None
    sequence: int | None = None
    outcome: Outcome | None = None


@dataclass(slots=True)
class FrameLine:
    """The queue, oldest first, and the frames of the present call that have no answer yet.

    sent   frames that were written, whatever became of them then
    ended  frames by how it ended
    """

    capacity: int
    sent: int = 0
    ended: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    _waiting: OrderedDict[ForwardedFrame, None] = field(default_factory=OrderedDict)
    _out: dict[int, ForwardedFrame] = field(default_factory=dict)
    _sequence: int = 0

    def add(self, frame: ForwardedFrame) -> None:
        """At the end of the queue; the oldest ones make room."""
        while len(self._waiting) >= self.capacity:
            self.end(next(iter(self._waiting)), Outcome.DROPPED)
        self._waiting[frame] = None

    def take(self) -> ForwardedFrame | None:
        """The oldest that waits; it is out from now on, and has a sequence."""
        if not self._waiting:
            return None
        frame, _ = self._waiting.popitem(last=False)
        # From 1: an empty message says 0, and answers nothing.
        self._sequence += 1
        frame.sequence = self._sequence
        self._out[self._sequence] = frame
        return frame

    def answered(self, sequence: int) -> ForwardedFrame | None:
        """The frame with this sequence; None if it has ended. Raises KeyError: never sent."""
        if not 1 <= sequence <= self._sequence:
            raise KeyError(sequence)
        return self._out.get(sequence)

    def overdue(self, frame: ForwardedFrame) -> None:
        """Its time is over."""
        self.end(frame, Outcome.EXPIRED if frame in self._waiting else Outcome.LATE)

    def end(
        self, frame: ForwardedFrame, outcome: Outcome, tracks: ReportedTracks | None = None
    ) -> None:
        """Nothing more happens to the frame; what has ended before stays as it was."""
        if frame.outcome is not None:
            return
        frame.outcome = outcome
        self.ended[outcome] += 1
        self._waiting.pop(frame, None)
        if frame.sequence is not None:
            self._out.pop(frame.sequence, None)
        if frame.settle is not None:
            frame.settle(outcome, tracks)

    def lose(self) -> None:
        """Nobody is there any more."""
        for frame in [*self._out.values(), *self._waiting]:
            self.end(frame, Outcome.FAILED)

    def begin_call(self) -> None:
        """A call begins, and with it the sequence; of the one before nothing is out any more."""
        for frame in list(self._out.values()):
            self.end(frame, Outcome.FAILED)
        self._sequence = 0


# How it ended with a frame, and its tracks where it was answered.
Ended = asyncio.Future[tuple[Outcome, ReportedTracks | None]]


@dataclass(slots=True)
class ExternalTracker:
    """Forwards frames to the tracker while it is there.

    changed        told when it comes or goes
    stand_in       returns the answer with the tracks of the sidecar's own tracker; None where that
                   does not stand by
    trouble        how it was when it was last found not to serve; empty: never was
    heard          whether it has answered anything in this call
    unheard_since  when the first frame was sent after what it answered last; None: none was
    unusable       answers that were none
    seconds        from a frame to its answer, of those answered in time
    """

    config: TrackerConfig
    counters: Counters
    changed: Callable[[bool], None]
    stand_in: Callable[[Stream, FrameAnswer], FrameAnswer | None]
    up: bool = False
    trouble: str = ""
    heard: bool = False
    unheard_since: float | None = None
    unusable: int = 0
    seconds: Histogram = field(default_factory=Histogram)
    line: FrameLine = field(init=False)
    ready: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.line = FrameLine(self.config.queue_frames)

    # ---- the frame path

    def forward(
        self, stream: Stream, answer: FrameAnswer, left: float | None
    ) -> FrameAnswer | Awaitable[FrameAnswer]:
        """The answer as it goes back; later, where it is to have the tracks of this frame.

        left  seconds of the detector's call; None: it has no deadline
        """
        loop = asyncio.get_running_loop()
        now, wanted = loop.time(), stream.header.return_tracks
        call_ends = None if left is None else now + left
        frame = ForwardedFrame(stream, answer, now, call_ends)
        if not self.up:
            self.line.end(frame, Outcome.FAILED)
            # Who stands by has tracked it already.
            missed = wanted and stream.tracker is None
            return self._without(answer, Outcome.FAILED) if missed else answer
        waits = self.config.timeout_seconds
        waits = waits if left is None else max(0.0, min(waits, SHARE * left))
        timer = loop.call_later(waits, self.line.overdue, frame)
        ended: Ended | None = loop.create_future() if wanted else None

        def settle(outcome: Outcome, tracks: ReportedTracks | None) -> None:
            timer.cancel()
            # Who waited may have gone.
            if ended is not None and not ended.done():
                ended.set_result((outcome, tracks))

        frame.settle = settle
        self.line.add(frame)
        self.ready.set()
        return answer if ended is None else self._with_tracks(stream, answer, ended)

    async def _with_tracks(self, stream: Stream, answer: FrameAnswer, ended: Ended) -> FrameAnswer:
        outcome, tracks = await ended
        if tracks is not None:
            return replace(answer, tracks=tracks)
        instead, name = None, stream.header.stream
        with contained(self.counters, log, "a frame of stream %s is answered without tracks", name):
            instead = self.stand_in(stream, answer)
        return self._without(answer, outcome) if instead is None else instead

    def _without(self, answer: FrameAnswer, outcome: Outcome) -> FrameAnswer:
        """The answer with the reason why it has no tracks."""
        config = self.config
        if outcome is Outcome.FAILED:
            text = f"the tracker at {config.address} is away, or its answer was none; see the log."
        elif outcome is Outcome.DROPPED:
            text = f"more than {config.queue_frames} frames waited ([tracker] queue_frames)."
        else:
            text = (
                f"the tracker did not answer within {config.timeout_seconds:g} s ([tracker] "
                "timeout_seconds), or what was left of the call."
            )
        self.counters.notices[Reason.NOT_TRACKED] += 1
        notice = Notice(Reason.NOT_TRACKED, "tracks", text)
        return replace(answer, notices=(*answer.notices, notice))

    # ---- for who holds the call

    def be(self, up: bool) -> None:
        """There, or away: frames that wait for one who is away would wait for nothing."""
        if up == self.up:
            return
        self.up = up
        if not up:
            self.line.lose()
        where = "there" if up else "away"
        with contained(self.counters, log, "the tracker is %s: streams were not switched", where):
            self.changed(up)

    def encoded(self, frame: ForwardedFrame, now: float) -> bytes | None:
        """The request; None where it cannot be made: neither the call nor other frames suffer."""
        left_ns = None if frame.call_ends is None else int((frame.call_ends - now) * 1e9)
        name, sequence = frame.stream.header.stream, frame.sequence
        assert sequence is not None
        with contained(self.counters, log, "a frame of stream %s was not forwarded", name):
            return encode_frame_update(name, frame.answer, sequence, left_ns)
        self.line.end(frame, Outcome.FAILED)
        return None

    def take(self, data: bytes, now: float) -> None:
        """An answer. Raises UnusableAnswer."""
        answer = decode_update(data)
        try:
            frame = self.line.answered(answer.sequence)
        except KeyError:
            text = f"sequence: {answer.sequence} was never sent; it must be that of the request."
            raise UnusableAnswer(text) from None
        self.heard, self.unheard_since = True, None
        if frame is None:
            return  # too late: its detector has long gone on
        tracks = None
        header = frame.stream.header
        if header.return_tracks:
            received = frame.answer.received.detections
            most, own = self.config.max_tracks, frame.stream.tracker
            # The header's answer has promised those of our own tracker, where it stands by.
            state = None if own is None else len(own.dimensions)
            try:
                tracks = reported_tracks(answer, received, len(header.classes), most, state)
            except UnusableAnswer:
                self.line.end(frame, Outcome.FAILED)
                raise
        self.seconds.observe(now - frame.began)
        self.line.end(frame, Outcome.ANSWERED, tracks)


class LinkLost(ConnectionError):
    """The call to the tracker is over, or could not be made; the message says why."""


@dataclass(slots=True)
class TrackerCalls:
    """Keeps a call to the tracker."""

    tracker: ExternalTracker
    dial: Callable[[], AbstractAsyncContextManager[Link]]
    random: Random = field(default_factory=Random)
    silence: float = SILENCE
    _state: tuple[str, str] | None = None  # as it is, and why
    _told: str = ""  # as the log says it is
    _said: dict[str, float] = field(default_factory=dict)  # when, by matter

    async def run(self) -> None:
        """Calls the tracker again and again, until cancelled."""
        loop, tracker = asyncio.get_running_loop(), self.tracker
        failures = 0
        while True:
            began, tracker.heard = loop.time(), False
            why = "a fault of the sidecar"
            try:
                with contained(tracker.counters, log, "the call to the tracker failed"):
                    try:
                        async with self.dial() as link:
                            await self._serve(link)
                    except LinkLost as error:
                        why = str(error)
            finally:
                tracker.be(False)
            self._tell("away", f": {why}")
            longest = tracker.config.backoff_seconds
            if tracker.heard or loop.time() - began > longest:
                failures = 0
            longest = min(longest, FIRST_BACKOFF * 2.0 ** min(failures, 16))
            failures += 1
            # Drawn, so that the sidecars of a tracker do not all come back at one moment.
            await asyncio.sleep(longest * self.random.uniform(0.5, 1.0))

    async def _serve(self, link: Link) -> NoReturn:
        """One call, to its end. Raises LinkLost."""
        self.tracker.line.begin_call()
        self.tracker.unheard_since = None
        work = (self._write(link), self._read(link), self._watch(link), self._listen())
        tasks = [asyncio.create_task(each) for each in work]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if not task.cancelled():
                    task.result()
            raise LinkLost("the call was cancelled")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _write(self, link: Link) -> None:
        """Sends what waits, oldest first; before the first frame of a stream its header."""
        loop, tracker = asyncio.get_running_loop(), self.tracker
        announced: dict[str, int] = {}
        while True:
            frame = tracker.line.take()
            if frame is None:
                tracker.ready.clear()
                await tracker.ready.wait()
                continue
            first = tracker.unheard_since is None
            if first:
                tracker.unheard_since = loop.time()
            name, number = frame.stream.header.stream, frame.stream.number
            if announced.get(name) != number:
                await link.write(encode_header_update(frame.stream.header))
                announced[name] = number
                # Meanwhile it may have ended, with the detector long gone on.
                if frame.outcome is not None:
                    if first:
                        tracker.unheard_since = None  # a header has no answer
                    continue
            data = tracker.encoded(frame, loop.time())
            if data is not None:
                await link.write(data)
                tracker.line.sent += 1

    async def _read(self, link: Link) -> None:
        loop = asyncio.get_running_loop()
        while True:
            data = await link.read()
            try:
                self.tracker.take(data, loop.time())
            except UnusableAnswer as error:
                self.tracker.unusable += 1
                self._say("answers", f"answered what cannot be used: {error}")

    async def _watch(self, link: Link) -> None:
        """Follows what the tracker says of its own health; where it says nothing, it is well."""
        healthy = True
        while True:
            async for told in link.health():
                healthy = told
                self._be(healthy)
            if healthy:
                break
            # It does not serve, and tells no more of it: ask again, lest it be away for ever.
            await asyncio.sleep(self.tracker.config.backoff_seconds)
        self._be(True)
        await asyncio.Event().wait()

    def _be(self, up: bool) -> None:
        self.tracker.be(up)
        self._tell(THERE if up else "there, but says that it does not serve")

    async def _listen(self) -> None:
        """Raises LinkLost where nothing is heard of the tracker.

        Says a state, too, that came too soon after the one before: it would be unsaid for good.
        """
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.silence / 4)
            if self._state is not None:
                self._tell(*self._state)
            since = self.tracker.unheard_since
            if since is not None and loop.time() - since > self.silence:
                raise LinkLost(f"it took frames and answered none for {self.silence:g} s")

    def _tell(self, state: str, why: str = "") -> None:
        """Tells a state, unless it was the last that was told."""
        self._state = (state, why)
        if state != THERE:
            self.tracker.trouble = f"is {state}{why}"
        if state != self._told and self._say("state", f"is {state}{why}"):
            self._told = state

    def _say(self, matter: str, what: str) -> bool:
        """Logs a line, unless one on the same matter came just before; whether it did."""
        now = asyncio.get_running_loop().time()
        if now - self._said.get(matter, float("-inf")) < SAY_EVERY:
            return False
        self._said[matter] = now
        log.warning("the tracker at %s %s", self.tracker.config.address, what)
        return True


# ---- the call


@contextlib.asynccontextmanager
async def dial(config: TrackerConfig) -> AsyncIterator[Link]:
    """Opens a call on its own channel; both end with the block. Raises LinkLost."""
    async with await _channel(config) as channel:
        try:
            async with asyncio.timeout(CONNECTING):
                await _connect(channel, config.certificate_authority)
        except TimeoutError:
            raise LinkLost(f"no connection within {CONNECTING:g} s") from None
        call = channel.stream_stream(UPDATE)()
        try:
            yield Link(channel, call)
        finally:
            call.cancel()


async def _channel(config: TrackerConfig) -> grpc.aio.Channel:
    options = [
        ("grpc.max_receive_message_length", LONGEST_ANSWER),
        ("grpc.max_send_message_length", -1),
        # Each attempt is a new connection, and gRPC must not time the next one.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
        # The tracker is in the vehicle: a proxy for the web does not apply.
        ("grpc.enable_http_proxy", 0),
    ]
    path = config.certificate_authority
    if not path:
        return grpc.aio.insecure_channel(config.address, options=options)
    try:
        authority = await asyncio.to_thread(Path(path).read_bytes)
    except OSError as error:
        text = f"[tracker] certificate_authority = '{path}': {error.strerror}"
        raise LinkLost(text) from None
    credentials = grpc.ssl_channel_credentials(authority)
    return grpc.aio.secure_channel(config.address, credentials, options=options)


async def _connect(channel: grpc.aio.Channel, authority: str) -> None:
    """Returns once there is a connection. Raises LinkLost."""
    while (state := channel.get_state(try_to_connect=True)) in _ON_THE_WAY:
        await channel.wait_for_state_change(state)
    if state is not grpc.ChannelConnectivity.READY:
        # gRPC does not say which of the two it is.
        why = f", or its certificate is not of '{authority}'" if authority else ""
        raise LinkLost(f"nobody takes the connection{why}")


@dataclass(frozen=True, slots=True)
class Link:
    """A call to the tracker. All of it raises LinkLost."""

    channel: grpc.aio.Channel
    call: grpc.aio.StreamStreamCall

    async def write(self, data: bytes) -> None:
        """Returns when there is room for more."""
        try:
            await self.call.write(data)
        except _OVER as error:
            raise LinkLost(_why(error)) from None

    async def read(self) -> bytes:
        """Returns the next message."""
        try:
            data = await self.call.read()
        except _OVER as error:
            raise LinkLost(_why(error)) from None
        if not isinstance(data, bytes):
            raise LinkLost("it ended the call")
        return data

    async def health(self) -> AsyncIterator[bool]:
        """Yields whether the tracker serves, each time that changes; ends if it does not tell."""
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
