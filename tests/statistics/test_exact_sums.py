"""Sums that do not depend on the order, dense and sparse, against integers of any size."""

from collections import Counter
from fractions import Fraction
from functools import reduce
from random import Random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monitor.statistics.exact_sums import (
    LIMB_BITS,
    SPILL_BITS,
    ExactSum,
    SparseSums,
    from_cells,
    total,
)
from tests import laws

EXPONENT = -32
UNIT = Fraction(2) ** EXPONENT
# Above it, addends are clipped.
LARGEST = 2.0 ** (80 + EXPONENT)
any_size = st.one_of(
    st.floats(-1e3, 1e3),
    st.floats(-LARGEST, LARGEST),
    st.sampled_from([0.0, -0.0, 5e-324, 2.0**-37, -(2.0**-37), 1e-12, 2.0**17, LARGEST, -LARGEST]),
)
addends = st.lists(any_size, max_size=40)


def summed(values) -> ExactSum:
    return ExactSum.over_columns(np.array([values], dtype=np.float64), EXPONENT)


def as_integer(exact: ExactSum) -> int:
    return int(exact.low[0]) + (int(exact.high[0]) << LIMB_BITS)


@given(addends)
@example([LARGEST] * 4096)
@example([1e30, 1.0, -1e30])
@example([2.0**-33, 3 * 2.0**-33, -(2.0**-33)])
def test_a_sum_is_the_integer_sum_of_the_addends_rounded_to_the_grid_and_clipped(values):
    found = summed(values)
    clipped = [min(max(value, -LARGEST), LARGEST) for value in values]
    # Fractions are rounded to the nearest unit, ties to even.
    assert as_integer(found) == sum(round(Fraction(value) / UNIT) for value in clipped)
    assert 0 <= found.low[0] < 1 << LIMB_BITS
    assert (-found).value[0] == -found.value[0]


def test_columns_are_summed_apart_and_a_thousand_full_ones_do_not_overflow():
    values = np.array([[1.5, 2.5], [1e12, -3e12], [-0.25, 0.125]])
    assert ExactSum.over_columns(values, EXPONENT).value.tolist() == [4.0, -2e12, -0.125]
    total = ExactSum.over_columns(np.full((1, 4096), LARGEST), EXPONENT)
    for _ in range(10):
        total = total + total
    assert as_integer(total) == 4096 * 2**80 * 2**10
    assert total.value[0] == 4096.0 * LARGEST * 2**10


# ---- cells that are occupied


WIDTH = 3
LIMIT = 1 << SPILL_BITS
# What lies at the ends of an int64, and sums that no int64 holds.
amounts = st.one_of(
    st.integers(-5, 5),
    st.sampled_from([LIMIT, LIMIT - 1, -LIMIT, -LIMIT - 1, 2 * LIMIT, -2 * LIMIT, 2**80, -(2**80)]),
    st.integers(-(2**80), 2**80),
)
places = st.tuples(st.integers(0, 11), st.integers(0, WIDTH - 1))
contents = st.dictionaries(places, amounts, max_size=12)
Contents = dict[tuple[int, int], int]


def sums_of(held: Contents) -> SparseSums:
    """As many cells as are named, even those that hold nothing."""
    keys = np.array(sorted({key for key, _ in held}), np.int64)
    values = np.zeros((keys.size, WIDTH), np.int64)
    spill_keys, spill = [], []
    for (key, column), amount in held.items():
        # Any remainder below 2^62 in magnitude will do.
        over, rest = divmod(abs(amount), 2 * LIMIT)
        sign = -1 if amount < 0 else 1
        values[np.searchsorted(keys, key), column] = sign * rest
        spill_keys.append(key * WIDTH + column)
        spill.append(sign * over)
    return from_cells(keys, values, np.array(spill_keys, np.int64), np.array(spill, np.int64))


def held_by(sums: SparseSums) -> Contents:
    found: Counter[tuple[int, int]] = Counter()
    for key, row in zip(sums.keys.tolist(), sums.values.tolist(), strict=True):
        for column, value in enumerate(row):
            found[key, column] += value
    for place, amount in zip(sums.spill_keys.tolist(), sums.spill.tolist(), strict=True):
        found[divmod(place, sums.width)] += amount * 2 * LIMIT
    return {place: amount for place, amount in found.items() if amount}


def added(*parts: Contents) -> Contents:
    found: Counter[tuple[int, int]] = Counter()
    for part in parts:
        for place, amount in part.items():
            found[place] += amount
    return {place: amount for place, amount in found.items() if amount}


def assert_canonical(sums: SparseSums) -> None:
    assert (np.diff(sums.keys) > 0).all()
    assert (np.diff(sums.spill_keys) > 0).all()
    assert (sums.spill != 0).all()
    assert ((sums.values >= -LIMIT) & (sums.values < LIMIT)).all()
    assert {key for key, _ in held_by(sums)} == set(sums.keys.tolist())


@given(st.lists(contents, min_size=1, max_size=5), st.randoms(use_true_random=False))
@example([{(4, 1): LIMIT - 1}, {(4, 1): 1}, {}], Random(1))
@example([{(4, 1): -LIMIT - 1}, {(4, 1): 1}, {}], Random(1))
def test_a_total_is_the_sum_of_the_integers_in_any_order_and_grouping(parts, random):
    each = [sums_of(part) for part in parts]
    for part, sums in zip(parts, each, strict=True):
        assert held_by(sums) == added(part)
        assert_canonical(sums)
    found = total(each)
    assert held_by(found) == added(*parts)
    assert_canonical(found)
    for part, sums in zip(parts, each, strict=True):
        laws.assert_same(sums, sums_of(part))
    # One form for what is held: so merging obeys all its laws, and a retraction leaves no trace.
    shuffled = random.sample(each, len(each))
    laws.assert_same(reduce(SparseSums.__add__, shuffled), found)
    laws.assert_same(found + -each[0], total([SparseSums.zero(WIDTH), *each[1:]]))


@given(contents, st.integers(-40, 5), st.integers(0, WIDTH - 1))
def test_a_column_as_floats_is_near_its_integers_whatever_their_size(held, exponent, column):
    sums = sums_of(held)
    found = sums.as_float(column, exponent)
    exact = held_by(sums)
    for key, value in zip(sums.keys.tolist(), found.tolist(), strict=True):
        expected = float(exact.get((key, column), 0)) * 2.0**exponent
        assert value == pytest.approx(expected, rel=2.0**-51)
