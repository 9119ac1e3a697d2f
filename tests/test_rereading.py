"""A configuration that is read again by a thread that nothing waits for."""

import asyncio
import threading

import pytest

from monitor.config import Config, InvalidConfiguration
from monitor.rereading import read_again


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
