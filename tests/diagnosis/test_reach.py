"""What is said of a sidecar that cannot be reached, or that does not answer everything."""

from dataclasses import replace

import pytest

from monitor.commands.doctor.observation import GIVEN, Answer, Asked, Look
from monitor.commands.doctor.rules import Area, Severity
from tests.diagnosis.observed import NOW, SECOND, of, same_text, seen, status, without

reach = of(Area.REACH)
CLOSED = Asked(Answer.CLOSED, "Connection refused")
SILENT = Asked(Answer.SILENT, "no answer in time")
OTHER = Asked(Answer.OTHER_PORT, "it speaks HTTP")
FOREIGN = Asked(Answer.FOREIGN, "what answers is not HTTP")
NOWHERE = Asked(Answer.NOWHERE, "Name or service not known")


def told(observation):
    (found,) = reach(observation)
    return found


@pytest.mark.parametrize(
    ("grpc", "http", "words", "remedy"),
    [
        (CLOSED, CLOSED, "no sidecar can be reached", "kubectl exec"),
        (SILENT, NOWHERE, "no way there (Name or service not known)", "--http-address"),
        (CLOSED, GIVEN, "HTTP answers at 127.0.0.1:9464, but gRPC", "docker exec"),
        (GIVEN, CLOSED, "but HTTP at 127.0.0.1:9464 does not", "allow_plain_metrics"),
        (
            *(Asked(Answer.FOREIGN, "Socket closed"), GIVEN),
            *("does not speak gRPC as we do (Socket closed)",),
            "does it serve with TLS? Then name its authority with --certificate-authority",
        ),
        (
            *(Asked(Answer.FOREIGN, "Failed parsing HTTP/2"), GIVEN),
            *("does not speak gRPC as we do (Failed parsing HTTP/2)", "does it serve with TLS?"),
        ),
        (
            *(OTHER, GIVEN),
            *("that does not speak gRPC as we do, but HTTP", "Did you swap --address and"),
        ),
        (
            *(GIVEN, OTHER),
            *("does not: it speaks HTTP/2 there, as gRPC does", "Did you swap --address and"),
        ),
        (
            *(OTHER, OTHER),
            *("50051 answers HTTP, and 127.0.0.1:9464 gRPC: the other way", "Did you swap"),
        ),
        (
            *(Asked(Answer.FOREIGN, "it does not speak TLS"), GIVEN),
            *("it does not speak TLS", "leave --certificate-authority out"),
        ),
        (
            *(Asked(Answer.NO_TRUST, "CERTIFICATE_VERIFY_FAILED"), GIVEN),
            *("no trust between its certificate and ours", "--certificate-authority"),
        ),
    ],
)
def test_no_way_to_the_sidecar_is_told_with_what_it_may_be(grpc, http, words, remedy):
    found = told(replace(seen(), grpc=grpc, http=http))
    assert found.severity is Severity.WRONG
    assert words in found.what
    assert remedy in found.remedy


@pytest.mark.parametrize("grpc", [OTHER, FOREIGN, CLOSED])
def test_of_two_halves_that_do_not_answer_neither_is_said_to(grpc):
    http = CLOSED if grpc is not CLOSED else FOREIGN
    found = list(reach(replace(seen(), grpc=grpc, http=http)))
    assert [each.severity for each in found] == [Severity.WRONG] * 2
    assert "gRPC at 127.0.0.1:50051 does not answer: " in found[0].what
    assert found[1].what.startswith("HTTP at 127.0.0.1:9464 does not answer: ")
    assert "GRPC" not in found[0].why


def test_two_looks_at_the_same_text_are_a_remark():
    found = told(same_text(seen()))
    assert found.severity is Severity.REMARK
    assert "the metrics were not refreshed in 5.0 s" in found.what
    assert "--seconds above `[metrics] refresh_seconds`" in found.remedy
    assert told(seen()).severity is Severity.WELL


def test_where_a_right_and_an_answer_are_missing_both_remedies_are_told():
    right = Asked(Answer.NO_RIGHT, "authorization: no.")
    refused, silent = reach(replace(seen(), drift=SILENT, recalibrators=right))
    assert "not looked at: recalibrators (authorization: no)" in refused.what
    assert "'admin'" in refused.remedy
    assert "not looked at: alarms of drift (no answer in time)" in silent.what
    assert "Ask again" in silent.remedy


@pytest.mark.parametrize("changes", [{"ready": False}, {"serving": False}])
def test_a_sidecar_that_is_not_ready_says_that_it_is_starting_or_ending(changes):
    found = told(replace(seen(), **changes))
    assert found.severity is Severity.WRONG
    assert "says that it is not ready" in found.what


def test_metrics_of_something_else_are_told():
    found = told(without(seen(), metrics=Asked(Answer.FOREIGN, "/metrics gives nothing of ours")))
    assert found.severity is Severity.WRONG
    assert "has no metrics of a sidecar: /metrics gives nothing of ours" in found.what


@pytest.mark.parametrize(
    ("answer", "severity", "words"),
    [
        (Answer.NO_TOKEN, Severity.WRONG, "refuses to tell how it is: because"),
        (Answer.NO_RIGHT, Severity.WRONG, "refuses to tell how it is: because"),
        (Answer.UNKNOWN, Severity.REMARK, "does not know GetStatus"),
        (Answer.SILENT, Severity.WRONG, "does not tell how it is: because"),
    ],
)
def test_a_status_that_is_not_told_is_told(answer, severity, words):
    asked = Asked(answer, "because")
    found = told(replace(without(seen(), told=asked), drift=GIVEN, recalibrators=GIVEN))
    assert found.severity is severity
    assert words in found.what


def test_what_only_an_administrator_may_ask_is_a_remark():
    right = Asked(Answer.NO_RIGHT, "authorization: this call needs the right 'admin'.")
    found = told(replace(seen(), recalibrators=right))
    assert found.severity is Severity.REMARK
    assert "not looked at: recalibrators (authorization: this call needs the" in found.what


@pytest.mark.parametrize("answer", [Answer.SILENT, Answer.UNKNOWN, Answer.FAILED])
def test_no_token_is_asked_for_where_none_was_missing(answer):
    found = told(replace(seen(), drift=Asked(answer, "no answer in time")))
    assert "not looked at: alarms of drift (no answer in time)" in found.what
    assert "token" not in found.remedy


def test_a_sidecar_that_was_started_just_now_may_be_started_again_and_again():
    young = status(started_ns=NOW - 12 * SECOND)
    found = told(seen(told=young))
    assert found.severity is Severity.REMARK
    assert "started 12 s ago" in found.what
    assert "again and again" in found.why


def test_a_sidecar_that_started_anew_between_the_looks_is_wrong():
    before = Look(100.0, status=status(started_ns=NOW - 9000 * SECOND))
    found = told(replace(seen(), first=before))
    assert found.severity is Severity.WRONG
    assert "was started anew while doctor looked" in found.what
