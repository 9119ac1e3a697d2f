"""Reads what the version before this one left in files of its own, once, to go on from.

Those files are left as they are: from the first checkpoint on, state.db is what is gone on from.
"""

from __future__ import annotations

import contextlib
import logging
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from monitor.store.entries import BROUGHT, FRAME, LABELS, Bodies, Body, Key
from monitor.store.files import (
    STATISTICS,
    Kind,
    LedgerFailed,
    UnusableFile,
    beside,
    connected,
    failures,
    read_body,
    sync_path,
)
from monitor.store.ledger import LedgerWriter
from monitor.store.ledger.schema import FILE
from monitor.store.state import Contents, StateFile
from monitor.v1 import statistics_state_pb2 as pb

_DRIFT = Kind(b"caldrift", "drift", "Name one that a sidecar wrote as its [drift] path.")
_REGISTER = Kind(b"calrecal", "recalibrators", "It is no `state` of a [promotion] folder.")

# What ends the object of a line of the audit log: the CRC-32, in hexadecimal digits, of all that
# stands before.
_MARK = b',"crc32":"'


log = logging.getLogger(__name__)


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


def _mark(paths: PreviousPaths) -> Path:
    """The file that says that another folder has taken over what is there."""
    first = paths.snapshot or paths.recalibrators or paths.pending or paths.drift
    return Path(f"{first}.taken-over")


def mark_taken_over(paths: PreviousPaths, folder: Path) -> None:
    """Says beside the files that they were taken over, so that it does not happen again."""
    try:
        _mark(paths).write_text(f"Taken over into {folder}.\n", encoding="utf-8")
    except OSError as error:
        log.warning("state: %s cannot be written (%s)", _mark(paths), error.strerror)


def previous_contents(paths: PreviousPaths) -> Contents | None:
    """Reads what the version before left; None where there is nothing, or it was taken over."""
    if _mark(paths).exists():
        return None
    folder = Path(paths.recalibrators)
    sources = {
        "statistics": (paths.snapshot, STATISTICS),
        "drift": (paths.drift, _DRIFT),
        "register": (paths.recalibrators and str(folder / "state"), _REGISTER),
    }
    parts = {}
    for name, (path, kind) in sources.items():
        for source in (Path(path), Path(f"{path}.1")) if path else ():
            body = _tried(partial(read_body, source, kind))
            if body is not None:
                parts[name] = body
                break
    versions = sorted(folder.glob("versions/*.json")) if paths.recalibrators else []
    documents = {path.stem: _tried(path.read_bytes) for path in versions}
    records = []
    for name in ("history.jsonl.1", "history.jsonl") if paths.recalibrators else ():
        for line in (_tried((folder / name).read_bytes) or b"").splitlines():
            text, _, crc = line.rpartition(_MARK)
            if crc == b'%08x"}' % zlib.crc32(text):
                records.append(text + b"}")
    if not (parts or documents):
        return None
    position = None
    if body := parts.get("statistics"):
        try:
            message = pb.StatisticsState.FromString(body)
        except DecodeError:
            raise UnusableFile(f"{paths.snapshot}: no statistics of a sidecar.") from None
        position = message.progress.sequence if message.HasField("progress") else None
    return Contents(
        source=Path(paths.snapshot or folder),
        position=position,
        parts=parts,
        recalibrators={name: body for name, body in documents.items() if body is not None},
        records=records,
    )


def _tried(read: Callable[[], bytes]) -> bytes | None:
    try:
        return read()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("state: %s. It is not taken over.", str(error).rstrip("."))
        return None


_PARTITION = re.compile(r"p(-?[0-9]{1,19})\.sqlite")
_FIXED = struct.Struct("<qqq?")
_ROWS = (
    "SELECT * FROM (SELECT sequence, stream, frame_id, stamp_ns, crc, body, 0 FROM frames"
    " UNION ALL SELECT sequence, stream, frame_id, revision, crc, body, 1 FROM labels)"
    " ORDER BY abs(sequence) LIMIT 256 OFFSET ?"
)


def take_over(paths: PreviousPaths, folder: Path) -> None:
    """Copies frames and labels, in a file a minute of event time, where there is no state yet.

    Rows that are not as they were written are left out.

    folder  of the ledger that is to go on from them
    """
    path, half, old = folder / FILE, folder / f"{FILE}.half", Path(paths.pending)
    there = old.glob("p*.sqlite") if paths.pending else ()
    found = [name for one in there if (name := _PARTITION.fullmatch(one.name))]
    ours = path, *StateFile(folder).generations, _mark(paths)
    if any(map(Path.exists, ours)) or not found:
        return
    writer = LedgerWriter(half, 1 << 62, in_files=False)
    try:
        for part in ("", "-wal", "-shm"):
            beside(half, part).unlink(missing_ok=True)
        writer.open()
        for name in found:
            for bodies in _bodies(old / name[0], int(name[1])):
                writer.write(bodies, durable=False)
        writer.disconnect()
        half.replace(path)
        sync_path(folder)
    except (OSError, UnusableFile) as error:
        writer.disconnect()
        half.unlink(missing_ok=True)
        log.warning("pending: frames and labels of the last release are not taken over: %s", error)
        return
    log.warning("pending: %d files of the last release are now in %s", len(found), path)


def _bodies(path: Path, number: int) -> Iterator[Bodies]:
    at = 0
    try:
        with failures(path), contextlib.closing(connected(path, "ro")) as old:
            while rows := old.execute(_ROWS, (at,)).fetchall():
                at += len(rows)
                found: Bodies = []
                for sequence, stream, frame_id, told, crc, body, labels in rows:
                    kind = LABELS if labels else FRAME if sequence > 0 else BROUGHT
                    fixed = _FIXED.pack(frame_id, sequence, told or 0, told is None)
                    if zlib.crc32(body, zlib.crc32(stream.encode(), zlib.crc32(fixed))) != crc:
                        log.warning("pending: entry %d of %s is left out", sequence, path)
                        continue
                    key = Key(sequence, number, kind, stream, frame_id, told)
                    found.append(Body.of(key, (body,)))
                yield found
    except (UnusableFile, LedgerFailed, TypeError, ValueError, struct.error) as error:
        log.warning("pending: of %s, %d entries are taken over: %s", path, at, error)
