"""calibration-monitor recalibrators: those of a running sidecar, and what people decide on them."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import json
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

from monitor.edges.admin_client import AdminClient
from monitor.verbs import recalibrator_tables as tables
from monitor.verbs.access import access_of, add_sidecar
from monitor.verbs.models import document_of, read_any_model
from monitor.verbs.option_values import number_of
from monitor.verbs.printed import plain
from monitor.verbs.written import output_file

EXAMPLE = """examples:
  calibration-monitor recalibrators list
  calibration-monitor recalibrators show variance-scaling-0123456789ab --output inforce.json
  calibration-monitor recalibrators fit --slice Car --slice Pedestrian
  calibration-monitor recalibrators promote variance-scaling-0123456789ab
  calibration-monitor recalibrators promote --file car.json --actor "release 7"
  calibration-monitor recalibrators rollback --slice Car
  calibration-monitor recalibrators pin --address 127.0.0.1:50051
  calibration-monitor recalibrators history -n 100 --json"""

# Characters of a document that is shown between what people read; a longer one goes to a file.
MOST_SHOWN = 4000
# Records that a sidecar remembers; further ones are in its audit log.
MOST_RECORDS = 1000


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the verb."""
    where = argparse.ArgumentParser(add_help=False)
    add_sidecar(where)
    told = argparse.ArgumentParser(add_help=False)
    told.add_argument("--json", action="store_true", help="print one JSON object")
    asked = argparse.ArgumentParser(add_help=False)
    asked.add_argument(
        "--actor",
        metavar="WHO",
        default=this_person(),
        help="who asks, for the audit log (default %(default)s)",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def action(name: str, text: str, *parents: argparse.ArgumentParser) -> argparse.ArgumentParser:
        return actions.add_parser(
            name,
            help=text,
            description=f"{text[0].upper()}{text[1:]}.",
            parents=[where, *parents],
        )

    action("list", "all that are known, all trials, and who promotes", told)
    show = action("show", "one of them: its document, and what happened to it", told)
    show.add_argument("version", metavar="VERSION", help="as list shows it")
    show.add_argument("-o", "--output", metavar="F", help="file to write the document to")
    fit = action("fit", "fit candidates now, and put them on trial", asked)
    fit.add_argument(
        "--slice",
        metavar="S",
        action="append",
        default=[],
        help="a slice to fit; may be given several times (default: all)",
    )
    fit.add_argument(
        "--method", metavar="M", default="", help="as in `fit --method` (default: as configured)"
    )
    promote = action("promote", "put one in force, from the next frame on", asked)
    which = promote.add_mutually_exclusive_group(required=True)
    which.add_argument("version", metavar="VERSION", nargs="?", help="as list shows it")
    which.add_argument("--file", metavar="F", help="a recalibrator that `fit --output` wrote")
    rollback = action("rollback", "put in force again what was before the last change", asked)
    scope = rollback.add_mutually_exclusive_group()
    scope.add_argument("--slice", metavar="S", default="", help="the only slice that goes back")
    scope.add_argument(
        "--classes", action="store_true", help="that of class probabilities, not of estimates"
    )
    action("pin", "from now on nothing happens by itself", asked)
    action("unpin", "things may happen by themselves again, as configured", asked)
    history = action("history", "what happened last, latest at the end", told)
    history.add_argument(
        "-n",
        metavar="N",
        type=number_of("records", MOST_RECORDS),
        default=20,
        help=f"records to show, at most {MOST_RECORDS:,} (default 20)",
    )


def this_person() -> str:
    """Who runs this program, and where."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):  # a user without a name
        return "command line"


def run(options: argparse.Namespace) -> int:
    """0 when the sidecar did what was asked.

    Raises SidecarUnavailable, SidecarRefused, InvalidRecalibrator, CannotWrite, UnknownWord.
    """
    asyncio.run(_done(options))
    return 0


async def _done(options: argparse.Namespace) -> None:
    client = AdminClient(options.address, access_of(options))
    async with client:
        await ACTIONS[options.action](client, options)


async def _list(client: AdminClient, options: argparse.Namespace) -> None:
    listing = await client.listing()
    if options.json:
        _print_json(
            recalibrators=listing.recalibrators,
            trials=listing.trials,
            pinned=listing.pinned,
            promotion=listing.promotion,
        )
    else:
        print(tables.listing(listing))


async def _show(client: AdminClient, options: argparse.Namespace) -> None:
    summary, document, records = await client.shown(options.version)
    if options.output is not None:
        with output_file(Path(options.output)) as temporary:
            temporary.write_text(document, encoding="utf-8")
    if options.json:
        _print_json(recalibrator=summary, document=json.loads(document), records=records)
        return
    print(tables.recalibrators((summary,)))
    if options.output is not None:
        print(f"\ndocument written to {options.output}")
    elif len(document) <= MOST_SHOWN:
        print(f"\n{document.rstrip()}")
    else:
        print(f"\ndocument of {len(document):,} characters: give --output F to write it to a file")
    if records:
        print(f"\n{tables.history(records)}")


async def _fit(client: AdminClient, options: argparse.Namespace) -> None:
    print(tables.fits(await client.fit(options.slice, options.method, options.actor)))


async def _promote(client: AdminClient, options: argparse.Namespace) -> None:
    if options.file is None:
        change = await client.promote_known(options.version, options.actor)
    else:
        document = document_of(read_any_model(options.file))
        change = await client.promote(document, options.actor)
    print(tables.change(*change))


async def _rollback(client: AdminClient, options: argparse.Namespace) -> None:
    change = await client.rollback(options.slice, options.actor, classes=options.classes)
    print(tables.change(*change))


async def _pin(client: AdminClient, options: argparse.Namespace) -> None:
    pinned = options.action == "pin"
    already = "already " if await client.pin(options.actor, pinned=pinned) == pinned else ""
    print(f"{already}pinned" if pinned else f"{already}not pinned")


async def _history(client: AdminClient, options: argparse.Namespace) -> None:
    records = (await client.listing(options.n)).records
    if options.json:
        _print_json(records=records)
    else:
        print(tables.history(records) or "nothing has happened yet")


def _print_json(**content: object) -> None:
    print(json.dumps({name: plain(value) for name, value in content.items()}))


ACTIONS: dict[str, Callable[[AdminClient, argparse.Namespace], Awaitable[None]]] = {
    "list": _list,
    "show": _show,
    "fit": _fit,
    "promote": _promote,
    "rollback": _rollback,
    "pin": _pin,
    "unpin": _pin,
    "history": _history,
}
