"""PromQL as the panels need it; knows how series are chosen, nothing of panels."""

from __future__ import annotations

from dataclasses import dataclass

CHOSEN = 'job=~"$job",instance=~"$instance"'
# At least four scrapes, whatever the scrape interval and the zoom: Grafana works it out.
RATE = "$__rate_interval"
# Of the chosen slices, where several may be; and what tells slices of several sidecars apart.
SLICES, BY_SLICE = "~$slice", "instance, slice"
STAGES = ("raw", "recalibrated")


@dataclass(frozen=True, slots=True)
class Query:
    """One query of a panel.

    legend   what its series are called; of tables, the heading of its column
    instant  of the end of the time range alone, as a table
    heatmap  of a histogram's buckets
    """

    expression: str
    legend: str
    instant: bool = False
    heatmap: bool = False


def of(metric: str, **labels: str) -> str:
    """The series of the chosen sidecars.

    metric  without the prefix `calibration_`; recorded ones, `process_…`, up and ALERTS have none
    labels  what a label must be; `~…` a regular expression, `!…` what it must not be
    """
    own = not (":" in metric or metric.startswith("process_") or metric in ("up", "ALERTS"))
    whole = f"calibration_{metric}" if own else metric
    wanted = [CHOSEN]
    for name, value in labels.items():
        operator = {"~": "=~", "!": "!="}.get(value[0], "=")
        wanted.append(f'{name}{operator}"{value.lstrip("~!")}"')
    return f"{whole}{{{','.join(wanted)}}}"


def rate(metric: str, by: str, over: str = RATE, **labels: str) -> str:
    """A second, of a counter; summed by these labels."""
    return f"sum by ({by}) (rate({of(metric, **labels)}[{over}]))"


def increase(metric: str, by: str, over: str = RATE, **labels: str) -> str:
    """Of a counter; summed by these labels."""
    return f"sum by ({by}) (increase({of(metric, **labels)}[{over}]))"


def quantile(share: float, metric: str) -> str:
    """Of a histogram, over five minutes; NaN where nothing was observed."""
    return f"histogram_quantile({share:g}, {rate(metric + '_bucket', 'le', '5m')})"


def or_none(expression: str) -> str:
    """0 where the sidecar is there and the series are not, because nothing of the kind exists.

    Of a sidecar that cannot be reached there is nothing at all: that is no zero.
    """
    return f"{expression} or 0 * sum({of('recalibrator_pinned')})"


def compensated(factor: str) -> str:
    """In how many slices a recalibrator more than doubles or halves a variance.

    factor  series of `recalibration_factor`
    """
    return f"count(count by ({BY_SLICE}) ({factor} < 0.5 or {factor} > 2))"
