"""Tables of the ledger's database, and the statements that read and change them.

What the columns of an entry mean is said in `store/entries.py` (`Key`).
"""

from __future__ import annotations

from typing import Any, TypeAlias

from monitor.store.entries import BROUGHT, FRAME, LABELS

FILE = "ledger.db"
FORMAT = 2
APPLICATION = 0x63616C6C  # "call"

# Labels are synced one by one, and each touches some pages. Files of format 1 have larger ones.
PAGE = 4096  # bytes
WAL_PAGES = 1024  # until they are copied into the file, at most

SCHEMA = (
    f"PRAGMA application_id = {APPLICATION}",
    f"PRAGMA user_version = {FORMAT}",
    # The bodies of all labels that one commit writes to a partition, one behind the other; NULL
    # for frames, which are in a file that is named by the id. In format 1 they were here too.
    "CREATE TABLE blobs (id INTEGER PRIMARY KEY, partition INTEGER, body BLOB)",
    "CREATE INDEX blobs_by_partition ON blobs (partition)",
    # number: stamp of a frame, revision of labels; start and size: of the body within its blob.
    "CREATE TABLE entries (sequence INTEGER PRIMARY KEY, partition INTEGER, kind INTEGER,"
    " stream TEXT, frame_id INTEGER, number INTEGER,"
    " blob INTEGER, start INTEGER, size INTEGER, crc INTEGER)",
    "CREATE INDEX entries_by_frame ON entries (stream, frame_id, sequence)",
    "CREATE INDEX entries_by_partition ON entries (partition, sequence, size)",
    # Partitions that went: the last entry and the last blob that were there by then.
    "CREATE TABLE gone (partition INTEGER PRIMARY KEY, reason TEXT, sequence INTEGER,"
    " blob INTEGER)",
)
COLUMNS = "sequence, partition, kind, stream, frame_id, number, blob, start, size, crc"

# Each step of a statement gives up the interpreter and takes it again, in the way of the event
# loop: all rows of a commit are one step.
INSERT = (
    f"INSERT OR IGNORE INTO entries ({COLUMNS})"
    f" SELECT {', '.join(f'value ->> {column}' for column in range(10))} FROM json_each(?)"
)
WITHOUT_FRAME = (
    "SELECT value ->> 0 FROM json_each(?) WHERE NOT EXISTS (SELECT 1 FROM entries"
    " WHERE partition = value ->> 1 AND stream = value ->> 3 AND frame_id = value ->> 4"
    f" AND kind <> {LABELS} AND abs(sequence) < value ->> 0)"
)
# Rows whose number something else has: what is there was promised, and stays.
TAKEN = (
    "SELECT sequence FROM json_each(?) JOIN entries ON sequence = value ->> 0"
    f" WHERE value ->> 2 <> {BROUGHT}"
    " AND (stream, frame_id, crc) IS NOT (value ->> 3, value ->> 4, value ->> 9)"
)
RECENT = (
    "SELECT * FROM (SELECT sequence, stream, frame_id, number, partition FROM entries"
    f" WHERE sequence > 0 AND kind = {FRAME} ORDER BY sequence DESC LIMIT ?1)"
    " UNION ALL SELECT * FROM (SELECT -sequence, stream, frame_id, number, partition FROM entries"
    " WHERE sequence <= 0 ORDER BY sequence LIMIT ?1) ORDER BY 1 DESC LIMIT ?1"
)
FILES = "SELECT id, partition FROM blobs WHERE body IS NULL"
# Where the latest frames end: if the power fails, the disk may know them and not have them.
LATEST = (
    f"SELECT sequence, blob, coalesce(start + size, 0) FROM entries WHERE kind = {FRAME}"
    " ORDER BY sequence DESC LIMIT 8192"
)
# Rows with a value that no commit wrote, and with which SQLite could not count: sums and the next
# numbers are made of these columns. What else may be damaged is found by the checksum of an entry.
_FARTHEST = 1 << 62
NOT_OURS = (
    "DELETE FROM entries WHERE typeof(partition) <> 'integer' OR typeof(frame_id) <> 'integer'"
    f" OR sequence NOT BETWEEN -{_FARTHEST} AND {_FARTHEST}"
    " OR typeof(size) <> 'integer' OR size NOT BETWEEN 0 AND 1 << 40",
    f"DELETE FROM blobs WHERE id > {_FARTHEST} OR typeof(partition) <> 'integer'",
    "DELETE FROM gone WHERE typeof(reason) <> 'text' OR typeof(sequence) <> 'integer'"
    f" OR typeof(blob) <> 'integer' OR sequence > {_FARTHEST} OR blob > {_FARTHEST}",
)
MOST_RECENT = 65536  # frames whose names are given back at start

# With the frame that was written for labels alone: nothing else brings it.
REPLAYED = (
    f"SELECT {COLUMNS}, CASE kind WHEN {LABELS} THEN (SELECT f.sequence FROM entries AS f"
    " WHERE f.stream = e.stream AND f.frame_id = e.frame_id AND f.partition = e.partition"
    f" AND f.kind <> {LABELS} AND abs(f.sequence) < e.sequence"
    " ORDER BY abs(f.sequence) DESC, f.sequence DESC LIMIT 1) END"
    " FROM entries AS e WHERE sequence > ? ORDER BY sequence LIMIT 256"
)

# A sequence that no entry ever has.
NEVER = (1 << 63) - 1

Row: TypeAlias = tuple[Any, ...]
