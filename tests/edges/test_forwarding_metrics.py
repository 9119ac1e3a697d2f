"""The families of a tracker elsewhere: names, closed labels, sums that agree."""

from prometheus_client.parser import text_string_to_metric_families

from monitor.pipeline.external_tracker import ExternalTracker, Outcome
from monitor.service.metrics import forwarding
from tests.piped import pipeline_of


def samples(tracker: ExternalTracker) -> dict[tuple[str, str], float]:
    text = "".join(forwarding(tracker))
    return {
        (sample.name, "/".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def tracker(up: bool) -> ExternalTracker:
    pipeline = pipeline_of()
    found = ExternalTracker(
        pipeline.config.tracker,
        pipeline.counters,
        pipeline.track_elsewhere,
        pipeline.track_instead,
        up=up,
        unusable=5,
    )
    for value in (0.0002, 0.003, 0.003, 7.0):
        found.seconds.observe(value)
    found.line.sent = 9
    found.line.ended = {outcome: count for count, outcome in enumerate(Outcome, 1)}
    return found


def test_frames_are_counted_by_how_it_ended_with_them_and_those_sent_beside():
    found = samples(tracker(True))
    name = "calibration_tracker_forwarded_total"
    assert {label: value for (n, label), value in found.items() if n == name} == {
        "answered": 1,
        "late": 2,
        "dropped": 3,
        "expired": 4,
        "failed": 5,
    }
    assert found["calibration_tracker_sent_total", ""] == 9
    assert found["calibration_tracker_unusable_answers_total", ""] == 5
    assert found["calibration_tracker_seconds_count", ""] == 4
    assert found["calibration_tracker_seconds_bucket", "0.005"] == 3
    assert found["calibration_tracker_seconds_bucket", "+Inf"] == 4


def test_the_tracker_is_up_or_it_is_not():
    assert samples(tracker(True))["calibration_tracker_up", ""] == 1
    assert samples(tracker(False))["calibration_tracker_up", ""] == 0
