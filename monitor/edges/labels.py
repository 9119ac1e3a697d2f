"""Labelled objects from `.csv` and `.csv.gz` files, to hold tracks against."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from monitor.calibration.space import FloatArray, IntArray
from monitor.edges.columns import RecordingError, TextColumns, coded
from monitor.edges.files import OBJECT
from monitor.edges.tables import SUFFIXES, read_table
from monitor.tracking.labels import Labels


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
    unless the detections have none; any others. Rows of other sequences and classes may hold
    anything.

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
            name: labels.of(np.flatnonzero((of_sequence[rows] == s) & (of_class[rows] == c)))
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
    return Labels(frame, id, time_s, position.reshape(len(dimensions), rows.size).T)


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
    """Raise RecordingError where an object has two labels in a frame, of whatever class."""
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
