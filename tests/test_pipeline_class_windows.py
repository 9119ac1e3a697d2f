"""Slices and windows of class probabilities, read in steps between frames."""

from dataclasses import replace

from monitor.frames.slices import OVERFLOW, TOTAL
from monitor.statistics.observations import finished
from tests import laws
from tests.calibration.matched_frames import unfinished
from tests.piped import SECOND, account_of, pipeline_of, reported
from tests.piped_classes import (
    CLASSES,
    GOOD_TRUTH,
    HEADER,
    HOUR,
    counted,
    observed,
    opened,
    sent,
    total_of,
)
from tests.received import Label, frame, labels

# ---- slices


def test_streams_of_equal_classes_share_a_slice_and_of_different_ones_never():
    pipeline = pipeline_of()
    others = ("car", "bus", "truck")
    lists = {"a": CLASSES, "b": CLASSES, "c": others, "d": ("x", "y")}
    rows = {name: [sent(1, 1, classes=len(names))] for name, names in lists.items()}
    for name, names in lists.items():
        stream = opened(pipeline, replace(HEADER, stream=name, classes=names))
        pipeline.process(stream, frame(rows[name]))
    found = {
        label: (names, held) for label, names, held in finished(pipeline.live.classes_in_steps())
    }
    assert {label: (names, held.n) for label, (names, held) in found.items()} == {
        TOTAL: (CLASSES, 2),
        "total (2)": (others, 1),
        "total (3)": (("x", "y"), 1),
    }
    laws.assert_same(found[TOTAL][1], observed(rows["a"] + rows["b"], [1, 1]))


def test_streams_have_slices_of_their_own_where_the_configuration_says_so():
    pipeline = pipeline_of(statistics={"slice_by": ["class", "stream"], "max_slices": 2})
    for name in ("a", "b", "c", "d"):
        stream = opened(pipeline, replace(HEADER, stream=name))
        pipeline.process(stream, frame([sent(1, 1), sent(2, 0)]))
    assert {name: held.n for name, held in counted(pipeline).items()} == {
        "a": 2,
        "b": 2,
        OVERFLOW: 4,
    }
    assert pipeline.counters.overflow_classified == 4


def test_a_list_of_classes_for_which_there_is_no_room_is_counted_and_left_out():
    pipeline = pipeline_of(statistics={"max_slices": 1})
    for number, names in enumerate((CLASSES, ("x", "y"), ("y", "x"))):
        stream = opened(pipeline, replace(HEADER, classes=names))
        pipeline.process(stream, frame([sent(1, 1, classes=len(names))], number))
    assert {name: held.n for name, held in counted(pipeline).items()} == {TOTAL: 1}
    assert pipeline.counters.overflow_classified == 2
    assert account_of(pipeline.counters.truth) == {"matched": 3}
    assert pipeline.counters.internal_errors == 0


# ---- windows and reading


def test_a_window_holds_the_rows_of_its_panes():
    pipeline = pipeline_of(statistics={"panes": 6})
    stream = opened(pipeline)
    stamps = [number * 4 * 60 * SECOND for number in range(500)]
    late = []
    for number, stamp in enumerate(stamps):
        known = number % 3 > 0
        pipeline.process(stream, frame([sent(1, 1 if known else None)], number, stamp))
        if not known:
            late.append(number)
    for number in reversed(late):
        reported(pipeline, labels([Label(1, class_index=2)], number))
    now = stamps[-1]
    for level, length in enumerate((300 * SECOND, HOUR, 24 * HOUR)):
        pane = length // 6
        inside = [stamp for stamp in stamps if stamp // pane >= now // pane - 6]
        assert counted(pipeline, level)[TOTAL].n == len(inside)
    assert total_of(pipeline).n == len(stamps)


def test_a_stamp_that_nobody_believes_moves_no_window():
    pipeline = pipeline_of()
    stream = opened(pipeline)
    pipeline.process(stream, frame([sent(1, 1)], 1, 100 * HOUR))
    pipeline.process(stream, frame([sent(1, 1)], 2, 10_000 * HOUR))
    pipeline.process(stream, frame([sent(1, 1)], 3, None))
    assert counted(pipeline, 0)[TOTAL].n == 1
    assert total_of(pipeline).n == 3


def test_after_a_jump_of_time_what_was_counted_is_older_than_every_window():
    pipeline = pipeline_of()
    stream = opened(pipeline)
    pipeline.process(stream, frame([sent(1, 1)], 0, 1000 * HOUR))
    for number in range(1, 100):
        pipeline.process(stream, frame([], number, HOUR))
    pipeline.process(stream, frame([sent(1, 1)], 100, HOUR))
    assert pipeline.live.clock.jumps == 1
    assert counted(pipeline, 2)[TOTAL].n == 1
    assert total_of(pipeline).n == 2


def test_what_has_not_changed_is_not_summed_again():
    pipeline = pipeline_of()
    pipeline.process(opened(pipeline), frame([sent(1, 1)], 1, 0))
    first = total_of(pipeline)
    assert total_of(pipeline) is first
    pipeline.process(opened(pipeline), frame([sent(1, 1)], 2, 0))
    assert total_of(pipeline).n == 2


def test_slices_are_of_one_moment_and_reading_ends_however_fast_frames_arrive():
    pipeline = pipeline_of(statistics={"fold_rows": 4, "slice_by": ["stream"]})
    streams = [opened(pipeline, replace(HEADER, stream=name)) for name in "ab"]
    rows = [sent(1, 1, truth=GOOD_TRUTH), sent(2, 0, truth=GOOD_TRUTH)]
    for stream in streams:
        pipeline.process(stream, frame(rows, 0))
    steps = pipeline.live.classes_in_steps()
    number = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found = {label: held.n for label, _, held in end.value}
            break
        number += 1
        assert number < 100
        for stream in streams:
            pipeline.process(stream, frame(rows, number))
        pipeline.live.fold_some()
    assert number > 1
    assert found["a"] == found["b"] >= 2
    assert counted(pipeline)["a"].n == 2 * (number + 1)


def test_both_kinds_of_statistics_are_folded_between_frames():
    pipeline = pipeline_of(statistics={"fold_rows": 2})
    stream = opened(pipeline)
    rows = [sent(1, 1, truth=GOOD_TRUTH), sent(2, 0, truth=GOOD_TRUTH)]
    pipeline.process(stream, frame(rows))
    for _ in range(50):
        pipeline.live.fold_some()
    assert not unfinished(pipeline.live.accumulator)
    assert not unfinished(pipeline.live.classes)
    assert pipeline.live.classes.panes[0]
