"""What a reader may choose at the top of a dashboard."""

from __future__ import annotations

from dataclasses import dataclass

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models import dashboard as model

from deploy.grafana.panels import SOURCE
from deploy.grafana.queries import of


@dataclass(frozen=True, slots=True)
class _Choice:
    """Values of a label.

    name     as queries call it; the same on all dashboards, so that links carry the choice along
    several  whether more than one may be chosen, and all of them are at first
    """

    name: str
    label: str
    values: str
    several: bool = True


_CHOICES = {
    "job": _Choice("job", "Job", "label_values(calibration_frames_total, job)"),
    "instance": _Choice(
        "instance", "Sidecar", 'label_values(calibration_frames_total{job=~"$job"}, instance)'
    ),
    # With `total`, which is all slices together.
    "slices": _Choice("slice", "Slices", f"label_values({of('nees_ratio')}, slice)"),
    # Without it: the counters of the bins have none.
    "slice": _Choice("slice", "Slice", f"label_values({of('bin_detections_total')}, slice)", False),
    "stage": _Choice("stage", "Stage", f"label_values({of('nees_ratio')}, stage)"),
    "dimension": _Choice(
        "dimension", "Dimension", f"label_values({of('bin_variance_total')}, dimension)", False
    ),
    "dimensions": _Choice(
        "dimension", "Dimensions", f"label_values({of('bin_variance_total')}, dimension)"
    ),
}

Variable = dashboard.QueryVariable | dashboard.DatasourceVariable


def variable(key: str) -> Variable:
    """One of the choices, or the data source."""
    if key == "datasource":
        return (
            dashboard.DatasourceVariable("datasource")
            .label("Data source")
            .type("prometheus")
            .current(model.VariableOption(text="Prometheus", value="prometheus", selected=True))
        )
    choice = _CHOICES[key]
    built = (
        dashboard.QueryVariable(choice.name)
        .label(choice.label)
        .datasource(SOURCE)
        .query({"qryType": 5, "query": choice.values, "refId": f"variable-{choice.name}"})
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(model.VariableSort.ALPHABETICAL_ASC)
        .multi(choice.several)
        .include_all(choice.several)
    )
    if choice.several:
        everything = model.VariableOption(text=["All"], value=["$__all"], selected=True)
        built = built.all_value(".*").current(everything)
    return built
