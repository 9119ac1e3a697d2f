"""The learning of references: what is usual of every slice at both stages, in each epoch anew.

It is learned from detections with ground truth, and from seconds of tracks, by sums of bounded
size; then it is frozen. What a reference is, is said in reference.py. All that is known of one
slice is one value, SliceState, in which the references stand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np
from annotated_types import Len

from monitor.drift.alarms import SliceName
from monitor.drift.channels import MOST_NAMED, channels
from monitor.drift.charts import Origin, Stage
from monitor.drift.correlation import (
    LARGEST_NUMBER,
    SPACINGS,
    FrameSums,
    Records,
    Seconds,
    Sum,
    TrackSums,
    tempering_by_spacing,
)
from monitor.drift.evidence import DriftSettings, Evidence
from monitor.drift.level_sums import LevelSums, SecondLevels
from monitor.drift.reference import (
    NOTHING_USUAL,
    Degrees,
    NeesHistogram,
    Reference,
    UsualArrays,
    shipped,
    usual_arrays,
)
from monitor.frames.marks import LARGEST_COUNT, ArrayForm, Count
from monitor.frames.slices import is_of_classes
from monitor.frames.space import BoolArray, FloatArray, IntArray, Space
from monitor.statistics.clusters import ALONE, LARGEST, ClusterArray
from monitor.statistics.observations import Measured

# ns of event time in a second of a track.
BLOCK_NS = 1_000_000_000


@dataclass(frozen=True, eq=False, slots=True)
class WatchedRows:
    """n detections with truth of F frames, in the order in which their truth came.

    slices    (n,) slice index
    nees      (2, n) of the joint block, by Stage; ≥ 0, finite
    z, u      (2, D, n) errors in stated deviations, and whitened: each dimension given those before
              it; of the first D dimensions of the joint block, MOST_NAMED at most
    error     (2, D, n) errors in their units
    track     (n,) the track in its slice, unique over all sources and slices; ALONE where unknown
    frame     (n,) ascending, 0 … F − 1
    stamp_ns  (F,) event time
    source    (F,) tells apart whose time it is
    changed   (F,) whether a recalibrator has changed them
    votes     (2, n, 2, ABSOLUTE) ln L by Stage and chart, of votes on class probabilities, which
              have the place of detections then (class_bets.py); None: of none
    """

    slices: IntArray
    nees: FloatArray
    z: FloatArray
    u: FloatArray
    error: FloatArray
    track: ClusterArray
    frame: IntArray
    stamp_ns: IntArray
    source: IntArray
    changed: BoolArray
    votes: FloatArray | None = None

    @property
    def n(self) -> int:
        """Counts the detections."""
        return int(self.slices.size)


def watched_errors(
    space: Space, measured: Sequence[Measured], kept: IntArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Returns NEES, z, u and errors of some detections, as WatchedRows has them.

    measured  by Stage
    kept      (n,) positions
    """
    named = list(space.joint[:MOST_NAMED])
    return (
        np.stack([one.nees[-1, kept] for one in measured]),
        np.stack([one.normalised[named][:, kept] for one in measured]),
        np.stack([one.whitened[: len(named), kept] for one in measured]),
        np.stack([one.error[named][:, kept] for one in measured]),
    )


# Rows that are taken in together: a call costs as much as some hundred of them.
AT_ONCE = 1024
WAITING = np.dtype(
    [("nees", np.float64), ("track", np.uint64), ("frame", np.int64), ("stamp", np.int64)]
)
_WAITING = ArrayForm(
    WAITING,
    (None,),
    fields=(
        ("nees", 0.0, LARGEST_NUMBER),
        ("frame", 0, LARGEST_COUNT),
        ("stamp", -(2**63), 2**63 - 1),
    ),
)


def _track_sums() -> list[TrackSums]:
    return [TrackSums() for _ in SPACINGS]


@dataclass(slots=True)
class ReferenceLearner:
    """Learns the reference of one slice at one stage, by sums; K degrees of freedom.

    detections  so far
    total       Σ min(e/K, 64) over those that are taken in
    began       s of driving with truth of the slice when learning began; None: it did not
    waiting     rows that are not taken in yet, as `add` has them: fewer than AT_ONCE
    """

    k: Degrees
    detections: Count = 0
    total: Sum = 0.0
    began: Seconds | None = None
    histogram: NeesHistogram = field(default_factory=NeesHistogram)
    along_tracks: Annotated[list[TrackSums], Len(len(SPACINGS), len(SPACINGS))] = field(
        default_factory=_track_sums
    )
    along_frames: FrameSums = field(default_factory=FrameSums)
    seconds: LevelSums = field(default_factory=lambda: LevelSums(0))
    waiting: Annotated[Records, _WAITING] = field(default_factory=_WAITING.none)

    def __post_init__(self) -> None:
        if not self.seconds.channels:
            self.seconds = LevelSums(channels(self.k).size)
        if self.seconds.channels != channels(self.k).size:
            raise ValueError(f"'seconds.channels' must be {channels(self.k).size} for 'k' {self.k}")
        counted = int(self.histogram.counts.sum()) + self.waiting.size
        if self.detections != counted:
            raise ValueError(f"'detections' is {self.detections}, but {counted} are counted")

    @property
    def tracks(self) -> int:
        """Counts the tracks with a second that is over: those that levels are known from."""
        return round(float(self.seconds.tracks.sum()))

    def add(
        self, nees: FloatArray, track: ClusterArray, frame: IntArray, stamp_ns: IntArray
    ) -> None:
        """Adds n detections, in the order in which their ground truth came.

        nees      (n,) ≥ 0, finite
        track     (n,) ALONE where unknown
        frame     (n,) ascending, over all calls: whole frames, none of which has come before
        stamp_ns  (n,) event time
        """
        self.detections += int(nees.size)
        rows = np.zeros(nees.size, WAITING)
        rows["nees"], rows["track"], rows["frame"] = nees, track, frame
        rows["stamp"] = stamp_ns
        self.waiting = np.concatenate((self.waiting, rows))
        if self.waiting.size >= AT_ONCE:
            self.take_in()

    def add_seconds(self, stage: Stage, seconds: Records) -> None:
        """Adds seconds of tracks that are over, as TrackSeconds gives them out."""
        self.seconds.add(second_levels(self.k, stage, seconds))

    def take_in(self) -> None:
        """Adds what waits to the sums."""
        if not self.waiting.size:
            return
        nees, track, frame, stamp = (self.waiting[name].copy() for name in WAITING.names or ())
        self.waiting = self.waiting[:0]
        x = np.minimum(nees / self.k, LARGEST)
        self.total += float(x.sum())
        self.histogram.add(nees)
        for spacing, sums in zip(SPACINGS, self.along_tracks, strict=True):
            sums.add(x, track, stamp, spacing)
        self.along_frames.add(x, frame)

    def learned(self, origin: Origin, shortest_reference: int) -> Reference:
        """Returns what is usual, as far as it is known; what is not known is as shipped.

        nees_ratio is cut as in clusters.py: one gross outlier is one error.

        shortest_reference  tracks, of which fewer teach nothing of how tracks differ: levels is
                            then None
        """
        self.take_in()
        assumed = shipped(self.k)
        frames = self.along_frames.tempering()
        known = tempering_by_spacing(self.along_tracks)
        spacings, temperings = known or (assumed.spacings, assumed.temperings)
        return Reference(
            k=self.k,
            origin=origin,
            quantiles=self.histogram.quantiles(self.k),
            detections=self.detections,
            nees_ratio=self.total / self.detections if self.detections else assumed.nees_ratio,
            spacings=spacings,
            temperings=temperings,
            frame_tempering=assumed.frame_tempering if frames is None else frames,
            tracks=self.tracks,
            levels=self.seconds.levels(shortest_reference),
        )


def second_levels(k: int, stage: Stage, seconds: Records) -> SecondLevels:
    """Returns what m seconds of tracks say at one stage, as TrackSeconds gives them out."""
    chosen, rows = channels(k), seconds["rows"]
    return SecondLevels(
        level=seconds["level"][:, stage][:, chosen],
        spread=seconds["spread"][:, stage][:, chosen],
        count=seconds["count"],
        before=seconds["before"],
        rows=rows,
        rows2=seconds["rows2"],
        mean=seconds["total"][:, stage][:, chosen] / np.maximum(rows, 1)[:, None],
        outside=seconds["outside"][:, stage],
        trial=seconds["trial"][:, stage],
    )


# Of values by Stage.
_BY_STAGE = Len(len(Stage), len(Stage))


@dataclass(eq=False, slots=True)
class SliceState:
    """Holds all that is known of one slice, over a restart too; nothing of what merely goes on.

    epoch       counted from 0
    labelled    detections with truth, in its epoch
    fed         s of driving in which there was truth of it
    known       whether an alarm of its raw estimates was acknowledged
    evidence    of this slice alone; empty once the family has it beside that of the others
    references  by Stage; None where it is being learned, and what is shipped stands for it
    learners    by Stage, which may go on learning; None where the reference is known
    """

    name: SliceName
    k: Degrees
    epoch: Count
    labelled: Count
    fed: Seconds
    known: bool
    evidence: Evidence
    references: Annotated[list[Reference | None], _BY_STAGE]
    learners: Annotated[list[ReferenceLearner | None], _BY_STAGE]

    def __post_init__(self) -> None:
        for reference, learner in zip(self.references, self.learners, strict=True):
            if [one.k for one in (reference, learner) if one is not None] != [self.k]:
                raise ValueError(f"each stage must have a reference or a learner, of 'k' {self.k}")
        sizes = {getattr(self.evidence, name).shape[0] for name in Evidence.__dataclass_fields__}
        if sizes != {1} or self.evidence.shares.sum(axis=-1).max() > 1 + 1e-9:
            raise ValueError("'evidence' must be of one slice, and 'shares' at most 1 in sum")

    @classmethod
    def begun(cls, name: str, k: int) -> SliceState:
        """Begins a slice that nothing is known of."""
        evidence = Evidence()
        evidence.grow(1)
        learners: list[ReferenceLearner | None] = [ReferenceLearner(k) for _ in Stage]
        return cls(name, k, 0, 0, 0.0, False, evidence, [None, None], learners)

    def copied(self, evidence: Evidence) -> SliceState:
        """Copies what is known by now, beside this evidence; what is being learned goes on."""
        references, learners = [*self.references], [*self.learners]
        return replace(self, evidence=evidence, references=references, learners=learners)

    def reference(self, stage: Stage) -> Reference:
        """Returns what is usual at a stage."""
        return self.references[stage] or shipped(self.k)


# Detections of a slice whose tracks are too few to wait for, in multiples of those asked for.
_PATIENCE = 10


@dataclass(slots=True)
class Usual:
    """References of all slices, known or being learned.

    given       by name of the slice, from recorded drives: in every epoch
    slices      of the family
    frame_size  (G,) detections in the last frame of each slice; 0 where their tracks are known
    apart       (G,) s between labels of a track, of late; NaN where not known
    """

    settings: DriftSettings
    given: Mapping[str, Mapping[Stage, Reference]] = field(default_factory=dict)
    slices: list[SliceState] = field(default_factory=list)
    frame_size: FloatArray = field(default_factory=lambda: np.zeros(0))
    apart: FloatArray = field(default_factory=lambda: np.zeros(0))
    _arrays: dict[Stage, UsualArrays] = field(default_factory=dict)

    def grow(self, one: SliceState) -> list[Stage]:
        """Adds the next slice; returns the stages at which another reference is usual by now."""
        self.slices.append(one)
        self.frame_size = np.append(self.frame_size, 0.0)
        self.apart = np.append(self.apart, np.nan)
        self._arrays.clear()
        changed = []
        for stage in Stage:
            known = one.reference(stage)
            if known.origin is Origin.FILE or self._given(one, stage) is not None:
                self.begin_anew(one, stage)
            if not known.is_same(one.reference(stage)):
                changed.append(stage)
        return changed

    def _given(self, one: SliceState, stage: Stage) -> Reference | None:
        if is_of_classes(one.name):
            return NOTHING_USUAL
        given = self.given.get(one.name, {}).get(stage)
        return given if given is not None and given.k == one.k else None

    def begin_anew(self, one: SliceState, stage: Stage) -> None:
        """Begins another epoch: the reference is what was given, or is learned."""
        one.references[stage] = given = self._given(one, stage)
        one.learners[stage] = ReferenceLearner(one.k) if given is None else None
        self._arrays.pop(stage, None)

    def forget(self, slice: int, stage: Stage) -> None:
        """Begins to learn anew: what was being learned may be of a fault."""
        one = self.slices[slice]
        if one.learners[stage] is not None:
            one.learners[stage] = ReferenceLearner(one.k)

    def arrays(self, stage: Stage) -> UsualArrays:
        """Returns the references of all slices at one stage, as arrays."""
        if stage not in self._arrays:
            self._arrays[stage] = usual_arrays([one.reference(stage) for one in self.slices])
        return self._arrays[stage]

    # ---- what counts

    def see(self, rows: WatchedRows, apart: FloatArray) -> None:
        """Notes how large the last frame of each slice is, and whether its tracks are known.

        apart  (n,) s since the last label of each track; NaN where not known
        """
        slices = len(self.slices)
        # Of the last frame of each: how frames are cut into calls must not matter.
        last = _of_last_frame(rows.slices, rows.frame, slices)
        count = np.bincount(rows.slices[last], minlength=slices)
        tracked = np.bincount(rows.slices[last], rows.track[last] != ALONE, slices) > 0
        there = count > 0
        self.frame_size[there] = np.where(tracked[there], 0.0, count[there])
        known = np.flatnonzero(~np.isnan(apart))
        known = known[_of_last_frame(rows.slices[known], rows.frame[known], slices)]
        times = np.bincount(rows.slices[known], minlength=slices)
        total = np.bincount(rows.slices[known], apart[known], slices)
        self.apart[times > 0] = total[times > 0] / times[times > 0]

    def worth(self, slice: int, stage: Stage) -> float:
        """Tells how many independent detections one is worth, by what is known of tracks lately."""
        if self.frame_size[slice]:
            reference = self.slices[slice].reference(stage)
            return reference.frame_tempering / float(self.frame_size[slice])
        return self.tempering(slice, stage)

    def tempering(self, slice: int, stage: Stage) -> float:
        """Returns γ of a detection whose track is known, at the rate of labels of late."""
        place = np.array([slice])
        return float(self.arrays(stage).tempering(place, self.apart[place])[0])

    # ---- learning

    @property
    def learning(self) -> bool:
        """Tells whether anything is being learned."""
        return any(learner is not None for one in self.slices for learner in one.learners)

    def learn(
        self,
        slice: int,
        stages: Sequence[Stage],
        rows: WatchedRows,
        seconds: Records,
        first_frame: int,
        fed_before: float,
    ) -> Iterator[Stage]:
        """Takes in what there is of a slice; yields the stages that are frozen by it.

        stages       that anything is to be learned of
        seconds      of tracks, that are over
        first_frame  number of the first of the rows' frames, of all
        fed_before   s of driving with truth of the slice, before these rows: learning begins there
        """
        one = self.slices[slice]
        if not any(one.learners):
            return
        chosen = np.flatnonzero(rows.slices == slice)
        # Older tracks are in the sums already, from their first second on.
        over = np.flatnonzero((seconds["slice"] == slice) & ~seconds["older"])
        track, frame = rows.track[chosen], rows.frame[chosen] + first_frame
        for stage in stages:
            learner = one.learners[stage]
            if learner is None:
                continue
            if learner.began is None:
                learner.began = fed_before
            learner.add(rows.nees[stage, chosen], track, frame, rows.stamp_ns[rows.frame[chosen]])
            learner.add_seconds(stage, seconds.take(over))
            long = one.fed - learner.began >= self.settings.reference_seconds
            if enough(learner, self.settings) and long:
                shortest = self.settings.shortest_reference
                one.references[stage] = learner.learned(Origin.LEARNED, shortest)
                one.learners[stage] = None
                self._arrays.pop(stage, None)
                yield stage


def _of_last_frame(slices: IntArray, frame: IntArray, count: int) -> BoolArray:
    """Marks the rows of the last frame of each of so many slices, (n,)."""
    latest = np.zeros(count, np.int64)
    np.maximum.at(latest, slices, frame)
    found: BoolArray = frame == latest[slices]
    return found


def enough(learner: ReferenceLearner, settings: DriftSettings) -> bool:
    """Tells whether a reference can be learned: of as many detections and tracks as are asked for.

    Tracks are not waited for where none are known, nor after ten times the detections.
    """
    detections = learner.detections
    if detections < settings.reference_detections:
        return False
    waited = detections >= _PATIENCE * settings.reference_detections
    return waited or learner.tracks == 0 or learner.tracks >= settings.reference_tracks
