"""Motion of the sensor, against homogeneous matrices; and what it does to a track."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from monitor.frames.frame import EgoMotion, Pose, Twist
from monitor.frames.space import Dimension, Space, plain_space
from monitor.tracking.ego import InvalidEgoMotion, checked_motion, move, relative_motion
from monitor.tracking.kalman import TrackerSettings, motion_model
from tests.tracking.scenes import (
    AXIS,
    BOX,
    IMAGE,
    XY,
    XYZ,
    YAW,
    covariances,
    model_of,
    named,
    run,
    seen,
)

XYZ_YAW = Space((YAW, *XYZ.dimensions))
XY_AXIS = Space((*XY.dimensions, AXIS))
quick = settings(max_examples=50)
seeds = st.integers(0, 2**32 - 1)


def random_pose(random, largest=100.0):
    turn = random.normal(size=4)
    return Pose(random.uniform(-largest, largest, 3), turn / np.linalg.norm(turn))


def matrix(pose):
    """(4, 4) from the sensor's axes into the fixed ones."""
    made = np.eye(4)
    made[:3, :3] = Rotation.from_quat(pose.orientation[[1, 2, 3, 0]]).as_matrix()
    made[:3, 3] = pose.position
    return made


def as_matrix(motion):
    made = np.eye(4)
    made[:3, :3], made[:3, 3] = motion
    return made


def facing(x, y, yaw, z=0.0):
    return Pose(np.array([x, y, z]), np.array([np.cos(yaw / 2), 0.0, 0.0, np.sin(yaw / 2)]))


@quick
@given(seeds)
def test_relative_motion_of_two_poses_is_that_of_their_matrices(seed):
    random = np.random.default_rng(seed)
    before, now = random_pose(random), random_pose(random)
    motion = relative_motion(before, EgoMotion(now, Twist(np.ones(3), np.ones(3))), 0.1)
    assert motion is not None
    expected = np.linalg.inv(matrix(before)) @ matrix(now)
    np.testing.assert_allclose(as_matrix(motion), expected, atol=1e-10)


@quick
@given(seeds, st.floats(-9, 2), st.sampled_from([0.0, 1e-3, 0.1, -0.1, 2.0]))
def test_a_twist_is_the_limit_of_many_small_motions(seed, quickness, seconds):
    random = np.random.default_rng(seed)
    linear, angular = random.normal(0, 10, 3), random.normal(size=3)
    angular *= 10**quickness / np.linalg.norm(angular)
    motion = relative_motion(None, EgoMotion(None, Twist(linear, angular)), seconds)
    assert motion is not None
    x, y, z = angular
    rate = np.zeros((4, 4))
    rate[:3, :3] = [[0, -z, y], [z, 0, -x], [-y, x, 0]]
    rate[:3, 3] = linear
    # (1 + A/n + A²/2n²)ⁿ with n = 2¹⁶, which is off by |A|³/6n².
    small = rate * seconds / 2**16
    expected = np.linalg.matrix_power(np.eye(4) + small + small @ small / 2, 2**16)
    off = (np.linalg.norm(angular) * abs(seconds)) ** 3 / 2**32
    np.testing.assert_allclose(as_matrix(motion), expected, rtol=0, atol=1e-8 + 30 * off)


def test_without_two_poses_the_twist_counts_and_without_it_nothing_is_known():
    pose, twist = facing(1, 2, 0.3), Twist(np.array([3.0, 0.0, 0.0]), np.zeros(3))
    for before, ego in ((None, EgoMotion(pose, twist)), (pose, EgoMotion(None, twist))):
        motion = relative_motion(before, ego, 0.5)
        assert motion is not None
        assert motion[0].tolist() == np.eye(3).tolist()
        assert motion[1].tolist() == [1.5, 0.0, 0.0]
    assert relative_motion(None, EgoMotion(pose, None), 0.5) is None
    assert relative_motion(pose, EgoMotion(None, None), 0.5) is None


def tracks_of(seed, space, n=5, **choices):
    random = np.random.default_rng(seed)
    model = motion_model(space, TrackerSettings(**choices))
    state = random.normal(0, 10, (n, model.size))
    model.space.wrap(state)
    return random, model, state, covariances(random, n, model.size)


def assert_close(found, expected, **tolerance):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, **{"rtol": 1e-9, "atol": 1e-9, **tolerance})


@quick
@given(seeds)
def test_tracks_move_as_points_and_arrows_under_the_inverse_matrix(seed):
    random, model, state, covariance = tracks_of(seed, BOX)
    pose = matrix(random_pose(random))
    moved, spread = move(state, covariance, model, (pose[:3, :3], pose[:3, 3]), "yaw")
    back, ones = np.linalg.inv(pose), np.ones((5, 1))
    points = np.hstack([state[:, :3], ones]) @ back.T
    np.testing.assert_allclose(moved[:, :3], points[:, :3], atol=1e-9)
    # Velocities are those over ground: they turn, but the sensor's own is not subtracted.
    np.testing.assert_allclose(moved[:, 7:], state[:, 7:] @ back[:3, :3].T, atol=1e-9)
    assert np.array_equal(moved[:, 3:6], state[:, 3:6])
    yaw = Rotation.from_matrix(pose[:3, :3]).as_euler("ZYX")[0]
    turned = moved[:, 6] - state[:, 6] + yaw
    np.testing.assert_allclose(np.cos(turned), 1.0, atol=1e-9)
    # The covariance is that of moved samples, which differ from their mean by J δ.
    jacobian = np.eye(10)
    jacobian[:3, :3] = jacobian[7:, 7:] = back[:3, :3]
    expected = np.einsum("ij,njk,lk->nil", jacobian, covariance, jacobian)
    np.testing.assert_allclose(spread, expected, rtol=1e-9, atol=1e-9)


@quick
@given(seeds, st.floats(-4, 4), st.sampled_from([XY, XY_AXIS, XYZ, XYZ_YAW, BOX]))
def test_there_and_back_is_where_it_was(seed, yaw, space):
    random, model, state, covariance = tracks_of(seed, space)
    x, y, z = random.uniform(-50, 50, 3)
    there = matrix(facing(x, y, yaw, z))
    back = np.linalg.inv(there)
    once = move(state, covariance, model, (there[:3, :3], there[:3, 3]), "yaw")
    again = move(*once, model, (back[:3, :3], back[:3, 3]), "yaw")
    assert_close(again, (state, covariance))


@quick
@given(seeds)
def test_a_plane_is_the_part_of_space_that_is_flat(seed):
    random = np.random.default_rng(seed)
    x, y, yaw = random.uniform((-50, -50, -4), (50, 50, 4))
    motion = matrix(facing(x, y, yaw))
    pair = motion[:3, :3], motion[:3, 3]
    _, solid, state, covariance = tracks_of(seed, XYZ)
    whole = move(state, covariance, solid, pair, "yaw")
    flat, rows = motion_model(XY, TrackerSettings()), [0, 1, 3, 4]
    part = move(
        state[:, rows], covariance[:, rows][..., rows], flat, pair, "yaw"
    )  # fmt: skip
    assert_close(part, (whole[0][:, rows], whole[1][:, rows][..., rows]))


@quick
@given(seeds)
def test_in_a_plane_the_roll_and_pitch_of_the_sensor_turn_nothing(seed):
    random, model, state, covariance = tracks_of(seed, XY)
    yaw, *tilt = random.uniform(-0.3, 0.3, 3)
    level = Rotation.from_euler("Z", yaw).as_matrix()
    tilted = Rotation.from_euler("ZYX", [yaw, *tilt]).as_matrix()
    shift = random.normal(size=3)
    assert_close(
        move(state, covariance, model, (tilted, shift), "yaw"),
        move(state, covariance, model, (level, shift), "yaw"),
    )


def test_velocities_turn_in_the_plane_where_only_x_and_y_have_one():
    _, model, state, covariance = tracks_of(0, XYZ, velocity_dimensions=("x", "y"))
    motion = Rotation.from_euler("Z", np.pi / 2).as_matrix(), np.zeros(3)
    moved, _ = move(state, covariance, model, motion, "yaw")
    np.testing.assert_allclose(moved[:, 3], state[:, 4])
    np.testing.assert_allclose(moved[:, 4], -state[:, 3])


def test_a_velocity_in_one_direction_alone_stays_as_it_is():
    _, model, state, covariance = tracks_of(0, XYZ, velocity_dimensions=("y", "z"))
    motion = Rotation.from_euler("Z", np.pi / 2).as_matrix(), np.zeros(3)
    moved, spread = move(state, covariance, model, motion, "yaw")
    assert np.array_equal(moved[:, 3:], state[:, 3:])
    np.linalg.cholesky(spread)


@pytest.mark.parametrize("space", [IMAGE, plain_space(("x", "z")), Space((Dimension("x"), YAW))])
def test_a_space_without_x_and_y_stays_as_it_is(space):
    random, model, state, covariance = tracks_of(0, space)
    pose = matrix(random_pose(random))
    moved = move(state, covariance, model, (pose[:3, :3], pose[:3, 3]), "yaw")
    assert np.array_equal(moved[0], state)
    assert np.array_equal(moved[1], covariance)


def test_an_angle_that_is_not_the_heading_does_not_turn():
    _, model, state, covariance = tracks_of(0, XYZ_YAW)
    motion = Rotation.from_euler("Z", 1.0).as_matrix(), np.zeros(3)
    moved, _ = move(state, covariance, model, motion, "bearing")
    assert np.array_equal(moved[:, 0], state[:, 0])


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("space", [XY, XY_AXIS, XYZ, BOX], ids=named)
def test_a_thousand_motions_leave_covariances_positive_definite(space, seed):
    random, model, state, covariance = tracks_of(seed, space)
    for _ in range(1000):
        turn, shift = np.linalg.qr(random.normal(size=(3, 3)))[0], random.normal(size=3)
        motion = turn * np.linalg.det(turn), shift
        state, covariance = move(state, covariance, model, motion, "yaw")
    size = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
    np.linalg.cholesky(covariance / (size[:, :, None] * size[:, None, :]))
    assert np.isfinite(state).all()


@pytest.mark.parametrize("space", [XY, XYZ, BOX], ids=named)
def test_what_is_known_to_a_micrometre_one_way_and_not_at_all_the_other_may_be_turned(space):
    _, model, state, covariance = tracks_of(0, space)
    covariance = np.tile(np.diag(10.0 ** np.resize([-12, 10], model.size)), (5, 1, 1))
    for degrees in (1e-6, 1.0, 45.0, 89.0, 45.0, 60.0):
        motion = Rotation.from_euler("Z", degrees, degrees=True).as_matrix(), np.zeros(3)
        state, covariance = move(state, covariance, model, motion, "yaw")
        size = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
        np.linalg.cholesky(covariance / (size[:, :, None] * size[:, None, :]))


def test_checked_brings_the_quaternion_to_unit_length_and_changes_nothing_else():
    pose, twist = Pose(np.array([1.0, 2, 3]), np.array([0.0, 0, 0, -5])), Twist(*np.ones((2, 3)))
    good = checked_motion(EgoMotion(pose, twist))
    assert good.pose is not None and good.twist is not None
    assert good.pose.position.tolist() == [1.0, 2.0, 3.0]
    assert good.pose.orientation.tolist() == [0.0, 0.0, 0.0, -1.0]
    assert good.twist.linear.tolist() == good.twist.angular.tolist() == [1.0, 1.0, 1.0]
    assert checked_motion(EgoMotion()) == EgoMotion()


STRAIGHT, HERE = [1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0]
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("field", "values", "shown"),
    [
        ("ego_pose.position", [1.0, NAN, 3.0], "[1, nan, 3]"),
        ("ego_pose.position", [1.0, 2.0], "[1, 2] (2 values)"),
        ("ego_pose.position", [], "[] (0 values)"),
        ("ego_pose.position", [0.0, 2e9, 0.0], "2e+09"),
        ("ego_pose.orientation", [1.0, 0.0, 0.0], "[1, 0, 0] (3 values)"),
        ("ego_pose.orientation", [0.0, 0.0, 0.0, 0.0], "all zero"),
        ("ego_pose.orientation", [1.0, 0.0, 0.0, INF], "inf"),
        ("ego_twist.linear", [1.0, 2.0, 3.0, 4.0], "[1, 2, 3, 4] (4 values)"),
        ("ego_twist.linear", [-2000.0, 0.0, 0.0], "-2000"),
        ("ego_twist.angular", [0.0, 0.0, -INF], "-inf"),
        ("ego_twist.angular", [0.0, 500.0, 0.0], "500"),
    ],
)
def test_a_motion_that_cannot_be_used_is_refused_with_field_value_and_remedy(field, values, shown):
    parts = {
        "ego_pose.position": HERE,
        "ego_pose.orientation": STRAIGHT,
        "ego_twist.linear": HERE,
        "ego_twist.angular": HERE,
    }
    position, orientation, linear, angular = (
        np.array(part) for part in (parts | {field: values}).values()
    )
    with pytest.raises(InvalidEgoMotion) as caught:
        checked_motion(EgoMotion(Pose(position, orientation), Twist(linear, angular)))
    message = str(caught.value)
    assert message.startswith(f"{field}: ")
    assert shown in message
    assert "send" in message


# A sensor on a roundabout: 10 m/s, a turn in 12 s, past things that stand.
SPEED, TURN, DT, FRAMES = 10.0, 0.5, 0.1, 60
RADIUS = SPEED / TURN
STANDING = np.array([[10.0, 45.0], [30.0, 30.0], [-25.0, 10.0], [5.0, -20.0]])


def round_trip(ego, space=XY, seed=0):
    """Frames of four things that stand, with the motion of the sensor told in one of these ways."""
    random, frames = np.random.default_rng(seed), []
    for number in range(FRAMES):
        yaw = TURN * DT * number
        pose = facing(RADIUS * np.sin(yaw), RADIUS * (1 - np.cos(yaw)), yaw)
        twist = Twist(np.array([SPEED, 0.0, 0.0]), np.array([0.0, 0.0, TURN]))
        there = np.hstack([STANDING, np.zeros((4, 1)), np.ones((4, 1))])
        place = (there @ np.linalg.inv(matrix(pose)).T)[:, :2] + random.normal(0, 0.05, (4, 2))
        if space.k == 3:
            heading = np.remainder(0.3 - yaw + np.pi, 2 * np.pi) - np.pi
            place = np.column_stack([place, np.full(4, heading)])
        motion = {
            "pose": EgoMotion(pose),
            "twist": EgoMotion(None, twist),
            "both": EgoMotion(pose, twist),
            # Two frames in three have a pose, but for the first of them the one before had none.
            "pose now and then": EgoMotion(pose if number % 3 else None, twist),
            "none": None,
        }[ego]
        frames.append(seen(number, place, covariance=0.05**2, ego=motion))
    return frames


@pytest.mark.parametrize("ego", ["pose", "twist", "both", "pose now and then"])
def test_what_stands_keeps_its_id_and_stands_though_the_sensor_turns_and_drives(ego):
    steps = run(model_of(XY), round_trip(ego))
    for step in steps:
        assert step.state.tracks.id.tolist() == [1, 2, 3, 4]
    velocity = np.array([step.state.tracks.state[:, 2:] for step in steps[20:]])
    # White noise of the positions lets a speed of 0.3 m/s be seen where there is none.
    assert np.sqrt((velocity**2).sum(axis=-1).mean(axis=0)).max() < 0.5
    assert np.abs(velocity.mean(axis=0)).max() < 0.1


def test_without_its_motion_what_stands_seems_to_fly_by():
    settings = {"gate_level": 1 - 1e-12, "tentative_misses": 3}
    steps = run(model_of(XY, **settings), round_trip("none"))
    speed = np.linalg.norm(steps[-1].state.tracks.state[:, 2:], axis=1)
    assert speed.min() > 3.0


def test_the_heading_of_what_stands_turns_with_the_sensor():
    space = Space((*XY.dimensions, YAW))
    steps = run(model_of(space), round_trip("pose", space))
    for number, step in enumerate(steps):
        assert step.state.tracks.id.tolist() == [1, 2, 3, 4]
        heading = step.state.tracks.state[:, 2]
        np.testing.assert_allclose(np.cos(heading - 0.3 + TURN * DT * number), 1.0, atol=1e-3)
        assert (np.abs(heading) <= np.pi).all()
