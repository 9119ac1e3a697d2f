"""Files of a fleet are read frame by frame, as docs/files.md says, and bad rows are refused."""

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from monitor.fleet.counting import NOBODY, Account
from monitor.fleet.logs import Columnar, detections_in, objects_in
from monitor.store.tables import RecordingError


def file_of(**columns: Any) -> io.BytesIO:
    file = io.BytesIO()
    parquet.write_table(pa.table(columns), file)
    file.seek(0)
    return file


def test_rows_are_put_together_by_vehicle_stream_and_frame():
    account = Account()
    file = file_of(
        vehicle=["b", "a", "a", "a"],
        frame=[7, 7, 8, None],
        time_ms=[100.0, 100.0, 200.0, 300.0],
        x=[1.0, 2.0, 3.0, 4.0],
        std_x=[0.5, 0.5, 0.5, 0.5],
        gt_x=[1.5, None, 3.5, 4.5],
        gt_id=["tree", "", "tree", "tree"],
    )
    how = Columnar(names={"t": "time_ms"})
    a7, a8, b7 = detections_in(file, "logs/front.parquet", how, account)
    assert [(one.vehicle, one.stream, one.frame_id) for one in (a7, a8, b7)] == [
        ("a", "front", 7), ("a", "front", 8), ("b", "front", 7),
    ]  # fmt: skip
    assert (a8.stamp_ns, a8.dimensions, a8.mean.tolist()) == (200_000_000, ("x",), [[3.0]])
    assert a8.covariance.tolist() == [[0.25]] and a7.truth is not None
    assert np.isnan(a7.truth).all() and b7.truth is not None and b7.truth.tolist() == [[1.5]]
    assert account["rows"] == 4 and account["refused_missing_frame_key"] == 1
    assert a8.object is not None and b7.object is not None and a7.object is not None
    assert a8.object == b7.object != NOBODY and a7.object == NOBODY


def test_rows_without_a_variance_have_no_covariance_unless_one_is_stated():
    def read(how, **more):
        file = file_of(frame=[1, 1], seq=["a", "a"], x=[1.0, 2.0], gt_x=[1.0, 2.0], **more)
        (found,) = detections_in(file, "logs/bare.parquet", how, Account())
        return found.covariance.tolist()

    assert read(Columnar()) == [[0.0], [0.0]]
    assert read(Columnar(), var_x=[None, 4.0]) == [[0.0], [4.0]]
    assert read(Columnar(deviations={"x": 3.0})) == [[9.0], [9.0]]


def test_labels_are_read_with_all_dimensions_they_know():
    file = file_of(
        seq=["front"] * 2, frame=[3, 3], y=[1.0, 2.0], x=[3.0, 4.0], gt_id=[1, 2], ignore=[0, 1]
    )
    (told,) = objects_in(file, "labels.parquet", Columnar(), Account())
    assert (told.stream, told.frame_id, told.dimensions) == ("front", 3, ("y", "x"))
    assert told.position.tolist() == [[1.0, 3.0], [2.0, 4.0]] and told.ignore.tolist() == [0, 1]


@pytest.mark.parametrize("file", [io.BytesIO(b"PAR1 torn"), file_of(x=[1.0], var_x=[1.0])])
def test_unusable_file_is_refused_by_name(file):
    with pytest.raises(RecordingError, match=r"^logs/front\.parquet: "):
        list(detections_in(file, "logs/front.parquet", Columnar(), Account()))
