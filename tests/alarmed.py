"""A sidecar's handlers of drift over a watch that gives fixed answers, and alarms to tell."""

import asyncio
import contextlib
import threading
from collections.abc import Collection, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import grpc

from monitor.drift.alarms import (
    Alarm,
    AlarmChange,
    AlarmReason,
    Counted,
    DriftReading,
    DriftState,
    SliceStanding,
    StageStanding,
)
from monitor.drift.charts import Detector, Direction, Origin, Quantity, Scale, Severity, Stage
from monitor.pipeline.drift_watch import NoSuchSlice
from monitor.pipeline.frame_path import Pipeline
from monitor.service.calls import guarded
from monitor.service.handlers import Service
from monitor.wire.requests import WireLimits
from monitor.wire.values import MONITOR
from tests.served import PATIENCE

UNKNOWN = Scale(float("nan"), float("nan"), float("nan"))


def alarm(slice="car", **changes: Any) -> Alarm:
    """A page with every field."""
    fields: dict[str, Any] = {
        "slice": slice,
        "severity": Severity.PAGE,
        "stage": Stage.RECALIBRATED,
        "detector": Detector.TRACK,
        "direction": Direction.OVER,
        "dimension": "",
        "quantity": Quantity.SCALE,
        "size": 2.2,
        "unit": "",
        "evidence": 1030.0,
        "threshold": 1000.0,
        "event_ns": 16_400_000_000,
        "since_ns": 12_300_000_000,
        "detections": 214,
        "tracks": 7,
        "labelled": 1214,
        "scale": Scale(2.2, 1.9, 2.6),
        "epoch": 1,
        "driven": 0.25,
    }
    return Alarm(**(fields | changes))


RAISED = AlarmChange(AlarmReason.RAISED, alarm(), ("truck",))
STANDINGS = (
    SliceStanding("car", Severity.PAGE, DriftState.ALARM, 0.121, 2e9, 1000.0, alarm()),
    SliceStanding("car", Severity.TICKET, DriftState.OK, 0.0, 0.25, 500.0, None),
    SliceStanding("truck", Severity.PAGE, DriftState.WARNING, 250.0, 250.0, 1000.0, None),
    SliceStanding("truck", Severity.TICKET, DriftState.TOO_FEW, 1e-7, 1e-7, 500.0, None),
    SliceStanding("total", Severity.PAGE, DriftState.WARNING, 1280.0, 2e9, 1e7, None),
)
STAGES = (
    StageStanding(
        *("car", Stage.RAW, Scale(0.5, 0.4, 0.625), 0.125),
        *(Origin.LEARNED, 31, 2040, Counted.TRACK_SECOND),
    ),
    StageStanding(
        *("truck", Stage.RECALIBRATED, UNKNOWN, 1.0, Origin.SHIPPED, 0, 0, Counted.DETECTION),
    ),
)
READING = DriftReading(STANDINGS, STAGES)


@dataclass
class FixedWatch:
    """Stands in for DriftWatch: knows the slices of its reading, and ends the alarms there."""

    answer: DriftReading = READING
    asked: list[tuple[tuple[str, ...], str]] = field(default_factory=list)

    def reading(self, *, everything: bool = False) -> Generator[None, None, DriftReading]:
        yield
        return self.answer

    def acknowledge(self, slices: Collection[str], actor: str) -> tuple[Alarm, ...]:
        self.asked.append((tuple(slices), actor))
        if missing := set(slices) - {entry.slice for entry in self.answer.standings}:
            raise NoSuchSlice(f"slices: nothing is watched of '{missing.pop()}'; there is a bus.")
        standing = [entry for entry in self.answer.standings if entry.slice in slices or not slices]
        return tuple(entry.alarm for entry in standing if entry.alarm is not None)


class Watched:
    """A pipeline with another watch."""

    def __init__(self, pipeline: Pipeline, watch: FixedWatch) -> None:
        self.pipeline, self.drift = pipeline, watch

    def __getattr__(self, name: str) -> object:
        return getattr(self.pipeline, name)


def service_of(pipeline: Pipeline, watch: FixedWatch) -> Service:
    """The handlers over this watch."""
    watched = cast("Pipeline", Watched(pipeline, watch))
    return Service(watched, WireLimits(2**20, 100))


@dataclass
class Served:
    """A server in a thread of its own; say(None) tells those who watch that the sidecar ends."""

    service: Service
    watch: FixedWatch
    address: str
    loop: asyncio.AbstractEventLoop

    def say(self, *changes: AlarmChange | None, time_ns: int = 0) -> None:
        asyncio.run_coroutine_threadsafe(self._say(changes, time_ns), self.loop)

    async def _say(self, changes: tuple[AlarmChange | None, ...], time_ns: int) -> None:
        while not self.service.pipeline.events._watchers:
            await asyncio.sleep(0.01)
        for change in changes:
            if change is None:
                self.service.pipeline.events.close()
            else:
                self.service.pipeline.events.publish(change, time_ns)


@contextlib.contextmanager
def served(pipeline: Pipeline, watch: FixedWatch) -> Iterator[Served]:
    """These handlers alone, until the end of the context."""
    service = service_of(pipeline, watch)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def done(work):
        return asyncio.run_coroutine_threadsafe(work, loop).result(PATIENCE)

    server, port = done(_started(service))
    try:
        yield Served(service, watch, f"127.0.0.1:{port}", loop)
    finally:
        done(server.stop(None))
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE)
        loop.close()


async def _started(service: Service) -> tuple[grpc.aio.Server, int]:
    server = grpc.aio.server()
    unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
    handlers = {
        "GetCalibration": unary(guarded(service, service.get_calibration)),
        "AcknowledgeDrift": unary(guarded(service, service.acknowledge_drift)),
        "WatchEvents": stream(service.watch_events),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(MONITOR, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, port
