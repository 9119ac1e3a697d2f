"""What is said of the tracker, refusals, load, the disk, recalibrators, settings and versions."""

from __future__ import annotations

import pytest

from monitor.commands.doctor.diagnosis import diagnose
from monitor.commands.doctor.observation import GIVEN, Answer, Asked
from monitor.commands.doctor.rules import Area, Severity
from monitor.frames.status import TrackerStatus
from monitor.promotion.records import Evidence, TrialStanding, TrialState
from tests.diagnosis.observed import of, seen, status, stream, the_one, without

configuration, versions = of(Area.CONFIGURATION), of(Area.VERSIONS)
WRONG, REMARK = Severity.WRONG, Severity.REMARK
NAN = float("nan")


def metric(name, value, **labels):
    inside = ",".join(f"{key}={word}" for key, word in labels.items())
    return {f"calibration_{name}{{{inside}}}" if labels else f"calibration_{name}": float(value)}


def fates(**counts):
    return {
        k: v for f, n in counts.items() for k, v in metric("detection_fates", n, fate=f).items()
    }


# Area, metrics, what of them came between the looks, and the words.
CASES = [
    # ---- the tracker elsewhere
    (
        *(WRONG, Area.TRACKER, metric("tracker_up", 0), {}),
        "the tracker elsewhere is away",
    ),
    (
        *(WRONG, Area.TRACKER),
        metric("tracker_up", 1)
        | metric("tracker_forwarded_total", 80, outcome="answered")
        | metric("tracker_forwarded_total", 20, outcome="late"),
        metric("tracker_forwarded_total", 80, outcome="answered")
        | metric("tracker_forwarded_total", 20, outcome="late"),
        "20 % of the frames come back without its tracks (late 20 %)",
    ),
    (
        *(WRONG, Area.TRACKER),
        metric("tracker_frames_total", 90, order="in_order")
        | metric("tracker_frames_total", 10, order="unstamped"),
        {},
        "10 % of the frames cannot be tracked (unstamped 10 %)",
    ),
    (
        *(REMARK, Area.TRACKER),
        metric("drift_reference_tracks", 0, slice="car", origin="learned", unit="frame"),
        {},
        "no tracks are known of car",
    ),
    # ---- refusals
    (
        *(WRONG, Area.REFUSALS),
        metric("rejected_total", 4, reason="no_header")
        | metric("rejected_total", 1, reason="invalid_header"),
        metric("rejected_total", 3, reason="no_header")
        | metric("rejected_total", 1, reason="invalid_header"),
        "the header was refused, and so every frame after it; the answer to the header names the "
        "field: 4 messages while doctor looked (no_header 75 % and invalid_header 25 %)",
    ),
    (
        *(WRONG, Area.REFUSALS),
        metric("rejected_total", 4, reason="no_header"),
        metric("rejected_total", 3, reason="no_header"),
        "frames come of streams that have no header: 3 messages while doctor looked (no_header",
    ),
    (
        *(REMARK, Area.REFUSALS),
        metric("rejected_total", 4, reason="invalid_header"),
        {},
        "4 messages had no header that could be used since the start (invalid_header 100 %), none",
    ),
    (
        *(WRONG, Area.REFUSALS),
        metric("rejected_total", 40, reason="covariance_scale"),
        metric("rejected_total", 40, reason="covariance_scale"),
        "40 refusals for 1,000 detections while doctor looked (covariance_scale 100 %)",
    ),
    (
        *(WRONG, Area.REFUSALS),
        metric("passed_through_total", 900, reason="missing_covariance"),
        metric("passed_through_total", 300, reason="missing_covariance"),
        "30 % of the detections go out as they came while doctor looked (missing_covariance 30 %)",
    ),
    (
        *(WRONG, Area.REFUSALS),
        metric("calls_refused_total", 3, why="unauthenticated"),
        metric("calls_refused_total", 3, why="unauthenticated"),
        "calls are refused for want of a right: unauthenticated 100 %, 3 calls while doctor looked",
    ),
    (
        *(REMARK, Area.REFUSALS, metric("calls_refused_total", 1, why="unauthenticated"), {}),
        "1 call had no right since the start",
    ),
    # ---- load
    (WRONG, Area.LOAD, metric("overload", 1), {}, "the sidecar does not keep up"),
    (REMARK, Area.LOAD, metric("overloads_total", 2), {}, "gave way to forwarding 2 times"),
    (WRONG, Area.LOAD, metric("loop_lag_seconds", 0.4), {}, "the event loop was 400 ms late"),
    (
        *(WRONG, Area.LOAD, {}),
        metric("frame_seconds_bucket", 50, le="0.001")
        | metric("frame_seconds_bucket", 50, le="0.1"),
        "one frame in a hundred takes more than 100 ms",
    ),
    (
        *(WRONG, Area.LOAD),
        metric("drift_left_out_total", 10, reason="tracks"),
        metric("drift_left_out_total", 10, reason="tracks"),
        "not watched for drift (tracks): 10 detections while doctor looked",
    ),
    (REMARK, Area.LOAD, metric("fast_decode_ratio", 0.6), {}, "only 60 % of the frames have"),
    (
        *(WRONG, Area.LOAD, metric("internal_errors_total", 2)),
        metric("internal_errors_total", 1),
        "2 faults of the sidecar itself since the start, and some while",
    ),
    (REMARK, Area.LOAD, metric("internal_errors_total", 1), {}, "1 fault of the sidecar itself"),
    (REMARK, Area.LOAD, metric("log_lines_total", 3, level="error"), {}, "3 errors in the log"),
    (WRONG, Area.LOAD, {"process_open_fds": 900.0}, {}, "900 of 1,024 file descriptors"),
    # ---- the disk
    (
        *(WRONG, Area.DISK, metric("checkpoint_failures_total", 3)),
        metric("checkpoint_failures_total", 1),
        "checkpoints could not be written to disk: 3 failures since the start, and some while",
    ),
    (
        *(REMARK, Area.DISK, metric("checkpoint_failures_total", 3), {}),
        "checkpoints could not be written to disk: 3 failures since the start",
    ),
    (
        *(WRONG, Area.DISK, metric("ledger_failures_total", 1)),
        metric("ledger_failures_total", 1),
        "frames and labels could not be written to disk: 1 failure since the start, and some",
    ),
    (
        *(WRONG, Area.DISK, metric("checkpoint_age_seconds", 300), {}),
        "the last checkpoint was written 5 min ago",
    ),
    (
        *(REMARK, Area.DISK, metric("checkpoint_age_seconds", NAN), {}),
        "no state is kept on disk",
    ),
    (
        *(WRONG, Area.DISK, fates(dropped_disk_busy=40), fates(dropped_disk_busy=40)),
        "the disk does not keep up: 0 frames or labels wait",
    ),
    (
        *(WRONG, Area.DISK, metric("files_refused_total", 2, of="state"), {}),
        "files of the last run could not be used: state 2",
    ),
    (
        *(REMARK, Area.DISK, metric("ledger_lost_entries", 12), {}),
        "12 could not be done again at the start",
    ),
    # ---- recalibrators
    (
        *(WRONG, Area.RECALIBRATION),
        metric("recalibration_factor", 4.2, slice="car", dimension="x"),
        {},
        "variances are multiplied, x of car by 4.2",
    ),
    (
        *(WRONG, Area.RECALIBRATION),
        metric("recalibration_factor", 0.3, slice="car", dimension="x"),
        {},
        "x of car by 0.3",
    ),
    (
        *(WRONG, Area.RECALIBRATION, metric("recalibrator_fits_total", 4, outcome="failed")),
        metric("recalibrator_fits_total", 1, outcome="failed"),
        "4 fits of slices failed since the start",
    ),
    (
        *(REMARK, Area.RECALIBRATION, metric("recalibrator_fits_total", 4, outcome="failed"), {}),
        "4 fits of slices failed since the start",
    ),
    (
        *(REMARK, Area.RECALIBRATION, metric("recalibrator_pinned", 1), {}),
        "recalibrators are pinned",
    ),
    (
        *(REMARK, Area.RECALIBRATION),
        metric("recalibrator_info", 1, version="id-2", method="identity", mode="observe"),
        {},
        "mode is observe: detections go out as they came",
    ),
]


@pytest.mark.parametrize(("severity", "area", "metrics", "added", "words"), CASES)
def test_what_is_wrong_is_told_in_these_words_and_nothing_else_is(
    severity, area, metrics, added, words
):
    found = the_one(diagnose(seen(metrics, added)), severity, area)
    assert words in found.what


@pytest.mark.parametrize(
    ("metrics", "added"),
    [
        (metric("passed_through_total", 9e5, reason="observe_mode"),) * 2,
        (metric("rejected_total", 10, reason="mean_value"),) * 2,
        (metric("recalibration_factor", NAN, slice="car", dimension="x"), {}),
        (metric("recalibration_factor", 1.9, slice="car", dimension="x"), {}),
        (metric("checkpoint_age_seconds", 119), {}),
        (metric("loop_lag_seconds", 0.24), {}),
        (metric("recalibrator_fits_total", 2, outcome="failed"), {}),
        (metric("log_lines_total", 3, level="warning"), {}),
    ],
)
def test_what_is_meant_or_small_is_no_trouble(metrics, added):
    assert {each.severity for each in diagnose(seen(metrics, added))} == {Severity.WELL}


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ("is away: nobody takes the connection", "10.0.0.9:50052 is away: nobody takes the"),
        ("is there, but says that it does not serve", "10.0.0.9:50052 is there, but says that"),
        ("", "the tracker at 10.0.0.9:50052 is away;"),
    ],
)
def test_a_tracker_that_is_down_is_told_with_address_and_trouble(trouble, words):
    forwarded = metric("tracker_up", 0) | metric("tracker_forwarded_total", 50, outcome="failed")
    away = status(tracker=TrackerStatus("10.0.0.9:50052", up=False, trouble=trouble))
    found = the_one(diagnose(seen(forwarded, forwarded, away)), WRONG, Area.TRACKER)
    assert words in found.what
    assert "50 frames did not reach it while doctor looked" in found.what
    assert "go on to the detector recalibrated, but without tracks" in found.why
    there = status(tracker=TrackerStatus("10.0.0.9:50052", up=True, trouble=trouble))
    assert not [
        each
        for each in diagnose(seen(metric("tracker_up", 1), {}, there))
        if each.severity is not Severity.WELL
    ]


def test_a_candidate_that_waits_is_told_with_its_version_where_that_may_be_asked_for():
    proven = TrialStanding(
        "car", "scaling-7", TrialState.PROVEN, Evidence(400, 3.0, 0.0, 0.0, 1.7), ()
    )
    found = the_one(diagnose(seen(trials=(proven,))), REMARK, Area.RECALIBRATION)
    assert "a recalibrator of car is proven better and waits for approval (scaling-7)" in found.what
    waits = metric("trial_log10_evidence", 3, slice="car", state="proven", direction="better")
    refused = Asked(Answer.NO_RIGHT, "no")
    told = diagnose(seen(waits, recalibrators=refused))
    assert "of car is proven better" in " ".join(each.what for each in told)


@pytest.mark.parametrize("reason", ["mean_value", "brand_new"])
def test_what_the_answer_names_is_said_once(reason):
    refused = metric("rejected_total", 40, reason=reason)
    found = the_one(diagnose(seen(refused, refused)), WRONG, Area.REFUSALS)
    assert found.remedy.count("names the field") == 1
    assert f"({reason} 100 %)" in found.what


def test_of_calls_that_had_no_right_doctor_itself_may_be_the_one():
    refused = metric("calls_refused_total", 4, why="unauthenticated")
    found = the_one(diagnose(seen(refused)), REMARK, Area.REFUSALS)
    assert "Earlier runs of doctor may be among them" in found.why


def test_settings_that_wait_and_a_file_that_is_refused_are_told():
    waiting = status(
        stream(),
        stream("rear"),
        configuration="/etc/sidecar.toml",
        waiting_keys=("statistics.bins", "limits.max_dimensions"),
    )
    found = the_one(diagnose(seen(told=waiting)), REMARK, Area.CONFIGURATION)
    assert found.what.startswith("statistics.bins and limits.max_dimensions of /etc/sidecar.toml")
    assert "are not in force" in found.what
    refused = status(
        stream(),
        stream("rear"),
        configuration="/etc/sidecar.toml",
        configuration_refused="line 3: no such key",
    )
    found = the_one(diagnose(seen(told=refused)), WRONG, Area.CONFIGURATION)
    assert "cannot be used: line 3: no such key" in found.what
    assert "the configuration file /etc/sidecar.toml was read again" in found.what
    assert "serve --config FILE --check" in found.remedy


def test_without_the_status_the_metrics_say_that_settings_wait():
    (found,) = configuration(
        without(seen(metric("configuration_waiting_keys", 2)), told=Asked(Answer.NO_TOKEN, "no"))
    )
    assert found.severity is REMARK
    assert "2 settings of the file are not in force" in found.what


def test_another_version_is_a_remark_by_status_or_by_metric():
    found = the_one(
        diagnose(seen(told=status(stream(), stream("rear"), version="0.2.0"))),
        REMARK,
        Area.VERSIONS,
    )
    assert "the sidecar is 0.2.0, and this doctor 0.1.0" in found.what
    blind = without(seen(metric("build_info", 1, version="0.3.0")), told=GIVEN)
    (found,) = versions(blind)
    assert "the sidecar is 0.3.0" in found.what
