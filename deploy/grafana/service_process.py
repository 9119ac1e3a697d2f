"""Of the sidecar: the process, its clock, its log and its configuration."""

from __future__ import annotations

from deploy.grafana.charts import graph, stat
from deploy.grafana.looks import NONE_IS_CALM, NONE_IS_GOOD, Values, above
from deploy.grafana.panels import Panel, dashed
from deploy.grafana.queries import Query, increase, of, rate

_OVERLOAD = "docs/runbook.md#calibrationoverload"
_PER = "{{instance}}"


def process_panels() -> list[Panel]:
    files = graph(
        "Open files",
        """Connections are files, too. Healthy: well below the dashed limit; at it connections are
        refused: raise `LimitNOFILE` or the like.""",
        Query(f"sum by (instance) ({of('process_open_fds')})", "open {{instance}}"),
        Query(f"sum by (instance) ({of('process_max_fds')})", "limit {{instance}}"),
        values=Values("locale", least=1),
        span=8,
        log=10,
    )
    return [
        graph(
            "Memory of the process",
            """Resident, and all that is mapped. Healthy: resident levels off within an hour.""",
            Query(
                f"sum by (instance) ({of('process_resident_memory_bytes')})",
                "resident {{instance}}",
            ),
            Query(
                f"sum by (instance) ({of('process_virtual_memory_bytes')})", "mapped {{instance}}"
            ),
            values=Values("bytes", least=0),
            span=8,
        ),
        graph(
            "Cores in use",
            f"""1 is a whole core. Healthy: below 0.7; the frame path has one core, fits run beside
            it for seconds. {_OVERLOAD}""",
            Query(rate("process_cpu_seconds_total", "instance"), _PER),
            values=Values(steps=above(0.7, 1), least=0, decimals=2),
            marks="dashed",
            span=8,
        ),
        dashed(files, "^limit"),
        graph(
            "Lag of the event loop",
            f"""Longest delay since the last refresh: answers waited as long. Healthy: below 50 ms;
            an alert comes above 250 ms. {_OVERLOAD}""",
            Query(f"max by (instance) ({of('loop_lag_seconds')})", _PER),
            values=Values("s", above(0.05, 0.25), least=0),
            marks="dashed",
        ),
        graph(
            "Overload over time",
            f"""1 while frames are answered and forwarded, but not monitored (docs/degradation.md).
            Healthy: 0. {_OVERLOAD}""",
            Query(f"max by (instance) ({of('overload')})", _PER),
            values=Values(steps=NONE_IS_GOOD, least=0, most=1, decimals=0),
        ),
    ]


def clock_panels() -> list[Panel]:
    return [
        graph(
            "Age of frames at arrival",
            """Wall clock minus capture stamp, of the streams of the last minute: of the freshest
            and of the stalest. Healthy: positive, and as small as capture and detection take.
            Negative, or hours: a clock of the detector, or of this machine, is wrong;
            `calibration-monitor doctor` says which stream.""",
            Query(f"max by (instance, of) ({of('stamp_lag_seconds')})", "{{of}} {{instance}}"),
            values=Values("s"),
            span=8,
        ),
        graph(
            "Clocks that jumped",
            """In five minutes: event time began anew or jumped ahead, the wall clock was set, a new
            epoch of drift began. Healthy: 0, but for recordings that are played again, and
            promotions (each begins an epoch).""",
            Query(f"sum({increase('event_time_jumps_total', 'job', '5m')})", "event time"),
            Query(f"sum({increase('clock_steps_total', 'job', '5m')})", "wall clock"),
            Query(f"sum({increase('drift_epochs_total', 'job', '5m')})", "epochs of drift"),
            values=Values(steps=NONE_IS_CALM, least=0, decimals=0),
            span=8,
        ),
        graph(
            "Lines of the log",
            """A minute, by level, and those that were left out, being too many of their kind
            (`[log] lines_a_minute`). Healthy: next to none of warning and error.""",
            Query(f"60 * {rate('log_lines_total', 'level', '5m')}", "{{level}}"),
            Query(f"60 * sum(rate({of('log_lines_left_out_total')}[5m]))", "left out"),
            values=Values("suffix:/min", least=0, decimals=1),
            span=8,
        ),
        stat(
            "Configurations read again",
            """By outcome, since the start. Healthy: none refused. refused: the file could not be
            used, the old one stays in force; the log says which key and why.""",
            Query(f"sum by (outcome) ({of('configuration_reloads_total')})", "{{outcome}}"),
            values=Values("locale"),
            span=12,
            history=False,
        ),
        stat(
            "Keys that wait for a restart",
            """Of the configuration as last read again: a restart brings them in force. Healthy: 0.
            `calibration-monitor doctor` names them.""",
            Query(f"max by (instance) ({of('configuration_waiting_keys')})", _PER),
            values=Values("locale", NONE_IS_CALM),
            span=6,
            history=False,
        ),
        stat(
            "Epoch of the wall clock",
            """Goes up by one when the clock of the machine is set by more than
            `[server] clock_step_seconds`. Healthy: 0, or one after the start of a machine without a
            battery for its clock.""",
            Query(f"max by (instance) ({of('clock_epoch')})", _PER),
            values=Values("locale"),
            span=6,
            history=False,
        ),
    ]
