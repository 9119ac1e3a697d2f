"""Recorded detections as arrays, from `.csv`, `.csv.gz` and `.npz` files.

Means, covariances and ground truth come from named columns or from arrays. The file as a whole is
checked: names, shapes, symmetry. A file is read whole; a recording holds only the rows that were
asked for.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

import numpy as np

from monitor.frames.space import BoolArray, Dimension, DimensionKind, FloatArray, IntArray, Space
from monitor.store.tables import (
    SUFFIXES,
    AnyArray,
    ArrayColumns,
    Columns,
    RecordingError,
    TextColumns,
    asked_rows,
    check_numbers,
    check_shape,
    coded,
    read_table,
    reading,
)

# Largest |Σij − Σji| that passes as rounding, against σi σj.
_ASYMMETRY = 1e-6

# Arrays of an archive that are not one value a row.
_BLOCKS = ("mean", "cov", "var", "gt", "dimensions")

# Arrays that must be one value a row where they exist.
_ONE_A_ROW = ("class", "seq", "frame", "stamp_ns", "t", "score", "track", "gt_id", "ignore")


@dataclass(frozen=True, slots=True)
class Gaussians:
    """N detections in K dimensions.

    mean, truth  (N, K); truth NaN where there is none
    covariance   (N, K, K)
    diagonal     whether the file gives only variances of these dimensions
    """

    mean: FloatArray
    covariance: FloatArray
    diagonal: bool
    truth: FloatArray


def text_gaussians(columns: TextColumns) -> TextGaussians:
    """The Gaussians of a CSV file; its dimensions are those with a column var_<dimension>.

    Raises RecordingError when there is none.
    """
    names = columns.names
    dimensions = tuple(name.removeprefix("var_") for name in names if name.startswith("var_"))
    if not dimensions:
        raise RecordingError(
            f"{columns.path}: there is no column var_<dimension>, so no Gaussian. "
            f"Columns there are: {', '.join(names) or 'none'}."
        )
    return TextGaussians(columns, dimensions)


@dataclass(frozen=True, slots=True)
class TextGaussians:
    """The Gaussians of a CSV file; text_gaussians makes one."""

    columns: TextColumns
    dimensions: tuple[str, ...]

    def read(self, names: tuple[str, ...], rows: IntArray) -> Gaussians:
        n, k = rows.size, len(names)
        there = self.columns.names
        covariance_columns = self._covariance_columns()
        mean, truth = np.empty((n, k)), np.full((n, k), np.nan)
        covariance = np.zeros((n, k, k))
        has_truth = any(f"gt_{name}" in there for name in names)
        diagonal = True
        for i, name in enumerate(names):
            mean[:, i] = self.columns.floats(name, rows)
            covariance[:, i, i] = self.columns.floats(f"var_{name}", rows)
            if has_truth:
                truth[:, i] = self.columns.floats(f"gt_{name}", rows, np.nan)
            for j in range(i):
                column = covariance_columns.get(frozenset((name, names[j])))
                if column is not None:
                    diagonal = False
                    covariance[:, i, j] = self.columns.floats(column, rows)
                    covariance[:, j, i] = covariance[:, i, j]
        if "gt_id" in there:
            truth[self.columns.values("gt_id")[rows] == ""] = np.nan
        return Gaussians(mean, covariance, diagonal, truth)

    def _covariance_columns(self) -> dict[frozenset[str], str]:
        """Which column holds the covariance of which two dimensions."""
        found: dict[frozenset[str], str] = {}
        for column in self.columns.names:
            if not column.startswith("cov_"):
                continue
            pairs = {
                frozenset((a, b))
                for a, b in permutations(self.dimensions, 2)
                if column in (f"cov_{a}_{b}", f"cov_{a}{b}")
            }
            if len(pairs) != 1:
                raise RecordingError(
                    f"{self.columns.path}: column {column!r} names no two dimensions, or not only "
                    f"two. Dimensions there are: {', '.join(self.dimensions)}. "
                    "Rename it to cov_<a>_<b>."
                )
            pair = pairs.pop()
            if pair in found:
                raise RecordingError(
                    f"{self.columns.path}: columns {found[pair]!r} and {column!r} give the same "
                    "covariance. Keep one of them."
                )
            found[pair] = column
        return found


def array_gaussians(path: Path, arrays: dict[str, AnyArray]) -> ArrayGaussians:
    """The Gaussians of a NumPy archive; dimensions are named 0 … K−1 unless the file names them.

    Raises RecordingError when an array is missing or has the wrong shape or type.
    """
    there = ", ".join(arrays) or "none"
    if "mean" not in arrays:
        raise RecordingError(f"{path}: there is no array 'mean'. Arrays there are: {there}.")
    mean = arrays["mean"]
    if mean.ndim != 2 or mean.shape[1] == 0:
        raise RecordingError(
            f"{path}: mean has shape {mean.shape}. Save it as [N, K], K at least 1."
        )
    n, k = mean.shape
    if "cov" not in arrays and "var" not in arrays:
        raise RecordingError(
            f"{path}: there is neither 'cov' nor 'var'. Arrays there are: {there}."
        )
    for name, shape in {"mean": (n, k), "cov": (n, k, k), "var": (n, k), "gt": (n, k)}.items():
        if name not in arrays:
            continue
        check_shape(path, name, arrays[name], shape, f"mean has {mean.shape}")
        check_numbers(path, name, arrays[name])
    names = arrays.get("dimensions", np.arange(k)).astype(np.str_)
    if names.shape != (k,) or np.unique(names).size != k:
        raise RecordingError(
            f"{path}: dimensions is {names.tolist()}, but mean has {k} columns. "
            "Save as many different names."
        )
    for name in _ONE_A_ROW:
        if name in arrays:
            check_shape(path, name, arrays[name], (n,), f"there are {n} rows")
    others = {name: array for name, array in arrays.items() if name not in _BLOCKS}
    one_a_row = {name: array for name, array in others.items() if array.shape == (n,)}
    return ArrayGaussians(ArrayColumns(path, n, one_a_row), tuple(names.tolist()), arrays)


@dataclass(frozen=True, slots=True)
class ArrayGaussians:
    """The Gaussians of a NumPy archive; array_gaussians makes one."""

    columns: ArrayColumns
    dimensions: tuple[str, ...]
    arrays: Mapping[str, AnyArray]

    def read(self, names: tuple[str, ...], rows: IntArray) -> Gaussians:
        positions = np.array([self.dimensions.index(name) for name in names])
        block, arrays = np.ix_(rows, positions), self.arrays
        mean = arrays["mean"][block].astype(np.float64)
        truth = np.full(mean.shape, np.nan)
        if "gt" in arrays:
            truth = arrays["gt"][block].astype(np.float64)
        if "cov" in arrays:
            full = arrays["cov"][np.ix_(rows, positions, positions)].astype(np.float64)
            self._check_symmetry(full, rows)
            return Gaussians(mean, full, False, truth)
        # Not a product with the identity: 0 · inf would spread NaN.
        covariance = np.zeros((*mean.shape, positions.size))
        diagonal = np.arange(positions.size)
        covariance[:, diagonal, diagonal] = arrays["var"][block]
        return Gaussians(mean, covariance, True, truth)

    def _check_symmetry(self, covariance: FloatArray, rows: IntArray) -> None:
        transposed = covariance.transpose(0, 2, 1)
        with np.errstate(invalid="ignore"):
            sigma = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
            allowed = _ASYMMETRY * sigma[:, :, None] * sigma[:, None]
            skewed = (np.abs(covariance - transposed) > allowed).any(axis=(1, 2))
        if skewed.any():
            row = rows[int(np.argmax(skewed))]
            raise RecordingError(
                f"{self.columns.path}: cov[{row}] is not symmetric ({np.count_nonzero(skewed)} of "
                f"{rows.size} rows). Save (cov + cov transposed) / 2."
            )
        covariance += transposed.copy()
        covariance /= 2


# The only class of a file without classes.
OBJECT = "object"

# Number of a track in a row that has none.
NO_TRACK = -1


@dataclass(frozen=True, slots=True)
class Recording:
    """The selected rows of a file, in file order: N detections in K dimensions.

    mean, truth     (N, K) in the units of the file; rows of truth are NaN where there is none
    covariance      (N, K, K), symmetric; not checked to be positive definite
    diagonal        whether the file gives variances only, so that covariances are diagonal
    classes         names asked for, else all of the file, sorted; "object" if it has none
    class_index     (N,) position in classes
    sequences       names of the selected sequences, sorted; the file's name if it has none
    sequence_index  (N,) position in sequences
    frame           (N,) frame number
    time_s          (N,) seconds: column t, or stamp_ns counted from the file's lowest
    score           (N,) NaN where the cell is empty
    track           (N,) id of the true object, from gt_id or track; NO_TRACK where unknown.
                    Names are numbered: they say no more than which rows are of one object
    ignore          (N,) whether the detection counts as neither true nor false
    last_frame      highest frame number of each sequence in the whole file; empty without frames
    stamp_ns        (N,) time of the frame as the file has it, in ns
    others          names of what the file holds besides means, covariances and truth
    """

    space: Space
    mean: FloatArray
    covariance: FloatArray
    diagonal: bool
    truth: FloatArray
    classes: tuple[str, ...]
    class_index: IntArray
    sequences: tuple[str, ...]
    sequence_index: IntArray
    frame: IntArray | None
    time_s: FloatArray | None
    score: FloatArray | None
    track: IntArray | None
    ignore: BoolArray | None
    last_frame: dict[str, int]
    stamp_ns: IntArray | None = None
    others: tuple[str, ...] = ()


def read_recording(
    path: str | Path,
    *,
    dimensions: tuple[str, ...] | None = None,
    classes: tuple[str, ...] = (),
    where: tuple[tuple[str, str], ...] = (),
    rows: slice | None = None,
    angles: tuple[str, ...] = ("yaw", "heading"),
) -> Recording:
    """Reads detections that were recorded with their covariance, and the truth if it is there.

    CSV columns are <dim>, var_<dim>, cov_<a>_<b> or cov_<a><b> in either order, gt_<dim>;
    optional seq, frame, t, class, score, gt_id, ignore, and any others. A row has truth if
    all gt_<dim> of the dimensions asked for are there, and gt_id where that column exists.
    NPZ arrays are mean [N,K], cov [N,K,K] or var [N,K] (cov wins), gt [N,K] with NaN for no
    truth; optional dimensions [K], and one value a row: class, stamp_ns, track and the
    optional columns above.

    dimensions       which, and in which order; None = all, in file order
    classes          keep these only; () = all
    where            (column, text) pairs that must all hold; an array's value is compared as text
    rows             row numbers in the file as it stands, from 0, before classes and where
    angles           names of dimensions in radians that wrap
    raises           RecordingError, naming file, field and value
    """
    path = Path(path)
    source, others = _open(path)
    columns = source.columns
    chosen, classes, class_index = _select(columns, classes, where, rows)
    names = source.dimensions if dimensions is None else dimensions
    _check_dimensions(path, names, source.dimensions)
    found = source.read(names, chosen)
    found.truth[~np.isfinite(found.truth).all(axis=1)] = np.nan
    sequences, sequence_index, last_frame = _sequences(columns, chosen)
    return Recording(
        space=Space(
            tuple(
                Dimension(name, "rad", DimensionKind.ANGLE) if name in angles else Dimension(name)
                for name in names
            )
        ),
        mean=found.mean,
        covariance=found.covariance,
        diagonal=found.diagonal,
        truth=found.truth,
        classes=classes,
        class_index=class_index[chosen],
        sequences=sequences,
        sequence_index=sequence_index,
        frame=columns.integers("frame", chosen) if "frame" in columns.names else None,
        time_s=_time(columns, chosen),
        score=columns.floats("score", chosen, np.nan) if "score" in columns.names else None,
        track=tracks_of(columns, chosen),
        ignore=columns.flags("ignore", chosen) if "ignore" in columns.names else None,
        last_frame=last_frame,
        stamp_ns=columns.integers("stamp_ns", chosen) if "stamp_ns" in columns.names else None,
        others=others,
    )


def _open(path: Path) -> tuple[TextGaussians | ArrayGaussians, tuple[str, ...]]:
    """The Gaussians of a file, and the names of what it holds besides."""
    if path.name.endswith(SUFFIXES):
        source = text_gaussians(read_table(path))
        parts = {f"{part}{name}" for part in ("", "var_", "gt_") for name in source.dimensions}
        names = source.columns.names
        others = [name for name in names if name not in parts and not name.startswith("cov_")]
        return source, tuple(others)
    if not path.name.endswith(".npz"):
        raise RecordingError(f"{path}: the name must end in .csv, .csv.gz or .npz.")
    arrays: dict[str, AnyArray] = {}
    with (
        reading(path, "Give a readable file of recorded detections."),
        zipfile.ZipFile(path),
        np.load(path, allow_pickle=False) as archive,
    ):
        for name in archive.files:
            try:
                arrays[name] = archive[name]
            except ValueError as error:
                raise RecordingError(
                    f"{path}: array {name!r} cannot be read ({error}). Save numbers or text."
                ) from error
        others = [name for name in arrays if name not in _BLOCKS]
        return array_gaussians(path, arrays), tuple(others)


def _check_dimensions(path: Path, names: tuple[str, ...], there: tuple[str, ...]) -> None:
    unknown = [name for name in names if name not in there]
    if unknown:
        problem = f"there is no dimension {unknown[0]!r} with a variance"
    elif not names:
        problem = "no dimension is asked for"
    elif len(set(names)) < len(names):
        problem = f"a dimension is asked for twice in {', '.join(names)}"
    else:
        return
    raise RecordingError(f"{path}: {problem}. Dimensions there are: {', '.join(there)}.")


def _select(
    columns: Columns,
    classes: tuple[str, ...],
    where: tuple[tuple[str, str], ...],
    rows: slice | None,
) -> tuple[IntArray, tuple[str, ...], IntArray]:
    """Numbers of the rows asked for, the classes, and the class of every row of the file."""
    kept = np.zeros(columns.count, bool)
    kept[rows or slice(None)] = True
    for name, text in where:
        kept &= columns.values(name).astype(np.str_) == text
    there, index = coded(columns, "class", OBJECT)
    unknown = [name for name in classes if name not in there]
    if unknown:
        raise RecordingError(
            f"{columns.path}: there is no class {unknown[0]!r}. "
            f"Classes there are: {', '.join(there)}."
        )
    classes = tuple(dict.fromkeys(classes))
    if classes:
        position = {name: i for i, name in enumerate(classes)}
        index = np.array([position.get(name, -1) for name in there], np.int64)[index]
        kept &= index >= 0
    chosen = np.flatnonzero(kept)
    if chosen.size == 0:
        asked = [asked_rows(rows)] if rows else []
        asked += [f"class {', '.join(classes)}"] if classes else []
        asked += [f"{name}={text}" for name, text in where]
        raise RecordingError(
            f"{columns.path}: none of {columns.count} rows is left"
            + (f" by {' and '.join(asked)}. Ask for less." if asked else ". Record some.")
        )
    return chosen, classes or there, index


def _sequences(
    columns: Columns, chosen: IntArray
) -> tuple[tuple[str, ...], IntArray, dict[str, int]]:
    """Selected sequences, the one of each selected row, and the last frame of each in the file."""
    names, index = coded(columns, "seq", columns.path.name.split(".")[0])
    used, selected = np.unique(index[chosen], return_inverse=True)
    last_frame: dict[str, int] = {}
    if "frame" in columns.names:
        frame = columns.integers("frame", np.arange(columns.count))
        last = np.full(len(names), np.iinfo(np.int64).min)
        np.maximum.at(last, index, frame)
        last_frame = dict(zip(names, last.tolist(), strict=True))
    return tuple(names[i] for i in used), selected.astype(np.int64), last_frame


def _time(columns: Columns, chosen: IntArray) -> FloatArray | None:
    if "t" in columns.names:
        return columns.floats("t", chosen)
    if "stamp_ns" in columns.names:
        # Counted from the start: a float64 holds no nanoseconds since 1970.
        stamp = columns.integers("stamp_ns", np.arange(columns.count))
        since_start: FloatArray = (stamp[chosen] - stamp.min()) * 1e-9
        return since_start
    return None


def tracks_of(columns: Columns, chosen: IntArray) -> IntArray | None:
    """(M,) id of the true object of each row, NO_TRACK where unknown; None without such a column.

    A gt_id may be any text: where one is no whole number of 64 bits, all are names, which are
    numbered from 0 as they are sorted.

    Raises RecordingError where a track, or a gt_id of an array of numbers, is no whole number.
    """
    if "gt_id" in columns.names:
        names = columns.values("gt_id")
        try:
            return columns.integers("gt_id", chosen, NO_TRACK)
        except RecordingError:
            if names.dtype.kind != "U":
                raise
        different, number = np.unique(names[chosen], return_inverse=True)
        # The empty name comes first of all.
        return number.astype(np.int64) - int(different[0] == "")
    return columns.integers("track", chosen, NO_TRACK) if "track" in columns.names else None


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Quantiles of N detections in K dimensions at T levels.

    values  (N, K, T) in the units of the file; NaN where a detection is no usable Gaussian
    tau     (T,)
    """

    values: FloatArray
    tau: FloatArray


def write_estimates(
    path: Path,
    recording: Recording,
    quantiles: Quantiles | None = None,
    rejected: BoolArray | None = None,
) -> frozenset[str]:
    """Writes a recording as an .npz archive: Gaussians and truth, and what is known of each row.

    quantiles  to be written beside them, as quantiles and tau
    rejected   (N,) detections that are too uncertain, likewise
    returns    the names of the arrays written
    """
    step = np.arange(recording.space.k)
    variance = recording.covariance[:, step, step]
    arrays: dict[str, AnyArray | None] = {
        "mean": recording.mean,
        "var": variance if recording.diagonal else None,
        "cov": None if recording.diagonal else recording.covariance,
        "gt": recording.truth,
        "class": np.array(recording.classes)[recording.class_index],
        "seq": np.array(recording.sequences)[recording.sequence_index],
        "dimensions": np.array(recording.space.names),
        "quantiles": None if quantiles is None else quantiles.values,
        "tau": None if quantiles is None else quantiles.tau,
        "frame": recording.frame,
        "t": recording.time_s,
        "stamp_ns": recording.stamp_ns,
        "score": recording.score,
        "track": recording.track,
        "ignore": recording.ignore,
        "rejected": rejected,
    }
    known = {name: values for name, values in arrays.items() if values is not None}
    np.savez_compressed(path, allow_pickle=False, **known)
    return frozenset(known)
