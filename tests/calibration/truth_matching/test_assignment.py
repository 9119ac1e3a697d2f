"""Which pairs are chosen, against every possible choice."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.matching import gate
from monitor.matching.distances import Pairs
from monitor.matching.gate import assigned

seeds = st.integers(0, 2**32 - 1)


def drawn(seed: int, m: int, n: int, share: float, scale: float = 3.0, ties: bool = False) -> Pairs:
    """Pairs of a random graph, in random order."""
    random = np.random.default_rng(seed)
    objects, detections = np.nonzero(random.random((m, n)) < share)
    order = random.permutation(objects.size)
    distance = random.uniform(0, scale, order.size)
    if ties:
        distance = np.round(distance / scale * 3) * scale / 3
    return Pairs(detections[order], objects[order], distance)


def best(pairs: Pairs, m: int, n: int) -> tuple[int, float]:
    """The most pairs there can be, and the least sum of distances of so many."""
    price = dict(
        zip(
            zip(pairs.object.tolist(), pairs.detection.tolist(), strict=True),
            pairs.distance.tolist(),
            strict=True,
        )
    )
    found = (0, 0.0)
    for seats in permutations(range(m + n), n):
        taken = [price[seat, b] for b, seat in enumerate(seats) if (seat, b) in price]
        if (-len(taken), sum(taken)) < (-found[0], found[1]):
            found = len(taken), sum(taken)
    return found


def is_one_to_one(pairs: Pairs) -> bool:
    return np.unique(pairs.object).size == np.unique(pairs.detection).size == pairs.distance.size


@settings(max_examples=60)
@given(
    seeds,
    st.integers(0, 4),
    st.integers(0, 4),
    st.floats(0, 1),
    st.sampled_from([1e-9, 3.0, 1e9]),
    st.booleans(),
)
def test_as_many_as_there_can_be_are_chosen_and_then_the_nearest(seed, m, n, share, scale, ties):
    pairs = drawn(seed, m, n, share, scale, ties)
    chosen = pairs.take(assigned(pairs))
    assert is_one_to_one(chosen)
    count, total = best(pairs, m, n)
    assert chosen.distance.size == count
    assert chosen.distance.sum() == pytest.approx(total, rel=1e-9, abs=1e-12 * scale)


@settings(max_examples=60)
@given(seeds, st.integers(1, 30), st.integers(1, 30), st.floats(0, 0.5))
def test_the_choice_does_not_depend_on_the_order_of_pairs_objects_or_detections(seed, m, n, share):
    pairs = drawn(seed, m, n, share)
    random = np.random.default_rng(seed + 1)
    new_object, new_detection = random.permutation(m), random.permutation(n)
    order = random.permutation(pairs.distance.size)
    other = Pairs(new_detection[pairs.detection], new_object[pairs.object], pairs.distance)
    chosen, shuffled = assigned(pairs), assigned(other.take(order))
    assert set(chosen.tolist()) == set(order[shuffled].tolist())


@settings(max_examples=40)
@given(seeds, st.integers(1, 12), st.integers(1, 12), st.floats(0, 1))
def test_what_hangs_together_too_far_is_chosen_nearest_first(seed, m, n, share):
    pairs = drawn(seed, m, n, share)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(gate, "MOST_TOGETHER", 0)
        chosen = pairs.take(assigned(pairs))
    assert is_one_to_one(chosen)
    # Whatever was left out would have met a nearer choice on one side.
    for i in range(pairs.distance.size):
        same = (chosen.object == pairs.object[i]) | (chosen.detection == pairs.detection[i])
        assert (chosen.distance[same] <= pairs.distance[i]).any()


def test_a_cheap_pair_never_costs_another_its_match():
    # Object 0 is nearest to detection 0, which alone is within reach of object 1.
    pairs = Pairs(np.array([0, 1, 0]), np.array([0, 0, 1]), np.array([0.0, 2.9, 3.0]))
    assert assigned(pairs).tolist() == [1, 2]


@settings(max_examples=60)
@given(seeds, st.integers(1, 30), st.integers(1, 30), st.floats(0, 0.2))
def test_what_does_not_hang_together_may_be_assigned_apart(seed, m, n, share):
    pairs = drawn(seed, m, n, share)
    together = assigned(pairs)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(gate, "_ONE_PART", 0)
        apart = assigned(pairs)
    assert apart.tolist() == together.tolist()
