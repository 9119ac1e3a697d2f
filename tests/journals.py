"""A journal and a disk in lists, through the bytes that the real ones write; no tests."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from monitor.config import PendingConfig
from monitor.store.entries import Entry, FrameEntry, Kept, LabelEntry, bodies_of, unkeyed
from monitor.store.journal import Journal

NEVER = 2**62


def unkept() -> Journal:
    return Journal(None, PendingConfig(), print)


def frame_in(entry: Entry) -> FrameEntry | None:
    return entry if isinstance(entry, FrameEntry) else entry.frame


def name_of(entry: Entry) -> tuple[str, int]:
    if isinstance(entry, FrameEntry):
        return entry.frame.header.stream, entry.frame.frame_id
    return entry.stream, entry.frame_id


@dataclass(slots=True)
class ListJournal:
    """Entries in the order in which they came.

    busy  frames are refused
    full  labels are not taken
    """

    busy: bool = False
    entries: list[Entry] = field(default_factory=list)
    full: bool = False
    keeps: bool = True

    def note(self, entry: Entry) -> bool:
        if self.busy and isinstance(entry, FrameEntry):
            return False
        *brought, own = (unkeyed(body.key, body.data) for body in bodies_of(entry))
        for frame in brought:
            assert isinstance(own, LabelEntry) and isinstance(frame, FrameEntry)
            own = replace(own, frame=frame)
        self.entries.append(own)
        return True

    def copy(self) -> ListJournal:
        return replace(self, entries=copy.copy(self.entries))

    def drop(self, partition: int) -> None:
        self.entries = [one for one in self.entries if one.partition != partition]

    def replay(self, after: int) -> Iterator[Entry]:
        for one in list(self.entries):
            if one.sequence > after:
                yield one

    def look_up(
        self, stream: str, frame_id: int, partition: int | None, before: int = NEVER
    ) -> Kept | None:
        # The frame that labels bring is there before them.
        ours = [
            one
            for one in self.entries
            if name_of(one) == (stream, frame_id) and partition in (None, one.partition)
        ]
        frames = [frame for one in ours if (frame := frame_in(one)) is not None]
        frames = [frame for frame in frames if abs(frame.sequence) < before]
        latest = max(frames, key=lambda one: abs(one.sequence), default=None)
        if latest is None:
            return None
        labels = [one for one in ours if isinstance(one, LabelEntry)]
        since = abs(latest.sequence)
        return Kept(latest, tuple(one for one in labels if since < one.sequence < before))
