"""What is exported of the tracks: streams that share a slice are read as one."""

from collections import Counter

import numpy as np
import pytest

from monitor.frames.counters import Counters
from monitor.frames.detections import Estimates, Limits, examine
from monitor.frames.frame import Header, TrackStatus
from monitor.frames.slices import RangeBuckets, SliceBy, SliceTable, StreamSlices
from monitor.frames.space import plain_space
from monitor.pipeline.stream_tracker import StreamTracker, TrackReading, read_tracks, tracker_of
from monitor.tracking.kalman import InnovationSums, TrackerSettings
from monitor.tracking.rewind import Order
from tests.laws import assert_same
from tests.received import Sent, frame

XY = plain_space(("x", "y"), "m")
CLASSES = ("car", "truck", "bus")
TENTH = 10**8  # ns


def table(*by: SliceBy, limit=24) -> SliceTable:
    return SliceTable(frozenset(by), limit)


def driven(
    slices: SliceTable, name: str, classes: list[int], frames=10, noise=0.2
) -> tuple[StreamSlices, StreamTracker]:
    """A stream with one thing of each of these classes, 10 m apart, each at every frame."""
    random = np.random.default_rng([len(name), *classes])
    header = Header(name, XY, CLASSES)
    tracker = tracker_of(header, TrackerSettings(), Counters())
    assert tracker is not None
    of_stream = StreamSlices(slices, XY, name, CLASSES)
    for number in range(frames):
        rows = [
            Sent(i, tuple(random.normal((10.0 * i, 0.0), noise).tolist()), (0.04, 0.04), kind)
            for i, kind in enumerate(classes)
        ]
        sent = frame(rows, number, number * TENTH)
        examined = examine(sent.detections, XY, len(CLASSES), Limits())
        batch = examined.batch
        of_stream.of(batch.class_index, batch.mean)
        tracker.track(sent, examined, Estimates(batch.mean, batch.covariance, batch.diagonal))
    return of_stream, tracker


def confirmed(reading: TrackReading) -> dict[str, int]:
    counts = reading.counts[TrackStatus.CONFIRMED - 1].tolist()
    return dict(zip(reading.names, counts, strict=True))


def test_without_streams_there_is_nothing_to_read():
    reading = read_tracks((), [])
    assert (reading.names, reading.counts.shape, reading.orders) == ((), (3, 0), Counter())
    # Slices may be there already, of streams that are not tracked.
    assert read_tracks(("car",), []).names == ()


def test_streams_of_one_class_share_its_slice():
    slices = table(SliceBy.CLASS)
    streams = [driven(slices, "front", [0, 0, 1]), driven(slices, "rear", [0, 1, 1, 2])]
    reading = read_tracks(slices.names, streams)
    assert confirmed(reading) == {"car": 3, "truck": 3, "bus": 1}
    assert reading.counts.shape == (len(TrackStatus), 3)


def test_streams_are_told_apart_where_slices_are():
    slices = table(SliceBy.CLASS, SliceBy.STREAM)
    streams = [driven(slices, "front", [0, 0, 1]), driven(slices, "rear", [0, 1, 1])]
    assert confirmed(read_tracks(slices.names, streams)) == {
        "front/car": 2,
        "front/truck": 1,
        "rear/car": 1,
        "rear/truck": 2,
    }


def test_classes_of_a_stream_that_is_one_slice_are_added():
    slices = table(SliceBy.STREAM)
    streams = [driven(slices, "front", [0, 0, 1, 2]), driven(slices, "rear", [1, 1, 1])]
    reading = read_tracks(slices.names, streams)
    assert confirmed(reading) == {"front": 4, "rear": 3}


def test_classes_beyond_the_limit_are_added_in_the_overflow_slice():
    slices = table(SliceBy.CLASS, limit=1)
    streams = [driven(slices, "front", [0, 1, 2]), driven(slices, "rear", [2, 1])]
    assert confirmed(read_tracks(slices.names, streams)) == {"car": 1, "overflow": 4}


@pytest.mark.parametrize("name", ["nis_ratio", "correlation", "reject_ratio"])
def test_a_shared_slice_weighs_every_update_alike(name):
    slices = table(SliceBy.CLASS)
    # The second sees more, and more noise.
    streams = [driven(slices, "front", [0]), driven(slices, "rear", [0, 0, 0], 30, noise=0.4)]
    sums: InnovationSums = streams[0][1].innovations + streams[1][1].innovations
    both = read_tracks(slices.names, streams)
    assert getattr(both, name) == pytest.approx(getattr(sums, name)[:1], rel=1e-12)
    alone = [read_tracks(slices.names, [stream]) for stream in streams]
    assert alone[0].nis_ratio < both.nis_ratio < alone[1].nis_ratio


def test_what_no_confirmed_track_tells_is_nan():
    slices = table(SliceBy.CLASS)
    stream = driven(slices, "front", [0, 1], frames=2)
    reading = read_tracks(slices.names, [stream])
    assert reading.counts.tolist() == [[1, 1], [0, 0], [0, 0]]
    assert np.isnan([reading.nis_ratio, reading.correlation, reading.reject_ratio]).all()


def test_a_class_that_was_never_seen_is_not_read():
    slices = table(SliceBy.CLASS)
    slices.index(XY, "elsewhere", "bus")
    stream = driven(slices, "front", [1])
    reading = read_tracks(slices.names, [stream])
    assert reading.names == ("truck",)


def test_frames_of_all_streams_are_added_by_how_they_came():
    slices = table(SliceBy.CLASS)
    streams = [driven(slices, "front", [0], 5), driven(slices, "rear", [0], 7)]
    streams[1][1].orders[Order.REWOUND] = 2
    assert read_tracks(slices.names, streams).orders == {Order.IN_ORDER: 12, Order.REWOUND: 2}


RANGES = RangeBuckets((5.0, 15.0), ("x", "y"))


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ((SliceBy.CLASS,), {"car": 3, "truck": 3, "bus": 1}),
        (
            (SliceBy.CLASS, SliceBy.STREAM),
            {"front/car": 2, "front/truck": 1, "rear/car": 1, "rear/truck": 2, "rear/bus": 1},
        ),
        ((SliceBy.STREAM,), {"front": 3, "rear": 4}),
        ((), {"all": 7}),
    ],
)
def test_a_track_moves_through_the_ranges_so_its_slice_is_over_all_of_them(by, expected):
    # Detections lie 10 m apart, in all three buckets.
    slices = SliceTable(frozenset((*by, SliceBy.RANGE)), 24, RANGES)
    streams = [driven(slices, "front", [0, 0, 1]), driven(slices, "rear", [0, 1, 1, 2])]
    assert any("5-15" in name for name in slices.names)
    assert confirmed(read_tracks(slices.whole.names, streams)) == expected


def test_with_and_without_ranges_tracks_read_the_same():
    readings = []
    for by in ((SliceBy.CLASS,), (SliceBy.CLASS, SliceBy.RANGE)):
        slices = SliceTable(frozenset(by), 24, RANGES if SliceBy.RANGE in by else None)
        stream = driven(slices, "front", [0, 1, 1, 2])
        readings.append(read_tracks(slices.whole.names, [stream]))
    assert_same(readings[0], readings[1])
    assert len(readings[0].names) == 3


def test_reading_changes_nothing():
    slices = table(SliceBy.CLASS)
    stream = driven(slices, "front", [0, 1])
    first = read_tracks(slices.names, [stream])
    assert_same(read_tracks(slices.names, [stream]), first)
    assert stream[1].orders == {Order.IN_ORDER: 10}
