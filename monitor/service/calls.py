"""How fast one stream may go: a rate, with bursts of a second of it, or of one message where that
is more. Time is an argument.

Whose turn it is on the event loop: one message at a time, and first of those whose stream has
had the least of the loop lately. Who sends as fast as it can waits for itself alone.

Without it the loop would answer, in one pass, a message of every stream that has one: a frame of
a sensor in time then waits for as many messages as there are streams that push.

What every call has in common, whoever handles it: its end in words, and errors of the core as
status codes.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import NoReturn, Protocol, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from monitor.pipeline.recalibrators import NothingToRollBack, UnknownVersion
from monitor.promotion.fits import CannotFit, FitFailed, NoTracksYet
from monitor.recalibration.documents import InvalidRecalibrator
from monitor.statistics.bins import IncompatibleStatistics
from monitor.store.state_definitions import InvalidState

MONITOR = "monitor.v1.PerceptionMonitor"


ADMIN = "monitor.v1.RecalibratorAdmin"


BURST_SECONDS = 1.0


@dataclass(slots=True)
class Pace:
    """Of one stream. Nothing is refused: who is too fast is read later."""

    # Seconds at which a stream that had kept the pace would send its next message.
    _due: float = float("-inf")

    def delay(self, now: float, per_second: float) -> float:
        """Seconds to wait before the next message is read.

        now         monotonic seconds
        per_second  messages; 0: as fast as it likes
        """
        if not per_second:
            return 0.0
        each = 1 / per_second
        # What was not used is saved for a burst, but never more than that.
        self._due = max(self._due, now - max(BURST_SECONDS, each)) + each
        return max(0.0, self._due - now)


# s in which half of what a stream has had is forgotten.
HALF_LIFE = 1.0


@dataclass(eq=False, slots=True)
class Share:
    """What one stream has had of the loop lately, in s; as of `at`."""

    had: float = 0.0
    at: float = 0.0

    def by(self, now: float) -> float:
        """What of it is not forgotten."""
        return self.had * math.exp2((self.at - now) / HALF_LIFE)

    def add(self, now: float, seconds: float) -> None:
        """It had some more."""
        self.had = self.by(now) + seconds
        self.at = now


@dataclass(slots=True)
class Turns:
    """Of all streams of one loop.

    A turn is from when it is given until whoever has it waits for anything; in between everything
    else that is ready on the loop has a pass of it.
    """

    clock: Callable[[], float] = time.monotonic
    # What each has had, the order in which they came, and since when they wait.
    _waiting: list[tuple[float, int, float, Share, asyncio.Future[None]]] = field(
        default_factory=list
    )
    _came: int = 0
    _at: Share | None = None  # whose turn it is
    _since: float = 0.0
    _longest: float = 0.0

    def longest_wait(self) -> float:
        """s that a message waited for its turn, at most, of those that got one since last asked or
        still wait: a loop that is punctual may have more to do than it can all the same.
        """
        now = self.clock()
        waits = [now - since for _, _, since, _, turn in self._waiting if not turn.done()]
        longest, self._longest = max([self._longest, *waits]), 0.0
        return longest

    async def take(self, share: Share) -> None:
        """Wait for a turn; at once where nobody has one."""
        if self._at is None:
            self._give(share)
            return
        turn = asyncio.get_running_loop().create_future()
        self._came += 1
        now = self.clock()
        heapq.heappush(self._waiting, (share.by(now), self._came, now, share, turn))
        await turn
        self._longest = max(self._longest, self.clock() - now)

    def _give(self, share: Share) -> None:
        self._at, self._since = share, self.clock()
        asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """A pass later: the turn is over."""
        now = self.clock()
        if self._at is not None:
            self._at.add(now, max(0.0, now - self._since))
        self._at = None
        while self._waiting:
            *_, share, turn = heapq.heappop(self._waiting)
            # Who has gone meanwhile needs none.
            if not turn.done():
                turn.set_result(None)
                # Behind the one that was just woken.
                self._give(share)
                return


log = logging.getLogger(__name__)


# Of what a status says: some names and documents are long.
MOST_DETAILS = 500


INTERNAL_ERROR = "internal error: see the log of the sidecar."


# Returns when what has happened is on the disk: what is answered outlives us.
Settle = Callable[[], Awaitable[None]]


class TransferTimeout(TimeoutError):
    """A client took too long to send or to read the messages of one call."""


# What an error of the core is called over gRPC.
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
    """What the handlers use of a call."""

    async def read(self) -> bytes: ...

    async def write(self, message: bytes) -> None: ...

    async def abort(self, code: grpc.StatusCode, details: str) -> NoReturn: ...

    def time_remaining(self) -> float | None: ...


class InWork(Protocol):
    """Who waits for calls to end."""

    calls_in_work: int


async def send(context: Context, message: bytes) -> None:
    """Write an answer. Where its client has gone meanwhile the call is over, and no fault of ours.

    raises  asyncio.CancelledError, as when it goes at any other time
    """
    try:
        await context.write(message)
    except grpc.aio.InternalError:
        raise asyncio.CancelledError from None


async def refuse_call(context: Context, code: grpc.StatusCode, text: str) -> NoReturn:
    """End a call with a status that says why, in few words."""
    short = text if len(text) <= MOST_DETAILS else text[: MOST_DETAILS - 1] + "…"
    try:
        await context.abort(code, short)
    except grpc.aio.InternalError:
        # Nobody is there to be told.
        raise asyncio.CancelledError from None


MessageT = TypeVar("MessageT", bound=Message)


async def parsed(message: MessageT, data: bytes, context: Context) -> MessageT:
    """The message, or the call ends with INVALID_ARGUMENT."""
    try:
        message.ParseFromString(data)
    except (DecodeError, ValueError):
        name = message.DESCRIPTOR.full_name
        text = f"message: {len(data)} bytes are not a {name}."
        await refuse_call(context, grpc.StatusCode.INVALID_ARGUMENT, text)
    return message


def _status_of(error: Exception) -> grpc.StatusCode:
    """Of the first kind in the table that the error is of."""
    return next(status for kind, status in STATUS_OF_ERROR.items() if isinstance(error, kind))


Request = TypeVar("Request")


Reply = TypeVar("Reply")


Handler = Callable[[Request, Context], Awaitable[Reply]]


def guarded(service: InWork, handler: Handler[Request, Reply]) -> Handler[Request, Reply]:
    """The handler, with errors of the core as status codes and nothing else over the wire."""

    async def call(data: Request, context: Context) -> Reply:
        service.calls_in_work += 1
        try:
            return await handler(data, context)
        except tuple(STATUS_OF_ERROR) as error:
            text = str(error.args[0]) if error.args else type(error).__name__
            await refuse_call(context, _status_of(error), text)
        except (grpc.aio.AbortError, asyncio.CancelledError):
            raise
        except Exception:
            log.exception("%s failed", handler.__name__)
            await refuse_call(context, grpc.StatusCode.INTERNAL, INTERNAL_ERROR)
        finally:
            service.calls_in_work -= 1

    return call
