"""Messages gone wrong through decoder, validator and pipeline: nothing is raised, nothing spoils a
sum, and both ways of reading agree bit for bit. `python -m tests.fuzzed` sends a million of them.
"""

import random

import pytest

from tests.fuzzed import Fuzz, World, fuzzed, worlds
from tests.mutations import PROCESS_REQUEST, TRUTH_REQUEST, Mutations, taken_apart, written

WORLDS = {world.header.stream: world for world in worlds()}


@pytest.fixture(params=WORLDS)
def world(request) -> World:
    return WORLDS[request.param]


def beset(world: World, frames: int, processed: int) -> None:
    """Sends so many frames, one of `processed` through the pipeline too, with labels."""
    fuzz = fuzzed(world, world.header.stream, frames, processed)
    # They were of all kinds, and not all of one fate.
    assert len(fuzz.frames.told) > 12
    for outcome in ("answered", "read at once", "read apart", "refused malformed", "labels"):
        assert fuzz.outcomes[outcome] > 20, outcome
    assert fuzz.outcomes["labels some matched"] > 0


def test_messages_gone_wrong_are_answered_refused_or_counted_but_raise_nothing(world):
    beset(world, 600, 8)


@pytest.mark.campaign
def test_many_messages_gone_wrong_raise_nothing(world):
    beset(world, 5_000, 16)


def test_mutations_start_from_valid_messages_and_depend_on_the_seed_alone(world):
    for data in world.frames:
        assert written(taken_apart(data, PROCESS_REQUEST)) == data
    for data in world.labels:
        assert written(taken_apart(data, TRUTH_REQUEST)) == data
    one, other = (Mutations(world.frames, PROCESS_REQUEST, random.Random(3)) for _ in range(2))
    assert [one.next() for _ in range(50)] == [other.next() for _ in range(50)]


def test_values_of_the_worst_kind_leave_the_sums_finite(world):
    fuzz = Fuzz(world, random.Random(1))
    for i in range(200):
        fuzz.processed(fuzz.frames.valid() if i % 3 else fuzz.frames.of("values"))
        fuzz.label(fuzz.labels.of("values"))
    fuzz.assert_sound()
    assert fuzz.outcomes["answered"] > 190
