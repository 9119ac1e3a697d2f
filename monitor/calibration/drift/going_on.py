"""What goes on when the program ends, as plain values: the clocks of sources, and of each slice its
tracks that are not over.
"""

from __future__ import annotations

from dataclasses import dataclass

from monitor.calibration.clusters import ClusterArray
from monitor.calibration.drift.track_records import Records
from monitor.calibration.space import FloatArray, IntArray


@dataclass(frozen=True, eq=False, slots=True)
class TimesState:
    """S sources, that which was not heard of for longest first; fields as in SourceTimes.

    heard  (S,) elapsed when each was last heard of
    """

    frames: int
    lives: int
    turns: int
    elapsed: int
    source: IntArray
    time_ns: IntArray
    life: IntArray
    turn: IntArray
    heard: IntArray


@dataclass(frozen=True, eq=False, slots=True)
class ClockState:
    """S sources; fields as in DrivingClock, whose `driven` is kept by itself."""

    frames: int
    active: int
    source: IntArray
    latest_ns: IntArray
    seen_at: IntArray
    waiting: FloatArray


@dataclass(frozen=True, eq=False, slots=True)
class WholeState:
    """TrackMeans without its tracks; fields as there."""

    times: TimesState
    late: int
    beyond: int
    left_out: int


@dataclass(frozen=True, eq=False, slots=True)
class GoingOn:
    """Of all slices together.

    frames   that ever came
    times    of TrackSeconds, and late, short and left_out of it
    whole    None where nobody asks for whole tracks
    """

    frames: int
    clock: ClockState
    times: TimesState
    late: int
    short: int
    left_out: int
    whole: WholeState | None


@dataclass(frozen=True, eq=False, slots=True)
class OpenSlice:
    """Of one slice.

    index       that it had: the keys of its tracks are made of it
    frame_size  detections in a frame, lately
    began       by Stage, s of driving with truth of it when learning began; None: it did not
    supporters  by chart, tracks that spoke for it (n,) and the latest such second of each (n,)
    seen        tracks that had truth of late (n,), and the number of the latest frame of each (n,)
    blocks      seconds of tracks that are not over, by key
    histories   of tracks that may go on, by key
    tracks      whole ones that are not over, by key; row ≥ 0 where they are not used yet
    sums        (m, C) of those that are not used yet, in their order
    """

    index: int
    frame_size: float
    began: tuple[float | None, ...]
    supporters: tuple[tuple[ClusterArray, IntArray], ...]
    seen: tuple[ClusterArray, IntArray]
    blocks: Records
    histories: Records
    tracks: Records
    sums: FloatArray

    @property
    def goes_on(self) -> bool:
        """Whether any track does."""
        return self.blocks.size + self.histories.size + self.tracks.size > 0
