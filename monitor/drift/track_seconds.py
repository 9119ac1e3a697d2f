"""Seconds of tracks: the mean ln NEES of one track over one second of event time.

The tracks that may go on are remembered, in bounded number, so that each second comes with what its
track was like before. What evidence makes of the seconds is said in track_evidence.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from monitor.drift import correlation
from monitor.drift.clocks import Arrivals, SourceTimes
from monitor.drift.correlation import Records
from monitor.drift.evidence import DriftSettings
from monitor.drift.usual import BLOCK_NS, Blocks, WatchedRows
from monitor.frames.space import BoolArray, FloatArray, IntArray
from monitor.statistics.clusters import ALONE

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
        ("older", np.bool_),  # the last run may have bet on it
    ]
)

_NO_LIFE = -1

# ns; before any stamp.
_NEVER = -(2**62)


@dataclass(slots=True)
class TrackSeconds:
    """Blocks that are not over, and the histories of their tracks.

    A block is over when truth of a later second of its source has come. A track is a new one
    after more than idle_seconds without detections in the time of its source, after its source
    began anew, and when it had to make room: there are never more than most_open.

    Blocks and histories are lost in a restart, but evidence is not. A track that goes on would
    bring it the track's own level a second time, as news; so the times of sources outlive the
    restart, and tell which tracks may be older than it.

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
    # By life of a source, the time that the last run has come to; last, that of lives since then.
    _came_to: IntArray = field(init=False)
    _open: Records = field(init=False)
    _history: Records = field(init=False)

    def __post_init__(self) -> None:
        self.times = SourceTimes(self.settings.most_open)
        self._came_to = np.array([_NEVER])
        self._open = np.zeros(0, BLOCK)
        self._history = np.zeros(0, HISTORY)

    def go_on(self, latest_ns: Mapping[int, int]) -> None:
        """Begins with the times of the sources of the last run, by source."""
        self.times.go_on(latest_ns)
        self._came_to = np.array([*latest_ns.values(), _NEVER])

    @property
    def tracks(self) -> int:
        """Counts the tracks that are followed."""
        return int(np.count_nonzero(self._only_past())) + self._open.size

    def take(self, rows: WatchedRows) -> Blocks:
        """Takes in rows; returns the blocks that are over by them, by source, time and key.

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
        place, there = correlation.found(self._history, blocks.track)
        # Another track may have the same key by now.
        there[there] = self._history["first"][place[there]] == blocks.first[there]
        np.add.at(self._history["common_total"], place[there], common[:, there].T)

    def reckon_from(self, slice: int, stage: int, shift: float) -> None:
        """Takes common levels of a slice from another usual level, which lies lower by `shift`."""
        ours = self._history["slice"] == slice
        self._history["common_total"][ours, stage] += shift * self._history["before"][ours]

    def forget(self, slices: IntArray) -> None:
        """Begins anew with the tracks of these slices."""
        self._open = self._open.compress(~np.isin(self._open["slice"], slices))
        self._history = self._history.compress(~np.isin(self._history["slice"], slices))

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

    def _closed(self, over: Records, by: IntArray) -> Blocks:
        """over: blocks by key, and those of one key in order of time; by: after which frame."""
        key = over["key"]
        new = np.append(True, key[1:] != key[:-1])
        start = np.flatnonzero(new)
        track = np.cumsum(new) - 1
        # Of the blocks of one track that close together, each counts the earlier ones.
        rank = np.arange(key.size) - start[track]
        history = np.zeros(start.size, HISTORY)
        place, there = correlation.found(self._history, key[start])
        history["life"] = _NO_LIFE
        correlation.put(history, np.flatnonzero(there), self._history.take(place[there]))
        earlier = np.zeros(key.size, HISTORY)
        for number in range(int(rank.max()) + 1):
            at = np.flatnonzero(rank == number)
            then, now = self._gone_on(history.take(track[at]), over.take(at))
            correlation.put(earlier, at, then)
            correlation.put(history, track[at], now)
        self._history = correlation.replaced(self._history, place[there], history)

        counts = over["count"] >= FEWEST
        self.short += int(over["count"][~counts].sum())
        return _blocks(over.compress(counts), earlier.compress(counts), by[counts])

    def _gone_on(self, history: Records, block: Records) -> tuple[Records, Records]:
        """Histories before and after one more block each."""
        anew = (history["life"] != block["life"]) | (
            block["opened"] - history["last"] > self.settings.idle_ns
        )
        # Lives are numbered from 1.
        came_to = self._came_to[np.minimum(block["life"], self._came_to.size) - 1]
        older = block["opened"] <= came_to + self.settings.idle_ns
        history["older"] = np.where(anew, older, history["older"])
        history["before"][anew] = 0
        history["total"][anew] = 0.0
        history["common_total"][anew] = 0.0
        for name in ("key", "life", "slice", "last", "arrived"):
            history[name] = block[name]
        second = block["opened"] // BLOCK_NS
        history["first"] = np.where(history["before"] > 0, history["first"], second)
        before = correlation.copied(history)
        counts = block["count"] >= FEWEST
        history["before"] += counts
        history["total"] += np.where(counts[:, None], block["sums"] / block["count"][:, None], 0.0)
        return before, history

    def _end_idle(self) -> None:
        # What may still join a block of the present second came when the second began, at the
        # earliest: a track that is idle by then can have no more blocks.
        time_ns, lives = self.times.now(self._history["life"])
        began = time_ns // BLOCK_NS * BLOCK_NS
        goes_on = lives & (began - self._history["last"] <= self.settings.idle_ns)
        self._history = self._history.compress(goes_on)

    def _only_past(self) -> BoolArray:
        """Which histories are of tracks without an open block."""
        return ~correlation.found(self._open, self._history["key"])[1]

    def _make_room(self) -> None:
        if self._open.size + self._history.size <= self.settings.most_open:
            return
        past = self._only_past()
        key, arrived = (
            np.append(self._history[name][past], self._open[name]) for name in ("key", "arrived")
        )
        gone = key[correlation.longest_unseen(arrived, key.size - self.settings.most_open)]
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
        older=earlier["older"].copy(),
    )


@cache
def _no_blocks() -> Blocks:
    return _blocks(np.zeros(0, BLOCK), np.zeros(0, HISTORY), np.zeros(0, np.int64))
