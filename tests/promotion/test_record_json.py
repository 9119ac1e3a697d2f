"""A record that was written as a line is read to the last bit; anything else is refused."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.promotion.records import Happened
from monitor.store.codec import InvalidDocument
from monitor.store.recalibrator_documents import RECORD_CODEC
from tests.promotion.random_records import RECORDS, record


def without_infinities(value: Any) -> Any:
    """What is no finite number as one token, all else as it is."""
    if isinstance(value, dict):
        return {name: without_infinities(one) for name, one in value.items()}
    if isinstance(value, tuple):
        return [without_infinities(one) for one in value]
    if isinstance(value, float):
        return value.hex() if math.isfinite(value) else "none"
    return value


@given(RECORDS)
def test_a_record_comes_back_to_the_last_bit_and_what_is_not_finite_as_nan(one):
    again = RECORD_CODEC.read(RECORD_CODEC.write(one))
    assert without_infinities(asdict(again)) == without_infinities(asdict(one))


@given(RECORDS)
def test_a_line_is_ascii_and_one_line_whatever_is_in_it(one):
    line = RECORD_CODEC.write(one)
    assert line.isascii()
    assert len(line.splitlines()) == 1


@given(RECORDS)
def test_a_line_is_json_as_every_other_program_reads_it(one):
    def refused(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    assert json.loads(RECORD_CODEC.write(one), parse_constant=refused)["what"] == one.what


def test_numbers_of_arrays_are_written_as_numbers():
    of_arrays: dict[str, Any] = {"event_ns": np.int64(5), "time_ns": np.int64(6)}
    one = replace(record(1), **of_arrays)
    assert RECORD_CODEC.read(RECORD_CODEC.write(one)) == one


def test_what_only_newer_code_knows_is_left_out():
    content = {**json.loads(RECORD_CODEC.write(record(3))), "signature": {"by": "somebody"}}
    assert RECORD_CODEC.read(json.dumps(content)) == record(3)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sequence", 0),
        ("sequence", 1.5),
        ("sequence", True),
        ("sequence", 2**63),
        ("time_ns", "now"),
        ("what", "vanished"),
        ("what", None),
        ("slice", None),
        ("actor", 7),
        ("event_ns", 0.5),
        ("evidence", []),
        ("evidence", {"tracks": 1}),
        ("evidence", {"tracks": -1}),
        ("factors", {}),
        ("factors", [1]),
        ("factors", [{"dimension": "x", "lowest": "a", "typical": 1, "highest": 1}]),
        ("factors", None),
    ],
)
def test_a_wrong_value_is_refused_with_its_field(field, value):
    content = {**json.loads(RECORD_CODEC.write(record(1))), field: value}
    named = rf"record\.{field}.*"
    with pytest.raises(InvalidDocument, match=f"'({named})'"):
        RECORD_CODEC.read(json.dumps(content))


@pytest.mark.parametrize("name", list(json.loads(RECORD_CODEC.write(record(1)))))
def test_a_record_without_one_of_its_fields_is_refused_or_lacks_what_it_may_lack(name):
    content = json.loads(RECORD_CODEC.write(record(1)))
    del content[name]
    if name in ("event_ns", "evidence", "factors"):
        assert not getattr(RECORD_CODEC.read(json.dumps(content)), name)
        return
    with pytest.raises(InvalidDocument, match=name):
        RECORD_CODEC.read(json.dumps(content))


@pytest.mark.parametrize(
    "line", ["", "{", "null", "[]", "7", "[" * 100_000, '{"sequence":' + "9" * 5000 + "}", b"\xff"]
)
def test_what_is_no_record_at_all_is_refused(line):
    with pytest.raises(InvalidDocument):
        RECORD_CODEC.read(line)


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(data):
    with pytest.raises(InvalidDocument):
        RECORD_CODEC.read(data)


def test_every_thing_that_can_happen_has_a_line():
    for what in Happened:
        assert RECORD_CODEC.read(RECORD_CODEC.write(record(1, what))).what is what
