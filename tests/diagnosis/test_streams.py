"""What is said of streams that are silent, too many, or dropped."""

from dataclasses import replace

import pytest

from monitor.commands.doctor.diagnosis import diagnose
from monitor.commands.doctor.observation import Answer, Asked
from monitor.commands.doctor.rules import Area, Severity
from monitor.frames.status import Status, StreamStatus
from tests.diagnosis.observed import (
    NOW,
    SECOND,
    STARTED,
    VERSION,
    of,
    same_text,
    seen,
    status,
    stream,
    without,
)

streams = of(Area.STREAMS)
TOKEN = Asked(Answer.NO_TOKEN, "no token")
NO_FRAME = {"calibration_frames_total": 0.0}
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
    for told in (status(StreamStatus("front")), status(QUIET)):
        (found,) = streams(seen(refused, refused | NO_FRAME, told=told))
        assert found.severity is Severity.WRONG
        assert "are refused as a whole: 40 messages while doctor looked" in found.what
        assert "nobody" not in found.what
        assert "findings on refusals" in found.remedy
    (found,) = streams(without(seen(refused, refused | NO_FRAME), told=TOKEN))
    assert "refused as a whole: 40 messages" in found.what


def test_where_nobody_sends_any_more_what_was_refused_before_is_told():
    refused = {"calibration_rejected_total{reason=invalid_header}": 2.0}
    (found,) = streams(seen(refused, NO_FRAME, told=status(StreamStatus("front"))))
    assert "nobody sends frames" in found.what
    assert "; 2 messages came and had to be refused (invalid_header 100 %)" in found.what
    assert "has its client given up?" in found.remedy
    (found,) = streams(seen({}, NO_FRAME, told=status(StreamStatus("front"))))
    assert "refused" not in found.what


def test_refused_detections_of_a_frame_are_no_refused_messages():
    refused = {"calibration_rejected_total{reason=mean_value}": 40.0}
    (found,) = streams(seen(refused, refused, told=status(QUIET)))
    assert "no frames have come for 3 min" in found.what


def test_a_stream_that_is_long_gone_is_a_remark_that_comes_after_the_clock():
    gone = stream("rear", received_ns=NOW - 5400 * SECOND)
    (found,) = streams(seen(told=status(stream(), gone)))
    assert found.severity is Severity.REMARK
    assert "a stream is silent while others send: rear for 1 h 30 min" in found.what
    lately, long = streams(seen(told=status(stream(), gone, replace(QUIET, stream="left"))))
    assert (lately.severity, long.severity) == (Severity.WRONG, Severity.REMARK)
    assert "left" in lately.what
    machine = stream(stamp_ns=500 * SECOND)
    told = [each.area for each in diagnose(seen(told=status(machine, gone)))][:2]
    assert told == [Area.CLOCK, Area.STREAMS]


def test_where_all_names_are_taken_and_headers_are_refused_the_setting_is_named():
    full = status(*(stream(f"s{number}") for number in range(64)))
    refused = {"calibration_rejected_total{reason=no_header}": 50.0}
    (found,) = streams(seen(refused, refused, told=full))
    assert found.severity is Severity.WRONG
    assert "64 of at most 64 names of streams are taken, and 50 messages without" in found.what
    assert "`[server] max_streams` (64 where the file does not say)" in found.remedy
    (found,) = streams(seen(refused, told=full))
    assert found.severity is Severity.REMARK


def test_streams_that_nearly_take_all_names_are_a_remark():
    many = [stream(f"s{number}") for number in range(52)]
    (found,) = streams(seen(told=status(*many)))
    assert found.severity is Severity.REMARK
    assert "52 of at most 64 names" in found.what


def test_a_stream_whose_client_read_no_answers_is_told():
    dropped = {"calibration_streams_dropped_total": 1.0}
    (found,) = streams(seen(dropped, dropped))
    assert found.severity is Severity.WRONG
    assert "1 stream ended because the client read no answers since the start" in found.what
    (found,) = streams(seen(dropped))
    assert found.severity is Severity.WELL


def test_without_the_status_the_metrics_say_whether_frames_come():
    refused = Asked(Answer.NO_TOKEN, "no token")
    (found,) = streams(without(seen(), told=refused))
    assert found.severity is Severity.WELL
    still = without(seen(added=NO_FRAME), told=refused)
    (found,) = streams(still)
    assert found.severity is Severity.WRONG
    assert "no frame was counted while doctor looked" in found.what
    assert list(streams(same_text(still))) == []


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
