"""What every panel has: queries, a description, a unit, a place; and overrides of single series."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from grafana_foundation_sdk.builders import dashboard, prometheus
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models import prometheus as prometheus_model

from deploy.grafana.looks import RAW, RECALIBRATED, Values
from deploy.grafana.queries import Query

SOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
# Of Grafana, whose options the panels have: it converts those of older ones when it loads them.
PLUGINS = "13.2.3"

Panel = dashboard.Panel
Options = dict[str, Any]
Transformation = tuple[str, Options]


def identity(title: str) -> int:
    """Of a panel: from its title, so that links to it outlive panels that are added."""
    return zlib.crc32(title.encode()) % 2**24 + 1


def panel(
    kind: str,
    title: str,
    text: str,
    queries: Sequence[Query],
    values: Values,
    *,
    span: int,
    height: int,
    options: Options,
    custom: Options | None = None,
    color: str = "palette-classic",
    transformations: Sequence[Transformation] = (),
) -> Panel:
    """A panel; span in 24ths of the width, height in rows of 30 pixels."""
    built = (
        Panel()
        .type(kind)
        .id(identity(title))
        .title(title)
        .description(" ".join(text.split()))
        .datasource(SOURCE)
        .span(span)
        .height(height)
        .plugin_version(PLUGINS)
        .options(options)
        .field_config(
            model.FieldConfigSource(
                defaults=model.FieldConfig(
                    unit=values.unit,
                    decimals=values.decimals,
                    min_val=values.least,
                    max_val=values.most,
                    mappings=values.mappings(),
                    thresholds=values.thresholds(),
                    color=model.FieldColor(mode=model.FieldColorModeId(color)),
                    custom=custom or {},
                )
            )
        )
        .transformations(
            [model.DataTransformerConfig(id_val=name, options=how) for name, how in transformations]
        )
    )
    for letter, query in zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", queries, strict=False):
        built.with_target(_target(letter, query))
    return built


def _target(letter: str, query: Query) -> prometheus.Dataquery:
    formats = prometheus_model.PromQueryFormat
    target = (
        prometheus.Dataquery()
        .ref_id(letter)
        .datasource(SOURCE)
        .expr(query.expression)
        .editor_mode(prometheus_model.QueryEditorMode.CODE)
        .legend_format(query.legend)
    )
    if query.heatmap:
        return target.range().format(formats.HEATMAP)
    if query.instant:
        return target.instant().format(formats.TABLE)
    return target.range().format(formats.TIME_SERIES)


def restyled(built: Panel, pattern: str, **properties: Any) -> Panel:
    """Series whose name fits a pattern, shown otherwise; `__` in a property's name is a dot."""
    return built.override_by_regexp(
        f"/{pattern}/",
        [
            model.DynamicConfigValue(id_val=name.replace("__", "."), value=value)
            for name, value in properties.items()
        ],
    )


def colored(built: Panel, pattern: str, color: str) -> Panel:
    return restyled(built, pattern, color={"mode": "fixed", "fixedColor": color})


def staged(built: Panel) -> Panel:
    """Raw and recalibrated in their colours."""
    return colored(colored(built, "^raw|[ ,]raw", RAW), "recalibrated", RECALIBRATED)


def dashed(built: Panel, pattern: str, color: str | None = None) -> Panel:
    """What others are compared with: a dashed line without an area."""
    style = {"fill": "dash", "dash": [8, 6]}
    built = restyled(built, pattern, custom__lineStyle=style, custom__fillOpacity=0)
    return colored(built, pattern, color) if color else built


def legend(place: str = "bottom", *calculations: str, shown: bool = True) -> Options:
    """As a list below, or as a table with these calculations."""
    return {
        "showLegend": shown,
        "displayMode": "table" if calculations else "list",
        "placement": place,
        "calcs": list(calculations),
        **({"sortBy": _HEADINGS[calculations[0]], "sortDesc": True} if calculations else {}),
    }


_HEADINGS = {"lastNotNull": "Last *", "max": "Max"}
TOOLTIP: Options = {"mode": "multi", "sort": "desc"}
