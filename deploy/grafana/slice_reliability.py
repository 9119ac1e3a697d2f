"""Of one slice: errors beside predicted deviations, and the errors of calibration."""

from __future__ import annotations

from deploy.grafana import reliability
from deploy.grafana.charts import graph
from deploy.grafana.looks import DEVIATION_BAND, Values, above
from deploy.grafana.panels import Panel, dashed, staged
from deploy.grafana.queries import STAGES, Query, of
from deploy.grafana.tables import Column, Points, categories, plane, table

_NAMED = "{{stage}} {{instance}}"


def reliability_panels() -> list[Panel]:
    """Of the shown time, so that a reader may look at an hour of yesterday as well."""

    def at(query: str, name: str) -> Query:
        return Query(query, name, instant=True)

    either = f"{reliability.predicted('raw')} or {reliability.predicted('recalibrated')}"
    points = [
        *(
            Points(
                at(reliability.predicted(stage), f"predicted, {stage}"),
                at(reliability.actual(stage), stage),
            )
            for stage in STAGES
        ),
        Points(at(either, "predicted"), at(f"({either})", "calibrated")),
    ]
    diagram = plane(
        "Reliability of $dimension",
        """A point for each bin of σ, over the shown time: how large errors were (RMSE, upwards)
        where σ was predicted so large (RMV, to the right), in the unit of the stream, both axes
        logarithmic. Healthy: on the dashed diagonal. Above it σ is too small; a line beside the
        diagonal is one wrong factor, a bent line is a wrong shape: variance scaling mends the
        first, other methods the second (docs/recalibration.md).""",
        "bin",
        points,
        values=Values(decimals=3),
        span=10,
        height=12,
        log=10,
    )
    bars = categories(
        "Error over predicted σ, by bin",
        """The same as a number: RMSE over RMV in each bin of σ. Healthy: 1, between the lines
        0.71 and 1.41 (a factor of two on the variance). Bins with few detections scatter: see the
        table.""",
        "deviation",
        [at(reliability.with_edges(reliability.ratio(stage)), stage) for stage in STAGES],
        values=Values(steps=DEVIATION_BAND, decimals=2, least=0),
        span=14,
        height=6,
        sort="bin",
    )
    columns = [
        *(
            Column(
                at(reliability.with_edges(reliability.count(stage)), f"n {stage}"),
                Values("locale", decimals=0),
            )
            for stage in STAGES
        ),
        *(
            Column(
                at(reliability.with_edges(reliability.ratio(stage)), f"RMSE/RMV {stage}"),
                Values(steps=DEVIATION_BAND, decimals=2),
                "color-text",
            )
            for stage in STAGES
        ),
    ]
    bins = table(
        "Bins of σ",
        """How many detections with truth fell into each bin of σ over the shown time, and how
        large their errors were beside it. Healthy: ratios near 1; below about 50
        detections one says little.""",
        ["bin", "deviation"],
        columns,
        span=14,
        height=6,
        sort=("bin", False),
    )
    return [staged(diagram), staged(bars), bins]


def error_panels() -> list[Panel]:
    chosen = {"slice": "$slice", "stage": "~$stage", "dimension": "$dimension"}
    ten = graph(
        "ENCE of $dimension, ten minutes",
        """Of the bins' counters, as the recording rules add them up. Dashed: what independent
        Gaussian errors of a calibrated detector would read; errors along tracks read more.
        Healthy: near its floor. It follows a fault within minutes.""",
        Query(of("instance:calibration_ence:10m", **chosen), _NAMED),
        Query(
            of("instance:calibration_ence_noise_floor_gaussian:10m", **chosen),
            "floor, " + _NAMED,
        ),
        values=Values("percentunit", least=0, decimals=0),
    )
    since = graph(
        "ENCE of $dimension since the start",
        """Mean over bins of equal count of |RMV − RMSE| / RMV: 10 % is off by a tenth of σ. Dashed:
        what a calibrated detector with as many, as correlated and as heavy-tailed errors reads.
        Healthy: near its floor; never compare it with 0.""",
        Query(of("ence", **chosen), _NAMED),
        Query(of("ence_noise_floor", **chosen), "floor, " + _NAMED),
        values=Values("percentunit", least=0, decimals=0),
    )
    levels = graph(
        "QCE by level, ten minutes",
        """Quantile calibration error of the joint block at each level τ: by how much the share of
        errors within the region of level τ is off, bin by bin. Healthy: below 0.05. High at small
        τ alone: the middle is wrong; high at 0.99: heavy tails.""",
        Query(reliability.qce_by_level(), "τ {{tau}}, {{stage}}"),
        values=Values("percentunit", above(0.05), least=0, decimals=1),
        marks="dashed",
        span=8,
    )
    covered = plane(
        "Coverage against τ",
        """Share of errors within the χ² region of level τ, over the shown time. Healthy: on the
        dashed diagonal. Below it covariances are too small, above it too large.
        docs/runbook.md#calibrationdriftpage""",
        "tau",
        [
            Points(Query(reliability.level(), "τ", instant=True), query)
            for query in (
                *(Query(reliability.coverage(stage), stage, instant=True) for stage in STAGES),
                Query(f"({reliability.level()})", "calibrated", instant=True),
            )
        ],
        values=Values("percentunit", least=0, most=1, decimals=0),
        span=8,
        height=8,
    )
    steady = graph(
        "Coverage since the start",
        """Share of errors within the χ² region of each level τ, over time. Healthy: each line at
        its τ. Below: covariances are too small. docs/runbook.md#calibrationdriftpage""",
        Query(of("coverage", slice="$slice", stage="~$stage"), "τ {{tau}}, {{stage}}"),
        values=Values("percentunit", least=0, most=1, decimals=0),
        span=8,
    )
    return [
        dashed(staged(ten), "^floor"),
        dashed(staged(since), "^floor"),
        levels,
        staged(covered),
        steady,
    ]
