"""What passes between the wire and the pipeline, as arrays: headers, frames, truth, answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from monitor.calibration.detections import Examined, IdArray, Reason, ReceivedDetections
from monitor.calibration.matched import TrackIds
from monitor.calibration.notices import Notice
from monitor.calibration.space import BoolArray, FloatArray, IntArray, Space
from monitor.counters import TruthAccount
from monitor.recalibration.recalibrator import Estimates
from monitor.tracking.reported import EgoMotion, ReportedTracks

NO_ROWS = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Header:
    """What all frames of a stream have in common.

    return_tracks    whether this client asks for the tracks with every answer
    quantile_levels  at which it asks for the quantiles of every recalibrated detection

    What a client asks for is no part of what the stream is.
    """

    stream: str
    space: Space
    classes: tuple[str, ...]
    coordinate_frame: str = ""
    return_tracks: bool = field(default=False, compare=False)
    quantile_levels: tuple[float, ...] = field(default=(), compare=False)

    def asks_like(self, other: Header) -> bool:
        """Whether both ask for the same to be in the answers."""
        return (self.return_tracks, self.quantile_levels) == (
            other.return_tracks,
            other.quantile_levels,
        )


@dataclass(frozen=True, slots=True)
class ReceivedFrame:
    """A frame as it came.

    overlong      bytes of the detections too long to be held in arrays, by row:
                  they are refused and sent back as they came
    ego           motion of the sensor, where it came with the frame; nothing is checked yet
    class_logits  (N, ≥0) and how many came, (N,), as ReceivedDetections.class_probabilities
    """

    frame_id: int | None
    stamp_ns: int | None
    detections: ReceivedDetections
    fast: bool = True
    overlong: Mapping[int, bytes] = field(default_factory=dict)
    ego: EgoMotion | None = None
    class_logits: tuple[FloatArray, IntArray] | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A whole message that cannot be used, in words."""

    reason: Reason
    field: str
    message: str

    def notice(self) -> Notice:
        """As part of an answer."""
        return Notice(self.reason, self.field, self.message)


class UncertainBy(IntEnum):
    """By what a detection is too uncertain; the values are those of the wire."""

    NEITHER = 0
    ENTROPY = 1
    DEVIATION = 2
    BOTH = 3


@dataclass(frozen=True, slots=True)
class AnswerExtras:
    """What goes back with the estimates, of all N detections of a frame.

    output               (N,) OUTPUT_NUMBER of what was recalibrated, or of the shadow; 0 for
                         neither
    quantiles            (N, K T), a row of NaN where none go out; None: nowhere
    class_probabilities  (N, C) recalibrated, likewise
    class_version        of the recalibrator that made them, empty without any
    rejected_by          (N,) UncertainBy; None: no rejection is in force
    """

    output: npt.NDArray[np.uint8]
    quantiles: FloatArray | None = None
    class_probabilities: FloatArray | None = None
    class_version: str = ""
    rejected_by: npt.NDArray[np.uint8] | None = None


@dataclass(frozen=True, slots=True)
class Untracked:
    """What our own tracker takes in of a frame that a tracker elsewhere leaves unanswered.

    forwarded  (n,) estimates of examined.batch
    """

    examined: Examined
    forwarded: Estimates


@dataclass(frozen=True, slots=True)
class FrameAnswer:
    """What goes back for a frame.

    reason     (N,) of Reason for every detection; NONE: recalibrated
    rows       (m,) detections of `forwarded`; all others go back as they came
    shadow     what the recalibrator would have made of shadow_rows (mode = observe)
    tracks     as of this frame; None where none were asked for
    extras     None where nothing was recalibrated, or nothing but that could be made
    untracked  None unless our own tracker stands by
    """

    received: ReceivedFrame
    reason: npt.NDArray[np.uint8]
    rows: IntArray = field(default_factory=lambda: NO_ROWS)
    forwarded: Estimates | None = None
    shadow_rows: IntArray = field(default_factory=lambda: NO_ROWS)
    shadow: Estimates | None = None
    versions: tuple[str, ...] = ()
    notices: tuple[Notice, ...] = ()
    tracks: ReportedTracks | None = None
    extras: AnswerExtras | None = None
    untracked: Untracked | None = None

    @property
    def stale(self) -> bool:
        """Whether it waited too long on its way, and nothing was done with it."""
        return any(notice.reason is Reason.STALE for notice in self.notices)


@dataclass(frozen=True, eq=False, slots=True)
class ReceivedObjects:
    """m objects in the labeller's own space of ids, as they came; nothing is checked yet.

    id, has_id          (m,)
    class_index         (m,) into the labeller's class names, or the header's; −1 where absent
    truth               (m, ≥0), NaN beyond truth_length (m,)
    covariance          (m, ≥0), NaN beyond covariance_length (m,); 0 where absent
    ignore              (m,)
    stamp_ns, has_stamp (m,)
    """

    id: IdArray
    has_id: BoolArray
    class_index: IntArray
    truth: FloatArray
    truth_length: IntArray
    covariance: FloatArray
    covariance_length: IntArray
    ignore: BoolArray
    stamp_ns: IntArray
    has_stamp: BoolArray

    @property
    def n(self) -> int:
        """Number of objects."""
        return int(self.id.size)


@dataclass(frozen=True, eq=False, slots=True)
class ReceivedRegion:
    """A part of space where nobody looked, as it came.

    class_index   as of objects; −1: of every class
    lower, upper  as many as were sent
    """

    class_index: int
    dimensions: tuple[str, ...]
    lower: FloatArray
    upper: FloatArray


@dataclass(frozen=True, slots=True)
class ReceivedTruth:
    """Labels of a frame as they came; n of them, and objects.

    truth        (n, ≥0), NaN beyond truth_length (n,)
    class_index  (n,) the true class, −1 where absent; it may come without any truth
    objects      (n,) the labeller's own ids; None where no label has one
    revision     a higher one takes the place of what was told before
    foreign      objects in the labeller's own space of ids; None where none came
    class_names  the labeller's own; empty: the header's
    regions      where nobody looked
    stamp_ns     of the frame; None: whichever has its number
    """

    stream: str
    frame_id: int | None
    complete: bool
    id: IdArray
    has_id: BoolArray
    truth: FloatArray
    truth_length: IntArray
    ignore: BoolArray
    class_index: IntArray
    objects: TrackIds | None = None
    revision: int = 0
    coordinate_frame: str = ""
    class_names: tuple[str, ...] = ()
    foreign: ReceivedObjects | None = None
    regions: tuple[ReceivedRegion, ...] = ()
    stamp_ns: int | None = None

    @property
    def named(self) -> int:
        """Number of labels that name a detection."""
        return int(self.id.size)

    @property
    def n(self) -> int:
        """Number of labels, objects included."""
        return self.named + (0 if self.foreign is None else self.foreign.n)


@dataclass(frozen=True, slots=True)
class TruthAnswer:
    """What became of each label.

    retracted  detections whose earlier labels were taken back
    sequence   of the entry in the ledger that it hangs on; 0: of none
    durable    whether what was counted outlives a crash
    """

    account: TruthAccount
    notices: tuple[Notice, ...] = ()
    retracted: int = 0
    sequence: int = 0
    durable: bool = False
