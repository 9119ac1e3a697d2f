"""calibration-monitor demo: a simulated six-sensor drive through a real sidecar, with a fault.

For a while one sensor reports variances five times too small. All else is the sidecar's doing: it
raises an alarm, fits a recalibrator beside the stream, tries it on later truth, promotes it, and
rolls it back when the fault is over.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import io
import json
import math
import os
import sys
import tempfile
import textwrap
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from monitor.client import PLAIN
from monitor.commands.demo.run import Journey, Player, config_text
from monitor.commands.demo.story import Cycle, Plan
from monitor.commands.demo.summary import (
    SidecarAccount,
    Summary,
    as_json,
    as_text,
    cycle_line,
    headline,
    paging,
    summarise,
)
from monitor.commands.demo.view import page, show
from monitor.commands.doctor.look import scrape
from monitor.commands.options import add_flag, add_value, checked, seconds, write_output
from monitor.commands.sending import Addresses, running_sidecar
from monitor.commands.sidecar_client import Client, access_of, add_access
from monitor.config import split_address
from monitor.wire.messages import Kind

EXAMPLE = """examples:
  calibration-monitor demo
  calibration-monitor demo --duration 30 --speed 2 --seed 3 --output demo.html
  calibration-monitor demo --json > summary.json
  calibration-monitor demo --print-config > sidecar.toml
  calibration-monitor demo --address 127.0.0.1:50051 --forever"""

DEFAULT = 60.0  # s, of a drive that ends
DEFAULT_CYCLE = 120.0  # s, of a drive in cycles
_SHORTEST, _LONGEST = 20.0, 3600.0  # s
_FASTEST = 10.0
_PATIENCE = 5.0  # s for the sidecar's metrics and events; five times the age of metrics
_COLUMNS = 79
_LATE = 1.0  # s; a frame that was sent later than that was not sent in time
N = TypeVar("N", int, float)
T = TypeVar("T")


class CountsDiffer(ValueError):
    """The sidecar did not count what the demo sent."""


class StoryIncomplete(ValueError):
    """The drive was over before all had happened that it is to show."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the verb."""
    text = "of the drive (default 4)"
    add_value(parser, "--seed", "N", text, _number(int, 0, 2**32 - 1), default=4)
    text = (
        f"of the drive, {_SHORTEST:g} to {_LONGEST:g} seconds (default {DEFAULT:g}); with "
        f"--forever of a cycle (default {DEFAULT_CYCLE:g}). More where the sidecar takes longer to "
        "find out"
    )
    add_value(parser, "--duration", "S", text, _number(float, _SHORTEST, _LONGEST))
    text = f"seconds of the drive in a second, 0.1 to {_FASTEST:g} (default 1)"
    add_value(parser, "--speed", "X", text, _number(float, 0.1, _FASTEST), default=1.0)
    text = "write the page (HTML) here (default: a new file in the folder for temporary files)"
    add_value(parser, "--output", "FILE", text)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    text = (
        "gRPC of a sidecar that runs already, stamps from now on; --print-config prints the "
        "settings that the story needs"
    )
    add_value(parser, "--address", "H:P", text)
    text = (
        "cycle after cycle until SIGTERM: the fault comes, is corrected, goes, and comes "
        "again; with --address, a sidecar that is not there yet, or goes, is waited for"
    )
    add_flag(parser, "--forever", text)
    text = (
        "with --address and --forever: for which the sidecar may be away, in seconds, before "
        "this ends with an error (default: for ever)"
    )
    add_value(parser, "--patience", "S", text, seconds, default=math.inf)
    text = "print the configuration of the sidecar (TOML), and do nothing else"
    add_flag(parser, "--print-config", text)
    add_access(parser)


def run(options: argparse.Namespace) -> int:
    """0 if both sides counted the same, and the sidecar promoted and rolled back.

    Raises SidecarFailed, SidecarUnavailable, SidecarRefused, CannotWrite, CountsDiffer,
    StoryIncomplete.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # → and × on a terminal that has neither
    if options.print_config:
        print(config_text(options.speed).strip())
        return 0
    if options.forever and (options.json or options.output):
        raise ValueError("--json, --output: tell of a drive that ends; leave out --forever.")
    plan = Plan(
        options.seed,
        options.duration or (DEFAULT_CYCLE if options.forever else DEFAULT),
        options.speed,
    )
    if options.address:
        split_address(options.address, "--address")
        if plan.speed > 1:
            raise ValueError(
                f"--speed {plan.speed:g}: stamps would run ahead of the clock, and a second drive "
                "through this sidecar would begin in the past of the first. Give 1 or less."
            )
    with _sidecar(options, plan) as addresses:
        own = not options.address
        access = PLAIN if own else access_of(options)
        cycles = math.inf if options.forever else 1.0
        patience_s = options.patience if options.forever and not own else 0.0
        journey = Journey(plan, addresses.grpc, access, cycles, patience_s)
        summary = asyncio.run(_played(journey, addresses if own else None, quiet=options.json))
    if summary is None:
        return 0
    _print_ending(summary, options)
    if summary.differences:
        raise CountsDiffer(
            "the sidecar and the demo did not count the same: " + "; ".join(summary.differences)
        )
    if summary.missing:
        raise _incomplete(summary)
    return 0


@contextlib.contextmanager
def _sidecar(options: argparse.Namespace, plan: Plan) -> Iterator[Addresses]:
    """Yields the sidecar that was named, or one of our own."""
    if options.address:
        yield Addresses(options.address, "")
        return
    with running_sidecar(config_text(plan.speed)) as addresses:
        if not options.json:
            _line(f"sidecar at {addresses.grpc}, http://{addresses.http}/metrics")
        yield addresses


async def _played(journey: Journey, own: Addresses | None, *, quiet: bool) -> Summary | None:
    """Plays; returns what a drive that has come to its end was like."""
    console, forever = Console(), math.isinf(journey.cycles)
    live = console.is_terminal and not (console.is_dumb_terminal or quiet or forever)
    account: list[SidecarAccount] = []

    async def settle(client: Client, cycle: Cycle) -> None:
        if own is not None:
            account.append(await _account(client, cycle, own))

    def finished(cycle: Cycle) -> None:
        if forever:
            cycle.tell(cycle_line(summarise(cycle, None)))

    say = _nobody if quiet or live else _line
    player = Player(journey, say, finished, settle)
    gc.collect()
    gc.freeze()  # or the collector looks at all modules again, for 50 ms, in mid-drive
    if live:
        where = f"http://{own.http}/   http://{own.http}/metrics" if own else journey.address
        showing = asyncio.create_task(show(console, lambda: player.cycle, where))
        try:
            await player.run()
        finally:
            showing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await showing
        for at_s, text in player.cycle.events:
            _line(f"{at_s:6.1f} s  {text}")
    else:
        await player.run()
    if not player.cycle.over:
        player.cycle.tell(f"stopped: {player.cycle.total('frames'):,} frames in this cycle")
        return None
    return summarise(player.cycle, account[0] if account else None)


def _line(text: str) -> None:
    print(text, flush=True)


def _nobody(_: str) -> None:
    """Announces to nobody."""


# ---- the end


def _print_ending(summary: Summary, options: argparse.Namespace) -> None:
    """Prints tables and headline, or JSON; writes the page."""
    path = options.output
    if options.json:
        print(json.dumps(as_json(summary)))
    else:
        print(as_text(summary))
        path = path or _new_file()
    if path:
        write_output(path, page(summary))
    if options.json:
        return
    console = Console(highlight=False, markup=False, soft_wrap=True)
    print()
    for paragraph in headline(summary):
        console.print(textwrap.fill(paragraph, _COLUMNS), style="bold")
    paged = paging(summary.cycle)
    fired = f"page fired  {paged[1] if paged else 'none'}"
    print("\n" + textwrap.fill(fired, _COLUMNS, subsequent_indent=" " * 12))
    print(f"written     {path}")
    print("next        calibration-monitor evaluate YOUR_FILE.csv")


def _new_file() -> str:
    """Makes a file that is nobody else's."""
    handle, path = tempfile.mkstemp(prefix="calibration-demo-", suffix=".html")
    os.close(handle)
    return str(Path(path))


def _incomplete(summary: Summary) -> StoryIncomplete:
    cycle = summary.cycle
    late = ""
    if cycle.behind_s > _LATE or cycle.left_out:
        late = (
            f" This computer could not keep up with --speed {cycle.plan.speed:g}: frames were up "
            f"to {cycle.behind_s:.1f} s late, {cycle.left_out} were left out."
        )
    return StoryIncomplete(
        f"the drive was over, and the sidecar had not yet {summary.missing}, in "
        f"{cycle.plan.patience_s:g} s more than planned.{late} Try again on a computer less busy."
    )


async def _account(client: Client, cycle: Cycle, addresses: Addresses) -> SidecarAccount:
    """Asks the sidecar for its account of the drive that is over."""
    # The last tracks may still decide: until all of it has been heard.
    listing = await _until(
        lambda: client.listing(records=1),
        lambda found: cycle.sequence == (found.records[-1].sequence if found.records else 0),
    )
    found = await client.calibration()
    counts = found.counts
    # The text of the metrics is made from time to time.
    name = 'calibration_ground_truth_total{outcome="matched"}'
    metrics = await _until(
        lambda: scrape(addresses.http), lambda metrics: metrics.get(name) == counts.matched
    )
    slices = {}
    for entry in found.slices:
        raw, made = entry.stages
        slices[entry.slice] = (raw.n, raw.joint.nees_over_k, made.joint.nees_over_k)
    version = next(
        one.version for one in listing.recalibrators if one.in_force and one.kind is Kind.ESTIMATES
    )
    return SidecarAccount(
        counts.frames, counts.detections, counts.matched, version, slices, metrics
    )


async def _until(ask: Callable[[], Awaitable[T]], done: Callable[[T], bool]) -> T:
    """Asks again and again until it is done, or patience is at its end."""
    deadline = time.monotonic() + _PATIENCE
    while not done(found := await ask()) and time.monotonic() <= deadline:
        await asyncio.sleep(0.1)
    return found


def _number(kind: Callable[[str], N], low: float, high: float) -> Callable[[str], N]:
    def read(text: str) -> N:
        expected = f"a number of {low:g} to {high:g}"
        return checked(text, kind, expected, lambda value: low <= value <= high)

    return read
