"""What is entered in the ledger: frames, and what labels told of them with what was counted for it.

Entries are numbered in the order in which they changed the statistics: those after a checkpoint,
done again in their order, make of it what was there when the process died.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from monitor.calibration.matched import TrackIds
from monitor.calibration.space import FloatArray, IntArray
from monitor.counters import TruthAccount
from monitor.stored_frame import StoredFrame

# The revision of what came with the frame itself.
INLINE = -1


class Outcome(IntEnum):
    """What became of a detection."""

    WAITING = 0
    MATCHED = 1  # its truth, or its class, is in the statistics
    IGNORED = 2  # neither right nor wrong
    UNMATCHED = 3  # of a completely labelled frame, and no label claims it


class GateVerdict(IntEnum):
    """How a match came about."""

    NONE = 0  # the label named the detection
    WITHIN = 1  # the gate let it in
    NEAR = 2  # and it lay near it


@dataclass(frozen=True, eq=False, slots=True)
class LabelRecord:
    """What labels told of one frame, and what was counted for it. All rows are of the frame.

    revision          INLINE for what came with the frame
    replaces          all that was told before is taken back first
    settled, outcome  (u,) rows whose fate is known by it, and (u,) of Outcome
    rows              (m,) those with truth (m, K)
    truth_covariance  (m, K, K); None: taken as exact
    objects           (m,) whose truth it is; None where the labeller does not say
    class_rows        (c,) those with class probabilities and a true class (c,)
    stamp_ns          event time it is counted at; None where unknown or not believed
    clock_ns          how far event time had come
    generation        how often it had begun anew
    delay_ns, live    by how much it came later than the frame; whether in time for the counters
    objects_told      objects of this revision have come: more of them change nothing
    gate              (m,) of GateVerdict; None where none decided
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


class Journal(Protocol):
    """Where entries are kept."""

    @property
    def full(self) -> bool:
        """Whether labels cannot be taken."""
        ...

    def note(self, entry: Entry) -> bool:
        """Have an entry written, soon; whether it will be."""
        ...


@dataclass(frozen=True, slots=True)
class NoJournal:
    """Nothing is kept."""

    full: bool = False

    def note(self, entry: Entry) -> bool:
        """Never."""
        return False
