"""The state of one slice at a checkpoint, as a value that the next run goes on from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from annotated_types import Interval, Len

from monitor.drift.alarms import SliceName
from monitor.drift.bets import BETS, CHARTS, Stage, of_stage
from monitor.drift.evidence import Evidence
from monitor.drift.judging import RECENT
from monitor.drift.keyed import Records, check_keys
from monitor.drift.reference import Degrees, Reference
from monitor.drift.track_means import NOWHERE, TRACKS
from monitor.drift.track_seconds import BLOCKS, HISTORIES
from monitor.drift.usual import ReferenceLearner
from monitor.frames.marks import ArrayForm, Count
from monitor.frames.space import BoolArray, FloatArray, IntArray

# Sums of a whole track: by bet, and whether a recalibrator has changed it.
WIDTH = len(CHARTS) * BETS + 1

# Σ L, each of which is e⁵⁰ at most.
_SUMS = ArrayForm(np.float64, (None, WIDTH), 0.0, 1e40)

# s; far above any clock.
Seconds = Annotated[float, Interval(ge=0.0, le=1e12)]
Recent = Annotated[Records, ArrayForm(RECENT, (None,))]


@dataclass(frozen=True, eq=False, slots=True)
class OpenSlice:
    """The open tracks of one slice.

    index       that it had: the keys of its tracks are made of it
    frame_size  detections in a frame, lately
    began       by Stage, s of driving with ground truth of it when learning began; None: it did not
    supporters  by chart, tracks that spoke for it (n,) and the latest such second of each
    seen        tracks that had ground truth of late (n,), and the latest frame of each
    blocks      seconds of tracks that are not over, by key
    histories   of tracks that may go on, by key
    tracks      whole ones that are not over, by key; row ≥ 0 where they are not used yet
    sums        (m, C) of those that are not used yet, in their order
    """

    index: Count
    frame_size: Annotated[float, Interval(ge=0.0, le=1e9)]
    began: tuple[Seconds | None, Seconds | None]
    supporters: Annotated[tuple[Recent, ...], Len(len(CHARTS), len(CHARTS))]
    seen: Recent
    blocks: Annotated[Records, BLOCKS]
    histories: Annotated[Records, HISTORIES]
    tracks: Annotated[Records, TRACKS]
    sums: Annotated[FloatArray, _SUMS]

    def check(self, turns: IntArray) -> None:
        """Raises ValueError where the fields do not fit, or seconds are in none of these turns."""
        for table in (self.blocks, self.histories, self.tracks):
            check_keys(table)
            if (table["slice"] != self.index).any():
                raise ValueError(f"tracks must be of the slice of 'index' {self.index}")
        if not np.isin(self.blocks["turn"], turns).all():  # nothing would ever end such a second
            raise ValueError("'blocks' must be in turns that a source of 'goes_on.times' has")
        rows = self.tracks["row"]
        if not np.array_equal(rows[rows != NOWHERE], np.arange(self.sums.shape[0])):
            raise ValueError("'sums' must be as many as 'tracks' that wait, in their order")

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
    references  by Stage; None where it is being learned, and what is shipped stands for it
    learners    by Stage, which may go on learning; None where the reference is known
    open        its tracks that go on; None: not known
    """

    name: SliceName
    k: Degrees
    epoch: Count
    labelled: Count
    fed: Seconds
    known: bool
    evidence: Evidence
    references: tuple[Reference | None, Reference | None]
    learners: tuple[ReferenceLearner | None, ReferenceLearner | None]
    open: OpenSlice | None = None

    def check(self, turns: IntArray) -> None:
        """Raises ValueError where the fields do not fit, or seconds are in none of these turns."""
        for reference, learner in zip(self.references, self.learners, strict=True):
            if [one.k for one in (reference, learner) if one is not None] != [self.k]:
                raise ValueError(f"each stage must have a reference or a learner, of 'k' {self.k}")
        sizes = {getattr(self.evidence, name).shape[0] for name in Evidence.__dataclass_fields__}
        if sizes != {1} or self.evidence.shares.sum(axis=-1).max() > 1 + 1e-9:
            raise ValueError("'evidence' must be of one slice, and 'shares' at most 1 in sum")
        if self.open is not None:
            self.open.check(turns)

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
            references=(raw, None),
            learners=(learner, ReferenceLearner(state.k)),
            open=None if open is None else replace(open, began=(open.began[Stage.RAW], None)),
        )
