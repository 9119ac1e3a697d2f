"""What GetCalibration and /metrics say of what was sent, over the wire of a real process: since
epoch and by window."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
import numpy as np
import pytest

from monitor.recalibration.scaling import VarianceScaling
from monitor.recalibration.selection import Selection
from monitor.statistics.evaluation import Evaluation
from monitor.statistics.exact_engine import BinCut
from monitor.statistics.measures import ReliabilityBins
from monitor.statistics.reading import read
from monitor.statistics.stage import SliceStatistics
from monitor.statistics.state import StatisticsState
from monitor.v1 import calibration_pb2, frame_pb2
from monitor.v1 import perception_monitor_pb2 as pb
from tests.labelled import (
    assert_message,
    assert_numbers,
    calibration,
    converse,
    drawn,
    exported,
    header,
    labelled_frame,
)
from tests.served import BY_STREAM, Sidecar
from tests.states import within


def refusal(sidecar: Sidecar, *slices: str, **request) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        calibration(sidecar, *slices, **request)
    assert isinstance(caught.value, grpc.Call)
    return caught.value.code(), caught.value.details()


# ---- since epoch


def send_drawn(sidecar, stream, mean, covariance, truth, per_frame=50) -> None:
    """All of it, in frames with inline truth."""
    messages = [header(stream)]
    for start in range(0, len(mean), per_frame):
        sent = frame_pb2.Frame(frame_id=start, stamp_ns=start)
        for i in range(start, min(start + per_frame, len(mean))):
            sent.detections.add(
                id=i,
                class_index=0,
                mean=mean[i],
                covariance=covariance[i].ravel(),
                ground_truth=truth[i],
            )
        messages.append(pb.ProcessRequest(frame=sent))
    assert not any(answer.frame.notices for answer in converse(sidecar, *messages))


def test_calibration_is_what_numpy_makes_of_what_was_sent(start, tmp_path):
    document = tmp_path / "scaling.json"
    scaling = Selection(("x", "y"), VarianceScaling((1.25, 1.5)))
    document.write_text(scaling.to_json(), encoding="utf-8")
    sidecar = start(BY_STREAM + f"[recalibration]\nrecalibrator = '{document}'\n")
    mean, covariance, truth = drawn(5)
    send_drawn(sidecar, "numbers", mean, covariance, truth)
    response = calibration(sidecar, "numbers", bins=1, include_bins=True)
    (only,) = response.slices
    assert only.slice == "numbers"
    raw, recalibrated = only.stages
    assert raw.stage == calibration_pb2.STAGE_RAW
    assert recalibrated.stage == calibration_pb2.STAGE_RECALIBRATED
    tau = np.array(response.tau)
    assert tau.tolist() == [0.5, 0.68, 0.9, 0.95, 0.99]
    assert_numbers(raw, mean, covariance, truth, tau)
    scale = np.outer((1.25, 1.5), (1.25, 1.5))
    assert_numbers(recalibrated, mean, covariance * scale, truth, tau)
    assert response.recalibrator_version == scaling.version
    counts = response.counts
    assert (counts.frames, counts.detections, counts.recalibrated) == (6, 300, 300)
    assert (counts.refused, counts.passed_through) == (0, 0)
    assert (counts.matched, counts.pending, counts.dropped) == (300, 0, 0)


def test_the_number_of_bins_is_that_asked_for(shared):
    send_drawn(shared, "bins", *drawn(6))
    for bins in (1, 7, 20):
        stage = calibration(shared, "bins", bins=bins, include_bins=True).slices[0].stages[0]
        assert len(stage.dimensions[0].bins) == bins
        assert sum(b.n for b in stage.joint.bins) == 300
    plain = calibration(shared, "bins").slices[0].stages[0]
    assert not plain.dimensions[0].bins
    assert not plain.joint.bins


def test_all_slices_come_with_their_total(start):
    sidecar = start()
    assert not calibration(sidecar).slices
    for name in ("a", "b"):
        converse(sidecar, header(name), labelled_frame(1, 1, rows=3))
    counts = {s.slice: s.stages[0].n for s in calibration(sidecar).slices}
    assert counts == {"a": 3, "b": 3, "total": 6}


def test_a_slice_that_is_not_there_is_not_found_and_those_that_are_are_named(shared):
    converse(shared, header("is_there"), labelled_frame(1, 1))
    code, text = refusal(shared, "is_there", "nowhere")
    assert code is grpc.StatusCode.NOT_FOUND
    assert "nowhere" in text
    assert "is_there" in text


# ---- every field is what is read off the statistics


def assert_bins(found: Sequence[calibration_pb2.Bin], read_bins: ReliabilityBins) -> None:
    assert [bin.n for bin in found] == read_bins.n.tolist()
    for name in ("lower", "upper", "variance", "squared_error", "nees"):
        values = [getattr(bin, name) for bin in found]
        assert np.array_equal(values, getattr(read_bins, name), equal_nan=True), name
    assert [list(bin.within) for bin in found] == read_bins.within.tolist()


def assert_reading(stage: calibration_pb2.StageCalibration, measures: Evaluation) -> None:
    assert stage.n == measures.rows
    assert [found.name for found in stage.dimensions] == list(measures.dimensions)
    for found in stage.dimensions:
        expected = measures.dimensions[found.name]
        assert assert_message(found, expected, {"name", "unit", "bins"}) == 15
        assert_bins(found.bins, expected.bins)
    assert assert_message(stage.joint, measures.joint, {"bins"}) == 11
    assert_bins(stage.joint.bins, measures.joint.bins)


def held(state: StatisticsState, level: int | None) -> dict[str, SliceStatistics]:
    """By slice, in a window; slices that have nothing in it are left out."""
    found = {}
    for entry in state.slices:
        parts = within(entry.panes, state.windows.older if level is None else level)
        if parts:
            first, *rest = parts
            for part in rest:
                first = first.merge(part)
            found[entry.name] = first
    return found


def play_windows(sidecar: Sidecar) -> None:
    """A drive of an hour and a half, a frame every four minutes; the second stream stops early."""
    converse(sidecar, header("long"), *(labelled_frame(1, i, stamp_s=240 * i) for i in range(23)))
    converse(sidecar, header("short"), *(labelled_frame(2, i, stamp_s=4000 + i) for i in range(3)))


@pytest.fixture(scope="module")
def driven(tmp_path_factory):
    """A sidecar whose windows hold different parts of what was counted, with a recalibrator."""
    folder = tmp_path_factory.mktemp("driven")
    document = folder / "scaling.json"
    document.write_text(Selection(("x", "y"), VarianceScaling((2.0, 1.5))).to_json(), "utf-8")
    sidecar = Sidecar(folder, BY_STREAM + f"[recalibration]\nrecalibrator = '{document}'\n")
    try:
        play_windows(sidecar)
        yield sidecar
    finally:
        sidecar.end()


@pytest.mark.parametrize("window", ["", "5m", "1h", "24h"])
def test_every_field_is_what_is_read_off_the_statistics_of_the_window(driven, window):
    state = exported(driven).state
    level = ["5m", "1h", "24h"].index(window) if window else None
    expected = held(state, level)
    response = calibration(driven, bins=7, include_bins=True, window=window)
    found = {entry.slice: entry for entry in response.slices}
    total = found.pop("total")
    assert found.keys() == expected.keys()
    for name, statistics in expected.items():
        stages = (statistics.raw, statistics.recalibrated)
        for stage, held_there in zip(found[name].stages, stages, strict=True):
            assert_reading(stage, read(held_there, BinCut(7)))
    assert total.stages[0].n == sum(one.raw.n for one in expected.values())


def test_a_window_holds_what_came_in_it_and_slices_without_any_are_left_out(driven):
    counts = {
        window: {s.slice: s.stages[0].n for s in calibration(driven, window=window).slices}
        for window in ("5m", "1h", "24h", "")
    }
    # Panes of 50 s and of 10 min, six of them whole; the last frame came after 88 minutes.
    assert counts["5m"] == {"long": 40, "total": 40}
    hour = sum(240 * i >= (5280 // 600 - 6) * 600 for i in range(23))
    assert counts["1h"] == {"long": 20 * hour, "short": 60, "total": 20 * hour + 60}
    assert counts["24h"] == counts[""] == {"long": 460, "short": 60, "total": 520}
    code, text = refusal(driven, "short", window="5m")
    assert code is grpc.StatusCode.NOT_FOUND
    assert "long" in text


@pytest.mark.parametrize("window", ["5", "1d", "5M", "epoch", " 1h", "x" * 10_000])
def test_an_unknown_window_is_an_invalid_argument_that_names_those_there_are(driven, window):
    code, text = refusal(driven, window=window)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert text.startswith(f"window: '{window[:20]}' is none of 5m, 1h, 24h;")
    assert len(text) < 200


def test_windows_are_those_of_the_configuration(start):
    sidecar = start(BY_STREAM + 'windows = ["10s", "30s"]\npanes = 2\n')
    converse(sidecar, header("s"), *(labelled_frame(1, i, stamp_s=8 * i) for i in range(9)))
    counts = [calibration(sidecar, "s", window=w).slices[0].stages[0].n for w in ("10s", "30s", "")]
    # At 64 s: panes of 5 s from 50 s on, of 15 s from 30 s on.
    assert counts == [20 * 2, 20 * 5, 20 * 9]
    code, text = refusal(sidecar, window="5m")
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "is none of 10s, 30s;" in text
