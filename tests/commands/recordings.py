"""Small simulated recordings as files, and the arrays that are in them.

They have what real ones have: empty frames in the middle and at the end, detections without
truth, ignored ones, headings on both sides of ±π, x and y correlated.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from monitor.commands.demo.scene import CLASSES, DriveSettings, simulate
from monitor.frames.space import BoolArray, FloatArray, IntArray

DIMENSIONS = ("x", "y", "z", "yaw")
SEQUENCES = ("north", "south", "west")
FRAMES = 30  # of each sequence, at 10 Hz

# Nothing at all was seen here,
EMPTY = 7
# nothing but cyclists from here on,
LAST_WITH_CARS = FRAMES - 4
# and the roles change between these sequences.
ROLES = {"north": "fit", "south": "fit", "west": "deploy"}

Rows = BoolArray | IntArray | slice


@dataclass(frozen=True)
class Recorded:
    """N detections in file order, in DIMENSIONS.

    truth  (N, 4), NaN without; track -1 without
    """

    sequence: npt.NDArray[np.str_]
    frame: IntArray
    class_name: npt.NDArray[np.str_]
    score: FloatArray
    mean: FloatArray
    covariance: FloatArray
    truth: FloatArray
    track: IntArray
    ignore: BoolArray

    @property
    def n(self) -> int:
        return int(self.frame.size)

    @property
    def time_s(self) -> FloatArray:
        return self.frame / 10

    @property
    def role(self) -> npt.NDArray[np.str_]:
        return np.array([ROLES[name] for name in self.sequence.tolist()])

    @property
    def labelled(self) -> BoolArray:
        labelled: BoolArray = self.track >= 0
        return labelled

    def of(self, rows: Rows) -> Recorded:
        return Recorded(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    def of_class(self, *names: str) -> Recorded:
        return self.of(np.isin(self.class_name, names))


def recorded(seed: int = 0, *, degrees_of_freedom: float = math.inf) -> Recorded:
    """About 800 detections of three sequences; a sequence is a sensor of a simulated drive."""
    settings = DriveSettings(
        sensors=SEQUENCES, objects_per_sensor=9, degrees_of_freedom=degrees_of_freedom
    )
    part = [0, 1, 2, 6]
    frames = []
    for frame in simulate(settings, seed, FRAMES / settings.rate_hz):
        n = frame.ids.size
        names = np.array(CLASSES)[frame.classes]
        kept = np.full(n, frame.frame_id != EMPTY)
        if frame.frame_id > LAST_WITH_CARS:
            kept &= names == "cyclist"
            if frame.frame_id == FRAMES - 1:  # the last frame of a sequence is never empty
                names, kept = np.full(n, "cyclist"), np.arange(n) == 0
        frames.append(
            Recorded(
                sequence=np.full(n, frame.sensor),
                frame=np.full(n, frame.frame_id),
                class_name=names,
                score=frame.score.round(3),
                mean=frame.mean[:, part],
                covariance=frame.covariance[np.ix_(range(n), part, part)],
                truth=frame.truth[:, part],
                track=frame.track,
                ignore=(frame.track < 0) & (np.arange(n) % 2 == 0),
            ).of(kept)
        )
    whole = Recorded(
        **{f.name: np.concatenate([getattr(g, f.name) for g in frames]) for f in fields(Recorded)}
    )
    return whole.of(np.lexsort((whole.frame, whole.sequence)))


def with_bad_covariances(sound: Recorded) -> tuple[Recorded, BoolArray]:
    """The same with a few Gaussians that are none, and which; some of them are labelled."""
    covariance, bad = sound.covariance.copy(), np.zeros(sound.n, bool)
    spoilers: tuple[Callable[[FloatArray], None], ...] = (
        lambda c: c.__setitem__((0, 0), np.nan),
        lambda c: c.__setitem__((1, 1), -c[1, 1]),
        lambda c: c.__setitem__((2, 2), 0.0),
        lambda c: c.__setitem__(([0, 1], [1, 0]), 2 * np.sqrt(c[0, 0] * c[1, 1])),  # corr. of 2
    )
    for row, spoil in zip(np.flatnonzero(sound.labelled)[5:400:97], spoilers, strict=False):
        spoil(covariance[row])
        bad[row] = True
    assert np.count_nonzero(bad) == len(spoilers)
    return replace(sound, covariance=covariance), bad


def table_file(path: Path, names: Iterable[str], cells: Iterable[Iterable[str]]) -> Path:
    text = io.StringIO()
    csv.writer(text).writerows([names, *zip(*cells, strict=True)])
    data = text.getvalue().encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def csv_file(path: Path, rows: Recorded, *, full: bool = True) -> Path:
    """A .csv or .csv.gz file of the rows; without cov_xy unless full."""
    names = ["seq", "role", "frame", "t", "class", "score", *DIMENSIONS]
    names += [f"var_{name}" for name in DIMENSIONS]
    names += ["cov_xy"] if full else []
    names += ["gt_id", "ignore", *(f"gt_{name}" for name in DIMENSIONS)]
    variance = np.einsum("nii->ni", rows.covariance)
    columns = [rows.sequence, rows.role, rows.frame, rows.time_s, rows.class_name, rows.score]
    columns += [*rows.mean.T, *variance.T]
    columns += [rows.covariance[:, 0, 1]] if full else []
    columns += [rows.track, rows.ignore.astype(int), *rows.truth.T]
    blank = {"gt_id": "-1", **{f"gt_{name}": "nan" for name in DIMENSIONS}}
    cells = [
        ["" if cell == blank.get(name) else cell for cell in map(str, column.tolist())]
        for name, column in zip(names, columns, strict=True)
    ]
    return table_file(path, names, cells)


def npz_file(path: Path, rows: Recorded) -> Path:
    """An archive without sequences and frames, with names of its dimensions."""
    arrays: dict[str, Any] = {"mean": rows.mean, "cov": rows.covariance, "gt": rows.truth}
    arrays |= {"class": rows.class_name, "dimensions": np.array(DIMENSIONS)}
    np.savez(path, **arrays)
    return path


def labels_file(path: Path, rows: Recorded) -> Path:
    """A .csv or .csv.gz file of the true objects that were detected, one row each and frame."""
    there = rows.of(rows.labelled)
    names = ["seq", "frame", "t", "class", "gt_id", *DIMENSIONS]
    columns = [there.sequence, there.frame, there.time_s, there.class_name, there.track]
    cells = [map(str, column.tolist()) for column in [*columns, *there.truth.T]]
    return table_file(path, names, cells)


def error(rows: Recorded) -> FloatArray:
    """(N, 4) truth − mean, yaw within ±π."""
    difference = rows.truth - rows.mean
    difference[:, 3] = (difference[:, 3] + np.pi) % (2 * np.pi) - np.pi
    return difference


def nees(rows: Recorded, dimensions: tuple[int, ...] = (0, 1, 2)) -> FloatArray:
    rows = rows.of(rows.labelled)
    r = error(rows)[:, dimensions]
    block = rows.covariance[np.ix_(range(rows.n), dimensions, dimensions)]
    found: FloatArray = np.einsum("ni,ni->n", r, np.linalg.solve(block, r[:, :, None])[:, :, 0])
    return found
