"""Seconds of tracks: the levels of one track over one second of event time, in all channels.

The tracks that may go on are remembered, in bounded number, so that each second comes with what its
track was like before. What evidence makes of the seconds is said in evidence.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from monitor.drift import correlation
from monitor.drift.channels import CHANNELS, channels, observed
from monitor.drift.charts import Stage
from monitor.drift.clocks import Arrivals, SourceTimes
from monitor.drift.correlation import Records
from monitor.drift.evidence import DriftSettings
from monitor.drift.levels import far_outside
from monitor.drift.usual import BLOCK_NS, WatchedRows
from monitor.frames.space import BoolArray, Columns, FloatArray, IntArray
from monitor.statistics.clusters import ALONE, ClusterArray

# Levels are kept on this grid: sums of them are exact, however rows are cut into calls.
_UNIT = 2.0**-24

_LEVELS = (len(Stage), CHANNELS)

# The second of a track in its slice, and the track before it; values of each Stage come first.
SECOND = np.dtype(
    [
        ("key", np.uint64),  # the track in its slice
        ("turn", np.int64),
        ("source", np.int64),
        ("life", np.int64),
        ("slice", np.int64),
        ("opened", np.int64),  # time of its source when its first detection came
        ("last", np.int64),  # and its last
        ("heard", np.int64),  # the same for the last, in time with labels
        ("arrived", np.int64),
        ("count", np.int64),  # detections
        ("changed", np.bool_),  # whether a recalibrator has changed any of them
        ("outside", np.int64, (len(Stage),)),  # detections far outside
        ("level", np.float64, _LEVELS),  # Σ of what they show; once it is over y, the mean
        ("spread", np.float64, _LEVELS),  # Σ of the squares; once it is over, of those less y
        # Once it is over.
        ("frame", np.int64),  # of those that were taken in with it, by which it is over
        ("second", np.int64),  # number of the second in event time: stamp_ns // BLOCK_NS
        ("before", np.int64),  # seconds of the same track before it
        ("rows", np.int64),  # Σ of their detections, and of the squares of these
        ("rows2", np.int64),
        ("trial", np.bool_, (len(Stage),)),  # whether the one before, if any, had none outside
        ("first", np.int64),  # number of the first of them; its own where there are none
        ("total", np.float64, _LEVELS),  # Σ of their y, each times its detections
        ("common_total", np.float64, _LEVELS),  # the same of the common levels of their slice
        ("older", np.bool_),  # the last run may have bet on earlier ones, which do not count
        ("common", np.float64, _LEVELS),  # common levels of the slice in this second
    ]
)

# A track that is followed, but for its levels: the second that goes on, which has no detections at
# first; and what came before that, as far as it is known.
_TRACK = np.dtype(
    [
        ("key", np.uint64),
        ("source", np.int64),
        ("slice", np.int64),
        # Of its last detection.
        ("life", np.int64),
        ("last", np.int64),
        ("heard", np.int64),
        ("arrived", np.int64),
        # The second that goes on.
        ("turn", np.int64),
        ("opened", np.int64),
        ("count", np.int64),
        ("changed", np.bool_),
        ("outside", np.int64, (len(Stage),)),
        # The seconds before it; and of the last of these, its last detection.
        ("known", np.bool_),
        ("known_life", np.int64),
        ("known_last", np.int64),
        ("known_heard", np.int64),
        ("known_outside", np.int64, (len(Stage),)),
        ("first", np.int64),
        ("before", np.int64),
        ("rows", np.int64),
        ("rows2", np.int64),
        ("older", np.bool_),
    ]
)

# A track that has no truth is over after so many idle times at last, whatever the rate of labels.
_LONGEST_IDLE = 15

# So many labelled frames without a track end it, where they are far apart.
_IDLE_FRAMES = 4

# ns; before any stamp.
_NEVER = -(2**62)


@dataclass(slots=True)
class TrackSeconds:
    """Seconds of tracks that are not over, and the histories of the tracks.

    A second is over when truth of a later second of its source has come. A track is a new one
    after more than idle_seconds without detections in the time of its source that had labels, or
    more than fifteen times as long in any time, after its source began anew, and when it had to
    make room: there are never more than most_open. Between two labelled frames no more than a
    quarter of idle_seconds counts, so that a track goes on however sparse labels are.

    Seconds and histories are lost in a restart, but evidence is not. A track that goes on would
    bring it the track's own level a second time, as news; so the times of sources outlive the
    restart, and tell which tracks may be older than it.

    times     of its sources
    late      detections of a second that was over already
    left_out  detections of seconds that had to make room
    """

    settings: DriftSettings
    late: int = 0
    left_out: int = 0
    times: SourceTimes = field(init=False)
    # By life of a source, the time that the last run has come to; last, that of lives since then.
    _came_to: IntArray = field(init=False)
    _tracks: _Tracks = field(default_factory=lambda: _Tracks())

    def __post_init__(self) -> None:
        self.times = SourceTimes(self.settings.most_open, self.settings.idle_ns // _IDLE_FRAMES)
        self._came_to = np.array([_NEVER])

    @property
    def followed(self) -> int:
        """Counts the tracks that may go on."""
        return self._tracks.keys.size

    def go_on(self, latest_ns: Mapping[int, int]) -> None:
        """Begins with the times of the sources of the last run, by source."""
        self.times.go_on(latest_ns)
        self._came_to = np.array([*latest_ns.values(), _NEVER])

    def take(self, k: int, rows: WatchedRows) -> tuple[Records, FloatArray]:
        """Takes in rows of K degrees of freedom; returns the seconds that are over by them.

        Rows of no known track are not taken. Frames without rows tell the time as well.
        How rows are cut into calls changes nothing, unless there are more than most_open tracks.

        returns  seconds by source, time, slice and key; and (n,) the seconds between each row and
                 the last one of its track, or of its source where the track is new; NaN where
                 neither is known, or the row comes late
        """
        arrivals = self.times.take(rows.source, rows.stamp_ns)
        apart = np.full(rows.n, np.nan)
        blocks = self._gathered(k, rows, arrivals, apart)
        ended = np.array(sorted(arrivals.ended), np.int64)
        # Those that nothing more comes of in this call first; most seconds are over by then.
        over = [self._closed(self._tracks.over(np.setdiff1d(ended, blocks.found["turn"])))]
        for wave in blocks.by_turn():
            slots = self._tracks.slots_of(wave.found["key"])
            over.append(self._closed(slots[self._tracks.others(slots, wave.found["turn"])]))
            self._tracks.add(slots, wave)
        over.append(self._closed(self._tracks.over(ended)))
        there = [one for one in over if one.size]
        seconds = there[0] if len(there) == 1 else np.concatenate(over)
        if len(there) > 1:
            seconds = seconds.take(_in_order(seconds))
        seconds["frame"] = [arrivals.ended[turn] for turn in seconds["turn"].tolist()]
        # Also where nothing is over now: who is followed must not hang on how rows are cut.
        self._end_idle()
        self._make_room()
        return seconds, apart

    def explain(self, seconds: Records) -> None:
        """Adds the common levels of seconds to the histories of their tracks."""
        tracks = self._tracks
        slots, there = tracks.found(seconds["key"])
        # Another track may have the same key by now.
        for ours, name in (("known_life", "life"), ("first", "first")):
            there[there] = tracks.rows[ours][slots[there]] == seconds[name][there]
        there[there] = tracks.rows["known"][slots[there]]
        common = seconds["common"][there] * seconds["count"][there, None, None]
        slots = slots[there]
        chosen, which = np.unique(slots, return_inverse=True)
        if chosen.size < slots.size:
            slots, common = chosen, correlation.summed(common, which, chosen.size)
        tracks.common[slots] += common

    def reckon_from(self, slice: int, stage: int, shift: FloatArray) -> None:
        """Takes common levels of a slice from other usual levels, which lie lower by `shift`.

        shift  (CHANNELS,)
        """
        rows = self._tracks.rows
        ours = np.flatnonzero((rows["slice"] == slice) & rows["known"])
        self._tracks.common[ours, stage] += shift * rows["rows"][ours, None]

    def forget(self, slices: IntArray) -> None:
        """Begins anew with the tracks of these slices."""
        self._tracks.drop(np.isin(self._tracks.of("slice"), slices))

    def _gathered(
        self, k: int, rows: WatchedRows, arrivals: Arrivals, apart: FloatArray
    ) -> _Blocks:
        """Makes seconds of these rows alone: by key, and those of one key in order of time.

        apart  (n,) is filled, as `take` returns it
        """
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
            return _Blocks(np.zeros(0, _TRACK), np.zeros((0, *_LEVELS)), np.zeros((0, *_LEVELS)))
        key, frame = rows.track[order], rows.frame[order]
        apart[order] = self._since_last(key, frame, rows.stamp_ns, arrivals)
        turn = arrivals.turn[frame]
        new = np.append(True, (key[1:] != key[:-1]) | (turn[1:] != turn[:-1]))
        start = np.flatnonzero(new)
        size = np.diff(start, append=key.size)
        first, last = frame[start], frame[start + size - 1]
        found = np.zeros(start.size, _TRACK)
        for name, values in (
            ("key", key[start]),
            ("turn", turn[start]),
            ("source", rows.source[first]),
            ("life", arrivals.life[first]),
            ("slice", rows.slices[order[start]]),
            ("opened", arrivals.time_ns[first]),
            ("last", arrivals.time_ns[last]),
            ("heard", arrivals.heard_ns[last]),
            ("arrived", arrivals.number[last]),
            ("count", size),
            ("changed", np.logical_or.reduceat(rows.changed[frame], start)),
        ):
            found[name] = values
        blocks = _Blocks(found, *np.zeros((2, start.size, *_LEVELS)))
        beyond = far_outside(k, self.settings.page_tolerance)
        changed, chosen = bool(rows.changed.any()), channels(k)
        for stage in Stage:
            if stage is Stage.RECALIBRATED and not changed:
                for of_stages in (blocks.level, blocks.spread, found["outside"]):
                    of_stages[:, stage] = of_stages[:, Stage.RAW]
                break
            nees = rows.nees[stage, order]
            seen = observed(nees, rows.z[stage][:, order], rows.u[stage][:, order]) / _UNIT
            np.rint(seen, out=seen)
            blocks.level[:, stage, chosen] = np.add.reduceat(seen, start, axis=1).T * _UNIT
            np.rint(np.square(seen * _UNIT) / _UNIT, out=seen)
            blocks.spread[:, stage, chosen] = np.add.reduceat(seen, start, axis=1).T * _UNIT
            found["outside"][:, stage] = np.add.reduceat((nees > beyond).astype(np.int64), start)
        return blocks

    def _since_last(
        self, key: ClusterArray, frame: IntArray, stamp_ns: IntArray, arrivals: Arrivals
    ) -> FloatArray:
        """Returns the seconds since the last row of each track, or frame of its source; (n,).

        A track that may be forgotten by then is a new one, whether it is or not: when that is done
        hangs on how rows are cut into calls.

        key, frame  of the rows, by key and time
        """
        now, heard, life = (
            one[frame] for one in (arrivals.time_ns, arrivals.heard_ns, arrivals.life)
        )
        earlier, earlier_heard = np.append(0, now[:-1]), np.append(0, heard[:-1])
        known = np.append(False, (key[1:] == key[:-1]) & (life[1:] == life[:-1]))
        start = np.flatnonzero(np.append(True, key[1:] != key[:-1]))
        slots, there = self._tracks.found(key[start])
        there[there] = self._tracks.rows["life"][slots[there]] == life[start[there]]
        at, before = start[there], self._tracks.rows.take(slots[there])
        known[at] = True
        earlier[at], earlier_heard[at] = before["last"], before["heard"]
        idle_ns = self.settings.idle_ns
        known &= (heard - earlier_heard <= idle_ns) & (now - earlier <= _LONGEST_IDLE * idle_ns)
        stamp = stamp_ns[frame]
        earlier = np.where(known, earlier, stamp - arrivals.step_ns[frame])
        found: FloatArray = np.where(stamp > earlier, (stamp - earlier) * 1e-9, np.nan)
        return found

    def _closed(self, slots: IntArray) -> Records:
        """Ends the seconds of these tracks, the latest of each; returns them in their order."""
        if not slots.size:
            return np.zeros(0, SECOND)
        tracks, idle_ns = self._tracks, self.settings.idle_ns
        slots = slots[_in_order(tracks.rows.take(slots))]
        rows, over = tracks.rows.take(slots), np.empty(slots.size, SECOND)
        over["common"] = 0.0
        for name in _OF_BOTH:
            over[name] = rows[name]
        count = rows["count"][:, None, None]
        over["level"] = level = tracks.level[slots] / count
        over["spread"] = np.maximum(tracks.spread[slots] - count * np.square(level), 0.0)
        anew = (
            ~rows["known"]
            | (rows["known_life"] != rows["life"])
            | (rows["heard"] - rows["known_heard"] > idle_ns)
            | (rows["opened"] - rows["known_last"] > _LONGEST_IDLE * idle_ns)
        )
        # Lives are numbered from 1.
        came_to = self._came_to[np.minimum(rows["life"], self._came_to.size) - 1]
        opened_heard = rows["heard"] - (rows["last"] - rows["opened"])
        older = (opened_heard <= idle_ns) & (rows["opened"] <= came_to + _LONGEST_IDLE * idle_ns)
        for name in ("before", "rows", "rows2"):
            rows[name][anew] = 0
        over["second"] = rows["opened"] // BLOCK_NS
        rows["first"] = np.where(rows["before"] > 0, rows["first"], over["second"])
        rows["older"] = np.where(anew, older, rows["older"])
        over["trial"] = anew[:, None] | (rows["known_outside"] == 0)
        over["total"], over["common_total"] = tracks.total[slots], tracks.common[slots]
        for name in ("total", "common_total"):
            over[name][anew] = 0.0
        for name in ("before", "rows", "rows2", "first", "older"):
            over[name] = rows[name]

        rows["known"] = True
        for name in ("life", "last", "heard", "outside"):
            rows[f"known_{name}"] = rows[name]
        rows["before"] += 1
        rows["rows"] += rows["count"]
        rows["rows2"] += np.square(rows["count"])
        tracks.total[slots] = over["total"] + level * count
        tracks.common[slots[anew]] = 0.0
        rows["count"] = 0
        correlation.put(tracks.rows, slots, rows)
        return over

    def _end_idle(self) -> None:
        # What may still join a block of the present second came when the second began, at the
        # earliest: a track that is idle by then can have no more blocks.
        rows, idle_ns = self._tracks.rows, self.settings.idle_ns
        began_ns, heard_ns, lives = self.times.now(rows["known_life"])
        goes_on = (
            lives
            & (heard_ns - rows["known_heard"] <= idle_ns)
            & (began_ns - rows["known_last"] <= _LONGEST_IDLE * idle_ns)
        )
        rows["known"] &= goes_on
        self._tracks.drop(~(self._tracks.of("known") | (self._tracks.of("count") > 0)))

    def _make_room(self) -> None:
        tracks = self._tracks
        many = tracks.keys.size - self.settings.most_open
        if many <= 0:
            return
        # Of equals those go first that have no second.
        open = tracks.of("count") > 0
        order = np.argsort(open, kind="stable")
        leaves = np.zeros(open.size, bool)
        leaves[order] = correlation.longest_unseen(tracks.of("arrived")[order], many)
        self.left_out += int(tracks.of("count")[leaves].sum())
        tracks.drop(leaves)


def _in_order(rows: Records) -> IntArray:
    """Orders tracks or seconds of them by source, time, slice and key.

    Turns of one source ascend with time, even where it is set back.
    """
    found: IntArray = np.lexsort([rows[name] for name in ("key", "slice", "turn", "source")])
    return found


# What a second has of its track as it is when it is over.
_OF_BOTH = [
    *("key", "turn", "source", "life", "slice", "opened", "last", "heard", "arrived"),
    *("count", "changed", "outside"),
]


@dataclass(frozen=True, eq=False, slots=True)
class _Blocks(Columns):
    """Detections of m tracks, each in one second: what they add to their tracks."""

    found: Records
    level: FloatArray
    spread: FloatArray

    def by_turn(self) -> Iterator[_Blocks]:
        """Yields those of the first seconds of all tracks, then of the second ones, and so on."""
        key = self.found["key"]
        if not key.size:
            return
        new = np.append(True, key[1:] != key[:-1])
        if new.all():
            yield self
            return
        start = np.flatnonzero(new)
        rank = np.arange(key.size) - np.repeat(start, np.diff(start, append=key.size))
        for number in range(int(rank.max()) + 1):
            yield self.take(np.flatnonzero(rank == number))


@dataclass(slots=True)
class _Tracks:
    """Tracks that are followed, each in a slot of its own for as long as it is there.

    keys           (n,) ascending
    slots          (n,) of each
    free           (f,) slots that nobody has
    rows           (n + f,) by slot
    level, spread  (n + f, 2, CHANNELS) of the second that goes on: Σ of what detections show, and
                   of the squares
    total, common  the same of the seconds before it: as in SECOND
    """

    keys: ClusterArray = field(default_factory=lambda: np.zeros(0, np.uint64))
    slots: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    free: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    rows: Records = field(default_factory=lambda: np.zeros(0, _TRACK))
    level: FloatArray = field(default_factory=lambda: np.zeros((0, *_LEVELS)))
    spread: FloatArray = field(default_factory=lambda: np.zeros((0, *_LEVELS)))
    total: FloatArray = field(default_factory=lambda: np.zeros((0, *_LEVELS)))
    common: FloatArray = field(default_factory=lambda: np.zeros((0, *_LEVELS)))

    def of(self, name: str) -> Any:
        """Returns a field of all tracks, by key."""
        return self.rows[name][self.slots]

    def found(self, keys: ClusterArray) -> tuple[IntArray, BoolArray]:
        """Finds the slots of keys (m,), and whether there are any; both (m,)."""
        if not self.keys.size:
            return np.zeros(keys.size, np.int64), np.zeros(keys.size, bool)
        place = np.minimum(np.searchsorted(self.keys, keys), self.keys.size - 1)
        return self.slots[place], self.keys[place] == keys

    def slots_of(self, keys: ClusterArray) -> IntArray:
        """Returns the slots of keys (m,), which ascend; those that are new get one."""
        slots, there = self.found(keys)
        new = keys[~there]
        if not new.size:
            return slots
        if new.size > self.free.size:
            self._grow(new.size)
        slots[~there], self.free = self.free[: new.size], self.free[new.size :]
        place = np.searchsorted(self.keys, new)
        self.keys = np.insert(self.keys, place, new)
        self.slots = np.insert(self.slots, place, slots[~there])
        return slots

    def _grow(self, more: int) -> None:
        size = self.rows.size
        more = max(more, size)
        self.free = np.append(self.free, np.arange(size, size + more))
        self.rows = np.concatenate([self.rows, np.zeros(more, _TRACK)])
        for name in ("level", "spread", "total", "common"):
            array = getattr(self, name)
            setattr(self, name, np.concatenate([array, np.zeros((more, *_LEVELS))]))

    def drop(self, gone: BoolArray) -> None:
        """Lets tracks go, (n,) by key."""
        if gone.any():
            slots = self.slots[gone]
            self.rows[slots] = np.zeros((), _TRACK)
            for array in (self.total, self.common):
                array[slots] = 0.0
            self.free = np.append(self.free, slots)
            self.keys, self.slots = self.keys[~gone], self.slots[~gone]

    def over(self, turns: IntArray) -> IntArray:
        """Returns the slots of tracks with a second of these turns that goes on."""
        if not turns.size:
            return self.slots[:0]
        return np.flatnonzero((self.rows["count"] > 0) & np.isin(self.rows["turn"], turns))

    def others(self, slots: IntArray, turn: IntArray) -> BoolArray:
        """Says which of the tracks have a second of another turn that goes on."""
        found: BoolArray = (self.rows["count"][slots] > 0) & (self.rows["turn"][slots] != turn)
        return found

    def add(self, slots: IntArray, blocks: _Blocks) -> None:
        """Adds detections to the second that goes on, or begins one, of each of these tracks."""
        rows, more = self.rows.take(slots), blocks.found
        goes_on = rows["count"] > 0
        for name in ("count", "outside", "changed"):
            rows[name][~goes_on] = 0
            rows[name] += more[name]
        for name in ("turn", "opened"):
            rows[name] = np.where(goes_on, rows[name], more[name])
        for name in ("key", "source", "slice", "life", "last", "heard", "arrived"):
            rows[name] = more[name]
        correlation.put(self.rows, slots, rows)
        begins = ~goes_on
        for array, added in ((self.level, blocks.level), (self.spread, blocks.spread)):
            array[slots[begins]] = added[begins]
            array[slots[goes_on]] += added[goes_on]
