"""Whether the sidecar is there, is ready, and answered all that was asked."""

from __future__ import annotations

from collections.abc import Iterator

from monitor.diagnosis.finding import Area, Finding, remark, well, wrong
from monitor.diagnosis.no_way import RUNBOOK, no_way
from monitor.diagnosis.observation import Answer, Observation
from monitor.diagnosis.words import duration, names

# Started less than so many seconds ago: perhaps again and again.
_YOUNG_SECONDS = 60.0
_FOR_WANT_OF_A_RIGHT = (Answer.NO_TOKEN, Answer.NO_RIGHT)


def reach(seen: Observation) -> Iterator[Finding]:
    """What keeps the sidecar from being seen comes first, and is all there is where it is not."""
    found = [*no_way(seen), *_not_ready(seen), *_no_answer(seen), *_young(seen)]
    found += _not_refreshed(seen)
    yield from found or [well(Area.REACH, _up(seen))]


def _up(seen: Observation) -> str:
    return f"gRPC at {seen.address}, HTTP at {seen.http_address}; up for {duration(seen.up_s)}"


def _not_ready(seen: Observation) -> Iterator[Finding]:
    if (seen.http.given and seen.ready is False) or (seen.grpc.given and not seen.serving):
        yield wrong(
            Area.REACH,
            "the sidecar is there and says that it is not ready",
            "it is starting, and still reads what it kept, or it is shutting down: frames are not "
            "taken.",
            f"ask again in half a minute; if it stays so, its log says what it waits for. "
            f"{RUNBOOK}",
        )


def _no_answer(seen: Observation) -> Iterator[Finding]:
    """Questions that were not answered, though gRPC was."""
    if not seen.grpc.given:
        return
    match seen.status.answer:
        case Answer.GIVEN:
            pass
        case answer if answer in _FOR_WANT_OF_A_RIGHT:
            yield wrong(
                Area.REACH,
                f"the sidecar refuses to tell how it is: {seen.status.words}",
                "streams, clock, tracker and alarms could not be looked at.",
                "give a file with a token of the right 'data' or 'admin': --token-file F "
                "([security] data_token_file, admin_token_file). docs/security.md",
            )
            return
        case Answer.UNKNOWN:
            yield remark(
                Area.REACH,
                "what serves gRPC there does not know GetStatus: an older sidecar, or another "
                "program",
                "streams, clock and tracker could not be looked at.",
                f"is {seen.address} the sidecar? Then use the doctor of its own version.",
            )
        case _:
            yield wrong(
                Area.REACH,
                f"the sidecar does not tell how it is: {seen.status.words}",
                "streams, clock and tracker could not be looked at.",
                "its log may say why; docs/runbook.md#calibrationoverload where it is busy.",
            )
    asked_for = {"alarms of drift": seen.drift, "recalibrators": seen.recalibrators}
    missing = {name: asked for name, asked in asked_for.items() if not asked.given}
    if missing:
        words = "; ".join(dict.fromkeys(asked.words for asked in missing.values()))
        rights = [asked.answer in _FOR_WANT_OF_A_RIGHT for asked in missing.values()]
        remedies = []
        if any(rights):
            remedies.append(
                "give a file with a token of the right 'admin': --token-file F. docs/security.md"
            )
        if not all(rights):
            remedies.append(
                "ask again; its log may say why. docs/runbook.md#calibrationoverload where it is "
                "busy."
            )
        yield remark(
            Area.REACH,
            f"not looked at: {names(list(missing))} ({words.rstrip('.')})",
            "how large alarms are is not known, or what waits for approval, and in how many "
            "trials.",
            " Else ".join(remedies),
        )


def _not_refreshed(seen: Observation) -> Iterator[Finding]:
    change = seen.change
    if change is not None and change.seconds > 0 and not seen.refreshed:
        yield remark(
            Area.REACH,
            f"the metrics were not refreshed in {duration(change.seconds)}: both looks saw the "
            "same text",
            "what was counted or refused meanwhile is not known; what is said of metrics is of "
            "before.",
            "watch for longer: --seconds above [metrics] refresh_seconds.",
        )


def _young(seen: Observation) -> Iterator[Finding]:
    if seen.started_anew:
        yield wrong(
            Area.REACH,
            "the sidecar was started anew while doctor looked",
            "what is in memory alone is lost with every start, and frames of that moment went on "
            "uncorrected.",
            "who starts it again and again? The end of its log says why it stopped: "
            "`journalctl -u calibration-monitor`, `docker logs`, `kubectl logs --previous`.",
        )
    elif seen.up_s < _YOUNG_SECONDS:
        yield remark(
            Area.REACH,
            f"the sidecar was started {duration(seen.up_s)} ago",
            "counts since the start are of this time alone. If nobody has started it just now, it "
            "ends and is started again and again.",
            "look again in a minute; does it say the same, read the end of the log before: "
            "`journalctl -u calibration-monitor`, `docker logs`, `kubectl logs --previous`.",
        )
