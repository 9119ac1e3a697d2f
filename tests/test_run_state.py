"""What a run counts next: a document that is read bit for bit, or refused with the field's name."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.frames.counters import TruthAccount
from monitor.frames.frame import Header
from monitor.frames.space import Dimension, DimensionKind, Space, plain_space
from monitor.frames.stored import SliceKey
from monitor.pipeline.run_state import RUN_STATE, KnownStream, OpenTracks, RunState, SliceShare
from monitor.store.codec import InvalidDocument
from monitor.store.statistics_state import StoredState, parsed
from monitor.v1 import statistics_state_pb2 as pb
from tests.states import bits, counted, joined, random_rows

SPACES = (
    plain_space(("x", "y"), "m"),
    Space((Dimension("yaw", "rad", DimensionKind.ANGLE),), angles_in_joint=True),
    Space((Dimension("yaw", "rad", DimensionKind.ANGLE),)),
)


def some_tracks(random: np.random.Generator, space: Space) -> OpenTracks:
    n, axes = int(random.integers(6)), 2 * (space.k + 1)
    counted = n + int(random.integers(100)) if n else 0
    return OpenTracks(
        space,
        counted,
        np.unique(random.integers(1, 2**64, n, np.uint64)),
        random.permutation(counted)[:n],
        random.integers(0, 9, n).astype(np.float64),
        random.integers(-(2**20), 2**40, axes * n) / 2**16,
    )


def some_run(seed: int = 1) -> RunState:
    """Some of it without tracks, streams and times."""
    random = np.random.default_rng(seed)

    def some(upper: int = 2**40) -> int:
        return int(random.integers(upper))

    def maybe(value: int) -> int | None:
        return value if random.random() < 0.7 else None

    return RunState(
        sequence=some(2**62),
        now_ns=maybe(-some()),
        votes=some(100),
        other_ns=-some(),
        jumps=some(5),
        generation=some(5),
        numbered=some(),
        epoch=some(9),
        begins=some(),
        in_memory=some(),
        on_disk=tuple((partition - 2, some()) for partition in range(some(5))),
        account={f"name{i}": some() for i in range(some(9))},
        labels=TruthAccount(matched=some(), orphan=some()),
        streams=tuple(
            KnownStream(
                Header(f"s{i}", SPACES[i], ("car",), "ego"), some(), maybe(-some()), maybe(0)
            )
            for i in range(some(4))
        ),
        shares=tuple(
            SliceShare(space, SliceKey("car", overflow), ("car",), some(), some(), some(), some())
            for space in SPACES[: some(4)]
            for overflow in (False, True)
        ),
        tracks=tuple(some_tracks(random, space) for space in SPACES[: some(4)]),
    )


@given(st.integers(0, 2**32 - 1))
def test_what_is_written_is_read_bit_for_bit(seed):
    run = some_run(seed)
    assert bits(RUN_STATE.read(RUN_STATE.write(run))) == bits(run)


def spoilt(place: str, value: object) -> bytes:
    """A sound document with another value at a place such as tracks.0.counted."""
    tracks = OpenTracks(
        SPACES[0],
        10,
        np.array([3, 5], np.uint64),
        np.array([4, 9]),
        np.array([1.0, 2.0]),
        np.ones(12),
    )
    stream = KnownStream(Header("s", SPACES[0], ("car",)), 1)
    share = SliceShare(SPACES[0], SliceKey("car"))
    run = replace(some_run(), tracks=(tracks,), streams=(stream,), shares=(share,))
    document = json.loads(RUN_STATE.write(run))
    *path, last = place.split(".")
    where = document
    for part in path:
        where = where[int(part) if part.isdigit() else part]
    assert last in where
    where[last] = value
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ("sequence", -1, "run.sequence"),
        ("tracks.0.ids", [5, 3], "do not ascend"),
        ("tracks.0.ids", [0, 3], "do not ascend"),
        ("tracks.0.counted", 9, "not all within the 9"),
        ("tracks.0.last", [1], "not of 2 tracks"),
        ("tracks.0.last", [-1, 3], r"tracks\[0\].last"),
        ("tracks.0.rows", [-1.0, 3.0], r"tracks\[0\].rows"),
        ("tracks.0.sums", [1.0], "not of 2 tracks"),
        ("streams.0.number", "1", r"streams\[0\].number"),
        ("shares.0.space", {}, r"shares\[0\].space"),
        ("labels", {"unheard": 1}, "unheard"),
    ],
)
def test_what_cannot_be_is_refused_and_the_field_is_named(place, value, said):
    with pytest.raises(InvalidDocument, match=said):
        RUN_STATE.read(spoilt(place, value))


def test_where_the_version_before_had_come_goes_no_further_than_its_file():
    message = pb.StatisticsState.FromString(joined_state())
    message.progress.sequence = 7
    found = parsed(message.SerializeToString())
    assert found.unknown == b""
    assert joined(found) == joined_state()


def joined_state() -> bytes:
    return joined(StoredState(counted(random_rows(1, 20))))
