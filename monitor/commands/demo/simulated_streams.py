"""Sends the demo's drive through a sidecar at the pace of its stamps.

One stream a sensor, one of ground truth, everything in between bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

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
from monitor.commands.sidecar_client import Client, Conversation, happening
from monitor.frames.frame import Header
from monitor.wire.client_messages import (
    OutgoingFrame,
    decode_answer,
    encode_frame,
    encode_truth,
    refused,
)

_WAITING_TO_BE_SENT = 8  # frames of a sensor
_IN_FLIGHT = 32  # frames of a sensor, or messages of truth
_WAITING_FOR_TRUTH = 1024  # frames of all sensors; 3 s are 180

# What is kept of an answered frame until its labels are answered.
Kept = TypeVar("Kept")


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
        default_factory=lambda: asyncio.Queue(_IN_FLIGHT)
    )


@contextlib.asynccontextmanager
async def watched(client: Client, record: Record) -> AsyncIterator[None]:
    """Records what happens to recalibrators, as long as the context lasts.

    Raises SidecarUnavailable, UnknownWord.
    """

    async def listen() -> None:
        async with contextlib.aclosing(client.events()) as events:
            async for event in events:
                if (happened := happening(event)) is not None:
                    record.hear(happened)

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
    lanes = await open_lanes(client, record.plan)
    driving = _Drive(client, record.plan, lanes, client.truth(), record)
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(driving.pace_frames())
            tasks.create_task(driving.play())
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
class Player(ABC, Generic[Kept]):
    """Open streams: frames go out, answers come in, labels follow when they are due.

    to_label  frames that were answered, with what is kept of each until its label is answered
    """

    client: Client
    plan: Plan
    lanes: dict[str, Lane]
    labels: Conversation
    to_label: asyncio.Queue[tuple[SimulatedFrame, Kept] | None] = field(
        init=False, default_factory=lambda: asyncio.Queue(_WAITING_FOR_TRUTH)
    )
    labelling: asyncio.Queue[Kept | None] = field(
        init=False, default_factory=lambda: asyncio.Queue(_IN_FLIGHT)
    )

    @abstractmethod
    async def until_due(self, stamp_ns: int, later_s: float = 0.0) -> None:
        """Waits until so many seconds of event time after a stamp."""

    def sending(self, frame: SimulatedFrame) -> None:
        """Notes that a frame is about to be sent."""

    @abstractmethod
    def answered(self, frame: SimulatedFrame, data: bytes, seconds: float) -> Kept | None:
        """Takes an answer, that many seconds after its frame; None where no labels shall follow."""

    @abstractmethod
    def labelled(self, kept: Kept, data: bytes) -> None:
        """Takes the answer to the labels of a frame."""

    async def finish(self) -> None:
        """Queues the end of each stream: play() ends when all is answered and labelled."""
        for lane in self.lanes.values():
            await lane.to_send.put(None)

    async def play(self) -> None:
        """Sends and receives until finish(), or until an error ends it.

        Raises an ExceptionGroup of SidecarUnavailable, BadAnswer and what else befalls a call.
        """
        async with asyncio.TaskGroup() as labels:
            labels.create_task(self._send_labels())
            labels.create_task(self._receive_accounts())
            async with asyncio.TaskGroup() as frames:
                for lane in self.lanes.values():
                    frames.create_task(self._send_frames(lane))
                    frames.create_task(self._receive_answers(lane))
            await self.to_label.put(None)

    async def _send_frames(self, lane: Lane) -> None:
        while (frame := await lane.to_send.get()) is not None:
            data = frame_message(frame)
            self.sending(frame)
            await lane.in_flight.put((frame, time.perf_counter()))
            await lane.stream.send(data)
        await lane.in_flight.put(None)
        await lane.stream.close()

    async def _receive_answers(self, lane: Lane) -> None:
        while (item := await lane.in_flight.get()) is not None:
            frame, sent_s = item
            data = await lane.stream.receive()
            kept = self.answered(frame, data, time.perf_counter() - sent_s)
            if kept is not None:
                await self.to_label.put((frame, kept))
        async for _ in lane.stream.answers():
            raise BadAnswer("the sidecar answered more often than it was asked")

    async def _send_labels(self) -> None:
        while (item := await self.to_label.get()) is not None:
            frame, kept = item
            await self.until_due(frame.stamp_ns, self.plan.truth_delay_s)
            await self.labelling.put(kept)
            await self.labels.send(truth_message(frame))
        await self.labelling.put(None)
        await self.labels.close()

    async def _receive_accounts(self) -> None:
        while (kept := await self.labelling.get()) is not None:
            self.labelled(kept, await self.labels.receive())
        async for _ in self.labels.answers():
            raise BadAnswer("the sidecar answered more labels than it was sent")


@dataclass(slots=True)
class _Drive(Player[AnsweredFrame]):
    """The drive of one record, from its first frame to its last label."""

    record: Record
    began_s: float = field(default_factory=time.monotonic)
    fault_told: bool = False

    async def until_due(self, stamp_ns: int, later_s: float = 0.0) -> None:
        event_s = self.plan.event_s(stamp_ns) + later_s
        await asyncio.sleep(max(0.0, -self._late_s(event_s)))
        self.record.elapsed_s = max(self.record.elapsed_s, event_s)

    def _late_s(self, event_s: float) -> float:
        """Wall time since this event time was due; negative before."""
        return time.monotonic() - self.began_s - event_s / self.plan.speed

    async def pace_frames(self) -> None:
        """Queues each frame when it is due, to the end of the drive."""
        plan, record = self.plan, self.record
        record.tell(f"healthy: {len(self.lanes)} sensors, {plan.settings.rate_hz:g} Hz each")
        for frame in simulate(plan.settings, plan.seed, math.inf):
            at_s = plan.event_s(frame.stamp_ns)
            if record.drive_may_end(at_s):
                break
            await self.until_due(frame.stamp_ns)
            await self.lanes[frame.sensor].to_send.put(self._as_reported(frame, at_s))
        await self.finish()

    def _as_reported(self, frame: SimulatedFrame, at_s: float) -> SimulatedFrame:
        """Puts the fault into a frame, while it is there."""
        plan, record = self.plan, self.record
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

    def sending(self, frame: SimulatedFrame) -> None:
        late_s = self._late_s(self.plan.event_s(frame.stamp_ns))
        self.record.behind_s = max(self.record.behind_s, late_s)

    def answered(self, frame: SimulatedFrame, data: bytes, seconds: float) -> AnsweredFrame:
        self.record.latency_s.append(seconds)
        self.record.frames_wall_s = time.monotonic() - self.began_s
        answer = decode_answer(data, SPACE.k)
        n = frame.ids.size
        if answer.mean.shape[0] != n or not np.isfinite(answer.covariance).all():
            raise BadAnswer(
                f"frame {frame.frame_id} of {frame.sensor}, {n} detections, came back with "
                f"{answer.mean.shape[0]}: {refused(data) or 'some without a covariance'}"
            )
        answered = AnsweredFrame(frame, "+".join(answer.versions), answer.mean, answer.covariance)
        self.record.add_answer(answered)
        if frame.sensor == self.plan.faulty:
            self.record.tracking.add(frame, self.record.phase_of(answered), answer)
        return answered

    def labelled(self, kept: AnsweredFrame, data: bytes) -> None:
        self.record.sensors[kept.frame.sensor].add_truth(kept, self.record.phase_of(kept))


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
