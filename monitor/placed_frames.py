"""Frames of the ledger as frames in waiting again: in the slices and spaces of this process."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from monitor.calibration.class_matched import Opinions
from monitor.calibration.class_slices import ClassSliceTable
from monitor.calibration.slices import SliceTable
from monitor.calibration.space import Space
from monitor.ledger import FrameEntry, Kept
from monitor.pending import PendingFrame
from monitor.stored_frame import StoredFrame


@dataclass(frozen=True, slots=True)
class Places:
    """Where frames find their slices; those that are not known yet are placed."""

    slices: SliceTable
    class_slices: ClassSliceTable
    angles_in_joint: bool

    def placed(self, entry: FrameEntry) -> PendingFrame:
        """As it was when it came, but for what came with it."""
        header = entry.frame.header
        # What takes part in joint measures is a setting, and not kept.
        space = Space(header.space.dimensions, self.angles_in_joint)
        stored = replace(entry.frame, header=replace(header, space=space))
        index = [self.slices.place(space, key.name, overflow=key.overflow) for key in stored.slices]
        slices = np.array(index, np.int64)[stored.slice.astype(np.int64)]
        frame = PendingFrame(stored, slices, self._opinions(stored), entry.partition)
        frame.sequence = entry.sequence
        return frame

    def _opinions(self, stored: StoredFrame) -> Opinions | None:
        if stored.opinions is None:
            return None
        key, place = stored.opinions.slice, None
        if key is not None:
            names = stored.header.classes
            place = self.class_slices.place(names, key.name, overflow=key.overflow)
        return Opinions(place, stored.opinions.rows, stored.opinions.values)

    def as_told(self, kept: Kept) -> PendingFrame:
        """As it was when the last of its labels had come."""
        frame = self.placed(kept.entry)
        if kept.entry.inline is not None:
            frame.tell(kept.entry.inline)
        for entry in kept.labels:
            frame.tell(entry.record)
        return frame
