"""The life of a gRPC call on the event loop, from its pace to its last status.

Nothing here knows what a method does.

At most eight messages, one of each stream, share a turn; first comes the stream that has used least
of the loop's time lately. A stream that sends too much therefore delays only itself: without turns
a punctual frame would wait for all of its messages.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from monitor.pipeline.recalibrators import NothingToRollBack, UnknownVersion
from monitor.promotion.fits import CannotFit, FitFailed, NoTracksYet
from monitor.recalibration.recalibrator import InvalidRecalibrator
from monitor.statistics.bins import IncompatibleStatistics
from monitor.store.state_definitions import InvalidState

BURST_SECONDS = 1.0

# s in which half of a stream's share is forgotten.
HALF_LIFE = 1.0

# Messages that share a turn: a punctual frame waits for no more of them.
MOST_TOGETHER = 8
log = logging.getLogger(__name__)

# Characters of a status: some names and documents are long.
MOST_DETAILS = 500
INTERNAL_ERROR = "internal error: see the log of the sidecar."


@dataclass(slots=True)
class Pace:
    """Limits the rate of one stream by reading it later; nothing is refused.

    A burst may hold the messages of one second, and always one message.
    """

    # Seconds at which a stream that had kept the pace would send its next message.
    _due: float = float("-inf")

    def delay(self, now: float, per_second: float) -> float:
        """Returns the s to wait before the next message is read.

        now         monotonic s
        per_second  messages; 0: no limit
        """
        if not per_second:
            return 0.0
        each = 1 / per_second
        # Unused time is saved for a burst, but never more than one burst.
        self._due = max(self._due, now - max(BURST_SECONDS, each)) + each
        return max(0.0, self._due - now)


@dataclass(eq=False, slots=True)
class Share:
    """Time of the loop that one stream has used lately, in s; as of `at`, monotonic s."""

    had: float = 0.0
    at: float = 0.0

    def by(self, now: float) -> float:
        """Returns the part of the share that is not forgotten by now, in s."""
        return self.had * math.exp2((self.at - now) / HALF_LIFE)

    def add(self, now: float, seconds: float) -> None:
        """Adds time that the stream used until now."""
        self.had = self.by(now) + seconds
        self.at = now


@dataclass(eq=False, slots=True)
class Waiting:
    """A stream that waits for its turn.

    turn     ends with the answer to the message; with None where there is no message, but a turn
    message  that may be answered together with those of other streams
    """

    share: Share
    since: float
    turn: asyncio.Future[Any]
    message: object | None = None


@dataclass(slots=True)
class Turns:
    """Gives the streams of one loop their turns.

    A turn lasts until its stream waits for anything; between two turns the loop makes one pass, in
    which everything else that is ready runs. Messages that wait together share a turn.

    serve  answers them: it ends each `turn` that has not ended
    """

    serve: Callable[[Sequence[Waiting]], None]
    clock: Callable[[], float] = time.monotonic
    # By stream: the share it has used, and its number of arrival.
    _waiting: list[tuple[float, int, Waiting]] = field(default_factory=list)
    _came: int = 0
    _soon: bool = False  # whether the next turn is given in the next pass of the loop
    _at: Share | None = None  # whose turn it is
    _since: float = 0.0
    _longest: float = 0.0

    def longest_wait(self) -> float:
        """Returns the longest wait for a turn, in s, since the last call; waits that go on count.

        A loop whose timers are punctual may be overloaded all the same.
        """
        now = self.clock()
        waits = [now - one.since for *_, one in self._waiting if not one.turn.done()]
        longest, self._longest = max([self._longest, *waits]), 0.0
        return longest

    async def take(self, share: Share) -> None:
        """Waits for a turn; returns at once if no stream has one."""
        if self._soon:
            await self._queue(share, None)
        else:
            self._give(share)

    async def answered(self, share: Share, message: object) -> Any:
        """Waits for a turn, and returns what `serve` answered to a message in it."""
        turn = self._queue(share, message)
        self._call_next()
        return await turn

    def _queue(self, share: Share, message: object | None) -> asyncio.Future[Any]:
        now, turn = self.clock(), asyncio.get_running_loop().create_future()
        self._came += 1
        waiting = Waiting(share, now, turn, message)
        heapq.heappush(self._waiting, (share.by(now), self._came, waiting))
        return turn

    def _call_next(self) -> None:
        if not self._soon:
            self._soon = True
            asyncio.get_running_loop().call_soon(self._next)

    def _give(self, share: Share) -> None:
        self._at, self._since = share, self.clock()
        self._call_next()

    def _next(self) -> None:
        """Ends the turn, a pass of the loop after it was given, and gives the next one."""
        now, self._soon = self.clock(), False
        if self._at is not None:
            self._at.add(now, max(0.0, now - self._since))
        self._at = None
        together: list[Waiting] = []
        while self._waiting and len(together) < MOST_TOGETHER:
            one = self._waiting[0][-1]
            alone = one.message is None
            if one.turn.done():
                # A stream that has ended meanwhile needs no turn.
                heapq.heappop(self._waiting)
            elif alone and together:
                break
            else:
                heapq.heappop(self._waiting)
                self._longest = max(self._longest, now - one.since)
                if alone:
                    one.turn.set_result(None)
                    # call_soon runs behind the stream that was just woken.
                    self._give(one.share)
                    return
                together.append(one)
        if together:
            try:
                self.serve(together)
            except Exception as error:
                # A fault ends the calls that it hit; all others go on.
                log.exception("messages of %d streams were not answered", len(together))
                for one in together:
                    if not one.turn.done():
                        one.turn.set_exception(error)
            ended = self.clock()
            for one in together:
                one.share.add(ended, max(0.0, ended - now) / len(together))
            self._call_next()


# Returns when all that has happened is on the disk, so that an answer survives a crash.
Settle = Callable[[], Awaitable[None]]


class TransferTimeout(TimeoutError):
    """A client took too long to send or to read the messages of one call."""


# The gRPC status of each error of the core; the first type that fits counts.
STATUS_OF_ERROR: dict[type[Exception], grpc.StatusCode] = {
    UnknownVersion: grpc.StatusCode.NOT_FOUND,
    InvalidRecalibrator: grpc.StatusCode.INVALID_ARGUMENT,
    NothingToRollBack: grpc.StatusCode.FAILED_PRECONDITION,
    CannotFit: grpc.StatusCode.INVALID_ARGUMENT,
    NoTracksYet: grpc.StatusCode.FAILED_PRECONDITION,
    FitFailed: grpc.StatusCode.INTERNAL,
    InvalidState: grpc.StatusCode.INVALID_ARGUMENT,
    IncompatibleStatistics: grpc.StatusCode.FAILED_PRECONDITION,
    TransferTimeout: grpc.StatusCode.ABORTED,
}


class Context(Protocol):
    """The part of grpc.aio.ServicerContext that handlers use."""

    async def read(self) -> bytes: ...

    async def write(self, message: bytes) -> None: ...

    async def abort(self, code: grpc.StatusCode, details: str) -> NoReturn: ...

    def time_remaining(self) -> float | None: ...


class InWork(Protocol):
    """Counts the calls that a service must let end before it stops."""

    calls_in_work: int


async def send(context: Context, message: bytes) -> None:
    """Writes an answer.

    raises  asyncio.CancelledError if the client has gone, as a wait does in which it goes
    """
    try:
        await context.write(message)
    except grpc.aio.InternalError:
        raise asyncio.CancelledError from None


async def refuse_call(context: Context, code: grpc.StatusCode, text: str) -> NoReturn:
    """Ends a call with a status that says why, cut after MOST_DETAILS characters."""
    short = text if len(text) <= MOST_DETAILS else text[: MOST_DETAILS - 1] + "…"
    try:
        await context.abort(code, short)
    except grpc.aio.InternalError:
        # The client has gone.
        raise asyncio.CancelledError from None


MessageT = TypeVar("MessageT", bound=Message)


async def parsed(message: MessageT, data: bytes, context: Context) -> MessageT:
    """Parses a message, or ends the call with INVALID_ARGUMENT."""
    try:
        message.ParseFromString(data)
    except (DecodeError, ValueError):
        name = message.DESCRIPTOR.full_name
        text = f"message: {len(data)} bytes are not a {name}."
        await refuse_call(context, grpc.StatusCode.INVALID_ARGUMENT, text)
    return message


Request = TypeVar("Request")
Reply = TypeVar("Reply")
Handler = Callable[[Request, Context], Awaitable[Reply]]


def guarded(service: InWork, handler: Handler[Request, Reply]) -> Handler[Request, Reply]:
    """Wraps a handler, so that an error of the core becomes its status code.

    The client is told INTERNAL_ERROR of any other fault; the log has the traceback.
    """

    async def call(data: Request, context: Context) -> Reply:
        service.calls_in_work += 1
        try:
            return await handler(data, context)
        except tuple(STATUS_OF_ERROR) as error:
            text = str(error.args[0]) if error.args else type(error).__name__
            statuses = STATUS_OF_ERROR.items()
            status = next(status for kind, status in statuses if isinstance(error, kind))
            await refuse_call(context, status, text)
        except (grpc.aio.AbortError, asyncio.CancelledError):
            raise
        except Exception:
            log.exception("%s failed", handler.__name__)
            await refuse_call(context, grpc.StatusCode.INTERNAL, INTERNAL_ERROR)
        finally:
            service.calls_in_work -= 1

    return call
