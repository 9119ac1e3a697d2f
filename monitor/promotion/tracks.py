"""Whole tracks, the unit in which recalibrators are fitted and tried.

The errors of one object over successive frames are alike, so an object counts once. Labelled
frames of all sources go in; each object comes out as one track when no more of it is expected, by
the event time that the labels of its source have reached.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from typing import Any, ClassVar, Self

import numpy as np

from monitor.frames.detections import Estimates
from monitor.frames.frame import TrackIds
from monitor.frames.marks import CountFrom1
from monitor.frames.space import Columns, FloatArray, IntArray, Space
from monitor.promotion.records import TrackSettings
from monitor.statistics.clusters import cluster_id
from monitor.statistics.observations import finished

# The time of a source is the latest stamp among so many labelled frames: stragglers do not turn it
# back, and a clock that was set back, or a stamp from far ahead, is only believed or forgotten
# after so many.
_LATEST_OF = 16

# Labelled frames of other sources after which a source is silent, whatever their stamps say.
_SILENT_AFTER = 4096

# Work between two yields: rows and frames taken in, open tracks looked at, tracks made whole.
_ROWS, _FRAMES, _LOOKED_AT, _MADE = 1024, 64, 2048, 32

# Tracks that were whole, or left out, and are still known when more comes of them.
_REMEMBERED = 65536

# An object that stays in view counts once more after so many times longest_ns: detectors use ids
# again, and an id that never counted again would be ignored for good.
_COUNTS_AGAIN = 10

# Rows that may wait to be taken in; at 24,000 a second, those of five seconds.
MOST_WAITING = 1 << 17


@dataclass(frozen=True, slots=True)
class ClassKind:
    """Names the classes and the number of opinions.

    Tracks of different kinds are never fitted together.

    names     C ≥ 2 classes, in the order of the probabilities
    opinions  M
    """

    names: tuple[str, ...]
    opinions: CountFrom1

    # Part of the key of a unit.
    number: ClassVar[int] = 0


class _Track(Columns):
    """Has what every whole track has, of estimates or of class probabilities.

    slice     index
    stamp_ns  (n,) ascending
    delay_ns  delay of the latest of its labels
    source    whose clock the stamps are on
    """

    __slots__ = ()
    slice: int
    stamp_ns: IntArray
    delay_ns: int
    source: int

    @property
    def n(self) -> int:
        """Number of detections."""
        return int(self.stamp_ns.size)

    @property
    def ended_ns(self) -> int:
        """Event time of the last detection."""
        return int(self.stamp_ns[-1])

    def since(self, stamp_ns: int | None) -> Self | None:
        """Returns the part after a stamp, None where it is empty; all of it for None."""
        first = 0 if stamp_ns is None else int(np.searchsorted(self.stamp_ns, stamp_ns, "right"))
        if first == self.n:
            return None
        return self.take(slice(first, None)) if first else self


@dataclass(frozen=True, eq=False, slots=True)
class WholeTrack(_Track):
    """The labelled detections of one object in one slice, thinned evenly where there are many.

    sent   estimates as they came, (n ≥ 1, …)
    truth  (n, K)
    """

    space: Space
    slice: int
    sent: Estimates
    truth: FloatArray
    stamp_ns: IntArray
    delay_ns: int
    source: int = 0


@dataclass(frozen=True, eq=False, slots=True)
class ClassTrack(_Track):
    """The class probabilities of one object, with its true class, thinned as a WholeTrack is.

    probabilities  (n ≥ 1, M, C) as they came
    label          (n,) true class, in 0 … C − 1
    """

    kind: ClassKind
    slice: int
    probabilities: FloatArray
    label: IntArray
    stamp_ns: IntArray
    delay_ns: int
    source: int = 0


AnyTrack = WholeTrack | ClassTrack


@dataclass(frozen=True, eq=False, slots=True)
class LabelledRows(Columns):
    """Labelled detections of one frame, n ≥ 1: recalibrators are fitted and tried on them.

    slices    (n,) slice index
    sent      estimates as they came, (n, …)
    truth     (n, K) finite
    stamp_ns  event time of the frame
    delay_ns  delay of the labels after the frame, in the time of its stream; ≥ 0
    tracks    track of each detection in its source; None without track ids
    source    the numbers of tracks are unique within a source
    """

    space: Space
    slices: IntArray
    sent: Estimates
    truth: FloatArray
    stamp_ns: int
    delay_ns: int
    tracks: TrackIds | None
    source: int

    @property
    def n(self) -> int:
        """Number of detections."""
        return int(self.slices.size)

    @property
    def kind(self) -> Space:
        """Returns what rows have in common that are packed together."""
        return self.space

    def columns(self) -> dict[str, Any]:
        """Returns what is packed, by the fields of row_layout."""
        sent = self.sent
        return {
            "mean": sent.mean,
            "covariance": sent.covariance,
            "truth": self.truth,
            "diagonal": sent.diagonal,
            "score": np.full(self.n, np.nan) if sent.score is None else sent.score,
        }


@dataclass(frozen=True, eq=False, slots=True)
class LabelledClasses(Columns):
    """Class probabilities of one frame with their true classes, n ≥ 1; else as LabelledRows.

    probabilities  (n, M, C) as they came
    label          (n,) true class
    """

    kind: ClassKind
    slices: IntArray
    probabilities: FloatArray
    label: IntArray
    stamp_ns: int
    delay_ns: int
    tracks: TrackIds | None
    source: int

    @property
    def n(self) -> int:
        """Number of detections."""
        return int(self.slices.size)

    def columns(self) -> dict[str, Any]:
        """Returns what is packed, by the fields of row_layout."""
        return {"probabilities": self.probabilities, "label": self.label}


AnyLabelled = LabelledRows | LabelledClasses
AnyKind = Space | ClassKind


@dataclass(slots=True)
class _Source:
    """Progress of one source.

    stamps    of its latest labelled frames
    at_frame  number of its latest labelled frame, among those of all sources
    at_ns     latest time of any source at that frame
    """

    stamps: deque[int] = field(default_factory=lambda: deque(maxlen=_LATEST_OF))
    at_frame: int = 0
    at_ns: int = 0


@dataclass(slots=True)
class LabelledTime:
    """Event time that labels have reached, source by source.

    One source may be labelled at once, another hours later.

    silent_ns  a source without labels is silent when another has gone on for so long
    """

    silent_ns: int
    _sources: dict[int, _Source] = field(default_factory=dict)
    _furthest_ns: int = 0
    _frames: int = 0

    def see(self, source: int, stamp_ns: int) -> int:
        """Takes in a labelled frame; returns the time of its source, ns, never before the stamp."""
        self._frames += 1
        seen = self._sources.setdefault(source, _Source())
        seen.stamps.append(stamp_ns)
        now = max(seen.stamps)
        self._furthest_ns = max(self._furthest_ns, now) if self._frames > 1 else now
        # Not its own time: a source that is labelled hours after the others is not silent.
        seen.at_frame, seen.at_ns = self._frames, self._furthest_ns
        return now

    def of(self, source: int) -> int | None:
        """Returns the time of a source, ns; None where it is silent."""
        seen = self._sources.get(source)
        return None if seen is None else max(seen.stamps)

    def by_source(self) -> dict[int, int]:
        """Returns the time of every source that is not silent, ns, and forgets the others."""
        time = {source: max(seen.stamps) for source, seen in self._sources.items()}
        if time:
            self._furthest_ns = max(time.values())
        for source, seen in list(self._sources.items()):
            outpaced = self._furthest_ns - seen.at_ns > self.silent_ns
            if outpaced or self._frames - seen.at_frame > _SILENT_AFTER:
                del self._sources[source], time[source]
        return time


@cache
def row_layout(kind: AnyKind) -> np.dtype[Any]:
    """Returns the layout of a stored row."""
    stamp = ("stamp_ns", np.int64)
    if isinstance(kind, ClassKind):
        shape = kind.opinions, len(kind.names)
        return np.dtype([stamp, ("probabilities", np.float64, shape), ("label", np.int64)])
    k = kind.k
    return np.dtype(
        [
            stamp,
            ("mean", np.float64, (k,)),
            ("covariance", np.float64, (k, k)),
            ("truth", np.float64, (k,)),
            ("diagonal", np.bool_),
            ("score", np.float64),
        ]
    )


def packed_rows(frames: Sequence[AnyLabelled]) -> bytes:
    """Packs the rows of some frames of one kind, one after the other, as in row_layout."""
    layout = row_layout(frames[0].kind)
    counts = [frame.n for frame in frames]
    rows = np.zeros(sum(counts), layout)
    rows["stamp_ns"] = np.repeat(np.array([frame.stamp_ns for frame in frames], np.int64), counts)
    columns = [frame.columns() for frame in frames]
    for name in columns[0]:
        rows[name] = np.concatenate([one[name] for one in columns])
    return rows.tobytes()


@dataclass(slots=True)
class OpenTrack:
    """A unit that is not whole yet: one object in one slice.

    first_ns   event time of its earliest row; of a block, its beginning
    latest_ns  event time of its latest row
    idle_ns    it is over when no row came for longer
    longest_ns after its first row it is over
    rows       packed: every stride-th of those that were seen, at most 2 × rows_per_track
    """

    kind: AnyKind
    slice: int
    source: int
    first_ns: int
    latest_ns: int
    idle_ns: int
    longest_ns: int
    delay_ns: int = 0
    seen: int = 0
    stride: int = 1
    rows: list[bytes] = field(default_factory=list)

    def over(self, now_ns: int) -> bool:
        """Tells whether it is whole at a time of its source, or that was set back before it."""
        return (
            now_ns - self.latest_ns > self.idle_ns
            or now_ns - self.first_ns >= self.longest_ns
            or self.first_ns - now_ns > self.longest_ns + self.idle_ns
        )

    def thin(self) -> None:
        """Keeps every other row: 0, 2s, 4s, … of stride s."""
        del self.rows[1::2]
        self.stride *= 2


def whole_tracks(units: Sequence[OpenTrack], most: int) -> Iterator[AnyTrack]:
    """Makes the tracks of the rows of some units of one kind, of one slice, so far.

    Rows are by stamp, at most so many, evenly spread.
    """
    layout = row_layout(units[0].kind)
    rows = np.frombuffer(b"".join([row for unit in units for row in unit.rows]), layout)
    names = layout.names or ()
    columns = [np.ascontiguousarray(rows[name]) for name in names]
    end = 0
    for unit in units:
        start, end = end, end + len(unit.rows)
        own = [column[start:end] for column in columns]
        stamps = own[0]
        many = end - start > most
        if many or (stamps[1:] < stamps[:-1]).any():
            order = np.argsort(stamps, kind="stable")
            if many:
                order = order[np.linspace(0, order.size - 1, most).round().astype(np.int64)]
            own = [column[order] for column in own]
        if isinstance(unit.kind, ClassKind):
            stamps, opinions, label = own
            yield ClassTrack(
                unit.kind, unit.slice, opinions, label, stamps, unit.delay_ns, unit.source
            )
        else:
            stamps, mean, covariance, truth, diagonal, score = own
            sent = Estimates(mean, covariance, diagonal, score)
            yield WholeTrack(unit.kind, unit.slice, sent, truth, stamps, unit.delay_ns, unit.source)


@dataclass(slots=True)
class OpenTracks:
    """Takes in labelled frames and gives out each object in each slice once, when it is whole.

    A unit is a track of a source in a slice; rows of no known track are a unit of their source
    and slice for every block of longest_ns. A unit is whole, in the time of its source, when no row
    came for more than idle_ns (a block waits for its end), or longest_ns after its first row; or
    when its source is silent, that is another source has gone on for longest_ns + idle_ns. Later
    rows of the unit are left out, until none has come for longest_ns, or ten times that has gone by
    since it began: then it is another object, or as good as one. Rows that are longest_ns older
    than the time of their source are left out too.

    Holds at most most_open × 2 × rows_per_track rows, and frames that wait for closed().

    left_out      units for which there was no room, and frames, where too many waited
    most_waiting  rows that may wait to be taken in
    """

    settings: TrackSettings
    left_out: int = 0
    most_waiting: int = MOST_WAITING
    _waiting: deque[AnyLabelled] = field(default_factory=deque)
    _waiting_rows: int = 0
    _time: LabelledTime = field(init=False)
    _open: dict[int, OpenTrack] = field(default_factory=dict)
    # Units that have ended: when they began, and when their last row came. Oldest first; those
    # of which more comes go to the end.
    _known: OrderedDict[int, tuple[int, int]] = field(default_factory=OrderedDict)
    _ended: list[OpenTrack] = field(default_factory=list)
    # Whether open tracks were looked at for the rows that are taken in.
    _looked: bool = False

    def __post_init__(self) -> None:
        self._time = LabelledTime(self.settings.longest_ns + self.settings.idle_ns)

    def add(self, rows: AnyLabelled) -> None:
        """Takes in a frame; quick, since frames are answered meanwhile."""
        if self._waiting_rows + rows.n > self.most_waiting:
            self.left_out += 1
            return
        self._waiting.append(rows)
        self._waiting_rows += rows.n

    def time(self, source: int) -> int | None:
        """Returns the event time that labels of a source have reached, ns; None: it is silent."""
        return self._time.of(source)

    def closed(self) -> Generator[None, None, list[AnyTrack]]:
        """Returns tracks that have become whole, by the time of their last row.

        Yields between steps. To be run to its end, one at a time; frames may be added meanwhile.
        """
        for frames in self._chunks():
            self._take(frames)
            yield
        yield from self._end_those_over()
        tracks: list[AnyTrack] = []
        while self._ended:
            # Some after the other, since it also takes its time to let go of many rows.
            some = self._ended[: -_MADE - 1 : -1]
            del self._ended[-_MADE:]
            some.sort(key=lambda unit: (unit.kind.number, unit.slice))
            for _, alike in groupby(some, lambda unit: (unit.kind, unit.slice)):
                tracks += whole_tracks(list(alike), self.settings.rows_per_track)
            yield
        tracks.sort(key=lambda track: track.ended_ns)
        return tracks

    def _chunks(self) -> Iterator[list[AnyLabelled]]:
        """Groups the frames that waited by kind, in their order; those of a chunk are of one."""
        gathered: dict[AnyKind, tuple[list[AnyLabelled], int]] = {}
        for _ in range(len(self._waiting)):
            frame = self._waiting.popleft()
            self._waiting_rows -= frame.n
            for piece in _pieces(frame):
                frames, rows = gathered.get(piece.kind, ([], 0))
                if rows + piece.n > _ROWS or len(frames) == _FRAMES:
                    yield frames
                    frames, rows = [], 0
                frames.append(piece)
                gathered[piece.kind] = frames, rows + piece.n
        for frames, _ in gathered.values():
            yield frames

    def _take(self, frames: Sequence[AnyLabelled]) -> None:
        longest, most = self.settings.longest_ns, 2 * self.settings.rows_per_track
        keys, packed = _keys(frames, longest), packed_rows(frames)
        size, known, first = row_layout(frames[0].kind).itemsize, self._open.get, 0
        self._looked = False
        for frame in frames:
            stamp, delay, begin = frame.stamp_ns, frame.delay_ns, first
            now = self._time.see(frame.source, stamp)
            first += frame.n
            if now - stamp >= longest:
                continue
            for place in range(begin, first):
                key = keys[place]
                unit = known(key)
                if unit is None or unit.over(now):
                    unit = self._begun(key, unit, frame, place - begin, now)
                    if unit is None:
                        continue
                # Rows come in any order.
                if stamp > unit.latest_ns:
                    unit.latest_ns = stamp
                elif stamp < unit.first_ns:
                    unit.first_ns = stamp
                if delay > unit.delay_ns:
                    unit.delay_ns = delay
                seen = unit.seen
                unit.seen = seen + 1
                if seen % unit.stride == 0:
                    if len(unit.rows) == most:
                        # The next of those that stay is this one, of number most · s.
                        unit.thin()
                    unit.rows.append(packed[place * size : (place + 1) * size])

    def _begun(
        self, key: int, before: OpenTrack | None, frame: AnyLabelled, place: int, now: int
    ) -> OpenTrack | None:
        """Begins a unit at a row of a frame, which is not taken in; None: the row is left out.

        before  the unit of this key, which is over
        """
        stamp = frame.stamp_ns
        if before is not None:
            self._end(key, before)
        if self._counted(key, stamp):
            return None
        unit = self._unit(frame, place)
        if unit.over(now):
            return None
        most = self.settings.most_open
        if len(self._open) >= most and not self._looked:
            # Labels that come all at once: of many tracks most may be over by now.
            finished(self._end_those_over())
            self._looked = True
        if len(self._open) >= most:
            self._remember(key, stamp, stamp)
            self.left_out += 1
            return None
        self._open[key] = unit
        return unit

    def _unit(self, frame: AnyLabelled, place: int) -> OpenTrack:
        """Begins a unit at a row of a frame, which is not taken in."""
        stamp, longest = frame.stamp_ns, self.settings.longest_ns
        first, idle = stamp, self.settings.idle_ns
        if frame.tracks is None or not frame.tracks.known[place]:
            first, idle = stamp // longest * longest, longest
        slice = int(frame.slices[place])
        return OpenTrack(frame.kind, slice, frame.source, first, stamp, idle, longest)

    def _end_those_over(self) -> Generator[None, None, None]:
        now = self._time.by_source()
        for number, (key, unit) in enumerate(list(self._open.items()), 1):
            at = now.get(unit.source)
            if at is None or unit.over(at):
                self._end(key, unit)
            if number % _LOOKED_AT == 0:
                yield

    def _end(self, key: int, unit: OpenTrack) -> None:
        del self._open[key]
        self._remember(key, unit.first_ns, unit.latest_ns)
        self._ended.append(unit)

    def _counted(self, key: int, stamp: int) -> bool:
        """Tells whether a unit has counted already, and does not yet count again."""
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


def _pieces(frame: AnyLabelled) -> Iterator[AnyLabelled]:
    for start in range(0, frame.n, _ROWS):
        yield frame.take(slice(start, start + _ROWS))


def _keys(frames: Sequence[AnyLabelled], longest_ns: int) -> list[int]:
    """Numbers the unit of each row of frames of one kind."""
    none = TrackIds(np.zeros(_ROWS, np.uint64), np.zeros(_ROWS, bool))
    tracks = TrackIds.joined([frame.tracks or none.take(slice(frame.n)) for frame in frames])
    times = [(frame.stamp_ns // longest_ns, frame.source) for frame in frames]
    block, source = np.repeat(np.array(times, np.int64).T, [frame.n for frame in frames], axis=1)
    # A row of no known track has its block; blocks before time 0 are large numbers.
    within = np.where(tracks.known, tracks.id, block.astype(np.uint64))
    slices = np.concatenate([frame.slices for frame in frames])
    known = tracks.known.astype(np.uint64)
    keys: list[int] = cluster_id((frames[0].kind.number, known, within, slices, source)).tolist()
    return keys
