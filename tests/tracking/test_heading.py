"""Headings that a detector turns round: which end is the front, and what a flip does to a track."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.frames.space import Space
from monitor.tracking.ego import flipping_dimension, fold
from tests.tracking.scenes import AXIS_FIRST, BOX, XY, XY_YAW, XYZ, YAW, model_of, run, seen

FRAMES, OBJECTS = 80, 50
# So wide that no object slips out of its track's gate.
WIDE = 1 - 1e-9
angles = st.floats(-np.pi, np.pi, exclude_max=True)


def apart(a, b):
    """Angle between two headings, 0 to π."""
    return np.abs(np.arctan2(np.sin(a - b), np.cos(a - b)))


@given(st.lists(st.tuples(angles, st.floats(0, 10)), max_size=20))
def test_an_innovation_is_folded_by_whole_half_turns_and_votes_by_them(rows):
    innovation, votes = np.array(rows).reshape(-1, 2).T
    folded, after = fold(innovation, votes)
    assert (np.abs(folded) <= np.pi / 2 + 1e-12).all()
    halves = (innovation - folded) / np.pi
    np.testing.assert_allclose(halves, halves.round(), atol=1e-9)
    # The front seen as the front counts for it, seen as the back against it.
    change = after - 0.9 * votes
    np.testing.assert_allclose(change, np.where(halves.round() == 0, 1.0, -1.0))


def test_only_the_named_angle_with_a_sign_may_flip():
    assert flipping_dimension(BOX, "yaw") == 6
    assert flipping_dimension(XY_YAW, "yaw") == 2
    assert flipping_dimension(XY_YAW, "bearing") is None
    assert flipping_dimension(AXIS_FIRST, "yaw") is None
    assert flipping_dimension(XYZ, "x") is None


def traffic(flips, seed=0, turn=0.3, frames=FRAMES):
    """Objects that drive and turn, heading measured to 0.1 rad but turned round where flips says.

    flips    (frames, n)
    returns  the frames, and the true heading, (frames, n)
    """
    random, n = np.random.default_rng(seed), flips.shape[1]
    start, heading = 100.0 * np.arange(n), random.uniform(-np.pi, np.pi, n)
    made, truth = [], []
    for number in range(frames):
        now = heading + turn * 0.1 * number
        measured = now + random.normal(0, 0.1, n) + np.pi * flips[number]
        measured = np.remainder(measured + np.pi, 2 * np.pi) - np.pi
        place = np.column_stack([start, np.zeros(n)]) + random.normal(0, 0.1, (n, 2))
        made.append(seen(number, np.column_stack([place, measured])))
        truth.append(now)
    return made, np.array(truth)


def test_flips_of_four_per_cent_of_the_headings_leave_the_tracks_right():
    flips = np.random.default_rng(1).random((FRAMES, OBJECTS)) < 0.04
    flips[0] = False
    frames, truth = traffic(flips)
    steps = run(model_of(XY_YAW, gate_level=WIDE), frames)
    assert flips.sum() > 100
    for number in range(10, FRAMES):
        tracks = steps[number].state.tracks
        assert tracks.id.tolist() == list(range(1, OBJECTS + 1))
        assert apart(tracks.state[:, 2], truth[number]).max() < 0.5


@pytest.mark.parametrize("more", [0, 1])
def test_a_track_born_with_its_back_to_the_front_turns_round(more):
    flips = np.zeros((12, OBJECTS), bool)
    flips[: 1 + more] = True
    frames, truth = traffic(flips, frames=12)
    steps = run(model_of(XY_YAW, gate_level=WIDE), frames)
    assert apart(steps[0].state.tracks.state[:, 2], truth[0]).min() > 2.5
    for number in range(4, 12):
        assert apart(steps[number].state.tracks.state[:, 2], truth[number]).max() < 0.7


def test_a_long_remembered_front_is_not_given_up_for_a_few_flips_and_is_for_many():
    flips = np.zeros((60, OBJECTS), bool)
    flips[30:33], flips[40:] = True, True
    frames, truth = traffic(flips, turn=0.0, frames=60)
    steps = run(model_of(XY_YAW, gate_level=WIDE), frames)
    gaps = [apart(steps[i].state.tracks.state[:, 2], truth[i]) for i in range(60)]
    assert max(gap.max() for gap in gaps[10:40]) < 0.5
    assert gaps[-1].min() > 2.5


def test_a_flip_moves_the_track_no_more_than_a_heading_without_one_would():
    flips = np.zeros((20, OBJECTS), bool)
    frames, _ = traffic(flips, frames=20)
    flips[19] = True
    flipped, _ = traffic(flips, frames=20)
    one, other = (
        run(model_of(XY_YAW, gate_level=WIDE), f)[-1].state.tracks for f in (frames, flipped)
    )
    np.testing.assert_allclose(one.state, other.state, atol=1e-9)
    np.testing.assert_allclose(one.covariance, other.covariance, atol=1e-12)


def test_a_direction_without_a_sign_cannot_flip():
    flips = np.random.default_rng(1).random((FRAMES, OBJECTS)) < 0.5
    made, truth = traffic(flips)
    frames = [
        seen(i, np.column_stack([(f.mean[:, 2] + np.pi / 2) % np.pi - np.pi / 2, f.mean[:, :2]]))
        for i, f in enumerate(made)
    ]
    steps = run(model_of(AXIS_FIRST, gate_level=WIDE), frames)
    for number in range(1, FRAMES):
        tracks = steps[number].state.tracks
        assert tracks.id.tolist() == list(range(1, OBJECTS + 1))
        # An angle between axes: twice it is one between headings.
        assert apart(2 * tracks.state[:, 0], 2 * truth[number]).max() < 1.0
        assert (tracks.heading_votes == 1).all()


def test_a_flip_leaves_the_track_its_detection_even_where_angles_decide_the_gate():
    space = Space((*XY.dimensions, YAW), angles_in_joint=True)
    flips = np.zeros((20, 4), bool)
    flips[10] = True
    frames, _ = traffic(flips, frames=20)
    steps = run(model_of(space, gate_level=WIDE), frames)
    assert steps[10].state.tracks.id.tolist() == [1, 2, 3, 4]
    assert steps[10].row.tolist() == [0, 1, 2, 3]
