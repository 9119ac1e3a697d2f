"""What a sidecar tells of drift, over the wire and to Prometheus."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from monitor.drift.alarms import Alarm, DriftReading, DriftState, SliceStanding
from monitor.drift.charts import (
    CHARTS,
    ONLY_OVER,
    Detector,
    Direction,
    Quantity,
    Scale,
    Severity,
    Stage,
)
from monitor.service.admin import MOST_ACTOR
from monitor.service.metrics import LEAST_EVIDENCE, drift
from monitor.v1 import drift_pb2 as drift_pb
from monitor.v1 import perception_monitor_pb2 as pb
from monitor.wire.values import message_of, value_of
from tests import exported
from tests.administered import Refused
from tests.alarmed import STAGES, STANDINGS, FixedWatch, alarm, service_of
from tests.piped import pipeline_of
from tests.service import handled


@pytest.fixture
def watch():
    return FixedWatch()


@pytest.fixture
def asked(watch):
    service = service_of(pipeline_of(), watch)
    methods: dict[Any, Any] = {
        pb.GetCalibrationRequest: (service.get_calibration, pb.GetCalibrationResponse),
        pb.AcknowledgeDriftRequest: (service.acknowledge_drift, pb.AcknowledgeDriftResponse),
    }

    def answer(request):
        handler, reply = methods[type(request)]
        return reply.FromString(handled.asked(service, handler, request.SerializeToString()))

    return answer


@pytest.mark.parametrize("slices", [(), ("car",), ("total",), ("truck", "truck", "total")])
def test_who_asks_is_told_how_the_slices_stand_even_without_statistics(asked, slices):
    answer = asked(pb.GetCalibrationRequest(slices=slices))
    told = [value_of(SliceStanding, one) for one in answer.drift]
    assert told == [one for one in STANDINGS if one.slice in slices or not slices]
    stages = [one for one in STAGES if one.slice in slices or not slices]
    assert list(answer.drift_stages) == [
        message_of(drift_pb.DriftStageStanding, one) for one in stages
    ]


@pytest.mark.parametrize(
    ("request_of", "words"),
    [
        (pb.GetCalibrationRequest, "slices: no statistics of tram; there are car, total, truck."),
        (pb.AcknowledgeDriftRequest, "slices: nothing is watched of 'tram'; there is a bus."),
    ],
)
def test_a_slice_that_nobody_knows_is_named_beside_those_there_are(asked, request_of, words):
    with pytest.raises(Refused) as refused:
        asked(request_of(slices=["car", "tram"]))
    assert (refused.value.status, refused.value.words) == (grpc.StatusCode.NOT_FOUND, words)


@pytest.mark.parametrize(
    ("slices", "actor", "noted", "ended"),
    [
        (("car", "total", "car"), "anna@van", "anna@van", 1),
        (("truck",), "", "unnamed", 0),
        ((), "an\x1bna\n", "anna", 1),
        ((), "x" * 300, "x" * MOST_ACTOR, 1),
    ],
)
def test_who_acknowledges_is_noted_and_told_which_alarms_are_over(
    asked, watch, slices, actor, noted, ended
):
    answer = asked(pb.AcknowledgeDriftRequest(slices=slices, actor=actor))
    assert [value_of(Alarm, one) for one in answer.acknowledged] == [alarm()] * ended
    assert watch.asked == [(tuple(dict.fromkeys(slices)), noted)]


SLICES_SHOWN = ("car", 'a "quoted" \\ one')
FULL = exported.watched(*SLICES_SHOWN)
STANDING = SliceStanding("car", Severity.PAGE, DriftState.OK, 5.0, 100.0, 1000.0, None)
RAW, FORWARDED = FULL.stages[:2]
Key = tuple[str, tuple[str, ...]]


def samples(reading: DriftReading) -> dict[Key, float]:
    found: dict[Key, float] = {}
    for family in text_string_to_metric_families("".join(drift(reading))):
        for sample in family.samples:
            labels = tuple(sample.labels[name] for name in sorted(sample.labels))
            key = sample.name.removeprefix("calibration_"), labels
            assert key not in found, f"{key} is written twice"
            found[key] = sample.value
    return found


@pytest.mark.parametrize(
    ("peak", "shown"),
    [
        (100.0, 2.0),
        (0.01, -2.0),
        # No evidence is a floor, and what is unknown is not made up.
        (0.0, -9.0),
        (LEAST_EVIDENCE / 10, -9.0),
        (math.inf, math.inf),
        (math.nan, math.nan),
    ],
)
def test_evidence_is_shown_at_its_peak_and_beside_it_what_an_alarm_needs(peak, shown):
    ticket = replace(STANDING, severity=Severity.TICKET, peak=peak, threshold=10.0)
    found = samples(DriftReading(standings=(STANDING, ticket)))
    assert found["drift_log10_evidence", ("ticket", "car")] == pytest.approx(shown, nan_ok=True)
    assert found["drift_log10_threshold", ("page",)] == pytest.approx(3.0)
    assert found["drift_log10_threshold", ("ticket",)] == 1.0


def latched(severity: Severity, estimate: float, slice="car", stage=FORWARDED.stage):
    scale = Scale(estimate, estimate / 2, 2 * estimate)
    stays = alarm(slice, severity=severity, stage=stage, scale=scale)
    return replace(STANDING, slice=slice, severity=severity, state=DriftState.ALARM, alarm=stays)


def scales(reading: DriftReading) -> dict[tuple[str, ...], float]:
    found = samples(reading)
    return {labels: n for (name, labels), n in found.items() if name == "drift_scale_estimate"}


def test_as_long_as_an_alarm_stays_its_scale_is_shown_a_page_before_a_ticket():
    page, ticket = latched(Severity.PAGE, 2.2), latched(Severity.TICKET, 0.4)
    unknown = replace(FORWARDED, scale=Scale(math.nan, math.nan, math.nan))
    for order in ((page, ticket), (ticket, page)):
        for stage in (FORWARDED, unknown):
            found = scales(DriftReading(standings=order, stages=(RAW, stage)))
            assert found == {("car", "raw"): 0.25, ("car", "recalibrated"): 2.2}
    # Also of a slice of which nothing has come yet, and of all slices.
    others = (latched(Severity.PAGE, 2.2, "total"), latched(Severity.TICKET, 0.4, "bus", Stage.RAW))
    assert scales(DriftReading(standings=others)) == {
        ("total", "recalibrated"): 2.2,
        ("bus", "raw"): 0.4,
    }


def test_an_alarm_that_stays_tells_its_size_by_what_is_wrong():
    page, ticket = latched(Severity.PAGE, 2.2), latched(Severity.TICKET, 0.4, stage=Stage.RAW)
    biased = alarm(dimension="x, y", quantity=Quantity.BIAS, size=-0.3, unit="m")
    text = "".join(drift(DriftReading(standings=(replace(page, alarm=biased), ticket, STANDING))))
    told = [line for line in text.splitlines() if line.startswith("calibration_drift_alarm_size{")]
    assert told == [
        'calibration_drift_alarm_size{dimension="x, y",quantity="bias",severity="page",'
        'slice="car",stage="recalibrated",unit="m"} -0.3',
        'calibration_drift_alarm_size{dimension="joint",quantity="scale",severity="ticket",'
        'slice="car",stage="raw",unit=""} 2.2',
    ]


def test_every_kind_of_alarm_is_counted_from_zero_on():
    found = samples(DriftReading())
    counts = {labels: n for (name, labels), n in found.items() if name == "drift_alarms_total"}
    assert set(counts.values()) == {0.0}
    under = sum(chart.direction is Direction.UNDER for chart in CHARTS)
    assert len(counts) == len(CHARTS) * len(Detector) - under * len(ONLY_OVER)
    # No mean that is off makes errors too small.
    assert ("bias", "over", "recalibrated") in counts
    assert ("bias", "under", "recalibrated") not in counts
