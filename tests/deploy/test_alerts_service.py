"""The alerts on the sidecar itself and on what it is fed, by promtool: each fires when it should,
for whom, and not before; a restart and what is not there are no fault.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from tests.deploy.alerting import SERVICE, Case, fires, series

pytestmark = pytest.mark.components

JOB = {"job": "calibration_monitor"}
# Ten frames a second of five detections, of which a tenth has truth.
FRAMES, DETECTIONS, MATCHED = 600, 3000, 300
HOURS = 300  # minutes


def up(values: str, instance="van") -> dict[str, str]:
    return {"series": f'up{{instance="{instance}",job="{JOB["job"]}"}}', "values": values}


def growing(per_minute: float, minutes=HOURS) -> str:
    return f"0+{per_minute:g}x{minutes}"


def restarting(per_minute: float) -> str:
    """For an hour, and from 0 on after it."""
    return f"0+{per_minute:g}x59 0+{per_minute:g}x{HOURS - 60}"


GROWN: dict[str, Callable[[float], str]] = {"growing": growing, "restarting": restarting}


def key(entry: dict[str, str]) -> str:
    return entry["series"]


def samples(*changed: dict[str, str], grown=growing) -> list[dict[str, str]]:
    """Of a healthy sidecar, with some series replaced."""
    healthy = [
        up(f"1x{HOURS}"),
        series("frames_total", grown(FRAMES), **JOB),
        *(
            series("detections_total", grown(count), outcome=outcome, **JOB)
            for outcome, count in (("recalibrated", DETECTIONS), ("passed_through", 0))
        ),
        series("detections_total", grown(3), outcome="refused", **JOB),
        series("passed_through_total", grown(3), reason="missing_covariance", **JOB),
        series("passed_through_total", grown(0), reason="observe_mode", **JOB),
        series("rejected_total", grown(3), reason="duplicate_id", **JOB),
        *(
            series("ground_truth_total", grown(count), outcome=outcome, **JOB)
            for outcome, count in (
                *(("matched", MATCHED), ("unusable", 1), ("orphan", 1), ("too_late", 1)),
                *(("refused", 1), ("duplicate", 2 * MATCHED), ("ignored", 2 * MATCHED)),
            )
        ),
        series("checkpoint_age_seconds", f"10x{HOURS}", **JOB),
        series("checkpoint_failures_total", f"0x{HOURS}", **JOB),
        series("loop_lag_seconds", f"0.004x{HOURS}", **JOB),
        *(
            series("drift_left_out_total", grown(count), reason=reason, **JOB)
            for reason, count in (("overload", 0), ("tracks", 0), ("late", 5))
        ),
        *buckets(grown, fast=FRAMES, slow=0),
    ]
    replaced = {key(entry): entry for entry in healthy}
    return list((replaced | {key(entry): entry for entry in changed}).values())


def buckets(grown=growing, *, fast: float, slow: float) -> list[dict[str, str]]:
    """Frames a minute that took up to 1 ms, and 0.1 … 0.5 s."""
    counts = {"0.001": fast, "0.1": fast, "0.5": fast + slow, "+Inf": fast + slow}
    return [
        series("frame_seconds_bucket", grown(count), le=bound, **JOB)
        for bound, count in counts.items()
    ]


def truth(outcome: str, values: str) -> dict[str, str]:
    return series("ground_truth_total", values, outcome=outcome, **JOB)


def case(
    found: Sequence[dict[str, str]], at: Mapping[str, Sequence[str]], name="the only one"
) -> Case:
    """Alerts are given as name and further labels; all are warnings of the job."""
    full = {time: [worded(*alert.split()) for alert in alerts] for time, alerts in at.items()}
    return Case(found, full, name)


def worded(name: str, *labels: str) -> str:
    return " ".join((name, "warning", f"job={JOB['job']}", *labels))


def tells(folder: Path, found: Sequence[dict[str, str]], at: Mapping[str, Sequence[str]]) -> bool:
    return fires(folder, SERVICE, case(found, at))


QUIET: dict[str, list[str]] = {f"{minutes}m": [] for minutes in (1, 6, 31, 59, 62, 66, 95, 240)}


def test_of_a_healthy_sidecar_nothing_is_told_over_a_restart_either(tmp_path):
    cases = [case(samples(grown=grown), QUIET, name) for name, grown in GROWN.items()]
    assert fires(tmp_path, SERVICE, *cases)


def test_of_a_sidecar_that_has_nothing_to_do_nothing_is_told(tmp_path):
    assert tells(tmp_path, samples(grown=lambda _: growing(0)), QUIET)


def test_where_nothing_is_scraped_all_that_is_told_is_that(tmp_path):
    assert tells(tmp_path, [], {"4m": [], "10m": ["CalibrationSidecarDown instance="]})


def test_a_sidecar_that_cannot_be_scraped_is_told_after_five_minutes_and_for_it_alone(tmp_path):
    gone = [
        series("frames_total", f"0+{FRAMES}x9 stale", **JOB),
        truth("matched", f"0+{MATCHED}x9 stale"),
    ]
    found = [up("1x9 0x20 1x60"), up("1x90", "bus"), *gone]
    told = ["CalibrationSidecarDown"]
    assert tells(tmp_path, found, {"9m": [], "13m": [], "16m": told, "29m": told, "31m": []})


def test_a_restart_within_five_minutes_is_no_sidecar_that_is_down(tmp_path):
    assert tells(tmp_path, [up("1x9 0x3 1x9 0x3 1x300")], QUIET)


@pytest.mark.parametrize("absent", [False, True])
def test_frames_without_any_truth_are_told_after_half_an_hour(tmp_path, absent):
    found = [up("1x200"), series("frames_total", growing(FRAMES), **JOB)]
    if not absent:
        found.append(truth("matched", f"0+{MATCHED}x60 {60 * MATCHED}x200"))
        assert tells(tmp_path, found, {"60m": [], "90m": [], "100m": ["CalibrationNoLabels"]})
    else:
        assert tells(tmp_path, found, {"25m": [], "40m": ["CalibrationNoLabels"]})


def test_truth_that_comes_every_quarter_of_an_hour_is_truth(tmp_path):
    batches = " ".join(f"{MATCHED * batch}x14" for batch in range(20))
    found = [up("1x300"), series("frames_total", growing(FRAMES), **JOB), truth("matched", batches)]
    assert tells(tmp_path, found, QUIET)


def test_a_vehicle_that_stands_needs_no_truth(tmp_path):
    found = [up("1x300"), series("frames_total", "500x300", **JOB), truth("matched", "50x300")]
    assert tells(tmp_path, found, QUIET)


def test_detections_of_which_hardly_any_has_truth_are_told(tmp_path):
    told = ["CalibrationLabelledShareLow"]
    at: dict[str, list[str]] = {"25m": [], "45m": told, "100m": told, "240m": told}
    cases = []
    for name, grown in GROWN.items():
        few = [
            truth(outcome, grown(0)) for outcome in ("unusable", "orphan", "too_late", "refused")
        ]
        found = samples(truth("matched", grown(DETECTIONS / 200)), *few, grown=grown)
        cases.append(case(found, at, name))
    assert fires(tmp_path, SERVICE, *cases)


def test_labels_most_of_which_find_no_detection_are_told(tmp_path):
    told = ["CalibrationMatchRatioLow"]
    at: dict[str, list[str]] = {"10m": [], "30m": told, "59m": told, "100m": told}
    cases = [
        case(samples(truth(outcome, grown(2 * MATCHED)), grown=grown), at, f"{outcome} {name}")
        for outcome in ("orphan", "too_late", "unusable", "refused")
        for name, grown in GROWN.items()
    ]
    assert fires(tmp_path, SERVICE, *cases)


def test_labels_none_of_which_finds_a_detection_are_told_as_that_and_as_no_labels(tmp_path):
    found = samples(truth("matched", f"0x{HOURS}"), truth("orphan", growing(MATCHED)))
    told = ["CalibrationMatchRatioLow", "CalibrationNoLabels"]
    assert tells(tmp_path, found, {"10m": [], "45m": told})


def test_detections_that_pass_through_are_told_after_ten_minutes(tmp_path):
    told = ["CalibrationPassThroughHigh"]
    at: dict[str, list[str]] = {"8m": [], "15m": told, "59m": told, "100m": told}
    cases = []
    for reason in (
        "missing_covariance",
        "recalibrator_mismatch",
        "recalibrator_failed",
        "internal",
    ):
        for name, grown in GROWN.items():
            passed = series("passed_through_total", grown(DETECTIONS / 10), reason=reason, **JOB)
            cases.append(case(samples(passed, grown=grown), at, f"{reason} {name}"))
    assert fires(tmp_path, SERVICE, *cases)


def test_who_only_observes_passes_all_through_and_nothing_is_told(tmp_path):
    observed = [
        series("passed_through_total", growing(DETECTIONS), reason="observe_mode", **JOB),
        series("detections_total", growing(0), outcome="recalibrated", **JOB),
        series("detections_total", growing(DETECTIONS), outcome="passed_through", **JOB),
    ]
    assert tells(tmp_path, samples(*observed), QUIET)


def test_refusals_beyond_one_in_a_hundred_are_told_after_ten_minutes(tmp_path):
    told = ["CalibrationRejectedHigh"]
    at: dict[str, list[str]] = {"8m": [], "15m": told, "59m": told, "100m": told}
    cases = []
    for name, grown in GROWN.items():
        refused = series("rejected_total", grown(DETECTIONS / 50), reason="mean_value", **JOB)
        cases.append(case(samples(refused, grown=grown), at, name))
    assert fires(tmp_path, SERVICE, *cases)


def test_refusals_are_told_where_nothing_else_comes(tmp_path):
    found = [
        up("1x60"),
        series("detections_total", "0x60", outcome="recalibrated", **JOB),
        series("rejected_total", "0+10x60", reason="malformed", **JOB),
    ]
    assert tells(tmp_path, found, {"5m": [], "15m": ["CalibrationRejectedHigh"]})


def test_statistics_that_are_not_written_are_told_and_one_slow_disk_is_not(tmp_path):
    age = series("checkpoint_age_seconds", "10x9 0+60x10 10x60 130x2 10x60", **JOB)
    told = ["CalibrationCheckpointStale"]
    at = {"12m": [], "19m": told, "22m": [], "86m": []}
    assert tells(tmp_path, [up("1x200"), age], at)


def test_statistics_that_cannot_be_written_are_told_and_those_that_are_not_to_be_are_not(tmp_path):
    cases = [
        case(
            [
                up("1x60"),
                series("checkpoint_age_seconds", " ".join([age] * 60), **JOB),
                series("checkpoint_failures_total", failures, **JOB),
            ],
            {"9m": [], "25m": told, "59m": told},
            f"{age} {failures}",
        )
        for age in ("NaN", "10")
        for failures, told in (
            ("0x9 1+6x50", ["CalibrationCheckpointStale"]),
            ("0x9 1x50", []),
            ("9x9 0x50", []),
        )
    ]
    assert fires(tmp_path, SERVICE, *cases)


def test_a_sidecar_that_does_not_keep_up_is_told_with_what_shows_it(tmp_path):
    cases = []
    for name, grown in GROWN.items():
        signs = {
            "loop": [series("loop_lag_seconds", f"0.4x{HOURS}", **JOB)],
            "frames": buckets(grown, fast=0.98 * FRAMES, slow=0.02 * FRAMES),
            "drift": [series("drift_left_out_total", grown(5), reason="overload", **JOB)],
            "drift of tracks": [series("drift_left_out_total", grown(5), reason="tracks", **JOB)],
        }
        for by, changed in signs.items():
            told = [f"CalibrationOverload by={by.split()[0]}"]
            at: dict[str, list[str]] = {"4m": [], "15m": told, "59m": told, "80m": told}
            cases.append(case(samples(*changed, grown=grown), at, f"{by} {name}"))
    assert fires(tmp_path, SERVICE, *cases)


def test_all_signs_of_overload_are_told_side_by_side(tmp_path):
    found = samples(
        series("loop_lag_seconds", f"0.4x{HOURS}", **JOB),
        *buckets(fast=0, slow=FRAMES),
        series("drift_left_out_total", growing(5), reason="overload", **JOB),
    )
    told = [f"CalibrationOverload by={by}" for by in ("loop", "frames", "drift")]
    assert tells(tmp_path, found, {"15m": told})


def test_a_moment_of_overload_and_what_is_left_out_for_other_reasons_are_not_told(tmp_path):
    found = samples(
        series("loop_lag_seconds", f"0.004x9 2x3 0.004x{HOURS}", **JOB),
        series("drift_left_out_total", growing(500), reason="late", **JOB),
    )
    assert tells(tmp_path, found, QUIET)


def test_frames_that_were_slow_half_an_hour_ago_are_not_told_for_ever(tmp_path):
    fast = 0.98 * FRAMES
    counts = {"0.001": growing(fast), "0.1": growing(fast)}
    # All of them after the first half hour: those that were slow, and those that are fast.
    whole = f"0+{FRAMES}x30 {30 * FRAMES + fast:g}+{fast:g}x{HOURS - 32}"
    rows = counts | {"0.5": whole, "+Inf": whole}
    found = [
        series("frame_seconds_bucket", values, le=bound, **JOB) for bound, values in rows.items()
    ]
    told = ["CalibrationOverload by=frames"]
    assert tells(tmp_path, samples(*found), {"20m": told, "50m": [], "90m": []})
