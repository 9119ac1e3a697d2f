"""Checks that the sidecar can be reached, is ready, has answered all questions."""

from __future__ import annotations

from collections.abc import Iterator

from monitor.commands.doctor.finding import Area, Told, about, remark, well, wrong
from monitor.commands.doctor.observation import Answer, Asked, Observation
from monitor.commands.doctor.words import duration, names

RUNBOOK = "docs/runbook.md#calibrationsidecardown"

# What gRPC says where it asked in plain text, and TLS was awaited.
_AS_TLS_DOES = ("socket closed", "connection reset", "broken pipe")

_NAMESPACE = (
    "gRPC stays on loopback unless it is told otherwise, and loopback is another one in every "
    "container and pod"
)

_INSIDE = (
    "run doctor where the sidecar runs: `docker exec NAME calibration-monitor doctor`, "
    "`kubectl exec POD -c CONTAINER -- calibration-monitor doctor`"
)

# Started less than so many seconds ago: perhaps again and again.
_YOUNG_SECONDS = 60.0
_FOR_WANT_OF_A_RIGHT = (Answer.NO_TOKEN, Answer.NO_RIGHT)


@about(Area.REACH)
def reach(seen: Observation) -> Iterator[Told]:
    """Finds what keeps the sidecar from being seen; where it is not seen, that is all there is."""
    found = [*no_way(seen), *_not_ready(seen), *_no_answer(seen), *_not_steady(seen)]
    up = f"gRPC at {seen.address}, HTTP at {seen.http_address}; up for {duration(seen.up_s)}"
    yield from found or [well(up)]


def no_way(seen: Observation) -> Iterator[Told]:
    """Finds why gRPC or HTTP does not answer; nothing where both do."""
    grpc, http = seen.grpc.answer, seen.http.answer
    gone = (Answer.CLOSED, Answer.NOWHERE, Answer.SILENT)
    if grpc in gone and http in gone:
        yield wrong(
            f"no sidecar can be reached: gRPC at {seen.address}: {_how(seen.grpc)}; "
            f"HTTP at {seen.http_address}: {_how(seen.http)}",
            "where none runs, detections go on as they come, nothing is watched and no alert can "
            f"come. Or it runs and is not seen from here: {_NAMESPACE}.",
            "is it running (`systemctl status calibration-monitor`, `docker ps`, `kubectl get "
            "pods`)? Its first line on standard output says where it listens: give these as "
            f"--address and --http-address, or {_INSIDE}. {RUNBOOK}",
        )
        return
    if grpc is Answer.OTHER_PORT and http is Answer.OTHER_PORT:
        yield wrong(
            f"{seen.address} answers HTTP, and {seen.http_address} gRPC: the other way round",
            "neither could be asked what it knows.",
            f"did you swap --address and --http-address? --address {seen.http_address} "
            f"--http-address {seen.address}",
        )
        return
    if not seen.grpc.given:
        yield _no_grpc(seen)
    if not seen.http.given:
        yield _no_http(seen)
    elif not seen.metrics.given:
        yield wrong(
            f"what answers HTTP at {seen.http_address} has no metrics of a sidecar: "
            f"{seen.metrics.words}",
            "rates, refusals, load and the disk could not be looked at.",
            "give the address of the sidecar with --http-address; its first line on standard "
            "output tells it.",
        )


def _how(asked: Asked) -> str:
    match asked.answer:
        case Answer.CLOSED:
            return "nothing listens there"
        case Answer.NOWHERE:
            return f"no way there ({asked.words})"
        case Answer.SILENT:
            return "no answer in time"
        case _:
            return asked.words or asked.answer.value


def _no_grpc(seen: Observation) -> Told:
    what = f"HTTP answers at {seen.http_address}, but gRPC at {seen.address} does not: "
    if not seen.http.given:
        what = f"gRPC at {seen.address} does not answer: "
    why = "streams, clock, tracker and alarms could not be looked at."
    how = f"something listens there that does not speak gRPC as we do ({seen.grpc.words})"
    match seen.grpc.answer:
        case Answer.NO_TRUST:
            how = f"no trust between its certificate and ours ({seen.grpc.words})"
            remedy = (
                "name the authority of its certificate with --certificate-authority and, where it "
                "asks for one, a certificate of yours with --certificate and --key; the address "
                "must be a name that its certificate has. Has one of them expired? "
                "docs/security.md"
            )
        case Answer.OTHER_PORT:
            how = "something listens there that does not speak gRPC as we do, but HTTP"
            remedy = (
                "did you swap --address and --http-address? Give the address of gRPC with "
                "--address; the sidecar's first line on standard output tells both."
            )
        case Answer.FOREIGN if seen.tls:
            remedy = (
                "is that the port of gRPC, and not of another program? Does it serve in plain "
                "text? Then leave --certificate-authority out."
            )
        case Answer.FOREIGN:
            if any(word in seen.grpc.words.lower() for word in _AS_TLS_DOES):
                how = f"it ends the connection at once, as what wants TLS does ({seen.grpc.words})"
            remedy = (
                "does it serve with TLS? Then name its authority with --certificate-authority. "
                "Or is that the port of another program?"
            )
        case _:
            how = _how(seen.grpc)
            why = f"{why} {_NAMESPACE}: it may be open there, and not here."
            remedy = f"give its address with --address, or {_INSIDE}."
    return wrong(f"{what}{how}", why, remedy)


def _no_http(seen: Observation) -> Told:
    what = f"gRPC answers at {seen.address}, but HTTP at {seen.http_address} does not: "
    if not seen.grpc.given:
        what = f"HTTP at {seen.http_address} does not answer: "
    if seen.http.answer is Answer.OTHER_PORT:
        return wrong(
            f"{what}it speaks HTTP/2 there, as gRPC does",
            "rates, refusals, load and the disk could not be looked at.",
            "did you swap --address and --http-address? Give the address of /metrics with "
            "--http-address ([server] http_address).",
        )
    return wrong(
        f"{what}{_how(seen.http)}",
        "if Prometheus asks there as well, it has no metrics of this sidecar, and no alert can "
        "come. Rates, refusals, load and the disk could not be looked at.",
        "is that [server] http_address? Give it with --http-address. For a scrape from another "
        f"machine or pod it must be open to it: [security] allow_plain_metrics. {RUNBOOK}",
    )


def _not_ready(seen: Observation) -> Iterator[Told]:
    if (seen.http.given and seen.ready is False) or (seen.grpc.given and not seen.serving):
        yield wrong(
            "the sidecar is there and says that it is not ready",
            "it is starting, and still reads what it kept, or it is shutting down: frames are not "
            "taken.",
            f"ask again in half a minute; if it stays so, its log says what it waits for. "
            f"{RUNBOOK}",
        )


def _no_answer(seen: Observation) -> Iterator[Told]:
    """Questions that were not answered, though gRPC was."""
    if not seen.grpc.given:
        return
    match seen.status.answer:
        case Answer.GIVEN:
            pass
        case answer if answer in _FOR_WANT_OF_A_RIGHT:
            yield wrong(
                f"the sidecar refuses to tell how it is: {seen.status.words}",
                "streams, clock, tracker and alarms could not be looked at.",
                "give a file with a token of the right 'data' or 'admin': --token-file F "
                "([security] data_token_file, admin_token_file). docs/security.md",
            )
            return
        case Answer.UNKNOWN:
            yield remark(
                "what serves gRPC there does not know GetStatus: an older sidecar, or another "
                "program",
                "streams, clock and tracker could not be looked at.",
                f"is {seen.address} the sidecar? Then use the doctor of its own version.",
            )
        case _:
            yield wrong(
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
            f"not looked at: {names(list(missing))} ({words.rstrip('.')})",
            "how large alarms are is not known, or what waits for approval, and in how many "
            "trials.",
            " Else ".join(remedies),
        )


def _not_steady(seen: Observation) -> Iterator[Told]:
    """Finds a sidecar that was started just now, and metrics that stood still."""
    if seen.started_anew:
        yield wrong(
            "the sidecar was started anew while doctor looked",
            "what is in memory alone is lost with every start, and frames of that moment went on "
            "uncorrected.",
            "who starts it again and again? The end of its log says why it stopped: "
            "`journalctl -u calibration-monitor`, `docker logs`, `kubectl logs --previous`.",
        )
    elif seen.up_s < _YOUNG_SECONDS:
        yield remark(
            f"the sidecar was started {duration(seen.up_s)} ago",
            "counts since the start are of this time alone. If nobody has started it just now, it "
            "ends and is started again and again.",
            "look again in a minute; does it say the same, read the end of the log before: "
            "`journalctl -u calibration-monitor`, `docker logs`, `kubectl logs --previous`.",
        )
    change = seen.change
    if seen.last.samples is not None and change.seconds > 0 and not seen.refreshed:
        yield remark(
            f"the metrics were not refreshed in {duration(change.seconds)}: both looks saw the "
            "same text",
            "what was counted or refused meanwhile is not known; what is said of metrics is of "
            "before.",
            "watch for longer: --seconds above [metrics] refresh_seconds.",
        )
