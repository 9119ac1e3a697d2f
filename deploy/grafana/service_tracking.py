"""Of the sidecar: its own tracker, or the one elsewhere that frames are forwarded to."""

from __future__ import annotations

from deploy.grafana.charts import graph, stat
from deploy.grafana.looks import BAND, Values, above
from deploy.grafana.panels import Panel
from deploy.grafana.queries import Query, of, quantile, rate

_ELSEWHERE = "docs/forwarding.md"


def tracking_panels() -> list[Panel]:
    return [
        graph(
            "Frames of the tracker",
            """A second, by how they came. Healthy: in_order. rewound: late, worked in; too_late,
            unstamped, unmoved: not tracked; restarted: the clock of a stream went back.""",
            Query(rate("tracker_frames_total", "order"), "{{order}}"),
            values=Values("suffix:/s", least=0),
            span=8,
            stacked=True,
        ),
        graph(
            "Tracks by status",
            """As of each stream's last frame. Healthy: steady, few tentative beside the confirmed
            ones. Coasting rises: detections miss their gates.""",
            Query(f"sum by (status) ({of('tracks')})", "{{status}}"),
            values=Values("locale", least=0),
            span=8,
            stacked=True,
        ),
        graph(
            "Gates and innovations, worst slice",
            """Share of confirmed tracks with a detection near whose gate let none in, and the mean
            NIS over its dimensions. Healthy: about 1 %, and near or below 1. Both rising:
            covariances are too small. docs/runbook.md#calibrationdriftpage""",
            Query(f"max({of('gate_reject_ratio')})", "gates that let none in"),
            Query(f"max({of('track_nis_ratio')})", "NIS/K"),
            values=Values(steps=BAND, least=0, decimals=2),
            span=8,
        ),
        graph(
            "Detections flagged as uncertain",
            """A second, by what was too high; flagged, never dropped (`rejected_by`). Healthy: as
            rare as the thresholds were chosen for; 0 where none are set. Rising: the detector sees
            what it does not know.""",
            Query(rate("uncertain_detections_total", "by"), "{{by}}"),
            values=Values("suffix:/s", least=0),
            span=24,
            height=6,
        ),
    ]


def external_panels() -> list[Panel]:
    """Empty unless `[tracker] kind = "grpc"`."""
    return [
        stat(
            "Tracker elsewhere",
            f"""Whether it is there and says that it serves. Healthy: up. Frames are answered all
            the same, without tracks. {_ELSEWHERE}""",
            Query(f"min by (instance) ({of('tracker_up')})", "{{instance}}"),
            values=Values(words={0: ("away", "red"), 1: ("up", "green")}),
            span=6,
            height=8,
            history=False,
        ),
        graph(
            "Frames sent to it, by how it ended",
            f"""A second. Healthy: all answered in time. {_ELSEWHERE}""",
            Query(rate("tracker_forwarded_total", "outcome"), "{{outcome}}"),
            Query(f"sum({rate('tracker_sent_total', 'job')})", "sent"),
            values=Values("suffix:/s", least=0),
            span=6,
        ),
        graph(
            "Time to its answer",
            f"""Of those answered in time, over five minutes; estimated from buckets. Healthy: well
            below `[tracker] timeout_seconds`. {_ELSEWHERE}""",
            *(
                Query(quantile(share, "tracker_seconds"), name)
                for share, name in ((0.5, "p50"), (0.99, "p99"))
            ),
            values=Values("s", least=0),
            span=6,
        ),
        graph(
            "Answers that were none",
            f"""A second. Healthy: 0. The log says what was wrong with them. {_ELSEWHERE}""",
            Query(rate("tracker_unusable_answers_total", "instance"), "{{instance}}"),
            values=Values("suffix:/s", above(0.01), least=0),
            span=6,
        ),
    ]
