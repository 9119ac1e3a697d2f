"""Headers, streams that connect again, frames that come again, and their event time."""

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monitor.frames.detections import Reason
from monitor.frames.frame import Header, Refusal
from monitor.frames.slices import TOTAL
from monitor.frames.space import Space, plain_space
from monitor.pipeline.streams import Stream
from tests import piped
from tests.piped import GOOD_TRUTH, HEADER, SECOND, account_of, opened, pipeline_of, reported, sent
from tests.received import Label, frame, labels

LONGEST = "a" * 64


# ---- headers


def named(prefix: str, count: int) -> tuple[str, ...]:
    return tuple(f"{prefix}{i}" for i in range(count))


def of_dimensions(*names: str, unit="m") -> Header:
    return replace(HEADER, space=plain_space(names, unit))


def asking(*levels: float) -> Header:
    return replace(HEADER, quantile_levels=levels)


@pytest.mark.parametrize(
    ("header", "field_name", "said"),
    [
        (replace(HEADER, stream="lidar\n"), "stream", "lidar"),
        (replace(HEADER, stream=LONGEST + "a"), "stream", "1 to 64 characters"),
        (replace(HEADER, space=Space(())), "dimensions", "0 of them: 1 to 16"),
        (of_dimensions(*named("d", 17)), "dimensions", "17 of them: 1 to 16 ([limits] max_dim"),
        (of_dimensions("x", "x"), "dimensions.name", "'x': unique"),
        (of_dimensions("x,y"), "dimensions.name", "'x,y'"),
        (of_dimensions("x", unit="m\n"), "dimensions.unit", "printable"),
        (of_dimensions("x", unit="m" * 65), "dimensions.unit", ""),
        (replace(HEADER, coordinate_frame=LONGEST + "a"), "coordinate_frame", "at most 64"),
        (replace(HEADER, classes=()), "class_names", "0 of them: 1 to 256"),
        (replace(HEADER, classes=named("", 257)), "class_names", "257 of them: 1 to 256"),
        (replace(HEADER, classes=("car", "car")), "class_names", "'car': unique"),
        *((asking(level), "quantile_levels", "") for level in (9e-7, 1 - 9e-7, float("nan"))),
        (asking(0.5, 0.5), "quantile_levels", "0.5 after 0.5: they must ascend"),
        (asking(*(0.04 * i for i in range(1, 21))), "quantile_levels", "20 of them: at most 19"),
    ],
)
def test_a_header_without_meaning_is_refused_with_field_and_value(header, field_name, said):
    pipeline = pipeline_of()
    refusal = pipeline.register(header)
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, refusal.field) == (Reason.INVALID_HEADER, field_name)
    assert said in refusal.message
    assert pipeline.streams == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"stream": "LIDAR_top-2.front"},
        {"stream": LONGEST, "classes": (LONGEST, *named("", 255))},
        {"classes": ("Fußgänger", "traffic light / red")},
        {"space": plain_space(named("d", 16), "m" * 64), "coordinate_frame": LONGEST},
        {"quantile_levels": (1e-6, *(0.05 * i for i in range(1, 18)), 1 - 1e-6)},
    ],
)
def test_a_header_at_the_limits_is_registered(changes):
    header = replace(HEADER, **changes)
    assert opened(pipeline_of(), header).header == header


def test_only_so_many_streams_and_spaces_are_known():
    pipeline = pipeline_of(server={"max_streams": 2}, limits={"max_spaces": 2})
    for name in "ab":
        opened(pipeline, replace(HEADER, stream=name))
    refusal = pipeline.register(replace(HEADER, stream="c"))
    assert isinstance(refusal, Refusal)
    assert "'c' would be stream 3: at most 2 ([server] max_streams)" in refusal.message
    assert isinstance(pipeline.register(replace(HEADER, stream="a")), Stream)
    opened(pipeline, replace(of_dimensions("u", "v"), stream="a"))
    refusal = pipeline.register(replace(of_dimensions("x", "y"), stream="b"))
    assert isinstance(refusal, Refusal)
    assert "x, y would be set 3 of dimensions: at most 2 ([limits] max_sp" in refusal.message


def test_a_stream_that_connects_again_goes_on_until_its_header_changes():
    pipeline = pipeline_of()
    stream = opened(pipeline)
    pipeline.process(stream, frame([sent(1)], 1, 50 * SECOND), 7)
    assert opened(pipeline) is stream
    asking = opened(pipeline, replace(HEADER, quantile_levels=(0.5,)))
    assert (asking.number, asking.time) == (stream.number, stream.time)
    changed = opened(pipeline, replace(HEADER, classes=("car",)))
    assert pipeline.streams == {"lidar": changed}
    assert changed.number == stream.number + 1
    assert changed.time.watermark_ns is None
    assert changed.seen.frames == 1


# ---- frames that come again


def test_a_repeated_frame_is_answered_again_and_counted_once():
    pipeline = pipeline_of(piped.DOUBLE)
    stream = opened(pipeline)
    rows = [sent(1, truth=True), sent(2)]
    first = pipeline.process(stream, frame(rows))
    again = pipeline.process(stream, frame(rows))
    assert piped.outgoing(again) == piped.outgoing(first)
    (notice,) = again.notices
    assert notice.reason is Reason.DUPLICATE_FRAME
    assert notice.message == (
        "1 came before with the same stamp: answered again, counted once. "
        "Number the frames of a stream uniquely."
    )
    assert piped.counted(pipeline)[TOTAL].raw.n == 1
    assert account_of(pipeline.counters.truth) == {"matched": 1, "duplicate": 1}
    assert pipeline.counters.notices[Reason.DUPLICATE_FRAME] == 1
    assert pipeline.counters.dropped == 0
    assert len(pipeline.ledger.fates.store) == 1
    # The first one goes on waiting, with what it knows.
    found = reported(pipeline, labels([Label(2, GOOD_TRUTH), Label(1, GOOD_TRUTH)]))
    assert account_of(found.account) == {"matched": 1, "duplicate": 1}
    # Wholly labelled, it is repeated like any other.
    again = pipeline.process(stream, frame(rows))
    assert [notice.reason for notice in again.notices] == [Reason.DUPLICATE_FRAME]
    assert piped.counted(pipeline)[TOTAL].raw.n == 2


@pytest.mark.parametrize(("before", "after"), [(0, 1), (5, 4), (0, None), (None, 0)])
def test_a_frame_of_a_known_number_and_another_stamp_takes_the_place_of_the_old(before, after):
    pipeline = pipeline_of(piped.DOUBLE)
    stream, fates = opened(pipeline), pipeline.ledger.fates
    pipeline.process(stream, frame([sent(1, truth=True), sent(2), sent(3)], 1, before))
    answer = pipeline.process(stream, frame([sent(4, truth=True), sent(5)], 1, after))
    assert answer.notices == ()
    # Two of the old one still waited.
    assert pipeline.counters.dropped == fates.account["dropped_replaced"] == 2
    assert (len(fates.store), fates.pending) == (1, 1)
    kept = fates.store.get(("lidar", 1))
    assert kept is not None
    assert fates.store.bytes == kept.nbytes
    found = reported(pipeline, labels([Label(2, GOOD_TRUTH), Label(5, GOOD_TRUTH)]))
    assert account_of(found.account) == {"orphan": 1, "matched": 1}
    # From now on it is this stamp that makes a duplicate.
    answer = pipeline.process(stream, frame([sent(4), sent(5)], 1, after))
    assert [notice.reason for notice in answer.notices] == [Reason.DUPLICATE_FRAME]


# ---- event time


@given(
    st.lists(st.none() | st.integers(-(10**11), 10**11), max_size=20),
    st.sampled_from([0.0, 0.5, 2.0]),
)
@example([0, SECOND, 0, -1, SECOND // 2, SECOND // 2 - 1, None, 3 * SECOND, SECOND], 0.5)
def test_the_watermark_never_moves_back_and_stays_behind_the_latest_frame(stamps, disorder):
    pipeline = pipeline_of(pending={"max_disorder_seconds": disorder})
    stream = opened(pipeline)
    late, highest = 0, None
    for number, stamp in enumerate(stamps):
        before = stream.time.watermark_ns
        late += stamp is not None and before is not None and stamp < before
        pipeline.process(stream, frame([], number, stamp))
        if stamp is not None:
            highest = stamp if highest is None else max(highest, stamp)
            assert stream.time.latest_ns == stamp
        expected = None if highest is None else highest - int(disorder * SECOND)
        assert stream.time.watermark_ns == expected
    assert pipeline.counters.late_frames == late
