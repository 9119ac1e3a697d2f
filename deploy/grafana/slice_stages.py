"""Of one slice: the detector beside what is forwarded."""

from __future__ import annotations

from deploy.grafana.charts import graph
from deploy.grafana.looks import BAND, Values, above
from deploy.grafana.panels import Panel, dashed, staged
from deploy.grafana.queries import STAGES, Query, of
from deploy.grafana.tables import categories

_NAMED = "{{stage}} {{instance}}"


def stage_panels() -> list[Panel]:
    """Side by side: the detector, and what the tracker gets."""

    def windows(stage: str, title: str) -> Panel:
        window = of("window_nees_ratio", slice="$slice", stage=stage)
        return graph(
            title,
            """Mean NEES over K of the joint block over windows of event time. Healthy: the green
            band. The short window follows a fault, the long one says what is usual: they part
            while something changes. docs/runbook.md#calibrationdriftpage""",
            Query(window, "{{window}} {{instance}}"),
            values=Values(steps=BAND, decimals=2),
            marks="dashed+area",
            log=2,
        )

    dimensions = categories(
        "NEES/K by dimension",
        """Mean NEES over K of each dimension alone, and of the joint block, since the start. One
        dimension far from 1: its variance is wrong; all near 1 and joint far from it: correlations
        are. Healthy: 0.5 … 2.""",
        "dimension",
        [
            Query(
                f"max by (dimension) ({of('nees_ratio', slice='$slice', stage=stage)})",
                stage,
                instant=True,
            )
            for stage in STAGES
        ],
        values=Values(steps=BAND, decimals=2, least=0),
    )
    tails = graph(
        "Mean and median of NEES",
        """Mean NEES over K, and its median over that of χ², since the start. Healthy: both near 1.
        The median far below the mean: heavy tails, a few errors make it; consider another
        objective for fits (`[promotion] objective`).""",
        Query(
            of("nees_ratio", slice="$slice", dimension="joint", stage="~$stage"), "mean, {{stage}}"
        ),
        Query(of("nees_median_ratio", slice="$slice", stage="~$stage"), "median, {{stage}}"),
        values=Values(steps=BAND, decimals=2),
        marks="dashed",
        height=9,
    )
    errors = {"slice": "$slice", "stage": "~$stage", "dimension": "$dimension"}
    squared = graph(
        "UCE of $dimension since the start",
        """Uncertainty calibration error: mean over detections of |MSE − mean variance| of their
        bin, in the squared unit of the stream. Healthy: small beside the variances themselves.""",
        Query(of("uce", **errors), _NAMED),
        values=Values(least=0),
        span=8,
    )
    quantiles = graph(
        "QCE since the start, and of windows",
        """Quantile calibration error of the joint block, mean over all τ: since the start, and
        over windows of event time. Healthy: below 0.05.""",
        Query(of("qce", slice="$slice", dimension="joint", stage="~$stage"), "start, {{stage}}"),
        Query(of("window_qce", slice="$slice", stage="~$stage"), "{{window}}, {{stage}}"),
        values=Values("percentunit", above(0.05), least=0, decimals=1),
        marks="dashed",
        span=8,
    )
    recorded = graph(
        "Mean NEES, ten minutes",
        """Of the joint block, from the bins' counters as the recording rules add them up; other
        than NEES/K not divided by the number of dimensions. Healthy: that number. It is what
        fleet:calibration_nees:10m says of all vehicles together.""",
        Query(of("instance:calibration_nees:10m", slice="$slice", stage="~$stage"), _NAMED),
        values=Values(least=0, decimals=1),
        span=8,
    )
    return [
        windows("raw", "NEES/K of the detector, by window"),
        windows("recalibrated", "NEES/K as forwarded, by window"),
        staged(dimensions),
        dashed(staged(tails), "^median"),
        staged(squared),
        quantiles,
        staged(recorded),
    ]
