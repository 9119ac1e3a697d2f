"""A service without a process: what its handlers and interceptors see of gRPC; no tests."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc

from monitor.frames.frame import Header
from monitor.pipeline.frame_path import Pipeline
from monitor.service.calls import guarded
from monitor.service.handlers import Service
from monitor.v1 import perception_monitor_pb2 as pb
from monitor.wire.client_messages import encode_header
from monitor.wire.requests import WireLimits
from monitor.wire.values import MONITOR
from tests.administered import Caller
from tests.piped import HEADER, pipeline_of

LIMITS = WireLimits(2**20, 100)


class Call(Caller):
    """A stream that sends what it was given, and ends."""

    def __init__(self, *messages: bytes) -> None:
        self.messages = list(messages)
        self.written: list[bytes] = []

    async def read(self) -> Any:
        return self.messages.pop(0) if self.messages else grpc.aio.EOF

    async def write(self, message: bytes) -> None:
        self.written.append(message)

    def time_remaining(self) -> Any:
        return 1.5


def service_of(pipeline: Pipeline | None = None, **others: Any) -> Service:
    return Service(pipeline or pipeline_of(), LIMITS, **others)


def talked(service: Service, *messages: bytes, header: Header | None = HEADER) -> list[Any]:
    opening = [] if header is None else [encode_header(header)]
    call = Call(*opening, *messages)
    asyncio.run(service.process(None, call))
    answers = [pb.ProcessResponse.FromString(data) for data in call.written]
    assert header is None or answers[0].header.accepted, answers[0]
    return answers[len(opening) :]


def labelled(service: Service, *messages: bytes) -> list[pb.ReportGroundTruthResponse]:
    call = Call(*messages)
    asyncio.run(service.report_ground_truth(None, call))
    return [pb.ReportGroundTruthResponse.FromString(data) for data in call.written]


def asked(service: Service, handler: Any, data: bytes) -> bytes:
    """The answer of a unary method. Raises Refused as the server ends the call."""

    async def call() -> bytes:
        found: bytes = await guarded(service, handler)(data, Caller())
        return found

    return asyncio.run(call())


async def handled(
    interceptor: Any, handler: Any, method: str = f"/{MONITOR}/Process", metadata: Any = ()
) -> Any:

    async def continuation(_: object) -> object:
        return handler

    details = SimpleNamespace(method=method, invocation_metadata=metadata)
    return await interceptor.intercept_service(continuation, details)
