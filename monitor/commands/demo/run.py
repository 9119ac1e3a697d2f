"""Plays the demo's drive through a sidecar, cycle after cycle, at the pace of its stamps.

One stream a sensor, one of ground truth, everything in between bounded. The sidecar may come and
go; when frames are due without one, they are left out. The configuration with which a sidecar can
show the story is text at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import time
from asyncio import Queue
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from monitor.client import PLAIN, Access
from monitor.commands.demo.scene import (
    CLASSES,
    SPACE,
    SimulatedFrame,
    simulate,
    with_assumed_covariance,
    with_variance_factor,
)
from monitor.commands.demo.story import ASSUMED, AnsweredFrame, Cycle, Phase, Plan
from monitor.commands.demo.summary import SidecarAccount, account_of, cycle_line, summarise
from monitor.commands.doctor.look import page, samples_of
from monitor.commands.sending import first_error
from monitor.commands.sidecar_client import Client, Conversation, SidecarRefused, happening
from monitor.drift.alarms import AlarmChange
from monitor.frames.frame import Header
from monitor.wire.client_messages import (
    OutgoingFrame,
    decode_answer,
    encode_frame,
    encode_truth,
    refused,
)
from monitor.wire.values import UnknownWord, value_of

_TO_BE_SENT = 8  # frames of a sensor
_IN_FLIGHT = 32  # frames of a sensor, or messages of truth
_TO_BE_LABELLED = 1024  # frames of all sensors; 3 s are 180
_ROOM_S = 10.0  # for which a frame waits for room in front of its stream
_LATE_S, _LONGEST_BEHIND_S = 1.0, 600.0  # of a frame, from which on the pace gives in
_RETRY_S = 1.0  # between two attempts to connect
_SOON_S = 2.0  # s without a sidecar after which whoever waits for it says so
_AGAIN_S = 60.0  # s between two lines about one that stays away
_LOOK_EVERY_S = 2.0  # s between two looks at trials
_PATIENCE = 5.0  # s for the sidecar's metrics and events; five times the age of metrics
_IDS_PER_FRAME = np.uint64(2**16)  # of the simulation


@dataclass(frozen=True, slots=True)
class Pace:
    """Stamps of frames, and when each is due.

    A computer that is too busy plays the drive more slowly, without a gap in which tracks would
    end. One that slept, or lags ten minutes behind the wall clock, leaves a gap: what should have
    been sent meanwhile is not sent in a hurry, all later stamps are moved on.

    start_ns  stamp of the first frame: the wall clock when it is due
    start_s   monotonic clock then
    speed     seconds of event time in a second
    shift_ns  by which stamps were moved on so far
    """

    start_ns: int
    start_s: float
    speed: float = 1.0
    shift_ns: int = 0

    def event_s(self, stamp_ns: int) -> float:
        """Computes seconds of event time since the first frame."""
        return (stamp_ns - self.start_ns) / 1e9

    def wait_s(self, stamp_ns: int, now_s: float) -> float:
        """Computes seconds until this stamp is due, by the monotonic clock; negative after that."""
        return self.start_s + self.event_s(stamp_ns - self.shift_ns) / self.speed - now_s

    def kept_up(self, stamp_ns: int, now_ns: int, now_s: float) -> Pace:
        """Returns this pace, or one that goes on from now if the stamp is due for too long.

        A stamp that is ahead, since the wall clock was put back, is left alone.
        """
        behind_s = (now_ns - self.start_ns) / 1e9 * self.speed - self.event_s(stamp_ns)
        if behind_s <= _LONGEST_BEHIND_S * self.speed:
            late_s = -self.wait_s(stamp_ns, now_s)
            return replace(self, start_s=self.start_s + late_s) if late_s > _LATE_S else self
        shift_ns = self.shift_ns + round(behind_s * 1e9)
        start_s = now_s - self.event_s(stamp_ns - self.shift_ns) / self.speed
        return replace(self, start_s=start_s, shift_ns=shift_ns)


@dataclass(slots=True)
class Player:
    """Plays a drive through a sidecar that is there, comes late, or goes.

    announce    is told of every event, as a line
    forever     cycle after cycle, until SIGTERM
    patience_s  for which a sidecar that is away, or refuses, is waited for
    http        where it is asked for its account after the last answer; '' for not at all
    """

    plan: Plan
    address: str
    announce: Callable[[str], None]
    access: Access = PLAIN
    forever: bool = False
    patience_s: float = 0.0
    http: str = ""
    account: SidecarAccount | None = None
    cycle: Cycle = field(init=False)
    pace: Pace = field(default_factory=lambda: Pace(0, 0.0))
    _connection: _Connection | None = None
    _began: asyncio.Event = field(default_factory=asyncio.Event)
    # When the sidecar was last there, and when its absence was last told of.
    _there_s: float = field(default_factory=time.monotonic)
    _told_s: float = -math.inf

    def __post_init__(self) -> None:
        self.cycle = Cycle(self.plan, self._say)

    def _say(self, text: str) -> None:
        self.announce(f"cycle {self.cycle.number}, {text}" if self.forever else text)

    async def run(self) -> None:
        """Plays to the end of the last cycle, or until SIGTERM.

        Raises InvalidAccess; SidecarUnavailable and SidecarRefused when patience is at its end.
        """
        playing = asyncio.create_task(self._play())
        # The first process of a container is not ended by a signal that it has no handler for.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, playing.cancel)
        await asyncio.wait([playing])
        if not playing.cancelled():
            playing.result()

    async def _play(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep_connected())
                group.create_task(self._keep_driving())
        except ExceptionGroup as errors:
            raise first_error(errors) from None

    # ---- the sidecar

    async def _keep_connected(self) -> None:
        while True:
            try:
                return await self._converse()
            except (OSError, SidecarRefused) as trouble:
                if time.monotonic() - self._there_s >= self.patience_s:
                    raise
                self._tell_of(str(trouble))
            await asyncio.sleep(_RETRY_S)

    async def _converse(self) -> None:
        """Talks to the sidecar until the drive is over.

        Raises SidecarUnavailable, SidecarRefused.
        """
        wait = f"waits for a sidecar at {self.address}"
        soon = asyncio.get_running_loop().call_later(_SOON_S, self._tell_of, wait)
        try:
            async with Client(self.address, self.access) as client:
                soon.cancel()
                connection = await _Connection.opened(client, self)
                again = "again, " if self._began.is_set() else ""
                self.cycle.tell(f"connected {again}to the sidecar at {self.address}")
                self._connection, self._told_s = connection, -math.inf
                self._began.set()
                await connection.run()
        except ExceptionGroup as errors:
            # It was there until now: that it has gone is news.
            self._there_s, self._told_s = time.monotonic(), -math.inf
            raise first_error(errors) from None
        finally:
            soon.cancel()
            self._connection = None

    def _tell_of(self, text: str) -> None:
        """Tells of a sidecar that stays away, not more than once a minute."""
        now_s = time.monotonic()
        if now_s - self._told_s >= _AGAIN_S:
            self._told_s = now_s
            self.cycle.tell(f"{text}; frames are left out" if self._began.is_set() else text)

    # ---- the drive

    async def until_due(self, stamp_ns: int) -> None:
        """Waits until a stamp is due."""
        await asyncio.sleep(max(0.0, self.pace.wait_s(stamp_ns, time.monotonic())))

    async def _keep_driving(self) -> None:
        await self._began.wait()
        plan = self.plan
        self.pace = Pace(time.time_ns(), time.monotonic(), plan.speed)
        settings = replace(plan.settings, start_ns=self.pace.start_ns)
        # Numbers begin at the clock as well: an earlier run has used none of them.
        first_id = round(self.pace.start_ns / 1e9 * settings.rate_hz)
        began_s = 0.0
        self.cycle.tell(f"healthy: {len(settings.sensors)} sensors, {settings.rate_hz:g} Hz each")
        for frame in simulate(settings, plan.seed, math.inf):
            stamp_ns = frame.stamp_ns + self.pace.shift_ns
            self.pace = self.pace.kept_up(stamp_ns, time.time_ns(), time.monotonic())
            stamp_ns = frame.stamp_ns + self.pace.shift_ns
            await self.until_due(stamp_ns)
            at_s = self.pace.event_s(stamp_ns) - began_s
            if self.cycle.reach(at_s) and frame.sensor == plan.faulty:
                frame = with_variance_factor(frame, plan.variance_factor)
            if frame.sensor == plan.bare:
                frame = with_assumed_covariance(frame, ASSUMED)
            if self.cycle.over:
                if not self.forever:
                    break
                self.cycle.tell(cycle_line(summarise(self.cycle)))
                began_s, self.cycle = began_s + at_s, self.cycle.next()
            frame = replace(
                frame,
                stamp_ns=stamp_ns,
                frame_id=frame.frame_id + first_id,
                ids=frame.ids + np.uint64(first_id) * _IDS_PER_FRAME,
            )
            at_s = self.pace.event_s(stamp_ns) - began_s
            if self._connection is None or not await self._connection.offer(frame, at_s):
                self.cycle.left_out += 1
        if self._connection is not None:
            await self._connection.finish()


@dataclass(frozen=True, slots=True)
class _Sent:
    """A frame on its way, the cycle it belongs to, its time in there, and when it was sent."""

    frame: SimulatedFrame
    cycle: Cycle
    at_s: float
    sent_s: float = 0.0


@dataclass(slots=True)
class _Lane:
    """One sensor's stream; None in a queue ends it."""

    stream: Conversation
    to_send: Queue[_Sent | None] = field(default_factory=partial(Queue, _TO_BE_SENT))
    in_flight: Queue[_Sent | None] = field(default_factory=partial(Queue, _IN_FLIGHT))


Labelled = tuple[Cycle, AnsweredFrame, Phase]


@dataclass(slots=True)
class _Connection:
    """Streams to a sidecar that is there now: frames, answers, labels when they are due, events."""

    client: Client
    player: Player
    lanes: dict[str, _Lane]
    labels: Conversation
    to_label: Queue[Labelled | None] = field(default_factory=partial(Queue, _TO_BE_LABELLED))
    labelling: Queue[Labelled | None] = field(default_factory=partial(Queue, _IN_FLIGHT))
    complained: bool = False

    @staticmethod
    async def opened(client: Client, player: Player) -> _Connection:
        """Opens a stream for each sensor. Raises SidecarUnavailable, SidecarRefused."""
        plan = player.plan
        lanes = {}
        for name in plan.settings.sensors:
            header = Header(name, SPACE, CLASSES, "vehicle", return_tracks=name == plan.faulty)
            lanes[name] = _Lane(await client.open(header))
        return _Connection(client, player, lanes, client.truth())

    async def offer(self, frame: SimulatedFrame, at_s: float) -> bool:
        """Queues a frame to be sent; False when there is no room for long."""
        try:
            async with asyncio.timeout(_ROOM_S):
                await self.lanes[frame.sensor].to_send.put(_Sent(frame, self.player.cycle, at_s))
        except TimeoutError:
            return False
        return True

    async def finish(self) -> None:
        """Queues the end of each stream: run() ends when all is answered and labelled."""
        for lane in self.lanes.values():
            await lane.to_send.put(None)

    async def run(self) -> None:
        """Sends and receives until finish(), or until an error ends it.

        Raises an ExceptionGroup of SidecarUnavailable, SidecarRefused.
        """
        async with asyncio.TaskGroup() as beside:
            aside = [beside.create_task(self._listen()), beside.create_task(self._look())]
            async with asyncio.TaskGroup() as labels:
                labels.create_task(self._send_labels())
                labels.create_task(self._receive_accounts())
                async with asyncio.TaskGroup() as frames:
                    for lane in self.lanes.values():
                        frames.create_task(self._send_frames(lane))
                        frames.create_task(self._receive_answers(lane))
                await self.to_label.put(None)
            if self.player.http:
                self.player.account = await _account(self.client, self.player)
            for task in aside:
                task.cancel()

    async def _send_frames(self, lane: _Lane) -> None:
        while (item := await lane.to_send.get()) is not None:
            cycle, frame, now_s = item.cycle, item.frame, time.monotonic()
            late_s = -self.player.pace.wait_s(frame.stamp_ns, now_s)
            cycle.behind_s = max(cycle.behind_s, late_s)
            await lane.in_flight.put(replace(item, sent_s=now_s))
            named = frame.frame_id, frame.stamp_ns, frame.ids, frame.classes
            covariance = None if frame.sensor == self.player.plan.bare else frame.covariance
            sent = OutgoingFrame(*named, frame.mean, covariance, frame.score)
            await lane.stream.send(encode_frame(sent))
        await lane.in_flight.put(None)
        await lane.stream.close()

    async def _receive_answers(self, lane: _Lane) -> None:
        while (item := await lane.in_flight.get()) is not None:
            data = await lane.stream.receive()
            if (complaint := refused(data)) is None:
                await self.to_label.put(self._answered(item, data))
            elif not self.complained:
                self.complained = True
                item.cycle.tell(f"the sidecar refuses frames of {item.frame.sensor}: {complaint}")

    def _answered(self, item: _Sent, data: bytes) -> Labelled:
        cycle, frame, now_s = item.cycle, item.frame, time.monotonic()
        cycle.latency_s.append(now_s - item.sent_s)
        cycle.wall_s = now_s - self.player.pace.start_s
        answer = decode_answer(data, SPACE.k)
        came = ~np.isnan(answer.covariance)
        covariance = np.where(came, answer.covariance, frame.covariance)
        answered = AnsweredFrame(frame, "+".join(answer.versions), answer.mean, covariance)
        phase = cycle.add_answer(item.at_s, answered)
        if frame.sensor == self.player.plan.faulty:
            cycle.tracking.add(frame, phase, answer)
        return cycle, answered, phase

    async def _send_labels(self) -> None:
        delay_ns = round(self.player.plan.truth_delay_s * 1e9)
        while (item := await self.to_label.get()) is not None:
            frame = item[1].frame
            await self.player.until_due(frame.stamp_ns + delay_ns)
            await self.labelling.put(item)
            # Detections without an object are of none.
            of, true = (frame.sensor, frame.frame_id), frame.track >= 0
            data = encode_truth(*of, frame.ids[true], frame.truth[true], complete=True)
            await self.labels.send(data)
        await self.labelling.put(None)
        await self.labels.close()

    async def _receive_accounts(self) -> None:
        while (item := await self.labelling.get()) is not None:
            await self.labels.receive()
            cycle, answered, phase = item
            cycle.add_truth(answered, phase)

    # ---- what the sidecar does

    async def _listen(self) -> None:
        async with contextlib.aclosing(self.client.events()) as events:
            async for event in events:
                # What a newer sidecar says in new words is no reason to stop.
                with contextlib.suppress(UnknownWord):
                    if (record := happening(event)) is not None:
                        self.player.cycle.hear(record)
                    elif event.HasField("drift"):
                        self.player.cycle.hear_alarm(value_of(AlarmChange, event.drift))

    async def _look(self) -> None:
        """Asks how trials stand, and says once what this sidecar will not show."""
        cycle, faulty = self.player.cycle, self.lanes[self.player.plan.faulty]
        cannot = [] if faulty.stream.track_dimensions else ["keeps no tracks"]
        try:
            listing = await self.client.listing()
            if listing.promotion != "automatic" or listing.pinned:
                cycle.hopeful = False
                pinned = ", and it is pinned" if listing.pinned else ""
                how = f"[promotion] mode is {listing.promotion}{pinned}"
                cannot.append(f"promotes nothing by itself ({how})")
        except (SidecarRefused, UnknownWord) as trouble:
            cannot.append(f"does not tell us how trials stand ({trouble})")
        if cannot:
            cycle.tell(
                f"this sidecar {' and '.join(cannot)}: not all of the story will be seen; "
                "`calibration-monitor demo --print-config` prints the settings that it needs"
            )
        while not cannot:
            self.player.cycle.await_proof((await self.client.listing()).trials)
            await asyncio.sleep(_LOOK_EVERY_S)


async def _account(client: Client, player: Player) -> SidecarAccount:
    """Asks the sidecar for its account of the drive that is over."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        listing, found = await client.listing(records=1), await client.calibration()
        _, text = await page(player.http, "/metrics?fresh")
        metrics = samples_of(text)
        # The last tracks may still decide, and the text of the metrics is made from time to time.
        heard = player.cycle.sequence == (listing.records[-1].sequence if listing.records else 0)
        told = metrics.value("ground_truth_total", outcome="matched") == found.counts.matched
        if (heard and told) or time.monotonic() > deadline:
            break
        await asyncio.sleep(0.1)
    return account_of(found, listing, metrics)


def config_text(speed: float) -> str:
    """Writes TOML for `serve`; speed is the seconds of the drive in a second."""
    return _CONFIG.format(fit_every_s=_FIT_EVERY_S / speed)


_FIT_EVERY_S = 1.0  # s of the drive

# alpha is of one sensor: of several together it is the default again. The band is wider than the
# default: with errors as heavy-tailed as these, a few tracks of a healthy sensor read 3 or 0.3,
# and its fit would keep the faulty one waiting. The rest makes the story short, as the drive is:
# fits of enough tracks to be right at once, no second step for a few tenths, tracks that are whole
# soon, and a quick way back. Alarms of drift end soon after what they are of. On a computer that
# is busy with other things a fit may take minutes, and everything is counted, however late.
_CONFIG = """
[server]
shed_lag_seconds = 0.0

[statistics]
slice_by = ["stream"]

[tracker]
kind = "embedded"

[promotion]
mode = "automatic"
alpha = 0.003
band = [0.25, 4.0]
fit_every_seconds = {fit_every_s}
fit_timeout_seconds = 600.0
fit_tracks = 40
hysteresis = 1.5
rollback_tracks = 1000.0
track_seconds = 4.0

[drift]
calm_hours = 0.01

[metrics]
refresh_seconds = 1.0
"""
