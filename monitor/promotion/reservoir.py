"""The newest whole tracks of each slice: what recalibrators are fitted on."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from monitor.promotion.settings import TrackSettings
from monitor.promotion.whole_track import WholeTrack


@dataclass(slots=True)
class _Kept:
    """tracks  in the order in which they came
    new     how many of them, at the end, came since the last fit
    """

    tracks: deque[WholeTrack] = field(default_factory=deque)
    new: int = 0


@dataclass(slots=True)
class Reservoir:
    """At most most_tracks of each slice, those that came last."""

    settings: TrackSettings
    _kept: dict[int, _Kept] = field(default_factory=dict)
    _nbytes: int = 0

    @property
    def nbytes(self) -> int:
        """What the arrays of all tracks take."""
        return self._nbytes

    def add(self, tracks: Sequence[WholeTrack]) -> None:
        """Keep tracks; in each slice the oldest make room."""
        for track in tracks:
            kept = self._kept.setdefault(track.slice, _Kept())
            kept.tracks.append(track)
            kept.new += 1
            self._nbytes += _nbytes(track)
            if len(kept.tracks) > self.settings.most_tracks:
                self._nbytes -= _nbytes(kept.tracks.popleft())
                kept.new = min(kept.new, len(kept.tracks))

    def slices(self) -> tuple[int, ...]:
        """Indices of those with tracks, ascending."""
        return tuple(sorted(index for index, kept in self._kept.items() if kept.tracks))

    def tracks(self, slice: int) -> tuple[WholeTrack, ...]:
        """Of a slice, in the order in which they came."""
        kept = self._kept.get(slice)
        return () if kept is None else tuple(kept.tracks)

    def new(self, slice: int) -> int:
        """How many of them came since taken()."""
        kept = self._kept.get(slice)
        return 0 if kept is None else kept.new

    def taken(self, slice: int) -> None:
        """A slice was fitted on its tracks: none of them is new any more."""
        if slice in self._kept:
            self._kept[slice].new = 0

    def keep_newest(self, slice: int, count: int) -> None:
        """Forget tracks of a slice, but for so many that came last: they are of another time."""
        kept = self._kept.get(slice)
        if kept is None:
            return
        while len(kept.tracks) > count:
            self._nbytes -= _nbytes(kept.tracks.popleft())
        kept.new = min(kept.new, len(kept.tracks))


def _nbytes(track: WholeTrack) -> int:
    sent = track.sent
    arrays = (sent.mean, sent.covariance, sent.diagonal, track.truth, track.stamp_ns)
    return sum(array.nbytes for array in arrays)
