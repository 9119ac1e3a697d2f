"""What is said of clocks, and which mistake is known by which stamps."""

from dataclasses import replace

import pytest

from monitor.commands.doctor.rules import Area, Severity
from tests.diagnosis.observed import NOW, SECOND, of, seen, status, stream

clock = of(Area.CLOCK)
HOUR, DAY = 3600.0, 86400.0
GPS = 315_964_800.0


def told(*streams, **changes):
    return list(clock(seen(told=status(*streams), **changes)))


@pytest.mark.parametrize(
    ("lag_s", "words"),
    [
        (2 * HOUR, "stream front are 2 h behind the wall clock (whole half hours look like"),
        (-5.5 * HOUR, "stream front are 5 h 30 min ahead of the wall clock (whole half hours"),
        (3 * DAY + 17, "stream front are 3 days behind the wall clock"),
        (-18.0, "stream front are 18 s ahead of the wall clock (18 s ahead of UTC is GPS time)"),
        (-37.01, "are 37 s ahead of the wall clock (37 s ahead of UTC is TAI, as PTP"),
        (GPS, "are 10.0 years behind the wall clock (they count from 1980, as GPS does)"),
        (-1.5, "stream front are 1.5 s ahead of the wall clock"),
        (11.0, "stream front are 11 s behind the wall clock"),
    ],
)
def test_a_clock_that_is_off_is_told_with_the_mistake_that_looks_so(lag_s, words):
    found, *others = told(stream(lag_s=lag_s), stream("rear"))
    assert found.severity is Severity.WRONG
    assert words in found.what
    assert "date -u" in found.remedy
    assert not [each for each in others if each.severity is not Severity.WELL]


@pytest.mark.parametrize("lag_s", [-0.9, 0.0, 9.9])
def test_a_clock_that_may_be_right_is_well(lag_s):
    (found,) = told(stream(lag_s=lag_s))
    assert found.severity is Severity.WELL


@pytest.mark.parametrize(
    ("units_a_second", "name"), [(1, "seconds"), (10**3, "milliseconds"), (10**6, "microseconds")]
)
def test_stamps_in_another_unit_are_told_with_the_unit(units_a_second, name):
    stamp = NOW * units_a_second // SECOND
    (found,) = told(stream(stamp_ns=stamp))
    assert found.severity is Severity.WRONG
    assert "stream front: stamps are not in nanoseconds" in found.what
    assert f"in {name} they would be of now" in found.what


def test_the_time_since_the_start_of_a_machine_is_a_remark_where_all_streams_agree():
    (found,) = told(stream(stamp_ns=500 * SECOND), stream("rear", stamp_ns=500 * SECOND))
    assert found.severity is Severity.REMARK
    assert "streams front and rear: stamps count from the start of something" in found.what
    (found,) = told(stream(stamp_ns=500 * SECOND), stream("rear", stamp_ns=502 * SECOND))
    assert found.severity is Severity.WRONG
    (found,) = told(stream(stamp_ns=500 * SECOND), stream("rear"))
    assert found.severity is Severity.WRONG
    assert "do not agree with each other" in found.what


@pytest.mark.parametrize(
    ("lags", "words"),
    [
        ((0.01, 0.02, 3.0), "c 3.0 s behind the wall clock, the others 20 ms"),
        ((0.01, 2.0), "b 2.0 s behind the wall clock, the others 10 ms"),
        ((5.0, 5.0, 0.0), "c 0 ms behind the wall clock, the others 5.0 s"),
    ],
)
def test_a_stream_that_differs_from_the_others_is_named(lags, words):
    streams = [stream(name, lag_s=lag) for name, lag in zip("abc", lags, strict=False)]
    (found,) = told(*streams)
    assert found.severity is Severity.WRONG
    assert words in found.what


def test_frames_without_a_stamp_are_told_from_those_whose_stamps_have_ended():
    bare = stream("bare", stamp_ns=None, stamped_received_ns=None)
    ended = stream("ended", stamped_received_ns=NOW - 60 * SECOND, stamp_ns=NOW - 60 * SECOND)
    never, since = told(bare, ended)
    assert "stream bare: frames come without a capture stamp" in never.what
    assert "stream ended: frames have come without a capture stamp for 60 s" in since.what
    assert {never.severity, since.severity} == {Severity.WRONG}


def moved(last, *, since_s=5.0, frames=100, **changes):
    """Two looks: a stream as it is now, and as it was some frames ago."""
    whole = seen(told=status(last))
    came = last.stamped_received_ns - int(since_s * SECOND)
    before = replace(last, frames=last.frames - frames, stamped_received_ns=came, **changes)
    return list(clock(replace(whole, first=replace(whole.first, status=status(before)))))


@pytest.mark.parametrize("stamp_ns", [0, 1, 10**18, NOW, NOW + 40 * DAY * SECOND])
def test_stamps_that_do_not_move_are_told_whatever_they_are(stamp_ns):
    (found,) = moved(stream(stamp_ns=int(stamp_ns)))
    assert found.severity is Severity.WRONG
    assert "stream front: stamps do not move" in found.what
    assert "No event time passes: windows, tracks, trials and drift stand still" in found.why
    assert "the capture time of each frame, in nanoseconds" in found.remedy


def test_stamps_are_awaited_to_move_only_with_frames_and_not_within_a_second():
    (found,) = moved(stream(), frames=0)
    assert found.severity is Severity.WELL
    (found,) = moved(stream(), since_s=1.0)  # stamps in whole seconds
    assert found.severity is Severity.WELL
    (found,) = moved(stream(), stamp_ns=NOW - SECOND)
    assert found.severity is Severity.WELL
    (found,) = moved(stream(stamp_ns=NOW // SECOND))
    assert "in seconds they would be of now" in found.what


def test_a_stamp_of_before_the_start_is_compared_with_none():
    whole = seen(told=status(stream(stamp_ns=0)))
    before = stream(stamp_ns=0, frames=1, stamped_received_ns=NOW - 5 * SECOND)
    first = replace(whole.first, status=status(before, started_ns=1))
    (found,) = clock(replace(whole, first=first))
    assert found.severity is Severity.REMARK


def test_a_stream_that_no_longer_sends_says_nothing_of_clocks():
    assert told(stream(lag_s=2 * HOUR, received_ns=NOW - 60 * SECOND)) == []


@pytest.mark.parametrize(
    ("apart_s", "round_trip_s", "words"),
    [
        (2.0, 0.001, "is 2.0 s ahead of the one here"),
        (-3600.0, 0.001, "is 60 min behind the one here"),
        (2.0, 4.0, None),
        (0.5, 0.001, None),
    ],
)
def test_the_clock_of_the_sidecar_is_compared_as_exactly_as_the_way_allows(
    apart_s, round_trip_s, words
):
    whole = seen()
    last = replace(whole.last, clock_ns=NOW - int(apart_s * SECOND), round_trip_s=round_trip_s)
    (found,) = clock(replace(whole, last=last))
    assert (found.severity is Severity.WRONG) == (words is not None)
    assert (words or "wall clock") in found.what


@pytest.mark.parametrize(
    ("metrics", "added", "severity", "words"),
    [
        ({"calibration_clock_steps_total": 2.0}, {}, Severity.REMARK, "was set 2 times since"),
        (
            {"calibration_clock_steps_total": 2.0},
            {"calibration_clock_steps_total": 1.0},
            Severity.WRONG,
            "was set 2 times since the start, and some while doctor looked",
        ),
        ({"calibration_event_time_jumps_total": 1.0}, {}, Severity.REMARK, "jumped ahead 1 time"),
    ],
)
def test_a_clock_that_was_set_is_told(metrics, added, severity, words):
    (found,) = clock(seen(metrics, added))
    assert found.severity is severity
    assert words in found.what
