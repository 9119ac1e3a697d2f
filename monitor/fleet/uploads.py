"""Uploads of one vehicle: what its statistics have gained since the last one, an object each.

At most one object is pending. It is on the disk before it is sent, under a name that is its own for
good, so that it may be sent again; what all acknowledged objects hold is on the disk before it is
let go. So kill -9, a store that is away, or a disk that is full, lose nothing and count nothing
twice: merged, the objects of a vehicle are its statistics, bit for bit.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from monitor.config import FleetConfig, InvalidConfiguration
from monitor.fleet.objects import Objects, StoreFailed, UnusableStore, objects_at
from monitor.statistics.bins import IncompatibleStatistics
from monitor.statistics.holdings import NOTHING_HELD, Holdings
from monitor.statistics.state import StatisticsState
from monitor.statistics.vehicles import with_rows
from monitor.store.files import (
    Claim,
    UnusableFile,
    checked,
    private,
    read_body,
    set_aside,
    sync_path,
)
from monitor.store.state_definitions import InvalidState
from monitor.store.statistics_state import StoredState, parsed, serialised

log = logging.getLogger(__name__)
T = TypeVar("T")

# In the folder of the state: the sum of what was acknowledged, and the object that was not yet.
UPLOADED, PENDING = "uploaded.state", "upload.pending"
# s between two attempts: after the first that has failed, and at most.
FIRST_PAUSE, LONGEST_PAUSE = 10.0, 600.0
# s that the end of the sidecar waits for the last object.
LAST_SECONDS = 5.0


class UploadOutcome(StrEnum):
    """Says how an attempt ended."""

    SENT = "sent"  # the store has the object
    FAILED = "failed"  # it is tried again
    CONFLICT = "conflict"  # the store has another object of its name: it was sent under a new one


class InSteps(Protocol):
    """Runs a generator to its result; frames pass between its steps."""

    def __call__(self, work: Generator[None, None, T], /) -> Coroutine[None, None, T]:
        """Returns the result."""
        ...


class Aside(Protocol):
    """Does what may block in a thread that nothing waits for at the end."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]:
        """Returns or raises what the work does."""
        ...


def store_of(config: FleetConfig) -> Objects:
    """Opens the store that is configured, without a request. Raises InvalidConfiguration."""
    try:
        return objects_at(config.prefix)
    except UnusableStore as error:
        raise InvalidConfiguration(f"[fleet] upload = '{config.upload}': {error}") from None


@dataclass(frozen=True, slots=True, eq=False)
class Pending:
    """An object that is not acknowledged yet.

    gain  holds this one upload
    data  the bytes of the object; never others under the same name
    """

    gain: StatisticsState
    data: bytes

    @classmethod
    def of(cls, gain: StatisticsState, vehicle: str, epoch: str, sequence: int) -> Pending:
        """Makes the object of a gain."""
        held = with_rows(replace(gain, holds=Holdings.of(vehicle, epoch, sequence)))
        return cls(held, _file_of(held))

    @property
    def identity(self) -> tuple[str, str, int]:
        """Vehicle, epoch and sequence."""
        ((vehicle, epoch), ((sequence, _),)) = next(iter(self.gain.holds.spans.items()))
        return vehicle, epoch, sequence


def _file_of(state: StatisticsState) -> bytes:
    return checked(serialised(StoredState(state.in_order())))


@dataclass(slots=True, eq=False)
class Uploader:
    """Cuts and sends the uploads of one sidecar.

    config     with an address
    claim      of the folder that the state is kept in; None: memory alone, an epoch a run
    taken      takes the statistics of one moment, after a checkpoint
    restored   whether the statistics are those of the last run, continued
    clock      s that never go back; wall s since 1970, for the name of an epoch
    counts     attempts by outcome
    refused    files that could not be used
    pending    the object that is not acknowledged yet
    """

    config: FleetConfig
    objects: Objects
    claim: Claim | None
    taken: Callable[[], Awaitable[StatisticsState]]
    restored: Callable[[], bool]
    in_steps: InSteps
    aside: Aside
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    chance: random.Random = field(default_factory=random.SystemRandom)
    counts: dict[UploadOutcome, int] = field(
        default_factory=lambda: dict.fromkeys(UploadOutcome, 0)
    )
    refused: int = 0
    pending: Pending | None = field(default=None, init=False)
    _loaded: bool = field(default=False, init=False)
    # All that is acknowledged or pending, and what is acknowledged of the present epoch.
    _known: StatisticsState | None = field(default=None, init=False)
    _holds: Holdings = field(default=NOTHING_HELD, init=False)
    _due: float = field(init=False)
    _up_to: float = field(init=False)
    _cut_at: float = field(init=False)
    _again: float = field(default=0.0, init=False)
    _trouble: int = field(default=0, init=False)  # failed attempts in a row
    _ended: bool = field(default=False, init=False)
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _going: set[asyncio.Task[None]] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self._up_to = self._cut_at = self.clock()
        # Vehicles that are switched on together do not upload together.
        self._due = self._up_to + self.chance.random() * self.every_seconds

    @property
    def every_seconds(self) -> float:
        """Seconds between two uploads."""
        return 60.0 * self.config.every_minutes

    @property
    def age_seconds(self) -> float:
        """Seconds since the moment up to which all is acknowledged, or since the start."""
        return self.clock() - self._up_to

    @property
    def pending_bytes(self) -> int:
        """Bytes of the object that is not acknowledged yet."""
        return 0 if self.pending is None else len(self.pending.data)

    # ---- life

    async def keep(self) -> None:
        """Uploads again and again, for ever."""
        while True:
            await asyncio.sleep(self.pause)
            await self.go_on()

    @property
    def pause(self) -> float:
        """Seconds until there is something to do."""
        next_time = self._again if self._trouble else self._due if self._loaded else 0.0
        return max(0.0, next_time - self.clock())

    async def go_on(self) -> None:
        """Sends what is pending, and cuts an object if one is due. A failure is said and counted.

        Waits for what is being done already.
        """
        # Who waits for it may be cancelled; what is half done would be done twice.
        task = asyncio.create_task(self._go_on())
        self._going.add(task)
        task.add_done_callback(self._going.discard)
        await asyncio.shield(task)

    async def end(self) -> None:
        """Cuts a last object, and tries once to send it; else the next run does."""
        self._due = self.clock()
        try:
            async with asyncio.timeout(LAST_SECONDS):
                await self.go_on()
        except TimeoutError:
            # Another sidecar may take the folder from here on.
            self._ended = True
            log.warning(
                "upload: the store has not answered within %g s; %s",
                *(LAST_SECONDS, self._later),
            )

    @property
    def _later(self) -> str:
        if self.claim is None:
            return "without [state] folder what was not sent ends with this run"
        return "the next run sends what is pending"

    async def _go_on(self) -> None:
        async with self._one_at_a_time:
            try:
                if not self._loaded:
                    await self._load()
                if self.pending is not None:
                    await self._send(self.pending)
                if self.clock() >= self._due:
                    await self._cut()
                    if self.pending is not None:
                        await self._send(self.pending)
            except Exception as error:
                self._failed(error)
                return
            if self._trouble:
                log.warning("upload: sent again, after %d failed attempts", self._trouble)
                self._trouble = 0

    def _failed(self, error: Exception) -> None:
        self.counts[UploadOutcome.FAILED] += 1
        longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self._trouble, 30))
        self._again = self.clock() + longest * self.chance.uniform(0.5, 1.0)
        self._trouble += 1
        if self._trouble & (self._trouble - 1) == 0:  # the 1st, 2nd, 4th, 8th …
            unexpected = None if isinstance(error, OSError) else error
            log.warning("upload: failed, and is tried again: %s", error, exc_info=unexpected)

    # ---- at start

    async def _load(self) -> None:
        """Goes on where the last run ended."""
        if self.claim is None:
            log.info("upload: no state is kept: each run is an epoch of its own")
            self._loaded = True
            return
        uploaded, pending, complaints = await self.aside(partial(self._read, self.claim))
        held = NOTHING_HELD if uploaded is None else uploaded.holds
        if pending is not None and held.shared(pending.gain.holds):
            # Killed between the two: it is acknowledged.
            await self.aside(partial(self._remove, PENDING))
            pending = None
        self.pending, self._known = pending, uploaded
        if uploaded is not None or pending is not None or complaints:
            now = await self.taken()
            there = [] if uploaded is None else [uploaded]
            there += [] if pending is None else [pending.gain]
            if complaints or not self.restored() or not all(_fit(now, one) for one in there):
                await self._begin_anew(now, complaints)
        if self._known is not None:
            self._holds = self._known.holds
        if self.pending is not None:
            self._known = _sum(self._known, self.pending.gain)
        self._loaded = True

    def _read(self, claim: Claim) -> tuple[StatisticsState | None, Pending | None, dict[Path, str]]:
        """Reads both files, and says of those that cannot be used why not."""
        if not claim.take():
            raise BlockingIOError(f"another sidecar holds {claim.folder}")
        complaints: dict[Path, str] = {}
        uploaded = self._read_one(claim.folder / UPLOADED, complaints)
        gain = self._read_one(claim.folder / PENDING, complaints)
        if gain is None:
            return uploaded, None, complaints
        return uploaded, Pending(gain, (claim.folder / PENDING).read_bytes()), complaints

    def _read_one(self, path: Path, complaints: dict[Path, str]) -> StatisticsState | None:
        try:
            state = parsed(read_body(path)).state
            if path.name == PENDING and len(state.holds) != 1:
                raise InvalidState(f"it holds {len(state.holds)} uploads, not one.")
            return state
        except FileNotFoundError:
            return None
        except (UnusableFile, InvalidState, IncompatibleStatistics) as error:
            complaints[path] = str(error)
            return None

    async def _begin_anew(self, now: StatisticsState, complaints: dict[Path, str]) -> None:
        """Takes all that is counted by now for uploaded: better not counted than twice."""
        why = " ".join(complaints.values()) or "the last run's statistics were not gone on with."
        base = now
        if self.pending is not None and _fit(now, self.pending.gain):
            # It will be added when it is acknowledged.
            base = await self.in_steps(now.since(self.pending.gain))
        self._known = replace(base, holds=NOTHING_HELD)
        # Only then: without both files all would be uploaded once more.
        await self.aside(partial(self._write, UPLOADED, partial(_file_of, self._known)))
        for path in complaints:
            if path.name == PENDING:
                await self.aside(partial(set_aside, path, "corrupt"))
        self.refused += max(1, len(complaints))
        log.warning(
            "upload: begins anew: %s What was counted before and not uploaded, will not be.", why
        )

    # ---- while it runs

    async def _cut(self) -> None:
        """Makes an object of what was gained since the last one; of nothing none is made."""
        now, at = await self.taken(), self.clock()
        gain = await self.in_steps(now.since(self._known or _nothing(now)))
        if gain.slices or gain.class_slices or gain.predicted or gain.sample:
            vehicle, epoch, sequence = self._next()
            cut = await self.aside(partial(Pending.of, gain, vehicle, epoch, sequence))
            await self.aside(partial(self._write, PENDING, lambda: cut.data))
            self.pending, self._cut_at = cut, at
        else:
            self._up_to = at
        # Its panes are those of the live statistics: what was not touched costs nothing.
        self._known = now
        self._due = at + self.every_seconds

    def _next(self) -> tuple[str, str, int]:
        for (vehicle, epoch), spans in self._holds.spans.items():
            if vehicle == self.config.vehicle:
                return vehicle, epoch, spans[-1][1] + 1
        return self.config.vehicle, self._new_epoch(), 1

    def _new_epoch(self) -> str:
        began = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self.wall()))
        return f"{began}-{self.chance.getrandbits(32):08x}"

    async def _send(self, pending: Pending, *, renamed: bool = False) -> None:
        name = self.config.name_of(*pending.identity)
        created = await self.aside(partial(self.objects.create, name, pending.data))
        # It is there: it was sent before, and the answer was lost. Or it is another's.
        if not created and await self.aside(partial(self.objects.get, name)) != pending.data:
            self.counts[UploadOutcome.CONFLICT] += 1
            self.pending = await self._renamed(pending, name)
            if renamed:
                raise StoreFailed(f"{name} is there, too: the store says so of every name")
            await self._send(self.pending, renamed=True)
            return
        await self._acknowledged(pending)

    async def _renamed(self, pending: Pending, name: str) -> Pending:
        """Gives an object whose name is taken one in an epoch of its own."""
        vehicle, epoch = self.config.vehicle, self._new_epoch()
        log.warning(
            "upload: %s is there, with other content: does another sidecar have [fleet] vehicle = "
            "'%s', or was the folder of the state restored? Uploads go on in epoch %s.",
            *(name, vehicle, epoch),
        )
        again = await self.aside(partial(Pending.of, pending.gain, vehicle, epoch, 1))
        await self.aside(partial(self._write, PENDING, lambda: again.data))
        return again

    async def _acknowledged(self, pending: Pending) -> None:
        assert self._known is not None
        held = pending.gain.holds
        same_epoch = self._holds.spans.keys() == held.spans.keys()
        holds = self._holds.merge(held) if same_epoch else held
        make = partial(_file_of, replace(self._known, holds=holds))
        await self.aside(partial(self._write, UPLOADED, make))
        await self.aside(partial(self._remove, PENDING))
        self.pending, self._holds, self._up_to = None, holds, self._cut_at
        self.counts[UploadOutcome.SENT] += 1

    # ---- the folder; in a thread

    def _write(self, name: str, make: Callable[[], bytes]) -> None:
        """Replaces a file, whole or not at all; its bytes are made only if they are kept."""
        if self.claim is None:
            return
        if self._ended or not self.claim.take():
            raise BlockingIOError(f"another sidecar holds {self.claim.folder}")
        path = self.claim.folder / name
        # One name for ever: what a killed run has begun is written over.
        temporary = path.with_name(f"{name}.tmp")
        try:
            with open(temporary, "wb", opener=private) as file:
                file.write(make())
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise StoreFailed(f"{path}: {error.strerror or error}") from error
        sync_path(path.parent)

    def _remove(self, name: str) -> None:
        if self.claim is not None:
            (self.claim.folder / name).unlink(missing_ok=True)
            sync_path(self.claim.folder)


def _nothing(like: StatisticsState) -> StatisticsState:
    return StatisticsState(like.binning, like.windows, like.clock_ns, slicing=like.slicing)


def _fit(one: StatisticsState, other: StatisticsState) -> bool:
    """Tells whether two states can be added."""
    try:
        _nothing(one).merge(_nothing(other))
    except IncompatibleStatistics:
        return False
    return True


def _sum(known: StatisticsState | None, gain: StatisticsState) -> StatisticsState:
    """Adds what is pending to what is acknowledged, unless that has begun anew on other bins."""
    gain = replace(gain, holds=NOTHING_HELD)
    if known is None:
        return gain
    return known.merge(gain) if _fit(known, gain) else known
