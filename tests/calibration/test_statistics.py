"""Statistics of matched detections: the laws of merging bit for bit, and the sums themselves
against plain loops."""

from dataclasses import replace
from functools import partial, reduce
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from monitor.frames.space import Dimension, DimensionKind, Space, plain_space
from monitor.statistics.bins import Binning, IncompatibleStatistics, LogBins
from monitor.statistics.observations import CHUNK
from monitor.statistics.stage import (
    SliceStatistics,
    StageStatistics,
    no_stage_statistics,
    no_statistics,
    observe,
)
from tests import laws
from tests.calibration import oracle, statistics_oracle
from tests.states import merged_in_any_order

BINNING = Binning()
# An angle in front: the order of whitening is then not the order of the dimensions.
YAW = Dimension("yaw", "rad", DimensionKind.ANGLE)
SPACES = {
    1: plain_space(("x",), "m"),
    2: Space((YAW, Dimension("x", "m"))),
    3: plain_space(("x", "y", "z"), "m"),
    4: Space((YAW, *plain_space(("x", "y", "z"), "m").dimensions)),
    16: plain_space(tuple(f"d{i}" for i in range(16))),
}
quick = settings(max_examples=25)
seeds = st.integers(0, 2**32 - 1)
sizes = st.sampled_from([1, 2, 3, 4, 16])
forms = st.sampled_from(["diagonal", "full", "mixed"])

Rows = tuple[np.ndarray, np.ndarray]


def simulated(seed, n, k, form="full", *, extreme=False) -> Rows:
    """Errors and covariances; extreme ones span and leave the micro-bins, and err by 1e7 σ."""
    random = np.random.default_rng(seed)
    root = random.normal(size=(n, k, k)) + 2 * np.eye(k) * np.sqrt(k)
    shape = root @ root.transpose(0, 2, 1)
    size = np.sqrt(np.diagonal(shape, axis1=1, axis2=2))
    shape /= size[:, :, None] * size[:, None, :]
    plain = {"diagonal": np.ones(n, bool), "full": np.zeros(n, bool)}.get(
        form, random.random(n) < 0.5
    )
    shape[plain] = np.eye(k)
    shape = np.tril(shape) + np.tril(shape, -1).transpose(0, 2, 1)
    shape[:, np.arange(k), np.arange(k)] = 1.0
    exponent = random.uniform(-6, 5, (n, k)) if extreme else random.uniform(-1, 1, (n, k))
    sigma = 10.0**exponent
    covariance = shape * (sigma[:, :, None] * sigma[:, None, :])
    error = 1.3 * sigma * random.normal(size=(n, k))
    if extreme:
        error *= 10.0 ** random.choice([-9, 0, 3, 6, 7], (n, k))
        error[random.random((n, k)) < 0.1] = 0.0
    return error, covariance


def stage(seed, n, k, form="full", *, extreme=False) -> StageStatistics:
    return observe(SPACES[k], BINNING, *simulated(seed, n, k, form, extreme=extreme))


def both_stages(seed, n, k, form, extreme, changed) -> SliceStatistics:
    raw = stage(seed, n, k, form, extreme=extreme)
    if not changed:
        return SliceStatistics(raw, raw)
    return SliceStatistics(raw, stage(seed + 1, n, k, form, extreme=extreme))


def both_rows(rows: Rows, chosen) -> SliceStatistics:
    """Some of the rows, and twice as wide."""
    error, covariance = (part[chosen] for part in rows)
    see = partial(observe, SPACES[error.shape[1]], BINNING, error)
    return SliceStatistics(see(covariance), see(4.0 * covariance))


def pieces(rows: Rows, cuts, random) -> list[Rows]:
    """The rows, shuffled and cut, in any order of the pieces."""
    error, covariance = rows
    order = np.array(random.sample(range(len(error)), len(error)), dtype=np.int64)
    ends = [0, *sorted(min(cut, len(error)) for cut in cuts), len(error)]
    parts = [order[a:b] for a, b in pairwise(ends)]
    random.shuffle(parts)
    return [(error[part], covariance[part]) for part in parts]


@quick
@given(seeds, sizes, forms, st.booleans())
def test_stage_statistics_obey_the_laws_of_merging(seed, k, form, extreme):
    a, b, c = (stage(seed + i, 7 * i + 1, k, form, extreme=extreme) for i in range(3))
    zero = no_stage_statistics(SPACES[k], BINNING)
    laws.merge_is_associative(StageStatistics.merge, a, b, c)
    laws.merge_is_commutative(StageStatistics.merge, a, b)
    laws.zero_changes_nothing(StageStatistics.merge, zero, a)
    laws.retract_undoes_merge(StageStatistics.merge, laws.retracted, zero, a, b)


@quick
@given(seeds, sizes, st.lists(st.booleans(), min_size=3, max_size=3))
def test_slice_statistics_obey_the_laws_of_merging(seed, k, changed):
    a, b, c = (
        both_stages(seed + 10 * i, 5 * i + 1, k, "full", True, each)
        for i, each in enumerate(changed)
    )
    laws.merge_is_associative(SliceStatistics.merge, a, b, c)
    laws.merge_is_commutative(SliceStatistics.merge, a, b)
    zero = no_statistics(SPACES[k], BINNING)
    laws.zero_changes_nothing(SliceStatistics.merge, zero, a)
    laws.retract_undoes_merge(SliceStatistics.merge, laws.retracted, zero, a, b)
    assert zero.is_zero
    assert not a.is_zero


def test_a_slice_of_which_nothing_was_recalibrated_is_kept_once():
    one, two = both_stages(1, 9, 3, "full", False, False), both_stages(2, 9, 3, "full", False, True)
    same = one.merge(one)
    assert same.raw is same.recalibrated
    apart = one.merge(two)
    laws.assert_same(apart.raw, one.raw.merge(two.raw))
    laws.assert_same(apart.recalibrated, one.raw.merge(two.recalibrated))


@quick
@given(
    seeds,
    sizes,
    forms,
    st.booleans(),
    st.lists(st.integers(0, 60), max_size=6),
    st.randoms(use_true_random=False),
)
def test_any_split_in_any_order_gives_the_same_bits(seed, k, form, extreme, cuts, random):
    rows = simulated(seed, 60, k, form, extreme=extreme)
    see = partial(observe, SPACES[k], BINNING)
    parts = [see(*part) for part in pieces(rows, cuts, random)]
    laws.assert_same(reduce(StageStatistics.merge, parts), see(*rows))


@quick
@given(seeds, sizes, forms, st.booleans())
@example(seed=0, k=16, form="mixed", extreme=True)
def test_many_rows_at_once_equal_the_merge_of_single_rows(seed, k, form, extreme):
    error, covariance = simulated(seed, 12, k, form, extreme=extreme)
    total = no_stage_statistics(SPACES[k], BINNING)
    for row in range(12):
        one = slice(row, row + 1)
        total = total.merge(observe(SPACES[k], BINNING, error[one], covariance[one]))
    laws.assert_same(total, observe(SPACES[k], BINNING, error, covariance))


@pytest.mark.parametrize("seed", range(40))
def test_any_partition_and_order_of_merging_with_retractions_gives_the_same_bits(seed):
    random = np.random.default_rng(seed)
    rows = partial(both_rows, simulated(seed, 80, 3, "mixed", extreme=True))
    taken_back = random.choice(80, 25, replace=False)
    # A replica may see the retraction of what another one has counted, or will count.
    stream = [(row, 1) for row in range(80)] + [(row, -1) for row in taken_back.tolist()]
    owner = random.integers(random.integers(1, 12), size=len(stream))
    parts = []
    for replica in np.unique(owner):
        part = no_statistics(SPACES[3], BINNING)
        mine = [stream[i] for i in random.permutation(np.flatnonzero(owner == replica))]
        for sign, step in ((1, SliceStatistics.merge), (-1, laws.retracted)):
            seen = np.array([row for row, s in mine if s == sign], np.int64)
            part = step(part, rows(seen))
        parts.append(part)
    kept = np.setdiff1d(np.arange(80), taken_back)
    merged = merged_in_any_order(parts, SliceStatistics.merge, random)
    laws.assert_same(merged, rows(kept))


@pytest.mark.parametrize("n", [CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 3])
def test_batches_longer_than_a_chunk_equal_a_stream_of_short_ones(n):
    error, covariance = simulated(n, n, 3, "mixed", extreme=True)
    total = no_stage_statistics(SPACES[3], BINNING)
    for start in range(0, n, 1000):
        part = slice(start, start + 1000)
        total = total.merge(observe(SPACES[3], BINNING, error[part], covariance[part]))
    laws.assert_same(total, observe(SPACES[3], BINNING, error, covariance))


@quick
@given(seeds, sizes, forms)
def test_rows_in_any_memory_layout_give_the_same_bits(seed, k, form):
    error, covariance = simulated(seed, 9, k, form, extreme=True)
    wide = np.full((9, 2 * k + 1), np.nan)
    wide[:, 1 : 1 + k] = error
    whole = observe(SPACES[k], BINNING, error, covariance)
    other = observe(SPACES[k], BINNING, wide[:, 1 : 1 + k], np.asfortranarray(covariance))
    laws.assert_same(other, whole)


@quick
@given(seeds, sizes, forms, st.booleans(), st.integers(0, 30))
def test_retraction_leaves_no_trace(seed, k, form, extreme, kept):
    error, covariance = simulated(seed, 30, k, form, extreme=extreme)
    see = partial(observe, SPACES[k], BINNING)
    whole = see(error, covariance)
    rest = see(error[kept:], covariance[kept:])
    laws.assert_same(whole.merge(rest.negated()), see(error[:kept], covariance[:kept]))


def test_a_revision_moves_one_label_and_nothing_else():
    error, covariance = simulated(5, 20, 3)
    revised = error.copy()
    revised[7] += 0.25
    see = partial(observe, SPACES[3], BINNING)
    one = slice(7, 8)
    change = see(revised[one], covariance[one]).merge(see(error[one], covariance[one]).negated())
    assert change.n == 0
    laws.assert_same(see(error, covariance).merge(change), see(revised, covariance))
    laws.assert_same(change.merge(see(error, covariance)), see(revised, covariance))


# Addends are cut there: NEES at 2^48, the products of z and of u at 2^24 each.
UTMOST, UTMOST_FACTOR = 2.0**48, 2.0**24


@pytest.mark.parametrize("nees", [1e12, 1e14, 1e20, 1e40])
def test_a_giant_error_is_merged_and_retracted_exactly(nees):
    see = partial(observe, SPACES[3], BINNING)
    plain = see(*simulated(1, 50, 3))
    giant = see(np.full((1, 3), np.sqrt(nees)), np.eye(3)[None])
    both = plain.merge(giant)
    laws.assert_same(both.merge(giant.negated()), plain)
    for i in range(3):
        assert giant.axis(i).nees.sum() == pytest.approx(min(nees, UTMOST))
        assert np.isfinite(both.axis(i).nees).all()
        assert both.axis(i).nees.sum() >= min(nees, UTMOST)
        assert both.histogram(i)[-1] == giant.histogram(i)[-1] == 1
    square = min(nees, UTMOST_FACTOR**2)
    assert giant.whitened == pytest.approx(np.full((3, 3), square))


@quick
@given(seeds, st.integers(1, 40), st.booleans())
def test_sums_that_outgrow_62_bits_obey_the_laws_like_any_other(seed, n, changed_sign):
    # Every addend is at the cut: 2^80 units, so that all columns spill.
    see = partial(observe, SPACES[2], BINNING)
    sign = -1.0 if changed_sign else 1.0
    wide = np.broadcast_to(np.eye(2), (n, 2, 2))
    giants = see(np.full((n, 2), sign * 1e30), wide)
    assert giants.cells.spill_keys.size
    plain = stage(seed, 20, 2)
    both = plain.merge(giants)
    laws.assert_same(both.merge(giants.negated()), plain)
    laws.assert_same(both.merge(plain.negated()), giants)
    laws.merge_is_associative(StageStatistics.merge, giants, plain, giants)
    one = see(np.full((1, 2), sign * 1e30), wide[:1])
    laws.assert_same(reduce(StageStatistics.merge, [one] * n), giants)
    assert giants.axis(0).nees.sum() == n * UTMOST
    # Σ r is cut at 2^80 units of 2^-32 σ.
    assert giants.axis(0).error.sum() == sign * n * UTMOST


@pytest.mark.parametrize("sigma", [1e-6, 2.0**-10, np.nextafter(2.0**-10, 0), 63.999, 64.0, 1e5])
def test_deviations_beyond_the_micro_bins_are_counted_in_the_outer_ones(sigma):
    found = observe(SPACES[1], BINNING, np.array([[sigma]]), np.array([[[sigma * sigma]]]))
    cells = found.axis(0)
    assert cells.n.tolist() == [1]
    assert cells.lower[0] <= sigma < cells.upper[0]
    # An underflow bin counts in units of its upper edge, so a tiny σ² keeps fewer digits.
    assert cells.variance[0] == pytest.approx(sigma**2, rel=2.0**-32, abs=2.0**-52)
    assert cells.squared_error[0] == pytest.approx(sigma**2, rel=2.0**-32, abs=2.0**-52)
    assert cells.nees[0] == pytest.approx(1.0, abs=2.0**-32)


# ---- the sums themselves


def tolerance(n, unit=1.0):
    """Half a unit of the grid for each addend, and rounding of the slow sum."""
    return unit * n * (2.0**-33 + 1e-14)


@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("form", ["diagonal", "full", "mixed"])
def test_the_sums_are_those_of_plain_loops(k, form):
    space, n = SPACES[k], 150
    error, covariance = simulated(k, n, k, form)
    found = observe(space, BINNING, error, covariance)
    slow = statistics_oracle.sums(
        error.tolist(),
        covariance.tolist(),
        joint=[i for i in range(k) if space.names[i] != "yaw"],
        tau=BINNING.tau,
        deviation_edges=statistics_oracle.log_edges(2.0**-10, 32, 16),
        nees_edges=statistics_oracle.log_edges(2.0**-16, 16, 32),
    )
    assert found.n == n
    for axis in range(k + 1):
        cells = found.axis(axis)
        expected = [slow.cells[key] for key in sorted(slow.cells) if key[0] == axis]
        assert cells.n.tolist() == [cell.n for cell in expected]
        assert cells.within.tolist() == [cell.within for cell in expected]
        for i, cell in enumerate(expected):
            unit = cells.upper[i]
            near = partial(pytest.approx, rel=1e-12)
            assert cells.variance[i] == near(cell.variance, abs=tolerance(cell.n, unit**2))
            assert cells.error[i] == near(cell.error, abs=tolerance(cell.n, unit))
            squared = near(cell.squared_error, abs=tolerance(cell.n, unit**2))
            assert cells.squared_error[i] == squared
            assert cells.nees[i] == near(cell.nees, abs=tolerance(cell.n))
        counts = found.histogram(axis)
        assert {int(i): int(counts[i]) for i in np.flatnonzero(counts)} == {
            key[1]: count for key, count in slow.nees_histogram.items() if key[0] == axis
        }
    near = partial(pytest.approx, rel=1e-11, abs=tolerance(n))
    assert found.sigma == near(slow.sigma)
    assert found.log_sigma == near(slow.log_sigma)
    assert found.log_determinant == near(slow.log_determinant)
    assert np.diagonal(found.normalised) == near(np.diagonal(slow.normalised))
    # Products are of values rounded to 2^-16: each is off by half of that times the other.
    size = max(max(map(max, slow.normalised)), max(map(max, slow.whitened)))
    rounded = partial(pytest.approx, abs=2.0**-17 * 2 * np.sqrt(n * size))
    assert found.normalised == rounded(np.array(slow.normalised))
    assert found.whitened == rounded(np.array(slow.whitened))


@pytest.mark.parametrize("tau", BINNING.tau)
def test_the_shortfall_gives_the_pinball_loss(tau):
    error, covariance = simulated(3, 80, 2)
    found = observe(SPACES[2], BINNING, error, covariance)
    level = BINNING.tau.index(tau)
    for i in range(2):
        sigma = np.sqrt(covariance[:, i, i])
        slow = sum(
            statistics_oracle.pinball(e, s, tau)
            for e, s in zip(error[:, i].tolist(), sigma.tolist(), strict=True)
        )
        # Σ max(τ a, (τ − 1) a) = τ Σ a − Σ min(a, 0)
        quantile = float(norm.ppf(tau))
        loss = tau * (error[:, i].sum() - quantile * found.sigma[i]) - found.shortfall[i, level]
        assert loss == pytest.approx(slow, rel=1e-9)


@quick
@given(seeds, st.sampled_from([1, 2, 3, 4]), st.booleans())
def test_every_row_is_in_one_cell_of_every_axis(seed, k, extreme):
    found = stage(seed, 40, k, extreme=extreme)
    for axis in range(k + 1):
        cells = found.axis(axis)
        assert cells.n.sum() == 40
        assert (np.diff(cells.lower) > 0).all()
        assert (cells.n > 0).all()
        # Coverage grows with its level, and never beyond the rows there are.
        assert (np.diff(cells.within, axis=1) >= 0).all()
        assert (cells.within <= cells.n[:, None]).all()
        assert found.histogram(axis).sum() == 40


def test_an_observation_of_no_rows_is_the_zero():
    none = observe(SPACES[3], BINNING, np.zeros((0, 3)), np.zeros((0, 3, 3)))
    laws.assert_same(none, no_stage_statistics(SPACES[3], BINNING))


def test_the_joint_block_of_a_space_without_lengths_is_all_of_it():
    space = Space((YAW, Dimension("roll", "rad", DimensionKind.ANGLE)))
    error, covariance = simulated(2, 30, 2)
    angles = observe(space, BINNING, error, covariance)
    lengths = observe(plain_space(("yaw", "roll")), BINNING, error, covariance)
    laws.assert_same(replace(angles, space=lengths.space), lengths)


# ---- clusters


@pytest.mark.parametrize("n", [40, CHUNK + 70])
def test_pairs_of_clusters_are_those_of_plain_loops(n):
    space = SPACES[2]
    error, covariance = simulated(8, n, 2)
    random = np.random.default_rng(8)
    # Few clusters of few rows, most of them on either side of where chunks meet.
    cluster = np.zeros(n, np.uint64)
    chosen = np.unique(random.integers(max(0, n - 150), n, 60))
    cluster[chosen] = random.integers(1, 9, chosen.size)
    found = observe(space, BINNING, error, covariance, cluster)
    joint = [i for i in range(2) if space.names[i] != "yaw"]
    for axis, which in enumerate([[0], [1], joint]):
        x = []
        for row in chosen.tolist():
            block = covariance[row][np.ix_(which, which)].tolist()
            nees = oracle.mahalanobis(block, error[row, which].tolist()) / len(which)
            x.append(round(min(nees, 64.0) * 2**16) / 2**16)
        slow = statistics_oracle.pairs(cluster[chosen].tolist(), x)
        assert (found.pairs, found.cross[axis], found.beside[axis]) == pytest.approx(slow, rel=1e-6)
    alone = observe(space, BINNING, error, covariance)
    assert alone.pairs == 0
    assert not alone.cross.any()
    assert not alone.beside.any()
    laws.assert_same(alone.cells, found.cells)
    laws.assert_same(alone.nees, found.nees)


# ---- refusals


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (Binning(deviation=LogBins(2.0**-9, 32, 16)), "0.00195312"),
        (Binning(tau=(0.5, 0.9)), "(0.5, 0.9)"),
        (Binning(nees=LogBins(2.0**-16, 8, 32)), "hash"),
    ],
)
@pytest.mark.parametrize("combine", [StageStatistics.merge, laws.retracted])
def test_statistics_on_other_bins_are_refused_with_both_named(other, named, combine):
    rows = simulated(1, 5, 2)
    ours, theirs = (observe(SPACES[2], binning, *rows) for binning in (BINNING, other))
    with pytest.raises(IncompatibleStatistics) as refusal:
        combine(ours, theirs)
    message = str(refusal.value)
    assert named in message
    assert BINNING.describe() in message
    assert other.describe() in message
    assert BINNING.hash != other.hash
    assert "[statistics]" in message


@pytest.mark.parametrize(
    "space",
    [plain_space(("a", "b")), plain_space(("x",)), plain_space(("yaw", "x"), "m")],
)
def test_statistics_over_another_space_are_refused_with_both_named(space):
    k = space.k
    theirs = observe(space, BINNING, *simulated(1, 5, k))
    with pytest.raises(IncompatibleStatistics) as refusal:
        stage(1, 5, 2).merge(theirs)
    assert str(SPACES[2].names) in str(refusal.value)
    assert str(space.names) in str(refusal.value)


def test_even_nothing_is_refused_on_other_bins():
    with pytest.raises(IncompatibleStatistics):
        stage(1, 5, 2).merge(no_stage_statistics(SPACES[2], Binning(tau=(0.5,))))


@quick
@given(seeds, seeds)
def test_different_rows_make_different_statistics(one, two):
    assume(one != two)
    with pytest.raises(AssertionError):
        laws.assert_same(stage(one, 5, 2), stage(two, 5, 2))


def test_a_covariance_that_is_singular_by_a_rounding_is_left_out_and_its_neighbours_stay():
    space = plain_space(("x", "y"))
    error = np.ones((3, 2))
    covariance = np.stack([np.eye(2), np.full((2, 2), 1.0), 4.0 * np.eye(2)])
    found = observe(space, Binning(), error, covariance)
    assert found.n == 2
    laws.assert_same(found, observe(space, Binning(), error[[0, 2]], covariance[[0, 2]]))
    alone = observe(space, Binning(), error[1:2], covariance[1:2])
    laws.assert_same(alone, no_stage_statistics(space, Binning()))
