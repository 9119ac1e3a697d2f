"""GetCalibration: every field is what the statistics say, since epoch or in the asked window."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
import numpy as np
import pytest

from monitor.pipeline.frame_path import Pipeline
from monitor.recalibration.scaling import VarianceScaling
from monitor.recalibration.selection import Selection
from monitor.service.handlers import Service
from monitor.statistics.class_evaluation import read_classes
from monitor.statistics.exact_engine import BinCut
from monitor.statistics.measures import Evaluation, ReliabilityBins
from monitor.statistics.observations import finished
from monitor.statistics.reading import read
from monitor.v1 import calibration_pb2, frame_pb2
from monitor.v1 import perception_monitor_pb2 as pb
from tests.administered import Refused
from tests.labelled import assert_message, header, labelled_frame
from tests.piped import pipeline_of
from tests.piped_classes import recalibrating
from tests.service.handled import asked, service_of, talked

SCALING = Selection(("x", "y"), VarianceScaling((1.25, 1.5)))
BY_STREAM = {"slice_by": ("stream",)}
WINDOWS = ("5m", "1h", "24h")


def by_stream(**statistics) -> Service:
    return service_of(pipeline_of(SCALING, statistics=BY_STREAM | statistics))


def converse(service: Service, *messages: pb.ProcessRequest) -> None:
    answers = talked(service, *(one.SerializeToString() for one in messages), header=None)
    assert answers[0].header.accepted
    assert not any(answer.frame.notices for answer in answers)


def calibration(service: Service, *slices: str, **request) -> pb.GetCalibrationResponse:
    data = pb.GetCalibrationRequest(slices=slices, **request).SerializeToString()
    return pb.GetCalibrationResponse.FromString(asked(service, service.get_calibration, data))


def refusal(service: Service, *slices: str, **request) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(Refused) as caught:
        calibration(service, *slices, **request)
    return caught.value.status, caught.value.words


def counts(service: Service, **request) -> dict[str, int]:
    return {one.slice: one.stages[0].n for one in calibration(service, **request).slices}


def assert_bins(found: Sequence[calibration_pb2.Bin], bins: ReliabilityBins) -> None:
    assert [one.n for one in found] == bins.n.tolist()
    for name in ("lower", "upper", "variance", "squared_error", "nees"):
        values = [getattr(one, name) for one in found]
        assert np.array_equal(values, getattr(bins, name), equal_nan=True), name
    assert [list(one.within) for one in found] == bins.within.tolist()


def assert_reading(stage: calibration_pb2.StageCalibration, measures: Evaluation) -> None:
    assert stage.n == measures.rows
    assert [found.name for found in stage.dimensions] == list(measures.dimensions)
    for found in stage.dimensions:
        expected = measures.dimensions[found.name]
        assert assert_message(found, expected, {"name", "unit", "bins", "rejection"}) == 21
        assert assert_message(found.rejection, expected.rejection, set()) == 3
        assert_bins(found.bins, expected.bins)
    joint = measures.joint
    assert assert_message(stage.joint, joint, {"bins", "rejection"}) == 14
    assert assert_message(stage.joint.rejection, joint.rejection, set()) == 3
    assert_bins(stage.joint.bins, joint.bins)


@pytest.fixture(scope="module")
def driven() -> Service:
    """Windows hold different parts of a drive of an hour and a half, a frame every four minutes."""
    service = by_stream()
    converse(service, header("long"), *(labelled_frame(1, i, stamp_s=240 * i) for i in range(23)))
    converse(service, header("short"), *(labelled_frame(2, i, stamp_s=4000 + i) for i in range(3)))
    return service


@pytest.mark.parametrize("window", ["", *WINDOWS])
def test_every_field_is_what_is_read_off_the_statistics_of_the_window(driven, window):
    level = WINDOWS.index(window) if window else None
    expected = dict(finished(driven.pipeline.live.in_steps(level)))
    response = calibration(driven, bins=7, include_bins=True, window=window)
    found = {entry.slice: entry for entry in response.slices}
    assert found.keys() == expected.keys()
    for name, statistics in expected.items():
        stages = (statistics.raw, statistics.recalibrated)
        for stage, held_there in zip(found[name].stages, stages, strict=True):
            assert_reading(stage, read(held_there, BinCut(7)))


def test_a_window_holds_what_came_in_it_and_slices_without_any_are_left_out(driven):
    # Panes of 50 s and of 10 min, six of them whole; the last frame came after 88 minutes.
    assert counts(driven, window="5m") == {"long": 40, "total": 40}
    hour = sum(240 * i >= (5280 // 600 - 6) * 600 for i in range(23))
    found = counts(driven, window="1h")
    assert found == {"long": 20 * hour, "short": 60, "total": 20 * hour + 60}
    everything = {"long": 460, "short": 60, "total": 520}
    assert counts(driven, window="24h") == counts(driven) == everything
    for slices, window, there in ((("short",), "5m", "long"), (("nowhere", "long"), "", "short")):
        code, text = refusal(driven, *slices, window=window)
        assert code is grpc.StatusCode.NOT_FOUND
        assert f"no statistics of {slices[0]}; there are " in text
        assert there in text


@pytest.mark.parametrize("window", ["1d", " 1h", "x" * 10_000])
def test_an_unknown_window_is_an_invalid_argument_that_names_those_there_are(driven, window):
    code, text = refusal(driven, window=window)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert text.startswith(f"window: '{window[:20]}' is none of 5m, 1h, 24h;")
    assert len(text) < 200


STAGES = (calibration_pb2.STAGE_RAW, calibration_pb2.STAGE_RECALIBRATED)


def classified(pipeline: Pipeline, opinions: int) -> Service:
    service, random, frames = service_of(pipeline), np.random.default_rng(7), []
    for number in range(12):
        frame = frame_pb2.Frame(frame_id=number, stamp_ns=number * 120 * 10**9)
        for i in range(25):
            rows = random.dirichlet(np.full(3, 0.7), size=opinions)
            frame.detections.add(
                id=i,
                class_index=int(rows.mean(axis=0).argmax()),
                mean=[0.0, 0.0],
                covariance=[1.0, 1.0],
                class_probabilities=rows.ravel(),
                ground_truth_class=int(random.integers(3)),
            )
        frames.append(pb.ProcessRequest(frame=frame))
    converse(service, header("seen", ("car", "truck", "bus")), *frames)
    return service


@pytest.mark.parametrize("opinions", [1, 3])
def test_every_field_of_classes_is_what_is_read_off_the_statistics_of_the_window(opinions):
    service, numbers = classified(recalibrating(statistics=BY_STREAM), opinions), []
    for level, window in enumerate((*WINDOWS, "")):
        entries = finished(service.pipeline.live.classes_in_steps(level if window else None))
        answers = calibration(service, window=window).classes
        for i, (name, _, entry) in enumerate(entries):
            stages = zip(STAGES, (entry.raw, entry.recalibrated), strict=True)
            for (stage, held), found in zip(stages, answers[2 * i : 2 * i + 2], strict=True):
                assert (found.slice, tuple(found.class_names)) == (name, ("car", "truck", "bus"))
                others = {"slice", "class_names", "stage"}
                assert assert_message(found, read_classes(held), others) == 23
                assert found.stage == stage
                known = opinions > 1 and stage == calibration_pb2.STAGE_RAW
                assert np.isnan(found.epistemic) != known
            numbers.append(found.n)
    assert numbers == [75, 300, 300, 300]
