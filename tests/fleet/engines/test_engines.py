"""The same bytes come from a plain loop, from Beam, and from Spark. `make test-fleet` runs this."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monitor.fleet.counting import merged, piece_key
from monitor.store.files import read_body
from tests.fleet.logged import CONFIG, apart, driven, plainly, uploads, write_files

beam = pytest.importorskip("apache_beam")
pytest.importorskip("pyspark")
from monitor.fleet import beam as ours  # noqa: E402
from monitor.fleet import spark as on_spark  # noqa: E402

pytestmark = pytest.mark.fleet

SHARDINGS = 40
WORKERS = [
    ["--direct_num_workers=1"],
    ["--direct_num_workers=2", "--direct_running_mode=multi_threading"],
    ["--direct_num_workers=2", "--direct_running_mode=multi_processing"],
]


@pytest.fixture(scope="module")
def shardings() -> list[tuple[str, list[bytes], bytes]]:
    """Of each a name, what is delivered, and the sum."""
    return [(f"{seed}", *uploads(seed)) for seed in range(SHARDINGS)]


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "4",
        "spark.pyspark.python": sys.executable,
        "spark.executorEnv.PYTHONPATH": ":".join(sys.path),
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    found = builder.getOrCreate()
    yield found
    found.stop()


def on_beam(options: list[str], build: Any, folder: Path) -> list[Any]:
    """Runs a pipeline; what comes out is written to files, as workers may be processes."""

    def kept(element: Any) -> None:
        key, data = element
        (folder / key).write_bytes(data)

    with ours.pipeline_of(options) as pipeline:
        build(pipeline) | beam.Map(kept)
    return sorted((path.name, path.read_bytes()) for path in folder.iterdir())


@pytest.mark.parametrize("options", WORKERS, ids=("one", "two threads", "two processes"))
def test_states_merge_to_the_same_bytes_on_beam(options, shardings, tmp_path):
    sent = [(key, state) for key, states, _ in shardings for state in states]
    order = np.random.default_rng(0).permutation(len(sent)).tolist()

    def build(pipeline: Any) -> Any:
        found = pipeline | beam.Create([sent[i] for i in order]) | ours.OneOfEach()
        return found | beam.CombinePerKey(ours.MergeStates())

    found = on_beam(options, build, tmp_path)
    assert found == sorted((key, total) for key, _, total in shardings)


def test_states_merge_to_the_same_bytes_on_spark(session, shardings):
    sent = [(key, bytearray(state)) for key, states, _ in shardings for state in states]
    frame = session.createDataFrame(sent, "key string, state binary").repartition(4)
    found = {row["key"]: bytes(row["state"]) for row in on_spark.merge_states(frame).collect()}
    assert found == {key: total for key, _, total in shardings}


@pytest.mark.parametrize("options", WORKERS, ids=("one", "two threads", "two processes"))
def test_logs_are_counted_to_the_bytes_of_one_process(options, tmp_path):
    drives = {name: driven(name, 70) for name in ("car1", "car2", "car3")}
    for number, frames in enumerate(drives.values()):
        # Frames of one piece in two files, and those of two vehicles in one.
        write_files(tmp_path, frames[:40], 2 * number)
        write_files(tmp_path, frames[40:], 2 * number + 1)
    (tmp_path / "detections-9.parquet").write_bytes(b"PAR1 torn")
    arguments = ["--detections", f"{tmp_path}/detections-*.parquet"]
    arguments += ["--labels", f"{tmp_path}/labels-*.parquet", "--output", f"{tmp_path}/fleet"]
    assert ours.main([*arguments, *options]) == 0
    frames = [one for drive in drives.values() for one in drive]
    assert read_body(tmp_path / "fleet.state") == plainly(without_classes(frames))
    account = json.loads((tmp_path / "fleet.json").read_bytes())
    assert account["frames"] == len(frames) and account["detection_files_refused"] == 1
    assert account["labels_matched"] == account["label_rows"]


def test_logs_are_counted_to_the_bytes_of_one_process_on_spark(session):
    frames = [one for name in ("car1", "car2", "car3") for one in driven(name, 70)]
    joined = apart(frames)
    rows = [
        (bytearray(piece_key(frame, CONFIG)), bytearray(one), bytearray(told or b""))
        for (frame, _), (one, told) in zip(frames, joined, strict=True)
    ]
    columns = "piece binary, detections binary, labels binary"
    frame = session.createDataFrame(rows, columns).repartition(4)
    counted_there = on_spark.count_frames(frame, CONFIG)
    assert merged(bytes(row["state"]) for row in counted_there.collect()) == plainly(joined)
    (row,) = on_spark.merge_states(counted_there.select("key", "state")).collect()
    assert bytes(row["state"]) == plainly(joined)


def without_classes(frames: Any) -> Any:
    """Parquet has no class probabilities."""
    from dataclasses import replace

    return apart(
        [(replace(frame, probabilities=None, true_class=None), told) for frame, told in frames]
    )
