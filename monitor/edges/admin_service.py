"""The handlers that show the recalibrators of a sidecar, and let people decide about them.

Documents are read and written in a thread, and long answers are made in steps: the loop has
frames to answer meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from monitor.edges import recalibrator_messages
from monitor.edges.calls import Context, Settle, parsed
from monitor.promotion.standing import SliceFitted
from monitor.promotions import Promotions
from monitor.recalibration.any_selection import AnySelection, any_selection_from_json
from monitor.recalibration.classes.class_selection import ClassSelection
from monitor.recalibration.recalibrator import InvalidRecalibrator
from monitor.recalibration.selection import Selection
from monitor.recalibrators import Known, NothingToRollBack
from monitor.steps import in_steps
from monitor.v1 import recalibrator_admin_pb2 as admin_pb

# Characters of who asks.
MOST_ACTOR = 200

FitNow = Callable[[Sequence[str], str, str], Awaitable[tuple[SliceFitted, ...]]]


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
        answer = recalibrator_messages.listing(
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
        in_force = (recalibrators.selection.version, recalibrators.class_selection.version)
        document = await asyncio.to_thread(found.to_json)
        records = self.promotions.records_of(request.version)
        known = Known(found, found.version in in_force)
        answer = recalibrator_messages.shown(known, document, records)
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
            fits=map(recalibrator_messages.slice_fit, fitted)
        ).SerializeToString()

    async def rollback(self, data: bytes, context: Context) -> bytes:
        """RecalibratorAdmin.Rollback."""
        request = await parsed(admin_pb.RollbackRequest(), data, context)
        kind = _kind(request.kind)
        if kind is None:
            raise InvalidRecalibrator(
                f"kind: {request.kind} is none; set RECALIBRATOR_KIND_ESTIMATES or "
                "RECALIBRATOR_KIND_CLASS_PROBABILITIES."
            )
        if request.slice and kind is ClassSelection:
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


def _kind(number: int) -> type[AnySelection] | None:
    """Of the number of a RecalibratorKind; None where there is none such."""
    if number == admin_pb.RECALIBRATOR_KIND_CLASS_PROBABILITIES:
        return ClassSelection
    known = admin_pb.RECALIBRATOR_KIND_UNSPECIFIED, admin_pb.RECALIBRATOR_KIND_ESTIMATES
    return Selection if number in known else None
