"""The way back, as a whole and slice by slice: what was bad is not met again on it."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from monitor.pipeline.recalibrators import NothingToRollBack
from monitor.promotion.records import SWAPS, Happened
from monitor.recalibration.classes.class_scaling import Temperature
from monitor.recalibration.classes.class_selection import CLASS_IDENTITY, ClassSelection
from monitor.recalibration.recalibrator import Recalibrator
from monitor.recalibration.selection import IDENTITY, Selection
from tests.learnt import (
    active_version,
    begin,
    document,
    known,
    of_slices,
    promoted,
    promotions_of,
    teach,
)
from tests.promotion.owned_registers import scaled
from tests.promotion.simulated_tracks import tracks

HOME = IDENTITY.version
CHAINS = {"car": ("car",), "bus": ("bus",)}


def test_rollbacks_go_back_through_all_promotions_and_then_no_further():
    promotions = promotions_of("car")
    versions = known(promotions, document(2.0), document(3.0), document(4.0))
    for version in versions:
        promotions.promote(version, "anna")
    for earlier in [versions[1], versions[0], HOME]:
        record = promotions.rollback(Selection, "", "otto")
        assert (record.what, record.after, record.actor) == (
            Happened.ROLLED_BACK,
            earlier,
            "otto",
        )
        assert active_version(promotions) == earlier
    with pytest.raises(NothingToRollBack, match=f"before '{HOME}'.*Promote a version"):
        promotions.rollback(Selection, "", "otto")
    assert active_version(promotions) == HOME


def test_a_promotion_after_a_rollback_is_what_the_next_rollback_takes_back():
    promotions = promotions_of("car")
    first, second = known(promotions, document(2.0), document(3.0))
    promotions.promote(first, "anna")
    promotions.rollback(Selection, "", "anna")
    promotions.promote(second, "anna")
    assert promotions.rollback(Selection, "", "anna").after == HOME
    with pytest.raises(NothingToRollBack):
        promotions.rollback(Selection, "", "anna")


def test_promoting_what_is_in_force_is_recorded_and_nothing_to_roll_back():
    promotions = promotions_of("car")
    (version,) = known(promotions, document(2.0))
    promotions.promote(version, "anna")
    again = promotions.promote(version, "otto")
    assert again.before == again.after == version
    assert promotions.rollback(Selection, "", "anna").after == HOME


def test_slices_go_back_one_by_one_whatever_came_after():
    promotions = promotions_of("car", "bus")
    promoted(promotions, 4.0)
    promoted(promotions, 9.0, slice=1)
    record = promotions.rollback(Selection, "car", "anna")
    assert record.slice == "car"
    assert of_slices(promotions) == {"bus": scaled(9.0)}
    promotions.rollback(Selection, "bus", "anna")
    assert active_version(promotions) == HOME


def test_a_slice_goes_back_through_its_own_changes():
    promotions = promotions_of("car", "bus")
    promoted(promotions, 4.0)
    promoted(promotions, 9.0, slice=1)
    promoted(promotions, 16.0)
    promotions.rollback(Selection, "car", "anna")
    assert of_slices(promotions) == {"car": scaled(4.0), "bus": scaled(9.0)}
    promotions.rollback(Selection, "car", "anna")
    assert of_slices(promotions) == {"bus": scaled(9.0)}


@pytest.mark.parametrize("slice", ["bus", "nonesuch"])
def test_a_slice_that_was_served_by_nothing_else_cannot_go_back(slice):
    promotions = promotions_of("car", "bus")
    promoted(promotions, 4.0)
    before = active_version(promotions)
    with pytest.raises(NothingToRollBack, match=f"slice '{slice}' .* roll back one of car, bus"):
        promotions.rollback(Selection, slice, "anna")
    assert active_version(promotions) == before


def test_class_probabilities_have_a_stack_of_their_own():
    promotions = promotions_of("car")
    of_classes = promotions.recalibrators.learn(ClassSelection((), Temperature(2.0)).to_json())
    (of_estimates,) = known(promotions, document(2.0))
    promotions.promote(of_classes.version, "anna")
    promotions.promote(of_estimates, "anna")
    record = promotions.rollback(ClassSelection, "", "anna")
    assert (record.before, record.after) == (of_classes.version, CLASS_IDENTITY.version)
    assert active_version(promotions) == of_estimates
    with pytest.raises(NothingToRollBack):
        promotions.rollback(ClassSelection, "", "anna")
    assert promotions.rollback(Selection, "", "anna").after == HOME


def test_what_the_guard_brought_back_is_not_undone_with_another_slice():
    promotions = promotions_of("car", "bus", mode="automatic")
    promoted(promotions, 4.0)
    promoted(promotions, 9.0, slice=1)
    back = teach(promotions, tracks(0, 100))[-1]
    assert (back.what, back.slice) == (Happened.ROLLED_BACK, "car")
    promotions.rollback(Selection, "bus", "anna")
    assert active_version(promotions) == HOME


class Ways(RuleBasedStateMachine):
    """Of two slices, by people."""

    @initialize()
    def begin(self):
        self.promotions = promotions_of("car", "bus")
        # By slice: what it was rolled back from since it was last promoted.
        self.bad: dict[str, list[Recalibrator]] = {"car": [], "bus": []}

    def of(self, slice: str) -> Recalibrator:
        return self.promotions.recalibrators.selection.of(CHAINS[slice])

    @rule(slice=st.sampled_from([0, 1]), factor=st.sampled_from([4.0, 9.0]))
    def a_candidate_is_promoted(self, slice, factor):
        found = begin(self.promotions, scaled(factor), slice)
        if found.version:
            self.promotions.promote(found.version, "anna")
            self.bad[found.slice] = []

    @rule(factor=st.sampled_from([4.0, 9.0]))
    def a_document_is_promoted(self, factor):
        (version,) = known(self.promotions, document(factor))
        self.promotions.promote(version, "anna")
        self.bad = {"car": [], "bus": []}

    @rule()
    def all_go_back(self):
        stack = list(self.promotions.recalibrators.before[Selection])
        if not stack:
            with pytest.raises(NothingToRollBack):
                self.promotions.rollback(Selection, "", "anna")
            return
        record = self.promotions.rollback(Selection, "", "anna")
        assert record.after == stack[-1]
        assert len(self.promotions.recalibrators.before[Selection]) < len(stack)
        for slice, bad in self.bad.items():
            assert self.of(slice) not in bad

    @rule(slice=st.sampled_from(["car", "bus"]))
    def a_slice_goes_back(self, slice):
        (other,) = {"car", "bus"} - {slice}
        now, others = self.of(slice), self.of(other)
        try:
            record = self.promotions.rollback(Selection, slice, "anna")
        except NothingToRollBack:
            assert self.of(slice) == now
            return
        assert record.slice == slice
        assert self.of(slice) != now
        assert self.of(other) == others
        self.bad[slice].append(now)
        assert self.of(slice) not in self.bad[slice]

    @invariant()
    def the_way_back_is_known(self):
        if not hasattr(self, "promotions"):
            return
        before, recalibrators = (
            self.promotions.recalibrators.before[Selection],
            self.promotions.recalibrators,
        )
        assert set(before) <= recalibrators.known.keys()
        assert active_version(self.promotions) not in before[-1:]

    @invariant()
    def every_record_begins_where_the_last_one_ended(self):
        if not hasattr(self, "promotions"):
            return
        now = HOME
        for record in self.promotions.records(1000):
            assert record.before == now
            assert record.what in SWAPS or record.after == now
            now = record.after
        assert now == active_version(self.promotions)


Ways.TestCase.settings = settings(stateful_step_count=20)
TestWays = Ways.TestCase
