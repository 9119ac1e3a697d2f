"""The tracker of a stream: it is fed what is forwarded, costs no answer if it fails, and is read
by slice; its tracks are clusters of the statistics."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from monitor.frames.detections import Reason
from monitor.frames.frame import FrameAnswer, Header, ReportedTracks, TrackStatus
from monitor.frames.slices import OVERFLOW
from monitor.frames.space import FloatArray
from monitor.pipeline import streams
from monitor.pipeline.frame_path import Pipeline
from monitor.recalibration.scaling import VarianceScaling
from monitor.recalibration.selection import IDENTITY, Selection
from monitor.tracking.tracker import Order, Step
from monitor.wire.answers import encode_process_frame_response, encode_process_response
from tests import laws
from tests.piped import BAD, DOUBLE, XYZ, opened, pipeline_of, reported, statistics_of
from tests.received import FORMS, FULL, Label, Sent, frame, in_form, labels

CLASSES = ("car", "truck", "bus")
HEADER = Header("lidar", XYZ, CLASSES, return_tracks=True)
TENTH = 10**8  # ns
MISSING = Sent(91, (90.0, 0.0, 0.0), ())
NEITHER = Selection(("u", "v"), VarianceScaling((2.0, 2.0)))


def tracking(selection: Selection = IDENTITY, **sections: Any) -> Pipeline:
    tracker = {"kind": "embedded"} | sections.pop("tracker", {})
    return pipeline_of(selection, tracker=tracker, **sections)


def scene(number: int, n=4, form=FULL) -> list[Sent]:
    """n objects 10 m apart that move 1 m/s along y, with noise and covariances of their own."""
    rows = []
    for i in range(n):
        root = 0.1 * np.random.default_rng(i).normal(size=(3, 3)) + 0.2 * np.eye(3)
        noise = np.random.default_rng([number, i]).normal(size=3)
        mean = np.array([10.0 * i, 0.1 * number, -1.0 if i % 2 else 1.0]) + 0.3 * root @ noise
        rows.append(Sent(i, tuple(mean.tolist()), in_form(root @ root.T, form), i % len(CLASSES)))
    return rows


def any_rows(number: int) -> list[Sent]:
    """Usable and unusable detections, in forms that change from frame to frame."""
    rows = scene(number, 6, FORMS[number % 3])
    if number % 2:
        rows[1:1] = [replace(MISSING, id=80), BAD]
        rows.append(Sent(81, (float("nan"), 0.0, 0.0), (1.0, 1.0, 1.0)))
    return rows


def sent(pipeline: Pipeline, rows: Sequence[Sent], number=0, header=HEADER, **changes):
    """The answer to these rows as frame `number`."""
    made = replace(frame(rows, number, number * TENTH), **changes)
    return pipeline.process(opened(pipeline, header), made)


def followed(pipeline: Pipeline, numbers, header=HEADER, rows=scene) -> ReportedTracks:
    """The tracks of the last of these frames."""
    for number in numbers:
        answer = sent(pipeline, rows(number), number, header)
    return tracks_of(answer)


def tracks_of(answer: FrameAnswer) -> ReportedTracks:
    assert answer.tracks is not None
    return answer.tracks


def written(answer: FrameAnswer) -> tuple[bytes, bytes]:
    return encode_process_response(answer, 7), encode_process_frame_response(answer)


def stream_named(name: str) -> Header:
    return replace(HEADER, stream=name)


# ---- what is forwarded is what is tracked


@pytest.mark.parametrize(
    ("selection", "mode", "factor"),
    [
        (DOUBLE, "apply", 4.0),
        (DOUBLE, "observe", 1.0),
        (NEITHER, "apply", 1.0),
    ],
)
def test_a_track_begins_as_uncertain_as_its_detection_went_out(selection, mode, factor):
    pipeline = tracking(selection, recalibration={"mode": mode}, tracker={"missing_deviation": 0.5})
    rows = [BAD, *scene(0), MISSING]
    tracks = tracks_of(sent(pipeline, rows))
    assert sorted(tracks.detection.tolist()) == [1, 2, 3, 4, 5]
    noise: dict[int, FloatArray] = dict(
        zip(tracks.detection.tolist(), tracks.covariance[:, :3, :3], strict=True)
    )
    for i, row in enumerate(rows[1:5]):
        assert np.array_equal(noise[i + 1], factor * np.reshape(row.covariance, (3, 3)))
    # The configured deviation of a missing covariance is used as it is.
    assert np.array_equal(noise[5], 0.25 * np.eye(3))


REFUSED = {
    "indefinite": BAD,
    "no id": Sent(None, (50.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
    "no such class": Sent(9, (50.0, 0.0, 0.0), (1.0, 1.0, 1.0), 99),
    "NaN": Sent(9, (50.0, float("nan"), 0.0), (1.0, 1.0, 1.0)),
}


@pytest.mark.parametrize("refused", REFUSED.values(), ids=REFUSED)
def test_a_refused_detection_is_never_tracked(refused):
    found = followed(tracking(), range(4), rows=lambda number: [*scene(number), refused])
    wanted = followed(tracking(), range(4))
    # A refused detection takes a number, so that ids differ.
    none = np.zeros(0, np.uint64)
    laws.assert_same(replace(found, id=none), replace(wanted, id=none))


def test_scores_and_upstream_ids_stay_with_their_detections():
    pipeline = tracking(tracker={"birth_score": 0.5, "association": "upstream"})
    rows = [
        replace(row, score=score, upstream_track=70 + i)
        for i, (row, score) in enumerate(zip(scene(0), (0.1, 0.9, 0.5, 0.8), strict=True))
    ]
    rows[2] = replace(rows[2], covariance=())
    rows.insert(1, BAD)
    tracks = tracks_of(sent(pipeline, rows))
    first = dict(zip(tracks.detection.tolist(), tracks.id.tolist(), strict=True))
    assert sorted(first) == [2, 3, 4]
    # The detector's own tracker swaps two of them, and is believed.
    rows[3], rows[4] = (replace(rows[i], upstream_track=rows[7 - i].upstream_track) for i in (3, 4))
    tracks = tracks_of(sent(pipeline, rows, 1))
    now = dict(zip(tracks.detection.tolist(), tracks.id.tolist(), strict=True))
    assert now == {2: first[2], 3: first[4], 4: first[3]}


# ---- tracks in the answer


def test_a_changed_header_begins_anew_and_takes_no_frame_from_the_count():
    changed = replace(HEADER, coordinate_frame="lidar_top")
    pipeline = tracking()
    assert followed(pipeline, range(4)).detections.tolist() == [4] * 4
    assert followed(pipeline, [4], changed).detections.tolist() == [1] * 4
    assert pipeline.tracks().orders == {Order.IN_ORDER: 5}


# ---- frames that are not tracked, or not moved


def test_a_frame_without_a_stamp_or_with_one_that_was_tracked_says_that_it_was_not():
    pipeline = tracking(DOUBLE)
    before = followed(pipeline, range(3))
    answer = pipeline.process(opened(pipeline, HEADER), frame(scene(9), 9, None))
    assert (answer.reason.tolist(), answer.tracks) == ([Reason.NONE] * 4, None)
    assert answer.forwarded is not None
    (notice,) = answer.notices
    assert (notice.reason, notice.field) == (Reason.MISSING_STAMP, "stamp_ns")
    assert "capture time" in notice.message
    answer = sent(pipeline, scene(9), 10, stamp_ns=2 * TENTH)
    assert answer.tracks is None
    assert [notice.reason for notice in answer.notices] == [Reason.NOT_TRACKED]
    assert [pipeline.counters.notices[r] for r in (Reason.MISSING_STAMP, Reason.NOT_TRACKED)] == [
        *(1, 1)
    ]
    orders = {Order.IN_ORDER: 3, Order.UNSTAMPED: 1, Order.REPEATED: 1}
    assert pipeline.tracks().orders == orders
    assert followed(pipeline, [3]).id.tolist() == before.id.tolist()


# ---- a tracker that fails


def fail(*_: object) -> None:
    raise RuntimeError("broken")


FAILURES: dict[str, tuple[Any, str]] = {
    "before the step": (streams, "_sightings"),
    "in the step": (streams, "follow"),
    "behind the step": (Step, "reported"),
}


@pytest.mark.parametrize("broken", FAILURES.values(), ids=FAILURES)
def test_a_tracker_that_fails_costs_its_tracks_and_nothing_else(broken, monkeypatch):
    pipeline, without, seen = tracking(DOUBLE), pipeline_of(DOUBLE), set[int]()
    other = stream_named("rear")
    for number in range(4):
        seen |= set(tracks_of(sent(pipeline, any_rows(number), number)).id.tolist())
        sent(without, any_rows(number), number)
        followed(pipeline, [number], other)
    with monkeypatch.context() as patched:
        patched.setattr(*broken, fail)
        answer = sent(pipeline, any_rows(4), 4)
    assert answer.tracks is None
    assert written(answer) == written(sent(without, any_rows(4), 4))
    assert pipeline.counters.internal_errors == 1
    # It begins anew: every track is of this frame, and has a number of its own.
    anew = tracks_of(sent(pipeline, any_rows(5), 5))
    assert anew.id.size > 0
    assert (anew.detections == 1).all()
    assert not set(anew.id.tolist()) & seen
    assert followed(pipeline, [4], other).detections.tolist() == [5] * 4
    assert pipeline.counters.internal_errors == 1


# ---- what is read


def confirmed(pipeline: Pipeline) -> dict[str, int]:
    reading = pipeline.tracks()
    counts = reading.counts[TrackStatus.CONFIRMED - 1].tolist()
    return dict(zip(reading.names, counts, strict=True))


@pytest.mark.parametrize(
    ("by", "more", "counts"),
    [
        (["class", "range"], {}, {"car": 4, "truck": 3, "bus": 2}),
        (["stream"], {}, {"front": 4, "rear": 5}),
        (["class"], {"max_slices": 1}, {"car": 4, OVERFLOW: 5}),
    ],
    ids=str,
)  # fmt: skip
def test_tracks_are_read_by_the_slices_of_the_statistics_over_all_ranges(by, more, counts):
    ranged = {"range_edges": [5.0, 15.0]} if "range" in by else {}
    pipeline = tracking(statistics={"slice_by": by, **more, **ranged})
    for name, n in (("front", 4), ("rear", 5)):
        followed(pipeline, range(10), stream_named(name), lambda number, n=n: scene(number, n))
    assert confirmed(pipeline) == counts
    reading = pipeline.tracks()
    # The noise of the scene is 0.3 of what its covariances say.
    assert ((reading.nis_ratio > 0) & (reading.nis_ratio < 0.5)).all()
    assert (np.abs(reading.correlation) <= 1).all()
    assert (reading.reject_ratio == 0).all()
    assert reading.orders == {Order.IN_ORDER: 20}
    laws.assert_same(pipeline.tracks(), reading)


# ---- tracks as clusters of the statistics


def labelled(number: int) -> list[Sent]:
    rows = []
    for row in scene(number):
        random = np.random.default_rng([row.id or 0, number])
        truth = np.array(row.mean) + random.normal(size=3)
        rows.append(replace(row, truth=tuple(truth.tolist())))
    return rows


def pairs_of(pipeline: Pipeline) -> int:
    return dict(statistics_of(pipeline))["total"].raw.pairs


def test_inline_and_late_labels_are_of_the_same_tracks():
    inline, late = (tracking(DOUBLE) for _ in range(2))
    for number in range(12):
        sent(inline, labelled(number), number)
        sent(late, scene(number), number)
    for number in range(12):
        told = [Label(row.id, row.truth) for row in reversed(labelled(number))]
        reported(late, labels(told, number))
    laws.assert_same(statistics_of(inline), statistics_of(late))
    assert pairs_of(inline) == 4 * 12 * 11 // 2
