"""Windows in event time over long drives, and the counters of what came in time."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from monitor.frames.slices import TOTAL
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.streams import Stream
from monitor.statistics.observations import finished
from monitor.statistics.stage import SliceStatistics, observe
from tests import laws
from tests.piped import (
    CLASSES,
    DOUBLE,
    HEADER,
    SECOND,
    XYZ,
    counted,
    opened,
    pipeline_of,
    reported,
    sent,
    statistics_of,
    truth_of,
)
from tests.received import Label, Sent, frame, labels

MINUTE, HOUR = 60 * SECOND, 3600 * SECOND


@dataclass(frozen=True)
class Told:
    """A labelled detection: when it was seen, and when its label came."""

    row: Sent
    truth: tuple[float, ...]
    number: int
    stamp: int
    told_at: int


def a_long_drive(seed: int, hours: int) -> list[Told]:
    """A frame in some two minutes; labels at once, soon, after hours, or after a day."""
    random = np.random.default_rng(seed)
    told, stamp = [], 0
    for number in range(hours * 24):
        # A pause longer than the shortest window would have to be believed first.
        stamp += int(random.integers(1, 300)) * SECOND
        for id in range(int(random.integers(1, 3))):
            row = sent(id, 10 * number + id, classes=2)
            delay = random.choice([0, 0, 20 * SECOND, 7 * MINUTE, 5 * HOUR, 25 * HOUR, 30 * HOUR])
            told.append(Told(row, truth_of(row, number), number, stamp, stamp + int(delay)))
    return told


def driven(pipeline: Pipeline, told: list[Told], look=lambda: None) -> int:
    """Frames and labels in the order of event time; how far it has come."""
    stream = opened(pipeline)
    arrivals: list[tuple[int, int, Any]] = []
    for number in {one.number for one in told}:
        rows = [one for one in told if one.number == number]
        stamp = rows[0].stamp
        known = [replace(one.row, truth=one.truth if one.told_at == stamp else ()) for one in rows]
        arrivals.append((stamp, 0, frame(known, number, stamp)))
    arrivals += [
        (one.told_at, 1, labels([Label(one.row.id, one.truth)], one.number))
        for one in told
        if one.told_at > one.stamp
    ]
    arrivals.sort(key=lambda arrival: arrival[:2])
    now = 0
    for _, kind, message in arrivals:
        if kind == 0:
            pipeline.process(stream, message)
            now = max(now, message.stamp_ns)
        else:
            assert reported(pipeline, message).account.matched == 1
        look()
    return now


def expected_of(told: list[Told], pipeline: Pipeline) -> SliceStatistics:
    error = np.array([np.subtract(one.truth, one.row.mean) for one in told])
    covariance = np.array([one.row.covariance for one in told]).reshape(-1, 3, 3)
    binning = pipeline.live.binning
    return SliceStatistics(
        observe(XYZ, binning, error, covariance), observe(XYZ, binning, error, 4.0 * covariance)
    )


def windows_of(pipeline: Pipeline) -> list[dict[str, SliceStatistics]]:
    return [
        dict(finished(pipeline.live.in_steps(level)))
        for level in range(pipeline.live.windows.older + 1)
    ]


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("looking", [True, False])
def test_after_a_day_every_window_holds_the_rows_whose_pane_is_in_it(seed, looking):
    pipeline = pipeline_of(DOUBLE)
    told = a_long_drive(seed, 32)
    most = [0]

    def look() -> None:
        if looking:
            statistics_of(pipeline)
            most.extend(map(len, pipeline.live.accumulator.panes.values()))

    now = driven(pipeline, told, look)
    assert now > 29 * HOUR
    assert max(most) <= 3 * (6 + 1) + 1
    found = windows_of(pipeline)
    # A window holds whole panes: six, and the one that is not yet full.
    held: list[int] = []
    for level, length in enumerate((5 * MINUTE, HOUR, 24 * HOUR, None)):
        since = 0 if length is None else (now // (length // 6) - 6) * (length // 6)
        within = [one for one in told if one.stamp >= since]
        held.append(len(within))
        for index, name in enumerate(CLASSES[:2]):
            own = [one for one in within if one.row.class_index == index]
            if own:
                laws.assert_same(found[level][name], expected_of(own, pipeline))
            else:
                assert name not in found[level]
        if within:
            laws.assert_same(found[level][TOTAL], expected_of(within, pipeline))
    assert held[1] < held[2] < held[3] == len(told)
    # Counters hold what was labelled within a minute, and nothing else.
    bins = {entry.name: dict(entry.stages)["raw"] for entry in pipeline.live.export_bins()}
    for index, name in enumerate(CLASSES[:2]):
        in_time = [
            one
            for one in told
            if one.row.class_index == index and _age_when_told(one, told) <= MINUTE
        ]
        assert bins[name].n[0].sum() == len(in_time) > 0


def _age_when_told(one: Told, told: list[Told]) -> int:
    """By the event time of the latest frame that had come."""
    return max(other.stamp for other in told if other.stamp <= one.told_at) - one.stamp


def test_the_order_of_labels_within_a_day_changes_no_bit():
    told = a_long_drive(5, 8)
    one, other = pipeline_of(DOUBLE), pipeline_of(DOUBLE, statistics={"fold_rows": 1})
    at_once = [replace(row, told_at=row.stamp) for row in told]
    now = driven(one, told), driven(other, at_once)
    assert now[0] == now[1]
    for left, right in zip(windows_of(one), windows_of(other), strict=True):
        assert left.keys() == right.keys()
        for name, statistics in left.items():
            laws.assert_same(statistics, right[name])


# ---- what came in time


def counted_live(pipeline: Pipeline) -> int:
    """Rows that are in the counters."""
    statistics_of(pipeline)
    return sum(int(bins.stages[0][1].n[0].sum()) for bins in pipeline.live.export_bins())


def played(pipeline: Pipeline, stream: Stream, first: int, start: int, delay: int) -> None:
    """Ten frames half a minute apart, each labelled when so many more have come."""
    for i in range(10 + delay):
        if i < 10:
            stamp = start + i * 30 * SECOND
            pipeline.process(stream, frame([sent(1, i)], first + i, stamp))
        if i >= delay:
            told = labels([Label(1, truth_of(sent(1, i)))], first + i - delay)
            assert reported(pipeline, told).account.matched == 1


@pytest.mark.parametrize(("delay", "in_time"), [(0, 10), (1, 10), (2, 10), (3, 3), (9, 3)])
def test_labels_within_a_minute_of_the_last_frame_of_their_stream_are_in_the_counters(
    delay, in_time
):
    pipeline = pipeline_of()
    played(pipeline, opened(pipeline), 0, 1000 * SECOND, delay)
    assert counted(pipeline)[TOTAL].raw.n == 10
    # The last three have no frame after them that could make their labels late.
    assert counted_live(pipeline) == in_time


def test_a_recording_that_is_played_twice_is_counted_twice():
    pipeline = pipeline_of()
    stream = opened(pipeline)
    for again in range(3):
        played(pipeline, stream, 100 * again, 0, 1)
    assert counted_live(pipeline) == counted(pipeline)[TOTAL].raw.n == 30


def test_a_stream_whose_clock_is_behind_that_of_others_is_in_time_by_its_own():
    pipeline = pipeline_of()
    ahead = opened(pipeline, replace(HEADER, stream="radar"))
    for number in range(10):
        pipeline.process(ahead, frame([], number, (5000 + number) * SECOND))
    played(pipeline, opened(pipeline), 0, 100 * SECOND, 1)
    assert counted_live(pipeline) == 10
    # The windows go by the time of all.
    assert TOTAL not in windows_of(pipeline)[0]


@pytest.mark.parametrize("stamp", [None, 0, 10**6 * SECOND])
def test_truth_that_comes_along_is_in_time_whatever_the_stamp_of_its_frame(stamp):
    pipeline = pipeline_of()
    stream = opened(pipeline)
    pipeline.process(stream, frame([], 1, 5000 * SECOND))
    pipeline.process(stream, frame([sent(1, truth=True)], 2, stamp))
    assert counted_live(pipeline) == 1


def test_labels_of_a_frame_without_a_stamp_are_in_time():
    pipeline = pipeline_of()
    stream = opened(pipeline)
    pipeline.process(stream, frame([sent(1)], 1, None))
    pipeline.process(stream, frame([], 2, 10**6 * SECOND))
    reported(pipeline, labels([Label(1, truth_of(sent(1)))], 1))
    assert counted_live(pipeline) == 1


# ---- streams that begin anew


@pytest.mark.parametrize(("again", "pairs"), [(HEADER, 1), (replace(HEADER, classes=("car",)), 0)])
def test_a_stream_that_registers_with_another_header_has_other_tracks(again, pairs):
    pipeline = pipeline_of()
    row = replace(sent(1, truth=True), class_index=0, upstream_track=7)
    for number, header in enumerate((HEADER, again)):
        pipeline.process(opened(pipeline, header), frame([row], number, number))
    assert counted(pipeline)["car"].raw.n == 2
    assert counted(pipeline)["car"].raw.pairs == pairs
    # Not even those of the header it had at first.
    pipeline.process(opened(pipeline), frame([row], 9, 9))
    assert counted(pipeline)["car"].raw.pairs == 3 * pairs


def test_labels_of_frames_from_before_a_new_header_are_of_the_tracks_of_then():
    pipeline = pipeline_of()
    row = replace(sent(1), class_index=0, upstream_track=7)
    pipeline.process(opened(pipeline), frame([row, replace(row, id=2)], 1, 1))
    changed = opened(pipeline, replace(HEADER, classes=("car",)))
    pipeline.process(changed, frame([replace(row, truth=truth_of(row))], 2, 2))
    for id in (1, 2):
        reported(pipeline, labels([Label(id, truth_of(row))], 1))
    assert counted(pipeline)["car"].raw.pairs == 1
