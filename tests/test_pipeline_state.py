"""All statistics of a pipeline as one value: after a restart, and added to another."""

from dataclasses import replace

import numpy as np
import pytest

from monitor.frames.slices import OVERFLOW, TOTAL
from monitor.frames.space import plain_space
from monitor.pipeline.frame_path import Pipeline
from monitor.statistics.bins import IncompatibleStatistics
from monitor.statistics.observations import finished
from monitor.statistics.state import ClassSliceState, SliceState, StatisticsState
from tests.piped import SECOND, pipeline_of
from tests.piped_classes import (
    CLASSES,
    GOOD_TRUTH,
    HEADER,
    HOUR,
    counted,
    opened,
    sent,
    state_of,
)
from tests.received import frame
from tests.states import bits, canonical


def driven(seed, **sections) -> Pipeline:
    pipeline = pipeline_of(**sections)
    random = np.random.default_rng(seed)
    lists = [CLASSES, ("x", "y"), CLASSES[::-1]]
    for number in range(30):
        names = lists[int(random.integers(3))]
        header = replace(HEADER, stream=str(random.choice(["a", "b"])), classes=names)
        rows = [
            replace(sent(id, int(random.integers(len(names))), classes=len(names)), truth=truth)
            for id in range(4)
            for truth in [GOOD_TRUTH if random.random() < 0.5 else ()]
        ]
        stamp = int(random.integers(100)) * 600 * SECOND
        pipeline.process(opened(pipeline, header), frame(rows, number, stamp))
    return pipeline


@pytest.mark.parametrize("by", [["class"], ["class", "stream"]])
@pytest.mark.parametrize("limit", [24, 2])
def test_a_restart_changes_no_bit_and_no_slice(by, limit):
    settings_of = {"slice_by": by, "max_slices": limit}
    before = driven(1, statistics=settings_of)
    state = state_of(before)
    assert len(state.class_slices) > 1
    assert {entry.name for entry in state.class_slices} <= {TOTAL, "a", "b", OVERFLOW}
    after = pipeline_of(statistics=settings_of)
    detections, new_slices = finished(after.live.import_in_steps(state))
    assert detections == sum(entry.n for entry in state.slices)
    assert new_slices == len(state.slices) + len(state.class_slices)
    assert bits(state_of(after)) == bits(state)
    for level in (None, 0, 1, 2):
        assert finished(after.live.classes_in_steps(level)) is not None
        assert bits(counted(after, level)) == bits(counted(before, level))
    # And both go on alike.
    for pipeline in (before, after):
        pipeline.process(opened(pipeline), frame([sent(1, 1)], 99, 100 * 600 * SECOND))
    assert bits(state_of(after)) == bits(state_of(before))


@pytest.mark.parametrize("seed", range(3))
def test_what_is_imported_is_what_a_merge_makes_of_both(seed):
    ours, theirs = driven(seed), driven(seed + 10)
    merged = state_of(ours).merge(state_of(theirs))
    finished(ours.live.import_in_steps(state_of(theirs)))
    assert bits(canonical(state_of(ours))) == bits(canonical(merged))


def with_other_classes(state: StatisticsState) -> StatisticsState:
    entry = state.class_slices[-1]
    wrong = ClassSliceState(entry.name, (*entry.class_names, "more"), entry.panes)
    return replace(state, class_slices=(*state.class_slices[:-1], wrong))


def with_another_space(state: StatisticsState) -> StatisticsState:
    entry = state.slices[-1]
    wrong = SliceState(entry.name, plain_space(("u",)), entry.overflow, entry.panes)
    return replace(state, slices=(*state.slices[:-1], wrong))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (with_other_classes, "Merge only slices of streams with equal class names"),
        (with_another_space, "the dimensions differ"),
    ],
)
def test_a_state_of_which_one_slice_does_not_fit_is_refused_as_a_whole(spoil, said):
    ours = driven(1)
    before = state_of(ours)
    with pytest.raises(IncompatibleStatistics, match=said):
        finished(ours.live.import_in_steps(spoil(state_of(driven(2)))))
    assert bits(state_of(ours)) == bits(before)


def test_all_panes_of_a_state_are_of_its_clock_though_frames_pass_while_it_is_made():
    pipeline = driven(1)
    steps = pipeline.live.state_in_steps()
    number = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            state: StatisticsState = end.value
            break
        number += 1
        pipeline.process(opened(pipeline), frame([sent(1, 1)], 99 + number, (100 + number) * HOUR))
    assert number > 1
    keys = [key for entry in state.slices for key in entry.panes]
    keys += [key for entry in state.class_slices for key in entry.panes]
    assert len(keys) > 1
    assert not any(state.windows.too_old(key, state.clock_ns) for key in keys)
