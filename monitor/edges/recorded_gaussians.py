"""Means, covariances and truth of recorded detections, from named columns or from arrays.

Checks what the file as a whole promises: names, shapes, symmetry. Opening it lives in files.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from monitor.calibration.space import FloatArray, IntArray
from monitor.edges.columns import AnyArray, ArrayColumns, Columns, RecordingError, TextColumns

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


class GaussianSource(Protocol):
    """An opened file of detections.

    columns     everything that is one value a row
    dimensions  names of the dimensions there are, in file order
    """

    @property
    def columns(self) -> Columns: ...

    @property
    def dimensions(self) -> tuple[str, ...]: ...

    def read(self, names: tuple[str, ...], rows: IntArray) -> Gaussians:
        """Gaussians of the rows, in the dimensions named."""


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
                for a in self.dimensions
                for b in self.dimensions
                if a != b and column in (f"cov_{a}_{b}", f"cov_{a}{b}")
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
        if arrays[name].shape != shape:
            raise RecordingError(
                f"{path}: {name} has shape {arrays[name].shape}, but mean has {mean.shape}. "
                f"Save {name} as {list(shape)}."
            )
        if arrays[name].dtype.kind not in "fiu":
            raise RecordingError(
                f"{path}: array {name!r} holds {arrays[name].dtype}, not numbers. "
                "Save it as floats."
            )
    names = arrays.get("dimensions", np.arange(k)).astype(np.str_)
    if names.shape != (k,) or np.unique(names).size != k:
        raise RecordingError(
            f"{path}: dimensions is {names.tolist()}, but mean has {k} columns. "
            "Save as many different names."
        )
    for name in _ONE_A_ROW:
        if name in arrays and arrays[name].shape != (n,):
            raise RecordingError(
                f"{path}: {name} has shape {arrays[name].shape}, but there are {n} rows. "
                f"Save {name} as [{n}]."
            )
    one_a_row = {
        name: values
        for name, values in arrays.items()
        if values.shape == (n,) and name not in _BLOCKS
    }
    return ArrayGaussians(
        columns=ArrayColumns(path, n, one_a_row),
        dimensions=tuple(names.tolist()),
        mean=mean,
        variance=arrays.get("var"),
        covariance=arrays.get("cov"),
        truth=arrays.get("gt"),
    )


@dataclass(frozen=True, slots=True)
class ArrayGaussians:
    """The Gaussians of a NumPy archive; array_gaussians makes one."""

    columns: ArrayColumns
    dimensions: tuple[str, ...]
    mean: AnyArray
    variance: AnyArray | None
    covariance: AnyArray | None
    truth: AnyArray | None

    def read(self, names: tuple[str, ...], rows: IntArray) -> Gaussians:
        positions = np.array([self.dimensions.index(name) for name in names])
        block = np.ix_(rows, positions)
        mean = self.mean[block].astype(np.float64)
        if self.truth is None:
            truth = np.full(mean.shape, np.nan)
        else:
            truth = self.truth[block].astype(np.float64)
        if self.covariance is not None:
            full = self.covariance[np.ix_(rows, positions, positions)].astype(np.float64)
            self._check_symmetry(full, rows)
            return Gaussians(mean, full, False, truth)
        assert self.variance is not None
        # Not a product with the identity: 0 · inf would spread NaN.
        covariance = np.zeros((*mean.shape, positions.size))
        diagonal = np.arange(positions.size)
        covariance[:, diagonal, diagonal] = self.variance[block]
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
                f"{self.columns.path}: cov[{row}] is not symmetric, as are "
                f"{np.count_nonzero(skewed) - 1} others. Save (cov + cov transposed) / 2."
            )
        covariance += transposed.copy()
        covariance /= 2
