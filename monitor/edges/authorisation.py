"""What every call passes before its handler: its right to be made, and room for it.

Both are looked at once a call, never for a message.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import grpc

from monitor.counters import Counters
from monitor.edges.calls import Context, refuse_call
from monitor.edges.service import ADMIN, MONITOR
from monitor.edges.tokens import NotAuthenticated, NotPermitted, Right, Tokens

log = logging.getLogger(__name__)

# Beside max_calls, so that a full sidecar still says that it lives.
MOST_PROBES = 64
PROBES_END = "end some that watch the health."
_HEALTH = "/grpc.health.v1.Health/"

# Of the methods; what is not here needs the right of administration, reflection too.
RIGHTS = {
    f"/{MONITOR}/Process": Right.DATA,
    f"/{MONITOR}/ProcessFrame": Right.DATA,
    f"/{MONITOR}/GetCalibration": Right.DATA,
    f"/{MONITOR}/GetStatus": Right.DATA,
    f"/{MONITOR}/WatchEvents": Right.DATA,
    f"/{MONITOR}/ReportGroundTruth": Right.TRUTH,
    f"/{MONITOR}/ExportStatistics": Right.ADMIN,
    f"/{MONITOR}/ImportStatistics": Right.ADMIN,
    f"/{MONITOR}/AcknowledgeDrift": Right.ADMIN,
    **{
        f"/{ADMIN}/{name}": Right.ADMIN
        for name in ("List", "Get", "Promote", "Fit", "Rollback", "Pin")
    },
}

Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]]


def right_of(method: str) -> Right | None:
    """What a call of a method, as /package.Service/Method, needs; None: nothing."""
    return None if method.startswith(_HEALTH) else RIGHTS.get(method, Right.ADMIN)


@dataclass(slots=True, eq=False)
class Authorisation(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc ships no types
    """Lets calls pass that have the right; the others end before a message of theirs is read.

    counters  told of those that end
    """

    tokens: Tokens
    counters: Counters

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler | None:
        """The handler of the method, or one that refuses."""
        right = right_of(handler_call_details.method)
        if right is None:
            return await continuation(handler_call_details)
        metadata = handler_call_details.invocation_metadata or ()
        shown = (value for key, value in metadata if key == "authorization")
        try:
            self.tokens.check(right, shown)
        except NotAuthenticated as error:
            return self._refusing(grpc.StatusCode.UNAUTHENTICATED, str(error), right)
        except NotPermitted as error:
            return self._refusing(grpc.StatusCode.PERMISSION_DENIED, str(error), right)
        return await continuation(handler_call_details)

    def _refusing(self, code: grpc.StatusCode, text: str, right: Right) -> grpc.RpcMethodHandler:
        refused = self.counters.refuse_call(code.name.lower())
        if refused & (refused - 1) == 0:  # the 1st, 2nd, 4th, 8th …
            log.warning(
                "security: a call that needs the right '%s' was refused as %s; %d so far",
                *(right, code.name.lower(), refused),
            )

        async def refuse(_: object, context: Context) -> NoReturn:
            await refuse_call(context, code, text)

        # A stream of both sides fits every method: nothing is read before the refusal.
        return grpc.stream_stream_rpc_method_handler(refuse)


@dataclass(slots=True)
class Room:
    """For so many calls at a time.

    remedy  for who finds it full
    """

    most: int
    remedy: str = "end some, or raise [server] max_calls."
    taken: int = 0

    @contextlib.contextmanager
    def place(self) -> Iterator[bool]:
        """Whether there is one; it is taken as long as the block lasts."""
        free = self.taken < self.most
        self.taken += free
        try:
            yield free
        finally:
            self.taken -= free


@dataclass(slots=True, eq=False)
class OpenCalls(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc ships no types
    """Counts calls that are open, and refuses those beyond the limit.

    calls   room for all but those that ask for health
    probes  room for those
    """

    calls: Room
    probes: Room = field(default_factory=lambda: Room(MOST_PROBES, PROBES_END))
    # By method; only those that exist get here: the handler, and what counts it.
    _counted: dict[str, tuple[grpc.RpcMethodHandler, grpc.RpcMethodHandler]] = field(
        default_factory=dict
    )

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler | None:
        """The handler, which takes a place while it is at work."""
        method = handler_call_details.method
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        known = self._counted.get(method)
        if known is None or known[0] is not handler:
            room = self.probes if method.startswith(_HEALTH) else self.calls
            known = self._counted[method] = (handler, _counted(handler, room))
        return known[1]


def _counted(handler: grpc.RpcMethodHandler, room: Room) -> grpc.RpcMethodHandler:
    """The same handler, of which there are only so many at a time."""
    name = (
        f"{'stream' if handler.request_streaming else 'unary'}_"
        f"{'stream' if handler.response_streaming else 'unary'}"
    )
    behaviour = getattr(handler, name)
    make = getattr(grpc, f"{name}_rpc_method_handler")
    limited = _yielding if inspect.isasyncgenfunction(behaviour) else _returning
    return make(limited(behaviour, room), handler.request_deserializer, handler.response_serializer)


async def _full(context: Context, room: Room) -> NoReturn:
    text = f"{room.most} calls are open, and no more are taken: {room.remedy}"
    await refuse_call(context, grpc.StatusCode.RESOURCE_EXHAUSTED, text)


def _returning(behaviour: Callable[..., Awaitable[Any]], room: Room) -> Callable[..., Any]:
    async def call(request: object, context: Context) -> Any:
        with room.place() as free:
            if not free:
                await _full(context, room)
            return await behaviour(request, context)

    return call


def _yielding(behaviour: Callable[..., Any], room: Room) -> Callable[..., Any]:
    async def call(request: object, context: Context) -> AsyncIterator[Any]:
        with room.place() as free:
            if not free:
                await _full(context, room)
            async with contextlib.aclosing(behaviour(request, context)) as answers:
                async for answer in answers:
                    yield answer

    return call
