"""A gRPC client that asks a sidecar about its recalibrators, and decides about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from monitor.edges import recalibrator_messages
from monitor.edges.client import Client
from monitor.edges.recalibrator_messages import Listing, Summary
from monitor.edges.service import ADMIN
from monitor.promotion.records import Record
from monitor.promotion.standing import SliceFitted
from monitor.v1 import recalibrator_admin_pb2 as admin_pb


@dataclass(slots=True)
class AdminClient(Client):
    """A connection; use as an asynchronous context.

    Every method raises SidecarUnavailable, and SidecarRefused with the words of the sidecar.
    """

    async def listing(self, records: int = 0) -> Listing:
        """All recalibrators and trials, and so many of the latest records. Raises UnknownWord."""
        request = admin_pb.ListRequest(records=records)
        data = await self._unary(ADMIN, "List", request.SerializeToString())
        return recalibrator_messages.read_listing(admin_pb.ListResponse.FromString(data))

    async def shown(self, version: str) -> tuple[Summary, str, tuple[Record, ...]]:
        """One recalibrator: in a few words, its document, its records. Raises UnknownWord."""
        request = admin_pb.GetRequest(version=version)
        data = await self._unary(ADMIN, "Get", request.SerializeToString())
        answer = admin_pb.GetResponse.FromString(data)
        records = tuple(map(recalibrator_messages.read_record, answer.records))
        return recalibrator_messages.read_summary(answer.summary), answer.document, records

    async def promote_known(self, version: str, actor: str) -> tuple[str, str]:
        """Promote a recalibrator that the sidecar knows; the versions before and after."""
        request = admin_pb.PromoteRequest(version=version, actor=actor)
        data = await self._unary(ADMIN, "Promote", request.SerializeToString())
        answer = admin_pb.PromoteResponse.FromString(data)
        return answer.before, answer.after

    async def fit(self, slices: Sequence[str], method: str, actor: str) -> tuple[SliceFitted, ...]:
        """Fit candidates now; what came of each slice. Takes seconds to minutes."""
        request = admin_pb.FitRequest(slices=slices, method=method, actor=actor)
        data = await self._unary(ADMIN, "Fit", request.SerializeToString())
        answer = admin_pb.FitResponse.FromString(data)
        return tuple(map(recalibrator_messages.read_slice_fit, answer.fits))

    async def rollback(self, slice: str, actor: str, *, classes: bool) -> tuple[str, str]:
        """Go back by one change; the versions before and after.

        slice    the only one that goes back, of estimates; '' for all
        classes  that of class probabilities goes back, not that of estimates
        """
        kind = (
            admin_pb.RECALIBRATOR_KIND_CLASS_PROBABILITIES
            if classes
            else admin_pb.RECALIBRATOR_KIND_ESTIMATES
        )
        request = admin_pb.RollbackRequest(kind=kind, slice=slice, actor=actor)
        data = await self._unary(ADMIN, "Rollback", request.SerializeToString())
        answer = admin_pb.RollbackResponse.FromString(data)
        return answer.before, answer.after

    async def pin(self, actor: str, *, pinned: bool) -> bool:
        """Say whether anything may happen by itself; as it was."""
        request = admin_pb.PinRequest(pinned=pinned, actor=actor)
        data = await self._unary(ADMIN, "Pin", request.SerializeToString())
        return admin_pb.PinResponse.FromString(data).was_pinned
