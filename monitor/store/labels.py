"""Reads labels in a file of their own, for recorded detections and for tracks; scores tracks.

Which detection a label belongs to is decided in `matching`. Tracks are scored by MOTA and IDF1; the
scores come from motmetrics, which is imported only when asked for: it needs pandas, which has no
place in a sidecar. The `tracking` extra installs both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from monitor.frames.space import BoolArray, FloatArray, IntArray
from monitor.store.column_names import meant, some_of
from monitor.store.recordings import OBJECT, Recording
from monitor.store.tables import (
    NO_TRACK,
    SUFFIXES,
    Columns,
    RecordingError,
    TextColumns,
    coded,
    frames_of,
    read_table,
    seconds_of,
    stamps_of,
    tracks_of,
)
from monitor.tracking.quality import Labels, Pairs, Scene


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


def read_label_table(path: str | Path) -> TextColumns:
    """The columns of a file of labels. Raises RecordingError."""
    path = Path(path)
    if not path.name.endswith(SUFFIXES):
        raise RecordingError(f"{path}: the name must end in .csv or .csv.gz.")
    return read_table(path)


def labels_of(
    columns: TextColumns,
    *,
    sequences: tuple[str, ...],
    classes: tuple[str, ...],
    dimensions: tuple[str, ...],
) -> dict[str, dict[str, Labels]]:
    """Labels of the sequences and classes asked for: sequence → class → labels.

    One row a labelled object and frame. Columns frame, t in seconds, gt_id, and one for each
    dimension in the units of the detections; seq, unless there is a single sequence; class,
    unless the detections have none; ignore; any others. Rows of other sequences and classes may
    hold anything.

    raises  RecordingError, naming file, line, column and value
    """
    if "seq" not in columns.names and len(sequences) > 1:
        raise RecordingError(
            f"{columns.path}: there is no column 'seq', but {len(sequences)} sequences are played. "
            f"Add it, with the names {', '.join(sequences)}."
        )
    of_sequence = _chosen(
        columns, "seq", sequences, sequences[0], ("sequence", "Sequences", "--where")
    )
    of_class = _chosen(columns, "class", classes, OBJECT, ("class", "Classes", "--class"))
    rows = np.flatnonzero((of_sequence >= 0) & (of_class >= 0))
    labels = _labels(columns, rows, dimensions)
    _check_once(columns, labels, rows, of_sequence[rows])
    return {
        sequence: {
            name: labels.take(np.flatnonzero((of_sequence[rows] == s) & (of_class[rows] == c)))
            for c, name in enumerate(classes)
        }
        for s, sequence in enumerate(sequences)
    }


def _chosen(
    columns: TextColumns,
    column: str,
    asked: tuple[str, ...],
    otherwise: str,
    words: tuple[str, str, str],
) -> IntArray:
    """(count,) which of the names asked for each row has, −1 for none of them.

    otherwise  the name of all rows where there is no such column
    words      what a name is of, the same in the plural, and the option that asks for fewer
    """
    there, index = coded(columns, column, otherwise)
    missing = [name for name in asked if name not in there]
    if missing:
        what, plural, option = words
        raise RecordingError(
            f"{columns.path}: there is no label of {what} {missing[0]!r}. "
            f"{plural} there are: {', '.join(there) or 'none'}. Add labels, or play less with "
            f"{option}."
        )
    place = {name: i for i, name in enumerate(asked)}
    return np.array([place.get(name, -1) for name in there], np.int64)[index]


def _labels(columns: TextColumns, rows: IntArray, dimensions: tuple[str, ...]) -> Labels:
    frame, id = columns.integers("frame", rows), columns.integers("gt_id", rows)
    early = np.flatnonzero(frame < 0)
    if early.size:
        raise RecordingError(
            f"{columns.place(int(rows[early[0]]))}: frame is {frame[early[0]]}, but frames count "
            "from 0. Renumber the frames."
        )
    time_s = _finite(columns, "t", rows)
    position = np.array([_finite(columns, name, rows) for name in dimensions], np.float64)
    ignore = np.zeros(rows.size, bool)
    if "ignore" in columns.names:
        ignore = columns.flags("ignore", rows)
    return Labels(frame, id, time_s, position.reshape(len(dimensions), rows.size).T, ignore)


def _finite(columns: TextColumns, name: str, rows: IntArray) -> FloatArray:
    values = columns.floats(name, rows)
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise RecordingError(
            f"{columns.place(int(rows[bad[0]]))}: {name} is {values[bad[0]]}, not finite. "
            "Correct the cell or leave the row out."
        )
    return values


def _check_once(columns: TextColumns, labels: Labels, rows: IntArray, sequence: IntArray) -> None:
    """Raises RecordingError where an object has two labels in a frame, of whatever class."""
    keys = np.stack([sequence, labels.frame, labels.id])
    _, first, count = np.unique(keys, axis=1, return_index=True, return_counts=True)
    if (count == 1).all():
        return
    at = keys[:, first[count > 1][0]]
    again = np.flatnonzero((keys == at[:, None]).all(axis=0))[1]
    raise RecordingError(
        f"{columns.place(int(rows[again]))}: gt_id {at[2]} is labelled twice in frame {at[1]}. "
        "Give each object of a sequence an id of its own."
    )


HOW_TO_INSTALL = (
    "motmetrics is not installed: install it with pip install 'calibration-monitor[tracking]'."
)

# In the order of MotScores.
_METRICS = ["mota", "idf1", "num_switches", "num_false_positives", "num_misses"]


class NoMotmetrics(ImportError):
    """The package that matches tracks is not there."""


@dataclass(frozen=True, slots=True)
class MotScores:
    """CLEAR-MOT and identity scores.

    mota             1 − (misses + false positives + switches) / labels; NaN without labels
    idf1             share of labels and tracks that agree on who is who; NaN without either
    id_switches      matches of an object with another track than the last
    false_positives  tracks in a frame that were matched with nothing
    misses           labels that were matched with nothing
    """

    mota: float
    idf1: float
    id_switches: int
    false_positives: int
    misses: int


@dataclass(frozen=True, slots=True)
class Matched:
    """A sequence of scenes, matched.

    pairs     the matches
    partials  what motmetrics needs of it to score it together with others
    """

    pairs: Pairs
    partials: Mapping[str, Any]


def match(scenes: Sequence[Scene]) -> Matched:
    """Matches objects and tracks frame by frame: a pair stays together while it can.

    scenes  of frames 0, 1, 2 and so on
    raises  NoMotmetrics
    """
    package = motmetrics()
    accumulator = package.MOTAccumulator(auto_id=False)
    # It keeps ids as floating-point numbers, which do not hold 64 bits: it gets small ones.
    objects, object_id = _numbered([scene.objects for scene in scenes])
    tracks, track_id = _numbered([scene.tracks for scene in scenes])
    with package.lap.set_default_solver("scipy"):  # whichever others are installed
        for frame, scene in enumerate(scenes):
            accumulator.update(objects[frame], tracks[frame], scene.distance, frameid=frame)
        partials = package.metrics.create().compute(
            accumulator, metrics=_METRICS, return_dataframe=False, return_cached=True
        )
    events = accumulator.mot_events  # filtered anew each time it is read
    events = events[events["Type"].isin(["MATCH", "SWITCH"])]
    pairs = Pairs(
        frame=events.index.get_level_values("FrameId").to_numpy(dtype=np.int64),
        object=object_id[events["OId"].to_numpy(dtype=np.int64)],
        track=track_id[events["HId"].to_numpy(dtype=np.int64)],
    )
    return Matched(pairs, partials)


def scores(matched: Sequence[Matched]) -> MotScores:
    """Scores of sequences together: counts are added up before anything is divided."""
    # What compute_many(…, generate_overall=True) puts into its last row.
    found = (
        motmetrics()
        .metrics.create()
        .compute_overall(
            [one.partials for one in matched], metrics=_METRICS, return_dataframe=False
        )
    )
    mota, idf1, *counts = (found[name] for name in _METRICS)
    return MotScores(float(mota), float(idf1), *map(int, counts))


Ids = TypeVar("Ids", bound=np.integer[Any])


def _numbered(
    ids: Sequence[npt.NDArray[Ids]],
) -> tuple[list[npt.NDArray[np.int64]], npt.NDArray[Ids]]:
    """The ids of each frame as positions in the array of all different ones, which comes second."""
    different, position = np.unique(np.concatenate(ids), return_inverse=True)
    ends = np.cumsum([part.size for part in ids])[:-1]
    return np.split(position.astype(np.int64), ends), different


def motmetrics() -> ModuleType:
    """Imports the package. Raises NoMotmetrics."""
    try:
        return import_module("motmetrics")
    except ImportError as error:
        raise NoMotmetrics(HOW_TO_INSTALL) from error
