"""Frames that come late: the tracker goes back to before their time, and forward again.

States are values, so that the last few can be kept; what comes out is what frames in order
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
    advance,
    motion_unknown,
    new_tracker,
)
from monitor.tracking.tracks import Tracks

# Frames that can be done again for one that is late.
MOST_FRAMES = 8


# Numbers in the matrices of the frames that are done again, at most; beyond, it is too late.
_MOST_WORK = 1 << 20


# So many frames in a row that are too late are no stragglers: the clock began anew. So many
# that are worked in, and what lies far ahead of them came with the stamp of another clock; a
# single frame so far ahead does so at once.
_TOO_MANY = 8


class Order(StrEnum):
    """How a frame came; the values are labels of calibration_tracker_frames_total."""

    IN_ORDER = "in_order"
    REWOUND = "rewound"  # late, and worked in
    TOO_LATE = "too_late"  # before every state that is kept: its detections are not tracked
    REPEATED = "repeated"  # with the stamp of one that was tracked: not tracked again
    UNSTAMPED = "unstamped"  # without a stamp: not tracked
    UNMOVED = "unmoved"  # without the sensor's motion, which others told: not tracked
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
    too_late  how many frames in a row were
    rewound   how many frames in a row were worked in before the latest
    """

    model: TrackerModel
    last: Step | None = None
    past: tuple[_Past, ...] = ()
    too_late: int = 0
    rewound: int = 0

    @property
    def state(self) -> TrackerState:
        """After the latest frame."""
        return new_tracker(self.model) if self.last is None else self.last.state


def follow(tracker: Tracker, seen: Sightings) -> tuple[Tracker, Step | None, Order]:
    """The tracker with a frame worked in, the step at that frame, and how it came.

    The step is None where the frame was not tracked. That of the latest frame, sent again,
    is the one it had. That of a late frame is as of its own time; the answers to the frames
    after it have gone out already.
    """
    model, state = tracker.model, tracker.state
    if state.stamp_ns is None or seen.stamp_ns > state.stamp_ns:
        if motion_unknown(model, state, seen):
            return tracker, None, Order.UNMOVED
        made, step = _worked_in(model, tracker.past, state, seen)
        return made, step, Order.IN_ORDER
    if any(entry.seen.stamp_ns == seen.stamp_ns for entry in tracker.past):
        # Whoever sends the latest frame again has lost the answer, and gets the same.
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
    """Numbers in the matrices of frames that would be done again."""
    size = model.motion.size
    return sum(entry.before.tracks.n + entry.seen.n for entry in again) * size * size


def _without_gap(model: TrackerModel, stamp_ns: int, later: tuple[_Past, ...]) -> tuple[_Past, ...]:
    """Frames after a stamp, up to a gap that no track outlives: those beyond share none."""
    longest = round(model.settings.coast_seconds * 1e9)
    for i, entry in enumerate(later):
        if entry.seen.stamp_ns - stamp_ns > longest:
            return later[:i]
        stamp_ns = entry.seen.stamp_ns
    return later


def _names_sent(sent: Tracks, made: Tracks) -> dict[int, int]:
    """What tracks were called when the latest frame was answered, by what they are called now.

    A late frame from before a track's birth gives it an earlier first detection. To whoever
    has got the other name already it stays the track it was: the one with that last detection.
    """
    known = dict(zip(sent.latest.tolist(), sent.id.tolist(), strict=True))
    taken = set(made.id.tolist())
    return {
        name: known[latest]
        for latest, name in zip(made.latest.tolist(), made.id.tolist(), strict=True)
        if latest in known and known[latest] not in taken
    }


def _called(step: Step, names: dict[int, int]) -> Step:
    """The same step with some tracks called otherwise; no two of them the same.

    A track that has ended since may have the name there that another one goes by later.
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
