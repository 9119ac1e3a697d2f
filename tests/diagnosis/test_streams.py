"""What is said of streams that are silent, too many, or dropped."""

from dataclasses import replace

import pytest

from monitor.diagnosis.finding import Severity
from monitor.diagnosis.observation import Answer, Asked
from monitor.diagnosis.streams import streams
from monitor.status import Status, StreamStatus
from tests.diagnosis.observed import NOW, SECOND, STARTED, VERSION, seen, status, stream, without

QUIET = stream("rear", received_ns=NOW - 200 * SECOND)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (Status(VERSION, STARTED, NOW), "none has come since the start 2 h ago"),
        (status(StreamStatus("front")), "2 h ago; 1 stream is open, and empty"),
        (status(QUIET), "no frames have come for 3 min, of no stream"),
        (status(stream(), QUIET), "a stream is silent while others send: rear for 3 min"),
        (status(stream(), StreamStatus("rear")), "others send: rear since the start"),
    ],
)
def test_silence_is_told_with_how_long_and_of_which_stream(told, words):
    (found,) = streams(seen(told=told))
    assert found.severity is Severity.WRONG
    assert words in found.what


def test_where_all_that_comes_is_refused_nobody_looks_for_a_detector_that_is_down():
    refused = {"calibration_rejected_total{reason=malformed_message}": 40.0}
    (found,) = streams(seen(refused, refused, told=status(StreamStatus("front"))))
    assert found.remedy.startswith("messages come, and are refused as a whole: see refusals.")
    (found,) = streams(seen(refused, told=status(StreamStatus("front"))))
    assert "refused" not in found.remedy


def test_streams_that_nearly_take_all_names_are_a_remark():
    many = [stream(f"s{number}") for number in range(52)]
    (found,) = streams(seen(told=status(*many)))
    assert found.severity is Severity.REMARK
    assert "52 of at most 64 names" in found.what


def test_a_stream_whose_client_read_no_answers_is_told():
    dropped = {"calibration_streams_dropped_total": 1.0}
    (found,) = streams(seen(dropped, dropped))
    assert found.severity is Severity.WRONG
    assert "1 stream ended while doctor looked" in found.what
    (found,) = streams(seen(dropped))
    assert found.severity is Severity.WELL


def test_without_the_status_the_metrics_say_whether_frames_come():
    refused = Asked(Answer.NO_TOKEN, "no token")
    (found,) = streams(without(seen(), told=refused))
    assert found.severity is Severity.WELL
    (found,) = streams(without(seen(added={"calibration_frames_total": 0.0}), told=refused))
    assert found.severity is Severity.WRONG
    assert "no frame was counted in 5.0 s" in found.what


def test_what_began_anew_between_the_looks_has_no_rate():
    whole = seen()
    before = status(*[replace(each, frames=10**6) for each in status().streams], started_ns=0)
    (found,) = streams(replace(whole, first=replace(whole.first, status=before)))
    assert found.what == "2 streams"


def test_rates_are_of_the_time_between_the_looks():
    whole = seen()
    before = [replace(each, frames=each.frames - 50) for each in status().streams]
    first = replace(whole.first, status=status(*before))
    (found,) = streams(replace(whole, first=first))
    assert found.what == "2 streams, 20 frames/s, 0 detections/s"
