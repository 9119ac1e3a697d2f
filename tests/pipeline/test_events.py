"""Events reach every watcher in order; a slow one loses the oldest and can tell."""

import asyncio
import contextlib

import pytest

from monitor.drift.alarms import AlarmChange, AlarmReason
from monitor.pipeline.events import QUEUE, Events
from monitor.promotion.records import SWAPS, Happened, Record
from monitor.wire import messages
from monitor.wire.fields import value_of
from monitor.wire.messages import Event, Health
from tests.administered import record
from tests.alarmed import RAISED, alarm

SERVING = Health(True, "serving")


def promotion(number) -> Record:
    return record(Happened.PROMOTED, f"v{number}", f"v{number + 1}")


async def next_of(watcher) -> Event:
    return await asyncio.wait_for(anext(watcher), 5)


async def rest_of(watcher) -> list[Event]:
    """Everything to the end, which must come."""
    async with asyncio.timeout(5):
        return [event async for event in watcher]


async def watching(events, time_ns=0):
    """A watcher that has seen the state of health."""
    watcher = events.watch(time_ns)
    await next_of(watcher)
    return watcher


def test_the_first_event_is_the_state_of_health_and_the_next_follows_without_a_gap():
    async def run():
        events = Events()
        events.publish(SERVING, 10)
        events.publish(promotion(1), 20)
        watcher = events.watch(30)
        assert await next_of(watcher) == Event(2, 30, SERVING)
        events.publish(promotion(2), 40)
        assert await next_of(watcher) == Event(3, 40, promotion(2))

    asyncio.run(run())


def test_before_it_serves_the_state_of_health_says_so():
    async def run():
        assert (await next_of(Events().watch(0))).what == Health(False, "starting")

    asyncio.run(run())


def test_every_watcher_gets_every_event_in_order():
    async def run():
        events = Events()
        watchers = [await watching(events) for _ in range(3)]
        for number in range(5):
            events.publish(promotion(number), number)
        events.close()
        for watcher in watchers:
            seen = await rest_of(watcher)
            assert [event.what for event in seen] == [promotion(number) for number in range(5)]
            assert [event.sequence for event in seen] == [1, 2, 3, 4, 5]

    asyncio.run(run())


def test_a_watcher_sees_nothing_from_before_it_came():
    async def run():
        events = Events()
        events.publish(promotion(1), 1)
        watcher = await watching(events)
        events.publish(promotion(2), 2)
        events.close()
        assert [event.what for event in await rest_of(watcher)] == [promotion(2)]

    asyncio.run(run())


def test_a_slow_watcher_loses_the_oldest_events_and_sees_the_gap():
    async def run():
        events = Events()
        slow, quick = await watching(events), await watching(events)
        seen_by_quick = []
        for number in range(QUEUE + 10):
            events.publish(promotion(number), number)
            seen_by_quick.append((await next_of(quick)).sequence)
        assert seen_by_quick == list(range(1, QUEUE + 11))
        first = await next_of(slow)
        # It has seen 0, the state of health.
        assert first.sequence == 11
        assert (await next_of(slow)).sequence == 12

    asyncio.run(run())


def test_publishing_never_waits_for_a_watcher_that_does_not_read():
    async def run():
        events = Events()
        watcher = await watching(events)
        for number in range(20 * QUEUE):
            events.publish(promotion(number), number)
        events.close()
        assert len(await rest_of(watcher)) == QUEUE - 1

    asyncio.run(run())


def test_close_ends_watchers_after_what_they_were_told():
    async def run():
        events = Events()
        waiting, behind = await watching(events), await watching(events)
        end = asyncio.create_task(rest_of(waiting))
        await asyncio.sleep(0)
        events.publish(Health(False, "shutting down"), 1)
        events.close()
        assert [event.what for event in await end] == [Health(False, "shutting down")]
        assert [event.what for event in await rest_of(behind)] == [Health(False, "shutting down")]

    asyncio.run(run())


def test_the_last_event_reaches_a_slow_watcher_even_when_it_lost_others():
    async def run():
        events = Events()
        watcher = await watching(events)
        for number in range(2 * QUEUE):
            events.publish(promotion(number), number)
        events.publish(Health(False, "shutting down"), 0)
        events.close()
        assert (await rest_of(watcher))[-1].what == Health(False, "shutting down")

    asyncio.run(run())


def test_who_comes_after_the_close_is_told_the_state_of_health_and_no_more():
    async def run():
        events = Events()
        events.publish(Health(False, "shutting down"), 1)
        events.close()
        (only,) = await rest_of(events.watch(9))
        assert only == Event(1, 9, Health(False, "shutting down"))

    asyncio.run(run())


def test_a_watcher_that_goes_away_is_forgotten():
    async def run():
        events = Events()
        watcher = await watching(events)
        waiting = asyncio.create_task(next_of(watcher))
        await asyncio.sleep(0)
        assert len(events._watchers) == 1
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        assert not events._watchers

    asyncio.run(run())


@pytest.mark.parametrize("what", SWAPS)
def test_a_change_of_what_is_in_force_goes_out_as_another_version_with_its_record(what):
    changed = record(what, "a-0", "b-1", actor="anna")
    event = messages.event(Event(3, 40, changed)).event
    assert event.WhichOneof("event") == "version"
    assert (event.version.before, event.version.after) == ("a-0", "b-1")
    assert event.version.actor == "anna"
    assert value_of(Record, event.version.record) == changed
    assert (event.sequence, event.time.ToNanoseconds()) == (3, 40)


@pytest.mark.parametrize("what", [what for what in Happened if what not in SWAPS])
def test_whatever_else_happens_to_recalibrators_goes_out_as_its_record(what):
    found = record(what)
    event = messages.event(Event(3, 40, found)).event
    assert event.WhichOneof("event") == "recalibration"
    assert value_of(Record, event.recalibration) == found


def test_the_state_of_health_goes_out_as_such():
    event = messages.event(Event(0, 40, SERVING)).event
    assert (event.health.serving, event.health.message) == (True, "serving")


@pytest.mark.parametrize("why", AlarmReason)
def test_what_becomes_of_an_alarm_goes_out_as_drift(why):
    change = AlarmChange(why, alarm("truck"), ("car", "bus"), "anna")
    event = messages.event(Event(3, 40, change)).event
    assert event.WhichOneof("event") == "drift"
    assert value_of(AlarmChange, event.drift) == change
    assert (event.sequence, event.time.ToNanoseconds()) == (3, 40)


def test_alarms_reach_watchers_in_order_with_all_else_and_are_no_state_of_health():
    async def run():
        events = Events()
        events.publish(SERVING, 0)
        watcher = await watching(events)
        told = (promotion(1), RAISED, promotion(2))
        for what in told:
            events.publish(what, 1)
        events.close()
        assert tuple(event.what for event in await rest_of(watcher)) == told
        assert events.health == SERVING

    asyncio.run(run())
