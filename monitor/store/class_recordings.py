"""Class probabilities of recorded detections, read from `.npz` files with their true classes.

The file as a whole is checked here: shapes and types. Which rows can be used is for the measures
to say.
"""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy.special import softmax

from monitor.frames.space import BoolArray, FloatArray, IntArray
from monitor.statistics.class_statistics import NO_TRUTH
from monitor.store.recordings import RECALIBRATED
from monitor.store.stored_arrays import AnyArray
from monitor.store.tables import (
    ArrayColumns,
    RecordingError,
    asked_rows,
    check_numbers,
    check_shape,
    coded,
    reading,
    renamed,
    tracks_of,
)

# Arrays of C values a row, or of M times C.
_OPINIONS = ("prob", "logits")

# Arrays of one value a row.
_ONE_A_ROW = ("label", "track", "gt_id", "seq", "t", "stamp_ns")

# Others of one value a row, which are not looked at, and written as they are.
_BESIDE = ("class", "frame", "score", "ignore")

# How far off a softmax a probability may be: one written with two decimals is.
_ROUNDING = 0.01


@dataclass(frozen=True, slots=True)
class ClassRecording:
    """The selected rows of a file, in file order: N detections, C classes.

    probabilities   (N, C) the softmax of the logits where there are some, else as recorded; the
                    mean of the opinions where there are several
    label           (N,) true class; −1 where there is none
    labelled        whether the file has labels at all
    opinions        (N, M, C); None where the file has a single vector a row
    gaussians       whether the file has means besides, of the same detections
    logits          (N, C) or (N, M, C) as recorded; None where there are none
    class_names     (C,) names of the classes; empty where the file does not name them
    track           (N,) id of the true object, NO_TRACK where unknown; None without such an array
    sequence_index  (N,) number of the sequence that the track belongs to
    time_s          (N,) array t, in seconds
    stamp_ns        (N,) array stamp_ns
    beside          (N,) each, the arrays of one value a row as the file has them, without label
    names           of all arrays of the file
    """

    probabilities: FloatArray
    label: IntArray
    opinions: FloatArray | None
    gaussians: bool
    logits: FloatArray | None = None
    class_names: tuple[str, ...] = ()
    track: IntArray | None = None
    sequence_index: IntArray | None = None
    time_s: FloatArray | None = None
    stamp_ns: IntArray | None = None
    labelled: bool = True
    beside: Mapping[str, AnyArray] = field(default_factory=dict)
    names: tuple[str, ...] = ()


def read_class_recording(
    path: str | Path, rows: slice | None = None, names_here: Mapping[str, str] | None = None
) -> ClassRecording | None:
    """Reads the class probabilities of a file; None where it has none, as a CSV file never has.

    Arrays are prob [N,C], or [N,M,C] with M opinions a row; logits in its place, or beside it
    of the same opinions: then the logits are used, and prob has to be their softmax. Optional
    label [N], in 0 … C − 1, with −1 or NaN for no truth, class_names [C], and track or gt_id,
    seq, t and stamp_ns of one value a row. Arrays class, frame, score and ignore are kept for
    whoever writes the rows again where they have one value a row, and other arrays are left
    alone.

    rows        row numbers in the file, from 0; None = all
    names_here  names of this project → names of the file's arrays
    raises      RecordingError, naming file, array and shape
    """
    path = Path(path)
    if not path.name.endswith(".npz"):
        return None
    with reading(path, "Give a readable archive of arrays (docs/files.md)."):
        arrays, names = _load(path, names_here or {})
    if not any(name in arrays for name in _OPINIONS):
        return None
    columns = _checked(path, arrays)
    chosen = np.arange(columns.count)[rows or slice(None)]
    if chosen.size == 0:
        asked = f" by {asked_rows(rows)}" if rows else ""
        raise RecordingError(
            f"{path}: none of {columns.count} rows of {_first(arrays)} is left{asked}. "
            "Ask for less, or record some."
        )
    there = columns.names
    label = np.full(chosen.size, NO_TRUTH)
    if "label" in there:
        label = columns.integers("label", chosen, NO_TRUTH)
    _, sequence_index = coded(columns, "seq", "")
    logits = arrays["logits"][chosen].astype(np.float64) if "logits" in arrays else None
    if logits is None:
        values = arrays["prob"][chosen].astype(np.float64)
    else:
        with np.errstate(invalid="ignore"):
            values = softmax(logits, axis=-1)
        if "prob" in arrays:
            _check_softmax(path, arrays["prob"][chosen].reshape(values.shape), values, chosen)
    # An opinion that is infinite makes its row NaN, and that is refused later.
    with np.errstate(invalid="ignore", over="ignore"):
        probabilities = values if values.ndim == 2 else values.mean(axis=1)
    return ClassRecording(
        probabilities=probabilities,
        label=label,
        opinions=None if values.ndim == 2 else values,
        gaussians="mean" in names,
        logits=logits,
        class_names=_class_names(path, arrays),
        track=tracks_of(columns, chosen),
        sequence_index=sequence_index[chosen],
        time_s=columns.floats("t", chosen) if "t" in there else None,
        stamp_ns=columns.integers("stamp_ns", chosen) if "stamp_ns" in there else None,
        labelled="label" in there,
        beside={name: columns.values(name)[chosen] for name in there if name != "label"},
        names=names,
    )


def require_labels(path: str | Path, recording: ClassRecording) -> None:
    """Raises RecordingError where the file has no labels, and so nothing to fit to or judge by."""
    if not recording.labelled:
        raise RecordingError(
            f"{path}: there are class probabilities, but no array 'label'. Save the true class of "
            "each row as label, -1 where there is none."
        )


def _load(path: Path, names_here: Mapping[str, str]) -> tuple[dict[str, AnyArray], tuple[str, ...]]:
    """The arrays that have to do with class probabilities, and the names of all in the file."""
    wanted = (*_OPINIONS, *_ONE_A_ROW, "class_names")
    arrays: dict[str, AnyArray] = {}
    with zipfile.ZipFile(path), np.load(path, allow_pickle=False) as archive:
        member = renamed(path, {name: name for name in archive.files}, names_here)
        names = tuple(member)
        if not any(name in names for name in _OPINIONS):
            return arrays, names
        arrays |= {name: archive[member[name]] for name in wanted if name in names}
        for name in _BESIDE:
            # What is not looked at may be anything, an array of objects too.
            with contextlib.suppress(ValueError):
                arrays |= {name: archive[member[name]]} if name in names else {}
    for name, array in list(arrays.items()):
        # NumPy hands out the bytes of a member that does not begin as an array does.
        if not isinstance(array, np.ndarray):
            if name in wanted:
                raise ValueError(f"{name} is no array")
            del arrays[name]
    return arrays, names


def _first(arrays: dict[str, AnyArray]) -> str:
    """Which of the arrays of opinions says how many rows and classes there are."""
    return next(name for name in _OPINIONS if name in arrays)


def _checked(path: Path, arrays: dict[str, AnyArray]) -> ArrayColumns:
    """Returns the columns of one value a row, once all shapes have been checked."""
    first = _first(arrays)
    shape = arrays[first].shape
    for name in [name for name in _OPINIONS if name in arrays]:
        check_numbers(path, name, arrays[name])
        own = arrays[name].shape
        if len(own) not in (2, 3) or own[-1] < 2 or (len(own) == 3 and own[1] == 0):
            raise RecordingError(
                f"{path}: {name} has shape {own}. Save it as [N, C], or [N, M, C] with M opinions "
                "a row; C at least 2: a binary classifier has two columns."
            )
    if "logits" in arrays and "prob" in arrays:
        theirs = arrays["logits"].shape
        if _each_opinion(theirs) != _each_opinion(shape):
            raise RecordingError(
                f"{path}: logits has shape {theirs}, but prob has {shape}. Save both for the same "
                "rows, opinions and classes, or one of them."
            )
    for name in _ONE_A_ROW:
        if name in arrays:
            check_shape(path, name, arrays[name], shape[:1], f"{first} has {shape}")
    kept = (name for name in (*_ONE_A_ROW, *_BESIDE) if name in arrays)
    one_a_row = {name: arrays[name] for name in kept if arrays[name].shape == shape[:1]}
    return ArrayColumns(path, shape[0], one_a_row)


def _each_opinion(shape: tuple[int, ...]) -> tuple[int, ...]:
    """[N, C] is [N, 1, C]."""
    return shape if len(shape) == 3 else (shape[0], 1, shape[-1])


def _check_softmax(path: Path, prob: AnyArray, made: FloatArray, rows: IntArray) -> None:
    """Raises RecordingError where probabilities are not those of the logits beside them.

    Rows of which either is not finite are left to whoever looks at single rows.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(prob - made).reshape(rows.size, -1).max(axis=1)
    differ = np.flatnonzero(apart > _ROUNDING)
    if differ.size:
        row = differ[0]
        raise RecordingError(
            f"{path}: prob[{rows[row]}] is not the softmax of logits[{rows[row]}], but up to "
            f"{apart[row]:.2g} apart, as are {differ.size - 1} others. Save the logits that prob "
            "was made of, or one of them."
        )


def _class_names(path: Path, arrays: dict[str, AnyArray]) -> tuple[str, ...]:
    if "class_names" not in arrays:
        return ()
    classes = arrays[_first(arrays)].shape[-1]
    names = arrays["class_names"]
    text = tuple(names.astype(np.str_).ravel().tolist())
    if names.shape != (classes,) or len(set(text)) < classes:
        raise RecordingError(
            f"{path}: class_names is {names.tolist()}, but there are {classes} classes. "
            "Save as many different names, or leave the array out."
        )
    return text


def write_classes(
    path: Path,
    recording: ClassRecording,
    rejected: BoolArray | None = None,
    version: str | None = None,
) -> frozenset[str]:
    """Writes a recording as an .npz archive: prob as it was read, and what the file has besides of
    one value a row. Returns the names of the arrays written.

    rejected  (N,) detections that are too uncertain, to be written beside them
    version   of the recalibrator that made the probabilities
    """
    opinions = recording.probabilities if recording.opinions is None else recording.opinions
    arrays: dict[str, AnyArray] = {"prob": opinions, **recording.beside}
    if recording.labelled:
        arrays["label"] = recording.label
    if recording.class_names:
        arrays["class_names"] = np.array(recording.class_names)
    if rejected is not None:
        arrays["rejected"] = rejected
    if version is not None:
        arrays[RECALIBRATED] = np.full(recording.label.size, version)
    np.savez_compressed(path, allow_pickle=False, **arrays)
    return frozenset(arrays)
