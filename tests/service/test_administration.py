"""Administration in process; documents are read while frames go on being answered."""

import asyncio
import threading

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.pipeline.recalibrators import NothingToRollBack, UnknownVersion
from monitor.promotion.fits import CannotFit, FitFailed
from monitor.recalibration.recalibrator import InvalidRecalibrator
from monitor.recalibration.selection import IDENTITY, AnySelection
from monitor.service import admin as admin_module
from monitor.service.admin import MOST_ACTOR, actor_of
from monitor.store.documents import any_selection_from_json
from monitor.v1 import recalibrator_admin_pb2 as pb
from tests.administered import Caller, Refused, administration
from tests.piped import BY_SLICE, DOUBLE, HEADER, opened, pipeline_of, sent
from tests.piped_classes import WARM
from tests.received import frame
from tests.service.handled import asked, service_of

PATIENCE = 10.0


@pytest.fixture
def pipeline():
    return pipeline_of()


@pytest.fixture
def both(pipeline):
    return administration(pipeline)


@pytest.fixture
def admin(both):
    return both[0]


@pytest.fixture
def told(both):
    return both[1]


def answer_of(kind, handler, message):
    return kind.FromString(asyncio.run(handler(message.SerializeToString(), Caller())))


def refusal(pipeline, handler, message) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(Refused) as ended:
        asked(service_of(pipeline), handler, message.SerializeToString())
    return ended.value.status, ended.value.words


@pytest.fixture
def reading(monkeypatch):
    """The documents that are read, and an event that each waits for."""
    documents: list[str] = []
    go_on = threading.Event()

    def slow(document: str) -> AnySelection:
        documents.append(document)
        assert go_on.wait(PATIENCE)
        return any_selection_from_json(document)

    monkeypatch.setattr(admin_module, "any_selection_from_json", slow)
    return documents, go_on


def promoting(selection) -> bytes:
    return pb.PromoteRequest(document=selection.to_json()).SerializeToString()


def test_documents_are_promoted_in_the_order_they_came_and_frames_answered_meanwhile(
    pipeline, admin, told, reading
):
    documents, go_on = reading

    async def conversation():
        calls = [admin.promote(promoting(one), Caller()) for one in (DOUBLE, BY_SLICE)]
        both = [asyncio.create_task(call) for call in calls]
        while not documents:
            await asyncio.sleep(0)
        stream = opened(pipeline, HEADER)
        before = pipeline.process(stream, frame([sent(1)], 1))
        go_on.set()
        await asyncio.gather(*both)
        return before, pipeline.process(stream, frame([sent(1)], 2))

    before, after = asyncio.run(conversation())
    assert before.versions == (IDENTITY.version,)
    assert BY_SLICE.version in after.versions
    assert told.asked == [("promote", one.version, "unnamed") for one in (DOUBLE, BY_SLICE)]
    assert pipeline.recalibrators.selection == BY_SLICE


def test_a_document_that_is_known_is_not_read_again_and_one_that_is_none_changes_nothing(
    pipeline, admin, told, reading
):
    documents, go_on = reading
    go_on.set()
    for document in ("{}", "?", "[" * 100_000):
        request = pb.PromoteRequest(document=document)
        with pytest.raises(InvalidRecalibrator):
            asyncio.run(admin.promote(request.SerializeToString(), Caller()))
    assert pipeline.recalibrators.selection is IDENTITY
    assert told.asked == []
    documents.clear()
    for one in (DOUBLE, WARM, BY_SLICE, DOUBLE, WARM):
        asyncio.run(admin.promote(promoting(one), Caller()))
    assert documents == [one.to_json() for one in (DOUBLE, WARM, BY_SLICE)]
    assert len(told.asked) == 5
    assert pipeline.recalibrators.selection == DOUBLE
    # Nor where the configuration names it.
    assert pipeline.recalibrators.learn(DOUBLE.to_json()) is pipeline.recalibrators.selection


def test_a_promotion_reaches_the_part_that_acts_and_is_answered_when_it_is_on_the_disk(
    pipeline, admin, told
):
    pipeline.recalibrators.learn(DOUBLE.to_json())
    request = pb.PromoteRequest(version=DOUBLE.version, actor="anna")
    answer = answer_of(pb.PromoteResponse, admin.promote, request)
    assert (answer.before, answer.after) == (IDENTITY.version, DOUBLE.version)
    assert told.asked == [("promote", DOUBLE.version, "anna")]
    assert told.settled == 1


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (
            UnknownVersion("no recalibrator 'x': promote one that is known."),
            grpc.StatusCode.NOT_FOUND,
        ),
        (NothingToRollBack("car: nothing was before."), grpc.StatusCode.FAILED_PRECONDITION),
        (CannotFit("method: 'best' is none."), grpc.StatusCode.INVALID_ARGUMENT),
        (FitFailed("the fit was killed by SIGSEGV."), grpc.StatusCode.INTERNAL),
    ],
)
def test_who_asked_is_told_why_it_was_not_done(pipeline, admin, told, failure, status):
    told.failure = failure
    for handler, request in (
        (admin.promote, pb.PromoteRequest(version="x")),
        (admin.rollback, pb.RollbackRequest()),
        (admin.fit, pb.FitRequest()),
    ):
        assert refusal(pipeline, handler, request) == (status, str(failure))


def test_a_fault_of_ours_is_not_told_by_its_own_words(pipeline, admin, told):
    told.failure = RuntimeError("/home/anna/secret")
    status, words = refusal(pipeline, admin.fit, pb.FitRequest())
    assert status is grpc.StatusCode.INTERNAL
    assert "secret" not in words
    with pytest.raises(Refused, match=r"2 bytes are not a monitor\.v1\.ListRequest"):
        asked(service_of(pipeline), admin.list_recalibrators, b"\xff\xff")


@pytest.mark.parametrize(
    ("method", "request_", "status", "words"),
    [
        (
            "promote",
            pb.PromoteRequest(),
            grpc.StatusCode.INVALID_ARGUMENT,
            "candidate: set either version or document",
        ),
        (
            "rollback",
            pb.RollbackRequest.FromString(b"\x08\x07"),
            grpc.StatusCode.INVALID_ARGUMENT,
            "kind: 7 is none; set RECALIBRATOR_KIND_ESTIMATES or RECALIBRATOR_KIND_CLASS_PROBABIL",
        ),
        (
            "rollback",
            pb.RollbackRequest(kind=pb.RECALIBRATOR_KIND_CLASS_PROBABILITIES, slice="car"),
            grpc.StatusCode.FAILED_PRECONDITION,
            "slice: 'car', but class probabilities go back as a whole: leave it empty",
        ),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_by_field_value_and_remedy(
    pipeline, admin, told, method, request_, status, words
):
    ended, said = refusal(pipeline, getattr(admin, method), request_)
    assert ended is status
    assert said.startswith(words)
    assert told.asked == []


@given(st.text())
def test_an_actor_is_printable_of_bounded_length_and_never_empty(given):
    actor = actor_of(given)
    assert actor.isprintable()
    assert 0 < len(actor) <= MOST_ACTOR
    assert actor_of(actor) == actor
    if given.isprintable() and given.strip() == given and 0 < len(given) <= MOST_ACTOR:
        assert actor == given
