"""A chunk of frames on its way from detections to alarms.

Evidence takes in detections frame by frame, and seconds of tracks when they are over; where it
reaches the budget an alarm is raised. One odd object is no drift, so the tracks that had ground
truth of late are remembered, and those that say that something is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

from monitor.drift.alarms import Alarm
from monitor.drift.bets import DetectionCells, log_likelihoods
from monitor.drift.causes import Cause, cause_of
from monitor.drift.channels import (
    CHANNELS,
    JOINT,
    channels,
)
from monitor.drift.charts import (
    CHARTS,
    CHARTS_OF,
    DETECTORS,
    SEVERITIES,
    UNKNOWN,
    Detector,
    Quantity,
    Stage,
)
from monitor.drift.class_bets import in_cells
from monitor.drift.correlation import Records, summed
from monitor.drift.evidence import (
    ALL_BETS,
    COLUMNS,
    HOUR,
    OF_SEVERITY,
    OF_TRACKS,
    PLACES,
    SAID,
    SAID_ERROR,
    SAID_UU,
    SAID_Z,
    SAID_ZZ,
    Evidence,
    FrameStretch,
    bounded_likelihood,
    by_severity,
    scale_of,
)
from monitor.drift.levels import (
    FACTORS,
    far_outside,
)
from monitor.drift.reference import UsualArrays
from monitor.drift.second_bets import (
    Bands,
    SecondBets,
    bands_of,
    group_bets,
    second_bets,
    sides_of,
)
from monitor.drift.usual import BLOCK_NS, WatchedRows
from monitor.frames.slices import TOTAL, is_of_classes
from monitor.frames.space import BoolArray, FloatArray, IntArray, read_only
from monitor.statistics.clusters import ALONE, LARGEST, ClusterArray, cluster_id

if TYPE_CHECKING:
    from monitor.drift.family import Family


# Tracks that spoke for a chart of a slice and are remembered; more are never asked for.
MOST = 256

# Tracks of a slice that are remembered; an alarm that concerns more tells this number.
MOST_SEEN = 1024

# Detections or seconds that are added before they are looked through.
_MANY_ADDED = 1 << 15

# Bets that a second may speak for: those of columns, and of the tail.
_SUPPORTED = COLUMNS + 1


T = TypeVar("T", int, IntArray)

# Slices, tracks and numbers, (n,) each.
_Noted: TypeAlias = tuple[IntArray, ClusterArray, IntArray]


def _nothing_noted() -> _Noted:
    return np.zeros(0, np.int64), np.zeros(0, np.uint64), np.zeros(0, np.int64)


@dataclass(slots=True)
class RecentTracks:
    """Remembers by slice the latest tracks, and the number of a frame or second of each track.

    They are looked through when somebody asks, which is seldom, or when many wait.

    most  tracks of a slice; the longest unseen is forgotten first
    """

    most: int
    # Those that were looked through, the latest last, and what was added since.
    _known: _Noted = field(default_factory=_nothing_noted)
    _added: list[_Noted] = field(default_factory=list)
    _rows: int = 0

    def add(self, slices: IntArray, tracks: ClusterArray, numbers: IntArray) -> None:
        """Takes in n detections or seconds, (n,) each, by ascending number.

        Those of no track (ALONE) say nothing.
        """
        tracked = np.flatnonzero(tracks != ALONE)
        if tracked.size == 0:
            return
        self._added.append((slices[tracked], tracks[tracked], numbers[tracked]))
        self._rows += tracked.size
        if self._rows >= max(_MANY_ADDED, self._known[0].size):
            self._look_through()

    def _look_through(self) -> None:
        """Keeps the latest of each track, and of each slice as many as are remembered."""
        together = [
            np.concatenate(column)[::-1] for column in zip(self._known, *self._added, strict=True)
        ]
        latest = np.unique(cluster_id((together[0], together[1])), return_index=True)[1]
        latest.sort()
        slices = together[0][latest]
        order = np.argsort(slices, kind="stable")
        by_slice = slices[order]
        rank = np.arange(order.size) - np.searchsorted(by_slice, by_slice)
        kept = latest[np.sort(order[rank < self.most])][::-1]
        slices, tracks, numbers = (column[kept] for column in together)
        self._known, self._added, self._rows = (slices, tracks, numbers), [], 0

    def count(self, slice: int, since: int) -> int:
        """Counts the tracks of a slice with this number or a later one."""
        if self._added:
            self._look_through()
        slices, _, numbers = self._known
        return int(np.count_nonzero((slices == slice) & (numbers >= since)))


@dataclass(slots=True)
class Supporters:
    """Remembers by slice and bet whether enough tracks have said of late that something is wrong.

    Where enough have in one second, that second tells it; of fewer the tracks are remembered.

    fewest  tracks that are enough
    """

    fewest: int
    # By slice and stage, chart of the stage and column, the latest second in which enough spoke.
    _together: IntArray = field(default_factory=lambda: np.zeros((0, 2, _SUPPORTED), np.int64))
    _few: RecentTracks = field(default_factory=lambda: RecentTracks(MOST))

    def add(
        self,
        slices: IntArray,
        stages: IntArray,
        tracks: ClusterArray,
        second: int,
        start: IntArray,
        bets: tuple[IntArray, IntArray],
        speaks: BoolArray,
    ) -> None:
        """Takes in the same second of m tracks of a source, by stage and slice.

        start   (S,) where each slice at a stage begins
        bets    (W,) charts of the stage, and columns
        speaks  (m, W) which tracks say that something is wrong
        """
        places, known = slices * len(Stage) + stages, self._together.shape[0]
        more = int(places.max()) + 1 - known
        if more > 0:
            room = np.full((more, *self._together.shape[1:]), -(2**62))
            self._together = np.concatenate([self._together, room])
        count = np.add.reduceat(speaks, start, dtype=np.int64)
        enough = count >= self.fewest
        run, at = np.nonzero(enough)
        charts, columns = bets
        cell = places[start[run]], charts[at], columns[at]
        self._together[cell] = np.maximum(self._together[cell], second)
        size = np.diff(start, append=places.size)
        few = np.repeat(~enough & (count > 0), size, axis=0)
        row, at = np.nonzero(few & speaks)
        cells = self._cell(places[row], charts[at], columns[at])
        self._few.add(cells, tracks[row], np.full(row.size, second))

    def enough(self, slice: int, chart: int, column: int, since: int) -> bool:
        """Says whether enough tracks spoke for a bet in this second or later."""
        stage = CHARTS[chart].stage
        place, number = slice * len(Stage) + stage, chart - CHARTS_OF[stage].start
        if place < self._together.shape[0] and self._together[place, number, column] >= since:
            return True
        return self._few.count(int(self._cell(place, number, column)), since) >= self.fewest

    def _cell(self, place: T, chart: T, column: T) -> T:
        return (place * 2 + chart) * _SUPPORTED + column


def seconds_over(seconds: Records) -> list[slice]:
    """Groups seconds of tracks by source, in the order of the frames by which they are over.

    Those of one group are of one second, over by one frame, and are to be taken in together.
    """
    if seconds.size == 0:
        return []
    key = np.stack([seconds["source"], seconds["frame"], seconds["second"]])
    start = np.flatnonzero((key[:, 1:] != key[:, :-1]).any(axis=0)) + 1
    edges = pairwise([0, *start.tolist(), seconds.size])
    groups = [slice(first, end) for first, end in edges]
    return sorted(groups, key=lambda group: int(seconds["frame"][group.start]))


# s of driving in a stretch: evidence settles with e to the seconds / 30, which overflows at 21,000.
_LONGEST = 300.0


@cache
def _speaking(k: int) -> tuple[IntArray, IntArray]:
    """Lists charts of a stage, and columns, of the bets that a second may speak for.

    Of the tail the first chart tells, that of errors that are too large.
    """
    sides = sides_of(k)
    return read_only(np.append(sides.chart, 0)), read_only(np.append(sides.column, COLUMNS))


# Of z in sums: its square is cut as NEES/K is.
_LARGEST_Z = math.sqrt(LARGEST)

# An alarm as it is raised, its slice (None: all slices together), and the names of further slices
# that may be the cause.
Crossing: TypeAlias = tuple[Alarm, int | None, tuple[str, ...]]


@dataclass(eq=False, slots=True)
class Chunk:
    """F frames of one space, and the evidence of the P slices that anything is said of.

    k         degrees of freedom of all of them
    apart     (n,) s since the last label of the track of each row; NaN where not known
    seconds   of tracks, that are over by these frames; their common levels are found here
    chosen    (P,) the slices, by their numbers in the family
    place     (G,) of each slice of the family among the P
    board     evidence of the P; the family has it as it was before
    usual     what is usual of the P, by stage
    others    (2,) M of all other slices together, by severity
    """

    family: Family
    k: int
    rows: WatchedRows
    apart: FloatArray
    seconds: Records
    chosen: IntArray = field(init=False)
    place: IntArray = field(init=False)
    board: Evidence = field(init=False)
    usual: Mapping[Stage, UsualArrays] = field(init=False)
    others: FloatArray = field(init=False)
    # Of the slices at both stages, in the order of Stage.
    _bands: Bands = field(init=False)
    # Whether no track has two of the seconds, as in every portion of the watch.
    _each_once: bool = field(init=False)

    def __post_init__(self) -> None:
        self._each_once = np.unique(self.seconds["key"]).size == self.seconds.size
        family, there = self.family, np.zeros(len(self.family.slices), bool)
        there[self.rows.slices] = there[self.seconds["slice"]] = True
        self.chosen, self.place = np.flatnonzero(there), np.cumsum(there) - 1
        self.board = family.evidence.take(self.chosen)
        self.usual = {stage: family.usual.arrays(stage).take(self.chosen) for stage in Stage}
        everything = family.evidence.by_chart(family.evidence.weights)
        everything[self.chosen] = 0.0
        self.others = by_severity(everything).sum(axis=0)

    # ---- evidence

    def stretches(self) -> Iterator[FrameStretch]:
        """Takes in frame after frame, up to one after which there may be an alarm, or to the last.

        The board may be changed after each stretch.
        """
        rows, board, weights = self.rows, self.board, self.board.weights
        frames, slices, charts = rows.stamp_ns.size, board.slices, len(CHARTS)
        stages = [Stage.RECALIBRATED, *([Stage.RAW] if rows.changed.any() else [])]
        likelihood = {stage: self._likelihood(stage) for stage in stages}
        said = np.zeros((frames, slices, charts, SAID))
        for stage in stages:
            heeded = rows.changed[:, None, None] if stage is Stage.RAW else True
            said[:, :, CHARTS_OF[stage]] = (self._said(stage) * heeded)[:, :, None]
        clock = self.family.clock
        total = clock.driven
        stamps = zip(rows.source.tolist(), rows.stamp_ns.tolist(), strict=True)
        seconds = np.array([clock.drive(source, stamp) for source, stamp in stamps])
        counts = said[:, :, CHARTS_OF[Stage.RECALIBRATED].start, 0]
        # Every detection of a frame has an equal part in its time.
        hours = counts / counts.sum(axis=1, keepdims=True) * (seconds / HOUR)[:, None]
        evidence = np.empty((frames, slices, charts))
        over = self._bets_by_group(seconds_over(self.seconds))[::-1]
        begin, enough, driven = 0, self.enough, 0.0
        for frame, (source, changed) in enumerate(
            zip(rows.source.tolist(), rows.changed.tolist(), strict=True)
        ):
            clock.wait(source, float(seconds[frame]))
            for stage in stages[: 1 + changed]:
                board.add_detections(CHARTS_OF[stage], hours[frame], likelihood[stage][frame])
            while over and over[-1][0] == frame:
                self._over(*over.pop()[1:])
            evidence[frame] = board.by_chart(weights)
            driven += seconds[frame]
            if frame == frames - 1 or driven > _LONGEST or evidence[frame].sum() >= enough:
                part = slice(begin, frame + 1)
                total += float(seconds[part].sum())
                stretch = FrameStretch(
                    self.family.frames + begin,
                    rows.stamp_ns[part],
                    seconds[part],
                    hours[part],
                    evidence[part],
                    said[part],
                    total,
                )
                board.settle(stretch)
                yield stretch
                # An alarm has taken some of it.
                board = self.board
                begin, enough, driven = frame + 1, self.enough, 0.0

    def _likelihood(self, stage: Stage) -> FloatArray:
        """Returns L of each frame, slice and chart, (F, P, 2, BETS); 1 in empty cells."""
        rows, usual, aims = self.rows, self.usual[stage], self.family.aims[stage]
        frames, slices, place = rows.stamp_ns.size, self.board.slices, self.place[rows.slices]
        if rows.votes is not None:
            said = in_cells(rows.votes[stage], rows.frame * slices + place, frames * slices)
            return bounded_likelihood(said).reshape(frames, slices, len(aims), -1)
        tracked = rows.track != ALONE
        cells = DetectionCells(
            self.k,
            rows.nees[stage],
            usual.mapped(rows.nees[stage], place),
            rows.frame * slices + place,
            tracked,
            frames * slices,
            usual.tempering(place[tracked], self.apart[tracked]),
            np.tile(usual.frame_tempering, frames),
            [np.tile(usual.anchor(aim.direction), frames) for aim in aims],
        )
        likelihood = bounded_likelihood(log_likelihoods(cells, aims))
        return likelihood.reshape(frames, slices, len(aims), -1)

    def _said(self, stage: Stage) -> FloatArray:
        """Sums what is said of the detections of each cell, a slice in a frame: (F, P, SAID)."""
        rows, nees = self.rows, self.rows.nees[stage]
        x = np.minimum(nees / self.k, LARGEST)
        frames, slices = rows.stamp_ns.size, self.board.slices
        cell, count = rows.frame * slices + self.place[rows.slices], frames * slices
        found = np.zeros((count, SAID))
        far = nees > far_outside(self.k, self.family.settings.page_tolerance)
        for column, values in enumerate((None, x, x * x, far)):
            found[:, column] = np.bincount(cell, values, count)
        for place, by_dimension in (
            (SAID_ERROR, rows.error[stage]),
            (SAID_Z, np.clip(rows.z[stage], -_LARGEST_Z, _LARGEST_Z)),
            (SAID_ZZ, np.minimum(np.square(rows.z[stage]), LARGEST)),
            (SAID_UU, np.minimum(np.square(rows.u[stage]), LARGEST)),
        ):
            for column, values in enumerate(by_dimension, place.start):
                found[:, column] = np.bincount(cell, values, count)
        return found.reshape(frames, slices, SAID)

    def _bets_by_group(self, groups: Sequence[slice]) -> list[tuple[int, int, SecondBets]]:
        """Returns what is bet on at both stages of each group of seconds_over.

        Beside it the frame by which the group is over, and its source.
        """
        if not groups:
            return []
        seconds, aims, k = self.seconds, self.family.aims, self.k
        slices, usual = self.place[seconds["slice"]], self.usual
        bets = SecondBets.joined(
            [second_bets(k, stage, seconds, slices, usual[stage], aims[stage]) for stage in Stage]
        )
        settings = self.family.settings
        self._bands = Bands.joined(
            [bands_of(k, usual[stage], aims[stage], settings) for stage in Stage]
        )
        group = np.empty(seconds.size, np.int64)
        for number, rows in enumerate(groups):
            group[rows] = number
        group = group[bets.row]
        bets = bets.take(np.argsort(group, kind="stable"))
        edges = np.append(0, np.cumsum(np.bincount(group, minlength=len(groups)))).tolist()
        first = [rows.start for rows in groups]
        return [
            (frame, source, bets.take(slice(*edge)))
            for frame, source, edge in zip(
                seconds["frame"][first].tolist(),
                seconds["source"][first].tolist(),
                pairwise(edges),
                strict=True,
            )
        ]

    def _over(self, source: int, bets: SecondBets) -> None:
        """Takes in the same second of the tracks of a source, which is over.

        It is given the hours driven since the last one of the source.
        """
        hours = self.family.clock.waited(source) / HOUR
        if not bets.at.size:
            return
        board, slices, there = self.board, self.board.slices, channels(self.k)
        if not self._each_once:
            bets = replace(bets, common=bets.common + self._common_in_chunk(bets))
        chain = np.concatenate([board.chain[:, stage][:, there] for stage in Stage])
        clean = np.concatenate([board.clean[:, CHARTS_OF[stage]] for stage in Stage])
        found = group_bets(self.k, bets, self._bands, chain, clean)
        stages, place = np.divmod(bets.at, slices)
        common = np.zeros((found.common.shape[0], CHANNELS))
        common[:, there] = found.common
        self.seconds["common"][bets.row, stages] = common[bets.at]
        second, keys = int(bets.second[0]), self.seconds["key"][bets.row]
        speaks = np.column_stack([found.speaks, bets.begins])
        self.family.supporters.add(
            self.chosen[place], stages, keys, second, found.start, _speaking(self.k), speaks
        )
        for stage in Stage:
            ours = slice(stage * slices, (stage + 1) * slices)
            counts = found.counts[ours]
            if counts.any():
                board.chain[:, stage, there] = found.chain[ours]
                given = hours * counts / counts.sum()
                said, tails = found.said[ours], found.tails[ours]
                board.add_seconds(CHARTS_OF[stage], given, said, tails, second)

    def _common_in_chunk(self, bets: SecondBets) -> FloatArray:
        """Sums the common levels of those earlier seconds of tracks that are in this chunk; (m, C).

        A key after a pause is another track, and so it is in another life of its source.
        """
        tracks = cluster_id(tuple(self.seconds[name] for name in ("key", "life", "first")))
        lives = np.unique(tracks, return_inverse=True)[1]
        common = self.seconds["common"] * self.seconds["count"][:, None, None]
        sums = summed(common, lives, int(lives.max()) + 1)
        found: FloatArray = sums[lives[bets.row], bets.at // self.board.slices]
        return found[:, channels(self.k)]

    # ---- alarms

    @property
    def enough(self) -> float:
        """Returns M over the P slices, below which there is no alarm for sure."""
        return float((self.family.thresholds - self.others).min())

    def totals(self, stretch: FrameStretch) -> FloatArray:
        """Returns M of all slices together after each frame, by severity: (F, 2)."""
        found: FloatArray = self.others + by_severity(stretch.evidence).sum(axis=1)
        return found

    def crossings(self, stretch: FrameStretch) -> Iterator[Crossing]:
        """Yields the alarms after the last frame of a stretch; there can be none before.

        Evidence that has raised one begins anew.
        """
        total, thresholds = self.totals(stretch)[-1], self.family.thresholds
        crossed = np.flatnonzero(total >= thresholds).tolist()
        if not crossed:
            return
        evidence = self.family.evidence
        evidence.put(self.chosen, self.board)
        for severity in crossed:
            by_slice = by_severity(evidence.by_chart(evidence.weights))[:, severity]
            concerned = self._concerned(by_slice, severity)
            alone = self.chosen[by_slice[self.chosen] >= thresholds[severity]].tolist()
            for slice in alone:
                if not self._held_back(slice, severity):
                    alarm = self._of_one(stretch, slice, severity, float(by_slice[slice]))
                    yield alarm, slice, tuple(one for one in concerned if one != alarm.slice)
            leading = int(by_slice.argmax())
            if not alone and not self._held_back(leading, severity):
                alarm = self._alarm(stretch, TOTAL, leading, severity, float(total[severity]))
                # It is told by the slice with most of it; all begin anew.
                for slice in range(evidence.slices):
                    evidence.begin_anew(slice, OF_SEVERITY[:, severity])
                self.others[severity] = 0.0
                yield alarm, None, concerned
        self.board = evidence.take(self.chosen)

    def _leading(self, slice: int, severity: int) -> tuple[int, int]:
        """Finds the chart and the detector with most evidence of a slice and severity; numbers."""
        parts = self.family.evidence.by_detector()[slice] * OF_SEVERITY[:, severity, None]
        chart, detector = np.unravel_index(int(parts.argmax()), parts.shape)
        return int(chart), int(detector)

    def _column(self, slice: int, chart: int, detector: Detector) -> int:
        """Finds the column of seconds of tracks that speaks most for a detector of a slice."""
        if detector is Detector.TAIL:
            return COLUMNS
        if detector in (Detector.ABSOLUTE, Detector.RELATIVE):
            return JOINT
        bets = np.concatenate([np.arange(ALL_BETS)[place] for place in PLACES[detector]])
        most = bets[self.family.evidence.sums[slice, chart, bets].argmax()]
        return int(most - OF_TRACKS.start) // len(FACTORS)

    def _held_back(self, slice: int, severity: int) -> bool:
        """Tells whether too few tracks say so, and cuts the evidence to half the threshold then.

        One odd object is no drift: its evidence waits until other tracks say the same. To lower
        evidence never raises the rate of false alarms.
        """
        family, evidence, fewest = (
            self.family,
            self.family.evidence,
            self.family.settings.fewest_tracks,
        )
        chart, detector = self._leading(slice, severity)
        reference = family.slices[slice].reference(CHARTS[chart].stage)
        # Who says so is known of seconds of tracks alone.
        tracked = reference.is_of_tracks and not family.usual.frame_size[slice]
        since = int(evidence.since[slice, chart]) // BLOCK_NS
        column = self._column(slice, chart, DETECTORS[detector])
        enough = fewest <= 1 or family.supporters.enough(slice, chart, column, since)
        if enough or not tracked:
            return False
        gathered = by_severity(evidence.by_chart(evidence.weights))[slice, severity]
        share = family.thresholds[severity] / (2 * gathered)
        evidence.sums[slice, OF_SEVERITY[:, severity]] *= min(1.0, float(share))
        return True

    def _concerned(self, by_slice: FloatArray, severity: int) -> tuple[str, ...]:
        """Names the slices of which the k-th largest M is at least T/k, for the largest such k."""
        order = np.argsort(-by_slice, kind="stable")
        enough = by_slice[order] * np.arange(1, order.size + 1) >= self.family.thresholds[severity]
        last = int(np.flatnonzero(enough).max(initial=-1))
        return tuple(self.family.slices[slice].name for slice in order[: last + 1].tolist())

    def _of_one(self, stretch: FrameStretch, slice: int, severity: int, gathered: float) -> Alarm:
        """Raises the alarm of one slice, and takes at least T hours out of the slice's evidence.

        Without that, several faults of one slice would raise more than one alarm in T hours.
        """
        evidence, name = self.family.evidence, self.family.slices[slice].name
        alarm = self._alarm(stretch, name, slice, severity, gathered)
        # What else is wrong at another stage, or the other way, goes on with what is left.
        chart, _ = self._leading(slice, severity)
        evidence.begin_anew(slice, np.equal(np.arange(len(CHARTS)), chart))
        rest = float(by_severity(evidence.by_chart(evidence.weights))[slice, severity])
        left = gathered - float(self.family.thresholds[severity])
        if rest > left:
            evidence.sums[slice, OF_SEVERITY[:, severity]] *= left / rest
        return alarm

    def _alarm(
        self, stretch: FrameStretch, name: str, slice: int, severity: int, gathered: float
    ) -> Alarm:
        """Makes an alarm of this name, of the chart with most of the evidence of a slice."""
        family, evidence = self.family, self.family.evidence
        number, detector = self._leading(slice, severity)
        chart = CHARTS[number]
        scale = scale_of(evidence.run[slice, number], family.usual.worth(slice, chart.stage))
        of_classes = is_of_classes(family.slices[slice].name)
        run = evidence.run[slice, number]
        cause = Cause(Quantity.CONFIDENCE) if of_classes else cause_of(evidence, slice, number)
        return Alarm(
            slice=name,
            severity=SEVERITIES[severity],
            stage=chart.stage,
            detector=Detector.CONFIDENCE if of_classes else DETECTORS[detector],
            direction=chart.direction,
            dimension=cause.names(family.dimensions[slice]),
            quantity=cause.quantity,
            size=cause.size(run, scale),
            unit=cause.unit(family.dimensions[slice]),
            evidence=gathered,
            threshold=float(family.thresholds[severity]),
            event_ns=int(stretch.stamp_ns[-1]),
            since_ns=int(evidence.since[slice, number]),
            detections=int(evidence.run[slice, number, 0]),
            tracks=family.seen.count(slice, int(evidence.begun[slice, number])),
            labelled=family.slices[slice].labelled,
            scale=UNKNOWN if of_classes else scale,
            epoch=family.slices[slice].epoch,
            driven=stretch.driven / HOUR,
        )
