"""Whatever is imported can be read: a state that the sidecar takes never costs it its metrics."""

from __future__ import annotations

import asyncio
from collections.abc import MutableSequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.pipeline.events import Events
from monitor.pipeline.frame_path import Pipeline
from monitor.service.frames import Service
from monitor.sidecar import Sidecar
from monitor.statistics.bins import IncompatibleStatistics
from monitor.statistics.observations import finished
from monitor.store.state_definitions import InvalidState
from monitor.store.statistics_state import StoredState, parsed
from monitor.v1 import perception_monitor_pb2
from monitor.v1 import statistics_state_pb2 as pb
from monitor.wire.requests import WireLimits
from tests.piped import SECOND, pipeline_of
from tests.piped_classes import GOOD_TRUTH, opened, sent, state_of
from tests.received import frame
from tests.states import joined

LIMITS = WireLimits(2**20, 100)


class Caller:
    """A call that nothing may end."""

    async def read(self) -> bytes:
        raise AssertionError("nobody calls this")

    async def write(self, message: bytes) -> None:
        raise AssertionError("nobody calls this")

    def time_remaining(self) -> None:
        return None

    async def abort(self, code, details):
        raise AssertionError(f"{code}: {details}")


def empty_pipeline() -> Pipeline:
    return pipeline_of(statistics={"windows": ["1m", "10m"], "tau": [0.5, 0.9]})


@cache
def state_bytes() -> bytes:
    """What a sidecar has counted: a few detections with classes in several panes."""
    pipeline = empty_pipeline()
    for number in range(6):
        rows = [sent(id, id % 3, truth=GOOD_TRUTH, opinions=2) for id in range(3)]
        pipeline.process(opened(pipeline), frame(rows, number, 100 * number * SECOND))
    return joined(StoredState(state_of(pipeline)))


def read_all(pipeline: Pipeline) -> None:
    """As an answer in every window, and as the text of the metrics."""
    asyncio.run(_read_all(pipeline))


async def _read_all(pipeline: Pipeline) -> None:
    service = Service(pipeline, Events(), LIMITS)
    for window in ("", "1m", "10m"):
        request = perception_monitor_pb2.GetCalibrationRequest(window=window, include_bins=True)
        assert await service.get_calibration(request.SerializeToString(), Caller())
    sidecar = Sidecar(pipeline.config)
    sidecar.pipeline = pipeline
    await sidecar.exporting.refresh()
    assert b'slice="total"' in sidecar.endpoint.published.metrics


counts = st.integers(-3, 3) | st.sampled_from([2**53 - 1, -(2**53) + 1])
limbs = st.integers(0, 2**40 - 1)
positions = st.integers(0, 1000)
sums = st.integers(-3, 3) | st.integers(-(2**61), 2**61)


def spoil(state: pb.StatisticsState, data: st.DataObject) -> None:
    """Change some sums of one pane, or take some away, as long as it is still a state."""
    held: list[tuple[Any, list[pb.SparseSums]]] = [
        (stage, [stage.cells, stage.nees])
        for entry in state.slices
        for pane in entry.panes
        for stage in (pane.raw, pane.recalibrated)
        if stage.n
    ]
    held += [(pane, list(pane.tables)) for classes in state.class_slices for pane in classes.panes]
    place, tables = held[data.draw(st.integers(0, len(held) - 1))]
    table = tables[data.draw(st.integers(0, len(tables) - 1))]
    match data.draw(st.sampled_from(["n", "values", "low", "high", "no cells"])):
        case "n":
            place.n = data.draw(counts)
        case "no cells":
            del table.key_steps[:], table.values[:]
        case "values":
            change(table.values, data.draw(st.lists(st.tuples(positions, sums))))
        case "low":
            change(place.companions.low, data.draw(st.lists(st.tuples(positions, limbs))))
        case "high":
            change(place.companions.high, data.draw(st.lists(st.tuples(positions, sums))))


def change(numbers: MutableSequence[int], changes: list[tuple[int, int]]) -> None:
    for position, value in changes:
        if numbers:
            numbers[position % len(numbers)] = value


@settings(max_examples=60)
@given(st.data())
def test_a_state_that_is_taken_can_be_read(data):
    state = pb.StatisticsState.FromString(state_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        spoil(state, data)
    pipeline = empty_pipeline()
    try:
        finished(pipeline.live.import_in_steps(parsed(state.SerializeToString()).state))
    except (InvalidState, IncompatibleStatistics):
        return
    read_all(pipeline)


@pytest.mark.parametrize("n", [-1, 0, 1])
def test_a_state_whose_counts_are_not_those_of_its_cells_can_be_read(n):
    state = pb.StatisticsState.FromString(state_bytes())
    for entry in state.slices:
        for pane in entry.panes:
            pane.raw.n = n
    for classes in state.class_slices:
        for held in classes.panes:
            held.n = n
    pipeline = empty_pipeline()
    finished(pipeline.live.import_in_steps(parsed(state.SerializeToString()).state))
    read_all(pipeline)
