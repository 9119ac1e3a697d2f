"""The state of a family as one value, from which another family goes on after a restart.

All is kept that what comes next is judged by: a family that goes on judges as if it had never
stopped. How the value is written to disk is not said here.
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
from monitor.drift.clocks import ClockState, TimesState
from monitor.drift.evidence import LARGEST_SUM, DriftSettings, Evidence, Unit
from monitor.drift.family import Family
from monitor.drift.reference import Reference
from monitor.drift.reorder import SourceOrder
from monitor.drift.slice_state import WIDTH, OpenSlice, Seconds, SliceState
from monitor.drift.track_means import TRACK
from monitor.frames.marks import ArrayForm, Count
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
class WholeState:
    """State of TrackMeans over a restart, without its tracks; fields as there."""

    times: TimesState
    late: Count
    beyond: Count
    left_out: Count


@dataclass(frozen=True, eq=False, slots=True)
class OpenState:
    """State over a restart of all slices together.

    frames   that ever came
    times    of TrackSeconds, and late, short and left_out of it
    whole    None where nobody asks for whole tracks
    """

    frames: Count
    clock: ClockState
    times: TimesState
    late: Count
    short: Count
    left_out: Count
    whole: WholeState | None


@dataclass(frozen=True, eq=False, slots=True)
class FamilyState:
    """All slices; fields as in Family and Alarms.

    driven  s
    peak    (2,)
    entry   of the ledger, the last one up to which all are in it; None where that is not known
    beyond  entries behind it that are in it too
    waits   entries that were to be taken in next, in that order
    goes_on clocks of sources and what they tell of tracks; None: not known, all begin anew
    order   what is known of the order in which frames come, of none that is held
    numbers, begins
            versions in the order in which they came in force, and with which of them the epoch of
            a slice began, by name
    """

    gathered: EvidenceTerms
    driven: Seconds
    peak: Annotated[FloatArray, _PEAK]
    latched: Annotated[tuple[Latched, ...], Len(0, MOST_LATCHED)]
    counts: tuple[AlarmCount, ...]
    entry: Count | None = None
    beyond: tuple[Count, ...] = ()
    goes_on: OpenState | None = None
    order: SourceOrder = field(default_factory=SourceOrder)
    numbers: Mapping[str, Count] = field(default_factory=dict)
    begins: Mapping[str, Count] = field(default_factory=dict)
    waits: tuple[Count, ...] = ()
    slices: Annotated[tuple[SliceState, ...], Len(0, MOST_KEPT)] = ()


# ---- what is known


def family_state(family: Family, selection: str) -> FamilyState:
    """Returns the state as of now, but for what is being learned, which goes on.

    `order` is for others to say.

    selection  version of the recalibrator in force
    """
    evidence = family.evidence
    copy = evidence.take(np.arange(evidence.slices))
    # Bets without weight too: from when tracks may have changed is told by what they gather.
    copy.sums = np.minimum(copy.sums, LARGEST_SUM)
    copy.peak = np.minimum(copy.peak, LARGEST_SUM)
    opened = _open_slices(family)
    slices = [_slice_state(family, copy, slice, one) for slice, one in enumerate(opened)]
    slices += family.left.values()
    return FamilyState(
        gathered=EvidenceTerms.under(family.settings, selection),
        driven=family.clock.driven,
        peak=np.minimum(family.peak, LARGEST_SUM),
        latched=tuple([one for one in family.alarms.latched.values() if _kept(one.alarm.slice)])[
            -MOST_LATCHED:
        ],
        counts=tuple(AlarmCount(*what, count) for what, count in family.alarms.counts.items()),
        slices=tuple([one for one in slices if _kept(one.name)][:MOST_KEPT]),
        goes_on=_going_on(family),
    )


def _kept(name: str) -> bool:
    return 0 < len(name) <= LONGEST_NAME


def _going_on(family: Family) -> OpenState:
    seconds, whole = family.seconds, family.whole
    return OpenState(
        frames=family.frames,
        clock=family.clock.state(),
        times=seconds.times.state(),
        late=seconds.late,
        short=seconds.short,
        left_out=seconds.left_out,
        whole=None
        if whole is None
        else WholeState(whole.times.state(), whole.late, whole.beyond, whole.left_out),
    )


def _open_slices(family: Family) -> list[OpenSlice]:
    slices, whole, usual = len(family.names), family.whole, family.usual
    none = (np.zeros(0, TRACK), np.zeros((0, WIDTH)))
    tracks = [none] * slices if whole is None else whole.of_slices(slices)
    return [
        OpenSlice(
            index=i,
            frame_size=float(usual.frame_size[i]),
            began=(usual.began.get((i, Stage.RAW)), usual.began.get((i, Stage.RECALIBRATED))),
            supporters=tuple(tracks.of(i) for tracks in family.supporters),
            seen=family.seen.of(i),
            blocks=blocks,
            histories=histories,
            tracks=tracks[i][0],
            sums=tracks[i][1],
        )
        for i, (blocks, histories) in enumerate(family.seconds.of_slices(slices))
    ]


def _slice_state(family: Family, evidence: Evidence, slice: int, opened: OpenSlice) -> SliceState:
    raw, recalibrated = family.usual.learners[slice]
    known = family.usual.references[slice]
    return SliceState(
        name=family.names[slice],
        k=family.degrees[slice],
        epoch=family.epochs[slice],
        labelled=int(family.labelled[slice]),
        fed=float(family.fed[slice]),
        known=family.known[slice],
        evidence=evidence.take(np.array([slice])),
        references=(
            known[Stage.RAW] if raw is None else None,
            known[Stage.RECALIBRATED] if recalibrated is None else None,
        ),
        learners=(raw, recalibrated),
        open=opened,
    )


# ---- going on


def restored_family(
    state: FamilyState,
    settings: DriftSettings,
    given: Mapping[str, Mapping[Stage, Reference]],
    selection: str,
) -> tuple[Family, list[AlarmChange]]:
    """A family without slices, each of which goes on as it comes; and what became of alarms.

    Under other tolerances or another unit evidence begins anew; under another recalibrator every
    slice has a new epoch. Otherwise alarms stay, and so do references.

    given      as in Family
    selection  version of the recalibrator in force
    """
    family = Family(settings, given)
    family.clock.driven = state.driven
    family.alarms = Alarms(
        {key_of(one.alarm): one for one in state.latched},
        {(one.stage, one.detector, one.direction): one.alarms for one in state.counts},
    )
    now, slices = EvidenceTerms.under(settings, selection), list(state.slices)
    same = replace(state.gathered, selection=selection) == now
    if state.goes_on is not None:
        _go_on(family, state.goes_on, of_whole=same)
    if same:
        family.peak = state.peak.copy()
    else:
        slices = [one.without_evidence(np.ones(len(CHARTS), bool)) for one in slices]
    family.left = {(one.name, one.k): one for one in slices}
    if state.gathered.selection == selection:
        return family, []
    return family, family.new_epoch([], left=True)


def _go_on(family: Family, state: OpenState, *, of_whole: bool) -> None:
    """Goes on with clocks and counts; of_whole: those of whole tracks as well."""
    family.frames = state.frames
    family.clock.restore(state.clock)
    seconds, whole = family.seconds, family.whole
    seconds.times.restore(state.times)
    seconds.late, seconds.short, seconds.left_out = state.late, state.short, state.left_out
    if of_whole and whole is not None and state.whole is not None:
        whole.times.restore(state.whole.times)
        whole.late, whole.beyond = state.whole.late, state.whole.beyond
        whole.left_out = state.whole.left_out
