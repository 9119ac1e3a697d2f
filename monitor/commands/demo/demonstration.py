"""calibration-monitor demo: a simulated six-sensor drive through a real sidecar, with a fault.

For a while one sensor reports variances five times too small. All else is the sidecar's doing: it
fits a recalibrator beside the stream, tries it on later truth, promotes it, and rolls it back when
the fault is over.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import io
import json
import math
import sys
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from monitor.commands.demo.endless import CycleDrive, config_text, drive_in_cycles
from monitor.commands.demo.live_view import Screen, is_live
from monitor.commands.demo.plan import Plan
from monitor.commands.demo.record import Record
from monitor.commands.demo.simulated_streams import drive, watched
from monitor.commands.demo.summary import (
    SidecarAccount,
    SliceAccount,
    Summary,
    as_json,
    as_text,
    summarise,
)
from monitor.commands.doctor.look import scrape
from monitor.commands.options import add_flag, add_value, seconds
from monitor.commands.sending import Addresses, running_sidecar
from monitor.commands.sidecar_client import Client, access_of, add_access
from monitor.config import split_address
from monitor.wire.messages import Kind, Listing

EXAMPLE = """examples:
  calibration-monitor demo
  calibration-monitor demo --duration 30 --speed 2 --seed 3
  calibration-monitor demo --json > summary.json
  calibration-monitor demo --print-config > sidecar.toml
  calibration-monitor demo --address 127.0.0.1:50051 --forever"""

DEFAULT = 60.0  # s, of a drive that ends
DEFAULT_CYCLE = 120.0  # s, of a drive in cycles
_SHORTEST, _LONGEST = 20.0, 3600.0  # s
_FASTEST = 10.0
_PATIENCE = 5.0  # s for the sidecar's metrics and events; five times the age of metrics
_LATE = 1.0  # s; a frame that was sent later than that was not sent in time
N = TypeVar("N", int, float)
T = TypeVar("T")


class CountsDiffer(ValueError):
    """The sidecar did not count what the demo sent."""


class StoryIncomplete(ValueError):
    """The drive was over before all had happened that it is to show."""


class TooFast(StoryIncomplete):
    """This computer could not keep up with the drive."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the verb."""
    text = "of the drive (default 4)"
    add_value(parser, "--seed", "N", text, _number(int, 0, 2**32 - 1), default=4)
    text = (
        f"of the drive, {_SHORTEST:g} to {_LONGEST:g} seconds (default {DEFAULT:g}); more "
        "where the sidecar takes longer to find out. With --forever or --address: of a cycle, not "
        f"a second more (default {DEFAULT_CYCLE:g})"
    )
    add_value(parser, "--duration", "S", text, _number(float, _SHORTEST, _LONGEST))
    text = f"seconds of the drive in a second, 0.1 to {_FASTEST:g} (default 1)"
    add_value(parser, "--speed", "X", text, _number(float, 0.1, _FASTEST), default=1.0)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    text = (
        "gRPC of a sidecar that runs already: one cycle through it, stamps from now on; "
        "--print-config prints the settings that the story needs"
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
    """0 when both sides counted the same, and the sidecar promoted and rolled back.

    Raises SidecarFailed, SidecarUnavailable, CountsDiffer, StoryIncomplete and what drive() and
    watched() raise.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # → and × on a terminal that has neither
    if options.print_config:
        print(config_text(options.speed).strip())
        return 0
    if options.address or options.forever:
        return _run_in_cycles(options)
    plan = Plan(options.seed, options.duration or DEFAULT, options.speed)
    with running_sidecar(config_text(plan.speed)) as addresses:
        summary = asyncio.run(_run(plan, addresses, quiet=options.json))
    print(json.dumps(as_json(summary)) if options.json else as_text(summary))
    if summary.differences:
        raise CountsDiffer(
            "the sidecar and the demo did not count the same: " + "; ".join(summary.differences)
        )
    if summary.missing:
        raise _incomplete(summary)
    return 0


def _run_in_cycles(options: argparse.Namespace) -> int:
    """Returns 0 once it was told to end, or after one cycle."""
    if options.json:
        raise ValueError("--json: tells of a whole drive; leave out --forever and --address.")
    plan = Plan(options.seed, options.duration or DEFAULT_CYCLE, options.speed)
    cycles = math.inf if options.forever else 1
    if not options.address:
        with running_sidecar(config_text(plan.speed)) as addresses:
            _line(f"sidecar at {addresses.grpc}, http://{addresses.http}/metrics")
            drive_in_cycles(CycleDrive(plan, addresses.grpc, cycles=cycles, patience_s=0.0), _line)
        return 0
    split_address(options.address, "--address")
    if plan.speed > 1:
        raise ValueError(
            f"--speed {plan.speed:g}: stamps would run ahead of the clock, and a second drive "
            "through this sidecar would begin in the past of the first. Give 1 or less."
        )
    access = access_of(options)
    patience_s = options.patience if options.forever else 0.0
    journey = CycleDrive(plan, options.address, access, cycles, patience_s)
    drive_in_cycles(journey, _line)
    return 0


def _incomplete(summary: Summary) -> StoryIncomplete:
    plan, late = summary.record.plan, summary.record.behind_s
    what = f"the drive was over, and the sidecar had not yet {summary.missing}: "
    if late > _LATE:
        return TooFast(
            f"{what}--speed {plan.speed:g} is too much for this computer, frames were up to "
            f"{late:.1f} s late. Lower it."
        )
    return StoryIncomplete(
        f"{what}it had {plan.patience_s:g} s more than planned. Give it another --seed."
    )


async def _run(plan: Plan, addresses: Addresses, *, quiet: bool) -> Summary:
    live = not quiet and is_live(sys.stdout)
    record = Record(plan) if quiet or live else Record(plan, _line)
    gc.collect()
    gc.freeze()  # or the collector looks at all modules again, for 50 ms, in mid-drive
    async with Client(addresses.grpc) as client, watched(client, record):
        if not quiet:
            _line(f"sidecar at {addresses.grpc}, http://{addresses.http}/metrics")
        if live:
            await _drive_on_screen(client, record, addresses)
        else:
            await drive(client, record)
        return summarise(record, await _account(client, record, addresses))


async def _drive_on_screen(client: Client, record: Record, addresses: Addresses) -> None:
    with Screen(record, addresses.http, sys.stdout) as screen:
        drawing = asyncio.create_task(screen.keep_drawing())
        try:
            await drive(client, record)
        finally:
            drawing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await drawing
    for at, text in record.events:
        _line(f"{at:6.1f} s  {text}")


def _line(text: str) -> None:
    print(text, flush=True)


async def _account(client: Client, record: Record, addresses: Addresses) -> SidecarAccount:
    """Asks the sidecar for its account of the drive that is over."""
    found = await client.calibration()
    slices = {}
    for entry in found.slices:
        raw, recalibrated = entry.stages
        slices[entry.slice] = SliceAccount(
            raw.n, raw.joint.nees_over_k, recalibrated.joint.nees_over_k
        )
    return SidecarAccount(
        frames=found.counts.frames,
        detections=found.counts.detections,
        matched=found.counts.matched,
        version=await _version(client, record),
        slices=slices,
        metrics=await _fresh_metrics(addresses, found.counts.matched),
    )


async def _version(client: Client, record: Record) -> str:
    """Asks which version is active, once all that happened has been heard.

    The last tracks may still decide.
    """

    def heard(found: Listing) -> bool:
        return record.story.sequence == (found.records[-1].sequence if found.records else 0)

    found = await _until(lambda: client.listing(records=1), heard, 0.05)
    active = (one for one in found.recalibrators if one.in_force)
    return next(one.version for one in active if one.kind is Kind.ESTIMATES)


async def _fresh_metrics(addresses: Addresses, matched: int) -> dict[str, float]:
    """Reads the metrics once their text, made from time to time, has caught up."""
    name = 'calibration_ground_truth_total{outcome="matched"}'
    return await _until(
        lambda: scrape(addresses.http), lambda metrics: metrics.get(name) == matched, 0.1
    )


async def _until(ask: Callable[[], Awaitable[T]], done: Callable[[T], bool], pause_s: float) -> T:
    """Asks again and again until it is done, or patience is at its end."""
    deadline = time.monotonic() + _PATIENCE
    while not done(found := await ask()) and time.monotonic() <= deadline:
        await asyncio.sleep(pause_s)
    return found


def _number(kind: Callable[[str], N], low: float, high: float) -> Callable[[str], N]:
    def read(text: str) -> N:
        with contextlib.suppress(ValueError):
            value = kind(text)
            if low <= value <= high:
                return value
        raise argparse.ArgumentTypeError(f"'{text}': give a number of {low:g} to {high:g}")

    return read
