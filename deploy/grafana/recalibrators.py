"""Recalibrators: which are in force and what they do, what is on trial, and what came of fits."""

from __future__ import annotations

from deploy.grafana.boards import Board, Row
from deploy.grafana.charts import graph, stat
from deploy.grafana.looks import BAND, NONE_IS_CALM, NONE_IS_GOOD, Values, above
from deploy.grafana.panels import Panel, colored, dashed
from deploy.grafana.queries import SLICES, STAGES, Query, compensated, increase, of, or_none
from deploy.grafana.tables import Column, matrix, table
from deploy.grafana.trials import trial_panels

_FACTOR = of("recalibration_factor", slice=SLICES, dimension="~$dimension")


def _now() -> list[Panel]:
    waiting = of("trial_log10_evidence", state="proven", direction="better")
    unwritten = increase("checkpoint_failures_total", "job", "1h")
    failed = increase("recalibrator_fits_total", "job", "1h", outcome="failed")
    return [
        stat(
            "Waiting for approval",
            """Recalibrators that are proven better, where `[promotion] mode` leaves it to you
            whether they come in force. Healthy: 0, or a proof that you know of. What to do:
            `calibration-monitor recalibrators list`, then promote.
            docs/runbook.md#calibrationcandidatewaits""",
            Query(or_none(f"count({waiting})"), "proven"),
            values=Values(steps=NONE_IS_CALM),
        ),
        stat(
            "On trial",
            """Candidates that run beside the stream on later truth, and what served before that
            guards over a promotion. Nothing to do.""",
            Query(or_none(f"count({of('trial_tracks')})"), "trials"),
            values=Values(),
        ),
        stat(
            "Slices with factors outside 0.5 … 2",
            """There a fault of the detector is being compensated: what is forwarded looks healthy,
            the detector is not. Healthy: 0. docs/runbook.md#calibrationfaultcompensated""",
            Query(or_none(compensated(_FACTOR)), "slices"),
            values=Values(steps=above(1)),
        ),
        stat(
            "Promoted",
            """How often a candidate came in force since the start. See the marks in the graphs for
            when.""",
            Query(f"sum({of('recalibrator_swaps_total', outcome='promoted')})", "promoted"),
            values=Values(),
        ),
        stat(
            "Rolled back",
            """How often what served before was brought back since the start: by itself where it is
            proven better, or by `calibration-monitor recalibrators rollback`.""",
            Query(f"sum({of('recalibrator_swaps_total', outcome='rolled_back')})", "rolled back"),
            values=Values(),
        ),
        stat(
            "Pinned",
            """Sidecars where nothing comes in force by itself (`recalibrators pin`). Healthy: 0,
            unless somebody meant it.""",
            Query(f"sum({of('recalibrator_pinned')})", "sidecars"),
            values=Values(steps=NONE_IS_CALM),
        ),
        stat(
            "Failed fits, one hour",
            """Slices whose fit failed. Healthy: 0. `calibration-monitor recalibrators history` says
            why. docs/runbook.md#calibrationfitsfail""",
            Query(f"sum({failed})", "failed"),
            values=Values(steps=above(1), decimals=0),
        ),
        stat(
            "Failed checkpoints, one hour",
            """What was promoted, tried and recorded since the last checkpoint is not on disk: a
            restart would forget it. Healthy: 0. The log says why.
            docs/runbook.md#calibrationcheckpointstale""",
            Query(f"sum({unwritten})", "failures"),
            values=Values(steps=NONE_IS_GOOD, decimals=0),
        ),
    ]


def _in_force() -> list[Panel]:
    labels = ["instance", "version", "method", "mode", "output"]
    return [
        table(
            "In force",
            """What recalibrates now. mode observe: the raw estimate goes on. output: what is sent
            is a Gaussian, the moments of another distribution, or a Gaussian surrogate.
            `calibration-monitor recalibrators list` has the factors of each version.""",
            labels,
            [
                Column(
                    Query(
                        f"max by ({', '.join(labels)}) ({of('recalibrator_info')})",
                        "in force",
                        instant=True,
                    ),
                    Values(words={1: ("yes", "green")}),
                )
            ],
            span=12,
        ),
        matrix(
            "Factors on the variance",
            """Typical factor on each variance, as last forwarded; rows are slices, columns
            dimensions. 1 leaves it alone. Healthy: green, 0.5 … 2. Red: more than doubled, the
            detector is overconfident; orange: more than halved.
            docs/runbook.md#calibrationfaultcompensated""",
            Query(
                f"label_join(max by (instance, slice, dimension) (last_over_time({_FACTOR}[5m])), "
                '"where", " on ", "slice", "instance")',
                "factor",
                instant=True,
            ),
            rows="where",
            columns="dimension",
            values=Values(steps=BAND, decimals=2),
        ),
        graph(
            "Factors over time",
            """The same, over time. Steps are promotions and roll-backs, see the marks. Healthy:
            within 0.5 … 2. docs/runbook.md#calibrationfaultcompensated""",
            Query(f"max by (slice, dimension) ({_FACTOR})", "{{slice}} {{dimension}}"),
            values=Values(steps=BAND, decimals=2),
            marks="dashed",
            log=2,
            span=24,
            place="right",
        ),
    ]


def _over_time() -> list[Panel]:
    swaps = graph(
        "Swaps",
        """When another recalibrator came in force, and why. Healthy: seldom. To and fro: the
        detector changes faster than tracks can prove, or the band is narrow.""",
        Query(increase("recalibrator_swaps_total", "outcome"), "{{outcome}}"),
        values=Values("none", least=0, decimals=0),
        span=8,
        bars=True,
        stacked=True,
    )
    fits = graph(
        "Fits",
        """Slices a minute that were fitted, by outcome. Healthy: at most one round every
        `[promotion] fit_every_seconds`, almost all of them `nothing`. None at all: no labels.
        docs/runbook.md#calibrationfitsfail""",
        Query(f"60 * sum by (outcome) (rate({of('recalibrator_fits_total')}[5m]))", "{{outcome}}"),
        values=Values("suffix:/min", least=0, decimals=1),
        span=8,
    )
    left_out = graph(
        "Left out of learning",
        """Tracks, and frames with truth, a second, for which there was no room to learn from them.
        Healthy: 0. Rising: raise `[promotion] open_tracks`, or send labels less in bursts.""",
        Query(f"sum by (instance) (rate({of('learning_left_out_total')}[5m]))", "{{instance}}"),
        values=Values("suffix:/s", above(0.01), least=0),
        span=8,
    )
    window = {"window": "5m", "slice": SLICES}
    nees = [
        Query(
            f"max by (slice) ({of('window_nees_ratio', stage=stage, **window)})",
            f"{stage}: {{{{slice}}}}",
        )
        for stage in STAGES
    ]
    effect = graph(
        "What it is good for: NEES/K before and after",
        """Of the last five minutes of event time; dashed: the detector, full: as forwarded.
        Healthy: the full lines in the band, 0.5 … 2, even where the dashed ones leave it.
        docs/runbook.md#calibrationfaultcompensated""",
        *nees,
        values=Values(steps=BAND, decimals=2),
        marks="dashed",
        log=2,
        span=24,
        place="right",
    )
    swaps = colored(colored(swaps, "promoted", "green"), "rolled_back", "orange")
    return [swaps, fits, left_out, dashed(effect, "^raw")]


RECALIBRATORS = Board(
    uid="calibration-recalibrators",
    text="""Which recalibrators are in force and what they do to each variance, what is on trial
    and how near to a proof, and what came of fits and trials.""",
    variables=("slices", "dimensions"),
    rows=(
        Row("", _now()),
        Row("In force", _in_force()),
        Row("Trials: later truth decides", trial_panels()),
        Row("Over time", _over_time()),
    ),
)
