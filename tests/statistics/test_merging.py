"""Laws of merging, bit for bit, for everything that adds up: whoever saw which rows, in whatever
order, with whatever was taken back in between."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.frames.frame import PredictedRows
from monitor.frames.space import Dimension, DimensionKind, Space, plain_space
from monitor.statistics.bins import Binning, IncompatibleStatistics
from monitor.statistics.class_statistics import observe_classes
from monitor.statistics.predicted import (
    PredictedStatistics,
    no_predicted,
)
from monitor.statistics.state import (
    ClassStages,
    SliceStatistics,
    Stages,
    StageStatistics,
    StatisticsState,
    no_classes,
    no_stage_statistics,
    no_statistics,
    observe,
)
from monitor.statistics.windows import Windows
from tests import laws, states
from tests.laws import costly


@dataclass(frozen=True)
class Family:
    """Statistics of one type: of n drawn rows, or the chosen ones of them; and of none."""

    seen: Callable[..., Any]
    zero: Any
    merge: Callable[[Any, Any], Any]
    negated: Callable[[Any], Any]


seeds = st.integers(0, 2**32 - 1)
FINE = Binning()
# An angle in front: the order of whitening is then not the order of the dimensions.
YAW = Dimension("yaw", "rad", DimensionKind.ANGLE)
SPACES = {
    1: plain_space(("x",), "m"),
    2: Space((YAW, Dimension("x", "m"))),
    3: plain_space(("x", "y", "z"), "m"),
    4: Space((YAW, *plain_space(("x", "y", "z"), "m").dimensions)),
    16: plain_space(tuple(f"d{i}" for i in range(16))),
}
Rows = tuple[np.ndarray, np.ndarray]


def simulated(seed, n, k, mixed=0.0, *, extreme=False) -> Rows:
    """Errors and covariances; extreme ones span and leave the micro-bins, and err by 1e7 σ."""
    random = np.random.default_rng(seed)
    root = np.tril(random.uniform(-0.5, 0.5, (n, k, k)), -1) + np.eye(k)
    root /= np.sqrt((root**2).sum(axis=2, keepdims=True))
    shape = root @ root.transpose(0, 2, 1)
    shape[random.random(n) < mixed] = np.eye(k)
    sigma = 10.0 ** (random.uniform(-6, 5, (n, k)) if extreme else random.uniform(-1, 1, (n, k)))
    covariance = shape * (sigma[:, :, None] * sigma[:, None, :])
    error = 1.3 * sigma * random.normal(size=(n, k))
    if extreme:
        error *= 10.0 ** random.choice([-9, 0, 3, 6, 7], (n, k))
        error[random.random((n, k)) < 0.1] = 0.0
    return error, covariance


def stages(k: int, *, extreme: bool) -> Family:
    def seen(seed: int, n: int, chosen: Any = slice(None)) -> StageStatistics:
        error, covariance = simulated(seed, n, k, 0.5, extreme=extreme)
        return observe(SPACES[k], FINE, error[chosen], covariance[chosen])

    zero = no_stage_statistics(SPACES[k], FINE)
    return Family(seen, zero, StageStatistics.merge, StageStatistics.negated)


def of_slice(seed: int, n: int, chosen: Any = slice(None)) -> SliceStatistics:
    """As sent, and twice as wide; where the seed is even, nothing was recalibrated."""
    error, covariance = (part[chosen] for part in simulated(seed, n, 3, 0.5, extreme=True))
    raw = observe(SPACES[3], FINE, error, covariance)
    wide = raw if seed % 2 == 0 else observe(SPACES[3], FINE, error, 4.0 * covariance)
    return Stages(raw, wide)


def of_classes(seed: int, n: int, chosen: Any = slice(None)) -> ClassStages:
    """Some opinions are certain, some rows bad or without truth; opinions come with odd seeds.

    Where the seed is a multiple of 3, nothing was recalibrated.
    """
    random = np.random.default_rng(seed)
    opinions = random.dirichlet(np.full(10, 0.3), size=(n, 3))
    opinions[random.random(n) < 0.1] = np.eye(10)[0]
    opinions[random.random(n) < 0.05, 0, 0] = np.nan
    label = random.integers(-1, 10, n)
    several = opinions[chosen] if seed % 2 else None
    mean = opinions.mean(axis=1)[chosen]
    raw = made = observe_classes(mean, label[chosen], several)
    if seed % 3:
        made = observe_classes((mean + 0.1) / 2, label[chosen])
    return Stages(raw, made)


def of_predicted(seed: int, n: int, chosen: Any = slice(None)) -> PredictedStatistics:
    """Deviations in and out of the bins; some rows without class probabilities, odd seeds with
    several opinions."""
    random = np.random.default_rng(seed)
    roots = 10.0 ** random.uniform(-7, 6, (n, 11))
    opinions = random.dirichlet(np.full(4, 0.1), size=(n, 1 + seed % 2))
    opinions[random.random(n) < 0.2] = np.nan
    opinions[random.random(n) < 0.2] = 0.25
    mean = random.lognormal(2.0, 2.0, (n, 3))
    rows = PredictedRows(SPACES[3], np.zeros(n, np.int64), mean, roots, opinions)
    return states.observe_predicted(rows.take(np.arange(n)[chosen]))


FAMILIES = {
    **{f"stage of {k}": stages(k, extreme=k != 3) for k in SPACES},
    "slice": Family(
        of_slice, no_statistics(SPACES[3], FINE), SliceStatistics.merge, SliceStatistics.negated
    ),
    "classes": Family(of_classes, no_classes(10), ClassStages.merge, ClassStages.negated),
    "predicted": Family(
        of_predicted, no_predicted(), PredictedStatistics.merge, PredictedStatistics.negated
    ),
}


@pytest.mark.parametrize("name", FAMILIES)
@costly
@given(seed=seeds, replicas=st.integers(1, 8), single=st.booleans())
def test_any_split_in_any_order_with_retractions_gives_the_same_bits(name, seed, replicas, single):
    family, n = FAMILIES[name], 40
    random = np.random.default_rng(seed)
    order = random.permutation(n)
    ends = range(n + 1) if single else [0, *np.sort(random.integers(0, n + 1, replicas)), n]
    parts = [family.seen(seed, n, order[a:b]) for a, b in pairwise(ends)]
    # A replica may see the retraction of what another one has counted, or will count.
    gone = random.choice(n, 15, replace=False)
    parts += [family.negated(family.seen(seed, n, part)) for part in np.array_split(gone, 3)]
    kept = np.setdiff1d(np.arange(n), gone)
    whole = states.merged_in_any_order([family.zero, *parts], family.merge, random)
    laws.assert_same(whole, family.seen(seed, n, kept))


# ---- sums that are cut, and sums that outgrow 62 bits


# NEES is cut there.
UTMOST = 2.0**48


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_sums_that_outgrow_62_bits_obey_the_laws_like_any_other(sign):
    n = 7
    # Every addend is at the cut: 2^80 units, so that all columns spill.
    giants = observe(
        SPACES[2], FINE, np.full((n, 2), sign * 1e30), np.broadcast_to(np.eye(2), (n, 2, 2))
    )
    assert giants.cells.spill_keys.size
    plain = FAMILIES["stage of 2"].seen(1, 20)
    both = plain.merge(giants)
    laws.assert_same(both.merge(giants.negated()), plain)
    laws.assert_same(both.merge(plain.negated()), giants)
    # Σ r is cut at 2^80 units of 2^-32 σ.
    assert giants.axis(0).nees.sum() == n * UTMOST
    assert giants.axis(0).error.sum() == sign * n * UTMOST
    assert giants.whitened == pytest.approx(np.full((2, 2), n * UTMOST))
    assert giants.histogram(0)[-1] == n


# ---- the state of all statistics

NOTHING = StatisticsState(states.BINNING, states.WINDOWS)


@pytest.mark.parametrize("seed", range(12))
def test_any_partition_of_a_state_in_any_order_with_retractions_gives_the_same_bits(seed):
    random = np.random.default_rng([seed, 1])
    rows = states.random_rows(seed, 60)
    taken_back = set(random.choice(60, 15, replace=False).tolist())
    stream = [*rows, *(replace(rows[i], sign=-1) for i in taken_back)]
    owner = random.integers(random.integers(3, 8), size=len(stream))
    parts = [
        states.counted(
            [row for row, to in zip(stream, owner, strict=True) if to == replica],
            order=random.permutation(len(states.SLICES)).tolist(),
        )
        for replica in range(owner.max() + 1)
    ]
    whole = states.counted(
        [row for i, row in enumerate(rows) if i not in taken_back], states.clock_of(rows)
    )
    states.assert_same_state(
        states.merged_in_any_order(parts, StatisticsState.merge, random), whole
    )
    # Bit for bit and in the same order, not only up to it; and all are as they were.
    a, b, c = parts[:3]
    before = states.bits((a, b, c))
    assert states.bits(a.merge(b).merge(c)) == states.bits(a.merge(b.merge(c)))
    assert states.bits(a.merge(NOTHING)) == states.bits(NOTHING.merge(a)) == states.bits(a)
    assert states.bits((a, b, c)) == before


def test_known_slices_keep_their_order_new_ones_come_behind_and_empty_ones_stay():
    merged = states.counted(states.random_rows(1, 20), order=(2, 0)).merge(
        states.counted([], order=(1, 0, 3, 2))
    )
    assert [entry.key for entry in merged.slices] == [
        (states.SLICES[i][1], states.SLICES[i][2], states.SLICES[i][0]) for i in (2, 0, 1, 3)
    ]


# ---- refusals


OTHER_WINDOWS = replace(NOTHING, windows=Windows((300 * 10**9,), 5))


def stage_of(space: Space, binning: Binning = FINE) -> StageStatistics:
    return no_stage_statistics(space, binning)


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        (NOTHING, OTHER_WINDOWS, "6e-09, 1.8e-08, 3.6e-08 s in 3 panes"),
        (stage_of(SPACES[2]), stage_of(SPACES[2], states.BINNING), states.BINNING.describe()),
        *(
            (stage_of(SPACES[2]), stage_of(space), str(space.names))
            for space in (plain_space(("a", "b")), plain_space(("yaw", "x"), "m"))
        ),
        (of_classes(1, 5), no_classes(4), "of 10 classes with those of 4"),
    ],
)
def test_what_was_counted_otherwise_is_refused_with_both_ways_named(ours, theirs, said):
    assert ours.merge(ours) is not None
    with pytest.raises(IncompatibleStatistics) as refusal:
        ours.merge(theirs)
    assert said in str(refusal.value)
    if isinstance(ours, StatisticsState):
        assert "[statistics]" in str(refusal.value)
