"""calibration-monitor sample: writes an example of each kind of file that the verbs read.

The files are simulated: a drive of 60 s with cars, which are calibrated, and pedestrians, whose σ
is too small. Errors go along with their track and have heavy tails, as real ones do. Each run
writes the same file. docs/files.md explains its columns.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from monitor.commands.output import output_file
from monitor.frames.space import FloatArray, IntArray
from monitor.options.recorded import Kind


@dataclass(frozen=True, slots=True)
class _Class:
    """A class of objects: how many, their size, and by which factor their σ is too small."""

    name: str
    tracks: int
    speed: float  # m/s
    size: tuple[float, float, float]  # m
    too_small: float


_CLASSES = (
    _Class("Car", 40, 8.0, (4.4, 1.8, 1.5), 1.0),
    _Class("Pedestrian", 30, 1.3, (0.7, 0.6, 1.75), 1.6),
)
_FRAMES, _PERIOD_S, _SEEN = 600, 0.1, 30  # frames, s between them, frames that see a track

# Correlation of an error with that of the frame before, and degrees of freedom of its tails.
_CORRELATION, _DEGREES = 0.8, 5

# Seeds whatever is drawn: the same file comes each time.
_SEED = 23

Table = dict[str, list[str]]


def run(options: argparse.Namespace) -> int:
    """0 when the file was written. Raises CannotWrite, ValueError."""
    kind, output = options.kind, options.output
    endings = (".npz",) if kind is Kind.CLASSES else (".csv", ".csv.gz")
    if kind is Kind.CLASSES and output == "-":
        raise ValueError("--kind classes is written as .npz: give --output classes.npz.")
    if output != "-" and not output.endswith(endings):
        raise ValueError(f"--output {output}: the name must end in {' or '.join(endings)}.")
    if kind is Kind.CLASSES:
        probabilities, label = classified()
        with output_file(Path(output)) as path:
            np.savez_compressed(path, prob=probabilities, label=label, class_names=_names())
        return 0
    text = _text(table(kind))
    if output == "-":
        sys.stdout.write(text)
        return 0
    with output_file(Path(output)) as path:
        data = text.encode("utf-8")
        path.write_bytes(gzip.compress(data, mtime=0) if output.endswith(".gz") else data)
    return 0


def table(kind: Kind) -> Table:
    """Simulates a file of columns."""
    rng = np.random.default_rng(_SEED)
    rows: list[dict[str, str]] = []
    id = 0
    for one in _CLASSES:
        for _ in range(one.tracks):
            id += 1
            rows += _track(rng, one, id, image=kind is Kind.BOXES_2D)
    rows.sort(key=lambda row: int(row["frame"]))
    named: Table = {name: [row[name] for row in rows] for name in rows[0]}
    if kind is Kind.DETECTIONS:
        return {name: cells for name, cells in named.items() if not name.startswith("gt_")}
    if kind is Kind.LABELS:
        keys = {name: named[name] for name in ("seq", "frame", "t", "class", "gt_id")}
        truth = [name for name in named if name.startswith("gt_") and name != "gt_id"]
        return keys | {name.removeprefix("gt_"): named[name] for name in truth}
    return named


def _track(rng: np.random.Generator, one: _Class, id: int, *, image: bool) -> list[dict[str, str]]:
    """Simulates the detections of one object, with its ground truth."""
    n, first = _SEEN, int(rng.integers(0, _FRAMES - _SEEN))
    heading, ahead, aside = rng.uniform(-np.pi, np.pi), rng.uniform(5, 50), rng.uniform(-12, 12)
    time = np.arange(n) * _PERIOD_S
    x = ahead + one.speed * np.cos(heading) * time
    y = aside + one.speed * np.sin(heading) * time
    distance = np.hypot(x, y)
    if image:
        height = 900.0 * one.size[2] / np.maximum(distance, 4.0)
        width = height * (1.6 if one.speed > 2 else 0.4)
        truth = {"cx": 640 + 8 * y, "cy": 380 + height / 4, "w": width, "h": height}
        deviation = dict.fromkeys(truth, 0.5 + 0.03 * height)
    else:
        truth = {"x": x, "y": y, "z": np.full(n, one.size[2] / 2)}
        truth |= {name: np.full(n, size) for name, size in zip("lwh", one.size, strict=True)}
        deviation = dict.fromkeys("xy", 0.08 + 0.006 * distance)
        deviation |= {name: np.full(n, 0.06) for name in "zlwh"}
    cells = {
        "seq": ["drive"] * n,
        "frame": [str(first + i) for i in range(n)],
        "t": [f"{(first + i) * _PERIOD_S:.1f}" for i in range(n)],
        "class": [one.name] * n,
        "score": [f"{score:.2f}" for score in rng.uniform(0.4, 1.0, n)],
    }
    reported = {name: sigma / one.too_small for name, sigma in deviation.items()}
    errors = {name: _errors(rng, n) for name in truth}
    correlation = 0.3
    if not image:
        errors["y"] = correlation * errors["x"] + np.sqrt(1 - correlation**2) * errors["y"]
    for name, values in truth.items():
        cells[name] = _written(values - deviation[name] * errors[name])
    for name, sigma in reported.items():
        cells[f"var_{name}"] = [f"{value:.6g}" for value in sigma**2]
    if not image:
        covariance = correlation * reported["x"] * reported["y"]
        cells["cov_x_y"] = [f"{value:.6g}" for value in covariance]
    cells["gt_id"] = [str(id)] * n
    for name, values in truth.items():
        cells[f"gt_{name}"] = _written(values)
    return [{name: column[i] for name, column in cells.items()} for i in range(n)]


def _errors(rng: np.random.Generator, n: int) -> FloatArray:
    """(n,) errors of unit variance that follow one another, with heavy tails."""
    normal = rng.standard_normal(n)
    for i in range(1, n):
        normal[i] = _CORRELATION * normal[i - 1] + np.sqrt(1 - _CORRELATION**2) * normal[i]
    # Student's t has the variance d / (d − 2); this one has 1.
    return normal * np.sqrt((_DEGREES - 2) / rng.chisquare(_DEGREES, n))


def _written(values: FloatArray) -> list[str]:
    return [f"{value:.3f}" for value in values]


def _names() -> list[str]:
    return [one.name for one in _CLASSES] + ["Cyclist"]


def classified() -> tuple[FloatArray, IntArray]:
    """Simulates class probabilities (N, 3) that are too sure, and true classes (N,)."""
    rng = np.random.default_rng(_SEED)
    logits = rng.normal(0, 1.2, (3000, 3))
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    label = (probabilities.cumsum(axis=1) < rng.uniform(size=(3000, 1))).sum(axis=1)
    sharp = np.exp(2.0 * logits)
    return sharp / sharp.sum(axis=1, keepdims=True), label.astype(np.int64)


def _text(columns: Table) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue()
