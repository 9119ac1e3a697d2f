"""Messages gone wrong raise nothing; `python -m tests.fuzzed` sends a million."""

import random

import pytest

from tests.fuzzed import Fuzz, World, worlds

WORLDS = {world.header.stream: world for world in worlds()}


@pytest.fixture(params=WORLDS)
def world(request) -> World:
    return WORLDS[request.param]


def beset(world: World, frames: int, processed: int) -> None:
    """Sends so many frames, one of `processed` through the pipeline too, with labels."""
    fuzz = Fuzz(world, random.Random(world.header.stream))
    for i in range(frames):
        data = fuzz.frames.valid() if i % 30 == 0 else fuzz.frames.next()
        if i % processed:
            fuzz.frame(data)
            continue
        fuzz.processed(data)
        fuzz.unary(data)
        fuzz.label(fuzz.labels.next())
    fuzz.assert_sound()
    # They were of all kinds, and not all of one fate.
    assert len(fuzz.frames.told) > 12
    for outcome in ("answered", "read at once", "read apart", "refused malformed", "labels"):
        assert fuzz.outcomes[outcome] > 20, outcome
    assert fuzz.outcomes["labels some matched"] > 0


def test_messages_gone_wrong_are_answered_refused_or_counted_but_raise_nothing(world):
    beset(world, 600, 8)
