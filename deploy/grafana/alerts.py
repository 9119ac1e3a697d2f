"""Which alerts fire, how many there were, and which alarms the sidecars raised."""

from __future__ import annotations

from deploy.grafana.charts import bars, graph
from deploy.grafana.looks import NONE_IS_GOOD, Values, above
from deploy.grafana.panels import Panel, panel
from deploy.grafana.queries import Query, of, or_none

FIRING = of("ALERTS", alertname="~Calibration.*", alertstate="firing")


def alerts() -> list[Panel]:
    listed = panel(
        "alertlist",
        "Alerts now",
        """Rules of deploy/prometheus that fire or are about to, of all that Grafana finds at its
        data sources. Healthy: none. Each has its paragraph in docs/runbook.md.""",
        [],
        Values(),
        span=8,
        height=8,
        options={
            "alertInstanceLabelFilter": "",
            "alertName": "Calibration",
            "dashboardAlerts": False,
            "groupBy": [],
            "groupMode": "default",
            "maxItems": 30,
            "sortOrder": 3,  # by importance
            "stateFilter": {
                "error": True,
                "firing": True,
                "noData": False,
                "normal": False,
                "pending": True,
            },
            "viewMode": "list",
        },
    )
    return [
        listed,
        graph(
            "Alerts over time",
            """How many fired at a time. Healthy: 0. docs/runbook.md says what each of them means,
            and when it ends.""",
            Query(or_none(f"count({FIRING})"), "firing"),
            values=Values(steps=NONE_IS_GOOD, least=0, decimals=0),
            span=8,
        ),
        bars(
            "Drift alarms since the start",
            """Alarms that the sidecars raised, by what of (recalibrated: as forwarded), whether
            covariances were too small (over-) or too large (underconfident), and by which
            detector. Healthy: 0. `calibration-monitor alarms list` says more of each.
            docs/runbook.md#calibrationdriftpage""",
            Query(
                f"sum by (stage, direction, detector) ({of('drift_alarms_total')})",
                "{{stage}}, {{direction}}, {{detector}}",
            ),
            values=Values(steps=above(1), least=0, decimals=0),
        ),
    ]
