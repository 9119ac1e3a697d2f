"""The tracker as clients meet it: a real process, tracks at the frame they belong to.

Whatever is sent, every answer is looked at: finite states, positive definite covariances,
and detections and tracks that name each other.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from monitor.frames.frame import EgoMotion, Header, Pose, TrackStatus, Twist
from monitor.frames.space import Dimension, DimensionKind, FloatArray, Space
from monitor.v1 import frame_pb2, perception_monitor_pb2
from monitor.wire.client_messages import (
    Answered,
    AnsweredTracks,
    OutgoingFrame,
    decode_answer,
    encode_frame,
    encode_header,
)
from tests.served import PATIENCE, Conversation, Sidecar, eventually, process_bytes

CONFIG = """
[metrics]
refresh_seconds = 0.1
[statistics]
slice_by = ["stream"]
max_slices = 64
[tracker]
kind = "embedded"
"""
SPACE = Space(
    (
        *(Dimension(name, "m") for name in ("x", "y", "z", "l", "w", "h")),
        Dimension("yaw", "rad", DimensionKind.ANGLE),
    )
)
K, YAW = SPACE.k, 6
SIGMA = np.array([0.2, 0.2, 0.1, 0.1, 0.1, 0.1, 0.05])
TWENTIETH = 5 * 10**7  # ns
TENTATIVE, CONFIRMED, COASTING = TrackStatus


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory):
    """One sidecar for all tests; each uses streams of its own, and it must outlive them all."""
    sidecar = Sidecar(tmp_path_factory.mktemp("tracking"), CONFIG)
    try:
        yield sidecar
        assert exported(sidecar)["internal_errors_total", ""] == 0
        sidecar.stop()
    finally:
        sidecar.end()
    assert "Traceback" not in sidecar.log.read_text("utf-8")


def exported(sidecar: Sidecar) -> dict[tuple[str, str], float]:
    """Values by name and slice, status or order, once all frames so far are in the text."""
    frames = sidecar.calibration().counts.frames
    assert eventually(lambda: sidecar.metric("frames_total") == frames)
    return {
        (
            sample.name.removeprefix("calibration_"),
            "/".join(sample.labels[name] for name in sorted(sample.labels)),
        ): sample.value
        for family in text_string_to_metric_families(sidecar.get("/metrics"))
        for sample in family.samples
    }


# ---- a detector


@dataclass(frozen=True)
class Scene:
    """n boxes 6 m apart, all at the same velocity; noise and its covariances agree."""

    n: int
    velocity: tuple[float, float] = (5.0, -2.0)

    def truth(self, number: int) -> FloatArray:
        """(n, K) at frame `number`, at 20 Hz."""
        side = max(1, round(self.n**0.5))
        place = np.arange(self.n)
        boxes = np.zeros((self.n, K))
        boxes[:, 0] = 6.0 * (place % side - side / 2) + self.velocity[0] * number / 20
        boxes[:, 1] = 6.0 * (place // side - side / 2) + self.velocity[1] * number / 20
        boxes[:, 2:6] = (1.0, 4.5, 1.8, 1.6)
        boxes[:, YAW] = np.arctan2(self.velocity[1], self.velocity[0])
        return boxes

    def frame(self, number: int, **changes: Any) -> OutgoingFrame:
        """As it is seen."""
        noise = np.random.default_rng([self.n, number]).normal(size=(self.n, K)) * SIGMA
        return seen(number, self.truth(number) + noise, **changes)


def seen(number: int, mean: FloatArray, **changes: Any) -> OutgoingFrame:
    n = mean.shape[0]
    made = OutgoingFrame(
        frame_id=number,
        stamp_ns=number * TWENTIETH,
        id=np.arange(100, 100 + n, dtype=np.uint64),
        class_index=np.zeros(n, np.int64),
        mean=mean,
        covariance=np.broadcast_to(np.diag(SIGMA**2), (n, K, K)),
    )
    return replace(made, **changes)


def header_of(name: str, *, return_tracks=True) -> Header:
    return Header(name, SPACE, ("car", "truck"), return_tracks=return_tracks)


@dataclass
class Feed:
    """A Process stream of which every answer is looked at; the last one is kept."""

    sidecar: Sidecar
    name: str
    return_tracks: bool = True
    dimensions: list[tuple[str, str]] = field(init=False)
    result: frame_pb2.FrameResult = field(init=False)

    def __post_init__(self) -> None:
        self.conversation = Conversation(process_bytes(self.sidecar.channel))
        header = header_of(self.name, return_tracks=self.return_tracks)
        reply = self.conversation.ask(encode_header(header))
        accepted = perception_monitor_pb2.ProcessResponse.FromString(reply).header
        assert accepted.accepted
        self.dimensions = [(d.name, d.unit) for d in accepted.track_dimensions]

    def ask(self, frame: OutgoingFrame) -> Answered:
        reply = self.conversation.ask(encode_frame(frame))
        self.result = perception_monitor_pb2.ProcessResponse.FromString(reply).frame
        assert (self.result.frame_id, self.result.stamp_ns) == (frame.frame_id, frame.stamp_ns)
        answer = decode_answer(reply, K)
        assert_sound(frame, answer)
        return answer

    def tracks(self, frame: OutgoingFrame) -> AnsweredTracks:
        return self.ask(frame).tracks

    def follow(self, scene: Scene, numbers) -> AnsweredTracks:
        """As of the last of these frames."""
        for number in numbers:
            tracks = self.tracks(scene.frame(number))
        return tracks

    @property
    def findings(self) -> list[str]:
        """The reasons of the last answer's notices."""
        return [
            frame_pb2.Reason.Name(notice.reason).removeprefix("REASON_")
            for notice in self.result.notices
        ]

    def close(self) -> None:
        self.conversation.close()


def assert_sound(frame: OutgoingFrame, answer: Answered) -> None:
    tracks = answer.tracks
    assert answer.status.size == frame.id.size
    assert np.isfinite(tracks.state).all()
    if tracks.id.size:
        assert (np.abs(tracks.state[:, YAW]) <= np.pi).all()
    # With a diagonal of ones, since units differ by orders.
    deviation = np.sqrt(np.diagonal(tracks.covariance, axis1=1, axis2=2))
    np.linalg.cholesky(tracks.covariance / (deviation[:, :, None] * deviation[:, None, :]))
    assert np.unique(tracks.id).size == tracks.id.size
    assert 0 not in tracks.id
    updated = tracks.has_detection
    assert np.array_equal(updated, tracks.status != COASTING)
    assert np.array_equal(np.isfinite(tracks.nis), updated & (tracks.detections > 1))
    named = dict(zip(tracks.detection_id[updated].tolist(), tracks.id[updated], strict=True))
    told = dict(zip(frame.id.tolist(), answer.track_id, strict=True))
    assert named == {detection: track for detection, track in told.items() if track}


def by_detection(tracks: AnsweredTracks) -> FloatArray:
    """States in the order of the detections' ids."""
    assert tracks.has_detection.all()
    return tracks.state[np.argsort(tracks.detection_id)]


# ---- what a client gets


def test_the_answer_to_the_header_names_the_dimensions_of_the_tracks_to_come(sidecar):
    feed = Feed(sidecar, "dimensions")
    assert feed.dimensions == [
        *((d.name, d.unit) for d in SPACE.dimensions),
        ("x_velocity", "m/s"),
        ("y_velocity", "m/s"),
        ("z_velocity", "m/s"),
    ]
    assert feed.tracks(Scene(3).frame(0)).state.shape == (3, len(feed.dimensions))
    feed.close()


def test_who_does_not_ask_for_tracks_gets_none(sidecar):
    feed = Feed(sidecar, "silent", return_tracks=False)
    assert feed.dimensions == []
    for number in range(4):
        answer = feed.ask(Scene(3).frame(number))
        assert answer.tracks.id.size == 0
        assert not answer.track_id.any()
    feed.close()


def test_tracks_are_those_at_the_frame_they_come_with(sidecar):
    feed, scene = Feed(sidecar, "now"), Scene(9, velocity=(20.0, 0.0))
    tracks = feed.follow(scene, range(40))
    assert tracks.status.tolist() == [CONFIRMED] * 9
    assert tracks.detections.tolist() == [40] * 9
    # A frame before, everything was 1 m back.
    states = by_detection(tracks)
    assert np.abs(states[:, :K] - scene.truth(39)).max() < 0.4
    assert np.allclose(states[:, K:], (20.0, 0.0, 0.0), atol=1.5)
    feed.close()


def test_one_frame_at_a_time_gives_the_tracks_of_a_stream(sidecar):
    feed, scene = Feed(sidecar, "streamed"), Scene(5)
    header = encode_header(header_of("unary"))
    for number in range(6):
        frame = scene.frame(number)
        request = perception_monitor_pb2.ProcessFrameRequest(
            stream="unary",
            header=perception_monitor_pb2.ProcessRequest.FromString(header).header,
            frame=perception_monitor_pb2.ProcessRequest.FromString(encode_frame(frame)).frame,
        )
        reply = sidecar.monitor.ProcessFrame(request, timeout=PATIENCE)
        streamed = feed.tracks(frame)
        assert list(reply.frame.tracks) == list(feed.result.tracks)
        assert list(reply.frame.detections) == list(feed.result.detections)
        assert streamed.id.size == 5
    feed.close()


def test_tracks_outlive_the_connection(sidecar):
    scene = Scene(7)
    feed = Feed(sidecar, "again")
    before = feed.follow(scene, range(5))
    feed.close()
    silent = Feed(sidecar, "again", return_tracks=False)
    silent.follow(scene, range(5, 8))
    silent.close()
    feed = Feed(sidecar, "again")
    after = feed.follow(scene, range(8, 10))
    feed.close()
    assert sorted(after.id.tolist()) == sorted(before.id.tolist())
    assert after.detections.tolist() == [10] * 7


# ---- what detectors do


def test_headings_that_flip_do_not_turn_the_tracks(sidecar):
    feed, scene = Feed(sidecar, "flips"), Scene(9)
    flips = np.random.default_rng(0).random((40, 9)) < 0.3
    flips[0] = False
    for number in range(40):
        frame = scene.frame(number)
        frame.mean[flips[number], YAW] += np.pi
        tracks = feed.tracks(frame)
        assert tracks.detections.tolist() == [number + 1] * 9
    off = by_detection(tracks)[:, YAW] - scene.truth(39)[:, YAW]
    assert np.abs((off + np.pi) % (2 * np.pi) - np.pi).max() < 0.2
    feed.close()


def test_after_a_pause_all_tracks_are_new(sidecar):
    feed, scene = Feed(sidecar, "pause"), Scene(9)
    before = feed.follow(scene, range(5))
    after = feed.tracks(scene.frame(5 + 200))
    assert after.status.tolist() == [TENTATIVE] * 9
    assert not set(after.id.tolist()) & set(before.id.tolist())
    assert feed.follow(scene, range(206, 209)).status.tolist() == [CONFIRMED] * 9
    feed.close()


def test_500_objects_are_500_tracks(sidecar):
    feed, scene = Feed(sidecar, "many"), Scene(500)
    tracks = feed.follow(scene, range(10))
    # The gate keeps out one in a thousand, of 4500.
    steady = tracks.detections == 10
    assert np.count_nonzero(steady) > 490
    assert (tracks.status[steady] == CONFIRMED).all()
    truth = scene.truth(9)[tracks.detection_id[steady].astype(int) - 100]
    assert np.abs(tracks.state[steady, :2] - truth[:, :2]).max() < 1
    feed.close()


def test_no_objects_are_no_tracks_and_those_there_were_end(sidecar):
    feed, nothing = Feed(sidecar, "none"), Scene(0)
    assert feed.follow(nothing, range(3)).id.size == 0
    before = feed.follow(Scene(4), range(3, 8))
    assert before.status.tolist() == [CONFIRMED] * 4
    coasting = feed.follow(nothing, range(8, 13))
    assert coasting.status.tolist() == [COASTING] * 4
    assert sorted(coasting.id.tolist()) == sorted(before.id.tolist())
    assert feed.tracks(nothing.frame(13)).id.size == 0
    feed.close()


def test_one_object_in_50_fragments_is_answered_like_any_other(sidecar):
    feed = Feed(sidecar, "fragments")
    (whole,) = Scene(1).truth(0)
    for number in range(20):
        shift = np.random.default_rng(number).normal(size=(50, K)) * SIGMA
        answer = feed.ask(seen(number, whole + shift))
        # Each fragment is in a track, and no two in the same.
        assert np.unique(answer.track_id).size == 50
    assert answer.tracks.id.size <= 100
    feed.close()


def test_all_detections_on_one_spot_are_answered(sidecar):
    feed = Feed(sidecar, "heap")
    spot = np.repeat(Scene(1).truth(0), 300, axis=0)
    for number in range(5):
        answer = feed.ask(seen(number, spot))
    assert np.unique(answer.track_id).size == 300
    feed.close()


# ---- the order of frames


def test_frames_out_of_order_lead_to_the_tracks_of_frames_in_order(sidecar):
    scene = Scene(9)
    straight, mixed = Feed(sidecar, "straight"), Feed(sidecar, "mixed")
    straight.follow(scene, range(10))
    late = mixed.follow(scene, [0, 1, 2, 5, 3])
    assert late.detections.tolist() == [4] * 9
    # As of its own time, not of the frame that overtook it.
    assert np.abs(by_detection(late)[:, :2] - scene.truth(3)[:, :2]).max() < 0.8
    mixed.follow(scene, [4, 7, 8, 6, 9])
    wanted, found = straight.tracks(scene.frame(10)), mixed.tracks(scene.frame(10))
    assert found.id.size == 9
    assert np.array_equal(by_detection(found), by_detection(wanted))
    assert found.detections.tolist() == [11] * 9
    for feed in (straight, mixed):
        feed.close()


def test_a_frame_sent_again_gets_the_same_tracks(sidecar):
    feed, scene = Feed(sidecar, "repeated"), Scene(9)
    for number in range(6):
        feed.tracks(scene.frame(number))
        first = feed.result
        feed.tracks(scene.frame(number))
        assert list(feed.result.tracks) == list(first.tracks)
        assert list(feed.result.detections) == list(first.detections)
        assert feed.findings == ["DUPLICATE_FRAME"]
    feed.close()


def test_a_clock_that_begins_anew_is_followed(sidecar):
    feed, scene = Feed(sidecar, "clock"), Scene(4)
    feed.follow(scene, range(1000, 1020))
    tracks = feed.follow(scene, range(20))
    assert tracks.status.tolist() == [CONFIRMED] * 4
    feed.close()


# ---- motion of the sensor


def pose(x=0.0, y=0.0, yaw=0.0) -> Pose:
    turn = np.array([np.cos(yaw / 2), 0.0, 0.0, np.sin(yaw / 2)])
    return Pose(np.array([x, y, 0.0]), turn)


GARBAGE = {
    "NaN pose": EgoMotion(pose(float("nan")), None),
    "infinite turn": EgoMotion(None, Twist(np.zeros(3), np.full(3, np.inf))),
    "no values": EgoMotion(Pose(np.zeros(0), np.zeros(0)), Twist(np.zeros(0), np.zeros(0))),
    "too many": EgoMotion(Pose(np.zeros(300), np.ones(400)), None),
    "zero quaternion": EgoMotion(Pose(np.zeros(3), np.zeros(4)), None),
    "beyond the earth": EgoMotion(pose(1e300), None),
    "faster than light": EgoMotion(None, Twist(np.full(3, 3e8), np.zeros(3))),
}


@pytest.mark.parametrize("ego", GARBAGE.values(), ids=GARBAGE)
def test_garbage_for_motion_is_told_and_moves_no_track(sidecar, ego):
    name = next(name for name, known in GARBAGE.items() if known is ego).replace(" ", "_")
    feed, scene = Feed(sidecar, f"ego_{name}"), Scene(9)
    feed.follow(scene, range(5))
    for number in range(5, 8):
        tracks = feed.tracks(scene.frame(number, ego=ego))
        assert feed.findings == ["EGO_MOTION_INVALID"]
        assert tracks.detections.tolist() == [number + 1] * 9
    assert feed.tracks(scene.frame(8)).id.size == 9
    assert feed.findings == []
    feed.close()


@pytest.mark.parametrize("by", ["pose", "twist"])
def test_what_stands_stays_one_track_while_the_sensor_drives_a_bend(sidecar, by):
    feed, still = Feed(sidecar, f"bend_{by}"), Scene(9, velocity=(0.0, 0.0))
    world, speed, turn = still.truth(0), 15.0, 0.5  # m/s, rad/s
    for number in range(40):
        yaw = turn * number / 20
        # On a circle of speed / turn.
        x, y = speed / turn * np.sin(yaw), speed / turn * (1 - np.cos(yaw))
        local, noise = world.copy(), still.frame(number).mean - world
        away = world[:, :2] - (x, y)
        cosine, sine = np.cos(yaw), np.sin(yaw)
        local[:, :2] = away @ np.array([[cosine, -sine], [sine, cosine]])
        local[:, YAW] -= yaw
        ego = EgoMotion(pose(x, y, yaw), None)
        if by == "twist":
            ego = EgoMotion(None, Twist(np.array([speed, 0.0, 0.0]), np.array([0.0, 0.0, turn])))
        tracks = feed.tracks(seen(number, local + noise, ego=ego))
        assert feed.findings == []
        assert tracks.detections.tolist() == [number + 1] * 9
    assert np.abs(by_detection(tracks)[:, K : K + 2]).max() < 1.5  # m/s over the ground
    feed.close()


def test_a_sensor_that_leaps_and_spins_is_answered(sidecar):
    feed, scene = Feed(sidecar, "leaps"), Scene(9)
    random = np.random.default_rng(1)
    for number in range(40):
        leap = Pose(random.normal(size=3) * 10.0 ** random.integers(0, 9), random.normal(size=4))
        spin = Twist(random.uniform(-1e3, 1e3, 3), random.uniform(-1e2, 1e2, 3))
        feed.ask(scene.frame(number, ego=EgoMotion(leap if number % 3 else None, spin)))
        assert feed.findings == []
    feed.close()


# ---- anything


def test_the_widest_and_the_narrowest_covariances_allowed_are_tracked(sidecar):
    feed = Feed(sidecar, "extremes")
    random = np.random.default_rng(2)
    n = 30
    before = np.zeros((n, K)), np.zeros((n, K, K))
    for number in range(60):
        mean = random.normal(size=(n, K)) * 10.0 ** random.integers(-3, 8, (n, 1))
        root = random.normal(size=(n, K, K)) + np.eye(K)
        spread = 10.0 ** random.uniform(-5.5, 4.5, (n, K))
        unit = root @ root.transpose(0, 2, 1)
        deviation = np.sqrt(np.diagonal(unit, axis1=1, axis2=2))
        scale = spread / deviation
        covariance = unit * scale[:, :, None] * scale[:, None, :]
        if number % 3:
            # Half of them as the frame before, so that there are updates.
            mean[::2] = before[0][::2]
            if number % 2:
                covariance[::2] = before[1][::2]
        before = mean, covariance
        answer = feed.ask(seen(number, mean, covariance=covariance))
        assert (answer.status != frame_pb2.STATUS_REFUSED).sum() >= n // 2
    feed.close()


def test_stamps_from_one_end_of_time_to_the_other_are_answered(sidecar):
    feed, scene = Feed(sidecar, "stamps"), Scene(4)
    ends = [-(2**63), -(2**63) + 1, -1, 0, 1, 2**62, 2**63 - 2, 2**63 - 1, 5, -(2**63)]
    for number, stamp_ns in enumerate(ends):
        feed.ask(scene.frame(number, stamp_ns=stamp_ns))
    feed.close()


# ---- metrics


def test_the_metrics_tell_of_the_tracks(tmp_path):
    sidecar = Sidecar(tmp_path, CONFIG)
    try:
        for name, n in (("front", 25), ("rear", 9)):
            feed = Feed(sidecar, name)
            feed.follow(Scene(n), [*range(60), 60, 60, 63, 62])
            feed.close()
        metrics = exported(sidecar)
        frames = {by: v for (name, by), v in metrics.items() if name == "tracker_frames_total"}
        found = {order: number for order, number in frames.items() if number}
        assert found == {"in_order": 2 * 62, "rewound": 2, "repeated": 2}
        for name, n in (("front", 25), ("rear", 9)):
            assert metrics["tracks", f"{name}/confirmed"] == n
            assert metrics["tracks", f"{name}/tentative"] == 0
            assert metrics["tracks", f"{name}/coasting"] == 0
            # White noise that its covariances describe.
            assert 0.8 < metrics["track_nis_ratio", name] < 1.2
            assert abs(metrics["track_innovation_correlation", name]) < 0.2
            assert 0 <= metrics["gate_reject_ratio", name] < 0.01
        assert metrics["internal_errors_total", ""] == 0
        assert metrics["rejected_total", "missing_stamp"] == 0
        sidecar.stop()
    finally:
        sidecar.end()
