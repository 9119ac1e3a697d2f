"""Measures how fast logged frames are counted on Beam's in-process runner, beside a plain loop.

Both read, join and count the same Parquet files to the same bytes, in turn and in the same run:
files with their truth, and files with labels apart, which have to be matched. CPU time, so that
rows a second are those of one core; the ratio travels better than absolute numbers. Needs the
extra `beam`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from benchmarks.machine import machine
from monitor.config import Config
from monitor.fleet.beam import main
from monitor.fleet.counting import (
    Account,
    Joined,
    counted,
    frame_key,
    joined,
    merged,
    packed,
    piece_key,
)
from monitor.fleet.logs import Columnar, detections_in, objects_in
from monitor.store.files import read_body

OBJECTS, NAMES, CLASSES, HOW, CONFIG = 200, "xyz", ("Bus", "Car", "Van"), Columnar(), Config()


def write(folder: Path, vehicle: int, frames: int) -> None:
    """Writes a drive of a vehicle at 10 Hz: detections with their truth, and without; labels."""
    random, rows = np.random.default_rng(vehicle), frames * OBJECTS
    number = np.repeat(np.arange(frames), OBJECTS)
    truth = np.tile(random.uniform(-80, 80, (OBJECTS, 3)), (frames, 1)) + 0.1 * number[:, None]
    sigma = 0.2 * np.exp(0.3 * random.normal(size=truth.shape))
    mean = truth + sigma * random.normal(size=truth.shape)
    of = {
        "vehicle": np.full(rows, f"car{vehicle}"),
        "seq": np.full(rows, "front"),
        "frame": number,
        "stamp_ns": number * 10**8,
        "class": np.tile(np.array(CLASSES)[random.integers(0, 3, OBJECTS)], frames),
    }
    ours = {name: mean[:, i] for i, name in enumerate(NAMES)}
    ours |= {f"var_{name}": sigma[:, i] ** 2 for i, name in enumerate(NAMES)}
    ours["cov_x_y"] = 0.3 * sigma[:, 0] * sigma[:, 1]
    theirs = {name: truth[:, i] for i, name in enumerate(NAMES)}
    theirs["gt_id"] = np.tile(np.arange(1, OBJECTS + 1), frames)
    true = {f"gt_{name}": truth[:, i] for i, name in enumerate(NAMES)} | {"gt_id": theirs["gt_id"]}
    parquet.write_table(pa.table(of | ours), folder / f"detections-{vehicle}.parquet")
    parquet.write_table(pa.table(of | ours | true), folder / f"whole-{vehicle}.parquet")
    parquet.write_table(pa.table(of | theirs), folder / f"labels-{vehicle}.parquet")


def read(folder: Path, detections: str, labels: str) -> list[tuple[bytes, Joined]]:
    """Reads and joins all files in one process; piece and frame."""
    ours, theirs, keys = defaultdict(list), defaultdict(list), {}
    for path in sorted(folder.glob(detections)):
        with path.open("rb") as file:
            for frame in detections_in(file, path.name, HOW, Account()):
                keys[frame_key(frame)] = piece_key(frame, CONFIG)
                ours[frame_key(frame)].append(packed(frame))
    for path in sorted(folder.glob(labels or "none")):
        with path.open("rb") as file:
            for told in objects_in(file, path.name, HOW, Account()):
                theirs[frame_key(told)].append(packed(told))
    found = ((keys[key], joined(frames, theirs[key])[0]) for key, frames in ours.items())
    return [(piece, frame) for piece, frame in found if frame is not None]


def plainly_from(folder: Path, detections: str, labels: str) -> bytes:
    """Counts frames in a loop."""
    pieces = defaultdict(list)
    for piece, frame in read(folder, detections, labels):
        pieces[piece].append(frame)
    return merged(counted(of, CONFIG)[0] for of in pieces.values())


def on_beam(folder: Path, detections: str, labels: str) -> bytes:
    """Runs the command of the documentation."""
    given = {"detections": detections, "labels": labels, "output": "fleet"}
    with contextlib.redirect_stdout(io.StringIO()):
        main([f"--{name}={folder / value}" for name, value in given.items() if value])
    return read_body(folder / "fleet.state")


def compare(name: str, rows: int, rounds: int, *calls: Callable[[], bytes]) -> None:
    """Prints rows a second and core of both, and their ratio."""
    took, found = [float("inf")] * len(calls), [b""] * len(calls)
    for _ in range(rounds):
        for i, call in enumerate(calls):
            began = time.process_time()
            found[i] = call()
            took[i] = min(took[i], time.process_time() - began)
    assert found[0] == found[1], "other bytes"
    plain, ours = (rows / one for one in took)
    print(f"{name:<34}{plain:>12,.0f}{ours:>12,.0f}{took[1] / took[0]:>8.2f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=300, help="of each of four vehicles")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    print(machine())
    print(f"{'detections a second and core':<34}{'plain':>12}{'Beam':>12}{'ratio':>8}")
    with tempfile.TemporaryDirectory() as name:
        folder, rows = Path(name), 4 * options.frames * OBJECTS
        for vehicle in range(4):
            write(folder, vehicle, options.frames)
        for text, *files in (
            ("truth in the file", "whole-*", ""),
            ("labels apart, to be matched", "detections-*", "labels-*"),
        ):
            compare(
                text,
                rows,
                options.rounds,
                partial(plainly_from, folder, *files),
                partial(on_beam, folder, *files),
            )
