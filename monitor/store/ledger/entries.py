"""Entries of the ledger: frames, labels and the counts that labels changed.

Entries are numbered in the order in which they changed the statistics. Those after a checkpoint,
replayed in their order, restore the statistics that the process had when it died.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from monitor.frames.stored import StoredFrame
from monitor.matching.record import LabelRecord


@dataclass(frozen=True, eq=False, slots=True)
class FrameEntry:
    """A frame, with what came with it.

    sequence   its negative where it is written only because labels of it are: of two frames with
               one name, the later one is still the one that is farther from 0
    partition  of event time
    """

    sequence: int
    partition: int
    frame: StoredFrame
    inline: LabelRecord | None = None


@dataclass(frozen=True, eq=False, slots=True)
class LabelEntry:
    """Labels of a frame.

    frame  to be written with them if it is not there: it was left out when it came
    """

    sequence: int
    partition: int
    stream: str
    frame_id: int
    record: LabelRecord
    frame: FrameEntry | None = None


Entry = FrameEntry | LabelEntry


@dataclass(frozen=True, eq=False, slots=True)
class Kept:
    """A frame as it is found again, with all that labels told of it, in order."""

    entry: FrameEntry
    labels: tuple[LabelEntry, ...] = ()


def kept(frame: FrameEntry | None, labels: Sequence[LabelEntry]) -> Kept | None:
    """A frame with the labels that are of it: those of an earlier frame of its name are not."""
    if frame is None:
        return None
    ours = {entry.sequence: entry for entry in labels if entry.sequence > abs(frame.sequence)}
    return Kept(frame, tuple(ours[sequence] for sequence in sorted(ours)))


class Journal(Protocol):
    """Where entries are kept."""

    @property
    def keeps(self) -> bool:
        """Says whether anything is kept at all."""
        ...

    @property
    def full(self) -> bool:
        """True while labels cannot be taken."""
        ...

    def note(self, entry: Entry) -> bool:
        """Has an entry written soon; tells whether it will be."""
        ...


@dataclass(frozen=True, slots=True)
class NoJournal:
    """Nothing is kept."""

    keeps: bool = False
    full: bool = False

    def note(self, entry: Entry) -> bool:
        """Never."""
        return False
