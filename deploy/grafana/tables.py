"""Panels of one moment that join several queries: tables, points in a plane, bars by category."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.models import dashboard as model

from deploy.grafana.looks import CALM, Values
from deploy.grafana.panels import TOOLTIP, Options, Panel, Transformation, legend, panel, restyled
from deploy.grafana.queries import Query


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table, of a query whose legend is its heading.

    cell  how it is shown: auto, color-text, color-background
    """

    query: Query
    values: Values
    cell: str = "auto"


def _joined(
    labels: Sequence[str], queries: Sequence[Query], sort: str = "", hidden: Sequence[str] = ()
) -> list[Transformation]:
    """One row for each set of labels, one column for each query, by its legend.

    sort    column, by its name in the answers, or nothing
    hidden  labels that are only there to tell rows apart, or to sort them
    """
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[: len(queries)]
    fields = ["Value"] if len(queries) == 1 else [f"Value #{letter}" for letter in letters]
    ways = {
        "excludeByName": dict.fromkeys(("Time", *hidden), True),
        "indexByName": {name: place for place, name in enumerate([*labels, *fields])},
        "renameByName": dict(zip(fields, (query.legend for query in queries), strict=True)),
    }
    sorting: list[Transformation] = (
        [("sortBy", {"fields": {}, "sort": [{"field": sort}]})] if sort else []
    )
    return [("merge", {}), *sorting, ("organize", ways)]


def table(
    title: str,
    text: str,
    labels: Sequence[str],
    columns: Sequence[Column],
    *,
    span: int = 24,
    height: int = 9,
    sort: tuple[str, bool] | None = None,
    links: dict[str, tuple[str, str]] | None = None,
    hidden: Sequence[str] = (),
) -> Panel:
    """One row for each set of labels.

    sort    heading, and whether the largest come first
    links   by label: what its tooltip says, and where it leads
    hidden  labels that are not shown
    """
    queries = [column.query for column in columns]
    options: Options = {
        "cellHeight": "sm",
        "frameIndex": 0,
        "showHeader": True,
        "sortBy": [{"displayName": sort[0], "desc": sort[1]}] if sort else [],
    }
    built = panel(
        "table",
        title,
        text,
        queries,
        Values(),
        span=span,
        height=height,
        options=options,
        custom={"align": "auto", "cellOptions": {"type": "auto"}, "inspect": False},
        color="thresholds",
        transformations=_joined(labels, queries, hidden=hidden),
    )
    for column in columns:
        values = column.values
        properties: Options = {
            "unit": values.unit,
            "thresholds": values.thresholds(),
            "mappings": values.mappings(),
            "custom.cellOptions": {"type": column.cell},
        }
        if values.decimals is not None:
            properties["decimals"] = values.decimals
        built.override_by_name(column.query.legend, _dynamic(properties))
    for label, (tooltip, url) in (links or {}).items():
        built.override_by_name(label, _dynamic({"links": [{"title": tooltip, "url": url}]}))
    return built


def _dynamic(properties: Options) -> list[model.DynamicConfigValue]:
    return [
        model.DynamicConfigValue(id_val=name, value=value) for name, value in properties.items()
    ]


def matrix(
    title: str, text: str, query: Query, rows: str, columns: str, values: Values, *, span: int = 12
) -> Panel:
    """A table with a row for each value of one label, and a column for each of another."""
    built = panel(
        "table",
        title,
        text,
        [query],
        values,
        span=span,
        height=9,
        options={"cellHeight": "sm", "frameIndex": 0, "showHeader": True},
        custom={"align": "auto", "cellOptions": {"type": "color-background"}, "inspect": False},
        color="thresholds",
        transformations=[
            (
                "groupingToMatrix",
                {"columnField": columns, "rowField": rows, "valueField": "Value"},
            )
        ],
    )
    # Names of rows have no value, and would be coloured like the lowest.
    plain = {"custom.cellOptions": {"type": "auto"}}
    return built.override_by_field_type("string", _dynamic(plain))


@dataclass(frozen=True, slots=True)
class Points:
    """Points of one query over another; the legend of y is their name."""

    x: Query
    y: Query


def plane(
    title: str,
    text: str,
    label: str,
    points: Sequence[Points],
    *,
    values: Values,
    span: int,
    height: int,
    log: int = 0,
) -> Panel:
    """Points in a plane, joined by lines; those called `calibrated` are where all should be.

    label  that tells points from each other; rows with the same are one point
    """
    scale: Options = {"type": "log", "log": log} if log else {"type": "linear"}
    queries = list(dict.fromkeys(query for each in points for query in (each.x, each.y)))
    series = [
        {
            "name": {"fixed": each.y.legend},
            "x": {"matcher": {"id": "byName", "options": each.x.legend}},
            "y": {"matcher": {"id": "byName", "options": each.y.legend}},
        }
        for each in points
    ]
    built = panel(
        "xychart",
        title,
        text,
        queries,
        values,
        span=span,
        height=height,
        options={
            "legend": legend(),
            "mapping": "manual",
            "series": series,
            "tooltip": {"mode": "single", "sort": "none"},
        },
        custom={
            "axisPlacement": "auto",
            "lineWidth": 2,
            "pointSize": {"fixed": 8},
            "scaleDistribution": scale,
            "show": "points+lines",
        },
        transformations=_joined([label], queries, sort=label),
    )
    return restyled(
        built,
        "^calibrated$",
        custom__show="lines",
        custom__lineStyle={"fill": "dash", "dash": [8, 6]},
        color={"mode": "fixed", "fixedColor": CALM},
    )


def categories(
    title: str,
    text: str,
    label: str,
    queries: Sequence[Query],
    *,
    values: Values,
    span: int = 12,
    height: int = 9,
    sort: str = "",
) -> Panel:
    """A group of bars for each value of a label, a bar for each query.

    sort  another label, that they stand in the order of
    """
    return panel(
        "barchart",
        title,
        text,
        queries,
        values,
        span=span,
        height=height,
        options={
            "barWidth": 0.9,
            "fullHighlight": False,
            "groupWidth": 0.7,
            "legend": legend(),
            "orientation": "auto",
            "showValue": "auto",
            "stacking": "none",
            "tooltip": TOOLTIP,
            "xField": label,
            "xTickLabelMaxLength": 0,
            "xTickLabelRotation": 0,
        },
        custom={
            "fillOpacity": 80,
            "lineWidth": 0,
            "thresholdsStyle": {"mode": "dashed"},
        },
        transformations=_joined([label], queries, sort, [sort] if sort else []),
    )
