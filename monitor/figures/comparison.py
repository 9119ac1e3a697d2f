"""Draws slices beside each other: as a heat map, and before and after a recalibrator."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from monitor.figures.svg import Figure, Plot, Scale, around, number
from monitor.figures.tables import Table
from monitor.frames.space import FloatArray

# Characters of the name of a row, and rows, that are drawn; the table has all of both.
_WIDEST, _MOST_ROWS = 18, 40


def heat_map(
    title: str,
    says: str,
    rows: Sequence[str],
    columns: Sequence[str],
    factor: FloatArray,
) -> Figure:
    """Draws by how much σ is too small (above 1) or too large (below 1), as colour and number.

    factor  (rows, columns) root of NEES/K; NaN where unknown
    """
    shown = list(rows)[:_MOST_ROWS]
    left, height = 118, 24
    width = (360 - left - 4) / max(len(columns), 1)
    plot = Plot(Scale(0, 1), Scale(0, 1), height=24 + height * len(shown), left=left, right=4)
    for j, column in enumerate(columns):
        plot.text(
            left + (j + 0.5) * width,
            14,
            shortened(column, max(int(width / 5.2), 2)),
            "dim",
            "middle",
        )
    for i, row in enumerate(shown):
        top = 22 + i * height
        plot.text(2, top + 15, shortened(row, _WIDEST))
        for j, value in enumerate(factor[i].tolist()):
            if math.isfinite(value) and value > 0:
                depth = min(abs(math.log(value)) / math.log(3.0), 1.0)
                step = round(6 * depth)
                kind = f"{'over' if value > 1 else 'under'} heat-{step}"
                plot.rectangle(left + j * width + 1, top, width - 2, height - 2, kind)
            text = f"{value:.2f}" if value < 10 else number(value)
            plot.text(left + (j + 0.5) * width, top + 15, text, "", "middle")
    cells = [tuple(number(value) for value in line) for line in factor.tolist()]
    table = Table(
        ("slice", *columns), tuple((row, *line) for row, line in zip(rows, cells, strict=True))
    )
    return Figure(title, says, plot.svg(says), table)


def before_after(
    title: str,
    says: str,
    names: Sequence[str],
    before: FloatArray,
    after: FloatArray,
    x_label: str,
) -> Figure:
    """Draws what a recalibrator changes: a line from the value before to the value after, by name.

    before, after  (N,) positive values, of which 1 is best
    """
    shown = list(names)[:_MOST_ROWS]
    n = len(shown)
    plot = Plot(
        around(before, after, log=True, with_=(0.8, 1.25)),
        Scale(n - 0.5, -0.5),
        height=64 + 20 * n,
        left=118,
    )
    plot.y = Scale(-0.5, max(n, 1) - 0.5, plot.top, plot.height - plot.bottom)
    for value in plot.x.ticks(5):
        at = float(plot.x(value))
        plot.path(np.array([at, at]), np.array([plot.y.start, plot.y.end]), "grid")
        plot.text(at, plot.y.end + 14, number(value), "dim", "middle")
    plot.text((plot.left + plot.x.end) / 2, plot.height - 5, x_label, "dim", "middle")
    plot.path(np.full(2, float(plot.x(1.0))), np.array([plot.y.start, plot.y.end]), "ideal")
    for i, name in enumerate(shown):
        row = np.full(2, float(i))
        plot.text(2, float(plot.y(float(i))) + 4, shortened(name, _WIDEST))
        plot.line(np.array([before[i], after[i]]), row, "grid")
        plot.dots(before[i : i + 1], row[:1], "a")
        plot.dots(after[i : i + 1], row[:1], "b")
    plot.legend([("a", "before"), ("b", "after")])
    rows = zip(names, before.tolist(), after.tolist(), strict=True)
    table = Table(
        ("", "before", "after"), tuple((name, number(b), number(a)) for name, b, a in rows)
    )
    return Figure(title, says, plot.svg(says), table)


def shortened(name: str, most: int) -> str:
    """Cuts a name to so many characters, with an ellipsis."""
    return name if len(name) <= most else f"{name[: most - 1]}…"
