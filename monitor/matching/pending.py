"""A frame that is remembered because labels may still arrive, with what labels told of it so far.

Where pending frames are stored, and for how long, is decided in pipeline/pending.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from enum import IntEnum, StrEnum

import numpy as np
import numpy.typing as npt

from monitor.frames.counters import TruthAccount
from monitor.frames.detections import IdArray
from monitor.frames.frame import Opinions, TrackIds
from monitor.frames.space import BoolArray, FloatArray, IntArray, Space
from monitor.frames.stored import StoredEstimates, StoredFrame


class Dropped(StrEnum):
    """Reasons why a detection left without a label. A closed set: also a label of metrics."""

    REFUSED = "refused"  # no usable estimate
    BARE = "missing_covariance"  # nothing to compare
    NO_FRAME_ID = "no_frame_id"  # no label can name it
    MEMORY = "memory"  # [pending] max_bytes, and not on disk
    SAMPLED = "sampled"  # not one of keep_one_frame_in, and out of memory
    DISK_BUSY = "disk_busy"  # the disk did not keep up, and out of memory
    BUDGET = "budget"  # [pending] disk_bytes
    CORRUPT = "corrupt"  # the file that held it cannot be read
    RESTART = "restart"  # in memory alone, or not yet on disk, when the process ended
    REPLACED = "replaced"  # the frame's number came again at another time
    OVERLOAD = "overload"  # work was shed
    STALE = "stale"  # the frame waited too long on its way
    FAILED = "failed"  # a fault of ours


# The revision of labels that came inline, with the frame itself.
INLINE = -1


class Outcome(IntEnum):
    """Fate of a detection."""

    WAITING = 0
    MATCHED = 1  # its ground truth, or its true class, is in the statistics
    IGNORED = 2  # neither right nor wrong
    UNMATCHED = 3  # the frame is completely labelled, and no label claims the detection


class GateVerdict(IntEnum):
    """Ways in which a match came about."""

    NONE = 0  # the label named the detection
    WITHIN = 1  # the gate let it in
    NEAR = 2  # the gate let it in, and the match lay near the gate


@dataclass(frozen=True, eq=False, slots=True)
class LabelRecord:
    """Holds what labels told of one frame, and what was counted for it. All rows are of the frame.

    revision          INLINE for labels that came with the frame
    replaces          whether all earlier labels are retracted first
    settled, outcome  (u,) detections that got their label, and their Outcome (u,)
    rows              (m,) those with ground truth (m, K)
    truth_covariance  (m, K, K); None: ground truth is exact
    objects           (m,) the labeller's own ids; None where the labeller sent none
    class_rows        (c,) those with class probabilities and a true class (c,)
    stamp_ns          event time it is counted at; None where unknown or not believed
    clock_ns          how far event time had come
    generation        how often event time had begun anew
    delay_ns          time from the frame to the labels
    live              whether the labels came in time for counters that never fall
    objects_told      whether objects of this revision have come: more of them change nothing
    gate              (m,) of GateVerdict; None where no gate decided
    """

    revision: int
    replaces: bool
    settled: IntArray
    outcome: npt.NDArray[np.uint8]
    rows: IntArray
    truth: FloatArray
    truth_covariance: FloatArray | None
    objects: TrackIds | None
    class_rows: IntArray
    true_class: IntArray
    stamp_ns: int | None
    clock_ns: int | None
    generation: int
    delay_ns: int
    live: bool
    account: TruthAccount = field(default_factory=TruthAccount)
    objects_told: bool = False
    gate: npt.NDArray[np.uint8] | None = None


# Bytes that Python itself takes for a stored frame, about: they bound empty frames too.
FRAME_OVERHEAD = 1600

# Bytes that Python itself takes for a record, about.
RECORD_OVERHEAD = 300
FrameKey = tuple[str, int]


@dataclass(slots=True)
class PendingFrame:
    """One frame whose labels may still arrive.

    slices             (n,) slice index of each detection in this run
    partition          of event time
    kept               whether the disk has the frame, or will have it
    why_not            reason that counts if the frame is not kept, and memory is full
    sorted_ids, order  the ids ascending, and their positions
    outcome            (n,) Outcome of each detection
    records            of the labels so far, in order
    revision           of the labels that are counted
    objects_told       whether objects of that revision have come
    released           whether the estimates were let go
    before_account     whether it came before the account began, which never counts it
    """

    stored: StoredFrame
    slices: IntArray
    opinions: Opinions | None = None
    partition: int = 0
    kept: bool = False
    why_not: Dropped = Dropped.MEMORY
    sequence: int = 0
    sorted_ids: IdArray = field(init=False)
    order: IntArray = field(init=False)
    outcome: npt.NDArray[np.uint8] = field(init=False)
    records: list[LabelRecord] = field(default_factory=list)
    revision: int = INLINE
    objects_told: bool = False
    released: bool = False
    before_account: bool = False

    def __post_init__(self) -> None:
        id = self.stored.id
        ascending = np.count_nonzero(id[1:] > id[:-1]) == max(0, id.size - 1)
        self.order = np.arange(id.size) if ascending else np.argsort(id, kind="stable")
        self.sorted_ids = id[self.order]
        self.outcome = np.zeros(id.size, np.uint8)

    @property
    def key(self) -> FrameKey:
        """Returns stream and frame id."""
        return self.stored.header.stream, self.stored.frame_id

    @property
    def space(self) -> Space:
        """Returns the space of the stream."""
        return self.stored.header.space

    @property
    def classes(self) -> int:
        """Counts the classes, C: a true class lies in 0 … C − 1."""
        return len(self.stored.header.classes)

    @property
    def resolved(self) -> BoolArray:
        """Tells which detections have their label, (n,)."""
        resolved: BoolArray = self.outcome != Outcome.WAITING
        return resolved

    @property
    def waiting(self) -> int:
        """Counts the detections without a label so far that are in the account."""
        if self.before_account:
            return 0
        return int(self.outcome.size - np.count_nonzero(self.outcome))

    @property
    def nbytes(self) -> int:
        """Estimates the bytes in memory, records included."""
        own = self.slices.nbytes + self.sorted_ids.nbytes + self.order.nbytes + self.outcome.nbytes
        records = sum(_record_bytes(record) for record in self.records)
        return FRAME_OVERHEAD + self.stored.nbytes + own + records

    @property
    def made(self) -> StoredEstimates:
        """Returns the estimates that were forwarded, or would have been."""
        return self.stored.sent if self.stored.made is None else self.stored.made

    def tell(self, record: LabelRecord) -> IntArray:
        """Enters a record; returns the outcomes that it retracts, (≥0,)."""
        before: IntArray = self.outcome[:0].astype(np.int64)
        if record.replaces:
            before = self.outcome[self.outcome != Outcome.WAITING].astype(np.int64)
            self.outcome[:] = Outcome.WAITING
            self.records.clear()
            self.objects_told = False
        self.outcome[record.settled] = record.outcome
        self.revision = max(self.revision, record.revision)
        self.objects_told |= record.objects_told
        self.records.append(record)
        return before

    def release(self) -> None:
        """Lets go of the estimates: no label is expected. The ids stay, to tell duplicates."""
        k = self.space.k
        none = StoredEstimates(np.zeros((0, k)), np.zeros((0, k)), np.zeros(0, bool))
        self.stored = replace(self.stored, sent=none, made=None, tracks=None, opinions=None)
        self.opinions, self.records, self.released = None, [], True


def _record_bytes(record: LabelRecord) -> int:
    held = [getattr(record, one.name) for one in fields(record)]
    if record.objects is not None:
        held += [record.objects.id, record.objects.known]
    return RECORD_OVERHEAD + sum(one.nbytes for one in held if isinstance(one, np.ndarray))
