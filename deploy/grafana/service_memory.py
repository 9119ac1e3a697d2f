"""Of the sidecar: what it keeps in memory and on disk, and what monitoring had to leave out."""

from __future__ import annotations

from deploy.grafana.charts import bars, graph
from deploy.grafana.looks import NONE_IS_GOOD, Values, above
from deploy.grafana.panels import Panel
from deploy.grafana.queries import Query, increase, of

_STALE = "docs/runbook.md#calibrationcheckpointstale"
_PER = "{{instance}}"


def disk_panels() -> list[Panel]:
    failures = {
        "checkpoint": "checkpoint_failures_total",
        "ledger": "ledger_failures_total",
        "drift": "drift_store_failures_total",
        "recalibrators": "recalibrator_store_failures_total",
    }
    restart = {
        "done again": "ledger_replayed_entries",
        "lost": "ledger_lost_entries",
    }
    return [
        graph(
            "Frames that wait for truth, in memory",
            """Healthy: below `[pending] max_bytes`; at it the oldest go to disk alone, or are
            dropped. docs/runbook.md#calibrationnolabels""",
            Query(f"sum by (instance) ({of('pending_bytes')})", _PER),
            values=Values("bytes", least=0),
            span=8,
        ),
        graph(
            "Frames and labels on disk",
            """Healthy: level, below `[pending] disk_bytes`; at it the oldest partition is dropped.
            0 where `[state] folder` is empty.""",
            Query(f"sum by (instance) ({of('ledger_bytes')})", _PER),
            values=Values("bytes", least=0),
            span=8,
        ),
        graph(
            "Partitions, and entries that wait for the disk",
            """Files of `[pending] partition_minutes` each, and what was not written yet. Healthy:
            few wait. Many for long: the disk is slow; beyond `[pending] queue_frames` frames stay
            in memory.""",
            Query(f"sum by (instance) ({of('ledger_partitions')})", "partitions {{instance}}"),
            Query(f"sum by (instance) ({of('ledger_waiting')})", "waiting {{instance}}"),
            values=Values("locale", least=0),
            span=8,
        ),
        graph(
            "Age of the checkpoint",
            f"""Since the statistics were last written. Healthy: a saw that stays near
            `[state] every_seconds`. No line: never written, or none is meant to be. {_STALE}""",
            Query(f"max by (instance) ({of('checkpoint_age_seconds')})", _PER),
            values=Values("s", above(60, 120), least=0),
            marks="dashed",
            span=8,
        ),
        graph(
            "Writes that failed",
            f"""In five minutes, by what could not be written. Healthy: 0. The log says why: is the
            disk full, its folder there, has another sidecar the file? {_STALE}""",
            *(
                Query(f"sum({increase(metric, 'job', '5m')})", name)
                for name, metric in failures.items()
            ),
            values=Values(steps=NONE_IS_GOOD, least=0, decimals=0),
            span=8,
        ),
        bars(
            "At the last start",
            """Entries of the disk that were done again, and that were lost; files that could not be
            used. Healthy: lost and refused are 0. Else see the log of the start.""",
            *(Query(f"sum({of(metric)})", f"entries {name}") for name, metric in restart.items()),
            Query(f"sum by (of) ({of('files_refused_total')})", "refused: {{of}}"),
            values=Values("locale", least=0),
        ),
    ]


def left_out_panels() -> list[Panel]:
    others = {
        "overflow slice": "overflow_detections_total",
        "overflow slice, classes": "overflow_classified_total",
        "late frames": "late_frames_total",
        "dropped before truth": "dropped_detections_total",
        "retracted": "retracted_detections_total",
        "without their truth": "unmatched_detections_total",
    }
    return [
        graph(
            "Left out of the watch over drift",
            """Detections with truth, a second, that were not watched, or not by all bets. Healthy:
            0. overload, tracks: docs/runbook.md#calibrationoverload; undated: send `stamp_ns`;
            late: labels come too late; superseded: for a while after another
            recalibrator came in force; failed: see the log.""",
            Query(f"sum by (reason) (rate({of('drift_left_out_total')}[5m]))", "{{reason}}"),
            values=Values("suffix:/s", above(0.01), least=0),
            span=8,
        ),
        graph(
            "Driving that was watched",
            """Seconds of driving in a second, over which evidence was gathered. Healthy: 1 while
            the vehicle drives and labels come. 0: nothing is watched.
            docs/runbook.md#calibrationnolabels""",
            Query(f"sum by (instance) (rate({of('drift_driving_seconds_total')}[5m]))", _PER),
            values=Values("none", least=0, decimals=2),
            span=8,
        ),
        graph(
            "Frames and detections that count for less",
            """A second. overflow: more slices than `[statistics] max_slices`; late: behind the
            watermark of their stream; dropped: enlarge `[pending] disk_bytes`; without their truth:
            their frame was labelled, they were not. Healthy: 0 but for the last.""",
            *(Query(f"sum(rate({of(metric)}[5m]))", name) for name, metric in others.items()),
            values=Values("suffix:/s", least=0),
            span=8,
        ),
        graph(
            "Overloads, dropped streams, faults",
            """How often in five minutes: monitoring gave way to forwarding, a client that read
            nothing was dropped, the sidecar itself had a fault. Healthy: 0; of faults the log has a
            trace: report it. docs/runbook.md#calibrationoverload""",
            Query(f"sum({increase('overloads_total', 'job', '5m')})", "overloads"),
            Query(f"sum({increase('streams_dropped_total', 'job', '5m')})", "streams dropped"),
            Query(f"sum({increase('internal_errors_total', 'job', '5m')})", "faults"),
            values=Values(steps=NONE_IS_GOOD, least=0, decimals=0),
            span=8,
        ),
        graph(
            "Detections that found their label",
            """Of the usable ones whose fate is known, since the start. Healthy: steady; low where
            only some frames are labelled. docs/runbook.md#calibrationmatchratiolow""",
            Query(f"min by (instance) ({of('match_ratio')})", _PER),
            values=Values("percentunit", least=0, most=1),
            span=8,
        ),
        graph(
            "Matches near the gate",
            """Of the matches that the gate of `[matching]` decided, the share near it; 0 where it
            decided none, since labels name their detections. Healthy: below 5 %. Above, the gate
            cuts the tail of the errors off and the detector looks better than it is: widen it.""",
            Query(f"{of('near_gate_ratio')} >= 0 or {of('gated_matches')} == 0", _PER),
            values=Values("percentunit", above(0.05), least=0, decimals=1),
            marks="dashed",
            span=8,
        ),
    ]
