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

from monitor.commands.demo import demo_options
from monitor.commands.demo.demo_options import DEFAULT, DEFAULT_CYCLE
from monitor.commands.demo.endless import Journey, config_text, drive_in_cycles
from monitor.commands.demo.json import as_json
from monitor.commands.demo.live_view import Screen, is_live
from monitor.commands.demo.plan import Plan
from monitor.commands.demo.record import Record
from monitor.commands.demo.simulated_streams import drive, watched
from monitor.commands.demo.summary import SidecarAccount, SliceAccount, Summary, summarise
from monitor.commands.demo.tables import as_text
from monitor.commands.doctor.look import Metrics, scrape
from monitor.commands.sending import Addresses, running_sidecar
from monitor.commands.sidecar_client import AdminClient, access_of
from monitor.config import split_address
from monitor.wire.recalibrator_messages import Kind

EXAMPLE = """examples:
  calibration-monitor demo
  calibration-monitor demo --duration 30 --speed 2 --seed 3
  calibration-monitor demo --json > summary.json
  calibration-monitor demo --print-config > sidecar.toml
  calibration-monitor demo --address 127.0.0.1:50051 --forever"""


_PATIENCE = 5.0  # s for the sidecar's metrics and events; five times the age of metrics


_LATE = 1.0  # s; a frame that was sent later than that was not sent in time


class CountsDiffer(ValueError):
    """The sidecar did not count what the demo sent."""


class StoryIncomplete(ValueError):
    """The drive was over before all had happened that it is to show."""


class TooFast(StoryIncomplete):
    """And this computer could not keep up with it."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    demo_options.add_options(parser)


def run(options: argparse.Namespace) -> int:
    """0 when both sides counted the same, and the sidecar has promoted and gone back by itself.

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
    """0 once it was told to end, or after one cycle."""
    if options.json:
        raise ValueError("--json: tells of a whole drive; leave out --forever and --address.")
    plan = Plan(options.seed, options.duration or DEFAULT_CYCLE, options.speed)
    cycles = math.inf if options.forever else 1
    if not options.address:
        with running_sidecar(config_text(plan.speed)) as addresses:
            _line(f"sidecar at {addresses.grpc}, http://{addresses.http}/metrics")
            drive_in_cycles(Journey(plan, addresses.grpc, cycles=cycles, patience_s=0.0), _line)
        return 0
    split_address(options.address, "--address")
    if plan.speed > 1:
        raise ValueError(
            f"--speed {plan.speed:g}: stamps would run ahead of the clock, and a second drive "
            "through this sidecar would begin in the past of the first. Give 1 or less."
        )
    access = access_of(options)
    patience_s = options.patience if options.forever else 0.0
    journey = Journey(plan, options.address, access, cycles, patience_s)
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
    client = AdminClient(addresses.grpc)
    async with client, watched(client, record):
        if not quiet:
            _line(f"sidecar at {addresses.grpc}, http://{addresses.http}/metrics")
        if live:
            await _drive_on_screen(client, record, addresses)
        else:
            await drive(client, record)
        return summarise(record, await _account(client, record, addresses))


async def _drive_on_screen(client: AdminClient, record: Record, addresses: Addresses) -> None:
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


async def _account(client: AdminClient, record: Record, addresses: Addresses) -> SidecarAccount:
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


async def _version(client: AdminClient, record: Record) -> str:
    """In force, once all that happened has been heard; the last tracks may still decide."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        found = await client.listing(records=1)
        last = found.records[-1].sequence if found.records else 0
        if record.story.sequence == last or time.monotonic() > deadline:
            return next(
                one.version
                for one in found.recalibrators
                if one.in_force and one.kind is Kind.ESTIMATES
            )
        await asyncio.sleep(0.05)


async def _fresh_metrics(addresses: Addresses, matched: int) -> Metrics:
    """Once their text, made from time to time, has caught up."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        metrics = await scrape(addresses.http)
        seen = metrics.samples.get('calibration_ground_truth_total{outcome="matched"}')
        if seen == matched or time.monotonic() > deadline:
            return metrics
        await asyncio.sleep(0.1)
