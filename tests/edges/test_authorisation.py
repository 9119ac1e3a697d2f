"""Rights by token, and room for calls; without a wire."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.config import LONGEST, MOST_TOKENS, InvalidConfiguration, SecurityConfig, read_tokens
from monitor.frames.counters import Counters
from monitor.service.security import (
    PROBES_END,
    RIGHTS,
    Authorisation,
    NotAuthenticated,
    NotPermitted,
    OpenCalls,
    Right,
    Room,
    Tokens,
    right_of,
)
from tests.administered import Caller, Refused
from tests.served import ADMIN, MONITOR

ONE, TWO = "one-" * 5, "two-" * 5


def written(folder: Path, **contents: str) -> SecurityConfig:
    """Files of tokens by right."""
    files = {}
    for right, text in contents.items():
        path = folder / right
        path.touch(0o600)
        path.write_text(text, "utf-8")
        files[f"{right}_token_file"] = str(path)
    return SecurityConfig.model_validate(files)


def shows(tokens: Tokens, right: Right, token: str) -> bool:
    """Whether the token is enough."""
    try:
        tokens.check(right, [f"Bearer {token}"])
    except (NotAuthenticated, NotPermitted) as error:
        assert token not in str(error)
        return False
    return True


def test_a_right_without_a_file_is_open_and_the_others_are_not(tmp_path, caplog):
    tokens = Tokens(written(tmp_path, truth=ONE))
    tokens.check(Right.DATA, [])
    tokens.check(Right.ADMIN, [])
    with pytest.raises(NotAuthenticated):
        tokens.check(Right.TRUTH, [])
    assert "admin_token_file is empty" in caplog.text


def test_several_rights_may_have_the_same_token(tmp_path):
    tokens = Tokens(written(tmp_path, data=ONE, truth=f"{TWO}\n{ONE}", admin="x" * 20))
    assert [shows(tokens, right, ONE) for right in Right] == [True, True, False]
    assert [shows(tokens, right, TWO) for right in Right] == [False, True, False]
    assert all(shows(tokens, right, "x" * 20) for right in Right)


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_scheme_is_the_same_in_any_case(tmp_path, scheme):
    Tokens(written(tmp_path, admin=ONE)).check(Right.DATA, [f"{scheme} {ONE}"])
    Tokens(written(tmp_path, admin=ONE)).check(Right.ADMIN, [f"{scheme} {ONE}".encode()])


def test_tokens_are_kept_as_digests_alone(tmp_path):
    tokens = Tokens(written(tmp_path, data=ONE, admin=TWO))
    assert ONE not in repr(tokens)
    assert TWO not in repr(tokens)


def test_files_that_change_are_in_force_after_the_next_look(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    tokens = Tokens(written(tmp_path, data=ONE, admin="x" * 20))
    written(tmp_path, data=TWO)
    assert shows(tokens, Right.DATA, ONE)
    tokens.look_again()
    assert not shows(tokens, Right.DATA, ONE)
    assert shows(tokens, Right.DATA, TWO)
    (tmp_path / "data").unlink()
    tokens.look_again()
    tokens.look_again()
    assert shows(tokens, Right.DATA, TWO)
    assert caplog.text.count("Until then the tokens read before stay active") == 1
    assert "data_token_file has changed" in caplog.text
    assert TWO not in caplog.text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no token"),
        (" \n\n", "holds no token"),
        ("short", "token 1 has 5 characters"),
        (f"{ONE}\n" + "y" * (LONGEST + 1), f"token 2 has {LONGEST + 1} characters"),
        ("a secret of two words", "characters other than letters"),
        ("geheimnis-für-alle-leute", "characters other than letters"),
        ("\n".join(["z" * 20] * (MOST_TOKENS + 1)), f"at most {MOST_TOKENS}"),
    ],
)
def test_a_file_that_holds_no_tokens_is_refused_and_its_text_is_not_shown(tmp_path, text, said):
    with pytest.raises(InvalidConfiguration, match=said) as found:
        Tokens(written(tmp_path, admin=text))
    assert "[security] admin_token_file = '" in str(found.value)
    for word in text.split():
        assert len(word) < 5 or word not in str(found.value)


@given(st.binary(max_size=300))
def test_any_bytes_are_tokens_or_a_value_error(data):
    try:
        tokens = read_tokens(data, "path")
    except ValueError as error:
        assert "path" in str(error)
    else:
        assert b"\n".join(tokens).split() == list(tokens)


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o644, True)])
def test_a_file_of_tokens_that_others_can_read_is_warned_of(tmp_path, caplog, mode, warned):
    settings = written(tmp_path, admin=ONE)
    (tmp_path / "admin").chmod(mode)
    Tokens(settings)
    assert ("others than its owner can read it" in caplog.text) == warned


@pytest.mark.parametrize(
    ("method", "right"),
    [
        *RIGHTS.items(),
        ("/grpc.health.v1.Health/Check", None),
        ("/grpc.health.v1.Health/Watch", None),
        ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", Right.ADMIN),
        (f"/{ADMIN}/SomethingNew", Right.ADMIN),
        (f"/{MONITOR}/process", Right.ADMIN),
        ("/grpc.health.v1.HealthX/Check", Right.ADMIN),
        ("", Right.ADMIN),
    ],
)
def test_what_is_not_known_needs_the_right_of_administration(method, right):
    assert right_of(method) is right


# ---- as interceptors


async def _handle(interceptor, handler, method=f"/{MONITOR}/Process", metadata=()):
    async def continuation(_: object) -> object:
        return handler

    details = SimpleNamespace(method=method, invocation_metadata=metadata)
    return await interceptor.intercept_service(continuation, details)


def test_refusals_are_in_the_log_ever_more_rarely_and_without_the_token(tmp_path, caplog):
    counters = Counters()
    authorisation = Authorisation(Tokens(written(tmp_path, admin=ONE, data=TWO)), counters)
    caplog.clear()
    for _ in range(100):
        shown = (("authorization", "Bearer nobody-knows-this-token"),)
        handler = asyncio.run(_handle(authorisation, None, metadata=shown))
        with pytest.raises(Refused) as found:
            asyncio.run(handler.stream_stream(None, Caller()))
        assert found.value.status is grpc.StatusCode.UNAUTHENTICATED
    assert counters.calls_refused == {"unauthenticated": 100, "permission_denied": 0}
    assert len(caplog.records) == 7
    assert "nobody-knows" not in caplog.text


def test_a_token_of_another_right_is_counted_as_such(tmp_path):
    counters = Counters()
    authorisation = Authorisation(Tokens(written(tmp_path, admin=ONE, data=TWO)), counters)
    shown = (("authorization", f"Bearer {TWO}"),)
    asyncio.run(_handle(authorisation, None, f"/{ADMIN}/Promote", shown))
    assert counters.calls_refused == {"unauthenticated": 0, "permission_denied": 1}


def test_a_place_is_free_again_however_a_call_ends():
    room = Room(2)
    calls = OpenCalls(room)

    async def breaks(request: bytes, _: object) -> bytes:
        assert room.taken == 1
        raise ZeroDivisionError

    async def counts(request: bytes, _: object) -> AsyncIterator[bytes]:
        for i in range(5):
            assert room.taken == 1
            yield bytes([i])

    async def run() -> None:
        broken = await _handle(calls, grpc.unary_unary_rpc_method_handler(breaks), "/a/Breaks")
        with pytest.raises(ZeroDivisionError):
            await broken.unary_unary(b"", Caller())
        assert room.taken == 0
        counted = await _handle(calls, grpc.unary_stream_rpc_method_handler(counts), "/a/Counts")
        answers = counted.unary_stream(b"", Caller())
        assert await anext(answers) == b"\0"
        await answers.aclose()
        assert room.taken == 0
        assert [one async for one in counted.unary_stream(b"", Caller())] == [
            bytes([i]) for i in range(5)
        ]
        async with room.place(Caller()), room.place(Caller()):
            with pytest.raises(Refused, match="2 calls are open"):
                await anext(counted.unary_stream(b"", Caller()))
            with pytest.raises(Refused, match="max_calls"):
                await broken.unary_unary(b"", Caller())
        assert room.taken == 0

    asyncio.run(run())


def test_probes_of_health_have_room_of_their_own():
    calls = OpenCalls(Room(0), Room(1, PROBES_END))

    async def answer(request: bytes, _: object) -> bytes:
        return b"ok"

    async def run() -> None:
        handler = grpc.unary_unary_rpc_method_handler(answer)
        probe = await _handle(calls, handler, "/grpc.health.v1.Health/Check")
        assert await probe.unary_unary(b"", Caller()) == b"ok"
        other = await _handle(calls, handler)
        with pytest.raises(Refused, match="max_calls"):
            await other.unary_unary(b"", Caller())
        # max_calls is no remedy for those.
        async with calls.probes.place(Caller()):
            with pytest.raises(Refused, match="watch the health") as found:
                await probe.unary_unary(b"", Caller())
        assert "max_calls" not in str(found.value)

    asyncio.run(run())


def test_a_method_that_does_not_exist_stays_so():
    assert asyncio.run(_handle(OpenCalls(Room(1)), None)) is None
