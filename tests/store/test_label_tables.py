"""Labelled objects from files: what is asked for comes back, and every mistake names its place."""

import gzip
import re

import pytest

from monitor.store.labels import labels_of, read_label_table
from monitor.store.tables import RecordingError

TABLE = """\
seq,frame,t,class,gt_id,x,y,yaw,occluded
a,0,0.0,Car,7,1.0,2.0,0.1,0
a,0,0.0,Person,8,3.0,4.0,,0
a,1,0.1,Car,7,1.5,2.5,0.1,3
b,4,0.4,Car,7,5.0,6.0,0.2,0
c,?,?,Car,?,?,?,?,?
"""


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "labels.csv"
    path.write_text(TABLE)
    return path


def read(path, sequences=("a", "b"), classes=("Car",), dimensions=("x", "y")):
    table = read_label_table(path)
    return labels_of(table, sequences=sequences, classes=classes, dimensions=dimensions)


def rows(labels):
    """Each label as frame, object, seconds, position."""
    columns = (labels.frame, labels.id, labels.time_s, labels.position)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_labels_come_by_sequence_and_class_in_the_dimensions_asked_for(table, tmp_path):
    found = read(table, classes=("Person", "Car"))
    assert list(found) == ["a", "b"]
    assert rows(found["a"]["Car"]) == [(0, 7, 0.0, [1.0, 2.0]), (1, 7, 0.1, [1.5, 2.5])]
    assert rows(found["a"]["Person"]) == [(0, 8, 0.0, [3.0, 4.0])]
    assert rows(found["b"]["Car"]) == [(4, 7, 0.4, [5.0, 6.0])]
    assert found["b"]["Person"].position.shape == (0, 2)
    packed = tmp_path / "labels.csv.gz"
    packed.write_bytes(gzip.compress(table.read_bytes()))
    turned = read(packed, dimensions=("yaw", "x"))
    assert turned["a"]["Car"].position.tolist() == [[0.1, 1.0], [0.1, 1.5]]
    # Rows of what is not played may hold anything.
    table.write_text(TABLE + "a,?,,Tram,,,,,\nd,0,0,Car,1,nan,,,\n")
    assert read(table)["a"]["Car"].frame.size == 2


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
        (
            {"sequences": ("a", "z")},
            "there is no label of sequence 'z'. Sequences there are: a, b, c. "
            "Add labels, or play less with --where.",
        ),
        (
            {"classes": ("Car", "Tram")},
            "there is no label of class 'Tram'. Classes there are: Car, Person. "
            "Add labels, or play less with --class.",
        ),
    ],
)
def test_what_there_is_no_label_of_is_named(table, asked, sentence):
    with pytest.raises(RecordingError, match=re.escape(sentence)) as caught:
        read(table, **asked)
    assert str(table) in str(caught.value)


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("a,2,0.2,Car,7,far,2,0,0", "line 7: x is 'far', not a number. Correct the cell or leave"),
        ("a,2,0.2,Car,7,nan,2,0,0", "line 7: x is nan, not finite. Correct the cell or leave"),
        ("a,2.5,0.2,Car,7,1,2,0,0", "line 7: frame is '2.5', not a whole number"),
        ("a,-1,0.2,Car,7,1,2,0,0", "line 7: frame is -1, but frames count from 0. Renumber"),
        ("a,1,0.1,Car,7,9,9,0,0", "line 7: gt_id 7 is labelled twice in frame 1. Give each"),
        ("a,2,0.2,Car", "line 7: 4 cells, but the header names 9 columns."),
    ],
)
def test_a_broken_row_is_refused_with_place_value_and_remedy(table, row, sentence):
    table.write_text(TABLE + row + "\n")
    with pytest.raises(RecordingError, match=re.escape(sentence)) as caught:
        read(table, classes=("Car", "Person"))
    assert str(table) in str(caught.value)


@pytest.mark.parametrize("column", ["frame", "t", "gt_id"])
def test_a_missing_column_is_named(table, column):
    table.write_text(TABLE.replace(f"{column},", "other,", 1))
    with pytest.raises(RecordingError, match=f"there is no column '{column}'"):
        read(table)
