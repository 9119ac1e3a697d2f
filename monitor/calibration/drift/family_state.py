"""What is known of all slices when the program ends, and a family that goes on from there. Seconds
of tracks that are open are not of it: tracks begin anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from monitor.calibration.drift.alarm import AlarmChange, Why
from monitor.calibration.drift.alarms import Alarms, Counted, Key, Latched
from monitor.calibration.drift.charts import CHARTS, SEVERITIES, Severity, Stage
from monitor.calibration.drift.evidence import Evidence
from monitor.calibration.drift.family import Family
from monitor.calibration.drift.learner import ReferenceLearner
from monitor.calibration.drift.observed import CHARTS_OF
from monitor.calibration.drift.reference import Origin, Reference, shipped
from monitor.calibration.drift.reference_json import reference_to_json
from monitor.calibration.drift.settings import DriftSettings, Unit
from monitor.calibration.limits import MOST_SLICES
from monitor.calibration.space import BoolArray, FloatArray

# Slices that are kept, at most: those that are there, and as many that have not come back.
MOST_KEPT = 2 * (MOST_SLICES + 1)
# Alarms that stay and counts of alarms, at most; names of slices that are long gone add up.
MOST_LATCHED = len(SEVERITIES) * MOST_KEPT
MOST_COUNTED = 12 * MOST_KEPT
# Characters of the name of a slice; longer ones are not kept.
LONGEST_NAME = 4096
# No R in hours says more, and sums of it stay finite.
LARGEST_EVIDENCE = 1e200

Of = TypeVar("Of", Key, Counted)
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Gathered:
    """How evidence was gathered: it is of this alone.

    selection  version of the recalibrator that made what is forwarded
    """

    page_tolerance: float
    ticket_tolerance: float
    unit: Unit
    selection: str

    @classmethod
    def under(cls, settings: DriftSettings, selection: str) -> Gathered:
        """These settings."""
        return cls(settings.page_tolerance, settings.ticket_tolerance, settings.unit, selection)


@dataclass(frozen=True, eq=False, slots=True)
class SliceState:
    """One slice.

    evidence    of this slice alone
    references  by Stage
    learners    by Stage, which may go on learning; None where the reference is known
    """

    name: str
    k: int
    epoch: int
    labelled: int
    fed: float
    evidence: Evidence
    references: tuple[Reference, ...]
    learners: tuple[ReferenceLearner | None, ...]


@dataclass(frozen=True, eq=False, slots=True)
class FamilyState:
    """All slices; fields as in Family and Alarms.

    driven  s
    peak    (2,)
    """

    gathered: Gathered
    driven: float
    peak: FloatArray
    latched: Mapping[Key, Latched]
    counts: Mapping[Counted, int]
    slices: tuple[SliceState, ...]


# ---- what is known


def family_state(family: Family, selection: str) -> FamilyState:
    """As of now, but for what is being learned, which goes on.

    selection  version of the recalibrator in force
    """
    evidence = family.evidence
    # A bet without weight may have gathered anything.
    sums = np.where(evidence.weights > 0, np.minimum(evidence.sums, LARGEST_EVIDENCE), 0.0)
    copy = evidence.take(np.arange(evidence.slices))
    copy.sums, copy.peak = sums, np.minimum(copy.peak, LARGEST_EVIDENCE)
    slices = [_slice_state(family, copy, slice) for slice in range(len(family.names))]
    if isinstance(family, RestoredFamily):
        slices += family.left.values()
    return FamilyState(
        gathered=Gathered.under(family.settings, selection),
        driven=family.clock.driven,
        peak=np.minimum(family.peak, LARGEST_EVIDENCE),
        latched=dict(
            [one for one in family.alarms.latched.items() if _kept(one[0][0])][-MOST_LATCHED:]
        ),
        counts=dict(
            [one for one in family.alarms.counts.items() if _kept(one[0][0])][-MOST_COUNTED:]
        ),
        slices=tuple([one for one in slices if _kept(one.name)][:MOST_KEPT]),
    )


def _kept(name: str) -> bool:
    return 0 < len(name) <= LONGEST_NAME


def _slice_state(family: Family, evidence: Evidence, slice: int) -> SliceState:
    own = (getattr(evidence, name)[slice : slice + 1] for name in evidence.__dataclass_fields__)
    return SliceState(
        name=family.names[slice],
        k=family.degrees[slice],
        epoch=family.epochs[slice],
        labelled=int(family.labelled[slice]),
        fed=float(family.fed[slice]),
        evidence=Evidence(*own),
        references=tuple(family.usual.references[slice]),
        learners=tuple(family.usual.learners[slice]),
    )


# ---- going on


@dataclass(slots=True)
class RestoredFamily(Family):
    """A family that goes on where another one ended, slice by slice as they come.

    left  states of slices that have not come yet, by name and K
    """

    left: dict[tuple[str, int], SliceState] = field(default_factory=dict)

    def grow(self, name: str, k: int) -> None:
        """The next slice, as it was left."""
        Family.grow(self, name, k)
        state = self.left.pop((name, k), None)
        if state is not None:
            self._go_on(len(self.names) - 1, state)

    def _go_on(self, slice: int, state: SliceState) -> None:
        self.epochs[slice] = state.epoch
        self.labelled[slice], self.fed[slice] = state.labelled, state.fed
        self.evidence.put(np.array([slice]), state.evidence)
        for stage in Stage:
            known = state.references[stage]
            begun = self.usual.references[slice][stage]
            learns = self.usual.learners[slice][stage] is not None
            if learns and known.origin is not Origin.FILE:
                self.usual.put(slice, stage, known)
                self.usual.learners[slice][stage] = state.learners[stage]
            elif reference_to_json(known) != reference_to_json(begun):
                # It was gathered against another reference.
                self.evidence.begin_anew(slice, _of_stage(stage))
            self._set_shares(slice, stage)

    def forget_forwarded(self) -> None:
        """Another recalibrator is in force: slices that have not come yet may be served by it."""
        self.left = {key: _in_next_epoch(state) for key, state in self.left.items()}

    def _reset_peak(self, slice: str, severity: Severity) -> None:
        Family._reset_peak(self, slice, severity)
        for state in self.left.values():
            if state.name == slice:
                state.evidence.peak[:, SEVERITIES.index(severity)] = 0.0


def restored_family(
    state: FamilyState,
    settings: DriftSettings,
    given: Mapping[str, Mapping[Stage, Reference]],
    selection: str,
) -> tuple[RestoredFamily, list[AlarmChange]]:
    """A family without slices, each of which goes on as it comes; and what became of alarms.

    Under other tolerances or another unit evidence begins anew; under another recalibrator every
    slice has a new epoch. Otherwise alarms stay, and so do references.

    given      as in Family
    selection  version of the recalibrator in force
    """
    family = RestoredFamily(settings, given)
    family.clock.driven = state.driven
    family.alarms = Alarms(dict(state.latched), dict(state.counts))
    now, slices, changes = Gathered.under(settings, selection), list(state.slices), []
    if replace(state.gathered, selection=selection) == now:
        family.peak = state.peak.copy()
    else:
        slices = [_without_evidence(one, np.ones(len(CHARTS), bool)) for one in slices]
    if state.gathered.selection != selection:
        slices = [_in_next_epoch(one) for one in slices]
        forwarded = [
            key
            for key in family.alarms.of_slices([one.name for one in slices])
            if family.alarms.latched[key].alarm.stage is Stage.RECALIBRATED
        ]
        changes = family.alarms.over(forwarded, Why.NEW_EPOCH)
    family.left = {(one.name, one.k): one for one in slices}
    return family, changes


def _of_stage(stage: Stage) -> BoolArray:
    """(4,) charts."""
    found = np.zeros(len(CHARTS), bool)
    found[CHARTS_OF[stage]] = True
    return found


def _without_evidence(state: SliceState, charts: BoolArray) -> SliceState:
    evidence = state.evidence.take(np.arange(1))
    evidence.begin_anew(0, charts)
    evidence.peak[:] = 0.0
    return replace(state, evidence=evidence)


def _in_next_epoch(state: SliceState) -> SliceState:
    """As Family.new_epoch() does; nothing has come of an epoch without truth."""
    if state.labelled == 0:
        return state
    raw, learner = state.references[Stage.RAW], state.learners[Stage.RAW]
    return replace(
        _without_evidence(state, _of_stage(Stage.RECALIBRATED)),
        epoch=state.epoch + 1,
        labelled=0,
        references=(raw, shipped(state.k)),
        learners=(learner, ReferenceLearner(state.k)),
    )
