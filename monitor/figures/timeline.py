"""Draws values over time with the moments that matter: a fault, an alarm, a promotion."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from monitor.figures.svg import SERIES, Figure, Plot, Scale, around, number
from monitor.figures.tables import Table
from monitor.frames.space import FloatArray


@dataclass(frozen=True, slots=True)
class Line:
    """Values over time.

    time, values  (N,) ascending times; a value that is not finite interrupts the line
    """

    name: str
    time: FloatArray
    values: FloatArray


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment, with the word that stands at its line.

    kind  `page`, `ticket` or `well`: the colour of the line; '' for that of text
    """

    time: float
    word: str
    kind: str = ""

    @property
    def style(self) -> str:
        """Returns the classes of the line."""
        return f"mark {self.kind}".rstrip()


def timeline(
    title: str,
    says: str,
    lines: Sequence[Line],
    marks: Sequence[Mark] = (),
    *,
    x_label: str,
    y_label: str,
    log: bool = False,
    ideal: float | None = None,
    limits: Sequence[tuple[str, float]] = (),
    reach: Sequence[float] = (),
) -> Figure:
    """Draws lines over one time axis.

    x_label  what the times are, with their unit
    log      a logarithmic axis of values
    ideal    where a calibrated detector would lie
    limits   names and values of thresholds
    reach    times that the axis reaches in any case
    """
    marks = [mark for mark in marks if math.isfinite(mark.time)]
    times = [one.time for one in lines]
    shown = [value for _, value in limits] + ([] if ideal is None else [ideal])
    x = _span(times, [*reach, *(mark.time for mark in marks)])
    y = around(*(one.values for one in lines), log=log, with_=shown)
    words, rows = _placed(Plot(x, y), marks)
    plot = Plot(x, y, height=240 + 12 * rows, top=22 + 12 * rows)
    plot.axes(x_label, y_label)
    ends = np.array([plot.x.low, plot.x.high])
    if ideal is not None:
        plot.line(ends, np.array([ideal, ideal]), "ideal")
    for name, value in limits:
        plot.line(ends, np.array([value, value]), "limit")
        plot.text(plot.left + 3, float(plot.y(value)) - 3, name, "dim")
    for at, left, row, mark in words:
        up = 20.0 + 12 * row
        plot.path(np.array([at, at]), np.array([up + 2, plot.y.start]), mark.style)
        plot.text(left, up + 10, mark.word)
    for kind, one in zip(SERIES, lines, strict=False):
        plot.line(one.time, one.values, f"{kind} line")
        if one.time.size <= 30:
            plot.dots(one.time, one.values, kind)
    plot.legend([(kind, one.name) for kind, one in zip(SERIES, lines, strict=False)])
    return Figure(title, says, plot.svg(says), _table(lines, marks, x_label))


def sparkline(
    says: str,
    line: Line,
    marks: Sequence[Mark] = (),
    *,
    ideal: float = 1.0,
    beside: Line | None = None,
    reach: Sequence[float] = (),
) -> str:
    """Draws a line on a logarithmic axis, as small as a word; returns its SVG.

    beside  another line over the same times, drawn behind it
    reach   times that the axis reaches in any case
    """
    x = _span([line.time], reach)
    lines = [line] if beside is None else [beside, line]
    every = (one.values for one in lines)
    scale = around(*every, log=True, with_=(ideal / 1.5, ideal * 1.5))
    plot = Plot(x, scale, width=120, height=28, left=3, right=3, top=3, bottom=3)
    plot.line(np.array([x.low, x.high]), np.array([ideal, ideal]), "ideal")
    for mark in marks:
        if x.low <= mark.time <= x.high:
            at = float(plot.x(mark.time))
            plot.path(np.array([at, at]), np.array([2.0, 26.0]), mark.style)
    for kind, one in zip(SERIES, lines, strict=False):
        plot.line(one.time, one.values, f"{kind} line")
        plot.dots(one.time[-1:], one.values[-1:], kind)
    return plot.svg(says)


def _span(times: Sequence[FloatArray], moments: Sequence[float]) -> Scale:
    every = np.concatenate([*times, np.asarray(moments, np.float64)])
    every = every[np.isfinite(every)]
    if not every.size:
        return Scale(0.0, 1.0)
    low, high = float(every.min()), float(every.max())
    return Scale(low, high if high > low else low + 1.0)


def _placed(plot: Plot, marks: Sequence[Mark]) -> tuple[list[tuple[float, float, int, Mark]], int]:
    """Places the words of marks above the plot, in as many rows as keep them apart.

    returns  unit of the line and of the word's left end, row and mark of each; number of rows
    """
    ends: list[float] = []
    found = []
    for mark in sorted(marks, key=lambda one: one.time):
        at, width = float(plot.x(mark.time)), 6.2 * len(mark.word)
        left = at + 3 if at + 3 + width < plot.x.end else max(at - 3 - width, 2.0)
        row = next((i for i, end in enumerate(ends) if end < left), len(ends))
        ends[row : row + 1] = [left + width + 6]
        found.append((at, left, row, mark))
    return found, len(ends)


def _table(lines: Sequence[Line], marks: Sequence[Mark], x_label: str) -> Table:
    """Lists the values by time, 60 times at most, evenly chosen, and each moment."""
    times = np.unique(np.concatenate([one.time for one in lines])) if lines else np.zeros(0)
    chosen = times[np.unique(np.linspace(0, times.size - 1, 60).astype(int))] if times.size else []
    known = [dict(zip(one.time.tolist(), one.values.tolist(), strict=True)) for one in lines]
    moments = [(mark.time, mark.word) for mark in marks]
    rows = [
        (at, ("", *(number(one.get(at, np.nan)) for one in known)))
        for at in np.asarray(chosen).tolist()
    ]
    rows += [(at, (word, *("" for _ in known))) for at, word in moments]
    rows.sort(key=lambda row: row[0])
    return Table(
        (x_label, "event", *(one.name for one in lines)),
        tuple((number(at), *rest) for at, rest in rows),
    )
