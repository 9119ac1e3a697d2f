"""PromQL of a slice's reliability: from the counters of the bins, over any time and any sidecars.

Sums of a bin over a window: n detections, V predicted variances, Q squared errors, and W detections
within the χ² region of level tau. Levi et al. 2019, eqs. 6 to 8; Küppers et al. 2022, eqs. 11, 12.
"""

from __future__ import annotations

from deploy.grafana.queries import of

_SHOWN = "$__range"  # the time that the dashboard shows
_JOINT = "joint"


def _sum(metric: str, stage: str, dimension: str, by: str) -> str:
    """Of the shown time; increases come first, as each sidecar's counters restart on their own."""
    series = of(f"bin_{metric}_total", slice="$slice", stage=stage, dimension=dimension)
    return f"sum by ({by}) (increase({series}[{_SHOWN}]))"


def count(stage: str, by: str = "bin", dimension: str = "$dimension") -> str:
    """n."""
    return _sum("detections", stage, dimension, by)


def predicted(stage: str) -> str:
    """RMV = √(V / n) of each bin that anything fell into."""
    return f"sqrt({_sum('variance', stage, '$dimension', 'bin')} / ({count(stage)} > 0))"


def actual(stage: str) -> str:
    """RMSE = √(Q / n) of each bin that anything fell into."""
    return f"sqrt({_sum('squared_error', stage, '$dimension', 'bin')} / ({count(stage)} > 0))"


def ratio(stage: str) -> str:
    """RMSE / RMV = √(Q / V) of each bin that anything fell into."""
    variance = _sum("variance", stage, "$dimension", "bin")
    return f"sqrt({_sum('squared_error', stage, '$dimension', 'bin')} / ({variance} > 0))"


def with_edges(by_bin: str) -> str:
    """With a label `deviation`, which names the edges, and bins that sort as numbers do."""
    edges = f"max by (bin, lower, upper) ({of('bin_info')})"
    named = f'label_join({edges}, "deviation", " … ", "lower", "upper")'
    joined = f"({by_bin}) * on (bin) group_left (deviation) {named}"
    return f'label_replace({joined}, "bin", "0$1", "bin", "(.)")'


def coverage(stage: str) -> str:
    """W / n by tau, over the joint block."""
    within = _sum("nees_within", stage, _JOINT, "tau")
    return f"{within} / on () group_left () {_total(stage)}"


def _total(stage: str) -> str:
    return f"(sum({count(stage, 'bin', _JOINT)}) > 0)"


def level() -> str:
    """Each tau as a number."""
    return f"max by (tau) ({of('tau')})"


def qce_by_level() -> str:
    """Σ |W − τ n| / Σ n by stage and tau, over ten minutes, as the rules record the sums."""
    chosen = {"slice": "$slice", "stage": "~$stage", "dimension": _JOINT}
    within = of("instance:calibration_bin_nees_within:increase10m", **chosen)
    detections = of("instance:calibration_bin_detections:increase10m", **chosen)
    w = f"sum by (stage, tau, bin) ({within})"
    n = f"sum by (stage, bin) ({detections})"
    # 0 W gives tau the labels of W.
    expected = f"(0 * {w} + on (tau) group_left () {level()}) * on (stage, bin) group_left () {n}"
    total = f"(sum by (stage) ({n}) >= 100)"
    return f"sum by (stage, tau) (abs({w} - {expected})) / on (stage) group_left () {total}"
