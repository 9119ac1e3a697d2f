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
from collections.abc import Callable

from monitor.edges.admin_client import AdminClient
from monitor.edges.recalibrator_messages import Kind
from monitor.verbs.drive_json import as_json
from monitor.verbs.drive_plan import Plan
from monitor.verbs.drive_record import Record
from monitor.verbs.drive_streams import drive, watched
from monitor.verbs.drive_summary import SidecarAccount, SliceAccount, Summary, summarise
from monitor.verbs.drive_tables import as_text
from monitor.verbs.live_view import Screen, is_live
from monitor.verbs.scrape import Metrics, scrape
from monitor.verbs.sidecar_process import Addresses, running_sidecar

EXAMPLE = """examples:
  calibration-monitor demo
  calibration-monitor demo --duration 30 --speed 2 --seed 3
  calibration-monitor demo --json > summary.json"""

# alpha is of one sensor: of six together it is the default again. The band is wider than the
# default: with errors as heavy-tailed as these, a few tracks of a healthy sensor read 2, too. The
# rest makes the story short, as the drive is: fits of enough tracks to be right at once, no second
# step for a few tenths, tracks that are whole soon, and a quick way back.
_CONFIG = """
[statistics]
slice_by = ["stream"]

[tracker]
kind = "embedded"

[promotion]
mode = "automatic"
alpha = 0.003
band = [0.5, 3.0]
fit_every_seconds = {fit_every_s}
fit_tracks = 20
hysteresis = 1.5
rollback_tracks = 1000.0
track_seconds = 4.0

[metrics]
refresh_seconds = 1.0
"""
_FIT_EVERY_S = 1.0  # s of the drive
_DEFAULT, _SHORTEST, _LONGEST = 60.0, 20.0, 3600.0  # s
_FASTEST = 10.0
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
    parser.add_argument(
        "--seed", type=_seed, default=4, metavar="N", help="of the drive (default 4)"
    )
    parser.add_argument(
        "--duration",
        type=_duration,
        default=_DEFAULT,
        metavar="S",
        help=f"of the drive, {_SHORTEST:g} to {_LONGEST:g} seconds (default {_DEFAULT:g}); more "
        "where the sidecar takes longer to find out",
    )
    parser.add_argument(
        "--speed",
        type=_speed,
        default=1.0,
        metavar="X",
        help=f"seconds of the drive in a second, 0.1 to {_FASTEST:g} (default 1)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """0 when both sides counted the same, and the sidecar has promoted and gone back by itself.

    Raises SidecarFailed, SidecarUnavailable, CountsDiffer, StoryIncomplete and what drive() and
    watched() raise.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # → and × on a terminal that has neither
    plan = Plan(options.seed, options.duration, options.speed)
    config = _CONFIG.format(fit_every_s=_FIT_EVERY_S / plan.speed)
    with running_sidecar(config) as addresses:
        summary = asyncio.run(_run(plan, addresses, quiet=options.json))
    print(json.dumps(as_json(summary)) if options.json else as_text(summary))
    if summary.differences:
        raise CountsDiffer(
            "the sidecar and the demo did not count the same: " + "; ".join(summary.differences)
        )
    if summary.missing:
        raise _incomplete(summary)
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
    """What the sidecar says of the drive that is over."""
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


def _number(kind: Callable[[str], float], low: float, high: float, text: str) -> float:
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise argparse.ArgumentTypeError(f"'{text}': give a number of {low:g} to {high:g}")
    return value


def _seed(text: str) -> int:
    return int(_number(int, 0, 2**32 - 1, text))


def _duration(text: str) -> float:
    return _number(float, _SHORTEST, _LONGEST, text)


def _speed(text: str) -> float:
    return _number(float, 0.1, _FASTEST, text)
