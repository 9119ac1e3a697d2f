"""One slice: are deviations of each size right, in each dimension and jointly, and since when.

The diagrams are of the shown time, so that a reader may look at an hour of yesterday as well.
"""

from __future__ import annotations

from deploy.grafana.panels import (
    ABOVE_FLOOR,
    BAD,
    BAND,
    DEVIATION_BAND,
    DRIFT,
    PER_SIDECAR,
    STAGED,
    STAGES,
    Values,
    above,
    bars,
    below,
    dashboard,
    dashed,
    graph,
    number,
    of,
    plane,
    row,
    stat,
    table,
)

_PER_STAGE = "{{stage}} {{instance}}"
_CHOSEN = {"slice": "$slice", "stage": "~$stage", "dimension": "$dimension"}
_BOTH_STAGES = {"slice": "$slice", "stage": "~$stage"}
_JOINT = {"slice": "$slice", "dimension": "joint", "stage": "~$stage"}
# Class measures are of streams, where `[statistics] slice_by` has them, and of all together.
_CLASSED = {"slice": "~$slice|total"}
_CLASSES = _CLASSED | {"stage": "~$stage"}
_RATIO = Values(steps=BAND, decimals=2)
_SHARE = Values("percentunit", least=0, decimals=0)
_QCE = Values("percentunit", above(0.05), least=0, decimals=1, marks="dashed")


def _drift(severity: str) -> str:
    return f"max({of('drift_state', slice='$slice', severity=severity)})"


def _window(stage: str) -> str:
    return f"max({of('window_nees_ratio', slice='$slice', stage=stage, window='5m')})"


def _over_floor(stage: str) -> str:
    chosen = _CHOSEN | {"stage": stage}
    return f"max({of('ence', **chosen)} / {of('ence_noise_floor', **chosen)})"


NOW = {
    """Drift of $slice
    page: forwarded covariances found too small; ticket: found too large, or raw ones wrong.
    Healthy: nothing found. docs/runbook.md#calibrationdriftpage""": number(
        {"page": _drift("page"), "ticket": _drift("ticket")}, DRIFT, height=4
    ),
    """NEES/K, 5 minutes
    Mean NEES over K of the joint block over the last five minutes of event time. Healthy: 0.5 … 2.
    Raw outside and recalibrated inside: a fault is compensated.
    docs/runbook.md#calibrationfaultcompensated""": stat(
        {stage: _window(stage) for stage in STAGES}, _RATIO
    ),
    """ENCE of $dimension over its floor
    Expected normalised calibration error over what a calibrated detector with as many, as
    correlated errors reads; since the start. Healthy: near 1.""": stat(
        {stage: _over_floor(stage) for stage in STAGES}, Values(steps=ABOVE_FLOOR, decimals=1)
    ),
    """Labelled detections
    Behind the numbers here (healthy: hundreds), and how many independent ones they are worth:
    errors along a track resemble each other. Below 100 nothing can be said.
    docs/runbook.md#calibrationlabelledsharelow""": stat(
        {
            "labelled": f"sum({of('matched_detections', slice='$slice')})",
            "worth": f"sum({of('effective_detections', slice='$slice', stage='recalibrated')})",
        },
        Values("locale", below(100), decimals=0),
    ),
}

# Sums of a bin over the shown time: n detections, V predicted variances, Q squared errors, and W
# detections within the χ² region of level τ. Levi et al. 2019, eqs. 6 to 8; Küppers et al. 2022,
# eqs. 11, 12. Increases come first, as each sidecar's counters restart on their own.


def _sum(metric: str, stage: str, dimension: str = "$dimension", by: str = "bin") -> str:
    series = of(f"bin_{metric}_total", slice="$slice", stage=stage, dimension=dimension)
    return f"sum by ({by}) (increase({series}[$__range]))"


def _root(metric: str, over: str, stage: str) -> str:
    """Divides two sums of each bin that anything fell into, and takes the root.

    RMV = √(V / n), RMSE = √(Q / n), and RMSE / RMV = √(Q / V).
    """
    return f"sqrt({_sum(metric, stage)} / ({_sum(over, stage)} > 0))"


def _predicted(stage: str) -> str:
    return _root("variance", "detections", stage)


def _with_edges(by_bin: str) -> str:
    """Adds a label `deviation`, which names the edges, and makes bins sort as numbers do."""
    edges = f"max by (bin, lower, upper) ({of('bin_info')})"
    named = f'label_join({edges}, "deviation", " … ", "lower", "upper")'
    joined = f"({by_bin}) * on (bin) group_left (deviation) {named}"
    return f'label_replace({joined}, "bin", "0$1", "bin", "(.)")'


def _coverage(stage: str) -> str:
    """W / n by τ, over the joint block."""
    total = f"(sum({_sum('detections', stage, 'joint')}) > 0)"
    return f"{_sum('nees_within', stage, 'joint', 'tau')} / on () group_left () {total}"


_LEVEL = f"max by (tau) ({of('tau')})"  # each τ as a number


def _qce_by_level() -> str:
    """Σ |W − τ n| / Σ n by stage and τ, over ten minutes, as the rules record the sums."""
    w, n = (
        f"sum by ({by}) ({of(f'instance:calibration_bin_{metric}:increase10m', **_JOINT_STAGES)})"
        for by, metric in (("stage, tau, bin", "nees_within"), ("stage, bin", "detections"))
    )
    # 0 W gives τ the labels of W.
    expected = f"(0 * {w} + on (tau) group_left () {_LEVEL}) * on (stage, bin) group_left () {n}"
    total = f"(sum by (stage) ({n}) >= 100)"
    return f"sum by (stage, tau) (abs({w} - {expected})) / on (stage) group_left () {total}"


_JOINT_STAGES = {"slice": "$slice", "stage": "~$stage", "dimension": "joint"}
_EITHER = " or ".join(_predicted(stage) for stage in STAGES)
_RATIOS = {stage: _with_edges(_root("squared_error", "variance", stage)) for stage in STAGES}
RELIABILITY = {
    """Reliability of $dimension
    A point for each bin of σ, over the shown time: how large errors were (RMSE, upwards) where σ
    was predicted so large (RMV, to the right), in the unit of the stream, both axes logarithmic.
    Healthy: on the dashed diagonal. Above it σ is too small; a line beside the diagonal is one
    wrong factor, a bent line is a wrong shape: variance scaling mends the first, other methods the
    second (docs/recalibration.md).""": plane(
        {
            "predicted, raw": _predicted("raw"),
            "raw": _root("squared_error", "detections", "raw"),
            "predicted, recalibrated": _predicted("recalibrated"),
            "recalibrated": _root("squared_error", "detections", "recalibrated"),
            "predicted": _EITHER,
            "calibrated": f"({_EITHER})",
        },
        Values(decimals=3, log=10),
        label="bin",
        points={
            "raw": "predicted, raw",
            "recalibrated": "predicted, recalibrated",
            "calibrated": "predicted",
        },
        span=10,
        height=12,
    ),
    """Bins of σ
    How many detections with truth fell into each bin of σ over the shown time, and how large their
    errors were beside it. Healthy: ratios near 1; below about 50 detections one says
    little.""": table(
        ["bin", "deviation"],
        {
            **{
                f"n {stage}": (
                    _with_edges(_sum("detections", stage)),
                    Values("locale", decimals=0),
                    "auto",
                )
                for stage in STAGES
            },
            **{
                f"RMSE/RMV {stage}": (
                    _RATIOS[stage],
                    Values(steps=DEVIATION_BAND, decimals=2),
                    "color-text",
                )
                for stage in STAGES
            },
        },
        height=12,
        sort=[{"displayName": "bin", "desc": False}],
    ),
}
ERRORS = {
    """ENCE of $dimension, ten minutes
    Mean over bins of |RMV − RMSE| / RMV: 10 % is off by a tenth of σ. Of the bins' counters, as the
    recording rules add them up. Dashed: what independent Gaussian errors of a calibrated detector
    would read; errors along tracks read more. Healthy: near its floor. It follows a fault within
    minutes.""": graph(
        {
            _PER_STAGE: of("instance:calibration_ence:10m", **_CHOSEN),
            f"floor, {_PER_STAGE}": of(
                "instance:calibration_ence_noise_floor_gaussian:10m", **_CHOSEN
            ),
        },
        _SHARE,
        overrides=[*STAGED, *dashed("^floor")],
    ),
    """QCE by level, ten minutes
    Quantile calibration error of the joint block at each level τ: by how much the share of errors
    within the region of level τ is off, bin by bin. Healthy: below 0.05. High at small τ alone: the
    middle is wrong; high at 0.99: heavy tails.""": graph(
        {"τ {{tau}}, {{stage}}": _qce_by_level()}, _QCE
    ),
    """Coverage against τ
    Share of errors within the χ² region of level τ, over the shown time. Healthy: on the dashed
    diagonal. Below it covariances are too small, above it too large.
    docs/runbook.md#calibrationdriftpage""": plane(
        {"τ": _LEVEL, **{stage: _coverage(stage) for stage in STAGES}, "calibrated": f"({_LEVEL})"},
        Values("percentunit", least=0, most=1, decimals=0),
        label="tau",
        points=dict.fromkeys((*STAGES, "calibrated"), "τ"),
    ),
}
COMPARED = {
    **{
        f"""NEES/K {title}, by window
        Mean NEES over K of the joint block over windows of event time. Healthy: the green band. The
        short window follows a fault, the long one says what is usual: they part while something
        changes. docs/runbook.md#calibrationdriftpage""": graph(
            {"{{window}} {{instance}}": of("window_nees_ratio", slice="$slice", stage=stage)},
            Values(steps=BAND, decimals=2, marks="dashed+area", log=2),
            span=12,
        )
        for stage, title in (("raw", "of the detector"), ("recalibrated", "as forwarded"))
    },
    """NEES/K by dimension
    Mean NEES over K of each dimension alone, and of the joint block, since the start. One dimension
    far from 1: its variance is wrong; all near 1 and joint far from it: correlations are. Healthy:
    0.5 … 2.""": bars(
        {
            "{{dimension}}, {{stage}}": (
                f"max by (stage, dimension) ({of('nees_ratio', **_BOTH_STAGES)})"
            )
        },
        Values(steps=BAND, decimals=2, least=0),
        span=12,
        height=9,
    ),
    """Mean error of $dimension
    Truth less mean, in the unit of the stream, since the start; dashed: its 95 % interval, by
    tracks. Healthy: 0 lies between the dashed lines. A mean that is off is mended by no factor on σ
    (docs/recalibration.md#the-mean).""": graph(
        {
            _PER_STAGE: of("bias", **_CHOSEN),
            f"upper, {_PER_STAGE}": f"{of('bias', **_CHOSEN)} + {of('bias_margin', **_CHOSEN)}",
            f"lower, {_PER_STAGE}": f"{of('bias', **_CHOSEN)} - {of('bias_margin', **_CHOSEN)}",
        },
        Values(decimals=3),
        span=12,
        overrides=[*STAGED, *dashed("^(upper|lower)")],
    ),
    """RMSE of $dimension
    Root mean squared error, in the unit of the stream, since the start: a fact, whatever covariance
    came, and where none comes. Healthy: as it was.""": graph(
        {_PER_STAGE: of("rmse", **_CHOSEN)}, Values(decimals=3, least=0), span=12, overrides=STAGED
    ),
    """Mean and median of NEES
    Mean NEES over K, and its median over that of χ², since the start. Healthy: both near 1. The
    median far below the mean: heavy tails, a few errors make it; consider another objective for
    fits (`[promotion] objective`).""": graph(
        {
            "mean, {{stage}}": of("nees_ratio", **_JOINT),
            "median, {{stage}}": of("nees_median_ratio", **_BOTH_STAGES),
        },
        Values(steps=BAND, decimals=2, marks="dashed"),
        span=12,
        height=9,
        overrides=[*STAGED, *dashed("^median")],
    ),
}
_SCALE = (
    f"{of('drift_scale_estimate', slice='$slice')} >= 0 or on (job, instance, stage) "
    f"sqrt({of('nees_ratio', slice='$slice', dimension='joint')})"
)
DRIFTING = {
    **{
        f"""Evidence for a {severity}, of this slice
        log10 of the hours of driving in which chance alone would once reach so much; dashed: what
        an alarm needs. Cut off at -3. Healthy: well below the line.
        docs/runbook.md#calibrationdrift{severity}""": graph(
            {
                PER_SIDECAR: f"clamp_min({evidence}, -3)",
                "threshold": f"max({of('drift_log10_threshold', severity=severity)})",
            },
            Values("suffix: log h", decimals=1),
            overrides=dashed("^threshold$", BAD),
        )
        for severity in ("page", "ticket")
        for evidence in (of("drift_log10_evidence", slice="$slice", severity=severity),)
    },
    """By how much σ is too small
    √(mean NEES/K) of the alarm that stays, else since evidence began to rise, else since the start.
    Healthy: near 1; between the lines, 0.71 … 1.41, is no drift. `calibration-monitor alarms list`
    has its 95 % interval. docs/runbook.md#calibrationdriftticket""": graph(
        {_PER_STAGE: _SCALE},
        Values(steps=DEVIATION_BAND, decimals=2, marks="dashed"),
        overrides=STAGED,
    ),
    """Tracks of the reference
    From how many tracks it is known what is usual here, and where that comes from: learned on this
    vehicle, or shipped with it. Healthy: at least `[drift] reference_tracks`; until then relative
    changes are not found.""": number(
        {"{{origin}}, by {{unit}}": of("drift_reference_tracks", slice="$slice")}, Values("locale")
    ),
}
TRACKS = {
    """Tracks of this slice
    Tentative, confirmed and coasting tracks as of each stream's last frame. Healthy: few tentative
    beside the confirmed ones. Many coasting: detections miss their gates.""": graph(
        {"{{status}}": f"sum by (status) ({of('tracks', slice='$slice')})"},
        Values("locale", least=0, stacked=True),
    ),
    """Gates that let no detection in
    Of confirmed tracks with a detection near, the share whose gate let none in. Healthy: about 1 %.
    Rising: covariances are too small, or the process noise is.
    docs/runbook.md#calibrationdriftpage""": graph(
        {PER_SIDECAR: of("gate_reject_ratio", slice="$slice")},
        Values("percentunit", above(0.05, 0.2), least=0, decimals=1, marks="dashed"),
    ),
    """Innovations of confirmed tracks
    Mean NIS over its dimensions, and how alike an innovation is to the one before it. Healthy: NIS
    near or below 1, and steady. Far above 1: overconfident. Likeness well above 0: errors persist
    along tracks.""": graph(
        {
            "NIS/K {{instance}}": of("track_nis_ratio", slice="$slice"),
            "likeness {{instance}}": of("track_innovation_correlation", slice="$slice"),
        },
        _RATIO,
    ),
}
# Empty where detectors send no class probabilities.
CERTAIN = {
    """Deviation of all detections
    det(Σ)^(1/2K) as sent, in the last five minutes, in the unit of the stream. Healthy: level while
    the scene is. docs/measures.md#of-all-detections""": graph(
        {"{{of}} {{instance}}": of("predicted_deviation", slice="$slice")},
        Values(least=0, decimals=2),
    ),
}

CLASSES = {
    """Share that is less certain than 95 % were before
    Of all detections of the last five minutes, labelled or not: how many have an entropy or a
    deviation above 95 % of those of the time before at the same distance. Healthy: near 5 %.
    Far above it: the detector meets what it does not know.
    docs/measures.md#of-all-detections""": graph(
        {"{{of}} {{instance}}": of("predicted_above_before_ratio", slice="$slice")},
        Values("percentunit", above(0.25), least=0, decimals=0, marks="dashed"),
    ),
    """Entropy of all detections
    Of the class probabilities over log C, in the last five minutes. Healthy: level.
    docs/measures.md#of-all-detections""": graph(
        {"{{of}}, {{slice}}": of("predicted_entropy", slice="~$slice|total.*")},
        Values(least=0, decimals=2),
    ),
    """Errors of class probabilities
    Expected calibration error, that of the entropy, Brier score, how far sorting by uncertainty is
    from sorting by error (AUSE), and mean negative log likelihood in nats. Healthy: low and steady;
    a likelihood that rises is drift of the classes.""": graph(
        {
            f"{name}, {{{{slice}}}} {{{{stage}}}}": of(f"class_{name}", **_CLASSES)
            for name in ("ece", "uce_entropy", "brier", "ause", "nll")
        },
        Values(least=0, decimals=3),
    ),
    """Class confidence
    How far confidence is above, or below, accuracy. Healthy: both small; promote a class
    recalibrator where one is not.""": graph(
        {
            "over, {{slice}} {{stage}}": of("class_overconfidence", **_CLASSES),
            "under, {{slice}} {{stage}}": of("class_underconfidence", **_CLASSES),
            "accuracy, {{slice}} {{stage}}": of("class_accuracy", **_CLASSES),
        },
        Values("percentunit", least=0, most=1, decimals=1),
    ),
    """Parts of the class entropy
    Mean entropy over log C; of detections with several probability vectors, as sent, the aleatoric
    part within the vectors and the epistemic part of their disagreement. Healthy: steady; an
    epistemic part that rises is something that the detector was not trained on.""": graph(
        {
            f"{name}, {{{{slice}}}} {{{{stage}}}}": of(f"class_{name}", **_CLASSES)
            for name in ("entropy", "aleatoric", "epistemic")
        },
        Values("percentunit", least=0, most=1, decimals=1),
    ),
    """Detections with class and truth
    Behind these numbers. Healthy: above 100; below it they say little.""": graph(
        {"{{slice}} {{instance}}": of("classified_detections", **_CLASSED)},
        Values("locale", least=0),
    ),
}

SLICE = dashboard(
    "calibration-slice",
    """One slice: whether its deviations are right at every size, in every dimension and jointly,
    of the detector and as forwarded. Diagrams are of the time that is shown.""",
    row("", NOW, span=6),
    row("Reliability of $dimension over the shown time", RELIABILITY, span=14),
    row("Errors of calibration", ERRORS),
    row("Raw against recalibrated", COMPARED),
    row("Drift", DRIFTING, span=6),
    row("Tracks", TRACKS),
    row("All detections, labelled or not", CERTAIN),
    row("With class probabilities", CLASSES, folded=True),
    variables=("slice", "stage", "dimension"),
)
