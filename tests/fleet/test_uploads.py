"""Uploads of a vehicle that is killed, offline, cloned or damaged: merged, they are what it
counted, each once.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.config import FleetConfig
from monitor.fleet import uploads
from monitor.fleet.objects import StoreFailed
from monitor.fleet.uploads import PENDING, UPLOADED, Uploader, UploadOutcome
from monitor.pipeline.housekeeping import in_steps
from monitor.statistics.observations import finished
from monitor.statistics.state import StatisticsState
from monitor.statistics.vehicles import of_state
from monitor.store.files import Claim, read_body
from monitor.store.statistics_state import parsed
from tests.laws import costly
from tests.states import Row, assert_counted, bits, clock_of, counted, random_rows

ADDRESS = "s3://bucket/{vehicle}/{epoch}/{sequence}.state"
HOUR = 3600.0


class Killed(BaseException):
    """The process is no more."""


@dataclass
class Store:
    """Objects that a network stands before.

    trouble  "down": nothing arrives; "lost": it arrives, and the answer does not
    """

    held: dict[str, bytes] = field(default_factory=dict)
    trouble: str = ""

    def names(self) -> Iterator[str]:
        yield from sorted(self.held)

    def get(self, name: str) -> bytes:
        if self.trouble:
            raise StoreFailed("503")
        return self.held[name]

    def head(self, name: str, most: int) -> bytes:
        return self.get(name)[:most]

    def create(self, name: str, data: bytes) -> bool:
        if self.trouble == "down":
            raise StoreFailed("no route")
        new = name not in self.held
        self.held.setdefault(name, data)
        if self.trouble:
            raise StoreFailed("timed out")
        return new

    def merged(self, folder: Path) -> StatisticsState:
        """Adds up all objects; raises AlreadyHeld where two hold the same."""
        states = []
        for name, data in self.held.items():
            (folder / "object").write_bytes(data)
            state = parsed(read_body(folder / "object")).state
            (life,) = state.holds.spans
            assert name.startswith("/".join(life)) and len(state.holds) == 1
            # An object brings the row of its vehicle, by which vehicles are compared.
            assert bits(state.vehicles) == bits(of_state(life[0], state))
            states.append(state)
        random.Random(len(states)).shuffle(states)
        return reduce(StatisticsState.merge, states)


CLAIMS: list[Claim] = []


def released() -> None:
    """Lets go of every folder: files that are left open fail another test, of some other room."""
    while CLAIMS:
        CLAIMS.pop().release()


@pytest.fixture(autouse=True)
def nothing_is_claimed_for_ever():
    yield
    released()


@dataclass
class Vehicle:
    """A sidecar that is started again and again: its rows, its folder and its clock.

    fleeting  labelled detections of which a crash forgets that they were predicted
    fault_at  twice the operation, counted from now, on which `fault` comes; odd: it was done
              nevertheless
    """

    folder: Path
    store: Store = field(default_factory=Store)
    rows: list[Row] = field(default_factory=list)
    predicted: list[Row] = field(default_factory=list)
    fleeting: int = 0
    fault_at: int | None = None
    fault: type[BaseException] = Killed
    now: float = 0.0
    restored: bool = True
    name: str = "car"
    keeps: bool = True
    lives: int = 0

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.lives += 1
        if self.keeps:
            self.folder.mkdir(exist_ok=True)
        self.uploader = Uploader(
            config=FleetConfig(upload=ADDRESS, vehicle=self.name),
            objects=self.store,
            claim=self.claimed() if self.keeps else None,
            taken=self.taken,
            restored=lambda: self.restored,
            in_steps=in_steps,
            aside=self.aside,
            clock=lambda: self.now,
            wall=lambda: 1e9 + self.now,
            chance=random.Random(f"{self.folder.name} {self.lives}"),
        )

    def claimed(self) -> Claim:
        claim = Claim(self.folder)
        assert claim.take()
        CLAIMS.append(claim)
        return claim

    async def aside(self, work: Any) -> Any:
        if self.fault_at is None:
            return work()
        self.fault_at -= 2
        if self.fault_at >= 0:
            return work()
        if self.fault_at % 2:
            work()
        self.fault_at = None
        raise self.fault("disk full")

    async def taken(self) -> StatisticsState:
        """A checkpoint comes first, as in the sidecar."""
        self.fleeting = 0
        return self.state()

    def state(self) -> StatisticsState:
        state: StatisticsState = counted(self.rows, clock_of(self.rows))
        predicted = counted(self.predicted, state.clock_ns).predicted
        return replace(state, predicted=predicted)

    def count(self, rows: list[Row]) -> None:
        self.rows += rows
        self.predicted += [replace(row, sign=1) for row in rows if row.sign > 0]
        self.fleeting += sum(row.sign > 0 for row in rows)

    def retract(self) -> None:
        taken = {id(row.error) for row in self.rows if row.sign < 0}
        left = [row for row in self.rows if row.sign > 0 and id(row.error) not in taken]
        self.count([replace(row, sign=-1) for row in left[:3]])

    def go(self, *, later: float = 2 * HOUR) -> None:
        """An upload is due; it may die of it, and is started again then."""
        self.now += later
        try:
            asyncio.run(self.uploader.go_on())
        except Killed:
            self.crash()

    def crash(self) -> None:
        """kill -9: what came since the checkpoint is replayed, but for what had no label."""
        if self.fleeting:
            del self.predicted[-self.fleeting :]
        self.fleeting = 0
        if self.uploader.claim is not None:
            self.uploader.claim.release()
        self.start()

    def arrive(self) -> StatisticsState:
        """The store is well; returns what it holds, merged."""
        self.store.trouble = ""
        self.go()
        self.go()
        assert self.uploader.pending is None
        assert {path.name for path in self.folder.iterdir()} <= {"lock", UPLOADED, "last"}
        return self.store.merged(self.folder.parent)


steps = st.one_of(
    st.tuples(st.just("count"), st.integers(1, 12)),
    st.tuples(st.just("retract"), st.none()),
    st.tuples(st.just("go"), st.none()),
    # Most ways have fewer than ten operations: before or behind each of them.
    st.tuples(st.sampled_from(["kill", "fail"]), st.integers(0, 19)),
    st.tuples(st.just("store"), st.sampled_from(["", "down", "lost"])),
)


@costly
@given(seed=st.integers(0, 2**16), story=st.lists(steps, min_size=3, max_size=14))
def test_wherever_it_is_killed_all_objects_together_are_what_it_counted(
    tmp_path_factory, seed, story
):
    released()
    folder = tmp_path_factory.mktemp("story")
    vehicle, rows = Vehicle(folder / "state"), random_rows(seed, 200)
    vehicle.count(rows[:1])
    for what, value in story:
        if what == "count":
            vehicle.count(rows[len(vehicle.rows) :][: int(value or 0)])
        elif what == "retract":
            vehicle.retract()
        elif what == "go":
            vehicle.go()
        elif what in ("kill", "fail"):
            vehicle.fault_at = int(value or 0)
            vehicle.fault = Killed if what == "kill" else StoreFailed
            vehicle.go()
        else:
            vehicle.store.trouble = str(value)
    vehicle.fault_at = None
    assert_counted(vehicle.arrive(), vehicle.state())
    lives = {name.rpartition("/")[0] for name in vehicle.store.held}
    assert len(lives) == 1, "a crash is no reason for a new epoch"
    assert vehicle.uploader.counts[UploadOutcome.CONFLICT] == 0


@pytest.fixture
def vehicle(tmp_path):
    found = Vehicle(tmp_path / "state")
    found.count(random_rows(1, 20))
    return found


def test_while_the_store_is_away_one_object_waits_and_the_next_covers_the_time(vehicle):
    vehicle.store.trouble = "down"
    sizes = set()
    for seed in range(2, 7):
        vehicle.go()
        vehicle.count(random_rows(seed, 20))
        sizes.add((vehicle.uploader.pending_bytes, (vehicle.folder / PENDING).stat().st_size))
    assert len(sizes) == 1, "one object, the same bytes, on disk and in memory"
    assert vehicle.uploader.counts[UploadOutcome.FAILED] == 5
    assert vehicle.uploader.age_seconds == 10 * HOUR
    assert_counted(vehicle.arrive(), vehicle.state())
    assert [name[-12:] for name in sorted(vehicle.store.held)] == ["000001.state", "000002.state"]
    assert vehicle.uploader.counts[UploadOutcome.SENT] == 2
    assert vehicle.uploader.pending_bytes == 0


def test_a_disk_that_takes_nothing_at_any_step_costs_nothing(vehicle):
    for fault_at in range(16):
        vehicle.fault_at, vehicle.fault = fault_at, StoreFailed
        vehicle.count(random_rows(fault_at, 3))
        vehicle.go()
    vehicle.fault_at = None
    assert_counted(vehicle.arrive(), vehicle.state())


def test_tries_come_less_often_and_go_on_at_once_when_one_succeeds(vehicle):
    vehicle.store.trouble = "down"
    pauses = []
    vehicle.go()
    for _ in range(9):
        pauses.append(vehicle.uploader.pause)
        vehicle.go(later=pauses[-1])
    for pause, most in zip(pauses, (10, 20, 40, 80, 160, 320, 600, 600, 600), strict=True):
        assert most / 2 <= pause <= most
    vehicle.store.trouble = ""
    vehicle.go(later=vehicle.uploader.pause)
    assert vehicle.uploader.pause <= HOUR


def test_without_gain_nothing_is_sent_and_nothing_is_late(vehicle):
    vehicle.arrive()
    vehicle.go()
    assert len(vehicle.store.held) == 1
    assert vehicle.uploader.age_seconds == 0
    vehicle.crash()
    vehicle.go()
    assert len(vehicle.store.held) == 1


def test_a_crash_that_forgets_what_was_predicted_is_taken_back(vehicle):
    vehicle.arrive()
    forgotten = vehicle.predicted.pop()
    vehicle.go()
    (gain,) = (parsed(read_body(path)).state for path in [written(vehicle, "000002.state")])
    assert [entry.n for entry in gain.predicted if entry.n] == [-1]
    assert forgotten.slice in range(4)
    assert_counted(vehicle.arrive(), vehicle.state())


def written(vehicle: Vehicle, end: str) -> Path:
    (name,) = (name for name in vehicle.store.held if name.endswith(end))
    path = vehicle.folder / "last"
    path.write_bytes(vehicle.store.held[name])
    return path


@pytest.mark.parametrize("offline", [False, True])
def test_a_cloned_disk_goes_on_in_an_epoch_of_its_own(tmp_path, vehicle, offline):
    """Also a folder that was restored from a backup: what came since is there already."""
    vehicle.go()
    before = vehicle.state()
    if offline:
        vehicle.count(random_rows(5, 9))
        before, vehicle.store.trouble = vehicle.state(), "down"
        vehicle.go()
    shutil.copytree(vehicle.folder, tmp_path / "clone")
    clone = Vehicle(
        tmp_path / "clone", vehicle.store, [*vehicle.rows], [*vehicle.predicted], now=vehicle.now
    )
    for seed, one in enumerate((vehicle, clone), 10):
        one.count(random_rows(seed, 15))
        one.arrive()
        one.count(random_rows(seed + 10, 15))
    found = [one.arrive() for one in (vehicle, clone)][-1]
    assert_counted(found, vehicle.state().merge(finished(clone.state().since(before))))
    assert len(found.holds.spans) == 2
    assert clone.uploader.counts[UploadOutcome.CONFLICT] == 1


@pytest.mark.parametrize("name", [UPLOADED, PENDING])
@pytest.mark.parametrize("trouble", ["down", "lost"])
def test_what_a_damaged_file_leaves_unknown_is_left_out_and_never_sent_twice(
    vehicle, caplog, name, trouble
):
    vehicle.go()
    vehicle.count(random_rows(2, 15))
    cut, vehicle.store.trouble = vehicle.state(), trouble
    vehicle.go()
    vehicle.count(random_rows(3, 15))
    (vehicle.folder / name).write_bytes((vehicle.folder / name).read_bytes()[:-1])
    uploaded = vehicle.store.merged(vehicle.folder.parent)
    vehicle.crash()
    vehicle.fault_at = 9  # while it begins anew, too
    vehicle.go(later=0)
    at_start = vehicle.state()
    vehicle.store.trouble = ""
    vehicle.go(later=0)
    vehicle.count(random_rows(4, 15))
    gone_on = finished(vehicle.state().since(at_start))
    found = vehicle.arrive() if name == UPLOADED else arrived(vehicle)
    known = cut if name == UPLOADED else uploaded
    assert_counted(found, known.merge(gone_on))
    assert "begins anew: " in caplog.text


def arrived(vehicle: Vehicle) -> StatisticsState:
    """As arrive, with the damaged file beside."""
    vehicle.go()
    assert (vehicle.folder / f"{PENDING}.corrupt").is_file()
    (vehicle.folder / f"{PENDING}.corrupt").unlink()
    return vehicle.arrive()


def test_statistics_that_began_anew_take_nothing_back(vehicle, caplog):
    """A damaged checkpoint, or other bins: what was uploaded stays true."""
    before = vehicle.arrive()
    vehicle.rows, vehicle.predicted, vehicle.restored = [], [], False
    vehicle.crash()
    vehicle.go(later=0)
    vehicle.count(random_rows(3, 15))
    assert_counted(vehicle.arrive(), before.merge(vehicle.state()))
    assert "gone on with" in caplog.text
    assert vehicle.uploader.refused == 1


def test_without_a_folder_each_run_is_an_epoch(tmp_path):
    vehicle = Vehicle(tmp_path / "nothing", keeps=False)
    for seed in (1, 2):
        vehicle.rows, vehicle.predicted = [], []
        vehicle.count(random_rows(seed, 15))
        vehicle.go()
        vehicle.start()
    rows = [*random_rows(1, 15), *random_rows(2, 15)]
    assert_counted(vehicle.store.merged(tmp_path), counted(rows))
    assert not vehicle.folder.exists()


@pytest.mark.parametrize("trouble", ["", "down", "stuck"])
def test_the_end_keeps_what_it_cannot_send(vehicle, monkeypatch, trouble):
    vehicle.go()
    vehicle.count(random_rows(2, 15))
    vehicle.store.trouble = trouble
    if trouble == "stuck":
        monkeypatch.setattr(uploads, "LAST_SECONDS", 0.02)
        usual = vehicle.aside

        async def aside(work):
            if getattr(work, "func", None) == vehicle.store.create:
                await asyncio.Event().wait()
            return await usual(work)

        vehicle.uploader.aside = aside
    asyncio.run(vehicle.uploader.end())
    assert len(vehicle.store.held) == (1 if trouble else 2)
    vehicle.crash()
    assert_counted(vehicle.arrive(), vehicle.state())


def test_a_vehicle_of_another_name_is_another_vehicle(vehicle):
    vehicle.go()
    vehicle.name = "bus"
    vehicle.crash()
    vehicle.count(random_rows(2, 15))
    found = vehicle.arrive()
    assert found.holds.vehicles == ("bus", "car")
    assert_counted(found, vehicle.state())
