"""calibration-monitor demo: a simulated drive of seven sensors through a real sidecar.

For a while one sensor reports variances five times too small; another reports no covariance at all.
All else is the sidecar's doing: it raises an alarm, fits a recalibrator beside the stream, tries it
on later truth, promotes it, and rolls it back when the fault is over. The missing covariance is
learned from labels.

The page is one HTML file that names no other address.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import gc
import io
import math
import os
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

import numpy as np
from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from monitor.client import PLAIN
from monitor.commands.demo.run import Player, config_text
from monitor.commands.demo.story import Cycle, Phase, Plan
from monitor.commands.demo.summary import Summary, as_json, as_text, headline, summarise
from monitor.commands.output import tell, write_output
from monitor.commands.pages.report_page import Report, Said, Section, written
from monitor.commands.report.live import Seen, look, report_of
from monitor.commands.sending import Addresses, running_sidecar
from monitor.commands.sidecar_client import Client, access_of, ask
from monitor.figures.tables import Table as HtmlTable
from monitor.figures.timeline import Line, Mark, timeline
from monitor.options.played import DEFAULT, DEFAULT_CYCLE
from monitor.wire.access import split_address

_REFRESH_S = 0.25
_BAR_FULL = 6.0  # NEES/K of a full bar
_CALIBRATED = (0.4, 2.5)  # what a calibrated sensor may read over 5 s of heavy-tailed errors
_EVENTS = 9  # lines of the live view


async def show(player: Player, console: Console, where: str) -> None:
    """Plays, and draws the cycle on the terminal's second screen meanwhile.

    where  addresses for a look with a browser
    """
    playing = asyncio.create_task(player.run())
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while not playing.done():
            live.update(drawn(player.cycle, where), refresh=True)
            await asyncio.wait([playing], timeout=_REFRESH_S)
    await playing


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


def report_of_demo(summary: Summary, seen: Seen) -> Report:
    """Builds the page: headline, NEES/K of the faulty sensor over time, what the sidecar found."""
    cycle = summary.cycle
    found = report_of(seen, {"drive": f"seed {cycle.plan.seed}, {cycle.elapsed_s:.0f} s"})
    time, *values = np.array(cycle.samples or [(0.0, math.nan, math.nan)], np.float64).T
    names = ("as the detector sends it", "as the tracker gets it")
    moments = (
        ("fault", cycle.fault_began_s), ("page", cycle.paged_s), ("promoted", cycle.promoted_s),
        ("fault over", cycle.fault_ended_s), ("rolled back", cycle.rolled_back_s),
    )  # fmt: skip
    figure = timeline(
        f"NEES/K of {cycle.plan.faulty}",
        "Over the last 5 s whose ground truth is known; 1 is calibrated.",
        [Line(name, time, value) for name, value in zip(names, values, strict=True)],
        [Mark(at_s, word) for word, at_s in moments if math.isfinite(at_s)],
        x_label="seconds",
        y_label="NEES/K",
        log=True,
        ideal=1.0,
    )
    told = HtmlTable(
        ("second", "what happened"), tuple((f"{at_s:.1f}", text) for at_s, text in cycle.events)
    )
    well = not (summary.differences or summary.missing)
    return replace(
        found,
        title=f"Demo: {cycle.plan.faulty}",
        verdict=[Said("note" if well else "page", words) for words in headline(summary)],
        opening=[
            Section("The drive", (), [figure], [told]),
            Section("In numbers", preformatted=as_text(summary).strip()),
            *found.opening,
        ],
    )


_COLUMNS = 79
N = TypeVar("N", int, float)


def run(options: argparse.Namespace) -> int:
    """0 if both sides counted the same, and the sidecar promoted and rolled back.

    Raises SidecarFailed, SidecarUnavailable, SidecarRefused, CannotWrite, and ValueError where that
    was not so.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # → and × on a terminal that has neither
    if options.print_config:
        print(config_text(options.speed).strip())
        return 0
    if options.forever and (options.json or options.output):
        raise ValueError("--json, --output: tell of a drive that ends; leave out --forever.")
    if options.hold and (options.forever or options.json or options.address):
        raise ValueError("--hold: of the demo's own sidecar; no --forever, --json or --address.")
    if options.address:
        split_address(options.address, "--address")
        if options.speed > 1:
            raise ValueError(
                f"--speed {options.speed:g}: stamps would run ahead of the clock, and a second "
                "drive through this sidecar would begin in the past of the first. Give 1 or less."
            )
    console = Console(highlight=False, markup=False)
    with _played(options, console) as (player, at):
        if not player.cycle.over:
            player.cycle.tell(f"stopped: {player.cycle.total('frames'):,} frames in this cycle")
            return 0
        summary = summarise(player.cycle, player.account)
        report = None
        if options.output or not options.json:
            seen = ask(Client(at.grpc, player.access), look)
            report = written(report_of_demo(summary, seen))
        _print_ending(summary, options, console, report)
        if options.hold:
            print(f"open        http://{at.http}/ until Ctrl-C", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                threading.Event().wait()
    if summary.differences:
        differences = "; ".join(summary.differences)
        raise ValueError(f"the sidecar and the demo did not count the same: {differences}")
    if summary.missing:
        raise ValueError(
            f"the drive was over, and the sidecar had not yet {summary.missing}. Frames were up to "
            f"{player.cycle.behind_s:.1f} s late, {player.cycle.left_out} were left out. Try again "
            "on a computer less busy."
        )
    return 0


@contextlib.contextmanager
def _played(options: argparse.Namespace, console: Console) -> Iterator[tuple[Player, Addresses]]:
    """Plays the drive through the sidecar that is named, or one of our own, which then stays."""
    duration_s = options.duration or (DEFAULT_CYCLE if options.forever else DEFAULT)
    plan = Plan(options.seed, duration_s, options.speed)
    live = console.is_terminal and not console.is_dumb_terminal
    live &= not (options.json or options.forever)
    line = functools.partial(print, flush=True)
    sidecar: contextlib.AbstractContextManager[Addresses]
    if options.address:
        sidecar, access = contextlib.nullcontext(Addresses(options.address, "")), access_of(options)
    else:
        sidecar, access = running_sidecar(config_text(plan.speed)), PLAIN
    patience_s = options.patience if options.address and options.forever else 0.0
    with sidecar as at:
        if not (options.address or options.json):
            line(f"status page http://{at.http}/   gRPC {at.grpc}")
        announce = (lambda _: None) if live or options.json else line
        player = Player(plan, at.grpc, announce, access, options.forever, patience_s, at.http)
        gc.collect()
        gc.freeze()  # or the collector looks at all modules again, for 50 ms, in mid-drive
        where = f"status page http://{at.http}/" if at.http else at.grpc
        asyncio.run(show(player, console, where) if live else player.run())
        if live:
            for at_s, text in player.cycle.events:
                line(f"{at_s:6.1f} s  {text}")
        yield player, at


def _print_ending(
    summary: Summary, options: argparse.Namespace, console: Console, report: str | None
) -> None:
    """Prints tables and headline, or JSON; writes the report."""
    path = options.output
    tell(options, as_json(summary), as_text(summary))
    if not (path or options.json):
        handle, path = tempfile.mkstemp(prefix="calibration-demo-", suffix=".html")
        os.close(handle)
    if path and report is not None:
        write_output(path, report)
    if options.json:
        return
    print()
    for paragraph in headline(summary):
        console.print(textwrap.fill(paragraph, _COLUMNS), style="bold", soft_wrap=True)
    fired = f"page fired  {summary.cycle.page or 'none'}"
    print("\n" + textwrap.fill(fired, _COLUMNS, subsequent_indent=" " * 12))
    print(f"written     {path}")
    print("next        calibration-monitor evaluate YOUR_FILE.csv")
