"""Administration in this process: documents are read while frames go on being answered."""

import asyncio
import threading
from typing import NoReturn

import grpc
import pytest

from monitor import recalibrators
from monitor.edges import admin_service
from monitor.edges.admin_service import AdminService
from monitor.recalibration.any_selection import AnySelection, any_selection_from_json
from monitor.recalibration.recalibrator import InvalidRecalibrator
from monitor.recalibration.selection import IDENTITY
from monitor.recalibrators import Promotion
from monitor.v1 import recalibrator_admin_pb2 as pb
from tests.piped import BY_SLICE, DOUBLE, HEADER, opened, pipeline_of, sent
from tests.piped_classes import WARM
from tests.received import frame

PATIENCE = 10.0


class Caller:
    """Reads nothing, and is told why."""

    async def read(self) -> bytes:
        return b""

    async def write(self, message: bytes) -> None:
        raise AssertionError("a unary method writes nothing by itself")

    async def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        raise AssertionError(code, details)


@pytest.fixture
def pipeline():
    return pipeline_of()


@pytest.fixture
def told() -> list[Promotion]:
    return []


@pytest.fixture
def admin(pipeline, told):
    return AdminService(pipeline, told.append)


@pytest.fixture
def reading(monkeypatch):
    """The documents that are read, and an event that each waits for."""
    documents: list[str] = []
    go_on = threading.Event()

    def slow(document: str) -> AnySelection:
        documents.append(document)
        assert go_on.wait(PATIENCE)
        return any_selection_from_json(document)

    monkeypatch.setattr(admin_service, "any_selection_from_json", slow)
    return documents, go_on


def asked(selection) -> bytes:
    return pb.PromoteRequest(document=selection.to_json()).SerializeToString()


def test_frames_are_answered_while_a_document_is_read(pipeline, admin, told, reading):
    documents, go_on = reading

    async def conversation():
        promoting = asyncio.create_task(admin.promote(asked(DOUBLE), Caller()))
        while not documents:
            await asyncio.sleep(0)
        stream = opened(pipeline, HEADER)
        before = pipeline.process(stream, frame([sent(1)], 1))
        go_on.set()
        await promoting
        return before, pipeline.process(stream, frame([sent(1)], 2))

    before, after = asyncio.run(conversation())
    assert before.versions == (IDENTITY.version,)
    assert after.versions == (DOUBLE.version,)
    assert [(one.before, one.after) for one in told] == [(IDENTITY.version, DOUBLE.version)]


def test_documents_are_promoted_in_the_order_they_came(pipeline, admin, told, reading):
    documents, go_on = reading

    async def conversation():
        both = [
            asyncio.create_task(admin.promote(asked(one), Caller())) for one in (DOUBLE, BY_SLICE)
        ]
        while not documents:
            await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(*both)

    asyncio.run(conversation())
    assert [one.after for one in told] == [DOUBLE.version, BY_SLICE.version]
    assert pipeline.recalibrators.selection == BY_SLICE


def test_a_document_that_is_known_is_not_read_again(pipeline, admin, told, reading):
    documents, go_on = reading
    go_on.set()
    for one in (DOUBLE, WARM, BY_SLICE, DOUBLE, WARM):
        asyncio.run(admin.promote(asked(one), Caller()))
    assert documents == [one.to_json() for one in (DOUBLE, WARM, BY_SLICE)]
    assert len(told) == 5
    assert pipeline.recalibrators.selection == DOUBLE
    # Nor where the configuration names it.
    assert pipeline.recalibrators.learn(DOUBLE.to_json()) is pipeline.recalibrators.selection


def test_a_document_that_is_none_leaves_what_is_in_force_and_the_next_is_read(pipeline, admin):
    for document in ("{}", "\ud800", "[" * 100_000):
        request = pb.PromoteRequest(document=document.encode("utf-8", "replace").decode())
        with pytest.raises(InvalidRecalibrator):
            asyncio.run(admin.promote(request.SerializeToString(), Caller()))
    assert pipeline.recalibrators.selection is IDENTITY
    assert pipeline.counters.swaps == 0
    asyncio.run(admin.promote(asked(DOUBLE), Caller()))
    assert pipeline.recalibrators.selection == DOUBLE


def test_the_kind_of_each_recalibrator_is_listed(pipeline, admin):
    for one in (DOUBLE, WARM):
        pipeline.promote(pipeline.recalibrators.learn(one.to_json()).version, "test")
    listed = pb.ListResponse.FromString(asyncio.run(admin.list_recalibrators(b"", Caller())))
    promoted = {entry.version: entry.kind for entry in listed.recalibrators if entry.promoted}
    assert promoted == {
        DOUBLE.version: pb.RECALIBRATOR_KIND_ESTIMATES,
        WARM.version: pb.RECALIBRATOR_KIND_CLASS_PROBABILITIES,
    }
    assert all(entry.kind for entry in listed.recalibrators)


def test_documents_that_are_read_but_not_known_are_remembered_within_bounds(monkeypatch):
    monkeypatch.setattr(recalibrators, "MOST_KNOWN", 5)
    known = recalibrators.Recalibrators()
    for blanks in range(20):
        assert known.learn(DOUBLE.to_json() + " " * blanks).version == DOUBLE.version
    assert len(known.listed()) == 3
    assert known.known_by(DOUBLE.to_json()) is not None
    assert known.known_by(DOUBLE.to_json() + " " * 19) is None
