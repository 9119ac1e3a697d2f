"""What of a frame is tracked, what it is called, and what is said where it was not tracked."""

from dataclasses import replace

import numpy as np
import pytest

from monitor.frames.counters import Counters
from monitor.frames.detections import Estimates, Limits, Reason, examine
from monitor.frames.frame import (
    EgoMotion,
    Header,
    Pose,
    ReceivedFrame,
    ReportedTracks,
    TrackStatus,
    Twist,
)
from monitor.frames.space import plain_space
from monitor.pipeline import stream_tracker as stream_tracker_module
from monitor.pipeline.stream_tracker import StreamTracker, Tracked, tracker_of
from monitor.tracking.kalman import Association, TrackerSettings
from monitor.tracking.rewind import Order
from tests import laws
from tests.received import Sent, frame

XY = plain_space(("x", "y"), "m")
HEADER = Header("lidar", XY, ("car", "truck"), return_tracks=True)
SETTINGS = TrackerSettings(velocity_dimensions=("x", "y"))
TENTH = 10**8  # ns
VARIANCES = (0.04, 0.09)
AHEAD = EgoMotion(Pose(np.zeros(3), np.array([1.0, 0.0, 0.0, 0.0])), None)


def tracking(**changes) -> StreamTracker:
    made = tracker_of(HEADER, replace(SETTINGS, **changes), Counters())
    assert made is not None
    return made


def at(id, x, y=0.0, covariance=VARIANCES, **changes) -> Sent:
    """A detection of a car; cars of these tests are 10 m apart."""
    return Sent(id, (x, y), covariance, **changes)


def told(tracker: StreamTracker, sent: ReceivedFrame, factor=1.0) -> Tracked:
    """What the tracker says to a frame whose covariances go out with this factor."""
    examined = examine(sent.detections, XY, len(HEADER.classes), Limits())
    batch = examined.batch
    made = Estimates(batch.mean, factor * batch.covariance, batch.diagonal)
    return tracker.track(sent, examined, made)


def tracks_of(tracker: StreamTracker, rows, number=0, **changes) -> ReportedTracks:
    tracks, notices = told(tracker, replace(frame(rows, number, number * TENTH), **changes))
    assert tracks is not None
    assert notices == ()
    return tracks


def row_of(tracks: ReportedTracks) -> dict[int, int]:
    """The id of the track of each row that has one."""
    updated = tracks.updated
    rows, ids = tracks.detection[updated].tolist(), tracks.id[updated].tolist()
    assert len(set(rows)) == len(rows)
    return dict(zip(rows, ids, strict=True))


# ---- what is tracked


def test_a_track_begins_where_the_detection_is_as_uncertain_as_it_went_out():
    tracks, _ = told(tracking(), frame([at(1, 3.0), at(2, 13.0)]), factor=4.0)
    assert tracks is not None
    assert tracks.state.tolist() == [[3.0, 0.0, 0.0, 0.0], [13.0, 0.0, 0.0, 0.0]]
    speed = SETTINGS.initial_speed**2
    expected = np.diag([4 * 0.04, 4 * 0.09, speed, speed])
    assert np.array_equal(tracks.covariance, [expected, expected])
    assert tracks.detection.tolist() == [0, 1]


def test_a_detection_without_covariance_is_tracked_with_the_configured_one():
    settings = {"missing_deviation": 0.5}
    bare, explicit = tracking(**settings), tracking(**settings)
    for number in range(4):
        x = 0.3 * number
        known = at(2, x + 10)
        found = tracks_of(bare, [at(1, x, covariance=()), known], number)
        # What is missing comes last in the tracker, and keeps its row in the frame.
        assert row_of(found) == {0: 1, 1: 2}
        wanted = tracks_of(explicit, [at(1, x, covariance=(0.25, 0.25)), known], number)
        order, other = np.argsort(found.id), np.argsort(wanted.id)
        assert np.array_equal(found.id[order], wanted.id[other])
        assert np.allclose(found.state[order], wanted.state[other], rtol=1e-12, atol=1e-12)
        assert np.allclose(found.covariance[order], wanted.covariance[other], rtol=1e-12)


def test_all_zero_counts_as_missing_and_a_frame_of_nothing_else_is_tracked():
    tracker = tracking(missing_deviation=0.5)
    tracks = tracks_of(tracker, [at(1, 0.0, covariance=(0.0, 0.0)), at(2, 10.0, covariance=())])
    assert sorted(row_of(tracks)) == [0, 1]
    assert np.array_equal(tracks.covariance[:, :2, :2], [0.25 * np.eye(2)] * 2)


REFUSED = [
    at(9, 40.0, covariance=(1.0, 2.0, 2.0, 1.0)),
    at(9, 40.0, covariance=(np.nan, 1.0)),
    at(9, 40.0, covariance=(1.0,)),
    at(9, 40.0, covariance=(1e12, 1.0)),
    at(9, np.nan),
    at(9, 1e12),
    at(None, 40.0),
    at(9, 40.0, class_index=2),
    at(9, 40.0, class_index=None),
    at(9, 40.0, class_index=None, covariance=()),
    at(None, 40.0, covariance=()),
    Sent(9, (40.0,), ()),
]


@pytest.mark.parametrize("refused", REFUSED, ids=str)
def test_a_refused_detection_is_never_tracked_and_its_neighbours_are(refused):
    tracker = tracking()
    for number in range(3):
        tracks = tracks_of(tracker, [at(1, 0.0), refused, at(2, 10.0)], number)
        assert sorted(row_of(tracks)) == [0, 2]
        assert tracks.id.size == 2


def test_scores_and_upstream_ids_stay_with_their_detections():
    rows = [
        at(1, 0.0, score=0.1, upstream_track=70),
        REFUSED[0],
        at(2, 10.0, score=0.9, covariance=(), upstream_track=71),
        at(3, 20.0, score=0.8, upstream_track=72),
    ]
    tracker = tracking(birth_score=0.5, association=Association.UPSTREAM)
    found = row_of(tracks_of(tracker, rows))
    assert sorted(found) == [2, 3]
    # The detector's own tracker swaps two of them, and is believed.
    swapped = [
        rows[0], rows[1],
        replace(rows[2], upstream_track=72), replace(rows[3], upstream_track=71),
    ]  # fmt: skip
    assert row_of(tracks_of(tracker, swapped, 1)) == {2: found[3], 3: found[2]}


@pytest.mark.parametrize(
    "rows", [[], [Sent(9, (), ())], [Sent(9, (40.0,), ())] * 2, REFUSED], ids=len
)
def test_a_frame_with_nothing_to_track_lets_tracks_coast(rows):
    tracker = tracking()
    for number in range(3):
        tracks_of(tracker, [at(1, 0.0)], number)
    tracks = tracks_of(tracker, rows, 3)
    assert tracks.status.tolist() == [TrackStatus.COASTING]
    assert tracks.detection.tolist() == [-1]
    assert np.isnan(tracks.nis).all()


# ---- names


def test_no_two_tracks_ever_have_the_same_number():
    tracker = tracking()
    seen: set[int] = set()
    for number in range(6):
        # Each frame elsewhere: all of its tracks are new, and one is refused.
        rows = [at(1, 100.0 * number), REFUSED[0], at(2, 100.0 * number + 10)]
        ids = set(row_of(tracks_of(tracker, rows, number)).values())
        assert len(ids) == 2
        assert not ids & seen
        seen |= ids
        if number == 3:
            tracker.reset()
    assert 0 not in seen


def test_a_tracker_that_begins_anew_has_forgotten_all_but_the_numbers_and_the_counts():
    tracker = tracking()
    for number in range(4):
        tracks_of(tracker, [at(1, 0.0)], number)
    tracker.reset()
    assert tracker.counts().sum() == 0
    assert tracker.innovations.updates.sum() == 0
    assert tracker.orders[Order.IN_ORDER] == 4
    # An earlier stamp is no reason to refuse the frame: nothing came before it.
    tracks = tracks_of(tracker, [at(1, 0.0)], 1)
    assert tracks.id.tolist() == [5]
    assert tracks.detections.tolist() == [1]


# ---- frames that are not tracked, or not moved


def test_a_frame_without_a_stamp_is_not_tracked_and_says_so():
    tracker = tracking()
    before = [tracks_of(tracker, [at(1, 0.1 * n)], n) for n in range(3)][-1]
    tracks, (notice,) = told(tracker, frame([at(1, 5.0)], 3, None))
    assert tracks is None
    assert (notice.reason, notice.field, notice.count) == (Reason.MISSING_STAMP, "stamp_ns", 0)
    assert "capture time" in notice.message
    assert tracker.orders == {Order.IN_ORDER: 3, Order.UNSTAMPED: 1}
    after = tracks_of(tracker, [at(1, 0.3)], 3)
    assert after.id.tolist() == before.id.tolist()
    assert after.detections.tolist() == [4]


BAD_MOTIONS = {
    "NaN": EgoMotion(None, Twist(np.array([np.nan, 0, 0]), np.zeros(3))),
    "infinite": EgoMotion(Pose(np.array([np.inf, 0, 0]), np.array([1.0, 0, 0, 0])), None),
    "short": EgoMotion(None, Twist(np.zeros(2), np.zeros(3))),
    "empty": EgoMotion(Pose(np.zeros(0), np.zeros(0)), None),
    "long": EgoMotion(Pose(np.zeros(3), np.ones(20)), None),
    "no direction": EgoMotion(Pose(np.zeros(3), np.zeros(4)), None),
    "too fast": EgoMotion(None, Twist(np.array([1e9, 0, 0]), np.zeros(3))),
    "spinning": EgoMotion(None, Twist(np.zeros(3), np.array([0, 0, 1e9]))),
    "one of two": EgoMotion(AHEAD.pose, Twist(np.full(3, np.nan), np.zeros(3))),
}


@pytest.mark.parametrize("ego", BAD_MOTIONS.values(), ids=BAD_MOTIONS)
def test_unusable_motion_is_told_by_field_and_tracks_are_not_moved_with_it(ego):
    moved, still = tracking(), tracking()
    for number in range(3):
        sent = frame([at(1, 0.2 * number)], number, number * TENTH)
        found, (notice,) = told(moved, replace(sent, ego=ego))
        wanted, _ = told(still, sent)
        assert found is not None
        assert wanted is not None
        laws.assert_same(found, wanted)
        assert (notice.reason, notice.count) == (Reason.EGO_MOTION_INVALID, 0)
        assert notice.field.startswith(("ego_pose.", "ego_twist."))
        assert ":" not in notice.field
        assert "send" in notice.message


def test_tracks_are_moved_with_the_sensor():
    tracker = tracking()
    for number in range(5):
        # 20 m/s ahead, past a thing that stands.
        pose = Pose(np.array([2.0 * number, 0.0, 0.0]), np.array([2.0, 0.0, 0.0, 0.0]))
        tracks = tracks_of(tracker, [at(1, 30 - 2.0 * number)], number, ego=EgoMotion(pose, None))
    assert tracks.detections.tolist() == [5]
    assert np.allclose(tracks.state, [[22.0, 0.0, 0.0, 0.0]], atol=1e-9)


# ---- the order of frames


def test_frames_are_counted_by_how_they_came():
    tracker = tracking()
    for number in (10, 11, 13, 12, 13, *range(14, 30), 2):
        told(tracker, frame([at(1, 0.0)], number, number * TENTH))
    for number in range(7):
        told(tracker, frame([at(1, 0.0)], number, number * TENTH))
    assert tracker.orders == {
        Order.IN_ORDER: 3 + 16,
        Order.REWOUND: 1,
        Order.REPEATED: 1,
        Order.TOO_LATE: 7,
        Order.RESTARTED: 1,
    }


def test_the_latest_frame_sent_again_gets_the_same_tracks_again():
    tracker = tracking()
    for number in range(4):
        rows = [at(1, 0.1 * number), at(2, 10.0, covariance=())]
        first = tracks_of(tracker, rows, number)
        laws.assert_same(tracks_of(tracker, rows, number), first)
    assert tracker.orders[Order.REPEATED] == 4


def test_a_frame_that_is_too_late_has_no_tracks():
    tracker = tracking()
    for number in range(10, 25):
        tracks_of(tracker, [at(1, 0.0)], number)
    assert told(tracker, frame([at(1, 0.0)], 1, TENTH))[0] is None


# ---- what is read


def test_tracks_are_counted_by_status_and_class():
    tracker = tracking()
    assert tracker.counts().tolist() == [[0, 0], [0, 0], [0, 0]]
    steady = [at(1, 0.0), at(2, 10.0, class_index=1), at(3, 20.0, class_index=1)]
    for number in range(3):
        tracks_of(tracker, steady, number)
    tracks_of(tracker, [*steady[:2], at(4, 30.0), at(5, 40.0)], 3)
    # Two cars appear; one truck is out of sight.
    assert tracker.counts().tolist() == [[2, 0], [1, 1], [0, 1]]


def test_the_dimensions_of_tracks_are_those_of_the_stream_then_the_velocities():
    assert [(d.name, d.unit) for d in tracking().dimensions] == [
        ("x", "m"),
        ("y", "m"),
        ("x_velocity", "m/s"),
        ("y_velocity", "m/s"),
    ]


def test_a_failure_leaves_the_tracker_as_it_was(monkeypatch):
    def fail(*_: object) -> None:
        raise RuntimeError("broken")

    tracker = tracking()
    before = tracks_of(tracker, [at(1, 0.0)])
    with monkeypatch.context() as patched:
        patched.setattr(stream_tracker_module, "follow", fail)
        with pytest.raises(RuntimeError):
            told(tracker, frame([at(1, 0.0)], 1, TENTH))
    after = tracks_of(tracker, [at(1, 0.0)], 2)
    assert after.id.tolist() == before.id.tolist()
    assert after.detections.tolist() == [2]
