"""The sidecar itself: does it keep up, what does it refuse, and is its memory kept."""

from __future__ import annotations

from deploy.grafana.boards import EXTERNAL_TRACKER, Board, Row
from deploy.grafana.charts import graph, heatmap, stat
from deploy.grafana.looks import NONE_IS_GOOD, Values, above, below
from deploy.grafana.panels import Panel
from deploy.grafana.queries import Query, of, quantile, rate
from deploy.grafana.service_memory import disk_panels, left_out_panels
from deploy.grafana.service_process import clock_panels, process_panels
from deploy.grafana.service_tracking import external_panels, tracking_panels
from deploy.grafana.tables import Column, table

_OVERLOAD = "docs/runbook.md#calibrationoverload"


def _now() -> list[Panel]:
    return [
        stat(
            "Frames",
            """Answered a second. Healthy: what the detectors send. 0: they are silent, or cannot
            reach the sidecar. docs/runbook.md#calibrationsidecardown""",
            Query(f"sum({rate('frames_total', 'job')})", "frames"),
            values=Values("suffix:/s", decimals=1),
        ),
        stat(
            "Streams",
            """Registered since the start; at most `[server] max_streams`.""",
            Query(f"sum({of('streams')})", "streams"),
            values=Values("locale"),
        ),
        stat(
            "Slowest of a hundred frames",
            f"""Time in the sidecar, of the last five minutes; estimated from buckets. Healthy: well
            below the time between two frames. {_OVERLOAD}""",
            Query(quantile(0.99, "frame_seconds"), "p99"),
            values=Values("s", above(0.025, 0.1), decimals=1),
        ),
        stat(
            "Overload",
            f"""1 while frames are answered and forwarded, but not monitored. Healthy: no. See
            docs/degradation.md. {_OVERLOAD}""",
            Query(f"max({of('overload')})", "overload"),
            values=Values(steps=NONE_IS_GOOD, words={0: ("no", "green"), 1: ("YES", "red")}),
        ),
        stat(
            "Refused",
            """Share of the detections of the last five minutes; a whole message counts as one.
            Healthy: below 1 %. docs/runbook.md#calibrationrejectedhigh""",
            Query(
                f"sum({rate('rejected_total', 'job', '5m')}) / "
                f"sum({rate('detections_total', 'job', '5m')})",
                "refused",
            ),
            values=Values("percentunit", above(0.001, 0.01), decimals=2),
        ),
        stat(
            "Last checkpoint",
            """Since the statistics were last written to disk. Healthy: below twice
            `[state] every_seconds`. –: never, or none is meant to be.
            docs/runbook.md#calibrationcheckpointstale""",
            Query(f"max({of('checkpoint_age_seconds')})", "age"),
            values=Values("s", above(60, 120), decimals=0),
        ),
        stat(
            "Resident memory",
            """Of the process. Healthy: level after the first hour. What waits for truth is in it
            (`[pending] max_bytes`), and what slices and fits keep. A level that climbs for days is
            a fault: report it.""",
            Query(f"max({of('process_resident_memory_bytes')})", "resident"),
            values=Values("bytes"),
        ),
        stat(
            "Running for",
            """Since the process started. Healthy: since you last started it. A small number that
            nobody meant: it was restarted, see its log. docs/runbook.md#calibrationsidecardown""",
            Query(f"time() - min({of('process_start_time_seconds')})", "up"),
            values=Values("s", decimals=0),
        ),
    ]


def _frames() -> list[Panel]:
    shares = ((0.5, "p50"), (0.9, "p90"), (0.99, "p99"))
    buckets = of("frame_seconds_bucket")
    return [
        heatmap(
            "Time of a frame in the sidecar",
            f"""How many frames took how long, from the bytes to the answer. Healthy: a narrow band
            at a millisecond or a few. A second band above: frames that were decoded slowly, or
            waited. {_OVERLOAD}""",
            Query(f"sum by (le) (increase({buckets}[1m]))", "{{le}}", heatmap=True),
            unit="s",
        ),
        graph(
            "Time of a frame, quantiles",
            f"""Of five minutes, estimated from buckets. Healthy: p99 below 25 ms; an alert comes
            above 100 ms. {_OVERLOAD}""",
            *(Query(quantile(share, "frame_seconds"), name) for share, name in shares),
            values=Values("s", ((None, "green"), (0.1, "red")), least=0),
        ),
        graph(
            "Frames by sidecar",
            """Answered a second. Healthy: steady, at the rate of the sensors. A dip:
            the detector, or the way to the sidecar.""",
            Query(rate("frames_total", "instance"), "{{instance}}"),
            values=Values("suffix:/s", least=0),
            span=8,
        ),
        graph(
            "Detections by outcome",
            """A second. Healthy: recalibrated (with the identity in force too); passed_through and
            refused say why below. docs/runbook.md#calibrationpassthroughhigh""",
            Query(rate("detections_total", "outcome"), "{{outcome}}"),
            values=Values("suffix:/s", least=0),
            span=8,
            stacked=True,
        ),
        graph(
            "Frames decoded at once",
            f"""Share of frames whose detections all have one layout, since the start. Healthy: near
            100 %. Low: some detections lack fields that others have, and frames take several times
            as long. {_OVERLOAD}""",
            Query(f"min by (instance) ({of('fast_decode_ratio')})", "{{instance}}"),
            values=Values("percentunit", below(0.5, 0.9), least=0, most=1),
            span=8,
        ),
    ]


def _refused() -> list[Panel]:
    def reasons(title: str, text: str, metric: str, label: str) -> Panel:
        return graph(
            title,
            text,
            Query(rate(metric, label), f"{{{{{label}}}}}"),
            values=Values("suffix:/s", above(0.01), least=0),
            calculations=("max", "lastNotNull"),
        )

    return [
        reasons(
            "Refused by reason",
            """A second: detections, messages and further fields that could not be used. Healthy: 0.
            The answer to the frame says which field and value.
            docs/runbook.md#calibrationrejectedhigh""",
            "rejected_total",
            "reason",
        ),
        reasons(
            "Passed through by reason",
            """A second: valid detections that went out as they came. Healthy: 0, but for
            observe_mode where that is meant. docs/runbook.md#calibrationpassthroughhigh""",
            "passed_through_total",
            "reason",
        ),
        reasons(
            "Calls refused",
            """A second: calls without a token that is known, or with one of another right.
            Healthy: 0. Rising: somebody tries, or a token was changed here and not there
            (docs/security.md).""",
            "calls_refused_total",
            "why",
        ),
        reasons(
            "Class probabilities by outcome",
            """Detections with class probabilities, a second, by what the recalibrator in force made
            of them. mismatch: it was fitted on other classes. Healthy: recalibrated alone. All 0:
            none are sent, or none is in force (docs/recalibration.md).""",
            "class_recalibrations_total",
            "outcome",
        ),
    ]


def _build() -> list[Panel]:
    labels = ["instance", "version", "revision", "python", "numpy", "grpc", "protobuf"]
    # Without `by`: a build that was not made of a commit has no label `revision`.
    info = f"{of('build_info')} * on (job, instance) group_left () {of('up')}"
    return [
        table(
            "Builds",
            """Which version runs where, and on what. Healthy: one version on all vehicles, but
            while an upgrade is under way.""",
            labels,
            [
                Column(
                    Query(info, "up", instant=True),
                    Values(words={0: ("no", "red"), 1: ("yes", "green")}),
                    "color-text",
                )
            ],
            height=5,
            hidden=["job"],
        )
    ]


SERVICE = Board(
    uid="calibration-service",
    text="""Does the sidecar keep up, what does it refuse, does it keep what it has counted, and
    how is the process? While this is not in order, silence on the other dashboards means
    nothing.""",
    variables=(),
    rows=(
        Row("", _now()),
        Row("Frames", _frames()),
        Row("Refused, and passed through", _refused()),
        Row("Memory and disk", disk_panels()),
        Row("Left out of monitoring", left_out_panels()),
        Row("Process", process_panels()),
        Row("Clock, log and configuration", [*clock_panels(), *_build()]),
        Row("Embedded tracker", tracking_panels()),
        Row(EXTERNAL_TRACKER, external_panels()),
    ),
)
