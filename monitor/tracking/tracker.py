"""The tracks of a stream, and one frame of them: predict, associate, update, begin and end tracks.

Frames come here in the order of their stamps; follow() puts late ones in their place.

States are values, so that the last few can be kept; the result is what the frames in order
would have given.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from monitor.frames.detections import IdArray
from monitor.frames.frame import EgoMotion, Pose, ReportedTracks, TrackStatus
from monitor.frames.space import BoolArray, Columns, FloatArray, IntArray, Space
from monitor.frames.words import MeasurementNoise
from monitor.tracking.association import (
    GatedPairs,
    Gaussians,
    by_likelihood,
    by_upstream_id,
    rejected,
)
from monitor.tracking.motion import (
    Association,
    InnovationSums,
    MotionModel,
    TrackerSettings,
    flipping_dimension,
    fold,
    innovation_sums,
    motion_model,
    move,
    no_innovations,
    predict,
    relative_motion,
    update,
)

Values = TypeVar("Values", IntArray, IdArray)

# The most numbers in the covariances of all tracks: with many dimensions, fewer tracks.
_MOST_STATE = 1 << 18


@dataclass(frozen=True, slots=True)
class Sightings:
    """The n detections of a frame that can be tracked.

    stamp_ns     capture time
    mean         (n, K)
    covariance   (n, K, K) as forwarded
    class_index  (n,)
    row          (n,) position in the frame
    number       (n,) never the same for two detections of a stream; 0 is not used
    score        (n,), or None
    upstream     (n,) track ids of the detector's own tracker, (n,) where there is one; or None
    """

    stamp_ns: int
    mean: FloatArray
    covariance: FloatArray
    class_index: IntArray
    row: IntArray
    number: IdArray
    score: FloatArray | None = None
    upstream: tuple[IdArray, BoolArray] | None = None
    ego: EgoMotion | None = None

    @property
    def n(self) -> int:
        """Number of detections."""
        return int(self.row.size)

    @property
    def named(self) -> tuple[IdArray, BoolArray]:
        """The upstream ids, and which detections have one."""
        return self.upstream or (np.zeros(self.n, np.uint64), np.zeros(self.n, bool))


@dataclass(frozen=True, slots=True)
class Tracks(Columns):
    """T tracks at one moment.

    id             (T,) unique in the stream
    upstream       (T,) id of the detector's own tracker, where has_upstream (T,)
    class_index    (T,)
    state          (T, S) means, covariance (T, S, S)
    detections     (T,) number of detections so far
    latest         (T,) the last detection's Sightings.number
    missed         (T,) frames since the last detection
    updated_ns     (T,) stamp of the last detection
    confirmed      (T,)
    heading_votes  (T,) see motion.fold
    whitened       (T, J) L⁻¹ν of the last frame, NaN where there was no update
    """

    id: IdArray
    upstream: IdArray
    has_upstream: BoolArray
    class_index: IntArray
    state: FloatArray
    covariance: FloatArray
    detections: IntArray
    latest: IdArray
    missed: IntArray
    updated_ns: IntArray
    confirmed: BoolArray
    heading_votes: FloatArray
    whitened: FloatArray

    @property
    def n(self) -> int:
        """Number of tracks."""
        return int(self.id.size)


@dataclass(frozen=True, slots=True)
class TrackerModel:
    """Settings and motion model of a stream's tracker; constant while the stream lasts."""

    settings: TrackerSettings
    motion: MotionModel
    classes: int


@dataclass(frozen=True, slots=True)
class TrackerState:
    """A tracker between two frames.

    stamp_ns   of the last frame; None before the first
    pose       of the sensor at that frame, where known
    in_motion  the last frame told how the sensor moves
    """

    tracks: Tracks
    innovations: InnovationSums
    stamp_ns: int | None = None
    pose: Pose | None = None
    in_motion: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """The tracker after a frame, and the frame's updates.

    state    after the frame
    row      (T,) position in the frame of the detection each track got; −1 for none
    nis      (T,) of the update; NaN where there was none, or no joint dimension
    """

    state: TrackerState
    row: IntArray
    nis: FloatArray

    def reported(self) -> ReportedTracks:
        """Lists all tracks as the answer shows them."""
        tracks = self.state.tracks
        status: npt.NDArray[np.uint8] = np.full(tracks.n, int(TrackStatus.TENTATIVE), np.uint8)
        status[tracks.confirmed] = TrackStatus.CONFIRMED
        status[tracks.confirmed & (self.row < 0)] = TrackStatus.COASTING
        return ReportedTracks(
            id=tracks.id,
            class_index=tracks.class_index,
            status=status,
            detections=tracks.detections,
            detection=self.row,
            nis=self.nis,
            state=tracks.state,
            covariance=tracks.covariance,
        )


def tracker_model(space: Space, classes: int, settings: TrackerSettings) -> TrackerModel:
    """Makes the tracker of a stream. Its gate ignores angles, even where statistics use them."""
    space = replace(space, angles_in_joint=False)
    return TrackerModel(settings, motion_model(space, settings), classes)


def new_tracker(model: TrackerModel) -> TrackerState:
    """Makes the state before the first frame."""
    return TrackerState(no_tracks(model.motion), no_innovations(model.classes))


def no_tracks(model: MotionModel) -> Tracks:
    """Makes an empty set of tracks."""
    none, noise = np.zeros(0, np.int64), np.zeros((0, model.k, model.k))
    number = none.astype(np.uint64)
    nothing = Sightings(0, np.zeros((0, model.k)), noise, none, none, number)
    return born(model, nothing, noise, none, confirmed=False)


def motion_unknown(model: TrackerModel, before: TrackerState, seen: Sightings) -> bool:
    """Tells whether this frame lacks the sensor's motion, which the frame before it had.

    Tracks and detections are then in different axes, until the next frame with the motion.
    After coast_seconds no track is left that could wait for that frame.
    """
    if not before.in_motion or before.stamp_ns is None or seen.ego is not None:
        return False
    return seen.stamp_ns - before.stamp_ns <= model.settings.coast_seconds * 1e9


def advance(model: TrackerModel, before: TrackerState, seen: Sightings) -> Step:
    """Advances the tracker by a frame whose stamp is not before that of the last one."""
    settings, motion = model.settings, model.motion
    if settings.association is not Association.UPSTREAM and seen.upstream is not None:
        seen = replace(seen, upstream=None)
    tracks, innovations = _brought_forward(model, before, seen)
    noise = _noise(model, innovations, seen)
    predicted = Gaussians(tracks.state, tracks.covariance, tracks.class_index)
    measured = Gaussians(seen.mean, noise, seen.class_index)
    if settings.association is Association.UPSTREAM:
        named = tracks.upstream, tracks.has_upstream
        pairs = by_upstream_id(named, seen.named, predicted, measured, motion.space, settings)
    else:
        pairs = by_likelihood(predicted, measured, motion.space, settings)
    refused = rejected(tracks.confirmed, predicted, measured, motion.space, settings, pairs)

    track, detection = pairs.track, pairs.detection
    sure = tracks.confirmed[track]
    earlier = pairs if sure.all() else pairs.take(sure)
    frame_sums = innovation_sums(
        model.classes,
        tracks.class_index[earlier.track],
        earlier.whitened,
        tracks.whitened[earlier.track],
        refused,
    )
    tracks = _updated(model, tracks, pairs, measured, seen)

    row, nis = np.full(tracks.n, -1), np.full(tracks.n, np.nan)
    row[track], nis[track] = seen.row[detection], pairs.nis
    allowed = np.where(tracks.confirmed, settings.coast_frames, settings.tentative_misses - 1)
    alive = tracks.missed <= allowed
    if not alive.all():
        tracks, row, nis = tracks.take(alive), row[alive], nis[alive]
    room = min(settings.max_tracks, _MOST_STATE // motion.size**2) - tracks.n
    origin = _origins(model, seen, detection, room)
    if origin.size:
        confirmed = settings.confirm_detections <= 1
        fresh = born(motion, seen, noise, origin, confirmed=confirmed)
        tracks = Tracks.joined([tracks, fresh])
        row = np.concatenate([row, seen.row[origin]])
        nis = np.concatenate([nis, np.full(fresh.n, np.nan)])
    after = TrackerState(
        tracks=tracks,
        innovations=innovations + frame_sums,
        stamp_ns=seen.stamp_ns,
        pose=seen.ego.pose if seen.ego is not None else None,
        in_motion=seen.ego is not None,
    )
    return Step(after, row, nis)


def _brought_forward(
    model: TrackerModel, before: TrackerState, seen: Sightings
) -> tuple[Tracks, InnovationSums]:
    """Predicts tracks and fades sums to the time of a frame, in the axes of the sensor now."""
    settings, motion, tracks = model.settings, model.motion, before.tracks
    if before.stamp_ns is None:
        return tracks, before.innovations
    seconds = (seen.stamp_ns - before.stamp_ns) * 1e-9
    innovations = before.innovations.fade(0.5 ** (seconds / settings.half_life_seconds))
    # Not the difference of stamps, which may be too large for 64 bits.
    longest_ago = seen.stamp_ns - round(settings.coast_seconds * 1e9)
    alive = tracks.updated_ns >= longest_ago
    if not alive.all():
        tracks = tracks.take(alive)
    if tracks.n == 0:
        return tracks, innovations
    state, covariance = tracks.state, tracks.covariance
    # Predicted in the axes of the last frame, in which the velocity is given; then moved.
    state, covariance = predict(state, covariance, motion, seconds)
    motion.space.wrap(state)
    if seen.ego is not None:
        travelled = relative_motion(before.pose, seen.ego, seconds)
        if travelled is not None:
            heading = settings.heading_dimension
            state, covariance = move(state, covariance, motion, travelled, heading)
    return replace(tracks, state=state, covariance=covariance), innovations


def _noise(model: TrackerModel, innovations: InnovationSums, seen: Sightings) -> FloatArray:
    """Chooses R of each detection, (n, K, K)."""
    settings, k = model.settings, model.motion.k
    if settings.measurement_noise is MeasurementNoise.UNIT:
        return np.broadcast_to(np.eye(k), (seen.n, k, k))
    noise = seen.covariance
    if settings.inflate_for_correlation:
        noise = noise * innovations.inflation[seen.class_index][:, None, None]
    return noise


def _updated(
    model: TrackerModel, tracks: Tracks, pairs: GatedPairs, measured: Gaussians, seen: Sightings
) -> Tracks:
    """Updates the tracks that got a detection; returns all tracks."""
    motion, settings = model.motion, model.settings
    track, detection = pairs.track, pairs.detection
    whitened = np.full_like(tracks.whitened, np.nan)
    missed = tracks.missed + 1
    if track.size == 0:
        return replace(tracks, missed=missed, whitened=whitened)
    whitened[track] = pairs.whitened
    missed[track] = 0
    innovation = motion.space.error(measured.mean[detection], tracks.state[track, : motion.k])
    votes, turned = tracks.heading_votes, np.zeros(track.size, bool)
    heading = flipping_dimension(motion.space, settings.heading_dimension)
    if heading is not None:
        votes = votes.copy()
        innovation[:, heading], now = fold(innovation[:, heading], votes[track])
        turned = now < 0
        votes[track] = np.abs(now)
    # In place: _brought_forward has made both for this frame.
    state, covariance = tracks.state, tracks.covariance
    update(state, covariance, (track, detection), innovation, measured.covariance)
    if heading is not None and turned.any():
        state[track[turned], heading] += np.pi
    motion.space.wrap(state)
    detections = tracks.detections.copy()
    detections[track] += 1
    return replace(
        tracks,
        # Another class only where an upstream id said that it is the same object.
        class_index=_put(tracks.class_index, track, seen.class_index[detection]),
        state=state,
        covariance=covariance,
        detections=detections,
        latest=_put(tracks.latest, track, seen.number[detection]),
        missed=missed,
        updated_ns=_put(tracks.updated_ns, track, seen.stamp_ns),
        confirmed=tracks.confirmed | (detections >= settings.confirm_detections),
        heading_votes=votes,
        whitened=whitened,
    )


def _put(values: Values, rows: IntArray, new: Values | int) -> Values:
    changed = values.copy()
    changed[rows] = new
    return changed


def _origins(model: TrackerModel, seen: Sightings, taken: IntArray, room: int) -> IntArray:
    """Picks the detections that begin a track."""
    if taken.size == seen.n:
        return np.zeros(0, np.int64)
    free = np.ones(seen.n, bool)
    free[taken] = False
    if seen.score is not None:
        # NaN means that there is no score; it is not below.
        free &= ~(seen.score < model.settings.birth_score)
    if seen.upstream is not None:
        # Of detections with one id, one begins the track.
        ids, sent = seen.upstream
        labelled = np.flatnonzero(sent)
        repeated = np.ones(labelled.size, bool)
        repeated[np.unique(ids[labelled], return_index=True)[1]] = False
        free[labelled[repeated]] = False
    return free.nonzero()[0][: max(room, 0)]


def born(
    model: MotionModel, seen: Sightings, noise: FloatArray, origin: IntArray, *, confirmed: bool
) -> Tracks:
    """Begins a track at some detections, with a speed of 0 ± initial_speed.

    noise   (n, K, K) R of each detection of the frame
    origin  (m,) those that begin one
    """
    m, k, size = origin.size, model.k, model.size
    state = np.zeros((m, size))
    state[:, :k] = seen.mean[origin]
    covariance = np.zeros((m, size, size))
    covariance[:, :k, :k] = noise[origin]
    step = np.arange(k, size)
    covariance[:, step, step] = model.initial_speed**2
    model.space.wrap(state)
    upstream, has_upstream = seen.named
    return Tracks(
        id=seen.number[origin],
        upstream=upstream[origin],
        has_upstream=has_upstream[origin],
        class_index=seen.class_index[origin],
        state=state,
        covariance=covariance,
        detections=np.ones(m, np.int64),
        latest=seen.number[origin],
        missed=np.zeros(m, np.int64),
        updated_ns=np.full(m, seen.stamp_ns, np.int64),
        confirmed=np.full(m, confirmed),
        heading_votes=np.ones(m),
        whitened=np.full((m, len(model.space.joint)), np.nan),
    )


# The most frames that are tracked again for a late one.
MOST_FRAMES = 8
# The most numbers in the matrices of the frames tracked again; a late frame beyond is too late.
_MOST_WORK = 1 << 20
# After so many frames in a row that are too late, the clock has begun anew. After so many late
# frames in a row that were worked in, the frames far ahead of them had stamps of another clock;
# a single frame so far ahead is taken for that at once.
_TOO_MANY = 8


class Order(StrEnum):
    """The way in which a frame came; the values are labels of calibration_tracker_frames_total."""

    IN_ORDER = "in_order"
    REWOUND = "rewound"  # late, and worked in
    TOO_LATE = "too_late"  # before every remembered state: its detections are not tracked
    REPEATED = "repeated"  # with the stamp of one that was tracked: not tracked again
    UNSTAMPED = "unstamped"  # without a stamp: not tracked
    UNMOVED = "unmoved"  # without the sensor's motion, which the frame before had: not tracked
    RESTARTED = "restarted"  # the clock went back for good: all tracks ended, and this frame first


@dataclass(frozen=True, slots=True)
class _Past:
    """A frame that was tracked, and the tracker before it."""

    seen: Sightings
    before: TrackerState


@dataclass(frozen=True, slots=True)
class Tracker:
    """A tracker that can go back a little.

    last      the latest frame's step
    past      the latest frames, in order of their stamps
    too_late  number of frames in a row that were too late
    rewound   number of frames in a row that were worked in before the latest
    """

    model: TrackerModel
    last: Step | None = None
    past: tuple[_Past, ...] = ()
    too_late: int = 0
    rewound: int = 0

    @property
    def state(self) -> TrackerState:
        """State after the latest frame."""
        return new_tracker(self.model) if self.last is None else self.last.state


def follow(tracker: Tracker, seen: Sightings) -> tuple[Tracker, Step | None, Order]:
    """Works a frame in; returns the tracker, the step at that frame, and how the frame came.

    The step is None where the frame was not tracked. The latest frame, sent again, gets the
    step it had. A late frame gets the step of its own time; the answers to the frames after
    it have gone out already.
    """
    model, state = tracker.model, tracker.state
    if state.stamp_ns is None or seen.stamp_ns > state.stamp_ns:
        if motion_unknown(model, state, seen):
            return tracker, None, Order.UNMOVED
        made, step = _worked_in(model, tracker.past, state, seen)
        return made, step, Order.IN_ORDER
    if any(entry.seen.stamp_ns == seen.stamp_ns for entry in tracker.past):
        # A client that sends the latest frame again has lost the answer, and gets it again.
        latest = tracker.past[-1].seen
        same = (
            latest.stamp_ns == seen.stamp_ns
            and np.array_equal(latest.row, seen.row)
            and np.array_equal(latest.mean, seen.mean)
        )
        return tracker, tracker.last if same else None, Order.REPEATED
    place = sum(entry.seen.stamp_ns < seen.stamp_ns for entry in tracker.past)
    again = tracker.past[place:]
    earliest = again[0].before
    too_early = earliest.stamp_ns is not None and earliest.stamp_ns >= seen.stamp_ns
    if too_early or _work(model, again) > _MOST_WORK:
        if tracker.too_late + 1 < _TOO_MANY:
            return replace(tracker, too_late=tracker.too_late + 1), None, Order.TOO_LATE
        made, step = _worked_in(model, (), new_tracker(model), seen)
        return made, step, Order.RESTARTED
    if motion_unknown(model, earliest, seen):
        return tracker, None, Order.UNMOVED
    rewound = tracker.rewound + 1
    near = _without_gap(model, seen.stamp_ns, again)
    if len(again) - len(near) == 1 or rewound > _TOO_MANY:
        again = near
    made, step = _worked_in(model, tracker.past[:place], earliest, seen)
    for entry in again:
        made, _ = _worked_in(model, made.past, made.state, entry.seen)
    if not again or tracker.last is None or made.last is None:
        return made, step, Order.REWOUND
    names = _names_sent(tracker.last.state.tracks, made.last.state.tracks)
    made = replace(made, last=_called(made.last, names), rewound=rewound)
    return made, _called(step, names), Order.REWOUND


def _work(model: TrackerModel, again: tuple[_Past, ...]) -> int:
    """Counts the numbers in the matrices of frames that would be tracked again."""
    size = model.motion.size
    return sum(entry.before.tracks.n + entry.seen.n for entry in again) * size * size


def _without_gap(model: TrackerModel, stamp_ns: int, later: tuple[_Past, ...]) -> tuple[_Past, ...]:
    """Picks the frames up to a gap that no track outlives, and across which none is shared."""
    longest = round(model.settings.coast_seconds * 1e9)
    for i, entry in enumerate(later):
        if entry.seen.stamp_ns - stamp_ns > longest:
            return later[:i]
        stamp_ns = entry.seen.stamp_ns
    return later


def _names_sent(sent: Tracks, made: Tracks) -> dict[int, int]:
    """Maps the ids of tracks to the ids that went out with the answer to the latest frame.

    A late frame from before a track's birth gives the track an earlier first detection, and
    with it another id. The client knows the old id: the track with the last detection of that
    one keeps it.
    """
    known = dict(zip(sent.latest.tolist(), sent.id.tolist(), strict=True))
    taken = set(made.id.tolist())
    return {
        name: known[latest]
        for latest, name in zip(made.latest.tolist(), made.id.tolist(), strict=True)
        if latest in known and known[latest] not in taken
    }


def _called(step: Step, names: dict[int, int]) -> Step:
    """Renames tracks of a step, never two to one id.

    A track that has ended since may have had, at that step, the id that another has later.
    """
    tracks = step.state.tracks
    there = tracks.id.tolist()
    names = {name: sent for name, sent in names.items() if sent not in there}
    if not names:
        return step
    id = np.array([names.get(name, name) for name in there], np.uint64)
    return replace(step, state=replace(step.state, tracks=replace(tracks, id=id)))


def _worked_in(
    model: TrackerModel, past: tuple[_Past, ...], state: TrackerState, seen: Sightings
) -> tuple[Tracker, Step]:
    step = advance(model, state, seen)
    return Tracker(model, step, (*past, _Past(seen, state))[-MOST_FRAMES:]), step
