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

from monitor.edges.client import Client
from monitor.verbs.drive_record import Phase, Plan, Record
from monitor.verbs.drive_streams import drive
from monitor.verbs.drive_summary import (
    SidecarAccount,
    SliceAccount,
    Summary,
    as_json,
    as_text,
    summarise,
)
from monitor.verbs.live_view import Screen, is_live
from monitor.verbs.scrape import Metrics, scrape
from monitor.verbs.sidecar_process import Addresses, running_sidecar

EXAMPLE = """examples:
  calibration-monitor demo
  calibration-monitor demo --duration 20 --speed 2
  calibration-monitor demo --json > summary.json"""

_CONFIG = """
[statistics]
slice_by = ["stream"]

[tracker]
kind = "embedded"

[promotion]
mode = "automatic"
fit_every_seconds = {fit_every_s}
track_seconds = 4.0
rollback_tracks = 1000.0

[metrics]
refresh_seconds = 1.0
"""
_FIT_EVERY_S = 1.0  # s of the drive
_SHORTEST, _LONGEST = 6.0, 3600.0  # s
_FASTEST = 10.0
_METRICS_PATIENCE = 5.0  # s; five times their age


class CountsDiffer(ValueError):
    """The sidecar did not count what the demo sent."""


class TooFast(ValueError):
    """This computer could not keep up, and the drive was over before the repair."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    parser.add_argument(
        "--seed", type=_seed, default=7, metavar="N", help="of the drive (default 7)"
    )
    parser.add_argument(
        "--duration",
        type=_duration,
        default=60.0,
        metavar="S",
        help=f"of the drive, {_SHORTEST:g} to {_LONGEST:g} seconds (default 60)",
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
    """0 when the drive is over and both sides counted the same.

    Raises SidecarFailed, SidecarUnavailable, CountsDiffer, TooFast and what drive() raises.
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
    if summary.cells[plan.faulty][Phase.AFTER].raw.rows == 0:
        raise TooFast(
            f"--speed {plan.speed:g} is too much for this computer: frames were up to "
            f"{summary.record.behind_s:.1f} s late, and none came after the promotion. Lower it."
        )
    return 0


async def _run(plan: Plan, addresses: Addresses, *, quiet: bool) -> Summary:
    record = Record(plan)
    gc.collect()
    gc.freeze()  # or the collector looks at all modules again, for 50 ms, in mid-drive
    async with Client(addresses.grpc) as client:
        if not quiet:
            print(f"sidecar at {addresses.grpc}, http://{addresses.http}/metrics", flush=True)
        if quiet:
            await drive(client, record, _nothing)
        elif is_live(sys.stdout):
            await _drive_on_screen(client, record, addresses)
        else:
            await drive(client, record, _line)
        return summarise(record, await _account(client, record, addresses))


async def _drive_on_screen(client: Client, record: Record, addresses: Addresses) -> None:
    with Screen(record, addresses.http, sys.stdout) as screen:
        drawing = asyncio.create_task(screen.keep_drawing())
        try:
            await drive(client, record, _nothing)
        finally:
            drawing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await drawing
    for at, text in record.events:
        _line(f"{at:6.1f} s  {text}")


def _line(text: str) -> None:
    print(text, flush=True)


def _nothing(_: str) -> None:
    """Whoever looks, looks at the record."""


async def _account(client: Client, record: Record, addresses: Addresses) -> SidecarAccount:
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
        version=found.recalibrator_version,
        slices=slices,
        metrics=await _fresh_metrics(addresses, found.counts.matched),
    )


async def _fresh_metrics(addresses: Addresses, matched: int) -> Metrics:
    """Once their text, made from time to time, has caught up."""
    deadline = time.monotonic() + _METRICS_PATIENCE
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
