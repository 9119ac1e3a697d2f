"""Reads once, to go on from it, what the version before this one left in files of its own.

Those files are left as they are: from the first checkpoint on, state.db is what is gone on from.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from monitor.store.files import STATISTICS, Kind, read_body
from monitor.store.state import Contents

_DRIFT = Kind(b"caldrift", "drift", "Name one that a sidecar wrote as its [drift] path.")
_REGISTER = Kind(b"calrecal", "recalibrators", "It is no `state` of a [promotion] folder.")

# What ends the object of a line of the audit log: the CRC-32, in hexadecimal digits, of all that
# stands before.
_MARK = b',"crc32":"'


@dataclass(frozen=True, slots=True)
class PreviousPaths:
    """Names files and folders of the version before; '' where it kept none."""

    snapshot: str
    drift: str
    recalibrators: str
    pending: str


def previous_paths(old_keys: Mapping[str, Any]) -> PreviousPaths:
    """Returns the paths that the configuration names, else those that were the defaults."""
    return PreviousPaths(
        old_keys.get("[snapshot] path", "calibration-monitor.state"),
        old_keys.get("[drift] path", "calibration-monitor.drift"),
        old_keys.get("[promotion] folder", "calibration-monitor.recalibrators"),
        old_keys.get("[pending] folder", "calibration-monitor.pending"),
    )


def previous_contents(paths: PreviousPaths) -> Contents | None:
    """Reads what the version before left; None where there is nothing."""
    folder = Path(paths.recalibrators or "nowhere")
    sources = {
        "statistics": (Path(paths.snapshot or "nowhere"), STATISTICS),
        "drift": (Path(paths.drift or "nowhere"), _DRIFT),
        "register": (folder / "state", _REGISTER),
    }
    complaints: list[str] = []
    parts = {}
    for name, (path, kind) in sources.items():
        for source in (path, path.with_name(f"{path.name}.1")):
            body = _tried(partial(read_body, source, kind), complaints)
            if body is not None:
                parts[name] = body
                break
    versions = sorted(folder.glob("versions/*.json"), key=lambda path: path.stat().st_mtime_ns)
    documents = {path.stem: _tried(path.read_bytes, complaints) for path in versions}
    records = []
    for path in (folder / "history.jsonl.1", folder / "history.jsonl"):
        for line in (_tried(path.read_bytes, complaints) or b"").splitlines():
            text, _, crc = line.rpartition(_MARK)
            if crc == b'%08x"}' % zlib.crc32(text):
                records.append(text + b"}")
    if not (parts or documents):
        return None
    return Contents(
        source=Path(paths.snapshot or folder),
        position=None,
        parts=parts,
        recalibrators={name: body for name, body in documents.items() if body is not None},
        records=records,
        complaints=complaints,
    )


def _tried(read: Callable[[], bytes], complaints: list[str]) -> bytes | None:
    try:
        return read()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        complaints.append(f"{error} It is not taken over.")
        return None
