"""Seconds of tracks: the mean ln NEES of one track over one second of event time.

The tracks that may go on are remembered, in bounded number, so that each second comes with what its
track was like before. What evidence makes of the seconds is said in evidence.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from monitor.drift import correlation
from monitor.drift.clocks import Arrivals, SourceTimes
from monitor.drift.correlation import Records
from monitor.drift.evidence import DriftSettings
from monitor.drift.usual import BLOCK_NS, WatchedRows
from monitor.frames.space import IntArray
from monitor.statistics.clusters import ALONE

# A mean over fewer detections varies much more than the others do, and the model of levels has
# one ω for all: 5 are half a second at 10 Hz.
FEWEST = 5

# A detection that meets its truth exactly says no more than one that nearly does: ln 0 would
# outweigh the rest of its second. At K = 1, E max(ln e, ln 1e-6) exceeds E ln e by 0.0016.
_SMALLEST_NEES = 1e-6

# ln NEES is kept on this grid: sums of it are exact, however rows are cut into calls.
_UNIT = 2.0**-24

# The second of a track in its slice, and the track before it; two values are those of each Stage.
SECOND = np.dtype(
    [
        ("key", np.uint64),  # the track in its slice
        ("turn", np.int64),
        ("source", np.int64),
        ("life", np.int64),
        ("slice", np.int64),
        ("opened", np.int64),  # time of its source when its first detection came
        ("last", np.int64),  # and its last
        ("arrived", np.int64),
        ("count", np.int64),  # detections
        ("changed", np.bool_),  # whether a recalibrator has changed any of them
        ("sums", np.float64, (2,)),
        # Once it is over.
        ("frame", np.int64),  # of those that were taken in with it, by which it is over
        ("second", np.int64),  # number of the second in event time: stamp_ns // BLOCK_NS
        ("level", np.float64, (2,)),  # y, mean ln NEES over its detections
        ("before", np.int64),  # seconds of the same track before it that counted
        ("mean", np.float64, (2,)),  # of their y; 0 where there are none
        ("first", np.int64),  # number of the first of them; its own where there are none
        ("total", np.float64, (2,)),  # Σ of their y
        ("common_total", np.float64, (2,)),  # Σ of the common levels of their slice
        ("older", np.bool_),  # the last run may have bet on earlier ones, which do not count
        ("common", np.float64, (2,)),  # common level of the slice in this second
    ]
)

_NO_LIFE = -1

# ns; before any stamp.
_NEVER = -(2**62)


@dataclass(slots=True)
class TrackSeconds:
    """Seconds of tracks that are not over, and the histories of the tracks.

    A second is over when truth of a later second of its source has come. A track is a new one
    after more than idle_seconds without detections in the time of its source, after its source
    began anew, and when it had to make room: there are never more than most_open.

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
        self.times = SourceTimes(self.settings.most_open)
        self._came_to = np.array([_NEVER])

    def go_on(self, latest_ns: Mapping[int, int]) -> None:
        """Begins with the times of the sources of the last run, by source."""
        self.times.go_on(latest_ns)
        self._came_to = np.array([*latest_ns.values(), _NEVER])

    def take(self, rows: WatchedRows) -> Records:
        """Takes in rows; returns the seconds that are over by them, by source, time and key.

        Rows of no known track are not taken. Frames without rows tell the time as well.
        How rows are cut into calls changes nothing, unless there are more than most_open tracks.
        """
        arrivals = self.times.take(rows.source, rows.stamp_ns)
        self._add(self._gathered(rows, arrivals))
        turns = self._open["turn"].tolist()
        by = np.array([arrivals.ended.get(turn, -1) for turn in turns], np.int64)
        seconds = self._closed(self._open.compress(by >= 0), by[by >= 0])
        self._open = self._open.compress(by < 0)
        # Also where nothing is over now: who is followed must not hang on how rows are cut.
        self._end_idle()
        self._make_room()
        return seconds

    def explain(self, seconds: Records) -> None:
        """Adds the common levels of seconds to the histories of their tracks."""
        place, there = correlation.found(self._history, seconds["key"])
        # Another track may have the same key by now.
        there[there] = self._history["first"][place[there]] == seconds["first"][there]
        np.add.at(self._history["common_total"], place[there], seconds["common"][there])

    def reckon_from(self, slice: int, stage: int, shift: float) -> None:
        """Takes common levels of a slice from another usual level, which lies lower by `shift`."""
        ours = self._history["slice"] == slice
        self._history["common_total"][ours, stage] += shift * self._history["before"][ours]

    def forget(self, slices: IntArray) -> None:
        """Begins anew with the tracks of these slices."""
        self._open = self._open.compress(~np.isin(self._open["slice"], slices))
        self._history = self._history.compress(~np.isin(self._history["slice"], slices))

    def _gathered(self, rows: WatchedRows, arrivals: Arrivals) -> Records:
        """Makes seconds of these rows alone: by key, and those of one key in order of time."""
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
        turn = arrivals.turn[frame]
        new = np.append(True, (key[1:] != key[:-1]) | (turn[1:] != turn[:-1]))
        start = np.flatnonzero(new)
        blocks = np.zeros(start.size, SECOND)
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
        place, there = correlation.found(ours, blocks["key"])
        there[there] = ours["turn"][place[there]] == blocks["turn"][there]
        place, more = place[there], blocks.compress(there)
        grown = ours.take(place)
        for name in ("count", "sums"):
            grown[name] += more[name]
        for name in ("last", "arrived"):
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
        over["level"] = over["sums"] / over["count"][:, None]
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
        over = over.compress(over["count"] >= FEWEST)
        # Turns of one source ascend with time, even where it is set back.
        return over.take(np.lexsort((over["key"], over["turn"], over["source"])))

    def _gone_on(self, history: Records, second: Records) -> tuple[Records, Records]:
        """Returns seconds with what was before them in their tracks, and the histories after."""
        anew = (history["life"] != second["life"]) | (
            second["opened"] - history["last"] > self.settings.idle_ns
        )
        # Lives are numbered from 1.
        came_to = self._came_to[np.minimum(second["life"], self._came_to.size) - 1]
        older = second["opened"] <= came_to + self.settings.idle_ns
        second["older"] = np.where(anew, older, history["older"])
        for name in ("before", "total", "common_total"):
            second[name] = history[name]
            second[name][anew] = 0
        before = second["before"]
        second["mean"] = second["total"] / np.maximum(before, 1)[:, None]
        second["first"] = np.where(before > 0, history["first"], second["second"])
        after, counts = correlation.copied(second), second["count"] >= FEWEST
        after["before"] += counts
        after["total"] += np.where(counts[:, None], second["level"], 0.0)
        return second, after

    def _end_idle(self) -> None:
        # What may still join a block of the present second came when the second began, at the
        # earliest: a track that is idle by then can have no more blocks.
        time_ns, lives = self.times.now(self._history["life"])
        began = time_ns // BLOCK_NS * BLOCK_NS
        goes_on = lives & (began - self._history["last"] <= self.settings.idle_ns)
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
