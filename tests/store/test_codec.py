"""One law for all documents that are kept as JSON: what is written is read bit for bit, and what
stands where it must not is refused by its field, whatever it is.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from annotated_types import Interval, Len

from monitor.frames.marks import MaybeNan, Printable
from monitor.pipeline.restart import RUN_STATE
from monitor.recalibration.recalibrator import InvalidRecalibrator
from monitor.statistics.observations import finished
from monitor.store.documents import (
    RECORD_CODEC,
    REGISTER_CODEC,
    Codec,
    InvalidDocument,
    OtherDocument,
    any_selection_from_json,
    family_text,
    read_family,
)
from tests.checkpointed import OF_CLASSES, begun, on_disk
from tests.learnt import begin, promoted
from tests.piped import opened, sent
from tests.promotion.owned_registers import scaled
from tests.received import frame
from tests.states import bits

Kind = tuple[Callable[[bytes], Any], Callable[[Any], bytes]]


def family_bytes(family: Any) -> bytes:
    return b"".join(finished(family_text(family)))


KINDS: dict[str, Kind] = {
    "run": (RUN_STATE.read, RUN_STATE.write),
    "drift": (read_family, family_bytes),
    "register": (REGISTER_CODEC.read, REGISTER_CODEC.write),
    "record": (RECORD_CODEC.read, RECORD_CODEC.write),
    "document": (any_selection_from_json, lambda one: one.to_json().encode()),
    "classes": (any_selection_from_json, lambda one: one.to_json().encode()),
}


@pytest.fixture(scope="module")
def documents(tmp_path_factory) -> dict[str, bytes]:
    """Those of a sidecar that has lived: with streams, a promotion, a trial and evidence."""
    folder = tmp_path_factory.mktemp("lived")
    run = begun(folder, "car")
    stream = opened(run.pipeline)
    for number in range(1, 4):
        rows = [sent(number * 10 + row, truth=True) for row in range(5)]
        run.pipeline.process(stream, frame(rows, number, number * 10**9))
    promoted(run.promotions, 4.0)
    begin(run.promotions, scaled(5.0))
    asyncio.run(run.kept())
    found = on_disk(folder)
    return {
        **{name: found.parts[name] for name in ("run", "drift", "register")},
        "record": found.records[-1],
        "document": next(iter(found.recalibrators.values())),
        "classes": OF_CLASSES.to_json().encode(),
    }


def leaves(content: Any, *way: Any) -> Iterator[tuple[Any, ...]]:
    """Yields the way to every value that is no list or object, and to those that are empty.

    Of a list, one entry of each shape stands for all.
    """
    pairs: Iterable[tuple[Any, Any]] = ()
    if isinstance(content, dict):
        pairs = content.items()
    elif isinstance(content, list):
        shapes = {
            repr(one)[:1] + repr(sorted(one) if isinstance(one, dict) else ""): number
            for number, one in enumerate(content)
        }
        pairs = [(number, content[number]) for number in shapes.values()]
    if not pairs and way:
        yield way
    for key, value in pairs:
        yield from leaves(value, *way, key)


def changed(content: Any, way: tuple[Any, ...], value: Any) -> bytes:
    copy = place = json.loads(json.dumps(content))
    for key in way[:-1]:
        place = place[key]
    if value is leaves:
        del place[way[-1]]
    else:
        place[way[-1]] = value
    return json.dumps(copy).encode()


WRONG: tuple[Any, ...] = (
    *(None, True, -1, 0, 10**30, -1.5, float("nan")),
    *("", "x\x00", "AAAA", [], [[0]], {}, {"a": 1}),
)


@pytest.mark.parametrize("kind", KINDS)
def test_a_document_is_read_as_written_and_other_values_refused_or_kept(documents, kind):
    read, write = KINDS[kind]
    content = json.loads(documents[kind])
    assert bits(read(write(read(documents[kind])))) == bits(read(documents[kind]))
    refused, deep = 0, b"[" * 40 + b"]" * 40
    unknown = json.dumps({**content, "unheard": 1}).encode()
    if kind == "record":  # one of a later version is read as far as it is understood
        assert read(unknown)
    else:
        with pytest.raises((InvalidDocument, InvalidRecalibrator), match="unheard' is unknown"):
            read(unknown)
    for text in (b"", b"{", b"\xff", b"null", b"[]", b"{}", b'"x"', deep, b"[" * 10**5):
        with pytest.raises((InvalidDocument, InvalidRecalibrator)):
            read(text)
    for number, way in enumerate(leaves(content)):
        # Each value gets some of the wrong ones in turn, or is not there at all.
        for value in (*WRONG[number % 3 :: 3], leaves):
            text = changed(content, way, value)
            try:
                found = read(text)
            except (InvalidDocument, InvalidRecalibrator) as error:
                refused += 1
                assert str(error)[0] == "'" and str(error)[-1] == "." and len(str(error)) < 500
                continue
            assert bits(read(write(found))) == bits(found), (way, value)
    assert refused > len(list(leaves(content)))


@dataclass(frozen=True)
class Inner:
    name: Printable
    share: Annotated[float, Interval(ge=0, le=1)] = 0.5


@dataclass(frozen=True)
class Outer:
    number: int
    inner: Annotated[tuple[Inner, ...], Len(1, 2)] = (Inner("a"),)
    unsure: MaybeNan = 0.0
    odd: bool = False

    def __post_init__(self) -> None:
        if self.odd and self.number % 2 == 0:
            raise ValueError(f"{self.number} is even")


OUTER = Codec(
    Outer, "outer", "Do better.", "outer/2", {"outer/1": lambda old: {"number": old["n"]}}
)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"number": "7"}, "'outer.number' is '7': it must be a valid integer"),
        ({}, "'outer' has no 'number'"),
        ({"number": 1, "more": 2}, "'outer.more' is unknown"),
        ({"number": 1, "inner": []}, "'outer.inner' has 0 entries: it must have at least 1"),
        ({"number": 1, "inner": [{"name": "a", "share": 1.5}]}, "'outer.inner[0].share' is 1.5"),
        ({"number": 2, "odd": True}, "'outer': 2 is even"),
    ],
)
def test_a_refusal_names_field_value_and_remedy(content, said):
    with pytest.raises(InvalidDocument) as refusal:
        OUTER.read(json.dumps({"format": "outer/2", **content}))
    assert str(refusal.value).startswith(said)
    assert str(refusal.value).endswith(". Do better.")
    assert len(str(refusal.value)) < 300


def test_documents_of_older_formats_are_upgraded_and_others_left_to_who_wrote_them():
    assert OUTER.read('{"format": "outer/1", "n": 7}') == Outer(7)
    with pytest.raises(OtherDocument, match="this monitor reads 'outer/2': use the monitor that"):
        OUTER.read('{"format": "outer/3"}')
    for text, said in (
        ('{"format": "outer/1"}', r"is no document of 'outer/1' \(KeyError"),
        ('{"format": 1}', "'format' is 1, expected 'outer/2': do better"),
        ("[]", r"'outer' is \[\]: Do better"),
    ):
        with pytest.raises(InvalidDocument, match=said):
            OUTER.read(text)
