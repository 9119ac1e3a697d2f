"""Rules on the sidecar itself: reach, refusals, load, disk, configuration, version."""

from __future__ import annotations

import math

from monitor.commands.doctor.look import Answer, Observation, quantile
from monitor.commands.doctor.rules import (
    REMARK,
    WRONG,
    Area,
    Found,
    Rule,
    be,
    count,
    counted,
    duration,
    lately,
    names,
    number,
    part_of,
    share,
    shares,
)

# As in deploy/prometheus/*alert_rules.yml; tests/commands/doctor/test_advice.py compares them.
PASSED_THROUGH = 0.05  # CalibrationPassThroughHigh
REJECTED = 0.01  # CalibrationRejectedHigh
CHECKPOINT_SECONDS = 120.0  # CalibrationCheckpointStale
UPLOAD_INTERVALS = 4.0  # CalibrationUploadStale
LOOP_LAG_SECONDS, FRAME_SECONDS = 0.25, 0.1  # CalibrationOverload

# Started less than so many seconds ago: perhaps again and again.
_YOUNG_SECONDS = 60.0

# A share of frames with detections of one layout, and of file descriptors, that is worth a word.
_FAST, _DESCRIPTORS = 0.9, 0.8

# Entries that wait for the disk: half of [pending] queue_frames.
_WAITING = 1024.0

# These are of whole streams, and few beside all detections: each of them is told.
HEADERS = ("invalid_header", "no_header")

# ---- reach

_GONE = (Answer.CLOSED, Answer.NOWHERE, Answer.SILENT)


def nothing_answers(seen: Observation) -> Found:
    """Finds that neither gRPC nor HTTP answers."""
    if seen.grpc.answer in _GONE and seen.http.answer in _GONE:
        grpc, http = f"{seen.address}: {seen.grpc.words}", f"{seen.http_address}: {seen.http.words}"
        yield WRONG, f"no sidecar can be reached: gRPC at {grpc}; HTTP at {http}"


def swapped(seen: Observation) -> Found:
    """Finds two addresses of which each answers what the other one is asked for."""
    if seen.grpc.answer is seen.http.answer is Answer.OTHER_PORT:
        both = f"{seen.address} answers HTTP, and {seen.http_address} gRPC"
        yield WRONG, f"{both}: the other way round"


def no_answer(protocol: str, anchor: str, *answers: Answer) -> Rule:
    """Makes the rule of one of these answers of gRPC or HTTP, if not all is gone or swapped."""

    def check(seen: Observation) -> Found:
        asked, address = seen.grpc, seen.address
        if protocol == "HTTP":
            asked, address = seen.http, seen.http_address
        if asked.answer in answers and not any([*nothing_answers(seen), *swapped(seen)]):
            yield WRONG, f"{protocol} at {address} does not answer: {asked.words or asked.answer}"

    return Rule(anchor, check, "")


def foreign_metrics(seen: Observation) -> Found:
    """Finds HTTP that is not of a sidecar."""
    if seen.http.given and not seen.metrics.given:
        where = f"what answers HTTP at {seen.http_address}"
        yield WRONG, f"{where} has no metrics of a sidecar: {seen.metrics.words}"


def not_ready(seen: Observation) -> Found:
    """Finds a sidecar that starts or ends."""
    if (seen.http.given and seen.ready is False) or (seen.grpc.given and not seen.serving):
        yield WRONG, "the sidecar is there and says that it is not ready"


def no_right(seen: Observation) -> Found:
    """Finds that the status is refused for want of a right."""
    if seen.grpc.given and seen.status.no_right:
        yield WRONG, f"the sidecar refuses to tell how it is: {seen.status.words}"


def older(seen: Observation) -> Found:
    """Finds a sidecar that does not know the question."""
    if seen.grpc.given and seen.status.answer is Answer.UNKNOWN:
        what = f"what serves gRPC at {seen.address} does not know GetStatus"
        yield REMARK, f"{what}: an older sidecar, or another program"


def no_status(seen: Observation) -> Found:
    """Finds that the status is not told for another reason."""
    known = seen.status.given or seen.status.no_right or seen.status.answer is Answer.UNKNOWN
    if seen.grpc.given and not known:
        yield WRONG, f"the sidecar does not tell how it is: {seen.status.words}"


def no_drift(seen: Observation) -> Found:
    """Finds that alarms are not told, where the status may be."""
    if seen.grpc.given and not (seen.drift.given or seen.status.no_right):
        yield REMARK, f"not looked at: alarms of drift ({seen.drift.words.rstrip('.')})"


def restarts(seen: Observation) -> Found:
    """Finds a sidecar that was started just now, perhaps again and again."""
    if seen.started_anew:
        yield WRONG, "the sidecar was started anew while doctor looked"
    elif seen.up_s < _YOUNG_SECONDS:
        yield REMARK, f"the sidecar was started {duration(seen.up_s)} ago"


def not_refreshed(seen: Observation) -> Found:
    """Finds metrics that stood still."""
    if seen.seconds > 0 and not seen.refreshed:
        yield REMARK, f"the metrics were not refreshed in {duration(seen.seconds)}"


# ---- refusals


def headers(seen: Observation) -> Found:
    """Finds headers that are refused, and messages that have none."""
    severity, found, when = lately(seen, "rejected_total", "reason", HEADERS)
    if total := sum(found.values()):
        cause = "frames come of streams that have no header"
        if seen.now.value("rejected_total", reason="invalid_header") > 0:
            cause = "the header was refused, and so every frame after it"
        yield severity, f"{cause}: {count(total, 'message')} {when} ({shares(found, total)})"


def rejected(seen: Observation) -> Found:
    """Finds more refusals than the alert lets pass."""
    found, total, detections, when = part_of(
        seen, "rejected_total", "reason", "detections_total", HEADERS
    )
    if total > REJECTED * detections:  # False where that is no number
        what = f"{count(total, 'refusal')} for {count(detections, 'detection')} {when}"
        yield WRONG, f"much is refused: {what} ({shares(found, total)})"


def passed(seen: Observation) -> Found:
    """Finds more detections that are passed through than the alert lets pass."""
    found, total, detections, when = part_of(
        seen, "passed_through_total", "reason", "detections_total", ["observe_mode"]
    )
    if total > PASSED_THROUGH * detections:
        what = f"{share(total, detections)} of the detections go out as they came"
        yield WRONG, f"{what} {when} ({shares(found, detections)})"


def calls(seen: Observation) -> Found:
    """Finds calls without a right, but for our own two questions for the status."""
    severity, found, when = lately(seen, "calls_refused_total", "why")
    if (total := sum(found.values())) > 2 * seen.status.no_right:
        yield severity, f"{count(total, 'call')} had no right {when} ({shares(found, total)})"


# ---- load


def overload(seen: Observation) -> Found:
    """Finds what monitoring leaves out since the sidecar does not keep up."""
    if seen.now.value("overload") == 1 or seen.increase("overloads_total") > 0:
        what = "the sidecar does not keep up"
        yield WRONG, f"{what}: frames are answered, but neither remembered nor counted"
    elif (ever := seen.now.value("overloads_total")) > 0:
        yield REMARK, f"monitoring gave way to forwarding {count(ever, 'time')} since the start"


def _slowest(seen: Observation) -> float:
    """Seconds that 99 of 100 frames took at most while doctor looked."""
    return quantile(seen.increases("frame_seconds_bucket", "le"), 0.99)


def late_answers(seen: Observation) -> Found:
    """Finds an event loop that is late."""
    if (lag := seen.now.value("loop_lag_seconds")) > LOOP_LAG_SECONDS:
        yield WRONG, f"answers had to wait: the event loop was {duration(lag)} late"


def slow_frames(seen: Observation) -> Found:
    """Finds frames that take long."""
    if _slowest(seen) > FRAME_SECONDS:
        yield WRONG, f"one frame in a hundred takes more than {duration(FRAME_SECONDS)}"


def left_out(seen: Observation) -> Found:
    """Finds detections that are not watched for drift."""
    severity, found, when = lately(seen, "drift_left_out_total", "reason", ("overload", "tracks"))
    if found and severity is WRONG:
        total = count(sum(found.values()), "detection")
        yield WRONG, f"{total} with truth are not watched for drift ({names([*found])}) {when}"


def layouts(seen: Observation) -> Found:
    """Finds frames that are slow to read."""
    if (fast := seen.now.value("fast_decode_ratio")) < _FAST:
        yield REMARK, f"only {share(fast)} of the frames have detections of one layout"


def faults(seen: Observation) -> Found:
    """Finds faults of the sidecar itself."""
    yield from counted(seen, "internal_errors_total", "{} of the sidecar itself", "fault")


def log_errors(seen: Observation) -> Found:
    """Finds errors in the log that are no faults of the sidecar itself."""
    by_level = seen.now.by("log_lines_total", "level")
    total = sum(n for level, n in by_level.items() if level.lower() in ("error", "critical"))
    if total > 0 and not seen.now.value("internal_errors_total") > 0:
        yield REMARK, f"{count(total, 'error')} in the log since the start"


def descriptors(seen: Observation) -> Found:
    """Finds that nearly all file descriptors are open."""
    held, most = seen.now.value("process_open_fds"), seen.now.value("process_max_fds")
    if 0 < most * _DESCRIPTORS < held:
        yield WRONG, f"{number(held)} of {number(most)} file descriptors are open"


# ---- the disk


def checkpoints(seen: Observation) -> Found:
    """Finds checkpoints that could not be written: some of them, or all."""
    text = "checkpoints could not be written to disk: {}"
    ever = WRONG if math.isnan(seen.now.value("checkpoint_age_seconds")) else REMARK
    yield from counted(seen, "checkpoint_failures_total", text, "failure", ever=ever)


def old_checkpoint(seen: Observation) -> Found:
    """Finds that the last checkpoint is old."""
    if (age := seen.now.value("checkpoint_age_seconds")) > CHECKPOINT_SECONDS:
        yield WRONG, f"the last checkpoint was written {duration(age)} ago"


def old_upload(seen: Observation) -> Found:
    """Finds that uploads do not arrive."""
    age, every = (seen.now.value(f"upload_{of}_seconds") for of in ("age", "interval"))
    if age > UPLOAD_INTERVALS * every:
        failed = seen.now.value("uploads_total", outcome="failed")
        said = f"{count(failed, 'attempt')} failed since the start"
        yield WRONG, f"what was counted in the last {duration(age)} is not uploaded: {said}"


def unwritten(seen: Observation) -> Found:
    """Finds frames and labels that could not be written."""
    text = "frames and labels could not be written to disk: {}"
    yield from counted(seen, "ledger_failures_total", text, "failure")


def disk_busy(seen: Observation) -> Found:
    """Finds entries that wait for the disk, or were left out for it."""
    waiting = seen.now.value("ledger_waiting")
    if waiting > _WAITING or seen.increase("detection_fates", fate="dropped_disk_busy") > 0:
        what = "the disk does not keep up"
        yield WRONG, f"{what}: {count(waiting, 'frame')} or labels wait for it"


def refused_files(seen: Observation) -> Found:
    """Finds files of the last run that could not be used."""
    found = sorted(seen.now.by("files_refused_total", "of").items())
    if texts := [f"{of} {n:.0f}" for of, n in found if n]:
        yield WRONG, f"files of the last run could not be used: {names(texts)}"


def lost_entries(seen: Observation) -> Found:
    """Finds entries of the ledger that could not be done again."""
    if (lost := seen.now.value("ledger_lost_entries")) > 0:
        what = f"{number(lost)} of the frames and labels on disk"
        yield REMARK, f"{what} could not be done again at the start"


def no_state(seen: Observation) -> Found:
    """Finds that nothing is kept on disk."""
    never = math.isnan(seen.now.value("checkpoint_age_seconds"))
    failed = seen.now.value("checkpoint_failures_total") != 0
    if never and not failed and seen.up_s > CHECKPOINT_SECONDS:
        yield REMARK, "no state is kept on disk"


# ---- configuration and version


def refused_file(seen: Observation) -> Found:
    """Finds a configuration file that was read again and refused."""
    status = seen.last.status
    if status is not None and (why := status.configuration_refused):
        file = f"the configuration file {status.configuration}"
        yield WRONG, f"{file} was read again and cannot be used: {why}"


def waiting_keys(seen: Observation) -> Found:
    """Finds settings that wait for a restart, by the metric where the status was refused."""
    status, waiting = seen.last.status, seen.now.value("configuration_waiting_keys")
    if status is not None and (keys := status.waiting_keys):
        yield REMARK, f"{names(keys)} of {status.configuration} {be(len(keys))} not active"
    elif status is None and waiting > 0:
        yield REMARK, f"{count(waiting, 'setting')} of the file {be(waiting)} not active"


def version_of(seen: Observation) -> str:
    """The sidecar's version; '' where it is not known."""
    if seen.last.status is not None:
        return seen.last.status.version
    return next(iter(seen.now.words("build_info", "version")), "")


def other_version(seen: Observation) -> Found:
    """Finds a sidecar of another version."""
    if version_of(seen) not in ("", seen.version):
        yield REMARK, f"the sidecar is {version_of(seen)}, and this doctor {seen.version}"


# ---- what is well


def reached(seen: Observation) -> str:
    """Says where it was reached, and how long it has run."""
    return f"gRPC at {seen.address}, HTTP at {seen.http_address}; up for {duration(seen.up_s)}"


def little_refused(seen: Observation) -> str:
    """Says how little is refused; '' before the first detection."""
    total = seen.now.value("detections_total")
    refused = share(seen.now.value("detections_total", outcome="refused"), total)
    return f"{refused} of the detections refused" if total > 0 else ""


def light_load(seen: Observation) -> str:
    """Says how long answers take."""
    lag, slowest = seen.now.value("loop_lag_seconds"), _slowest(seen)
    frames = "" if math.isnan(slowest) else f", 99 of 100 frames within {duration(slowest)}"
    return f"loop at most {duration(lag)} late{frames}"


def disk_well(seen: Observation) -> str:
    """Says when the last checkpoint was written."""
    age = seen.now.value("checkpoint_age_seconds")
    written = "none yet" if math.isnan(age) else f"{duration(age)} ago"
    return f"the last checkpoint was written {written}, nothing has failed"


def file_active(seen: Observation) -> str:
    """Says which file is active; '' without the status."""
    if seen.last.status is None:
        return ""
    path = seen.last.status.configuration
    return f"{path} is active" if path else "no file: the defaults"


def same_version(seen: Observation) -> str:
    """Says which version it is, and what its kernels are; '' where that is not known."""
    kernels = next(filter(None, seen.now.words("build_info", "kernels")), "")
    text = f"sidecar and doctor are {seen.version}{kernels and f', kernels: {kernels}'}"
    return text if version_of(seen) else ""


GOOD = {
    Area.REACH: reached,
    Area.REFUSALS: little_refused,
    Area.LOAD: light_load,
    Area.DISK: disk_well,
    Area.CONFIGURATION: file_active,
    Area.VERSIONS: same_version,
}

# ---- the table

_NO_WAY = (*_GONE, Answer.FAILED, Answer.UNKNOWN, Answer.NO_RIGHT)

RULES = {
    Area.REACH: (
        Rule("no-sidecar-in-reach", nothing_answers, ""),
        Rule("the-addresses-are-swapped", swapped, ""),
        no_answer("gRPC", "the-addresses-are-swapped", Answer.OTHER_PORT),
        no_answer("gRPC", "no-answer-by-grpc", *_NO_WAY),
        no_answer("gRPC", "certificates-do-not-fit", Answer.NO_TRUST),
        no_answer("gRPC", "no-grpc-at-that-address", Answer.FOREIGN),
        no_answer("HTTP", "the-addresses-are-swapped", Answer.OTHER_PORT),
        no_answer("HTTP", "no-answer-by-http", *_NO_WAY, Answer.NO_TRUST, Answer.FOREIGN),
        Rule("no-metrics-at-that-address", foreign_metrics, ""),
        Rule("the-sidecar-is-not-ready", not_ready, ""),
        Rule("a-token-is-missing", no_right, ""),
        Rule("an-older-sidecar", older, ""),
        Rule("a-question-without-an-answer", no_status, ""),
        Rule("a-question-without-an-answer", no_drift, ""),
        Rule("the-sidecar-was-started-just-now", restarts, "status"),
        Rule("metrics-that-stand-still", not_refreshed),
    ),
    Area.REFUSALS: (
        Rule("streams-without-a-header", headers),
        Rule("calibrationrejectedhigh", rejected),
        Rule("calibrationpassthroughhigh", passed),
        Rule("calls-without-a-right", calls),
    ),
    Area.LOAD: (
        Rule("calibrationoverload", overload),
        Rule("calibrationoverload", late_answers),
        Rule("calibrationoverload", slow_frames),
        Rule("calibrationoverload", left_out),
        Rule("detections-of-several-layouts", layouts),
        Rule("faults-of-the-sidecar", faults),
        Rule("errors-in-the-log", log_errors),
        Rule("file-descriptors-run-out", descriptors),
    ),
    Area.DISK: (
        Rule("calibrationcheckpointstale", checkpoints),
        Rule("calibrationcheckpointstale", old_checkpoint),
        Rule("calibrationcheckpointstale", unwritten),
        Rule("calibrationuploadstale", old_upload),
        Rule("the-disk-does-not-keep-up", disk_busy),
        Rule("files-that-cannot-be-used", refused_files),
        Rule("entries-that-were-lost", lost_entries),
        Rule("no-state-on-disk", no_state),
    ),
    Area.CONFIGURATION: (
        Rule("a-configuration-file-that-is-refused", refused_file, "status"),
        Rule("settings-that-wait-for-a-restart", waiting_keys, ""),
    ),
    Area.VERSIONS: (Rule("another-version", other_version, ""),),
}
