"""What is known of one slice when the program ends."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from monitor.calibration.drift.charts import CHARTS, Stage
from monitor.calibration.drift.evidence import Evidence
from monitor.calibration.drift.going_on import OpenSlice
from monitor.calibration.drift.learner import ReferenceLearner
from monitor.calibration.drift.observed import CHARTS_OF
from monitor.calibration.drift.reference import Reference, shipped
from monitor.calibration.space import BoolArray


@dataclass(frozen=True, eq=False, slots=True)
class SliceState:
    """One slice.

    known       whether an alarm of its raw estimates was acknowledged
    evidence    of this slice alone
    references  by Stage
    learners    by Stage, which may go on learning; None where the reference is known
    open        what goes on; None: not known
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


def of_stage(stage: Stage) -> BoolArray:
    """(4,) charts."""
    found = np.zeros(len(CHARTS), bool)
    found[CHARTS_OF[stage]] = True
    return found


def without_evidence(state: SliceState, charts: BoolArray) -> SliceState:
    """Some charts (4,) begin anew."""
    evidence = state.evidence.take(np.arange(1))
    evidence.begin_anew(0, charts)
    evidence.peak[:] = 0.0
    open = None if state.open is None else without_whole_tracks(state.open)
    return replace(state, evidence=evidence, open=open)


def without_whole_tracks(open: OpenSlice) -> OpenSlice:
    """What they say is evidence."""
    return replace(open, tracks=open.tracks[:0], sums=open.sums[:0])


def without_tracks(state: SliceState) -> SliceState:
    """All of them begin anew."""
    if state.open is None:
        return state
    open = without_whole_tracks(state.open)
    open = replace(open, blocks=open.blocks[:0], histories=open.histories[:0])
    return replace(state, open=open)


def in_next_epoch(state: SliceState) -> SliceState:
    """Another recalibrator serves it."""
    raw, learner = state.references[Stage.RAW], state.learners[Stage.RAW]
    state = without_tracks(without_evidence(state, of_stage(Stage.RECALIBRATED)))
    state.evidence.chain[:, Stage.RECALIBRATED] = 0.0
    if state.open is not None:
        began = state.open.began[Stage.RAW], None
        state = replace(state, open=replace(state.open, began=began))
    return replace(
        state,
        epoch=state.epoch + 1,
        labelled=0,
        references=(raw, shipped(state.k)),
        learners=(learner, ReferenceLearner(state.k)),
    )
