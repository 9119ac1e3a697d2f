"""The state of a family as one value, from which another family goes on after a restart.

What is known is kept: evidence, references and what is being learned, alarms, hours. What merely
goes on begins anew: tracks and seconds of tracks, clocks, who spoke for an alarm. How the value is
written to disk is not said here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

import numpy as np
from annotated_types import Interval, Len

from monitor.drift.alarms import (
    LONGEST_NAME,
    AlarmChange,
    AlarmCount,
    Alarms,
    Latched,
    key_of,
)
from monitor.drift.bets import CHARTS, SEVERITIES, Stage
from monitor.drift.correlation import Seconds
from monitor.drift.evidence import LARGEST_SUM, DriftSettings, Unit
from monitor.drift.family import Family, SliceState
from monitor.drift.reference import Reference
from monitor.frames.marks import ArrayForm, Count, Nanoseconds
from monitor.frames.space import MOST_SLICES, FloatArray

# Slices that are kept, at most: those that are there, and as many that have not come back.
MOST_KEPT = 2 * (MOST_SLICES + 1)

# Alarms that stay, at most; names of slices that are long gone add up.
MOST_LATCHED = len(SEVERITIES) * MOST_KEPT

# On σ.
Tolerance = Annotated[float, Interval(ge=1.0, le=1e9)]
_PEAK = ArrayForm(np.float64, (len(SEVERITIES),), 0.0, LARGEST_SUM)


@dataclass(frozen=True, slots=True)
class EvidenceTerms:
    """How evidence was gathered: it is of this alone.

    selection  version of the recalibrator that made what is forwarded
    """

    page_tolerance: Tolerance
    ticket_tolerance: Tolerance
    unit: Unit
    selection: str

    @classmethod
    def under(cls, settings: DriftSettings, selection: str) -> EvidenceTerms:
        """Returns how evidence is gathered under these settings."""
        return cls(settings.page_tolerance, settings.ticket_tolerance, settings.unit, selection)


@dataclass(frozen=True, eq=False, slots=True)
class FamilyState:
    """All slices; fields as in Family and Alarms.

    driven     s
    peak       (2,)
    frames     that ever came: evidence and learners count them
    latest_ns  time of each source: tracks that it has by then may have been bet on
    numbers, begins
               versions in the order in which they became active, and with which of them the epoch
               of a slice began, by name
    """

    gathered: EvidenceTerms
    driven: Seconds
    peak: Annotated[FloatArray, _PEAK]
    latched: Annotated[tuple[Latched, ...], Len(0, MOST_LATCHED)]
    counts: tuple[AlarmCount, ...]
    frames: Count = 0
    latest_ns: Mapping[int, Nanoseconds] = field(default_factory=dict)
    numbers: Mapping[str, Count] = field(default_factory=dict)
    begins: Mapping[str, Count] = field(default_factory=dict)
    slices: Annotated[tuple[SliceState, ...], Len(0, MOST_KEPT)] = ()


def family_state(family: Family, selection: str) -> FamilyState:
    """Returns the state as of now, but for what is being learned, which goes on.

    `numbers` and `begins` are for others to say.

    selection  version of the active recalibrator
    """
    evidence = family.evidence
    copy = evidence.take(np.arange(evidence.slices))
    # Bets without weight too: from when tracks may have changed is told by what they gather.
    copy.sums = np.minimum(copy.sums, LARGEST_SUM)
    copy.peak = np.minimum(copy.peak, LARGEST_SUM)
    slices = [
        SliceState(
            name=name,
            k=family.degrees[slice],
            epoch=family.epochs[slice],
            labelled=int(family.labelled[slice]),
            fed=float(family.fed[slice]),
            known=family.known[slice],
            evidence=copy.take(np.array([slice])),
            references=(None if raw else of_raw, None if made else of_made),
            learners=(raw, made),
        )
        for slice, (name, (raw, made), (of_raw, of_made)) in enumerate(
            zip(family.names, family.usual.learners, family.usual.references, strict=True)
        )
    ]
    slices += family.left.values()
    return FamilyState(
        gathered=EvidenceTerms.under(family.settings, selection),
        driven=family.clock.driven,
        peak=np.minimum(family.peak, LARGEST_SUM),
        latched=tuple([one for one in family.alarms.latched.values() if _kept(one.alarm.slice)])[
            -MOST_LATCHED:
        ],
        counts=tuple(AlarmCount(*what, count) for what, count in family.alarms.counts.items()),
        frames=family.frames,
        latest_ns=family.seconds.times.latest_ns,
        slices=tuple([one for one in slices if _kept(one.name)][:MOST_KEPT]),
    )


def _kept(name: str) -> bool:
    return 0 < len(name) <= LONGEST_NAME


def restored_family(
    state: FamilyState,
    settings: DriftSettings,
    given: Mapping[str, Mapping[Stage, Reference]],
    selection: str,
) -> tuple[Family, list[AlarmChange]]:
    """Returns a family whose slices go on as they come, and what became of alarms.

    Under other tolerances or another unit evidence begins anew; under another recalibrator every
    slice has a new epoch. Otherwise alarms stay, and so do references.

    given      as in Family
    selection  version of the active recalibrator
    """
    family = Family(settings, given)
    family.clock.driven, family.frames = state.driven, state.frames
    family.seconds.go_on(state.latest_ns)
    family.alarms = Alarms(
        {key_of(one.alarm): one for one in state.latched},
        {(one.stage, one.detector, one.direction): one.alarms for one in state.counts},
    )
    slices = state.slices
    if replace(state.gathered, selection=selection) == EvidenceTerms.under(settings, selection):
        family.peak = state.peak.copy()
    else:
        slices = tuple(one.without_evidence(np.ones(len(CHARTS), bool)) for one in slices)
    family.left = {(one.name, one.k): one for one in slices}
    if state.gathered.selection == selection:
        return family, []
    return family, family.new_epoch([], left=True)
