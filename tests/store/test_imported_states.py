"""Statistics out of one sidecar and into another: all of them or none, and they can be read."""

from __future__ import annotations

import asyncio
import re
from collections.abc import MutableSequence
from dataclasses import replace
from functools import cache
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.frames.slices import OVERFLOW, TOTAL
from monitor.frames.space import plain_space
from monitor.pipeline.frame_path import Pipeline
from monitor.service import admin
from monitor.service.admin import StateService
from monitor.service.calls import INTERNAL_ERROR, Context, TransferTimeout, guarded
from monitor.service.handlers import Service
from monitor.sidecar import Sidecar
from monitor.statistics.bins import IncompatibleStatistics
from monitor.statistics.observations import finished
from monitor.statistics.state import StatisticsState
from monitor.store.state_definitions import InvalidState
from monitor.store.statistics_state import StoredState, decode, parsed
from monitor.v1 import perception_monitor_pb2 as messages_pb
from monitor.v1 import statistics_state_pb2 as pb
from monitor.wire.requests import WireLimits
from tests.laws import costly
from tests.piped import SECOND, pipeline_of
from tests.piped_classes import CLASSES, GOOD_TRUTH, HEADER, HOUR, counted, opened, sent, state_of
from tests.received import frame
from tests.states import assert_same_state, bits, in_parts, joined


def driven(seed: int, frames: int = 30, **sections) -> Pipeline:
    """Streams whose class names come in another order, two and three of them."""
    pipeline = pipeline_of(**sections)
    random = np.random.default_rng(seed)
    lists = [CLASSES, ("x", "y"), CLASSES[::-1]]
    for number in range(frames):
        names = lists[int(random.integers(3))]
        stream = replace(HEADER, stream=str(random.choice(["a", "b"])), classes=names)
        rows = [
            replace(sent(id, int(random.integers(len(names))), classes=len(names)), truth=truth)
            for id in range(4)
            for truth in [GOOD_TRUTH if random.random() < 0.5 else ()]
        ]
        stamp = int(random.integers(100)) * 600 * SECOND
        pipeline.process(opened(pipeline, stream), frame(rows, number, stamp))
    return pipeline


def taken(pipeline: Pipeline, state: StatisticsState) -> tuple[int, int]:
    return finished(pipeline.live.import_in_steps(state))


@pytest.mark.parametrize("by", [["class"], ["class", "stream"]])
@pytest.mark.parametrize("limit", [24, 2])
def test_a_restart_changes_no_bit_and_no_slice(by, limit):
    settings_of = {"slice_by": by, "max_slices": limit}
    before = driven(1, statistics=settings_of)
    state = state_of(before)
    assert len(state.class_slices) > 1
    assert {entry.name for entry in state.class_slices} <= {TOTAL, "a", "b", OVERFLOW}
    after = pipeline_of(statistics=settings_of)
    slices = len(state.slices) + len(state.class_slices)
    assert taken(after, state) == (sum(entry.n for entry in state.slices), slices)
    for level in (None, 0, 1, 2):
        assert bits(counted(after, level)) == bits(counted(before, level))
    # And both go on alike.
    for pipeline in (before, after):
        pipeline.process(opened(pipeline), frame([sent(1, 1)], 99, 100 * 600 * SECOND))
    assert bits(state_of(after)) == bits(state_of(before))


@pytest.mark.parametrize(("hours", "moved"), [(1 / 60, False), (2, True), (2000, True)])
def test_what_is_of_a_time_far_ahead_is_in_no_window_and_moves_none(hours, moved):
    def at(begin_hours: float) -> Pipeline:
        pipeline = pipeline_of()
        for number in range(4):
            stamp = int(begin_hours * HOUR) + 60 * SECOND * number
            row = sent(number, 1, truth=GOOD_TRUTH)
            pipeline.process(opened(pipeline), frame([row], number, stamp))
        return pipeline

    ours = at(0)
    before = state_of(ours)
    taken(ours, state_of(at(hours)))
    after = state_of(ours)
    older = after.windows.older, 0
    assert {key for entry in after.slices for key in entry.panes if key == older} == (
        {older} if moved else set()
    )
    if moved:
        assert after.clock_ns == before.clock_ns
        # Ours lie where they lay.
        for entry, was in zip(after.slices, before.slices, strict=True):
            assert bits(entry.panes | {older: None}) == bits(was.panes | {older: None})


def with_other_classes(state: StatisticsState) -> StatisticsState:
    entry = state.class_slices[-1]
    wrong = replace(entry, class_names=(*entry.class_names, "more"))
    return replace(state, class_slices=(*state.class_slices[:-1], wrong))


def with_another_space(state: StatisticsState) -> StatisticsState:
    wrong = replace(state.slices[-1], space=plain_space(("u",)))
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
        taken(ours, spoil(state_of(driven(2))))
    assert bits(state_of(ours)) == bits(before)


class Caller:
    """The other end of a call: reads what is written, or nothing."""

    def __init__(self, *, reads: bool = True) -> None:
        self.reads = reads
        self.received: list[bytes] = []

    def time_remaining(self) -> None:
        return None

    async def read(self) -> bytes:
        raise AssertionError("nobody calls this")

    async def write(self, message: bytes) -> None:
        if not self.reads:
            await asyncio.sleep(60)
        self.received.append(message)

    async def abort(self, code, details):
        raise AssertionError(f"{code}: {details}")


def empty_pipeline() -> Pipeline:
    return pipeline_of(statistics={"windows": ["1m", "10m"], "tau": [0.5, 0.9]})


@cache
def state_bytes() -> bytes:
    """A few detections with classes in several panes."""
    pipeline = empty_pipeline()
    for number in range(6):
        rows = [sent(id, id % 3, truth=GOOD_TRUTH, opinions=2) for id in range(3)]
        pipeline.process(opened(pipeline), frame(rows, number, 100 * number * SECOND))
    return joined(StoredState(state_of(pipeline)))


async def read_all(pipeline: Pipeline) -> None:
    """As an answer in every window, and as the text of the metrics."""
    service = Service(pipeline, WireLimits(2**20, 100))
    for window in ("", "1m", "10m"):
        request = messages_pb.GetCalibrationRequest(window=window, include_bins=True)
        assert await service.get_calibration(request.SerializeToString(), Caller())
    sidecar = Sidecar(pipeline.config)
    sidecar.pipeline = pipeline
    await sidecar.exporting.refresh()
    assert b'slice="total"' in sidecar.endpoint.published.metrics


def change(numbers: MutableSequence[int], data: st.DataObject, values: Any) -> None:
    for place, value in data.draw(st.lists(st.tuples(st.integers(0, 1000), values))):
        if numbers:
            numbers[place % len(numbers)] = value


def spoil(state: pb.StatisticsState, data: st.DataObject) -> None:
    """Changes some sums of one pane, or takes some away, as long as it is still a state."""
    held: list[tuple[Any, list[pb.SparseSums]]] = [
        (stage, [stage.cells, stage.nees])
        for entry in state.slices
        for pane in entry.panes
        for stage in (pane.raw, pane.recalibrated)
        if stage.n
    ]
    held += [(pane, list(pane.tables)) for classes in state.class_slices for pane in classes.panes]
    place, tables = data.draw(st.sampled_from(held))
    table = data.draw(st.sampled_from(tables))
    sums = st.integers(-3, 3) | st.integers(-(2**61), 2**61)
    match data.draw(st.sampled_from(["n", "values", "low", "high", "no cells"])):
        case "n":
            place.n = data.draw(st.integers(-3, 3) | st.sampled_from([2**53 - 1, 1 - 2**53]))
        case "no cells":
            del table.key_steps[:], table.values[:]
        case "values":
            change(table.values, data, sums)
        case "low":
            change(place.companions.low, data, st.integers(0, 2**40 - 1))
        case "high":
            change(place.companions.high, data, sums)


@costly
@given(st.data())
def test_a_state_that_is_taken_can_be_read(data):
    state = pb.StatisticsState.FromString(state_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        spoil(state, data)
    pipeline = empty_pipeline()
    try:
        taken(pipeline, parsed(state.SerializeToString()).state)
    except (InvalidState, IncompatibleStatistics):
        return
    asyncio.run(read_all(pipeline))


# A field that only newer code knows: number 1000, five bytes.
ADDED = b"\xc2\x3e\x05newer"


async def arriving(messages, then_wait=False):
    for data in messages:
        yield data
    if then_wait:
        await asyncio.sleep(60)


def requests_of(stored: StoredState) -> list[messages_pb.ImportStatisticsRequest]:
    return [messages_pb.ImportStatisticsRequest(part=part) for part in in_parts(stored)]


def got_from(service: StateService) -> StoredState:
    caller = Caller()
    asyncio.run(service.export_statistics(b"", caller))
    answers = map(messages_pb.ExportStatisticsResponse.FromString, caller.received)
    return decode([answer.part for answer in answers])


def test_an_export_is_imported_and_what_newer_code_has_added_goes_out_again():
    ours, theirs = StateService(driven(0, 2)), StateService(driven(10))
    one, other = got_from(ours), got_from(theirs)
    requests = requests_of(other)
    requests[0].part.MergeFromString(ADDED)
    requests[1].part.slices[0].MergeFromString(ADDED)
    parts = [request.SerializeToString() for request in requests]
    data = asyncio.run(ours.import_statistics(arriving(parts), Caller()))
    answer = messages_pb.ImportStatisticsResponse.FromString(data)
    both = got_from(ours)
    assert_same_state(both.state, one.state.merge(other.state))
    known, now = (len(s.slices) + len(s.class_slices) for s in (one.state, both.state))
    assert answer.detections == sum(entry.n for entry in other.state.slices)
    assert answer.new_slices == now - known > 0
    assert both.unknown.count(ADDED) == 2


@pytest.mark.parametrize(
    ("damage", "error", "said"),
    [
        ("none came", InvalidState, "no part of it came"),
        ("no message", InvalidState, "message 0: 2 bytes are no ImportStatisticsRequest."),
        ("last part", InvalidState, r"panes\[0\].*: 9 columns"),
        ("other bins", IncompatibleStatistics, "the bins differ"),
    ],
)
def test_an_import_that_cannot_be_used_changes_nothing(damage, error, said):
    ours = StateService(driven(1))
    before = got_from(ours).state
    other: dict[str, Any] = {"statistics": {"tau": [0.5, 0.9]}} if damage == "other bins" else {}
    requests = requests_of(StoredState(state_of(driven(2, **other))))
    (classes,) = [one.part.class_slices for one in requests if one.part.class_slices][-1]
    classes.panes[0].tables[0].width = 9 if damage == "last part" else 4
    parts = [request.SerializeToString() for request in requests]
    parts = {"none came": [], "no message": [b"\xff\xff"]}.get(damage, parts)
    with pytest.raises(error, match=said) as refusal:
        asyncio.run(ours.import_statistics(arriving(parts), Caller()))
    assert bits(got_from(ours).state) == bits(before)
    if damage == "other bins":
        ours_and_theirs = before.binning.describe(), driven(2, 1, **other).live.binning.describe()
        assert all(bins in str(refusal.value) for bins in ours_and_theirs)


def test_a_transfer_that_is_too_large_or_too_slow_is_given_up(monkeypatch):
    service = StateService(pipeline_of(server={"write_timeout_seconds": 0.05}))
    monkeypatch.setattr(admin, "MOST_IMPORT_BYTES", 100)
    with pytest.raises(InvalidState, match="more than 100 bytes"):
        asyncio.run(service.import_statistics(arriving([bytes(60)] * 2), Caller()))
    monkeypatch.setattr(admin, "IMPORT_SECONDS", 0.05)
    with pytest.raises(TransferTimeout, match="nothing was added"):
        asyncio.run(service.import_statistics(arriving([], then_wait=True), Caller()))
    # And the next one is not kept waiting by it.
    with pytest.raises(InvalidState, match="no part"):
        asyncio.run(service.import_statistics(arriving([]), Caller()))
    with pytest.raises(TransferTimeout, match="were not read"):
        asyncio.run(service.export_statistics(b"", Caller(reads=False)))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (IncompatibleStatistics("other edges"), grpc.StatusCode.FAILED_PRECONDITION),
        (InvalidState("damaged"), grpc.StatusCode.INVALID_ARGUMENT),
        (TransferTimeout("too slow"), grpc.StatusCode.ABORTED),
        # One of ours that nobody caught is no fault of the client.
        (TimeoutError("elsewhere"), grpc.StatusCode.INTERNAL),
    ],
)
def test_errors_end_a_call_with_the_status_of_their_kind(error, code):
    async def handler(_: bytes, context: Context) -> bytes:
        raise error

    service, caller = Service(pipeline_of(), WireLimits(2**20, 100)), Caller()

    async def called() -> bytes:
        return await guarded(service, handler)(b"", caller)

    said = INTERNAL_ERROR if code is grpc.StatusCode.INTERNAL else str(error)
    with pytest.raises(AssertionError, match=re.escape(f"{code}: {said}")):
        asyncio.run(called())
    assert service.calls_in_work == 0
