"""A journal and a disk in lists, through the bytes that the real ones write; no tests."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from monitor.config import PendingConfig
from monitor.store.entries import (
    Entry,
    FrameEntry,
    Kept,
    LabelEntry,
    decode_frame,
    decode_labels,
    encode_frame,
    encode_labels,
)
from monitor.store.journal import Journal

NEVER = 2**62


def unkept() -> Journal:
    """A journal that keeps nothing."""
    return Journal(None, PendingConfig(), print)


@dataclass(frozen=True, slots=True)
class Written:
    """One entry; body of a frame, of labels, or both: labels that bring their frame."""

    sequence: int
    partition: int
    stream: str
    frame_id: int
    labels: bytes | None = None
    frame: bytes | None = None
    entered: int = 0

    def frame_entry(self) -> FrameEntry | None:
        if self.frame is None:
            return None
        return decode_frame(self.frame, sequence=self.entered, partition=self.partition)

    def entry(self) -> Entry:
        frame = self.frame_entry()
        if self.labels is None:
            assert frame is not None
            return frame
        name = self.stream, self.frame_id
        return LabelEntry(self.sequence, self.partition, *name, decode_labels(self.labels), frame)


def written(entry: Entry) -> Written:
    if isinstance(entry, FrameEntry):
        name = entry.frame.header.stream, entry.frame.frame_id
        body = encode_frame(entry)
        return Written(entry.sequence, entry.partition, *name, frame=body, entered=entry.sequence)
    own = Written(
        entry.sequence,
        entry.partition,
        entry.stream,
        entry.frame_id,
        labels=encode_labels(entry.record),
    )
    if entry.frame is None:
        return own
    return replace(own, frame=encode_frame(entry.frame), entered=entry.frame.sequence)


@dataclass(slots=True)
class ListJournal:
    """Entries in the order in which they came.

    busy     frames are refused
    durable  so many of the entries outlive a crash
    full     labels are not taken
    """

    busy: bool = False
    entries: list[Written] = field(default_factory=list)
    durable: int = 0
    full: bool = False
    keeps: bool = True

    def note(self, entry: Entry) -> bool:
        if self.busy and isinstance(entry, FrameEntry):
            return False
        self.entries.append(written(entry))
        return True

    def commit(self) -> None:
        self.durable = len(self.entries)

    def after_a_crash(self) -> ListJournal:
        return ListJournal(entries=self.entries[: self.durable], durable=self.durable)

    def copy(self) -> ListJournal:
        return copy.deepcopy(self)

    def drop(self, partition: int) -> None:
        before = self.entries[: self.durable]
        self.durable = sum(one.partition != partition for one in before)
        self.entries = [one for one in self.entries if one.partition != partition]

    def partitions(self) -> set[int]:
        return {one.partition for one in self.entries}

    def replay(self, after: int) -> Iterator[Entry]:
        for one in list(self.entries):
            if one.sequence > after:
                yield one.entry()

    def look_up(
        self, stream: str, frame_id: int, partition: int | None, before: int = NEVER
    ) -> Kept | None:
        # The frame that labels bring is there before them.
        name = stream, frame_id
        ours = [
            one
            for one in self.entries
            if (one.stream, one.frame_id) == name and partition in (None, one.partition)
        ]
        frames = [one.frame_entry() for one in ours if abs(one.entered) < before]
        latest = max(
            (one for one in frames if one), key=lambda one: abs(one.sequence), default=None
        )
        if latest is None:
            return None
        labels = []
        for one in ours:
            if one.labels is not None and abs(latest.sequence) < one.sequence < before:
                entry = one.entry()
                assert isinstance(entry, LabelEntry)
                labels.append(entry)
        return Kept(latest, tuple(labels))
