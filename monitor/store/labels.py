"""Reads labels in a file of their own, for the sequences and dimensions of recorded detections.

Which detection a label belongs to is decided in `matching`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from monitor.frames.space import BoolArray, FloatArray, IntArray
from monitor.store.column_names import meant, some_of
from monitor.store.recordings import (
    NO_TRACK,
    OBJECT,
    Recording,
    frames_of,
    seconds_of,
    stamps_of,
    tracks_of,
)
from monitor.store.tables import Columns, RecordingError, coded


@dataclass(frozen=True, slots=True)
class LabelTable:
    """Labelled objects of a file, m rows.

    sequence  (m,) of which sequence of the detections; −1 for none of them
    frame     (m,) frame number; None where objects are found by their time
    time_ns   (m,) None where objects are found by their frame
    classes   the labeller's names
    class_index, id  (m,) the id is NO_TRACK where there is none
    position  (m, K)
    ignore    (m,) neither right nor wrong
    converted  what times were converted from, for people; '' where they are as the file's
    """

    sequence: IntArray
    frame: IntArray | None
    time_ns: IntArray | None
    classes: tuple[str, ...]
    class_index: IntArray
    id: IntArray
    position: FloatArray
    ignore: BoolArray
    converted: str = ""


def read_labels(
    recording: Recording, columns: Columns, names_here: Mapping[str, str]
) -> LabelTable:
    """Reads labels for the sequences and dimensions of a recording. Raises RecordingError.

    names_here  names of this project → names of the columns in the file
    """
    m, rows = columns.count, np.arange(columns.count)
    sequence = np.zeros(m, np.int64)
    if "seq" in columns.names:
        names, index = coded(columns, "seq", "")
        place = {name: i for i, name in enumerate(recording.sequences)}
        sequence = np.array([place.get(name, -1) for name in names], np.int64)[index]
    elif len(recording.sequences) > 1:
        offer = offer_of(columns, "seq")
        raise RecordingError(
            f"{columns.path}: there is no column 'seq', but the detections are of "
            f"{len(recording.sequences)} sequences. {f'Give {offer}, or add' if offer else 'Add'} "
            f"it, with the names {some_of(recording.sequences)}."
        )
    by_frame = "frame" in columns.names and recording.frame is not None
    time_ns, converted = None, ""
    if not by_frame:
        time_ns, converted = _times(recording, columns, rows, names_here)
    classes, class_index = coded(columns, "class", OBJECT)
    id = tracks_of(columns, rows)
    names = recording.space.names
    return LabelTable(
        sequence=sequence,
        frame=frames_of(columns, rows) if by_frame else None,
        time_ns=time_ns,
        classes=classes,
        class_index=class_index,
        id=np.full(m, NO_TRACK) if id is None else id,
        position=np.stack([columns.floats(name, rows, np.nan) for name in names], axis=1),
        ignore=columns.flags("ignore", rows) if "ignore" in columns.names else np.zeros(m, bool),
        converted=converted,
    )


def _times(
    recording: Recording, columns: Columns, rows: IntArray, names_here: Mapping[str, str]
) -> tuple[IntArray, str]:
    """(m,) ns on the clock of the detections, and what they were converted from.

    Raises RecordingError without a common clock.
    """
    stamps, converted = stamps_of(columns, rows, names_here)
    if recording.stamp_ns is not None and stamps is not None:
        return stamps, converted
    seconds, converted = seconds_of(columns, rows, names_here)
    if recording.time_s is not None and recording.stamp_ns is None and seconds is not None:
        return np.rint(seconds * 1e9).astype(np.int64), converted
    wanted = ["frame"] if recording.frame is not None else []
    wanted += ["t"] if recording.time_s is not None and recording.stamp_ns is None else []
    offer = offer_of(columns, *wanted) or "--label-map"
    raise RecordingError(
        f"{columns.path}: labels and detections share no column of frame, t and stamp_ns, so no "
        f"label finds its frame. Add one to both files, or name it by --map, or by {offer}."
    )


def offer_of(columns: Columns, *wanted: str) -> str:
    """Offers --label-map for the first column that may be one of those wanted; '' without any."""
    guesses = meant(columns.names).items()
    return next((f"--label-map {ours}={name}" for ours, name in guesses if ours in wanted), "")
