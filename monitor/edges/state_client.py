"""A gRPC client that takes the statistics out of a sidecar, and adds some to it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import grpc

from monitor.edges.client import Client, SidecarRefused, SidecarUnavailable
from monitor.edges.pane_bytes import framed
from monitor.edges.service import MONITOR
from monitor.edges.state import StoredState, decode, serialised
from monitor.v1 import perception_monitor_pb2


@dataclass(slots=True)
class StatisticsClient(Client):
    """A connection; use as an asynchronous context."""

    async def export_statistics(self) -> StoredState:
        """All that the sidecar has counted.

        Raises SidecarUnavailable, SidecarRefused, InvalidState, IncompatibleStatistics.
        """
        request = perception_monitor_pb2.ExportStatisticsRequest().SerializeToString()
        method = self._channel.unary_stream(f"/{MONITOR}/ExportStatistics")
        call = method(request, metadata=self._metadata)
        with self._complaints():
            parts = [
                perception_monitor_pb2.ExportStatisticsResponse.FromString(data).part
                async for data in call
            ]
        return decode(parts)

    async def import_statistics(self, stored: StoredState) -> tuple[int, int]:
        """Add to what the sidecar has counted; the detections and the new slices.

        Raises SidecarUnavailable, SidecarRefused.
        """

        async def requests() -> AsyncIterator[bytes]:
            number = perception_monitor_pb2.ImportStatisticsRequest.PART_FIELD_NUMBER
            for part in serialised(stored):
                yield framed(number, part)

        method = self._channel.stream_unary(f"/{MONITOR}/ImportStatistics")
        call = method(requests(), metadata=self._metadata)
        with self._complaints():
            answer = perception_monitor_pb2.ImportStatisticsResponse.FromString(await call)
        return answer.detections, answer.new_slices

    @contextlib.contextmanager
    def _complaints(self) -> Iterator[None]:
        try:
            yield
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.UNAVAILABLE:
                raise SidecarUnavailable(f"{self.address}: {error.details()}") from None
            raise SidecarRefused(error.details()) from None
