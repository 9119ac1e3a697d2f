"""Carries the fold of counting.py on PySpark, by mapInArrow (`pip install pyspark`).

Workers must run the same Python as the driver: set PYSPARK_PYTHON.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa

from monitor.config import Config
from monitor.fleet.counting import Joined, as_bytes, counted, identity
from monitor.store.statistics_state import StoredState, parsed

Batches = Iterator[pa.RecordBatch]

_STATES = pa.schema([("key", pa.string()), ("state", pa.binary())])
_NAMED = pa.schema([("key", pa.string()), ("uploads", pa.binary()), ("state", pa.binary())])
_COUNTED = pa.schema([("key", pa.string()), ("state", pa.binary()), ("account", pa.string())])


def merge_states(states: Any) -> Any:
    """Adds up the states of each key, those that hold the same uploads once.

    states   DataFrame of key (string) and state (binary)
    returns  likewise, a row a key
    """
    named = states.mapInArrow(_named, _ddl(_NAMED)).dropDuplicates(["key", "uploads"])
    # By key twice: each partition adds up what it has, so that little travels.
    parts = named.mapInArrow(_merged, _ddl(_STATES))
    return parts.repartition("key").mapInArrow(_merged, _ddl(_STATES))


def count_frames(frames: Any, config: Config, latest_ns: int | None = None) -> Any:
    """Counts joined frames; the states that come out are to be merged.

    frames   DataFrame of piece (binary, counting.piece_key), detections and labels (binary, as
             counting.packed makes them; labels may be null)
    returns  a row of key (''), state and account (JSON) for each partition with frames
    """
    fold: Callable[[Batches], Batches] = partial(_counted, config=config, latest_ns=latest_ns)
    return frames.repartition("piece").mapInArrow(fold, _ddl(_COUNTED))


def _named(batches: Batches) -> Batches:
    for batch in batches:
        names = [_name(state) for state in batch["state"].to_pylist()]
        columns = [batch["key"], pa.array(names, pa.binary()), batch["state"]]
        yield pa.RecordBatch.from_arrays(columns, schema=_NAMED)


def _name(state: bytes) -> bytes:
    # Pieces of two streams may be equal, and each counts.
    name = identity(state)
    return os.urandom(16) if name == state else name


def _merged(batches: Batches) -> Batches:
    sums: dict[str, StoredState] = {}
    for batch in batches:
        for key, state in zip(batch["key"].to_pylist(), batch["state"].to_pylist(), strict=True):
            more = parsed(state)
            sums[key] = sums[key].merge(more) if key in sums else more
    states = [as_bytes(one) for one in sums.values()]
    columns = [pa.array(list(sums), pa.string()), pa.array(states, pa.binary())]
    yield pa.RecordBatch.from_arrays(columns, schema=_STATES)


def _counted(batches: Batches, config: Config, latest_ns: int | None) -> Batches:
    pieces: defaultdict[bytes, list[Joined]] = defaultdict(list)
    for batch in batches:
        for row in batch.to_pylist():
            pieces[row["piece"]].append((row["detections"], row["labels"]))
    for frames in pieces.values():
        state, account = counted(frames, config, latest_ns)
        row = {"key": "", "state": state, "account": json.dumps(account)}
        yield pa.RecordBatch.from_pylist([row], schema=_COUNTED)


def _ddl(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
