"""How long was driven while truth came: the time in which a budget of false alarms is counted."""

from __future__ import annotations

from dataclasses import dataclass, field

# s; of a longer pause between two frames of a source no more was driving.
_LONGEST_STEP = 5.0
# s; a stamp that lies so far back is of a clock that was set back: time goes on from there.
_SET_BACK = 10.0
# s of driving without truth after which a source is no part of the vehicle any more.
_GONE = 30.0


@dataclass(slots=True)
class _Source:
    """latest_ns  event time of its truth
    seen_at    seconds driven by all when it last came
    waiting    seconds that it drove since its tracks were last taken in
    """

    latest_ns: int
    seen_at: float = 0.0
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
    _sources: dict[int, _Source] = field(default_factory=dict)

    def drive(self, source: int, stamp_ns: int) -> float:
        """Take in a frame with truth; the seconds that it adds."""
        known = self._sources.get(source)
        if known is None:
            self._forget_those_gone()
            self._sources[source] = _Source(stamp_ns, self.driven)
            return 0.0
        step = (stamp_ns - known.latest_ns) * 1e-9
        known.seen_at = self.driven
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
        oldest = self.driven - _GONE
        at_it = 0
        for source in self._sources.values():
            at_it += source.seen_at >= oldest
        return at_it

    def _forget_those_gone(self) -> None:
        oldest = self.driven - _GONE
        for source in [s for s, known in self._sources.items() if known.seen_at < oldest]:
            del self._sources[source]
