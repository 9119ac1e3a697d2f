"""Events reach every watcher in order; a slow one loses the oldest and can tell."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from monitor.pipeline.housekeeping import QUEUE, Events
from monitor.promotion.records import Happened, Record
from monitor.wire.values import Event, EventContent, Health
from tests.administered import record
from tests.alarmed import RAISED

SERVING, STOPPING = Health(True, "serving"), Health(False, "shutting down")
Watcher = AsyncIterator[Event]


def promotion(number: int) -> Record:
    return record(Happened.PROMOTED, f"v{number}", f"v{number + 1}")


async def next_of(watcher: Watcher) -> Event:
    return await asyncio.wait_for(anext(watcher), 5)


async def rest_of(watcher: Watcher) -> list[Event]:
    """Everything to the end, which must come."""
    async with asyncio.timeout(5):
        return [event async for event in watcher]


async def watching(events: Events) -> Watcher:
    """A watcher that has seen the state of health."""
    watcher = events.watch(0)
    await next_of(watcher)
    return watcher


def test_a_watcher_is_told_the_state_of_health_and_all_that_comes_from_then_on_in_order():
    async def run():
        events, heard = Events(), list[Record]()
        events.listen(Record, heard.append)
        first = await watching(events)
        events.publish(SERVING, 10)
        events.publish(promotion(1), 20)
        second = events.watch(30)
        assert await next_of(second) == Event(2, 30, SERVING)
        told: list[EventContent] = [promotion(2), RAISED, promotion(3)]
        for number, what in enumerate(told):
            events.publish(what, 40 + number)
        events.close()
        last = [Event(3 + number, 40 + number, what) for number, what in enumerate(told)]
        assert await rest_of(second) == last
        assert await rest_of(first) == [Event(1, 10, SERVING), Event(2, 20, promotion(1)), *last]
        assert heard == [promotion(1), promotion(2), promotion(3)]

    asyncio.run(run())


@pytest.mark.parametrize(("lasts", "after"), [(True, Health(True, "calm")), (False, SERVING)])
def test_a_state_of_health_stays_unless_it_is_over_at_once(lasts, after):
    async def run():
        events = Events()
        assert (await next_of(events.watch(0))).what == Health(False, "starting")
        events.announce(SERVING)
        watcher = await watching(events)
        events.announce(Health(True, "calm"), lasts=lasts)
        assert (await next_of(watcher)).what == Health(True, "calm")
        assert (await next_of(events.watch(0))).what == events.health == after

    asyncio.run(run())


def test_a_slow_watcher_loses_the_oldest_events_and_sees_the_gap():
    async def run():
        events = Events()
        slow, quick = await watching(events), await watching(events)
        for number in range(QUEUE + 10):
            events.publish(promotion(number), number)
            assert (await next_of(quick)).sequence == number + 1
        # It has seen 0, the state of health.
        assert [(await next_of(slow)).sequence for _ in range(2)] == [11, 12]
        # Publishing never waits, and the last event reaches it all the same.
        for number in range(2 * QUEUE):
            events.publish(promotion(number), number)
        events.publish(STOPPING, 0)
        events.close()
        rest = await rest_of(slow)
        assert (len(rest), rest[-1].what) == (QUEUE - 1, STOPPING)

    asyncio.run(run())
