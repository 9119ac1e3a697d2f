"""Turns on the event loop: one at a time, and first those who have had the least."""

import asyncio

import pytest

from monitor.service.calls import HALF_LIFE, Share, Turns


class Clock:
    """Moves on when it is told to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_half_of_what_was_had_is_forgotten_in_a_half_life():
    share = Share()
    share.add(10.0, 4.0)
    assert share.by(10.0 + HALF_LIFE) == 2.0
    share.add(10.0 + HALF_LIFE, 1.0)
    assert share.by(10.0 + HALF_LIFE) == 3.0


def test_where_nobody_has_one_a_turn_is_given_without_waiting(clock):
    turns = Turns(clock)

    async def work() -> None:
        taking = turns.take(Share())
        with pytest.raises(StopIteration):
            taking.send(None)

    asyncio.run(work())


def test_one_at_a_time_has_a_turn_and_others_have_a_pass_of_the_loop_in_between(clock):
    turns, done = Turns(clock), []

    async def pushing(name: str) -> None:
        share = Share()
        for _ in range(5):
            await turns.take(share)
            clock.now += 0.01
            done.append(name)

    async def other() -> None:
        while len(done) < 15:
            before = len(done)
            await asyncio.sleep(0)
            assert len(done) - before <= 1

    async def work() -> None:
        await asyncio.wait_for(asyncio.gather(*map(pushing, "abc"), other()), 10)

    asyncio.run(work())
    assert sorted(done) == sorted("abc" * 5)


def test_who_comes_seldom_is_before_all_that_push(clock):
    turns, done = Turns(clock), []
    seldom = Share()

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

    async def work() -> None:
        await asyncio.wait_for(asyncio.gather(*(pushing() for _ in range(6)), coming()), 10)

    asyncio.run(work())
    assert done.count("seldom") == 5
    assert done.count("pushing") == 240


def test_all_that_push_get_the_same_share_whatever_a_message_of_theirs_takes(clock):
    turns, had = Turns(clock), {"long": 0.0, "short": 0.0}

    async def pushing(name: str, seconds: float) -> None:
        share = Share()
        while sum(had.values()) < 10.0:
            await turns.take(share)
            clock.now += seconds
            had[name] += seconds

    async def work() -> None:
        await asyncio.wait_for(asyncio.gather(pushing("long", 0.1), pushing("short", 0.01)), 10)

    asyncio.run(work())
    assert had["long"] == pytest.approx(had["short"], rel=0.2)


def test_who_goes_while_it_waits_costs_the_others_nothing(clock):
    turns = Turns(clock)

    async def work() -> None:
        await turns.take(Share())
        gone = asyncio.create_task(turns.take(Share()))
        stays = asyncio.create_task(turns.take(Share()))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait_for(stays, 10)
        for _ in range(3):
            await asyncio.sleep(0)
        await asyncio.wait_for(turns.take(Share()), 10)

    asyncio.run(work())


def test_the_longest_wait_for_a_turn_is_told_once(clock):
    turns = Turns(clock)

    async def pushing() -> None:
        share = Share()
        for _ in range(5):
            await turns.take(share)
            clock.now += 0.01

    async def work() -> None:
        await asyncio.wait_for(asyncio.gather(*(pushing() for _ in range(4))), 10)

    asyncio.run(work())
    # Three others have theirs meanwhile, at least; those who had less come first.
    assert 0.03 - 1e-9 < turns.longest_wait() < 0.2
    assert turns.longest_wait() == 0.0
