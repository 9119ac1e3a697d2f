"""Entries of the ledger that wait for the disk. No disk and no loop here."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from monitor.ledger import Entry, FrameEntry, LabelEntry

# Bytes of labels in waiting, where the disk takes nothing for long: memory has an end too.
MOST_LABEL_BYTES = 64 * 2**20
_ENTRY = 512  # bytes of Python, about

FrameKey = tuple[str, int]


@dataclass(slots=True)
class JournalQueue:
    """Entries in their order, and by their frame.

    most_frames  that may wait
    """

    most_frames: int
    frames: int = 0
    label_bytes: int = 0
    _entries: deque[Entry] = field(default_factory=deque)
    _by_key: dict[FrameKey, list[Entry]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def full(self) -> bool:
        """Whether there is no room for labels."""
        return self.label_bytes >= MOST_LABEL_BYTES

    def put(self, entry: Entry) -> bool:
        """Have an entry wait; False where there is no room."""
        if isinstance(entry, FrameEntry):
            if self.frames >= self.most_frames:
                return False
            self.frames += 1
        else:
            if self.full:
                return False
            self.label_bytes += _size(entry)
        self._entries.append(entry)
        self._by_key.setdefault(_key(entry), []).append(entry)
        return True

    def first(self, count: int) -> list[Entry]:
        """The first ones; they stay."""
        return [self._entries[at] for at in range(min(count, len(self._entries)))]

    def remove_first(self, count: int) -> None:
        """They need not wait any more."""
        for _ in range(count):
            entry = self._entries.popleft()
            if isinstance(entry, FrameEntry):
                self.frames -= 1
            else:
                self.label_bytes -= _size(entry)
            key = _key(entry)
            ours = self._by_key[key]
            ours.pop(0)
            if not ours:
                del self._by_key[key]

    def of(self, key: FrameKey, partition: int | None) -> tuple[list[FrameEntry], list[LabelEntry]]:
        """What waits of one frame: frames, those that labels bring among them, and labels."""
        frames, labels = [], []
        for entry in self._by_key.get(key, ()):
            if partition is not None and entry.partition != partition:
                continue
            if isinstance(entry, FrameEntry):
                frames.append(entry)
            else:
                labels.append(entry)
                if entry.frame is not None:
                    frames.append(entry.frame)
        return frames, labels


def _key(entry: Entry) -> FrameKey:
    if isinstance(entry, FrameEntry):
        return (entry.frame.header.stream, entry.frame.frame_id)
    return (entry.stream, entry.frame_id)


def _size(entry: LabelEntry) -> int:
    record = entry.record
    arrays = (record.settled, record.outcome, record.rows, record.truth, record.class_rows)
    truth = 0 if record.truth_covariance is None else record.truth_covariance.nbytes
    frame = 0 if entry.frame is None else entry.frame.frame.nbytes + _ENTRY
    return _ENTRY + truth + frame + sum(array.nbytes for array in arrays)
