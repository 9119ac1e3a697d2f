"""Recalibrator administration without a sidecar, with what a test lays down; no tests."""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NoReturn, cast

import grpc

from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.promotions import Promotions
from monitor.pipeline.recalibrators import Recalibrators
from monitor.promotion.records import (
    Evidence,
    Factor,
    Happened,
    Record,
    SliceFitted,
    TrialStanding,
    TrialState,
)
from monitor.service.admin import AdminService
from monitor.service.calls import guarded
from monitor.service.handlers import Service
from monitor.wire.requests import WireLimits
from tests.served import ADMIN, PATIENCE

EVIDENCE = Evidence(31, 0.25, 1.75, -2.5, 2.0)
FACTORS = (Factor("x", 4.0, 4.0, 4.0), Factor("y", 0.5, 0.75, 1.0))
NOON_NS = 1_750_000_000_123_456_789
TRIALS = (
    TrialStanding("car", "variance-scaling-0123456789ab", TrialState.PROVEN, EVIDENCE, FACTORS),
    TrialStanding("truck", "identity-0123456789ab", TrialState.GUARD, EVIDENCE, ()),
)
FITTED = (
    SliceFitted("car", "variance-scaling-0123456789ab", "", 31, 620, FACTORS),
    SliceFitted("truck", "", "every factor is within 0.5 to 2: it is left alone", 12, 240),
)


def record(what: Happened, before="a-0", after="a-0", **changes: Any) -> Record:
    fields: dict[str, Any] = {
        "sequence": 7,
        "time_ns": NOON_NS,
        "what": what,
        "slice": "car",
        "version": "variance-scaling-0123456789ab",
        "before": before,
        "after": after,
        "actor": "anna@van",
        "reason": "31 tracks say so",
        "event_ns": 123,
        "evidence": EVIDENCE,
        "factors": FACTORS,
    }
    return Record(**(fields | changes))


@dataclass
class Told:
    """Stands in for Promotions and fits: keeps what it was told; what is known comes in force."""

    pipeline: Pipeline
    asked: list[tuple[Any, ...]] = field(default_factory=list)
    pinned: bool = False
    failure: Exception | None = None
    happened: tuple[Record, ...] = ()
    address: str = ""
    settled: int = 0

    def as_promotions(self) -> Promotions:
        return cast("Promotions", self)

    @property
    def recalibrators(self) -> Recalibrators:
        return self.pipeline.recalibrators

    def _take(self, *words: Any) -> None:
        self.asked.append(words)
        if self.failure is not None:
            raise self.failure

    def promote(self, version: str, actor: str) -> Record:
        self._take("promote", version, actor)
        before = self.pipeline.recalibrators.activate(version, None)
        return record(Happened.PROMOTED, before, version, actor=actor)

    def rollback(self, kind: type[object], slice: str, actor: str) -> Record:
        self._take("rollback", kind, slice, actor)
        return record(Happened.ROLLED_BACK, "b-1", "a-0", actor=actor)

    def pin(self, *, pinned: bool, actor: str) -> Record:
        self._take("pin", pinned, actor)
        self.pinned = pinned
        return record(Happened.PINNED if pinned else Happened.UNPINNED, actor=actor)

    async def settle(self) -> None:
        self.settled += 1

    async def fit(self, slices: Sequence[str], method: str, actor: str) -> tuple[SliceFitted, ...]:
        self._take("fit", slices, method, actor)
        return FITTED

    def trials(self) -> tuple[TrialStanding, ...]:
        return TRIALS

    def records(self, most: int) -> tuple[Record, ...]:
        return self.happened[-most:] if most else ()

    def records_of(self, version: str) -> tuple[Record, ...]:
        return tuple(
            one for one in self.happened if version in (one.version, one.before, one.after)
        )


def administration(pipeline: Pipeline) -> tuple[AdminService, Told]:
    told = Told(pipeline)
    return AdminService(told.as_promotions(), told.fit, told.settle), told


class Caller:
    """Reads nothing; why a call was refused is raised."""

    async def read(self) -> bytes:
        return b""

    async def write(self, message: bytes) -> None:
        raise AssertionError("a unary method writes nothing by itself")

    def time_remaining(self) -> None:
        return None

    async def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        raise Refused(code, details)


class Refused(grpc.aio.AbortError):  # type: ignore[misc]  # grpc ships no types
    def __init__(self, status: grpc.StatusCode, words: str) -> None:
        super().__init__(status, words)
        self.status, self.words = status, words


@contextlib.contextmanager
def served(pipeline: Pipeline, admin: AdminService) -> Iterator[str]:
    """The address of a server that has these handlers alone, in threads of its own."""
    service = Service(pipeline, WireLimits(2**20, 100))
    methods = {
        "List": admin.list_recalibrators,
        "Get": admin.get_recalibrator,
        "Promote": admin.promote,
        "Fit": admin.fit,
        "Rollback": admin.rollback,
        "Pin": admin.pin,
    }

    def answering(name: str) -> grpc.RpcMethodHandler:
        def answer(data: bytes, context: grpc.ServicerContext) -> bytes:
            async def call() -> bytes:
                return await guarded(service, methods[name])(data, Caller())

            try:
                return asyncio.run(call())
            except Refused as refusal:
                context.abort(refusal.status, refusal.words)
                raise  # abort has raised before

        return grpc.unary_unary_rpc_method_handler(answer)

    server = grpc.server(ThreadPoolExecutor(1))
    handlers = {name: answering(name) for name in methods}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(ADMIN, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait(PATIENCE)
