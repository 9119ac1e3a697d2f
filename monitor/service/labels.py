"""ReportGroundTruth: label messages are answered in order, each when it outlives a crash.

Reading goes on meanwhile, so that the labels of many frames share one write to the disk.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import grpc

from monitor.frames.detections import Reason
from monitor.frames.frame import ReceivedTruth, Refusal, TruthAnswer
from monitor.frames.status import TruthAccount
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.housekeeping import contained
from monitor.pipeline.pending import last_of
from monitor.pipeline.truth import Ahead, Search
from monitor.service.calls import INTERNAL_ERROR, Context, send
from monitor.store.entries import Kept
from monitor.wire.answers import encode_truth_response
from monitor.wire.requests import WireLimits, decode_truth_request

log = logging.getLogger(__name__)

# Messages of a stream that may wait for the disk; the client's own flow control does the rest.
IN_FLIGHT = 256


@dataclass(eq=False, slots=True)
class Session:
    """One open stream: whether it waits for its client to send or to read."""

    task: asyncio.Task[object]
    reading: bool = False
    writing_since: float | None = None
    draining: bool = False
    stuck: bool = False


@dataclass(frozen=True, slots=True)
class _Answered:
    """An answer that may have to wait."""

    stream: str
    frame_id: int | None
    answer: TruthAnswer
    sequence: int


@dataclass(slots=True)
class TruthStream:
    """One call.

    fold_some  a step of the statistics
    pause      waits until the next message may be read
    turn       waits until it may be answered
    """

    pipeline: Pipeline
    limits: WireLimits
    context: Context
    session: Session
    fold_some: Callable[[], None]
    pause: Callable[[], Awaitable[None]]
    turn: Callable[[], Awaitable[None]]

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
        while not self.session.draining and not writing.done():
            self.session.reading = True
            await self.pause()
            data = await self.context.read()
            self.session.reading = False
            if data is grpc.aio.EOF:
                return
            await self.turn()
            await _put(answers, await self._answer_or_apology(data), writing)
            self.fold_some()

    async def _write(self, answers: asyncio.Queue[_Answered | None]) -> None:
        while (answered := await answers.get()) is not None:
            durable = await self.pipeline.journal.durable(answered.sequence)
            answer = replace(answered.answer, durable=durable)
            reply = encode_truth_response(answered.stream, answered.frame_id, answer)
            self.session.writing_since = time.monotonic()
            await send(self.context, reply)
            self.session.writing_since = None

    async def _answer_or_apology(self, data: bytes) -> _Answered:
        """Answers a message; if that fails, the answer says so, and the stream lives."""
        with contained(self.pipeline.counters, log, "labels were not answered"):
            return await self._answer(data)
        notice = Refusal(Reason.INTERNAL, "message", INTERNAL_ERROR)
        return self._answered("", None, TruthAnswer(TruthAccount(), (notice,)))

    async def _answer(self, data: bytes) -> _Answered:
        labels = decode_truth_request(data, self.limits)
        if isinstance(labels, Refusal):
            self.pipeline.counters.frames_refused[labels.reason] += 1
            refused = TruthAnswer(TruthAccount(), (labels,))
            return self._answered("", None, refused)
        answer = await self._reported(labels)
        stream = self.pipeline.streams.get(labels.stream)
        if stream is not None:
            stream.seen.labels(answer.account.matched, time.monotonic_ns())
        return self._answered(labels.stream, labels.frame_id, answer)

    def _answered(self, stream: str, frame_id: int | None, answer: TruthAnswer) -> _Answered:
        # A label that is known already may not be on the disk yet.
        sequence = answer.sequence or self.pipeline.ledger.sequence
        return _Answered(stream, frame_id, answer, sequence)

    async def _reported(self, labels: ReceivedTruth) -> TruthAnswer:
        found: Kept | None = None
        while True:
            answer = self.pipeline.report(labels, found, await self._ahead(labels, found))
            if not isinstance(answer, Search):
                return answer
            # Labels of the frame may come while it is looked for: then the disk has more the next
            # time. If it has not, they were never written.
            seen = -1 if found is None else last_of(found)
            where = answer.stream, answer.frame_id, answer.partition
            found = await self.pipeline.journal.find(*where)
            if found is None or last_of(found) <= seen:
                self.pipeline.remember_answered()
                return self.pipeline.ledger.in_vain(labels)

    async def _ahead(self, labels: ReceivedTruth, found: Kept | None) -> Ahead | None:
        """Does heavy matching off the loop; if that fails, the report does it."""
        self.pipeline.remember_answered()
        heavy = self.pipeline.ledger.heavy(labels, found)
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
    """Adds an answer, unless nobody writes any more: then raises what ended the writing."""
    putting = asyncio.create_task(answers.put(answered))
    try:
        await asyncio.wait({putting, writing}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not putting.done():
            putting.cancel()
    if writing.done() and answered is not None:
        writing.result()
