"""calibration-monitor merge: adds up the statistics of several sidecars."""

from __future__ import annotations

import argparse
from pathlib import Path

from monitor.commands.options import read_state, show, write_state
from monitor.statistics.bins import IncompatibleStatistics
from monitor.store.state_definitions import InvalidState

EXAMPLE = """examples:
  calibration-monitor merge monday.state tuesday.state -o week.state
  calibration-monitor merge car1.state car2.state car3.state -o fleet.state --json"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the verb."""
    parser.add_argument(
        "files", metavar="FILE", nargs="+", help="statistics, as `export` or `merge` wrote them"
    )
    parser.add_argument("-o", "--output", metavar="F", required=True, help="file to write")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """0 when the file was written.

    Raises IncompatibleStatistics, InvalidState, UnusableFile, CannotWrite, OSError.
    """
    paths = [Path(name) for name in options.files]
    _refuse_repeats(paths)
    stored = read_state(paths[0])
    for path in paths[1:]:
        more = read_state(path)
        try:
            stored = stored.merge(more)
        except (IncompatibleStatistics, InvalidState) as error:
            raise type(error)(f"{path} does not fit {paths[0]}: {error}") from None
    write_state(Path(options.output), stored)
    show(stored, options.output, as_json=options.json)
    return 0


def _refuse_repeats(paths: list[Path]) -> None:
    seen = set()
    for path in paths:
        if path.resolve() in seen:
            raise ValueError(f"{path} is named twice: it would be counted twice. Name it once.")
        seen.add(path.resolve())
