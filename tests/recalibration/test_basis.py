"""What a fitted value rests on: there and back, and what is refused with the field named."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.recalibration.recalibrator import Basis, Clock
from monitor.store.codec import InvalidDocument
from tests.recalibration.rows import as_read

STAMPS = (1_318_000_000_000_000_001, 1_318_000_060_000_000_003, Clock.STAMP)
FULL = Basis(120, 14, 31.5, *STAMPS, "Car")

finite = st.floats(allow_nan=False, allow_infinity=False)
nanoseconds = st.integers(0, 2**63 - 1)


@st.composite
def bases(draw):
    rows = draw(st.integers(1, 10**9))
    clock = draw(st.sampled_from(list(Clock)))
    ends = sorted(
        draw(st.lists(finite if clock is Clock.SECONDS else nanoseconds, min_size=2, max_size=2))
    )
    known = draw(st.booleans())
    return Basis(
        rows,
        draw(st.integers(1, rows)),
        rows * draw(st.floats(1e-9, 1.0)),
        ends[0] if known else None,
        ends[1] if known else None,
        clock if known else None,
        draw(st.none() | st.text(max_size=9).filter(str.isprintable)),
    )


@settings(max_examples=100)
@given(bases())
def test_a_basis_read_back_is_the_same_to_the_last_bit(basis):
    assert as_read(Basis, json.loads(json.dumps(basis.parameters()))) == basis


def test_what_is_not_known_is_not_written():
    assert Basis(3, 3, 3.0).parameters() == {"rows": 3, "tracks": 3, "effective_rows": 3.0}


def test_people_read_how_much_of_what_time_and_whose_it_leans_on():
    assert str(FULL) == (
        "120 rows of 14 tracks, worth 32, stamp_ns 1318000000000000001 to 1318000060000000003, "
        "borrows from Car"
    )
    assert str(Basis(9, 9, 9.0, 0.5, 2.0, Clock.SECONDS)) == (
        "9 rows of 9 tracks, worth 9, t 0.5 to 2.0 s"
    )


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rows": None}, "'parameters.rows' is None"),
        ({"rows": 0}, "'parameters.rows' is 0"),
        ({"rows": True}, "'parameters.rows' is True"),
        ({"rows": 12.0}, "'parameters.rows' is 12.0"),
        ({"tracks": -1}, "'parameters.tracks' is -1"),
        ({"effective_rows": 0.0}, "'parameters.effective_rows' is 0.0"),
        ({"effective_rows": 121.0}, "'effective_rows' is 121.0"),
        ({"effective_rows": float("nan")}, "'parameters.effective_rows' is nan"),
        ({"effective_rows": "31"}, "'parameters.effective_rows' is '31'"),
        ({"first": None}, "'first' and 'last' are None and"),
        ({"first": 2, "last": 1}, "'first' and 'last' are 2 and 1"),
        (
            {"last": 10**400},
            "'parameters.last' is 1000000000000000000000000000000000000000000000000",
        ),
        ({"clock": "stamp"}, "'parameters.clock' is 'stamp'"),
        ({"clock": None}, "'clock' is None"),
        ({"first": None, "last": None}, "'first' and 'last' are None and None"),
        ({"borrows_from": 3}, "'parameters.borrows_from' is 3"),
        ({"borrows_from": "a\n"}, r"'parameters.borrows_from': 'a\n' holds what cannot be printed"),
    ],
)
def test_a_basis_that_makes_no_sense_is_refused_with_the_field(changes, named):
    with pytest.raises(InvalidDocument) as refusal:
        as_read(Basis, FULL.parameters() | changes)
    assert named in str(refusal.value)
