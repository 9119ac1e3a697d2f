"""Recorded files: what is read comes back, and every mistake is named with its remedy."""

import gzip
import re
from typing import Any

import numpy as np
import pytest

from monitor.frames.space import DimensionKind
from monitor.store.labels import labels_of, read_label_table
from monitor.store.recordings import (
    Recording,
    not_used,
    read_columns,
    read_recording,
    write_estimates,
)
from monitor.store.tables import NO_TRACK, RecordingError

TABLE = """\
seq,role,frame,t,class,score,x,y,yaw,var_x,var_y,var_yaw,cov_y_x,gt_id,ignore,gt_x,gt_y,gt_yaw
a,fit,0,0.0,Car,8.5,1.0,2.0,0.1,0.5,0.25,0.01,0.125,7,0,1.5,2.5,0.2
a,fit,1,0.1,Person,,3.0,4.0,0.2,1.0,1.0,0.02,0,,1,,,
b,deploy,4,0.4,Car,7,5.0,6.0,0.3,2.0,2.0,0.03,-0.5,9.0,,5.5,6.5,
b,deploy,9,0.9,Person,2,7.0,8.0,0.4,3.0,3.0,0.04,0.25,3,true,7.5,8.5,0.5
"""


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(TABLE)
    return path


def written(tmp_path, text, name="broken.csv"):
    path = tmp_path / name
    path.write_text(text)
    return path


def archive(tmp_path, **arrays):
    path = tmp_path / "archive.npz"
    np.savez(path, **arrays)
    return path


def gaussians(n=3, k=2, **more):
    """Arrays of a valid archive."""
    mean = np.arange(n * k, dtype=float).reshape(n, k)
    return {"mean": mean, "var": np.full((n, k), 0.5), "gt": mean + 1.0} | more


def assert_holds(found: Any, **expected: Any) -> None:
    """Compares arrays and values by name; NaN equals NaN."""
    for name, value in expected.items():
        np.testing.assert_array_equal(getattr(found, name), value, name)


def has_truth(found: Recording) -> list[bool]:
    assert (np.isnan(found.truth).all(axis=1) == np.isnan(found.truth).any(axis=1)).all()
    return [not np.isnan(row).all() for row in found.truth]


def test_a_csv_file_is_read_whole(table):
    found = read_recording(table)
    assert found.space.names == ("x", "y", "yaw")
    kinds = [DimensionKind.LENGTH, DimensionKind.LENGTH, DimensionKind.ANGLE]
    assert [one.kind for one in found.space.dimensions] == kinds
    assert_holds(
        found,
        diagonal=False,
        classes=("Car", "Person"),
        class_index=[0, 1, 0, 1],
        sequences=("a", "b"),
        sequence_index=[0, 0, 1, 1],
        frame=[0, 1, 4, 9],
        time_s=[0.0, 0.1, 0.4, 0.9],
        score=[8.5, np.nan, 7.0, 2.0],
        track=[7, NO_TRACK, 9, 3],
        ignore=[False, True, False, True],
    )
    assert found.last_frame == {"a": 1, "b": 9}
    assert found.mean.tolist()[0] == [1.0, 2.0, 0.1]
    assert found.covariance[0].tolist() == [[0.5, 0.125, 0], [0.125, 0.25, 0], [0, 0, 0.01]]
    # A row has truth only if all chosen dimensions have, and it is not to be ignored.
    assert has_truth(found) == [True, False, False, False]


def test_what_is_asked_for_is_read_in_the_order_asked_for(table):
    plane = read_recording(table, dimensions=("y", "x"))
    assert has_truth(plane) == [True, False, True, False]
    assert plane.truth[2].tolist() == [6.5, 5.5]
    assert plane.covariance[2].tolist() == [[2.0, -0.5], [-0.5, 2.0]]
    # Rows count the file as it stands, and the last frame is that of the whole file.
    some = read_recording(table, rows=slice(1, 4), classes=("Person",))
    assert_holds(some, classes=("Person",), class_index=[0, 0])
    assert some.mean[:, 0].tolist() == [3.0, 7.0]
    some = read_recording(table, where=(("role", "deploy"), ("class", "Car")))
    assert_holds(some, classes=("Car", "Person"), sequences=("b",), sequence_index=[0])
    assert (some.mean[:, 0].tolist(), some.last_frame) == ([5.0], {"a": 1, "b": 9})
    other = read_recording(table, classes=("Person", "Car"), angles=("x",))
    assert_holds(other, classes=("Person", "Car"), class_index=[1, 0, 1, 0])
    assert [one.kind is DimensionKind.ANGLE for one in other.space.dimensions] == [1, 0, 0]


@pytest.mark.parametrize("column", ["cov_a_b", "cov_b_a", "cov_ab", "cov_ba"])
def test_a_covariance_is_found_in_every_spelling(tmp_path, column):
    path = written(tmp_path, f"a,b,var_a,var_b,{column}\n1,2,3,4,0.5\n")
    assert read_recording(path).covariance.tolist() == [[[3.0, 0.5], [0.5, 4.0]]]


def test_a_file_of_variances_is_diagonal_and_may_have_nothing_else(tmp_path):
    found = read_recording(written(tmp_path, "x,var_x\r\n\r\n1,2\r\n", "lean.csv"))
    assert found.diagonal
    assert found.covariance.tolist() == [[[2.0]]]
    assert has_truth(found) == [False]
    assert (found.classes, found.sequences, found.last_frame) == (("object",), ("lean",), {})
    names = ("frame", "time_s", "score", "track", "ignore")
    assert all(getattr(found, name) is None for name in names)


def test_many_rows_keep_their_order(tmp_path):
    lines = "".join(f"{i},1\n" for i in range(3000))
    found = read_recording(written(tmp_path, "x,var_x\n" + lines))
    assert found.mean[:, 0].tolist() == list(range(3000))


def test_an_archive_with_covariances_comes_back(tmp_path):
    root = np.random.default_rng(1).normal(size=(3, 2, 2))
    covariance = root @ root.transpose(0, 2, 1)
    arrays = gaussians(**{"cov": covariance, "class": np.array([2, 10, 2]), "frame": [4, 5, 6]})
    arrays["gt"][1, 0] = np.nan
    found = read_recording(archive(tmp_path, track=np.array([7.0, np.nan, 8.0]), **arrays))
    assert found.space.names == ("0", "1")
    assert_holds(found, mean=arrays["mean"], classes=("2", "10"), class_index=[0, 1, 0])
    assert_holds(found, diagonal=False, track=[7, NO_TRACK, 8])
    assert found.covariance == pytest.approx(covariance, rel=1e-15)
    assert has_truth(found) == [True, False, True]
    assert found.last_frame == {"archive": 6}


def test_an_archive_is_read_with_what_it_has_of_each_row(tmp_path):
    start = 1_700_000_000_000_000_000
    arrays = gaussians(
        score=np.array([1, 2, 3]),
        ignore=np.array([False, True, False]),
        night=np.array([0, 1, 0]),
        stamp_ns=np.array([start + 1, start, start + 10**9]),
    )
    del arrays["gt"]
    found = read_recording(archive(tmp_path, **arrays))
    assert has_truth(found) == [False] * 3
    assert_holds(found, score=[1.0, 2.0, 3.0], ignore=[False, True, False])
    # Stamps become seconds from the first without losing nanoseconds.
    assert_holds(found, stamp_ns=arrays["stamp_ns"])
    assert found.time_s == pytest.approx([1e-9, 0.0, 1.0], rel=1e-12)
    # Values are compared as text.
    some = read_recording(archive(tmp_path, **arrays), where=(("night", "0"),))
    assert some.mean[:, 0].tolist() == [0.0, 4.0]


def test_names_of_images_number_frames_if_their_last_number_tells_them_apart(tmp_path):
    rows = "frame_0002.png,a,1,1\nframe_0010.png,a,1,1\nframe_0002.png,b,1,1\n"
    found = read_recording(written(tmp_path, f"frame,seq,x,var_x\n{rows}"))
    assert_holds(found, frame=[2, 10, 2])
    for other in ("left_0002.png,a,1,1", "one.png,a,1,1", "2.5,a,1,1"):
        with pytest.raises(RecordingError, match="whole number"):
            read_recording(written(tmp_path, f"frame,seq,x,var_x\n{rows}{other}\n"))


def test_a_deviation_stands_for_its_square_and_a_negative_one_for_no_variance(tmp_path):
    path = written(tmp_path, "x,y,std_x,var_y,cov_xy\n1,2,3,4,0.5\n1,2,-3,4,0\n")
    found = read_recording(path)
    assert found.space.names == ("x", "y")
    assert found.covariance.tolist() == [[[9.0, 0.5], [0.5, 4.0]], [[-9.0, 0.0], [0.0, 4.0]]]
    read = read_recording(archive(tmp_path, mean=np.ones((1, 2)), std=np.array([[2.0, -1.0]])))
    assert (read.covariance.tolist(), read.diagonal) == ([[[4.0, 0.0], [0.0, -1.0]]], True)


def test_names_are_mapped_deviations_assumed_and_the_other_columns_told(tmp_path):
    path = written(tmp_path, "px,spread,gt_px,y,gt_y,label,Confidence\n1,4,2,5,6,Car,0.5\n")
    names = {"x": "px", "var_x": "spread", "gt_x": "gt_px", "class": "label"}
    found = read_recording(path, names_here=names, deviations={"y": 3.0})
    assert_holds(found, mean=[[1.0, 5.0]], covariance=[[[4.0, 0.0], [0.0, 9.0]]], classes=("Car",))
    assert found.unused == ("Confidence",)
    assert "--map score=Confidence" in (not_used(found) or "")
    with pytest.raises(RecordingError, match="the file has var_x"):
        read_recording(path, names_here=names, deviations={"x": 1.0})


def test_columns_by_name_read_as_the_file_that_has_them(table):
    found, columns = read_recording(table), read_columns(table, {})
    cells: dict[str, Any] = {name: columns.values(name) for name in columns.names}
    for name in cells.keys() - {"seq", "role", "class", "ignore"}:
        cells[name] = np.array([float(cell or "nan") for cell in cells[name]])
    cells["class"] = cells["class"].astype(object)
    cells["ignore"] = np.array([False, True, None, True], object)
    # NA of pandas, which cannot be compared.
    missing = type("NAType", (), {"__repr__": lambda _: "<NA>", "__ne__": lambda *_: 1 / 0})()
    cells["gt_id"] = np.array([7, missing, 9, 3], object)
    read = read_recording(cells)
    for name in ("mean", "covariance", "truth", "class_index", "sequences", "track", "ignore"):
        assert_holds(read, **{name: getattr(found, name)})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "the file is empty. Begin it with a line of column names"),
        ("a,b\n1,2\n", "no dimension has a mean and a variance. Columns there are: a, b."),
        ("x,x_std\n1,2\n", "Give --map std_x=x_std."),
        ("x,var_x,x\n1,2,3\n", "column 'x' appears twice. Rename one of them."),
        ("x,var_x\n1,2\n1\n", "line 3: 1 cells, but the header names 2 columns."),
        ("x,var_x\n\n1,2\n1,wide\n", "line 4: var_x is 'wide', not a number. Correct the cell"),
        ("x,y,var_x,var_y,cov_xy,cov_y_x\n1,1,1,1,0,0\n", "columns 'cov_xy' and 'cov_y_x' give"),
        ("x,var_x,cov_xq\n1,2,0\n", "column 'cov_xq' must name two dimensions"),
        ("var_x\n1\n", "no column 'x'. Columns there are: var_x."),
        ("x,var_x,gt_x\n1,2,\n1,2,far\n", "line 3: gt_x is 'far', not a number."),
        ("x,var_x,t\n1,2,\n", "line 2: t is '', not a number."),
        ("x,var_x,frame\n1,2,1.5\n", "line 2: frame is '1.5', not a whole number"),
        ("x,var_x,track\n1,2,9223372036854775808\n", "track is '9223372036854775808', not a"),
        ("x,var_x,track\n1,2,inf\n", "line 2: track is 'inf', not a whole number"),
        ("x,var_x,ignore\n1,2,perhaps\n", "line 2: ignore is 'perhaps', not"),
    ],
)
def test_a_broken_table_is_refused_with_place_value_and_remedy(tmp_path, text, sentence):
    path = written(tmp_path, text)
    with pytest.raises(RecordingError, match=re.escape(sentence)) as caught:
        read_recording(path)
    assert str(path) in str(caught.value)


OBJECTS = np.array([None, {}, 1], dtype=object)


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"prob": np.ones((3, 2))}, "Arrays there are: prob. To class probabilities, fit a"),
        (
            {"mean": np.ones((3, 2)), "covariance": np.ones((3, 2, 2))},
            "'std' [N, K]. If it is 'covariance', give --map cov=covariance, or var or std in",
        ),
        (gaussians(var=np.ones((2, 2))), "var has shape (2, 2), but mean has (3, 2). Save var as"),
        (gaussians(frame=np.array([0, 1, 2.5])), "frame[2] is 2.5, not a whole number"),
        ({"mean": np.ones(3), "var": np.ones(3)}, "mean has shape (3,). Save it as [N, K]"),
        (gaussians(mean=np.full((3, 2), "a")), "array 'mean' holds <U1, not numbers."),
        (gaussians(frame=np.zeros(2)), "frame has shape (2,), but there are 3 rows."),
        (gaussians(dimensions=["x", "x"]), "dimensions is ['x', 'x'], but mean has 2"),
        (gaussians(ignore=np.array([0, 1, 2])), "ignore[2] is 2, not 0 or 1."),
        (gaussians(gt_id=np.array([1, 2.5, 3])), "gt_id[1] is 2.5, not a whole number"),
        (gaussians(extra=OBJECTS), "array 'extra' cannot be read: it holds Python objects"),
        (
            gaussians(cov=np.array([np.eye(2), [[1.0, 0.1], [0.2, 1.0]], np.eye(2)])),
            "cov[1] is not symmetric (1 of 3 rows). Save (cov + cov transposed) / 2.",
        ),
    ],
)
def test_a_broken_archive_is_refused_with_place_value_and_remedy(tmp_path, arrays, sentence):
    path = archive(tmp_path, **arrays)
    with pytest.raises(RecordingError, match=re.escape(sentence)) as caught:
        read_recording(path)
    assert str(path) in str(caught.value)


def test_what_cannot_be_asked_of_a_table_is_refused(table):
    for names, said in (((), "no dimension is asked for"), (("x", "x"), "asked for twice in x, x")):
        with pytest.raises(RecordingError, match=said):
            read_recording(table, dimensions=names)
    with pytest.raises(RecordingError, match=r"none of 4 rows is left by role=test\. role has "):
        read_recording(table, where=(("role", "test"),))


def test_a_file_that_is_not_there_or_of_another_kind_is_refused(tmp_path):
    with pytest.raises(
        RecordingError, match=r"gone\.csv: cannot be read \(No such file .*\)\. Check the path"
    ):
        read_recording(tmp_path / "gone.csv")
    with pytest.raises(RecordingError, match=r"must end in \.csv, \.csv\.gz, \.parquet"):
        read_recording(tmp_path / "table.xls")
    with pytest.raises(RecordingError, match=r"must end in \.csv or \.csv\.gz\."):
        read_label_table(tmp_path / "labels.npz")
    packed = gzip.compress(b"x,var_x\n1,1\n" * 99)
    for name, data, said in (
        ("bytes.csv", b"x,\xff\n", "it is no text in UTF-8"),
        ("bytes.npz", b"x", "it is no archive of NumPy"),
        ("plain.csv.gz", b"x,var_x\n1,1\n", "its name ends in .gz"),
        ("cut.csv.gz", packed[:30], "it is cut off"),
        ("bad.csv.gz", packed[:10] + b"\xff" + packed[11:], "it is damaged"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(RecordingError, match=re.escape(f"{name}: cannot be read ({said}")):
            read_recording(tmp_path / name)


def test_what_is_known_of_each_row_is_written_and_read_again(table, tmp_path):
    stamped = archive(
        tmp_path, **gaussians(), stamp_ns=np.arange(3) * 7 + 2**60, seq=np.array(["a", "b", "b"])
    )
    for path in (table, stamped):
        found = read_recording(path, rows=slice(1, None))
        again_path = tmp_path / "again.npz"
        names = write_estimates(again_path, found)
        with np.load(again_path) as there:
            assert names == set(there.files)
        again = read_recording(again_path)
        assert again.space == found.space and again.diagonal == found.diagonal
        named = [np.array(one.classes)[one.class_index].tolist() for one in (found, again)]
        assert named[0] == named[1]
        assert again.sequences == found.sequences
        names = frozenset(("mean", "covariance", "truth", "sequence_index", "frame", "time_s"))
        names |= {"score", "track", "ignore", "stamp_ns"}
        assert_holds(again, **{name: getattr(found, name) for name in names})


@pytest.mark.parametrize(
    ("ids", "tracks"),
    [
        (["7", "", "3.0", "7"], [7, -1, 3, 7]),
        (["b", "", "a", "b"], [1, -1, 0, 1]),
        (["9", "10", "x1", "9"], [1, 0, 2, 1]),
    ],
)
def test_a_gt_id_may_be_a_number_or_any_name(tmp_path, ids, tracks):
    path = written(tmp_path, "x,var_x,gt_x,gt_id\n" + "".join(f"1,1,1,{id}\n" for id in ids))
    assert_holds(read_recording(path), track=tracks)
    found = read_recording(archive(tmp_path, mean=np.ones((4, 1)), var=np.ones((4, 1)), gt_id=ids))
    names = sorted(set(ids) - {""})
    assert_holds(found, track=[names.index(id) if id else -1 for id in ids])


LABELS = """\
seq,frame,t,class,gt_id,x,y,yaw,occluded
a,0,0.0,Car,7,1.0,2.0,0.1,0
a,0,0.0,Person,8,3.0,4.0,,0
a,1,0.1,Car,7,1.5,2.5,0.1,3
b,4,0.4,Car,7,5.0,6.0,0.2,0
c,?,?,Car,?,?,?,?,?
"""


@pytest.fixture
def labelled(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text(LABELS)
    return path


def read(path, sequences=("a", "b"), classes=("Car",), dimensions=("x", "y")):
    table = read_label_table(path)
    return labels_of(table, sequences=sequences, classes=classes, dimensions=dimensions)


def rows(labels):
    """Each label as frame, object, seconds, position."""
    columns = (labels.frame, labels.id, labels.time_s, labels.position)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_labels_come_by_sequence_and_class_in_the_dimensions_asked_for(labelled, tmp_path):
    found = read(labelled, classes=("Person", "Car"))
    assert list(found) == ["a", "b"]
    assert rows(found["a"]["Car"]) == [(0, 7, 0.0, [1.0, 2.0]), (1, 7, 0.1, [1.5, 2.5])]
    assert rows(found["a"]["Person"]) == [(0, 8, 0.0, [3.0, 4.0])]
    assert rows(found["b"]["Car"]) == [(4, 7, 0.4, [5.0, 6.0])]
    assert found["b"]["Person"].position.shape == (0, 2)
    packed = tmp_path / "labels.csv.gz"
    packed.write_bytes(gzip.compress(labelled.read_bytes()))
    turned = read(packed, dimensions=("yaw", "x"))
    assert turned["a"]["Car"].position.tolist() == [[0.1, 1.0], [0.1, 1.5]]
    # Rows of what is not played may hold anything.
    labelled.write_text(LABELS + "a,?,,Tram,,,,,\nd,0,0,Car,1,nan,,,\n")
    assert read(labelled)["a"]["Car"].frame.size == 2


def test_a_single_sequence_and_one_kind_of_object_need_no_column_but_several_do(tmp_path):
    path = tmp_path / "lean.csv"
    path.write_text("frame,t,gt_id,x\n3,0.3,1,2.5\n")
    found = read(path, sequences=("drive",), classes=("object",), dimensions=("x",))
    assert rows(found["drive"]["object"]) == [(3, 1, 0.3, [2.5])]
    with pytest.raises(RecordingError, match=re.escape("no column 'seq', but 2 sequences")):
        read(path, classes=("object",), dimensions=("x",))


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"sequences": ("a", "z")}, "no label of sequence 'z'. Sequences there are: a, b, c. Add"),
        ({"classes": ("Car", "Tram")}, "no label of class 'Tram'. Classes there are: Car, Person."),
    ],
)
def test_what_there_is_no_label_of_is_named(labelled, asked, sentence):
    with pytest.raises(RecordingError, match=re.escape(sentence)) as caught:
        read(labelled, **asked)
    assert str(labelled) in str(caught.value)


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("a,2,0.2,Car,7,far,2,0,0", "line 7: x is 'far', not a number. Correct the cell, empty"),
        ("a,-1,0.2,Car,7,1,2,0,0", "line 7: frame is -1, but frames count from 0. Renumber"),
        ("a,2,0.2,Car,7,nan,2,0,0", "line 7: x is nan, not finite. Correct the cell or leave"),
        ("a,1,0.1,Car,7,9,9,0,0", "line 7: gt_id 7 is labelled twice in frame 1. Give each"),
        ("a,2,0.2,Car", "line 7: 4 cells, but the header names 9 columns."),
    ],
)
def test_a_broken_row_is_refused_with_place_value_and_remedy(labelled, row, sentence):
    labelled.write_text(LABELS + row + "\n")
    with pytest.raises(RecordingError, match=re.escape(sentence)) as caught:
        read(labelled, classes=("Car", "Person"))
    assert str(labelled) in str(caught.value)


@pytest.mark.parametrize("column", ["frame", "t", "gt_id"])
def test_a_missing_column_is_named(labelled, column):
    labelled.write_text(LABELS.replace(f"{column},", "other,", 1))
    with pytest.raises(RecordingError, match=f"there is no column '{column}'"):
        read(labelled)
