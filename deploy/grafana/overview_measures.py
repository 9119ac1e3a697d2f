"""Of the overview: evidence against its threshold, and measures of all slices over time."""

from __future__ import annotations

from deploy.grafana.charts import graph
from deploy.grafana.looks import (
    ABOVE_FLOOR,
    BAD,
    BAND,
    Values,
    above,
)
from deploy.grafana.panels import Panel, dashed
from deploy.grafana.queries import BY_SLICE, SLICES, Query, of

_FACTOR = of("recalibration_factor", slice=SLICES)


def _evidence(severity: str, title: str, anchor: str) -> Panel:
    """Cut off from below: what is against drift falls to -9, and means no more than -3 does."""
    evidence = of("drift_log10_evidence", severity=severity, slice=SLICES)
    return dashed(
        graph(
            title,
            f"""log10 of the hours of driving in which chance alone would once reach so much; the
            dashed line is what an alarm needs (`[drift] hours_between_false_{severity}s`). Below -3
            it is drawn at -3. Healthy: well below the line. A line that rises steadily is drift
            that will be told soon. docs/runbook.md#{anchor}""",
            Query(f"clamp_min(max by ({BY_SLICE}) ({evidence}), -3)", "{{slice}}"),
            Query(f"max({of('drift_log10_threshold', severity=severity)})", "threshold"),
            values=Values("suffix: log h", decimals=1),
        ),
        "^threshold$",
        BAD,
    )


def measures() -> list[Panel]:
    """The same measure of the detector, and of what is forwarded."""

    def nees(stage: str, title: str, meaning: str) -> Panel:
        window = of("window_nees_ratio", stage=stage, window="5m", slice=SLICES)
        return graph(
            title,
            f"""Mean NEES over K, over the last five minutes of event time, {meaning} Healthy: the
            green band, 0.5 … 2. At 5 variances are five times too small; at 0.2 five times too
            large. docs/runbook.md#calibrationdriftpage""",
            Query(f"max by ({BY_SLICE}) ({window})", "{{slice}}"),
            values=Values(steps=BAND, decimals=2),
            marks="dashed+area",
            log=2,
        )

    furthest = f"exp(max by ({BY_SLICE}) (abs(ln({_FACTOR}))))"
    floor = (
        f"max by ({BY_SLICE}) ({of('ence', stage='recalibrated', slice=SLICES)} / "
        f"{of('ence_noise_floor', stage='recalibrated', slice=SLICES)})"
    )
    return [
        _evidence("page", "Evidence for a page", "calibrationdriftpage"),
        _evidence("ticket", "Evidence for a ticket", "calibrationdriftticket"),
        nees("raw", "NEES/K of the detector", "of what the detector sends."),
        nees("recalibrated", "NEES/K as forwarded", "of what goes on to the tracker."),
        graph(
            "ENCE over its floor, as forwarded",
            """Of the worst dimension, since the start: expected normalised calibration error over
            what a calibrated detector with as many, as correlated errors would read. Healthy: near
            1. It looks further back than NEES/K, and moves slowly. Never compare ENCE with 0.""",
            Query(floor, "{{slice}}"),
            values=Values(steps=ABOVE_FLOOR, decimals=1, least=0),
            marks="dashed",
        ),
        graph(
            "Strongest factor of the recalibrator",
            """By how much the recalibrator in force changes a variance of the slice, up or down, in
            the dimension where that is most. 1 leaves it alone. Healthy: below 2. Above it a fault
            of the detector is being compensated: look for it.
            docs/runbook.md#calibrationfaultcompensated""",
            Query(furthest, "{{slice}}"),
            values=Values(steps=above(2), decimals=2, least=1),
            marks="dashed",
            log=2,
        ),
    ]
