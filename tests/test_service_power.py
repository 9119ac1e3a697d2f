"""The power fails: of each file a disk has what it was when it was last synced. Labels that were
acknowledged are there, and so are all frames that were answered before them.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path

import pytest

from monitor.store.ledger import FILE, LedgerWriter
from monitor.v1 import frame_pb2, truth_pb2
from tests.faulty import FaultyDisk, faulty_disk
from tests.killed import (
    Client,
    Frames,
    ended,
    killed_after,
    new_labels,
    send_frames,
    send_labels,
    settings,
    statistics,
    traffic,
    undisturbed_run,
)
from tests.served import Sidecar, eventually

pytestmark = pytest.mark.components

TRAFFIC = traffic(rounds=8)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    return undisturbed_run(folder, settings(folder), TRAFFIC)


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
        # The disk is what it was at the last sync of each file.
        found = tmp_path / f"found{number}"
        disk.after_power_loss(found)
        shutil.rmtree(disk.folder)
        shutil.copytree(found, disk.folder)
    sidecar = Sidecar(tmp_path, config)
    try:
        assert new_labels(sidecar, list(client.acknowledged.values())) == 0
        assert client.send(sidecar)
        before = statistics(sidecar)
        found = ended(sidecar, disk.folder)
        assert before == found.statistics
        assert found.differs_from(undisturbed) == []
        assert "Traceback" not in sidecar.log.read_text("utf-8")
    finally:
        sidecar.end()


def test_frames_without_labels_are_synced_by_themselves_after_a_while(tmp_path):
    disk = faulty_disk(tmp_path)
    sent, *_ = (group for group in TRAFFIC.groups if isinstance(group, Frames))
    sidecar = Sidecar(tmp_path, settings(disk.folder, 60.0), environment=disk.environment)
    with killed_after(sidecar, 60.0):
        send_frames(sidecar, sent)
        assert eventually(lambda: synced_frames(disk) == len(sent), 30)
    found = tmp_path / "found"
    disk.after_power_loss(found)
    sidecar = Sidecar(tmp_path, settings(found, 60.0))
    try:
        first = [by_id(frame) for frame in sent.frames]
        for answer in send_labels(sidecar, first):
            assert answer.durable
            assert answer.account.matched > 0
            assert not answer.account.orphan
    finally:
        sidecar.end()


def synced_frames(disk: FaultyDisk) -> int:
    """That a disk would have."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "found"
        disk.after_power_loss(found)
        ledger = LedgerWriter(found / "state" / FILE, 1 << 30)
        frames = ledger.open().frames
        ledger.disconnect()
        return len(frames)


def by_id(frame: frame_pb2.Frame) -> truth_pb2.FrameTruth:
    """Exact labels of all its detections."""
    told = truth_pb2.FrameTruth(stream="lidar", frame_id=frame.frame_id)
    for one in frame.detections:
        told.detections.add(detection_id=one.id, ground_truth=one.mean)
    return told
