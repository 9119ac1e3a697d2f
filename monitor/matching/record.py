"""Holds what labels told of one frame in one value: matched, counted, kept and retracted as it is.

How a label finds its detection is decided in labels.py and objects.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from monitor.frames.counters import TruthAccount
from monitor.frames.frame import TrackIds
from monitor.frames.reasons import Notice
from monitor.frames.space import FloatArray, IntArray

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


def _no_rows() -> IntArray:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class LabelRecord:
    """Holds what labels told of one frame, and what was counted for it. All rows are of the frame.

    Matching makes it; the pipeline adds whether it replaces others, and when it is counted.

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
    notices           faults of the labels, for their answer; never kept
    """

    revision: int
    replaces: bool = False
    settled: IntArray = field(default_factory=_no_rows)
    outcome: npt.NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    rows: IntArray = field(default_factory=_no_rows)
    truth: FloatArray
    truth_covariance: FloatArray | None = None
    objects: TrackIds | None = None
    class_rows: IntArray = field(default_factory=_no_rows)
    true_class: IntArray = field(default_factory=_no_rows)
    stamp_ns: int | None = None
    clock_ns: int | None = None
    generation: int = 0
    delay_ns: int = 0
    live: bool = True
    account: TruthAccount = field(default_factory=TruthAccount)
    objects_told: bool = False
    gate: npt.NDArray[np.uint8] | None = None
    notices: tuple[Notice, ...] = ()
