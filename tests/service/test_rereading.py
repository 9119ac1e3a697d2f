"""A configuration that is read again by a thread that nothing waits for."""

import asyncio
import threading
from collections.abc import Callable

import pytest

from monitor.config import Config, InvalidConfiguration
from monitor.service.reload import read_again


def test_what_was_read_is_returned_and_what_was_wrong_is_raised():
    wanted = Config()
    assert asyncio.run(read_again(lambda: wanted)) is wanted

    def refuse() -> Config:
        raise InvalidConfiguration("no such key")

    with pytest.raises(InvalidConfiguration, match="no such key"):
        asyncio.run(read_again(refuse))


def test_a_disk_that_does_not_answer_is_given_up_and_the_loop_ends_all_the_same():
    answers = threading.Event()

    def stuck() -> Config:
        answers.wait(60)
        return Config()

    # Returns before the thread does, which a thread of the executor would not let it.
    with pytest.raises(InvalidConfiguration, match=r"within 0\.05 s"):
        asyncio.run(read_again(stuck, 0.05))
    answers.set()


def test_who_is_cancelled_at_the_moment_of_the_answer_is_cancelled(monkeypatch):
    """asyncio.wait_for returns the answer instead, and who waited would go on for ever."""

    async def cancelled_at_the_answer() -> bool:
        loop = asyncio.get_running_loop()
        hand_over = loop.call_soon_threadsafe
        waiting = asyncio.create_task(read_again(Config))

        def both(settle: Callable[..., None], *found: object) -> None:
            settle(*found)
            waiting.cancel()

        def in_one_turn(settle: Callable[..., None], *found: object) -> asyncio.Handle:
            return hand_over(both, settle, *found)

        monkeypatch.setattr(loop, "call_soon_threadsafe", in_one_turn)
        await asyncio.wait([waiting])
        return waiting.cancelled()

    assert asyncio.run(cancelled_at_the_answer())
