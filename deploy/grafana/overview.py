"""The overview: is anything wrong, in which slice, how sure is that, and are there labels."""

from __future__ import annotations

from deploy.grafana.alerts import FIRING, alerts
from deploy.grafana.boards import Board, Row
from deploy.grafana.charts import stat, states
from deploy.grafana.looks import (
    ABOVE_FLOOR,
    BAND,
    DRIFT,
    GOOD,
    NONE_IS_GOOD,
    Values,
    above,
    below,
)
from deploy.grafana.overview_labels import labels
from deploy.grafana.overview_measures import measures
from deploy.grafana.panels import Panel
from deploy.grafana.queries import BY_SLICE, SLICES, Query, compensated, of, or_none, rate
from deploy.grafana.tables import Column, table

_FACTOR = of("recalibration_factor", slice=SLICES)


def _now() -> list[Panel]:
    """One glance: numbers that are green where nothing is wrong."""
    matched = rate("ground_truth_total", "job", "5m", outcome="matched")
    detections = rate("detections_total", "job", "5m", outcome="!refused")
    return [
        stat(
            "Slices with a page",
            """Slices, and `total`, whose forwarded covariances are found too small: true
            detections fall out of the gates. Healthy: 0. What to do:
            docs/runbook.md#calibrationdriftpage""",
            Query(f"sum({of('drift_state', severity='page')} == bool 2)", "slices"),
            values=Values(steps=NONE_IS_GOOD),
        ),
        stat(
            "Slices with a ticket",
            """Slices whose forwarded covariances are found too large, or whose raw ones are wrong
            behind a recalibrator. Healthy: 0; it can wait for a day.
            docs/runbook.md#calibrationdriftticket""",
            Query(f"sum({of('drift_state', severity='ticket')} == bool 2)", "slices"),
            values=Values(steps=above(1)),
        ),
        stat(
            "Alerts",
            """Rules of deploy/prometheus that fire now. Healthy: 0. The list below names them,
            docs/runbook.md says what to do about each.""",
            Query(or_none(f"count({FIRING})"), "firing"),
            values=Values(steps=NONE_IS_GOOD),
        ),
        stat(
            "NEES/K now",
            """Mean NEES over the number of dimensions, of all slices, over the last five minutes
            of event time, of what is forwarded; of several sidecars the highest. Healthy:
            0.5 … 2, best 1. Above: standard deviations are too small.
            docs/runbook.md#calibrationdriftpage""",
            Query(
                f"max({of('window_nees_ratio', slice='total', stage='recalibrated', window='5m')})",
                "NEES/K",
            ),
            values=Values(steps=BAND, decimals=2),
        ),
        stat(
            "Slices without enough labels",
            """Slices with fewer than 100 labelled detections: nothing can be said of them yet.
            Healthy: 0 after the first minutes. docs/runbook.md#calibrationlabelledsharelow""",
            Query(f"sum({of('drift_state', severity='page')} == bool 3)", "slices"),
            values=Values(steps=((None, GOOD), (1, "blue"))),
        ),
        stat(
            "Slices compensated",
            """Slices in which a recalibrator more than doubles or halves a variance: what is
            forwarded looks healthy, the detector is not. Healthy: 0.
            docs/runbook.md#calibrationfaultcompensated""",
            Query(or_none(compensated(_FACTOR)), "slices"),
            values=Values(steps=above(1)),
        ),
        stat(
            "Detections with truth",
            """Of the last five minutes. Where it is low drift is found later, where it is 0 never.
            Healthy: what you planned for, above 1 %. docs/runbook.md#calibrationnolabels""",
            Query(f"sum({matched}) / sum({detections})", "labelled"),
            values=Values("percentunit", below(0.01, 0.05), decimals=1),
        ),
        stat(
            "Sidecars that answer",
            """Share of the chosen sidecars that Prometheus could scrape. Healthy: 100 %. Of the
            others nothing is known, and none of their alerts can fire.
            docs/runbook.md#calibrationsidecardown""",
            Query(f"avg({of('up')})", "up"),
            values=Values("percentunit", below(1)),
        ),
    ]


def _slices() -> list[Panel]:
    window = {"window": "5m", "slice": SLICES}
    ratio = Values(steps=BAND, decimals=2)
    ence = (
        f"{of('ence', stage='recalibrated', slice=SLICES)} / "
        f"{of('ence_noise_floor', stage='recalibrated', slice=SLICES)}"
    )

    def column(heading: str, inner: str, values: Values, cell: str = "auto") -> Column:
        return Column(Query(f"max by ({BY_SLICE}) ({inner})", heading, instant=True), values, cell)

    def drift_of(severity: str, metric: str) -> str:
        return of(metric, severity=severity, slice=SLICES)

    found = table(
        "Slices",
        """One row a slice; `total` is all together. Page, ticket: is drift found. NEES/K: 1 is
        healthy, within 0.5 … 2 nothing is done; raw is the detector, forwarded what the tracker
        gets. ENCE/floor: the worst dimension beside what a calibrated detector would read, healthy
        near 1. Evidence: log10 of hours; an alarm needs what the graphs below show as a line.
        Worth: how many independent detections the labelled ones count for. Click on a slice for
        its reliability diagram. docs/runbook.md#calibrationdriftpage""",
        ["instance", "slice"],
        [
            column("Page", drift_of("page", "drift_state"), DRIFT, "color-background"),
            column("Ticket", drift_of("ticket", "drift_state"), DRIFT, "color-background"),
            column(
                "NEES/K raw, 5 min",
                of("window_nees_ratio", stage="raw", **window),
                ratio,
                "color-text",
            ),
            column(
                "NEES/K forwarded, 5 min",
                of("window_nees_ratio", stage="recalibrated", **window),
                ratio,
                "color-text",
            ),
            column("ENCE/floor", ence, Values(steps=ABOVE_FLOOR, decimals=1), "color-text"),
            column(
                "Evidence, page",
                drift_of("page", "drift_log10_evidence"),
                Values(decimals=1),
            ),
            column(
                "Evidence, ticket",
                drift_of("ticket", "drift_log10_evidence"),
                Values(decimals=1),
            ),
            column(
                "Labelled",
                of("labelled_ratio", slice=SLICES),
                Values("percentunit", below(0.01, 0.05), decimals=0),
                "color-text",
            ),
            column(
                "Labelled detections",
                of("matched_detections", slice=SLICES),
                Values("locale", below(100)),
            ),
            column(
                "Worth",
                of("effective_detections", slice=SLICES, stage="recalibrated"),
                Values("locale", decimals=0),
            ),
        ],
        sort=("Evidence, page", True),
        links={
            "slice": (
                "Reliability of this slice",
                "/d/calibration-slice?var-slice=${__value.text}&${job:queryparam}"
                "&${instance:queryparam}&${__url_time_range}",
            )
        },
    )
    history = states(
        "Drift, pages",
        """What `drift_state` said, over time. Healthy: green, nothing found. Yellow: a tenth of
        what an alarm needs. Red: an alarm, until it is acknowledged, a new epoch, or calm. Blue:
        fewer than 100 labelled detections. docs/runbook.md#calibrationdriftpage""",
        Query(f"max by ({BY_SLICE}) ({drift_of('page', 'drift_state')})", "{{slice}}"),
    )
    tickets = states(
        "Drift, tickets",
        """As beside, of what can wait: forwarded covariances too large, or raw ones wrong behind a
        recalibrator. Healthy: green. docs/runbook.md#calibrationdriftticket""",
        Query(f"max by ({BY_SLICE}) ({drift_of('ticket', 'drift_state')})", "{{slice}}"),
    )
    return [found, history, tickets]


OVERVIEW = Board(
    uid="calibration-overview",
    text="""Is the calibration of anything wrong, in which slice, and how sure is that? Read it
    from the top: numbers that should be green, then the slices, then what changed when.""",
    variables=("slices",),
    rows=(
        Row("", _now()),
        Row("Slices", _slices()),
        Row("Evidence and calibration over time", measures()),
        Row("Labels: without them nothing can be said", labels()),
        Row("Alerts and alarms", alerts()),
    ),
)
