"""calibration-monitor alarms: those of drift of a running sidecar, their end, and new ones."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable

from monitor.calibration.drift.alarm import AlarmChange
from monitor.edges.client import SidecarUnavailable
from monitor.edges.drift_client import DriftClient
from monitor.verbs import alarm_tables as tables
from monitor.verbs.access import access_of, add_sidecar
from monitor.verbs.printed import plain
from monitor.verbs.recalibrators import this_person

EXAMPLE = """examples:
  calibration-monitor alarms list
  calibration-monitor alarms list Car total --json
  calibration-monitor alarms acknowledge Car --actor "anna, after the mirror was cleaned"
  calibration-monitor alarms watch --address 127.0.0.1:50051 --json"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument(
        "slices",
        metavar="SLICE",
        nargs="*",
        help="as list shows it; total: all of them together (default: all, and total)",
    )
    add_sidecar(shared)
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def action(name: str, text: str, json_text: str) -> argparse.ArgumentParser:
        described = actions.add_parser(
            name,
            help=text,
            description=f"{text[0].upper()}{text[1:]}.",
            parents=[shared],
        )
        described.add_argument("--json", action="store_true", help=json_text)
        return described

    action(
        "list", "how the evidence of drift stands, and what it rests on", "print one JSON object"
    )
    acknowledge = action(
        "acknowledge",
        "end alarms; what is watched goes on, and may raise them again",
        "print one JSON object",
    )
    acknowledge.add_argument(
        "--actor",
        metavar="WHO",
        default=this_person(),
        help="who says so, for the log (default %(default)s)",
    )
    action(
        "watch",
        "a line when an alarm is raised or over, until interrupted",
        "JSON, an object a line",
    )


def run(options: argparse.Namespace) -> int:
    """0 when the sidecar did what was asked.

    Raises SidecarUnavailable, SidecarRefused, UnknownWord.
    """
    asyncio.run(_done(options))
    return 0


async def _done(options: argparse.Namespace) -> None:
    client = DriftClient(options.address, access_of(options))
    async with client:
        await ACTIONS[options.action](client, options)


async def _list(client: DriftClient, options: argparse.Namespace) -> None:
    found = await client.standings(options.slices)
    print(json.dumps(plain(found)) if options.json else tables.listing(found))


async def _acknowledge(client: DriftClient, options: argparse.Namespace) -> None:
    ended = await client.acknowledge(options.slices, options.actor)
    if options.json:
        print(json.dumps({"acknowledged": plain(ended)}))
    else:
        print(tables.acknowledged(ended))


async def _watch(client: DriftClient, options: argparse.Namespace) -> None:
    """Never returns: it is interrupted, or the sidecar ends."""
    async with contextlib.aclosing(client.alarm_changes()) as changes:
        async for heard in changes:
            if not concerns(heard.change, options.slices):
                continue
            line = json.dumps(plain(heard)) if options.json else tables.heard(heard)
            # A reader behind a pipe hears of it now.
            print(line, flush=True)
    raise SidecarUnavailable(
        f"the sidecar at {options.address} was shut down: watch again when it serves."
    )


def concerns(change: AlarmChange, slices: list[str]) -> bool:
    """Whether one of these slices is meant, or may be; of none: any."""
    return not slices or not {change.alarm.slice, *change.concerned}.isdisjoint(slices)


ACTIONS: dict[str, Callable[[DriftClient, argparse.Namespace], Awaitable[None]]] = {
    "list": _list,
    "acknowledge": _acknowledge,
    "watch": _watch,
}
