"""Sums up a cycle of the demo: the headline, text 80 columns wide, one JSON object.

The sidecar's account is compared with the demo's own, and missing parts of the story are named.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from monitor.commands.demo.story import Cycle, Heard, Phase, SensorRecord, proof
from monitor.commands.demo.tracks import Fed, TrackingQuality
from monitor.commands.options import finite, plain
from monitor.drift.alarms import AlarmReason, alarm_sentence
from monitor.drift.bets import Severity
from monitor.promotion.records import SWAPS, Happened

# The sidecar's sums are exact, ours are rounded.
_TOLERANCE = 1e-9

# The histogram of the sidecar's own time.
SECONDS = "calibration_frame_seconds"
_SWAPS = 'calibration_recalibrator_swaps_total{{outcome="{}"}}'
_NAME, _COLUMN = 18, 11

_LEGEND = {
    Phase.HEALTHY: "no sensor has a fault",
    Phase.FAULT: "{faulty} reports its variances × {factor:g}",
    Phase.CORRECTED: "the same, recalibrated: the sidecar has fitted, tried and promoted",
    Phase.AFTER: "the fault is over, and still corrected: now variances are too large",
    Phase.HOME: "the sidecar has taken its correction back",
}


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of the table of tracking, and how the headline names it."""

    name: str
    form: str
    unit: str
    value: Callable[[TrackingQuality], float]
    more_is_better: bool = False

    def of(self, by_input: Mapping[Fed, TrackingQuality]) -> tuple[str, str] | None:
        """Writes it with raw covariances, and with recalibrated ones."""
        if len(by_input) < len(Fed):
            return None
        raw, made = (format(self.value(by_input[fed]), self.form) for fed in Fed)
        return raw, made


SWITCHES = _Line("ID switches", ".0f", "", lambda found: found.id_switches)
WRONG = _Line("wrong object, %", ".1f", " %", lambda found: 100 * found.wrong / found.detections)
POSITION = _Line("position RMSE, m", ".2f", " m", lambda found: found.position_rmse)
VELOCITY = _Line("velocity RMSE, m/s", ".2f", " m/s", lambda found: found.velocity_rmse)
TRACKED = _Line(
    "tracked, %", ".1f", " %", lambda found: 100 * found.tracked / found.detections, True
)
_TRACKING = (SWITCHES, TRACKED, WRONG, POSITION, VELOCITY)


@dataclass(frozen=True, slots=True)
class SidecarAccount:
    """The sidecar's account of the drive: GetCalibration, and its /metrics.

    slices  by name: number of rows, NEES/K raw and recalibrated
    """

    frames: int
    detections: int
    matched: int
    version: str
    slices: Mapping[str, tuple[int, float, float]]
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Summary:
    """All that the demo says in the end.

    sidecar      its account; None where others send to it, too
    differences  between the accounts, in words
    missing      what the sidecar has not done, in words; '' where the story is whole
    """

    cycle: Cycle
    sidecar: SidecarAccount | None
    tracking: Mapping[str, Mapping[Fed, TrackingQuality]]
    differences: tuple[str, ...]
    missing: str


def summarise(cycle: Cycle, sidecar: SidecarAccount | None) -> Summary:
    """Measures tracking and compares the accounts."""
    differences = () if sidecar is None else tuple(_differences(cycle, sidecar))
    tracking, missing = cycle.tracking.quality(), _missing(cycle)
    return Summary(cycle, sidecar, tracking, differences, missing)


def _missing(cycle: Cycle) -> str:
    """Names the part of the story that the sidecar has not done; '' when it is whole."""
    faulty = cycle.plan.faulty
    promoted = cycle.first(Happened.PROMOTED, cycle.fault_began_s)
    if promoted is None or promoted.at_s >= cycle.fault_ended_s:
        tried = cycle.first(Happened.BEGAN, cycle.fault_began_s)
        so_far = "" if tried else ", nor put one on trial"
        return f"promoted a recalibrator for {faulty} while the fault was there{so_far}"
    if Phase.HOME not in cycle.entered_s:
        return f"rolled {faulty} back to what it reports"
    return ""


def _differences(cycle: Cycle, sidecar: SidecarAccount) -> Iterator[str]:
    """Says in words where the sidecar's account and the demo's differ."""
    metric = sidecar.metrics.get
    pairs: list[tuple[str, float, float | None]] = [
        ("frames", cycle.total("frames"), sidecar.frames),
        ("detections", cycle.total("detections"), sidecar.detections),
        ("matched", cycle.total("labelled"), sidecar.matched),
        ("frames in /metrics", cycle.total("frames"), metric("calibration_frames_total")),
    ]
    swaps = Counter(one.record.what for one in cycle.heard)
    pairs += [
        (f"recalibrators {what}", swaps[what], metric(_SWAPS.format(what)))
        for what in (Happened.PROMOTED, Happened.ROLLED_BACK)
    ]
    for name, sensor in cycle.sensors.items():
        n, *theirs = sidecar.slices.get(name, (0, math.nan, math.nan))
        pairs.append((f"matched of {name}", sensor.labelled, n))
        for stage, mine, value in zip(("raw", "recalibrated"), sensor.means(), theirs, strict=True):
            pairs.append((f"{stage} NEES/K of {name}", mine, value))
    for what, mine, other in pairs:
        if other is None or not math.isclose(mine, other, rel_tol=_TOLERANCE):
            yield f"{what}: the demo has {mine}, the sidecar {other}"
    if cycle.version != sidecar.version:
        yield f"recalibrator: {cycle.version} heard of, {sidecar.version} active"


# ---- the headline


def headline(summary: Summary) -> tuple[str, ...]:
    """Says what was found, after how long, what that saved, and what it cost to keep it too long.

    A gain or a cost that this drive has not shown is not claimed.
    """
    cycle = summary.cycle
    plan, lasted = cycle.plan, cycle.lasted_s()
    paged, promoted, back = paging(cycle), *swaps(cycle)
    found = f"{plan.faulty} reported variances {1 / plan.variance_factor:g} times too small."
    if paged:
        found += f" A page was raised {paged[0] - cycle.fault_began_s:.1f} s later."
    if promoted is None:
        return (f"{found} The sidecar has not {summary.missing}.",)
    found += (
        f" After {promoted.at_s - cycle.fault_began_s:.1f} s the sidecar had corrected it by itself"
        f" ({proof(promoted.record.evidence)})."
    )

    def changed(phase: Phase, lines: Iterable[_Line], *, better: bool) -> str:
        found = []
        for line in lines:
            raw, made = line.of(summary.tracking.get(phase, {})) or ("0", "0")
            if raw != made and ((float(made) > float(raw)) is line.more_is_better) is better:
                found.append(f"{line.name.split(',')[0]} {raw} → {made}{line.unit}")
        return ", ".join(found)

    gain = changed(Phase.CORRECTED, (SWITCHES, TRACKED), better=True) or "no gain was seen"
    saved = f"Saved, in {lasted.get(Phase.CORRECTED, 0.0):.0f} s of the fault: {gain}."
    cost = changed(Phase.AFTER, (WRONG, POSITION), better=False) or "no cost was seen"
    over = (
        f"Then the fault ended, and variances were {1 / plan.variance_factor:g} times too large: "
        f"in {lasted.get(Phase.AFTER, 0.0):.0f} s, {cost}. "
    )
    if back is None:
        return found, saved, f"{over}It was not rolled back yet."
    rolled = f"It was rolled back after {back.at_s - cycle.fault_ended_s:.1f} s."
    return found, saved, over + rolled


def paging(cycle: Cycle) -> tuple[float, str] | None:
    """Finds the first page on the faulty sensor since the fault began: when, and what it said."""
    return next(
        (
            (at_s, alarm_sentence(change.alarm).partition(" since ")[0])
            for at_s, change in cycle.alarms
            if change.why is AlarmReason.RAISED
            and change.alarm.severity == Severity.PAGE
            and change.alarm.slice == cycle.plan.faulty
            and at_s >= cycle.fault_began_s
        ),
        None,
    )


def swaps(cycle: Cycle) -> tuple[Heard | None, Heard | None]:
    """Finds the promotion of the correction, and the step back from it."""
    back = [
        one
        for one in cycle.heard
        if one.record.what is Happened.ROLLED_BACK
        and one.record.slice == cycle.plan.faulty
        and one.at_s >= cycle.fault_ended_s
    ]
    return cycle.first(Happened.PROMOTED, cycle.fault_began_s), back[-1] if back else None


def cycle_line(summary: Summary) -> str:
    """Says in one line what came of a cycle of a drive without an end."""
    cycle = summary.cycle
    promoted, back = swaps(cycle)
    parts = [
        f"the cycle is over: {cycle.total('frames'):,} frames, {cycle.total('labelled'):,} labels"
    ]
    if cycle.left_out:
        parts[0] += f", {cycle.left_out:,} frames left out"
    if promoted and not summary.missing.startswith("promoted"):
        parts.append(f"corrected after {promoted.at_s - cycle.fault_began_s:.1f} s")
    else:
        parts.append(f"the sidecar has not {summary.missing}")
    if back:
        parts.append(f"rolled back after {back.at_s - cycle.fault_ended_s:.1f} s")
    elif promoted:
        parts.append("not rolled back")
    for phase, line in ((Phase.CORRECTED, SWITCHES), (Phase.AFTER, WRONG)):
        if values := line.of(summary.tracking.get(phase, {})):
            parts.append(f"{phase}: {line.name} {values[0]} → {values[1]}")
    return "; ".join(parts)


# ---- the tables


def as_text(summary: Summary) -> str:
    """Writes two tables and a few lines."""
    cycle = summary.cycle
    plan = cycle.plan
    frames, detections, labelled = map(cycle.total, ("frames", "detections", "labelled"))
    words = {"faulty": plan.faulty, "factor": plan.variance_factor}
    p50, p99 = (1e3 * v for v in np.quantile(cycle.latency_s or [math.nan], (0.5, 0.99)))
    return "\n".join(
        [
            "",
            f"{len(cycle.sensors)} sensors, {cycle.elapsed_s:.0f} s, seed {plan.seed}",
            *(f"{phase.words:<12}{text.format(**words)}" for phase, text in _LEGEND.items()),
            "",
            "Mean NEES/K, as sent → recalibrated. 1 is calibrated.",
            *_heads(cycle, "sensor"),
            *(
                _row(name, (" → ".join(map(_short, sensor.means(phase))) for phase in Phase))
                for name, sensor in cycle.sensors.items()
            ),
            "",
            *_faulty(summary),
            "",
            *_swaps(cycle),
            f"sent      {frames:,} frames, {detections:,} detections, "
            f"{labelled:,} with truth {plan.truth_delay_s:.3g} s late",
            f"pace      {frames / cycle.wall_s:.1f} frames/s, "
            f"at most {1e3 * cycle.behind_s:.0f} ms late, {cycle.left_out:,} left out",
            f"answers   p50 {p50:.1f} ms, p99 {p99:.1f} ms, from sending to holding the answer",
            *_sidecar(summary),
        ]
    )


def _heads(cycle: Cycle, name: str) -> Iterator[str]:
    """Writes the phases, and how long each lasted."""
    lasted = cycle.lasted_s()
    yield _row(name, (phase.words for phase in Phase))
    yield _row("", (f"{lasted[phase]:.0f} s" if phase in lasted else "–" for phase in Phase))


def _row(name: str, entries: Iterable[str]) -> str:
    return f"{name:<{_NAME}}{''.join(f' {entry:<{_COLUMN}}' for entry in entries)}".rstrip()


def _faulty(summary: Summary) -> Iterator[str]:
    """Writes the table of the sensor that has the fault."""
    yield f"{summary.cycle.plan.faulty}, tracked by what was sent → by what was recalibrated"
    yield from _heads(summary.cycle, "")
    for line in _TRACKING:
        values = (line.of(summary.tracking.get(phase, {})) for phase in Phase)
        yield _row(line.name, (" → ".join(found) if found else "–" for found in values))
    yield "  Switch: an object goes on under another track. Wrong object: detections that"
    yield "  updated a track which is another object's. Tracked: those on confirmed tracks."


def _swaps(cycle: Cycle) -> Iterator[str]:
    """Writes the trials and swaps of each sensor, one a line."""
    for slice, found in _changes(cycle, (*SWAPS, Happened.BEGAN, Happened.DISCARDED)).items():
        what = ", ".join(f"{word.replace('_', ' ')} {count} ×" for word, count in found.items())
        healthy = "" if slice == cycle.plan.faulty else "; it has no fault"
        yield f"changes   {slice or 'all'}: {what.replace('began', 'on trial')}{healthy}"


def _changes(cycle: Cycle, of: Iterable[Happened]) -> dict[str, Counter[str]]:
    """Counts what happened, by slice."""
    counts: dict[str, Counter[str]] = {}
    for one in cycle.heard:
        if one.record.what in of:
            counts.setdefault(one.record.slice, Counter())[str(one.record.what)] += 1
    return counts


def _sidecar(summary: Summary) -> Iterator[str]:
    """Writes what the sidecar says of itself, and whether both sides agree."""
    if summary.sidecar is None:
        return
    metrics = summary.sidecar.metrics
    p50, p99 = (1e3 * _bound(metrics, level) for level in (0.5, 0.99))
    errors = metrics.get("calibration_internal_errors_total", math.nan)
    own = f"p50 ≤ {p50:g} ms, p99 ≤ {p99:g} ms of it its own"
    yield f"sidecar   {own}; {errors:.0f} internal errors"
    if summary.differences:
        yield "counts    the sidecar's and the demo's differ: " + "; ".join(summary.differences)
    else:
        yield "counts    the sidecar's and the demo's agree, NEES/K of every sensor included"


def _bound(metrics: Mapping[str, float], level: float) -> float:
    """Finds the upper bound of the bucket that holds this quantile of SECONDS; NaN without any."""
    total, prefix = metrics.get(f"{SECONDS}_count", 0.0), f'{SECONDS}_bucket{{le="'
    buckets = sorted(
        (float(key.removeprefix(prefix).removesuffix('"}')), count)
        for key, count in metrics.items()
        if key.startswith(prefix)
    )
    return next((le for le, count in buckets if total and count >= level * total), math.nan)


def _short(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "–"


# ---- JSON


def as_json(summary: Summary) -> dict[str, object]:
    """Makes the object that --json prints: plain values, None in place of NaN."""
    cycle = summary.cycle
    plan, paged = cycle.plan, paging(cycle)
    return {
        "headline": " ".join(headline(summary)),
        "seed": plan.seed,
        "duration_seconds": plan.duration_s,
        "speed": plan.speed,
        "truth_delay_seconds": plan.truth_delay_s,
        "fault_seconds": finite(cycle.fault_began_s),
        "fault_end_seconds": finite(cycle.fault_ended_s),
        "page_seconds": paged[0] if paged else None,
        "phase_seconds": cycle.lasted_s(),
        "faulty_sensor": plan.faulty,
        "variance_factor": plan.variance_factor,
        "frames": cycle.total("frames"),
        "detections": cycle.total("detections"),
        "matched": cycle.total("labelled"),
        "frames_per_second": cycle.total("frames") / cycle.wall_s,
        "latest_seconds": cycle.behind_s,
        "left_out": cycle.left_out,
        "latency_seconds": {
            name: float(np.quantile(cycle.latency_s, level))
            for name, level in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
        },
        "sensors": {
            name: {phase: _nees(sensor, phase) for phase in Phase}
            for name, sensor in cycle.sensors.items()
        },
        "tracking": {
            phase: {fed: fields_of(quality) for fed, quality in by_input.items()}
            for phase, by_input in summary.tracking.items()
        },
        "story": [_told(one) for one in cycle.heard],
        "story_is_whole": not summary.missing,
        "missing": summary.missing,
        "swaps": _changes(cycle, SWAPS),
        "events": [{"seconds": at, "text": text} for at, text in cycle.events],
        "sidecar": None if summary.sidecar is None else _account(summary.sidecar),
        "counts_agree": not summary.differences,
        "differences": list(summary.differences),
    }


def fields_of(value: object) -> dict[str, object]:
    """Makes an object of a dataclass."""
    found = plain(value)
    assert isinstance(found, dict)
    return found


def _account(sidecar: SidecarAccount) -> dict[str, object]:
    metrics = {
        name: finite(value)
        for name, value in sidecar.metrics.items()
        if "slice=" not in name and "_bucket" not in name
    }
    bounds = {
        f"frame_seconds_{name}_below": finite(_bound(sidecar.metrics, level))
        for name, level in (("p50", 0.5), ("p99", 0.99))
    }
    counts = {name: getattr(sidecar, name) for name in ("frames", "detections", "matched")}
    return counts | {"recalibrator_version": sidecar.version, "metrics": metrics} | bounds


def _told(heard: Heard) -> dict[str, object]:
    factors = {factor.dimension: factor.typical for factor in heard.record.factors}
    return {"seconds": heard.at_s, **fields_of(heard.record), "factors": factors}


def _nees(sensor: SensorRecord, phase: Phase) -> dict[str, object]:
    raw, made = ({"nees_over_k": finite(mean)} for mean in sensor.means(phase))
    n = int(sensor.sums[phase][0]) if phase in sensor.sums else 0
    return {"n": n, "raw": raw, "recalibrated": made}
