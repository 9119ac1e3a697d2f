"""The state of one slice when the program ends, as a value that the next run goes on from."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from monitor.drift.bets import Stage, of_stage
from monitor.drift.evidence import Evidence
from monitor.drift.keyed import Records
from monitor.drift.reference import Reference, shipped
from monitor.drift.usual import ReferenceLearner
from monitor.frames.space import BoolArray, FloatArray, IntArray
from monitor.statistics.clusters import ClusterArray


@dataclass(frozen=True, eq=False, slots=True)
class OpenSlice:
    """The open tracks of one slice.

    index       that it had: the keys of its tracks are made of it
    frame_size  detections in a frame, lately
    began       by Stage, s of driving with ground truth of it when learning began; None: it did not
    supporters  by chart, tracks that spoke for it (n,) and the latest such second of each (n,)
    seen        tracks that had ground truth of late (n,), and the latest frame of each (n,)
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

    def without_whole_tracks(self) -> OpenSlice:
        """Drops whole tracks that are not over: what they say is evidence."""
        return replace(self, tracks=self.tracks[:0], sums=self.sums[:0])


@dataclass(frozen=True, eq=False, slots=True)
class SliceState:
    """All that is known of one slice.

    known       whether an alarm of its raw estimates was acknowledged
    evidence    of this slice alone
    references  by Stage
    learners    by Stage, which may go on learning; None where the reference is known
    open        its tracks that go on; None: not known
    """

    name: str
    k: int
    epoch: int
    labelled: int
    fed: float
    known: bool
    evidence: Evidence
    references: tuple[Reference, ...]
    learners: tuple[ReferenceLearner | None, ...]
    open: OpenSlice | None = None

    def without_evidence(self, charts: BoolArray) -> SliceState:
        """Begins anew with the evidence of some charts, (4,)."""
        evidence = self.evidence.take(np.arange(1))
        evidence.begin_anew(0, charts)
        evidence.peak[:] = 0.0
        open = None if self.open is None else self.open.without_whole_tracks()
        return replace(self, evidence=evidence, open=open)

    def without_tracks(self) -> SliceState:
        """Begins anew with all tracks."""
        if self.open is None:
            return self
        open = self.open.without_whole_tracks()
        open = replace(open, blocks=open.blocks[:0], histories=open.histories[:0])
        return replace(self, open=open)

    def in_next_epoch(self) -> SliceState:
        """Begins the next epoch: another recalibrator serves the slice."""
        raw, learner = self.references[Stage.RAW], self.learners[Stage.RAW]
        state = self.without_evidence(of_stage(Stage.RECALIBRATED)).without_tracks()
        state.evidence.chain[:, Stage.RECALIBRATED] = 0.0
        open = state.open
        return replace(
            state,
            epoch=state.epoch + 1,
            labelled=0,
            references=(raw, shipped(state.k)),
            learners=(learner, ReferenceLearner(state.k)),
            open=None if open is None else replace(open, began=(open.began[Stage.RAW], None)),
        )
