"""The Gaussians of recorded detections, found in named columns or in arrays.

Names, shapes and symmetry are checked here; whether a covariance is positive definite is for the
verbs to say. What else a file holds of a row is read in recordings.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

import numpy as np

from monitor.frames.space import BoolArray, FloatArray, IntArray
from monitor.store.column_names import (
    LOOKS_LIKE_SPREAD,
    listed,
    offered,
    other_than_dimensions,
)
from monitor.store.stored_arrays import AnyArray, ArchiveArray, rows_of, whole_of
from monitor.store.tables import (
    ArrayColumns,
    Columns,
    RecordingError,
    check_numbers,
    check_shape,
    no_column,
)

# Largest |Σij − Σji| that passes as rounding, against σi σj.
_ASYMMETRY = 1e-6

# Arrays of an archive that are not one value a row.
BLOCKS = ("mean", "cov", "var", "std", "gt", "dimensions")

# Arrays that must be one value a row where they exist.
ONE_A_ROW = ("class", "seq", "frame", "stamp_ns", "t", "score", "track", "gt_id", "ignore")

# Standard deviation that stands in where a file gives none, in the unit of the dimension: what the
# tracker takes by default, [tracker] missing_deviation.
ASSUMED_DEVIATION = 1.0


def assumed_deviations(names: Sequence[str], stated: Mapping[str, float] | None) -> FloatArray:
    """Gives the σ (K,) of rows without a variance; `stated` as of --assume-std, by dimension."""
    return np.array([(stated or {}).get(name, ASSUMED_DEVIATION) for name in names])


@dataclass(frozen=True, slots=True)
class Gaussians:
    """N detections in K dimensions.

    mean, truth  (N, K); truth NaN where there is none
    covariance   (N, K, K)
    diagonal     whether the file gives only variances of these dimensions
    assumed      (N,) rows of which the file gives no variance: their covariance is assumed
    """

    mean: FloatArray
    covariance: FloatArray
    diagonal: bool
    truth: FloatArray
    assumed: BoolArray


def column_gaussians(
    columns: Columns,
    deviations: Mapping[str, float],
    wanted: tuple[str, ...] | None = None,
    measured: tuple[str, ...] = (),
    fitted: tuple[str, ...] = (),
) -> ColumnGaussians:
    """Finds the Gaussians of named columns; dimensions are those with var_<d>, std_<d>.

    Where there is none at all, they are those of the deviations and those wanted; without these
    those fitted, those of the format, those with gt_<d>, or those measured elsewhere. Their
    variance is assumed.

    deviations  σ of dimensions for which the file, or some of its rows, have neither
    wanted      dimensions that are asked for; None: all
    measured    names that may be dimensions since labels have them
    fitted      dimensions of a recalibrator
    raises      RecordingError where there is no dimension, or one has both
    """
    names = columns.names
    spread: dict[str, str | float] = {}
    for name in names:
        kind, _, dimension = name.partition("_")
        if kind == "var" and dimension and dimension not in names:
            raise no_column(columns.path, dimension, names)
        if kind in ("var", "std") and dimension in names:
            if dimension in spread:
                raise RecordingError(
                    f"{columns.path}: there are var_{dimension} and std_{dimension}. Keep one."
                )
            spread[dimension] = name
    for dimension, deviation in deviations.items():
        if dimension not in names:
            raise no_column(columns.path, dimension, names)
        column = spread.setdefault(dimension, deviation)
        if isinstance(column, str) and not columns.blank(column, np.arange(columns.count)).any():
            raise RecordingError(
                f"{columns.path}: --assume-std {dimension}: the file has {column}. "
                "Leave the dimension out."
            )
    if not any(isinstance(column, str) for column in spread.values()):
        there = {*fitted} <= {*names}
        bare = wanted or (fitted if there and not spread else ())
        bare = bare or (() if spread else _without_variances(columns, measured))
        for dimension in bare:
            if dimension not in names:
                raise no_column(columns.path, dimension, names)
        spread |= dict.fromkeys((one for one in bare if one not in spread), ASSUMED_DEVIATION)
    if not spread:
        raise RecordingError(_no_gaussian(columns))
    return ColumnGaussians(columns, spread, deviations)


def _without_variances(columns: Columns, measured: tuple[str, ...]) -> tuple[str, ...]:
    """Finds the dimensions of a file without a single variance; none where one may be meant."""
    names, there = columns.names, {*columns.names}
    guess = offered(names)
    json = columns.path.suffix == ".json"
    if re.search(r"\b(?:var|std)_", guess) or (json and any(map(LOOKS_LIKE_SPREAD.search, names))):
        return ()
    if of_format := tuple(name for name in columns.dimensions if name in there):
        return of_format
    labelled = tuple(name for name in names if f"gt_{name}" in there)
    if labelled or not measured:
        return labelled
    others = {*ONE_A_ROW, *other_than_dimensions(names)}
    return tuple(n for n in names if n in measured and n not in others and _is_number(columns, n))


def _is_number(columns: Columns, name: str) -> bool:
    """Tells whether a column holds numbers."""
    try:
        columns.floats(name, np.arange(columns.count))
    except RecordingError:
        return False
    return True


_HOW_TO_NAME = (
    "Name the mean of each dimension as the dimension, such as x, and its variance var_x or its "
    "standard deviation std_x. Where the detector reports none, give its ground truth gt_x, or the "
    "dimensions by --dimensions x,y (docs/files.md; `calibration-monitor sample` writes an "
    "example)."
)


_HOW_TO_NAME_JSON = (
    "Give each object of nuScenes translation_var (3 numbers, of x, y, z), size_var or yaw_var, of "
    "COCO bbox_var, or _std in place of _var: variances in other fields are not used. Or give "
    "--assume-std x=0.3 (docs/files.md)."
)


def _no_gaussian(columns: Columns) -> str:
    """Says that a table holds no Gaussian, which of its columns may be meant, and what to do."""
    guess = offered(columns.names)
    understood = "var_" in guess or "std_" in guess
    how = _HOW_TO_NAME_JSON if columns.path.suffix == ".json" else _HOW_TO_NAME
    remedy = f"Give {guess}." if understood else how
    return (
        f"{columns.path}: no dimension has a mean and a variance. Columns there are: "
        f"{listed(columns.names)}. {remedy}"
    )


@dataclass(frozen=True, slots=True)
class ColumnGaussians:
    """The Gaussians of named columns; column_gaussians makes one.

    spread   of each dimension, the column of its variance or deviation, or its σ
    assumed  σ by dimension where all cells of a row are empty; ASSUMED_DEVIATION for the others
    """

    columns: Columns
    spread: Mapping[str, str | float]
    assumed: Mapping[str, float]

    @property
    def dimensions(self) -> tuple[str, ...]:
        return tuple(self.spread)

    @property
    def parts(self) -> frozenset[str]:
        """Names of the columns that make up means, covariances and truth."""
        found = {name for name in self.spread.values() if isinstance(name, str)}
        found |= {f"{part}{name}" for part in ("", "gt_") for name in self.spread}
        return frozenset(found | set(self._covariance_columns().values()))

    def read(self, names: tuple[str, ...], rows: IntArray) -> Gaussians:
        """Reads some dimensions of some rows. Raises RecordingError for what is no number."""
        n, k = rows.size, len(names)
        there = self.columns.names
        covariance_columns = self._covariance_columns()
        mean, truth = np.empty((n, k)), np.full((n, k), np.nan)
        covariance = np.zeros((n, k, k))
        has_truth = any(f"gt_{name}" in there for name in names)
        diagonal, bare = True, self._bare(names, rows)
        sigma = assumed_deviations(names, self.assumed)
        known: slice | IntArray = slice(None)
        if bare.any():
            known = np.flatnonzero(~bare)
        variance = np.array([self._variance(name, rows[known]) for name in names])
        # As on the wire, a covariance of zeros is none.
        none = (variance == 0).all(axis=0)
        if none.any():
            known = np.arange(n)[known]
            bare[known[none]], known, variance = True, known[~none], variance[:, ~none]
        for i, name in enumerate(names):
            mean[:, i] = self.columns.floats(name, rows)
            covariance[known, i, i] = variance[i]
            if has_truth:
                truth[:, i] = self.columns.floats(f"gt_{name}", rows, np.nan)
            for j in range(i):
                column = covariance_columns.get(frozenset((name, names[j])))
                if column is not None:
                    diagonal = False
                    covariance[known, i, j] = self.columns.floats(column, rows[known])
                    covariance[known, j, i] = covariance[known, i, j]
        if bare.any():
            covariance[bare] = np.diag(np.square(sigma))
        if "gt_id" in there:
            blank = self.columns.blank("gt_id", rows)
            if blank.any():
                truth[blank] = np.nan
        return Gaussians(mean, covariance, diagonal, truth, bare)

    def _bare(self, names: tuple[str, ...], rows: IntArray) -> BoolArray:
        """Finds rows whose cells of variances are all empty, or not there at all, (n,)."""
        bare = np.ones(rows.size, bool)
        for column in (self.spread[name] for name in names):
            if isinstance(column, str):
                bare &= self.columns.blank(column, rows)
        return bare

    def _variance(self, name: str, rows: IntArray) -> FloatArray:
        spread = self.spread[name]
        if isinstance(spread, float):
            return np.full(rows.size, spread**2)
        values = self.columns.floats(spread, rows)
        # A negative deviation must not become a sound variance.
        return values if spread.startswith("var_") else values * np.abs(values)

    def _covariance_columns(self) -> dict[frozenset[str], str]:
        """Finds which column holds the covariance of which two dimensions."""
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
                guess = offered(self.columns.names)
                raise RecordingError(
                    f"{self.columns.path}: column {column!r} must name two dimensions, and names "
                    "none or several pairs. Dimensions, each with a mean and a variance, are: "
                    f"{', '.join(self.dimensions)}. "
                    + (f"Give {guess}." if guess else "Rename it to cov_<a>_<b>.")
                )
            pair = pairs.pop()
            if pair in found:
                raise RecordingError(
                    f"{self.columns.path}: columns {found[pair]!r} and {column!r} give the same "
                    "covariance. Keep one of them."
                )
            found[pair] = column
        return found


def array_gaussians(
    path: Path, arrays: Mapping[str, AnyArray | ArchiveArray], deviations: Mapping[str, float]
) -> ArrayGaussians:
    """Finds the Gaussians of an archive; dimensions are named 0 … K−1 unless the file names them.

    deviations  σ by dimension where rows have none; ASSUMED_DEVIATION for the others
    raises      RecordingError when an array is missing or has the wrong shape or type
    """
    there = ", ".join(arrays) or "none"
    if "mean" not in arrays:
        classes = not arrays.keys().isdisjoint(("prob", "logits"))
        instead = " To class probabilities, fit a --method such as temperature." if classes else ""
        raise RecordingError(
            f"{path}: there is no array 'mean'. Save means as mean [N, K], covariances as cov "
            f"[N, K, K] or variances as var [N, K] if there are any, and ground truth as gt [N, K] "
            f"(docs/files.md). Arrays there are: {there}.{instead}"
        )
    mean = arrays["mean"]
    if len(mean.shape) != 2 or mean.shape[1] == 0:
        raise RecordingError(
            f"{path}: mean has shape {mean.shape}. Save it as [N, K], K at least 1."
        )
    n, k = mean.shape
    spreads = {"cov", "var", "std"} & arrays.keys()
    if not spreads and (likely := next(filter(LOOKS_LIKE_SPREAD.search, arrays), None)):
        raise RecordingError(
            f"{path}: there is no 'cov' [N, K, K], 'var' [N, K] or 'std' [N, K]. If it is "
            f"{likely!r}, give --map cov={likely}, or var or std in place of cov. Arrays there "
            f"are: {there}."
        )
    shapes = {"mean": (n, k), "cov": (n, k, k), "var": (n, k), "std": (n, k), "gt": (n, k)}
    for name, shape in shapes.items():
        if name not in arrays:
            continue
        check_shape(path, name, arrays[name], shape, f"mean has {mean.shape}")
        check_numbers(path, name, arrays[name])
    names = whole_of(arrays.get("dimensions", np.arange(k))).astype(np.str_)
    if names.shape != (k,) or np.unique(names).size != k:
        raise RecordingError(
            f"{path}: dimensions is {names.tolist()}, but mean has {k} columns. "
            "Save as many different names."
        )
    for name in ONE_A_ROW:
        if name in arrays:
            check_shape(path, name, arrays[name], (n,), f"there are {n} rows")
    unknown = [name for name in deviations if name not in names]
    if unknown:
        raise RecordingError(
            f"{path}: --assume-std {unknown[0]}: there is no such dimension. Dimensions there are: "
            f"{', '.join(names)}."
        )
    others = {name: array for name, array in arrays.items() if name not in BLOCKS}
    one_a_row = {name: array for name, array in others.items() if array.shape == (n,)}
    columns = ArrayColumns(path, n, one_a_row)
    found = ArrayGaussians(columns, tuple(names.tolist()), arrays, deviations)
    if deviations and not found.read(found.dimensions, np.arange(n)).assumed.any():
        raise RecordingError(
            f"{path}: --assume-std: each row has its {min(spreads)}. Leave the option out."
        )
    return found


@dataclass(frozen=True, slots=True)
class ArrayGaussians:
    """The Gaussians of a NumPy archive; array_gaussians makes one.

    deviations  σ by dimension of rows without any; ASSUMED_DEVIATION for the others
    """

    columns: ArrayColumns
    dimensions: tuple[str, ...]
    arrays: Mapping[str, AnyArray | ArchiveArray]
    deviations: Mapping[str, float]

    @property
    def parts(self) -> frozenset[str]:
        """Names of the arrays that make up means, covariances and truth."""
        return frozenset(BLOCKS)

    def read(self, names: tuple[str, ...], rows: IntArray) -> Gaussians:
        positions = np.array([self.dimensions.index(name) for name in names])
        arrays, step = self.arrays, np.arange(positions.size)
        mean = self._read("mean", rows, positions)
        truth = np.full(mean.shape, np.nan)
        if "gt" in arrays:
            truth = self._read("gt", rows, positions)
        diagonal = "cov" not in arrays
        # Not a product with the identity: 0 · inf would spread NaN.
        if not diagonal:
            covariance = self._read("cov", rows, positions)
        else:
            covariance = np.zeros((*mean.shape, positions.size))
            covariance[:, step, step] = np.nan
        if diagonal and "var" in arrays:
            covariance[:, step, step] = self._read("var", rows, positions)
        elif diagonal and "std" in arrays:
            deviation = self._read("std", rows, positions)
            covariance[:, step, step] = deviation * np.abs(deviation)
        # A row of NaN has no covariance, nor has one of zeros; a single NaN is a mistake in one.
        variance = np.diagonal(covariance, axis1=1, axis2=2)
        bare: BoolArray = (np.isnan(variance) | (variance == 0)).all(axis=1)
        if bare.any():
            covariance[bare] = np.diag(np.square(assumed_deviations(names, self.deviations)))
        if not diagonal:
            self._check_symmetry(covariance, rows)
        return Gaussians(mean, covariance, diagonal, truth, bare)

    def _read(self, name: str, rows: IntArray, positions: IntArray) -> FloatArray:
        """Reads the chosen dimensions of rows, (n, K) or (n, K, K), as an array of our own."""
        found = rows_of(self.arrays[name], rows)
        if positions.tolist() != list(range(len(self.dimensions))):
            found = found[:, positions]
            found = found[:, :, positions] if found.ndim == 3 else found
        return np.require(found, np.float64, "W")

    def _check_symmetry(self, covariance: FloatArray, rows: IntArray) -> None:
        transposed = covariance.transpose(0, 2, 1)
        if np.array_equal(covariance, transposed):
            return
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
