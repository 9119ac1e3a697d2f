"""A disk that is full, or takes nothing, from the start or for a while: it is said once, frames are
answered all the same, labels are not promised; and when there is room again all is as before.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faulty import FULL, READ_ONLY, FaultyDisk, faulty_disk
from tests.killed import (
    Client,
    Frames,
    Labels,
    ended,
    new_labels,
    settings,
    traffic,
    undisturbed_run,
)
from tests.promoted import Watcher
from tests.served import Sidecar, eventually

pytestmark = pytest.mark.components

TRAFFIC = traffic(rounds=8)
# Operations that are through before the disk fails, and when it is well again.
BEFORE = sum(map(len, TRAFFIC.groups[:17]))
AFTER = sum(map(len, TRAFFIC.groups[:21]))


def in_one(folder: Path) -> str:
    """All in one partition: of several, the oldest would go where the disk is full."""
    return settings(folder).replace("partition_minutes = 0.1", "partition_minutes = 10.0")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    return undisturbed_run(folder, in_one(folder), TRAFFIC)


@pytest.fixture
def disk(tmp_path) -> FaultyDisk:
    return faulty_disk(tmp_path)


def told(watcher: Watcher, words: str) -> int:
    """Events of health with these words."""
    return sum(words in one.event.health.message for one in watcher.events)


def lines(sidecar: Sidecar, words: str) -> int:
    """In the log, as warnings."""
    text = sidecar.log.read_text("utf-8").splitlines()
    return sum("WARNING" in line and words in line for line in text)


@pytest.mark.parametrize("code", [FULL, READ_ONLY])
def test_while_the_disk_takes_nothing_frames_go_on_and_afterwards_all_is_promised_again(
    tmp_path, disk, undisturbed, code
):
    config = in_one(disk.folder)
    sidecar = Sidecar(tmp_path, config, environment=disk.environment)
    try:
        watcher, client = Watcher(sidecar), Client(TRAFFIC)
        assert client.send(sidecar, until=BEFORE)
        promised, through = len(client.acknowledged), client.durable
        assert promised
        assert client.fleeting == 0

        disk.fail(code)
        assert client.send(sidecar, until=AFTER)
        assert client.fleeting > 0
        assert len(client.acknowledged) == promised
        assert eventually(lambda: told(watcher, "are not written") == 1)
        assert eventually(lambda: sidecar.metric("ledger_failures_total") >= 1)
        assert sidecar.metric("ledger_waiting") > 0
        # The 1st, 2nd, 4th, 8th … failure.
        assert 1 <= lines(sidecar, "frames and labels are not written") <= 8

        disk.heal()
        assert eventually(lambda: told(watcher, "are written again") == 1)
        assert eventually(lambda: sidecar.metric("ledger_waiting") == 0)
        assert told(watcher, "are not written") == 1
        # What was not promised is sent again, and known.
        assert client.durable == through
        assert client.send(sidecar, until=AFTER)
        assert client.durable == AFTER
        watcher.close()
        sidecar.process.kill()
        sidecar.process.wait()
        assert "Traceback" not in sidecar.log.read_text("utf-8")
        sidecar.end()

        sidecar = Sidecar(tmp_path, config, environment=disk.environment)
        assert new_labels(sidecar, list(client.acknowledged.values())) == 0
        assert client.send(sidecar)
        assert ended(sidecar, disk.folder).differs_from(undisturbed) == []
    finally:
        sidecar.end()


@pytest.mark.parametrize("code", [FULL, READ_ONLY])
def test_where_the_disk_takes_nothing_from_the_start_it_serves_and_keeps_when_it_can(
    tmp_path, disk, code
):
    disk.fail(code)
    sidecar = Sidecar(tmp_path, settings(disk.folder), environment=disk.environment)
    try:
        watcher = Watcher(sidecar)
        assert lines(sidecar, "pending: ") >= 1
        client = Client(TRAFFIC)
        only = [one for one in TRAFFIC.groups[:13] if isinstance(one, Frames | Labels)]
        assert client.send(sidecar, until=sum(map(len, only)))
        assert not client.acknowledged
        assert client.fleeting > 0
        disk.heal()
        assert eventually(lambda: told(watcher, "are written again") == 1)
        client.send(sidecar, until=sum(map(len, only)))
        assert client.acknowledged
        watcher.close()
        sidecar.process.kill()
        sidecar.process.wait()
        assert "Traceback" not in sidecar.log.read_text("utf-8")
        sidecar.end()

        sidecar = Sidecar(tmp_path, settings(disk.folder), environment=disk.environment)
        assert new_labels(sidecar, list(client.acknowledged.values())) == 0
    finally:
        sidecar.end()
