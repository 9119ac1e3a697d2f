"""Sends the demo's drive through a sidecar at the pace of its stamps.

One stream a sensor, one of ground truth, everything in between bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import numpy as np

from monitor.commands.demo.plan import Plan
from monitor.commands.demo.record import AnsweredFrame, Record
from monitor.commands.demo.scene import (
    CLASSES,
    SPACE,
    SimulatedFrame,
    simulate,
    with_variance_factor,
)
from monitor.commands.sending import first_error
from monitor.commands.sidecar_client import Client, Conversation
from monitor.frames.frame import Header
from monitor.wire.client_messages import (
    OutgoingFrame,
    decode_answer,
    encode_frame,
    encode_truth,
    refused,
)

_WAITING_TO_BE_SENT = 8  # frames of a sensor
IN_FLIGHT = 32  # frames of a sensor, or messages of truth
WAITING_FOR_TRUTH = 1024  # frames of all sensors; 3 s are 180


class BadAnswer(ValueError):
    """The sidecar did not answer a frame with its detections."""


@dataclass(slots=True)
class Lane:
    """One sensor's stream; None in a queue ends it.

    in_flight  frames with the time when they were sent
    """

    stream: Conversation
    to_send: asyncio.Queue[SimulatedFrame | None] = field(
        default_factory=lambda: asyncio.Queue(_WAITING_TO_BE_SENT)
    )
    in_flight: asyncio.Queue[tuple[SimulatedFrame, float] | None] = field(
        default_factory=lambda: asyncio.Queue(IN_FLIGHT)
    )


@contextlib.asynccontextmanager
async def watched(client: Client, record: Record) -> AsyncIterator[None]:
    """Records what happens to recalibrators, as long as the context lasts.

    Raises SidecarUnavailable, UnknownWord.
    """

    async def listen() -> None:
        async for happening in client.happenings():
            record.hear(happening)

    listening = asyncio.create_task(listen())
    try:
        yield
    finally:
        listening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await listening


async def drive(client: Client, record: Record) -> None:
    """Fills the record with the whole drive.

    Raises SidecarUnavailable, SidecarRefused, BadAnswer.
    """
    streams = _Streams(client, record, await open_lanes(client, record.plan), client.truth())
    try:
        await streams.run()
    except ExceptionGroup as group:
        raise first_error(group) from None


async def open_lanes(client: Client, plan: Plan) -> dict[str, Lane]:
    """Opens a stream for each sensor. Raises SidecarUnavailable, SidecarRefused."""
    sensors = plan.settings.sensors
    headers = [
        Header(name, SPACE, CLASSES, "vehicle", return_tracks=name == plan.faulty)
        for name in sensors
    ]
    opened = await asyncio.gather(*(client.open(header) for header in headers))
    return {name: Lane(stream) for name, stream in zip(sensors, opened, strict=True)}


@dataclass(slots=True)
class _Streams:
    client: Client
    record: Record
    lanes: dict[str, Lane]
    truth: Conversation
    began: float = 0.0
    fault_told: bool = False
    untold: asyncio.Queue[AnsweredFrame | None] = field(
        default_factory=lambda: asyncio.Queue(WAITING_FOR_TRUTH)
    )
    told: asyncio.Queue[AnsweredFrame | None] = field(
        default_factory=lambda: asyncio.Queue(IN_FLIGHT)
    )

    async def run(self) -> None:
        self.began = time.monotonic()
        async with asyncio.TaskGroup() as truth:
            truth.create_task(self._send_truth())
            truth.create_task(self._receive_truth())
            async with asyncio.TaskGroup() as frames:
                frames.create_task(self._pace_frames())
                for lane in self.lanes.values():
                    frames.create_task(self._send_frames(lane))
                    frames.create_task(self._receive_answers(lane))
            self.record.frames_wall_s = time.monotonic() - self.began
            await self.untold.put(None)

    def _late_s(self, event_s: float) -> float:
        """Wall time since this event time was due; negative before."""
        return time.monotonic() - self.began - event_s / self.record.plan.speed

    async def _until(self, event_s: float) -> None:
        await asyncio.sleep(max(0.0, -self._late_s(event_s)))
        self.record.elapsed_s = max(self.record.elapsed_s, event_s)

    # ---- frames

    async def _pace_frames(self) -> None:
        plan, record = self.record.plan, self.record
        record.tell(f"healthy: {len(self.lanes)} sensors, {plan.settings.rate_hz:g} Hz each")
        for frame in simulate(plan.settings, plan.seed, math.inf):
            at_s = plan.event_s(frame.stamp_ns)
            if record.drive_may_end(at_s):
                break
            await self._until(at_s)
            await self.lanes[frame.sensor].to_send.put(self._as_reported(frame, at_s))
        for lane in self.lanes.values():
            await lane.to_send.put(None)

    def _as_reported(self, frame: SimulatedFrame, at_s: float) -> SimulatedFrame:
        """Puts the fault into a frame, while it is there."""
        plan, record = self.record.plan, self.record
        if at_s < plan.fault_s or at_s >= record.fault_ended_s:
            return frame
        if not self.fault_told:
            self.fault_told = True
            record.tell(f"fault: {plan.faulty} reports its variances × {plan.variance_factor:g}")
        if record.fault_may_end(at_s):
            record.fault_ended_s = at_s
            record.tell(f"the fault ends: {plan.faulty} reports its variances as before")
            return frame
        if frame.sensor != plan.faulty:
            return frame
        return with_variance_factor(frame, plan.variance_factor)

    async def _send_frames(self, lane: Lane) -> None:
        record = self.record
        while (frame := await lane.to_send.get()) is not None:
            data = frame_message(frame)
            late = self._late_s(record.plan.event_s(frame.stamp_ns))
            record.behind_s = max(record.behind_s, late)
            await lane.in_flight.put((frame, time.perf_counter()))
            await lane.stream.send(data)
        await lane.in_flight.put(None)
        await lane.stream.close()

    async def _receive_answers(self, lane: Lane) -> None:
        record = self.record
        while (item := await lane.in_flight.get()) is not None:
            frame, sent = item
            data = await lane.stream.receive()
            record.latency_s.append(time.perf_counter() - sent)
            await self.untold.put(self._answered(frame, data))
        async for _ in lane.stream.answers():
            raise BadAnswer("the sidecar answered more often than it was asked")

    def _answered(self, frame: SimulatedFrame, data: bytes) -> AnsweredFrame:
        answer = decode_answer(data, SPACE.k)
        n = frame.ids.size
        if answer.mean.shape[0] != n or not np.isfinite(answer.covariance).all():
            raise BadAnswer(
                f"frame {frame.frame_id} of {frame.sensor}, {n} detections, came back with "
                f"{answer.mean.shape[0]}: {refused(data) or 'some without a covariance'}"
            )
        answered = AnsweredFrame(frame, "+".join(answer.versions), answer.mean, answer.covariance)
        self.record.add_answer(answered)
        if frame.sensor == self.record.plan.faulty:
            self.record.tracking.add(frame, self.record.phase_of(answered), answer)
        return answered

    # ---- truth

    async def _send_truth(self) -> None:
        plan = self.record.plan
        while (answered := await self.untold.get()) is not None:
            frame = answered.frame
            await self._until(plan.event_s(frame.stamp_ns) + plan.truth_delay_s)
            await self.told.put(answered)
            await self.truth.send(truth_message(frame))
        await self.told.put(None)
        await self.truth.close()

    async def _receive_truth(self) -> None:
        record = self.record
        while (answered := await self.told.get()) is not None:
            await self.truth.receive()
            record.sensors[answered.frame.sensor].add_truth(answered, record.phase_of(answered))
        async for _ in self.truth.answers():
            raise BadAnswer("the sidecar answered more labels than it was sent")


def frame_message(frame: SimulatedFrame) -> bytes:
    """Encodes a frame as its sensor sends it, without ground truth."""
    return encode_frame(
        OutgoingFrame(
            frame_id=frame.frame_id,
            stamp_ns=frame.stamp_ns,
            id=frame.ids,
            class_index=frame.classes,
            mean=frame.mean,
            covariance=frame.covariance,
            score=frame.score,
        )
    )


def truth_message(frame: SimulatedFrame) -> bytes:
    """Labels of all its detections that are of an object; the others are of none."""
    true = frame.track >= 0
    return encode_truth(
        frame.sensor, frame.frame_id, frame.ids[true], frame.truth[true], complete=True
    )
