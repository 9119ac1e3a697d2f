"""A whole dashboard from its rows: variables, annotations, links to the others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as model

from deploy.grafana.annotations import ANNOTATIONS
from deploy.grafana.panels import SOURCE, Panel, identity
from deploy.grafana.variables import variable

TAG = "calibration-monitor"
TITLES = {
    "calibration-overview": "Calibration: overview",
    "calibration-slice": "Calibration: slice",
    "calibration-recalibrators": "Calibration: recalibrators",
    "calibration-service": "Calibration: service",
}
EXTERNAL_TRACKER = "With an external tracker"
CLASS_PROBABILITIES = "With class probabilities"
# Of the JSON, as of panels.PLUGINS; the package writes that of an older version.
SCHEMA = 42
# Rows that are collapsed, and empty where what their title names is not in use.
OPTIONAL = (EXTERNAL_TRACKER, CLASS_PROBABILITIES)
WIDTH = 24


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under a heading, side by side until the width is full. The first may have none."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard.

    variables  of variables.py, besides the data source, the job and the instance
    """

    uid: str
    text: str
    variables: Sequence[str]
    rows: Sequence[Row]


def document(board: Board) -> dict[str, Any]:
    """As Grafana reads it: plain values."""
    built = (
        dashboard.Dashboard(TITLES[board.uid])
        .uid(board.uid)
        .description(" ".join(board.text.split()))
        .tags([TAG])
        .editable()
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .time("now-30m", "now")
        .timezone("browser")
        .refresh("10s")
        .links([_link(uid) for uid in TITLES if uid != board.uid])
        .variables([variable(name) for name in ("datasource", "job", "instance", *board.variables)])
        .annotations(ANNOTATIONS)
    )
    skyline = [0] * WIDTH
    for row in board.rows:
        collapsed = row.title in OPTIONAL
        if row.title:
            heading = (
                dashboard.Row(row.title)
                .id(identity(f"row {row.title}"))
                .datasource(SOURCE)
                .collapsed(collapsed)
                .grid_pos(_place(skyline, WIDTH, 1))
            )
            # Folded, its panels take no room: what follows begins right below.
            inside = skyline.copy()
            for panel in row.panels if collapsed else ():
                heading.with_panel(_placed(panel, inside))
            built.with_row(heading)
        for panel in () if collapsed else row.panels:
            built.with_panel(_placed(panel, skyline))
    plain: dict[str, Any] = json.loads(JSONEncoder().encode(built.build()))
    plain["schemaVersion"] = SCHEMA
    # Keys that the package writes, and that newer versions of Grafana no longer know.
    plain.pop("style", None)
    for entry in plain["templating"]["list"]:
        for key in ("auto", "auto_count", "auto_min", "id"):
            entry.pop(key, None)
    return plain


def _placed(panel: Panel, skyline: list[int]) -> Panel:
    wanted = panel.build().grid_pos
    assert wanted is not None
    return panel.grid_pos(_place(skyline, wanted.w, wanted.h))


def _place(skyline: list[int], width: int, height: int) -> model.GridPos:
    """As high as it fits below what is there, then as far left; the skyline grows by it."""
    y, x = min((max(skyline[x : x + width]), x) for x in range(WIDTH - width + 1))
    skyline[x : x + width] = [y + height] * width
    return model.GridPos(x=x, y=y, w=width, h=height)


def text(board: Board) -> str:
    """The JSON as it is kept."""
    return json.dumps(document(board), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _link(uid: str) -> dashboard.DashboardLink:
    return (
        dashboard.DashboardLink(TITLES[uid].removeprefix("Calibration: ").capitalize())
        .type(model.DashboardLinkType.LINK)
        .url(f"/d/{uid}")
        .icon("dashboard")
        .tooltip(TITLES[uid])
        .tags([])
        .as_dropdown(False)
        .target_blank(False)
        .include_vars(True)
        .keep_time(True)
    )
