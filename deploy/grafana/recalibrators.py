"""Recalibrators: which are active and what they do, what is on trial, and what came of fits."""

from __future__ import annotations

from deploy.grafana.panels import (
    BAD,
    BAND,
    NONE_IS_CALM,
    NONE_IS_GOOD,
    PER_SIDECAR,
    SLICES,
    STAGES,
    Values,
    above,
    bars,
    cells,
    colored,
    compensated,
    dashboard,
    dashed,
    graph,
    increase,
    increased,
    of,
    or_none,
    override,
    panel,
    row,
    stat,
    table,
)

_FACTOR = of("recalibration_factor", slice=SLICES, dimension="~$dimension")

NOW = {
    """Waiting for approval
    Recalibrators that are proven better, where `[promotion] mode` leaves it to you whether they
    become active. Healthy: 0, or a proof that you know of. What to do: `calibration-monitor
    recalibrators list`, then promote. docs/runbook.md#calibrationcandidatewaits""": stat(
        {
            "proven": or_none(
                f"count({of('trial_log10_evidence', state='proven', direction='better')})"
            )
        },
        Values(steps=NONE_IS_CALM),
    ),
    """On trial
    Candidates that run beside the stream on later truth, and what served before that guards over a
    promotion. Nothing to do.""": stat({"trials": or_none(f"count({of('trial_tracks')})")}),
    """Slices with factors outside 0.5 … 2
    There a fault of the detector is being compensated: what is forwarded looks healthy, the
    detector is not. Healthy: 0. docs/runbook.md#calibrationfaultcompensated""": stat(
        {"slices": or_none(compensated(_FACTOR))}, Values(steps=above(1))
    ),
    """Promoted
    How often a candidate became active since the start. See the marks in the graphs for
    when.""": stat({"promoted": f"sum({of('recalibrator_swaps_total', outcome='promoted')})"}),
    """Rolled back
    How often what served before was brought back since the start: by itself where it is proven
    better, or by `calibration-monitor recalibrators rollback`.""": stat(
        {"rolled back": f"sum({of('recalibrator_swaps_total', outcome='rolled_back')})"}
    ),
    """Pinned
    Sidecars where nothing becomes active by itself (`recalibrators pin`). Healthy: 0, unless
    somebody meant it.""": stat(
        {"sidecars": f"sum({of('recalibrator_pinned')})"}, Values(steps=NONE_IS_CALM)
    ),
    """Failed fits, one hour
    Slices whose fit failed. Healthy: 0. `calibration-monitor recalibrators history` says why.
    docs/runbook.md#calibrationfitsfail""": stat(
        {"failed": increased("recalibrator_fits_total", "1h", outcome="failed")},
        Values(steps=above(1), decimals=0),
    ),
    """Failed checkpoints, one hour
    What was promoted, tried and recorded since the last checkpoint is not on disk: a restart would
    forget it. Healthy: 0. The log says why. docs/runbook.md#calibrationcheckpointstale""": stat(
        {"failures": increased("checkpoint_failures_total", "1h")},
        Values(steps=NONE_IS_GOOD, decimals=0),
    ),
}
_BUILD = ["instance", "version", "method", "mode", "output"]
ACTIVE = {
    """Active
    What recalibrates now. mode observe: the raw estimate goes on. output: what is sent is a
    Gaussian, the moments of another distribution, or a Gaussian surrogate. `calibration-monitor
    recalibrators list` has the factors of each version.""": table(
        _BUILD,
        {
            "active": (
                f"max by ({', '.join(_BUILD)}) ({of('recalibrator_info')})",
                Values(words={1: ("yes", "green")}),
                "auto",
            )
        },
    ),
    """Factors on the variance
    Typical factor on each variance, as last forwarded; rows are slices, columns dimensions. 1
    leaves it alone. Healthy: green, 0.5 … 2. Red: more than doubled, the detector is overconfident;
    orange: more than halved. docs/runbook.md#calibrationfaultcompensated""": panel(
        "table",
        {
            "factor": "label_join(max by (instance, slice, dimension) "
            f'(last_over_time({_FACTOR}[5m])), "where", " on ", "slice", "instance")'
        },
        Values(steps=BAND, decimals=2),
        height=9,
        custom=cells("color-background"),
        # Names of lines have no value, and would be coloured like the lowest.
        overrides=[override("byType", "string", {"custom.cellOptions": {"type": "auto"}})],
        transformations=[
            (
                "groupingToMatrix",
                {"columnField": "dimension", "rowField": "where", "valueField": "Value"},
            )
        ],
    ),
    """Factors over time
    The same, over time. Steps are promotions and roll-backs, see the marks. Healthy: within 0.5 …
    2. docs/runbook.md#calibrationfaultcompensated""": graph(
        {"{{slice}} {{dimension}}": f"max by (slice, dimension) ({_FACTOR})"},
        Values(steps=BAND, decimals=2, marks="dashed", log=2),
        span=24,
        place="right",
    ),
}


def _trial(metric: str, **labels: str) -> str:
    """Finds a value of the trials; between trials there is none, and 0 (log10 of 1) says so."""
    none = f'label_replace(0 * {of("recalibrator_pinned")}, "state", "no trial", "", "")'
    found = of(metric, slice=SLICES, **labels)
    return f'{found} or on (job, instance) label_replace({none}, "slice", "-", "", "")'


_EACH_TRIAL = "{{state}}: {{slice}} {{instance}}"
TRIALS = {
    """Evidence for what is on trial
    log10 of the odds of a bet that the trial is better; at the dashed threshold it is won: running
    becomes proven, proven waits for `promote`, guard (what served before) comes back. 0: nothing is
    known, or no trial runs. Healthy: it rises, or there is none. Falling: it is worse.
    docs/runbook.md#calibrationcandidatewaits""": graph(
        {
            _EACH_TRIAL: _trial("trial_log10_evidence", direction="better"),
            "threshold: {{slice}} {{instance}}": _trial("trial_log10_threshold"),
        },
        Values("suffix: log", decimals=1),
        span=12,
        overrides=dashed("^threshold", BAD),
    ),
    """Evidence against what is on trial
    log10 of the odds of a bet that the trial is worse; at the threshold it is discarded. 0: nothing
    is known, or no trial runs. Healthy: below 0; nothing to do where it is not.""": graph(
        {_EACH_TRIAL: _trial("trial_log10_evidence", direction="worse")},
        Values("suffix: log", decimals=1),
        span=12,
    ),
    """Tracks of trials
    On how many tracks, none of which it was fitted on, each trial stands. Healthy: it rises. After
    `[promotion] trial_tracks` without a proof it is over.""": graph(
        {_EACH_TRIAL: _trial("trial_tracks")}, Values("locale", least=0)
    ),
    """What became of trials
    Candidates since the start: one that began and was proven is in both. Healthy: most that began
    were promoted. discarded_worse: proven worse; discarded_over: no proof in time; superseded:
    another became active.""": bars(
        {"{{outcome}}": f"sum by (outcome) ({of('recalibrator_trials_total')})"},
        Values("locale", least=0),
    ),
    """What came of fits
    Slices by what came of their fit, since the start. nothing: not worth a change, the healthy
    outcome. candidate: a trial begins. failed: see the history.
    docs/runbook.md#calibrationfitsfail""": bars(
        {"{{outcome}}": f"sum by (outcome) ({of('recalibrator_fits_total')})"},
        Values("locale", least=0),
    ),
}
OVER_TIME = {
    """Swaps
    When another recalibrator became active, and why. Healthy: seldom. To and fro: the detector
    changes faster than tracks can prove, or the band is narrow.""": graph(
        {"{{outcome}}": increase("recalibrator_swaps_total", "outcome")},
        Values("none", least=0, decimals=0, stacked=True),
        events=True,
        overrides=[colored("promoted", "green"), colored("rolled_back", "orange")],
    ),
    """Fits
    Slices a minute that were fitted, by outcome. Healthy: at most one round every `[promotion]
    fit_every_seconds`, almost all of them `nothing`. None at all: no labels.
    docs/runbook.md#calibrationfitsfail""": graph(
        {"{{outcome}}": f"60 * sum by (outcome) (rate({of('recalibrator_fits_total')}[5m]))"},
        Values("suffix:/min", least=0, decimals=1),
    ),
    """Left out of learning
    Tracks, and frames with truth, a second, for which there was no room to learn from them.
    Healthy: 0. Rising: raise `[promotion] open_tracks`, or send labels less in bursts.""": graph(
        {PER_SIDECAR: f"sum by (instance) (rate({of('learning_left_out_total')}[5m]))"},
        Values("suffix:/s", above(0.01), least=0),
    ),
    """What it is good for: NEES/K before and after
    Of the last five minutes of event time; dashed: the detector, full: as forwarded. Healthy: the
    full lines in the band, 0.5 … 2, even where the dashed ones leave it.
    docs/runbook.md#calibrationfaultcompensated""": graph(
        {
            f"{stage}: {{{{slice}}}}": "max by (slice) ("
            + of("window_nees_ratio", stage=stage, window="5m", slice=SLICES)
            + ")"
            for stage in STAGES
        },
        Values(steps=BAND, decimals=2, marks="dashed", log=2),
        span=24,
        place="right",
        overrides=dashed("^raw"),
    ),
}

RECALIBRATORS = dashboard(
    "calibration-recalibrators",
    """Which recalibrators are active and what they do to each variance, what is on trial and how
    near to a proof, and what came of fits and trials.""",
    row("", NOW, span=3),
    row("Active", ACTIVE, span=12),
    row("Trials: later truth decides", TRIALS),
    row("Over time", OVER_TIME),
    variables=("slices", "dimensions"),
)
