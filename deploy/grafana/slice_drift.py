"""Of one slice: evidence of drift, what its tracks say, and its class probabilities."""

from __future__ import annotations

from deploy.grafana.charts import graph, stat
from deploy.grafana.looks import BAD, BAND, DEVIATION_BAND, Values, above
from deploy.grafana.panels import Panel, dashed, staged
from deploy.grafana.queries import Query, of

_NAMED = "{{instance}}"


def drift_panels() -> list[Panel]:
    def evidence(severity: str) -> Panel:
        series = of("drift_log10_evidence", slice="$slice", severity=severity)
        return dashed(
            graph(
                f"Evidence for a {severity}, of this slice",
                f"""log10 of the hours of driving in which chance alone would once reach so much;
                dashed: what an alarm needs. Cut off at -3. Healthy: well below the line.
                docs/runbook.md#calibrationdrift{severity}""",
                Query(f"clamp_min({series}, -3)", _NAMED),
                Query(f"max({of('drift_log10_threshold', severity=severity)})", "threshold"),
                values=Values("suffix: log h", decimals=1),
                span=8,
            ),
            "^threshold$",
            BAD,
        )

    told = of("drift_scale_estimate", slice="$slice")
    all_along = of("nees_ratio", slice="$slice", dimension="joint")
    scale = graph(
        "By how much σ is too small",
        """√(mean NEES/K) of the alarm that stays, else since evidence began to rise, else since the
        start. Healthy: near 1; between the lines, 0.71 … 1.41, is no drift. `calibration-monitor
        alarms list` has its 95 % interval. docs/runbook.md#calibrationdriftticket""",
        Query(
            f"{told} >= 0 or on (job, instance, stage) sqrt({all_along})", "{{stage}} {{instance}}"
        ),
        values=Values(steps=DEVIATION_BAND, decimals=2),
        marks="dashed",
        span=8,
    )
    counted = graph(
        "Labelled detections and what they are worth",
        """All with truth, how many independent ones they count for (errors along a track
        resemble each other), and those of windows. Healthy: all rise, windows until they are
        full. Only what they are worth says how sure a number is.""",
        Query(of("matched_detections", slice="$slice"), "labelled {{instance}}"),
        Query(of("effective_detections", slice="$slice", stage="~$stage"), "worth, {{stage}}"),
        Query(of("window_detections", slice="$slice"), "of {{window}}"),
        values=Values("locale", least=0),
        span=8,
        log=10,
    )
    ratio = graph(
        "Independent detections that one is worth",
        """As the drift detectors count them. Small: errors persist along tracks, and evidence
        grows as slowly. Healthy: steady.""",
        Query(of("drift_effective_sample_ratio", slice="$slice"), _NAMED),
        values=Values(decimals=2, least=0, most=1),
        span=8,
    )
    known = stat(
        "Tracks of the reference",
        """From how many tracks it is known what is usual here, and where that comes from: learned
        on this vehicle, or shipped with it. Healthy: at least `[drift] reference_tracks`; until
        then relative changes are not found.""",
        Query(of("drift_reference_tracks", slice="$slice"), "{{origin}}, by {{unit}}"),
        values=Values("locale"),
        span=8,
        height=8,
        history=False,
    )
    return [evidence("page"), evidence("ticket"), staged(scale), staged(counted), ratio, known]


def track_panels() -> list[Panel]:
    return [
        graph(
            "Tracks of this slice",
            """Tentative, confirmed and coasting tracks as of each stream's last frame. Healthy:
            few tentative beside the confirmed ones. Many coasting: detections miss their gates.""",
            Query(f"sum by (status) ({of('tracks', slice='$slice')})", "{{status}}"),
            values=Values("locale", least=0),
            span=8,
            stacked=True,
        ),
        graph(
            "Gates that let no detection in",
            """Of confirmed tracks with a detection near, the share whose gate let none in. Healthy:
            about 1 %. Rising: covariances are too small, or the process noise is.
            docs/runbook.md#calibrationdriftpage""",
            Query(of("gate_reject_ratio", slice="$slice"), _NAMED),
            values=Values("percentunit", above(0.05, 0.2), least=0, decimals=1),
            marks="dashed",
            span=8,
        ),
        graph(
            "Innovations of confirmed tracks",
            """Mean NIS over its dimensions, and how alike an innovation is to the one before it.
            Healthy: NIS near or below 1, and steady. Far above 1: overconfident. Likeness well
            above 0: errors persist along tracks.""",
            Query(of("track_nis_ratio", slice="$slice"), "NIS/K {{instance}}"),
            Query(of("track_innovation_correlation", slice="$slice"), "likeness {{instance}}"),
            values=Values(steps=BAND, decimals=2),
            span=8,
        ),
    ]


def class_panels() -> list[Panel]:
    """Empty where detectors send no class probabilities."""
    errors = ("ece", "uce_entropy", "brier", "ause")
    # These are of streams, where `[statistics] slice_by` has them, and of all together.
    chosen = {"slice": "~$slice|total"}
    return [
        graph(
            "Errors of class probabilities",
            """Expected calibration error, that of the entropy, Brier score, and how far sorting by
            uncertainty is from sorting by error (AUSE). Healthy: low and steady.""",
            *(Query(of(f"class_{name}", **chosen), name + ", {{slice}}") for name in errors),
            values=Values(least=0, decimals=3),
            span=8,
        ),
        graph(
            "Class confidence",
            """How far confidence is above, or below, accuracy. Healthy: both small; promote a
            class recalibrator where one is not.""",
            Query(of("class_overconfidence", **chosen), "over, {{slice}}"),
            Query(of("class_underconfidence", **chosen), "under, {{slice}}"),
            Query(of("class_accuracy", **chosen), "accuracy, {{slice}}"),
            values=Values("percentunit", least=0, most=1, decimals=1),
            span=8,
        ),
        graph(
            "Likelihood of the true class",
            """Mean negative log likelihood, in nats. Healthy: low; rising steadily is drift of the
            classes.""",
            Query(of("class_nll", **chosen), "{{slice}}"),
            values=Values(least=0, decimals=2),
            span=8,
        ),
        graph(
            "Detections with class and truth",
            """Behind these numbers. Healthy: above 100; below it they say little.""",
            Query(of("classified_detections", **chosen), "{{slice}} {{instance}}"),
            values=Values("locale", least=0),
            span=8,
        ),
    ]
