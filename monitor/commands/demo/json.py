"""The JSON object that the demo prints: plain values, None in place of NaN."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from monitor.commands.demo.story import Heard
from monitor.commands.demo.summary import DIMENSION, SECONDS, Summary
from monitor.commands.options import finite
from monitor.statistics.evaluation import Evaluation


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
            "frame_seconds_p50_below": finite(metrics.histogram_bound(SECONDS, 0.5)),
            "frame_seconds_p99_below": finite(metrics.histogram_bound(SECONDS, 0.99)),
            "metrics": {
                name: finite(value)
                for name, value in metrics.samples.items()
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
