"""Panels over time, and of one moment: graphs, single numbers, bars, states, heat maps."""

from __future__ import annotations

from deploy.grafana.looks import STATES, Values
from deploy.grafana.panels import TOOLTIP, Options, Panel, legend, panel
from deploy.grafana.queries import Query

LAST: Options = {"calcs": ["lastNotNull"], "fields": "", "values": False}


def graph(
    title: str,
    text: str,
    *queries: Query,
    values: Values,
    span: int = 12,
    height: int = 8,
    marks: str = "off",
    log: int = 0,
    stacked: bool = False,
    bars: bool = False,
    calculations: tuple[str, ...] = ("lastNotNull",),
    place: str = "bottom",
) -> Panel:
    """Lines over time.

    marks  how thresholds are drawn: off, area, dashed
    log    base of the axis; 0: linear
    bars   of what happened, in place of lines
    place  of the legend: bottom, or right where there are many series
    """
    scale: Options = {"type": "log", "log": log} if log else {"type": "linear"}
    custom: Options = {
        "drawStyle": "bars" if bars else "line",
        "lineInterpolation": "linear",
        "lineWidth": 1 if bars else 2,
        "fillOpacity": 60 if bars else 25 if stacked else 0,
        "showPoints": "never",
        "spanNulls": 60_000,  # ms; a longer gap is one
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
        "scaleDistribution": scale,
        "thresholdsStyle": {"mode": marks},
    }
    options: Options = {"legend": legend(place, *calculations), "tooltip": TOOLTIP}
    return panel(
        "timeseries",
        title,
        text,
        queries,
        values,
        span=span,
        height=height,
        options=options,
        custom=custom,
    )


def stat(
    title: str,
    text: str,
    *queries: Query,
    values: Values,
    span: int = 3,
    height: int = 4,
    history: bool = True,
) -> Panel:
    """One large number each; history: with a small line of how it came to be."""
    options: Options = {
        "colorMode": "value",
        "graphMode": "area" if history else "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "percentChangeColorMode": "standard",
        "reduceOptions": LAST,
        "showPercentChange": False,
        "textMode": "auto",
        "wideLayout": True,
    }
    return panel(
        "stat",
        title,
        text,
        queries,
        values,
        span=span,
        height=height,
        options=options,
        color="thresholds",
    )


def bars(
    title: str, text: str, *queries: Query, values: Values, span: int = 8, height: int = 8
) -> Panel:
    """A bar for each series, of its last value."""
    options: Options = {
        "displayMode": "gradient",
        "legend": legend(shown=False),
        "maxVizHeight": 300,
        "minVizHeight": 12,
        "minVizWidth": 8,
        "namePlacement": "left",
        "orientation": "horizontal",
        "reduceOptions": LAST,
        "showUnfilled": True,
        "sizing": "auto",
        "valueMode": "color",
    }
    return panel(
        "bargauge",
        title,
        text,
        queries,
        values,
        span=span,
        height=height,
        options=options,
        color="thresholds",
    )


def states(
    title: str,
    text: str,
    *queries: Query,
    span: int = 12,
    height: int = 8,
) -> Panel:
    """States of drift over time, a row for each series."""
    options: Options = {
        "alignValue": "left",
        "legend": legend(),
        "mergeValues": True,
        "rowHeight": 0.8,
        "showValue": "never",
        "tooltip": {"mode": "single", "sort": "none"},
    }
    return panel(
        "state-timeline",
        title,
        text,
        queries,
        Values(words=STATES),
        span=span,
        height=height,
        options=options,
        custom={"fillOpacity": 80, "lineWidth": 0},
        color="thresholds",
    )


def heatmap(title: str, text: str, query: Query, *, unit: str, span: int = 12) -> Panel:
    """Of the buckets of a histogram."""
    options: Options = {
        "calculate": False,
        "cellGap": 1,
        "cellValues": {"unit": "none", "decimals": 0},
        "color": {
            "mode": "scheme",
            "scheme": "Blues",
            "fill": "blue",
            "scale": "exponential",
            "exponent": 0.5,
            "steps": 64,
            "reverse": False,
        },
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "showValue": "never",
        "tooltip": {"mode": "single", "yHistogram": True, "showColorScale": False},
        "yAxis": {"axisPlacement": "left", "unit": unit, "reverse": False},
    }
    custom: Options = {"scaleDistribution": {"type": "linear"}}
    return panel(
        "heatmap",
        title,
        text,
        [query],
        Values(unit),
        span=span,
        height=8,
        options=options,
        custom=custom,
    )
