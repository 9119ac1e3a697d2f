"""Sums up a cycle of the demo: the headline, text 80 columns wide, one JSON object.

The sidecar's account is compared with the demo's own, and missing parts of the story are named.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields

import numpy as np

from monitor.commands.demo.story import ASSUMED, Cycle, Phase, SensorRecord, proof
from monitor.commands.demo.tracks import Fed, TrackingQuality
from monitor.commands.doctor.look import Samples, quantile
from monitor.commands.output import finite, plain
from monitor.promotion.records import SWAPS, Happened, Record
from monitor.v1.perception_monitor_pb2 import GetCalibrationResponse
from monitor.wire.values import Kind, Listing

# The sidecar's sums are exact, ours are rounded.
_TOLERANCE = 1e-9

# Counts that the sidecar has in its metrics alone.
_FRAMES = "frames in /metrics"
_SWAPPED = {what: f"recalibrators {what}" for what in (Happened.PROMOTED, Happened.ROLLED_BACK)}
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
    """The sidecar's account of the drive; `counts` are named as counts_of() names them."""

    counts: Mapping[str, float]
    version: str
    metrics: Samples


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


def summarise(cycle: Cycle, sidecar: SidecarAccount | None = None) -> Summary:
    """Measures tracking and compares the accounts."""
    differences = () if sidecar is None else tuple(_differences(cycle, sidecar))
    return Summary(cycle, sidecar, cycle.tracking.quality(), differences, _missing(cycle))


def _missing(cycle: Cycle) -> str:
    """Names the part of the story that the sidecar has not done; '' when it is whole."""
    faulty = cycle.plan.faulty
    if math.isinf(cycle.promoted_s):
        so_far = "" if cycle.tried else ", nor put one on trial"
        return f"promoted a recalibrator for {faulty} while the fault was there{so_far}"
    return "" if Phase.HOME in cycle.entered_s else f"rolled {faulty} back to what it reports"


def counts_of(cycle: Cycle) -> dict[str, float]:
    """Collects what the demo has counted, and the sidecar should have."""
    swaps = Counter(record.what for _, record in cycle.heard)
    frames, detections, matched = map(cycle.total, ("frames", "detections", "labelled"))
    counts: dict[str, float] = {"frames": frames, "detections": detections, "matched": matched}
    counts |= {_FRAMES: frames} | {swapped: swaps[what] for what, swapped in _SWAPPED.items()}
    for name, sensor in cycle.sensors.items():
        counts |= _of_sensor(cycle.plan.slice_of(name), sensor.labelled, *sensor.means())
    return counts


def account_of(found: GetCalibrationResponse, listing: Listing, metrics: Samples) -> SidecarAccount:
    """Collects what the sidecar has counted."""
    counts: dict[str, float] = {_FRAMES: metrics.value("frames_total")}
    for what in ("frames", "detections", "matched"):
        counts[what] = getattr(found.counts, what)
    for what, swapped in _SWAPPED.items():
        counts[swapped] = metrics.value("recalibrator_swaps_total", outcome=what)
    for entry in found.slices:
        raw, made = (stage.joint.nees_over_k for stage in entry.stages)
        counts |= _of_sensor(entry.slice, entry.stages[0].n, raw, made)
    active = (one for one in listing.recalibrators if one.in_force and one.kind is Kind.ESTIMATES)
    return SidecarAccount(counts, next(active).version, metrics)


def _of_sensor(name: str, matched: float, raw: float, recalibrated: float) -> dict[str, float]:
    found = {"matched": matched, "raw NEES/K": raw, "recalibrated NEES/K": recalibrated}
    return {f"{what} of {name}": value for what, value in found.items()}


def _differences(cycle: Cycle, sidecar: SidecarAccount) -> Iterator[str]:
    """Says in words where the sidecar's account and the demo's differ."""
    for what, mine in counts_of(cycle).items():
        other = sidecar.counts.get(what, math.nan)
        if not math.isclose(mine, other, rel_tol=_TOLERANCE):
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
    found = f"{plan.faulty} reported variances {1 / plan.variance_factor:g} times too small."
    if cycle.page:
        found += f" A page was raised {cycle.paged_s - cycle.fault_began_s:.1f} s later."
    if math.isinf(cycle.promoted_s):
        return f"{found} The sidecar has not {summary.missing}.", *_learned(cycle)
    found += (
        f" After {cycle.promoted_s - cycle.fault_began_s:.1f} s the sidecar had corrected it by "
        f"itself ({proof(cycle.evidence)})."
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
    back = "not rolled back yet"
    if math.isfinite(cycle.rolled_back_s):
        back = f"rolled back after {cycle.rolled_back_s - cycle.fault_ended_s:.1f} s"
    over = (
        f"Then the fault ended, and variances were {1 / plan.variance_factor:g} times too large: "
        f"in {lasted.get(Phase.AFTER, 0.0):.0f} s, {cost}. It was {back}."
    )
    return found, saved, over, *_learned(cycle)


def _learned(cycle: Cycle) -> Iterator[str]:
    """Says when a covariance was learned for the sensor that reports none, and what it is worth."""
    if cycle.learned is None:
        return
    record, at_s, tracks = cycle.learned
    changed = cycle.sensors[cycle.plan.bare].changed
    sizes = [
        f"{ASSUMED * math.sqrt(factor.typical):.2f} m ({factor.dimension})"
        for factor in record.factors
        if factor.dimension in ("x", "y")
    ]
    said = f" σ of {' and '.join(sizes)} in place of {ASSUMED:g} m;" * bool(sizes)
    nees = f"{changed[1] / changed[0]:.2f} → {changed[2] / changed[0]:.2f}" if changed[0] else "–"
    yield (
        f"{cycle.plan.bare} reports no covariance. After {at_s:.1f} s and labels of {tracks} "
        f"objects the sidecar had learned one, and promoted it ({proof(record.evidence)}):{said} "
        f"NEES/K {nees}."
    )


def cycle_line(summary: Summary) -> str:
    """Says in one line what came of a cycle of a drive without an end."""
    cycle = summary.cycle
    sent = f"{cycle.total('frames'):,} frames, {cycle.total('labelled'):,} labels"
    return f"the cycle is over: {sent}, {cycle.left_out:,} left out. {' '.join(headline(summary))}"


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
            *[
                f"{name:<12}reports no covariance: {ASSUMED:g} m or rad stand for σ as sent"
                for name in cycle.sensors
                if name == plan.bare
            ],
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


def _sidecar(summary: Summary) -> Iterator[str]:
    """Writes what the sidecar says of itself, and whether both sides agree."""
    if summary.sidecar is None:
        return
    p50, p99 = (1e3 * bound for bound in _bounds(summary.sidecar))
    errors = summary.sidecar.metrics.value("internal_errors_total")
    yield f"sidecar   p50 ≤ {p50:g} ms, p99 ≤ {p99:g} ms of its own; {errors:.0f} internal errors"
    found = f"differ: {'; '.join(summary.differences)}" if summary.differences else "agree"
    yield f"counts    the sidecar's and the demo's {found}, NEES/K of every sensor included"


def _bounds(sidecar: SidecarAccount) -> tuple[float, float]:
    """Bounds the median and the 99 % quantile of the sidecar's own time for a frame, s."""
    counts = sidecar.metrics.by("frame_seconds_bucket", "le")
    return quantile(counts, 0.5), quantile(counts, 0.99)


def _short(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "–"


# ---- JSON


def as_json(summary: Summary) -> dict[str, object]:
    """Makes the object that --json prints: plain values, None in place of NaN."""
    cycle = summary.cycle
    plan = cycle.plan
    return {
        "headline": " ".join(headline(summary)),
        "seed": plan.seed,
        "duration_seconds": plan.duration_s,
        "speed": plan.speed,
        "truth_delay_seconds": plan.truth_delay_s,
        "fault_seconds": finite(cycle.fault_began_s),
        "fault_end_seconds": finite(cycle.fault_ended_s),
        "page_seconds": finite(cycle.paged_s),
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
        "without_covariance": _bare(cycle),
        "tracking": {
            phase: {fed: plain(quality) for fed, quality in by_input.items()}
            for phase, by_input in summary.tracking.items()
        },
        "story": [_told(at_s, record) for at_s, record in cycle.heard],
        "story_is_whole": not summary.missing,
        "missing": summary.missing,
        "swaps": _swaps(cycle),
        "events": [{"seconds": at, "text": text} for at, text in cycle.events],
        "sidecar": None if summary.sidecar is None else _account(summary.sidecar),
        "counts_agree": not summary.differences,
        "differences": list(summary.differences),
    }


def _bare(cycle: Cycle) -> dict[str, object] | None:
    """Tells of the sensor that reports no covariance; None where there is none."""
    sensor = cycle.sensors.get(cycle.plan.bare)
    if sensor is None:
        return None
    record, at_s, tracks = cycle.learned or (None, math.nan, 0)
    n, raw, made = sensor.changed
    return {
        "sensor": cycle.plan.bare,
        "learned_seconds": finite(at_s),
        "labelled_objects": tracks if record else None,
        "evidence": None if record is None else plain(record.evidence),
        "n": int(n),
        "nees_over_k": {
            "assumed": finite(raw / n if n else math.nan),
            "estimated": finite(made / n if n else math.nan),
        },
    }


def _account(sidecar: SidecarAccount) -> dict[str, object]:
    metrics = {
        _series(name, labels): finite(value)
        for name, rows in sidecar.metrics.families.items()
        for labels, value in rows
        if not labels.keys() & {"slice", "le"}
    }
    p50, p99 = map(finite, _bounds(sidecar))
    counts = {name: sidecar.counts[name] for name in ("frames", "detections", "matched")}
    version = {"recalibrator_version": sidecar.version, "metrics": metrics}
    return counts | version | {"frame_seconds_p50_below": p50, "frame_seconds_p99_below": p99}


def _series(name: str, labels: Mapping[str, str]) -> str:
    inside = ",".join(f'{key}="{word}"' for key, word in labels.items())
    return f"{name}{{{inside}}}" if inside else name


def _told(at_s: float, record: Record) -> dict[str, object]:
    factors = {factor.dimension: factor.typical for factor in record.factors}
    named = {one.name: plain(getattr(record, one.name)) for one in fields(record)}
    return {"seconds": at_s, **named, "factors": factors}


def _swaps(cycle: Cycle) -> dict[str, Counter[str]]:
    """Counts the swaps, by slice."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for _, record in cycle.heard:
        if record.what in SWAPS:
            counts[record.slice][record.what] += 1
    return counts


def _nees(sensor: SensorRecord, phase: Phase) -> dict[str, object]:
    raw, made = ({"nees_over_k": finite(mean)} for mean in sensor.means(phase))
    n = int(sensor.sums[phase][0]) if phase in sensor.sums else 0
    return {"n": n, "raw": raw, "recalibrated": made}
