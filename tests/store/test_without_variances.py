"""Files of detectors that report no covariance: what their dimensions are, and which rows lack
one."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from monitor.store.recordings import read_recording, write_estimates
from monitor.store.tables import RecordingError
from tests.store.test_formats import BOX, COCO, KITTI, MOT, written


def bare(names, n=1):
    """Covariances of 1 for as many dimensions."""
    return np.tile(np.eye(len(names)), (n, 1, 1)).tolist()


@pytest.mark.parametrize(
    ("text", "asked", "names"),
    [
        ("x,y,score,gt_x,gt_y\n1,2,0.5,1,2\n", {}, ("x", "y")),
        ("x,y,gt_x\n1,2,1\n", {}, ("x",)),
        ("x,y\n1,2\n", {"dimensions": ("y", "x")}, ("y", "x")),
        ("x,y,gt_x,gt_y\n1,2,1,2\n", {"dimensions": ("y",)}, ("y",)),
        ("id,frame,name,x,y\n7,0,car,1,2\n", {"measured": ("id", "frame", "name", "x")}, ("x",)),
        ("x,y,z,gt_z,gt_y,gt_x\n1,2,3,3,2,1\n", {"fitted": ("x", "y")}, ("x", "y")),
        ("x,y,gt_x\n1,2,1\n", {"fitted": ("x", "z")}, ("x",)),
        # The variance of what is named counts, where any is there.
        ("x,y,var_x,gt_x,gt_y\n1,2,1,1,2\n", {"fitted": ("x", "y")}, ("x",)),
    ],
)
def test_dimensions_of_a_table_are_those_with_truth_or_those_that_are_named(
    tmp_path, text, asked, names
):
    found = read_recording(written(tmp_path, text, "bare.csv"), **asked)
    assert found.space.names == names
    assert found.covariance.tolist() == bare(names)
    assert found.bare == found.space.assumed == ("var_" not in text)


@pytest.mark.parametrize(
    ("content", "names"),
    [
        (
            re.sub(r" \S+ \S+$", "", KITTI, flags=re.MULTILINE),
            ("x", "y", "z", "l", "w", "h", "yaw"),
        ),
        (MOT, ("cx", "cy", "w", "h")),
        (
            [{k: v for k, v in one.items() if k != "bbox_std"} for one in COCO],
            ("cx", "cy", "w", "h"),
        ),
        (
            [{k: v for k, v in BOX.items() if not k.endswith("_var")}],
            ("x", "y", "z", "w", "l", "h", "yaw"),
        ),
    ],
    ids=("kitti", "mot", "coco", "nuscenes"),
)
def test_formats_of_benchmarks_are_read_without_variances(tmp_path, content, names):
    found = read_recording(written(tmp_path, content))
    assert set(found.space.names) == set(names)
    assert found.bare


def test_a_deviation_that_is_stated_is_assumed_in_place_of_one(tmp_path):
    path = written(tmp_path, "x,y,gt_x,gt_y\n1,2,1,2\n", "bare.csv")
    found = read_recording(path, deviations={"x": 0.5})
    assert (found.space.names, found.covariance.tolist()) == (("x",), [[[0.25]]])
    found = read_recording(path, deviations={"x": 0.5}, dimensions=("x", "y"))
    assert found.covariance.tolist() == [[[0.25, 0], [0, 1]]]
    assert found.bare


def test_rows_whose_cells_are_all_empty_lack_a_covariance_and_others_keep_theirs(tmp_path):
    head = "x,y,var_x,var_y,cov_xy\n"
    path = written(tmp_path, f"{head}1,2,4,9,1\n3,4,,,\n", "mixed.csv")
    found = read_recording(path)
    assert found.assumed.tolist() == [False, True]
    assert found.covariance.tolist() == [[[4, 1], [1, 9]], [[1, 0], [0, 1]]]
    assert not (found.bare or found.space.assumed)
    found = read_recording(path, deviations={"y": 3.0})
    assert found.covariance[1].tolist() == [[1, 0], [0, 9]]
    # One empty cell among others is a mistake, as ever.
    with pytest.raises(RecordingError, match="line 2: var_y is '', not a number"):
        read_recording(written(tmp_path, f"{head}1,2,4,,1\n", "torn.csv"))


@pytest.mark.parametrize("spread", ["var", "std", "cov", None])
def test_an_archive_may_have_means_alone_or_rows_of_nan(tmp_path, spread):
    mean, path = np.arange(4.0).reshape(2, 2), tmp_path / "means.npz"
    given = {"var": np.ones((2, 2)), "std": np.ones((2, 2)), "cov": np.tile(np.eye(2), (2, 1, 1))}
    arrays: dict[str, Any] = {"mean": mean}
    if spread is not None:
        arrays[spread] = 4 * given[spread]
        arrays[spread][1] = np.nan
    np.savez(path, **arrays)
    found = read_recording(path, deviations={"1": 3.0})
    assert found.assumed.tolist() == [spread is None, True]
    assert found.covariance[1].tolist() == [[1, 0], [0, 9]]
    if spread is not None:
        with pytest.raises(RecordingError, match=r"no such dimension\. Dimensions there are: 0, 1"):
            read_recording(path, deviations={"x": 3.0})
        arrays[spread][1] = arrays[spread][0]
        np.savez(path, **arrays)
        with pytest.raises(RecordingError, match=f"each row has its {spread}. Leave the option"):
            read_recording(path, deviations={"1": 3.0})


def test_a_single_nan_in_a_covariance_is_no_missing_one(tmp_path):
    covariance = np.tile(np.eye(2), (2, 1, 1))
    covariance[0, 0, 0] = np.nan
    np.savez(tmp_path / "nan.npz", mean=np.ones((2, 2)), cov=covariance)
    found = read_recording(tmp_path / "nan.npz")
    assert not found.assumed.any()
    assert np.isnan(found.covariance[0, 0, 0])


@pytest.mark.parametrize(
    ("text", "asked", "sentence"),
    [
        ("x,y\n1,2\n", {}, "ground truth gt_x, or the dimensions by --dimensions x,y"),
        ("x,y\n1,2\n", {"measured": ("z",)}, "no dimension has a mean and a variance"),
        ("x,name\n1,a\n", {"measured": ("name",)}, "no dimension has a mean and a variance"),
        ("x,y\n1,2\n", {"dimensions": ("z",)}, "there is no column 'z'"),
        # A variance is likely there, under a name that nobody reads.
        ("x,x_std,gt_x\n1,1,1\n", {}, "Give --map std_x=x_std."),
    ],
)
def test_where_nothing_is_found_the_remedy_is_named(tmp_path, text, asked, sentence):
    with pytest.raises(RecordingError, match=re.escape(sentence)):
        read_recording(written(tmp_path, text, "none.csv"), **asked)


def test_an_archive_of_rows_without_covariances_is_read_again(tmp_path):
    path = written(tmp_path, "x,y,var_x,var_y,cov_xy\n1,2,4,9,1\n3,4,,,\n", "mixed.csv")
    found = read_recording(path)
    write_estimates(tmp_path / "again.npz", found)
    again = read_recording(tmp_path / "again.npz")
    for name in ("mean", "covariance", "assumed"):
        np.testing.assert_array_equal(getattr(again, name), getattr(found, name), name)
    alone = read_recording(path, rows=slice(1, 2))
    names = write_estimates(tmp_path / "bare.npz", alone)
    assert names.isdisjoint({"cov", "var"})
    assert read_recording(tmp_path / "bare.npz").bare
