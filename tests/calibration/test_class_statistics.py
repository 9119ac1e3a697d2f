"""Sums of class probabilities: exact, whatever the order, the split and the retractions."""

from dataclasses import dataclass
from functools import partial, reduce
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.statistics.bins import IncompatibleStatistics
from monitor.statistics.class_statistics import (
    ALL_ROWS,
    BY_CLASS,
    ONE_VS_REST,
    ClassStatistics,
    N,
    no_class_statistics,
    observe_classes,
    table_shapes,
)
from monitor.statistics.exact_sums import ExactSum, SparseSums
from tests import laws

quick = settings(max_examples=30)
seeds = st.integers(0, 2**32 - 1)
widths = st.sampled_from([2, 3, 10, 80])


@dataclass(frozen=True)
class Unpacked:
    """Class statistics with each table in a field of its own, so that the laws see every bit."""

    classes: int
    n: int
    all_rows: SparseSums
    by_class: SparseSums
    one_vs_rest: SparseSums
    companions: ExactSum

    @property
    def packed(self) -> ClassStatistics:
        tables = (self.all_rows, self.by_class, self.one_vs_rest)
        return ClassStatistics(self.n, tables, self.companions, self.classes)


def unpacked(statistics: ClassStatistics) -> Unpacked:
    all_rows, by_class, one_vs_rest = statistics.tables
    return Unpacked(
        classes=statistics.classes,
        n=statistics.n,
        all_rows=all_rows,
        by_class=by_class,
        one_vs_rest=one_vs_rest,
        companions=statistics.companions,
    )


def merge(one: Unpacked, other: Unpacked) -> Unpacked:
    return unpacked(one.packed.merge(other.packed))


def retract(one: Unpacked, other: Unpacked) -> Unpacked:
    return unpacked(one.packed.merge(other.packed.negated()))


def assert_same(one: ClassStatistics, other: ClassStatistics) -> None:
    laws.assert_same(unpacked(one), unpacked(other))


def simulated(seed, n, classes, concentration=0.3):
    """Opinions of which some are certain; rows without truth and bad ones among them."""
    random = np.random.default_rng(seed)
    opinions = random.dirichlet(np.full(classes, concentration), size=(n, 3))
    opinions[random.random(n) < 0.1] = np.eye(classes)[0]
    opinions[random.random(n) < 0.05, 0, 0] = np.nan
    label = random.integers(-1, classes, n)
    return opinions.mean(axis=1), label, opinions


def seen(rows, with_opinions=True) -> ClassStatistics:
    probabilities, label, opinions = rows
    return observe_classes(probabilities, label, opinions if with_opinions else None)


def some(seed, n, classes, with_opinions=True) -> ClassStatistics:
    return seen(simulated(seed, n, classes), with_opinions)


@quick
@given(seeds, widths, st.booleans())
def test_class_statistics_obey_the_laws_of_merging(seed, classes, with_opinions):
    a, b, c = (
        unpacked(some(seed + i, 9 * i + 1, classes, with_opinions ^ (i == 1))) for i in range(3)
    )
    zero = unpacked(no_class_statistics(classes))
    laws.merge_is_associative(merge, a, b, c)
    laws.merge_is_commutative(merge, a, b)
    laws.zero_changes_nothing(merge, zero, a)
    laws.retract_undoes_merge(merge, retract, zero, a, b)


@pytest.mark.parametrize("seed", range(40))
def test_any_split_in_any_order_with_retractions_gives_the_same_bits(seed):
    random = np.random.default_rng(seed)
    classes = (2, 10, 30)[seed % 3]
    rows = simulated(seed, 120, classes)
    order = random.permutation(120)
    ends = [0, *sorted(random.integers(0, 121, random.integers(0, 8))), 120]
    steps = [
        partial(ClassStatistics.merge, other=seen([column[order[a:b]] for column in rows]))
        for a, b in pairwise(ends)
    ]
    # Labels that were revised: they come and go, in whatever order.
    for i in range(3):
        wrong = some(1000 * seed + i, 20, classes)
        steps.append(partial(ClassStatistics.merge, other=wrong))
        steps.append(partial(ClassStatistics.merge, other=wrong.negated()))
    random.shuffle(steps)
    total = reduce(lambda sums, step: step(sums), steps, no_class_statistics(classes))
    assert_same(total, seen(rows))


@quick
@given(seeds, widths)
def test_many_rows_at_once_equal_the_merge_of_single_rows(seed, classes):
    rows = simulated(seed, 12, classes)
    parts = [seen([column[i : i + 1] for column in rows]) for i in range(12)]
    assert_same(reduce(ClassStatistics.merge, parts), seen(rows))


def test_more_rows_than_fit_a_chunk_equal_their_halves():
    rows = simulated(4, 5000, 4)
    halves = [
        seen([column[part] for column in rows]) for part in (slice(0, 1777), slice(1777, None))
    ]
    assert_same(halves[0].merge(halves[1]), seen(rows))


def test_bad_rows_and_those_without_truth_are_not_in_the_sums():
    probabilities, label, _ = simulated(3, 200, 5)
    good = np.isfinite(probabilities).all(axis=1) & (label >= 0)
    found = observe_classes(probabilities, label)
    assert found.n == np.count_nonzero(good) < 200
    assert_same(found, observe_classes(probabilities[good], label[good]))
    assert np.isfinite(found.companions.value).all()


def test_every_row_is_once_on_each_axis_and_once_against_each_class():
    found = some(7, 150, 6)
    counts = [table.values[:, N].sum() for table in found.tables]
    assert counts[ALL_ROWS] == counts[BY_CLASS] == 4 * found.n
    assert counts[ONE_VS_REST] == 6 * found.n
    for table, (width, end) in zip(found.tables, table_shapes(6), strict=True):
        assert table.width == width and table.keys[0] >= 0 and table.keys[-1] < end


@pytest.mark.parametrize(("classes", "most"), [(10, 250_000), (256, 1_500_000)])
def test_a_slice_stays_small_however_many_rows_it_saw(classes, most):
    rows = simulated(1, 20_000, classes, concentration=0.1)
    tables = observe_classes(rows[0], rows[1]).tables
    assert sum(table.nbytes for table in tables) < most


def test_other_classes_are_refused():
    with pytest.raises(IncompatibleStatistics, match="of 3 classes with those of 4"):
        some(1, 5, 3).merge(some(1, 5, 4))
