"""Files of benchmarks: three frames of each format become the columns that stand beside them."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from monitor.frames.words import Format
from monitor.store.formats import format_of
from monitor.store.recordings import read_columns, read_recording
from monitor.store.tables import RecordingError

# Behind the score are two variances. The second line has no place.
KITTI = """\
0 3 Car 0 0 -1.5 10 20 30 50 1.5 1.6 4.0 2.0 1.7 20.0 0.1 0.9 0.25 0.5
0 -1 DontCare -1 -1 -10 0 0 5 5 -1 -1 -1 -1000 -1000 -1000 -10 0.1 0 0

1 3 Car 0 0 -1.5 11 21 31 51 1.5 1.6 4.0 2.5 1.7 21.0 0.2 0.8 0.25 0.5
2 4 Pedestrian 0 1 0.5 60 20 64 30 1.8 0.5 0.6 -4.0 1.6 9.0 -3.1 0.7 0.16 0.09
"""
KITTI_LABELS = "\n".join(" ".join(line.split()[:17]) for line in KITTI.splitlines())
MOT = """\
1,-1,10,20,30,40,0.9,-1,-1,-1,4
2,-1,12,20,30,40,0.8,-1,-1,-1,9
4,-1,50,60,10,20,0.7,-1,-1,-1,1
"""
MOT_LABELS = "1,5,10,20,30,40,1,2,0.75\n2,5,12,20,30,40,0,7,1\n"
COCO: list[dict[str, Any]] = [
    {"image_id": 7, "category_id": 3, "bbox": [10, 20, 30, 40], "bbox_std": [2, 3, 4, 5]},
    {"image_id": 8, "category_id": 3, "bbox": [12, 20, 30, 40], "bbox_std": [2, 3, 4, 5]},
    {"image_id": 10**30, "category_id": 1, "bbox": [5, 6, 1, 2], "bbox_std": [1, 1, 1, 1]},
]
COCO[1]["score"] = 0.5  # which may be missing
CROWD = [COCO[0] | {"track_id": 5, "iscrowd": 1}, COCO[1] | {"iscrowd": None}, COCO[2]]
BOX: dict[str, Any] = {"sample_token": "a", "translation": [1.0, 2.0, 0.5], "size": [1.8, 4.5, 1.6]}
BOX |= {"rotation": [np.cos(0.25), 0, 0, np.sin(0.25)], "translation_var": [0.1, 0.2, 0.3]}
BOX |= {"yaw_var": 0.01, "detection_name": "car", "detection_score": 0.9}
BACK = BOX | {"sample_token": "b", "rotation": [np.cos(1.5), 0, 0, -np.sin(1.5)]}
BUS = BOX | {"sample_token": "c", "detection_name": "bus", "yaw_var": [0.04], "tracking_id": "t"}
NUSCENES = {"results": {"a": [BOX], "b": [BACK], "c": [BUS]}}
NAMED = {"frame": [0, 1, 2], "track": [3, 3, 4], "class": ["Car", "Car", "Pedestrian"]}
PLACED = {"x": [2, 2.5, -4], "y": [1.7, 1.7, 1.6], "z": [20, 21, 9], "yaw": [0.1, 0.2, -3.1]}
SIZED = {"h": [1.5, 1.5, 1.8], "w": [1.6, 1.6, 0.5], "l": [4, 4, 0.6], "bottom": [50, 51, 30]}
MEASURED = {"score": [0.9, 0.8, 0.7], "extra_1": [0.25, 0.25, 0.16]}
OF_MOT: dict[str, Any] = {"frame": [1, 2, 4], "cx": [25, 27, 55], "cy": [40, 40, 70]}
OF_MOT |= {"score": [0.9, 0.8, 0.7], "extra_1": [4, 9, 1]}
CONSIDERED = {"ignore": [0, 1], "track": [5, 5], "class": ["2", "7"], "cx": [25, 27]}
OF_COCO = {"class": ["3", "3", "1"], "cx": [25, 27, 5.5], "cy": [40, 40, 7], "h": [40, 40, 2]}
OF_COCO |= {"score": [np.nan, 0.5, np.nan], "std_cx": [2, 2, 1], "std_h": [5, 5, 1]}
SAMPLES = [912392414677810140, 279854852232942996, 209367630754416558]  # in every file
OF_NUSCENES: dict[str, Any] = {"frame": SAMPLES, "x": [1] * 3, "yaw": [0.5, -3.0, 0.5]}
OF_NUSCENES |= {"w": [1.8] * 3, "l": [4.5] * 3, "score": [0.9] * 3, "class": ["car", "car", "bus"]}
OF_NUSCENES |= {
    "gt_id": ["", "", "t"],
    "var_x": [0.1] * 3,
    "var_z": [0.3] * 3,
    "var_yaw": [0.01, 0.01, 0.04],
}


def written(folder, content, name=None):
    text = content if isinstance(content, str) else json.dumps(content)
    path = folder / (name or ("file.txt" if isinstance(content, str) else "file.json"))
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("kind", "content", "expected", "missing"),
    [
        (Format.KITTI, KITTI, NAMED | PLACED | SIZED | MEASURED, "extra_3"),
        (Format.KITTI, KITTI_LABELS, NAMED | PLACED | SIZED, "score"),
        (Format.MOT, MOT, OF_MOT, "ignore"),
        (Format.MOT, MOT_LABELS, CONSIDERED, "score"),
        (Format.COCO, COCO, OF_COCO, "ignore"),
        (Format.COCO, {"annotations": CROWD}, {"ignore": [1, 0, 0], "gt_id": ["5", "", ""]}, "x"),
        (Format.NUSCENES, NUSCENES, OF_NUSCENES, "var_w"),
        (Format.NUSCENES, {"results": [BOX, BACK, BUS]}, OF_NUSCENES, "var_w"),
    ],
)
def test_a_file_is_read_as_columns_by_its_look_or_by_name(
    tmp_path, kind, content, expected, missing
):
    path, other = written(tmp_path, content), written(tmp_path, content, "file.data")
    assert format_of(path) is kind
    for found in (read_columns(path, {}), read_columns(other, {}, kind)):
        assert missing not in found.names
        for name, values in expected.items():
            if isinstance(values[0], str):
                assert found.values(name).tolist() == values
            else:
                np.testing.assert_allclose(found.values(name), values, rtol=1e-15, err_msg=name)
    with pytest.raises(RecordingError, match=r"must end in \.csv"):
        read_columns(other, {})


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (KITTI.replace("-4.0", "far"), "line 5: x is 'far', not a number"),
        (KITTI.replace("1 3 Car", "1.5 3 Car"), "line 4: frame is 1.5, not a whole number"),
        ("0 1 Car 0 0\n", "line 1: 5 fields, but there should be 17 or more"),
        ([COCO[0], {"image_id": 1, "bbox": [1]}], "object 1: there is no 'category_id'"),
        ([COCO[0] | {"bbox": [[1], 2, 3, 4]}], "object 0: bbox is [[1], 2, 3, 4], not 4 numbers"),
        ([COCO[0], COCO[1] | {"bbox_std": 2}], "object 1: bbox_std is [2], not 4 numbers"),
        ({"results": "none"}, "format right? It was read as --format nuscenes."),
        (KITTI_LABELS[4:], "line 1: begins with 'Car', as KITTI object does"),
    ],
)
def test_a_broken_file_is_refused_with_place_field_and_value(tmp_path, content, sentence):
    path = written(tmp_path, content)
    with pytest.raises(RecordingError, match=re.escape(sentence)) as caught:
        read_columns(path, {})
    assert str(path) in str(caught.value)


def test_a_variance_under_another_name_is_named_as_not_used_and_what_is_read_is_said(tmp_path):
    bare = {name: value for name, value in BOX.items() if not name.endswith("_var")}
    path = written(tmp_path, [bare | {"translation_cov": [0.1, 0.2, 0.3]}])
    found = read_recording(path, deviations={"x": 1.0})
    assert "translation_cov" in found.unused
    with pytest.raises(RecordingError, match="nuScenes translation_var"):
        read_recording(path)
