"""Sums up the demo at its end, as text 80 columns wide or as one JSON object.

The sidecar's account is compared with the demo's own, and missing parts of the story are named.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass

import numpy as np

from monitor.commands.demo.plan import Phase
from monitor.commands.demo.record import Heard, Record, proof
from monitor.commands.demo.tracks import Fed, TrackingQuality
from monitor.commands.options import finite
from monitor.promotion.records import Happened
from monitor.statistics.evaluation import Evaluation
from monitor.statistics.reading import read

# Both sides add the same numbers exactly; only the last division may round differently.
_TOLERANCE = 1e-9

# The dimension whose ENCE is shown, and the histogram of the sidecar's own time.
DIMENSION = "x"
SECONDS = "calibration_frame_seconds"
_SWAPS = 'calibration_recalibrator_swaps_total{{outcome="{}"}}'
_NAME, _COLUMN = 18, 11

# Head, format and value of each line of tracking.
_TRACKING: tuple[tuple[str, str, Callable[[TrackingQuality], float]], ...] = (
    ("ID switches", ".0f", lambda quality: quality.id_switches),
    ("tracked, %", ".1f", lambda quality: 100 * quality.tracked / quality.detections),
    ("velocity RMSE, m/s", ".2f", lambda quality: quality.velocity_rmse),
)


@dataclass(frozen=True, slots=True)
class SliceAccount:
    """One slice of the sidecar's statistics; NEES/K at both stages."""

    n: int
    raw: float
    recalibrated: float


@dataclass(frozen=True, slots=True)
class SidecarAccount:
    """The sidecar's account of the drive: GetCalibration, and its /metrics."""

    frames: int
    detections: int
    matched: int
    version: str
    slices: Mapping[str, SliceAccount]
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Cell:
    """One sensor in one phase; NaN without truth."""

    raw: Evaluation
    recalibrated: Evaluation


@dataclass(frozen=True, slots=True)
class Summary:
    """All that the demo says in the end.

    differences  between the accounts, in words
    missing      what the sidecar has not done, in words; '' where the story is whole
    """

    record: Record
    sidecar: SidecarAccount
    cells: Mapping[str, Mapping[Phase, Cell]]
    tracking: Mapping[str, Mapping[Fed, TrackingQuality]]
    differences: tuple[str, ...]
    missing: str


def summarise(record: Record, sidecar: SidecarAccount) -> Summary:
    """Reads the statistics and compares the accounts."""
    cells = {}
    for name, sensor in record.sensors.items():
        cells[name] = {
            phase: Cell(read(both.raw), read(both.recalibrated))
            for phase, both in ((phase, sensor.of(phase)) for phase in Phase)
        }
    differences = tuple(_differences(record, sidecar))
    tracking, missing = record.tracking.quality(), _missing(record)
    return Summary(record, sidecar, cells, tracking, differences, missing)


def _missing(record: Record) -> str:
    """Names the part of the story that the sidecar has not done; '' when it is whole."""
    plan, story = record.plan, record.story
    promoted = story.of(Happened.PROMOTED, plan.faulty, plan.fault_s)
    if not promoted or promoted[0].at_s >= record.fault_ended_s:
        begun = story.of(Happened.BEGAN, plan.faulty, plan.fault_s)
        tried = "" if begun else ", nor put one on trial"
        return f"promoted a recalibrator for {plan.faulty} while the fault was there{tried}"
    if record.sensors[plan.faulty].of(Phase.HOME).raw.n == 0:
        return f"sent {plan.faulty} home, to what it reports"
    return ""


def _differences(record: Record, sidecar: SidecarAccount) -> list[str]:
    """Says in words where the sidecar's account and the demo's differ."""
    found = []
    metric = sidecar.metrics.get
    pairs: list[tuple[str, float, float | None]] = [
        ("frames", record.frames, sidecar.frames),
        ("detections", record.detections, sidecar.detections),
        ("matched", record.labelled, sidecar.matched),
        ("frames in /metrics", record.frames, metric("calibration_frames_total")),
        (
            "matched in /metrics",
            record.labelled,
            metric('calibration_ground_truth_total{outcome="matched"}'),
        ),
    ]
    swaps = Counter(one.record.what for one in record.story.swaps_of())
    pairs += [
        (f"recalibrators {what}", swaps[what], metric(_SWAPS.format(what)))
        for what in (Happened.PROMOTED, Happened.ROLLED_BACK)
    ]
    for name, sensor in record.sensors.items():
        theirs = sidecar.slices.get(name, SliceAccount(0, math.nan, math.nan))
        ours = sensor.whole()
        pairs.append((f"matched of {name}", ours.raw.n, theirs.n))
        for stage in ("raw", "recalibrated"):
            nees = read(getattr(ours, stage)).joint.nees_over_k
            pairs.append((f"{stage} NEES/K of {name}", nees, getattr(theirs, stage)))
    for what, mine, other in pairs:
        if other is None or not math.isclose(mine, other, rel_tol=_TOLERANCE):
            found.append(f"{what}: the demo has {mine}, the sidecar {other}")
    if record.story.version != sidecar.version:
        found.append(f"recalibrator: {record.story.version} heard of, {sidecar.version} in force")
    return found


def as_text(summary: Summary) -> str:
    """Writes two tables and a few lines."""
    record, metrics = summary.record, summary.sidecar.metrics
    plan, sensors = record.plan, len(record.sensors)
    seconds = record.frames / sensors / plan.settings.rate_hz
    p50, p99 = (1e3 * v for v in np.quantile(record.latency_s, (0.5, 0.99)))
    ours50, ours99 = (1e3 * _bound(metrics, level) for level in (0.5, 0.99))
    return "\n".join(
        [
            "",
            f"{sensors} sensors, {seconds:.0f} s, seed {plan.seed}",
            "healthy   no sensor has a fault",
            f"fault     {plan.faulty} reports its variances × {plan.variance_factor:g}",
            "corrected the same, recalibrated by what the sidecar fitted, tried and promoted",
            "after     the fault is over, and is still corrected",
            "home      what the sidecar sent back: nothing is corrected",
            "",
            "Mean NEES/K, as sent → recalibrated. 1 is calibrated.",
            _row("sensor", Phase),
            *(
                _row(name, (_nees(by_phase[phase]) for phase in Phase))
                for name, by_phase in summary.cells.items()
            ),
            "",
            *_faulty(summary),
            "",
            *_story(summary),
            f"swaps     {_swaps(summary)}",
            f"in force  {summary.sidecar.version}",
            f"sent      {record.frames} frames, {record.detections} detections, "
            f"{record.labelled} with truth {plan.truth_delay_s:.3g} s late",
            f"pace      {record.frames / record.frames_wall_s:.1f} frames/s, "
            f"at most {1e3 * record.behind_s:.0f} ms late",
            f"answers   p50 {p50:.1f} ms, p99 {p99:.1f} ms, from sending to holding the answer",
            f"sidecar   p50 ≤ {ours50:g} ms, p99 ≤ {ours99:g} ms of it its own; "
            f"{_percent(metrics, 'calibration_fast_decode_ratio')} decoded fast",
            f"          {_count(metrics, 'internal_errors_total')} internal errors, "
            f"{_count(metrics, 'dropped_detections_total')} detections dropped",
            f"counts    {_agreement(summary)}",
        ]
    )


def _row(name: str, entries: Iterator[str] | type[Phase]) -> str:
    return f"{name:<{_NAME}}{''.join(f' {entry:<{_COLUMN}}' for entry in entries)}".rstrip()


def _faulty(summary: Summary) -> Iterator[str]:
    """Writes the table of the sensor that has the fault."""
    plan = summary.record.plan
    cells = summary.cells[plan.faulty]
    yield f"{plan.faulty}, as sent → recalibrated: ENCE of {DIMENSION}, and tracking with it as R."
    yield _row("", Phase)
    yield _row(f"ENCE of {DIMENSION}", (_ence(cells[phase], "ence") for phase in Phase))
    floors = (_ence(cells[phase], "ence_noise_floor") for phase in Phase)
    yield _row("  if calibrated", floors)
    for name, form, value in _TRACKING:
        entries = []
        for phase in Phase:
            by_input = summary.tracking.get(phase, {})
            entries.append(
                _arrow(*(format(value(by_input[f]), form) if f in by_input else "–" for f in Fed))
            )
        yield _row(name, iter(entries))
    yield "  ENCE 0 is calibrated; the line below is what errors as heavy-tailed and as"
    yield "  correlated would read: counted are objects, not detections. Switch: an object"
    yield "  goes on under another track. Tracked: detections of objects that updated a"
    yield "  confirmed track. What was sent is tracked beside the sidecar."


def _story(summary: Summary) -> Iterator[str]:
    """Writes how long the sidecar took, and by which evidence."""
    record = summary.record
    plan, story, ended_s = record.plan, record.story, record.fault_ended_s
    promoted = story.of(Happened.PROMOTED, plan.faulty, plan.fault_s)[:1]
    home = story.of(Happened.ROLLED_BACK, plan.faulty, ended_s)[-1:]
    yield f"promoted  {_after(promoted, plan.fault_s, 'the fault began')}"
    yield f"sent home {_after(home, ended_s, 'it ended')}"
    if summary.missing:
        yield f"missing   the sidecar has not {summary.missing}"


def _after(heard: list[Heard], since_s: float, what: str) -> str:
    return (
        "".join(
            f"{one.at_s - since_s:.1f} s after {what}: {proof(one.record.evidence)}"
            for one in heard
        )
        or "not at all"
    )


def _swaps(summary: Summary) -> str:
    """Writes the swaps of each sensor, one a line."""
    lines = [
        f"{slice or 'all'}: "
        + ", ".join(f"{what.replace('_', ' ')} {count} ×" for what, count in counts.items())
        + ("" if slice == summary.record.plan.faulty else ", which has no fault")
        for slice, counts in summary.record.story.swaps().items()
    ]
    return "\n          ".join(lines) or "none"


def _nees(cell: Cell) -> str:
    raw, recalibrated = cell.raw.joint.nees_over_k, cell.recalibrated.joint.nees_over_k
    return _arrow(_short(raw), _short(recalibrated))


def _ence(cell: Cell, measure: str) -> str:
    stages = (cell.raw.dimensions[DIMENSION], cell.recalibrated.dimensions[DIMENSION])
    return _arrow(*(_short(getattr(found, measure)) for found in stages))


def _arrow(sent: str, recalibrated: str) -> str:
    return f"{sent} → {recalibrated}"


def _agreement(summary: Summary) -> str:
    if summary.differences:
        return "the sidecar's and the demo's differ: " + "; ".join(summary.differences)
    return (
        "the sidecar's and the demo's agree: frames, detections, matched,\n"
        "          swaps, and of every sensor the matched and NEES/K of both stages"
    )


def _bound(metrics: Mapping[str, float], level: float) -> float:
    """Upper bound of the bucket that holds this quantile of SECONDS; NaN without counts."""
    total, prefix = metrics.get(f"{SECONDS}_count", 0.0), f'{SECONDS}_bucket{{le="'
    buckets = sorted(
        (float(key.removeprefix(prefix).removesuffix('"}')), count)
        for key, count in metrics.items()
        if key.startswith(prefix)
    )
    return next((le for le, count in buckets if total and count >= level * total), math.nan)


def _short(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "–"


def _count(metrics: Mapping[str, float], name: str) -> str:
    value = metrics.get(f"calibration_{name}")
    return "?" if value is None else f"{value:.0f}"


def _percent(metrics: Mapping[str, float], name: str) -> str:
    return f"{100 * metrics.get(name, math.nan):.0f} %"


def as_json(summary: Summary) -> dict[str, object]:
    """The object that --json prints: plain values, None in place of NaN."""
    record, sidecar = summary.record, summary.sidecar
    plan, metrics = record.plan, sidecar.metrics
    return {
        "seed": plan.seed,
        "duration_seconds": plan.duration_s,
        "speed": plan.speed,
        "truth_delay_seconds": plan.truth_delay_s,
        "fault_seconds": plan.fault_s,
        "fault_end_seconds": finite(record.fault_ended_s),
        "faulty_sensor": plan.faulty,
        "variance_factor": plan.variance_factor,
        "frames": record.frames,
        "detections": record.detections,
        "matched": record.labelled,
        "frames_per_second": record.frames / record.frames_wall_s,
        "latest_seconds": record.behind_s,
        "latency_seconds": {
            name: float(np.quantile(record.latency_s, level))
            for name, level in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
        },
        "sensors": {
            name: {
                str(phase): {
                    "n": cell.raw.rows,
                    "raw": _stage(cell.raw),
                    "recalibrated": _stage(cell.recalibrated),
                }
                for phase, cell in by_phase.items()
            }
            for name, by_phase in summary.cells.items()
        },
        "tracking": {
            phase: {
                str(fed): {name: finite(value) for name, value in asdict(quality).items()}
                for fed, quality in by_input.items()
            }
            for phase, by_input in summary.tracking.items()
        },
        "story": [_told(one) for one in record.story.heard],
        "story_is_whole": not summary.missing,
        "missing": summary.missing,
        "swaps": {
            slice: {str(what): count for what, count in counts.items()}
            for slice, counts in record.story.swaps().items()
        },
        "events": [{"seconds": at, "text": text} for at, text in record.events],
        "sidecar": {
            "frames": sidecar.frames,
            "detections": sidecar.detections,
            "matched": sidecar.matched,
            "recalibrator_version": sidecar.version,
            "frame_seconds_p50_below": finite(_bound(metrics, 0.5)),
            "frame_seconds_p99_below": finite(_bound(metrics, 0.99)),
            "metrics": {
                name: finite(value)
                for name, value in metrics.items()
                if "slice=" not in name and "_bucket" not in name
            },
        },
        "counts_agree": not summary.differences,
        "differences": list(summary.differences),
    }


def _told(heard: Heard) -> dict[str, object]:
    record = heard.record
    return {
        "seconds": heard.at_s,
        "what": str(record.what),
        "slice": record.slice,
        "version": record.version,
        "before": record.before,
        "after": record.after,
        "reason": record.reason,
        "evidence": None if record.evidence is None else asdict(record.evidence),
        "factors": {factor.dimension: factor.typical for factor in record.factors},
    }


def _stage(evaluation: Evaluation) -> dict[str, float | None]:
    dimension = evaluation.dimensions[DIMENSION]
    return {
        "nees_over_k": finite(evaluation.joint.nees_over_k),
        f"ence_{DIMENSION}": finite(dimension.ence),
        f"ence_noise_floor_{DIMENSION}": finite(dimension.ence_noise_floor),
    }
