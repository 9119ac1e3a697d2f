"""Seconds of tracks are those of a slow account, at any rate of labels and however rows are cut."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from monitor.drift.channels import channels
from monitor.drift.charts import Stage
from monitor.drift.evidence import DriftSettings
from monitor.drift.levels import far_outside
from monitor.drift.track_seconds import TrackSeconds
from tests.drift.drives import Frame, K, cut, cuts, seeds, some_frames, watched
from tests.drift.family_oracle import SECOND, SlowSeconds

C = channels(K)


def some_labels(seed: int, *, wild: bool, sparse: int) -> list[Frame]:
    """Frames of which one in so many has labels; where nothing was changed, stages are alike."""
    return [
        (
            source,
            stamp,
            changed,
            [(t, s, raw, made if changed else raw) for t, s, raw, made in rows],
        )
        if number % sparse == 0
        else (source, stamp, changed, [])
        for number, (source, stamp, changed, rows) in enumerate(some_frames(seed, wild=wild))
    ]


def taken(pieces, seconds=None):
    """All that is given out: seconds, and the time since the last label of each row."""
    seconds = seconds or TrackSeconds(DriftSettings())
    found = [seconds.take(K, piece) for piece in pieces]
    return (
        np.concatenate([over for over, _ in found]),
        np.concatenate([apart for _, apart in found]),
        seconds,
    )


def told(second: int, source: int, one) -> list[float]:
    """A second of the slow account, as numbers; its values by stage and channel."""
    values = np.array([[seen for seen, _ in by_stage] for by_stage in one["seen"]])
    level = values.mean(axis=0)
    counts = np.array([n for _, n, _ in one["earlier"]])
    levels = np.array([at for at, *_ in one["earlier"]]).reshape(-1, *level.shape)
    return [
        *(source, second, one["slice"], one["count"], one["changed"], len(counts), one["first"]),
        *(counts.sum(), np.square(counts).sum(), *one["outside"], *one["trial"]),
        *level.ravel(),
        *np.square(values - level).sum(axis=0).ravel(),
        *np.einsum("n,nsc->sc", counts, levels).ravel(),
    ]


def listed(seconds) -> list[list[float]]:
    """The same of what was given out."""
    numbers = [
        "source",
        "second",
        "slice",
        "count",
        "changed",
        "before",
        "first",
        "rows",
        "rows2",
        "outside",
        "trial",
    ]
    return [
        [
            *(float(value) for name in numbers for value in np.ravel(one[name])),
            *(float(v) for name in ("level", "spread", "total") for v in one[name][:, C].ravel()),
        ]
        for one in seconds
    ]


@given(seeds, cuts, st.booleans(), st.sampled_from([1, 4, 15]))
@example(1_392_709_928, [99], True, 1)
def test_seconds_are_those_of_the_slow_account(seed, cuts, wild, sparse):
    frames = some_labels(seed, wild=wild, sparse=sparse)
    slow = SlowSeconds(K, far_outside(K, DriftSettings().page_tolerance))
    seconds, apart, fast = taken(cut(frames, cuts))
    expected: list[list[float]] = []
    since: list[float | None] = []
    for frame in frames:
        second, over, last = slow.frame(frame)
        # By slice, and then by track.
        expected += sorted([told(second, frame[0], one) for one in over], key=lambda one: one[2])
        since += last
    found = listed(seconds)
    for source in range(3):
        ours, theirs = (
            np.array([one for one in all if one[0] == source]) for all in (found, expected)
        )
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-5)
    np.testing.assert_allclose(apart, [math.nan if one is None else one for one in since])
    assert (fast.late, fast.left_out) == (slow.late, 0)


def second_of(track: int, second: int, rows: int = 6) -> list[Frame]:
    """Frames of one track in one second, with a NEES of 1."""
    stamps = (second * SECOND + at * (SECOND // rows) for at in range(rows))
    return [(0, stamp, False, [(track, 0, 1.0, 1.0)]) for stamp in stamps]


@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize(("pause", "before"), [(0, 1), (1, 1), (9, 0)])
def test_a_track_id_that_comes_again_after_idle_is_a_new_track(rows, pause, before):
    # Another track has labels all the while: time with labels goes on.
    others = [one for second in range(3, 5 + pause) for one in second_of(2, second)]
    frames = [*second_of(1, 3, rows), *second_of(1, 4 + pause, rows), *others]
    seconds, *_ = taken([watched([*sorted(frames, key=lambda one: one[1]), *second_of(3, 99)])])
    ours = seconds[seconds["key"] == 1]
    assert ours["before"].tolist() == [0, before]


def test_a_track_goes_on_however_sparse_labels_are_and_each_tells_its_distance():
    frames = [one for second in range(3, 40, 3) for one in second_of(1, second, 1)]
    seconds, apart, _ = taken([watched(frames)])
    assert seconds["before"].tolist() == list(range(12))
    assert (seconds["count"] == 1).all()
    np.testing.assert_allclose(apart[1:], 3.0)
    # After more than fifteen idle times it is another one.
    seconds, *_ = taken([watched([*second_of(1, 3, 1), *second_of(1, 34, 1), *second_of(2, 36)])])
    assert seconds["before"].tolist() == [0, 0]


def test_levels_of_a_stage_that_nothing_has_changed_are_those_of_the_other():
    seconds, *_ = taken([watched([*second_of(1, 3), *second_of(1, 4)])])
    for name in ("level", "spread", "outside"):
        raw, made = (seconds[name][:, stage] for stage in Stage)
        np.testing.assert_array_equal(raw, made)


def test_forgotten_slices_begin_anew_and_the_others_go_on():
    seconds = TrackSeconds(DriftSettings())
    frames = [one for second in (3, 4, 5) for one in second_of(1, second)]
    both: list[Frame] = [
        (source, stamp, changed, [(1, 1, e, e), (2, 2, e, e)])
        for source, stamp, changed, [(*_, e)] in frames
    ]
    taken([watched(both[:12])], seconds)
    seconds.forget(np.array([2]))
    over, *_ = taken([watched([*both[12:], (0, 6 * SECOND, False, [])])], seconds)
    told = [tuple(int(one[name]) for name in ("slice", "second", "before")) for one in over]
    assert told == [(1, 4, 1), (1, 5, 2), (2, 5, 0)]
    seconds.forget(np.zeros(0, np.int64))
    assert seconds.followed == 2


def test_the_longest_unseen_track_makes_room():
    seconds = TrackSeconds(DriftSettings(most_open=2))
    frames = [*second_of(1, 3), *second_of(2, 3), *second_of(3, 3)]
    # One after the other within the second.
    frames = [(0, 3 * SECOND + at, False, frame[3]) for at, frame in enumerate(frames)]
    over, *_ = taken([watched([frame]) for frame in frames], seconds)
    assert (over.size, seconds.followed, seconds.left_out) == (0, 2, 6)
