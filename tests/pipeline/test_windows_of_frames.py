"""What frames and labels leave in slices, windows and counters, of Gaussians and of classes."""

from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.frames.frame import Header
from monitor.frames.slices import OVERFLOW, TOTAL, SliceBy
from monitor.frames.space import plain_space
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.streams import Stream
from monitor.statistics.observations import finished
from monitor.statistics.stage import SliceStatistics, observe
from tests import laws, piped_classes
from tests.calibration.matched_frames import fold_some, unfinished
from tests.piped import (
    CLASSES,
    DOUBLE,
    HEADER,
    SECOND,
    XYZ,
    account_of,
    counted,
    opened,
    pipeline_of,
    reported,
    sent,
    statistics_of,
    truth_of,
)
from tests.piped_classes import observed, total_of
from tests.received import Label, Sent, frame, labels

MINUTE, HOUR = 60 * SECOND, 3600 * SECOND
CAMERA = Header("camera", plain_space(("u", "v"), "px"), ("car",))


# ---- slices and totals


@given(
    st.lists(
        st.tuples(st.sampled_from(["lidar", "radar"]), st.integers(0, 99), st.integers(0, 8)),
        max_size=6,
    ),
    st.integers(1, 8),
    st.sets(st.sampled_from(list(SliceBy)), min_size=1),
)
def test_the_total_is_the_sum_of_the_slices_overflow_included(frames, limit, by):
    pipeline = pipeline_of(DOUBLE, statistics={"max_slices": limit, "slice_by": sorted(by)})
    for number, (name, seed, size) in enumerate(frames):
        stream = opened(pipeline, replace(HEADER, stream=name))
        rows = [sent(i, 100 * seed + i, truth=True) for i in range(size)]
        pipeline.process(stream, frame(rows, number))
    found, n = counted(pipeline), sum(size for *_, size in frames)
    total = found.pop(TOTAL, None)
    if not n:
        assert total is None
        return
    assert total is not None
    assert total.raw.n == total.recalibrated.n == n
    laws.assert_same(reduce(SliceStatistics.merge, found.values()), total)
    assert len([name for name in found if name != OVERFLOW]) <= limit


def test_every_space_has_a_total_that_is_summed_again_only_if_its_slices_changed():
    pipeline = pipeline_of(DOUBLE)
    lidar, camera = opened(pipeline), opened(pipeline, CAMERA)
    assert statistics_of(pipeline) == ()
    both = [replace(sent(i, truth=True), class_index=i) for i in range(2)]
    pipeline.process(lidar, frame(both, 1))
    pipeline.process(camera, frame([sent(1, truth=True, k=2, classes=1)], 1))
    first, second, other = counted(pipeline), counted(pipeline), f"{TOTAL} (u,v)"
    assert list(first) == list(second) == ["car", "truck", "car (u,v)", TOTAL, other]
    assert all(second[name] is statistics for name, statistics in first.items())
    pipeline.process(lidar, frame(both[:1], 2))
    third = counted(pipeline)
    assert third[other] is first[other]
    assert third["truck"] is first["truck"]
    laws.assert_same(third[TOTAL], third["car"].merge(third["truck"]))
    pipeline.process(lidar, frame([replace(both[0], class_index=3)], 3))
    assert counted(pipeline)[TOTAL].raw.n == 4
    # Spaces that differ in units alone have names of their own.
    for unit in ("ft", "px"):
        header = Header(unit, plain_space(("x", "y", "z"), unit), ("car",))
        pipeline.process(opened(pipeline, header), frame([sent(1, truth=True, classes=1)]))
    names = [name for name, _ in statistics_of(pipeline)]
    assert len(names) == len(set(names)) == 10


def test_class_lists_have_slices_of_their_own_and_so_have_streams_if_asked_for():
    pipeline, others = pipeline_of(), ("car", "bus", "truck")
    lists = {"a": piped_classes.CLASSES, "b": piped_classes.CLASSES, "c": others, "d": ("x", "y")}
    rows = {name: [piped_classes.sent(1, 1, classes=len(names))] for name, names in lists.items()}
    for name, names in lists.items():
        header = replace(piped_classes.HEADER, stream=name, classes=names)
        pipeline.process(opened(pipeline, header), frame(rows[name]))
    found = {
        name: (names, held) for name, names, held in finished(pipeline.live.classes_in_steps())
    }
    assert {name: (names, held.n) for name, (names, held) in found.items()} == {
        TOTAL: (piped_classes.CLASSES, 2),
        "total (2)": (others, 1),
        "total (3)": (("x", "y"), 1),
    }
    laws.assert_same(found[TOTAL][1], observed(rows["a"] + rows["b"], [1, 1]))
    pipeline = pipeline_of(statistics={"slice_by": ["class", "stream"], "max_slices": 2})
    for name in "abcd":
        stream = opened(pipeline, replace(piped_classes.HEADER, stream=name))
        pipeline.process(stream, frame([piped_classes.sent(i, i) for i in range(2)]))
    held = {name: one.n for name, one in piped_classes.counted(pipeline).items()}
    assert held == {"a": 2, "b": 2, OVERFLOW: 4}
    assert pipeline.counters.overflow_classified == 4


def test_rows_without_room_for_their_slice_are_counted():
    pipeline = pipeline_of(statistics={"max_slices": 1})
    rows = [replace(sent(i, truth=True), class_index=i) for i in range(4)]
    pipeline.process(opened(pipeline), frame(rows))
    assert pipeline.counters.overflow_detections == 3
    # A list of classes without room is left out.
    pipeline = pipeline_of(statistics={"max_slices": 1})
    for number, names in enumerate((piped_classes.CLASSES, ("x", "y"), ("y", "x"))):
        stream = opened(pipeline, replace(piped_classes.HEADER, classes=names))
        pipeline.process(stream, frame([piped_classes.sent(1, 1, classes=len(names))], number))
    assert {name: one.n for name, one in piped_classes.counted(pipeline).items()} == {TOTAL: 1}
    assert pipeline.counters.overflow_classified == 2
    assert account_of(pipeline.counters.truth) == {"matched": 3}
    assert pipeline.counters.internal_errors == 0


# ---- folding between frames


def test_a_reader_sees_slices_of_one_moment_and_ends_however_fast_frames_arrive():
    pipeline = pipeline_of(DOUBLE, statistics={"fold_rows": 10})
    stream = opened(pipeline)
    rows = [replace(sent(i, truth=True), class_index=i) for i in range(4)]
    pipeline.process(stream, frame(rows, 0))
    steps, number = pipeline.live.in_steps(), 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found = dict(end.value)
            break
        number += 1
        assert number < 100
        pipeline.process(stream, frame(rows, number))
        fold_some(pipeline.live.accumulator)
    assert number > 1
    assert len({found[name].raw.n for name in CLASSES}) == 1
    assert found[TOTAL].raw.n == sum(found[name].raw.n for name in CLASSES) >= 4
    assert counted(pipeline)[TOTAL].raw.n == 4 * (number + 1)


def test_both_kinds_of_statistics_are_folded_between_frames_in_turns():
    pipeline = pipeline_of(statistics={"fold_rows": 2})
    good = piped_classes.GOOD_TRUTH
    rows = [piped_classes.sent(i, i, truth=good) for i in range(2)]
    pipeline.process(opened(pipeline, piped_classes.HEADER), frame(rows))
    pipeline.remember_answered()
    assert pipeline.live.accumulator.waiting == pipeline.live.classes.waiting == 2
    assert pipeline.live.behind
    for _ in range(50):
        pipeline.live.fold_some()
    assert not pipeline.live.behind
    assert not unfinished(pipeline.live.accumulator)
    assert not unfinished(pipeline.live.classes)
    assert pipeline.live.classes.panes[0]


# ---- windows of Gaussians over long drives


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
    now = 0
    for _, kind, message in sorted(arrivals, key=lambda arrival: arrival[:2]):
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
    levels = range(pipeline.live.windows.older + 1)
    return [dict(finished(pipeline.live.in_steps(level))) for level in levels]


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
    # Counters hold what was labelled within a minute, by the event time of the latest frame.
    bins = {entry.name: dict(entry.stages)["raw"] for entry in pipeline.live.export_bins()}
    for index, name in enumerate(CLASSES[:2]):
        in_time = [
            one
            for one in told
            if one.row.class_index == index
            and max(o.stamp for o in told if o.stamp <= one.told_at) - one.stamp <= MINUTE
        ]
        assert bins[name].n[0].sum() == len(in_time) > 0


def test_the_order_of_labels_within_a_day_changes_no_bit():
    told = a_long_drive(5, 8)
    one, other = pipeline_of(DOUBLE), pipeline_of(DOUBLE, statistics={"fold_rows": 1})
    at_once = [replace(row, told_at=row.stamp) for row in told]
    assert driven(one, told) == driven(other, at_once)
    for left, right in zip(windows_of(one), windows_of(other), strict=True):
        assert left.keys() == right.keys()
        for name, statistics in left.items():
            laws.assert_same(statistics, right[name])


# ---- windows of classes


def test_a_window_of_classes_holds_the_rows_of_its_panes():
    pipeline = pipeline_of(statistics={"panes": 6})
    stream = opened(pipeline, piped_classes.HEADER)
    stamps = [number * 4 * MINUTE for number in range(400)]
    late = range(0, len(stamps), 3)
    for number, stamp in enumerate(stamps):
        known = None if number in late else 1
        pipeline.process(stream, frame([piped_classes.sent(1, known)], number, stamp))
    for number in reversed(late):
        reported(pipeline, labels([Label(1, class_index=2)], number))
    now = stamps[-1]
    for level, length in enumerate((5 * MINUTE, HOUR, 24 * HOUR)):
        pane = length // 6
        inside = [stamp for stamp in stamps if stamp // pane >= now // pane - 6]
        assert piped_classes.counted(pipeline, level)[TOTAL].n == len(inside)
    assert total_of(pipeline).n == len(stamps)
    assert total_of(pipeline) is total_of(pipeline)


def test_classes_of_a_wild_stamp_or_of_before_a_jump_are_older_than_every_window():
    pipeline, row = pipeline_of(), piped_classes.sent(1, 1)
    stream = opened(pipeline, piped_classes.HEADER)
    for number, stamp in enumerate((1000 * HOUR, 10**5 * HOUR, None)):
        pipeline.process(stream, frame([row], number, stamp))
    assert piped_classes.counted(pipeline, 0)[TOTAL].n == 1
    for number in range(3, 102):
        pipeline.process(stream, frame([], number, HOUR))
    pipeline.process(stream, frame([row], 102, HOUR))
    assert pipeline.live.clock.jumps == 1
    assert piped_classes.counted(pipeline, 2)[TOTAL].n == 1
    assert total_of(pipeline).n == 4


# ---- labels that are in time for the counters


def counted_live(pipeline: Pipeline) -> int:
    """Rows that are in the counters."""
    statistics_of(pipeline)
    return sum(int(bins.stages[0][1].n[0].sum()) for bins in pipeline.live.export_bins())


def played(pipeline: Pipeline, stream: Stream, first: int, start: int, delay: int) -> None:
    """Ten frames half a minute apart, each labelled when so many more have come."""
    for i in range(10 + delay):
        if i < 10:
            pipeline.process(stream, frame([sent(1, i)], first + i, start + i * 30 * SECOND))
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
def test_inline_labels_and_those_of_a_frame_without_a_stamp_are_in_time(stamp):
    pipeline = pipeline_of()
    stream = opened(pipeline)
    pipeline.process(stream, frame([sent(2)], 0, None))
    pipeline.process(stream, frame([], 1, 5000 * SECOND))
    pipeline.process(stream, frame([sent(1, truth=True)], 2, stamp))
    assert counted_live(pipeline) == 1
    reported(pipeline, labels([Label(2, truth_of(sent(2)))], 0))
    assert counted_live(pipeline) == 2


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
