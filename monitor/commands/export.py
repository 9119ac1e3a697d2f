"""calibration-monitor export: writes the statistics of a running sidecar to a file."""

from __future__ import annotations

import argparse

from monitor.commands.merge import write_and_show
from monitor.commands.sidecar_client import Client, access_of, ask
from monitor.store.statistics_state import decode


def run(options: argparse.Namespace) -> int:
    """0 when the file was written.

    Raises SidecarUnavailable, SidecarRefused, IncompatibleStatistics, CannotWrite.
    """
    client = Client(options.address, access_of(options))
    write_and_show(decode(ask(client, Client.export_statistics)), options)
    return 0
