"""Ground truth over the wire, inline and late: every label is accounted for."""

from monitor.v1 import (
    frame_pb2,
    perception_monitor_pb2,
)
from tests.foreign_client import (
    assert_clean,
    frame,
    in_frame,
    labels,
    opened,
    padded,
)
from tests.served import (
    Conversation,
    process_bytes,
)


def accounted(response):
    """The counts of a truth answer that are not 0."""
    return {field.name: count for field, count in response.account.ListFields()}


def test_truth_that_comes_late_and_truth_that_comes_along_count_the_same(start):
    sidecar = start()
    late, inline = opened(sidecar, "late"), opened(sidecar, "inline")
    late.ask(in_frame(7, truth=False))
    assert sidecar.calibration().counts.pending == 3
    truth = Conversation(sidecar.monitor.ReportGroundTruth)
    first = truth.ask(labels("late", 7, [0, 1]))
    assert (first.stream, first.frame_id) == ("late", 7)
    assert accounted(first) == {"matched": 2}
    assert accounted(truth.ask(labels("late", 7, [1, 2]))) == {"matched": 1, "duplicate": 1}
    assert inline.ask(in_frame(7)).frame.status == 1
    assert accounted(truth.ask(labels("inline", 7, [0, 1, 2]))) == {"duplicate": 3}
    response = sidecar.calibration(bins=1)
    stages = {s.slice: s.stages[0] for s in response.slices}
    assert stages["late"] == stages["inline"]
    assert stages["late"].dimensions[0].nees_mean == 0.25
    assert stages["late"].dimensions[0].bias == 1.0
    assert response.counts.matched == 6
    assert response.counts.pending == 0
    for stream in (late, inline, truth):
        stream.close()


def test_every_label_is_accounted_for(shared):
    stream = opened(shared, "account")
    sent = frame(1, truth=False)
    sent.detections[2].ClearField("covariance")
    stream.ask(perception_monitor_pb2.ProcessRequest(frame=sent))
    truth = Conversation(shared.monitor.ReportGroundTruth)
    request = labels("account", 1, [0, 0, 2, 99])
    request.truth.detections.add(detection_id=1, ignore=True)
    request.truth.detections.add(detection_id=0, ground_truth=[1.0])
    request.truth.detections.add(ground_truth=[1.0, 1.0])
    answer = truth.ask(request)
    assert accounted(answer) == {
        "matched": 1,
        "duplicate": 1,
        "unusable": 1,
        "orphan": 1,
        "ignored": 1,
        "refused": 2,
    }
    assert answer.notices[0].reason == frame_pb2.REASON_GROUND_TRUTH_INVALID
    for request, field in (
        (labels("account", 2, [0]), "frame_id"),
        (labels("nobody", 1, [0]), "stream"),
    ):
        answer = truth.ask(request)
        assert accounted(answer) == {"orphan": 1}
        assert answer.notices[0].field == field
    truth.close()
    stream.close()


def test_malformed_truth_is_answered_and_the_stream_lives(shared):
    truth = Conversation(process_bytes(shared.channel, "ReportGroundTruth"))
    for data, reason in (
        (b"\xff\xff", frame_pb2.REASON_MALFORMED),
        (padded(5 * 2**20), frame_pb2.REASON_TOO_LARGE),
        (b"", frame_pb2.REASON_GROUND_TRUTH_INVALID),
    ):
        answer = perception_monitor_pb2.ReportGroundTruthResponse.FromString(truth.ask(data))
        assert not accounted(answer)
        assert answer.notices[0].reason == reason
        assert_clean(answer.notices[0].message)
    truth.close()
