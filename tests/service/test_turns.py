"""How often a stream is read, whose turn it is on the event loop, and how many calls are taken."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.service.calls import (
    BURST_SECONDS,
    MOST_TOGETHER,
    Pace,
    Share,
    Turns,
    Waiting,
)
from monitor.service.security import PROBES_END, OpenCalls, Room
from monitor.wire.values import MONITOR
from tests.administered import Caller, Refused
from tests.service.handled import handled

RATES = st.sampled_from([0.5, 1.0, 8.0, 128.0])
# Idle times between messages, exact in binary.
GAPS = st.lists(st.integers(0, 256).map(lambda i: i / 128), max_size=200)


def read_times(rate: float, gaps: list[float]) -> list[float]:
    """When each message is read, of one that is ready a gap after the last was read."""
    pace, now, times = Pace(), 0.0, []
    for gap in gaps:
        now += pace.delay(now, rate)
        times.append(now)
        now += gap
    return times


@given(RATES, GAPS)
def test_no_window_holds_more_messages_than_its_rate_and_one_burst(rate, gaps):
    times = read_times(rate, gaps)
    burst = max(BURST_SECONDS, 1 / rate)
    for first in range(0, len(times), 7):
        for last in range(first, len(times)):
            window = times[last] - times[first]
            assert last - first + 1 <= rate * (window + burst) + 1e-9
    assert read_times(rate, [1 / rate] * 100) == [i / rate for i in range(100)]


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


def together(*tasks: Awaitable[None]) -> None:
    async def work() -> None:
        await asyncio.wait_for(asyncio.gather(*tasks), 10)

    asyncio.run(work())


def test_a_stream_that_comes_seldom_is_before_all_that_push(clock):
    turns, done, seldom = Turns(answering(clock, []), clock), [], Share()

    async def pushing() -> None:
        share = Share()
        for _ in range(40):
            await turns.take(share)
            clock.now += 0.01
            done.append("pushing")

    async def coming() -> None:
        for _ in range(5):
            for _ in range(12):
                await asyncio.sleep(0)
            before = len(done)
            await turns.take(seldom)
            clock.now += 0.001
            # The one whose turn it was, and the one that was woken already.
            assert len(done) - before <= 2
            done.append("seldom")

    together(*(pushing() for _ in range(6)), coming())
    assert (done.count("seldom"), done.count("pushing")) == (5, 240)


def answering(clock: Clock, groups: list[list[object]]) -> Callable[[Sequence[Waiting]], None]:
    """Answers messages with themselves; 10 ms a group, which is noted."""

    def serve(waiting: Sequence[Waiting]) -> None:
        clock.now += 0.01
        groups.append([one.message for one in waiting])
        for one in waiting:
            if not one.turn.done():
                one.turn.set_result(one.message)

    return serve


def test_messages_that_wait_together_are_answered_together_each_with_its_own(clock):
    groups: list[list[object]] = []
    turns = Turns(answering(clock, groups), clock)

    async def asking(name: str) -> None:
        assert await turns.answered(Share(), name) == name

    together(*(asking(f"camera {i}") for i in range(MOST_TOGETHER + 3)))
    assert [len(group) for group in groups] == [MOST_TOGETHER, 3]


def test_the_time_of_a_group_is_shared_and_who_has_used_least_is_in_the_next_one(clock):
    groups: list[list[object]] = []
    turns, shares = Turns(answering(clock, groups), clock), {}

    async def pushing(name: str) -> None:
        share = shares[name] = Share()
        for _ in range(12):
            await turns.answered(share, name)

    async def coming() -> None:
        for _ in range(3):
            for _ in range(6):
                await asyncio.sleep(0)
            before = len(groups)
            await turns.answered(Share(), "seldom")
            # The group that was chosen already, and the one it is in.
            assert len(groups) - before <= 2

    together(*(pushing(f"pushing {i}") for i in range(3 * MOST_TOGETHER)), coming())
    assert sum(group.count("seldom") for group in groups) == 3
    used = [share.by(clock.now) for share in shares.values()]
    assert max(used) < 1.5 * min(used)


def test_a_fault_ends_the_messages_of_its_turn_and_no_other(clock, caplog):
    groups: list[list[object]] = []

    def serve(waiting: Sequence[Waiting]) -> None:
        if not groups:
            groups.append([])
            raise ZeroDivisionError
        answering(clock, groups)(waiting)

    turns = Turns(serve, clock)

    async def asking() -> object:
        try:
            return await turns.answered(Share(), "message")
        except ZeroDivisionError:
            return "fault"

    async def work() -> list[object]:
        first = await asyncio.gather(*(asking() for _ in range(3)))
        return [*first, await asking()]

    found = asyncio.run(asyncio.wait_for(work(), 10))
    assert found == ["fault"] * 3 + ["message"]
    assert "ZeroDivisionError" in caplog.text


def test_a_stream_that_is_gone_is_not_answered_and_one_with_labels_has_a_turn_between(clock):
    groups: list[list[object]] = []
    turns, done = Turns(answering(clock, groups), clock), []

    async def gone() -> None:
        task = asyncio.ensure_future(turns.answered(Share(), "gone"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def asking(name: str) -> None:
        await turns.answered(Share(), name)
        done.append(name)

    async def labels() -> None:
        await turns.take(Share())
        done.append("labels")

    together(gone(), asking("first"), labels(), asking("second"))
    assert groups == [["first"], ["second"]]
    assert sorted(done) == ["first", "labels", "second"]


def test_a_place_is_free_again_however_a_call_ends():
    room = Room(2)
    calls = OpenCalls(room)

    async def breaks(request: bytes, _: object) -> bytes:
        assert room.taken == 1
        raise ZeroDivisionError

    async def counts(request: bytes, _: object) -> AsyncIterator[bytes]:
        for i in range(5):
            assert room.taken == 1
            yield bytes([i])

    async def work() -> None:
        broken = await handled(calls, grpc.unary_unary_rpc_method_handler(breaks), "/a/Breaks")
        with pytest.raises(ZeroDivisionError):
            await broken.unary_unary(b"", Caller())
        assert room.taken == 0
        counted = await handled(calls, grpc.unary_stream_rpc_method_handler(counts), "/a/Counts")
        answers = counted.unary_stream(b"", Caller())
        assert await anext(answers) == b"\0"
        await answers.aclose()
        assert room.taken == 0
        found = [one async for one in counted.unary_stream(b"", Caller())]
        assert found == [bytes([i]) for i in range(5)]
        async with room.place(Caller()), room.place(Caller()):
            with pytest.raises(Refused, match="2 calls are open"):
                await anext(counted.unary_stream(b"", Caller()))
            with pytest.raises(Refused, match="max_calls"):
                await broken.unary_unary(b"", Caller())
        assert room.taken == 0
        assert await handled(calls, None) is None  # a method that does not exist stays so

    together(work())


def test_probes_of_health_have_room_of_their_own():
    calls = OpenCalls(Room(0), Room(1, PROBES_END))

    async def answer(request: bytes, _: object) -> bytes:
        return b"ok"

    async def work() -> None:
        handler = grpc.unary_unary_rpc_method_handler(answer)
        probe = await handled(calls, handler, "/grpc.health.v1.Health/Check")
        assert await probe.unary_unary(b"", Caller()) == b"ok"
        other = await handled(calls, handler, f"/{MONITOR}/Process")
        with pytest.raises(Refused, match="max_calls"):
            await other.unary_unary(b"", Caller())
        # max_calls is no remedy for those.
        async with calls.probes.place(Caller()):
            with pytest.raises(Refused, match="watch the health") as found:
                await probe.unary_unary(b"", Caller())
        assert "max_calls" not in str(found.value)

    together(work())
