"""When there is an alarm: the evidence of one slice, or of all together, has reached what a budget
demands. And what it says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from monitor.calibration.drift.alarm import Alarm
from monitor.calibration.drift.charts import CHARTS, DETECTORS, SEVERITIES
from monitor.calibration.drift.chunk import HOUR
from monitor.calibration.drift.evidence import Evidence, Stretch, by_severity
from monitor.calibration.drift.scale import scale_of
from monitor.calibration.drift.supporters import SeenTracks, Supporters
from monitor.calibration.drift.usual import Usual
from monitor.calibration.slices import TOTAL
from monitor.calibration.space import FloatArray, IntArray

_SEVERITY_OF = np.array([SEVERITIES.index(chart.severity) for chart in CHARTS])


@dataclass(frozen=True, eq=False, slots=True)
class Crossing:
    """An alarm as it is raised.

    slice      that it is of; None: of all together
    concerned  names of slices that may be meant as well
    """

    alarm: Alarm
    slice: int | None
    concerned: tuple[str, ...]


@dataclass(frozen=True, eq=False, slots=True)
class _Last:
    """A frame after which there may be an alarm.

    stamp_ns  its event time
    driven    s of driving up to it
    evidence  (P, 2) M of each slice by severity
    total     (2,) M of all slices together
    """

    stamp_ns: int
    driven: float
    evidence: FloatArray
    total: FloatArray


@dataclass(frozen=True, eq=False, slots=True)
class Judging:
    """G slices, while P of them take in some frames.

    names, epochs  of all slices
    labelled       (G,) detections with truth of each, in its epoch; counted on meanwhile
    thresholds     (2,) T by severity
    evidence       of all slices; of the P as it was before
    chosen         (P,) which they are
    board          evidence of the P
    others         (2,) M of all other slices together, by severity
    supporters     tracks that say so; None: nobody asks for them
    fewest         of them that there must be, where tracks are known
    seen           all tracks, up to the frame that is judged
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
    supporters: Supporters | None
    fewest: int
    seen: SeenTracks

    @property
    def enough(self) -> float:
        """M over the P slices, below which there is no alarm for sure."""
        return float((self.thresholds - self.others).min())

    def totals(self, stretch: Stretch) -> FloatArray:
        """(F, 2) M of all slices together after each frame, by severity."""
        found: FloatArray = self.others + by_severity(stretch.evidence).sum(axis=1)
        return found

    def crossings(self, stretch: Stretch, driven: float) -> Iterator[Crossing]:
        """Alarms after the last frame of a stretch; there can be none before.

        Evidence that has raised one begins anew.

        driven  s up to that frame
        """
        stamp_ns, total = int(stretch.stamp_ns[-1]), self.totals(stretch)[-1]
        last = _Last(stamp_ns, driven, by_severity(stretch.evidence[-1]), total)
        for severity in np.flatnonzero(total >= self.thresholds).tolist():
            alone = np.flatnonzero(last.evidence[:, severity] >= self.thresholds[severity])
            by_slice = self._by_slice(last, severity)
            concerned = self._concerned(by_slice, severity)
            for place in alone.tolist():
                if not self._held_back(self.board, place, int(self.chosen[place]), severity):
                    yield self._of_one(last, place, severity, concerned)
            if alone.size:
                continue
            most = int(by_slice.argmax())
            board, place = self._at(most)
            if not self._held_back(board, place, most, severity):
                yield self._of_all(last, most, severity, concerned)

    def _at(self, slice: int) -> tuple[Evidence, int]:
        """Where the evidence of a slice is, and its place there."""
        at = np.flatnonzero(self.chosen == slice)
        return (self.board, int(at[0])) if at.size else (self.evidence, slice)

    def _leading(self, board: Evidence, place: int, severity: int) -> tuple[int, int]:
        """Numbers of the chart and of the detector with most of the evidence of a severity."""
        parts = board.by_detector()[place] * np.equal(_SEVERITY_OF, severity)[:, None]
        chart, detector = np.unravel_index(int(parts.argmax()), parts.shape)
        return int(chart), int(detector)

    def _held_back(self, board: Evidence, place: int, slice: int, severity: int) -> bool:
        """Whether too few tracks say so. Evidence of one odd object is halved until others do: it
        may be any less than it is, and still keep its budget.
        """
        chart, _ = self._leading(board, place, severity)
        levels = self.usual.references[slice][CHARTS[chart].stage].levels
        # Who says so is known of seconds of tracks alone.
        tracked = levels is not None and not self.usual.frame_size[slice]
        if self.fewest <= 1 or self.supporters is None or not tracked:
            return False
        since = int(board.since[place, chart])
        if self.supporters.count(slice, chart, since) >= self.fewest:
            return False
        charts = np.equal(_SEVERITY_OF, severity)
        evidence = by_severity(board.by_chart(board.weights))[place, severity]
        share = self.thresholds[severity] / (2 * evidence)
        board.sums[place, charts] *= min(1.0, float(share))
        return True

    def _by_slice(self, last: _Last, severity: int) -> FloatArray:
        """(G,) M of every slice."""
        found: FloatArray = by_severity(self.evidence.by_chart(self.evidence.weights))[:, severity]
        found[self.chosen] = last.evidence[:, severity]
        return found

    def _concerned(self, by_slice: FloatArray, severity: int) -> tuple[str, ...]:
        """Slices of which the k-th largest M is at least T/k, for the largest such k."""
        order = np.argsort(-by_slice, kind="stable")
        enough = by_slice[order] * np.arange(1, order.size + 1) >= self.thresholds[severity]
        last = int(np.flatnonzero(enough).max(initial=-1))
        return tuple(self.names[slice] for slice in order[: last + 1].tolist())

    def _of_one(
        self, last: _Last, place: int, severity: int, concerned: tuple[str, ...]
    ) -> Crossing:
        """Raises the alarm of one slice, and takes at least T hours out of the slice's evidence.

        Without that, several faults of one slice would raise more than one alarm in T hours.
        """
        slice = int(self.chosen[place])
        name, evidence = self.names[slice], float(last.evidence[place, severity])
        alarm = self._alarm(self.board, place, last, name, slice, severity, evidence)
        # What else is wrong at another stage, or the other way, goes on with what is left.
        chart, _ = self._leading(self.board, place, severity)
        self.board.begin_anew(place, np.equal(np.arange(len(CHARTS)), chart))
        rest = float(by_severity(self.board.by_chart(self.board.weights))[place, severity])
        left = evidence - float(self.thresholds[severity])
        if rest > left:
            self.board.sums[place, np.equal(_SEVERITY_OF, severity)] *= left / rest
        return Crossing(alarm, slice, tuple(one for one in concerned if one != name))

    def _of_all(
        self, last: _Last, most: int, severity: int, concerned: tuple[str, ...]
    ) -> Crossing:
        """An alarm of all slices together, told by the one with most of it; all begin anew."""
        board, place = self._at(most)
        evidence = float(last.total[severity])
        alarm = self._alarm(board, place, last, TOTAL, most, severity, evidence)
        charts = np.equal(_SEVERITY_OF, severity)
        for board in (self.board, self.evidence):
            for slice in range(board.slices):
                board.begin_anew(slice, charts)
        self.others[severity] = 0.0
        return Crossing(alarm, None, concerned)

    def _alarm(
        self,
        board: Evidence,
        place: int,
        last: _Last,
        name: str,
        slice: int,
        severity: int,
        evidence: float,
    ) -> Alarm:
        """What is wrong is what has most of the evidence of a slice, at its place on a board."""
        number, detector = self._leading(board, place, severity)
        chart = CHARTS[number]
        return Alarm(
            slice=name,
            severity=SEVERITIES[severity],
            stage=chart.stage,
            detector=DETECTORS[detector],
            direction=chart.direction,
            evidence=evidence,
            threshold=float(self.thresholds[severity]),
            event_ns=last.stamp_ns,
            since_ns=int(board.since[place, number]),
            detections=int(board.run[place, number, 0]),
            tracks=self.seen.count(slice, int(board.begun[place, number])),
            labelled=int(self.labelled[slice]),
            scale=scale_of(board.run[place, number], self.usual.worth(slice, chart.stage)),
            epoch=self.epochs[slice],
            driven=last.driven / HOUR,
        )
