"""Values of one frame on its way through the pipeline, as arrays.

A frame comes with its header, is answered, gets labels and goes into the statistics as matched
rows. Code that checks, recalibrates or matches a frame never lives here.

It holds the estimates that the detector sent, those that were forwarded and the version of the
recalibrator. Labels never live here: see matching/objects.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from monitor.frames.classes import Sent, with_softmax
from monitor.frames.detections import Estimates, Examined, IdArray, Reason, ReceivedDetections
from monitor.frames.reasons import Notice
from monitor.frames.space import (
    BoolArray,
    Columns,
    FloatArray,
    IntArray,
    Space,
    alone,
)
from monitor.frames.status import TruthAccount

# Track ids of an external tracker lie below; our own tracker, when it stands in, begins here.
FOREIGN_TRACKS = 2**62


class TrackStatus(IntEnum):
    """Maturity of a track; values as on the wire."""

    TENTATIVE = 1  # not yet confirmed by enough detections
    CONFIRMED = 2  # and updated by this frame
    COASTING = 3  # confirmed, predicted to this frame


@dataclass(frozen=True, slots=True)
class Pose:
    """Place of a sensor in fixed axes.

    position     (3,) m
    orientation  (4,) unit quaternion w, x, y, z, from the sensor's axes into the fixed ones
    """

    position: FloatArray
    orientation: FloatArray


@dataclass(frozen=True, slots=True)
class Twist:
    """Velocity of a sensor, in its own axes.

    linear   (3,) m/s
    angular  (3,) rad/s
    """

    linear: FloatArray
    angular: FloatArray


@dataclass(frozen=True, slots=True)
class EgoMotion:
    """Motion of the sensor, as it came with a frame."""

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
    def updated(self) -> BoolArray:
        """Tells which tracks have a detection in the frame, (M,)."""
        return self.detection >= 0

    def of_detections(self, n: int) -> IdArray:
        """Returns the id of the track that each detection updated or began, (n,); 0 for none."""
        track = np.zeros(n, np.uint64)
        track[self.detection[self.updated]] = self.id[self.updated]
        return track


@dataclass(frozen=True, eq=False, slots=True)
class TrackIds(Columns):
    """Tracks of n detections.

    id     (n,) unique in the stream
    known  (n,) which detections have one
    """

    id: IdArray
    known: BoolArray


def no_tracks(n: int) -> TrackIds:
    """Returns the tracks of n detections of which none has one."""
    return TrackIds(np.zeros(n, np.uint64), np.zeros(n, bool))


@dataclass(frozen=True, eq=False, slots=True)
class Origin(Columns):
    """Tells n detections of one frame from all others, and where they are.

    frame_id, stamp_ns  of the frame, one of both known; else −1 and None
    row                 (n,) place among its usable detections
    mean                (n, K) as the detector sent it
    """

    stream: str
    frame_id: int
    stamp_ns: int | None
    row: IntArray
    mean: FloatArray


@dataclass(frozen=True, eq=False, slots=True)
class MatchedRows(Columns):
    """n detections of one frame with their ground truth, at both stages.

    slices                (n,) slice index
    error, covariance     (n, K), (n, K, K) as the detector sent them
    recalibrated_error, recalibrated_covariance
                          as the active recalibrator made them; the identical
                          objects where it changed nothing
    stamp_ns              event time of the frame; None where unknown
    live                  whether the label came in time for counters that never fall
    tracks                track of each detection in its source; None without a tracker
    source                tells tracks of equal id apart
    retracts              whether the rows were counted before, and are retracted
    origin                None where nothing tells the frame from others
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
    origin: Origin | None = None

    @property
    def n(self) -> int:
        """Counts the rows."""
        return int(self.slices.size)

    def take(self, part: IntArray | BoolArray | slice) -> MatchedRows:
        """Returns some of the rows; both stages stay one where they are."""
        rows = Columns.take(self, part)
        if not self.unchanged:
            return rows
        return replace(rows, recalibrated_error=rows.error, recalibrated_covariance=rows.covariance)

    @property
    def unchanged(self) -> bool:
        """Tells whether both stages are the same."""
        return (
            self.recalibrated_error is self.error
            and self.recalibrated_covariance is self.covariance
        )


NO_ROWS = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Header:
    """Facts that all frames of a stream have in common.

    return_tracks    whether the client asks for the tracks with every answer
    quantile_levels  levels at which it asks for quantiles of every recalibrated detection

    Requests of a client do not count when two headers are compared.
    """

    stream: str
    space: Space
    classes: tuple[str, ...]
    coordinate_frame: str = ""
    return_tracks: bool = field(default=False, compare=False)
    quantile_levels: tuple[float, ...] = field(default=(), compare=False)

    @property
    def asked(self) -> tuple[bool, tuple[float, ...]]:
        """Requests of the client."""
        return self.return_tracks, self.quantile_levels


@dataclass(frozen=True, slots=True)
class ReceivedFrame:
    """A frame as it came; nothing is checked yet.

    overlong      bytes of detections that are too long for the arrays, by row: such a
                  detection is refused and sent back as it came
    ego           motion of the sensor; None if none came
    class_logits  (N, ≥0) and (N,) how many came, as ReceivedDetections.class_probabilities
    """

    frame_id: int | None
    stamp_ns: int | None
    detections: ReceivedDetections
    fast: bool = True
    overlong: Mapping[int, bytes] = field(default_factory=dict)
    ego: EgoMotion | None = None
    class_logits: Sent | None = None

    def with_softmax(self, classes: int) -> ReceivedFrame:
        """Returns the frame with class probabilities where logits came in their place."""
        if self.class_logits is None:
            return self
        sent = self.detections
        made = with_softmax(sent.class_probabilities, self.class_logits, classes)
        return replace(self, detections=replace(sent, class_probabilities=made))


@dataclass(frozen=True, slots=True)
class Refusal(Notice):
    """Why a whole message cannot be used, in words."""


class UncertainBy(IntEnum):
    """Measures by which a detection is too uncertain; values as on the wire."""

    NEITHER = 0
    ENTROPY = 1
    DEVIATION = 2
    BOTH = 3


@dataclass(frozen=True, slots=True)
class AnswerExtras:
    """Answers beside the estimates, for all N detections of a frame.

    output               (N,) OUTPUT_NUMBER of what was recalibrated, or of the shadow; 0 for
                         neither
    quantiles            (N, K T) a row of NaN where none go out; None if none go out at all
    class_probabilities  (N, C) recalibrated, likewise
    class_version        version of the recalibrator that made them; empty without one
    rejected_by          (N,) UncertainBy; None if no rejection is configured
    """

    output: npt.NDArray[np.uint8]
    quantiles: FloatArray | None = None
    class_probabilities: FloatArray | None = None
    class_version: str = ""
    rejected_by: npt.NDArray[np.uint8] | None = None


@dataclass(frozen=True, slots=True)
class FrameAnswer:
    """Answer to a frame.

    reason     (N,) Reason of each detection; NONE: recalibrated
    rows       (m,) detections of `forwarded`; all others go back as they came
    shadow     what the recalibrator would have made of shadow_rows (mode = observe)
    tracks     as of this frame; None if none were asked for
    extras     None if nothing was recalibrated, or extras could not be made
    untracked  input of our own tracker, which stands in when the external tracker does not answer:
               with n estimates of examined.batch; None unless it stands by
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
    untracked: tuple[Examined, Estimates] | None = None

    @property
    def stale(self) -> bool:
        """Tells whether the frame waited too long on its way, so that nothing was done with it."""
        return any(notice.reason is Reason.STALE for notice in self.notices)


@dataclass(frozen=True, eq=False, slots=True)
class ReceivedObjects:
    """m objects with ids of the labeller's own, as they came; nothing is checked yet.

    id, has_id          (m,)
    class_index         (m,) into the labeller's class names, or the header's; −1 where absent
    truth               (m, ≥0) NaN beyond truth_length (m,)
    covariance          (m, ≥0) NaN beyond covariance_length (m,); 0 where absent
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
        """Counts the objects."""
        return int(self.id.size)


@dataclass(frozen=True, eq=False, slots=True)
class ReceivedRegion:
    """Part of space that the labeller did not look at, as it came.

    class_index   as of objects; −1: every class
    lower, upper  as many as were sent
    """

    class_index: int
    dimensions: tuple[str, ...]
    lower: FloatArray
    upper: FloatArray


@dataclass(frozen=True, slots=True)
class ReceivedTruth:
    """Labels of a frame as they came: n that name a detection, and objects.

    truth        (n, ≥0) NaN beyond truth_length (n,)
    class_index  (n,) true class, −1 where absent; may come without any truth
    objects      (n,) the labeller's own ids; None if no label has one
    revision     labels of a higher revision replace those of a lower one
    foreign      objects with ids of the labeller's own; None if none came
    class_names  the labeller's own; empty: the header's
    regions      parts of space that the labeller did not look at
    stamp_ns     stamp of the frame; None: the frame with this number, whatever its stamp
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
        """Counts the labels that name a detection."""
        return int(self.id.size)

    @property
    def n(self) -> int:
        """Counts the labels, objects included."""
        return self.named + (0 if self.foreign is None else self.foreign.n)


@dataclass(frozen=True, slots=True)
class TruthAnswer:
    """Answer to a label message: the outcome of its labels.

    retracted  detections whose earlier labels were retracted
    sequence   position of the ledger entry that durability depends on; 0: none
    durable    whether the labels that were counted outlive a crash
    """

    account: TruthAccount
    notices: tuple[Notice, ...] = ()
    retracted: int = 0
    sequence: int = 0
    durable: bool = False


@dataclass(frozen=True, slots=True)
class SliceKey:
    """Name of a slice, equal in every run, unlike its index.

    assumed  whether its detections come without a covariance: Space.assumed
    """

    name: str
    overflow: bool = False
    assumed: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class Opinions:
    """Class probabilities of the m detections of a frame that have some.

    slice   of the class statistics; None if there was no room for one
    rows    (m,) positions in the batch, ascending
    values  (m, M, C) M opinions on at least two classes
    made    (m, C) mean of the recalibrated opinions, NaN where none could be made; None if
            nothing was changed
    """

    slice: SliceKey | None
    rows: IntArray
    values: FloatArray
    made: FloatArray | None = None

    @property
    def nbytes(self) -> int:
        """Counts the bytes of the arrays."""
        made = 0 if self.made is None else self.made.nbytes
        return self.rows.nbytes + self.values.nbytes + made

    def of(self, rows: IntArray) -> BoolArray:
        """Tells which rows of the batch have opinions, (n,)."""
        place = np.searchsorted(self.rows, rows)
        found: BoolArray = place < self.rows.size
        found[found] = self.rows[place[found]] == rows[found]
        return found


def opinions_of(
    probabilities: FloatArray, slice: SliceKey | None, made: FloatArray | None = None
) -> Opinions:
    """Packs the class probabilities of a batch (n, M, C), leaving out rows of NaN.

    made  (n, C) as recalibrated; None if nothing was changed
    """
    rows = np.flatnonzero(~np.isnan(probabilities[:, 0, 0]))
    if rows.size == probabilities.shape[0]:
        return Opinions(slice, rows, probabilities, made)
    return Opinions(slice, rows, probabilities[rows], None if made is None else made[rows])


@dataclass(frozen=True, eq=False, slots=True)
class MatchedClasses(Columns):
    """n detections of one frame with their class probabilities and their true class.

    index     of the class slice
    opinions  (n, M, C)
    label     (n,) true class, in 0 … C − 1
    stamp_ns  event time of the frame; None where unknown
    retracts  whether the rows were counted before, and are retracted
    made      (n, C) as Opinions.made
    """

    index: int
    opinions: FloatArray
    label: IntArray
    stamp_ns: int | None = None
    retracts: bool = False
    made: FloatArray | None = None

    @property
    def n(self) -> int:
        """Counts the rows."""
        return int(self.label.size)


@dataclass(frozen=True, eq=False, slots=True)
class PredictedRows(Columns):
    """Tells how certain the detector is of the n detections of one frame, as it sent them.

    space     the space of all means
    slices    (n,) slice index
    mean      (n, K)
    roots     (n, J) whose product is the root of det(Σ) of the joint block: FrameBatch.roots
    opinions  (n, M, C) in [0, 1], C at least 2, rows of NaN for none; None if none came
    stamp_ns  event time of the frame; None where unknown
    """

    space: Space
    slices: IntArray
    mean: FloatArray
    roots: FloatArray
    opinions: FloatArray | None = None
    stamp_ns: int | None = None

    @property
    def n(self) -> int:
        """Counts the rows."""
        return int(self.slices.size)


# A dataclass of Columns with a field `space`.
_Rows = TypeVar("_Rows", bound=Any)


def by_space(rows: _Rows, assumed: BoolArray | None) -> tuple[_Rows, ...]:
    """Divides n ≥ 1 rows of one frame: covariances that are assumed never meet those that came.

    assumed  (n,) rows whose covariance is assumed; None: none is
    """
    if assumed is None:
        return (rows,)
    bare = replace(rows, space=rows.space.with_assumed)
    if assumed.all():
        return (bare,)
    return (rows.take(~assumed), bare.take(assumed)) if assumed.any() else (rows,)


@dataclass(frozen=True, eq=False, slots=True)
class StoredEstimates:
    """n Gaussians, packed.

    mean      (n, K)
    packed    (n, K) variances if all are diagonal, else (n, K(K+1)/2) lower triangles
    diagonal  (n,)
    score     (n,) as of Estimates
    """

    mean: FloatArray
    packed: FloatArray
    diagonal: BoolArray
    score: FloatArray | None = None

    @property
    def nbytes(self) -> int:
        """Counts the bytes of the arrays."""
        score = 0 if self.score is None else self.score.nbytes
        return self.mean.nbytes + self.packed.nbytes + self.diagonal.nbytes + score

    def estimates(self, rows: IntArray) -> Estimates:
        """Unpacks some rows, bit for bit."""
        return Estimates(self.mean, self.packed, self.diagonal, self.score).take(rows)


def stored_estimates(estimates: Estimates) -> StoredEstimates:
    """Packs estimates, into arrays that keep nothing else in memory."""
    score = None if estimates.score is None else alone(estimates.score)
    mean, packed = alone(estimates.mean), alone(estimates.packed)
    return StoredEstimates(mean, packed, alone(estimates.diagonal), score)


@dataclass(frozen=True, eq=False, slots=True)
class StoredFrame:
    """One frame: the n usable detections of the `received` ones.

    id           (n,)
    class_index  (n,)
    slices       slices of the detections; slice (n,) uint16 is an index into them
    sent         as the detector sent them
    made         as the recalibrator made them; None if it changed nothing
    version      of the recalibrator; None if none could be applied
    unusable     ids of detections that have nothing to compare, ascending
    tracks       (n,) None without a tracker
    source       tells tracks of equal id apart
    epoch        of the wall clock
    bare         detections without a covariance, which earlier versions left out; 0 since
    """

    header: Header
    frame_id: int
    stamp_ns: int | None
    received: int
    id: IdArray
    class_index: IntArray
    slices: tuple[SliceKey, ...]
    slice: npt.NDArray[np.uint16]
    sent: StoredEstimates
    made: StoredEstimates | None
    version: str | None
    unusable: IdArray
    tracks: TrackIds | None = None
    source: int = 0
    opinions: Opinions | None = None
    epoch: int = 0
    bare: int = 0

    @property
    def n(self) -> int:
        """Counts the usable detections."""
        return int(self.id.size)

    @property
    def assumed(self) -> BoolArray | None:
        """Tells which detections came without a covariance, (n,); None if none did."""
        by_slice = [key.assumed for key in self.slices]
        return np.array(by_slice)[self.slice] if any(by_slice) else None

    @property
    def nbytes(self) -> int:
        """Counts the bytes of the arrays."""
        own = self.id.nbytes + self.class_index.nbytes + self.slice.nbytes + self.unusable.nbytes
        made = 0 if self.made is None else self.made.nbytes
        tracks = 0 if self.tracks is None else self.tracks.id.nbytes + self.tracks.known.nbytes
        of_classes = 0 if self.opinions is None else self.opinions.nbytes
        return own + self.sent.nbytes + made + tracks + of_classes
