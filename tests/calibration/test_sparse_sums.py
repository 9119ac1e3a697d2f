"""Sums of the cells that are occupied: against Python's integers, at any size, in any order."""

from __future__ import annotations

from collections import Counter
from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.statistics.exact_sums import SPILL_BITS, SparseSums, from_cells, total
from tests import laws

WIDTH = 3
LIMIT = 1 << SPILL_BITS
quick = settings(max_examples=150)
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


@quick
@given(contents)
def test_cells_hold_what_was_put_in_and_those_that_hold_nothing_are_let_go(held):
    sums = sums_of(held)
    assert held_by(sums) == added(held)
    assert_canonical(sums)


@quick
@given(st.lists(contents, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_a_total_is_the_sum_of_the_integers_in_any_order_and_grouping(parts, random):
    found = total([sums_of(part) for part in parts])
    assert held_by(found) == added(*parts)
    assert_canonical(found)
    random.shuffle(parts)
    laws.assert_same(reduce(SparseSums.__add__, map(sums_of, parts)), found)


@quick
@given(contents, contents, contents)
def test_sparse_sums_obey_the_laws_of_merging(one, two, three):
    a, b, c = map(sums_of, (one, two, three))
    zero = SparseSums.zero(WIDTH)
    laws.merge_is_associative(SparseSums.__add__, a, b, c)
    laws.merge_is_commutative(SparseSums.__add__, a, b)
    laws.zero_changes_nothing(SparseSums.__add__, zero, a)
    laws.retract_undoes_merge(SparseSums.__add__, lambda x, y: x + -y, zero, a, b)


@quick
@given(contents, contents)
def test_a_difference_is_that_of_the_integers(one, two):
    found = sums_of(one) + -sums_of(two)
    assert held_by(found) == added(one, {place: -amount for place, amount in two.items()})
    assert_canonical(found)


@pytest.mark.parametrize("amount", [LIMIT - 1, LIMIT, -LIMIT, -LIMIT - 1])
def test_the_negative_of_what_is_only_just_held_has_its_one_form(amount):
    negative = SparseSums.zero(WIDTH) + -sums_of({(4, 1): amount})
    laws.assert_same(negative, sums_of({(4, 1): -amount}))


@quick
@given(st.lists(contents, min_size=2, max_size=3))
def test_adding_leaves_its_arguments_alone(parts):
    sums = [sums_of(part) for part in parts]
    total(sums)
    _ = sums[0] + -sums[1]
    for part, one in zip(parts, sums, strict=True):
        laws.assert_same(one, sums_of(part))


@quick
@given(contents, st.integers(0, 12), st.integers(0, 12))
def test_cells_between_two_keys_are_those_with_their_keys_counted_from_the_first(held, a, b):
    first, end = sorted((a, b))
    found = sums_of(held).between(first, end)
    laws.assert_same(
        found,
        sums_of({(key - first, c): x for (key, c), x in held.items() if first <= key < end}),
    )


@quick
@given(contents, st.sets(st.integers(0, 9), min_size=4, max_size=4))
def test_blocks_of_cells_move_to_where_they_are_sent(held, chosen):
    target = sorted(chosen)
    found = sums_of(held).moved(3, np.array(target))
    expected = {(target[key // 3] * 3 + key % 3, c): x for (key, c), x in held.items()}
    laws.assert_same(found, sums_of(expected))


@quick
@given(contents, st.integers(-40, 5), st.integers(0, WIDTH - 1))
def test_a_column_as_floats_is_near_its_integers_whatever_their_size(held, exponent, column):
    sums = sums_of(held)
    found = sums.as_float(column, exponent)
    exact = held_by(sums)
    for key, value in zip(sums.keys.tolist(), found.tolist(), strict=True):
        expected = float(exact.get((key, column), 0)) * 2.0**exponent
        assert value == pytest.approx(expected, rel=2.0**-51)


def test_every_cell_may_have_a_unit_of_its_own():
    sums = sums_of({(1, 0): 3, (5, 0): 2**70})
    assert sums.as_float(0, np.array([-1, 2])).tolist() == [1.5, 2.0**72]


def test_no_cells_take_no_bytes_and_have_their_width():
    none = SparseSums.zero(7)
    assert (none.width, none.nbytes) == (7, 0)
    assert none.as_float(3, 0).shape == (0,)
