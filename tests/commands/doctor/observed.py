"""Observations of a sidecar with which all is well, and how they are changed; no tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from monitor.commands.doctor import findings
from monitor.commands.doctor.look import Asked, Look, Observation, Samples
from monitor.commands.doctor.rules import Area, Finding
from monitor.frames.status import Status, StreamStatus

SECOND = 10**9
NOW = 1_790_000_000 * SECOND
STARTED = NOW - 7200 * SECOND
VERSION = "0.1.0"

# name{label=value,…} of a sidecar that has run for two hours.
WELL: dict[str, float] = {
    "calibration_frames_total": 72_000.0,
    "calibration_detections_total{outcome=recalibrated}": 1_000_000.0,
    "calibration_detections_total{outcome=passed_through}": 0.0,
    "calibration_detections_total{outcome=refused}": 0.0,
    "calibration_passed_through_total{reason=missing_covariance}": 0.0,
    "calibration_passed_through_total{reason=observe_mode}": 0.0,
    "calibration_rejected_total{reason=covariance_scale}": 0.0,
    "calibration_calls_refused_total{why=unauthenticated}": 0.0,
    "calibration_frame_seconds_bucket{le=0.001}": 71_000.0,
    "calibration_frame_seconds_bucket{le=0.1}": 72_000.0,
    "calibration_frame_seconds_bucket{le=+Inf}": 72_000.0,
    "calibration_fast_decode_ratio": 1.0,
    "calibration_loop_lag_seconds": 0.003,
    "calibration_overload": 0.0,
    "calibration_overloads_total": 0.0,
    "calibration_internal_errors_total": 0.0,
    "calibration_streams": 2.0,
    "calibration_streams_dropped_total": 0.0,
    "calibration_clock_steps_total": 0.0,
    "calibration_event_time_jumps_total": 0.0,
    "calibration_pending_bytes": 1e6,
    "calibration_ledger_bytes": 1e6,
    "calibration_ledger_waiting": 0.0,
    "calibration_checkpoint_age_seconds": 4.0,
    "calibration_checkpoint_failures_total": 0.0,
    "calibration_upload_age_seconds": 1800.0,
    "calibration_upload_interval_seconds": 3600.0,
    "calibration_uploads_total{outcome=failed}": 3.0,
    "calibration_drift_driving_seconds_total": 7200.0,
    "calibration_drift_state{slice=car,severity=page}": 0.0,
    "calibration_ground_truth_total{outcome=matched}": 500_000.0,
    "calibration_ground_truth_total{outcome=orphan}": 0.0,
    "calibration_ground_truth_total{outcome=too_late}": 0.0,
    "calibration_ground_truth_total{outcome=refused}": 0.0,
    "calibration_ground_truth_total{outcome=unusable}": 0.0,
    "calibration_dropped_detections_total": 0.0,
    "calibration_matched_detections{slice=car}": 500_000.0,
    "calibration_nees_ratio{slice=car,stage=recalibrated,dimension=joint}": 1.1,
    "calibration_recalibration_factor{slice=car,dimension=x}": 1.0,
    "calibration_recalibrator_info{version=identity-1,method=identity,mode=apply}": 1.0,
    "calibration_recalibrator_fits_total{outcome=failed}": 0.0,
    "calibration_recalibrator_pinned": 0.0,
    "process_open_fds": 30.0,
    "process_max_fds": 1024.0,
}
# What was added in the five seconds between the looks.
ADDED: dict[str, float] = {
    "calibration_frames_total": 100.0,
    "calibration_detections_total{outcome=recalibrated}": 1000.0,
    "calibration_frame_seconds_bucket{le=0.001}": 100.0,
    "calibration_frame_seconds_bucket{le=0.1}": 100.0,
    "calibration_frame_seconds_bucket{le=+Inf}": 100.0,
    "calibration_ground_truth_total{outcome=matched}": 500.0,
}


def samples(values: dict[str, float]) -> Samples:
    """Of name{label=value,…}."""
    families: dict[str, list[tuple[dict[str, str], float]]] = {}
    for series, value in values.items():
        name, _, rest = series.partition("{")
        labels = dict(pair.split("=", 1) for pair in rest.rstrip("}").split(",") if pair)
        families.setdefault(name, []).append((labels, value))
    return Samples({name: tuple(rows) for name, rows in families.items()})


def stream(name: str = "front", lag_s: float = 0.01, **changes: Any) -> StreamStatus:
    """That sends, with truth; its stamps are so late."""
    fields: dict[str, Any] = {
        "stream": name,
        "frames": 36_000,
        "detections": 500_000,
        "stamp_ns": NOW - int(lag_s * SECOND),
        "stamped_received_ns": NOW,
        "received_ns": NOW,
        "matched": 250_000,
        "matched_received_ns": NOW,
    }
    return StreamStatus(**(fields | changes))


def status(*streams: StreamStatus, **changes: Any) -> Status:
    """Of a sidecar that was started two hours ago."""
    found = Status(VERSION, STARTED, NOW, streams or (stream(), stream("rear")))
    return replace(found, **changes)


def seen(
    metrics: dict[str, float] | None = None,
    added: dict[str, float] | None = None,
    told: Status | None = None,
    **changes: Any,
) -> Observation:
    """All is well but for what is given.

    metrics  as of the second look
    added    between the looks; those of `metrics` contain it
    """
    last = WELL | (metrics or {})
    between = ADDED | (added or {})
    first = {name: value - between.get(name, 0.0) for name, value in last.items()}
    told = told or status()
    found = Observation(
        "127.0.0.1:50051",
        "127.0.0.1:9464",
        VERSION,
        first=Look(100.0, samples(first), told, NOW - 5 * SECOND, 0.001),
        last=Look(105.0, samples(last), told, NOW, 0.001),
    )
    return replace(found, **changes)


def without(observation: Observation, *, metrics: Asked | None = None, told: Asked | None = None):
    """One whose metrics, or whose status, could not be had."""
    found = observation
    if metrics is not None:
        found = replace(
            found,
            metrics=metrics,
            first=replace(found.first, samples=None),
            last=replace(found.last, samples=None),
        )
    if told is not None:
        found = replace(
            found,
            status=told,
            drift=told,
            first=replace(found.first, status=None),
            last=replace(found.last, status=None),
        )
    return found


def same_text(observation: Observation) -> Observation:
    """One whose second look saw the metrics of the first."""
    first, last = observation.first, observation.last
    return replace(observation, first=replace(first, text=7), last=replace(last, text=7))


def of(area: Area) -> Callable[[Observation], list[Finding]]:
    """What is told of one area, in the order of its rules."""
    return lambda observation: list(findings(observation, area))
