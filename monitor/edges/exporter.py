"""The exposition text. Only importer of prometheus_client, and no part of the frame path:
the text is made one family at a time, and scrapes are served from what was made last.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import cast

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from monitor.calibration.detections import PASSED_THROUGH, Reason
from monitor.counters import Counters
from monitor.readings import SliceReading
from monitor.track_readings import TrackReading
from monitor.tracking.reported import TrackStatus
from monitor.tracking.rewind import Order

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Reasons to refuse a detection, a message or a truth; the others let a detection pass.
_REFUSING = tuple(
    reason for reason in Reason if reason not in PASSED_THROUGH and reason is not Reason.NONE
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is exported, as of one moment."""

    counters: Counters
    readings: tuple[SliceReading, ...]
    pending_bytes: int
    pending_detections: int
    streams: int
    version: str
    method: str
    mode: str
    tracks: TrackReading


@dataclass(frozen=True, slots=True)
class _One(Collector):
    family: Metric

    def collect(self) -> Iterable[Metric]:
        return (self.family,)


def render(snapshot: Snapshot) -> Generator[None, None, bytes]:
    """The text, returned after a short step for each family."""
    pieces = []
    for family in _families(snapshot):
        # A registry is asked for nothing but collect().
        pieces.append(generate_latest(cast("CollectorRegistry", _One(family))))
        yield
    return b"".join(pieces)


def _families(snapshot: Snapshot) -> Iterator[Metric]:
    yield from _measures(snapshot.readings)
    yield from _service(snapshot)
    yield from _labels(snapshot.counters)
    yield from _tracks(snapshot.tracks)


def _gauge(name: str, text: str, labels: tuple[str, ...]) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"calibration_{name}", text, labels=labels)


def _counter(name: str, text: str, labels: tuple[str, ...] = ()) -> CounterMetricFamily:
    return CounterMetricFamily(f"calibration_{name}", text, labels=labels)


def _measures(readings: tuple[SliceReading, ...]) -> Iterator[Metric]:
    by_dimension = ("slice", "stage", "dimension")
    of_joint = ("slice", "stage")
    matched = _counter(
        "matched_detections",
        "Detections with ground truth; slice total is the sum of the others.",
        ("slice",),
    )
    ence = _gauge("ence", "Expected normalised calibration error; 0 is calibrated.", by_dimension)
    floor = _gauge(
        "ence_noise_floor", "What a calibrated detector's ENCE reads at this n.", by_dimension
    )
    uce = _gauge(
        "uce", "Uncertainty calibration error, in the dimension's unit squared.", by_dimension
    )
    qce = _gauge("qce", "Quantile calibration error, mean over tau.", by_dimension)
    nees = _gauge(
        "nees_ratio",
        "Mean normalised squared error per dimension; 1 is calibrated, above it overconfident.",
        by_dimension,
    )
    median = _gauge(
        "nees_median_ratio", "Median NEES over the median of chi-square; 1 is calibrated.", of_joint
    )
    coverage = _gauge(
        "coverage",
        "Share of errors within the chi-square region of level tau.",
        (*of_joint, "tau"),
    )
    for slice_reading in readings:
        matched.add_metric((slice_reading.name,), slice_reading.raw.rows)
        for stage, reading in slice_reading.stages:
            at = (slice_reading.name, stage)
            for name, dimension in reading.dimensions.items():
                where = (*at, name)
                ence.add_metric(where, dimension.ence)
                floor.add_metric(where, dimension.ence_noise_floor)
                uce.add_metric(where, dimension.uce)
                qce.add_metric(where, dimension.qce)
                nees.add_metric(where, dimension.nees_mean)
            joint = reading.joint
            qce.add_metric((*at, "joint"), joint.qce)
            nees.add_metric((*at, "joint"), joint.nees_over_k)
            median.add_metric(at, joint.nees_median_ratio)
            for tau, value in zip(joint.tau, joint.coverage_by_tau, strict=True):
                coverage.add_metric((*at, f"{tau:g}"), float(value))
    yield from (matched, ence, floor, uce, qce, nees, median, coverage)


def _service(snapshot: Snapshot) -> Iterator[Metric]:
    counters = snapshot.counters
    frames = _counter("frames", "Frames answered.")
    frames.add_metric((), counters.frames)
    yield frames
    detections = _counter("detections", "Detections by what became of them.", ("outcome",))
    for outcome in ("recalibrated", "passed_through", "refused"):
        detections.add_metric((outcome,), getattr(counters, outcome))
    yield detections
    passed = _counter("passed_through", "Valid detections returned as they came.", ("reason",))
    for reason in sorted(PASSED_THROUGH):
        passed.add_metric((reason.label,), int(counters.by_reason[reason]))
    yield passed
    rejected = _counter(
        "rejected",
        "Detections, messages and further fields that were refused.",
        ("reason",),
    )
    for reason in _REFUSING:
        count = int(counters.by_reason[reason]) + counters.frames_refused.get(reason, 0)
        rejected.add_metric((reason.label,), count + counters.notices.get(reason, 0))
    yield rejected
    seconds = HistogramMetricFamily(
        "calibration_frame_seconds", "Time from a frame's bytes to its answer's bytes."
    )
    seconds.add_metric((), _cumulative(counters), counters.frame_seconds.sum)
    yield seconds
    handled = counters.fast_frames + counters.slow_frames
    simple = (
        (
            "fast_decode_ratio",
            "Share of frames whose detections all have one layout.",
            counters.fast_frames / handled if handled else 1.0,
        ),
        (
            "loop_lag_seconds",
            "Longest delay of the event loop since the last refresh.",
            counters.loop_lag_seconds,
        ),
        ("pending_bytes", "Bytes of frames that wait for their truth.", snapshot.pending_bytes),
        (
            "pending_detections",
            "Detections that wait for their truth.",
            snapshot.pending_detections,
        ),
        ("streams", "Streams registered.", snapshot.streams),
    )
    for name, text, value in simple:
        gauge = _gauge(name, text, ())
        gauge.add_metric((), value)
        yield gauge
    counts = (
        ("late_frames", "Frames that came behind their stream's watermark.", counters.late_frames),
        (
            "internal_errors",
            "Faults of the sidecar itself; its log says which.",
            counters.internal_errors,
        ),
        (
            "overflow_detections",
            "Matched detections in overflow slices.",
            counters.overflow_detections,
        ),
        (
            "streams_dropped",
            "Streams ended because the client read no answers.",
            counters.streams_dropped,
        ),
    )
    for name, text, count in counts:
        counter = _counter(name, text)
        counter.add_metric((), count)
        yield counter
    swaps = _counter("recalibrator_swaps", "Changes of the recalibrator.", ("outcome",))
    swaps.add_metric(("promoted",), counters.swaps)
    yield swaps
    info = _gauge("recalibrator_info", "The recalibrator in force.", ("version", "method", "mode"))
    info.add_metric((snapshot.version, snapshot.method, snapshot.mode), 1)
    yield info


def _cumulative(counters: Counters) -> list[tuple[str, float]]:
    histogram = counters.frame_seconds
    bounds = [f"{bound:g}" for bound in histogram.bounds] + ["+Inf"]
    total = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip(bounds, histogram.counts, strict=True):
        total += count
        buckets.append((bound, total))
    return buckets


def _labels(counters: Counters) -> Iterator[Metric]:
    truth = counters.truth
    labels = _counter("ground_truth", "Labels by what became of them.", ("outcome",))
    for outcome in truth.__dataclass_fields__:
        labels.add_metric((outcome,), getattr(truth, outcome))
    yield labels
    counts = (
        (
            "unmatched_detections",
            "Detections of completely labelled frames without a label.",
            counters.unmatched,
        ),
        (
            "dropped_detections",
            "Detections that left the store before their truth came.",
            counters.dropped,
        ),
    )
    for name, text, count in counts:
        counter = _counter(name, text)
        counter.add_metric((), count)
        yield counter
    resolved = truth.matched + counters.unmatched + counters.dropped
    ratio = _gauge("match_ratio", "Matched detections among those whose fate is known.", ())
    ratio.add_metric((), truth.matched / resolved if resolved else float("nan"))
    yield ratio


def _tracks(reading: TrackReading) -> Iterator[Metric]:
    frames = _counter("tracker_frames", "Frames by how they came to the tracker.", ("order",))
    for order in Order:
        frames.add_metric((str(order),), reading.orders[order])
    yield frames
    tracks = _gauge("tracks", "Tracks as of the last frame of each stream.", ("slice", "status"))
    nis = _gauge(
        "track_nis_ratio",
        "Mean normalised innovation squared per dimension that is no angle; far above 1: "
        "overconfident.",
        ("slice",),
    )
    correlation = _gauge(
        "track_innovation_correlation",
        "Correlation of the whitened innovation with the one of the frame before.",
        ("slice",),
    )
    rejected = _gauge(
        "gate_reject_ratio",
        "Of confirmed tracks with a detection near, the share whose gate let none in.",
        ("slice",),
    )
    for entry in reading.slices:
        for status in TrackStatus:
            tracks.add_metric((entry.name, status.name.lower()), entry.counts[status])
        nis.add_metric((entry.name,), entry.nis_ratio)
        correlation.add_metric((entry.name,), entry.correlation)
        rejected.add_metric((entry.name,), entry.reject_ratio)
    yield from (tracks, nis, correlation, rejected)
