"""Draws the picture of the README: what flows where, and what one run of the demo has measured.

`python -m benchmarks.picture` runs the demo's drive through a real sidecar and writes
docs/picture.svg. Every curve and every mark of its lower half is of that run.
"""

from __future__ import annotations

import asyncio
import html
import math
import sys
from dataclasses import dataclass
from pathlib import Path

from monitor.commands.demo.run import Journey, Player, config_text
from monitor.commands.demo.story import Plan
from monitor.commands.demo.summary import swaps
from monitor.commands.sending import running_sidecar

PICTURE = Path(__file__).parents[1] / "docs" / "picture.svg"
WIDTH, HEIGHT = 960, 470
# Of the plot, and the range of NEES/K in it, which is logarithmic.
LEFT, RIGHT, TOP, BOTTOM = 70, 940, 232, 430
LOW, HIGH = 0.1, 10.0
RAW, FORWARDED, INK, PALE = "#c2410c", "#1d4ed8", "#1f2937", "#6b7280"


@dataclass(slots=True)
class Run:
    """What one drive has shown of its faulty sensor.

    samples  event time in s, NEES/K over the last 5 s whose truth is known: raw, forwarded
    marks    event time in s, and what happened then
    """

    plan: Plan
    samples: list[tuple[float, float, float]]
    marks: list[tuple[float, str]]
    end_s: float


async def measured(plan: Plan, address: str) -> Run:
    """Drive, and look once a second."""
    player = Player(Journey(plan, address), print)
    await player.run()
    cycle = player.cycle
    promoted, back = swaps(cycle)
    marks = [(cycle.fault_began_s, "variances ÷ 5"), (cycle.fault_ended_s, "as before")]
    marks += [(promoted.at_s, "promoted")] if promoted else []
    marks += [(back.at_s, "rolled back")] if back else []
    return Run(plan, cycle.samples, marks, cycle.elapsed_s)


def x_of(run: Run, at_s: float) -> float:
    return LEFT + (RIGHT - LEFT) * at_s / run.end_s


def y_of(ratio: float) -> float:
    share = math.log(ratio / LOW) / math.log(HIGH / LOW)
    return BOTTOM - (BOTTOM - TOP) * min(max(share, 0.0), 1.0)


def text(x: float, y: float, words: str, colour: str = INK, size: int = 13, **more: str) -> str:
    extra = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in more.items())
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" font-size="{size}"{extra}>'
        f"{html.escape(words)}</text>"
    )


def box(x: float, y: float, width: float, title: str, below: str, colour: str = INK) -> str:
    middle = {"text_anchor": "middle"}
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="52" rx="8" fill="#f8fafc" '
        f'stroke="{colour}" stroke-width="1.5"/>'
        + text(x + width / 2, y + 22, title, colour, 15, font_weight="600", **middle)
        + text(x + width / 2, y + 41, below, PALE, 12, **middle)
    )


def arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    return (
        f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{INK}" stroke-width="1.5" '
        'marker-end="url(#tip)"/>'
    )


def flow() -> list[str]:
    """The upper half."""
    return [
        box(20, 30, 170, "detector", "mean, covariance"),
        arrow(190, 56, 326, 56),
        text(200, 48, "frames, gRPC", PALE, 12),
        box(330, 30, 250, "calibration-monitor", "recalibrate · measure · learn", FORWARDED),
        arrow(580, 56, 736, 56),
        text(590, 48, "recalibrated frames", PALE, 12),
        box(740, 30, 200, "tracker", "believes the covariance"),
        box(20, 130, 170, "ground truth", "at once, hours later, never"),
        arrow(190, 156, 358, 86),
        text(222, 160, "labels, in ids of their own", PALE, 12),
        arrow(552, 86, 736, 156),
        text(520, 160, "measures, drift alarms", PALE, 12),
        box(740, 130, 200, "Prometheus, Grafana", "dashboards, alerts, runbook"),
    ]


def line(run: Run, values: list[tuple[float, float]], colour: str, dash: str = "") -> str:
    points = " ".join(f"{x_of(run, at_s):.1f},{y_of(ratio):.1f}" for at_s, ratio in values)
    return (
        f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.5" '
        f'stroke-dasharray="{dash}" stroke-linejoin="round"/>'
    )


def plot(run: Run) -> list[str]:
    """The lower half."""
    healthy = (
        f'<rect x="{LEFT}" y="{y_of(2):.1f}" width="{RIGHT - LEFT}" '
        f'height="{y_of(0.5) - y_of(2):.1f}" fill="#dcfce7"/>'
    )
    parts = [
        text(
            *(LEFT, TOP - 18),
            f"NEES/K of {run.plan.faulty}: last 5 s with truth, {run.plan.truth_delay_s:g} s late",
            size=14,
        ),
        healthy,
    ]
    for ratio in (0.1, 0.2, 0.5, 1, 2, 5, 10):
        y = y_of(ratio)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{RIGHT}" y2="{y:.1f}" stroke="#e5e7eb"/>')
        parts.append(text(LEFT - 8, y + 4, f"{ratio:g}", PALE, 12, text_anchor="end"))
    for tick in range(0, int(run.end_s) + 1, 10):
        words = f"{tick} s"
        parts.append(text(x_of(run, tick), BOTTOM + 18, words, PALE, 12, text_anchor="middle"))
    for row, (at_s, words) in enumerate(sorted(run.marks)):
        x = x_of(run, at_s)
        parts.append(
            f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{BOTTOM}" stroke="{PALE}" '
            'stroke-dasharray="3 3"/>'
        )
        beside = {"text_anchor": "end"} if x > RIGHT - 80 else {}
        x += -4 if beside else 4
        parts.append(text(x, TOP + 12 + 14 * (row % 2), words, INK, 12, **beside))
    parts += [
        line(run, [(at_s, raw) for at_s, raw, _ in run.samples], RAW, "6 4"),
        line(run, [(at_s, forwarded) for at_s, _, forwarded in run.samples], FORWARDED),
        text(LEFT + 6, y_of(0.5) - 6, "healthy: 0.5 … 2", "#15803d", 12),
        text(505, TOP - 18, "– – as the detector sends it", RAW, 13, font_weight="600"),
        text(725, TOP - 18, "–– as the tracker gets it", FORWARDED, 13, font_weight="600"),
    ]
    return parts


def svg(run: Run) -> str:
    """The picture."""
    tip = (
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" '
        f'markerHeight="8" orient="auto"><path d="M0 0L10 5L0 10z" fill="{INK}"/></marker></defs>'
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'width="{WIDTH}" height="{HEIGHT}" font-family="Helvetica, Arial, sans-serif">',
            tip,
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
            *flow(),
            *plot(run),
            "</svg>\n",
        ]
    )


def main() -> int:
    """Run the drive, and write the picture."""
    plan = Plan()
    with running_sidecar(config_text(plan.speed)) as addresses:
        run = asyncio.run(measured(plan, addresses.grpc))
    PICTURE.write_text(svg(run), encoding="utf-8")
    print(f"{PICTURE.name}: {len(run.samples)} samples, {sorted(run.marks)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
