"""Reads recorded detections and labels of a fleet from Parquet, frame by frame.

Columns are those of docs/files.md, and `vehicle`. Frames are counted in counting.py.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np

from monitor.fleet.counting import NOBODY, Account, Detections, Objects
from monitor.frames.space import IntArray, packed_covariances
from monitor.statistics.clusters import ClusterArray
from monitor.store.recordings import OBJECT, Recording, read_columns, read_recording
from monitor.store.stored_arrays import AnyArray, column_values
from monitor.store.tables import Columns, RecordingError, coded, frames_of, seconds_of, stamps_of

# Columns of labels that are no dimensions.
_FACTS = frozenset(
    ("vehicle", "seq", "frame", "t", "stamp_ns", "class", "gt_id", "track", "ignore", "score")
)


_CLOCKS = ("t", "stamp_ns")


@dataclass(frozen=True, slots=True)
class Columnar:
    """Says how files are to be read.

    dimensions  which, and in which order; None: all, in file order
    angles      names of dimensions in radians that wrap
    names       names of this project → names of the columns of detections
    label_names likewise, of labels
    deviations  σ of dimensions without variance, in their unit
    """

    dimensions: tuple[str, ...] | None = None
    angles: tuple[str, ...] = ("yaw", "heading")
    names: Mapping[str, str] = field(default_factory=dict)
    label_names: Mapping[str, str] = field(default_factory=dict)
    deviations: Mapping[str, float] = field(default_factory=dict)


def detections_in(
    file: IO[bytes], name: str, how: Columnar, account: Account
) -> Iterator[Detections]:
    """Yields the frames of a file of detections; what cannot be used goes into the account.

    name    of the file, for messages
    raises  RecordingError
    """
    columns, rows = _table(file, name, how.names, account)
    if not rows:
        return
    seq, vehicle = columns.pop("seq"), columns.pop("vehicle")
    stream, names = _streams(vehicle, seq)
    recording = read_recording(
        columns | {"seq": stream},
        names_here=_clocks(how.names),
        dimensions=how.dimensions,
        angles=how.angles,
        deviations=how.deviations,
    )
    objects = _objects(columns)
    k = recording.space.k
    form = k if recording.diagonal else k * (k + 1) // 2
    covariance = packed_covariances(recording.covariance, form)
    if not how.deviations:
        covariance[recording.assumed] = 0.0  # which is none
    stamps = _stamps(recording)
    has_truth = bool(np.isfinite(recording.truth).all(axis=1).any())
    angles = tuple(one for one in recording.space.names if one in how.angles)
    sequence = recording.sequence_index
    for at in _frames(sequence, recording.frame, stamps):
        first = at[0]
        of, drive = names[recording.sequences[sequence[first]]]
        yield Detections(
            vehicle=of,
            stream=drive,
            frame_id=None if recording.frame is None else int(recording.frame[first]),
            stamp_ns=None if stamps is None else int(stamps[first]),
            dimensions=recording.space.names,
            angles=angles,
            classes=recording.classes,
            mean=recording.mean[at],
            covariance=covariance[at],
            class_index=recording.class_index[at],
            truth=recording.truth[at] if has_truth else None,
            object=None if objects is None else objects[at],
        )


def objects_in(file: IO[bytes], name: str, how: Columnar, account: Account) -> Iterator[Objects]:
    """Yields the labelled objects of a file, frame by frame; otherwise as detections_in."""
    arrays, rows = _table(file, name, how.label_names, account)
    if not rows:
        return
    stream, names = _streams(arrays.pop("vehicle"), arrays.pop("seq"))
    clocks = _clocks(how.label_names)
    columns = read_columns(arrays | {"seq": stream}, clocks, in_memory=Path(name))
    every = np.arange(columns.count)
    sequences, sequence = coded(columns, "seq", "")
    classes, class_index = coded(columns, "class", OBJECT)
    there = [one for one in columns.names if one not in _FACTS and arrays[one].dtype.kind in "fiub"]
    if not there:
        raise RecordingError(f"{name}: no column of labels has numbers. Use --label-map.")
    position = np.stack([columns.floats(one, every, np.nan) for one in there], axis=1)
    frame = frames_of(columns, every) if "frame" in columns.names else None
    stamps = _label_stamps(columns, every, clocks)
    objects = _objects(arrays)
    ignore = np.zeros(columns.count, bool)
    if "ignore" in columns.names:
        ignore = columns.flags("ignore", every)
    account["label_rows"] += columns.count
    for at in _frames(sequence, frame, stamps):
        first = at[0]
        of, drive = names[sequences[sequence[first]]]
        yield Objects(
            vehicle=of,
            stream=drive,
            frame_id=None if frame is None else int(frame[first]),
            stamp_ns=None if stamps is None else int(stamps[first]),
            dimensions=tuple(there),
            classes=classes,
            position=position[at],
            class_index=class_index[at],
            object=np.full(at.size, NOBODY, np.uint64) if objects is None else objects[at],
            ignore=ignore[at],
        )


def _table(
    file: IO[bytes], name: str, names_here: Mapping[str, str], account: Counter[str]
) -> tuple[dict[str, AnyArray], int]:
    """Reads a file as arrays by our names, with `vehicle` and `seq`, without rows of no frame.

    Times keep the names of the file, whose endings are their units.
    """
    from pyarrow import ArrowException, parquet  # the extra `parquet`

    try:
        found = parquet.read_table(file)
    except (ArrowException, OSError) as error:
        first = str(error).partition("\n")[0]
        raise RecordingError(f"{name}: it is no readable Parquet file: {first}") from None
    clocks = _clocks(names_here)
    ours = {theirs: one for one, theirs in names_here.items() if one not in clocks}
    arrays = {
        ours.get(column, column): column_values(values.to_numpy())
        for column, values in zip(found.column_names, found.columns, strict=True)
    }
    count = found.num_rows
    keys = {"frame", *(clocks.get(one, one) for one in _CLOCKS)} & arrays.keys()
    if not keys:
        raise RecordingError(
            f"{name}: no column of frame, stamp_ns and t says which rows are of one frame."
        )
    kept = np.ones(count, bool)
    for key in keys:
        if arrays[key].dtype.kind == "f":
            kept &= np.isfinite(arrays[key])
    account["rows"] += count
    account["refused_missing_frame_key"] += count - int(np.count_nonzero(kept))
    # As in files of one sequence: what has no name is named as the file.
    stem = PurePosixPath(name).name.split(".")[0]
    for key, otherwise in (("vehicle", ""), ("seq", stem)):
        arrays.setdefault(key, np.full(count, otherwise))
    return {key: values[kept] for key, values in arrays.items()}, int(np.count_nonzero(kept))


def _clocks(names_here: Mapping[str, str]) -> dict[str, str]:
    return {one: names_here[one] for one in _CLOCKS if one in names_here}


def _streams(vehicle: AnyArray, seq: AnyArray) -> tuple[AnyArray, dict[str, tuple[str, str]]]:
    """Numbers the pairs of vehicle and sequence of (n,) rows; returns them by number, too."""
    pairs = np.stack([vehicle.astype(np.str_), seq.astype(np.str_)])
    found, index = np.unique(pairs, axis=1, return_inverse=True)
    names = {str(i): (str(of), str(drive)) for i, (of, drive) in enumerate(found.T.tolist())}
    return index.ravel().astype(np.str_), names


def _objects(arrays: Mapping[str, AnyArray]) -> ClusterArray | None:
    """(n,) ids of objects: equal in all files, whether they are numbers or names."""
    values = next((arrays[name] for name in ("gt_id", "track") if name in arrays), None)
    if values is None:
        return None
    different, index = np.unique(values.astype(np.str_), return_inverse=True)
    ids = [
        NOBODY
        if text in ("", "nan", "-1", "-1.0")
        else int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
        for text in (one.removesuffix(".0") for one in different.tolist())
    ]
    return np.array(ids, np.uint64)[index]


def _stamps(recording: Recording) -> IntArray | None:
    if recording.stamp_ns is not None or recording.time_s is None:
        return recording.stamp_ns
    return np.rint(recording.time_s * 1e9).astype(np.int64)


def _label_stamps(
    columns: Columns, rows: IntArray, names_here: Mapping[str, str]
) -> IntArray | None:
    stamps, _ = stamps_of(columns, rows, names_here)
    if stamps is not None:
        return stamps
    seconds, _ = seconds_of(columns, rows, names_here)
    return None if seconds is None else np.rint(seconds * 1e9).astype(np.int64)


def _frames(sequence: IntArray, frame: IntArray | None, stamps: Any) -> Iterator[IntArray]:
    """Yields the rows of each frame, in file order."""
    key = stamps if frame is None else frame
    order = np.lexsort((key, sequence))
    cut = np.flatnonzero((np.diff(key[order]) != 0) | (np.diff(sequence[order]) != 0)) + 1
    yield from np.split(order, cut)
