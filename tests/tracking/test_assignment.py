"""The assignment, against every possible one, and against scipy on the whole matrix."""

from itertools import permutations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from monitor.tracking.association import assign

seeds = st.integers(0, 2**32 - 1)


def possible(seed, t, n, share, classes=1, ties=False):
    """Pairs of a random graph in random order; the classes share nothing."""
    random = np.random.default_rng(seed)
    kind = [random.integers(0, classes, size) for size in (t, n)]
    allowed = (random.random((t, n)) < share) & (kind[0][:, None] == kind[1])
    track, detection = np.nonzero(allowed)
    order = random.permutation(track.size)
    track, detection = track[order], detection[order]
    # −2 log of a likelihood is often negative.
    cost = random.normal(0, 30, track.size)
    return track, detection, cost.round(-1) if ties else cost, kind[0][track]


def best_of_all(track, detection, cost, t, n):
    """(pairs, cost) of the assignment with the most pairs, then the least cost, of all there are.

    Every detection goes to a track or to one of n places that stand for none.
    """
    price = {(a, b): c for a, b, c in zip(track.tolist(), detection.tolist(), cost, strict=True)}
    best = (0, 0.0)
    for seats in permutations(range(t + n), n):
        taken = [price[seat, b] for b, seat in enumerate(seats) if (seat, b) in price]
        if (-len(taken), sum(taken)) < (-best[0], best[1]):
            best = len(taken), sum(taken)
    return best


def is_an_assignment(chosen, track, detection):
    assert np.unique(chosen).size == chosen.size
    for side in (track, detection):
        assert np.unique(side[chosen]).size == chosen.size


@settings(max_examples=60)
@given(seeds, st.integers(0, 4), st.integers(0, 4), st.floats(0, 1), st.booleans())
def test_few_are_assigned_as_the_best_of_all_possible_ways(seed, t, n, share, ties):
    track, detection, cost, kind = possible(seed, t, n, share, ties=ties)
    chosen = assign(track, detection, cost, kind)
    is_an_assignment(chosen, track, detection)
    pairs, least = best_of_all(track, detection, cost, t, n)
    assert chosen.size == pairs
    np.testing.assert_allclose(cost[chosen].sum(), least, atol=1e-9)


@settings(max_examples=100)
@given(
    seeds, st.integers(1, 60), st.integers(1, 60), st.sampled_from([0.01, 0.05, 0.3, 1.0]),
    st.integers(1, 4),
)  # fmt: skip
def test_many_are_assigned_as_by_scipy_on_the_whole_matrix_of_each_class(
    seed, t, n, share, classes
):
    track, detection, cost, kind = possible(seed, t, n, share, classes)
    chosen = assign(track, detection, cost, kind)
    is_an_assignment(chosen, track, detection)
    for one in range(classes):
        of_class = np.flatnonzero(kind == one)
        matrix = np.full((t, n), 1e7)
        matrix[track[of_class], detection[of_class]] = cost[of_class]
        dense = matrix[linear_sum_assignment(matrix)]
        mine = chosen[kind[chosen] == one]
        assert mine.size == np.count_nonzero(dense < 1e6)
        np.testing.assert_allclose(cost[mine].sum(), dense[dense < 1e6].sum(), atol=1e-7)


@settings(max_examples=100)
@given(seeds, st.integers(1, 80), st.integers(1, 80), st.floats(0.005, 0.2), st.integers(1, 3))
def test_no_pair_is_left_out_for_a_cheaper_sum(seed, t, n, share, classes):
    track, detection, cost, kind = possible(seed, t, n, share, classes)
    graph = csr_array((np.ones(track.size), (track, detection)), shape=(t, n))
    most = np.count_nonzero(maximum_bipartite_matching(graph, perm_type="column") >= 0)
    assert assign(track, detection, 1e6 * cost, kind).size == most


def test_a_track_that_could_have_either_leaves_the_other_what_it_alone_can_have():
    # Track 0 fits detection 0 best, but track 1 has no other choice.
    track, detection = np.array([0, 0, 1]), np.array([0, 1, 0])
    chosen = assign(track, detection, np.array([1.0, 50.0, 60.0]), np.zeros(3, int))
    assert sorted(chosen.tolist()) == [1, 2]


def test_nothing_to_assign_gives_nothing():
    none = np.zeros(0, np.int64)
    assert assign(none, none, np.zeros(0), none).size == 0
