"""Entries of a ledger to be kept on disk, and a plain way to make them bytes; no tests."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from monitor.config import PendingConfig
from monitor.frames.frame import Header
from monitor.frames.space import Dimension, Space
from monitor.frames.stored import SliceKey, StoredEstimates, StoredFrame
from monitor.matching.record import INLINE, LabelRecord
from monitor.store.ledger.entries import Entry, FrameEntry, LabelEntry
from monitor.store.ledger.entry_bytes import Codec
from monitor.store.ledger.folder import PartitionFolder
from monitor.store.ledger.partitions import PartitionStore

SPACE = Space((Dimension("x"),))
_NONE = np.zeros(0, np.int64)


def frame(
    sequence: int, partition: int = 0, frame_id: int | None = None, stream: str = "s", size: int = 1
) -> FrameEntry:
    """A frame with so many detections; its number is its sequence."""
    name = sequence if frame_id is None else frame_id
    mean = np.full((size, 1), float(sequence))
    sent = StoredEstimates(mean, np.ones((size, 1)), np.ones(size, bool))
    stored = StoredFrame(
        Header(stream, SPACE, ("car",)),
        name,
        sequence * 1000,
        size,
        np.arange(size, dtype=np.uint64),
        np.zeros(size, np.int64),
        (SliceKey("car"),),
        np.zeros(size, np.uint16),
        sent,
        None,
        None,
        np.zeros(0, np.uint64),
    )
    return FrameEntry(sequence, partition, stored)


def record(revision: int = 0) -> LabelRecord:
    """Labels of nothing."""
    empty, truth = np.zeros(0, np.uint8), np.zeros((0, 1))
    return LabelRecord(
        revision,
        *(False, _NONE, empty, _NONE, truth, None, None, _NONE, _NONE, None, None, 0, 0),
        live=True,
    )


def labels(
    sequence: int,
    frame_id: int,
    partition: int = 0,
    stream: str = "s",
    brought: FrameEntry | None = None,
    revision: int = 0,
) -> LabelEntry:
    """Labels of a frame."""
    return LabelEntry(sequence, partition, stream, frame_id, record(revision), brought)


def labels_alone(sequence: int, frame_id: int, partition: int = 0) -> LabelEntry:
    """Labels that bring their frame."""
    brought = frame(0, partition, frame_id)
    return labels(sequence, frame_id, partition, brought=brought)


def _frame_bytes(entry: FrameEntry) -> bytes:
    one = entry.frame
    head = json.dumps([one.header.stream, one.frame_id, one.stamp_ns, one.n]).encode()
    return head + b"\n" + one.sent.mean.tobytes()


def _frame_from(data: bytes, *, sequence: int, partition: int) -> FrameEntry:
    head, mean = data.split(b"\n", 1)
    stream, frame_id, _, n = json.loads(head)
    made = frame(sequence, partition, frame_id, stream, n)
    made.frame.sent.mean[:] = np.frombuffer(mean).reshape(n, 1)
    return made


def _labels_bytes(told: LabelRecord) -> bytes:
    return json.dumps(told.revision).encode()


def _labels_from(data: bytes) -> LabelRecord:
    return record(json.loads(data))


# Without what the ledger's own bytes need.
PLAIN = Codec(_frame_bytes, _frame_from, _labels_bytes, _labels_from)

# frame_id and mean of a frame, frame_id and revision of labels.
Told = tuple[str, int, int, str, int, float]


def told(entry: Entry) -> Told:
    """All that is in an entry, to be compared."""
    if isinstance(entry, FrameEntry):
        mean = float(entry.frame.sent.mean.sum())
        kept = entry.frame
        return ("frame", entry.sequence, entry.partition, kept.header.stream, kept.frame_id, mean)
    assert entry.record.revision >= INLINE
    return (
        *("labels", entry.sequence, entry.partition, entry.stream, entry.frame_id),
        float(entry.record.revision),
    )


def all_told(entries: Iterable[Entry]) -> list[Told]:
    """Of many."""
    return [told(entry) for entry in entries]


def store(path: Path, disk_bytes: int = 1 << 30, keep: int = 1000) -> PartitionStore:
    """A store of a folder, not opened yet."""
    return PartitionStore(PartitionFolder(path), disk_bytes, keep, PLAIN)


def settings(path: Path | str, **others: Any) -> PendingConfig:
    """[pending] with a folder."""
    return PendingConfig(folder=str(path), **others)


def gone(kept: PartitionStore) -> list[tuple[int, str]]:
    """Partitions that went, and why."""
    return [(dropped.number, dropped.reason) for dropped in kept.take_dropped()]


def flipped_in_a_body(file: Path) -> None:
    """Damage frame 28, which has 400 detections: one bit of what SQLite does not check."""
    data = bytearray(file.read_bytes())
    at = data.rindex(frame(28, 1, size=400).frame.sent.mean.tobytes()[:64])
    data[at + 20] ^= 4
    file.write_bytes(data)
