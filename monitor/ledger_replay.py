"""Entries of the ledger done again after a crash: what they told, told to a ledger that began
with less.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from monitor.counting import Counting, Parts
from monitor.ledger import Entry, FrameEntry, Kept, LabelEntry, LabelRecord
from monitor.pending import PendingFrame
from monitor.truth_ledger import TruthLedger


def replay(
    ledger: TruthLedger,
    entry: Entry,
    parts_of: Callable[[int], Parts],
    find: Callable[[LabelEntry], Kept | None],
) -> bool:
    """Do an entry again that some parts do not have yet; whether that was possible.

    parts_of  those that do not have the entry of a sequence
    find      the frame of labels, with the labels of it that came before them
    """
    parts = parts_of(entry.sequence)
    if parts.statistics:
        ledger.counts_from(entry.sequence)
    ledger.sequence = max(ledger.sequence, entry.sequence)
    if isinstance(entry, FrameEntry):
        _frame_again(ledger, entry, parts)
        return True
    frame = ledger.store.get((entry.stream, entry.frame_id)) if parts.statistics else None
    if frame is None or frame.released or _is_of_another(entry, frame):
        kept = find(entry)
        if kept is None:
            return False
        if parts.statistics:
            frame = _found_again(ledger, kept, parts_of)
        else:
            frame = ledger.places.placed(kept.entry)
    if not parts.statistics:
        ledger.counting.count(frame, entry.record, entry.sequence, parts)
        return True
    _come_to(ledger.counting, entry.record)
    ledger.tell(frame, entry.record, entry.sequence, parts)
    ledger.counters.truth.add(entry.record.account)
    return True


def _frame_again(ledger: TruthLedger, entry: FrameEntry, parts: Parts) -> PendingFrame:
    frame, inline, fates = ledger.places.placed(entry), entry.inline, ledger.fates
    if parts.statistics:
        frame.kept = True
        live = ledger.counting.live
        generation = live.generation
        live.see(entry.frame.stamp_ns)
        if generation != live.generation:
            ledger.counting.drift.begin_anew()
        if inline is not None:
            _come_to(ledger.counting, inline)
        ledger.epoch = max(ledger.epoch, entry.frame.epoch)
        fates.came(frame)
    if inline is not None:
        ledger.counting.count(frame, inline, entry.sequence, parts)
    if parts.statistics:
        if inline is not None:
            fates.came_with(frame, inline)
            ledger.counters.truth.add(inline.account)
        fates.hold(frame, wanted=True)
    return frame


def _found_again(ledger: TruthLedger, kept: Kept, parts_of: Callable[[int], Parts]) -> PendingFrame:
    """The frame of labels that are told again."""
    entered = -kept.entry.sequence
    if entered < 0 or kept.labels:
        return ledger.restore(kept)
    # It goes to the disk with the first of its labels: until then memory alone had it.
    if entered > (ledger.resumed or 0):
        again = replace(kept.entry, sequence=entered)
        return _frame_again(ledger, again, parts_of(entered))
    return ledger.restore(kept, lost=True)


def _come_to(counting: Counting, record: LabelRecord) -> None:
    """Let event time be what it was for a record: frames that moved it need not be kept."""
    if counting.live.come_to(record.generation, record.clock_ns):
        counting.drift.begin_anew()


def _is_of_another(entry: LabelEntry, frame: PendingFrame) -> bool:
    """Whether labels are not of a frame, though of one with its number."""
    brought = entry.frame
    if brought is not None and abs(brought.sequence) != abs(frame.sequence):
        return True
    return entry.partition != frame.partition
