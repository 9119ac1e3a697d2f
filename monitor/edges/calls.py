"""What every call has in common, whoever handles it: its end in words, and errors of the core as
status codes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NoReturn, Protocol, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from monitor.calibration.binning import IncompatibleStatistics
from monitor.edges.state_sums import InvalidState
from monitor.promotion.fit_job import CannotFit, FitFailed, NoTracksYet
from monitor.recalibration.recalibrator import InvalidRecalibrator
from monitor.recalibrators import NothingToRollBack, UnknownVersion

log = logging.getLogger(__name__)

# Of what a status says: some names and documents are long.
MOST_DETAILS = 500
INTERNAL_ERROR = "internal error: see the log of the sidecar."


# Returns when what has happened is on the disk: what is answered outlives us.
Settle = Callable[[], Awaitable[None]]


async def at_once() -> None:
    """Where nothing is kept, there is nothing to wait for."""


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
