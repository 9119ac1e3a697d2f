"""The sample of a slice: the same rows whoever counts them, in any order, however often."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.frames.frame import MatchedRows, Origin
from monitor.statistics.observations import finished
from monitor.statistics.sample import (
    SampledRows,
    SampledSlice,
    Sampler,
    fair,
    width,
)
from monitor.statistics.state import StatisticsState
from monitor.store.statistics_state import StoredState, parsed
from tests.states import counted, joined, random_rows
from tests.statistics.matched_frames import BINNING, UV, WINDOWS, XY, accumulated, matched
from tests.statistics.matched_frames import finished as folded

K = XY.k


def drawn(events: dict[int, int], most: int) -> SampledRows:
    """Hashes, and how often each was counted or retracted."""
    key = np.array(sorted(events), np.uint64)
    revision = np.array([events[one] for one in sorted(events)], np.int64)
    there = (revision % 2)[:, None]
    values = there * (key[:, None] + revision[:, None] / 8 + np.arange(1, width(K) + 1))
    return SampledRows(most, key, revision, values, key * there[:, 0].astype(np.uint64)).cut(most)


def assert_same(one: SampledRows, other: SampledRows) -> None:
    assert encoded(one) == encoded(other)


def encoded(rows: SampledRows) -> bytes:
    sample = (SampledSlice("car", XY, False, rows),)
    data = joined(StoredState(StatisticsState(BINNING, WINDOWS, sample=sample)))
    (back,) = parsed(data).state.sample or sample
    assert back.rows.most == rows.most
    for name in ("key", "revision", "values", "track"):
        assert np.array_equal(getattr(back.rows, name), getattr(rows, name))
    return data


samples = st.builds(
    drawn, st.dictionaries(st.integers(0, 30), st.integers(1, 4)), st.integers(1, 12)
)


@given(samples, samples, samples)
def test_samples_add_up_in_any_order_and_however_often(a, b, c):
    whole = a.merge(b).merge(c)
    assert_same(a.merge(b.merge(c)), whole)
    assert_same(c.merge(a).merge(b), whole)
    assert_same(whole.merge(b), whole)
    assert_same(a.merge(a), a)
    assert_same(a.merge(whole.since(a)), whole)


@given(
    st.dictionaries(st.integers(0, 99), st.integers(1, 4), min_size=1),
    st.lists(st.sets(st.integers(0, 99)), min_size=1),
    st.integers(1, 20),
)
def test_any_sharding_with_anything_delivered_twice_gives_the_same_bytes(events, shards, most):
    """Some vehicles have seen no more than the earlier revisions of a label."""
    parts = [drawn(events, most)]
    for i, shard in enumerate(shards):
        some = {one: max(1, events[one] - i % 2) for one in shard & set(events)}
        parts += [drawn(some, most)] * (1 + i % 2)
    assert_same(reduce(SampledRows.merge, reversed(parts)), drawn(events, most))


def test_rows_of_one_revision_that_differ_are_kept_alike_by_all():
    one, other = drawn({1: 1, 5: 1}, 4), drawn({1: 1}, 4)
    other.values[0, 1] += 1
    assert_same(one.merge(other), other.merge(one))


def of_frame(seed: int, frame_id: int, *, retracts: bool = False, n: int = 40) -> MatchedRows:
    rows = matched([seed, frame_id], n, stamp_ns=2 * frame_id, tracks=5)
    mean = np.random.default_rng([9, frame_id]).normal(size=(n, K))
    origin = Origin("front", frame_id, 2 * frame_id, np.arange(n), mean)
    return replace(rows, origin=origin, retracts=retracts)


def sampled(frames, most: int = 50, fold_rows: int = 100) -> dict[int, SampledRows]:
    accumulator = accumulated((), fold_rows)
    accumulator.sampler = Sampler(most, "car 1")
    for rows in frames:
        accumulator.add(rows)
    return dict(folded(accumulator).sampler.held)


@pytest.mark.parametrize("fold_rows", [1, 100, 10_000])
def test_what_is_folded_is_sampled_whatever_is_folded_together(fold_rows):
    """Of 20 frames; labels of some are retracted, and of some of these counted anew."""
    frames = [of_frame(1, number) for number in range(20)]
    frames += [of_frame(1, number, retracts=True) for number in range(0, 20, 2)]
    frames += [of_frame(2, number) for number in range(0, 20, 4)]
    found = sampled(frames, fold_rows=fold_rows)
    for index, expected in sampled(frames, 10_000).items():
        assert_same(found[index], expected.cut(50))
        assert expected.revision.max() == 3 and (expected.revision % 2 == 0).any()
    assert_same(found[0], sampled(frames, fold_rows=7)[0])


def test_rows_are_those_that_were_matched_and_hashes_are_even():
    frames = [of_frame(3, number) for number in range(100)]
    for index, rows in sampled(frames, 10_000).items():
        parts = [f.take(f.slices == index) for f in frames]
        mean = np.concatenate([part.origin.mean for part in parts if part.origin])
        expected = np.concatenate((mean, np.concatenate([part.error for part in parts])), axis=1)
        held = np.concatenate((rows.values[:, :K], rows.values[:, -K:]), axis=1)
        assert np.array_equal(np.sort(held, axis=0), np.sort(expected, axis=0))
        share = rows.key / 2.0**64
        # Kolmogorov's 99.9 % point.
        assert (
            np.abs(share - (np.arange(share.size) + 0.5) / share.size).max() * share.size**0.5 < 2
        )
        ids = [part.tracks.id[part.tracks.known] for part in parts if part.tracks]
        assert np.unique(rows.track[rows.track > 0]).size == np.unique(np.concatenate(ids)).size


def test_slices_below_one_limit_are_a_fair_draw():
    many, few = drawn(dict.fromkeys(range(40), 1), 10), drawn(dict.fromkeys(range(0, 40, 8), 1), 10)
    assert [one.key.tolist() for one in fair([many, few])] == [list(range(10)), [0, 8]]
    retracted = drawn(dict.fromkeys(range(40), 2), 10)
    assert [one.key.size for one in fair([retracted])] == [0]


def test_an_upload_has_the_rows_that_are_new_and_no_more():
    earlier = counted(random_rows(1, 5))
    rows = drawn(dict.fromkeys(range(8), 1), 10)
    now = replace(earlier, sample=(SampledSlice("car", UV, False, replace(rows)),))
    gained = finished(now.since(earlier))
    assert_same(gained.sample[0].rows, rows)
    assert finished(now.since(now)).sample == ()
    assert_same(earlier.merge(gained).sample[0].rows, rows)
