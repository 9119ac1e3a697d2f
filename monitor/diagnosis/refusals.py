"""What is refused, and what goes out as it came, by reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from monitor.diagnosis.finding import Area, Finding, remark, well, wrong
from monitor.diagnosis.observation import Observation
from monitor.diagnosis.samples import Change
from monitor.diagnosis.words import count, duration, share, shares

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
    "no": "the client speaks another version of the protocol",
    "invalid": "the header of a stream is refused; the answer to it says which field",
    "class": "class probabilities, or a true class, cannot be used",
    "overload": "the sidecar does not keep up",
}
_PASSED = {
    "missing_covariance": "the detector sends none for them: let it send one with every detection",
    "recalibrator_mismatch": "what is in force was fitted on other dimensions: "
    "`calibration-monitor recalibrators list`, then promote one that was not, or `rollback`",
    "recalibrator_failed": "what is in force makes no covariance of them: `calibration-monitor "
    "recalibrators rollback`; the log says more",
    "internal": "a fault of the sidecar; its log has it",
    "stale": "frames wait longer than [server] stale_seconds on their way",
}


def refusals(seen: Observation) -> Iterator[Finding]:
    """Of detections and messages, and of calls without a right."""
    change = seen.change
    if change is None:
        return
    told = [*_rejected(change), *_passed(change), *_calls(change, seen.own_refusals)]
    if told:
        yield from told
    elif sum(change.last.by("detections_total", "outcome").values()):
        yield well(Area.REFUSALS, _good(change))


def _good(change: Change) -> str:
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


def _rejected(change: Change) -> Iterator[Finding]:
    counts, detections, when = _counts(change, "rejected_total")
    total = sum(counts.values())
    if not (total > 0 and total > REJECTED * detections):  # nor where it is no number
        return
    worst = max(counts, key=lambda reason: counts[reason])
    cause = _REJECTED.get(worst.split("_")[0], "the answer to each frame names field and value")
    yield wrong(
        Area.REFUSALS,
        f"much is refused: {count(total, 'refusal')} for {count(detections, 'detection')} {when} "
        f"({shares(counts, total)})",
        "what is refused goes back as it came, uncorrected and marked, and is in no measure.",
        f"{worst}: {cause}. The answer to each frame names the field and the value. "
        "docs/runbook.md#calibrationrejectedhigh",
    )


def _passed(change: Change) -> Iterator[Finding]:
    found, detections, when = _counts(change, "passed_through_total")
    counts = {reason: n for reason, n in found.items() if reason != "observe_mode"}
    total = sum(counts.values())
    if not (total > 0 and total > PASSED_THROUGH * detections):
        return
    worst = max(counts, key=lambda reason: counts[reason])
    yield wrong(
        Area.REFUSALS,
        f"{share(total, detections)} of the detections go out as they came {when} "
        f"({shares(counts, detections)})",
        "they are not corrected; those without a covariance cannot be measured either.",
        f"{worst}: {_PASSED.get(worst, 'see the log')}. docs/runbook.md#calibrationpassthroughhigh",
    )


def _calls(change: Change, own: int) -> Iterator[Finding]:
    """own: so many of them are ours."""
    now = {why: n for why, n in change.increases("calls_refused_total", "why").items() if n}
    ever = change.last.by("calls_refused_total", "why")
    if sum(now.values()) > own:
        yield wrong(
            Area.REFUSALS,
            f"calls are refused for want of a right: {shares(now, sum(now.values()))}, "
            f"{count(sum(now.values()), 'call')} in {duration(change.seconds)}",
            "a detector, a labeller or a person shows no token that is known, or one of another "
            "right.",
            "the log says which right they asked for; does it have the token of today? "
            "docs/security.md#rights",
        )
    elif sum(ever.values()) > own:
        yield remark(
            Area.REFUSALS,
            f"{count(sum(ever.values()), 'call')} had no right since the start "
            f"({shares(ever, sum(ever.values()))})",
            "somebody tried without a token that is known, or with one of another right.",
            "the log says which right they asked for. docs/security.md#rights",
        )
