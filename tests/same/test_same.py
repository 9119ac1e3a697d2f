"""The comparer on documents made up here: what it finds, and what it is told to leave out."""

from __future__ import annotations

import json

import pytest

from tests.same.__main__ import told
from tests.same.compare import LEFT_OUT, LeftOut, Part, compare

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


def test_equal_documents_are_the_same_and_none_or_one_alone_are_not(compared, tmp_path):
    both = {"metrics.txt": METRICS, "live/answers.json": document(mean=[1.0, float("nan")])}
    found = compared(both, both)
    assert (found.same, found.documents) == (True, 2)
    assert not compare(tmp_path / "none", tmp_path / "none", ()).same
    (difference,) = compared(both | {"b.txt": "b"}, both).differences
    assert difference.document == "b.txt"


@pytest.mark.parametrize(
    ("name", "base", "work", "field"),
    [
        ("a.json", document(mean=[1.0]), document(mean=[1.0000000000000002]), "[0].frame.mean[0]"),
        ("a.json", document(id=1), document(), "[0].frame.id"),
        ("a.json", document(), document(id=1), "[0].frame.id"),
        ("a.json", document(mean=[1.0]), document(mean=[1.0, 2.0]), "[0].frame.mean[]"),
        ("a.json", document(id=1), document(id="1"), "[0].frame.id"),
        ("a.json", document(id=1), document(id=1).replace(": 1", ":  1"), "line 4"),
        ("a.json", document(id=1.0), document(id=1.0).replace("1.0", "1.00"), "[0].frame.id"),
        ("m.txt", METRICS, METRICS.replace("1.0", "2.0"), "line 2"),
    ],
)
def test_a_difference_is_named_by_its_path_or_its_line(compared, name, base, work, field):
    found = compared({name: base}, {name: work})
    (difference,) = found.differences
    assert (difference.document, difference.field, found.same) == (name, field, False)
    assert f"{name}: {field}" in told(found)


CLOCK = LeftOut("*m.txt", "age_seconds", "a clock")
TIME = LeftOut("*.json", r"\[\]\.frame\.time", "a clock")
GAIN = LeftOut("a.json", r"\[\]\.frame\.gain", "rounding", Part.LAST_DIGITS)
ORDER = LeftOut("m.txt", "a", "a dictionary", Part.ORDER)
GAINED, LINES = document(gain=0.125), 'a{b="1"} 1\na{b="2"} 2\n'


@pytest.mark.parametrize(
    ("entry", "name", "base", "same", "different"),
    [
        (CLOCK, "live/m.txt", METRICS, ("0.25", "0.5"), ("Some", "Any")),
        (TIME, "a.json", document(time="a", id=1), ('"a"', '"b"'), (": 1", ": 2")),
        (GAIN, "a.json", GAINED, ("0.125", "0.12500000000001"), ("0.125", "0.1250001")),
        (ORDER, "m.txt", LINES, (LINES, 'a{b="2"} 2\na{b="1"} 1\n'), ("} 1", "} 3")),
    ],
)
def test_what_is_left_out_is_left_out_and_nothing_beside_it(
    compared, entry, name, base, same, different
):
    assert compared({name: base}, {name: base.replace(*same)}, entry).same
    assert not compared({name: base}, {name: base.replace(*different)}, entry).same


def test_an_entry_that_matches_nothing_is_said_and_none_leaves_an_answer_out(compared):
    entry = LeftOut("metrics.txt", "gone_seconds", "a clock")
    found = compared({"metrics.txt": METRICS}, {"metrics.txt": METRICS}, entry)
    assert (found.unused, found.same) == ((entry,), False)
    assert "gone_seconds" in told(found)
    assert not [entry for entry in LEFT_OUT if "answers" in entry.documents]
