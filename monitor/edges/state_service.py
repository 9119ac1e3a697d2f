"""The handlers that give the statistics away and take those of others.

Messages are made and read in a thread: the loop is held for a millisecond or two at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from monitor.edges.calls import Context, TransferTimeout, send
from monitor.edges.pane_bytes import framed
from monitor.edges.state import StoredState, decode, joined_unknown, serialised
from monitor.edges.state_sums import InvalidState, invalid
from monitor.edges.unknown_fields import NewerFields
from monitor.pipeline import Pipeline
from monitor.steps import in_steps
from monitor.v1 import perception_monitor_pb2
from monitor.v1 import statistics_state_pb2 as pb

# Of one import, as sent.
MOST_IMPORT_BYTES = 2**28
# For all parts of an import to come.
IMPORT_SECONDS = 60.0


@dataclass(slots=True)
class StateService:
    """Live state is the pipeline's; here is only what it does not understand."""

    pipeline: Pipeline
    newer: NewerFields = field(default_factory=NewerFields)
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def export_statistics(self, _: bytes, context: Context) -> None:
        """PerceptionMonitor.ExportStatistics: the state of one moment, in parts."""
        state = await in_steps(self.pipeline.live.state_in_steps())
        patience = self.pipeline.config.server.write_timeout_seconds
        parts = serialised(StoredState(state, self.newer.data))
        while (message := await asyncio.to_thread(_next_answer, parts)) is not None:
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
            stored = await asyncio.to_thread(_decoded, await _gathered(requests))
            newer = joined_unknown(self.newer.data, stored.unknown)
            adding = self.pipeline.live.import_in_steps(stored.state)
            detections, new_slices = await in_steps(adding)
            self.newer.data = newer
        # A state of retractions alone takes some away.
        return perception_monitor_pb2.ImportStatisticsResponse(
            detections=max(detections, 0), new_slices=new_slices
        ).SerializeToString()


def _next_answer(parts: Iterator[bytes]) -> bytes | None:
    part = next(parts, None)
    return (
        None
        if part is None
        else framed(perception_monitor_pb2.ExportStatisticsResponse.PART_FIELD_NUMBER, part)
    )


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


def _decoded(messages: list[bytes]) -> StoredState:
    return decode(_part(i, data) for i, data in enumerate(messages))


def _part(index: int, data: bytes) -> pb.StatisticsState:
    try:
        return perception_monitor_pb2.ImportStatisticsRequest.FromString(data).part
    except DecodeError:
        name = "ImportStatisticsRequest"
        raise invalid(f"message {index}", f"{len(data)} bytes are no {name}") from None
