"""Whole tracks as one observation each: the mean likelihood ratio of a track that is over.

This is the strict unit, for those who assume nothing of what the errors of one object have in
common.

L of one detection has E[L] ≤ 1 while nothing is wrong, and so has the arithmetic mean of any
number of them, however they depend on each other. Proved if how many detections a track has tells
nothing of their errors; a detector that loses objects when it errs most is not covered. A track
must be used once: what comes after it was used is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from monitor.drift import keyed
from monitor.drift.clocks import LATEST_NS, Arrivals, SourceTimes
from monitor.drift.evidence import DriftSettings
from monitor.drift.keyed import Records
from monitor.drift.usual import BLOCK_NS, WatchedRows
from monitor.frames.marks import LARGEST_COUNT, ArrayForm
from monitor.frames.space import BoolArray, FloatArray, IntArray
from monitor.statistics.clusters import ALONE

# A track that goes on for longer is used then; parked cars would else be heard of too late.
LONGEST_NS = 60 * BLOCK_NS
NOWHERE = -1
_TINY = np.finfo(np.float64).tiny

TRACK = np.dtype(
    [
        ("key", np.uint64),
        ("source", np.int64),
        ("life", np.int64),
        ("slice", np.int64),
        ("opened", np.int64),  # time of its source when its first detection came
        ("last", np.int64),  # and its last
        ("arrived", np.int64),
        ("count", np.int64),
        ("row", np.int64),  # where its ΣL is; NOWHERE once it was used
    ]
)
TRACKS = ArrayForm(
    TRACK,
    (None,),
    fields=(("last", -LATEST_NS, LATEST_NS), ("count", 1, LARGEST_COUNT), ("row", -1, 2**31)),
)


@dataclass(frozen=True, eq=False, slots=True)
class Finished:
    """m tracks that are over, by source, the time of their last detection, and key.

    slices    (m,)
    log_mean  (m, C) ln of the mean of L over their detections, by bet
    source    (m,)
    count     (m,) their detections
    """

    slices: IntArray
    log_mean: FloatArray
    source: IntArray
    count: IntArray


@dataclass(slots=True)
class TrackMeans:
    """Tracks that are not over.

    A track is over after more than idle_seconds without detections in the time of its source, when
    its source began anew, and when it has gone on for more than LONGEST_NS; in the last case what
    follows is not counted until it was idle. There are never more than most_open.

    width     C, number of bets
    times     of its sources
    late      detections that came more than idle_seconds late: their track may be over
    beyond    detections of tracks that had been used
    left_out  detections of tracks that had to make room
    """

    settings: DriftSettings
    width: int
    late: int = 0
    beyond: int = 0
    left_out: int = 0
    times: SourceTimes = field(init=False)
    _tracks: Records = field(init=False)
    _sums: FloatArray = field(init=False)
    _free: IntArray = field(init=False)

    def __post_init__(self) -> None:
        self.times = SourceTimes(self.settings.most_open)
        self._tracks = np.zeros(0, TRACK)
        self._sums = np.zeros((0, self.width))
        self._free = np.zeros(0, np.int64)

    @property
    def tracks(self) -> int:
        """Counts the tracks that are followed, those that were used and go on among them."""
        return self._tracks.size

    def take(self, rows: WatchedRows, likelihood: FloatArray) -> Finished:
        """Takes in rows with their likelihood; returns the tracks that are over by them.

        Rows of no known track are not taken. Frames without rows tell the time as well.
        How rows are cut into calls changes nothing beyond rounding and the order of what is over,
        unless there are more than most_open tracks.

        likelihood  (n, C) L of each row and bet, ≥ 0, finite
        """
        arrivals = self.times.take(rows.source, rows.stamp_ns)
        self._add(rows, likelihood, arrivals)
        finished = self._finished()
        self._make_room()
        return finished

    def forget(self, slices: IntArray) -> None:
        """Begins anew with the tracks of these slices."""
        self._drop(np.isin(self._tracks["slice"], slices))

    def of_slices(self, slices: int) -> list[tuple[Records, FloatArray]]:
        """Lists by slice its tracks by key, and (m, C) ΣL of those that are not used yet."""
        found: list[tuple[Records, FloatArray]] = []
        for tracks in keyed.by_slice(self._tracks, slices):
            waits = tracks["row"] != NOWHERE
            sums = self._sums[tracks["row"][waits]]
            tracks["row"][waits] = np.arange(sums.shape[0])
            found.append((tracks, sums))
        return found

    def go_on(self, tracks: Records, sums: FloatArray) -> None:
        """Goes on with the tracks of one slice, as of_slices() lists them, whose times go on."""
        tracks, rows = keyed.copied(tracks), self._empty_rows(sums.shape[0])
        self._sums[rows] = sums
        tracks["row"][tracks["row"] != NOWHERE] = rows
        self._tracks = keyed.with_more(self._tracks, tracks)

    def _add(self, rows: WatchedRows, likelihood: FloatArray, arrivals: Arrivals) -> None:
        order = self._in_time(rows, arrivals)
        if order.size == 0:
            return
        key, frame = rows.track[order], rows.frame[order]
        time_ns, life = arrivals.time_ns[frame], arrivals.life[frame]
        another = (key[1:] != key[:-1]) | (life[1:] != life[:-1])
        anew = np.append(True, another | (np.diff(time_ns) > self.settings.idle_ns))
        start = np.flatnonzero(anew)
        stretch = np.cumsum(anew) - 1
        last = np.append(start[1:], order.size) - 1

        tracks = np.zeros(start.size, TRACK)
        tracks["key"] = key[start]
        tracks["source"] = rows.source[frame[start]]
        tracks["life"] = life[start]
        tracks["slice"] = rows.slices[order[start]]
        tracks["opened"] = time_ns[start]
        tracks["row"] = NOWHERE
        place, old = keyed.found(self._tracks, tracks["key"])
        # Only the first stretch of a track here can go on: the others came after it was idle.
        before = self._tracks.take(place[old])
        old[old] = (before["life"] == tracks["life"][old]) & (
            tracks["opened"][old] - before["last"] <= self.settings.idle_ns
        )
        keyed.put(tracks, np.flatnonzero(old), self._tracks.take(place[old]))
        used = old & (tracks["row"] == NOWHERE)
        tracks["last"] = time_ns[last]
        tracks["arrived"] = arrivals.number[frame[last]]
        tracks["row"][~old] = self._empty_rows(int(np.count_nonzero(~old)))

        counts = ~used[stretch] & (time_ns - tracks["opened"][stretch] <= LONGEST_NS)
        self.beyond += int(np.count_nonzero(~counts))
        into = stretch[counts]
        if into.size:
            tracks["count"] += np.bincount(into, minlength=tracks.size)
            begins = np.flatnonzero(np.append(True, into[1:] != into[:-1]))
            sums = np.add.reduceat(likelihood.take(order[counts], axis=0), begins, axis=0)
            self._sums[tracks["row"][into[begins]]] += sums
        self._tracks = keyed.replaced(self._tracks, place[old], tracks)

    def _in_time(self, rows: WatchedRows, arrivals: Arrivals) -> IntArray:
        """Chooses the rows that are taken: by track, those of one track in the order they came in.

        They count as of the time by then: what is a little late came just now.
        """
        late = arrivals.time_ns - rows.stamp_ns > self.settings.idle_ns
        tracked = rows.track != ALONE
        of_late = late[rows.frame] & tracked
        self.late += int(np.count_nonzero(of_late))
        taken = np.flatnonzero(tracked & ~of_late)
        return taken[np.argsort(rows.track[taken], kind="stable")]

    def _finished(self) -> Finished:
        tracks = self._tracks
        now, lives = self.times.now(tracks["life"])
        # This ends as well what came before the idle time of a track that is there again.
        over = ~lives | (now - tracks["last"] > self.settings.idle_ns)
        used = (over | (now - tracks["opened"] > LONGEST_NS)) & (tracks["row"] != NOWHERE)
        ended = tracks.compress(used)
        ended = ended.take(np.lexsort((ended["key"], ended["last"], ended["source"])))
        # The smallest number there is, so that ln of it is finite.
        mean = np.maximum(self._sums[ended["row"]] / ended["count"][:, None], _TINY)
        tracks["row"][used] = NOWHERE
        self._free = np.append(self._free, ended["row"])
        self._tracks = tracks.compress(~over)
        return Finished(
            slices=ended["slice"].copy(),
            log_mean=np.log(mean),
            source=ended["source"].copy(),
            count=ended["count"].copy(),
        )

    def _make_room(self) -> None:
        many = self._tracks.size - self.settings.most_open
        if many > 0:
            leaves = keyed.longest_unseen(self._tracks["arrived"], many)
            unused = leaves & (self._tracks["row"] != NOWHERE)
            self.left_out += int(self._tracks["count"][unused].sum())
            self._drop(leaves)

    def _drop(self, which: BoolArray) -> None:
        rows = self._tracks["row"][which]
        self._free = np.append(self._free, rows[rows != NOWHERE])
        self._tracks = self._tracks.compress(~which)

    def _empty_rows(self, many: int) -> IntArray:
        """Where so many sums can be; 0 so far."""
        room = self._sums.shape[0]
        lack = many - self._free.size
        if lack > 0:
            more = max(lack, room)
            self._sums = np.concatenate((self._sums, np.zeros((more, self.width))))
            self._free = np.append(self._free, np.arange(room, room + more))
        rows, self._free = self._free[:many], self._free[many:]
        self._sums[rows] = 0.0
        return rows
