"""The sidecar itself: does it keep up, what does it refuse, and is its memory kept."""

from __future__ import annotations

from functools import partial

from deploy.grafana.panels import (
    BAND,
    NONE_IS_CALM,
    NONE_IS_GOOD,
    PER_SIDECAR,
    Values,
    above,
    bars,
    below,
    dashboard,
    dashed,
    graph,
    heatmap,
    increased,
    number,
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
_STACKED = Values("suffix:/s", least=0, stacked=True)
_RARE = Values("suffix:/s", above(0.01), least=0)
_COUNT = Values("locale", least=0)
_BYTES = Values("bytes", least=0)
_NONE = Values(steps=NONE_IS_GOOD, least=0, decimals=0)


def _total(metric: str) -> str:
    return f"sum by (instance) ({of(metric)})"


def _most(metric: str) -> str:
    return f"max by (instance) ({of(metric)})"


def _least(metric: str) -> str:
    return f"min by (instance) ({of(metric)})"


_REJECTED, _RECEIVED = (rate(name, "job", "5m") for name in ("rejected_total", "detections_total"))
NOW = {
    """Frames
    Answered a second. Healthy: what the detectors send. 0: they are silent, or cannot reach the
    sidecar. docs/runbook.md#calibrationsidecardown""": stat(
        {"frames": f"sum({rate('frames_total', 'job')})"}, Values("suffix:/s", decimals=1)
    ),
    """Streams
    Registered since the start; at most `[server] max_streams`.""": stat(
        {"streams": f"sum({of('streams')})"}, Values("locale")
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
    """Last checkpoint
    Age. Healthy: below twice `[state] every_seconds`. –: never, or no state is kept.
    docs/runbook.md#calibrationcheckpointstale""": stat(
        {"age": f"max({of('checkpoint_age_seconds')})"}, Values("s", above(60, 120), decimals=0)
    ),
    """Resident memory
    Of the process. Healthy: level after the first hour. What waits for truth is in it (`[pending]
    max_bytes`), and what slices and fits keep. A level that climbs for days is a fault: report
    it.""": stat({"resident": f"max({of('process_resident_memory_bytes')})"}, Values("bytes")),
    """Running for
    Since the process started. Healthy: since you last started it. An unexpected small number: it
    was restarted, see its log. docs/runbook.md#calibrationsidecardown""": stat(
        {"up": f"time() - min({of('process_start_time_seconds')})"}, Values("s", decimals=0)
    ),
}
FRAMES = {
    f"""Time of a frame in the sidecar
    How many frames took how long, from the bytes to the answer. Healthy: a narrow band at a
    millisecond or a few. A second band above: frames that were decoded slowly, or waited.
    {_OVERLOAD}""": heatmap(
        {"{{le}}": f"sum by (le) (increase({of('frame_seconds_bucket')}[1m]))"},
        Values("s"),
        span=12,
    ),
    f"""Time of a frame, quantiles
    Of five minutes, estimated from buckets. Healthy: p99 below 25 ms; an alert comes above 100 ms.
    {_OVERLOAD}""": graph(
        {f"p{100 * share:g}": quantile(share, "frame_seconds") for share in (0.5, 0.9, 0.99)},
        Values("s", ((None, "green"), (0.1, "red")), least=0),
        span=12,
    ),
    """Frames by sidecar
    Answered a second. Healthy: steady, at the rate of the sensors. A dip: the detector, or the way
    to the sidecar.""": graph({PER_SIDECAR: rate("frames_total", "instance")}, _A_SECOND),
    """Detections by outcome
    A second. Healthy: recalibrated (with the identity active too); passed_through and refused say
    why below. docs/runbook.md#calibrationpassthroughhigh""": graph(
        {"{{outcome}}": rate("detections_total", "outcome")}, _STACKED
    ),
    f"""Frames decoded at once
    Share of frames whose detections all have one layout, since the start. Healthy: near 100 %. Low:
    some detections lack fields that others have, and frames take several times as long.
    {_OVERLOAD}""": graph(
        {PER_SIDECAR: _least("fast_decode_ratio")},
        Values("percentunit", below(0.5, 0.9), least=0, most=1),
    ),
}
# What should not be, by reason: its greatest counts as much as its last.
_refusals = partial(graph, values=_RARE, calculations=("max", "lastNotNull"))
REFUSED = {
    """Refused by reason
    A second: detections, messages and further fields that could not be used. Healthy: 0. The answer
    to the frame says which field and value. docs/runbook.md#calibrationrejectedhigh""": _refusals(
        {"{{reason}}": rate("rejected_total", "reason")}
    ),
    """Passed through by reason
    A second: valid detections that went out as they came. Healthy: 0, but for observe_mode where
    that is meant. docs/runbook.md#calibrationpassthroughhigh""": _refusals(
        {"{{reason}}": rate("passed_through_total", "reason")}
    ),
    """Calls refused
    A second: calls without a token that is known, or with one of another right. Healthy: 0. Rising:
    somebody tries, or a token was changed here and not there (docs/security.md).""": _refusals(
        {"{{why}}": rate("calls_refused_total", "why")}
    ),
    """Class probabilities by outcome
    Detections with class probabilities, a second, by what the active recalibrator made of them.
    mismatch: it was fitted on other classes. Healthy: recalibrated alone. All 0: none are sent, or
    none is active (docs/recalibration.md).""": _refusals(
        {"{{outcome}}": rate("class_recalibrations_total", "outcome")}
    ),
}
DISK = {
    """Frames that wait for truth, in memory
    Healthy: below `[pending] max_bytes`; at it the oldest go to disk alone, or are dropped.
    docs/runbook.md#calibrationnolabels""": graph({PER_SIDECAR: _total("pending_bytes")}, _BYTES),
    """Frames and labels on disk
    Healthy: level, below `[pending] disk_bytes`; at it the oldest partition is dropped. 0:
    `[pending] disk_bytes` is 0, or no state is kept.""": graph(
        {PER_SIDECAR: _total("ledger_bytes")}, _BYTES
    ),
    """Partitions, and entries that wait for the disk
    Stretches of `[pending] partition_minutes` each, and what was not written yet. Healthy: few
    wait. Many for long: the disk is slow; beyond `[pending] queue_frames` frames stay in
    memory.""": graph(
        {
            "partitions {{instance}}": _total("ledger_partitions"),
            "waiting {{instance}}": _total("ledger_waiting"),
        },
        _COUNT,
    ),
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
    """At the last start
    Entries of the disk that were done again, and that were lost; files that could not be used.
    Healthy: lost and refused are 0. Else see the log of the start.""": bars(
        {
            "entries done again": f"sum({of('ledger_replayed_entries')})",
            "entries lost": f"sum({of('ledger_lost_entries')})",
            "refused: {{of}}": f"sum by (of) ({of('files_refused_total')})",
        },
        _COUNT,
    ),
}
_COUNTED_LESS = {
    "overflow slice": "overflow_detections_total",
    "overflow slice, classes": "overflow_classified_total",
    "late frames": "late_frames_total",
    "dropped before truth": "dropped_detections_total",
    "retracted": "retracted_detections_total",
    "without their truth": "unmatched_detections_total",
}
LEFT_OUT = {
    """Left out of the watch over drift
    Detections with truth, a second, that were not watched, or not by all bets. Healthy: 0.
    overload, tracks: docs/runbook.md#calibrationoverload; undated: send `stamp_ns`; late: labels
    come too late; superseded: for a while after another recalibrator became active; failed: see the
    log.""": graph({"{{reason}}": rate("drift_left_out_total", "reason", "5m")}, _RARE),
    """Driving that was watched
    Seconds of driving in a second, over which evidence was gathered. Healthy: 1 while the vehicle
    drives and labels come. 0: nothing is watched. docs/runbook.md#calibrationnolabels""": graph(
        {PER_SIDECAR: rate("drift_driving_seconds_total", "instance", "5m")},
        Values("none", least=0, decimals=2),
    ),
    """Frames and detections that count for less
    A second. overflow: more slices than `[statistics] max_slices`; late: behind the watermark of
    their stream; dropped: enlarge `[pending] disk_bytes`; without their truth: their frame was
    labelled, they were not. Healthy: 0 but for the last.""": graph(
        {name: f"sum(rate({of(metric)}[5m]))" for name, metric in _COUNTED_LESS.items()}, _A_SECOND
    ),
    """Overloads, dropped streams, faults
    How often in five minutes: monitoring gave way to forwarding, a client that read nothing was
    dropped, the sidecar itself had a fault. Healthy: 0; of faults the log has a trace: report it.
    docs/runbook.md#calibrationoverload""": graph(
        {
            "overloads": increased("overloads_total", "5m"),
            "streams dropped": increased("streams_dropped_total", "5m"),
            "faults": increased("internal_errors_total", "5m"),
        },
        _NONE,
    ),
    """Detections that found their label
    Of the usable ones whose fate is known, since the start. Healthy: steady; low where only some
    frames are labelled. docs/runbook.md#calibrationmatchratiolow""": graph(
        {PER_SIDECAR: _least("match_ratio")}, Values("percentunit", least=0, most=1)
    ),
    """Matches near the gate
    Of the matches that the gate of `[matching]` decided, the share near it; 0 where it decided
    none, since labels name their detections. Healthy: below 5 %. Above, the gate cuts the tail of
    the errors off and the detector looks better than it is: widen it.""": graph(
        {PER_SIDECAR: f"{of('near_gate_ratio')} >= 0 or {of('gated_matches')} == 0"},
        Values("percentunit", above(0.05), least=0, decimals=1, marks="dashed"),
    ),
}
PROCESS = {
    """Memory of the process
    Resident, and all that is mapped. Healthy: resident levels off within an hour.""": graph(
        {
            "resident {{instance}}": _total("process_resident_memory_bytes"),
            "mapped {{instance}}": _total("process_virtual_memory_bytes"),
        },
        _BYTES,
    ),
    f"""Cores in use
    1 is a whole core. Healthy: below 0.7; the frame path has one core, fits run beside it for
    seconds. {_OVERLOAD}""": graph(
        {PER_SIDECAR: rate("process_cpu_seconds_total", "instance")},
        Values(steps=above(0.7, 1), least=0, decimals=2, marks="dashed"),
    ),
    """Open files
    Connections are files, too. Healthy: well below the dashed limit; at it connections are refused:
    raise `LimitNOFILE` or the like.""": graph(
        {
            "open {{instance}}": _total("process_open_fds"),
            "limit {{instance}}": _total("process_max_fds"),
        },
        Values("locale", least=1, log=10),
        overrides=dashed("^limit"),
    ),
    f"""Lag of the event loop
    Longest delay since the last refresh: answers waited as long. Healthy: below 50 ms; an alert
    comes above 250 ms. {_OVERLOAD}""": graph(
        {PER_SIDECAR: _most("loop_lag_seconds")},
        Values("s", above(0.05, 0.25), least=0, marks="dashed"),
        span=12,
    ),
    f"""Overload over time
    1 while frames are answered and forwarded, but not monitored (docs/degradation.md). Healthy: 0.
    {_OVERLOAD}""": graph(
        {PER_SIDECAR: _most("overload")},
        Values(steps=NONE_IS_GOOD, least=0, most=1, decimals=0),
        span=12,
    ),
}
_LABELS = ["instance", "version", "revision", "python", "numpy", "grpc", "protobuf"]
CLOCKS = {
    """Age of frames at arrival
    Wall clock minus capture stamp, of the streams of the last minute: of the freshest and of the
    stalest. Healthy: positive, and as small as capture and detection take. Negative, or hours: a
    clock of the detector, or of this machine, is wrong; `calibration-monitor doctor` says which
    stream.""": graph(
        {"{{of}} {{instance}}": f"max by (instance, of) ({of('stamp_lag_seconds')})"}, Values("s")
    ),
    """Clocks that jumped
    In five minutes: event time began anew or jumped ahead, the wall clock was set, a new epoch of
    drift began. Healthy: 0, but for recordings that are played again, and promotions (each begins
    an epoch).""": graph(
        {
            "event time": increased("event_time_jumps_total", "5m"),
            "wall clock": increased("clock_steps_total", "5m"),
            "epochs of drift": increased("drift_epochs_total", "5m"),
        },
        Values(steps=NONE_IS_CALM, least=0, decimals=0),
    ),
    """Lines of the log
    A minute, by level, and those that were left out, being too many of their kind (`[log]
    lines_a_minute`). Healthy: next to none of warning and error.""": graph(
        {
            "{{level}}": f"60 * {rate('log_lines_total', 'level', '5m')}",
            "left out": f"60 * sum(rate({of('log_lines_left_out_total')}[5m]))",
        },
        Values("suffix:/min", least=0, decimals=1),
    ),
    """Configurations read again
    By outcome, since the start. Healthy: none refused. refused: the file could not be used, the old
    one stays active; the log says which key and why.""": number(
        {"{{outcome}}": f"sum by (outcome) ({of('configuration_reloads_total')})"},
        Values("locale"),
        span=12,
        height=4,
    ),
    """Keys that wait for a restart
    Of the configuration as last read again: a restart makes them active. Healthy: 0.
    `calibration-monitor doctor` names them.""": number(
        {PER_SIDECAR: _most("configuration_waiting_keys")},
        Values("locale", NONE_IS_CALM),
        span=6,
        height=4,
    ),
    """Epoch of the wall clock
    Goes up by one when the clock of the machine is set by more than `[server] clock_step_seconds`.
    Healthy: 0, or one after the start of a machine without a battery for its clock.""": number(
        {PER_SIDECAR: _most("clock_epoch")}, Values("locale"), span=6, height=4
    ),
    """Builds
    Which version runs where, and on what. Healthy: one version on all vehicles, but while an
    upgrade is under way.""": table(
        _LABELS,
        {
            # Without `by`: a build that was not made of a commit has no label `revision`.
            "up": (
                f"{of('build_info')} * on (job, instance) group_left () {of('up')}",
                Values(words={0: ("no", "red"), 1: ("yes", "green")}),
                "color-text",
            )
        },
        span=24,
        height=5,
        hidden=["job"],
    ),
}
TRACKER = {
    """Frames of the tracker
    A second, by how they came. Healthy: in_order. rewound: late, worked in; too_late, unstamped,
    unmoved: not tracked; restarted: the clock of a stream went back.""": graph(
        {"{{order}}": rate("tracker_frames_total", "order")}, _STACKED
    ),
    """Tracks by status
    As of each stream's last frame. Healthy: steady, few tentative beside the confirmed ones.
    Coasting rises: detections miss their gates.""": graph(
        {"{{status}}": f"sum by (status) ({of('tracks')})"}, Values("locale", least=0, stacked=True)
    ),
    """Gates and innovations, worst slice
    Share of confirmed tracks with a detection near whose gate let none in, and the mean NIS over
    its dimensions. Healthy: about 1 %, and near or below 1. Both rising: covariances are too small.
    docs/runbook.md#calibrationdriftpage""": graph(
        {
            "gates that let none in": f"max({of('gate_reject_ratio')})",
            "NIS/K": f"max({of('track_nis_ratio')})",
        },
        Values(steps=BAND, least=0, decimals=2),
    ),
    """Detections flagged as uncertain
    A second, by what was too high; flagged, never dropped (`rejected_by`). Healthy: as rare as the
    thresholds were chosen for; 0 where none are set. Rising: the detector sees what it does not
    know.""": graph(
        {"{{by}}": rate("uncertain_detections_total", "by")}, _A_SECOND, span=24, height=6
    ),
}
# Empty unless `[tracker] kind = "grpc"`.
EXTERNAL = {
    f"""Tracker elsewhere
    Whether it is there and says that it serves. Healthy: up. Frames are answered all the same,
    without tracks. {_ELSEWHERE}""": number(
        {PER_SIDECAR: _least("tracker_up")}, Values(words={0: ("away", "red"), 1: ("up", "green")})
    ),
    f"""Frames sent to it, by how it ended
    A second. Healthy: all answered in time. {_ELSEWHERE}""": graph(
        {
            "{{outcome}}": rate("tracker_forwarded_total", "outcome"),
            "sent": f"sum({rate('tracker_sent_total', 'job')})",
        },
        _A_SECOND,
    ),
    f"""Time to its answer
    Of those answered in time, over five minutes; estimated from buckets. Healthy: well below
    `[tracker] timeout_seconds`. {_ELSEWHERE}""": graph(
        {f"p{100 * share:g}": quantile(share, "tracker_seconds") for share in (0.5, 0.99)},
        Values("s", least=0),
    ),
    f"""Answers that were none
    A second. Healthy: 0. The log says what was wrong with them. {_ELSEWHERE}""": graph(
        {PER_SIDECAR: rate("tracker_unusable_answers_total", "instance")}, _RARE
    ),
}

SERVICE = dashboard(
    "calibration-service",
    """Does the sidecar keep up, what does it refuse, does it keep what it has counted, and how is
    the process? While this is not in order, silence on the other dashboards means nothing.""",
    row("", NOW, span=3),
    row("Frames", FRAMES),
    row("Refused, and passed through", REFUSED, span=12),
    row("Memory and disk", DISK),
    row("Left out of monitoring", LEFT_OUT),
    row("Process", PROCESS),
    row("Clock, log and configuration", CLOCKS),
    row("Embedded tracker", TRACKER),
    row("With an external tracker", EXTERNAL, span=6, folded=True),
)
