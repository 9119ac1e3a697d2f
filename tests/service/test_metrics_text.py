"""The text of /metrics: its counters add up. All families are in golden/metrics.txt."""

from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.vehicles import fleets
from monitor.config import TrackerKind
from monitor.frames.frame import Header, ReceivedFrame, ReceivedTruth, Refusal, UncertainBy
from monitor.frames.space import Dimension, DimensionKind, Space, plain_space
from monitor.frames.words import Mode
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.recalibrators import OUTPUT_NUMBER
from monitor.pipeline.shown import ShownState
from monitor.pipeline.streams import Stream
from monitor.promotion.records import Factor, TrialStanding, TrialState
from monitor.recalibration.recalibrator import Output
from monitor.recalibration.scaling import VarianceScaling
from monitor.recalibration.selection import Selection
from monitor.service import exposition
from monitor.service.exposition import HELP, build
from monitor.service.log import LogCounts
from monitor.service.metrics import fleet, render
from monitor.statistics.bins import Binning, ExportEdges
from monitor.statistics.class_evaluation import ClassEvaluation
from monitor.statistics.exact_engine import BinCut
from monitor.statistics.observations import finished
from monitor.statistics.reading import ClassReading, ReadingCache, WindowReading
from monitor.statistics.state import StatisticsState
from monitor.statistics.vehicles import compare
from monitor.statistics.windows import Windows
from monitor.v1 import frame_pb2
from monitor.wire.client_messages import OutgoingFrame, encode_frame, encode_truth
from monitor.wire.requests import (
    WireLimits,
    decode_process_request,
    decode_truth_request,
    detection_tail,
)
from tests import exported
from tests.administered import EVIDENCE
from tests.deploy.scraping import promtool
from tests.piped import SECOND, opened, pipeline_of, statistics_of

QUARTERS: dict[str, Any] = {each.name: 0.25 for each in fields(ClassEvaluation)}
OF_CLASSES = ClassEvaluation(**QUARTERS | {"n": 40})
LIMITS = WireLimits(2**20, 100)
TAIL = detection_tail()
BOX = Space(
    (Dimension("x", "m"), Dimension("y", "m"), Dimension("yaw", "rad", DimensionKind.ANGLE))
)
PIXEL = plain_space(("u", "v"), "px")
WINDOWS = ("5m", "1h", "24h")
SCALING = Selection(BOX.names, VarianceScaling((1.5, 1.5, 1.5)))
VERSION = SCALING.version
# Names that must be escaped in the text.
CLASSES = ("car", 'a "quoted" one', "back\\slash", "Straßenbahn 🚋", "100 %s")
FRAME_IDS = [10**15 + 7 * i for i in range(8)]
FIRST_ID = 2 * 10**18


LABELS = st.text(max_size=8)


@given(
    st.sampled_from(["ence{slice,stage,dimension}", "log_lines_total{level}", "streams"]),
    st.lists(st.tuples(LABELS, LABELS, LABELS, st.floats() | st.integers(0, 2**70)), max_size=5),
)
def test_a_family_is_written_as_prometheus_client_writes_it(key, drawn):
    name, _, labels = key.partition("{")
    names = tuple(filter(None, labels.rstrip("}").split(",")))
    rows = [(*values[: len(names)], number) for *values, number in drawn]
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    wanted = kind(f"calibration_{name}", HELP[key], labels=names)
    for *values, number in rows:
        wanted.add_metric(values, number)
    registry: Any = SimpleNamespace(collect=lambda: [wanted])
    assert exposition.family(name, rows) == generate_latest(registry).decode()


def sent(pipeline: Pipeline, stream: Stream, data: bytes) -> None:
    message = decode_process_request(data, LIMITS, TAIL)
    if isinstance(message, Refusal):
        pipeline.counters.frames_refused[message.reason] += 1
        return
    assert isinstance(message, ReceivedFrame)
    pipeline.process(stream, message)
    pipeline.counters.frame_seconds.observe(0.0003)


def busy_pipeline(mode: Mode = Mode.APPLY, max_slices: int = 24) -> Pipeline:
    """Two tracked streams, a recalibrator that fits one of them, truth of every kind, refusals."""
    random = np.random.default_rng(3)
    pipeline = pipeline_of(
        recalibration={"mode": mode},
        statistics={"max_slices": max_slices},
        tracker={"kind": TrackerKind.EMBEDDED},
    )
    pipeline.activate(pipeline.recalibrators.learn(SCALING.to_json()).version)
    for name, space in (("lidar", BOX), ("camera", PIXEL)):
        stream = opened(pipeline, Header(name, space, CLASSES))
        for frame_id in FRAME_IDS:
            n, k = 20, space.k
            mean = random.normal(size=(n, k))
            variance = np.full((n, k), 0.25)
            variance[0] = 0.0  # missing
            variance[1] = -1.0  # refused
            truth = mean + random.normal(size=(n, k))
            truth[::2] = np.nan  # sent, but unusable
            ids = np.arange(n, dtype=np.uint64) + np.uint64(FIRST_ID)
            classes = np.arange(n) % len(CLASSES)
            classes[2] = 99
            data = encode_frame(
                OutgoingFrame(frame_id, frame_id, ids, classes, mean, variance, truth=truth)
            )
            sent(pipeline, stream, data)
            # Twice the same labels, one of them of a detection that never was.
            labelled = np.append(ids[::2], np.uint64(5))
            for _ in range(2):
                labels = encode_truth(
                    name, frame_id, labelled, np.zeros((labelled.size, k)), complete=True
                )
                received = decode_truth_request(labels, LIMITS)
                assert isinstance(received, ReceivedTruth)
                pipeline.ledger.report(received)
        sent(pipeline, stream, b"\xff")
    assert pipeline.counters.internal_errors == 0
    return pipeline


def text_of(pipeline: Pipeline) -> str:
    """All that is exported; windows are of no length, class probabilities and trials made up."""
    readings = finished(ReadingCache(BinCut(5)).read(statistics_of(pipeline)))
    single = [reading for reading in readings if not reading.name.startswith("total")]
    found = exported.snapshot(
        tuple(pipeline.live.export_bins()),
        ExportEdges(pipeline.config.metrics.export_edges, pipeline.live.binning),
        pipeline,
        readings=readings,
        windows=tuple(WindowReading(window, each) for window in WINDOWS for each in readings),
        classes=tuple(ClassReading(reading.name, OF_CLASSES, OF_CLASSES) for reading in single),
        predicted=tuple(exported.certain(reading.name) for reading in readings),
        promotions=exported.LaidDown(
            pipeline,
            standing=tuple(
                TrialStanding(reading.name, "v", state, EVIDENCE, ())
                for reading in single
                for state in (TrialState.RUNNING, TrialState.GUARD)
            ),
        ),
        factors={
            reading.name: tuple(Factor(name, 1, 1, 1) for name in reading.space.names)
            for reading in single
        },
        drift=finished(pipeline.drift.reading()),
        build=build(),
        lag={"least": 0.1, "most": 0.2},
        logs=LogCounts(lines={"info": 0}),
    )
    return finished(render(found)).decode()


def samples_of(text):
    families = list(text_string_to_metric_families(text))
    return [(s.name, s.labels, s.value) for family in families for s in family.samples]


@pytest.fixture(scope="module")
def busy():
    return busy_pipeline()


@pytest.fixture(scope="module")
def samples(busy):
    return samples_of(text_of(busy))


def values(samples, name, **labels):
    wanted = labels.items()
    return [v for n, has, v in samples if n == f"calibration_{name}" and wanted <= has.items()]


def value(samples, name, **labels):
    (only,) = values(samples, name, **labels)
    return only


# Families of a tracker elsewhere, which this one lacks.
ELSEWHERE = {"up", "sent", "forwarded", "unusable_answers", "seconds"}
# Of a stored state that is shown, in place of what comes.
SHOWN = {f"fleet_{name}" for name in ("vehicles", "uploads")}
SHOWN |= {f"fleet_vehicles_{name}" for name in ("compared", "different")}
# Of uploads, which this one does not make.
UPLOADS = {"uploads", *(f"upload_{name}" for name in ("pending_bytes", "age_seconds"))}
UPLOADS |= {"upload_interval_seconds"}


@pytest.mark.parametrize("mode", list(Mode))
def test_there_is_a_family_for_every_help_text_in_every_mode_and_a_series_in_each(mode):
    families = list(text_string_to_metric_families(text_of(busy_pipeline(mode))))
    names = [family.name for family in families]
    known = {name.partition("{")[0].removesuffix("_total") for name in HELP}
    expected = known - {f"tracker_{name}" for name in ELSEWHERE} - SHOWN - UPLOADS
    assert sorted(names) == sorted(f"calibration_{name}" for name in expected)
    for family in families:
        assert family.documentation.endswith(".")
        of = {frozenset(sample.labels.keys() - {"le"}) for sample in family.samples}
        assert len(of) == (family.name != "calibration_drift_alarm_size")  # no alarm stays


def test_vehicles_of_a_fleet_are_counted_and_not_named():
    rows = dict(fleets(seed=4, vehicles=60, spread=0.05))["variance ÷ 2.5"]
    state = StatisticsState(Binning(), Windows((300 * SECOND,), 6), vehicles=rows)
    text = "".join(fleet(ShownState(Path("fleet.state"), state, compare(rows))))
    samples = samples_of(text)
    car = {"slice": "Car", "stage": "raw"}
    assert value(samples, "fleet_vehicles_compared", **car) == 60
    assert value(samples, "fleet_vehicles_different", **car, quantity="scale") == 1
    assert value(samples, "fleet_vehicles_different", **car, quantity="bias") == 0
    assert "car" not in text


def test_a_sidecar_that_has_seen_nothing_exports_every_counter_at_zero():
    pipeline = pipeline_of()
    opened(pipeline, Header("lidar", BOX, CLASSES))
    samples = samples_of(text_of(pipeline))
    counters = {name: v for name, _, v in samples if name.endswith("_total")}
    assert set(counters.values()) == {0.0}
    assert counters.keys() >= {"calibration_frames_total", "calibration_rejected_total"}


def test_no_id_stamp_or_stream_is_in_the_text_and_the_version_is_there_once(busy):
    text = text_of(busy)
    for number in (*FRAME_IDS, FIRST_ID):
        assert str(number) not in text
    assert "lidar" not in text
    (line,) = [line for line in text.splitlines() if VERSION in line]
    assert line.startswith("calibration_recalibrator_info{")


def test_slices_beyond_the_limit_share_the_overflow_slice_and_no_series_is_written_twice():
    samples = samples_of(text_of(busy_pipeline(max_slices=2)))
    keys = [(name, tuple(sorted(labels.items()))) for name, labels, _ in samples]
    assert len(keys) == len(set(keys))
    slices = {labels["slice"] for _, labels, _ in samples if "slice" in labels}
    assert len([s for s in slices if "overflow" not in s and "total" not in s]) == 2
    rows = [values(samples, "matched_detections", slice=s) for s in slices if "overflow" in s]
    assert value(samples, "overflow_detections_total") == sum(map(sum, rows)) > 0


def test_detections_and_truth_add_up_over_outcomes_reasons_and_slices(samples):
    per_stream = len(FRAME_IDS)
    frames = 2 * per_stream
    # In each frame: one without covariance, one not positive definite, one of no known class;
    # the camera's other 17 do not fit the recalibrator.
    # Inline truth of the odd ones: 10, less the one that was refused. Late truth of the even
    # ones: 10, less the one of no class; then the same again.
    # Unusable are the inline truth of the refused one and, twice, the late truth of one.
    for name, labels, expected in (
        ("frames_total", {}, frames),
        ("detections_total", {"outcome": "recalibrated"}, 17 * per_stream),
        ("detections_total", {"outcome": "refused"}, 2 * frames),
        ("detections_total", {"outcome": "passed_through"}, 19 * per_stream),
        ("passed_through_total", {"reason": "recalibrator_mismatch"}, 17 * per_stream),
        ("passed_through_total", {"reason": "missing_covariance"}, frames),
        ("rejected_total", {"reason": "unknown_class"}, frames),
        ("rejected_total", {"reason": "covariance_not_positive_definite"}, frames),
        ("rejected_total", {"reason": "malformed"}, 2),
        ("rejected_total", {"reason": "ground_truth_invalid"}, frames * 10),
        ("ground_truth_total", {"outcome": "matched"}, frames * (9 + 9)),
        ("ground_truth_total", {"outcome": "duplicate"}, frames * 9),
        ("ground_truth_total", {"outcome": "unusable"}, frames * (1 + 2 * 1)),
        ("ground_truth_total", {"outcome": "orphan"}, frames * 2),
        ("match_ratio", {}, 1.0),
        ("pending_detections", {}, 0),
        ("tracker_frames_total", {"order": "in_order"}, frames),
    ):
        assert value(samples, name, **labels) == expected, (name, labels)
    sent, assumed = ("total", "total (u,v)"), ("total, no covariance", "total, no covariance (u,v)")
    totals = [value(samples, "matched_detections", slice=name) for name in sent + assumed]
    assert totals == [per_stream * (9 + 8)] * 2 + [per_stream] * 2
    assert sum(values(samples, "matched_detections")) == 2 * sum(totals)


def test_one_slice_has_no_more_series_than_the_contract_allows():
    """With K = 4, both stages, 10 bins, 5 τ, three windows, tracks, one on trial, a guard, and
    drift; 8 of them are of all detections, labelled or not. Class probabilities have slices of
    their own: their measures are counted apart.
    """
    pipeline = pipeline_of(tracker={"kind": TrackerKind.EMBEDDED})
    space = Space((*BOX.dimensions[:2], Dimension("z", "m"), *BOX.dimensions[2:]))
    mean = np.zeros((1, 4))
    one = OutgoingFrame(
        1, 1, np.ones(1, np.uint64), np.zeros(1, np.int64), mean, mean + 1, truth=mean
    )
    sent(pipeline, opened(pipeline, Header("lidar", space, CLASSES)), encode_frame(one))
    found = [
        (name.removeprefix("calibration_"), labels)
        for name, labels, _ in samples_of(text_of(pipeline))
        if labels.get("slice") == CLASSES[0]
    ]
    of_classes = [name for name, _ in found if name.startswith(("class_", "classified_"))]
    assert sum("bin" in labels for _, labels in found) == 10 * (4 * 3 + 1 + 1 + 5) * 2
    assert sum(name.startswith("drift_") for name, _ in found) == 8
    assert (len(found) - len(of_classes), len(of_classes)) == (504, 23)


@pytest.mark.components
@pytest.mark.parametrize("make", [pipeline_of, busy_pipeline])
def test_promtool_finds_nothing_to_complain_about(make):
    assert promtool("check", "metrics", given=text_of(make())) == ""


def test_the_numbers_of_outputs_and_of_rejections_are_those_of_the_wire():
    assert OUTPUT_NUMBER.keys() == set(Output)
    for output, number in OUTPUT_NUMBER.items():
        assert frame_pb2.Output.Value(f"OUTPUT_{output.name}") == number
    named = {by.name: by.value for by in UncertainBy} | {"UNSPECIFIED": UncertainBy.NEITHER}
    del named["NEITHER"]
    assert dict(frame_pb2.RejectedBy.items()) == {f"REJECTED_BY_{by}": n for by, n in named.items()}
