"""Handlers for operators: status, statistics of other sidecars, decisions about recalibrators.

Messages and documents are made and read in a thread, and long answers are made in steps: the loop
has frames to answer meanwhile. Clocks are arguments.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import starmap

from google.protobuf.message import DecodeError

from monitor import __version__
from monitor.config import Reloads
from monitor.frames.slices import CLASS_PROBABILITIES
from monitor.pipeline.external_tracker import ExternalTracker
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.housekeeping import in_steps
from monitor.pipeline.promotions import Promotions
from monitor.pipeline.recalibrators import NothingToRollBack
from monitor.pipeline.shown import ShownState
from monitor.pipeline.streams import Stream
from monitor.promotion.decisions import KnownRecalibrator
from monitor.promotion.records import SliceFitted
from monitor.recalibration.recalibrator import InvalidRecalibrator
from monitor.recalibration.selection import (
    AnySelection,
    ClassSelection,
    Selection,
)
from monitor.service.calls import Context, Settle, TransferTimeout, parsed, send
from monitor.store.documents import any_selection_from_json
from monitor.store.state_definitions import InvalidState, invalid
from monitor.store.statistics_state import (
    StoredState,
    decode,
    framed,
    joined_unknown,
    serialised,
)
from monitor.v1 import perception_monitor_pb2, status_pb2
from monitor.v1 import recalibrator_admin_pb2 as admin_pb
from monitor.v1 import statistics_state_pb2 as pb
from monitor.wire.messages import listing, shown
from monitor.wire.values import message_of

# Of one import, as sent.
MOST_IMPORT_BYTES = 2**28

# For all parts of an import to come.
IMPORT_SECONDS = 60.0

# Characters of who asks.
MOST_ACTOR = 200
FitNow = Callable[[Sequence[str], str, str], Awaitable[tuple[SliceFitted, ...]]]

_KINDS: dict[int, type[AnySelection]] = {
    admin_pb.RECALIBRATOR_KIND_UNSPECIFIED: Selection,
    admin_pb.RECALIBRATOR_KIND_ESTIMATES: Selection,
    admin_pb.RECALIBRATOR_KIND_CLASS_PROBABILITIES: ClassSelection,
}


def status(
    streams: Iterable[Stream],
    tracker: ExternalTracker | None,
    reloads: Reloads,
    started_ns: int,
    wall_ns: int,
    monotonic_ns: int,
) -> status_pb2.GetStatusResponse:
    """Describes the sidecar as of now: wall_ns by the wall clock, monotonic_ns by the other."""
    found = status_pb2.GetStatusResponse(
        version=__version__,
        started_ns=started_ns,
        now_ns=wall_ns,
        streams=[
            message_of(status_pb2.StreamStatus, stream.status(wall_ns - monotonic_ns))
            for stream in streams
        ],
        configuration=_text(reloads.path),
        waiting_keys=reloads.waiting,
        configuration_refused=_text(reloads.refused),
    )
    if tracker is not None:
        found.tracker.address, found.tracker.up = tracker.config.address, tracker.up
        found.tracker.trouble = tracker.trouble
    return found


def _text(path: str) -> str:
    """Makes text of a file name, whose bytes need not be text."""
    return path.encode("utf-8", "replace").decode("utf-8")


@dataclass(slots=True)
class StateService:
    """Exports and imports the statistics, which are the pipeline's."""

    pipeline: Pipeline
    shown: ShownState | None = None
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def export_statistics(self, _: bytes, context: Context) -> None:
        """PerceptionMonitor.ExportStatistics: the state of one moment, in parts."""
        self.pipeline.remember_answered()
        if self.shown is None:
            state = await in_steps(self.pipeline.live.state_in_steps())
        else:
            # With the uploads that it holds, or these would be added once more.
            state = self.shown.state
        patience = self.pipeline.config.server.write_timeout_seconds
        field_number = perception_monitor_pb2.ExportStatisticsResponse.PART_FIELD_NUMBER
        parts = serialised(StoredState(state, self.pipeline.newer))
        messages = (framed(field_number, part) for part in parts)
        while (message := await asyncio.to_thread(next, messages, None)) is not None:
            try:
                async with asyncio.timeout(patience):
                    await send(context, message)
            except TimeoutError:
                raise TransferTimeout(
                    "the parts were not read: read them, or export anew."
                ) from None

    async def import_statistics(self, requests: AsyncIterator[bytes], _: Context) -> bytes:
        """PerceptionMonitor.ImportStatistics: all parts, or none of them."""
        async with self._one_at_a_time:
            parts = starmap(_part, enumerate(await _gathered(requests)))
            stored = await asyncio.to_thread(decode, parts)
            newer = joined_unknown(self.pipeline.newer, stored.unknown)
            adding = self.pipeline.live.import_in_steps(stored.state)
            detections, new_slices = await in_steps(adding)
            self.pipeline.newer = newer
        # A state of retractions alone takes some away.
        return perception_monitor_pb2.ImportStatisticsResponse(
            detections=max(detections, 0), new_slices=new_slices
        ).SerializeToString()


async def _gathered(requests: AsyncIterator[bytes]) -> list[bytes]:
    """All messages. Raises InvalidState where they are too many bytes, TransferTimeout."""
    found: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(IMPORT_SECONDS):
            async for data in requests:
                size += len(data)
                if size > MOST_IMPORT_BYTES:
                    raise InvalidState(
                        f"parts: more than {MOST_IMPORT_BYTES} bytes of them. "
                        "Import a state of fewer slices."
                    )
                found.append(data)
    except TimeoutError:
        raise TransferTimeout(
            f"the import was not complete after {IMPORT_SECONDS:g} s: nothing was added. "
            "Send all parts and end the stream."
        ) from None
    return found


def _part(index: int, data: bytes) -> pb.StatisticsState:
    try:
        return perception_monitor_pb2.ImportStatisticsRequest.FromString(data).part
    except DecodeError:
        name = "ImportStatisticsRequest"
        raise invalid(f"message {index}", f"{len(data)} bytes are no {name}") from None


@dataclass(slots=True)
class AdminService:
    """Promotions act, and tell those who watch.

    fit_now  fits slices, or all where none are named, by a method, or the configured one where
             that is empty, for an actor
    settle   returns when what has happened is on the disk: what is answered outlives us
    """

    promotions: Promotions
    fit_now: FitNow
    settle: Settle
    # Documents are promoted in the order they came, however long each takes to read.
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def list_recalibrators(self, data: bytes, context: Context) -> bytes:
        """RecalibratorAdmin.List."""
        request = await parsed(admin_pb.ListRequest(), data, context)
        answer = listing(
            self.promotions.recalibrators.listed(),
            self.promotions.trials(),
            self.promotions.records(request.records),
            str(self.promotions.pipeline.config.promotion.mode),
            pinned=self.promotions.pinned,
        )
        return (await in_steps(answer)).SerializeToString()

    async def get_recalibrator(self, data: bytes, context: Context) -> bytes:
        """RecalibratorAdmin.Get."""
        request = await parsed(admin_pb.GetRequest(), data, context)
        recalibrators = self.promotions.recalibrators
        found = recalibrators.known.find(request.version)
        active = (recalibrators.selection.version, recalibrators.class_selection.version)
        document = await asyncio.to_thread(found.to_json)
        records = self.promotions.records_of(request.version)
        known = KnownRecalibrator(found, found.version in active)
        answer = shown(known, document, records)
        return (await in_steps(answer)).SerializeToString()

    async def promote(self, data: bytes, context: Context) -> bytes:
        """RecalibratorAdmin.Promote."""
        request = await parsed(admin_pb.PromoteRequest(), data, context)
        actor = actor_of(request.actor)
        match request.WhichOneof("candidate"):
            case "version":
                record = self.promotions.promote(request.version, actor)
            case "document":
                async with self._one_at_a_time:
                    learnt = await self._learn(request.document)
                    record = self.promotions.promote(learnt.version, actor)
            case _:
                raise InvalidRecalibrator("candidate: set either version or document.")
        await self.settle()
        return admin_pb.PromoteResponse(
            before=record.before, after=record.after
        ).SerializeToString()

    async def _learn(self, document: str) -> AnySelection:
        recalibrators = self.promotions.recalibrators
        known = recalibrators.known_by(document)
        if known is not None:
            return known
        read = await asyncio.to_thread(any_selection_from_json, document)
        return recalibrators.admit(document, read)

    async def fit(self, data: bytes, context: Context) -> bytes:
        """RecalibratorAdmin.Fit."""
        request = await parsed(admin_pb.FitRequest(), data, context)
        # Each slice once, in the order they were named.
        slices = tuple(dict.fromkeys(request.slices))
        fitted = await self.fit_now(slices, request.method, actor_of(request.actor))
        return admin_pb.FitResponse(
            fits=[message_of(admin_pb.SliceFit, one) for one in fitted]
        ).SerializeToString()

    async def rollback(self, data: bytes, context: Context) -> bytes:
        """RecalibratorAdmin.Rollback."""
        request = await parsed(admin_pb.RollbackRequest(), data, context)
        kind = _KINDS.get(request.kind)
        if kind is None:
            raise InvalidRecalibrator(
                f"kind: {request.kind} is none; set RECALIBRATOR_KIND_ESTIMATES or "
                "RECALIBRATOR_KIND_CLASS_PROBABILITIES."
            )
        if request.slice not in ("", CLASS_PROBABILITIES) and kind is ClassSelection:
            raise NothingToRollBack(
                f"slice: '{request.slice[:80]}', but class probabilities go back as a whole: "
                "leave it empty, or roll back estimates."
            )
        record = self.promotions.rollback(kind, request.slice, actor_of(request.actor))
        await self.settle()
        return admin_pb.RollbackResponse(
            before=record.before, after=record.after
        ).SerializeToString()

    async def pin(self, data: bytes, context: Context) -> bytes:
        """RecalibratorAdmin.Pin."""
        request = await parsed(admin_pb.PinRequest(), data, context)
        was_pinned = self.promotions.pinned
        self.promotions.pin(pinned=request.pinned, actor=actor_of(request.actor))
        await self.settle()
        return admin_pb.PinResponse(was_pinned=was_pinned).SerializeToString()


def actor_of(given: str) -> str:
    """Who asks, as it may stand in a log: what is printable, of bounded length, never empty."""
    printable = "".join(character for character in given if character.isprintable())
    return printable.strip()[:MOST_ACTOR].rstrip() or "unnamed"
