"""The motion model, against filterpy's own matrices at any time step, and its laws."""

import numpy as np
import pytest
from filterpy.common import Q_continuous_white_noise, kinematic_state_transition
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.frames.space import Dimension, DimensionKind, Space, plain_space
from monitor.tracking.kalman import UPRIGHT, DimensionNoise, TrackerSettings, motion_model
from tests.tracking.scenes import ANGLES, AXIS, BOX, IMAGE, SPACES, XYZ, YAW, named

STEPS = [0.0, 1e-6, 0.004, 0.1, 1.0, 2.5, 60.0, 1e4]
quick = settings(max_examples=50)
seconds = st.floats(0, 100, allow_subnormal=False)


def block(matrix, *places):
    return matrix[np.ix_(places, places)]


def all_but(matrix, *blocks):
    """The matrix without these blocks: what must be zero."""
    rest = matrix.copy()
    for places in blocks:
        rest[np.ix_(places, places)] = 0.0
    return rest


@pytest.mark.parametrize("dt", STEPS)
def test_a_dimension_with_a_velocity_has_the_matrices_of_filterpy_at_any_step(dt):
    model = motion_model(XYZ, TrackerSettings(acceleration_density=3.0, dimensions={}))
    f, q = model.step(dt)
    assert model.size == 6 and model.moving.tolist() == [0, 1, 2]
    for i in range(3):
        np.testing.assert_allclose(block(f, i, i + 3), kinematic_state_transition(1, dt))
        expected = Q_continuous_white_noise(2, dt, 3.0)
        np.testing.assert_allclose(block(q, i, i + 3), expected, rtol=1e-12)
    pairs = [(i, i + 3) for i in range(3)]
    assert not all_but(f, *pairs).any()
    assert not all_but(q, *pairs).any()


@pytest.mark.parametrize("dt", STEPS)
def test_other_dimensions_walk(dt):
    walks = TrackerSettings(walk_density=0.02, turn_density=0.3, dimensions={})
    model = motion_model(BOX, walks)
    f, q = model.step(dt)
    assert model.size == 10
    for i in range(3, 7):
        assert f[i, i] == 1.0
        assert q[i, i] == pytest.approx(dt * (0.3 if BOX.names[i] == "yaw" else 0.02))
    assert not all_but(f, *[(i, i + 7) for i in range(3)], *[(i,) for i in range(3, 7)]).any()
    assert not all_but(q, *[(i, i + 7) for i in range(3)], *[(i,) for i in range(3, 7)]).any()


@quick
@given(seconds, seconds, st.sampled_from(SPACES))
def test_a_step_and_another_are_one_step_of_both_together(a, b, space):
    model = motion_model(space, TrackerSettings())
    (f_a, q_a), (f_b, q_b), (f, q) = model.step(a), model.step(b), model.step(a + b)
    np.testing.assert_allclose(f_b @ f_a, f, rtol=1e-12, atol=1e-300)
    np.testing.assert_allclose(f_b @ q_a @ f_b.T + q_b, q, rtol=1e-12, atol=1e-300)


def test_no_time_changes_nothing():
    model = motion_model(BOX, TrackerSettings())
    f, q = model.step(0.0)
    assert np.array_equal(f, np.eye(model.size))
    assert not q.any()


def test_the_velocities_follow_in_the_order_of_the_space_whatever_the_settings_say():
    space = Space((YAW, *plain_space(("z", "l", "x"), "m").dimensions))
    model = motion_model(space, TrackerSettings(velocity_dimensions=("x", "y", "z")))
    assert model.moving.tolist() == [1, 3]
    assert [d.name for d in model.dimensions] == ["yaw", "z", "l", "x", "z_velocity", "x_velocity"]
    assert [d.unit for d in model.dimensions] == ["rad", "m", "m", "m", "m/s", "m/s"]
    assert {d.kind for d in model.dimensions[1:]} == {DimensionKind.LENGTH}
    f, _ = model.step(0.5)
    state = np.array([0.1, 1.0, 2.0, 3.0, 10.0, 20.0])
    assert f @ state == pytest.approx(np.array([0.1, 6.0, 2.0, 13.0, 10.0, 20.0]))


def test_where_no_named_dimension_is_there_all_lengths_move():
    assert motion_model(IMAGE, TrackerSettings()).moving.tolist() == [0, 1, 2, 3]
    tilted = Space((AXIS, *IMAGE.dimensions))
    assert motion_model(tilted, TrackerSettings()).moving.tolist() == [1, 2, 3, 4]


def test_an_angle_walks_even_where_it_is_named():
    model = motion_model(BOX, TrackerSettings(velocity_dimensions=("x", "yaw")))
    assert model.moving.tolist() == [0]
    model = motion_model(ANGLES, TrackerSettings(velocity_dimensions=("yaw", "tilt")))
    assert model.size == model.k == 2
    f, q = model.step(2.0)
    assert np.array_equal(f, np.eye(2))
    np.testing.assert_allclose(q, 2.0 * 0.1 * np.eye(2))


def test_single_dimensions_may_differ():
    own = {
        "y": DimensionNoise(density=7.0, initial_speed=2.0),
        "l": DimensionNoise(density=0.5, initial_speed=99.0),
        "yaw": DimensionNoise(density=0.25, missing_deviation=0.5),
        "nowhere": DimensionNoise(density=1.0),
    }
    general = TrackerSettings(
        acceleration_density=3.0,
        walk_density=0.02,
        turn_density=0.3,
        initial_speed=5.0,
        missing_deviation=2.0,
        dimensions=own,
    )
    model = motion_model(BOX, general)
    _, q = model.step(0.1)
    for i, density in enumerate((3.0, 7.0, 3.0)):
        np.testing.assert_allclose(
            block(q, i, i + 7), Q_continuous_white_noise(2, 0.1, density), rtol=1e-12
        )
    assert np.diagonal(q)[3:7] == pytest.approx([0.05, 0.002, 0.002, 0.025])
    assert model.initial_speed.tolist() == [5.0, 2.0, 5.0]
    assert model.missing.tolist() == [4.0] * 6 + [0.25]


def test_by_default_what_stands_on_the_ground_hardly_moves_up_or_down():
    model = motion_model(XYZ, TrackerSettings())
    _, q = model.step(1.0)
    assert q[5, 5] == UPRIGHT["z"].density
    assert model.initial_speed[2] == UPRIGHT["z"].initial_speed
    assert q[5, 5] < q[4, 4] == q[3, 3]


@quick
@given(st.lists(st.floats(-1e6, 1e6), min_size=6, max_size=6))
def test_wrapping_brings_angles_into_their_period_and_leaves_the_rest(values):
    space = Space((YAW, Dimension("x", "m"), AXIS))
    model = motion_model(space, TrackerSettings())
    state = np.array([values[:4]])
    before = state.copy()
    model.space.wrap(state)
    assert state[0, [1, 3]].tolist() == before[0, [1, 3]].tolist()
    for i, period in ((0, 2 * np.pi), (2, np.pi)):
        assert abs(state[0, i]) <= period / 2
        turns = (state[0, i] - before[0, i]) / period
        assert turns == pytest.approx(round(turns), abs=1e-9)


@pytest.mark.parametrize("space", SPACES, ids=named)
def test_every_process_noise_is_symmetric_and_nowhere_negative(space):
    _, q = motion_model(space, TrackerSettings()).step(0.1)
    assert np.array_equal(q, q.T)
    assert (np.linalg.eigvalsh(q) > 0).all()
