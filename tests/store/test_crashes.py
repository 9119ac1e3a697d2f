"""A real sidecar that is killed with -9, loses power or has a full disk: what was acknowledged is
there, nothing counts twice, and in the end every bit is as if nobody had disturbed it.
`python -m tests.store.test_crashes --rounds 50` kills it a hundred times and more.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from monitor.pipeline.restart import RUN_STATE
from monitor.statistics.state import StatisticsState
from monitor.store.ledger import LedgerWriter
from monitor.store.ledger.schema import FILE
from monitor.store.state import StateFile
from monitor.store.statistics_state import decode, parsed
from monitor.v1 import frame_pb2, truth_pb2
from monitor.v1 import perception_monitor_pb2 as pb
from tests.faulty import FULL, READ_ONLY, FaultyDisk, faulty_disk
from tests.labelled import SECOND, header
from tests.promoted import Watcher
from tests.served import PATIENCE, ROOT, Sidecar, eventually, serve_command
from tests.states import bits, canonical

# ---- the traffic of two detectors and a labeller, the same in every run

Group = Sequence[frame_pb2.Frame] | Sequence[truth_pb2.FrameTruth]
_STREAMS = ("lidar", "camera")
_IN_ONE_GO, _LATE, _ROUNDS, _OBJECTS = 10, 3, 8, 8
_BEGIN = 1_700_000_000 * SECOND


def drawn_frame(stream: str, number: int) -> frame_pb2.Frame:
    """Tracks of eight objects; a detection in twenty is of no use, half of the truth comes along
    in every twentieth frame.
    """
    chance = np.random.default_rng([len(stream), number])
    stamp_ns = _BEGIN + number * SECOND // 10
    frame = frame_pb2.Frame(frame_id=number, stamp_ns=stamp_ns)
    for i in range(_OBJECTS):
        truth = np.full(2, 20.0 * i + 0.1 * number)
        one = frame.detections.add(
            id=100 * number + i,
            class_index=i % 2,
            mean=truth + 0.25 * chance.normal(size=2),
            covariance=[-1.0 if chance.random() < 0.05 else 0.04] * 2,
            upstream_track_id=_OBJECTS * (number // 25) + i,
            class_probabilities=chance.dirichlet(np.ones(2)),
        )
        if number % 20 == 0 and i % 2:
            one.ground_truth.extend(truth)
    return frame


def drawn_labels(stream: str, number: int, revision: int = 0) -> truth_pb2.FrameTruth:
    """Labels of most detections of a frame, by their ids or as the labeller's own objects."""
    chance = np.random.default_rng([len(stream), number, revision, 1])
    told = truth_pb2.FrameTruth(
        stream=stream, frame_id=number, revision=revision, complete=bool(chance.random() < 0.5)
    )
    objects = chance.random() < 0.5
    for i in range(_OBJECTS - 2):
        truth = np.full(2, 20.0 * i + 0.1 * number + 0.05 * revision)
        if objects:
            told.objects.add(
                object_id=1000 + i, class_index=i % 2, ground_truth=truth, ignore=i == 2
            )
        else:
            told.detections.add(
                detection_id=100 * number + i, ground_truth=truth, class_index=i % 2, ignore=i == 1
            )
    return told


def drawn_traffic() -> Iterator[Group]:
    """Labels come three rounds late, shuffled; some twice, some revised, some of no frame."""
    chance = random.Random(1)
    for begin in range(0, _ROUNDS * _IN_ONE_GO, _IN_ONE_GO):
        for stream in _STREAMS:
            yield [drawn_frame(stream, begin + at) for at in range(_IN_ONE_GO)]
        late = begin - _LATE * _IN_ONE_GO
        if late >= 0:
            names = [(one, late + at) for one in _STREAMS for at in range(_IN_ONE_GO)]
            told = [drawn_labels(*name) for name in names if chance.random() < 0.9]
            chance.shuffle(told)
            told += [chance.choice(told), drawn_labels("lidar", 10**6 + begin)]
            told += [drawn_labels(*chance.choice(names), revision=1 + begin) for _ in range(3)]
            yield told


TRAFFIC = tuple(drawn_traffic())


def through(groups: int) -> int:
    """Counts the operations of the first groups."""
    return sum(map(len, TRAFFIC[:groups]))


def stream_of(at: int) -> str:
    """The stream of a group of frames: they take turns."""
    frames = [isinstance(group[0], frame_pb2.Frame) for group in TRAFFIC[:at]]
    return _STREAMS[sum(frames) % 2]


def send_frames(sidecar: Sidecar, stream: str, frames: Sequence[frame_pb2.Frame]) -> None:
    """Every one is answered with all its detections."""
    requests = [header(stream, ("car", "truck")), *(pb.ProcessRequest(frame=f) for f in frames)]
    answers = sidecar.monitor.Process(iter(requests), timeout=6 * PATIENCE)
    assert next(answers).header.accepted
    sizes = [len(answer.frame.detections) for answer in answers]
    assert sizes == [len(frame.detections) for frame in frames]


def send_labels(
    sidecar: Sidecar, truths: Sequence[truth_pb2.FrameTruth]
) -> Iterator[pb.ReportGroundTruthResponse]:
    """Yields answers in order."""
    requests = (pb.ReportGroundTruthRequest(truth=truth) for truth in truths)
    answers = sidecar.monitor.ReportGroundTruth(requests, timeout=6 * PATIENCE)
    for truth, answer in zip(truths, answers, strict=True):
        assert (answer.stream, answer.frame_id) == (truth.stream, truth.frame_id)
        yield answer


@dataclass(slots=True)
class Client:
    """Sends the traffic; what was answered before an acknowledgement that is durable is never sent
    again, and after a crash all behind the last one is.

    durable       operations that never need be sent again
    acknowledged  labels whose acknowledgement was durable, by their position
    fleeting      acknowledgements that were not
    """

    durable: int = 0
    acknowledged: dict[int, truth_pb2.FrameTruth] = field(default_factory=dict)
    fleeting: int = 0

    def send(self, sidecar: Sidecar, until: int | None = None) -> bool:
        """Sends all that is left; False where the sidecar died of it.

        until  so many operations, at least
        """
        begins = 0
        try:
            for at, group in enumerate(TRAFFIC):
                if until is not None and begins >= until:
                    return True
                skip = max(0, self.durable - begins)
                if skip < len(group):
                    self._send(sidecar, at, begins, skip)
                begins += len(group)
        except grpc.RpcError as error:
            assert isinstance(error, grpc.Call)
            gone = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
            assert error.code() in gone, error
            return False
        return True

    def _send(self, sidecar: Sidecar, at: int, begins: int, skip: int) -> None:
        frames = [one for one in TRAFFIC[at][skip:] if isinstance(one, frame_pb2.Frame)]
        truths = [one for one in TRAFFIC[at][skip:] if isinstance(one, truth_pb2.FrameTruth)]
        if frames:
            send_frames(sidecar, stream_of(at), frames)
            return
        for place, answer in enumerate(send_labels(sidecar, truths), begins + skip):
            if answer.durable:
                self.durable = place + 1
                self.acknowledged[place] = truths[place - begins - skip]
            else:
                self.fleeting += 1


# ---- what there is in the end

# Labels that changed something. What came again, or is of no frame, may be told more than once.
_TOLD = ("matched", "ignored", "missed", "unassigned")


def settings(folder: Path, every_seconds: float = 0.3, **pending: object) -> str:
    """A sidecar that keeps all it can in a folder.

    every_seconds  between two checkpoints
    """
    keys = {"partition_minutes": 0.1, **pending}
    lines = "\n".join(f"{name} = {value}" for name, value in keys.items())
    return f"""
[server]
shed_lag_seconds = 0.0
shed_rows = 0
[metrics]
refresh_seconds = 0.2
[statistics]
slice_by = ["class", "stream"]
[pending]
{lines}
[state]
folder = '{folder}/state'
every_seconds = {every_seconds}
"""


def ended(sidecar: Sidecar, folder: Path) -> dict[str, Any]:
    """Ends it in order; returns all that must be the same however often it was killed."""
    sidecar.stop()
    contents = StateFile(folder / "state").load(lambda contents: contents).value
    assert contents is not None
    run = RUN_STATE.read(contents.parts["run"])
    shares = {(one.space.names, one.key): one for one in run.shares}
    streams = {one.header.stream: (one.watermark_ns, one.latest_ns) for one in run.streams}
    return {
        "statistics": of_labels(parsed(contents.parts["statistics"]).state),
        "fates": {**run.account, **{f"in {place}": count for place, count in run.on_disk}},
        "labels": [getattr(run.labels, name) for name in _TOLD],
        "shares": shares,
        "streams": streams,
    }


def statistics(sidecar: Sidecar) -> Any:
    """Every bit, whatever the order of slices."""
    parts = sidecar.monitor.ExportStatistics(pb.ExportStatisticsRequest(), timeout=PATIENCE)
    return of_labels(decode([part.part for part in parts]).state)


def of_labels(state: StatisticsState) -> Any:
    """Leaves out what is predicted: of that, a crash loses what came since the checkpoint."""
    return bits(canonical(replace(state, predicted=())))


def new_labels(sidecar: Sidecar, labels: Iterable[truth_pb2.FrameTruth]) -> int:
    """Counts the labels that it takes for new ones as they come once more: those were lost."""
    new = 0
    for answer in send_labels(sidecar, list(labels)):
        new += sum(getattr(answer.account, name) for name in _TOLD) + answer.retracted
    return new


def no_fault(sidecar: Sidecar) -> None:
    """Nothing went wrong, and all that was to be done again was."""
    text = sidecar.log.read_text("utf-8")
    assert "Traceback" not in text, text
    again = re.search(r"entries done again, (\d+) not", text)
    assert again is None or again[1] == "0", text


def undisturbed_run(folder: Path, config: str) -> dict[str, Any]:
    """What there is in the end where nothing dies."""
    sidecar, client = Sidecar(folder, config), Client()
    try:
        assert client.send(sidecar), sidecar.log.read_text("utf-8")
        assert client.durable == through(len(TRAFFIC))
        return ended(sidecar, folder)
    finally:
        sidecar.end()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("undisturbed")
    return undisturbed_run(folder, settings(folder))


@contextlib.contextmanager
def killed_after(sidecar: Sidecar, seconds: float) -> Iterator[None]:
    """kill -9 so many seconds from now, or as soon as the block ends if that is earlier."""
    timer = threading.Timer(seconds, sidecar.process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        sidecar.process.kill()
        sidecar.process.wait(PATIENCE)
        sidecar.end()
    no_fault(sidecar)


def killed_as_it_starts(folder: Path, config: str, seconds: float) -> None:
    """A sidecar that lives so long, ready or not."""
    (folder / "sidecar.toml").write_text(config, encoding="utf-8")
    command = serve_command("--config", str(folder / "sidecar.toml"))
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, cwd=ROOT, stdout=quiet, stderr=quiet)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    process.kill()
    process.wait(PATIENCE)


def assert_ends_undisturbed(
    folder: Path, state: Path, config: str, client: Client, undisturbed: dict[str, Any]
) -> None:
    """Lets a client send the rest: nothing that was promised is new, and the end is the same."""
    sidecar = Sidecar(folder, config)
    try:
        assert new_labels(sidecar, client.acknowledged.values()) == 0
        assert client.send(sidecar), sidecar.log.read_text("utf-8")
        before = statistics(sidecar)
        assert new_labels(sidecar, client.acknowledged.values()) == 0
        assert len(client.acknowledged) > 80
        found = ended(sidecar, state)
        assert before == found["statistics"]
        for name, value in undisturbed.items():
            assert found[name] == value, name
    finally:
        sidecar.end()
    no_fault(sidecar)


# s between two checkpoints, and bytes of memory: with little, most labels find frames on the disk.
VARIANTS = ((60.0, 2**28), (0.3, 2**28), (60.0, 100_000), (0.3, 100_000))


def killed_round(folder: Path, undisturbed: dict[str, Any], seed: int) -> Client:
    """Kills it twice under load, and perhaps as it starts; it must end as if nobody had."""
    every_seconds, memory = VARIANTS[seed % len(VARIANTS)]
    config = settings(folder, every_seconds, max_bytes=memory)
    chance, client = random.Random(seed), Client()
    for _ in range(2):
        if chance.random() < 0.3:
            killed_as_it_starts(folder, config, chance.uniform(0.3, 1.5))
        with killed_after(sidecar := Sidecar(folder, config), chance.uniform(0.0, 0.8)):
            client.send(sidecar)
    assert_ends_undisturbed(folder, folder, config, client, undisturbed)
    return client


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(1, 1 + len(VARIANTS)))
def test_wherever_it_is_killed_the_end_is_that_of_a_run_that_nobody_disturbed(
    tmp_path, undisturbed, seed
):
    killed_round(tmp_path, undisturbed, seed)


# ---- the power fails: of each file a disk has what it was when it was last synced


@pytest.mark.components
@pytest.mark.parametrize(("seed", "every_seconds"), [(1, 0.3), (2, 60.0), (3, 0.3)])
def test_what_was_acknowledged_outlives_the_power_and_the_rest_is_sent_again(
    tmp_path, undisturbed, seed, every_seconds
):
    disk, chance, client = faulty_disk(tmp_path), random.Random(seed), Client()
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
    sent = [drawn_frame("lidar", number) for number in range(_IN_ONE_GO)]
    sidecar = Sidecar(tmp_path, settings(disk.folder, 60.0), environment=disk.environment)
    with killed_after(sidecar, 60.0):
        send_frames(sidecar, "lidar", sent)
        assert eventually(lambda: synced_frames(disk) == len(sent), 30)
    disk.after_power_loss(found)
    told = [truth_pb2.FrameTruth(stream="lidar", frame_id=one.frame_id) for one in sent]
    for labels, frame in zip(told, sent, strict=True):
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
BEFORE, AFTER = through(14), through(18)


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
        return settings(folder, partition_minutes=10.0)

    (tmp_path / "calm").mkdir()
    calm = undisturbed_run(tmp_path / "calm", in_one(tmp_path / "calm"))
    config = in_one(disk.folder)
    sidecar = Sidecar(tmp_path, config, environment=disk.environment)
    with killed_after(sidecar, 90.0):
        watcher, client = Watcher(sidecar), Client()
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
    disk, client = faulty_disk(tmp_path), Client()
    disk.fail(READ_ONLY)
    sidecar = Sidecar(tmp_path, settings(disk.folder), environment=disk.environment)
    with killed_after(sidecar, 60.0):
        watcher = Watcher(sidecar)
        assert warnings(sidecar, "pending: ") >= 1
        assert client.send(sidecar, until=through(9))
        assert client.fleeting > 0 == len(client.acknowledged)
        disk.heal()
        assert eventually(lambda: told(watcher, "are written again") == 1)
        client.send(sidecar, until=through(9))
        assert client.acknowledged
        watcher.close()
    sidecar = Sidecar(tmp_path, settings(disk.folder), environment=disk.environment)
    try:
        assert new_labels(sidecar, client.acknowledged.values()) == 0
    finally:
        sidecar.end()


def main() -> None:
    """Plays rounds of kills until one raises."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as name:
        undisturbed = undisturbed_run(Path(name), settings(Path(name)))
    for seed in range(rounds):
        print(f"seed {seed}: ", end="", flush=True)
        with tempfile.TemporaryDirectory() as name:
            client = killed_round(Path(name), undisturbed, seed)
        print(f"{len(client.acknowledged)} acknowledged labels, none lost, none counted twice")


if __name__ == "__main__":
    main()
