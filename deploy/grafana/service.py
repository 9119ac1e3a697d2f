"""The sidecar itself: does it keep up, what does it refuse or leave out, and is its state kept.

Only what is looked at when an alert of the service fires. `calibration-monitor doctor` names what
else is wrong, and `GET /metrics` has every number.
"""

from __future__ import annotations

from deploy.grafana.panels import (
    NONE_IS_GOOD,
    PER_SIDECAR,
    Values,
    above,
    below,
    dashboard,
    graph,
    increase,
    increased,
    of,
    quantile,
    rate,
    row,
    stat,
    table,
)

_OVERLOAD = "docs/runbook.md#calibrationoverload"
_STALE = "docs/runbook.md#calibrationcheckpointstale"
_ELSEWHERE = "docs/forwarding.md"
_A_SECOND = Values("suffix:/s", least=0)
_RARE = Values("suffix:/s", above(0.01), least=0)
_NONE = Values(steps=NONE_IS_GOOD, least=0, decimals=0)


def _most(metric: str) -> str:
    return f"max by (instance) ({of(metric)})"


_REJECTED, _RECEIVED = (rate(name, "job", "5m") for name in ("rejected_total", "detections_total"))
NOW = {
    """Frames
    Answered a second. Healthy: what the detectors send. 0: they are silent, or cannot reach the
    sidecar. docs/runbook.md#calibrationsidecardown""": stat(
        {"frames": f"sum({rate('frames_total', 'job')})"}, Values("suffix:/s", decimals=1)
    ),
    f"""Slowest of a hundred frames
    Time in the sidecar, of the last five minutes; estimated from buckets. Healthy: well below the
    time between two frames. {_OVERLOAD}""": stat(
        {"p99": quantile(0.99, "frame_seconds")}, Values("s", above(0.025, 0.1), decimals=1)
    ),
    f"""Overload
    1 while frames are answered and forwarded, but not monitored. Healthy: no. See
    docs/degradation.md. {_OVERLOAD}""": stat(
        {"overload": f"max({of('overload')})"},
        Values(steps=NONE_IS_GOOD, words={0: ("no", "green"), 1: ("YES", "red")}),
    ),
    """Refused
    Share of the detections of the last five minutes; a whole message counts as one. Healthy: below
    1 %. docs/runbook.md#calibrationrejectedhigh""": stat(
        {"refused": f"sum({_REJECTED}) / sum({_RECEIVED})"},
        Values("percentunit", above(0.001, 0.01), decimals=2),
    ),
    f"""Last checkpoint
    Age of the oldest. Healthy: below twice `[state] every_seconds`. –: never, or no state is kept.
    {_STALE}""": stat(
        {"age": f"max({of('checkpoint_age_seconds')})"}, Values("s", above(60, 120), decimals=0)
    ),
    """Running for
    Since the process started. Healthy: since you last started it. An unexpected small number: it
    was restarted, see its log. docs/runbook.md#calibrationsidecardown""": stat(
        {"up": f"time() - min({of('process_start_time_seconds')})"}, Values("s", decimals=0)
    ),
}
KEEPS_UP = {
    """Frames by sidecar
    Answered a second. Healthy: steady, at the rate of the sensors. A dip: the detector, or the way
    to the sidecar.""": graph({PER_SIDECAR: rate("frames_total", "instance")}, _A_SECOND),
    f"""Time of a frame, quantiles
    Of five minutes, from the bytes to the answer, estimated from buckets. Healthy: p99 below 25 ms;
    an alert comes above 100 ms. {_OVERLOAD}""": graph(
        {f"p{100 * share:g}": quantile(share, "frame_seconds") for share in (0.5, 0.9, 0.99)},
        Values("s", ((None, "green"), (0.1, "red")), least=0),
    ),
    f"""Lag of the event loop
    Longest delay since the last refresh: answers waited as long. Healthy: below 50 ms; an alert
    comes above 250 ms. {_OVERLOAD}""": graph(
        {PER_SIDECAR: _most("loop_lag_seconds")},
        Values("s", above(0.05, 0.25), least=0, marks="dashed"),
    ),
    f"""Cores in use
    1 is a whole core. Healthy: below 0.7; the frame path has one core, fits run beside it for
    seconds. {_OVERLOAD}""": graph(
        {PER_SIDECAR: rate("process_cpu_seconds_total", "instance")},
        Values(steps=above(0.7, 1), least=0, decimals=2, marks="dashed"),
    ),
    f"""Frames decoded at once
    Share of frames whose detections all have one layout, since the start. Healthy: near 100 %. Low:
    some detections lack fields that others have, and frames take several times as long.
    {_OVERLOAD}""": graph(
        {PER_SIDECAR: f"min by (instance) ({of('fast_decode_ratio')})"},
        Values("percentunit", below(0.5, 0.9), least=0, most=1),
    ),
    f"""Overloads, dropped streams, faults
    How often in five minutes: monitoring gave way to forwarding, a client that read nothing was
    dropped, the sidecar itself had a fault. Healthy: 0; of faults the log has a trace: report it.
    {_OVERLOAD}""": graph(
        {
            "overloads": increased("overloads_total", "5m"),
            "streams dropped": increased("streams_dropped_total", "5m"),
            "faults": increased("internal_errors_total", "5m"),
        },
        _NONE,
    ),
}
_COUNTED_LESS = {
    "overflow slice": "overflow_detections_total",
    "late frames": "late_frames_total",
    "dropped before truth": "dropped_detections_total",
    "without their truth": "unmatched_detections_total",
    "not learned from": "learning_left_out_total",
}
LEFT_OUT = {
    """Detections by what became of them
    A second. estimated: they came without a covariance, and went out with one that was learned from
    labels. Healthy: recalibrated and estimated alone. docs/promotion.md""": graph(
        {"{{outcome}}": rate("detections_total", "outcome")}, _A_SECOND, span=24
    ),
    """Refused by reason
    A second: detections, messages and further fields that could not be used; and calls, for their
    token (docs/security.md). Healthy: 0. The answer to the frame says which field and value.
    docs/runbook.md#calibrationrejectedhigh""": graph(
        {
            "{{reason}}": rate("rejected_total", "reason"),
            "call: {{why}}": rate("calls_refused_total", "why"),
        },
        _RARE,
    ),
    """Passed through by reason
    A second: valid detections that went out as they came; and class probabilities for which the
    active recalibrator does not fit, or failed. Healthy: 0, but for observe_mode where that is
    meant, and missing_covariance until a covariance is learned and promoted.
    docs/runbook.md#calibrationpassthroughhigh""": graph(
        {
            "{{reason}}": rate("passed_through_total", "reason"),
            "classes: {{outcome}}": rate(
                "class_recalibrations_total", "outcome", outcome="!recalibrated"
            ),
        },
        _RARE,
    ),
    """Left out of the watch over drift
    Detections with truth, a second, that were not watched, or not by all bets. Healthy: 0.
    overload, tracks: docs/runbook.md#calibrationoverload; undated: send `stamp_ns`; late: labels
    come late and behind newer ones; superseded: for a while after another recalibrator became
    active; failed: see the log.""": graph(
        {"{{reason}}": rate("drift_left_out_total", "reason", "5m")}, _RARE
    ),
    """Frames and detections that count for less
    A second. overflow: more slices than `[statistics] max_slices`; late: behind the watermark of
    their stream; dropped: enlarge `[pending] disk_bytes`; without their truth: their frame was
    labelled, they were not; not learned from: docs/metrics.md says why. Healthy: 0 but for
    without their truth.""": graph(
        {name: f"sum(rate({of(metric)}[5m]))" for name, metric in _COUNTED_LESS.items()}, _A_SECOND
    ),
}
KEPT = {
    f"""Age of the checkpoint
    Since the last checkpoint. Healthy: a saw that stays near `[state] every_seconds`. No line:
    never written, or no state is kept. {_STALE}""": graph(
        {PER_SIDECAR: _most("checkpoint_age_seconds")},
        Values("s", above(60, 120), least=0, marks="dashed"),
    ),
    f"""Writes that failed
    In five minutes, by what could not be written. Healthy: 0. The log says why: is the disk full,
    may the process write there, does another sidecar hold the folder? {_STALE}""": graph(
        {
            "checkpoint": increased("checkpoint_failures_total", "5m"),
            "ledger": increased("ledger_failures_total", "5m"),
        },
        _NONE,
    ),
    """Memory and disk
    Of the process: resident, which levels off within an hour, or report it. Of frames that wait for
    their labels: in memory, below `[pending] max_bytes`, and on disk, below `[pending] disk_bytes`;
    there the oldest are dropped. Healthy: level. docs/runbook.md#calibrationnolabels""": graph(
        {
            f"{name} {PER_SIDECAR}": f"sum by (instance) ({of(metric)})"
            for name, metric in (
                ("resident", "process_resident_memory_bytes"),
                ("waiting, memory", "pending_bytes"),
                ("waiting, disk", "ledger_bytes"),
            )
        },
        Values("bytes", least=0),
    ),
    """Age of frames at arrival
    Wall clock minus capture stamp, of the streams of the last minute: of the freshest and of the
    stalest. Healthy: positive, and as small as capture and detection take. Negative, or hours: a
    clock of the detector, or of this machine, is wrong; `calibration-monitor doctor` says which
    stream.""": graph(
        {"{{of}} {{instance}}": f"max by (instance, of) ({of('stamp_lag_seconds')})"},
        Values("s"),
        span=8,
    ),
    """Builds
    Which version runs where, and on what. Healthy: one version on all vehicles, but while an
    upgrade is under way.""": table(
        ["instance", "version", "revision", "python", "numpy", "grpc", "protobuf", "kernels"],
        {
            # Without `by`: a build that was not made of a commit has no label `revision`.
            "up": (
                f"{of('build_info')} * on (job, instance) group_left () {of('up')}",
                Values(words={0: ("no", "red"), 1: ("yes", "green")}),
                "color-text",
            )
        },
        span=16,
        height=8,
        hidden=["job"],
    ),
}
# Empty unless `[tracker] kind = "grpc"`.
EXTERNAL = {
    f"""Frames sent to it, by how it ended
    A second, and answers that could not be used. Healthy: all answered in time. Frames are answered
    all the same, without tracks; the log says what was wrong. {_ELSEWHERE}""": graph(
        {
            "{{outcome}}": rate("tracker_forwarded_total", "outcome"),
            "unusable answers": f"sum({rate('tracker_unusable_answers_total', 'job')})",
        },
        _A_SECOND,
    ),
    f"""Time to its answer
    Of those answered in time, over five minutes; estimated from buckets. Healthy: well below
    `[tracker] timeout_seconds`. {_ELSEWHERE}""": graph(
        {f"p{100 * share:g}": quantile(share, "tracker_seconds") for share in (0.5, 0.99)},
        Values("s", least=0),
    ),
}
# Empty without `[fleet] upload`.
UPLOADS = {
    """Age of what is uploaded, in intervals
    Time since what was acknowledged last was cut, over `[fleet] every_minutes`. Healthy: below 2.
    An alert at 4: the store cannot be reached, or refuses; nothing is lost meanwhile.
    docs/runbook.md#calibrationuploadstale""": graph(
        {"{{instance}}": f"{of('upload_age_seconds')} / {of('upload_interval_seconds')}"},
        Values(least=0, decimals=1),
    ),
    """Attempts to upload, by how they ended
    In an hour. Healthy: sent alone. Failed: it is tried again, the log says why. Conflict: two
    vehicles of one name, or a folder that was copied. docs/fleet.md#upload""": graph(
        {"{{outcome}}": increase("uploads_total", "outcome", "1h")},
        _NONE,
    ),
}

SERVICE = dashboard(
    "calibration-service",
    """Does the sidecar keep up, what does it refuse, and does it keep what it has counted? While
    this is not in order, silence on the other dashboards means nothing.""",
    row("", NOW, span=4),
    row("Does it keep up?", KEEPS_UP),
    row("Refused, passed through, left out", LEFT_OUT, span=12),
    row("State, memory, clock and build", KEPT),
    row("With an external tracker", EXTERNAL, span=12, folded=True),
    row("With uploads to a fleet", UPLOADS, span=12, folded=True),
)
