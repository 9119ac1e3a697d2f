"""How far capture stamps are from the clock, and what is told of the sidecar as a program."""

from monitor.frames.frame import Header
from monitor.frames.slices import SliceBy, SliceTable, StreamSlices
from monitor.pipeline.streams import Seen, Stream
from monitor.service.exposition import REVISION_VARIABLE, build
from monitor.service.readings import stamp_lag
from tests.piped import CLASSES, XYZ

SECOND = 10**9
# The wall clock, and the one that never moves back, at one moment.
WALL, MONOTONIC = 1_760_000_000 * SECOND, 500 * SECOND


def streams(*seen: Seen) -> list[Stream]:
    found = []
    for number, one in enumerate(seen):
        header = Header(str(number), XYZ, CLASSES)
        slices = StreamSlices(
            SliceTable(frozenset({SliceBy.CLASS}), 24), XYZ, header.stream, header.classes
        )
        found.append(Stream(header, slices, number, seen=one))
    return found


def came(stamp_ns: int | None, monotonic_ns: int) -> Seen:
    seen = Seen()
    seen.frame(3, stamp_ns, monotonic_ns)
    return seen


def test_the_lag_is_that_of_arrival_not_that_of_now():
    # It came 5 s ago, when the wall clock read WALL - 5 s, and was captured 0.25 s before.
    seen = came(WALL - 5 * SECOND - SECOND // 4, MONOTONIC - 5 * SECOND)
    assert stamp_lag(streams(seen), WALL, MONOTONIC) == {"least": 0.25, "most": 0.25}


def test_of_several_streams_the_least_and_the_most_are_told():
    on_time = came(WALL - SECOND // 10, MONOTONIC)
    ahead = came(WALL + 3600 * SECOND, MONOTONIC)
    assert stamp_lag(streams(on_time, ahead), WALL, MONOTONIC) == {"least": -3600.0, "most": 0.1}


def test_streams_without_stamps_and_those_that_are_silent_say_nothing_of_clocks():
    silent = came(0, MONOTONIC - 61 * SECOND)
    assert stamp_lag(streams(silent, came(None, MONOTONIC), Seen()), WALL, MONOTONIC) == {}


def test_a_frame_without_a_stamp_leaves_the_last_stamp_as_it_came():
    seen = came(7, 100)
    seen.frame(2, None, 200)
    assert (seen.frames, seen.detections) == (2, 5)
    assert (seen.stamp_ns, seen.stamped_ns, seen.received_ns) == (7, 100, 200)


def test_labels_of_which_none_matched_are_no_labels():
    seen = Seen()
    seen.labels(0, 100)
    assert (seen.matched, seen.matched_ns) == (0, None)
    seen.labels(3, 200)
    seen.labels(2, 300)
    assert (seen.matched, seen.matched_ns) == (5, 300)


def test_a_build_says_its_revision_only_where_it_was_told(monkeypatch):
    monkeypatch.delenv(REVISION_VARIABLE, raising=False)
    assert build()["revision"] == "unknown"
    monkeypatch.setenv(REVISION_VARIABLE, "0123abc")
    found = build()
    assert found["revision"] == "0123abc"
    assert all(found.values())
