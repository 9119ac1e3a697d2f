"""Drives the demo in cycles, through a sidecar that may come and go meanwhile.

The clocks of the pace are arguments. All that waits is bounded, and nothing is kept of cycles that
are over. The configuration with which a sidecar can show the demo's story is text at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from monitor.client import PLAIN, Access
from monitor.commands.demo.plan import Moment, Plan
from monitor.commands.demo.record import in_words
from monitor.commands.demo.scene import SimulatedFrame, simulate, with_variance_factor
from monitor.commands.demo.simulated_streams import Player, open_lanes
from monitor.commands.sending import first_error
from monitor.commands.sidecar_client import Client, SidecarRefused, happening
from monitor.drift.alarms import AlarmChange, change_sentence
from monitor.wire.client_messages import decode_truth_answer, refused
from monitor.wire.fields import UnknownWord, value_of

_SECOND_NS = 1_000_000_000
_AUTOMATIC = "automatic"
_FIRST_LABELS_S = 2.0  # s after the first labels, until slices are there to be looked at
_RETRY_S, _LONGEST_RETRY_S = 1.0, 30.0
_HELD_S = 10.0  # that a connection must have held for another to be tried soon
_SOON_S = 2.0  # s without a sidecar after which whoever waits for it says so
_AGAIN_S = 60.0  # s between two lines about one that stays away
_IDS_PER_FRAME = np.uint64(2**16)  # of the simulation

# alpha is of one sensor: of six together it is the default again. The band is wider than the
# default: with errors as heavy-tailed as these, a few tracks of a healthy sensor read 2, too. The
# rest makes the story short, as the drive is: fits of enough tracks to be right at once, no second
# step for a few tenths, tracks that are whole soon, and a quick way back. Alarms of drift end soon
# after what they are of; and a computer that is busy with other things, too, counts everything,
# however late.
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
band = [0.5, 3.0]
fit_every_seconds = {fit_every_s}
fit_tracks = 20
hysteresis = 1.5
rollback_tracks = 1000.0
track_seconds = 4.0

[drift]
calm_hours = 0.01

[metrics]
refresh_seconds = 1.0
"""

_FIT_EVERY_S = 1.0  # s of the drive


@dataclass(frozen=True, slots=True)
class Pace:
    """Stamps of frames, and when each is due.

    A computer that slept, or was too busy, leaves a gap in the drive: what should have been sent
    meanwhile is not sent in a hurry, all later stamps are moved on.

    start_ns   stamp of the first frame: the wall clock when it is due
    start_s    monotonic clock then
    speed      seconds of event time in a second
    shift_ns   by which stamps were moved on so far
    longest_s  that a frame may be behind the wall clock, event time
    """

    start_ns: int
    start_s: float
    speed: float = 1.0
    shift_ns: int = 0
    longest_s: float = 1.0

    def event_s(self, stamp_ns: int) -> float:
        """Seconds of event time since the first frame."""
        return (stamp_ns - self.start_ns) / _SECOND_NS

    def wait_s(self, stamp_ns: int, now_s: float) -> float:
        """Seconds until this stamp is due, by the monotonic clock; negative after that."""
        return self.start_s + self.event_s(stamp_ns - self.shift_ns) / self.speed - now_s

    def kept_up(self, stamp_ns: int, now_ns: int, now_s: float) -> Pace:
        """This pace, or the one that goes on from now because the stamp lies too far behind.

        A stamp that is ahead, since the wall clock was put back, is left alone.
        """
        behind_s = (now_ns - self.start_ns) / _SECOND_NS * self.speed - self.event_s(stamp_ns)
        if behind_s <= self.longest_s:
            return self
        shift_ns = self.shift_ns + round(behind_s * _SECOND_NS)
        start_s = now_s - self.event_s(stamp_ns - self.shift_ns) / self.speed
        return replace(self, start_s=start_s, shift_ns=shift_ns)


@dataclass(slots=True)
class CycleLog:
    """The lines of a drive in cycles.

    say       prints a line
    last      where the drive is
    answered  frames, since the cycle began
    left_out  frames that were not sent: no sidecar was there, or it was too slow
    labelled  labels that matched a detection
    """

    plan: Plan
    say: Callable[[str], None]
    last: Moment = field(default_factory=lambda: Moment(1, 0.0, fault=False))
    answered: int = 0
    left_out: int = 0
    labelled: int = 0

    def tell(self, text: str) -> None:
        """Prints an event now."""
        self.say(f"cycle {self.last.cycle}, {self.last.at_s:5.1f} s  {text}")

    def begin(self) -> None:
        """Tells that the first frame is about to be sent."""
        plan = self.plan
        self.tell(
            f"healthy: {len(plan.settings.sensors)} sensors, {plan.settings.rate_hz:g} Hz each, "
            f"truth {plan.truth_delay_s:.3g} s late; the fault comes after {plan.fault_s:.3g} of "
            f"{plan.duration_s:.3g} s and stays for {plan.fault_end_s - plan.fault_s:.3g}"
        )

    def reach(self, moment: Moment) -> None:
        """Tells what begins or ends as a frame of this moment is about to be sent."""
        before, self.last = self.last, moment
        plan = self.plan
        if moment.cycle != before.cycle:
            self.tell(f"cycle {before.cycle} is over: {self._counted()}")
            self.answered = self.left_out = self.labelled = 0
        if moment.fault and not before.fault:
            self.tell(f"fault: {plan.faulty} reports its variances × {plan.variance_factor:g}")
        if before.fault and not moment.fault:
            self.tell(f"the fault ends: {plan.faulty} reports its variances as before")

    def end(self) -> None:
        """Tells that no frame will be sent any more."""
        self.tell(f"stopped: {self._counted()} in this cycle")

    def _counted(self) -> str:
        left_out = f", {self.left_out:,} left out" if self.left_out else ""
        return f"{self.answered:,} frames{left_out}, {self.labelled:,} labels matched"


@dataclass(frozen=True, slots=True)
class CycleDrive:
    """A drive in cycles, with the sidecar it goes through.

    cycles      after which it is over; inf: never
    patience_s  for which a sidecar that is away, or refuses, is waited for
    """

    plan: Plan
    address: str
    access: Access = PLAIN
    cycles: float = math.inf
    patience_s: float = math.inf


def drive_in_cycles(journey: CycleDrive, say: Callable[[str], None]) -> None:
    """Drives until SIGTERM, or until the last cycle is over.

    say  prints a line

    Raises InvalidAccess; SidecarUnavailable and SidecarRefused when patience is at its end.
    """
    drive = _Drive(journey, CycleLog(journey.plan, say))
    asyncio.run(_until_terminated(drive))
    drive.tale.end()


async def _until_terminated(drive: _Drive) -> None:
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    driving, waiting = loop.create_task(drive.run()), loop.create_task(told.wait())
    # The first process of a container is not ended by a signal that it has no handler for.
    loop.add_signal_handler(signal.SIGTERM, told.set)
    try:
        await asyncio.wait((driving, waiting), return_when=asyncio.FIRST_COMPLETED)
        if driving.done():
            await driving
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        for task in (driving, waiting):
            task.cancel()
        await asyncio.gather(driving, waiting, return_exceptions=True)


@dataclass(slots=True)
class _Drive:
    """A drive that goes on, with or without a sidecar.

    there_s, told_s  when the sidecar was last there, and its absence last told of
    """

    journey: CycleDrive
    tale: CycleLog
    pace: Pace = field(default_factory=lambda: Pace(0, 0.0))
    connection: Connection | None = None
    began: asyncio.Event = field(default_factory=asyncio.Event)
    there_s: float = field(default_factory=time.monotonic)
    told_s: float = -math.inf

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep_connected())
                group.create_task(self._keep_driving())
        except ExceptionGroup as errors:
            raise first_error(errors) from None

    # ---- the sidecar

    async def _keep_connected(self) -> None:
        pause_s, tried_s = _RETRY_S, time.monotonic()
        while (trouble := await self._conversed()) is not None:
            if time.monotonic() - self.there_s >= self.journey.patience_s:
                raise trouble
            self._tell_of(str(trouble))
            # Who takes us in and throws us out again and again is not asked every second.
            held = time.monotonic() - tried_s >= _HELD_S
            pause_s = _RETRY_S if held else min(2 * pause_s, _LONGEST_RETRY_S)
            await asyncio.sleep(pause_s)
            tried_s = time.monotonic()

    async def _conversed(self) -> Exception | None:
        """Talks to the sidecar; returns why that failed or ended, None when the drive is over."""
        where = self.journey.address
        soon = asyncio.get_running_loop().call_later(
            _SOON_S, self._tell_of, f"waits for a sidecar at {where}"
        )
        try:
            async with Client(where, self.journey.access) as client:
                soon.cancel()
                connection = await Connection.opened(client, self.tale, self._until_due)
                self._begin(connection)
                await connection.run()
            return None
        except ExceptionGroup as errors:
            trouble = first_error(errors)
            if not isinstance(trouble, OSError | SidecarRefused):
                raise
            # It was there until now: that it has gone is news.
            self.there_s, self.told_s = time.monotonic(), -math.inf
            return trouble
        except (OSError, SidecarRefused) as trouble:
            return trouble
        finally:
            soon.cancel()
            self.connection = None

    def _begin(self, connection: Connection) -> None:
        again = "again, " if self.began.is_set() else ""
        self.tale.tell(f"connected {again}to the sidecar at {self.journey.address}")
        self.connection, self.told_s = connection, -math.inf
        self.began.set()

    def _tell_of(self, text: str) -> None:
        """Tells of a sidecar that stays away, not more than once a minute."""
        now_s = time.monotonic()
        if now_s - self.told_s >= _AGAIN_S:
            self.told_s = now_s
            self.tale.tell(f"{text}; frames are left out" if self.began.is_set() else text)

    # ---- the drive

    def _until_due(self, stamp_ns: int) -> float:
        return self.pace.wait_s(stamp_ns, time.monotonic())

    async def _keep_driving(self) -> None:
        await self.began.wait()
        plan, tale = self.journey.plan, self.tale
        self.pace = Pace(time.time_ns(), time.monotonic(), plan.speed)
        settings = replace(plan.settings, start_ns=self.pace.start_ns)
        # Numbers begin at the clock as well: an earlier run has used none of them.
        first_id = round(self.pace.start_ns / 1e9 * settings.rate_hz)
        tale.begin()
        for frame in simulate(settings, plan.seed, math.inf):
            stamp_ns = frame.stamp_ns + self.pace.shift_ns
            self.pace = self.pace.kept_up(stamp_ns, time.time_ns(), time.monotonic())
            stamp_ns = frame.stamp_ns + self.pace.shift_ns
            moment = plan.moment(self.pace.event_s(stamp_ns))
            if moment.cycle > self.journey.cycles:
                break
            await asyncio.sleep(max(0.0, self._until_due(stamp_ns)))
            tale.reach(moment)
            if moment.fault and frame.sensor == plan.faulty:
                frame = with_variance_factor(frame, plan.variance_factor)
            self._offer(_numbered(frame, stamp_ns, first_id))
        if self.connection is not None:
            await self.connection.finish()

    def _offer(self, frame: SimulatedFrame) -> None:
        if self.connection is None or not self.connection.offer(frame):
            self.tale.left_out += 1


def _numbered(frame: SimulatedFrame, stamp_ns: int, first_id: int) -> SimulatedFrame:
    """Gives a frame another stamp, and ids that count up from another one."""
    return replace(
        frame,
        stamp_ns=stamp_ns,
        frame_id=frame.frame_id + first_id,
        ids=frame.ids + np.uint64(first_id) * _IDS_PER_FRAME,
    )


@dataclass(slots=True)
class Connection(Player[SimulatedFrame]):
    """Streams to a sidecar that is there now.

    due_s  seconds of wall time until a stamp is due
    """

    tale: CycleLog
    due_s: Callable[[int], float]
    _complained: bool = False

    @staticmethod
    async def opened(client: Client, tale: CycleLog, due_s: Callable[[int], float]) -> Connection:
        """Opens a stream for each sensor. Raises SidecarUnavailable, SidecarRefused."""
        lanes = await open_lanes(client, tale.plan)
        return Connection(client, tale.plan, lanes, client.truth(), tale, due_s)

    def offer(self, frame: SimulatedFrame) -> bool:
        """Queues a frame to be sent; False when there is no room."""
        try:
            self.lanes[frame.sensor].to_send.put_nowait(frame)
        except asyncio.QueueFull:
            return False
        return True

    async def run(self) -> None:
        """Plays, and tells meanwhile what the sidecar does and is; raises as play() does."""
        async with asyncio.TaskGroup() as beside:
            aside = [beside.create_task(self._listen()), beside.create_task(self._compare())]
            await self.play()
            for task in aside:
                task.cancel()

    async def until_due(self, stamp_ns: int, later_s: float = 0.0) -> None:
        await asyncio.sleep(max(0.0, self.due_s(stamp_ns + round(later_s * 1e9))))

    def answered(self, frame: SimulatedFrame, data: bytes, seconds: float) -> SimulatedFrame | None:
        complaint = refused(data)
        if complaint is None:
            self.tale.answered += 1
            return frame
        if not self._complained:
            self._complained = True
            self.tale.tell(f"the sidecar refuses frames of {frame.sensor}: {complaint}")
        return None

    def labelled(self, kept: SimulatedFrame, data: bytes) -> None:
        self.tale.labelled += decode_truth_answer(data)[0].matched

    # ---- what the sidecar does and is

    async def _listen(self) -> None:
        async with contextlib.aclosing(self.client.events()) as events:
            async for event in events:
                # What a newer sidecar says in new words is no reason to stop.
                with contextlib.suppress(UnknownWord):
                    if (record := happening(event)) is not None:
                        self.tale.tell(in_words(record))
                    elif event.HasField("drift"):
                        change = value_of(AlarmChange, event.drift)
                        self.tale.tell(f"alarm {change_sentence(change)}")

    async def _compare(self) -> None:
        """Says, once there are labels, what will not happen."""
        plan = self.plan
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
        tracks = bool(self.lanes[plan.faulty].stream.track_dimensions)
        slices = frozenset(entry.slice for entry in calibration.slices)
        for sentence in missing_settings(plan.settings.sensors, tracks, slices, promotion, pinned):
            self.tale.tell(sentence)


def missing_settings(
    sensors: Iterable[str],
    tracks: bool,
    slices: frozenset[str],
    promotion: str | None,
    pinned: bool,
) -> tuple[str, ...]:
    """Writes a sentence for each setting that is not the demo's; the drive goes on all the same.

    tracks     whether the sidecar keeps tracks
    slices     that it has statistics of; empty: of none yet
    promotion  [promotion] mode; None: it does not tell us
    pinned     whether nothing may happen by itself
    """
    sentences = []
    if not tracks:
        sentences.append(
            "the sidecar keeps no tracks: nothing will be seen of tracking, and fits and trials "
            'take blocks of time for tracks. To change it: [tracker] kind = "embedded".'
        )
    if slices and not slices.issuperset(sensors):
        sentences.append(
            "its slices are not the sensors: the fault of one will be mixed with the health of "
            'the others, and may not be found. To change it: [statistics] slice_by = ["stream"].'
        )
    if promotion is None:
        sentences.append(
            "it does not tell us how recalibrators are promoted (the token is not an "
            "administrator's): whether the fault will be corrected remains to be seen."
        )
    elif promotion != _AUTOMATIC:
        sentences.append(
            f"[promotion] mode is {promotion}: the fault will not be corrected, nor anything "
            "rolled back, unless somebody promotes. To change it: mode = "
            f'"{_AUTOMATIC}".'
        )
    if pinned:
        sentences.append(
            "its recalibrators are pinned: nothing will be corrected until "
            "`calibration-monitor recalibrators unpin`."
        )
    return tuple(sentences)


def config_text(speed: float) -> str:
    """Writes TOML for `serve`; speed is the seconds of the drive in a second."""
    return _CONFIG.format(fit_every_s=_FIT_EVERY_S / speed)
