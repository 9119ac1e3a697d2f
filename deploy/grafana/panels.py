"""PromQL, looks, kinds of panels and the frame of a dashboard, shared by the four dashboards.

All of it is plain JSON as Grafana reads it. What one panel shows stands in its dashboard's file.
"""

from __future__ import annotations

import json
import string
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

Json = dict[str, Any]
# PromQL by what its series are called: the legend, or the heading of a table's column.
Queries = Mapping[str, str]

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
# The Grafana whose options the panels have: it converts those of older ones when it loads them.
PLUGINS, SCHEMA = "13.2.3", 42
WIDTH = 24
TITLES = {
    "calibration-overview": "Calibration: overview",
    "calibration-slice": "Calibration: slice",
    "calibration-recalibrators": "Calibration: recalibrators",
    "calibration-service": "Calibration: service",
}

# --- PromQL ---

CHOSEN = 'job=~"$job",instance=~"$instance"'
# Grafana makes it at least four scrapes, whatever the scrape interval and the zoom.
RATE = "$__rate_interval"
# The chosen slices, where several may be; and what tells slices of several sidecars apart.
SLICES, BY_SLICE = "~$slice", "instance, slice"
STAGES = ("raw", "recalibrated")
PER_SIDECAR = "{{instance}}"


def of(metric: str, **labels: str) -> str:
    """Selects the series of the chosen sidecars.

    metric  without the prefix `calibration_`; recorded ones, `process_…`, up and ALERTS have none
    labels  what a label must be; `~…` a regular expression, `!…` what it must not be
    """
    own = not (":" in metric or metric.startswith("process_") or metric in ("up", "ALERTS"))
    wanted = [CHOSEN]
    for name, value in labels.items():
        operator = {"~": "=~", "!": "!="}.get(value[0], "=")
        wanted.append(f'{name}{operator}"{value.lstrip("~!")}"')
    return f"{'calibration_' if own else ''}{metric}{{{','.join(wanted)}}}"


def rate(metric: str, by: str, over: str = RATE, **labels: str) -> str:
    """Takes a counter's growth a second, summed by these labels."""
    return f"sum by ({by}) (rate({of(metric, **labels)}[{over}]))"


def increase(metric: str, by: str, over: str = RATE, **labels: str) -> str:
    """Takes a counter's growth over a time, summed by these labels."""
    return f"sum by ({by}) (increase({of(metric, **labels)}[{over}]))"


def increased(metric: str, over: str, **labels: str) -> str:
    """Takes a counter's growth over a time, of all sidecars together."""
    return f"sum({increase(metric, 'job', over, **labels)})"


def quantile(share: float, metric: str) -> str:
    """Estimates a quantile of a histogram over five minutes; NaN where nothing was observed."""
    return f"histogram_quantile({share:g}, {rate(metric + '_bucket', 'le', '5m')})"


def or_none(expression: str) -> str:
    """Answers 0 where the sidecar is there and the series are not, as nothing of the kind exists.

    A sidecar that cannot be reached gives no answer at all, which is no zero.
    """
    return f"{expression} or 0 * sum({of('recalibrator_pinned')})"


# --- How values and series look: what is healthy is told alike on all dashboards ---

GOOD, WARNING, BAD, CALM = "green", "orange", "red", "text"
# Each colour holds from its value on; the first one from below.
Steps = tuple[tuple[float | None, str], ...]
NEUTRAL: Steps = ((None, CALM),)
NONE_IS_GOOD: Steps = ((None, GOOD), (1, BAD))
NONE_IS_CALM: Steps = ((None, CALM), (1, WARNING))
# NEES/K and factors on the variance: inside, fits and alerts leave them alone.
BAND: Steps = ((None, WARNING), (0.5, GOOD), (2, BAD))
# The same band of σ, which is the root of a variance.
DEVIATION_BAND: Steps = ((None, WARNING), (0.7071, GOOD), (1.4142, BAD))
# ENCE over its noise floor: at 1 a calibrated detector would read the same.
ABOVE_FLOOR: Steps = ((None, GOOD), (1.5, WARNING), (3, BAD))


def above(warning: float, bad: float | None = None) -> Steps:
    """Calls values good below the first number."""
    return ((None, GOOD), (warning, WARNING), *(() if bad is None else ((bad, BAD),)))


def below(bad: float, warning: float | None = None) -> Steps:
    """Calls values good above the last number."""
    middle: Steps = () if warning is None else ((bad, WARNING),)
    return ((None, BAD), *middle, (warning or bad, GOOD))


@dataclass(frozen=True, slots=True)
class Values:
    """Says how numbers are shown.

    unit      one of Grafana's: `none` is a plain number, `s` seconds, `bytes`, `percentunit` a
              share, `suffix:…` a word of our own
    steps     from which value on which colour holds
    words     numbers that stand for words, with the colours of these
    least, most, decimals   of axes and bars; None: as it comes
    marks     how a graph draws its steps: off, dashed, dashed+area
    log       base of the axis; 0: linear
    """

    unit: str = "none"
    steps: Steps = NEUTRAL
    words: Mapping[int, tuple[str, str]] | None = None
    least: float | None = None
    most: float | None = None
    decimals: float | None = None
    marks: str = "off"
    log: int = 0
    stacked: bool = False

    def field(self, **more: Any) -> Json:
        """Writes them, and more, as Grafana's options of a field; – is a number that is missing."""
        steps = [{"value": value, "color": color} for value, color in self.steps]
        nothing = {"match": "null+nan", "result": {"text": "–", "color": CALM}}
        words = {
            str(value): {"text": text, "color": color, "index": index}
            for index, (value, (text, color)) in enumerate((self.words or {}).items())
        }
        known = [{"type": "value", "options": words}] if words else []
        limits = {"decimals": self.decimals, "min": self.least, "max": self.most}
        return {
            "unit": self.unit,
            "thresholds": {"mode": "absolute", "steps": steps},
            "mappings": [*known, {"type": "special", "options": nothing}],
            **more,
            **{name: value for name, value in limits.items() if value is not None},
        }


PLAIN = Values()
DRIFT_STATES = {
    0: ("nothing found", GOOD),
    1: ("evidence", "yellow"),
    2: ("ALARM", BAD),
    3: ("too few labels", "blue"),
}
DRIFT = Values(steps=((None, GOOD), (1, "yellow"), (2, BAD), (3, "blue")), words=DRIFT_STATES)
_DASHES = {"fill": "dash", "dash": [8, 6]}


def override(matcher: str, fits: str, properties: Json) -> Json:
    """Shows the series or columns that fit otherwise than the rest of their panel."""
    values = [{"id": name, "value": value} for name, value in properties.items()]
    return {"matcher": {"id": matcher, "options": fits}, "properties": values}


def _fixed(color: str) -> Json:
    return {"mode": "fixed", "fixedColor": color}


def colored(pattern: str, color: str) -> Json:
    """Gives the series whose name fits the pattern a colour."""
    return override("byRegexp", f"/{pattern}/", {"color": _fixed(color)})


def dashed(pattern: str, *color: str) -> list[Json]:
    """Draws what others are compared with as a dashed line, in this colour if one is given."""
    look = {"custom.lineStyle": _DASHES, "custom.fillOpacity": 0}
    line = override("byRegexp", f"/{pattern}/", look)
    return [line, *(colored(pattern, each) for each in color)]


# Raw and recalibrated have the same colours on all dashboards.
STAGED = [colored("^raw|[ ,]raw", "orange"), colored("recalibrated", "blue")]

# --- Panels ---

# Options that all panels of a kind have, in Grafana's own JSON; `graph`, `table` … add theirs.
OPTIONS: Json = json.loads("""{
  "alertlist": {
    "alertInstanceLabelFilter": "", "alertName": "Calibration", "dashboardAlerts": false,
    "groupBy": [], "groupMode": "default", "maxItems": 30, "sortOrder": 3, "viewMode": "list",
    "stateFilter": {
      "error": true, "firing": true, "noData": false, "normal": false, "pending": true
    }
  },
  "bargauge": {
    "displayMode": "gradient", "maxVizHeight": 300, "minVizHeight": 12, "minVizWidth": 8,
    "namePlacement": "left", "orientation": "horizontal", "showUnfilled": true, "sizing": "auto",
    "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": false},
    "valueMode": "color"
  },
  "stat": {
    "colorMode": "value", "graphMode": "area", "justifyMode": "auto", "orientation": "auto",
    "percentChangeColorMode": "standard", "showPercentChange": false, "textMode": "auto",
    "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": false},
    "wideLayout": true
  },
  "state-timeline": {
    "alignValue": "left", "mergeValues": true, "rowHeight": 0.8, "showValue": "never",
    "tooltip": {"mode": "single", "sort": "none"}
  },
  "table": {"cellHeight": "sm", "frameIndex": 0, "showHeader": true},
  "timeseries": {"tooltip": {"mode": "multi", "sort": "desc"}},
  "xychart": {"mapping": "manual", "tooltip": {"mode": "single", "sort": "none"}}
}""")
_BY_THRESHOLD = {"bargauge", "stat", "state-timeline", "table"}
_TABLES = {"table", "xychart"}  # ask for the last moment alone


def identity(title: str) -> int:
    """Makes a panel's number from its title, so that links to it outlive panels that are added."""
    return zlib.crc32(title.encode()) % 2**24 + 1


def panel(
    kind: str,
    queries: Queries,
    values: Values = PLAIN,
    *,
    span: int | None = None,
    height: int = 8,
    options: Json | None = None,
    custom: Json | None = None,
    overrides: Sequence[Json] = (),
    transformations: Sequence[tuple[str, Json]] = (),
) -> Json:
    """Builds a panel of any kind; `row` adds what is said about it.

    span     in 24ths of the width; None: that of its row
    height   in rows of 30 pixels
    options, custom   of the kind, besides `OPTIONS`
    """
    once = kind in _TABLES
    targets = [
        {
            "refId": letter,
            "datasource": SOURCE,
            "expr": expression,
            "legendFormat": legend,
            "editorMode": "code",
            "format": "table" if once else "time_series",
            "instant": once,
            "range": not once,
        }
        for letter, (legend, expression) in zip(
            string.ascii_uppercase, queries.items(), strict=False
        )
    ]
    color = {"mode": "thresholds" if kind in _BY_THRESHOLD else "palette-classic"}
    return {
        "type": kind,
        "datasource": SOURCE,
        "pluginVersion": PLUGINS,
        "gridPos": {"w": span, "h": height},
        "options": OPTIONS[kind] | (options or {}),
        "fieldConfig": {
            "defaults": values.field(color=color, custom=custom or {}),
            "overrides": list(overrides),
        },
        "transformations": [{"id": name, "options": how} for name, how in transformations],
        "transparent": False,
        "repeatDirection": "h",
        **({"targets": targets} if targets else {}),
    }


def _legend(*calculations: str, shown: bool = True) -> Json:
    sorting = {"sortBy": "Last *", "sortDesc": True} if calculations else {}
    mode = "table" if calculations else "list"
    kept = {"showLegend": shown, "displayMode": mode, "placement": "bottom"}
    return {"legend": {**kept, "calcs": list(calculations), **sorting}}


# One large number for each series, with a small line of how it came to be, or without.
stat = partial(panel, "stat", height=4)
number = partial(panel, "stat", options={"graphMode": "none"})
# A bar for each series, of its last value.
bars = partial(panel, "bargauge", options=_legend(shown=False))
# States of drift over time, a line of the panel for each series.
states = partial(
    panel,
    "state-timeline",
    values=Values(words=DRIFT_STATES),
    options=_legend(),
    custom={"fillOpacity": 80, "lineWidth": 0},
)


def graph(queries: Queries, values: Values, *, events: bool = False, **layout: Any) -> Json:
    """Draws lines over time.

    events  bars of what happened, in place of lines
    layout  as of `panel`: span, height, overrides
    """
    custom = {
        "drawStyle": "bars" if events else "line",
        "lineInterpolation": "linear",
        "lineWidth": 1 if events else 2,
        "fillOpacity": 60 if events else 25 if values.stacked else 0,
        "showPoints": "never",
        "spanNulls": 60_000,  # ms; a longer gap is one
        "stacking": {"mode": "normal" if values.stacked else "none", "group": "A"},
        "thresholdsStyle": {"mode": values.marks},
        **_scale(values.log),
    }
    options = _legend("lastNotNull", "max")
    return panel("timeseries", queries, values, options=options, custom=custom, **layout)


def _scale(log: int) -> Json:
    return {"scaleDistribution": {"type": "log", "log": log} if log else {"type": "linear"}}


def _joined(
    labels: Sequence[str], queries: Queries, sort: str = "", hidden: Sequence[str] = ()
) -> list[tuple[str, Json]]:
    """Makes one line of each set of labels, with a column for each query.

    sort    name of a column in the answers, or nothing
    hidden  labels that are only there to tell lines apart, or to sort them
    """
    letters = string.ascii_uppercase[: len(queries)]
    fields = ["Value"] if len(queries) == 1 else [f"Value #{letter}" for letter in letters]
    ways = {
        "excludeByName": dict.fromkeys(("Time", *hidden), True),
        "indexByName": {name: place for place, name in enumerate([*labels, *fields])},
        "renameByName": dict(zip(fields, queries, strict=True)),
    }
    sorting = [("sortBy", {"fields": {}, "sort": [{"field": sort}]})] if sort else []
    return [("merge", {}), *sorting, ("organize", ways)]


def cells(cell: str) -> Json:
    """Shows a table's cells as: auto, color-text, color-background."""
    return {"align": "auto", "cellOptions": {"type": cell}, "inspect": False}


def table(
    labels: Sequence[str],
    columns: Mapping[str, tuple[str, Values, str]],
    *,
    height: int = 9,
    sort: Sequence[Json] = (),
    links: Mapping[str, Json] | None = None,
    hidden: Sequence[str] = (),
    **layout: Any,
) -> Json:
    """Shows one line for each set of labels.

    columns  by heading: the query, how its values look, and as what cells
    sort     headings, and whether the largest come first
    links    by label: what its tooltip says, and where it leads
    hidden   labels that are not shown
    """
    queries = {heading: query for heading, (query, _, _) in columns.items()}
    overrides = []
    for heading, (_, values, cell) in columns.items():
        look = values.field(**{"custom.cellOptions": {"type": cell}})
        overrides.append(override("byName", heading, look))
    for label, link in (links or {}).items():
        overrides.append(override("byName", label, {"links": [link]}))
    return panel(
        "table",
        queries,
        height=height,
        options={"sortBy": list(sort)},
        custom=cells("auto"),
        overrides=overrides,
        transformations=_joined(labels, queries, hidden=hidden),
        **layout,
    )


def plane(
    queries: Queries, values: Values, *, label: str, points: Mapping[str, str], **layout: Any
) -> Json:
    """Draws points in a plane, joined by lines; those called `calibrated` are where all should be.

    label   that tells points from each other; answers with the same are one point
    points  which query goes to the right, by the one that goes upwards
    """

    def named(query: str) -> Json:
        return {"matcher": {"id": "byName", "options": query}}

    series = [{"name": {"fixed": y}, "x": named(x), "y": named(y)} for y, x in points.items()]
    line = {"custom.show": "lines", "custom.lineStyle": _DASHES, "color": _fixed(CALM)}
    look = {"axisPlacement": "auto", "lineWidth": 2, "pointSize": {"fixed": 8}}
    return panel(
        "xychart",
        queries,
        values,
        options={**_legend(), "series": series},
        custom={**look, **_scale(values.log), "show": "points+lines"},
        overrides=[override("byRegexp", "/^calibrated$/", line), *STAGED],
        transformations=_joined([label], queries, sort=label),
        **layout,
    )


# --- Dashboards ---


def row(
    title: str, panels: Mapping[str, Json], *, span: int = 8, folded: bool = False
) -> list[Json]:
    """Puts panels side by side until the width is full, below a heading if there is a title.

    panels  by what is said about each: in the first line its title, below it what is shown and
            what is healthy
    span    of the panels that have none of their own
    folded  where the panels are empty unless an option is in use
    """
    shown = []
    for about, panel in panels.items():
        name, _, text = about.partition("\n")
        place = {"w": panel["gridPos"]["w"] or span, "h": panel["gridPos"]["h"]}
        said = {"id": identity(name), "title": name, "description": " ".join(text.split())}
        shown.append(panel | said | {"gridPos": place})
    heading = {
        "type": "row",
        "id": identity(f"row {title}"),
        "title": title,
        "datasource": SOURCE,
        "collapsed": folded,
        "gridPos": {"w": WIDTH, "h": 1},
        "panels": shown if folded else [],
    }
    return [*([heading] if title else []), *([] if folded else shown)]


# What a reader chooses at the top: label, series, and whether several may be chosen, all of them
# at first. The variable has the name of the series' label on all dashboards, so that links carry
# the choice along.
_CHOICES = {
    "job": ("Job", "calibration_frames_total", True),
    "instance": ("Sidecar", 'calibration_frames_total{job=~"$job"}', True),
    # Among these is `total`, all slices together; the counters of the bins have none.
    "slices": ("Slices", of("nees_ratio"), True),
    "slice": ("Slice", of("bin_detections_total"), False),
    "stage": ("Stage", of("nees_ratio"), True),
    "dimensions": ("Dimensions", of("bin_variance_total"), True),
    "dimension": ("Dimension", of("bin_variance_total"), False),
}
_DATA_SOURCE: Json = {
    "type": "datasource",
    "name": "datasource",
    "label": "Data source",
    "query": "prometheus",
    "current": {"text": "Prometheus", "value": "prometheus", "selected": True},
    "multi": False,
    "includeAll": False,
}


def _variable(key: str) -> Json:
    name = key.removesuffix("s")
    label, series, several = _CHOICES[key]
    query = f"label_values({series}, {name})"
    everything = {"text": ["All"], "value": ["$__all"], "selected": True}
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": SOURCE,
        "query": {"qryType": 5, "query": query, "refId": f"variable-{name}"},
        "refresh": 2,  # whenever the shown time changes
        "sort": 1,  # by the alphabet
        "multi": several,
        "includeAll": several,
        **({"allValue": ".*", "current": everything} if several else {}),
    }


def _changes(metric: str, by: str) -> str:
    return f"sum by ({by}) (changes({of(metric)}[{RATE}]))"


FIRING = of("ALERTS", alertname="~Calibration.*", alertstate="firing")
# Lines through the panels of every dashboard, wherever the query is above 0: by name, the colour,
# the query, the title, and the labels that are shown with it.
_MARKS = {
    "Recalibrators": (
        "blue",
        _changes("recalibrator_swaps_total", "instance, outcome"),
        "Recalibrator {{outcome}} on {{instance}}",
        "outcome,instance",
    ),
    "Drift alarms": (
        "red",
        _changes("drift_alarms_total", "instance, stage, detector, direction"),
        "Drift found on {{instance}}: {{stage}}, {{direction}}, by the {{detector}} detector",
        "stage,direction,detector,instance",
    ),
    "Alerts": (
        "orange",
        FIRING,
        "{{alertname}} {{slice}} on {{instance}}",
        "alertname,severity,slice,instance",
    ),
    "Epochs": (
        "purple",
        _changes("drift_epochs_total", "instance"),
        "A new epoch began on {{instance}}: what is usual is learned anew",
        "instance",
    ),
    "Restarts": (
        "yellow",
        f"1000 * {of('process_start_time_seconds')}",
        "{{instance}} was started",
        "instance",
    ),
}


def _mark(name: str, color: str, expression: str, title: str, tags: str) -> Json:
    target = {"expr": expression, "refId": "Anno", "legendFormat": "", "datasource": SOURCE}
    return {
        "name": name,
        "datasource": SOURCE,
        "enable": True,
        "hide": False,
        "iconColor": color,
        "target": target,
        "titleFormat": title,
        "textFormat": "",
        "tagKeys": tags,
        "useValueForTime": name == "Restarts",  # its value is the moment, in milliseconds
    }


def _link(uid: str) -> Json:
    return {
        "type": "link",
        "title": TITLES[uid].removeprefix("Calibration: ").capitalize(),
        "tooltip": TITLES[uid],
        "url": f"/d/{uid}",
        "icon": "dashboard",
        "tags": [],
        "asDropdown": False,
        "targetBlank": False,
        "includeVars": True,
        "keepTime": True,
    }


def _place(panels: Sequence[Json], skyline: list[int]) -> None:
    """Places each panel as high, then as far left as it fits; the skyline grows by it."""
    for each in panels:
        width, height = each["gridPos"]["w"], each["gridPos"]["h"]
        y, x = min((max(skyline[x : x + width]), x) for x in range(WIDTH - width + 1))
        skyline[x : x + width] = [y + height] * width
        each["gridPos"] |= {"x": x, "y": y}
        # Folded panels take no room: what follows begins right below the heading.
        _place(each.get("panels", ()), skyline.copy())


def dashboard(uid: str, text: str, *rows: Sequence[Json], variables: Sequence[str] = ()) -> Json:
    """Builds a dashboard.

    variables  of `_CHOICES`, besides the data source, the job and the instance
    """
    panels = [each for row in rows for each in row]
    _place(panels, [0] * WIDTH)
    chosen = [_DATA_SOURCE, *map(_variable, ("job", "instance", *variables))]
    return {
        "uid": uid,
        "title": TITLES[uid],
        "description": " ".join(text.split()),
        "tags": ["calibration-monitor"],
        "editable": True,
        "fiscalYearStartMonth": 0,
        "graphTooltip": 1,  # one crosshair through all panels
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "refresh": "10s",
        "schemaVersion": SCHEMA,
        "links": [_link(other) for other in TITLES if other != uid],
        "templating": {"list": [{**each, "hide": 0, "skipUrlSync": False} for each in chosen]},
        "annotations": {"list": [_mark(name, *mark) for name, mark in _MARKS.items()]},
        "panels": panels,
    }
