"""What is computed of each detection, the sums of it, and clusters: against plain loops."""

from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from monitor.frames.space import Dimension, DimensionKind, Space, plain_space
from monitor.statistics.bins import SQUARED_ERRORS, Binning
from monitor.statistics.clusters import (
    LARGEST,
    ClusterMemory,
    clustered,
    design_effect,
    design_effect_of_rows,
    no_clusters,
)
from monitor.statistics.exact_engine import generalised_deviation
from monitor.statistics.observations import CHUNK, Measured, measure
from monitor.statistics.state import StageStatistics, no_stage_statistics, observe
from tests import laws
from tests.statistics import oracle

YAW = Dimension("yaw", "rad", DimensionKind.ANGLE)
SPACES = [
    plain_space(("x",)),
    plain_space(("x", "y", "z")),
    # Angles in front and between: the order of whitening is not that of the dimensions.
    Space((YAW, *plain_space(("x", "y")).dimensions)),
    Space((plain_space(("x",)).dimensions[0], YAW, plain_space(("y",)).dimensions[0]), True),
    Space((YAW, Dimension("roll", "rad", DimensionKind.ANGLE))),
]
spaces = st.sampled_from(SPACES)
seeds = st.integers(0, 2**32 - 1)


def rows_of(seed, n, k, diagonal=0.3):
    """Errors and covariances, a share of them diagonal."""
    random = np.random.default_rng(seed)
    root = np.tril(random.uniform(-0.5, 0.5, (n, k, k)), -1)
    root[:, np.arange(k), np.arange(k)] = random.uniform(0.5, 2, (n, k))
    covariance = root @ root.transpose(0, 2, 1)
    plain = random.random(n) < diagonal
    covariance[plain] *= np.eye(k)
    scale = 10.0 ** random.uniform(-2, 2, k)
    return random.normal(size=(n, k)) * scale, covariance * scale[:, None] * scale


@given(seeds, spaces, st.sampled_from([0.0, 0.3, 1.0]))
def test_everything_about_a_detection_is_as_plain_loops_find_it_alone_and_among_others(
    seed, space, diagonal
):
    k = space.k
    error, covariance = rows_of(seed, 6, k, diagonal)
    before = error.copy(), covariance.copy()
    # Frames are measured one behind the other.
    found = measure(space, [(error[:2], covariance[:2]), (error[2:], covariance[2:])])
    laws.assert_same((error, covariance), before)
    assert found.n == 6
    assert found.regular.all()
    lengths = [i for i, one in enumerate(space.dimensions) if one.kind is DimensionKind.LENGTH]
    joint = (not space.angles_in_joint and lengths) or list(range(k))
    order = [*joint, *(i for i in range(k) if i not in joint)]
    for row in range(6):
        matrix, r = covariance[row].tolist(), error[row].tolist()
        sigma = [matrix[i][i] ** 0.5 for i in range(k)]
        block = [[matrix[i][j] for j in joint] for i in joint]
        determinant = oracle.determinant(block)
        white = oracle.whiten([[matrix[i][j] for j in order] for i in order], [r[i] for i in order])
        generalised = determinant ** (1 / (2 * len(joint)))
        z = [r[i] / sigma[i] for i in range(k)]
        nees = oracle.mahalanobis(block, [r[i] for i in joint])
        assert found.error[:, row].tolist() == r
        assert found.deviation[:, row] == pytest.approx([*sigma, generalised], rel=1e-9)
        assert found.normalised[:, row] == pytest.approx(z, rel=1e-9)
        assert found.whitened[:, row] == pytest.approx(white, rel=1e-7, abs=1e-12)
        assert found.nees[:, row] == pytest.approx([*(v * v for v in z), nees], rel=1e-7)
        assert found.log_determinant[row] == pytest.approx(np.log(determinant), abs=1e-9)
        one = slice(row, row + 1)
        assert_same_columns(measure(space, [(error[one], covariance[one])]), found, one)
        form = np.full(1, not (matrix * (1 - np.eye(k))).any())
        for known in {bool(form[0]), False}:
            deviation = generalised_deviation(space, covariance[one], np.array([known]))
            assert deviation == pytest.approx(generalised, rel=1e-9)


def assert_same_columns(found: Measured, whole: Measured, chosen: Any) -> None:
    for name in ("error", "deviation", "normalised", "whitened", "nees", "log_determinant"):
        laws.assert_same(getattr(found, name), getattr(whole, name)[..., chosen])


def test_what_is_not_positive_definite_is_left_out_and_spoils_no_neighbour():
    space = SPACES[1]
    error, covariance = rows_of(3, 5, 3)
    clean = measure(space, [(error, covariance)])
    spoiled = covariance.copy()
    spoiled[1] = 1.0
    spoiled[3, 0, 1] = spoiled[3, 1, 0] = 2 * np.sqrt(covariance[3, 0, 0] * covariance[3, 1, 1])
    with np.errstate(divide="ignore", invalid="ignore"):
        found = measure(space, [(error, spoiled)])
        seen = observe(space, Binning(), error, spoiled, np.full(5, 7, np.uint64))
        none = observe(space, Binning(), error[1:2], spoiled[1:2])
    assert found.regular.tolist() == [True, False, True, False, True]
    kept = found.take(found.regular)
    assert kept.n == 3
    assert_same_columns(kept, clean, np.array([0, 2, 4]))
    rest, sevens = [0, 2, 4], np.full(3, 7, np.uint64)
    laws.assert_same(seen, observe(space, Binning(), error[rest], covariance[rest], sevens))
    laws.assert_same(none, no_stage_statistics(space, Binning()))


# ---- the sums

BINNING = Binning()


@pytest.mark.parametrize("diagonal", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("space", SPACES, ids=lambda space: ",".join(space.names))
def test_the_sums_are_those_of_what_is_measured_of_each_row(space, diagonal):
    n, k = 150, space.k
    error, covariance = rows_of(k, n, k, diagonal)
    found, each = observe(space, BINNING, error, covariance), measure(space, [(error, covariance)])
    assert found.n == n
    # Half a unit of the grid for each addend, and rounding of the slow sum.
    near = 2.0**-33 + 1e-14
    for axis, degrees in enumerate([*[1] * k, len(space.joint)]):
        cells, sigma, nees = found.axis(axis), each.deviation[axis], each.nees[axis]
        # Jointly, squares are of all dimensions; the sum of errors means nothing.
        joint = error[:, list(space.joint)]
        r, squares = error[:, axis] if axis < k else np.zeros(n), np.square(joint).sum(axis=1)
        squares = r * r if axis < k else squares
        opened = np.searchsorted(oracle.log_edges(2.0**-20, 32, 40), sigma, side="right")
        parts = [opened == b for b in np.unique(opened)]
        assert cells.n.tolist() == [part.sum() for part in parts]
        within = nees[:, None] <= [oracle.chi_square(tau, degrees) for tau in BINNING.tau]
        assert cells.within.tolist() == [within[part].sum(axis=0).tolist() for part in parts]
        assert (np.diff(cells.lower) > 0).all()
        for name, x, power in (
            *(("variance", sigma**2, 2), ("error", r, 1)),
            *(("squared_error", squares, 2), ("nees", nees, 0)),
        ):
            # A sum beyond the unit of its bin is rounded as a float.
            near_sum = near * cells.n * cells.upper**power + 1e-14 * abs(getattr(cells, name))
            off = getattr(cells, name) - [x[part].sum() for part in parts]
            assert (abs(off) <= near_sum).all(), name
        opened = np.searchsorted(oracle.log_edges(2.0**-16, 16, 32), nees, side="right")
        counts = found.histogram(axis)
        assert counts.tolist() == np.bincount(opened, minlength=counts.size).tolist()
        assert squares_of(found, axis) == Counter(map(oracle.eighth, squares.tolist()))
    close = partial(pytest.approx, rel=1e-11, abs=100 * n * near)
    sigma, z, u = each.deviation[:k], each.normalised, each.whitened
    assert found.sigma == close(sigma.sum(axis=1))
    assert found.companion["log_sigma"] == close(np.log(sigma).sum(axis=1))
    assert found.companion["crps"] == pytest.approx(
        [sum(map(oracle.crps, s, e)) for s, e in zip(sigma, error.T, strict=True)], rel=1e-4
    )
    assert found.log_determinant == close(each.log_determinant.sum())
    assert np.diagonal(found.normalised) == close((z * z).sum(axis=1))
    # Products are of values rounded to 2^-16: each is off by half of that times the other.
    rounded = 2.0**-16 * np.sqrt(n * max((z @ z.T).max(), (u @ u.T).max()))
    assert found.normalised == pytest.approx(z @ z.T, abs=rounded)
    assert found.whitened == pytest.approx(u @ u.T, abs=rounded)
    for level, tau in enumerate(BINNING.tau):
        # Σ max(τ a, (τ − 1) a) = τ Σ a − Σ min(a, 0)
        beyond = error.T - sigma * norm.ppf(tau)
        slow = np.maximum(tau * beyond, (tau - 1) * beyond).sum(axis=1)
        loss = tau * (error.sum(axis=0) - norm.ppf(tau) * found.sigma) - found.shortfall[:, level]
        assert loss == pytest.approx(slow, rel=1e-9, abs=n * near)


def squares_of(found: StageStatistics, axis: int) -> Counter[int]:
    """How many squared errors of an axis lie in which eighth of which octave."""
    count = SQUARED_ERRORS.count
    held = found.squares.between(axis * count, (axis + 1) * count)
    return Counter(dict(zip((held.keys - 1 - 8 * 64).tolist(), held.values[:, 0], strict=True)))


@pytest.mark.parametrize("sigma", [1e-6, 2.0**-10, np.nextafter(2.0**-10, 0), 63.999, 64.0, 1e5])
def test_deviations_beyond_the_micro_bins_are_counted_in_the_outer_ones(sigma):
    found = observe(SPACES[0], BINNING, np.array([[sigma]]), np.array([[[sigma * sigma]]]))
    cells = found.axis(0)
    assert cells.n.tolist() == [1]
    assert cells.lower[0] <= sigma < cells.upper[0]
    # An underflow bin counts in units of its upper edge, so a tiny σ² keeps fewer digits.
    assert cells.variance[0] == pytest.approx(sigma**2, rel=2.0**-32, abs=2.0**-52)
    assert cells.squared_error[0] == pytest.approx(sigma**2, rel=2.0**-32, abs=2.0**-52)
    assert cells.nees[0] == pytest.approx(1.0, abs=2.0**-32)


@pytest.mark.parametrize("n", [40, CHUNK + 70])
def test_pairs_of_clusters_are_those_of_plain_loops(n):
    space = Space((YAW, *plain_space(("x",)).dimensions))
    error, covariance = rows_of(8, n, 2)
    random = np.random.default_rng(8)
    # Few clusters of few rows, most of them on either side of where chunks meet.
    cluster = np.zeros(n, np.uint64)
    chosen = np.unique(random.integers(max(0, n - 150), n, 60))
    cluster[chosen] = random.integers(1, 9, chosen.size)
    error[chosen[:5]] *= 100.0
    found = observe(space, BINNING, error, covariance, cluster)
    for axis, which in enumerate([[0], [1], [1]]):
        x = []
        for row in chosen.tolist():
            block = covariance[row][np.ix_(which, which)].tolist()
            nees = oracle.mahalanobis(block, error[row, which].tolist()) / len(which)
            x.append(round(min(nees, 64.0) * 2**16) / 2**16)
        slow = oracle.pairs(cluster[chosen].tolist(), x)
        sums = found.companion["cross"][axis], found.companion["beside"][axis]
        assert (found.pairs, *sums) == pytest.approx(slow, rel=1e-6)
    alone = observe(space, BINNING, error, covariance)
    assert alone.pairs == 0
    assert not any(alone.companion[name].any() for name in ("cross", "beside"))
    laws.assert_same(alone.tables, found.tables)


# ---- how much n detections tell: pairs of rows in a cluster


def some_rows(seed, n, clusters, axes=2):
    """Ids, 0 for rows on their own, and x on the grid it is kept on."""
    random = np.random.default_rng(seed)
    ids = random.integers(0, clusters + 1, n).astype(np.uint64)
    return ids, np.rint(random.exponential(size=(axes, n)) * 2**16) / 2**16


def summed(memory: ClusterMemory, ids, x, cuts=()):
    """Pairs, cross and beside of rows that come in pieces, and how many of these had a cluster."""
    pairs, cross, beside = 0.0, np.zeros(x.shape[0]), np.zeros(x.shape[0])
    for rows in np.split(np.arange(ids.size), sorted(min(cut, ids.size) for cut in cuts)):
        before = memory.before(ids[rows], x[:, rows])
        if before is None:
            assert not ids[rows].any()
            continue
        pairs += before.rows.sum()
        cross += (x[:, rows] * before.sums).sum(axis=1)
        beside += (before.sums + x[:, rows] * before.rows).sum(axis=1)
    return pairs, cross, beside


@given(seeds, st.integers(0, 60), st.integers(0, 8), st.lists(st.integers(0, 60), max_size=5))
def test_pairs_are_those_of_all_rows_with_one_id_however_they_are_cut_into_folds(
    seed, n, clusters, cuts
):
    ids, x = some_rows(seed, n, clusters)
    pairs, cross, beside = summed(ClusterMemory(no_clusters(2)), ids, x, cuts)
    for axis in range(2):
        slow = oracle.pairs(ids.tolist(), x[axis].tolist())
        assert (pairs, cross[axis], beside[axis]) == slow


@given(seeds, st.integers(10, 20), st.lists(st.integers(0, 100), max_size=5))
def test_a_cluster_is_forgotten_after_so_many_rows_of_others_however_they_are_cut(
    seed, limit, cuts
):
    ids, x = some_rows(seed, 100, 12, axes=1)
    # No piece is longer than what is remembered.
    pairs, _, _ = summed(ClusterMemory(no_clusters(1), limit), ids, x, [*cuts, *range(0, 100, 10)])
    # Rows of a cluster that comes again too late are a new one.
    last: dict[int, int] = {}
    renewed = Counter[int]()
    names = []
    for age, one in enumerate(one for one in ids.tolist() if one):
        renewed[one] += age - last.get(one, age) > limit
        last[one] = age
        names.append(one + 100 * renewed[one])
    assert pairs == oracle.pairs(names, [0.0] * len(names))[0]


@given(seeds)
def test_x_is_the_nees_over_its_degrees_on_a_grid_cut_where_one_error_would_be_all(seed):
    nees = np.random.default_rng(seed).exponential(size=(2, 50)) * [[1.0], [30.0]]
    nees[:, 0] = 0.75, 1e9
    x = clustered(nees, np.array([1.0, 3.0]))
    assert (x * 2**16 == np.rint(x * 2**16)).all()
    assert np.abs(x - np.minimum(nees / [[1.0], [3.0]], 64.0)).max() <= 2.0**-17
    assert x[:, 0].tolist() == [0.75, LARGEST]


def effect(ids, x):
    """D of one axis, from sums as they are kept."""
    pairs, cross, beside = summed(ClusterMemory(no_clusters(1)), ids, x[None])
    n, mean = x.size, x.mean()
    return design_effect(n, mean, float(np.square(x).sum()), pairs, cross[0], beside[0])


@given(seeds, st.integers(2, 60), st.integers(0, 6))
def test_the_design_effect_is_that_of_its_definition_from_sums_and_from_rows(seed, n, clusters):
    ids, x = some_rows(seed, n, clusters, axes=1)
    slow = oracle.design_effect(ids.tolist(), x[0].tolist())
    assert effect(ids, x[0]) == pytest.approx(slow, rel=1e-9, abs=1e-9)
    track = ids.astype(np.int64) - 1
    nees = np.stack([3 * x[0], 8 * x[0]], axis=1)
    nees[0] = 1e6
    found = design_effect_of_rows(nees, np.array([3.0, 1.0]), track)
    for axis, k in enumerate((3, 1)):
        cut = np.minimum(nees[:, axis] / k, 64.0).tolist()
        expected = oracle.design_effect(ids.tolist(), cut)
        assert found[axis] == pytest.approx(expected, rel=1e-9)


def test_rows_that_are_all_alike_tell_of_no_effect_and_without_rows_nothing_is_known():
    assert effect(np.ones(9, np.uint64), np.ones(9)) == 1.0
    assert np.isnan(design_effect(0, float("nan"), 0.0, 0.0, 0.0, 0.0))
