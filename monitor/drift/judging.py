"""Judging: there is an alarm when the evidence of one slice, or of all, reaches the budget.

One odd object is no drift, so the tracks that had ground truth of late are remembered, and those
that say that something is wrong. What becomes of an alarm afterwards is said in alarms.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from monitor.drift.alarms import Alarm
from monitor.drift.bets import CHARTS, DETECTORS, SEVERITIES
from monitor.drift.evidence import HOUR, Evidence, FrameStretch, by_severity, scale_of
from monitor.drift.usual import BLOCK_NS, Usual
from monitor.frames.slices import TOTAL
from monitor.frames.space import FloatArray, IntArray
from monitor.statistics.clusters import ALONE, ClusterArray

# Tracks that spoke for a chart of a slice and are remembered; nobody asks for more.
MOST = 256

# Tracks of a slice that are remembered; an alarm that concerns more tells this number.
MOST_SEEN = 1024
_SEVERITY_OF = np.array([SEVERITIES.index(chart.severity) for chart in CHARTS])


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
        _, last = np.unique(tracks[tracked], return_index=True)
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


# An alarm as it is raised, its slice (None: all slices together), and the names of further slices
# that may be the cause.
Crossing: TypeAlias = tuple[Alarm, int | None, tuple[str, ...]]


@dataclass(frozen=True, eq=False, slots=True)
class Judging:
    """Judges G slices, while P of them take in some frames.

    names, epochs  of all slices
    labelled       (G,) detections with truth of each, in its epoch; counted on meanwhile
    thresholds     (2,) T by severity
    evidence       of all slices; of the P as it was before
    chosen         (P,) which they are
    board          evidence of the P
    others         (2,) M of all other slices together, by severity
    supporters     by chart, tracks that say so, by second
    fewest         of them that there must be, where tracks are known
    seen           all tracks, by frame, up to the frame that is judged
    """

    names: Sequence[str]
    epochs: Sequence[int]
    labelled: IntArray
    thresholds: FloatArray
    usual: Usual
    evidence: Evidence
    chosen: IntArray
    board: Evidence
    others: FloatArray
    supporters: Sequence[RecentTracks]
    fewest: int
    seen: RecentTracks

    @property
    def enough(self) -> float:
        """Returns M over the P slices, below which there is no alarm for sure."""
        return float((self.thresholds - self.others).min())

    def totals(self, stretch: FrameStretch) -> FloatArray:
        """Returns M of all slices together after each frame, by severity: (F, 2)."""
        found: FloatArray = self.others + by_severity(stretch.evidence).sum(axis=1)
        return found

    def crossings(self, stretch: FrameStretch) -> Iterator[Crossing]:
        """Yields the alarms after the last frame of a stretch; there can be none before.

        Evidence that has raised one begins anew.
        """
        evidence, total = by_severity(stretch.evidence[-1]), self.totals(stretch)[-1]
        for severity in np.flatnonzero(total >= self.thresholds).tolist():
            alone = np.flatnonzero(evidence[:, severity] >= self.thresholds[severity])
            by_slice = by_severity(self.evidence.by_chart(self.evidence.weights))[:, severity]
            by_slice[self.chosen] = evidence[:, severity]
            concerned = self._concerned(by_slice, severity)
            for slice in self.chosen[alone].tolist():
                if not self._held_back(slice, severity):
                    alarm = self._of_one(stretch, slice, severity, float(by_slice[slice]))
                    yield alarm, slice, tuple(one for one in concerned if one != alarm.slice)
            if alone.size:
                continue
            slice = int(by_slice.argmax())
            if not self._held_back(slice, severity):
                alarm = self._alarm(stretch, TOTAL, slice, severity, float(total[severity]))
                # It is told by the slice with most of it; all begin anew.
                charts = np.equal(_SEVERITY_OF, severity)
                for board in (self.board, self.evidence):
                    for slice in range(board.slices):
                        board.begin_anew(slice, charts)
                self.others[severity] = 0.0
                yield alarm, None, concerned

    def _at(self, slice: int) -> tuple[Evidence, int]:
        """Where the evidence of a slice is, and its place there."""
        at = np.flatnonzero(self.chosen == slice)
        return (self.board, int(at[0])) if at.size else (self.evidence, slice)

    def _leading(self, slice: int, severity: int) -> tuple[int, int]:
        """Finds the chart and the detector with most evidence of a slice and severity; numbers."""
        board, place = self._at(slice)
        parts = board.by_detector()[place] * np.equal(_SEVERITY_OF, severity)[:, None]
        chart, detector = np.unravel_index(int(parts.argmax()), parts.shape)
        return int(chart), int(detector)

    def _held_back(self, slice: int, severity: int) -> bool:
        """Tells whether too few tracks say so, and cuts the evidence to half the threshold then.

        One odd object is no drift: its evidence waits until other tracks say the same. To lower
        evidence never raises the rate of false alarms.
        """
        board, place = self._at(slice)
        chart, _ = self._leading(slice, severity)
        levels = self.usual.references[slice][CHARTS[chart].stage].levels
        # Who says so is known of seconds of tracks alone.
        tracked = levels is not None and not self.usual.frame_size[slice]
        if self.fewest <= 1 or not tracked:
            return False
        since = int(board.since[place, chart])
        if self.supporters[chart].count(slice, since // BLOCK_NS) >= self.fewest:
            return False
        charts = np.equal(_SEVERITY_OF, severity)
        evidence = by_severity(board.by_chart(board.weights))[place, severity]
        share = self.thresholds[severity] / (2 * evidence)
        board.sums[place, charts] *= min(1.0, float(share))
        return True

    def _concerned(self, by_slice: FloatArray, severity: int) -> tuple[str, ...]:
        """Names the slices of which the k-th largest M is at least T/k, for the largest such k."""
        order = np.argsort(-by_slice, kind="stable")
        enough = by_slice[order] * np.arange(1, order.size + 1) >= self.thresholds[severity]
        last = int(np.flatnonzero(enough).max(initial=-1))
        return tuple(self.names[slice] for slice in order[: last + 1].tolist())

    def _of_one(self, stretch: FrameStretch, slice: int, severity: int, evidence: float) -> Alarm:
        """Raises the alarm of one slice, and takes at least T hours out of the slice's evidence.

        Without that, several faults of one slice would raise more than one alarm in T hours.
        """
        alarm = self._alarm(stretch, self.names[slice], slice, severity, evidence)
        board, place = self._at(slice)
        # What else is wrong at another stage, or the other way, goes on with what is left.
        chart, _ = self._leading(slice, severity)
        board.begin_anew(place, np.equal(np.arange(len(CHARTS)), chart))
        rest = float(by_severity(board.by_chart(board.weights))[place, severity])
        left = evidence - float(self.thresholds[severity])
        if rest > left:
            board.sums[place, np.equal(_SEVERITY_OF, severity)] *= left / rest
        return alarm

    def _alarm(
        self, stretch: FrameStretch, name: str, slice: int, severity: int, evidence: float
    ) -> Alarm:
        """Makes an alarm of this name, of the chart with most of the evidence of a slice."""
        board, place = self._at(slice)
        number, detector = self._leading(slice, severity)
        chart = CHARTS[number]
        return Alarm(
            slice=name,
            severity=SEVERITIES[severity],
            stage=chart.stage,
            detector=DETECTORS[detector],
            direction=chart.direction,
            evidence=evidence,
            threshold=float(self.thresholds[severity]),
            event_ns=int(stretch.stamp_ns[-1]),
            since_ns=int(board.since[place, number]),
            detections=int(board.run[place, number, 0]),
            tracks=self.seen.count(slice, int(board.begun[place, number])),
            labelled=int(self.labelled[slice]),
            scale=scale_of(board.run[place, number], self.usual.worth(slice, chart.stage)),
            epoch=self.epochs[slice],
            driven=stretch.driven / HOUR,
        )
