"""calibration-monitor merge: adds up the statistics of several sidecars.

How a file of statistics is written, and shown to people, is here for `export` as well.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from monitor.commands.output import output_file, tell, to_standard_error, working
from monitor.fleet.merging import merged
from monitor.store.files import write_body
from monitor.store.statistics_state import StoredState, serialised

# Exit code where objects were left out that could not be used.
SKIPPED = 3

# Objects that are named.
_MOST_NAMED = 3


def run(options: argparse.Namespace) -> int:
    """0 when the file was written; 3 if objects that could not be used were left out.

    Raises IncompatibleStatistics, InvalidState, UnusableFile, UnusableStore, CannotWrite, OSError.
    """
    found = merged(
        options.addresses,
        options.jobs,
        partial(working, unit="objects"),
        skip_unusable=options.skip_unusable,
    )
    holds = found.stored.state.holds
    more = {
        "uploads": len(holds),
        "vehicles": len(holds.vehicles),
        "duplicates": found.duplicates,
        "skipped": found.skipped,
    }
    lines = [f"It holds {holds.counted}."] if holds else []
    if twice := found.duplicates:
        some = ", ".join(twice[:_MOST_NAMED]) + " and others" * (len(twice) > _MOST_NAMED)
        lines.append(f"{_objects(twice)} left out, since others hold the same uploads: {some}.")
    if found.skipped:
        lines.append(f"{_objects(found.skipped)} left out that cannot be used.")
    write_and_show(found.stored, options, more, lines)
    for why in found.skipped[:_MOST_NAMED]:
        to_standard_error(f"calibration-monitor merge: left out: {why}")
    return SKIPPED if found.skipped else 0


def _objects(some: Sequence[str]) -> str:
    return f"{len(some):,} object{'s' * (len(some) != 1)}"


def write_state(path: Path, stored: StoredState) -> None:
    """Replaces a file by these statistics. Raises CannotWrite."""
    with output_file(path) as temporary, temporary.open("wb") as file:
        write_body(file, serialised(stored))


def write_and_show(
    stored: StoredState,
    options: argparse.Namespace,
    more: Mapping[str, object] | None = None,
    more_lines: Sequence[str] = (),
) -> None:
    """Writes statistics to the file of --output and says what they are of. Raises CannotWrite.

    more, more_lines  are said, too
    """
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
        **(more or {}),
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
    tell(options, found, "\n".join([*lines, *more_lines]))
