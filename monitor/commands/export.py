"""calibration-monitor export: writes the statistics of a running sidecar to a file."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from monitor.commands.options import show, write_state
from monitor.commands.sidecar_client import Client, access_of, add_sidecar, ask

EXAMPLE = """examples:
  calibration-monitor export --address 127.0.0.1:50051 -o car1.state"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the verb."""
    add_sidecar(parser)
    parser.add_argument("-o", "--output", metavar="F", required=True, help="file to write")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """0 when the file was written.

    Raises SidecarUnavailable, SidecarRefused, IncompatibleStatistics, CannotWrite.
    """
    client = Client(options.address, access_of(options))
    stored = asyncio.run(ask(client, Client.export_statistics))
    write_state(Path(options.output), stored)
    show(stored, options.output, as_json=options.json)
    return 0
