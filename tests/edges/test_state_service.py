"""Statistics out of one running sidecar and into another: all of them or none, over the wire."""

from __future__ import annotations

import asyncio
import json

import grpc
import numpy as np
import pytest

from monitor.cli import main
from monitor.pipeline.events import Events
from monitor.service import admin
from monitor.service.admin import StateService
from monitor.service.calls import INTERNAL_ERROR, Context, TransferTimeout, guarded
from monitor.service.frames import Service
from monitor.statistics.bins import IncompatibleStatistics
from monitor.statistics.state import StatisticsState
from monitor.store.state_definitions import InvalidState
from monitor.store.statistics_state import StoredState, serialised
from monitor.v1 import frame_pb2, statistics_state_pb2
from monitor.v1 import perception_monitor_pb2 as pb
from monitor.wire.requests import WireLimits
from tests.labelled import SECOND, converse, exported, header, imported
from tests.piped import pipeline_of
from tests.served import MONITOR, PATIENCE, Sidecar, starting
from tests.states import assert_same_state, bits

CONFIG = ""
# A field that only newer code knows: number 1000, five bytes.
ADDED = b"\xc2\x3e\x05newer"


def drive(sidecar: Sidecar, seed: int, classes=("car", "bus"), frames=4) -> None:
    """Labelled detections of a stream of the seed's own, frames a minute apart."""
    random = np.random.default_rng(seed)
    messages = [header(f"lidar{seed}", classes)]
    for number in range(frames):
        frame = frame_pb2.Frame(frame_id=number, stamp_ns=60 * SECOND * (seed + number))
        for i in range(20):
            mean = random.normal(size=2)
            frame.detections.add(
                id=i,
                class_index=int(random.integers(len(classes))),
                mean=mean,
                covariance=random.uniform(0.5, 2, 2),
                ground_truth=mean + random.normal(size=2),
            )
        messages.append(pb.ProcessRequest(frame=frame))
    converse(sidecar, *messages)


@pytest.fixture
def start(tmp_path):
    """Starts sidecars that end with the test."""
    with starting(tmp_path, CONFIG) as begin:
        yield begin


def n_of(state: StatisticsState) -> int:
    return sum(entry.n for entry in state.slices)


def requests(stored: StoredState) -> list[pb.ImportStatisticsRequest]:
    return [
        pb.ImportStatisticsRequest(part=statistics_state_pb2.StatisticsState.FromString(part))
        for part in serialised(stored)
    ]


def refusal(sidecar: Sidecar, messages) -> tuple[grpc.StatusCode, str]:
    """What an import ends with that must not change anything."""
    before = bits(exported(sidecar).state)
    with pytest.raises(grpc.RpcError) as error:
        sidecar.monitor.ImportStatistics(iter(messages), timeout=PATIENCE)
    assert bits(exported(sidecar).state) == before
    return error.value.code(), error.value.details()


def test_what_is_imported_is_what_a_merge_makes_of_both(start):
    ours, theirs = start(), start()
    drive(ours, 1, ("car", "bus"))
    drive(theirs, 2, ("bus", "person"))
    a, b = exported(ours), exported(theirs)
    assert {entry.name for entry in a.state.slices} == {"car", "bus"}
    detections, new_slices = imported(ours, b)
    assert (detections, new_slices) == (80, 1)
    assert_same_state(exported(ours).state, a.state.merge(b.state))
    assert ours.labelled("total") == 160


@pytest.mark.parametrize(("hours", "moved"), [(1 / 60, False), (2, True), (2000, True)])
def test_what_is_of_a_time_far_ahead_is_in_no_window_and_moves_none(start, hours, moved):
    ours, theirs = start(), start()
    drive(ours, 0)
    drive(theirs, int(60 * hours))
    before = exported(ours).state
    assert imported(ours, exported(theirs)) == (80, 0)
    after = exported(ours).state
    older = (after.windows.older, 0)
    assert {key for entry in after.slices for key in entry.panes if key == older} == (
        {older} if moved else set()
    )
    assert n_of(after) == 160
    if moved:
        assert after.clock_ns == before.clock_ns
        # Ours lie where they lay.
        for entry, was in zip(after.slices, before.slices, strict=True):
            assert bits(entry.panes | {older: None}) == bits(was.panes | {older: None})


def test_an_empty_sidecar_exports_a_state_that_changes_nothing(start):
    ours, empty = start(), start()
    drive(ours, 1)
    before = exported(ours)
    nothing = exported(empty)
    assert nothing.state.slices == () and nothing.state.clock_ns is None
    assert imported(ours, nothing) == (0, 0)
    assert bits(exported(ours).state) == bits(before.state)


def test_what_newer_code_has_added_goes_out_again(start):
    ours, theirs = start(), start()
    drive(ours, 1)
    drive(theirs, 2)
    messages = requests(exported(theirs))
    messages[0].part.MergeFromString(ADDED)
    messages[1].part.slices[0].MergeFromString(ADDED)
    ours.monitor.ImportStatistics(iter(messages), timeout=PATIENCE)
    assert exported(ours).unknown.count(ADDED) == 2


def test_statistics_on_other_bins_are_refused_with_both_definitions_named(start):
    ours = start()
    drive(ours, 1)
    other = exported(start(CONFIG + "[statistics]\ntau = [0.5, 0.9]\n"))
    code, said = refusal(ours, requests(other))
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert other.state.binning.describe() in said
    assert exported(ours).state.binning.describe() in said
    assert "the bins differ" in said


def test_a_state_of_which_one_part_is_damaged_is_refused_as_a_whole(start):
    ours, theirs = start(), start()
    drive(ours, 1)
    drive(theirs, 2)
    messages = requests(exported(theirs))
    messages[-1].part.slices[0].panes[0].raw.cells.width = 3
    code, said = refusal(ours, messages)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "panes[0].raw.cells.width: 3 columns" in said


def test_an_import_without_parts_is_refused(start):
    code, said = refusal(start(), [])
    assert (code, "no part of it came" in said) == (grpc.StatusCode.INVALID_ARGUMENT, True)


def test_bytes_that_are_no_message_are_refused(start):
    sidecar = start()
    call = sidecar.channel.stream_unary(f"/{MONITOR}/ImportStatistics")
    with pytest.raises(grpc.RpcError) as error:
        call(iter([b"\xff\xff"]), timeout=PATIENCE)
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.value.details().startswith("message 0: 2 bytes are no ImportStatisticsRequest.")


def test_export_and_merge_on_the_command_line_add_up_two_sidecars(start, tmp_path, capsys):
    files = []
    states = []
    for seed in (1, 2):
        sidecar = start()
        drive(sidecar, seed)
        file = tmp_path / f"{seed}.state"
        assert main(["export", "--address", sidecar.grpc, "-o", str(file)]) == 0
        assert capsys.readouterr().out.endswith(f" 80 detections, written to {file}\n")
        files.append(str(file))
        states.append(exported(sidecar).state)
    assert main(["merge", *files, "-o", str(tmp_path / "both.state"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["detections"] == 160
    assert found["clock_ns"] == states[0].merge(states[1]).clock_ns


# ---- in this process


class Reader:
    """The other end of a call: reads what is written, or nothing."""

    def __init__(self, *, reads=True) -> None:
        self.reads = reads
        self.read_bytes: list[bytes] = []

    def time_remaining(self) -> None:
        return None

    async def read(self) -> bytes:
        raise AssertionError("nobody calls this")

    async def write(self, message: bytes) -> None:
        if not self.reads:
            await asyncio.sleep(60)
        self.read_bytes.append(message)

    async def abort(self, code, details):
        raise AssertionError("nobody calls this")


def empty_service(**server) -> StateService:
    return StateService(pipeline_of(server=server))


async def sent(messages, then_wait=False):
    for data in messages:
        yield data
    if then_wait:
        await asyncio.sleep(60)


def test_an_import_of_too_many_bytes_is_refused_before_it_is_read(monkeypatch):
    monkeypatch.setattr(admin, "MOST_IMPORT_BYTES", 100)
    service = empty_service()
    with pytest.raises(InvalidState, match="more than 100 bytes"):
        asyncio.run(service.import_statistics(sent([bytes(60)] * 2), Reader()))


def test_an_import_that_never_ends_is_given_up(monkeypatch):
    monkeypatch.setattr(admin, "IMPORT_SECONDS", 0.05)
    service = empty_service()
    with pytest.raises(TransferTimeout, match="nothing was added"):
        asyncio.run(service.import_statistics(sent([], then_wait=True), Reader()))
    # And the next one is not kept waiting by it.
    with pytest.raises(InvalidState, match="no part"):
        asyncio.run(service.import_statistics(sent([]), Reader()))


def test_a_client_that_does_not_read_its_export_is_dropped():
    service = empty_service(write_timeout_seconds=0.05)
    with pytest.raises(TransferTimeout, match="were not read"):
        asyncio.run(service.export_statistics(b"", Reader(reads=False)))


class OtherEdges(IncompatibleStatistics):
    """As a colleague might add one."""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OtherEdges("other edges"), grpc.StatusCode.FAILED_PRECONDITION),
        (InvalidState("damaged"), grpc.StatusCode.INVALID_ARGUMENT),
        (TransferTimeout("too slow"), grpc.StatusCode.ABORTED),
        # What names and documents say is long is cut.
        (InvalidState("x" * 10_000), grpc.StatusCode.INVALID_ARGUMENT),
        # One of ours that nobody caught is no fault of the client.
        (TimeoutError("elsewhere"), grpc.StatusCode.INTERNAL),
    ],
)
def test_errors_end_a_call_with_the_status_of_their_kind(error, code):
    async def handler(_: bytes, context: Context) -> bytes:
        raise error

    class Ended(Exception):
        pass

    class Caller(Reader):
        async def abort(self, code, details):
            raise Ended(code, details)

    service = Service(pipeline_of(), Events(), WireLimits(2**20, 100))

    async def called() -> bytes:
        return await guarded(service, handler)(b"", Caller())

    with pytest.raises(Ended) as ended:
        asyncio.run(called())
    said = INTERNAL_ERROR if code is grpc.StatusCode.INTERNAL else str(error)
    assert ended.value.args == (code, said if len(said) <= 500 else said[:499] + "…")
    assert service.calls_in_work == 0
