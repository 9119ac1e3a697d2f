"""Entries of the ledger as the rows of a partition, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from monitor.matching.pending import LabelRecord
from monitor.store.ledger.entries import Entry, FrameEntry, Kept, LabelEntry
from monitor.store.ledger.entry_bytes import (
    decode_frame,
    decode_labels,
    encode_frame,
    encode_labels,
)
from monitor.store.ledger.parts import Changes, DamagedPartition, Row


class DecodeFrame(Protocol):
    """A frame from what was made of it. Raises ValueError."""

    def __call__(self, data: bytes, *, sequence: int, partition: int) -> FrameEntry: ...


@dataclass(frozen=True, slots=True)
class Codec:
    """Encodes the bodies of rows and decodes them. Decoders raise ValueError."""

    encode_frame: Callable[[FrameEntry], bytes] = encode_frame
    decode_frame: DecodeFrame = decode_frame
    encode_labels: Callable[[LabelRecord], bytes] = encode_labels
    decode_labels: Callable[[bytes], LabelRecord] = decode_labels

    def rows_of(self, entry: Entry) -> Changes:
        """Returns the rows that one entry writes. Raises ValueError and the like without bytes."""
        if isinstance(entry, FrameEntry):
            return Changes(frames=[self._frame_row(entry)])
        absent = [] if entry.frame is None else [self._frame_row(entry.frame)]
        record = entry.record
        body = self.encode_labels(record)
        row = Row(entry.stream, entry.frame_id, entry.sequence, record.revision, body)
        entry.stream.encode()  # what is no text would stand in the way of all others
        return Changes(labels=[row], absent=absent)

    def _frame_row(self, entry: FrameEntry) -> Row:
        frame = entry.frame
        frame.header.stream.encode()
        body = self.encode_frame(entry)
        return Row(frame.header.stream, frame.frame_id, entry.sequence, frame.stamp_ns, body)

    def frame(self, row: Row, partition: int) -> FrameEntry:
        """A frame again. Raises DamagedPartition."""
        try:
            return self.decode_frame(row.body, sequence=row.sequence, partition=partition)
        except ValueError as error:
            raise DamagedPartition(f"frame {row.frame_id} of {row.stream!r}: {error}") from error

    def labels(self, row: Row, partition: int, frame: FrameEntry | None = None) -> LabelEntry:
        """Labels again. Raises DamagedPartition."""
        try:
            record = self.decode_labels(row.body)
        except ValueError as error:
            raise DamagedPartition(f"labels of {row.frame_id}, {row.stream!r}: {error}") from error
        return LabelEntry(row.sequence, partition, row.stream, row.frame_id, record, frame)


def kept(frame: FrameEntry | None, labels: Sequence[LabelEntry]) -> Kept | None:
    """A frame with the labels that are of it: those of an earlier frame of its name are not."""
    if frame is None:
        return None
    ours = {entry.sequence: entry for entry in labels if entry.sequence > abs(frame.sequence)}
    return Kept(frame, tuple(ours[sequence] for sequence in sorted(ours)))
