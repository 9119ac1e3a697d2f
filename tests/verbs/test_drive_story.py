"""The demo's account of what happened to recalibrators: in words of one line, and by sensor."""

from __future__ import annotations

from dataclasses import replace

import pytest

from monitor.commands.demo.record import Heard, Story, in_words
from monitor.commands.demo.scene import DriveSettings
from monitor.promotion.records import Evidence, Factor, Happened, Record

EVIDENCE = Evidence(14, 0.6, 3.2, -1.0, 2.0)
FACTORS = tuple(Factor(name, low, low, low) for name, low in (("x", 4.21), ("y", 5.26)))
BEGAN = Record(
    1, 0, Happened.BEGAN, "front", "v1", "v0", "v0", "schedule", "", None, EVIDENCE, FACTORS
)


def story(*swaps: tuple[Happened, str, str]) -> Story:
    """Of what happened each second, to which slice, and what was in force after."""
    return Story(
        [
            Heard(float(at), replace(BEGAN, sequence=at + 1, what=what, slice=slice, after=after))
            for at, (what, slice, after) in enumerate(swaps)
        ]
    )


@pytest.mark.parametrize(
    ("what", "said"),
    [
        (Happened.BEGAN, "front: on trial, variances × 4.2 … 5.3"),
        (Happened.PROVEN, "front: proven, waits, 14 tracks, evidence 1,585 of 100"),
        (Happened.PROMOTED, "front: promoted, 14 tracks, evidence 1,585 of 100"),
        (Happened.ROLLED_BACK, "front: rolled back, 14 tracks, evidence 1,585 of 100"),
        (Happened.DISCARDED, "front: discarded, worse than the champion"),
    ],
)
def test_what_happened_is_said_with_its_evidence(what, said):
    record = replace(BEGAN, what=what, reason="worse than the champion")
    assert in_words(record) == said


@pytest.mark.parametrize(
    "what", [Happened.BEGAN, Happened.PROVEN, Happened.PROMOTED, Happened.ROLLED_BACK]
)
@pytest.mark.parametrize("slice", DriveSettings().sensors)
def test_a_line_of_any_sensor_leaves_room_for_the_time_in_80_columns(what, slice):
    evidence = Evidence(99, 0.1, 9.4, -1.0, 3.0)
    record = replace(BEGAN, what=what, slice=slice, evidence=evidence)
    assert len(in_words(record)) <= 70


def test_what_is_about_all_sensors_and_what_people_asked_for_is_said_so():
    record = replace(BEGAN, what=Happened.PROMOTED, slice="", evidence=None)
    assert in_words(record) == "all sensors: promoted, asked for"


def test_one_factor_is_said_once_and_the_way_home_is_as_sent():
    assert in_words(replace(BEGAN, factors=FACTORS[:1])).endswith("variances × 4.2")
    assert in_words(replace(BEGAN, factors=())).endswith("as sent")


def test_evidence_beyond_a_million_is_a_power_of_ten():
    huge = replace(BEGAN, what=Happened.PROMOTED, evidence=replace(EVIDENCE, log10_better=41.25))
    assert in_words(huge).endswith("evidence 10^41.2 of 100")


def test_before_any_swap_the_identity_is_in_force_and_after_it_what_was_heard_last():
    assert Story().version.startswith("identity")
    assert Story().sequence == 0
    told = story((Happened.PROMOTED, "front", "v1"), (Happened.BEGAN, "front", "v2"))
    assert told.version == "v1"
    assert told.sequence == 2


def test_swaps_are_counted_by_slice_and_what_puts_nothing_in_force_is_none():
    told = story(
        (Happened.BEGAN, "front", "v0"),
        (Happened.PROMOTED, "front", "v1"),
        (Happened.PROMOTED, "back", "v2"),
        (Happened.PROMOTED, "front", "v3"),
        (Happened.ROLLED_BACK, "front", "v2"),
        (Happened.PROVEN, "back", "v2"),
    )
    assert told.swaps() == {
        "front": {Happened.PROMOTED: 2, Happened.ROLLED_BACK: 1},
        "back": {Happened.PROMOTED: 1},
    }


def test_what_happened_is_found_by_slice_and_from_a_time_on():
    told = story(
        (Happened.PROMOTED, "front", "v1"),
        (Happened.PROMOTED, "back", "v2"),
        (Happened.PROMOTED, "front", "v3"),
    )
    assert [one.at_s for one in told.of(Happened.PROMOTED, "front", 0.0)] == [0.0, 2.0]
    assert [one.at_s for one in told.of(Happened.PROMOTED, "front", 0.5)] == [2.0]
    assert told.of(Happened.BEGAN, "front", 0.0) == []
