"""The text that the demo prints at its end: tables with a few lines, 80 columns wide."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np

from monitor.commands.demo.plan import Phase
from monitor.commands.demo.story import Heard, proof
from monitor.commands.demo.summary import DIMENSION, SECONDS, Cell, Summary
from monitor.commands.demo.tracks import Fed, TrackingQuality
from monitor.commands.doctor.look import Metrics
from monitor.promotion.records import Happened

_NAME, _COLUMN = 18, 11

# Head, format and value of each line of tracking.
_TRACKING: tuple[tuple[str, str, Callable[[TrackingQuality], float]], ...] = (
    ("ID switches", ".0f", lambda quality: quality.id_switches),
    ("tracked, %", ".1f", lambda quality: 100 * quality.tracked / quality.detections),
    ("velocity RMSE, m/s", ".2f", lambda quality: quality.velocity_rmse),
)


def as_text(summary: Summary) -> str:
    """Writes two tables and a few lines."""
    record, metrics = summary.record, summary.sidecar.metrics
    plan, sensors = record.plan, len(record.sensors)
    seconds = record.frames / sensors / plan.settings.rate_hz
    p50, p99 = (1e3 * v for v in np.quantile(record.latency_s, (0.5, 0.99)))
    ours50, ours99 = (1e3 * metrics.histogram_bound(SECONDS, level) for level in (0.5, 0.99))
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


def _short(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "–"


def _count(metrics: Metrics, name: str) -> str:
    value = metrics.samples.get(f"calibration_{name}")
    return "?" if value is None else f"{value:.0f}"


def _percent(metrics: Metrics, name: str) -> str:
    return f"{100 * metrics.samples.get(name, math.nan):.0f} %"
