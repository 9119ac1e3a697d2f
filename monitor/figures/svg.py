"""Draws marks on a plot of 360 units, which a phone shows at its own size, and writes them as SVG.

Colours are classes of one style sheet, so that a figure follows the reader's light or dark mode and
needs no style attribute, which a content security policy would refuse. A series differs from its
neighbour in dash and marker too, never in colour alone.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

import numpy as np

from monitor.figures.tables import Table
from monitor.frames.space import FloatArray

_NAMESPACE = "http://www.w3.org/2000/svg"

# Classes of series, in the order in which they are handed out. The sheet has their colours.
SERIES = ("a", "b", "c", "d", "e", "f")

# Okabe and Ito's colours, darkened or lightened until text in them has a contrast of 4.5 to 1.
STYLE = """
:root{color-scheme:light dark;--bg:#fff;--card:#f6f7f9;--fg:#1b1f24;--dim:#57606a;--grid:#d5dae0;
--a:#b04a00;--b:#0060a0;--c:#00704f;--d:#8a3f72;--e:#6b5d00;--f:#3d4752;--bad:#b3261e;--warn:#8a5300;
--good:#00704f;--over:#d55e00;--under:#0072b2}
@media (prefers-color-scheme:dark){:root{--bg:#14171b;--card:#1c2127;--fg:#e8eaed;--dim:#a3adb8;
--grid:#3a424c;--a:#f5a05a;--b:#6cb8f0;--c:#52c8a0;--d:#e09cc8;--e:#e0cf50;--f:#c0c8d0;
--bad:#ff8a80;--warn:#ffc46b;--good:#52c8a0;--over:#d55e00;--under:#3a94d0}}
svg{display:block;width:100%;height:auto;max-width:46rem}
svg text{font:11px system-ui,sans-serif;fill:var(--fg)}
svg .dim{fill:var(--dim)}svg .grid{stroke:var(--grid);stroke-width:1;fill:none}
svg .ideal{stroke:var(--dim);stroke-width:1;stroke-dasharray:2 3;fill:none}
svg .limit{stroke:var(--bad);stroke-width:1.2;stroke-dasharray:6 3;fill:none}
svg .mark{stroke:var(--fg);stroke-width:1;stroke-dasharray:1 2;fill:none}
svg .mark.page{stroke:var(--bad);stroke-width:1.6;stroke-dasharray:none}
svg .mark.ticket{stroke:var(--warn);stroke-width:1.6;stroke-dasharray:4 2}
svg .mark.well{stroke:var(--good);stroke-width:1.6;stroke-dasharray:1 1}
svg .band{fill:var(--dim);opacity:.18}svg .count{fill:var(--dim);opacity:.35}
svg .over{fill:var(--over)}svg .under{fill:var(--under)}svg .label{fill:none;stroke:var(--c)}
svg .line{fill:none;stroke-width:1.6;stroke-linejoin:round}
svg .dot{stroke:none}svg .ring{fill:none;stroke-width:1.4}
svg .b.line{stroke-dasharray:7 2}svg .c.line{stroke-dasharray:2 2}
svg .d.line{stroke-dasharray:7 2 2 2}
""" + "".join(
    f"svg .{one}.line,svg .{one}.ring{{stroke:var(--{one})}}"
    f"svg .{one}.dot,svg .{one}.key{{fill:var(--{one})}}"
    for one in SERIES
)


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing with the sentence that it says and the numbers that it shows.

    title  what is drawn
    says   the sentence, plain text; it is the drawing's label for those who hear the page
    svg    the drawing, without a style of its own
    """

    title: str
    says: str
    svg: str
    table: Table

    def html(self) -> str:
        """Writes title, drawing and sentence, and the numbers in a fold."""
        return (
            f"<figure><h3>{escape(self.title)}</h3>{self.svg}"
            f"<figcaption>{escape(self.says)}</figcaption>"
            f"<details><summary>Numbers of “{escape(self.title)}”</summary>"
            f"{self.table.html(f'numbers of {self.title}')}</details></figure>"
        )

    def standalone(self) -> str:
        """Writes the drawing as an SVG file with its own style."""
        head, rest = self.svg.replace("<svg ", f'<svg xmlns="{_NAMESPACE}" ', 1).split(">", 1)
        back = '<rect width="100%" height="100%" fill="var(--bg)"/>'
        return f"{head}><style>{STYLE}</style>{back}{rest}"

    def picture(self) -> str:
        """Writes the drawing as an image within HTML, which the page around it cannot style."""
        data = base64.b64encode(self.standalone().encode()).decode()
        return (
            f'<img alt="{escape(self.says)}" title="{escape(self.title)}" width="360"'
            f' src="data:image/svg+xml;base64,{data}">'
        )


def number(value: float) -> str:
    """Writes a number with three digits that count; a dash where it is not known."""
    if not math.isfinite(value):
        return "–"
    if value and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.2e}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:#.3g}".rstrip(".")


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values from low to high onto units of the plot from start to end, clipped to them."""

    low: float
    high: float
    start: float = 0.0
    end: float = 1.0
    log: bool = False

    def __post_init__(self) -> None:
        if self.high == self.low:
            # Of 1e300 and 1e300 + 1, too, nothing is left between the ends.
            wider = self.low + max(abs(self.low) * 1e-3, 1e-3)
            object.__setattr__(self, "high", wider)

    def __call__(self, values: FloatArray | Sequence[float] | float) -> FloatArray:
        low, high = self._ends()
        at = np.asarray(values, np.float64)
        if self.log:
            with np.errstate(divide="ignore", invalid="ignore"):
                at = np.log(at)
        share: FloatArray = np.clip((at - low) / (high - low), 0.0, 1.0)
        return self.start + share * (self.end - self.start)

    def _ends(self) -> tuple[float, float]:
        return (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)

    def over(self, start: float, end: float) -> Scale:
        """Returns the same range over other units."""
        return Scale(self.low, self.high, start, end, self.log)

    def ticks(self, most: int = 6) -> list[float]:
        """Chooses at most so many round values in the range; at least two on a linear scale."""
        if self.log:
            for steps in ((1, 2, 5), (1, 3), (1,)):
                found = list(_decades(self.low, self.high, steps))
                if 2 <= len(found) <= most:
                    return found
            decades = list(_decades(self.low, self.high, (1,)))
            if len(decades) > most:
                return decades[:: -(-len(decades) // most)]
        rough = (self.high - self.low) / max(most - 1, 1)
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * one for one in (1, 2, 5, 10) if power * one >= rough * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [i * step for i in range(first, last + 1)]


def _decades(low: float, high: float, steps: Sequence[int]) -> Iterator[float]:
    for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1):
        for step in steps:
            if low * 0.999 <= (value := step * 10.0**power) <= high * 1.001:
                yield value


_FURTHEST = 1e100


def around(*values: FloatArray, log: bool = False, with_: Sequence[float] = ()) -> Scale:
    """Builds the scale that shows all finite values and `with_`; some range where there is none.

    On a logarithmic scale only what is above 0 can be shown.
    """
    every = np.concatenate([*(np.ravel(one) for one in values), np.asarray(with_, np.float64)])
    # What is further out would leave no finite range; it is drawn at the edge.
    every = np.clip(every[np.isfinite(every) & ((every > 0) | (not log))], -_FURTHEST, _FURTHEST)
    every = np.maximum(every, 1 / _FURTHEST) if log else every
    if not every.size:
        return Scale(0.5, 2.0, log=True) if log else Scale(0.0, 1.0)
    low, high = float(every.min()), float(every.max())
    if log:
        spare = max((high / low) ** 0.06, 1.08)
        return Scale(low / spare, high * spare, log=True)
    spare = (high - low) * 0.06 or max(abs(high), 1.0) * 0.1
    return Scale(low if low == 0 else low - spare, high + spare)


@dataclass(slots=True)
class Plot:
    """Collects marks in the order in which they are drawn.

    x, y  scales over values; the plot gives them its units
    """

    x: Scale
    y: Scale
    width: int = 360
    height: int = 240
    left: int = 46
    right: int = 10
    top: int = 22
    bottom: int = 36
    marks: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.x = self.x.over(self.left, self.width - self.right)
        self.y = self.y.over(self.height - self.bottom, self.top)

    def axes(self, x_label: str, y_label: str, x_ticks: Sequence[float] | None = None) -> None:
        """Draws the grid with its numbers, and names both axes with their units."""
        for value in self.y.ticks():
            at = float(self.y(value))
            self.marks.append(f'<path class="grid" d="M{self.left} {at:.1f}H{self.x.end:g}"/>')
            self.text(self.left - 5, at + 4, short(value), "dim", "end")
        for value in self.x.ticks(5) if x_ticks is None else x_ticks:
            at, low = float(self.x(value)), self.y.start
            self.marks.append(f'<path class="grid" d="M{at:.1f} {low:g}v4"/>')
            self.text(at, low + 15, short(value), "dim", "middle")
        self.text((self.left + self.x.end) / 2, self.height - 5, x_label, "dim", "middle")
        self.text(2, 12, y_label, "dim")

    def legend(self, names: Sequence[tuple[str, str]]) -> None:
        """Names the series, each (class, name), above the plot on the right."""
        text = "  ".join(
            f'<tspan class="{kind} key">{_MARKERS.get(kind, "–")} {escape(name)}</tspan>'
            for kind, name in names
        )
        self.marks.append(f'<text x="{self.x.end:g}" y="12" text-anchor="end">{text}</text>')

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> None:
        """Writes text at units of the plot."""
        self.marks.append(
            f'<text x="{x:.1f}" y="{y:.1f}"'
            + f' class="{kind}"' * bool(kind)
            + f' text-anchor="{anchor}"' * (anchor != "start")
            + f">{escape(text)}</text>"
        )

    def line(self, x: FloatArray, y: FloatArray, kind: str) -> None:
        """Draws a line, interrupted where a value is not finite."""
        self.path(self.x(x), self.y(y), kind)

    def path(self, x: FloatArray, y: FloatArray, kind: str) -> None:
        """Draws a line through units of the plot."""
        d, pen = [], "M"
        for a, b in zip(x.tolist(), y.tolist(), strict=True):
            if math.isfinite(a) and math.isfinite(b):
                d.append(f"{pen}{a:.1f} {b:.1f}")
                pen = "L"
            else:
                pen = "M"
        if d:
            self.marks.append(f'<path class="{kind}" d="{"".join(d)}"/>')

    def band(self, x: FloatArray, low: FloatArray, high: FloatArray, kind: str = "band") -> None:
        """Fills what lies between two lines, where all three can be drawn; a bar for one point."""
        every = np.stack([self.x(x), self.y(low), self.y(high)])
        along, under, above = every[:, np.isfinite(every).all(axis=0)]
        if along.size == 1:
            top, end = float(above[0]), float(under[0])
            self.rectangle(float(along[0]) - 4, top, 8, end - top, kind)
        if along.size < 2:
            return
        points = [*zip(along, above, strict=True), *zip(along[::-1], under[::-1], strict=True)]
        d = "L".join(f"{a:.1f} {b:.1f}" for a, b in points)
        self.marks.append(f'<path class="{kind}" d="M{d}Z"/>')

    def dots(self, x: FloatArray, y: FloatArray, kind: str, radius: float = 2.7) -> None:
        """Draws a marker at each finite point: circles, squares for the second series."""
        for a, b in zip(self.x(x).tolist(), self.y(y).tolist(), strict=True):
            if not (math.isfinite(a) and math.isfinite(b)):
                continue
            if kind == "b":
                self.rectangle(a - radius, b - radius, 2 * radius, 2 * radius, "b dot")
            else:
                at = f'cx="{a:.1f}" cy="{b:.1f}" r="{radius:g}"'
                self.marks.append(f'<circle class="{kind} dot" {at}/>')

    def rectangle(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        """Draws a rectangle of units of the plot."""
        self.marks.append(
            f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}"'
            f' width="{width:.1f}" height="{height:.1f}"/>'
        )

    def svg(self, says: str) -> str:
        """Writes the drawing; `says` is what is heard in its place."""
        return (
            f'<svg viewBox="0 0 {self.width} {self.height}" role="img"'
            f' aria-label="{escape(says)}">{"".join(self.marks)}</svg>'
        )


_MARKERS = {"a": "●", "b": "■"}


def short(value: float) -> str:
    """Writes a tick: as few digits as tell it apart."""
    if value and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:.6g}".replace("-", "−")
