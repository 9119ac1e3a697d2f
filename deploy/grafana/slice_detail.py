"""One slice: are deviations of each size right, in each dimension and jointly, and since when."""

from __future__ import annotations

from deploy.grafana.boards import CLASS_PROBABILITIES, Board, Row
from deploy.grafana.charts import stat
from deploy.grafana.looks import ABOVE_FLOOR, BAND, DRIFT, Values, below
from deploy.grafana.panels import Panel
from deploy.grafana.queries import STAGES, Query, of
from deploy.grafana.slice_drift import class_panels, drift_panels, track_panels
from deploy.grafana.slice_reliability import error_panels, reliability_panels
from deploy.grafana.slice_stages import stage_panels


def _now() -> list[Panel]:
    def nees(stage: str) -> Query:
        window = of("window_nees_ratio", slice="$slice", stage=stage, window="5m")
        return Query(f"max({window})", stage)

    def over_floor(stage: str) -> Query:
        chosen = {"slice": "$slice", "stage": stage, "dimension": "$dimension"}
        return Query(f"max({of('ence', **chosen)} / {of('ence_noise_floor', **chosen)})", stage)

    def drift_of(severity: str) -> Query:
        return Query(f"max({of('drift_state', slice='$slice', severity=severity)})", severity)

    return [
        stat(
            "Drift of $slice",
            """page: forwarded covariances found too small; ticket: found too large, or raw ones
            wrong. Healthy: nothing found. docs/runbook.md#calibrationdriftpage""",
            drift_of("page"),
            drift_of("ticket"),
            values=DRIFT,
            span=6,
            history=False,
        ),
        stat(
            "NEES/K, 5 minutes",
            """Mean NEES over K of the joint block over the last five minutes of event time.
            Healthy: 0.5 … 2. Raw outside and recalibrated inside: a fault is compensated.
            docs/runbook.md#calibrationfaultcompensated""",
            *(nees(stage) for stage in STAGES),
            values=Values(steps=BAND, decimals=2),
            span=6,
        ),
        stat(
            "ENCE of $dimension over its floor",
            """Expected normalised calibration error over what a calibrated detector with as many,
            as correlated errors reads; since the start. Healthy: near 1.""",
            *(over_floor(stage) for stage in STAGES),
            values=Values(steps=ABOVE_FLOOR, decimals=1),
            span=6,
        ),
        stat(
            "Labelled detections",
            """Behind the numbers here (healthy: hundreds), and how many independent ones they are
            worth: errors along a track resemble each other. Below 100 nothing can be said.
            docs/runbook.md#calibrationlabelledsharelow""",
            Query(f"sum({of('matched_detections', slice='$slice')})", "labelled"),
            Query(
                f"sum({of('effective_detections', slice='$slice', stage='recalibrated')})", "worth"
            ),
            values=Values("locale", below(100), decimals=0),
            span=6,
        ),
    ]


SLICE = Board(
    uid="calibration-slice",
    text="""One slice: whether its deviations are right at every size, in every dimension and
    jointly, of the detector and as forwarded. Diagrams are of the time that is shown.""",
    variables=("slice", "stage", "dimension"),
    rows=(
        Row("", _now()),
        Row("Reliability of $dimension over the shown time", reliability_panels()),
        Row("Errors of calibration", error_panels()),
        Row("Raw against recalibrated", stage_panels()),
        Row("Drift", drift_panels()),
        Row("Tracks", track_panels()),
        Row(CLASS_PROBABILITIES, class_panels()),
    ),
)
