"""How far a sidecar had come: in its own file, to the last bit, and in no other state."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.cli import main
from monitor.frames.space import Dimension, DimensionKind, Space, plain_space
from monitor.frames.stored import SliceKey
from monitor.statistics.clusters import ClusterState
from monitor.store.files import read_body, write_body
from monitor.store.progress import (
    KeptClusters,
    KeptStream,
    Progress,
    Share,
    decode_progress,
    encode_progress,
)
from monitor.store.state_definitions import InvalidState
from monitor.store.statistics_state import StoredState, decode, parsed, serialised
from monitor.v1 import ledger_pb2
from monitor.v1 import statistics_state_pb2 as pb
from tests.edges.kept_entries import a_header
from tests.labelled import exported, imported
from tests.states import bits, counted, in_parts, joined, random_rows

quick = settings(deadline=None, max_examples=40)
seeds = st.integers(0, 2**32 - 1)
SPACES = (
    plain_space(("x", "y"), "m"),
    Space((Dimension("yaw", "rad", DimensionKind.ANGLE),), angles_in_joint=True),
    Space((Dimension("yaw", "rad", DimensionKind.ANGLE),)),
)


def some_clusters(random: np.random.Generator, space: Space) -> KeptClusters:
    n, axes = int(random.integers(6)), 2 * (space.k + 1)
    counted = n + int(random.integers(100)) if n else 0
    return KeptClusters(
        space,
        ClusterState(
            axes,
            counted,
            np.unique(random.integers(1, 2**64, n, np.uint64)),
            random.permutation(counted)[:n],
            random.integers(0, 9, n).astype(np.float64),
            random.integers(-(2**20), 2**40, (axes, n)) / 2**16,
        ),
    )


def some_progress(seed: int = 1) -> Progress:
    """Some of it without clusters, streams and times."""
    random = np.random.default_rng(seed)

    def some(upper: int = 2**40) -> int:
        return int(random.integers(upper))

    def maybe(value: int) -> int | None:
        return value if random.random() < 0.7 else None

    return Progress(
        sequence=some(2**63),
        now_ns=maybe(-some()),
        votes=some(100),
        other_ns=-some(),
        jumps=some(5),
        generation=some(5),
        clusters=tuple(some_clusters(random, space) for space in SPACES[: some(4)]),
        streams=tuple(
            KeptStream(
                replace(a_header(some(4) + 1), stream=f"s{i}"), some(), maybe(-some()), maybe(0)
            )
            for i in range(some(3))
        ),
        numbered=some(),
        detections={f"name{i}": some() for i in range(some(9))},
        labels={f"name{i}": some() for i in range(some(9))},
        shares=tuple(
            Share(space, SliceKey("car", overflow), some(), some(), some(), some())
            for space in SPACES[: some(4)]
            for overflow in (False, True)
        ),
        epoch=some(9),
        waiting=some(),
    )


def stored(seed: int = 1, progress: Progress | None = None) -> StoredState:
    return StoredState(counted(random_rows(seed, 20)), progress=progress)


@quick
@given(seeds)
def test_progress_that_is_written_and_read_is_the_same_to_the_last_bit(seed):
    progress = some_progress(seed)
    message = ledger_pb2.KeptProgress.FromString(encode_progress(progress).SerializeToString())
    assert bits(decode_progress(message)) == bits(progress)


def test_progress_of_which_nothing_is_known_is_read_as_such():
    assert bits(decode_progress(ledger_pb2.KeptProgress())) == bits(Progress())


# ---- in states


@quick
@given(seeds)
def test_a_state_is_read_with_the_progress_it_was_written_with(seed):
    state = stored(seed, some_progress(seed))
    for found in (parsed(joined(state)), decode(in_parts(state))):
        assert bits(found.progress) == bits(state.progress)
        assert bits(found.state) == bits(state.state)
        assert found.unknown == b""
    assert joined(parsed(joined(state))) == joined(state)


def test_progress_is_in_the_first_part_and_in_no_other():
    parts = in_parts(stored(1, some_progress()))
    assert [part.HasField("progress") for part in parts] == [True] + [False] * (len(parts) - 1)


def test_the_first_part_that_has_progress_is_believed():
    first, second = some_progress(1), some_progress(2)
    parts = in_parts(stored(1))
    parts[1].progress.CopyFrom(encode_progress(first))
    parts[2].progress.CopyFrom(encode_progress(second))
    found = decode(parts)
    assert bits(found.progress) == bits(first)
    assert found.unknown == b""


def test_a_state_without_progress_reads_and_writes_as_before():
    state = stored()
    assert parsed(joined(state)).progress is None
    assert not any(part.HasField("progress") for part in in_parts(state))
    with_progress = stored(1, some_progress())
    assert bits(parsed(joined(with_progress)).state) == bits(parsed(joined(state)).state)
    assert joined(replace(with_progress, progress=None)) == joined(state)


def test_what_is_imported_and_exported_is_without_progress(start):
    sidecar = start()
    theirs = exported(sidecar)
    assert theirs.progress is None
    imported(sidecar, replace(theirs, progress=some_progress()))
    ours = exported(sidecar)
    assert ours.progress is None
    assert ours.unknown == b""


def test_states_that_are_added_up_have_no_progress():
    one, two = stored(1, some_progress(1)), stored(2, some_progress(2))
    assert one.merge(two).progress is None
    assert b"".join(serialised(one.merge(two))) == joined(stored(1).merge(stored(2)))


def test_what_newer_code_has_added_to_progress_goes_no_further():
    newer = b"\xc2\x3e\x05newer"
    message = pb.StatisticsState.FromString(joined(stored(1, some_progress())))
    message.progress.MergeFromString(newer)
    found = parsed(message.SerializeToString() + newer)
    assert found.unknown == newer
    assert joined(found).count(b"newer") == 1


@pytest.mark.parametrize("files", [1, 2])
def test_files_that_are_merged_have_no_progress_in_the_outcome(tmp_path, files):
    paths = [tmp_path / f"car{i}.state" for i in range(files)]
    for i, path in enumerate(paths):
        with path.open("wb") as file:
            write_body(file, serialised(stored(i, some_progress(i))))
        assert parsed(read_body(path)).progress is not None
    output = tmp_path / "fleet.state"
    assert main(["merge", *map(str, paths), "-o", str(output)]) == 0
    found = pb.StatisticsState.FromString(read_body(output))
    assert not found.HasField("progress")


def test_code_that_does_not_know_progress_reads_the_state_beside_it():
    # To such code it is one more field that it does not know: it is kept, and nothing else differs.
    known = joined(stored(1, some_progress()))
    number = pb.StatisticsState.PROGRESS_FIELD_NUMBER
    message = pb.StatisticsState.FromString(known)
    progress = message.progress.SerializeToString()
    message.ClearField("progress")
    assert bits(parsed(message.SerializeToString()).state) == bits(stored(1).state)
    # What it then writes has progress behind the rest, and not in the first part.
    carried = pb.StatisticsState()
    carried.progress.MergeFromString(progress)
    assert carried.SerializeToString()[0] == number << 3 | 2
    again = parsed(joined(stored(1)) + carried.SerializeToString())
    assert bits(again.progress) == bits(some_progress())
    assert again.unknown == b""


# ---- what is refused


def sound() -> ledger_pb2.KeptProgress:
    header = a_header(2)
    state = ClusterState(
        6,
        10,
        np.array([3, 5], np.uint64),
        np.array([4, 9]),
        np.array([1.0, 2.0]),
        np.ones((6, 2)),
    )
    return encode_progress(
        Progress(
            clusters=(KeptClusters(SPACES[0], state),),
            streams=(KeptStream(header, 1),),
            shares=(Share(SPACES[0], SliceKey("car")),),
        )
    )


def changed(message, **values) -> None:
    for name, value in values.items():
        setattr(message, name, value)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda m: changed(m.clusters[0], axes=5), r"clusters\[0\].axes: 5, where 2 dim.* have 6"),
        (lambda m: changed(m.clusters[0], id=bytes(7)), r"clusters\[0\].id: 7 bytes"),
        (lambda m: changed(m.clusters[0], id=bytes(16)), r"clusters\[0\].id: not ascending"),
        (
            lambda m: changed(m.clusters[0], id=(b"\x05" + bytes(7)) * 2),
            r"clusters\[0\].id: not ascending",
        ),
        (lambda m: changed(m.clusters[0], counted=9), r"clusters\[0\].last: not all within the 9"),
        (lambda m: changed(m.clusters[0], counted=-1), r"clusters\[0\].last: not all within"),
        (lambda m: changed(m.clusters[0], last=b"\xff" * 16), r"clusters\[0\].last: not all"),
        (lambda m: changed(m.clusters[0], last=bytes(8)), r"last: 1 numbers, where 2"),
        (lambda m: changed(m.clusters[0], rows=bytes(8)), r"rows: 1 numbers, where 2"),
        (lambda m: changed(m.clusters[0], rows=b"\xff" * 16), r"clusters\[0\].rows: negative"),
        (lambda m: changed(m.clusters[0], sums=b"\xff" * 96), r"clusters\[0\].sums: no finite"),
        (lambda m: changed(m.clusters[0], sums=bytes(8)), r"sums: 1 numbers, where 6 x 2"),
        (lambda m: m.clusters.append(m.clusters[0]), "progress.clusters: the same one twice"),
        (lambda m: m.streams.append(m.streams[0]), "progress.streams: the same one twice"),
        (lambda m: m.shares.append(m.shares[0]), "progress.shares: the same one twice"),
        (lambda m: changed(m.streams[0].header, stream=""), r"streams\[0\].header.stream"),
        (lambda m: changed(m.shares[0].slice, name=""), r"shares\[0\].slice.name"),
        (lambda m: m.shares[0].ClearField("dimensions"), r"shares\[0\].dimensions"),
        (lambda m: changed(m.clusters[0].dimensions[0], kind=7), r"clusters\[0\].dimensions"),
        (lambda m: m.detections.update({"": 1}), "progress.detections: ''"),
        (lambda m: m.labels.update({"a\n": 1}), "progress.labels"),
    ],
)
def test_progress_that_cannot_be_is_refused_and_the_field_is_named(spoil, said):
    message = sound()
    assert decode_progress(message)
    spoil(message)
    with pytest.raises(InvalidState, match=said) as refused:
        decode_progress(message)
    assert "export it again" in str(refused.value)
