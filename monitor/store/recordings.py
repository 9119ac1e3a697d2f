"""Recorded detections as arrays: from tables, archives, files of benchmarks and arrays in memory.

Means, covariances and ground truth come from named columns or from arrays. The file as a whole is
checked: names, shapes, symmetry. A file is read whole; a recording holds only the rows that were
asked for. docs/files.md tells people how such a file looks.
"""

from __future__ import annotations

import csv
import gzip
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np

from monitor.frames.space import (
    MOST_DIMENSIONS,
    BoolArray,
    Dimension,
    DimensionKind,
    FloatArray,
    IntArray,
    Space,
)
from monitor.frames.words import Format
from monitor.store.column_names import listed, offered
from monitor.store.formats import box_of, dimensions_of, format_of, read_format
from monitor.store.gaussians import (
    ONE_A_ROW,
    ArrayGaussians,
    ColumnGaussians,
    array_gaussians,
    column_gaussians,
)
from monitor.store.stored_arrays import (
    AnyArray,
    ArchiveArray,
    archive_array,
    column_values,
    parquet_columns,
)
from monitor.store.tables import (
    BOX,
    SUFFIXES,
    ArrayColumns,
    Columns,
    RecordingError,
    all_of_one,
    asked_rows,
    coded,
    frames_of,
    open_bytes,
    read_table,
    reading,
    renamed,
    seconds_of,
    stamps_of,
    tracks_of,
)

# The only class of a file without classes.
OBJECT = "object"


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
    ignore          (N,) whether the detection counts as neither true nor false; it has no truth
    last_frame      highest frame number of each sequence in the whole file; empty without frames
    stamp_ns        (N,) time of the frame as the file has it, in ns
    others          names of what the file holds besides means, covariances and truth
    unused          those among them that were not looked at
    names           of all that the file holds
    beside          further columns that were asked for, (N,) each, as text
    matched         how many labels of another file had which outcome; None: truth came along
    converted       what times were converted from, for people; '' where they are as the file's
    between         (N, 2) rows of that file that the truth lies between, the nearer first, twice
                    the same where it is a label's own; −1 without truth. None: truth came along
    row             (N,) number of each row in the file, from 0
    box             names of a box seen from above: centre, length, width, heading
    assumed         (N,) rows of which the file has no covariance, so that theirs is assumed. The
                    space is `Space.with_assumed` if these are all
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
    unused: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    beside: Mapping[str, AnyArray] = field(default_factory=dict)
    matched: Mapping[str, int] | None = None
    converted: str = ""
    between: IntArray | None = None
    row: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    box: tuple[str, ...] = BOX
    assumed: BoolArray = field(default_factory=lambda: np.zeros(0, bool))

    @property
    def bare(self) -> bool:
        """Tells whether no row has a covariance."""
        return bool(self.assumed.all())

    def part(self, rows: slice) -> Recording:
        """Gives consecutive rows, as views."""
        n = self.class_index.size
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        found: dict[str, Any] = {
            name: value[rows]
            for name, value in values.items()
            if isinstance(value, np.ndarray) and value.shape[:1] == (n,)
        }
        beside = {name: value[rows] for name, value in self.beside.items()}
        return replace(self, **found, beside=beside)


# Detections or labels: the path of a file, or arrays by name.
Source: TypeAlias = str | Path | Mapping[str, AnyArray]

# Stands for a path where there is none.
IN_MEMORY = Path("detections")

# The column, or array, with the version of the recalibrator that `apply` has applied.
RECALIBRATED = "recalibrator"

# Columns and arrays that are read where they exist.
_KNOWN = frozenset((*ONE_A_ROW, "prob", "logits", "label", "class_names", RECALIBRATED))


def not_used(recording: Recording) -> str | None:
    """Says which columns were not used, and for what they may be meant; None: all were."""
    if not recording.unused:
        return None
    guess = offered(recording.names)
    perhaps = f". Perhaps {guess}" if guess else ""
    tracked = recording.track is not None or {"gt_id", "track"} & {*recording.names}
    if not tracked and "gt_id" not in guess:
        perhaps += (
            ". No column names the object of a row, so that intervals are too narrow: if one of "
            "these does, give --map gt_id=…"
        )
    return f"not used: {', '.join(recording.unused)}{perhaps}"


@dataclass(frozen=True, slots=True)
class RecordingReader:
    """Chosen rows of a file, whose Gaussians are read when they are asked for.

    about  all that is known of the rows but their Gaussians, and their numbers in the file
    n      how many are chosen
    """

    about: Recording
    n: int
    _source: ColumnGaussians | ArrayGaussians
    _chosen: IntArray | None

    def part(self, rows: slice) -> Recording:
        """Reads consecutive rows. Raises RecordingError."""
        part = self.about.part(rows)
        row = np.arange(rows.start, rows.stop) if self._chosen is None else self._chosen[rows]
        found = self._source.read(self.about.space.names, row)
        # What is neither right nor wrong is not measured, and nothing is fitted on it.
        without = ~np.isfinite(found.truth).all(axis=1)
        if part.ignore is not None:
            without |= part.ignore
        if without.any():
            found.truth[without] = np.nan
        space = self.about.space
        return replace(
            part,
            space=space.with_assumed if found.assumed.all() else space,
            mean=found.mean,
            covariance=found.covariance,
            diagonal=found.diagonal,
            truth=found.truth,
            row=row,
            assumed=found.assumed,
        )


def read_recording(path: Source, **asked: Any) -> Recording:
    """Reads recorded detections at once, as open_recording does. Raises RecordingError."""
    reader = open_recording(path, **asked)
    return reader.part(slice(0, reader.n))


def open_recording(
    path: Source,
    *,
    dimensions: tuple[str, ...] | None = None,
    classes: tuple[str, ...] = (),
    where: tuple[tuple[str, str], ...] = (),
    rows: slice | None = None,
    angles: tuple[str, ...] = ("yaw", "heading"),
    names_here: Mapping[str, str] | None = None,
    deviations: Mapping[str, float] | None = None,
    measured: tuple[str, ...] = (),
    fitted: tuple[str, ...] = (),
    beside: tuple[str, ...] = (),
    kind: Format | None = None,
    opened: Callable[[Path], IO[bytes]] = open_bytes,
) -> RecordingReader:
    """Opens recorded detections, with their covariance and the truth where these are there.

    Columns are <dim>, var_<dim> or std_<dim>, cov_<a>_<b> or cov_<a><b> in either order,
    gt_<dim>; optional seq, frame, t, class, score, gt_id, ignore, and any others. A row has
    truth if all gt_<dim> of the dimensions asked for are there, and gt_id where that column
    exists. NPZ arrays are mean [N,K], cov [N,K,K] or var [N,K] or std [N,K] (the first of
    them that is there), gt [N,K] with NaN for no truth; optional dimensions [K], and one value
    a row: class, stamp_ns, track and the optional columns above.

    path             of a file, or arrays by name: columns, or mean [N,K] and the rest
    dimensions       which, and in which order; None = all, in file order
    classes          keep these only; () = all
    where            (column, text) pairs that must all hold; an array's value is compared as text
    rows             row numbers in the file as it stands, from 0, before classes and where
    angles           names of dimensions in radians that wrap
    names_here       names of this project → names of the file's columns or arrays
    deviations       σ of dimensions without variance, in the unit of the dimension
    measured, fitted names of labels, and dimensions of a recalibrator: those of a file without
                     any variance are found by them
    beside           further columns to keep, as text
    kind             format of the file; None: by its look
    opened           opens a table for its bytes, as in read_table
    raises           RecordingError, naming file, field and value
    """
    ours_of = {theirs: ours for ours, theirs in (names_here or {}).items()}
    where = tuple((ours_of.get(name, name), text) for name, text in where)
    beside = tuple(ours_of.get(name, name) for name in beside)
    asked = deviations or {}, dimensions, measured, fitted
    source, there = _open(path, names_here or {}, asked, kind, opened)
    path = source.columns.path
    parts = source.parts
    others = tuple(name for name in there if name not in parts)
    columns = source.columns
    chosen, classes, class_index = _select(columns, classes, where, rows)
    names = source.dimensions if dimensions is None else dimensions
    _check_dimensions(path, names, source.dimensions)
    ignore = columns.flags("ignore", chosen) if "ignore" in columns.names else None
    frames = None
    if "frame" in columns.names:
        frames = frames_of(columns, np.arange(columns.count))
    sequences, sequence_index, last_frame = _sequences(columns, chosen, frames)
    named = names_here or {}
    stamp_ns, of_stamp = stamps_of(columns, chosen, named)
    time_s, of_time = seconds_of(columns, chosen, named)
    if time_s is None and stamp_ns is not None:
        # Counted from the start: a float64 holds no nanoseconds since 1970.
        start = stamps_of(columns, np.arange(columns.count), named)[0]
        time_s = (stamp_ns - (stamp_ns if start is None else start).min()) * 1e-9
    space = Space(
        tuple(
            Dimension(name, "rad", DimensionKind.ANGLE) if name in angles else Dimension(name)
            for name in names
        )
    )
    nothing = np.zeros((0, space.k))
    about = Recording(
        space=space,
        mean=nothing,
        covariance=nothing[:, :, None],
        diagonal=False,
        truth=nothing,
        classes=classes,
        class_index=class_index,
        sequences=sequences,
        sequence_index=sequence_index,
        frame=frames if frames is None or chosen.size == columns.count else frames[chosen],
        time_s=time_s,
        score=columns.floats("score", chosen, np.nan) if "score" in columns.names else None,
        track=tracks_of(columns, chosen),
        ignore=ignore,
        last_frame=last_frame,
        stamp_ns=stamp_ns,
        converted=" ".join(filter(None, (of_time, of_stamp))),
        others=others,
        names=tuple(there),
        unused=tuple(name for name in others if name not in {*_KNOWN, *dict(where), *beside}),
        beside={name: columns.values(name)[chosen].astype(np.str_) for name in beside},
        box=columns.box,
    )
    n = chosen.size
    return RecordingReader(about, n, source, None if n == columns.count else chosen)


def read_columns(
    path: Source,
    names_here: Mapping[str, str],
    kind: Format | None = None,
    opened: Callable[[Path], IO[bytes]] = open_bytes,
    in_memory: Path = IN_MEMORY,
) -> Columns:
    """Reads named columns: of a file of rows, or arrays by name.

    kind       format of the file; None: by its look
    in_memory  stands for the path of arrays
    raises     RecordingError
    """
    if isinstance(path, Mapping):
        columns = {name: column_values(np.asarray(values)) for name, values in path.items()}
        sizes = {name: values.shape for name, values in columns.items()}
        if len({shape[:1] for shape in sizes.values()}) > 1 or any(
            len(shape) != 1 for shape in sizes.values()
        ):
            raise RecordingError(f"{in_memory}: columns must be of one length, but are {sizes}.")
        count = next(iter(sizes.values()))[0] if sizes else 0
        return ArrayColumns(in_memory, count, renamed(in_memory, columns, names_here))
    path = Path(path)
    if path.is_dir():
        return _read_folder(path, names_here, kind)
    kind = kind or format_of(path)
    if kind is not Format.TABLE:
        columns = read_format(path, kind)
        count = next(iter(columns.values())).size
        renamed_columns = renamed(path, columns, names_here)
        named = box_of(kind, names_here), dimensions_of(kind, names_here)
        return ArrayColumns(path, count, renamed_columns, *named)
    if path.name.endswith(".parquet"):
        return _read_parquet(path, names_here)
    if path.name != "-" and not path.name.endswith(SUFFIXES):
        raise RecordingError(
            f"{path}: the name must end in .csv, .csv.gz, .parquet, .json or .txt, or, of "
            "detections, .npz; - reads CSV from standard input."
        )
    return read_table(path, names_here, opened)


def _read_folder(path: Path, names_here: Mapping[str, str], kind: Format | None) -> Columns:
    """Reads the sequences of a benchmark, one .txt file each, named as the sequence."""
    files = sorted(path.glob("*.txt"))
    if not files or kind is Format.TABLE:
        raise RecordingError(
            f"{path}: is a folder without .txt files of sequences. Name a file in it."
        )
    kinds = [kind or format_of(file) for file in files]
    parts = [read_format(file, one) for file, one in zip(files, kinds, strict=True)]
    names = [name for name in parts[0] if all(name in part for part in parts)]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in names}
    sizes = [part[names[0]].size for part in parts]
    columns["seq"] = np.repeat([file.stem for file in files], sizes)
    named = box_of(kinds[0], names_here), dimensions_of(kinds[0], names_here)
    return ArrayColumns(path, sum(sizes), renamed(path, columns, names_here), *named)


def check_readable(path: Source | None) -> None:
    """Raises RecordingError where a file needs a package that is not installed."""
    if isinstance(path, str | Path) and str(path).endswith(".parquet"):
        try:
            import_module("pyarrow.parquet")
        except ImportError:
            raise RecordingError(
                f"{path}: pyarrow is not installed, which reads Parquet. Install it with "
                "pip install 'calibration-monitor[parquet]'."
            ) from None


def _read_parquet(path: Path, names_here: Mapping[str, str]) -> ArrayColumns:
    check_readable(path)
    columns = parquet_columns(path, partial(reading, path, "Give a readable Parquet file."))
    count = next((column.shape[0] for column in columns.values()), 0)
    return ArrayColumns(path, count, renamed(path, columns, names_here))


def _open(
    path: Source,
    names_here: Mapping[str, str],
    asked: tuple[Mapping[str, float], tuple[str, ...] | None, tuple[str, ...], tuple[str, ...]],
    kind: Format | None,
    opened: Callable[[Path], IO[bytes]],
) -> tuple[ColumnGaussians | ArrayGaussians, tuple[str, ...]]:
    """Opens a file: its Gaussians, and the names of all that it holds.

    asked  deviations, dimensions, and names that may be some, as in column_gaussians
    """
    mean = path.get(names_here.get("mean", "mean")) if isinstance(path, Mapping) else None
    if isinstance(path, Mapping) and mean is not None and mean.ndim == 2:
        arrays = renamed(IN_MEMORY, path, names_here)
        return array_gaussians(IN_MEMORY, arrays, asked[0]), tuple(arrays)
    if isinstance(path, Mapping) or not Path(path).name.endswith(".npz"):
        source = column_gaussians(read_columns(path, names_here, kind, opened), *asked)
        return source, source.columns.names
    path = Path(path)
    opened_here = partial(reading, path, "Give a readable file of recorded detections.")
    members: dict[str, AnyArray | ArchiveArray] = {}
    with (
        opened_here(),
        zipfile.ZipFile(path) as zipped,
        np.load(path, allow_pickle=False) as archive,
    ):
        for name in archive.files:
            try:
                members[name] = archive_array(archive, zipped, path, name, opened_here)
            except ValueError as error:
                raise RecordingError(
                    f"{path}: array {name!r} cannot be read: it holds Python objects, or is "
                    "damaged. Save numbers or text."
                ) from error
            if not isinstance(members[name], np.ndarray | ArchiveArray):
                raise RecordingError(f"{path}: {name!r} is no array. Save numbers or text.")
        members = renamed(path, members, names_here)
        return array_gaussians(path, members, asked[0]), tuple(members)


def _check_dimensions(path: Path, names: tuple[str, ...], there: tuple[str, ...]) -> None:
    unknown = [name for name in names if name not in there]
    if unknown:
        problem = f"there is no dimension {unknown[0]!r} with a variance"
    elif not names:
        problem = "no dimension is asked for"
    elif len(names) > MOST_DIMENSIONS:
        problem = f"{len(names)} dimensions are more than {MOST_DIMENSIONS}; choose by --dimensions"
    elif len(set(names)) < len(names):
        problem = f"a dimension is asked for twice in {', '.join(names)}"
    else:
        return
    raise RecordingError(f"{path}: {problem}. Dimensions there are: {listed(there)}.")


def _select(
    columns: Columns,
    classes: tuple[str, ...],
    where: tuple[tuple[str, str], ...],
    rows: slice | None,
) -> tuple[IntArray, tuple[str, ...], IntArray]:
    """Numbers of the rows asked for, the classes, and the class of each of these rows."""
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
        values = [(name, text, coded(columns, name, "")[0]) for name, text in where]
        remedy = [
            f"{name} has {listed(found)}." for name, text, found in values if text not in found
        ]
        raise RecordingError(
            f"{columns.path}: none of {columns.count} rows is left"
            + (
                f" by {' and '.join(asked)}. {' '.join(remedy) or 'Ask for less.'}"
                if asked
                else ": there is only a header. Add a row for each detection."
            )
        )
    classes = classes or there
    return chosen, classes, all_of_one(chosen.size) if len(classes) == 1 else index[chosen]


def _sequences(
    columns: Columns, chosen: IntArray, frames: IntArray | None
) -> tuple[tuple[str, ...], IntArray, dict[str, int]]:
    """Selected sequences, the one of each selected row, and the last frame of each in the file.

    frames  of all rows of the file; None where it has none
    """
    names, index = coded(columns, "seq", columns.path.name.split(".")[0])
    used, selected = np.zeros(1, np.int64), all_of_one(chosen.size)
    if len(names) > 1:
        used, places = np.unique(index[chosen], return_inverse=True)
        selected = places.astype(np.int64)
    last_frame: dict[str, int] = {}
    if frames is not None:
        last = np.full(len(names), np.iinfo(np.int64).min)
        np.maximum.at(last, index, frames)
        last_frame = dict(zip(names, last.tolist(), strict=True))
    return tuple(names[i] for i in used), selected, last_frame


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Quantiles of N detections in K dimensions at T levels.

    values  (N, K, T) in the units of the file; NaN where a detection is no usable Gaussian
    tau     (T,)
    """

    values: FloatArray
    tau: FloatArray


def write_columns(
    target: Path,
    source: Path,
    names_here: Mapping[str, str],
    recording: Recording,
    rejected: BoolArray | None,
    version: str,
    kind: Format | None = None,
) -> None:
    """Writes the rows of a recording as the columns that they came from, with other Gaussians.

    Columns keep their names and order; what the file had no column for is added behind them. Rows
    whose covariance is assumed have none.

    target      .csv or .csv.gz
    source      file that the recording was read from, with names_here and kind
    rejected    (N,) detections that are too uncertain; None: no column
    version     of the recalibrator that made the Gaussians
    """
    table = read_columns(source, {}, kind)
    cells = {name: table.values(name)[recording.row].astype(np.str_) for name in table.names}
    names, covariance = recording.space.names, recording.covariance
    ours_of = {theirs: ours for ours, theirs in names_here.items()}

    def spread(values: FloatArray) -> AnyArray:
        """Leaves the cells of rows without a covariance empty."""
        return np.where(recording.assumed, "", _numbers(values))

    for column in cells:
        _, *pair = ours_of.get(column, column).split("_")
        if ours_of.get(column, column).startswith("cov_") and len({*pair} & {*names}) == 1:
            raise RecordingError(
                f"{source}: {column} is a covariance with a dimension that --dimensions leaves "
                "out, and would not fit the new variances. Leave --dimensions out, or write .npz."
            )
    for i, name in enumerate(names):
        cells[names_here.get(name, name)] = _numbers(recording.mean[:, i])
        if recording.bare:
            continue
        deviation = names_here.get(f"std_{name}", f"std_{name}")
        if deviation in cells:
            # Rows that are refused stay as they are: a negative deviation is read as −σ².
            variances = covariance[:, i, i]
            cells[deviation] = spread(np.sign(variances) * np.sqrt(np.abs(variances)))
        else:
            variance = names_here.get(f"var_{name}", f"var_{name}")
            cells[variance] = spread(covariance[:, i, i])
        for j in range(i):
            pairs = ((names[j], name), (name, names[j]))
            spelled = [f"cov_{a}{between}{b}" for a, b in pairs for between in ("_", "")]
            there = [one for one in spelled if names_here.get(one, one) in cells]
            if there or covariance[:, i, j].any():
                column = there[0] if there else spelled[0]
                cells[names_here.get(column, column)] = spread(covariance[:, i, j])
    if rejected is not None:
        cells["rejected"] = rejected.astype(np.int64).astype(np.str_)
    cells[RECALIBRATED] = np.full(recording.row.size, version)
    opened = gzip.open if target.name.endswith(".gz") else open
    with opened(target, "wt", encoding="utf-8", newline="") as text:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(cells)
        writer.writerows(zip(*(column.tolist() for column in cells.values()), strict=True))


def _numbers(values: FloatArray) -> AnyArray:
    """(n,) the shortest text that reads as the very same numbers."""
    return np.array([repr(value) for value in values.tolist()], np.str_)


def write_estimates(
    path: Path,
    recording: Recording,
    quantiles: Quantiles | None = None,
    rejected: BoolArray | None = None,
    version: str | None = None,
) -> frozenset[str]:
    """Writes a recording as an .npz archive: Gaussians and truth, and what is known of each row.

    A covariance that is assumed is written as NaN, which is none; where all are, as no array.

    quantiles  to be written beside them, as quantiles and tau
    rejected   (N,) detections that are too uncertain, likewise
    version    of the recalibrator that made the Gaussians
    returns    the names of the arrays written
    """
    covariance = np.where(recording.assumed[:, None, None], np.nan, recording.covariance)
    variance = np.diagonal(covariance, axis1=1, axis2=2)
    diagonal, bare = recording.diagonal, recording.bare
    arrays: dict[str, AnyArray | None] = {
        "mean": recording.mean,
        "var": variance if diagonal and not bare else None,
        "cov": covariance if not (diagonal or bare) else None,
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
        RECALIBRATED: None if version is None else np.full(recording.mean.shape[0], version),
    }
    known = {name: values for name, values in arrays.items() if values is not None}
    np.savez_compressed(path, allow_pickle=False, **known)
    return frozenset(known)
