"""Headers, streams that connect again, frames that come again, and their event time."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.frames.detections import Reason
from monitor.frames.frame import Refusal
from monitor.frames.slices import TOTAL
from monitor.frames.space import Dimension, DimensionKind, Space, plain_space
from monitor.pipeline.streams import Stream
from tests.piped import (
    DOUBLE,
    GOOD_TRUTH,
    HEADER,
    SECOND,
    account_of,
    counted,
    opened,
    outgoing,
    pipeline_of,
    reported,
    sent,
)
from tests.received import Label, frame, labels

# ---- headers

A = "a" * 64


@pytest.mark.parametrize(
    ("header", "field_name", "said"),
    [
        (replace(HEADER, stream=""), "stream", "''"),
        (replace(HEADER, stream="a b"), "stream", "'a b'"),
        (replace(HEADER, stream="lidar\n"), "stream", "lidar"),
        (replace(HEADER, stream=A + "a"), "stream", "1 to 64 characters"),
        (replace(HEADER, stream="ü"), "stream", "'ü'"),
        (replace(HEADER, space=Space(())), "dimensions", "0 of them: 1 to 16"),
        (
            replace(HEADER, space=plain_space(tuple(f"d{i}" for i in range(17)))),
            "dimensions",
            "17 of them: 1 to 16 ([limits] max_dimensions)",
        ),
        (replace(HEADER, space=plain_space(("x", "x"))), "dimensions.name", "'x': unique"),
        (replace(HEADER, space=plain_space(("x", ""))), "dimensions.name", "''"),
        (replace(HEADER, space=plain_space(("x,y",))), "dimensions.name", "'x,y'"),
        (replace(HEADER, classes=()), "class_names", "0 of them: 1 to 256"),
        (
            replace(HEADER, classes=tuple(map(str, range(257)))),
            "class_names",
            "257 of them: 1 to 256 ([limits] max_classes)",
        ),
        (replace(HEADER, classes=("car", "car")), "class_names", "'car': unique"),
        (replace(HEADER, classes=("",)), "class_names", "''"),
        (replace(HEADER, classes=("a\nb",)), "class_names", "printable"),
        (replace(HEADER, classes=(A + "a",)), "class_names", "1 to 64"),
    ],
)
def test_a_header_without_meaning_is_refused_with_field_and_value(header, field_name, said):
    pipeline = pipeline_of()
    refusal = pipeline.register(header)
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, refusal.field) == (Reason.INVALID_HEADER, field_name)
    assert said in refusal.message
    assert pipeline.streams == {}


@pytest.mark.parametrize("name", ["lidar", "LIDAR_top-2.front", A])
@pytest.mark.parametrize("label", ["car", "Fußgänger", "traffic light / red", A])
def test_names_of_the_allowed_characters_are_registered(name, label):
    stream = opened(pipeline_of(), replace(HEADER, stream=name, classes=(label,)))
    assert stream.header.stream == name


def test_only_so_many_streams_are_known():
    pipeline = pipeline_of(server={"max_streams": 2})
    for name in "ab":
        opened(pipeline, replace(HEADER, stream=name))
    refusal = pipeline.register(replace(HEADER, stream="c"))
    assert isinstance(refusal, Refusal)
    assert "'c' would be stream 3: at most 2 ([server] max_streams)" in refusal.message
    assert isinstance(pipeline.register(replace(HEADER, stream="a")), Stream)


def test_a_stream_that_connects_again_goes_on_where_it_was():
    pipeline = pipeline_of()
    stream = opened(pipeline)
    pipeline.process(stream, frame([sent(1)], 1, 50 * SECOND))
    assert opened(pipeline) is stream
    changed = opened(pipeline, replace(HEADER, classes=("car",)))
    assert changed is not stream
    assert pipeline.streams == {"lidar": changed}


def test_angles_take_part_in_the_joint_block_only_if_the_configuration_says_so():
    space = Space((Dimension("x"), Dimension("yaw", "rad", DimensionKind.ANGLE)))
    header = replace(HEADER, space=space)
    assert opened(pipeline_of(), header).header.space.joint == (0,)
    including = pipeline_of(statistics={"angles_in_joint": True})
    assert opened(including, header).header.space.joint == (0, 1)
    assert opened(including, header) is opened(including, header)


# ---- frames that come again


def test_a_repeated_frame_is_answered_again_and_counted_once():
    pipeline = pipeline_of(DOUBLE)
    stream = opened(pipeline)
    rows = [sent(1, truth=True), sent(2)]
    first = pipeline.process(stream, frame(rows))
    again = pipeline.process(stream, frame(rows))
    assert outgoing(again) == outgoing(first)
    assert [notice.reason for notice in again.notices] == [Reason.DUPLICATE_FRAME]
    assert counted(pipeline)[TOTAL].raw.n == 1
    assert again.notices[0].message == (
        "1 came before with the same stamp: answered again, counted once. "
        "Number the frames of a stream uniquely."
    )
    assert account_of(pipeline.counters.truth) == {"matched": 1, "duplicate": 1}
    assert pipeline.counters.notices[Reason.DUPLICATE_FRAME] == 1
    assert pipeline.counters.dropped == 0
    assert len(pipeline.ledger.fates.store) == 1
    # The first one goes on waiting, with what it knows.
    found = reported(pipeline, labels([Label(2, GOOD_TRUTH), Label(1, GOOD_TRUTH)]))
    assert account_of(found.account) == {"matched": 1, "duplicate": 1}


def test_a_frame_that_was_wholly_labelled_is_repeated_like_any_other():
    pipeline = pipeline_of(DOUBLE)
    stream = opened(pipeline)
    rows = [sent(1, truth=True), sent(2, truth=True)]
    for _ in range(3):
        answer = pipeline.process(stream, frame(rows, 1, None))
    assert [notice.reason for notice in answer.notices] == [Reason.DUPLICATE_FRAME]
    assert account_of(pipeline.counters.truth) == {"matched": 2, "duplicate": 4}
    assert counted(pipeline)[TOTAL].raw.n == 2


@pytest.mark.parametrize(("before", "after"), [(0, 1), (5, 4), (0, None), (None, 0)])
def test_a_frame_of_a_known_number_and_another_stamp_takes_the_place_of_the_old(before, after):
    pipeline = pipeline_of(DOUBLE)
    stream = opened(pipeline)
    pipeline.process(stream, frame([sent(1, truth=True), sent(2), sent(3)], 1, before))
    answer = pipeline.process(stream, frame([sent(4, truth=True), sent(5)], 1, after))
    assert answer.notices == ()
    assert Reason.DUPLICATE_FRAME not in pipeline.counters.notices
    # Two of the old one still waited.
    assert pipeline.counters.dropped == 2
    assert (len(pipeline.ledger.fates.store), pipeline.ledger.fates.pending) == (1, 1)
    kept = pipeline.ledger.fates.store.get(("lidar", 1))
    assert kept is not None
    assert pipeline.ledger.fates.store.bytes == kept.nbytes
    assert account_of(pipeline.counters.truth) == {"matched": 2}
    found = reported(pipeline, labels([Label(2, GOOD_TRUTH), Label(5, GOOD_TRUTH)]))
    assert account_of(found.account) == {"orphan": 1, "matched": 1}
    # From now on it is this stamp that makes a duplicate.
    answer = pipeline.process(stream, frame([sent(4), sent(5)], 1, after))
    assert [notice.reason for notice in answer.notices] == [Reason.DUPLICATE_FRAME]


def test_a_frame_without_a_number_is_answered_and_its_inline_truth_counts():
    pipeline = pipeline_of(DOUBLE)
    stream = opened(pipeline)
    for _ in range(2):
        answer = pipeline.process(stream, frame([sent(1, truth=True), sent(2)], None))
        assert [notice.reason for notice in answer.notices] == [Reason.MISSING_FRAME_KEY]
    assert counted(pipeline)[TOTAL].raw.n == 2
    assert len(pipeline.ledger.fates.store) == 0
    assert pipeline.counters.dropped == 2
    assert pipeline.counters.notices[Reason.MISSING_FRAME_KEY] == 2


# ---- event time


@settings(max_examples=60)
@given(
    st.lists(st.one_of(st.none(), st.integers(-(10**11), 10**11)), max_size=20),
    st.sampled_from([0.0, 0.5, 2.0]),
)
def test_the_watermark_never_moves_back_and_stays_behind_the_latest_frame(stamps, disorder):
    pipeline = pipeline_of(pending={"max_disorder_seconds": disorder})
    stream = opened(pipeline)
    late = 0
    highest: int | None = None
    for number, stamp in enumerate(stamps):
        before = stream.time.watermark_ns
        late += stamp is not None and before is not None and stamp < before
        pipeline.process(stream, frame([], number, stamp))
        if stamp is not None:
            highest = stamp if highest is None else max(highest, stamp)
        if before is not None:
            assert stream.time.watermark_ns is not None
            assert stream.time.watermark_ns >= before
        expected = None if highest is None else highest - int(disorder * SECOND)
        assert stream.time.watermark_ns == expected
    assert pipeline.counters.late_frames == late


@pytest.mark.parametrize("wild", [2 * 10**18, -(2**63), 2**63 - 1])
def test_a_single_wild_stamp_moves_no_watermark_and_makes_no_frame_late(wild):
    pipeline = pipeline_of()
    stream = opened(pipeline)
    for number, stamp in enumerate([SECOND, 2 * SECOND, wild, 3 * SECOND, 4 * SECOND]):
        pipeline.process(stream, frame([], number, stamp))
    assert stream.time.watermark_ns == 2 * SECOND
    assert pipeline.counters.late_frames == 0


def test_the_first_stamp_of_all_may_be_the_earliest_there_is():
    pipeline = pipeline_of()
    stream = opened(pipeline)
    pipeline.process(stream, frame([], 1, -(2**63)))
    assert stream.time.watermark_ns == -(2**63)
    pipeline.process(stream, frame([], 2, 2**63 - 1))
    assert 0 <= stream.time.since(-(2**63)) < 2**63


def test_a_late_frame_is_answered_and_counted_like_any_other():
    pipeline = pipeline_of(DOUBLE)
    stream = opened(pipeline)
    pipeline.process(stream, frame([sent(1, truth=True)], 1, 100 * SECOND))
    answer = pipeline.process(stream, frame([sent(2, truth=True)], 2, 0))
    assert answer.reason.tolist() == [Reason.NONE]
    assert pipeline.counters.late_frames == 1
    assert counted(pipeline)[TOTAL].raw.n == 2
