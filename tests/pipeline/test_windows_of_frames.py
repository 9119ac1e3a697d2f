"""What frames and labels leave in slices, windows and counters, of Gaussians and of classes."""

from dataclasses import replace
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.frames.slices import OVERFLOW, TOTAL
from monitor.frames.words import SliceBy
from monitor.pipeline.frame_path import Pipeline
from monitor.pipeline.streams import Stream
from monitor.statistics.state import SliceStatistics
from tests import laws, piped, piped_classes
from tests.piped import HEADER, SECOND, counted, opened, pipeline_of, reported, sent, truth_of
from tests.piped_classes import total_of
from tests.received import Label, frame, labels

MINUTE, HOUR = 60 * SECOND, 3600 * SECOND


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
    pipeline = pipeline_of(piped.DOUBLE, statistics={"max_slices": limit, "slice_by": sorted(by)})
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


# ---- labels that are in time for the counters


def counted_live(pipeline: Pipeline) -> int:
    """Rows that are in the counters."""
    piped.statistics_of(pipeline)
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
