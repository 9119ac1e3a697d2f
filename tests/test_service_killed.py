"""A real sidecar killed with -9 at any moment, under load and as it starts: nothing that was
acknowledged is lost, nothing is counted twice, and every bit is as if nobody had disturbed it.
"""

from __future__ import annotations

import random

import pytest

from tests.killed import (
    Client,
    End,
    ended,
    killed_round,
    settings,
    statistics,
    traffic,
    undisturbed_run,
)
from tests.served import Sidecar

pytestmark = pytest.mark.campaign

# Bytes of memory for frames: with the little one, most labels find theirs on the disk.
AMPLE, LITTLE = 2**28, 200_000
TRAFFIC = traffic(rounds=8)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> End:
    folder = tmp_path_factory.mktemp("undisturbed")
    return undisturbed_run(folder, settings(folder, max_bytes=AMPLE), TRAFFIC)


@pytest.mark.parametrize(
    ("seed", "every_seconds", "memory"),
    [(1, 0.3, AMPLE), (2, 60.0, LITTLE), (3, 0.3, LITTLE), (4, 60.0, AMPLE)],
)
def test_wherever_it_is_killed_the_end_is_that_of_a_run_that_nobody_disturbed(
    tmp_path, undisturbed, seed, every_seconds, memory
):
    config = settings(tmp_path, every_seconds, max_bytes=memory)
    done = killed_round(tmp_path, config, TRAFFIC, undisturbed, random.Random(seed), kills=2)
    assert done.kills >= 2
    assert (done.lost, done.twice, done.differs) == (0, 0, ())
    assert done.acknowledged > 500


def test_after_an_end_in_order_it_is_as_it_was(tmp_path):
    config = settings(tmp_path, 60.0)
    sidecar = Sidecar(tmp_path, config)
    try:
        assert Client(TRAFFIC).send(sidecar)
        before = statistics(sidecar)
        end = ended(sidecar, tmp_path)
        sidecar.end()
        assert before == end.statistics
        sidecar = Sidecar(tmp_path, config)
        assert statistics(sidecar) == before
        # The watch over drift holds back what older frames may still overtake: that is done again.
        assert sidecar.metric("ledger_lost_entries") == 0
        assert ended(sidecar, tmp_path).differs_from(end) == []
    finally:
        sidecar.end()
