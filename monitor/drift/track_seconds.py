"""Seconds of tracks: the levels of one track over one second of event time, in all channels.

The tracks that may go on are remembered, in bounded number, so that each second comes with what its
track was like before. What evidence makes of the seconds is said in evidence.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from monitor.drift import correlation
from monitor.drift.channels import CHANNELS, channels, observed
from monitor.drift.charts import Stage
from monitor.drift.clocks import Arrivals, SourceTimes
from monitor.drift.correlation import Records
from monitor.drift.evidence import DriftSettings
from monitor.drift.levels import far_outside
from monitor.drift.usual import BLOCK_NS, WatchedRows
from monitor.frames.space import FloatArray, IntArray
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

# A track that has no truth is over after so many idle times at last, whatever the rate of labels.
_LONGEST_IDLE = 15

# So many labelled frames without a track end it, where they are far apart.
_IDLE_FRAMES = 4

_NO_LIFE = -1

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
    _open: Records = field(default_factory=lambda: np.zeros(0, SECOND))
    # Of each track as it was after its last second: the second itself counts as one before.
    _history: Records = field(default_factory=lambda: np.zeros(0, SECOND))

    def __post_init__(self) -> None:
        self.times = SourceTimes(self.settings.most_open, self.settings.idle_ns // _IDLE_FRAMES)
        self._came_to = np.array([_NEVER])

    def go_on(self, latest_ns: Mapping[int, int]) -> None:
        """Begins with the times of the sources of the last run, by source."""
        self.times.go_on(latest_ns)
        self._came_to = np.array([*latest_ns.values(), _NEVER])

    def take(self, k: int, rows: WatchedRows) -> tuple[Records, FloatArray]:
        """Takes in rows of K degrees of freedom; returns the seconds that are over by them.

        Rows of no known track are not taken. Frames without rows tell the time as well.
        How rows are cut into calls changes nothing, unless there are more than most_open tracks.

        returns  seconds by source, time and key; and (n,) the seconds between each row and the
                 last one of its track, or of its source where the track is new; NaN where neither
                 is known, or the row comes late
        """
        arrivals = self.times.take(rows.source, rows.stamp_ns)
        apart = np.full(rows.n, np.nan)
        self._add(self._gathered(k, rows, arrivals, apart))
        turns = self._open["turn"].tolist()
        by = np.array([arrivals.ended.get(turn, -1) for turn in turns], np.int64)
        seconds = self._closed(self._open.compress(by >= 0), by[by >= 0])
        self._open = self._open.compress(by < 0)
        # Also where nothing is over now: who is followed must not hang on how rows are cut.
        self._end_idle()
        self._make_room()
        return seconds, apart

    def explain(self, seconds: Records) -> None:
        """Adds the common levels of seconds to the histories of their tracks."""
        place, there = correlation.found(self._history, seconds["key"])
        # Another track may have the same key by now.
        for name in ("life", "first"):
            there[there] = self._history[name][place[there]] == seconds[name][there]
        common = seconds["common"] * seconds["count"][:, None, None]
        chosen, which = np.unique(place[there], return_inverse=True)
        sums = correlation.summed(common[there], which, chosen.size)
        self._history["common_total"][chosen] += sums

    def reckon_from(self, slice: int, stage: int, shift: FloatArray) -> None:
        """Takes common levels of a slice from other usual levels, which lie lower by `shift`.

        shift  (CHANNELS,)
        """
        ours = self._history["slice"] == slice
        rows = self._history["rows"][ours]
        self._history["common_total"][ours, stage] += shift * rows[:, None]

    def forget(self, slices: IntArray) -> None:
        """Begins anew with the tracks of these slices."""
        self._open = self._open.compress(~np.isin(self._open["slice"], slices))
        self._history = self._history.compress(~np.isin(self._history["slice"], slices))

    def _gathered(
        self, k: int, rows: WatchedRows, arrivals: Arrivals, apart: FloatArray
    ) -> Records:
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
            return self._open[:0]
        key, frame = rows.track[order], rows.frame[order]
        apart[order] = self._since_last(key, frame, rows.stamp_ns, arrivals)
        turn = arrivals.turn[frame]
        new = np.append(True, (key[1:] != key[:-1]) | (turn[1:] != turn[:-1]))
        start = np.flatnonzero(new)
        blocks = np.zeros(start.size, SECOND)
        size = np.diff(start, append=key.size)
        first, last = frame[start], frame[start + size - 1]
        blocks["key"] = key[start]
        blocks["turn"] = turn[start]
        blocks["source"] = rows.source[first]
        blocks["life"] = arrivals.life[first]
        blocks["slice"] = rows.slices[order[start]]
        blocks["opened"] = arrivals.time_ns[first]
        blocks["last"] = arrivals.time_ns[last]
        blocks["heard"] = arrivals.heard_ns[last]
        blocks["arrived"] = arrivals.number[last]
        blocks["count"] = size
        blocks["changed"] = np.logical_or.reduceat(rows.changed[frame], start)
        beyond = far_outside(k, self.settings.page_tolerance)
        changed, chosen = bool(rows.changed.any()), channels(k)
        for stage in Stage:
            if stage is Stage.RECALIBRATED and not changed:
                for name in ("level", "spread", "outside"):
                    blocks[name][:, stage] = blocks[name][:, Stage.RAW]
                break
            nees = rows.nees[stage, order]
            seen = observed(nees, rows.z[stage][:, order], rows.u[stage][:, order]) / _UNIT
            np.rint(seen, out=seen)
            blocks["level"][:, stage, chosen] = np.add.reduceat(seen, start, axis=1).T * _UNIT
            np.rint(np.square(seen * _UNIT) / _UNIT, out=seen)
            blocks["spread"][:, stage, chosen] = np.add.reduceat(seen, start, axis=1).T * _UNIT
            blocks["outside"][:, stage] = np.add.reduceat((nees > beyond).astype(np.int64), start)
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
        for table in (self._history, self._open):
            place, there = correlation.found(table, key[start])
            there[there] = table["life"][place[there]] == life[start[there]]
            at, place = start[there], place[there]
            known[at] = True
            earlier[at], earlier_heard[at] = table["last"][place], table["heard"][place]
        idle_ns = self.settings.idle_ns
        known &= (heard - earlier_heard <= idle_ns) & (now - earlier <= _LONGEST_IDLE * idle_ns)
        stamp = stamp_ns[frame]
        earlier = np.where(known, earlier, stamp - arrivals.step_ns[frame])
        found: FloatArray = np.where(stamp > earlier, (stamp - earlier) * 1e-9, np.nan)
        return found

    def _add(self, blocks: Records) -> None:
        ours = self._open
        place, there = correlation.found(ours, blocks["key"])
        there[there] = ours["turn"][place[there]] == blocks["turn"][there]
        place, more = place[there], blocks.compress(there)
        grown = ours.take(place)
        for name in ("count", "outside", "level", "spread"):
            grown[name] += more[name]
        for name in ("last", "heard", "arrived"):
            grown[name] = more[name]
        grown["changed"] |= more["changed"]
        correlation.put(ours, place, grown)
        if not there.all():
            self._open = correlation.joined((ours, blocks.compress(~there)))

    def _closed(self, over: Records, by: IntArray) -> Records:
        """over: seconds by key, and those of one key in order of time; by: after which frame."""
        if not over.size:
            return over
        over["frame"], over["second"] = by, over["opened"] // BLOCK_NS
        count = over["count"][:, None, None]
        over["level"] /= count
        over["spread"] -= count * np.square(over["level"])
        np.maximum(over["spread"], 0.0, out=over["spread"])
        keys, start, track = np.unique(over["key"], return_index=True, return_inverse=True)
        # Of the seconds of one track that close together, each counts the earlier ones.
        rank = np.arange(over.size) - start[track]
        history = np.zeros(start.size, SECOND)
        place, there = correlation.found(self._history, keys)
        history["life"] = _NO_LIFE
        correlation.put(history, np.flatnonzero(there), self._history.take(place[there]))
        for number in range(int(rank.max()) + 1):
            at = np.flatnonzero(rank == number)
            then, now = self._gone_on(history.take(track[at]), over.take(at))
            correlation.put(over, at, then)
            correlation.put(history, track[at], now)
        self._history = correlation.replaced(self._history, place[there], history)
        # Turns of one source ascend with time, even where it is set back.
        return over.take(np.lexsort((over["key"], over["turn"], over["source"])))

    def _gone_on(self, history: Records, second: Records) -> tuple[Records, Records]:
        """Returns seconds with what was before them in their tracks, and the histories after."""
        idle_ns = self.settings.idle_ns
        anew = (
            (history["life"] != second["life"])
            | (second["heard"] - history["heard"] > idle_ns)
            | (second["opened"] - history["last"] > _LONGEST_IDLE * idle_ns)
        )
        # Lives are numbered from 1.
        came_to = self._came_to[np.minimum(second["life"], self._came_to.size) - 1]
        opened_heard = second["heard"] - (second["last"] - second["opened"])
        older = (opened_heard <= idle_ns) & (second["opened"] <= came_to + _LONGEST_IDLE * idle_ns)
        second["older"] = np.where(anew, older, history["older"])
        for name in ("before", "rows", "rows2", "total", "common_total"):
            second[name] = history[name]
            second[name][anew] = 0
        second["trial"] = anew[:, None] | (history["outside"] == 0)
        second["first"] = np.where(second["before"] > 0, history["first"], second["second"])
        after = correlation.copied(second)
        after["before"] += 1
        count = second["count"]
        after["rows"] += count
        after["rows2"] += count * count
        after["total"] += second["level"] * count[:, None, None]
        return second, after

    def _end_idle(self) -> None:
        # What may still join a block of the present second came when the second began, at the
        # earliest: a track that is idle by then can have no more blocks.
        began_ns, heard_ns, lives = self.times.now(self._history["life"])
        idle_ns = self.settings.idle_ns
        goes_on = (
            lives
            & (heard_ns - self._history["heard"] <= idle_ns)
            & (began_ns - self._history["last"] <= _LONGEST_IDLE * idle_ns)
        )
        self._history = self._history.compress(goes_on)

    def _make_room(self) -> None:
        if self._open.size + self._history.size <= self.settings.most_open:
            return
        past = ~correlation.found(self._open, self._history["key"])[1]
        key, arrived = (
            np.append(self._history[name][past], self._open[name]) for name in ("key", "arrived")
        )
        gone = key[correlation.longest_unseen(arrived, key.size - self.settings.most_open)]
        leaves = np.isin(self._open["key"], gone)
        self.left_out += int(self._open["count"][leaves].sum())
        self._open = self._open.compress(~leaves)
        self._history = self._history.compress(~np.isin(self._history["key"], gone))
