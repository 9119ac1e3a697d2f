"""How much n detections tell: pairs of rows in a cluster, against plain loops over all pairs."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.statistics.clusters import (
    ALONE,
    LARGEST,
    ClusterMemory,
    cluster_id,
    clustered,
    design_effect,
    design_effect_of_rows,
)
from tests.statistics import oracle

seeds = st.integers(0, 2**32 - 1)


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
    pairs, cross, beside = summed(ClusterMemory(2), ids, x, cuts)
    for axis in range(2):
        slow = oracle.pairs(ids.tolist(), x[axis].tolist())
        assert (pairs, cross[axis], beside[axis]) == slow


@given(seeds, st.integers(10, 20), st.lists(st.integers(0, 100), max_size=5))
def test_a_cluster_is_forgotten_after_so_many_rows_of_others_however_they_are_cut(
    seed, limit, cuts
):
    ids, x = some_rows(seed, 100, 12, axes=1)
    # No piece is longer than what is remembered.
    pairs, _, _ = summed(ClusterMemory(1, limit), ids, x, [*cuts, *range(0, 100, 10)])
    # Rows of a cluster that comes again too late are a new one.
    last: dict[int, int] = {}
    renewed = Counter[int]()
    names = []
    for age, one in enumerate(one for one in ids.tolist() if one):
        renewed[one] += age - last.get(one, age) > limit
        last[one] = age
        names.append(one + 100 * renewed[one])
    assert pairs == oracle.pairs(names, [0.0] * len(names))[0]


@given(
    st.lists(st.tuples(*[st.integers(-(2**40), 2**40)] * 4), unique=True, min_size=1, max_size=30)
)
def test_tracks_that_differ_in_source_slice_pane_or_number_have_ids_of_their_own(drawn):
    track, slices, source, epoch = (np.array(part) for part in zip(*drawn, strict=True))
    ids = cluster_id((track.astype(np.uint64), slices, source, epoch))
    assert len(set(ids.tolist())) == len(drawn)
    assert (ids != ALONE).all()
    # One at a time, as numbers, they are the same.
    alone = cluster_id((track[:1].astype(np.uint64), slices[:1], int(source[0]), int(epoch[0])))
    assert alone.tolist() == ids[:1].tolist()


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
    pairs, cross, beside = summed(ClusterMemory(1), ids, x[None])
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
