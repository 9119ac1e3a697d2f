"""Tracks that may go on, kept and restored: going on is then as if nothing had happened between."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.frames.space import Dimension, DimensionKind, Space, plain_space
from monitor.pipeline.run_state import RUN_STATE, OpenTracks, RunState
from monitor.statistics.clusters import ClusterMemory, ClusterState
from tests.calibration.matched_frames import (
    XY,
    accumulated,
    assert_same_panes,
    drive,
    empty,
    finished,
)
from tests.states import bits

quick = settings(max_examples=60)
seeds = st.integers(0, 2**32 - 1)


def kept(states: dict[Space, ClusterState]) -> dict[Space, ClusterState]:
    """Written, and read again."""
    tracks = tuple(
        OpenTracks(space, one.counted, one.ids, one.last, one.rows, one.sums.ravel())
        for space, one in states.items()
    )
    found = RUN_STATE.read(RUN_STATE.write(RunState(0, tracks=tracks)))
    return {entry.space: entry.clusters for entry in found.tracks}


def some_rows(random: np.random.Generator, n: int, clusters: int, axes: int):
    """Ids, 0 for rows on their own, and x on the grid it is kept on."""
    ids = random.integers(0, clusters + 1, n).astype(np.uint64)
    return ids, np.rint(random.exponential(size=(axes, n)) * 2**16) / 2**16


@quick
@given(
    seeds, st.integers(1, 12), st.integers(5, 40), st.lists(st.booleans(), min_size=1, max_size=8)
)
def test_a_memory_that_was_restored_goes_on_as_one_that_never_stopped(
    seed, clusters, limit, restarts
):
    random = np.random.default_rng(seed)
    going_on, restored = ClusterMemory(6, limit), ClusterMemory(6, limit)
    for restart in restarts:
        if restart:
            state = kept({XY: restored.state()})[XY]
            assert bits(state) == bits(going_on.state())
            restored = ClusterMemory.restored(state, limit)
        ids, x = some_rows(random, int(random.integers(20)), clusters, 6)
        assert bits(restored.before(ids, x)) == bits(going_on.before(ids, x))
    assert bits(restored.state()) == bits(going_on.state())


def test_the_state_of_a_memory_does_not_change_as_it_goes_on():
    random = np.random.default_rng(3)
    memory = ClusterMemory(2)
    memory.before(*some_rows(random, 30, 5, 2))
    state = memory.state()
    before = bits(state)
    memory.before(*some_rows(random, 30, 5, 2))
    assert bits(state) == before
    assert bits(memory.state()) != before


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("stop", [1, 40, 79])
def test_statistics_whose_tracks_were_restored_are_those_of_one_that_never_stopped(seed, stop):
    frames = drive(seed, 80, tracks=6)
    whole = accumulated(frames)
    first = accumulated(frames[:stop])
    second = empty()
    second.panes = first.panes
    second.restore_clusters(kept(first.clusters()))
    for rows in frames[stop:]:
        second.add(rows)
    finished(second)
    assert_same_panes(second.panes, whole.panes)
    assert sum(one.raw.pairs for panes in whole.panes.values() for one in panes.values()) > 20


def test_tracks_are_not_restored_to_a_space_they_cannot_be_of():
    state = ClusterMemory(4).state()
    with pytest.raises(ValueError, match="clusters: 4 axes, where x, y have 6"):
        empty().restore_clusters({XY: state})


# ---- the number of a space

YAW = Dimension("yaw", "rad", DimensionKind.ANGLE)
DIFFERENT = (
    plain_space(("x", "y"), "m"),
    plain_space(("y", "x"), "m"),
    plain_space(("xy",), "m"),
    plain_space(("x", "ym")),
    plain_space(("x", "y"), "px"),
    plain_space(("x", "y")),
    Space((YAW,)),
    Space((YAW,), angles_in_joint=True),
    Space((Dimension("yaw", "rad"),)),
    Space((Dimension("yaw", "rad", DimensionKind.ANGLE_MODULO_PI),)),
    Space(()),
)


def test_spaces_that_differ_have_different_numbers_of_64_bits():
    numbers = {space.number for space in DIFFERENT}
    assert len(numbers) == len(DIFFERENT)
    assert all(0 <= number < 2**64 for number in numbers)


def test_equal_spaces_have_one_number():
    assert plain_space(("x", "y"), "m").number == DIFFERENT[0].number


def test_the_number_of_a_space_is_the_same_in_every_process():
    told = (
        "from monitor.frames.space import plain_space;"
        "space = plain_space(('x', 'y'), 'm');"
        "print(space.number, hash(space))"
    )
    answers = []
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", told],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        answers.append(done.stdout.split())
    (one, its_hash), (two, other_hash) = answers
    assert one == two == str(DIFFERENT[0].number)
    # What it is in place of would not have been.
    assert its_hash != other_hash
