"""calibration-monitor report: one HTML file on a running sidecar, or on a file of statistics.

`evaluate`, `replay` and `demo` write theirs with the same parts; `pages` has the page.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from monitor.commands.output import tell, write_output
from monitor.commands.pages.report_page import hashed, written
from monitor.commands.report.live import Seen, look, report_of
from monitor.commands.sidecar_client import Client, access_of, ask
from monitor.statistics.vehicles import Comparison, compare
from monitor.store.state_files import read_state


def run(options: argparse.Namespace) -> int:
    """0 when all was written, or nothing has changed.

    Raises SidecarUnavailable, SidecarRefused, InvalidState, CannotWrite, NotAsStated, ValueError.
    """
    if options.verify is not None:
        from monitor.commands.report.evidence import verify

        if options.output or options.evidence or options.state or options.file:
            raise ValueError("--verify: it only checks. Leave FILE, --output and --evidence out.")
        names = verify(Path(options.verify))
        tell(options, {"unchanged": names}, f"unchanged: {', '.join(names)}")
        return 0
    if not (options.output or options.evidence):
        raise ValueError("nothing to write: give --output FILE.html, or --evidence FILE.")
    if options.evidence in ("-", options.output):
        raise ValueError("--evidence: files are written beside it. Name a file of its own.")
    if options.file and options.state:
        raise ValueError("--state: FILE is one already. Name one file.")
    if file := options.file or options.state:
        seen = Seen(read_state(Path(file)).state)
        made = {"statistics": hashed(file)}
    else:
        seen = ask(Client(options.address, access_of(options)), look)
        made = {"asked": options.address}
    compared = compare(seen.statistics.vehicles)
    report = report_of(seen, made, compared)
    files: list[str] = []
    if options.output:
        write_output(options.output, written(report))
        files.append(options.output)
    if options.evidence:
        # It tells of the configuration, too, and reads it as the sidecar does.
        from monitor.commands.report.evidence import write_evidence

        files += map(str, write_evidence(Path(options.evidence), seen))
    sentences = [one.sentence for one in report.verdict]
    lines = [*sentences, *(f"written: {file}" for file in files)]
    found = {"verdict": sentences, "written": files}
    tell(options, found | _of_vehicles(compared), "\n".join(lines))
    return 0


def _of_vehicles(compared: Comparison) -> dict[str, Any]:
    """Tells which vehicles of a fleet differ, all of them."""
    if not compared.slices:
        return {}
    slices = [asdict(one) for one in compared.slices]
    found = [{**asdict(one), "words": one.words} for one in compared.found]
    return {"vehicles": {"known": compared.vehicles, "slices": slices, "different": found}}
