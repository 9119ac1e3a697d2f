"""Late frames: the tracker returns to the state before such a frame and goes forward again.

States are values, so that the last few can be kept; the result is what the frames in order
would have given.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from monitor.tracking.tracker import (
    Sightings,
    Step,
    TrackerModel,
    TrackerState,
    Tracks,
    advance,
    motion_unknown,
    new_tracker,
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
