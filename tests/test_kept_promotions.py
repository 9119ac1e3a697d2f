"""What a sidecar begins with, and what is handed over to be kept."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import cast

import pytest

from monitor.config import Config, InvalidConfiguration
from monitor.pipeline.recalibrator_checkpoints import RegisterCheckpoints, configured
from monitor.pipeline.recalibrators import Recalibrators
from monitor.promotion.records import Happened
from monitor.recalibration.classes.class_selection import CLASS_IDENTITY, AnySelection
from monitor.recalibration.selection import IDENTITY
from monitor.store.recalibrator_folder import ConfiguredVersions
from tests.learnt import active_version, begin, happened, known, promoted, teach
from tests.promotion.owned_registers import scaled
from tests.promotion.simulated_tracks import tracks
from tests.told_keepers import OF_CLASSES, ONE, OTHER, left_with, started

# ---- configured, or kept


def test_the_first_run_begins_with_what_is_configured_and_says_so():
    _, promotions, _ = started(named={"recalibrator": ONE, "class_recalibrator": OF_CLASSES})
    assert active_version(promotions) == ONE.version
    assert promotions.recalibrators.class_selection.version == OF_CLASSES.version
    assert [(record.what, record.actor) for record in promotions.records(10)] == [
        (Happened.PROMOTED, "configuration")
    ] * 2


def test_without_anything_it_begins_with_the_identity():
    _, promotions, _ = started()
    assert active_version(promotions) == IDENTITY.version
    assert promotions.records(10) == ()


@pytest.mark.parametrize(
    ("then", "now", "expected"),
    [
        ("", None, OTHER),
        (ONE.version, ONE, OTHER),
        (ONE.version, None, OTHER),
        ("", ONE, ONE),
        (OTHER.version, ONE, ONE),
    ],
)
def test_what_was_in_force_stays_unless_the_configuration_names_another_than_then(
    then, now, expected
):
    named = {} if now is None else {"recalibrator": now}
    _, promotions, _ = started(kept=left_with(OTHER, then=then), named=named)
    assert active_version(promotions) == expected.version
    by_configuration = [Happened.PROMOTED] if expected is ONE else []
    assert happened(promotions) == by_configuration


def test_the_two_kinds_are_decided_apart():
    kept = left_with(OTHER, OF_CLASSES)
    _, promotions, _ = started(kept=kept, named={"recalibrator": ONE})
    assert active_version(promotions) == ONE.version
    assert promotions.recalibrators.class_selection.version == OF_CLASSES.version


def test_what_was_in_force_and_is_lost_leaves_what_is_configured():
    kept = replace(left_with(OTHER, then=ONE.version), documents={})
    _, promotions, _ = started(kept=kept, named={"recalibrator": ONE})
    assert active_version(promotions) == ONE.version
    _, bare, _ = started(kept=kept)
    assert active_version(bare) == IDENTITY.version


@pytest.mark.parametrize(
    "broken",
    [
        replace(left_with(OTHER), documents=cast(Mapping[str, AnySelection], None)),
        left_with(OTHER, trials=(None,)),
        left_with(OTHER, previous=None),
        left_with(OTHER, spent=7),
    ],
)
def test_nothing_that_is_kept_can_stop_the_start(broken):
    _, promotions, _ = started("car", kept=broken, named={"recalibrator": ONE})
    assert active_version(promotions) == ONE.version
    promoted(promotions, 9.0)
    assert happened(promotions)[-1] is Happened.PROMOTED


def test_trials_beside_what_is_not_in_force_any_more_are_over_but_a_pin_holds():
    run, promotions, keeping = started("car")
    begin(promotions, scaled(4.0))
    promotions.pin(pinned=True, actor="anna")
    run.keep()
    _, later, _ = started("car", kept=keeping.left, named={"recalibrator": ONE})
    assert later.trials() == ()
    assert later.pinned


# ---- while it runs


@contextlib.asynccontextmanager
async def kept_on(run: RegisterCheckpoints) -> AsyncIterator[None]:
    """Records are kept as they come, and nothing else."""
    run.every_seconds = 60.0
    task = asyncio.create_task(run.keep_trials())
    await asyncio.sleep(0)
    try:
        yield
    finally:
        task.cancel()


async def some_turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_records_are_handed_over_once_and_in_order_after_what_is_going_on():
    run, promotions, keeping = started("car")

    async def live() -> None:
        async with kept_on(run):
            promoted(promotions, 4.0)
            promotions.pin(pinned=True, actor="anna")
            assert keeping.calls == []
            await some_turns()
            assert keeping.calls == ["keep"]
            assert keeping.states[-1].pinned
            promotions.pin(pinned=False, actor="anna")
            await some_turns()

    asyncio.run(live())
    assert tuple(keeping.records) == promotions.records(1000)
    assert keeping.states[-1].sequence == len(keeping.records) == 4
    run.keep()
    assert len(keeping.records) == 4
    _, later, _ = started("car", kept=keeping.left)
    assert later.records(1000) == tuple(keeping.records)
    assert later.pin(pinned=True, actor="anna").sequence == 5


def test_what_could_not_be_handed_over_is_counted_and_comes_with_the_next():
    run, promotions, keeping = started("car")

    async def live() -> None:
        async with kept_on(run):
            keeping.fails = True
            promoted(promotions, 4.0)
            await some_turns()
            keeping.fails = False
            run.keep()

    asyncio.run(live())
    assert promotions.pipeline.counters.internal_errors == 1
    assert tuple(keeping.records) == promotions.records(1000)


def test_the_state_names_what_the_configuration_named():
    run, _, keeping = started(named={"recalibrator": ONE})
    run.keep()
    assert keeping.states[-1].configured == ConfiguredVersions(ONE.version, "")
    assert keeping.documents.keys() >= keeping.states[-1].named


def test_what_is_kept_is_what_is_in_force_served_before_or_was_sent_and_no_candidate():
    run, promotions, keeping = started("car")
    (sent,) = known(promotions, ONE)
    before = promoted(promotions, 4.0).after
    after = promoted(promotions, 9.0).after
    candidate = begin(promotions, scaled(3.0)).version
    run.keep()
    named = {IDENTITY.version, sent, before, after}
    assert keeping.documents.keys() - {CLASS_IDENTITY.version} == named
    assert candidate in promotions.recalibrators.known


def test_what_was_sent_is_known_in_every_later_run_and_what_was_discarded_is_not():
    run, promotions, keeping = started("car")
    (sent,) = known(promotions, ONE)
    discarded = begin(promotions, scaled(4.0)).version
    teach(promotions, tracks(0, 100))
    assert happened(promotions)[-1] is Happened.DISCARDED
    run.keep()
    for _ in range(3):
        run, promotions, keeping = started("car", kept=keeping.left)
        assert sent in promotions.recalibrators.known
        assert promotions.recalibrators.sent == {sent}
        assert discarded not in promotions.recalibrators.known
        run.keep()


def test_where_the_state_is_lost_all_that_is_there_stays_known():
    lost = replace(left_with(OTHER), state=None)
    for _ in range(2):
        run, promotions, keeping = started(kept=lost)
        assert OTHER.version in promotions.recalibrators.known
        assert active_version(promotions) == IDENTITY.version
        run.keep()
        assert OTHER.version in keeping.states[-1].named
        lost = keeping.left


def test_trials_are_kept_now_and_then_and_all_at_the_end():
    run, promotions, keeping = started("car")

    async def live() -> None:
        task = asyncio.create_task(run.keep_trials())
        begin(promotions, scaled(4.0))
        async with asyncio.timeout(20):
            while len(keeping.states) < 3:
                await asyncio.sleep(0.001)
        task.cancel()
        keeping.calls.clear()
        await run.end()

    asyncio.run(live())
    assert keeping.states[-1].trials == tuple(promotions.learning.register.on_trial.values())
    assert keeping.calls == ["keep", "flush", "close"]


# ---- what the configuration names


def configuration(key: str, path: object) -> Config:
    return Config.model_validate({"recalibration": {key: str(path)}})


def test_what_the_configuration_names_is_known_from_then_on(tmp_path):
    path, recalibrators = tmp_path / "one.json", Recalibrators()
    path.write_text(ONE.to_json(), encoding="utf-8")
    found = configured(recalibrators, configuration("recalibrator", path))
    assert found == {"recalibrator": ONE.version, "class_recalibrator": ""}
    assert ONE.version in recalibrators.known
    assert recalibrators.selection is IDENTITY


@pytest.mark.parametrize(
    ("key", "text", "words"),
    [
        ("recalibrator", None, "recalibrator = .*No such file.*Check the path"),
        ("recalibrator", "{}", "recalibrator = "),
        ("recalibrator", OF_CLASSES.to_json(), "name it in class_recalibrator"),
        ("class_recalibrator", ONE.to_json(), "name it in recalibrator"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_what_to_do(tmp_path, key, text, words):
    path = tmp_path / "given.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidConfiguration, match=words):
        configured(Recalibrators(), configuration(key, path))
