"""Statistics kept on disk by real `serve` processes: over restarts, kills, and what a disk or a
configuration can have against it."""

from __future__ import annotations

import math
import re
import resource
import signal
from dataclasses import replace
from itertools import count
from pathlib import Path

import grpc
import pytest

from monitor.commands.sending import running_sidecar
from monitor.statistics.state import StatisticsState
from monitor.store.snapshot import read_body
from monitor.store.statistics_state import StoredState, parsed
from monitor.v1 import perception_monitor_pb2 as pb
from monitor.v1 import perception_monitor_pb2_grpc
from tests.labelled import converse, exported, header, imported, labelled_frame
from tests.served import PATIENCE, Sidecar, eventually
from tests.states import bits

ROWS = 20


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Where statistics are kept."""
    folder = tmp_path / "state"
    folder.mkdir()
    return folder / "kept.state"


@pytest.fixture
def start(tmp_path, kept):
    """Starts sidecars that keep their statistics there and end with the test."""
    sidecars: list[Sidecar] = []
    numbers = count()

    def begin(more="", path: Path | None = kept, every=0.2) -> Sidecar:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        snapshot = f'[snapshot]\npath = "{path or ""}"\nevery_seconds = {every}\n'
        metrics = "[metrics]\nrefresh_seconds = 0.1\n"
        sidecars.append(Sidecar(folder, metrics + snapshot + more))
        return sidecars[-1]

    yield begin
    for sidecar in sidecars:
        sidecar.end()
    for sidecar in sidecars:
        assert "Traceback" not in sidecar.log.read_text("utf-8")


def frames(seed: int, numbers: range, apart_s=1.0) -> list[pb.ProcessRequest]:
    return [labelled_frame(seed, i, rows=ROWS, stamp_s=apart_s * i) for i in numbers]


def n_of(state: StatisticsState) -> int:
    return sum(entry.n for entry in state.slices)


def n_on_disk(path: Path) -> int:
    """Detections in the file as it is now; −1: there is none."""
    try:
        return n_of(parsed(read_body(path)).state)
    except FileNotFoundError:
        return -1


def left(folder: Path) -> list[str]:
    """Names of the files in a folder, but for those that say who writes there."""
    return sorted(file.name for file in folder.iterdir() if file.suffix != ".lock")


def kill(sidecar: Sidecar) -> None:
    sidecar.process.send_signal(signal.SIGKILL)
    sidecar.process.wait(PATIENCE)


def said(sidecar: Sidecar) -> list[str]:
    """What the log says of snapshots."""
    lines = sidecar.log.read_text("utf-8").splitlines()
    return [line for line in lines if "snapshot" in line and " WARNING " in line]


# ---- over restarts


def test_statistics_survive_an_orderly_end_to_the_last_bit(start, kept):
    first = start(every=3600)
    converse(first, header("lidar"), *frames(1, range(5)))
    before = exported(first)
    assert n_on_disk(kept) == -1
    first.stop()
    again = start(every=3600)
    assert bits(exported(again).state) == bits(before.state)
    assert again.labelled("total") == 5 * ROWS
    converse(again, header("lidar"), *frames(1, range(5, 8)))
    assert again.labelled("total") == 8 * ROWS
    again.stop()
    assert n_on_disk(kept) == 8 * ROWS


def test_counters_begin_at_zero_for_the_slices_of_the_run_before(start):
    first = start()
    converse(first, header("lidar"), *frames(1, range(5)))
    first.stop()
    text = start().get("/metrics")
    series = re.findall(
        r"^calibration_bin_detections_total\{.*slice=\"car\".*\} (\S+)$", text, re.M
    )
    assert len(series) > 10
    assert {float(value) for value in series} == {0.0}
    gauges = re.findall(r'^calibration_matched_detections\{.*slice="car".*\} (\S+)$', text, re.M)
    assert gauges
    assert {float(value) for value in gauges} == {5.0 * ROWS}


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(3))
def test_a_kill_loses_no_more_than_came_after_the_last_snapshot(start, kept, seed):
    sidecar = start()
    converse(sidecar, header("lidar"), *frames(seed, range(6)))
    assert eventually(lambda: n_on_disk(kept) == 6 * ROWS)
    converse(sidecar, header("lidar"), *frames(seed, range(6, 12)))
    kill(sidecar)
    found = exported(start()).state
    # Some whole frames of the second half may have been written, in their order.
    whole, rest = divmod(n_of(found), ROWS)
    assert rest == 0
    assert 6 <= whole <= 12
    other = start(path=None)
    converse(other, header("lidar"), *frames(seed, range(whole)))
    expected = exported(other).state
    assert bits(replace(found, clock_ns=None)) == bits(replace(expected, clock_ns=None))


@pytest.mark.campaign
def test_a_sidecar_that_is_killed_again_and_again_goes_on_from_where_it_was(start, kept):
    for number in range(4):
        sidecar = start()
        converse(sidecar, header("lidar"), *frames(1, range(3 * number, 3 * number + 3)))
        assert eventually(lambda n=3 * number + 3: n_on_disk(kept) == n * ROWS)
        kill(sidecar)
    assert start().labelled("total") == 12 * ROWS
    assert left(kept.parent) == [kept.name, f"{kept.name}.1"]


SLICES = '[statistics]\nmax_slices = 3\nslice_by = ["class"]\n'
LIDAR = header("lidar", ("car", "bus", "tram", "bike"))
CAMERA = header("camera", ("car", "tram"), "uv", "px")


def names(sidecar: Sidecar) -> dict[str, int]:
    """Slices in their order, with their detections."""
    return {entry.slice: entry.stages[0].n for entry in sidecar.calibration().slices}


def test_slices_have_their_names_and_order_after_a_restart_whoever_comes_first(start):
    first = start(SLICES)
    converse(first, LIDAR, labelled_frame(1, 1))
    converse(first, CAMERA, labelled_frame(1, 1))
    converse(first, LIDAR, labelled_frame(1, 2, classes=(1,)), labelled_frame(1, 3, classes=(2, 3)))
    converse(first, CAMERA, labelled_frame(1, 2, classes=(1,)))
    before = names(first)
    assert list(before) == [
        "car",
        "car (u,v)",
        "bus",
        "overflow",
        "overflow (u,v)",
        "total",
        "total (u,v)",
    ]
    first.stop()
    again = start(SLICES)
    assert list(names(again).items()) == list(before.items())
    # Whoever comes first now finds the slices as they are.
    converse(again, CAMERA, *(labelled_frame(1, i, classes=(i - 3,)) for i in (3, 4)))
    converse(again, LIDAR, labelled_frame(1, 5, classes=(3,)), labelled_frame(1, 6, classes=(1,)))
    added = ("car (u,v)", "bus", "overflow", "overflow (u,v)")
    expected = {name: n + ROWS * (name in added) for name, n in before.items()}
    expected |= {name: before[name] + 2 * ROWS for name in ("total", "total (u,v)")}
    assert list(names(again).items()) == list(expected.items())
    exported_names = re.findall(r'bin_nees_total\{.*?slice="(.*?)"', again.get("/metrics"))
    assert list(dict.fromkeys(exported_names)) == list(before)[:5]
    again.stop()
    assert list(names(start(SLICES)).items()) == list(expected.items())


def test_what_newer_code_had_added_to_an_imported_state_survives_a_restart(start):
    added = b"\xc2\x3e\x05newer"
    first, other = start(), start(path=None)
    converse(other, header("lidar"), *frames(2, range(2)))
    stored = exported(other)
    imported(first, StoredState(stored.state, added))
    first.stop()
    assert exported(start()).unknown == added


# ---- a file that cannot be used


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ("[statistics]\nmicro_bins_per_octave = 16\n", "the bins differ"),
        ('[statistics]\nwindows = ["10m", "1h"]\n', "the windows differ"),
        ("[statistics]\ntau = [0.5, 0.9]\n", "the bins differ"),
    ],
)
def test_statistics_of_another_configuration_are_kept_aside_and_new_ones_begun(
    start, kept, changed, why
):
    first = start()
    converse(first, header("lidar"), *frames(1, range(5)))
    first.stop()
    before = kept.read_bytes()
    other = start(changed)
    assert not other.calibration().slices
    aside = kept.with_name(f"{kept.name}.incompatible")
    assert aside.read_bytes() == before
    (line,) = said(other)
    assert f"kept as {aside.name}, statistics begin anew" in line
    assert why in line
    converse(other, header("lidar"), *frames(1, range(2)))
    other.stop()
    assert n_on_disk(kept) == 2 * ROWS
    # Whoever goes back to the old section may put the old file back.
    aside.replace(kept)
    assert start().labelled("total") == 5 * ROWS


@pytest.mark.parametrize("spoilt", ["torn", "other bytes", "empty"])
def test_a_damaged_file_is_kept_aside_and_the_generation_before_is_used(start, kept, spoilt):
    first = start()
    converse(first, header("lidar"), *frames(1, range(5)))
    before = kept.with_name(f"{kept.name}.1")
    assert eventually(lambda: n_on_disk(before) == 5 * ROWS)
    first.stop()
    whole = kept.read_bytes()
    damaged = {"torn": whole[:-7], "other bytes": whole[:-1] + b"?", "empty": b""}[spoilt]
    kept.write_bytes(damaged)
    again = start()
    assert again.labelled("total") == 5 * ROWS
    assert kept.with_name(f"{kept.name}.corrupt").read_bytes() == damaged
    assert len(said(again)) == 2
    again.stop()
    assert n_on_disk(kept) == 5 * ROWS


def test_where_nothing_can_be_used_the_service_begins_anew(start, kept):
    for file in (kept, kept.with_name(f"{kept.name}.1")):
        file.write_bytes(b"no statistics")
    sidecar = start()
    assert not sidecar.calibration().slices
    converse(sidecar, header("lidar"), *frames(1, range(2)))
    sidecar.stop()
    assert n_on_disk(kept) == 2 * ROWS


# ---- a disk that does not take it


def failures(sidecar: Sidecar) -> float:
    return sidecar.metric("checkpoint_failures_total")


@pytest.mark.parametrize("where", ["a missing folder", "below a file", "a folder"])
def test_a_sidecar_that_cannot_write_serves_counts_and_does_not_flood_its_log(start, kept, where):
    kept.write_bytes(b"")
    taken = kept.with_name("taken")
    taken.mkdir()
    path = {
        "a missing folder": kept.with_name("missing") / "kept.state",
        "below a file": kept / "kept.state",
        "a folder": taken,
    }[where]
    sidecar = start(path=path, every=0.1)
    converse(sidecar, header("lidar"), *frames(1, range(5)))
    assert eventually(lambda: failures(sidecar) >= 9)
    assert math.isnan(sidecar.metric("checkpoint_age_seconds"))
    assert sidecar.labelled("total") == 5 * ROWS
    sidecar.stop()
    # The first, second, fourth … failure is told, each with the file and the reason.
    told = [line for line in said(sidecar) if "not written" in line]
    assert all(str(path) in line for line in told)
    assert 4 <= len(told) <= 8
    assert taken.is_dir()
    assert left(kept.parent) == ["kept.state", "taken"]


def test_a_disk_that_is_full_costs_nothing_but_the_snapshots_until_there_is_room(start, kept):
    sidecar = start(every=0.1)
    # Every frame in a pane of its own.
    converse(sidecar, header("lidar"), *frames(1, range(5), apart_s=50))
    assert eventually(lambda: n_on_disk(kept) == 5 * ROWS)
    # No file of this process may grow beyond that any more; its log is shorter.
    pid, limit = sidecar.process.pid, resource.RLIMIT_FSIZE
    assert kept.stat().st_size > 2**12
    resource.prlimit(pid, limit, (2**12, resource.RLIM_INFINITY))
    before = failures(sidecar)
    converse(sidecar, header("lidar"), *frames(1, range(5, 9), apart_s=50))
    assert eventually(lambda: failures(sidecar) >= before + 4)
    assert sidecar.labelled("total") == 9 * ROWS
    assert n_on_disk(kept) == 5 * ROWS
    assert not list(kept.parent.glob("*.tmp"))
    resource.prlimit(pid, limit, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert eventually(lambda: n_on_disk(kept) == 9 * ROWS)
    sidecar.stop()
    assert any("File too large" in line for line in said(sidecar))


# ---- beside the frames


def test_snapshots_in_quick_succession_change_no_answer(start, kept):
    often, never = start(every=0.1), start(path=None)
    messages = [header("lidar"), *frames(1, range(150))]
    answers = [converse(sidecar, *messages) for sidecar in (often, never)]
    assert answers[0] == answers[1]
    assert bits(exported(often).state) == bits(exported(never).state)
    assert failures(often) == 0
    assert eventually(lambda: n_on_disk(kept) == 150 * ROWS)


def test_a_sidecar_that_another_program_starts_keeps_nothing(kept):
    config = f'[snapshot]\npath = "{kept}"\nevery_seconds = 0.1\n'
    with (
        running_sidecar(config) as addresses,
        grpc.insecure_channel(addresses.grpc) as channel,
    ):
        stub = perception_monitor_pb2_grpc.PerceptionMonitorStub(channel)
        messages = [header("lidar"), *frames(1, range(5))]
        assert len(list(stub.Process(iter(messages), timeout=PATIENCE))) == 6
    assert list(kept.parent.iterdir()) == []
