"""Late frames: the tracks are those of frames in order, and a clock that goes wrong is survived."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monitor.frames.frame import EgoMotion, Pose, Twist
from monitor.tracking.motion import Association
from monitor.tracking.tracker import MOST_FRAMES, Order, Tracker, follow
from tests.laws import assert_same
from tests.tracking.scenes import BOX, XY, XY_YAW, model_of, named, run, seen

IN_ORDER, REWOUND = Order.IN_ORDER, Order.REWOUND
TOO_LATE, REPEATED, RESTARTED = Order.TOO_LATE, Order.REPEATED, Order.RESTARTED
seeds = st.integers(0, 2**32 - 1)
HERE = [[0.0, 0.0], [50.0, 0.0]]


def drive(seed, space=XY_YAW, frames=30):
    """Objects that come and go, seen from a sensor that moves; some frames are empty."""
    random, k = np.random.default_rng(seed), space.k
    spots, speed = random.uniform(-40, 40, (12, k)), np.zeros((12, k))
    speed[:, :2] = random.normal(0, 5, (12, 2))
    made, turn = [], np.array([1.0, 0.0, 0.0, 0.0])
    for number in range(frames):
        spots = spots + 0.1 * speed
        here = np.flatnonzero(random.random(12) < (0.0 if number % 11 == 5 else 0.85))
        pose = Pose(np.array([0.1 * number, 0.0, 0.0]), turn)
        twist = Twist(np.array([1.0, 0.0, 0.0]), np.zeros(3))
        made.append(
            seen(
                number,
                spots[here] + random.normal(0, 0.1, (here.size, k)),
                covariance=0.01,
                k=k,
                kind=here % 2,
                upstream=[int(i) if i % 3 else None for i in here],
                ego=(EgoMotion(pose), EgoMotion(pose, twist), EgoMotion(None, twist))[number % 3],
            )
        )
    return made


def followed(model, frames, tracker=None):
    """The tracker after these frames, and the step and order of each."""
    now, steps, orders = tracker or Tracker(model), [], []
    for frame in frames:
        now, step, order = follow(now, frame)
        steps.append(step)
        orders.append(order)
    return now, steps, orders


def nameless(state):
    """A tracker's state but for what its tracks are called."""
    return replace(state, tracks=replace(state.tracks, id=np.zeros_like(state.tracks.id)))


def lateness(order):
    """How many frames that belong after it came before it, the most of all."""
    return max(sum(other > one for other in order[:i]) for i, one in enumerate(order))


@st.composite
def late_orders(draw, n=30):
    """Any order in which no frame comes more than MOST_FRAMES frames too late."""
    delays = draw(st.lists(st.floats(0, MOST_FRAMES + 0.99), min_size=n, max_size=n))
    order = sorted(range(n), key=lambda i: i + delays[i])
    assert lateness(order) <= MOST_FRAMES
    return order


@pytest.mark.parametrize("association", Association)
@pytest.mark.parametrize("space", [XY_YAW, BOX], ids=named)
@given(seed=seeds, order=late_orders())
@example(seed=15326296, order=[*range(7), 11, *range(7, 11), *range(12, 30)])
def test_frames_in_any_order_give_the_tracks_of_frames_in_order(space, association, seed, order):
    made = drive(seed, space)
    model = model_of(space, association=association, coast_seconds=10.0, coast_frames=20)
    tidy, steps, orders = followed(model, made)
    assert set(orders) == {IN_ORDER}
    mixed, late_steps, orders = followed(model, [made[i] for i in order])
    assert set(orders) <= {IN_ORDER, REWOUND}
    assert_same(nameless(mixed.last.state), nameless(tidy.last.state))
    assert_same(mixed.last.row, tidy.last.row)
    assert_same(mixed.last.nis, tidy.last.nis)
    for kept, expected in zip(mixed.past, tidy.past, strict=True):
        assert_same(kept.seen, expected.seen)
        assert_same(nameless(kept.before), nameless(expected.before))
    # A late frame's own answer knows of all frames before it that have come.
    for place, (one, step) in enumerate(zip(order, late_steps, strict=True)):
        if set(order[: place + 1]) >= set(range(one + 1)):
            assert_same(nameless(step.state), nameless(steps[one].state))
        ids = step.state.tracks.id.tolist()
        assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("late", [1, MOST_FRAMES, MOST_FRAMES + 1])
def test_a_frame_is_worked_in_up_to_the_most_frames_late(late):
    made = drive(1)
    order = [i for i in range(30) if i != 15]
    order.insert(15 + late, 15)
    _, _, orders = followed(model_of(XY_YAW), [made[i] for i in order])
    assert orders[15 + late] == (REWOUND if late <= MOST_FRAMES else TOO_LATE)
    assert orders.count(IN_ORDER) == 29


# Frames that come twice


def test_a_frame_that_comes_again_is_not_tracked_and_only_the_latest_has_its_answer():
    made = drive(0)
    before, steps, _ = followed(model_of(XY_YAW), made)
    other = replace(seen(0, [[1.0, 2.0, 0.0]]), stamp_ns=made[-1].stamp_ns)
    for frame, answer in ((made[-1], steps[-1]), (other, None), (made[-2], None), (made[-5], None)):
        after, step, order = follow(before, frame)
        assert (order, step is answer, after is before) == (REPEATED, True, True)


# Clocks that go wrong


def test_after_a_clock_went_back_for_good_tracking_begins_anew():
    before = [seen(i, HERE, stamp_ns=10**12 + i * 10**8) for i in range(20)]
    after = [seen(100 + i, HERE) for i in range(20)]
    tracker, steps, orders = followed(model_of(XY), before + after)
    assert orders[:20] == [IN_ORDER] * 20
    assert orders[20:] == [TOO_LATE] * 7 + [RESTARTED] + [IN_ORDER] * 12
    assert all(step is None for step in steps[20:27])
    # Ids are new, and the answers are those of a tracker that saw only this.
    assert tracker.state.tracks.id.tolist() == [107001, 107002]
    for step, expected in zip(steps[27:], run(model_of(XY), after[7:]), strict=True):
        assert_same(step, expected)


def test_a_single_frame_far_ahead_gives_way_to_the_next_that_comes_before_it():
    made = [seen(i, HERE) for i in range(27)]
    tracker, _, orders = followed(model_of(XY), [*made[:20], seen(500, HERE), *made[20:]])
    assert orders[-7:] == [REWOUND] + [IN_ORDER] * 6
    assert_same(tracker.state, run(model_of(XY), made)[-1].state)


# Names, clocks and motion


def still(number, at=(0.0, 40.0)):
    """Two standing objects at 10 Hz."""
    return seen(number, np.array([[10.0, place] for place in at]))


def test_a_frame_from_before_their_birth_does_not_rename_tracks_that_were_told():
    frames = [still(number) for number in (1, 2, 3, 4, 5, 0, 6)]
    tracker, steps, orders = followed(model_of(XY), frames)
    assert orders[5] == REWOUND
    for step in steps:
        assert step.state.tracks.id.tolist() == steps[0].state.tracks.id.tolist()
    assert tracker.state.tracks.detections.tolist() == [7, 7]


def test_a_frame_without_the_motion_that_others_tell_waits_for_the_next_that_has_it():
    """A sensor drives 15 m/s past two standing objects; one pose is missing."""
    model, frames = model_of(XY), []
    for number in range(30):
        frame = still(number)
        frame.mean[:, 0] -= 1.5 * number
        pose = Pose(np.array([1.5 * number, 0.0, 0.0]), np.array([1.0, 0.0, 0.0, 0.0]))
        frames.append(replace(frame, ego=None if number == 20 else EgoMotion(pose)))
    tracker, steps, orders = followed(model, frames)
    assert [place for place, order in enumerate(orders) if order is Order.UNMOVED] == [20]
    assert steps[20] is None
    assert tracker.state.tracks.id.tolist() == steps[0].state.tracks.id.tolist()
    assert tracker.state.tracks.detections.tolist() == [29, 29]
    assert np.abs(tracker.state.tracks.state[:, 2:]).max() < 0.1


def test_late_frames_that_would_cost_too_much_are_too_late():
    width = BOX.k
    crowd = [seen(number, np.zeros((4000, width))) for number in (1, 2, 3)]
    _, _, orders = followed(model_of(BOX), [*crowd, seen(0, np.zeros((1, width)))])
    assert orders == [IN_ORDER] * 3 + [TOO_LATE]
