"""Copies what the last release kept in another form into that of this one, once."""

from __future__ import annotations

import contextlib
import logging
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from monitor.store.entries import BROUGHT, FRAME, LABELS, Key
from monitor.store.ledger import (
    FILE,
    Bodies,
    LedgerFailed,
    LedgerWriter,
    UnusableLedger,
    beside,
    connected,
    failures,
)
from monitor.store.snapshot import sync_path

log = logging.getLogger(__name__)

_PARTITION = re.compile(r"p(-?[0-9]{1,19})\.sqlite")
_FIXED = struct.Struct("<qqq?")
_ROWS = (
    "SELECT * FROM (SELECT sequence, stream, frame_id, stamp_ns, crc, body, 0 FROM frames"
    " UNION ALL SELECT sequence, stream, frame_id, revision, crc, body, 1 FROM labels)"
    " ORDER BY abs(sequence) LIMIT 256 OFFSET ?"
)


def take_over(folder: Path) -> None:
    """Copies frames and labels, in a file a minute of event time, where there is no ledger yet.

    The files stay where they are. Rows that are not as they were written are left out.
    """
    path, half = folder / FILE, folder / f"{FILE}.half"
    found = [name for old in folder.glob("p*.sqlite") if (name := _PARTITION.fullmatch(old.name))]
    if path.exists() or not found:
        return
    writer = LedgerWriter(half, 1 << 62)
    try:
        for part in ("", "-wal", "-shm"):
            beside(half, part).unlink(missing_ok=True)
        writer.open()
        for name in found:
            for bodies in _bodies(folder / name[0], int(name[1])):
                writer.write(bodies, durable=False)
        writer.disconnect()
        half.replace(path)
        sync_path(folder)
    except (OSError, UnusableLedger) as error:
        writer.disconnect()
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
                    found.append((key, key.crc(body), body))
                yield found
    except (UnusableLedger, LedgerFailed, TypeError, ValueError, struct.error) as error:
        log.warning("pending: of %s, %d entries are taken over: %s", path, at, error)
