"""calibration-monitor merge: adds up the statistics of several sidecars.

How a file of statistics is written, and shown to people, is here for `export` as well.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from monitor.commands.options import add_json, output_file, tell, working
from monitor.statistics.bins import IncompatibleStatistics
from monitor.store.files import read_body, write_body
from monitor.store.state_definitions import InvalidState
from monitor.store.statistics_state import StoredState, parsed, serialised

EXAMPLE = """examples:
  calibration-monitor merge monday.state tuesday.state -o week.state
  calibration-monitor merge car1.state car2.state car3.state -o fleet.state --json"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the verb."""
    text = "statistics, as `export` or `merge` wrote them"
    parser.add_argument("files", metavar="FILE", nargs="+", help=text)
    add_output(parser)


def add_output(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a verb that writes statistics."""
    parser.add_argument("-o", "--output", metavar="F", required=True, help="file to write")
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """0 when the file was written.

    Raises IncompatibleStatistics, InvalidState, UnusableFile, CannotWrite, OSError.
    """
    paths = [Path(name) for name in options.files]
    for i, path in enumerate(paths):
        if path.resolve() in {other.resolve() for other in paths[:i]}:
            raise ValueError(f"{path} is named twice: it would be counted twice. Name it once.")
    with working("merging", len(paths), "files") as done:
        stored = read_state(paths[0])
        for path in paths[1:]:
            done(1)
            more = read_state(path)
            try:
                stored = stored.merge(more)
            except (IncompatibleStatistics, InvalidState) as error:
                raise type(error)(f"{path} does not fit {paths[0]}: {error}") from None
    write_and_show(stored, options)
    return 0


def read_state(path: Path) -> StoredState:
    """Reads statistics.

    raises  UnusableFile, InvalidState, IncompatibleStatistics, OSError; all name the file
    """
    body = read_body(path)
    try:
        return parsed(body)
    except (InvalidState, IncompatibleStatistics) as error:
        raise type(error)(f"{path}: {error}") from None


def write_state(path: Path, stored: StoredState) -> None:
    """Replaces a file by these statistics. Raises CannotWrite."""
    with output_file(path) as temporary, temporary.open("wb") as file:
        write_body(file, serialised(stored))


def write_and_show(stored: StoredState, options: argparse.Namespace) -> None:
    """Writes statistics to the file of --output and says what they are of. Raises CannotWrite."""
    write_state(Path(options.output), stored)
    state = stored.state
    detections = sum(entry.n for entry in state.slices)
    found = {
        "bins": state.binning.describe(),
        "clock_ns": state.clock_ns,
        "detections": detections,
        "slices": [
            {
                "name": entry.name,
                "dimensions": list(entry.space.names),
                "overflow": entry.overflow,
                "n": entry.n,
            }
            for entry in state.slices
        ],
        "class_slices": [
            {"name": entry.name, "classes": len(entry.class_names), "n": entry.n}
            for entry in state.class_slices
        ],
        "predicted": [
            {"name": entry.name, "dimensions": list(entry.space.names), "n": entry.n}
            for entry in state.predicted
        ],
        "output": options.output,
    }
    rows = [(entry.name, ",".join(entry.space.names), entry.n) for entry in state.slices]
    rows += [
        (entry.name, f"{len(entry.class_names)} classes", entry.n) for entry in state.class_slices
    ]
    width = max((len(name) for name, _, _ in rows), default=0)
    space = max((len(dimensions) for _, dimensions, _ in rows), default=0)
    lines = [f"{name:<{width}}  {of:<{space}}  {n:>12,}" for name, of, n in rows]
    every = sum(entry.n for entry in state.predicted)
    lines.append(
        f"{len(state.slices)} slices, {detections:,} labelled detections"
        f"{f', {every:,} labelled or not' * bool(every)}, written to {options.output}"
    )
    tell(options, found, "\n".join(lines))
