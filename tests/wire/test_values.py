"""Values over the wire and back: nothing is lost, and every word has its number."""

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monitor.drift.alarms import (
    Alarm,
    AlarmChange,
    AlarmReason,
    Counted,
    DriftState,
    SliceStanding,
    StageStanding,
)
from monitor.drift.charts import Detector, Direction, Origin, Quantity, Scale, Severity, Stage
from monitor.frames.status import Status, StreamStatus, TrackerStatus
from monitor.promotion.decisions import KnownRecalibrator
from monitor.promotion.records import (
    Evidence,
    Factor,
    Happened,
    Record,
    SliceFitted,
    TrialStanding,
    TrialState,
)
from monitor.statistics.observations import finished
from monitor.v1 import calibration_pb2, drift_pb2, recalibration_record_pb2, status_pb2
from monitor.v1 import recalibrator_admin_pb2 as admin_pb
from monitor.wire.messages import listing, summary
from monitor.wire.values import Kind, Listing, Summary, UnknownWord, message_of, value_of
from tests.administered import record
from tests.alarmed import alarm
from tests.piped import BY_SLICE
from tests.piped_classes import WARM

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
TEXTS = st.lists(TEXT, max_size=3).map(tuple)
UINT32, COUNT = st.integers(0, 2**32 - 1), st.integers(0, 2**63)
TIME = st.integers(-(2**63), 2**63 - 1)
NUMBER = st.floats(allow_nan=False)  # NaN is no equal of itself
EVIDENCES = st.builds(Evidence, COUNT, NUMBER, NUMBER, NUMBER, NUMBER)
FACTORS = st.lists(st.builds(Factor, TEXT, NUMBER, NUMBER, NUMBER), max_size=3).map(tuple)
RECORDS = st.builds(
    Record,
    *(st.integers(1, 2**63), st.integers(0, 4 * 10**18), st.sampled_from(Happened)),
    *(TEXT, TEXT, TEXT, TEXT, TEXT, TEXT),
    *(st.none() | TIME, st.none() | EVIDENCES, FACTORS),
)
TRIALS = st.builds(TrialStanding, TEXT, TEXT, st.sampled_from(TrialState), EVIDENCES, FACTORS)
SCALES = st.builds(Scale, NUMBER, NUMBER, NUMBER)
ALARMS = st.builds(
    Alarm,
    *(TEXT, st.sampled_from(Severity), st.sampled_from(Stage), st.sampled_from(Detector)),
    *(st.sampled_from(Direction), TEXT, st.sampled_from(Quantity), NUMBER, TEXT, NUMBER, NUMBER),
    *(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), UINT32, UINT32, UINT32),
    *(SCALES, UINT32, NUMBER),
)
STREAMS = st.builds(
    StreamStatus,
    *(TEXT, COUNT, COUNT, st.none() | st.just(0) | TIME, st.none() | TIME, st.none() | TIME),
    *(COUNT, st.none() | TIME),
)
TRACKERS = st.builds(TrackerStatus, address=TEXT, up=st.booleans(), trouble=TEXT)
KINDS = {
    recalibration_record_pb2.RecalibrationRecord: RECORDS,
    admin_pb.SliceFit: st.builds(SliceFitted, TEXT, TEXT, TEXT, COUNT, COUNT, FACTORS),
    drift_pb2.DriftAlarm: ALARMS,
    drift_pb2.DriftEvent: st.builds(AlarmChange, st.sampled_from(AlarmReason), ALARMS, TEXTS, TEXT),
    drift_pb2.DriftStanding: st.builds(
        SliceStanding,
        *(TEXT, st.sampled_from(Severity), st.sampled_from(DriftState)),
        *(NUMBER, NUMBER, NUMBER, st.none() | ALARMS),
    ),
    drift_pb2.DriftStageStanding: st.builds(
        StageStanding,
        *(TEXT, st.sampled_from(Stage), SCALES, NUMBER, st.sampled_from(Origin)),
        *(UINT32, UINT32, st.sampled_from(Counted)),
    ),
    status_pb2.GetStatusResponse: st.builds(
        Status,
        *(TEXT, TIME, TIME, st.lists(STREAMS, max_size=3).map(tuple), st.none() | TRACKERS),
        *(TEXT, TEXTS, TEXT),
    ),
}


def received(message):
    return type(message).FromString(message.SerializeToString())


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_a_value_comes_back_as_it_was(kind, data):
    one = data.draw(KINDS[kind])
    assert value_of(type(one), received(message_of(kind, one))) == one


@given(st.lists(TRIALS, max_size=4), st.lists(RECORDS, max_size=4), st.booleans())
@example([], [], True)
def test_a_listing_comes_back_as_it_was(trials, records, pinned):
    message = finished(listing((), trials, records, "automatic", pinned=pinned))
    found = value_of(Listing, received(message))
    assert (found.trials, found.records) == (tuple(trials), tuple(records))
    assert (found.pinned, found.promotion, found.recalibrators) == (pinned, "automatic", ())


def test_a_summary_tells_the_kind_and_what_it_was_fitted_on():
    estimates = value_of(Summary, received(summary(KnownRecalibrator(BY_SLICE, promoted=True))))
    assert (estimates.version, estimates.kind) == (BY_SLICE.version, Kind.ESTIMATES)
    assert (estimates.dimensions, estimates.slices) == (("x", "y", "z"), ("truck",))
    assert estimates.in_force
    classes = value_of(Summary, received(summary(KnownRecalibrator(WARM, promoted=False))))
    assert classes.kind is Kind.CLASS_PROBABILITIES
    assert classes.class_names == WARM.classes
    assert not classes.in_force


@pytest.mark.parametrize(
    ("words", "numbers"),
    [
        (Severity, drift_pb2.DriftSeverity),
        (Stage, calibration_pb2.Stage),
        (Detector, drift_pb2.DriftDetector),
        (Direction, drift_pb2.DriftDirection),
        (Quantity, drift_pb2.DriftQuantity),
        (AlarmReason, drift_pb2.DriftChange),
        (DriftState, drift_pb2.DriftState),
        (Origin, drift_pb2.DriftOrigin),
        (Counted, drift_pb2.DriftUnit),
        (Happened, recalibration_record_pb2.Happened),
        (TrialState, admin_pb.TrialState),
        (Kind, admin_pb.RecalibratorKind),
    ],
)
def test_every_word_has_a_number_on_the_wire_and_every_number_a_word(words, numbers):
    unspecified, *names = numbers.keys()
    assert numbers.Value(unspecified) == 0
    assert len(names) == len(words)
    assert all(any(name.endswith(f"_{word.name}") for name in names) for word in words)


def test_a_word_of_a_newer_contract_is_refused_by_field_number_and_remedy():
    kind = recalibration_record_pb2.RecalibrationRecord
    newer = message_of(kind, record(Happened.BEGAN)).SerializeToString() + b"\x18\x63"
    with pytest.raises(UnknownWord, match=r"'what' 99, which is unknown here: use the program"):
        value_of(Record, kind.FromString(newer))
    with pytest.raises(UnknownWord, match="'kind' 0"):
        value_of(Summary, admin_pb.RecalibratorSummary())


def test_an_alarm_of_an_older_sidecar_is_of_the_scale_of_all_dimensions():
    message = message_of(drift_pb2.DriftAlarm, alarm())
    for name in ("dimension", "quantity", "size", "unit"):
        message.ClearField(name)
    assert value_of(Alarm, received(message)) == replace(alarm(), size=0.0)
