"""What doctor finds in an observation, and in which words; nothing where all is well."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.commands.doctor import diagnose, rank, verdict
from monitor.commands.doctor.look import GIVEN, Answer, Asked, Limits, Look, Observation
from monitor.commands.doctor.rules import AREAS, Area, Finding, Severity
from monitor.drift.alarms import DriftState, SliceStanding
from monitor.drift.charts import Direction, Scale, Stage
from monitor.drift.charts import Severity as Urgency
from monitor.frames.status import Status, StreamStatus, TrackerStatus
from tests.alarmed import alarm
from tests.commands.doctor.observed import (
    NOW,
    SECOND,
    STARTED,
    VERSION,
    WELL,
    of,
    same_text,
    samples,
    seen,
    status,
    stream,
    without,
)

WRONG, REMARK = Severity.WRONG, Severity.REMARK
REACH, CLOCK, DRIFT, LABELS = Area.REACH, Area.CLOCK, Area.DRIFT, Area.LABELS
STREAMS, TRACKER, LOAD, DISK = Area.STREAMS, Area.TRACKER, Area.LOAD, Area.DISK
REFUSALS, RECALIBRATION = Area.REFUSALS, Area.RECALIBRATION
CONFIGURATION, VERSIONS = Area.CONFIGURATION, Area.VERSIONS
HOUR, DAY, NAN = 3600.0, 86400.0, float("nan")

CLOSED = Asked(Answer.CLOSED, "nothing listens there")
SILENT = Asked(Answer.SILENT, "no answer in time")
OTHER = Asked(Answer.OTHER_PORT, "it speaks HTTP")
TOKEN = Asked(Answer.NO_RIGHT, "no token")
RIGHT = Asked(Answer.NO_RIGHT, "authorization: no.")


def foreign(words: str) -> Asked:
    return Asked(Answer.FOREIGN, words)


def metric(name: str, value: float, **labels: str) -> dict[str, float]:
    inside = ",".join(f"{key}={word}" for key, word in labels.items())
    return {f"calibration_{name}{{{inside}}}" if labels else f"calibration_{name}": float(value)}


def truth(**counts: float) -> dict[str, float]:
    found: dict[str, float] = {}
    for outcome, count in counts.items():
        found |= metric("ground_truth_total", count, outcome=outcome)
    return found


def fates(**counts: float) -> dict[str, float]:
    found: dict[str, float] = {}
    for fate, count in counts.items():
        found |= metric("detection_fates", count, fate=fate)
    return found


def rises(name: str, value: float, **labels: str) -> Observation:
    return seen(*(metric(name, value, **labels),) * 2)


def stands(name: str, value: float, **labels: str) -> Observation:
    return seen(metric(name, value, **labels))


def rose(name: str, value: float, added: float, **labels: str) -> Observation:
    return seen(metric(name, value, **labels), metric(name, added, **labels))


def told(*streams: StreamStatus, **changes: Any) -> Observation:
    return seen(told=status(*streams, **changes))


def lagging(*lags_s: float) -> Observation:
    return told(*(stream(name, lag_s=lag) for name, lag in zip("abc", lags_s, strict=False)))


def asked(grpc: Asked = GIVEN, http: Asked = GIVEN, **changes: Any) -> Observation:
    return replace(seen(), grpc=grpc, http=http, **changes)


def moved(last: StreamStatus, *, since_s: float = 5.0, frames: int = 100) -> Observation:
    """Two looks at a stream whose stamp has not changed in some frames."""
    whole, came = told(last), (last.stamped_received_ns or 0) - int(since_s * SECOND)
    before = replace(last, frames=last.frames - frames, stamped_received_ns=came)
    return replace(whole, first=replace(whole.first, status=status(before)))


def our_clock(apart_s: float, round_trip_s: float = 0.001) -> Observation:
    whole = seen()
    clock_ns = NOW - int(apart_s * SECOND)
    return replace(whole, last=replace(whole.last, clock_ns=clock_ns, round_trip_s=round_trip_s))


def standing(alarm=None, slice="car", state=DriftState.OK, severity=Urgency.PAGE) -> SliceStanding:
    state = state if alarm is None else DriftState.ALARM
    severity = severity if alarm is None else alarm.severity
    return SliceStanding(slice, severity, state, 0.0, 0.0, 1000.0, alarm)


def paged(state: DriftState) -> Observation:
    return stands("drift_state", state, slice="car", severity="page")


def unwatched() -> Observation:
    whole = seen()
    assert whole.last.samples is not None
    kept = {n: rows for n, rows in whole.last.samples.families.items() if "_drift_" not in n}
    return replace(
        whole, last=replace(whole.last, samples=replace(whole.last.samples, families=kept))
    )


def tracker(up: bool, trouble: str = "", metrics: dict[str, float] | None = None) -> Observation:
    elsewhere = TrackerStatus("10.0.0.9:50052", up=up, trouble=trouble)
    return seen(metrics, metrics, status(tracker=elsewhere))


UNDER = alarm(
    "truck",
    severity=Urgency.TICKET,
    direction=Direction.UNDER,
    scale=Scale(0.5, 0.4, 0.6),
    tracks=0,
    since_ns=1_790_000_000 * SECOND,
)
RAW = alarm("total", severity=Urgency.TICKET, stage=Stage.RAW)
NOBODY_SENDS = metric("frames_total", 0)
NO_LABELS = truth(matched=0)
QUIET = stream("rear", received_ns=NOW - 200 * SECOND)
GONE = stream("rear", received_ns=NOW - 5400 * SECOND)
LATE = status(stream(matched_received_ns=NOW - 7000 * SECOND))
BOOT = stream(stamp_ns=500 * SECOND)
NEVER = stream(matched=0, matched_received_ns=None)
FULL = status(*(stream(f"s{number}") for number in range(64)))
FORWARDED = metric("tracker_forwarded_total", 80, outcome="answered") | metric(
    "tracker_forwarded_total", 20, outcome="late"
)
FAILED = metric("tracker_up", 0) | metric("tracker_forwarded_total", 50, outcome="failed")
UNPROVEN = (
    metric("matched_detections", 200, slice="car")
    | metric("drift_effective_sample_ratio", 0.15, slice="car")
    | metric("nees_ratio", 4, slice="car", stage="recalibrated", dimension="joint")
)
FEW = UNPROVEN | metric("matched_detections", 100, slice="car")
GATE = metric("near_gate_ratio", 0.165) | metric("gated_matches", 5000)
TOO_LATE = truth(too_late=100) | metric("dropped_detections_total", 900)
NEVER_WRITTEN = metric("checkpoint_failures_total", 3) | metric("checkpoint_age_seconds", NAN)
IN_MEMORY = Limits(memory=100_000, disk=0)
HEADERS = metric("rejected_total", 4, reason="no_header")
WAITING: dict[str, Any] = {
    "configuration": "/etc/sidecar.toml",
    "waiting_keys": ("statistics.bins", "limits.x"),
}
UNREADABLE: dict[str, Any] = {
    "configuration": "/etc/sidecar.toml",
    "configuration_refused": "line 3: no such key",
}

# The only trouble of an area: how bad it is, what was seen, and words of the finding.
CASES = [
    # ---- no way to the sidecar, or to a part of it
    (WRONG, REACH, asked(CLOSED, CLOSED), "no sidecar can be reached", "kubectl exec"),
    (
        *(WRONG, REACH, asked(SILENT, Asked(Answer.NOWHERE, "no way there (not known)"))),
        *("no way there (not known)", "--http-address"),
    ),
    (WRONG, REACH, asked(CLOSED), "gRPC at 127.0.0.1:50051 does not answer: n", "docker exec"),
    (WRONG, REACH, asked(http=CLOSED), "HTTP at 127.0.0.1:9464 does not answer", "allow_plain_me"),
    (
        *(WRONG, REACH, asked(foreign("Socket closed"))),
        *("50051 does not answer: Socket closed", "does it serve with TLS? Then name its"),
    ),
    (WRONG, REACH, asked(OTHER), "does not answer: it speaks HTTP", "Did you swap --address and"),
    (WRONG, REACH, asked(http=OTHER), "HTTP at 127.0.0.1:9464 does not answer", "Did you swap"),
    (WRONG, REACH, asked(OTHER, OTHER), "HTTP, and 127.0.0.1:9464 gRPC: the other way", "swap"),
    (WRONG, REACH, asked(foreign("it does not speak TLS")), "leave --certificate-authority out"),
    (
        *(WRONG, REACH, asked(Asked(Answer.NO_TRUST, "VERIFY_FAILED"))),
        *("does not answer: VERIFY_FAILED", "--certificate-authority"),
    ),
    (
        *(REMARK, REACH, same_text(seen())),
        *("not refreshed in 5 s", "Watch for longer: --seconds 2"),
    ),
    (WRONG, REACH, asked(ready=False), "says that it is not ready"),
    (WRONG, REACH, asked(serving=False), "says that it is not ready"),
    (WRONG, REACH, without(seen(), metrics=foreign("nothing")), "no metrics of a sidecar: nothing"),
    (WRONG, REACH, without(seen(), told=TOKEN), "refuses to tell how it is: no token"),
    (WRONG, REACH, without(seen(), told=RIGHT), "refuses to tell how it is: authorization"),
    (
        *(REMARK, REACH),
        replace(without(seen(), told=Asked(Answer.UNKNOWN)), drift=GIVEN),
        "does not know GetStatus",
    ),
    (
        *(WRONG, REACH, replace(without(seen(), told=SILENT), drift=GIVEN)),
        "does not tell how it is: no answer in time",
    ),
    (REMARK, REACH, asked(drift=SILENT), "not looked at: alarms of drift (no answer", "Ask again"),
    (REMARK, REACH, told(started_ns=NOW - 12 * SECOND), "started 12 s ago", "again and again"),
    (
        *(WRONG, REACH, replace(seen(), first=Look(100.0, status=status(started_ns=1)))),
        "was started anew while doctor looked",
    ),
    # ---- streams
    (WRONG, STREAMS, seen(told=Status(VERSION, STARTED, NOW)), "none has come since the start 2 h"),
    (WRONG, STREAMS, told(StreamStatus("front")), "2 h ago; 1 stream is open, and empty"),
    (WRONG, STREAMS, told(QUIET), "no frames have come for 3.3 min, of no stream"),
    (WRONG, STREAMS, told(stream(), QUIET), "silent while others send: rear for 3.3 min"),
    (WRONG, STREAMS, told(stream(), StreamStatus("rear")), "others send: rear since the start"),
    (REMARK, STREAMS, told(stream(), GONE), "silent while others send: rear for 1.5 h"),
    (
        *(WRONG, STREAMS),
        seen(
            metric("rejected_total", 40, reason="malformed_message"),
            metric("rejected_total", 40, reason="malformed_message") | NOBODY_SENDS,
            status(QUIET),
        ),
        *("are refused as a whole: 40 messages while doctor looked", "findings on refusals"),
    ),
    (
        *(WRONG, STREAMS),
        seen(
            metric("rejected_total", 2, reason="invalid_header"),
            NOBODY_SENDS,
            status(StreamStatus("front")),
        ),
        *("; 2 messages came and had to be refused (invalid_header 100 %)", "client given up?"),
    ),
    (
        *(WRONG, STREAMS),
        seen(*(metric("rejected_total", 40, reason="mean_value"),) * 2, told=status(QUIET)),
        "no frames have come for 3.3 min",
    ),
    (
        *(WRONG, STREAMS),
        seen(*(metric("rejected_total", 50, reason="no_header"),) * 2, told=FULL),
        *("64 of at most 64 names of streams are taken, and 50 messages", "`[server] max_streams`"),
    ),
    (REMARK, STREAMS, seen(told=FULL), "64 of at most 64 names"),
    (REMARK, STREAMS, told(*(stream(f"s{i}") for i in range(52))), "52 of at most 64 names"),
    (WRONG, STREAMS, rises("streams_dropped_total", 1), "1 stream ended because the client read"),
    (WRONG, STREAMS, without(seen(added=NOBODY_SENDS), told=TOKEN), "no frame was counted while"),
    # ---- clocks, each with the mistake that looks so
    (WRONG, CLOCK, lagging(2 * HOUR), "not of now: a 2 h behind the wall clock (whole half hours"),
    (WRONG, CLOCK, lagging(-5.5 * HOUR), "a 5.5 h ahead of the wall clock (whole half"),
    (WRONG, CLOCK, lagging(3 * DAY + 17), "a 3 days behind the wall clock", "date -u"),
    (WRONG, CLOCK, lagging(-18.0), "18 s ahead of the wall clock (18 s ahead of UTC is GPS time)"),
    (WRONG, CLOCK, lagging(-37.01), "37 s ahead of the wall clock (37 s ahead of UTC is TAI"),
    (WRONG, CLOCK, lagging(315_964_800.0), "10 years behind the wall clock (they count from"),
    (WRONG, CLOCK, lagging(-1.5), "a 1.5 s ahead of the wall clock"),
    (WRONG, CLOCK, lagging(11.0), "a 11 s behind the wall clock"),
    (WRONG, CLOCK, told(stream(stamp_ns=NOW // SECOND)), "in seconds they would be of now"),
    (WRONG, CLOCK, told(stream(stamp_ns=NOW // 10**6)), "in milliseconds they would be of now"),
    (WRONG, CLOCK, told(stream(stamp_ns=NOW // 1000)), "in microseconds they would be of now"),
    (REMARK, CLOCK, told(BOOT), "stamps count from the start of something"),
    (WRONG, CLOCK, told(BOOT, stream("rear")), "do not agree with each other"),
    (WRONG, CLOCK, lagging(0.01, 0.02, 3.0), "c 3 s behind the wall clock, the others 20 ms"),
    (WRONG, CLOCK, lagging(0.01, 2.0), "b 2 s behind the wall clock, the others 10 ms"),
    (WRONG, CLOCK, lagging(5.0, 5.0, 0.0), "c 0 ms behind the wall clock, the others 5 s"),
    (
        *(WRONG, CLOCK, told(stream("bare", stamp_ns=None, stamped_received_ns=None))),
        "stream bare: frames come without a capture stamp",
    ),
    (
        *(WRONG, CLOCK, told(stream(stamped_received_ns=NOW - 60 * SECOND))),
        "stream front: frames have come without a capture stamp for 60 s",
    ),
    (WRONG, CLOCK, moved(stream(stamp_ns=0)), "stamps do not move", "No event time passes"),
    (WRONG, CLOCK, moved(stream()), "stamps do not move", "capture time of each frame, in nano"),
    (WRONG, CLOCK, our_clock(2.0), "is 2 s ahead of the one here"),
    (WRONG, CLOCK, our_clock(-HOUR), "is 60 min behind the one here"),
    (REMARK, CLOCK, stands("clock_steps_total", 2), "was set 2 times since"),
    (WRONG, CLOCK, rose("clock_steps_total", 2, 1), "2 times since the start, and some while"),
    (REMARK, CLOCK, stands("event_time_jumps_total", 1), "jumped ahead 1 time"),
    # ---- drift
    (
        *(WRONG, DRIFT, seen(standings=(standing(alarm()),))),
        "drift alarm, page: car, overconfident as forwarded: standard deviations 2.2 times too "
        "small (1.9 to 2.6) since 12.3 s, 7 tracks, 214 detections; raised on evidence",
        *("True detections fall out", "alarms acknowledge"),
    ),
    (
        *(WRONG, DRIFT, seen(standings=(standing(UNDER, "truck"),))),
        "drift alarm, ticket: truck, underconfident as forwarded: standard deviations 2 times too "
        "large (1.7 to 2.5) since 2026-09-21 14:13:20.0, 214 detections; raised on evidence",
        "gates are wide and take in clutter",
    ),
    (
        *(WRONG, DRIFT, seen(standings=(standing(RAW, "total"),))),
        *(
            "drift alarm, ticket: all slices together, overconfident as sent",
            "a recalibrator hides it",
        ),
    ),
    (
        *(WRONG, DRIFT),
        seen(metric("drift_state", 2, slice="car", severity="ticket"), drift=TOKEN),
        *("drift alarm, ticket: car", "#calibrationdriftticket"),
    ),
    (REMARK, DRIFT, unwatched(), "nothing watches for drift"),
    *(
        (
            *(severity, DRIFT, rises("drift_left_out_total", n, reason="late")),
            *(f"left out {n:,} labelled detections: {n:,} late (behind newer", "while doctor"),
        )
        for severity, n in ((REMARK, 10), (WRONG, 900_000))
    ),
    *(
        (
            *(REMARK, DRIFT),
            stands("nees_ratio", value, slice="car", stage="recalibrated", dimension="joint"),
            f"far from 1 since the start: car {value:g}",
        )
        for value in (2.5, 0.4)
    ),
    (
        *(REMARK, DRIFT, seen(UNPROVEN, standings=(standing(),))),
        "far from 1 since the start: car 4 over 200 detections: σ is 2 times too small, not proven "
        "yet (evidence 0 h of 1,000 h)",
        *("faster with tracks", "upstream_track in Python"),
    ),
    (REMARK, DRIFT, stands("overflow_detections_total", 12), "12 detections with truth are in the"),
    # ---- the tracker elsewhere
    (WRONG, TRACKER, stands("tracker_up", 0), "the tracker elsewhere is away"),
    (
        *(WRONG, TRACKER, tracker(False, "is away: nobody takes the connection", FAILED)),
        *("10.0.0.9:50052 is away: nobody takes the", "50 frames did not reach it while doctor"),
        "gets its detections recalibrated, but without tracks",
    ),
    (WRONG, TRACKER, tracker(False, "", FAILED), "the tracker at 10.0.0.9:50052 is away;"),
    (
        *(WRONG, TRACKER, seen(*(metric("tracker_up", 1) | FORWARDED,) * 2)),
        "20 % of the frames come back without its tracks (late 20 %)",
    ),
    (
        *(WRONG, TRACKER),
        seen(
            metric("tracker_frames_total", 90, order="in_order")
            | metric("tracker_frames_total", 10, order="unstamped")
        ),
        "10 % of the frames cannot be tracked (unstamped 10 %)",
    ),
    (
        *(REMARK, TRACKER),
        stands("drift_reference_tracks", 0, slice="car", origin="learned", unit="frame"),
        "no tracks are known of car",
    ),
    # ---- labels
    (
        *(WRONG, LABELS, seen(added=NO_LABELS, told=LATE)),
        *("frames come, but no truth comes: none has matched a detection for", "#calibrationnolab"),
        "Measures stand still; drift cannot be found",
    ),
    (
        *(REMARK, LABELS, seen(NO_LABELS, NO_LABELS, status(NEVER, started_ns=NOW - 60 * SECOND))),
        "no truth has come yet, since the start 60 s ago",
    ),
    (
        *(WRONG, LABELS, seen(NO_LABELS, NO_LABELS, status(NEVER))),
        "none has matched a detection since the start 2 h ago",
    ),
    *(
        (
            *(WRONG, LABELS),
            seen(truth(matched=500_000, **{worst: 300}), NO_LABELS | truth(**{worst: 300})),
            "labels come, but none of them matches a detection",
            f"(300 labels while doctor looked: {worst} 100 %)",
            *("streams here are front and rear", remedy),
        )
        for worst, remedy in (
            ("orphan", "labels of another detector, of a stream with another name"),
            ("too_late", "[pending] max_bytes"),
            ("refused", "the answer says which field"),
            ("unusable", "the detection was refused, or has no class probabilities"),
        )
    ),
    (
        *(WRONG, LABELS),
        seen(
            truth(matched=500_000, orphan=60, too_late=20),
            truth(matched=20, orphan=60, too_late=20),
        ),
        "only 20 % of them match a detection",
        "(100 labels while doctor looked: orphan 60 % and too_late 20 %)",
    ),
    (
        *(WRONG, LABELS),
        seen(
            truth(matched=30, orphan=100) | metric("detections_total", 9e3, outcome="recalibrated"),
            NO_LABELS,
        ),
        "(130 labels since the start: orphan 77 %)",
    ),
    (
        # By their share since the start they are nothing: half a million matched before.
        *(WRONG, LABELS),
        seen(truth(matched=500_000, orphan=5), NO_LABELS | truth(orphan=5), LATE),
        "none of them matches a detection (5 labels while doctor looked: orphan",
    ),
    (
        # Frames that were left out for overload have no detection that a label could match.
        *(WRONG, LABELS),
        seen(
            truth(matched=500_000, orphan=300) | fates(dropped_overload=400),
            NO_LABELS | truth(orphan=300),
        ),
        *("400 detections were left out for overload", "docs/runbook.md#calibrationoverload"),
    ),
    (
        *(WRONG, LABELS, seen(truth(matched=900))),
        *("less than 0.1 % of the detections have truth (900 of ", "labelledsharelow"),
    ),
    (
        REMARK,
        LABELS,
        stands("labelled_ratio", 0.001, slice="tram"),
        "detections of tram have truth",
    ),
    (
        *(REMARK, LABELS, told(stream(), stream("rear", matched=0))),
        "no truth has matched a detection of rear, while others have some",
    ),
    (REMARK, LABELS, seen(GATE), "16 % of the matches lie near the gate"),
    (WRONG, LABELS, seen(TOO_LATE, TOO_LATE), "100 labels came too late"),
    (REMARK, LABELS, stands("ledger_bytes", 1.95e9), "is 91 % full"),
    (
        *(REMARK, LABELS),
        seen(metric("pending_bytes", 95e3), limits=IN_MEMORY),
        "is 95 % full",
    ),
    (
        *(REMARK, LABELS, seen(fates(dropped_no_frame_id=900, matched=100))),
        "90 % of the detections came in frames without a frame_id",
    ),
    # ---- refusals
    (
        *(WRONG, REFUSALS),
        seen(
            HEADERS | metric("rejected_total", 1, reason="invalid_header"),
            metric("rejected_total", 3, reason="no_header")
            | metric("rejected_total", 1, reason="invalid_header"),
        ),
        "the header was refused, and so every frame after it: 4 messages while doctor looked "
        "(no_header 75 % and invalid_header 25 %)",
    ),
    (
        *(WRONG, REFUSALS, rose("rejected_total", 4, 3, reason="no_header")),
        "frames come of streams that have no header: 3 messages while doctor looked (no_header",
    ),
    (
        *(REMARK, REFUSALS, stands("rejected_total", 4, reason="invalid_header")),
        "every frame after it: 4 messages since the start (invalid_header 100 %)",
    ),
    (
        *(WRONG, REFUSALS, rises("rejected_total", 40, reason="covariance_scale")),
        "40 refusals for 1,000 detections while doctor looked (covariance_scale 100 %)",
    ),
    (
        *(WRONG, REFUSALS, rose("passed_through_total", 900, 300, reason="missing_covariance")),
        "30 % of the detections go out as they came while doctor looked (missing_covariance 30 %)",
    ),
    (
        *(WRONG, REFUSALS, rises("calls_refused_total", 3, why="unauthenticated")),
        "3 calls had no right while doctor looked (unauthenticated 100 %)",
    ),
    (
        *(REMARK, REFUSALS, stands("calls_refused_total", 1, why="unauthenticated")),
        *("1 call had no right since the start", "Earlier runs of doctor may be among them"),
    ),
    # ---- load
    (WRONG, LOAD, stands("overload", 1), "the sidecar does not keep up"),
    (REMARK, LOAD, stands("overloads_total", 2), "gave way to forwarding 2 times"),
    (WRONG, LOAD, stands("loop_lag_seconds", 0.4), "the event loop was 400 ms late"),
    (
        *(WRONG, LOAD),
        seen(
            {},
            metric("frame_seconds_bucket", 50, le="0.001")
            | metric("frame_seconds_bucket", 50, le="0.1"),
        ),
        "one frame in a hundred takes more than 100 ms",
    ),
    (
        *(WRONG, LOAD, rises("drift_left_out_total", 10, reason="tracks")),
        "10 detections with truth are not watched for drift (tracks) while doctor looked",
    ),
    (REMARK, LOAD, stands("fast_decode_ratio", 0.6), "only 60 % of the frames have"),
    (WRONG, LOAD, rose("internal_errors_total", 2, 1), "2 faults of the sidecar itself since the"),
    (REMARK, LOAD, stands("internal_errors_total", 1), "1 fault of the sidecar itself"),
    (REMARK, LOAD, stands("log_lines_total", 3, level="error"), "3 errors in the log"),
    (WRONG, LOAD, seen({"process_open_fds": 900.0}), "900 of 1,024 file descriptors"),
    # ---- the disk
    (
        *(WRONG, DISK, rose("checkpoint_failures_total", 3, 1)),
        "checkpoints could not be written to disk: 3 failures since the start, and some while",
    ),
    (REMARK, DISK, stands("checkpoint_failures_total", 3), "3 failures since the start"),
    (WRONG, DISK, seen(NEVER_WRITTEN), "3 failures since the start"),
    (
        *(WRONG, DISK, rises("ledger_failures_total", 1)),
        "frames and labels could not be written to disk: 1 failure since the start, and some",
    ),
    (WRONG, DISK, stands("checkpoint_age_seconds", 300), "the last checkpoint was written 5 min"),
    (REMARK, DISK, stands("checkpoint_age_seconds", NAN), "no state is kept on disk"),
    (
        *(WRONG, DISK, stands("upload_age_seconds", 5 * 3600)),
        "what was counted in the last 5 h is not uploaded: 3 attempts failed since the start",
    ),
    (
        *(WRONG, DISK, seen(*(fates(dropped_disk_busy=40),) * 2)),
        "the disk does not keep up: 0 frames or labels wait",
    ),
    (WRONG, DISK, stands("files_refused_total", 2, of="state"), "could not be used: state 2"),
    (REMARK, DISK, stands("ledger_lost_entries", 12), "12 of the frames and labels on disk"),
    # ---- recalibrators, settings, versions
    (
        *(WRONG, RECALIBRATION, stands("recalibration_factor", 4.2, slice="car", dimension="x")),
        "variances are multiplied, x of car by 4.2",
    ),
    (
        *(WRONG, RECALIBRATION, stands("recalibration_factor", 0.3, slice="car", dimension="x")),
        "x of car by 0.3",
    ),
    (
        *(WRONG, RECALIBRATION, rose("recalibrator_fits_total", 4, 1, outcome="failed")),
        "4 fits of slices failed since the start",
    ),
    (
        *(REMARK, RECALIBRATION, stands("recalibrator_fits_total", 4, outcome="failed")),
        "4 fits of slices failed since the start",
    ),
    (REMARK, RECALIBRATION, stands("recalibrator_pinned", 1), "recalibrators are pinned"),
    (
        *(REMARK, RECALIBRATION),
        stands("recalibrator_info", 1, version="id-2", method="identity", mode="observe"),
        "mode is observe: detections go out as they came",
    ),
    (
        *(REMARK, RECALIBRATION),
        stands("trial_log10_evidence", 3, slice="car", state="proven", direction="better"),
        "a recalibrator of car is proven better and waits for approval",
    ),
    (
        *(REMARK, CONFIGURATION, told(**WAITING)),
        "statistics.bins and limits.x of /etc/sidecar.toml are not active",
    ),
    (
        *(WRONG, CONFIGURATION, told(**UNREADABLE)),
        "the configuration file /etc/sidecar.toml was read again and cannot be used: line 3: no",
        "serve --config FILE --check",
    ),
    (
        *(REMARK, CONFIGURATION),
        without(seen(metric("configuration_waiting_keys", 2)), told=TOKEN),
        "2 settings of the file are not active",
    ),
    (REMARK, VERSIONS, told(version="0.2.0"), "the sidecar is 0.2.0, and this doctor 0.1.0"),
    (
        *(REMARK, VERSIONS),
        without(seen(metric("build_info", 1, version="0.3.0")), told=GIVEN),
        "the sidecar is 0.3.0",
    ),
]


@pytest.mark.parametrize(("severity", "area", "observation", "words"), [
    (severity, area, observation, words) for severity, area, observation, *words in CASES
])  # fmt: skip
def test_what_is_wrong_is_told_in_these_words_with_why_and_what_to_do(
    severity, area, observation, words
):
    (found,) = (each for each in of(area)(observation) if each.severity is not Severity.WELL)
    assert found.severity is severity
    assert found.why
    assert found.remedy
    for one in words:
        assert one in f"{found.what} {found.why} {found.remedy}"


@pytest.mark.parametrize(
    ("area", "observation", "words"),
    [
        (STREAMS, seen(metric("streams_dropped_total", 1)), "2 streams"),
        (STREAMS, without(seen(), told=TOKEN), "streams, frames come"),
        (CLOCK, lagging(-0.9), "up to 900 ms ahead of the wall clock"),
        (CLOCK, lagging(9.9), "up to 9.9 s behind the wall clock"),
        (CLOCK, moved(stream(), frames=0), "stamps are up to"),
        (CLOCK, moved(stream(), since_s=1.0), "stamps are up to"),  # in whole seconds
        (CLOCK, our_clock(2.0, round_trip_s=4.0), "wall clock"),
        (CLOCK, our_clock(0.5), "wall clock"),
        (DRIFT, stands("drift_state", 2, slice="total"), "no alarm, 1 slice watched"),
        (DRIFT, paged(DriftState.TOO_FEW), "too little truth so far"),
        (DRIFT, paged(DriftState.WARNING), "1 slice watched; 1 at a tenth of"),
        (TRACKER, tracker(True, "", metric("tracker_up", 1)), "the tracker at 10.0.0.9:50052 is"),
        (
            *(LABELS, told(stream(matched_received_ns=NOW - 12 * SECOND))),
            "100 % of the labels match, 50 % of the detections have one, the last came 12 s ago",
        ),
        (
            *(LABELS,),
            without(
                seen(truth(matched=0, orphan=0, too_late=0, refused=0, unusable=0), NO_LABELS),
                told=TOKEN,
            ),
            "no truth has come since the start",
        ),
        *(
            (LABELS, seen(truth(matched=5e5, orphan=100 - n), truth(matched=n, orphan=100 - n)), "")
            for n in (50, 100)
        ),
        (
            *(LABELS,),
            seen(added=NO_LABELS, told=status(stream(matched_received_ns=NOW - 1799 * SECOND))),
            "",
        ),
        (LABELS, seen(GATE | metric("gated_matches", 20)), ""),
        (DRIFT, seen(FEW, standings=(standing(),)), ""),
        (LABELS, rises("dropped_detections_total", 900), ""),  # nobody asked for them
        (LABELS, stands("pending_bytes", 250e6), ""),  # the disk has them as well
        (REFUSALS, rises("passed_through_total", 9e5, reason="observe_mode"), ""),
        (REFUSALS, rises("rejected_total", 10, reason="mean_value"), ""),
        (RECALIBRATION, stands("recalibration_factor", NAN, slice="car", dimension="x"), ""),
        (RECALIBRATION, stands("recalibration_factor", 1.9, slice="car", dimension="x"), ""),
        (DISK, stands("checkpoint_age_seconds", 119), ""),
        (LOAD, stands("loop_lag_seconds", 0.24), ""),
        (RECALIBRATION, stands("recalibrator_fits_total", 2, outcome="failed"), ""),
        (LOAD, stands("log_lines_total", 3, level="warning"), ""),
    ],
)
def test_what_is_meant_or_small_is_no_trouble(area, observation, words):
    (found,) = of(area)(observation)
    assert found.severity is Severity.WELL
    assert words in found.what


def test_where_nothing_could_be_known_nothing_is_said():
    assert of(CLOCK)(told(QUIET)) == []
    assert of(STREAMS)(same_text(without(seen(added=NOBODY_SENDS), told=TOKEN))) == []
    gone = stream(received_ns=NOW - 60 * SECOND, matched_received_ns=NOW - 7000 * SECOND)
    found = of(LABELS)(seen(added=NO_LABELS, told=status(gone)))
    assert {each.severity for each in found} <= {Severity.WELL}


@pytest.mark.parametrize("grpc", [OTHER, foreign("no"), CLOSED])
def test_of_two_halves_that_do_not_answer_neither_is_said_to(grpc):
    found = of(REACH)(asked(grpc, CLOSED if grpc is not CLOSED else foreign("no")))
    assert [each.severity for each in found] == [WRONG] * 2
    assert "gRPC at 127.0.0.1:50051 does not answer: " in found[0].what
    assert found[1].what.startswith("HTTP at 127.0.0.1:9464 does not answer: ")


def test_a_stream_that_is_long_gone_is_a_remark_that_comes_after_the_clock():
    lately, long = of(STREAMS)(told(stream(), GONE, replace(QUIET, stream="left")))
    assert (lately.severity, long.severity) == (WRONG, REMARK)
    assert "left" in lately.what
    assert [each.area for each in diagnose(told(BOOT, GONE))][:2] == [CLOCK, STREAMS]


def test_a_stamp_of_before_the_start_is_compared_with_none():
    whole = moved(stream(stamp_ns=0))
    assert whole.first.status is not None
    before = replace(whole.first, status=replace(whole.first.status, started_ns=1))
    (found,) = of(CLOCK)(replace(whole, first=before))
    assert found.severity is REMARK


def test_pages_come_before_tickets():
    found = of(DRIFT)(seen(standings=(standing(UNDER, "truck"), standing(alarm()))))
    assert ["page:" in each.what for each in found] == [True, False]


def test_rates_are_of_the_time_between_two_looks_at_one_process():
    whole = seen()
    before = [replace(each, frames=each.frames - 50) for each in status().streams]
    (found,) = of(STREAMS)(replace(whole, first=replace(whole.first, status=status(*before))))
    assert found.what == "2 streams, 20 frames/s, 0 detections/s"
    anew = replace(whole.first, status=status(*before, started_ns=0))
    (found,) = of(STREAMS)(replace(whole, first=anew))
    assert found.what == "2 streams"


# ---- all of it together


def test_where_all_is_well_each_area_says_so_in_one_line():
    found = diagnose(seen())
    assert [each.area for each in found] == list(AREAS)
    assert {each.severity for each in found} == {Severity.WELL}
    assert not any(each.why or each.remedy for each in found)
    assert verdict(found) == "nothing is wrong"


@pytest.mark.parametrize(
    ("wrong", "remarks", "said"),
    [
        (0, 1, "nothing is wrong, 1 remark"),
        (1, 0, "1 thing is wrong"),
        (3, 2, "3 things are wrong, 2 remarks"),
    ],
)
def test_the_verdict_counts_what_is_wrong_and_what_is_remarked(wrong, remarks, said):
    bad, odd = (Finding(severity, LOAD, "a", "b", "c") for severity in (WRONG, REMARK))
    assert verdict([bad] * wrong + [odd] * remarks + [Finding(Severity.WELL, DISK, "d")]) == said


def test_what_could_not_be_looked_at_is_told_once_and_never_called_well():
    found = diagnose(without(seen(), metrics=TOKEN, told=TOKEN))
    assert {each.area for each in found} == {REACH}
    assert Severity.WELL not in {each.severity for each in found}


NUMBER = st.floats() | st.just(0.0) | st.floats(0, 10) | st.just(1e6)
METRICS = st.dictionaries(st.sampled_from(sorted(WELL)), NUMBER).map(samples)
TIME = st.integers(-(2**63), 2**63 - 1)
STREAM = st.builds(
    StreamStatus,
    stream=st.text("ab_-", max_size=5),
    frames=st.integers(0, 2**40),
    detections=st.integers(0, 2**40),
    stamp_ns=st.none() | TIME,
    stamped_received_ns=st.none() | TIME,
    received_ns=st.none() | TIME,
    matched=st.integers(0, 2**40),
    matched_received_ns=st.none() | TIME,
)
ELSEWHERE = st.builds(TrackerStatus, address=st.text(max_size=5), trouble=st.text())
STATUS = st.builds(
    Status,
    version=st.text(max_size=5),
    started_ns=TIME,
    now_ns=TIME,
    streams=st.lists(STREAM, max_size=4).map(tuple),
    tracker=st.none() | ELSEWHERE,
    waiting_keys=st.lists(st.text(max_size=3), max_size=3).map(tuple),
    configuration_refused=st.text(max_size=3),
)
LOOK = st.builds(
    Look,
    at_s=st.floats(0, 1e6),
    samples=st.none() | METRICS,
    status=st.none() | STATUS,
    clock_ns=TIME,
    round_trip_s=st.floats(0, 10),
    text=st.integers(0, 2),
)
ASKED = st.builds(Asked, st.sampled_from(Answer), st.text(max_size=8))
OBSERVATION = st.builds(
    Observation,
    address=st.just("127.0.0.1:50051"),
    http_address=st.just("127.0.0.1:9464"),
    version=st.just("0.1.0"),
    **dict.fromkeys(("http", "metrics", "grpc", "status", "drift"), ASKED),
    ready=st.none() | st.booleans(),
    serving=st.booleans(),
    first=LOOK,
    last=LOOK,
)


@given(OBSERVATION)
def test_whatever_was_seen_something_is_said_in_order_and_every_trouble_has_a_remedy(observation):
    found = diagnose(observation)
    assert found == diagnose(replace(observation))
    assert found
    assert list(found) == sorted(found, key=rank)
    assert [each.severity for each in found] == sorted(each.severity for each in found)
    for each in found:
        assert each.what
        assert each.severity is Severity.WELL or not each.what.endswith(".")
        assert bool(each.why) == bool(each.remedy) == (each.severity is not Severity.WELL)
        assert not re.search(r"\{\w*\}", each.why + each.remedy)
