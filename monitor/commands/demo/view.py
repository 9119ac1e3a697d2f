"""Shows the demo: a live view on a terminal, and a page to keep.

The page is one HTML file that names no other address.
"""

from __future__ import annotations

import asyncio
import html
import math
from collections.abc import Callable, Iterator

from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from monitor.commands.demo.story import Cycle, Phase
from monitor.commands.demo.summary import Summary, as_text, headline, paging, swaps

_REFRESH_S = 0.25
_BAR_FULL = 6.0  # NEES/K of a full bar
_CALIBRATED = (0.4, 2.5)  # what a calibrated sensor may read over 5 s of heavy-tailed errors
_EVENTS = 9  # lines of the live view
# The plot of the page: its size, its margins, and the range of NEES/K, which is logarithmic.
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 900, 280, 50, 880, 50, 250
_LOW, _HIGH = 0.1, 10.0
_RAW, _FORWARDED, _INK, _PALE = "#c2410c", "#1d4ed8", "#1f2937", "#6b7280"


async def show(console: Console, now: Callable[[], Cycle], where: str) -> None:
    """Draws the cycle on the terminal's second screen until cancelled.

    where  addresses for a look with a browser
    """
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(drawn(now(), where), refresh=True)
            await asyncio.sleep(_REFRESH_S)


def drawn(cycle: Cycle, where: str) -> RenderableType:
    """Draws a cycle: where in the story it is, how each sensor stands, what happened last."""
    table = Table(box=None, padding=(0, 1), expand=True, header_style="dim")
    table.add_column("sensor", no_wrap=True)
    for stage in ("as sent", "recalibrated"):
        table.add_column("NEES/K", justify="right", width=6)
        table.add_column(stage, ratio=1)
    for name, sensor in cycle.sensors.items():
        raw, made = sensor.recent()
        table.add_row(name, *_measured(raw), *_measured(made))
    events = [Text(f"{at_s:6.1f} s  {text}", no_wrap=True) for at_s, text in cycle.events]
    return Group(
        Text(f"calibration monitor demo   {cycle.elapsed_s:.1f} s", style="bold"),
        _steps(cycle),
        Text(cycle.waiting, style="yellow"),
        table,
        Text("NEES/K over the last 5 s whose truth is known; 1 is calibrated", style="dim"),
        Text(where, style="dim", no_wrap=True),
        Text(),
        *events[-_EVENTS:],
    )


def _steps(cycle: Cycle) -> Text:
    """Draws the phases in a row, with how long each has lasted; the present one stands out."""
    lasted, parts = cycle.lasted_s(), []
    for phase in Phase:
        words = phase.words + (f" {lasted[phase]:.0f} s" if phase in lasted else "")
        now, bad = phase is cycle.phase, phase in (Phase.FAULT, Phase.AFTER)
        style = ("bold red" if bad else "bold green") if now else "dim"
        parts.append(Text(f"[{words}]" if now else words, style=style))
    return Text(" → ").join(parts)


def _measured(value: float) -> tuple[RenderableType, RenderableType]:
    if not math.isfinite(value):
        return "–", ""
    style = "green" if _CALIBRATED[0] <= value <= _CALIBRATED[1] else "red"
    return Text(f"{value:.2f}", style=style), Bar(_BAR_FULL, 0, min(value, _BAR_FULL), color=style)


# ---- the page


def page(summary: Summary) -> str:
    """Writes the page: headline, NEES/K of the faulty sensor over time, tables, what happened."""
    cycle = summary.cycle
    told = "\n".join(f"{at_s:6.1f} s  {text}" for at_s, text in cycle.events)
    paragraphs = "".join(f"<p>{html.escape(text)}</p>" for text in headline(summary))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>calibration monitor demo</title>'
        f"<style>body{{font-family:sans-serif;color:{_INK};max-width:{_WIDTH}px;margin:2em auto}}"
        "pre{font-size:12px;overflow-x:auto}svg{width:100%}</style></head><body>"
        f"<h1>Demo: {html.escape(cycle.plan.faulty)}</h1>{paragraphs}{_plot(cycle)}"
        f"<pre>{html.escape(as_text(summary).strip())}</pre><h2>What happened</h2>"
        f"<pre>{html.escape(told)}</pre></body></html>\n"
    )


def _plot(cycle: Cycle) -> str:
    end_s = max(cycle.elapsed_s, 1.0)

    def x(at_s: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * at_s / end_s

    def y(ratio: float) -> float:
        share = math.log(ratio / _LOW) / math.log(_HIGH / _LOW) if ratio > 0 else 0.0
        return _BOTTOM - (_BOTTOM - _TOP) * min(max(share, 0.0), 1.0)

    def words(
        at: tuple[float, float], text: str, colour: str = _PALE, anchor: str = "start"
    ) -> str:
        return (
            f'<text x="{at[0]:.1f}" y="{at[1]:.1f}" fill="{colour}" font-size="12" '
            f'text-anchor="{anchor}">{html.escape(text)}</text>'
        )

    def line(column: int, colour: str) -> str:
        points = " ".join(f"{x(row[0]):.1f},{y(row[column]):.1f}" for row in cycle.samples)
        return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.5"/>'

    parts = [
        words((_LEFT, 18), "NEES/K over the last 5 s whose truth is known", _INK),
        words((_RIGHT, 18), "as the detector sends it", _RAW, "end"),
        words((_RIGHT, 34), "as the tracker gets it", _FORWARDED, "end"),
        f'<rect x="{_LEFT}" y="{y(2):.1f}" width="{_RIGHT - _LEFT}" height="{y(0.5) - y(2):.1f}" '
        'fill="#dcfce7"/>',
    ]
    for ratio in (0.1, 0.2, 0.5, 1, 2, 5, 10):
        parts.append(words((_LEFT - 6, y(ratio) + 4), f"{ratio:g}", anchor="end"))
    for tick in range(0, int(end_s) + 1, 10):
        parts.append(words((x(tick), _BOTTOM + 18), f"{tick} s", anchor="middle"))
    for row, (at_s, text) in enumerate(_marks(cycle)):
        parts.append(
            f'<line x1="{x(at_s):.1f}" y1="{_TOP}" x2="{x(at_s):.1f}" y2="{_BOTTOM}" '
            f'stroke="{_PALE}" stroke-dasharray="3 3"/>'
        )
        parts.append(words((x(at_s) + 4, _TOP + 12 + 14 * (row % 3)), text, _INK))
    parts += [line(1, _RAW), line(2, _FORWARDED)]
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}">{"".join(parts)}</svg>'


def _marks(cycle: Cycle) -> Iterator[tuple[float, str]]:
    """Yields the moments that the plot names."""
    paged, (promoted, back) = paging(cycle), swaps(cycle)
    found = [
        (cycle.fault_began_s, "fault"),
        (paged[0] if paged else math.inf, "page"),
        (promoted.at_s if promoted else math.inf, "promoted"),
        (cycle.fault_ended_s, "fault over"),
        (back.at_s if back else math.inf, "rolled back"),
    ]
    yield from (mark for mark in found if math.isfinite(mark[0]))
