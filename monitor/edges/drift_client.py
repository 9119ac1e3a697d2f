"""A gRPC client that asks a sidecar about drift, ends alarms, and hears of new ones."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Collection
from dataclasses import dataclass

from monitor.calibration.drift.alarm import Alarm, AlarmChange, SliceStanding, StageStanding
from monitor.edges import drift_messages
from monitor.edges.client import Client
from monitor.edges.service import MONITOR
from monitor.v1 import perception_monitor_pb2


@dataclass(frozen=True, slots=True)
class DriftStandings:
    """What GetCalibration tells of drift.

    standings  of slices under each severity, and of all of them together as 'total'
    stages     of slices at each stage
    """

    standings: tuple[SliceStanding, ...]
    stages: tuple[StageStanding, ...]


@dataclass(frozen=True, slots=True)
class HeardChange:
    """An alarm that was raised, or is over; time_ns is the wall clock of the sidecar."""

    time_ns: int
    change: AlarmChange


@dataclass(slots=True)
class DriftClient(Client):
    """A connection; use as an asynchronous context.

    Every method raises SidecarUnavailable, SidecarRefused with the words of the sidecar, and
    UnknownWord.
    """

    async def standings(self, slices: Collection[str] = ()) -> DriftStandings:
        """How these slices stand, or all of them."""
        request = perception_monitor_pb2.GetCalibrationRequest(slices=slices)
        data = await self._unary(MONITOR, "GetCalibration", request.SerializeToString())
        answer = perception_monitor_pb2.GetCalibrationResponse.FromString(data)
        return DriftStandings(
            tuple(map(drift_messages.read_slice_standing, answer.drift)),
            tuple(map(drift_messages.read_stage_standing, answer.drift_stages)),
        )

    async def acknowledge(self, slices: Collection[str], actor: str) -> tuple[Alarm, ...]:
        """End the alarms of these slices, or of all; those that there were."""
        request = perception_monitor_pb2.AcknowledgeDriftRequest(slices=slices, actor=actor)
        data = await self._unary(MONITOR, "AcknowledgeDrift", request.SerializeToString())
        answer = perception_monitor_pb2.AcknowledgeDriftResponse.FromString(data)
        return tuple(map(drift_messages.read_alarm, answer.acknowledged))

    async def alarm_changes(self) -> AsyncGenerator[HeardChange, None]:
        """From now on, as long as the sidecar serves."""
        async with contextlib.aclosing(self.events()) as events:
            async for event in events:
                if event.HasField("drift"):
                    change = drift_messages.read_alarm_change(event.drift)
                    yield HeardChange(event.time.ToNanoseconds(), change)
