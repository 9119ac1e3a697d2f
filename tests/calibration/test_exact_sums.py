"""Sums that do not depend on the order: against Python's integers, at any size of addend."""

import operator
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.statistics.exact_sums import LIMB_BITS, ExactSum, to_float
from tests import laws

EXPONENT = -36
UNIT = Fraction(2) ** EXPONENT
# Above it, addends are clipped.
LARGEST = 2.0 ** (80 + EXPONENT)

quick = settings(max_examples=100)
small = st.floats(-1e3, 1e3)
any_size = st.one_of(
    small,
    st.floats(-LARGEST, LARGEST),
    st.sampled_from([0.0, -0.0, 5e-324, 2.0**-37, -(2.0**-37), 1e-12, 2.0**17, LARGEST, -LARGEST]),
)
addends = st.lists(any_size, max_size=40)


def summed(values) -> ExactSum:
    return ExactSum.over_columns(np.array([values], dtype=np.float64), EXPONENT)


def as_integer(exact: ExactSum) -> int:
    """The sum in units of the grid, as Python sees it."""
    return int(exact.low[0]) + (int(exact.high[0]) << LIMB_BITS)


def rounded(value: float) -> int:
    """To the nearest unit, ties to even, as Python rounds fractions."""
    return round(Fraction(value) / UNIT)


@quick
@given(addends)
def test_a_sum_is_the_integer_sum_of_the_rounded_addends(values):
    found = summed(values)
    assert as_integer(found) == sum(rounded(value) for value in values)
    assert 0 <= found.low[0] < 1 << LIMB_BITS


@quick
@given(addends, addends, addends)
def test_exact_sums_obey_the_laws_of_merging(a, b, c):
    zero, one, two, three = summed([]), summed(a), summed(b), summed(c)
    laws.merge_is_associative(operator.add, one, two, three)
    laws.merge_is_commutative(operator.add, one, two)
    laws.zero_changes_nothing(operator.add, zero, one)
    laws.retract_undoes_merge(operator.add, lambda x, y: x + -y, zero, one, two)


@quick
@given(addends, st.randoms(use_true_random=False), st.integers(0, 40), st.integers(0, 40))
def test_any_split_in_any_order_gives_the_same_bits(values, random, first, second):
    whole = summed(values)
    random.shuffle(values)
    a, b = sorted((first, second))
    parts = [summed(values[:a]), summed(values[a:b]), summed(values[b:])]
    random.shuffle(parts)
    laws.assert_same(parts[0] + parts[1] + parts[2], whole)


def test_a_column_of_large_addends_leaves_the_others_alone():
    values = np.array([[1.5, 2.5], [1e12, -3e12], [-0.25, 0.125]])
    alone = [ExactSum.over_columns(row[None].copy(), EXPONENT) for row in values]
    together = ExactSum.over_columns(values.copy(), EXPONENT)
    assert together.low.tolist() == [one.low[0] for one in alone]
    assert together.high.tolist() == [one.high[0] for one in alone]
    assert together.value.tolist() == [4.0, -2e12, -0.125]


def test_an_addend_beyond_all_measure_is_clipped_wherever_it_stands():
    huge = summed([1e30])
    assert huge.value[0] == LARGEST
    laws.assert_same(huge, summed([LARGEST]))
    laws.assert_same(summed([1e30, 1.0, -1e30]), summed([1.0]))


def test_four_thousand_of_the_largest_addends_do_not_overflow():
    values = np.full((1, 4096), LARGEST)
    total = ExactSum.over_columns(values, EXPONENT)
    for _ in range(10):
        total = total + total
    assert as_integer(total) == 4096 * 2**80 * 2**10
    assert total.value[0] == 4096.0 * LARGEST * 2**10


def test_a_sum_over_nothing_is_zero():
    laws.assert_same(summed([]), ExactSum.zero((1,), EXPONENT))
    assert ExactSum.zero((2, 3), EXPONENT).value.tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("value", [1, -1, 2**40, -(2**40) - 5, 2**52 + 1, -(2**79)])
def test_limbs_become_the_float_nearest_to_them(value):
    low, high = np.array([value & (2**40 - 1)]), np.array([value >> 40])
    assert to_float(low, high, 0)[0] == float(value)
    assert to_float(low, high, -36)[0] == float(value) * 2.0**-36
