"""Builds the report of a running sidecar from what it answers, and that of a file of statistics.

Measures are read from the exported statistics, which are exact sums: they are those that
GetCalibration gives for the same moment.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TypeVar

import numpy as np

from monitor.commands.pages.report_page import Report, Said, Section, Slice
from monitor.commands.sidecar_client import Client, DriftStandings
from monitor.drift.alarms import (
    Alarm,
    DriftState,
    alarm_sentence,
    hours,
    left_out_sentence,
    moment,
)
from monitor.drift.charts import Severity
from monitor.figures.evaluations import JOINT, assumption, factors
from monitor.figures.svg import Figure, number
from monitor.figures.tables import Table
from monitor.figures.timeline import Line, Mark, timeline
from monitor.frames.slices import TOTAL, is_total, label
from monitor.frames.space import FloatArray
from monitor.frames.status import Status
from monitor.promotion.records import SWAPS
from monitor.statistics.class_evaluation import ClassEvaluation
from monitor.statistics.exact_engine import EQUAL_COUNT, BinCut
from monitor.statistics.predicted import PredictedStatistics, no_predicted
from monitor.statistics.reading import (
    RAW,
    RECALIBRATED,
    read,
    read_class_slice,
    read_predicted,
)
from monitor.statistics.state import (
    SliceState,
    SliceStatistics,
    StageStatistics,
    StatisticsState,
)
from monitor.statistics.vehicles import BIAS, LEVEL, NOTHING_COMPARED, SCALE, Comparison
from monitor.statistics.verdicts import FEWEST_TO_JUDGE
from monitor.statistics.windows import PaneKey
from monitor.store.column_names import some_of
from monitor.store.statistics_state import decode
from monitor.wire.values import Listing

# Records of recalibrators that are asked for, and alarms and records that are told.
_RECORDS, _TOLD = 1000, 200

# Vehicles in the table of those that differ, and in the sentence about them.
_VEHICLES, _NAMED = 20, 3

# Slices with a line over time, and factors on σ that are too far off to be called calibrated.
_LINES, _FACTOR = 6, math.sqrt(2.0)

_NOTHING_STANDS = DriftStandings()

S = TypeVar("S", SliceStatistics, PredictedStatistics)


@dataclass(frozen=True, slots=True)
class Seen:
    """Holds what was found out about a sidecar.

    statistics  everything that it has counted
    status, listing, standings, counts  as it answered; None or empty of a file of statistics
    active      documents of the active recalibrators, by version
    """

    statistics: StatisticsState
    status: Status | None = None
    listing: Listing | None = None
    standings: DriftStandings = field(default_factory=DriftStandings)
    counts: Mapping[str, int] = field(default_factory=dict)
    active: Mapping[str, str] = field(default_factory=dict)


async def look(client: Client) -> Seen:
    """Asks a sidecar for all that its report tells.

    Raises SidecarUnavailable, SidecarRefused, InvalidState, IncompatibleStatistics, UnknownWord.
    """
    calibration = await client.calibration()
    stored = decode(await client.export_statistics())
    listing = await client.listing(_RECORDS)
    active = [one.version for one in listing.recalibrators if one.in_force]
    return Seen(
        stored.state,
        await client.status(),
        listing,
        await client.standings(),
        {name.name: value for name, value in calibration.counts.ListFields()},
        {version: (await client.shown(version))[1] for version in active},
    )


def report_of(
    seen: Seen, made: Mapping[str, str], compared: Comparison = NOTHING_COMPARED
) -> Report:
    """Builds the report. `made` says what was asked, and how; compared: vehicles of a fleet."""
    slices = list(slices_of(seen.statistics))
    classes, alarms = list(classes_of(seen.statistics)), alarms_of(seen.standings)
    return Report(
        title="Calibration report",
        verdict=[*_differing(compared), *verdict(slices, alarms, classes, seen.standings)],
        slices=slices,
        classes=classes,
        opening=[_vehicles(compared), _over_time(seen)],
        sections=[
            _all_detections(seen.statistics),
            _drift(seen, alarms),
            _recalibrators(seen.listing),
            _labels(seen),
        ],
        made=dict(made) | _when(seen),
    )


def slices_of(statistics: StatisticsState, cut: BinCut = EQUAL_COUNT) -> Iterator[Slice]:
    """Reads the measures of each slice since its statistics began, and their sum by space."""
    held = [one for one in statistics.slices if one.panes]
    taken = {TOTAL}
    for one in statistics.slices:  # those without panes too: they may have taken a name first
        name = label(one.name, one.space, taken)
        taken.add(name)
        if one.panes:
            yield _slice(name, cut, one)
    taken.discard(TOTAL)
    for space in dict.fromkeys(one.space for one in held):
        several = [one for one in held if one.space == space]
        if len(several) > 1:
            name = label(TOTAL, space, taken)
            taken.add(name)
            yield _slice(name, cut, *several)


def _slice(name: str, cut: BinCut, *parts: SliceState) -> Slice:
    panes = [pane for part in parts for pane in part.panes.values()]
    total = reduce(SliceStatistics.merge, panes)
    raw = read(total.raw, cut)
    stages = {RAW: raw}
    if total.recalibrated is not total.raw:
        stages[RECALIBRATED] = read(total.recalibrated, cut)
    return Slice(name, parts[0].space, stages)


def classes_of(statistics: StatisticsState) -> Iterator[tuple[str, dict[str, ClassEvaluation]]]:
    """Reads the measures of class probabilities by slice and stage."""
    for one in statistics.class_slices:
        if one.panes:
            total = reduce(lambda a, b: a.merge(b), one.panes.values())
            yield one.name, read_class_slice(one.name, total).shown


def alarms_of(standings: DriftStandings) -> list[Alarm]:
    """Lists the alarms that stay, pages first."""
    found = [one.alarm for one in standings.standings if one.alarm is not None]
    return sorted(found, key=lambda alarm: alarm.severity is not Severity.PAGE)


def verdict(
    slices: Sequence[Slice],
    alarms: Sequence[Alarm],
    classes: Sequence[object] = (),
    standings: DriftStandings = _NOTHING_STANDS,
) -> Iterator[Said]:
    """Says what is wrong, the gravest first: alarms, labels left out, slices that are far off.

    classes  slices of class probabilities with labels, which are not judged here
    """
    for alarm in alarms:
        yield Said(str(alarm.severity), f"Alarm, {alarm_sentence(alarm)}.")
    left_out = left_out_sentence(standings.left_out)
    blind = bool(left_out) and any(
        one.slice == TOTAL and one.state is DriftState.TOO_FEW for one in standings.standings
    )
    if left_out:
        yield Said("ticket" if blind else "note", f"{left_out[0].upper()}{left_out[1:]}.")
    if not slices:
        of = " of estimates; of class probabilities see below" * bool(classes)
        yield Said("ticket", f"Nothing can be judged: no ground truth has come{of}.")
        return
    judged = [one for one in slices if one.last.joint.n_eff >= FEWEST_TO_JUDGE]
    if not judged and not alarms:
        yield Said("ticket", "Nothing can be judged: too little ground truth has come.")
        return
    single = [one for one in judged if not is_total(one.name)]
    for one in single:
        if one.assumed:
            yield Said("note", f"{one.name}: {assumption(one.space, one.last)}.")
    known = [(factors(one.last)[JOINT], one) for one in single if not one.assumed]
    off = [(f, one) for f, one in known if f < 1 / _FACTOR or _FACTOR < f < math.inf]
    for factor, one in sorted(off, key=lambda found: -max(found[0], 1 / (found[0] or 1))):
        if factor == 0:
            words = f"{one.name}: all errors are 0. Is the ground truth a copy of the mean?"
            yield Said("ticket", words)
            continue
        wrong, way = ("over", "small") if factor > 1 else ("under", "large")
        yield Said(
            "ticket",
            f"{one.name}: {wrong}confident over all the time measured, σ is "
            f"{number(max(factor, 1 / factor))} times too {way} as it is forwarded "
            f"({one.last.rows:,} labelled detections). No drift is proven by this alone.",
        )
    if known and not alarms and not off and not blind:
        yield Said("well", "No alarm, and no slice is off by a factor 2 in variance or more.")


def _differing(compared: Comparison) -> Iterator[Said]:
    """Says that vehicles differ, and which do so most certainly."""
    if named := list(compared.by_vehicle):
        yield Said(
            "ticket",
            f"Vehicles that differ from the fleet: {some_of(named, _NAMED)}, of "
            f"{compared.vehicles:,}. {compared.found[0].vehicle}: {compared.found[0].words}.",
        )


def _vehicles(compared: Comparison) -> Section | None:
    """Tells which vehicles differ from the fleet, and in which slices they could be compared."""
    if not compared.slices:
        return None
    rows = tuple(
        (vehicle, found[0].words, f"{len(found) - 1:,}", number(found[0].z), number(found[0].q))
        for vehicle, found in list(compared.by_vehicle.items())[:_VEHICLES]
    )
    head = ("vehicle", "what is most certain", "further", "z", "false discovery rate")
    slices = tuple(
        (
            one.slice, one.stage, f"{one.compared:,}", f"{one.too_little:,}", number(one.spread),
            *(f"{compared.different(one, quantity):,}" for quantity in (SCALE, BIAS)),
        )
        for one in compared.slices[:_TOLD]
    )  # fmt: skip
    of_slices = (
        *("slice", "stage", "compared", "too little data", "spread of healthy ones, ln"),
        *("differ in scale", "differ in bias"),
    )
    words = [
        f"{len(compared.by_vehicle):,} of {compared.vehicles:,} vehicles differ from the fleet by "
        "more than healthy ones do among each other. Of those that are named, "
        f"{LEVEL:.0%} at most are expected to be so by chance."
    ]
    tables = [Table(head, rows)] * bool(rows) + [Table(of_slices, slices)]
    return Section("Vehicles that differ", words, tables=tables)


def _over_time(seen: Seen) -> Section | None:
    """Draws NEES/K of the panes that time is kept in, with alarms and swaps of recalibrators."""
    statistics = seen.statistics
    if statistics.clock_ns is None:
        return None
    figures: list[Figure] = []
    marks = list(_marks(seen, statistics.clock_ns))
    for one in sorted(statistics.slices, key=lambda one: -one.n)[:_LINES]:
        known = {key: pane for key, pane in one.panes.items() if pane.raw.n > 0}
        time, panes = _over_panes(known, statistics)
        if time.size < 3:
            continue
        lines = [
            Line(name, time, np.array([_nees(getattr(pane, name)) for pane in panes]))
            for name in (RAW, RECALIBRATED)
        ]
        figures.append(
            timeline(
                f"NEES/K over time: {one.name}",
                "1 is calibrated. A point is one pane of time; older panes are longer.",
                lines,
                [mark for mark in marks if mark.time >= time[0]],
                x_label="minutes before the last frame",
                y_label="NEES/K",
                log=True,
                ideal=1.0,
            )
        )
    return Section("Over time", figures=figures) if figures else None


def _nees(stage: StageStatistics) -> float:
    return read(stage).joint.nees_over_k


def _over_panes(
    panes: Mapping[PaneKey, S], statistics: StatisticsState
) -> tuple[FloatArray, list[S]]:
    """Orders panes of known time; returns the middle of each, in minutes before the clock."""
    clock = statistics.clock_ns or 0
    found, end = [], clock
    for level, length in enumerate(statistics.windows.pane_ns):
        here = [(count * length, pane) for (of, count), pane in panes.items() if of == level]
        # A longer pane that reaches into shorter ones holds only what is before these.
        found += [((start + min(start + length, end)) / 2, pane) for start, pane in here]
        end = min((start for start, _ in here), default=end)
    found.sort(key=lambda entry: entry[0])
    return np.array([(at - clock) / 6e10 for at, _ in found]), [pane for _, pane in found]


def _all_detections(statistics: StatisticsState) -> Section | None:
    """Tells how certain the detector was of all detections, labelled or not."""
    lines, rows, taken = [], [], {TOTAL}
    for one in statistics.predicted:
        name = label(one.name, one.space, taken)
        taken.add(name)
        total = reduce(PredictedStatistics.merge, one.panes.values())
        found = read_predicted(name, total, no_predicted())
        numbers = (found.entropy_mean, found.entropy_q95, found.deviation_q50, found.deviation_q95)
        rows.append((name, f"{found.n:,}", *map(number, numbers)))
        classified = {key: pane for key, pane in one.panes.items() if pane.entropies.any()}
        time, panes = _over_panes(classified, statistics)
        values = (read_predicted(name, pane, no_predicted()).entropy_mean for pane in panes)
        lines.append((found.classified, Line(name, time, np.array(list(values)))))
    if not rows:
        return None
    drawn = sorted((one for one in lines if one[1].time.size >= 3), key=lambda one: -one[0])
    figures = []
    if drawn:
        says = "It rises where a detector meets what it does not know. A point is one pane of time."
        most = [line for _, line in drawn[:_LINES]]
        x, y = "minutes before the last frame", "mean entropy over log C"
        figures.append(timeline("Entropy over time", says, most, x_label=x, y_label=y))
    head = (
        *("slice", "detections", "mean entropy", "its 95 % quantile"),
        *("median σ_G", "its 95 % quantile"),
    )
    return Section(
        "All detections, labelled or not",
        ("What the detector claims, as sent, before any truth.",),
        figures=figures,
        tables=[Table(head, tuple(rows[:_TOLD]))],
    )


def _marks(seen: Seen, clock_ns: int) -> Iterator[Mark]:
    for alarm in alarms_of(seen.standings):
        yield Mark((alarm.event_ns - clock_ns) / 6e10, str(alarm.severity))
    for record in seen.listing.records if seen.listing else ():
        if record.what in SWAPS and record.event_ns is not None:
            word = str(record.what).replace("_", " ")
            yield Mark((record.event_ns - clock_ns) / 6e10, word)


def _drift(seen: Seen, alarms: Sequence[Alarm]) -> Section:
    if seen.status is None:
        return Section("Drift", ["A file of statistics holds no evidence of drift."])
    if not seen.standings.standings:
        return Section("Drift", ["Drift is not watched, or no label has come."])
    stays = [f"Stays until it is acknowledged: {alarm_sentence(alarm)}." for alarm in alarms]
    rows = tuple(
        (
            one.slice, str(one.severity), one.state.name.lower().replace("_", " "),
            hours(one.evidence), hours(one.peak), hours(one.threshold),
        )
        for one in seen.standings.standings[:_TOLD]
    )  # fmt: skip
    head = ("slice", "severity", "state", "evidence now", "its peak", "an alarm needs")
    return Section("Drift", stays or ["No alarm stays."], tables=[Table(head, rows)])


def _recalibrators(listing: Listing | None) -> Section | None:
    if listing is None:
        return None
    rows = tuple(
        (
            moment(one.time_ns), one.what.replace("_", " "), one.slice or "all",
            one.after, one.actor, one.reason,
        )
        for one in listing.records[-_TOLD:][::-1]
    )  # fmt: skip
    mode = "pinned: nothing changes by itself" if listing.pinned else listing.promotion
    return Section(
        "Recalibrators",
        (f"Promotion: {mode}.", f"On trial or guarded: {len(listing.trials)}."),
        tables=[Table(("time (UTC)", "what", "slice", "active afterwards", "by", "why"), rows)],
    )


def _labels(seen: Seen) -> Section | None:
    if seen.status is None:
        return None
    now = seen.status.now_ns
    rows = tuple(
        (
            one.stream, f"{one.frames:,}", f"{one.detections:,}", f"{one.matched:,}",
            _ago(now, one.received_ns), _ago(now, one.matched_received_ns),
        )
        for one in seen.status.streams
    )  # fmt: skip
    counted = tuple((name.replace("_", " "), f"{value:,}") for name, value in seen.counts.items())
    head = ("stream", "frames", "detections", "labels matched", "last frame", "last label")
    tables = [Table(head, rows), Table(("since the start", ""), counted)]
    return Section("Frames and labels", tables=tables)


def _ago(now_ns: int, then_ns: int | None) -> str:
    return "never" if then_ns is None else f"{max(now_ns - then_ns, 0) / 1e9:,.0f} s ago"


def _when(seen: Seen) -> dict[str, str]:
    found = {
        "bins": "20 of equal count, cut from micro-bins",
        "binning": seen.statistics.binning.hash,
    }
    if seen.statistics.holds:
        found["holds"] = seen.statistics.holds.counted
    if seen.statistics.clock_ns is not None:
        found["event time of the last frame"] = moment(seen.statistics.clock_ns)
    if seen.status is not None:
        found |= {
            "sidecar": f"version {seen.status.version}, started {moment(seen.status.started_ns)}",
            "configuration": seen.status.configuration or "defaults",
            "asked at": moment(seen.status.now_ns),
        }
    return found
