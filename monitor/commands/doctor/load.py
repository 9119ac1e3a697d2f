"""Checks the sidecar's counters of its own work: overload, faults, refusals by reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from monitor.commands.doctor.finding import Area, Told, about, remark, well, wrong
from monitor.commands.doctor.observation import Change, Observation, rose
from monitor.commands.doctor.words import count, duration, names, number, share, shares

# As CalibrationOverload in deploy/prometheus/service_alert_rules.yml: seconds that the loop is
# late, and that one frame in a hundred takes.
LOOP_LAG_SECONDS, FRAME_SECONDS = 0.25, 0.1

# A share of frames with detections of one layout that is worth a word.
_FAST = 0.9
_DESCRIPTORS = 0.8
_RUNBOOK = "docs/runbook.md#calibrationoverload"

# As in deploy/prometheus/service_alert_rules.yml: CalibrationPassThroughHigh and
# CalibrationRejectedHigh.
PASSED_THROUGH, REJECTED = 0.05, 0.01

_REJECTED = {
    "covariance": "the detector sends what is no covariance (NaN, not symmetric, not positive "
    "definite, of a wrong length, or of an implausible size: [limits])",
    "mean": "means are not finite, of a wrong length, or beyond [limits] largest_mean",
    "unknown": "class_index is beyond the class names of the header",
    "duplicate": "ids of detections, or of frames, come twice",
    "missing": "ids, frame ids or stamps are missing",
    "ground": "truth that came inline is no point of the stream's dimensions",
    "too": "frames are larger than [server] and [limits] allow",
    "malformed": "the client speaks another version of the protocol",
    "class": "class probabilities, or a true class, cannot be used",
    "overload": "the sidecar does not keep up",
}

# These are of whole streams, and few beside all detections: each of them is told.
_HEADERS = ("invalid_header", "no_header")

# What is so, and what to do.
_HEADER_REFUSED = (
    "the header was refused, and so every frame after it; the answer to the header names the field",
    "usual are a name of a stream with other than letters, digits and _.-, class names that are "
    "empty or come twice, and no room for one more stream ([server] max_streams).",
)

_WITHOUT_HEADER = (
    "frames come of streams that have no header",
    "send the header first, anew on each connection: a sidecar that was started anew may not know "
    "it.",
)

_PASSED = {
    "missing_covariance": "the detector sends none for them: let it send one with every detection",
    "recalibrator_mismatch": "what is in force was fitted on other dimensions: "
    "`calibration-monitor recalibrators list`, then promote one that was not, or `rollback`",
    "recalibrator_failed": "what is in force makes no covariance of them: `calibration-monitor "
    "recalibrators rollback`; the log says more",
    "internal": "a fault of the sidecar; its log has it",
    "stale": "frames wait longer than [server] stale_seconds on their way",
}


@about(Area.LOAD, by_metrics=True)
def load(seen: Observation) -> Iterator[Told]:
    """Judges by the metrics alone."""
    told = [*_shedding(seen.change), *_busy(seen.change)]
    yield from told or [well(_healthy_load(seen.change))]


def _healthy_load(change: Change) -> str:
    slowest = change.quantile("frame_seconds", 0.99)
    text = f"loop at most {duration(change.last.value('loop_lag_seconds'))} late"
    return f"{text}, 99 of 100 frames within {duration(slowest)}" if slowest == slowest else text


def _shedding(change: Change) -> Iterator[Told]:
    """Finds what monitoring leaves out since the sidecar does not keep up."""
    began = change.increase("overloads_total")
    if change.last.value("overload") == 1 or rose(began):
        yield wrong(
            "the sidecar does not keep up: frames are answered, but neither remembered nor counted",
            "detections are corrected as ever; measures and drift see nothing of them meanwhile.",
            "give it a core of its own; send every detection of a frame with the same fields; send "
            f"labels as they come, not in bursts. {_RUNBOOK}",
        )
        return
    ever = change.last.value("overloads_total")
    if rose(ever):
        yield remark(
            f"monitoring gave way to forwarding {count(ever, 'time')} since the start",
            "what came then is answered, and in no measure.",
            f"is the machine busy at times, or do labels come in bursts? {_RUNBOOK}",
        )


def _busy(change: Change) -> Iterator[Told]:
    """Finds what makes answers late, and what failed."""
    lag = change.last.value("loop_lag_seconds")
    if lag > LOOP_LAG_SECONDS:
        yield wrong(
            f"answers had to wait: the event loop was {duration(lag)} late",
            "a tracker that waits for the answers gets its detections late.",
            "is the machine busy? Fewer slices, or a longer [metrics] refresh_seconds, make the "
            f"loop lighter. {_RUNBOOK}",
        )
    slowest = change.quantile("frame_seconds", 0.99)
    if slowest > FRAME_SECONDS:
        yield wrong(
            f"one frame in a hundred takes more than {duration(FRAME_SECONDS)}",
            "a tracker that waits for the answers gets its detections late.",
            f"fewer detections in a frame, all with the same fields; a core of its own. {_RUNBOOK}",
        )
    found = change.increases("drift_left_out_total", "reason")
    left = [reason for reason in ("overload", "tracks") if found.get(reason)]
    if left:
        yield wrong(
            f"detections with truth are not watched for drift ({names(left)}): "
            f"{count(sum(found[reason] for reason in left), 'detection')} in "
            f"{duration(change.seconds)}",
            "drift is found later than it could be; never a false alarm comes of it.",
            "overload: send labels as they come, not in bursts; tracks: raise [drift] "
            f"open_tracks. {_RUNBOOK}",
        )
    fast = change.last.value("fast_decode_ratio")
    if fast < _FAST:
        yield remark(
            f"only {share(fast, 1)} of the frames have detections of one layout",
            "the others are read one detection after the other, which costs ten times as much.",
            "give every detection of a frame the same fields: a covariance, a score or a truth "
            "for all of them, or for none.",
        )
    errors = change.last.value("internal_errors_total")
    if rose(errors):
        again = rose(change.increase("internal_errors_total"))
        say = wrong if again else remark
        yield say(
            f"{count(errors, 'fault')} of the sidecar itself since the start"
            f"{', and some while doctor looked' if again else ''}",
            "the frames concerned went out as they came, or were not counted.",
            "please report the traceback that its log has.",
        )
    lines = sum(
        value
        for level, value in change.last.by("log_lines_total", "level").items()
        if level.lower() in ("error", "critical")
    )
    if rose(lines) and not rose(errors):
        yield remark(
            f"{count(lines, 'error')} in the log since the start",
            "something could not be done; the line says what.",
            "`journalctl -u calibration-monitor -p err`, `docker logs`, `kubectl logs`.",
        )
    held, most = change.last.value("process_open_fds"), change.last.value("process_max_fds")
    if most > 0 and held > _DESCRIPTORS * most:
        yield wrong(
            f"{number(held)} of {number(most)} file descriptors are open",
            "beyond them no connection is taken and no file is written.",
            "who opens so many connections? Raise LimitNOFILE, or lower [server] max_connections.",
        )


@about(Area.REFUSALS, by_metrics=True)
def refusals(seen: Observation) -> Iterator[Told]:
    """Finds refused detections, messages, and calls without a right."""
    change = seen.change
    told = [*_headers(change), *_shares(change), *_calls(change, seen.own_refusals)]
    if told:
        yield from told
    elif sum(change.last.by("detections_total", "outcome").values()):
        yield well(_healthy_counts(change))


def _healthy_counts(change: Change) -> str:
    detections = change.last.by("detections_total", "outcome")
    total, refused = sum(detections.values()), detections.get("refused", 0.0)
    bare = change.last.value("passed_through_total", reason="missing_covariance")
    return (
        f"{share(refused, total)} of the detections refused, {share(bare, total)} without a "
        "covariance"
    )


def _counts(change: Change, name: str) -> tuple[Mapping[str, float], float, str]:
    """By reason, of so many detections: in this time, or since the start where none came."""
    now = sum(change.increases("detections_total", "outcome").values())
    if now:
        return change.increases(name, "reason"), now, f"in {duration(change.seconds)}"
    total = sum(change.last.by("detections_total", "outcome").values())
    return change.last.by(name, "reason"), total, "since the start"


def header_refusals(change: Change) -> dict[str, float]:
    """Headers, and messages for want of one, that were refused between the looks."""
    found = change.increases("rejected_total", "reason")
    return {reason: found[reason] for reason in _HEADERS if found.get(reason, 0.0) > 0}


def _headers(change: Change) -> Iterator[Told]:
    now, ever = header_refusals(change), change.last.by("rejected_total", "reason")
    ever = {reason: ever[reason] for reason in _HEADERS if ever.get(reason, 0.0) > 0}
    cause, remedy = _WITHOUT_HEADER
    if "invalid_header" in ever:
        cause, remedy = _HEADER_REFUSED
    if now:
        total = sum(now.values())
        yield wrong(
            f"{cause}: {count(total, 'message')} in {duration(change.seconds)} "
            f"({shares(now, total)})",
            "nothing of such a stream is corrected, measured or watched.",
            remedy,
        )
    elif ever:
        total = sum(ever.values())
        yield remark(
            f"{count(total, 'message')} had no header that could be used since the start "
            f"({shares(ever, total)}), none while doctor looked",
            "a client may have given up, and its stream be missing.",
            remedy,
        )


def _shares(change: Change) -> Iterator[Told]:
    """Finds more refusals, or more detections passed through, than alerts let pass."""
    found, detections, when = _counts(change, "rejected_total")
    counts = {reason: n for reason, n in found.items() if reason not in _HEADERS}
    total = sum(counts.values())
    if total > 0 and total > REJECTED * detections:  # False where it is no number
        worst = max(counts, key=lambda reason: counts[reason])
        cause = _REJECTED.get(worst.split("_")[0])
        yield wrong(
            f"much is refused: {count(total, 'refusal')} for {count(detections, 'detection')} "
            f"{when} ({shares(counts, total)})",
            "what is refused goes back as it came, uncorrected and marked, and is in no measure.",
            f"{f'{worst}: {cause}' if cause else worst}. The answer to each frame names the field "
            "and the value. docs/runbook.md#calibrationrejectedhigh",
        )
    found, detections, when = _counts(change, "passed_through_total")
    counts = {reason: n for reason, n in found.items() if reason != "observe_mode"}
    total = sum(counts.values())
    if total > 0 and total > PASSED_THROUGH * detections:
        worst = max(counts, key=lambda reason: counts[reason])
        yield wrong(
            f"{share(total, detections)} of the detections go out as they came {when} "
            f"({shares(counts, detections)})",
            "they are not corrected; those without a covariance cannot be measured either.",
            f"{worst}: {_PASSED.get(worst, 'see the log')}. "
            "docs/runbook.md#calibrationpassthroughhigh",
        )


def _calls(change: Change, own: int) -> Iterator[Told]:
    """own: so many of them are ours."""
    now = {why: n for why, n in change.increases("calls_refused_total", "why").items() if n}
    ever = change.last.by("calls_refused_total", "why")
    if sum(now.values()) > own:
        yield wrong(
            f"calls are refused for want of a right: {shares(now, sum(now.values()))}, "
            f"{count(sum(now.values()), 'call')} in {duration(change.seconds)}",
            "a detector, a labeller or a person shows no token that is known, or one of another "
            "right.",
            "the log says which right they asked for; does it have the token of today? "
            "docs/security.md#rights",
        )
    elif sum(ever.values()) > own:
        yield remark(
            f"{count(sum(ever.values()), 'call')} had no right since the start "
            f"({shares(ever, sum(ever.values()))})",
            "somebody tried without a token that is known, or with one of another right; earlier "
            "runs of doctor may be among them.",
            "the log says which right they asked for. docs/security.md#rights",
        )
