"""The comparer on documents made up here: what it finds, and what it is told to leave out."""

from __future__ import annotations

import json

import pytest

from tests.same.__main__ import MUTATIONS, mutated, told
from tests.same.compare import LEFT_OUT, LeftOut, Part, compare
from tests.same.scene import BEGIN, live_steps, write_files

METRICS = "# HELP a_total Some.\na_total 1.0\nage_seconds 0.25\n"


@pytest.fixture
def compared(tmp_path):
    """Compares two sets of documents, given as texts by name."""

    def of(base, work, *left_out):
        for name, documents in (("base", base), ("work", work)):
            for document, text in documents.items():
                path = tmp_path / name / document
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, "utf-8")
        return compare(tmp_path / "base", tmp_path / "work", left_out)

    return of


def document(**values):
    return json.dumps([{"frame": values, "bytes": "00ff"}], indent=1)


def test_equal_documents_are_the_same_and_none_at_all_are_not(compared, tmp_path):
    both = {"metrics.txt": METRICS, "live/answers.json": document(mean=[1.0, float("nan")])}
    found = compared(both, both)
    assert found.same
    assert found.documents == 2
    assert not compare(tmp_path / "none", tmp_path / "none", ()).same


@pytest.mark.parametrize(
    ("name", "base", "work", "field"),
    [
        ("a.json", document(mean=[1.0]), document(mean=[1.0000000000000002]), "[0].frame.mean[0]"),
        ("a.json", document(id=1), document(id=2), "[0].frame.id"),
        ("a.json", document(id=1), document(), "[0].frame.id"),
        ("a.json", document(), document(id=1), "[0].frame.id"),
        ("a.json", document(mean=[1.0]), document(mean=[1.0, 2.0]), "[0].frame.mean[]"),
        ("a.json", document(), document().replace("00ff", "00fe"), "[0].bytes"),
        ("a.json", document(id=1), document(id="1"), "[0].frame.id"),
        ("a.json", document(id=1), document(id=1).replace(": 1", ":  1"), "line 4"),
        ("a.json", document(id=1.0), document(id=1.0).replace("1.0", "1.00"), "[0].frame.id"),
        ("m.txt", METRICS, METRICS.replace("1.0", "2.0"), "line 2"),
    ],
)
def test_a_difference_is_named_by_its_path_or_its_line(compared, name, base, work, field):
    found = compared({name: base}, {name: work})
    (difference,) = found.differences
    assert (difference.document, difference.field) == (name, field)
    assert f"{name}: {field}" in told(found)
    assert not found.same


@pytest.mark.parametrize("missing", ["base", "work"])
def test_a_document_of_one_tree_alone_is_a_difference(compared, missing):
    sides = {"base": {"a.txt": "a", "b.txt": "b"}, "work": {"a.txt": "a", "b.txt": "b"}}
    del sides[missing]["b.txt"]
    (difference,) = compared(sides["base"], sides["work"]).differences
    assert difference.document == "b.txt"


CLOCK = LeftOut("*m.txt", "age_seconds", "a clock")
TIME = LeftOut("*.json", r"\[\]\.frame\.time", "a clock")
DIGITS = LeftOut("m.txt", "age_seconds", "rounding", Part.LAST_DIGITS)
GAIN = LeftOut("a.json", r"\[\]\.frame\.gain", "rounding", Part.LAST_DIGITS)
ORDER = LeftOut("m.txt", "a", "a dictionary", Part.ORDER)
GAINED = document(gain=0.125)


@pytest.mark.parametrize(
    ("entry", "name", "base", "work", "same"),
    [
        (CLOCK, "live/m.txt", METRICS, METRICS.replace("0.25", "0.5"), True),
        (CLOCK, "live/m.txt", METRICS, METRICS.replace("Some", "Any"), False),
        (TIME, "a.json", document(time="a", id=1), document(time="b", id=1), True),
        (TIME, "a.json", document(time="a", id=1), document(time="b", id=2), False),
        (DIGITS, "m.txt", "age_seconds 0.125\n", "age_seconds 0.12500000000001\n", True),
        (DIGITS, "m.txt", "age_seconds 0.125\n", "age_seconds 0.1250001\n", False),
        (GAIN, "a.json", GAINED, GAINED.replace("0.125", "0.12500000000001"), True),
        (GAIN, "a.json", GAINED, GAINED.replace("0.125", "0.1250001"), False),
        (ORDER, "m.txt", 'a{b="1"} 1\na{b="2"} 2\n', 'a{b="2"} 2\na{b="1"} 1\n', True),
        (ORDER, "m.txt", 'a{b="1"} 1\na{b="2"} 2\n', 'a{b="2"} 2\na{b="1"} 3\n', False),
    ],
)
def test_what_is_left_out_is_left_out_and_nothing_beside_it(
    compared, entry, name, base, work, same
):
    assert compared({name: base}, {name: work}, entry).same is same


def test_an_entry_that_matches_nothing_is_said(compared):
    entry = LeftOut("metrics.txt", "gone_seconds", "a clock")
    found = compared({"metrics.txt": METRICS}, {"metrics.txt": METRICS}, entry)
    assert found.unused == (entry,)
    assert not found.same
    assert "gone_seconds" in told(found)


def test_every_entry_has_a_reason_and_leaves_no_answer_out():
    assert all(entry.reason for entry in LEFT_OUT)
    assert not [entry for entry in LEFT_OUT if "answers" in entry.documents]


def test_the_scene_is_the_same_each_time(tmp_path):
    assert live_steps() == live_steps()
    folders = tmp_path / "a", tmp_path / "b"
    for folder in folders:
        folder.mkdir()
        write_files(folder)
    first, second = ({p.name: p.read_bytes() for p in folder.iterdir()} for folder in folders)
    assert first == second
    assert BEGIN == 1_700_000_000 * 10**9


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_every_change_that_the_proof_makes_is_found_in_the_sources(mutation, tmp_path):
    mutated(mutation, tmp_path / "tree")
