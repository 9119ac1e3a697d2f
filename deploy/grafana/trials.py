"""Of recalibrators: what is on trial, how near to a proof, and what came of trials and fits."""

from __future__ import annotations

from deploy.grafana.charts import bars, graph
from deploy.grafana.looks import BAD, Values
from deploy.grafana.panels import Panel, dashed
from deploy.grafana.queries import SLICES, Query, of

_PER_SLICE = "{{state}}: {{slice}} {{instance}}"


def trial_panels() -> list[Panel]:
    """Between trials there is none: then an evidence of 1, log10 0, says just that."""
    none = (
        f"label_replace(label_replace(0 * {of('recalibrator_pinned')}, "
        '"state", "no trial", "", ""), "slice", "-", "", "")'
    )

    def trial(metric: str, **labels: str) -> str:
        found = of(metric, slice=SLICES, **labels)
        return f"{found} or on (job, instance) {none}"

    better = graph(
        "Evidence for what is on trial",
        """log10 of the odds of a bet that the trial is better; at the dashed threshold it is won:
        running becomes proven, proven waits for `promote`, guard (what served before) comes back.
        0: nothing is known, or no trial runs. Healthy: it rises, or there is none. Falling: it is
        worse.
        docs/runbook.md#calibrationcandidatewaits""",
        Query(trial("trial_log10_evidence", direction="better"), _PER_SLICE),
        Query(trial("trial_log10_threshold"), "threshold: {{slice}} {{instance}}"),
        values=Values("suffix: log", decimals=1),
    )
    worse = graph(
        "Evidence against what is on trial",
        """log10 of the odds of a bet that the trial is worse; at the threshold it is discarded.
        0: nothing is known, or no trial runs. Healthy: below 0; nothing to do where it is not.""",
        Query(trial("trial_log10_evidence", direction="worse"), _PER_SLICE),
        values=Values("suffix: log", decimals=1),
    )
    tracks = graph(
        "Tracks of trials",
        """On how many tracks, none of which it was fitted on, each trial stands. Healthy: it
        rises. After
        `[promotion] trial_tracks` without a proof it is over.""",
        Query(trial("trial_tracks"), _PER_SLICE),
        values=Values("locale", least=0),
        span=8,
    )
    outcomes = bars(
        "What became of trials",
        """Candidates since the start: one that began and was proven is in both. Healthy: most
        that began were promoted. discarded_worse:
        proven worse; discarded_over: no proof in time; superseded: another came in force.""",
        Query(f"sum by (outcome) ({of('recalibrator_trials_total')})", "{{outcome}}"),
        values=Values("locale", least=0),
    )
    fits = bars(
        "What came of fits",
        """Slices by what came of their fit, since the start. nothing: not worth a change, the
        healthy outcome. candidate: a trial begins. failed: see the history.
        docs/runbook.md#calibrationfitsfail""",
        Query(f"sum by (outcome) ({of('recalibrator_fits_total')})", "{{outcome}}"),
        values=Values("locale", least=0),
    )
    return [dashed(better, "^threshold", BAD), worse, tracks, outcomes, fits]
