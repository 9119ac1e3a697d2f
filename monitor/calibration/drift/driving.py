"""How long was driven while truth came: the time in which a budget of false alarms is counted."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from monitor.calibration.drift.going_on import ClockState

# s; of a longer pause between two frames of a source no more was driving.
_LONGEST_STEP = 5.0
# s; a stamp that lies so far back is of a clock that was set back: time goes on from there.
_SET_BACK = 10.0
# Frames of all sources, for each that is at it, after which one without truth is at it no more: by
# frames, since nobody's clock tells when another one is over. At least so many.
_SILENT, _LEAST_SILENT = 20, 50
# Frames after which a source is forgotten.
_GONE = 4096


@dataclass(slots=True)
class _Source:
    """latest_ns  event time of its truth
    seen_at    number of its latest frame, of all
    waiting    seconds that it drove since its tracks were last taken in
    """

    latest_ns: int
    seen_at: int = 0
    waiting: float = 0.0


@dataclass(slots=True)
class DrivingClock:
    """Seconds of driving, of all sources together and in the shares that they add to it.

    The sources of a vehicle drive the same hour, and their truth comes at different times: one at
    once, another seconds later. If the time went by the frames of all, whoever is behind would
    never be given any, and could never raise an alarm. So each source has a clock of its own, and
    of what it drives the share that makes them one vehicle: 1 / S where S sources are at it.

    driven  s
    """

    driven: float = 0.0
    _frames: int = 0
    _active: int = 1
    _sources: dict[int, _Source] = field(default_factory=dict)

    def state(self) -> ClockState:
        """A value that `restore` makes the same clock of, but for what was driven."""
        known = self._sources.values()
        return ClockState(
            frames=self._frames,
            active=self._active,
            source=np.array(list(self._sources), np.int64),
            latest_ns=np.array([one.latest_ns for one in known], np.int64),
            seen_at=np.array([one.seen_at for one in known], np.int64),
            waiting=np.array([one.waiting for one in known], np.float64),
        )

    def restore(self, state: ClockState) -> None:
        """Go on from there."""
        self._frames, self._active = state.frames, state.active
        columns = state.source, state.latest_ns, state.seen_at, state.waiting
        rows = zip(*(one.tolist() for one in columns), strict=True)
        self._sources = {name: _Source(*row) for name, *row in rows}

    def drive(self, source: int, stamp_ns: int) -> float:
        """Take in a frame with truth; the seconds that it adds."""
        known = self._sources.get(source)
        self._frames += 1
        if known is None:
            self._forget_those_gone()
            self._sources[source] = _Source(stamp_ns, self._frames)
            return 0.0
        step = (stamp_ns - known.latest_ns) * 1e-9
        known.seen_at = self._frames
        if step <= 0:
            if step < -_SET_BACK:
                known.latest_ns = stamp_ns
            return 0.0
        known.latest_ns = stamp_ns
        share = min(step, _LONGEST_STEP) / self._at_it()
        self.driven += share
        return share

    def wait(self, source: int, seconds: float) -> None:
        """A source drove on, and what its tracks say of it comes later."""
        known = self._sources.get(source)
        if known is not None:
            known.waiting += seconds

    def waited(self, source: int) -> float:
        """Seconds that it drove since this was last asked; what a source waited for that is gone
        is of nobody.
        """
        known = self._sources.get(source)
        if known is None:
            return 0.0
        seconds, known.waiting = known.waiting, 0.0
        return seconds

    def _at_it(self) -> int:
        oldest = self._frames - max(_LEAST_SILENT, _SILENT * self._active)
        active = 0
        for source in self._sources.values():
            active += source.seen_at >= oldest
        self._active = active
        return active

    def _forget_those_gone(self) -> None:
        oldest = self._frames - _GONE
        for source in [s for s, known in self._sources.items() if known.seen_at < oldest]:
            del self._sources[source]
