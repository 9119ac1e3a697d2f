"""Entries of a ledger, and what is on disk of them; no tests."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from monitor.frames.frame import Header, SliceKey, StoredEstimates, StoredFrame
from monitor.frames.space import Dimension, Space
from monitor.matching.objects import INLINE, LabelRecord
from monitor.store.entries import Entry, FrameEntry, Kept, LabelEntry, bodies_of
from monitor.store.journal import LedgerReader
from monitor.store.ledger import LedgerWriter
from monitor.store.ledger.schema import FILE, NEVER

SPACE = Space((Dimension("x"),))


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
        abs(sequence) * 1000,
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
    return LabelRecord(revision=revision, truth=np.zeros((0, 1)))


def labels(
    sequence: int,
    frame_id: int,
    partition: int = 0,
    stream: str = "s",
    brought: FrameEntry | None = None,
    revision: int = 0,
) -> LabelEntry:
    return LabelEntry(sequence, partition, stream, frame_id, record(revision), brought)


def labels_alone(sequence: int, frame_id: int, partition: int = 0) -> LabelEntry:
    brought = frame(1 - sequence, partition, frame_id)
    return labels(sequence, frame_id, partition, brought=brought)


# frame_id and mean of a frame, frame_id and revision of labels.
Told = tuple[str, int, int, str, int, float]


def told(entry: Entry) -> Told:
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
    return [told(entry) for entry in entries]


def writer(folder: Path, disk_bytes: int = 1 << 30, keep: int = 1000) -> LedgerWriter:
    folder.mkdir(mode=0o700, exist_ok=True)
    made = LedgerWriter(folder / FILE, disk_bytes, keep)
    made.open()
    return made


def commit(made: LedgerWriter, entries: Iterable[Entry], durable: bool) -> set[int]:
    """Commits entries; returns the sequences of those that are lost."""
    return made.commit([one for entry in entries for one in bodies_of(entry)], durable)


def replayed(folder: Path, after: int = 0) -> list[Entry]:
    """All entries of a ledger that nobody has open, or one that is."""
    reader = LedgerReader(folder / FILE)
    found = list(reader.after(after))
    assert not reader.damaged
    reader.close()
    return found


def found(folder: Path, stream: str, frame_id: int, before: int = NEVER) -> Kept | None:
    reader = LedgerReader(folder / FILE)
    kept = reader.find(stream, frame_id, None, before)
    reader.close()
    return kept


def tidied(made: LedgerWriter) -> int:
    """Deletes all that went; returns the portions."""
    portions = 0
    while made.tidy():
        portions += 1
    return portions


def gone(made: LedgerWriter) -> list[tuple[int, str]]:
    taken = [(one.number, one.reason) for one in made.dropped]
    made.dropped.clear()
    return taken
