"""The endless demo as values: its schedule, its pace on two clocks, its lines, and what a sidecar
with other settings lacks.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.commands.demo.endless import CycleLog, Pace, missing_settings
from monitor.commands.demo.plan import Moment, Plan

PLAN = Plan(duration_s=100.0)
SENSORS = PLAN.settings.sensors
SECOND = 10**9

# ---- the schedule


@pytest.mark.parametrize(
    ("event_s", "moment"),
    [
        (0.0, Moment(1, 0.0, False)),
        (19.9, Moment(1, 19.9, False)),
        (20.0, Moment(1, 20.0, True)),
        (55.5, Moment(1, 55.5, False)),
        (100.0, Moment(2, 0.0, False)),
        (330.0, Moment(4, 30.0, True)),
        (-0.1, Moment(1, -0.1, False)),  # a clock may be read a hair before
    ],
)
def test_every_cycle_has_the_fault_where_the_plan_has_it(event_s, moment):
    assert PLAN.moment(event_s) == moment


@given(st.floats(0, 1e8), st.integers(0, 1000))
def test_all_cycles_are_alike(event_s, later):
    here = PLAN.moment(event_s)
    there = PLAN.moment(event_s + later * PLAN.duration_s)
    assert 0 <= here.at_s < PLAN.duration_s
    # An hour of floats is not exact to the last bit; a boundary may lie between the two.
    if min(abs(here.at_s - at) for at in (0, PLAN.fault_s, PLAN.fault_end_s, 100)) > 1e-3:
        assert (there.cycle, there.fault) == (here.cycle + later, here.fault)


# ---- the pace


def test_a_frame_is_due_when_its_stamp_is_as_old_as_the_drive():
    pace = Pace(start_ns=5 * SECOND, start_s=70.0)
    assert pace.event_s(8 * SECOND) == 3.0
    assert pace.wait_s(8 * SECOND, now_s=71.0) == pytest.approx(2.0)
    assert Pace(5 * SECOND, 70.0, speed=2.0).wait_s(8 * SECOND, 71.0) == pytest.approx(0.5)


def test_who_is_a_little_late_catches_up():
    pace = Pace(start_ns=0, start_s=70.0)
    assert pace.kept_up(3 * SECOND, now_ns=3_900_000_000, now_s=73.9) is pace


@given(
    start_ns=st.integers(0, 2 * 10**18),
    stamped=st.floats(0, 1e6),
    asleep=st.floats(1.1, 1e6),
    monotonic=st.floats(0, 1),
    speed=st.sampled_from([0.5, 1.0, 3.0]),
)
def test_after_a_gap_the_drive_goes_on_at_the_time_of_day(
    start_ns, stamped, asleep, monotonic, speed
):
    pace = Pace(start_ns, 70.0, speed)
    stamp = start_ns + round(stamped * SECOND)
    # The monotonic clock may have slept, too.
    now_s = 70.0 + (stamped + monotonic * asleep) / speed
    now_ns = start_ns + round((stamped + asleep) * SECOND / speed)
    moved = pace.kept_up(stamp, now_ns, now_s)
    late = stamp + moved.shift_ns - pace.shift_ns
    assert moved.wait_s(late, now_s) == pytest.approx(0.0, abs=1e-3)
    assert moved.event_s(late) == pytest.approx(stamped + asleep, rel=1e-6, abs=1e-3)
    # And at the old pace from there.
    assert moved.wait_s(late + SECOND, now_s) == pytest.approx(1 / speed, abs=1e-3)
    assert moved.kept_up(late, now_ns, now_s) is moved


def test_a_clock_that_is_put_back_moves_no_stamp():
    pace = Pace(start_ns=100 * SECOND, start_s=70.0)
    assert pace.kept_up(103 * SECOND, now_ns=50 * SECOND, now_s=73.0) is pace


# ---- the lines


def test_the_tale_tells_a_line_an_event_and_the_counts_of_each_cycle():
    lines: list[str] = []
    tale = CycleLog(PLAN, lines.append)
    tale.begin()
    for tenth in range(2100):
        tale.reach(PLAN.moment(tenth / 10 + 1e-6))
        tale.answered += 6
        tale.labelled += 170
    tale.left_out += 2
    tale.end()
    assert lines == [
        "cycle 1,   0.0 s  healthy: 6 sensors, 10 Hz each, truth 3 s late; the fault comes after "
        "20 of 100 s and stays for 35",
        "cycle 1,  20.0 s  fault: camera_front reports its variances × 0.2",
        "cycle 1,  55.0 s  the fault ends: camera_front reports its variances as before",
        "cycle 2,   0.0 s  cycle 1 is over: 6,000 frames, 170,000 labels matched",
        "cycle 2,  20.0 s  fault: camera_front reports its variances × 0.2",
        "cycle 2,  55.0 s  the fault ends: camera_front reports its variances as before",
        "cycle 3,   0.0 s  cycle 2 is over: 6,000 frames, 170,000 labels matched",
        "cycle 3,   9.9 s  stopped: 600 frames, 2 left out, 17,000 labels matched in this cycle",
    ]


def test_a_gap_over_the_end_of_a_fault_still_ends_it():
    lines: list[str] = []
    tale = CycleLog(PLAN, lines.append)
    for event_s in (30.0, 210.0):
        tale.reach(PLAN.moment(event_s))
    assert [line.partition(" s  ")[2] for line in lines[1:]] == [
        "cycle 1 is over: 0 frames, 0 labels matched",
        "the fault ends: camera_front reports its variances as before",
    ]


# ---- other settings

ALL: dict[str, Any] = {
    "sensors": SENSORS,
    "tracks": True,
    "slices": frozenset({*SENSORS, "total"}),
    "promotion": "automatic",
    "pinned": False,
}


def test_a_sidecar_of_the_demo_lacks_nothing():
    assert missing_settings(**ALL) == ()
    assert missing_settings(**ALL | {"slices": frozenset()}) == ()


@pytest.mark.parametrize(
    ("changed", "told", "remedy"),
    [
        ({"tracks": False}, "keeps no tracks", 'kind = "embedded"'),
        ({"slices": frozenset({"car", "total"})}, "not the sensors", 'slice_by = ["stream"]'),
        ({"promotion": "advise"}, "mode is advise", 'mode = "automatic"'),
        ({"promotion": None}, "does not tell us", "token"),
        ({"pinned": True}, "pinned", "recalibrators unpin"),
    ],
)
def test_what_a_sidecar_with_other_settings_will_not_show_is_said_with_its_remedy(
    changed, told, remedy
):
    (sentence,) = missing_settings(**ALL | changed)
    assert told in sentence
    assert remedy in sentence
