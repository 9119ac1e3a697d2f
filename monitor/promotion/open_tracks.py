"""Objects that may still be seen: labelled frames of all sources go in, whole tracks come out."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from monitor.calibration.clusters import cluster_id
from monitor.calibration.space import Space
from monitor.calibration.steps import finished
from monitor.promotion.labelled import LabelledRows
from monitor.promotion.labelled_time import LabelledTime
from monitor.promotion.open_track import OpenTrack, packed
from monitor.promotion.settings import TrackSettings
from monitor.promotion.whole_track import WholeTrack

# Work between two yields: rows and frames taken in, open tracks looked at, tracks made whole.
_ROWS, _FRAMES, _LOOKED_AT, _MADE = 256, 64, 1024, 16
# Tracks that were whole, or left out, and are still known when more comes of them.
_REMEMBERED = 65536
# An object that stays in view counts once more after so many times longest_ns: detectors use ids
# again, and what never counted again would make the sidecar deaf.
_COUNTS_AGAIN = 10
# Rows that may wait to be taken in; at 24,000 a second, those of five seconds.
_WAITING = 1 << 17


@dataclass(slots=True)
class OpenTracks:
    """Takes in labelled frames and gives out each object in each slice once, when it is whole.

    A unit is a track of a source in a slice; rows of no known track are a unit of their source
    and slice for every block of longest_ns. It is whole, in the time of the truth of its source,
    when nothing came of it for more than idle_ns (a block waits for its end), or longest_ns after
    its first row; or when its source is silent, that is another source has gone on for
    longest_ns + idle_ns. What comes of it later is left out, until nothing has come of it for
    longest_ns, or ten times that have gone by since it began: then it is another object, or as good
    as one. Rows whose time was over before they came are left out too.

    Holds at most most_open × 2 × rows_per_track rows, and frames that wait for closed().

    left_out  units for which there was no room, and frames, where too many waited
    """

    settings: TrackSettings
    left_out: int = 0
    _waiting: deque[LabelledRows] = field(default_factory=deque)
    _waiting_rows: int = 0
    _time: LabelledTime = field(init=False)
    _open: dict[int, OpenTrack] = field(default_factory=dict)
    # Of units that have ended: when they began, and when something last came of them. Oldest first;
    # those of which more comes go to the end.
    _known: OrderedDict[int, tuple[int, int]] = field(default_factory=OrderedDict)
    _ended: list[OpenTrack] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._time = LabelledTime(self.settings.longest_ns + self.settings.idle_ns)

    def add(self, rows: LabelledRows) -> None:
        """Take in a frame; quick, since frames are answered meanwhile."""
        if self._waiting_rows + rows.n > _WAITING:
            self.left_out += 1
            return
        self._waiting.append(rows)
        self._waiting_rows += rows.n

    def time(self, source: int) -> int | None:
        """How far the truth of a source has come, in ns; None where nothing has come of late."""
        return self._time.of(source)

    def closed(self) -> Generator[None, None, list[WholeTrack]]:
        """Tracks that have become whole, by the time of their last row; yields between steps.

        To be run to its end, one at a time; frames may be added meanwhile.
        """
        for frames in self._chunks():
            self._take(frames)
            yield
        yield from self._end_those_over()
        tracks: list[WholeTrack] = []
        while self._ended:
            # One after the other, since it also takes its time to let go of many rows.
            tracks.append(self._ended.pop().whole(self.settings.rows_per_track))
            if len(tracks) % _MADE == 0:
                yield
        tracks.sort(key=lambda track: track.ended_ns)
        return tracks

    def _chunks(self) -> Iterator[list[LabelledRows]]:
        """Frames that waited, in their order within each space; those of a chunk are of one."""
        gathered: dict[Space, tuple[list[LabelledRows], int]] = {}
        for _ in range(len(self._waiting)):
            frame = self._waiting.popleft()
            self._waiting_rows -= frame.n
            for piece in _pieces(frame):
                frames, rows = gathered.get(piece.space, ([], 0))
                if rows + piece.n > _ROWS or len(frames) == _FRAMES:
                    yield frames
                    frames, rows = [], 0
                frames.append(piece)
                gathered[piece.space] = frames, rows + piece.n
        for frames, _ in gathered.values():
            yield frames

    def _take(self, frames: Sequence[LabelledRows]) -> None:
        longest, most = self.settings.longest_ns, self.settings.rows_per_track
        rows = iter(zip(_keys(frames, longest), packed(frames), strict=True))
        looked = False
        for frame in frames:
            stamp, delay = frame.stamp_ns, frame.delay_ns
            now = self._time.see(frame.source, stamp)
            too_late = now - stamp >= longest
            for place, (key, row) in enumerate(islice(rows, frame.n)):
                if too_late:
                    continue
                unit = self._open.get(key)
                if unit is not None and unit.over(now, longest):
                    self._end(key, unit)
                    unit = None
                if unit is None:
                    if self._counted(key, stamp):
                        continue
                    unit = self._unit(frame, place)
                    if unit.over(now, longest):
                        continue
                    if len(self._open) >= self.settings.most_open and not looked:
                        # Labels that come all at once: of many tracks most may be over by now.
                        finished(self._end_those_over())
                        looked = True
                    if len(self._open) >= self.settings.most_open:
                        self._remember(key, stamp, stamp)
                        self.left_out += 1
                        continue
                    self._open[key] = unit
                unit.take(stamp, delay, row, most)

    def _unit(self, frame: LabelledRows, place: int) -> OpenTrack:
        """Begun by a row of a frame; the row itself is not taken in."""
        stamp, longest = frame.stamp_ns, self.settings.longest_ns
        first, idle = stamp, self.settings.idle_ns
        if frame.tracks is None or not frame.tracks.known[place]:
            first, idle = stamp // longest * longest, longest
        return OpenTrack(frame.space, int(frame.slices[place]), frame.source, first, stamp, idle)

    def _end_those_over(self) -> Generator[None, None, None]:
        now = self._time.by_source()
        for number, (key, unit) in enumerate(list(self._open.items()), 1):
            at = now.get(unit.source)
            if at is None or unit.over(at, self.settings.longest_ns):
                self._end(key, unit)
            if number % _LOOKED_AT == 0:
                yield

    def _end(self, key: int, unit: OpenTrack) -> None:
        del self._open[key]
        self._remember(key, unit.first_ns, unit.latest_ns)
        self._ended.append(unit)

    def _counted(self, key: int, stamp: int) -> bool:
        """Whether a unit has counted already, and does not yet count again."""
        known = self._known.get(key)
        if known is None:
            return False
        (began, latest), longest = known, self.settings.longest_ns
        later = stamp - latest >= longest or stamp - began >= _COUNTS_AGAIN * longest
        if later or began - stamp >= longest:
            del self._known[key]
            return False
        self._known[key] = began, max(latest, stamp)
        self._known.move_to_end(key)
        return True

    def _remember(self, key: int, began: int, latest: int) -> None:
        self._known[key] = began, latest
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)


def _pieces(frame: LabelledRows) -> Iterator[LabelledRows]:
    if frame.n <= _ROWS:
        yield frame
        return
    for start in range(0, frame.n, _ROWS):
        part = slice(start, start + _ROWS)
        yield replace(
            frame,
            slices=frame.slices[part],
            sent=frame.sent.take(part),
            truth=frame.truth[part],
            tracks=None if frame.tracks is None else frame.tracks.take(part),
        )


def _keys(frames: Sequence[LabelledRows], longest_ns: int) -> list[int]:
    """The unit of each row of frames of one space."""
    counts = [frame.n for frame in frames]
    known = np.zeros(sum(counts), np.uint64)
    # Of a row of no known track, its block; blocks before time 0 are large numbers.
    within = np.repeat(
        np.array([frame.stamp_ns // longest_ns for frame in frames], np.int64), counts
    ).astype(np.uint64)
    start = 0
    for frame in frames:
        if frame.tracks is not None:
            part = slice(start, start + frame.n)
            known[part] = frame.tracks.known
            np.copyto(within[part], frame.tracks.id, where=frame.tracks.known)
        start += frame.n
    keys: list[int] = cluster_id(
        (
            frames[0].space.number,
            known,
            within,
            np.concatenate([frame.slices for frame in frames]),
            np.repeat(np.array([frame.source for frame in frames], np.int64), counts),
        )
    ).tolist()
    return keys
