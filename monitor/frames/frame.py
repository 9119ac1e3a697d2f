"""What goes in and comes out of a tracker beside the estimates: motion of the sensor, tracks.

What passes between the wire and the pipeline, as arrays: headers, frames, truth, answers.

Matched detections of one frame, at both stages, on their way into the statistics.

Class probabilities of the detections of one frame on their way into the statistics: as they
wait for a true class, and with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from monitor.frames.counters import TruthAccount
from monitor.frames.detections import Estimates, Examined, IdArray, Reason, ReceivedDetections
from monitor.frames.reasons import Notice
from monitor.frames.space import BoolArray, FloatArray, IntArray, Space

# Tracks of a tracker elsewhere have numbers up to this one, those of ours that stands in higher.
FOREIGN_TRACKS = 2**62


class TrackStatus(IntEnum):
    """How far a track can be relied on; the values are those of the wire."""

    TENTATIVE = 1  # not yet confirmed by enough detections
    CONFIRMED = 2  # and updated by this frame
    COASTING = 3  # confirmed, predicted to this frame


@dataclass(frozen=True, slots=True)
class Pose:
    """Where a sensor is in a frame that stands still.

    position     (3,) m
    orientation  (4,) unit quaternion w, x, y, z, from the sensor's axes into the fixed ones
    """

    position: FloatArray
    orientation: FloatArray


@dataclass(frozen=True, slots=True)
class Twist:
    """How a sensor moves, in its own axes.

    linear   (3,) m/s
    angular  (3,) rad/s
    """

    linear: FloatArray
    angular: FloatArray


@dataclass(frozen=True, slots=True)
class EgoMotion:
    """Motion of the sensor as a frame tells it."""

    pose: Pose | None = None
    twist: Twist | None = None


@dataclass(frozen=True, slots=True)
class ReportedTracks:
    """M tracks at the capture time of a frame.

    id            (M,) unique in the stream
    class_index   (M,)
    status        (M,) of TrackStatus
    detections    (M,) how many each has had
    detection     (M,) row in the frame of the one that updated or began it; −1 for none
    nis           (M,) normalised innovation squared of the update, NaN for none
    state         (M, S) the dimensions of the stream, then the velocities
    covariance    (M, S, S)
    """

    id: IdArray
    class_index: IntArray
    status: npt.NDArray[np.uint8]
    detections: IntArray
    detection: IntArray
    nis: FloatArray
    state: FloatArray
    covariance: FloatArray

    @property
    def m(self) -> int:
        """Number of tracks."""
        return int(self.id.size)

    @property
    def updated(self) -> BoolArray:
        """(M,) which of them have a detection in the frame."""
        has_one: BoolArray = self.detection >= 0
        return has_one

    def of_detections(self, n: int) -> IdArray:
        """(n,) the track that each detection of the frame updated or began; 0 is no track's id."""
        track = np.zeros(n, np.uint64)
        track[self.detection[self.updated]] = self.id[self.updated]
        return track


@dataclass(frozen=True, eq=False, slots=True)
class TrackIds:
    """The track of each of n detections.

    id     (n,) unique in the stream
    known  (n,) which detections have one
    """

    id: IdArray
    known: BoolArray

    def take(self, rows: IntArray | slice) -> TrackIds:
        """Of some of them."""
        return TrackIds(self.id[rows], self.known[rows])


@dataclass(frozen=True, eq=False, slots=True)
class MatchedRows:
    """n detections of one frame with their truth, at both stages.

    slices                (n,) slice index
    error, covariance     (n, K), (n, K, K) as the detector sent them
    recalibrated_error, recalibrated_covariance
                          as the promoted recalibrator made them; the very same
                          objects where it changed nothing
    stamp_ns              event time of the frame; None where unknown
    live                  whether the truth came in time for what never falls
    tracks                of each detection in its source; None where nobody tracks
    source                tells apart where tracks have their numbers from
    retracts              whether they were counted before, and are taken back
    """

    space: Space
    slices: IntArray
    error: FloatArray
    covariance: FloatArray
    recalibrated_error: FloatArray
    recalibrated_covariance: FloatArray
    stamp_ns: int | None = None
    live: bool = True
    tracks: TrackIds | None = None
    source: int = 0
    retracts: bool = False

    @property
    def n(self) -> int:
        """How many."""
        return int(self.slices.size)

    def cut(self, part: slice) -> MatchedRows:
        """Some of them."""
        error, covariance = self.error[part], self.covariance[part]
        same = self.unchanged
        return replace(
            self,
            slices=self.slices[part],
            error=error,
            covariance=covariance,
            recalibrated_error=error if same else self.recalibrated_error[part],
            recalibrated_covariance=covariance if same else self.recalibrated_covariance[part],
            tracks=None if self.tracks is None else self.tracks.take(part),
        )

    def unstamped(self) -> MatchedRows:
        """The same, of no known time."""
        return replace(self, stamp_ns=None)

    @property
    def unchanged(self) -> bool:
        """Whether both stages are the same."""
        return (
            self.recalibrated_error is self.error
            and self.recalibrated_covariance is self.covariance
        )


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


@dataclass(frozen=True, eq=False, slots=True)
class Opinions:
    """Of those detections of a frame that have any.

    index   of the class slice; None where there was no room for one
    rows    (m,) their positions in the batch, ascending
    values  (m, M, C), M opinions on at least two classes
    """

    index: int | None
    rows: IntArray
    values: FloatArray

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return self.rows.nbytes + self.values.nbytes

    def of(self, rows: IntArray) -> BoolArray:
        """(n,) which rows of the batch have some."""
        place = np.searchsorted(self.rows, rows)
        found: BoolArray = place < self.rows.size
        found[found] = self.rows[place[found]] == rows[found]
        return found

    def without(self, resolved: BoolArray) -> Opinions | None:
        """Those of detections (n,) that are not resolved; None if no such has any."""
        waiting = ~resolved[self.rows]
        if waiting.all():
            return self
        if not waiting.any():
            return None
        return Opinions(self.index, self.rows[waiting], self.values[waiting])

    def matched(
        self, rows: IntArray, true_class: IntArray, stamp_ns: int | None
    ) -> MatchedClasses | None:
        """Rows of the batch, all of which have opinions, with their true class (n,).

        returns  None where there is no slice to count them in
        """
        if self.index is None:
            return None
        place = np.searchsorted(self.rows, rows)
        return MatchedClasses(self.index, self.values[place], true_class, stamp_ns)


def opinions_of(probabilities: FloatArray, index: int | None) -> Opinions:
    """Of a batch (n, M, C) with rows of NaN, in as few bytes as hold them."""
    rows = np.flatnonzero(~np.isnan(probabilities[:, 0, 0]))
    values = probabilities if rows.size == probabilities.shape[0] else probabilities[rows]
    return Opinions(index, rows, values)


@dataclass(frozen=True, eq=False, slots=True)
class MatchedClasses:
    """n detections of one frame with their class probabilities and their true class.

    index     of the class slice
    opinions  (n, M, C)
    label     (n,) in 0 … C − 1
    stamp_ns  event time of the frame; None where unknown
    retracts  whether they were counted before, and are taken back
    """

    index: int
    opinions: FloatArray
    label: IntArray
    stamp_ns: int | None = None
    retracts: bool = False

    @property
    def n(self) -> int:
        """How many."""
        return int(self.label.size)

    def cut(self, part: slice) -> MatchedClasses:
        """Some of them."""
        return replace(self, opinions=self.opinions[part], label=self.label[part])

    def unstamped(self) -> MatchedClasses:
        """The same, of no known time."""
        return replace(self, stamp_ns=None)
