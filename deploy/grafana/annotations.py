"""What happened, drawn as lines and spans through the panels of every dashboard."""

from __future__ import annotations

from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard as model

from deploy.grafana.panels import SOURCE
from deploy.grafana.queries import CHOSEN, RATE, of


class Annotation(Builder[model.AnnotationQuery], model.AnnotationQuery):
    """A query whose values above 0 are drawn; the package has no words for these keys.

    title  of the mark, with labels as {{label}}
    tags   labels that are shown as tags
    timed  the value is the moment, in milliseconds, in place of a number above 0
    """

    def __init__(
        self, name: str, color: str, expression: str, title: str, tags: str, timed: bool = False
    ) -> None:
        super().__init__(name=name, datasource=SOURCE, enable=True, icon_color=color)
        self._more: dict[str, object] = {
            "target": {
                "expr": expression,
                "refId": "Anno",
                "legendFormat": "",
                "datasource": SOURCE,
            },
            "titleFormat": title,
            "textFormat": "",
            "tagKeys": tags,
            "useValueForTime": timed,
        }

    def build(self) -> model.AnnotationQuery:
        return self

    def to_json(self) -> dict[str, object]:
        return super().to_json() | self._more


def _changes(metric: str, by: str) -> str:
    """Values of 0 are not drawn, so that there is always an answer."""
    return f"sum by ({by}) (changes({of(metric)}[{RATE}]))"


ANNOTATIONS: list[Builder[model.AnnotationQuery]] = [
    Annotation(
        "Recalibrators",
        "blue",
        _changes("recalibrator_swaps_total", "instance, outcome"),
        "Recalibrator {{outcome}} on {{instance}}",
        "outcome,instance",
    ),
    Annotation(
        "Drift alarms",
        "red",
        _changes("drift_alarms_total", "instance, stage, detector, direction"),
        "Drift found on {{instance}}: {{stage}}, {{direction}}, by the {{detector}} detector",
        "stage,direction,detector,instance",
    ),
    Annotation(
        "Alerts",
        "orange",
        f'ALERTS{{{CHOSEN},alertname=~"Calibration.*",alertstate="firing"}}',
        "{{alertname}} {{slice}} on {{instance}}",
        "alertname,severity,slice,instance",
    ),
    Annotation(
        "Epochs",
        "purple",
        _changes("drift_epochs_total", "instance"),
        "A new epoch began on {{instance}}: what is usual is learned anew",
        "instance",
    ),
    Annotation(
        "Restarts",
        "yellow",
        f"1000 * {of('process_start_time_seconds')}",
        "{{instance}} was started",
        "instance",
        timed=True,
    ),
]
