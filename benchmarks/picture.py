"""Makes the pictures of the README from one run of the demo's drive through a real sidecar.

`python -m benchmarks.picture [CHROMIUM]` writes docs/picture.svg: what flows where, and what the
run has measured. With the path of a Chromium it also writes docs/status_page.png: the status page
while a page of drift fires.
"""

from __future__ import annotations

import asyncio
import html
import math
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from monitor.commands.demo.run import Player, config_text
from monitor.commands.demo.story import Cycle, Plan
from monitor.commands.sending import running_sidecar

DOCS = Path(__file__).parents[1] / "docs"
PICTURE, STATUS_PAGE = DOCS / "picture.svg", DOCS / "status_page.png"
WIDTH, HEIGHT = 960, 470
# Of the plot, and the range of NEES/K in it, which is logarithmic.
LEFT, RIGHT, TOP, BOTTOM = 70, 940, 232, 430
LOW, HIGH = 0.1, 10.0
RAW, FORWARDED, INK, PALE = "#c2410c", "#1d4ed8", "#1f2937", "#6b7280"


def y_of(ratio: float) -> float:
    """Places NEES/K."""
    share = math.log(ratio / LOW) / math.log(HIGH / LOW)
    return BOTTOM - (BOTTOM - TOP) * min(max(share, 0.0), 1.0)


def text(x: float, y: float, words: str, colour: str = INK, size: int = 13, **more: str) -> str:
    """Writes words."""
    extra = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in more.items())
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" font-size="{size}"{extra}>'
        f"{html.escape(words)}</text>"
    )


def box(x: float, y: float, width: float, title: str, below: str, colour: str = INK) -> str:
    """Draws a box with two lines of words."""
    middle = {"text_anchor": "middle"}
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="52" rx="8" fill="#f8fafc" '
        f'stroke="{colour}" stroke-width="1.5"/>'
        + text(x + width / 2, y + 22, title, colour, 15, font_weight="600", **middle)
        + text(x + width / 2, y + 41, below, PALE, 12, **middle)
    )


def stroke(x1: float, y1: float, x2: float, y2: float, colour: str, more: str = "") -> str:
    """Draws a straight line."""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{more}/>'
    )


def flow() -> list[str]:
    """Draws the upper half."""
    arrows = ((190, 56, 326, 56), (580, 56, 736, 56), (190, 156, 358, 86), (552, 86, 736, 156))
    return [
        box(20, 30, 170, "detector", "mean, covariance"),
        box(330, 30, 250, "calibration-monitor", "recalibrate · measure · learn", FORWARDED),
        box(740, 30, 200, "tracker", "believes the covariance"),
        box(20, 130, 170, "ground truth", "at once, hours later, never"),
        box(740, 130, 200, "Prometheus, Grafana", "dashboards, alerts, runbook"),
        *(stroke(*ends, INK, ' stroke-width="1.5" marker-end="url(#tip)"') for ends in arrows),
        text(200, 48, "frames, gRPC", PALE, 12),
        text(590, 48, "recalibrated frames", PALE, 12),
        text(222, 160, "labels, in ids of their own", PALE, 12),
        text(520, 160, "measures, drift alarms", PALE, 12),
    ]


def plot(plan: Plan, cycle: Cycle) -> list[str]:
    """Draws the lower half: samples of the faulty sensor, and what happened when."""
    low, high, width = y_of(0.5), y_of(2), RIGHT - LEFT

    def x_of(at_s: float) -> float:
        return LEFT + width * at_s / cycle.elapsed_s

    marks = [(cycle.fault_began_s, "variances ÷ 5"), (cycle.fault_ended_s, "as before")]
    marks += [(cycle.promoted_s, "promoted"), (cycle.rolled_back_s, "rolled back")]
    marks = sorted(mark for mark in marks if math.isfinite(mark[0]))
    title = f"NEES/K of {plan.faulty}: last 5 s with truth, {plan.truth_delay_s:g} s late"
    parts = [
        text(LEFT, TOP - 18, title, size=14),
        f'<rect x="{LEFT}" y="{high:.1f}" width="{width}" height="{low - high:.1f}" '
        'fill="#dcfce7"/>',
    ]
    for ratio in (0.1, 0.2, 0.5, 1, 2, 5, 10):
        parts.append(stroke(LEFT, y_of(ratio), RIGHT, y_of(ratio), "#e5e7eb"))
        parts.append(text(LEFT - 8, y_of(ratio) + 4, f"{ratio:g}", PALE, 12, text_anchor="end"))
    for tick in range(0, int(cycle.elapsed_s) + 1, 10):
        x = x_of(tick)
        parts.append(text(x, BOTTOM + 18, f"{tick} s", PALE, 12, text_anchor="middle"))
    for row, (at_s, words) in enumerate(marks):
        x = x_of(at_s)
        parts.append(stroke(x, TOP, x, BOTTOM, PALE, ' stroke-dasharray="3 3"'))
        beside = {"text_anchor": "end"} if x > RIGHT - 80 else {}
        x += -4 if beside else 4
        parts.append(text(x, TOP + 12 + 14 * (row % 2), words, INK, 12, **beside))
    for column, colour, dash in ((1, RAW, "6 4"), (2, FORWARDED, "")):
        values = ((x_of(one[0]), y_of(one[column])) for one in cycle.samples)
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in values)
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.5" '
            f'stroke-dasharray="{dash}" stroke-linejoin="round"/>'
        )
    return [
        *parts,
        text(LEFT + 6, low - 6, "healthy: 0.5 … 2", "#15803d", 12),
        text(505, TOP - 18, "– – as the detector sends it", RAW, 13, font_weight="600"),
        text(725, TOP - 18, "–– as the tracker gets it", FORWARDED, 13, font_weight="600"),
    ]


def take_status_page(chromium: str, address: str) -> None:
    """Takes the picture of the status page, with a browser that asks for nothing else."""
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [
                *(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
                *("--disable-background-networking", "--disable-component-update"),
                *("--disable-sync", "--hide-scrollbars", f"--user-data-dir={profile}"),
                *("--window-size=1160,640", f"--screenshot={STATUS_PAGE}", address),
            ],
            check=True,
            timeout=60,
        )


async def played(player: Player, address: str, chromium: str) -> None:
    """Plays the drive; takes the picture some seconds after the page was raised."""
    playing = asyncio.create_task(player.run())
    while chromium and not playing.done():
        await asyncio.sleep(1.0)
        if math.isfinite(player.cycle.paged_s):
            with await asyncio.to_thread(urllib.request.urlopen, address) as answer:
                firing = b'class="card page"' in answer.read()
            if firing:
                await asyncio.to_thread(take_status_page, chromium, address)
                chromium = ""
    await playing


def main(chromium: str = "") -> int:
    """Runs the drive, and writes the pictures."""
    plan = Plan()
    with running_sidecar(config_text(plan.speed)) as addresses:
        player = Player(plan, addresses.grpc, print)
        asyncio.run(played(player, f"http://{addresses.http}/", chromium))
    tip = (
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" '
        f'markerHeight="8" orient="auto"><path d="M0 0L10 5L0 10z" fill="{INK}"/></marker></defs>'
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" font-family="Helvetica, Arial, sans-serif">',
        tip,
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        *flow(),
        *plot(plan, player.cycle),
        "</svg>\n",
    ]
    PICTURE.write_text("\n".join(parts), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
