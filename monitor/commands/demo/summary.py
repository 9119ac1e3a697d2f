"""Sums up the demo at its end: measures by sensor in each phase.

The sidecar's account is compared with the demo's own, and missing parts of the story are named.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from monitor.commands.demo.plan import Phase
from monitor.commands.demo.record import Record
from monitor.commands.demo.tracks import Fed, TrackingQuality
from monitor.commands.doctor.look import Metrics
from monitor.promotion.records import Happened
from monitor.statistics.evaluation import Evaluation
from monitor.statistics.reading import read

_BINS = 20  # the sidecar's default

# Both sides add the same numbers exactly; only the last division may round differently.
_TOLERANCE = 1e-9

# The dimension whose ENCE is shown, and the histogram of the sidecar's own time.
DIMENSION = "x"

SECONDS = "calibration_frame_seconds"
_SWAPS = 'calibration_recalibrator_swaps_total{{outcome="{}"}}'


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
    metrics: Metrics


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
            phase: Cell(read(both.raw, _BINS), read(both.recalibrated, _BINS))
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
    metric = sidecar.metrics.samples.get
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
            nees = read(getattr(ours, stage), _BINS).joint.nees_over_k
            pairs.append((f"{stage} NEES/K of {name}", nees, getattr(theirs, stage)))
    for what, mine, other in pairs:
        if other is None or not math.isclose(mine, other, rel_tol=_TOLERANCE):
            found.append(f"{what}: the demo has {mine}, the sidecar {other}")
    if record.story.version != sidecar.version:
        found.append(f"recalibrator: {record.story.version} heard of, {sidecar.version} in force")
    return found
