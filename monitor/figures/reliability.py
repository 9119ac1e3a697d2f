"""Draws whether stated uncertainty and observed errors agree: over σ, over τ and over confidence.

Also whether σ puts the errors in order, which it may without being of their size. A point on the
diagonal is calibrated. A grey band shows where a calibrated detector's points would lie on so few
rows, so that noise is not read as a fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from monitor.figures.svg import SERIES, Figure, Plot, Scale, around, number
from monitor.figures.tables import Table
from monitor.frames.space import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class Points:
    """One series of a reliability diagram, by bin.

    name       of the series: `raw`, `recalibrated`
    stated     (B,) what the detector said: root mean variance, or mean confidence
    observed   (B,) what came: root mean squared error, or share that was right
    n          (B,) rows of the bin
    low, high  (B,) where 95 % of calibrated bins would lie; NaN where unknown
    """

    name: str
    stated: FloatArray
    observed: FloatArray
    n: IntArray
    low: FloatArray
    high: FloatArray


def reliability(title: str, says: str, unit: str, series: Sequence[Points]) -> Figure:
    """Draws the errors that came over the σ that was stated, bin by bin, with counts below.

    unit    of both axes; empty where they have none, as for the joint σ_G of mixed units
    series  one or two stages over the same rows; the band is that of the first
    """
    known = [np.concatenate([one.stated, one.observed]) for one in series]
    scale = around(*known, log=True)
    label = f" [{unit}]" if unit else ""
    plot = Plot(scale, scale, height=270, bottom=60)
    plot.axes(f"σ stated{label}", f"error that came{label}", scale.ticks(5))
    _diagonal(plot, scale)
    return _finish(title, says, plot, series, ("σ stated", "error that came"))


def class_reliability(title: str, says: str, series: Sequence[Points]) -> Figure:
    """Draws how often the detector was right over how sure it was, bin by bin."""
    scale = Scale(0.0, 1.0)
    plot = Plot(scale, scale, height=270, bottom=60)
    plot.axes("confidence stated", "share that was right")
    _diagonal(plot, scale)
    return _finish(title, says, plot, series, ("confidence", "share right"))


def _diagonal(plot: Plot, scale: Scale) -> None:
    ends = np.array([scale.low, scale.high])
    plot.line(ends, ends, "ideal")


def _finish(
    title: str, says: str, plot: Plot, series: Sequence[Points], words: tuple[str, str]
) -> Figure:
    rows: list[tuple[str, ...]] = []
    if series:
        plot.band(series[0].stated, series[0].low, series[0].high)
        _counts(plot, series[0])
    for kind, one in zip(SERIES, series, strict=False):
        plot.line(one.stated, one.observed, f"{kind} line")
        plot.dots(one.stated, one.observed, kind)
        columns = (one.stated, one.observed, one.low, one.high)
        rows += [
            (one.name, f"{n:,}", *(number(float(value)) for value in values))
            for n, *values in zip(one.n.tolist(), *columns, strict=True)
        ]
    plot.legend([(kind, one.name) for kind, one in zip(SERIES, series, strict=False)])
    head = ("series", "rows", *words, "calibrated from", "to")
    return Figure(title, says, plot.svg(says), Table(head, tuple(rows)))


def _counts(plot: Plot, points: Points) -> None:
    """Draws the rows of each bin as bars under the axis, the fullest 14 units high."""
    at = plot.x(points.stated)
    known = np.isfinite(points.stated) & np.isfinite(at) & (points.n > 0)
    if not known.any():
        return
    at, n = at[known], points.n[known]
    half = max(float(np.diff(np.sort(at)).min(initial=12.0)) * 0.4, 1.2)
    base = plot.height - 20
    for centre, height in zip(at.tolist(), (14 * n / n.max()).tolist(), strict=True):
        plot.rectangle(centre - half, base - height, 2 * half, height, "count")


def coverage(
    title: str, says: str, tau: FloatArray, series: Sequence[tuple[str, FloatArray]]
) -> Figure:
    """Draws which share of errors lies within the region that should hold a share τ of them.

    tau     (T,) ascending, within 0 and 1
    series  name and observed share (T,)
    """
    scale = Scale(0.0, 1.0)
    plot = Plot(scale, scale)
    plot.axes("share that should lie inside, τ", "share that does")
    _diagonal(plot, scale)
    for kind, (_, share) in zip(SERIES, series, strict=False):
        plot.line(tau, share, f"{kind} line")
        plot.dots(tau, share, kind)
    plot.legend([(kind, name) for kind, (name, _) in zip(SERIES, series, strict=False)])
    rows = zip(tau.tolist(), *(share.tolist() for _, share in series), strict=True)
    table = Table(
        ("τ", *(name for name, _ in series)),
        tuple(tuple(number(value) for value in row) for row in rows),
    )
    return Figure(title, says, plot.svg(says), table)


def rejection(
    title: str,
    says: str,
    fraction: FloatArray,
    oracle: FloatArray,
    series: Sequence[tuple[str, FloatArray]],
) -> Figure:
    """Draws what is left of the mean squared error as the most uncertain rows are rejected.

    fraction  (F,) share of rows that are rejected, ascending
    oracle    (F,) where those with the largest errors are rejected instead, over that of all rows
    series    name and what is left (F,) where those of the highest σ are
    """
    scale = around(oracle, *(left for _, left in series), with_=(0.0, 1.0))
    plot = Plot(Scale(0.0, 1.0), scale)
    plot.axes("share rejected, highest σ first", "error² left")
    plot.line(fraction, oracle, "ideal")
    for kind, (_, left) in zip(SERIES, series, strict=False):
        plot.line(fraction, left, f"{kind} line")
        plot.dots(fraction, left, kind)
    plot.legend([(kind, name) for kind, (name, _) in zip(SERIES, series, strict=False)])
    columns = (fraction, oracle, *(left for _, left in series))
    rows = zip(*(column.tolist() for column in columns), strict=True)
    table = Table(
        ("rejected", "by the errors", *(name for name, _ in series)),
        tuple(tuple(number(value) for value in row) for row in rows),
    )
    return Figure(title, says, plot.svg(says), table)
