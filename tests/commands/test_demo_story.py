"""The demo's story without a sidecar: when the fault comes and goes, what is told and shown."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from monitor.commands.demo import drawn, report_of_demo
from monitor.commands.demo.run import Pace
from monitor.commands.demo.scene import (
    simulate,
    with_assumed_covariance,
    with_variance_factor,
)
from monitor.commands.demo.story import ASSUMED, AnsweredFrame, Cycle, Phase, Plan, in_words
from monitor.commands.demo.summary import (
    SidecarAccount,
    Summary,
    as_json,
    as_text,
    counts_of,
    cycle_line,
    headline,
    summarise,
)
from monitor.commands.demo.tracks import Fed, TrackingQuality
from monitor.commands.doctor.look import Samples
from monitor.commands.pages.report_page import written
from monitor.commands.report.live import Seen
from monitor.drift.alarms import AlarmChange, AlarmReason
from monitor.promotion.records import Evidence, Factor, Happened, Record, TrialStanding, TrialState
from monitor.statistics.state import StatisticsState
from tests import states
from tests.alarmed import alarm

PLAN = Plan(duration_s=20.0, patience_s=60.0)
FAULTY, SECOND = PLAN.faulty, 10**9
EVIDENCE = Evidence(14, 0.6, 3.2, -1.0, 2.0)
FACTORS = tuple(Factor(name, low, low, low) for name, low in (("x", 4.21), ("y", 5.26)))
BEGAN = Record(
    1, 0, Happened.BEGAN, FAULTY, "v1", "v0", "v0", "schedule", "", None, EVIDENCE, FACTORS
)


def happened(what: Happened, after: str = "v1", slice: str = FAULTY) -> Record:
    return replace(BEGAN, what=what, after=after, slice=slice, reason="worse than the champion")


LEARNED = replace(
    BEGAN,
    what=Happened.PROMOTED,
    after="v0",
    slice="lidar, no covariance",
    factors=tuple(Factor(name, low, low, low) for name, low in (("x", 0.16), ("y", 0.09))),
)


def raised(why: AlarmReason = AlarmReason.RAISED) -> AlarmChange:
    return AlarmChange(why, alarm(slice=FAULTY))


def nobody(_: str) -> None:
    """Nobody reads it."""


# ---- the fault comes and goes


def cycle_of(heard: dict[float, Record | AlarmChange], end_s: float = 200.0) -> Cycle:
    """A cycle in which each was heard at its time; v1 corrects the faulty sensor."""
    cycle = Cycle(PLAN, nobody)
    return went_on(cycle, heard, end_s)


def went_on(cycle: Cycle, heard: dict[float, Record | AlarmChange], end_s: float) -> Cycle:
    (frame,) = (f for f in simulate(PLAN.settings, 1, 0.01) if f.sensor == FAULTY)
    waiting = sorted(heard.items())
    for tenth in range(round(end_s * 10)):
        at_s = tenth / 10
        while waiting and waiting[0][0] <= at_s:
            one = waiting.pop(0)[1]
            cycle.hear(one) if isinstance(one, Record) else cycle.hear_alarm(one)
        cycle.reach(at_s)
        if cycle.over:
            break
        factor = 2.0 if cycle.version == "v1" else 1.0
        made = with_variance_factor(frame, factor).covariance
        cycle.add_answer(at_s, AnsweredFrame(frame, cycle.version, frame.mean, made))
    return cycle


PROMOTED, BACK = happened(Happened.PROMOTED), happened(Happened.ROLLED_BACK, "v0")


@pytest.mark.parametrize(
    ("heard", "ended_s", "over_s"),
    [
        ({6.0: PROMOTED, 13.0: BACK}, 11.0, 20.0),  # as planned
        ({9.0: PROMOTED, 16.0: BACK}, 14.0, 21.0),  # its effect is shown for 5 s
        ({40.0: PROMOTED, 50.0: BACK}, 45.0, 55.0),  # a busy computer only makes it longer
        ({}, 71.0, 76.0),  # and nobody waits for ever
        ({6.0: PROMOTED}, 11.0, 80.0),
    ],
)
def test_the_fault_stays_until_it_was_corrected_and_the_cycle_until_it_was_rolled_back(
    heard, ended_s, over_s
):
    cycle = cycle_of(heard)
    assert cycle.fault_began_s == 4.0
    assert cycle.fault_ended_s == pytest.approx(ended_s, abs=0.15)
    assert cycle.elapsed_s == pytest.approx(over_s, abs=0.25)
    assert cycle.over


def test_a_fault_that_was_not_corrected_is_told():
    told = [text for _, text in cycle_of({}).events]
    assert "not corrected within 67 s" in told


def test_nobody_waits_for_a_sidecar_that_promotes_nothing_by_itself():
    cycle = went_on(Cycle(PLAN, nobody, hopeful=False).next(), {}, 200.0)
    assert cycle.fault_ended_s == pytest.approx(11.0, abs=0.15)
    assert cycle.elapsed_s == pytest.approx(20.0, abs=0.15)


def test_the_phases_have_their_lengths_and_the_next_cycle_begins_as_this_one_has_ended():
    cycle = cycle_of({6.0: PROMOTED, 13.0: BACK})
    assert list(cycle.lasted_s()) == list(Phase)
    assert list(cycle.lasted_s().values()) == pytest.approx([4, 2, 5, 2, 7], abs=0.25)
    after = cycle.next()
    assert (after.number, after.version, after.correcting) == (2, "v0", set())
    assert after.heard == []


@pytest.mark.parametrize(
    ("left", "over", "begins_s"),
    [
        ({12.0: raised(), 13.0: BACK}, {}, 64.0),
        ({12.0: raised(), 13.0: BACK}, {9.0: raised(AlarmReason.CALM)}, 9.0),
        ({13.0: BACK, 14.0: BEGAN}, {7.0: happened(Happened.DISCARDED)}, 7.0),
        ({13.0: BACK, 19.0: PROMOTED}, {8.0: BACK}, 8.0),
        ({13.0: BACK, 14.0: happened(Happened.BEGAN, slice="camera_back")}, {}, 4.0),
    ],
)
def test_the_next_fault_waits_until_nothing_of_the_last_one_is_left(left, over, begins_s):
    cycle = went_on(cycle_of({6.0: PROMOTED, **left}).next(), over, 70.0)
    assert cycle.fault_began_s == pytest.approx(begins_s, abs=0.15)
    waits = [text for _, text in cycle.events if text.startswith("the next fault waits: ")]
    assert bool(waits) is (begins_s > 4.0)


def test_what_is_waited_for_is_told_with_how_far_it_is():
    cycle = cycle_of({}, 5.0)
    cycle.await_proof(())
    assert "waiting for a candidate" in cycle.waiting
    evidence = Evidence(31, 0.1, 1.5, -1.0, 2.8)
    cycle.await_proof((TrialStanding(FAULTY, "v1", TrialState.RUNNING, evidence, ()),))
    assert cycle.waiting == "waiting for proof: 31 of about 58 tracks"
    assert len(cycle.events) == 1  # not a line each time it is looked at
    cycle.hear(PROMOTED)
    assert cycle.waiting == ""


# ---- words


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (BEGAN, "camera_front: on trial, variances × 4.2 … 5.3"),
        (
            replace(BEGAN, slice="lidar, no covariance"),
            "lidar, no covariance: on trial, variances × 4.2 … 5.3 of those assumed",
        ),
        (replace(BEGAN, factors=FACTORS[:1]), "camera_front: on trial, variances × 4.2"),
        (replace(BEGAN, factors=()), "camera_front: on trial, as sent"),
        (PROMOTED, "camera_front: promoted, 14 tracks, odds 1,585 : 1 of 100 : 1"),
        (BACK, "camera_front: rolled back, 14 tracks, odds 1,585 : 1 of 100 : 1"),
        (replace(PROMOTED, slice="", evidence=None), "all sensors: promoted, asked for"),
        (happened(Happened.DISCARDED), "camera_front: discarded, worse than the champion"),
        (
            replace(PROMOTED, evidence=replace(EVIDENCE, log10_better=41.25)),
            "camera_front: promoted, 14 tracks, odds 10^41.2 : 1 of 100 : 1",
        ),
    ],
)
def test_what_happened_is_said_with_its_evidence(record, said):
    assert in_words(record) == said


def quality(switches: int, tracked: int, wrong: int, position: float) -> TrackingQuality:
    return TrackingQuality(1000, tracked, switches, wrong, position, 1.0)


@pytest.fixture(scope="module")
def told() -> Summary:
    """A drive that a perfect sidecar has answered: promoted at 8 s, rolled back at 15 s.

    From 6 s on the lidar has the covariances that are right.
    """
    cycle = Cycle(PLAN, nobody)
    to_hear: list[tuple[float, Record | AlarmChange]] = [
        (5.0, BEGAN),
        (5.5, raised()),
        (6.0, LEARNED),
        (8.0, PROMOTED),
        (15.0, BACK),
    ]
    for frame in simulate(PLAN.settings, 4, 40.0):
        at_s = (frame.stamp_ns - PLAN.settings.start_ns) / SECOND
        while to_hear and at_s >= to_hear[0][0]:
            one = to_hear.pop(0)[1]
            cycle.hear(one) if isinstance(one, Record) else cycle.hear_alarm(one)
        if cycle.reach(at_s) and frame.sensor == FAULTY:
            frame = with_variance_factor(frame, PLAN.variance_factor)
        if cycle.over:
            break
        corrected = cycle.version == "v1" and frame.sensor == FAULTY
        made = frame.covariance * (5.0 if corrected else 1.0)
        if frame.sensor == PLAN.bare:
            frame = with_assumed_covariance(frame, ASSUMED)
            made = frame.covariance if cycle.learned is None else made
        answered = AnsweredFrame(frame, cycle.version, frame.mean, made)
        cycle.add_truth(answered, cycle.add_answer(at_s, answered))
    cycle.latency_s, cycle.wall_s = [0.001], 9.0
    tracking = {
        "corrected": {Fed.RAW: quality(64, 840, 1, 0.5), Fed.RECALIBRATED: quality(7, 950, 2, 0.6)},
        "after": {Fed.RAW: quality(9, 950, 6, 0.5), Fed.RECALIBRATED: quality(4, 960, 41, 0.6)},
    }
    return replace(summarise(cycle, account(cycle)), tracking=tracking)


def account(cycle: Cycle) -> SidecarAccount:
    """Of a sidecar that counted the same."""
    return SidecarAccount(counts_of(cycle), cycle.version, Samples())


def test_the_headline_says_what_was_found_what_it_saved_and_what_it_cost(told):
    found, saved, over, learned = headline(told)
    assert re.fullmatch(
        r"lidar reports no covariance\. After 6\.0 s and labels of \d\d objects the sidecar had "
        r"learned one, and promoted it \(14 tracks, .* : 1\): σ of 0\.40 m \(x\) and 0\.30 m "
        r"\(y\) in place of 1 m; NEES/K 0\.0\d → (0\.[6-9]|1\.[0-4])\d\.",
        learned,
    )
    assert "variances 5 times too small. A page was raised 1.5 s later." in found
    assert "After 4.0 s the sidecar had corrected it by itself (14 tracks" in found
    assert saved == "Saved, in 5 s of the fault: ID switches 64 → 7, tracked 84.0 → 95.0 %."
    assert "wrong object 0.6 → 4.1 %, position RMSE 0.50 → 0.60 m" in over
    assert "rolled back after 2.0 s." in over


def test_a_gain_or_a_cost_that_was_not_seen_is_not_claimed(told):
    same = {Fed.RAW: quality(9, 950, 6, 0.5), Fed.RECALIBRATED: quality(9, 950, 6, 0.5)}
    _, saved, over, _ = headline(replace(told, tracking={"corrected": same, "after": same}))
    assert saved.endswith("no gain was seen.")
    assert "no cost was seen" in over


def test_the_summary_names_all_sensors_and_how_long_phases_were_in_80_columns(told):
    text = as_text(told)
    assert [line for line in text.splitlines() if len(line) > 80] == []
    for name in told.cycle.sensors:
        (row,) = [line for line in text.splitlines() if re.match(f"{name} +[0-9]", line)]
        assert row.count("→") == 5
    assert text.count("4 s         4 s         5 s         2 s         5 s") == 2
    swaps = {"promoted": 1, "rolled_back": 1}
    assert as_json(told)["swaps"] == {FAULTY: swaps, LEARNED.slice: {"promoted": 1}}
    assert "agree" in text


def test_the_faulty_sensor_reads_five_times_too_much_then_too_little(told):
    means = {phase: told.cycle.sensors[FAULTY].means(phase) for phase in Phase}
    ratios = {phase: raw / made for phase, (raw, made) in means.items()}
    assert ratios == pytest.approx(dict(zip(Phase, (1, 1, 5, 5, 1), strict=True)))


@pytest.mark.parametrize(
    ("heard", "missing"),
    [
        ({}, "nor put one on trial"),
        ({5.0: BEGAN}, "promoted a recalibrator for camera_front while the fault was there"),
        ({1.0: PROMOTED, 3.0: BACK}, "promoted a recalibrator for camera_front while"),
        ({72.0: PROMOTED}, "promoted a recalibrator for camera_front while"),
        ({8.0: PROMOTED}, "rolled camera_front back"),
        ({8.0: PROMOTED, 15.0: BACK}, ""),
    ],
)
def test_what_did_not_come_is_said(heard, missing):
    summary = summarise(cycle_of(heard))
    assert missing in summary.missing
    assert bool(missing) is bool(summary.missing)
    said = " ".join((*headline(summary), cycle_line(summary)))
    assert summary.missing in said or "not rolled back" in said


@pytest.mark.parametrize(
    "field",
    ["frames", "detections", "matched", "frames in /metrics", "recalibrators promoted", "version"],
)
def test_a_count_that_differs_is_named_with_both_values(told, field):
    theirs = account(told.cycle)
    known, wrong = theirs.version, "v9"
    changed = replace(theirs, version=wrong)
    if field != "version":
        known, wrong = str(theirs.counts[field]), str(theirs.counts[field] - 1)
        changed = replace(theirs, counts={**theirs.counts, field: theirs.counts[field] - 1})
    (difference,) = summarise(told.cycle, changed).differences
    assert known in difference
    assert wrong in difference


def test_a_sensor_that_the_sidecar_does_not_know_is_named(told):
    theirs = account(told.cycle)
    counts = {what: n for what, n in theirs.counts.items() if not what.endswith("camera_back")}
    differences = summarise(told.cycle, replace(theirs, counts=counts)).differences
    assert len(differences) == 3
    assert all("camera_back" in difference for difference in differences)


def test_the_json_has_no_nan_even_before_any_truth():
    cycle = cycle_of({}, 0.1)
    cycle.latency_s, cycle.wall_s = [0.001], 1.0
    text = json.dumps(as_json(summarise(cycle)), allow_nan=False)
    assert json.loads(text)["without_covariance"]["learned_seconds"] is None
    assert json.loads(text)["sensors"]["camera_back"]["home"]["raw"]["nees_over_k"] is None


# ---- what is shown


@pytest.mark.parametrize(("colour", "codes"), [(None, False), ("standard", True)])
def test_the_live_view_fits_80_columns_and_has_no_codes_without_colour(told, colour, codes):
    out = io.StringIO()
    terminal = Console(file=out, width=80, force_terminal=codes, color_system=colour)
    terminal.print(drawn(told.cycle, "http://127.0.0.1:12345/"))
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    assert ("\x1b" in out.getvalue()) is codes
    assert max(map(len, plain.splitlines())) <= 80
    assert all(name in plain for name in told.cycle.sensors)
    assert "healthy 4 s → fault 4 s → corrected 5 s → after 2 s → [rolled back 5 s]" in plain
    assert "camera_front: promoted, 14 tracks" in plain


def test_a_view_before_the_first_truth_has_dashes_for_numbers():
    out = io.StringIO()
    Console(file=out, width=80).print(drawn(Cycle(PLAN, nobody), ""))
    assert sum("–" in line for line in out.getvalue().splitlines()) == 7


def test_the_page_has_the_headline_the_plot_and_what_happened_and_no_other_address(told):
    seen = Seen(StatisticsState(states.BINNING, states.WINDOWS))
    text = written(report_of_demo(told, seen))
    assert "ID switches 64 → 7" in text
    assert text.count('line" d="M') == 2
    for mark in ("fault", "page", "promoted", "fault over", "rolled back"):
        assert f">{mark}</text>" in text
    assert "://" not in text


# ---- the pace


def test_a_frame_is_due_when_its_stamp_is_as_old_as_the_drive():
    pace = Pace(start_ns=5 * SECOND, start_s=70.0)
    assert pace.event_s(8 * SECOND) == 3.0
    assert pace.wait_s(8 * SECOND, now_s=71.0) == pytest.approx(2.0)
    assert Pace(5 * SECOND, 70.0, speed=2.0).wait_s(8 * SECOND, 71.0) == pytest.approx(0.5)


def test_who_is_a_little_late_catches_up_and_a_clock_that_is_put_back_moves_no_stamp():
    pace = Pace(start_ns=100 * SECOND, start_s=70.0)
    assert pace.kept_up(103 * SECOND, now_ns=103 * SECOND, now_s=73.9) is pace
    assert pace.kept_up(103 * SECOND, now_ns=50 * SECOND, now_s=73.0) is pace


def test_who_is_too_busy_plays_more_slowly_and_leaves_no_gap():
    pace = Pace(start_ns=100 * SECOND, start_s=70.0)
    slower = pace.kept_up(103 * SECOND, now_ns=108 * SECOND, now_s=78.0)
    assert slower.shift_ns == 0
    assert slower.wait_s(103 * SECOND, now_s=78.0) == pytest.approx(0.0)
    assert slower.wait_s(104 * SECOND, now_s=78.0) == pytest.approx(1.0)


@given(
    start_ns=st.integers(0, 2 * 10**18),
    stamped=st.floats(0, 1e6),
    asleep=st.floats(2000.0, 1e6),
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
