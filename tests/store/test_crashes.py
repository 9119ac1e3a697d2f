"""A real sidecar that is killed with -9, loses power or has a full disk: what was acknowledged is
there, nothing counts twice, and in the end every bit is as if nobody had disturbed it.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path

import pytest

from monitor.store.ledger import FILE, LedgerWriter
from monitor.v1 import truth_pb2
from tests.faulty import FULL, READ_ONLY, FaultyDisk, faulty_disk
from tests.killed import (
    Client,
    End,
    Frames,
    ended,
    killed_after,
    killed_as_it_starts,
    new_labels,
    no_fault,
    send_frames,
    send_labels,
    settings,
    statistics,
    traffic,
    undisturbed_run,
)
from tests.promoted import Watcher
from tests.served import Sidecar, eventually

TRAFFIC = traffic(rounds=8)
# Bytes of memory for frames: with the little one, most labels find theirs on the disk.
AMPLE, LITTLE = 2**28, 200_000


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> End:
    folder = tmp_path_factory.mktemp("undisturbed")
    return undisturbed_run(folder, settings(folder), TRAFFIC)


def assert_ends_undisturbed(
    folder: Path, state: Path, config: str, client: Client, undisturbed: End
) -> None:
    """Lets a client send the rest: nothing that was promised is new, and the end is the same."""
    sidecar = Sidecar(folder, config)
    try:
        assert new_labels(sidecar, client.acknowledged.values()) == 0
        assert client.send(sidecar), sidecar.log.read_text("utf-8")
        before = statistics(sidecar)
        assert new_labels(sidecar, client.acknowledged.values()) == 0
        assert len(client.acknowledged) > 100
        found = ended(sidecar, state)
        assert before == found.statistics == undisturbed.statistics
        assert found == undisturbed
    finally:
        sidecar.end()
    no_fault(sidecar)


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("seed", "every_seconds", "memory"),
    [(1, 0.3, AMPLE), (2, 60.0, LITTLE), (3, 0.3, LITTLE), (4, 60.0, AMPLE)],
)
def test_wherever_it_is_killed_the_end_is_that_of_a_run_that_nobody_disturbed(
    tmp_path, undisturbed, seed, every_seconds, memory
):
    """Under load and as it starts."""
    config = settings(tmp_path, every_seconds, max_bytes=memory)
    chance, client = random.Random(seed), Client(TRAFFIC)
    for _ in range(2):
        if chance.random() < 0.3:
            killed_as_it_starts(tmp_path, config, chance.uniform(0.3, 1.5))
        with killed_after(sidecar := Sidecar(tmp_path, config), chance.uniform(0.0, 0.8)):
            client.send(sidecar)
    assert_ends_undisturbed(tmp_path, tmp_path, config, client, undisturbed)


@pytest.mark.campaign
def test_after_an_end_in_order_it_is_as_it_was_and_nothing_is_done_again(tmp_path):
    config = settings(tmp_path, 60.0)
    sidecar = Sidecar(tmp_path, config)
    try:
        assert Client(TRAFFIC).send(sidecar)
        before, end = statistics(sidecar), ended(sidecar, tmp_path)
        sidecar.end()
        sidecar = Sidecar(tmp_path, config)
        assert before == end.statistics == statistics(sidecar)
        # The watch over drift holds back what older frames may still overtake: that is done again.
        assert sidecar.metric("ledger_lost_entries") == 0
        assert ended(sidecar, tmp_path) == end
    finally:
        sidecar.end()


# ---- the power fails: of each file a disk has what it was when it was last synced


@pytest.mark.components
@pytest.mark.parametrize(("seed", "every_seconds"), [(1, 0.3), (2, 60.0), (3, 0.3)])
def test_what_was_acknowledged_outlives_the_power_and_the_rest_is_sent_again(
    tmp_path, undisturbed, seed, every_seconds
):
    disk, chance, client = faulty_disk(tmp_path), random.Random(seed), Client(TRAFFIC)
    config = settings(disk.folder, every_seconds)
    for number in range(2):
        sidecar = Sidecar(tmp_path, config, environment=disk.environment)
        with killed_after(sidecar, chance.uniform(0.3, 1.2)):
            client.send(sidecar)
        found = tmp_path / f"found{number}"
        disk.after_power_loss(found)
        shutil.rmtree(disk.folder)
        shutil.copytree(found, disk.folder)
    assert_ends_undisturbed(tmp_path, disk.folder, config, client, undisturbed)


def synced_frames(disk: FaultyDisk) -> int:
    """Counts the frames that a disk would have."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found"
        disk.after_power_loss(found)
        ledger = LedgerWriter(found / "state" / FILE, 1 << 30)
        frames = ledger.open().frames
        ledger.disconnect()
        return len(frames)


@pytest.mark.components
def test_frames_without_labels_are_synced_by_themselves_after_a_while(tmp_path):
    disk, found = faulty_disk(tmp_path), tmp_path / "found"
    sent = next(group for group in TRAFFIC.groups if isinstance(group, Frames))
    sidecar = Sidecar(tmp_path, settings(disk.folder, 60.0), environment=disk.environment)
    with killed_after(sidecar, 60.0):
        send_frames(sidecar, sent)
        assert eventually(lambda: synced_frames(disk) == len(sent), 30)
    disk.after_power_loss(found)
    told = [truth_pb2.FrameTruth(stream="lidar", frame_id=one.frame_id) for one in sent.frames]
    for labels, frame in zip(told, sent.frames, strict=True):
        for one in frame.detections:
            labels.detections.add(detection_id=one.id, ground_truth=one.mean)
    sidecar = Sidecar(tmp_path, settings(found, 60.0))
    try:
        for answer in send_labels(sidecar, told):
            assert answer.durable
            assert answer.account.matched > 0 == answer.account.orphan
    finally:
        sidecar.end()


# ---- a disk that takes nothing

# Groups that are through before the disk fails, and when it is well again.
BEFORE, AFTER = TRAFFIC.through(17), TRAFFIC.through(21)


def told(watcher: Watcher, words: str) -> int:
    """Counts events of health with these words."""
    return sum(words in one.event.health.message for one in watcher.events)


def warnings(sidecar: Sidecar, words: str) -> int:
    text = sidecar.log.read_text("utf-8").splitlines()
    return sum("WARNING" in line and words in line for line in text)


@pytest.mark.components
@pytest.mark.parametrize("code", [FULL, READ_ONLY])
def test_while_the_disk_takes_nothing_frames_go_on_and_afterwards_all_is_promised_again(
    tmp_path, code
):
    disk = faulty_disk(tmp_path)

    def in_one(folder: Path) -> str:
        """All in one partition: of several, the oldest would go where the disk is full."""
        return settings(folder).replace("partition_minutes = 0.1", "partition_minutes = 10.0")

    (tmp_path / "calm").mkdir()
    calm = undisturbed_run(tmp_path / "calm", in_one(tmp_path / "calm"), TRAFFIC)
    config = in_one(disk.folder)
    sidecar = Sidecar(tmp_path, config, environment=disk.environment)
    with killed_after(sidecar, 90.0):
        watcher, client = Watcher(sidecar), Client(TRAFFIC)
        assert client.send(sidecar, until=BEFORE)
        promised, through = len(client.acknowledged), client.durable
        assert promised > 0 == client.fleeting

        disk.fail(code)
        assert client.send(sidecar, until=AFTER)
        assert client.fleeting > 0
        assert len(client.acknowledged) == promised
        assert eventually(lambda: told(watcher, "are not written") == 1)
        assert eventually(lambda: sidecar.metric("ledger_failures_total") >= 1)
        assert sidecar.metric("ledger_waiting") > 0
        # The 1st, 2nd, 4th, 8th … failure.
        assert 1 <= warnings(sidecar, "frames and labels are not written") <= 8

        disk.heal()
        assert eventually(lambda: told(watcher, "are written again") == 1)
        assert eventually(lambda: sidecar.metric("ledger_waiting") == 0)
        assert told(watcher, "are not written") == 1
        # What was not promised is sent again, and known.
        assert client.durable == through
        assert client.send(sidecar, until=AFTER)
        assert client.durable == AFTER
        watcher.close()
    assert_ends_undisturbed(tmp_path, disk.folder, config, client, calm)


@pytest.mark.components
def test_where_the_disk_takes_nothing_from_the_start_it_serves_and_keeps_when_it_can(tmp_path):
    disk, client = faulty_disk(tmp_path), Client(TRAFFIC)
    disk.fail(READ_ONLY)
    sidecar = Sidecar(tmp_path, settings(disk.folder), environment=disk.environment)
    with killed_after(sidecar, 60.0):
        watcher = Watcher(sidecar)
        assert warnings(sidecar, "pending: ") >= 1
        assert client.send(sidecar, until=TRAFFIC.through(13))
        assert client.fleeting > 0 == len(client.acknowledged)
        disk.heal()
        assert eventually(lambda: told(watcher, "are written again") == 1)
        client.send(sidecar, until=TRAFFIC.through(13))
        assert client.acknowledged
        watcher.close()
    sidecar = Sidecar(tmp_path, settings(disk.folder), environment=disk.environment)
    try:
        assert new_labels(sidecar, client.acknowledged.values()) == 0
    finally:
        sidecar.end()
