"""One connection of an endless drive to a sidecar, from opening its streams to whatever ends it.

Frames go out, their labels follow, events come in. All that waits is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

from monitor.commands.demo.messages import frame_message, truth_message
from monitor.commands.demo.missing import Seen, lacks
from monitor.commands.demo.scene import CLASSES, SPACE, SimulatedFrame
from monitor.commands.demo.story import in_words
from monitor.commands.demo.told import Tale
from monitor.commands.sidecar_client import AdminClient, Conversation, SidecarRefused
from monitor.drift.alarms import change_sentence
from monitor.frames.frame import Header
from monitor.wire.client_messages import decode_truth_answer, refused
from monitor.wire.messages import read_alarm_change
from monitor.wire.recalibrator_messages import UnknownWord, read_record

_WAITING_TO_BE_SENT = 8  # frames of a sensor


_IN_FLIGHT = 32  # frames of a sensor, or messages of truth


_WAITING_FOR_TRUTH = 1024  # frames of all sensors; 3 s are 180


_FIRST_LABELS_S = 2.0  # s after the first labels, until slices are there to be looked at


@dataclass(slots=True)
class _Lane:
    """One sensor's stream; None in a queue ends it."""

    stream: Conversation
    to_send: asyncio.Queue[SimulatedFrame | None] = field(
        default_factory=lambda: asyncio.Queue(_WAITING_TO_BE_SENT)
    )
    in_flight: asyncio.Queue[SimulatedFrame | None] = field(
        default_factory=lambda: asyncio.Queue(_IN_FLIGHT)
    )


@dataclass(slots=True)
class Connection:
    """Streams that are open.

    until_due  seconds of wall time until a stamp is due
    """

    client: AdminClient
    tale: Tale
    until_due: Callable[[int], float]
    _lanes: dict[str, _Lane]
    _truth: Conversation
    _untold: asyncio.Queue[SimulatedFrame | None] = field(
        default_factory=lambda: asyncio.Queue(_WAITING_FOR_TRUTH)
    )
    _told: asyncio.Queue[SimulatedFrame | None] = field(
        default_factory=lambda: asyncio.Queue(_IN_FLIGHT)
    )
    _complained: bool = False

    @staticmethod
    async def opened(
        client: AdminClient, tale: Tale, until_due: Callable[[int], float]
    ) -> Connection:
        """With a stream for each sensor. Raises SidecarUnavailable, SidecarRefused."""
        plan = tale.cycles.plan
        sensors = plan.settings.sensors
        streams = await asyncio.gather(
            *(
                client.open(
                    Header(name, SPACE, CLASSES, "vehicle", return_tracks=name == plan.faulty)
                )
                for name in sensors
            )
        )
        lanes = {name: _Lane(stream) for name, stream in zip(sensors, streams, strict=True)}
        return Connection(client, tale, until_due, lanes, client.truth())

    def offer(self, frame: SimulatedFrame) -> bool:
        """Queues a frame to be sent; False when there is no room."""
        try:
            self._lanes[frame.sensor].to_send.put_nowait(frame)
        except asyncio.QueueFull:
            return False
        return True

    async def finish(self) -> None:
        """No frame will come any more: run() ends when all is answered and labelled."""
        for lane in self._lanes.values():
            await lane.to_send.put(None)

    async def run(self) -> None:
        """Until finish(), or until an error ends it.

        Raises an ExceptionGroup of SidecarUnavailable and what else befalls a call.
        """
        async with asyncio.TaskGroup() as beside:
            aside = [beside.create_task(self._listen()), beside.create_task(self._compare())]
            async with asyncio.TaskGroup() as truth:
                truth.create_task(self._send_truth())
                truth.create_task(self._receive_truth())
                async with asyncio.TaskGroup() as frames:
                    for lane in self._lanes.values():
                        frames.create_task(self._send_frames(lane))
                        frames.create_task(self._receive_answers(lane))
                await self._untold.put(None)
            for task in aside:
                task.cancel()

    # ---- frames

    async def _send_frames(self, lane: _Lane) -> None:
        while (frame := await lane.to_send.get()) is not None:
            await lane.in_flight.put(frame)
            await lane.stream.send(frame_message(frame))
        await lane.in_flight.put(None)
        await lane.stream.close()

    async def _receive_answers(self, lane: _Lane) -> None:
        while (frame := await lane.in_flight.get()) is not None:
            complaint = refused(await lane.stream.receive())
            if complaint is None:
                self.tale.counts.answered += 1
                await self._untold.put(frame)
            elif not self._complained:
                self._complained = True
                self.tale.tell(f"the sidecar refuses frames of {frame.sensor}: {complaint}")

    # ---- truth

    async def _send_truth(self) -> None:
        delay_ns = round(self.tale.cycles.plan.truth_delay_s * 1e9)
        while (frame := await self._untold.get()) is not None:
            await asyncio.sleep(max(0.0, self.until_due(frame.stamp_ns + delay_ns)))
            await self._told.put(frame)
            await self._truth.send(truth_message(frame))
        await self._told.put(None)
        await self._truth.close()

    async def _receive_truth(self) -> None:
        while await self._told.get() is not None:
            account, _ = decode_truth_answer(await self._truth.receive())
            self.tale.counts.labelled += account.matched

    # ---- what the sidecar does and is

    async def _listen(self) -> None:
        async with contextlib.aclosing(self.client.events()) as events:
            async for event in events:
                # What a newer sidecar says in new words is no reason to stop.
                with contextlib.suppress(UnknownWord):
                    match event.WhichOneof("event"):
                        case "version":
                            self.tale.tell(in_words(read_record(event.version.record)))
                        case "recalibration":
                            self.tale.tell(in_words(read_record(event.recalibration)))
                        case "drift":
                            change = read_alarm_change(event.drift)
                            self.tale.tell(f"alarm {change_sentence(change)}")

    async def _compare(self) -> None:
        """Once there are labels, say what will not happen."""
        plan = self.tale.cycles.plan
        await asyncio.sleep(plan.truth_delay_s / plan.speed + _FIRST_LABELS_S)
        calibration = await self.client.calibration()
        promotion, pinned = None, False
        try:
            listing = await self.client.listing()
            promotion, pinned = listing.promotion, listing.pinned
        except SidecarRefused:
            pass  # that it does not tell is said, too
        except UnknownWord:
            return
        seen = Seen(
            tracks=bool(self._lanes[plan.faulty].stream.track_dimensions),
            slices=frozenset(entry.slice for entry in calibration.slices),
            promotion=promotion,
            pinned=pinned,
        )
        for sentence in lacks(seen, plan.settings.sensors):
            self.tale.tell(sentence)
