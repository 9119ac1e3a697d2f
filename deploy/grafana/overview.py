"""The overview: is anything wrong, in which slice, how sure is that, and are there labels."""

from __future__ import annotations

from deploy.grafana.panels import (
    ABOVE_FLOOR,
    BAD,
    BAND,
    BY_SLICE,
    DRIFT,
    FIRING,
    GOOD,
    NONE_IS_GOOD,
    SLICES,
    Values,
    above,
    bars,
    below,
    dashboard,
    dashed,
    graph,
    of,
    or_none,
    panel,
    quantile,
    rate,
    row,
    stat,
    states,
    table,
)

_FACTOR = of("recalibration_factor", slice=SLICES)
_FORWARDED = {"stage": "recalibrated", "slice": SLICES}
_OVER_FLOOR = f"{of('ence', **_FORWARDED)} / {of('ence_noise_floor', **_FORWARDED)}"
_MATCHED = rate("ground_truth_total", "job", "5m", outcome="matched")
_TRIED = rate(
    "ground_truth_total", "job", "5m", outcome="~matched|unusable|orphan|too_late|refused"
)
_DETECTIONS = rate("detections_total", "job", "5m", outcome="!refused")


_STAY = (
    f"max by (instance, slice, severity, stage, quantity, dimension) "
    f"({of('drift_alarm_size', slice=SLICES)})"
)


def _worst(series: str) -> str:
    return f"max by ({BY_SLICE}) ({series})"


def _state(severity: str) -> str:
    return _worst(of("drift_state", severity=severity, slice=SLICES))


def _evidence(severity: str) -> str:
    return _worst(of("drift_log10_evidence", severity=severity, slice=SLICES))


def _window(stage: str) -> str:
    return _worst(of("window_nees_ratio", stage=stage, window="5m", slice=SLICES))


NOW = {
    """Slices with a page
    Slices, and `total`, whose forwarded covariances are found too small: true detections fall out
    of the gates. Healthy: 0. What to do: docs/runbook.md#calibrationdriftpage""": stat(
        {"slices": f"sum({of('drift_state', severity='page')} == bool 2)"},
        Values(steps=NONE_IS_GOOD),
    ),
    """Slices with a ticket
    Slices whose forwarded covariances are found too large, or whose raw ones are wrong behind a
    recalibrator. Healthy: 0; it can wait for a day.
    docs/runbook.md#calibrationdriftticket""": stat(
        {"slices": f"sum({of('drift_state', severity='ticket')} == bool 2)"}, Values(steps=above(1))
    ),
    """Alerts
    Rules of deploy/prometheus that fire now. Healthy: 0. The list below names them, docs/runbook.md
    says what to do about each.""": stat(
        {"firing": or_none(f"count({FIRING})")}, Values(steps=NONE_IS_GOOD)
    ),
    """NEES/K now
    Mean NEES over the number of dimensions, of all slices, over the last five minutes of event
    time, of what is forwarded; of several sidecars the highest. Healthy: 0.5 … 2, best 1. Above:
    standard deviations are too small. docs/runbook.md#calibrationdriftpage""": stat(
        {
            "NEES/K": "max("
            + of("window_nees_ratio", slice="total", stage="recalibrated", window="5m")
            + ")"
        },
        Values(steps=BAND, decimals=2),
    ),
    """Slices without enough labels
    Slices of which drift has watched fewer than 100 labelled detections, or left out more:
    nothing can be said of them yet. Healthy: 0 after the first minutes.
    docs/runbook.md#calibrationlabelledsharelow""": stat(
        {"slices": f"sum({of('drift_state', severity='page')} == bool 3)"},
        Values(steps=((None, GOOD), (1, "blue"))),
    ),
    """Slices compensated
    Slices in which a recalibrator more than doubles or halves a variance: what is forwarded looks
    healthy, the detector is not. Healthy: 0. docs/runbook.md#calibrationfaultcompensated""": stat(
        {"slices": or_none(f"count({_worst(f'{_FACTOR} < 0.5 or {_FACTOR} > 2')})")},
        Values(steps=above(1)),
    ),
    """Detections with truth
    Of the last five minutes. Where it is low drift is found later, where it is 0 never. Healthy:
    what you planned for, above 1 %. docs/runbook.md#calibrationnolabels""": stat(
        {"labelled": f"sum({_MATCHED}) / sum({_DETECTIONS})"},
        Values("percentunit", below(0.01, 0.05), decimals=1),
    ),
    """Sidecars that answer
    Share of the chosen sidecars that Prometheus could scrape. Healthy: 100 %. Of the others nothing
    is known, and none of their alerts can fire. docs/runbook.md#calibrationsidecardown""": stat(
        {"up": f"avg({of('up')})"}, Values("percentunit", below(1))
    ),
}
RATIO = Values(steps=BAND, decimals=2)
FOUND = {
    """Slices
    One row a slice; `total` is all together. Page, ticket: is drift found. NEES/K: 1 is healthy,
    within 0.5 … 2 nothing is done; raw is the detector, forwarded what the tracker gets.
    ENCE/floor: the worst dimension beside what a calibrated detector would read, healthy near 1.
    Evidence: log10 of hours; an alarm needs what the graphs below show as a line. Worth: how many
    independent detections the labelled ones count for. Click on a slice for its reliability
    diagram. docs/runbook.md#calibrationdriftpage""": table(
        ["instance", "slice"],
        {
            "Page": (_state("page"), DRIFT, "color-background"),
            "Ticket": (_state("ticket"), DRIFT, "color-background"),
            "NEES/K raw, 5 min": (_window("raw"), RATIO, "color-text"),
            "NEES/K forwarded, 5 min": (_window("recalibrated"), RATIO, "color-text"),
            "ENCE/floor": (
                _worst(_OVER_FLOOR),
                Values(steps=ABOVE_FLOOR, decimals=1),
                "color-text",
            ),
            "Evidence, page": (_evidence("page"), Values(decimals=1), "auto"),
            "Evidence, ticket": (_evidence("ticket"), Values(decimals=1), "auto"),
            "Labelled": (
                _worst(of("labelled_ratio", slice=SLICES)),
                Values("percentunit", below(0.01, 0.05), decimals=0),
                "color-text",
            ),
            "Labelled detections": (
                _worst(of("matched_detections", slice=SLICES)),
                Values("locale", below(100)),
                "auto",
            ),
            "Worth": (
                _worst(of("effective_detections", slice=SLICES, stage="recalibrated")),
                Values("locale", decimals=0),
                "auto",
            ),
        },
        sort=[{"displayName": "Evidence, page", "desc": True}],
        links={
            "slice": {
                "title": "Reliability of this slice",
                "url": "/d/calibration-slice?var-slice=${__value.text}&${job:queryparam}"
                "&${instance:queryparam}&${__url_time_range}",
            }
        },
        span=24,
    ),
    """Drift, pages
    What `drift_state` said, over time. Healthy: green, nothing found. Yellow: a tenth of what an
    alarm needs. Red: an alarm, until it is acknowledged, a new epoch, or calm. Blue: fewer than 100
    labelled detections, or more left out. docs/runbook.md#calibrationdriftpage""": states(
        {"{{slice}}": _state("page")}
    ),
    """Drift, tickets
    As beside, of what can wait: forwarded covariances too large, or raw ones wrong behind a
    recalibrator. Healthy: green. docs/runbook.md#calibrationdriftticket""": states(
        {"{{slice}}": _state("ticket")}
    ),
}
MEASURES = {
    **{
        # Cut off from below: what is against drift falls to -9, and means no more than -3 does.
        f"""Evidence for a {severity}
        log10 of the hours of driving in which chance alone would once reach so much; the dashed
        line is what an alarm needs (`[drift] hours_between_false_{severity}s`). Below -3 it is
        drawn at -3. Healthy: well below the line. A line that rises steadily is drift that will be
        told soon. docs/runbook.md#calibrationdrift{severity}""": graph(
            {
                "{{slice}}": f"clamp_min({_evidence(severity)}, -3)",
                "threshold": f"max({of('drift_log10_threshold', severity=severity)})",
            },
            Values("suffix: log h", decimals=1),
            overrides=dashed("^threshold$", BAD),
        )
        for severity in ("page", "ticket")
    },
    **{
        f"""NEES/K {title}
        Mean NEES over K, over the last five minutes of event time, of what {meaning} Healthy: the
        green band, 0.5 … 2. At 5 variances are five times too small; at 0.2 five times too large.
        In a slice “…, no covariance” raw is of an assumed one, and says nothing of the detector.
        docs/runbook.md#calibrationdriftpage""": graph(
            {"{{slice}}": _window(stage)},
            Values(steps=BAND, decimals=2, marks="dashed+area", log=2),
        )
        for stage, title, meaning in (
            ("raw", "of the detector", "the detector sends."),
            ("recalibrated", "as forwarded", "goes on to the tracker."),
        )
    },
    """Strongest factor of the recalibrator
    By how much the active recalibrator changes a variance of the slice, up or down, in the
    dimension where that is most. 1 leaves it alone. Healthy: below 2. Above it a fault of the
    detector is being compensated: look for it.
    docs/runbook.md#calibrationfaultcompensated""": graph(
        {"{{slice}}": f"exp({_worst(f'abs(ln({_FACTOR}))')})"},
        Values(steps=above(2), decimals=2, least=1, marks="dashed", log=2),
        span=24,
    ),
}
LABELS = {
    """Labels by outcome
    Labels a second by what came of them. Healthy: almost all matched. orphan: they name other ids,
    frames or streams than the detector; too_late: frames have left the store; refused, unusable:
    the answer to the label says which field. docs/runbook.md#calibrationmatchratiolow""": graph(
        {"{{outcome}}": rate("ground_truth_total", "outcome")},
        Values("suffix:/s", least=0, stacked=True),
    ),
    """Delay of labels
    How much later than their frames labels come, in event time. Healthy: steady, and well below
    what frames are kept for (`[pending] keep_hours`); beyond `[statistics] live_seconds` they are
    in the windows but in no counter. Estimated from buckets.
    docs/runbook.md#calibrationmatchratiolow""": graph(
        {
            "half within": quantile(0.5, "ground_truth_delay_seconds"),
            "95 % within": quantile(0.95, "ground_truth_delay_seconds"),
        },
        Values("s", least=0),
    ),
    """Labels that find their detection
    Of the labels of the last five minutes; repeated ones, and those that say to ignore a detection,
    are left out. Healthy: above a half. docs/runbook.md#calibrationmatchratiolow""": graph(
        {"matched": f"sum({_MATCHED}) / sum({_TRIED})"},
        Values("percentunit", below(0.5), least=0, most=1, marks="dashed"),
    ),
    """Labelled share by slice
    Share of a slice's detections of which labels told anything, since the start. Healthy: alike for
    all. A slice far below the others is not labelled like them: its measures may be of the easy
    ones. docs/runbook.md#calibrationlabelledsharelow""": bars(
        {"{{slice}}": _worst(of("labelled_ratio"))},
        Values("percentunit", below(0.01, 0.05), least=0, most=1, decimals=1),
    ),
}
ALERTS = {
    """Alerts now
    Rules of deploy/prometheus that fire or are about to, of all that Grafana finds at its data
    sources. Healthy: none. Each has its paragraph in docs/runbook.md.""": panel("alertlist", {}),
    """Drift alarms since the start
    Alarms that the sidecars raised, by what of (recalibrated: as forwarded), whether covariances
    were too small (over-) or too large (underconfident), and by which detector. Healthy: 0.
    `calibration-monitor alarms list` says more of each.
    docs/runbook.md#calibrationdriftpage""": bars(
        {
            "{{stage}}, {{direction}}, {{detector}}": (
                f"sum by (stage, direction, detector) ({of('drift_alarms_total')})"
            )
        },
        Values(steps=above(1), least=0, decimals=0),
    ),
    """Alarms that stay
    Until they are acknowledged, a new epoch, or calm: which quantity is wrong, of which dimension
    (joint: of all together). Size of scale and correlation: the factor by which standard deviations
    are too small; of bias: true less reported, in the unit of the dimension; of tail: the share
    of detections outside of what the covariance allows; of confidence: accuracy less stated
    confidence. Healthy: none. docs/runbook.md#what-is-wrong""": table(
        ["instance", "slice", "severity", "stage", "quantity", "dimension"],
        {"Size": (_STAY, Values(decimals=2), "auto")},
        height=8,
        span=24,
    ),
}

OVERVIEW = dashboard(
    "calibration-overview",
    """Is the calibration of anything wrong, in which slice, and how sure is that? Read it from the
    top: numbers that should be green, then the slices, then what changed when.""",
    row("", NOW, span=3),
    row("Slices", FOUND, span=12),
    row("Evidence and calibration over time", MEASURES, span=12),
    row("Labels: without them nothing can be said", LABELS, span=12),
    row("Alerts and alarms", ALERTS, span=12),
    variables=("slices",),
)
