"""The axes of tracks: motion of the sensor, against homogeneous matrices, and headings that a
detector turns round."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from monitor.frames.frame import EgoMotion, Pose, Twist
from monitor.tracking.motion import (
    InvalidEgoMotion,
    TrackerSettings,
    checked_motion,
    fold,
    motion_model,
    move,
    relative_motion,
)
from tests.laws import assert_same
from tests.tracking.scenes import BOX, XY_YAW, covariances, model_of, run, seen

seeds = st.integers(0, 2**32 - 1)


# ---- motion between two frames


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
    assert motion is not None
    made = np.eye(4)
    made[:3, :3], made[:3, 3] = motion
    return made


def facing(x, y, yaw, z=0.0):
    return Pose(np.array([x, y, z]), np.array([np.cos(yaw / 2), 0.0, 0.0, np.sin(yaw / 2)]))


@given(seeds)
def test_relative_motion_of_two_poses_is_that_of_their_matrices(seed):
    random = np.random.default_rng(seed)
    before, now = random_pose(random), random_pose(random)
    motion = relative_motion(before, EgoMotion(now, Twist(np.ones(3), np.ones(3))), 0.1)
    np.testing.assert_allclose(
        as_matrix(motion), np.linalg.inv(matrix(before)) @ matrix(now), atol=1e-10
    )


@given(seeds, st.floats(-9, 2), st.sampled_from([0.0, 1e-3, 0.1, -0.1, 2.0]))
@example(1, -9.0, 0.1)
@example(1, 1.0, 0.1)
def test_a_twist_is_the_limit_of_many_small_motions(seed, quickness, seconds):
    random = np.random.default_rng(seed)
    linear, angular = random.normal(0, 10, 3), random.normal(size=3)
    angular *= 10**quickness / np.linalg.norm(angular)
    motion = relative_motion(None, EgoMotion(None, Twist(linear, angular)), seconds)
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


# ---- tracks are moved


def tracks_of(seed, space, n=5, **choices):
    random = np.random.default_rng(seed)
    model = motion_model(space, TrackerSettings(**choices))
    state = random.normal(0, 10, (n, model.size))
    model.space.wrap(state)
    return random, model, state, covariances(random, n, model.size)


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
    np.testing.assert_allclose(np.cos(moved[:, 6] - state[:, 6] + yaw), 1.0, atol=1e-9)
    # The covariance is that of moved samples, which differ from their mean by J δ.
    jacobian = np.eye(10)
    jacobian[:3, :3] = jacobian[7:, 7:] = back[:3, :3]
    expected = np.einsum("ij,njk,lk->nil", jacobian, covariance, jacobian)
    np.testing.assert_allclose(spread, expected, rtol=1e-9, atol=1e-9)


# ---- motion that cannot be used


def test_a_checked_motion_has_a_unit_quaternion_and_is_otherwise_the_same():
    # The farthest and fastest that may be.
    twist = Twist(np.array([1e3, 0, 0]), np.array([0, 0, -1e2]))
    told = EgoMotion(Pose(np.array([1e9, -1e9, 0.0]), np.array([0.0, 0, 0, -5])), twist)
    unit = EgoMotion(Pose(np.array([1e9, -1e9, 0.0]), np.array([0.0, 0, 0, -1])), twist)
    assert_same(checked_motion(told), unit)
    assert checked_motion(EgoMotion()) == EgoMotion()


@pytest.mark.parametrize(
    ("field", "values", "shown"),
    [
        ("ego_pose.position", [1.0, float("nan"), 3.0], "[1, nan, 3]"),
        ("ego_pose.position", [0.0, 2e9, 0.0], "2e+09"),
        ("ego_pose.orientation", [1.0, 0.0, 0.0], "[1, 0, 0] (3 values)"),
        ("ego_pose.orientation", [0.0, 0.0, 0.0, 0.0], "all zero"),
        ("ego_twist.linear", [-1001.0, 0.0, 0.0], "-1001"),
        ("ego_twist.angular", [0.0, 101.0, 0.0], "101"),
    ],
)
def test_a_motion_that_cannot_be_used_is_refused_with_field_value_and_remedy(field, values, shown):
    none, orientation = [0.0] * 3, [1.0, 0.0, 0.0, 0.0]
    parts = {"ego_pose.position": none, "ego_pose.orientation": orientation}
    parts |= {"ego_twist.linear": none, "ego_twist.angular": none, field: values}
    told = [np.array(part) for part in parts.values()]
    with pytest.raises(InvalidEgoMotion, match=f"^{field}: .*send") as caught:
        checked_motion(EgoMotion(Pose(*told[:2]), Twist(*told[2:])))
    assert shown in str(caught.value)


# ---- a sensor on a roundabout: 10 m/s, a turn in 12 s, past four objects that stand

SPEED, TURN, DT = 10.0, 0.5, 0.1
STANDING = np.array([[10.0, 45.0], [30.0, 30.0], [-25.0, 10.0], [5.0, -20.0]])


def round_trip(ego):
    """Sixty frames with headings, and the motion of the sensor told in one of these ways."""
    random, frames, radius = np.random.default_rng(0), [], SPEED / TURN
    for number in range(60):
        yaw = TURN * DT * number
        pose = facing(radius * np.sin(yaw), radius * (1 - np.cos(yaw)), yaw)
        twist = Twist(np.array([SPEED, 0.0, 0.0]), np.array([0.0, 0.0, TURN]))
        there = np.hstack([STANDING, np.zeros((4, 1)), np.ones((4, 1))])
        place = (there @ np.linalg.inv(matrix(pose)).T)[:, :2] + random.normal(0, 0.05, (4, 2))
        heading = np.remainder(0.3 - yaw + np.pi, 2 * np.pi) - np.pi
        motion = {
            "pose": EgoMotion(pose),
            "twist": EgoMotion(None, twist),
            "both": EgoMotion(pose, twist),
            # Two frames in three have a pose, but for the first of them the one before had none.
            "pose now and then": EgoMotion(pose if number % 3 else None, twist),
        }[ego]
        mean = np.column_stack([place, np.full(4, heading)])
        frames.append(seen(number, mean, covariance=0.05**2, ego=motion))
    return frames


@pytest.mark.parametrize("ego", ["pose", "twist", "both", "pose now and then"])
def test_objects_that_stand_keep_id_and_place_though_the_sensor_turns_and_drives(ego):
    steps = run(model_of(XY_YAW), round_trip(ego))
    for number, step in enumerate(steps):
        assert step.state.tracks.id.tolist() == [1, 2, 3, 4]
        heading = step.state.tracks.state[:, 2]
        np.testing.assert_allclose(np.cos(heading - 0.3 + TURN * DT * number), 1.0, atol=1e-3)
        assert (np.abs(heading) <= np.pi).all()
    velocity = np.array([step.state.tracks.state[:, 3:] for step in steps[20:]])
    # White noise of the positions lets a speed of 0.3 m/s be seen where there is none.
    assert np.sqrt((velocity**2).sum(axis=-1).mean(axis=0)).max() < 0.5
    assert np.abs(velocity.mean(axis=0)).max() < 0.1


# ---- headings that flip

angles = st.floats(-np.pi, np.pi, exclude_max=True)


@given(st.lists(st.tuples(angles, st.floats(0, 10)), max_size=20))
@example([(np.pi / 2, 1.0), (-np.pi / 2, 1.0), (1.6, 2.0), (-1.6, 3.0), (0.1, 4.0)])
def test_an_innovation_is_folded_by_whole_half_turns_and_votes_by_them(rows):
    innovation, votes = np.array(rows).reshape(-1, 2).T
    folded, after = fold(innovation, votes)
    assert (np.abs(folded) <= np.pi / 2 + 1e-12).all()
    halves = (innovation - folded) / np.pi
    np.testing.assert_allclose(halves, halves.round(), atol=1e-9)
    # The front seen as the front counts for it, seen as the back against it.
    change = after - 0.9 * votes
    np.testing.assert_allclose(change, np.where(halves.round() == 0, 1.0, -1.0))


def gaps_of(flips, turn=0.3):
    """How far off each heading is where the flips, (frames, n), turn measured ones round.

    Objects turn at this rate; every track keeps its id and detection.
    """
    random, (frames, n) = np.random.default_rng(0), flips.shape
    now, made, truth = random.uniform(-np.pi, np.pi, n), [], []
    for number in range(frames):
        measured = now + random.normal(0, 0.1, n) + np.pi * flips[number]
        place = np.column_stack([100.0 * np.arange(n), np.zeros(n)]) + random.normal(0, 0.1, (n, 2))
        measured = np.remainder(measured + np.pi, 2 * np.pi) - np.pi
        made.append(seen(number, np.column_stack([place, measured])))
        truth.append(now)
        now = now + turn * 0.1
    # The gate is so wide that no object slips out of its track's.
    steps = run(model_of(XY_YAW, gate_level=1 - 1e-9), made)
    for step in steps:
        assert step.state.tracks.id.tolist() == list(range(1, n + 1))
        assert step.row.tolist() == list(range(n))
    away = np.array([step.state.tracks.state[:, 2] for step in steps]) - np.array(truth)
    return np.abs(np.arctan2(np.sin(away), np.cos(away)))


def test_a_front_is_given_up_for_many_flips_and_not_for_a_few():
    flips = np.zeros((60, 50), bool)
    flips[30:33], flips[40:] = True, True
    gaps = gaps_of(flips, turn=0.0)
    assert gaps[10:40].max() < 0.5
    assert gaps[-1].min() > 2.5
