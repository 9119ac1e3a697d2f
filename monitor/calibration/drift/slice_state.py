"""What is known of one slice when the program ends. Seconds of tracks that are open are not of it:
tracks begin anew.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from monitor.calibration.drift.charts import CHARTS, Stage
from monitor.calibration.drift.evidence import Evidence
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
    return replace(state, evidence=evidence)


def in_next_epoch(state: SliceState) -> SliceState:
    """Another recalibrator serves it."""
    raw, learner = state.references[Stage.RAW], state.learners[Stage.RAW]
    return replace(
        without_evidence(state, of_stage(Stage.RECALIBRATED)),
        epoch=state.epoch + 1,
        labelled=0,
        references=(raw, shipped(state.k)),
        learners=(learner, ReferenceLearner(state.k)),
    )
