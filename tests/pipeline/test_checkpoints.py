"""A sidecar that goes on is the sidecar that stopped, whatever is wrong with what it left."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from monitor.config import Config, InvalidConfiguration
from monitor.drift.alarms import Latched, key_of
from monitor.pipeline import checkpoints
from monitor.pipeline.checkpoints import claimed
from monitor.pipeline.recalibrators import Recalibrators, configured
from monitor.pipeline.restart import RUN_STATE, RunState
from monitor.promotion.records import Happened
from monitor.recalibration.selection import IDENTITY, Selection
from monitor.store.documents import REGISTER_CODEC
from monitor.store.previous import PreviousPaths
from monitor.store.state import Checkpoint, StateFile
from monitor.store.statistics_state import parsed
from tests.alarmed import RAISED, alarm
from tests.checkpointed import CLAIMS, OF_CLASSES, ONE, OTHER, Run, begun, on_disk
from tests.drift.drives import DIMENSIONS
from tests.learnt import active_version, begin, happened, known, promoted, teach
from tests.piped import assert_same_statistics, opened, sent, statistics_of
from tests.promotion.owned_registers import scaled
from tests.promotion.simulated_tracks import tracks
from tests.received import frame
from tests.states import bits, canonical


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "state"


@pytest.fixture(autouse=True)
def released():
    """An open lock that the garbage collector finds is a warning in another test."""
    yield
    while CLAIMS:
        CLAIMS.pop().release()


def drive(run: Run, frames: range) -> None:
    stream = opened(run.pipeline)
    for number in frames:
        rows = [sent(number * 10 + row, truth=True) for row in range(5)]
        run.pipeline.process(stream, frame(rows, number, number * 10**9))


def alarmed(run: Run) -> None:
    family = run.pipeline.drift.family
    if "car" not in family.names:
        family.grow("car", DIMENSIONS[:3])
    family.slices[family.names.index("car")].labelled = 300
    family.alarms.latched[key_of(alarm())] = Latched(alarm(), 0.0)


def latched(run: Run) -> list[str]:
    return sorted(run.pipeline.drift.family.alarms.slices())


def kept(run: Run) -> Run:
    asyncio.run(run.kept())
    return run


def warnings(caplog) -> list[str]:
    return [entry.getMessage() for entry in caplog.records if entry.levelname == "WARNING"]


# ---- going on


def test_a_sidecar_that_goes_on_is_the_one_that_stopped(folder, caplog):
    first = begun(folder, "car", "bus")
    drive(first, range(1, 6))
    promoted(first.promotions, 4.0)
    teach(first.promotions, tracks(0, 8, scale=4.0))
    begin(first.promotions, scaled(5.0), 1)
    alarmed(first)
    first.pipeline.newer = b"\xc2\x3e\x05newer"
    kept(first)
    second = begun(folder, "car", "bus")
    assert_same_statistics(second.pipeline, first.pipeline)
    assert second.pipeline.ledger.sequence == first.pipeline.ledger.sequence
    assert second.checkpoints.position == first.pipeline.ledger.sequence
    assert list(second.pipeline.streams) == list(first.pipeline.streams)
    assert latched(second) == ["car"]
    family = second.pipeline.drift.family
    assert family.slices[family.names.index("car")].labelled == 300
    assert active_version(second.promotions) == active_version(first.promotions) != IDENTITY.version
    assert second.promotions.records(100) == first.promotions.records(100)
    assert second.promotions.trials() == first.promotions.trials()
    assert {one.state for one in second.promotions.trials()} == {"running", "guard"}
    assert second.pipeline.newer == b"\xc2\x3e\x05newer"
    assert warnings(caplog) == []
    # What it keeps is what it has found, to the last bit.
    before = on_disk(folder)
    kept(second)
    after = on_disk(folder)
    assert (after.position, after.recalibrators) == (before.position, before.recalibrators)
    assert after.records == before.records
    assert {**after.parts, "statistics": b""} == {**before.parts, "statistics": b""}
    states = [parsed(one.parts["statistics"]).state for one in (before, after)]
    assert bits(canonical(states[0])) == bits(canonical(states[1]))


def test_all_of_a_checkpoint_is_of_one_moment_whatever_comes_while_it_is_made(folder):
    run = begun(folder, "car")
    drive(run, range(1, 4))

    async def busy() -> None:
        going = True

        async def traffic() -> None:
            number = 4
            while going:
                drive(run, range(number, number + 1))
                run.promotions.pin(pinned=number % 2 == 0, actor="anna")
                number += 1
                await asyncio.sleep(0.001)

        task = asyncio.create_task(traffic())
        for _ in range(3):
            await run.checkpoints.write()
            found = on_disk(folder)
            stored, at = parsed(found.parts["statistics"]), RUN_STATE.read(found.parts["run"])
            frames = at.sequence
            assert found.position == frames
            assert sum(one.n for one in stored.state.slices) == 5 * frames
            assert at.account["matched"] == 5 * frames
            register = REGISTER_CODEC.read(found.parts["register"])
            assert register.sequence == len(found.records) == frames - 3
            assert register.pinned == (frames % 2 == 0) or frames == 3
        going = False
        await task

    asyncio.run(busy())
    assert run.checkpoints.failures == 0
    assert run.pipeline.ledger.sequence > 3


def test_a_checkpoint_is_never_ahead_of_the_ledger_and_the_generation_before_is_covered(folder):
    run = begun(folder)

    async def three() -> None:
        for last in (2, 4, 6):
            drive(run, range(last - 1, last + 1))
            await run.checkpoints.write()

    asyncio.run(three())
    run.gone()
    assert run.ledger.reached == [2, 4, 6]
    assert run.ledger.covers == [0, 2, 4]
    # One that begins with the generation before covers no more than that.
    (folder / "state.db").write_bytes(b"no database")
    again = begun(folder)
    assert again.checkpoints.position == 4
    drive(again, range(7, 8))
    kept(again)
    assert again.ledger.covers == [4]


# ---- what cannot be used


@pytest.fixture
def two(folder) -> tuple[Run, str, str]:
    """A run that is gone: ONE was promoted before the first checkpoint, OTHER before the second."""
    run = begun(folder, "car")
    one, other = known(run.promotions, ONE, OTHER)
    alarmed(run)

    async def both() -> None:
        for version in (one, other):
            run.pipeline.activate(version, follows=True)
            drive(run, range(1, 6))
            await run.checkpoints.write()

    asyncio.run(both())
    run.gone()
    return run, one, other


def part(name: str, body: bytes) -> Callable[[dict[str, bytes]], None]:
    return lambda parts: parts.update({name: body})


def later(name: str) -> Callable[[dict[str, bytes]], None]:
    def change(parts: dict[str, bytes]) -> None:
        content = json.loads(parts[name])
        content["format"] = f"calibration-monitor/{name}/99"
        parts[name] = json.dumps(content).encode()

    return change


SET = "UPDATE recalibrators SET document = "
LOST = "recalibrator {other} is active, and its document cannot be used"


@pytest.mark.parametrize(
    ("damage", "suffix", "said"),
    [
        (part("statistics", b"\x08\x01"), "corrupt", "bins.tau: 0 levels"),
        *((part(name, b"{}"), "corrupt", "'format' is") for name in ("run", "drift", "register")),
        (later("run"), "incompatible", "/99'"),
        (part("run", RUN_STATE.write(RunState(7))), "corrupt", "not of its position"),
        ("DELETE FROM recalibrators WHERE version = :other", "corrupt", LOST),
        (SET + "substr(document, 1, 50)", "corrupt", LOST),
        (SET + "(SELECT min(document) FROM recalibrators)", "corrupt", LOST),
    ],
)
def test_a_part_that_cannot_be_used_costs_its_generation(folder, two, caplog, damage, suffix, said):
    first, one, other = two
    if isinstance(damage, str):
        with sqlite3.connect(folder / "state.db") as connection:
            connection.execute(damage, {"other": other})
        connection.close()
    else:
        found = on_disk(folder)
        parts = dict(found.parts)
        damage(parts)
        documents = {version: body.decode for version, body in found.recalibrators.items()}
        checkpoint = Checkpoint(
            found.position or 0, {name: [body] for name, body in parts.items()}, documents
        )
        previous = (folder / "state.db.1").read_bytes()
        StateFile(folder).write(checkpoint)
        (folder / "state.db.1").write_bytes(previous)
    again = begun(folder)
    assert active_version(again.promotions) == one
    assert latched(again) == ["car"]
    assert_same_statistics(again.pipeline, first.pipeline)
    assert again.checkpoints.refused == 1
    assert f"kept as state.db.{suffix}" in caplog.text
    assert "the generation before is used" in caplog.text
    assert said.format(other=other) in caplog.text


def test_other_bins_cost_the_statistics_alone_and_a_copy_is_kept(folder, two, caplog):
    first, _, version = two
    other = begun(folder, sections={"statistics": {"micro_bins_per_octave": 16}})
    assert not statistics_of(other.pipeline)
    assert (active_version(other.promotions), latched(other)) == (version, ["car"])
    (said,) = warnings(caplog)
    assert "the bins differ" in said
    assert said.endswith("A copy of the file is kept as state.db.incompatible.")
    assert other.checkpoints.refused == 1
    assert other.pipeline.ledger.begins == first.pipeline.ledger.sequence + 1
    kept(other)
    # Whoever goes back to the old section may put the old file back.
    (folder / "state.db.incompatible").replace(folder / "state.db")
    assert_same_statistics(begun(folder).pipeline, first.pipeline)


def test_what_only_a_rollback_would_need_may_be_lost(folder, two, caplog):
    _, one, other = two
    with sqlite3.connect(folder / "state.db") as connection:
        connection.execute("DELETE FROM recalibrators WHERE version = ?", (one,))
    connection.close()
    assert active_version(begun(folder).promotions) == other
    assert f"a rollback leaves out {one}, whose documents cannot be used" in caplog.text


def test_it_is_said_where_nothing_can_be_kept_and_not_where_nothing_is_wanted(tmp_path, caplog):
    assert claimed(Config.model_validate({"state": {"folder": ""}}), {}) is None
    assert caplog.text == ""
    assert claimed(Config.model_validate({"server": {"grpc_address": "127.0.0.1:0"}}), {}) is None
    assert "Set [state] folder or name" in caplog.text
    (file := tmp_path / "file").touch()
    assert claimed(Config.model_validate({"state": {"folder": str(file / "state")}}), {})
    assert "nothing is kept until then" in caplog.text


# ---- while it runs


def test_an_alarm_is_on_the_disk_at_once(folder):
    alarmed(run := begun(folder))

    async def live() -> None:
        task = asyncio.create_task(run.checkpoints.keep())
        run.pipeline.drift.announce(RAISED)
        async with asyncio.timeout(10):
            while run.checkpoints.written_at is None:
                await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(live())
    run.gone()
    assert latched(begun(folder)) == ["car"]


def test_settling_ends_without_a_disk_and_a_fault_of_ours_is_said(folder, monkeypatch, caplog):
    first, second = begun(folder), begun(folder)
    asyncio.run(second.checkpoints.settle())
    assert (second.checkpoints.failures, second.checkpoints.written_at) == (0, None)
    assert [path.name for path in folder.iterdir()] == ["lock"]
    monkeypatch.setattr(checkpoints, "run_state_of", lambda _: 1 / 0)
    asyncio.run(first.checkpoints.settle())
    assert first.checkpoints.failures == 1
    assert "ZeroDivisionError" in caplog.text


def test_a_fault_is_counted_said_at_the_1st_2nd_and_4th_time_and_tried_again(tmp_path, caplog):
    (tmp_path / "file").touch()
    run = begun(tmp_path / "file" / "state", "car")
    promoted(run.promotions, 4.0)

    async def nine() -> None:
        for _ in range(9):
            await run.checkpoints.write()

    asyncio.run(nine())
    assert run.checkpoints.failures == 9
    assert run.checkpoints.written_at is None
    said = [line for line in warnings(caplog) if "not written" in line]
    assert len(said) == 4
    assert all(str(tmp_path / "file" / "state") in line for line in said)
    (tmp_path / "file").unlink()
    kept(run)
    assert run.checkpoints.failures == 9
    assert len(on_disk(tmp_path / "file" / "state").records) == 2


def test_records_of_a_disk_that_takes_nothing_are_bounded(folder, monkeypatch):
    run = begun(folder)
    monkeypatch.setattr(checkpoints, "MOST_WAITING", 3)

    async def live() -> None:
        for number in range(5):
            run.promotions.pin(pinned=number % 2 == 0, actor="anna")
        await run.checkpoints.write()
        # Those that were written are not written again.
        run.promotions.pin(pinned=True, actor="anna")
        await run.checkpoints.write()
        await run.checkpoints.write()

    asyncio.run(live())
    assert [json.loads(one)["sequence"] for one in on_disk(folder).records] == [1, 2, 3, 6]


# ---- configured, or kept


@pytest.mark.parametrize(
    ("then", "now", "expected"),
    [
        (ONE, ONE, OTHER),
        (ONE, None, OTHER),
        (None, ONE, ONE),
        (OTHER, ONE, ONE),
    ],
)
def test_what_was_active_stays_unless_the_configuration_names_another_than_then(
    folder, then, now, expected
):
    first = begun(folder, named={} if then is None else {"recalibrator": then})
    first.promotions.promote(known(first.promotions, OTHER)[0], "anna")
    first.promotions.promote(known(first.promotions, OF_CLASSES)[0], "anna")
    kept(first)
    last = first.promotions.sequence
    run = begun(folder, named={} if now is None else {"recalibrator": now})
    assert active_version(run.promotions) == expected.version
    # The two kinds are decided apart. What is configured is promoted, and that is said.
    assert run.promotions.recalibrators.class_selection.version == OF_CLASSES.version
    news = [one.actor for one in run.promotions.records(10) if one.sequence > last]
    assert news == (["configuration"] if expected is ONE else [])


def test_a_recalibrator_of_the_other_kind_is_refused_with_where_to_name_it(tmp_path):
    path = tmp_path / "given.json"
    path.write_text(OF_CLASSES.to_json(), encoding="utf-8")
    config = Config.model_validate({"recalibration": {"recalibrator": str(path)}})
    with pytest.raises(InvalidConfiguration, match="name it in class_recalibrator"):
        configured(Recalibrators(), config)


# ---- the version before, which kept files of its own

PREVIOUS = Path(__file__).parents[1] / "store" / "previous"


@pytest.fixture
def before(tmp_path) -> PreviousPaths:
    """Five frames of five labelled detections, an alarm, OTHER promoted after ONE, and a pin."""
    shutil.copytree(PREVIOUS, tmp_path / "previous")
    paths = ("statistics", "drift", "recalibrators", "pending")
    return PreviousPaths(*(str(tmp_path / "previous" / name) for name in paths))


def test_the_first_start_takes_over_what_the_version_before_kept(folder, before, caplog):
    caplog.set_level("INFO")
    first = begun(folder, previous=before)
    assert first.checkpoints.soon.is_set()
    assert "continues from the files of the version before" in caplog.text
    kept(first)
    # From then on state.db is gone on from, whatever becomes of the files.
    Path(before.drift).write_bytes(b"garbage")
    second = begun(folder, previous=before)
    assert warnings(caplog) == []
    # Nobody else takes over the same files, and counts a second time what they hold.
    assert begun(folder.with_name("other"), previous=before).checkpoints.position == 0
    for run in (first, second):
        assert run.checkpoints.position == 5
        assert sum(one.raw.n for _, one in statistics_of(run.pipeline)) == 2 * 25
        # Streams and the account of frames begin anew, with other numbers than before.
        assert (list(run.pipeline.streams), run.pipeline.ledger.begins) == ([], 6)
        assert run.pipeline.numbered == 5
        assert latched(run) == ["car"]
        assert active_version(run.promotions) == OTHER.version
        assert happened(run.promotions) == [Happened.PROMOTED] * 2 + [Happened.PINNED]
        assert run.promotions.learning.register.pinned
        assert run.promotions.rollback(Selection, "", "anna").after == ONE.version


@pytest.mark.parametrize("name", ["statistics", "drift", "recalibrators/state"])
def test_a_damaged_file_of_before_costs_what_it_held_alone(folder, before, caplog, name):
    path = Path(before.snapshot).parent / name
    path.write_bytes(path.read_bytes()[:-1])
    run = begun(folder, previous=before)
    assert str(path) in warnings(caplog)[0]
    assert bool(statistics_of(run.pipeline)) == (name != "statistics")
    # Under another recalibrator evidence begins anew.
    assert latched(run) == (["car"] if name == "statistics" else [])
    assert (active_version(run.promotions) == OTHER.version) == (name != "recalibrators/state")
