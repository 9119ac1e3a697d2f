"""Reads what is said of labels in a file of their own: what was found, which values, what to do."""

from __future__ import annotations

import json
import re

import pytest

from monitor.cli import main
from tests.commands.spoken import refused, spoken

DETECTIONS = [
    {"seq": seq, "frame": frame, "t": frame / 10, "class": name, "x": x, "y": 0.0}
    for seq in ("drive0", "drive1")
    for frame in range(20)
    for x, name in ((0.0, "Car"), (30.0, "Person"))
]
LABELS = [one | {"gt_id": int(one["x"])} for one in DETECTIONS]


def written(path, rows):
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def words(tmp_path):
    """Words of a command that evaluates detections with labels."""
    detections = written(tmp_path / "d.csv", [one | {"var_x": 1, "var_y": 1} for one in DETECTIONS])
    return lambda labels, *more: (
        "evaluate", detections, "--labels", written(tmp_path / "l.csv", labels), *more
    )  # fmt: skip


def without(rows, *names):
    return [{name: value for name, value in row.items() if name not in names} for row in rows]


def changed(rows, name, change):
    return [row | {name: change(row[name])} for row in rows]


def said(words):
    code, _, err = spoken(*words)
    assert code == 0, err
    return err


def labels_in(sentence):
    counts = re.sub(r" \(.*?\)", "", sentence.split(": ", 1)[1]).split("; ")[0]
    found = [int(number) for number in re.findall(r"\d+", counts)]
    return found.pop(1), sum(found)


NOTHING_SHARED = [
    (changed(LABELS, "seq", "n{}".format), ("have ndrive0, ndrive1; ", "have drive0, drive1.")),
    (changed(LABELS, "frame", lambda n: n + 50), ("drive0: 50 to 69 in", " 0 to 19 in the det")),
    (
        without(changed(LABELS, "t", lambda t: t + 1000), "frame"),
        ("within 1 s", "1000 to 1001.9 s in the labels, 0 to 1.9 s in"),
    ),
    (changed(LABELS, "class", str.lower), ("--class-map car=Car,person=Person.",)),
    (
        changed(LABELS, "class", "n{}".format),
        ("have nCar, nPerson; ", "have Car, Person.", "--class-map THEIRS=OURS"),
    ),
    (changed(LABELS, "y", lambda y: y + 9), ("Check that frames, sequences",)),
    (without([row | {"scene": 1} for row in LABELS], "seq"), ("--label-map seq=scene",)),
]


@pytest.mark.parametrize(("labels", "expected"), NOTHING_SHARED)
def test_labels_that_cannot_match_are_refused_with_what_differs(words, labels, expected):
    _, _, err = spoken(*words(labels))
    for part in expected:
        assert part in err.splitlines()[-1]


def test_labels_without_a_clock_of_the_detections_offer_the_maps_of_both_files(words):
    labels = [{"stamp_ns": 1} | one for one in without(LABELS, "frame", "t")]
    assert "name it by --map, or by --label-map." in refused(*words(labels))


@pytest.mark.parametrize("more", [("--class-map", "car=Cars"), ("--gate", "Cars=3")])
def test_an_option_that_names_no_class_of_the_detections_is_refused(words, more):
    line = refused(*words(LABELS, *more))
    assert f"{more[0]} {more[1]}: the detections have no class 'Cars'" in line
    assert "Car, Person" in line
    # Another class may have been left out by --class.
    assert "chosen detections have no class" in said(words(LABELS, *more, "--class", "Car"))


def test_a_distance_of_boxes_is_refused_where_the_files_have_none(words):
    assert "share no dimension l, w, yaw, but x, y" in refused(*words(LABELS, "--distance=bev-iou"))


def test_every_label_is_in_one_count_of_the_sentence(words):
    ignored, missed, nan, other = (dict(LABELS[0]) for _ in range(4))
    ignored["class"], missed["x"], nan["x"], other["seq"] = "Tram", 90, "nan", "night"
    ignored["gt_id"], missed["gt_id"], nan["gt_id"] = 100, 101, 102
    labels = [*LABELS, *LABELS[:7], ignored, missed, nan, other]
    sentence = said(words(labels))
    assert f"80 of {len(labels)} labels" in sentence
    assert "7 duplicate" in sentence
    assert labels_in(sentence) == (len(labels), len(labels))
    assert "1 ignored (of classes that the detections do not have, or marked ignore)" in sentence


def test_notes_say_what_a_file_lacks_and_what_is_not_used(words, capsys):
    assert "no label for sequence drive1 (40 detections)" in said(words(LABELS[:40]))
    assert "labels have no class, so" in said(words(without(LABELS, "class")))
    more = without([row | {"colour": 1, "id": 2} for row in LABELS], "gt_id")
    main([str(word) for word in words(more)])
    assert "not used: colour, id. Perhaps --label-map gt_id=id" in capsys.readouterr().err


def test_labels_match_in_the_plane_of_the_ground_of_the_format_and_others_are_told(tmp_path):
    """Cars in one lane of KITTI are 8 m apart in z, which is ahead; one of five is missed."""
    cars = [(frame, car) for frame in range(20) for car in range(12)]
    line = "{} {} Car 0 0 -1.5 10 20 30 50 1.5 1.6 4.0 2.0 1.7 {} -1.57"
    labels, detections = tmp_path / "labels.txt", tmp_path / "detections.txt"
    told = [line.format(frame, car, 8 * car) for frame, car in cars]
    labels.write_text("\n".join(told), encoding="utf-8")
    seen = [f"{one} 0.9 0.25" for i, one in enumerate(told) if i % 5]
    detections.write_text("\n".join(seen), encoding="utf-8")
    words = ("--labels", labels, "--assume-std", "x=0.3,y=0.3,z=0.3,w=0.2,l=0.2,yaw=0.1")
    for more in ((), ("--distance", "mahalanobis"), ("--distance", "bev-iou")):
        code, out, err = spoken("evaluate", detections, *words, *more, "--json")
        assert (code, json.loads(out)["dimensions"]["z"]["rmse"]) == (0, 0), err
        assert "matched (in x, z" in err
    # In a table, x and y are the ground: that these are other cars is said.
    columns = ("frame", "gt_id", "class", "x", "y", "z")
    rows = [dict(zip(columns, (f, car, "Car", 2, 1, 8 * car), strict=True)) for f, car in cars]
    some = without([one for i, one in enumerate(rows) if i % 5], "gt_id")
    files = (written(tmp_path / "d.csv", some), "--labels", written(tmp_path / "l.csv", rows))
    _, out, err = spoken("evaluate", *files, "--assume-std", "x=0.3,y=0.3,z=0.3", "--json")
    remarks = json.loads(out)["remarks"]
    assert any("5 σ in z (" in one and "--label-map y=z,z=y" in one for one in remarks), err
    _, out, err = spoken("evaluate", *files, "--assume-std", "x=0.3,z=0.3")
    assert "matched (in x, z)" in err
    assert "matched without y, which has no variance" in err


def test_many_misses_ask_for_units_and_many_near_matches_for_a_wider_gate(words):
    near = said(words(changed(LABELS, "y", lambda y: y + 1.8)))
    assert "80 matches near the gate (beyond 80 % of it)" in near
    assert "half and twice the --gate" in near
    far = changed(LABELS[:50], "y", lambda y: y + 9)
    missed = said(words(far + changed(LABELS[50:], "y", lambda y: y + 1.8)))
    assert "do frames, coordinates and units of both files agree?" in missed
    assert "wider" not in missed
