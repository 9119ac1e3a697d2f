"""The folder of recalibrators: what is read is what was written, and nothing names what is gone."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monitor.recalibration.classes.class_scaling import Temperature
from monitor.recalibration.classes.class_selection import CLASS_IDENTITY, ClassSelection
from monitor.recalibration.selection import IDENTITY
from monitor.store.recalibrator_folder import (
    REGISTER,
    REGISTER_CODEC,
    NotKept,
    RecalibratorFolder,
    RegisterState,
)
from monitor.store.snapshot import SnapshotFile
from tests.promotion.random_records import record
from tests.promotion.random_states import scaled, state


@pytest.fixture
def folder(tmp_path):
    """Claimed, as by a first start."""
    return opened(tmp_path / "kept")


def opened(path: Path) -> RecalibratorFolder:
    """Claimed, as by a start; what is there is read."""
    found = RecalibratorFolder(path)
    assert found.claim()
    return found


def reopened(folder: RecalibratorFolder) -> RecalibratorFolder:
    folder.release()
    return opened(folder.path)


def active_state(version: str, *previous: str) -> RegisterState:
    return RegisterState(version, CLASS_IDENTITY.version, previous)


def read(folder: RecalibratorFolder) -> tuple[list[str], RegisterState | None, list[str]]:
    """Versions, the state, and all complaints, of a start anew."""
    again = reopened(folder)
    versions = again.read_versions()
    history = again.read_history()
    loaded = again.read_state()
    again.release()
    complaints = [*versions.complaints, *history.complaints, *loaded.complaints]
    return list(versions.documents), loaded.value, complaints


def files(folder: RecalibratorFolder) -> list[str]:
    return sorted(file.name for file in (folder.path / "versions").iterdir())


def test_recalibrators_of_both_kinds_are_read_to_the_last_bit(folder):
    classes = ClassSelection(("car", "bus"), Temperature(1 / 3))
    for selection in (scaled(1), scaled(2), classes):
        folder.add(selection)
    found = reopened(folder).read_versions()
    assert found.documents == {one.version: one for one in (scaled(1), scaled(2), classes)}
    assert found.complaints == ()


def test_identities_need_no_file(folder):
    folder.add(IDENTITY)
    folder.add(CLASS_IDENTITY)
    folder.write(active_state(IDENTITY.version))
    assert files(folder) == []
    assert read(folder) == ([], active_state(IDENTITY.version), [])


def test_a_recalibrator_is_written_once(folder):
    folder.add(scaled(1))
    path = folder.path / "versions" / f"{scaled(1).version}.json"
    before = path.stat()
    folder.add(scaled(1))
    again = reopened(folder)
    again.read_versions()
    again.add(replace(scaled(1), fitted_on={"rows": 5}))
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert path.stat().st_ino == before.st_ino
    assert files(folder) == [path.name]


def test_all_of_it_is_for_its_owner_alone(folder):
    before = os.umask(0)
    try:
        fresh = opened(folder.path.with_name("fresh"))
        fresh.add(scaled(1))
        fresh.append([record(1)])
        fresh.write(active_state(scaled(1).version))
    finally:
        os.umask(before)
    found = {path: stat.S_IMODE(path.stat().st_mode) for path in fresh.path.rglob("*")}
    assert {mode for path, mode in found.items() if path.is_file()} == {0o600}
    assert len(found) == 5
    assert stat.S_IMODE(fresh.path.stat().st_mode) == 0o700


def test_a_folder_is_of_one_process_until_it_lets_go(folder):
    other = RecalibratorFolder(folder.path)
    assert not other.claim()
    folder.release()
    assert other.claim()


@pytest.mark.parametrize("seed", range(20))
def test_a_state_is_read_to_the_last_bit(folder, seed):
    folder.add(scaled(seed))
    written = state(seed, scaled(seed).version, CLASS_IDENTITY.version)
    folder.write(written)
    _, found, complaints = read(folder)
    assert found is not None
    assert REGISTER_CODEC.write(found) == REGISTER_CODEC.write(written)
    assert complaints == []


def test_a_state_that_names_what_is_not_there_is_not_written(folder):
    folder.write(active_state(IDENTITY.version))
    for named in (
        active_state(scaled(1).version),
        active_state(IDENTITY.version, scaled(1).version),
    ):
        with pytest.raises(NotKept, match=scaled(1).version):
            folder.write(named)
    assert read(folder)[1] == active_state(IDENTITY.version)


@pytest.mark.parametrize("damage", ["missing", "torn", "other content", "no JSON", "a folder"])
def test_where_what_is_in_force_cannot_be_used_the_generation_before_is(folder, damage):
    for seed in (1, 2):
        folder.add(scaled(seed))
        folder.write(active_state(scaled(seed).version))
    path = folder.path / "versions" / f"{scaled(2).version}.json"
    text = path.read_text()
    path.unlink()
    if damage == "a folder":
        path.mkdir()
    elif damage != "missing":
        path.write_text(
            {
                "torn": text[: len(text) // 2],
                "other content": scaled(1).to_json(),
                "no JSON": "\0",
            }[damage]
        )
    known, found, complaints = read(folder)
    assert known == [scaled(1).version]
    assert found == active_state(scaled(1).version)
    assert any(scaled(2).version in said and "no such file" in said for said in complaints)
    assert len(complaints) == 2 + (damage != "missing")
    # It is left where it is, and is replaced when it becomes known again.
    assert path.exists() == (damage != "missing")


def test_a_damaged_recalibrator_is_replaced_when_it_becomes_known_again(folder):
    folder.add(scaled(1))
    path = folder.path / "versions" / f"{scaled(1).version}.json"
    path.write_text("{}")
    again = reopened(folder)
    assert again.read_versions().documents == {}
    again.add(scaled(1))
    assert read(again)[0] == [scaled(1).version]


def test_where_no_generation_can_be_used_nothing_is_in_force(folder):
    for seed in (1, 2):
        folder.add(scaled(seed))
        folder.write(active_state(scaled(seed).version))
    for path in (folder.path / "versions").iterdir():
        path.unlink()
    known, found, complaints = read(folder)
    assert (known, found) == ([], None)
    assert complaints[-1].endswith("recalibrators begin anew.")


def test_what_only_a_rollback_would_need_may_be_lost(folder):
    for seed in (1, 2, 3):
        folder.add(scaled(seed))
    versions = [scaled(seed).version for seed in (1, 2, 3)]
    folder.write(active_state(*versions))
    (folder.path / "versions" / f"{versions[1]}.json").unlink()
    _, found, (said,) = read(folder)
    assert found == active_state(versions[0], versions[2])
    assert versions[1] in said


def test_a_document_whose_numbers_were_changed_is_not_used(folder):
    folder.add(scaled(1))
    path = folder.path / "versions" / f"{scaled(1).version}.json"
    content = json.loads(path.read_text())
    content["slices"]["car"]["parameters"]["scale"][0] *= 1.5
    for without in ("", "version"):
        content.pop(without, None)
        path.write_text(json.dumps(content))
        known, _, (said,) = read(folder)
        assert known == []
        assert str(path) in said


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder with two generations, not claimed; and what its state says."""
    folder = opened(tmp_path_factory.mktemp("module") / "kept")
    folder.add(scaled(1))
    older = state(1, scaled(1).version, CLASS_IDENTITY.version, sequence=1)
    newer = state(2, scaled(1).version, CLASS_IDENTITY.version, sequence=2)
    folder.write(older)
    folder.write(newer)
    folder.release()
    return folder


def with_damage(folder: RecalibratorFolder, data: bytes) -> int:
    """Which sequence is found where the latest generation has these bytes; all is put back."""
    path, before = folder.path / "state", folder.path / "state.1"
    good, older = path.read_bytes(), before.read_bytes()
    path.write_bytes(data)
    try:
        _, found, complaints = read(folder)
        assert found is not None
        assert bool(complaints) == (found.sequence == 1)
        return found.sequence
    finally:
        path.write_bytes(good)
        before.write_bytes(older)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_a_bit_that_is_flipped_anywhere_in_the_state_is_found(written, data):
    good = (written.path / "state").read_bytes()
    damaged = bytearray(good)
    position = data.draw(st.integers(0, 8 * len(good) - 1))
    damaged[position // 8] ^= 1 << position % 8
    assert with_damage(written, bytes(damaged)) == 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_a_state_that_ends_anywhere_too_early_is_found(written, data):
    good = (written.path / "state").read_bytes()
    assert with_damage(written, good[: data.draw(st.integers(0, len(good) - 1))]) == 1
    assert with_damage(written, good) == 2


def test_a_state_of_a_newer_monitor_is_kept_for_it(folder):
    folder.write(active_state(IDENTITY.version))
    newer = REGISTER_CODEC.write(active_state(IDENTITY.version)).replace(
        b"register/3", b"register/4"
    )
    SnapshotFile(folder.path / "state", REGISTER).write([newer])
    _, found, complaints = read(folder)
    assert found == active_state(IDENTITY.version)
    assert "register/3" in complaints[0]
    assert (folder.path / "state.incompatible").exists()


def test_what_writers_that_were_killed_left_behind_is_removed(folder):
    folder.add(scaled(1))
    left = folder.path / "versions" / f"{scaled(2).version}.json.77.1.tmp"
    left.write_text("half")
    assert read(folder)[0] == [scaled(1).version]
    assert not left.exists()


# ---- what is not needed any more


def with_versions(path: Path, *seeds: int) -> RecalibratorFolder:
    folder = opened(path)
    for seed in seeds:
        folder.add(scaled(seed))
    return folder


def names(*seeds: int) -> list[str]:
    return sorted(f"{scaled(seed).version}.json" for seed in seeds)


@pytest.mark.parametrize("after_a_restart", [False, True])
def test_what_no_generation_of_the_state_names_is_removed(tmp_path, after_a_restart):
    folder = with_versions(tmp_path / "kept", *range(6))
    folder.write(active_state(scaled(1).version, scaled(3).version))
    if after_a_restart:
        folder = reopened(folder)
        folder.read_versions()
        folder.read_state()
    folder.write(active_state(scaled(5).version))
    folder.prune()
    assert files(folder) == names(1, 3, 5)
    folder.write(active_state(scaled(5).version))
    folder.prune()
    assert files(folder) == names(5)


def test_what_was_sent_stays_as_long_as_the_state_says_so(tmp_path):
    folder = with_versions(tmp_path / "kept", 1, 2)
    sent = replace(active_state(scaled(1).version), sent=(scaled(2).version,))
    for _ in range(3):
        folder.write(sent)
        folder.prune()
    assert files(folder) == names(1, 2)
    assert read(folder)[1] == sent
    (folder.path / "versions" / f"{scaled(2).version}.json").unlink()
    _, found, (said,) = read(folder)
    assert found == active_state(scaled(1).version)
    assert "nobody can go back to it" in said


def test_what_went_can_be_kept_again(tmp_path):
    folder = with_versions(tmp_path / "kept", 1)
    for _ in range(2):
        folder.write(active_state(IDENTITY.version))
    folder.prune()
    assert files(folder) == []
    folder.add(scaled(1))
    folder.write(active_state(scaled(1).version))
    assert read(folder)[1] == active_state(scaled(1).version)


def test_seeds_make_different_recalibrators():
    assert len({scaled(seed).version for seed in np.arange(100).tolist()}) == 100


def test_a_folder_that_somebody_removes_is_made_again_with_all_that_is_needed(tmp_path):
    folder, one = RecalibratorFolder(tmp_path / "kept"), scaled(1)
    assert folder.claim()
    folder.add(one)
    (tmp_path / "kept").rename(tmp_path / "elsewhere")
    assert folder.claim()
    folder.add(one)
    folder.write(RegisterState(one.version, CLASS_IDENTITY.version))
    folder.release()
    assert one.version in RecalibratorFolder(tmp_path / "kept").read_versions().documents


def test_a_folder_that_somebody_has_replaced_and_claimed_is_written_by_one_of_them(tmp_path):
    first, second = (RecalibratorFolder(tmp_path / "kept") for _ in range(2))
    assert first.claim()
    (tmp_path / "kept").rename(tmp_path / "elsewhere")
    assert second.claim()
    assert not first.claim()
    second.release()
    assert first.claim()
    first.release()
