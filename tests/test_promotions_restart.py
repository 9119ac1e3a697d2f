"""Trials, guards, followers and the way back go on in the next run as if there had been one."""

import asyncio
from pathlib import Path

from monitor.pipeline.promotions import Promotions
from monitor.promotion.records import Happened
from monitor.recalibration.recalibrator import Identity
from monitor.recalibration.selection import IDENTITY, Selection
from tests.checkpointed import ONE, OTHER, begun
from tests.learnt import begin, known, promoted, teach
from tests.promotion.owned_registers import adaptive, scaled
from tests.promotion.simulated_tracks import tracks

SLICES = ("car", "bus", "tram", "van")


def busy(folder: Path) -> Promotions:
    """A run with a trial, a guard, a follower, and what no track has made a guard of yet."""
    run = begun(folder, *SLICES, mode="automatic")
    promotions = run.promotions
    tram = Selection(("x", "y", "z"), Identity(), {"tram": adaptive(1.0)})
    promotions.promote(known(promotions, tram)[0], "anna")
    promoted(promotions, 4.0, slice=1)
    begin(promotions, scaled(5.0))
    teach(promotions, tracks(0, 8, scale=2.0))
    teach(promotions, tracks(1, 8, scale=4.0, slice=1))
    teach(promotions, tracks(2, 8, scale=1.1, slice=2))
    promoted(promotions, 9.0, slice=3)
    asyncio.run(run.kept())
    return promotions


def next_run(folder: Path) -> Promotions:
    """To which the same slices have come again."""
    return begun(folder, *SLICES, mode="automatic").promotions


def test_a_run_that_goes_on_knows_all_that_the_last_one_knew(tmp_path):
    first = busy(tmp_path)
    second = next_run(tmp_path)
    assert second.recalibrators.selection == first.recalibrators.selection
    assert second.recalibrators.before == first.recalibrators.before
    ours, theirs = second.learning.register, first.learning.register
    for name in ("on_trial", "guards", "befores", "spent", "followers", "pinned"):
        assert getattr(ours, name) == getattr(theirs, name)
        assert name == "pinned" or getattr(ours, name)
    assert second.trials() == first.trials()
    assert {one.slice for one in second.trials()} == {"car", "bus", "tram"}
    assert all(one.version for one in second.trials())


def test_a_run_that_goes_on_decides_as_the_last_one_would_have(tmp_path):
    first = busy(tmp_path)
    second, sequence = next_run(tmp_path), first.sequence
    second.sequence = sequence
    for run in (first, second):
        for slice, scale in enumerate([5.0, 1.0, 6.0, 1.0]):
            teach(run, tracks(slice, 120, scale=scale, begin_ns=10**13, slice=slice))
    found, expected = (
        [
            (one.what, one.slice, one.before, one.after, one.evidence)
            for one in run.records(1000)
            if one.sequence > sequence
        ]
        for run in (second, first)
    )
    assert found == expected
    assert {what for what, *_ in found} >= {Happened.PROMOTED, Happened.ROLLED_BACK}


def test_a_candidate_of_the_last_run_has_its_version_though_nothing_guards(tmp_path):
    run = begun(tmp_path, "car")
    version = begin(run.promotions, scaled(4.0)).version
    asyncio.run(run.kept())
    second = begun(tmp_path, "car").promotions
    assert [one.version for one in second.trials()] == [version]


def test_a_candidate_of_the_last_run_is_promoted_by_its_name_with_its_evidence(tmp_path):
    first = busy(tmp_path)
    (candidate,) = [one for one in first.trials() if one.slice == "car"]
    second = next_run(tmp_path)
    record = second.promote(candidate.version, "anna")
    assert record.after == candidate.version
    assert record.slice == "car"
    assert record.evidence == candidate.evidence


def test_a_candidate_of_the_last_run_is_forgotten_when_it_is_discarded(tmp_path):
    first = busy(tmp_path)
    (candidate,) = [one for one in first.trials() if one.slice == "car"]
    second = next_run(tmp_path)
    teach(second, tracks(5, 100, scale=0.5, begin_ns=10**13))
    assert second.records(1)[0].what is Happened.DISCARDED
    assert candidate.version not in second.recalibrators.known


def test_rollbacks_lead_back_into_the_last_run(tmp_path):
    run = begun(tmp_path, "car")
    for version in known(run.promotions, ONE, OTHER):
        run.promotions.promote(version, "anna")
    asyncio.run(run.kept())
    later = begun(tmp_path, "car").promotions
    assert later.rollback(Selection, "", "anna").after == ONE.version
    assert later.rollback(Selection, "", "anna").after == IDENTITY.version


def test_a_change_before_the_first_detection_ends_what_the_last_run_left_of_that_slice(tmp_path):
    busy(tmp_path)
    later = begun(tmp_path, mode="automatic").promotions
    register = later.learning.register
    for left in [{"car", "bus", "tram"}, {"car", "tram"}, {"car"}]:
        later.rollback(Selection, "", "anna")
        assert {*register.on_trial, *register.guards, *register.befores} == left
    assert register.followers == {}


def test_what_the_last_run_left_has_its_versions_before_the_first_detection(tmp_path):
    before = {one.slice: one.version for one in busy(tmp_path).trials()}
    later = begun(tmp_path, mode="automatic").promotions
    assert {one.slice: one.version for one in later.trials()} == before
