"""Seconds of tracks: the mean ln NEES of one track over one second of event time.

The tracks that may go on are remembered, in bounded number, so that each second comes with what its
track was like before. They are kept in tables by key, of which records are moved as plain bytes, by
take, compress and the functions here: indexing a structured array moves them field by field, ten
times slower. Which second it is, what is late and when a source begins anew is told by the source's
own time, as its frames with ground truth come; stamps of different sources are never compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from monitor.drift.evidence import DriftSettings
from monitor.drift.usual import BLOCK_NS, Blocks, WatchedRows
from monitor.frames.space import BoolArray, FloatArray, IntArray
from monitor.statistics.clusters import ALONE, ClusterArray

# Structured, (n,), with a field `key`.
Records = npt.NDArray[np.void]


def found(table: Records, key: ClusterArray) -> tuple[IntArray, BoolArray]:
    """Where keys (n,) are in a table whose keys are unique, and whether they are there."""
    place = np.searchsorted(table["key"], key)
    there = place < table.size
    there[there] = table["key"][place[there]] == key[there]
    return place, there


def joined(tables: tuple[Records, ...]) -> Records:
    """All records by key; those of one key in the order of the tables."""
    kind = tables[0].dtype
    together = np.concatenate([_plain(table) for table in tables]).view(kind)
    return together.take(np.argsort(together["key"], kind="stable"))


def with_more(table: Records, more: Records) -> Records:
    """Those too whose keys are not there yet; keys of both are unique."""
    return joined((table, more.compress(~found(table, more["key"])[1])))


def put(table: Records, place: IntArray, records: Records) -> None:
    """Lay records (n,) into a table at places (n,)."""
    _plain(table)[place] = _plain(records)


def copied(table: Records) -> Records:
    """A table of its own."""
    return _plain(table).copy().view(table.dtype)


def _plain(table: Records) -> Records:
    return table.view(f"V{table.dtype.itemsize}")


def by_slice(table: Records, slices: int) -> list[Records]:
    """The records of each slice, by key."""
    ordered = table.take(np.argsort(table["slice"], kind="stable"))
    edges = np.searchsorted(ordered["slice"], np.arange(slices + 1)).tolist()
    return [copied(ordered[begin:end]) for begin, end in pairwise(edges)]


def longest_unseen(arrived: IntArray, many: int) -> BoolArray:
    """(n,) the `many` that were not seen for longest; of equals, those that come first.

    arrived  (n,) number of the last frame with each
    many     0 or less: none
    """
    chosen = np.zeros(arrived.size, bool)
    chosen[np.argsort(arrived, kind="stable")[: max(many, 0)]] = True
    return chosen


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
    """State over a restart of all slices together.

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
    """State over a restart of the open tracks of one slice.

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
        """Tells whether any track goes on."""
        return self.blocks.size + self.histories.size + self.tracks.size > 0


# A source that is set back by more begins anew: a drive played again, or after one wild stamp.
SET_BACK_NS = 10 * BLOCK_NS


# A source is over when, since it was last heard of, all of them moved on by this on average.
# Long, because labels of one source may come in batches of minutes while others wait.
SILENT_NS = 600 * BLOCK_NS


@dataclass(frozen=True, eq=False, slots=True)
class Arrivals:
    """When F frames came.

    number   (F,) counts all frames that ever came
    time_ns  (F,) time of their source by then: its latest stamp
    life     (F,) of their source; another one where it begins anew, unique over sources
    turn     (F,) the second of their source by then; unique over sources, lives and seconds
    ended    turns that are over since the frames before, or came and went among these
    by       position of the frame that showed it, of each of them
    """

    number: IntArray
    time_ns: IntArray
    life: IntArray
    turn: IntArray
    ended: tuple[int, ...]
    by: tuple[int, ...]


@dataclass(slots=True)
class _Source:
    """elapsed: of all sources when it was last heard of."""

    time_ns: int
    life: int
    turn: int
    elapsed: int = 0


@dataclass(slots=True)
class SourceTimes:
    """Times of all sources that may go on.

    most  sources at a time; those that were not heard of for longest are over
    """

    most: int
    _frames: int = 0
    _lives: int = 0
    _turns: int = 0
    # Σ over sources of how far each moved.
    _elapsed: int = 0
    # The one not heard of for longest comes first.
    _sources: dict[int, _Source] = field(default_factory=dict)

    def state(self) -> TimesState:
        """A value that `restore` makes the same times of."""
        rows = [(name, s.time_ns, s.life, s.turn, s.elapsed) for name, s in self._sources.items()]
        columns = np.array(rows, np.int64).reshape(-1, 5).T
        return TimesState(self._frames, self._lives, self._turns, self._elapsed, *columns)

    def restore(self, state: TimesState) -> None:
        """Go on from there; in place of all."""
        self._frames, self._lives = state.frames, state.lives
        self._turns, self._elapsed = state.turns, state.elapsed
        columns = state.time_ns, state.life, state.turn, state.heard
        rows = zip(state.source.tolist(), *(one.tolist() for one in columns), strict=True)
        self._sources = {name: _Source(*row) for name, *row in rows}

    def take(self, source: IntArray, stamp_ns: IntArray) -> Arrivals:
        """F frames in the order in which their truth came: (F,) each.

        One by one, so that it does not matter how frames are cut into calls.
        """
        ended: list[int] = []
        by: list[int] = []
        times, lives, turns = [], [], []
        for frame, (name, stamp) in enumerate(zip(source.tolist(), stamp_ns.tolist(), strict=True)):
            at = self._moved(name, stamp, ended)
            by += [frame] * (len(ended) - len(by))
            times.append(at.time_ns)
            lives.append(at.life)
            turns.append(at.turn)
        number = self._frames + np.arange(len(times), dtype=np.int64)
        self._frames += len(times)
        return Arrivals(
            number,
            np.array(times, np.int64),
            np.array(lives, np.int64),
            np.array(turns, np.int64),
            tuple(ended),
            tuple(by),
        )

    def _moved(self, name: int, stamp: int, ended: list[int]) -> _Source:
        at = self._sources.pop(name, None)
        if at is not None and stamp < at.time_ns - SET_BACK_NS:
            ended.append(at.turn)
            at = None
        if at is None:
            self._lives += 1
            self._turns += 1
            at = _Source(stamp, self._lives, self._turns)
        elif stamp > at.time_ns:
            # A wild stamp must not make the others look silent.
            self._elapsed += min(stamp - at.time_ns, BLOCK_NS)
            if stamp // BLOCK_NS != at.time_ns // BLOCK_NS:
                ended.append(at.turn)
                self._turns += 1
                at.turn = self._turns
            at.time_ns = stamp
        at.elapsed = self._elapsed
        self._sources[name] = at
        self._end_silent(ended)
        return at

    def _end_silent(self, ended: list[int]) -> None:
        sources = self._sources
        while True:
            name, longest = next(iter(sources.items()))
            silent = self._elapsed - longest.elapsed > SILENT_NS * len(sources)
            if not silent and len(sources) <= self.most:
                return
            ended.append(sources.pop(name).turn)

    def now(self, life: IntArray) -> tuple[IntArray, BoolArray]:
        """Time of the source of each life (n,), and whether that life goes on; 0 where not."""
        goes_on = sorted((at.life, at.time_ns) for at in self._sources.values())
        # A last entry that is no life, so that every search ends at an entry.
        lives, times = np.array([*goes_on, (np.iinfo(np.int64).max, 0)], np.int64).T
        place = np.searchsorted(lives, life)
        there: BoolArray = lives[place] == life
        time_ns: IntArray = np.where(there, times[place], 0)
        return time_ns, there


# A mean over fewer detections varies much more than the others do, and the model of levels has
# one ω for all: 5 are half a second at 10 Hz.
FEWEST = 5


# A detection that meets its truth exactly says no more than one that nearly does: ln 0 would
# outweigh the rest of its second. At K = 1, E max(ln e, ln 1e-6) exceeds E ln e by 0.0016.
_SMALLEST_NEES = 1e-6


# ln NEES is kept on this grid: sums of it are exact, however rows are cut into calls.
_UNIT = 2.0**-24


BLOCK = np.dtype(
    [
        ("key", np.uint64),
        ("turn", np.int64),
        ("source", np.int64),
        ("life", np.int64),
        ("slice", np.int64),
        ("opened", np.int64),  # time of its source when its first detection came
        ("last", np.int64),  # and its last
        ("arrived", np.int64),
        ("count", np.int64),
        ("changed", np.bool_),
        ("sums", np.float64, (2,)),
    ]
)


HISTORY = np.dtype(
    [
        ("key", np.uint64),
        ("life", np.int64),
        ("slice", np.int64),
        ("last", np.int64),
        ("arrived", np.int64),
        ("before", np.int64),  # blocks that counted
        ("first", np.int64),  # second of the first of them
        ("total", np.float64, (2,)),  # Σ y over them
        ("common_total", np.float64, (2,)),  # Σ of the common levels of their seconds
    ]
)


_NO_LIFE = -1


@dataclass(slots=True)
class TrackSeconds:
    """Blocks that are not over, and the histories of their tracks.

    A block is over when truth of a later second of its source has come. A track is a new one
    after more than idle_seconds without detections in the time of its source, after its source
    began anew, and when it had to make room: there are never more than most_open.

    times     of its sources
    late      detections of a second that was over already
    short     detections of blocks with fewer than FEWEST of them
    left_out  detections of blocks that had to make room
    """

    settings: DriftSettings
    late: int = 0
    short: int = 0
    left_out: int = 0
    times: SourceTimes = field(init=False)
    _open: Records = field(init=False)
    _history: Records = field(init=False)

    def __post_init__(self) -> None:
        self.times = SourceTimes(self.settings.most_open)
        self._open = np.zeros(0, BLOCK)
        self._history = np.zeros(0, HISTORY)

    @property
    def tracks(self) -> int:
        """How many are followed."""
        return int(np.count_nonzero(self._only_past())) + self._open.size

    def take(self, rows: WatchedRows) -> Blocks:
        """Blocks that are over by these rows, by source, time and key.

        Rows of no known track are not taken. Frames without rows tell the time as well.
        How rows are cut into calls changes nothing, unless there are more than most_open tracks.
        """
        arrivals = self.times.take(rows.source, rows.stamp_ns)
        self._add(self._gathered(rows, arrivals))
        over, by = _ended(self._open["turn"], arrivals)
        if over.any():
            blocks = self._closed(self._open.compress(over), by[over])
            self._open = self._open.compress(~over)
        else:
            blocks = _no_blocks()
        # Also where nothing is over now: who is followed must not hang on how rows are cut.
        self._end_idle()
        self._make_room()
        return blocks

    def explain(self, blocks: Blocks, common: FloatArray) -> None:
        """Adds the common level of each of m blocks, (2, m), to the history of its track."""
        place, there = found(self._history, blocks.track)
        # Another track may have the same key by now.
        there[there] = self._history["first"][place[there]] == blocks.first[there]
        np.add.at(self._history["common_total"], place[there], common[:, there].T)

    def reckon_from(self, slice: int, stage: int, shift: float) -> None:
        """Take common levels of a slice from another usual level, which lies lower by `shift`."""
        ours = self._history["slice"] == slice
        self._history["common_total"][ours, stage] += shift * self._history["before"][ours]

    def forget(self, slices: IntArray) -> None:
        """Tracks in these slices begin anew."""
        self._open = self._open.compress(~np.isin(self._open["slice"], slices))
        self._history = self._history.compress(~np.isin(self._history["slice"], slices))

    def of_slices(self, slices: int) -> list[tuple[Records, Records]]:
        """Lists by slice its blocks that are not over and the histories of its tracks, by key."""
        both = by_slice(self._open, slices), by_slice(self._history, slices)
        return list(zip(*both, strict=True))

    def go_on(self, blocks: Records, histories: Records) -> None:
        """Tracks that go on, of times that do."""
        known = self._open, self._history
        self._open, self._history = map(with_more, known, (blocks, histories))

    def _gathered(self, rows: WatchedRows, arrivals: Arrivals) -> Records:
        """Makes blocks of these rows alone: by key, and those of one key in order of time."""
        late = rows.stamp_ns // BLOCK_NS < arrivals.time_ns // BLOCK_NS
        tracked = rows.track != ALONE
        if late.any():
            of_late = late[rows.frame] & tracked
            self.late += int(np.count_nonzero(of_late))
            tracked &= ~of_late
        taken = np.flatnonzero(tracked)
        # A track is of one source, whose turns ascend: stable order by key is order by turn too.
        order = taken[np.argsort(rows.track[taken], kind="stable")]
        if order.size == 0:
            return np.zeros(0, BLOCK)
        key, frame = rows.track[order], rows.frame[order]
        turn = arrivals.turn[frame]
        new = np.append(True, (key[1:] != key[:-1]) | (turn[1:] != turn[:-1]))
        start = np.flatnonzero(new)
        blocks = np.zeros(start.size, BLOCK)
        size = np.diff(start, append=key.size)
        first, last = frame[start], frame[start + size - 1]
        logs = rows.nees.take(order, axis=1)
        np.log(np.maximum(logs, _SMALLEST_NEES, out=logs), out=logs)
        np.rint(np.multiply(logs, 1 / _UNIT, out=logs), out=logs)
        blocks["key"] = key[start]
        blocks["turn"] = turn[start]
        blocks["source"] = rows.source[first]
        blocks["life"] = arrivals.life[first]
        blocks["slice"] = rows.slices[order[start]]
        blocks["opened"] = arrivals.time_ns[first]
        blocks["last"] = arrivals.time_ns[last]
        blocks["arrived"] = arrivals.number[last]
        blocks["count"] = size
        blocks["changed"] = np.logical_or.reduceat(rows.changed[frame], start)
        blocks["sums"] = np.add.reduceat(logs, start, axis=1).T * _UNIT
        return blocks

    def _add(self, blocks: Records) -> None:
        ours = self._open
        place, there = found(ours, blocks["key"])
        there[there] = ours["turn"][place[there]] == blocks["turn"][there]
        place, more = place[there], blocks.compress(there)
        grown = ours.take(place)
        for name in ("count", "sums"):
            grown[name] += more[name]
        for name in ("last", "arrived"):
            grown[name] = more[name]
        grown["changed"] |= more["changed"]
        put(ours, place, grown)
        if not there.all():
            self._open = joined((ours, blocks.compress(~there)))

    def _closed(self, over: Records, by: IntArray) -> Blocks:
        """over: blocks by key, and those of one key in order of time; by: after which frame."""
        key = over["key"]
        new = np.append(True, key[1:] != key[:-1])
        start = np.flatnonzero(new)
        track = np.cumsum(new) - 1
        # Of the blocks of one track that close together, each counts the earlier ones.
        rank = np.arange(key.size) - start[track]
        history = np.zeros(start.size, HISTORY)
        place, there = found(self._history, key[start])
        history["life"] = _NO_LIFE
        put(history, np.flatnonzero(there), self._history.take(place[there]))
        earlier = np.zeros(key.size, HISTORY)
        for number in range(int(rank.max()) + 1):
            at = np.flatnonzero(rank == number)
            then, now = self._gone_on(history.take(track[at]), over.take(at))
            put(earlier, at, then)
            put(history, track[at], now)
        stays = np.ones(self._history.size, bool)
        stays[place[there]] = False
        self._history = joined((self._history.compress(stays), history))

        counts = over["count"] >= FEWEST
        self.short += int(over["count"][~counts].sum())
        return _blocks(over.compress(counts), earlier.compress(counts), by[counts])

    def _gone_on(self, history: Records, block: Records) -> tuple[Records, Records]:
        """Histories before and after one more block each."""
        anew = (history["life"] != block["life"]) | (
            block["opened"] - history["last"] > self._idle_ns
        )
        history["before"][anew] = 0
        history["total"][anew] = 0.0
        history["common_total"][anew] = 0.0
        for name in ("key", "life", "slice", "last", "arrived"):
            history[name] = block[name]
        second = block["opened"] // BLOCK_NS
        history["first"] = np.where(history["before"] > 0, history["first"], second)
        before = copied(history)
        counts = block["count"] >= FEWEST
        history["before"] += counts
        history["total"] += np.where(counts[:, None], block["sums"] / block["count"][:, None], 0.0)
        return before, history

    @property
    def _idle_ns(self) -> int:
        return round(self.settings.idle_seconds * 1e9)

    def _end_idle(self) -> None:
        # What may still join a block of the present second came when the second began, at the
        # earliest: a track that is idle by then can have no more blocks.
        time_ns, lives = self.times.now(self._history["life"])
        began = time_ns // BLOCK_NS * BLOCK_NS
        goes_on = lives & (began - self._history["last"] <= self._idle_ns)
        self._history = self._history.compress(goes_on)

    def _only_past(self) -> BoolArray:
        """Which histories are of tracks without an open block."""
        return ~found(self._open, self._history["key"])[1]

    def _make_room(self) -> None:
        if self._open.size + self._history.size <= self.settings.most_open:
            return
        past = self._only_past()
        key, arrived = (
            np.append(self._history[name][past], self._open[name]) for name in ("key", "arrived")
        )
        gone = key[longest_unseen(arrived, key.size - self.settings.most_open)]
        leaves = np.isin(self._open["key"], gone)
        self.left_out += int(self._open["count"][leaves].sum())
        self._open = self._open.compress(~leaves)
        self._history = self._history.compress(~np.isin(self._history["key"], gone))


def _ended(turn: IntArray, arrivals: Arrivals) -> tuple[BoolArray, IntArray]:
    """Which of these turns are over, and the position of the frame that showed it."""
    order = np.argsort(np.array(arrivals.ended, np.int64))
    # A turn after the last one is none of them, and neither is the last one then.
    ends = np.append(np.array(arrivals.ended, np.int64)[order], -1)
    by = np.append(np.array(arrivals.by, np.int64)[order], -1)
    place = np.searchsorted(ends[:-1], turn)
    is_over: BoolArray = ends[place] == turn
    return is_over, by[place]


def _blocks(block: Records, earlier: Records, by: IntArray) -> Blocks:
    # Turns of one source ascend with time, even where it is set back.
    order = np.lexsort((block["key"], block["turn"], block["source"]))
    block, earlier = block.take(order), earlier.take(order)
    before = earlier["before"].copy()
    return Blocks(
        frame=by[order],
        source=block["source"].copy(),
        second=block["opened"] // BLOCK_NS,
        slices=block["slice"].copy(),
        track=block["key"].copy(),
        level=(block["sums"] / block["count"][:, None]).T.copy(),
        count=block["count"].copy(),
        changed=block["changed"].copy(),
        before=before,
        mean=(earlier["total"] / np.maximum(before, 1)[:, None]).T.copy(),
        first=earlier["first"].copy(),
        common_total=earlier["common_total"].T.copy(),
    )


@cache
def _no_blocks() -> Blocks:
    return _blocks(np.zeros(0, BLOCK), np.zeros(0, HISTORY), np.zeros(0, np.int64))
