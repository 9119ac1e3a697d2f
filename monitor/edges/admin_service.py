"""The handlers that show the recalibrators of a sidecar and put one in force.

Documents are read and written in a thread: those of many slices take seconds, and the loop has
frames to answer meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from monitor.edges import messages
from monitor.edges.service import Context, parsed
from monitor.pipeline import Pipeline
from monitor.recalibration.any_selection import AnySelection, any_selection_from_json
from monitor.recalibration.recalibrator import InvalidRecalibrator
from monitor.recalibrators import Promotion, UnknownVersion
from monitor.v1 import recalibrator_admin_pb2


@dataclass(slots=True)
class AdminService:
    """The recalibrators are the pipeline's; announce tells those who watch."""

    pipeline: Pipeline
    announce: Callable[[Promotion], None]
    # Documents are promoted in the order they came, however long each takes to read.
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def list_recalibrators(self, data: bytes, context: Context) -> bytes:
        """RecalibratorAdmin.List."""
        await parsed(recalibrator_admin_pb2.ListRequest(), data, context)
        known = self.pipeline.recalibrators.listed()
        return recalibrator_admin_pb2.ListResponse(
            recalibrators=[messages.summary(entry) for entry in known]
        ).SerializeToString()

    async def get_recalibrator(self, data: bytes, context: Context) -> bytes:
        """RecalibratorAdmin.Get."""
        request = await parsed(recalibrator_admin_pb2.GetRequest(), data, context)
        for entry in self.pipeline.recalibrators.listed():
            if entry.selection.version == request.version:
                document = await asyncio.to_thread(entry.selection.to_json)
                return recalibrator_admin_pb2.GetResponse(
                    summary=messages.summary(entry), document=document
                ).SerializeToString()
        raise UnknownVersion(f"no recalibrator '{request.version[:80]}': List shows all.")

    async def promote(self, data: bytes, context: Context) -> bytes:
        """RecalibratorAdmin.Promote."""
        request = await parsed(recalibrator_admin_pb2.PromoteRequest(), data, context)
        actor = request.actor[:200] or "unnamed"
        match request.WhichOneof("candidate"):
            case "version":
                promotion = self.pipeline.promote(request.version, actor)
            case "document":
                async with self._one_at_a_time:
                    learnt = await self._learn(request.document)
                    promotion = self.pipeline.promote(learnt.version, actor)
            case _:
                raise InvalidRecalibrator("candidate: set either version or document.")
        self.announce(promotion)
        return recalibrator_admin_pb2.PromoteResponse(
            before=promotion.before, after=promotion.after
        ).SerializeToString()

    async def _learn(self, document: str) -> AnySelection:
        recalibrators = self.pipeline.recalibrators
        known = recalibrators.known_by(document)
        if known is not None:
            return known
        read = await asyncio.to_thread(any_selection_from_json, document)
        return recalibrators.admit(document, read)
