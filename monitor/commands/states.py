"""Files of statistics: how verbs read, write, describe them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from monitor.commands.options import output_file
from monitor.statistics.bins import IncompatibleStatistics
from monitor.store.files import read_body, write_body
from monitor.store.state_definitions import InvalidState
from monitor.store.statistics_state import StoredState, parsed, serialised


def read_state(path: Path) -> StoredState:
    """Reads statistics.

    raises  CorruptFile, InvalidState, IncompatibleStatistics, OSError; all name the file
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


def contents(stored: StoredState) -> dict[str, Any]:
    """Describes a state for --json."""
    state = stored.state
    return {
        "bins": state.binning.describe(),
        "clock_ns": state.clock_ns,
        "detections": sum(entry.n for entry in state.slices),
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
    }


def show(stored: StoredState, output: str, *, as_json: bool) -> None:
    """Prints what was written."""
    found = contents(stored)
    if as_json:
        print(json.dumps(found | {"output": output}))
        return
    rows = [
        *((entry["name"], ",".join(entry["dimensions"]), entry["n"]) for entry in found["slices"]),
        *(
            (entry["name"], f"{entry['classes']} classes", entry["n"])
            for entry in found["class_slices"]
        ),
    ]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(2)]
    for name, dimensions, n in rows:
        print(f"{name:<{widths[0]}}  {dimensions:<{widths[1]}}  {n:>12,}")
    print(f"{len(found['slices'])} slices, {found['detections']:,} detections, written to {output}")
