"""Rules on the sidecar itself: reach, refusals, load, disk, configuration, version."""

from __future__ import annotations

import math

from monitor.commands.doctor.look import Answer, Asked, Observation
from monitor.commands.doctor.rules import (
    CHECKPOINT_SECONDS,
    FRAME_SECONDS,
    LOOP_LAG_SECONDS,
    PASSED_THROUGH,
    REJECTED,
    REMARK,
    WRONG,
    Area,
    Found,
    Rule,
    be,
    count,
    counter,
    duration,
    names,
    number,
    part_of,
    share,
    shares,
    while_,
)

# Started less than so many seconds ago: perhaps again and again.
_YOUNG_SECONDS = 60.0

_GONE = (Answer.CLOSED, Answer.NOWHERE, Answer.SILENT)

# A share of frames with detections of one layout, and of file descriptors, that is worth a word.
_FAST, _DESCRIPTORS = 0.9, 0.8

# Entries that wait for the disk: half of [pending] queue_frames.
_WAITING = 1024.0

# These are of whole streams, and few beside all detections: each of them is told.
_HEADERS = ("invalid_header", "no_header")

# ---- reach


def nobody_answers(seen: Observation) -> Found:
    """Finds that neither gRPC nor HTTP answers."""
    if seen.grpc.answer in _GONE and seen.http.answer in _GONE:
        yield (
            WRONG,
            f"no sidecar can be reached: gRPC at {seen.address}: {_how(seen.grpc)}; "
            f"HTTP at {seen.http_address}: {_how(seen.http)}",
        )


def swapped(seen: Observation) -> Found:
    """Finds two addresses of which each answers what the other one is asked for."""
    if seen.grpc.answer is seen.http.answer is Answer.OTHER_PORT:
        what = f"{seen.address} answers HTTP, and {seen.http_address} gRPC"
        yield WRONG, f"{what}: the other way round"


def no_grpc(anchor: str, text: str, *answers: Answer) -> Rule:
    """Makes the rule of one of these answers of gRPC, if not all is gone or swapped.

    text  with {} for the words of the answer
    """

    def check(seen: Observation) -> Found:
        what = f"gRPC at {seen.address} does not answer: "
        if seen.http.given:
            what = f"HTTP answers at {seen.http_address}, but gRPC at {seen.address} does not: "
        if seen.grpc.answer in answers and not any([*nobody_answers(seen), *swapped(seen)]):
            yield WRONG, what + text.format(_how(seen.grpc))

    return Rule(anchor, check, "")


def no_http(anchor: str, *answers: Answer) -> Rule:
    """Makes the rule of one of these answers of HTTP, if not all is gone or swapped."""

    def check(seen: Observation) -> Found:
        what = f"HTTP at {seen.http_address} does not answer: "
        if seen.grpc.given:
            what = f"gRPC answers at {seen.address}, but HTTP at {seen.http_address} does not: "
        if seen.http.answer in answers and not any([*nobody_answers(seen), *swapped(seen)]):
            yield WRONG, what + _how(seen.http)

    return Rule(anchor, check, "")


def _how(asked: Asked) -> str:
    texts = {
        Answer.CLOSED: "nothing listens there",
        Answer.NOWHERE: f"no way there ({asked.words})",
        Answer.SILENT: "no answer in time",
        Answer.OTHER_PORT: "it speaks HTTP/2 there, as gRPC does",
    }
    return texts.get(asked.answer, asked.words or asked.answer.value)


def foreign_metrics(seen: Observation) -> Found:
    """Finds HTTP that is not of a sidecar."""
    if seen.http.given and not seen.metrics.given:
        what = f"what answers HTTP at {seen.http_address} has no metrics of a sidecar"
        yield WRONG, f"{what}: {seen.metrics.words}"


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


def not_looked_at(anchor: str, *, no_right: bool) -> Rule:
    """Makes the rule of further questions without an answer, for want of a right or otherwise."""

    def check(seen: Observation) -> Found:
        asked = {"alarms of drift": seen.drift, "recalibrators": seen.recalibrators}
        missing = [name for name, each in asked.items() if not each.given]
        missing = [name for name in missing if asked[name].no_right == no_right]
        if missing and seen.grpc.given and not seen.status.no_right:
            words = "; ".join(dict.fromkeys(asked[name].words for name in missing))
            yield REMARK, f"not looked at: {names(missing)} ({words.rstrip('.')})"

    return Rule(anchor, check, "")


def restarts(seen: Observation) -> Found:
    """Finds a sidecar that was started just now, perhaps again and again."""
    if seen.started_anew:
        yield WRONG, "the sidecar was started anew while doctor looked"
    elif seen.up_s < _YOUNG_SECONDS:
        yield REMARK, f"the sidecar was started {duration(seen.up_s)} ago"


def not_refreshed(seen: Observation) -> Found:
    """Finds metrics that stood still."""
    if seen.seconds > 0 and not seen.refreshed:
        what = f"the metrics were not refreshed in {duration(seen.seconds)}"
        yield REMARK, f"{what}: both looks saw the same text"


# ---- refusals


def header_refusals(seen: Observation, *, ever: bool = False) -> dict[str, float]:
    """Headers, and messages for want of one, that were refused between the looks, or ever."""
    found = seen.increases("rejected_total", "reason")
    if ever:
        found = seen.now.by("rejected_total", "reason")
    return {reason: found[reason] for reason in _HEADERS if found.get(reason, 0.0) > 0}


def headers(seen: Observation) -> Found:
    """Finds headers that are refused, and messages that have none."""
    now, ever = header_refusals(seen), header_refusals(seen, ever=True)
    cause = "frames come of streams that have no header"
    if "invalid_header" in ever:
        cause = (
            "the header was refused, and so every frame after it; the answer to the header names "
            "the field"
        )
    if total := sum(now.values()):
        what = f"{cause}: {count(total, 'message')} while doctor looked"
        yield WRONG, f"{what} ({shares(now, total)})"
    elif total := sum(ever.values()):
        what = f"{count(total, 'message')} had no header that could be used since the start"
        yield REMARK, f"{what} ({shares(ever, total)}), none while doctor looked"


def rejected(seen: Observation) -> Found:
    """Finds more refusals than the alert lets pass."""
    found, total, detections, when = part_of(
        seen, "rejected_total", "reason", "detections_total", _HEADERS
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
    """Finds calls without a right, but for our own: between the looks and in them."""
    # Where the status is refused nothing else is asked, but it is asked twice.
    ours = 2 if seen.status.no_right else seen.drift.no_right + seen.recalibrators.no_right
    now = seen.increases("calls_refused_total", "why")
    ever = seen.now.by("calls_refused_total", "why")
    if (total := sum(now.values())) > ours:
        what = f"calls are refused for want of a right: {shares(now, total)}"
        yield WRONG, f"{what}, {count(total, 'call')} while doctor looked"
    elif (total := sum(ever.values())) > ours:
        what = f"{count(total, 'call')} had no right since the start"
        yield REMARK, f"{what} ({shares(ever, total)})"


# ---- load


def overload(seen: Observation) -> Found:
    """Finds what monitoring leaves out since the sidecar does not keep up."""
    if seen.now.value("overload") == 1 or seen.increase("overloads_total") > 0:
        what = "the sidecar does not keep up"
        yield WRONG, f"{what}: frames are answered, but neither remembered nor counted"
    elif (ever := seen.now.value("overloads_total")) > 0:
        yield REMARK, f"monitoring gave way to forwarding {count(ever, 'time')} since the start"


def late_answers(seen: Observation) -> Found:
    """Finds an event loop that is late."""
    if (lag := seen.now.value("loop_lag_seconds")) > LOOP_LAG_SECONDS:
        yield WRONG, f"answers had to wait: the event loop was {duration(lag)} late"


def slow_frames(seen: Observation) -> Found:
    """Finds frames that take long."""
    if seen.quantile("frame_seconds", 0.99) > FRAME_SECONDS:
        yield WRONG, f"one frame in a hundred takes more than {duration(FRAME_SECONDS)}"


def left_out(seen: Observation) -> Found:
    """Finds detections that are not watched for drift."""
    found = seen.increases("drift_left_out_total", "reason")
    left = {reason: found[reason] for reason in ("overload", "tracks") if found.get(reason)}
    if left:
        what = f"detections with truth are not watched for drift ({names(list(left))})"
        yield WRONG, f"{what}: {count(sum(left.values()), 'detection')} while doctor looked"


def layouts(seen: Observation) -> Found:
    """Finds frames that are slow to read."""
    if (fast := seen.now.value("fast_decode_ratio")) < _FAST:
        yield REMARK, f"only {share(fast)} of the frames have detections of one layout"


def log_errors(seen: Observation) -> Found:
    """Finds errors in the log that are no faults of the sidecar itself."""
    by_level = seen.now.by("log_lines_total", "level")
    total = sum(n for level, n in by_level.items() if level.lower() in ("error", "critical"))
    if total > 0 and not seen.now.value("internal_errors_total") > 0:
        yield REMARK, f"{count(total, 'error')} in the log since the start"


def descriptors(seen: Observation) -> Found:
    """Finds that nearly all file descriptors are open."""
    last = seen.now
    held, most = last.value("process_open_fds"), last.value("process_max_fds")
    if most > 0 and held > _DESCRIPTORS * most:
        yield WRONG, f"{number(held)} of {number(most)} file descriptors are open"


# ---- the disk


def checkpoints(seen: Observation) -> Found:
    """Finds checkpoints that fail, or are late."""
    failures = seen.now.value("checkpoint_failures_total")
    age = seen.now.value("checkpoint_age_seconds")
    if failures > 0:
        again = seen.increase("checkpoint_failures_total") > 0
        what = f"checkpoints could not be written to disk: {count(failures, 'failure')}"
        severity = REMARK if not again and age <= CHECKPOINT_SECONDS else WRONG
        yield severity, f"{what} since the start{while_(again)}"
    elif age > CHECKPOINT_SECONDS:
        yield WRONG, f"the last checkpoint was written {duration(age)} ago"


def disk_busy(seen: Observation) -> Found:
    """Finds entries that wait for the disk, or were left out for it."""
    waiting = seen.now.value("ledger_waiting")
    busy = seen.now.value("detection_fates", fate="dropped_disk_busy")
    grew = busy > seen.was.value("detection_fates", fate="dropped_disk_busy")
    if waiting > _WAITING or grew:
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
        what = f"of the frames and labels on disk, {number(lost)}"
        yield REMARK, f"{what} could not be done again at the start"


def no_state(seen: Observation) -> Found:
    """Finds that nothing is kept on disk."""
    last = seen.now
    never = math.isnan(last.value("checkpoint_age_seconds"))
    if never and last.value("checkpoint_failures_total") == 0 and seen.up_s > CHECKPOINT_SECONDS:
        yield REMARK, "no state is kept on disk"


# ---- configuration and version


def refused_file(seen: Observation) -> Found:
    """Finds a configuration file that was read again and refused."""
    status = seen.last.status
    if status is not None and status.configuration_refused:
        file, why = status.configuration, status.configuration_refused
        yield WRONG, f"the configuration file {file} was read again and cannot be used: {why}"


def waiting_keys(seen: Observation) -> Found:
    """Finds settings that wait for a restart, by the metric where the status was refused."""
    status = seen.last.status
    if status is not None and status.waiting_keys:
        keys = status.waiting_keys
        yield REMARK, f"{names(keys)} of {status.configuration} {be(len(keys))} not in force"
    waiting = seen.now.value("configuration_waiting_keys")
    if status is None and waiting > 0:
        yield REMARK, f"{count(waiting, 'setting')} of the file {be(waiting)} not in force"


def version_of(seen: Observation) -> str:
    """The sidecar's version; '' where it is not known."""
    if seen.last.status is not None:
        return seen.last.status.version
    return next(iter(seen.now.words("build_info", "version")), "")


def other_version(seen: Observation) -> Found:
    """Finds a sidecar of another version."""
    version = version_of(seen)
    if version and version != seen.version:
        yield REMARK, f"the sidecar is {version}, and this doctor {seen.version}"


# ---- what is well


def reached(seen: Observation) -> str:
    """Says where it was reached, and how long it has run."""
    up = duration(seen.up_s)
    return f"gRPC at {seen.address}, HTTP at {seen.http_address}; up for {up}"


def little_refused(seen: Observation) -> str:
    """Says how little is refused; '' before the first detection."""
    total = seen.now.value("detections_total")
    refused = share(seen.now.value("detections_total", outcome="refused"), total)
    bare = share(seen.now.value("passed_through_total", reason="missing_covariance"), total)
    text = f"{refused} of the detections refused, {bare} without a covariance"
    return text if total > 0 else ""


def light_load(seen: Observation) -> str:
    """Says how long answers take."""
    slowest = seen.quantile("frame_seconds", 0.99)
    text = f"loop at most {duration(seen.now.value('loop_lag_seconds'))} late"
    most = f"{text}, 99 of 100 frames within {duration(slowest)}"
    return text if math.isnan(slowest) else most


def disk_well(seen: Observation) -> str:
    """Says when the last checkpoint was written."""
    age = seen.now.value("checkpoint_age_seconds")
    if math.isnan(age):
        return "nothing has failed; nothing was written yet"
    return f"the last checkpoint was written {duration(age)} ago, nothing has failed"


def file_active(seen: Observation) -> str:
    """Says which file is active; '' without the status."""
    if seen.last.status is None:
        return ""
    path = seen.last.status.configuration
    return f"{path} is in force" if path else "no file: the defaults"


def same_version(seen: Observation) -> str:
    """Says which version it is; '' where that is not known."""
    return f"sidecar and doctor are {seen.version}" if version_of(seen) else ""


GOOD = {
    Area.REACH: reached,
    Area.REFUSALS: little_refused,
    Area.LOAD: light_load,
    Area.DISK: disk_well,
    Area.CONFIGURATION: file_active,
    Area.VERSIONS: same_version,
}

# ---- the table

_UNWRITTEN = "frames and labels could not be written to disk: {}"
_NO_WAY = (Answer.FAILED, Answer.UNKNOWN, Answer.NO_TOKEN, Answer.NO_RIGHT)
_NO_TRUST = "no trust between its certificate and ours ({})"
_NO_GRPC = "something listens there that does not speak gRPC as we do ({})"
_HTTP = "something listens there that does not speak gRPC as we do, but HTTP"

RULES = {
    Area.REACH: (
        Rule("no-sidecar-in-reach", nobody_answers, ""),
        Rule("the-addresses-are-swapped", swapped, ""),
        no_grpc("the-addresses-are-swapped", _HTTP, Answer.OTHER_PORT),
        no_grpc("no-answer-by-grpc", "{}", *_GONE, *_NO_WAY),
        no_grpc("certificates-do-not-fit", _NO_TRUST, Answer.NO_TRUST),
        no_grpc("no-grpc-at-that-address", _NO_GRPC, Answer.FOREIGN),
        no_http("the-addresses-are-swapped", Answer.OTHER_PORT),
        no_http("no-answer-by-http", *_GONE, *_NO_WAY, Answer.NO_TRUST, Answer.FOREIGN),
        Rule("no-metrics-at-that-address", foreign_metrics, ""),
        Rule("the-sidecar-is-not-ready", not_ready, ""),
        Rule("a-token-is-missing", no_right, ""),
        Rule("an-older-sidecar", older, ""),
        Rule("a-question-without-an-answer", no_status, ""),
        not_looked_at("a-token-is-missing", no_right=True),
        not_looked_at("a-question-without-an-answer", no_right=False),
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
        counter(
            "faults-of-the-sidecar", "internal_errors_total", "{} of the sidecar itself", "fault"
        ),
        Rule("errors-in-the-log", log_errors),
        Rule("file-descriptors-run-out", descriptors),
    ),
    Area.DISK: (
        Rule("calibrationcheckpointstale", checkpoints),
        counter("calibrationcheckpointstale", "ledger_failures_total", _UNWRITTEN, "failure"),
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
