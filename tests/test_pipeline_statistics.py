"""What the pipeline counts by slice, with its totals, read in steps between frames."""

from dataclasses import replace
from functools import reduce

from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.frames.frame import Header
from monitor.frames.slices import OVERFLOW, TOTAL, SliceBy
from monitor.frames.space import plain_space
from monitor.statistics.stage import SliceStatistics
from tests import laws
from tests.calibration.matched_frames import fold_some
from tests.piped import (
    CLASSES,
    DOUBLE,
    HEADER,
    counted,
    opened,
    pipeline_of,
    sent,
    statistics_of,
)
from tests.received import frame


@settings(max_examples=25)
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
    n = 0
    for number, (name, seed, size) in enumerate(frames):
        stream = opened(pipeline, replace(HEADER, stream=name))
        rows = [sent(i, 100 * seed + i, truth=True) for i in range(size)]
        pipeline.process(stream, frame(rows, number))
        n += size
    found = counted(pipeline)
    total = found.pop(TOTAL, None)
    if not n:
        assert total is None
        return
    assert total is not None
    assert total.raw.n == total.recalibrated.n == n
    laws.assert_same(reduce(SliceStatistics.merge, found.values()), total)
    assert len([name for name in found if name != OVERFLOW]) <= limit


def test_every_space_has_a_total_of_its_own():
    pipeline = pipeline_of()
    camera = Header("camera", plain_space(("u", "v"), "px"), ("car",))
    pipeline.process(opened(pipeline), frame([sent(1, truth=True, classes=1)]))
    row = sent(1, truth=True, k=2, classes=1)
    pipeline.process(opened(pipeline, camera), frame([row]))
    assert [name for name, _ in statistics_of(pipeline)] == [
        "car",
        "car (u,v)",
        TOTAL,
        f"{TOTAL} (u,v)",
    ]


def test_statistics_are_folded_up_to_now_and_twice_is_as_good_as_once():
    pipeline = pipeline_of(statistics={"fold_rows": 1000})
    pipeline.process(opened(pipeline), frame([sent(1, truth=True)]))
    assert pipeline.live.accumulator.waiting == 1
    first = counted(pipeline)
    assert pipeline.live.accumulator.waiting == 0
    second = counted(pipeline)
    assert {name: one.raw.n for name, one in first.items()} == {
        name: one.raw.n for name, one in second.items()
    }


def test_a_total_is_summed_again_only_if_a_slice_of_its_space_changed():
    pipeline = pipeline_of(DOUBLE)
    lidar = opened(pipeline)
    camera = opened(pipeline, Header("camera", plain_space(("u", "v"), "px"), ("car",)))
    other = f"{TOTAL} (u,v)"
    assert statistics_of(pipeline) == ()
    both = [replace(sent(i, truth=True), class_index=i) for i in range(2)]
    pipeline.process(lidar, frame(both, 1))
    # A recalibrator of other dimensions: both stages are one.
    pipeline.process(camera, frame([sent(1, truth=True, k=2, classes=1)], 1))
    first, second = counted(pipeline), counted(pipeline)
    assert list(first) == list(second) == ["car", "truck", "car (u,v)", TOTAL, other]
    assert all(second[name] is statistics for name, statistics in first.items())
    pipeline.process(lidar, frame(both[:1], 2))
    third = counted(pipeline)
    assert third[other] is first[other]
    assert third["truck"] is first["truck"]
    assert third[TOTAL].raw.n == 3
    laws.assert_same(third[TOTAL], third["car"].merge(third["truck"]))
    pipeline.process(lidar, frame([replace(both[0], class_index=3)], 3))
    assert counted(pipeline)[TOTAL].raw.n == 4


def test_statistics_in_steps_are_of_one_moment_and_end_however_fast_frames_arrive():
    pipeline = pipeline_of(DOUBLE, statistics={"fold_rows": 10})
    stream = opened(pipeline)
    rows = [replace(sent(i, truth=True), class_index=i) for i in range(4)]
    pipeline.process(stream, frame(rows, 0))
    steps = pipeline.live.in_steps()
    number = 0
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


def test_detections_of_the_overflow_slice_are_counted():
    pipeline = pipeline_of(statistics={"max_slices": 1})
    rows = [replace(sent(i, truth=True), class_index=i) for i in range(4)]
    pipeline.process(opened(pipeline), frame(rows))
    assert pipeline.counters.overflow_detections == 3


def test_totals_of_spaces_that_differ_in_units_alone_have_names_of_their_own():
    pipeline = pipeline_of()
    for unit in ("m", "ft", "px"):
        header = Header(unit, plain_space(("x", "y", "z"), unit), ("car",))
        pipeline.process(opened(pipeline, header), frame([sent(1, truth=True, classes=1)]))
    names = [name for name, _ in statistics_of(pipeline)]
    assert len(names) == len(set(names)) == 6
