"""The tracker among the stages: it is fed what is forwarded, and costs no answer if it fails."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from monitor.config import Config
from monitor.frames.detections import Estimates, Reason
from monitor.frames.frame import (
    EgoMotion,
    FrameAnswer,
    Header,
    Pose,
    ReportedTracks,
    TrackStatus,
    Twist,
)
from monitor.frames.space import FloatArray, plain_space
from monitor.pipeline import stream_tracker
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.recalibrators import Recalibrators
from monitor.pipeline.stream_tracker import SliceTracks
from monitor.pipeline.streams import Stream
from monitor.recalibration.recalibrator import Output, Recalibrator
from monitor.recalibration.scaling import VarianceScaling
from monitor.recalibration.selection import IDENTITY, Selection
from monitor.tracking.rewind import Order
from monitor.tracking.tracker import Step
from monitor.wire.answers import encode_process_frame_response, encode_process_response
from tests import laws
from tests.piped import reported, statistics_of
from tests.recalibrators import Shift
from tests.received import FORMS, FULL, Label, Sent, frame, in_form, labels

XYZ = plain_space(("x", "y", "z"), "m")
CLASSES = ("car", "truck", "bus")
HEADER = Header("lidar", XYZ, CLASSES, return_tracks=True)
SILENT = replace(HEADER, return_tracks=False)
DOUBLE = Selection(XYZ.names, VarianceScaling((2.0, 2.0, 2.0)))
TENTH = 10**8  # ns
BAD = Sent(90, (0.0, 0.0, 0.0), (1.0, 2.0, 2.0, 1.0, 0.0, 0.0))  # indefinite
MISSING = Sent(91, (90.0, 0.0, 0.0), ())


def tracking(selection: Selection = IDENTITY, **sections: dict[str, Any]) -> Pipeline:
    tracker = {"kind": "embedded"} | sections.pop("tracker", {})
    config = Config.model_validate({"tracker": tracker, **sections})
    return Pipeline(config, recalibrators=Recalibrators(selection))


def opened(pipeline: Pipeline, header: Header = HEADER) -> Stream:
    stream = pipeline.register(header)
    assert isinstance(stream, Stream)
    return stream


def scene(number: int, n=4, form=FULL) -> list[Sent]:
    """n things 10 m apart that move 1 m/s along y, seen with noise and covariances of their own."""
    rows = []
    for i in range(n):
        root = 0.1 * np.random.default_rng(i).normal(size=(3, 3)) + 0.2 * np.eye(3)
        noise = np.random.default_rng([number, i]).normal(size=3)
        mean = np.array([10.0 * i, 0.1 * number, -1.0 if i % 2 else 1.0]) + 0.3 * root @ noise
        rows.append(Sent(i, tuple(mean.tolist()), in_form(root @ root.T, form), i % len(CLASSES)))
    return rows


def sent(pipeline: Pipeline, stream: Stream, rows: Sequence[Sent], number=0, **changes):
    """The answer to these rows as frame `number`."""
    made = replace(frame(rows, number, number * TENTH), **changes)
    return pipeline.process(stream, made)


def tracks_of(answer: FrameAnswer) -> ReportedTracks:
    assert answer.tracks is not None
    return answer.tracks


def noise_of(answer: FrameAnswer) -> dict[int, FloatArray]:
    """R of each row that began a track, and nothing else: what the track knows of its place."""
    tracks = tracks_of(answer)
    assert (tracks.detections == 1).all()
    rows = tracks.detection.tolist()
    return dict(zip(rows, tracks.covariance[:, :3, :3], strict=True))


def square(row: Sent) -> FloatArray:
    return np.reshape(row.covariance, (3, 3))


def fail(*_: object) -> None:
    raise RuntimeError("broken")


# ---- what is forwarded is what is tracked


def test_the_recalibrated_covariance_is_what_the_tracker_gets():
    pipeline = tracking(DOUBLE)
    rows = scene(0)
    answer = sent(pipeline, opened(pipeline), rows)
    assert answer.forwarded is not None
    noise = noise_of(answer)
    assert sorted(noise) == [0, 1, 2, 3]
    for i, row in enumerate(rows):
        assert np.array_equal(noise[i], 4.0 * square(row))
        assert np.array_equal(noise[i], answer.forwarded.covariance[i])


def test_the_recalibrated_mean_is_what_the_tracker_gets():
    shift: Recalibrator = Shift()
    pipeline = tracking(Selection(XYZ.names, shift))
    rows = scene(0)
    tracks = tracks_of(sent(pipeline, opened(pipeline), rows))
    assert np.array_equal(tracks.state[:, :3], np.array([row.mean for row in rows]) + 1.0)


def test_while_observing_the_tracker_gets_what_came():
    pipeline = tracking(DOUBLE, recalibration={"mode": "observe"})
    rows = scene(0)
    answer = sent(pipeline, opened(pipeline), rows)
    assert answer.shadow is not None
    noise = noise_of(answer)
    for i, row in enumerate(rows):
        assert np.array_equal(noise[i], square(row))


def test_where_the_recalibrator_does_not_fit_the_tracker_gets_what_came():
    pipeline = tracking(Selection(("u", "v"), VarianceScaling((2.0, 2.0))))
    rows = scene(0)
    noise = noise_of(sent(pipeline, opened(pipeline), rows))
    for i, row in enumerate(rows):
        assert np.array_equal(noise[i], square(row))


@dataclass(frozen=True)
class BrokenAbove:
    """Doubles σ; where z is above 0, gives NaN or fails whole."""

    whole: bool
    keeps_definite: bool = True
    output: Output = Output.GAUSSIAN
    method: ClassVar[str] = "broken"
    k: ClassVar[None] = None

    def apply(self, estimates: Estimates) -> Estimates:
        above = estimates.mean[:, 2] > 0
        if self.whole and above.any():
            raise ZeroDivisionError("broken")
        covariance = 4.0 * estimates.covariance
        covariance[above] = np.nan
        return Estimates(estimates.mean, covariance, estimates.diagonal)

    def parameters(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize("whole", [False, True])
def test_the_rows_a_recalibrator_fails_at_are_tracked_as_they_came(whole):
    broken: Recalibrator = BrokenAbove(whole)
    pipeline = tracking(Selection(XYZ.names, broken))
    rows = [BAD, *scene(0)]
    answer = sent(pipeline, opened(pipeline), rows)
    noise = noise_of(answer)
    assert sorted(noise) == [1, 2, 3, 4]
    for i in noise:
        sound = answer.reason[i] == Reason.NONE
        assert sound == (not whole and rows[i].mean[2] < 0)
        assert np.array_equal(noise[i], (4.0 if sound else 1.0) * square(rows[i]))


def test_a_promoted_recalibrator_changes_the_noise_and_not_the_tracks():
    pipeline, raw = tracking(), tracking()
    streams = [opened(pipeline), opened(raw)]
    for number in range(10):
        if number == 5:
            pipeline.activate(pipeline.recalibrators.learn(DOUBLE.to_json()).version)
        found = tracks_of(sent(pipeline, streams[0], scene(number), number))
        other = tracks_of(sent(raw, streams[1], scene(number), number))
        assert found.id.tolist() == other.id.tolist()
    # With twice the deviations it is less sure of itself.
    assert (np.linalg.det(found.covariance) > np.linalg.det(other.covariance)).all()


def test_a_missing_covariance_is_tracked_and_goes_back_missing():
    pipeline = tracking(DOUBLE, tracker={"missing_deviation": 0.5})
    stream = opened(pipeline)
    rows = [*scene(0), MISSING]
    answer = sent(pipeline, stream, rows)
    assert answer.reason[4] == Reason.MISSING_COVARIANCE
    assert answer.rows.tolist() == [0, 1, 2, 3]
    # What is configured is used as it is: there was nothing to recalibrate.
    assert np.array_equal(noise_of(answer)[4], 0.25 * np.eye(3))


REFUSED = {
    "indefinite": BAD,
    "no id": Sent(None, (50.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    "no such class": Sent(9, (50.0, 0.0, 0.0), (1.0, 1.0, 1.0), 99),
    "missing covariance and id": Sent(None, (50.0, 0.0, 0.0), ()),
    "short mean": Sent(9, (50.0,), (1.0, 1.0, 1.0)),
    "NaN": Sent(9, (50.0, float("nan"), 0.0), (1.0, 1.0, 1.0)),
    "the id of another": Sent(0, (50.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
}


@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED)
def test_a_refused_detection_is_never_tracked(refused):
    pipeline, without = tracking(), tracking()
    streams = [opened(pipeline), opened(without)]
    for number in range(4):
        rows = scene(number)
        found = tracks_of(sent(pipeline, streams[0], [*rows, refused], number))
        laws.assert_same(
            replace(found, id=found.id[:0]),
            replace(tracks_of(sent(without, streams[1], rows, number)), id=np.zeros(0, np.uint64)),
        )


@pytest.mark.parametrize("rows", [[], [Sent(9, (), ())], list(REFUSED.values())[:-1]], ids=len)
def test_a_frame_with_nothing_to_track_costs_no_track(rows):
    pipeline = tracking()
    stream = opened(pipeline)
    for number in range(4):
        before = tracks_of(sent(pipeline, stream, scene(number), number))
    coasting = tracks_of(sent(pipeline, stream, rows, 4))
    assert coasting.status.tolist() == [TrackStatus.COASTING] * 4
    after = tracks_of(sent(pipeline, stream, scene(5), 5))
    assert before.id.tolist() == coasting.id.tolist() == after.id.tolist()
    assert pipeline.counters.internal_errors == 0


# ---- tracks in the answer


def any_rows(number: int) -> list[Sent]:
    """Usable and unusable detections, in forms that change from frame to frame."""
    rows = scene(number, 6, FORMS[number % 3])
    if number % 2:
        rows[1:1] = [replace(MISSING, id=80), BAD]
        rows.append(Sent(81, (float("nan"), 0.0, 0.0), (1.0, 1.0, 1.0)))
    return rows


def written(answer: FrameAnswer) -> tuple[bytes, bytes]:
    return encode_process_response(answer, 7), encode_process_frame_response(answer)


@pytest.mark.parametrize("selection", [IDENTITY, DOUBLE], ids=["identity", "double"])
@pytest.mark.parametrize("mode", ["apply", "observe"])
def test_where_no_tracks_are_asked_for_answers_are_those_of_a_sidecar_without_tracker(
    mode, selection
):
    sections = {"recalibration": {"mode": mode}}
    pipeline = tracking(selection, **sections)
    without = Pipeline(Config.model_validate(sections), recalibrators=Recalibrators(selection))
    streams = [opened(pipeline, SILENT), opened(without, SILENT), opened(without, HEADER)]
    for number in range(6):
        rows = any_rows(number)
        found = written(sent(pipeline, streams[0], rows, number))
        assert found == written(sent(without, streams[1], rows, number))
    assert pipeline.tracks().orders == {Order.IN_ORDER: 6}


def test_a_sidecar_that_does_not_track_says_nothing_of_tracks_whoever_asks():
    asked, unasked = Pipeline(Config()), Pipeline(Config())
    streams = [opened(asked), opened(unasked, SILENT)]
    assert streams[0].tracker is None
    for number in range(4):
        rows = any_rows(number)
        changes = {"ego": EgoMotion(None, Twist(np.full(3, np.nan), np.zeros(3)))}
        answer = sent(asked, streams[0], rows, number, **changes)
        assert answer.tracks is None
        assert written(answer) == written(sent(unasked, streams[1], rows, number, **changes))
    stampless = frame(scene(4), 4, None)
    assert asked.process(streams[0], stampless).notices == ()
    reading = asked.tracks()
    assert (reading.slices, sum(reading.orders.values())) == ((), 0)


def test_tracks_come_only_to_those_who_ask():
    pipeline = tracking()
    assert sent(pipeline, opened(pipeline, SILENT), scene(0), 0).tracks is None
    assert tracks_of(sent(pipeline, opened(pipeline, HEADER), scene(1), 1)).id.size == 4


def test_detections_are_answered_alike_with_tracks_and_without():
    asked, unasked = tracking(DOUBLE), tracking(DOUBLE)
    streams = [opened(asked), opened(unasked, SILENT)]
    for number in range(4):
        rows = any_rows(number)
        found = sent(asked, streams[0], rows, number)
        laws.assert_same(replace(found, tracks=None), sent(unasked, streams[1], rows, number))


# ---- frames that are not tracked, or not moved


def test_a_frame_without_a_stamp_is_answered_but_not_tracked():
    pipeline = tracking(DOUBLE)
    stream = opened(pipeline)
    for number in range(3):
        before = tracks_of(sent(pipeline, stream, scene(number), number))
    answer = pipeline.process(stream, frame(scene(9), 9, None))
    assert answer.reason.tolist() == [Reason.NONE] * 4
    assert answer.forwarded is not None
    assert answer.tracks is None
    (notice,) = [found for found in answer.notices if found.reason is Reason.MISSING_STAMP]
    assert (notice.field, notice.count) == ("stamp_ns", 0)
    assert pipeline.counters.notices[Reason.MISSING_STAMP] == 1
    after = tracks_of(sent(pipeline, stream, scene(3), 3))
    assert after.id.tolist() == before.id.tolist()


BAD_MOTIONS = {
    "NaN": EgoMotion(None, Twist(np.full(3, np.nan), np.zeros(3))),
    "no values": EgoMotion(Pose(np.zeros(0), np.zeros(0)), None),
    "no direction": EgoMotion(Pose(np.zeros(3), np.zeros(4)), None),
}


@pytest.mark.parametrize("ego", BAD_MOTIONS.values(), ids=BAD_MOTIONS)
def test_bad_motion_of_the_sensor_is_told_and_counted_and_moves_nothing(ego):
    pipeline, still = tracking(), tracking()
    streams = [opened(pipeline), opened(still)]
    for number in range(3):
        found = sent(pipeline, streams[0], scene(number), number, ego=ego)
        wanted = sent(still, streams[1], scene(number), number)
        laws.assert_same(found.tracks, wanted.tracks)
        (notice,) = found.notices
        assert notice.reason is Reason.EGO_MOTION_INVALID
        assert wanted.notices == ()
    assert pipeline.counters.notices[Reason.EGO_MOTION_INVALID] == 3
    assert pipeline.counters.internal_errors == 0


# ---- a tracker that fails

FAILURES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "before the step": lambda patched: patched.setattr(stream_tracker, "_sightings", fail),
    "in the step": lambda patched: patched.setattr(stream_tracker, "follow", fail),
    "behind the step": lambda patched: patched.setattr(Step, "reported", fail),
}


@pytest.mark.parametrize("break_it", FAILURES.values(), ids=FAILURES)
def test_a_tracker_that_fails_costs_its_tracks_and_nothing_else(break_it, monkeypatch):
    pipeline = tracking(DOUBLE)
    without = Pipeline(Config(), recalibrators=Recalibrators(DOUBLE))
    streams = [opened(pipeline), opened(without)]
    seen: set[int] = set()
    for number in range(4):
        answer = sent(pipeline, streams[0], any_rows(number), number)
        sent(without, streams[1], any_rows(number), number)
        seen |= set(tracks_of(answer).id.tolist())
    with monkeypatch.context() as patched:
        break_it(patched)
        answer = sent(pipeline, streams[0], any_rows(4), 4)
    assert answer.tracks is None
    assert written(answer) == written(sent(without, streams[1], any_rows(4), 4))
    assert pipeline.counters.internal_errors == 1
    assert without.counters.internal_errors == 0
    # It begins anew: every track is of this frame, and has a number of its own.
    anew = tracks_of(sent(pipeline, streams[0], any_rows(5), 5))
    assert anew.id.size > 0
    assert (anew.detections == 1).all()
    assert not set(anew.id.tolist()) & seen
    assert pipeline.counters.internal_errors == 1


def test_a_tracker_that_fails_at_one_stream_keeps_the_tracks_of_the_others(monkeypatch):
    pipeline = tracking()
    front, rear = (opened(pipeline, replace(HEADER, stream=name)) for name in ("front", "rear"))
    for number in range(3):
        for stream in (front, rear):
            sent(pipeline, stream, scene(number), number)
    with monkeypatch.context() as patched:
        patched.setattr(stream_tracker, "follow", fail)
        sent(pipeline, front, scene(3), 3)
    assert tracks_of(sent(pipeline, front, scene(4), 4)).detections.tolist() == [1] * 4
    assert tracks_of(sent(pipeline, rear, scene(4), 4)).detections.tolist() == [4] * 4


# ---- repetitions, connections, headers


def test_a_repeated_frame_gets_the_same_tracks():
    pipeline = tracking()
    stream = opened(pipeline)
    for number in range(4):
        first = sent(pipeline, stream, any_rows(number), number)
        again = sent(pipeline, stream, any_rows(number), number)
        laws.assert_same(again.tracks, first.tracks)
        assert [notice.reason for notice in again.notices][-1] is Reason.DUPLICATE_FRAME
    assert pipeline.tracks().orders == {Order.IN_ORDER: 4, Order.REPEATED: 4}


def test_one_who_asks_for_tracks_or_stops_asking_finds_them_going_on():
    pipeline, steady = tracking(), tracking()
    one = opened(steady)
    for number in range(8):
        stream = opened(pipeline, HEADER if number % 2 else SILENT)
        found = sent(pipeline, stream, scene(number), number)
        wanted = sent(steady, one, scene(number), number)
        assert (found.tracks is not None) == bool(number % 2)
        if found.tracks is not None:
            laws.assert_same(found.tracks, wanted.tracks)
    assert stream.time.watermark_ns == one.time.watermark_ns
    laws.assert_same(pipeline.tracks(), steady.tracks())


def test_an_older_connection_feeds_the_same_tracks_as_the_newer_one():
    pipeline = tracking()
    older, newer = opened(pipeline, SILENT), opened(pipeline, HEADER)
    for number in range(0, 6, 2):
        assert sent(pipeline, older, scene(number), number).tracks is None
        tracks = tracks_of(sent(pipeline, newer, scene(number + 1), number + 1))
    assert tracks.detections.tolist() == [6] * 4


@pytest.mark.parametrize(
    "changed",
    [
        replace(HEADER, classes=(*CLASSES, "tram")),
        replace(HEADER, coordinate_frame="lidar_top"),
        replace(HEADER, space=plain_space(("x", "y", "z"), "ft")),
    ],
    ids=["classes", "coordinate frame", "units"],
)
def test_a_changed_header_begins_anew(changed):
    pipeline = tracking()
    for number in range(4):
        before = tracks_of(sent(pipeline, opened(pipeline), scene(number), number))
    assert before.detections.tolist() == [4] * 4
    anew = tracks_of(sent(pipeline, opened(pipeline, changed), scene(4), 4))
    assert anew.detections.tolist() == [1] * 4


def test_streams_have_tracks_of_their_own():
    pipeline = tracking()
    for number in range(3):
        for name in ("front", "rear"):
            stream = opened(pipeline, replace(HEADER, stream=name))
            tracks = tracks_of(sent(pipeline, stream, scene(number), number))
            assert tracks.detections.tolist() == [number + 1] * 4


# ---- what is read


def read(pipeline: Pipeline) -> dict[str, SliceTracks]:
    return {entry.name: entry for entry in pipeline.tracks().slices}


def confirmed(pipeline: Pipeline) -> dict[str, int]:
    return {name: entry.counts[TrackStatus.CONFIRMED] for name, entry in read(pipeline).items()}


@pytest.mark.parametrize(
    ("by", "counts"),
    [
        (["class"], {"car": 4, "truck": 3, "bus": 2}),
        (["stream"], {"front": 4, "rear": 5}),
        (
            ["stream", "class"],
            {
                "front/car": 2, "front/truck": 1, "front/bus": 1,
                "rear/car": 2, "rear/truck": 2, "rear/bus": 1,
            },
        ),
    ],
    ids=str,
)  # fmt: skip
def test_tracks_are_read_by_the_slices_of_the_statistics(by, counts):
    pipeline = tracking(statistics={"slice_by": by})
    for name, n in (("front", 4), ("rear", 5)):
        stream = opened(pipeline, replace(HEADER, stream=name))
        for number in range(20):
            sent(pipeline, stream, scene(number, n), number)
    assert confirmed(pipeline) == counts
    for entry in read(pipeline).values():
        # The noise of the scene is 0.3 of what its covariances say.
        assert 0 < entry.nis_ratio < 0.5
        assert -1 <= entry.correlation <= 1
        assert entry.reject_ratio == 0
    assert pipeline.tracks().orders == {Order.IN_ORDER: 40}


def test_spaces_that_share_a_class_are_read_apart():
    pipeline = tracking()
    camera = Header("camera", plain_space(("u", "v", "w"), "px"), CLASSES, return_tracks=True)
    for number in range(3):
        sent(pipeline, opened(pipeline), scene(number), number)
        sent(pipeline, opened(pipeline, camera), scene(number, 2), number)
    assert confirmed(pipeline) == {
        "car": 2, "truck": 1, "bus": 1, "car (u,v,w)": 1, "truck (u,v,w)": 1
    }  # fmt: skip


def test_a_gate_that_keeps_a_detection_out_is_counted():
    pipeline = tracking()
    stream = opened(pipeline)
    for number in range(10):
        sent(pipeline, stream, scene(number, 1), number)
    (row,) = scene(10, 1)
    aside = replace(row, mean=(row.mean[0] + 2.0, *row.mean[1:]))
    sent(pipeline, stream, [aside], 10)
    assert read(pipeline)["car"].reject_ratio > 0


def test_tracks_of_a_detector_that_sends_no_covariances_are_read_too():
    pipeline = tracking()
    stream = opened(pipeline)
    for number in range(4):
        rows = [replace(row, covariance=()) for row in scene(number)]
        assert tracks_of(sent(pipeline, stream, rows, number)).id.size == 4
    assert confirmed(pipeline) == {"car": 2, "truck": 1, "bus": 1}


def test_a_changed_header_takes_no_frame_from_the_count():
    pipeline = tracking()
    for number in range(4):
        sent(pipeline, opened(pipeline), scene(number), number)
    changed = replace(HEADER, classes=(*CLASSES, "tram"))
    sent(pipeline, opened(pipeline, changed), scene(4), 4)
    assert pipeline.tracks().orders == {Order.IN_ORDER: 5}


def test_a_frame_that_is_not_tracked_says_so():
    pipeline = tracking()
    stream = opened(pipeline)
    for number in range(3):
        answer = sent(pipeline, stream, scene(number), number)
        assert answer.notices == ()
    other = sent(pipeline, stream, scene(9), 2)
    assert other.tracks is None
    assert Reason.NOT_TRACKED in [notice.reason for notice in other.notices]
    assert pipeline.counters.notices[Reason.NOT_TRACKED] == 1


def test_a_stream_whose_tracker_cannot_be_made_goes_without(monkeypatch):
    def failing(*_):
        raise OverflowError

    monkeypatch.setattr(stream_tracker, "stream_tracker", failing)
    pipeline = tracking()
    stream = opened(pipeline)
    assert sent(pipeline, stream, scene(0), 0).tracks is None
    assert pipeline.counters.internal_errors == 1


# ---- slices by range

BY_RANGE = {"slice_by": ["class", "range"], "range_edges": [5.0, 15.0]}


def test_tracks_are_read_by_class_where_detections_are_told_apart_by_range_as_well():
    pipeline = tracking(statistics=BY_RANGE)
    stream = opened(pipeline)
    for number in range(6):
        sent(pipeline, stream, scene(number, n=6), number)
    found = {entry.name: entry.counts for entry in pipeline.tracks().slices}
    assert found.keys() == {"car", "truck", "bus"}
    assert all(counts[TrackStatus.CONFIRMED] == 2 for counts in found.values())
    assert {name.split("/")[1] for name in pipeline.slices.names} == {"<5", "5-15", ">=15"}


def test_a_frame_of_malformed_rows_costs_no_track_where_range_tells_slices_apart():
    pipeline = tracking(statistics=BY_RANGE)
    stream = opened(pipeline)
    for number in range(4):
        sent(pipeline, stream, scene(number), number)
    # Means too short to have a range.
    sent(pipeline, stream, [Sent(1, (1.0,), (1.0,))], 4)
    answer = sent(pipeline, stream, scene(5), 5)
    assert pipeline.counters.internal_errors == 0
    assert (tracks_of(answer).detections >= 5).all()


# ---- tracks as clusters of the statistics


def truth_beside(row: Sent) -> Sent:
    random = np.random.default_rng([row.id or 0, abs(int(1e6 * row.mean[0]))])
    return replace(row, truth=tuple((np.array(row.mean) + random.normal(size=3)).tolist()))


def pairs_of(pipeline: Pipeline) -> int:
    return dict(statistics_of(pipeline))["total"].raw.pairs


def test_detections_of_one_track_are_pairs_and_those_of_no_track_are_not():
    known, unknown = tracking(), tracking(tracker={"kind": "none"})
    for pipeline in (known, unknown):
        stream = opened(pipeline)
        for number in range(10):
            sent(pipeline, stream, [truth_beside(row) for row in scene(number)], number)
    # Four things in ten frames each, all in one pane.
    assert pairs_of(known) == 4 * 10 * 9 // 2
    assert pairs_of(unknown) == 0


def test_the_tracks_a_detector_names_itself_come_before_ours():
    pipeline = tracking()
    stream = opened(pipeline)
    for number in range(10):
        rows = [truth_beside(row) for row in scene(number)]
        # Two things of one class it takes for one; one row of it is on no track.
        names = [5, 6, 7, 5]
        rows = [replace(row, upstream_track=t) for row, t in zip(rows, names, strict=True)]
        rows[1] = replace(rows[1], upstream_track=None)
        sent(pipeline, stream, rows, number)
    assert pairs_of(pipeline) == 20 * 19 // 2 + 10 * 9 // 2


def test_tracks_of_one_number_in_two_streams_are_two():
    pipeline = tracking()
    streams = [opened(pipeline, replace(HEADER, stream=name)) for name in ("front", "rear")]
    for number in range(10):
        for stream in streams:
            sent(pipeline, stream, [truth_beside(row) for row in scene(number)], number)
    assert pairs_of(pipeline) == 2 * 4 * 10 * 9 // 2


@pytest.mark.parametrize("fold_rows", [1, 8192])
def test_inline_and_late_truth_are_of_the_same_tracks(fold_rows):
    inline, late = (tracking(DOUBLE, statistics={"fold_rows": fold_rows}) for _ in range(2))
    streams = opened(inline), opened(late)
    for number in range(12):
        sent(inline, streams[0], [truth_beside(row) for row in scene(number)], number)
        sent(late, streams[1], scene(number), number)
    for number in range(12):
        told = [Label(row.id, truth_beside(row).truth) for row in reversed(scene(number))]
        reported(late, labels(told, number))
    ours, theirs = dict(statistics_of(inline)), dict(statistics_of(late))
    assert ours.keys() == theirs.keys()
    for name, statistics in ours.items():
        laws.assert_same(statistics, theirs[name])
    assert pairs_of(inline) == 4 * 12 * 11 // 2
