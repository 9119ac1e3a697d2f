"""Logs of a small fleet for the tests of counting: joined frames, and files of them; no tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from monitor.config import Config
from monitor.fleet.counting import Detections, Joined, Objects, counted, packed
from monitor.statistics.holdings import Holdings
from monitor.store.statistics_state import StoredState
from tests.states import clock_of, joined, random_rows
from tests.states import counted as counted_rows

CLASSES = ("Bus", "Car", "Pedestrian")
CONFIG = Config()
# s between frames, and objects in each.
PERIOD, OBJECTS = 5.0, 12


def driven(vehicle: str, frames: int, seed: int = 0) -> list[tuple[Detections, Objects]]:
    """Frames of objects that move, each detected and labelled under its id."""
    random = np.random.default_rng([seed, *vehicle.encode()])
    place = random.normal(0, 50, (OBJECTS, 2))
    speed, kind = random.normal(0, 1, (OBJECTS, 2)), random.integers(0, 3, OBJECTS)
    found = []
    for number in range(frames):
        truth = place + number * PERIOD * speed
        sigma = 0.2 * np.exp(0.3 * random.normal(size=(OBJECTS, 2)))
        of = vehicle, "front", number, round((100 + number * PERIOD) * 1e9), ("x", "y")
        ids = np.arange(1, OBJECTS + 1, dtype=np.uint64)
        detections = Detections(
            *of,
            angles=(),
            classes=CLASSES,
            mean=truth + sigma * random.normal(size=sigma.shape),
            covariance=np.stack(
                [sigma[:, 0] ** 2, 0.3 * sigma[:, 0] * sigma[:, 1], sigma[:, 1] ** 2], axis=1
            ),
            class_index=kind,
            truth=truth,
            object=ids,
            true_class=kind,
            probabilities=random.dirichlet((1.0, 1.0, 1.0), OBJECTS),
        )
        ignore = np.zeros(OBJECTS, bool)
        found.append((detections, Objects(*of, CLASSES, truth, kind, ids, ignore)))
    return found


def inline(frames: Sequence[tuple[Detections, Objects]]) -> list[Joined]:
    """Frames whose truth came along."""
    return [(packed(frame), None) for frame, _ in frames]


def apart(frames: Sequence[tuple[Detections, Objects]]) -> list[Joined]:
    """Frames with labels that come from elsewhere."""
    return [(packed(replace(frame, truth=None)), packed(labels)) for frame, labels in frames]


def plainly(frames: Sequence[Joined]) -> bytes:
    """The state of one process that has counted them all."""
    return counted(frames, CONFIG)[0]


def write_files(folder: Path, frames: Sequence[tuple[Detections, Objects]], number: int) -> None:
    """Writes detections-N.parquet and labels-N.parquet, a row for each detection and object."""
    detections = [frame for frame, _ in frames]
    of = {
        "vehicle": np.repeat([one.vehicle for one in detections], OBJECTS),
        "seq": np.repeat([one.stream for one in detections], OBJECTS),
        "frame": np.repeat([one.frame_id or 0 for one in detections], OBJECTS),
        "stamp_ns": np.repeat([one.stamp_ns or 0 for one in detections], OBJECTS),
        "class": np.array(CLASSES)[np.concatenate([one.class_index for one in detections])],
    }
    mean = np.concatenate([one.mean for one in detections])
    variance = np.concatenate([one.covariance for one in detections])
    truth = np.concatenate([one.position for _, one in frames])
    names = ("var_x", "cov_x_y", "var_y")
    ours = {"x": mean[:, 0], "y": mean[:, 1]}
    ours |= {name: variance[:, i] for i, name in enumerate(names)}
    ids = np.concatenate([one.object for _, one in frames]).astype(np.int64)
    theirs = {"x": truth[:, 0], "y": truth[:, 1], "gt_id": ids}
    parquet.write_table(pa.table(of | ours), folder / f"detections-{number}.parquet")
    parquet.write_table(pa.table(of | theirs), folder / f"labels-{number}.parquet")


def uploads(seed: int) -> tuple[list[bytes], bytes]:
    """States of uploads in any order, one in ten twice; and the sum of each once."""
    random = np.random.default_rng(seed)
    rows = random_rows(seed, 60)
    shards = random.integers(0, 10, len(rows))
    clock = clock_of(rows)
    states = []
    for number in range(10):
        mine = [row for row, shard in zip(rows, shards.tolist(), strict=True) if shard == number]
        state = counted_rows(mine, clock, order=random.permutation(4).tolist())
        states.append(replace(state, holds=Holdings.of(f"car{number % 3}", "1", 1 + number)))
    total = states[0]
    for state in states[1:]:
        total = total.merge(state)
    sent = [joined(StoredState(state)) for state in states]
    sent.append(sent[int(random.integers(10))])
    order = random.permutation(len(sent)).tolist()
    return [sent[i] for i in order], joined(StoredState(total.in_order()))
