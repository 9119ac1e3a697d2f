"""Draws the page of one slice from a view: its state, figures and numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from html import escape

from monitor.drift.alarms import moment
from monitor.drift.charts import Severity
from monitor.figures.evaluations import JOINT, assumption, class_figure, evaluation_figures
from monitor.figures.svg import Figure, number
from monitor.figures.tables import fact, html_table
from monitor.figures.timeline import Line, timeline
from monitor.service.history import (
    AT,
    ENCE_RAW,
    ENCE_RECALIBRATED,
    NEES_RAW,
    NEES_RECALIBRATED,
    PAGE,
    TICKET,
)
from monitor.service.status_page import (
    Steps,
    alarm_card,
    badge,
    certainty,
    hours_of,
    last_hour,
    line_start,
)
from monitor.service.view import EPOCH, View, before, enough, factor_of, lasting, sigma, state_of
from monitor.statistics.measures import DimensionMeasures, JointMeasures
from monitor.statistics.reading import RAW, RECALIBRATED

# Measures of the table of numbers, with their heads, and those of the joint block.
_MEASURES = {
    "n_eff": "worth",
    "nees_mean": "NEES/K",
    "ence": "ENCE",
    "ence_noise_floor": "its noise",
    "qce": "QCE",
    "uce": "UCE",
    "bias": "bias",
    "sharpness": "root mean variance",
    "kurtosis": "kurtosis",
    "calibration_area": "area",
}
_OF_JOINT = {one: one for one in ("n_eff", "qce", "calibration_area")} | {
    "nees_mean": "nees_over_k"
}


def slice_page(view: View, name: str) -> Steps:
    """Draws the content of the page of one slice, a figure a step."""
    figures: list[Figure] = []
    parts = [
        f'<p class="dim small"><a href="/">← all slices</a> · {moment(view.wall_ns)} UTC</p>'
        f"<h1>{escape(name)}</h1>"
    ]
    if name in view.readings:
        window, reading = view.shown(name)
        _, kind, word = state_of(view, name)
        words, made = "too few labels to say more", reading.recalibrated
        if reading.assumed and made.rows:
            words = escape(assumption(reading.space, reading.raw))
            words += "; the figures of raw tell of the assumption"
        elif enough(made):
            words = fact(sigma(factor_of(made)), name, window, RECALIBRATED, JOINT, "sigma")
        of = f"the last {view.of}" if window != EPOCH else "all time since epoch"
        rows = fact(f"{reading.raw.rows:,}", name, window, RAW, JOINT, "n")
        parts.append(f"<p>{badge(kind, word)}: {words}, by {rows} labelled rows of {of}.</p>")
        parts += [alarm_card(view, one) for one in view.alarms if one.slice == name]
        yield
        figures += _over_time(view, name)
        yield
        stages = {RAW: reading.raw} if made is reading.raw else dict(reading.stages)
        if reading.raw.rows:
            units = {one.name: one.unit for one in reading.space.dimensions}
            figures += evaluation_figures(name, stages, units)
            yield
    if name in view.predicted:
        parts.append(_certain(view, name))
    figures += [class_figure(name, one.shown) for one in view.snapshot.classes if one.name == name]
    parts.append('<h2>Figures</h2><div class="grid">' if figures else "<div>")
    for figure in figures:
        parts.append(figure.html())
        yield
    parts.append(f"</div>{_numbers(view, name)}")
    return "".join(parts)


def _certain(view: View, name: str) -> str:
    """Says how certain the detector is of all detections, labelled or not."""
    one, (entropy, deviation) = view.predicted[name], certainty(view, name)
    parts = ""
    if one.opinions:
        at, each = (name, view.shortest, "predicted", ""), ("aleatoric", "epistemic")
        shares = (f"{part} {fact(number(getattr(one, part)), *at, part)}" for part in each)
        parts = f"; its parts: {', '.join(shares)}"
    than = f"are less certain than 95 % were before, in {before(view)}"
    of_classes = f"<p>Mean entropy {entropy[0]}{parts}; {entropy[1]} {than}.</p>"
    return (
        f"<h2>All detections of the last {lasting(view.shortest)}, labelled or not</h2>"
        f"{of_classes * bool(one.classified)}"
        f"<p>Median σ_G {deviation[0]}; {deviation[1]} {than}.</p>"
    )


def _over_time(view: View, name: str) -> Iterator[Figure]:
    points = last_hour(view).get(name)
    if points is None:
        return
    minutes, start = (points[:, AT] - view.at) / 60, (line_start(view) - view.at) / 60
    marks = [
        replace(one.mark, time=at)
        for one in view.moments
        if one.slice in ("", name) and (at := (one.mark.time - view.at) / 60) >= start
    ]
    draw = partial(timeline, marks=marks, x_label="minutes, 0 is now", reach=(start, 0.0))
    of = f"; each point is of {lasting(view.window)} before it, or of all there was"
    for title, columns, ideal in (
        ("NEES/K", (NEES_RAW, NEES_RECALIBRATED), 1.0),
        ("ENCE", (ENCE_RAW, ENCE_RECALIBRATED), None),
    ):
        stages = zip((RAW, RECALIBRATED), columns, strict=True)
        lines = [Line(stage, minutes, points[:, column]) for stage, column in stages]
        now = ", ".join(f"{one.name} {number(float(one.values[-1]))}" for one in lines)
        which = " of the worst dimension" * (ideal is None)
        says, log = f"Now {now}{which}{of}.", ideal is not None
        yield draw(f"{title} over time", says, lines, y_label=title, log=log, ideal=ideal)
    columns_of = {Severity.PAGE: PAGE, Severity.TICKET: TICKET}
    known = [one for at, one in view.standings.items() if at[0] == name]
    if known:
        says = "; ".join(f"{one.severity} {hours_of(one.evidence)}" for one in known)
        limits: dict[float, str] = {}
        for one in known:
            others = f"{limits[one.threshold]}, " if one.threshold in limits else "threshold: "
            limits[one.threshold] = f"{others}{one.severity}"
        yield draw(
            "Evidence against calibration",
            f"Now {says}. An alarm begins it anew.",
            [
                Line(str(one.severity), minutes, points[:, columns_of[one.severity]])
                for one in known
            ],
            y_label="hours",
            log=True,
            limits=[(word, hours) for hours, word in limits.items()],
        )


def _numbers(view: View, name: str) -> str:
    if name not in view.readings:
        return ""
    window, reading = view.shown(name)
    rows = []
    for stage, found in reading.stages:
        axes: dict[str, DimensionMeasures | JointMeasures] = {
            **found.dimensions,
            JOINT: found.joint,
        }
        for axis, measured in axes.items():
            names = _OF_JOINT if axis == JOINT else {one: one for one in _MEASURES}
            at = (name, window, stage, axis)
            cells = [
                fact(number(getattr(measured, names[one])), *at, names[one]) if one in names else ""
                for one in _MEASURES
            ]
            # GetCalibration has the bias and the sums of squared errors, and no root of these.
            root = "" if isinstance(measured, JointMeasures) else number(measured.rmse)
            rows.append([f"{escape(axis)}, {stage}", root, *cells])
    head = ("dimension, stage", "RMSE", *_MEASURES.values())
    return f"<h2>Numbers</h2>{html_table('numbers', head, rows)}"
