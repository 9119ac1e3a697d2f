"""A chunk of frames on its way from detections to alarms.

Evidence takes in detections frame by frame, and seconds of tracks when they are over; where it
reaches the budget an alarm is raised. One odd object is no drift, so the tracks that had ground
truth of late are remembered, and those that say that something is wrong.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

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
from monitor.drift.second_bets import SPEAKS, Group, bands_of, sides
from monitor.drift.usual import BLOCK_NS, WatchedRows
from monitor.frames.slices import TOTAL, is_of_classes
from monitor.frames.space import BoolArray, FloatArray, IntArray
from monitor.statistics.clusters import ALONE, LARGEST, ClusterArray, cluster_id

if TYPE_CHECKING:
    from monitor.drift.family import Family


# Tracks that spoke for a chart of a slice and are remembered; more are never asked for.
MOST = 256

# Tracks of a slice that are remembered; an alarm that concerns more tells this number.
MOST_SEEN = 1024


@dataclass(slots=True)
class RecentTracks:
    """Remembers by slice the latest tracks, and the number of a frame or second of each track.

    most  tracks of a slice; the longest unseen is forgotten first
    """

    most: int
    _latest: defaultdict[int, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, slices: IntArray, tracks: ClusterArray, numbers: IntArray) -> None:
        """Takes in n detections or seconds, (n,) each, by ascending number.

        Those of no track (ALONE) say nothing.
        """
        tracked = np.flatnonzero(tracks != ALONE)[::-1]
        keys = cluster_id((slices[tracked], tracks[tracked]))
        _, last = np.unique(keys, return_index=True)
        columns = (one[tracked[last]].tolist() for one in (slices, tracks, numbers))
        for slice, track, number in zip(*columns, strict=True):
            known = self._latest[slice]
            # The latest ones last.
            known.pop(track, None)
            known[track] = number
            if len(known) > self.most:
                del known[next(iter(known))]

    def forget(self, slice: int, before: int) -> None:
        """Drops the tracks of a slice whose latest number is before this one."""
        known = self._latest[slice]
        self._latest[slice] = {track: number for track, number in known.items() if number >= before}

    def count(self, slice: int, since: int) -> int:
        """Counts the tracks of a slice with this number or a later one."""
        return sum(number >= since for number in self._latest[slice].values())


def seconds_over(seconds: Records) -> list[IntArray]:
    """Groups seconds of tracks by source, in the order of the frames by which they are over.

    Those of one group are of one second, over by one frame, and are to be taken in together.
    """
    if seconds.size == 0:
        return []
    key = np.stack([seconds["source"], seconds["frame"], seconds["second"]])
    start = np.flatnonzero((key[:, 1:] != key[:, :-1]).any(axis=0)) + 1
    groups = np.split(np.arange(seconds.size), start)
    return sorted(groups, key=lambda group: seconds["frame"][group[0]])


# s of driving in a stretch: evidence settles with e to the seconds / 30, which overflows at 21,000.
_LONGEST = 300.0

# Of z in sums: its square is cut as NEES/K is.
_LARGEST_Z = math.sqrt(LARGEST)

# Supporters are kept by column, and of the tail, of each slice.
_SUPPORTED = COLUMNS + 1

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

    def __post_init__(self) -> None:
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
        over = seconds_over(self.seconds)[::-1]
        begin, enough, driven = 0, self.enough, 0.0
        for frame, (source, changed) in enumerate(
            zip(rows.source.tolist(), rows.changed.tolist(), strict=True)
        ):
            clock.wait(source, float(seconds[frame]))
            for stage in stages[: 1 + changed]:
                board.add_detections(CHARTS_OF[stage], hours[frame], likelihood[stage][frame])
            while over and self.seconds["frame"][over[-1][0]] == frame:
                self._over(over.pop())
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
        cells = DetectionCells(
            self.k,
            rows.nees[stage],
            usual.mapped(rows.nees[stage], place),
            rows.frame * slices + place,
            rows.track != ALONE,
            frames * slices,
            usual.tempering(place, self.apart),
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

    def _over(self, over: IntArray) -> None:
        """Gives a group of seconds_over() the hours driven since the last one of its source."""
        seconds = self.seconds.take(over)
        hours = self.family.clock.waited(int(seconds["source"][0])) / HOUR
        for stage in Stage:
            heeded = self.usual[stage].levels[self.place[seconds["slice"]]]
            if stage is Stage.RAW:
                heeded = heeded & seconds["changed"]
            if heeded.any():
                self._seconds_of(stage, over[heeded], hours)

    def _seconds_of(self, stage: Stage, chosen: IntArray, hours: float) -> None:
        """Takes in the same second of m tracks of a source, which is over, at one stage.

        chosen  (m,) which of the seconds they are
        hours   of driving that they stand for
        """
        seconds, board = self.seconds.take(chosen), self.board
        at = self.place[seconds["slice"]]
        counts = np.bincount(at, minlength=board.slices)
        group = Group(self.k, stage, seconds, at, board.slices)
        bands = bands_of(self.k, self.usual[stage], self.family.aims[stage], self.family.settings)
        there = channels(self.k)
        chain = board.chain[:, stage][:, there]
        left = group.left(self.usual[stage], bands, chain, self._common_before(stage, chosen))
        chain, means, of_edges = group.common_levels(chain, left, bands)
        board.chain[:, stage, there] = chain
        common = np.zeros((board.slices, CHANNELS))
        common[:, there] = means
        self.seconds["common"][chosen, stage] = common[at]

        said = np.zeros((board.slices, len(CHARTS), COLUMNS, len(FACTORS)))
        for side in sides(self.k, stage):
            clean = board.clean[:, side.chart][:, side.columns]
            of_tracks = group.beyond(side, left, bands, clean)
            sums = summed(of_tracks, at, board.slices)
            sums[counts > 0] += of_edges[side.end][counts > 0][:, side.places, None]
            said[:, side.chart, side.columns] = sums
            self._note(side.chart, seconds, side.columns, of_tracks.max(axis=2) > SPEAKS)
        charts, second = CHARTS_OF[stage], int(seconds["second"][0])
        for chart, aim in enumerate(self.family.aims[stage], charts.start):
            self._note(chart, seconds, *group.far_off(aim))
        outside, tails = group.tails(self.usual[stage])
        # Of the chart on errors that are too large, the first of its stage.
        self._note(charts.start, seconds, np.array([COLUMNS]), outside[:, None])
        given = hours * counts / counts.sum()
        board.add_seconds(charts, given, said[:, charts], tails, second)

    def _note(self, chart: int, seconds: Records, columns: IntArray, speaks: BoolArray) -> None:
        """Notes which tracks speak for a chart, by column.

        speaks  (m, columns)
        """
        which, column = np.nonzero(speaks)
        here = seconds.take(which)
        self.family.supporters[chart].add(
            here["slice"] * _SUPPORTED + columns[column], here["key"], here["second"]
        )

    def _common_before(self, stage: Stage, chosen: IntArray) -> FloatArray:
        """Sums the common levels of earlier seconds by track, this chunk's included; (m, C)."""
        found: FloatArray = self.seconds["common_total"][chosen, stage]
        if chosen.size == self.seconds.size:
            # All seconds of the chunk end now, as in every portion of the watch: none came before.
            return found
        # A key after a pause is another track, and so it is in another life of its source.
        tracks = cluster_id(tuple(self.seconds[name] for name in ("key", "life", "first")))
        lives = np.unique(tracks, return_inverse=True)[1]
        common = self.seconds["common"][:, stage] * self.seconds["count"][:, None]
        sums = summed(common, lives, int(lives.max()) + 1)
        return found + sums[lives[chosen]]

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
        speak = family.supporters[chart].count(slice * _SUPPORTED + column, since)
        enough = fewest <= 1 or speak >= fewest
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
