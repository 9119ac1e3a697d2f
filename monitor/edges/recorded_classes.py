"""Class probabilities of recorded detections, and their true classes, from `.npz` files.

Checks what the file as a whole promises: shapes and types. Which rows can be used is for the
measures to say.
"""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.special import softmax

from monitor.calibration.class_rows import NO_TRUTH
from monitor.calibration.space import BoolArray, FloatArray, IntArray
from monitor.edges.columns import AnyArray, ArrayColumns, RecordingError, coded
from monitor.edges.files import NO_TRACK

# Arrays of C values a row, or of M times C.
_OPINIONS = ("prob", "logits")
# Arrays of one value a row.
_ONE_A_ROW = ("label", "track", "gt_id", "seq", "t", "stamp_ns")


@dataclass(frozen=True, slots=True)
class ClassRecording:
    """The selected rows of a file, in file order: N detections, C classes.

    probabilities   (N, C) as recorded, else the softmax of the logits; the mean of the opinions
                    where there are several
    label           (N,) true class; −1 where there is none
    opinions        (N, M, C); None where the file has a single vector a row
    gaussians       whether the file has means besides, of the same detections
    logits          (N, C) or (N, M, C) as recorded; None where there are none
    class_names     (C,) names of the classes; empty where the file does not name them
    track           (N,) id of the true object, NO_TRACK where unknown; None without such an array
    sequence_index  (N,) number of the sequence that the track belongs to
    time_s          (N,) array t, in seconds
    stamp_ns        (N,) array stamp_ns
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


def read_class_recording(path: str | Path, rows: slice | None = None) -> ClassRecording | None:
    """Read the class probabilities of a file; None where it has none, as a CSV file never has.

    Arrays are prob [N,C], or [N,M,C] with M opinions a row, and label [N], in 0 … C − 1, with
    −1 or NaN for no truth; logits of the same N and C beside prob or in its place; optional
    class_names [C], and track or gt_id, seq, t and stamp_ns of one value a row. Other arrays
    are left alone.

    rows     row numbers in the file, from 0; None = all
    raises   RecordingError, naming file, array and shape
    """
    path = Path(path)
    if not path.name.endswith(".npz"):
        return None
    try:
        arrays, gaussians = _load(path)
    except (OSError, EOFError, ValueError, zlib.error, zipfile.BadZipFile) as error:
        raise RecordingError(
            f"{path}: cannot be read ({error}). Give a readable archive with prob and label "
            "as numbers."
        ) from error
    if not any(name in arrays for name in _OPINIONS):
        return None
    columns = _checked(path, arrays)
    chosen = np.arange(columns.count)[rows or slice(None)]
    if chosen.size == 0:
        asked = (
            f" by rows {rows.start or 0}:{'' if rows.stop is None else rows.stop}" if rows else ""
        )
        raise RecordingError(
            f"{path}: none of {columns.count} rows of {_first(arrays)} is left{asked}. "
            "Ask for less, or record some."
        )
    there = columns.names
    _, sequence_index = coded(columns, "seq", "")
    logits = arrays["logits"][chosen].astype(np.float64) if "logits" in arrays else None
    if "prob" in arrays:
        values = arrays["prob"][chosen].astype(np.float64)
    else:
        assert logits is not None
        with np.errstate(invalid="ignore"):
            values = softmax(logits, axis=-1)
    # An opinion that is infinite makes its row NaN, and that is refused later.
    with np.errstate(invalid="ignore", over="ignore"):
        probabilities = values if values.ndim == 2 else values.mean(axis=1)
    return ClassRecording(
        probabilities=probabilities,
        label=columns.integers("label", chosen, NO_TRUTH),
        opinions=None if values.ndim == 2 else values,
        gaussians=gaussians,
        logits=logits,
        class_names=_class_names(path, arrays),
        track=_track(columns, chosen),
        sequence_index=sequence_index[chosen],
        time_s=columns.floats("t", chosen) if "t" in there else None,
        stamp_ns=columns.integers("stamp_ns", chosen) if "stamp_ns" in there else None,
    )


def _load(path: Path) -> tuple[dict[str, AnyArray], bool]:
    """The arrays of class probabilities, and whether there are Gaussians beside them."""
    wanted = (*_OPINIONS, *_ONE_A_ROW, "class_names")
    with zipfile.ZipFile(path), np.load(path, allow_pickle=False) as archive:
        gaussians = "mean" in archive.files
        arrays = {}
        if any(name in archive.files for name in _OPINIONS):
            arrays = {name: archive[name] for name in wanted if name in archive.files}
    for name, array in arrays.items():
        # NumPy hands out the bytes of a member that does not begin as an array does.
        if not isinstance(array, np.ndarray):
            raise ValueError(f"{name} is no array")
    return arrays, gaussians


def _first(arrays: dict[str, AnyArray]) -> str:
    """Which of the arrays of opinions says how many rows and classes there are."""
    return next(name for name in _OPINIONS if name in arrays)


def _checked(path: Path, arrays: dict[str, AnyArray]) -> ArrayColumns:
    """What is one value a row, once all shapes have been looked at."""
    first = _first(arrays)
    shape = arrays[first].shape
    for name in _OPINIONS:
        if name in arrays:
            _check_opinions(path, name, arrays[name])
    if "logits" in arrays and "prob" in arrays:
        theirs = arrays["logits"].shape
        if (theirs[0], theirs[-1]) != (shape[0], shape[-1]):
            raise RecordingError(
                f"{path}: logits has shape {theirs}, but prob has {shape}. Save both for the "
                f"same {shape[0]} rows and {shape[-1]} classes, or one of them."
            )
    if "label" not in arrays:
        raise RecordingError(
            f"{path}: there is {first}, but no array 'label'. Save the true classes as label "
            f"[{shape[0]}], -1 where there is none."
        )
    for name in _ONE_A_ROW:
        if name in arrays and arrays[name].shape != shape[:1]:
            raise RecordingError(
                f"{path}: {name} has shape {arrays[name].shape}, but {first} has {shape}. "
                f"Save {name} as [{shape[0]}]."
            )
    one_a_row = {name: arrays[name] for name in _ONE_A_ROW if name in arrays}
    return ArrayColumns(path, shape[0], one_a_row)


def _check_opinions(path: Path, name: str, array: AnyArray) -> None:
    shape = array.shape
    if array.dtype.kind not in "fiu":
        raise RecordingError(
            f"{path}: array {name!r} holds {array.dtype}, not numbers. Save it as floats."
        )
    if len(shape) not in (2, 3) or shape[-1] < 2 or (len(shape) == 3 and shape[1] == 0):
        raise RecordingError(
            f"{path}: {name} has shape {shape}. Save it as [N, C], or [N, M, C] with M opinions a "
            "row; C at least 2: a binary classifier has two columns."
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


def _track(columns: ArrayColumns, chosen: IntArray) -> IntArray | None:
    for name in ("gt_id", "track"):
        if name in columns.names:
            return columns.integers(name, chosen, NO_TRACK)
    return None


def write_classes(path: Path, recording: ClassRecording, rejected: BoolArray | None = None) -> None:
    """Write a recording as an .npz archive: prob as it was read, label, and names if known.

    rejected  (N,) detections that are too uncertain, to be written beside them
    """
    opinions = recording.probabilities if recording.opinions is None else recording.opinions
    arrays: dict[str, AnyArray] = {"prob": opinions, "label": recording.label}
    if recording.class_names:
        arrays["class_names"] = np.array(recording.class_names)
    if rejected is not None:
        arrays["rejected"] = rejected
    np.savez_compressed(path, allow_pickle=False, **arrays)
